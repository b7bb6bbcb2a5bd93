//! Completions that are taken where they stand.

use ferrocx_bus::Slot;
use ferrocx_prm::cqe::Cqe64;

use crate::cq::{Completion, Cq, Head, user_index_of};
use crate::era::Stamps;

impl Cq {
    /// The completions that there are, one after the other, for whoever ends most of them without
    /// a closer look: see [`Qp::complete_sent`](crate::Qp::complete_sent). The device is told once
    /// that their entries are free, when the value is dropped: until then those that it has given
    /// count as full, so drop it before posting what needs their room.
    #[inline(always)]
    pub fn taking(&mut self) -> Taking<'_> {
        Taking { start: self.ring.consumer_index(), cq: self }
    }

    /// Tells the device that the entries are free which were taken, and of which it was to be told
    /// [later](Taking::later).
    #[inline(always)]
    pub fn free_taken(&self) {
        self.ring.tell();
    }
}

/// What [`Cq::taking`] gives: the completions of a queue, one after the other.
#[derive(Debug)]
pub struct Taking<'a> {
    cq: &'a mut Cq,
    /// Where it began.
    start: u32,
}

impl Taking<'_> {
    /// The next completion, if there is one.
    #[inline(always)]
    #[expect(clippy::should_implement_trait, reason = "what it gives borrows from it")]
    pub fn next(&mut self) -> Option<CqEntry<'_>> {
        let Cq { ring, inner, .. } = &mut *self.cq;
        let (slot, last) = ring.take()?;
        Some(CqEntry { slot, last, stamps: &inner.stamps })
    }

    /// Leaves the device untold, for whoever takes few completions at a time: tell it by
    /// [`Cq::free_taken`].
    #[inline(always)]
    pub fn later(self) {
        std::mem::forget(self);
    }
}

impl Drop for Taking<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.cq.ring.consumer_index() == self.start {
            self.cq.idle();
        } else {
            self.cq.ring.tell();
        }
    }
}

/// A completion that still stands in its queue, of which no more is read than somebody asks for.
#[derive(Debug)]
#[must_use = "the queue pair does not know of it yet"]
pub struct CqEntry<'a> {
    slot: Slot<'a, 64>,
    last: u32,
    stamps: &'a Stamps,
}

impl CqEntry<'_> {
    /// The completion.
    #[inline(always)]
    pub fn read(self) -> Completion {
        self.words()
    }

    /// The [`QpConfig::user_index`](crate::QpConfig::user_index) of its queue pair.
    #[inline(always)]
    #[must_use]
    pub fn user_index(&self) -> u32 {
        user_index_of(&self.slot)
    }

    /// When it was made, in ticks of the device's clock: [`Clock`](ferrocx_core::Clock) makes
    /// nanoseconds of them.
    #[inline(always)]
    #[must_use]
    pub fn ticks(&self) -> u64 {
        Completion::time_of(&self.slot)
    }

    /// What it says, for a look.
    #[inline(always)]
    pub(crate) fn words(&self) -> Completion {
        Completion::read(&self.slot, self.last, self.stamps)
    }

    /// Counter of the request and bytes that arrived, of one that ended sends of a queue pair
    /// without error, whose completions have a number.
    #[inline(always)]
    pub(crate) fn sends_of(&self, number: u64) -> Option<(u16, u32)> {
        let head = Head { last: self.last, error_be: 0 };
        let qpn = self.slot.load_raw32::<{ Cqe64::SOP_DROP_QPN.offset }>();
        let is_theirs = head.is_requester() && self.stamps.number(qpn) == number;
        let bytes = || self.slot.load_be32::<{ Cqe64::BYTE_CNT.offset }>();
        is_theirs.then(|| (head.wqe_counter(), bytes()))
    }
}
