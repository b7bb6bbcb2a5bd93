//! Aligned pieces of mapped memory for queues, mailboxes and doorbell records.
#![expect(unsafe_code, reason = "pointers into mapped regions")]

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ferrocx_mempool::RawUse;

use crate::dma::DmaMapping;
use crate::{BusError, bytes};

/// The largest alignment that [`DmaHeap::alloc`] grants.
pub const MAX_ALIGN_BYTES: usize = 2 << 20;

/// Smallest unit of allocation, so that buffers share no cache line and words are aligned.
const UNIT_BYTES: usize = 64;

/// A first-fit allocator over one or more mappings. Control path only.
///
/// Buffers are zeroed when they are handed out and go back when they are dropped. Free neighbours
/// are merged at once. A buffer never spans two mappings.
#[derive(Debug)]
pub struct DmaHeap {
    inner: Arc<HeapInner>,
}

#[derive(Debug)]
struct HeapInner {
    state: Mutex<Vec<Arena>>,
}

/// The free runs of one mapping.
#[derive(Debug)]
struct Arena {
    mapping: Arc<DmaMapping>,
    /// Buffers are written while pools would lend the same bytes.
    _use: RawUse,
    /// Free runs as (offset, length) in bytes: ascending, disjoint, never adjacent.
    free: Vec<(usize, usize)>,
}

impl DmaHeap {
    /// Makes a heap over `mapping`; more can be added with [`DmaHeap::grow`].
    ///
    /// # Panics
    ///
    /// When a pool lies over the mapping's region; while the heap or a buffer of it lives, none can
    /// be made there.
    #[must_use]
    pub fn new(mapping: Arc<DmaMapping>) -> Self {
        let heap = Self { inner: Arc::new(HeapInner { state: Mutex::new(Vec::new()) }) };
        heap.grow(mapping);
        heap
    }

    /// Adds a mapping.
    ///
    /// # Panics
    ///
    /// As [`DmaHeap::new`].
    pub fn grow(&self, mapping: Arc<DmaMapping>) {
        let raw = mapping.region().use_raw().expect("no pool lies over the memory of a heap");
        let len = mapping.len_bytes() / UNIT_BYTES * UNIT_BYTES;
        let free = if len == 0 { Vec::new() } else { vec![(0, len)] };
        self.inner.lock().push(Arena { mapping, _use: raw, free });
    }

    /// Bytes that are handed out.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        let whole = |arena: &Arena| arena.mapping.len_bytes() / UNIT_BYTES * UNIT_BYTES;
        let of = |arena: &Arena| whole(arena) - arena.free_bytes();
        self.inner.lock().iter().map(of).sum()
    }

    /// Takes a zeroed buffer whose I/O address is a multiple of `align_bytes`.
    ///
    /// # Shape
    ///
    /// `len_bytes` from 1, rounded up to 64; `align_bytes` a power of two up to
    /// [`MAX_ALIGN_BYTES`] (64 at least). Alignment holds for the I/O address; for the
    /// virtual address only up to the region's page size.
    ///
    /// # Errors
    ///
    /// [`BusError::OutOfRange`] for a bad length or alignment, [`BusError::HeapExhausted`] when no
    /// free run fits.
    pub fn alloc(&self, len_bytes: usize, align_bytes: usize) -> Result<DmaBuf, BusError> {
        if len_bytes == 0 || len_bytes > isize::MAX as usize - UNIT_BYTES {
            return Err(BusError::OutOfRange {
                what: "DMA buffer length in bytes",
                value: len_bytes as u64,
                min: 1,
                max: isize::MAX as u64 - UNIT_BYTES as u64,
                hint: "",
            });
        }
        if !align_bytes.is_power_of_two() || align_bytes > MAX_ALIGN_BYTES {
            return Err(BusError::OutOfRange {
                what: "DMA buffer alignment in bytes (a power of two)",
                value: align_bytes as u64,
                min: 1,
                max: MAX_ALIGN_BYTES as u64,
                hint: "",
            });
        }
        let run_bytes = len_bytes.next_multiple_of(UNIT_BYTES);
        let align_bytes = align_bytes.max(UNIT_BYTES);
        let mut arenas = self.inner.lock();
        for arena in arenas.iter_mut() {
            if let Some(offset) = arena.take(run_bytes, align_bytes) {
                let mapping = Arc::clone(&arena.mapping);
                drop(arenas);
                return Ok(DmaBuf::new(&self.inner, mapping, offset, len_bytes, run_bytes));
            }
        }
        Err(BusError::HeapExhausted {
            len_bytes: run_bytes,
            align_bytes,
            free_bytes: arenas.iter().map(Arena::free_bytes).sum(),
            total_bytes: arenas.iter().map(|arena| arena.mapping.len_bytes()).sum(),
        })
    }

    /// Bytes that are free, in all runs together.
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        self.inner.lock().iter().map(Arena::free_bytes).sum()
    }

    /// Bytes of all mappings together.
    #[must_use]
    pub fn total_bytes(&self) -> usize {
        self.inner.lock().iter().map(|arena| arena.mapping.len_bytes()).sum()
    }
}

impl HeapInner {
    /// The arenas; a panic elsewhere cannot leave them half-changed, so poison is ignored.
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arena>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Arena {
    fn free_bytes(&self) -> usize {
        self.free.iter().map(|run| run.1).sum()
    }

    /// Takes the first run that fits and returns its offset.
    fn take(&mut self, len: usize, align: usize) -> Option<usize> {
        let iova = self.mapping.iova();
        let (at, start) = self.free.iter().enumerate().find_map(|(at, &(offset, run_len))| {
            let first = iova.checked_add(offset as u64)?.checked_next_multiple_of(align as u64)?;
            let start = crate::to_usize(first - iova);
            (start.checked_add(len)? <= offset + run_len).then_some((at, start))
        })?;
        let (offset, run_len) = self.free[at];
        let left = (start > offset).then_some((offset, start - offset));
        let end = start + len;
        let right = (end < offset + run_len).then_some((end, offset + run_len - end));
        self.free.splice(at..=at, left.into_iter().chain(right));
        Some(start)
    }

    /// Gives back a run and merges it with free neighbours.
    fn give(&mut self, start: usize, len: usize) {
        let at = self.free.partition_point(|run| run.0 < start);
        let mut merged = (start, len);
        let mut range = at..at;
        if at > 0 {
            let left = self.free[at - 1];
            debug_assert!(left.0 + left.1 <= start, "freed twice");
            if left.0 + left.1 == start {
                merged = (left.0, left.1 + merged.1);
                range.start -= 1;
            }
        }
        if let Some(&right) = self.free.get(at) {
            debug_assert!(start + len <= right.0, "freed twice");
            if start + len == right.0 {
                merged.1 += right.1;
                range.end += 1;
            }
        }
        self.free.splice(range, [merged]);
    }
}

/// A piece of mapped memory that the device may read or write at any time.
///
/// Never a slice: bytes go in and out by copy, words by atomic loads and stores. Shared references
/// suffice for all accesses, from any thread, without data races.
///
/// # Shape
///
/// The `be32` forms take offsets that are multiples of 4, the `be64` forms multiples of 8.
///
/// # Panics
///
/// All accessors panic when the access is not aligned or reaches past the end.
pub struct DmaBuf {
    base: NonNull<u8>,
    iova: u64,
    len_bytes: usize,
    /// Offset in the mapping and length of the run that goes back to the heap.
    run: (usize, usize),
    mapping: Arc<DmaMapping>,
    heap: Arc<HeapInner>,
}

// SAFETY: the memory belongs to `mapping` (`Send + Sync`), which the buffer keeps, and is accessed
// through atomics only.
unsafe impl Send for DmaBuf {}
// SAFETY: as above.
unsafe impl Sync for DmaBuf {}

impl DmaBuf {
    fn new(
        heap: &Arc<HeapInner>,
        mapping: Arc<DmaMapping>,
        offset: usize,
        len_bytes: usize,
        run_bytes: usize,
    ) -> Self {
        debug_assert!(offset + run_bytes <= mapping.len_bytes());
        // SAFETY: the arena hands out runs inside the mapping's region only.
        let base = unsafe { mapping.region().base().add(offset) };
        // SAFETY: `offset + run_bytes` is inside the region, which `mapping` keeps alive.
        unsafe { bytes::fill(base, run_bytes, 0) };
        let iova = mapping.iova() + offset as u64;
        let heap = Arc::clone(heap);
        Self { base, iova, len_bytes, run: (offset, run_bytes), mapping, heap }
    }

    /// The I/O address of the first byte.
    #[must_use]
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Length in bytes, as asked for.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The first byte, for views inside this crate.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Keeps the memory allocated and mapped for the rest of the process.
    ///
    /// For when a destroy command failed and the device may still own the memory.
    pub fn leak(self) {
        tracing::error!(
            iova = format_args!("{:#x}", self.iova),
            len_bytes = self.len_bytes,
            "DMA buffer leaked: the device may still own this memory"
        );
        std::mem::forget(self);
    }

    /// Copies `src` to `offset`.
    pub fn copy_in(&self, offset: usize, src: &[u8]) {
        let at = self.at(offset, src.len(), 1);
        // SAFETY: `at` checked the range; the mapping keeps it alive.
        unsafe { bytes::copy_in(at, src) };
    }

    /// Copies from `offset` into `dst`.
    pub fn copy_out(&self, offset: usize, dst: &mut [u8]) {
        let at = self.at(offset, dst.len(), 1);
        // SAFETY: `at` checked the range; the mapping keeps it alive.
        unsafe { bytes::copy_out(at, dst) };
    }

    /// Sets every byte to `byte`.
    pub fn fill(&self, byte: u8) {
        // SAFETY: the whole buffer, which the mapping keeps alive.
        unsafe { bytes::fill(self.base, self.len_bytes, byte) };
    }

    /// Loads one byte, as part of its 32-bit word, before any later access to DMA memory.
    #[inline]
    #[must_use]
    pub fn load_acquire_u8(&self, offset: usize) -> u8 {
        assert!(offset < self.len_bytes);
        // The run behind the buffer is a multiple of 64 bytes, so the word is there in any case.
        // SAFETY: the aligned word that holds a byte inside the run is inside the run.
        let word = unsafe { AtomicU32::from_ptr(self.base.add(offset & !3).cast().as_ptr()) };
        let raw = word.load(Ordering::Acquire);
        crate::barrier::dma_rmb();
        raw.to_ne_bytes()[offset & 3]
    }

    /// Loads a big-endian dword before any later access to DMA memory.
    #[inline]
    #[must_use]
    pub fn load_acquire_be32(&self, offset: usize) -> u32 {
        let raw = self.word32(offset).load(Ordering::Acquire);
        crate::barrier::dma_rmb();
        u32::from_be(raw)
    }

    /// Loads a big-endian dword.
    #[inline]
    #[must_use]
    pub fn load_be32(&self, offset: usize) -> u32 {
        u32::from_be(self.word32(offset).load(Ordering::Relaxed))
    }

    /// Loads a big-endian 64-bit word.
    #[inline]
    #[must_use]
    pub fn load_be64(&self, offset: usize) -> u64 {
        u64::from_be(self.word64(offset).load(Ordering::Relaxed))
    }

    /// Stores a big-endian dword.
    #[inline]
    pub fn store_be32(&self, offset: usize, value: u32) {
        self.word32(offset).store(value.to_be(), Ordering::Relaxed);
    }

    /// Stores a big-endian 64-bit word.
    #[inline]
    pub fn store_be64(&self, offset: usize, value: u64) {
        self.word64(offset).store(value.to_be(), Ordering::Relaxed);
    }

    /// Stores a big-endian dword after all earlier stores to DMA memory.
    #[inline]
    pub fn store_release_be32(&self, offset: usize, value: u32) {
        crate::barrier::dma_wmb();
        self.word32(offset).store(value.to_be(), Ordering::Release);
    }

    /// The address of a checked range.
    #[inline]
    #[track_caller]
    fn at(&self, offset: usize, len: usize, align: usize) -> NonNull<u8> {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.len_bytes);
        assert!(
            fits && offset.is_multiple_of(align),
            "{len} bytes at {offset} are not inside the DMA buffer of {} bytes, or not aligned",
            self.len_bytes
        );
        // SAFETY: `offset <= len_bytes`, and the buffer is one allocation.
        unsafe { self.base.add(offset) }
    }

    #[inline]
    #[track_caller]
    fn word32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: in range and aligned (`at`; the base is 64-byte aligned); alive with `self`.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4, 4).cast().as_ptr()) }
    }

    #[inline]
    #[track_caller]
    fn word64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as in `word32`.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8, 8).cast().as_ptr()) }
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        let mut arenas = self.heap.lock();
        let arena = arenas.iter_mut().find(|arena| Arc::ptr_eq(&arena.mapping, &self.mapping));
        if let Some(arena) = arena {
            arena.give(self.run.0, self.run.1);
        }
    }
}

impl fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaBuf")
            .field("iova", &format_args!("{:#x}", self.iova))
            .field("len_bytes", &self.len_bytes)
            .finish_non_exhaustive()
    }
}
