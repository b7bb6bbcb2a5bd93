//! [`ConnectionManager`]: the protocol over queue pair 1, with addresses resolved.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferrocx_core::{Background, Device};
use thiserror::Error;

use super::config::{CmConfig, CmLimitStats, ConnParams};
use super::conn::{Ends, Request};
use super::engine::{Engine, EngineConfig};
use super::gsi::Gsi;
use super::links::Links;
use super::message::Message;
use super::outbox::{Outbox, Sent};
use super::reason::End;
use super::sidr::Sidr;
use crate::context::RdmaContext;
use crate::error::VerbsError;
use crate::gid::Path;
use crate::mr::Buffers;
use crate::net::{NetError, NetStats, Network};
use crate::qp::{Qp, QpState, QpType};
use crate::types::Gid;

/// Bytes that a request carries for the peer's program. Source: Linux `cma.c`.
const REQUEST_BYTES: usize = 56;
/// Bytes that an acceptance carries.
pub(super) const ACCEPTANCE_BYTES: usize = 196;
/// First port that callers are given. Source: RFC 6335 section 6.
const FIRST_EPHEMERAL: u16 = 49152;
/// Requests whose peers one turn tries to reach again.
const SOUGHT_PER_TURN: usize = 32;
/// Datagrams taken in one turn, under the lock. What they cause is sent, or waits within limits.
const BUDGET: usize = 64;

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
    #[error("port {0} is listened on already; close that listener, or take another port")]
    PortInUse(u16),
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
    /// Times that queue pair 1 was lost and made anew.
    pub restarts: u64,
    /// How often limits were reached.
    pub limits: CmLimitStats,
    /// Frames of address resolution.
    pub net: NetStats,
}

/// State that all handles share.
#[derive(Debug)]
pub(super) struct Inner {
    links: Box<dyn Links>,
    gsi: Gsi,
    pub(super) engine: Engine,
    pub(super) sidr: Sidr,
    outbox: Outbox,
    device: Device,
    epoch: Instant,
    next_port: u16,
    sent: u64,
    received: u64,
}

impl Inner {
    /// Time of the protocol.
    pub(super) fn now(&self) -> Duration {
        self.device.now() - self.epoch
    }

    /// Does what is due. Returns whether anything moved.
    pub(super) fn progress(&mut self) -> bool {
        let mut moved = self.links.poll();
        let now = self.now();
        self.gsi.tend(now);
        for _ in 0..BUDGET {
            let Some(received) = self.gsi.receive() else { break };
            moved = true;
            if let Some(received) = received {
                self.received += 1;
                let ends = Ends { local: received.local, remote: received.remote };
                let asks = matches!(received.mad.message, Message::Req(_) | Message::SidrReq(_));
                let is_reached = !asks
                    || matches!(self.links.resolve(ends.local, ends.remote, true), Ok(Some(_)));
                if !self.sidr.receive(ends, &received.mad, is_reached) {
                    self.engine.receive_from(ends, &received.mad, is_reached, now);
                }
                self.collect();
            }
        }
        self.seek(now);
        self.engine.poll(now);
        self.sidr.poll(now);
        self.collect();
        self.flush(now) || moved
    }

    /// Tries again to reach peers who ask for something. Those that answer no question for their
    /// MAC address were never there: what they asked for is forgotten.
    fn seek(&mut self, now: Duration) {
        let Self { links, engine, sidr, .. } = self;
        for (id, ends) in engine.unreached(SOUGHT_PER_TURN) {
            match links.resolve(ends.local, ends.remote, true) {
                Ok(Some(_)) => engine.reached(id),
                Ok(None) => {}
                Err(error) => engine.unreachable(id, &error.to_string(), now),
            }
        }
        for ends in sidr.unreached(SOUGHT_PER_TURN) {
            match links.resolve(ends.local, ends.remote, true) {
                Ok(Some(_)) => sidr.reached(ends),
                Ok(None) => {}
                Err(_) => sidr.unreachable(ends),
            }
        }
    }

    fn collect(&mut self) {
        while let Some(out) = self.engine.next_out().or_else(|| self.sidr.out.pop_front()) {
            self.outbox.push(out);
        }
    }

    /// Sends what can be sent.
    fn flush(&mut self, now: Duration) -> bool {
        let Self { links, gsi, engine, sidr, outbox, sent, .. } = self;
        outbox.flush(|out| match links.resolve(out.ends.local, out.ends.remote, out.is_stranger) {
            Ok(Some(path)) if gsi.send(&path, &out.mad) => {
                *sent += 1;
                Sent::Done
            }
            Ok(Some(_)) => Sent::Full,
            Ok(None) => {
                let message = &out.mad.message;
                let is_wanted =
                    out.id.map_or_else(|| sidr.wants(message), |id| engine.wants(id, message));
                if is_wanted { Sent::Later } else { Sent::Done }
            }
            Err(error) => {
                tracing::debug!(%error, message = out.mad.message.name(), "not sent");
                match out.id {
                    Some(id) => engine.unreachable(id, &error.to_string(), now),
                    None => sidr.unreachable(out.ends),
                }
                Sent::Done
            }
        })
    }

    /// The way to the peer of a connection, once it is known.
    pub(super) fn path(&mut self, id: u32) -> Result<Option<Path>, NetError> {
        let Some(conn) = self.engine.conn(id) else { return Ok(None) };
        self.links.resolve(conn.ends.local, conn.ends.remote, conn.is_stranger)
    }

    /// The way between two addresses, once it is known.
    pub(super) fn way(&mut self, ends: Ends) -> Result<Option<Path>, NetError> {
        self.links.resolve(ends.local, ends.remote, false)
    }

    fn ephemeral_port(&mut self) -> u16 {
        let port = self.next_port;
        self.next_port = port.checked_add(1).unwrap_or(FIRST_EPHEMERAL);
        port
    }
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
        config.check()?;
        Self::over(context, config, Box::new(Network::open(context, &config.net)?))
    }

    /// Takes queue pair 1 of a port, whose peers' MAC addresses `links` finds.
    ///
    /// # Errors
    ///
    /// [`CmError::Verbs`]; nothing is left behind then.
    pub fn over(
        context: &RdmaContext,
        config: &CmConfig,
        links: Box<dyn Links>,
    ) -> Result<Self, CmError> {
        config.check()?;
        let device = context.device();
        let engine = Engine::new(EngineConfig {
            cm: *config,
            guid: context.attr().node_guid,
            max_mtu: context.port_attr()?.active_mtu as u32,
            first_id: device.random() as u32,
        });
        let gsi = Gsi::open(context, config.page)?;
        let inner = Inner {
            links,
            gsi,
            engine,
            sidr: Sidr::new(config, device.random() as u32),
            outbox: Outbox::new(config.limits.unsent),
            epoch: device.now(),
            next_port: FIRST_EPHEMERAL | device.random() as u16 >> 2,
            device: device.clone(),
            sent: 0,
            received: 0,
        };
        Ok(Self { context: context.clone(), inner: Arc::new(Mutex::new(inner)) })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn context(&self) -> &RdmaContext {
        &self.context
    }

    /// Calls the protocol, and does what is due.
    pub(super) fn with<T>(&self, call: impl FnOnce(&mut Engine, Duration) -> T) -> T {
        let mut inner = self.lock();
        let now = inner.now();
        let done = call(&mut inner.engine, now);
        inner.progress();
        done
    }

    /// Does what is due for all connections: answers, repeats, resolves. Answers the firmware too:
    /// see [`RdmaContext::background`]. Returns whether anything moved.
    pub fn poll(&self) -> bool {
        let moved = self.lock().progress();
        self.context.device().serve_events();
        moved
    }

    /// Does what is due until `poll` has something, or `limit` is over; lets the device work when
    /// nothing was due.
    pub(super) fn wait_for<T>(
        &self,
        limit: Duration,
        mut poll: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let device = self.context.device();
        let start = device.now();
        loop {
            let done = poll();
            if done.is_some() || device.now() - start >= limit {
                return done;
            }
            if !self.poll() {
                device.relax();
            }
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
            restarts: inner.gsi.restarts,
            connections: inner.engine.len(),
            limits: CmLimitStats { unsent: inner.outbox.unsent, ..inner.engine.limit_stats() },
            net: inner.links.stats(),
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
        let local = self.context.route(Gid::from(remote))?.source.gid.ip();
        let mut inner = self.lock();
        inner.progress();
        inner.links.resolve(local, remote, false)
    }

    /// Finds the way to a peer and waits for the answer.
    ///
    /// # Errors
    ///
    /// Those of [`Network::resolve`].
    pub fn resolve_and_wait(&self, remote: IpAddr) -> Result<Path, NetError> {
        loop {
            if let Some(done) = self.wait_for(Duration::MAX, || self.resolve(remote).transpose()) {
                return done;
            }
        }
    }

    /// The request for a connection of queue pair `qpn`, its parameters checked.
    pub(super) fn request<'a>(
        &self,
        qpn: u32,
        peer: SocketAddr,
        source_port: Option<u16>,
        params: &ConnParams<'a>,
    ) -> Result<Request<'a>, CmError> {
        params.check(&self.context, REQUEST_BYTES)?;
        let source_port = source_port.unwrap_or_else(|| self.lock().ephemeral_port());
        VerbsError::range("port", peer.port().into(), 1, u16::MAX.into())?;
        let remote = peer.ip().to_canonical();
        let route = self.context.route(Gid::from(remote))?;
        let path = Path::new(route, route.source.mac);
        Ok(Request {
            ends: Ends { local: route.source.gid.ip(), remote },
            port: peer.port(),
            source_port,
            qpn,
            psn: self.context.device().random() as u32 & 0xff_ffff,
            mtu: self.context.port_attr()?.active_mtu as u32,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            params: *params,
        })
    }

    /// Has a thread do what is due every `interval`, until what is returned is dropped.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Thread`].
    pub fn background(&self, interval: Duration) -> Result<Background, VerbsError> {
        let manager = self.clone();
        Background::spawn("rdma-cm", interval, move || manager.poll()).map_err(VerbsError::Thread)
    }
}
