//! TCP segments: the header as bytes, the options that matter, the checksum.

use std::net::IpAddr;

use ferrocx_net::checksum;
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A place in a stream of bytes: 32 bits that wrap. Source: RFC 9293, 3.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seq(pub u32);

impl Seq {
    /// The place `bytes` further on.
    pub const fn add(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    /// How far this lies behind `earlier`; negative if it lies before it.
    pub const fn since(self, earlier: Self) -> i32 {
        self.0.wrapping_sub(earlier.0) as i32
    }

    /// True if this lies before `later`.
    pub const fn before(self, later: Self) -> bool {
        self.since(later) < 0
    }

    /// True if this lies in the `len` bytes from `start` on.
    pub const fn within(self, start: Self, len: u32) -> bool {
        self.0.wrapping_sub(start.0) < len
    }
}

/// A header without options. Source: RFC 9293, 3.1.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Header {
    /// Port of the sender.
    pub source: U16,
    /// Port of the receiver.
    pub destination: U16,
    /// Place of the first byte, or of SYN or FIN.
    pub sequence: U32,
    /// Place of the next byte that is expected, if [`ACK`] is set.
    pub acknowledgment: U32,
    /// Length of the header in its upper four bits, in words of four bytes.
    pub offset: u8,
    /// [`FIN`], [`SYN`], [`RST`], [`PSH`], [`ACK`].
    pub flags: u8,
    /// Bytes that the sender takes from the acknowledgment on.
    pub window: U16,
    /// Over pseudo header, header and payload.
    pub checksum: U16,
    /// Not used.
    pub urgent: U16,
}

/// Bytes of a [`Header`].
pub const HEADER_LEN: usize = size_of::<Header>();
const _: () = assert!(HEADER_LEN == 20);

/// The sender has no more to send.
pub const FIN: u8 = 0x01;
/// The sender's numbers start here.
pub const SYN: u8 = 0x02;
/// There is no such connection.
pub const RST: u8 = 0x04;
/// To be handed to the application now.
pub const PSH: u8 = 0x08;
/// The acknowledgment counts.
pub const ACK: u8 = 0x10;

/// Kind of the option that says the largest segment taken. Source: RFC 9293, 3.7.1.
const OPTION_MSS: u8 = 2;
const OPTION_END: u8 = 0;
const OPTION_NOTHING: u8 = 1;

/// A segment that was received: checked against its checksum by the device or by
/// [`checksum_is_right`].
#[derive(Debug, Clone, Copy)]
pub struct Segment<'a> {
    pub(super) header: &'a Header,
    options: &'a [u8],
    /// What it carries.
    pub payload: &'a [u8],
}

impl<'a> Segment<'a> {
    /// The segment that `bytes` are, the payload of an IP packet; `None` if its header does not lie
    /// inside.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (header, rest) = Header::ref_from_prefix(bytes).ok()?;
        let options_len = usize::from(header.offset >> 4) * 4;
        let (options, payload) = rest.split_at_checked(options_len.checked_sub(HEADER_LEN)?)?;
        Some(Self { header, options, payload })
    }

    /// Ports of sender and receiver.
    pub fn ports(&self) -> (u16, u16) {
        (self.header.source.get(), self.header.destination.get())
    }

    pub(super) fn sequence(&self) -> Seq {
        Seq(self.header.sequence.get())
    }

    pub(super) fn acknowledgment(&self) -> Option<Seq> {
        self.has(ACK).then(|| Seq(self.header.acknowledgment.get()))
    }

    /// True if one of `flags` is set.
    pub const fn has(&self, flags: u8) -> bool {
        self.header.flags & flags != 0
    }

    pub(super) fn window(&self) -> u32 {
        self.header.window.get().into()
    }

    /// The largest segment that the sender takes, if it says so.
    pub(super) fn max_segment(&self) -> Option<u16> {
        let mut rest = self.options;
        loop {
            rest = match *rest {
                [OPTION_MSS, 4, high, low, ..] => return Some(u16::from_be_bytes([high, low])),
                [OPTION_NOTHING, ref rest @ ..] => rest,
                [] | [OPTION_END, ..] => return None,
                [_, len, ..] if len >= 2 => rest.get(usize::from(len)..)?,
                _ => return None,
            };
        }
    }
}

/// What stands in a segment that is sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields {
    pub(super) ports: (u16, u16),
    pub(super) sequence: Seq,
    pub(super) acknowledgment: Seq,
    pub(super) flags: u8,
    pub(super) window: u16,
    /// Said with a SYN.
    pub(super) max_segment: Option<u16>,
}

/// Writes a segment with its checksum over whatever `out` held.
pub(super) fn write(
    fields: &Fields,
    addresses: (IpAddr, IpAddr),
    payload: &[u8],
    out: &mut Vec<u8>,
) {
    let option = fields.max_segment.map(|mss| [[OPTION_MSS, 4], mss.to_be_bytes()]);
    let option = option.as_ref().map_or(&[][..], |option| option.as_flattened());
    let header = Header {
        source: fields.ports.0.into(),
        destination: fields.ports.1.into(),
        sequence: fields.sequence.0.into(),
        acknowledgment: fields.acknowledgment.0.into(),
        offset: ((HEADER_LEN + option.len()) as u8 / 4) << 4,
        flags: fields.flags,
        window: fields.window.into(),
        checksum: 0.into(),
        urgent: 0.into(),
    };
    out.clear();
    out.extend(header.as_bytes());
    out.extend(option);
    out.extend(payload);
    let checksum = checksum_of(out, addresses);
    out[16..18].copy_from_slice(&checksum.to_be_bytes());
}

/// True if a segment between `addresses`, sender first, is what was sent, as far as its checksum
/// tells.
pub fn checksum_is_right(segment: &[u8], addresses: (IpAddr, IpAddr)) -> bool {
    checksum_of(segment, addresses) == 0
}

/// The checksum of a segment whose own field is 0. Source: RFC 9293, 3.1.
fn checksum_of(segment: &[u8], (from, to): (IpAddr, IpAddr)) -> u16 {
    const TCP: u64 = 6;
    let address = |address: IpAddr| match address {
        IpAddr::V4(address) => checksum::sum(&address.octets()),
        IpAddr::V6(address) => checksum::sum(&address.octets()),
    };
    let sum = address(from) + address(to) + TCP + segment.len() as u64;
    checksum::finish(sum + checksum::sum(segment))
}
