//! The device apart from its queues: what it is, what it was told, what its port is like.
//!
//! - [`config`], [`caps`]: what was chosen for it, and what it says it can do.
//! - [`state`]: everything that its parts share, and what one step works with.
//! - [`pages`], [`port`], [`congestion`], `health`: lent memory, link and vport, RoCE's congestion
//!   control, illness.
//! - [`fault`] plans what goes wrong; `refused` and [`log`] say what was refused.

pub mod caps;
pub mod config;
pub mod congestion;
pub mod fault;
mod health;
pub mod log;
pub mod pages;
pub mod port;
pub(crate) mod refused;
pub(crate) mod state;
