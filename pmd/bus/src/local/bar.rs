//! The BAR of an in-process device: published registers, a queue of writes, and UAR pages.
#![expect(unsafe_code, reason = "registers and doorbells are words in shared mapped memory")]

use std::any::Any;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Bar, BlueFlame, BusError, Doorbell, DoorbellKind, bytes, to_usize};

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

/// Memory behind the BAR.
#[derive(Debug)]
struct Backing {
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

    /// Zeroes everything by giving the pages back, so that an unused page stays without memory.
    #[cfg(not(miri))]
    fn clear(&self) {
        // SAFETY: the mapping is private and anonymous: its pages read as zero afterwards and stay
        // valid; no reference into it exists, only atomic accesses through pointers.
        let given = unsafe { self.map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
        given.expect("madvise of a whole private mapping");
    }

    #[cfg(miri)]
    fn clear(&self) {
        // SAFETY: the whole allocation.
        unsafe { bytes::fill(self.base, self.len_bytes, 0) };
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

#[cfg(miri)]
impl Drop for Backing {
    fn drop(&mut self) {
        let layout = std::alloc::Layout::from_size_align(self.len_bytes, 4096).expect("as in new");
        // SAFETY: allocated in `new` with the same layout.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), layout) };
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
}

impl BarShared {
    pub(super) fn new(len_bytes: u64, blueflame: DoorbellKind) -> Result<Self, BusError> {
        Ok(Self {
            blueflame,
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

    /// Clears every register.
    pub(super) fn clear(&self) {
        self.backing.clear();
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
}
