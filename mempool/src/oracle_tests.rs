//! Random sequences of operations on two pools, checked step by step against plain vectors.
#![expect(unsafe_code, reason = "raw packets")]

use std::collections::HashSet;

use arrayvec::ArrayVec;
use proptest::prelude::*;

use crate::{Mbuf, Pool, PoolCache, pool_tests};

const COUNT: usize = 12;
/// Operations in a sequence, less one. Miri is slow.
const MAX_OPS: usize = if cfg!(miri) { 25 } else { 121 };

/// An operation; indices are taken modulo what is there.
#[derive(Debug, Clone)]
enum Op {
    /// From the cache of pool `.0`, or past it.
    Get(usize, bool),
    GetBulk(usize, usize),
    /// Through the cache of pool `.1`, which may be the wrong one.
    Put(usize, usize),
    PutBulk(usize, usize),
    Drop(usize),
    Flush(usize),
    NewCache(usize, usize),
    Append(usize, u8, usize),
    Prepend(usize, u8, usize),
    Trim(usize, usize),
    Adj(usize, usize),
    Chain(usize, usize),
    TakeNext(usize),
    Clone(usize, usize),
    Overwrite(usize, u8),
    RawRoundTrip(usize),
    DropOnThread(usize),
}

fn op() -> impl Strategy<Value = Op> {
    use Op::*;
    let i = || 0..64_usize;
    let p = || 0..2_usize;
    prop_oneof![
        4 => (p(), any::<bool>()).prop_map(|(p, c)| Get(p, c)),
        2 => (p(), 0..=COUNT + 1).prop_map(|(p, n)| GetBulk(p, n)),
        2 => (i(), p()).prop_map(|(a, p)| Put(a, p)),
        1 => (p(), 0..6_usize).prop_map(|(p, n)| PutBulk(p, n)),
        2 => i().prop_map(Drop),
        1 => p().prop_map(Flush),
        1 => (p(), 0..9_usize).prop_map(|(p, n)| NewCache(p, n)),
        3 => (i(), any::<u8>(), 0..120_usize).prop_map(|(a, b, n)| Append(a, b, n)),
        2 => (i(), any::<u8>(), 0..40_usize).prop_map(|(a, b, n)| Prepend(a, b, n)),
        1 => (i(), 0..60_usize).prop_map(|(a, n)| Trim(a, n)),
        1 => (i(), 0..60_usize).prop_map(|(a, n)| Adj(a, n)),
        2 => (i(), i()).prop_map(|(a, b)| Chain(a, b)),
        1 => i().prop_map(TakeNext),
        3 => (i(), p()).prop_map(|(a, p)| Clone(a, p)),
        2 => (i(), any::<u8>()).prop_map(|(a, b)| Overwrite(a, b)),
        1 => i().prop_map(RawRoundTrip),
        1 => i().prop_map(DropOnThread),
    ]
}

/// What a segment should be.
#[derive(Debug, Clone)]
struct Segment {
    /// The pool of its header.
    pool: usize,
    /// The room that holds its data: a number of its own, twice that and the room's pool.
    room: usize,
    /// Whether the room is another header's.
    clone: bool,
    headroom: usize,
    bytes: Vec<u8>,
}

/// Bytes of a data room, and its headroom: those of `pool_tests::config`.
const ROOM: usize = 256;
const HEADROOM: usize = 32;

struct State {
    pools: [Pool; 2],
    caches: [PoolCache; 2],
    held: Vec<(Mbuf, Vec<Segment>)>,
    exhausted: [u64; 2],
    rooms: usize,
}

impl State {
    fn new() -> Self {
        let pools = [pool_tests::pool(COUNT, 4), pool_tests::pool(COUNT, 6)];
        let caches = [pools[0].cache(), pools[1].cache()];
        Self { pools, caches, held: Vec::new(), exhausted: [0; 2], rooms: 0 }
    }

    fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.held.iter().flat_map(|(_, segments)| segments)
    }

    /// Headers of pool `p` that are out: the held ones, and those whose room only clones use.
    fn out(&self, p: usize) -> usize {
        let originals: HashSet<_> = self.segments().filter(|s| !s.clone).map(|s| s.room).collect();
        let cloned: HashSet<_> = self.segments().filter(|s| s.clone).map(|s| s.room).collect();
        self.segments().filter(|s| s.pool == p).count()
            + cloned.difference(&originals).filter(|room| *room % 2 == p).count()
    }

    fn holders(&self, room: usize) -> usize {
        self.segments().filter(|s| s.room == room).count()
    }

    fn hold(&mut self, mut mbuf: Mbuf, pool: usize) {
        mbuf.reset();
        self.rooms += 1;
        let room = self.rooms * 2 + pool;
        let segment = Segment { pool, room, clone: false, headroom: HEADROOM, bytes: vec![] };
        self.held.push((mbuf, vec![segment]));
    }

    fn get_bulk(&mut self, p: usize, n: usize) {
        let expected = n <= COUNT - self.out(p);
        let mut out = ArrayVec::<Mbuf, 16>::new();
        assert_eq!(self.caches[p].get_bulk(&mut out, n), expected);
        assert_eq!(out.len(), if expected { n } else { 0 });
        self.exhausted[p] += u64::from(!expected);
        out.into_iter().for_each(|mbuf| self.hold(mbuf, p));
    }

    fn get(&mut self, p: usize, cached: bool) {
        let (there, got) = if cached {
            (COUNT > self.out(p), self.caches[p].get())
        } else {
            (self.pools[p].stats().shared > 0, self.pools[p].get())
        };
        assert_eq!(got.is_some(), there);
        match got {
            Some(mbuf) => self.hold(mbuf, p),
            None => self.exhausted[p] += 1,
        }
    }

    /// Growing, shrinking and writing of the packet at `i`.
    fn change(&mut self, i: usize, op: &Op) {
        let segs = &self.held[i].1;
        let first_alone = self.holders(segs[0].room) == 1;
        let last_alone = self.holders(segs[segs.len() - 1].room) == 1;
        let (mbuf, segs) = &mut self.held[i];
        let last = segs.len() - 1;
        match *op {
            Op::Append(_, byte, n) => {
                let seg = &mut segs[last];
                let fits = n <= ROOM - seg.headroom - seg.bytes.len();
                let room = mbuf.append(n).map(|room| room.fill(byte));
                assert_eq!(room.is_some(), fits && last_alone);
                seg.bytes.extend(room.iter().flat_map(|()| vec![byte; n]));
            }
            Op::Prepend(_, byte, n) => {
                let seg = &mut segs[0];
                let room = mbuf.prepend(n).map(|room| room.fill(byte));
                assert_eq!(room.is_some(), n <= seg.headroom && first_alone);
                if room.is_some() {
                    seg.headroom -= n;
                    seg.bytes.splice(0..0, vec![byte; n]);
                }
            }
            Op::Trim(_, n) => {
                let len = segs[last].bytes.len();
                assert_eq!(mbuf.trim(n), n <= len);
                segs[last].bytes.truncate(if n <= len { len - n } else { len });
            }
            Op::Adj(_, n) => {
                let seg = &mut segs[0];
                assert_eq!(mbuf.adj(n), n <= seg.bytes.len());
                if n <= seg.bytes.len() {
                    seg.bytes.drain(..n);
                    seg.headroom += n;
                }
            }
            Op::Overwrite(_, byte) => {
                assert_eq!(mbuf.is_writable(), first_alone);
                let written = mbuf.data_mut().map(|data| data.fill(byte));
                assert_eq!(written.is_some(), first_alone);
                if first_alone {
                    segs[0].bytes.fill(byte);
                }
            }
            _ => unreachable!("not a change of one packet: {op:?}"),
        }
    }

    fn chain(&mut self, i: usize, j: usize) {
        if i == j {
            return;
        }
        let (tail, segs) = self.held.remove(j);
        let i = if j < i { i - 1 } else { i };
        self.held[i].0.chain(tail).unwrap();
        self.held[i].1.extend(segs);
    }

    fn clone_packet(&mut self, i: usize, p: usize) {
        let there = self.held[i].1.len() <= COUNT - self.out(p);
        let cloned = self.held[i].0.clone_ref(&mut self.caches[p]);
        assert_eq!(cloned.is_some(), there);
        self.exhausted[p] += u64::from(!there);
        if let Some(mbuf) = cloned {
            let of = &self.held[i].1;
            let segs = of.iter().map(|s| Segment { pool: p, clone: true, ..s.clone() }).collect();
            self.held.push((mbuf, segs));
        }
    }

    fn run(&mut self, op: &Op) {
        let n = self.held.len();
        match *op {
            Op::Get(p, cached) => self.get(p, cached),
            Op::GetBulk(p, n) => self.get_bulk(p, n),
            Op::Flush(p) => self.caches[p].flush(),
            Op::NewCache(p, size) => self.caches[p] = self.pools[p].cache_with_size(size),
            Op::PutBulk(p, want) => {
                let gone = self.held.drain(..want.min(n));
                let mut mbufs: ArrayVec<Mbuf, 8> = gone.map(|(mbuf, _)| mbuf).collect();
                self.caches[p].put_bulk(&mut mbufs);
                assert!(mbufs.is_empty());
            }
            _ if n == 0 => {}
            Op::Put(i, p) => self.caches[p].put(self.held.remove(i % n).0),
            Op::Drop(i) => drop(self.held.swap_remove(i % n)),
            Op::DropOnThread(i) => {
                let (mbuf, _) = self.held.remove(i % n);
                std::thread::spawn(move || drop(mbuf)).join().unwrap();
            }
            Op::Append(i, ..)
            | Op::Prepend(i, ..)
            | Op::Trim(i, _)
            | Op::Adj(i, _)
            | Op::Overwrite(i, _) => self.change(i % n, op),
            Op::Chain(i, j) => self.chain(i % n, j % n),
            Op::TakeNext(i) => {
                let (mbuf, segs) = &mut self.held[i % n];
                let rest = mbuf.take_next();
                assert_eq!(rest.is_some(), segs.len() > 1);
                if let Some(rest) = rest {
                    let segs = segs.split_off(1);
                    self.held.push((rest, segs));
                }
            }
            Op::Clone(i, p) => self.clone_packet(i % n, p),
            Op::RawRoundTrip(i) => {
                let (mbuf, segs) = self.held.remove(i % n);
                let raw = mbuf.into_raw();
                // SAFETY: taken back once, at once.
                self.held.push((unsafe { Mbuf::from_raw(raw) }, segs));
            }
        }
    }

    fn check(&self) {
        for (mbuf, segs) in &self.held {
            assert_eq!(mbuf.nb_segs(), segs.len());
            assert_eq!(mbuf.pkt_len(), segs.iter().map(|s| s.bytes.len()).sum::<usize>());
            assert_eq!(mbuf.headroom(), segs[0].headroom);
            assert_eq!(mbuf.ref_count(), self.holders(segs[0].room));
            let last = &segs[segs.len() - 1];
            assert_eq!(mbuf.tailroom(), ROOM - last.headroom - last.bytes.len());
            assert!(mbuf.segments().map(|s| s.data()).eq(segs.iter().map(|s| &s.bytes[..])));
        }
        for p in 0..2 {
            let stats = self.pools[p].stats();
            assert_eq!(stats.in_use, self.out(p) as u64);
            assert_eq!(stats.cached, self.caches[p].len() as u64);
            assert_eq!(stats.in_use + stats.cached + stats.shared, COUNT as u64);
            assert_eq!((stats.exhausted, stats.double_frees), (self.exhausted[p], 0));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 3 } else { 256 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_sequence_does_what_plain_vectors_do(ops in prop::collection::vec(op(), 1..MAX_OPS)) {
        let mut state = State::new();
        for op in &ops {
            state.run(op);
            state.check();
        }
        let State { pools, caches, held, .. } = state;
        drop((held, caches));
        for pool in pools {
            prop_assert_eq!(pool.stats().shared, COUNT as u64);
        }
    }
}
