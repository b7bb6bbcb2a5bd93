//! The least TCP that order entry needs: one connection, opened from here, sans I/O.
//!
//! [`Client`] takes frames and the time, and gives frames and bytes. Source: RFC 9293, with
//! RFC 6298 (timeouts), RFC 5681 and 6582 (congestion), RFC 8985, 7.2 (tail probe), RFC 5961
//! (challenge acknowledgments).
//!
//! What order entry asks for and sockets do not give:
//! - **A lone lost order is found soon.** [`Config::min_timeout_ns`] may be a few round trips, and
//!   a tail probe repeats the last segment before that.
//! - **Nothing waits in a hidden queue.** [`Client::send`] puts bytes on the wire or says why not.
//! - **A segment can be built beforehand.** [`Client::template`] says what its header has to hold
//!   now, and [`Client::sent_beside`] takes note of what went out past this.
//!
//! # What it does not do
//! It accepts no connections, and has no window scale, timestamps, selective acknowledgments,
//! Nagle's algorithm, urgent data or keep-alives: what it talks to sends heartbeats of its own.
//!
//! # States
//!
//! | from | to | when |
//! |---|---|---|
//! | `SynSent` | `Established` | SYN and ACK came |
//! | `Established` | `FinWait` | [`Client::close`] |
//! | `Established` | `CloseWait` | the peer has no more to send |
//! | `CloseWait` | `LastAck` | [`Client::close`] |
//! | `FinWait` | `TimeWait` | the peer is done, too: [`Config::time_wait_ns`] to go |
//! | `FinWait` | `Closing` | the same, and the peer has not heard of our end |
//! | `Closing` | `TimeWait` | it has |
//! | any | `Closed` | all of it acknowledged, or see [`Closed`] |
//!
//! # Limits
//!
//! | what | limit |
//! |---|---|
//! | bytes sent and not acknowledged | [`Config::send_bytes`] |
//! | segments of them | [`Config::send_segments`] |
//! | window offered to the peer | [`Config::window`], at most 65,535 |
//! | pieces kept in front of a hole | 8 |
//! | answers to segments that a stranger could have sent | 10 a second |
//! | acknowledgments of what came again, beside those | 10 a second |

mod config;
mod reassembly;
mod receiving;
mod sending;
mod sent;
mod seq;
#[cfg(test)]
mod tests;
mod timing;

use std::hash::BuildHasher;
use std::net::SocketAddr;

use config::check;
use ferrocx_net::ether::MacAddr;
use ferrocx_net::packet::tcp::{ACK, FIN, PSH, RST, SYN};
use reassembly::Reassembly;
use sent::{Flight, Sent};
use timing::Rtt;

pub use config::{Closed, Config, ConfigError, Refused, State, Stats, Template};
pub use seq::Seq;

/// Duplicate acknowledgments that tell of a loss. Source: RFC 5681, 3.2.
const DUPLICATES: u32 = 3;
/// The segment size of a peer that says none. Source: RFC 9293, 3.7.1.
const DEFAULT_MSS: u16 = 536;
/// Answers at most to what a stranger could have sent, in [`CHALLENGE_NS`]. Source: RFC 5961, 7.
const CHALLENGES: u32 = 10;
const CHALLENGE_NS: u64 = 1_000_000_000;
/// Bytes in front of a payload at most: Ethernet, a VLAN tag, IPv6, TCP and its option.
const MAX_HEADERS: usize = 14 + 4 + 40 + 24;

/// A connection that is opened from here. Sans I/O: frames and the time in; frames, ready with
/// their checksums, and bytes out. Nothing is allocated after [`Client::connect`].
///
/// Times are nanoseconds of any clock that does not go back.
#[derive(Debug)]
pub struct Client {
    config: Config,
    state: State,
    /// Oldest place that is not acknowledged.
    unacknowledged: Seq,
    /// Next place to send.
    next: Seq,
    /// The peer's window, and the segment that said it.
    peer_window: u32,
    window_said: (Seq, Seq),
    max_segment: u16,
    /// Next place expected of the peer.
    expected: Seq,
    reassembly: Reassembly,
    /// The peer's FIN is at this place.
    peer_fin: Option<Seq>,
    our_fin: bool,
    sent: Sent,
    rtt: Rtt,
    /// When something unacknowledged is due to be sent again.
    resend_at: Option<u64>,
    probe_at: Option<u64>,
    /// When an acknowledgment is due.
    ack_at: Option<u64>,
    /// When another is due to a peer that may have missed the last ones.
    repeat_ack_at: Option<u64>,
    /// When the peer is asked for its window, that refused bytes, and how long after the last time.
    ask_window_at: Option<u64>,
    ask_window_ns: u64,
    ends_at: Option<u64>,
    /// Since when nothing was acknowledged.
    silent_since: u64,
    duplicates: u32,
    congestion_window: u32,
    slow_start_threshold: u32,
    /// Losses before this place are those that are being repaired.
    recover: Option<Seq>,
    challenges: (u64, u32),
    scratch: Vec<u8>,
    payload: Vec<u8>,
    stats: Stats,
}

/// The place where a connection starts its numbers: a keyed hash of its ends, and a clock of 4 us.
/// Source: RFC 6528, 3.
pub fn initial_sequence(
    key: &impl BuildHasher,
    local: SocketAddr,
    remote: SocketAddr,
    now_ns: u64,
) -> Seq {
    Seq((key.hash_one((local, remote)) as u32).wrapping_add((now_ns / 4_000) as u32))
}

impl Client {
    /// Starts a connection at the place `initial`, see [`initial_sequence`]; its SYN goes to
    /// `emit`.
    ///
    /// # Errors
    /// A [`ConfigError`] for a value out of its range.
    pub fn connect(
        config: Config,
        initial: Seq,
        now_ns: u64,
        emit: impl FnMut(&[u8]),
    ) -> Result<Self, ConfigError> {
        check(&config)?;
        let mut client = Self {
            state: State::SynSent,
            unacknowledged: initial,
            next: initial.add(1),
            peer_window: 0,
            window_said: (Seq(0), Seq(0)),
            max_segment: config.max_segment,
            expected: Seq(0),
            reassembly: Reassembly::new(usize::from(config.window)),
            peer_fin: None,
            our_fin: false,
            sent: Sent::new(config.send_bytes, config.send_segments),
            rtt: Rtt::new(config.initial_timeout_ns, config.min_timeout_ns, config.max_timeout_ns),
            resend_at: None,
            probe_at: None,
            ack_at: None,
            repeat_ack_at: None,
            ask_window_at: None,
            ask_window_ns: 0,
            ends_at: None,
            silent_since: now_ns,
            duplicates: 0,
            congestion_window: 0,
            slow_start_threshold: u32::MAX,
            recover: None,
            challenges: (now_ns, 0),
            scratch: Vec::with_capacity(MAX_HEADERS + usize::from(config.max_segment)),
            payload: Vec::with_capacity(usize::from(config.max_segment)),
            stats: Stats::default(),
            config,
        };
        client.syn(now_ns, emit);
        Ok(client)
    }

    /// Says that there is no more to send. Bytes of the peer still come.
    pub fn close(&mut self, now_ns: u64, emit: impl FnMut(&[u8])) {
        self.state = match self.state {
            State::Established => State::FinWait,
            State::CloseWait => State::LastAck,
            State::SynSent => return self.end(Closed::Aborted),
            _ => return,
        };
        self.emit(ACK | FIN, self.next, None, false, emit);
        self.our_fin = true;
        let (sequence, sent_ns) = (self.next, now_ns);
        self.push(Flight { sequence, len: 0, fin: true, sent_ns, again: false }, &[], now_ns);
    }

    /// Ends the connection at once; the peer is told by a RST.
    pub fn abort(&mut self, emit: impl FnMut(&[u8])) {
        if !matches!(self.state, State::Closed(_) | State::SynSent) {
            self.emit(ACK | RST, self.next, None, false, emit);
        }
        self.end(Closed::Aborted);
    }

    fn end(&mut self, how: Closed) {
        self.state = State::Closed(how);
        (self.resend_at, self.probe_at, self.ack_at) = (None, None, None);
        (self.repeat_ack_at, self.ask_window_at, self.ends_at) = (None, None, None);
    }

    /// Whether the peer owes us something: an answer, or its end after ours.
    fn is_waiting(&self) -> bool {
        matches!(self.state, State::SynSent | State::FinWait) || !self.sent.is_empty()
    }

    /// Does what is due: sends again, probes, acknowledges, gives up.
    pub fn poll(&mut self, now_ns: u64, mut emit: impl FnMut(&[u8])) {
        let due = |at: Option<u64>| at.is_some_and(|at| at <= now_ns);
        if due(self.ends_at) {
            self.end(Closed::Done);
        }
        let waiting = self.is_waiting();
        let silent = now_ns.saturating_sub(self.silent_since) >= self.config.give_up_ns;
        if waiting && silent && !matches!(self.state, State::Closed(_)) {
            if self.state != State::SynSent {
                self.emit(ACK | RST, self.next, None, false, &mut emit);
            }
            self.end(Closed::Silent);
        }
        if due(self.probe_at) {
            self.probe_at = None;
            self.stats.probes += 1;
            self.resend(true, now_ns, &mut emit);
        }
        if due(self.resend_at) {
            self.stats.timeouts += 1;
            self.rtt.back_off();
            if self.state == State::SynSent {
                self.syn(now_ns, &mut emit);
            } else {
                // Source: RFC 5681, 3.1; everything on its way counts as lost.
                self.loss();
                self.congestion_window = u32::from(self.max_segment);
                self.recover = Some(self.next).filter(|_| self.sent.len() > 1);
                (self.duplicates, self.probe_at) = (0, None);
                self.resend_at = Some(now_ns + self.rtt.timeout_ns());
                self.resend(false, now_ns, &mut emit);
            }
        }
        if due(self.ask_window_at) {
            // A place that was acknowledged long ago: the peer has to say where it stands. Each
            // time later. Source: RFC 9293, 3.8.6.1.
            self.ask_window_ns = (2 * self.ask_window_ns).min(self.config.max_timeout_ns);
            self.ask_window_at = Some(now_ns + self.ask_window_ns);
            let old = Seq(self.unacknowledged.0.wrapping_sub(1));
            self.emit(ACK, old, None, false, &mut emit);
        }
        if due(self.ack_at) || due(self.repeat_ack_at) {
            self.emit(ACK, self.next, None, false, emit);
        }
    }

    /// When [`Client::poll`] has something to do, if nothing comes before.
    pub fn poll_at(&self) -> Option<u64> {
        let gives_up =
            self.is_waiting().then(|| self.silent_since.saturating_add(self.config.give_up_ns));
        let timers = [
            self.resend_at,
            self.probe_at,
            self.ack_at,
            self.repeat_ack_at,
            self.ask_window_at,
            self.ends_at,
            gives_up,
        ];
        timers.into_iter().flatten().min()
    }

    /// The peer is reached by another station from now on: what is sent, and sent again, goes
    /// there.
    pub const fn set_station(&mut self, station: MacAddr) {
        self.config.remote_mac = station;
    }

    /// Its ends, and its patience.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Where the connection stands.
    pub const fn state(&self) -> State {
        self.state
    }

    /// The largest payload of one segment.
    pub const fn max_segment(&self) -> u16 {
        self.max_segment
    }

    /// Bytes that were sent and are not acknowledged.
    pub const fn unacknowledged(&self) -> u32 {
        self.in_flight()
    }

    /// What happened so far.
    pub const fn stats(&self) -> Stats {
        self.stats
    }
}
