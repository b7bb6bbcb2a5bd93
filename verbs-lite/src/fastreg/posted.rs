//! [`Posted`]: keys whose requests the device has not carried out yet.
//!
//! A request names a key by its number alone. If a key were destroyed while its registration
//! stands in a ring, the next key that is made could have its number, and the request would bind
//! that one: to a packet that somebody borrows by then. So what a registration or a binding names
//! is kept until its request has ended, whatever becomes of the key's owner.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::error::lock;

/// Where a request was posted that changes a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Origin {
    /// Which queue pair: a number that no other one ever has.
    pub(crate) queue: u64,
    /// Position of the request in its send queue.
    pub(crate) position: u64,
}

/// What is kept until a request has ended; dropping it ends the key.
type Hold = Box<dyn Debug + Send>;

/// How far the changes of keys have come that were posted to a send queue.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Position behind the last one that has ended.
    ended: AtomicU64,
    /// Somebody was kept.
    has_kept: AtomicBool,
    kept: Mutex<Vec<(u64, Hold)>>,
}

impl Changes {
    /// Notes that everything before a position has ended. What somebody is just about to keep may
    /// not be seen yet: it goes with the next request that ends, or with the queue.
    #[inline(always)]
    pub(crate) fn end(&self, position: u64) {
        self.ended.store(position, Ordering::Release);
        if self.has_kept.load(Ordering::Relaxed) {
            self.release();
        }
    }

    #[cold]
    #[inline(never)]
    fn release(&self) {
        let mut kept = lock(&self.kept);
        let ended = self.ended.load(Ordering::Acquire);
        let (gone, left) = kept.drain(..).partition(|(position, _)| *position < ended);
        *kept = left;
        self.has_kept.store(!kept.is_empty(), Ordering::Relaxed);
        drop(kept);
        // Commands to the device, and what waits for the lock may be another key of the queue.
        drop::<Vec<_>>(gone);
    }

    fn is_posted(&self, position: u64) -> bool {
        position >= self.ended.load(Ordering::Acquire)
    }
}

/// The send queues of a device that change keys, by numbers that no other ones ever have.
#[derive(Debug, Default)]
pub(crate) struct Posted {
    queues: Mutex<HashMap<u64, Arc<Changes>>>,
}

impl Posted {
    /// A queue was made.
    pub(crate) fn made(&self, queue: u64) -> Arc<Changes> {
        Arc::clone(lock(&self.queues).entry(queue).or_default())
    }

    /// The device has let go of a queue: nothing is posted there any more.
    pub(crate) fn gone(&self, queue: u64) {
        let changes = lock(&self.queues).remove(&queue);
        if let Some(changes) = changes {
            changes.end(u64::MAX);
            // Whoever came in between.
            changes.release();
        }
    }

    /// Whether a request has not ended.
    pub(super) fn is_posted(&self, Origin { queue, position }: Origin) -> bool {
        let changes = lock(&self.queues).get(&queue).cloned();
        changes.is_some_and(|changes| changes.is_posted(position))
    }

    /// Drops what a key held, once its request has ended.
    pub(super) fn keep<H: Debug + Send + 'static>(
        &self,
        Origin { queue, position }: Origin,
        hold: H,
    ) {
        let changes = lock(&self.queues).get(&queue).cloned();
        let Some(changes) = changes else { return };
        let mut kept = lock(&changes.kept);
        if changes.is_posted(position) {
            kept.push((position, Box::new(hold)));
            changes.has_kept.store(true, Ordering::Relaxed);
        }
    }
}
