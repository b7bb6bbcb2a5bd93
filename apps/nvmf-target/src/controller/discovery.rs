//! The discovery service: who may connect to what, and where.

use super::{Queue, Target};
use crate::proto::connect::DISCOVERY_NQN;
use crate::proto::log::{DISCOVERY_ENTRY_BYTES, DiscoveryEntry, discovery_header};

impl Target {
    /// The ports that hosts are told of: those that differ, or the one that there is.
    fn named_ports(&self) -> Vec<u16> {
        let ports: Vec<u16> = self.offer.ana.ports().iter().map(|it| it.service).collect();
        if ports.is_empty() { vec![self.settings.service] } else { ports }
    }

    /// Whether hosts are told of a port.
    #[must_use]
    pub fn names_port(&self, service: u16) -> bool {
        self.named_ports().contains(&service)
    }

    /// What a host sees of the log from `offset` on, `len` bytes at most; `None` if it ends before.
    pub(super) fn discovery_log(
        &self,
        queue: &Queue,
        hostnqn: &str,
        (offset, len): (u64, usize),
    ) -> Option<Vec<u8>> {
        let ports = self.named_ports();
        // By their numbers, the first being 1.
        let ports = || (1u16..).zip(&ports).map(|(id, service)| (id, *service));
        let allowed = || self.subsystems().filter(|subsystem| subsystem.allows(hostnqn));
        let records = 1 + allowed().count() * ports().count();
        let bytes = (1 + records) * DISCOVERY_ENTRY_BYTES;
        let offset = usize::try_from(offset).ok().filter(|offset| *offset <= bytes)?;
        let own = ports().take(1).map(|port| (DISCOVERY_NQN, port, true));
        let others = allowed().flat_map(|it| ports().map(|port| (it.nqn.as_str(), port, false)));
        let address = queue.local.ip();
        // A page is made when it is asked for: the header is the first.
        let pages = std::iter::once(None).chain(own.chain(others).map(Some));
        let pages = pages.skip(offset / DISCOVERY_ENTRY_BYTES).flat_map(|page| match page {
            None => discovery_header(self.generation, records as u64),
            Some((subnqn, (portid, service), is_discovery)) => {
                DiscoveryEntry { subnqn, address, service, portid, is_discovery }.encode()
            }
        });
        Some(pages.skip(offset % DISCOVERY_ENTRY_BYTES).take(len).collect())
    }
}
