//! How peers are spoken to, what they may cost, and what is said to them when connections are made.

use std::time::Duration;

use ferrocx_mempool::PageSize;

use crate::context::RdmaContext;
use crate::error::VerbsError;
use crate::net::NetConfig;

/// How the manager speaks to peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CmConfig {
    /// A peer that does not answer within 4.096 us times 2 to this power is asked again: 0 to 31.
    pub response_timeout: u8,
    /// How often a silent peer is asked again: 0 to 15.
    pub max_retries: u8,
    /// How long a peer shall wait that asks again while our program has not decided: 4.096 us times
    /// 2 to this power, 0 to 31.
    pub service_timeout: u8,
    /// What peers may make this end remember and wait for.
    pub limits: CmLimits,
    /// Address resolution.
    pub net: NetConfig,
    /// Pages of the buffers for datagrams.
    pub page: PageSize,
}

impl Default for CmConfig {
    /// Sixteen messages in 17 seconds; 17 seconds for our program.
    fn default() -> Self {
        Self {
            response_timeout: 18,
            max_retries: 15,
            service_timeout: 22,
            limits: CmLimits::default(),
            net: NetConfig::default(),
            page: PageSize::Auto,
        }
    }
}

impl CmConfig {
    /// Checks every value against its range.
    pub(super) fn check(&self) -> Result<(), VerbsError> {
        for (what, value, max) in [
            ("response_timeout", self.response_timeout, 31),
            ("max_retries", self.max_retries, 15),
            ("service_timeout", self.service_timeout, 31),
        ] {
            VerbsError::range(what, value.into(), 0, max)?;
        }
        Ok(())
    }
}

/// What peers may make a connection manager remember and wait for. Numbers are 1 at least.
/// [`CmLimitStats`] says how often a limit was reached, and the first time a line in the log does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CmLimits {
    /// Longest that one state of a connection that is being made or ended waits, for the peer or
    /// for our program: repetitions, and the time that a peer asks for, included.
    pub patience: Duration,
    /// Longest that an ended connection is remembered for the sake of late packets.
    pub time_wait: Duration,
    /// Connections that peers asked for and that are not made yet. The oldest makes room.
    pub half_open: usize,
    /// Those of one address. More are refused.
    pub half_open_per_peer: usize,
    /// Connections that are being ended, or ended and remembered. The oldest is forgotten.
    pub ending: usize,
    /// Those of one address. Its oldest is forgotten.
    pub ending_per_peer: usize,
    /// Messages to peers without a connection that wait for a MAC address or for room in the send
    /// queue; the oldest is dropped.
    pub unsent: usize,
}

impl Default for CmLimits {
    /// One minute, ten seconds; 1024 half-open connections, 256 of a peer; 4096 and 1024 that end;
    /// 256 messages.
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(60),
            time_wait: Duration::from_secs(10),
            half_open: 1024,
            half_open_per_peer: 256,
            ending: 4096,
            ending_per_peer: 1024,
            unsent: 256,
        }
    }
}

/// How often each limit of [`CmLimits`] was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CmLimitStats {
    /// Requests refused: the peer had as many half-open connections as it may, or its share of a
    /// full queue.
    pub refused: u64,
    /// Half-open connections that made room for others.
    pub pushed_out: u64,
    /// Connections that a peer asked for and that were not made in time: nobody here decided, or
    /// the peer did not answer our acceptance.
    pub timed_out: u64,
    /// Connections that were forgotten before their time.
    pub forgotten: u64,
    /// Messages that were dropped because too many waited.
    pub unsent: u64,
}

/// Counts that a limit was reached, and says so the first time.
pub(super) fn count(times: &mut u64, limit: &'static str) {
    *times += 1;
    if *times == 1 {
        tracing::warn!(limit, "a limit of the connection manager was reached; see CmStats::limits");
    }
}

/// Parameters that both ends say when they connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "rdma_conn_param")]
pub struct ConnParams<'a> {
    /// READs and atomics of the peer to serve at a time: 0 to
    /// [`DeviceAttr::max_qp_rd_atom`](crate::DeviceAttr::max_qp_rd_atom). The smaller wish counts.
    pub responder_resources: u8,
    /// READs and atomics to have in flight: 0 to
    /// [`DeviceAttr::max_qp_rd_atom`](crate::DeviceAttr::max_qp_rd_atom). The smaller wish counts.
    pub initiator_depth: u8,
    /// Repetitions of a packet that is not acknowledged, of both queue pairs: 0 to 7. The caller
    /// decides.
    pub retry_count: u8,
    /// Repetitions of the peer's packets when no receive is posted here: 0 to 6, 7 for ever.
    pub rnr_retry_count: u8,
    /// Waiting for an acknowledgement takes 4.096 us times 2 to this power: 1 to 31. The caller
    /// decides.
    pub ack_timeout: u8,
    /// Told to the peer's program: at most 56 bytes with a request, 196 with an acceptance.
    pub private_data: &'a [u8],
}

impl Default for ConnParams<'_> {
    /// Sixteen READs, seven repetitions 268 ms apart, for ever when no receive is posted.
    fn default() -> Self {
        Self {
            responder_resources: 16,
            initiator_depth: 16,
            retry_count: 7,
            rnr_retry_count: 7,
            ack_timeout: 16,
            private_data: &[],
        }
    }
}

impl ConnParams<'_> {
    /// Checks every value against its range.
    pub(super) fn check(
        &self,
        context: &RdmaContext,
        max_private: usize,
    ) -> Result<(), VerbsError> {
        let reads = u64::from(context.attr().max_qp_rd_atom).min(255);
        for (what, value, min, max) in [
            ("responder_resources", self.responder_resources, 0, reads),
            ("initiator_depth", self.initiator_depth, 0, reads),
            ("retry_count", self.retry_count, 0, 7),
            ("rnr_retry_count", self.rnr_retry_count, 0, 7),
            ("ack_timeout", self.ack_timeout, 1, 31),
        ] {
            VerbsError::range(what, value.into(), min, max)?;
        }
        let len = self.private_data.len() as u64;
        VerbsError::range("bytes of private data", len, 0, max_private as u64)
    }
}
