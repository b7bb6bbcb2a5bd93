//! A device that stands still and is only played, and its queues.

use arrayvec::ArrayVec;
use ferrocx_bus::DoorbellKind;
use ferrocx_core::{Device, DeviceConfig};
use ferrocx_mempool::{Mbuf, PageSize, Pool, PoolConfig, RegionConfig};
use ferrocx_model::NicConfig;
use ferrocx_model::played::{PlayedRx, PlayedTx, Sender, Still};
use ferrocx_pmd::{RxQueue, RxQueueConfig, Striding, TxQueue, TxQueueConfig};

use super::pool::mbufs;
use super::{Case, Work};

pub(super) const BURST: usize = 32;
/// Bytes of a frame of 64 without its FCS.
pub(super) const FRAME_BYTES: u32 = 60;
/// Bursts in one run of forwarding.
const BURSTS: u64 = 8;

pub(super) type Burst = ArrayVec<Mbuf, BURST>;

/// Receives 32 packets at a time and sends them: io forwarding.
pub(super) const FORWARD_BURST: Case = Case {
    name: "rx_tx_burst",
    elements: BURSTS * BURST as u64,
    make: || Box::new(Forward::new()),
};

/// A call of its own, as in an application: what surrounds it then does not change its code.
#[inline(never)]
pub(super) fn rx_burst<const N: usize>(
    queue: &mut RxQueue,
    burst: &mut ArrayVec<Mbuf, N>,
) -> usize {
    queue.rx_burst(burst)
}

/// As [`rx_burst`].
#[inline(never)]
pub(super) fn rx_one(queue: &mut RxQueue) -> Option<Mbuf> {
    queue.rx_one()
}

/// As [`rx_burst`].
#[inline(never)]
pub(super) fn tx_burst(queue: &mut TxQueue, burst: &mut Burst) -> usize {
    queue.tx_burst(burst)
}

/// A device that stands still, and a pool of its own.
pub(super) struct Bench {
    still: Still,
    pub(super) device: Device,
    pub(super) pool: Pool,
}

impl Bench {
    pub(super) fn new() -> Self {
        Self::of(NicConfig::default())
    }

    /// With a device of another kind.
    pub(super) fn of(nic: NicConfig) -> Self {
        Self::on(Still::new(nic).expect("a model"))
    }

    /// With a device that takes requests through BlueFlame registers, by write-combining stores.
    pub(super) fn with_blueflame() -> Self {
        let kind = DoorbellKind::WriteCombining;
        Self::on(Still::with_blueflame(NicConfig::default(), kind).expect("a model"))
    }

    fn on(still: Still) -> Self {
        let config = DeviceConfig { page: PageSize::Base4K, ..DeviceConfig::default() };
        let device = Device::open(still.transport(), &config).expect("the model comes up");
        let pool = mbufs(8191);
        device.register_pool(&pool).expect("memory for the device");
        Self { still, device, pool }
    }

    /// Another pool that the device knows.
    pub(super) fn second_pool(&self) -> Pool {
        let pool = mbufs(2047);
        self.device.register_pool(&pool).expect("memory for the device");
        pool
    }

    /// A pool of large buffers that the device knows.
    pub(super) fn large_pool(&self) -> Pool {
        let config = PoolConfig {
            name: "large".to_owned(),
            count: 127,
            data_room_bytes: Striding::BUFFER_BYTES as usize,
            headroom_bytes: 0,
            region: RegionConfig { page: PageSize::Base4K, ..RegionConfig::default() },
            ..PoolConfig::default()
        };
        let pool = Pool::new(&config).expect("memory");
        self.device.register_pool(&pool).expect("memory for the device");
        pool
    }

    pub(super) fn rx(&self, config: &RxQueueConfig) -> (RxQueue, PlayedRx) {
        let queue = RxQueue::new(&self.device, &self.pool, config).expect("a queue");
        let played = self.still.receiver(queue.queue_ref().rqn());
        (queue, played)
    }

    pub(super) fn tx(&self, config: &TxQueueConfig) -> (TxQueue, PlayedTx) {
        let queue = TxQueue::new(&self.device, &self.pool, config).expect("a queue");
        let played = self.still.sender(Sender::Sq(queue.sqn()));
        (queue, played)
    }
}

struct Forward {
    rx: (RxQueue, PlayedRx),
    tx: (TxQueue, PlayedTx),
    burst: Burst,
    forwarded: u64,
}

impl Forward {
    fn new() -> Self {
        let bench = Bench::new();
        let rx = bench.rx(&RxQueueConfig::default());
        let tx = bench.tx(&TxQueueConfig::default());
        Self { rx, tx, burst: Burst::new(), forwarded: 0 }
    }
}

impl Work for Forward {
    fn prepare(&mut self) {
        self.rx.1.complete(BURSTS as u32 * BURST as u32, FRAME_BYTES);
        self.tx.1.complete();
    }

    fn run(&mut self) {
        for _ in 0..BURSTS {
            rx_burst(&mut self.rx.0, &mut self.burst);
            self.forwarded += tx_burst(&mut self.tx.0, &mut self.burst) as u64;
            self.rx.0.recycle(&mut self.tx.0);
        }
    }

    fn verify(&mut self) {
        assert!(self.burst.is_empty(), "the ring had room for every packet");
        assert_eq!(self.forwarded, self.rx.0.stats().packets);
        assert_eq!(self.forwarded, self.tx.0.stats().packets);
    }
}
