//! What is offered: [`Subsystem`], and its [`Namespace`]s.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ana::Ana;
use super::queue::Queue;
use super::reservation::Reservation;
use crate::auth::HostKey;
use crate::proto::identify;
use crate::proto::status::Status;

/// The highest number that a namespace can have.
pub const MAX_NSID: u32 = 1024;

/// Blocks that hosts read and write.
#[derive(Debug, Clone, Copy)]
pub struct Namespace {
    /// Its number in its subsystem: 1 to [`MAX_NSID`].
    pub nsid: u32,
    /// Size, identifier, rights.
    pub shape: identify::Namespace,
    /// Its place among the back ends.
    pub backend: usize,
    /// Its group, for which ports may differ: 1 to [`MAX_GROUPS`](super::ana::MAX_GROUPS).
    pub ana_group: u32,
}

/// Subsystems that can be offered at a time.
pub const MAX_SUBSYSTEMS: usize = 256;
/// Hosts that a subsystem can list.
pub const MAX_HOSTS: usize = 1024;

/// All that is offered, as one core sees it: a copy that nobody changes, so that I/O commands are
/// checked without a lock. Whoever changes an offer makes another one with a higher version.
#[derive(Debug, Clone, Default)]
pub struct Offer {
    /// Counts changes.
    pub(super) version: u64,
    /// Bytes of the largest transfer.
    pub(super) max_transfer: u32,
    /// How ports differ.
    pub(super) ana: Ana,
    /// Places stay as they are while a controller names them. A change copies the one it is of.
    pub(super) subsystems: Vec<Option<Arc<Subsystem>>>,
}

impl Offer {
    /// Counts changes of what is offered.
    #[inline]
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The subsystem at a place.
    #[inline]
    pub(super) fn subsystem(&self, at: usize) -> Option<&Subsystem> {
        self.subsystems.get(at)?.as_deref()
    }

    /// The same, to be changed: a copy of its own, if a core has it, too.
    pub(super) fn subsystem_mut(&mut self, at: usize) -> Option<&mut Subsystem> {
        self.subsystems.get_mut(at)?.as_mut().map(Arc::make_mut)
    }
}

/// Namespaces under a name, and the hosts that may use them.
#[derive(Debug, Clone)]
pub struct Subsystem {
    /// Its name.
    pub nqn: String,
    /// Serial number, 1 to 20 characters: the same after a restart.
    pub serial: String,
    /// Model, 1 to 40 characters.
    pub model: String,
    /// The names of the hosts that may connect; `None` for any.
    pub hosts: Option<Vec<String>>,
    /// The keys of hosts that have to authenticate themselves, by their names.
    pub(super) keys: BTreeMap<String, Arc<HostKey>>,
    /// By number, the first being 1.
    namespaces: Vec<Option<Namespace>>,
    /// Of namespaces that hosts have registered with, by number.
    pub(super) reservations: BTreeMap<u32, Reservation>,
}

impl Subsystem {
    /// A subsystem without namespaces that any host may use.
    #[must_use]
    pub fn new(nqn: &str, serial: &str) -> Self {
        Self {
            nqn: nqn.into(),
            serial: serial.into(),
            model: "ferrocx nvmf-target".into(),
            hosts: None,
            keys: BTreeMap::new(),
            namespaces: Vec::new(),
            reservations: BTreeMap::new(),
        }
    }

    /// The subsystem, for these hosts only; `None` for any.
    #[must_use]
    pub fn for_hosts(self, hosts: Option<Vec<String>>) -> Self {
        Self { hosts, ..self }
    }

    /// Whether a host may connect.
    #[must_use]
    pub fn allows(&self, hostnqn: &str) -> bool {
        self.hosts.as_ref().is_none_or(|hosts| hosts.iter().any(|host| host == hostnqn))
    }

    /// The subsystem, where these hosts have to authenticate themselves.
    #[must_use]
    pub fn with_keys(self, keys: impl IntoIterator<Item = (String, HostKey)>) -> Self {
        let keys = keys.into_iter().map(|(host, key)| (host, Arc::new(key))).collect();
        Self { keys, ..self }
    }

    /// The key of a host that has to authenticate itself.
    #[must_use]
    pub fn key(&self, hostnqn: &str) -> Option<Arc<HostKey>> {
        self.keys.get(hostnqn).cloned()
    }

    /// The hosts that have to authenticate themselves, and whether the target can, too.
    pub fn keys(&self) -> impl Iterator<Item = (&str, bool)> {
        self.keys.iter().map(|(host, key)| (host.as_str(), key.controller.is_some()))
    }

    /// A namespace by its number.
    #[inline]
    #[must_use]
    pub fn namespace(&self, nsid: u32) -> Option<&Namespace> {
        self.namespaces.get(nsid.wrapping_sub(1) as usize)?.as_ref()
    }

    /// The reservation of a namespace, if hosts have ever registered with it.
    #[must_use]
    pub fn reservation(&self, nsid: u32) -> Option<&Reservation> {
        self.reservations.get(&nsid)
    }

    /// Whether a reservation lets a queue's host carry an I/O command out.
    ///
    /// # Errors
    ///
    /// [`Status::RESERVATION_CONFLICT`].
    #[inline]
    pub(super) fn check_reservation(
        &self,
        nsid: u32,
        queue: &Queue,
        opcode: u8,
    ) -> Result<(), Status> {
        if self.reservations.is_empty() {
            return Ok(());
        }
        let reservation = self.reservations.get(&nsid);
        reservation.map_or(Ok(()), |it| it.check(&queue.hostid, opcode))
    }

    /// Every namespace, by number.
    pub fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        self.namespaces.iter().flatten()
    }

    /// Puts a namespace in at its number, and gives back what stood there.
    pub(super) fn put(&mut self, namespace: Namespace) -> Option<Namespace> {
        let at = namespace.nsid as usize - 1;
        if at >= self.namespaces.len() {
            self.namespaces.resize(at + 1, None);
        }
        self.namespaces[at].replace(namespace)
    }

    /// Takes a namespace out, and its reservation with it.
    pub(super) fn take(&mut self, nsid: u32) -> Option<Namespace> {
        self.reservations.remove(&nsid);
        self.namespaces.get_mut(nsid.wrapping_sub(1) as usize)?.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::{AnaState, Settings, Target};

    /// A core keeps what it has until it looks again; what did not change is not copied.
    #[test]
    fn a_change_copies_the_subsystem_that_it_is_of() {
        let mut target = Target::new(Settings::default());
        let names = ["nqn.2014-08.a:a", "nqn.2014-08.a:b", "nqn.2014-08.a:c"];
        for name in names {
            target.add_subsystem(Subsystem::new(name, "SN")).unwrap();
        }
        target.report_ana(&[(4420, AnaState::Optimized)]);
        let copied = |target: &Target, before: &Offer| -> Vec<usize> {
            let after = target.offer();
            assert!(after.version() > before.version(), "cores look again");
            let of = |offer: &Offer, at: usize| offer.subsystems[at].clone().unwrap();
            (0..3).filter(|at| !Arc::ptr_eq(&of(before, *at), &of(&after, *at))).collect()
        };
        for (at, name) in names.iter().enumerate() {
            let before = target.offer();
            target.set_hosts(name, Some(vec!["nqn.2014-08.a:h".into()])).unwrap();
            assert_eq!(copied(&target, &before), [at]);
            let is_old = before.subsystem(at).is_some_and(|it| it.hosts.is_none());
            assert!(is_old && !target.subsystem(name).unwrap().allows("nqn.2014-08.a:i"));
        }
        let before = target.offer();
        target.set_ana(4420, None, AnaState::Inaccessible).unwrap();
        target.tell_cores();
        assert!(copied(&target, &before).is_empty());
        // Nor is one copied that no core has.
        let place = |target: &Target| Arc::as_ptr(target.offer().subsystems[0].as_ref().unwrap());
        drop(before);
        let before = place(&target);
        target.set_hosts(names[0], None).unwrap();
        assert_eq!(place(&target), before);
    }
}
