//! What a memory key leads to: I/O addresses, pages, or pieces of other keys.
//!
//! Source: reference 5.1, `access_mode`.

use super::access::{MemAccess, MkeyFault, Rights};

/// A run of I/O addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First address.
    pub iova: u64,
    /// Bytes.
    pub len: u32,
}

/// A place in another key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Key of the memory.
    pub key: u32,
    /// Address in the space of that key.
    pub va: u64,
}

/// Pieces of other keys, of any lengths, one behind the other.
///
/// A piece is found by its offset in as many steps as the number of pieces has bits, and changed in
/// as many: a guest chooses the offset, the number and the order in which it changes them.
#[derive(Debug, Default)]
pub struct KlmList {
    pieces: Vec<(u64, Place)>,
    /// A tree of partial sums of the lengths (Fenwick): entry `n - 1` has the sum of the
    /// `n & n.wrapping_neg()` pieces that end with piece `n - 1`.
    sums: Vec<u64>,
}

impl KlmList {
    /// Bytes of memory for each piece.
    pub(crate) const PIECE_BYTES: usize = size_of::<(u64, Place)>() + size_of::<u64>();

    /// Pieces with their lengths in bytes, in their order.
    #[must_use]
    pub fn new(pieces: impl Iterator<Item = (u64, Place)>) -> Self {
        let mut list = Self::default();
        let room = pieces.size_hint().0;
        list.reserve(room);
        pieces.for_each(|(len, place)| list.push(len, place));
        list
    }

    fn reserve(&mut self, more: usize) -> bool {
        self.pieces.try_reserve_exact(more).is_ok() && self.sums.try_reserve_exact(more).is_ok()
    }

    fn push(&mut self, len: u64, place: Place) {
        let number = self.pieces.len() + 1;
        self.pieces.push((len, place));
        let (mut sum, mut below) = (len, number - 1);
        let first = number - (number & number.wrapping_neg());
        while below > first {
            sum += self.sums[below - 1];
            below &= below - 1;
        }
        self.sums.push(sum);
    }

    fn set(&mut self, index: usize, len: u64, place: Place) {
        let old = std::mem::replace(&mut self.pieces[index], (len, place)).0;
        let more = len.wrapping_sub(old);
        let mut number = index + 1;
        while more != 0 && number <= self.sums.len() {
            self.sums[number - 1] = self.sums[number - 1].wrapping_add(more);
            number += number & number.wrapping_neg();
        }
    }

    /// The piece in which an offset lies and the offset of that piece, searched for from `near` on
    /// if it is not far; and the steps that it took.
    #[inline]
    fn find(&self, offset: u64, near: (usize, u64)) -> (Option<(usize, u64)>, u64) {
        /// Pieces that are tried one by one.
        const NEAR: u64 = 4;
        let (mut index, mut start) = near;
        if start <= offset {
            for step in 1..=NEAR {
                let Some((len, _)) = self.pieces.get(index) else { return (None, step) };
                if offset - start < *len {
                    return (Some((index, start)), step);
                }
                (index, start) = (index + 1, start + len);
            }
        }
        let (found, steps) = self.search(offset);
        (found, NEAR + steps)
    }

    fn search(&self, offset: u64) -> (Option<(usize, u64)>, u64) {
        let count = self.sums.len();
        let levels = usize::BITS - count.leading_zeros();
        let (mut number, mut start) = (0_usize, 0);
        for level in (0..levels).rev() {
            let next = number | 1 << level;
            if let Some(sum) = self.sums.get(next - 1)
                && *sum <= offset - start
            {
                (number, start) = (next, start + sum);
            }
        }
        ((number < count).then_some((number, start)), levels.into())
    }
}

/// Translation of a key's addresses into I/O addresses.
#[derive(Debug)]
pub enum Translation {
    /// Addresses are I/O addresses.
    Pa,
    /// Pages of equal size.
    Mtt {
        /// Page addresses; with `pg_access`, bit 1 permits writes and bit 0 reads.
        pages: Vec<u64>,
        /// Log2 of the page size.
        log_page_size: u32,
        /// The low bits of `pages` count.
        pg_access: bool,
    },
    /// Pieces of other keys (KLM).
    Klm(KlmList),
    /// Pieces of equal length of other keys (KSM).
    Ksm {
        /// The pieces.
        pieces: Vec<Place>,
        /// Log2 of the length of each.
        log_entity_size: u32,
    },
    /// Memory of the device, in one piece.
    Memic {
        /// I/O address of its first byte, by which only the device has it.
        iova: u64,
    },
}

/// Target of an address of a key: memory, or another key.
pub(super) enum Step {
    Memory(Span),
    Key { at: Place, len: u32 },
}

/// What a walk wants to know of the key at the bottom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    /// The first run of addresses.
    Run,
    /// How much of the access it permits, in one piece; the address does not count.
    Extent,
}

impl Translation {
    /// Entries that it has now.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Pa | Self::Memic { .. } => 0,
            Self::Mtt { pages, .. } => pages.len(),
            Self::Klm(list) => list.pieces.len(),
            Self::Ksm { pieces, .. } => pieces.len(),
        }
    }

    /// Entries that it has room for.
    pub(crate) fn capacity(&self) -> usize {
        match self {
            Self::Pa | Self::Memic { .. } => 0,
            Self::Mtt { pages, .. } => pages.capacity(),
            Self::Klm(list) => list.pieces.capacity(),
            Self::Ksm { pieces, .. } => pieces.capacity(),
        }
    }

    /// Bytes of memory for each entry.
    pub(crate) fn entry_bytes(&self) -> usize {
        match self {
            Self::Pa | Self::Memic { .. } => 0,
            Self::Mtt { .. } => size_of::<u64>(),
            Self::Klm(_) => KlmList::PIECE_BYTES,
            Self::Ksm { .. } => size_of::<Place>(),
        }
    }

    /// Makes room for exactly `more` entries behind those that are there; whether there is.
    pub(crate) fn reserve(&mut self, more: usize) -> bool {
        match self {
            Self::Pa | Self::Memic { .. } => true,
            Self::Mtt { pages, .. } => pages.try_reserve_exact(more).is_ok(),
            Self::Klm(list) => list.reserve(more),
            Self::Ksm { pieces, .. } => pieces.try_reserve_exact(more).is_ok(),
        }
    }

    /// Replaces entries from the offset on, each with its length and its place: the length of a
    /// KSM's piece, and the key of a page, do not count. Entries that were never set lead nowhere.
    pub(crate) fn replace(&mut self, at: usize, new: impl Iterator<Item = (u64, Place)>) {
        const NOWHERE: Place = Place { key: 0, va: 0 };
        for (index, (len, place)) in (at..).zip(new) {
            match self {
                Self::Pa | Self::Memic { .. } => {}
                Self::Mtt { pages, .. } => set(pages, index, place.va, 0),
                Self::Ksm { pieces, .. } => set(pieces, index, place, NOWHERE),
                Self::Klm(list) => {
                    while list.pieces.len() <= index {
                        list.push(0, NOWHERE);
                    }
                    list.set(index, len, place);
                }
            }
        }
    }

    /// Whether one of the pieces lies in memory of a key.
    pub fn names(&self, key: u32) -> bool {
        match self {
            Self::Pa | Self::Mtt { .. } | Self::Memic { .. } => false,
            Self::Klm(list) => list.pieces.iter().any(|(_, place)| place.key == key),
            Self::Ksm { pieces, .. } => pieces.iter().any(|place| place.key == key),
        }
    }

    /// Address of an access that lies in one page whose low bits do not count: most accesses.
    #[inline]
    pub(super) fn in_page(&self, start: u64, access: &MemAccess) -> Option<u64> {
        let Self::Mtt { pages, log_page_size, pg_access: false } = self else { return None };
        let mask = (1 << log_page_size) - 1;
        let at = access.addr.wrapping_sub(start).wrapping_add(start & mask);
        let page = pages.get(usize::try_from(at >> log_page_size).ok()?)?;
        let inside = at & mask;
        (inside + u64::from(access.len) <= mask + 1).then_some((page & !7).wrapping_add(inside))
    }

    /// Follows an offset into the key one level down; a list is searched from `near` on.
    ///
    /// Gives the step, the place in the list, and how many entries were looked at.
    #[inline]
    pub(super) fn step(
        &self,
        start: u64,
        access: &MemAccess,
        want: Want,
        near: (usize, u64),
    ) -> (Result<Step, MkeyFault>, (usize, u64), u64) {
        let offset = access.addr.wrapping_sub(start);
        match self {
            Self::Pa => (Ok(Step::Memory(Span { iova: access.addr, len: access.len })), near, 1),
            Self::Mtt { pages, log_page_size, pg_access } => {
                let at = offset.wrapping_add(start & ((1 << log_page_size) - 1));
                let (run, looked_at) = match want {
                    Want::Run => run(pages, *log_page_size, *pg_access, at, access),
                    Want::Extent => extent(pages, *log_page_size, *pg_access, at, access),
                };
                (run.map(Step::Memory), near, looked_at)
            }
            Self::Klm(list) => match list.find(offset, near) {
                (Some(found), steps) => {
                    let ((len, place), inside) = (list.pieces[found.0], offset - found.1);
                    (Ok(piece(place, inside, len, access.len)), found, steps)
                }
                (None, steps) => (Err(MkeyFault::Indirection), near, steps),
            },
            Self::Ksm { pieces, log_entity_size } => {
                let index = usize::try_from(offset >> log_entity_size).unwrap_or(usize::MAX);
                let (len, inside) = (1 << log_entity_size, offset & ((1 << log_entity_size) - 1));
                let place = pieces.get(index).ok_or(MkeyFault::Indirection);
                (place.map(|place| piece(*place, inside, len, access.len)), near, 1)
            }
            Self::Memic { iova } => {
                let span = Span { iova: iova.wrapping_add(offset), len: access.len };
                (Ok(Step::Memory(span)), near, 1)
            }
        }
    }
}

fn set<T: Clone>(list: &mut Vec<T>, index: usize, new: T, none: T) {
    if list.len() <= index {
        list.resize(index + 1, none);
    }
    list[index] = new;
}

fn piece(place: Place, inside: u64, piece_len: u64, len: u32) -> Step {
    let at = Place { va: place.va.wrapping_add(inside), ..place };
    Step::Key { at, len: shorter(len, piece_len - inside) }
}

/// Pages that are one step: they stand in one cache line.
const PAGES_PER_STEP: u64 = 8;

/// The page with the first byte of an access, and those behind it as long as their addresses follow
/// each other and permit it; and the steps it takes to see that.
#[inline]
fn run(
    pages: &[u64],
    log_page_size: u32,
    pg_access: bool,
    at: u64,
    access: &MemAccess,
) -> (Result<Span, MkeyFault>, u64) {
    let index = usize::try_from(at >> log_page_size).unwrap_or(usize::MAX);
    let Some((first, behind)) = pages.get(index..).and_then(<[u64]>::split_first) else {
        return (Err(MkeyFault::Bounds), 1);
    };
    let permits = |page: u64| !pg_access || page_permits(page, access.rights);
    if !permits(*first) {
        return (Err(MkeyFault::Rights), 1);
    }
    let page_bytes = 1_u64 << log_page_size;
    let inside = at & (page_bytes - 1);
    let (mut covered, mut last, mut looked_at) = (page_bytes - inside, *first, 1);
    for page in behind {
        let follows = (page & !7) == (last & !7).wrapping_add(page_bytes);
        if covered >= u64::from(access.len) || !follows || !permits(*page) {
            break;
        }
        (covered, last, looked_at) = (covered + page_bytes, *page, looked_at + 1);
    }
    let iova = (first & !7).wrapping_add(inside);
    let span = Span { iova, len: shorter(access.len, covered) };
    (Ok(span), 1 + looked_at / PAGES_PER_STEP)
}

/// As much of an access as the pages cover, if all of them permit it, and the steps it takes to see
/// that.
fn extent(
    pages: &[u64],
    log_page_size: u32,
    pg_access: bool,
    at: u64,
    access: &MemAccess,
) -> (Result<Span, MkeyFault>, u64) {
    let covered = ((pages.len() as u64) << log_page_size).saturating_sub(at);
    if covered == 0 {
        return (Err(MkeyFault::Bounds), 1);
    }
    let len = shorter(access.len, covered);
    let all = Ok(Span { iova: 0, len });
    if !pg_access {
        return (all, 1);
    }
    let index = |at: u64| usize::try_from(at >> log_page_size).unwrap_or(usize::MAX);
    let touched = &pages[index(at)..=index(at + u64::from(len.max(1)) - 1)];
    let steps = 1 + touched.len() as u64 / PAGES_PER_STEP;
    let permits = touched.iter().all(|page| page_permits(*page, access.rights));
    (if permits { all } else { Err(MkeyFault::Rights) }, steps)
}

/// Whether the low bits of an MTT entry permit an access. Source: reference 5.1.
fn page_permits(page: u64, rights: Rights) -> bool {
    let reads = Rights::LOCAL_READ | Rights::REMOTE_READ;
    let read_ok = page & 1 != 0 || !rights.intersects(reads | Rights::REMOTE_ATOMIC);
    let write_ok = page & 2 != 0 || !rights.intersects(!reads);
    read_ok && write_ok
}

#[inline]
fn shorter(len: u32, bound: u64) -> u32 {
    u32::try_from(bound).map_or(len, |bound| len.min(bound))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn place(va: u64) -> Place {
        Place { key: 7, va }
    }

    proptest! {
        /// Offsets are found as a walk from the first piece finds them, whatever was changed.
        #[test]
        fn a_list_agrees_with_a_walk_from_its_start(
            first in prop::collection::vec(0_u64..4, 0..40),
            changes in prop::collection::vec((0_usize..80, 0_u64..5), 0..20),
            near in 0_usize..50,
        ) {
            let mut list = KlmList::new(first.iter().map(|len| (*len, place(*len))));
            let mut plain = first;
            let mut translation = Translation::Klm(std::mem::take(&mut list));
            for (index, len) in changes {
                translation.replace(index, [(len, place(len))].into_iter());
                plain.resize(plain.len().max(index + 1), 0);
                plain[index] = len;
            }
            let Translation::Klm(list) = translation else { unreachable!() };
            let starts: Vec<u64> = plain
                .iter()
                .scan(0, |sum, len| {
                    *sum += len;
                    Some(*sum - len)
                })
                .collect();
            let near = starts.get(near).map_or((0, 0), |start| (near, *start));
            for offset in 0..=plain.iter().sum::<u64>() {
                let walked = (0..plain.len())
                    .find(|at| (starts[*at]..starts[*at] + plain[*at]).contains(&offset))
                    .map(|at| (at, starts[at]));
                prop_assert_eq!(list.find(offset, near).0, walked, "offset {}", offset);
                prop_assert_eq!(list.search(offset).0, walked, "offset {}", offset);
            }
        }
    }

    #[test]
    fn the_last_of_many_pieces_is_found_in_few_steps() {
        let list = KlmList::new((0..1 << 16).map(|va| (1, place(va))));
        assert_eq!(list.find(65_535, (0, 0)), (Some((65_535, 65_535)), 4 + 17));
        assert_eq!(list.find(65_535, (65_534, 65_534)), (Some((65_535, 65_535)), 2));
        assert_eq!(list.find(65_536, (0, 0)).0, None);
        assert_eq!(KlmList::default().find(0, (0, 0)).0, None);
    }
}
