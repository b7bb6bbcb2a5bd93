//! XRC: connections whose requests each name a shared receive queue of the peer's, so that many
//! processes of a host share the connections to it.
//!
//! | object | made by | what it is |
//! |---|---|---|
//! | [`Xrcd`] | [`RdmaContext::alloc_xrcd`] | the domain: its targets lead to its shared queues, and to no others |
//! | [`Srq`] | [`Xrcd::create_srq`] | holds receives, and has a completion queue of its own |
//! | target | [`Xrcd::create_target`] | a [`Qp`] that only receives: for all shared queues of its domain |
//! | initiator | [`Pd::create_qp`] with [`QpType::XrcSend`] | a [`Qp`] that only sends: [`Qp::post_send_xrc`] |
//!
//! An initiator is connected to one target, as two queue pairs of RC are. WRITEs, READs and atomics
//! name a shared queue, too: they reach memory in the protection domain of that queue.
//!
//! Completions of receives name the target, and carry the `user_index` of the shared queue: give
//! them to [`Srq::complete`]. A target has no others, and no completion tells of its failures:
//! [`Qp::query`] does.
//!
//! Source: IBTA vol. 1, annex A14; reference 4.9, 5.2, 6.4.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, Weak};

use ferrocx_core::wq::{SharedRing, XrcSrqAttr};
use ferrocx_core::{Handle, Kind};
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::objects::AllocXrcd;

use crate::command::Execute;
use crate::context::{ContextCore, DeviceCaps, RdmaContext};
use crate::cq::{Cq, CqCore, Room};
use crate::error::{VerbsError, lock};
use crate::mr::Buffers;
use crate::pd::Pd;
use crate::qp::Qp;
use crate::receivers::Owner;
use crate::srq::{Srq, SrqConfig};

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
}

impl XrcdCore {
    fn new(context: &RdmaContext) -> Result<Self, VerbsError> {
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
        Ok(Self { no_srq, no_cq, handle, core, owner, user_indices })
    }

    /// The domain that initiators name, which need none: one for all of them.
    pub(crate) fn of_initiators(core: &Arc<ContextCore>) -> Result<Arc<Self>, VerbsError> {
        let mut known = lock(&core.initiators);
        if let Some(xrcd) = known.upgrade() {
            return Ok(xrcd);
        }
        let made = Arc::new(Self::new(&RdmaContext::of(core))?);
        *known = Arc::downgrade(&made);
        Ok(made)
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

    pub(crate) fn no_cq(&self) -> &Arc<CqCore> {
        &self.no_cq
    }
}

impl Drop for XrcdCore {
    fn drop(&mut self) {
        self.core.receivers.gone(self.owner);
    }
}

/// The place of a shared queue in its domain, which nobody else has as long as it lives.
#[derive(Debug)]
pub(crate) struct Place {
    xrcd: Arc<XrcdCore>,
    user_index: u32,
}

impl Place {
    fn take(xrcd: &Arc<XrcdCore>, user_index: u32) -> Result<Self, VerbsError> {
        if !lock(&xrcd.user_indices).insert(user_index) {
            return Err(VerbsError::UserIndexTaken { user_index });
        }
        Ok(Self { xrcd: Arc::clone(xrcd), user_index })
    }

    pub(crate) fn owner(&self) -> Owner {
        self.xrcd.owner
    }

    pub(crate) fn user_index(&self) -> u32 {
        self.user_index
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.xrcd.user_indices).remove(&self.user_index);
    }
}

/// The initiators' domain of a context, as long as there is one.
pub(crate) type Initiators = Weak<XrcdCore>;

/// An XRC domain. A handle: clones are the same domain.
#[derive(Debug, Clone)]
#[doc(alias = "ibv_xrcd")]
pub struct Xrcd {
    inner: Arc<XrcdCore>,
}

impl RdmaContext {
    /// Makes an XRC domain.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Unsupported`] for a device without XRC, or what the device refused.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn alloc_xrcd(&self) -> Result<Xrcd, VerbsError> {
        Ok(Xrcd { inner: Arc::new(XrcdCore::new(self)?) })
    }
}

impl Xrcd {
    /// Its number, as the device knows it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.inner.number()
    }

    /// Makes a shared receive queue of the domain. Its receives, and the memory that requests reach
    /// which name it, are those of `pd`; receives complete in `cq`, with `user_index`: an index
    /// into the caller's own table, below 2^24 - 1, and of no other queue of the domain.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`], [`VerbsError::UserIndexTaken`], [`VerbsError::CqTooSmall`],
    /// [`VerbsError::OtherDevice`], or what the device refused.
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn create_srq<B: Buffers>(
        &self,
        pd: &Pd,
        cq: &Cq,
        user_index: u32,
        config: &SrqConfig,
    ) -> Result<Srq<B>, VerbsError> {
        VerbsError::range("user_index", user_index.into(), 0, 0xff_fffe)?;
        if !Arc::ptr_eq(&self.inner.core, &pd.inner.core) {
            return Err(VerbsError::OtherDevice { what: "the protection domain" });
        }
        let place = Place::take(&self.inner, user_index)?;
        let room = cq.reserve(&self.inner.core, config.max_wr)?;
        let attr = XrcSrqAttr {
            xrcd: self.number(),
            pd: pd.number(),
            rlky: pd.inner.core.lkey.is_some(),
            cqn: cq.number(),
            user_index,
        };
        Srq::new(pd, config, |device, sizes| {
            let (ring, handle) = SharedRing::create_xrc(device, &attr, sizes)?;
            Ok((ring, handle, Some((place, room))))
        })
    }

    /// Makes a queue pair in reset that receives for all shared queues of the domain. It is led to
    /// RTR or RTS like one of RC, and takes no requests.
    ///
    /// # Errors
    ///
    /// What the device refused.
    #[doc(alias = "IBV_QPT_XRC_RECV")]
    pub fn create_target<B: Buffers>(&self) -> Result<Qp<B>, VerbsError> {
        Qp::new_target(&self.inner)
    }
}
