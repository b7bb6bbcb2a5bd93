//! A device with its port's name as one steppable thing, and what it refuses as log lines.

use std::sync::mpsc::Receiver;

use ferrocx_bus::local::DeviceSide;
use ferrocx_model::wire::Wire;
use ferrocx_model::{Nic, NicConfig};

use super::engine::{Neighbours, Steppable};
use super::lines::Lines;
use super::status::{self, Ask, Reply};

/// A model and the name of its port in the log.
pub(super) struct Port {
    name: String,
    nic: Nic,
    questions: Receiver<Reply>,
    neighbours: Neighbours,
    refusals: u64,
    lines: Lines,
    /// Its memory was used up once, and the log says so.
    is_short: bool,
}

impl Port {
    /// A device behind `side`; without a wire it has a carrier and no neighbour. `questions` asks
    /// for its status, `neighbours` are woken when it did something.
    pub(super) fn new(
        name: String,
        side: DeviceSide,
        config: NicConfig,
        wire: Option<Box<dyn Wire>>,
        neighbours: Neighbours,
    ) -> (Self, Ask) {
        let mut nic = Nic::new(side, config);
        if let Some(wire) = wire {
            nic.datapath_mut().plug(wire);
        }
        let (ask, questions) = status::channel(&name);
        let (refusals, lines, is_short) = (0, Lines::new(), false);
        let port = Self { name, nic, questions, neighbours, refusals, lines, is_short };
        (port, ask)
    }
}

impl Steppable for Port {
    fn step(&mut self, now_ns: u64) -> bool {
        let busy = self.nic.step(now_ns);
        if busy {
            self.neighbours.wake();
        }
        if self.nic.log().total() != self.refusals {
            self.report();
        }
        while let Ok(reply) = self.questions.try_recv() {
            // A reader that went away gets nothing.
            let _ = reply.try_send(status::of(&self.name, &self.nic));
        }
        busy
    }
}

/// A device whose model has stopped does not answer any more: its guest sees it as unplugged, and
/// the other ports go on.
impl Drop for Port {
    fn drop(&mut self) {
        self.nic.side().set_gone(true);
    }
}

impl Port {
    /// Logs what was refused since the last report: for a guest's driver it is the answer to why.
    #[cold]
    fn report(&mut self) {
        let budget = &self.nic.state().budget;
        if budget.refusals() > 0 && !self.is_short {
            self.is_short = true;
            let limit_mib = budget.limit_bytes() >> 20;
            let hint = "the guest gets EXCEED_LIM; raise --memory-per-function if it may have more";
            tracing::warn!(port = self.name, limit_mib, hint, "memory of the function is used up");
        }
        let log = self.nic.log();
        let new = log.total() - self.refusals;
        self.refusals = log.total();
        let kept = log.iter().count() as u64;
        let skip = usize::try_from(kept.saturating_sub(new)).unwrap_or(usize::MAX);
        let room = self.lines.take(&self.name, kept, new);
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        for refusal in log.iter().skip(skip).take(room) {
            tracing::warn!(port = self.name, %refusal, "refused");
        }
    }
}
