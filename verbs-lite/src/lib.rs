//! RDMA verbs in user space, on the project's own driver: no kernel driver, no libibverbs.
//!
//! Applications have this crate as `ferrocx::verbs`.
//!
//! **This library has never run on hardware.** Stock verbs programs have been its peers over the
//! model's wire, for SEND on RC, UC and UD, on RC for WRITE, READ, atomics, invalidation,
//! fast-register keys, FMRs and windows, and for connections and groups; of raw packets, Linux's
//! ping; for the rest, another model with this library on it.
//!
//! # Architecture
//!
//! - [`RdmaContext`] switches RoCEv2 on at a [`Device`](ferrocx_core::Device), holds its addresses,
//!   and finds the one that reaches a peer ([`RdmaContext::route`]).
//! - [`Pd`] is where everything else is made: queue pairs, keys.
//! - [`Memory`] is mapped for the device once; [`Mr`] is a key over it; a [`Buf`] is a piece that
//!   moves into a work request and comes back with its completion ([`mr`]).
//! - [`Dm`] is memory that lies in the device; regions over it have buffers like any others.
//! - An [`Mbuf`](ferrocx_mempool::Mbuf) of a pool that is registered with the device goes the same
//!   way without a key of its own: the packet that an Ethernet queue has received is posted as it
//!   is ([`Buffers`]).
//! - [`FastRegMr`] is a key that work requests bind to memory and end again, in a pipeline
//!   ([`fastreg`]).
//! - [`Fmr`] and [`FmrPool`] map and unmap pages by a call, and say when access ends ([`fmr`]).
//! - [`Mw`] is a key over part of a region, for one queue pair's peer ([`window`]).
//! - [`registrar`] runs such a pipeline on a core of its own, fed by rings.
//! - [`Qp`] is a queue pair of any service ([`qp`]): reliable and unreliable connections,
//!   datagrams, and raw packets, which are whole Ethernet frames that flow rules lead to it.
//!   Posting and completing allocate nothing, take no lock, make no system call, and cannot panic.
//!   A [`Spread`] shares frames out among several by a hash of their headers. Rings lie in memory
//!   of the caller's where it says so ([`Pd::with_ring_memory`]).
//! - [`Srq`] holds the receives of many queue pairs ([`srq`]); of an [`Xrcd`], those of many
//!   processes, whose peers name it in each request ([`xrc`]).
//! - [`cm`] connects queue pairs by IP address and port, to and from stock `rdma_cm` programs;
//!   [`net`] finds the MAC addresses of peers, and answers those who ask for ours.
//! - [`Cq`] is polled, or armed and waited for through a [`CompletionChannel`].
//!
//! Handles hold what they were made from, so any order of dropping is right. What cannot be
//! destroyed is leaked and logged, never freed.
//!
//! # Errors
//!
//! Where a method says no more about its error, that is what the device refused.
//!
//! # What it does not do
//!
//! Connections are reliable ones; of datagrams [`cm`] finds the queue pair of a service
//! ([`cm::ConnectionManager::ask_datagrams`]), and peers of UC exchange numbers by other ways. No
//! duplicate-address detection, no router discovery, no path migration. [`cm`] connects no XRC.
//! Attaching a group tells no switch or router of it: [`net::Network::join`] does. Raw packet queue
//! pairs have no shared receives, no TSO, no VLAN stripping, and no copies of what goes to others
//! (sniffing); the Ethernet queues of `ferrocx-pmd`, on the same device, have bursts and the
//! offloads.
//!
//! # Limits
//!
//! | what | limit | where |
//! |---|---|---|
//! | requests in flight | those of the queue pair, in a ring of at most 32768 blocks of 64 bytes | [`QpConfig`] |
//! | completions in flight | an entry for each request, reserved when a queue pair is made; for those of an SRQ once | [`VerbsError::CqTooSmall`] |
//! | pages of a registration | the device's, and [`PageList`]'s room | [`Pd::alloc_mr`] |
//! | inline data | 928 bytes | [`QpConfig::MAX_INLINE_BYTES`] |
//! | one buffer | 2 GiB | [`Mr::buf`] |
//! | flow rules | 1024 of a port, to 65536 | [`ferrocx_core::DeviceConfig::flow_rules`] |
//! | requests for connections that wait | 128 a port | [`cm::ConnectionManager::listen`] |
//! | connections that peers have half open, or that are ending | 1024, 4096; 256, 1024 a peer | [`cm::CmLimits`] |
//! | waiting for a peer, and for late packets | 60 s, 10 s | [`cm::CmLimits`] |
//! | neighbours | 1024, and 256 strangers, to 65536 | [`net::NetConfig`] |
//!
//! # Example
//!
//! Two ends of a connection, made by hand; see [`cm`] for connections by address and port.
//!
//! ```
//! use ferrocx_mempool::RegionConfig;
//! use ferrocx_verbs_lite::*;
//!
//! fn connect(pd: &Pd, cq: &Cq, path: Path, peer: Qpn, mtu: Mtu)
//!     -> Result<Qp, VerbsError>
//! {
//!     let mut qp = pd.create_qp(cq, &QpConfig::default())?;
//!     qp.init(&InitAttr { access: Access::REMOTE, qkey: 0 })?;
//!     qp.connect(&RtrAttr::new(path, peer, Psn(0), mtu))?;
//!     qp.activate(&RtsAttr::new(Psn(0)))?;
//!     Ok(qp)
//! }
//!
//! /// Sends a message and waits for its end; gives the buffer back.
//! fn send(qp: &mut Qp, cq: &mut Cq, buf: Buf) -> Result<Buf, Box<dyn std::error::Error>> {
//!     qp.post_send(&SendWr::signaled(1, SendOp::Send), Some(buf))?;
//!     loop {
//!         let Some(completion) = cq.poll() else { continue };
//!         let mut sent = None;
//!         qp.complete(completion, |wc| sent = Some(wc))?;
//!         let Some(wc) = sent else { continue };
//!         wc.result?;
//!         return wc.into_buffers().ok_or_else(|| "a receive ended".into());
//!     }
//! }
//! ```
#![deny(unsafe_code)]

mod belief;
mod channel;
pub mod cm;
mod command;
mod context;
mod counters;
mod cq;
mod era;
mod error;
pub mod fastreg;
pub mod fmr;
mod gid;
pub mod mr;
mod names;
pub mod net;
mod pd;
pub mod peer;
pub mod qp;
mod receivers;
pub mod registrar;
mod seats;
mod share;
pub mod srq;
mod taking;
mod types;
mod uar;
mod watch;
mod wc;
pub mod window;
mod wr;
pub mod xrc;
mod xrcd;

pub use channel::CompletionChannel;
pub use context::{DeviceAttr, DeviceCaps, PortAttr, RdmaContext};
pub use counters::RoceCounters;
pub use cq::{Completion, Cq};
pub use error::{Failure, PostError, Refused, VerbsError};
pub use fastreg::{
    BoundKey, FastReg, FastRegMr, FreeKey, KeySlot, KeyState, ListLayout, MrState, PageList,
    PageListError, RefusedMbuf, RegisteredMr, RevokeError,
};
pub use fmr::{Fmr, FmrAttr, FmrError, FmrKey, FmrMode, FmrPool, FmrPoolConfig, FmrQueue, PoolFmr};
pub use gid::{GidConfig, GidEntry, Path, Route};
pub use mr::{Buf, Buffers, Dm, DmaMr, Memory, Mr, Payload, PhysBuf, Sge};
pub use pd::{Pd, RingMemory};
pub use qp::{
    Changes, Ended, FlowId, FrameHash, HashFields, InitAttr, MrChanger, Qp, QpConfig, QpQueues,
    QpState, QpTable, QpType, RtrAttr, RtsAttr, Spread, WrongCompletion,
};
pub use srq::{Srq, SrqConfig};
pub use taking::{CqEntry, Taking};
pub use types::{Access, Gid, Lkey, Mtu, Psn, Qpn, RemoteAddr, Rkey, Srqn};
pub use wc::{Received, Returned, Sent, Wc};
pub use window::{BindMw, BindUntyped, BoundMw, Mw, MwKind, UntypedMw};
pub use wr::{AddressHandle, InvalidatedRkey, RecvInfo, SendFlags, SendOp, SendWr, WcOpcode};
pub use xrc::Xrcd;

pub use ferrocx_core::{Background, Notify};
