//! What users hold: a listener, a request, a connection that is being made, and one that is made.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use thiserror::Error;

use super::conn::{Answer, Ends, Request, State, cma_header, service_id};
use super::manager::{ANSWER_BYTES, CmError, ConnParams, ConnectionManager, can_connect, random};
use super::reason::{End, RejectReason};
use crate::error::VerbsError;
use crate::gid::Path;
use crate::mr::{Buf, Buffers};
use crate::qp::{Qp, QpState, RtrAttr, RtsAttr};
use crate::types::{Mtu, Psn, Qpn};

use ferrocx_prm::Layout;
use ferrocx_prm::mad::{CmRep, CmReq, CmaHeader};

/// Takes requests for connections to a port, until it is dropped.
#[derive(Debug)]
pub struct CmListener {
    manager: ConnectionManager,
    port: u16,
}

impl ConnectionManager {
    /// Takes requests for connections to a port, at every address, from now on. Up to 128 of them
    /// wait; more are refused.
    ///
    /// # Errors
    ///
    /// [`CmError::PortInUse`]; [`CmError::Verbs`] for port 0.
    #[doc(alias = "rdma_listen")]
    pub fn listen(&self, port: u16) -> Result<CmListener, CmError> {
        VerbsError::range("port", port.into(), 1, u16::MAX.into())?;
        if !self.lock().engine.listen(service_id(port), 128) {
            return Err(CmError::PortInUse { port });
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
        let request = can_connect(&qp).and_then(|()| self.request(qp.qpn().0, peer, params));
        match request {
            Ok(request) => {
                let mut inner = self.lock();
                let now = inner.now();
                let id = inner.engine.connect(&request, now);
                inner.progress();
                drop(inner);
                Ok(Connecting::active(self.clone(), id, qp, request))
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
        let mut inner = self.manager.lock();
        inner.progress();
        let id = inner.engine.take_request(service_id(self.port))?;
        let req = *inner.engine.request(id)?;
        let ends = inner.engine.ends(id)?;
        drop(inner);
        Some(ConnRequest {
            manager: self.manager.clone(),
            id,
            ends,
            req: Box::new(req),
            taken: false,
        })
    }

    /// Waits for a request.
    ///
    /// # Errors
    ///
    /// None so far; the connection manager does not fail as a whole.
    pub fn wait(&mut self) -> Result<ConnRequest, CmError> {
        loop {
            if let Some(request) = self.poll() {
                return Ok(request);
            }
            self.manager.turn();
        }
    }
}

impl Drop for CmListener {
    fn drop(&mut self) {
        let mut inner = self.manager.lock();
        let now = inner.now();
        inner.engine.unlisten(service_id(self.port), now);
        inner.progress();
    }
}

/// A peer wants a connection: accept or reject it. Dropping it rejects it.
#[derive(Debug)]
pub struct ConnRequest {
    manager: ConnectionManager,
    id: u32,
    ends: Ends,
    req: Box<CmReq>,
    taken: bool,
}

impl ConnRequest {
    /// Who asks.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        let port = cma_header(&self.req).map_or(0, |header| header.port() as u16);
        SocketAddr::new(self.ends.remote, port)
    }

    /// Private data of the peer's program: 56 bytes, filled up with zeros.
    #[must_use]
    pub fn private_data(&self) -> Vec<u8> {
        self.req.private_data()[CmaHeader::SIZE_BYTES..].to_vec()
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
        mut self,
        qp: Qp<B>,
        params: &ConnParams<'_>,
    ) -> Result<Connecting<B>, NotConnected<B>> {
        let checked = params.check(&self.manager.lock().context, ANSWER_BYTES);
        if let Err(cause) = checked.and_then(|()| can_connect(&qp)) {
            return Err(NotConnected::new(qp, cause));
        }
        self.taken = true;
        let req = &self.req;
        let own = |mine: u8, theirs: u32| mine.min(theirs as u8);
        let answer = Answer {
            qpn: qp.qpn().0,
            psn: random() as u32 & 0xff_ffff,
            responder_resources: own(params.responder_resources, req.initiator_depth()),
            initiator_depth: own(params.initiator_depth, req.responder_resources()),
            rnr_retry_count: params.rnr_retry_count,
            private_data: params.private_data.to_vec(),
        };
        Ok(Connecting {
            manager: self.manager.clone(),
            id: self.id,
            ends: self.ends,
            qp: Some(qp),
            role: Role::Passive { req: self.req.clone(), answer },
            is_made: false,
        })
    }

    /// Says no: reason "consumer defined", and at most 148 bytes for the peer's program.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] for more; then nothing is said yet and dropping says no.
    #[doc(alias = "rdma_reject")]
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), VerbsError> {
        VerbsError::range("bytes of private data", private_data.len() as u64, 0, 148)?;
        self.say_no(private_data);
        Ok(())
    }

    fn say_no(&mut self, private_data: &[u8]) {
        self.taken = true;
        let mut inner = self.manager.lock();
        let now = inner.now();
        inner.engine.reject(self.id, RejectReason::CONSUMER_DEFINED, private_data, now);
        inner.engine.forget(self.id, now);
        inner.progress();
    }
}

impl Drop for ConnRequest {
    fn drop(&mut self) {
        if !self.taken {
            self.say_no(&[]);
        }
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

#[derive(Debug)]
enum Role {
    Active { request: Request },
    Passive { req: Box<CmReq>, answer: Answer },
}

/// A connection that is being made. Dropping it takes it back.
#[derive(Debug)]
#[must_use = "a connection that nobody waits for is taken back"]
pub struct Connecting<B: Buffers = Buf> {
    manager: ConnectionManager,
    id: u32,
    ends: Ends,
    /// `None` once it was handed out.
    qp: Option<Qp<B>>,
    role: Role,
    /// A [`Connection`] has taken over.
    is_made: bool,
}

/// Parameters of the connection, once both ends have said theirs.
struct Terms {
    remote_qpn: u32,
    /// The number that the peer was told to start with, and the one that it told us.
    recv_psn: u32,
    send_psn: u32,
    mtu: u32,
    serves: u8,
    timeout: u8,
    retry_count: u8,
    rnr_retry: u8,
    starts: u8,
}

impl<B: Buffers> Connecting<B> {
    fn active(manager: ConnectionManager, id: u32, qp: Qp<B>, request: Request) -> Self {
        let (ends, role) = (request.ends, Role::Active { request });
        Self { manager, id, ends, qp: Some(qp), role, is_made: false }
    }

    /// Does what is due; the connection once it is made, or why it is not. `None` before and
    /// after.
    pub fn poll(&mut self) -> Option<Result<Connected<B>, NotConnected<B>>> {
        self.qp.as_ref()?;
        match self.step() {
            Ok(false) => None,
            Ok(true) => self.hand_out().map(Ok),
            Err(cause) => {
                let qp = self.qp.take()?;
                Some(Err(NotConnected::new(qp, cause)))
            }
        }
    }

    /// Waits until the connection is made, or is not.
    ///
    /// # Errors
    ///
    /// [`NotConnected`] with the queue pair.
    pub fn wait(mut self) -> Result<Connected<B>, NotConnected<B>> {
        loop {
            if let Some(done) = self.poll() {
                return done;
            }
            self.manager.turn();
        }
    }

    /// One step; whether the connection is made.
    fn step(&mut self) -> Result<bool, CmError> {
        let mut inner = self.manager.lock();
        inner.progress();
        let state = inner.engine.state(self.id);
        if let Some(end) = inner.engine.end_of(self.id) {
            return Err(end.clone().into());
        }
        let ready = match (&self.role, state) {
            (Role::Active { .. }, State::RepRcvd) | (Role::Passive { .. }, State::ReqRcvd) => true,
            (_, State::Established) => return Ok(self.is_ready()),
            (_, State::Ended | State::TimeWait) => return Err(End::ByUs.into()),
            _ => false,
        };
        if !ready {
            return Ok(false);
        }
        let Some(path) = inner.path(self.ends)? else { return Ok(false) };
        let terms = match &self.role {
            Role::Active { request } => match inner.engine.reply(self.id) {
                Some(rep) => active_terms(request, rep),
                None => return Ok(false),
            },
            Role::Passive { req, answer } => passive_terms(req, answer),
        };
        // The queue pair's commands may step a model that wants the lock.
        drop(inner);
        self.ready(&terms, path)?;
        let mut inner = self.manager.lock();
        let now = inner.now();
        match &self.role {
            Role::Active { .. } => inner.engine.establish(self.id),
            Role::Passive { answer, .. } => inner.engine.accept(self.id, answer, now),
        };
        inner.progress();
        Ok(inner.engine.state(self.id) == State::Established)
    }

    /// Whether the queue pair is in RTS.
    fn is_ready(&self) -> bool {
        self.qp.as_ref().is_some_and(|qp| qp.state() == QpState::Rts)
    }

    /// Leads the queue pair to RTS.
    fn ready(&mut self, terms: &Terms, path: Path) -> Result<(), CmError> {
        let Some(qp) = &mut self.qp else { return Ok(()) };
        let mtu = Mtu::from_code(terms.mtu).unwrap_or(Mtu::B256);
        let rtr = RtrAttr {
            max_dest_rd_atomic: terms.serves,
            ..RtrAttr::new(path, Qpn(terms.remote_qpn), Psn(terms.recv_psn), mtu)
        };
        let rts = RtsAttr {
            timeout: terms.timeout,
            retry_count: terms.retry_count,
            rnr_retry: terms.rnr_retry,
            max_rd_atomic: terms.starts,
            ..RtsAttr::new(Psn(terms.send_psn))
        };
        qp.connect(&rtr)?;
        Ok(qp.activate(&rts)?)
    }

    fn hand_out(&mut self) -> Option<Connected<B>> {
        let qp = self.qp.take()?;
        let inner = self.manager.lock();
        let (serves, starts, private_data) = match &self.role {
            Role::Active { request } => {
                let rep = inner.engine.reply(self.id)?;
                let terms = active_terms(request, rep);
                (terms.serves, terms.starts, rep.private_data().to_vec())
            }
            Role::Passive { req, answer } => {
                let private_data = req.private_data()[CmaHeader::SIZE_BYTES..].to_vec();
                (answer.responder_resources, answer.initiator_depth, private_data)
            }
        };
        let peer = inner.engine.peer(self.id)?;
        drop(inner);
        self.is_made = true;
        let local = self.ends.local;
        let connection =
            Connection { manager: self.manager.clone(), id: self.id, peer, local, end: None };
        Some(Connected {
            qp,
            connection,
            private_data,
            responder_resources: serves,
            initiator_depth: starts,
        })
    }
}

impl<B: Buffers> Drop for Connecting<B> {
    fn drop(&mut self) {
        if !self.is_made {
            let mut inner = self.manager.lock();
            let now = inner.now();
            inner.engine.forget(self.id, now);
            inner.progress();
        }
    }
}

/// Parameters of the caller's queue pair. Source: IBTA vol. 1, 12.7; Linux `cm_rep_handler`.
fn active_terms(request: &Request, rep: &CmRep) -> Terms {
    Terms {
        remote_qpn: rep.local_qpn(),
        recv_psn: request.psn,
        send_psn: rep.starting_psn(),
        mtu: request.mtu,
        serves: request.responder_resources,
        timeout: request.ack_timeout.max(rep.target_ack_delay() as u8 + 1).min(31),
        retry_count: request.retry_count,
        rnr_retry: rep.rnr_retry_count() as u8,
        starts: request.initiator_depth.min(rep.responder_resources() as u8),
    }
}

/// Parameters of the called end's queue pair. Source: IBTA vol. 1, 12.7; Linux `cm_req_handler`.
fn passive_terms(req: &CmReq, answer: &Answer) -> Terms {
    Terms {
        remote_qpn: req.local_qpn(),
        recv_psn: answer.psn,
        send_psn: req.starting_psn(),
        mtu: req.path_packet_payload_mtu(),
        serves: answer.responder_resources,
        timeout: req.primary_local_ack_timeout() as u8,
        retry_count: req.retry_count() as u8,
        rnr_retry: req.rnr_retry_count() as u8,
        starts: answer.initiator_depth,
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
    manager: ConnectionManager,
    id: u32,
    peer: SocketAddr,
    local: std::net::IpAddr,
    end: Option<End>,
}

impl Connection {
    /// The peer: its address, and the port that it called from, or that was called.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Our address.
    #[must_use]
    pub fn local(&self) -> std::net::IpAddr {
        self.local
    }

    /// Does what is due; how the connection ended, once it has.
    pub fn poll(&mut self) -> Option<&End> {
        if self.end.is_none() {
            let mut inner = self.manager.lock();
            inner.progress();
            self.end = match inner.engine.state(self.id) {
                State::TimeWait | State::Ended => {
                    Some(inner.engine.end_of(self.id).cloned().unwrap_or(End::ByUs))
                }
                _ => None,
            };
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
        VerbsError::range("bytes of private data", private_data.len() as u64, 0, 220)?;
        let mut inner = self.manager.lock();
        let now = inner.now();
        inner.engine.disconnect(self.id, private_data, now);
        inner.progress();
        Ok(())
    }

    /// Waits until the connection has ended, by either end; `None` if it has not within `limit`.
    pub fn wait_for_end(&mut self, limit: Duration) -> Option<&End> {
        let start = Instant::now();
        while self.poll().is_none() && start.elapsed() < limit {
            self.manager.turn();
        }
        self.end.as_ref()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut inner = self.manager.lock();
        let now = inner.now();
        inner.engine.forget(self.id, now);
        inner.progress();
    }
}
