//! The discovery service: who may connect to what, and where.

use super::{Queue, Target};
use crate::proto::connect::DISCOVERY_NQN;
use crate::proto::log::{DISCOVERY_ENTRY_BYTES, DiscoveryEntry, discovery_header};

/// Number of the one port that there is.
const PORT_ID: u16 = 1;

impl Target {
    /// Bytes `offset` to `offset + len` of the log that a host sees; zeros past its end.
    pub(super) fn discovery_log(
        &self,
        queue: &Queue,
        hostnqn: &str,
        (offset, len): (u64, usize),
        out: &mut Vec<u8>,
    ) {
        let (address, service) = (queue.local, self.settings.service);
        let entry = |subnqn, is_discovery| {
            DiscoveryEntry { subnqn, address, service, portid: PORT_ID, is_discovery }.encode()
        };
        let allowed = self.subsystems().filter(|subsystem| subsystem.allows(hostnqn));
        let mut entries = vec![entry(DISCOVERY_NQN, true)];
        entries.extend(allowed.map(|subsystem| entry(&subsystem.nqn, false)));
        let records = entries.len() as u64;
        let header = discovery_header(self.generation, records);
        let pages = std::iter::once(header).chain(entries);
        let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
        let before = skipped / DISCOVERY_ENTRY_BYTES;
        out.extend(pages.skip(before).flatten().skip(skipped % DISCOVERY_ENTRY_BYTES).take(len));
        out.resize(len, 0);
    }
}
