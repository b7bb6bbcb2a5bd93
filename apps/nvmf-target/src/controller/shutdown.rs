//! [`Closing`]: a controller whose host shuts it down. What hosts have written is on its medium
//! before the shutdown is said to be complete.
//!
//! | step | ends when |
//! |---|---|
//! | its I/O queues take nothing more | the host sets `CC.SHN` |
//! | what had begun on them ends | every core has said so |
//! | whatever is behind the subsystem's namespaces is flushed, by the first core | it was |
//! | `CSTS.SHST` says complete | |
//!
//! A controller has one shutdown: it ends when the controller is disabled or enabled. A subsystem
//! has one flush under way: who asks meanwhile waits for the next, which is for all of them.
//!
//! A flush that fails leaves the shutdown incomplete and the controller failed: its host must not
//! believe that its data are safe.
//!
//! Source: NVM Express base 1.4, "Controller Status", "Controller Shutdown"; reference 10.1.6.

use super::{Queue, Role, Subsystem, Target};
use crate::proto::property;

/// A controller whose host shuts it down.
#[derive(Debug)]
pub struct Closing {
    /// Which shutdown it is.
    number: u64,
    /// Its place, which its I/O queues name.
    at: usize,
    /// Cores that have nothing of it under way any more.
    clear: Vec<usize>,
}

impl Closing {
    /// Whether a queue is one of the controller's I/O queues: that of a stranger is none.
    #[must_use]
    pub fn is_about(&self, queue: &Queue) -> bool {
        queue.role == Role::Io(self.at) && queue.is_authenticated()
    }
}

/// A shutdown that waits for a flush.
#[derive(Debug)]
pub(super) struct Unflushed {
    number: u64,
    /// Place of the subsystem.
    subsystem: usize,
}

/// What is to be flushed for controllers that shut down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flushing {
    /// Which shutdowns it is for: no other one ever has the number.
    pub numbers: Vec<u64>,
    /// Place of their subsystem.
    pub subsystem: usize,
    /// Places of back ends.
    pub backends: Vec<usize>,
}

impl Target {
    /// The host of a controller wants it shut down. One that is, or is about to be, stays so.
    pub(super) fn shut_down(&mut self, at: usize) {
        let cores = self.cores;
        let Some(controller) = self.controllers.get_mut(at).and_then(Option::as_mut) else {
            return;
        };
        if controller.csts() & property::CSTS_SHST != 0 {
            return;
        }
        controller.abort_requests(&mut self.outbox);
        let is_done = controller.subsystem.is_none() || cores == 0;
        let state =
            if is_done { property::CSTS_SHST_COMPLETE } else { property::CSTS_SHST_OCCURRING };
        controller.set_csts(controller.csts() | state);
        if !is_done {
            self.shutdowns += 1;
            let number = self.shutdowns;
            controller.shutdown = number;
            self.closing.retain(|it| it.at != at);
            self.closing.push(Closing { number, at, clear: Vec::new() });
        }
    }

    /// A shutdown is of no interest any more: its controller begins anew, or is no more.
    pub(super) fn forget_shutdown(&mut self, number: u64) {
        self.closing.retain(|it| it.number != number);
        self.to_flush.retain(|it| it.number != number);
    }

    /// Goes through the shutdowns that a core has not said to be clear of: `is_clear` says whether
    /// it is. What all cores are clear of is flushed.
    pub fn look_at_shutdowns(&mut self, core: usize, mut is_clear: impl FnMut(&Closing) -> bool) {
        for closing in self.closing.iter_mut().filter(|it| !it.clear.contains(&core)) {
            if is_clear(closing) {
                closing.clear.push(core);
            }
        }
        let cores = self.cores;
        let Self { closing, controllers, to_flush, .. } = self;
        for Closing { number, at, .. } in closing.extract_if(.., |it| it.clear.len() >= cores) {
            let controller = controllers.get(at).and_then(Option::as_ref);
            let is_last = controller.filter(|it| it.shutdown == number);
            if let Some(subsystem) = is_last.and_then(|it| it.subsystem) {
                to_flush.push_back(Unflushed { number, subsystem });
            }
        }
    }

    /// What the first core is to flush, of a subsystem that it is not flushing already.
    pub fn next_flush(&mut self, is_under_way: impl Fn(usize) -> bool) -> Option<Flushing> {
        let first = self.to_flush.iter().find(|it| !is_under_way(it.subsystem))?;
        let subsystem = first.subsystem;
        let numbers = self.to_flush.iter().filter(|it| it.subsystem == subsystem);
        let numbers = numbers.map(|it| it.number).collect();
        self.to_flush.retain(|it| it.subsystem != subsystem);
        let namespaces =
            self.offer.subsystem(subsystem).into_iter().flat_map(Subsystem::namespaces);
        let backends = namespaces.map(|namespace| namespace.backend).collect();
        Some(Flushing { numbers, subsystem, backends })
    }

    /// What was to be flushed for a shutdown was, or could not be.
    pub fn flushed(&mut self, number: u64, is_done: bool) {
        let mut all = self.controllers.iter_mut().flatten();
        let Some(controller) = all.find(|it| it.shutdown == number) else { return };
        let cntlid = controller.cntlid;
        if controller.csts() & property::CSTS_SHST != property::CSTS_SHST_OCCURRING {
            return;
        }
        match is_done {
            true => {
                let others = controller.csts() & !property::CSTS_SHST;
                controller.set_csts(others | property::CSTS_SHST_COMPLETE);
            }
            false => {
                tracing::error!(
                    host = controller.hostnqn,
                    cntlid,
                    "a shutdown stays incomplete: what was written could not be flushed"
                );
                controller.set_csts(controller.csts() | property::CSTS_CFS);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::controller::state::Controller;
    use crate::controller::{Action, Settings};
    use crate::proto::cm::Request;
    use crate::proto::sgl::Sgl;
    use crate::proto::sqe::{Cqe, Sqe, fabrics};
    use crate::proto::status::Status;

    /// A target of one core with controllers of a subsystem, and their admin queues.
    fn target(controllers: u16) -> (Target, Vec<Queue>) {
        let mut target = Target::new(Settings::default());
        target.set_cores(1);
        let (here, there) = ("192.0.2.1:4420".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let queues = (0..controllers).map(|at| {
            let mut queue = Queue::new(at.into(), &Request::default(), here, there);
            queue.role = Role::Admin(at.into());
            let host = ("nqn.2014-08.a:h", [7; 16]);
            let controller = Controller::new(1 + at, Some(0), host, &queue, Duration::ZERO);
            target.controllers.push(Some(controller));
            queue
        });
        let queues = queues.collect();
        (target, queues)
    }

    fn set_cc(target: &mut Target, queue: &mut Queue, value: u32) {
        let (cdw11, cdw12) = (property::CC.into(), value.into());
        let sqe = Sqe { cdw11, cdw12, ..Sqe::fabrics(fabrics::PROPERTY_SET, 0, Sgl::NONE) };
        let done = target.command(queue, 0, &sqe, &[], &mut Vec::new());
        let is_done = |cqe: Cqe| cqe.status() == Status::SUCCESS;
        assert!(matches!(done, Action::Answer(cqe) if is_done(cqe)));
    }

    #[test]
    fn a_host_that_begins_anew_again_and_again_has_one_shutdown() {
        let (mut target, mut queues) = target(2);
        let waiting = |target: &Target| (target.closing.len(), target.to_flush.len());
        for round in 0..100 {
            for cc in [0x4000, 0x0046_0001, 0x0046_4001, 0x0046_0000] {
                set_cc(&mut target, &mut queues[0], cc);
                assert!(target.closing.len() <= 1, "round {round}, CC {cc:#x}");
            }
            target.look_at_shutdowns(0, |_| true);
        }
        set_cc(&mut target, &mut queues[0], 0x0046_0001);
        assert_eq!(waiting(&target), (0, 0));
        // Another is not held up by what was.
        set_cc(&mut target, &mut queues[1], 0x4000);
        target.look_at_shutdowns(0, |_| true);
        let numbers = vec![target.controller(1).unwrap().shutdown];
        assert_eq!(target.next_flush(|_| false).map(|it| it.numbers), Some(numbers));
    }

    #[test]
    fn a_subsystem_is_flushed_for_all_who_wait_and_once_at_a_time() {
        let (mut target, mut queues) = target(3);
        for queue in &mut queues {
            set_cc(&mut target, queue, 0x4000);
            target.look_at_shutdowns(0, |_| true);
        }
        assert_eq!(target.next_flush(|subsystem| subsystem == 0), None, "one is under way");
        let flush = target.next_flush(|_| false).unwrap();
        assert_eq!((flush.subsystem, &*flush.numbers), (0, &[1, 2, 3][..]));
        assert_eq!(target.next_flush(|_| false), None);
    }

    #[test]
    fn a_host_that_asks_again_and_again_has_one_shutdown() {
        let (mut target, mut queues) = target(1);
        let at = 0;
        let csts = |target: &Target| target.controller(at).unwrap().csts() & property::CSTS_SHST;
        for _ in 0..1000 {
            target.shut_down(at);
        }
        assert_eq!((target.closing.len(), csts(&target)), (1, property::CSTS_SHST_OCCURRING));
        target.look_at_shutdowns(0, |_| true);
        let first = target.next_flush(|_| false).unwrap();
        assert_eq!(target.next_flush(|_| false), None);
        // Enabled: a shutdown of another life.
        set_cc(&mut target, &mut queues[at], 0x0046_0001);
        target.shut_down(at);
        target.flushed(first.numbers[0], true);
        assert_eq!(csts(&target), property::CSTS_SHST_OCCURRING, "by a flush of before");
        target.look_at_shutdowns(0, |_| true);
        let second = target.next_flush(|_| false).unwrap();
        target.flushed(second.numbers[0], true);
        assert_eq!(csts(&target), property::CSTS_SHST_COMPLETE);
        target.shut_down(at);
        assert_eq!(csts(&target), property::CSTS_SHST_COMPLETE, "and stays so");
        assert_eq!(target.closing.len(), 0);
    }
}
