//! Memory that the device may reach: [`DmaSpace`] maps a region, [`DmaMapping`] keeps it mapped.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};

use ferrocx_mempool::{Piece, Region};

use crate::BusError;

/// Rights of the device to a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DmaAccess {
    /// The device may read.
    Read,
    /// The device may write. (Some IOMMUs allow reads as well; the model does not.)
    Write,
    /// The device may read and write.
    ReadWrite,
}

impl DmaAccess {
    /// Whether the device may read.
    #[must_use]
    pub fn can_read(self) -> bool {
        !matches!(self, Self::Write)
    }

    /// Whether the device may write.
    #[must_use]
    pub fn can_write(self) -> bool {
        !matches!(self, Self::Read)
    }
}

/// Limits of an I/O address space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DmaLimits {
    /// Smallest unit of a mapping: lengths and IOVAs are multiples of it.
    pub page_size_bytes: usize,
    /// Mappings that may exist at once, where the system states a limit.
    pub max_mappings: Option<u32>,
    /// Ranges of usable I/O addresses, ascending.
    pub iova_ranges: Vec<RangeInclusive<u64>>,
}

/// The device's view of memory: nothing is reachable until it is mapped here.
///
/// Control path only. Behind VFIO this is an IOMMU domain; behind the model, a map in software.
pub trait DmaSpace: Send + Sync + fmt::Debug {
    /// Maps a region as one contiguous run of I/O addresses, with one call to the system.
    ///
    /// The I/O address is chosen by the space, is never the region's virtual address, and is
    /// aligned to the region's page size. Where several devices share a space, what one of them has
    /// mapped has the same address for all, and no further call is made.
    ///
    /// # Errors
    ///
    /// [`BusError::IovaExhausted`], or a transport's own reason (`memlock`, mapping count).
    fn map(&self, region: Arc<Region>, access: DmaAccess) -> Result<Arc<DmaMapping>, BusError>;

    /// Ends the device's access to everything that is mapped now, without the device's help: for
    /// one that does not answer. Mappings made before keep their memory until they are dropped;
    /// later ones are as ever.
    ///
    /// # Errors
    ///
    /// [`BusError::SpaceShared`] while other devices use the space; else what the system says. The
    /// device may then still reach any of it.
    fn unmap_all(&self) -> Result<(), BusError>;

    /// Limits of the space.
    fn limits(&self) -> DmaLimits;
}

/// Removes a mapping from the space that made it.
pub trait DmaUnmap: Send + Sync {
    /// Ends the device's access: when this returns `Ok`, the device can no longer reach the range.
    ///
    /// # Errors
    ///
    /// Whatever the transport says; the memory then stays allocated, because the device may own it.
    fn unmap(&self, iova: u64, len_bytes: usize) -> Result<(), BusError>;

    /// Lets the addresses of an unmapped range be used for other mappings. Nobody knows them any
    /// more.
    fn release(&self, iova: u64, len_bytes: usize);
}

/// A region that the device can reach, until [`DmaMapping::end`], or until the last handle is
/// dropped.
///
/// Dropping unmaps first and lets go of the region after. If unmapping fails, the device may still
/// reach the memory: it is leaked, with an error in the log, and never freed.
pub struct DmaMapping {
    region: Arc<Region>,
    iova: u64,
    access: DmaAccess,
    owner: Box<dyn DmaUnmap>,
    /// Held while it is unmapped, so that whoever asks second waits for the first.
    is_mapped: Mutex<bool>,
}

impl DmaMapping {
    /// Records that `region` is mapped at `iova`; `owner` will unmap it. For transports.
    ///
    /// # Panics
    ///
    /// When `iova` is not a multiple of 4096, or its range reaches past the address space: words
    /// would not be where both sides find them aligned.
    #[must_use]
    pub fn new(
        region: Arc<Region>,
        iova: u64,
        access: DmaAccess,
        owner: Box<dyn DmaUnmap>,
    ) -> Arc<Self> {
        assert!(iova.is_multiple_of(4096) && region.base().as_ptr().addr().is_multiple_of(4096));
        assert!(iova.checked_add(region.len_bytes() as u64).is_some());
        Arc::new(Self { region, iova, access, owner, is_mapped: Mutex::new(true) })
    }

    /// The first I/O address.
    #[must_use]
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Length in bytes, which is the region's.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.region.len_bytes()
    }

    /// Rights of the device.
    #[must_use]
    pub fn access(&self) -> DmaAccess {
        self.access
    }

    /// The memory itself.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The same bytes at this device's address; `None` unless all of them lie in the region.
    ///
    /// So a packet whose pool another device stamped becomes a list of this device's pages:
    ///
    /// ```
    /// use ferrocx_bus::DmaMapping;
    /// use ferrocx_mempool::{Mbuf, Pages, PagesError};
    ///
    /// /// The entries of an NVMe command's PRP list; fewer bytes than the packet has if parts of
    /// /// it lie outside the region.
    /// fn prps(mbuf: &Mbuf, nvme: &DmaMapping) -> Result<Vec<u64>, PagesError> {
    ///     Ok(Pages::new(mbuf.pieces().filter_map(|piece| nvme.piece(piece)), 4096)?.collect())
    /// }
    /// ```
    #[must_use]
    pub fn piece(&self, piece: Piece) -> Option<Piece> {
        let offset = piece.address.checked_sub(self.region.base().as_ptr().addr())?;
        let is_inside = piece.len_bytes <= self.len_bytes().checked_sub(offset)?;
        is_inside.then(|| piece.at(self.iova + offset as u64))
    }

    /// Ends the device's access now, whoever else holds the mapping. Its addresses lead nowhere
    /// until the last handle is dropped: no other mapping has them before. In an address space of
    /// several devices, access ends with the last of their mappings of the region.
    ///
    /// # Errors
    ///
    /// The transport's refusal; the device may still reach the memory then, so that no pool is made
    /// over it any more.
    pub fn end(&self) -> Result<(), BusError> {
        let mut is_mapped = self.is_mapped.lock().unwrap_or_else(PoisonError::into_inner);
        if *is_mapped {
            self.owner
                .unmap(self.iova, self.region.len_bytes())
                .inspect_err(|_| self.keep_pools_off())?;
            *is_mapped = false;
        }
        Ok(())
    }

    /// For the rest of the process; the region stays as long. Pools that lie there already know
    /// which of their buffers the device has.
    fn keep_pools_off(&self) {
        std::mem::forget(self.region.use_raw());
    }

    /// Keeps the memory mapped for the rest of the process.
    ///
    /// For when a destroy command failed and the device may still own the memory.
    pub fn leak(self: Arc<Self>) {
        tracing::error!(
            iova = format_args!("{:#x}", self.iova),
            len_bytes = self.len_bytes(),
            "DMA mapping leaked: the device may still own this memory"
        );
        self.keep_pools_off();
        std::mem::forget(self);
    }
}

impl Drop for DmaMapping {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(
                iova = format_args!("{:#x}", self.iova),
                len_bytes = self.region.len_bytes(),
                %error,
                "unmapping failed; the memory is leaked because the device may still reach it"
            );
            std::mem::forget(Arc::clone(&self.region));
            return;
        }
        self.owner.release(self.iova, self.region.len_bytes());
    }
}

impl fmt::Debug for DmaMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaMapping")
            .field("iova", &format_args!("{:#x}", self.iova))
            .field("len_bytes", &self.len_bytes())
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use ferrocx_mempool::{Mbuf, Pages, Pool, PoolConfig, RegionConfig};

    use super::*;

    struct Refuses;

    impl DmaUnmap for Refuses {
        fn unmap(&self, iova: u64, len_bytes: usize) -> Result<(), BusError> {
            Err(BusError::NotMapped { iova, len_bytes: len_bytes as u64 })
        }

        fn release(&self, _: u64, _: usize) {
            panic!("still mapped");
        }
    }

    struct Agrees;

    impl DmaUnmap for Agrees {
        fn unmap(&self, iova: u64, len_bytes: usize) -> Result<(), BusError> {
            assert_eq!((iova, len_bytes), (0x1000, 4096));
            Ok(())
        }

        fn release(&self, iova: u64, len_bytes: usize) {
            assert_eq!((iova, len_bytes), (0x1000, 4096));
        }
    }

    fn region() -> Arc<Region> {
        Region::alloc(&RegionConfig::heap(4096)).expect("heap memory")
    }

    #[test]
    #[cfg_attr(miri, ignore = "leaks memory, as it should")]
    fn memory_is_freed_after_unmapping_and_leaked_when_that_fails() {
        let kept = region();
        drop(DmaMapping::new(Arc::clone(&kept), 0x1000, DmaAccess::Read, Box::new(Agrees)));
        assert_eq!(Arc::strong_count(&kept), 1);
        let config = PoolConfig { count: 1, ..PoolConfig::default() };
        let needed = config.region_bytes();
        let pool = |region: &Arc<Region>| Pool::with_region(&config, region, 0).map(drop);
        for leak in [false, true] {
            let kept = Region::alloc(&RegionConfig::heap(needed)).expect("heap memory");
            let refuses = Box::new(Refuses);
            let mapping = DmaMapping::new(Arc::clone(&kept), 0x1000, DmaAccess::Read, refuses);
            pool(&kept).expect("nothing has happened to it yet");
            if leak {
                mapping.leak()
            } else {
                drop(mapping)
            }
            assert!(Arc::strong_count(&kept) > 1);
            pool(&kept).expect_err("the device may still reach it");
        }
    }

    #[test]
    fn access_ends_once_and_the_addresses_are_kept_until_the_end() {
        struct Counts(Arc<Mutex<Vec<&'static str>>>);
        impl DmaUnmap for Counts {
            fn unmap(&self, _: u64, _: usize) -> Result<(), BusError> {
                self.0.lock().unwrap().push("unmap");
                Ok(())
            }
            fn release(&self, _: u64, _: usize) {
                self.0.lock().unwrap().push("release");
            }
        }
        let calls = Arc::new(Mutex::new(Vec::new()));
        let owner = Box::new(Counts(Arc::clone(&calls)));
        let mapping = DmaMapping::new(region(), 0x1000, DmaAccess::Read, owner);
        mapping.end().unwrap();
        mapping.end().unwrap();
        assert_eq!(*calls.lock().unwrap(), ["unmap"]);
        drop(mapping);
        assert_eq!(*calls.lock().unwrap(), ["unmap", "release"]);
    }

    struct Quiet;

    impl DmaUnmap for Quiet {
        fn unmap(&self, _: u64, _: usize) -> Result<(), BusError> {
            Ok(())
        }

        fn release(&self, _: u64, _: usize) {}
    }

    #[test]
    fn packets_become_lists_of_another_devices_pages() {
        let region = Region::alloc(&RegionConfig::heap(4 * 4096)).unwrap();
        let config = PoolConfig {
            count: 4,
            data_room_bytes: 4096,
            headroom_bytes: 0,
            cache_size: 0,
            ..PoolConfig::default()
        };
        let pool = Pool::with_region(&config, &region, 0).unwrap();
        let nvme = DmaMapping::new(region, 0x5_0000_0000, DmaAccess::ReadWrite, Box::new(Quiet));
        let mut rooms: Vec<Mbuf> = (0..4).filter_map(|_| pool.get()).collect();
        rooms.sort_by_key(Mbuf::data_address);
        let [mut first, mut second, mut third, mut last] = <[_; 4]>::try_from(rooms).unwrap();
        // The last 16 bytes of the first page, all of the third, 8 bytes of the second.
        assert!(first.grow(4096) && first.adj(0xff0));
        assert!(third.grow(4096) && second.grow(8) && last.grow(1));
        first.chain(third).unwrap();
        first.chain(second).unwrap();
        let prps = |mbuf: &Mbuf| -> Vec<u64> {
            let pieces: Vec<Piece> = mbuf.pieces().filter_map(|piece| nvme.piece(piece)).collect();
            Pages::new(pieces, 4096).unwrap().collect()
        };
        assert_eq!(prps(&first), [0x5_0000_0ff0, 0x5_0000_2000, 0x5_0000_1000]);
        assert_eq!(prps(&last), [0x5_0000_3000]);
        // One byte further, and in front of the region.
        let piece = last.pieces().next().unwrap();
        assert!(nvme.piece(Piece { len_bytes: 4096, ..piece }).is_some());
        assert_eq!(nvme.piece(Piece { len_bytes: 4097, ..piece }), None);
        assert_eq!(nvme.piece(Piece { address: piece.address + 4096, ..piece }), None);
        assert_eq!(nvme.piece(Piece { address: piece.address - 0x3001, ..piece }), None);
    }

    #[test]
    #[should_panic(expected = "is_multiple_of(4096)")]
    fn an_address_inside_a_page_is_refused() {
        let _ = DmaMapping::new(region(), 0x1040, DmaAccess::Read, Box::new(Agrees));
    }
}
