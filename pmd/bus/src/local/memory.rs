//! Memory by I/O address: the map that a software device looks addresses up in.
#![expect(unsafe_code, reason = "copies from and to mapped regions through their base pointers")]

use std::cell::Cell;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{self, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use ferrocx_mempool::Region;

use crate::{
    BusError, DmaAccess, DmaLimits, DmaMapping, DmaSpace, DmaUnmap, IovaAllocator, bytes, to_usize,
};

/// Unit of mappings: addresses and lengths are multiples of it.
const PAGE_BYTES: u64 = 4096;

/// First and last I/O address that this transport hands out: above all 32-bit addresses and below
/// 48 bits, like an IOMMU with four levels of tables.
const IOVA_RANGE: std::ops::RangeInclusive<u64> = 1 << 32..=(1 << 48) - 1;

/// Unused addresses behind each mapping, so that an overrun faults.
const GUARD_BYTES: u64 = 2 << 20;

/// Why an access by I/O address was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DmaFaultCause {
    /// No mapping covers the whole range.
    Unmapped,
    /// The mapping does not allow this direction.
    Permission,
    /// A word access whose address is not a multiple of its width.
    Misaligned,
}

/// An access by I/O address that the IOMMU refused; nothing, or a leading part, was transferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "DMA fault: {} of {len_bytes} bytes at {iova:#x}: {cause:?}",
    if *is_write { "write" } else { "read" }
)]
pub struct DmaFault {
    /// First address of the access.
    pub iova: u64,
    /// Length of the access in bytes.
    pub len_bytes: u64,
    /// Whether the device wanted to write.
    pub is_write: bool,
    /// Why it was refused.
    pub cause: DmaFaultCause,
}

/// Accesses by I/O address, refused ones included in `faults` only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DmaCounts {
    /// Reads made.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes made.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Accesses refused.
    pub faults: u64,
}

/// What keeps the memory of an entry.
enum Backing {
    Region { _keep: Arc<Region> },
    File { _keep: memmap2::MmapRaw },
}

/// One mapping.
struct Entry {
    iova: u64,
    len_bytes: u64,
    base: NonNull<u8>,
    access: DmaAccess,
    _backing: Backing,
}

// SAFETY: `base` points into memory that `_backing` keeps, and is accessed through atomics only.
unsafe impl Send for Entry {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

impl Entry {
    fn end(&self) -> u64 {
        self.iova + self.len_bytes
    }
}

/// Mappings by ascending address, disjoint.
#[derive(Default)]
struct IovaMap {
    entries: Vec<Entry>,
}

impl IovaMap {
    fn insert(&mut self, entry: Entry) -> Result<(), BusError> {
        let at = self.entries.partition_point(|other| other.end() <= entry.iova);
        if let Some(other) = self.entries.get(at).filter(|other| other.iova < entry.end()) {
            return Err(BusError::MappingOverlap {
                iova: entry.iova,
                len_bytes: entry.len_bytes,
                other_iova: other.iova,
                other_len_bytes: other.len_bytes,
            });
        }
        self.entries.insert(at, entry);
        Ok(())
    }

    fn remove(&mut self, iova: u64, len_bytes: u64) -> Result<Entry, BusError> {
        let at = self.entries.partition_point(|other| other.iova < iova);
        match self.entries.get(at) {
            Some(entry) if entry.iova == iova && entry.len_bytes == len_bytes => {
                Ok(self.entries.remove(at))
            }
            _ => Err(BusError::NotMapped { iova, len_bytes }),
        }
    }

    /// The entry that holds `iova`, tried at the hints first.
    ///
    /// There are two, since a device goes to and fro between descriptors and packets.
    #[inline]
    fn find(&self, iova: u64, hints: &[Cell<usize>; 2]) -> Option<&Entry> {
        for hint in hints {
            if let Some(entry) = self.entries.get(hint.get())
                && iova.wrapping_sub(entry.iova) < entry.len_bytes
            {
                return Some(entry);
            }
        }
        let at = self.entries.partition_point(|other| other.end() <= iova);
        let entry = self.entries.get(at).filter(|entry| entry.iova <= iova)?;
        hints[1].set(hints[0].get());
        hints[0].set(at);
        Some(entry)
    }
}

/// The I/O address space of one device.
pub(super) struct SpaceShared {
    map: RwLock<IovaMap>,
    iovas: Mutex<IovaAllocator>,
    max_mappings: u32,
    counts: [AtomicU64; 5],
}

impl SpaceShared {
    pub(super) fn new(seed: u64, max_mappings: u32) -> Self {
        Self {
            map: RwLock::default(),
            iovas: Mutex::new(IovaAllocator::new(&[IOVA_RANGE], GUARD_BYTES, seed)),
            max_mappings,
            counts: Default::default(),
        }
    }

    #[track_caller]
    pub(super) fn view(&self) -> DmaView<'_> {
        DmaView {
            #[cfg(debug_assertions)]
            _held: held::Held::new(self),
            map: self.map.read().unwrap_or_else(PoisonError::into_inner),
            hints: Default::default(),
            counts: Default::default(),
            space: self,
        }
    }

    /// The map, to be changed once no view is held.
    #[track_caller]
    fn write(&self) -> RwLockWriteGuard<'_, IovaMap> {
        #[cfg(debug_assertions)]
        held::assert_none(self);
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counts(&self) -> DmaCounts {
        let [reads, read_bytes, writes, written_bytes, faults] =
            self.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        DmaCounts { reads, read_bytes, writes, written_bytes, faults }
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
        self.insert(Entry { iova, len_bytes, base, access, _backing: backing })
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
        let map = memmap2::MmapOptions::new()
            .offset(file_offset)
            .len(to_usize(len_bytes))
            .map_raw(&fd)
            .map_err(|error| {
                BusError::os(format!("mapping {len_bytes:#x} bytes for I/O at {iova:#x}"), error)
            })?;
        let base = NonNull::new(map.as_mut_ptr()).expect("a mapping is never at address 0");
        let backing = Backing::File { _keep: map };
        self.insert(Entry { iova, len_bytes, base, access, _backing: backing })
    }

    fn insert(&self, entry: Entry) -> Result<(), BusError> {
        let mut map = self.write();
        if map.entries.len() >= self.max_mappings as usize {
            return Err(BusError::OutOfRange {
                what: "number of DMA mappings",
                value: map.entries.len() as u64 + 1,
                min: 0,
                max: u64::from(self.max_mappings),
                hint: "; use fewer and larger regions",
            });
        }
        map.insert(entry)
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
        let align = (region.page_size_bytes() as u64).max(PAGE_BYTES);
        let va = region.base().as_ptr().addr() as u64;
        let mut iovas = self.0.iovas.lock().unwrap_or_else(PoisonError::into_inner);
        let iova = iovas.alloc(len_bytes, align, va)?;
        if let Err(error) = self.0.map_region(iova, Arc::clone(&region), access) {
            iovas.free(iova, len_bytes);
            return Err(error);
        }
        drop(iovas);
        Ok(DmaMapping::new(region, iova, access, Box::new(LocalUnmap(Arc::clone(&self.0)))))
    }

    fn limits(&self) -> DmaLimits {
        DmaLimits {
            page_size_bytes: to_usize(PAGE_BYTES),
            max_mappings: Some(self.0.max_mappings),
            iova_ranges: vec![IOVA_RANGE],
        }
    }
}

/// Removes a mapping that [`LocalDma::map`] made.
struct LocalUnmap(Arc<SpaceShared>);

impl DmaUnmap for LocalUnmap {
    fn unmap(&self, iova: u64, len_bytes: usize) -> Result<(), BusError> {
        self.0.unmap(iova, len_bytes as u64)?;
        self.0.iovas.lock().unwrap_or_else(PoisonError::into_inner).free(iova, len_bytes as u64);
        Ok(())
    }
}

/// Memory as the device reaches it, for one bounded step. See [`super::DeviceSide::memory`].
///
/// Bulk copies are not ordered against the driver's accesses; the `acquire` and `release` words
/// are. They must be the words, and the widths, on which the driver polls.
///
/// # Errors
///
/// Every access gives a [`DmaFault`] when a byte of it is not mapped or not allowed. A bulk copy
/// that faults half-way has transferred the bytes before the fault, as on a real bus.
pub struct DmaView<'a> {
    map: RwLockReadGuard<'a, IovaMap>,
    /// Indexes of the entries that the last accesses hit.
    hints: [Cell<usize>; 2],
    counts: [Cell<u64>; 5],
    space: &'a SpaceShared,
    #[cfg(debug_assertions)]
    _held: held::Held,
}

/// Places in the array of counts.
const READS: usize = 0;
const WRITES: usize = 2;
const FAULTS: usize = 4;

impl DmaView<'_> {
    /// Reads `dst.len()` bytes.
    #[inline]
    pub fn read(&self, iova: u64, dst: &mut [u8]) -> Result<(), DmaFault> {
        let len = dst.len();
        self.runs(iova, len, false, |at, done, step| {
            // SAFETY: `runs` vouches for `step` bytes at `at` while the view is held.
            unsafe { bytes::copy_out(at, &mut dst[done..done + step]) }
        })
    }

    /// Writes `src`.
    #[inline]
    pub fn write(&self, iova: u64, src: &[u8]) -> Result<(), DmaFault> {
        self.runs(iova, src.len(), true, |at, done, step| {
            // SAFETY: `runs` vouches for `step` bytes at `at` while the view is held.
            unsafe { bytes::copy_in(at, &src[done..done + step]) }
        })
    }

    /// Writes `src` so that its last four bytes become visible last: for a CQE or an EQE.
    ///
    /// The driver's acquire load of that last word then sees all of the entry.
    ///
    /// # Shape
    ///
    /// At least four bytes; the last word is 4-byte aligned, or the access is refused as misaligned.
    #[inline]
    pub fn write_release(&self, iova: u64, src: &[u8]) -> Result<(), DmaFault> {
        let Some((head, last)) = src.split_last_chunk::<4>() else {
            return Err(self.fault(iova, src.len(), true, DmaFaultCause::Misaligned));
        };
        let word = iova.wrapping_add(head.len() as u64);
        if !word.is_multiple_of(4) {
            return Err(self.fault(iova, src.len(), true, DmaFaultCause::Misaligned));
        }
        match self.run(iova, 0, src.len(), true) {
            Ok((at, step)) if step == src.len() => {
                // SAFETY: `run` vouches for all of `src.len()` bytes at `at` while the view is
                // held; the last word is aligned, since mappings and their memory start on pages.
                unsafe {
                    bytes::copy_in(at, head);
                    let last_word = at.add(head.len()).cast().as_ptr();
                    AtomicU32::from_ptr(last_word).store(u32::from_ne_bytes(*last), Release);
                }
                self.count(src.len(), true);
                Ok(())
            }
            Ok(_) => self.write_release_across(iova, head, word, *last),
            Err(cause) => Err(self.fault(iova, src.len(), true, cause)),
        }
    }

    /// [`DmaView::write_release`] for an entry that spans mappings.
    #[cold]
    fn write_release_across(
        &self,
        iova: u64,
        head: &[u8],
        word: u64,
        last: [u8; 4],
    ) -> Result<(), DmaFault> {
        self.write(iova, head)?;
        self.word32(word, true)?.store(u32::from_ne_bytes(last), Release);
        // One write of the device, though made in two parts.
        self.counts[WRITES].update(|count| count - u64::from(!head.is_empty()));
        Ok(())
    }

    /// Reads a big-endian dword.
    #[inline]
    pub fn read_be32(&self, iova: u64) -> Result<u32, DmaFault> {
        Ok(u32::from_be(self.word32(iova, false)?.load(Ordering::Relaxed)))
    }

    /// Reads a big-endian dword before any later access: doorbell records, ownership words.
    #[inline]
    pub fn load_acquire_be32(&self, iova: u64) -> Result<u32, DmaFault> {
        Ok(u32::from_be(self.word32(iova, false)?.load(Ordering::Acquire)))
    }

    /// Reads a big-endian 64-bit word.
    #[inline]
    pub fn read_be64(&self, iova: u64) -> Result<u64, DmaFault> {
        Ok(u64::from_be(self.word64(iova, false)?.load(Ordering::Relaxed)))
    }

    /// Writes a big-endian dword.
    #[inline]
    pub fn write_be32(&self, iova: u64, value: u32) -> Result<(), DmaFault> {
        self.word32(iova, true)?.store(value.to_be(), Ordering::Relaxed);
        Ok(())
    }

    /// Writes a big-endian dword after all earlier writes: hands an entry to the driver.
    #[inline]
    pub fn store_release_be32(&self, iova: u64, value: u32) -> Result<(), DmaFault> {
        self.word32(iova, true)?.store(value.to_be(), Release);
        Ok(())
    }

    /// Writes a big-endian 64-bit word.
    #[inline]
    pub fn write_be64(&self, iova: u64, value: u64) -> Result<(), DmaFault> {
        self.word64(iova, true)?.store(value.to_be(), Ordering::Relaxed);
        Ok(())
    }

    /// Applies `update` to a big-endian 64-bit word as one atomic step; returns the old value.
    ///
    /// For the RDMA atomics: compare-and-swap, fetch-and-add.
    pub fn fetch_update_be64(
        &self,
        iova: u64,
        mut update: impl FnMut(u64) -> u64,
    ) -> Result<u64, DmaFault> {
        self.word64(iova, false)?;
        let word = self.word64(iova, true)?;
        let mut old = word.load(Ordering::Acquire);
        loop {
            let new = update(u64::from_be(old)).to_be();
            match word.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(u64::from_be(old)),
                Err(seen) => old = seen,
            }
        }
    }

    /// Whether the whole range is mapped and allows the direction.
    #[must_use]
    pub fn is_mapped(&self, iova: u64, len_bytes: usize, is_write: bool) -> bool {
        self.check(iova, len_bytes, is_write).is_ok()
    }

    fn check(&self, iova: u64, len_bytes: usize, is_write: bool) -> Result<(), DmaFaultCause> {
        let mut done = 0;
        while done < len_bytes {
            done += self.run(iova, done, len_bytes, is_write)?.1;
        }
        Ok(())
    }

    /// The memory of `iova + done`, and how many of the remaining bytes lie in the same mapping.
    #[inline]
    fn run(
        &self,
        iova: u64,
        done: usize,
        len: usize,
        is_write: bool,
    ) -> Result<(NonNull<u8>, usize), DmaFaultCause> {
        let at = iova.checked_add(done as u64).ok_or(DmaFaultCause::Unmapped)?;
        let entry = self.map.find(at, &self.hints).ok_or(DmaFaultCause::Unmapped)?;
        let allowed = if is_write { entry.access.can_write() } else { entry.access.can_read() };
        if !allowed {
            return Err(DmaFaultCause::Permission);
        }
        let offset = at - entry.iova;
        let step = (len - done).min(to_usize(entry.len_bytes - offset));
        // SAFETY: `offset` is below the entry's length, and the entry keeps its memory.
        Ok((unsafe { entry.base.add(to_usize(offset)) }, step))
    }

    /// Calls `each(address, bytes done, bytes in this run)` for every contiguous run of a range.
    #[inline]
    fn runs(
        &self,
        iova: u64,
        len: usize,
        is_write: bool,
        mut each: impl FnMut(NonNull<u8>, usize, usize),
    ) -> Result<(), DmaFault> {
        let mut done = 0;
        while done < len {
            match self.run(iova, done, len, is_write) {
                Ok((at, step)) => {
                    each(at, done, step);
                    done += step;
                }
                Err(cause) => return Err(self.fault(iova, len, is_write, cause)),
            }
        }
        self.count(len, is_write);
        Ok(())
    }

    #[inline]
    fn word32(&self, iova: u64, is_write: bool) -> Result<&AtomicU32, DmaFault> {
        let at = self.word(iova, 4, is_write)?;
        // SAFETY: four mapped bytes (`word`), aligned because mappings and their memory start on
        // cache lines; valid while the view is held.
        Ok(unsafe { AtomicU32::from_ptr(at.cast().as_ptr()) })
    }

    #[inline]
    fn word64(&self, iova: u64, is_write: bool) -> Result<&AtomicU64, DmaFault> {
        let at = self.word(iova, 8, is_write)?;
        // SAFETY: as in `word32`, with eight bytes.
        Ok(unsafe { AtomicU64::from_ptr(at.cast().as_ptr()) })
    }

    /// The memory of an aligned word; one that is aligned never spans two mappings.
    #[inline]
    fn word(&self, iova: u64, width: usize, is_write: bool) -> Result<NonNull<u8>, DmaFault> {
        if !iova.is_multiple_of(width as u64) {
            return Err(self.fault(iova, width, is_write, DmaFaultCause::Misaligned));
        }
        match self.run(iova, 0, width, is_write) {
            Ok((at, _)) => {
                self.count(width, is_write);
                Ok(at)
            }
            Err(cause) => Err(self.fault(iova, width, is_write, cause)),
        }
    }

    #[inline]
    fn count(&self, len: usize, is_write: bool) {
        let at = if is_write { WRITES } else { READS };
        self.counts[at].update(|count| count + u64::from(len != 0));
        self.counts[at + 1].update(|count| count + len as u64);
    }

    #[cold]
    fn fault(&self, iova: u64, len: usize, is_write: bool, cause: DmaFaultCause) -> DmaFault {
        self.counts[FAULTS].update(|count| count + 1);
        DmaFault { iova, len_bytes: len as u64, is_write, cause }
    }
}

impl Drop for DmaView<'_> {
    fn drop(&mut self) {
        for (total, count) in self.space.counts.iter().zip(&self.counts) {
            if count.get() != 0 {
                total.fetch_add(count.get(), Ordering::Relaxed);
            }
        }
    }
}

impl fmt::Debug for DmaView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaView").field("mappings", &self.map.entries.len()).finish()
    }
}

/// Which spaces this thread holds views of, in debug builds: a second view, or a change of the map,
/// would wait for this very thread, and the second view only when another thread happens to unmap.
#[cfg(debug_assertions)]
mod held {
    use std::cell::RefCell;

    use super::SpaceShared;

    thread_local! {
        static SPACES: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    }

    /// A view of a space; it cannot leave its thread, since it holds a lock's guard.
    pub(super) struct Held(usize);

    #[track_caller]
    pub(super) fn assert_none(space: &SpaceShared) {
        let held = SPACES.with_borrow(|spaces| spaces.contains(&address(space)));
        assert!(!held, "deadlock: this thread holds a view of the same device's memory");
    }

    fn address(space: &SpaceShared) -> usize {
        std::ptr::from_ref(space).addr()
    }

    impl Held {
        #[track_caller]
        pub(super) fn new(space: &SpaceShared) -> Self {
            assert_none(space);
            SPACES.with_borrow_mut(|spaces| spaces.push(address(space)));
            Self(address(space))
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            SPACES.with_borrow_mut(|spaces| spaces.retain(|space| *space != self.0));
        }
    }
}
