//! One stream of messages out of two lines that each lose some: A, B and what is asked for again.
//!
//! [`Arbiter`] takes packets of MoldUDP64 from any line and gives every message once, in its order.
//! Both lines carry the same numbers, so it looks at numbers of messages and never at packets: a
//! packet whose first half came by the other line yields its second half.
//!
//! | state | what it means | how it ends |
//! |---|---|---|
//! | in order | the next message is the newest known | one ahead of it opens a gap |
//! | gap, waiting | the other line may bring it | it comes, or [`ArbiterConfig::wait_ns`] pass |
//! | gap, asked | a request is out, [`ArbiterConfig::pace_ns`] behind the last at the soonest | it comes, or the request is repeated |
//! | gap, given up | [`ArbiterConfig::attempts`] requests brought nothing | [`Event::Lost`] |
//! | in doubt | the same, of what one packet alone spoke of | a line goes on without it, or an answer brings it |
//! | holding | who joins late, or lost messages, waits for a snapshot | [`Arbiter::start_at`] |
//! | silent | nothing said where the feed is for [`ArbiterConfig::silence_ns`] | a packet does |
//!
//! In order, and not silent, the stream is live ([`Arbiter::is_live`]): what was delivered is all
//! that the feed has said. In every other state it is behind. Packets of what was delivered before
//! say nothing of where the feed is: a line that is late, or repeats itself, is as good as silent.
//!
//! One packet alone ends nothing, for it may be a stray one, or damaged where no checksum sees it.
//! Where a feed is that is held, two packets say that lie no further apart than
//! [`ArbiterConfig::max_jump`], or one and the end of a snapshot. What one says of numbers ahead is
//! asked for, and given up only when a second one has said that the feed is there, while nothing of
//! the feed came in between; an end that it says holds until another message comes, or another
//! session. That begins behind the end of this one, or when this one is silent for
//! [`ArbiterConfig::silence_ns`] and both lines, or three packets, speak of the other. What a
//! message says is believed as it came first: nothing of the feed is signed. An answer to a request
//! brings messages that are missing, and nothing else: it says neither that the feed lives nor how
//! far it is.
//!
//! What is ahead of a gap is kept in a ring of [`ArbiterConfig::window`] messages, allocated at the
//! start. What does not fit into it is not kept, and is asked for again when its turn comes.
//!
//! # Example
//! ```
//! use ferrocx_tick2trade::feed::{Arbiter, ArbiterConfig, Event, Source};
//! use ferrocx_tick2trade::proto::{Text, mold};
//!
//! let mut bytes = [0; 64];
//! let mut builder = mold::Builder::new(&mut bytes, Text::new("TODAY").unwrap(), 1).unwrap();
//! assert!(builder.push(b"hello"));
//! let packet = mold::Packet::parse(builder.finish()).unwrap();
//!
//! let mut arbiter = Arbiter::new(ArbiterConfig::default()).unwrap();
//! let mut heard = 0;
//! for line in [Source::A, Source::B] {
//!     arbiter.receive(line, &packet, 0, |event| {
//!         assert_eq!(event, Event::Message { number: 1, bytes: b"hello" });
//!         heard += 1;
//!     });
//! }
//! assert_eq!(heard, 1);
//! ```

mod config;
mod gaps;
mod sessions;
mod stats;
#[cfg(test)]
mod tests;
mod window;

use std::ops::Range;

use zerocopy::IntoBytes;

use crate::proto::mold::{self, Packet, PacketKind, Session};

pub use config::{ArbiterConfig, ConfigError, Start};
use gaps::Gap;
use sessions::Stranger;
pub use stats::{ArbiterStats, LineStats};
use window::Window;

/// Where a packet came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Source {
    /// The first line.
    A,
    /// The second line.
    B,
    /// The answer to a request.
    Retransmission,
}

/// What an [`Arbiter`] says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// The next message.
    Message {
        /// Its number.
        number: u64,
        /// The message, as the packet carried it.
        bytes: &'a [u8],
    },
    /// Messages that neither line nor a request brought: what is built from the stream is wrong
    /// from here on until it is built anew.
    Lost {
        /// Number of the first.
        first: u64,
        /// How many.
        count: u64,
    },
    /// No more messages in this session.
    SessionEnded {
        /// One above the number of the last.
        next: u64,
    },
    /// Another session starts, at message 1.
    SessionStarted(Session),
}

/// A request that is due: its bytes go to the server's address, by unicast, from a port that is
/// received on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Number of the first message wanted.
    pub first: u64,
    /// How many are wanted.
    pub count: u16,
    /// The packet.
    pub packet: mold::Header,
}

/// Takes what an arbiter says, where that is not what usually happens: a call, so that the usual
/// way has the taker's code in it.
type Deliver<'a> = &'a mut dyn FnMut(Event<'_>);

/// Gives each message of a session once and in order. Sans I/O: packets and the time in, messages
/// and requests out; no allocation after [`Arbiter::new`].
///
/// Times are nanoseconds of any clock that does not go back.
#[derive(Debug, Clone)]
pub struct Arbiter {
    config: ArbiterConfig,
    session: Option<Session>,
    /// Number of the next message to deliver; 0 before it is known.
    next: u64,
    /// One above the highest number that is believed: the feed went there without a gap, or two
    /// packets spoke of it.
    known: u64,
    /// Header of the packet that [`Arbiter::receive_next`] takes: of one message, `next`, while
    /// nothing is missing, in doubt, held, ended or silent, and of none otherwise.
    usual: mold::Header,
    /// One above the highest number that one packet alone spoke of, if it is above `known`.
    claimed: u64,
    /// The same, of the packets since the stream last went on: another one confirms that.
    confirmable: u64,
    /// What `next` was then.
    claimed_at: u64,
    /// `claimed` was asked for in vain.
    is_refused: bool,
    /// What `next` was then; 0 if a line has said since that the feed is there, and no further.
    refused_at: u64,
    /// When a packet said last where the session is, but for those that [`Arbiter::receive_next`]
    /// and [`Arbiter::receive_run`] took.
    heard_ns: Option<u64>,
    stranger: Option<Stranger>,
    /// The sender said that no more will come from this number on.
    ended: Option<u64>,
    /// [`Event::SessionEnded`] was said.
    finished: bool,
    /// No packet said where the session is for as long as it may be silent.
    is_silent: bool,
    gap: Option<Gap>,
    /// When a request may go out again, whatever is missing.
    may_ask_ns: u64,
    /// What lies ahead of `next`.
    window: Window,
    stats: ArbiterStats,
}

impl Arbiter {
    /// An arbiter that has heard nothing yet.
    ///
    /// # Errors
    /// A [`ConfigError`] for a value out of its range.
    pub fn new(config: ArbiterConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let next = match config.start {
            Start::At(number) => number.max(1),
            Start::Live | Start::Held => 0,
        };
        Ok(Self {
            window: Window::new(config.window, config.max_message),
            session: None,
            next,
            known: next,
            usual: mold::heartbeat(Session::BLANK, 0),
            claimed: 0,
            confirmable: 0,
            claimed_at: 0,
            is_refused: false,
            refused_at: 0,
            heard_ns: None,
            stranger: None,
            ended: None,
            finished: false,
            is_silent: false,
            gap: None,
            may_ask_ns: 0,
            stats: ArbiterStats::new(),
            config,
        })
    }

    /// Takes the usual packet and gives its message: one, of the running session, the next that is
    /// expected, with nothing missing and nothing held. `None`, and nothing happened, for all
    /// others, answers to requests among them, which are [`Arbiter::receive`]'s.
    #[inline(always)]
    pub fn receive_next<'p>(
        &mut self,
        source: Source,
        packet: &Packet<'p>,
        now_ns: u64,
    ) -> Option<&'p [u8]> {
        let is_usual = packet.header().as_bytes() == self.usual.as_bytes();
        if source == Source::Retransmission || !is_usual {
            return None;
        }
        // A packet of none has none.
        let message = packet.messages().next()?;
        let number = self.next;
        let next = number.checked_add(1)?;
        self.stats.lines[source as usize].next_packet(number, next);
        self.stats.first(source, number, now_ns);
        (self.next, self.known, self.usual.sequence) = (next, next, next.into());
        Some(message)
    }

    /// Takes a packet that would be the usual one but for its several messages, and gives those:
    /// all are next. `None`, and nothing happened, for all others.
    #[inline]
    pub fn receive_run<'p>(
        &mut self,
        source: Source,
        packet: &Packet<'p>,
        now_ns: u64,
    ) -> Option<mold::Messages<'p>> {
        let (first, count) = (self.next, u64::from(packet.count()));
        // The other line's packets are behind: the number tells most others apart.
        if packet.sequence() != first || packet.session() != self.usual.session {
            return None;
        }
        let is_usual = self.usual.count == 1 && count <= self.config.max_jump;
        if source == Source::Retransmission || !is_usual || count == 0 {
            return None;
        }
        let next = first.checked_add(count)?;
        self.stats.lines[source as usize].packet(first, count);
        (first..next).for_each(|number| self.stats.first(source, number, now_ns));
        (self.next, self.known, self.usual.sequence) = (next, next, next.into());
        Some(packet.messages())
    }

    /// Takes a packet; says by `deliver` what it brought, in order.
    #[inline]
    pub fn receive(
        &mut self,
        source: Source,
        packet: &Packet<'_>,
        now_ns: u64,
        mut deliver: impl FnMut(Event<'_>),
    ) {
        // What was asked for is of the session that runs.
        if self.session != Some(packet.session())
            && (source == Source::Retransmission
                || !self.roll_over(source, packet, now_ns, &mut |event| deliver(event)))
        {
            self.stats.foreign += 1;
            return;
        }
        let (first, count) = (packet.sequence(), u64::from(packet.count()));
        let Some(end) = first.checked_add(count) else {
            self.stats.malformed += 1;
            return;
        };
        if end <= self.next && first != 0 && matches!(packet.kind(), PacketKind::Messages(_)) {
            return self.old(source, first..end, now_ns);
        }
        if source == Source::Retransmission && !self.is_missing(packet.kind(), end) {
            self.stats.unasked += 1;
            return;
        }
        let near = self.spoken().saturating_add(self.config.max_jump);
        if end > near && self.is_implausible(end, now_ns) {
            self.stats.implausible += 1;
            return;
        }
        self.hear(source, end, now_ns);
        self.stats.lines[source as usize].packet(first, count);
        match packet.kind() {
            PacketKind::Messages(_) if first == 0 => self.stats.malformed += 1,
            PacketKind::Messages(_) => self.messages(source, first, packet, now_ns, &mut deliver),
            PacketKind::Heartbeat if first == self.next => self.refused_at = 0,
            PacketKind::Heartbeat => {}
            PacketKind::EndOfSession => self.ended = Some(first),
        }
        self.note(first, end, now_ns);
        self.finish_if_ended(&mut |event| deliver(event));
        self.note_usual();
    }

    /// A packet said that the feed is at `end`: a sign of life, if a line says so, and that is no
    /// older than what is known, or the first.
    #[inline]
    fn hear(&mut self, source: Source, end: u64, now_ns: u64) {
        let is_of_a_line = source != Source::Retransmission;
        if is_of_a_line && (end >= self.next || self.heard_ns.is_none()) {
            (self.heard_ns, self.is_silent) = (Some(now_ns), false);
        }
    }

    /// Messages of which every one was there, as they come by the line that is behind.
    #[inline]
    fn old(&mut self, source: Source, numbers: Range<u64>, now_ns: u64) {
        self.hear(source, numbers.end, now_ns);
        self.stats.lines[source as usize].packet(numbers.start, numbers.end - numbers.start);
        numbers.for_each(|number| self.stats.again(source, number, now_ns));
    }

    /// Notes whether the next packet may go the short way.
    fn note_usual(&mut self) {
        let is_usual = self.next == self.known
            && self.gap.is_none()
            && self.ended.is_none()
            && self.window.is_empty()
            && !self.is_silent
            && !self.is_in_doubt();
        let count = match self.session {
            Some(_) if is_usual && self.next != 0 => 1,
            _ => 0,
        };
        let session = self.session.unwrap_or_default();
        self.usual = mold::Header { session, sequence: self.next.into(), count: count.into() };
    }

    /// When a packet of a line said last where the session is.
    fn heard_ns(&self) -> Option<u64> {
        let last = self.stats.arrived_ns(self.next.saturating_sub(1)).unwrap_or(0);
        self.heard_ns.map(|heard_ns| heard_ns.max(last))
    }

    /// Whether the feed cannot be at `end` yet. Of a session of which nothing was heard, nothing is
    /// known.
    fn is_implausible(&self, end: u64, now_ns: u64) -> bool {
        let Some(heard_ns) = self.heard_ns().filter(|_| self.known != 0) else { return false };
        let silence_ns = u128::from(now_ns.saturating_sub(heard_ns));
        let more = silence_ns * u128::from(self.config.max_rate) / 1_000_000_000;
        let limit = u128::from(self.spoken()) + u128::from(self.config.max_jump) + more;
        u128::from(end) > limit
    }

    #[inline]
    fn messages(
        &mut self,
        source: Source,
        first: u64,
        packet: &Packet<'_>,
        now_ns: u64,
        deliver: &mut impl FnMut(Event<'_>),
    ) {
        let end = first + u64::from(packet.count());
        if self.next == 0 {
            match self.config.start {
                Start::Live | Start::At(_) => (self.next, self.known) = (first, first),
                Start::Held if self.known == 0 => self.hold_first(first, end),
                // The oldest that is held: a snapshot will end behind it.
                Start::Held if self.window.is_empty() => self.window.start(first.min(self.known)),
                // The newest are worth most: a snapshot that takes long ends behind those that go.
                Start::Held if first <= self.known => self.window.start_late_enough_for(end),
                Start::Held => {}
            }
        }
        let before = self.next;
        for (number, bytes) in (first..end).zip(packet.messages()) {
            if self.next == number {
                self.next += 1;
                self.stats.first(source, number, now_ns);
                deliver(Event::Message { number, bytes });
            } else if number < self.next {
                self.stats.again(source, number, now_ns);
            } else {
                self.hold(source, number, bytes, now_ns);
            }
        }
        if self.next != before {
            if !self.window.is_empty() {
                self.drain(before, &mut |event| deliver(event));
            }
            self.progress(source, now_ns);
        }
    }

    /// Keeps a message that is ahead.
    fn hold(&mut self, source: Source, number: u64, bytes: &[u8], now_ns: u64) {
        let base = if self.next == 0 { self.window.started_at() } else { self.next };
        match self.window.insert(base, number, bytes) {
            window::Insert::Held => self.stats.first(source, number, now_ns),
            window::Insert::Twice => self.stats.again(source, number, now_ns),
            window::Insert::OutOfWindow => self.stats.out_of_window += 1,
            window::Insert::TooLong => self.stats.too_long += 1,
        }
    }

    /// Delivers what was held for the place that the stream has reached, from `before` on: what was
    /// held of these came by a packet, too, and goes.
    #[inline(never)]
    fn drain(&mut self, before: u64, deliver: Deliver<'_>) {
        for number in before..self.next {
            self.window.take(number);
        }
        while let Some(bytes) = self.window.take(self.next) {
            deliver(Event::Message { number: self.next, bytes });
            self.next += 1;
        }
    }

    #[inline]
    fn finish_if_ended(&mut self, deliver: Deliver<'_>) {
        if self.ended.is_some_and(|number| self.next >= number && self.next == self.known) {
            self.finish(deliver);
        }
    }

    #[cold]
    fn finish(&mut self, deliver: Deliver<'_>) {
        if !std::mem::replace(&mut self.finished, true) {
            deliver(Event::SessionEnded { next: self.next });
        }
    }

    /// Does what is due: says which messages to ask for, or that they are lost; notes a session
    /// that is silent.
    pub fn poll(&mut self, now_ns: u64, mut deliver: impl FnMut(Event<'_>)) -> Option<Request> {
        if self.silent_at().is_some_and(|at_ns| at_ns <= now_ns) {
            self.is_silent = true;
            self.note_usual();
        }
        let spoken = self.spoken();
        if self.gap_due()? > now_ns {
            return None;
        }
        debug_assert!(self.next < spoken, "a gap ends with the last message that was spoken of");
        let gap = self.gap.as_mut()?;
        if gap.asked < self.config.attempts {
            (gap.asked, gap.asked_ns) = (gap.asked + 1, now_ns);
            self.may_ask_ns = now_ns.saturating_add(self.config.pace_ns);
            // What is missing ends at the first message that is held. No further than a request
            // reaches: a window of which nearly all is missing takes long to look through.
            let reach = self.next.saturating_add(self.config.per_request.into()).min(spoken);
            let count = (self.window.first_from(self.next, reach) - self.next) as u16;
            self.stats.requests += 1;
            let packet = mold::request(self.session?, self.next, count);
            return Some(Request { first: self.next, count, packet });
        }
        self.gap = None;
        if self.next >= self.known {
            // One packet alone spoke of them: they may not be.
            self.stats.unconfirmed += 1;
            (self.is_refused, self.refused_at) = (true, self.next);
            self.window.forget_from(self.next);
            self.note_usual();
            return None;
        }
        let end = self.window.first_from(self.next, self.known);
        let lost = end - self.next;
        self.stats.lost += lost;
        deliver(Event::Lost { first: self.next, count: lost });
        self.next = end;
        self.drain(self.next, &mut deliver);
        self.known = self.known.max(self.next);
        self.note_gap(now_ns);
        self.finish_if_ended(&mut deliver);
        self.note_usual();
        None
    }

    /// When [`Arbiter::poll`] has something to do; `None` while nothing is missing, and there is no
    /// session that could fall silent.
    pub fn poll_at(&self) -> Option<u64> {
        self.silent_at().into_iter().chain(self.gap_due()).min()
    }

    /// When the session counts as silent, if nothing comes; `None` for one that does already, that
    /// is over, or of which nothing was heard.
    fn silent_at(&self) -> Option<u64> {
        if self.is_silent || self.finished {
            return None;
        }
        Some(self.heard_ns()?.saturating_add(self.config.silence_ns))
    }

    /// Whether what was delivered is all that the feed has said, as far as anybody knows: a session
    /// runs, was heard lately, and nothing of it is missing, in doubt or held.
    pub const fn is_live(&self) -> bool {
        self.session.is_some()
            && self.next != 0
            && self.gap.is_none()
            && !self.is_in_doubt()
            && !self.is_silent
            && !self.finished
    }

    /// Whether a snapshot may have ended in front of this message: the feed was heard, and the
    /// message is no further ahead of it than what is held of a feed. Of one packet alone its word
    /// is enough: the end of the snapshot is the second one.
    pub fn may_start_at(&self, number: u64) -> bool {
        let heard = if self.known == 0 { self.claimed } else { self.known };
        let furthest = heard.saturating_add(self.config.window as u64);
        heard != 0 && (1..=furthest).contains(&number)
    }

    /// Forgets how far the feed is: from here on everything is held, until [`Arbiter::start_at`]
    /// says where a snapshot ended.
    pub fn wait_for_snapshot(&mut self) {
        self.config.start = Start::Held;
        (self.next, self.known) = (0, 0);
        self.forget_claim();
        (self.heard_ns, self.gap) = (None, None);
        self.window.clear();
        self.note_usual();
    }

    /// Goes on behind a snapshot: delivers what was held from `number` on, and what comes then.
    /// What is older is dropped. Nothing happens after the first delivery.
    pub fn start_at(&mut self, number: u64, now_ns: u64, mut deliver: impl FnMut(Event<'_>)) {
        if self.next != 0 {
            return;
        }
        self.next = number.max(1);
        self.stats.joined_at = self.next;
        self.window.forget_before(self.next);
        self.drain(self.next, &mut deliver);
        self.known = self.known.max(self.next);
        self.note_gap(now_ns);
        self.note_usual();
    }

    /// Number of the next message to deliver; 0 before it is known.
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// The session that runs, once a packet was seen.
    pub const fn session(&self) -> Option<Session> {
        self.session
    }

    /// True while messages are missing.
    pub const fn has_gap(&self) -> bool {
        self.gap.is_some()
    }

    /// What happened so far.
    pub const fn stats(&self) -> &ArbiterStats {
        &self.stats
    }
}
