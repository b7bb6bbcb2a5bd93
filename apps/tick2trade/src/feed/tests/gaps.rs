//! What is missing, or said to be by one packet alone: asked for, given up, in doubt.

use super::*;

#[test]
fn a_gap_waits_for_the_other_line_before_it_is_asked_for() {
    let mut feed = Feed::new(small());
    assert_eq!(feed.receive(Source::A, 1, 1, 0), "1");
    assert_eq!(feed.receive(Source::A, 3, 2, 0), "");
    assert_eq!(feed.arbiter.poll_at(), Some(200 * US));
    assert_eq!(feed.poll(199 * US), None);
    assert_eq!(feed.receive(Source::B, 2, 1, 150 * US), "2 3 4");
    assert_eq!(feed.arbiter.poll_at(), Some(150 * US + SILENCE_NS));
    assert_eq!(feed.arbiter.stats().recovery_ns.len(), 1);
}

#[test]
fn what_no_line_brings_is_asked_for_again_and_then_given_up_by_name() {
    let mut feed = Feed::new(small());
    feed.receive(Source::A, 1, 1, 0);
    feed.receive(Source::A, 7, 1, 0);
    feed.receive(Source::B, 7, 1, 0);
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
fn what_one_packet_alone_speaks_of_is_asked_for_and_not_given_up_by_it() {
    let mut feed = Feed::new(small());
    feed.receive(Source::A, 1, 1, 0);
    assert_eq!(feed.receive(Source::A, 6, 1, 0), "");
    assert_eq!(feed.poll(200 * US), Some((2, 3)));
    assert_eq!(feed.poll(2_200 * US), Some((2, 3)));
    // The feed goes on below; what was asked for is given up, and nothing is lost.
    assert_eq!(feed.receive(Source::B, 2, 1, 2_300 * US), "2");
    assert_eq!(feed.poll(4_200 * US), None);
    let silent_at = Some(2_300 * US + SILENCE_NS);
    assert_eq!((feed.heard.take(), feed.arbiter.poll_at()), (String::new(), silent_at));
    let stats = feed.arbiter.stats();
    assert_eq!((stats.lost, stats.unconfirmed, feed.arbiter.next()), (0, 1, 3));
    for number in 3..=6 {
        let said = feed.receive(Source::A, number, 1, 5_000 * US);
        assert_eq!(said, number.to_string(), "its own, and not what was held");
    }
    assert_eq!(feed.arbiter.stats().unconfirmed, 1);
    // Two packets, and be it at different numbers, are believed as far as both go.
    feed.receive(Source::A, 9, 1, 6_000 * US);
    feed.receive(Source::A, 12, 1, 6_000 * US);
    for now in [6_200, 8_200] {
        assert_eq!(feed.poll(now * US), Some((7, 2)));
    }
    assert_eq!(feed.poll(10_200 * US), None);
    assert_eq!(feed.heard.take(), "-7+2 9");
}

#[test]
fn two_strays_with_the_feed_in_between_are_two_strays_and_a_tail_that_is_said_twice_is_lost() {
    let mut feed = Feed::new(small());
    feed.receive(Source::A, 1, 1, 0);
    let give_up = |feed: &mut Feed, now: u64| {
        for at in [200, 2_200, 4_200] {
            feed.poll((now + at) * US);
        }
        feed.heard.take()
    };
    assert_eq!(feed.receive(Source::A, 6, 1, 0), "");
    assert_eq!(give_up(&mut feed, 0), "");
    assert_eq!(feed.receive(Source::A, 2, 1, 5_000 * US), "2");
    assert_eq!(feed.receive(Source::A, 9, 1, 10_000 * US), "");
    assert_eq!(give_up(&mut feed, 10_000), "");
    assert_eq!(feed.receive(Source::A, 3, 1, 15_000 * US), "3");
    let stats = feed.arbiter.stats();
    assert_eq!((stats.lost, stats.unconfirmed), (0, 2));
    // The last message is lost, nobody has it, and a heartbeat a second says that it was.
    let tail = mold::heartbeat(session("S"), 5);
    feed.bytes(Source::A, tail.as_bytes(), 20_000 * US);
    assert_eq!(give_up(&mut feed, 20_000), "");
    feed.bytes(Source::A, tail.as_bytes(), 1_020_000 * US);
    assert_eq!(give_up(&mut feed, 1_020_000), "-4+1");
}

#[test]
fn two_strays_are_none_either_before_the_first_is_given_up_if_the_feed_goes_on_between_them() {
    let mut feed = Feed::new(small());
    feed.receive(Source::A, 1, 1, 0);
    assert_eq!(feed.receive(Source::A, 6, 1, 0), "");
    assert_eq!(feed.receive(Source::A, 2, 1, US), "2");
    assert_eq!(feed.receive(Source::B, 1_000, 1, 2 * US), "");
    for now in [200, 2_200, 4_200, 6_200, 8_200] {
        feed.poll(now * US);
    }
    let stats = feed.arbiter.stats();
    assert_eq!((feed.heard.take().as_str(), stats.lost, stats.unconfirmed), ("", 0, 1));
    for number in 3..=8 {
        assert_eq!(feed.receive(Source::A, number, 1, 9_000 * US), number.to_string());
    }
}

#[test]
fn what_one_packet_speaks_of_is_asked_for_as_long_as_it_is_answered() {
    let mut feed = Feed::new(ArbiterConfig { window: 64, ..small() });
    feed.receive(Source::A, 1, 1, 0);
    feed.receive(Source::A, 50, 1, 0);
    let mut now = 200;
    for first in (2..50).step_by(3) {
        assert_eq!(feed.poll(now * US), Some((first, 3)));
        let expected = format!("{first} {} {}", first + 1, first + 2);
        let last = if first == 47 { " 50" } else { "" };
        let said = feed.receive(Source::Retransmission, first, 3, now * US);
        assert_eq!(said, format!("{expected}{last}"));
        now += 2_000;
    }
    let stats = feed.arbiter.stats();
    assert_eq!((stats.lost, stats.unconfirmed, feed.arbiter.has_gap()), (0, 0, false));
}

/// Both lines lose much, and the one that is behind says less than the other did: what that spoke
/// of is missing all the same, and one packet alone is confirmed by none from before the feed went
/// on.
#[test]
fn what_one_packet_spoke_of_is_missing_until_it_comes_whatever_another_says_of_less() {
    let mut feed = Feed::new(ArbiterConfig { window: 64, ..small() });
    feed.receive(Source::A, 1, 1, 0);
    feed.receive(Source::A, 50, 1, 0);
    assert_eq!(feed.poll(200 * US), Some((2, 3)));
    assert_eq!(feed.receive(Source::Retransmission, 2, 3, 300 * US), "2 3 4");
    assert_eq!(feed.receive(Source::B, 8, 1, 300 * US), "");
    assert_eq!(feed.poll(300 * US), Some((5, 3)));
    assert_eq!(feed.receive(Source::Retransmission, 5, 3, 400 * US), "5 6 7 8");
    assert!(feed.arbiter.has_gap() && !feed.arbiter.is_live());
    assert_eq!(feed.poll(400 * US), Some((9, 3)));
    // The server has them no more. None of them is given up: of two packets one said so.
    feed.poll(2_400 * US);
    feed.poll(4_400 * US);
    let stats = feed.arbiter.stats();
    assert_eq!((feed.heard.take().as_str(), stats.lost, stats.unconfirmed), ("", 0, 1));
    // Of strays with the feed in between the second confirms what came with it alone.
    let mut feed = Feed::new(ArbiterConfig { window: 64, ..small() });
    feed.receive(Source::A, 1, 1, 0);
    feed.receive(Source::A, 900, 1, 0);
    assert_eq!(feed.receive(Source::A, 2, 1, 0), "2");
    feed.receive(Source::A, 5, 1, 0);
    feed.receive(Source::B, 800, 1, 0);
    for now in [200, 2_200] {
        assert_eq!(feed.poll(now * US), Some((3, 2)));
    }
    for now in [4_200, 4_400, 6_400, 8_400] {
        feed.poll(now * US);
    }
    let stats = feed.arbiter.stats();
    assert_eq!((feed.heard.take().as_str(), stats.lost, stats.unconfirmed), ("-3+2 5", 2, 1));
}

/// One line is down, the other lost the last messages, and nobody answers: they are not lost by the
/// word of one packet, and nobody trades without them by the silence of a server.
#[test]
fn what_was_asked_for_in_vain_is_in_doubt_until_a_line_goes_on_without_it() {
    let heartbeat = |number| mold::heartbeat(session("S"), number).as_bytes().to_vec();
    let refused = || {
        let mut feed = Feed::new(small());
        feed.receive(Source::A, 1, 9, 0);
        feed.bytes(Source::A, &heartbeat(15), 0);
        for now in [200, 2_200] {
            assert_eq!(feed.poll(now * US), Some((10, 3)));
        }
        assert_eq!(feed.poll(4_200 * US), None);
        assert_eq!((feed.arbiter.stats().unconfirmed, feed.arbiter.has_gap()), (1, false));
        assert!(!feed.arbiter.is_live());
        feed
    };
    // Neither what was there nor a line that is behind says anything of it.
    let mut feed = refused();
    feed.receive(Source::B, 9, 1, 5_000 * US);
    feed.bytes(Source::B, &heartbeat(9), 5_000 * US);
    assert!(!feed.arbiter.is_live());
    // The feed goes on with the next message: by the long way, behind which it is looked for.
    let message = packet(10, 1);
    let message = Packet::parse(&message).unwrap();
    assert_eq!(feed.arbiter.clone().receive_next(Source::A, &message, 5_000 * US), None);
    assert_eq!(feed.receive(Source::A, 10, 1, 5_000 * US), "10");
    assert!(feed.arbiter.is_live());
    // Or a line says that there is none.
    let mut feed = refused();
    feed.bytes(Source::B, &heartbeat(10), 5_000 * US);
    assert!(feed.arbiter.is_live());
    // A second packet says that they are: they are asked for again, and then lost.
    let mut feed = refused();
    feed.bytes(Source::A, &heartbeat(15), 5_000 * US);
    for now in [5_200, 7_200, 9_200] {
        feed.poll(now * US);
    }
    assert_eq!((feed.heard.take().as_str(), feed.arbiter.is_live()), ("-10+5", true));
    // An answer that comes late is one: what is missing behind it is asked for.
    let mut feed = refused();
    assert_eq!(feed.receive(Source::Retransmission, 10, 3, 5_000 * US), "10 11 12");
    assert!(feed.arbiter.has_gap() && !feed.arbiter.is_live());
    assert_eq!(feed.poll(5_200 * US), Some((13, 2)));
    assert_eq!(feed.receive(Source::Retransmission, 13, 2, 5_200 * US), "13 14");
    assert!(feed.arbiter.is_live());
    // Answers that stop in the middle are no line that goes on, either.
    feed.bytes(Source::A, &heartbeat(20), 6_000 * US);
    assert_eq!(feed.poll(6_200 * US), Some((15, 3)));
    assert_eq!(feed.receive(Source::Retransmission, 15, 1, 6_300 * US), "15");
    for now in [6_300, 8_300, 10_300] {
        feed.poll(now * US);
    }
    assert!(!feed.arbiter.has_gap() && !feed.arbiter.is_live());
}

/// Who answers what nobody asked feeds no book: neither the next message comes by that way, nor a
/// session, nor a word of where the feed is.
#[test]
fn an_answer_brings_what_is_missing_and_nothing_else() {
    let mut feed = Feed::new(small());
    assert_eq!(feed.receive(Source::Retransmission, 1, 1, 0), "");
    assert_eq!((feed.arbiter.session(), feed.arbiter.stats().foreign), (None, 1));
    feed.receive(Source::A, 1, 2, 0);
    let heartbeat = mold::heartbeat(session("S"), 7).as_bytes().to_vec();
    let end = mold::end_of_session(session("S"), 3).as_bytes().to_vec();
    for bytes in [packet(3, 1), packet(2, 2), packet(5, 1), heartbeat, end] {
        assert_eq!(feed.bytes(Source::Retransmission, &bytes, US), "");
        assert!(feed.arbiter.is_live());
    }
    assert_eq!((feed.arbiter.next(), feed.arbiter.stats().unasked), (3, 5));
    // What is late is no sign of life.
    assert_eq!(feed.receive(Source::Retransmission, 1, 2, SILENCE_NS - 1), "");
    assert_eq!(feed.arbiter.poll_at(), Some(SILENCE_NS));
    let other = mold::heartbeat(session("T"), 1);
    for _ in 0..5 {
        feed.bytes(Source::Retransmission, other.as_bytes(), 2 * SILENCE_NS);
    }
    assert_eq!((feed.arbiter.session(), feed.arbiter.stats().foreign), (Some(session("S")), 6));
    // One line spoke of 3 to 5: those, and none behind them.
    feed.receive(Source::A, 5, 1, 2 * SILENCE_NS);
    assert_eq!(feed.receive(Source::Retransmission, 3, 4, 2 * SILENCE_NS), "");
    assert_eq!(feed.receive(Source::Retransmission, 3, 1, 2 * SILENCE_NS), "3");
    assert_eq!(feed.receive(Source::Retransmission, 4, 1, 2 * SILENCE_NS), "4 5");
    // Nothing is asked for while a snapshot is awaited.
    feed.arbiter.wait_for_snapshot();
    feed.receive(Source::A, 8, 1, 2 * SILENCE_NS);
    assert_eq!(feed.receive(Source::Retransmission, 7, 1, 2 * SILENCE_NS), "");
    feed.arbiter.start_at(7, 2 * SILENCE_NS, |event| feed.heard.note(event));
    assert_eq!((feed.heard.take().as_str(), feed.arbiter.stats().unasked), ("", 7));
}
