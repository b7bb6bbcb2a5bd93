//! Memory by I/O address: the map that a software device looks addresses up in.
#![expect(unsafe_code, reason = "sharing the base pointers of mappings between threads")]

use std::cell::Cell;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard};

use ferrocx_mempool::{FileMapping, Region};

use super::bar::Backing as BarBacking;
use super::counts::{COUNTS, DmaCounts};
use crate::iova::place;
use crate::{
    BusError, DmaAccess, DmaLimits, DmaMapping, DmaSpace, DmaUnmap, IovaAllocator, to_usize,
};

/// Unit of mappings: addresses and lengths are multiples of it.
const PAGE_BYTES: u64 = 4096;

/// First and last I/O address that this transport hands out: above all 32-bit addresses and below
/// 48 bits, like an IOMMU with four levels of tables.
const IOVA_RANGE: std::ops::RangeInclusive<u64> = 1 << 32..=(1 << 48) - 1;

/// Unused addresses behind each mapping, so that an overrun faults.
const GUARD_BYTES: u64 = 2 << 20;

/// I/O address of the first byte of the BAR, as far as the device has memory there: where no
/// system maps anything, at the end of all addresses.
const OWN_IOVA: u64 = 0xffff_fffe_0000_0000;

/// Places of a [`super::DmaView`] for the entries that it found last, by address.
pub(super) const HINTS: usize = 16;

/// Owner of an entry's memory.
enum Backing {
    Region { _keep: Arc<Region> },
    File { _keep: FileMapping },
    Own { _keep: Arc<BarBacking> },
}

/// One mapping.
pub(super) struct Entry {
    pub(super) iova: u64,
    pub(super) len_bytes: u64,
    /// Length of what is mapped for it, which is more where a file's pages are larger.
    held_bytes: u64,
    /// The memory of `iova`, valid for `len_bytes` while the entry is in the map.
    pub(super) base: NonNull<u8>,
    /// Whether the device may read, and write.
    pub(super) allows: [bool; 2],
    access: DmaAccess,
    /// Whether accesses to it are counted apart.
    pub(super) is_watched: bool,
    _backing: Backing,
}

// SAFETY: `base` points into memory that `_backing` keeps, and is accessed through atomics only.
unsafe impl Send for Entry {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

impl Entry {
    fn new(
        iova: u64,
        (base, len_bytes): (NonNull<u8>, u64),
        access: DmaAccess,
        backing: Backing,
    ) -> Self {
        let held_bytes = match &backing {
            Backing::File { _keep } => _keep.mapped_bytes() as u64,
            Backing::Region { .. } | Backing::Own { .. } => len_bytes,
        };
        let (allows, is_watched, _backing) = (allowed(access), false, backing);
        Self { iova, len_bytes, held_bytes, base, allows, access, is_watched, _backing }
    }

    fn end(&self) -> u64 {
        self.iova + self.len_bytes
    }
}

fn allowed(access: DmaAccess) -> [bool; 2] {
    [access.can_read(), access.can_write()]
}

/// Mappings by ascending address, disjoint.
#[derive(Default)]
pub(super) struct IovaMap {
    pub(super) entries: Vec<Entry>,
    /// Length of what is mapped for all of them.
    mapped_bytes: u64,
    /// The device's own memory, which nobody maps or unmaps.
    own: Option<Entry>,
}

/// How much may be mapped at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quota {
    pub(super) mappings: u32,
    pub(super) bytes: u64,
}

impl IovaMap {
    /// Refuses what goes beyond the quota.
    fn check(&self, quota: Quota, len_bytes: u64) -> Result<(), BusError> {
        let refuse =
            |what, value, max, hint| Err(BusError::OutOfRange { what, value, min: 0, max, hint });
        let count = self.entries.len() as u64 + 1;
        if count > u64::from(quota.mappings) {
            let hint = "; use fewer and larger regions";
            return refuse("number of DMA mappings", count, u64::from(quota.mappings), hint);
        }
        let bytes = self.mapped_bytes.saturating_add(len_bytes);
        if bytes > quota.bytes {
            let hint = "; map less, or raise the limit of the device";
            return refuse("bytes of all DMA mappings", bytes, quota.bytes, hint);
        }
        Ok(())
    }

    fn insert(&mut self, entry: Entry) -> Result<(), BusError> {
        let at = self.entries.partition_point(|other| other.end() <= entry.iova);
        let own = self.own.as_ref().filter(|own| entry.iova < own.end());
        let mut behind = self.entries.get(at).into_iter().chain(own);
        if let Some(other) = behind.find(|other| other.iova < entry.end()) {
            return Err(BusError::MappingOverlap {
                iova: entry.iova,
                len_bytes: entry.len_bytes,
                other_iova: other.iova,
                other_len_bytes: other.len_bytes,
            });
        }
        self.mapped_bytes += entry.held_bytes;
        self.entries.insert(at, entry);
        Ok(())
    }

    fn remove(&mut self, iova: u64, len_bytes: u64) -> Result<Entry, BusError> {
        let at = self.entries.partition_point(|other| other.iova < iova);
        match self.entries.get(at) {
            Some(entry) if entry.iova == iova && entry.len_bytes == len_bytes => {
                self.mapped_bytes -= entry.held_bytes;
                Ok(self.entries.remove(at))
            }
            _ => Err(BusError::NotMapped { iova, len_bytes }),
        }
    }

    /// The entry that holds `iova`, tried at its hint first.
    ///
    /// A device goes to and fro between rings, records and buffers; what is mapped apart from each
    /// other mostly has hints of its own.
    #[inline]
    pub(super) fn find(&self, iova: u64, hints: &[Cell<u32>; HINTS]) -> Option<&Entry> {
        let hint = &hints[to_usize(iova / GUARD_BYTES) % HINTS];
        if let Some(entry) = self.entries.get(hint.get() as usize)
            && iova.wrapping_sub(entry.iova) < entry.len_bytes
        {
            return Some(entry);
        }
        self.search(iova, hint)
    }

    #[inline(never)]
    fn search(&self, iova: u64, hint: &Cell<u32>) -> Option<&Entry> {
        let at = self.entries.partition_point(|other| other.end() <= iova);
        let Some(entry) = self.entries.get(at).filter(|entry| entry.iova <= iova) else {
            let is_inside = |own: &&Entry| iova.wrapping_sub(own.iova) < own.len_bytes;
            return self.own.as_ref().filter(is_inside);
        };
        // One that does not fit is only never found here.
        hint.set(u32::try_from(at).unwrap_or(u32::MAX));
        Some(entry)
    }
}

/// The I/O address space of one device.
pub(super) struct SpaceShared {
    pub(super) map: RwLock<IovaMap>,
    iovas: Mutex<IovaAllocator>,
    quota: Quota,
    /// Number of times that everything was unmapped at once.
    sweeps: AtomicU64,
    /// In the order of the fields of [`DmaCounts`].
    pub(super) counts: [AtomicU64; COUNTS],
}

impl SpaceShared {
    pub(super) fn new(seed: u64, quota: Quota) -> Self {
        Self {
            map: RwLock::default(),
            iovas: Mutex::new(IovaAllocator::new(&[IOVA_RANGE], GUARD_BYTES, seed)),
            quota,
            sweeps: AtomicU64::new(0),
            counts: Default::default(),
        }
    }

    /// The map, to be changed once no view is held.
    #[track_caller]
    fn write(&self) -> RwLockWriteGuard<'_, IovaMap> {
        #[cfg(debug_assertions)]
        super::held::assert_none(self);
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counts(&self) -> DmaCounts {
        self.counts.each_ref().map(|count| count.load(Ordering::Relaxed)).into()
    }

    pub(super) fn map_region(
        &self,
        iova: u64,
        region: Arc<Region>,
        access: DmaAccess,
    ) -> Result<(), BusError> {
        let len_bytes = region.len_bytes() as u64;
        check_range(iova, len_bytes)?;
        let base = region.base();
        assert!(base.as_ptr().addr().is_multiple_of(64), "a region starts on a cache line");
        let backing = Backing::Region { _keep: region };
        self.insert(Entry::new(iova, (base, len_bytes), access, backing))
    }

    pub(super) fn map_fd(
        &self,
        iova: u64,
        fd: BorrowedFd<'_>,
        file_offset: u64,
        len_bytes: u64,
        access: DmaAccess,
    ) -> Result<(), BusError> {
        check_range(iova, len_bytes)?;
        // A word that is aligned by its I/O address is accessed as an aligned atomic, so memory and
        // addresses begin at the same place of a page.
        if !file_offset.is_multiple_of(PAGE_BYTES) {
            return Err(BusError::OutOfRange {
                what: "offset of a mapping in its file (a multiple of 4096)",
                value: file_offset,
                min: 0,
                max: u64::MAX - (PAGE_BYTES - 1),
                hint: "",
            });
        }
        // Before anything is mapped, and again in `insert`: others may be faster, and more is
        // mapped where the file's pages are larger.
        self.map.read().unwrap_or_else(PoisonError::into_inner).check(self.quota, len_bytes)?;
        let map = FileMapping::new(fd, file_offset, to_usize(len_bytes)).map_err(|error| {
            BusError::os(format!("mapping {len_bytes:#x} bytes for I/O at {iova:#x}"), error)
        })?;
        let base = map.base();
        let backing = Backing::File { _keep: map };
        self.insert(Entry::new(iova, (base, len_bytes), access, backing))
    }

    /// Makes memory in the BAR, from an offset on, reachable for the device. Gives the I/O address
    /// of its first byte, which `base` is.
    pub(super) fn map_own(
        &self,
        offset: u64,
        base: NonNull<u8>,
        len_bytes: u64,
        backing: Arc<BarBacking>,
    ) -> Result<u64, BusError> {
        let iova = OWN_IOVA + offset;
        let backing = Backing::Own { _keep: backing };
        let own = Entry::new(iova, (base, len_bytes), DmaAccess::ReadWrite, backing);
        let mut map = self.write();
        let overlapping =
            map.entries.iter().find(|other| other.end() > iova && other.iova < own.end());
        if let Some(other) = overlapping {
            let (other_iova, other_len_bytes) = (other.iova, other.len_bytes);
            return Err(BusError::MappingOverlap { iova, len_bytes, other_iova, other_len_bytes });
        }
        map.own = Some(own);
        Ok(iova)
    }

    fn insert(&self, entry: Entry) -> Result<(), BusError> {
        let mut map = self.write();
        map.check(self.quota, entry.held_bytes)?;
        map.insert(entry)
    }

    /// Counts accesses to the mapping that starts at `iova` apart.
    pub(super) fn watch(&self, iova: u64) -> Result<(), BusError> {
        let mut map = self.write();
        match map.entries.iter_mut().find(|entry| entry.iova == iova) {
            Some(entry) => entry.is_watched = true,
            None => return Err(BusError::NotMapped { iova, len_bytes: 0 }),
        }
        Ok(())
    }

    pub(super) fn mappings(&self) -> usize {
        self.map.read().unwrap_or_else(PoisonError::into_inner).entries.len()
    }

    /// Refuses accesses to the `nth` mapping, or to none any more.
    pub(super) fn refuse(&self, nth: Option<usize>) {
        let mut map = self.write();
        for entry in &mut map.entries {
            entry.allows = allowed(entry.access);
        }
        let count = map.entries.len();
        if let Some(entry) = nth.and_then(|nth| map.entries.get_mut(nth.checked_rem(count)?)) {
            entry.allows = [false; 2];
        }
    }

    pub(super) fn unmap(&self, iova: u64, len_bytes: u64) -> Result<(), BusError> {
        let mut map = self.write();
        let entry = map.remove(iova, len_bytes)?;
        drop(map);
        // The memory itself may take a while to unmap; nobody waits for that.
        drop(entry);
        Ok(())
    }
}

/// Checks the shape of a mapping.
fn check_range(iova: u64, len_bytes: u64) -> Result<(), BusError> {
    let refuse = |what, value| {
        let max = u64::MAX - (PAGE_BYTES - 1);
        Err(BusError::OutOfRange { what, value, min: PAGE_BYTES, max, hint: "" })
    };
    if !iova.is_multiple_of(PAGE_BYTES) || iova.checked_add(len_bytes).is_none() {
        return refuse("I/O address of a mapping (a multiple of 4096, end below 2^64)", iova);
    }
    if len_bytes == 0 || !len_bytes.is_multiple_of(PAGE_BYTES) {
        return refuse("length of a mapping in bytes (a multiple of 4096)", len_bytes);
    }
    Ok(())
}

impl fmt::Debug for SpaceShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpaceShared").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

/// The driver's handle to the space.
#[derive(Debug)]
pub(super) struct LocalDma(pub(super) Arc<SpaceShared>);

impl DmaSpace for LocalDma {
    fn map(&self, region: Arc<Region>, access: DmaAccess) -> Result<Arc<DmaMapping>, BusError> {
        let len_bytes = region.len_bytes() as u64;
        let place = place(&region, PAGE_BYTES);
        let va = region.base().as_ptr().addr() as u64;
        let mut iovas = self.0.iovas.lock().unwrap_or_else(PoisonError::into_inner);
        let iova = iovas.alloc(len_bytes, place, va)?;
        if let Err(error) = self.0.map_region(iova, Arc::clone(&region), access) {
            iovas.free(iova, len_bytes);
            return Err(error);
        }
        let sweep = self.0.sweeps.load(Ordering::Relaxed);
        drop(iovas);
        let owner = Box::new(LocalUnmap { space: Arc::clone(&self.0), sweep });
        Ok(DmaMapping::new(region, iova, access, owner))
    }

    fn unmap_all(&self) -> Result<(), BusError> {
        let iovas = self.0.iovas.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.sweeps.fetch_add(1, Ordering::Relaxed);
        let mut map = self.0.write();
        map.mapped_bytes = 0;
        let swept = std::mem::take(&mut map.entries);
        drop((map, iovas, swept));
        Ok(())
    }

    fn limits(&self) -> DmaLimits {
        DmaLimits {
            page_size_bytes: to_usize(PAGE_BYTES),
            max_mappings: Some(self.0.quota.mappings),
            iova_ranges: vec![IOVA_RANGE],
        }
    }
}

/// Removes a mapping that [`LocalDma::map`] made.
struct LocalUnmap {
    space: Arc<SpaceShared>,
    /// Of [`SpaceShared::sweeps`], when it was mapped.
    sweep: u64,
}

impl DmaUnmap for LocalUnmap {
    fn unmap(&self, iova: u64, len_bytes: usize) -> Result<(), BusError> {
        // With the lock, a sweep is before it or after it.
        let _iovas = self.space.iovas.lock().unwrap_or_else(PoisonError::into_inner);
        match self.space.sweeps.load(Ordering::Relaxed) == self.sweep {
            true => self.space.unmap(iova, len_bytes as u64),
            false => Ok(()),
        }
    }

    fn release(&self, iova: u64, len_bytes: usize) {
        let mut iovas = self.space.iovas.lock().unwrap_or_else(PoisonError::into_inner);
        iovas.free(iova, len_bytes as u64);
    }
}
