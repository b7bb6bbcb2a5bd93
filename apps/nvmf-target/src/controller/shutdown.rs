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
    cntlid: u16,
    /// Its place, which its I/O queues name.
    at: usize,
    /// Cores that have nothing of it under way any more.
    clear: Vec<usize>,
}

impl Closing {
    /// Whether it is this controller.
    pub(super) fn is_of(&self, cntlid: u16) -> bool {
        self.cntlid == cntlid
    }

    /// Whether a queue is one of the controller's I/O queues.
    #[must_use]
    pub fn is_about(&self, role: Role) -> bool {
        role == Role::Io(self.at)
    }
}

/// What is to be flushed for a controller that shuts down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flushing {
    /// Its number.
    pub cntlid: u16,
    /// Places of back ends.
    pub backends: Vec<usize>,
}

impl Target {
    /// The host of a controller wants it shut down.
    pub(super) fn shut_down(&mut self, at: usize) {
        let cores = self.cores;
        let Some(controller) = self.controllers.get_mut(at).and_then(Option::as_mut) else {
            return;
        };
        controller.abort_requests(&mut self.outbox);
        let is_done = controller.subsystem.is_none() || cores == 0;
        let state =
            if is_done { property::CSTS_SHST_COMPLETE } else { property::CSTS_SHST_OCCURRING };
        controller.set_csts(controller.csts() | state);
        if !is_done {
            let cntlid = controller.cntlid;
            self.closing.push(Closing { cntlid, at, clear: Vec::new() });
        }
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
        for Closing { cntlid, at, .. } in
            self.closing.extract_if(.., |it| it.clear.len() >= cores).collect::<Vec<_>>()
        {
            let subsystem = self.controller(at).and_then(|it| it.subsystem);
            let subsystem = subsystem.and_then(|at| self.offer.subsystem(at));
            let all = subsystem.into_iter().flat_map(Subsystem::namespaces);
            let backends = all.map(|namespace| namespace.backend).collect();
            self.to_flush.push(Flushing { cntlid, backends });
        }
    }

    /// What the first core is to flush.
    pub fn next_flush(&mut self) -> Option<Flushing> {
        self.to_flush.pop()
    }

    /// What was to be flushed for a controller was, or could not be.
    pub fn flushed(&mut self, cntlid: u16, is_done: bool) {
        let mut all = self.controllers.iter_mut().flatten();
        let Some(controller) = all.find(|it| it.cntlid == cntlid) else { return };
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
