//! [`Receivers`]: which queue pairs take their receives from which shared queue, by their numbers.
//!
//! Completions name a queue pair by its number. A shared queue ends a receive only for numbers of
//! its own queue pairs, be they alive or gone, and only until a number is another's: else the
//! buffer of a receive that the device still fills would come back.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::lock;

/// The numbers of a device.
#[derive(Debug, Default)]
pub(crate) struct Receivers {
    /// How often something was changed.
    version: AtomicU64,
    owners: Mutex<Owners>,
}

#[derive(Debug, Default)]
struct Owners {
    /// Owners that there were.
    count: u64,
    by_number: HashMap<u32, Owner>,
}

/// A shared queue, or a domain of shared queues; never the same twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner(u64);

impl Receivers {
    /// Another owner.
    pub(crate) fn owner(&self) -> Owner {
        let mut owners = lock(&self.owners);
        owners.count += 1;
        Owner(owners.count)
    }

    /// A queue pair was made: whose receives it takes, if not its own.
    pub(crate) fn made(&self, qpn: u32, owner: Option<Owner>) {
        let mut owners = lock(&self.owners);
        let before = match owner {
            Some(owner) => owners.by_number.insert(qpn, owner),
            None => owners.by_number.remove(&qpn),
        };
        if before != owner {
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// An owner is gone.
    pub(crate) fn gone(&self, owner: Owner) {
        lock(&self.owners).by_number.retain(|_, other| *other != owner);
    }
}

/// The numbers of one owner, as it last looked.
#[derive(Debug)]
pub(crate) struct Own {
    owner: Owner,
    version: u64,
    numbers: Vec<u32>,
}

impl Own {
    pub(crate) fn new(owner: Owner) -> Self {
        Self { owner, version: 0, numbers: Vec::new() }
    }

    /// Whether a queue pair is the owner's. Locks and allocates only when queue pairs were made
    /// since the last time.
    #[inline]
    pub(crate) fn has(&mut self, receivers: &Receivers, qpn: u32) -> bool {
        if self.version != receivers.version.load(Ordering::Acquire) {
            self.look(receivers);
        }
        self.numbers.binary_search(&qpn).is_ok()
    }

    #[cold]
    fn look(&mut self, receivers: &Receivers) {
        let owners = lock(&receivers.owners);
        self.version = receivers.version.load(Ordering::Acquire);
        self.numbers.clear();
        let own = owners.by_number.iter().filter(|(_, owner)| **owner == self.owner);
        self.numbers.extend(own.map(|(number, _)| *number));
        self.numbers.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_its_last_owners_until_that_is_gone() {
        let receivers = Receivers::default();
        let (a, b) = (receivers.owner(), receivers.owner());
        let (mut of_a, mut of_b) = (Own::new(a), Own::new(b));
        assert!(!of_a.has(&receivers, 7));
        receivers.made(7, Some(a));
        receivers.made(9, Some(a));
        assert!(of_a.has(&receivers, 7) && of_a.has(&receivers, 9) && !of_b.has(&receivers, 7));
        receivers.made(7, Some(b));
        assert!(!of_a.has(&receivers, 7) && of_a.has(&receivers, 9) && of_b.has(&receivers, 7));
        receivers.made(7, None);
        assert!(!of_b.has(&receivers, 7));
        receivers.gone(a);
        assert!(lock(&receivers.owners).by_number.is_empty());
    }
}
