//! What stands in a send request behind its control segment, by its operation.

use ferrocx_core::wq::{Control, Wqe};
use ferrocx_prm::wqe::Opcode;

use crate::error::PostError;
use crate::mr::{Buffers, Reach, Sge};
use crate::types::RemoteAddr;
use crate::wr::{SendOp, WcOpcode};

/// The data of a request: copied into it, or in what it holds, if anything.
#[derive(Debug)]
pub(super) enum Data<'a, B> {
    Inline(&'a [u8]),
    Held(Option<&'a B>),
}

/// What an operation is to the device and to the bookkeeping.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    opcode: Opcode,
    imm: u32,
    pub(super) is: WcOpcode,
    pub(super) remote: Option<RemoteAddr>,
}

impl Kind {
    #[inline(always)]
    pub(super) fn of(op: &SendOp<'_>) -> Self {
        let (opcode, imm, is, remote) = match *op {
            // Frames have an Ethernet segment, which `super::raw` writes.
            SendOp::Send | SendOp::Frame | SendOp::Datagram { imm: None, .. } => {
                (Opcode::SEND, 0, WcOpcode::Send, None)
            }
            SendOp::SendImm(imm) | SendOp::Datagram { imm: Some(imm), .. } => {
                (Opcode::SEND_IMM, imm, WcOpcode::Send, None)
            }
            SendOp::SendInv(rkey) => (Opcode::SEND_INVAL, rkey.0, WcOpcode::Send, None),
            SendOp::Write(to) => (Opcode::RDMA_WRITE, 0, WcOpcode::Write, Some(to)),
            SendOp::WriteImm(to, imm) => (Opcode::RDMA_WRITE_IMM, imm, WcOpcode::Write, Some(to)),
            SendOp::Read(from) => (Opcode::RDMA_READ, 0, WcOpcode::Read, Some(from)),
            SendOp::CompareSwap { remote, .. } => {
                (Opcode::ATOMIC_CS, 0, WcOpcode::CompareSwap, Some(remote))
            }
            SendOp::FetchAdd { remote, .. } => {
                (Opcode::ATOMIC_FA, 0, WcOpcode::FetchAdd, Some(remote))
            }
        };
        Self { opcode, imm, is, remote }
    }

    /// Its control segment, with a fence.
    #[inline(always)]
    pub(super) fn control(self, fence: u32) -> Control {
        Control { opcode: self.opcode, imm: self.imm, flags: fence }
    }
}

/// Writes a gather or scatter list of at most `max` entries, without its first `skip` bytes;
/// returns their number and bytes.
#[inline(always)]
pub(super) fn gather(
    wqe: &mut Wqe<'_>,
    max: u32,
    reach: &Reach,
    list: impl Iterator<Item = Sge>,
    mut skip: u32,
) -> Result<(u32, u64), PostError> {
    let (mut count, mut bytes) = (0, 0);
    for sge in list {
        let skipped = skip.min(sge.len);
        skip -= skipped;
        let len = sge.len - skipped;
        // A data segment without bytes would mean 2 GiB. Source: reference 6.3.
        if len == 0 {
            continue;
        }
        let entry = reach.entry(sge);
        let Some(sge) = entry.filter(|_| count < max) else {
            return Err(PostError::of_sge(entry.is_some()));
        };
        wqe.data(len, sge.lkey_be, sge.addr + u64::from(skipped));
        count += 1;
        bytes += u64::from(len);
    }
    Ok((count, bytes))
}

/// Writes the scatter list of a receive, and its end if it is shorter than `max` entries.
#[inline]
pub(crate) fn scatter<B: Buffers>(
    mut wqe: Wqe<'_>,
    max: u32,
    reach: &Reach,
    list: &B,
) -> Result<(), PostError> {
    if !list.is_exclusive() {
        return Err(PostError::NotExclusive);
    }
    let (count, _) = gather(&mut wqe, max, reach, list.recv_sges(), 0)?;
    if count < max {
        wqe.end_list();
    }
    Ok(())
}
