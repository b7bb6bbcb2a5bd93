//! Regions over memory that was there before: files, BARs of other devices, adopted mappings.
#![expect(unsafe_code, reason = "a mapping that somebody else keeps")]

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::FileType;

use crate::error::MempoolError;
use crate::hugepage::BASE_4K;
use crate::mapping::{MAX_LEN, Mapping};
use crate::region::Region;

impl Region {
    /// Maps memory of a file, shared: a PCI device's BAR (`/sys/bus/pci/devices/*/resource2`), a
    /// dma-buf, a file in `/dev/shm`.
    ///
    /// Its bytes are what they were. Nothing is touched or locked beforehand; the descriptor may be
    /// closed afterwards. Whoever shrinks a mapped file makes the next access a SIGBUS.
    ///
    /// # Shape
    ///
    /// `offset` and `len_bytes` are multiples of 4096.
    ///
    /// # Errors
    ///
    /// [`MempoolError::RegionLength`]; [`MempoolError::ForeignRange`] for a range that is not made
    /// of pages, or past the end of an ordinary file; [`MempoolError::Os`] when the file cannot be
    /// mapped for reading and writing.
    pub fn map_file(
        file: &impl AsFd,
        offset: u64,
        len_bytes: usize,
    ) -> Result<Arc<Self>, MempoolError> {
        check_len(len_bytes)?;
        let os = |call, source: io::Error| MempoolError::Os { call, len_bytes, source };
        let fd = file.as_fd();
        let stat = rustix::fs::fstat(fd).map_err(|errno| os("fstat", errno.into()))?;
        let is_ordinary = FileType::from_raw_mode(stat.st_mode).is_file();
        let file_bytes = if is_ordinary { stat.st_size.cast_unsigned() } else { u64::MAX };
        let fits = offset.checked_add(len_bytes as u64).is_some_and(|end| end <= file_bytes);
        if !fits || !offset.is_multiple_of(BASE_4K as u64) || !len_bytes.is_multiple_of(BASE_4K) {
            return Err(MempoolError::ForeignRange { offset, len_bytes, file_bytes });
        }
        let mapping =
            Mapping::of_file(fd, offset, len_bytes).map_err(|source| os("mmap", source))?;
        Ok(Self::of_mapping(mapping))
    }

    /// Makes a region of memory that somebody else mapped, and keeps `owner` as long as the region
    /// lives.
    ///
    /// # Safety
    ///
    /// Until `owner` is dropped, `len_bytes` from `base` on are mapped for reading and writing, and
    /// nobody borrows them or accesses them in this process other than atomically: the device and
    /// peers write there at any time.
    ///
    /// # Errors
    ///
    /// [`MempoolError::RegionLength`]; [`MempoolError::ForeignRange`] for memory that is not made
    /// of pages of 4096 bytes. `owner` is dropped then.
    pub unsafe fn adopt(
        base: NonNull<u8>,
        len_bytes: usize,
        owner: Box<dyn Send + Sync>,
    ) -> Result<Arc<Self>, MempoolError> {
        check_len(len_bytes)?;
        let offset = base.as_ptr().addr() as u64;
        if !offset.is_multiple_of(BASE_4K as u64) || !len_bytes.is_multiple_of(BASE_4K) {
            let file_bytes = u64::MAX;
            return Err(MempoolError::ForeignRange { offset, len_bytes, file_bytes });
        }
        // SAFETY: the caller's promise, which is the same.
        Ok(Self::of_mapping(unsafe { Mapping::of_owner(base, len_bytes, owner) }))
    }
}

fn check_len(len_bytes: usize) -> Result<(), MempoolError> {
    if (1..=MAX_LEN).contains(&len_bytes) {
        return Ok(());
    }
    Err(MempoolError::RegionLength { len_bytes, max_bytes: MAX_LEN })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;
    use crate::region::{Backing, RegionConfig};

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn two_mappings_of_a_file_are_the_same_memory() {
        let file = memfd_create("peer", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 0x3000).unwrap();
        let whole = Region::map_file(&file, 0, 0x3000).unwrap();
        let tail = Region::map_file(&file, 0x1000, 0x2000).unwrap();
        drop(file);
        assert_eq!((whole.backing(), whole.page_size_bytes()), (Backing::Foreign, 4096));
        assert!(whole.fd().is_none(), "a part of a file is no file to share");
        whole.copy_in(0x1ffe, b"abcd").unwrap();
        let mut bytes = [0; 4];
        tail.copy_out(0xffe, &mut bytes).unwrap();
        assert_eq!(&bytes, b"abcd");
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn ranges_that_no_mapping_can_have_are_refused() {
        let file = memfd_create("peer", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 0x2000).unwrap();
        for (offset, len) in [(1, 0x1000), (0, 0x1001), (0x1000, 0x2000), (u64::MAX - 4095, 4096)] {
            let refused = Region::map_file(&file, offset, len).unwrap_err().to_string();
            assert!(refused.contains(&format!("{len} bytes at offset {offset:#x}")), "{refused}");
        }
        let empty = Region::map_file(&file, 0, 0).unwrap_err();
        assert!(matches!(empty, MempoolError::RegionLength { .. }), "{empty}");
        let foreign = RegionConfig { backing: Backing::Foreign, ..RegionConfig::heap(4096) };
        let refused = Region::alloc(&foreign).unwrap_err().to_string();
        assert!(refused.contains("map_file"), "{refused}");
        let read_only = std::fs::File::open("/proc/self/exe").unwrap();
        let refused = Region::map_file(&read_only, 0, 4096).unwrap_err();
        assert!(matches!(refused, MempoolError::Os { call: "mmap", .. }), "{refused}");
    }

    #[test]
    fn adopted_memory_is_let_go_with_the_region() {
        struct Owner(#[expect(dead_code, reason = "kept")] Arc<Region>, Arc<AtomicBool>);
        impl Drop for Owner {
            fn drop(&mut self) {
                self.1.store(true, Ordering::Relaxed);
            }
        }
        let dropped = Arc::new(AtomicBool::new(false));
        let inner = Region::alloc(&RegionConfig::heap(8192)).unwrap();
        let base = inner.base();
        let owner = Box::new(Owner(inner, Arc::clone(&dropped)));
        // SAFETY: `owner` keeps the region, which is mapped and accessed atomically.
        let region = unsafe { Region::adopt(base, 8192, owner) }.unwrap();
        region.copy_in(8190, b"xy").unwrap();
        assert!(!dropped.load(Ordering::Relaxed));
        drop(region);
        assert!(dropped.load(Ordering::Relaxed));
        // SAFETY: refused before the memory matters.
        let odd = unsafe { Region::adopt(base, 4097, Box::new(())) }.unwrap_err();
        assert!(matches!(odd, MempoolError::ForeignRange { len_bytes: 4097, .. }), "{odd}");
    }
}
