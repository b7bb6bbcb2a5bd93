//! [`ConnId`]: a connection whose queue pair somebody else owns.

use std::net::SocketAddr;

use super::config::ConnParams;
use super::conn::{Answer, State};
use super::handles::{ConnRequest, Held};
use super::manager::{ACCEPTANCE_BYTES, CmError, ConnectionManager};
use super::reason::{End, RejectReason};
use super::terms::Terms;
use crate::qp::{RtrAttr, RtsAttr};
use crate::types::Qpn;

/// A connection without its queue pair: whoever owns that leads it through its states, by what
/// [`ConnId::attributes`] says. Dropping it ends, refuses or takes back the connection.
///
/// | end | steps |
/// |---|---|
/// | active | [`ConnectionManager::ask`]; when [`State::RepRcvd`], the attributes, [`ConnId::establish`] |
/// | passive | [`ConnRequest::into_id`]; the attributes, [`ConnId::accept`]; then [`State::Established`] |
#[derive(Debug)]
pub struct ConnId {
    held: Held,
    /// First packet number that the peer shall send to a passive end.
    psn: u32,
}

impl ConnectionManager {
    /// Asks a peer for a connection of queue pair `qpn`, from `source_port` or one that is free.
    ///
    /// # Errors
    ///
    /// [`CmError::Verbs`] for parameters out of range and a peer without route.
    #[doc(alias = "rdma_connect")]
    pub fn ask(
        &self,
        qpn: Qpn,
        peer: SocketAddr,
        source_port: Option<u16>,
        params: &ConnParams<'_>,
    ) -> Result<ConnId, CmError> {
        let request = self.request(qpn.0, peer, source_port, params)?;
        let id = self.with(|engine, now| engine.connect(&request, now));
        Ok(ConnId { held: Held { manager: self.clone(), id }, psn: request.psn })
    }
}

impl ConnRequest {
    /// The request without a queue pair, for one that somebody else owns.
    #[must_use]
    pub fn into_id(self) -> ConnId {
        let manager = self.held.manager.clone();
        let psn = manager.context().device().random() as u32 & 0xff_ffff;
        // What the peer wishes, until our program has decided.
        let params = ConnParams {
            responder_resources: u8::MAX,
            initiator_depth: u8::MAX,
            ..Default::default()
        };
        manager.with(|engine, _| engine.prepare(self.held.id, &Answer { qpn: 0, psn, params }));
        ConnId { held: self.held, psn }
    }

    /// The peer's queue pair.
    #[must_use]
    pub fn remote_qpn(&self) -> Qpn {
        Qpn(self.req.local_qpn())
    }

    /// Repetitions of a packet that the peer asks for when it is not acknowledged.
    #[must_use]
    pub fn retry_count(&self) -> u8 {
        self.req.retry_count() as u8
    }

    /// Repetitions of a packet that the peer asks for when no receive is posted.
    #[must_use]
    pub fn rnr_retry_count(&self) -> u8 {
        self.req.rnr_retry_count() as u8
    }
}

impl ConnId {
    /// State of the connection.
    #[must_use]
    pub fn state(&self) -> State {
        self.held.manager.lock().engine.state(self.held.id)
    }

    /// How it ended, if it has.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.held.manager.lock().engine.end_of(self.held.id).cloned()
    }

    fn terms(&self) -> Option<Terms> {
        self.held.manager.lock().engine.conn(self.held.id).and_then(Terms::of)
    }

    /// What the queue pair is to be set to for RTR and for RTS; `None` before the peer has said
    /// enough, and while its MAC address is asked for. Before [`ConnId::accept`], READs and atomics
    /// are what the peer wishes.
    ///
    /// # Errors
    ///
    /// [`CmError::Net`] when the peer cannot be reached.
    pub fn attributes(&self) -> Result<Option<(RtrAttr, RtsAttr)>, CmError> {
        let path = self.held.manager.lock().path(self.held.id)?;
        Ok(self.terms().zip(path).map(|(terms, path)| terms.attributes(path)))
    }

    /// What the peer's program has said, filled up with zeros: 56 bytes of a request, 196 of an
    /// acceptance; none before.
    #[must_use]
    pub fn private_data(&self) -> Vec<u8> {
        self.terms().map(|terms| terms.private_data()).unwrap_or_default()
    }

    /// The peer's queue pair; `None` before it has said so.
    #[must_use]
    pub fn remote_qpn(&self) -> Option<Qpn> {
        self.terms().map(|terms| terms.remote_qpn())
    }

    /// Repetitions of a packet that the peer asks for when no receive is posted; `None` before it
    /// has said so.
    #[must_use]
    pub fn rnr_retry_count(&self) -> Option<u8> {
        self.terms().map(|terms| terms.rnr_retry_count())
    }

    /// Says yes to a request, for a queue pair that is in RTR or RTS. Where both ends have a wish,
    /// the smaller one counts. `false` if the request does not wait for that any more.
    ///
    /// # Errors
    ///
    /// [`CmError::Verbs`] for parameters out of range.
    #[doc(alias = "rdma_accept")]
    pub fn accept(&self, qpn: Qpn, params: &ConnParams<'_>) -> Result<bool, CmError> {
        params.check(self.held.manager.context(), ACCEPTANCE_BYTES)?;
        let answer = Answer { qpn: qpn.0, psn: self.psn, params: *params };
        let id = self.held.id;
        Ok(self
            .held
            .manager
            .with(|engine, now| engine.prepare(id, &answer) && engine.accept(id, now)))
    }

    /// The queue pair of an active end is in RTS: tells the peer. `false` if that does not wait for
    /// it any more.
    #[doc(alias = "rdma_establish")]
    pub fn establish(&self) -> bool {
        self.held.manager.with(|engine, _| engine.establish(self.held.id))
    }

    /// Says no to a request, or to an acceptance, with at most 148 bytes for the peer's program;
    /// more are left out. [`RejectReason::CONSUMER_DEFINED`] is a program's own reason.
    #[doc(alias = "rdma_reject")]
    #[doc(alias = "rdma_reject_ece")]
    pub fn reject(&self, reason: RejectReason, private_data: &[u8]) {
        let id = self.held.id;
        self.held.manager.with(|engine, now| engine.reject(id, reason, private_data, now));
    }

    /// Tells the peer that the connection ends; the state says when it knows.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) {
        let id = self.held.id;
        self.held.manager.with(|engine, now| engine.disconnect(id, &[], now));
    }
}
