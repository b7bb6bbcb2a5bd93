//! Views of DMA memory for hot paths: rings of entries of one length.
//!
//! A [`Ring`] masks the index inside, so any `u32` is a valid index and no bound is checked at run
//! time; word offsets are constants checked at compile time. Each access is one atomic load or
//! store of a word: a plain `mov`, with a byte swap for the big-endian forms.
//!
//! A word on which one side polls (ownership words, doorbell records) is accessed with 32 bits by
//! both sides. All other words are accessed only by whom the protocol says owns the entry.
#![expect(unsafe_code, reason = "unchecked accesses behind a mask")]

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::wide::{
    WIDE_BYTES, WIDEST_BYTES, WideStores, copy_widest, store_ends, store_long, store_wide,
};
use crate::{BusError, DmaBuf};

/// Compile-time proof that a word of `WIDTH` bytes at `OFF` lies inside `STRIDE`, aligned.
struct Word<const STRIDE: usize, const OFF: usize, const WIDTH: usize>;

impl<const STRIDE: usize, const OFF: usize, const WIDTH: usize> Word<STRIDE, OFF, WIDTH> {
    const OK: () = assert!(
        OFF.is_multiple_of(WIDTH) && OFF + WIDTH <= STRIDE,
        "the word is not aligned or not inside the entry"
    );
}

/// A ring of 2^n entries of `STRIDE` bytes in DMA memory: a CQ, an EQ, an RQ, or the basic blocks
/// of an SQ.
///
/// Keeps the memory alive. Accesses go through [`Ring::at`]. A ring may be sent to another
/// core. Who shares one lets no two threads access the same bytes at a time by words of different
/// widths, or one of them by [`WideStores`](crate::WideStores). The entries' protocol is the
/// user's.
pub struct Ring<const STRIDE: usize> {
    base: NonNull<u8>,
    /// `entries * STRIDE - STRIDE`: masks a byte offset to the start of an entry.
    byte_mask: u32,
    buf: Arc<DmaBuf>,
}

// SAFETY: `base` points into `buf`, which is `Send + Sync`, and is accessed atomically only.
unsafe impl<const STRIDE: usize> Send for Ring<STRIDE> {}
// SAFETY: as above.
unsafe impl<const STRIDE: usize> Sync for Ring<STRIDE> {}

impl<const STRIDE: usize> Ring<STRIDE> {
    const STRIDE_OK: () = assert!(
        STRIDE.is_power_of_two() && STRIDE >= 8 && STRIDE <= 4096,
        "the stride of a ring is a power of two from 8 to 4096"
    );

    /// The largest `log_entries` that [`Ring::new`] takes.
    pub const MAX_LOG_ENTRIES: u8 = 22;

    /// What entries are aligned to: sixteen bytes where they are made of such.
    const ALIGN: usize = if STRIDE.is_multiple_of(WIDE_BYTES) { WIDE_BYTES } else { 8 };

    /// The stride as the type of byte offsets.
    #[expect(clippy::cast_possible_truncation, reason = "at most 4096, see STRIDE_OK")]
    const STRIDE32: u32 = STRIDE as u32;

    /// The longest ring: its length must divide 2^32 for the index to wrap freely.
    const MAX_LEN_BYTES: u64 = 1 << 31;

    /// Views `2^log_entries` entries of `buf`, the first at `offset_bytes`.
    ///
    /// # Errors
    ///
    /// [`BusError::OutOfRange`] when `log_entries` is above [`Ring::MAX_LOG_ENTRIES`], the offset
    /// is not a multiple of 16 (of 8 for a stride of 8), or the entries reach past the buffer's
    /// end.
    pub fn new(buf: Arc<DmaBuf>, offset_bytes: usize, log_entries: u8) -> Result<Self, BusError> {
        const { Self::STRIDE_OK };
        let refuse = |what, value, max| {
            Err(BusError::OutOfRange { what, value, min: 0, max, hint: "; use a larger buffer" })
        };
        if log_entries > Self::MAX_LOG_ENTRIES {
            let max = u64::from(Self::MAX_LOG_ENTRIES);
            return refuse("log2 of the ring's entries", u64::from(log_entries), max);
        }
        let len_bytes = u64::from(Self::STRIDE32) << log_entries;
        let max_len_bytes = (buf.len_bytes() as u64).min(Self::MAX_LEN_BYTES);
        let Some(room) = max_len_bytes.checked_sub(len_bytes) else {
            return refuse("ring length in bytes", len_bytes, max_len_bytes);
        };
        let room = room + (buf.len_bytes() as u64 - max_len_bytes);
        let address = buf.base().as_ptr().addr().wrapping_add(offset_bytes);
        if offset_bytes as u64 > room || !address.is_multiple_of(Self::ALIGN) {
            return refuse("ring offset (16-byte aligned)", offset_bytes as u64, room);
        }
        let byte_mask = u32::try_from(len_bytes).expect("at most 2^31") - Self::STRIDE32;
        // SAFETY: `offset_bytes + len_bytes <= buf.len_bytes()`, checked above.
        let base = unsafe { buf.base().add(offset_bytes) };
        Ok(Self { base, byte_mask, buf })
    }

    /// The number of entries, a power of two.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.byte_mask / Self::STRIDE32 + 1
    }

    /// The I/O address of the first entry.
    #[must_use]
    pub fn iova(&self) -> u64 {
        let offset = self.base.as_ptr().addr() - self.buf.base().as_ptr().addr();
        self.buf.iova() + offset as u64
    }

    /// The buffer behind the ring.
    #[must_use]
    pub fn buf(&self) -> &Arc<DmaBuf> {
        &self.buf
    }

    /// The entry at `index` modulo the number of entries.
    #[inline(always)]
    #[must_use]
    pub fn at(&self, index: u32) -> Slot<'_, STRIDE> {
        self.view().at(index)
    }

    /// `LEN` bytes at a byte offset.
    ///
    /// # Safety
    ///
    /// The offset is a multiple of the stride, and so many bytes of the ring follow it.
    #[inline(always)]
    pub(crate) unsafe fn slot_at<const LEN: usize>(&self, offset: u32) -> Slot<'_, LEN> {
        // SAFETY: within the ring, which is borrowed (caller).
        Slot { ptr: unsafe { self.base.add(offset as usize) }, ring: PhantomData }
    }

    /// The ring's base and mask as a value of their own, for a loop over entries.
    ///
    /// An acquire load makes the compiler read the fields of a `Ring` again; a view stays in
    /// registers.
    #[inline(always)]
    #[must_use]
    pub fn view(&self) -> RingView<'_, STRIDE> {
        RingView { base: self.base, byte_mask: self.byte_mask, ring: PhantomData }
    }
}

/// A borrowed [`Ring`] that fits into two registers.
#[derive(Debug, Clone, Copy)]
pub struct RingView<'r, const STRIDE: usize> {
    base: NonNull<u8>,
    byte_mask: u32,
    ring: PhantomData<&'r Ring<STRIDE>>,
}

impl<'r, const STRIDE: usize> RingView<'r, STRIDE> {
    /// The entry at `index` modulo the number of entries.
    #[inline(always)]
    #[must_use]
    pub fn at(&self, index: u32) -> Slot<'r, STRIDE> {
        self.at_byte(index.wrapping_mul(Ring::<STRIDE>::STRIDE32))
    }

    /// The entry that holds the byte `position`, modulo the bytes of the ring: for walks that
    /// count in bytes.
    #[inline(always)]
    #[must_use]
    pub fn at_byte(&self, position: u32) -> Slot<'r, STRIDE> {
        let offset = position & self.byte_mask;
        // SAFETY: (1) the mask keeps `offset + STRIDE` within the ring's length, which `Ring::new`
        // checked against the buffer; (2) the ring, borrowed for `'r`, keeps the buffer. A
        // position that wraps is exact modulo 2^32, and the ring's length divides 2^32.
        let ptr = unsafe { self.base.add(offset as usize) };
        Slot { ptr, ring: PhantomData }
    }

    /// The entries from `index` on, modulo the number of entries: at most `most`, and as many as
    /// lie side by side.
    #[inline(always)]
    #[must_use]
    pub fn span(&self, index: u32, most: usize) -> Span<'r, STRIDE> {
        let first = self.at(index);
        let offset = index.wrapping_mul(Ring::<STRIDE>::STRIDE32) & self.byte_mask;
        let to_end = (self.byte_mask - offset) / Ring::<STRIDE>::STRIDE32 + 1;
        let len = most.min(to_end as usize);
        // SAFETY: `len` entries from `first` on lie in the ring, which is borrowed for `'r`. Others
        // may write to them meanwhile, and nobody borrows them but as cells.
        Span { cells: unsafe { slice::from_raw_parts(first.ptr.cast().as_ptr(), len) } }
    }

    /// Copies 16 bytes or more to `position`, modulo the bytes of the ring, with few wide stores
    /// that overlap. `false`, and nothing done, for fewer, and where the ring ends within the
    /// bytes. They may start anywhere: nobody polls on a word of theirs.
    #[inline(always)]
    #[must_use]
    pub fn copy_bytes(&self, position: u32, bytes: &[u8]) -> bool {
        let offset = (position & (self.byte_mask | (Ring::<STRIDE>::STRIDE32 - 1))) as usize;
        let len_bytes = self.byte_mask as usize + STRIDE;
        if offset + bytes.len() > len_bytes {
            return false;
        }
        // SAFETY: `offset + bytes.len()` is at most the length of the ring, which is borrowed for
        // `'r` and keeps the buffer.
        unsafe {
            let to = self.base.add(offset);
            store_ends::<1>(to, bytes)
                || store_ends::<2>(to, bytes)
                || store_ends::<4>(to, bytes)
                || store_ends::<8>(to, bytes)
                || store_long(to, bytes)
        }
    }

    /// The entries from `index` on as one of `LEN` bytes; `None` if the ring ends before.
    #[inline(always)]
    #[must_use]
    pub fn run<const LEN: usize>(&self, index: u32) -> Option<Slot<'r, LEN>> {
        const { assert!(LEN.is_multiple_of(STRIDE) && LEN != 0 && LEN <= 4096) };
        let first = self.at(index);
        let offset = index.wrapping_mul(Ring::<STRIDE>::STRIDE32) & self.byte_mask;
        // The mask is the offset of the last entry.
        let last = offset as usize + (LEN - STRIDE);
        (last <= self.byte_mask as usize).then_some(Slot { ptr: first.ptr, ring: PhantomData })
    }
}

/// Entries of a [`Ring`] side by side: a loop over them needs no mask.
#[derive(Debug, Clone, Copy)]
pub struct Span<'r, const STRIDE: usize> {
    cells: &'r [EntryCell<STRIDE>],
}

/// The memory of an entry, which others may write to.
#[derive(Debug)]
#[repr(transparent)]
pub struct EntryCell<const STRIDE: usize>(UnsafeCell<[u8; STRIDE]>);

impl<const STRIDE: usize> EntryCell<STRIDE> {
    /// The entry.
    #[inline(always)]
    #[must_use]
    pub fn slot(&self) -> Slot<'_, STRIDE> {
        Slot { ptr: NonNull::from(self).cast(), ring: PhantomData }
    }
}

impl<'r, const STRIDE: usize> Span<'r, STRIDE> {
    /// Entries of it.
    #[inline(always)]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// The entry `at` behind the first; `None` past the end.
    #[inline(always)]
    #[must_use]
    pub fn get(&self, at: usize) -> Option<Slot<'r, STRIDE>> {
        self.cells.get(at).map(EntryCell::slot)
    }

    /// All of them.
    #[inline(always)]
    #[must_use]
    pub fn cells(&self) -> &'r [EntryCell<STRIDE>] {
        self.cells
    }
}

impl<const STRIDE: usize> fmt::Debug for Ring<STRIDE> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("iova", &format_args!("{:#x}", self.iova()))
            .field("entries", &self.entries())
            .field("stride", &STRIDE)
            .finish()
    }
}

/// One entry of a [`Ring`].
///
/// Offsets are constants: `slot.load_be32::<0x2c>()`. A misaligned or outlying offset does not
/// compile. `raw` forms take and give the bytes as they stand in memory; `be` forms, numbers.
///
/// ```compile_fail
/// # fn past_the_end(ring: ferrocx_bus::Ring<64>) -> u32 {
/// ring.at(0).load_be32::<0x40>()
/// # }
/// # fn main() { let _: fn(ferrocx_bus::Ring<64>) -> u32 = past_the_end; }
/// ```
///
/// ```compile_fail
/// # fn misaligned(ring: ferrocx_bus::Ring<64>) -> u64 {
/// ring.at(0).load_be64::<0x3c>()
/// # }
/// # fn main() { let _: fn(ferrocx_bus::Ring<64>) -> u64 = misaligned; }
/// ```
///
/// ```
/// # fn aligned(ring: ferrocx_bus::Ring<64>) -> u64 {
/// ring.at(0).load_be64::<0x38>()
/// # }
/// # fn main() { let _: fn(ferrocx_bus::Ring<64>) -> u64 = aligned; }
/// ```
#[derive(Clone, Copy)]
pub struct Slot<'r, const STRIDE: usize> {
    ptr: NonNull<u8>,
    ring: PhantomData<&'r Ring<STRIDE>>,
}

impl<'r, const STRIDE: usize> Slot<'r, STRIDE> {
    /// The `LEN` bytes at `OFF` as an entry of their own; both are multiples of 16, or of 8 if
    /// `LEN` is no multiple of 16.
    #[inline(always)]
    #[must_use]
    pub fn part<const OFF: usize, const LEN: usize>(&self) -> Slot<'r, LEN> {
        const {
            assert!(
                OFF.is_multiple_of(Ring::<LEN>::ALIGN)
                    && LEN.is_multiple_of(8)
                    && STRIDE.is_multiple_of(Ring::<LEN>::ALIGN)
                    && OFF + LEN <= STRIDE,
                "the part is not made of whole aligned words of the entry"
            );
        }
        // SAFETY: `OFF + LEN <= STRIDE`, so the part lies in the entry that `ptr` starts. It is
        // aligned as an entry of its length is.
        Slot { ptr: unsafe { self.ptr.add(OFF) }, ring: PhantomData }
    }

    /// Its first byte; `STRIDE` bytes are there while the ring is borrowed.
    #[inline(always)]
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.ptr
    }

    /// The `at`th of the parts of `LEN` bytes that the entry is made of; `None` past its end.
    #[inline(always)]
    #[must_use]
    pub fn piece<const LEN: usize>(&self, at: usize) -> Option<Slot<'r, LEN>> {
        const {
            assert!(
                LEN.is_multiple_of(Ring::<LEN>::ALIGN)
                    && LEN != 0
                    && STRIDE.is_multiple_of(Ring::<LEN>::ALIGN),
                "the parts are not made of whole aligned words of the entry"
            );
        }
        // SAFETY: `(at + 1) * LEN <= STRIDE`, so the part lies in the entry that `ptr` starts. It
        // is aligned as an entry of its length is.
        let ptr = (at < STRIDE / LEN).then(|| unsafe { self.ptr.add(at * LEN) })?;
        Some(Slot { ptr, ring: PhantomData })
    }

    /// Copies 16 to 256 bytes to `at`, wherever that is, with few wide stores that overlap.
    /// `false`, and nothing done, for another length, and where the entry ends within the bytes.
    /// Nobody polls on a word of theirs.
    #[inline(always)]
    #[must_use]
    pub fn copy_bytes(&self, at: usize, bytes: &[u8]) -> bool {
        if at > STRIDE || bytes.len() > STRIDE - at {
            return false;
        }
        // SAFETY: `at + bytes.len()` is at most the length of the entry, which is borrowed with its
        // ring.
        unsafe {
            let to = self.ptr.add(at);
            store_ends::<1>(to, bytes)
                || store_ends::<2>(to, bytes)
                || store_ends::<4>(to, bytes)
                || store_ends::<8>(to, bytes)
        }
    }

    #[inline(always)]
    fn word32<const OFF: usize>(&self) -> &AtomicU32 {
        const { Word::<STRIDE, OFF, 4>::OK };
        // SAFETY: `OFF + 4 <= STRIDE`, so the word lies in the entry that `ptr` starts; the entry
        // is 8-byte aligned (`Ring::new`) and alive while the ring is borrowed.
        unsafe { AtomicU32::from_ptr(self.ptr.add(OFF).cast().as_ptr()) }
    }

    #[inline(always)]
    fn word64<const OFF: usize>(&self) -> &AtomicU64 {
        const { Word::<STRIDE, OFF, 8>::OK };
        // SAFETY: as in `word32`, with eight bytes.
        unsafe { AtomicU64::from_ptr(self.ptr.add(OFF).cast().as_ptr()) }
    }

    /// Loads a big-endian dword, before any later access to the entry: for ownership words.
    ///
    /// The byte at `OFF + 3` is the low byte of the result, so the `op_own` byte of a CQE (0x3f)
    /// is `load_acquire_be32::<0x3c>() & 0xff`.
    #[inline(always)]
    #[must_use]
    pub fn load_acquire_be32<const OFF: usize>(&self) -> u32 {
        let raw = self.word32::<OFF>().load(Acquire);
        acquired();
        u32::from_be(raw)
    }

    /// Loads a word of four bytes in memory order, with acquire: nothing is swapped.
    #[inline(always)]
    #[must_use]
    pub fn load_acquire_raw32<const OFF: usize>(&self) -> u32 {
        let raw = self.word32::<OFF>().load(Acquire);
        acquired();
        raw
    }

    /// Loads the byte at `OFF` with acquire, as part of its 32-bit word.
    #[inline(always)]
    #[must_use]
    pub fn load_acquire_u8<const WORD_OFF: usize, const BYTE: usize>(&self) -> u8 {
        const { assert!(BYTE < 4, "a word has four bytes") };
        self.load_acquire_raw32::<WORD_OFF>().to_ne_bytes()[BYTE]
    }

    /// Loads a big-endian dword.
    #[inline(always)]
    #[must_use]
    pub fn load_be32<const OFF: usize>(&self) -> u32 {
        u32::from_be(self.word32::<OFF>().load(Relaxed))
    }

    /// Loads a dword as it stands in memory.
    #[inline(always)]
    #[must_use]
    pub fn load_raw32<const OFF: usize>(&self) -> u32 {
        self.word32::<OFF>().load(Relaxed)
    }

    /// Loads a big-endian 64-bit word.
    #[inline(always)]
    #[must_use]
    pub fn load_be64<const OFF: usize>(&self) -> u64 {
        u64::from_be(self.word64::<OFF>().load(Relaxed))
    }

    /// Loads a 64-bit word as it stands in memory.
    #[inline(always)]
    #[must_use]
    pub fn load_raw64<const OFF: usize>(&self) -> u64 {
        self.word64::<OFF>().load(Relaxed)
    }

    /// Stores a big-endian dword.
    #[inline(always)]
    pub fn store_be32<const OFF: usize>(&self, value: u32) {
        self.word32::<OFF>().store(value.to_be(), Relaxed);
    }

    /// Stores a big-endian 64-bit word: `value >> 32` is the dword at `OFF`.
    #[inline(always)]
    pub fn store_be64<const OFF: usize>(&self, value: u64) {
        self.word64::<OFF>().store(value.to_be(), Relaxed);
    }

    /// Stores a 64-bit word as it shall stand in memory.
    #[inline(always)]
    pub fn store_raw64<const OFF: usize>(&self, raw: u64) {
        self.word64::<OFF>().store(raw, Relaxed);
    }

    /// Stores a big-endian dword after all earlier stores to DMA memory: hands over the entry.
    #[inline(always)]
    pub fn store_release_be32<const OFF: usize>(&self, value: u32) {
        crate::barrier::dma_wmb();
        self.word32::<OFF>().store(value.to_be(), Release);
    }

    /// Stores a whole entry, eight bytes at a time.
    #[inline(always)]
    pub fn store(&self, entry: &[u8; STRIDE]) {
        self.store_at::<0, STRIDE>(entry);
    }

    /// Stores `N` bytes at `OFF`, eight at a time; both are multiples of 8.
    #[inline(always)]
    pub fn store_at<const OFF: usize, const N: usize>(&self, part: &[u8; N]) {
        const {
            assert!(
                OFF.is_multiple_of(8) && N.is_multiple_of(8) && OFF + N <= STRIDE,
                "the part is not made of whole aligned words of the entry"
            );
        }
        let mut i = 0;
        while i < N {
            let raw = u64::from_ne_bytes([
                part[i],
                part[i + 1],
                part[i + 2],
                part[i + 3],
                part[i + 4],
                part[i + 5],
                part[i + 6],
                part[i + 7],
            ]);
            // SAFETY: `OFF + i + 8 <= OFF + N <= STRIDE`, and all terms are multiples of 8; the
            // entry is alive while the ring is borrowed.
            unsafe {
                AtomicU64::from_ptr(self.ptr.add(OFF + i).cast().as_ptr()).store(raw, Relaxed);
            }
            i += 8;
        }
    }

    /// Copies units of sixteen bytes to `OFF`, as many as the entry has room for, each with one
    /// load and one store where the processor has such: for bytes that stand in memory.
    #[inline(always)]
    pub fn copy_units<const OFF: usize>(&self, units: &[[u8; WIDE_BYTES]]) {
        const {
            assert!(
                OFF.is_multiple_of(WIDE_BYTES) && STRIDE.is_multiple_of(WIDE_BYTES),
                "the units are not aligned in the entry"
            );
        }
        let room = (STRIDE - OFF) / WIDE_BYTES;
        for (i, unit) in units.iter().take(room).enumerate() {
            // SAFETY: `OFF + 16 * (i + 1) <= STRIDE`, and the entry is alive while the ring is
            // borrowed; it is 16-byte aligned (`Ring::new`, `Slot::part`), as is `OFF`.
            unsafe { store_wide(self.ptr.add(OFF + i * WIDE_BYTES), unit) };
        }
    }

    /// Copies pieces of 32 bytes to the start of the entry, up to ten and as many as it has room
    /// for, each with one load and one store: for bytes that stand in memory.
    #[inline(always)]
    pub fn copy_wide(&self, _: WideStores, pieces: &[[u8; WIDEST_BYTES]]) {
        let count = pieces.len().min(STRIDE / WIDEST_BYTES);
        // SAFETY: as many bytes can be read, and written: the entry is alive while the ring is
        // borrowed. The processor has such stores, as the argument proves.
        unsafe { copy_widest(self.ptr, pieces, count) };
    }

    /// Copies another entry here, eight bytes at a time.
    #[inline(always)]
    pub fn copy_from(&self, from: &Self) {
        let mut i = 0;
        while i < STRIDE {
            // SAFETY: the stride is a multiple of 8 (`Ring::new`, `Slot::part`), so word `i` lies
            // in either entry; both are alive while their rings are borrowed.
            unsafe {
                let word = AtomicU64::from_ptr(from.ptr.add(i).cast().as_ptr()).load(Relaxed);
                AtomicU64::from_ptr(self.ptr.add(i).cast().as_ptr()).store(word, Relaxed);
            }
            i += 8;
        }
    }

    /// Copies the whole entry out, for error paths and dumps.
    #[must_use]
    pub fn load(&self) -> [u8; STRIDE] {
        let mut entry = [0; STRIDE];
        // SAFETY: the entry has `STRIDE` bytes and is alive while the ring is borrowed.
        unsafe { crate::bytes::copy_out(self.ptr, &mut entry) };
        entry
    }
}

impl<const STRIDE: usize> fmt::Debug for Slot<'_, STRIDE> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({:02x?})", self.load())
    }
}

/// After an acquire load of DMA memory: widens the acquire to devices where Rust's is too narrow.
#[inline(always)]
pub(crate) fn acquired() {
    #[cfg(target_arch = "aarch64")]
    crate::barrier::dma_rmb();
}
