//! Two pools and a list of packets beside plain vectors that say what they should hold: the oracle
//! of the property test and of the fuzz target, which gives `crate` the same names.
#![expect(unsafe_code, reason = "raw packets and external buffers")]

use std::{
    collections::{HashSet, VecDeque},
    ptr::{self, NonNull},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use arrayvec::ArrayVec;

use crate::{
    Arrivals, ExternalBuffer, Mbuf, MbufFifo, OlFlags, Piece, Pool, PoolCache, PoolConfig,
    PoolKeys, RegionConfig,
};

/// Buffers of each pool.
pub(crate) const COUNT: usize = 12;
/// An operation; indices are taken modulo what is there.
#[derive(Debug, Clone)]
pub(crate) enum Op {
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
    /// Makes memory of this length the data.
    Attach(usize, usize),
    /// Into the list of packets.
    FifoPush(usize),
    /// As many of the first `.0` as are simple, at most `.1`.
    FifoPushWhile(usize, usize),
    FifoFill(usize),
    FifoPop,
    /// At most `.0`, and as many as `.1` are let through.
    FifoPopFilled(usize, usize),
    FifoLineUp(usize),
    FifoPopLinedUp,
    /// Frees the oldest through the cache of pool `.1`.
    FifoFree(usize, usize),
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
    /// Bytes of the room.
    size: usize,
    /// Whether the room is memory of somebody else.
    external: bool,
    headroom: usize,
    bytes: Vec<u8>,
}

/// Bytes of a data room, and its headroom.
const ROOM: usize = 256;
const HEADROOM: usize = 32;

/// The keys of each pool, and of external buffers, which all start at the same address.
const KEYS: [PoolKeys; 3] = [
    PoolKeys { region_iova: 0x10_0000, lkey: 0x0100_0002, domain: 1 },
    PoolKeys { region_iova: 0x20_0000, lkey: 0x0100_0003, domain: 2 },
    PoolKeys { region_iova: 0xe0_0000, lkey: 0x0100_0004, domain: 3 },
];

/// Packets that the list of packets takes.
const FIFO: usize = 4;

/// Memory of somebody else, and a count of how much of it lives.
struct External {
    live: Arc<AtomicUsize>,
    bytes: Vec<u8>,
}

/// # Safety
/// `opaque` is an [`External`] that [`State::attach`] let go, and comes here once.
unsafe fn free_external(_: NonNull<u8>, opaque: usize) {
    // SAFETY: as the caller promises.
    let external = unsafe { Box::from_raw(ptr::with_exposed_provenance_mut::<External>(opaque)) };
    external.live.fetch_sub(1, Ordering::SeqCst);
    drop(external.bytes);
}

fn pool(cache_size: usize, keys: PoolKeys) -> Pool {
    let config = PoolConfig {
        name: "oracle".to_owned(),
        count: COUNT,
        data_room_bytes: ROOM,
        headroom_bytes: HEADROOM,
        cache_size,
        region: RegionConfig::heap(0),
    };
    let pool = Pool::new(&config).unwrap();
    // SAFETY: no device takes an address or key from these buffers.
    unsafe { pool.stamp(keys) }.unwrap();
    pool
}

/// A device that has filled so many buffers with seven bytes each.
struct Arrived {
    left: usize,
    described: usize,
}

impl Arrivals for Arrived {
    fn next(&mut self) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        Some(7)
    }

    fn too_long(&mut self, len: u32) {
        unreachable!("{len} bytes fit");
    }

    fn describe(&mut self, mbuf: &mut Mbuf) {
        assert_eq!(mbuf.data_len(), 7);
        self.described += 1;
    }
}

/// Two pools, and what they should hold.
pub(crate) struct State {
    pools: [Pool; 2],
    caches: [PoolCache; 2],
    held: Vec<(Mbuf, Vec<Segment>)>,
    fifo: MbufFifo,
    /// What the list holds, oldest first.
    listed: VecDeque<Vec<Segment>>,
    /// Slots of the list that were ever filled.
    pushed: usize,
    exhausted: [u64; 2],
    rooms: usize,
    externals: Arc<AtomicUsize>,
}

impl State {
    pub(crate) fn new() -> Self {
        let pools = [pool(4, KEYS[0]), pool(6, KEYS[1])];
        let caches = [pools[0].cache(), pools[1].cache()];
        let fifo = MbufFifo::new(&pools[0], FIFO);
        Self {
            pools,
            caches,
            held: Vec::new(),
            fifo,
            listed: VecDeque::new(),
            pushed: 0,
            exhausted: [0; 2],
            rooms: 0,
            externals: Arc::default(),
        }
    }

    fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.held.iter().map(|(_, segments)| segments).chain(&self.listed).flatten()
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

    /// A buffer of `pool` that was just taken.
    fn fresh(&mut self, pool: usize) -> Segment {
        self.rooms += 1;
        Segment {
            pool,
            room: self.rooms * 2 + pool,
            clone: false,
            size: ROOM,
            external: false,
            headroom: HEADROOM,
            bytes: vec![],
        }
    }

    /// Holds a buffer that is as new, and leaves marks that the next user must not see.
    fn hold(&mut self, mut mbuf: Mbuf, pool: usize) {
        let (flags, marks) = (mbuf.flags(), (mbuf.flow_mark(), mbuf.vlan_tci()));
        assert_eq!((flags, marks, mbuf.packet_type().0), (OlFlags::empty(), (None, 0), 0));
        mbuf.set_flags(OlFlags::all());
        mbuf.set_flow_mark_be(0xa5u32.to_be());
        mbuf.set_vlan_tci(0xa5);
        let segment = self.fresh(pool);
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
                let fits = n <= seg.size - seg.headroom - seg.bytes.len();
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

    /// Whether the `i`th packet is a single buffer of its own that nobody shares.
    fn is_simple(&self, i: usize) -> bool {
        let segs = &self.held[i].1;
        let alone = segs.len() == 1 && self.holders(segs[0].room) == 1;
        alone && !segs[0].clone && !segs[0].external
    }

    fn attach(&mut self, i: usize, len: usize) {
        let live = Arc::clone(&self.externals);
        let mut external = Box::new(External { live, bytes: vec![len as u8; len] });
        let ptr = NonNull::new(external.bytes.as_mut_ptr()).unwrap();
        let raw = Box::into_raw(external);
        let buffer = ExternalBuffer {
            ptr,
            len_bytes: len,
            iova: KEYS[2].region_iova,
            lkey: KEYS[2].lkey,
            domain: KEYS[2].domain,
            is_foreign: false,
            free: free_external,
            opaque: raw.expose_provenance(),
        };
        self.externals.fetch_add(1, Ordering::SeqCst);
        let fits = self.is_simple(i) && (1..=65535).contains(&len);
        // SAFETY: the bytes live until `free_external`, and nobody else uses them.
        let attached = unsafe { self.held[i].0.attach_external(buffer) };
        assert_eq!(attached.is_ok(), fits);
        if let Err(back) = attached {
            // SAFETY: it will not be called for a buffer that came back.
            unsafe { free_external(back.ptr, back.opaque) };
            return;
        }
        let seg = &mut self.held[i].1[0];
        (seg.size, seg.external, seg.headroom, seg.bytes) = (len, true, 0, vec![len as u8; len]);
    }

    /// Slots of the list up to the end of its array, from the `n`th ever used.
    fn to_the_end(n: usize) -> usize {
        FIFO - n % FIFO
    }

    fn push(&mut self, i: usize) {
        let (mbuf, segs) = self.held.remove(i);
        let room = self.listed.len() < FIFO;
        match self.fifo.push(mbuf) {
            Ok(()) => {
                assert!(room);
                self.listed.push_back(segs);
                self.pushed += 1;
            }
            Err(mbuf) => {
                assert!(!room);
                self.held.push((mbuf, segs));
            }
        }
    }

    fn push_while(&mut self, want: usize, most: usize) {
        let want = want.min(self.held.len());
        let simple = |i: &usize| self.is_simple(*i) && self.held[*i].1[0].pool == 0;
        let run = (0..want).take_while(simple).count();
        let room = FIFO - self.listed.len();
        let expected = run.min(most).min(room).min(Self::to_the_end(self.pushed));
        let (mut mbufs, mut segs): (ArrayVec<Mbuf, 8>, Vec<_>) = self.held.drain(..want).unzip();
        let mut lens = segs.iter().map(|segs: &Vec<Segment>| segs[0].bytes.len());
        let each = |packet: crate::Packet<'_>| {
            packet.is_simple() && Some(packet.data_len()) == lens.next()
        };
        assert_eq!(self.fifo.hand_over(&mut mbufs).take_while(most, each), expected);
        self.listed.extend(segs.drain(..expected));
        self.pushed += expected;
        assert_eq!(mbufs.len(), want - expected);
        self.held.extend(mbufs.into_iter().zip(segs));
    }

    fn fill(&mut self, n: usize) {
        let n = n.min(FIFO - self.listed.len()).min(Self::to_the_end(self.pushed));
        let there = n <= COUNT - self.out(0);
        let filled = self.fifo.fill(&mut self.caches[0], n, |_| ());
        assert_eq!(filled, if there { n } else { 0 });
        self.exhausted[0] += u64::from(!there);
        for _ in 0..filled {
            let mut segment = self.fresh(0);
            // Empty when it comes out; see `unlist`.
            segment.headroom = usize::MAX;
            self.listed.push_back(vec![segment]);
        }
        self.pushed += filled;
    }

    /// Holds what came out of the list. What was filled in by number is made a packet now.
    fn unlist(&mut self, mut mbuf: Mbuf) {
        let mut segs = self.listed.pop_front().expect("the list held one");
        if segs[0].headroom == usize::MAX {
            mbuf.reset();
            segs[0].headroom = HEADROOM;
        }
        self.held.push((mbuf, segs));
    }

    fn pop_filled(&mut self, most: usize, pass: usize) {
        let mut out = ArrayVec::<Mbuf, 3>::new();
        let oldest = self.pushed - self.listed.len();
        let there = self.listed.len().min(most).min(3).min(Self::to_the_end(oldest));
        let there = if self.fifo.all_simple() { there } else { 0 };
        let mut arrivals = Arrived { left: pass, described: 0 };
        let n = self.fifo.pop_filled(&mut out, most, &mut arrivals);
        assert_eq!((n, out.len(), arrivals.described), (there.min(pass), n, n));
        out.into_iter().for_each(|mbuf| self.unlist_filled(mbuf));
    }

    /// Holds what came out of the list as if a device had filled it.
    fn unlist_filled(&mut self, mut mbuf: Mbuf) {
        assert_eq!((mbuf.headroom(), mbuf.data_len(), mbuf.pkt_len()), (HEADROOM, 7, 7));
        mbuf.reset();
        let segs = self.listed.front_mut().expect("the list held one");
        (segs[0].headroom, segs[0].bytes) = (HEADROOM, Vec::new());
        self.unlist(mbuf);
    }

    fn line_up(&mut self, most: usize) {
        let oldest = self.pushed - self.listed.len();
        let there = self.listed.len().min(most).min(Self::to_the_end(oldest));
        let there = if self.fifo.all_simple() { there } else { 0 };
        assert_eq!((self.fifo.line_up(most), self.fifo.lined_up()), (there, there));
    }

    fn fifo_op(&mut self, op: &Op) {
        match *op {
            Op::FifoPushWhile(want, most) => self.push_while(want.min(8), most),
            Op::FifoFill(n) => self.fill(n),
            Op::FifoPop => match self.fifo.pop() {
                Some(mbuf) => self.unlist(mbuf),
                None => assert!(self.listed.is_empty()),
            },
            Op::FifoPopFilled(most, pass) => self.pop_filled(most, pass),
            Op::FifoLineUp(most) => self.line_up(most),
            Op::FifoPopLinedUp => {
                let there = self.fifo.lined_up();
                assert!(there <= self.listed.len());
                match self.fifo.pop_lined_up(7) {
                    Some(mbuf) => self.unlist_filled(mbuf),
                    None => assert_eq!(there, 0),
                }
            }
            Op::FifoFree(n, p) => {
                let n = n.min(self.listed.len());
                self.fifo.free(n, &mut self.caches[p]);
                self.listed.drain(..n);
            }
            _ => unreachable!("not about the list: {op:?}"),
        }
    }

    /// Carries the operation out, and asserts that its result is what vectors say.
    pub(crate) fn run(&mut self, op: &Op) {
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
            Op::FifoPushWhile(..)
            | Op::FifoFill(_)
            | Op::FifoPop
            | Op::FifoPopFilled(..)
            | Op::FifoLineUp(_)
            | Op::FifoPopLinedUp
            | Op::FifoFree(..) => self.fifo_op(op),
            _ if n == 0 => {}
            Op::Attach(i, len) => self.attach(i % n, len),
            Op::FifoPush(i) => self.push(i % n),
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

    /// What a piece of a segment should be, which lies at `address`.
    fn piece(&self, segment: &Segment, address: usize) -> Piece {
        let keys = KEYS[if segment.external { 2 } else { segment.room % 2 }];
        let offset = match segment.external {
            true => segment.headroom,
            false => address - self.pools[segment.room % 2].region().as_ptr().addr(),
        };
        Piece {
            address,
            len_bytes: segment.bytes.len(),
            iova: keys.region_iova + offset as u64,
            lkey_be: keys.lkey.to_be(),
            domain: keys.domain,
            is_foreign: false,
        }
    }

    /// Asserts that packets, counts and statistics are what vectors say.
    pub(crate) fn check(&self) {
        for (mbuf, segs) in &self.held {
            assert_eq!(mbuf.nb_segs(), segs.len());
            assert_eq!(mbuf.pkt_len(), segs.iter().map(|s| s.bytes.len()).sum::<usize>());
            assert_eq!(mbuf.headroom(), segs[0].headroom);
            assert_eq!(mbuf.ref_count(), self.holders(segs[0].room));
            let last = &segs[segs.len() - 1];
            assert_eq!(mbuf.tailroom(), last.size - last.headroom - last.bytes.len());
            assert!(mbuf.segments().map(|s| s.data()).eq(segs.iter().map(|s| &s.bytes[..])));
            assert_eq!(mbuf.is_exclusive(), segs.iter().all(|s| self.holders(s.room) == 1));
            let filled = mbuf.segments().zip(segs).filter(|(_, seg)| !seg.bytes.is_empty());
            let expected = filled.map(|(s, seg)| self.piece(seg, s.data().as_ptr().addr()));
            assert!(mbuf.pieces().eq(expected));
        }
        for p in 0..2 {
            let stats = self.pools[p].stats();
            assert_eq!(stats.in_use, self.out(p) as u64);
            assert_eq!(stats.cached, self.caches[p].len() as u64);
            assert_eq!(stats.in_use + stats.cached + stats.shared, COUNT as u64);
            assert_eq!((stats.exhausted, stats.double_frees), (self.exhausted[p], 0));
        }
        assert_eq!(self.fifo.len(), self.listed.len());
        let rooms: HashSet<_> = self.segments().filter(|s| s.external).map(|s| s.room).collect();
        assert_eq!(self.externals.load(Ordering::SeqCst), rooms.len());
    }

    /// Drops everything, and asserts that every buffer came back.
    pub(crate) fn end(self) {
        let Self { pools, caches, held, fifo, externals, .. } = self;
        drop((held, caches, fifo));
        for pool in pools {
            assert_eq!(pool.stats().shared, COUNT as u64);
        }
        assert_eq!(externals.load(Ordering::SeqCst), 0);
    }
}
