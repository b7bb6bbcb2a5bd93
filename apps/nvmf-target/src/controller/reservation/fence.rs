//! [`Fence`]: a Preempt and Abort that is answered when nothing of the preempted is under way.
//!
//! Their commands that come are refused from the change on. Those that had begun before it may
//! still land in the namespace: each core says when it has none of them any more, and ends the
//! queues of hosts whose commands take too long.
//!
//! Source: NVM Express base 1.4, "Preempting a Reservation or Registration" and "Preempt and
//! Abort".

use std::time::Duration;

use super::super::{Held, Queue, Target};
use super::HostId;
use crate::proto::sqe::Sqe;
use crate::proto::status::Status;

/// How long commands of a preempted host may take before their queues end.
const PATIENCE: Duration = Duration::from_secs(5);

/// An answer that waits for what others had begun.
#[derive(Debug)]
pub struct Fence {
    held: Held,
    /// The subsystem's place, and the number of its namespace.
    subsystem: usize,
    nsid: u32,
    preempted: Vec<HostId>,
    /// Cores that have nothing of them any more.
    clear: Vec<usize>,
    since: Duration,
}

impl Fence {
    /// Whether commands of a queue for a namespace are waited for.
    #[must_use]
    pub fn is_about(&self, queue: &Queue, nsid: u32) -> bool {
        (self.subsystem, self.nsid) == (queue.subsystem, nsid)
            && self.preempted.contains(&queue.hostid)
    }
}

impl Target {
    /// Polling cores that carry I/O commands out.
    pub fn set_cores(&mut self, cores: usize) {
        self.cores = cores;
    }

    /// Holds the answer to a command back until no core has anything of the preempted any more;
    /// whether there is a core that may have.
    pub(super) fn hold_back(
        &mut self,
        (queue, slot): (&Queue, u16),
        sqe: &Sqe,
        preempted: &[HostId],
    ) -> bool {
        if self.cores == 0 || preempted.is_empty() {
            return false;
        }
        let (cid, status) = (sqe.cid.get(), Status::SUCCESS);
        self.fences.push(Fence {
            held: Held { queue: queue.id, slot, cid, status, result: 0 },
            subsystem: queue.subsystem,
            nsid: sqe.nsid.get(),
            preempted: preempted.to_vec(),
            clear: Vec::new(),
            since: self.now,
        });
        true
    }

    /// Goes through what a core has not said to be clear of: `is_clear` says whether it is, and is
    /// told whether it took too long. What all cores are clear of is answered.
    pub fn look_at_fences(&mut self, core: usize, mut is_clear: impl FnMut(&Fence, bool) -> bool) {
        let now = self.now;
        for fence in self.fences.iter_mut().filter(|it| !it.clear.contains(&core)) {
            if is_clear(fence, now.saturating_sub(fence.since) > PATIENCE) {
                fence.clear.push(core);
            }
        }
        let Self { fences, outbox, cores, .. } = self;
        fences.retain(|it| {
            let is_up = it.clear.len() < *cores;
            outbox.extend((!is_up).then_some(it.held));
            is_up
        });
    }

    /// A queue has ended that may wait for an answer.
    pub(in crate::controller) fn forget_fences(&mut self, queue: u32) {
        self.fences.retain(|it| it.held.queue != queue);
    }
}
