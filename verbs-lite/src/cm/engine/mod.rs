//! [`Engine`]: the connection manager's protocol, sans I/O. Messages, calls and the time come in;
//! messages and what became of connections go out.
//!
//! Source: IBTA vol. 1, 12.6 to 12.9; what Linux' `cm.c` does where the text leaves it open.

mod receive;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use ferrocx_prm::mad::{CmRep, CmReq};

use super::conn::{ABOUT_REP, ABOUT_REQ, Answer, Conn, Ends, Request, State, time_of};
use super::message::{Mad, Message};
use super::reason::{End, RejectReason};

/// How a peer is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineConfig {
    /// The peer shall answer within 4.096 us times 2 to this power, or is asked again: 0 to 31.
    pub response_timeout: u8,
    /// Repetitions of a message: 0 to 15.
    pub max_retries: u8,
    /// What a peer is told that asks again while our program has not decided: a code as above.
    pub service_timeout: u8,
    /// How long our acknowledgements take at most: a code as above.
    pub ack_delay: u8,
    /// Number of this device.
    pub guid: u64,
    /// Largest path MTU that the port takes: 1 is 256 bytes, 5 is 4096.
    pub max_mtu: u32,
    /// Where the numbers of connections start.
    pub first_id: u32,
}

/// A message to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Out {
    /// From where, to whom.
    pub ends: Ends,
    /// What.
    pub mad: Mad,
    /// The connection that it is about; `None` for answers about connections that are not there.
    pub id: Option<u32>,
}

/// Requests for one service that wait to be taken.
#[derive(Debug)]
struct Listener {
    backlog: usize,
    queue: VecDeque<u32>,
}

/// All connections of a port.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    conns: HashMap<u32, Conn>,
    /// By the peer's device and number, and by its device and queue pair.
    by_remote: HashMap<(u64, u32), u32>,
    by_qpn: HashMap<(u64, u32), u32>,
    listeners: HashMap<u64, Listener>,
    deadlines: BTreeSet<(Duration, u32)>,
    out: VecDeque<Out>,
    next_id: u32,
}

impl Engine {
    /// No connections.
    #[must_use]
    pub fn new(config: EngineConfig) -> Self {
        Self {
            conns: HashMap::new(),
            by_remote: HashMap::new(),
            by_qpn: HashMap::new(),
            listeners: HashMap::new(),
            deadlines: BTreeSet::new(),
            out: VecDeque::new(),
            next_id: config.first_id,
            config,
        }
    }

    /// Takes requests for a service from now on, up to `backlog` that nobody has taken. `false` if
    /// it does already.
    pub fn listen(&mut self, service_id: u64, backlog: usize) -> bool {
        if self.listeners.contains_key(&service_id) {
            return false;
        }
        let listener = Listener { backlog: backlog.max(1), queue: VecDeque::new() };
        self.listeners.insert(service_id, listener);
        true
    }

    /// Takes no more requests; those that nobody has taken are refused.
    pub fn unlisten(&mut self, service_id: u64, now: Duration) {
        let Some(listener) = self.listeners.remove(&service_id) else { return };
        for id in listener.queue {
            self.reject(id, RejectReason::INVALID_SERVICE_ID, &[], now);
            self.forget(id, now);
        }
    }

    /// The oldest request that nobody has taken.
    pub fn take_request(&mut self, service_id: u64) -> Option<u32> {
        let queue = &mut self.listeners.get_mut(&service_id)?.queue;
        let id = queue.pop_front()?;
        let conn = self.conns.get_mut(&id)?;
        (conn.is_queued, conn.is_held) = (false, true);
        Some(id)
    }

    /// The request of a connection.
    #[must_use]
    pub fn request(&self, id: u32) -> Option<&CmReq> {
        self.conns.get(&id)?.request.as_deref()
    }

    /// The acceptance of a peer.
    #[must_use]
    pub fn reply(&self, id: u32) -> Option<&CmRep> {
        self.conns.get(&id)?.reply.as_deref()
    }

    /// State of a connection; [`State::Ended`] of one that is not there.
    #[must_use]
    pub fn state(&self, id: u32) -> State {
        self.conns.get(&id).map_or(State::Ended, |conn| conn.state)
    }

    /// How a connection ended, if it has.
    #[must_use]
    pub fn end_of(&self, id: u32) -> Option<&End> {
        self.conns.get(&id)?.end.as_ref()
    }

    /// The peer of a connection, and its port or the one that was called.
    #[must_use]
    pub fn peer(&self, id: u32) -> Option<std::net::SocketAddr> {
        self.conns.get(&id).map(Conn::peer)
    }

    /// Addresses of a connection.
    #[must_use]
    pub fn ends(&self, id: u32) -> Option<Ends> {
        self.conns.get(&id).map(|conn| conn.ends)
    }

    /// Connections, those in time wait included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.conns.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.conns.is_empty()
    }

    /// The next message to send.
    pub fn next_out(&mut self) -> Option<Out> {
        self.out.pop_front()
    }

    /// When [`Engine::poll`] has something to do next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    fn new_id(&mut self) -> u32 {
        loop {
            let id = self.next_id;
            self.next_id = id.wrapping_add(1);
            if id != 0 && !self.conns.contains_key(&id) {
                return id;
            }
        }
    }

    /// Asks for a connection.
    pub fn connect(&mut self, request: &Request, now: Duration) -> u32 {
        let local_id = self.new_id();
        let mut conn = Conn {
            state: State::ReqSent,
            ends: request.ends,
            local_id,
            remote_id: 0,
            transaction_id: u64::from(self.config.first_id) << 32 | u64::from(local_id),
            service_id: super::conn::service_id(request.port),
            local_qpn: request.qpn,
            remote_qpn: 0,
            remote_guid: 0,
            pending: None,
            deadline: None,
            time_wait: time_of(request.ack_timeout.into()),
            request: None,
            reply: None,
            rtu: None,
            end: None,
            is_held: true,
            is_queued: false,
        };
        let (timeout, retries) = (self.config.response_timeout, self.config.max_retries);
        let req = conn.req(request, self.config.guid, timeout.into(), retries.into());
        conn.repeat(req, time_of(timeout.into()), retries, now);
        self.conns.insert(local_id, conn);
        self.send(local_id, req);
        self.reschedule(local_id, None);
        local_id
    }

    /// Says yes to a request. Nothing happens unless it still waits for that.
    pub fn accept(&mut self, id: u32, answer: &Answer, now: Duration) -> bool {
        let (guid, ack_delay) = (self.config.guid, self.config.ack_delay);
        let Some(conn) = self.conns.get_mut(&id) else { return false };
        let Some(req) = conn.request.as_deref().filter(|_| conn.state == State::ReqRcvd) else {
            return false;
        };
        let interval = time_of(req.local_cm_response_timeout());
        let retries = req.max_cm_retries() as u8;
        let before = conn.deadline;
        let rep = conn.rep(answer, guid, ack_delay.into());
        (conn.state, conn.local_qpn) = (State::RepSent, answer.qpn);
        conn.repeat(rep, interval, retries, now);
        self.send(id, rep);
        self.reschedule(id, before);
        true
    }

    /// Says no to a request, or to a reply.
    pub fn reject(&mut self, id: u32, reason: RejectReason, private: &[u8], now: Duration) {
        let Some(conn) = self.conns.get(&id) else { return };
        let about = match conn.state {
            State::ReqRcvd => ABOUT_REQ,
            State::RepRcvd => ABOUT_REP,
            _ => return,
        };
        let mad = conn.rej(about, reason, &[], private);
        self.send(id, mad);
        self.finish(id, End::ByUs, State::Ended, now);
    }

    /// The queue pair of an active end is ready: tells the peer.
    pub fn establish(&mut self, id: u32) -> bool {
        let Some(conn) = self.conns.get_mut(&id) else { return false };
        if conn.state != State::RepRcvd {
            return false;
        }
        conn.state = State::Established;
        let rtu = conn.rtu();
        conn.rtu = Some(rtu);
        self.send(id, rtu);
        true
    }

    /// Ends a connection, or takes back what was asked for.
    pub fn disconnect(&mut self, id: u32, private: &[u8], now: Duration) {
        let (timeout, retries) = (self.config.response_timeout, self.config.max_retries);
        let guid = self.config.guid;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        match conn.state {
            State::Established | State::RepSent => {
                let before = conn.deadline;
                let dreq = conn.dreq(private);
                conn.state = State::DreqSent;
                conn.repeat(dreq, time_of(timeout.into()), retries, now);
                self.send(id, dreq);
                self.reschedule(id, before);
            }
            State::ReqSent => {
                let ari = guid.to_be_bytes();
                let mad = conn.rej(ABOUT_REQ, RejectReason::TIMEOUT, &ari, &[]);
                self.send(id, mad);
                self.finish(id, End::ByUs, State::Ended, now);
            }
            State::ReqRcvd | State::RepRcvd => {
                self.reject(id, RejectReason::CONSUMER_DEFINED, private, now);
            }
            State::DreqSent | State::TimeWait | State::Ended => {}
        }
    }

    /// Nobody wants to know any more what becomes of a connection; it ends in good order.
    pub fn forget(&mut self, id: u32, now: Duration) {
        self.disconnect(id, &[], now);
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.is_held = false;
            if conn.state == State::Ended {
                self.remove(id);
            }
        }
    }

    /// Messages about a connection cannot be sent.
    pub fn unreachable(&mut self, id: u32, why: &str, now: Duration) {
        let Some(conn) = self.conns.get(&id) else { return };
        let next = match conn.state {
            State::ReqSent | State::ReqRcvd | State::RepRcvd => State::Ended,
            State::RepSent | State::DreqSent => State::TimeWait,
            State::Established | State::TimeWait | State::Ended => return,
        };
        self.finish(id, End::Unreachable { why: why.to_owned() }, next, now);
    }

    /// Repeats what was not answered in time, and ends what waited long enough.
    pub fn poll(&mut self, now: Duration) {
        while let Some(&(at, id)) = self.deadlines.first() {
            if at > now {
                break;
            }
            self.deadlines.pop_first();
            self.expired(id, at, now);
        }
    }

    fn expired(&mut self, id: u32, at: Duration, now: Duration) {
        let guid = self.config.guid;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.deadline = None;
        let state = conn.state;
        if let State::TimeWait = state {
            conn.state = State::Ended;
            if conn.is_held {
                self.unindex(id);
            } else {
                self.remove(id);
            }
            return;
        }
        let Some(pending) = &mut conn.pending else { return };
        if pending.left > 0 {
            pending.left -= 1;
            pending.sent += 1;
            let (mad, interval) = (pending.mad, pending.interval);
            conn.deadline = Some(now.max(at).saturating_add(interval));
            self.send(id, mad);
            self.reschedule(id, None);
            return;
        }
        let message = pending.mad.message.name();
        let (sent, after) = (pending.sent, now.saturating_sub(pending.since));
        if state == State::ReqSent {
            // Without a number of the peer's, it finds the connection by our device.
            let mad = conn.rej(ABOUT_REQ, RejectReason::TIMEOUT, &guid.to_be_bytes(), &[]);
            self.send(id, mad);
            self.finish(id, End::NoAnswer { message, sent, after }, State::Ended, now);
        } else {
            if state == State::RepSent {
                let mad = conn.rej(ABOUT_REP, RejectReason::TIMEOUT, &guid.to_be_bytes(), &[]);
                self.send(id, mad);
            }
            self.finish(id, End::NoAnswer { message, sent, after }, State::TimeWait, now);
        }
    }

    /// A connection has ended. How it ended first counts.
    fn finish(&mut self, id: u32, end: End, next: State, now: Duration) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.end.get_or_insert(end);
        conn.state = next;
        conn.pending = None;
        let before = conn.deadline.take();
        let was_queued = std::mem::take(&mut conn.is_queued);
        let service_id = conn.service_id;
        if next == State::TimeWait {
            conn.deadline = Some(now.saturating_add(conn.time_wait));
        }
        let is_held = conn.is_held;
        self.reschedule(id, before);
        if was_queued && let Some(listener) = self.listeners.get_mut(&service_id) {
            listener.queue.retain(|queued| *queued != id);
        }
        if next == State::Ended {
            self.unindex(id);
            if !is_held {
                self.remove(id);
            }
        }
    }

    /// Files the deadline of a connection, which was `before`.
    fn reschedule(&mut self, id: u32, before: Option<Duration>) {
        if let Some(before) = before {
            self.deadlines.remove(&(before, id));
        }
        if let Some(at) = self.conns.get(&id).and_then(|conn| conn.deadline) {
            self.deadlines.insert((at, id));
        }
    }

    /// The peer may use its numbers for another connection.
    fn unindex(&mut self, id: u32) {
        let Some(conn) = self.conns.get(&id) else { return };
        for (map, key) in [
            (&mut self.by_remote, (conn.remote_guid, conn.remote_id)),
            (&mut self.by_qpn, (conn.remote_guid, conn.remote_qpn)),
        ] {
            if map.get(&key) == Some(&id) {
                map.remove(&key);
            }
        }
    }

    fn remove(&mut self, id: u32) {
        self.unindex(id);
        if let Some(conn) = self.conns.remove(&id)
            && let Some(at) = conn.deadline
        {
            self.deadlines.remove(&(at, id));
        }
    }

    fn send(&mut self, id: u32, mad: Mad) {
        if let Some(conn) = self.conns.get(&id) {
            self.out.push_back(Out { ends: conn.ends, mad, id: Some(id) });
        }
    }

    /// Answers about something that is no connection here.
    fn reply_to(&mut self, ends: Ends, transaction_id: u64, message: Message) {
        self.out.push_back(Out { ends, mad: Mad { transaction_id, message }, id: None });
    }
}
