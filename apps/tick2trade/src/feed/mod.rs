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
//! | gap, asked | a request is out | it comes, or the request is repeated |
//! | gap, given up | [`ArbiterConfig::attempts`] requests brought nothing | [`Event::Lost`] |
//! | holding | a late joiner waits for its snapshot | [`Arbiter::start_at`] |
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

mod stats;
#[cfg(test)]
mod tests;
mod window;

use thiserror::Error;

use crate::proto::mold::{self, Packet, PacketKind, Session};

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

/// How an [`Arbiter`] starts and how patient it is.
#[derive(Debug, Clone)]
pub struct ArbiterConfig {
    /// First message to deliver.
    pub start: Start,
    /// Messages ahead of a gap that are kept: a power of two, 2 to 2^24. Default 65,536.
    pub window: usize,
    /// The longest message, bytes; longer ones are counted and lost. Default 64: ITCH has 50.
    pub max_message: usize,
    /// How long a gap waits for the other line before it is asked for, ns. Default 200 us.
    pub wait_ns: u64,
    /// How long a request waits for its answer before it is repeated, ns. Default 2 ms.
    pub retry_ns: u64,
    /// Requests without any answer after which messages count as lost. Default 5; 0 never asks.
    pub attempts: u32,
    /// The most messages that a request asks for; best below what fits one packet. Default 30.
    pub per_request: u16,
    /// How far ahead of everything known a packet's numbers may lie; one further ahead is a lie,
    /// and not taken. Default 100,000,000 messages.
    pub max_jump: u64,
}

impl Default for ArbiterConfig {
    fn default() -> Self {
        Self {
            start: Start::At(1),
            window: 65_536,
            max_message: 64,
            wait_ns: 200_000,
            retry_ns: 2_000_000,
            attempts: 5,
            per_request: 30,
            max_jump: 100_000_000,
        }
    }
}

/// First message that an [`Arbiter`] delivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The one of this number: 1 is the day's first.
    At(u64),
    /// Whatever comes first.
    Live,
    /// Holds everything until [`Arbiter::start_at`] says where a snapshot ended.
    Held,
}

/// Why a configuration was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The window is not a power of two in its range.
    #[error("a window of {0} messages; a power of two from 2 to 16777216 is possible")]
    Window(usize),
    /// No message would fit, or more than a packet holds.
    #[error("messages of at most {0} bytes; 1 to 65535 are possible")]
    MaxMessage(usize),
    /// Requests for nothing, or for the end of the session.
    #[error("{0} messages per request; 1 to 65534 are possible")]
    PerRequest(u16),
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

/// What is known of the messages that are missing.
#[derive(Debug, Clone, Copy)]
struct Gap {
    /// When it was first seen, or last got smaller.
    since_ns: u64,
    /// Requests since then.
    asked: u32,
    /// When the last of them was sent.
    asked_ns: u64,
}

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
    /// One above the highest number that any line spoke of.
    known: u64,
    /// The sender said that no more will come.
    ended: bool,
    /// [`Event::SessionEnded`] was said.
    finished: bool,
    gap: Option<Gap>,
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
        if !config.window.is_power_of_two() || !(2..=1 << 24).contains(&config.window) {
            return Err(ConfigError::Window(config.window));
        }
        if !(1..=usize::from(u16::MAX)).contains(&config.max_message) {
            return Err(ConfigError::MaxMessage(config.max_message));
        }
        if !(1..=mold::MAX_MESSAGES).contains(&config.per_request) {
            return Err(ConfigError::PerRequest(config.per_request));
        }
        let next = match config.start {
            Start::At(number) => number.max(1),
            Start::Live | Start::Held => 0,
        };
        Ok(Self {
            window: Window::new(config.window, config.max_message),
            session: None,
            next,
            known: next,
            ended: false,
            finished: false,
            gap: None,
            stats: ArbiterStats::new(),
            config,
        })
    }

    /// Takes the usual packet and gives its message: one, of the running session, the next that is
    /// expected, with nothing missing and nothing held. `None`, and nothing happened, for all
    /// others, which are [`Arbiter::receive`]'s.
    #[inline]
    pub fn receive_next<'p>(
        &mut self,
        source: Source,
        packet: &Packet<'p>,
        now_ns: u64,
    ) -> Option<&'p [u8]> {
        let number = packet.sequence();
        let is_usual = packet.count() == 1
            && number == self.next
            && number == self.known
            && !self.ended
            && self.window.is_empty()
            && self.session == Some(packet.session());
        let next = number.checked_add(1).filter(|_| is_usual && number != 0)?;
        let message = packet.messages().next()?;
        self.stats.lines[source as usize].packet(1);
        self.stats.first(source, number, now_ns);
        (self.next, self.known) = (next, next);
        Some(message)
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
        if self.session != Some(packet.session())
            && !self.roll_over(packet, &mut |event| deliver(event))
        {
            self.stats.foreign += 1;
            return;
        }
        let (first, count) = (packet.sequence(), u64::from(packet.count()));
        let Some(end) = first.checked_add(count) else {
            self.stats.malformed += 1;
            return;
        };
        if self.next != 0 && end > self.known.saturating_add(self.config.max_jump) {
            self.stats.implausible += 1;
            return;
        }
        self.stats.lines[source as usize].packet(count);
        match packet.kind() {
            PacketKind::Messages(_) if first == 0 => self.stats.malformed += 1,
            PacketKind::Messages(_) => self.messages(source, first, packet, now_ns, &mut deliver),
            PacketKind::Heartbeat => {}
            PacketKind::EndOfSession => self.ended = true,
        }
        self.note_known(end, now_ns);
        if self.ended && self.next == self.known {
            self.finish(&mut |event| deliver(event));
        }
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
        if self.next == 0 {
            match self.config.start {
                Start::Live | Start::At(_) => (self.next, self.known) = (first, first),
                // The oldest that is held: a snapshot will end behind it.
                Start::Held if self.window.is_empty() => self.window.start(first),
                Start::Held => {}
            }
        }
        let mut delivered = false;
        for (number, bytes) in (first..).zip(packet.messages()) {
            if self.next == number {
                self.next += 1;
                self.stats.first(source, number, now_ns);
                deliver(Event::Message { number, bytes });
                delivered = true;
            } else if number < self.next {
                self.stats.again(source, number, now_ns);
            } else {
                self.hold(source, number, bytes, now_ns);
            }
        }
        if delivered {
            if !self.window.is_empty() {
                self.drain(&mut |event| deliver(event));
            }
            self.progress(now_ns);
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

    /// Delivers what was held for the place that the stream has reached.
    #[inline(never)]
    fn drain(&mut self, deliver: Deliver<'_>) {
        while let Some(bytes) = self.window.take(self.next) {
            deliver(Event::Message { number: self.next, bytes });
            self.next += 1;
        }
    }

    fn note_known(&mut self, end: u64, now_ns: u64) {
        self.known = self.known.max(end).max(self.next);
        if self.next != 0 && self.next < self.known && self.gap.is_none() {
            self.stats.gaps += 1;
            self.gap = Some(Gap { since_ns: now_ns, asked: 0, asked_ns: now_ns });
        }
    }

    /// Messages came: a gap is closed, or smaller and to be asked for anew.
    fn progress(&mut self, now_ns: u64) {
        let Some(gap) = &mut self.gap else { return };
        if self.next < self.known {
            *gap = Gap { since_ns: gap.since_ns, asked: 0, asked_ns: gap.asked_ns };
        } else {
            self.stats.recovered(now_ns.saturating_sub(gap.since_ns));
            self.gap = None;
        }
    }

    /// A packet of another session: the next day, if the present one is over or it starts at 1.
    #[cold]
    fn roll_over(&mut self, packet: &Packet<'_>, deliver: Deliver<'_>) -> bool {
        let begins = packet.sequence() <= 1;
        if self.session.is_some() {
            if !self.ended && !begins {
                return false;
            }
            self.next = 1;
            self.known = 1;
            (self.ended, self.finished) = (false, false);
            self.gap = None;
            self.window.clear();
            deliver(Event::SessionStarted(packet.session()));
        }
        self.session = Some(packet.session());
        true
    }

    #[cold]
    fn finish(&mut self, deliver: Deliver<'_>) {
        if !std::mem::replace(&mut self.finished, true) {
            deliver(Event::SessionEnded { next: self.next });
        }
    }

    /// Does what is due: says which messages to ask for, or that they are lost.
    pub fn poll(&mut self, now_ns: u64, mut deliver: impl FnMut(Event<'_>)) -> Option<Request> {
        let gap = self.gap.as_mut()?;
        if now_ns < due(gap, &self.config) {
            return None;
        }
        // What is missing ends at the first message that is held.
        let end = self.window.first_from(self.next, self.known).unwrap_or(self.known);
        if gap.asked < self.config.attempts {
            (gap.asked, gap.asked_ns) = (gap.asked + 1, now_ns);
            let per_request = u64::from(self.config.per_request);
            let count = (end - self.next).min(per_request) as u16;
            self.stats.requests += 1;
            let packet = mold::request(self.session?, self.next, count);
            return Some(Request { first: self.next, count, packet });
        }
        let lost = end - self.next;
        self.stats.lost += lost;
        deliver(Event::Lost { first: self.next, count: lost });
        self.next = end;
        self.drain(&mut deliver);
        self.gap = None;
        self.note_known(self.known, now_ns);
        if self.ended && self.next == self.known {
            self.finish(&mut deliver);
        }
        None
    }

    /// When [`Arbiter::poll`] has something to do; `None` while nothing is missing.
    pub fn poll_at(&self) -> Option<u64> {
        self.gap.as_ref().map(|gap| due(gap, &self.config))
    }

    /// Whether a snapshot may have ended in front of this message: the feed was heard, and the
    /// message is no further ahead of it than what is held of a feed.
    pub fn may_start_at(&self, number: u64) -> bool {
        let furthest = self.known.saturating_add(self.config.window as u64);
        self.known != 0 && (1..=furthest).contains(&number)
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
        self.drain(&mut deliver);
        self.note_known(self.known, now_ns);
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

/// When a gap is to be asked for, asked for again, or given up.
fn due(gap: &Gap, config: &ArbiterConfig) -> u64 {
    match gap.asked {
        0 => gap.since_ns.saturating_add(config.wait_ns),
        _ => gap.asked_ns.saturating_add(config.retry_ns),
    }
}
