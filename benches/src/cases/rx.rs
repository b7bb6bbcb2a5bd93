//! Receiving: every kind of queue and frame.

use arrayvec::ArrayVec;
use ferrocx_mempool::Mbuf;
use ferrocx_model::played::PlayedRx;
use ferrocx_pmd::{BufferSplit, RxQueue, RxQueueConfig, Striding};
use ferrocx_prm::Layout;
use ferrocx_prm::cqe::{Cqe64, CqeFormat, CqeOpcode, MINI_CQES_PER_ENTRY, MiniCqe};

use super::queues::{BURST, Bench, FRAME_BYTES, rx_burst, rx_one};
use super::{Case, Work};

/// Packets in one run.
const RUN: u32 = 256;
/// Bytes of a frame that takes two buffers of 2,048.
const LONG_BYTES: u32 = 3000;

const fn case(name: &'static str, make: fn() -> Box<dyn Work>) -> Case {
    Case { name, elements: RUN as u64, make }
}

/// Every case. The packets are freed behind the measured part, as DPDK's were, but in `_free`.
pub(super) const CASES: [Case; 23] = [
    // 32 packets of 64 bytes at a time.
    case("rx_burst", || Box::new(Rx::<BURST>::plain())),
    case("rx_burst_free", || Box::new(Rx::<BURST> { frees: true, ..Rx::plain() })),
    // One frame at a time, each there already: by the call for one, and by a burst.
    case("rx_one", || Box::new(RxOne::new(&RxQueueConfig::default()))),
    case("rx_burst_of_1", || Box::new(Rx::<1>::plain())),
    // Both with the device's timestamp.
    case("rx_burst_timestamps", || {
        let config = RxQueueConfig { timestamps: true, ..RxQueueConfig::default() };
        Box::new(Rx::<BURST>::new(&Bench::new(), &config))
    }),
    case("rx_one_timestamps", || {
        let config = RxQueueConfig { timestamps: true, ..RxQueueConfig::default() };
        Box::new(RxOne::new(&config))
    }),
    // The same in compressed blocks of 32.
    case("rx_compressed", || compressing::<BURST>(compressed::<32>)),
    case("rx_compressed_of_1", || compressing::<1>(compressed::<32>)),
    // In shorter blocks; 16 is the longest of some devices; and none, of a queue that may compress.
    case("rx_compressed_16", || compressing::<BURST>(compressed::<16>)),
    case("rx_compressed_2", || compressing::<BURST>(compressed::<2>)),
    case("rx_compressed_plain", || compressing::<BURST>(plain)),
    case("rx_one_compressed", || {
        let config = RxQueueConfig { cqe_compression: true, ..RxQueueConfig::default() };
        Box::new(RxOne { play: compressed::<32>, ..RxOne::new(&config) })
    }),
    // Packets of 64 bytes in shared buffers, copied out as DPDK does; and of 1,500, which stay,
    // with the freeing of each, since that is where its part of the buffer is given up.
    case("rx_striding", || Box::new(striding(false))),
    // The same with timestamps, in compressed blocks of 32, and one at a time.
    case("rx_striding_timestamps", || {
        let bench = Bench::new();
        let config = RxQueueConfig { timestamps: true, ..strided(&bench) };
        Box::new(Rx::<BURST> { play: strides, ..Rx::new(&bench, &config) })
    }),
    case("rx_striding_compressed", || {
        let bench = Bench::new();
        let config = RxQueueConfig { cqe_compression: true, ..strided(&bench) };
        Box::new(Rx::<BURST> { play: compressed_strides, ..Rx::new(&bench, &config) })
    }),
    case("rx_one_striding", || {
        let bench = Bench::new();
        Box::new(RxOne { play: strides, ..RxOne::of(&bench, &strided(&bench)) })
    }),
    case("rx_striding_1500_free", || {
        Box::new(Rx { len_bytes: STRIDING_BYTES, frees: true, ..striding(true) })
    }),
    // Frames of 3,000 bytes in two buffers each.
    case("rx_scatter_2", || {
        let config = RxQueueConfig { max_frame_bytes: Some(4000), ..RxQueueConfig::default() };
        Box::new(Rx::<BURST>::long(Rx::new(&Bench::new(), &config), LONG_BYTES))
    }),
    // Of a queue for jumbo frames, whose work requests have eight buffers: frames that take one of
    // them, and the longest, which take five.
    case("rx_scatter_8_60", || Box::new(jumbo(FRAME_BYTES))),
    case("rx_scatter_8_1500", || Box::new(jumbo(1500))),
    case("rx_scatter_8_9000", || Box::new(jumbo(9000))),
    // Frames of 1,000 bytes: 128 in a buffer of one pool, the rest in one of another; and some that
    // end within their headers.
    case("rx_split", || Box::new(splitting(1000))),
    case("rx_split_60", || Box::new(splitting(FRAME_BYTES))),
];

/// Bytes of a packet that is not copied out of a shared buffer.
const STRIDING_BYTES: u32 = 1500;

/// A queue whose packets share large buffers.
fn striding(is_long: bool) -> Rx<BURST> {
    let bench = Bench::new();
    let play = if is_long { long_strides } else { strides };
    Rx { play, ..Rx::new(&bench, &strided(&bench)) }
}

fn strided(bench: &Bench) -> RxQueueConfig {
    let striding = Some(Striding::new(bench.large_pool()));
    RxQueueConfig { descriptors: 4096, striding, ..RxQueueConfig::default() }
}

/// A queue for frames of 9,000 bytes in buffers of 2,048.
fn jumbo(len_bytes: u32) -> Rx<BURST> {
    let config = RxQueueConfig { max_frame_bytes: Some(9018), ..RxQueueConfig::default() };
    Rx::new(&Bench::new(), &config).long(len_bytes)
}

/// A queue that puts what follows 128 bytes into another pool's buffers.
fn splitting(len_bytes: u32) -> Rx<BURST> {
    let bench = Bench::new();
    let split = BufferSplit { header_bytes: 128, payload: bench.second_pool() };
    let config = RxQueueConfig { split: Some(split), ..RxQueueConfig::default() };
    Rx::new(&bench, &config).long(len_bytes)
}

/// A queue that may compress completions.
fn compressing<const N: usize>(play: fn(&mut PlayedRx, u32)) -> Box<dyn Work> {
    let config = RxQueueConfig { cqe_compression: true, ..RxQueueConfig::default() };
    Box::new(Rx::<N> { play, ..Rx::new(&Bench::new(), &config) })
}

/// Completions of packets that share large buffers, so many strides each, for TCP over IPv4 with a
/// hash. Every buffer is filled to its end.
fn play_strides(played: &mut PlayedRx, of_each: u32, len_bytes: u32) {
    for _ in 0..RUN {
        let cqe = Cqe64::zeroed()
            .with_byte_cnt(of_each << 16 | len_bytes)
            .with_rx_hash_l3(1)
            .with_rx_hash_l4(1)
            .with_l3_ok(true)
            .with_l4_ok(true)
            .with_l3_hdr_type(2)
            .with_l4_hdr_type(1)
            .with_wqe_counter(played.counter() * of_each % Striding::STRIDES)
            .with_opcode(CqeOpcode::RESPONDER_SEND.0);
        played.complete_with(cqe);
    }
}

fn strides(played: &mut PlayedRx, len_bytes: u32) {
    play_strides(played, 1, len_bytes);
}

/// Of 32 strides each: 16 fill a buffer.
fn long_strides(played: &mut PlayedRx, len_bytes: u32) {
    play_strides(played, 32, len_bytes);
}

fn plain(played: &mut PlayedRx, len_bytes: u32) {
    played.complete(RUN, len_bytes);
}

/// What all packets of a compressed block have in common, TCP over IPv4 with a hash.
fn title(count: u32) -> Cqe64 {
    Cqe64::zeroed()
        .with_byte_cnt(count)
        .with_rx_hash_l3(1)
        .with_rx_hash_l4(1)
        .with_l3_ok(true)
        .with_l4_ok(true)
        .with_l3_hdr_type(2)
        .with_l4_hdr_type(1)
        .with_opcode(CqeOpcode::RESPONDER_SEND.0)
        .with_format(CqeFormat::COMPRESSED.0)
}

/// Completions in compressed blocks of `COUNT`, of which each is made by its number.
fn play_blocks<const COUNT: u32>(played: &mut PlayedRx, mini: impl Fn(u32) -> MiniCqe) {
    for _ in 0..RUN / COUNT {
        let first = played.counter();
        let arrays: Vec<_> = (0..COUNT)
            .step_by(MINI_CQES_PER_ENTRY as usize)
            .map(|start| {
                let mut array = [0; 64];
                for (place, at) in array.chunks_mut(MiniCqe::SIZE_BYTES).zip(start..) {
                    place.copy_from_slice(&mini(first + at).0);
                }
                (start.max(1), array)
            })
            .collect();
        played.complete_block(title(COUNT).with_wqe_counter(first), &arrays, COUNT);
    }
}

/// Completions in compressed blocks of `COUNT`.
fn compressed<const COUNT: u32>(played: &mut PlayedRx, len_bytes: u32) {
    let mini = MiniCqe::zeroed().with_byte_cnt(len_bytes).with_rx_hash_result(0x1234_5678);
    play_blocks::<COUNT>(played, |_| mini);
}

/// The same of packets that share large buffers, a stride each.
fn compressed_strides(played: &mut PlayedRx, len_bytes: u32) {
    play_blocks::<32>(played, |number| {
        let stride = number % Striding::STRIDES;
        MiniCqe::zeroed().with_byte_cnt(1 << 16 | len_bytes).with_rx_hash_result(stride)
    });
}

/// Receives `N` packets at a time.
struct Rx<const N: usize> {
    queue: RxQueue,
    played: PlayedRx,
    play: fn(&mut PlayedRx, u32),
    len_bytes: u32,
    frees: bool,
    bursts: Vec<ArrayVec<Mbuf, N>>,
    received: u32,
}

impl<const N: usize> Rx<N> {
    fn new(bench: &Bench, config: &RxQueueConfig) -> Self {
        let (queue, played) = bench.rx(config);
        let bursts = (0..RUN as usize / N).map(|_| ArrayVec::new()).collect();
        let (play, len_bytes) = (plain as fn(&mut PlayedRx, u32), FRAME_BYTES);
        Self { queue, played, play, len_bytes, frees: false, bursts, received: 0 }
    }

    fn plain() -> Self {
        Self::new(&Bench::new(), &RxQueueConfig::default())
    }

    fn long(self, len_bytes: u32) -> Self {
        Self { len_bytes, ..self }
    }
}

impl<const N: usize> Work for Rx<N> {
    fn prepare(&mut self) {
        for burst in &mut self.bursts {
            self.queue.cache().put_bulk(burst);
        }
        (self.play)(&mut self.played, self.len_bytes);
    }

    fn run(&mut self) {
        for burst in &mut self.bursts {
            let received = rx_burst(&mut self.queue, burst);
            self.received = self.received.wrapping_add(received as u32);
            if self.frees {
                self.queue.cache().put_bulk(burst);
            }
        }
    }

    fn verify(&mut self) {
        verify(&self.queue, &self.played, self.received, self.len_bytes);
    }
}

fn verify(queue: &RxQueue, played: &PlayedRx, received: u32, len_bytes: u32) {
    let stats = queue.stats();
    assert_eq!(received, played.completed(), "every completion gave a packet");
    assert_eq!(stats.bytes, stats.packets * u64::from(len_bytes));
    assert_eq!((stats.no_mbuf, stats.fault), (0, None));
}

/// Receives one packet at a time, and looks at its length.
struct RxOne {
    queue: RxQueue,
    played: PlayedRx,
    play: fn(&mut PlayedRx, u32),
    held: ArrayVec<Mbuf, { RUN as usize }>,
    received: u32,
}

impl RxOne {
    fn new(config: &RxQueueConfig) -> Self {
        Self::of(&Bench::new(), config)
    }

    fn of(bench: &Bench, config: &RxQueueConfig) -> Self {
        let (queue, played) = bench.rx(config);
        Self { queue, played, play: plain, held: ArrayVec::new(), received: 0 }
    }
}

impl Work for RxOne {
    fn prepare(&mut self) {
        self.received = self.received.wrapping_add(self.held.len() as u32);
        self.queue.cache().put_bulk(&mut self.held);
        (self.play)(&mut self.played, FRAME_BYTES);
    }

    fn run(&mut self) {
        while let Some(mbuf) = rx_one(&mut self.queue) {
            self.held.push(mbuf);
        }
    }

    fn verify(&mut self) {
        // What is held is counted when it is given back.
        let received = self.received.wrapping_add(self.held.len() as u32);
        verify(&self.queue, &self.played, received, FRAME_BYTES);
    }
}
