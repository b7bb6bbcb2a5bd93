//! The model's own work: its speed, and no NIC's.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrayvec::ArrayVec;
use ferrocx_bus::Transport;
use ferrocx_bus::local::{LocalConfig, pair};
use ferrocx_core::{Device, DeviceConfig};
use ferrocx_mempool::{Mbuf, PageSize};
use ferrocx_model::wire::{Generator, GeneratorConfig, GeneratorHandle, Pace};
use ferrocx_model::{Nic, NicConfig};
use ferrocx_pmd::{Rss, RssConfig, RxQueue, RxQueueConfig, TxQueue, TxQueueConfig};

use super::pool::mbufs;
use super::{Case, Work};

/// Frames that a step receives, and sends: as many as it takes from a wire.
const BURST: usize = 64;
/// Flows of these frames: one behind the other, as testpmd's generator has them by default.
const FLOWS: u32 = 16;
/// Device time of one step.
const STEP_NS: u64 = 10_000;

/// Frames of 64 bytes from a generator to a driver and back, which the generator checks.
pub(super) const FORWARD: Case =
    Case { name: "model_forward_64", elements: BURST as u64, make: || Box::new(Forward::new()) };

/// A device and its time.
struct Clocked {
    nic: Nic,
    now_ns: u64,
}

impl Clocked {
    fn step(&mut self) {
        self.now_ns += STEP_NS;
        self.nic.step(self.now_ns);
    }
}

struct Forward {
    model: Arc<Mutex<Clocked>>,
    generator: GeneratorHandle,
    rx: RxQueue,
    tx: TxQueue,
    _rss: Rss,
    runs: u64,
    forwarded: u64,
}

impl Forward {
    fn new() -> Self {
        let (transport, side) = pair(LocalConfig::default()).expect("a transport");
        // In each step, the frames of one burst come back while those of the next are on their way.
        let pace = Pace::Window(2 * BURST as u32);
        let wire =
            Generator::new(GeneratorConfig { pace, flows: FLOWS, ..GeneratorConfig::default() });
        let generator = wire.handle();
        generator.set_paused(true);
        let mut nic = Nic::new(side, NicConfig::default());
        nic.datapath_mut().plug(wire);
        let model = Arc::new(Mutex::new(Clocked { nic, now_ns: 0 }));
        let stepped = Arc::clone(&model);
        transport.set_idle_hook(Some(Arc::new(move || lock(&stepped).step())));
        let transport: Arc<dyn Transport> = transport;
        let config = DeviceConfig { page: PageSize::Base4K, ..DeviceConfig::default() };
        let device = Device::open(transport, &config).expect("a device");
        let pool = mbufs(8191);
        device.register_pool(&pool).expect("memory for the device");
        let rx = RxQueue::new(&device, &pool, &RxQueueConfig::default()).expect("a queue");
        let tx = TxQueue::new(&device, &pool, &TxQueueConfig::default()).expect("a queue");
        let rss = Rss::new(&device, &[rx.queue_ref()], &RssConfig::default()).expect("steering");
        let mut forward = Self { model, generator, rx, tx, _rss: rss, runs: 0, forwarded: 0 };
        // Until as many are on their way as may be.
        forward.generator.set_paused(false);
        for _ in 0..8 {
            lock(&forward.model).step();
            forward.prepare();
        }
        forward.forwarded = 0;
        forward
    }
}

impl Work for Forward {
    /// What the driver does for a step: it sends what it received.
    fn prepare(&mut self) {
        let mut burst = ArrayVec::<Mbuf, BURST>::new();
        self.rx.rx_burst(&mut burst);
        self.forwarded += self.tx.tx_burst(&mut burst) as u64;
    }

    fn run(&mut self) {
        lock(&self.model).step();
        self.runs += 1;
    }

    fn verify(&mut self) {
        self.prepare();
        assert_eq!(self.forwarded, self.runs * BURST as u64, "each step received a burst");
        let stats = self.generator.stats();
        let bad = [stats.damaged, stats.foreign, stats.out_of_order, stats.timed_out];
        assert!(stats.missing() <= 2 * BURST as u64 && bad == [0; 4], "{stats:?}");
    }
}

fn lock(model: &Mutex<Clocked>) -> MutexGuard<'_, Clocked> {
    model.lock().unwrap_or_else(PoisonError::into_inner)
}
