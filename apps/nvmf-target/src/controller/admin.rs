//! Commands of the admin queue, and fabrics commands of every queue.

use super::connect::{self, Place};
use super::reservation::Reservation;
use super::{Action, Controller, Namespace, Queue, Role, Target, auth};
use crate::proto::connect::DISCOVERY_NQN;
use crate::proto::identify::{self, PAGE_BYTES, cns, events};
use crate::proto::property;
use crate::proto::sgl::{Keyed, Sgl};
use crate::proto::sqe::{Sqe, admin, fabrics, io};
use crate::proto::status::Status;

/// Numbers of features. Source: reference 10.2.9.
mod fid {
    pub(super) const TEMPERATURE: u8 = 0x04;
    pub(super) const WRITE_CACHE: u8 = 0x06;
    pub(super) const QUEUES: u8 = 0x07;
    pub(super) const EVENTS: u8 = 0x0b;
    pub(super) const KEEP_ALIVE: u8 = 0x0f;
    pub(super) const HOST_ID: u8 = 0x81;
    pub(super) const RESERVATION_NOTICES: u8 = 0x82;
    pub(super) const RESERVATION_PERSISTENCE: u8 = 0x83;
}

/// What a command brings: its result, and whether a page goes to the host.
pub(super) type Done = Result<(u64, Option<Keyed>), Status>;

/// A command that brings a page of `len` bytes, of `most` that there can be: the memory that the
/// host describes has that size.
pub(super) fn destination(sqe: &Sqe, len: u64, most: u32) -> Result<Keyed, Status> {
    match Sgl::parse(&sqe.sgl)? {
        Sgl::InCapsule { .. } => Err(Status::INVALID_FIELD.dnr()),
        Sgl::Keyed(keyed) if u64::from(keyed.len) != len => Err(Status::DATA_LENGTH.dnr()),
        Sgl::Keyed(_) if len > u64::from(most) => Err(Status::INVALID_FIELD.dnr()),
        Sgl::Keyed(keyed) => Ok(keyed),
    }
}

/// Puts the first `len` bytes of a page behind what is there; zeros past its end.
pub(super) fn start(out: &mut Vec<u8>, page: &[u8], len: usize) {
    out.extend_from_slice(&page[..page.len().min(len)]);
    out.resize(len, 0);
}

impl Target {
    /// Carries a command out that is none of [`Target::io`]: all of an admin queue and of a queue
    /// without Connect, and fabrics commands. `slot` is the transport's name of it, `data` what
    /// came behind it, and `out` takes the page that it brings.
    pub fn command(
        &mut self,
        queue: &mut Queue,
        slot: u16,
        sqe: &Sqe,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Action {
        out.clear();
        let cid = sqe.cid.get();
        let is_connect = sqe.opcode == admin::FABRICS && sqe.fctype() == fabrics::CONNECT;
        if is_connect {
            return match connect::place(sqe, data.len()) {
                Err(status) => Action::Answer(queue.answer(cid, status, 0)),
                Ok(Place::Host(from)) => Action::Fetch { from, len: from.len },
                Ok(Place::Capsule(range)) => Action::Answer(self.connect(queue, sqe, &data[range])),
            };
        }
        let is_fabrics = sqe.opcode == admin::FABRICS;
        if is_fabrics && queue.role != Role::Unconnected && auth::is_command(sqe) {
            return self.authenticate(queue, slot, sqe, data, out);
        }
        let done = match queue.role {
            Role::Unconnected => Err(Status::SEQUENCE.dnr()),
            Role::Admin(_) | Role::Io(_) if !queue.is_authenticated() => Err(queue.refusal()),
            Role::Io(_) if is_fabrics && sqe.fctype() == fabrics::DISCONNECT => {
                match Self::disconnect(queue, sqe) {
                    Ok(()) => return Action::Leave,
                    Err(status) => Err(status),
                }
            }
            Role::Admin(at) | Role::Io(at) if is_fabrics => {
                sqe.check_flags().and_then(|()| self.fabrics(at, queue, sqe))
            }
            Role::Io(_) if io::is_reservation(sqe.opcode) => {
                return self.reservation(queue, slot, sqe, (data, out));
            }
            // The discovery service has no I/O queues, and I/O commands go elsewhere.
            Role::Io(_) => Err(Status::INVALID_OPCODE.dnr()),
            Role::Admin(at) => match sqe.check_flags() {
                Ok(()) if sqe.opcode == admin::ASYNC_EVENT => {
                    match self.request_event(at, slot, cid) {
                        Ok(()) => return Action::Hold,
                        Err(status) => Err(status),
                    }
                }
                Ok(()) if sqe.opcode == admin::ABORT => match self.abort(at, queue, slot, sqe) {
                    Ok(None) => return Action::Hold,
                    Ok(Some(result)) => Ok((result, None)),
                    Err(status) => Err(status),
                },
                Ok(()) => match self.persisting(at, sqe) {
                    Some(at) => match self.set_persistence(at, (queue, slot), sqe) {
                        Ok(true) => return Action::Hold,
                        Ok(false) => Ok((0, None)),
                        Err(status) => Err(status),
                    },
                    None => self.admin(at, queue, sqe, out),
                },
                Err(status) => Err(status),
            },
        };
        match done {
            Ok((result, None)) => Action::Answer(queue.answer(cid, Status::SUCCESS, result)),
            Ok((result, Some(to))) => {
                let cqe = queue.answer(cid, Status::SUCCESS, result);
                Action::Bring { cqe, len: out.len() as u32, to }
            }
            Err(status) => {
                if let Role::Admin(at) = queue.role
                    && let Some(controller) = self.controller_mut(at)
                {
                    controller.note_error(queue, sqe, status);
                }
                Action::Answer(queue.answer(cid, status, 0))
            }
        }
    }

    /// Whether a command may bring more than fits into a page of its queue, so that it needs a
    /// buffer that all queues of a core share: a log page or a report of reservations, of a host
    /// that was let in to a subsystem and has switched its controller on. Whatever else asks for as
    /// much is refused.
    #[must_use]
    pub fn may_bring_more(&self, queue: &Queue, sqe: &Sqe) -> bool {
        let is_it = match queue.role {
            Role::Admin(at) => {
                let is_ready = self.controller(at).is_some_and(Controller::is_ready);
                is_ready && sqe.opcode == admin::GET_LOG
            }
            Role::Io(_) => queue.is_ready() && sqe.opcode == io::RESERVATION_REPORT,
            Role::Unconnected => false,
        };
        is_it && self.is_known(queue)
    }

    /// The data that an [`Action::Fetch`] asked for have come.
    pub fn fetched(&mut self, queue: &mut Queue, slot: u16, sqe: &Sqe, data: &[u8]) -> Action {
        if io::is_reservation(sqe.opcode) {
            return self.reserved(queue, slot, sqe, data);
        }
        if queue.role != Role::Unconnected && auth::is_command(sqe) {
            return self.auth_sent(queue, sqe, data);
        }
        // Of the others only Connect fetches.
        Action::Answer(self.connect(queue, sqe, data))
    }

    fn request_event(&mut self, at: usize, slot: u16, cid: u16) -> Result<(), Status> {
        match self.controllers.get_mut(at) {
            Some(Some(controller)) if controller.is_ready() => {
                controller.request_event(slot, cid, &mut self.outbox)
            }
            _ => Err(Status::SEQUENCE.dnr()),
        }
    }

    fn fabrics(&mut self, at: usize, queue: &Queue, sqe: &Sqe) -> Done {
        let is_admin = matches!(queue.role, Role::Admin(_));
        match sqe.fctype() {
            fabrics::PROPERTY_GET if is_admin => self.property_get(at, sqe),
            fabrics::PROPERTY_SET if is_admin => self.property_set(at, sqe),
            fabrics::DISCONNECT => Err(Status::QUEUE_TYPE.dnr()),
            _ => Err(Status::INVALID_OPCODE.dnr()),
        }
    }

    /// Disconnect, of an I/O queue: it takes nothing more.
    fn disconnect(queue: &mut Queue, sqe: &Sqe) -> Result<(), Status> {
        sqe.check_flags()?;
        if sqe.cdw10.get() as u16 != 0 {
            return Err(Status::CONNECT_FORMAT.dnr());
        }
        queue.shut();
        Ok(())
    }

    /// Whether a property is asked for by eight bytes, and its offset.
    fn property(sqe: &Sqe) -> Result<(bool, u32), Status> {
        match sqe.cdw10.get() & 7 {
            0 => Ok((false, sqe.cdw11.get())),
            1 => Ok((true, sqe.cdw11.get())),
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }

    fn property_get(&self, at: usize, sqe: &Sqe) -> Done {
        let cap = property::capabilities(self.settings.entries);
        let Some(controller) = self.controller(at) else { return Err(Status::INTERNAL) };
        let value = match Self::property(sqe)? {
            (true, property::CAP) => cap,
            // Halves of it are asked for by SPDK's host.
            (false, property::CAP) => cap & 0xffff_ffff,
            (false, 4) => cap >> 32,
            (false, property::VS) => property::VERSION.into(),
            (false, property::CC) => controller.cc.into(),
            (false, property::CSTS) => controller.shown_csts().into(),
            _ => return Err(Status::INVALID_FIELD.dnr()),
        };
        Ok((value, None))
    }

    fn property_set(&mut self, at: usize, sqe: &Sqe) -> Done {
        let (false, property::CC) = Self::property(sqe)? else {
            return Err(Status::INVALID_FIELD.dnr());
        };
        let cc = sqe.cdw12.get();
        let Some(controller) = self.controllers.get_mut(at).and_then(Option::as_mut) else {
            return Err(Status::INTERNAL);
        };
        if cc & property::CC_EN != 0 && controller.is_settling() {
            return Err(Status::SEQUENCE);
        }
        let before = std::mem::replace(&mut controller.cc, cc);
        let (was_on, is_on) = (before & property::CC_EN != 0, cc & property::CC_EN != 0);
        // The status of before goes with it, and a shutdown that was asked for.
        let shutdown = (is_on != was_on).then_some(controller.shutdown);
        if is_on && !was_on {
            let can_enable = property::can_enable(cc, controller.subsystem.is_none());
            controller.set_csts(if can_enable { property::CSTS_RDY } else { property::CSTS_CFS });
        } else if was_on && !is_on {
            controller.set_csts(0);
            controller.granted = 0;
            controller.abort_requests(&mut self.outbox);
            controller.forget_events();
            let ended = |queue| (queue, "its controller was disabled");
            self.doomed.extend(controller.all_io_queues().map(ended));
        }
        if let Some(number) = shutdown {
            self.forget_shutdown(number);
        }
        if property::asks_for_shutdown(cc) && !property::asks_for_shutdown(before) {
            self.shut_down(at);
        }
        Ok((0, None))
    }

    /// The subsystem of a ready controller whose command sets what a reservation outlives: of that
    /// alone the answer waits for a disk.
    fn persisting(&self, at: usize, sqe: &Sqe) -> Option<usize> {
        const SAVE: u32 = 1 << 31;
        let cdw10 = sqe.cdw10.get();
        let is_it = sqe.opcode == admin::SET_FEATURES
            && cdw10 as u8 == fid::RESERVATION_PERSISTENCE
            && cdw10 & SAVE == 0;
        let controller = self.controller(at).filter(|it| it.is_ready())?;
        controller.subsystem.filter(|_| is_it && self.keeps_reservations)
    }

    fn admin(&mut self, at: usize, queue: &Queue, sqe: &Sqe, out: &mut Vec<u8>) -> Done {
        let Some(controller) = self.controller_mut(at) else { return Err(Status::INTERNAL) };
        if !controller.is_ready() {
            return Err(Status::SEQUENCE.dnr());
        }
        let is_discovery = controller.subsystem.is_none();
        match sqe.opcode {
            admin::IDENTIFY => self.identify(at, sqe, out),
            admin::GET_LOG => self.get_log(at, queue, sqe, out),
            admin::SET_FEATURES => self.set_features(at, sqe),
            admin::GET_FEATURES => self.get_features(at, sqe, out),
            admin::KEEP_ALIVE if controller.keep_alive.is_some() || is_discovery => Ok((0, None)),
            admin::KEEP_ALIVE => Err(Status::KEEP_ALIVE.dnr()),
            _ => Err(Status::INVALID_OPCODE.dnr()),
        }
    }

    fn identify(&mut self, at: usize, sqe: &Sqe, out: &mut Vec<u8>) -> Done {
        let to = destination(sqe, PAGE_BYTES as u64, PAGE_BYTES as u32)?;
        let page = self.identify_page(at, sqe)?;
        out.extend_from_slice(&page);
        Ok((0, Some(to)))
    }

    fn identify_page(&self, at: usize, sqe: &Sqe) -> Result<[u8; PAGE_BYTES], Status> {
        let Some(controller) = self.controller(at) else { return Err(Status::INTERNAL) };
        let kind = sqe.cdw10.get() as u8;
        let (nsid, csi) = (sqe.nsid.get(), sqe.cdw11.get() >> 24);
        let unknown = Err(Status::INVALID_FIELD.dnr());
        if kind == cns::CONTROLLER {
            return Ok(self.describe(controller).page());
        }
        let Some(subsystem) = controller.subsystem.and_then(|at| self.offer.subsystem(at)) else {
            return unknown;
        };
        let namespace = || match subsystem.namespace(nsid) {
            Some(namespace) => Ok(Some(namespace)),
            None if (1..=super::subsystem::MAX_NSID).contains(&nsid) => Ok(None),
            None => Err(Status::INVALID_NAMESPACE.dnr()),
        };
        let there = || namespace()?.ok_or(Status::INVALID_NAMESPACE.dnr());
        let way = |ns: &Namespace| self.way(controller, ns);
        match kind {
            // One that is not there has the page of zeros.
            cns::NAMESPACE => Ok(namespace()?.map_or([0; PAGE_BYTES], |ns| ns.shape.page(way(ns)))),
            cns::ACTIVE_NAMESPACES if nsid >= 0xffff_fffe => Err(Status::INVALID_NAMESPACE.dnr()),
            cns::ACTIVE_NAMESPACES => {
                let nsids = subsystem.namespaces().map(|namespace| namespace.nsid);
                Ok(identify::namespace_list(nsids, nsid))
            }
            cns::DESCRIPTORS => Ok(there()?.shape.descriptors()),
            cns::NVM_NAMESPACE if csi == 0 => there().map(|_| [0; PAGE_BYTES]),
            cns::NVM_CONTROLLER if csi == 0 => Ok(identify::nvm_controller(self.settings.mdts)),
            cns::ANY_NAMESPACE => there().map(|ns| ns.shape.common(way(ns))),
            cns::NAMESPACE_CONTROLLERS | cns::CONTROLLERS => {
                if kind == cns::NAMESPACE_CONTROLLERS {
                    there()?;
                }
                let all = self.controllers.iter().flatten();
                let same = all.filter(|other| other.subsystem == controller.subsystem);
                let mut cntlids = same.map(|other| other.cntlid).collect();
                Ok(identify::controller_list(&mut cntlids, (sqe.cdw10.get() >> 16) as u16))
            }
            _ => unknown,
        }
    }

    /// What a namespace is here, by a controller's port.
    fn way(&self, controller: &Controller, namespace: &Namespace) -> identify::Way {
        let (ana, group) = (&self.offer.ana, namespace.ana_group);
        let keeps_reservations = self.keeps_reservations;
        if !ana.is_reported() {
            return identify::Way { keeps_reservations, ..identify::Way::default() };
        }
        let is_blocked = ana.check(controller.service, group).is_err();
        identify::Way { ana_group: group, is_blocked, keeps_reservations }
    }

    /// What a controller says of itself.
    fn describe(&self, controller: &Controller) -> identify::Controller<'_> {
        let subsystem = controller.subsystem.and_then(|at| self.offer.subsystem(at));
        identify::Controller {
            serial: subsystem.map_or("discovery", |it| &it.serial),
            model: subsystem.map_or("ferrocx nvmf-target", |it| &it.model),
            cntlid: controller.cntlid,
            is_discovery: subsystem.is_none(),
            subnqn: subsystem.map_or(DISCOVERY_NQN, |it| &it.nqn),
            mdts: match subsystem {
                Some(_) => self.settings.mdts,
                None => self.settings.discovery_mdts(),
            },
            entries: self.settings.entries,
            in_capsule_bytes: self.settings.in_capsule_bytes,
            max_nsid: super::subsystem::MAX_NSID,
            ana_groups: match subsystem {
                Some(_) if self.offer.ana.is_reported() => super::ana::MAX_GROUPS,
                _ => 0,
            },
        }
    }

    fn set_features(&mut self, at: usize, sqe: &Sqe) -> Done {
        let (cdw10, value) = (sqe.cdw10.get(), sqe.cdw11.get());
        let (most, silence) = (self.settings.io_queues, self.settings.longest_silence_ms());
        let now = self.now;
        let Some(controller) = self.controller(at) else { return Err(Status::INTERNAL) };
        let described = self.describe(controller);
        let (is_discovery, known) = (described.is_discovery, described.events());
        let Some(Some(controller)) = self.controllers.get_mut(at) else {
            return Err(Status::INTERNAL);
        };
        if cdw10 & 1 << 31 != 0 {
            return Err(Status::NOT_SAVEABLE.dnr());
        }
        match cdw10 as u8 {
            fid::EVENTS if value & !(known | events::SMART) == 0 => {
                controller.enable_events(value, &mut self.outbox);
                Ok((0, None))
            }
            fid::KEEP_ALIVE if value > silence => Err(Status::KEEP_ALIVE.dnr()),
            fid::KEEP_ALIVE => {
                controller.set_keep_alive(value);
                // It is a sign of life itself, which its core takes in a moment later: the new time
                // does not count from a sign that was early enough for the one of before.
                controller.last_seen = now;
                Ok((0, None))
            }
            fid::QUEUES if !is_discovery => {
                let (sq, cq) = (value as u16, (value >> 16) as u16);
                if sq == u16::MAX || cq == u16::MAX {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                if !controller.io_queues.is_empty() {
                    return Err(Status::SEQUENCE.dnr());
                }
                controller.granted = (sq.min(cq) + 1).min(most);
                let less_one = u64::from(controller.granted - 1);
                Ok((less_one << 16 | less_one, None))
            }
            // What is written may be in a cache: nothing turns that off.
            fid::WRITE_CACHE if !is_discovery => match value & 1 {
                1 => Ok((0, None)),
                _ => Err(Status::NOT_CHANGEABLE.dnr()),
            },
            // There is no temperature to compare with.
            fid::TEMPERATURE if !is_discovery => Ok((0, None)),
            fid::RESERVATION_NOTICES if !is_discovery => {
                if value & !0xe != 0 {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                match sqe.nsid.get() {
                    u32::MAX => {
                        let all = 1..=super::subsystem::MAX_NSID;
                        controller.unwanted = all.map(|nsid| (nsid, value)).collect();
                    }
                    nsid if (1..=super::subsystem::MAX_NSID).contains(&nsid) => {
                        controller.unwanted.insert(nsid, value);
                    }
                    _ => return Err(Status::INVALID_NAMESPACE.dnr()),
                }
                Ok((0, None))
            }
            // Nothing can outlive the target; where it can, `set_persistence` has this.
            fid::RESERVATION_PERSISTENCE if !is_discovery && value & 1 == 0 => Ok((0, None)),
            // Standard says: the host of a fabric is named when it connects.
            fid::HOST_ID if !is_discovery => Err(Status::SEQUENCE.dnr()),
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }

    fn get_features(&mut self, at: usize, sqe: &Sqe, out: &mut Vec<u8>) -> Done {
        let (cdw10, cdw11) = (sqe.cdw10.get(), sqe.cdw11.get());
        let Some(controller) = self.controller(at) else { return Err(Status::INTERNAL) };
        let described = self.describe(controller);
        // Only current values: none can be saved.
        if cdw10 >> 8 & 7 != 0 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        match cdw10 as u8 {
            fid::EVENTS => Ok((controller.enabled.into(), None)),
            fid::KEEP_ALIVE => {
                let ms = controller.keep_alive.map_or(0, |time| time.as_millis());
                Ok((u64::try_from(ms).unwrap_or(0), None))
            }
            fid::QUEUES if !described.is_discovery => {
                let less_one = u64::from(controller.granted.saturating_sub(1));
                Ok((less_one << 16 | less_one, None))
            }
            fid::WRITE_CACHE if !described.is_discovery => Ok((1, None)),
            fid::TEMPERATURE if !described.is_discovery => Ok((0, None)),
            fid::RESERVATION_NOTICES if !described.is_discovery => {
                let unwanted = controller.unwanted.get(&sqe.nsid.get()).copied();
                Ok((unwanted.unwrap_or(0).into(), None))
            }
            fid::RESERVATION_PERSISTENCE if !described.is_discovery => {
                let Some(subsystem) = controller.subsystem.filter(|_| self.keeps_reservations)
                else {
                    return Ok((0, None));
                };
                let reservation = self.persistence_of(subsystem, sqe.nsid.get())?;
                Ok((reservation.is_some_and(Reservation::persists).into(), None))
            }
            fid::HOST_ID if !described.is_discovery && cdw11 & 1 != 0 => {
                let to = destination(sqe, 16, 16)?;
                out.extend_from_slice(&controller.hostid);
                Ok((0, Some(to)))
            }
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }
}
