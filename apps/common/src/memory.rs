//! Memory that is there before it is needed.
//!
//! What a program reserved at its start is pages that the kernel promised. The first touch of each
//! makes it find one and clear it: 1 us on bare metal, 30 us and more in a virtual machine, and the
//! touch comes when a table fills for the first time, in the middle of the day.

use rustix::mm::{MlockAllFlags, mlockall};
use thiserror::Error;

/// The kernel does not let this process keep its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "memory is not locked ({0}): the first touch of each page takes 1 to 30 us, when it is needed; \
     mend: ulimit -l unlimited, `memlock` in /etc/security/limits.conf, or CAP_IPC_LOCK"
)]
pub struct NotLocked(pub rustix::io::Errno);

/// Has the kernel find every page that the process has reserved so far, and keep it in memory.
///
/// Call it when everything is made and before the first poll: what is reserved later is as before.
/// All that the process has mapped becomes resident, whether it is ever used or not.
///
/// # Errors
/// The process may not lock so much (RLIMIT_MEMLOCK, mlockall(2)), and nothing changed.
pub fn lock() -> Result<(), NotLocked> {
    mlockall(MlockAllFlags::CURRENT).map_err(NotLocked)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Page faults of this thread so far that needed no disk: field 10 of proc(5)'s `stat`.
    fn faults() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let behind_name = text.rsplit(')').next().unwrap();
        behind_name.split_ascii_whitespace().nth(7).unwrap().parse().unwrap()
    }

    /// Writes a byte of each page, and says how many of them had to be found.
    fn touch(memory: &mut [u8]) -> u64 {
        let before = faults();
        memory.chunks_mut(4096).for_each(|page| page[0] = 1);
        std::hint::black_box(memory);
        faults() - before
    }

    #[test]
    fn locked_memory_is_there_at_the_first_touch() {
        const BYTES: usize = 8 << 20;
        let mut untouched = vec![0; BYTES];
        let mut reserved = vec![0; BYTES];
        assert!(touch(&mut untouched) > 0, "pages are found when they are touched");
        match lock() {
            Ok(()) => assert!(touch(&mut reserved) <= 8),
            // An ordinary user with the default limit.
            Err(error) => {
                assert!(error.to_string().contains("mend: ulimit -l unlimited"));
                println!("skipped: {error}");
            }
        }
    }
}
