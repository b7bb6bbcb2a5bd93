//! The straight path of a send queue: requests that fit their first block. Everything else is in
//! [`super::sq`].
//!
//! Words of a block have constant places here, so the compiler needs one mask for all of them.

use ferrocx_core::wq::{Control, Unit, put_data, put_inline_8, put_raddr};
use ferrocx_prm::wqe::{CE_ALWAYS, Ctrl, DS_BYTES, Opcode};

use super::QpState;
use super::sq::{Entry, Slot, Sq};
use crate::mr::Buffers;
use crate::types::RemoteAddr;
use crate::wr::{SendFlags, SendOp, SendWr, WcOpcode};

/// Bit of "solicited event" in the control segment; the same as that of the flag.
const SE: u8 = SendFlags::SOLICITED.bits();
const _: () = assert!(SE as u32 == Ctrl::SE.mask(), "the flag is the bit");

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

impl<B: Buffers> Sq<B> {
    /// Posts a request of one entry that needs no closer look. Gives back what it holds if it
    /// needs one: [`Sq::push_slowly`] posts any request.
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
        let put = |unit: Unit<'_>| put_data(unit, sge.len, sge.lkey_be, sge.addr);
        let slot = match wr.op {
            SendOp::Read(remote) if held.as_ref().is_some_and(B::is_exclusive) => {
                Some(self.put(Kind::READ, Some(remote), wr, put))
            }
            SendOp::Read(_) => None,
            _ => self.put_message(wr, put),
        };
        match slot {
            Some(slot) => slot.hold(held),
            None => return Err(held),
        }
        Ok(())
    }

    /// Posts a request of eight bytes that stand in it, if it needs no closer look.
    /// [`Sq::push_inline_slowly`] posts any request. Whether it was posted.
    #[inline(always)]
    pub(super) fn push_inline_straight(&mut self, wr: &SendWr<'_>, data: &[u8]) -> bool {
        let Ok(eight) = <[u8; 8]>::try_from(data) else { return false };
        if !self.is_straight(wr) || self.max_inline < 8 {
            return false;
        }
        self.put_message(wr, |unit| put_inline_8(unit, eight)).is_some()
    }

    /// Writes a request that brings bytes to the peer, which `put` writes; `None` for another.
    #[inline(always)]
    fn put_message(&mut self, wr: &SendWr<'_>, put: impl FnOnce(Unit<'_>)) -> Option<&mut Slot<B>> {
        // Each arm is a copy of its own, in which places and opcodes are constants.
        Some(match wr.op {
            SendOp::Send => self.put(Kind::SEND, None, wr, put),
            SendOp::SendImm(imm) => self.put(Kind::SEND_IMM.with(imm), None, wr, put),
            SendOp::Write(remote) => self.put(Kind::WRITE, Some(remote), wr, put),
            SendOp::WriteImm(remote, imm) => {
                self.put(Kind::WRITE_IMM.with(imm), Some(remote), wr, put)
            }
            _ => return None,
        })
    }

    #[inline(always)]
    fn put(
        &mut self,
        kind: Kind,
        remote: Option<RemoteAddr>,
        wr: &SendWr<'_>,
        put: impl FnOnce(Unit<'_>),
    ) -> &mut Slot<B> {
        let (at, flags) = (self.ring.pi, self.control_flags(wr.flags));
        let block = self.ring.block(0);
        let second = block.part::<DS_BYTES, DS_BYTES>();
        let ds = match remote {
            None => {
                put(second);
                2
            }
            Some(remote) => {
                put_raddr(second, remote.addr, remote.rkey.0);
                put(block.part::<{ 2 * DS_BYTES }, DS_BYTES>());
                3
            }
        };
        let control = Control { opcode: kind.opcode, imm: kind.imm, flags };
        let written = self.ring.written((block, at), control, ds, 1);
        self.ring.post(written);
        self.ring_unless_more(wr.flags);
        self.note(at, 1, kind.entry(wr))
    }

    /// The third dword of the control segment of a request of one block.
    #[inline(always)]
    fn control_flags(&mut self, wanted: SendFlags) -> u32 {
        let flags = u32::from(wanted.bits() & SE) | std::mem::take(&mut self.next_fence);
        if !wanted.contains(SendFlags::SIGNALED) {
            return flags;
        }
        self.signaled = self.ring.pi + 1;
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
