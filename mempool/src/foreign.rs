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
        Ok(Self::of_mapping(mapping, None, Vec::new()))
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
        let mapping = unsafe { Mapping::of_owner(base, len_bytes, owner) };
        Ok(Self::of_mapping(mapping, None, Vec::new()))
    }
}

fn check_len(len_bytes: usize) -> Result<(), MempoolError> {
    if (1..=MAX_LEN).contains(&len_bytes) {
        return Ok(());
    }
    Err(MempoolError::RegionLength { len_bytes, max_bytes: MAX_LEN })
}

// Named as the tests that Miri runs without its store buffers, see the crate's documentation.
#[cfg(test)]
mod region_tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;
    use crate::region_config::{Backing, RegionConfig};
    use crate::{Mbuf, Pool, PoolConfig, PoolKeys, pool_tests};

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn two_mappings_of_a_file_are_the_same_memory() {
        let file = memfd_create("peer", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 0x3000).unwrap();
        let whole = Region::map_file(&file, 0, 0x3000).unwrap();
        let tail = Region::map_file(&file, 0x1000, 0x2000).unwrap();
        drop(file);
        assert_eq!((whole.backing(), whole.page_size_bytes()), (Backing::Foreign, 4096));
        assert!(whole.fd().unwrap().is_none(), "a part of a file is no file to share");
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

    /// Another device's memory, and a pool over all but its first 64 bytes.
    fn foreign_pool(count: usize) -> (Arc<Region>, Pool) {
        let memory = Region::alloc(&RegionConfig::heap(4096)).unwrap();
        memory.fill(0, 4096, 0xa5).unwrap();
        // SAFETY: the owner keeps the region, which is mapped and accessed atomically.
        let region =
            unsafe { Region::adopt(memory.base(), 4096, Box::new(Arc::clone(&memory))) }.unwrap();
        let pool = Pool::with_region(&config(count, 256), &region, 64).unwrap();
        (memory, pool)
    }

    fn config(count: usize, data_room_bytes: usize) -> PoolConfig {
        PoolConfig {
            count,
            data_room_bytes,
            headroom_bytes: 16,
            cache_size: 4,
            region: RegionConfig::heap(0),
            ..PoolConfig::default()
        }
    }

    #[test]
    fn a_pool_over_foreign_memory_touches_none_of_it() {
        let (memory, pool) = foreign_pool(8);
        assert!(pool.is_foreign());
        pool_tests::stamp(&pool, PoolKeys { region_iova: 0x10_0000, lkey: 7, domain: 3 }).unwrap();
        let mut cache = pool.cache();
        let mut held: Vec<Mbuf> = (0..8).map(|_| cache.get().unwrap()).collect();
        assert!(cache.get().is_none());
        for mbuf in &mut held {
            assert!(mbuf.reset_rx(16, 240) && !mbuf.reset_rx(16, 241));
            assert_eq!((mbuf.is_foreign(), mbuf.is_writable(), mbuf.lkey()), (true, false, 7));
            assert_eq!(
                mbuf.data_address() as u64 - memory.as_ptr().addr() as u64 + 0x10_0000,
                mbuf.data_iova()
            );
            assert!(mbuf.data_mut().is_none());
            assert!(mbuf.append(0).is_none() && mbuf.prepend(0).is_none());
            assert!(!mbuf.extend_from_slice(b"x") && mbuf.adj(1) && mbuf.trim(1));
            mbuf.prefetch_data();
        }
        held.drain(4..).for_each(|mbuf| cache.put(mbuf));
        drop((held, cache));
        pool_tests::unstamp(&pool).unwrap();
        drop(pool);
        let mut bytes = [0; 4096];
        memory.copy_out(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0xa5));
    }

    #[test]
    fn packets_with_foreign_payload_are_read_by_copying() {
        let (memory, payloads) = foreign_pool(4);
        let headers = Pool::new(&config(4, 128)).unwrap();
        let mut packet = headers.get().unwrap();
        assert!(packet.extend_from_slice(b"header: "));
        let mut payload = payloads.get().unwrap();
        assert!(payload.reset_rx(16, 20));
        let at = payload.data_address() - memory.as_ptr().addr();
        memory.copy_in(at, b"payload of 20 bytes!").unwrap();
        packet.chain(payload).unwrap();

        let foreign: Vec<bool> = packet.segments().map(|segment| segment.is_foreign()).collect();
        assert_eq!(foreign, [false, true]);
        assert_eq!((packet.data(), packet.is_foreign()), (&b"header: "[..], false));
        assert!(packet.append(1).is_none(), "the last segment is foreign");
        let mut all = [0; 28];
        assert!(packet.read(0, &mut all));
        assert_eq!(&all, b"header: payload of 20 bytes!");
        let mut some = [0; 9];
        assert!(packet.read(16, &mut some));
        assert_eq!(&some, b"of 20 byt");
        assert!(!packet.read(20, &mut some), "one byte is missing");
    }

    #[test]
    fn clones_of_foreign_data_are_foreign_until_they_are_freed() {
        let (_memory, payloads) = foreign_pool(1);
        let headers = Pool::new(&config(1, 128)).unwrap();
        let mut cache = headers.cache();
        let mut payload = payloads.get().unwrap();
        assert!(payload.reset_rx(0, 9));
        let clone = payload.clone_ref(&mut cache).unwrap();
        assert!(clone.is_foreign() && clone.is_of(&headers));
        assert_eq!(clone.data_address(), payload.data_address());
        drop((clone, payload));
        let mbuf = cache.get().unwrap();
        assert!(!mbuf.is_foreign() && mbuf.is_writable());
        assert!(payloads.get().unwrap().is_foreign());
    }

    #[test]
    #[should_panic(expected = "cannot be borrowed")]
    fn foreign_data_is_not_borrowed() {
        let (_memory, pool) = foreign_pool(1);
        let mbuf = pool.get().unwrap();
        let _ = mbuf.data();
    }
}
