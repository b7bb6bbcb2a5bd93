//! Receive and send bursts over rings in plain memory, with a device that is only played.

use arrayvec::ArrayVec;
use ferrocx_mempool::{Mbuf, PageSize, Pool};
use ferrocx_pmd::bench_support::{NullBus, NullRx, NullTx};

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
fn rx_burst(device: &mut NullRx, burst: &mut ArrayVec<Mbuf, BURST>) -> usize {
    device.queue.rx_burst(burst)
}

/// As [`rx_burst`].
#[inline(never)]
fn tx_burst(device: &mut NullTx, burst: &mut ArrayVec<Mbuf, BURST>) -> usize {
    device.queue.tx_burst(burst)
}

struct Null {
    bus: NullBus,
    pool: Pool,
}

fn null() -> Null {
    let bus = NullBus::new(PageSize::Base4K).expect("memory for rings");
    Null { bus, pool: mbufs(8191) }
}

struct Rx {
    device: NullRx,
    burst: ArrayVec<Mbuf, BURST>,
    received: u32,
}

impl Rx {
    fn new() -> Self {
        let Null { bus, pool } = null();
        let device = bus.rx_queue(&pool, RING).expect("a queue");
        Self { device, burst: ArrayVec::new(), received: 0 }
    }
}

impl Work for Rx {
    fn prepare(&mut self) {
        self.device.complete(BURSTS * BURST as u32, FRAME_BYTES);
    }

    fn run(&mut self) {
        for _ in 0..BURSTS {
            self.received =
                self.received.wrapping_add(rx_burst(&mut self.device, &mut self.burst) as u32);
            self.device.queue.cache().put_bulk(&mut self.burst);
        }
    }

    fn verify(&mut self) {
        let stats = self.device.queue.stats();
        assert_eq!(self.received, self.device.completed(), "every completion gave a packet");
        assert_eq!(stats.bytes, stats.packets * u64::from(FRAME_BYTES));
    }
}

struct Tx {
    device: NullTx,
    burst: ArrayVec<Mbuf, BURST>,
    sent: u64,
}

impl Tx {
    fn new() -> Self {
        let Null { bus, pool } = null();
        let mut device = bus.tx_queue(&pool, RING).expect("a queue");
        let cache = device.queue.cache();
        // Buffers keep their length when they come back, so that no run sets it again.
        let mut all = Vec::new();
        while let Some(mut mbuf) = cache.get() {
            mbuf.append(FRAME_BYTES as usize).expect("room").fill(0xa5);
            all.push(mbuf);
        }
        all.into_iter().for_each(|mbuf| cache.put(mbuf));
        Self { device, burst: ArrayVec::new(), sent: 0 }
    }
}

impl Work for Tx {
    fn prepare(&mut self) {
        self.device.complete();
    }

    fn run(&mut self) {
        for _ in 0..BURSTS {
            assert!(self.device.queue.cache().get_raw_bulk(&mut self.burst, BURST));
            self.sent += tx_burst(&mut self.device, &mut self.burst) as u64;
        }
    }

    fn verify(&mut self) {
        let stats = self.device.queue.stats();
        assert!(self.burst.is_empty(), "the ring had room for every packet");
        assert_eq!((stats.packets, stats.dropped), (self.sent, 0));
        assert_eq!(stats.bytes, self.sent * u64::from(FRAME_BYTES));
    }
}

struct Forward {
    rx: NullRx,
    tx: NullTx,
    burst: ArrayVec<Mbuf, BURST>,
    forwarded: u64,
}

impl Forward {
    fn new() -> Self {
        let Null { bus, pool } = null();
        let rx = bus.rx_queue(&pool, RING).expect("a queue");
        let tx = bus.tx_queue(&pool, RING).expect("a queue");
        Self { rx, tx, burst: ArrayVec::new(), forwarded: 0 }
    }
}

impl Work for Forward {
    fn prepare(&mut self) {
        self.rx.complete(BURSTS * BURST as u32, FRAME_BYTES);
        self.tx.complete();
    }

    fn run(&mut self) {
        for _ in 0..BURSTS {
            rx_burst(&mut self.rx, &mut self.burst);
            self.forwarded += tx_burst(&mut self.tx, &mut self.burst) as u64;
        }
    }

    fn verify(&mut self) {
        assert!(self.burst.is_empty(), "the ring had room for every packet");
        assert_eq!(self.forwarded, self.rx.queue.stats().packets);
        assert_eq!(self.forwarded, self.tx.queue.stats().packets);
    }
}
