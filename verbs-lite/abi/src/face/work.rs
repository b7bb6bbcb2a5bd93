//! Receive work queues, tables of them, and queue pairs that hash frames into a table.
//!
//! A work queue is a raw packet queue pair whose sends nobody uses. A queue pair over a table has
//! rules, and neither requests nor states of its own.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use ferrocx_verbs_lite::{FrameHash, HashFields, Spread};

use super::context::{Context, Shared};
use super::life::{User, Users};
use super::pair::Member;
use super::qp::{self, ibv_destroy_qp};
use super::queue_pair::QueuePair;
use super::shown::Shown;
use super::{Errno, give_out, number, object, post, take_back, tried};
use crate::abi::{
    ibv_context, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_recv_wr,
    ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_rx_hash_conf, ibv_wq, ibv_wq_attr,
    ibv_wq_init_attr, mask, qps, qpt, wqs,
};

/// `IBV_RX_HASH_FUNC_TOEPLITZ`, and bytes of its key.
pub(super) const TOEPLITZ: u8 = 1;
const KEY_BYTES: usize = 40;
/// `IBV_RX_HASH_*`: fields that may be hashed.
pub(super) const FIELDS: u64 = 0xff;

/// A receive work queue as the program has it.
#[repr(C)]
struct WorkQueue {
    face: Shown<ibv_wq>,
    pair: *mut QueuePair,
    shared: Arc<Shared>,
    /// Tables that it stands in.
    users: Users,
}

impl WorkQueue {
    /// # Safety
    /// The module's: `face` is a live queue.
    unsafe fn of<'a>(face: *mut ibv_wq) -> &'a Self {
        promised!(&*face.cast::<Self>())
    }

    /// Its state, which the program reads.
    fn state(&self) -> &AtomicI32 {
        promised!(AtomicI32::from_ptr(&raw mut (*self.face.get()).state))
    }
}

fn create(context: *mut ibv_context, attr: &ibv_wq_init_attr) -> Result<*mut ibv_wq, Errno> {
    /// `IBV_WQ_INIT_ATTR_FLAGS`.
    const FLAGS: u32 = 1;
    let shared = promised!(Context::here(context))?;
    let flags = if attr.comp_mask & FLAGS != 0 { attr.create_flags } else { 0 };
    if attr.comp_mask & !FLAGS != 0 || flags != 0 {
        return Err(Errno::NOT_SUPPORTED);
    }
    if attr.wq_type != 0 || attr.pd.is_null() || attr.cq.is_null() {
        return Err(Errno::INVALID);
    }
    let mut init = ibv_qp_init_attr {
        qp_context: attr.wq_context,
        send_cq: attr.cq,
        recv_cq: attr.cq,
        srq: std::ptr::null_mut(),
        cap: ibv_qp_cap {
            max_recv_wr: attr.max_wr,
            max_recv_sge: attr.max_sge,
            ..ibv_qp_cap::default()
        },
        qp_type: qpt::RAW_PACKET,
        sq_sig_all: 0,
    };
    let pair = qp::create_shared_out(attr.pd, &mut init)?;
    let wq_num = promised!(&*pair).number();
    let face = Shown::new(ibv_wq {
        context,
        wq_context: attr.wq_context,
        pd: attr.pd,
        cq: attr.cq,
        wq_num,
        handle: wq_num,
        state: wqs::RESET,
        wq_type: attr.wq_type,
        post_recv: post_wq_recv,
        locks: [0; _],
        events_completed: 0,
        comp_mask: 0,
    });
    let shared = Arc::clone(shared);
    Ok(give_out(WorkQueue { face, pair, shared, users: Users::default() }))
}

pub(super) unsafe extern "C" fn create_wq(
    context: *mut ibv_context,
    attr: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    object(create(context, promised!(&*attr)))
}

unsafe extern "C" fn post_wq_recv(
    wq: *mut ibv_wq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    promised!(post::post_recv(WorkQueue::of(wq).pair.cast(), first, bad))
}

/// Leads a queue to another state; which it has then.
fn modify(queue: &WorkQueue, attr: &ibv_wq_attr) -> Result<c_int, Errno> {
    /// `IBV_WQ_ATTR_STATE`, `_CURR_STATE`.
    const STATE: u32 = 1;
    const CURR_STATE: u32 = 1 << 1;
    queue.shared.here()?;
    if attr.attr_mask & !(STATE | CURR_STATE) != 0 {
        return Err(Errno::NOT_SUPPORTED);
    }
    let from = queue.state().load(Ordering::Relaxed);
    if attr.attr_mask & CURR_STATE != 0 && attr.curr_wq_state != from {
        return Err(Errno::INVALID);
    }
    let to = if attr.attr_mask & STATE != 0 { attr.wq_state } else { from };
    let steps: &[(c_int, u32)] = match (from, to) {
        (wqs::RESET, wqs::RDY) => &[(qps::INIT, mask::PORT), (qps::RTR, 0)],
        (wqs::RESET, wqs::ERR) => &[(qps::INIT, mask::PORT), (qps::ERR, 0)],
        (_, wqs::RESET) => &[(qps::RESET, 0)],
        (_, wqs::ERR) => &[(qps::ERR, 0)],
        (wqs::RDY, wqs::RDY) => &[],
        _ => return Err(Errno::INVALID),
    };
    for (qp_state, given) in steps {
        let mut step = ibv_qp_attr { qp_state: *qp_state, port_num: 1, ..ibv_qp_attr::default() };
        let given = (given | mask::STATE) as c_int;
        let failed = promised!(super::ibv_modify_qp(queue.pair.cast(), &raw mut step, given));
        if failed != 0 {
            return Err(Errno(failed));
        }
    }
    Ok(to)
}

pub(super) unsafe extern "C" fn modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int {
    let (queue, attr) = promised!((WorkQueue::of(wq), &*attr));
    let modified = modify(queue, attr);
    if let Ok(state) = modified {
        queue.state().store(state, Ordering::Relaxed);
    }
    number(modified.map(drop))
}

pub(super) unsafe extern "C" fn destroy_wq(wq: *mut ibv_wq) -> c_int {
    let queue = promised!(WorkQueue::of(wq));
    tried!(queue.shared.here());
    tried!(queue.users.none());
    let failed = promised!(ibv_destroy_qp(queue.pair.cast()));
    if failed == 0 {
        drop(promised!(take_back::<WorkQueue, _>(wq)));
    }
    failed
}

/// A table of work queues as the program has it.
#[repr(C)]
struct Table {
    _face: Shown<ibv_rwq_ind_table>,
    queues: Vec<(Arc<Member>, User)>,
    /// Where the first of them completes.
    first: *mut ibv_wq,
    shared: Arc<Shared>,
    /// Queue pairs over it.
    users: Users,
}

impl Table {
    /// Has frames spread over the queues of the table.
    fn spread(&self, hash: &FrameHash) -> Result<Spread, Errno> {
        // Each queue is locked once, however often it stands in the table.
        let mut members: Vec<_> = self.queues.iter().map(|(member, _)| member).collect();
        members.sort_by_key(|member| Arc::as_ptr(member));
        members.dedup_by_key(|member| Arc::as_ptr(member));
        let locked: Vec<_> = members.iter().map(|member| member.pair.lock()).collect();
        let place = |queue: &(Arc<Member>, User)| {
            let known = |member: &&Arc<Member>| Arc::as_ptr(*member);
            let at = members.binary_search_by_key(&Arc::as_ptr(&queue.0), known);
            &locked[at.expect("it is one of them")].qp
        };
        let queues: Vec<_> = self.queues.iter().map(place).collect();
        Ok(Spread::new(&queues, hash)?)
    }
}

fn tabulate(
    context: *mut ibv_context,
    attr: &ibv_rwq_ind_table_init_attr,
) -> Result<*mut ibv_rwq_ind_table, Errno> {
    let shared = promised!(Context::here(context))?;
    if attr.comp_mask != 0 {
        return Err(Errno::NOT_SUPPORTED);
    }
    let most = shared.node.context.device().limits().max_reta;
    let len = 1_u32.checked_shl(attr.log_ind_tbl_size).filter(|len| *len <= most);
    let len = len.ok_or(Errno::INVALID)? as usize;
    let queues = promised!(std::slice::from_raw_parts(attr.ind_tbl, len));
    if queues.iter().any(|wq| wq.is_null()) {
        return Err(Errno::INVALID);
    }
    let first = queues[0];
    let of = |wq: &*mut ibv_wq| {
        let queue = promised!(WorkQueue::of(*wq));
        (Arc::clone(promised!(&(*queue.pair).member)), queue.users.one())
    };
    let queues = queues.iter().map(of).collect();
    // The device has the table with each queue pair over it.
    let number = shared.take_index() as c_int;
    let face =
        ibv_rwq_ind_table { context, ind_tbl_handle: number, ind_tbl_num: number, comp_mask: 0 };
    let _face = Shown::new(face);
    let shared = Arc::clone(shared);
    Ok(give_out(Table { _face, queues, first, shared, users: Users::default() }))
}

pub(super) unsafe extern "C" fn create_rwq_ind_table(
    context: *mut ibv_context,
    attr: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    object(tabulate(context, promised!(&*attr)))
}

pub(super) unsafe extern "C" fn destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int {
    let known = promised!(&*table.cast::<Table>());
    tried!(known.shared.here());
    tried!(known.users.none());
    known.shared.give_index(promised!((*table).ind_tbl_num) as u32);
    drop(promised!(take_back::<Table, _>(table)));
    0
}

/// What a hash covers.
fn hash_of(conf: &ibv_rx_hash_conf) -> Result<FrameHash, Errno> {
    const PAIRS: [(u64, HashFields); 4] = [
        (0b0101, HashFields::SRC_IP),
        (0b1010, HashFields::DST_IP),
        (0b0101 << 4, HashFields::SRC_PORT),
        (0b1010 << 4, HashFields::DST_PORT),
    ];
    /// Addresses of either version, and ports of either protocol.
    const IPV4: u64 = 0b0011;
    const IPV6: u64 = 0b1100;
    const TCP: u64 = IPV4 << 4;
    const UDP: u64 = IPV6 << 4;
    let asked = conf.rx_hash_fields_mask;
    if conf.rx_hash_function != TOEPLITZ || asked & !FIELDS != 0 {
        return Err(Errno::NOT_SUPPORTED);
    }
    let has = |kind: u64| asked & kind != 0;
    let is_bad = usize::from(conf.rx_hash_key_len) != KEY_BYTES || conf.rx_hash_key.is_null();
    if is_bad || has(IPV4) && has(IPV6) || has(TCP) && has(UDP) {
        return Err(Errno::INVALID);
    }
    let covered = PAIRS.iter().filter(|(bits, _)| has(*bits));
    let mut fields = covered.fold(HashFields::empty(), |all, (_, field)| all | *field);
    fields.set(HashFields::IPV6, has(IPV6));
    fields.set(HashFields::UDP, has(UDP));
    let key = promised!(conf.rx_hash_key.cast::<[u8; KEY_BYTES]>().read_unaligned());
    Ok(FrameHash { key, fields })
}

/// Makes a queue pair over a table.
pub(super) fn create_over(init: &ibv_qp_init_attr_ex) -> Result<*mut QueuePair, Errno> {
    if init.rwq_ind_tbl.is_null() || init.pd.is_null() {
        return Err(Errno::INVALID);
    }
    if init.qp_type != qpt::RAW_PACKET {
        return Err(Errno::NOT_SUPPORTED);
    }
    let table = promised!(&*init.rwq_ind_tbl.cast::<Table>());
    table.shared.here()?;
    let hash = hash_of(&init.rx_hash_conf)?;
    let cq = promised!((*table.first).cq);
    let mut plain = ibv_qp_init_attr {
        qp_context: init.qp_context,
        send_cq: cq,
        recv_cq: cq,
        srq: std::ptr::null_mut(),
        cap: ibv_qp_cap::default(),
        qp_type: init.qp_type,
        sq_sig_all: 0,
    };
    let spread = table.spread(&hash)?;
    let pair = qp::create(init.pd, &mut plain)?;
    let made = promised!(&mut *pair);
    made.member.pair.lock().spread = Some(spread);
    made.needs.push(table.users.one());
    Ok(pair)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_of_one_version_and_one_protocol() {
        let mut key = [7; KEY_BYTES];
        let conf = ibv_rx_hash_conf {
            rx_hash_function: TOEPLITZ,
            rx_hash_key_len: 40,
            rx_hash_key: key.as_mut_ptr(),
            rx_hash_fields_mask: 0,
        };
        let fields = |rx_hash_fields_mask| {
            let hash = hash_of(&ibv_rx_hash_conf { rx_hash_fields_mask, ..conf });
            hash.map(|hash| hash.fields).map_err(|errno| errno.0)
        };
        use HashFields as F;
        assert_eq!(fields(0b11), Ok(F::SRC_IP | F::DST_IP));
        assert_eq!(fields(0b1000), Ok(F::DST_IP | F::IPV6));
        assert_eq!(fields(0b1_0001), Ok(F::SRC_IP | F::SRC_PORT));
        assert_eq!(fields(0b1000_0010), Ok(F::DST_IP | F::DST_PORT | F::UDP));
        assert_eq!(fields(0b101), Err(libc::EINVAL));
        assert_eq!(fields(0b101_0000), Err(libc::EINVAL));
        for unknown in [1 << 8, 1 << 31] {
            assert_eq!(fields(unknown), Err(libc::EOPNOTSUPP));
        }
        let short = hash_of(&ibv_rx_hash_conf { rx_hash_key_len: 39, ..conf });
        assert_eq!(short.map_err(|errno| errno.0).err(), Some(libc::EINVAL));
        assert_eq!(hash_of(&conf).unwrap().key, key);
    }
}
