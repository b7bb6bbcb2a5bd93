//! [`Fence`]: a change of a reservation that is answered when all cores go by it, and a Preempt and
//! Abort when nothing of the preempted is under way.
//!
//! Cores check commands by copies of what is offered. Until each has the new one, a host that was
//! told of a change could find the rules of before at another core: its own Write refused, or one
//! of somebody whom it has preempted accepted. A core says so at its look at the clock, so an
//! answer takes some 20 ms more where there are several.
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

    /// Holds an answer back until all cores know of the change, and none has anything of the
    /// preempted for a namespace any more; whether there is a core that it waits for. One alone
    /// begins nothing between a change and its answer.
    pub(super) fn hold_back(
        &mut self,
        held: Held,
        (subsystem, nsid): (usize, u32),
        preempted: Vec<HostId>,
    ) -> bool {
        if self.cores == 0 || self.cores == 1 && preempted.is_empty() {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::controller::{Action, Namespace, Role, Settings, Subsystem};
    use crate::proto::cm::Request;
    use crate::proto::identify;
    use crate::proto::sgl::Sgl;
    use crate::proto::sqe::{Sqe, io};
    use crate::proto::status::Status;

    const NQN: &str = "nqn.2014-08.a:s";

    /// What a target of so many cores does with a registration.
    fn register(cores: usize) -> (Target, Action) {
        let mut target = Target::new(Settings::default());
        target.set_cores(cores);
        target.add_subsystem(Subsystem::new(NQN, "SN")).unwrap();
        let shape = identify::Namespace {
            blocks: 16,
            block_shift: 9,
            uuid: [1; 16],
            is_read_only: false,
            deallocates: false,
        };
        let namespace = Namespace { nsid: 1, shape, backend: 0, ana_group: 1 };
        target.put_namespace(NQN, namespace).unwrap();
        let (here, there) = ("192.0.2.1:4420".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let mut queue = Queue::new(7, &Request::default(), here, there);
        queue.role = Role::Io(0);
        queue.joined(0, HostId::nameless([2; 16]), Arc::new(AtomicBool::new(true)));
        let keys = [[0; 8], 1u64.to_le_bytes()].concat();
        let sgl = Sgl::InCapsule { offset: 0, len: 16 };
        let sqe = Sqe { nsid: 1.into(), ..Sqe::new(io::RESERVATION_REGISTER, 5, sgl) };
        let action = target.command(&mut queue, 3, &sqe, &keys, &mut Vec::new());
        (target, action)
    }

    #[test]
    fn a_change_is_answered_when_all_cores_go_by_it() {
        for cores in 0..=1 {
            let (_, action) = register(cores);
            assert!(matches!(action, Action::Answer(cqe) if cqe.status() == Status::SUCCESS));
        }
        let (mut target, action) = register(3);
        assert!(matches!(action, Action::Hold));
        for core in [1, 0, 1] {
            target.look_at_fences(core, |fence, _| fence.preempted.is_empty());
            assert!(target.next_held(|_| true).is_none(), "behind core {core}");
        }
        target.look_at_fences(2, |_, _| true);
        let expected = Held { queue: 7, slot: 3, cid: 5, status: Status::SUCCESS, result: 0 };
        assert_eq!(target.next_held(|_| true), Some(expected));
    }
}
