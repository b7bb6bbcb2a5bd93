//! Work requests built by functions (`ibv_wr_*`): kept until the batch is complete, because what
//! is posted cannot be taken back and a batch for which there is no room is not posted at all.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use ferrocx_verbs_lite::{QpType, SendFlags};

use super::Errno;
use super::batch::{Batch, Data, Request};
use super::check;
use super::pair::Pair;
use super::post::{post_any, post_as_simple};
use super::queue_pair::QueuePair;
use crate::abi::{
    self, ABSENT, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_qp_ex, ibv_send_wr,
    ibv_sge, send, wr_atomic, wr_of, wr_op, wr_rdma, wr_ud,
};

/// The batch of a queue pair. Its builder alone reaches it, see [`wr_start`].
#[inline(always)]
unsafe fn batch<'a>(face: *mut ibv_qp_ex) -> &'a mut Batch {
    promised!(&mut *QueuePair::of(face.cast()).batch.get())
}

/// Whether somebody builds a batch.
#[inline(always)]
unsafe fn is_building<'a>(face: *mut ibv_qp_ex) -> &'a AtomicBool {
    promised!(&QueuePair::of(face.cast()).is_building)
}

/// Appends a request with the number and flags that the program has put into the queue pair;
/// `write` puts into it what its operation needs besides.
#[inline(always)]
unsafe fn add(face: *mut ibv_qp_ex, opcode: c_int, write: impl FnOnce(&mut ibv_send_wr)) {
    // Known at compile time: those that are posted most need nothing.
    if !check::is_plain(opcode) {
        promised!(batch(face)).needs_check = true;
    }
    match promised!(batch(face)).add() {
        Some(request) => promised!(begin(face, request, opcode, write)),
        None => promised!(add_behind_all(face, opcode, write)),
    }
}

/// Does what [`add`] does where there is no room yet. A function of its own, so that the other
/// saves no registers.
#[cold]
#[inline(never)]
unsafe fn add_behind_all(
    face: *mut ibv_qp_ex,
    opcode: c_int,
    write: impl FnOnce(&mut ibv_send_wr),
) {
    let batch = promised!(batch(face));
    batch.grow();
    if let Some(request) = batch.add() {
        promised!(begin(face, request, opcode, write));
    }
}

#[inline(always)]
unsafe fn begin(
    face: *mut ibv_qp_ex,
    request: &mut ibv_send_wr,
    opcode: c_int,
    write: impl FnOnce(&mut ibv_send_wr),
) {
    (request.wr_id, request.send_flags) = promised!(((*face).wr_id, (*face).wr_flags));
    request.opcode = opcode;
    write(request);
}

/// The address of a datagram before the program has said it.
const NOWHERE: wr_of = wr_of { ud: wr_ud { ah: null_mut(), remote_qpn: 0, remote_qkey: 0 } };

/// A place in memory of the peer's.
#[inline(always)]
fn place(rkey: u32, remote_addr: u64) -> wr_of {
    wr_of { rdma: wr_rdma { remote_addr, rkey } }
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    face: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare_add: u64,
    swap: u64,
) {
    let atomic = wr_atomic { remote_addr, compare_add, swap, rkey };
    promised!(add(face, wr_op::ATOMIC_CMP_AND_SWP, |wr| wr.wr = wr_of { atomic }));
}

unsafe extern "C" fn wr_atomic_fetch_add(
    face: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare_add: u64,
) {
    let atomic = wr_atomic { remote_addr, compare_add, swap: 0, rkey };
    promised!(add(face, wr_op::ATOMIC_FETCH_AND_ADD, |wr| wr.wr = wr_of { atomic }));
}

unsafe extern "C" fn wr_bind_mw(
    face: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    bind_info: *const ibv_mw_bind_info,
) {
    let bind_mw = abi::wr_bind_mw { mw, rkey, bind_info: promised!(*bind_info) };
    promised!(add(face, wr_op::BIND_MW, |wr| wr.bind_mw = bind_mw));
}

unsafe extern "C" fn wr_local_inv(face: *mut ibv_qp_ex, invalidate_rkey: u32) {
    promised!(add(face, wr_op::LOCAL_INV, |wr| wr.imm_data = invalidate_rkey));
}

unsafe extern "C" fn wr_rdma_read(face: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    promised!(add(face, wr_op::RDMA_READ, |wr| wr.wr = place(rkey, addr)));
}

unsafe extern "C" fn wr_rdma_write(face: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    promised!(add(face, wr_op::RDMA_WRITE, |wr| wr.wr = place(rkey, addr)));
}

unsafe extern "C" fn wr_rdma_write_imm(face: *mut ibv_qp_ex, rkey: u32, addr: u64, imm_data: u32) {
    promised!(add(face, wr_op::RDMA_WRITE_WITH_IMM, |wr| {
        (wr.wr, wr.imm_data) = (place(rkey, addr), imm_data);
    }));
}

unsafe extern "C" fn wr_send(face: *mut ibv_qp_ex) {
    promised!(add(face, wr_op::SEND, |wr| wr.wr = NOWHERE));
}

unsafe extern "C" fn wr_send_imm(face: *mut ibv_qp_ex, imm_data: u32) {
    promised!(add(face, wr_op::SEND_WITH_IMM, |wr| (wr.wr, wr.imm_data) = (NOWHERE, imm_data)));
}

unsafe extern "C" fn wr_send_inv(face: *mut ibv_qp_ex, rkey: u32) {
    promised!(add(face, wr_op::SEND_WITH_INV, |wr| wr.imm_data = rkey));
}

unsafe extern "C" fn wr_set_ud_addr(
    face: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    if let Some(request) = promised!(batch(face)).latest() {
        request.wr = wr_of { ud: wr_ud { ah, remote_qpn, remote_qkey } };
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(face: *mut ibv_qp_ex, number: u32) {
    if let Some(request) = promised!(batch(face)).latest() {
        request.xrc_srqn = number;
    }
}

unsafe extern "C" fn wr_set_inline_data(face: *mut ibv_qp_ex, addr: *const u8, length: usize) {
    promised!(batch(face).set_inline([ibv_data_buf { addr, length }]));
}

unsafe extern "C" fn wr_set_inline_data_list(
    face: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    let pieces = (0..count).map(|at| promised!(list.add(at).read()));
    promised!(batch(face).set_inline(pieces));
}

unsafe extern "C" fn wr_set_sge(face: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    promised!(batch(face)).set_sge(ibv_sge { addr, length, lkey });
}

unsafe extern "C" fn wr_set_sge_list(face: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    let entries = (0..count).map(|at| promised!(list.add(at).read()));
    promised!(batch(face)).set_list(entries);
}

/// Begins a batch. Whoever else wants to build one waits until it is complete.
unsafe extern "C" fn wr_start(face: *mut ibv_qp_ex) {
    let is_building = promised!(is_building(face));
    if is_building.swap(true, Ordering::Acquire) {
        wait_for(is_building);
    }
    promised!(batch(face)).clear();
}

/// Waits until a batch is complete, and begins the next.
#[cold]
#[inline(never)]
fn wait_for(is_building: &AtomicBool) {
    while is_building.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
}

/// Posts requests of one operation and one buffer each, with nothing but [`send::SIGNALED`] set or
/// not, as many as come first and are like that and simple; their number.
// A function for each operation and each answer to whether they are signaled, so that its loop has
// everything else in registers.
#[inline(never)]
fn post_run<const OPCODE: c_int, const SIGNALED: bool>(
    pair: &mut Pair,
    requests: &[Request],
    send_flags: u32,
) -> usize {
    const MORE: SendFlags = SendFlags::MORE;
    let flags = if SIGNALED { SendFlags::SIGNALED | MORE } else { MORE };
    let mut post = |Request { wr, data }: &Request| match data {
        Data::One(sge) if wr.opcode == OPCODE && wr.send_flags == send_flags => {
            promised!(post_as_simple::<false>(pair, wr, (sge, 1), flags))
        }
        _ => false,
    };
    requests.iter().take_while(|request| post(request)).count()
}

/// Posts as many of the first requests as are alike and simple; their number.
#[inline(always)]
fn post_alike(pair: &mut Pair, requests: &[Request]) -> usize {
    const WRITE: c_int = wr_op::RDMA_WRITE;
    const READ: c_int = wr_op::RDMA_READ;
    let [Request { wr, .. }, ..] = requests else { return 0 };
    let flags = wr.send_flags;
    if flags & !send::SIGNALED != 0 {
        return 0;
    }
    match (wr.opcode, flags != 0 || pair.signals_all) {
        (WRITE, true) => post_run::<WRITE, true>(pair, requests, flags),
        (WRITE, false) => post_run::<WRITE, false>(pair, requests, flags),
        (wr_op::SEND, true) => post_run::<{ wr_op::SEND }, true>(pair, requests, flags),
        (wr_op::SEND, false) => post_run::<{ wr_op::SEND }, false>(pair, requests, flags),
        (READ, true) => post_run::<READ, true>(pair, requests, flags),
        (READ, false) => post_run::<READ, false>(pair, requests, flags),
        _ => 0,
    }
}

/// Posts the requests of a batch from one on in order, until one is refused.
#[cold]
#[inline(never)]
fn post_rest(pair: &mut Pair, batch: &mut Batch, mut at: usize) -> Result<(), Errno> {
    while let rest @ [_, ..] = &batch.requests()[at..] {
        let posted = post_alike(pair, rest);
        if posted == 0 {
            post_request(pair, batch, at)?;
        }
        at += posted.max(1);
    }
    Ok(())
}

/// Posts a request of a batch like one of a list that goes on.
fn post_request(pair: &mut Pair, batch: &mut Batch, at: usize) -> Result<(), Errno> {
    let (requests, lists, inline) = batch.parts();
    let Request { wr, data } = &mut requests[at];
    // That there is a next one is all that it says.
    wr.next = wr;
    // Whoever has set the data has said whether they are inline.
    wr.send_flags &= !send::INLINE;
    let mut bytes;
    (wr.sg_list, wr.num_sge) = match data {
        Data::One(sge) => (&raw mut *sge, 1),
        Data::Nothing => (null_mut(), 0),
        Data::List(range) => {
            let list = &mut lists[range.clone()];
            (list.as_mut_ptr(), list.len() as c_int)
        }
        Data::Inline(range) => {
            let from = &inline[range.clone()];
            let addr = from.as_ptr().expose_provenance() as u64;
            bytes = ibv_sge { addr, length: from.len() as u32, lkey: 0 };
            wr.send_flags |= send::INLINE;
            (&raw mut bytes, 1)
        }
    };
    promised!(post_any(pair, wr))
}

/// Posts a batch.
#[inline(always)]
unsafe fn post_all(face: *mut ibv_qp_ex) -> Result<(), Errno> {
    let queue_pair = promised!(QueuePair::of(face.cast()));
    queue_pair.shared.here()?;
    let batch = promised!(batch(face));
    batch.error()?;
    let requests = batch.requests();
    let count = requests.len();
    let mut pair = queue_pair.member.pair.lock();
    if (pair.qp.free_wr() as usize) < count {
        return Err(Errno::NO_MEMORY);
    }
    // One that is refused alone leaves nothing behind.
    if count > 1 && (batch.needs_check || pair.qp.qp_type() != QpType::Rc) {
        let caps = queue_pair.shared.node.context.attr().caps;
        promised!(check::check_all(&pair, caps, batch))?;
    }
    let posted = match post_alike(&mut pair, requests) {
        all if all == count => Ok(()),
        posted => post_rest(&mut pair, batch, posted),
    };
    pair.qp.ring_doorbell();
    drop(pair);
    queue_pair.shared.node.step();
    posted
}

unsafe extern "C" fn wr_complete(face: *mut ibv_qp_ex) -> c_int {
    let posted = promised!(post_all(face));
    promised!(is_building(face)).store(false, Ordering::Release);
    super::number(posted)
}

unsafe extern "C" fn wr_abort(face: *mut ibv_qp_ex) {
    promised!(is_building(face)).store(false, Ordering::Release);
}

/// The functions of a queue pair.
pub(super) fn face(base: ibv_qp) -> ibv_qp_ex {
    ibv_qp_ex {
        base,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        wr_atomic_cmp_swp,
        wr_atomic_fetch_add,
        wr_bind_mw,
        wr_local_inv,
        wr_rdma_read,
        wr_rdma_write,
        wr_rdma_write_imm,
        wr_send,
        wr_send_imm,
        wr_send_inv,
        wr_send_tso: ABSENT,
        wr_set_ud_addr,
        wr_set_xrc_srqn,
        wr_set_inline_data,
        wr_set_inline_data_list,
        wr_set_sge,
        wr_set_sge_list,
        wr_start,
        wr_complete,
        wr_abort,
        wr_atomic_write: ABSENT,
        wr_flush: ABSENT,
    }
}
