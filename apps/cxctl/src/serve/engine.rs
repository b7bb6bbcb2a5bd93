//! The thread that runs a device: steps it while it has work, sleeps while it has none.
//!
//! Each port has one, so that what its guest makes the device do costs that port's time, and of the
//! others' no more than the system's scheduler takes from a busy thread for another.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Something that makes progress when stepped: a model.
pub(super) trait Steppable: Send + 'static {
    /// Does what is due at `now_ns`; whether anything was.
    fn step(&mut self, now_ns: u64) -> bool;
}

/// Longest sleep: timers of the device (health counter, retransmission) are at most this late.
const IDLE_SLEEP: Duration = Duration::from_millis(1);

/// Sleep while the last work is [`LIVELY`] ago: a store to a doorbell wakes nobody, and the guest
/// that made it waits.
const SHORT_SLEEP: Duration = Duration::from_micros(50);
const LIVELY: Duration = Duration::from_millis(20);

/// Turns without work before the thread sleeps. It does not yield instead: among busy threads, one
/// that yields comes back last, which takes longer than a short sleep.
const IDLE_TURNS: u32 = 50;

/// The running thread. Dropping it stops the thread and waits for it.
pub(super) struct Engine {
    stop: Arc<AtomicBool>,
    running: Arc<AtomicBool>,
    sleeps: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A handle that tells the engine that a device has something to do.
#[derive(Clone)]
pub(super) struct Wake {
    running: Arc<AtomicBool>,
    sleeps: Arc<AtomicBool>,
    thread: Thread,
}

impl Wake {
    /// Ends the thread's sleep.
    pub(super) fn wake(&self) {
        self.thread.unpark();
    }

    /// Whether the thread still runs. It ends when the engine is dropped or the model panics.
    pub(super) fn is_running(&self) -> bool {
        self.running.load(Ordering::Acquire)
    }
}

/// Whoever is to be woken after a busy step, once they exist: the ports that a port is joined with,
/// whose frames may have come.
#[derive(Clone, Default)]
pub(super) struct Neighbours(Arc<OnceLock<Vec<Wake>>>);

impl Neighbours {
    /// Names them, once all threads have started.
    pub(super) fn set(&self, wakes: Vec<Wake>) {
        // A second call would be a mistake of this program, and changes nothing.
        let _ = self.0.set(wakes);
    }

    /// Wakes those that sleep.
    pub(super) fn wake(&self) {
        // What was handed over is visible before the look: a thread that goes to sleep says so
        // first and then looks once more.
        fence(Ordering::SeqCst);
        for wake in self.0.get().into_iter().flatten() {
            if wake.sleeps.load(Ordering::SeqCst) {
                wake.wake();
            }
        }
    }
}

/// Clears the flag when the thread ends, however it ends.
struct ClearOnDrop(Arc<AtomicBool>);

impl Drop for ClearOnDrop {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Engine {
    /// Starts the thread; device time is the time since `start`.
    ///
    /// # Errors
    ///
    /// The system's reason for refusing a thread.
    pub(super) fn start(
        name: &str,
        start: Instant,
        device: impl Steppable,
    ) -> std::io::Result<Self> {
        Self::start_sleeping(name, start, device, IDLE_SLEEP)
    }

    /// The same, for a device that needs a step every `longest` only.
    fn start_sleeping(
        name: &str,
        start: Instant,
        device: impl Steppable,
        longest: Duration,
    ) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let running = Arc::new(AtomicBool::new(true));
        let sleeps = Arc::new(AtomicBool::new(false));
        let guard = ClearOnDrop(Arc::clone(&running));
        let (stopped, sleeping) = (Arc::clone(&stop), Arc::clone(&sleeps));
        let thread = thread::Builder::new().name(format!("engine {name}")).spawn(move || {
            let _guard = guard;
            run(device, start, &stopped, &sleeping, longest);
        })?;
        Ok(Self { stop, running, sleeps, thread: Some(thread) })
    }

    /// Stops the thread and waits for it. `let_go` is done again and again meanwhile: it frees the
    /// thread from what a client holds it in.
    pub(super) fn end(self, let_go: impl Fn()) {
        self.stop.store(true, Ordering::Release);
        let wake = self.wake();
        while wake.is_running() {
            wake.wake();
            thread::sleep(IDLE_SLEEP);
            let_go();
        }
    }

    /// A handle for whoever gives the devices work.
    pub(super) fn wake(&self) -> Wake {
        let thread = self.thread.as_ref().expect("runs until dropped").thread().clone();
        Wake { running: Arc::clone(&self.running), sleeps: Arc::clone(&self.sleeps), thread }
    }
}

fn run(
    mut device: impl Steppable,
    start: Instant,
    stop: &AtomicBool,
    sleeps: &AtomicBool,
    longest: Duration,
) {
    let (mut idle_turns, mut last_work) = (0, Duration::ZERO);
    while !stop.load(Ordering::Acquire) {
        let now = start.elapsed();
        if device.step(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)) {
            (idle_turns, last_work) = (0, now);
            sleeps.store(false, Ordering::SeqCst);
            continue;
        }
        idle_turns += 1;
        match idle_turns {
            ..IDLE_TURNS => std::hint::spin_loop(),
            // One more look after the neighbours were told, or a frame that comes now waits for the
            // end of the sleep.
            IDLE_TURNS => sleeps.store(true, Ordering::SeqCst),
            _ => {
                let is_lively = now - last_work < LIVELY;
                thread::park_timeout(if is_lively { SHORT_SLEEP } else { longest });
                idle_turns = IDLE_TURNS;
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the model stopped with a panic");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    struct Count(Arc<AtomicU64>, u64);

    impl Steppable for Count {
        fn step(&mut self, now_ns: u64) -> bool {
            assert!(now_ns >= self.1, "time went back");
            self.1 = now_ns;
            self.0.fetch_add(1, Ordering::Relaxed);
            false
        }
    }

    #[test]
    fn steps_while_idle_and_stops_when_dropped() {
        let steps = Arc::new(AtomicU64::new(0));
        let device = Count(Arc::clone(&steps), 0);
        let engine = Engine::start("test", Instant::now(), device).expect("a thread");
        let wake = engine.wake();
        while steps.load(Ordering::Relaxed) < u64::from(IDLE_TURNS) + 5 {
            wake.wake();
            thread::yield_now();
        }
        assert!(wake.is_running());
        drop(engine);
        assert!(!wake.is_running());
        let after = steps.load(Ordering::Relaxed);
        thread::sleep(Duration::from_millis(5));
        assert_eq!(steps.load(Ordering::Relaxed), after);
    }

    struct Defect;

    impl Steppable for Defect {
        fn step(&mut self, _: u64) -> bool {
            panic!("a defect of the model, provoked by a test");
        }
    }

    #[test]
    fn a_panic_of_the_model_is_noticed() {
        let engine = Engine::start("test", Instant::now(), Defect).expect("a thread");
        let wake = engine.wake();
        while wake.is_running() {
            thread::yield_now();
        }
    }

    /// A step that takes as long as a channel has nothing.
    struct Stuck(std::sync::mpsc::Receiver<()>);

    impl Steppable for Stuck {
        fn step(&mut self, _: u64) -> bool {
            self.0.recv().is_ok()
        }
    }

    #[test]
    fn the_end_frees_a_device_that_is_held() {
        let (release, wait) = std::sync::mpsc::channel();
        let held = Engine::start("held", Instant::now(), Stuck(wait)).expect("a thread");
        let wake = held.wake();
        held.end(|| release.send(()).unwrap_or(()));
        assert!(!wake.is_running());
    }

    #[test]
    fn a_device_that_does_not_come_back_keeps_no_other_from_its_work() {
        let (release, wait) = std::sync::mpsc::channel();
        let start = Instant::now();
        let stuck = Engine::start("stuck", start, Stuck(wait)).expect("a thread");
        let steps = Arc::new(AtomicU64::new(0));
        let other = Engine::start("other", start, Count(Arc::clone(&steps), 0)).expect("a thread");
        while steps.load(Ordering::Relaxed) < 1000 {
            other.wake().wake();
            thread::yield_now();
        }
        assert!(stuck.wake().is_running());
        drop(release);
    }

    #[test]
    fn a_neighbour_that_sleeps_is_woken() {
        const LONG: Duration = Duration::from_secs(3600);
        let steps = Arc::new(AtomicU64::new(0));
        let device = Count(Arc::clone(&steps), 0);
        let engine =
            Engine::start_sleeping("test", Instant::now(), device, LONG).expect("a thread");
        let neighbours = Neighbours::default();
        neighbours.wake();
        neighbours.set(vec![engine.wake()]);
        // Asleep for an hour: nothing but a neighbour gets it to make another step.
        let mut taken = 0;
        while steps.load(Ordering::Relaxed) != taken {
            taken = steps.load(Ordering::Relaxed);
            thread::sleep(2 * LIVELY);
        }
        for _ in 0..100 {
            let (before, since) = (steps.load(Ordering::Relaxed), Instant::now());
            neighbours.wake();
            while steps.load(Ordering::Relaxed) == before {
                assert!(since.elapsed() < Duration::from_secs(60), "it sleeps on");
                thread::yield_now();
            }
        }
    }
}
