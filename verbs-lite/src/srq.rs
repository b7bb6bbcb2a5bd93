//! [`Srq`]: one receive queue for many queue pairs.
//!
//! Any connected or datagram queue pair may take its receives from it: a server then posts as many
//! receives as messages arrive at a time, not as many as it has peers. Queue pairs are made with
//! [`QpQueues::srq`](crate::QpQueues::srq); their receive completions end requests of the shared
//! queue: [`Qp::complete_shared`](crate::Qp::complete_shared), or [`Srq::complete`] when the queue
//! pair is gone.
//!
//! The shared queue and its queue pairs belong to one core at a time.
//!
//! # The limit
//!
//! After [`Srq::arm_limit`] the device reports once, when fewer receives are left:
//! [`Event::SharedReceive`](ferrocx_core::Event::SharedReceive) with `SRQ_LIMIT`, from
//! [`RdmaContext::poll_async_event`](crate::RdmaContext::poll_async_event).
//!
//! # Failures
//!
//! A queue pair that fails takes no receive with it: those that it had not filled stay for the
//! others. A message that does not fit its receive fails that queue pair and ends the receive with
//! an error.
//!
//! Source: reference 5.9 (`rmpc`), 6.5 ("SRQ ring discipline"), 6.6.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError};

use ferrocx_core::wq::{RecvSize, SharedRing};
use ferrocx_core::{Device, Handle};
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::srq::{ARM_XRC_SRQ_LWM, ArmXrcSrq};
use ferrocx_prm::cmd::wq::{MODIFY_RMP_LWM, ModifyRmp};
use ferrocx_prm::cqe::CqeOpcode;
use ferrocx_prm::wqc::{Rmpc, Wq, state};

use crate::command::{Execute, shared_ring};
use crate::context::ContextCore;
use crate::cq::{Completion, Cq};
use crate::error::{Failure, PostError, Refused, VerbsError};
use crate::mr::{Buf, Buffers, Reach, Sge};
use crate::pd::{Pd, PdCore};
use crate::qp::{Receive, Slots, scatter};
use crate::receivers::{Own, Owner};
use crate::share::Share;
use crate::types::Srqn;
use crate::wc::Wc;
use crate::xrcd::Place;

/// How large a shared receive queue is. The sizes are what it takes at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SrqConfig {
    /// Receives in flight: 1 to [`DeviceAttr::max_srq_wr`](crate::DeviceAttr::max_srq_wr). The
    /// completion queue of its queue pairs' receives reserves an entry for each, once, however
    /// many queue pairs there are.
    pub max_wr: u32,
    /// Scatter entries of a receive: 1 to
    /// [`DeviceAttr::max_recv_sge`](crate::DeviceAttr::max_recv_sge) less 1.
    pub max_sge: u32,
}

impl Default for SrqConfig {
    fn default() -> Self {
        Self { max_wr: 128, max_sge: 1 }
    }
}

/// The part of a shared receive queue that queue pairs hold: it outlives them.
#[derive(Debug)]
pub(crate) struct SrqCore {
    handle: Handle,
    pd: Arc<PdCore>,
    /// The place of a queue of XRC in its domain.
    place: Option<Place>,
    /// Whose its queue pairs are: its own, or those of its domain.
    owner: Owner,
    /// Receives that may be in flight.
    max_wr: u32,
    /// Room in the completion queues of its queue pairs, one share for each.
    shares: Mutex<Vec<Share>>,
    /// Receives that were posted when the owner let go of it, and their number.
    left: Mutex<Option<(Box<dyn Any + Send>, u32)>>,
}

impl SrqCore {
    pub(crate) fn number(&self) -> u32 {
        self.handle.number()
    }

    /// Whether it is a queue of XRC, which no queue pair takes receives from.
    pub(crate) fn is_xrc(&self) -> bool {
        self.place.is_some()
    }

    /// What its queue pairs are entered under.
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// Makes sure of room in a completion queue: the shared receives, however many queue pairs
    /// complete them there.
    pub(crate) fn reserve(&self, core: &Arc<ContextCore>, cq: &Cq) -> Result<(), VerbsError> {
        if !Arc::ptr_eq(core, &self.pd.core) {
            return Err(VerbsError::OtherDevice { what: "the shared receive queue" });
        }
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if shares.iter().all(|share| share.cq.number() != cq.number()) {
            shares.push(cq.reserve(core, self.max_wr)?);
        }
        Ok(())
    }
}

impl Drop for SrqCore {
    fn drop(&mut self) {
        if !self.is_xrc() {
            self.pd.core.receivers.gone(self.owner);
        }
        let left = self.left.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // Completions that nobody has taken may still stand in the queues.
        let posted = left.as_ref().map_or(0, |(_, posted)| *posted);
        let shares = self.shares.get_mut().unwrap_or_else(PoisonError::into_inner);
        let destroyed = self.handle.destroy();
        shares.iter_mut().for_each(|share| match destroyed {
            Ok(()) => share.leave(posted),
            Err(_) => share.keep(posted),
        });
        if let Err(error) = destroyed {
            let rmpn = self.number();
            tracing::error!(rmpn, %error, "shared queue not destroyed, its buffers leaked");
            // Nor is its index another queue's, as long as the device may name it.
            std::mem::forget((left, self.place.take()));
        }
    }
}

/// The device's object of a queue; of XRC with its place in the domain and its room in its
/// completion queue.
pub(crate) type Made = (SharedRing, Handle, Option<(Place, Share)>);

/// A shared receive queue. Belongs to one core at a time, with all its queue pairs: posting and
/// completing allocate nothing, take no lock and make no system call.
#[derive(Debug)]
pub struct Srq<B: Buffers = Buf> {
    ring: SharedRing,
    outstanding: u32,
    /// Receives that may be in flight, as in `inner`.
    max_wr: u32,
    slots: Slots<Receive<B>>,
    reach: Reach,
    own: Own,
    inner: Arc<SrqCore>,
}

impl Pd {
    /// Makes a shared receive queue.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`], or what the device refused.
    #[doc(alias = "ibv_create_srq")]
    pub fn create_srq<B: Buffers>(&self, config: &SrqConfig) -> Result<Srq<B>, VerbsError> {
        let pd = self.number();
        Srq::new(self, config, |device, size| {
            let (ring, handle) = shared_ring(device, pd, None, size)?;
            Ok((ring, handle, None))
        })
    }
}

impl<B: Buffers> Srq<B> {
    /// Makes a queue whose device's object is made by `make`, of this size.
    pub(crate) fn new(
        pd: &Pd,
        config: &SrqConfig,
        make: impl FnOnce(&Device, RecvSize) -> Result<Made, VerbsError>,
    ) -> Result<Self, VerbsError> {
        let pd = Arc::clone(&pd.inner);
        let (core, attr) = (&pd.core, &pd.core.attr);
        VerbsError::range("max_wr", config.max_wr.into(), 1, attr.max_srq_wr.into())?;
        let most = attr.max_recv_sge.saturating_sub(1);
        VerbsError::range("max_sge", config.max_sge.into(), 1, most.into())?;
        // One entry is never posted, and the first unit of each is its link.
        let log = |value: u32| (value + 1).next_power_of_two().ilog2() as u8;
        let (log_entries, log_units) = (log(config.max_wr), log(config.max_sge));
        let size = RecvSize { log_entries, log_units };
        let (ring, handle, xrc) = make(core.device(), size)?;
        let (place, share) = xrc.unzip();
        let (shares, max_wr) = (Mutex::new(share.into_iter().collect()), config.max_wr);
        let slots = Slots::new(1 << log_entries, Receive::empty);
        let reach = Reach::new(core, pd.id());
        let left = Mutex::new(None);
        let owner = place.as_ref().map_or_else(|| core.receivers.owner(), Place::owner);
        let inner = Arc::new(SrqCore { handle, pd, place, owner, max_wr, shares, left });
        Ok(Self { ring, outstanding: 0, max_wr, slots, reach, own: Own::new(owner), inner })
    }

    pub(crate) fn core(&self) -> &Arc<SrqCore> {
        &self.inner
    }

    /// Its number, as its limit event names it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.inner.number()
    }

    /// Its number, as requests of [XRC](crate::xrc) name it: of queues of an [`Xrcd`](crate::Xrcd).
    #[must_use]
    #[doc(alias = "ibv_get_srq_num")]
    pub fn srqn(&self) -> Srqn {
        Srqn(self.number())
    }

    /// Receives that may be in flight: [`SrqConfig::max_wr`].
    #[must_use]
    pub fn max_wr(&self) -> u32 {
        self.max_wr
    }

    /// Receives that have not ended.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Posts a receive for whichever queue pair needs one next. Datagrams put 40 bytes of IP
    /// header in front of the message.
    ///
    /// # Errors
    ///
    /// [`PostError`], with the buffers. Nothing was posted then.
    #[inline(always)]
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv(&mut self, wr_id: u64, buffers: B) -> Result<(), Refused<B>> {
        self.push(wr_id, buffers)?;
        self.ring.tell();
        Ok(())
    }

    /// Posts receives like [`Srq::post_recv`], by name and buffers, and tells the device of all of
    /// them at once; how many they were.
    ///
    /// # Errors
    ///
    /// [`PostError`], with the buffers of the first that was refused. Those in front of it were
    /// posted, those behind it are still to be had from `receives`.
    #[inline]
    pub fn post_recv_list(
        &mut self,
        receives: &mut impl Iterator<Item = (u64, B)>,
    ) -> Result<u32, Refused<B>> {
        let (mut count, mut refused) = (0, None);
        for (wr_id, buffers) in receives {
            if let Err(why) = self.push(wr_id, buffers) {
                refused = Some(why);
                break;
            }
            count += 1;
        }
        self.ring.tell();
        refused.map_or(Ok(count), Err)
    }

    /// Writes a receive; the device is told by its ring.
    #[inline(always)]
    fn push(&mut self, wr_id: u64, buffers: B) -> Result<(), Refused<B>> {
        let sge = buffers.only_recv_sge();
        // Those of one entry are written here, the others by a function of their own.
        let fits = |sge: &Sge| self.has_room() && sge.len != 0 && self.reach.takes(sge);
        let Some(sge) = sge.filter(fits) else { return self.push_any(wr_id, buffers) };
        let mut wqe = self.ring.begin();
        wqe.data(sge.len, sge.lkey_be, sge.addr);
        if !self.ring.has_one_segment() {
            wqe.end_list();
        }
        self.posted(wr_id, buffers);
        Ok(())
    }

    #[inline(never)]
    fn push_any(&mut self, wr_id: u64, buffers: B) -> Result<(), Refused<B>> {
        if !self.has_room() {
            return Err(Refused { held: buffers, cause: PostError::Full });
        }
        let max = self.ring.segments();
        if let Err(cause) = scatter(self.ring.begin(), max, &self.reach, &buffers) {
            return Err(Refused { held: buffers, cause });
        }
        self.posted(wr_id, buffers);
        Ok(())
    }

    /// Whether one more receive may be posted. The entry that is kept as the link to what comes
    /// stays free.
    #[inline(always)]
    fn has_room(&self) -> bool {
        self.outstanding != self.max_wr
    }

    /// Notes what a receive holds that is written.
    #[inline(always)]
    fn posted(&mut self, wr_id: u64, buffers: B) {
        // Nothing unwinds here: saying so leaves what is held in registers.
        let buffers = ManuallyDrop::new(buffers);
        let slot = self.slots.at(self.ring.head().into());
        slot.hold(wr_id, ManuallyDrop::into_inner(buffers));
        self.ring.post();
        self.outstanding += 1;
    }

    /// Takes a receive completion of one of its queue pairs: gives the receive that ended, or
    /// `None` if the completion cannot be right; then nothing has ended. Of a queue pair that is
    /// gone it is right until its number is another queue pair's.
    ///
    /// For queue pairs that are gone, and of queues of [XRC](crate::xrc). While another one lives,
    /// give its completions to [`Qp::complete_shared`](crate::Qp::complete_shared), which also
    /// notes its failures.
    ///
    /// Locks and allocates only when queue pairs of shared queues were made since the last time.
    #[inline]
    pub fn complete(&mut self, completion: Completion) -> Option<Wc<B>> {
        if completion.is_taken || !self.has_named(&completion) {
            return None;
        }
        self.end(&completion)
    }

    /// Whether a completion is of one of its queue pairs; of XRC, and of this queue.
    fn has_named(&mut self, completion: &Completion) -> bool {
        let Self { inner, own, .. } = self;
        let (qpn, taken) = (completion.qpn().0, (completion.source, completion.era()));
        inner.place.as_ref().is_none_or(|place| place.has(completion))
            && own.has(&inner.pd.core.receivers, qpn, taken)
    }

    /// Ends what a completion says which is known to be of one of its queue pairs.
    #[inline]
    pub(crate) fn end(&mut self, completion: &Completion) -> Option<Wc<B>> {
        let head = completion.head;
        match head.opcode() {
            CqeOpcode::RESPONDER_ERROR => self.end_as(completion, Some(head.failure())),
            _ if head.is_received() => self.end_received(completion),
            _ => None,
        }
    }

    /// Does what [`Srq::end`] does with a completion that says that a message came.
    #[inline(always)]
    pub(crate) fn end_received(&mut self, completion: &Completion) -> Option<Wc<B>> {
        self.end_as(completion, None)
    }

    #[inline(always)]
    fn end_as(&mut self, completion: &Completion, failure: Option<Failure>) -> Option<Wc<B>> {
        let at = completion.head.wqe_counter();
        if u32::from(at) >= self.slots.count() {
            return None;
        }
        let wc = self.slots.at(at.into()).end(completion, failure)?;
        self.ring.free(at);
        self.outstanding -= 1;
        Some(wc)
    }

    /// Asks for one event when fewer than `limit` receives are left. 0 asks for none.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] above [`Srq::max_wr`], or what the device refused.
    #[doc(alias = "ibv_modify_srq")]
    pub fn arm_limit(&mut self, limit: u32) -> Result<(), VerbsError> {
        VerbsError::range("limit", limit.into(), 0, self.max_wr().into())?;
        let device = self.inner.pd.core.device();
        if self.inner.is_xrc() {
            let input =
                ArmXrcSrq::input().with_op_mod(ARM_XRC_SRQ_LWM).with_xrc_srqn(self.number());
            device.execute::<ArmXrcSrq>(&input.with_lwm(limit), &[], &mut [])?;
            return Ok(());
        }
        let wq = Wq::zeroed().with_lwm(limit);
        let input = ModifyRmp::input()
            .with_rmp_state(state::RDY)
            .with_rmpn(self.number())
            .with_bitmask(MODIFY_RMP_LWM)
            .with_ctx(Rmpc::zeroed().with_state(state::RDY).with_wq(wq));
        device.execute::<ModifyRmp>(&input, &[], &mut [])?;
        Ok(())
    }
}

impl<B: Buffers> Drop for Srq<B> {
    fn drop(&mut self) {
        // Queue pairs may still fill what is posted: it stays until the last of them is gone.
        let slots = self.slots.take();
        let mut left = self.inner.left.lock().unwrap_or_else(PoisonError::into_inner);
        *left = Some((Box::new((slots, self.reach.clone())), self.outstanding));
    }
}
