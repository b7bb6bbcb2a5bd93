//! Queue pairs: made, connected, posted to, and told of their completions.
//!
//! [`Pd::create_qp`] makes a queue pair of any service in reset; it is led to RTS step by step. A
//! step out of order is [`VerbsError::WrongState`], a request that comes too early
//! [`PostError::State`].
//!
//! | from | to | by | what is set |
//! |---|---|---|---|
//! | reset | INIT | `init` | rights of the peer; receives may be posted |
//! | INIT | RTR | `connect`, UD: `receive` | the peer; receives are filled |
//! | RTR | RTS | `activate` | retries; sends may be posted |
//! | RTS | SQ error | the device, UC and UD | receiving goes on: [`Qp::resume`] |
//! | any | error | the device, [`Qp::to_error`] | everything posted is flushed |
//! | any | reset | [`Qp::reset`] | only when every completion was taken |
//!
//! What is posted in the error state, or sent in SQ error, is flushed, too, behind everything that
//! was posted before: one request more says by its end that all have ended. Raw packets are refused
//! there ([`PostError::State`]).
//!
//! # Raw packets
//!
//! | state | sending | receiving |
//! |---|---|---|
//! | reset | no | no; rules end |
//! | INIT | no | receives may be posted |
//! | RTR | no | frames arrive that rules lead here: [`Qp::create_flow`] |
//! | RTS | frames of any source address | the same |
//! | SQ error | a send failed, the others are flushed: [`Qp::resume`] | the same |
//! | error | goes on with what was posted until [`Qp::to_error`] | a receive failed, the others are flushed |
//!
//! A frame that finds no receive is dropped, and counted by the port. One that is longer than its
//! receive fails it, and receiving with it: make receives as long as
//! [`Device::mtu`](ferrocx_core::Device::mtu) and 18 bytes. FCS and preamble are the device's.

mod attr;
mod change;
mod changer;
mod complete;
mod end;
mod frames;
mod modify;
mod multicast;
mod names;
mod post;
mod queues;
mod raw;
mod rq;
mod slots;
mod spread;
mod sq;
mod straight;
mod table;
mod window;
mod wqe;
mod xrc;

use std::sync::Arc;

use ferrocx_core::wq::REAL_TIME_ONLY;
use ferrocx_core::wq::{RecvRing, SendRing};
use ferrocx_core::{Event, Kind, Uar, page_list};
use ferrocx_prm::Layout;
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::qp::CreateQp;
use ferrocx_prm::init_seg::WqDoorbellRecord;
use ferrocx_prm::qpc::{PM_STATE_MIGRATED, Qpc, rq_type, service};
use ferrocx_prm::wqe::BASIC_BLOCK_BYTES;
use thiserror::Error;

pub(crate) use slots::{Receive, Slots};
pub(crate) use wqe::scatter;

pub use attr::{InitAttr, QpConfig, QpQueues, RtrAttr, RtsAttr};
pub use change::Changes;
pub use changer::MrChanger;
pub use modify::QpAttr;
pub use post::RefusedFastReg;
pub use raw::FlowId;
pub use spread::{FrameHash, HashFields, Spread};
pub use table::{Ended, QpTable};

pub use crate::types::QpState;

use crate::belief::Belief;
use crate::command::{Execute, own, qp_rings};
use crate::context::RdmaContext;
use crate::cq::Cq;
use crate::error::{PostError, Refused, VerbsError};
use crate::mr::{Buf, Buffers, Reach};
use crate::pd::{Pd, PdCore};
use crate::share::Share;
use crate::types::{Access, Gid, Qpn};
use crate::wr::SendWr;
use crate::xrcd::XrcdCore;

use attr::{HEADER_DS, Sizes};
use complete::Earlier;
use frames::Frames;
use post::FastRegSetup;
use queues::Ends;
use raw::Objects;
use rq::Rq;
use sq::{Most, Sq};

/// Number of what changes keys among the operations, behind those of [`SendOp`](crate::SendOp).
const CHANGES_KEYS: u32 = 10;
/// Number of requests that name a shared receive queue, and one of none.
const NAMES_SRQ: u32 = 11;
const NO_OPERATION: u32 = 15;

/// Transport service of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QpType {
    /// Reliable connection.
    #[default]
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Unreliable datagram.
    Ud = 2,
    /// Extended reliable connection, the end that sends: see [`crate::xrc`].
    XrcSend = 3,
    /// Extended reliable connection, the end that receives:
    /// [`Xrcd::create_target`](crate::Xrcd::create_target) makes it. The device knows its service
    /// by the same number as the other end's.
    XrcRecv = 4,
    /// Raw packets. No device is told this number: there it is a send and a receive queue.
    Raw = 9,
}

impl QpType {
    /// The send operations that the service has, by their numbers. Source: reference 7.2.
    fn operations(self) -> u32 {
        const SENDS: u32 = 0b00_0001_1011;
        const RELIABLE: u32 = 0b00_1110_0100;
        const DATAGRAM: u32 = 0b01_0000_0000;
        const FRAME: u32 = 0b10_0000_0000;
        match self {
            Self::Rc => SENDS | RELIABLE,
            Self::Uc => SENDS,
            Self::Ud => DATAGRAM,
            Self::Raw => FRAME,
            Self::XrcSend => 1 << NAMES_SRQ,
            // Posting says then that the service has no such operation.
            Self::XrcRecv => 1 << NO_OPERATION,
        }
    }

    /// Its number, as the device knows it.
    fn service(self) -> u32 {
        match self {
            Self::XrcRecv => service::XRC,
            other => other as u32,
        }
    }

    /// Checks that queue pairs of [`Pd::create_qp`] have the service, with receives of a shared
    /// queue if there is one, which may be of XRC.
    fn check_shared(self, is_xrc: Option<bool>) -> Result<(), VerbsError> {
        let (what, way_out) = match (self, is_xrc) {
            (Self::XrcRecv, _) => ("target in a protection domain", "use Xrcd::create_target"),
            (Self::Raw, Some(_)) => {
                ("shared receives for raw packets", "post receives to the queue pair")
            }
            (Self::XrcSend, Some(_)) => ("receives for an initiator of XRC", "leave the queue out"),
            (_, Some(true)) => {
                ("queue pair that names its shared queue of XRC", "let requests name it")
            }
            _ => return Ok(()),
        };
        Err(VerbsError::Unsupported { what, way_out })
    }

    /// Whether requests are acknowledged.
    fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcSend | Self::XrcRecv)
    }
}

/// A completion that a queue pair cannot have, and that has ended nothing. The device is broken, or
/// it was given to the wrong queue pair, or to one that was reset since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "queue pair {qpn:#08x} was given a completion of opcode {opcode}, WQE {wqe_counter}, queue \
     pair {of:#08x}, which it cannot have"
)]
pub struct WrongCompletion {
    /// The queue pair.
    pub qpn: u32,
    /// The one that the completion names.
    pub of: u32,
    /// Opcode of the completion.
    pub opcode: u32,
    /// Request that it names.
    pub wqe_counter: u16,
}

/// A queue pair. Belongs to one core at a time: posting and completing take `&mut self`, allocate
/// nothing, take no lock and make no system call.
///
/// `B` is what a request takes along and gives back: see [`Buffers`]. What a request holds cannot
/// be touched while it is in flight:
///
/// ```compile_fail,E0382
/// # use ferrocx_verbs_lite::*;
/// fn in_flight(qp: &mut Qp, wr: &SendWr<'_>, buf: Buf) {
///     let _ = qp.post_send(wr, Some(buf));
///     println!("{:?}", buf.to_vec());
/// }
/// ```
#[derive(Debug)]
pub struct Qp<B: Buffers = Buf> {
    sq: Sq<B>,
    /// `None` when its receives come from a shared queue.
    rq: Option<Rq<B>>,
    /// Which receives of the shared queue it took.
    shared: Option<Belief>,
    earlier: Earlier,
    state: QpState,
    qp_type: QpType,
    /// Its service as the device names it.
    st: u32,
    qpn: u32,
    user_index: u32,
    /// What its peer may do.
    access: Access,
    /// Whether READs and atomics of the peer are served.
    serves_reads: bool,
    /// Its receives are of frames that a [`Spread`] gives it.
    spread: bool,
    fast_reg: FastRegSetup,
    // Dropped in this order: the queue pair before what it names.
    objects: Objects,
    _uar: Arc<Uar>,
    ends: Ends,
    /// Multicast groups that it is attached to.
    groups: Vec<Gid>,
    pd: Arc<PdCore>,
}

impl<B: Buffers> Qp<B> {
    /// Makes a queue pair in reset.
    pub(crate) fn new(
        pd: &Pd,
        queues: &QpQueues<'_, B>,
        config: &QpConfig,
    ) -> Result<Self, VerbsError> {
        Self::with_service(pd, config.qp_type.service(), queues, config)
    }

    /// Makes the queue pair for datagrams that is number 1 on the wire: one of a port.
    pub(crate) fn new_gsi(pd: &Pd, cq: &Cq, config: &QpConfig) -> Result<Self, VerbsError> {
        let config = QpConfig { qp_type: QpType::Ud, ..*config };
        Self::with_service(pd, service::GSI, &QpQueues::from(cq), &config)
    }

    /// Makes a queue pair that only receives, for the shared queues of an XRC domain.
    pub(crate) fn new_target(xrcd: &Arc<XrcdCore>) -> Result<Self, VerbsError> {
        let config = QpConfig {
            qp_type: QpType::XrcRecv,
            max_send_wr: 1,
            max_inline_bytes: 0,
            ..QpConfig::default()
        };
        let no_cqn = xrcd.no_cq().number();
        let ends = || Ends {
            send_share: Share::empty(xrcd.no_cq()),
            recv_share: None,
            srq: None,
            xrcd: Some(Arc::clone(xrcd)),
            cqns: [no_cqn; 2],
            names: Vec::new(),
        };
        // Requests reach memory in the domains of the shared queues, so it has none of its own.
        // Linux's driver gives it the driver's own, too.
        let pd = RdmaContext::of(xrcd.core()).device_pd();
        // Those with numbers that are of no use live until one is found: each has another.
        let mut others = Vec::new();
        loop {
            let made = Self::of(&pd.inner, service::XRC, &config, || Ok(ends()))?;
            if xrcd.enter_target(made.qpn) {
                return Ok(made);
            }
            others.push(made);
        }
    }

    /// Makes a queue pair whose service the device names `st`.
    fn with_service(
        pd: &Pd,
        st: u32,
        queues: &QpQueues<'_, B>,
        config: &QpConfig,
    ) -> Result<Self, VerbsError> {
        let mut qp = Self::of(&pd.inner, st, config, || Ends::new(&pd.inner.core, queues, config))?;
        qp.take_names(queues)?;
        Ok(qp)
    }

    /// Makes a queue pair whose sizes were checked before its ends are reserved.
    fn of(
        pd: &Arc<PdCore>,
        st: u32,
        config: &QpConfig,
        ends: impl FnOnce() -> Result<Ends, VerbsError>,
    ) -> Result<Self, VerbsError> {
        let (pd, qp_type) = (Arc::clone(pd), config.qp_type);
        if config.spread && qp_type != QpType::Raw {
            let what = "spread of anything but frames";
            return Err(VerbsError::Unsupported { what, way_out: "use QpType::Raw" });
        }
        let core = &pd.core;
        let frames = (qp_type == QpType::Raw).then(|| Frames::new(core));
        let sizes = Sizes::of(config, &core.attr, frames.map_or(HEADER_DS, Frames::header_ds))?;
        let (ends, uar) = (ends()?, core.uar()?);
        let plan = Plan { pd: &pd, uar: &uar, ends: &ends, sizes, config };
        let (send_ring, recv_ring, objects) = match qp_type {
            QpType::Raw => plan.make_raw()?,
            _ => plan.make(st)?,
        };
        let (qpn, reach) = (send_ring.number(), Reach::new(core, pd.id()));
        let most = Most {
            wr: config.max_send_wr,
            sge: config.max_send_sge,
            inline_bytes: config.max_inline_bytes,
            signals_itself: config.signals_itself,
        };
        let send_cq = &ends.send_share.cq;
        let recv_cq = ends.recv_share.as_ref().map_or(send_cq, |share| &share.cq);
        let rq =
            recv_ring.map(|ring| Rq::new(ring, (recv_cq, qpn), reach.clone(), config.max_recv_wr));
        Ok(Self {
            sq: Sq::new(send_ring, send_cq, reach, most, frames.unwrap_or_default()),
            rq,
            shared: None,
            earlier: Earlier::default(),
            state: QpState::Reset,
            qp_type,
            st,
            qpn,
            user_index: config.user_index,
            access: Access::empty(),
            serves_reads: false,
            spread: config.spread,
            fast_reg: FastRegSetup::of(core, qp_type, config.fast_reg),
            objects,
            _uar: uar,
            ends,
            groups: Vec::new(),
            pd,
        })
    }

    /// Its number, which the peer must know. Of raw packets, the number of the send queue, by which
    /// the device does not tell it from queue pairs of the other services.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        Qpn(self.qpn)
    }

    /// The number that its completions carry: [`QpConfig::user_index`].
    #[must_use]
    pub fn user_index(&self) -> u32 {
        self.user_index
    }

    /// Its transport service.
    #[must_use]
    pub fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// Its state, as of the last completion or transition. [`Qp::query`] asks the device.
    #[inline]
    #[must_use]
    pub fn state(&self) -> QpState {
        self.state
    }

    /// Whether the device says by this event that the queue pair is lost, or a queue of its
    /// completions: nothing more comes of what is posted, and it can only be dropped. An event from
    /// before it was made may be of another that had its number.
    #[must_use]
    pub fn is_ended_by(&self, event: &Event) -> bool {
        match *event {
            Event::CqError { cqn, .. } => self.ends.cqns.contains(&cqn),
            Event::QueueError { queue_type, number, .. } => {
                self.objects.are_named(queue_type, number)
            }
            _ => false,
        }
    }

    /// Posts a send request and, without [`SendFlags::MORE`](crate::SendFlags::MORE), rings the
    /// doorbell. It takes `buffers` along, if it needs any.
    ///
    /// # Errors
    ///
    /// [`PostError`], with the buffers. Nothing was posted then, and requests with `MORE` before it
    /// wait for [`Qp::ring_doorbell`].
    // A loop of these keeps the ring in registers.
    #[inline(always)]
    #[doc(alias = "ibv_post_send")]
    pub fn post_send(
        &mut self,
        wr: &SendWr<'_>,
        buffers: Option<B>,
    ) -> Result<(), Refused<Option<B>>> {
        match self.sq.push_straight(wr, buffers) {
            Ok(()) => Ok(()),
            // A copy: what the short way has in registers need not be in memory, too.
            Err(buffers) => self.sq.push_any(&SendWr { ..*wr }, None, buffers),
        }
    }

    /// Posts a send request like [`Qp::post_send`], if it is simple: its entries have bytes and are
    /// of the queue pair's own domain or device, it is no frame, and there is room without a closer
    /// look.
    ///
    /// # Errors
    ///
    /// What it holds. Nothing was posted then: [`Qp::post_send`] posts it, or says why not.
    #[inline(always)]
    pub fn post_simple(&mut self, wr: &SendWr<'_>, buffers: Option<B>) -> Result<(), Option<B>> {
        // In a small queue no request is clear.
        if !self.sq.allows(wr.op.number()) || !self.sq.is_open(wr.flags) {
            return Err(buffers);
        }
        self.sq.push_fitting(wr, buffers)
    }

    /// Posts a send request like [`Qp::post_send_inline`], if it is simple: it has data, and there
    /// is room without a closer look. Whether it was posted; [`Qp::post_send_inline`] posts it, or
    /// says why not.
    #[inline(always)]
    pub fn post_simple_inline(&mut self, wr: &SendWr<'_>, data: &[u8]) -> bool {
        let sq = &mut self.sq;
        sq.allows(wr.op.number()) && sq.is_open(wr.flags) && sq.push_inline_fitting(wr, data)
    }

    /// Posts a send request like [`Qp::post_send`], whose data are copied into it: `data` can be
    /// used again at once.
    ///
    /// # Errors
    ///
    /// [`PostError`], as of [`Qp::post_send`].
    #[inline(always)]
    pub fn post_send_inline(&mut self, wr: &SendWr<'_>, data: &[u8]) -> Result<(), PostError> {
        if self.sq.push_inline_straight(wr, data) {
            return Ok(());
        }
        self.sq.push_any(&SendWr { ..*wr }, Some(data), None).map_err(|refused| refused.cause)
    }

    /// Tells the device of every request posted since the doorbell was last rung.
    #[inline]
    pub fn ring_doorbell(&mut self) {
        self.sq.ring();
    }

    /// Tells the device of every request posted, and asks for a completion of the last, so that all
    /// of them are known to have ended by one.
    #[inline]
    pub fn ring_doorbell_signaled(&mut self) {
        self.sq.signal_last();
        self.sq.ring();
    }

    /// Send requests of any kind that fit. A READ with invalidate counts as two.
    #[inline]
    #[must_use]
    pub fn free_wr(&self) -> u32 {
        self.sq.free_wr()
    }

    /// Whether requests or receives have not ended.
    #[must_use]
    pub fn has_outstanding(&self) -> bool {
        self.sq.ring.outstanding() + self.rq_outstanding() > 0
    }

    /// How often the doorbell was rung: each time is a store across PCIe.
    #[must_use]
    pub fn doorbells(&self) -> u64 {
        self.sq.ring.doorbells()
    }

    /// Notes a state.
    fn enter(&mut self, state: QpState) {
        self.state = state;
        let changes_keys = u32::from(self.fast_reg.is_on) << CHANGES_KEYS;
        let operations = self.qp_type.operations() | changes_keys;
        let takes = match state {
            QpState::Rts => true,
            // Flushed, behind everything that was posted before: programs drain a queue so. A queue
            // of raw packets may still send in these states.
            QpState::SqError | QpState::Error => self.qp_type != QpType::Raw,
            _ => false,
        };
        self.sq.allowed = if takes { operations } else { 0 };
    }

    /// Receives in its own queue that have not ended.
    fn rq_outstanding(&self) -> u32 {
        self.rq.as_ref().map_or(0, |rq| rq.ring.outstanding())
    }
}

/// What the device's objects of a queue pair are made of.
struct Plan<'a> {
    pd: &'a PdCore,
    uar: &'a Uar,
    ends: &'a Ends,
    sizes: Sizes,
    config: &'a QpConfig,
}

impl Plan<'_> {
    /// Makes a queue pair of a service that has one on the device.
    fn make(&self, st: u32) -> Result<(SendRing, Option<RecvRing>, Objects), VerbsError> {
        let &Self { pd, uar, ends, sizes, config } = self;
        let device = pd.core.device();
        // One that changes keys is made as Linux's driver makes its own, and has a domain from INIT
        // on. Source: Linux 6.12 `create_kernel_qp`.
        let is_of_keys = st == service::REG_UMR;
        let has_rq = ends.recv_share.is_some() && !is_of_keys;
        let rq_bytes = if has_rq { sizes.recv.bytes() } else { 0 };
        let len_bytes = rq_bytes + (BASIC_BLOCK_BYTES << sizes.log_sq_blocks);
        let rings = Arc::new(pd.ring_memory(len_bytes)?);
        let record = Arc::new(device.alloc_dma(WqDoorbellRecord::SIZE_BYTES, 64)?);
        let qpc = Qpc::zeroed()
            .with_st(st)
            .with_pm_state(PM_STATE_MIGRATED)
            .with_latency_sensitive(is_of_keys)
            .with_pd(if is_of_keys { 0 } else { pd.number() })
            .with_log_sq_size(u32::from(sizes.log_sq_blocks))
            .with_ts_format(u32::from(pd.core.roce.qp_ts_format() == REAL_TIME_ONLY))
            .with_rlky(pd.core.lkey.is_some())
            .with_uar_page(uar.page())
            .with_user_index(config.user_index)
            .with_fre(config.qp_type == QpType::Rc || is_of_keys)
            .with_cqn_snd(ends.cqns[0])
            .with_cqn_rcv(ends.cqns[1])
            .with_dbr_addr(record.iova());
        let qpc = match (&ends.srq, &ends.xrcd) {
            (Some(srq), _) => qpc.with_rq_type(rq_type::SHARED).with_srqn_rmpn_xrqn(srq.number()),
            (None, Some(xrcd)) => {
                let qpc = qpc.with_xrcd(xrcd.number()).with_srqn_rmpn_xrqn(xrcd.no_srqn());
                match config.qp_type {
                    QpType::XrcRecv => qpc.with_rq_type(rq_type::SHARED).with_no_sq(true),
                    _ => qpc.with_rq_type(rq_type::EMPTY),
                }
            }
            (None, None) if !has_rq => qpc.with_rq_type(rq_type::EMPTY),
            (None, None) => qpc
                .with_log_rq_size(sizes.recv.log_entries.into())
                .with_log_rq_stride(sizes.recv.log_units.into()),
        };
        let input = CreateQp::input().with_qpc(qpc);
        // A target has no ring that the device reads.
        let pages = if qpc.no_sq() { Vec::new() } else { page_list(&rings) };
        let qpn = device.execute::<CreateQp>(&input, &pages, &mut [])?.qpn();
        let memory = vec![Arc::clone(&rings), Arc::clone(&record)];
        let objects = Objects::Qp(own(device, Kind::Qp, qpn, memory));
        let (recv, log_blocks) = (has_rq.then_some(sizes.recv), sizes.log_sq_blocks);
        let (send, recv) = qp_rings(&rings, &record, recv, rq_bytes, log_blocks, uar, qpn)?;
        Ok((send, recv, objects))
    }
}

impl<B: Buffers> Drop for Qp<B> {
    fn drop(&mut self) {
        self.detach_all();
        // Completions that nobody has taken may still stand in the queues.
        let (sent, received) = (self.sq.requests(), self.rq_outstanding());
        let Err(error) = self.objects.destroy() else {
            // Before all else: the device may give the number out again.
            self.ends.names.clear();
            if let Some(xrcd) = &self.ends.xrcd {
                xrcd.leave_target(self.qpn);
            }
            self.ends.send_share.leave(sent);
            if let Some(share) = &mut self.ends.recv_share {
                share.leave(received);
            }
            return self.pd.core.posted.gone(self.sq.id);
        };
        self.ends.send_share.keep(sent);
        if let Some(share) = &mut self.ends.recv_share {
            share.keep(received);
        }
        tracing::error!(qpn = self.qpn, %error, "queue pair not destroyed, its buffers leaked");
        self.sq.leak();
        if let Some(rq) = &mut self.rq {
            rq.leak();
        }
        let names = std::mem::take(&mut self.ends.names);
        std::mem::forget((self.ends.srq.take(), self.ends.xrcd.take(), names));
    }
}
