//! Queues with several buffers to a work request, on the model: frames of all lengths in any order,
//! held and freed as it comes, from pools that run dry. Every byte arrives, and nobody else's.

mod common;

use std::collections::VecDeque;

use common::{Bench, Burst, config, frame, pool_of};
use ferrocx_core::DeviceConfig;
use ferrocx_mempool::{Mbuf, Pool};
use ferrocx_pmd::{BufferSplit, Rss, RssConfig, RxQueue, RxQueueConfig};
use proptest::prelude::*;

const MAC: [u8; 6] = [0x02, 0xfe, 0x0c, 0, 0, 1];
const DESCRIPTORS: usize = 64;
/// Bytes of a buffer, of which the first of a request has 128 less.
const ROOM: usize = 640;

/// What a queue is like.
#[derive(Debug, Clone, Copy)]
enum Like {
    /// All in buffers of the queue's pool.
    Long { max_frame_bytes: usize, cqe_compression: bool },
    /// Split behind 100 bytes, into a pool of its own or the same.
    Split { max_frame_bytes: usize, has_own_pool: bool },
}

const LIKES: [Like; 5] = [
    Like::Long { max_frame_bytes: 1100, cqe_compression: false },
    Like::Long { max_frame_bytes: 4500, cqe_compression: false },
    Like::Long { max_frame_bytes: 4500, cqe_compression: true },
    Like::Split { max_frame_bytes: 1500, has_own_pool: true },
    Like::Split { max_frame_bytes: 4500, has_own_pool: false },
];

impl Like {
    fn max_frame_bytes(self) -> usize {
        match self {
            Self::Long { max_frame_bytes, .. } | Self::Split { max_frame_bytes, .. } => {
                max_frame_bytes
            }
        }
    }

    /// Buffers of a request, behind its first.
    fn behind_first(self) -> usize {
        let rest = match self {
            Self::Long { max_frame_bytes, .. } => max_frame_bytes - (ROOM - 128),
            Self::Split { max_frame_bytes, .. } => max_frame_bytes - 100,
        };
        (1 + rest.div_ceil(ROOM)).next_power_of_two() - 1
    }

    /// The queue's pool, with so many buffers more than fill the ring, and its settings; and all
    /// pools.
    fn queue(self, spare: usize) -> (Pool, RxQueueConfig, Vec<Pool>) {
        let (behind, of) = (DESCRIPTORS * self.behind_first(), |count| pool_of(count, ROOM));
        let settings = RxQueueConfig {
            descriptors: DESCRIPTORS as u32,
            max_frame_bytes: Some(self.max_frame_bytes() as u32),
            cache_size: 64,
            ..RxQueueConfig::default()
        };
        match self {
            Self::Long { cqe_compression, .. } => {
                let pool = of(DESCRIPTORS + behind + spare);
                let settings = RxQueueConfig { cqe_compression, ..settings };
                (pool.clone(), settings, vec![pool])
            }
            Self::Split { has_own_pool, .. } => {
                let pools = match has_own_pool {
                    true => vec![of(DESCRIPTORS + spare), of(behind + spare)],
                    // Two caches, each of which may keep what the other wants.
                    false => vec![of(DESCRIPTORS + behind + spare + 128)],
                };
                let payload = pools[pools.len() - 1].clone();
                let split = Some(BufferSplit { header_bytes: 100, payload });
                (pools[0].clone(), RxQueueConfig { split, ..settings }, pools)
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// Frames of so many bytes, beyond the shortest.
    Inject(Vec<usize>),
    Settle,
    Burst,
    One,
    /// Packets are freed, from one on.
    Free(usize, usize),
    Reset,
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![3 => Just(0usize), 2 => 440..460usize, 3 => 0..4500usize];
    let count = prop_oneof![1..9usize, Just(500usize)];
    prop_oneof![
        6 => prop::collection::vec(len, 1..30).prop_map(Step::Inject),
        4 => Just(Step::Settle),
        6 => Just(Step::Burst),
        1 => Just(Step::One),
        3 => (0..100usize, count).prop_map(|(from, count)| Step::Free(from, count)),
        1 => Just(Step::Reset),
    ]
}

/// Lets the device work, which may wait for more completions to compress.
fn settle(bench: &Bench) {
    bench.settle();
    bench.pass(1_000_000);
    bench.settle();
}

/// The bytes of a packet.
fn read(mbuf: &Mbuf) -> Vec<u8> {
    let mut bytes = vec![0; mbuf.pkt_len()];
    assert!(mbuf.read(0, &mut bytes));
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn frames_of_all_lengths_arrive_in_order_with_their_bytes(
        like in prop::sample::select(LIKES.to_vec()),
        spare in prop_oneof![Just(0), 1..40usize, Just(600)],
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut bench = Bench::new();
        let device = bench.try_device(&DeviceConfig { mtu: 9000, ..config() });
        let (pool, settings, pools) = like.queue(spare);
        pools.iter().for_each(|pool| device.register_pool(pool).unwrap());
        let mut rx = RxQueue::new(&device, &pool, &settings).unwrap();
        let rss = Rss::new(&device, &[rx.queue_ref()], &RssConfig::default()).unwrap();
        let mut injected = VecDeque::<Vec<u8>>::new();
        let mut held = Vec::<(Mbuf, Vec<u8>)>::new();
        let mut number = 0u32;
        for step in steps {
            let mut out = Burst::new();
            match step {
                Step::Inject(lens) => for len in lens {
                    let len = 60 + len % (like.max_frame_bytes() - 59);
                    let mut bytes = frame(MAC, len, number as u8);
                    bytes[14..18].copy_from_slice(&number.to_be_bytes());
                    number += 1;
                    bench.inject(&bytes);
                    injected.push_back(bytes);
                },
                Step::Settle => settle(&bench),
                Step::Burst => { rx.rx_burst(&mut out); }
                Step::One => out.extend(rx.rx_one()),
                Step::Free(from, count) => {
                    let from = from % (held.len() + 1);
                    for (mbuf, bytes) in held.drain(from..held.len().min(from + count)) {
                        prop_assert!(read(&mbuf) == bytes, "a packet that was held has changed");
                    }
                }
                Step::Reset => rx.reset().unwrap(),
            }
            for mbuf in out {
                let bytes = read(&mbuf);
                // What finds no buffer is dropped, so some may be missing.
                let at = injected.iter().position(|sent| *sent == bytes);
                prop_assert!(at.is_some(), "a frame that nobody sent, or twice");
                injected.drain(..=at.unwrap_or(0));
                held.push((mbuf, bytes));
            }
            prop_assert_eq!(rx.fault(), None);
        }
        for (mbuf, bytes) in held.drain(..) {
            prop_assert!(read(&mbuf) == bytes, "a packet that was held has changed");
        }
        // Once all is given back, the ring fills up, and takes a lap of the longest frames.
        settle(&bench);
        for _ in 0..10 {
            rx.rx_burst(&mut Burst::new());
        }
        for tag in 0..DESCRIPTORS {
            bench.inject(&frame(MAC, like.max_frame_bytes(), tag as u8));
        }
        settle(&bench);
        for tag in 0..DESCRIPTORS {
            let mbuf = rx.rx_one();
            let expected = frame(MAC, like.max_frame_bytes(), tag as u8);
            prop_assert!(mbuf.is_some_and(|mbuf| read(&mbuf) == expected), "frame {}", tag);
        }
        bench.assert_clean();
        drop((rss, rx));
        device.close().unwrap();
        for pool in pools {
            prop_assert_eq!((pool.stats().in_use, pool.stats().double_frees), (0, 0));
        }
    }
}
