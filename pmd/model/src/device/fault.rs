//! Faults as ordinary inputs: a plan, fixed before the run, of what goes wrong and when.
//!
//! The same plan on the same inputs gives the same bytes. [`FaultPlan::seeded`] draws a plan from a
//! number; [`FaultPlan::at`] writes one by hand.

use ferrocx_prm::syndrome::{CommandStatus, HealthSyndrome};

/// Fault of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandFault {
    /// It fails with this status and is not executed.
    Status(CommandStatus),
    /// It is never fetched: its entry stays the device's.
    Stuck,
    /// It is executed after this many nanoseconds of device time.
    DelayNs(u64),
}

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The nth command since power-on, counted from 1.
    Command {
        /// Number of the command, counted from 1.
        nth: u64,
        /// Fault of the command.
        fault: CommandFault,
    },
    /// The link goes down at a time, and comes back.
    LinkFlap {
        /// Time, in nanoseconds of device time.
        at_ns: u64,
        /// Duration in nanoseconds.
        down_ns: u64,
    },
    /// The health buffer reports a syndrome from a time on.
    Health {
        /// Time, in nanoseconds of device time.
        at_ns: u64,
        /// Syndrome that the health buffer reports.
        syndrome: HealthSyndrome,
    },
    /// The function is reset at a time, as if the host had asked for it.
    Reset {
        /// Time, in nanoseconds of device time.
        at_ns: u64,
    },
    /// The nth packet read of a send queue faults as if its memory were not mapped.
    SendDma {
        /// Number of the access, counted from 1.
        nth: u64,
    },
    /// The nth packet write of a receive queue faults as if its memory were not mapped.
    ReceiveDma {
        /// Number of the access, counted from 1.
        nth: u64,
    },
    /// The nth CQE finds its CQ full.
    CqOverrun {
        /// Number of the entry, counted from 1.
        nth: u64,
    },
}

/// Fault that happens by itself at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    LinkDown,
    LinkUp,
    Health(HealthSyndrome),
    Reset,
}

/// Place of a counted fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultSite {
    /// Reading a packet of a send queue.
    SendDma,
    /// Writing a packet of a receive queue.
    ReceiveDma,
    /// Writing a CQE.
    CqOverrun,
}

/// The faults of a run.
#[derive(Debug, Clone, Default)]
pub struct FaultPlan {
    commands: Vec<(u64, CommandFault)>,
    moments: Vec<(u64, Moment)>,
    sites: Vec<(FaultSite, u64)>,
    seen: [u64; 3],
}

/// A small generator of numbers (SplitMix64), so that a seed means the same for ever.
#[derive(Debug, Clone)]
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

impl FaultPlan {
    /// A plan of these faults.
    #[must_use]
    pub fn at(faults: &[Fault]) -> Self {
        let mut plan = Self::default();
        for fault in faults {
            plan.add(*fault);
        }
        plan
    }

    /// A plan of `count` faults drawn from `seed`, within the first second.
    #[must_use]
    pub fn seeded(seed: u64, count: usize) -> Self {
        let mut random = SplitMix(seed);
        let faults: Vec<_> = (0..count).map(|_| Self::draw(&mut random)).collect();
        Self::at(&faults)
    }

    fn draw(random: &mut SplitMix) -> Fault {
        const SECOND_NS: u64 = 1_000_000_000;
        match random.below(7) {
            0 => Fault::Command { nth: 1 + random.below(64), fault: Self::draw_command(random) },
            1 => Fault::LinkFlap {
                at_ns: random.below(SECOND_NS),
                down_ns: random.below(SECOND_NS / 10),
            },
            2 => Fault::Health {
                at_ns: random.below(SECOND_NS),
                syndrome: HealthSyndrome::FW_INTERNAL_ERR,
            },
            3 => Fault::Reset { at_ns: random.below(SECOND_NS) },
            4 => Fault::SendDma { nth: 1 + random.below(100_000) },
            5 => Fault::ReceiveDma { nth: 1 + random.below(100_000) },
            _ => Fault::CqOverrun { nth: 1 + random.below(100_000) },
        }
    }

    fn draw_command(random: &mut SplitMix) -> CommandFault {
        match random.below(4) {
            0 => CommandFault::Stuck,
            1 => CommandFault::DelayNs(random.below(10_000_000)),
            2 => CommandFault::Status(CommandStatus::INTERNAL_ERR),
            _ => CommandFault::Status(CommandStatus::NO_RESOURCES),
        }
    }

    /// Adds a fault.
    pub fn add(&mut self, fault: Fault) {
        match fault {
            Fault::Command { nth, fault } => self.commands.push((nth, fault)),
            Fault::LinkFlap { at_ns, down_ns } => {
                self.moments.push((at_ns, Moment::LinkDown));
                self.moments.push((at_ns.saturating_add(down_ns), Moment::LinkUp));
            }
            Fault::Health { at_ns, syndrome } => {
                self.moments.push((at_ns, Moment::Health(syndrome)));
            }
            Fault::Reset { at_ns } => self.moments.push((at_ns, Moment::Reset)),
            Fault::SendDma { nth } => self.sites.push((FaultSite::SendDma, nth)),
            Fault::ReceiveDma { nth } => self.sites.push((FaultSite::ReceiveDma, nth)),
            Fault::CqOverrun { nth } => self.sites.push((FaultSite::CqOverrun, nth)),
        }
        self.moments.sort_by_key(|(at_ns, _)| *at_ns);
    }

    /// Fault of command `number`, if the plan has one.
    pub(crate) fn command(&self, number: u64) -> Option<CommandFault> {
        self.commands.iter().find(|(nth, _)| *nth == number).map(|(_, fault)| *fault)
    }

    /// Faults that happen by themselves up to `now_ns`, one at a time.
    pub(crate) fn due(&mut self, now_ns: u64) -> Option<Moment> {
        let (at_ns, moment) = *self.moments.first()?;
        if at_ns > now_ns {
            return None;
        }
        self.moments.remove(0);
        Some(moment)
    }

    /// Counts one event at a site; `true` when the plan wants it to fail.
    ///
    /// Costs one comparison when the plan names no site.
    #[inline]
    pub fn strikes(&mut self, site: FaultSite) -> bool {
        self.has_sites() && self.count(site)
    }

    /// Whether the plan names a site, so that events are counted.
    #[inline]
    pub(crate) fn has_sites(&self) -> bool {
        !self.sites.is_empty()
    }

    #[cold]
    fn count(&mut self, site: FaultSite) -> bool {
        let seen = &mut self.seen[site as usize];
        *seen += 1;
        self.sites.contains(&(site, *seen))
    }
}
