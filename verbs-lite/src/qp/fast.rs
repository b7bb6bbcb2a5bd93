//! The straight path of a send queue: requests that fit their first block. Everything else is in
//! [`super::sq`].
//!
//! Words of a block have constant places here, so the compiler needs one mask for all of them.

use ferrocx_bus::Slot as Block;
use ferrocx_prm::wqe::Opcode;

use super::QpState;
use super::sq::{CE_ALWAYS, Entry, Slot, Sq};
use super::wqe::{INLINE, pair, put_control};
use crate::mr::{Buffers, Sge};
use crate::types::RemoteAddr;
use crate::wr::{SendFlags, SendOp, SendWr, WcOpcode};

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

    #[inline(always)]
    fn entry(self, wr: &SendWr<'_>) -> Entry {
        Entry { wr_id: wr.wr_id, opcode: self.is, flags: wr.flags }
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

impl<B: Buffers> Sq<B> {
    /// Writes a request of one entry that needs no closer look. Gives back what it holds if it
    /// needs one: [`Sq::push_any`] writes any request.
    #[inline(always)]
    pub(super) fn push_straight(
        &mut self,
        wr: &SendWr<'_>,
        held: Option<B>,
    ) -> Result<(), Option<B>> {
        if !self.is_straight(wr) {
            return Err(held);
        }
        let Some(sge) = held.as_ref().and_then(B::only_sge) else { return Err(held) };
        // A data segment without bytes would mean 2 GiB. Source: reference 6.3.
        if sge.len == 0 || !self.reach.takes(&sge) {
            return Err(held);
        }
        // Each arm is a copy of its own, in which places and opcodes are constants.
        let slot = match wr.op {
            SendOp::Send => self.put_one(Kind::SEND, None, wr, sge),
            SendOp::SendImm(imm) => self.put_one(Kind::SEND_IMM.with(imm), None, wr, sge),
            SendOp::Write(remote) => self.put_one(Kind::WRITE, Some(remote), wr, sge),
            SendOp::WriteImm(remote, imm) => {
                self.put_one(Kind::WRITE_IMM.with(imm), Some(remote), wr, sge)
            }
            SendOp::Read(remote) if held.as_ref().is_some_and(B::is_exclusive) => {
                self.put_one(Kind::READ, Some(remote), wr, sge)
            }
            _ => return Err(held),
        };
        slot.hold(held);
        Ok(())
    }

    #[inline(always)]
    fn put_one(
        &mut self,
        kind: Kind,
        remote: Option<RemoteAddr>,
        wr: &SendWr<'_>,
        sge: Sge,
    ) -> &mut Slot<B> {
        let at = self.pi;
        let flags = self.control_flags(wr.flags);
        let block = self.blocks.at(at as u32);
        let ds = match remote {
            None => {
                put_data::<0x10, 0x18>(block, sge);
                2
            }
            Some(remote) => {
                put_remote(block, remote);
                put_data::<0x20, 0x28>(block, sge);
                3
            }
        };
        let ctrl = put_control(block, (at, self.qpn), (kind.opcode, kind.imm), ds, flags);
        self.note((at, 1), ctrl, kind.entry(wr))
    }

    /// Writes a request of eight bytes that stand in it, if it needs no closer look.
    /// [`Sq::push_inline_any`] writes any request. Whether it was written.
    #[inline(always)]
    pub(super) fn push_inline_straight(&mut self, wr: &SendWr<'_>, data: &[u8]) -> bool {
        let Ok(eight) = <[u8; 8]>::try_from(data) else { return false };
        if !self.is_straight(wr) || self.max_inline < 8 {
            return false;
        }
        match wr.op {
            SendOp::Send => self.put_eight(Kind::SEND, None, wr, eight),
            SendOp::SendImm(imm) => self.put_eight(Kind::SEND_IMM.with(imm), None, wr, eight),
            SendOp::Write(remote) => self.put_eight(Kind::WRITE, Some(remote), wr, eight),
            SendOp::WriteImm(remote, imm) => {
                self.put_eight(Kind::WRITE_IMM.with(imm), Some(remote), wr, eight)
            }
            _ => return false,
        };
        true
    }

    #[inline(always)]
    fn put_eight(
        &mut self,
        kind: Kind,
        remote: Option<RemoteAddr>,
        wr: &SendWr<'_>,
        eight: [u8; 8],
    ) -> &mut Slot<B> {
        let at = self.pi;
        let flags = self.control_flags(wr.flags);
        let block = self.blocks.at(at as u32);
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
        let ctrl = put_control(block, (at, self.qpn), (kind.opcode, kind.imm), ds, flags);
        self.note((at, 1), ctrl, kind.entry(wr))
    }

    /// The third dword of the control segment of a request of one block.
    #[inline(always)]
    fn control_flags(&mut self, wanted: SendFlags) -> u32 {
        let flags = u32::from(wanted.bits() & SE) | std::mem::take(&mut self.next_fence);
        if !wanted.contains(SendFlags::SIGNALED) {
            return flags;
        }
        self.signaled = self.pi + 1;
        flags | CE_ALWAYS
    }

    /// Whether a request needs no closer look: it may be posted and fits, need not be signaled if
    /// it is not, and waits at most for the one before it.
    #[inline(always)]
    fn is_straight(&self, wr: &SendWr<'_>) -> bool {
        self.allows(wr.op.number()) && self.is_clear() && !wr.flags.contains(SendFlags::FENCE)
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
