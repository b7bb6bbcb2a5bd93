//! The discovery service: who may connect to what, and where.

use super::ana::{AnaState, MAX_PORTS};
use super::{OfferError, Queue, Target};
use crate::proto::connect::DISCOVERY_NQN;
use crate::proto::log::{DISCOVERY_ENTRY_BYTES, DiscoveryEntry, discovery_header};

impl Target {
    /// The ports that hosts are told of, with their numbers: those that differ, or the one that
    /// there is.
    fn named_ports(&self) -> Vec<(u16, u16)> {
        if !self.offer.ana.is_reported() {
            return vec![(1, self.settings.service)];
        }
        let named = self.offer.ana.ports().iter().filter(|it| it.is_named);
        named.map(|it| (it.id, it.service)).collect()
    }

    /// Tells hosts of another port, which may differ from the others. Those that stay connected to
    /// the discovery service are told at once; so are hosts that came by this port when it was
    /// named before.
    ///
    /// # Errors
    ///
    /// [`OfferError::Alone`], [`OfferError::Full`].
    pub fn name_port(&mut self, service: u16, state: AnaState) -> Result<(), OfferError> {
        if !self.offer.ana.is_reported() {
            return Err(OfferError::Alone(service));
        }
        let has_hosts = |of| {
            let all = self.controllers.iter().flatten();
            all.filter(|it| it.subsystem.is_some()).any(|it| it.service == of)
        };
        let mut ana = self.offer.ana.clone();
        ana.forget(has_hosts);
        if !ana.name(service, state) {
            let what = "ports that discovery names, or that have hosts still";
            return Err(OfferError::Full { what, limit: MAX_PORTS });
        }
        self.change_offer(|offer| offer.ana = ana);
        self.tell_ana(service);
        self.discovery_changed();
        Ok(())
    }

    /// Tells hosts of a port no more. Those that came by it stay, and see what they saw.
    ///
    /// # Errors
    ///
    /// [`OfferError::LastPort`].
    pub fn name_port_no_more(&mut self, service: u16) -> Result<(), OfferError> {
        let named = self.named_ports();
        if !named.iter().any(|(_, it)| *it == service) {
            return Ok(());
        }
        if named.len() == 1 {
            return Err(OfferError::LastPort(service));
        }
        self.change_offer(|offer| offer.ana.name_no_more(service));
        self.discovery_changed();
        Ok(())
    }

    /// What a host sees of the log from `offset` on, `len` bytes at most; `None` if it ends before.
    pub(super) fn discovery_log(
        &self,
        queue: &Queue,
        hostnqn: &str,
        (offset, len): (u64, usize),
    ) -> Option<Vec<u8>> {
        let ports = self.named_ports();
        let ports = || ports.iter().copied();
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
