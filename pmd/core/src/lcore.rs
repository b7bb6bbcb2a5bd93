//! Pinned workers: one core each, work handed over by rings, no lock and no system call once
//! they run.
//!
//! `core_affinity` has limits that this module works around: its list of cores shrinks to one
//! after pinning, an id past 1023 aborts the process, and it says nothing about NUMA. So
//! [`Lcores::detect`] takes the list once, before anything is pinned; ids that are not in it are
//! refused; and each worker reads its own affinity back.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_utils::CachePadded;
use thiserror::Error;

/// Why a worker could not be started or joined.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LcoreError {
    /// The core does not exist, or this process may not use it.
    #[error("core {core} is not among the cores that this process may use ({allowed}); choose one")]
    NoSuchCore {
        /// The core asked for.
        core: usize,
        /// The cores that can be used, as a list of ranges.
        allowed: String,
    },
    /// The system did not pin the thread.
    #[error("the thread for core {0} could not be pinned; is the core offline?")]
    NotPinned(usize),
    /// The system refused a thread.
    #[error("no thread for core {core}: {source}")]
    Thread {
        /// The core.
        core: usize,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The worker panicked.
    #[error("the worker of core {0} panicked")]
    Panicked(usize),
    /// The list of cores could not be read.
    #[error("the list of usable cores cannot be read; is /proc mounted?")]
    NoList,
}

/// How a core waits when it finds nothing to do.
///
/// Busy is the default: in a virtual machine a `PAUSE` leaves the guest, and a yield can cost the
/// rest of a time slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WaitStrategy {
    /// Look again at once.
    #[default]
    Busy,
    /// Tell the core that it spins; kind to a sibling thread.
    SpinHint,
    /// Offer the core to other threads; for more workers than cores.
    Yield,
    /// Sleep this long, and as much longer as the kernel's timers take (50 us by default); for
    /// machines that must stay cool, and for tests.
    Sleep(Duration),
}

impl WaitStrategy {
    /// Waits one turn.
    #[inline(always)]
    pub fn wait(self) {
        match self {
            Self::Busy => {}
            Self::SpinHint => std::hint::spin_loop(),
            Self::Yield => thread::yield_now(),
            Self::Sleep(time) => thread::sleep(time),
        }
    }
}

/// The cores that this process may use, taken once.
#[derive(Debug, Clone)]
pub struct Lcores {
    ids: Vec<core_affinity::CoreId>,
}

impl Lcores {
    /// Takes the list. Call it from `main`, before any thread is pinned.
    ///
    /// # Errors
    /// [`LcoreError::NoList`].
    pub fn detect() -> Result<Self, LcoreError> {
        let ids = core_affinity::get_core_ids().filter(|ids| !ids.is_empty());
        Ok(Self { ids: ids.ok_or(LcoreError::NoList)? })
    }

    /// The cores, ascending.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.ids.iter().map(|core| core.id)
    }

    /// The NUMA node of a core, where the system knows it.
    #[must_use]
    pub fn numa_node(core: usize) -> Option<u32> {
        let entries = fs::read_dir(format!("/sys/devices/system/cpu/cpu{core}")).ok()?;
        entries
            .flatten()
            .find_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok())
    }

    /// Whether a core is on another node than a device; `false` where either is unknown.
    #[must_use]
    pub fn is_remote(core: usize, device_node: Option<u32>) -> bool {
        matches!((Self::numa_node(core), device_node), (Some(a), Some(b)) if a != b)
    }

    fn find(&self, core: usize) -> Result<core_affinity::CoreId, LcoreError> {
        self.ids.iter().copied().find(|id| id.id == core).ok_or_else(|| {
            let allowed = ranges(self.ids());
            LcoreError::NoSuchCore { core, allowed }
        })
    }

    /// Starts a worker on a core. `run` is called there once, pinned, and polls `stop` itself.
    ///
    /// # Errors
    /// [`LcoreError::NoSuchCore`], [`LcoreError::NotPinned`], [`LcoreError::Thread`]. `run` was
    /// not called then.
    #[doc(alias = "rte_eal_remote_launch")]
    pub fn launch<T: Send + 'static>(
        &self,
        core: usize,
        stop: StopFlag,
        run: impl FnOnce(&StopFlag) -> T + Send + 'static,
    ) -> Result<Worker<T>, LcoreError> {
        let id = self.find(core)?;
        let (ready, pinned) = std::sync::mpsc::sync_channel(1);
        let flag = stop.clone();
        let thread = thread::Builder::new()
            .name(format!("lcore-{core}"))
            .spawn(move || {
                let ok = core_affinity::set_for_current(id) && is_pinned_to(core);
                // The launcher is waiting, so there is somebody to tell.
                let told = ready.send(ok).is_ok();
                (ok && told).then(|| run(&flag))
            })
            .map_err(|source| LcoreError::Thread { core, source })?;
        if pinned.recv() != Ok(true) {
            let _ = thread.join();
            return Err(LcoreError::NotPinned(core));
        }
        Ok(Worker { core, stop, thread: Some(thread) })
    }
}

/// Whether the calling thread may run on `core` only.
fn is_pinned_to(core: usize) -> bool {
    core_affinity::get_core_ids().is_some_and(|ids| matches!(ids[..], [id] if id.id == core))
}

/// Prints ids as `0-3,8`.
fn ranges(ids: impl Iterator<Item = usize>) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for id in ids {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == id => *last = id,
            _ => runs.push((id, id)),
        }
    }
    let text = |(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

/// Tells workers to stop. Clones are the same flag, on a cache line of its own.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(Arc<CachePadded<AtomicBool>>);

impl StopFlag {
    /// A flag that is not set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets it, for good.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it is set.
    #[inline(always)]
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A running worker. Dropping it sets its flag and waits for it.
#[derive(Debug)]
pub struct Worker<T> {
    core: usize,
    stop: StopFlag,
    thread: Option<JoinHandle<Option<T>>>,
}

impl<T> Worker<T> {
    /// Its core.
    #[must_use]
    pub fn core(&self) -> usize {
        self.core
    }

    /// Whether it has ended by itself.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Sets the flag, waits, and returns what the worker returned.
    ///
    /// # Errors
    /// [`LcoreError::Panicked`].
    pub fn join(mut self) -> Result<T, LcoreError> {
        self.stop.stop();
        let core = self.core;
        let thread = self.thread.take().expect("taken by join and drop only");
        thread.join().ok().flatten().ok_or(LcoreError::Panicked(core))
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.stop.stop();
            if thread.join().is_err() {
                tracing::error!(core = self.core, "worker panicked");
            }
        }
    }
}

/// Makes a ring between two cores: one side pushes, the other pops, neither waits.
///
/// Works on anything that is `Send`: bursts of packets, requests, log records. Bounded: a full
/// ring hands the value back.
#[must_use]
#[doc(alias = "rte_ring_create")]
pub fn handover<T: Send>(capacity: usize) -> (rtrb::Producer<T>, rtrb::Consumer<T>) {
    rtrb::RingBuffer::new(capacity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_run_pinned_and_stop() {
        let lcores = Lcores::detect().unwrap();
        let core = lcores.ids().next().unwrap();
        let (mut to, mut from) = handover::<u64>(8);
        let worker = lcores
            .launch(core, StopFlag::new(), move |stop| {
                let mut sum = 0;
                loop {
                    // The flag is read first, so that nothing pushed before it is missed.
                    let last = stop.is_set();
                    while let Ok(value) = from.pop() {
                        sum += value;
                    }
                    if last {
                        return (sum, is_pinned_to(core));
                    }
                    WaitStrategy::Yield.wait();
                }
            })
            .unwrap();
        for value in 1..=100 {
            while to.push(value).is_err() {
                WaitStrategy::Yield.wait();
            }
        }
        assert_eq!(worker.join().unwrap(), (5050, true));
        assert!(lcores.ids().len() >= 1, "the list is not affected by pinning");
    }

    #[test]
    fn cores_that_do_not_exist_are_refused() {
        let lcores = Lcores::detect().unwrap();
        for core in [1023, 1024, 5000, usize::MAX] {
            let error = lcores.launch(core, StopFlag::new(), |_| ()).unwrap_err().to_string();
            assert!(error.contains(&format!("core {core} is not among")), "{error}");
        }
    }

    #[test]
    fn panics_are_reported() {
        let lcores = Lcores::detect().unwrap();
        let core = lcores.ids().next().unwrap();
        let worker = lcores.launch(core, StopFlag::new(), |_| panic!("on purpose")).unwrap();
        assert!(matches!(worker.join(), Err(LcoreError::Panicked(_))));
    }

    #[test]
    fn ranges_are_short() {
        assert_eq!(ranges([0, 1, 2, 5, 7, 8].into_iter()), "0-2,5,7-8");
        assert_eq!(ranges([].into_iter()), "");
    }
}
