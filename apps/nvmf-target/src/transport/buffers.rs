//! [`Buffers`]: memory for data that do not go straight to a back end.

use ferrocx::verbs::{Buf, Mr};

use super::session::{Slot, State};

/// Buffers of the largest transfer, by number.
#[derive(Debug)]
pub(super) struct Buffers {
    mr: Mr,
    each: usize,
    free: Vec<u16>,
    count: u16,
    /// Of these, those that a drive may reach that nobody can stop: they are never used again.
    lost: u16,
}

impl Buffers {
    /// Cuts a region into `count` buffers.
    pub(super) fn new(mr: Mr, each: usize, count: u16) -> Self {
        Self { mr, each, free: (0..count).collect(), count, lost: 0 }
    }

    /// Buffers that no command holds.
    pub(super) fn count_free(&self) -> usize {
        self.free.len()
    }

    /// Buffers that are lost to drives.
    pub(super) fn count_lost(&self) -> u16 {
        self.lost
    }

    /// Whether there will be one.
    pub(super) fn is_there_any(&self) -> bool {
        self.lost < self.count
    }

    /// Bytes of a buffer.
    pub(super) fn each_bytes(&self) -> usize {
        self.each
    }

    /// A buffer, cut to `len` bytes, and its number.
    pub(super) fn take(&mut self, len: usize) -> Option<(u16, Buf)> {
        let index = self.free.pop()?;
        match self.piece(index, len) {
            Some(piece) => Some((index, piece)),
            None => {
                self.free.push(index);
                None
            }
        }
    }

    pub(super) fn piece(&self, index: u16, len: usize) -> Option<Buf> {
        let start = usize::from(index) * self.each;
        self.mr.buf(start..start + len.min(self.each)).ok()
    }

    /// A part of a buffer; `None` beyond it.
    pub(super) fn part(&self, index: u16, at: usize, len: usize) -> Option<Buf> {
        let start = usize::from(index) * self.each + at;
        let is_inside = at.checked_add(len)? <= self.each;
        self.mr.buf(start..start + len).ok().filter(|_| is_inside)
    }

    /// Takes a buffer back.
    pub(super) fn free(&mut self, index: u16) {
        self.free.push(index);
    }

    /// Gives the buffer of a command up that its drive may still reach. The other one of a Compare,
    /// which the drive never knew, is free.
    #[cold]
    pub(super) fn lose(&mut self, it: &mut Slot) {
        if let State::Storing(index, other) = it.state {
            self.free.extend(other.map(|_| index));
            self.lost += 1;
        }
        it.state = State::Reading(None);
    }

    /// Takes the buffers of a command back, if it has any.
    pub(super) fn give_back(&mut self, it: &mut Slot) {
        match it.state {
            State::Reading(Some(index)) => self.free.push(index),
            State::Storing(index, other) => {
                self.free.push(index);
                self.free.extend(other);
            }
            State::Reading(None) | State::Calling | State::Settling => {}
            State::Free | State::Waiting | State::PutOff | State::Held => return,
        }
        it.state = State::Reading(None);
    }
}
