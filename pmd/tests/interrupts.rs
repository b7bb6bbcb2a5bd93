//! Receive queues with an interrupt: sleeping, waking, and switching between sleeping and polling.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::{Burst, config, frame, pool};
use ferrocx_bus::local::{LocalConfig, pair};
use ferrocx_bus::{BusError, Transport};
use ferrocx_core::{Device, DeviceError};
use ferrocx_mempool::Pool;
use ferrocx_model::runner::{Runner, RunnerConfig, Wait};
use ferrocx_model::wire::{Fcs, Received, Wire};
use ferrocx_model::{Nic, NicConfig};
use ferrocx_pmd::{Rss, RssConfig, RxQueue, RxQueueConfig, sleep_on};

const MAC: [u8; 6] = [0x02, 0xfe, 0x0c, 0, 0, 1];
/// Ends a test that hangs; a wake-up on a machine that does other work may take seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// A far end that sends a frame as often as it is told to, a varying while afterwards.
#[derive(Debug)]
struct OnDemand {
    wanted: Arc<AtomicU32>,
    sent: u32,
    /// Steps until the next one.
    pause: u32,
    bytes: Vec<u8>,
}

impl Wire for OnDemand {
    fn reserve(&mut self, _len: usize) -> Option<&mut [u8]> {
        None
    }

    fn commit(&mut self, _now_ns: u64, _fcs: Fcs) {}

    fn receive(&mut self, _now_ns: u64) -> Option<Received<'_>> {
        if self.sent == self.wanted.load(Ordering::Acquire) {
            return None;
        }
        if self.pause > 0 {
            self.pause -= 1;
            return None;
        }
        self.sent += 1;
        // From "before the queue is armed" to "long asleep".
        self.pause = self.sent % 61;
        Some(Received { bytes: &self.bytes, fcs: Fcs::Good })
    }
}

struct Bed {
    wanted: Arc<AtomicU32>,
    device: Device,
    pool: Pool,
    runner: Runner,
}

impl Bed {
    fn new() -> Self {
        let (transport, side) = pair(LocalConfig::default()).unwrap();
        let wanted = Arc::new(AtomicU32::new(0));
        let mut nic = Nic::new(side, NicConfig::default());
        let bytes = frame(MAC, 64, 1);
        nic.datapath_mut().plug(OnDemand { wanted: Arc::clone(&wanted), sent: 0, pause: 0, bytes });
        let runner = RunnerConfig { wait: Wait::Yield, on_start: None };
        let runner = Runner::start(vec![nic], runner).unwrap();
        let transport: Arc<dyn Transport> = transport;
        let device = Device::open(transport, &config()).unwrap();
        let pool = pool(512);
        device.register_pool(&pool).unwrap();
        Self { wanted, device, pool, runner }
    }

    fn queue(&self, interrupt: Option<u16>) -> Result<RxQueue, DeviceError> {
        self.moderated(interrupt, 0)
    }

    fn moderated(&self, interrupt: Option<u16>, period_us: u16) -> Result<RxQueue, DeviceError> {
        let config = RxQueueConfig {
            descriptors: 64,
            cache_size: 64,
            interrupt,
            interrupt_period_us: period_us,
            ..RxQueueConfig::default()
        };
        RxQueue::new(&self.device, &self.pool, &config)
    }

    fn receiving(&self, queue: &RxQueue) -> Rss {
        Rss::new(&self.device, &[queue.queue_ref()], &RssConfig::default()).unwrap()
    }

    fn end(self) {
        self.device.close().unwrap();
        let nics = self.runner.stop();
        let refused: Vec<String> = nics[0].log().iter().map(ToString::to_string).collect();
        assert_eq!(refused, Vec::<String>::new());
        assert_eq!(self.pool.stats().in_use, 0);
    }
}

/// Receives `frames`, one at a time, and sleeps whenever there is none.
fn switch(frames: u32, period_us: u16) {
    let bed = Bed::new();
    let mut rx = bed.moderated(Some(3), period_us).unwrap();
    let rss = bed.receiving(&rx);
    let (mut got, mut slept) = (0, 0);
    let mut burst = Burst::new();
    while got < frames {
        bed.wanted.store(got + 1, Ordering::Release);
        while rx.rx_burst(&mut burst) == 0 {
            assert!(rx.wait(PATIENCE).unwrap(), "frame {got} woke nobody");
            slept += 1;
        }
        assert_eq!(burst.len(), 1);
        got += 1;
        rx.cache().put_bulk(&mut burst);
    }
    assert_eq!(rx.fault(), None);
    assert!(slept >= frames / 2, "slept {slept} times for {frames} frames");
    drop((rss, rx));
    bed.end();
}

/// Switches between sleeping and polling; for a soak, `FERROCX_WAKE_UPS` says how many.
#[test]
fn no_wake_up_is_lost() {
    let frames = std::env::var("FERROCX_WAKE_UPS").ok();
    switch(frames.map_or(20_000, |text| text.parse().expect("FERROCX_WAKE_UPS is a number")), 0);
}

#[test]
fn interrupts_keep_their_distance() {
    const PERIOD_US: u16 = 3000;
    let begun = Instant::now();
    switch(20, PERIOD_US);
    // At least every other frame was slept for, and no sleep but the first ended sooner.
    let least = Duration::from_micros(PERIOD_US.into()) * 9;
    assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
    let bed = Bed::new();
    let refusal = bed.moderated(Some(3), 4096).unwrap_err().to_string();
    assert_eq!(refusal, "microseconds between interrupts is 4096; it must be 0 to 4095");
    bed.end();
}

/// Processor time of this thread.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn an_idle_receiver_sleeps_and_wakes_on_traffic() {
    let bed = Bed::new();
    let mut rx = bed.queue(Some(0)).unwrap();
    let rss = bed.receiving(&rx);
    let (start, cpu) = (Instant::now(), cpu_time());
    let nap = Duration::from_millis(300);
    assert!(!rx.wait(nap).unwrap(), "nothing came");
    assert!(start.elapsed() >= nap);
    let used = cpu_time().saturating_sub(cpu);
    assert!(used < nap / 10, "used {used:?} of {nap:?}");
    bed.wanted.store(1, Ordering::Release);
    // Still armed; asking again changes nothing.
    assert!(rx.wait(PATIENCE).unwrap());
    let mut burst = Burst::new();
    assert_eq!(rx.rx_burst(&mut burst), 1);
    burst.clear();
    // A packet that came before arming wakes at once.
    bed.wanted.store(2, Ordering::Release);
    while bed.runner.with(|nics| nics[0].state().port.counters.rx_unicast.packets) < 2 {
        std::thread::yield_now();
    }
    let start = Instant::now();
    loop {
        let is_told = rx.wait(PATIENCE).unwrap();
        assert!(start.elapsed() < PATIENCE, "it came and was not told");
        if rx.rx_burst(&mut burst) == 1 {
            break;
        }
        // The interrupt of the first, on its way when this armed, tells of nothing.
        assert!(!is_told);
    }
    burst.clear();
    drop((rss, rx));
    bed.end();
}

#[test]
fn several_queues_are_slept_on_together() {
    let bed = Bed::new();
    // Two share a vector, one is only polled.
    let mut queues = [Some(1), Some(1), Some(2), None].map(|vector| bed.queue(vector).unwrap());
    assert_eq!(queues.each_mut().map(RxQueue::arm), [true, true, true, false]);
    assert!(queues[3].wake_fd().is_none() && queues[3].wait(PATIENCE).unwrap());
    let rss = bed.receiving(&queues[2]);
    bed.wanted.store(1, Ordering::Release);
    sleep_on(&queues, PATIENCE).unwrap();
    assert_eq!(queues.each_mut().map(RxQueue::woken), [false, false, true, false]);
    let mut burst = Burst::new();
    assert_eq!(queues[2].rx_burst(&mut burst), 1);
    burst.clear();
    // A name of a queue keeps what the queue needs.
    let name = queues[0].queue_ref();
    drop((rss, queues));
    drop(name);
    bed.end();
}

#[test]
fn a_vector_that_is_not_there_is_refused() {
    let bed = Bed::new();
    let error = bed.queue(Some(64)).unwrap_err();
    assert!(
        matches!(error, DeviceError::Bus(BusError::VectorNotEnabled { vector: 64, enabled: 64 })),
        "{error}"
    );
    bed.end();
}
