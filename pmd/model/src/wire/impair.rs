//! A bad cable: loses, delays, reorders, repeats and damages frames, by chance from a seed.

use std::fmt;
use std::str::FromStr;

use crate::frame::offload::sum16;

use super::{Fcs, Received, SplitMix64, Wire, room};

/// Chances of damage, loss, delay and repetition, in parts per million of the frames sent, 0 to
/// 1,000,000; all zero is a perfect cable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ImpairConfig {
    /// The frame vanishes.
    pub loss_ppm: u32,
    /// The frame arrives twice.
    pub duplicate_ppm: u32,
    /// One bit changes and the frame check sequence shows it.
    pub corrupt_ppm: u32,
    /// One bit changes and the frame check sequence is right again, as behind a bad switch.
    pub silent_corrupt_ppm: u32,
    /// The frame is held back until [`ImpairConfig::reorder_frames`] others have passed.
    pub reorder_ppm: u32,
    /// Number of frames that overtake one that is held back.
    pub reorder_frames: u32,
    /// Every frame takes this long.
    pub delay_ns: u64,
    /// Every frame takes up to this much longer; frames stay in order unless reordered.
    pub jitter_ns: u64,
    /// The IP packet meets congestion: a switch sets both ECN bits, if one was set.
    pub congestion_ppm: u32,
    /// Frames on the way at most; more are lost, as in a full switch. 0 for 65,536. All that are
    /// there take 32 MiB at most, whatever stands here.
    pub max_frames: usize,
}

/// Text that is not what [`ImpairConfig`] prints.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` says nothing about a wire; give loss, duplicate, corrupt, silent_corrupt, reorder or \
     congestion with 0 to 1000000 parts in a million, overtakers with frames, delay or jitter \
     with nanoseconds: loss=10000,delay=5000"
)]
pub struct ImpairError(String);

impl ImpairConfig {
    /// What text calls each number that may be set, with its limit.
    fn numbers(&mut self) -> [(&'static str, Number<'_>); 9] {
        [
            ("loss", Number::Chance(&mut self.loss_ppm)),
            ("duplicate", Number::Chance(&mut self.duplicate_ppm)),
            ("corrupt", Number::Chance(&mut self.corrupt_ppm)),
            ("silent_corrupt", Number::Chance(&mut self.silent_corrupt_ppm)),
            ("reorder", Number::Chance(&mut self.reorder_ppm)),
            ("congestion", Number::Chance(&mut self.congestion_ppm)),
            ("overtakers", Number::Count(&mut self.reorder_frames)),
            ("delay", Number::Time(&mut self.delay_ns)),
            ("jitter", Number::Time(&mut self.jitter_ns)),
        ]
    }
}

/// A number of an [`ImpairConfig`], by what it counts.
enum Number<'a> {
    Chance(&'a mut u32),
    Count(&'a mut u32),
    Time(&'a mut u64),
}

impl fmt::Display for ImpairConfig {
    /// Numbers that are not 0, as `name=number`, with commas between them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for (name, number) in (*self).clone().numbers() {
            let value = match number {
                Number::Chance(value) | Number::Count(value) => u64::from(*value),
                Number::Time(value) => *value,
            };
            if value != 0 {
                write!(f, "{comma}{name}={value}")?;
                comma = ",";
            }
        }
        Ok(())
    }
}

impl FromStr for ImpairConfig {
    type Err = ImpairError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut config = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let wrong = || ImpairError(part.to_owned());
            let (name, value) = part.split_once('=').ok_or_else(wrong)?;
            let found = config.numbers().into_iter().find(|(known, _)| *known == name);
            match found.ok_or_else(wrong)?.1 {
                Number::Chance(into) => {
                    let chance = value.parse().ok().filter(|chance| *chance <= 1_000_000);
                    *into = chance.ok_or_else(wrong)?;
                }
                Number::Count(into) => *into = value.parse().map_err(|_| wrong())?,
                Number::Time(into) => *into = value.parse().map_err(|_| wrong())?,
            }
        }
        Ok(config)
    }
}

/// Frames that were impaired, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ImpairStats {
    /// Frames that were sent into the cable.
    pub sent: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Lost because too many were on the way.
    pub overflowed: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Damaged, with a bad frame check sequence.
    pub corrupted: u64,
    /// Damaged, with a good one.
    pub silently_corrupted: u64,
    /// Held back behind later ones.
    pub reordered: u64,
    /// Marked as having met congestion.
    pub marked: u64,
}

/// Longest time that a held-back frame waits for others.
const REORDER_TIMEOUT_NS: u64 = 10_000_000;
const DEFAULT_MAX_FRAMES: usize = 65_536;
/// Memory of the frames on the way: at 10 Gbit/s, 25 ms of them. Those beyond are lost, as those
/// beyond the number of frames are.
const MAX_BYTES: usize = 32 << 20;
/// Emptied buffers that are kept for later frames.
const MAX_SPARE: usize = 256;

/// A frame on the way.
#[derive(Debug)]
struct Pending {
    bytes: Vec<u8>,
    fcs: Fcs,
    due_ns: u64,
    /// Frames that have to pass first.
    behind: u32,
}

/// A wire with an impaired sending direction. Impair both ends to impair both directions.
#[derive(Debug)]
pub struct Impair<W> {
    inner: W,
    config: ImpairConfig,
    rng: SplitMix64,
    scratch: Vec<u8>,
    reserved: usize,
    /// In the order in which they leave.
    pending: std::collections::VecDeque<Pending>,
    /// Memory of their buffers.
    pending_bytes: usize,
    /// Buffers to use again.
    spare: Vec<Vec<u8>>,
    last_due_ns: u64,
    stats: ImpairStats,
}

impl<W: Wire> Impair<W> {
    /// Impairs what is sent into `inner`.
    #[must_use]
    pub fn new(inner: W, config: ImpairConfig, rng: SplitMix64) -> Self {
        Self {
            inner,
            config,
            rng,
            scratch: Vec::new(),
            reserved: 0,
            pending: std::collections::VecDeque::new(),
            pending_bytes: 0,
            spare: Vec::new(),
            last_due_ns: 0,
            stats: ImpairStats::default(),
        }
    }

    /// Frames that were impaired so far.
    #[must_use]
    pub fn stats(&self) -> ImpairStats {
        self.stats
    }

    /// The wire behind.
    pub fn inner_mut(&mut self) -> &mut W {
        &mut self.inner
    }

    fn enqueue(&mut self, now_ns: u64, fcs: Fcs, behind: u32) {
        let limit = match self.config.max_frames {
            0 => DEFAULT_MAX_FRAMES,
            limit => limit,
        };
        if self.pending.len() >= limit || self.pending_bytes + self.reserved > MAX_BYTES {
            self.stats.overflowed += 1;
            return;
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(&self.scratch[..self.reserved]);
        // A short frame does not keep the memory of a long one.
        bytes.shrink_to(2 * self.reserved);
        self.pending_bytes += bytes.capacity();
        let jitter_ns = self.rng.below(self.config.jitter_ns.saturating_add(1));
        let due_ns = now_ns.saturating_add(self.config.delay_ns).saturating_add(jitter_ns);
        let due_ns = due_ns.max(self.last_due_ns);
        self.last_due_ns = due_ns;
        self.pending.push_back(Pending { bytes, fcs, due_ns, behind });
    }

    /// Hands on what is due.
    fn pump(&mut self, now_ns: u64) {
        let mut at = 0;
        while at < self.pending.len() {
            let frame = &self.pending[at];
            if frame.due_ns > now_ns {
                break;
            }
            let waited = now_ns - frame.due_ns;
            if frame.behind > 0 && waited < REORDER_TIMEOUT_NS {
                at += 1;
                continue;
            }
            let Some(into) = self.inner.reserve(frame.bytes.len()) else { break };
            into.copy_from_slice(&frame.bytes);
            self.inner.commit(now_ns, frame.fcs);
            if let Some(sent) = self.pending.remove(at) {
                self.pending_bytes -= sent.bytes.capacity();
                if self.spare.len() < MAX_SPARE {
                    self.spare.push(sent.bytes);
                }
            }
            // Frames that were held back before this one are overtaken by it.
            for held in self.pending.iter_mut().take(at) {
                held.behind = held.behind.saturating_sub(1);
            }
            at = 0;
        }
    }
}

/// Sets both ECN bits of an IP packet whose sender set one. Source: RFC 3168, section 5.
fn mark(frame: &mut [u8]) -> Option<()> {
    let tag = if frame.get(12..14)? == [0x81, 0x00] { 4 } else { 0 };
    let (kind, ip) = frame.get_mut(12 + tag..)?.split_at_mut_checked(2)?;
    match *kind {
        [0x08, 0x00] => {
            let header = ip.get_mut(..20).filter(|ip| ip[0] == 0x45 && ip[1] & 3 != 0)?;
            header[1] |= 3;
            header[10..12].fill(0);
            let checksum = !sum16(header);
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        [0x86, 0xdd] => *ip.get_mut(1).filter(|class| **class >> 4 & 3 != 0)? |= 0x30,
        _ => return None,
    }
    Some(())
}

impl<W: Wire> Wire for Impair<W> {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.reserved = len;
        Some(room(&mut self.scratch, len))
    }

    fn commit(&mut self, now_ns: u64, mut fcs: Fcs) {
        let config = self.config;
        self.stats.sent += 1;
        if self.rng.chance(config.loss_ppm) {
            self.stats.lost += 1;
            return;
        }
        // Who asks for none of it keeps the sequence that a seed has.
        if config.congestion_ppm != 0 && self.rng.chance(config.congestion_ppm) {
            let frame = &mut self.scratch[..self.reserved];
            self.stats.marked += u64::from(mark(frame).is_some());
        }
        let is_corrupt = self.rng.chance(config.corrupt_ppm);
        let is_silent = self.rng.chance(config.silent_corrupt_ppm);
        if is_corrupt || is_silent {
            let bit = self.rng.below(self.reserved as u64 * 8);
            let at = usize::try_from(bit / 8).unwrap_or(0);
            self.scratch[at] ^= 1 << (bit % 8);
        }
        if is_corrupt {
            self.stats.corrupted += 1;
            fcs = Fcs::Bad;
        } else if is_silent {
            self.stats.silently_corrupted += 1;
        }
        let mut behind = 0;
        if self.rng.chance(config.reorder_ppm) {
            self.stats.reordered += 1;
            behind = config.reorder_frames.max(1);
        }
        self.enqueue(now_ns, fcs, behind);
        if self.rng.chance(config.duplicate_ppm) {
            self.stats.duplicated += 1;
            self.enqueue(now_ns, fcs, 0);
        }
        self.pump(now_ns);
    }

    fn flush(&mut self, now_ns: u64) -> bool {
        self.pump(now_ns);
        self.inner.flush(now_ns)
    }

    fn receive(&mut self, now_ns: u64) -> Option<Received<'_>> {
        self.inner.receive(now_ns)
    }

    fn carrier(&self) -> bool {
        self.inner.carrier()
    }

    fn set_transmitter(&mut self, is_on: bool) {
        self.inner.set_transmitter(is_on);
    }
}

#[cfg(test)]
#[path = "impair_tests.rs"]
mod tests;
