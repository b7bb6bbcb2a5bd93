//! The receive queue of a queue pair: a ring of scatter lists and what each of them holds.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use ferrocx_core::wq::RecvRing;

use super::slots::{Receive, Slots};
use super::wqe::scatter;
use super::{Qp, QpState};
use crate::belief::Belief;
use crate::cq::{Completion, CqCore};
use crate::error::{Failure, PostError, Refused};
use crate::mr::{Buffers, Reach};
use crate::wc::Wc;

/// The first position of a life.
const FIRST: u32 = 0;

/// The receive queue.
#[derive(Debug)]
pub(super) struct Rq<B> {
    pub(super) ring: RecvRing,
    reach: Reach,
    /// Receives that may be in flight.
    max_wr: u32,
    /// Each receive ends by its own completion only, so a life needs no marks.
    pub(super) belief: Belief,
    slots: Slots<Receive<B>>,
}

impl<B: Buffers> Qp<B> {
    /// Posts a receive. Datagrams put 40 bytes of IP header in front of the message. A frame fails
    /// a receive that is shorter.
    ///
    /// # Errors
    ///
    /// [`PostError`], with the buffers. Nothing was posted then.
    #[inline(always)]
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv(&mut self, wr_id: u64, buffers: B) -> Result<(), Refused<B>> {
        match &mut self.rq {
            Some(rq) if self.state != QpState::Reset => rq.push::<true>(wr_id, buffers),
            _ => Err(Refused { held: buffers, cause: self.takes_no_receives() }),
        }
    }

    /// Posts receives like [`Qp::post_recv`], by name and buffers, and tells the device of all of
    /// them at once; how many they were.
    ///
    /// # Errors
    ///
    /// [`PostError`], with the buffers of the first that was refused. Those in front of it were
    /// posted, those behind it are still to be had from `receives`.
    #[inline]
    pub fn post_recv_list(
        &mut self,
        receives: &mut impl Iterator<Item = (u64, B)>,
    ) -> Result<u32, Refused<B>> {
        let mut count = 0;
        let Some(rq) = self.rq.as_mut().filter(|_| self.state != QpState::Reset) else {
            let cause = self.takes_no_receives();
            return receives.next().map_or(Ok(0), |(_, held)| Err(Refused { held, cause }));
        };
        let mut refused = None;
        for (wr_id, buffers) in receives {
            if let Err(why) = rq.push::<false>(wr_id, buffers) {
                refused = Some(why);
                break;
            }
            count += 1;
        }
        rq.tell();
        refused.map_or(Ok(count), Err)
    }

    /// Why it takes no receives.
    #[cold]
    #[inline(never)]
    fn takes_no_receives(&self) -> PostError {
        match self.state {
            QpState::Reset => PostError::State,
            _ if self.ends.srq.is_some() => PostError::Shared,
            _ => PostError::Operation,
        }
    }
}

impl<B: Buffers> Rq<B> {
    pub(super) fn new(
        ring: RecvRing,
        (cq, qpn): (&Arc<CqCore>, u32),
        reach: Reach,
        max_wr: u32,
    ) -> Self {
        let slots = Slots::new(ring.entries(), Receive::empty);
        let belief = Belief::new(cq, qpn);
        Self { ring, reach, max_wr, belief, slots }
    }

    /// Writes a receive and tells the device, unless [`Rq::tell`] will.
    // Whoever told it behind this call would have to look at what the call gives back.
    #[inline(always)]
    pub(super) fn push<const TELLS: bool>(
        &mut self,
        wr_id: u64,
        held: B,
    ) -> Result<(), Refused<B>> {
        let sge = held.only_recv_sge();
        let is_full = self.ring.outstanding() == self.max_wr;
        // Those of one entry are written here, the others by a function of their own.
        let Some(sge) = sge.filter(|sge| !is_full && sge.len != 0 && self.reach.takes(sge)) else {
            return self.push_any::<TELLS>(wr_id, held);
        };
        let mut wqe = self.ring.begin();
        wqe.data(sge.len, sge.lkey_be, sge.addr);
        if self.ring.log_segments() > 0 {
            wqe.end_list();
        }
        self.posted::<TELLS>(wr_id, held);
        Ok(())
    }

    #[inline(never)]
    fn push_any<const TELLS: bool>(&mut self, wr_id: u64, held: B) -> Result<(), Refused<B>> {
        if self.ring.outstanding() == self.max_wr {
            return Err(Refused { held, cause: PostError::Full });
        }
        let max = 1 << self.ring.log_segments();
        if let Err(cause) = scatter(self.ring.begin(), max, &self.reach, &held) {
            return Err(Refused { held, cause });
        }
        self.posted::<TELLS>(wr_id, held);
        Ok(())
    }

    /// Tells the device of all that was written.
    #[inline(always)]
    pub(super) fn tell(&self) {
        self.ring.tell();
    }

    /// Notes what a receive holds that is written.
    #[inline(always)]
    fn posted<const TELLS: bool>(&mut self, wr_id: u64, held: B) {
        let at = self.ring.pi;
        self.ring.pi = at.wrapping_add(1);
        if TELLS {
            self.tell();
        }
        // Nothing unwinds here: saying so leaves what is held in registers.
        let held = ManuallyDrop::new(held);
        let slot = self.slots.at(at.into());
        slot.hold(wr_id, ManuallyDrop::into_inner(held));
    }

    /// Whether a completion that names this queue, or whose number the caller knows, is of this
    /// life.
    pub(super) fn believes(&mut self, completion: &Completion) -> bool {
        self.belief.knows(completion) || self.belief.looks_at(completion, FIRST)
    }

    /// Ends the oldest receive if it is the one that a completion names, which is believed; `None`
    /// if it cannot be right.
    #[inline(always)]
    pub(super) fn complete(
        &mut self,
        completion: &Completion,
        failure: Option<Failure>,
    ) -> Option<Wc<B>> {
        let oldest = self.ring.ci;
        if self.ring.pi == oldest || completion.head.wqe_counter() != oldest as u16 {
            return None;
        }
        let wc = self.slots.at(oldest.into()).end(completion, failure)?;
        self.ring.ci = oldest.wrapping_add(1);
        Some(wc)
    }

    /// Drops what is in flight, and starts again: the queue pair was reset.
    pub(super) fn abandon(&mut self) {
        while self.ring.ci != self.ring.pi {
            self.slots.at(self.ring.ci.into()).drop_held();
            self.ring.ci = self.ring.ci.wrapping_add(1);
        }
        self.restart();
    }

    /// Starts again at the beginning of the ring: the queue pair was reset, and all has ended.
    pub(super) fn restart(&mut self) {
        self.ring.restart();
        self.belief.begin_life(FIRST);
    }

    /// Keeps what is held for ever: the device may still use it.
    pub(super) fn leak(&mut self) {
        self.reach.leak();
        std::mem::forget(self.slots.take());
    }
}
