//! RoCE, versions 1 and 2.
//!
//! - `transport`: packets, and the protocol of a queue pair as state machines without memory,
//!   queues or a wire. It needs nothing of the device; a queue pair holds two of its machines.
//! - `work`: queue pairs at work, between doorbells, host memory and the wire.
//!
//! The commands about queue pairs are in `cmd::roce`, the objects in [`crate::objects`].
//!
//! # What it does not do
//! - Rates: a notification of congestion is counted and slows nothing down.
//! - Path migration: `apm` is not advertised. Linux refuses alternate paths on RoCE ports itself
//!   (6.12, `_ib_modify_qp`: "Ban them in roce mode"), so nobody could ask for one.
//! - End-to-end credits: not advertised.
//! - RoCE 1.5, and masked atomics that anybody but the model understands: see [`bth::Op`].

pub(crate) mod transport;
pub(crate) mod work;

pub use transport::psn::Psn;
pub use transport::{
    ETHERTYPE_V1, GRH_NEXT_HEADER, Network, UDP_PORT, atomic, bth, icrc, packet, psn, requester,
    responder, timer,
};
