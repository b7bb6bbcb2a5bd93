//! A thread that steps devices: the only place where a model meets a real clock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
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

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    /// A job is in the channel.
    asked: AtomicBool,
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
        let shared = Arc::new(Shared::default());
        let (jobs, inbox) = channel();
        let in_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("ferrocx-model".into())
            .spawn(move || run(nics, config, &in_thread, &inbox))?;
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

    fn halt(&mut self) -> Option<std::thread::Result<Vec<Nic>>> {
        self.shared.stop.store(true, Ordering::Release);
        Some(self.thread.take()?.join())
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        // A panic of the thread was printed when it happened.
        let _ = self.halt();
    }
}

fn run(
    mut nics: Vec<Nic>,
    config: RunnerConfig,
    shared: &Shared,
    inbox: &Receiver<Job>,
) -> Vec<Nic> {
    if let Some(on_start) = config.on_start {
        on_start();
    }
    let start = Instant::now();
    let mut idle = 0_u32;
    while !shared.stop.load(Ordering::Acquire) {
        // 2^64 nanoseconds are 584 years.
        let now_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut busy = false;
        for nic in &mut nics {
            busy |= nic.step(now_ns);
        }
        // A load first: an exchange in every round would cost more than the round.
        if shared.asked.load(Ordering::Relaxed) && shared.asked.swap(false, Ordering::AcqRel) {
            inbox.try_iter().for_each(|job| job(&mut nics));
        }
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
                    std::thread::sleep(pause);
                }
            }
        }
    }
    nics
}
