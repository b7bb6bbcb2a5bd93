//! Asymmetric namespace access: the ways to a namespace differ, and hosts are told how. [`Ana`] has
//! a state for each port of the target and each group of namespaces.
//!
//! | state | commands of I/O by this port |
//! |---|---|
//! | optimized, non-optimized | are carried out; hosts that have both take the first |
//! | inaccessible, persistent loss, change | are refused, and hosts take another way |
//!
//! Source: NVM Express base 1.4, "Asymmetric Namespace Access Reporting"; reference 10.1.10.

use serde::{Deserialize, Serialize};

use crate::proto::log::{ana_group, ana_header};
use crate::proto::status::Status;

/// Ports that differ, at most.
pub const MAX_PORTS: usize = 8;
/// The highest number of a group of namespaces; the first is 1.
pub const MAX_GROUPS: u32 = 8;

/// What a port is for a group of namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnaState {
    /// The way to take.
    Optimized = 1,
    /// A way that is worse than others.
    NonOptimized = 2,
    /// No way now.
    Inaccessible = 3,
    /// No way, and none later.
    PersistentLoss = 4,
    /// On its way to another state.
    Change = 0xf,
}

impl AnaState {
    /// Whether commands of I/O are carried out.
    ///
    /// # Errors
    ///
    /// The path-related status to refuse them with: the host may try another way, so none says "do
    /// not retry".
    pub fn check(self) -> Result<(), Status> {
        match self {
            Self::Optimized | Self::NonOptimized => Ok(()),
            Self::Inaccessible => Err(Status::ANA_INACCESSIBLE),
            Self::PersistentLoss => Err(Status::ANA_PERSISTENT_LOSS),
            Self::Change => Err(Status::ANA_TRANSITION),
        }
    }
}

/// A port, and what it is for each group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnaPort {
    /// Its number for the connection manager.
    pub service: u16,
    /// Its number in the discovery log, from 1 on, which no other gets while it has hosts.
    pub id: u16,
    /// Whether discovery names it: one that was taken away may still have hosts.
    pub is_named: bool,
    /// By the number of the group, less one.
    pub states: [AnaState; MAX_GROUPS as usize],
}

/// States of ports and groups. Without ports, hosts are told of nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ana {
    ports: Vec<AnaPort>,
    /// Whether there is a state anywhere that refuses commands.
    refuses: bool,
}

impl Ana {
    /// Ports with one state for every group.
    #[must_use]
    pub fn new(ports: &[(u16, AnaState)]) -> Self {
        let mut ana = Self::default();
        for (service, state) in ports {
            ana.name(*service, *state);
        }
        ana
    }

    /// Names a port, with one state for every group; whether there is room for it. One that was
    /// named before keeps its number.
    pub(super) fn name(&mut self, service: u16, state: AnaState) -> bool {
        let states = [state; MAX_GROUPS as usize];
        let free = (1..=MAX_PORTS as u16).find(|id| self.ports.iter().all(|it| it.id != *id));
        match (self.ports.iter_mut().find(|it| it.service == service), free) {
            (Some(port), _) => (port.is_named, port.states) = (true, states),
            (None, Some(id)) => self.ports.push(AnaPort { service, id, is_named: true, states }),
            (None, None) => return false,
        }
        self.look();
        true
    }

    /// Names a port no more. Its hosts see what they saw.
    pub(super) fn name_no_more(&mut self, service: u16) {
        if let Some(port) = self.ports.iter_mut().find(|it| it.service == service) {
            port.is_named = false;
        }
    }

    /// Forgets ports that are not named and have no hosts.
    pub(super) fn forget(&mut self, has_hosts: impl Fn(u16) -> bool) {
        self.ports.retain(|it| it.is_named || has_hosts(it.service));
        self.look();
    }

    /// Whether hosts are told.
    #[must_use]
    pub fn is_reported(&self) -> bool {
        !self.ports.is_empty()
    }

    /// The ports.
    #[must_use]
    pub fn ports(&self) -> &[AnaPort] {
        &self.ports
    }

    /// What a port is for a group. One that nothing was said of is as good as any.
    #[must_use]
    pub fn state(&self, service: u16, group: u32) -> AnaState {
        let port = self.ports.iter().find(|port| port.service == service);
        let state = port.and_then(|port| port.states.get(group.wrapping_sub(1) as usize));
        state.copied().unwrap_or(AnaState::Optimized)
    }

    /// Whether a command of I/O that came by a port may reach a group.
    ///
    /// # Errors
    ///
    /// Those of [`AnaState::check`].
    #[inline]
    pub fn check(&self, service: u16, group: u32) -> Result<(), Status> {
        if self.refuses { self.state(service, group).check() } else { Ok(()) }
    }

    /// Says what a port is for a group, or for all; whether there is such a port.
    pub(super) fn set(&mut self, service: u16, group: Option<u32>, state: AnaState) -> bool {
        let Some(port) = self.ports.iter_mut().find(|port| port.service == service) else {
            return false;
        };
        for (number, it) in (1..=MAX_GROUPS).zip(&mut port.states) {
            if group.is_none_or(|group| group == number) {
                *it = state;
            }
        }
        self.look();
        true
    }

    fn look(&mut self) {
        let mut states = self.ports.iter().flat_map(|port| port.states);
        self.refuses = states.any(|state| state.check().is_err());
    }

    /// The log page that hosts of a port read: groups that have namespaces. `version` counts
    /// changes, and `members` names the namespaces of a group.
    #[must_use]
    pub fn page(
        &self,
        service: u16,
        version: u64,
        groups_only: bool,
        members: impl Fn(u32) -> Vec<u32>,
    ) -> Vec<u8> {
        let mut groups = Vec::new();
        let mut count = 0;
        for group in 1..=MAX_GROUPS {
            let nsids = members(group);
            if nsids.is_empty() {
                continue;
            }
            count += 1;
            let listed = if groups_only { &[] } else { nsids.as_slice() };
            let state = self.state(service, group);
            groups.extend(ana_group(group, listed, version, state as u8));
        }
        [ana_header(version, count).as_slice(), &groups].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_what_was_said_of_it() {
        let mut ana = Ana::new(&[(4420, AnaState::Optimized), (4421, AnaState::NonOptimized)]);
        assert!(ana.is_reported() && !Ana::default().is_reported());
        assert!(ana.set(4421, Some(2), AnaState::Inaccessible));
        assert!(!ana.set(4422, None, AnaState::Inaccessible), "no such port");
        for (service, group, state, refused) in [
            (4420, 2, AnaState::Optimized, Ok(())),
            (4421, 1, AnaState::NonOptimized, Ok(())),
            (4421, 2, AnaState::Inaccessible, Err(Status(0x302))),
            (8009, 2, AnaState::Optimized, Ok(())),
        ] {
            assert_eq!(ana.state(service, group), state, "{service} {group}");
            assert_eq!(ana.check(service, group), refused, "{service} {group}");
        }
        ana.set(4421, None, AnaState::PersistentLoss);
        assert_eq!(ana.check(4421, 1), Err(Status(0x301)));
        ana.set(4421, None, AnaState::Change);
        assert_eq!(ana.check(4421, 8), Err(Status(0x303)));
        ana.set(4421, None, AnaState::NonOptimized);
        assert!(!ana.refuses);
    }

    #[test]
    fn a_port_that_came_later_has_a_number_of_its_own() {
        let mut ana = Ana::new(&[(4420, AnaState::Optimized), (4421, AnaState::NonOptimized)]);
        let ids = |ana: &Ana| -> Vec<(u16, u16, bool)> {
            ana.ports().iter().map(|it| (it.service, it.id, it.is_named)).collect()
        };
        assert!(ana.name(4430, AnaState::Inaccessible));
        ana.name_no_more(4421);
        assert_eq!(ids(&ana), [(4420, 1, true), (4421, 2, false), (4430, 3, true)]);
        // Its hosts see what they saw, and the number is theirs.
        assert_eq!(ana.state(4421, 1), AnaState::NonOptimized);
        assert!(ana.name(4440, AnaState::Optimized));
        assert_eq!(ids(&ana)[3], (4440, 4, true));
        ana.forget(|service| service == 4421);
        assert_eq!(ids(&ana).len(), 4);
        ana.name(4421, AnaState::Change);
        assert_eq!((ids(&ana)[1], ana.state(4421, 8)), ((4421, 2, true), AnaState::Change));
        ana.name_no_more(4430);
        ana.name_no_more(4421);
        ana.forget(|_| false);
        assert_eq!(ids(&ana), [(4420, 1, true), (4440, 4, true)]);
        assert!(!ana.refuses, "the ports that refused are gone");
        assert!((1..7).all(|service| ana.name(service, AnaState::Optimized)));
        assert!(!ana.name(7, AnaState::Optimized), "there is room for eight");
        let mut all: Vec<_> = ids(&ana).iter().map(|it| it.1).collect();
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    /// By hand from the tables: two groups, of which the second has two namespaces.
    #[test]
    fn the_page_has_the_bytes_of_the_tables() {
        let mut ana = Ana::new(&[(4420, AnaState::Optimized)]);
        ana.set(4420, Some(5), AnaState::PersistentLoss);
        let members = |group| match group {
            1 => vec![7],
            5 => vec![8, 0x300],
            _ => vec![],
        };
        let page = ana.page(4420, 0x0102, false, members);
        let mut expected = vec![2, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
        expected.extend([1, 0, 0, 0, 1, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 1]);
        expected.extend([0; 15]);
        expected.extend([7, 0, 0, 0]);
        expected.extend([5, 0, 0, 0, 2, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 4]);
        expected.extend([0; 15]);
        expected.extend([8, 0, 0, 0, 0, 3, 0, 0]);
        assert_eq!(page, expected);
        let page = ana.page(4420, 0x0102, true, members);
        assert_eq!(page.len(), 16 + 2 * 32);
        assert_eq!((page[20], page[32], page[52], page[64]), (0, 1, 0, 4), "groups only");
    }
}
