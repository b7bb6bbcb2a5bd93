//! The thread that runs the devices: steps them while they have work, sleeps while they have none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Something that makes progress when stepped: a model, or several joined by wires.
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
    thread: Option<JoinHandle<()>>,
}

/// A handle that tells the engine that a device has something to do.
#[derive(Clone)]
pub(super) struct Wake {
    running: Arc<AtomicBool>,
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

/// Clears the flag when the thread ends, however it ends.
struct ClearOnDrop(Arc<AtomicBool>);

impl Drop for ClearOnDrop {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Engine {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The system's reason for refusing a thread.
    pub(super) fn start(mut device: impl Steppable) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let running = Arc::new(AtomicBool::new(true));
        let guard = ClearOnDrop(Arc::clone(&running));
        let thread = thread::Builder::new().name("engine".into()).spawn(move || {
            let _guard = guard;
            let start = Instant::now();
            let (mut idle_turns, mut last_work) = (0, Duration::ZERO);
            while !stopped.load(Ordering::Acquire) {
                let now = start.elapsed();
                if device.step(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)) {
                    (idle_turns, last_work) = (0, now);
                } else if idle_turns < IDLE_TURNS {
                    idle_turns += 1;
                    std::hint::spin_loop();
                } else {
                    let is_lively = now - last_work < LIVELY;
                    thread::park_timeout(if is_lively { SHORT_SLEEP } else { IDLE_SLEEP });
                }
            }
        })?;
        Ok(Self { stop, running, thread: Some(thread) })
    }

    /// A handle for whoever gives the devices work.
    pub(super) fn wake(&self) -> Wake {
        let thread = self.thread.as_ref().expect("runs until dropped").thread().clone();
        Wake { running: Arc::clone(&self.running), thread }
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
        let engine = Engine::start(Count(Arc::clone(&steps), 0)).expect("a thread");
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
        let engine = Engine::start(Defect).expect("a thread");
        let wake = engine.wake();
        while wake.is_running() {
            thread::yield_now();
        }
    }
}
