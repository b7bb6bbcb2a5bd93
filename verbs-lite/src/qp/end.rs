//! How the requests of a send queue end.
//!
//! Requests complete in order. A completion ends every request up to the one that it names; those
//! before succeeded, or they would have completed themselves with an error.

use std::ops::Range;

use super::sq::{Other, Slot, Sq};
use crate::cq::Completion;
use crate::error::Failure;
use crate::fastreg::{MrState, Origin};
use crate::mr::Buffers;
use crate::wc::{Returned, Sent, Wc};
use crate::wr::{RecvInfo, SendFlags};

impl<B> Slot<B> {
    /// Whether it asked for a report.
    #[inline(always)]
    fn is_signaled(&self) -> bool {
        self.flags.contains(SendFlags::SIGNALED)
    }

    /// Whether nobody is told of its end, and it needs no closer look.
    #[inline(always)]
    fn is_silent(&self) -> bool {
        self.is_simple() && !self.is_signaled()
    }

    /// The request as its end is reported where it went well.
    #[inline(always)]
    fn sent(&self, byte_cnt: u32) -> Sent {
        let byte_len = if self.opcode.brings_bytes() { byte_cnt } else { 0 };
        Sent { wr_id: self.wr_id, opcode: self.opcode, byte_len }
    }

    /// The request as its end is reported.
    #[inline(always)]
    fn wc(&self, byte_cnt: u32, result: Result<(), Failure>, returned: Returned<B>) -> Wc<B> {
        Wc {
            wr_id: self.wr_id,
            opcode: self.opcode,
            result,
            is_signaled: self.is_signaled(),
            byte_len: if self.opcode.brings_bytes() { byte_cnt } else { 0 },
            recv: RecvInfo::default(),
            returned,
        }
    }
}

impl<B: Buffers> Sq<B> {
    /// Whether a completion that names this queue is of a request in flight, in this life.
    #[inline(always)]
    pub(super) fn believes(&mut self, completion: &Completion) -> bool {
        self.belief.knows(completion) || self.looks_at(completion)
    }

    #[cold]
    #[inline(never)]
    fn looks_at(&mut self, completion: &Completion) -> bool {
        let position = self.position_of(completion.head.wqe_counter());
        self.belief.is_named_by(completion)
            && position.is_some_and(|at| self.belief.looks_at(completion, at as u32))
    }

    /// Whether a completion's counter names the oldest request.
    #[inline(always)]
    pub(super) fn is_oldest(&self, wqe_counter: u16) -> bool {
        wqe_counter == self.ring.ci as u16 && self.ring.ci != self.ring.pi
    }

    /// Ends every request up to the one that a completion without error names, and gives each to
    /// `each`. `false` if the completion cannot be right; then nothing was ended.
    #[inline(never)]
    pub(super) fn end_run(
        &mut self,
        wqe_counter: u16,
        byte_cnt: u32,
        each: &mut impl FnMut(Wc<B>),
    ) -> bool {
        let Some(last) = self.position_of(wqe_counter) else { return false };
        while self.ring.ci < last {
            self.end_oldest(0, each);
        }
        // A counter inside a request has ended that one.
        if self.ring.ci == last {
            self.end_oldest(byte_cnt, each);
        }
        true
    }

    /// Ends the oldest of the requests that a completion without error ends, and says whether it
    /// was the last. `None` if it needs a closer look: [`Sq::end_next`] has it.
    #[inline(always)]
    pub(super) fn end_simple(&mut self, wqe_counter: u16, byte_cnt: u32) -> Option<(Wc<B>, bool)> {
        let (last, ci) = (self.position_of(wqe_counter)?, self.ring.ci);
        let slot = self.slots.at(ci);
        if !slot.is_simple() {
            return None;
        }
        self.ring.ci = ci + 1;
        let returned = slot.buffers.take().map_or(Returned::Nothing, Returned::Buffers);
        let byte_cnt = if ci == last { byte_cnt } else { 0 };
        Some((slot.wc(byte_cnt, Ok(()), returned), ci == last))
    }

    /// Ends the oldest of the requests that a completion without error ends, as far as they asked
    /// for no report and need no closer look; drops their lists. Whether these were all.
    #[inline(always)]
    pub(super) fn end_silent(&mut self, wqe_counter: u16) -> bool {
        let Some(last) = self.position_of(wqe_counter) else { return false };
        // Twice where the ring ends between them.
        while self.ring.ci <= last {
            let slots = self.slots.run(self.ring.ci, last - self.ring.ci + 1);
            let (mut ended, all) = (0, slots.len() as u64);
            for slot in slots {
                if !slot.is_silent() {
                    break;
                }
                slot.buffers = None;
                ended += 1;
            }
            self.ring.ci += ended;
            if ended < all {
                return false;
            }
        }
        true
    }

    /// Ends the request that a completion without error names, if that asked for a report and needs
    /// no closer look, and what is in front of it needs none.
    #[inline(always)]
    pub(super) fn end_one(&mut self, wqe_counter: u16, byte_cnt: u32) -> Option<Sent> {
        let (last, ci) = (self.position_of(wqe_counter)?, self.ring.ci);
        let slot = self.slots.at(last);
        // Lists that do something when they are dropped are looked for.
        let is_alone = if Self::DROPS_LISTS { last == ci } else { slot.is_behind(last - ci) };
        if !is_alone || !slot.is_simple() || !slot.is_signaled() {
            return None;
        }
        slot.buffers = None;
        let sent = slot.sent(byte_cnt);
        debug_assert!((ci..last).all(|at| self.slots.at(at).is_silent()), "each was looked at");
        self.ring.ci = last + 1;
        Some(sent)
    }

    /// Ends the oldest of the requests that a completion without error ends, as far as they need no
    /// closer look; gives `each` those that asked for a report, and drops the lists of them all.
    /// Whether these were all.
    pub(super) fn end_signaled(
        &mut self,
        wqe_counter: u16,
        byte_cnt: u32,
        each: &mut impl FnMut(Sent),
    ) -> bool {
        let Some(last) = self.position_of(wqe_counter) else { return false };
        while self.ring.ci <= last {
            let ci = self.ring.ci;
            let slot = self.slots.at(ci);
            if !slot.is_simple() {
                return false;
            }
            self.ring.ci = ci + 1;
            slot.buffers = None;
            if slot.is_signaled() {
                each(slot.sent(if ci == last { byte_cnt } else { 0 }));
            }
        }
        true
    }

    /// Ends the oldest of the requests that a completion ends, and says whether it was the last,
    /// which the completion names. What is not reported, or not by itself, gives nothing. `failure`
    /// is the last one's: those before it succeeded. `None` if the completion cannot be right.
    pub(super) fn end_next(
        &mut self,
        wqe_counter: u16,
        byte_cnt: u32,
        failure: Option<Failure>,
    ) -> Option<(Option<Wc<B>>, bool)> {
        let (last, ci) = (self.position_of(wqe_counter)?, self.ring.ci);
        // A counter inside a request names that one.
        let is_last = ci + self.slots.at(ci).blocks() > last;
        let (byte_cnt, failure) = if is_last { (byte_cnt, failure) } else { (0, None) };
        if failure.is_some() && self.broken.last().is_none_or(|range| range.end != u64::MAX) {
            self.broken.push(ci..u64::MAX);
        }
        let mut ended = None;
        self.end_any(byte_cnt, failure.map_or(Ok(()), Err), &mut |wc| ended = Some(wc));
        Some((ended, is_last))
    }

    /// Position that a counter names, if something is in flight there.
    #[inline(always)]
    fn position_of(&self, wqe_counter: u16) -> Option<u64> {
        let ahead = u64::from(wqe_counter.wrapping_sub(self.ring.ci as u16));
        (ahead < self.ring.pi - self.ring.ci).then_some(self.ring.ci + ahead)
    }

    /// Ends the oldest request, which went well; `byte_cnt` is what its completion says.
    #[inline(always)]
    pub(super) fn end_oldest(&mut self, byte_cnt: u32, each: &mut impl FnMut(Wc<B>)) {
        let slot = self.slots.at(self.ring.ci);
        if !slot.is_simple() {
            return self.end_any(byte_cnt, Ok(()), each);
        }
        self.ring.ci += 1;
        // Two calls, so that the caller's closure need not ask again what came back.
        match slot.buffers.take() {
            Some(buffers) => each(slot.wc(byte_cnt, Ok(()), Returned::Buffers(buffers))),
            None => each(slot.wc(byte_cnt, Ok(()), Returned::Nothing)),
        }
    }

    /// Ends the oldest request, whatever it holds and however it went.
    #[inline(never)]
    fn end_any(
        &mut self,
        byte_cnt: u32,
        result: Result<(), Failure>,
        each: &mut impl FnMut(Wc<B>),
    ) {
        let slot = self.slots.at(self.ring.ci);
        let blocks = slot.blocks();
        self.ring.ci += blocks;
        self.extra_blocks -= blocks as u32 - 1;
        let buffers = slot.buffers.take();
        let (result, returned) = match std::mem::replace(&mut slot.other, Other::Nothing) {
            Other::Nothing => {
                // It may have bound a window.
                self.changes.end(self.ring.ci);
                (result, buffers.map_or(Returned::Nothing, Returned::Buffers))
            }
            Other::List(list) => {
                self.changes.end(self.ring.ci);
                (result, Returned::PageList(list))
            }
            Other::Ending(mr) if result.is_ok() => (result, Returned::Mr(mr.into_free())),
            Other::EndingMw(mw) if result.is_ok() => (result, Returned::Mw(mw.into_free())),
            // The part before it may have failed first.
            Other::Ending(mr) => (self.carried.take().map_or(result, Err), Returned::Stale(mr)),
            Other::EndingMw(mw) => (result, Returned::StaleMw(mw)),
            Other::FirstPart => {
                self.carried = result.err();
                return;
            }
            Other::Marker => return,
        };
        each(slot.wc(byte_cnt, result, returned));
    }

    /// Drops what is in flight, and starts again at the beginning of the ring: the queue pair was
    /// reset, and the device has let go of it.
    pub(super) fn abandon(&mut self) {
        let ci = self.ring.ci;
        if ci != self.ring.pi && self.broken.last().is_none_or(|range| range.end != u64::MAX) {
            self.broken.push(ci..u64::MAX);
        }
        while self.ring.ci != self.ring.pi {
            self.end_any(0, Ok(()), &mut drop);
        }
        self.carried = None;
        self.reset();
    }

    /// Keeps what is held for ever: the device may still use it.
    pub(super) fn leak(&mut self) {
        self.reach.leak();
        std::mem::forget(self.slots.take());
    }

    /// What is known of a key by the requests of this queue.
    pub(super) fn state_of(&self, origin: Origin) -> MrState {
        let Origin { queue, position } = origin;
        if queue != self.id || self.broken.iter().any(|range| range.contains(&position)) {
            return MrState::Unknown;
        }
        if position >= self.ring.ci { MrState::Posted } else { MrState::Valid }
    }

    /// What is posted from here on is carried out again.
    pub(super) fn heal(&mut self) {
        if let Some(range) = self.broken.last_mut()
            && range.end == u64::MAX
        {
            range.end = self.ring.pi;
        }
        forget_oldest(&mut self.broken);
    }
}

/// Failures of which a queue remembers apart what was not carried out.
const MAX_BROKEN: usize = 16;

/// Makes one range of the two oldest when there are too many: a peer decides how often a queue
/// fails. Of the requests between them it is then unknown, too, what became of their keys.
fn forget_oldest(ranges: &mut Vec<Range<u64>>) {
    if ranges.len() > MAX_BROKEN {
        let second = ranges.remove(1);
        ranges[0].end = second.end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_remembered_in_bounded_memory_and_none_is_forgotten() {
        let mut ranges = Vec::new();
        for failure in 0..1000_u64 {
            ranges.push(failure * 10..failure * 10 + 5);
            forget_oldest(&mut ranges);
            assert!(ranges.len() <= MAX_BROKEN);
        }
        let is_broken = |position: u64| ranges.iter().any(|range| range.contains(&position));
        assert!((0..1000).all(|failure| is_broken(failure * 10 + 4)));
        assert!(!is_broken(9996) && !is_broken(9989), "the last ones stay apart");
    }
}
