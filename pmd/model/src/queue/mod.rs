//! What the queues of Ethernet and RoCE have in common.
//!
//! - [`cq`], `block`, [`completion`]: completion queues, arming and moderation; compressed blocks;
//!   completing a work request. [`eq`]: event queues.
//! - [`wqe`], [`ring`]: what stands in send and receive WQEs. [`dma`]: memory through keys.
//! - [`active`]: whose turn it is.

pub(crate) mod active;
mod block;
pub(crate) mod completion;
pub(crate) mod cq;
pub(crate) mod dma;
pub mod eq;
pub(crate) mod ring;
pub(crate) mod wqe;
