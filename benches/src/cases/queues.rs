//! Receive and send bursts on a device that stands still and is only played.

use arrayvec::ArrayVec;
use ferrocx_core::{Device, DeviceConfig};
use ferrocx_mempool::{Mbuf, PageSize, Pool};
use ferrocx_model::NicConfig;
use ferrocx_model::played::{PlayedRx, PlayedTx, Sender, Still};
use ferrocx_pmd::{RxQueue, RxQueueConfig, TxQueue, TxQueueConfig};

use super::pool::mbufs;
use super::{Case, Work};

const RING: u32 = 512;
const BURST: usize = 32;
/// Bursts in one run.
const BURSTS: u32 = 8;
const PACKETS: u64 = BURSTS as u64 * BURST as u64;
/// Bytes of a frame of 64 without its FCS.
const FRAME_BYTES: u32 = 60;

/// Receives 32 packets of 64 bytes at a time and frees them.
pub(super) const RX_BURST: Case =
    Case { name: "rx_burst", elements: PACKETS, make: || Box::new(Rx::new()) };

/// Takes 32 buffers at a time from the pool and sends them, one segment each.
pub(super) const TX_BURST: Case =
    Case { name: "tx_burst", elements: PACKETS, make: || Box::new(Tx::new()) };

/// Receives 32 packets at a time and sends them: io forwarding.
pub(super) const FORWARD_BURST: Case =
    Case { name: "rx_tx_burst", elements: PACKETS, make: || Box::new(Forward::new()) };

/// A call of its own, as in an application: what surrounds it then does not change its code.
#[inline(never)]
fn rx_burst(queue: &mut RxQueue, burst: &mut ArrayVec<Mbuf, BURST>) -> usize {
    queue.rx_burst(burst)
}

/// As [`rx_burst`].
#[inline(never)]
fn tx_burst(queue: &mut TxQueue, burst: &mut ArrayVec<Mbuf, BURST>) -> usize {
    queue.tx_burst(burst)
}

/// A device that stands still, and a pool of its own.
fn device() -> (Still, Device, Pool) {
    let still = Still::new(NicConfig::default()).expect("a model");
    let config = DeviceConfig { page: PageSize::Base4K, ..DeviceConfig::default() };
    let device = Device::open(still.transport(), &config).expect("the model comes up");
    let pool = mbufs(8191);
    device.register_pool(&pool).expect("memory for the device");
    (still, device, pool)
}

fn rx_queue(still: &Still, device: &Device, pool: &Pool) -> (RxQueue, PlayedRx) {
    let config = RxQueueConfig { descriptors: RING, ..RxQueueConfig::default() };
    let queue = RxQueue::new(device, pool, &config).expect("a queue");
    let played = still.receiver(queue.queue_ref().rqn());
    (queue, played)
}

fn tx_queue(still: &Still, device: &Device, pool: &Pool) -> (TxQueue, PlayedTx) {
    let config = TxQueueConfig { descriptors: RING, ..TxQueueConfig::default() };
    let queue = TxQueue::new(device, pool, &config).expect("a queue");
    let played = still.sender(Sender::Sq(queue.sqn()));
    (queue, played)
}

struct Rx {
    queue: RxQueue,
    played: PlayedRx,
    burst: ArrayVec<Mbuf, BURST>,
    received: u32,
}

impl Rx {
    fn new() -> Self {
        let (still, device, pool) = device();
        let (queue, played) = rx_queue(&still, &device, &pool);
        Self { queue, played, burst: ArrayVec::new(), received: 0 }
    }
}

impl Work for Rx {
    fn prepare(&mut self) {
        self.played.complete(BURSTS * BURST as u32, FRAME_BYTES);
    }

    fn run(&mut self) {
        for _ in 0..BURSTS {
            self.received =
                self.received.wrapping_add(rx_burst(&mut self.queue, &mut self.burst) as u32);
            self.queue.cache().put_bulk(&mut self.burst);
        }
    }

    fn verify(&mut self) {
        let stats = self.queue.stats();
        assert_eq!(self.received, self.played.completed(), "every completion gave a packet");
        assert_eq!(stats.bytes, stats.packets * u64::from(FRAME_BYTES));
    }
}

struct Tx {
    queue: TxQueue,
    played: PlayedTx,
    burst: ArrayVec<Mbuf, BURST>,
    sent: u64,
}

impl Tx {
    fn new() -> Self {
        let (still, device, pool) = device();
        let (mut queue, played) = tx_queue(&still, &device, &pool);
        let cache = queue.cache();
        // Buffers keep their length when they come back, so that no run sets it again.
        let mut all = Vec::new();
        while let Some(mut mbuf) = cache.get() {
            mbuf.append(FRAME_BYTES as usize).expect("room").fill(0xa5);
            all.push(mbuf);
        }
        all.into_iter().for_each(|mbuf| cache.put(mbuf));
        Self { queue, played, burst: ArrayVec::new(), sent: 0 }
    }
}

impl Work for Tx {
    fn prepare(&mut self) {
        self.played.complete();
    }

    fn run(&mut self) {
        for _ in 0..BURSTS {
            assert!(self.queue.cache().get_raw_bulk(&mut self.burst, BURST));
            self.sent += tx_burst(&mut self.queue, &mut self.burst) as u64;
        }
    }

    fn verify(&mut self) {
        let stats = self.queue.stats();
        assert!(self.burst.is_empty(), "the ring had room for every packet");
        assert_eq!((stats.packets, stats.dropped), (self.sent, 0));
        assert_eq!(stats.bytes, self.sent * u64::from(FRAME_BYTES));
    }
}

struct Forward {
    rx: (RxQueue, PlayedRx),
    tx: (TxQueue, PlayedTx),
    burst: ArrayVec<Mbuf, BURST>,
    forwarded: u64,
}

impl Forward {
    fn new() -> Self {
        let (still, device, pool) = device();
        let rx = rx_queue(&still, &device, &pool);
        let tx = tx_queue(&still, &device, &pool);
        Self { rx, tx, burst: ArrayVec::new(), forwarded: 0 }
    }
}

impl Work for Forward {
    fn prepare(&mut self) {
        self.rx.1.complete(BURSTS * BURST as u32, FRAME_BYTES);
        self.tx.1.complete();
    }

    fn run(&mut self) {
        for _ in 0..BURSTS {
            rx_burst(&mut self.rx.0, &mut self.burst);
            self.forwarded += tx_burst(&mut self.tx.0, &mut self.burst) as u64;
        }
    }

    fn verify(&mut self) {
        assert!(self.burst.is_empty(), "the ring had room for every packet");
        assert_eq!(self.forwarded, self.rx.0.stats().packets);
        assert_eq!(self.forwarded, self.tx.0.stats().packets);
    }
}
