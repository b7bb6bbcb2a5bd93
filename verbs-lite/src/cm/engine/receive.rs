//! What each message does.

use std::time::Duration;

use ferrocx_prm::mad::{CmDrep, CmDreq, CmMra, CmRej, CmRep, CmReq, CmRtu};

use super::super::conn::{
    ABOUT_REP, ABOUT_REQ, Conn, Ends, Remote, State, cma_header, drep, rej, time_of,
};
use super::super::message::{Mad, Message};
use super::super::reason::{End, RejectReason};
use super::{Engine, HALF_OPEN, count};

/// A peer may have one part of so many of a queue of requests that is full.
const SHARE: usize = 8;

impl Engine {
    /// Takes a message of a peer to which the way is known.
    pub fn receive(&mut self, ends: Ends, mad: &Mad, now: Duration) {
        self.receive_from(ends, mad, true, now);
    }

    /// Takes a message; `is_reached` says whether the way to its sender is known. Invented peers
    /// are never reached, so requests of those that are not wait apart: see [`Engine::unreached`].
    pub fn receive_from(&mut self, ends: Ends, mad: &Mad, is_reached: bool, now: Duration) {
        let transaction_id = mad.transaction_id;
        match &mad.message {
            Message::Req(req) => self.on_req(ends, transaction_id, (req, is_reached), now),
            Message::Rep(rep) => self.on_rep(ends, transaction_id, rep, now),
            Message::Rtu(rtu) => self.on_rtu(ends, rtu),
            Message::Rej(message) => self.on_rej(ends, message, now),
            Message::Mra(mra) => self.on_mra(ends, mra, now),
            Message::Dreq(dreq) => self.on_dreq(ends, transaction_id, dreq, now),
            Message::Drep(message) => self.on_drep(ends, message, now),
            Message::SidrReq(_) | Message::SidrRep(_) => {}
        }
    }

    /// The connection that a message between these addresses is about.
    fn between(&self, ends: Ends, id: u32) -> Option<&Conn> {
        self.conns.get(&id).filter(|conn| conn.ends == ends)
    }

    fn on_req(
        &mut self,
        ends: Ends,
        transaction_id: u64,
        (req, is_reached): (&CmReq, bool),
        now: Duration,
    ) {
        let (peer, guid) = (ends.remote, req.local_ca_guid());
        if let Some(&id) = self.by_remote.get(&(peer, guid, req.local_comm_id())) {
            return self.on_duplicate_req(id);
        }
        let refuse = |engine: &mut Self, reason, ari: &[u8]| {
            let message = rej((0, req.local_comm_id()), ABOUT_REQ, reason, ari, &[]);
            engine.reply_to(ends, transaction_id, message);
        };
        if let Some(&old) = self.by_qpn.get(&(peer, guid, req.local_qpn())) {
            refuse(self, RejectReason::STALE_CONNECTION, &[]);
            return self.stale(old, now);
        }
        let (mtu, max_mtu) = (req.path_packet_payload_mtu(), self.config.max_mtu);
        let Some(listener) = self.listeners.get(&req.service_id()) else {
            return refuse(self, RejectReason::INVALID_SERVICE_ID, &[]);
        };
        if req.transport_service_type() != 0 {
            return refuse(self, RejectReason::INVALID_TRANSPORT_TYPE, &[]);
        }
        if !(1..=max_mtu).contains(&mtu) {
            return refuse(self, RejectReason::INVALID_MTU, &[(max_mtu << 4) as u8]);
        }
        if cma_header(req).is_none() {
            return refuse(self, RejectReason::UNSUPPORTED, &[]);
        }
        let is_full = listener.queue.len() >= listener.backlog;
        let own = |id: &&u32| self.conns.get(id).is_some_and(|conn| conn.ends.remote == peer);
        let has_its_share = is_full
            && listener.queue.iter().filter(own).count() >= (listener.backlog / SHARE).max(1);
        if has_its_share || self.crowds[HALF_OPEN].is_full_for(peer) {
            count(&mut self.stats.refused, "half_open_per_peer");
            return refuse(self, RejectReason::NO_RESOURCES, &[]);
        }
        if is_full {
            let is_unreached = |id: &&u32| self.conns.get(id).is_some_and(|conn| !conn.is_reached);
            let unreached = listener.queue.iter().find(is_unreached);
            let oldest = if is_reached { listener.queue.front() } else { None };
            let Some(&crowded) = unreached.or(oldest) else {
                return count(&mut self.stats.pushed_out, "half_open");
            };
            self.push_out(crowded);
        }
        let id = self.new_id();
        let conn =
            Conn { is_stranger: true, is_reached, ..Conn::new(ends, id, transaction_id, *req) };
        self.conns.insert(id, conn);
        self.index(id);
        if let Some(listener) = self.listeners.get_mut(&req.service_id()) {
            listener.queue.push_back(id);
        }
        let over = now.saturating_add(self.config.cm.limits.patience);
        self.enter(id, State::ReqRcvd, Some(over));
    }

    /// Files a connection by the peer's numbers.
    fn index(&mut self, id: u32) {
        let Some(conn) = self.conns.get(&id) else { return };
        let Remote { guid, comm_id, qpn } = conn.remote();
        let peer = conn.ends.remote;
        self.by_remote.insert((peer, guid, comm_id), id);
        self.by_qpn.insert((peer, guid, qpn), id);
    }

    fn on_duplicate_req(&mut self, id: u32) {
        let service_timeout = self.config.cm.service_timeout.into();
        let Some(conn) = self.conns.get(&id) else { return };
        let answer = match conn.state {
            State::ReqRcvd => conn.mra(service_timeout),
            State::RepSent => match &conn.pending {
                Some(pending) => pending.mad,
                None => return,
            },
            State::TimeWait => conn.rej(ABOUT_REQ, RejectReason::STALE_CONNECTION, &[], &[]),
            _ => return,
        };
        self.send(id, answer);
    }

    /// A peer uses the queue pair of a connection anew.
    fn stale(&mut self, id: u32, now: Duration) {
        if matches!(self.state(id), State::Established | State::RepSent) {
            self.disconnect(id, &[], now);
            if let Some(conn) = self.conns.get_mut(&id) {
                conn.end = Some(End::Stale);
            }
        }
    }

    fn on_rep(&mut self, ends: Ends, transaction_id: u64, rep: &CmRep, now: Duration) {
        let id = rep.remote_comm_id();
        let refuse = |engine: &mut Self, reason| {
            let ids = (rep.remote_comm_id(), rep.local_comm_id());
            engine.reply_to(ends, transaction_id, rej(ids, ABOUT_REP, reason, &[], &[]));
        };
        let Some(conn) = self.between(ends, id) else {
            return refuse(self, RejectReason::INVALID_COMM_ID);
        };
        match conn.state {
            State::ReqSent => {}
            State::Established
                if conn.is_active && conn.remote().comm_id == rep.local_comm_id() =>
            {
                let rtu = conn.rtu();
                return self.send(id, rtu);
            }
            // Being readied, or ending: the answer is under way or of no use.
            _ => return,
        }
        let guid = rep.local_ca_guid();
        if let Some(&old) = self.by_qpn.get(&(ends.remote, guid, rep.local_qpn())) {
            refuse(self, RejectReason::STALE_CONNECTION);
            self.stale(old, now);
            let private_data = Box::default();
            let end = End::Rejected { reason: RejectReason::STALE_CONNECTION, private_data };
            return self.finish(id, end, State::Ended, now);
        }
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.pending = None;
        conn.reply = Some(Box::new(*rep));
        self.index(id);
        let over = now.saturating_add(self.config.cm.limits.patience);
        self.enter(id, State::RepRcvd, Some(over));
    }

    fn on_rtu(&mut self, ends: Ends, rtu: &CmRtu) {
        let id = rtu.remote_comm_id();
        if let Some(conn) = self.in_state(id, State::RepSent)
            && conn.ends == ends
            && conn.remote().comm_id == rtu.local_comm_id()
        {
            (conn.pending, conn.is_stranger) = (None, false);
            self.enter(id, State::Established, None);
        }
    }

    fn on_mra(&mut self, ends: Ends, mra: &CmMra, now: Duration) {
        let id = mra.remote_comm_id();
        let Some(conn) = self.between(ends, id) else { return };
        let is_about = match conn.state {
            State::ReqSent => mra.message_mraed() == ABOUT_REQ,
            State::RepSent => mra.message_mraed() == ABOUT_REP,
            _ => false,
        };
        let Some(pending) = conn.pending.as_ref().filter(|_| is_about) else { return };
        let wait = time_of(mra.service_timeout()).saturating_add(pending.interval);
        let over = pending.since.saturating_add(self.config.cm.limits.patience);
        self.enter(id, conn.state, Some(now.saturating_add(wait).min(over)));
    }

    fn on_rej(&mut self, ends: Ends, message: &CmRej, now: Duration) {
        let reason = RejectReason(message.reason() as u16);
        let mut id = message.remote_comm_id();
        if reason == RejectReason::TIMEOUT && !self.conns.contains_key(&id) {
            // The peer does not know our number, but its own device.
            let ari = message.ari();
            let guid = u64::from_be_bytes(*ari.first_chunk().unwrap_or(&[0; 8]));
            let key = (ends.remote, guid, message.local_comm_id());
            let Some(&known) = self.by_remote.get(&key) else { return };
            id = known;
        }
        let Some(conn) = self.between(ends, id) else { return };
        let knows_us = conn.remote().comm_id == message.local_comm_id();
        let next = match conn.state {
            // A queue pair number that is still in time wait over there is free later.
            State::ReqSent if reason == RejectReason::STALE_CONNECTION => {
                if conn.pending.as_ref().is_some_and(|pending| pending.left > 0) {
                    return;
                }
                State::Ended
            }
            State::ReqSent => State::Ended,
            State::ReqRcvd if knows_us => State::Ended,
            State::RepSent | State::RepRcvd | State::Established | State::DreqSent if knows_us => {
                State::TimeWait
            }
            _ => return,
        };
        let private_data = message.private_data().into();
        self.finish(id, End::Rejected { reason, private_data }, next, now);
    }

    fn on_dreq(&mut self, ends: Ends, transaction_id: u64, dreq: &CmDreq, now: Duration) {
        let id = dreq.remote_comm_id();
        let known =
            self.between(ends, id).filter(|conn| conn.remote().comm_id == dreq.local_comm_id());
        let Some(conn) = known else {
            return self.reply_to(ends, transaction_id, drep(dreq));
        };
        let answer = Mad { transaction_id, message: drep(dreq) };
        if dreq.remote_qpn_eecn() != conn.local_qpn() {
            return;
        }
        match conn.state {
            State::Established | State::RepSent | State::RepRcvd | State::DreqSent => {
                self.send(id, answer);
                let private_data = dreq.private_data().into();
                self.finish(id, End::ByPeer(private_data), State::TimeWait, now);
            }
            State::TimeWait | State::Ended => self.send(id, answer),
            State::ReqSent | State::ReqRcvd => {}
        }
    }

    fn on_drep(&mut self, ends: Ends, message: &CmDrep, now: Duration) {
        let id = message.remote_comm_id();
        let Some(conn) = self.between(ends, id) else { return };
        if conn.state == State::DreqSent && conn.remote().comm_id == message.local_comm_id() {
            self.finish(id, End::ByUs, State::TimeWait, now);
        }
    }
}
