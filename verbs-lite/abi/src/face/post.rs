//! Work requests in lists.

use std::ffi::c_int;
use std::ptr::null_mut;

use arrayvec::ArrayVec;
use ferrocx_verbs_lite::{
    PostError, QpConfig, QpType, RemoteAddr, Rkey, SendFlags, SendOp, SendWr, Srqn,
};

use super::address::Address;
use super::memory;
use super::pair::{List, Pair, flags_of};
use super::queue_pair::QueuePair;
use super::window::post_change;
use super::{Errno, tried};
use crate::abi::{
    access, ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, send,
    wr_bind_mw, wr_op,
};
use crate::node::lock;

impl From<PostError> for Errno {
    fn from(error: PostError) -> Self {
        match error {
            PostError::Full => Self::NO_MEMORY,
            _ => Self::INVALID,
        }
    }
}

/// What a request carries.
#[derive(Debug, Clone, Copy)]
pub(super) enum Carried<'a> {
    /// The request's own list.
    List(*const ibv_sge, usize),
    /// Bytes that are copied into it.
    Inline(&'a [u8]),
}

/// Posts one request; the doorbell is left alone if `more` follow.
///
/// # Safety
/// The module's: what the request names is alive.
pub(super) unsafe fn post_one(
    pair: &mut Pair,
    wr: &ibv_send_wr,
    carried: Carried<'_>,
    more: bool,
) -> Result<(), Errno> {
    let imm = u32::from_be(wr.imm_data);
    let (rdma, atomic) = promised!((wr.wr.rdma, wr.wr.atomic));
    let remote = RemoteAddr { addr: rdma.remote_addr, rkey: Rkey(rdma.rkey) };
    let cell = RemoteAddr { addr: atomic.remote_addr, rkey: Rkey(atomic.rkey) };
    let to;
    let op = match wr.opcode {
        wr_op::SEND | wr_op::SEND_WITH_IMM if pair.qp.qp_type() == QpType::Ud => {
            let ud = promised!(wr.wr.ud);
            if ud.ah.is_null() {
                return Err(Errno::INVALID);
            }
            to = promised!(Address::of(ud.ah)).to(ud.remote_qpn, ud.remote_qkey);
            let imm = (wr.opcode == wr_op::SEND_WITH_IMM).then_some(imm);
            SendOp::Datagram { to: &to, imm }
        }
        wr_op::SEND if pair.qp.qp_type() == QpType::Raw => SendOp::Frame,
        wr_op::SEND => SendOp::Send,
        wr_op::SEND_WITH_IMM => SendOp::SendImm(imm),
        // A key, not data: as it is.
        wr_op::SEND_WITH_INV => SendOp::SendInv(Rkey(wr.imm_data)),
        wr_op::RDMA_WRITE => SendOp::Write(remote),
        wr_op::RDMA_WRITE_WITH_IMM => SendOp::WriteImm(remote, imm),
        wr_op::RDMA_READ => SendOp::Read(remote),
        wr_op::ATOMIC_CMP_AND_SWP => {
            SendOp::CompareSwap { remote: cell, compare: atomic.compare_add, swap: atomic.swap }
        }
        wr_op::ATOMIC_FETCH_AND_ADD => SendOp::FetchAdd { remote: cell, add: atomic.compare_add },
        _ => return promised!(post_change(pair, wr, more)),
    };
    let mut flags = flags_of(wr.send_flags, pair.signals_all);
    flags.set(SendFlags::MORE, more);
    if let SendOp::Frame = op {
        flags.set(SendFlags::IP_CSUM, wr.send_flags & send::IP_CSUM != 0);
    }
    let request = SendWr { wr_id: wr.wr_id, flags, op };
    let posted = match carried {
        Carried::Inline(bytes) => pair.qp.post_send_inline(&request, bytes),
        Carried::List(first, count) => {
            let list = promised!(List::new(first, count, pair.domain));
            let held = (count > 0).then_some(list);
            pair.qp.post_send(&request, held).map_err(|refused| refused.cause)
        }
    };
    match posted {
        // Looked for here, so that the others need not look.
        Err(PostError::Operation) if pair.qp.qp_type() == QpType::XrcSend => {
            promised!(post_xrc(pair, Srqn(wr.xrc_srqn & 0xff_ffff), &request, carried))
        }
        posted => Ok(posted?),
    }
}

/// Posts one request that names a shared receive queue.
#[cold]
unsafe fn post_xrc(
    pair: &mut Pair,
    to: Srqn,
    request: &SendWr<'_>,
    carried: Carried<'_>,
) -> Result<(), Errno> {
    match carried {
        Carried::Inline(bytes) => pair.qp.post_send_xrc_inline(to, request, bytes)?,
        Carried::List(first, count) => {
            let list = promised!(List::new(first, count, pair.domain));
            let held = (count > 0).then_some(list);
            pair.qp.post_send_xrc(to, request, held).map_err(|refused| refused.cause)?;
        }
    }
    Ok(())
}

/// The bytes of a list, one after the other, for a request that carries them itself.
///
/// # Safety
/// The module's: `list` leads to bytes of the program's.
unsafe fn gather(
    list: &[ibv_sge],
) -> Result<ArrayVec<u8, { QpConfig::MAX_INLINE_BYTES as usize }>, Errno> {
    let mut out = ArrayVec::new();
    for sge in list.iter().filter(|sge| sge.length > 0) {
        let from = std::ptr::with_exposed_provenance::<u8>(sge.addr as usize);
        let len = sge.length as usize;
        if len > out.remaining_capacity() {
            return Err(Errno::INVALID);
        }
        let bytes = promised!(std::slice::from_raw_parts(from, len));
        out.try_extend_from_slice(bytes).map_err(|_| Errno::INVALID)?;
    }
    Ok(out)
}

/// Posts a request of one entry if that is simple; whether it was posted.
#[inline(always)]
unsafe fn post_simple(pair: &mut Pair, wr: &ibv_send_wr) -> bool {
    if wr.num_sge != 1 || wr.send_flags & (send::INLINE | send::FENCE) != 0 {
        return false;
    }
    let rdma = promised!(wr.wr.rdma);
    let remote = RemoteAddr { addr: rdma.remote_addr, rkey: Rkey(rdma.rkey) };
    // Each is a copy of its own, in which places and opcodes are constants.
    match wr.opcode {
        wr_op::RDMA_WRITE => promised!(post_as(pair, wr, SendOp::Write(remote))),
        wr_op::SEND => promised!(post_as(pair, wr, SendOp::Send)),
        wr_op::RDMA_READ => promised!(post_as(pair, wr, SendOp::Read(remote))),
        _ => false,
    }
}

#[inline(always)]
unsafe fn post_as(pair: &mut Pair, wr: &ibv_send_wr, op: SendOp<'_>) -> bool {
    let mut flags = flags_of(wr.send_flags, pair.signals_all);
    flags.set(SendFlags::MORE, !wr.next.is_null());
    let list = promised!(List::new(wr.sg_list, 1, pair.domain));
    pair.qp.post_simple(&SendWr { wr_id: wr.wr_id, flags, op }, Some(list)).is_ok()
}

/// Posts one request of a list that is not simple.
#[inline(never)]
unsafe fn post_listed(pair: &mut Pair, wr: &ibv_send_wr) -> Result<(), Errno> {
    let more = !wr.next.is_null();
    let count = usize::try_from(wr.num_sge).map_err(|_| Errno::INVALID)?;
    if wr.send_flags & send::INLINE == 0 {
        return promised!(post_one(pair, wr, Carried::List(wr.sg_list, count), more));
    }
    let list =
        if count == 0 { &[] } else { promised!(std::slice::from_raw_parts(wr.sg_list, count)) };
    if let [ibv_sge { addr, length: length @ 1.., .. }] = *list {
        // What is too long for a request is refused before it is read.
        let from = std::ptr::with_exposed_provenance::<u8>(addr as usize);
        let bytes = promised!(std::slice::from_raw_parts(from, length as usize));
        return promised!(post_one(pair, wr, Carried::Inline(bytes), more));
    }
    let bytes = promised!(gather(list))?;
    promised!(post_one(pair, wr, Carried::Inline(&bytes), more))
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let queue_pair = promised!(QueuePair::of(qp));
    if let Err(errno) = queue_pair.shared.here() {
        promised!(bad.write(first));
        return errno.0;
    }
    let mut pair = lock(&queue_pair.member.pair);
    let mut next = first;
    let mut result = 0;
    while !next.is_null() {
        let wr = promised!(&*next);
        if !promised!(post_simple(&mut pair, wr))
            && let Err(errno) = promised!(post_listed(&mut pair, wr))
        {
            pair.qp.ring_doorbell();
            promised!(bad.write(next));
            result = errno.0;
            break;
        }
        next = wr.next;
    }
    drop(pair);
    queue_pair.shared.node.step();
    result
}

/// Posts receives by `post`, in the order of a list.
pub(super) unsafe fn post_receives(
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    domain: u32,
    mut post: impl FnMut(u64, List) -> Result<(), PostError>,
) -> c_int {
    let mut next = first;
    while !next.is_null() {
        let wr = promised!(&*next);
        let count = usize::try_from(wr.num_sge).map_err(|_| Errno::INVALID);
        let posted = count
            .and_then(|count| Ok(post(wr.wr_id, promised!(List::new(wr.sg_list, count, domain)))?));
        if let Err(errno) = posted {
            promised!(bad.write(next));
            return errno.0;
        }
        next = wr.next;
    }
    0
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let queue_pair = promised!(QueuePair::of(qp));
    if let Err(errno) = queue_pair.shared.here() {
        promised!(bad.write(first));
        return errno.0;
    }
    let mut pair = lock(&queue_pair.member.pair);
    let domain = pair.domain;
    promised!(post_receives(first, bad, domain, |wr_id, list| {
        pair.qp.post_recv(wr_id, list).map_err(|refused| refused.cause)
    }))
}

/// A request with nothing in it.
pub(super) const EMPTY: ibv_send_wr = ibv_send_wr {
    wr_id: 0,
    next: null_mut(),
    sg_list: null_mut(),
    num_sge: 0,
    opcode: 0,
    send_flags: 0,
    imm_data: 0,
    wr: crate::abi::wr_of {
        atomic: crate::abi::wr_atomic { remote_addr: 0, compare_add: 0, swap: 0, rkey: 0 },
    },
    xrc_srqn: 0,
    bind_mw: wr_bind_mw {
        mw: null_mut(),
        rkey: 0,
        bind_info: ibv_mw_bind_info { mr: null_mut(), addr: 0, length: 0, mw_access_flags: 0 },
    },
};

/// Binds a window of type 1 by a request of its own, and gives it the next key.
pub(super) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    let &ibv_mw_bind { wr_id, send_flags, bind_info } = promised!(&*bind);
    let of_region = match bind_info.mr.is_null() {
        true => 0,
        false => tried!(promised!(memory::known(bind_info.mr))).access,
    };
    let is_zero_based = (bind_info.mw_access_flags | of_region) & access::ZERO_BASED != 0;
    if is_zero_based {
        return libc::EINVAL;
    }
    // The low byte alone changes.
    let now = promised!((*mw).rkey);
    let rkey = now & !0xff | u32::from((now as u8).wrapping_add(1));
    let bind_mw = wr_bind_mw { mw, rkey, bind_info };
    let mut wr = ibv_send_wr { wr_id, send_flags, opcode: wr_op::BIND_MW, bind_mw, ..EMPTY };
    let mut bad = std::ptr::null_mut();
    let posted = promised!(post_send(qp, &raw mut wr, &raw mut bad));
    if posted == 0 {
        promised!((*mw).rkey = rkey);
    }
    posted
}
