//! [`Shares`]: what hosts of one address, and newcomers of all addresses, may have of controllers
//! and queues, so that a stranger cannot take all of them.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::{Settings, Target};

/// What hosts may have, and what they have.
#[derive(Debug)]
pub(super) struct Shares {
    /// Newcomers of a kind: a quarter of what there is of controllers, or of queues.
    newcomers: usize,
    /// Controllers of the discovery service of one address.
    pub(super) discovery_of_address: usize,
    /// Controllers of one address, discovery's among them.
    pub(super) controllers_of_address: usize,
    /// Queues of one address.
    queues_of_address: u32,
    /// By address: its queues.
    addresses: BTreeMap<IpAddr, Address>,
    /// Queues and controllers that were refused because an address had its share.
    refused: u64,
}

#[derive(Debug, Default)]
struct Address {
    queues: u32,
    /// It was said that it wants more than its share.
    is_told: bool,
}

/// Hosts that have shown nothing that not everybody could have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Newcomers {
    /// Those that have a key, and have not shown it yet: controllers, and I/O queues. A queue from
    /// the address of its controller, whose host has shown the key there, is none.
    Keyless,
    /// Those that ask what there is: controllers.
    Discovery,
}

/// One that may have to make way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Newcomer<T> {
    pub(crate) who: T,
    pub(crate) peer: IpAddr,
    pub(crate) since: Duration,
    /// Nobody knows whether it is there: it has answered nothing.
    pub(crate) is_unheard: bool,
}

/// Of newcomers, where there are `most`, the one that ends for the next: the oldest of the address
/// that has most, of those that have answered nothing, if there are any. So who comes by many
/// addresses, or by invented ones, and shows nothing, does not keep others out.
pub(crate) fn who_makes_way<T: Copy>(all: &[Newcomer<T>], most: usize) -> Option<T> {
    if all.len() < most {
        return None;
    }
    let count = |peer: IpAddr| all.iter().filter(|it| it.peer == peer).count();
    all.iter().max_by_key(|it| (it.is_unheard, count(it.peer), Reverse(it.since))).map(|it| it.who)
}

/// Of `count` controllers or queues, what newcomers of a kind may have.
fn quarter(count: usize) -> usize {
    (count / 4).max(1)
}

/// Of `count` controllers or queues, what one address may have if nothing else is said: so much
/// that a quarter is left to others.
fn three_quarters(count: usize) -> usize {
    (count - count / 4).max(1)
}

impl Shares {
    pub(super) fn new(settings: &Settings) -> Self {
        let controllers = usize::from(settings.controllers);
        let newcomers = quarter(controllers);
        Self {
            newcomers,
            discovery_of_address: three_quarters(newcomers),
            controllers_of_address: match settings.controllers_per_address {
                0 => three_quarters(controllers),
                given => given.into(),
            },
            queues_of_address: u32::MAX,
            addresses: BTreeMap::new(),
            refused: 0,
        }
    }

    /// An address wants a controller, and has its share.
    pub(super) fn refuse(&mut self, peer: IpAddr, what: &'static str, limit: usize) {
        self.refused += 1;
        let Some(address) = self.addresses.get_mut(&peer) else { return };
        if !std::mem::replace(&mut address.is_told, true) {
            tracing::warn!(%peer, what, limit, "an address has its share, and is refused more");
        }
    }
}

impl Target {
    /// Says how many queues hosts can have, and how many of them one address; 0 for three quarters,
    /// and at least what one host's controller has. Newcomers of a kind do not take more than a
    /// quarter of them.
    pub fn limit_queues(&mut self, queues: u32, per_address: u32) {
        let all = usize::try_from(queues).unwrap_or(usize::MAX);
        let shares = &mut self.shares;
        shares.newcomers = shares.newcomers.min(quarter(all));
        shares.discovery_of_address = three_quarters(shares.newcomers);
        let one_host = u32::from(self.settings.io_queues) + 1;
        shares.queues_of_address = match per_address {
            0 => u32::try_from(three_quarters(all)).unwrap_or(u32::MAX).max(one_host),
            given => given,
        };
    }

    /// A newcomer comes: another one ends if there are as many of the kind as may be, or any where
    /// all controllers are taken.
    pub(super) fn make_way(&mut self, newcomers: Newcomers, is_full: bool) {
        let mut all = Vec::new();
        for (at, it) in self.controllers.iter().enumerate() {
            let Some(it) = it.as_ref().filter(|it| !it.is_failed()) else { continue };
            let is_one = match newcomers {
                Newcomers::Keyless => it.is_strange,
                Newcomers::Discovery => it.subsystem.is_none(),
            };
            if is_one {
                all.push(Newcomer {
                    who: (at, None),
                    peer: it.peer,
                    since: it.since,
                    is_unheard: false,
                });
            }
            // What is to free a controller's place is a controller.
            if newcomers == Newcomers::Keyless && !is_full {
                let strangers = it.strangers.iter();
                let strangers = strangers.filter(|other| !other.is_doomed && other.peer != it.peer);
                all.extend(strangers.map(|other| Newcomer {
                    who: (at, Some(other.queue)),
                    peer: other.peer,
                    since: other.since,
                    is_unheard: false,
                }));
            }
        }
        let most = if is_full { 1 } else { self.shares.newcomers };
        let Some((at, queue)) = who_makes_way(&all, most) else { return };
        let Some(controller) = self.controller_mut(at) else { return };
        let why = match newcomers {
            Newcomers::Keyless => "it has shown no key yet, and others want its place",
            Newcomers::Discovery => "others want to ask what there is",
        };
        let Some(queue) = queue else {
            controller.fail();
            return self.doom(at, why);
        };
        for it in controller.strangers.iter_mut().filter(|it| it.queue == queue) {
            it.is_doomed = true;
        }
        self.doomed.push((queue, why));
    }

    /// Counts a queue that an address asks for; whether it may have it.
    pub fn enter(&mut self, peer: IpAddr) -> bool {
        let limit = self.shares.queues_of_address;
        let address = self.shares.addresses.entry(peer).or_default();
        if address.queues >= limit {
            self.shares.refuse(peer, "queues", usize::try_from(limit).unwrap_or(usize::MAX));
            return false;
        }
        address.queues += 1;
        true
    }

    /// A queue of an address has ended, or has not come about.
    pub fn exit(&mut self, peer: IpAddr) {
        if let Some(address) = self.shares.addresses.get_mut(&peer) {
            address.queues = address.queues.saturating_sub(1);
            if address.queues == 0 {
                self.shares.addresses.remove(&peer);
            }
        }
    }

    /// Queues that an address has, those that are being made among them.
    #[must_use]
    pub fn queues_of(&self, peer: IpAddr) -> u32 {
        self.shares.addresses.get(&peer).map_or(0, |it| it.queues)
    }

    /// Queues and controllers that were refused because an address had its share.
    #[must_use]
    pub fn refused_shares(&self) -> u64 {
        self.shares.refused
    }

    /// Whether an address has as many controllers as it may, those of discovery if it asks for one.
    pub(super) fn has_its_share(&mut self, peer: IpAddr, is_discovery: bool) -> bool {
        let his = |it: &&super::Controller| it.peer == peer && !it.is_failed();
        let all = || self.controllers.iter().flatten().filter(his);
        let (limit, asked) = (self.shares.controllers_of_address, self.shares.discovery_of_address);
        let (what, limit) = if all().count() >= limit {
            ("controllers", limit)
        } else if is_discovery && all().filter(|it| it.subsystem.is_none()).count() >= asked {
            ("controllers of discovery", asked)
        } else {
            return false;
        };
        self.shares.refuse(peer, what, limit);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_leave_room_and_never_nothing() {
        assert_eq!([1, 2, 3, 4, 64].map(three_quarters), [1, 2, 3, 3, 48]);
        assert_eq!([1, 4, 7, 8, 64].map(quarter), [1, 1, 1, 2, 16]);
    }

    #[test]
    fn the_oldest_of_the_address_that_has_most_makes_way() {
        let newcomer = |who: u32, host: u8, since: u64| Newcomer {
            who,
            peer: [192, 0, 2, host].into(),
            since: Duration::from_secs(since),
            is_unheard: who > 9,
        };
        let all = [(1, 1, 1), (2, 2, 9), (3, 2, 4), (4, 3, 2)];
        let all = all.map(|(who, host, since)| newcomer(who, host, since));
        assert_eq!([5, 4, 1].map(|most| who_makes_way(&all, most)), [None, Some(3), Some(3)]);
        assert_eq!(who_makes_way(&[all[1], all[3], all[0]], 3), Some(1));
        assert_eq!(who_makes_way::<u32>(&[], 0), None);
        // Whoever never answered goes before all others.
        let unheard = [(10, 4, 20), (11, 4, 10), (12, 5, 1)];
        let unheard = unheard.map(|(who, host, since)| newcomer(who, host, since));
        assert_eq!(who_makes_way(&[all, [unheard[0]; 4]].concat(), 5), Some(10));
        assert_eq!(who_makes_way(&[&all[..], &unheard].concat(), 5), Some(11));
    }

    #[test]
    fn an_address_has_its_share_of_queues_and_gets_it_back() {
        let mut target = Target::new(Settings { io_queues: 1, ..Settings::default() });
        let (one, other) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        target.limit_queues(8, 0);
        for _ in 0..6 {
            assert!(target.enter(one));
        }
        assert!(!target.enter(one) && target.enter(other));
        assert_eq!((target.refused_shares(), target.queues_of(one)), (1, 6));
        target.exit(one);
        assert!(target.enter(one) && !target.enter(one));
        target.limit_queues(8, 2);
        assert!(target.enter(other) && !target.enter(other));
        // A host's own queues are always an address's.
        let mut target = Target::new(Settings::default());
        target.limit_queues(17, 0);
        assert!((0..17).all(|_| target.enter(one)));
    }
}
