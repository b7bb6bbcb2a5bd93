//! The devices of one process as one steppable thing, and what they refuse as log lines.

use std::sync::mpsc::Receiver;

use ferrocx_bus::local::DeviceSide;
use ferrocx_model::wire::Wire;
use ferrocx_model::{Nic, NicConfig};
use serde_json::Value;

use super::engine::Steppable;
use super::status::{self, Reply};

/// Refusals of a port that are logged in one second; a guest can provoke any number.
const LINES_PER_SECOND: u64 = 500;

/// A model and the name of its port in the log.
struct Port {
    name: String,
    nic: Nic,
    refusals: u64,
    /// The second in which lines were logged last, how many, and how many were not.
    second: u64,
    lines: u64,
    unsaid: u64,
}

/// The ports of this process.
pub(super) struct Ports {
    ports: Vec<Port>,
    questions: Receiver<Reply>,
}

impl Ports {
    /// No ports yet; `questions` asks for their status.
    pub(super) fn new(questions: Receiver<Reply>) -> Self {
        Self { ports: Vec::new(), questions }
    }

    /// Adds a device behind `side`; without a wire it has a carrier and no neighbour.
    pub(super) fn add(
        &mut self,
        name: String,
        side: DeviceSide,
        config: NicConfig,
        wire: Option<Box<dyn Wire>>,
    ) {
        let mut nic = Nic::new(side, config);
        if let Some(wire) = wire {
            nic.datapath_mut().plug(wire);
        }
        self.ports.push(Port { name, nic, refusals: 0, second: 0, lines: 0, unsaid: 0 });
    }

    fn status(&self) -> Value {
        self.ports.iter().map(|port| status::of(&port.name, &port.nic)).collect()
    }
}

impl Steppable for Ports {
    fn step(&mut self, now_ns: u64) -> bool {
        let mut busy = false;
        for port in &mut self.ports {
            busy |= port.nic.step(now_ns);
            if port.nic.log().total() != port.refusals {
                port.report(now_ns);
            }
        }
        while let Ok(reply) = self.questions.try_recv() {
            // A reader that went away gets nothing.
            let _ = reply.try_send(self.status());
        }
        busy
    }
}

impl Port {
    /// Logs what was refused since the last report: for a guest's driver it is the answer to why.
    #[cold]
    fn report(&mut self, now_ns: u64) {
        let second = now_ns / 1_000_000_000;
        if second != self.second {
            if self.unsaid > 0 {
                tracing::warn!(port = self.name, count = self.unsaid, "refusals not logged");
            }
            (self.second, self.lines, self.unsaid) = (second, 0, 0);
        }
        let log = self.nic.log();
        let new = log.total() - self.refusals;
        self.refusals = log.total();
        let kept = log.iter().count() as u64;
        let skip = usize::try_from(kept.saturating_sub(new)).unwrap_or(usize::MAX);
        let room = usize::try_from(LINES_PER_SECOND - self.lines).unwrap_or(0);
        let mut said = 0;
        for refusal in log.iter().skip(skip).take(room) {
            tracing::warn!(port = self.name, %refusal, "refused");
            said += 1;
        }
        self.lines += said;
        self.unsaid += new - said;
    }
}
