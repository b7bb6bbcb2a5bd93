//! Connect: who may have a controller, and whose queues are whose.

use super::auth::Auth;
use super::reservation::HostId;
use super::share::Newcomers;
use super::state::{Controller, Stranger};
use super::{Queue, Role, Target};
use crate::proto::connect::{
    ADMIN_ENTRIES, ANY_CONTROLLER, AUTH_REQUIRED, CONNECT_BYTES, ConnectData, DISCOVERY_NQN,
    NO_FLOW_CONTROL,
};
use crate::proto::sgl::{Keyed, Sgl, in_capsule};
use crate::proto::sqe::{Cqe, Sqe};
use crate::proto::status::Status;
use zerocopy::FromBytes;

/// A refusal: status, and the result that says which field.
type Refusal = (Status, u64);

/// A parameter of the data is wrong.
fn in_data(at: u16) -> Refusal {
    (Status::CONNECT_PARAMETER.dnr(), u64::from(at) | 1 << 16)
}

/// A parameter of the command is wrong.
fn in_command(at: u16) -> Refusal {
    (Status::CONNECT_PARAMETER.dnr(), u64::from(at))
}

/// Offsets in the command.
const QID_AT: u16 = 42;
const SQSIZE_AT: u16 = 44;

/// Where the data of a Connect are.
pub(super) enum Place {
    /// In the host's memory.
    Host(Keyed),
    /// In the capsule.
    Capsule(std::ops::Range<usize>),
}

/// Finds the data of a Connect, which has its whole length or none at all.
pub(super) fn place(sqe: &Sqe, received: usize) -> Result<Place, Status> {
    sqe.check_flags()?;
    let sgl = Sgl::parse(&sqe.sgl)?;
    if sgl.len() as usize != CONNECT_BYTES {
        return Err(Status::DATA_LENGTH.dnr());
    }
    Ok(match sgl {
        Sgl::Keyed(keyed) => Place::Host(keyed),
        Sgl::InCapsule { offset, len } => Place::Capsule(in_capsule(offset, len, received)?),
    })
}

impl Target {
    /// Carries a Connect out.
    pub(super) fn connect(&mut self, queue: &mut Queue, sqe: &Sqe, data: &[u8]) -> Cqe {
        let cid = sqe.cid.get();
        let done = self.try_connect(queue, sqe, data);
        let (status, result) = match done {
            Ok(result) => (Status::SUCCESS, u64::from(result)),
            Err(refusal) => refusal,
        };
        queue.answer(cid, status, result)
    }

    fn try_connect(&mut self, queue: &mut Queue, sqe: &Sqe, data: &[u8]) -> Result<u32, Refusal> {
        if queue.role != Role::Unconnected || queue.has_left() {
            return Err((Status::SEQUENCE.dnr(), 0));
        }
        let Ok(data) = ConnectData::read_from_bytes(data) else {
            return Err((Status::DATA_LENGTH.dnr(), 0));
        };
        let (recfmt, qid) = (sqe.cdw10.get() as u16, (sqe.cdw10.get() >> 16) as u16);
        let (sqsize, cattr) = (sqe.cdw11.get() as u16, (sqe.cdw11.get() >> 16) as u8);
        if recfmt != 0 {
            return Err((Status::CONNECT_FORMAT.dnr(), 0));
        }
        if qid != queue.qid {
            return Err(in_command(QID_AT));
        }
        let limit = if qid == 0 { ADMIN_ENTRIES } else { self.settings.entries };
        let entries = u32::from(sqsize) + 1;
        // No more than the connection has receives for.
        if sqsize == 0 || entries > u32::from(limit.min(queue.entries())) {
            return Err(in_command(SQSIZE_AT));
        }
        let (Some(subnqn), Some(hostnqn)) = (data.subnqn(), data.hostnqn()) else {
            let is_subsystem = data.subnqn().is_none();
            let at = if is_subsystem { ConnectData::SUBNQN_AT } else { ConnectData::HOSTNQN_AT };
            return Err(in_data(at));
        };
        let host = (hostnqn, data.hostid);
        let at = if qid == 0 {
            self.new_controller(queue, data.cntlid.get(), subnqn, host, sqe.cdw12.get())?
        } else {
            self.join(queue, data.cntlid.get(), subnqn, host)?
        };
        let role = if qid == 0 { Role::Admin(at) } else { Role::Io(at) };
        let has_flow_control = cattr & NO_FLOW_CONTROL == 0;
        queue.connected(role, entries as u16, has_flow_control);
        let Some(controller) = self.controller(at) else { return Err((Status::INTERNAL, 0)) };
        let (subsystem_at, registrant) = (controller.subsystem, controller.registrant);
        let result = u32::from(controller.cntlid);
        let subsystem = controller.subsystem.and_then(|at| self.offer.subsystem(at));
        let key = subsystem.and_then(|it| it.key(hostnqn));
        let mut ready = matches!(role, Role::Io(_)).then(|| controller.ready.clone());
        let is_asked = key.is_some();
        if let Some(key) = key {
            // What an I/O queue waits for is said to it when its host is known.
            queue.auth = Some(Auth::new(key, self.now, ready.take()));
        }
        let is_elsewhere = self.controller(at).is_some_and(|it| it.peer != queue.peer);
        if is_asked && is_elsewhere {
            self.make_way(Newcomers::Keyless, false);
        }
        let since = self.now;
        if let (Role::Io(_), Some(controller)) = (role, self.controller_mut(at)) {
            let (queue, peer, is_doomed) = (queue.id, queue.peer, false);
            match is_asked {
                true => controller.strangers.push(Stranger { queue, peer, since, is_doomed }),
                false => controller.io_queues.push((qid, queue)),
            }
        }
        if let (Role::Io(_), Some(subsystem)) = (role, subsystem_at) {
            queue.joined(subsystem, registrant, ready.unwrap_or_default());
        }
        if let (Role::Admin(at), true) = (role, is_asked)
            && let Some(controller) = self.controller_mut(at)
        {
            controller.is_strange = true;
        }
        Ok(if is_asked { result | AUTH_REQUIRED } else { result })
    }

    /// Makes a controller; its place.
    fn new_controller(
        &mut self,
        queue: &Queue,
        cntlid: u16,
        subnqn: &str,
        host: (&str, [u8; 16]),
        keep_alive_ms: u32,
    ) -> Result<usize, Refusal> {
        if cntlid != ANY_CONTROLLER {
            return Err(in_data(ConnectData::CNTLID_AT));
        }
        let subsystem = match subnqn {
            DISCOVERY_NQN => None,
            nqn => {
                let at = self.position(nqn).ok_or(in_data(ConnectData::SUBNQN_AT))?;
                if !self.offer.subsystem(at).is_some_and(|it| it.allows(host.0)) {
                    let at = u64::from(ConnectData::HOSTNQN_AT) | 1 << 16;
                    return Err((Status::CONNECT_HOST.dnr(), at));
                }
                Some(at)
            }
        };
        // Without "do not retry": another host may go.
        let full = (Status::CONNECT_BUSY, 0);
        if keep_alive_ms > self.settings.longest_silence_ms() {
            return Err((Status::KEEP_ALIVE.dnr(), 0));
        }
        if self.has_its_share(queue.peer, subsystem.is_none()) {
            return Err(full);
        }
        if subsystem.is_some_and(|at| self.still_writes(at, host)) {
            return Err(full);
        }
        let newcomers = match subsystem.map(|at| self.offer.subsystem(at)) {
            None => Some(Newcomers::Discovery),
            Some(it) => it.and_then(|it| it.key(host.0)).map(|_| Newcomers::Keyless),
        };
        if let Some(newcomers) = newcomers {
            self.make_way(newcomers, self.is_full());
        }
        if self.is_full() {
            return Err(full);
        }
        let mut places = self.controllers.iter().enumerate();
        let free = places.find(|(at, it)| it.is_none() && !self.is_kept(*at)).map(|(at, _)| at);
        let at = free.unwrap_or_else(|| {
            self.controllers.push(None);
            self.controllers.len() - 1
        });
        let cntlid = self.take_cntlid();
        let mut controller = Controller::new(cntlid, subsystem, host, queue, self.now);
        if newcomers == Some(Newcomers::Keyless) {
            controller.registrant = HostId::named(host.1, host.0);
        }
        controller.set_keep_alive(keep_alive_ms);
        self.controllers[at] = Some(controller);
        Ok(at)
    }

    /// Whether there are as many controllers as there may be. One that has ended counts no more,
    /// though its queues go yet: there are never more controllers than queues.
    fn is_full(&self) -> bool {
        let live = self.controllers.iter().flatten().filter(|it| !it.is_failed());
        live.count() + self.kept() >= usize::from(self.settings.controllers)
    }

    /// A number that no controller has: there are more of them than controllers.
    fn take_cntlid(&mut self) -> u16 {
        loop {
            let cntlid = self.next_cntlid;
            self.next_cntlid = if cntlid >= Self::LAST_CNTLID { 1 } else { cntlid + 1 };
            if self.controllers.iter().flatten().all(|controller| controller.cntlid != cntlid) {
                return cntlid;
            }
        }
    }

    /// Finds the controller of an I/O queue, which takes one of its number; the controller's place.
    /// Hosts may have several addresses: from which of them the queue comes is not asked.
    fn join(
        &self,
        queue: &Queue,
        cntlid: u16,
        subnqn: &str,
        host: (&str, [u8; 16]),
    ) -> Result<usize, Refusal> {
        let subsystem = self.position(subnqn).ok_or(in_data(ConnectData::SUBNQN_AT))?;
        let is_it = |controller: &Controller| {
            controller.cntlid == cntlid
                && controller.subsystem == Some(subsystem)
                && controller.service == queue.local.port()
                && (controller.hostnqn.as_str(), controller.hostid) == host
        };
        let at = self.controllers.iter().position(|slot| slot.as_ref().is_some_and(is_it));
        let at = at.ok_or(in_data(ConnectData::CNTLID_AT))?;
        let Some(controller) = self.controller(at) else {
            return Err(in_data(ConnectData::CNTLID_AT));
        };
        if !controller.takes_io() || queue.qid > controller.granted {
            return Err(in_command(QID_AT));
        }
        if controller.has_io_queue(queue.qid) {
            // The one before may be going down.
            return Err((Status::SEQUENCE, 0));
        }
        Ok(at)
    }
}
