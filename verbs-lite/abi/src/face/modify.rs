//! Transitions of queue pairs, by a mask of attributes.

use std::ffi::{c_int, c_uint};

use ferrocx_verbs_lite::{
    Access, Changes, InitAttr, Mtu, Path, Psn, QpState, QpType, Qpn, RtrAttr, RtsAttr,
};

use super::address::path_of;
use super::memory::access_of;
use super::pair::Pair;
use super::queue_pair::{QueuePair, state_of};
use super::{Errno, number};
use crate::abi::{access, ibv_qp, ibv_qp_attr, mask, qps};
use crate::node::Node;

/// What a step needs, and what it may have besides. Source: IBTA vol. 1, 11.2.5.2; Linux checks by
/// the same table.
struct Step {
    needs: u32,
    takes: u32,
}

/// The table: from which state to which, by service. `None` for a step that there is not.
fn step(service: QpType, from: QpState, to: c_int) -> Option<Step> {
    use mask::*;
    // Each end of XRC has the half of a reliable connection that it needs.
    let (sends, receives) = match service {
        QpType::Rc => (true, true),
        QpType::XrcSend => (true, false),
        QpType::XrcRecv => (false, true),
        _ => (false, false),
    };
    let by = |connected: u32, datagrams: u32| match service {
        QpType::Ud => datagrams,
        QpType::Raw => 0,
        _ => connected,
    };
    let timer = if receives { MIN_RNR_TIMER } else { 0 };
    let step = |needs: u32, takes: u32| Some(Step { needs, takes });
    match (from, to) {
        // One that was never used has nothing to fail.
        (QpState::Reset, qps::ERR) => None,
        (_, qps::RESET | qps::ERR) => step(0, 0),
        // A raw packet queue pair has a port, and no peer.
        (QpState::Reset, qps::INIT) if service == QpType::Raw => step(PORT, 0),
        (QpState::Rtr, qps::RTS) if service == QpType::Raw => step(0, 0),
        (QpState::Reset, qps::INIT) => step(PKEY_INDEX | PORT | by(ACCESS_FLAGS, QKEY), 0),
        (QpState::Init, qps::INIT) => step(0, PKEY_INDEX | PORT | by(ACCESS_FLAGS, QKEY)),
        (QpState::Init, qps::RTR) => {
            let connection = AV | PATH_MTU | DEST_QPN | RQ_PSN;
            let reads = if receives { MAX_DEST_RD_ATOMIC } else { 0 };
            step(by(connection | reads | timer, 0), PKEY_INDEX | by(ACCESS_FLAGS, QKEY))
        }
        (QpState::Rtr, qps::RTS) => {
            let retries = RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC;
            let timeout = if sends || receives { TIMEOUT } else { 0 };
            let needs = SQ_PSN | timeout | if sends { retries } else { 0 };
            step(needs, by(ACCESS_FLAGS | timer, QKEY))
        }
        (QpState::Rts, qps::RTS) => step(0, by(ACCESS_FLAGS | timer, QKEY)),
        (QpState::SqError, qps::RTS) if !sends && !receives => step(0, by(ACCESS_FLAGS, QKEY)),
        _ => None,
    }
}

/// What an end of XRC does not have. Linux leaves it out, whoever says it, and perftest says it.
fn of_other_end(service: QpType) -> u32 {
    match service {
        QpType::XrcSend => mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER,
        QpType::XrcRecv => mask::MAX_QP_RD_ATOMIC | mask::RETRY_CNT | mask::RNR_RETRY,
        _ => 0,
    }
}

/// The path MTU of a number of the interface.
fn mtu_of(code: c_int) -> Result<Mtu, Errno> {
    let all = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];
    all.into_iter().find(|mtu| *mtu as c_int == code).ok_or(Errno::INVALID)
}

/// Attributes that a step sets, kept for those who ask.
fn remember(known: &mut ibv_qp_attr, attr: &ibv_qp_attr, given: u32) {
    let has = |bit: u32| given & bit != 0;
    macro_rules! keep {
        ($($bit:ident: $($field:ident),*;)*) => {$(
            if has(mask::$bit) {
                $(known.$field = attr.$field;)*
            }
        )*};
    }
    keep! {
        ACCESS_FLAGS: qp_access_flags;
        PKEY_INDEX: pkey_index;
        PORT: port_num;
        QKEY: qkey;
        AV: ah_attr;
        PATH_MTU: path_mtu;
        TIMEOUT: timeout;
        RETRY_CNT: retry_cnt;
        RNR_RETRY: rnr_retry;
        RQ_PSN: rq_psn;
        MAX_QP_RD_ATOMIC: max_rd_atomic;
        MIN_RNR_TIMER: min_rnr_timer;
        SQ_PSN: sq_psn;
        MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        DEST_QPN: dest_qp_num;
    }
}

/// What a peer may do. Flags that queue pairs of this device do not know (FLUSH of newer programs)
/// are passed over, as the kernel's driver does.
fn rights_of_peer(flags: u32) -> Access {
    const RIGHTS: u32 = access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
    access_of(flags & RIGHTS).unwrap_or(Access::empty())
}

/// Rights of the peer and key, for the step to INIT.
fn init_attr(attr: &ibv_qp_attr) -> InitAttr {
    InitAttr { access: rights_of_peer(attr.qp_access_flags), qkey: attr.qkey }
}

/// INIT to RTR.
fn receive(node: &Node, pair: &mut Pair, attr: &ibv_qp_attr) -> Result<(), Errno> {
    match pair.qp.qp_type() {
        QpType::Ud => return Ok(pair.qp.receive()?),
        QpType::Raw => {
            pair.qp.receive()?;
            return Ok(pair.rules.lead(&mut pair.qp)?);
        }
        _ => {}
    }
    let path: Path = path_of(node, &attr.ah_attr)?;
    let reliable = matches!(pair.qp.qp_type(), QpType::Rc | QpType::XrcRecv);
    let rtr = RtrAttr {
        path,
        remote_qpn: Qpn(attr.dest_qp_num & 0xff_ffff),
        psn: Psn(attr.rq_psn & 0xff_ffff),
        mtu: mtu_of(attr.path_mtu)?,
        max_dest_rd_atomic: if reliable { attr.max_dest_rd_atomic } else { 0 },
        min_rnr_timer: if reliable { attr.min_rnr_timer } else { 0 },
    };
    let port = node.context.port_attr()?;
    if rtr.mtu > port.active_mtu {
        return Err(Errno::INVALID);
    }
    Ok(pair.qp.connect(&rtr)?)
}

/// RTR to RTS.
fn send(pair: &mut Pair, attr: &ibv_qp_attr) -> Result<(), Errno> {
    let psn = Psn(attr.sq_psn & 0xff_ffff);
    let rts = match pair.qp.qp_type() {
        QpType::Rc | QpType::XrcSend => RtsAttr {
            psn,
            timeout: attr.timeout,
            retry_count: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            max_rd_atomic: attr.max_rd_atomic,
        },
        QpType::XrcRecv => RtsAttr { timeout: attr.timeout, ..RtsAttr::new(psn) },
        _ => RtsAttr::new(psn),
    };
    Ok(pair.qp.activate(&rts)?)
}

/// What a step changes besides the state.
fn changes_of(attr: &ibv_qp_attr, given: u32) -> Changes {
    let has = |bit: u32| given & bit != 0;
    let access = has(mask::ACCESS_FLAGS).then(|| rights_of_peer(attr.qp_access_flags));
    let qkey = has(mask::QKEY).then_some(attr.qkey);
    let min_rnr_timer = has(mask::MIN_RNR_TIMER).then_some(attr.min_rnr_timer);
    Changes { access, qkey, min_rnr_timer }
}

/// Makes changes, if there are any: saying again what holds already is no work for the device.
fn change(pair: &mut Pair, changes: &Changes) -> Result<(), Errno> {
    if *changes == Changes::default() {
        return Ok(());
    }
    Ok(pair.qp.change(changes)?)
}

/// Carries a step out. `attr` has what was set before, too.
fn carry_out(
    node: &Node,
    pair: &mut Pair,
    to: c_int,
    attr: &ibv_qp_attr,
    given: u32,
) -> Result<(), Errno> {
    let from = pair.qp.state();
    let changes = changes_of(attr, given);
    // The timer is among what a step to RTR needs.
    let rights = Changes { min_rnr_timer: None, ..changes };
    match (from, to) {
        (QpState::Reset, qps::INIT) => Ok(pair.qp.init(&init_attr(attr))?),
        (QpState::Init, qps::INIT) => change(pair, &rights),
        (QpState::Init, qps::RTR) => change(pair, &rights).and_then(|()| receive(node, pair, attr)),
        (QpState::Rtr, qps::RTS) => send(pair, attr).and_then(|()| change(pair, &changes)),
        (QpState::SqError, qps::RTS) => {
            pair.qp.resume()?;
            change(pair, &changes)
        }
        (QpState::Rts, qps::RTS) => change(pair, &changes),
        _ => Err(Errno::INVALID),
    }
}

/// Checks a step against the table and the limits of the port, and makes it.
fn modify(queue_pair: &QueuePair, attr: &ibv_qp_attr, given: u32) -> Result<c_int, Errno> {
    queue_pair.shared.here()?;
    let member = &queue_pair.member;
    if member.pair.lock().spread.is_some() {
        // Source: rdma-core, providers/mlx5/verbs.c, `mlx5_modify_qp`.
        return Err(Errno::NOT_SUPPORTED);
    }
    let from = member.pair.lock().qp.state();
    let to = if given & mask::STATE != 0 { attr.qp_state } else { state_of(from) };
    if given & mask::CUR_STATE != 0 && attr.cur_qp_state != state_of(from) {
        return Err(Errno::INVALID);
    }
    const UNSUPPORTED: u32 = mask::ALT_PATH
        | mask::PATH_MIG_STATE
        | mask::CAP
        | mask::EN_SQD_ASYNC_NOTIFY
        | mask::RATE_LIMIT;
    if given & UNSUPPORTED != 0 {
        return Err(Errno::NOT_SUPPORTED);
    }
    let service = member.pair.lock().qp.qp_type();
    let step = step(service, from, to).ok_or(Errno::INVALID)?;
    let set = given & !(mask::STATE | mask::CUR_STATE | of_other_end(service));
    if step.needs & !set != 0 || set & !(step.needs | step.takes) != 0 {
        return Err(Errno::INVALID);
    }
    let is_off = |bit: u32, is_right: bool| given & bit != 0 && !is_right;
    if is_off(mask::PORT, attr.port_num == 1) || is_off(mask::PKEY_INDEX, attr.pkey_index == 0) {
        return Err(Errno::INVALID);
    }
    match to {
        qps::RESET => queue_pair.let_go()?,
        qps::ERR => member.pair.lock().qp.to_error()?,
        _ => {
            let mut pair = member.pair.lock();
            let mut whole = pair.attr;
            remember(&mut whole, attr, set);
            carry_out(&queue_pair.shared.node, &mut pair, to, &whole, set)?;
            pair.attr = whole;
        }
    }
    Ok(to)
}

pub(crate) unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    given: c_int,
) -> c_int {
    let modified = promised!(modify(QueuePair::of(qp), &*attr, given as c_uint));
    if let Ok(state) = modified {
        promised!(QueuePair::of(qp)).show_state(state);
    }
    number(modified.map(drop))
}
