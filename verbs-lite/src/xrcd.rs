//! What stands behind an XRC domain, below the queues that name it.
//!
//! Source: IBTA vol. 1, annex A14; reference 4.9, 5.2.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, Weak};

use ferrocx_core::wq::{SharedRing, XrcSrqAttr};
use ferrocx_core::{Handle, Kind};
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::objects::AllocXrcd;

use crate::command::Execute;
use crate::context::{ContextCore, DeviceCaps, RdmaContext};
use crate::cq::{Completion, Cq, CqCore, Ends, Room};
use crate::era::Source;
use crate::error::{VerbsError, lock};
use crate::receivers::Owner;

/// Sizes of the queue that stands for none: the least that there is.
const LEAST: (u8, u8) = (1, 1);

/// An XRC domain, destroyed with the last object made in it.
#[derive(Debug)]
pub(crate) struct XrcdCore {
    // Dropped in this order.
    /// What queue pairs name to the device as their shared queue, where packets or nobody name one.
    no_srq: Handle,
    /// Where queue pairs complete that never complete anything.
    no_cq: Arc<CqCore>,
    handle: Handle,
    core: Arc<ContextCore>,
    /// What its targets are entered under.
    owner: Owner,
    /// Numbers of its shared queues.
    user_indices: Mutex<HashSet<u32>>,
    /// Where these complete.
    cqs: Mutex<Vec<Weak<CqCore>>>,
}

impl XrcdCore {
    pub(crate) fn new(context: &RdmaContext) -> Result<Self, VerbsError> {
        let core = Arc::clone(context.core());
        if !core.attr.caps.contains(DeviceCaps::XRC) {
            let (what, way_out) = ("XRC", "use a queue pair of RC for each pair of processes");
            return Err(VerbsError::Unsupported { what, way_out });
        }
        let device = core.device();
        let xrcd = device.execute::<AllocXrcd>(&AllocXrcd::input(), &[], &mut [])?.xrcd();
        let handle = Handle::new(device, Kind::Xrcd, xrcd, Vec::new());
        let no_cq = Cq::new(context, 1, Room::Shared, None)?.core();
        // Linux's driver, too, has each queue pair name a shared queue and completion queues.
        // Source: reference 5.2.
        let (pd, cqn) = (device.pdn(), no_cq.number());
        let attr = XrcSrqAttr { xrcd, pd, rlky: false, cqn, user_index: 0 };
        let (_, no_srq) = SharedRing::create_xrc(device, &attr, LEAST)?;
        let (owner, user_indices) = (core.receivers.owner(), Mutex::default());
        let cqs = Mutex::default();
        Ok(Self { no_srq, no_cq, handle, core, owner, user_indices, cqs })
    }

    /// The domain that initiators name, which need none: one for all of them.
    pub(crate) fn of_initiators(core: &Arc<ContextCore>) -> Result<Arc<Self>, VerbsError> {
        core.device().shared(|| Self::new(&RdmaContext::of(core)))
    }

    pub(crate) fn number(&self) -> u32 {
        self.handle.number()
    }

    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    pub(crate) fn no_srqn(&self) -> u32 {
        self.no_srq.number()
    }

    pub(crate) fn core(&self) -> &Arc<ContextCore> {
        &self.core
    }

    /// Notes that a shared queue completes in `cq`, and begins an era there, which it gives: that of
    /// now may be earlier than that of targets which were made before.
    fn completes_in(&self, cq: &Arc<CqCore>) -> u64 {
        let mut cqs = lock(&self.cqs);
        cqs.retain(|known| known.strong_count() > 0 && known.as_ptr() != Arc::as_ptr(cq));
        cqs.push(Arc::downgrade(cq));
        cq.stamps.begin()
    }

    /// Begins an era in every queue that its shared queues complete in; the first of them.
    pub(crate) fn begin_eras(&self) -> u64 {
        let first = self.no_cq.stamps.begin();
        for cq in lock(&self.cqs).iter().filter_map(Weak::upgrade) {
            cq.stamps.begin();
        }
        first
    }

    pub(crate) fn no_cq(&self) -> &Arc<CqCore> {
        &self.no_cq
    }
}

impl Drop for XrcdCore {
    fn drop(&mut self) {
        self.core.receivers.gone(self.owner);
    }
}

/// The place of a shared queue in its domain, which nobody else has as long as it lives: which
/// completions are its own.
#[derive(Debug)]
pub(crate) struct Place {
    xrcd: Arc<XrcdCore>,
    user_index: u32,
    /// Where it completes, and the era since when it does.
    cq: Source,
    since: u64,
}

impl Place {
    /// Takes it for a queue that completes in `cq`. Who had the index before is gone: what is left
    /// of its completions is of an earlier era if it was taken, and struck out where it stands.
    pub(crate) fn take(xrcd: &Arc<XrcdCore>, user_index: u32, cq: &Cq) -> Result<Self, VerbsError> {
        if !lock(&xrcd.user_indices).insert(user_index) {
            return Err(VerbsError::UserIndexTaken { user_index });
        }
        let core = cq.core();
        let since = xrcd.completes_in(&core);
        let receivers = &xrcd.core.receivers;
        cq.strike(|standing| {
            standing.user_index == user_index
                && standing.ends != Ends::Sends
                && receivers.is_of(standing.number, xrcd.owner)
        });
        Ok(Self { xrcd: Arc::clone(xrcd), user_index, cq: core.stamps.source, since })
    }

    pub(crate) fn owner(&self) -> Owner {
        self.xrcd.owner
    }

    /// Whether a completion of one of the domain's targets is of this queue.
    pub(crate) fn has(&self, completion: &Completion) -> bool {
        completion.user_index() == self.user_index
            && completion.source == self.cq
            && completion.era() >= self.since
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.xrcd.user_indices).remove(&self.user_index);
    }
}
