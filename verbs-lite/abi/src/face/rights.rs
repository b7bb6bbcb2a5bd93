//! What a program may do with its own memory: an adapter may not do more with it.

use std::ptr::NonNull;

use ferrocx_verbs_lite::Access;

use super::Errno;

/// Rights by which somebody writes to the memory.
const WRITES: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

/// Whether `access` lets anybody write.
pub(super) fn writes(access: Access) -> bool {
    access.intersects(WRITES)
}

/// Checks that the program may read all of a range of whole pages, and write to it where `access`
/// lets others. Its pages are there after that, as they are when a kernel pins them.
///
/// # Errors
///
/// `EFAULT`, as a kernel has it.
pub(super) fn check(base: NonNull<u8>, bytes: usize, access: Access) -> Result<(), Errno> {
    let writes = writes(access);
    let advice = if writes { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: it reads pages of the range, or writes what is in them: the program sees no other
    // bytes than before. It fails where nothing is mapped.
    if unsafe { libc::madvise(base.as_ptr().cast(), bytes, advice) } == 0 {
        return Ok(());
    }
    // Systems before Linux 5.14 do not know the advice, and memory of devices has no pages. Both
    // look like missing rights, of which the table of mappings tells.
    let is_unsure = std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL);
    let table = || std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    if is_unsure && grants(&table(), base.addr().get(), bytes, writes) {
        return Ok(());
    }
    Err(Errno(libc::EFAULT))
}

/// Whether a table of mappings, in the order of their addresses, says that all of a range can be
/// read, and written to if `writes`.
fn grants(table: &str, start: usize, bytes: usize, writes: bool) -> bool {
    let (mut next, end) = (start, start + bytes);
    for line in table.lines() {
        let Some((from, rest)) = line.split_once('-') else { continue };
        let Some((to, rest)) = rest.split_once(' ') else { continue };
        let [from, to] = [from, to].map(|hex| usize::from_str_radix(hex, 16).unwrap_or(0));
        if to <= next {
            continue;
        }
        let rights = rest.as_bytes();
        let is_enough = rights.first() == Some(&b'r') && (!writes || rights.get(1) == Some(&b'w'));
        if from > next || !is_enough {
            return false;
        }
        next = to;
        if next >= end {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_mappings_says_what_may_be_done() {
        let table = "1000-3000 rw-p 0 00:00 0\n3000-4000 r--p 0 00:00 0\n5000-6000 rw-s 0 08:01 7\n\
                     6000-7000 ---p 0 00:00 0\n";
        for (start, bytes, writes, expected) in [
            (0x1000, 0x2000, true, true),
            (0x2000, 0x1000, true, true),
            (0x2000, 0x2000, true, false),
            (0x2000, 0x2000, false, true),
            (0x3000, 0x3000, false, false),
            (0x5000, 0x1000, true, true),
            (0x5000, 0x2000, false, false),
            (0x7000, 0x1000, false, false),
        ] {
            assert_eq!(grants(table, start, bytes, writes), expected, "{start:#x} {bytes:#x}");
        }
    }
}
