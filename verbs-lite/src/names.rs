//! [`Names`]: the numbers under which completions stand in a queue.
//!
//! Of the queue pairs that live, each has its own [`Name`] there. Numbers of raw packet queue pairs
//! may be those of others for the device. A queue pair that goes may leave completions of receives:
//! they stand there until the queue was found empty once, and the number is noted until then.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::error::{VerbsError, lock};
use crate::receivers::Owner;

/// What a completion ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Ends {
    Sends,
    /// A receive that a message filled.
    Receive,
    FailedReceive,
}

/// The number under which receives of queue pairs that share frames complete: of those that the
/// device gives queue pairs it is the last but one, and none is believed that has it.
pub(crate) const SPREAD: u32 = 0xff_fffe;

/// Beside the index of a queue pair that shares frames.
const SPREAD_INDEX: u32 = 1 << 31;

/// The names of a completion queue.
#[derive(Debug, Default)]
pub(crate) struct Names {
    known: Mutex<Known>,
    /// How often somebody who went left completions here, and how often that had been when the
    /// queue was last found empty.
    left: AtomicU64,
    emptied: AtomicU64,
}

#[derive(Debug, Default)]
struct Known {
    live: HashSet<(u32, Ends)>,
    /// What may still stand there of queue pairs that are gone, by how many had left some then.
    gone: HashMap<(u32, Ends), u64>,
    /// The domains whose shared queues complete here.
    domains: HashSet<Owner>,
}

impl Names {
    /// Nothing stands in the queue any more of those who had left something, if it `is_empty` now.
    /// Takes no lock.
    pub(crate) fn look(&self, is_empty: impl FnOnce() -> bool) {
        // Before the look: the completions of these were written by then.
        let left = self.left.load(Ordering::Acquire);
        if left != self.emptied.load(Ordering::Relaxed) && is_empty() {
            self.emptied.store(left, Ordering::Release);
        }
    }

    /// Notes that shared queues of a domain complete here.
    pub(crate) fn enter_domain(&self, owner: Owner) {
        lock(&self.known).domains.insert(owner);
    }

    /// Whether shared queues of a domain complete here.
    pub(crate) fn has_domain(&self, owner: Owner) -> bool {
        lock(&self.known).domains.contains(&owner)
    }

    /// The numbers of receives that are somebody's.
    pub(crate) fn receivers(&self) -> Vec<u32> {
        let known = lock(&self.known);
        let receives = known.live.iter().filter(|(_, ends)| *ends != Ends::Sends);
        // Those who share frames have one number.
        let number = |name: u32| if name & SPREAD_INDEX == 0 { name } else { SPREAD };
        receives.map(|(name, _)| number(*name)).collect()
    }
}

/// A number for completions of one kind in a queue.
#[derive(Debug)]
pub(crate) struct Name {
    names: Arc<Names>,
    name: (u32, Ends),
}

impl Name {
    /// Takes a number that nobody has.
    pub(crate) fn take(names: &Arc<Names>, name: (u32, Ends)) -> Result<Self, VerbsError> {
        if name.0 == SPREAD {
            let (what, way_out) = ("queue pair of this number", "make another queue pair");
            return Err(VerbsError::Unsupported { what, way_out });
        }
        Self::hold(names, name)
    }

    /// Takes the index of a queue pair that shares frames, for its receives. It stands where no
    /// number of a queue pair does: those have 24 bits.
    pub(crate) fn take_spread(names: &Arc<Names>, user_index: u32) -> Result<Self, VerbsError> {
        Self::hold(names, (SPREAD_INDEX | user_index, Ends::Receive))
    }

    fn hold(names: &Arc<Names>, name: (u32, Ends)) -> Result<Self, VerbsError> {
        let mut known = lock(&names.known);
        if !known.live.insert(name) {
            let what = "two queue pairs in a completion queue that have one number, of raw packets \
                        and not, or one user_index and spread frames";
            return Err(VerbsError::Unsupported { what, way_out: "use another completion queue" });
        }
        known.gone.remove(&name);
        Ok(Self { names: Arc::clone(names), name })
    }

    /// Takes a number that nobody has, and of which nothing can stand there.
    pub(crate) fn take_unused(names: &Arc<Names>, name: (u32, Ends)) -> Option<Self> {
        let mut known = lock(&names.known);
        let emptied = names.emptied.load(Ordering::Acquire);
        let is_used = known.gone.get(&name).is_some_and(|left| *left > emptied);
        if is_used || !known.live.insert(name) {
            return None;
        }
        known.gone.remove(&name);
        Some(Self { names: Arc::clone(names), name })
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let Names { known, left, emptied } = &*self.names;
        let mut known = lock(known);
        known.live.remove(&self.name);
        if self.name.1 == Ends::Sends {
            return;
        }
        if left.load(Ordering::Relaxed) == emptied.load(Ordering::Acquire) {
            known.gone.clear();
        }
        // Behind the last completion of this name, which the device has written by now.
        let nth = left.fetch_add(1, Ordering::Release) + 1;
        known.gone.insert(self.name, nth);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_unused_when_the_queue_was_empty_once_after_its_queue_pair() {
        let names = Arc::new(Names::default());
        let (name, other) = ((7, Ends::Receive), (9, Ends::Receive));
        let live = Name::take(&names, name).unwrap();
        assert!(Name::take(&names, name).is_err() && Name::take_unused(&names, name).is_none());
        assert_eq!(names.receivers(), [7]);
        names.look(|| true);
        drop(live);
        assert!(Name::take_unused(&names, name).is_none());
        names.look(|| false);
        assert!(Name::take_unused(&names, name).is_none());
        // Found empty before the second one goes.
        names.look(|| {
            drop(Name::take(&names, other).unwrap());
            true
        });
        assert!(Name::take_unused(&names, other).is_none());
        drop(Name::take_unused(&names, name).expect("nothing of it stands there"));
        names.look(|| true);
        names.look(|| panic!("nobody left anything"));
        drop(Name::take_unused(&names, other).unwrap());
        assert_eq!(lock(&names.known).gone.len(), 1, "no more than may stand there");
        // Whoever strikes out what stands there may have it at once.
        drop(Name::take(&names, other).unwrap());
        drop(Name::take(&names, (7, Ends::Sends)).unwrap());
        assert!(Name::take_unused(&names, (7, Ends::Sends)).is_some());
    }
}
