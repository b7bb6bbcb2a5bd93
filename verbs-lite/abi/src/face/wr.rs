//! Work requests built by functions (`ibv_wr_*`): kept until the batch is complete, because what
//! is posted cannot be taken back and a batch is posted whole or not at all.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use ferrocx_verbs_lite::{DeviceCaps, QpType};

use super::Errno;
use super::batch::{Batch, Data};
use super::post::{Carried, EMPTY, post_one};
use super::queue_pair::QueuePair;
use crate::abi::{
    self, ABSENT, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_qp_ex, ibv_send_wr,
    ibv_sge, wr_atomic, wr_of, wr_op, wr_rdma, wr_ud,
};
use crate::node::lock;

/// The batch of a queue pair. Its builder alone reaches it, see [`wr_start`].
unsafe fn batch<'a>(face: *mut ibv_qp_ex) -> &'a mut Batch {
    promised!(&mut (*face.cast::<QueuePair>()).batch)
}

/// Appends a request with the number and flags that the program has put into the queue pair.
unsafe fn add(face: *mut ibv_qp_ex, request: ibv_send_wr) {
    let (wr_id, send_flags) = promised!(((*face).wr_id, (*face).wr_flags));
    promised!(batch(face)).add(ibv_send_wr { wr_id, send_flags, ..request });
}

/// A request to memory of the peer's.
fn to_memory(opcode: c_int, rkey: u32, remote_addr: u64) -> ibv_send_wr {
    ibv_send_wr { opcode, wr: wr_of { rdma: wr_rdma { remote_addr, rkey } }, ..EMPTY }
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    face: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare_add: u64,
    swap: u64,
) {
    let atomic = wr_atomic { remote_addr, compare_add, swap, rkey };
    let wr = wr_of { atomic };
    promised!(add(face, ibv_send_wr { opcode: wr_op::ATOMIC_CMP_AND_SWP, wr, ..EMPTY }));
}

unsafe extern "C" fn wr_atomic_fetch_add(
    face: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare_add: u64,
) {
    let atomic = wr_atomic { remote_addr, compare_add, swap: 0, rkey };
    let wr = wr_of { atomic };
    promised!(add(face, ibv_send_wr { opcode: wr_op::ATOMIC_FETCH_AND_ADD, wr, ..EMPTY }));
}

unsafe extern "C" fn wr_bind_mw(
    face: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    bind_info: *const ibv_mw_bind_info,
) {
    let bind_mw = abi::wr_bind_mw { mw, rkey, bind_info: promised!(*bind_info) };
    promised!(add(face, ibv_send_wr { opcode: wr_op::BIND_MW, bind_mw, ..EMPTY }));
}

unsafe extern "C" fn wr_local_inv(face: *mut ibv_qp_ex, invalidate_rkey: u32) {
    let imm_data = invalidate_rkey;
    promised!(add(face, ibv_send_wr { opcode: wr_op::LOCAL_INV, imm_data, ..EMPTY }));
}

unsafe extern "C" fn wr_rdma_read(face: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    promised!(add(face, to_memory(wr_op::RDMA_READ, rkey, addr)));
}

unsafe extern "C" fn wr_rdma_write(face: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    promised!(add(face, to_memory(wr_op::RDMA_WRITE, rkey, addr)));
}

unsafe extern "C" fn wr_rdma_write_imm(face: *mut ibv_qp_ex, rkey: u32, addr: u64, imm_data: u32) {
    let write = to_memory(wr_op::RDMA_WRITE_WITH_IMM, rkey, addr);
    promised!(add(face, ibv_send_wr { imm_data, ..write }));
}

unsafe extern "C" fn wr_send(face: *mut ibv_qp_ex) {
    promised!(add(face, ibv_send_wr { opcode: wr_op::SEND, ..EMPTY }));
}

unsafe extern "C" fn wr_send_imm(face: *mut ibv_qp_ex, imm_data: u32) {
    promised!(add(face, ibv_send_wr { opcode: wr_op::SEND_WITH_IMM, imm_data, ..EMPTY }));
}

unsafe extern "C" fn wr_send_inv(face: *mut ibv_qp_ex, rkey: u32) {
    let request = ibv_send_wr { opcode: wr_op::SEND_WITH_INV, imm_data: rkey, ..EMPTY };
    promised!(add(face, request));
}

unsafe extern "C" fn wr_set_ud_addr(
    face: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    let batch = promised!(batch(face));
    match batch.requests.last_mut() {
        Some((request, _)) => request.wr = wr_of { ud: wr_ud { ah, remote_qpn, remote_qkey } },
        None => batch.fail(Errno::INVALID),
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(face: *mut ibv_qp_ex, number: u32) {
    let batch = promised!(batch(face));
    match batch.requests.last_mut() {
        Some((request, _)) => request.xrc_srqn = number,
        None => batch.fail(Errno::INVALID),
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
    promised!(batch(face)).set_list([ibv_sge { addr, length, lkey }]);
}

unsafe extern "C" fn wr_set_sge_list(face: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    let entries = (0..count).map(|at| promised!(list.add(at).read()));
    promised!(batch(face)).set_list(entries);
}

/// Begins a batch. Whoever else wants to build one waits until it is complete.
unsafe extern "C" fn wr_start(face: *mut ibv_qp_ex) {
    let is_open = promised!(&(*face.cast::<QueuePair>()).batch.is_open);
    while is_open.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
    promised!(batch(face)).clear();
}

/// Posts a batch.
unsafe fn post_all(face: *mut ibv_qp_ex) -> Result<(), Errno> {
    let queue_pair = promised!(QueuePair::of(face.cast()));
    let batch = &queue_pair.batch;
    queue_pair.shared.here()?;
    let mut pair = lock(&queue_pair.member.pair);
    batch.error.map_or(Ok(()), Err)?;
    if pair.qp.free_wr() < batch.requests.len() as u32 {
        return Err(Errno::NO_MEMORY);
    }
    let mut posted = Ok(());
    for (at, (request, data)) in batch.requests.iter().enumerate() {
        let carried = match data {
            Data::List(range) => {
                let list = &batch.lists[range.clone()];
                Carried::List(list.as_ptr(), list.len())
            }
            Data::Inline(range) => Carried::Inline(&batch.inline[range.clone()]),
        };
        let more = at + 1 < batch.requests.len();
        posted = promised!(post_one(&mut pair, request, carried, more));
        if posted.is_err() {
            pair.qp.ring_doorbell();
            break;
        }
    }
    drop(pair);
    queue_pair.shared.node.step();
    posted
}

unsafe extern "C" fn wr_complete(face: *mut ibv_qp_ex) -> c_int {
    let posted = promised!(post_all(face));
    promised!(batch(face)).is_open.store(false, Ordering::Release);
    super::number(posted)
}

unsafe extern "C" fn wr_abort(face: *mut ibv_qp_ex) {
    promised!(batch(face)).is_open.store(false, Ordering::Release);
}

/// The operations that a service has, as bits of `enum ibv_qp_create_send_ops_flags`.
pub(super) fn operations(service: QpType, caps: DeviceCaps) -> u64 {
    const WRITE: u64 = 1 | 1 << 1;
    const SEND: u64 = 1 << 2 | 1 << 3;
    const FRAME: u64 = 1 << 2;
    const READ_ATOMIC: u64 = 1 << 4 | 1 << 5 | 1 << 6;
    const LOCAL_INV: u64 = 1 << 7;
    const BIND_MW: u64 = 1 << 8;
    const SEND_INV: u64 = 1 << 9;
    let keys = if caps.contains(DeviceCaps::MEM_MGT_EXTENSIONS) { LOCAL_INV } else { 0 };
    let windows = if caps.contains(DeviceCaps::MEM_WINDOW_TYPE_2) { BIND_MW } else { 0 };
    match service {
        QpType::Rc => WRITE | SEND | READ_ATOMIC | SEND_INV | keys | windows,
        QpType::XrcSend => WRITE | SEND | READ_ATOMIC | SEND_INV,
        QpType::Uc => WRITE | SEND | SEND_INV,
        QpType::Raw => FRAME,
        _ => SEND,
    }
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
