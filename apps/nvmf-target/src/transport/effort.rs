//! [`Effort`]: bytes that a core changes or compares itself, which take it their time while all
//! others wait.
//!
//! In a round it begins with no more when it had [`ROUND`] bytes: Write Zeroes to memory stand in
//! line then as commands do that wait for room, and queues take turns. What needs a buffer is
//! bounded by those; behind a round with either the clock is looked at, however few rounds it has
//! been.

use ferrocx::verbs::Buf;

use super::NO_DATA;
use super::session::Slot;
use super::trouble::{medium_error, same};
use crate::backend::{self, Backend};
use crate::controller::io::{IoCommand, Kind};
use crate::proto::sqe::SQE_BYTES;
use crate::proto::status::Status;

/// Bytes of a round, and those of one command more: some 50 us, and some 180 us for the largest.
const ROUND: u64 = 256 << 10;

/// What a core has done itself in a round.
#[derive(Debug, Default)]
pub(super) struct Effort {
    spent: u64,
    /// Somebody waits for the next round: who comes now stands behind.
    pub(super) is_wanted: bool,
}

impl Effort {
    /// Another round begins; whether the one before has taken its time.
    #[inline(always)]
    pub(super) fn begin_round(&mut self) -> bool {
        self.spent > 0 && std::mem::take(&mut self.spent) >= ROUND
    }

    /// Whether a command may be begun in this round whose bytes no buffer bounds. One that may not
    /// waits, and asks again.
    pub(super) fn has_time(&mut self) -> bool {
        let has_time = !self.is_wanted && self.spent < ROUND;
        self.is_wanted |= !has_time;
        has_time
    }

    /// Counts bytes that the core changes or compares.
    pub(super) fn spend(&mut self, len: u64) {
        self.spent += len;
    }
}

/// Compares what has come with memory.
pub(super) fn compare(command: &IoCommand, store: &Backend, given: &Buf) -> Result<(), Status> {
    let stored = store.direct(command.offset, command.len).map_err(|_| Status::READ_ERROR)?;
    same(backend::is_same(given, 0, &stored, command.len as usize))
}

/// Makes memory zero.
pub(super) fn zero(store: &Backend, offset: u64, len: u64) -> Result<(), Status> {
    let mut piece = store.direct(offset, len).map_err(|_| Status::WRITE_FAULT)?;
    backend::zero(&mut piece, 0, len as usize).map_err(|_| NO_DATA)
}

/// A Write or a Compare whose data came in its capsule.
pub(super) fn in_capsule(it: &Slot, store: &Backend, start: usize) -> Result<(), Status> {
    let command = &it.command;
    let len = command.len as usize;
    let stored = store.direct(command.offset, command.len);
    let mut stored = stored.map_err(|_| medium_error(command.kind))?;
    let given = it.recv.as_ref().ok_or(NO_DATA)?;
    let at = SQE_BYTES + start;
    if command.kind == Kind::Compare {
        return same(backend::is_same(given, at, &stored, len));
    }
    stored.copy_from(0, given, at, len).map_err(|_| NO_DATA)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_takes_on_so_much_and_who_waits_comes_first_in_the_next() {
        let mut effort = Effort::default();
        assert!(!effort.begin_round());
        effort.spend(ROUND - 1);
        assert!(effort.has_time(), "the last may be a large one");
        effort.spend(1 << 20);
        assert!(!effort.has_time());
        assert!(effort.begin_round(), "the clock is due");
        assert!(!effort.has_time(), "others stand before it");
        // What those who wait do when their turn comes.
        effort.is_wanted = false;
        assert!(effort.has_time());
        effort.spend(1);
        assert!(!effort.begin_round());
    }
}
