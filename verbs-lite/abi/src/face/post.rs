//! Work requests in lists.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use ferrocx_verbs_lite::{
    PostError, QpConfig, QpType, RemoteAddr, Rkey, SendFlags, SendOp, SendWr, Srqn,
};

use super::address::Address;
use super::batch::EMPTY;
use super::memory;
use super::pair::{List, Pair, flags_of};
use super::queue_pair::QueuePair;
use super::window::{self, post_change};
use super::{Errno, tried};
use crate::abi::{
    access, ibv_mw, ibv_mw_bind, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, send, wr_bind_mw, wr_op,
};

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
enum Carried<'a> {
    /// The request's own list.
    List(*const ibv_sge, usize),
    /// Bytes that are copied into it.
    Inline(&'a [u8]),
}

/// Posts one request; the doorbell is left alone if `more` follow.
///
/// # Safety
/// The module's: what the request names is alive.
unsafe fn post_one(
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

/// Posts a datagram with a list if that is simple; whether it was posted. With `ONE`, the list has
/// one entry.
#[inline(never)]
unsafe fn post_datagram<const ONE: bool>(pair: &mut Pair, wr: &ibv_send_wr) -> bool {
    // Others have something else where a datagram has its address.
    let is_send = matches!(wr.opcode, wr_op::SEND | wr_op::SEND_WITH_IMM);
    if !is_send || pair.qp.qp_type() != QpType::Ud || !ONE && wr.num_sge < 1 {
        return false;
    }
    let ud = promised!(wr.wr.ud);
    if ud.ah.is_null() {
        return false;
    }
    let count = if ONE { 1 } else { wr.num_sge as usize };
    let to = promised!(Address::of(ud.ah)).to(ud.remote_qpn, ud.remote_qkey);
    // There is no fence here: saying so spares a look.
    let mut flags = flags_of(wr.send_flags & !send::FENCE, pair.signals_all);
    flags.set(SendFlags::MORE, !wr.next.is_null());
    let list = Some(promised!(List::new(wr.sg_list, count, pair.domain)));
    let request = |imm| SendWr { wr_id: wr.wr_id, flags, op: SendOp::Datagram { to: &to, imm } };
    let posted = match wr.opcode {
        wr_op::SEND => pair.qp.post_simple(&request(None), list),
        wr_op::SEND_WITH_IMM => {
            pair.qp.post_simple(&request(Some(u32::from_be(wr.imm_data))), list)
        }
        _ => return false,
    };
    posted.is_ok()
}

/// Bytes that a request carries itself.
type Gathered = ArrayVec<u8, { QpConfig::MAX_INLINE_BYTES as usize }>;

/// Appends the bytes of a list, one after the other, for a request that carries them itself.
///
/// # Safety
/// The module's: `list` leads to bytes of the program's.
#[inline(always)]
unsafe fn gather(list: &[ibv_sge], out: &mut Gathered) -> Result<(), Errno> {
    for sge in list.iter().filter(|sge| sge.length > 0) {
        let from = std::ptr::with_exposed_provenance::<u8>(sge.addr as usize);
        let len = sge.length as usize;
        if len > out.remaining_capacity() {
            return Err(Errno::INVALID);
        }
        // SAFETY: both are that many bytes, those of `out` behind what it has: there was room. They
        // are written then.
        unsafe {
            copy_piece(from, out.as_mut_ptr().add(out.len()), len);
            out.set_len(out.len() + len);
        }
    }
    Ok(())
}

/// Copies a piece of data. Those that are sent so are short: two words that may overlap spare a
/// call.
///
/// # Safety
/// `from` can be read, `to` written, and they are apart.
#[inline(always)]
unsafe fn copy_piece(from: *const u8, to: *mut u8, len: usize) {
    const WORD: usize = size_of::<u64>();
    // SAFETY: the caller's promise; each word begins and ends within the piece.
    unsafe {
        if (WORD..=2 * WORD).contains(&len) {
            let [first, last] =
                [0, len - WORD].map(|at| from.add(at).cast::<u64>().read_unaligned());
            to.cast::<u64>().write_unaligned(first);
            to.add(len - WORD).cast::<u64>().write_unaligned(last);
        } else {
            to.copy_from_nonoverlapping(from, len);
        }
    }
}

/// Posts a request with a list of `count` entries at `first`, of any operation that names memory
/// alone, if that is simple; whether it was posted. Without `ALL`, only what is posted most counts
/// as simple.
#[inline(always)]
pub(super) unsafe fn post_as_simple<const ALL: bool>(
    pair: &mut Pair,
    wr: &ibv_send_wr,
    (first, count): (*const ibv_sge, usize),
    flags: SendFlags,
) -> bool {
    let list = Some(promised!(List::new(first, count, pair.domain)));
    let request = |op| SendWr { wr_id: wr.wr_id, flags, op };
    let remote = || {
        let rdma = promised!(wr.wr.rdma);
        RemoteAddr { addr: rdma.remote_addr, rkey: Rkey(rdma.rkey) }
    };
    let atomic = || {
        let atomic = promised!(wr.wr.atomic);
        let remote = RemoteAddr { addr: atomic.remote_addr, rkey: Rkey(atomic.rkey) };
        (remote, atomic.compare_add, atomic.swap)
    };
    let imm = || u32::from_be(wr.imm_data);
    let qp = &mut pair.qp;
    // Each is a copy of its own, in which places and opcodes are constants.
    let posted = match wr.opcode {
        wr_op::RDMA_WRITE => qp.post_simple(&request(SendOp::Write(remote())), list),
        wr_op::RDMA_WRITE_WITH_IMM if ALL => {
            qp.post_simple(&request(SendOp::WriteImm(remote(), imm())), list)
        }
        wr_op::SEND => qp.post_simple(&request(SendOp::Send), list),
        wr_op::SEND_WITH_IMM if ALL => qp.post_simple(&request(SendOp::SendImm(imm())), list),
        // A key, not data: as it is.
        wr_op::SEND_WITH_INV if ALL => {
            qp.post_simple(&request(SendOp::SendInv(Rkey(wr.imm_data))), list)
        }
        wr_op::RDMA_READ => qp.post_simple(&request(SendOp::Read(remote())), list),
        wr_op::ATOMIC_CMP_AND_SWP if ALL => {
            let (remote, compare, swap) = atomic();
            qp.post_simple(&request(SendOp::CompareSwap { remote, compare, swap }), list)
        }
        wr_op::ATOMIC_FETCH_AND_ADD if ALL => {
            let (remote, add, _) = atomic();
            qp.post_simple(&request(SendOp::FetchAdd { remote, add }), list)
        }
        _ => return false,
    };
    posted.is_ok()
}

/// The flags of a request of a list: behind all but the last, more follow.
#[inline(always)]
fn flags_in_list(pair: &Pair, wr: &ibv_send_wr) -> SendFlags {
    let mut flags = flags_of(wr.send_flags, pair.signals_all);
    flags.set(SendFlags::MORE, !wr.next.is_null());
    flags
}

/// Posts a request with a list of several entries, or if `FENCED` of any, if that is simple;
/// whether it was posted.
#[inline(never)]
unsafe fn post_simple_list<const FENCED: bool>(pair: &mut Pair, wr: &ibv_send_wr) -> bool {
    let is_fenced = wr.send_flags & send::FENCE != 0;
    let list = (wr.sg_list.cast_const(), wr.num_sge as usize);
    wr.num_sge > 0
        && is_fenced == FENCED
        && promised!(post_as_simple::<true>(pair, wr, list, flags_in_list(pair, wr)))
}

/// Posts a request with the data of one entry in it if that is simple; whether it was posted.
// A function of its own: what it copies would have others save registers.
#[inline(never)]
unsafe fn post_simple_inline(pair: &mut Pair, wr: &ibv_send_wr) -> bool {
    let ibv_sge { addr, length, .. } = promised!(*wr.sg_list);
    if length == 0 {
        return false;
    }
    // What is too long for a request is refused before it is read.
    let from = std::ptr::with_exposed_provenance::<u8>(addr as usize);
    let bytes = promised!(std::slice::from_raw_parts(from, length as usize));
    promised!(post_bytes(pair, wr, bytes))
}

/// Does what [`post_simple_inline`] does with the bytes of several entries.
#[inline(never)]
unsafe fn post_gathered(pair: &mut Pair, wr: &ibv_send_wr) -> bool {
    let Ok(count @ 2..) = usize::try_from(wr.num_sge) else { return false };
    let list = promised!(std::slice::from_raw_parts(wr.sg_list, count));
    let mut bytes = Gathered::new();
    promised!(gather(list, &mut bytes)).is_ok() && promised!(post_bytes(pair, wr, &bytes))
}

#[inline(always)]
unsafe fn post_bytes(pair: &mut Pair, wr: &ibv_send_wr, bytes: &[u8]) -> bool {
    let flags = flags_in_list(pair, wr);
    let request = |op| SendWr { wr_id: wr.wr_id, flags, op };
    let remote = || {
        let rdma = promised!(wr.wr.rdma);
        RemoteAddr { addr: rdma.remote_addr, rkey: Rkey(rdma.rkey) }
    };
    let imm = || u32::from_be(wr.imm_data);
    let qp = &mut pair.qp;
    match wr.opcode {
        wr_op::RDMA_WRITE => qp.post_simple_inline(&request(SendOp::Write(remote())), bytes),
        wr_op::RDMA_WRITE_WITH_IMM => {
            qp.post_simple_inline(&request(SendOp::WriteImm(remote(), imm())), bytes)
        }
        wr_op::SEND => qp.post_simple_inline(&request(SendOp::Send), bytes),
        wr_op::SEND_WITH_IMM => qp.post_simple_inline(&request(SendOp::SendImm(imm())), bytes),
        // A key, not data: as it is.
        wr_op::SEND_WITH_INV => {
            qp.post_simple_inline(&request(SendOp::SendInv(Rkey(wr.imm_data))), bytes)
        }
        _ => false,
    }
}

/// Posts one request of a list; the doorbell is left alone if another one follows.
///
/// # Safety
/// The module's: what the request names is alive.
#[inline(always)]
pub(super) unsafe fn post_any(pair: &mut Pair, wr: &ibv_send_wr) -> Result<(), Errno> {
    let is_posted = match wr.send_flags & (send::INLINE | send::FENCE) {
        0 if wr.num_sge == 1 => {
            let list = (wr.sg_list.cast_const(), 1);
            promised!(post_as_simple::<true>(pair, wr, list, flags_in_list(pair, wr)))
                || promised!(post_datagram::<true>(pair, wr))
        }
        0 => {
            promised!(post_simple_list::<false>(pair, wr))
                || promised!(post_datagram::<false>(pair, wr))
        }
        send::FENCE => promised!(post_simple_list::<true>(pair, wr)),
        _ if wr.num_sge == 1 => promised!(post_simple_inline(pair, wr)),
        _ => promised!(post_gathered(pair, wr)),
    };
    if is_posted {
        return Ok(());
    }
    promised!(post_listed(pair, wr))
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
    let mut bytes = Gathered::new();
    promised!(gather(list, &mut bytes))?;
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
    let mut pair = queue_pair.member.pair.lock();
    let mut next = first;
    let mut result = 0;
    while !next.is_null() {
        let wr = promised!(&*next);
        if let Err(errno) = promised!(post_any(&mut pair, wr)) {
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

/// The receives of a list, one after the other.
pub(super) struct Receives {
    next: *mut ibv_recv_wr,
    /// The one that was given last, or that cannot be.
    current: *mut ibv_recv_wr,
    domain: u32,
    is_wrong: bool,
}

impl Iterator for Receives {
    type Item = (u64, List);

    #[inline(always)]
    fn next(&mut self) -> Option<(u64, List)> {
        if self.next.is_null() {
            return None;
        }
        self.current = self.next;
        let wr = promised!(&*self.current);
        let Ok(count) = usize::try_from(wr.num_sge) else {
            self.is_wrong = true;
            return None;
        };
        self.next = wr.next;
        Some((wr.wr_id, promised!(List::new(wr.sg_list, count, self.domain))))
    }
}

/// Posts a list of receives by `post`, which posts them in order until one is refused.
#[inline(always)]
pub(super) unsafe fn post_receives(
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    domain: u32,
    post: impl FnOnce(&mut Receives) -> Result<u32, PostError>,
) -> c_int {
    let mut receives = Receives { next: first, current: first, domain, is_wrong: false };
    let errno = match post(&mut receives) {
        Ok(_) if !receives.is_wrong => return 0,
        Ok(_) => Errno::INVALID,
        Err(error) => error.into(),
    };
    promised!(bad.write(receives.current));
    errno.0
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
    let mut pair = queue_pair.member.pair.lock();
    let domain = pair.domain;
    promised!(post_receives(first, bad, domain, |receives| {
        pair.qp.post_recv_list(receives).map_err(|refused| refused.cause)
    }))
}

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
    let key = promised!(window::key_of(mw));
    let now = key.load(Ordering::Relaxed);
    let rkey = now & !0xff | u32::from((now as u8).wrapping_add(1));
    let bind_mw = wr_bind_mw { mw, rkey, bind_info };
    let mut wr = ibv_send_wr { wr_id, send_flags, opcode: wr_op::BIND_MW, bind_mw, ..EMPTY };
    let mut bad = std::ptr::null_mut();
    let posted = promised!(post_send(qp, &raw mut wr, &raw mut bad));
    if posted == 0 {
        key.store(rkey, Ordering::Relaxed);
    }
    posted
}
