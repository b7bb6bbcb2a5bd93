//! [`Receivers`]: which queue pairs take their receives from which shared queue, by their numbers.
//!
//! Completions name a queue pair by its number. A shared queue ends a receive only for numbers of
//! its own queue pairs, be they alive or gone, and only until a number is another's, and of one
//! completion queue from one [era](crate::era) on: else the buffer of a receive that the device
//! still fills would come back.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::era::{Source, Stamps};
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
    by_number: HashMap<u32, Taker>,
}

/// Who takes the receives of a queue pair, and which completions say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Taker {
    owner: Owner,
    /// Where the queue pair completes its receives, and the era since when they are its own. Of XRC
    /// the shared queues know where, and the era is that of every queue of the domain.
    cq: Option<Source>,
    since: u64,
}

/// A shared queue, or a domain of shared queues; never the same twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Owner(u64);

impl Receivers {
    /// Another owner.
    pub(crate) fn owner(&self) -> Owner {
        let mut owners = lock(&self.owners);
        owners.count += 1;
        Owner(owners.count)
    }

    /// A queue pair was made that takes receives of its own, or none.
    pub(crate) fn made(&self, qpn: u32) {
        if lock(&self.owners).by_number.remove(&qpn).is_some() {
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// A queue pair was made that takes the receives of an owner, and completes them in a queue
    /// with `stamps`. Gives the era since when they are its own. `true` if that is an earlier one:
    /// the number was one of the same owner's before, with the same completion queue, and what
    /// completed then is right as ever.
    pub(crate) fn made_shared(&self, qpn: u32, owner: Owner, stamps: &Stamps) -> (u64, bool) {
        let mut owners = lock(&self.owners);
        let cq = Some(stamps.source);
        if let Some(before) = owners.by_number.get(&qpn)
            && (before.owner, before.cq) == (owner, cq)
        {
            return (before.since, true);
        }
        let since = stamps.begin();
        self.enter(&mut owners, qpn, Taker { owner, cq, since });
        (since, false)
    }

    /// A target of XRC was made, whose domain is `owner`. `begin` begins an era in every completion
    /// queue of the domain, and gives the first of them.
    pub(crate) fn made_target(&self, qpn: u32, owner: Owner, begin: impl FnOnce() -> u64) {
        let mut owners = lock(&self.owners);
        if owners.by_number.get(&qpn).is_none_or(|before| before.owner != owner) {
            let since = begin();
            self.enter(&mut owners, qpn, Taker { owner, cq: None, since });
        }
    }

    /// A number is nobody's any more in a completion queue where somebody else has it now, whom the
    /// device tells from who had it by other means: if the taker, or its domain, `completes_there`.
    pub(crate) fn lost(&self, qpn: u32, completes_there: impl Fn(Owner, Option<Source>) -> bool) {
        let mut owners = lock(&self.owners);
        let is_lost = |taker: &Taker| completes_there(taker.owner, taker.cq);
        if owners.by_number.get(&qpn).is_some_and(is_lost) {
            owners.by_number.remove(&qpn);
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Whether a number is an owner's.
    pub(crate) fn is_of(&self, qpn: u32, owner: Owner) -> bool {
        lock(&self.owners).by_number.get(&qpn).is_some_and(|taker| taker.owner == owner)
    }

    fn enter(&self, owners: &mut Owners, qpn: u32, taker: Taker) {
        owners.by_number.insert(qpn, taker);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// An owner is gone.
    pub(crate) fn gone(&self, owner: Owner) {
        lock(&self.owners).by_number.retain(|_, other| other.owner != owner);
    }
}

/// The numbers of one owner, as it last looked.
#[derive(Debug)]
pub(crate) struct Own {
    owner: Owner,
    version: u64,
    takers: Vec<(u32, Taker)>,
}

impl Own {
    pub(crate) fn new(owner: Owner) -> Self {
        Self { owner, version: 0, takers: Vec::new() }
    }

    /// Whether a completion that names a queue pair, taken from a queue in an era, is of one of the
    /// owner's; of XRC the shared queue knows which queue that must be. Locks and allocates only
    /// when queue pairs were made since the last time.
    #[inline]
    pub(crate) fn has(
        &mut self,
        receivers: &Receivers,
        qpn: u32,
        (source, era): (Source, u64),
    ) -> bool {
        self.taker(receivers, qpn)
            .is_some_and(|taker| taker.cq.is_none_or(|cq| cq == source) && era >= taker.since)
    }

    #[inline]
    fn taker(&mut self, receivers: &Receivers, qpn: u32) -> Option<Taker> {
        if self.version != receivers.version.load(Ordering::Acquire) {
            self.look(receivers);
        }
        let at = self.takers.binary_search_by_key(&qpn, |(number, _)| *number).ok()?;
        Some(self.takers.get(at)?.1)
    }

    #[cold]
    fn look(&mut self, receivers: &Receivers) {
        let owners = lock(&receivers.owners);
        self.version = receivers.version.load(Ordering::Acquire);
        self.takers.clear();
        let own = owners.by_number.iter().filter(|(_, taker)| taker.owner == self.owner);
        self.takers.extend(own.map(|(number, taker)| (*number, *taker)));
        self.takers.sort_unstable_by_key(|(number, _)| *number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_a_raw_queue_pair_has_in_the_same_queue_is_nobodys() {
        let receivers = Receivers::default();
        let [here, there] = [1, 2].map(|device| Stamps::new(device).unwrap());
        let (shared, domain) = (receivers.owner(), receivers.owner());
        let mut own = [shared, domain].map(Own::new);
        receivers.made_shared(7, shared, &here);
        receivers.made_shared(8, shared, &there);
        receivers.made_target(9, domain, || here.begin());
        let is_here = |_, cq: Option<Source>| cq.is_some_and(|cq| cq == here.source);
        for number in [7, 8, 9] {
            receivers.lost(number, is_here);
        }
        let mut has = |at: usize, number| own[at].taker(&receivers, number).is_some();
        assert!(!has(0, 7) && has(0, 8) && has(1, 9));
        receivers.lost(9, |owner, cq| owner == domain && cq.is_none());
        assert!(!has(1, 9));
    }

    #[test]
    fn a_number_is_its_last_owners_until_that_is_gone() {
        let receivers = Receivers::default();
        let stamps = Stamps::new(1).unwrap();
        let (a, b) = (receivers.owner(), receivers.owner());
        let (mut of_a, mut of_b) = (Own::new(a), Own::new(b));
        let has = |own: &mut Own, qpn| own.taker(&receivers, qpn).is_some();
        assert!(!has(&mut of_a, 7));
        let (first, is_known) = receivers.made_shared(7, a, &stamps);
        assert!(!is_known && !receivers.made_shared(9, a, &stamps).1);
        assert_eq!(receivers.made_shared(7, a, &stamps), (first, true), "it goes on");
        assert!(has(&mut of_a, 7) && has(&mut of_a, 9) && !has(&mut of_b, 7));
        let (second, is_known) = receivers.made_shared(7, b, &stamps);
        assert!(!is_known && second > first);
        assert!(!has(&mut of_a, 7) && has(&mut of_a, 9) && has(&mut of_b, 7));
        receivers.made(7);
        assert!(!has(&mut of_b, 7));
        receivers.gone(a);
        assert!(lock(&receivers.owners).by_number.is_empty());
    }
}
