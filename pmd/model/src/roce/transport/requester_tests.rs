//! Requests, answers and time, without a byte of payload.

#![allow(clippy::cast_possible_truncation, reason = "test data")]

use super::*;

const LIMITS: Limits = Limits {
    is_reliable: true,
    max_reads: 2,
    retry_count: 2,
    rnr_retry: 1,
    timeout_ns: Some(1000),
};
/// The PSN after which the number wraps: every test crosses it.
const START: Psn = Psn::new(0xff_fffe);

fn requester() -> Requester<u32> {
    Requester::new(START, LIMITS)
}

fn pushes(requester: &mut Requester<u32>, packets: &[u32]) {
    for (job, packets) in (0..).zip(packets) {
        requester.push(Kind::Push, Fence::None, *packets, job);
    }
}

/// Sends what is due; returns the PSNs as offsets from the start.
fn send(requester: &mut Requester<u32>, now_ns: u64) -> Vec<i32> {
    let mut psns = Vec::new();
    loop {
        match requester.next(now_ns, 1) {
            Next::Packet(packet) => {
                psns.push(packet.psn.since(START));
                requester.sent(1, now_ns);
            }
            Next::Local(index) => requester.local_done(index),
            Next::Idle => return psns,
        }
    }
}

fn popped(requester: &mut Requester<u32>) -> Vec<(u32, Option<Fault>)> {
    std::iter::from_fn(|| requester.pop().map(|(request, fault)| (request.job, fault))).collect()
}

fn at(offset: u32) -> Psn {
    START.plus(offset)
}

#[test]
fn one_acknowledgement_ends_many_requests() {
    let mut requester = requester();
    pushes(&mut requester, &[1, 3, 2]);
    assert_eq!(send(&mut requester, 0), [0, 1, 2, 3, 4, 5]);
    assert!(popped(&mut requester).is_empty());
    assert_eq!(requester.acknowledge(at(4), 1), Answer::Progress);
    assert_eq!(popped(&mut requester), [(0, None), (1, None)]);
    assert_eq!(requester.acknowledge(at(4), 2), Answer::Stale, "again");
    assert_eq!(requester.acknowledge(at(6), 2), Answer::Stale, "never sent");
    assert_eq!(requester.acknowledge(at(5), 3), Answer::Progress);
    assert_eq!(popped(&mut requester), [(2, None)]);
    assert!(requester.is_empty());
}

#[test]
fn acknowledgements_are_asked_for_at_the_end_and_on_the_way() {
    let mut requester = requester();
    pushes(&mut requester, &[40]);
    let mut asked = Vec::new();
    while let Next::Packet(packet) = requester.next(0, 1) {
        if packet.ack_request {
            asked.push(packet.number);
        }
        requester.sent(1, 0);
    }
    assert_eq!(asked, [15, 31, 39]);
}

#[test]
fn no_more_is_sent_than_the_window_holds() {
    let mut requester = requester();
    pushes(&mut requester, &[1000]);
    assert_eq!(send(&mut requester, 0).len(), WINDOW as usize);
    requester.acknowledge(at(0), 0);
    assert_eq!(send(&mut requester, 0), [WINDOW], "one more");
}

#[test]
fn a_sequence_nak_goes_back_and_does_not_repeat_what_is_done() {
    let mut requester = requester();
    pushes(&mut requester, &[2, 3]);
    send(&mut requester, 0);
    assert_eq!(requester.nak_sequence(at(3), 10), Answer::Retry);
    assert_eq!(popped(&mut requester), [(0, None)]);
    assert_eq!(send(&mut requester, 10), [3, 4]);
    requester.acknowledge(at(4), 20);
    assert_eq!(popped(&mut requester), [(1, None)]);
}

#[test]
fn acknowledged_packets_are_skipped_while_going_back() {
    let mut requester = requester();
    pushes(&mut requester, &[5, 1]);
    send(&mut requester, 0);
    requester.nak_sequence(at(1), 10);
    requester.acknowledge(at(3), 11);
    assert_eq!(send(&mut requester, 12), [4, 5]);
}

#[test]
fn timeouts_retry_and_then_give_up() {
    let mut requester = requester();
    pushes(&mut requester, &[1, 1]);
    send(&mut requester, 0);
    assert!(!requester.tick(999));
    for now in [1000, 2000] {
        assert!(requester.tick(now));
        assert_eq!(send(&mut requester, now), [0, 1]);
    }
    assert!(requester.tick(3000), "retry_count 2 is two retries");
    assert_eq!(popped(&mut requester), [(0, Some(Fault::Retries))]);
    assert!(send(&mut requester, 3000).is_empty() || requester.len() == 1);
}

#[test]
fn progress_gives_retries_back() {
    let mut requester = requester();
    pushes(&mut requester, &[1, 1]);
    send(&mut requester, 0);
    assert!(requester.tick(1000) && requester.tick(2000));
    send(&mut requester, 2000);
    requester.acknowledge(at(0), 2001);
    assert!(requester.tick(3001), "the time starts again");
    assert_eq!(popped(&mut requester), [(0, None)], "and the retries");
}

#[test]
fn rnr_waits_for_its_time_and_counts_apart() {
    let mut requester = requester();
    pushes(&mut requester, &[1]);
    send(&mut requester, 0);
    // Code 1: 10 microseconds. Source: reference 7.5.
    assert_eq!(requester.rnr(at(0), 1, 100), Answer::Retry);
    assert!(send(&mut requester, 10_099).is_empty() && !requester.tick(10_099));
    assert_eq!(send(&mut requester, 10_100), [0]);
    requester.rnr(at(0), 1, 20_000);
    assert_eq!(popped(&mut requester), [(0, Some(Fault::RnrRetries))], "rnr_retry 1 is one");
}

#[test]
fn rnr_retry_seven_is_for_ever() {
    let mut requester = Requester::new(START, Limits { rnr_retry: 7, ..LIMITS });
    requester.push(Kind::Push, Fence::None, 1, 0);
    for round in 0..100 {
        assert_eq!(send(&mut requester, round * 20_000), [0]);
        assert_eq!(requester.rnr(at(0), 1, round * 20_000), Answer::Retry);
    }
}

#[test]
fn a_read_takes_a_number_for_every_answer() {
    let mut requester = requester();
    requester.push(Kind::Read, Fence::None, 3, 0);
    requester.push(Kind::Push, Fence::None, 1, 1);
    assert_eq!(send(&mut requester, 0), [0, 3]);
    let first = requester.response(at(0), 1, Op::ReadResponseFirst, 1);
    assert_eq!(first, Answer::Take { index: 0, number: 0 });
    requester.answered(0, 1, 1);
    assert_eq!(requester.response(at(0), 1, Op::ReadResponseFirst, 1), Answer::Stale, "again");
    assert_eq!(requester.response(at(2), 1, Op::ReadResponseLast, 2), Answer::Retry, "one is lost");
    assert_eq!(requester.response(at(2), 1, Op::ReadResponseLast, 2), Answer::Stale, "known");
    assert_eq!(send(&mut requester, 2), [1, 3], "the rest is asked for again");
    for (offset, op) in [(1, Op::ReadResponseFirst), (2, Op::ReadResponseLast)] {
        assert!(matches!(requester.response(at(offset), 1, op, 3), Answer::Take { index: 0, .. }));
        requester.answered(0, 1, 3);
    }
    assert_eq!(popped(&mut requester), [(0, None)]);
    requester.acknowledge(at(3), 4);
    assert_eq!(popped(&mut requester), [(1, None)]);
}

#[test]
fn an_acknowledgement_behind_a_read_means_that_its_answer_is_lost() {
    let mut requester = requester();
    pushes(&mut requester, &[1]);
    requester.push(Kind::Read, Fence::None, 1, 1);
    pushes(&mut requester, &[1]);
    send(&mut requester, 0);
    assert_eq!(requester.acknowledge(at(2), 1), Answer::Retry);
    assert_eq!(popped(&mut requester), [(0, None)]);
    assert_eq!(send(&mut requester, 1), [1, 2]);
}

#[test]
fn reads_in_flight_are_limited_and_fences_wait_for_them() {
    let mut requester = requester();
    for job in 0..3 {
        requester.push(Kind::Read, Fence::None, 1, job);
    }
    requester.push(Kind::Push, Fence::Reads, 1, 3);
    assert_eq!(send(&mut requester, 0), [0, 1]);
    for (offset, sent) in [(0, vec![2]), (1, vec![]), (2, vec![3])] {
        let answer = requester.response(at(offset), 1, Op::ReadResponseOnly, 1);
        let Answer::Take { index, number: 0 } = answer else { panic!("{answer:?}") };
        requester.answered(index, 1, 1);
        assert_eq!(send(&mut requester, 1), sent);
    }
}

#[test]
fn local_requests_run_in_order_and_once() {
    let mut requester = requester();
    requester.push(Kind::Push, Fence::None, 1, 0);
    requester.push(Kind::Local, Fence::All, 0, 1);
    requester.push(Kind::Push, Fence::None, 1, 2);
    assert_eq!(send(&mut requester, 0), [0], "the fence holds the local one, and all behind it");
    requester.acknowledge(at(0), 1);
    assert_eq!(requester.next(1, 1), Next::Local(1));
    requester.local_done(1);
    assert_eq!(send(&mut requester, 1), [1]);
    requester.nak_sequence(at(1), 2);
    assert_eq!(send(&mut requester, 2), [1], "the local one is not repeated");
    assert_eq!(popped(&mut requester), [(0, None), (1, None)]);
}

#[test]
fn refusals_blame_their_request_and_only_after_those_before_it() {
    let mut requester = requester();
    pushes(&mut requester, &[1, 2, 1]);
    send(&mut requester, 0);
    requester.refused(at(2), Fault::Access, 1);
    assert_eq!(popped(&mut requester), [(0, None), (1, Some(Fault::Access))]);
    let mut requester = self::requester();
    pushes(&mut requester, &[1]);
    requester.push_failed(Fault::Local(2), 7);
    assert_eq!(send(&mut requester, 0), [0]);
    assert!(popped(&mut requester).is_empty(), "the one before is not done");
    requester.acknowledge(at(0), 1);
    assert_eq!(popped(&mut requester), [(0, None), (7, Some(Fault::Local(2)))]);
}

#[test]
fn answers_that_fit_nothing_are_bad_responses() {
    let mut requester = requester();
    pushes(&mut requester, &[1]);
    send(&mut requester, 0);
    requester.response(at(0), 1, Op::ReadResponseOnly, 1);
    assert_eq!(popped(&mut requester), [(0, Some(Fault::BadResponse))]);
    let mut requester = self::requester();
    requester.push(Kind::Read, Fence::None, 2, 0);
    send(&mut requester, 0);
    requester.response(at(0), 1, Op::ReadResponseOnly, 1);
    assert_eq!(popped(&mut requester), [(0, Some(Fault::BadResponse))], "too short");
}

#[test]
fn an_unreliable_request_is_done_when_it_is_sent() {
    let mut requester = Requester::new(START, Limits::default());
    requester.push(Kind::Push, Fence::None, 300, 0);
    assert_eq!(send(&mut requester, 0).len(), 300, "there is no window");
    assert_eq!(popped(&mut requester), [(0, None)]);
}

#[test]
fn packets_go_together_within_their_request_and_the_window() {
    let mut requester = requester();
    pushes(&mut requester, &[20, 3, 300]);
    let mut seen = Vec::new();
    while let Next::Packet(packet) = requester.next(0, 15) {
        let at = packet.psn.since(START);
        seen.push((at, packet.packets, packet.is_last, packet.ack_request));
        requester.sent(packet.packets, 0);
    }
    let first = [(0, 15, false, false), (15, 5, true, true), (20, 3, true, true)];
    assert_eq!(seen[..3], first);
    // An acknowledgement is asked for wherever one of them alone would ask.
    assert_eq!(seen[3..6], [(23, 15, false, false), (38, 15, false, true), (53, 15, false, true)]);
    assert_eq!(seen.iter().map(|seen| seen.1).sum::<u32>(), WINDOW as u32);
    assert_eq!(requester.acknowledge(at(16), 1), Answer::Progress);
    // The rest of what is lost goes together as well.
    assert_eq!(requester.nak_sequence(at(17), 2), Answer::Retry);
    let Next::Packet(packet) = requester.next(2, 15) else { panic!("nothing to send") };
    assert_eq!((packet.psn, packet.packets, packet.is_last), (at(17), 3, true));
}
