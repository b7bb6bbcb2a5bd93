//! Part of a file, mapped in whole pages of the file's own size.
#![expect(unsafe_code, reason = "mmap and munmap")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;

use rustix::mm::{self, MapFlags, ProtFlags};

/// Type of the file system of hugepages. Source: Linux, include/uapi/linux/magic.h.
const HUGETLBFS_MAGIC: i128 = 0x9584_58f6;

/// Bytes of a file in memory, shared with whoever else maps them, for reading and writing.
///
/// The kernel maps and unmaps a file of hugepages by whole hugepages only, and rounds what it is
/// asked to map, but not what it is asked to unmap. So what is mapped here are all pages of the
/// file in which the asked bytes lie ([`FileMapping::mapped_bytes`]).
#[derive(Debug)]
pub struct FileMapping {
    /// Of the first asked byte.
    base: NonNull<u8>,
    start: NonNull<u8>,
    mapped_bytes: usize,
}

// SAFETY: the pages belong to no thread, and nothing here accesses them.
unsafe impl Send for FileMapping {}
// SAFETY: as above; `&FileMapping` only gives numbers and an address.
unsafe impl Sync for FileMapping {}

impl FileMapping {
    /// Maps `len_bytes` of a file from `offset` on. The descriptor may be closed afterwards.
    ///
    /// # Errors
    ///
    /// A range that no file has, or the kernel's reason.
    pub fn new(file: impl AsFd, offset: u64, len_bytes: usize) -> io::Result<Self> {
        let fd = file.as_fd();
        let whole = WholePages::around(offset, len_bytes, page_bytes(fd)?)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an address where nothing is mapped.
        let start = unsafe {
            let anywhere = std::ptr::null_mut();
            mm::mmap(anywhere, whole.len_bytes, access, MapFlags::SHARED, fd, whole.offset)?
        };
        // SAFETY: `skipped` is below the mapped length: the asked bytes lie behind it, one at
        // least.
        let base = unsafe { start.cast::<u8>().add(whole.skipped) };
        let at = |address| NonNull::new(address).ok_or(io::ErrorKind::Other);
        Ok(Self { base: at(base)?, start: at(start.cast())?, mapped_bytes: whole.len_bytes })
    }

    /// Address of the first byte that was asked for.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length of what is mapped: that of the pages in which the asked bytes lie.
    #[must_use]
    pub fn mapped_bytes(&self) -> usize {
        self.mapped_bytes
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, as whole pages of the file; whoever uses the memory keeps this.
        if let Err(error) = unsafe { mm::munmap(self.start.as_ptr().cast(), self.mapped_bytes) } {
            let bytes = self.mapped_bytes;
            tracing::error!(bytes, %error, "memory of a file stays mapped: it cannot be unmapped");
        }
    }
}

/// Size of the pages that the kernel maps this file in.
fn page_bytes(fd: BorrowedFd<'_>) -> io::Result<usize> {
    let system = rustix::fs::fstatfs(fd)?;
    let page = if i128::from(system.f_type) == HUGETLBFS_MAGIC {
        usize::try_from(system.f_bsize)
    } else {
        // SAFETY: a question that changes nothing.
        usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })
    };
    page.ok()
        .filter(|bytes| bytes.is_power_of_two())
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The pages of a file around some bytes of it.
#[derive(Debug, PartialEq, Eq)]
struct WholePages {
    offset: u64,
    len_bytes: usize,
    /// Bytes of the first page before those that were asked for.
    skipped: usize,
}

impl WholePages {
    /// `None` for no bytes, and for those that end beyond all addresses.
    fn around(offset: u64, len_bytes: usize, page_bytes: usize) -> Option<Self> {
        let skipped = usize::try_from(offset % page_bytes as u64).ok()?;
        let rounded = skipped.checked_add(len_bytes)?.checked_next_multiple_of(page_bytes)?;
        let offset = offset - skipped as u64;
        let has_end = len_bytes > 0 && offset.checked_add(rounded as u64).is_some();
        has_end.then_some(Self { offset, len_bytes: rounded, skipped })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::hugepage::{BASE_4K, HUGE_2M};

    #[test]
    fn bytes_of_a_file_lie_in_whole_pages_of_it() {
        let around = |offset, len, page| {
            WholePages::around(offset, len, page).map(|w| (w.offset, w.len_bytes, w.skipped))
        };
        assert_eq!(around(0, 4096, BASE_4K), Some((0, 4096, 0)));
        assert_eq!(around(8192, 4096, BASE_4K), Some((8192, 4096, 0)));
        assert_eq!(around(0, 4096, HUGE_2M), Some((0, 2 << 20, 0)));
        assert_eq!(around(0x1f_f000, 0x2000, HUGE_2M), Some((0, 4 << 20, 0x1f_f000)));
        assert_eq!(around(0x40_0000, 2 << 20, HUGE_2M), Some((0x40_0000, 2 << 20, 0)));
        assert_eq!(around(0x60_1000, 0x1f_f000, HUGE_2M), Some((0x60_0000, 2 << 20, 0x1000)));
        assert_eq!(around(0, 0, HUGE_2M), None, "no bytes");
        assert_eq!(around(u64::MAX - 4095, 4096, BASE_4K), None, "the end is not below 2^64");
        assert_eq!(around(0, usize::MAX, HUGE_2M), None);
        assert_eq!(around(4096, usize::MAX - 8191, HUGE_2M), None);
    }
}
