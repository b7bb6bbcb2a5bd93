//! Extended completion queues: one completion at a time, read by functions.

use std::ffi::{c_int, c_uint, c_void};

use super::clock;
use super::context::Context;
use super::cq::{self, Current, Inner, Queue};
use super::lock::Held;
use super::{Errno, object, tried};
use crate::abi::{ABSENT, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex};
use crate::node::lock;

/// `IBV_WC_STANDARD_FLAGS`: what [`ibv_wc`](crate::abi::ibv_wc) has.
const STANDARD_FLAGS: u64 = 0x7f;
/// `IBV_WC_EX_WITH_COMPLETION_TIMESTAMP`, and the same in nanoseconds since 1970.
const TIMESTAMP: u64 = 1 << 7;
const WALLCLOCK: u64 = 1 << 11;
/// `IBV_CQ_INIT_ATTR_MASK_FLAGS`, `_PD`.
const HAS_FLAGS: u32 = 1;
const HAS_PD: u32 = 1 << 1;
/// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`, `_IGNORE_OVERRUN`.
const SINGLE_THREADED: u32 = 1;
const IGNORE_OVERRUN: u32 = 1 << 1;

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
        read_completion_ts,
        read_unsupported: [ABSENT; 3],
        read_completion_wallclock_ns,
    }
}

/// Makes a queue as its attributes say.
fn create(context: *mut ibv_context, attr: &ibv_cq_init_attr_ex) -> Result<*mut ibv_cq, Errno> {
    let has = |bit: u32| attr.comp_mask & bit != 0;
    let flags = if has(HAS_FLAGS) { attr.flags } else { 0 };
    if attr.wc_flags & !(STANDARD_FLAGS | TIMESTAMP | WALLCLOCK) != 0
        || attr.comp_mask & !(HAS_FLAGS | HAS_PD) != 0
        || flags & !(SINGLE_THREADED | IGNORE_OVERRUN) != 0
    {
        return Err(Errno::NOT_SUPPORTED);
    }
    let shared = promised!(Context::here(context))?;
    let vectors = promised!((*context).num_comp_vectors);
    // A parent domain says who allocates; this library does.
    let lacks_domain = has(HAS_PD) && attr.parent_domain.is_null();
    if i64::from(attr.comp_vector) >= i64::from(vectors) || lacks_domain {
        return Err(Errno::INVALID);
    }
    if attr.wc_flags & WALLCLOCK != 0 {
        clock::start(&mut lock(&shared.clock), &shared.node)?;
    }
    let is_stamped = attr.wc_flags & (TIMESTAMP | WALLCLOCK) != 0;
    let queue = cq::create(context, attr.cqe, attr.cq_context, attr.channel, (is_stamped, face))?;
    if flags & IGNORE_OVERRUN != 0 {
        let ignored = promised!(Queue::of(queue)).inner().cq.ignore_overruns();
        if let Err(error) = ignored {
            promised!(cq::ibv_destroy_cq(queue));
            return Err(error.into());
        }
    }
    Ok(queue)
}

pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    object(create(context, promised!(&*attr))).cast()
}

/// Shows the completion that was read where programs look for it, and leaves the queue to this
/// thread.
#[inline(always)]
unsafe fn show(face: *mut ibv_cq_ex, inner: Held<'_, Inner>) {
    let Current { wc, .. } = &inner.current;
    // Between start and end of polling, this thread alone reads and writes it.
    promised!({
        (*face).status = wc.status;
        (*face).wr_id = wc.wr_id;
    });
    inner.keep();
}

unsafe extern "C" fn start_poll(face: *mut ibv_cq_ex, attr: *mut c_void) -> c_int {
    // The input is a mask of what the caller knows beyond; there is nothing yet.
    if !attr.is_null() && promised!(attr.cast::<u32>().read()) != 0 {
        return libc::EINVAL;
    }
    let queue = promised!(Queue::of(face.cast()));
    tried!(queue.shared.here());
    match queue.try_start() {
        Some(inner) => promised!(start(face, inner)),
        None => promised!(start_later(face)),
    }
}

/// Starts when another thread has let go of the queue.
#[cold]
#[inline(never)]
unsafe extern "C" fn start_later(face: *mut ibv_cq_ex) -> c_int {
    promised!(start(face, Queue::of(face.cast()).start()))
}

/// Starts with a queue that is locked.
// The two are functions of their own and of C, none of which unwinds: who calls them last jumps
// there and saves no registers.
#[inline(always)]
unsafe fn start(face: *mut ibv_cq_ex, inner: Held<'_, Inner>) -> c_int {
    let has_completion = inner.cq.has_completion();
    inner.keep();
    if has_completion { promised!(start_with(face)) } else { promised!(start_without(face)) }
}

/// Starts with a queue in which there is a completion, and which this thread has locked.
#[inline(never)]
unsafe extern "C" fn start_with(face: *mut ibv_cq_ex) -> c_int {
    let queue = promised!(Queue::of(face.cast()));
    let Some(inner) = queue.first_poll(promised!(queue.kept())) else { return libc::ENOENT };
    promised!(show(face, inner));
    0
}

/// Starts with a queue in which the device has left none, and which this thread has locked.
#[inline(never)]
unsafe extern "C" fn start_without(face: *mut ibv_cq_ex) -> c_int {
    let queue = promised!(Queue::of(face.cast()));
    match queue.look_ahead(promised!(queue.kept())) {
        Some(inner) => {
            inner.keep();
            promised!(start_with(face))
        }
        None => libc::ENOENT,
    }
}

unsafe extern "C" fn next_poll(face: *mut ibv_cq_ex) -> c_int {
    let queue = promised!(Queue::of(face.cast()));
    let mut inner = promised!(queue.kept());
    if !queue.next_poll(&mut inner) {
        inner.keep();
        return libc::ENOENT;
    }
    promised!(show(face, inner));
    0
}

unsafe extern "C" fn end_poll(face: *mut ibv_cq_ex) {
    let queue = promised!(Queue::of(face.cast()));
    queue.end_poll(promised!(queue.kept()));
}

/// A function that reads a field of the present completion.
macro_rules! reader {
    ($($name:ident: $field:ident as $to:ty;)*) => {$(
        unsafe extern "C" fn $name(face: *mut ibv_cq_ex) -> $to {
            promised!(Queue::of(face.cast()).current(|current| current.wc.$field)) as $to
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

unsafe extern "C" fn read_completion_ts(face: *mut ibv_cq_ex) -> u64 {
    promised!(Queue::of(face.cast()).current(|current| current.ticks))
}

unsafe extern "C" fn read_completion_wallclock_ns(face: *mut ibv_cq_ex) -> u64 {
    let queue = promised!(Queue::of(face.cast()));
    let ticks = promised!(queue.current(|current| current.ticks));
    clock::to_ns(&mut lock(&queue.shared.clock), ticks)
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
            .and_then(|cqe| cq::create(context, cqe, cq_context, channel, (false, face))),
    )
}
