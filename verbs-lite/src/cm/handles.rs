//! What users hold: a listener, a request, a connection that is being made, and one that is made.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ferrocx_prm::mad::CmReq;
use thiserror::Error;

use super::config::ConnParams;
use super::conn::{Answer, State, caller_data, service_id};
use super::manager::{ACCEPTANCE_BYTES, CmError, ConnectionManager, can_connect};
use super::reason::{End, RejectReason};
use super::terms::Terms;
use crate::error::VerbsError;
use crate::mr::{Buf, Buffers};
use crate::qp::Qp;

/// Bytes that a rejection carries for the peer's program, and the end of a connection.
const REJECTION_BYTES: u64 = 148;
const DISCONNECT_BYTES: u64 = 220;

/// A connection's place in the manager; dropping it ends, refuses or takes back the connection.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) manager: ConnectionManager,
    pub(super) id: u32,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.manager.with(|engine, now| engine.forget(self.id, now));
    }
}

/// Takes requests for connections to a port, until it is dropped.
#[derive(Debug)]
pub struct CmListener {
    manager: ConnectionManager,
    port: u16,
}

impl ConnectionManager {
    /// Takes requests for connections to a port, at every address, from now on. Up to 128 of them
    /// wait. Then peers that have 16 of these are refused, and others take the place of the oldest.
    /// A request is taken when the MAC address of its peer is known; until then any other takes its
    /// place first, so that invented peers cost no queue pair, and keep nobody out who is there.
    ///
    /// # Errors
    ///
    /// [`CmError::PortInUse`]; [`CmError::Verbs`] for port 0.
    #[doc(alias = "rdma_listen")]
    pub fn listen(&self, port: u16) -> Result<CmListener, CmError> {
        self.listen_with(port, 128)
    }

    /// Takes requests like [`ConnectionManager::listen`], of which up to `backlog` wait.
    ///
    /// # Errors
    ///
    /// Those of [`ConnectionManager::listen`].
    pub fn listen_with(&self, port: u16, backlog: usize) -> Result<CmListener, CmError> {
        VerbsError::range("port", port.into(), 1, u16::MAX.into())?;
        if !self.lock().engine.listen(service_id(port), backlog) {
            return Err(CmError::PortInUse(port));
        }
        Ok(CmListener { manager: self.clone(), port })
    }

    /// Asks a peer for a connection of `qp`: a reliable connection in INIT, which should have
    /// receives posted. The address that reaches the peer, its MAC address and the path MTU are
    /// found here.
    ///
    /// # Errors
    ///
    /// [`NotConnected`] with the queue pair, for parameters out of range, a peer without route, or
    /// a queue pair of another service or state.
    #[doc(alias = "rdma_connect")]
    pub fn connect<B: Buffers>(
        &self,
        qp: Qp<B>,
        peer: SocketAddr,
        params: &ConnParams<'_>,
    ) -> Result<Connecting<B>, NotConnected<B>> {
        match can_connect(&qp).and_then(|()| self.request(qp.qpn().0, peer, None, params)) {
            Ok(request) => {
                let id = self.with(|engine, now| engine.connect(&request, now));
                Ok(Connecting { making: Some((Held { manager: self.clone(), id }, qp)) })
            }
            Err(cause) => Err(NotConnected::new(qp, cause)),
        }
    }
}

impl CmListener {
    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The oldest request that waits, if one does.
    #[doc(alias = "rdma_get_request")]
    pub fn poll(&mut self) -> Option<ConnRequest> {
        self.manager.lock().progress();
        self.take()
    }

    /// The oldest request that waits, without doing what is due first: for those who have several
    /// listeners, and have just called [`ConnectionManager::poll`] for all of them.
    pub fn take(&mut self) -> Option<ConnRequest> {
        let mut inner = self.manager.lock();
        let id = inner.engine.take_request(service_id(self.port))?;
        let conn = inner.engine.conn(id)?;
        let (peer, req) = (conn.peer(), conn.request.clone());
        // Not under the lock, which dropping it takes.
        drop(inner);
        Some(ConnRequest { held: Held { manager: self.manager.clone(), id }, peer, req })
    }

    /// Waits for a request, for as long as it takes.
    pub fn wait(&mut self) -> ConnRequest {
        loop {
            if let Some(request) = self.wait_for(Duration::MAX) {
                return request;
            }
        }
    }

    /// Waits for a request; `None` if there was none within `limit`.
    pub fn wait_for(&mut self, limit: Duration) -> Option<ConnRequest> {
        self.manager.clone().wait_for(limit, || self.poll())
    }
}

impl Drop for CmListener {
    fn drop(&mut self) {
        self.manager.with(|engine, now| engine.unlisten(service_id(self.port), now));
    }
}

/// A peer wants a connection: accept or reject it. Dropping it rejects it.
#[derive(Debug)]
pub struct ConnRequest {
    pub(super) held: Held,
    peer: SocketAddr,
    pub(super) req: Box<CmReq>,
}

impl ConnRequest {
    /// Who asks.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Private data of the peer's program: 56 bytes, filled up with zeros.
    #[must_use]
    pub fn private_data(&self) -> Vec<u8> {
        caller_data(&self.req)
    }

    /// READs and atomics that the peer wants in flight.
    #[must_use]
    pub fn initiator_depth(&self) -> u8 {
        self.req.initiator_depth() as u8
    }

    /// READs and atomics that the peer serves at a time.
    #[must_use]
    pub fn responder_resources(&self) -> u8 {
        self.req.responder_resources() as u8
    }

    /// Says yes, with `qp`: a reliable connection in INIT, which should have receives posted. Where
    /// both ends have a wish, the smaller one counts.
    ///
    /// # Errors
    ///
    /// [`NotConnected`] with the queue pair, for parameters out of range or a queue pair of another
    /// service or state. The request is rejected then.
    #[doc(alias = "rdma_accept")]
    pub fn accept<B: Buffers>(
        self,
        qp: Qp<B>,
        params: &ConnParams<'_>,
    ) -> Result<Connecting<B>, NotConnected<B>> {
        let checked = params.check(self.held.manager.context(), ACCEPTANCE_BYTES);
        if let Err(cause) = checked.map_err(CmError::from).and_then(|()| can_connect(&qp)) {
            return Err(NotConnected::new(qp, cause));
        }
        let psn = self.held.manager.context().device().random() as u32 & 0xff_ffff;
        let answer = Answer { qpn: qp.qpn().0, psn, params: *params };
        // A request that has been taken back says so when the connection is polled.
        self.held.manager.with(|engine, _| engine.prepare(self.held.id, &answer));
        Ok(Connecting { making: Some((self.held, qp)) })
    }

    /// Says no: reason "consumer defined", and at most 148 bytes for the peer's program.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] for more; then the peer is told no without them.
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private_data: &[u8]) -> Result<(), VerbsError> {
        VerbsError::range("bytes of private data", private_data.len() as u64, 0, REJECTION_BYTES)?;
        let (id, reason) = (self.held.id, RejectReason::CONSUMER_DEFINED);
        self.held.manager.with(|engine, now| engine.reject(id, reason, private_data, now));
        Ok(())
    }
}

/// A connection that was not made: why, and the queue pair.
#[derive(Error)]
#[error("{cause}")]
pub struct NotConnected<B: Buffers = Buf> {
    /// The queue pair, in whatever state it got to. What was posted to it comes back after
    /// [`Qp::to_error`].
    pub qp: Box<Qp<B>>,
    /// Why there is no connection.
    pub cause: Box<CmError>,
}

impl<B: Buffers> NotConnected<B> {
    fn new(qp: Qp<B>, cause: CmError) -> Self {
        Self { qp: Box::new(qp), cause: Box::new(cause) }
    }
}

impl<B: Buffers> fmt::Debug for NotConnected<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotConnected")
            .field("qpn", &self.qp.qpn())
            .field("cause", &self.cause)
            .finish_non_exhaustive()
    }
}

/// A connection that is being made. Dropping it takes it back.
#[derive(Debug)]
#[must_use = "a connection that nobody waits for is taken back"]
pub struct Connecting<B: Buffers = Buf> {
    /// `None` once it was handed out. The peer is told before the queue pair goes.
    making: Option<(Held, Qp<B>)>,
}

impl<B: Buffers> Connecting<B> {
    /// Does what is due; the connection once it is made, or why it is not. `None` before and
    /// after.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn poll(&mut self) -> Option<Result<Connected<B>, NotConnected<B>>> {
        let (held, mut qp) = self.making.take()?;
        match held.step(&mut qp) {
            Ok(None) => {
                self.making = Some((held, qp));
                None
            }
            Ok(Some(terms)) => held.made(qp, &terms).map(Ok),
            Err(cause) => Some(Err(NotConnected::new(qp, cause))),
        }
    }

    /// Waits until the connection is made, or is not: each step that the other end is waited for
    /// takes [`CmLimits::patience`](super::CmLimits::patience) at most.
    ///
    /// # Errors
    ///
    /// [`NotConnected`] with the queue pair.
    pub fn wait(mut self) -> Result<Connected<B>, NotConnected<B>> {
        loop {
            if let Some(done) = self.wait_for(Duration::MAX) {
                return done;
            }
        }
    }

    /// Waits like [`Connecting::wait`]; `None` if nothing was decided within `limit`.
    pub fn wait_for(&mut self, limit: Duration) -> Option<Result<Connected<B>, NotConnected<B>>> {
        let manager = self.making.as_ref()?.0.manager.clone();
        manager.wait_for(limit, || self.poll())
    }
}

impl Held {
    /// One step; what was agreed once the connection is made.
    fn step<B: Buffers>(&self, qp: &mut Qp<B>) -> Result<Option<Terms>, CmError> {
        let mut inner = self.manager.lock();
        inner.progress();
        if let Some(end) = inner.engine.end_of(self.id) {
            return Err(end.clone().into());
        }
        let terms = inner.engine.conn(self.id).and_then(Terms::of);
        match inner.engine.state(self.id) {
            State::Established => return Ok(terms),
            State::RepRcvd | State::ReqRcvd => {}
            State::Ended | State::TimeWait => return Err(End::ByUs.into()),
            _ => return Ok(None),
        }
        let Some((terms, path)) = terms.zip(inner.path(self.id)?) else { return Ok(None) };
        // The queue pair's commands may step a model that wants the lock.
        drop(inner);
        let (rtr, rts) = terms.attributes(path);
        qp.connect(&rtr)?;
        qp.activate(&rts)?;
        let is_made = self.manager.with(|engine, now| {
            if terms.is_active {
                engine.establish(self.id)
            } else {
                engine.accept(self.id, now)
            };
            engine.state(self.id) == State::Established
        });
        Ok(is_made.then_some(terms))
    }

    fn made<B: Buffers>(self, qp: Qp<B>, terms: &Terms) -> Option<Connected<B>> {
        let inner = self.manager.lock();
        let conn = inner.engine.conn(self.id)?;
        let (peer, local) = (conn.peer(), conn.ends.local);
        let has_ended = Arc::clone(&conn.has_ended);
        drop(inner);
        let private_data = terms.private_data();
        let (responder_resources, initiator_depth) = terms.reads();
        let connection = Connection { held: self, peer, local, end: None, has_ended };
        Some(Connected { qp, connection, private_data, responder_resources, initiator_depth })
    }
}

/// A connection that was made.
#[derive(Debug)]
pub struct Connected<B: Buffers = Buf> {
    /// Its queue pair, ready to send.
    pub qp: Qp<B>,
    /// Its life: dropping this ends it.
    pub connection: Connection,
    /// Private data of the peer's program, filled up with zeros: 56 bytes of a request, 196 of an
    /// acceptance.
    pub private_data: Vec<u8>,
    /// READs and atomics of the peer that are served at a time.
    pub responder_resources: u8,
    /// READs and atomics that may be in flight.
    pub initiator_depth: u8,
}

/// The life of a connection. Dropping it ends the connection.
///
/// The queue pair does not know of the end: lead it to its error state with [`Qp::to_error`], and
/// what is posted comes back.
#[derive(Debug)]
pub struct Connection {
    held: Held,
    peer: SocketAddr,
    local: IpAddr,
    end: Option<End>,
    has_ended: Arc<AtomicBool>,
}

impl Connection {
    /// The peer: its address, and the port that it called from, or that was called.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Our address.
    #[must_use]
    pub fn local(&self) -> IpAddr {
        self.local
    }

    /// Whether the connection has ended, by what was received so far. It takes no lock and does
    /// nothing that is due: for those who have many connections, and call
    /// [`ConnectionManager::poll`] for all of them.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Does what is due; how the connection ended, once it has.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn poll(&mut self) -> Option<&End> {
        if self.end.is_none() {
            let mut inner = self.held.manager.lock();
            inner.progress();
            let engine = &inner.engine;
            if let State::TimeWait | State::Ended = engine.state(self.held.id) {
                self.end = Some(engine.end_of(self.held.id).cloned().unwrap_or(End::ByUs));
            }
        }
        self.end.as_ref()
    }

    /// Tells the peer that the connection ends, with at most 220 bytes for its program.
    /// [`Connection::poll`] says when the peer knows.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] for more bytes.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&mut self, private_data: &[u8]) -> Result<(), VerbsError> {
        VerbsError::range("bytes of private data", private_data.len() as u64, 0, DISCONNECT_BYTES)?;
        let id = self.held.id;
        self.held.manager.with(|engine, now| engine.disconnect(id, private_data, now));
        Ok(())
    }

    /// Waits until the connection has ended, by either end; `None` if it has not within `limit`.
    pub fn wait_for_end(&mut self, limit: Duration) -> Option<&End> {
        let manager = self.held.manager.clone();
        manager.wait_for(limit, || self.poll().is_some().then_some(()))?;
        self.end.as_ref()
    }
}
