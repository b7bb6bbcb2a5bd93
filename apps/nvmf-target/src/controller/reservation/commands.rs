//! Commands of reservations: they come on I/O queues, and are none of I/O: every core has to know
//! what they change.

use super::super::admin::{destination, start};
use super::super::state::Controller;
use super::super::{Action, Queue, Subsystem, Target};
use super::persist::{Change, held_of};
use super::{HostId, Notice, PREEMPT_AND_ABORT, Reservation, Told};
use crate::proto::sgl::{Keyed, Sgl, in_capsule};
use crate::proto::sqe::{Sqe, io};
use crate::proto::status::Status;

/// Bytes that a command brings: its key, and of two of them another.
fn data_bytes(opcode: u8) -> usize {
    if opcode == io::RESERVATION_RELEASE { 8 } else { 16 }
}

fn key(data: &[u8], at: usize) -> u64 {
    let bytes = data.get(at..at + 8).and_then(|it| it.try_into().ok());
    u64::from_le_bytes(bytes.unwrap_or_default())
}

impl Target {
    /// Carries a command of reservations out; `data` came behind it.
    pub(in crate::controller) fn reservation(
        &mut self,
        queue: &mut Queue,
        slot: u16,
        sqe: &Sqe,
        (data, out): (&[u8], &mut Vec<u8>),
    ) -> Action {
        match self.try_reservation(queue, slot, sqe, (data, out)) {
            Ok(action) => action,
            Err(status) => Self::refused(queue, sqe, status),
        }
    }

    /// Carries one out whose data have come, and answers.
    pub(in crate::controller) fn reserved(
        &mut self,
        queue: &mut Queue,
        slot: u16,
        sqe: &Sqe,
        data: &[u8],
    ) -> Action {
        match self.reserve((queue, slot), sqe, data) {
            Ok(true) => Action::Hold,
            Ok(false) => Action::Answer(queue.answer(sqe.cid.get(), Status::SUCCESS, 0)),
            Err(status) => Self::refused(queue, sqe, status),
        }
    }

    fn refused(queue: &mut Queue, sqe: &Sqe, status: Status) -> Action {
        queue.note_failure(sqe, status);
        Action::Answer(queue.answer(sqe.cid.get(), status, 0))
    }

    /// The subsystem of a queue, if there is a way to its namespace.
    fn reservable(&self, queue: &Queue, nsid: u32) -> Result<&Subsystem, Status> {
        let subsystem = self.offer.subsystem(queue.subsystem);
        let found = subsystem.and_then(|it| Some((it, it.namespace(nsid)?)));
        let (subsystem, namespace) = found.ok_or(Status::INVALID_NAMESPACE.dnr())?;
        self.offer.ana.check(queue.local.port(), namespace.ana_group)?;
        Ok(subsystem)
    }

    fn try_reservation(
        &mut self,
        queue: &mut Queue,
        slot: u16,
        sqe: &Sqe,
        (data, out): (&[u8], &mut Vec<u8>),
    ) -> Result<Action, Status> {
        if !queue.is_ready() {
            return Err(queue.refusal());
        }
        sqe.check_flags()?;
        let nsid = sqe.nsid.get();
        let subsystem = self.reservable(queue, nsid)?;
        if sqe.opcode == io::RESERVATION_REPORT {
            if sqe.cdw11.get() & 1 == 0 {
                return Err(Status::HOST_ID_FORMAT.dnr());
            }
            let len = (u64::from(sqe.cdw10.get()) + 1) * 4;
            let to = destination(sqe, len, self.settings.max_transfer())?;
            let cntlids = |hostid: &HostId| {
                let all = self.controllers.iter().flatten();
                let is_his = |it: &&Controller| {
                    it.subsystem == Some(queue.subsystem) && it.registrant == *hostid
                };
                all.filter(is_his).map(|it| it.cntlid).collect()
            };
            let none = Reservation::default();
            let page = subsystem.reservation(nsid).unwrap_or(&none).report(cntlids);
            start(out, &page, len as usize);
            let cqe = queue.answer(sqe.cid.get(), Status::SUCCESS, 0);
            return Ok(Action::Bring { cqe, len: len as u32, to });
        }
        // Before its data are fetched: it would be begun again, and they with it.
        if self.stands_behind((queue.subsystem, nsid), (queue.id, slot))? {
            return Ok(Action::Hold);
        }
        let needed = data_bytes(sqe.opcode);
        let sgl = Sgl::parse(&sqe.sgl)?;
        // Linux 6.12 describes 16 bytes for a Release, too, by the calls of its own.
        if (sgl.len() as usize) < needed {
            return Err(Status::DATA_LENGTH.dnr());
        }
        let len = needed as u32;
        match sgl {
            Sgl::Keyed(from) => Ok(Action::Fetch { from: Keyed { len, ..from }, len }),
            Sgl::InCapsule { offset, len } => {
                let range = in_capsule(offset, len, data.len())?;
                Ok(self.reserved(queue, slot, sqe, &data[range]))
            }
        }
    }

    /// Carries one out; whether its answer is held.
    fn reserve(
        &mut self,
        (queue, slot): (&Queue, u16),
        sqe: &Sqe,
        data: &[u8],
    ) -> Result<bool, Status> {
        let (nsid, at, hostid) = (sqe.nsid.get(), queue.subsystem, queue.hostid);
        if data.len() < data_bytes(sqe.opcode) {
            return Err(Status::DATA_LENGTH.dnr());
        }
        let subsystem = self.reservable(queue, nsid)?;
        let before = subsystem.reservation(nsid).cloned().unwrap_or_default();
        if self.stands_behind((at, nsid), (queue.id, slot))? {
            return Ok(true);
        }
        let mut changed = before.clone();
        let (cdw10, keys) = (sqe.cdw10.get(), (key(data, 0), key(data, 8)));
        let told = match sqe.opcode {
            // There is no place for what is to outlive the target.
            io::RESERVATION_REGISTER if cdw10 >> 30 == 3 && !self.keeps_reservations() => {
                return Err(Status::INVALID_FIELD.dnr());
            }
            io::RESERVATION_REGISTER => changed.register(&hostid, cdw10, keys)?,
            io::RESERVATION_ACQUIRE => changed.acquire(&hostid, cdw10, keys)?,
            _ => changed.release(&hostid, cdw10, keys.0)?,
        };
        let aborts = sqe.opcode == io::RESERVATION_ACQUIRE && cdw10 & 7 == PREEMPT_AND_ABORT;
        let out = told.iter().filter(|(_, it)| aborts && *it == Notice::RegistrationPreempted);
        let preempted = out.map(|(hostid, _)| *hostid).collect();
        let change = Change { subsystem: at, nsid, changed, told, preempted };
        Ok(self.carry_out(change, &before, held_of(queue, slot, sqe)))
    }

    pub(super) fn tell_registrants(&mut self, subsystem: usize, nsid: u32, told: &Told) {
        for controller in self.controllers.iter_mut().flatten() {
            for (hostid, notice) in told {
                if controller.subsystem == Some(subsystem) && controller.registrant == *hostid {
                    controller.note_reservation(nsid, *notice, &mut self.outbox);
                }
            }
        }
    }
}
