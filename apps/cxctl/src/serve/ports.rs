//! The devices of one process as one steppable thing, and what they refuse as log lines.

use ferrocx_bus::local::DeviceSide;
use ferrocx_model::wire::Wire;
use ferrocx_model::{Nic, NicConfig};

use super::engine::Steppable;

/// A model and the name of its port in the log.
struct Port {
    name: String,
    nic: Nic,
    refusals: u64,
}

/// The ports of this process.
#[derive(Default)]
pub(super) struct Ports(Vec<Port>);

impl Ports {
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
        self.0.push(Port { name, nic, refusals: 0 });
    }
}

impl Steppable for Ports {
    fn step(&mut self, now_ns: u64) -> bool {
        let mut busy = false;
        for port in &mut self.0 {
            busy |= port.nic.step(now_ns);
            if port.nic.log().total() != port.refusals {
                port.report();
            }
        }
        busy
    }
}

impl Port {
    /// Logs what was refused since the last report: for a guest's driver it is the answer to why.
    #[cold]
    fn report(&mut self) {
        let log = self.nic.log();
        let new = log.total() - self.refusals;
        self.refusals = log.total();
        let kept = log.iter().count() as u64;
        if new > kept {
            tracing::warn!(port = self.name, lost = new - kept, "refusals too many to keep");
        }
        let skip = usize::try_from(kept.saturating_sub(new)).unwrap_or(usize::MAX);
        for refusal in log.iter().skip(skip) {
            tracing::warn!(port = self.name, %refusal, "refused");
        }
    }
}
