//! Every list here is held against what a plain queue would do.

use super::*;
use crate::{PoolConfig, RegionConfig};

fn pool(count: usize) -> Pool {
    let config = PoolConfig {
        name: "fifo".into(),
        count,
        data_room_bytes: 256,
        cache_size: 32,
        region: RegionConfig::heap(1),
        ..PoolConfig::default()
    };
    Pool::new(&config).unwrap()
}

/// Arrivals of these lengths, the last first.
struct Lengths(Vec<u32>);

impl Arrivals for Lengths {
    fn next(&mut self) -> Option<u32> {
        self.0.pop()
    }

    fn too_long(&mut self, len: u32) {
        self.0 = vec![len, u32::MAX];
    }

    fn describe(&mut self, mbuf: &mut Mbuf) {
        mbuf.set_vlan_tci(mbuf.data_len() as u16);
    }
}

fn packet(pool: &Pool, tag: u8) -> Mbuf {
    let mut mbuf = pool.get().unwrap();
    assert!(mbuf.extend_from_slice(&[tag; 20]));
    mbuf
}

#[test]
fn packets_come_out_in_order_across_the_wrap() {
    let pool = pool(64);
    let mut cache = pool.cache();
    let mut fifo = MbufFifo::new(&pool, 8);
    (fifo.head, fifo.tail, fifo.complex_end) = (u32::MAX - 5, u32::MAX - 5, u32::MAX - 5);
    let (mut next_in, mut next_out) = (0u8, 0u8);
    for round in 0..200usize {
        let mut packets = ArrayVec::<Mbuf, 16>::new();
        for _ in 0..round % 9 {
            packets.push(packet(&pool, next_in));
            next_in = next_in.wrapping_add(1);
        }
        let (had, room) = (packets.len(), fifo.free_slots());
        let mut run = fifo.hand_over(&mut packets);
        let mut n = run.take_while(16, |packet| packet.pkt_len() == 20);
        n += run.take_while(16, |packet| packet.pkt_len() == 20);
        assert_eq!(run.taken(), n);
        drop(run);
        assert_eq!(n, had.min(room));
        assert_eq!(packets.len(), had - n);
        // What did not fit is sent again first.
        next_in = next_in.wrapping_sub((had - n) as u8);
        drop(packets);
        if round % 3 == 0 {
            let n = fifo.len() / 2;
            fifo.free(n, &mut cache);
            next_out = next_out.wrapping_add(n as u8);
        } else {
            let mut out = ArrayVec::<Mbuf, 4>::new();
            fifo.pop_filled(&mut out, 9, &mut Lengths(vec![20; 9]));
            for mbuf in out {
                assert_eq!((mbuf.data()[0], mbuf.data_len()), (next_out, 20));
                next_out = next_out.wrapping_add(1);
            }
        }
    }
    drop(fifo);
    drop(cache);
    assert_eq!(pool.stats().shared, 64);
}

#[test]
fn packets_of_every_kind_are_freed_right() {
    let (own, other) = (pool(64), pool(64));
    let mut cache = own.cache();
    let mut fifo = MbufFifo::new(&own, 16);
    let mut chained = packet(&own, 1);
    chained.chain(packet(&other, 2)).unwrap();
    let original = packet(&own, 3);
    let clone = original.clone_ref(&mut cache).unwrap();
    fifo.push(packet(&own, 0)).unwrap();
    fifo.push(chained).unwrap();
    fifo.push(packet(&other, 4)).unwrap();
    fifo.push(original).unwrap();
    let mut more = ArrayVec::<Mbuf, 4>::new();
    more.extend([packet(&own, 5), packet(&own, 6), packet(&other, 7)]);
    let mut run = fifo.hand_over(&mut more);
    assert_eq!(run.take_while(9, |packet| packet.is_simple()), 2, "stops at the other pool's");
    assert_eq!(run.peek().map(|packet| packet.is_simple()), Some(false));
    assert_eq!(run.refuse().map(|mbuf| mbuf.data()[0]), Some(7));
    assert!(run.peek().is_none() && run.refuse().is_none());
    drop(run);
    assert!(more.is_empty());
    let mut last = ArrayVec::<Mbuf, 4>::new();
    last.extend([packet(&own, 8), packet(&other, 9), packet(&own, 10), packet(&own, 11)]);
    assert_eq!(fifo.hand_over(&mut last).take_while(3, |_| true), 3);
    assert_eq!(last[0].data()[0], 11, "the rest moves to the front");
    fifo.free(5, &mut cache);
    assert_eq!(other.stats().in_use, 1);
    assert_eq!(clone.data()[0], 3, "shared data outlives the freed packet");
    fifo.free(1, &mut cache);
    drop((clone, more, last, cache, fifo));
    assert_eq!((own.stats().shared, other.stats().shared), (64, 64));
}

#[test]
fn chains_are_taken_apart_across_the_wrap_and_freed_in_bulk() {
    let (own, other) = (pool(64), pool(64));
    let mut cache = own.cache();
    let mut fifo = MbufFifo::new(&own, 8);
    (fifo.head, fifo.tail, fifo.complex_end) = (u32::MAX - 3, u32::MAX - 3, u32::MAX - 3);
    let chain = |tags: &[u8]| {
        let mut first = packet(&own, tags[0]);
        tags[1..].iter().for_each(|tag| first.chain(packet(&own, *tag)).unwrap());
        first
    };
    let mut next = 0;
    for round in 0..40u8 {
        let mut packets = ArrayVec::<Mbuf, 4>::new();
        packets.extend([chain(&[1, 2, 3]), chain(&[4, 5, 6])]);
        let mut run = fifo.hand_over(&mut packets);
        assert_eq!(run.take_chains::<2>(9, |_, _| true), 0, "not of two");
        let mut taken = 0;
        while !run.is_done() {
            taken += run.take_chains::<3>(9, |packet, segments| {
                assert_eq!((packet.nb_segs(), packet.pkt_len()), (3, 60));
                let tags = segments.map(|segment| segment.data()[0]);
                tags == [1, 2, 3] || tags == [4, 5, 6]
            });
        }
        assert_eq!((taken, run.taken()), (2, 2));
        drop(run);
        assert_eq!((fifo.len(), fifo.complex_end), (6, fifo.tail), "all are simple");
        if round % 2 == 0 {
            let all = fifo.len();
            fifo.free(all, &mut cache);
        } else {
            while let Some(mbuf) = fifo.pop() {
                assert_eq!((mbuf.nb_segs(), mbuf.data()[0]), (1, next % 6 + 1));
                next += 1;
            }
        }
        // The next round starts elsewhere.
        fifo.push(packet(&own, 0)).unwrap();
        fifo.free(1, &mut cache);
    }
    // Whatever is shared, foreign to the pool, or refused stays whole.
    let shared = chain(&[7, 8]);
    let clone = shared.clone_ref(&mut cache).unwrap();
    let mut mixed = chain(&[9]);
    mixed.chain(packet(&other, 10)).unwrap();
    for (mbuf, answer) in [(shared, true), (mixed, true), (chain(&[11, 12]), false)] {
        let mut packets = ArrayVec::<Mbuf, 1>::new();
        packets.push(mbuf);
        assert_eq!(fifo.hand_over(&mut packets).take_chains::<2>(9, |_, _| answer), 0);
        assert_eq!((packets[0].nb_segs(), packets[0].pkt_len()), (2, 40));
    }
    drop((clone, cache, fifo));
    assert_eq!((own.stats().shared, other.stats().shared), (64, 64));
}

/// The same in pairs, and by the way for chains of any length, starting at every place.
#[test]
fn pairs_and_long_chains_are_taken_apart_across_the_wrap() {
    let own = pool(64);
    let mut cache = own.cache();
    let mut fifo = MbufFifo::new(&own, 8);
    let chain = |segments: u8| {
        let mut first = packet(&own, 1);
        (2..=segments).for_each(|tag| first.chain(packet(&own, tag)).unwrap());
        first
    };
    for segments in (2..=8).cycle().take(60) {
        let mut packets = ArrayVec::<Mbuf, 2>::new();
        packets.push(chain(segments));
        let mut run = fifo.hand_over(&mut packets);
        let taken = if segments == 2 {
            run.take_pairs(9, |packet, parts| {
                packet.nb_segs() == 2 && parts.map(|part| part.data()[0]) == [1, 2]
            })
        } else {
            assert_eq!(run.take_long_chains::<2>(9, |_, _| true), 0, "longer than that");
            assert_eq!(run.take_pairs(9, |_, _| true), 0, "no pair");
            assert_eq!(run.take_long_chains::<8>(9, |_, _| false), 0, "refused");
            run.take_long_chains::<8>(9, |packet, parts| {
                let tags: Vec<_> = parts.map(|part| part.data()[0]).collect();
                packet.nb_segs() == tags.len() && tags == (1..=segments).collect::<Vec<_>>()
            })
        };
        assert_eq!((taken, run.is_done()), (1, true), "{segments}");
        drop(run);
        assert_eq!((fifo.len(), fifo.complex_end), (segments.into(), fifo.tail), "all simple");
        for tag in 1..=segments {
            let mbuf = fifo.pop().unwrap();
            assert_eq!((mbuf.nb_segs(), mbuf.data()[0], mbuf.is_simple_of(&own)), (1, tag, true));
        }
    }
    // Whatever is shared or too long for the list stays whole.
    let shared = chain(3);
    let clone = shared.clone_ref(&mut cache).unwrap();
    fifo.push(packet(&own, 9)).unwrap();
    for mbuf in [shared, chain(8)] {
        let segments = mbuf.nb_segs();
        let mut packets = ArrayVec::<Mbuf, 1>::new();
        packets.push(mbuf);
        assert_eq!(fifo.hand_over(&mut packets).take_long_chains::<8>(9, |_, _| true), 0);
        assert_eq!((packets[0].nb_segs(), packets[0].pkt_len()), (segments, 20 * segments));
    }
    drop((clone, cache, fifo));
    assert_eq!(own.stats().shared, 64);
}

/// A packet whose clones are gone is as good as new, and so is its buffer.
#[test]
fn what_was_shared_once_is_simple_again() {
    let own = pool(64);
    let mut cache = own.cache();
    let mut fifo = MbufFifo::new(&own, 8);
    let unshare = |mbuf: Mbuf, cache: &mut PoolCache| {
        drop(mbuf.clone_ref(cache).unwrap());
        assert!(mbuf.is_simple_of(&own) == (mbuf.nb_segs() == 1));
        mbuf
    };
    for round in 0..3 {
        let single = unshare(packet(&own, 1), &mut cache);
        let mut chain = packet(&own, 2);
        chain.chain(packet(&own, 3)).unwrap();
        let mut chain = unshare(chain, &mut cache);
        let mut packets = ArrayVec::<Mbuf, 2>::new();
        packets.push(single);
        match round {
            0 => {
                cache.put_bulk(&mut packets);
                cache.put(chain);
            }
            1 => {
                let tail = chain.take_next().unwrap();
                assert!(chain.is_simple_of(&own) && tail.is_simple_of(&own));
                packets.push(chain);
                assert_eq!(fifo.hand_over(&mut packets).take_while(9, |p| p.is_simple()), 2);
                fifo.push(tail).unwrap();
                assert!(fifo.all_simple());
                fifo.free(3, &mut cache);
            }
            _ => {
                let mut run = fifo.hand_over(&mut packets);
                assert_eq!(run.take_while(9, |packet| packet.is_simple()), 1);
                drop(run);
                drop(chain);
                drop(fifo.pop());
            }
        }
        // They come out again, and make chains that are taken apart.
        let mut again = ArrayVec::<Mbuf, 64>::new();
        assert!(cache.get_bulk(&mut again, 64));
        let mut last = again.pop().unwrap();
        last.chain(again.pop().unwrap()).unwrap();
        assert!(again.iter().all(|mbuf| mbuf.is_simple_of(&own)) && !last.is_simple_of(&own));
        cache.put_bulk(&mut again);
        cache.put(last);
    }
    drop((cache, fifo));
    assert_eq!(own.stats().shared, 64);
}

#[test]
fn full_and_empty_and_refusals() {
    let pool = pool(8);
    let mut cache = pool.cache_with_size(4);
    let mut fifo = MbufFifo::new(&pool, 4);
    assert!(fifo.pop().is_none());
    assert_eq!(fifo.fill(&mut cache, 5, |_| ()), 4);
    assert_eq!(fifo.free_slots(), 0);
    let extra = packet(&pool, 9);
    let extra = fifo.push(extra).unwrap_err();
    assert_eq!(extra.data()[0], 9);
    let mut out = ArrayVec::<Mbuf, 8>::new();
    let mut arrivals = Lengths(vec![5, 129, 128, 0]);
    let two = fifo.pop_filled(&mut out, 9, &mut arrivals);
    assert_eq!((two, fifo.len(), out.len()), (2, 2, 2));
    assert_eq!(arrivals.0, [129, u32::MAX], "one byte more than a buffer has");
    assert_eq!((out[1].headroom(), out[1].data_len(), out[1].vlan_tci()), (128, 128, 128));
    assert!(fifo.pop_lined_up(1).is_none(), "no packet is lined up");
    assert_eq!((fifo.line_up(9), fifo.lined_up()), (2, 2));
    assert!(fifo.pop_lined_up(129).is_none());
    let one = fifo.pop_lined_up(128).unwrap();
    assert_eq!((one.headroom(), one.pkt_len(), fifo.len()), (128, 128, 1));
    fifo.push(one.clone_ref(&mut cache).unwrap()).unwrap();
    drop(one);
    assert!(fifo.pop_lined_up(1).is_none());
    assert_eq!((fifo.line_up(1), fifo.len()), (0, 2), "a clone is in the list");
    assert_eq!(fifo.pop_filled(&mut out, 9, &mut Lengths(vec![1])), 0);
    fifo.free(2, &mut cache);
    drop((out, extra));
    let mut big = MbufFifo::new(&pool, 16);
    assert_eq!(big.fill(&mut cache, 9, |_| ()), 0, "the pool has 8");
    assert_eq!(big.fill(&mut cache, 8, |_| ()), 8);
    drop((big, cache, fifo));
    assert_eq!(pool.stats().shared, 8);
}
