//! The BAR of an in-process device: published registers, a queue of writes, UAR pages, and memory.
#![expect(unsafe_code, reason = "registers and doorbells are words in shared mapped memory")]

use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::{
    Bar, BarMemory, BlueFlame, BusError, Doorbell, DoorbellKind, UAR_PAGE_BYTES, bytes, to_usize,
};

/// One register write of the driver, in the order in which they were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BarWrite {
    /// Offset in the BAR.
    pub offset: u64,
    /// Width of the access in bytes: 1, 2, 4 or 8.
    pub len_bytes: u8,
    /// The register's bytes as a big-endian number: for 8 bytes, `value >> 32` is the word at
    /// `offset`.
    pub value: u64,
}

/// The memory of all that is in the BAR.
#[derive(Debug)]
pub(super) struct Backing {
    base: NonNull<u8>,
    len_bytes: usize,
    #[cfg(not(miri))]
    map: memmap2::MmapRaw,
}

// SAFETY: the memory is valid for the life of this value and accessed through atomics only.
unsafe impl Send for Backing {}
// SAFETY: as above.
unsafe impl Sync for Backing {}

impl Backing {
    #[cfg(not(miri))]
    fn new(len_bytes: usize) -> Result<Self, BusError> {
        let map = memmap2::MmapOptions::new()
            .len(len_bytes)
            .no_reserve_swap()
            .map_anon()
            .map(memmap2::MmapRaw::from)
            .map_err(|error| BusError::os(format!("mapping a BAR of {len_bytes} bytes"), error))?;
        let base = NonNull::new(map.as_mut_ptr()).expect("a mapping is never at address 0");
        Ok(Self { base, len_bytes, map })
    }

    /// Zeroes pages: by giving them back, so that an unused page stays without memory, or else one
    /// by one.
    fn clear(&self, pages: Range<u64>) {
        let (start, len) = (to_usize(pages.start), to_usize(pages.end - pages.start));
        if !self.give_back(start, len) {
            // SAFETY: pages of the mapping.
            unsafe { bytes::fill(self.base.add(start), len, 0) };
        }
    }

    /// Gives pages back, if they are whole pages of the system's as well, and not locked into
    /// memory (mlockall(2)): whether they are.
    #[cfg(not(miri))]
    fn give_back(&self, start: usize, len: usize) -> bool {
        let advice = memmap2::UncheckedAdvice::DontNeed;
        (start | len).is_multiple_of(system_page_bytes())
            // SAFETY: the mapping is private and anonymous: its pages read as zero afterwards and
            // stay valid; no reference into it exists, only atomic accesses through pointers.
            && unsafe { self.map.unchecked_advise_range(advice, start, len) }.is_ok()
    }

    #[cfg(miri)]
    fn give_back(&self, _: usize, _: usize) -> bool {
        false
    }

    /// Miri follows heap memory; page alignment is what the real mapping has.
    #[cfg(miri)]
    fn new(len_bytes: usize) -> Result<Self, BusError> {
        let layout = std::alloc::Layout::from_size_align(len_bytes, 4096).expect("small BAR");
        // SAFETY: the layout is not empty: `pair` refuses small BARs.
        let base = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).expect("memory");
        Ok(Self { base, len_bytes })
    }
}

/// Bytes of a page of the system's. Asked of the C library, which knows: a server that has given up
/// files and system calls comes here, too.
#[cfg(not(miri))]
fn system_page_bytes() -> usize {
    // SAFETY: the call takes any number.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(miri)]
impl Drop for Backing {
    fn drop(&mut self) {
        let layout = std::alloc::Layout::from_size_align(self.len_bytes, 4096).expect("as in new");
        // SAFETY: allocated in `new` with the same layout.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), layout) };
    }
}

/// The part of a BAR that is memory of the device, not registers.
#[derive(Debug)]
struct MemoryPart {
    /// Whole pages.
    range: Range<u64>,
    /// A bit for each page: whether it is in use. Others read as ones and lose writes.
    open: Vec<AtomicU64>,
}

impl MemoryPart {
    /// The word and the bit of a page that lies in it.
    fn bit(&self, offset: u64) -> Option<(&AtomicU64, u64)> {
        let page = offset.checked_sub(self.range.start)? / UAR_PAGE_BYTES;
        Some((self.open.get(to_usize(page / 64))?, 1 << (page % 64)))
    }

    fn is_open(&self, offset: u64) -> bool {
        self.bit(offset).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
    }

    fn pages(pages: &Range<u64>) -> impl Iterator<Item = u64> {
        pages.clone().step_by(to_usize(UAR_PAGE_BYTES))
    }
}

/// The registers, shared by the driver's half and the device's half.
#[derive(Debug)]
pub(super) struct BarShared {
    backing: Arc<Backing>,
    writes: Mutex<VecDeque<BarWrite>>,
    /// Length of `writes`, so that a device with nothing to do takes no lock.
    pending: AtomicUsize,
    /// While set, reads give ones and writes are lost: the device fell off the bus.
    gone: AtomicBool,
    read_count: AtomicU64,
    write_count: AtomicU64,
    /// How requests reach a BlueFlame register.
    blueflame: DoorbellKind,
    /// The part that is memory, if the device has such.
    memory: OnceLock<MemoryPart>,
}

impl BarShared {
    pub(super) fn new(len_bytes: u64, blueflame: DoorbellKind) -> Result<Self, BusError> {
        Ok(Self {
            blueflame,
            memory: OnceLock::new(),
            backing: Arc::new(Backing::new(to_usize(len_bytes))?),
            writes: Mutex::new(VecDeque::new()),
            pending: AtomicUsize::new(0),
            gone: AtomicBool::new(false),
            read_count: AtomicU64::new(0),
            write_count: AtomicU64::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<BarWrite>> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of a checked register.
    #[inline]
    #[track_caller]
    fn at(&self, offset: u64, len_bytes: usize) -> NonNull<u8> {
        let bar_len_bytes = self.backing.len_bytes;
        let offset = to_usize(offset);
        assert!(
            offset <= bar_len_bytes
                && len_bytes <= bar_len_bytes - offset
                && offset.is_multiple_of(len_bytes),
            "register access of {len_bytes} bytes at {offset:#x}: outside the BAR of \
             {bar_len_bytes:#x} bytes or not aligned"
        );
        // SAFETY: inside the backing, checked above.
        unsafe { self.backing.base.add(offset) }
    }

    #[inline]
    #[track_caller]
    fn word32(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: in range and aligned (`at`; the backing is page-aligned); alive with `self`.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast().as_ptr()) }
    }

    #[inline]
    #[track_caller]
    pub(super) fn word64(&self, offset: u64) -> &AtomicU64 {
        // SAFETY: as in `word32`.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast().as_ptr()) }
    }

    /// Publishes a register: the device's side of [`Bar::read_be32`].
    pub(super) fn set_be32(&self, offset: u64, value: u32) {
        self.word32(offset).store(value.to_be(), Ordering::Release);
    }

    /// Reads back a published register.
    pub(super) fn get_be32(&self, offset: u64) -> u32 {
        u32::from_be(self.word32(offset).load(Ordering::Acquire))
    }

    pub(super) fn set_gone(&self, gone: bool) {
        self.gone.store(gone, Ordering::Release);
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Appends one write to the queue.
    pub(super) fn push(&self, write: BarWrite) {
        if self.gone.load(Ordering::Acquire) {
            return;
        }
        self.write_count.fetch_add(1, Ordering::Relaxed);
        let mut writes = self.lock();
        writes.push_back(write);
        self.pending.store(writes.len(), Ordering::Release);
    }

    /// Takes the oldest write.
    #[inline]
    pub(super) fn pop(&self) -> Option<BarWrite> {
        if self.pending.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut writes = self.lock();
        let write = writes.pop_front();
        self.pending.store(writes.len(), Ordering::Release);
        write
    }

    /// Writes not yet taken.
    pub(super) fn waiting_writes(&self) -> usize {
        self.pending.load(Ordering::Acquire)
    }

    /// Forgets all writes not yet taken: they went into a device that is being reset.
    pub(super) fn discard_writes(&self) {
        let mut writes = self.lock();
        writes.clear();
        self.pending.store(0, Ordering::Release);
    }

    /// Clears every register, and closes the memory.
    pub(super) fn clear(&self) {
        if let Some(part) = self.memory.get() {
            part.open.iter().for_each(|word| word.store(0, Ordering::Release));
        }
        self.backing.clear(0..self.len_bytes());
    }

    /// Makes pages of the BAR memory, none of them open, once and for all. Gives their first byte.
    pub(super) fn set_memory(&self, range: Range<u64>) -> Result<NonNull<u8>, BusError> {
        let len_bytes = range.end.saturating_sub(range.start);
        let refused = BusError::NotBarMemory { offset: range.start, len_bytes };
        self.check_memory(range.start, len_bytes)?;
        if !(range.start | range.end).is_multiple_of(UAR_PAGE_BYTES) {
            return Err(refused);
        }
        let words = (len_bytes / UAR_PAGE_BYTES).div_ceil(64);
        let open = (0..words).map(|_| AtomicU64::new(0)).collect();
        let start = self.at(range.start, to_usize(UAR_PAGE_BYTES));
        let part = self.memory.get_or_init(|| MemoryPart { range: range.clone(), open });
        if part.range == range { Ok(start) } else { Err(refused) }
    }

    /// Opens pages of the memory, zeroed, or closes them.
    #[track_caller]
    pub(super) fn open_memory(&self, pages: Range<u64>, is_open: bool) {
        let part = self.memory.get().filter(|part| {
            part.range.start <= pages.start
                && pages.start <= pages.end
                && pages.end <= part.range.end
                && (pages.start | pages.end).is_multiple_of(UAR_PAGE_BYTES)
        });
        let part = part.unwrap_or_else(|| panic!("{pages:#x?} are no pages of the memory"));
        let change = |offset: u64| {
            let Some((word, bit)) = part.bit(offset) else { return };
            if is_open {
                word.fetch_or(bit, Ordering::AcqRel);
            } else {
                word.fetch_and(!bit, Ordering::AcqRel);
            }
        };
        MemoryPart::pages(&pages).for_each(change);
        // A closed page keeps no memory; one that a late writer filled once more starts anew.
        self.backing.clear(pages);
    }

    /// Writes as a trapped access does, if it is to the memory; `false` if it is to a register.
    pub(super) fn write_memory(&self, offset: u64, src: &[u8]) -> bool {
        let Some(part) = self.memory.get().filter(|part| part.range.contains(&offset)) else {
            return false;
        };
        if part.is_open(offset) && !self.gone.load(Ordering::Acquire) {
            // SAFETY: an aligned access inside the BAR, as the caller has checked, so one that lies
            // in one page; accesses to the backing are atomic.
            unsafe { bytes::copy_in(self.at(offset, src.len()), src) };
        }
        true
    }

    /// Reads bytes as a trapped access does; bytes past the end read as ones.
    pub(super) fn read_bytes(&self, offset: u64, dst: &mut [u8]) {
        self.read_count.fetch_add(1, Ordering::Relaxed);
        dst.fill(0xff);
        let bar_len_bytes = self.backing.len_bytes as u64;
        if self.gone.load(Ordering::Acquire) || offset >= bar_len_bytes {
            return;
        }
        let len = dst.len().min(to_usize(bar_len_bytes - offset));
        // SAFETY: `offset + len` is inside the backing, which `self` keeps.
        unsafe { bytes::copy_out(self.backing.base.add(to_usize(offset)), &mut dst[..len]) };
        let Some(part) = self.memory.get().filter(|part| offset + len as u64 > part.range.start)
        else {
            return;
        };
        for (at, byte) in (offset..).zip(&mut dst[..len]) {
            if part.range.contains(&at) && !part.is_open(at) {
                *byte = 0xff;
            }
        }
    }

    /// What keeps the memory of the BAR.
    pub(super) fn backing(&self) -> Arc<Backing> {
        Arc::clone(&self.backing)
    }

    /// Register reads and queued writes so far.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.read_count.load(Ordering::Relaxed), self.write_count.load(Ordering::Relaxed))
    }
}

impl Bar for BarShared {
    fn len_bytes(&self) -> u64 {
        self.backing.len_bytes as u64
    }

    fn read_be32(&self, offset: u64) -> u32 {
        self.read_count.fetch_add(1, Ordering::Relaxed);
        let value = self.get_be32(offset);
        if self.gone.load(Ordering::Acquire) { u32::MAX } else { value }
    }

    fn write_be32(&self, offset: u64, value: u32) {
        self.at(offset, 4);
        self.push(BarWrite { offset, len_bytes: 4, value: u64::from(value) });
    }

    fn write_be64(&self, offset: u64, value: u64) {
        self.at(offset, 8);
        self.push(BarWrite { offset, len_bytes: 8, value });
    }

    fn doorbell(&self, offset: u64) -> Result<Doorbell, BusError> {
        self.check_doorbell(offset)?;
        let keep = Arc::clone(&self.backing) as Arc<dyn Any + Send + Sync>;
        // SAFETY: the register is in range and aligned (`check_doorbell`); `keep` holds the memory;
        // the device side reaches UAR words with 8-byte atomics (`word64`).
        Ok(unsafe { Doorbell::new(self.at(offset, 8).cast(), keep) })
    }

    fn blueflame(&self, offset: u64, buffer_bytes: u64) -> Result<Option<BlueFlame>, BusError> {
        self.check_blueflame(offset, buffer_bytes)?;
        let keep = Arc::clone(&self.backing) as Arc<dyn Any + Send + Sync>;
        let (bytes, register) = (to_usize(buffer_bytes), self.at(offset, 8));
        // SAFETY: both buffers are in range and `keep` holds the memory; the device side reaches
        // UAR words with 8-byte atomics.
        Ok(unsafe { BlueFlame::new(register, bytes, self.blueflame, keep) })
    }

    fn memory(&self, offset: u64, len_bytes: u64) -> Result<BarMemory, BusError> {
        self.check_memory(offset, len_bytes)?;
        let inside =
            |part: &&MemoryPart| part.range.start <= offset && offset + len_bytes <= part.range.end;
        if self.memory.get().filter(inside).is_none() {
            return Err(BusError::NotBarMemory { offset, len_bytes });
        }
        let keep = Arc::clone(&self.backing) as Arc<dyn Any + Send + Sync>;
        // SAFETY: the range lies in the backing, checked above, which `keep` holds; it is whole
        // words (`check_memory`), and accesses to the backing are atomic.
        Ok(unsafe {
            let start = self.backing.base.add(to_usize(offset));
            BarMemory::new(start, to_usize(len_bytes), keep)
        })
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// Of the middle page of three that are filled, what is there after it was cleared.
    fn cleared(backing: &Backing) -> [Vec<u8>; 3] {
        // SAFETY: three pages of at least sixteen, to which nobody else comes.
        unsafe { bytes::fill(backing.base, 3 * 4096, 7) };
        backing.clear(4096..8192);
        [0, 1, 2].map(|page| {
            let mut found = vec![1; 4096];
            // SAFETY: as above.
            unsafe { bytes::copy_out(backing.base.add(page * 4096), &mut found) };
            found
        })
    }

    #[test]
    fn pages_are_cleared_whether_they_can_be_given_back_or_not() {
        let backing = Backing::new(64 << 10).expect("memory");
        let expected = [vec![7; 4096], vec![0; 4096], vec![7; 4096]];
        assert_eq!(cleared(&backing), expected);
        assert_eq!(backing.give_back(4096, 4096), system_page_bytes() == 4096);
        assert!(!backing.give_back(4096, 100), "no whole page");
        // As by a program that locks all that it has; not the C library's call, which does nothing
        // under AddressSanitizer.
        // SAFETY: pages of the mapping; whether they are locked changes no byte.
        let locked = unsafe { rustix::mm::mlock(backing.base.as_ptr().cast(), 64 << 10) };
        if let Err(error) = locked {
            println!("skipped: mlock of 64 KiB: {error}");
            return;
        }
        assert!(!backing.give_back(4096, 4096), "locked pages are kept");
        assert_eq!(cleared(&backing), expected);
    }
}
