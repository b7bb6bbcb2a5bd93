//! The receive queue of a queue pair: a ring of scatter lists and what each of them holds.

use ferrocx_core::wq::RecvRing;
use ferrocx_prm::cqe::CqeOpcode;

use super::wqe::scatter;
use crate::cq::Completion;
use crate::error::{Failure, PostError, Refused};
use crate::mr::{Buffers, Reach};
use crate::wc::{Returned, Wc};
use crate::wr::{RecvInfo, WcOpcode};

/// A receive in flight.
#[derive(Debug)]
struct Slot<B> {
    wr_id: u64,
    held: Option<B>,
}

/// The receive queue.
pub(super) struct Rq<B> {
    ring: RecvRing,
    reach: Reach,
    /// Receives that may be in flight.
    max_wr: u32,
    slots: Box<[Slot<B>]>,
}

impl<B> std::fmt::Debug for Rq<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rq").field("ring", &self.ring).finish_non_exhaustive()
    }
}

impl<B: Buffers> Rq<B> {
    pub(super) fn new(ring: RecvRing, reach: Reach, max_wr: u32) -> Self {
        let slots = (0..ring.entries()).map(|_| Slot { wr_id: 0, held: None }).collect();
        Self { ring, reach, max_wr, slots }
    }

    /// Writes a receive and tells the device.
    #[inline(always)]
    pub(super) fn push(&mut self, wr_id: u64, held: B) -> Result<(), Refused<B>> {
        if self.ring.outstanding() == self.max_wr {
            return Err(Refused { held, cause: PostError::Full });
        }
        let max = 1 << self.ring.log_segments();
        if let Err(cause) = scatter(self.ring.begin(), max, &self.reach, &held) {
            return Err(Refused { held, cause });
        }
        let at = self.ring.pi as usize & (self.slots.len() - 1);
        self.slots[at] = Slot { wr_id, held: Some(held) };
        self.ring.pi = self.ring.pi.wrapping_add(1);
        self.ring.tell();
        Ok(())
    }

    /// Ends the receive that a message filled; `None` if the completion cannot be right.
    #[inline(always)]
    pub(super) fn complete(&mut self, completion: &Completion) -> Option<Wc<B>> {
        let is_write = completion.head.opcode() == CqeOpcode::RESPONDER_WRITE_IMM;
        let byte_len = completion.byte_cnt();
        let slot =
            self.oldest(completion.head.wqe_counter(), |held| is_write || held.received(byte_len))?;
        Some(Wc {
            wr_id: slot.wr_id,
            opcode: if is_write { WcOpcode::RecvWriteImm } else { WcOpcode::Recv },
            result: Ok(()),
            is_signaled: true,
            byte_len,
            recv: completion.recv_info(),
            returned: slot.held.take().map_or(Returned::Nothing, Returned::Buffers),
        })
    }

    /// Ends the receive that failed; `None` if there is none.
    pub(super) fn fail(&mut self, wqe_counter: u16, failure: Failure) -> Option<Wc<B>> {
        let slot = self.oldest(wqe_counter, |_| true)?;
        Some(Wc {
            wr_id: slot.wr_id,
            opcode: WcOpcode::Recv,
            result: Err(failure),
            is_signaled: true,
            byte_len: 0,
            recv: RecvInfo::default(),
            returned: slot.held.take().map_or(Returned::Nothing, Returned::Buffers),
        })
    }

    /// The oldest receive, which ends, if it is the one that a completion names and its buffers
    /// can have ended so.
    #[inline(always)]
    fn oldest(
        &mut self,
        wqe_counter: u16,
        may_end: impl FnOnce(&mut B) -> bool,
    ) -> Option<&mut Slot<B>> {
        if self.ring.pi == self.ring.ci || wqe_counter != self.ring.ci as u16 {
            return None;
        }
        let at = self.ring.ci as usize & (self.slots.len() - 1);
        let slot = &mut self.slots[at];
        if !slot.held.as_mut().is_none_or(may_end) {
            return None;
        }
        self.ring.ci = self.ring.ci.wrapping_add(1);
        Some(slot)
    }

    /// Receives that have not ended.
    pub(super) fn outstanding(&self) -> u32 {
        self.ring.outstanding()
    }

    /// Starts again at the beginning of the ring: the queue pair was reset, and all has ended.
    pub(super) fn reset(&mut self) {
        self.ring.restart();
    }

    /// Keeps what is held for ever: the device may still use it.
    pub(super) fn leak(&mut self) {
        self.reach.leak();
        std::mem::forget(std::mem::take(&mut self.slots));
    }
}
