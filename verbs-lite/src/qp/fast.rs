//! The straight path of a send queue: requests that fit their first block, and completions of one
//! request that went well. Everything else is in [`super::sq`].
//!
//! Words of a block have constant places here, so the compiler needs one mask for all of them.

use ferrocx_bus::Slot as Block;
use ferrocx_prm::wqe::Opcode;

use super::QpState;
use super::sq::{CE_ALWAYS, Other, Slot, Sq};
use super::wqe::{INLINE, pair};
use crate::cq::Completion;
use crate::error::{PostError, Refused};
use crate::mr::{Buffers, Sge};
use crate::types::RemoteAddr;
use crate::wr::{RecvInfo, Returned, SendFlags, SendOp, SendWr, Wc, WcOpcode};

/// Bit of "solicited event" in the control segment; the same as that of the flag.
const SE: u8 = SendFlags::SOLICITED.bits();
const _: () = assert!(SE == 1 << 1, "reference 6.1, `se`");

/// What an operation is to the device and to the bookkeeping.
#[derive(Clone, Copy)]
struct Kind {
    opcode: Opcode,
    imm: u32,
    is: WcOpcode,
}

impl Kind {
    const SEND: Self = Self { opcode: Opcode::SEND, imm: 0, is: WcOpcode::Send };
    const WRITE: Self = Self { opcode: Opcode::RDMA_WRITE, imm: 0, is: WcOpcode::Write };
    const READ: Self = Self { opcode: Opcode::RDMA_READ, imm: 0, is: WcOpcode::Read };
    const SEND_IMM: Self = Self { opcode: Opcode::SEND_IMM, ..Self::SEND };
    const WRITE_IMM: Self = Self { opcode: Opcode::RDMA_WRITE_IMM, ..Self::WRITE };

    fn with(self, imm: u32) -> Self {
        Self { imm, ..self }
    }
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

/// Writes the control segment of the request at block `pi` of a queue; gives its first half, which
/// is what the doorbell is rung with.
#[inline(always)]
fn put_control(
    block: Block<'_, 64>,
    (pi, qpn): (u32, u32),
    kind: Kind,
    ds: u32,
    flags: u32,
) -> u64 {
    let index = (pi & 0xffff) << 8 | u32::from(kind.opcode.0);
    let ctrl = (u64::from(index) << 32 | u64::from(qpn << 8 | ds)).to_be();
    block.store_raw64::<0x00>(ctrl);
    block.store_raw64::<0x08>((u64::from(flags) << 32 | u64::from(kind.imm)).to_be());
    ctrl
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
        // Each arm is a copy of its own, in which places and opcodes are constants.
        match wr.op {
            SendOp::Send => self.push_one(Kind::SEND, None, wr, held),
            SendOp::SendImm(imm) => self.push_one(Kind::SEND_IMM.with(imm), None, wr, held),
            SendOp::Write(remote) => self.push_one(Kind::WRITE, Some(remote), wr, held),
            SendOp::WriteImm(remote, imm) => {
                self.push_one(Kind::WRITE_IMM.with(imm), Some(remote), wr, held)
            }
            SendOp::Read(remote) => self.push_one(Kind::READ, Some(remote), wr, held),
            _ => self.push_any(wr, held),
        }
    }

    /// Writes a request with one entry at most.
    #[inline(always)]
    fn push_one(
        &mut self,
        kind: Kind,
        remote: Option<RemoteAddr>,
        wr: &SendWr<'_>,
        held: Option<B>,
    ) -> Result<(), Refused<Option<B>>> {
        // A data segment without bytes would mean 2 GiB. Source: reference 6.3.
        let sge = held.as_ref().and_then(|buf| buf.sges().next()).filter(|sge| sge.len != 0);
        if sge.is_some_and(|sge| sge.pd_id != self.pd_id) {
            return Err(Refused { held, cause: PostError::Pd });
        }
        let flags = self.control_flags(wr.flags);
        let block = self.blocks.at(self.pi);
        let ds = match (remote, sge) {
            (None, None) => 1,
            (None, Some(sge)) => {
                put_data::<0x10, 0x18>(block, sge);
                2
            }
            (Some(remote), None) => {
                put_remote(block, remote);
                2
            }
            (Some(remote), Some(sge)) => {
                put_remote(block, remote);
                put_data::<0x20, 0x28>(block, sge);
                3
            }
        };
        let ctrl = put_control(block, (self.pi, self.qpn), kind, ds, flags);
        self.note_one(ctrl, kind, wr, held);
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
        let Ok(eight) = <[u8; 8]>::try_from(data) else {
            return self.push_inline_any(wr, data);
        };
        match wr.op {
            SendOp::Send => self.push_eight(Kind::SEND, None, wr, eight),
            SendOp::SendImm(imm) => self.push_eight(Kind::SEND_IMM.with(imm), None, wr, eight),
            SendOp::Write(remote) => self.push_eight(Kind::WRITE, Some(remote), wr, eight),
            SendOp::WriteImm(remote, imm) => {
                self.push_eight(Kind::WRITE_IMM.with(imm), Some(remote), wr, eight)
            }
            _ => return self.push_inline_any(wr, data),
        }
        Ok(())
    }

    /// Writes a request with eight bytes of data.
    #[inline(always)]
    fn push_eight(
        &mut self,
        kind: Kind,
        remote: Option<RemoteAddr>,
        wr: &SendWr<'_>,
        eight: [u8; 8],
    ) {
        let flags = self.control_flags(wr.flags);
        let block = self.blocks.at(self.pi);
        let ds = match remote {
            None => {
                put_eight::<0x10, 0x18>(block, eight);
                2
            }
            Some(remote) => {
                put_remote(block, remote);
                put_eight::<0x20, 0x28>(block, eight);
                3
            }
        };
        let ctrl = put_control(block, (self.pi, self.qpn), kind, ds, flags);
        self.note_one(ctrl, kind, wr, None);
    }

    /// The third dword of the control segment of a request of one block.
    #[inline(always)]
    fn control_flags(&mut self, wanted: SendFlags) -> u32 {
        let mut flags = u32::from(wanted.bits() & SE);
        if u32::from((wanted & SendFlags::FENCE).bits()) | self.next_fence != 0 {
            flags |= self.fence(wanted);
        }
        let next = self.pi.wrapping_add(1);
        // A run without completions would fill the ring for ever; half of it is enough.
        if wanted.contains(SendFlags::SIGNALED) || self.is_long_run(next) {
            flags |= CE_ALWAYS;
            self.signaled = next;
        }
        flags
    }

    /// Notes what a request of one block holds, and moves past it.
    #[inline(always)]
    fn note_one(&mut self, ctrl: u64, kind: Kind, wr: &SendWr<'_>, held: Option<B>) {
        let at = self.pi;
        (self.last_ctrl, self.last_block) = (ctrl, at);
        self.pi = at.wrapping_add(1);
        self.posted += 1;
        let slot = &mut self.slots[at as usize & self.slot_mask];
        slot.wr_id = wr.wr_id;
        (slot.opcode, slot.flags, slot.blocks) = (kind.is, wr.flags, 1);
        slot.buffers = held;
    }

    /// Whether a completion without error ends one request, the oldest, that holds at most a
    /// scatter or gather list.
    #[inline(always)]
    pub(super) fn ends_one(&self, completion: &Completion) -> bool {
        let slot = &self.slots[self.ci as usize & self.slot_mask];
        let is_oldest = completion.wqe_counter() == self.ci as u16 && self.ci != self.pi;
        is_oldest && matches!(slot.other, Other::Nothing)
    }

    /// Ends the oldest request; `byte_cnt` is what its completion says.
    #[inline(always)]
    pub(super) fn end_one(&mut self, byte_cnt: u32, each: &mut impl FnMut(Wc<B>)) {
        let slot = &mut self.slots[self.ci as usize & self.slot_mask];
        self.ci = self.ci.wrapping_add(slot.blocks.into());
        self.ended += 1;
        let wc = |slot: &Slot<B>, returned| Wc {
            wr_id: slot.wr_id,
            opcode: slot.opcode,
            result: Ok(()),
            is_signaled: slot.flags.contains(SendFlags::SIGNALED),
            byte_len: if slot.opcode.brings_bytes() { byte_cnt } else { 0 },
            recv: RecvInfo::default(),
            returned,
        };
        // Two calls, so that the caller's closure need not ask again what came back.
        match slot.buffers.take() {
            Some(buffers) => each(wc(slot, Returned::Buffers(buffers))),
            None => each(wc(slot, Returned::Nothing)),
        }
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
