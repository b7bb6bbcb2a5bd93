//! What a trader took and sent, with its times, as a pcapng file.
//!
//! The core that polls copies each frame into a ring of memory and goes on: what finds no room is
//! lost to the file, and counted. A thread of its own writes.
//!
//! | frame | its time |
//! |---|---|
//! | taken from a queue that stamps | the device's stamp, by our clock |
//! | an order that the device was asked to stamp | the same, once the device has said it |
//! | any other | our clock, when it was taken or handed over |
//!
//! A comment of each packet says how far our clock was from its time when the frame was taken or
//! its doorbell had rung.
//!
//! # What it does not do
//! ARP and the reports to groups, which the network's own queue sends and takes, are not in the
//! file.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use ferrocx::ClockSource;
use pcap_file::DataLink;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{PcapNgBlock, PcapNgWriter};
use rtrb::{Consumer, Producer, RingBuffer};

use crate::latency::now_ns;

/// Bytes that a ring holds: of the shortest frames 90,000.
const RING_BYTES: usize = 8 << 20;
/// How long an order waits in front of the file for its stamp; then it has our clock's time.
const STAMP: Duration = Duration::from_millis(100);
/// Records that are taken before the file has its turn.
const TURN: usize = 4_096;
/// How long the writer rests when there is nothing.
const REST: Duration = Duration::from_millis(1);
/// No stamp, and no number of a frame.
const NONE: u64 = u64::MAX;
/// Timestamps count nanoseconds. Source: draft-ietf-opsawg-pcapng, if_tsresol.
const NANOSECONDS: u8 = 9;

/// What a record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
enum Kind {
    Came = 0,
    Left = 1,
    Stamped = 2,
}

/// What stands before a frame in the ring.
#[derive(Debug, Clone, Copy)]
struct Head {
    kind: u64,
    len: u64,
    /// Our clock, when it was taken, or when its doorbell had rung.
    now_ns: u64,
    /// The device's stamp of a frame that came, by our clock; the number of one that left.
    more: u64,
}

impl Head {
    const LEN: usize = 32;

    fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        for (place, word) in
            bytes.chunks_exact_mut(8).zip([self.kind, self.len, self.now_ns, self.more])
        {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_ne_bytes(*word));
        let mut word = || words.next().unwrap_or_default();
        Self { kind: word(), len: word(), now_ns: word(), more: word() }
    }
}

/// Where the core that polls leaves what it took and sent. Never waits, and allocates nothing.
#[derive(Debug)]
pub struct Recorder {
    ring: Producer<u8>,
    lost: Arc<AtomicU64>,
}

impl Recorder {
    /// A frame came, stamped at this time by our clock if the device stamped it.
    pub fn came(&mut self, frame: &[u8], now_ns: u64, stamp_ns: Option<u64>) {
        self.record(Kind::Came, frame, now_ns, stamp_ns.unwrap_or(NONE));
    }

    /// A frame left, whose stamp will come by this number, if it has one.
    pub fn left(&mut self, frame: &[u8], now_ns: u64, number: Option<u64>) {
        self.record(Kind::Left, frame, now_ns, number.unwrap_or(NONE));
    }

    /// The frame of this number left at this time, by our clock.
    pub fn stamped(&mut self, number: u64, stamp_ns: u64) {
        self.record(Kind::Stamped, &[], stamp_ns, number);
    }

    fn record(&mut self, kind: Kind, frame: &[u8], now_ns: u64, more: u64) {
        let head = Head { kind: kind as u64, len: frame.len() as u64, now_ns, more };
        // Whole or not at all.
        let is_kept = self.ring.slots() >= Head::LEN + frame.len()
            && self.ring.push_entire_slice(&head.to_bytes()).is_ok()
            && self.ring.push_entire_slice(frame).is_ok();
        if !is_kept {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A frame on its way to the file.
#[derive(Debug)]
struct Waiting {
    kind: u64,
    now_ns: u64,
    /// The device's stamp, by our clock.
    stamp_ns: Option<u64>,
    /// Number of the stamp that it waits for.
    number: Option<u64>,
    bytes: Vec<u8>,
}

/// One recorder's frames, in their order.
#[derive(Debug)]
struct Source {
    ring: Consumer<u8>,
    waiting: VecDeque<Waiting>,
}

impl Source {
    /// Takes the next record; `false` if there is none.
    fn take(&mut self) -> bool {
        let mut head = [0; Head::LEN];
        if self.ring.pop_entire_slice(&mut head).is_err() {
            return false;
        }
        let Head { kind, len, now_ns, more } = Head::from_bytes(&head);
        let more = (more != NONE).then_some(more);
        if kind == Kind::Stamped as u64 {
            let place = self.waiting.iter_mut().find(|frame| frame.number == more);
            if let Some(frame) = place {
                (frame.stamp_ns, frame.number) = (Some(now_ns), None);
            }
            return true;
        }
        let mut bytes = vec![0; len as usize];
        // The recorder is about to put it there.
        while self.ring.pop_entire_slice(&mut bytes).is_err() {
            if self.ring.is_abandoned() && self.ring.slots() < bytes.len() {
                return false;
            }
            thread::yield_now();
        }
        let (stamp_ns, number) = match kind == Kind::Came as u64 {
            true => (more, None),
            false => (None, more),
        };
        self.waiting.push_back(Waiting { kind, now_ns, stamp_ns, number, bytes });
        true
    }

    /// The oldest frame, if its time is known or it has waited long enough for it.
    fn ready(&mut self, now_ns: u64, stamp: Duration) -> Option<Waiting> {
        let oldest = self.waiting.front()?;
        let waited = Duration::from_nanos(now_ns.saturating_sub(oldest.now_ns));
        let is_ready = oldest.number.is_none() || waited >= stamp;
        if is_ready { self.waiting.pop_front() } else { None }
    }
}

/// The file.
struct Writer {
    out: PcapNgWriter<BufWriter<File>>,
    /// When our clock was 0, ns since 1970.
    epoch_ns: u64,
    frames: u64,
}

impl Writer {
    fn create(path: &Path) -> Result<Self> {
        let mut out = PcapNgWriter::new(BufWriter::new(File::create(path)?))?;
        let options = vec![
            InterfaceDescriptionOption::IfName(Cow::Borrowed("trader")),
            InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
        ];
        let block = InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 0, options };
        out.write_block(&block.into_block())?;
        let epoch_ns = ClockSource::Realtime.now_ns().saturating_sub(now_ns());
        Ok(Self { out, epoch_ns, frames: 0 })
    }

    fn write(&mut self, frame: &Waiting) -> Result<()> {
        let Waiting { kind, now_ns, stamp_ns, bytes, .. } = frame;
        let at_ns = stamp_ns.unwrap_or(*now_ns);
        let comment = match stamp_ns {
            Some(stamp_ns) => {
                format!("our clock {:+} ns", i128::from(*now_ns) - i128::from(*stamp_ns))
            }
            None => "our clock, no stamp".to_owned(),
        };
        let block = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: Duration::from_nanos(self.epoch_ns.saturating_add(at_ns)),
            original_len: bytes.len() as u32,
            data: Cow::Borrowed(bytes),
            options: vec![
                // In or out: its low two bits.
                EnhancedPacketOption::Flags(1 + *kind as u32),
                EnhancedPacketOption::Comment(Cow::Owned(comment)),
            ],
        };
        self.out.write_block(&block.into_block())?;
        self.frames += 1;
        Ok(())
    }
}

/// The thread that writes, and what it has written.
#[derive(Debug)]
pub struct Capture {
    path: PathBuf,
    thread: Option<JoinHandle<Result<u64>>>,
    is_over: Arc<AtomicBool>,
    lost: Arc<AtomicU64>,
}

/// What became of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Captured {
    /// Frames in the file.
    pub frames: u64,
    /// Records that found no room in a ring.
    pub lost: u64,
}

impl Capture {
    /// Creates the file, and starts the thread, which has the core of the calling one. A recorder
    /// is for the orders' line and all that comes, the other for the line of snapshots.
    ///
    /// # Errors
    /// One sentence: the file cannot be made.
    pub fn start(path: &Path) -> Result<(Self, [Recorder; 2])> {
        Self::start_with(path, STAMP)
    }

    /// The same with another time that an order waits for its stamp: what came behind it is in
    /// memory meanwhile.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(path: &Path, stamp: Duration) -> Result<(Self, [Recorder; 2])> {
        let writer = Writer::create(path).with_context(|| path.display().to_string())?;
        let (is_over, lost) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let rings = [(); 2].map(|()| RingBuffer::new(RING_BYTES));
        let [(first, one), (second, other)] = rings;
        let sources = [one, other].map(|ring| Source { ring, waiting: VecDeque::new() });
        let over = Arc::clone(&is_over);
        let thread = thread::Builder::new().name("capture".into());
        let thread = thread.spawn(move || run(writer, sources, stamp, &over))?;
        let recorders = [first, second].map(|ring| Recorder { ring, lost: Arc::clone(&lost) });
        Ok((Self { path: path.to_owned(), thread: Some(thread), is_over, lost }, recorders))
    }

    /// Writes what was left behind so far, and closes the file.
    ///
    /// # Errors
    /// One sentence: the file could not be written. What was there before that is.
    pub fn finish(mut self) -> Result<Captured> {
        self.is_over.store(true, Ordering::Release);
        let thread = self.thread.take().context("a capture is finished once")?;
        let written = thread.join().map_err(|_| anyhow!("the thread that writes panicked"))?;
        let frames = written.with_context(|| self.path.display().to_string())?;
        Ok(Captured { frames, lost: self.lost.load(Ordering::Relaxed) })
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // What it could not write was to be asked for by `finish`.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Writes until it is over; a fault ends the file, and not the taking.
fn run(
    mut writer: Writer,
    mut sources: [Source; 2],
    stamp: Duration,
    is_over: &AtomicBool,
) -> Result<u64> {
    let mut fault = Ok(());
    loop {
        // Before the rings are looked at: what is in them then is all of it.
        let is_last = is_over.load(Ordering::Acquire);
        let mut is_idle = true;
        let (now_ns, stamp) = (now_ns(), if is_last { Duration::ZERO } else { stamp });
        for source in &mut sources {
            let mut taken = 0;
            while (is_last || taken < TURN) && source.take() {
                taken += 1;
            }
            is_idle &= taken == 0;
            while let Some(frame) = source.ready(now_ns, stamp) {
                fault = fault.and_then(|()| writer.write(&frame));
            }
        }
        if is_idle || is_last {
            fault = fault.and_then(|()| Ok(writer.out.get_mut().flush()?));
        }
        if is_last {
            return fault.map(|()| writer.frames);
        }
        if is_idle {
            thread::sleep(REST);
        }
    }
}

#[cfg(test)]
mod tests {
    use pcap_file::pcapng::{Block, PcapNgReader};

    use super::*;

    /// Direction, time since 1970, comment and bytes of each packet of a file.
    fn packets(path: &Path) -> Vec<(u32, u64, String, Vec<u8>)> {
        let mut reader = PcapNgReader::new(File::open(path).unwrap()).unwrap();
        let mut packets = Vec::new();
        while let Some(block) = reader.next_block() {
            let Block::EnhancedPacket(packet) = block.unwrap() else { continue };
            let (mut flags, mut said) = (0, String::new());
            for option in &packet.options {
                match option {
                    EnhancedPacketOption::Flags(is) => flags = *is,
                    EnhancedPacketOption::Comment(is) => said = is.to_string(),
                    _ => {}
                }
            }
            let at_ns = packet.timestamp.as_nanos() as u64;
            packets.push((flags, at_ns, said, packet.data.to_vec()));
        }
        packets
    }

    #[test]
    fn frames_stand_in_their_order_with_the_devices_times_where_it_said_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("day.pcapng");
        let patience = Duration::from_secs(600);
        let (capture, [mut first, mut second]) = Capture::start_with(&path, patience).unwrap();
        let start = now_ns();
        first.came(b"feed", start + 500, Some(start + 200));
        first.left(b"order", start + 900, Some(7));
        first.came(b"answer", start + 2_000, None);
        first.stamped(6, start);
        first.stamped(7, start + 1_400);
        first.left(b"never stamped", start + 3_000, Some(8));
        second.left(b"", start, None);
        assert_eq!(capture.finish().unwrap(), Captured { frames: 5, lost: 0 });
        // The second line's stands anywhere among those of the first, which are in their order.
        let mut packets = packets(&path);
        let at = packets.iter().position(|(.., bytes)| bytes.is_empty()).unwrap();
        let other = packets.remove(at);
        let zero = packets[0].1;
        let told: Vec<_> = packets
            .iter()
            .chain([&other])
            .map(|(flags, at, said, bytes)| (*flags, at.wrapping_sub(zero), &said[..], &bytes[..]))
            .collect();
        assert_eq!(
            told,
            [
                (1, 0, "our clock +300 ns", &b"feed"[..]),
                (2, 1_200, "our clock -500 ns", b"order"),
                (1, 1_800, "our clock, no stamp", b"answer"),
                (2, 2_800, "our clock, no stamp", b"never stamped"),
                (2, 0_u64.wrapping_sub(200), "our clock, no stamp", b""),
            ]
        );
        // The day itself: nanoseconds since 1970, of the last hour.
        let now = ClockSource::Realtime.now_ns();
        assert!(zero < now && now - zero < 3_600_000_000_000, "{zero} {now}");
    }

    /// A writer that does not come along costs frames, whole ones, and no time.
    #[test]
    fn what_finds_no_room_is_counted_and_the_rest_is_whole() {
        let (producer, consumer) = RingBuffer::new(3 * Head::LEN + 10);
        let lost = Arc::<AtomicU64>::default();
        let mut recorder = Recorder { ring: producer, lost: Arc::clone(&lost) };
        for frame in [&b"12345"[..], &[9; 60], b"67890", b"x", b""] {
            recorder.came(frame, 1, None);
        }
        assert_eq!(lost.load(Ordering::Relaxed), 2);
        let mut source = Source { ring: consumer, waiting: VecDeque::new() };
        while source.take() {}
        let kept: Vec<_> = source.waiting.iter().map(|frame| &frame.bytes[..]).collect();
        assert_eq!(kept, [&b"12345"[..], b"67890", b""]);
    }

    #[test]
    fn a_file_that_cannot_be_made_is_named() {
        let error = Capture::start(Path::new("/no/such/day.pcapng")).unwrap_err();
        assert!(format!("{error:#}").starts_with("/no/such/day.pcapng: No such file"), "{error:#}");
    }
}
