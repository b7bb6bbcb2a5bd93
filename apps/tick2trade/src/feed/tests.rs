mod gaps;
mod property;

use zerocopy::IntoBytes;

use super::*;
use crate::proto::Text;

const US: u64 = 1_000;
/// How long a session may say nothing.
const SILENCE_NS: u64 = 2_500_000_000;

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
        let messages: Vec<_> = match short.receive_next(source, packet, now) {
            Some(message) => vec![message],
            None => match short.receive_run(source, packet, now) {
                Some(messages) => messages.collect(),
                None => return,
            },
        };
        let mut heard = Vec::new();
        long.receive(source, packet, now, |event| {
            let Event::Message { bytes, .. } = event else { panic!("{event:?}") };
            heard.push(bytes.to_vec());
        });
        assert_eq!(heard, messages);
        let state = |arbiter: &Arbiter| {
            let Arbiter { session, next, known, usual, ended, finished, gap, stats, .. } = arbiter;
            let line = &stats.lines[source as usize];
            let counts = (line.packets, line.messages, line.won, stats.gaps);
            (*session, (*next, *known, *usual), *ended, *finished, gap.is_some(), counts)
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

/// By whichever way the message comes: [`Feed::bytes`] compares both.
#[test]
fn a_feed_that_reaches_what_one_packet_spoke_of_is_live_at_once() {
    let mut feed = Feed::new(small());
    assert_eq!(feed.receive(Source::A, 1, 1, 0), "1");
    feed.bytes(Source::A, mold::heartbeat(session("S"), 3).as_bytes(), 0);
    assert!(feed.arbiter.has_gap() && !feed.arbiter.is_live());
    assert_eq!(feed.receive(Source::A, 2, 1, US), "2");
    assert!(feed.arbiter.is_live());
    assert_eq!(feed.receive(Source::B, 3, 2, US), "3 4");
}

#[test]
fn each_line_is_told_what_it_lost_whatever_the_other_brought() {
    let mut feed = Feed::new(small());
    feed.receive(Source::A, 1, 2, 0);
    feed.receive(Source::B, 1, 6, 0);
    let of = |feed: &Feed, line: usize| {
        let line = &feed.arbiter.stats().lines[line];
        (line.holes, line.missing, line.won)
    };
    // Numbers 3 and 4 are missing, and then number 6; 3 comes behind.
    feed.receive(Source::A, 5, 1, 0);
    feed.bytes(Source::A, mold::heartbeat(session("S"), 7).as_bytes(), 0);
    assert_eq!((of(&feed, 0), of(&feed, 1)), ((2, 3, 2), (0, 0, 4)));
    feed.receive(Source::A, 3, 1, 0);
    assert_eq!(of(&feed, 0), (2, 2, 2));
    // By the short way, too.
    feed.receive(Source::B, 7, 1, 0);
    feed.receive(Source::A, 8, 1, 0);
    assert_eq!((of(&feed, 0), of(&feed, 1)), ((3, 3, 3), (0, 0, 5)));
}

#[test]
fn a_jump_is_believed_by_how_long_the_feed_was_silent() {
    let rate = ArbiterConfig { max_jump: 10, max_rate: 1_000, ..small() };
    let mut feed = Feed::new(rate);
    assert_eq!(feed.receive(Source::A, 1_000_000, 1, 0), "", "nothing is known of the day yet");
    assert_eq!(feed.arbiter.stats().implausible, 0);
    feed.bytes(Source::B, mold::heartbeat(session("S"), 1_000_001).as_bytes(), 0);
    let heartbeat = |feed: &mut Feed, number, now| {
        feed.bytes(Source::A, mold::heartbeat(session("S"), number).as_bytes(), now);
        feed.arbiter.stats().implausible
    };
    assert_eq!(heartbeat(&mut feed, 1_000_012, 0), 1);
    assert_eq!(heartbeat(&mut feed, 1_000_012, US), 2, "0.001 messages more");
    assert_eq!(heartbeat(&mut feed, 1_000_012, 1_000 * US), 2, "one more");
    // What was taken counts as heard, and as where the feed may be: 10 and 999 further.
    assert_eq!(heartbeat(&mut feed, 1_001_022, 1_000_000 * US), 3);
    assert_eq!(heartbeat(&mut feed, 1_001_021, 1_000_000 * US), 3);
}

#[test]
fn another_session_is_foreign_until_this_one_is_over() {
    let mut feed = Feed::new(small());
    feed.receive(Source::A, 1, 1, 0);
    for number in [0, 1, 5] {
        let other = mold::heartbeat(session("T"), number);
        for line in [Source::A, Source::B, Source::A, Source::B] {
            assert_eq!(feed.bytes(line, other.as_bytes(), 2_499_999 * US), "");
        }
    }
    assert_eq!(feed.arbiter.stats().foreign, 12);
    // An end that is not there yet is none, and neither is one that is followed by more.
    let end = |number| mold::end_of_session(session("S"), number);
    let other = mold::heartbeat(session("T"), 5);
    assert_eq!(feed.bytes(Source::A, end(3).as_bytes(), 0), "");
    assert_eq!(feed.bytes(Source::A, other.as_bytes(), 0), "");
    assert_eq!(feed.receive(Source::A, 2, 2, 0), "2 3");
    assert_eq!(feed.bytes(Source::A, other.as_bytes(), 0), "");
    assert_eq!(feed.bytes(Source::A, end(4).as_bytes(), 0), "end4");
    assert_eq!(feed.bytes(Source::A, other.as_bytes(), 0), "startT");
    assert_eq!((feed.arbiter.next(), feed.arbiter.has_gap()), (1, true));
}

#[test]
fn a_session_that_is_silent_gives_way_to_one_that_more_than_one_packet_speaks_of() {
    const S: u64 = 1_000_000_000;
    let other = mold::heartbeat(session("T"), 1);
    let third = mold::heartbeat(session("U"), 1);
    // Both lines; or three packets of one.
    for lines in [&[Source::A, Source::B][..], &[Source::B, Source::B, Source::B]] {
        let mut feed = Feed::new(small());
        feed.receive(Source::A, 1, 1, 0);
        // One that came before the silence does not count, nor one of another session.
        feed.bytes(Source::A, other.as_bytes(), S);
        feed.bytes(Source::A, third.as_bytes(), 5 * S);
        for (at, &line) in lines.iter().enumerate() {
            let last = at + 1 == lines.len();
            let expected = if last { "startT" } else { "" };
            assert_eq!(feed.bytes(line, other.as_bytes(), 5 * S), expected);
        }
        assert_eq!(feed.bytes(Source::A, third.as_bytes(), 9 * S), "");
    }
    // A session that was heard again in between is not silent.
    let mut feed = Feed::new(small());
    feed.receive(Source::A, 1, 1, 0);
    feed.bytes(Source::A, other.as_bytes(), 5 * S);
    assert_eq!(feed.receive(Source::A, 2, 1, 5 * S), "2");
    assert_eq!(feed.bytes(Source::B, other.as_bytes(), 5 * S), "");
    assert_eq!(feed.bytes(Source::B, other.as_bytes(), 10 * S), "");
    assert_eq!(feed.bytes(Source::A, other.as_bytes(), 10 * S), "startT");
}

/// What was delivered is all that the feed said: not before anything was heard, nor while something
/// is missing, nobody says anything, a snapshot is awaited, or the session is over.
#[test]
fn a_feed_is_live_while_it_is_heard_and_nothing_is_missing() {
    let mut feed = Feed::new(small());
    assert!(!feed.arbiter.is_live());
    assert_eq!(feed.arbiter.poll_at(), None, "what was never heard cannot fall silent");
    feed.receive(Source::A, 1, 1, 0);
    assert!(feed.arbiter.is_live());
    feed.receive(Source::A, 3, 1, US);
    assert!(!feed.arbiter.is_live());
    assert_eq!(feed.receive(Source::B, 2, 1, 2 * US), "2 3");
    assert!(feed.arbiter.is_live());
    // By the short way, which notes no time of its own.
    let message = packet(4, 1);
    let message = Packet::parse(&message).unwrap();
    assert!(feed.arbiter.receive_next(Source::A, &message, 3 * US).is_some());
    let silent_at = 3 * US + SILENCE_NS;
    assert_eq!(feed.arbiter.poll_at(), Some(silent_at));
    assert_eq!(feed.poll(silent_at - 1), None);
    assert!(feed.arbiter.is_live());
    assert_eq!(feed.poll(silent_at), None);
    assert!(!feed.arbiter.is_live());
    assert_eq!(feed.arbiter.poll_at(), None, "said once");
    // Whatever comes ends the silence: the next message, one that was there, a heartbeat.
    let heartbeat = mold::heartbeat(session("S"), 6);
    let mut now = silent_at;
    for bytes in [packet(5, 1), packet(5, 1), heartbeat.as_bytes().to_vec()] {
        feed.bytes(Source::B, &bytes, now);
        assert!(feed.arbiter.is_live());
        now += SILENCE_NS;
        feed.poll(now);
        assert!(!feed.arbiter.is_live());
    }
    let end = mold::end_of_session(session("S"), 6);
    assert_eq!(feed.bytes(Source::A, end.as_bytes(), now), "end6");
    assert_eq!((feed.arbiter.is_live(), feed.arbiter.poll_at()), (false, None));
    assert_eq!(feed.receive(Source::A, 6, 1, now), "6", "that was not its end");
    assert!(feed.arbiter.is_live());
    feed.arbiter.wait_for_snapshot();
    assert!(!feed.arbiter.is_live());
    feed.receive(Source::A, 7, 1, now);
    assert!(!feed.arbiter.is_live());
    feed.arbiter.start_at(7, now, |event| feed.heard.note(event));
    assert!(feed.arbiter.is_live());
}

/// A line that is late, or says the same again and again, is no feed: nobody knows what the market
/// did since.
#[test]
fn what_is_older_than_what_is_known_is_no_sign_of_life() {
    let mut feed = Feed::new(small());
    assert_eq!(feed.receive(Source::A, 1, 5, 0), "1 2 3 4 5");
    let old = [packet(1, 1), packet(2, 3), mold::heartbeat(session("S"), 5).as_bytes().to_vec()];
    let repeat = |feed: &mut Feed, now| {
        for bytes in &old {
            assert_eq!(feed.bytes(Source::B, bytes, now), "");
        }
    };
    repeat(&mut feed, SILENCE_NS - 1);
    assert_eq!(feed.arbiter.poll_at(), Some(SILENCE_NS));
    assert_eq!(feed.poll(SILENCE_NS), None);
    repeat(&mut feed, SILENCE_NS);
    assert!(!feed.arbiter.is_live());
    assert_eq!(feed.arbiter.stats().lines[1].packets, 6, "they are counted all the same");
    // It has caught up, as far as anybody knows.
    assert_eq!(feed.receive(Source::B, 4, 2, SILENCE_NS), "");
    assert!(feed.arbiter.is_live());
    assert_eq!(feed.arbiter.poll_at(), Some(2 * SILENCE_NS));
}

/// A day is caught up with by answers alone, for longer than a feed may be silent: neither is it
/// live then, nor in the way of another session, nor is what a line says behind it a lie.
#[test]
fn answers_are_no_sign_of_life() {
    const S: u64 = 1_000_000_000;
    let mut feed = Feed::new(ArbiterConfig { max_jump: 100, max_rate: 10, ..small() });
    feed.receive(Source::A, 1, 1, 0);
    for line in [Source::A, Source::B] {
        feed.receive(line, 100, 1, 0);
    }
    let mut now = US * 200;
    while let Some((first, count)) = feed.poll(now) {
        now += S;
        feed.receive(Source::Retransmission, first, count.into(), now);
    }
    assert!(now > 20 * S);
    assert_eq!((feed.arbiter.next(), feed.arbiter.has_gap()), (101, false));
    assert!(!feed.arbiter.is_live(), "both lines are silent");
    assert_eq!(feed.arbiter.poll_at(), None, "and it was said that they are");
    let mut other = Feed { arbiter: feed.arbiter.clone(), heard: Heard::default() };
    let begin = mold::heartbeat(session("T"), 1);
    assert_eq!(other.bytes(Source::A, begin.as_bytes(), now), "");
    assert_eq!(other.bytes(Source::B, begin.as_bytes(), now), "startT");
    // Ten a second are believed since the last packet of a line.
    feed.receive(Source::A, 300, 1, now);
    assert_eq!(feed.arbiter.stats().implausible, 0);
    assert!(!feed.arbiter.is_live() && feed.arbiter.has_gap());
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

/// A snapshot takes longer than the window lasts: what is held is what came last, whatever came
/// while nobody looked, and one packet far ahead changes nothing of that.
#[test]
fn a_late_joiner_holds_the_newest() {
    let mut feed = Feed::new(ArbiterConfig { start: Start::Held, ..small() });
    for first in (100..130).step_by(2) {
        assert_eq!(feed.receive(Source::A, first, 2, 0), "");
    }
    assert_eq!(feed.arbiter.stats().out_of_window, 0);
    // A stray one, and a hole: what is behind the hole is believed when two packets speak of it.
    feed.receive(Source::B, 900, 1, 0);
    feed.receive(Source::A, 140, 2, 0);
    feed.receive(Source::A, 142, 2, 0);
    assert_eq!(feed.arbiter.stats().out_of_window, 3);
    for first in (144..150).step_by(2) {
        feed.receive(Source::A, first, 2, 0);
    }
    feed.arbiter.start_at(143, 0, |event| feed.heard.note(event));
    assert_eq!(feed.heard.take(), "143 144 145 146 147 148 149");
    assert_eq!(feed.arbiter.next(), 150);

    // A snapshot that is older than all that is held: the rest is asked for.
    let mut feed = Feed::new(ArbiterConfig { start: Start::Held, ..small() });
    for first in 100..120 {
        feed.receive(Source::A, first, 1, 0);
    }
    feed.arbiter.start_at(110, 0, |event| feed.heard.note(event));
    assert_eq!((feed.heard.take(), feed.poll(200 * US)), (String::new(), Some((110, 2))));
    assert_eq!(
        feed.receive(Source::Retransmission, 110, 2, 0),
        "110 111 112 113 114 115 116 117 118 119"
    );
}

/// A stray packet before anything else, or in between, is not where the feed is: late joins and
/// books that are had anew go on with it.
#[test]
fn where_a_held_feed_is_two_packets_say() {
    const FAR: u64 = 5_000_000_000;
    let strays: [&[(u64, u64)]; 4] =
        [&[(0, FAR)], &[(1, FAR)], &[(0, 7), (1, FAR), (2, FAR * 2)], &[(0, u64::MAX - 1)]];
    for (strays, again) in strays.into_iter().flat_map(|strays| [(strays, false), (strays, true)]) {
        let mut feed = Feed::new(ArbiterConfig { start: Start::Held, ..small() });
        if again {
            feed.receive(Source::A, FAR, 2, 0);
            feed.receive(Source::B, FAR, 2, 0);
            feed.arbiter.start_at(FAR, 0, |event| feed.heard.note(event));
            feed.arbiter.wait_for_snapshot();
            feed.heard.take();
        }
        assert!(!feed.arbiter.may_start_at(1_002));
        for packet in 0..6 {
            for &(_, stray) in strays.iter().filter(|(at, _)| *at == packet) {
                assert_eq!(feed.receive(Source::B, stray, 1, 0), "");
            }
            assert_eq!(feed.receive(Source::A, 1_000 + packet, 1, 0), "");
        }
        assert!(feed.arbiter.may_start_at(1_005) && !feed.arbiter.may_start_at(FAR));
        feed.arbiter.start_at(1_005, US, |event| feed.heard.note(event));
        assert_eq!(feed.heard.take(), "1005", "{strays:?}");
        assert_eq!(feed.receive(Source::A, 1_006, 1, US), "1006");
        assert!(feed.arbiter.is_live(), "{strays:?}");
    }
    // A stray one is all that was heard: what it said is asked for, and given up.
    let mut feed = Feed::new(ArbiterConfig { start: Start::Held, ..small() });
    feed.receive(Source::A, FAR, 1, 0);
    assert!(feed.arbiter.may_start_at(1_000));
    feed.arbiter.start_at(1_000, 0, |event| feed.heard.note(event));
    for (number, now) in (1_000..1_020).zip((200..).step_by(1_000)) {
        assert_eq!(feed.receive(Source::A, number, 1, now * US), number.to_string());
        feed.poll(now * US);
    }
    assert!(feed.arbiter.is_live() && feed.arbiter.stats().lost == 0);
    // Of two that agree the lower one counts.
    let mut feed = Feed::new(ArbiterConfig { start: Start::Held, ..small() });
    for first in [102, 100, 101] {
        feed.receive(Source::A, first, 1, 0);
    }
    feed.arbiter.start_at(100, 0, |event| feed.heard.note(event));
    assert_eq!(feed.heard.take(), "100 101 102");
    // A line that beats says where it is, and what is kept begins there.
    let mut feed = Feed::new(ArbiterConfig { start: Start::Held, ..small() });
    for source in [Source::A, Source::B] {
        feed.bytes(source, mold::heartbeat(session("S"), 100).as_bytes(), 0);
    }
    feed.receive(Source::A, 900, 1, 0);
    feed.receive(Source::A, 100, 2, 0);
    feed.arbiter.start_at(100, 0, |event| feed.heard.note(event));
    assert_eq!(feed.heard.take(), "100 101");
}

/// Of what was held and then comes in one packet with what was missing, nothing is left behind that
/// would keep the next packets from the short way.
#[test]
fn what_is_held_and_comes_again_in_its_place_is_held_no_longer() {
    let mut feed = Feed::new(small());
    feed.receive(Source::A, 1, 1, 0);
    feed.receive(Source::A, 4, 3, 0);
    assert_eq!(feed.receive(Source::B, 2, 4, US), "2 3 4 5 6");
    assert!(feed.arbiter.window.is_empty() && feed.arbiter.is_live());
    let message = packet(7, 1);
    let message = Packet::parse(&message).unwrap();
    assert!(feed.arbiter.receive_next(Source::A, &message, US).is_some());
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

/// Requests of a server that answers at once, looked for each microsecond up to 10 ms behind the
/// first that may be: how many there were, and the least time between two.
fn asked(feed: &mut Feed, mut meanwhile: impl FnMut(&mut Feed, u64)) -> (usize, u64) {
    let mut times: Vec<u64> = Vec::new();
    for now in (200 * US..=10_200 * US).step_by(US as usize) {
        if let Some((first, count)) = feed.poll(now) {
            feed.receive(Source::Retransmission, first, count.into(), now);
            times.push(now);
        }
        meanwhile(feed, now);
    }
    let apart = times.windows(2).map(|pair| pair[1] - pair[0]).min();
    (times.len(), apart.unwrap_or(u64::MAX))
}

/// However many messages are missing, wherever they are, and however fast the answers come: no more
/// than one request in `pace_ns`.
#[test]
fn requests_have_their_pace_whatever_is_missing() {
    let pace_ns = ArbiterConfig::default().pace_ns;
    let large = ArbiterConfig { window: 4_096, ..small() };
    // A day to catch up with; every second message of a while; and a line that brings one of many
    // missing messages all the time, so that what is missing begins elsewhere each time.
    let mut day = Feed::new(large.clone());
    day.receive(Source::A, 100_000, 1, 0);
    assert_eq!(asked(&mut day, |_, _| ()), (101, pace_ns));
    assert_eq!(day.arbiter.next(), 1 + 101 * 3);

    let mut holes = Feed::new(large.clone());
    for number in (2..4_000).step_by(2) {
        holes.receive(Source::A, number, 1, 0);
    }
    let (count, apart) = asked(&mut holes, |_, _| ());
    assert!((90..=101).contains(&count) && apart >= pace_ns, "{count} requests, {apart} ns apart");

    let mut late = Feed::new(large.clone());
    late.receive(Source::A, 4_000, 1, 0);
    let (count, apart) = asked(&mut late, |feed, now| {
        let next = feed.arbiter.next();
        feed.receive(Source::B, next, 1, now);
    });
    assert!(count <= 101 && apart >= pace_ns, "{count} requests, {apart} ns apart");
    assert!(!late.arbiter.has_gap());

    // What closes by a line meanwhile is live at once, and waits for no request's turn.
    let mut feed = Feed::new(ArbiterConfig { pace_ns: 1_000_000 * US, ..large });
    feed.receive(Source::A, 1, 1, 0);
    feed.receive(Source::A, 5, 1, 0);
    assert_eq!(feed.poll(200 * US), Some((2, 3)));
    assert_eq!(feed.receive(Source::Retransmission, 2, 3, 210 * US), "2 3 4 5");
    assert!(feed.arbiter.is_live());
    feed.receive(Source::A, 7, 1, 220 * US);
    assert_eq!(feed.poll(10_000 * US), None, "its turn has not come");
    assert_eq!(feed.receive(Source::B, 6, 1, 10_000 * US), "6 7");
    assert!(feed.arbiter.is_live());
    feed.receive(Source::A, 9, 1, 10_000 * US);
    assert_eq!(feed.arbiter.poll_at(), Some(1_000_200 * US));
    assert_eq!(feed.poll(1_000_200 * US), Some((8, 1)));
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
