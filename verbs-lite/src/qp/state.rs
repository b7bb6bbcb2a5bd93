//! Queue pairs whose state is their type, for setting them up.
//!
//! The type says what this library did; the device can still move a queue pair to its error state
//! at any time, so posting checks and says so. [`TypedQp::erase`] gives the [`Qp`] without
//! types, which servers keep in tables.
//!
//! A step that is left out does not compile:
//!
//! ```compile_fail,E0599
//! # use ferrocx_verbs_lite::*;
//! fn too_early(qp: RcQp<Init>, wr: &SendWr<'_>) {
//!     let mut qp = qp;
//!     let _ = qp.post_send(wr, None);
//! }
//! ```
//!
//! ```compile_fail,E0599
//! # use ferrocx_verbs_lite::*;
//! fn no_peer(qp: RcQp<Init>, attr: &RtsAttr) {
//!     let _ = qp.activate(attr);
//! }
//! ```
//!
//! ```compile_fail,E0599
//! # use ferrocx_verbs_lite::*;
//! fn frames_too_early(qp: RawQp<Init>, matches: &ferrocx_core::FlowMatch) {
//!     let mut qp = qp;
//!     let _ = qp.create_flow(matches);
//! }
//! ```
//!
//! ```compile_fail,E0382
//! # use ferrocx_verbs_lite::*;
//! fn in_flight(qp: &mut RcQp<Rts>, wr: &SendWr<'_>, buf: Buf) {
//!     let _ = qp.post_send(wr, Some(buf));
//!     println!("{:?}", buf.to_vec());
//! }
//! ```

use std::fmt;
use std::marker::PhantomData;

use ferrocx_core::{FlowCounts, FlowMatch};
use thiserror::Error;

use super::{FlowId, InitAttr, Qp, QpConfig, QpState, QpType, RtrAttr, RtsAttr, WrongCompletion};
use crate::cq::{Completion, Cq};
use crate::error::{PostError, Refused, VerbsError};
use crate::mr::{Buf, Buffers};
use crate::pd::Pd;
use crate::srq::Srq;
use crate::types::{Psn, Qpn};
use crate::wr::{SendWr, Wc};

/// A state, as a type.
pub trait State: fmt::Debug {}

/// A transport service, as a type.
pub trait Service: fmt::Debug {
    /// The service.
    const TYPE: QpType;
}

/// A service of messages.
pub trait Transport: Service {}

/// A service with a peer.
pub trait Connected: Transport {}

macro_rules! types {
    ($($trait:ident: $($(#[$doc:meta])* $name:ident $({ $body:item })?)*;)*) => {
        $($(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy)]
            pub enum $name {}
            impl $trait for $name { $($body)? }
        )*)*
    };
}

types! {
    State:
        /// Nothing works.
        Reset
        /// Receives may be posted.
        Init
        /// Ready to receive.
        Rtr
        /// Ready to send.
        Rts;
    Service:
        /// Reliable connection.
        Rc { const TYPE: QpType = QpType::Rc; }
        /// Unreliable connection.
        Uc { const TYPE: QpType = QpType::Uc; }
        /// Unreliable datagram.
        Ud { const TYPE: QpType = QpType::Ud; }
        /// Raw packets.
        Raw { const TYPE: QpType = QpType::Raw; };
}

impl Transport for Rc {}
impl Transport for Uc {}
impl Transport for Ud {}
impl Connected for Rc {}
impl Connected for Uc {}

/// A reliable connection.
pub type RcQp<S, B = Buf> = TypedQp<Rc, S, B>;
/// An unreliable connection.
pub type UcQp<S, B = Buf> = TypedQp<Uc, S, B>;
/// A queue pair for datagrams.
pub type UdQp<S, B = Buf> = TypedQp<Ud, S, B>;
/// A queue pair for raw packets: whole Ethernet frames. See [`Qp::create_flow`] for those that it
/// receives, [`SendOp::Frame`](crate::SendOp::Frame) for those that it sends.
pub type RawQp<S, B = Buf> = TypedQp<Raw, S, B>;

/// A queue pair of service `T` in state `S`.
#[derive(Debug)]
pub struct TypedQp<T: Service, S: State, B: Buffers = Buf> {
    qp: Qp<B>,
    types: PhantomData<fn() -> (T, S)>,
}

/// A transition that was refused: the queue pair comes back, still in its state.
#[derive(Debug, Error)]
#[error("{cause}")]
pub struct RefusedTransition<Q: fmt::Debug> {
    /// The queue pair.
    pub qp: Box<Q>,
    /// Why.
    pub cause: VerbsError,
}

type Step<T, From, To, B> = Result<TypedQp<T, To, B>, RefusedTransition<TypedQp<T, From, B>>>;

impl Pd {
    /// Makes a queue pair for a reliable connection. Completions of sends go to `send_cq`, those of
    /// receives to `recv_cq`, which may be the same.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`], [`VerbsError::CqTooSmall`], or what the device refused.
    pub fn create_rc_qp<B: Buffers>(
        &self,
        send_cq: &Cq,
        recv_cq: &Cq,
        config: &QpConfig,
    ) -> Result<RcQp<Reset, B>, VerbsError> {
        TypedQp::create(self, send_cq, recv_cq, None, config)
    }

    /// As [`Pd::create_rc_qp`], for an unreliable connection.
    ///
    /// # Errors
    ///
    /// As [`Pd::create_rc_qp`].
    pub fn create_uc_qp<B: Buffers>(
        &self,
        send_cq: &Cq,
        recv_cq: &Cq,
        config: &QpConfig,
    ) -> Result<UcQp<Reset, B>, VerbsError> {
        TypedQp::create(self, send_cq, recv_cq, None, config)
    }

    /// As [`Pd::create_rc_qp`], for datagrams.
    ///
    /// # Errors
    ///
    /// As [`Pd::create_rc_qp`].
    pub fn create_ud_qp<B: Buffers>(
        &self,
        send_cq: &Cq,
        recv_cq: &Cq,
        config: &QpConfig,
    ) -> Result<UdQp<Reset, B>, VerbsError> {
        TypedQp::create(self, send_cq, recv_cq, None, config)
    }
}

impl Pd {
    /// As [`Pd::create_rc_qp`], for raw packets. Of its completions, those of receives carry the
    /// number of the send queue too, but for failed ones: where several queue pairs share a
    /// completion queue, tell them apart by [`QpConfig::user_index`].
    ///
    /// # Errors
    ///
    /// As [`Pd::create_rc_qp`].
    pub fn create_raw_qp<B: Buffers>(
        &self,
        send_cq: &Cq,
        recv_cq: &Cq,
        config: &QpConfig,
    ) -> Result<RawQp<Reset, B>, VerbsError> {
        TypedQp::create(self, send_cq, recv_cq, None, config)
    }
}

/// Queue pairs whose receives come from a shared queue. Of their sizes, those of receives do not
/// count.
impl Pd {
    /// As [`Pd::create_rc_qp`], with the receives of `srq`.
    ///
    /// # Errors
    ///
    /// As [`Pd::create_rc_qp`]; [`VerbsError::OtherDevice`].
    pub fn create_rc_qp_on_srq<B: Buffers>(
        &self,
        send_cq: &Cq,
        recv_cq: &Cq,
        srq: &Srq<B>,
        config: &QpConfig,
    ) -> Result<RcQp<Reset, B>, VerbsError> {
        TypedQp::create(self, send_cq, recv_cq, Some(srq), config)
    }

    /// As [`Pd::create_uc_qp`], with the receives of `srq`.
    ///
    /// # Errors
    ///
    /// As [`Pd::create_rc_qp_on_srq`].
    pub fn create_uc_qp_on_srq<B: Buffers>(
        &self,
        send_cq: &Cq,
        recv_cq: &Cq,
        srq: &Srq<B>,
        config: &QpConfig,
    ) -> Result<UcQp<Reset, B>, VerbsError> {
        TypedQp::create(self, send_cq, recv_cq, Some(srq), config)
    }

    /// As [`Pd::create_ud_qp`], with the receives of `srq`.
    ///
    /// # Errors
    ///
    /// As [`Pd::create_rc_qp_on_srq`].
    pub fn create_ud_qp_on_srq<B: Buffers>(
        &self,
        send_cq: &Cq,
        recv_cq: &Cq,
        srq: &Srq<B>,
        config: &QpConfig,
    ) -> Result<UdQp<Reset, B>, VerbsError> {
        TypedQp::create(self, send_cq, recv_cq, Some(srq), config)
    }
}

impl<T: Service, S: State, B: Buffers> TypedQp<T, S, B> {
    /// Its number, which the peer must know.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    /// The queue pair without types.
    #[must_use]
    pub fn erase(self) -> Qp<B> {
        self.qp
    }

    /// Takes a step: `by` leads the queue pair from state `S` to state `To`.
    fn step<To: State>(
        mut self,
        by: impl FnOnce(&mut Qp<B>) -> Result<(), VerbsError>,
    ) -> Step<T, S, To, B> {
        match by(&mut self.qp) {
            Ok(()) => Ok(TypedQp { qp: self.qp, types: PhantomData }),
            Err(cause) => Err(RefusedTransition { qp: Box::new(self), cause }),
        }
    }
}

impl<T: Service, B: Buffers> TypedQp<T, Reset, B> {
    fn create(
        pd: &Pd,
        send_cq: &Cq,
        recv_cq: &Cq,
        srq: Option<&Srq<B>>,
        config: &QpConfig,
    ) -> Result<Self, VerbsError> {
        let qp = Qp::new(pd, T::TYPE, send_cq, recv_cq, srq, config)?;
        Ok(Self { qp, types: PhantomData })
    }
}

impl<T: Transport, B: Buffers> TypedQp<T, Reset, B> {
    /// See [`Qp::init`].
    ///
    /// # Errors
    ///
    /// The queue pair, and why.
    pub fn init(self, attr: &InitAttr) -> Step<T, Reset, Init, B> {
        self.step(|qp| qp.init(attr))
    }
}

/// A queue pair that was [erased](TypedQp::erase) gets its types back, if it is of that service and
/// in INIT: for [`ConnectionManager::connect`](crate::cm::ConnectionManager::connect) and its kin.
/// Otherwise it comes back as it was.
impl<T: Service, B: Buffers> TryFrom<Qp<B>> for TypedQp<T, Init, B> {
    type Error = Box<Qp<B>>;

    fn try_from(qp: Qp<B>) -> Result<Self, Self::Error> {
        match (qp.qp_type() == T::TYPE, qp.state()) {
            (true, QpState::Init) => Ok(Self { qp, types: PhantomData }),
            _ => Err(Box::new(qp)),
        }
    }
}

impl<T: Connected, B: Buffers> TypedQp<T, Init, B> {
    /// See [`Qp::connect`].
    ///
    /// # Errors
    ///
    /// The queue pair, and why.
    pub fn connect(self, attr: &RtrAttr) -> Step<T, Init, Rtr, B> {
        self.step(|qp| qp.connect(attr))
    }
}

impl<B: Buffers> UdQp<Init, B> {
    /// See [`Qp::receive`].
    ///
    /// # Errors
    ///
    /// The queue pair, and why.
    pub fn receive(self) -> Step<Ud, Init, Rtr, B> {
        self.step(Qp::receive)
    }
}

impl<B: Buffers> RawQp<Reset, B> {
    /// See [`Qp::init`].
    ///
    /// # Errors
    ///
    /// The queue pair, and why.
    pub fn init(self) -> Step<Raw, Reset, Init, B> {
        self.step(|qp| qp.init(&InitAttr::default()))
    }
}

impl<B: Buffers> RawQp<Init, B> {
    /// See [`Qp::receive`].
    ///
    /// # Errors
    ///
    /// The queue pair, and why.
    pub fn receive(self) -> Step<Raw, Init, Rtr, B> {
        self.step(Qp::receive)
    }
}

impl<B: Buffers> RawQp<Rtr, B> {
    /// See [`Qp::activate`].
    ///
    /// # Errors
    ///
    /// The queue pair, and why.
    pub fn activate(self) -> Step<Raw, Rtr, Rts, B> {
        self.step(|qp| qp.activate(&RtsAttr::new(Psn(0))))
    }
}

/// States in which rules lead frames to a raw packet queue pair.
pub trait Steered: Receives {}
impl Steered for Rtr {}
impl Steered for Rts {}

impl<S: Steered, B: Buffers> RawQp<S, B> {
    /// See [`Qp::create_flow`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn create_flow(&mut self, matches: &FlowMatch) -> Result<FlowId, VerbsError> {
        self.qp.create_flow(matches)
    }

    /// See [`Qp::destroy_flow`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn destroy_flow(&mut self, id: FlowId) -> Result<(), VerbsError> {
        self.qp.destroy_flow(id)
    }

    /// See [`Qp::flow_counts`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn flow_counts(&self, id: FlowId) -> Result<FlowCounts, VerbsError> {
        self.qp.flow_counts(id)
    }
}

impl<T: Transport, B: Buffers> TypedQp<T, Rtr, B> {
    /// See [`Qp::activate`].
    ///
    /// # Errors
    ///
    /// The queue pair, and why.
    pub fn activate(self, attr: &RtsAttr) -> Step<T, Rtr, Rts, B> {
        self.step(|qp| qp.activate(attr))
    }
}

/// States in which receives can be posted and end.
pub trait Receives: State {}
impl Receives for Init {}
impl Receives for Rtr {}
impl Receives for Rts {}

impl<T: Service, S: Receives, B: Buffers> TypedQp<T, S, B> {
    /// See [`Qp::post_recv`].
    ///
    /// # Errors
    ///
    /// As there.
    #[inline]
    pub fn post_recv(&mut self, wr_id: u64, buffers: B) -> Result<(), Refused<B>> {
        self.qp.post_recv(wr_id, buffers)
    }

    /// See [`Qp::complete`].
    ///
    /// # Errors
    ///
    /// As there.
    #[inline]
    pub fn complete(
        &mut self,
        completion: Completion,
        each: impl FnMut(Wc<B>),
    ) -> Result<(), WrongCompletion> {
        self.qp.complete(completion, each)
    }
}

impl<T: Service, B: Buffers> TypedQp<T, Rts, B> {
    /// See [`Qp::post_send`].
    ///
    /// # Errors
    ///
    /// As there.
    #[inline]
    pub fn post_send(
        &mut self,
        wr: &SendWr<'_>,
        buffers: Option<B>,
    ) -> Result<(), Refused<Option<B>>> {
        self.qp.post_send(wr, buffers)
    }

    /// See [`Qp::post_send_inline`].
    ///
    /// # Errors
    ///
    /// As there.
    #[inline]
    pub fn post_send_inline(&mut self, wr: &SendWr<'_>, data: &[u8]) -> Result<(), PostError> {
        self.qp.post_send_inline(wr, data)
    }
}
