//! [`Buffers`]: memory for data that do not go straight to a back end.
//!
//! There are two sizes in one region: many small ones, for the short commands of which a file or a
//! drive needs many under way, and a few of the largest transfer. A command takes one of the
//! smallest size that has room for it, and no other: so short ones never wait for long ones, nor
//! long ones for short ones. Shares hold for each size.

use ferrocx::verbs::{Buf, Mr};

use super::session::{Slot, State};

/// Bytes of a small buffer: the smallest largest transfer.
pub(super) const SMALL_BYTES: usize = 8 << 10;

/// Sizes of buffers: the large ones, and the small ones.
const SIZES: usize = 2;

/// Buffers of one size.
#[derive(Debug)]
struct Size {
    /// Bytes of each.
    each: usize,
    /// Where the first lies, and its number.
    start: usize,
    first: u16,
    count: u16,
    /// Numbers of those that no command holds.
    free: Vec<u16>,
    /// Those that a drive may reach that nobody can stop: they are never used again.
    lost: u16,
    /// By host: how many it holds.
    held: Vec<u16>,
}

impl Size {
    fn new(each: usize, (start, first): (usize, u16), count: u16, hosts: usize) -> Self {
        let free = (first..first + count).collect();
        Self { each, start, first, count, free, lost: 0, held: vec![0; hosts] }
    }

    /// Buffers that one of several hosts may hold: three quarters, so that one that lets its
    /// commands hang does not hold up the others. A Compare needs two.
    fn share(&self) -> u16 {
        (self.count - (self.count / 4).max(1)).max(2)
    }

    /// Where a buffer begins.
    fn start_of(&self, index: u16) -> usize {
        self.start + usize::from(index - self.first) * self.each
    }
}

/// Buffers of both sizes, by number.
#[derive(Debug)]
pub(super) struct Buffers {
    mr: Mr,
    sizes: [Size; SIZES],
    /// By buffer: the number of the host that holds it, or held it last.
    holder: Vec<u16>,
    /// Hosts are not alone: each may hold no more than a share of each size.
    pub(super) is_shared: bool,
    /// By size: somebody waits for one, and who comes now stands behind.
    crowded: [bool; SIZES],
}

impl Buffers {
    /// Cuts a region into `large` buffers of `each` bytes and `small` ones of [`SMALL_BYTES`], for
    /// hosts with numbers below `hosts`.
    pub(super) fn new(mr: Mr, each: usize, (large, small): (u16, u16), hosts: usize) -> Self {
        let behind = (usize::from(large) * each, large);
        Self {
            mr,
            sizes: [
                Size::new(each, (0, 0), large, hosts),
                Size::new(SMALL_BYTES, behind, small, hosts),
            ],
            holder: vec![0; usize::from(large) + usize::from(small)],
            is_shared: false,
            crowded: [false; SIZES],
        }
    }

    /// The size for so many bytes.
    fn size_for(len: usize) -> usize {
        usize::from(len <= SMALL_BYTES)
    }

    /// The size of a buffer.
    fn size_of(&self, index: u16) -> usize {
        usize::from(index >= self.sizes[1].first)
    }

    fn put_back(&mut self, index: u16) {
        self.not_held(index);
        let size = self.size_of(index);
        self.sizes[size].free.push(index);
    }

    fn not_held(&mut self, index: u16) {
        let holder = self.holder.get(usize::from(index)).copied().unwrap_or(0);
        let size = self.size_of(index);
        if let Some(held) = self.sizes[size].held.get_mut(usize::from(holder)) {
            *held = held.saturating_sub(1);
        }
    }

    /// Buffers that no command holds, the large ones and the small ones.
    pub(super) fn count_free(&self) -> [usize; SIZES] {
        self.sizes.each_ref().map(|it| it.free.len())
    }

    /// Buffers of both sizes.
    pub(super) fn count(&self) -> usize {
        self.holder.len()
    }

    /// Buffers that commands hold.
    pub(super) fn count_held(&self) -> usize {
        let held = |it: &Size| usize::from(it.count - it.lost) - it.free.len();
        self.sizes.iter().map(held).sum()
    }

    /// Buffers that are lost to drives, and their bytes.
    pub(super) fn count_lost(&self) -> (u64, u64) {
        let lost = self.sizes.each_ref().map(|it| u64::from(it.lost));
        let bytes = self.sizes.iter().map(|it| u64::from(it.lost) * it.each as u64);
        (lost.iter().sum(), bytes.sum())
    }

    /// Whether there will be one for so many bytes.
    pub(super) fn is_there_any(&self, len: usize) -> bool {
        let size = &self.sizes[Self::size_for(len)];
        size.lost < size.count
    }

    /// Bytes of a large buffer.
    pub(super) fn most_bytes(&self) -> usize {
        self.sizes[0].each
    }

    /// Somebody waits for a buffer of so many bytes: who comes now stands behind, unless it waits
    /// because it has its share.
    pub(super) fn crowd(&mut self, len: usize) {
        let size = Self::size_for(len);
        self.crowded[size] |= self.sizes[size].free.is_empty();
    }

    /// Those that wait have their turn.
    pub(super) fn begin_turn(&mut self) {
        self.crowded = [false; SIZES];
    }

    /// A buffer for a host that comes new, or whose turn it is: `None` while others wait for one,
    /// and for one that has its share.
    pub(super) fn take_in_turn(&mut self, len: usize, host: u16) -> Option<(u16, Buf)> {
        if self.crowded[Self::size_for(len)] { None } else { self.take(len, host) }
    }

    /// A buffer for a host, cut to `len` bytes, and its number; `None` also for one that has its
    /// share.
    pub(super) fn take(&mut self, len: usize, host: u16) -> Option<(u16, Buf)> {
        let size = &mut self.sizes[Self::size_for(len)];
        let share = size.share();
        let held = size.held.get_mut(usize::from(host))?;
        if self.is_shared && *held >= share {
            return None;
        }
        let index = size.free.pop()?;
        (*held, self.holder[usize::from(index)]) = (*held + 1, host);
        let piece = self.piece(index, len);
        if piece.is_none() {
            self.put_back(index);
        }
        Some((index, piece?))
    }

    pub(super) fn piece(&self, index: u16, len: usize) -> Option<Buf> {
        let size = &self.sizes[self.size_of(index)];
        let start = size.start_of(index);
        self.mr.buf(start..start + len.min(size.each)).ok()
    }

    /// A part of a buffer; `None` beyond it.
    pub(super) fn part(&self, index: u16, at: usize, len: usize) -> Option<Buf> {
        let size = &self.sizes[self.size_of(index)];
        let start = size.start_of(index) + at;
        let is_inside = at.checked_add(len)? <= size.each;
        self.mr.buf(start..start + len).ok().filter(|_| is_inside)
    }

    /// Takes a buffer back.
    pub(super) fn free(&mut self, index: u16) {
        self.put_back(index);
    }

    /// Gives the buffer of a command up that its drive may still reach. The other one of a Compare,
    /// which the drive never knew, is free.
    #[cold]
    pub(super) fn lose(&mut self, it: &mut Slot) {
        if let State::Storing(index, other) = it.state {
            if other.is_some() {
                self.put_back(index);
            }
            let lost = other.unwrap_or(index);
            self.not_held(lost);
            let size = self.size_of(lost);
            self.sizes[size].lost += 1;
        }
        it.state = State::Reading(None);
    }

    /// Takes the buffers of a command back, if it has any.
    pub(super) fn give_back(&mut self, it: &mut Slot) {
        match it.state {
            State::Reading(Some(index)) => self.put_back(index),
            State::Storing(index, other) => {
                self.put_back(index);
                if let Some(other) = other {
                    self.put_back(other);
                }
            }
            State::Reading(None) | State::Calling | State::Settling => {}
            State::Free | State::Waiting | State::PutOff | State::Held => return,
        }
        it.state = State::Reading(None);
    }
}
