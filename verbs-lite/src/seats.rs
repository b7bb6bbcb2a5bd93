//! Entries of a channel's event queue, one for each completion queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::VerbsError;

/// Completion queues that may report to one channel at a time.
pub(crate) const MAX_QUEUES: u32 = 1024;

/// Completion queues that may have an entry in an event queue.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    taken: AtomicU32,
    /// Those of queues that are gone; an event of theirs may still wait.
    left: AtomicU32,
}

/// The entry of a completion queue in the event queue of its channel.
#[derive(Debug)]
pub(crate) struct Seat(Arc<Seats>);

impl Seats {
    /// Makes sure that there is room for the events of one more completion queue.
    pub(crate) fn take(this: &Arc<Self>) -> Result<Seat, VerbsError> {
        let one_more = |taken| (taken < MAX_QUEUES).then_some(taken + 1);
        match this.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more) {
            Ok(_) => Ok(Seat(Arc::clone(this))),
            Err(_) => Err(VerbsError::ChannelFull { max: MAX_QUEUES }),
        }
    }

    /// Entries whose queues are gone.
    pub(crate) fn left(&self) -> u32 {
        self.left.load(Ordering::Acquire)
    }

    /// So many of them hold no event any more.
    pub(crate) fn clear(&self, left: u32) {
        self.left.fetch_sub(left, Ordering::AcqRel);
        self.taken.fetch_sub(left, Ordering::AcqRel);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.left.fetch_add(1, Ordering::Release);
    }
}
