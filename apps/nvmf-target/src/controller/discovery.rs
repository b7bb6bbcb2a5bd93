//! The discovery service: who may connect to what, and where.

use super::{Queue, Target};
use crate::proto::connect::DISCOVERY_NQN;
use crate::proto::log::{DISCOVERY_ENTRY_BYTES, DiscoveryEntry, discovery_header};

impl Target {
    /// Bytes `offset` to `offset + len` of the log that a host sees; zeros past its end.
    pub(super) fn discovery_log(
        &self,
        queue: &Queue,
        hostnqn: &str,
        (offset, len): (u64, usize),
        out: &mut Vec<u8>,
    ) {
        let address = queue.local.ip();
        let entry = |subnqn, (portid, service), is_discovery| {
            DiscoveryEntry { subnqn, address, service, portid, is_discovery }.encode()
        };
        // By their numbers, the first being 1: those that differ, or the one that there is.
        let mut ports: Vec<u16> = self.offer.ana.ports().iter().map(|it| it.service).collect();
        if ports.is_empty() {
            ports.push(self.settings.service);
        }
        let ports = || (1u16..).zip(&ports).map(|(id, service)| (id, *service));
        let allowed = self.subsystems().filter(|subsystem| subsystem.allows(hostnqn));
        let mut entries: Vec<_> =
            ports().take(1).map(|port| entry(DISCOVERY_NQN, port, true)).collect();
        for subsystem in allowed {
            entries.extend(ports().map(|port| entry(&subsystem.nqn, port, false)));
        }
        let records = entries.len() as u64;
        let header = discovery_header(self.generation, records);
        let pages = std::iter::once(header).chain(entries);
        let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
        let before = skipped / DISCOVERY_ENTRY_BYTES;
        out.extend(pages.skip(before).flatten().skip(skipped % DISCOVERY_ENTRY_BYTES).take(len));
        out.resize(len, 0);
    }
}
