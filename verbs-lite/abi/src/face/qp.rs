//! Queue pairs: made, asked, destroyed.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

use ferrocx_verbs_lite::{Gid, QpConfig, QpQueues, QpState, QpType};

use super::batch::Batch;
use super::context::{Context, Kind, Shared};
use super::cq::{Inner, Queue};
use super::life::{User, Users};
use super::lock::Lock;
use super::memory::Domain;
use super::pair::{MAX_SGE, Member, Pair};
use super::queue_pair::{QueuePair, state_of};
use super::rules::Rules;
use super::shown::Shown;
use super::srq::SharedQueue;
use super::window::has_room_for_windows;
use super::wr;
use super::xrc::{XrcDomain, find_target};
use super::{Errno, give_out, number, object, take_back, tried};
use crate::abi::{
    ibv_context, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_qp_open_attr, mask, qpt,
};
use crate::node::{Node, lock};

/// The service of a queue pair.
pub(super) fn service(qp_type: c_int) -> Result<QpType, Errno> {
    match qp_type {
        qpt::RC => Ok(QpType::Rc),
        qpt::UC => Ok(QpType::Uc),
        qpt::UD => Ok(QpType::Ud),
        qpt::XRC_SEND => Ok(QpType::XrcSend),
        qpt::RAW_PACKET => Ok(QpType::Raw),
        _ => Err(Errno::NOT_SUPPORTED),
    }
}

/// The sizes of a queue pair in verbs-lite's words, where nothing is of size 0.
fn config(init: &ibv_qp_init_attr, user_index: u32, spread: bool) -> Result<QpConfig, Errno> {
    let cap = &init.cap;
    if cap.max_send_sge > MAX_SGE || cap.max_recv_sge > MAX_SGE {
        return Err(Errno::INVALID);
    }
    let qp_type = service(init.qp_type)?;
    Ok(QpConfig {
        qp_type,
        max_send_wr: cap.max_send_wr.max(1),
        max_recv_wr: cap.max_recv_wr.max(1),
        max_send_sge: cap.max_send_sge.max(1),
        max_recv_sge: cap.max_recv_sge.max(1),
        max_inline_bytes: cap.max_inline_data,
        // Room for windows, unless the queue would be too long for it.
        fast_reg: qp_type == QpType::Rc && has_room_for_windows(cap),
        user_index,
        spread,
        // Completion queues are as long as the program counts, and wake it for what it asked for.
        signals_itself: false,
    })
}

/// Inline data that a queue pair takes: what was asked for, or as much as its requests have room
/// for anyway. Programs send a few bytes so without having asked, rdma_xclient for one. Frames have
/// other headers. Source: rdma-core, providers/mlx5/verbs.c, `mlx5_calc_sq_size`.
fn inline_granted(qp_type: c_int, cap: &ibv_qp_cap) -> u32 {
    /// A block of a request, an entry of a list, and what stands in front of inline data.
    const BLOCK_BYTES: u32 = 64;
    const SGE_BYTES: u32 = 16;
    const HEADER_BYTES: u32 = 4;
    let (asked, most) = (cap.max_inline_data, QpConfig::MAX_INLINE_BYTES);
    if qp_type == qpt::RAW_PACKET || cap.max_send_wr == 0 || asked > most {
        return asked;
    }
    let list_bytes = cap.max_send_sge.clamp(1, MAX_SGE) * SGE_BYTES;
    let data_bytes = list_bytes.max(asked + HEADER_BYTES).next_multiple_of(BLOCK_BYTES);
    (data_bytes - HEADER_BYTES).min(most)
}

/// Makes a queue pair; `init` has the sizes that were granted then.
pub(super) fn create(
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
) -> Result<*mut QueuePair, Errno> {
    make(pd, init, false)
}

/// Makes the queue pair of a work queue, which receives what is shared out.
pub(super) fn create_shared_out(
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
) -> Result<*mut QueuePair, Errno> {
    make(pd, init, true)
}

fn make(
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
    spread: bool,
) -> Result<*mut QueuePair, Errno> {
    if init.qp_type == qpt::XRC_SEND {
        // It receives nothing, whatever the program says.
        (init.cap.max_recv_wr, init.cap.max_recv_sge) = (0, 0);
        (init.recv_cq, init.srq) = (init.send_cq, null_mut());
    }
    if pd.is_null() || init.send_cq.is_null() || init.recv_cq.is_null() {
        return Err(Errno::INVALID);
    }
    let (domain, context) = promised!((Domain::of(pd), (*pd).context));
    let shared = promised!(Context::here(context))?;
    let srq = if init.srq.is_null() { None } else { Some(promised!(SharedQueue::of(init.srq))) };
    if srq.is_some() {
        (init.cap.max_recv_wr, init.cap.max_recv_sge) = (0, 0);
    }
    init.cap.max_inline_data = inline_granted(init.qp_type, &init.cap);
    let [send, recv] = [init.send_cq, init.recv_cq].map(|cq| promised!(Queue::of(cq)));
    let index = shared.take_index();
    let make = |send: &Inner, recv: &Inner| {
        let srq = srq.map(|srq| lock(&srq.srq));
        let queues = QpQueues { send_cq: &send.cq, recv_cq: &recv.cq, srq: srq.as_deref() };
        Ok(domain.pd.create_qp(queues, &config(init, index, spread)?)?)
    };
    let made = with_both(send, recv, make);
    let qp = made.inspect_err(|_: &Errno| shared.give_index(index))?;
    let attr = ibv_qp_attr { cap: init.cap, port_num: 1, ..ibv_qp_attr::default() };
    let pair = Pair {
        qp,
        srq: srq.map(|srq| Arc::clone(&srq.srq)),
        signals_all: init.sq_sig_all != 0,
        domain: domain.pd.domain(),
        attr,
        rules: Rules::default(),
        memberships: Vec::new(),
        spread: None,
    };
    let member = Arc::new(Member { pair: Lock::new(pair), index: Some(index) });
    shared.insert(&member);
    let needs = [&domain.users, &send.users, &recv.users].map(Users::one);
    let pair = hand_out((context, shared), pd, member, init, needs.into());
    // No event is about one of raw packets, whose number another one may have.
    if init.qp_type != qpt::RAW_PACKET {
        shared.enlist(Kind::Qp, promised!(&*pair).number(), pair);
    }
    Ok(pair)
}

/// Gives the program a queue pair.
fn hand_out(
    (context, shared): (*mut ibv_context, &Arc<Shared>),
    pd: *mut ibv_pd,
    member: Arc<Member>,
    init: &ibv_qp_init_attr,
    needs: Vec<User>,
) -> *mut QueuePair {
    let (qp_num, state) = {
        let pair = member.pair.lock();
        (pair.qp.qpn().0, state_of(pair.qp.state()))
    };
    let base = ibv_qp {
        context,
        qp_context: init.qp_context,
        pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        handle: qp_num,
        qp_num,
        state,
        qp_type: init.qp_type,
        locks: [0; _],
        events_completed: AtomicU32::new(0),
    };
    give_out(QueuePair {
        face: Shown::new(wr::face(base)),
        shared: Arc::clone(shared),
        member,
        is_building: AtomicBool::new(false),
        batch: UnsafeCell::new(Batch::new(&init.cap)),
        init: *init,
        is_opened: false,
        users: Users::default(),
        needs,
    })
}

/// What a program reads of a target of XRC: it has no queues.
fn target_attr(qp_context: *mut c_void) -> ibv_qp_init_attr {
    ibv_qp_init_attr {
        qp_context,
        send_cq: null_mut(),
        recv_cq: null_mut(),
        srq: null_mut(),
        cap: ibv_qp_cap::default(),
        qp_type: qpt::XRC_RECV,
        sq_sig_all: 0,
    }
}

/// Makes a target of XRC, which has the domain `pd` in what the program reads of it, and uses none.
pub(super) fn create_target(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    init: &ibv_qp_init_attr_ex,
) -> Result<*mut QueuePair, Errno> {
    let shared = promised!(Context::here(context))?;
    if init.xrcd.is_null() {
        return Err(Errno::INVALID);
    }
    let domain = promised!(XrcDomain::of(init.xrcd));
    let attr = ibv_qp_attr { port_num: 1, ..ibv_qp_attr::default() };
    let qp = domain.core.xrcd.create_target()?;
    let number = qp.qpn().0;
    let rules = Rules::default();
    let (memberships, spread) = (Vec::new(), None);
    let pair =
        Pair { qp, srq: None, signals_all: false, domain: 0, attr, rules, memberships, spread };
    let member = Arc::new(Member { pair: Lock::new(pair), index: None });
    domain.core.add(number, &member);
    let (attr, needs) = (target_attr(init.qp_context), vec![domain.users.one()]);
    let pair = hand_out((context, shared), pd, member, &attr, needs);
    shared.enlist(Kind::Qp, number, pair);
    Ok(pair)
}

/// Gives out one more handle of a target of XRC. It is destroyed with the last.
pub(super) fn open(
    context: *mut ibv_context,
    attr: &ibv_qp_open_attr,
) -> Result<*mut QueuePair, Errno> {
    let shared = promised!(Context::here(context))?;
    let (domain, member, qp_context) = find_target(attr)?;
    let (attr, needs) = (target_attr(qp_context), vec![domain.users.one()]);
    let pair = hand_out((context, shared), null_mut(), member, &attr, needs);
    promised!((*pair).is_opened = true);
    Ok(pair)
}

/// Runs `make` with the locks of two queues, or with the one of both.
fn with_both<T>(send: &Queue, recv: &Queue, make: impl FnOnce(&Inner, &Inner) -> T) -> T {
    let order = std::ptr::from_ref(send).cmp(&std::ptr::from_ref(recv));
    match order {
        std::cmp::Ordering::Equal => {
            let both = send.inner();
            make(&both, &both)
        }
        std::cmp::Ordering::Less => {
            let (send, recv) = (send.inner(), recv.inner());
            make(&send, &recv)
        }
        std::cmp::Ordering::Greater => {
            let recv = recv.inner();
            make(&send.inner(), &recv)
        }
    }
}

pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    object(create(pd, promised!(&mut *init))).cast()
}

pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    qp.cast()
}

pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // qperf destroys the queue pair of an id that has none.
    if qp.is_null() {
        return libc::EINVAL;
    }
    let pair = promised!(QueuePair::of(qp));
    tried!(pair.shared.here());
    tried!(pair.users.none());
    if !pair.member.pair.lock().qp.groups().is_empty() {
        return libc::EBUSY;
    }
    if !pair.is_opened && promised!((*qp).qp_type) != qpt::RAW_PACKET {
        pair.shared.delist(Kind::Qp, pair.number());
    }
    // Other handles of a target keep it.
    let is_last = pair.member.index.is_some() || Arc::strong_count(&pair.member) == 1;
    // The device lets go of it first: what it has written is then taken into account.
    if !is_last || pair.member.pair.lock().qp.state() == QpState::Reset {
        pair.purge(|_| ());
    } else if let Err(error) = pair.let_go() {
        tracing::warn!(%error, "the queue pair is destroyed as it is");
    }
    pair.leave();
    drop(promised!(take_back::<QueuePair, _>(qp)));
    0
}

pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    asked: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    let queue_pair = promised!(QueuePair::of(qp));
    tried!(queue_pair.shared.here());
    let pair = queue_pair.member.pair.lock();
    if pair.spread.is_some() {
        // Source: rdma-core, providers/mlx5/verbs.c, `mlx5_query_qp`.
        return libc::EOPNOTSUPP;
    }
    number(pair.qp.query().map_err(Errno::from).map(|now| {
        let state = state_of(now.state);
        let out = ibv_qp_attr {
            qp_state: state,
            cur_qp_state: state,
            rq_psn: now.recv_psn.0,
            sq_psn: now.send_psn.0,
            ..pair.attr
        };
        promised!({
            attr.write(out);
            init.write(queue_pair.init);
            if asked as c_uint & mask::STATE != 0 {
                queue_pair.show_state(state);
            }
        });
    }))
}

pub(crate) unsafe extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _op: c_int,
    _flags: u32,
) -> c_int {
    // Nothing is promised: the bytes of a message may come in any order.
    0
}

/// A group's GID, and the queue pair that it is about.
unsafe fn with_group(
    qp: *mut ibv_qp,
    gid: *const [u8; 16],
    run: impl FnOnce(&Arc<Node>, &mut Pair, Gid) -> Result<(), Errno>,
) -> c_int {
    let (queue_pair, gid) = promised!((QueuePair::of(qp), Gid(*gid)));
    tried!(queue_pair.shared.here());
    let mut pair = queue_pair.member.pair.lock();
    number(run(&queue_pair.shared.node, &mut pair, gid))
}

fn attach(node: &Arc<Node>, pair: &mut Pair, group: Gid) -> Result<(), Errno> {
    pair.qp.attach_multicast(group)?;
    if pair.memberships.iter().any(|(known, _)| *known == group) {
        return Ok(());
    }
    match node.join(group.ip()) {
        Ok(membership) => {
            pair.memberships.push((group, membership));
            Ok(())
        }
        Err(errno) => {
            pair.qp.detach_multicast(group)?;
            Err(errno)
        }
    }
}

fn detach(pair: &mut Pair, group: Gid) -> Result<(), Errno> {
    pair.qp.detach_multicast(group)?;
    pair.memberships.retain(|(known, _)| *known != group);
    Ok(())
}

pub(crate) unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const [u8; 16],
    _lid: u16,
) -> c_int {
    promised!(with_group(qp, gid, attach))
}

pub(crate) unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const [u8; 16],
    _lid: u16,
) -> c_int {
    promised!(with_group(qp, gid, |_, pair, gid| detach(pair, gid)))
}

pub(super) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    object(open(context, promised!(&*attr))).cast()
}
