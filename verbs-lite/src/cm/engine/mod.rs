//! [`Engine`]: the connection manager's protocol, sans I/O. Messages, calls and the time come in;
//! messages and what became of connections go out.
//!
//! Source: IBTA vol. 1, 12.6 to 12.9; what Linux' `cm.c` does where the text leaves it open.

mod crowd;
mod receive;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use self::crowd::Crowd;
use super::config::{CmConfig, CmLimitStats, count};
use super::conn::{
    ABOUT_REP, ABOUT_REQ, Answer, Conn, Ends, Pending, Remote, Request, State, rep, req, time_of,
};
use super::message::{Mad, Message};
use super::reason::{End, RejectReason};
use super::turn::Turn;

/// The end of the protocol that an engine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineConfig {
    /// How peers are spoken to.
    pub cm: CmConfig,
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
    /// Nobody here wants to reach the receiver of himself.
    pub is_stranger: bool,
}

/// A peer's address and device, and a number that it gave.
type PeerKey = (IpAddr, u64, u32);

/// Where connections that peers ask for wait to be made, and where ended ones are forgotten.
const HALF_OPEN: usize = 0;
const ENDING: usize = 1;

/// The crowd that connections in a state belong to.
fn crowd_of(state: State) -> Option<usize> {
    match state {
        State::ReqRcvd | State::RepSent => Some(HALF_OPEN),
        State::DreqSent | State::TimeWait => Some(ENDING),
        State::ReqSent | State::RepRcvd | State::Established | State::Ended => None,
    }
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
    /// By the peer's number of the connection, and by its queue pair.
    by_remote: HashMap<PeerKey, u32>,
    by_qpn: HashMap<PeerKey, u32>,
    crowds: [Crowd; 2],
    listeners: HashMap<u64, Listener>,
    deadlines: BTreeSet<(Duration, u32)>,
    out: VecDeque<Out>,
    next_id: u32,
    /// Requests that were handed out to have their peers reached.
    sought: Turn,
    stats: CmLimitStats,
}

impl Engine {
    /// No connections.
    #[must_use]
    pub fn new(config: EngineConfig) -> Self {
        let limits = &config.cm.limits;
        Self {
            conns: HashMap::new(),
            by_remote: HashMap::new(),
            by_qpn: HashMap::new(),
            listeners: HashMap::new(),
            deadlines: BTreeSet::new(),
            out: VecDeque::new(),
            next_id: config.first_id,
            sought: Turn::default(),
            crowds: [
                Crowd::new(limits.half_open, limits.half_open_per_peer),
                Crowd::new(limits.ending, limits.ending_per_peer),
            ],
            stats: CmLimitStats::default(),
            config,
        }
    }

    /// Takes requests for a service from now on, up to `backlog` that nobody has taken. `false` if
    /// it does already. When the queue is full, a peer that has an eighth of it is refused, and the
    /// request of any other takes the place of the oldest whose peer is not reached, or else of the
    /// oldest, if its own peer is.
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

    /// The oldest request that nobody has taken, of a peer that is reached.
    pub fn take_request(&mut self, service_id: u64) -> Option<u32> {
        let (queue, conns) = (&mut self.listeners.get_mut(&service_id)?.queue, &self.conns);
        let is_reached = |id: &u32| conns.get(id).is_some_and(|conn| conn.is_reached);
        let at = queue.iter().position(is_reached)?;
        let id = queue.remove(at)?;
        self.conns.get_mut(&id)?.is_held = true;
        Some(id)
    }

    /// Some of the requests whose peers are not reached, in turn, to be tried again:
    /// [`Engine::reached`] and [`Engine::unreachable`] say how that went.
    pub fn unreached(&mut self, most: usize) -> Vec<(u32, Ends)> {
        let queued = self.listeners.values().flat_map(|listener| &listener.queue);
        let conns = queued.filter_map(|id| Some((*id, self.conns.get(id)?)));
        let unreached = conns.filter(|(_, conn)| !conn.is_reached);
        let all = unreached.map(|(id, conn)| (id, conn.ends)).collect();
        self.sought.next_of(all, most)
    }

    /// The way to the peer of a request is known: the request can be taken.
    pub fn reached(&mut self, id: u32) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.is_reached = true;
        }
    }

    /// What is known of a connection.
    pub(super) fn conn(&self, id: u32) -> Option<&Conn> {
        self.conns.get(&id)
    }

    /// Whether a message that could not be sent yet is still of use: what asks for something is not
    /// once nobody here waits for the answer.
    pub(super) fn wants(&self, id: u32, message: &Message) -> bool {
        let state = self.conns.get(&id).map_or(State::Ended, |conn| conn.state);
        match message {
            Message::Rej(_) | Message::Drep(_) => true,
            Message::Dreq(_) => state == State::DreqSent,
            _ => !matches!(state, State::TimeWait | State::Ended),
        }
    }

    /// How often limits were reached so far.
    #[must_use]
    pub fn limit_stats(&self) -> CmLimitStats {
        self.stats
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

    /// Connections, those in time wait included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.conns.len()
    }

    /// Connections that are half open, and that are ending or remembered.
    #[cfg(test)]
    pub(super) fn crowd_lens(&self) -> (usize, usize) {
        (self.crowds[HALF_OPEN].len(), self.crowds[ENDING].len())
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
    pub fn connect(&mut self, request: &Request<'_>, now: Duration) -> u32 {
        let id = self.new_id();
        let cm_req = req(id, request, &self.config.cm, self.config.guid);
        let transaction_id = u64::from(self.config.first_id) << 32 | u64::from(id);
        let conn = Conn {
            is_active: true,
            is_held: true,
            ..Conn::new(request.ends, id, transaction_id, cm_req)
        };
        let mad = conn.mad(Message::Req(cm_req));
        self.conns.insert(id, conn);
        self.ask(id, State::ReqSent, mad, now);
        id
    }

    /// Makes the acceptance of a request, which [`Engine::accept`] sends: `false` if the request
    /// does not wait for that.
    pub fn prepare(&mut self, id: u32, answer: &Answer<'_>) -> bool {
        let guid = self.config.guid;
        let Some(conn) = self.in_state(id, State::ReqRcvd) else { return false };
        conn.reply = Some(Box::new(rep(id, &conn.request, answer, guid)));
        true
    }

    /// Says yes to a request with the acceptance that was prepared. Nothing happens unless the
    /// request still waits for that.
    pub fn accept(&mut self, id: u32, now: Duration) -> bool {
        let least = self.config.cm.response_timeout;
        let Some(conn) = self.in_state(id, State::ReqRcvd) else { return false };
        let Some(rep) = conn.reply.as_deref() else { return false };
        let mad = conn.mad(Message::Rep(*rep));
        // A peer that wants to be asked more often than ours does not make us do so.
        let code = conn.request.local_cm_response_timeout();
        let retries = conn.request.max_cm_retries() as u8;
        let interval = time_of(code.max(least.into()));
        self.repeat(id, State::RepSent, mad, (interval, retries), now);
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
        let Some(conn) = self.in_state(id, State::RepRcvd) else { return false };
        let rtu = conn.rtu();
        self.send(id, rtu);
        self.enter(id, State::Established, None);
        true
    }

    /// Ends a connection, or takes back what was asked for.
    pub fn disconnect(&mut self, id: u32, private: &[u8], now: Duration) {
        let Some(conn) = self.conns.get(&id) else { return };
        match conn.state {
            State::Established | State::RepSent => {
                let dreq = conn.dreq(private);
                self.ask(id, State::DreqSent, dreq, now);
            }
            State::ReqSent => {
                self.send_timeout(id, ABOUT_REQ);
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
                self.conns.remove(&id);
            }
        }
    }

    /// Messages about a connection cannot be sent.
    pub fn unreachable(&mut self, id: u32, why: &str, now: Duration) {
        let next = match self.state(id) {
            State::ReqSent | State::ReqRcvd | State::RepRcvd => State::Ended,
            State::RepSent | State::DreqSent => State::TimeWait,
            State::Established | State::TimeWait | State::Ended => return,
        };
        self.finish(id, End::Unreachable(why.to_owned()), next, now);
    }

    /// Repeats what was not answered in time, and ends what waited long enough.
    pub fn poll(&mut self, now: Duration) {
        while let Some(&(at, id)) = self.deadlines.first()
            && at <= now
        {
            self.deadlines.pop_first();
            self.expired(id, now);
        }
    }

    fn expired(&mut self, id: u32, now: Duration) {
        let patience = self.config.cm.limits.patience;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let state = conn.state;
        let (end, next) = match &mut conn.pending {
            Some(pending) => {
                let over = pending.since.saturating_add(patience);
                if pending.left > 0 && now < over {
                    pending.left -= 1;
                    pending.sent += 1;
                    let (mad, next) = (pending.mad, now.saturating_add(pending.interval));
                    self.send(id, mad);
                    return self.enter(id, state, Some(next.min(over)));
                }
                let (sent, after) = (pending.sent, now.saturating_sub(pending.since));
                let end = End::NoAnswer { message: pending.mad.message.name(), sent, after };
                let is_begun = state != State::ReqSent;
                (end, if is_begun { State::TimeWait } else { State::Ended })
            }
            None if state == State::TimeWait => return self.enter(id, State::Ended, None),
            None => {
                (End::GivenUp("nobody went on with it within CmLimits::patience"), State::Ended)
            }
        };
        if crowd_of(state) == Some(HALF_OPEN) {
            count(&mut self.stats.timed_out, "patience");
        }
        match state {
            State::ReqSent | State::ReqRcvd => self.send_timeout(id, ABOUT_REQ),
            State::RepSent | State::RepRcvd => self.send_timeout(id, ABOUT_REP),
            _ => {}
        }
        self.finish(id, end, next, now);
    }

    /// A connection has ended. How it ended first counts.
    fn finish(&mut self, id: u32, end: End, next: State, now: Duration) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.end.get_or_insert(end);
        conn.pending = None;
        let time_wait = conn.time_wait().min(self.config.cm.limits.time_wait);
        let over = (next == State::TimeWait).then(|| now.saturating_add(time_wait));
        if !conn.is_held
            && let Some(listener) = self.listeners.get_mut(&conn.request.service_id())
        {
            listener.queue.retain(|queued| *queued != id);
        }
        self.enter(id, next, over);
    }

    /// Moves a connection on, to be looked at again at `deadline`.
    fn enter(&mut self, id: u32, state: State, deadline: Option<Duration>) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (was, is) = (crowd_of(conn.state), crowd_of(state));
        conn.state = state;
        if matches!(state, State::TimeWait | State::Ended) {
            conn.has_ended.store(true, Ordering::Release);
        }
        if let Some(before) = std::mem::replace(&mut conn.deadline, deadline) {
            self.deadlines.remove(&(before, id));
        }
        self.deadlines.extend(deadline.map(|at| (at, id)));
        let peer = conn.ends.remote;
        let mut crowded = None;
        if was != is {
            if let Some((crowd, turn)) = was.zip(conn.turn.take()) {
                self.crowds[crowd].remove(peer, turn);
            }
            if let Some(crowd) = is {
                let (turn, oldest) = self.crowds[crowd].add(peer, id);
                (conn.turn, crowded) = (Some(turn), oldest);
            }
        }
        if state == State::Ended {
            // The peer may use its numbers for another connection.
            let Remote { guid, comm_id, qpn } = conn.remote();
            for (map, number) in [(&mut self.by_remote, comm_id), (&mut self.by_qpn, qpn)] {
                if map.get(&(peer, guid, number)) == Some(&id) {
                    map.remove(&(peer, guid, number));
                }
            }
            if !conn.is_held {
                self.conns.remove(&id);
            }
        }
        if let Some(oldest) = crowded {
            self.push_out(oldest);
        }
    }

    /// A connection makes room for a younger one. Its peer is not told: it asks again, or it was
    /// never there.
    fn push_out(&mut self, id: u32) {
        match crowd_of(self.state(id)) {
            Some(HALF_OPEN) => count(&mut self.stats.pushed_out, "half_open"),
            _ => count(&mut self.stats.forgotten, "ending"),
        }
        let end = End::GivenUp("too many others were half open or ending at a time, see CmLimits");
        // What has ended does not look at the time.
        self.finish(id, end, State::Ended, Duration::ZERO);
    }

    /// A connection, if it is in that state.
    fn in_state(&mut self, id: u32, state: State) -> Option<&mut Conn> {
        self.conns.get_mut(&id).filter(|conn| conn.state == state)
    }

    /// Sends a message of ours until it is answered.
    fn ask(&mut self, id: u32, state: State, mad: Mad, now: Duration) {
        let cm = &self.config.cm;
        let often = (time_of(cm.response_timeout.into()), cm.max_retries);
        self.repeat(id, state, mad, often, now);
    }

    /// Sends a message, and again after each interval, until it is answered.
    fn repeat(
        &mut self,
        id: u32,
        state: State,
        mad: Mad,
        (interval, left): (Duration, u8),
        now: Duration,
    ) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.pending = Some(Pending { mad, interval, sent: 1, left, since: now });
        }
        self.send(id, mad);
        let wait = interval.min(self.config.cm.limits.patience);
        self.enter(id, state, Some(now.saturating_add(wait)));
    }

    /// Says that waiting is over. Without a number of the peer's, it finds the connection by our
    /// device.
    fn send_timeout(&mut self, id: u32, about: u32) {
        if let Some(conn) = self.conns.get(&id) {
            let guid = self.config.guid.to_be_bytes();
            self.send(id, conn.rej(about, RejectReason::TIMEOUT, &guid, &[]));
        }
    }

    fn send(&mut self, id: u32, mad: Mad) {
        if let Some(conn) = self.conns.get(&id) {
            let (ends, is_stranger) = (conn.ends, conn.is_stranger);
            self.out.push_back(Out { ends, mad, id: Some(id), is_stranger });
        }
    }

    /// Answers about something that is no connection here.
    fn reply_to(&mut self, ends: Ends, transaction_id: u64, message: Message) {
        let mad = Mad { transaction_id, message };
        self.out.push_back(Out { ends, mad, id: None, is_stranger: true });
    }
}
