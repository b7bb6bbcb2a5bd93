//! A pool that two devices share carries the addresses of one of them, which may take them back at
//! any time: the queues of the other post by their own mapping.

mod common;

use common::{Bench, Burst, config, frame, pool_of};
use ferrocx_core::{DeviceConfig, KeyMode};
use ferrocx_mempool::{Mbuf, Pool};
use ferrocx_pmd::{BufferSplit, Rss, RssConfig, RxQueue, RxQueueConfig, Striding};

const MAC: [u8; 6] = [0x02, 0xfe, 0x0c, 0, 0, 1];
/// Buffers of the pool that is shared, and of its neighbour.
const COUNT: usize = 64;

/// How a queue uses the pool that is shared.
#[derive(Debug, Clone, Copy)]
enum Use {
    /// A buffer for each packet, whose completions may be compressed.
    Packets { cqe_compression: bool },
    /// Two buffers for each packet.
    Chains,
    /// What follows a packet's header.
    Payloads,
    /// Many packets to a buffer.
    Strides,
}

impl Use {
    /// Bytes of a buffer, buffers, and bytes of frames that leave none of them in the ring.
    fn sizes(self) -> (usize, usize, usize) {
        match self {
            Self::Packets { .. } | Self::Payloads => (2048 + 128, COUNT, 1000),
            Self::Chains => (512, 2 * COUNT, 600),
            Self::Strides => (Striding::BUFFER_BYTES as usize, 2, 1024),
        }
    }

    /// The queue's own pool, and its settings.
    fn queue(self, shared: &Pool) -> (Pool, RxQueueConfig) {
        let own = || pool_of(4 * COUNT, 2048 + 128);
        let config = RxQueueConfig { descriptors: 64, ..RxQueueConfig::default() };
        match self {
            Self::Packets { cqe_compression } => {
                (shared.clone(), RxQueueConfig { cqe_compression, ..config })
            }
            Self::Chains => {
                (shared.clone(), RxQueueConfig { max_frame_bytes: Some(800), ..config })
            }
            Self::Payloads => {
                let split = Some(BufferSplit { header_bytes: 100, payload: shared.clone() });
                (own(), RxQueueConfig { split, ..config })
            }
            Self::Strides => {
                let striding = Some(Striding { copy_bytes: 0, ..Striding::new(shared.clone()) });
                (own(), RxQueueConfig { descriptors: 1024, striding, ..config })
            }
        }
    }
}

/// What becomes of the other device's stamp.
#[derive(Debug, Clone, Copy)]
enum Fate {
    TakenBack,
    Replaced,
    /// Its device is closed.
    Closed,
}

fn all_of(pool: &Pool) -> Vec<Mbuf> {
    std::iter::from_fn(|| pool.get()).collect()
}

/// Lets the device work, which may wait for more completions to compress.
fn settle(bench: &Bench) {
    bench.settle();
    bench.pass(1_000_000);
    bench.settle();
}

/// Receives `frames`, which all arrive, bytes as they were sent.
#[track_caller]
fn receive(bench: &mut Bench, queue: &mut RxQueue, frames: &[Vec<u8>], what: &str) -> Vec<Mbuf> {
    frames.iter().for_each(|frame| bench.inject(frame));
    settle(bench);
    let mut held = Vec::new();
    // Behind the last there is a call that finds nothing, so that little is posted too.
    for _ in 0..2 * frames.len() {
        let mut out = Burst::new();
        queue.rx_burst(&mut out);
        held.extend(out);
    }
    assert_eq!(held.len(), frames.len(), "{what}: {:?}", bench.refusals());
    for (mbuf, frame) in held.iter().zip(frames) {
        let mut bytes = vec![0; frame.len()];
        assert_eq!(mbuf.pkt_len(), frame.len(), "{what}");
        assert!(mbuf.read(0, &mut bytes) && bytes == *frame, "{what}: other bytes");
    }
    held
}

#[test]
fn a_queue_outlives_the_stamp_of_another_device() {
    let plain = Use::Packets { cqe_compression: false };
    let compressing = Use::Packets { cqe_compression: true };
    for mode in [KeyMode::Reserved, KeyMode::Physical, KeyMode::Translated] {
        for how in [plain, compressing, Use::Chains, Use::Payloads, Use::Strides] {
            for fate in [Fate::TakenBack, Fate::Replaced, Fate::Closed] {
                outlives(mode, how, fate);
            }
        }
    }
}

fn outlives(mode: KeyMode, how: Use, fate: Fate) {
    let what = format!("{mode}, {how:?}, {fate:?}");
    let (room, count, len) = how.sizes();
    let (other_bench, mut bench) = (Bench::new(), Bench::new());
    let config = DeviceConfig { key_mode: Some(mode), ..config() };
    let (other, device) = (other_bench.try_device(&config), bench.try_device(&config));
    let (shared, neighbour) = (pool_of(count, room), pool_of(count, room));
    // The other device stamps the pool; this one has the neighbour directly behind it.
    other.register_pool(&shared).unwrap();
    let (own, settings) = how.queue(&shared);
    [&own, &shared, &neighbour].iter().for_each(|pool| device.register_pool(pool).unwrap());
    let mut queue = RxQueue::new(&device, &own, &settings).unwrap();
    let rss = Rss::new(&device, &[queue.queue_ref()], &RssConfig::default()).unwrap();

    // No buffer of the pool is left to post; then all are at home.
    let frames: Vec<_> = (0..64).map(|tag| frame(MAC, len, tag)).collect();
    let held = receive(&mut bench, &mut queue, &frames, &what);
    assert_eq!(shared.stats().shared, 0, "{what}");
    drop(held);
    queue.cache().flush();
    assert_eq!(shared.stats().shared as usize, count, "{what}");

    let mut other = Some(other);
    match (fate, &other) {
        (Fate::TakenBack, Some(other)) => other.unregister_pool(&shared).unwrap(),
        (Fate::Replaced, Some(other)) => {
            other.unregister_pool(&shared).unwrap();
            other.register_pool(&shared).unwrap();
        }
        _ => other.take().unwrap().close().unwrap(),
    }
    let mut lent = all_of(&neighbour);
    for mbuf in &mut lent {
        mbuf.append(mbuf.tailroom()).unwrap().fill(0xa5);
    }
    // The queue posts what it has not posted since.
    assert_eq!(queue.rx_burst(&mut Burst::new()), 0, "{what}");
    receive(&mut bench, &mut queue, &frames[..1], &what);
    let unchanged = |mbuf: &Mbuf| mbuf.data().iter().all(|byte| *byte == 0xa5);
    assert!(lent.iter().all(unchanged), "{what}: somebody else's packet was written to");
    bench.assert_clean();

    // A queue that is made now has no stamp to go by.
    drop((rss, queue));
    let mut queue = RxQueue::new(&device, &own, &settings).unwrap();
    let _rss = Rss::new(&device, &[queue.queue_ref()], &RssConfig::default()).unwrap();
    receive(&mut bench, &mut queue, &frames[..1], &what);
}
