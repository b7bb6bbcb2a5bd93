use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::*;
use crate::proto::Text;

const US: u64 = 1_000;

fn session(name: &str) -> Session {
    Text::new(name).unwrap()
}

/// A packet of the session "S" whose messages are their own numbers.
fn packet(first: u64, count: u64) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    let mut builder = mold::Builder::new(&mut bytes, session("S"), first).unwrap();
    for number in first..first + count {
        assert!(builder.push(&number.to_be_bytes()));
    }
    builder.finish().to_vec()
}

/// What an arbiter says, as words: numbers, and `-first+count` for what is lost.
#[derive(Default)]
struct Heard(Vec<String>);

impl Heard {
    fn note(&mut self, event: Event<'_>) {
        self.0.push(match event {
            Event::Message { number, bytes } => {
                assert_eq!(bytes, number.to_be_bytes(), "the message of that number");
                number.to_string()
            }
            Event::Lost { first, count } => format!("-{first}+{count}"),
            Event::SessionEnded { next } => format!("end{next}"),
            Event::SessionStarted(session) => format!("start{session}"),
        });
    }

    fn take(&mut self) -> String {
        std::mem::take(&mut self.0).join(" ")
    }
}

struct Feed {
    arbiter: Arbiter,
    heard: Heard,
}

impl Feed {
    fn new(config: ArbiterConfig) -> Self {
        Self { arbiter: Arbiter::new(config).unwrap(), heard: Heard::default() }
    }

    fn bytes(&mut self, source: Source, bytes: &[u8], now: u64) -> String {
        let packet = Packet::parse(bytes).unwrap();
        self.short_way(source, &packet, now);
        self.arbiter.receive(source, &packet, now, |event| self.heard.note(event));
        self.heard.take()
    }

    fn receive(&mut self, source: Source, first: u64, count: u64, now: u64) -> String {
        self.bytes(source, &packet(first, count), now)
    }

    /// What the short way takes comes to the same by the long way.
    fn short_way(&self, source: Source, packet: &Packet<'_>, now: u64) {
        let (mut short, mut long) = (self.arbiter.clone(), self.arbiter.clone());
        let Some(message) = short.receive_next(source, packet, now) else { return };
        let mut heard = Vec::new();
        long.receive(source, packet, now, |event| {
            let Event::Message { bytes, .. } = event else { panic!("{event:?}") };
            heard.push(bytes.to_vec());
        });
        assert_eq!(heard, [message]);
        let state = |arbiter: &Arbiter| {
            let Arbiter { session, next, known, ended, finished, gap, stats, .. } = arbiter;
            let line = &stats.lines[source as usize];
            let counts = (line.packets, line.messages, line.won, stats.gaps);
            (*session, *next, *known, *ended, *finished, gap.is_some(), counts)
        };
        assert_eq!(state(&short), state(&long));
    }

    fn poll(&mut self, now: u64) -> Option<(u64, u16)> {
        let request = self.arbiter.poll(now, |event| self.heard.note(event));
        request.map(|request| {
            assert_eq!(request.packet, mold::request(session("S"), request.first, request.count));
            (request.first, request.count)
        })
    }
}

fn small() -> ArbiterConfig {
    ArbiterConfig { window: 8, per_request: 3, attempts: 2, ..ArbiterConfig::default() }
}

#[test]
fn each_message_is_delivered_once_whichever_line_is_first_and_however_packets_are_cut() {
    let mut feed = Feed::new(small());
    assert_eq!(feed.receive(Source::A, 1, 2, 0), "1 2");
    assert_eq!(feed.receive(Source::B, 1, 4, 5 * US), "3 4");
    assert_eq!(feed.receive(Source::A, 3, 3, 6 * US), "5");
    assert_eq!(feed.receive(Source::B, 5, 1, 9 * US), "");
    let stats = feed.arbiter.stats();
    assert_eq!(stats.lines.each_ref().map(|line| line.won), [3, 2, 0]);
    assert_eq!(stats.lines[1].late_ns.len(), 3);
    assert!(stats.lines[1].late_ns.max() >= 5 * US);
    assert_eq!(stats.gaps, 0);
}

#[test]
fn a_gap_waits_for_the_other_line_before_it_is_asked_for() {
    let mut feed = Feed::new(small());
    assert_eq!(feed.receive(Source::A, 1, 1, 0), "1");
    assert_eq!(feed.receive(Source::A, 3, 2, 0), "");
    assert_eq!(feed.arbiter.poll_at(), Some(200 * US));
    assert_eq!(feed.poll(199 * US), None);
    assert_eq!(feed.receive(Source::B, 2, 1, 150 * US), "2 3 4");
    assert_eq!(feed.arbiter.poll_at(), None);
    assert_eq!(feed.arbiter.stats().recovery_ns.len(), 1);
}

#[test]
fn what_no_line_brings_is_asked_for_again_and_then_given_up_by_name() {
    let mut feed = Feed::new(small());
    feed.receive(Source::A, 1, 1, 0);
    feed.receive(Source::A, 7, 1, 0);
    assert_eq!(feed.poll(200 * US), Some((2, 3)));
    assert_eq!(feed.poll(2_199 * US), None);
    // The answer holds less than was asked for: a new request, and new patience.
    assert_eq!(feed.receive(Source::Retransmission, 2, 2, 300 * US), "2 3");
    assert_eq!(feed.poll(300 * US), Some((4, 3)));
    assert_eq!(feed.poll(2_300 * US), Some((4, 3)));
    assert_eq!(feed.poll(4_300 * US), None);
    assert_eq!(feed.heard.take(), "-4+3 7");
    assert_eq!(feed.arbiter.stats().lost, 3);
    assert!(!feed.arbiter.has_gap());
}

#[test]
fn a_heartbeat_tells_of_a_lost_tail_and_the_end_waits_for_it() {
    let mut feed = Feed::new(small());
    feed.receive(Source::A, 1, 1, 0);
    feed.bytes(Source::A, mold::heartbeat(session("S"), 3).as_bytes(), 0);
    assert!(feed.arbiter.has_gap());
    let end = mold::end_of_session(session("S"), 3);
    assert_eq!(feed.bytes(Source::B, end.as_bytes(), 0), "");
    assert_eq!(feed.receive(Source::Retransmission, 2, 1, 0), "2 end3");
    assert_eq!(feed.bytes(Source::B, end.as_bytes(), 0), "", "said once");
}

#[test]
fn another_session_is_foreign_until_this_one_is_over_or_it_starts_at_1() {
    let mut feed = Feed::new(small());
    feed.receive(Source::A, 1, 1, 0);
    let other = mold::heartbeat(session("T"), 5);
    assert_eq!(feed.bytes(Source::A, other.as_bytes(), 0), "");
    assert_eq!(feed.arbiter.stats().foreign, 1);
    let end = mold::end_of_session(session("S"), 2);
    assert_eq!(feed.bytes(Source::A, end.as_bytes(), 0), "end2");
    assert_eq!(feed.bytes(Source::A, other.as_bytes(), 0), "startT");
    assert_eq!((feed.arbiter.next(), feed.arbiter.has_gap()), (1, true));
    let first = mold::heartbeat(session("U"), 1);
    assert_eq!(feed.bytes(Source::A, first.as_bytes(), 0), "startU");
    assert_eq!((feed.arbiter.next(), feed.arbiter.has_gap()), (1, false));
}

#[test]
fn a_late_joiner_starts_where_the_line_is_or_behind_its_snapshot() {
    let mut feed = Feed::new(ArbiterConfig { start: Start::Live, ..small() });
    assert_eq!(feed.receive(Source::A, 100, 2, 0), "100 101");

    let mut feed = Feed::new(ArbiterConfig { start: Start::Held, ..small() });
    assert_eq!(feed.receive(Source::A, 100, 2, 0), "");
    assert_eq!(feed.receive(Source::B, 103, 1, 0), "");
    feed.arbiter.start_at(101, 0, |event| feed.heard.note(event));
    assert_eq!(feed.heard.take(), "101");
    assert_eq!(feed.poll(200 * US), Some((102, 1)));
    assert_eq!(feed.receive(Source::Retransmission, 102, 1, 0), "102 103");
}

#[test]
fn what_is_too_far_ahead_is_asked_for_when_its_turn_comes() {
    let mut feed = Feed::new(ArbiterConfig { per_request: 100, ..small() });
    feed.receive(Source::A, 1, 1, 0);
    assert_eq!(feed.receive(Source::A, 30, 2, 0), "");
    assert_eq!(feed.arbiter.stats().out_of_window, 2);
    assert_eq!(feed.poll(200 * US), Some((2, 30)));
}

#[test]
fn numbers_that_cannot_be_are_not_believed() {
    let mut feed = Feed::new(ArbiterConfig { max_jump: 1000, ..small() });
    feed.receive(Source::A, 1, 1, 0);
    let mut bytes = packet(7, 2);
    for number in [u64::MAX - 1, u64::MAX, 0] {
        bytes[10..18].copy_from_slice(&number.to_be_bytes());
        assert_eq!(feed.bytes(Source::A, &bytes, 0), "");
    }
    assert_eq!(feed.arbiter.stats().malformed, 3, "past the end of numbers, or no number");
    for number in [1003, u64::MAX - 2] {
        let heartbeat = mold::heartbeat(session("S"), number);
        feed.bytes(Source::A, heartbeat.as_bytes(), 0);
    }
    assert_eq!(feed.arbiter.stats().implausible, 2);
    assert_eq!((feed.arbiter.next(), feed.arbiter.has_gap()), (2, false));
}

#[test]
fn bad_configurations_say_what_is_possible() {
    let why = |config| Arbiter::new(config).unwrap_err().to_string();
    assert_eq!(
        why(ArbiterConfig { window: 12, ..small() }),
        "a window of 12 messages; a power of two from 2 to 16777216 is possible"
    );
    assert_eq!(
        why(ArbiterConfig { max_message: 0, ..small() }),
        "messages of at most 0 bytes; 1 to 65535 are possible"
    );
    assert_eq!(
        why(ArbiterConfig { per_request: 0, ..small() }),
        "0 messages per request; 1 to 65534 are possible"
    );
}

proptest! {
    /// Two lines that lose, repeat and reorder; a server that answers some requests in part. Every
    /// message comes once and in order, or is said to be lost.
    #[test]
    fn nothing_is_missed_doubled_or_out_of_order(
        cuts in prop::collection::vec((1_u64..6, 0_u8..8, 0_u8..8), 1..60),
        swaps in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
        answers: Vec<u8>,
    ) {
        let mut feed = Feed::new(ArbiterConfig { window: 16, per_request: 4, ..small() });
        let mut packets = Vec::new();
        let mut first = 1;
        for (count, a, b) in cuts {
            packets.extend((a != 0).then_some((Source::A, first, count)));
            packets.extend((b != 0).then_some((Source::B, first, count)));
            first += count;
        }
        for swap in swaps {
            if packets.len() > 1 {
                let at = swap.index(packets.len() - 1);
                packets.swap(at, at + 1);
            }
        }
        let mut said = Vec::new();
        let mut now = 0;
        let mut answers = answers.into_iter();
        let mut step = |feed: &mut Feed, said: &mut Vec<String>, now: &mut u64| {
            *now += 300 * US;
            let request = feed.poll(*now);
            said.push(feed.heard.take());
            if let (Some((wanted, count)), Some(answer)) = (request, answers.next())
                && answer % 4 != 0
            {
                let count = u64::from(count).min(u64::from(answer % 4)).min(first - wanted);
                said.push(feed.receive(Source::Retransmission, wanted, count, *now));
            }
        };
        for (source, number, count) in packets {
            said.push(feed.receive(source, number, count, now));
            step(&mut feed, &mut said, &mut now);
        }
        let end = mold::end_of_session(session("S"), first);
        said.push(feed.bytes(Source::A, end.as_bytes(), now));
        while feed.arbiter.has_gap() {
            step(&mut feed, &mut said, &mut now);
        }
        let mut next = 1;
        let said = said.join(" ");
        let mut words = said.split_whitespace();
        for word in words.by_ref() {
            if let Some(lost) = word.strip_prefix('-') {
                let (start, count) = lost.split_once('+').unwrap();
                prop_assert_eq!(start.parse::<u64>().unwrap(), next);
                next += count.parse::<u64>().unwrap();
            } else if let Ok(number) = word.parse::<u64>() {
                prop_assert_eq!(number, next);
                next += 1;
            } else {
                prop_assert_eq!(word, format!("end{first}"));
                break;
            }
        }
        prop_assert_eq!(next, first);
        prop_assert_eq!(words.next(), None);
    }
}
