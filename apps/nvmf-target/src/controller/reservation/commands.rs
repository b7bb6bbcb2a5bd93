//! Commands of reservations: they come on I/O queues, and are none of I/O: every core has to know
//! what they change.

use super::super::admin::{destination, part};
use super::super::state::Controller;
use super::super::{Action, Queue, Subsystem, Target};
use super::{HostId, Notice, PREEMPT_AND_ABORT, Reservation, Told};
use crate::proto::sgl::{Sgl, in_capsule};
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
            Err(status) => self.refused(queue, sqe, status),
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
        match self.reserve(queue, sqe, data) {
            Ok(preempted) if self.hold_back((queue, slot), sqe, &preempted) => Action::Hold,
            Ok(_) => Action::Answer(queue.answer(sqe.cid.get(), Status::SUCCESS, 0)),
            Err(status) => self.refused(queue, sqe, status),
        }
    }

    fn refused(&mut self, queue: &mut Queue, sqe: &Sqe, status: Status) -> Action {
        self.note_io_error(queue, sqe, status);
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
                    it.subsystem == Some(queue.subsystem) && it.hostid == *hostid
                };
                all.filter(is_his).map(|it| it.cntlid).collect()
            };
            let none = Reservation::default();
            let page = subsystem.reservations.get(&nsid).unwrap_or(&none).report(cntlids);
            part(out, &page, (0, len as usize));
            let cqe = queue.answer(sqe.cid.get(), Status::SUCCESS, 0);
            return Ok(Action::Bring { cqe, len: len as u32, to });
        }
        let needed = data_bytes(sqe.opcode);
        let sgl = Sgl::parse(&sqe.sgl)?;
        if sgl.len() as usize != needed {
            return Err(Status::DATA_LENGTH.dnr());
        }
        match sgl {
            Sgl::Keyed(from) => Ok(Action::Fetch { from, len: from.len }),
            Sgl::InCapsule { offset, len } => {
                let range = in_capsule(offset, len, data.len())?;
                Ok(self.reserved(queue, slot, sqe, &data[range]))
            }
        }
    }

    /// Carries one out; whose commands are to be waited for before it is answered.
    fn reserve(&mut self, queue: &Queue, sqe: &Sqe, data: &[u8]) -> Result<Vec<HostId>, Status> {
        let (nsid, at, hostid) = (sqe.nsid.get(), queue.subsystem, queue.hostid);
        if data.len() < data_bytes(sqe.opcode) {
            return Err(Status::DATA_LENGTH.dnr());
        }
        let subsystem = self.reservable(queue, nsid)?;
        let mut changed = subsystem.reservations.get(&nsid).cloned().unwrap_or_default();
        let (cdw10, keys) = (sqe.cdw10.get(), (key(data, 0), key(data, 8)));
        let told = match sqe.opcode {
            io::RESERVATION_REGISTER => changed.register(&hostid, cdw10, keys)?,
            io::RESERVATION_ACQUIRE => changed.acquire(&hostid, cdw10, keys)?,
            _ => changed.release(&hostid, cdw10, keys.0)?,
        };
        self.change(|all| {
            if let Some(subsystem) = &mut all[at] {
                subsystem.reservations.insert(nsid, changed);
            }
        });
        self.tell_registrants(at, nsid, &told);
        if sqe.opcode != io::RESERVATION_ACQUIRE || cdw10 & 7 != PREEMPT_AND_ABORT {
            return Ok(Vec::new());
        }
        let out = told.iter().filter(|(_, notice)| *notice == Notice::RegistrationPreempted);
        Ok(out.map(|(hostid, _)| *hostid).collect())
    }

    fn tell_registrants(&mut self, subsystem: usize, nsid: u32, told: &Told) {
        for controller in self.controllers.iter_mut().flatten() {
            for (hostid, notice) in told {
                if controller.subsystem == Some(subsystem) && controller.hostid == *hostid {
                    controller.note_reservation(nsid, *notice, &mut self.outbox);
                }
            }
        }
    }
}
