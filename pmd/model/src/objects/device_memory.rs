//! Memory of the device (MEMIC): the pieces that the driver took, and where the BAR shows them.
//!
//! The driver chooses the place in the BAR, in whole pages, and the device the memory behind it:
//! there is more room in the BAR than memory, so that small pieces, each on pages of its own, do
//! not use the memory up. This device has each piece where its pages are.
//!
//! Source: reference 4.12.

use std::ops::Range;

use ferrocx_prm::init_seg::uar::PAGE_BYTES;

use super::budget::{Budget, Charge, PaidList};
use super::memory::{Pin, is_pinned};

/// A piece that the driver took.
#[derive(Debug)]
pub struct Piece {
    /// Bytes in the BAR that it occupies.
    range: Range<u64>,
    /// Whole pages of the BAR, which show nothing else.
    pages: Range<u64>,
    /// Keys over it have a copy each.
    pin: Pin,
    _paid: Charge,
}

/// All pieces of a function.
#[derive(Debug)]
pub struct DeviceMemory {
    pieces: PaidList<Piece>,
    budget: Budget,
}

/// Why a piece was not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoPiece {
    /// The pages of the BAR show another piece.
    Shown,
    /// The aligned piece does not fit the range of the BAR.
    Fit,
    /// The memory of the device, or of the function, is used up.
    Memory,
}

/// Why a piece was not taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotFreed {
    /// No piece has this place and length.
    Unknown,
    /// A key over it exists.
    Used,
}

impl DeviceMemory {
    /// No pieces; those to come are paid for by `budget`.
    #[must_use]
    pub fn new(budget: &Budget) -> Self {
        Self { pieces: PaidList::new(budget), budget: budget.clone() }
    }

    /// Gives a piece of `len` bytes at the first multiple of `align` in a range of whole pages, of
    /// which no more than `most` bytes are in use then. Gives its place in the BAR, and its pages.
    ///
    /// # Errors
    ///
    /// [`NoPiece`]; nothing has changed then.
    pub(crate) fn alloc(
        &mut self,
        range: &Range<u64>,
        len: u64,
        align: u64,
        most: u64,
    ) -> Result<(u64, Range<u64>), NoPiece> {
        let start = range.start.next_multiple_of(align);
        let end = start.checked_add(len).filter(|end| *end <= range.end).ok_or(NoPiece::Fit)?;
        let pages = start - start % PAGE_BYTES..end.next_multiple_of(PAGE_BYTES);
        let is_shown =
            |piece: &Piece| piece.pages.start < pages.end && pages.start < piece.pages.end;
        if self.pieces.iter().any(is_shown) {
            return Err(NoPiece::Shown);
        }
        if self.used_bytes() + len > most {
            return Err(NoPiece::Memory);
        }
        let paid = self.budget.charge(pages.end - pages.start).map_err(|_| NoPiece::Memory)?;
        let (range, pin) = (start..end, Pin::default());
        let piece = Piece { range, pages: pages.clone(), pin, _paid: paid };
        self.pieces.push(piece).map_err(|_| NoPiece::Memory)?;
        Ok((start, pages))
    }

    /// Takes a piece back; gives the pages that showed it.
    ///
    /// # Errors
    ///
    /// [`NotFreed`]; nothing has changed then.
    pub(crate) fn free(&mut self, range: &Range<u64>) -> Result<Range<u64>, NotFreed> {
        let piece = self.pieces.iter().find(|piece| piece.range == *range);
        let piece = piece.ok_or(NotFreed::Unknown)?;
        if is_pinned(&piece.pin) {
            return Err(NotFreed::Used);
        }
        let pages = piece.pages.clone();
        self.pieces.retain(|piece| piece.range != *range);
        Ok(pages)
    }

    /// Keeps the piece in which a range lies: for a key over it.
    pub(crate) fn pin(&self, range: &Range<u64>) -> Option<Pin> {
        let holds =
            |piece: &&Piece| piece.range.start <= range.start && range.end <= piece.range.end;
        self.pieces.iter().find(holds).map(|piece| piece.pin.clone())
    }

    /// Pages of the BAR that show pieces.
    pub(crate) fn pages(&self) -> impl Iterator<Item = Range<u64>> {
        self.pieces.iter().map(|piece| piece.pages.clone())
    }

    /// Bytes of all pieces.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.range.end - piece.range.start).sum()
    }

    /// Number of pieces.
    #[must_use]
    pub fn len(&self) -> u32 {
        u32::try_from(self.pieces.len()).unwrap_or(u32::MAX)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::budget::SET_ASIDE_BYTES;
    use super::*;

    const MOST: u64 = 0x3000;

    fn memory(budget_bytes: u64) -> (DeviceMemory, Budget) {
        let budget = Budget::new(SET_ASIDE_BYTES + budget_bytes);
        (DeviceMemory::new(&budget), budget)
    }

    #[test]
    fn pieces_have_pages_of_their_own_and_are_paid_for_by_the_page() {
        let (mut memory, budget) = memory(1 << 20);
        assert_eq!(memory.alloc(&(0x1000..0x2000), 0x40, 0x40, MOST), Ok((0x1000, 0x1000..0x2000)));
        let listed = budget.used_bytes() - SET_ASIDE_BYTES - 0x1000;
        assert_eq!(memory.alloc(&(0x1000..0x4000), 0x40, 0x40, MOST), Err(NoPiece::Shown));
        assert_eq!(memory.alloc(&(0x0..0x2000), 0x1040, 0x40, MOST), Err(NoPiece::Shown));
        let two = memory.alloc(&(0x2000..0x4000), 0x1040, 0x40, MOST);
        assert_eq!(two, Ok((0x2000, 0x2000..0x4000)));
        assert_eq!(budget.used_bytes() - SET_ASIDE_BYTES - listed, 0x3000);
        assert_eq!((memory.len(), memory.used_bytes()), (2, 0x1080));
        assert_eq!(memory.free(&(0x1000..0x1080)), Err(NotFreed::Unknown));
        assert_eq!(memory.free(&(0x1000..0x1040)), Ok(0x1000..0x2000));
        assert_eq!(memory.free(&(0x1000..0x1040)), Err(NotFreed::Unknown));
        assert_eq!(budget.used_bytes() - SET_ASIDE_BYTES - listed, 0x2000);
        drop(memory);
        assert_eq!(budget.used_bytes(), SET_ASIDE_BYTES);
    }

    #[test]
    fn alignment_and_limits_are_kept() {
        let (mut memory, budget) = memory(0x4000);
        assert_eq!(
            memory.alloc(&(0x1000..0x3000), 0x40, 0x2000, MOST),
            Ok((0x2000, 0x2000..0x3000))
        );
        assert_eq!(memory.alloc(&(0x3000..0x4000), 0x40, 0x2000, MOST), Err(NoPiece::Fit));
        assert_eq!(memory.alloc(&(0x3000..0x4000), 0x1040, 0x40, MOST), Err(NoPiece::Fit));
        let whole = 0x4000..0x1_0000;
        assert_eq!(memory.alloc(&whole, MOST, 0x40, MOST), Err(NoPiece::Memory));
        let used = budget.used_bytes();
        assert_eq!(memory.alloc(&whole, u64::MAX, 0x40, u64::MAX), Err(NoPiece::Fit));
        assert_eq!(
            memory.alloc(&whole, 0x4000, 0x40, u64::MAX),
            Err(NoPiece::Memory),
            "the budget"
        );
        assert_eq!((budget.used_bytes(), memory.len()), (used, 1));
    }

    #[test]
    fn a_piece_stays_while_a_key_over_it_lives() {
        let (mut memory, _budget) = memory(1 << 20);
        memory.alloc(&(0x1000..0x2000), 0x80, 0x40, MOST).expect("room");
        for outside in [0xfff..0x1000, 0x1000..0x1081, 0x1080..0x1081, 0x2000..0x2000] {
            assert!(memory.pin(&outside).is_none(), "{outside:x?}");
        }
        let pin = memory.pin(&(0x1040..0x1080)).expect("inside");
        assert_eq!(memory.free(&(0x1000..0x1080)), Err(NotFreed::Used));
        drop(pin);
        assert_eq!(memory.free(&(0x1000..0x1080)), Ok(0x1000..0x2000));
        assert!(memory.is_empty());
    }
}
