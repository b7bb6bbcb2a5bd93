//! What was recorded, datagram by datagram: a file of ITCH, or a capture of a feed's lines.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek};
use std::net::{SocketAddr, SocketAddrV4};
use std::path::Path;

use anyhow::{Context, Result, bail};
use ferrocx_net::packet::Packet;
use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use zerocopy::FromBytes;

use crate::feed::Source;
use crate::proto::{Text, itch, mold};

/// First bytes of a pcapng file. Source: draft-ietf-opsawg-pcapng, section 4.1.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// First bytes of a pcap file, with microseconds and with nanoseconds, in either order. Source:
/// draft-ietf-opsawg-pcap, section 4.
const PCAP: [[u8; 4]; 4] = [
    [0xa1, 0xb2, 0xc3, 0xd4],
    [0xd4, 0xc3, 0xb2, 0xa1],
    [0xa1, 0xb2, 0x3c, 0x4d],
    [0x4d, 0x3c, 0xb2, 0xa1],
];
/// First bytes of a gzip file. Source: RFC 1952, section 2.3.1.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Decimals of a second that an interface of pcapng counts, if it does not say so. Source:
/// draft-ietf-opsawg-pcapng, section 4.2, if_tsresol.
const DEFAULT_RESOLUTION: u8 = 6;
/// Bytes that are read at a time.
const READ_BYTES: usize = 1 << 20;

/// Where the lines of a captured feed are.
#[derive(Debug, Clone, Copy)]
pub struct Lines {
    /// Groups and ports of line A and line B.
    pub groups: [SocketAddrV4; 2],
    /// UDP port that answers to requests for lost messages came to.
    pub answers_port: u16,
}

/// One datagram of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded<'a> {
    /// When it came, ns: of the capture's clock, or of the exchange's stamps.
    pub at_ns: u64,
    /// By which line.
    pub source: Source,
    /// The payload.
    pub datagram: &'a [u8],
}

/// A recording that is read from its start to its end.
#[derive(Debug)]
pub struct Recording {
    kind: Kind,
    /// The last datagram.
    datagram: Vec<u8>,
    /// Times do not go back: clocks are set, and captures of two lines are merged.
    at_ns: u64,
    passed_over: u64,
}

enum Kind {
    Itch { file: BufReader<File>, read: u64 },
    Pcap { reader: PcapReader<BufReader<File>>, lines: Lines },
    PcapNg { reader: PcapNgReader<BufReader<File>>, resolutions: Vec<u8>, lines: Lines },
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Itch { .. } => "Itch",
            Self::Pcap { .. } => "Pcap",
            Self::PcapNg { .. } => "PcapNg",
        })
    }
}

impl Recording {
    /// Opens a pcapng or pcap file, by its first bytes, or else a file of ITCH messages, each
    /// behind its length in two bytes.
    ///
    /// # Errors
    /// One sentence: the file cannot be read, is compressed, or holds another link layer than
    /// Ethernet.
    pub fn open(path: &Path, lines: Lines) -> Result<Self> {
        let mut file = File::open(path).context("it cannot be opened")?;
        let mut magic = [0; 4];
        // A file that is shorter is one of ITCH, and empty or cut.
        let is_there = file.read_exact(&mut magic).is_ok();
        if is_there && magic.starts_with(&GZIP) {
            bail!("it is compressed by gzip: unpack it first, by gunzip --keep");
        }
        file.rewind()?;
        let file = BufReader::with_capacity(READ_BYTES, file);
        let kind = if is_there && magic == PCAPNG {
            Kind::PcapNg { reader: PcapNgReader::new(file)?, resolutions: Vec::new(), lines }
        } else if is_there && PCAP.contains(&magic) {
            let reader = PcapReader::new(file)?;
            check_link(reader.header().datalink)?;
            Kind::Pcap { reader, lines }
        } else {
            Kind::Itch { file, read: 0 }
        };
        Ok(Self { kind, datagram: Vec::new(), at_ns: 0, passed_over: 0 })
    }

    /// Whether it holds messages alone, and none of the signs of life that a feed gives between
    /// them.
    pub const fn is_messages(&self) -> bool {
        matches!(self.kind, Kind::Itch { .. })
    }

    /// The next datagram of the feed; `None` at the end. What a capture holds besides is passed
    /// over.
    ///
    /// # Errors
    /// One sentence: the file is damaged, and behind what.
    pub fn next_datagram(&mut self) -> Result<Option<Recorded<'_>>> {
        let Self { kind, datagram, at_ns, passed_over } = self;
        datagram.clear();
        let found = match kind {
            Kind::Itch { file, read } => next_message(file, read, datagram)?,
            Kind::Pcap { reader, lines } => loop {
                let Some(packet) = reader.next_packet() else { break None };
                let packet = packet?;
                if let Some(source) = lines.payload(&packet.data, datagram) {
                    break Some((packet.timestamp.as_nanos() as u64, source));
                }
                *passed_over += 1;
            },
            Kind::PcapNg { reader, resolutions, lines } => loop {
                let Some(block) = reader.next_block() else { break None };
                match block? {
                    Block::SectionHeader(_) => resolutions.clear(),
                    Block::InterfaceDescription(interface) => {
                        check_link(interface.linktype)?;
                        let resolution = interface.options.iter().find_map(|option| match option {
                            InterfaceDescriptionOption::IfTsResol(is) => Some(*is),
                            _ => None,
                        });
                        resolutions.push(resolution.unwrap_or(DEFAULT_RESOLUTION));
                    }
                    Block::EnhancedPacket(packet) => {
                        let Some(source) = lines.payload(&packet.data, datagram) else {
                            *passed_over += 1;
                            continue;
                        };
                        // The reader takes every count for nanoseconds.
                        let count = packet.timestamp.as_nanos() as u64;
                        let resolution = resolutions.get(packet.interface_id as usize).copied();
                        let at_ns = to_ns(count, resolution.unwrap_or(DEFAULT_RESOLUTION));
                        break Some((at_ns, source));
                    }
                    _ => {}
                }
            },
        };
        Ok(found.map(|(at, source)| {
            *at_ns = at.max(*at_ns);
            Recorded { at_ns: *at_ns, source, datagram }
        }))
    }

    /// Frames of a capture that are none of the feed's.
    pub const fn passed_over(&self) -> u64 {
        self.passed_over
    }
}

impl Lines {
    /// Puts the payload of a frame of the feed into `datagram`; `None` if it is another's, or does
    /// not have the checksums that it should.
    fn payload(&self, frame: &[u8], datagram: &mut Vec<u8>) -> Option<Source> {
        let packet = Packet::parse(frame).ok().filter(|packet| packet.is_udp())?;
        let to = packet.destination();
        let source = if to == SocketAddr::from(self.groups[0]) {
            Source::A
        } else if to == SocketAddr::from(self.groups[1]) {
            Source::B
        } else if to.port() == self.answers_port {
            Source::Retransmission
        } else {
            return None;
        };
        if !packet.is_intact() {
            return None;
        }
        datagram.extend_from_slice(packet.payload());
        Some(source)
    }
}

/// Packs the next message of a file into a datagram of its own.
fn next_message(
    file: &mut BufReader<File>,
    read: &mut u64,
    datagram: &mut Vec<u8>,
) -> Result<Option<(u64, Source)>> {
    let mut length = [0; 2];
    match file.read(&mut length[..1])? {
        0 => return Ok(None),
        _ => file.read_exact(&mut length[1..]).map_err(|error| cut(error, *read))?,
    }
    let len = usize::from(u16::from_be_bytes(length));
    *read += 1;
    let session = Text(*b"REPLAY    ");
    datagram.resize(mold::HEADER_LEN + 2 + len, 0);
    let mut message = vec![0; len];
    file.read_exact(&mut message).map_err(|error| cut(error, *read - 1))?;
    let mut builder =
        mold::Builder::new(datagram, session, *read).context("no room for a header")?;
    if !builder.push(&message) {
        bail!("message {read} of {len} bytes does not fit a packet");
    }
    builder.finish();
    let header = itch::Header::ref_from_prefix(&message);
    Ok(Some((header.map_or(0, |(header, _)| header.timestamp_ns()), Source::A)))
}

fn cut(error: std::io::Error, read: u64) -> anyhow::Error {
    match error.kind() {
        ErrorKind::UnexpectedEof => anyhow::anyhow!(
            "it ends in the middle of message {}; give a file whose messages each stand behind \
             their length in two bytes, or a pcap or pcapng file",
            read + 1
        ),
        _ => error.into(),
    }
}

fn check_link(link: DataLink) -> Result<()> {
    match link {
        DataLink::ETHERNET => Ok(()),
        link => bail!("it holds link type {link:?}; only Ethernet can be played"),
    }
}

/// Nanoseconds of a count whose unit is 10^-n s, or 2^-n s if the highest bit says so. Source:
/// draft-ietf-opsawg-pcapng, section 4.2, if_tsresol.
fn to_ns(count: u64, resolution: u8) -> u64 {
    let power = u32::from(resolution & 0x7f);
    let unit = match resolution & 0x80 {
        0 => 10_u128.checked_pow(power),
        _ => 2_u128.checked_pow(power),
    };
    let ns = unit.map_or(0, |unit| u128::from(count) * 1_000_000_000 / unit);
    u64::try_from(ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_every_resolution_become_nanoseconds() {
        assert_eq!(to_ns(1_500_000, 6), 1_500_000_000);
        assert_eq!(to_ns(1_500_000, 9), 1_500_000);
        assert_eq!(to_ns(3, 0), 3_000_000_000);
        assert_eq!(to_ns(1 << 20, 0x80 | 20), 1_000_000_000);
        assert_eq!(to_ns(u64::MAX, 0), u64::MAX);
        // Units that no number holds: nothing can be told of such times.
        assert_eq!((to_ns(7, 0x7f), to_ns(7, 0xff)), (0, 0));
    }

    fn itch(bytes: &[u8]) -> Result<Vec<(u64, u64)>> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), bytes)?;
        let lines =
            Lines { groups: crate::exchange::VenueConfig::default().lines, answers_port: 1 };
        let mut recording = Recording::open(file.path(), lines)?;
        let mut found = Vec::new();
        while let Some(recorded) = recording.next_datagram()? {
            let packet = mold::Packet::parse(recorded.datagram)?;
            assert_eq!(packet.messages().count(), 1);
            found.push((packet.sequence(), recorded.at_ns));
        }
        Ok(found)
    }

    #[test]
    fn messages_of_a_file_are_numbered_and_their_times_never_go_back() {
        let message = |ns: u64| {
            let header = itch::Header::new(b'S', 0, ns);
            [&[0, 12][..], zerocopy::IntoBytes::as_bytes(&header), b"O"].concat()
        };
        let file = [message(5), message(9), message(7)].concat();
        assert_eq!(itch(&file).unwrap(), [(1, 5), (2, 9), (3, 9)]);
        assert_eq!(itch(&[]).unwrap(), []);
        for cut in [1, 2, 13, 15] {
            let why = itch(&file[..cut]).unwrap_err().to_string();
            let at = if cut < 14 { 1 } else { 2 };
            assert!(why.starts_with(&format!("it ends in the middle of message {at};")), "{why}");
        }
        // Messages that are none are the engine's to refuse.
        assert_eq!(itch(&[0, 0, 0, 1, b'S']).unwrap(), [(1, 0), (2, 0)]);
    }

    #[test]
    fn damaged_captures_and_other_links_are_said() {
        let open = |bytes: &[u8]| itch(bytes).unwrap_err().to_string();
        assert!(!open(&PCAPNG).is_empty());
        // A pcap header of microseconds, link type 113.
        let mut header = [0; 24];
        header[..4].copy_from_slice(&PCAP[1]);
        (header[4], header[6], header[16], header[20]) = (2, 4, 0xff, 113);
        assert!(open(&header).contains("only Ethernet can be played"), "{}", open(&header));
    }
}
