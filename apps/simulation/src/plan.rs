//! Everything that a seed decides before the run begins, so that a plan can be shown and shrunk.

use std::fmt;

use ferrocx_model::wire::SplitMix64;

use crate::ether::Weather;
use crate::forge::Ring;
use crate::frames::FramesPlan;
use crate::place::{KeysPlan, Source};
use crate::planted::Bug;
use crate::storage::StoragePlan;
use crate::stream::StreamPlan;

/// Operations on keys of one connection at most: they are slow, and a longer run has more messages.
const MAX_OPERATIONS: u64 = 2_000;
/// A stream of more messages than these has so many receives at least: a sender that waits for each
/// receive takes a hundred steps for a message.
const LONG_STREAM: u64 = 5_000;
const RECEIVES_OF_LONG: usize = 32;
/// A run has one more fault for so many messages.
const MESSAGES_PER_FAULT: u64 = 20_000;

/// Kind of a wire's bad weather.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storm {
    /// Frames vanish.
    Loss,
    /// Frames come twice.
    Duplication,
    /// Bits change, and the frame check sequence shows it.
    Corruption,
    /// Bits change, and only the ICRC of RoCE shows it.
    SilentCorruption,
    /// Frames overtake others.
    Reordering,
    /// Frames take longer.
    Delay,
}

impl Storm {
    /// Sets this kind of the weather.
    pub(crate) fn set(self, weather: &mut Weather, degree: u32) {
        match self {
            Self::Loss => weather.loss_ppm = degree,
            Self::Duplication => weather.duplicate_ppm = degree,
            Self::Corruption => weather.corrupt_ppm = degree,
            Self::SilentCorruption => weather.silent_ppm = degree,
            Self::Reordering => weather.reorder_ppm = degree,
            Self::Delay => weather.delay_ns = u64::from(degree),
        }
    }
}

/// Layer at which a peer that does not exist speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intruder {
    /// ARP questions and answers of invented stations.
    Arp,
    /// Neighbour solicitations and advertisements of invented stations.
    Nd,
    /// IGMP queries and reports.
    Igmp,
    /// Messages of the connection manager.
    Cm,
    /// RoCE packets with a right ICRC, to any queue pair.
    Roce,
    /// Bytes.
    Noise,
}

/// Fault of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Bad weather for what a host sends.
    Weather {
        /// Kind of the weather.
        storm: Storm,
        /// How bad: parts of a million of the frames, or nanoseconds of delay.
        degree: u32,
        /// How long, in nanoseconds.
        for_ns: u64,
    },
    /// The cable of a host is out for a while.
    LinkFlap {
        /// How long, in nanoseconds.
        for_ns: u64,
    },
    /// A command of a host is never answered.
    StuckCommand {
        /// How many commands before it.
        after: u64,
    },
    /// A command of a host fails.
    FailedCommand {
        /// How many commands before it.
        after: u64,
    },
    /// A command of a host takes its time.
    SlowCommand {
        /// How many commands before it.
        after: u64,
        /// How long, in nanoseconds.
        for_ns: u64,
    },
    /// A mapping of a host is not there for its device for a while.
    Dma {
        /// Which of the mappings.
        mapping: u16,
        /// How long, in nanoseconds.
        for_ns: u64,
    },
    /// The device of a host says what is not so.
    Forgery {
        /// Where.
        ring: Ring,
        /// How often.
        count: u32,
    },
    /// A completion finds its queue full.
    CqOverrun {
        /// How many before it.
        after: u64,
    },
    /// The function of a host is reset, in whatever it is doing.
    Reset {
        /// After so many nanoseconds.
        in_ns: u64,
    },
    /// The device of a host leaves the bus, and comes back.
    Removal {
        /// How long, in nanoseconds.
        for_ns: u64,
    },
    /// The firmware of a host reports that it is broken.
    Sickness,
    /// A register of a host reads wrong for a while.
    Lie {
        /// Which of the registers that the driver looks at.
        register: u8,
        /// What it says.
        value: u32,
        /// How long, in nanoseconds.
        for_ns: u64,
    },
    /// The firmware asks for pages, and for more when it has them; or gives some back.
    Pages {
        /// How many; negative to give back.
        count: i32,
    },
    /// Events that nobody needs.
    EventFlood {
        /// How many.
        count: u32,
    },
    /// Frames of peers that do not exist.
    Intrusion {
        /// What they say.
        intruder: Intruder,
        /// How many.
        count: u32,
    },
}

/// Fault of the plan, with its place and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    /// When: parts of a million of all that is to be done.
    pub at_ppm: u32,
    /// The host that it happens to.
    pub host: usize,
    /// The fault.
    pub fault: Fault,
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = f64::from(self.at_ppm) / 10_000.0;
        write!(f, "at {percent:.1} % of the work, host {}: {:?}", self.host, self.fault)
    }
}

/// Kind of the traffic on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TalkKind {
    /// Numbered messages.
    Stream(StreamPlan),
    /// Keys that come and go.
    Keys(KeysPlan),
}

/// Connection of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Talk {
    pub(crate) hosts: [usize; 2],
    pub(crate) kind: TalkKind,
}

/// Everything that a run does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The seed that it was drawn from, and that decides what weather hits.
    pub seed: u64,
    pub(crate) hosts: usize,
    pub(crate) talks: Vec<Talk>,
    pub(crate) storage: Option<StoragePlan>,
    pub(crate) frames: Option<FramesPlan>,
    /// The faults, in the order of their times.
    pub faults: Vec<Planned>,
    /// The bug that is planted, with the feature `planted`.
    pub planted: Option<Bug>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, {} hosts", self.seed, self.hosts)?;
        for Talk { hosts: [a, b], kind } in &self.talks {
            writeln!(f, "  from {a} to {b}: {kind:?}")?;
        }
        if let Some(storage) = &self.storage {
            writeln!(f, "  {storage:?}")?;
        }
        if let Some(frames) = &self.frames {
            writeln!(f, "  {frames:?}")?;
        }
        self.faults.iter().try_for_each(|fault| writeln!(f, "  {fault}"))
    }
}

impl Plan {
    /// Draws the plan of a seed, with about so many messages.
    #[must_use]
    pub fn draw(seed: u64, messages: u64) -> Self {
        let mut random = SplitMix64::new(seed ^ 0x5eed_0000_0b5e_55ed);
        let hosts = if random.chance(250_000) { 3 } else { 2 };
        let count = 1 + random.below(3);
        let mut talks = Vec::new();
        for _ in 0..count {
            let a = random.below(hosts as u64) as usize;
            let b = (a + 1 + random.below(hosts as u64 - 1) as usize) % hosts;
            let kind = match random.below(5) {
                0 | 1 => TalkKind::Keys(draw_keys(&mut random, messages / count / 8)),
                _ => TalkKind::Stream(draw_stream(&mut random, messages / count)),
            };
            talks.push(Talk { hosts: [a, b], kind });
        }
        let count = random.below(9) + messages / MESSAGES_PER_FAULT;
        let mut faults: Vec<_> = (0..count).map(|_| draw_fault(&mut random, hosts)).collect();
        faults.sort_by_key(|planned| planned.at_ppm);
        let storage =
            random.chance(250_000).then(|| draw_storage(&mut random, hosts, messages / 4));
        let frames = random.chance(250_000).then(|| draw_frames(&mut random, hosts, messages / 2));
        Self { seed, hosts, talks, storage, frames, faults, planted: None }
    }

    /// Two hosts that do nothing by themselves.
    pub(crate) fn quiet(seed: u64) -> Self {
        let (talks, faults) = (Vec::new(), Vec::new());
        Self { seed, hosts: 2, talks, storage: None, frames: None, faults, planted: None }
    }

    /// The same with half of the messages; `None` if there is nothing to halve.
    pub(crate) fn with_half_the_work(&self) -> Option<Self> {
        let mut smaller = self.clone();
        for talk in &mut smaller.talks {
            match &mut talk.kind {
                TalkKind::Stream(plan) => plan.messages = plan.messages.div_ceil(2),
                TalkKind::Keys(plan) => plan.operations = plan.operations.div_ceil(2),
            }
        }
        if let Some(storage) = &mut smaller.storage {
            storage.operations = storage.operations.div_ceil(2);
        }
        if let Some(frames) = &mut smaller.frames {
            frames.frames = frames.frames.div_ceil(2);
        }
        (smaller != *self).then_some(smaller)
    }
}

fn draw_stream(random: &mut SplitMix64, messages: u64) -> StreamPlan {
    let slot_bytes = [64, 256, 1500, 4096][random.below(4) as usize];
    let least = if messages > LONG_STREAM { RECEIVES_OF_LONG } else { 1 };
    StreamPlan {
        seed: random.next_u64(),
        messages: messages.max(1),
        slot_bytes,
        long_permille: [0, 10, 100][random.below(3) as usize],
        signal_every: 1 + random.below(16),
        receives: (1 + random.below(63) as usize).max(least),
    }
}

fn draw_keys(random: &mut SplitMix64, operations: u64) -> KeysPlan {
    let sources =
        [Source::Region, Source::FastReg, Source::FastReg, Source::Peer, Source::Pipeline];
    KeysPlan {
        seed: random.next_u64(),
        source: sources[random.below(5) as usize],
        operations: operations.clamp(1, MAX_OPERATIONS),
        per_key: 1 + random.below(64),
    }
}

fn draw_storage(random: &mut SplitMix64, hosts: usize, operations: u64) -> StoragePlan {
    StoragePlan {
        seed: random.next_u64(),
        target: random.below(hosts as u64) as usize,
        operations: operations.clamp(1, MAX_OPERATIONS),
        depth: 1 + random.below(15) as u16,
        most_blocks: [1, 8, 16, 32][random.below(4) as usize],
    }
}

fn draw_frames(random: &mut SplitMix64, hosts: usize, frames: u64) -> FramesPlan {
    let a = random.below(hosts as u64) as usize;
    let b = (a + 1 + random.below(hosts as u64 - 1) as usize) % hosts;
    FramesPlan {
        seed: random.next_u64(),
        hosts: [a, b],
        frames: frames.max(1),
        max_bytes: [64, 256, 1514][random.below(3) as usize],
        descriptors: [64, 128, 512][random.below(3) as usize],
        cqe_compression: random.chance(500_000),
        multi_packet: random.chance(500_000),
        inline_bytes: [0, 60, 204][random.below(3) as usize],
    }
}

fn draw_fault(random: &mut SplitMix64, hosts: usize) -> Planned {
    let at_ppm = random.below(900_000) as u32;
    let host = random.below(hosts as u64) as usize;
    let fault = match random.below(34) {
        0..=9 => draw_weather(random),
        20..=25 => draw_intrusion(random),
        26 => Fault::EventFlood { count: 1 + random.below(48) as u32 },
        27 => draw_lie(random),
        28 | 29 => Fault::Forgery {
            ring: if random.chance(300_000) { Ring::Events } else { Ring::Completions },
            count: 1 + random.below(8) as u32,
        },
        30 => Fault::CqOverrun { after: random.below(1_000) },
        31..=33 => {
            Fault::Dma { mapping: random.next_u64() as u16, for_ns: 1_000 + random.below(200_000) }
        }
        10 | 11 => Fault::LinkFlap { for_ns: 1_000 + random.below(3_000_000) },
        12 => Fault::SlowCommand { after: random.below(20), for_ns: random.below(10_000_000) },
        13 => Fault::FailedCommand { after: random.below(20) },
        14 => Fault::StuckCommand { after: random.below(20) },
        15 => Fault::Pages { count: random.below(64) as i32 - 16 },
        16 => Fault::Removal { for_ns: 1_000 + random.below(30_000_000) },
        17 => Fault::Sickness,
        _ => Fault::Reset { in_ns: random.below(100_000) },
    };
    Planned { at_ppm, host, fault }
}

fn draw_intrusion(random: &mut SplitMix64) -> Fault {
    let intruder = match random.below(6) {
        0 => Intruder::Arp,
        1 => Intruder::Nd,
        2 => Intruder::Igmp,
        3 => Intruder::Cm,
        4 => Intruder::Roce,
        _ => Intruder::Noise,
    };
    Fault::Intrusion { intruder, count: 1 + random.below(200) as u32 }
}

fn draw_lie(random: &mut SplitMix64) -> Fault {
    let register = random.below(4) as u8;
    // Flags that a driver acts on, and bits that mean nothing.
    let value = [u32::MAX, 1 << 31, 1 << 8, random.next_u64() as u32][random.below(4) as usize];
    Fault::Lie { register, value, for_ns: 1_000 + random.below(20_000_000) }
}

fn draw_weather(random: &mut SplitMix64) -> Fault {
    let (storm, worst) = match random.below(6) {
        0 => (Storm::Loss, 300_000),
        1 => (Storm::Duplication, 300_000),
        2 => (Storm::Corruption, 100_000),
        3 => (Storm::SilentCorruption, 100_000),
        4 => (Storm::Reordering, 300_000),
        _ => (Storm::Delay, 300_000),
    };
    let degree = 1 + random.below(worst) as u32;
    Fault::Weather { storm, degree, for_ns: 10_000 + random.below(3_000_000) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_plan_and_another_seed_another() {
        assert_eq!(Plan::draw(7, 1000), Plan::draw(7, 1000));
        assert_ne!(Plan::draw(7, 1000), Plan::draw(8, 1000));
        let plans: Vec<_> = (0..200).map(|seed| Plan::draw(seed, 1000)).collect();
        assert!(plans.iter().any(|plan| plan.hosts == 3));
        assert!(plans.iter().all(|plan| plan.talks.iter().all(|talk| {
            let [a, b] = talk.hosts;
            a != b && a < plan.hosts && b < plan.hosts
        })));
        assert!(plans.iter().all(|plan| plan.faults.is_sorted_by_key(|fault| fault.at_ppm)));
    }
}
