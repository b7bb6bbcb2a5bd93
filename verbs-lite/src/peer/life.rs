//! The life of a peer region: who may end it, and when everybody may believe that it ended.
//!
//! | from | to | by | then |
//! |---|---|---|---|
//! | pinning | pinning, marked | an invalidation | nothing is mapped, and nothing will be |
//! | pinning | mapping | the registration, unless marked | no callback runs in this state |
//! | mapping | live | the registration | whoever waits to end it goes on |
//! | pinning, mapping | ended | the registration, marked or failed | |
//! | live | ending | the first who ends it: deregistration, invalidation, unregistering | no callback runs |
//! | ending | ended | the same | callbacks may run, and may call back |
//!
//! Whoever comes second waits while it is mapping or ending, in which no callback runs: so nobody
//! waits for himself.

use std::sync::PoisonError;
#[cfg(not(loom))]
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

#[cfg(loom)]
use loom::sync::{Condvar, Mutex, MutexGuard};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Pinning { marked: bool },
    Mapping,
    Live,
    Ending,
    Ended { reachable: bool },
}

/// The phase, and who waits for the next.
#[derive(Debug)]
pub(super) struct Life {
    phase: Mutex<Phase>,
    changed: Condvar,
}

/// What whoever wants to end a region has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// End it, then call [`Life::ended`].
    Mine,
    /// Nothing: the device reaches nothing, or `reachable` says that it could not be stopped.
    Over { reachable: bool },
    /// It took too long.
    Late,
}

impl Life {
    pub(super) fn new() -> Self {
        Self { phase: Mutex::new(Phase::Pinning { marked: false }), changed: Condvar::new() }
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, phase: Phase) {
        *self.phase() = phase;
        self.changed.notify_all();
    }

    /// The registration is about to map. `false` if the memory was taken back before.
    #[must_use]
    pub(super) fn mapping(&self) -> bool {
        let mut phase = self.phase();
        debug_assert!(matches!(*phase, Phase::Pinning { .. }));
        let may = *phase == Phase::Pinning { marked: false };
        if may {
            *phase = Phase::Mapping;
        }
        may
    }

    /// The registration is complete.
    pub(super) fn live(&self) {
        self.set(Phase::Live);
    }

    /// The device reaches nothing any more, or cannot be stopped.
    pub(super) fn ended(&self, reachable: bool) {
        self.set(Phase::Ended { reachable });
    }

    pub(super) fn is_live(&self) -> bool {
        *self.phase() == Phase::Live
    }

    /// Asks for the turn to end the region; waits for whoever is at it.
    pub(super) fn begin_end(&self, deadline: Duration) -> Turn {
        let start = Instant::now();
        let mut phase = self.phase();
        loop {
            match *phase {
                Phase::Pinning { .. } => {
                    *phase = Phase::Pinning { marked: true };
                    return Turn::Over { reachable: false };
                }
                Phase::Live => {
                    *phase = Phase::Ending;
                    return Turn::Mine;
                }
                Phase::Ended { reachable } => return Turn::Over { reachable },
                Phase::Mapping | Phase::Ending => {}
            }
            let Some(left) = deadline.checked_sub(start.elapsed()) else { return Turn::Late };
            phase =
                self.changed.wait_timeout(phase, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(5);

    #[test]
    fn marked_before_mapping_means_never_mapped() {
        let life = Life::new();
        assert_eq!(life.begin_end(SOON), Turn::Over { reachable: false });
        assert!(!life.mapping());
        life.ended(false);
        assert_eq!(life.begin_end(SOON), Turn::Over { reachable: false });
    }

    #[test]
    fn whoever_is_second_waits_and_learns_how_it_went() {
        for reachable in [false, true] {
            let life = Life::new();
            assert!(life.mapping());
            assert_eq!(life.begin_end(SOON), Turn::Late, "mapping");
            life.live();
            assert!(life.is_live());
            assert_eq!(life.begin_end(SOON), Turn::Mine);
            assert_eq!(life.begin_end(SOON), Turn::Late, "ending");
            std::thread::scope(|scope| {
                let second = scope.spawn(|| life.begin_end(Duration::from_secs(60)));
                life.ended(reachable);
                assert_eq!(second.join().unwrap(), Turn::Over { reachable });
            });
            assert!(!life.is_live());
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    /// What the device reaches, and how often it was ended.
    struct RdmaContext {
        reachable: AtomicBool,
        ends: AtomicUsize,
    }

    fn end(life: &Life, device: &RdmaContext) {
        match life.begin_end(Duration::MAX) {
            Turn::Mine => {
                device.reachable.store(false, Ordering::Relaxed);
                device.ends.fetch_add(1, Ordering::Relaxed);
                life.ended(false);
            }
            Turn::Over { reachable } => assert!(!reachable),
            Turn::Late => panic!("nobody is late here"),
        }
        assert!(!device.reachable.load(Ordering::Relaxed), "reachable after the end");
    }

    fn register(life: &Life, device: &RdmaContext) {
        if life.mapping() {
            device.reachable.store(true, Ordering::Relaxed);
            life.live();
        } else {
            life.ended(false);
        }
    }

    #[test]
    fn loom_nothing_is_reachable_once_any_end_returns() {
        loom::model(|| {
            let life = Arc::new(Life::new());
            let device = Arc::new(RdmaContext {
                reachable: AtomicBool::new(false),
                ends: AtomicUsize::new(0),
            });
            let enders: Vec<_> = (0..2)
                .map(|_| {
                    let (life, device) = (Arc::clone(&life), Arc::clone(&device));
                    loom::thread::spawn(move || end(&life, &device))
                })
                .collect();
            register(&life, &device);
            enders.into_iter().for_each(|ender| ender.join().unwrap());
            assert!(device.ends.load(Ordering::Relaxed) <= 1);
            assert!(!device.reachable.load(Ordering::Relaxed));
        });
    }
}
