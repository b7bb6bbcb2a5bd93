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
//! A flush that fails leaves the shutdown incomplete and the controller failed: its host must not
//! believe that its data are safe.
//!
//! Source: NVM Express base 1.4, "Controller Status", "Controller Shutdown"; reference 10.1.6.

use super::{Role, Subsystem, Target};
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
    /// Whether a queue is one of the controller's I/O queues.
    #[must_use]
    pub fn is_about(&self, role: Role) -> bool {
        role == Role::Io(self.at)
    }
}

/// What is to be flushed for a controller that shuts down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flushing {
    /// Which shutdown it is: no other one ever has the number.
    pub number: u64,
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
            self.closing.push(Closing { number, at, clear: Vec::new() });
        }
    }

    /// A shutdown is of no interest any more: its controller was disabled, or is no more.
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
        for Closing { number, at, .. } in
            self.closing.extract_if(.., |it| it.clear.len() >= cores).collect::<Vec<_>>()
        {
            let subsystem = self.controller(at).and_then(|it| it.subsystem);
            let subsystem = subsystem.and_then(|at| self.offer.subsystem(at));
            let all = subsystem.into_iter().flat_map(Subsystem::namespaces);
            let backends = all.map(|namespace| namespace.backend).collect();
            self.to_flush.push_back(Flushing { number, backends });
        }
    }

    /// What the first core is to flush.
    pub fn next_flush(&mut self) -> Option<Flushing> {
        self.to_flush.pop_front()
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
    use crate::controller::{Queue, Settings};
    use crate::proto::cm::Request;

    #[test]
    fn a_host_that_asks_again_and_again_has_one_shutdown() {
        let mut target = Target::new(Settings::default());
        target.set_cores(1);
        let (here, there) = ("192.0.2.1:4420".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let queue = Queue::new(0, &Request::default(), here, there);
        let host = ("nqn.2014-08.a:h", [7; 16]);
        let controller = Controller::new(1, Some(0), host, &queue, Duration::ZERO);
        let at = target.controllers.len();
        target.controllers.push(Some(controller));
        let csts = |target: &Target| target.controller(at).unwrap().csts() & property::CSTS_SHST;
        for _ in 0..1000 {
            target.shut_down(at);
        }
        assert_eq!((target.closing.len(), csts(&target)), (1, property::CSTS_SHST_OCCURRING));
        target.look_at_shutdowns(0, |_| true);
        let first = target.next_flush().unwrap();
        assert_eq!(target.next_flush(), None);
        // Disabled and enabled: a shutdown of another life.
        let number = target.controller(at).unwrap().shutdown;
        target.forget_shutdown(number);
        target.controllers[at].as_mut().unwrap().set_csts(property::CSTS_RDY);
        target.shut_down(at);
        target.flushed(first.number, true);
        assert_eq!(csts(&target), property::CSTS_SHST_OCCURRING, "by a flush of before");
        target.look_at_shutdowns(0, |_| true);
        let second = target.next_flush().unwrap();
        target.flushed(second.number, true);
        assert_eq!(csts(&target), property::CSTS_SHST_COMPLETE);
        target.shut_down(at);
        assert_eq!(csts(&target), property::CSTS_SHST_COMPLETE, "and stays so");
        assert_eq!(target.closing.len(), 0);
    }
}
