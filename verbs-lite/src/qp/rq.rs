//! The receive queue of a queue pair: a ring of scatter lists and what each of them holds.

use ferrocx_bus::{DmaWord, Ring};
use ferrocx_prm::cqe::CqeOpcode;
use ferrocx_prm::wqe::INVALID_LKEY;

use super::wqe::pair;
use crate::cq::Completion;
use crate::error::{Failure, PostError, Refused};
use crate::mr::Buffers;
use crate::types::Rkey;
use crate::wr::{InvalidatedRkey, RecvInfo, Returned, Wc, WcOpcode};

/// Fields of a receive completion's word at 0x18. Source: reference 6.7, `flags_rqpn`.
const GRH: u32 = 3 << 28;
const SOURCE_QPN: u32 = 0xff_ffff;

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
    pd_id: u32,
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
    pub(super) fn new(units: Ring<16>, log_units: u8, record: DmaWord, pd_id: u32) -> Self {
        let entries = units.entries() >> log_units;
        let slots = (0..entries).map(|_| Slot { wr_id: 0, held: None }).collect();
        Self { units, log_units, record, pd_id, pi: 0, ci: 0, slots }
    }

    /// Writes a receive and tells the device.
    #[inline(always)]
    pub(super) fn push(&mut self, wr_id: u64, held: B) -> Result<(), Refused<B>> {
        if self.pi.wrapping_sub(self.ci) == self.slots.len() as u32 {
            return Err(Refused { held, cause: PostError::Full });
        }
        let max = 1 << self.log_units;
        let first = self.pi << self.log_units;
        let (mut count, mut refused) = (0, None);
        for sge in held.sges() {
            if sge.len == 0 {
                continue;
            }
            if count == max || sge.pd_id != self.pd_id {
                refused = Some(sge);
                break;
            }
            let unit = self.units.at(first.wrapping_add(count));
            unit.store_raw64::<0>(pair(sge.len.to_be(), sge.lkey_be));
            unit.store_be64::<8>(sge.addr);
            count += 1;
        }
        if let Some(sge) = refused {
            return Err(Refused { held, cause: PostError::of_sge(sge.pd_id == self.pd_id) });
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

    /// Ends the receive that a completion names; `None` if the completion cannot be right.
    #[inline(always)]
    pub(super) fn complete(
        &mut self,
        completion: &Completion,
        failure: Option<Failure>,
    ) -> Option<Wc<B>> {
        if self.pi == self.ci || completion.wqe_counter() != self.ci as u16 {
            return None;
        }
        let at = self.ci as usize & (self.slots.len() - 1);
        let slot = &mut self.slots[at];
        self.ci = self.ci.wrapping_add(1);
        let recv = match failure {
            Some(_) => RecvInfo::default(),
            None => info(completion),
        };
        let is_write = completion.opcode() == CqeOpcode::RESPONDER_WRITE_IMM;
        Some(Wc {
            wr_id: slot.wr_id,
            opcode: if is_write { WcOpcode::RecvWriteImm } else { WcOpcode::Recv },
            result: failure.map_or(Ok(()), Err),
            is_signaled: true,
            byte_len: if failure.is_none() { completion.byte_cnt() } else { 0 },
            recv,
            returned: slot.held.take().map_or(Returned::Nothing, Returned::Buffers),
        })
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
        std::mem::forget(std::mem::take(&mut self.slots));
    }
}

#[inline(always)]
pub(crate) fn info(completion: &Completion) -> RecvInfo {
    let (word, flags) = (completion.word(), completion.flags_rqpn());
    let has_imm = matches!(
        completion.opcode(),
        CqeOpcode::RESPONDER_SEND_IMM | CqeOpcode::RESPONDER_WRITE_IMM
    );
    let invalidates = completion.opcode() == CqeOpcode::RESPONDER_SEND_INVAL;
    RecvInfo {
        imm: has_imm.then_some(word),
        invalidated: invalidates.then_some(InvalidatedRkey(Rkey(word))),
        source_qpn: flags & SOURCE_QPN,
        has_grh: flags & GRH != 0,
        is_solicited: completion.is_solicited(),
    }
}
