//! What stands behind an XRC domain, below the queues that name it.
//!
//! Source: IBTA vol. 1, annex A14; reference 4.9, 5.2.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, Weak};

use ferrocx_core::wq::{RecvSize, XrcSrqAttr};
use ferrocx_core::{Handle, Kind};
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::objects::AllocXrcd;

use crate::command::{Execute, own, shared_ring};
use crate::context::{ContextCore, DeviceCaps, RdmaContext};
use crate::cq::{Completion, Cq, CqCore, Room};
use crate::era::{NONE, Source};
use crate::error::{VerbsError, lock};
use crate::names::{Ends, Name, Names};
use crate::receivers::Owner;

/// Sizes of the queue that stands for none: the least that there is.
const LEAST: RecvSize = RecvSize { log_entries: 1, log_units: 1 };

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
    places: Mutex<Places>,
}

/// Where the receives of a domain complete, and of which targets.
#[derive(Debug, Default)]
struct Places {
    cqs: Vec<Weak<CqCore>>,
    /// Numbers of the targets that live, and their names in these queues.
    targets: HashMap<u32, Vec<Name>>,
}

impl Places {
    fn cqs(&self) -> impl Iterator<Item = Arc<CqCore>> {
        self.cqs.iter().filter_map(Weak::upgrade)
    }
}

/// What completes of a target.
const OF_TARGETS: [Ends; 2] = [Ends::Receive, Ends::FailedReceive];

impl XrcdCore {
    pub(crate) fn new(context: &RdmaContext) -> Result<Self, VerbsError> {
        let core = Arc::clone(context.core());
        if !core.attr.caps.contains(DeviceCaps::XRC) {
            let (what, way_out) = ("XRC", "use a queue pair of RC for each pair of processes");
            return Err(VerbsError::Unsupported { what, way_out });
        }
        let device = core.device();
        let xrcd = device.execute::<AllocXrcd>(&AllocXrcd::input(), &[], &mut [])?.xrcd();
        let handle = own(device, Kind::Xrcd, xrcd, Vec::new());
        // Linux's driver makes none smaller.
        let no_cq = Cq::new(context, 2, Room::Shared, None)?.core();
        // Linux's driver, too, has each queue pair name a shared queue and completion queues.
        // Source: reference 5.2.
        let (pd, cqn) = (device.pdn(), no_cq.number());
        let attr = XrcSrqAttr { xrcd, pd, rlky: false, cqn, user_index: 0 };
        let (_, no_srq) = shared_ring(device, pd, Some(&attr), LEAST)?;
        let (owner, user_indices) = (core.receivers.owner(), Mutex::default());
        let places = Mutex::default();
        Ok(Self { no_srq, no_cq, handle, core, owner, user_indices, places })
    }

    /// The domain that initiators name, which need none: one for all of them.
    pub(crate) fn of_initiators(core: &Arc<ContextCore>) -> Result<Arc<Self>, VerbsError> {
        core.device().shared(|| Self::new(&RdmaContext::of(core)))
    }

    pub(crate) fn number(&self) -> u32 {
        self.handle.number()
    }

    pub(crate) fn no_srqn(&self) -> u32 {
        self.no_srq.number()
    }

    pub(crate) fn core(&self) -> &Arc<ContextCore> {
        &self.core
    }

    /// Notes that a shared queue completes in `cq`, and begins an era there, which it gives: that
    /// of now may be earlier than that of targets which were made before.
    fn completes_in(&self, cq: &Arc<CqCore>) -> Result<u64, VerbsError> {
        let mut places = lock(&self.places);
        places.cqs.retain(|known| known.strong_count() > 0);
        if !cq.names.has_domain(self.owner) {
            self.enter_targets(&mut places, &cq.names)?;
            places.cqs.push(Arc::downgrade(cq));
        }
        Ok(cq.stamps.begin())
    }

    /// Gives the targets their names in another queue, where raw packet queue pairs may have them.
    fn enter_targets(&self, places: &mut Places, names: &Arc<Names>) -> Result<(), VerbsError> {
        let mut taken = Vec::new();
        for number in places.targets.keys() {
            for ends in OF_TARGETS {
                taken.push((*number, Name::take(names, (*number, ends))?));
            }
        }
        names.enter_domain(self.owner);
        for (number, name) in taken {
            places.targets.entry(number).or_default().push(name);
        }
        let others = names.receivers().into_iter().filter(|it| !places.targets.contains_key(it));
        let is_own = |owner, _| owner == self.owner;
        others.for_each(|number| self.core.receivers.lost(number, is_own));
        Ok(())
    }

    /// Enters a target that was made, and begins an era in every queue that its shared queues
    /// complete in. `false` if another queue pair has its number in one of these, or had it and
    /// left completions there.
    pub(crate) fn enter_target(&self, number: u32) -> bool {
        let mut places = lock(&self.places);
        let receivers = &self.core.receivers;
        // What a target of the same domain left is right as ever.
        let is_own = receivers.is_of(number, self.owner);
        let take = |cq: &Arc<CqCore>, ends| match is_own {
            true => Name::take(&cq.names, (number, ends)).ok(),
            false => Name::take_unused(&cq.names, (number, ends)),
        };
        let of = |cq: Arc<CqCore>| OF_TARGETS.map(|ends| take(&cq, ends));
        let Some(names) = places.cqs().flat_map(of).collect() else { return false };
        receivers.made_target(number, self.owner, || {
            let first = self.no_cq.stamps.begin();
            for cq in places.cqs() {
                cq.stamps.begin();
            }
            first
        });
        places.targets.insert(number, names);
        true
    }

    /// A target is gone, and the device has written its last completion.
    pub(crate) fn leave_target(&self, number: u32) {
        lock(&self.places).targets.remove(&number);
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
        let (xrcd, source) = (Arc::clone(xrcd), core.stamps.source);
        let mut place = Self { xrcd, user_index, cq: source, since: NONE };
        let xrcd = &place.xrcd;
        let since = xrcd.completes_in(&core)?;
        let receivers = &xrcd.core.receivers;
        cq.strike(|standing| {
            standing.user_index == user_index
                && standing.ends != Ends::Sends
                && receivers.is_of(standing.number, xrcd.owner)
        });
        place.since = since;
        Ok(place)
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
