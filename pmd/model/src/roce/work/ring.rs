//! Receive WQEs of queue pairs: own rings, pools and shared queues.
//!
//! Source: reference 6.5, 6.6.

use ferrocx_bus::local::DmaView;
use ferrocx_prm::cqe::CqeOpcode;
use ferrocx_prm::eqe::EventType;
use ferrocx_prm::syndrome::CqeSyndrome;
use ferrocx_prm::wqe::HW_START_PADDING;

use super::env::{Env, complete_error};
use crate::bits::low16;
use crate::objects::mkey::{MemAccess, Rights};
use crate::objects::{Qp, QpReceive, QpType, ReceiveRing, ScatterList, TakenReceive, WorkQueue};
use crate::queue::dma;
use crate::queue::ring::{advance, scatter_list};

/// Longest receive WQE. Source: reference 5.10, `max_wqe_sz_rq` = 0x200.
const MAX_WQE_BYTES: usize = 512;
/// Most receive WQEs have at most four segments.
const SHORT_WQE_BYTES: usize = 64;

/// Receives that a failed queue pair flushes in one turn.
const FLUSHED_PER_TURN: usize = 256;

/// The ring cannot be read, or its record says what cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lost;

/// Reads how much is posted; returns how many entries there are to take.
fn refill(mem: &DmaView<'_>, wq: &WorkQueue, ring: &mut ReceiveRing) -> Result<u16, Lost> {
    let record = mem.load_acquire_be32(wq.dbr_addr).map_err(|_| Lost)?;
    // Low 16 bits are significant: reference 6.6.
    let posted = low16(record.into());
    let left = posted.wrapping_sub(ring.consumed);
    if u32::from(left) > 1 << wq.log_size {
        return Err(Lost);
    }
    ring.posted = posted;
    Ok(left)
}

/// Takes the next entry of a ring: gives its counter or index, and puts its buffers into `list`.
fn next(
    mem: &DmaView<'_>,
    wq: &WorkQueue,
    ring: &mut ReceiveRing,
    list: &mut ScatterList,
) -> Result<Option<u16>, Lost> {
    if ring.posted == ring.consumed && refill(mem, wq, ring)? == 0 {
        return Ok(None);
    }
    // Most are short, and clearing room for the longest would take longer than reading one.
    let (mut short, mut long);
    let wqe: &mut [u8] = match 1_usize << wq.log_stride.min(9) {
        stride @ ..=SHORT_WQE_BYTES => {
            short = [0; SHORT_WQE_BYTES];
            &mut short[..stride]
        }
        stride => {
            long = [0; MAX_WQE_BYTES];
            &mut long[..stride]
        }
    };
    let mask = (1_u16 << wq.log_size.min(15)) - 1;
    let is_linked = wq.wq_type.is_linked();
    let index = if is_linked { ring.next_wqe } else { ring.consumed } & mask;
    let at = wq.memory.locate(u64::from(index) << wq.log_stride);
    mem.read(at, wqe).map_err(|_| Lost)?;
    let counter = if is_linked { index } else { ring.consumed };
    advance(wq, ring, wqe);
    list.clear();
    for data in scatter_list(wq, wqe) {
        let len = data.byte_count() & !HW_START_PADDING;
        if len != 0 && list.try_push(data.with_byte_count(len)).is_err() {
            break;
        }
    }
    Ok(Some(counter))
}

/// Takes a receive for a queue pair, whose `buffers` it changes. An XRC packet names the shared
/// queue in `xrc_srqn`.
pub(super) fn take(
    qp: &mut Qp,
    env: &mut Env<'_>,
    xrc_srqn: Option<u32>,
) -> Result<Option<TakenReceive>, Lost> {
    let (mem, rlky) = (env.mem, qp.context.rlky());
    let srqn = match (&qp.receive, xrc_srqn) {
        (_, Some(srqn)) => srqn,
        (QpReceive::Srq(srqn), None) => *srqn,
        (QpReceive::None, None) => return Ok(None),
        (QpReceive::Own(wq), None) => {
            let taken = next(mem, wq, &mut qp.ring, &mut qp.buffers)?;
            let pd = wq.pd;
            return Ok(taken.map(|wqe_counter| TakenReceive {
                wqe_counter,
                filled: 0,
                xrc_srqn: None,
                pd,
                rlky,
            }));
        }
        (QpReceive::Rmp(rmpn), None) => {
            let rmpn = *rmpn;
            let Some(rmp) = env.rmps.get_mut(rmpn) else { return Err(Lost) };
            let taken = next(mem, &rmp.wq, &mut rmp.ring, &mut qp.buffers)?;
            let is_low = is_below(mem, &rmp.wq, &mut rmp.ring, &mut rmp.limit);
            let pd = rmp.wq.pd;
            if is_low {
                env.event(EventType::SRQ_LIMIT, rmpn);
            }
            return Ok(taken.map(|wqe_counter| TakenReceive {
                wqe_counter,
                filled: 0,
                xrc_srqn: None,
                pd,
                rlky,
            }));
        }
    };
    let Some(srq) = env.srqs.get_mut(srqn) else { return Err(Lost) };
    let taken = next(mem, &srq.wq, &mut srq.ring, &mut qp.buffers)?;
    let is_low = is_below(mem, &srq.wq, &mut srq.ring, &mut srq.limit);
    let (pd, rlky) = (srq.wq.pd, srq.rlky);
    if is_low {
        env.event(EventType::SRQ_LIMIT, srqn);
    }
    let xrc_srqn = Some(srqn);
    Ok(taken.map(|wqe_counter| TakenReceive { wqe_counter, filled: 0, xrc_srqn, pd, rlky }))
}

/// Whether a shared queue has just fallen below its limit; the limit is then used up.
fn is_below(mem: &DmaView<'_>, wq: &WorkQueue, ring: &mut ReceiveRing, limit: &mut u32) -> bool {
    if *limit == 0 {
        return false;
    }
    let is_low = refill(mem, wq, ring).is_ok_and(|left| u32::from(left) < *limit);
    if is_low {
        *limit = 0;
    }
    is_low
}

/// Puts bytes into a receive, behind those that are there.
pub(super) fn scatter(
    env: &Env<'_>,
    (list, taken): (&ScatterList, &mut TakenReceive),
    bytes: &[u8],
) -> Result<(), (CqeSyndrome, u64, &'static str)> {
    let mut skip = taken.filled as usize;
    let mut done = 0;
    for data in list {
        let len = data.byte_count() as usize;
        if skip >= len {
            skip -= len;
            continue;
        }
        let take = (len - skip).min(bytes.len() - done);
        let part = &bytes[done..done + take];
        let access = MemAccess {
            key: data.lkey(),
            addr: data.addr().wrapping_add(skip as u64),
            len: u32::try_from(take).unwrap_or(u32::MAX),
            rights: Rights::LOCAL_WRITE,
            pd: taken.pd,
            rlky: taken.rlky,
            qpn: env.qpn,
        };
        dma::write(env.mem, env.keys, &access, part)
            .map_err(|refused| (refused.syndrome(), data.lkey().into(), refused.why()))?;
        done += take;
        skip = 0;
        if done == bytes.len() {
            break;
        }
    }
    if done < bytes.len() {
        return Err(too_long(bytes.len() as u64));
    }
    taken.filled = taken.filled.saturating_add(u32::try_from(done).unwrap_or(u32::MAX));
    Ok(())
}

/// Bytes that a receive can take.
pub(super) fn room(list: &ScatterList) -> usize {
    list.iter().map(|data| data.byte_count() as usize).sum()
}

/// Puts the receive that was just taken back into the queue pair's own ring. `false` if it came
/// from a shared queue, where it stays taken.
pub(super) fn give_back(qp: &mut Qp) -> bool {
    let is_own = matches!(qp.receive, QpReceive::Own(_));
    if is_own {
        qp.ring.consumed = qp.ring.consumed.wrapping_sub(1);
    }
    is_own
}

/// Counts bytes as received that the driver itself will put into the buffers.
pub(super) fn skip(
    (list, taken): (&ScatterList, &mut TakenReceive),
    len: u32,
) -> Result<(), (CqeSyndrome, u64, &'static str)> {
    if len as usize > room(list) {
        return Err(too_long(len.into()));
    }
    taken.filled = len;
    Ok(())
}

#[cold]
fn too_long(len: u64) -> (CqeSyndrome, u64, &'static str) {
    (CqeSyndrome::LOCAL_LENGTH_ERR, len, "the message does not fit the buffers of its WQE")
}

/// Completes every receive posted to the queue pair's own ring with "flushed".
///
/// Receives of shared queues stay: they belong to all their queue pairs.
pub(super) fn flush(qp: &mut Qp, env: &mut Env<'_>) -> bool {
    let mut busy = false;
    for _ in 0..FLUSHED_PER_TURN {
        let QpReceive::Own(wq) = &qp.receive else { return busy };
        if qp.ring.posted == qp.ring.consumed
            && refill(env.mem, wq, &mut qp.ring).is_ok_and(|left| left == 0)
        {
            return busy;
        }
        if qp.ring.posted == qp.ring.consumed {
            return busy;
        }
        busy = true;
        let counter = qp.ring.consumed;
        advance(wq, &mut qp.ring, &[]);
        let (cqn, index) = (qp.context.cqn_rcv(), qp.context.user_index());
        let syndrome = CqeSyndrome::WR_FLUSH_ERR;
        let opcode = CqeOpcode::RESPONDER_ERROR;
        complete_error(qp, env, cqn, opcode, (0, counter), index, syndrome);
    }
    busy
}

/// Completion queue and user index of a receive.
pub(super) fn destination(qp: &Qp, env: &Env<'_>, taken: &TakenReceive) -> (u32, u32) {
    let own = (qp.context.cqn_rcv(), qp.context.user_index());
    // What an XRC receive is completed with belongs to its shared queue.
    let shared = taken.xrc_srqn.filter(|_| qp.qp_type == QpType::Xrc);
    let srq = shared.and_then(|srqn| env.srqs.get(srqn));
    srq.map_or(own, |srq| (srq.cqn, srq.user_index))
}

/// Completes a receive with an error.
pub(super) fn report(qp: &mut Qp, env: &mut Env<'_>, taken: &TakenReceive, syndrome: CqeSyndrome) {
    let (cqn, index) = destination(qp, env, taken);
    let wqe = (0, taken.wqe_counter);
    complete_error(qp, env, cqn, CqeOpcode::RESPONDER_ERROR, wqe, index, syndrome);
}
