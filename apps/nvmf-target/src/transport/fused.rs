//! Compare and Write as one command: the first and the second of a fused pair.
//!
//! | step | when |
//! |---|---|
//! | the first waits, before all others of its queue | until the next command has come, or none may |
//! | the pair stands at the [`Gate`] of its namespace, alone | until what overlaps and came before has ended, on all cores |
//! | the Compare is carried out and answered | |
//! | the Write is, behind the same gate | if they were equal; else it ends with "failed fused command" |
//!
//! A gate is made for the first pair, and taken down some seconds after the last.
//!
//! Commands behind a pair in its queue wait until its Write has begun. Reads of memory pass the
//! gate: the port moves their bytes, and one beside a Write of any kind may see parts of both.
//!
//! # Source
//!
//! NVM Express base, "Fused Operations"; NVM command set, "Compare and Write"; reference 10.2.10.

use std::sync::Arc;
use std::time::Instant;

use ferrocx::verbs::Qp;

use super::execute::Work;
use super::gate::{EVERYTHING, Gate, Range};
use super::session::{Fused, Link, NEVER, Session, Slot, State, Why};
use super::{Backend, Server};
use crate::controller::io::{IoCommand, Kind};
use crate::proto::sqe::{Fuse, Sqe, io};
use crate::proto::status::Status;

/// What becomes of a command that is one of a pair, and waits first in its queue.
pub(super) enum Next {
    /// It waits on.
    Wait,
    /// It was answered.
    Answered,
    /// It is to be begun.
    Begin,
}

/// The gates of a target, by the places of back ends.
#[derive(Debug, Default)]
pub(super) struct Gates(Vec<(usize, Arc<Gate>)>);

impl Gates {
    /// The gate of a place, which is made for so many cores if there is none; whether it was.
    fn make(&mut self, place: usize, cores: usize) -> bool {
        let is_new = self.0.iter().all(|(at, _)| *at != place);
        if is_new {
            self.0.push((place, Arc::new(Gate::new(cores))));
        }
        is_new
    }

    /// The gate of a place, if there is one.
    fn at(&self, place: usize) -> Option<&Arc<Gate>> {
        self.0.iter().find(|(at, _)| *at == place).map(|(_, gate)| gate)
    }

    /// Takes those down that no pair has used for a while; whether there were any.
    fn take_down(&mut self, now: Instant) -> bool {
        let before = self.0.len();
        self.0.retain(|(_, gate)| !gate.take_down(now));
        self.0.len() < before
    }

    /// A back end has gone.
    pub(super) fn forget(&mut self, place: usize) {
        self.0.retain(|(at, _)| *at != place);
    }
}

/// Whether a command changes blocks, and which.
fn changes(command: &IoCommand) -> Option<Range> {
    match command.kind {
        Kind::Write | Kind::Zero { .. } => Some((command.offset, command.len)),
        Kind::Deallocate { .. } => Some(EVERYTHING),
        Kind::Read | Kind::Compare | Kind::Flush | Kind::Verify | Kind::Nothing => None,
    }
}

/// Whether two commands can be a pair.
fn is_pair(first: &Sqe, second: &Sqe) -> bool {
    let blocks = |it: &Sqe| (it.nsid.get(), it.slba(), it.block_count());
    (first.opcode, second.opcode) == (io::COMPARE, io::WRITE) && blocks(first) == blocks(second)
}

impl Work {
    /// A fused command has come, or a command is refused for another reason.
    #[cold]
    pub(super) fn refuse_or_fuse(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
        status: Status,
    ) -> Result<(), Why> {
        match it.sqe.fuse() {
            // It is the only one that waits: what comes next is its second, or none does.
            Fuse::First if status == Status::INVALID_FIELD.dnr() => self.wait(link, it),
            Fuse::Second if status == Status::INVALID_FIELD.dnr() => {
                self.refuse(qp, link, it, Status::MISSING_FUSED.dnr())
            }
            _ => self.refuse(qp, link, it, status),
        }
    }

    /// Looks at the command that has waited longest in a queue, if it is one of a pair.
    #[cold]
    pub(super) fn look_at_fused(
        &mut self,
        qp: &mut Qp,
        Session { link, slots }: &mut Session,
        index: u16,
    ) -> Result<Next, Why> {
        // What had begun may stand between the two.
        let is_new = |at: &&u16| slots.get(usize::from(**at)).is_some_and(|it| it.version == NEVER);
        let next = link.waiting.iter().find(is_new).copied();
        let behind = next.and_then(|at| slots.get(usize::from(at))).map(|it| it.sqe);
        let Some(it) = slots.get_mut(usize::from(index)) else { return Ok(Next::Answered) };
        if it.sqe.fuse() == Fuse::Second {
            return self.look_at_second(qp, link, it);
        }
        let Some(second) = behind else {
            if link.queue.is_ready() && !self.is_stopping {
                return Ok(Next::Wait);
            }
            // Nothing that comes now is its second; elsewhere both may do.
            self.refuse(qp, link, it, Status::MISSING_FUSED)?;
            return Ok(Next::Answered);
        };
        if second.fuse() != Fuse::Second {
            self.refuse(qp, link, it, Status::MISSING_FUSED.dnr())?;
            return Ok(Next::Answered);
        }
        if !is_pair(&it.sqe, &second) {
            self.refuse(qp, link, it, Status::INVALID_FIELD.dnr())?;
            link.waiting.retain(|at| Some(*at) != next);
            let other = next.and_then(|at| slots.get_mut(usize::from(at)));
            if let Some(other) = other {
                self.refuse(qp, link, other, Status::INVALID_FIELD.dnr())?;
            }
            return Ok(Next::Answered);
        }
        let alone = it.sqe.unfused();
        let command = match self.offer.io(&link.queue, &alone, it.received) {
            Ok(command) => command,
            Err(status) => {
                link.fused = Some(Fused::Failed);
                self.refuse(qp, link, it, status)?;
                return Ok(Next::Answered);
            }
        };
        if !self.stand_at_gate(it, &command, true) {
            return Ok(Next::Wait);
        }
        it.sqe = alone;
        link.fused = Some(Fused::Comparing(index));
        Ok(Next::Begin)
    }

    fn look_at_second(&mut self, qp: &mut Qp, link: &mut Link, it: &mut Slot) -> Result<Next, Why> {
        let status = match link.fused.take() {
            Some(Fused::Comparing(first)) => {
                link.fused = Some(Fused::Comparing(first));
                return Ok(Next::Wait);
            }
            Some(Fused::Equal(pass)) => {
                it.pass = pass;
                it.sqe = it.sqe.unfused();
                return Ok(Next::Begin);
            }
            Some(Fused::Failed) => Status::FAILED_FUSED,
            None => Status::MISSING_FUSED,
        };
        self.refuse(qp, link, it, status.dnr())?;
        Ok(Next::Answered)
    }

    /// Whether a command may change the blocks that it names, or a pair has them alone; it has a
    /// place at the gate then, or there is none. What may not is to wait, and to ask again.
    pub(super) fn stand_at_gate(
        &mut self,
        it: &mut Slot,
        command: &IoCommand,
        is_pair: bool,
    ) -> bool {
        let Some(Some(store)) = self.backends.get(command.backend) else { return true };
        let range = if is_pair { Some((command.offset, command.len)) } else { changes(command) };
        let Some(range) = range else { return true };
        let Some(gate) = &store.gate else {
            if is_pair {
                self.make_gate(command.backend);
            }
            return !is_pair;
        };
        // A place in one that was taken down is none in this one.
        it.pass.take_if(|pass| !pass.is_of(gate));
        if it.pass.is_none() {
            it.pass = gate.enter(range, is_pair);
        }
        match &it.pass {
            Some(pass) => pass.is_open(),
            // This one was taken down, and this core does not know yet.
            None => {
                self.make_gate(command.backend);
                false
            }
        }
    }

    /// Makes the gate of a back end; all cores hear of it.
    fn make_gate(&self, place: usize) {
        let cores = self.shared.cores();
        let is_new = self.shared.gates().make(place, cores);
        if is_new {
            self.target().tell_cores();
        }
    }

    /// Takes note of gates that this core did not know, and of those that were taken down.
    #[cold]
    pub(super) fn look_at_gates(&mut self) {
        let shared = Arc::clone(&self.shared);
        let gates = shared.gates();
        for (place, store) in self.backends.iter_mut().enumerate() {
            let Some(store) = store else { continue };
            match (gates.at(place), &store.gate) {
                (Some(gate), Some(known)) if Arc::ptr_eq(gate, known) => {}
                (Some(gate), _) => {
                    store.gate = Some(Arc::clone(gate));
                    store.backend.guard();
                    // This may be said of the one before, which nobody asks for any more.
                    if !self.unseen.contains(&place) {
                        self.unseen.push(place);
                    }
                }
                (None, Some(_)) => {
                    store.gate = None;
                    store.backend.guard_no_more();
                }
                (None, None) => {}
            }
        }
    }
}

impl Link {
    /// A command ends, and leaves its gate, if it stands at one. The second of a pair hears how the
    /// first ended, and has its place.
    #[inline]
    pub(super) fn leave(&mut self, it: &mut Slot, is_done: bool) {
        let pass = it.pass.take();
        if matches!(self.fused, Some(Fused::Comparing(first)) if first == it.index) {
            self.fused = Some(if is_done { Fused::Equal(pass) } else { Fused::Failed });
        }
    }
}

impl Server {
    /// Says of gates that this core changes nothing past them any more, once what it had begun
    /// before it knew them has ended.
    #[cold]
    pub(super) fn see_gates(&mut self) {
        let Self { sessions, work, .. } = self;
        let mut unseen = std::mem::take(&mut work.unseen);
        unseen.retain(|place| {
            let store = work.backends.get(*place).and_then(Option::as_ref);
            // One that was taken down needs nobody to have seen it.
            let Some(gate) = store.and_then(|it| it.gate.as_ref()) else { return false };
            let is_past = |session: &Session| session.changes_past(gate, *place);
            if sessions.iter_mut().any(|(_, session)| is_past(session)) {
                return true;
            }
            gate.see();
            false
        });
        work.unseen = unseen;
    }

    /// Takes gates down that no pair has used for a while, so that Writes go the fast way again;
    /// all cores hear of it.
    pub(super) fn take_gates_down(&self) {
        let any = self.shared.gates().take_down(Instant::now());
        if any {
            self.work.target().tell_cores();
        }
    }

    /// Namespaces whose Writes stand at a gate on this core, since a host has fused commands for
    /// them a moment ago.
    #[must_use]
    pub fn gates(&self) -> usize {
        self.work.backends.iter().flatten().filter(|it| it.gate.is_some()).count()
    }
}

impl Session {
    /// Whether a command is under way that changes blocks behind this place, and stands at no gate,
    /// or at one that was there before.
    fn changes_past(&self, gate: &Arc<Gate>, place: usize) -> bool {
        let is_there = |it: &Slot| it.command.backend == place;
        let is_under_way = |it: &Slot| {
            let has_begun = matches!(
                it.state,
                State::Reading(_) | State::Storing(..) | State::Calling | State::Settling
            );
            let is_in = it.pass.as_ref().is_some_and(|pass| pass.is_of(gate));
            has_begun && !is_in && is_there(it) && changes(&it.command).is_some()
        };
        // Of those in line only the place of their data is noted.
        let slot = |at: u16| self.slots.get(usize::from(at));
        self.slots.iter().any(is_under_way)
            || self.link.line.any(|at| slot(at).is_some_and(is_there))
    }
}

impl Backend {
    /// From now on Writes do not go past the gate.
    fn guard(&mut self) {
        if !matches!(self, Self::Outside(_) | Self::Guarded(_)) {
            *self = Self::Guarded(Box::new(self.clone()));
        }
    }

    /// From now on they do.
    fn guard_no_more(&mut self) {
        if let Self::Guarded(inner) = self {
            *self = Self::clone(inner);
        }
    }
}
