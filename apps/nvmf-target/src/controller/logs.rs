//! Get Log Page.

use super::admin::{Done, destination, start};
use super::{Controller, Offer, Queue, Subsystem, Target};
use crate::proto::identify::{self, events};
use crate::proto::log::{self, lid};
use crate::proto::sqe::Sqe;
use crate::proto::status::Status;

/// The log pages of an I/O controller, and of the discovery service.
const LOGS: &[u8] = &[
    lid::SUPPORTED,
    lid::ERRORS,
    lid::SMART,
    lid::FIRMWARE,
    lid::CHANGED_NAMESPACES,
    lid::EFFECTS,
    lid::ANA,
    lid::RESERVATION,
];
const DISCOVERY_LOGS: &[u8] = &[lid::SUPPORTED, lid::DISCOVERY];

impl Target {
    /// Brings a part of a log page: zeros past its end, and "invalid field" for a part that begins
    /// past it, which reads nothing, so that the events of the page stay as they are. Source: NVM
    /// Express base 1.4, "Get Log Page", Log Page Offset.
    pub(super) fn get_log(
        &mut self,
        at: usize,
        queue: &Queue,
        sqe: &Sqe,
        out: &mut Vec<u8>,
    ) -> Done {
        let (cdw10, cdw11) = (sqe.cdw10.get(), sqe.cdw11.get());
        let (lid, keeps) = (cdw10 as u8, cdw10 & 1 << 15 != 0);
        let dwords = u64::from(cdw11 & 0xffff) << 16 | u64::from(cdw10 >> 16);
        let len = (dwords + 1) * 4;
        let offset = u64::from(sqe.cdw13.get()) << 32 | u64::from(sqe.cdw12.get());
        let Some(controller) = self.controller(at) else { return Err(Status::INTERNAL) };
        let known = self.logs_of(controller);
        if !known.contains(&lid) {
            return Err(Status::INVALID_LOG.dnr());
        }
        let most = match controller.subsystem {
            Some(_) => self.settings.max_transfer(),
            None => 4096 << self.settings.discovery_mdts(),
        };
        let to = destination(sqe, len, most)?;
        if !offset.is_multiple_of(4) {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let from = |page: &[u8]| page.get(usize::try_from(offset).ok()?..).map(<[u8]>::to_vec);
        let found = match lid {
            lid::SUPPORTED => from(&log::supported(&known)),
            lid::ANA => from(&self.ana_page(controller, cdw10 & 1 << 8 != 0)),
            lid::DISCOVERY => {
                self.discovery_log(queue, &controller.hostnqn, (offset, len as usize))
            }
            _ => from(&self.page_of(controller, lid)),
        };
        start(out, &found.ok_or(Status::INVALID_FIELD.dnr())?, len as usize);
        if !keeps {
            self.log_was_read(at, lid);
        }
        Ok((0, Some(to)))
    }

    /// The log pages that a controller has.
    fn logs_of(&self, controller: &Controller) -> Vec<u8> {
        let has_ana = self.offer.ana.is_reported();
        let known = if controller.subsystem.is_none() { DISCOVERY_LOGS } else { LOGS };
        known.iter().copied().filter(|lid| *lid != lid::ANA || has_ana).collect()
    }

    /// A log page that is the controller's own.
    fn page_of(&self, controller: &Controller, lid: u8) -> Vec<u8> {
        match lid {
            lid::ERRORS => {
                let entries = controller.errors.iter().flat_map(log::ErrorEntry::encode);
                let mut page: Vec<u8> = entries.collect();
                page.resize(identify::ERROR_ENTRIES * log::ERROR_BYTES, 0);
                page
            }
            lid::SMART => {
                let minutes = self.now.saturating_sub(controller.since).as_secs() / 60;
                let Controller { traffic, media_errors, error_count, .. } = controller;
                traffic.smart(minutes, *media_errors, *error_count).into()
            }
            lid::FIRMWARE => log::firmware(identify::FIRMWARE).into(),
            lid::CHANGED_NAMESPACES => log::changed_namespaces(controller.changed()).into(),
            lid::EFFECTS => log::effects().into(),
            _ => controller.reservation_page().into(),
        }
    }

    /// The host has read a log: what it told of it may be told again.
    fn log_was_read(&mut self, at: usize, lid: u8) {
        let Some(Some(controller)) = self.controllers.get_mut(at) else { return };
        match lid {
            lid::CHANGED_NAMESPACES => controller.read_log(events::NAMESPACE_ATTRIBUTES),
            lid::ANA => controller.read_log(events::ANA),
            lid::DISCOVERY => controller.read_log(events::DISCOVERY),
            lid::RESERVATION => controller.tell_next_reservation(&mut self.outbox),
            _ => {}
        }
    }

    /// The page of asymmetric access, as a controller's port has it.
    fn ana_page(&self, controller: &Controller, groups_only: bool) -> Vec<u8> {
        let subsystem = controller.subsystem.and_then(|at| self.offer.subsystem(at));
        let members = |group| {
            let all = subsystem.into_iter().flat_map(Subsystem::namespaces);
            all.filter(|ns| ns.ana_group == group).map(|ns| ns.nsid).collect()
        };
        let Offer { ana, version, .. } = &*self.offer;
        ana.page(controller.service, *version, groups_only, members)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::controller::Settings;
    use crate::proto::cm::Request;
    use crate::proto::sgl::Sgl;
    use crate::proto::sqe::admin;

    /// Not each command that failed is an entry: requests for events that are taken back are none.
    #[test]
    fn the_health_page_and_the_error_log_count_the_same() {
        let mut target = Target::new(Settings::default());
        let (here, there) = ("192.0.2.1:4420".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let queue = Queue::new(7, &Request::default(), here, there);
        let host = ("nqn.2014-08.a:h", [7; 16]);
        let mut controller = Controller::new(1, Some(0), host, &queue, Duration::ZERO);
        controller.traffic.errors = 5;
        let sqe = Sqe::new(admin::IDENTIFY, 0, Sgl::NONE);
        for _ in 0..2 {
            controller.note_error(&queue, &sqe, Status::INVALID_FIELD.dnr());
        }
        target.controllers.push(Some(controller));
        let controller = target.controller(0).unwrap();
        let errors = target.page_of(controller, lid::ERRORS);
        assert_eq!(errors[..8], 2u64.to_le_bytes());
        assert_eq!(target.page_of(controller, lid::SMART)[176..184], errors[..8]);
    }
}
