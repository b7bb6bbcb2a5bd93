//! Connections by IP address and port, as `rdma_cm` makes them: stock programs connect to ours,
//! and ours to them.
//!
//! | module | is |
//! |---|---|
//! | [`message`] | the datagrams: read and written |
//! | [`engine`] | the protocol, sans I/O: numbers, states, repetitions, refusals, limits |
//! | this one | both over queue pair 1 of a port, with address resolution ([`crate::net`]) |
//!
//! [`ConnectionManager`] has no thread of its own. Each call of a handle's `poll` or `wait` does
//! what is due for all of its connections, and so does [`ConnectionManager::poll`]; a program that
//! waits for something else for long has a [`Background`] thread do it. [`ConnId`] is a connection
//! without its queue pair, for those who keep that elsewhere.
//!
//! ```
//! use std::net::SocketAddr;
//! use ferrocx_verbs_lite::*;
//! use ferrocx_verbs_lite::cm::*;
//!
//! type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
//!
//! fn queue_pair(pd: &Pd, cq: &Cq) -> Result<Qp> {
//!     let mut qp = pd.create_qp(cq, &QpConfig::default())?;
//!     qp.init(&InitAttr { access: Access::REMOTE, qkey: 0 })?;
//!     // Receives are posted here: the peer may send as soon as it is accepted.
//!     Ok(qp)
//! }
//!
//! fn client(cm: &ConnectionManager, pd: &Pd, cq: &Cq, to: SocketAddr) -> Result<Connected> {
//!     Ok(cm.connect(queue_pair(pd, cq)?, to, &ConnParams::default())?.wait()?)
//! }
//!
//! fn server(cm: &ConnectionManager, pd: &Pd, cq: &Cq) -> Result<Connected> {
//!     let mut listener = cm.listen(7174)?;
//!     let request = listener.wait();
//!     Ok(request.accept(queue_pair(pd, cq)?, &ConnParams::default())?.wait()?)
//! }
//! ```
//!
//! # Peers that mean no good
//!
//! Whatever arrives is answered within limits: how much peers make this end remember, by address
//! and in all, and how long it waits ([`CmLimits`]). Younger requests push out the oldest that are
//! half open, never a connection that was made; a program is given no request whose peer's MAC
//! address is not known, and such requests go first where too many wait. Messages count only
//! between the addresses of their connection. Nothing is signed: who can send in another's name can
//! refuse or end that one's connections.
//!
//! # What it does not do
//!
//! No path migration (LAP, APR); connections are reliable ones, and datagram services are found by
//! port ([`ConnectionManager::ask_datagrams`]). Requests without `rdma_cm`'s IP header are refused.

mod config;
mod conn;
mod datagram;
pub mod engine;
#[cfg(test)]
mod flood_tests;
mod gsi;
mod handles;
mod id;
mod links;
mod manager;
pub mod message;
mod outbox;
mod reason;
mod sidr;
mod terms;
mod turn;

pub use config::{CmConfig, CmLimitStats, CmLimits, ConnParams};
pub use conn::{Answer, Ends, Request, State, service_id, time_of};
pub use datagram::{DatagramListener, DatagramQuestion, DatagramRequest};
pub use ferrocx_core::Background;
pub use handles::{CmListener, ConnRequest, Connected, Connecting, Connection, NotConnected};
pub use id::ConnId;
pub use links::Links;
pub use manager::{CmError, CmStats, ConnectionManager};
pub use reason::{End, RejectReason};
pub use sidr::DatagramAnswer;
