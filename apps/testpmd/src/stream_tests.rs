//! Streams between a receive and a send queue of this file.

use std::collections::VecDeque;

use ferrocx_mempool::{Pool, PoolConfig, RegionConfig};

use super::*;
use crate::{config::Load, ether::MacAddr};

fn pool(count: usize) -> Pool {
    let region = RegionConfig::heap(0);
    let name = "test".into();
    Pool::new(&PoolConfig { name, count, cache_size: 0, region, ..PoolConfig::default() }).unwrap()
}

/// A receive queue with these frames in it.
#[derive(Debug)]
struct From(VecDeque<Mbuf>);

impl Receive for From {
    fn rx_burst<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>) -> usize {
        let n = self.0.len().min(out.remaining_capacity());
        out.extend(self.0.drain(..n));
        n
    }
}

/// A send queue that takes as many frames as it is told in each burst.
#[derive(Debug, Default)]
struct To {
    room: VecDeque<usize>,
    sent: Vec<Vec<u8>>,
    refused: u64,
}

impl Transmit for To {
    fn tx_burst<const N: usize>(&mut self, frames: &mut ArrayVec<Mbuf, N>) -> usize {
        let n = self.room.pop_front().unwrap_or(usize::MAX).min(frames.len());
        self.sent.extend(frames.drain(..n).map(|frame| frame.data().to_vec()));
        n
    }

    fn refused(&self) -> u64 {
        self.refused
    }
}

fn frames(pool: &Pool, n: usize) -> From {
    let frame = |number: usize| {
        let mut mbuf = pool.get().unwrap();
        assert!(mbuf.extend_from_slice(&[u8::try_from(number).unwrap(); 60]));
        mbuf
    };
    From((0..n).map(frame).collect())
}

fn stream(pool: &Pool, rx: From, room: &[usize], engine: Engine) -> Stream<From, To, 4> {
    let tx = To { room: room.iter().copied().collect(), ..To::default() };
    Stream::new(0, (rx, tx), engine, Offloads::default(), None, pool.cache())
}

#[test]
fn frames_leave_in_the_order_in_which_they_came() {
    let pool = pool(16);
    let mut stream = stream(&pool, frames(&pool, 10), &[], Engine::Io);
    assert!(stream.turn() && stream.turn() && stream.turn());
    assert!(!stream.turn());
    let Finished { counts, tx: to, .. } = stream.finish();
    let numbers: Vec<u8> = to.sent.iter().map(|frame| frame[0]).collect();
    assert_eq!(numbers, (0..10).collect::<Vec<u8>>());
    assert_eq!((counts.received.frames, counts.received.bytes), (10, 600));
    assert_eq!(counts.forwarded, counts.received);
    assert_eq!((counts.polls, counts.empty_polls, counts.tx_full), (4, 1, 0));
    assert_eq!(counts.check(), Ok(()));
    assert_eq!(pool.stats().in_use, 0);
}

#[test]
fn a_full_send_queue_holds_the_stream_back() {
    let pool = pool(16);
    // Three of four, none, none, one: only then is the next burst received.
    let mut stream = stream(&pool, frames(&pool, 6), &[3, 0, 0, 1], Engine::Io);
    assert!(stream.turn());
    assert_eq!((stream.counts().in_hand, stream.counts().forwarded.bytes), (1, 180));
    assert_eq!(stream.counts().check(), Ok(()));
    assert!(!stream.turn() && !stream.turn());
    assert_eq!(stream.counts().received.frames, 4);
    assert!(stream.turn());
    assert_eq!((stream.counts().received.frames, stream.counts().in_hand), (6, 0));
    assert_eq!(stream.counts().tx_full, 3);
    let Finished { counts, tx: to, .. } = stream.finish();
    assert_eq!(to.sent.iter().map(|frame| frame[0]).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(counts.check(), Ok(()));
}

#[test]
fn frames_in_hand_at_the_end_are_dropped_by_name() {
    let pool = pool(16);
    let mut stream = stream(&pool, frames(&pool, 4), &[1, 0], Engine::Io);
    stream.turn();
    let Finished { counts, .. } = stream.finish();
    assert_eq!(counts.dropped.get(Reason::Stopped), 3);
    assert_eq!((counts.forwarded.frames, counts.in_hand), (1, 0));
    assert_eq!(counts.check(), Ok(()));
    assert_eq!(pool.stats().in_use, 0);
}

#[test]
fn frames_that_the_queue_refuses_later_are_dropped_by_name() {
    let pool = pool(16);
    let mut stream = stream(&pool, frames(&pool, 4), &[], Engine::Io);
    stream.turn();
    stream.queues_mut().1.refused = 1;
    let Finished { counts, .. } = stream.finish();
    assert_eq!((counts.forwarded.frames, counts.dropped.get(Reason::TxRefused)), (3, 1));
    assert_eq!(counts.check(), Ok(()));
}

#[test]
fn consumed_frames_are_never_sent() {
    let pool = pool(16);
    let mut stream = stream(&pool, frames(&pool, 7), &[], Engine::Consume);
    while stream.turn() {}
    let Finished { counts, tx: to, .. } = stream.finish();
    assert_eq!((counts.dropped.get(Reason::Consumed), to.sent.len()), (7, 0));
    assert_eq!(counts.check(), Ok(()));
}

fn source(count: Option<u64>, rate: Option<u64>) -> Source {
    let load = Load { sizes: vec![64], flows: 1, rate: None };
    Source::new(Frames::new(&load, MacAddr([2; 6]), MacAddr([6; 6]), 0), count, rate)
}

#[test]
fn a_source_makes_its_count_and_ends() {
    for count in [0, 1, 3, 4, 5, 9] {
        let pool = pool(16);
        let tx = To { room: [0, 2, 1].into(), ..To::default() };
        let source = Some(source(Some(count), None));
        let queues = (frames(&pool, 0), tx);
        let offloads = Offloads::default();
        let mut stream: Stream<_, _, 4> =
            Stream::new(0, queues, Engine::Consume, offloads, source, pool.cache());
        for _ in 0..20 {
            stream.turn();
        }
        assert!(stream.is_done());
        let Finished { counts, tx: to, .. } = stream.finish();
        assert_eq!(counts.generated.frames, count);
        let numbers: Vec<u64> = to.sent.iter().map(|frame| u64::from(frame[49])).collect();
        assert_eq!(numbers, (0..count).collect::<Vec<_>>());
        assert_eq!(counts.check(), Ok(()));
        assert_eq!(pool.stats().in_use, 0);
    }
}

#[test]
fn what_goes_first_is_sent_once_and_then_frames_are_forwarded() {
    let pool = pool(16);
    let first = Source { is_first: true, ..source(Some(6), None) };
    let queues = (frames(&pool, 3), To { room: [2, 4, 4, 4].into(), ..To::default() });
    let offloads = Offloads::default();
    let mut stream: Stream<_, _, 4> =
        Stream::new(0, queues, Engine::Io, offloads, Some(first), pool.cache());
    for _ in 0..20 {
        stream.turn();
    }
    assert!(!stream.is_done(), "forwarding has no end");
    let Finished { counts, .. } = stream.finish();
    assert_eq!((counts.generated.frames, counts.forwarded.frames), (6, 3));
    assert_eq!(counts.check(), Ok(()));
}

#[test]
fn an_empty_pool_is_a_count() {
    let pool = pool(3);
    let queues = (frames(&pool, 0), To::default());
    let source = Some(source(None, None));
    let mut stream: Stream<_, _, 4> =
        Stream::new(0, queues, Engine::Consume, Offloads::default(), source, pool.cache());
    assert!(!stream.turn());
    assert_eq!((stream.counts().no_mbuf, stream.counts().generated.frames), (1, 0));
}

#[test]
fn a_rate_bounds_what_is_due() {
    let made = std::time::Instant::now();
    let paced = source(None, Some(1));
    // Not a second has passed since it was made, unless the machine was elsewhere.
    assert!(paced.due(4) as u64 <= made.elapsed().as_secs());
    let mut paced = source(None, Some(1_000_000_000_000));
    std::thread::sleep(std::time::Duration::from_millis(1));
    assert_eq!(paced.due(4), 4);
    paced.left = Some(3);
    assert_eq!(paced.due(4), 3);
}

#[test]
fn received_frames_are_taken_while_generating() {
    let pool = pool(16);
    let queues = (frames(&pool, 2), To::default());
    let source = Some(source(Some(4), None));
    let mut stream: Stream<_, _, 4> =
        Stream::new(0, queues, Engine::Consume, Offloads::default(), source, pool.cache());
    assert!(stream.turn());
    let counts = stream.counts();
    assert_eq!((counts.generated.frames, counts.dropped.get(Reason::Consumed)), (4, 2));
    assert_eq!(counts.check(), Ok(()));
}
