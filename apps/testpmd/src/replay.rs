//! A wire that plays a capture into a port: frames of a pcap or pcapng file, once, as fast as they
//! are taken. What the port sends goes nowhere.

use std::{
    fs::File,
    io::{self, BufReader, Read, Seek},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use ferrocx_model::wire::{Fcs, MAX_FRAME_BYTES, Received, Wire};
use pcap_file::{
    DataLink, PcapError,
    pcap::PcapReader,
    pcapng::{Block, PcapNgReader},
};
use thiserror::Error;

/// Most bytes of frames that are read into memory.
pub const MAX_BYTES: usize = 1 << 30;
/// First four bytes of a pcapng file. Source: draft-ietf-opsawg-pcapng, section 4.1.
const PCAPNG_MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// Why a capture cannot be played.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The file cannot be read.
    #[error("cannot read the capture {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file is no capture, or is damaged.
    #[error(
        "{} is not a pcap or pcapng file, or is damaged behind frame {frames}: {what}; make it \
         again with tcpdump -w or tshark -w",
        path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Frames that were read before.
        frames: usize,
        /// What is wrong.
        what: String,
    },
    /// The frames are not Ethernet.
    #[error("{} holds link type {link:?}; only Ethernet can be played", path.display())]
    LinkType {
        /// The file.
        path: PathBuf,
        /// Its link type.
        link: DataLink,
    },
    /// A frame that no wire carries.
    #[error(
        "frame {frame} of {} has {len_bytes} bytes; it must be 1 to {MAX_FRAME_BYTES}",
        path.display()
    )]
    FrameLength {
        /// The file.
        path: PathBuf,
        /// Which frame, from 1.
        frame: usize,
        /// Its length.
        len_bytes: usize,
    },
    /// More than fits.
    #[error("{} holds more than {MAX_BYTES} bytes of frames; cut it with editcap", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// Nothing to play.
    #[error("{} holds no frame; give a capture with at least one", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// The frames of a capture.
#[derive(Debug, Default)]
struct Frames {
    bytes: Vec<u8>,
    /// End of each frame in `bytes`.
    ends: Vec<usize>,
}

impl Frames {
    fn push(&mut self, path: &Path, frame: &[u8]) -> Result<(), ReplayError> {
        let (path, len_bytes) = (|| path.to_path_buf(), frame.len());
        if !(1..=MAX_FRAME_BYTES).contains(&len_bytes) {
            let frame = self.ends.len() + 1;
            return Err(ReplayError::FrameLength { path: path(), frame, len_bytes });
        }
        if self.bytes.len() + len_bytes > MAX_BYTES {
            return Err(ReplayError::TooLarge { path: path() });
        }
        self.bytes.extend_from_slice(frame);
        self.ends.push(self.bytes.len());
        Ok(())
    }

    fn malformed(&self, path: &Path, error: &PcapError) -> ReplayError {
        let (path, frames) = (path.to_path_buf(), self.ends.len());
        ReplayError::Malformed { path, frames, what: error.to_string() }
    }
}

/// A wire that plays a capture.
#[derive(Debug)]
pub struct Replay {
    frames: Frames,
    next: usize,
    scratch: Vec<u8>,
    start: ReplayHandle,
}

/// Starts a [`Replay`], from any thread.
#[derive(Debug, Clone, Default)]
pub struct ReplayHandle(Arc<AtomicBool>);

impl ReplayHandle {
    /// Lets the frames go.
    pub fn start(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Replay {
    /// Reads the whole capture.
    ///
    /// # Errors
    /// [`ReplayError`], which names the file.
    pub fn open(path: &Path) -> Result<Self, ReplayError> {
        let file = File::open(path);
        let file = file.map_err(|source| ReplayError::Io { path: path.into(), source })?;
        Self::read(path, BufReader::new(file))
    }

    /// Reads a whole capture from anywhere; `path` is what errors call it.
    ///
    /// # Errors
    /// [`ReplayError`], which names the file.
    pub fn read(path: &Path, mut file: impl Read + Seek) -> Result<Self, ReplayError> {
        let io = |source| ReplayError::Io { path: path.into(), source };
        let mut magic = [0; 4];
        let is_pcapng = match file.read_exact(&mut magic) {
            Ok(()) => magic == PCAPNG_MAGIC,
            // Too short for either; the reader says so.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => false,
            Err(error) => return Err(io(error)),
        };
        file.rewind().map_err(io)?;
        let mut frames = Frames::default();
        if is_pcapng {
            read_pcapng(path, file, &mut frames)?;
        } else {
            read_pcap(path, file, &mut frames)?;
        }
        if frames.ends.is_empty() {
            return Err(ReplayError::Empty { path: path.into() });
        }
        Ok(Self {
            frames,
            next: 0,
            scratch: vec![0; MAX_FRAME_BYTES],
            start: ReplayHandle::default(),
        })
    }

    /// What starts it; nothing is played before.
    #[must_use]
    pub fn handle(&self) -> ReplayHandle {
        self.start.clone()
    }
}

fn read_pcap(path: &Path, file: impl Read, frames: &mut Frames) -> Result<(), ReplayError> {
    let mut reader = PcapReader::new(file).map_err(|error| frames.malformed(path, &error))?;
    check_link(path, reader.header().datalink)?;
    while let Some(packet) = reader.next_packet() {
        let packet = packet.map_err(|error| frames.malformed(path, &error))?;
        frames.push(path, &packet.data)?;
    }
    Ok(())
}

fn read_pcapng(path: &Path, file: impl Read, frames: &mut Frames) -> Result<(), ReplayError> {
    let mut reader = PcapNgReader::new(file).map_err(|error| frames.malformed(path, &error))?;
    while let Some(block) = reader.next_block() {
        match block.map_err(|error| frames.malformed(path, &error))? {
            Block::InterfaceDescription(interface) => check_link(path, interface.linktype)?,
            Block::EnhancedPacket(packet) => frames.push(path, &packet.data)?,
            Block::SimplePacket(packet) => frames.push(path, &packet.data)?,
            _ => {}
        }
    }
    Ok(())
}

fn check_link(path: &Path, link: DataLink) -> Result<(), ReplayError> {
    match link {
        DataLink::ETHERNET => Ok(()),
        link => Err(ReplayError::LinkType { path: path.into(), link }),
    }
}

impl Wire for Replay {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.scratch.get_mut(..len)
    }

    fn commit(&mut self, _now_ns: u64, _fcs: Fcs) {}

    fn receive(&mut self, _now_ns: u64) -> Option<Received<'_>> {
        let end = *self.frames.ends.get(self.next)?;
        if !self.start.0.load(Ordering::Relaxed) {
            return None;
        }
        let start = self.next.checked_sub(1).map_or(0, |before| self.frames.ends[before]);
        self.next += 1;
        Some(Received { bytes: &self.frames.bytes[start..end], fcs: Fcs::Good })
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};

    use super::*;

    fn file(name: &str, bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    fn pcap(frames: &[&[u8]], link: DataLink) -> Vec<u8> {
        let header = PcapHeader { datalink: link, ..PcapHeader::default() };
        let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
        for frame in frames {
            let len = u32::try_from(frame.len()).unwrap();
            writer.write_packet(&PcapPacket::new(Duration::ZERO, len, frame)).unwrap();
        }
        writer.into_writer()
    }

    fn sentence(bytes: &[u8]) -> String {
        let (_folder, path) = file("x.pcap", bytes);
        let sentence = Replay::open(&path).expect_err("refused").to_string();
        assert!(sentence.contains(&path.display().to_string()), "{sentence}");
        sentence
    }

    #[test]
    fn frames_are_played_once_and_in_order() {
        let (_folder, path) =
            file("x.pcap", &pcap(&[&[1; 60], &[2], &[3; 100]], DataLink::ETHERNET));
        let mut wire = Replay::open(&path).unwrap();
        assert!(wire.receive(0).is_none());
        wire.handle().start();
        for (byte, len) in [(1, 60), (2, 1), (3, 100)] {
            assert_eq!(wire.receive(0).unwrap().bytes, vec![byte; len]);
        }
        assert!(wire.receive(0).is_none());
        assert_eq!(wire.reserve(MAX_FRAME_BYTES).map(|room| room.len()), Some(MAX_FRAME_BYTES));
    }

    #[test]
    fn a_file_that_cannot_be_played_is_named_with_the_reason() {
        let good = pcap(&[&[1; 60], &[2; 60]], DataLink::ETHERNET);
        assert!(sentence(b"").contains("not a pcap or pcapng file"));
        assert!(sentence(b"not a capture at all, but long enough").contains("not a pcap"));
        assert!(sentence(&PCAPNG_MAGIC).contains("not a pcap"));
        // Cut in the second frame.
        assert!(sentence(&good[..good.len() - 1]).contains("damaged behind frame 1"));
        assert!(sentence(&pcap(&[], DataLink::ETHERNET)).contains("holds no frame"));
        assert!(sentence(&pcap(&[&[1; 60]], DataLink::RAW)).contains("link type RAW"));
        let long = vec![0; MAX_FRAME_BYTES + 1];
        assert!(sentence(&pcap(&[&[1; 60], &long], DataLink::ETHERNET)).contains("frame 2 of"));
        let error = Replay::open(Path::new("/nonexistent/x.pcap")).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/x.pcap"), "{error}");
    }
}
