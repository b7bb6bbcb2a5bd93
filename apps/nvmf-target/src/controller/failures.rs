//! [`Failures`]: I/O commands that failed, until the controller hears of them.

use std::collections::VecDeque;

use crate::proto::identify::ERROR_ENTRIES;
use crate::proto::log::ErrorEntry;
use crate::proto::sqe::Sqe;
use crate::proto::status::Status;

/// I/O commands of a queue that failed since its core has told its controller last.
#[derive(Debug)]
pub(super) struct Failures {
    /// The newest, as many as a log has: the oldest first. Their numbers are the controller's to
    /// give.
    pub(super) list: VecDeque<ErrorEntry>,
    /// How many there were before these.
    pub(super) older: u64,
    /// How many of all were errors of the medium.
    pub(super) of_medium: u64,
}

impl Failures {
    pub(super) fn new() -> Self {
        Self { list: VecDeque::with_capacity(ERROR_ENTRIES), older: 0, of_medium: 0 }
    }

    pub(super) fn note(&mut self, sqid: u16, sqe: &Sqe, status: Status) {
        if self.list.len() == ERROR_ENTRIES {
            self.list.pop_front();
            self.older += 1;
        }
        self.of_medium += u64::from(status.is_of_medium());
        self.list.push_back(ErrorEntry::new(sqid, sqe, status));
    }
}
