//! The least TCP that order entry needs: one connection, opened from here, sans I/O.
//!
//! Long file: one state machine, whose every transition is read beside the others.
//!
//! [`Client`] takes segments and the time, and gives segments and bytes. Source: RFC 9293, with
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

mod config;
mod reassembly;
mod segment;
mod sent;
#[cfg(test)]
mod tests;
mod timing;

use std::hash::BuildHasher;
use std::net::SocketAddr;

use config::check;
use reassembly::Reassembly;
use segment::{Fields, write};
use sent::{Flight, Sent};
use timing::Rtt;

pub use config::{Closed, Config, ConfigError, Refused, State, Stats, Template};
pub use segment::{ACK, FIN, HEADER_LEN, Header, PSH, RST, SYN, Segment, Seq, checksum_is_right};

/// Duplicate acknowledgments that tell of a loss. Source: RFC 5681, 3.2.
const DUPLICATES: u32 = 3;
/// The segment size of a peer that says none. Source: RFC 9293, 3.7.1.
const DEFAULT_MSS: u16 = 536;
/// Challenge acknowledgments at most in [`CHALLENGE_NS`]. Source: RFC 5961, 7.
const CHALLENGES: u32 = 10;
const CHALLENGE_NS: u64 = 1_000_000_000;

/// A connection that is opened from here. Sans I/O: segments and the time in; segments, ready with
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
    /// When the peer is asked for its window, that refused bytes.
    ask_window_at: Option<u64>,
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
            ask_window_at: None,
            ends_at: None,
            silent_since: now_ns,
            duplicates: 0,
            congestion_window: 0,
            slow_start_threshold: u32::MAX,
            recover: None,
            challenges: (now_ns, 0),
            scratch: Vec::with_capacity(HEADER_LEN + 4 + usize::from(config.max_segment)),
            payload: Vec::with_capacity(usize::from(config.max_segment)),
            stats: Stats::default(),
            config,
        };
        client.syn(now_ns, emit);
        Ok(client)
    }

    fn syn(&mut self, now_ns: u64, emit: impl FnMut(&[u8])) {
        self.resend_at = Some(now_ns + self.rtt.timeout_ns());
        let max_segment = Some(self.config.max_segment);
        self.emit(SYN, self.unacknowledged, max_segment, false, emit);
    }

    /// Sends bytes as one segment.
    ///
    /// # Errors
    /// A [`Refused`]; nothing was sent.
    pub fn send(
        &mut self,
        bytes: &[u8],
        now_ns: u64,
        emit: impl FnMut(&[u8]),
    ) -> Result<(), Refused> {
        self.may_send(bytes.len(), now_ns)?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.payload.clear();
        self.payload.extend(bytes);
        self.emit(ACK | PSH, self.next, None, true, emit);
        self.on_its_way(bytes, now_ns);
        Ok(())
    }

    /// What a segment that is built beside this has to hold now.
    #[inline]
    pub fn template(&self) -> Template {
        let open = matches!(self.state, State::Established | State::CloseWait) && !self.our_fin;
        let room = if open && self.sent.has_room(1) { self.room() } else { 0 };
        Template {
            sequence: self.next.0,
            acknowledgment: self.expected.0,
            window: self.config.window,
            room: room.min(u32::from(self.max_segment)) as usize,
        }
    }

    /// Takes note of a segment that was sent beside this, as [`Client::template`] said it.
    ///
    /// # Errors
    /// A [`Refused`] if the template allowed no such segment: it will not be repeated when lost.
    pub fn sent_beside(&mut self, bytes: &[u8], now_ns: u64) -> Result<(), Refused> {
        self.may_send(bytes.len(), now_ns)?;
        self.stats.sent += 1;
        self.ack_at = None;
        self.on_its_way(bytes, now_ns);
        Ok(())
    }

    fn may_send(&mut self, len: usize, now_ns: u64) -> Result<(), Refused> {
        if !matches!(self.state, State::Established | State::CloseWait) || self.our_fin {
            return Err(Refused::NotOpen);
        }
        if len > usize::from(self.max_segment) {
            return Err(Refused::TooLong(len));
        }
        if len > self.peer_room() as usize {
            // An update of the window may be lost: it is asked for.
            self.ask_window_at.get_or_insert(now_ns + self.rtt.timeout_ns());
            return Err(Refused::Window);
        }
        if len > self.room() as usize {
            return Err(Refused::Congestion);
        }
        if self.sent.has_room(len) { Ok(()) } else { Err(Refused::Unacknowledged) }
    }

    /// Bytes that the peer still takes.
    fn peer_room(&self) -> u32 {
        self.peer_window.saturating_sub(self.in_flight())
    }

    /// Bytes that peer and network still take.
    fn room(&self) -> u32 {
        self.peer_window.min(self.congestion_window).saturating_sub(self.in_flight())
    }

    const fn in_flight(&self) -> u32 {
        self.next.0.wrapping_sub(self.unacknowledged.0)
    }

    /// Bytes were sent at [`Self::next`].
    fn on_its_way(&mut self, bytes: &[u8], now_ns: u64) {
        let len = bytes.len() as u32;
        let flight = Flight { sequence: self.next, len, fin: false, sent_ns: now_ns, again: false };
        self.push(flight, bytes, now_ns);
    }

    fn push(&mut self, flight: Flight, bytes: &[u8], now_ns: u64) {
        if self.sent.is_empty() {
            self.silent_since = now_ns;
        }
        self.sent.push(flight, bytes);
        self.next = flight.end();
        self.resend_at.get_or_insert(now_ns + self.rtt.timeout_ns());
        self.probe_at = self
            .rtt
            .smoothed_ns()
            .map(|smoothed| now_ns + (2 * smoothed).max(self.config.min_probe_ns));
    }

    /// Says that there is no more to send. Bytes of the peer still come.
    pub fn close(&mut self, now_ns: u64, emit: impl FnMut(&[u8])) {
        self.state = match self.state {
            State::Established => State::FinWait,
            State::CloseWait => State::LastAck,
            State::SynSent => State::Closed(Closed::Aborted),
            _ => return,
        };
        if matches!(self.state, State::Closed(_)) {
            return;
        }
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
        (self.ask_window_at, self.ends_at) = (None, None);
    }

    /// Builds a segment at `sequence` with what [`Self::payload`] holds, or with nothing.
    fn emit(
        &mut self,
        flags: u8,
        sequence: Seq,
        max_segment: Option<u16>,
        with_payload: bool,
        mut emit: impl FnMut(&[u8]),
    ) {
        let fields = Fields {
            ports: (self.config.local.port(), self.config.remote.port()),
            sequence,
            acknowledgment: if flags & ACK == 0 { Seq(0) } else { self.expected },
            flags,
            window: self.config.window,
            max_segment,
        };
        let addresses = (self.config.local.ip(), self.config.remote.ip());
        let payload = if with_payload { &self.payload[..] } else { &[] };
        write(&fields, addresses, payload, &mut self.scratch);
        if flags & ACK != 0 {
            self.ack_at = None;
        }
        self.stats.sent += 1;
        emit(&self.scratch);
    }

    /// Takes a segment of the peer, whose checksum and addresses were looked at. Bytes that are
    /// next go to `deliver`, in order and once.
    #[inline]
    pub fn receive(
        &mut self,
        segment: &Segment<'_>,
        now_ns: u64,
        deliver: impl FnMut(&[u8]),
        emit: impl FnMut(&[u8]),
    ) {
        let ours = (self.config.remote.port(), self.config.local.port());
        if segment.ports() != ours || matches!(self.state, State::Closed(_)) {
            self.stats.refused += 1;
            return;
        }
        self.stats.received += 1;
        if self.state == State::SynSent {
            self.answered(segment, now_ns, emit);
        } else {
            self.arrived(segment, now_ns, deliver, emit);
        }
    }

    /// A segment before the connection is open. Source: RFC 9293, 3.10.7.3.
    fn answered(&mut self, segment: &Segment<'_>, now_ns: u64, mut emit: impl FnMut(&[u8])) {
        let acknowledged = segment.acknowledgment();
        if let Some(other) = acknowledged.filter(|&place| place != self.next) {
            self.stats.refused += 1;
            if !segment.has(RST) {
                self.emit(RST, other, None, false, emit);
            }
            return;
        }
        if segment.has(RST) {
            match acknowledged {
                Some(_) => self.end(Closed::Refused),
                None => self.stats.refused += 1,
            }
            return;
        }
        // Both ends at once (a SYN without ACK) is for peers that open, too: not this one's.
        if !segment.has(SYN) || acknowledged.is_none() {
            self.stats.refused += 1;
            return;
        }
        let mss = segment.max_segment().unwrap_or(DEFAULT_MSS).max(64);
        self.max_segment = mss.min(self.config.max_segment);
        self.expected = segment.sequence().add(1);
        self.unacknowledged = self.next;
        self.peer_window = segment.window();
        self.window_said = (segment.sequence(), self.next);
        // Source: RFC 6928, 2.
        self.congestion_window = 10 * u32::from(self.max_segment);
        if self.stats.timeouts == 0 {
            self.rtt.measured(now_ns.saturating_sub(self.silent_since));
        }
        (self.resend_at, self.silent_since) = (None, now_ns);
        self.state = State::Established;
        self.emit(ACK, self.next, None, false, &mut emit);
    }

    /// A segment of an open connection. Source: RFC 9293, 3.10.7.4; RFC 5961.
    fn arrived(
        &mut self,
        segment: &Segment<'_>,
        now_ns: u64,
        deliver: impl FnMut(&[u8]),
        mut emit: impl FnMut(&[u8]),
    ) {
        let sequence = segment.sequence();
        if !self.is_acceptable(segment) {
            if !segment.has(RST) {
                self.stats.refused += u64::from(segment.payload.is_empty());
                self.emit(ACK, self.next, None, false, emit);
            }
            return;
        }
        if segment.has(RST) {
            if self.state == State::TimeWait {
                // Late repetitions may provoke one. Source: RFC 1337, 3, first remedy.
                self.stats.refused += 1;
            } else if sequence == self.expected {
                self.end(Closed::Reset);
            } else {
                self.challenge(now_ns, emit);
            }
            return;
        }
        if segment.has(SYN) {
            self.challenge(now_ns, emit);
            return;
        }
        let Some(acknowledged) = segment.acknowledgment() else {
            self.stats.refused += 1;
            return;
        };
        // What was never sent, and what lies further back than any window. Source: RFC 5961, 5.
        let ahead = acknowledged.since(self.next) > 0;
        if ahead || self.unacknowledged.since(acknowledged) > i32::from(u16::MAX) {
            self.challenge(now_ns, emit);
            return;
        }
        self.acknowledged(segment, acknowledged, now_ns, &mut emit);
        if !matches!(self.state, State::Closed(_)) {
            self.take_payload(segment, now_ns, deliver);
            self.take_fin(now_ns);
        }
        if self.ack_at.is_some_and(|at| at <= now_ns) {
            self.emit(ACK, self.next, None, false, emit);
        }
    }

    /// Whether any of a segment lies in the window. Source: RFC 9293, 3.4, table 6.
    fn is_acceptable(&self, segment: &Segment<'_>) -> bool {
        let window = u32::from(self.config.window);
        let len = segment.payload.len() as u32 + u32::from(segment.has(FIN));
        let first = segment.sequence();
        match len {
            0 => first.within(self.expected, window),
            _ => {
                let last = first.add(len - 1);
                first.within(self.expected, window) || last.within(self.expected, window)
            }
        }
    }

    /// Answers what a stranger could have sent. Source: RFC 5961, 3 to 5.
    fn challenge(&mut self, now_ns: u64, emit: impl FnMut(&[u8])) {
        self.stats.refused += 1;
        let (since, count) = &mut self.challenges;
        if now_ns.saturating_sub(*since) >= CHALLENGE_NS {
            (*since, *count) = (now_ns, 0);
        }
        if *count < CHALLENGES {
            *count += 1;
            self.emit(ACK, self.next, None, false, emit);
        }
    }

    /// The peer has everything before `place`.
    fn acknowledged(
        &mut self,
        segment: &Segment<'_>,
        place: Seq,
        now_ns: u64,
        emit: &mut impl FnMut(&[u8]),
    ) {
        let window = segment.window();
        let newly = place.since(self.unacknowledged);
        if newly > 0 {
            let measured = self.sent.acknowledge(place);
            self.unacknowledged = place;
            (self.silent_since, self.duplicates) = (now_ns, 0);
            if let Some(sent_ns) = measured {
                self.rtt.measured(now_ns.saturating_sub(sent_ns));
            }
            self.grow(newly as u32, place, now_ns, emit);
            let flying = !self.sent.is_empty();
            self.resend_at = flying.then(|| now_ns + self.rtt.timeout_ns());
            self.probe_at = self.probe_at.filter(|_| flying);
            if self.our_fin && !flying {
                self.our_fin_is_known(now_ns);
            }
        } else if newly == 0
            && segment.payload.is_empty()
            && !segment.has(FIN)
            && window == self.peer_window
            && !self.sent.is_empty()
        {
            self.duplicates += 1;
            if self.duplicates == DUPLICATES && self.recover.is_none() {
                self.loss();
                self.recover = Some(self.next);
                self.stats.fast += 1;
                self.resend(false, now_ns, emit);
            }
        }
        // A window counts if it is not older than the one that is known. Source: RFC 9293,
        // 3.10.7.4.
        let (said_at, said_for) = self.window_said;
        let sequence = segment.sequence();
        let newer = said_at.before(sequence) || said_at == sequence && !place.before(said_for);
        if newly >= 0 && newer {
            (self.peer_window, self.window_said) = (window, (sequence, place));
            if self.peer_room() > 0 {
                self.ask_window_at = None;
            }
        }
    }

    /// The network took `newly` bytes. Source: RFC 5681, 3.1; RFC 6582, 3.2.
    fn grow(&mut self, newly: u32, place: Seq, now_ns: u64, emit: &mut impl FnMut(&[u8])) {
        let segment = u32::from(self.max_segment);
        match self.recover {
            Some(recover) if place.before(recover) => {
                // A part of what was lost came through: the next hole is the oldest segment.
                self.stats.fast += 1;
                self.resend(false, now_ns, emit);
            }
            Some(_) => {
                self.recover = None;
                self.congestion_window = self.slow_start_threshold;
            }
            None if self.congestion_window < self.slow_start_threshold => {
                self.congestion_window = self.congestion_window.saturating_add(newly.min(segment));
            }
            None => {
                let step = (segment * segment / self.congestion_window.max(1)).max(1);
                self.congestion_window = self.congestion_window.saturating_add(step);
            }
        }
    }

    /// Half of what is on its way is what the network takes. Source: RFC 5681, 3.1, equation 4.
    fn loss(&mut self) {
        let segment = u32::from(self.max_segment);
        self.slow_start_threshold = (self.in_flight() / 2).max(2 * segment);
        self.congestion_window = self.slow_start_threshold;
    }

    fn resend(&mut self, newest: bool, now_ns: u64, emit: impl FnMut(&[u8])) {
        if let Some(flight) = self.sent.resend(newest, now_ns, &mut self.payload) {
            let flags = if flight.fin { ACK | FIN } else { ACK | PSH };
            self.emit(flags, flight.sequence, None, true, emit);
        }
    }

    fn take_payload(&mut self, segment: &Segment<'_>, now_ns: u64, mut deliver: impl FnMut(&[u8])) {
        let open = matches!(self.state, State::Established | State::FinWait);
        let len = segment.payload.len() as u32;
        if segment.has(FIN) && open {
            self.peer_fin = self.peer_fin.or(Some(segment.sequence().add(len)));
        }
        if len == 0 {
            return;
        }
        self.ack_at.get_or_insert(now_ns + self.config.ack_delay_ns);
        if !open {
            return;
        }
        let distance = segment.sequence().since(self.expected);
        if distance > 0 {
            self.stats.out_of_order += 1;
            self.reassembly.insert(distance as usize, segment.payload);
            self.ack_at = Some(now_ns);
            return;
        }
        let fresh = segment.payload.get(distance.unsigned_abs() as usize..).unwrap_or(&[]);
        // No more than was offered.
        let fresh = &fresh[..fresh.len().min(usize::from(self.config.window))];
        if fresh.is_empty() {
            self.ack_at = Some(now_ns);
            return;
        }
        deliver(fresh);
        self.expected = self.expected.add(fresh.len() as u32);
        if self.state == State::FinWait {
            self.silent_since = now_ns;
        }
        if !self.reassembly.is_empty() {
            self.reassembly.advance(fresh.len());
            let more = self.reassembly.take(deliver);
            self.expected = self.expected.add(more as u32);
            // A hole was filled: the sender waits to hear it. Source: RFC 5681, 4.2.
            self.ack_at = Some(now_ns);
        }
    }

    /// The peer is done once all in front of its FIN has come.
    fn take_fin(&mut self, now_ns: u64) {
        if self.peer_fin != Some(self.expected) {
            return;
        }
        self.state = match self.state {
            State::Established => State::CloseWait,
            State::FinWait => {
                if self.sent.is_empty() {
                    self.ends_at = Some(now_ns + self.config.time_wait_ns);
                    State::TimeWait
                } else {
                    State::Closing
                }
            }
            _ => return,
        };
        self.expected = self.expected.add(1);
        self.ack_at = Some(now_ns);
    }

    /// The peer knows that we are done.
    fn our_fin_is_known(&mut self, now_ns: u64) {
        match self.state {
            State::LastAck => self.end(Closed::Done),
            State::Closing => {
                self.state = State::TimeWait;
                self.ends_at = Some(now_ns + self.config.time_wait_ns);
            }
            _ => {}
        }
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
            // A place that was acknowledged long ago: the peer has to say where it stands.
            self.ask_window_at = Some(now_ns + self.rtt.timeout_ns().max(1_000_000));
            let old = Seq(self.unacknowledged.0.wrapping_sub(1));
            self.emit(ACK, old, None, false, &mut emit);
        }
        if due(self.ack_at) {
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
            self.ask_window_at,
            self.ends_at,
            gives_up,
        ];
        timers.into_iter().flatten().min()
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
