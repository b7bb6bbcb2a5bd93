//! A source of load and the judge of what comes back: the far side of a forwarding test.
//!
//! Frames are Ethernet, IPv4, UDP. The payload carries a sequence number, the time of sending, a
//! check over both, and a pattern; so a frame that comes back tells whether it was damaged, how
//! long it took and what is missing. Everything is prepared once; per frame some 20 bytes change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Fcs, MAX_FRAME_BYTES, Received, Wire, room};
use crate::frame::offload;
use crate::frame::packet::{MIN_FRAME_BYTES, Packet};

/// Rate at which a generator makes frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Back to back, as many frames as the port takes; it drops those it has no buffers for.
    Flood,
    /// Frames per second of model time. Falling behind is not made up for beyond one burst.
    PerSecond(u64),
    /// At most this many on the way: a new one for each that came back.
    Window(u32),
}

/// Frames that a generator sends, and their rate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GeneratorConfig {
    /// Frame lengths without FCS, used in turn; each is raised to 60.
    pub sizes: Vec<usize>,
    /// UDP source ports in use, from 1024 on: 1 to 64,512.
    pub flows: u32,
    /// Rate of the frames.
    pub pace: Pace,
    /// Frames to send before it stops, if it is to stop.
    pub count: Option<u64>,
    /// Source address.
    pub source: [u8; 6],
    /// Destination address.
    pub destination: [u8; 6],
    /// Source and destination IPv4 address.
    pub ipv4: ([u8; 4], [u8; 4]),
    /// Fills in UDP checksums (0 otherwise, which means "none").
    pub udp_checksums: bool,
    /// With [`Pace::Window`]: a frame that is not back after this long is given up.
    pub timeout_ns: u64,
}

impl Default for GeneratorConfig {
    fn default() -> Self {
        Self {
            sizes: vec![MIN_FRAME_BYTES],
            flows: 1,
            pace: Pace::Flood,
            count: None,
            source: [0x02, 0xfe, 0x0c, 0xff, 0, 1],
            destination: [0x02, 0xfe, 0x0c, 0, 0, 1],
            ipv4: ([198, 18, 0, 1], [198, 18, 0, 2]),
            udp_checksums: false,
            timeout_ns: 100_000_000,
        }
    }
}

macro_rules! stats {
    ($($(#[$meta:meta])* $field:ident,)*) => {
        /// Frames sent, and frames that came back.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct GeneratorStats { $( $(#[$meta])* pub $field: u64, )* }

        /// Statistics of the generator where another thread can read them.
        #[derive(Debug, Default)]
        struct SharedStats { $( $field: AtomicU64, )* }

        impl SharedStats {
            fn publish(&self, stats: &GeneratorStats) {
                $( self.$field.store(stats.$field, Ordering::Relaxed); )*
            }

            fn read(&self) -> GeneratorStats {
                GeneratorStats { $( $field: self.$field.load(Ordering::Relaxed), )* }
            }
        }
    };
}

stats! {
    /// Frames sent.
    sent,
    /// Bytes sent, without FCS.
    sent_bytes,
    /// Frames that came back whole.
    returned,
    /// Bytes of those.
    returned_bytes,
    /// Frames that came back changed behind their layer-2 header, or with a bad FCS.
    damaged,
    /// Frames that came and are not this generator's.
    foreign,
    /// Frames whose sequence number was below one seen before: late or repeated.
    out_of_order,
    /// Frames given up by the window.
    timed_out,
    /// Sum of the times on the way, of frames that came back, in nanoseconds of model time.
    latency_sum_ns,
    /// The longest of them.
    latency_max_ns,
}

impl GeneratorStats {
    /// Frames that have not come back.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.sent.saturating_sub(self.returned + self.damaged)
    }
}

/// Reads the counts of a [`Generator`] and stops it, from any thread.
#[derive(Debug, Clone)]
pub struct GeneratorHandle {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    stats: SharedStats,
    is_paused: AtomicBool,
}

impl GeneratorHandle {
    /// The counts as of the port's last step.
    #[must_use]
    pub fn stats(&self) -> GeneratorStats {
        self.shared.stats.read()
    }

    /// Stops or resumes sending; what is on the way still comes back.
    pub fn set_paused(&self, is_paused: bool) {
        self.shared.is_paused.store(is_paused, Ordering::Relaxed);
    }
}

const IPV4: usize = 14;
const UDP: usize = 34;
const SPORT: usize = UDP;
const UDP_CHECKSUM: usize = UDP + 6;
const PAYLOAD: usize = 42;
const SEQUENCE: usize = PAYLOAD;
const SENT_NS: usize = PAYLOAD + 8;
const CHECK: usize = PAYLOAD + 16;
const PATTERN: usize = PAYLOAD + 18;
const FIRST_PORT: u32 = 1024;
const PORT: u16 = 9;
/// Frames handed out in one burst at a fixed rate, when time has run ahead.
const MAX_BURST: u64 = 64;
/// Frames written before the first of them is handed out: as many as a step takes, and as fit a
/// part of the nearest cache.
const MAX_AHEAD: usize = 64;
const AHEAD_BYTES: usize = 16 << 10;

/// Frames that are written, from the next place on, and were not handed out.
///
/// Whoever takes a frame reads it at once, in other words than it was written in. The processor
/// then finishes all stores before those of the frame, into lines that another core holds as well;
/// so as many as are likely to be taken are written together, and that happens once for all.
#[derive(Debug, Default)]
struct Ahead {
    ready: usize,
    /// Time of sending that they carry.
    at_ns: u64,
    /// Frames handed out at that time.
    taken: usize,
}

/// A wire whose other end makes frames and takes them back.
#[derive(Debug)]
pub struct Generator {
    config: GeneratorConfig,
    /// Places of frames, used in turn: those of one size after the other, as often as they fit.
    frames: Vec<Vec<u8>>,
    pattern: Vec<u8>,
    /// Place and flow of the next frame.
    turn: usize,
    flow: u32,
    ahead: Ahead,
    scratch: Vec<u8>,
    reserved: usize,
    highest: Option<u64>,
    /// Time at which the next frame is due at a fixed rate.
    due_ns: u64,
    last_return_ns: u64,
    stats: GeneratorStats,
    published: GeneratorStats,
    shared: Arc<Shared>,
}

impl Generator {
    /// Prepares the frames.
    #[must_use]
    pub fn new(config: GeneratorConfig) -> Self {
        let mut sizes = config.sizes.clone();
        if sizes.is_empty() {
            sizes.push(MIN_FRAME_BYTES);
        }
        let longest =
            sizes.iter().copied().max().unwrap_or(0).clamp(MIN_FRAME_BYTES, MAX_FRAME_BYTES);
        let places = (AHEAD_BYTES / longest).clamp(1, MAX_AHEAD).next_multiple_of(sizes.len());
        let in_turn = sizes.iter().cycle().take(places);
        let frames = in_turn.map(|size| prepare(&config, *size)).collect();
        Self {
            config,
            frames,
            pattern: whole_pattern(),
            turn: 0,
            flow: 0,
            ahead: Ahead::default(),
            scratch: Vec::new(),
            reserved: 0,
            highest: None,
            due_ns: 0,
            last_return_ns: 0,
            stats: GeneratorStats::default(),
            published: GeneratorStats::default(),
            shared: Arc::default(),
        }
    }

    /// A handle for other threads.
    #[must_use]
    pub fn handle(&self) -> GeneratorHandle {
        GeneratorHandle { shared: Arc::clone(&self.shared) }
    }

    /// The counts, exactly.
    #[must_use]
    pub fn stats(&self) -> GeneratorStats {
        self.stats
    }

    /// Whether a frame may be sent now.
    #[inline]
    fn may_send(&mut self, now_ns: u64) -> bool {
        if self.config.count.is_some_and(|count| self.stats.sent >= count)
            || self.shared.is_paused.load(Ordering::Relaxed)
        {
            return false;
        }
        match self.config.pace {
            Pace::Flood => true,
            Pace::PerSecond(0) => false,
            Pace::PerSecond(rate) => {
                if now_ns < self.due_ns {
                    return false;
                }
                let step_ns = 1_000_000_000 / rate;
                let oldest = now_ns.saturating_sub(MAX_BURST * step_ns);
                self.due_ns = self.due_ns.max(oldest) + step_ns;
                true
            }
            Pace::Window(window) => {
                let stats = &mut self.stats;
                let done = stats.returned + stats.damaged + stats.timed_out;
                let on_the_way = stats.sent.saturating_sub(done);
                if on_the_way < u64::from(window) {
                    return true;
                }
                if now_ns.saturating_sub(self.last_return_ns) > self.config.timeout_ns {
                    stats.timed_out += on_the_way;
                    self.last_return_ns = now_ns;
                    return true;
                }
                false
            }
        }
    }

    /// Judges a frame that came back.
    #[inline]
    fn judge(&mut self, now_ns: u64, fcs: Fcs) {
        let frame = &self.scratch[..self.reserved];
        let stats = &mut self.stats;
        let is_ours = |frame: &[u8; PATTERN]| {
            frame[12..14] == [8, 0]
                && frame[UDP + 2..UDP + 4] == PORT.to_be_bytes()
                && frame[IPV4 + 9] == 17
        };
        let Some(front) = frame.first_chunk::<PATTERN>().filter(|front| is_ours(front)) else {
            stats.foreign += 1;
            return;
        };
        let number = |at: usize| {
            front[at..].first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes))
        };
        let (sequence, sent_ns) = (number(SEQUENCE), number(SENT_NS));
        let size = usize::from(u16::from_be_bytes([front[IPV4 + 2], front[IPV4 + 3]])) + IPV4;
        let is_whole = fcs == Fcs::Good
            && front[CHECK..CHECK + 2] == check(sequence, sent_ns).to_be_bytes()
            && size <= frame.len()
            && (size <= PATTERN || frame[PATTERN..size] == self.pattern[..size - PATTERN]);
        if !is_whole {
            stats.damaged += 1;
            return;
        }
        stats.returned += 1;
        stats.returned_bytes += frame.len() as u64;
        let latency_ns = now_ns.saturating_sub(sent_ns);
        stats.latency_sum_ns += latency_ns;
        stats.latency_max_ns = stats.latency_max_ns.max(latency_ns);
        if self.highest.is_some_and(|highest| sequence <= highest) {
            stats.out_of_order += 1;
        } else {
            self.highest = Some(sequence);
        }
        self.last_return_ns = now_ns;
    }

    /// Writes the frames that are likely to be taken now: as many as at the time before, or since
    /// this time began.
    #[inline(never)]
    fn write_ahead(&mut self, now_ns: u64) {
        let ahead = &mut self.ahead;
        let count = ahead.taken.clamp(1, self.frames.len());
        if ahead.at_ns != now_ns {
            (ahead.at_ns, ahead.taken) = (now_ns, 0);
        }
        ahead.ready = count;
        let (mut turn, mut flow) = (self.turn, self.flow);
        for sequence in (self.stats.sent..).take(count) {
            let frame = &mut self.frames[turn];
            stamp(frame, sequence, now_ns, flow);
            if self.config.udp_checksums {
                frame[UDP_CHECKSUM..UDP_CHECKSUM + 2].fill(0);
                let packet = Packet::parse(frame);
                offload::insert_checksums(frame, &packet, false, true);
            }
            (turn, flow) = self.after(turn, flow);
        }
    }

    /// Place and flow of the frame behind another.
    #[inline]
    fn after(&self, turn: usize, flow: u32) -> (usize, u32) {
        let turn = if turn + 1 == self.frames.len() { 0 } else { turn + 1 };
        let flow = if flow + 1 >= self.config.flows { 0 } else { flow + 1 };
        (turn, flow)
    }

    fn publish(&mut self) {
        if self.published != self.stats {
            self.shared.stats.publish(&self.stats);
            self.published = self.stats;
        }
    }
}

/// The byte that stands `index` bytes into the pattern.
#[inline]
fn pattern(index: usize) -> u8 {
    (index % 251).to_le_bytes()[0]
}

/// The pattern, as long as the longest frame.
fn whole_pattern() -> Vec<u8> {
    (0..MAX_FRAME_BYTES).map(pattern).collect()
}

/// 16 bits over sequence number and time.
#[inline]
fn check(sequence: u64, sent_ns: u64) -> u16 {
    let mixed = (sequence ^ sent_ns.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    u16::from_be_bytes([mixed.to_be_bytes()[0], mixed.to_be_bytes()[1]])
}

/// What changes from frame to frame, but for the checksum.
#[inline]
fn stamp(frame: &mut [u8], sequence: u64, now_ns: u64, flow: u32) {
    // All are longer.
    let Some(front) = frame.first_chunk_mut::<PATTERN>() else { return };
    let sport = (FIRST_PORT + flow).to_be_bytes();
    front[SPORT..SPORT + 2].copy_from_slice(&sport[2..]);
    front[SEQUENCE..SEQUENCE + 8].copy_from_slice(&sequence.to_be_bytes());
    front[SENT_NS..SENT_NS + 8].copy_from_slice(&now_ns.to_be_bytes());
    front[CHECK..CHECK + 2].copy_from_slice(&check(sequence, now_ns).to_be_bytes());
}

/// Everything of a frame that does not change.
fn prepare(config: &GeneratorConfig, size: usize) -> Vec<u8> {
    let size = size.clamp(MIN_FRAME_BYTES, MAX_FRAME_BYTES);
    let mut frame = vec![0; size];
    frame[..6].copy_from_slice(&config.destination);
    frame[6..12].copy_from_slice(&config.source);
    frame[12] = 0x08;
    let lengths = |len: usize| u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes();
    frame[IPV4..IPV4 + 2].copy_from_slice(&[0x45, 0]);
    frame[IPV4 + 2..IPV4 + 4].copy_from_slice(&lengths(size - IPV4));
    frame[IPV4 + 8..IPV4 + 10].copy_from_slice(&[64, 17]);
    frame[IPV4 + 12..IPV4 + 16].copy_from_slice(&config.ipv4.0);
    frame[IPV4 + 16..IPV4 + 20].copy_from_slice(&config.ipv4.1);
    frame[UDP + 2..UDP + 4].copy_from_slice(&PORT.to_be_bytes());
    frame[UDP + 4..UDP + 6].copy_from_slice(&lengths(size - UDP));
    for (index, byte) in frame[PATTERN..].iter_mut().enumerate() {
        *byte = pattern(index);
    }
    let packet = Packet::parse(&frame);
    offload::insert_checksums(&mut frame, &packet, true, false);
    frame
}

impl Wire for Generator {
    #[inline]
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.reserved = len;
        Some(room(&mut self.scratch, len))
    }

    #[inline]
    fn commit(&mut self, now_ns: u64, fcs: Fcs) {
        self.judge(now_ns, fcs);
    }

    fn flush(&mut self, _now_ns: u64) -> bool {
        self.publish();
        false
    }

    #[inline]
    fn receive(&mut self, now_ns: u64) -> Option<Received<'_>> {
        if !self.may_send(now_ns) {
            return None;
        }
        if self.ahead.ready == 0 || self.ahead.at_ns != now_ns {
            self.write_ahead(now_ns);
        }
        self.ahead.ready -= 1;
        self.ahead.taken += 1;
        let turn = self.turn;
        (self.turn, self.flow) = self.after(turn, self.flow);
        let frame = &self.frames[turn];
        self.stats.sent += 1;
        self.stats.sent_bytes += frame.len() as u64;
        Some(Received { bytes: frame, fcs: Fcs::Good })
    }
}

#[cfg(test)]
#[path = "generator_tests.rs"]
mod tests;
