//! Extended completion queues: one completion at a time, read by functions.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

use super::cq::{self, Queue};
use super::{Errno, object, tried};
use crate::abi::{ABSENT, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex};

/// `IBV_WC_STANDARD_FLAGS`: what [`ibv_wc`](crate::abi::ibv_wc) has, and nothing else.
const STANDARD_FLAGS: u64 = 0x7f;
/// `IBV_CQ_INIT_ATTR_MASK_FLAGS`, and of the flags "one thread".
const HAS_FLAGS: u32 = 1;
const SINGLE_THREADED: u32 = 1;

/// The functions of a queue.
fn face(base: ibv_cq) -> ibv_cq_ex {
    ibv_cq_ex {
        base,
        comp_mask: 0,
        status: 0,
        wr_id: 0,
        start_poll,
        next_poll,
        end_poll,
        read_opcode,
        read_vendor_err,
        read_byte_len,
        read_imm_data,
        read_qp_num,
        read_src_qp,
        read_wc_flags,
        read_slid,
        read_sl,
        read_dlid_path_bits,
        read_unsupported: [ABSENT; 5],
    }
}

pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    let attr = promised!(&*attr);
    let flags = if attr.comp_mask & HAS_FLAGS != 0 { attr.flags } else { 0 };
    if attr.wc_flags & !STANDARD_FLAGS != 0
        || attr.comp_mask & !HAS_FLAGS != 0
        || flags & !SINGLE_THREADED != 0
    {
        return object(Err(Errno::NOT_SUPPORTED));
    }
    let vectors = promised!((*context).num_comp_vectors);
    if i64::from(attr.comp_vector) >= i64::from(vectors) {
        return object(Err(Errno::INVALID));
    }
    object(cq::create(context, attr.cqe, attr.cq_context, attr.channel, face)).cast()
}

/// Reads the next completion into the queue; `ENOENT` if there is none.
unsafe fn advance(face: *mut ibv_cq_ex) -> c_int {
    let Some(wc) = promised!(Queue::of(face.cast())).poll_one() else { return libc::ENOENT };
    // Between start and end of polling, this thread alone reads and writes these.
    let queue = face.cast::<Queue>();
    promised!({
        (*queue).current = wc;
        (*face).status = wc.status;
        (*face).wr_id = wc.wr_id;
    });
    0
}

unsafe extern "C" fn start_poll(face: *mut ibv_cq_ex, attr: *mut c_void) -> c_int {
    // The input is a mask of what the caller knows beyond; there is nothing yet.
    if !attr.is_null() && promised!(attr.cast::<u32>().read()) != 0 {
        return libc::EINVAL;
    }
    tried!(promised!(Queue::of(face.cast())).shared.here());
    let is_polled = &promised!(Queue::of(face.cast())).is_polled;
    while is_polled.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
    let found = promised!(advance(face));
    if found != 0 {
        promised!(Queue::of(face.cast())).is_polled.store(false, Ordering::Release);
    }
    found
}

unsafe extern "C" fn next_poll(face: *mut ibv_cq_ex) -> c_int {
    promised!(advance(face))
}

unsafe extern "C" fn end_poll(face: *mut ibv_cq_ex) {
    promised!(Queue::of(face.cast())).is_polled.store(false, Ordering::Release);
}

/// A function that reads a field of the present completion.
macro_rules! reader {
    ($($name:ident: $field:ident as $to:ty;)*) => {$(
        unsafe extern "C" fn $name(face: *mut ibv_cq_ex) -> $to {
            promised!((*face.cast::<Queue>()).current.$field) as $to
        }
    )*};
}

reader! {
    read_opcode: opcode as c_int;
    read_vendor_err: vendor_err as u32;
    read_byte_len: byte_len as u32;
    read_imm_data: imm_data as u32;
    read_qp_num: qp_num as u32;
    read_src_qp: src_qp as u32;
    read_wc_flags: wc_flags as c_uint;
    read_slid: slid as u32;
    read_sl: sl as u8;
    read_dlid_path_bits: dlid_path_bits as u8;
}

pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    let vectors = promised!((*context).num_comp_vectors);
    if !(0..vectors).contains(&vector) {
        return object(Err(Errno::INVALID));
    }
    object(
        u32::try_from(cqe)
            .map_err(|_| Errno::INVALID)
            .and_then(|cqe| cq::create(context, cqe, cq_context, channel, face)),
    )
}
