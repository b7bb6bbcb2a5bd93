//! Writing what passes to a pcapng file that Wireshark opens.
//!
//! One [`CaptureFile`] takes the frames of any number of ports; each is an interface of the file,
//! and each frame says whether it came in or went out. Times are nanoseconds: the file's start plus
//! the model's time. For looking, not for speed: each frame takes a lock and an allocation.
//!
//! Source: IETF draft-ietf-opsawg-pcapng, Interface Description and Enhanced Packet Blocks.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgBlock, PcapNgWriter};
use pcap_file::{DataLink, PcapError};

use super::{Fcs, Received, Wire, room};

/// Direction bits of a packet's flags option.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;
/// The link layer found a CRC error: bit 24 of the flags.
const CRC_ERROR: u32 = 1 << 24;
/// Timestamps count nanoseconds: 10^-9 s.
const NANOSECONDS: u8 = 9;

/// Bytes that a file's frames wait in until they are written together.
const BUFFER_BYTES: usize = 1 << 20;

/// Reason for which a capture is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The system's.
    #[error("{name} cannot be written: {source}")]
    Write {
        /// Which: `capture`, and its path if it has one.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// Frames could not be written while they passed.
    #[error("{lost} frames are missing in {name}; is the disk full?")]
    Lost {
        /// Which: `capture`, and its path if it has one.
        name: String,
        /// How many.
        lost: u64,
    },
}

/// The system's reason, without the words around it.
fn reason(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}

type Writer = PcapNgWriter<Box<dyn Write + Send>>;

struct Shared {
    name: String,
    writer: Mutex<Writer>,
    start_ns: u64,
    /// Each block is flushed.
    is_live: bool,
    frames: AtomicU64,
    lost: AtomicU64,
}

/// A pcapng file that several ports write to.
#[derive(Clone)]
pub struct CaptureFile {
    shared: Arc<Shared>,
}

impl fmt::Debug for CaptureFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureFile")
            .field("frames", &self.frames())
            .field("lost", &self.lost())
            .finish_non_exhaustive()
    }
}

impl CaptureFile {
    /// Starts a capture; model time 0 is `start_ns` nanoseconds after 1970.
    ///
    /// Give a buffered writer. It is flushed by [`CaptureFile::flush`].
    ///
    /// # Errors
    ///
    /// [`CaptureError`] when the header cannot be written.
    pub fn new(out: impl Write + Send + 'static, start_ns: u64) -> Result<Self, CaptureError> {
        Self::start("capture".into(), out, start_ns, false)
    }

    /// Starts a capture in a new file, or in place of what one holds; model time 0 is now.
    ///
    /// # Errors
    ///
    /// [`CaptureError`] when the file cannot be made.
    pub fn create(path: &Path) -> Result<Self, CaptureError> {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::create_at(path, u64::try_from(since_1970.as_nanos()).unwrap_or(0))
    }

    /// Starts a capture in a new file, or in place of what one holds; model time 0 is `start_ns`
    /// nanoseconds after 1970.
    ///
    /// # Errors
    ///
    /// [`CaptureError`] when the file cannot be made.
    pub fn create_at(path: &Path, start_ns: u64) -> Result<Self, CaptureError> {
        let name = format!("capture {}", path.display());
        match File::create(path) {
            Ok(file) => {
                Self::start(name, BufWriter::with_capacity(BUFFER_BYTES, file), start_ns, false)
            }
            Err(source) => Err(CaptureError::Write { name, source }),
        }
    }

    /// As [`CaptureFile::new`], and flushes the writer behind each frame: for files that somebody
    /// reads while they grow, or whose process may be killed.
    ///
    /// # Errors
    ///
    /// [`CaptureError`] when the header cannot be written.
    pub fn live(out: impl Write + Send + 'static, start_ns: u64) -> Result<Self, CaptureError> {
        Self::start("capture".into(), out, start_ns, true)
    }

    fn start(
        name: String,
        out: impl Write + Send + 'static,
        start_ns: u64,
        is_live: bool,
    ) -> Result<Self, CaptureError> {
        let out: Box<dyn Write + Send> = Box::new(out);
        let writer = match PcapNgWriter::new(out) {
            Ok(writer) => Mutex::new(writer),
            Err(error) => return Err(CaptureError::Write { name, source: reason(error) }),
        };
        let shared = Shared {
            name,
            writer,
            start_ns,
            is_live,
            frames: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Adds an interface and returns its number.
    fn interface(&self, name: &str) -> Result<u32, CaptureError> {
        let mut writer = self.lock();
        let block = InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Owned(name.to_owned())),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ],
        };
        let number = u32::try_from(writer.interfaces().len()).unwrap_or(u32::MAX);
        let written = writer.write_block(&block.into_block());
        written.map_err(|error| self.unwritten(reason(error)))?;
        Ok(number)
    }

    fn write(&self, interface_id: u32, now_ns: u64, flags: u32, bytes: &[u8]) {
        let block = Block::EnhancedPacket(EnhancedPacketBlock {
            interface_id,
            timestamp: Duration::from_nanos(self.shared.start_ns.saturating_add(now_ns)),
            original_len: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            data: Cow::Borrowed(bytes),
            options: vec![EnhancedPacketOption::Flags(flags)],
        });
        let mut writer = self.lock();
        let is_written = writer.write_block(&block).is_ok()
            && (!self.shared.is_live || writer.get_mut().flush().is_ok());
        drop(writer);
        let count = if is_written { &self.shared.frames } else { &self.shared.lost };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Frames written so far.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.shared.frames.load(Ordering::Relaxed)
    }

    /// Frames that could not be written, for example because the disk is full.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// Flushes the writer.
    ///
    /// # Errors
    ///
    /// [`CaptureError::Write`].
    pub fn flush(&self) -> Result<(), CaptureError> {
        self.lock().get_mut().flush().map_err(|error| self.unwritten(error))
    }

    /// Flushes the writer, and says whether every frame is there.
    ///
    /// # Errors
    ///
    /// [`CaptureError`].
    pub fn finish(&self) -> Result<(), CaptureError> {
        self.flush()?;
        match self.lost() {
            0 => Ok(()),
            lost => Err(CaptureError::Lost { name: self.shared.name.clone(), lost }),
        }
    }

    fn unwritten(&self, source: io::Error) -> CaptureError {
        CaptureError::Write { name: self.shared.name.clone(), source }
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        self.shared.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A wire whose frames are also written to a file.
#[derive(Debug)]
pub struct Capture<W> {
    inner: W,
    file: CaptureFile,
    interface: u32,
    scratch: Vec<u8>,
    reserved: usize,
}

impl<W: Wire> Capture<W> {
    /// Captures what passes through `inner`, as interface `name` of the file.
    ///
    /// # Errors
    ///
    /// [`CaptureError`] when the interface cannot be written.
    pub fn new(inner: W, file: &CaptureFile, name: &str) -> Result<Self, CaptureError> {
        let interface = file.interface(name)?;
        Ok(Self { inner, file: file.clone(), interface, scratch: Vec::new(), reserved: 0 })
    }
}

fn crc(fcs: Fcs) -> u32 {
    if fcs == Fcs::Bad { CRC_ERROR } else { 0 }
}

impl<W: Wire> Wire for Capture<W> {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        // Only what the wire behind can take is captured; the frame is filled in here first.
        self.inner.reserve(len)?;
        self.reserved = len;
        Some(room(&mut self.scratch, len))
    }

    fn commit(&mut self, now_ns: u64, fcs: Fcs) {
        let frame = &self.scratch[..self.reserved];
        // The same length was free when it was reserved, and nothing was sent since.
        let Some(into) = self.inner.reserve(frame.len()) else { return };
        into.copy_from_slice(frame);
        self.inner.commit(now_ns, fcs);
        self.file.write(self.interface, now_ns, OUTBOUND | crc(fcs), frame);
    }

    fn flush(&mut self, now_ns: u64) -> bool {
        self.inner.flush(now_ns)
    }

    fn receive(&mut self, now_ns: u64) -> Option<Received<'_>> {
        let frame = self.inner.receive(now_ns)?;
        self.file.write(self.interface, now_ns, INBOUND | crc(frame.fcs), frame.bytes);
        Some(frame)
    }

    fn carrier(&self) -> bool {
        self.inner.carrier()
    }

    fn set_transmitter(&mut self, is_on: bool) {
        self.inner.set_transmitter(is_on);
    }
}

#[cfg(test)]
mod tests {
    use pcap_file::pcapng::PcapNgReader;

    use super::*;
    use crate::wire::link;

    /// A writer whose bytes the test keeps.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("not poisoned").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A writer that takes a number of bytes and then fails.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(std::io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn both_directions_stand_in_the_file_with_interface_time_and_flags() {
        let kept = Kept::default();
        let file = CaptureFile::new(kept.clone(), 1_000_000_000).expect("a header");
        let (near, mut far) = link(0);
        let mut wire = Capture::new(near, &file, "port0").expect("an interface");
        wire.reserve(60).expect("room").fill(1);
        wire.commit(5, Fcs::Good);
        far.reserve(61).expect("room").fill(2);
        far.commit(6, Fcs::Bad);
        far.flush(6);
        assert_eq!(wire.receive(7).map(|frame| frame.bytes.len()), Some(61));
        assert_eq!(wire.receive(8), None);
        file.flush().expect("nothing to fail");
        assert_eq!((file.frames(), file.lost()), (2, 0));

        let bytes = kept.0.lock().expect("not poisoned").clone();
        let mut reader = PcapNgReader::new(&bytes[..]).expect("a pcapng file");
        let mut packets = Vec::new();
        while let Some(block) = reader.next_block() {
            if let Block::EnhancedPacket(packet) = block.expect("a block") {
                let time_ns = packet.timestamp.as_nanos();
                let flags = match packet.options[..] {
                    [EnhancedPacketOption::Flags(flags)] => flags,
                    _ => 0,
                };
                packets.push((packet.interface_id, time_ns, packet.data.len(), flags));
            }
        }
        assert_eq!(packets[0], (0, 1_000_000_005, 60, OUTBOUND));
        assert_eq!(packets[1], (0, 1_000_000_007, 61, INBOUND | CRC_ERROR));
        assert_eq!(reader.interfaces()[0].options.len(), 2);
    }

    #[test]
    fn a_full_disk_is_counted_and_stops_nothing() {
        let file = CaptureFile::new(Full(100), 0).expect("a header of 28 bytes");
        let (near, mut far) = link(0);
        let mut wire = Capture::new(near, &file, "p").expect("an interface of 40 bytes");
        for _ in 0..3 {
            wire.reserve(60).expect("room").fill(1);
            wire.commit(0, Fcs::Good);
        }
        wire.flush(0);
        assert_eq!((file.frames(), file.lost()), (0, 3));
        let said = file.finish().expect_err("three are not there").to_string();
        assert_eq!(said, "3 frames are missing in capture; is the disk full?");
        let path = Path::new("/no/such/folder/a.pcapng");
        let said = CaptureFile::create(path).expect_err("no folder").to_string();
        assert!(said.starts_with("capture /no/such/folder/a.pcapng cannot be written: "), "{said}");
        assert!((0..3).all(|_| far.receive(0).is_some()));
    }
}
