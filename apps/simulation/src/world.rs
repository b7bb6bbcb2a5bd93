//! One clock and all models: the only place where simulated time passes.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use ferrocx_bus::local::LocalTransport;
use ferrocx_bus::{Bar, BarClaim, BusError, DmaSpace, Interrupts, PciIdentity, Transport};
use ferrocx_model::Nic;
use ferrocx_model::wire::SplitMix64;

use crate::forge::Forger;
use crate::liar::{Lies, LyingBar};
use crate::planted::{Bug, Planted};
use crate::sync::lock;

/// Simulated time of a step in which something happens.
const STEP_NS: u64 = 1_000;
/// Idle steps after which a step takes twice as long, and how often that may happen.
const IDLE_STEPS: u32 = 4;
const MAX_DOUBLINGS: u32 = 8;

/// The models, and the time that all of them and all drivers share.
pub(crate) struct World {
    nics: Vec<Mutex<Nic>>,
    /// Who changes what devices say, by host.
    forgers: Mutex<Vec<(usize, Forger)>>,
    is_forged: AtomicBool,
    epoch: Instant,
    now_ns: AtomicU64,
    steps: AtomicU64,
    idle: AtomicU32,
    random: Mutex<SplitMix64>,
    /// Steps at most: a wait that does not end fails the run.
    limit: AtomicU64,
    is_over: AtomicBool,
    planted: Planted,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("now_ns", &self.now_ns()).finish_non_exhaustive()
    }
}

impl World {
    /// These models at time 0; what drivers draw comes from `seed`.
    pub(crate) fn new(nics: Vec<Nic>, seed: u64, planted: Planted) -> Arc<Self> {
        Arc::new(Self {
            nics: nics.into_iter().map(Mutex::new).collect(),
            forgers: Mutex::default(),
            is_forged: AtomicBool::new(false),
            epoch: Instant::now(),
            now_ns: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            idle: AtomicU32::new(0),
            random: Mutex::new(SplitMix64::new(seed)),
            limit: AtomicU64::new(u64::MAX),
            is_over: AtomicBool::new(false),
            planted,
        })
    }

    /// The model of a host.
    pub(crate) fn nic(&self, host: usize) -> MutexGuard<'_, Nic> {
        lock(&self.nics[host])
    }

    /// Changes what the device of a host says from now on.
    pub(crate) fn forge(&self, host: usize, mut forger: Forger) {
        forger.look(&self.nic(host));
        lock(&self.forgers).push((host, forger));
        self.is_forged.store(true, Ordering::Relaxed);
    }

    /// Simulated nanoseconds since the start.
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::Relaxed)
    }

    /// Steps so far: what the run has cost, in a unit that no machine changes.
    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// No more steps than these.
    pub(crate) fn set_limit(&self, steps: u64) {
        self.limit.store(steps, Ordering::Relaxed);
    }

    /// Notes that a program did something, so that the next steps are short again.
    pub(crate) fn stir(&self) {
        self.idle.store(0, Ordering::Relaxed);
    }

    /// One step of every model; whether any did anything. Time passes faster when nothing happens.
    pub(crate) fn step(&self) -> bool {
        let steps = self.steps.fetch_add(1, Ordering::Relaxed);
        if steps >= self.limit.load(Ordering::Relaxed) {
            // Once: what is dropped after it must not panic again.
            self.limit.store(u64::MAX, Ordering::Relaxed);
            self.is_over.store(true, Ordering::Relaxed);
            panic!("a wait of the library has no end: {steps} steps");
        }
        let idle = self.idle.load(Ordering::Relaxed);
        let ns = STEP_NS << (idle / IDLE_STEPS).min(MAX_DOUBLINGS);
        let now_ns = self.now_ns.fetch_add(ns, Ordering::Relaxed) + ns;
        let mut busy = false;
        for nic in &self.nics {
            busy |= lock(nic).step(now_ns);
        }
        if self.is_forged.load(Ordering::Relaxed) {
            let mut forgers = lock(&self.forgers);
            forgers.iter_mut().for_each(|(host, forger)| forger.look(&self.nic(*host)));
            forgers.retain(|(_, forger)| !forger.is_done());
            self.is_forged.store(!forgers.is_empty(), Ordering::Relaxed);
        }
        self.idle.store(if busy { 0 } else { idle.saturating_add(1) }, Ordering::Relaxed);
        busy
    }
}

/// A driver's way to its model: waiting lets simulated time pass for everybody.
pub(crate) struct SimTransport {
    local: Arc<LocalTransport>,
    world: Weak<World>,
    lies: Arc<Mutex<Lies>>,
}

impl SimTransport {
    /// A transport to a model of `world`.
    pub(crate) fn new(local: Arc<LocalTransport>, world: &Arc<World>) -> Arc<Self> {
        let lies = Arc::new(Mutex::new(Lies::new(world.planted)));
        Arc::new(Self { local, world: Arc::downgrade(world), lies })
    }

    /// What the device says instead of the truth.
    pub(crate) fn lies(&self) -> MutexGuard<'_, Lies> {
        lock(&self.lies)
    }

    fn world(&self) -> Arc<World> {
        self.world.upgrade().expect("the world outlives every driver of a run")
    }
}

impl fmt::Debug for SimTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimTransport")
    }
}

impl Transport for SimTransport {
    fn bar(&self, claim: BarClaim) -> Arc<dyn Bar> {
        Arc::new(LyingBar::new(self.local.bar(claim), Arc::clone(&self.lies)))
    }

    fn dma(&self) -> Arc<dyn DmaSpace> {
        self.local.dma()
    }

    fn interrupts(&self) -> Arc<dyn Interrupts> {
        self.local.interrupts()
    }

    fn identity(&self) -> &PciIdentity {
        self.local.identity()
    }

    fn name(&self) -> &'static str {
        "simulation"
    }

    fn reset(&self) -> Result<(), BusError> {
        self.local.reset()
    }

    fn reset_complete(&self) -> bool {
        self.local.reset_complete()
    }

    fn relax(&self) {
        self.world().step();
    }

    fn now(&self) -> Instant {
        let world = self.world();
        let now_ns =
            match world.planted.is(Bug::StoppedClock) && !world.is_over.load(Ordering::Relaxed) {
                true => world.now_ns().min(1_000_000),
                false => world.now_ns(),
            };
        world.epoch + Duration::from_nanos(now_ns)
    }

    fn random(&self) -> u64 {
        lock(&self.world().random).next_u64()
    }
}
