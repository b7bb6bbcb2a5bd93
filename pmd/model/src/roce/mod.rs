//! RoCE, versions 1 and 2.
//!
//! - `transport`: packets, and the protocol of a queue pair as state machines without memory,
//!   queues or a wire. It needs nothing of the device; a queue pair holds two of its machines.
//! - `work`: queue pairs at work, between doorbells, host memory and the wire.
//!
//! The commands about queue pairs are in `cmd::roce`, the objects in [`crate::objects`].

pub(crate) mod transport;
pub(crate) mod work;

pub use transport::psn::Psn;
pub use transport::{
    ETHERTYPE_V1, GRH_NEXT_HEADER, Network, UDP_PORT, atomic, bth, icrc, packet, psn, requester,
    responder, timer,
};
