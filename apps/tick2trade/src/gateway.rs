//! Order entry: a SoupBinTCP session over an [`OrderLine`], and what follows when either is lost.
//!
//! | state | what it means | how it ends |
//! |---|---|---|
//! | idle | nobody was asked: a snapshot is needed only when messages are lost | [`Gateway::begin`] |
//! | connecting | the TCP connection is being opened | it is open |
//! | logging in | the login went out | it is taken |
//! | replaying | the day's answers come; the exchange was asked for the next number | it answers |
//! | open | orders pass | the connection or the session ends |
//! | waiting | either ended | [`GatewayConfig::retry_ns`] pass: connecting |
//! | done | the exchange said that the day is over, or refused the login for good | - |
//! | closed | we logged out: [`Gateway::log_out`] | - |
//!
//! A login that is refused is tried again: the exchange may not have noticed yet that the last
//! session is over, of a program that was killed, too. It is refused for good when it was for
//! [`GatewayConfig::timeout_ms`], or, of somebody who was logged in here, for a minute.
//!
//! The first login is for what is new only: its answer says how many answers there are. If any of
//! them was not seen, another connection logs in for the first of those. What an earlier connection
//! was told about the next number is among them, and means nothing.
//!
//! The same session with a server of snapshots, [`GatewayConfig::is_snapshot`], stays in
//! "replaying" until the snapshot is whole, and is done then. A session that ends before is broken:
//! another is tried.
//!
//! No order passes before every answer of the day is known: so a program that was killed comes back
//! with the orders that it has, and sends none of them twice. What was sent and never arrived is
//! known by the next order's number, and is taken off. Source: reference 11.1.7, 1.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::SocketAddr;

use ferrocx::TxQueue;
use ferrocx_net::ether::MacAddr;
use ferrocx_net::packet::Packet;
use zerocopy::IntoBytes;

use crate::engine::{Engine, Snapshot};
use crate::order_line::OrderLine;
use crate::proto::Text;
use crate::proto::ouch::{AccountQuery, answers::AccountQueryAnswered};
use crate::proto::soup::{self, Client, ClientConfig, ClientEvent, Ended, ProtocolError, Splitter};
use crate::strategy::Strategy;
use crate::tcp::{self, Closed};

/// The longest packet that an exchange sends, letter and payload: no answer is near it.
const MAX_PACKET: usize = 1024;
/// Bytes of answers that come at once: a frame's, and what was kept behind a hole that it fills. No
/// more than the window that we offer.
const MAX_BYTES: usize = u16::MAX as usize;
/// Time between a login that was refused, of somebody who was logged in before, and the next, ns;
/// and how long they are refused before that is for good.
const REFUSED_NS: u64 = 1_000_000_000;
const REFUSED_LONG_NS: u64 = 60_000_000_000;
/// Tries, beside the first one, of somebody who was not: a wrong password is wrong each time.
const TRIES: u64 = 5;
/// Nanoseconds in a millisecond.
const MS: u64 = 1_000_000;
/// Ports that connections leave from, one after the other.
const PORTS: std::ops::Range<u16> = 40_000..60_000;

/// Where the exchange is, and who asks.
#[derive(Debug, Clone)]
pub struct GatewayConfig {
    /// Our station and address; the port is chosen for each connection.
    pub local: (MacAddr, SocketAddr),
    /// The exchange's order entry, and the station that leads to it.
    pub remote: (MacAddr, SocketAddr),
    /// The member.
    pub user: Text<6>,
    /// Its password.
    pub password: Text<10>,
    /// Time between the end of a connection and the next attempt, ns. Default 100 ms.
    pub retry_ns: u64,
    /// Silence of the exchange after which its connection counts as dead, and time for which a
    /// first login may be refused, ms. Default 15,000.
    pub timeout_ms: u64,
    /// It is a server of snapshots that is asked, for all of one.
    pub is_snapshot: bool,
}

/// Where order entry stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GatewayState {
    /// Nobody was asked yet.
    Idle,
    /// The TCP connection is being opened.
    Connecting,
    /// The login went out.
    LoggingIn,
    /// The day's answers come.
    Replaying,
    /// Orders pass.
    Open,
    /// The connection is gone; the next attempt comes at this time.
    Waiting(u64),
    /// It is over for today, and why.
    Done(Ended),
    /// We logged out; the connection may still be on its way to its end: [`Gateway::is_closed`].
    Closed,
}

/// What a gateway saw: connections, and why they were given up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GatewayStats {
    /// Connections that were started.
    pub connections: u64,
    /// The peer took no connection.
    pub refused: u64,
    /// The peer said that there is no such connection.
    pub reset: u64,
    /// The peer had no more to send, although the session was not over.
    pub closed: u64,
    /// Nothing was acknowledged, or said, for too long.
    pub silent: u64,
    /// The peer did what the protocol does not have, or lied about numbers: a
    /// [`ProtocolError`], or a snapshot without an end, or with one that cannot be.
    pub broken: u64,
    /// The login was refused.
    pub rejected: u64,
    /// The exchange lived, and did not answer a login, a query or a request for too long.
    pub unanswered: u64,
}

/// A counted message.
struct Counted<'a> {
    number: u64,
    payload: &'a [u8],
    /// It answers the query that this session began with: order entry opens.
    opens: bool,
}

/// Order entry on a send queue.
#[derive(Debug)]
pub struct Gateway {
    config: GatewayConfig,
    line: OrderLine,
    state: GatewayState,
    soup: Client,
    splitter: Splitter,
    /// Bytes that came at once.
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// The session and the first answer that was not seen.
    resume: (soup::Session, u64),
    /// One above the last answer that there was when this session began; `None` until it is known.
    end: Option<u64>,
    /// A login was taken.
    is_known: bool,
    /// Since when logins are refused.
    refused_ns: Option<u64>,
    key: RandomState,
    port: u16,
    /// When the session last came nearer to being open, before it is.
    progress_ns: u64,
    stats: GatewayStats,
}

impl Gateway {
    /// Starts to connect.
    ///
    /// # Errors
    /// A [`tcp::ConfigError`] for ends that are no pair.
    pub fn new(config: GatewayConfig, tx: TxQueue, now_ns: u64) -> Result<Self, tcp::ConfigError> {
        let mut gateway = Self::idle(config, tx, now_ns)?;
        gateway.begin(now_ns);
        Ok(gateway)
    }

    /// Has everything, and does nothing before [`Gateway::begin`].
    ///
    /// # Errors
    /// A [`tcp::ConfigError`] for ends that are no pair.
    pub fn idle(config: GatewayConfig, tx: TxQueue, now_ns: u64) -> Result<Self, tcp::ConfigError> {
        let key = RandomState::new();
        // Behind a restart the exchange may still remember the last connection's port.
        let port = PORTS.start + (key.hash_one(now_ns) % PORTS.len() as u64) as u16;
        let line = OrderLine::closed(connection(&config, port), tx, now_ns)?;
        let mut outbox = Vec::with_capacity(MAX_PACKET);
        // Replaced before it says anything.
        let soup = Client::new(ClientConfig::default(), now_ns, &mut outbox);
        outbox.clear();
        Ok(Self {
            config,
            line,
            state: GatewayState::Idle,
            soup,
            splitter: Splitter::new(MAX_PACKET),
            inbox: Vec::with_capacity(MAX_BYTES),
            outbox,
            resume: (Text::BLANK, 1),
            end: None,
            is_known: false,
            refused_ns: None,
            key,
            port,
            progress_ns: now_ns,
            stats: GatewayStats::default(),
        })
    }

    /// Connects, if it is idle or done: of a server of snapshots, for another one.
    pub fn begin(&mut self, now_ns: u64) {
        if self.is_resting() {
            self.connect(now_ns);
        }
    }

    /// Whether it waits for [`Gateway::begin`]: idle, or done in good order.
    pub const fn is_resting(&self) -> bool {
        matches!(self.state, GatewayState::Idle | GatewayState::Done(Ended::EndOfSession))
    }

    /// Where it stands.
    pub const fn state(&self) -> GatewayState {
        self.state
    }

    /// The way that orders leave by.
    pub const fn line(&mut self) -> &mut OrderLine {
        &mut self.line
    }

    /// What happened so far.
    pub const fn stats(&self) -> GatewayStats {
        self.stats
    }

    /// Number of the first answer that was not seen.
    pub const fn next_answer(&self) -> u64 {
        self.resume.1
    }

    /// Takes a frame of the connection, whose checksums are right.
    pub fn receive<S: Strategy>(
        &mut self,
        packet: &Packet<'_>,
        now_ns: u64,
        engine: &mut Engine<S>,
    ) {
        self.take(packet, now_ns, |line, answer| {
            match answer.opens {
                true => engine.resume(answer.payload, now_ns, line),
                false => engine.answer(answer.payload, now_ns, line),
            }
            Snapshot::GoesOn
        });
    }

    /// Takes a frame of the connection to a server of snapshots; with the last message of one the
    /// engine goes on with the feed, whose orders go to `outbox`, and the session ends.
    pub fn receive_snapshot<S: Strategy>(
        &mut self,
        packet: &Packet<'_>,
        now_ns: u64,
        engine: &mut Engine<S>,
        outbox: &mut OrderLine,
    ) {
        outbox.set_now(now_ns);
        self.take(packet, now_ns, |_, message| {
            engine.snapshot(message.number, message.payload, now_ns, outbox)
        });
    }

    /// Takes a frame; counted messages go to `counted`, with the line, until it says that it has
    /// all, or cannot go on.
    fn take(
        &mut self,
        packet: &Packet<'_>,
        now_ns: u64,
        mut counted: impl FnMut(&mut OrderLine, Counted<'_>) -> Snapshot,
    ) {
        // What comes behind the end of a session is of no use, and no end of another one; what
        // comes with it is heard.
        let is_over = matches!(self.state, GatewayState::Waiting(_) | GatewayState::Done(_));
        let Self { line, inbox, .. } = self;
        line.set_now(now_ns);
        inbox.clear();
        line.receive(packet, |bytes| inbox.extend_from_slice(bytes));
        self.follow(now_ns);
        if is_over {
            return;
        }
        let Self { line, inbox, splitter, soup, state, .. } = self;
        let mut input = &inbox[..];
        loop {
            let packet = match splitter.next(&mut input) {
                Ok(Some(packet)) => packet,
                Ok(None) => return,
                Err(_) if *state == GatewayState::Closed => return,
                Err(error) => return self.end(ProtocolError::from(error).into(), now_ns),
            };
            match soup.receive(packet, now_ns) {
                // Behind our logout it has only answers to tell.
                ClientEvent::LoggedIn { .. } | ClientEvent::Ended(_)
                    if *state == GatewayState::Closed =>
                {
                    return;
                }
                ClientEvent::LoggedIn { session, next } => {
                    *state = GatewayState::Replaying;
                    (self.is_known, self.refused_ns) = (true, None);
                    self.progress_ns = now_ns;
                    if self.config.is_snapshot {
                        continue;
                    }
                    self.resume.0 = session;
                    if self.end.is_none() {
                        self.end = Some(next);
                        if next != self.resume.1 {
                            // This session ends before the other begins.
                            self.outbox.clear();
                            soup.log_out(now_ns, &mut self.outbox);
                            line.send_bytes(&self.outbox);
                            return self.connect(now_ns);
                        }
                    }
                    let query = AccountQuery { kind: AccountQuery::KIND };
                    self.outbox.clear();
                    let is_asked = soup.send(query.as_bytes(), now_ns, &mut self.outbox)
                        && line.send_bytes(&self.outbox);
                    if !is_asked {
                        return self.give_up(now_ns);
                    }
                }
                ClientEvent::Sequenced { number, payload } => {
                    self.progress_ns = now_ns;
                    // A snapshot that broke off is worth nothing: the next one is asked for whole.
                    if !self.config.is_snapshot {
                        self.resume.1 = number.saturating_add(1);
                    }
                    let opens = payload.first() == Some(&AccountQueryAnswered::KIND)
                        && *state == GatewayState::Replaying
                        && self.end.is_some_and(|end| number >= end);
                    if opens {
                        *state = GatewayState::Open;
                        line.open(true);
                    }
                    match counted(line, Counted { number, payload, opens }) {
                        Snapshot::GoesOn => {}
                        Snapshot::Whole => return self.done(Ended::EndOfSession),
                        Snapshot::Broken => {
                            self.stats.broken += 1;
                            return self.wait(now_ns);
                        }
                    }
                }
                ClientEvent::Unsequenced(_) | ClientEvent::Alive => {}
                ClientEvent::Ended(ended) => return self.end(ended, now_ns),
            }
        }
    }

    /// Does what is due: sends again, beats, connects anew; returns whether anything was.
    pub fn poll(&mut self, now_ns: u64) -> bool {
        self.line.set_now(now_ns);
        let before = self.state;
        let is_sent = self.line.poll();
        self.follow(now_ns);
        let is_late =
            || now_ns.saturating_sub(self.progress_ns) >= self.config.timeout_ms.saturating_mul(MS);
        let mut is_said = false;
        match self.state {
            GatewayState::LoggingIn | GatewayState::Replaying if is_late() => self.give_up(now_ns),
            GatewayState::LoggingIn | GatewayState::Replaying | GatewayState::Open => {
                self.outbox.clear();
                if let Some(ended) = self.soup.poll(now_ns, &mut self.outbox) {
                    self.end(ended, now_ns);
                } else if !self.outbox.is_empty() {
                    is_said = self.line.send_bytes(&self.outbox);
                }
            }
            GatewayState::Waiting(until) if until <= now_ns => self.connect(now_ns),
            _ => {}
        }
        is_sent || is_said || self.state != before
    }

    /// Follows the state of the connection.
    fn follow(&mut self, now_ns: u64) {
        match (self.state, self.line.state()) {
            (GatewayState::Connecting, tcp::State::Established) => self.log_in(now_ns),
            (
                GatewayState::Idle
                | GatewayState::Waiting(_)
                | GatewayState::Done(_)
                | GatewayState::Closed,
                _,
            ) => {}
            // Answers that came with the end were delivered before.
            (_, tcp::State::CloseWait) => {
                self.stats.closed += 1;
                self.wait(now_ns);
            }
            (_, tcp::State::Closed(how)) => {
                *match how {
                    Closed::Refused => &mut self.stats.refused,
                    Closed::Reset => &mut self.stats.reset,
                    Closed::Silent => &mut self.stats.silent,
                    Closed::Done | Closed::Aborted => &mut self.stats.closed,
                } += 1;
                self.wait(now_ns);
            }
            _ => {}
        }
    }

    fn log_in(&mut self, now_ns: u64) {
        let config = ClientConfig {
            user: self.config.user,
            password: self.config.password,
            session: self.resume.0,
            next: match self.end {
                None if !self.config.is_snapshot => 0,
                _ => self.resume.1,
            },
            timeout_ms: self.config.timeout_ms,
            ..ClientConfig::default()
        };
        self.outbox.clear();
        self.soup = Client::new(config, now_ns, &mut self.outbox);
        self.splitter = Splitter::new(MAX_PACKET);
        self.state = GatewayState::LoggingIn;
        self.progress_ns = now_ns;
        if !self.line.send_bytes(&self.outbox) {
            self.give_up(now_ns);
        }
    }

    /// Gives the connection up, because the exchange does not answer on it, and makes another.
    pub fn give_up(&mut self, now_ns: u64) {
        self.stats.unanswered += 1;
        self.wait(now_ns);
    }

    /// Logs out and ends the connection in good order, behind everything that was sent. What was
    /// answered by then is still heard; nothing is connected again.
    pub fn log_out(&mut self, now_ns: u64) {
        self.line.set_now(now_ns);
        if matches!(
            self.state,
            GatewayState::LoggingIn | GatewayState::Replaying | GatewayState::Open
        ) {
            self.outbox.clear();
            self.soup.log_out(now_ns, &mut self.outbox);
            // On a connection that takes no more, its end alone has to do.
            self.line.send_bytes(&self.outbox);
        }
        self.line.open(false);
        self.line.close();
        self.state = GatewayState::Closed;
    }

    /// Whether no connection is there, and none will be.
    pub const fn is_closed(&self) -> bool {
        matches!(self.state, GatewayState::Closed)
            && matches!(self.line.state(), tcp::State::Closed(_))
    }

    /// The station that leads to the exchange from now on: a connection that runs goes on there,
    /// as when a router's spare takes its address over.
    pub fn set_station(&mut self, station: MacAddr) {
        self.config.remote.0 = station;
        self.line.set_station(station);
    }

    fn end(&mut self, ended: Ended, now_ns: u64) {
        match ended {
            // A snapshot that is whole ends otherwise.
            Ended::EndOfSession if self.config.is_snapshot => self.stats.broken += 1,
            Ended::EndOfSession => return self.done(ended),
            Ended::Rejected(_) => {
                self.stats.rejected += 1;
                let timeout_ns = self.config.timeout_ms.saturating_mul(MS);
                let (long_ns, pause_ns) = match self.is_known {
                    true => (REFUSED_LONG_NS, REFUSED_NS),
                    false => (timeout_ns, timeout_ns / TRIES),
                };
                let since_ns = *self.refused_ns.get_or_insert(now_ns);
                if now_ns.saturating_sub(since_ns) >= long_ns {
                    return self.done(ended);
                }
                return self.wait_for(pause_ns.max(self.config.retry_ns), now_ns);
            }
            Ended::Silent => self.stats.silent += 1,
            Ended::Protocol(_) => self.stats.broken += 1,
        }
        self.wait(now_ns);
    }

    fn done(&mut self, ended: Ended) {
        self.line.open(false);
        self.line.close();
        self.state = GatewayState::Done(ended);
    }

    fn wait(&mut self, now_ns: u64) {
        self.wait_for(self.config.retry_ns, now_ns);
    }

    fn wait_for(&mut self, pause_ns: u64, now_ns: u64) {
        self.line.open(false);
        self.line.close();
        self.end = None;
        self.state = GatewayState::Waiting(now_ns.saturating_add(pause_ns));
    }

    fn connect(&mut self, now_ns: u64) {
        self.port = if self.port + 1 < PORTS.end { self.port + 1 } else { PORTS.start };
        let tcp = connection(&self.config, self.port);
        let initial = tcp::initial_sequence(&self.key, tcp.local, tcp.remote, now_ns);
        self.stats.connections += 1;
        // The same ends as before: they were taken once.
        self.state = match self.line.reconnect(tcp, initial, now_ns) {
            Ok(()) => GatewayState::Connecting,
            Err(_) => GatewayState::Waiting(now_ns.saturating_add(self.config.retry_ns)),
        };
    }
}

fn connection(config: &GatewayConfig, port: u16) -> tcp::Config {
    let (mac, mut local) = config.local;
    local.set_port(port);
    tcp::Config {
        give_up_ns: config.timeout_ms.saturating_mul(MS),
        // Not in front of what an answer leads to: an order says it, or else the next poll does.
        ack_delay_ns: 1,
        ..tcp::Config::new((mac, local), config.remote)
    }
}

#[cfg(test)]
mod tests;
