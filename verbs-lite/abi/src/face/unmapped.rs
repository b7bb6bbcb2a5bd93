//! Memory that a program unmaps while it is registered.
//!
//! An adapter has pinned its pages, and goes on with them, whatever the program does. The model
//! reads and writes the program's own addresses, and would bring the process down. So a fault at an
//! address that is registered and that nothing is mapped at any more gets a fresh page: what is
//! written there reaches nobody, as it would reach nobody in pages that only the adapter knows;
//! what is read is zero. Faults of all other kinds go on to whoever handled them before, the
//! program's own handler or the system.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{OnceLock, PoisonError, RwLock};

/// Unit of mappings.
const PAGE_BYTES: usize = 4096;
/// Tries to look at the ranges while somebody changes them.
const TRIES: u32 = 10_000;

/// First byte and length of what is registered.
static RANGES: RwLock<Vec<(usize, usize)>> = RwLock::new(Vec::new());
/// What faults did before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A range that is looked after as long as this lives.
#[derive(Debug)]
pub(super) struct Watched(usize, usize);

impl Watched {
    pub(super) fn new(start: usize, len: usize) -> Self {
        install();
        RANGES.write().unwrap_or_else(PoisonError::into_inner).push((start, len));
        Self(start, len)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut ranges = RANGES.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = ranges.iter().position(|range| *range == (self.0, self.1)) {
            ranges.swap_remove(at);
        }
    }
}

/// Takes faults, once, and keeps what took them before.
fn install() {
    BEFORE.get_or_init(|| {
        // SAFETY: numbers, for which zeros are a value.
        let (mut ours, mut before): (libc::sigaction, libc::sigaction) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        ours.sa_sigaction = on_fault as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        // SAFETY: both live through the call; the handler has the form that the flags ask for.
        unsafe { libc::sigaction(libc::SIGSEGV, &raw const ours, &raw mut before) };
        before
    });
}

/// Whether an address is registered. Called where nothing may be waited for or allocated.
fn is_watched(address: usize) -> bool {
    for _ in 0..TRIES {
        if let Ok(ranges) = RANGES.try_read() {
            return ranges.iter().any(|(start, len)| address.wrapping_sub(*start) < *len);
        }
        std::hint::spin_loop();
    }
    false
}

/// Puts a page where nothing is.
fn fill(address: usize) -> bool {
    let page: *mut c_void = std::ptr::without_provenance_mut(address & !(PAGE_BYTES - 1));
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: it replaces nothing that is mapped, and nobody has promised anything about the rest.
    let mapped =
        unsafe { libc::mmap(page, PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    // Another thread may have been faster.
    mapped == page || std::io::Error::last_os_error().raw_os_error() == Some(libc::EEXIST)
}

unsafe extern "C" fn on_fault(number: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    /// `SEGV_MAPERR`: nothing is mapped there.
    const NOT_MAPPED: c_int = 1;
    // SAFETY: the system's own description of the fault; errno is the thread's, which goes on as if
    // nothing had been.
    let (code, address, errno) =
        unsafe { ((*info).si_code, (*info).si_addr().addr(), *libc::__errno_location()) };
    let is_ours = code == NOT_MAPPED && is_watched(address) && fill(address);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    if is_ours {
        return;
    }
    let Some(before) = BEFORE.get() else { return };
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // It happens once more, and then the system does what it does.
            // SAFETY: the handler that was there before, which is the system's.
            unsafe { libc::sigaction(number, before, null_mut()) };
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: what was installed with this flag has this form.
            let handler = unsafe {
                std::mem::transmute::<
                    usize,
                    unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void),
                >(handler)
            };
            // SAFETY: the handler gets what the system gave this one.
            unsafe { handler(number, info, context) };
        }
        handler => {
            // SAFETY: what was installed without the flag has this form.
            let handler =
                unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(c_int)>(handler) };
            // SAFETY: as above.
            unsafe { handler(number) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of their own.
    fn pages(count: usize) -> *mut u8 {
        let (rights, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: fresh memory.
        let pages = unsafe { libc::mmap(null_mut(), count * PAGE_BYTES, rights, flags, -1, 0) };
        assert_ne!(pages, libc::MAP_FAILED);
        pages.cast()
    }

    #[test]
    fn unmapped_memory_that_is_registered_takes_writes_and_reads_as_zero() {
        let memory = pages(2);
        // SAFETY: two pages, which are given back; what is unmapped is watched.
        unsafe {
            memory.write_volatile(7);
            let watched = Watched::new(memory.addr(), 2 * PAGE_BYTES);
            assert_eq!(libc::munmap(memory.cast(), 2 * PAGE_BYTES), 0);
            assert_eq!(memory.read_volatile(), 0, "the old page is gone");
            let second = memory.wrapping_add(PAGE_BYTES + 5);
            second.write_volatile(9);
            assert_eq!(second.read_volatile(), 9);
            assert!(is_watched(second.addr()));
            drop(watched);
            assert!(!is_watched(second.addr()));
            libc::munmap(memory.cast(), 2 * PAGE_BYTES);
        }
    }

    #[test]
    fn faults_of_others_are_left_to_others() {
        install();
        assert!(!is_watched(0) && !is_watched(usize::MAX));
        let before = BEFORE.get().unwrap();
        // SAFETY: it only asks.
        let ours = unsafe {
            let mut ours: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGSEGV, std::ptr::null(), &raw mut ours);
            ours
        };
        assert_eq!(ours.sa_sigaction, on_fault as *const () as usize);
        assert_ne!(before.sa_sigaction, ours.sa_sigaction);
    }
}
