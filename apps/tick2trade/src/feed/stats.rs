//! What an arbiter counts: which line won, how late the other was, what was lost.

use hdrhistogram::Histogram;

use super::Source;

/// First arrivals that are remembered, to tell how much later the other line was: a power of two.
const REMEMBERED: usize = 8192;
/// The longest time that a histogram tells apart, ns: a minute.
const LONGEST_NS: u64 = 60_000_000_000;

/// What came by one line.
#[derive(Debug, Clone)]
pub struct LineStats {
    /// Packets of the running session.
    pub packets: u64,
    /// Messages in them.
    pub messages: u64,
    /// Messages that came by this line first.
    pub won: u64,
    /// Times that a packet of this line began behind where its last one ended.
    pub holes: u64,
    /// Messages in these holes, less those that came behind by the same line. Nothing says so of
    /// the end of a session, or of answers to requests.
    pub missing: u64,
    /// Number that the next packet is expected to begin with; 0 before the first.
    expected: u64,
    /// How much later than the other line it was, ns, for messages that both brought.
    pub late_ns: Histogram<u64>,
}

impl LineStats {
    fn new() -> Self {
        let late_ns = histogram();
        Self { packets: 0, messages: 0, won: 0, holes: 0, missing: 0, expected: 0, late_ns }
    }

    /// A packet came, of so many messages from this number on.
    pub(super) fn packet(&mut self, first: u64, messages: u64) {
        if first != self.expected {
            self.out_of_place(first, messages);
        }
        self.expected = self.expected.max(first.saturating_add(messages));
        self.packets += 1;
        self.messages += messages;
    }

    /// A packet of one message came; `next` is the number behind it.
    #[inline]
    pub(super) fn next_packet(&mut self, number: u64, next: u64) {
        if number != self.expected {
            return self.packet(number, 1);
        }
        self.expected = next;
        self.packets += 1;
        self.messages += 1;
    }

    #[cold]
    fn out_of_place(&mut self, first: u64, messages: u64) {
        if first < self.expected {
            self.missing = self.missing.saturating_sub(messages);
        } else if self.expected != 0 {
            self.holes += 1;
            self.missing += first - self.expected;
        }
    }

    /// Another session begins.
    pub(super) const fn begin(&mut self) {
        self.expected = 0;
    }
}

/// What an arbiter saw.
#[derive(Debug, Clone)]
pub struct ArbiterStats {
    /// Line A, line B, and answers to requests, by [`Source`].
    pub lines: [LineStats; 3],
    /// Times that messages were missing.
    pub gaps: u64,
    /// Number of the message that a late join went on from; 0 if there was none.
    pub joined_at: u64,
    /// Requests that were due.
    pub requests: u64,
    /// Messages given up.
    pub lost: u64,
    /// Packets of another session than the one that runs.
    pub foreign: u64,
    /// Packets whose numbers are none.
    pub malformed: u64,
    /// Answers to requests with anything but messages that are missing.
    pub unasked: u64,
    /// Packets whose numbers lie further ahead than the configuration believes.
    pub implausible: u64,
    /// Times that messages which one packet alone spoke of were not to be had: they are not lost,
    /// and not believed in until another packet speaks of them.
    pub unconfirmed: u64,
    /// Messages too far ahead to be kept; they are asked for when their turn comes.
    pub out_of_window: u64,
    /// Messages ahead of a gap that are longer than the configuration says; asked for again.
    pub too_long: u64,
    /// Time from a gap's first sign to its end, ns.
    pub recovery_ns: Histogram<u64>,
    arrivals: Box<[Arrival; REMEMBERED]>,
}

#[derive(Debug, Clone, Copy)]
struct Arrival {
    number: u64,
    at_ns: u64,
    source: Source,
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, 2).expect("the bounds are constants that are right")
}

impl ArbiterStats {
    pub(super) fn new() -> Self {
        let none = Arrival { number: 0, at_ns: 0, source: Source::A };
        Self {
            lines: std::array::from_fn(|_| LineStats::new()),
            gaps: 0,
            joined_at: 0,
            requests: 0,
            lost: 0,
            foreign: 0,
            malformed: 0,
            unasked: 0,
            implausible: 0,
            unconfirmed: 0,
            out_of_window: 0,
            too_long: 0,
            recovery_ns: histogram(),
            arrivals: Box::new([none; REMEMBERED]),
        }
    }

    /// A message came for the first time.
    #[inline]
    pub(super) fn first(&mut self, source: Source, number: u64, at_ns: u64) {
        self.lines[source as usize].won += 1;
        self.arrivals[number as usize % REMEMBERED] = Arrival { number, at_ns, source };
    }

    /// When a message came for the first time, if it is one of the last and came by a line.
    pub(super) fn arrived_ns(&self, number: u64) -> Option<u64> {
        let first = self.arrivals[number as usize % REMEMBERED];
        let is_of_a_line = first.source != Source::Retransmission;
        (first.number == number && is_of_a_line).then_some(first.at_ns)
    }

    /// A message came that was there.
    #[inline]
    pub(super) fn again(&mut self, source: Source, number: u64, at_ns: u64) {
        let first = self.arrivals[number as usize % REMEMBERED];
        if first.number == number && first.source != source {
            let late = at_ns.saturating_sub(first.at_ns);
            self.lines[source as usize].late_ns.saturating_record(late);
        }
    }

    pub(super) fn recovered(&mut self, ns: u64) {
        self.recovery_ns.saturating_record(ns);
    }
}
