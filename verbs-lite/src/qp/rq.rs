//! The receive queue of a queue pair: a ring of scatter lists and what each of them holds.

use ferrocx_bus::{DmaWord, Ring};
use ferrocx_prm::cqe::CqeOpcode;
use ferrocx_prm::wqe::INVALID_LKEY;

use super::wqe::pair;
use crate::cq::Completion;
use crate::error::{Failure, PostError, Refused};
use crate::mr::{Buffers, Reach};
use crate::wr::{RecvInfo, Returned, Wc, WcOpcode};

/// A receive in flight.
#[derive(Debug)]
struct Slot<B> {
    wr_id: u64,
    held: Option<B>,
}

/// The receive queue.
pub(super) struct Rq<B> {
    /// The ring in 16-byte units; each receive takes `1 << log_units`.
    units: Ring<16>,
    log_units: u8,
    record: DmaWord,
    reach: Reach,
    /// Receives that may be in flight.
    max_wr: u32,
    pi: u32,
    ci: u32,
    slots: Box<[Slot<B>]>,
}

impl<B> std::fmt::Debug for Rq<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rq")
            .field("entries", &self.slots.len())
            .field("pi", &self.pi)
            .field("ci", &self.ci)
            .finish_non_exhaustive()
    }
}

impl<B: Buffers> Rq<B> {
    pub(super) fn new(
        units: Ring<16>,
        log_units: u8,
        record: DmaWord,
        reach: Reach,
        max_wr: u32,
    ) -> Self {
        let entries = units.entries() >> log_units;
        let slots = (0..entries).map(|_| Slot { wr_id: 0, held: None }).collect();
        Self { units, log_units, record, reach, max_wr, pi: 0, ci: 0, slots }
    }

    /// Writes a receive and tells the device.
    #[inline(always)]
    pub(super) fn push(&mut self, wr_id: u64, held: B) -> Result<(), Refused<B>> {
        if self.pi.wrapping_sub(self.ci) == self.max_wr {
            return Err(Refused { held, cause: PostError::Full });
        }
        let max = 1 << self.log_units;
        let first = self.pi << self.log_units;
        let (mut count, mut refused) = (0, None);
        if !held.is_exclusive() {
            return Err(Refused { held, cause: PostError::NotExclusive });
        }
        for sge in held.sinks() {
            if sge.len == 0 {
                continue;
            }
            let entry = self.reach.entry(sge);
            let Some(sge) = entry.filter(|_| count < max) else {
                refused = Some(PostError::of_sge(entry.is_some()));
                break;
            };
            let unit = self.units.at(first.wrapping_add(count));
            unit.store_raw64::<0>(pair(sge.len.to_be(), sge.lkey_be));
            unit.store_be64::<8>(sge.addr);
            count += 1;
        }
        if let Some(cause) = refused {
            return Err(Refused { held, cause });
        }
        if count < max {
            // Ends the list. Source: reference 6.5.
            let unit = self.units.at(first.wrapping_add(count));
            unit.store_raw64::<0>(pair(0, INVALID_LKEY.to_be()));
            unit.store_raw64::<8>(0);
        }
        let at = self.pi as usize & (self.slots.len() - 1);
        self.slots[at] = Slot { wr_id, held: Some(held) };
        self.pi = self.pi.wrapping_add(1);
        self.record.store_release_be32(self.pi & 0xffff);
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
        if self.pi == self.ci || wqe_counter != self.ci as u16 {
            return None;
        }
        let at = self.ci as usize & (self.slots.len() - 1);
        let slot = &mut self.slots[at];
        if !slot.held.as_mut().is_none_or(may_end) {
            return None;
        }
        self.ci = self.ci.wrapping_add(1);
        Some(slot)
    }

    /// Receives that have not ended.
    pub(super) fn outstanding(&self) -> u32 {
        self.pi.wrapping_sub(self.ci)
    }

    /// Starts again at the beginning of the ring: the queue pair was reset, and all has ended.
    pub(super) fn reset(&mut self) {
        (self.pi, self.ci) = (0, 0);
        self.record.store_release_be32(0);
    }

    /// Keeps what is held for ever: the device may still use it.
    pub(super) fn leak(&mut self) {
        self.reach.leak();
        std::mem::forget(std::mem::take(&mut self.slots));
    }
}
