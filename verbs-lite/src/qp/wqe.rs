//! Writing a send request: its segments, one 16-byte unit after the other.

use ferrocx_bus::{RingView, Slot as Unit};
use ferrocx_prm::wqe::Opcode;

use crate::mr::Sge;
use crate::types::RemoteAddr;
use crate::wr::{SendOp, WcOpcode};

/// Bit 31 of an inline segment's header. Source: reference 6.3.
pub(super) const INLINE: u32 = 1 << 31;

/// Two dwords, given as they stand in memory, as one 64-bit word to store.
#[inline(always)]
pub(crate) fn pair(first: u32, second: u32) -> u64 {
    if cfg!(target_endian = "little") {
        u64::from(first) | u64::from(second) << 32
    } else {
        u64::from(second) | u64::from(first) << 32
    }
}

/// Writes the control segment of the request at position `at` of a queue; gives its first half,
/// which is what the doorbell is rung with.
#[inline(always)]
pub(super) fn put_control(
    block: Unit<'_, 64>,
    (at, qpn): (u64, u32),
    (opcode, imm): (Opcode, u32),
    ds: u32,
    flags: u32,
) -> u64 {
    let index = (at as u32 & 0xffff) << 8 | u32::from(opcode.0);
    let ctrl = (u64::from(index) << 32 | u64::from(qpn << 8 | ds)).to_be();
    block.store_raw64::<0x00>(ctrl);
    block.store_raw64::<0x08>((u64::from(flags) << 32 | u64::from(imm)).to_be());
    ctrl
}

/// A request being written: units follow each other, the first is the control segment's.
pub(super) struct Wqe<'r> {
    view: RingView<'r, 16>,
    at: u32,
}

impl<'r> Wqe<'r> {
    /// Starts at the unit `first`, which is the control segment's and is written last.
    #[inline(always)]
    pub(super) fn new(view: RingView<'r, 16>, first: u32) -> Self {
        Self { view, at: first.wrapping_add(1) }
    }

    /// The unit behind those written.
    #[inline(always)]
    pub(super) fn end(&self) -> u32 {
        self.at
    }

    /// The next unit.
    #[inline(always)]
    pub(super) fn unit(&mut self) -> Unit<'r, 16> {
        let unit = self.view.at(self.at);
        self.at = self.at.wrapping_add(1);
        unit
    }

    /// A remote address segment.
    #[inline(always)]
    pub(super) fn raddr(&mut self, remote: RemoteAddr) {
        let unit = self.unit();
        unit.store_be64::<0>(remote.addr);
        unit.store_raw64::<8>(pair(remote.rkey.0.to_be(), 0));
    }

    /// The operands of an atomic.
    #[inline(always)]
    pub(super) fn atomic(&mut self, swap_add: u64, compare: u64) {
        let unit = self.unit();
        unit.store_be64::<0>(swap_add);
        unit.store_be64::<8>(compare);
    }

    /// A data segment.
    #[inline(always)]
    pub(super) fn data(&mut self, sge: Sge) {
        let unit = self.unit();
        unit.store_raw64::<0>(pair(sge.len.to_be(), sge.lkey_be));
        unit.store_be64::<8>(sge.addr);
    }

    /// An inline data segment.
    #[inline(always)]
    pub(super) fn inline(&mut self, data: &[u8]) {
        let header = (INLINE | data.len() as u32).to_be();
        if let Ok(eight) = <[u8; 8]>::try_from(data) {
            let [a, b, c, d, e, f, g, h] = eight;
            let unit = self.unit();
            unit.store_raw64::<0>(pair(header, u32::from_ne_bytes([a, b, c, d])));
            unit.store_raw64::<8>(pair(u32::from_ne_bytes([e, f, g, h]), 0));
            return;
        }
        let (head, rest) = data.split_at(data.len().min(12));
        let mut first = [0; 16];
        first[..4].copy_from_slice(&header.to_ne_bytes());
        first[4..4 + head.len()].copy_from_slice(head);
        self.unit().store(&first);
        for chunk in rest.chunks(16) {
            let mut bytes = [0; 16];
            bytes[..chunk.len()].copy_from_slice(chunk);
            self.unit().store(&bytes);
        }
    }
}

/// Writes what stands between the control segment and the data; returns opcode, immediate dword,
/// and what the request is.
#[inline(always)]
pub(super) fn start(wqe: &mut Wqe<'_>, op: &SendOp<'_>) -> (Opcode, u32, WcOpcode) {
    match *op {
        // Frames have an Ethernet segment, which `super::raw` writes.
        SendOp::Send | SendOp::Frame => (Opcode::SEND, 0, WcOpcode::Send),
        SendOp::SendImm(imm) => (Opcode::SEND_IMM, imm, WcOpcode::Send),
        SendOp::SendInv(rkey) => (Opcode::SEND_INVAL, rkey.0, WcOpcode::Send),
        SendOp::Write(remote) => {
            wqe.raddr(remote);
            (Opcode::RDMA_WRITE, 0, WcOpcode::Write)
        }
        SendOp::WriteImm(remote, imm) => {
            wqe.raddr(remote);
            (Opcode::RDMA_WRITE_IMM, imm, WcOpcode::Write)
        }
        SendOp::Read(remote) => {
            wqe.raddr(remote);
            (Opcode::RDMA_READ, 0, WcOpcode::Read)
        }
        SendOp::CompareSwap { remote, compare, swap } => {
            wqe.raddr(remote);
            wqe.atomic(swap, compare);
            (Opcode::ATOMIC_CS, 0, WcOpcode::CompareSwap)
        }
        SendOp::FetchAdd { remote, add } => {
            wqe.raddr(remote);
            wqe.atomic(add, 0);
            (Opcode::ATOMIC_FA, 0, WcOpcode::FetchAdd)
        }
        SendOp::Datagram { to, imm } => {
            for unit in to.av.0.as_chunks::<16>().0 {
                wqe.unit().store(unit);
            }
            match imm {
                Some(imm) => (Opcode::SEND_IMM, imm, WcOpcode::Send),
                None => (Opcode::SEND, 0, WcOpcode::Send),
            }
        }
    }
}
