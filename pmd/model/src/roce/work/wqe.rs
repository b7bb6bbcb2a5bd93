//! Send WQEs of queue pairs: reading them from their ring, and what they ask for.
//!
//! Source: reference 6.1 to 6.3, 6.12, 7.2.

use ferrocx_prm::layout::Part;
use ferrocx_prm::wqe::{
    AddressVector, Atomic, BASIC_BLOCK_BYTES, Ctrl, DS_BYTES, MaskedCompareSwap,
    MaskedCompareSwap32, MaskedFetchAdd, MaskedFetchAdd32, Opcode, Raddr, Xrc,
};

use super::env::Env;
use crate::bits::low16;
use crate::objects::mkey::{MemAccess, Rights};
use crate::objects::{Qp, QpType, SendJob, WqeBytes};
use crate::queue::wqe::{Segment, Segments, WqeFault, check_ctrl};
use crate::roce::transport::atomic::{Operands, Size};
use crate::roce::transport::bth::Transport;
use crate::roce::transport::requester::{Fence, Kind};
use crate::roce::transport::responder::packets_of;

/// Longest send WQE: 63 units of 16 bytes, in whole basic blocks.
const MAX_WQE_BYTES: usize = 1024;

/// Reads the next WQE; its length is what its control segment says, within what is posted.
pub(super) fn read_wqe(qp: &mut Qp, env: &Env<'_>) -> Option<(WqeBytes, u16)> {
    let log_size = qp.log_sq_size?;
    let mut first = [0; BASIC_BLOCK_BYTES];
    read_block(qp, env, log_size, qp.sq_fetched, &mut first)?;
    let ds = Ctrl::load(&first[..DS_BYTES]).ds() as usize;
    let pending = qp.sq_posted.wrapping_sub(qp.sq_fetched);
    let blocks = low16(ds.div_ceil(4).max(1) as u64).min(pending);
    qp.stats.dma_reads += u64::from(blocks);
    let len = (ds.max(1) * DS_BYTES).min(usize::from(blocks) * BASIC_BLOCK_BYTES);
    if blocks <= 1 {
        return Some((WqeBytes::from(&first[..len]), blocks));
    }
    let mut bytes = [0; MAX_WQE_BYTES];
    bytes[..BASIC_BLOCK_BYTES].copy_from_slice(&first);
    for block in 1..blocks {
        let at = usize::from(block) * BASIC_BLOCK_BYTES;
        let index = qp.sq_fetched.wrapping_add(block);
        read_block(qp, env, log_size, index, &mut bytes[at..at + BASIC_BLOCK_BYTES])?;
    }
    Some((WqeBytes::from(&bytes[..len]), blocks))
}

fn read_block(qp: &Qp, env: &Env<'_>, log_size: u32, index: u16, out: &mut [u8]) -> Option<()> {
    let mask = (1_u64 << log_size) - 1;
    let mut at = qp.sq_at + (u64::from(index) & mask) * BASIC_BLOCK_BYTES as u64;
    let mut done = 0;
    while done < out.len() {
        let run = usize::try_from(qp.memory.run_bytes(at)).unwrap_or(usize::MAX);
        let step = run.min(out.len() - done);
        env.mem.read(qp.memory.locate(at), &mut out[done..done + step]).ok()?;
        done += step;
        at += step as u64;
    }
    Some(())
}

pub(super) fn job(wqe: WqeBytes, counter: u16) -> SendJob {
    let ctrl = Ctrl::load(&wqe[..DS_BYTES]);
    SendJob {
        wqe,
        ctrl,
        counter,
        data_at: DS_BYTES,
        len: 0,
        raddr: 0,
        rkey: 0,
        operands: Operands::default(),
        xrc_srqn: 0,
        av: None,
        answer: None,
    }
}

pub(super) fn opcode(job: &SendJob) -> Opcode {
    Opcode(job.ctrl.0[3])
}

/// Whether a service can send an opcode. Source: reference 7.2; 6.2.
fn is_allowed(qp_type: QpType, opcode: Opcode) -> bool {
    match opcode {
        Opcode::NOP => true,
        Opcode::UMR => !matches!(qp_type, QpType::Ud | QpType::Gsi),
        Opcode::SEND | Opcode::SEND_IMM => qp_type != QpType::RegUmr,
        Opcode::RDMA_WRITE | Opcode::RDMA_WRITE_IMM => qp_type.is_connected(),
        Opcode::SEND_INVAL | Opcode::RDMA_READ | Opcode::ATOMIC_CS | Opcode::ATOMIC_FA => {
            qp_type.is_reliable()
        }
        Opcode::ATOMIC_MASKED_CS | Opcode::ATOMIC_MASKED_FA => qp_type == QpType::Rc,
        _ => false,
    }
}

/// Decodes a WQE: what it is to the protocol, what it waits for, how many PSNs it takes.
pub(super) fn decode(qp: &Qp, qpn: u32, job: &mut SendJob) -> Result<(Kind, Fence, u32), WqeFault> {
    check_ctrl(&job.ctrl, qpn, job.counter)?;
    let (ctrl, code) = (job.ctrl, opcode(job));
    let ds = ctrl.ds();
    if ds == 0 || ds as usize * DS_BYTES != job.wqe.len() {
        let why = "the WQE is empty or longer than what is posted";
        return Err(WqeFault::operation("ctrl.ds", ds.into(), why));
    }
    if !is_allowed(qp.qp_type, code) {
        let why = "an opcode that this queue pair does not carry out";
        return Err(WqeFault::operation("ctrl.opcode", code.0.into(), why));
    }
    // Small fences order what is carried out in order anyway. Source: reference 6.1, 6.12.
    let fence = match ctrl.fm() {
        0 | 1 => Fence::None,
        2 | 4 => Fence::Reads,
        3 => Fence::All,
        other => return Err(WqeFault::operation("ctrl.fm", other.into(), "no such fence")),
    };
    if matches!(code, Opcode::NOP | Opcode::UMR) {
        return Ok((Kind::Local, fence, 0));
    }
    read_segments(qp.qp_type, code, job)?;
    let segments = Segments::new(&job.wqe[job.data_at..]);
    let total = segments.total()?;
    let limit = match qp.qp_type.transport() {
        Some(Transport::Ud) => qp.mtu_bytes(),
        _ => 1 << qp.context.log_msg_max().min(31),
    };
    let len = u32::try_from(total).ok().filter(|len| *len <= limit);
    job.len = len.ok_or_else(|| {
        WqeFault::length("data.byte_count", total as u64, "longer than a message may be")
    })?;
    let packets = packets_of(job.len, qp.mtu_bytes());
    let takes_answer = code == Opcode::RDMA_READ || is_atomic(code);
    if takes_answer && segments.into_iter().any(|part| matches!(part, Ok(Segment::Inline(_)))) {
        return Err(WqeFault::operation("inline", 1, "an answer cannot be scattered inline"));
    }
    Ok(match code {
        Opcode::RDMA_READ => (Kind::Read, fence, packets),
        _ if is_atomic(code) && job.len != job.operands.size.bytes() => {
            let why = "not the size of the atomic's operands";
            return Err(WqeFault::length("data.byte_count", job.len.into(), why));
        }
        _ if is_atomic(code) => (Kind::Atomic, fence, 1),
        _ => (Kind::Push, fence, packets),
    })
}

/// Reads what stands between control and data segments.
fn read_segments(qp_type: QpType, code: Opcode, job: &mut SendJob) -> Result<(), WqeFault> {
    let ds = u64::from(job.ctrl.ds());
    let short = || WqeFault::operation("ctrl.ds", ds, "too short for its opcode");
    let mut at = DS_BYTES;
    let end = job.wqe.len();
    let mut part = |len: usize| {
        let start = at;
        at += len;
        if at <= end { Ok(start..at) } else { Err(short()) }
    };
    if qp_type == QpType::Xrc {
        job.xrc_srqn = Xrc::load(&job.wqe[part(DS_BYTES)?]).xrc_srqn();
    }
    if matches!(qp_type, QpType::Ud | QpType::Gsi) {
        let av = AddressVector::load(&job.wqe[part(AddressVector::LEN_BYTES)?]);
        if !av.ext() {
            return Err(WqeFault::operation("av.ext", 0, "RoCE needs the whole address vector"));
        }
        job.av = Some(av);
    }
    let has_raddr = !matches!(code, Opcode::SEND | Opcode::SEND_IMM | Opcode::SEND_INVAL);
    if has_raddr {
        let raddr = Raddr::load(&job.wqe[part(DS_BYTES)?]);
        (job.raddr, job.rkey) = (raddr.raddr(), raddr.rkey());
    }
    if matches!(code, Opcode::ATOMIC_CS | Opcode::ATOMIC_FA) {
        let atomic = Atomic::load(&job.wqe[part(DS_BYTES)?]);
        job.operands = Operands::plain(atomic.swap_add(), atomic.compare());
    } else if is_atomic(code) {
        let size = masked_size(&job.ctrl)?;
        job.operands = match (code, size) {
            (Opcode::ATOMIC_MASKED_CS, Size::Four) => {
                let with = MaskedCompareSwap32::load(&job.wqe[part(DS_BYTES)?]);
                Operands {
                    swap_add: with.swap().into(),
                    compare: with.compare().into(),
                    swap_mask: with.swap_mask().into(),
                    compare_mask: with.compare_mask().into(),
                    size,
                }
            }
            (Opcode::ATOMIC_MASKED_CS, Size::Eight) => {
                let with = MaskedCompareSwap::load(&job.wqe[part(2 * DS_BYTES)?]);
                Operands {
                    swap_add: with.swap(),
                    compare: with.compare(),
                    swap_mask: with.swap_mask(),
                    compare_mask: with.compare_mask(),
                    size,
                }
            }
            (_, Size::Four) => {
                let with = MaskedFetchAdd32::load(&job.wqe[part(DS_BYTES)?]);
                fields(with.add().into(), with.field_boundary().into(), size)
            }
            (_, Size::Eight) => {
                let with = MaskedFetchAdd::load(&job.wqe[part(DS_BYTES)?]);
                fields(with.add(), with.field_boundary(), size)
            }
        };
    }
    job.data_at = at;
    Ok(())
}

fn is_atomic(code: Opcode) -> bool {
    matches!(
        code,
        Opcode::ATOMIC_CS | Opcode::ATOMIC_FA | Opcode::ATOMIC_MASKED_CS | Opcode::ATOMIC_MASKED_FA
    )
}

/// Size of the operands of a masked atomic. Source: UCX, `UCT_IB_MLX5_OPMOD_EXT_ATOMIC`: bit 3, and
/// log2 of the size less 2.
fn masked_size(ctrl: &Ctrl) -> Result<Size, WqeFault> {
    match ctrl.opmod() {
        8 => Ok(Size::Four),
        9 => Ok(Size::Eight),
        other => {
            let why = "not 4 or 8 bytes, which is what atomic_size_qp says";
            Err(WqeFault::operation("ctrl.opmod", other.into(), why))
        }
    }
}

fn fields(add: u64, boundary: u64, size: Size) -> Operands {
    Operands { swap_add: add, compare: 0, swap_mask: boundary, compare_mask: 0, size }
}

/// The access of a data segment.
pub(super) fn access(
    qp: &Qp,
    qpn: u32,
    (key, addr): (u32, u64),
    len: usize,
    rights: Rights,
) -> MemAccess {
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    MemAccess { key, addr, len, rights, pd: qp.context.pd(), rlky: qp.context.rlky(), qpn }
}

/// Whether the memory of the request at a place of the queue is in no pieces of other keys.
pub(super) fn is_flat(qp: &Qp, env: &Env<'_>, index: usize) -> bool {
    qp.requester.get(index).is_none_or(|request| {
        let job = &request.job;
        Segments::new(&job.wqe[job.data_at..]).all(|segment| match segment {
            Ok(Segment::Pointer { lkey, .. }) => env.keys.is_flat(lkey),
            Ok(Segment::Inline(_)) | Err(_) => true,
        })
    })
}
