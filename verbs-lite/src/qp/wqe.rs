//! What stands in a send request behind its control segment, by its operation.

use ferrocx_core::wq::Wqe;
use ferrocx_prm::wqe::Opcode;

use crate::error::PostError;
use crate::mr::{Buffers, Reach, Sge};
use crate::wr::{SendOp, WcOpcode};

/// Writes a gather or scatter list of at most `max` entries; returns their number and bytes.
#[inline(always)]
pub(crate) fn gather(
    wqe: &mut Wqe<'_>,
    max: u32,
    reach: &Reach,
    list: impl Iterator<Item = Sge>,
) -> Result<(u32, u64), PostError> {
    let (mut count, mut bytes) = (0, 0);
    for sge in list {
        // A data segment without bytes would mean 2 GiB. Source: reference 6.3.
        if sge.len == 0 {
            continue;
        }
        let entry = reach.entry(sge);
        let Some(sge) = entry.filter(|_| count < max) else {
            return Err(PostError::of_sge(entry.is_some()));
        };
        wqe.data(sge.len, sge.lkey_be, sge.addr);
        count += 1;
        bytes += u64::from(sge.len);
    }
    Ok((count, bytes))
}

/// Writes the scatter list of a receive, and its end if it is shorter than `max` entries.
#[inline(always)]
pub(crate) fn scatter<B: Buffers>(
    mut wqe: Wqe<'_>,
    max: u32,
    reach: &Reach,
    list: &B,
) -> Result<(), PostError> {
    if !list.is_exclusive() {
        return Err(PostError::NotExclusive);
    }
    let (count, _) = gather(&mut wqe, max, reach, list.sinks())?;
    if count < max {
        wqe.end_list();
    }
    Ok(())
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
            wqe.raddr(remote.addr, remote.rkey.0);
            (Opcode::RDMA_WRITE, 0, WcOpcode::Write)
        }
        SendOp::WriteImm(remote, imm) => {
            wqe.raddr(remote.addr, remote.rkey.0);
            (Opcode::RDMA_WRITE_IMM, imm, WcOpcode::Write)
        }
        SendOp::Read(remote) => {
            wqe.raddr(remote.addr, remote.rkey.0);
            (Opcode::RDMA_READ, 0, WcOpcode::Read)
        }
        SendOp::CompareSwap { remote, compare, swap } => {
            wqe.raddr(remote.addr, remote.rkey.0);
            wqe.atomic(swap, compare);
            (Opcode::ATOMIC_CS, 0, WcOpcode::CompareSwap)
        }
        SendOp::FetchAdd { remote, add } => {
            wqe.raddr(remote.addr, remote.rkey.0);
            wqe.atomic(add, 0);
            (Opcode::ATOMIC_FA, 0, WcOpcode::FetchAdd)
        }
        SendOp::Datagram { to, imm } => {
            wqe.bytes(&to.av.0);
            match imm {
                Some(imm) => (Opcode::SEND_IMM, imm, WcOpcode::Send),
                None => (Opcode::SEND, 0, WcOpcode::Send),
            }
        }
    }
}
