//! Queues with several buffers to a work request: short and long packets in every order, from pools
//! that run dry. After each step the ring must name each buffer once, and none that is held.

use std::collections::{HashSet, VecDeque};

use arrayvec::ArrayVec;
use ferrocx_mempool::{Mbuf, Pool};
use ferrocx_prm::cqe::CqeFormat;
use ferrocx_prm::syndrome::CqeSyndrome;
use ferrocx_prm::wqe::Data;
use proptest::prelude::*;

use super::tests::{Fixture, block, failure, fixture_with, pool};
use crate::{BufferSplit, RxQueueConfig};

const DESCRIPTORS: usize = 64;
/// Bytes of a buffer, and of those the headroom of a request's first one.
const ROOM: u32 = 2048 + 128;
const HEADROOM: u32 = 128;
/// Bytes of a header, of a queue that splits.
const HEADER: u16 = 100;

/// What a queue is like.
#[derive(Debug, Clone, Copy)]
struct Like {
    max_frame_bytes: u32,
    /// Buffers of a work request.
    segments: usize,
    splits: bool,
    compresses: bool,
    stamps: bool,
}

const PLAIN: Like =
    Like { max_frame_bytes: 9000, segments: 8, splits: false, compresses: false, stamps: false };
const LIKES: [Like; 6] = [
    PLAIN,
    Like { compresses: true, ..PLAIN },
    Like { max_frame_bytes: 4000, segments: 2, stamps: true, ..PLAIN },
    Like { max_frame_bytes: 1500, segments: 2, splits: true, ..PLAIN },
    Like { splits: true, stamps: true, ..PLAIN },
    Like { splits: true, compresses: true, ..PLAIN },
];

impl Like {
    /// Bytes of a packet that fit into its first buffer.
    fn first(self) -> u32 {
        if self.splits { HEADER.into() } else { ROOM - HEADROOM }
    }
}

/// A queue, its pools, and what is known about them.
struct Scene {
    like: Like,
    fixture: Fixture,
    payload: Option<Pool>,
    held: Vec<Mbuf>,
    /// Lengths of the packets that were completed and not received.
    expected: VecDeque<u32>,
    errors: u64,
}

impl Scene {
    /// A queue over pools that fill its ring, and have a few buffers besides. If it `is_late`, it
    /// counts as after 2^32 packets but for those of a lap.
    fn new(like: Like, spare: usize, is_late: bool) -> Self {
        let Like { max_frame_bytes, segments, splits, compresses, stamps } = like;
        let payload = splits.then(|| pool(DESCRIPTORS * (segments - 1) + spare));
        let count = if splits { DESCRIPTORS } else { DESCRIPTORS * segments } + spare;
        let split = payload.clone().map(|payload| BufferSplit { header_bytes: HEADER, payload });
        let mut fixture = fixture_with(count, |device| {
            payload.iter().for_each(|pool| device.register_pool(pool).unwrap());
            RxQueueConfig {
                max_frame_bytes: Some(max_frame_bytes),
                cqe_compression: compresses,
                timestamps: stamps,
                split,
                ..RxQueueConfig::default()
            }
        });
        let hot = &mut fixture.rx.hot;
        assert_eq!(1 << hot.ring.log_segments(), segments);
        if is_late {
            let start = 0u32.wrapping_sub(DESCRIPTORS as u32);
            (hot.ring.ci, hot.ring.pi, hot.cq.ci) = (start, 0, start);
            hot.tails.as_mut().unwrap().start_at(0);
            fixture.played.start_at(start);
        }
        Self { like, fixture, payload, held: Vec::new(), expected: VecDeque::new(), errors: 0 }
    }

    /// Requests that the device may complete: a block that was read in part takes all its entries.
    fn open(&self) -> usize {
        let hot = &self.fixture.rx.hot;
        let unread = self.fixture.played.counter().wrapping_sub(hot.ring.ci);
        let taken = self.fixture.played.completed().wrapping_sub(hot.cq.consumer_index());
        (hot.ring.outstanding() - unread).min(hot.cq.entries() - taken) as usize
    }

    fn step(&mut self, step: &Step) {
        let open = self.open();
        let most = self.like.max_frame_bytes;
        match step {
            Step::Packets(lens) => {
                for len in lens.iter().map(|len| 1 + len % most).take(open) {
                    self.fixture.played.complete(1, len);
                    self.expected.push_back(len);
                }
            }
            Step::Block(lens) if self.like.compresses => {
                let lens: Vec<_> = lens.iter().map(|len| 1 + len % most).take(open).collect();
                // A block has an entry for its title, and one for what it says of each packet.
                if lens.len() >= 2 {
                    block(&mut self.fixture.played, &lens);
                    self.expected.extend(lens);
                }
            }
            Step::Block(_) => {}
            Step::Lost(is_block) => {
                let counter = self.fixture.played.counter();
                let lost = failure(CqeSyndrome::LOCAL_LENGTH_ERR, counter);
                if *is_block && open >= 2 {
                    let title = lost.with_byte_cnt(2).with_format(CqeFormat::COMPRESSED.0);
                    self.fixture.played.complete_block(title, &[(1, [0; 64])], 2);
                    self.errors += 2;
                } else if !is_block && open >= 1 {
                    self.fixture.played.complete_with(lost);
                    self.errors += 1;
                }
            }
            Step::Burst => {
                let mut out = ArrayVec::<Mbuf, 32>::new();
                self.fixture.rx.rx_burst(&mut out);
                out.into_iter().for_each(|mbuf| self.received(mbuf));
            }
            Step::One => {
                let one = self.fixture.rx.rx_one();
                one.into_iter().for_each(|mbuf| self.received(mbuf));
            }
            Step::Free { count, into_cache } => {
                for _ in 0..(*count).min(self.held.len()) {
                    let mbuf = self.held.swap_remove(*count % self.held.len());
                    if *into_cache {
                        self.fixture.rx.cache().put(mbuf);
                    }
                }
            }
            Step::Reset => {
                // What is not read would be flushed by the model, which knows of no completion.
                self.drain();
                self.fixture.rx.reset().unwrap();
                self.fixture.played.restart();
            }
        }
        assert_eq!(self.fixture.rx.fault(), None);
        self.assert_sound();
    }

    /// A packet has the length that is due, in as few buffers as it takes.
    fn received(&mut self, mbuf: Mbuf) {
        let len = self.expected.pop_front().expect("a completion for each packet");
        assert_eq!(mbuf.pkt_len() as u32, len);
        let behind = len.saturating_sub(self.like.first());
        assert_eq!(mbuf.nb_segs() as u32, 1 + behind.div_ceil(ROOM));
        let (mut left, mut room) = (len, self.like.first());
        for segment in mbuf.segments() {
            assert_eq!(segment.data_len() as u32, left.min(room));
            left -= left.min(room);
            room = ROOM;
        }
        self.held.push(mbuf);
    }

    /// Receives until nothing comes, whatever is lost among it: then the ring is as full as the
    /// pools allow.
    fn drain(&mut self) {
        loop {
            let before = (self.fixture.played.completed(), self.errors_told(), self.held.len());
            self.step(&Step::Burst);
            let after = (self.fixture.played.completed(), self.errors_told(), self.held.len());
            if before == after {
                break;
            }
        }
        assert!(self.expected.is_empty());
        assert_eq!(self.errors_told(), self.errors);
        let [own, payload] = self.segments_held();
        let of_pool = |pool: &Pool, held: usize, of_each: usize| (pool.count() - held) / of_each;
        let mut posted = of_pool(&self.fixture.pool, own, own_of_each(self.like)).min(DESCRIPTORS);
        if let Some(pool) = &self.payload {
            posted = posted.min(of_pool(pool, payload, self.like.segments - 1));
        }
        let stats = self.fixture.rx.stats();
        assert_eq!(self.fixture.rx.hot.ring.outstanding() as usize, posted, "{stats:?}");
    }

    fn errors_told(&self) -> u64 {
        self.fixture.rx.stats().errors
    }

    /// Buffers of packets that are held, by pool.
    fn segments_held(&self) -> [usize; 2] {
        let all: usize = self.held.iter().map(Mbuf::nb_segs).sum();
        if self.like.splits { [self.held.len(), all - self.held.len()] } else { [all, 0] }
    }

    /// No buffer is lost, none is in two places, and the device is told of none that is held.
    fn assert_sound(&self) {
        let hot = &self.fixture.rx.hot;
        let tails = hot.tails.as_ref().unwrap();
        let (own, payload) = (&self.fixture.pool.stats(), self.payload.as_ref().map(Pool::stats));
        let [own_held, payload_held] = self.segments_held();
        let (mut of_own, mut of_payload) = (own_held + hot.elts.len(), payload_held);
        *if self.like.splits { &mut of_payload } else { &mut of_own } += tails.len();
        assert_eq!(own.in_use as usize, of_own);
        assert_eq!(payload.map_or(0, |stats| stats.in_use as usize), of_payload);
        assert_eq!(hot.elts.len(), hot.ring.outstanding() as usize);

        let own_offset = hot.post_offset.wrapping_sub(HEADROOM.into());
        let rest_offset =
            tails.payload.as_ref().map_or(own_offset, |payload| payload.keys.va_to_iova);
        let mut named = HashSet::new();
        for mbuf in &self.held {
            // The first of them has its headroom; the others begin with their data.
            assert!(named.insert((mbuf.room_address() as u64).wrapping_add(own_offset)));
            for segment in mbuf.segments().skip(1) {
                assert!(named.insert((segment.data_address() as u64).wrapping_add(rest_offset)));
            }
        }
        let (view, log_segments) = (hot.ring.view(), hot.ring.log_segments());
        for request in (0..hot.ring.outstanding()).map(|at| hot.ring.ci.wrapping_add(at)) {
            for segment in 0..1 << log_segments {
                let slot = view.at((request << log_segments) + segment);
                let address = slot.load_be64::<{ Data::ADDR.offset }>();
                let room = address - if segment == 0 { u64::from(HEADROOM) } else { 0 };
                assert!(named.insert(room), "request {request}, segment {segment}");
            }
        }
    }

    fn end(mut self) {
        self.drain();
        drop(self.fixture.rx);
        assert_eq!(self.fixture.pool.stats().in_use as usize, {
            let all: usize = self.held.iter().map(Mbuf::nb_segs).sum();
            if self.like.splits { self.held.len() } else { all }
        });
        self.held.clear();
        for pool in [Some(&self.fixture.pool), self.payload.as_ref()].into_iter().flatten() {
            assert_eq!((pool.stats().in_use, pool.stats().double_frees), (0, 0));
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// Completions of packets, by length.
    Packets(Vec<u32>),
    /// A block of compressed ones.
    Block(Vec<u32>),
    /// Of a packet that was not delivered, or a block of two.
    Lost(bool),
    Burst,
    One,
    Free {
        count: usize,
        into_cache: bool,
    },
    Reset,
}

fn step() -> impl Strategy<Value = Step> {
    let len = || prop_oneof![3 => 0..100u32, 1 => 2040..2060u32, 2 => any::<u32>()];
    let lens = || prop::collection::vec(len(), 1..40);
    let count = prop_oneof![0..10usize, Just(1000)];
    prop_oneof![
        6 => lens().prop_map(Step::Packets),
        3 => prop::collection::vec(len(), 2..20).prop_map(Step::Block),
        2 => any::<bool>().prop_map(Step::Lost),
        8 => Just(Step::Burst),
        2 => Just(Step::One),
        4 => (count, any::<bool>())
            .prop_map(|(count, into_cache)| Step::Free { count, into_cache }),
        1 => Just(Step::Reset),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn the_ring_names_each_buffer_once(
        like in prop::sample::select(LIKES.to_vec()),
        spare in prop_oneof![Just(0), 1..40usize, Just(600)],
        is_late: bool,
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut scene = Scene::new(like, spare, is_late);
        steps.iter().for_each(|step| scene.step(step));
        scene.end();
    }
}

#[test]
fn short_packets_take_one_buffer_and_leave_the_others_where_they_are() {
    for like in LIKES {
        let mut scene = Scene::new(like, 40, false);
        let addresses = |scene: &Scene| -> Vec<u64> {
            let view = scene.fixture.rx.hot.ring.view();
            let units = 0..(DESCRIPTORS * like.segments) as u32;
            let behind = units.filter(|unit| unit % like.segments as u32 != 0);
            behind.map(|unit| view.at(unit).load_be64::<{ Data::ADDR.offset }>()).collect()
        };
        let before = addresses(&scene);
        for _ in 0..10 {
            scene.step(&Step::Packets(vec![59; 40]));
            scene.drain();
            scene.step(&Step::Free { count: 1000, into_cache: true });
        }
        scene.drain();
        assert_eq!(addresses(&scene), before, "{like:?}");
        scene.end();
    }
}

/// Whoever holds as many packets as the ring has requests holds one buffer of each.
#[test]
fn buffers_that_lie_unused_in_the_ring_are_posted_when_the_pool_is_dry() {
    for like in LIKES {
        let mut scene = Scene::new(like, 0, false);
        let short = |scene: &mut Scene| {
            while scene.open() != 0 {
                scene.step(&Step::Packets(vec![59; 7]));
                scene.drain();
            }
        };
        short(&mut scene);
        // Fewer are left than a request takes.
        let [own, payload] = scene.segments_held();
        let left = scene.fixture.pool.count() - own;
        assert_eq!((left, payload), (own_of_each(like) - 1, 0), "{like:?}");
        assert!(scene.fixture.rx.stats().no_mbuf > 0, "{like:?}");
        scene.step(&Step::Free { count: own_of_each(like), into_cache: false });
        scene.drain();
        assert_eq!(scene.open(), 1, "{like:?}");
        scene.step(&Step::Packets(vec![like.max_frame_bytes - 1]));
        scene.drain();
        scene.end();
    }
}

/// Buffers of the queue's own pool that a request takes.
fn own_of_each(like: Like) -> usize {
    if like.splits { 1 } else { like.segments }
}
