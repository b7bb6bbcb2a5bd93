//! Reservations that outlive the target (PTPL, "persist through power loss"): [`Save`], a change
//! that is made when it is on disk, or not at all.
//!
//! The command that asks for such a change is held. What is to be on disk is handed out by
//! [`Target::next_save`], and [`Target::saved`] says how that went: then the change is made,
//! registrants are told, and the command is answered. So whatever a host was told is there after a
//! restart, and what a restart may bring that no host was told is a change that somebody asked for
//! at that very moment. Commands for the same namespace that come meanwhile wait, and are begun
//! again; its blocks are read and written by the old rules.
//!
//! Source: NVM Express base 1.4, "Reservations", "Reservation Register", "Reservation Persistence";
//! reference 10.1.10.

use super::super::{Held, Queue, Target};
use super::{HostId, Reservation, Told};
use crate::proto::sqe::Sqe;
use crate::proto::status::Status;

/// Commands that wait for one change at most: more are sent back.
const MAX_WAITING: usize = 32;

/// What is to be on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Save {
    /// Its name, for [`Target::saved`].
    pub number: u64,
    /// Identifier of the namespace.
    pub uuid: [u8; 16],
    /// The reservation as text; `None` for one that does not outlive the target any more.
    pub text: Option<String>,
}

/// A change of a namespace's reservation.
#[derive(Debug)]
pub(super) struct Change {
    /// Place of the subsystem, and number of the namespace.
    pub(super) subsystem: usize,
    pub(super) nsid: u32,
    pub(super) changed: Reservation,
    /// Who is told.
    pub(super) told: Told,
    /// Whose commands are waited for before it is answered.
    pub(super) preempted: Vec<HostId>,
}

/// A change that is made when it is on disk.
#[derive(Debug)]
pub(in crate::controller) struct Pending {
    number: u64,
    uuid: [u8; 16],
    change: Change,
    /// The answer, if its queue is still there.
    held: Option<Held>,
    /// Queues and slots of commands that wait for it.
    waiting: Vec<(u32, u16)>,
}

/// The answer to a command that is held, if it goes well.
pub(super) fn held_of(queue: &Queue, slot: u16, sqe: &Sqe) -> Held {
    let (cid, status) = (sqe.cid.get(), Status::SUCCESS);
    Held { queue: queue.id, slot, cid, status, result: 0 }
}

impl Target {
    /// There is a place for reservations that are to outlive the target: hosts are told so.
    pub fn keep_reservations(&mut self) {
        self.keeps_reservations = true;
    }

    /// Whether reservations may outlive the target.
    #[must_use]
    pub fn keeps_reservations(&self) -> bool {
        self.keeps_reservations
    }

    /// Puts back what was kept of a namespace that is about to be offered.
    pub fn restore_reservation(&mut self, nqn: &str, nsid: u32, kept: Reservation) {
        if let Some(at) = self.position(nqn) {
            self.change(at, |it| it.reservations.insert(nsid, kept));
        }
    }

    /// Whether a command has to wait for a change of the same namespace that is not on disk yet;
    /// it is begun again then.
    pub(super) fn stands_behind(
        &mut self,
        (subsystem, nsid): (usize, u32),
        command: (u32, u16),
    ) -> Result<bool, Status> {
        let is_same =
            |it: &&mut Pending| (it.change.subsystem, it.change.nsid) == (subsystem, nsid);
        let Some(before) = self.pending.iter_mut().find(is_same) else { return Ok(false) };
        if before.waiting.len() >= MAX_WAITING {
            return Err(Status::INTERRUPTED);
        }
        before.waiting.push(command);
        Ok(true)
    }

    /// Makes a change, at once if nothing of it is to be on disk; whether its answer is held.
    pub(super) fn carry_out(&mut self, change: Change, before: &Reservation, held: Held) -> bool {
        // What changes nothing is told nobody, and no core looks again at what is offered.
        if change.changed == *before {
            return false;
        }
        let is_kept = before.persists || change.changed.persists;
        let namespace =
            self.offer.subsystem(change.subsystem).and_then(|it| it.namespace(change.nsid));
        let Some(namespace) = namespace.filter(|_| is_kept) else {
            return self.make(change, Some(held));
        };
        let uuid = namespace.shape.uuid;
        self.saves += 1;
        let number = self.saves;
        let text = change.changed.persists.then(|| change.changed.text(uuid));
        self.to_save.push(Save { number, uuid, text });
        let held = Some(held);
        self.pending.push(Pending { number, uuid, change, held, waiting: Vec::new() });
        true
    }

    /// Makes a change; whether its answer is held back for what the preempted had begun.
    fn make(&mut self, change: Change, held: Option<Held>) -> bool {
        let Change { subsystem, nsid, changed, told, preempted } = change;
        self.change(subsystem, |it| it.reservations.insert(nsid, changed));
        self.tell_registrants(subsystem, nsid, &told);
        held.is_some_and(|held| self.hold_back(held, (subsystem, nsid), preempted))
    }

    /// What is to be brought to disk, the oldest first.
    pub fn next_save(&mut self) -> Option<Save> {
        (!self.to_save.is_empty()).then(|| self.to_save.remove(0))
    }

    /// A [`Save`] is on disk, or could not be brought there.
    pub fn saved(&mut self, number: u64, is_saved: bool) {
        let Some(at) = self.pending.iter().position(|it| it.number == number) else { return };
        let Pending { uuid, change, held, waiting, .. } = self.pending.remove(at);
        self.again.extend(waiting);
        let subsystem = self.offer.subsystem(change.subsystem);
        let namespace = subsystem.and_then(|it| it.namespace(change.nsid));
        let is_there = namespace.is_some_and(|it| it.shape.uuid == uuid);
        let status = match (is_saved, is_there) {
            (true, true) if self.make(change, held) => return,
            (true, true) => Status::SUCCESS,
            (true, false) => Status::INVALID_NAMESPACE.dnr(),
            (false, _) => Status::INTERNAL,
        };
        self.outbox.extend(held.map(|held| Held { status, ..held }));
    }

    /// A queue has ended that may wait for a change.
    pub(in crate::controller) fn forget_saves(&mut self, queue: u32) {
        for it in &mut self.pending {
            it.held = it.held.filter(|held| held.queue != queue);
            it.waiting.retain(|(waits, _)| *waits != queue);
        }
    }

    /// Sets whether the reservation of a namespace outlives the target, by Set Features; whether
    /// the answer is held.
    pub(in crate::controller) fn set_persistence(
        &mut self,
        subsystem: usize,
        (queue, slot): (&Queue, u16),
        sqe: &Sqe,
    ) -> Result<bool, Status> {
        let (nsid, persists) = (sqe.nsid.get(), sqe.cdw11.get() & 1 != 0);
        let before = self.persistence_of(subsystem, nsid)?.cloned().unwrap_or_default();
        if self.stands_behind((subsystem, nsid), (queue.id, slot))? {
            return Ok(true);
        }
        let changed = Reservation { persists, ..before.clone() };
        let change = Change { subsystem, nsid, changed, told: Vec::new(), preempted: Vec::new() };
        Ok(self.carry_out(change, &before, held_of(queue, slot, sqe)))
    }

    /// The reservation whose persistence a feature command names, if there is one.
    pub(in crate::controller) fn persistence_of(
        &self,
        subsystem: usize,
        nsid: u32,
    ) -> Result<Option<&Reservation>, Status> {
        // There is none of all namespaces together.
        if nsid == u32::MAX {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let subsystem = self.offer.subsystem(subsystem).filter(|it| it.namespace(nsid).is_some());
        Ok(subsystem.ok_or(Status::INVALID_NAMESPACE.dnr())?.reservation(nsid))
    }
}
