//! Ethernet queues at work.
//!
//! - [`sq`] fetches and runs send WQEs; `send` makes frames of them, `segment` reads their Ethernet
//!   segment; [`loopback`] keeps what a port sends to itself.
//! - [`receiver`] takes frames of the wire to queues: `steering`, the flow objects compiled,
//!   chooses them; [`rq`] scatters into their buffers, whose WQEs `fetch` reads many at a time.

mod fetch;
pub(crate) mod loopback;
pub(crate) mod receiver;
pub(crate) mod rq;
mod segment;
mod send;
pub(crate) mod sq;
pub(crate) mod steering;
