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
    /// By buffer: the number of the host that holds it, or held it last.
    holder: Vec<u16>,
    /// By host: how many it holds.
    held: Vec<u16>,
    /// Hosts are not alone: each may hold no more than a share.
    pub(super) is_shared: bool,
}

impl Buffers {
    /// Cuts a region into `count` buffers, for hosts with numbers below `hosts`.
    pub(super) fn new(mr: Mr, each: usize, count: u16, hosts: usize) -> Self {
        Self {
            mr,
            each,
            free: (0..count).collect(),
            count,
            lost: 0,
            holder: vec![0; count.into()],
            held: vec![0; hosts],
            is_shared: false,
        }
    }

    /// Buffers that one of several hosts may hold: three quarters, so that one that lets its
    /// commands hang does not hold up the others. A Compare needs two.
    fn share(&self) -> u16 {
        (self.count - (self.count / 4).max(1)).max(2)
    }

    fn put_back(&mut self, index: u16) {
        self.not_held(index);
        self.free.push(index);
    }

    fn not_held(&mut self, index: u16) {
        let holder = self.holder.get(usize::from(index)).copied().unwrap_or(0);
        if let Some(held) = self.held.get_mut(usize::from(holder)) {
            *held = held.saturating_sub(1);
        }
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

    /// A buffer for a host, cut to `len` bytes, and its number; `None` also for one that has its
    /// share.
    pub(super) fn take(&mut self, len: usize, host: u16) -> Option<(u16, Buf)> {
        let share = self.share();
        let held = self.held.get_mut(usize::from(host))?;
        if self.is_shared && *held >= share {
            return None;
        }
        let index = self.free.pop()?;
        (*held, self.holder[usize::from(index)]) = (*held + 1, host);
        let piece = self.piece(index, len);
        if piece.is_none() {
            self.put_back(index);
        }
        Some((index, piece?))
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
            self.not_held(other.unwrap_or(index));
            self.lost += 1;
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
