//! Memory by I/O address, as a software device reaches it.
#![expect(unsafe_code, reason = "copies from and to mapped regions through their base pointers")]

use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{self, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{PoisonError, RwLockReadGuard};

use super::counts::{
    COUNTS, DATA_READ, DATA_WRITTEN, FAULTS, READS, WATCHED_READ, WATCHED_WRITTEN, WRITES,
};
#[cfg(debug_assertions)]
use super::held;
use super::space::{HINTS, IovaMap, SpaceShared};
use crate::{bytes, to_usize};

/// Entries of a ring between the one that [`DmaView::write_release`] writes and the one whose line
/// it asks for: the driver has read what is there, on another core.
const ENTRIES_AHEAD: usize = 8;

/// Bytes of a line that is fetched ahead.
const LINE_BYTES: usize = 64;

/// Bytes that count as one access more in [`DmaView::work`].
const WORK_BYTES: u64 = 512;

/// Reason for which an access by I/O address was refused.
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
    /// Reason of the refusal.
    pub cause: DmaFaultCause,
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
    /// Indexes of the entries that the last accesses hit, each at the place of its address.
    hints: [Cell<u32>; HINTS],
    counts: [Cell<u64>; COUNTS],
    /// Bytes that accesses transferred before they faulted; they are in none of `counts`.
    cut_bytes: Cell<u64>,
    /// Whether the mapping hit last is watched.
    is_watched: Cell<bool>,
    space: &'a SpaceShared,
    #[cfg(debug_assertions)]
    _held: held::Held,
}

impl<'a> DmaView<'a> {
    #[track_caller]
    pub(super) fn new(space: &'a SpaceShared) -> Self {
        DmaView {
            #[cfg(debug_assertions)]
            _held: held::Held::new(space),
            map: space.map.read().unwrap_or_else(PoisonError::into_inner),
            hints: Default::default(),
            counts: Default::default(),
            cut_bytes: Cell::new(0),
            is_watched: Cell::new(false),
            space,
        }
    }

    /// Reads `dst.len()` bytes.
    #[inline]
    pub fn read(&self, iova: u64, dst: &mut [u8]) -> Result<(), DmaFault> {
        let len = dst.len();
        // Mostly all of it lies in one mapping.
        if let Ok((at, step)) = self.run(iova, 0, len, false)
            && step == len
        {
            // SAFETY: `run` vouches for `step` bytes at `at` while the view is held.
            unsafe { bytes::copy_out(at, dst) };
            self.count(len, false);
            return Ok(());
        }
        self.runs(iova, len, false, |at, done, step| {
            // SAFETY: `runs` vouches for `step` bytes at `at` while the view is held.
            unsafe { bytes::copy_out(at, &mut dst[done..done + step]) }
        })
    }

    /// Writes `src`.
    #[inline]
    pub fn write(&self, iova: u64, src: &[u8]) -> Result<(), DmaFault> {
        if let Ok((at, step)) = self.run(iova, 0, src.len(), true)
            && step == src.len()
        {
            // SAFETY: as in `read`.
            unsafe { bytes::copy_in(at, src) };
            self.count(src.len(), true);
            return Ok(());
        }
        self.runs(iova, src.len(), true, |at, done, step| {
            // SAFETY: `runs` vouches for `step` bytes at `at` while the view is held.
            unsafe { bytes::copy_in(at, &src[done..done + step]) }
        })
    }

    /// Says that the device will write there soon, where it may: the processor can fetch the line
    /// from another core meanwhile. Nothing is counted, and nothing refused.
    #[inline]
    pub fn expect_write(&self, iova: u64) {
        if let Some(entry) = self.map.find(iova, &self.hints) {
            let offset = to_usize(iova - entry.iova);
            fetch_for_writing(entry.base.as_ptr().wrapping_add(offset));
        }
    }

    /// Says that the device will read so many bytes there soon, where it may: the processor can
    /// fetch their lines from another core meanwhile. Nothing is counted, and nothing refused.
    #[inline]
    pub fn expect_read(&self, iova: u64, len_bytes: usize) {
        if let Some(entry) = self.map.find(iova, &self.hints) {
            let offset = to_usize(iova - entry.iova);
            let len = len_bytes.min(to_usize(entry.len_bytes) - offset);
            for line in (0..len).step_by(LINE_BYTES) {
                fetch_for_reading(entry.base.as_ptr().wrapping_add(offset + line));
            }
        }
    }

    /// Writes `src` so that its last four bytes become visible last: for a CQE or an EQE.
    ///
    /// The driver's acquire load of that last word then sees all of the entry.
    ///
    /// # Shape
    ///
    /// At least four bytes, and the last word is 4-byte aligned; anything else is misaligned.
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
                    bytes::copy_words_in(at, head);
                    let last_word = at.add(head.len()).cast().as_ptr();
                    AtomicU32::from_ptr(last_word).store(u32::from_ne_bytes(*last), Release);
                }
                fetch_for_writing(at.as_ptr().wrapping_add(ENTRIES_AHEAD * src.len()));
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
        if !entry.allows[usize::from(is_write)] {
            return Err(DmaFaultCause::Permission);
        }
        self.is_watched.set(entry.is_watched);
        let offset = at - entry.iova;
        let step = (len - done).min(to_usize(entry.len_bytes - offset));
        // SAFETY: `offset` is below the entry's length, and the entry keeps its memory.
        Ok((unsafe { entry.base.add(to_usize(offset)) }, step))
    }

    /// Calls `each(address, bytes done, bytes in this run)` for every contiguous run of a range.
    #[cold]
    #[inline(never)]
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
                Err(cause) => {
                    // What was transferred before took its time, too.
                    self.cut_bytes.update(|bytes| bytes + done as u64);
                    return Err(self.fault(iova, len, is_write, cause));
                }
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

    /// Counts bytes of an access that has been made as data: what a message or a packet carries, as
    /// opposed to descriptors, completions and contexts. The bus cannot tell, the device can.
    #[inline]
    pub fn note_data(&self, len: usize, is_write: bool) {
        let at = if is_write { DATA_WRITTEN } else { DATA_READ };
        self.counts[at].update(|count| count + len as u64);
    }

    /// Work that this view was used for so far: one for each access, made or refused, and one more
    /// for each `WORK_BYTES` of data, which take about as long.
    #[inline]
    #[must_use]
    pub fn work(&self) -> u64 {
        let count = |at: usize| self.counts[at].get();
        let bytes = count(READS + 1) + count(WRITES + 1) + self.cut_bytes.get();
        count(READS) + count(WRITES) + count(FAULTS) + bytes / WORK_BYTES
    }

    #[inline]
    fn count(&self, len: usize, is_write: bool) {
        let at = if is_write { WRITES } else { READS };
        self.counts[at].update(|count| count + u64::from(len != 0));
        self.counts[at + 1].update(|count| count + len as u64);
        if self.is_watched.get() {
            let at = if is_write { WATCHED_WRITTEN } else { WATCHED_READ };
            self.counts[at].update(|count| count + len as u64);
        }
    }

    #[cold]
    fn fault(&self, iova: u64, len: usize, is_write: bool, cause: DmaFaultCause) -> DmaFault {
        self.counts[FAULTS].update(|count| count + 1);
        DmaFault { iova, len_bytes: len as u64, is_write, cause }
    }
}

/// Says that the line of memory there will be written soon: the processor may fetch it from another
/// core while something else is done.
#[inline]
fn fetch_for_writing(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: a prefetch has no effect on memory and takes any address.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(at.cast()) }
    }
    #[cfg(any(miri, not(target_arch = "x86_64")))]
    let _ = at;
}

/// Says that the line of memory there will be read soon, as [`fetch_for_writing`] does.
#[inline]
fn fetch_for_reading(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: as in `fetch_for_writing`.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[cfg(any(miri, not(target_arch = "x86_64")))]
    let _ = at;
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
