//! [`Share`]: room in a completion queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::context::ContextCore;
use crate::cq::{Cq, CqCore};
use crate::error::VerbsError;

/// Entries of a completion queue that a queue pair may fill at the same time.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) cq: Arc<CqCore>,
    entries: u32,
    left: u32,
    /// Entries that it was promised and has not.
    lacks: u32,
}

impl Share {
    /// No entries of a queue, which stays.
    pub(crate) fn empty(cq: &Arc<CqCore>) -> Self {
        Self { cq: Arc::clone(cq), entries: 0, left: 0, lacks: 0 }
    }

    /// Gives `entries` fewer back, for good: the device may write to them as long as it lives.
    pub(crate) fn keep(&mut self, entries: u32) {
        self.entries = self.entries.saturating_sub(entries);
    }

    /// Gives so many entries back later, when nothing stands in them: the device writes no more
    /// completions of who had them, but nobody may have taken those that it has written.
    pub(crate) fn leave(&mut self, entries: u32) {
        self.left = entries.min(self.entries);
        self.entries -= self.left;
    }

    /// Completions in so many of its entries, of those of `cq`, are nobody's: they are free when
    /// nothing stands there. Until then it has others, if there are.
    pub(crate) fn struck(&mut self, entries: u32, cq: &Cq) {
        if self.cq.free.is_some() {
            let lost = entries.min(self.entries);
            self.entries -= lost;
            self.lacks += lost;
            self.cq.left.fetch_add(lost, Ordering::AcqRel);
        }
        // Whoever needs them says if there are too few.
        let _ = self.refill(Some(cq));
    }

    /// Has as many entries again as it was promised. The queue, if it is there, is asked which are
    /// free.
    pub(crate) fn refill(&mut self, cq: Option<&Cq>) -> Result<(), VerbsError> {
        self.cq.promise(self.lacks, cq)?;
        self.entries += std::mem::take(&mut self.lacks);
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some(free) = &self.cq.free {
            free.fetch_add(self.entries, Ordering::AcqRel);
            self.cq.left.fetch_add(self.left, Ordering::AcqRel);
        }
    }
}

impl Cq {
    /// Promises room to a queue pair.
    pub(crate) fn reserve(
        &self,
        core: &Arc<ContextCore>,
        entries: u32,
    ) -> Result<Share, VerbsError> {
        let inner = self.core();
        if !Arc::ptr_eq(core, &inner.core) {
            return Err(VerbsError::OtherDevice { what: "the completion queue" });
        }
        inner.promise(entries, Some(self))?;
        Ok(Share { cq: inner, entries, left: 0, lacks: 0 })
    }

    /// Frees entries of queue pairs that are gone, but for as many as still hold a completion.
    pub(crate) fn take_back(&self) {
        let inner = self.core();
        let Some(free) = &inner.free else { return };
        // Before what stands is counted: completions of these were written by then.
        let left = inner.left.swap(0, Ordering::AcqRel);
        let full = left.min(self.standing());
        inner.left.fetch_add(full, Ordering::AcqRel);
        free.fetch_add(left - full, Ordering::AcqRel);
    }
}

impl CqCore {
    /// Promises entries. If there are too few, `cq`, its queue, looks for more.
    fn promise(&self, entries: u32, cq: Option<&Cq>) -> Result<(), VerbsError> {
        let Some(free) = &self.free else { return Ok(()) };
        let take = || {
            let take = |free: u32| free.checked_sub(entries);
            free.fetch_update(Ordering::AcqRel, Ordering::Acquire, take)
        };
        let taken = take().or_else(|_| {
            cq.iter().for_each(|cq| cq.take_back());
            take()
        });
        taken.map(drop).map_err(|free| VerbsError::CqTooSmall { need: entries, free })
    }
}
