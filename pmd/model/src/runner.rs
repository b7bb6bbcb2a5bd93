//! A thread that steps devices, and others that help it: the only place where a model meets a real
//! clock.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::Nic;

/// Way in which the thread waits when no device had anything to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wait {
    /// It does not: the lowest latency, one core for itself.
    Busy,
    /// It executes the processor's pause hint, which leaves a virtual machine on some hosts.
    SpinHint,
    /// It yields the core after each idle round.
    #[default]
    Yield,
    /// It sleeps for a while after 1000 idle rounds.
    Sleep(Duration),
}

/// Idle rounds before [`Wait::Sleep`] sleeps.
const IDLE_ROUNDS: u32 = 1000;

/// Core and waiting of a runner's thread.
#[derive(Default)]
pub struct RunnerConfig {
    /// Way in which the thread waits when it is idle.
    pub wait: Wait,
    /// Runs first, in the thread: to pin it to a core, for example.
    pub on_start: Option<Box<dyn FnOnce() + Send>>,
}

impl fmt::Debug for RunnerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunnerConfig").field("wait", &self.wait).finish_non_exhaustive()
    }
}

/// Work for the runner's thread.
type Job = Box<dyn FnOnce(&mut [Nic]) + Send>;

/// Time for which the helper that stepped last goes on alone: the devices stay in the cache of one
/// core.
const LEASE_NS: u64 = 2_000;
/// Time for which the thread stands back once somebody has helped. It doubles with each look that
/// finds that somebody still does, so that a core that polls is not taken from it all the time: who
/// stops helping waits for the thread no longer than it has helped, and no longer than the longest.
const STAND_BACK: Duration = Duration::from_micros(200);
const STAND_BACK_NS: u64 = 200_000;
const LONGEST_STAND_BACK: Duration = Duration::from_micros(3_200);

/// Number of no helper: theirs start at 1.
const THREAD: u64 = 0;

struct Shared {
    nics: Mutex<Vec<Nic>>,
    start: Instant,
    stop: AtomicBool,
    /// A job is in the channel.
    asked: AtomicBool,
    /// Who helped last, and when: [`THREAD`] while nobody has.
    last_helper: AtomicU64,
    last_help_ns: AtomicU64,
    helpers: AtomicU64,
    /// How many [`TakenOver`] there are.
    taken_over: AtomicUsize,
    thread: OnceLock<Thread>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("stop", &self.stop).finish_non_exhaustive()
    }
}

impl Shared {
    fn new(nics: Vec<Nic>) -> Self {
        Self {
            nics: Mutex::new(nics),
            start: Instant::now(),
            stop: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            last_helper: AtomicU64::new(THREAD),
            last_help_ns: AtomicU64::new(0),
            helpers: AtomicU64::new(0),
            taken_over: AtomicUsize::new(0),
            thread: OnceLock::new(),
        }
    }

    /// Device time.
    fn now_ns(&self) -> u64 {
        // 2^64 nanoseconds are 584 years.
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Whether a helper other than this one stepped the devices a moment ago.
    fn is_served(&self, me: u64, moment_ns: u64) -> bool {
        let last = self.last_helper.load(Ordering::Relaxed);
        last != THREAD && last != me && {
            let last_ns = self.last_help_ns.load(Ordering::Relaxed);
            self.now_ns().saturating_sub(last_ns) < moment_ns
        }
    }

    /// Ends the pause of a thread that stands back.
    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Steps all devices once; returns whether there was anything to do.
    fn step(&self, nics: &mut [Nic]) -> bool {
        // Read under the lock, so that device time never goes back.
        let now_ns = self.now_ns();
        nics.iter_mut().fold(false, |busy, nic| busy | nic.step(now_ns))
    }
}

/// Steps the devices of a [`Runner`] in a thread that would only wait for them.
///
/// On a machine with fewer cores than threads, the devices' own thread takes turns with those that
/// poll for what it does. A thread that polls in vain and calls [`Helper::help`] does that work
/// itself; of several, one does it and the others go on polling. While somebody helps, the devices'
/// own thread stands back.
#[derive(Debug)]
pub struct Helper {
    shared: Arc<Shared>,
    number: u64,
}

impl Clone for Helper {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.shared))
    }
}

impl Helper {
    fn new(shared: Arc<Shared>) -> Self {
        let number = 1 + shared.helpers.fetch_add(1, Ordering::Relaxed);
        Self { shared, number }
    }

    /// Steps all devices once, unless somebody else does; returns whether that did anything.
    ///
    /// Never waits. Each thread needs a helper of its own: a clone.
    #[inline]
    pub fn help(&self) -> bool {
        let shared = &*self.shared;
        if shared.is_served(self.number, LEASE_NS) {
            return false;
        }
        // Said before it is done, so that the thread lets the lock go.
        shared.last_help_ns.store(shared.now_ns(), Ordering::Relaxed);
        shared.last_helper.store(self.number, Ordering::Relaxed);
        shared.nics.try_lock().is_ok_and(|mut nics| shared.step(&mut nics))
    }

    /// Keeps the devices' own thread away until what is returned is dropped: it takes no core, not
    /// even for a look. For a thread that polls and calls [`Helper::help`] in every round; while it
    /// does not, the devices stand still.
    #[must_use = "the devices' own thread comes back when this is dropped"]
    pub fn take_over(&self) -> TakenOver {
        self.shared.taken_over.fetch_add(1, Ordering::AcqRel);
        TakenOver(Arc::clone(&self.shared))
    }
}

/// While it lives, devices are stepped by helpers alone: [`Helper::take_over`].
#[derive(Debug)]
pub struct TakenOver(Arc<Shared>);

impl Drop for TakenOver {
    fn drop(&mut self) {
        self.0.taken_over.fetch_sub(1, Ordering::AcqRel);
        self.0.wake();
    }
}

/// Devices that are being stepped by a thread. Device time is the time since the start.
///
/// # Example
///
/// ```
/// use ferrocx_bus::local::{LocalConfig, pair};
/// use ferrocx_model::{Nic, NicConfig, runner::{Runner, RunnerConfig}};
///
/// let (transport, side) = pair(LocalConfig::default())?;
/// let nic = Nic::new(side, NicConfig::default());
/// let runner = Runner::start(vec![nic], RunnerConfig::default())?;
/// let commands = runner.with(|nics| nics[0].state().counters.commands);
/// assert_eq!(commands, 0);
/// let nics = runner.stop();
/// assert_eq!(nics.len(), 1);
/// # drop(transport);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Runner {
    shared: Arc<Shared>,
    jobs: Sender<Job>,
    /// `None` once it was joined.
    thread: Option<JoinHandle<Vec<Nic>>>,
}

impl Runner {
    /// Starts a thread that steps `nics` in turn until it is stopped.
    ///
    /// # Errors
    ///
    /// The system's reason for refusing a thread.
    pub fn start(nics: Vec<Nic>, config: RunnerConfig) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::new(nics));
        let (jobs, inbox) = channel();
        let in_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("ferrocx-model".into())
            .spawn(move || run(config, &in_thread, &inbox))?;
        // Before anybody else has `shared`: who asks for something finds the thread to wake.
        let _ = shared.thread.set(thread.thread().clone());
        Ok(Self { shared, jobs, thread: Some(thread) })
    }

    /// Runs `job` in the thread, between two rounds, and returns what it returns.
    ///
    /// # Panics
    ///
    /// When the thread has panicked.
    pub fn with<T: Send + 'static>(&self, job: impl FnOnce(&mut [Nic]) -> T + Send + 'static) -> T {
        let (answer, answered) = channel();
        let job: Job = Box::new(move |nics| {
            // The asker may have gone away; then nobody wants the answer.
            let _ = answer.send(job(nics));
        });
        self.jobs.send(job).expect("the model's thread has panicked");
        self.shared.asked.store(true, Ordering::Release);
        self.shared.wake();
        answered.recv().expect("the model's thread has panicked")
    }

    /// Stops the thread and gives the devices back.
    ///
    /// # Panics
    ///
    /// When the thread has panicked: with its panic.
    #[must_use]
    pub fn stop(mut self) -> Vec<Nic> {
        match self.halt() {
            Some(Ok(nics)) => nics,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Vec::new(),
        }
    }

    /// A helper, for a thread that waits for what the devices do.
    #[must_use]
    pub fn helper(&self) -> Helper {
        Helper::new(Arc::clone(&self.shared))
    }

    fn halt(&mut self) -> Option<std::thread::Result<Vec<Nic>>> {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
        Some(self.thread.take()?.join())
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        // A panic of the thread was printed when it happened.
        let _ = self.halt();
    }
}

fn run(config: RunnerConfig, shared: &Shared, inbox: &Receiver<Job>) -> Vec<Nic> {
    if let Some(on_start) = config.on_start {
        on_start();
    }
    let lock = || shared.nics.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut idle, mut pause) = (0_u32, STAND_BACK);
    while !shared.stop.load(Ordering::Acquire) {
        let is_served = shared.is_served(THREAD, STAND_BACK_NS);
        let is_asked = shared.asked.load(Ordering::Relaxed);
        if !is_asked && shared.taken_over.load(Ordering::Acquire) != 0 {
            std::thread::park();
            continue;
        }
        if !is_asked && is_served {
            std::thread::park_timeout(pause);
            pause = (2 * pause).min(LONGEST_STAND_BACK);
            continue;
        }
        pause = STAND_BACK;
        let mut nics = lock();
        let busy = shared.step(&mut nics);
        if is_asked && shared.asked.swap(false, Ordering::AcqRel) {
            inbox.try_iter().for_each(|job| job(&mut nics));
        }
        drop(nics);
        if busy {
            idle = 0;
            continue;
        }
        idle = idle.saturating_add(1);
        match config.wait {
            Wait::Busy => {}
            Wait::SpinHint => std::hint::spin_loop(),
            Wait::Yield => std::thread::yield_now(),
            Wait::Sleep(pause) => {
                if idle >= IDLE_ROUNDS {
                    std::thread::park_timeout(pause);
                }
            }
        }
    }
    std::mem::take(&mut *lock())
}
