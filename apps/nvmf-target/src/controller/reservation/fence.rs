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

    /// Holds an answer back until no core has anything of the preempted for a namespace any more;
    /// whether there is a core that may have.
    pub(super) fn hold_back(
        &mut self,
        held: Held,
        (subsystem, nsid): (usize, u32),
        preempted: Vec<HostId>,
    ) -> bool {
        if self.cores == 0 || preempted.is_empty() {
            return false;
        }
        let (clear, since) = (Vec::new(), self.now);
        self.fences.push(Fence { held, subsystem, nsid, preempted, clear, since });
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
