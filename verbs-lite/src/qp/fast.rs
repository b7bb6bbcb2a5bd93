//! The straight path of a send queue: requests that fit their first block, and completions of one
//! request that went well. Everything else is in [`super::sq`].
//!
//! Words of a block have constant places here, so the compiler needs one mask for all of them.

use ferrocx_bus::Slot as Block;
use ferrocx_prm::wqe::Opcode;

use super::QpState;
use super::sq::{CE_ALWAYS, Other, Sq};
use super::wqe::{INLINE, pair};
use crate::cq::Completion;
use crate::error::{PostError, Refused};
use crate::mr::{Buffers, Sge};
use crate::types::RemoteAddr;
use crate::wr::{RecvInfo, Returned, SendFlags, SendOp, SendWr, Wc, WcOpcode};

/// Bit of "solicited event" in the control segment; the same as that of the flag.
const SE: u8 = SendFlags::SOLICITED.bits();
const _: () = assert!(SE == 1 << 1, "reference 6.1, `se`");

/// An operation that has a straight path: opcode, immediate dword, what it is, and the peer's
/// memory.
type Straight = (Opcode, u32, WcOpcode, Option<RemoteAddr>);

#[inline(always)]
fn straight(op: &SendOp<'_>) -> Option<Straight> {
    Some(match *op {
        SendOp::Send => (Opcode::SEND, 0, WcOpcode::Send, None),
        SendOp::SendImm(imm) => (Opcode::SEND_IMM, imm, WcOpcode::Send, None),
        SendOp::Write(remote) => (Opcode::RDMA_WRITE, 0, WcOpcode::Write, Some(remote)),
        SendOp::WriteImm(remote, imm) => {
            (Opcode::RDMA_WRITE_IMM, imm, WcOpcode::Write, Some(remote))
        }
        SendOp::Read(remote) => (Opcode::RDMA_READ, 0, WcOpcode::Read, Some(remote)),
        _ => return None,
    })
}

#[inline(always)]
fn put_remote(block: Block<'_, 64>, remote: RemoteAddr) {
    block.store_be64::<0x10>(remote.addr);
    block.store_raw64::<0x18>(pair(remote.rkey.0.to_be(), 0));
}

#[inline(always)]
fn put_data<const AT: usize, const NEXT: usize>(block: Block<'_, 64>, sge: Sge) {
    block.store_raw64::<AT>(pair(sge.len.to_be(), sge.lkey_be));
    block.store_be64::<NEXT>(sge.addr);
}

#[inline(always)]
fn put_eight<const AT: usize, const NEXT: usize>(block: Block<'_, 64>, eight: [u8; 8]) {
    let [a, b, c, d, e, f, g, h] = eight;
    let header = (INLINE | 8).to_be();
    block.store_raw64::<AT>(pair(header, u32::from_ne_bytes([a, b, c, d])));
    block.store_raw64::<NEXT>(pair(u32::from_ne_bytes([e, f, g, h]), 0));
}

impl<B: Buffers> Sq<B> {
    /// Writes a request with a gather or scatter list.
    #[inline(always)]
    pub(super) fn push(
        &mut self,
        wr: &SendWr<'_>,
        held: Option<B>,
    ) -> Result<(), Refused<Option<B>>> {
        if !self.has_room() {
            return Err(Refused { held, cause: PostError::Full });
        }
        if !B::IS_ONE {
            return self.push_any(wr, held);
        }
        let Some((opcode, imm, kind, remote)) = straight(&wr.op) else {
            return self.push_any(wr, held);
        };
        // A data segment without bytes would mean 2 GiB. Source: reference 6.3.
        let sge = held.as_ref().and_then(|buf| buf.sges().next()).filter(|sge| sge.len != 0);
        if sge.is_some_and(|sge| sge.pd_id != self.pd_id) {
            return Err(Refused { held, cause: PostError::Pd });
        }
        let block = self.blocks.at(self.pi);
        let mut ds = 1;
        if let Some(remote) = remote {
            put_remote(block, remote);
            ds = 2;
            if let Some(sge) = sge {
                put_data::<0x20, 0x28>(block, sge);
                ds = 3;
            }
        } else if let Some(sge) = sge {
            put_data::<0x10, 0x18>(block, sge);
            ds = 2;
        }
        self.finish(opcode, imm, ds, kind, wr, held);
        Ok(())
    }

    /// Writes a request whose data stand in it.
    #[inline(always)]
    pub(super) fn push_inline(&mut self, wr: &SendWr<'_>, data: &[u8]) -> Result<(), PostError> {
        if !self.has_room() {
            return Err(PostError::Full);
        }
        if data.len() > self.max_inline as usize {
            return Err(PostError::InlineTooLong);
        }
        let (Ok(eight), Some((opcode, imm, kind, remote))) =
            (<[u8; 8]>::try_from(data), straight(&wr.op))
        else {
            return self.push_inline_any(wr, data);
        };
        if kind == WcOpcode::Read {
            return Err(PostError::Operation);
        }
        let block = self.blocks.at(self.pi);
        let ds = if let Some(remote) = remote {
            put_remote(block, remote);
            put_eight::<0x20, 0x28>(block, eight);
            3
        } else {
            put_eight::<0x10, 0x18>(block, eight);
            2
        };
        self.finish(opcode, imm, ds, kind, wr, None);
        Ok(())
    }

    /// Writes the control segment of a request of one block, notes what it holds, and moves past
    /// it.
    #[inline(always)]
    fn finish(
        &mut self,
        opcode: Opcode,
        imm: u32,
        ds: u32,
        kind: WcOpcode,
        wr: &SendWr<'_>,
        held: Option<B>,
    ) {
        let next = self.pi.wrapping_add(1);
        let mut flags = u32::from(wr.flags.bits() & SE);
        if wr.flags.contains(SendFlags::FENCE) || self.has_next_fence() {
            flags |= self.fence(wr.flags);
        }
        // A run without completions would fill the ring for ever; half of it is enough.
        if wr.flags.contains(SendFlags::SIGNALED) || self.is_long_run(next) {
            flags |= CE_ALWAYS;
            self.signaled = next;
        }
        let index = (self.pi & 0xffff) << 8 | u32::from(opcode.0);
        let ctrl = (u64::from(index) << 32 | u64::from(self.qpn << 8 | ds)).to_be();
        let block = self.blocks.at(self.pi);
        block.store_raw64::<0x00>(ctrl);
        block.store_raw64::<0x08>((u64::from(flags) << 32 | u64::from(imm)).to_be());
        self.last_ctrl = ctrl;
        self.last_block = self.pi;
        let slot = &mut self.slots[self.pi as usize & self.slot_mask];
        slot.wr_id = wr.wr_id;
        slot.opcode = kind;
        slot.flags = wr.flags;
        slot.blocks = 1;
        // Its place is empty: the slot's former request ended, see `complete`. Saying so spares
        // the check.
        std::mem::forget(std::mem::replace(&mut slot.buffers, held));
        self.pi = next;
        self.posted += 1;
    }

    /// Ends every request up to the one that a completion without error names, and gives each to
    /// `each`. `false` if the completion cannot be right; then nothing was ended.
    #[inline(always)]
    pub(super) fn complete_good(
        &mut self,
        completion: &Completion,
        each: &mut impl FnMut(Wc<B>),
    ) -> bool {
        let at = self.ci;
        let slot = &mut self.slots[at as usize & self.slot_mask];
        let is_next = completion.wqe_counter() == at as u16 && at != self.pi;
        if !is_next || !matches!(slot.other, Other::Nothing) {
            return self.complete(completion, None, each);
        }
        let buffers = slot.buffers.take();
        self.ci = at.wrapping_add(slot.blocks.into());
        self.ended += 1;
        each(Wc {
            wr_id: slot.wr_id,
            opcode: slot.opcode,
            result: Ok(()),
            is_signaled: slot.flags.contains(SendFlags::SIGNALED),
            byte_len: if slot.opcode.brings_bytes() { completion.byte_cnt() } else { 0 },
            recv: RecvInfo::default(),
            returned: buffers.map_or(Returned::Nothing, Returned::Buffers),
        });
        true
    }

    /// Which operations may be posted: none but in RTS.
    pub(super) fn allow(&mut self, state: QpState, operations: u32) {
        self.allowed = if state == QpState::Rts { operations } else { 0 };
    }

    /// Whether an operation may be posted, by its number.
    #[inline(always)]
    pub(super) fn allows(&self, operation: u32) -> bool {
        self.allowed >> operation & 1 != 0
    }
}
