//! What every part of a run shares: world, switch, hosts, chance, counts, and the timeline.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use ferrocx_model::wire::SplitMix64;

use crate::ether::Ether;
use crate::host::Host;
use crate::planted::Planted;
use crate::world::World;

/// Lines that the timeline keeps: the last ones.
const MAX_LINES: usize = 4_000;
/// Different errors that are told apart.
const MAX_NAMES: usize = 512;
/// Refusals of a device that a timeline ends with.
const MAX_REFUSALS: usize = 8;
/// Characters of an error by which it is told from others.
const NAME_CHARS: usize = 96;

/// Something that must not happen has happened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Violation(pub String);

/// Fails unless `holds`.
pub(crate) fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation(what())) }
}

/// What happened in a run, or in many.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages whose end was checked: sends, writes, reads, atomics, registrations.
    pub messages: u64,
    /// Connections made.
    pub connections: u64,
    /// Connections that broke.
    pub breaks: u64,
    /// Keys that were made and ended.
    pub keys: u64,
    /// Attempts to use a key after its end.
    pub attacks: u64,
    /// Ethernet frames that arrived, byte for byte.
    pub frames: u64,
    /// Commands of hosts to a storage target, whose answers and data were checked.
    pub storage: u64,
    /// Resets, removals and deaths of devices.
    pub kills: u64,
    /// Faults that were carried out.
    pub faults: u64,
    /// What oracles would have said, had no device lied about its completions.
    pub deceptions: u64,
    /// Frames of peers that do not exist.
    pub hostile: u64,
    /// Frames that were lost, doubled, damaged or overtaken.
    pub weather: u64,
    /// Steps of the models.
    pub steps: u64,
    /// Simulated time in nanoseconds.
    pub simulated_ns: u64,
    /// Errors that the library reported, by their text without numbers.
    pub errors: BTreeMap<String, u64>,
}

impl Counts {
    /// Notes an error by its name.
    pub(crate) fn named(&mut self, error: &dyn fmt::Display) {
        let text = error.to_string();
        let mut name = String::with_capacity(NAME_CHARS);
        for char in text.chars().take(NAME_CHARS) {
            let char = if char.is_ascii_digit() { '#' } else { char };
            if char != '#' || !name.ends_with('#') {
                name.push(char);
            }
        }
        if self.errors.len() < MAX_NAMES || self.errors.contains_key(&name) {
            *self.errors.entry(name).or_default() += 1;
        }
    }

    /// Adds what happened in another run.
    pub fn add(&mut self, other: &Self) {
        let Self { messages, connections, breaks, keys, attacks, kills, faults, .. } = other;
        self.messages += messages;
        self.connections += connections;
        self.breaks += breaks;
        self.keys += keys;
        self.attacks += attacks;
        self.frames += other.frames;
        self.storage += other.storage;
        self.kills += kills;
        self.faults += faults;
        self.deceptions += other.deceptions;
        self.hostile += other.hostile;
        self.weather += other.weather;
        self.steps += other.steps;
        self.simulated_ns += other.simulated_ns;
        for (name, count) in &other.errors {
            *self.errors.entry(name.clone()).or_default() += count;
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { messages, connections, breaks, keys, attacks, kills, faults, .. } = self;
        write!(
            f,
            "{messages} messages, {connections} connections ({breaks} broke), {keys} keys \
             ({attacks} attacks after their end), {} frames, {} storage commands, {faults} \
             faults, {kills} deaths of devices, {} deceptions, {} frames met weather, {} hostile \
             frames, {} steps, {:.3} simulated s",
            self.frames,
            self.storage,
            self.deceptions,
            self.weather,
            self.hostile,
            self.steps,
            self.simulated_ns as f64 / 1e9
        )
    }
}

/// What happened, in order, if anybody wants to know.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    is_kept: bool,
    lines: VecDeque<(u64, String)>,
}

impl Timeline {
    pub(crate) fn new(is_kept: bool) -> Self {
        Self { is_kept, lines: VecDeque::new() }
    }

    pub(crate) fn into_lines(self) -> Vec<(u64, String)> {
        self.lines.into()
    }
}

/// The parts that all share.
pub(crate) struct Stage {
    pub(crate) hosts: Vec<Host>,
    pub(crate) ether: Ether,
    pub(crate) random: SplitMix64,
    pub(crate) counts: Counts,
    pub(crate) timeline: Timeline,
    pub(crate) planted: Planted,
    /// What a planted bug does not let go of.
    pub(crate) kept: Vec<Box<dyn std::any::Any>>,
    /// Last, because drivers need it to the end.
    pub(crate) world: Arc<World>,
}

impl Stage {
    pub(crate) fn now_ns(&self) -> u64 {
        self.world.now_ns()
    }

    /// Adds a line to the timeline.
    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        if !self.timeline.is_kept {
            return;
        }
        if self.timeline.lines.len() == MAX_LINES {
            self.timeline.lines.pop_front();
        }
        self.timeline.lines.push_back((self.world.now_ns(), line()));
    }

    /// Whether what programs of these hosts believe need not be true.
    pub(crate) fn are_deceived(&self, hosts: &[usize]) -> bool {
        hosts.iter().any(|host| self.hosts[*host].is_deceived)
    }

    /// What an oracle says: nothing, where a device of these hosts lied to it.
    pub(crate) fn judged(
        &mut self,
        hosts: &[usize],
        result: Result<(), Violation>,
    ) -> Result<(), Violation> {
        match result {
            Err(violation) if self.are_deceived(hosts) => {
                self.note(|| format!("by a lie: {violation}"));
                self.counts.deceptions += 1;
                Ok(())
            }
            result => result,
        }
    }

    /// What the device of a host refused last, oldest first.
    pub(crate) fn refusals(&self, host: usize) -> Vec<String> {
        let nic = self.world.nic(host);
        let last = nic.log().iter().rev().take(MAX_REFUSALS);
        let mut lines: Vec<_> = last.map(|it| format!("host {host} refused: {it}")).collect();
        lines.reverse();
        lines
    }

    /// Notes an error that the library reported, by its name and in the timeline.
    pub(crate) fn named(&mut self, what: &str, error: &dyn fmt::Display) {
        self.counts.named(error);
        self.note(|| format!("{what}: {error}"));
    }
}
