//! Shared receive queues.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use ferrocx_verbs_lite::{Srq, SrqConfig, VerbsError};

use super::context::{Context, Kind, Shared};
use super::cq::Queue;
use super::life::User;
use super::memory::Domain;
use super::pair::List;
use super::post::post_receives;
use super::shown::Shown;
use super::xrc::XrcDomain;
use super::{Errno, give_out, number, object, take_back, tried};
use crate::abi::{
    ibv_context, ibv_cq, ibv_pd, ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
    ibv_srq_init_attr_ex, ibv_xrcd,
};
use crate::node::lock;

/// A shared receive queue as the program has it.
#[repr(C)]
pub(super) struct SharedQueue {
    _face: Shown<ibv_srq>,
    pub(super) srq: Arc<Mutex<Srq<List>>>,
    shared: Arc<Shared>,
    domain: u32,
    max_sge: u32,
    _needs: Vec<User>,
    limit: AtomicU32,
    /// Of a queue of XRC: the number that its completions carry, and where it completes.
    xrc: Option<(u32, *mut ibv_cq)>,
}

impl SharedQueue {
    /// # Safety
    /// The module's: `face` is a live queue.
    pub(super) unsafe fn of<'a>(face: *mut ibv_srq) -> &'a Self {
        promised!(&*face.cast::<Self>())
    }

    /// Its limit was reached, and holds no more.
    pub(super) fn limit_reached(&self) {
        self.limit.store(0, Ordering::Relaxed);
    }
}

/// What a queue of XRC belongs to besides.
struct Xrc {
    xrcd: *mut ibv_xrcd,
    cq: *mut ibv_cq,
}

/// Makes a queue; `attr` becomes what was granted.
fn create(
    pd: *mut ibv_pd,
    srq_context: *mut std::ffi::c_void,
    attr: &mut ibv_srq_attr,
    xrc: Option<Xrc>,
) -> Result<*mut ibv_srq, Errno> {
    let (domain, context) = promised!((Domain::of(pd), (*pd).context));
    let shared = promised!(Context::here(context))?;
    let config = SrqConfig { max_wr: attr.max_wr.max(1), max_sge: attr.max_sge.max(1) };
    let mut needs = vec![domain.users.one()];
    let (srq, xrc) = match xrc {
        None => (domain.pd.create_srq::<List>(&config)?, None),
        Some(Xrc { xrcd, cq }) => {
            let (xrc, queue) = promised!((XrcDomain::of(xrcd), Queue::of(cq)));
            needs.extend([xrc.users.one(), queue.users.one()]);
            let inner = queue.inner();
            let make =
                |index| xrc.core.xrcd.create_srq::<List>(&domain.pd, &inner.cq, index, &config);
            // Another context in the domain may have a number already.
            let mut refused = Vec::new();
            let (index, made) = loop {
                let index = shared.take_index();
                match make(index) {
                    Err(VerbsError::UserIndexTaken { .. }) => refused.push(index),
                    made => break (index, made),
                }
            };
            refused.into_iter().for_each(|index| shared.give_index(index));
            (made.inspect_err(|_| shared.give_index(index))?, Some((index, cq)))
        }
    };
    let srqn = srq.number();
    (attr.max_wr, attr.max_sge) = (config.max_wr, config.max_sge);
    let _face = Shown::new(ibv_srq {
        context,
        srq_context,
        pd,
        handle: srqn,
        locks: [0; _],
        events_completed: AtomicU32::new(0),
    });
    let srq = Arc::new(Mutex::new(srq));
    if let Some((index, _)) = xrc {
        lock(&shared.xrc_queues).insert(index, Arc::clone(&srq));
    }
    let queue = give_out(SharedQueue {
        _face,
        srq,
        shared: Arc::clone(shared),
        domain: domain.pd.domain(),
        max_sge: config.max_sge,
        _needs: needs,
        limit: AtomicU32::new(0),
        xrc,
    });
    shared.enlist(Kind::Srq, srqn, queue);
    Ok(queue)
}

pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    let init = promised!(&mut *init);
    object(create(pd, init.srq_context, &mut init.attr, None))
}

pub(super) unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    /// `IBV_SRQ_INIT_ATTR_TYPE`, `_PD`, `_XRCD`, `_CQ`.
    const TYPE: u32 = 1;
    const PD: u32 = 1 << 1;
    const XRCD: u32 = 1 << 2;
    const CQ: u32 = 1 << 3;
    /// `IBV_SRQT_BASIC`, `IBV_SRQT_XRC`.
    const BASIC: c_int = 0;
    const OF_XRC: c_int = 1;
    let init = promised!(&mut *init);
    let has = |bits: u32| init.comp_mask & bits == bits;
    let kind = if has(TYPE) { init.srq_type } else { BASIC };
    if init.comp_mask & !(TYPE | PD | XRCD | CQ) != 0 || !matches!(kind, BASIC | OF_XRC) {
        return object(Err(Errno::NOT_SUPPORTED));
    }
    let xrc = (kind == OF_XRC).then_some(Xrc { xrcd: init.xrcd, cq: init.cq });
    let is_whole = xrc.is_none() || has(XRCD | CQ) && !init.xrcd.is_null() && !init.cq.is_null();
    if !has(PD) || init.pd.is_null() || !is_whole {
        return object(Err(Errno::INVALID));
    }
    let mut attr = init.base.attr;
    let made = object(create(init.pd, init.base.srq_context, &mut attr, xrc));
    init.base.attr = attr;
    made
}

pub(super) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, out: *mut u32) -> c_int {
    promised!(out.write((*srq).handle));
    0
}

pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    let queue = promised!(SharedQueue::of(srq));
    tried!(queue.shared.here());
    // A queue pair that takes receives from it holds it, too.
    if queue.xrc.is_none() && Arc::strong_count(&queue.srq) > 1 {
        return libc::EBUSY;
    }
    queue.shared.delist(Kind::Srq, promised!((*srq).handle));
    if let Some((index, cq)) = queue.xrc {
        let completions = promised!(Queue::of(cq));
        let mut inner = completions.inner();
        // What has ended is still told.
        completions.take_all(&mut inner);
        lock(&queue.shared.xrc_queues).remove(&index);
        queue.shared.give_index(index);
    }
    drop(promised!(take_back::<SharedQueue, _>(srq)));
    0
}

pub(crate) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    given: c_int,
) -> c_int {
    /// `IBV_SRQ_MAX_WR`, `IBV_SRQ_LIMIT`.
    const LIMIT: c_int = 1 << 1;
    let (queue, attr) = promised!((SharedQueue::of(srq), &*attr));
    tried!(queue.shared.here());
    if given & !LIMIT != 0 {
        return libc::EOPNOTSUPP;
    }
    if given == 0 {
        return 0;
    }
    let armed = lock(&queue.srq).arm_limit(attr.srq_limit);
    number(armed.map_err(Errno::from).map(|()| {
        queue.limit.store(attr.srq_limit, Ordering::Relaxed);
    }))
}

pub(crate) unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    let queue = promised!(SharedQueue::of(srq));
    tried!(queue.shared.here());
    let max_wr = lock(&queue.srq).max_wr();
    let srq_limit = queue.limit.load(Ordering::Relaxed);
    promised!(attr.write(ibv_srq_attr { max_wr, max_sge: queue.max_sge, srq_limit }));
    0
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let queue = promised!(SharedQueue::of(srq));
    if let Err(errno) = queue.shared.here() {
        promised!(bad.write(first));
        return errno.0;
    }
    let mut srq = lock(&queue.srq);
    promised!(post_receives(first, bad, queue.domain, |receives| {
        srq.post_recv_list(receives).map_err(|refused| refused.cause)
    }))
}
