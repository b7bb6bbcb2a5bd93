//! [`ConnectionManager`]: the protocol over queue pair 1, with addresses resolved.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferrocx_mempool::PageSize;
use thiserror::Error;

use super::conn::{Ends, Request};
use super::engine::{Engine, EngineConfig, Out};
use super::gsi::{Gsi, Received};
use super::reason::End;
use crate::background::Background;
use crate::context::RdmaContext;
use crate::error::VerbsError;
use crate::gid::Path;
use crate::mr::Buffers;
use crate::net::{NetConfig, NetError, NetStats, Network};
use crate::qp::{Qp, QpState, QpType};
use crate::types::Gid;

/// Bytes that a request carries for the peer's program. Source: Linux `cma.c`.
const REQUEST_BYTES: usize = 56;
/// Bytes that an acceptance carries.
pub(super) const ANSWER_BYTES: usize = 196;
/// First port that callers are given. Source: RFC 6335 section 6.
const FIRST_EPHEMERAL: u16 = 49152;
/// Messages that wait for the MAC address of their receiver; more are dropped, and repeated later.
const MAX_WAITING: usize = 1024;
/// Code of the time that our acknowledgements take: 134 ms. Source: Linux' `local_ca_ack_delay`.
const ACK_DELAY: u8 = 15;

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
            net: NetConfig::default(),
            page: PageSize::Auto,
        }
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
    pub(super) fn check(&self, context: &RdmaContext, max_private: usize) -> Result<(), CmError> {
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
        VerbsError::range("bytes of private data", len, 0, max_private as u64)?;
        Ok(())
    }
}

/// Why there is no connection.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CmError {
    /// The peer refused, or did not answer.
    #[error(transparent)]
    End(#[from] End),
    /// A value is out of range, the peer is on no subnet of ours, or the device refused.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The Ethernet side of the port could not be had, or a peer has no MAC address.
    #[error(transparent)]
    Net(#[from] NetError),
    /// Somebody of this process listens there.
    #[error("port {port} is listened on already; close that listener, or take another port")]
    PortInUse {
        /// The port.
        port: u16,
    },
}

/// Counters of a connection manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CmStats {
    /// Messages sent.
    pub sent: u64,
    /// Messages received.
    pub received: u64,
    /// Datagrams that were no messages of the connection manager.
    pub ignored: u64,
    /// Connections, those that have just ended included.
    pub connections: usize,
    /// Frames of address resolution.
    pub net: NetStats,
}

/// State that all handles share.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) context: RdmaContext,
    net: Network,
    gsi: Gsi,
    pub(super) engine: Engine,
    /// Messages whose receivers are being asked for.
    waiting: VecDeque<Out>,
    epoch: Instant,
    next_port: u16,
    sent: u64,
    received: u64,
}

impl Inner {
    /// Time of the protocol.
    pub(super) fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Does what is due. Returns whether anything moved.
    pub(super) fn progress(&mut self) -> bool {
        let mut moved = self.net.poll();
        let now = self.now();
        while let Some(Received { remote, local, mad }) = self.gsi.receive() {
            moved = true;
            self.received += 1;
            self.engine.receive(Ends { local, remote }, &mad, now);
        }
        self.engine.poll(now);
        self.flush(now) || moved
    }

    /// Sends what can be sent.
    fn flush(&mut self, now: Duration) -> bool {
        while let Some(out) = self.engine.next_out() {
            if self.waiting.len() < MAX_WAITING && !self.waiting.contains(&out) {
                self.waiting.push_back(out);
            }
        }
        let mut moved = false;
        for _ in 0..self.waiting.len() {
            let Some(out) = self.waiting.pop_front() else { break };
            match self.net.resolve_from(out.ends.local, out.ends.remote) {
                Ok(Some(path)) if self.gsi.send(&path, &out.mad) => {
                    self.sent += 1;
                    moved = true;
                }
                Ok(_) => self.waiting.push_back(out),
                Err(error) => {
                    tracing::debug!(%error, message = out.mad.message.name(), "not sent");
                    if let Some(id) = out.id {
                        self.engine.unreachable(id, &error.to_string(), now);
                    }
                }
            }
        }
        moved
    }

    /// The way to the peer of a connection, once it is known.
    pub(super) fn path(&mut self, ends: Ends) -> Result<Option<Path>, NetError> {
        self.net.resolve_from(ends.local, ends.remote)
    }

    fn ephemeral_port(&mut self) -> u16 {
        let port = self.next_port;
        self.next_port = port.checked_add(1).unwrap_or(FIRST_EPHEMERAL);
        port
    }
}

/// Bits that nobody can guess, for starting numbers.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Checks that a queue pair is a reliable connection in INIT.
pub(super) fn can_connect<B: Buffers>(qp: &Qp<B>) -> Result<(), CmError> {
    if qp.qp_type() != QpType::Rc {
        let what = "connections by address of this service";
        return Err(VerbsError::Unsupported { what, way_out: "use QpType::Rc" }.into());
    }
    Ok(qp.expect(QpState::Init)?)
}

/// Makes and takes connections of a port. See [the module](crate::cm).
///
/// A handle: clones are the same manager. It takes a lock and talks to the firmware, so it is for
/// set-up; connections themselves are [`Qp`]s, which know nothing of it. A device has one at a
/// time.
#[derive(Debug, Clone)]
pub struct ConnectionManager {
    context: RdmaContext,
    inner: Arc<Mutex<Inner>>,
}

impl ConnectionManager {
    /// Takes queue pair 1 and the Ethernet side of a port, and announces its addresses.
    ///
    /// # Errors
    ///
    /// [`CmError::Verbs`] or [`CmError::Net`]; nothing is left behind then.
    #[doc(alias = "rdma_create_event_channel")]
    pub fn open(context: &RdmaContext, config: &CmConfig) -> Result<Self, CmError> {
        VerbsError::range("response_timeout", config.response_timeout.into(), 0, 31)?;
        VerbsError::range("max_retries", config.max_retries.into(), 0, 15)?;
        VerbsError::range("service_timeout", config.service_timeout.into(), 0, 31)?;
        let max_mtu = context.port_attr()?.active_mtu as u32;
        let engine = Engine::new(EngineConfig {
            response_timeout: config.response_timeout,
            max_retries: config.max_retries,
            service_timeout: config.service_timeout,
            ack_delay: ACK_DELAY,
            guid: context.attr().node_guid,
            max_mtu,
            first_id: random() as u32,
        });
        let net = Network::open(context, &config.net)?;
        let gsi = Gsi::open(context, config.page)?;
        let inner = Inner {
            context: context.clone(),
            net,
            gsi,
            engine,
            waiting: VecDeque::new(),
            epoch: Instant::now(),
            next_port: FIRST_EPHEMERAL | random() as u16 >> 2,
            sent: 0,
            received: 0,
        };
        Ok(Self { context: context.clone(), inner: Arc::new(Mutex::new(inner)) })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what is due for all connections: answers, repeats, resolves. Answers the firmware too:
    /// see [`RdmaContext::background`]. Returns whether anything moved.
    pub fn poll(&self) -> bool {
        let moved = self.lock().progress();
        self.context.device().serve_events();
        moved
    }

    /// Does what is due, and lets the device work when that was nothing.
    pub(super) fn turn(&self) {
        if !self.poll() {
            self.context.device().relax();
        }
    }

    /// Counters of messages and connections so far.
    #[must_use]
    pub fn stats(&self) -> CmStats {
        let inner = self.lock();
        CmStats {
            sent: inner.sent,
            received: inner.received,
            ignored: inner.gsi.ignored,
            connections: inner.engine.len(),
            net: inner.net.stats(),
        }
    }

    /// The way to a peer, for datagrams and for connections made by hand; `None` while it is asked
    /// for.
    ///
    /// # Errors
    ///
    /// Those of [`Network::resolve`].
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve(&self, remote: IpAddr) -> Result<Option<Path>, NetError> {
        let mut inner = self.lock();
        inner.progress();
        inner.net.resolve(remote)
    }

    /// Finds the way to a peer and waits for the answer.
    ///
    /// # Errors
    ///
    /// Those of [`Network::resolve`].
    pub fn resolve_and_wait(&self, remote: IpAddr) -> Result<Path, NetError> {
        loop {
            if let Some(path) = self.resolve(remote)? {
                return Ok(path);
            }
            self.turn();
        }
    }

    /// The request for a connection of queue pair `qpn`, its parameters checked.
    pub(super) fn request(
        &self,
        qpn: u32,
        peer: SocketAddr,
        params: &ConnParams<'_>,
    ) -> Result<Request, CmError> {
        let mut inner = self.lock();
        params.check(&inner.context, REQUEST_BYTES)?;
        VerbsError::range("port", peer.port().into(), 1, u16::MAX.into())?;
        let remote = peer.ip().to_canonical();
        let route = inner.context.route(Gid::from(remote))?;
        let mtu = inner.context.port_attr()?.active_mtu;
        let path = Path::new(route, route.source.mac);
        Ok(Request {
            ends: Ends { local: route.source.gid.ip(), remote },
            port: peer.port(),
            source_port: inner.ephemeral_port(),
            qpn,
            psn: random() as u32 & 0xff_ffff,
            mtu: mtu as u32,
            responder_resources: params.responder_resources,
            initiator_depth: params.initiator_depth,
            retry_count: params.retry_count,
            rnr_retry_count: params.rnr_retry_count,
            ack_timeout: params.ack_timeout,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            private_data: params.private_data.to_vec(),
        })
    }

    /// Has a thread do what is due every `interval`, until what is returned is dropped.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Thread`].
    pub fn background(&self, interval: Duration) -> Result<Background, VerbsError> {
        let manager = self.clone();
        Background::spawn("rdma-cm", interval, move || manager.poll())
    }
}
