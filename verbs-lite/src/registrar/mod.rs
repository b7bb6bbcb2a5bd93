//! Registration pipelines: a core of its own registers and ends keys for others, through rings.
//!
//! A [`Worker`] owns a queue pair, its completion queue, and a set of fast-register keys with their
//! page lists. A [`Client`], on another core, puts in pieces of memory and takes out keys, puts in
//! keys and takes out confirmations. Rings are bounded: a full one hands the request back, and
//! nothing that was taken is lost. After set-up neither side allocates, locks, or makes a system
//! call.
//!
//! | the client puts in | the worker posts | the client takes out |
//! |---|---|---|
//! | [`Client::register`] | FAST_REG_MR | [`Answer::Key`] when it is carried out |
//! | [`Client::invalidate`] | LOCAL_INV | [`Answer::Ended`] when it is carried out |
//! | [`Client::ended_by_peer`] | nothing | [`Answer::Ended`] |
//! | [`Client::read_once`] | FAST_REG_MR, READ, fenced LOCAL_INV, back to back | [`Answer::Read`] |
//!
//! Requests wait in their ring while every key is in use or the send queue is full; invalidations
//! have a ring of their own, so they are never behind a request that waits for them. A request is
//! taken only when its answer has a place.
//!
//! Everything that one turn of the worker posts goes out with one doorbell and one completion, so
//! the deeper the pipeline the fewer of both per key.
//!
//! # Failures
//!
//! When the queue pair fails, the worker answers everything it took with [`Answer::Failed`], takes
//! no more, and ends with a [`Drained`] that holds every key: those that may be valid apart, see
//! [`crate::fastreg`].

mod client;
mod worker;

use std::ops::Range;

use arrayvec::ArrayVec;

pub use client::{Answer, Client, FailureCause, KeyId, ReadOnce, RegisteredKey, Registration};
pub use worker::{Drained, TaggedKey, Worker, registrar};

use crate::context::RdmaContext;
use crate::cq::Cq;
use crate::error::VerbsError;
use crate::fastreg::ListLayout;
use crate::gid::Path;
use crate::mr::Buffers;
use crate::pd::Pd;
use crate::qp::{InitAttr, Qp, QpConfig, RtrAttr, RtsAttr};
use crate::types::{Access, Mtu, Psn};

/// Pieces of one request.
pub const MAX_PIECES: usize = 16;

/// Pieces of a memory, in their order.
pub type Pieces = ArrayVec<Range<usize>, MAX_PIECES>;

/// How large a pipeline is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegistrarConfig {
    /// Keys, which is the depth of the pipeline: 1 to 65536.
    pub keys: u32,
    /// Layout of the page lists.
    pub layout: ListLayout,
    /// Entries of a list: 1 to the device's limit.
    pub max_page_list_len: u32,
    /// Requests, invalidations and answers that wait in their rings: 1 to 65536 each.
    pub ring_entries: usize,
}

impl Default for RegistrarConfig {
    fn default() -> Self {
        Self {
            keys: 64,
            layout: ListLayout::Pages { log_page: 12 },
            max_page_list_len: 64,
            ring_entries: 256,
        }
    }
}

/// A queue pair and its completion queue, for one worker alone.
#[derive(Debug)]
pub struct Lane {
    /// In RTS, made with [`QpConfig::fast_reg`].
    pub qp: Qp<()>,
    /// The completion queue of both its directions.
    pub cq: Cq,
}

impl Lane {
    /// A lane that leads back to this port: enough to register and invalidate for other queue
    /// pairs of the domain. `wr` requests can be in flight.
    ///
    /// # Errors
    ///
    /// Those of [`looped_back`].
    pub fn looped_back(context: &RdmaContext, pd: &Pd, wr: u32) -> Result<Self, VerbsError> {
        let (qp, cq) = looped_back(context, pd, wr)?;
        Ok(Self { qp, cq })
    }
}

/// A queue pair connected to itself, and its completion queue, for `wr` requests in flight.
///
/// # Errors
///
/// Those of [`Pd::create_qp`] and of the transitions to RTS.
pub fn looped_back<B: Buffers>(
    context: &RdmaContext,
    pd: &Pd,
    wr: u32,
) -> Result<(Qp<B>, Cq), VerbsError> {
    let config = QpConfig {
        max_send_wr: wr,
        // For programs that send to themselves.
        max_recv_wr: 4,
        max_inline_bytes: 16,
        fast_reg: true,
        ..QpConfig::default()
    };
    let cq = context.create_cq(wr.saturating_add(config.max_recv_wr))?;
    let mut qp = pd.create_qp(&cq, &config)?;
    lead_to_itself(context, &mut qp)?;
    Ok((qp, cq))
}

/// Connects a queue pair in reset to itself.
pub(crate) fn lead_to_itself<B: Buffers>(
    context: &RdmaContext,
    qp: &mut Qp<B>,
) -> Result<(), VerbsError> {
    let own = context.gids().first().map(|entry| entry.gid);
    let own = own.ok_or(VerbsError::GidTableFull { size: 0 })?;
    let path = Path::new(context.route(own)?, context.device().mac());
    qp.init(&InitAttr { access: Access::empty(), qkey: 0 })?;
    qp.connect(&RtrAttr::new(path, qp.qpn(), Psn(0), Mtu::B256))?;
    qp.activate(&RtsAttr::new(Psn(0)))
}
