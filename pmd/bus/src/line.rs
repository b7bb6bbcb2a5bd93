//! [`Line`]: entries of a ring one behind the other, without a look at where the ring ends.
#![expect(unsafe_code, reason = "an unchecked access behind a limit that holds for it")]

use crate::wide::{WIDE_BYTES, WideStores};
use crate::{Ring, Slot};

/// A part of a [`Ring`] in which every entry starts `LEN` bytes that lie in one piece.
///
/// For requests of several entries, each of which starts where the one before ended: whether there
/// is room for one more, and whether the ring ends within it, is the same comparison.
#[derive(Debug)]
pub struct Line<const STRIDE: usize, const LEN: usize> {
    ring: Ring<STRIDE>,
    /// Byte offsets of the next request, and of the first that may start none. Both are multiples
    /// of the stride, and `LEN` bytes follow each offset below `end` in the ring.
    next: u32,
    end: u32,
    /// The same, where wide stores may be used; else 0.
    wide_end: u32,
    wide: Option<WideStores>,
}

impl<const STRIDE: usize, const LEN: usize> Line<STRIDE, LEN> {
    const OK: () = assert!(
        LEN.is_multiple_of(STRIDE)
            && LEN != 0
            && LEN <= 4096
            && STRIDE.is_multiple_of(WIDE_BYTES)
            && STRIDE << Ring::<STRIDE>::MAX_LOG_ENTRIES <= 1 << 31,
        "the bytes are not whole entries, these not made of wide stores, or rings of them too long"
    );
    #[expect(clippy::cast_possible_truncation, reason = "at most 4096")]
    const STRIDE32: u32 = STRIDE as u32;

    /// A line of no entries, of a ring.
    #[must_use]
    pub fn new(ring: Ring<STRIDE>) -> Self {
        const { Self::OK };
        Self { ring, next: 0, end: 0, wide_end: 0, wide: WideStores::detect() }
    }

    /// Begins a line at `index`, modulo the number of entries: requests may start at so many
    /// entries from there on, as far as they lie side by side with `LEN` bytes behind each. Whether
    /// there is any. [`Line::next_wide`] gives none unless it `may_be_wide`.
    #[expect(clippy::cast_possible_truncation, reason = "at most 2^31")]
    pub fn start(&mut self, index: u32, entries: u32, may_be_wide: bool) -> bool {
        let len_bytes = u64::from(self.ring.entries()) * STRIDE as u64;
        let next = u64::from(index & (self.ring.entries() - 1)) * STRIDE as u64;
        let last = (len_bytes + STRIDE as u64).saturating_sub(LEN as u64);
        let end = last.min(next + u64::from(entries) * STRIDE as u64);
        (self.next, self.end) = (next as u32, end as u32);
        self.wide_end = if may_be_wide && self.wide.is_some() { self.end } else { 0 };
        self.next < self.end
    }

    /// Ends the line.
    #[inline(always)]
    pub fn stop(&mut self) {
        (self.end, self.wide_end) = (0, 0);
    }

    /// The entries at which the line goes on, `LEN` bytes of them; `None` at its end.
    #[inline(always)]
    #[must_use]
    pub fn next(&self) -> Option<Slot<'_, LEN>> {
        if self.next >= self.end {
            return None;
        }
        // SAFETY: (1) `next` is below `end`, so that `LEN` bytes of the ring follow it (`start`);
        // (2) it is a multiple of the stride, to which the ring's entries are aligned; (3) the
        // ring, borrowed with the line, keeps its buffer.
        Some(unsafe { self.ring.slot_at(self.next) })
    }

    /// The same, for wide stores; `None` also where the processor has none.
    #[inline(always)]
    #[must_use]
    pub fn next_wide(&self) -> Option<(Slot<'_, LEN>, WideStores)> {
        if self.next >= self.wide_end {
            return None;
        }
        // SAFETY: as in `next`: `wide_end` is `end`, or 0. It is 0 unless the processor was asked
        // when the line was made, and has wide stores (`start`).
        Some(unsafe { (self.ring.slot_at(self.next), WideStores::known()) })
    }

    /// Goes on behind so many entries.
    #[inline(always)]
    pub fn advance(&mut self, entries: u32) {
        self.next = self.next.wrapping_add(entries.wrapping_mul(Self::STRIDE32));
    }
}
