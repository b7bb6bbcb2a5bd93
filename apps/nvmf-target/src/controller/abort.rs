//! [`Aborting`]: commands that hosts want taken back. Requests for events are at once; a command of
//! an I/O queue by the core that has the queue, if it still waits there. The answer says truly
//! which of the two it was: bit 0 of its result is 0 if the command was taken back.
//!
//! Source: NVM Express base 1.4, "Abort command"; reference 10.2.3.

use super::{Held, Queue, Target};
use crate::proto::identify::ABORTS;
use crate::proto::sqe::Sqe;
use crate::proto::status::Status;

/// The result of an Abort whose command was not taken back.
const NOT_ABORTED: u64 = 1;

/// An Abort that a core is to carry out.
#[derive(Debug)]
pub struct Aborting {
    held: Held,
    /// The transport's name of the queue that the command is on.
    pub queue: u32,
    /// The host's name of the command.
    pub cid: u16,
}

impl Target {
    /// Abort: its result, or `None` for one that is answered later.
    pub(super) fn abort(
        &mut self,
        at: usize,
        queue: &Queue,
        slot: u16,
        sqe: &Sqe,
    ) -> Result<Option<u64>, Status> {
        let (sqid, cid) = (sqe.cdw10.get() as u16, (sqe.cdw10.get() >> 16) as u16);
        let Some(Some(controller)) = self.controllers.get_mut(at) else {
            return Err(Status::INTERNAL);
        };
        if !controller.is_ready() {
            return Err(Status::SEQUENCE.dnr());
        }
        if controller.subsystem.is_none() {
            return Err(Status::INVALID_OPCODE.dnr());
        }
        if sqid == 0 {
            let is_done = controller.abort_request(cid, &mut self.outbox);
            return Ok(Some(if is_done { 0 } else { NOT_ABORTED }));
        }
        let found = controller.io_queues.iter().find(|(qid, _)| *qid == sqid);
        let (Some((_, its)), true) = (found, self.cores > 0) else { return Ok(Some(NOT_ABORTED)) };
        if self.aborts.iter().filter(|it| it.held.queue == queue.id).count() >= ABORTS {
            return Err(Status::ABORT_LIMIT.dnr());
        }
        let status = Status::SUCCESS;
        let held = Held { queue: queue.id, slot, cid: sqe.cid.get(), status, result: NOT_ABORTED };
        self.aborts.push(Aborting { held, queue: *its, cid });
        Ok(None)
    }

    /// An Abort of a command of a queue that the caller knows by its name.
    pub fn next_abort(&mut self, is_mine: impl Fn(u32) -> bool) -> Option<Aborting> {
        let at = self.aborts.iter().position(|it| is_mine(it.queue))?;
        Some(self.aborts.remove(at))
    }

    /// An Abort was carried out: its command was taken back and answered, or goes on.
    pub fn aborted(&mut self, it: Aborting, is_done: bool) {
        let result = if is_done { 0 } else { NOT_ABORTED };
        self.outbox.push(Held { result, ..it.held });
    }

    /// A queue has ended that Aborts came from, or were for.
    pub(super) fn forget_aborts(&mut self, queue: u32) {
        self.aborts.retain(|it| it.held.queue != queue);
        for it in self.aborts.extract_if(.., |it| it.queue == queue) {
            self.outbox.push(it.held);
        }
    }
}
