//! Completions of a queue pair: which of its requests they end, and what they say of its state.

use std::sync::Arc;

use ferrocx_core::ends_receiving;
use ferrocx_prm::cqe::CqeOpcode;

use super::{Qp, QpState, QpType, WrongCompletion};
use crate::belief::Belief;
use crate::cq::Completion;
use crate::mr::Buffers;
use crate::names::{Ends, SPREAD};
use crate::srq::Srq;
use crate::taking::CqEntry;
use crate::wc::{Received, Returned, Sent, Wc};

/// Which requests that have ended are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Reports {
    /// All of them.
    #[default]
    All,
    /// Not those that asked for no report, went well, and hold nothing but a list.
    Signaled,
}

impl Reports {
    fn has<B>(self, wc: &Wc<B>) -> bool {
        let is_plain = matches!(wc.returned, Returned::Nothing | Returned::Buffers(_));
        self == Self::All || wc.is_signaled || wc.result.is_err() || !is_plain
    }
}

/// Failed receives of a shared queue that say nothing of the state of the queue pair: of an earlier
/// life, or of who had its number before and took from the same queue.
#[derive(Debug, Default)]
pub(super) struct Earlier {
    /// The era that its life of now began with.
    pub(super) since: u64,
    /// How many stood in the completion queue then.
    pub(super) standing: u32,
}

impl Earlier {
    /// Whether a failure is one of them.
    fn has(&mut self, failure: &Completion) -> bool {
        if failure.era() < self.since {
            return true;
        }
        // They stand in front of those of now.
        let is_earlier = self.standing > 0;
        self.standing -= u32::from(is_earlier);
        is_earlier
    }
}

impl<B: Buffers> Qp<B> {
    /// Takes a completion of this queue pair: `each` is given every request that it ends, in the
    /// order of posting. A failure moves the queue pair to its error state.
    ///
    /// [`Qp::next_wc`] does without a closure, and leaves the queue pair free to be posted to.
    #[inline]
    pub fn complete(
        &mut self,
        completion: Completion,
        mut each: impl FnMut(Wc<B>),
    ) -> Result<(), WrongCompletion> {
        // The next receive of its number in the ring may be one that the device still fills.
        if completion.is_taken {
            return Ok(());
        }
        let head = completion.head;
        if self.sq.belief.knows(&completion) && head.is_requester() {
            let (counter, byte_cnt) = (head.wqe_counter(), completion.byte_cnt());
            if self.sq.is_oldest(counter) {
                self.sq.end_oldest(byte_cnt, &mut each);
                return Ok(());
            }
            if self.sq.end_run(counter, byte_cnt, &mut each) {
                return Ok(());
            }
        }
        if let Some(wc) = self.take_received(&completion) {
            each(wc);
            return Ok(());
        }
        self.complete_rest(completion, &mut each)
    }

    /// Ends the one send that an entry of the completion queue names, if that went well, asked for
    /// its completion and held nothing but a list, which is dropped; and if what was posted in
    /// front of it has ended, or needs no look: it went well, too, and nobody asked.
    ///
    /// # Errors
    ///
    /// The entry, of anything else: it is to be given to [`Qp::complete_sent`].
    #[inline(always)]
    pub fn complete_one<'a>(&mut self, entry: CqEntry<'a>) -> Result<Sent, CqEntry<'a>> {
        let sent = entry.sends_of(self.sq.belief.known());
        sent.and_then(|(counter, byte_cnt)| self.sq.end_one(counter, byte_cnt)).ok_or(entry)
    }

    /// Ends the receive of the queue pair's own that an entry of the completion queue says a
    /// message filled; the list that it held is dropped.
    ///
    /// # Errors
    ///
    /// The entry, of anything else: it is to be given to [`Qp::complete_sent`].
    #[inline(always)]
    pub fn complete_received<'a>(&mut self, entry: CqEntry<'a>) -> Result<Received, CqEntry<'a>> {
        match self.take_received(&entry.words()) {
            Some(Wc { wr_id, opcode, byte_len, recv: info, .. }) => {
                Ok(Received { wr_id, opcode, byte_len, info })
            }
            None => Err(entry),
        }
    }

    /// Ends the sends that an entry of the completion queue ends, if they went well and held
    /// nothing but lists, whatever receives the queue pair takes; gives `each` those that asked for
    /// their completion. The lists are dropped. `None` when they have all ended; else the
    /// completion is to be taken by [`Qp::complete_signaled`], or of a queue pair whose receives
    /// are shared by [`Qp::complete_signaled_shared`], which ends the rest.
    pub fn complete_sent(
        &mut self,
        entry: CqEntry<'_>,
        mut each: impl FnMut(Sent),
    ) -> Option<Completion> {
        if let Some((counter, byte_cnt)) = entry.sends_of(self.sq.belief.known())
            && self.sq.end_signaled(counter, byte_cnt, &mut each)
        {
            return None;
        }
        Some(entry.read())
    }

    /// Takes a completion like [`Qp::complete`], and gives `each` no request that did not ask for
    /// it and went well, whose buffers are dropped: see
    /// [`QpTable::only_signaled`](super::QpTable::only_signaled).
    pub fn complete_signaled(
        &mut self,
        mut completion: Completion,
        mut each: impl FnMut(Wc<B>),
    ) -> Result<(), WrongCompletion> {
        while let Some(wc) = self.next_of(&mut completion, Reports::Signaled)? {
            each(wc);
        }
        Ok(())
    }

    /// Takes a completion of a failure, or one that cannot be.
    #[cold]
    #[inline(never)]
    fn complete_rest(
        &mut self,
        mut completion: Completion,
        each: &mut impl FnMut(Wc<B>),
    ) -> Result<(), WrongCompletion> {
        while let Some(wc) = self.next_rest(&mut completion, Reports::All)? {
            each(wc);
        }
        Ok(())
    }

    /// The next request that a completion of this queue pair ends, in the order of posting; `None`
    /// after the last. A failure moves the queue pair to its error state. Until the last was taken,
    /// give the queue pair no other completion.
    ///
    /// ```
    /// use ferrocx_verbs_lite::*;
    ///
    /// /// Sends every message that arrived back to where it came from.
    /// fn echo(cq: &mut Cq, qps: &mut [Qp]) -> Result<(), WrongCompletion> {
    ///     while let Some(mut completion) = cq.poll() {
    ///         let Some(qp) = qps.get_mut(completion.user_index() as usize) else { continue };
    ///         while let Some(wc) = qp.next_wc(&mut completion)? {
    ///             if wc.opcode == WcOpcode::Recv && wc.result.is_ok() {
    ///                 // A full queue drops the message with its buffer.
    ///                 let _ = qp.post_send(&SendWr::signaled(0, SendOp::Send), wc.into_buffers());
    ///             }
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    #[inline]
    pub fn next_wc(
        &mut self,
        completion: &mut Completion,
    ) -> Result<Option<Wc<B>>, WrongCompletion> {
        self.next_of(completion, Reports::All)
    }

    /// The next request that a completion ends, of those that are reported.
    #[inline(always)]
    pub(super) fn next_of(
        &mut self,
        completion: &mut Completion,
        reports: Reports,
    ) -> Result<Option<Wc<B>>, WrongCompletion> {
        if completion.is_taken {
            return Ok(None);
        }
        let head = completion.head;
        if self.sq.belief.knows(completion) && head.is_requester() {
            let (counter, byte_cnt) = (head.wqe_counter(), completion.byte_cnt());
            if reports == Reports::Signaled && self.sq.end_silent(counter) {
                completion.is_taken = true;
                return Ok(None);
            }
            if let Some((wc, is_last)) = self.sq.end_simple(counter, byte_cnt) {
                completion.is_taken = is_last;
                return Ok(Some(wc));
            }
        } else if let Some(wc) = self.take_received(completion) {
            completion.is_taken = true;
            return Ok(Some(wc));
        }
        self.next_rest(completion, reports)
    }

    /// Ends the receive of the queue pair's own that a completion says a message filled; `None` for
    /// a completion of anything else.
    #[inline(always)]
    fn take_received(&mut self, completion: &Completion) -> Option<Wc<B>> {
        let rq = self.rq.as_mut().filter(|rq| rq.belief.knows(completion))?;
        if !completion.head.is_received() {
            return None;
        }
        rq.complete(completion, None)
    }

    /// Gives `each` every request that a completion ends, of those that are reported, with what
    /// the program keeps beside the queue pair; how many they were.
    // A receive has a call of its own: what `each` does not look at is not even read.
    #[inline(always)]
    pub(super) fn give<T>(
        &mut self,
        completion: &Completion,
        reports: Reports,
        data: &mut T,
        each: &mut impl FnMut(&mut Self, &mut T, Wc<B>),
    ) -> Result<usize, WrongCompletion> {
        if let Some(wc) = self.take_received(completion) {
            each(self, data, wc);
            return Ok(1);
        }
        self.give_rest(completion.copied(), reports, data, each)
    }

    /// Does what [`Qp::give`] does with a completion of anything but a message.
    #[inline(never)]
    fn give_rest<T>(
        &mut self,
        mut completion: Completion,
        reports: Reports,
        data: &mut T,
        each: &mut impl FnMut(&mut Self, &mut T, Wc<B>),
    ) -> Result<usize, WrongCompletion> {
        let (head, mut count) = (completion.head, 0);
        if self.sq.belief.knows(&completion) && head.is_requester() {
            let (counter, byte_cnt) = (head.wqe_counter(), completion.byte_cnt());
            // Sends that went well, as `next_of` has them, for as long as they are simple.
            loop {
                if reports == Reports::Signaled && self.sq.end_silent(counter) {
                    return Ok(count);
                }
                let Some((wc, is_last)) = self.sq.end_simple(counter, byte_cnt) else { break };
                each(self, data, wc);
                count += 1;
                if is_last {
                    return Ok(count);
                }
                // `each` may have put another queue pair in the place of this one.
                if !self.sq.belief.knows(&completion) {
                    break;
                }
            }
        }
        while let Some(wc) = self.next_of(&mut completion, reports)? {
            each(self, data, wc);
            count += 1;
        }
        Ok(count)
    }

    /// What [`Qp::next_of`] gives of failures, of requests that hold more than a list, and of
    /// completions that cannot be.
    #[inline(never)]
    fn next_rest(
        &mut self,
        completion: &mut Completion,
        reports: Reports,
    ) -> Result<Option<Wc<B>>, WrongCompletion> {
        while !completion.is_taken {
            let head = completion.head;
            let (wc, is_last) = match head.opcode() {
                CqeOpcode::REQUESTER if self.sq.believes(completion) => {
                    self.sq.end_next(head.wqe_counter(), completion.byte_cnt(), None)
                }
                CqeOpcode::REQUESTER_ERROR if self.sq.believes(completion) => {
                    self.send_failed();
                    self.sq.end_next(head.wqe_counter(), 0, Some(head.failure()))
                }
                _ => self.end_receive(completion).map(|wc| (Some(wc), true)),
            }
            .ok_or_else(|| self.wrong(completion))?;
            completion.is_taken = is_last;
            if let Some(wc) = wc.filter(|wc| reports.has(wc)) {
                return Ok(Some(wc));
            }
        }
        Ok(None)
    }

    /// Ends a receive of the queue pair's own; `None` if the completion is of something else.
    fn end_receive(&mut self, completion: &Completion) -> Option<Wc<B>> {
        let (head, rq) = (completion.head, self.rq.as_mut()?);
        if head.is_received() {
            let is_ours = match self.spread {
                false => rq.belief.is_named_by(completion) && rq.believes(completion),
                true => is_spread_to(self.user_index, completion) && rq.believes(completion),
            };
            return if is_ours { rq.complete(completion, None) } else { None };
        }
        let is_ours = completion.qpn().0 == self.objects.fails_as(self.qpn);
        if head.opcode() != CqeOpcode::RESPONDER_ERROR || !is_ours || !rq.believes(completion) {
            return None;
        }
        let failure = head.failure();
        let is_end = self.qp_type != QpType::Raw || ends_receiving(failure.syndrome);
        let wc = rq.complete(completion, Some(failure));
        // A receive queue of frames goes on behind one that was too long.
        if is_end {
            self.enter(QpState::Error);
        }
        wc
    }

    /// Notes that a send request failed.
    fn send_failed(&mut self) {
        if self.qp_type.is_reliable() {
            self.enter(QpState::Error);
        } else if self.state == QpState::Rts {
            self.enter(QpState::SqError);
        }
    }

    /// Takes a completion of a queue pair whose receives come from `srq`, like [`Qp::complete`].
    #[inline]
    pub fn complete_shared(
        &mut self,
        completion: Completion,
        srq: &mut Srq<B>,
        mut each: impl FnMut(Wc<B>),
    ) -> Result<(), WrongCompletion> {
        if let Some(wc) = self.take_shared(&completion, srq) {
            each(wc);
            return Ok(());
        }
        match self.end_shared(&completion, srq)? {
            Some(wc) => each(wc),
            None => self.complete(completion, each)?,
        }
        Ok(())
    }

    /// Takes a completion of a queue pair whose receives come from `srq`, like
    /// [`Qp::complete_signaled`].
    #[inline]
    pub fn complete_signaled_shared(
        &mut self,
        completion: Completion,
        srq: &mut Srq<B>,
        mut each: impl FnMut(Wc<B>),
    ) -> Result<(), WrongCompletion> {
        match self.end_shared(&completion, srq)? {
            Some(wc) => each(wc),
            None => self.complete_signaled(completion, each)?,
        }
        Ok(())
    }

    /// The next request that a completion ends of a queue pair whose receives come from `srq`, like
    /// [`Qp::next_wc`].
    #[inline]
    pub fn next_wc_shared(
        &mut self,
        completion: &mut Completion,
        srq: &mut Srq<B>,
    ) -> Result<Option<Wc<B>>, WrongCompletion> {
        // Neither takes what was taken.
        let wc = match self.take_shared(completion, srq) {
            None => self.end_shared(completion, srq)?,
            taken => taken,
        };
        if wc.is_none() {
            return self.next_of(completion, Reports::All);
        }
        completion.is_taken = true;
        Ok(wc)
    }

    /// Ends a receive of `srq` that a completion says a message to this queue pair filled; `None`
    /// for a completion of anything else.
    // Without the failures, which `end_shared` has: what nobody looks at is not even read.
    #[inline(always)]
    fn take_shared(&mut self, completion: &Completion, srq: &mut Srq<B>) -> Option<Wc<B>> {
        let is_received = completion.head.is_received() && !completion.is_taken;
        let knows = self.shared.as_ref().is_some_and(|belief| belief.knows(completion));
        if is_received && knows && self.shares(srq) { srq.end_received(completion) } else { None }
    }

    /// Whether its receives come from `srq`.
    #[inline(always)]
    fn shares(&self, srq: &Srq<B>) -> bool {
        self.ends.srq.as_ref().is_some_and(|own| Arc::ptr_eq(own, srq.core()))
    }

    /// Ends a receive of `srq` that this queue pair took; `None` for a completion of anything else.
    #[inline(never)]
    fn end_shared(
        &mut self,
        completion: &Completion,
        srq: &mut Srq<B>,
    ) -> Result<Option<Wc<B>>, WrongCompletion> {
        let opcode = completion.head.opcode();
        let is_send = matches!(opcode, CqeOpcode::REQUESTER | CqeOpcode::REQUESTER_ERROR);
        let is_ours = !is_send && !completion.is_taken && self.shares(srq);
        if !is_ours || !self.believes_shared(completion) {
            return Ok(None);
        }
        let wc = srq.end(completion).ok_or_else(|| self.wrong(completion))?;
        if opcode == CqeOpcode::RESPONDER_ERROR && !self.earlier.has(completion) {
            self.enter(QpState::Error);
        }
        Ok(Some(wc))
    }

    /// Whether a completion of a receive of a shared queue is of this queue pair.
    #[inline(always)]
    fn believes_shared(&mut self, completion: &Completion) -> bool {
        let Some(belief) = &mut self.shared else { return false };
        belief.knows(completion) || belief.is_named_by(completion) && belief.looks_at(completion, 0)
    }

    /// Whether a completion names this queue pair, and is of its life of now.
    #[inline(always)]
    pub(super) fn is_named_by(&self, completion: &Completion) -> bool {
        self.sq.belief.knows(completion)
            || self.receives().is_some_and(|belief| belief.knows(completion))
            || self.is_life_of(completion)
    }

    /// What it believes of receives.
    #[inline(always)]
    fn receives(&self) -> Option<&Belief> {
        self.rq.as_ref().map(|rq| &rq.belief).or(self.shared.as_ref())
    }

    #[cold]
    #[inline(never)]
    fn is_life_of(&self, completion: &Completion) -> bool {
        let (belief, number) = match completion.head.ends() {
            Ends::Sends => (Some(&self.sq.belief), self.qpn),
            Ends::Receive if self.spread => {
                let is_named = is_spread_to(self.user_index, completion);
                return is_named && self.receives().is_some_and(|own| own.is_of_life(completion));
            }
            Ends::Receive => (self.receives(), self.qpn),
            Ends::FailedReceive => (self.receives(), self.objects.fails_as(self.qpn)),
        };
        let is_named = completion.qpn().0 == number;
        is_named && belief.is_some_and(|belief| belief.is_of_life(completion))
    }

    #[cold]
    fn wrong(&self, completion: &Completion) -> WrongCompletion {
        WrongCompletion {
            qpn: self.qpn,
            of: completion.qpn().0,
            opcode: completion.head.opcode().0,
            wqe_counter: completion.head.wqe_counter(),
        }
    }
}

/// Whether a completion is of a frame that was spread to the queue pair with an index.
fn is_spread_to(user_index: u32, completion: &Completion) -> bool {
    completion.qpn().0 == SPREAD && completion.user_index() == user_index
}
