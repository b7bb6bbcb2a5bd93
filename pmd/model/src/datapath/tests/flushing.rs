//! What failed queues owe is completed in turns, and is what their records showed when they failed.

use ferrocx_prm::syndrome::CqeSyndrome;

use super::super::harness::*;
use super::port;
use crate::objects::QueueState;

/// Completions of one queue in one step, at most.
const TURN: usize = 256;
const LOG_ENTRIES: u32 = 12;
const ENTRIES: u16 = 1 << LOG_ENTRIES;

/// A receive queue with all entries posted, and a completion queue that takes them all.
fn posted_receives(port: &mut Port) -> (TestCq, TestRq) {
    let cq = port.cq(LOG_ENTRIES + 1);
    let rq = port.rq(cq.cqn, LOG_ENTRIES, 4);
    rq.record.store_be32(0, ENTRIES.into());
    (cq, rq)
}

fn set_rq(port: &mut Port, rqn: u32, from: QueueState, to: QueueState) {
    port.state.objects.rqs.get_mut(rqn).expect("the queue").state = to;
    port.with(|datapath, ctx| datapath.rq_state_changed(ctx, rqn, from));
}

fn set_sq(port: &mut Port, sqn: u32, from: QueueState, to: QueueState) {
    port.state.objects.sqs.get_mut(sqn).expect("the queue").state = to;
    port.with(|datapath, ctx| datapath.sq_state_changed(ctx, sqn, from));
}

/// Counters of the flushed entries that are there.
fn flushed(cq: &mut TestCq) -> Vec<u16> {
    std::iter::from_fn(|| cq.poll())
        .map(|entry| {
            assert_eq!(CqeSyndrome(entry[0x37]), CqeSyndrome::WR_FLUSH_ERR);
            u16::from_be_bytes([entry[0x3c], entry[0x3d]])
        })
        .collect()
}

/// Polls until nothing is done; the most completions of one step, and all of them.
fn drain(port: &mut Port, cq: &mut TestCq) -> (usize, Vec<u16>) {
    let mut all = flushed(cq);
    let mut most = all.len();
    while port.poll() {
        let some = flushed(cq);
        most = most.max(some.len());
        all.extend(some);
    }
    (most, all)
}

#[test]
fn a_long_receive_queue_is_flushed_in_turns_and_in_order() {
    let (mut port, _far) = port();
    let (mut cq, rq) = posted_receives(&mut port);
    set_rq(&mut port, rq.rqn, QueueState::Ready, QueueState::Error);
    let (most, all) = drain(&mut port, &mut cq);
    assert!(all.into_iter().eq(0..ENTRIES));
    assert!(most <= TURN, "{most} completions in one step");
}

#[test]
fn a_record_that_runs_away_does_not_prolong_a_flush() {
    let (mut port, _far) = port();
    let (mut cq, rq) = posted_receives(&mut port);
    set_rq(&mut port, rq.rqn, QueueState::Ready, QueueState::Error);
    let mut all = flushed(&mut cq);
    for step in 1..u32::from(ENTRIES) {
        // Whatever is flushed, more is posted at once.
        rq.record.store_be32(0, u32::from(ENTRIES) + step);
        if !port.poll() {
            break;
        }
        all.extend(flushed(&mut cq));
    }
    assert_eq!(all.len(), usize::from(ENTRIES));
}

#[test]
fn a_flush_ends_with_its_completion_queue_and_with_a_new_life() {
    let (mut port, _far) = port();
    // The carrier is seen.
    port.poll();
    let mut cq = port.cq(4);
    let rq = port.rq(cq.cqn, LOG_ENTRIES, 4);
    rq.record.store_be32(0, ENTRIES.into());
    set_rq(&mut port, rq.rqn, QueueState::Ready, QueueState::Error);
    // The queue overran: nothing is done for entries that nobody would ever see.
    assert_eq!(flushed(&mut cq).len(), 16);
    assert!(!port.poll());
    assert!(port.state.objects.rqs.get(rq.rqn).is_some_and(|rq| rq.stats.errors <= 17));

    let (mut cq, rq) = posted_receives(&mut port);
    set_rq(&mut port, rq.rqn, QueueState::Ready, QueueState::Error);
    let begun = flushed(&mut cq).len();
    set_rq(&mut port, rq.rqn, QueueState::Error, QueueState::Reset);
    assert!(!port.poll());
    assert_eq!((begun, flushed(&mut cq)), (TURN, vec![]));
}

#[test]
fn failed_queues_take_turns() {
    let (mut port, _far) = port();
    let mut queues: Vec<_> = (0..20).map(|_| posted_small(&mut port)).collect();
    for (_, rq) in &queues {
        set_rq(&mut port, rq.rqn, QueueState::Ready, QueueState::Error);
    }
    queues.iter_mut().for_each(|(cq, _)| assert_eq!(flushed(cq).len(), TURN));
    port.poll();
    let served = queues.iter_mut().filter_map(|(cq, _)| Some(flushed(cq).len()).filter(|n| *n > 0));
    assert_eq!(served.collect::<Vec<_>>(), [TURN; 16]);
    while port.poll() {}
    let rest: usize = queues.iter_mut().map(|(cq, _)| flushed(cq).len()).sum();
    assert_eq!(rest, 20 * 1024 - 20 * TURN - 16 * TURN);
}

fn posted_small(port: &mut Port) -> (TestCq, TestRq) {
    let cq = port.cq(10);
    let rq = port.rq(cq.cqn, 10, 4);
    rq.record.store_be32(0, 1024);
    (cq, rq)
}

#[test]
fn a_long_send_queue_is_flushed_in_turns_and_in_order() {
    let (mut port, _far) = port();
    let mut cq = port.cq(LOG_ENTRIES + 1);
    let mut sq = port.sq(cq.cqn, LOG_ENTRIES);
    for _ in 0..ENTRIES {
        sq.write(&send(2, 0, &[(60, KEY, 0)]));
    }
    sq.record();
    port.ring(&sq);
    set_sq(&mut port, sq.sqn, QueueState::Ready, QueueState::Error);
    let (most, all) = drain(&mut port, &mut cq);
    assert!(all.into_iter().eq(0..ENTRIES));
    assert!(most <= TURN, "{most} completions in one step");
    // Nothing stands in line any more, and what is posted later is flushed as well.
    sq.write(&send(2, 0, &[(60, KEY, 0)]));
    sq.record();
    port.ring(&sq);
    assert_eq!(drain(&mut port, &mut cq).1, [ENTRIES]);
}

/// A send queue that is destroyed with work to do, and the next one with its number, stand in line
/// once, however many steps are busy with something else.
#[test]
fn destroyed_queues_do_not_fill_the_line() {
    let (mut port, _far) = port();
    let cq = port.cq(4);
    for _ in 0..1000 {
        let mut sq = port.sq(cq.cqn, 2);
        sq.write(&[0; 64]);
        sq.record();
        port.ring(&sq);
        assert!(port.state.objects.sqs.remove(sq.sqn).is_some());
    }
    // Numbers come back when 64 others were used.
    assert!(port.datapath.active.len() < 100, "{} in line", port.datapath.active.len());
    port.poll();
    assert_eq!(port.datapath.active.len(), 0);
}
