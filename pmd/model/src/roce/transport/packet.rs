//! Whole RoCE frames: Ethernet, at most one VLAN tag, then IPv4 or IPv6 and UDP (version 2) or a
//! global route header (version 1), transport headers, payload, padding, ICRC.
//!
//! Source: reference 7.1, 7.3, 7.9.

use core::ops::Range;

use super::bth::Header;
use super::icrc::{ICRC_BYTES, icrc};
use super::{ETHERTYPE_V1, GRH_NEXT_HEADER, Network, UDP_PORT};
use crate::frame::packet::{ETH_HEADER_BYTES, Fragment, L3, L4, Packet, VLAN_TAG_BYTES};
use crate::wire::Fcs;

const UDP_BYTES: usize = 8;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const PROTOCOL_UDP: u8 = 17;
/// Shortest frame on the wire, without FCS.
const MIN_FRAME_BYTES: usize = 60;

/// Source and destination address, and with them the network header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpPair {
    /// RoCEv1: two GIDs in a global route header.
    Grh {
        /// Source GID.
        src: [u8; 16],
        /// Destination GID.
        dst: [u8; 16],
    },
    /// IPv4.
    V4 {
        /// Source address.
        src: [u8; 4],
        /// Destination address.
        dst: [u8; 4],
    },
    /// IPv6.
    V6 {
        /// Source address.
        src: [u8; 16],
        /// Destination address.
        dst: [u8; 16],
    },
}

/// Everything below the transport headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// Destination MAC address.
    pub dmac: [u8; 6],
    /// Source MAC address.
    pub smac: [u8; 6],
    /// VLAN tag: priority, DEI, id.
    pub vlan: Option<u16>,
    /// Addresses.
    pub ip: IpPair,
    /// Traffic class: DSCP and ECN.
    pub tos: u8,
    /// Hop limit.
    pub ttl: u8,
    /// Flow label of IPv6 and of the global route header, 20 bits.
    pub flow_label: u32,
    /// UDP source port, version 2 only.
    pub sport: u16,
}

impl Path {
    fn l3_offset(&self) -> usize {
        ETH_HEADER_BYTES + if self.vlan.is_some() { VLAN_TAG_BYTES } else { 0 }
    }

    fn network(&self) -> Network {
        match self.ip {
            IpPair::Grh { .. } => Network::Grh,
            IpPair::V4 { .. } => Network::Ipv4,
            IpPair::V6 { .. } => Network::Ipv6,
        }
    }

    /// Bytes of a whole frame, with padding to the shortest one of Ethernet.
    #[must_use]
    pub fn frame_bytes(&self, header: &Header, payload_bytes: usize) -> usize {
        let transport = header.len_bytes() + payload_bytes.next_multiple_of(4) + ICRC_BYTES;
        let network = self.network();
        let headers = self.l3_offset() + network.len_bytes() + network.udp_bytes();
        (headers + transport).max(MIN_FRAME_BYTES)
    }

    /// Writes everything but payload and ICRC; returns where the payload goes.
    ///
    /// The pad count of the header is set here. Call [`seal`] once the payload is there.
    ///
    /// # Panics
    /// If `frame` is shorter than [`Self::frame_bytes`].
    pub fn write(&self, header: &Header, payload_bytes: usize, frame: &mut [u8]) -> Range<usize> {
        let padded = payload_bytes.next_multiple_of(4);
        let pad = u8::try_from(padded - payload_bytes).unwrap_or(0);
        let network = self.network();
        // What the network header counts: all behind it, the ICRC included.
        let len = network.udp_bytes() + header.len_bytes() + padded + ICRC_BYTES;
        frame[..6].copy_from_slice(&self.dmac);
        frame[6..12].copy_from_slice(&self.smac);
        let ethertype: u16 = match network {
            Network::Grh => ETHERTYPE_V1,
            Network::Ipv4 => 0x0800,
            Network::Ipv6 => 0x86dd,
        };
        let l3 = self.l3_offset();
        if let Some(tci) = self.vlan {
            frame[12..14].copy_from_slice(&[0x81, 0x00]);
            frame[14..16].copy_from_slice(&tci.to_be_bytes());
        }
        frame[l3 - 2..l3].copy_from_slice(&ethertype.to_be_bytes());
        self.write_network(len, &mut frame[l3..]);
        let l4 = l3 + network.len_bytes();
        if network.udp_bytes() != 0 {
            let udp = &mut frame[l4..l4 + UDP_BYTES];
            udp[..2].copy_from_slice(&self.sport.to_be_bytes());
            udp[2..4].copy_from_slice(&UDP_PORT.to_be_bytes());
            udp[4..6].copy_from_slice(&low16(len).to_be_bytes());
            // No UDP checksum: the ICRC covers more. Source: reference 7.1.
            udp[6..8].fill(0);
        }
        let start = l4 + network.udp_bytes();
        let payload = start + header.write_padded(pad, &mut frame[start..]);
        frame[payload + payload_bytes..].fill(0);
        payload..payload + payload_bytes
    }

    fn write_network(&self, len: usize, out: &mut [u8]) {
        match self.ip {
            IpPair::Grh { src, dst } => self.write_v6(GRH_NEXT_HEADER, len, (src, dst), out),
            IpPair::V6 { src, dst } => self.write_v6(PROTOCOL_UDP, len, (src, dst), out),
            IpPair::V4 { src, dst } => {
                let total = low16(IPV4_BYTES + len).to_be_bytes();
                // No identification: DF is set, so that nothing is put together from fragments.
                let words = [0x45, self.tos, total[0], total[1], 0, 0, 0x40, 0, self.ttl];
                out[..9].copy_from_slice(&words);
                out[9] = PROTOCOL_UDP;
                out[10..12].fill(0);
                out[12..16].copy_from_slice(&src);
                out[16..20].copy_from_slice(&dst);
                let checksum = checksum(&out[..IPV4_BYTES]);
                out[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
        }
    }

    /// An IPv6 header, and a global route header: the same fields at the same places.
    fn write_v6(&self, next: u8, len: usize, (src, dst): ([u8; 16], [u8; 16]), out: &mut [u8]) {
        let word = 6 << 28 | u32::from(self.tos) << 20 | self.flow_label & 0xf_ffff;
        out[..4].copy_from_slice(&word.to_be_bytes());
        out[4..6].copy_from_slice(&low16(len).to_be_bytes());
        out[6..8].copy_from_slice(&[next, self.ttl]);
        out[8..24].copy_from_slice(&src);
        out[24..40].copy_from_slice(&dst);
    }
}

impl Network {
    const fn len_bytes(self) -> usize {
        match self {
            Self::Ipv4 => IPV4_BYTES,
            Self::Grh | Self::Ipv6 => IPV6_BYTES,
        }
    }

    const fn udp_bytes(self) -> usize {
        match self {
            Self::Grh => 0,
            Self::Ipv4 | Self::Ipv6 => UDP_BYTES,
        }
    }

    /// What a frame that goes to the RoCE port has.
    fn of(packet: &Packet) -> Self {
        match packet.l3 {
            L3::Ipv4 => Self::Ipv4,
            L3::Ipv6 => Self::Ipv6,
            L3::None => Self::Grh,
        }
    }
}

/// Puts the ICRC behind the payload that now stands in `payload`.
///
/// # Panics
/// If `frame` and `payload` are not those of one [`Path::write`].
pub fn seal(path: &Path, frame: &mut [u8], payload: Range<usize>) {
    let end = payload.start + (payload.end - payload.start).next_multiple_of(4);
    let crc = icrc(&frame[path.l3_offset()..end]);
    frame[end..end + ICRC_BYTES].copy_from_slice(&crc.to_le_bytes());
}

#[expect(clippy::cast_possible_truncation, reason = "frames are shorter than 64 KiB")]
const fn low16(value: usize) -> u16 {
    value as u16
}

/// The ones' complement checksum of an IPv4 header whose checksum field is zero.
fn checksum(header: &[u8]) -> u16 {
    !crate::frame::offload::sum16(header)
}

/// Reason for which a frame for the RoCE port is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadFrame {
    /// Not RoCE at all: another ethertype, protocol or port, or a fragment.
    NotRoce,
    /// Lengths do not fit together, a network header is wrong, or the opcode does not exist.
    Malformed,
    /// The ICRC is wrong.
    Icrc,
}

/// A RoCE frame that was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Transport headers.
    pub header: Header,
    /// Payload without padding.
    pub payload: &'a [u8],
    /// The network header: 20 or 40 bytes.
    pub ip: &'a [u8],
    /// Which one it is.
    pub network: Network,
    /// VLAN tag.
    pub vlan: Option<u16>,
    /// Destination MAC address.
    pub dmac: [u8; 6],
}

impl<'a> Frame<'a> {
    /// Whether the packet met congestion on its way: both ECN bits of IP are set. Version 1 has no
    /// such bits.
    #[must_use]
    pub fn is_marked(&self) -> bool {
        match self.network {
            Network::Grh => false,
            Network::Ipv4 => self.ip[1] & 3 == 3,
            Network::Ipv6 => self.ip[1] >> 4 & 3 == 3,
        }
    }

    /// Source and destination of the network header as GIDs, IPv4 addresses in their mapped form.
    #[must_use]
    pub fn gids(&self) -> ([u8; 16], [u8; 16]) {
        let ipv6 = |at: usize| {
            let mut gid = [0; 16];
            gid.copy_from_slice(&self.ip[at..at + 16]);
            gid
        };
        let ipv4 = |at: usize| {
            let mut gid = [0; 16];
            gid[10..12].fill(0xff);
            gid[12..].copy_from_slice(&self.ip[at..at + 4]);
            gid
        };
        match self.network {
            Network::Ipv4 => (ipv4(12), ipv4(16)),
            Network::Grh | Network::Ipv6 => (ipv6(8), ipv6(24)),
        }
    }

    /// The packets that came as one, each with its number.
    pub(crate) fn apart(&self, mtu: u32) -> impl Iterator<Item = (u32, Frame<'a>)> + use<'a> {
        let (frame, [first, middle, last]) = (*self, self.header.op.apart());
        let parts = self.payload.chunks((mtu as usize).max(1));
        (0..self.header.packets).zip(parts).map(move |(number, payload)| {
            let is_last = number + 1 == frame.header.packets;
            let op = match number {
                0 => first,
                _ if is_last => last,
                _ => middle,
            };
            let header = Header {
                op,
                psn: frame.header.psn.plus(number),
                ack_request: frame.header.ack_request && is_last,
                solicited: frame.header.solicited && is_last,
                packets: 1,
                ..frame.header
            };
            (number, Frame { header, payload, ..frame })
        })
    }

    /// Reads and checks a frame whose headers below UDP were found by `packet`.
    ///
    /// # Errors
    /// [`BadFrame`]: what is wrong with it.
    pub fn parse(bytes: &'a [u8], packet: &Packet) -> Result<Self, BadFrame> {
        Self::parse_as(bytes, packet, &Fcs::Good)
    }

    /// As [`Frame::parse`]; what stays inside the process has no ICRC, and may be many packets.
    ///
    /// # Errors
    /// [`BadFrame`]: what is wrong with it.
    pub fn parse_as(bytes: &'a [u8], packet: &Packet, fcs: &Fcs) -> Result<Self, BadFrame> {
        if !is_roce(bytes, packet) {
            return Err(BadFrame::NotRoce);
        }
        let network = Network::of(packet);
        if packet.tags > 1 {
            return Err(BadFrame::Malformed);
        }
        let (ip, at, end) = match network {
            Network::Grh => Self::behind_grh(bytes, packet.l3_offset),
            Network::Ipv4 | Network::Ipv6 => Self::behind_ip(bytes, packet, network),
        }
        .ok_or(BadFrame::Malformed)?;
        let crc_at = end - ICRC_BYTES;
        let (mut header, len) = Header::parse(&bytes[at..crc_at]).ok_or(BadFrame::Malformed)?;
        let start = at + len;
        let payload_bytes = (crc_at - start).checked_sub(usize::from(header.pad));
        let payload_bytes = payload_bytes.filter(|_| (crc_at - start).is_multiple_of(4));
        let payload_bytes = payload_bytes.ok_or(BadFrame::Malformed)?;
        if let Fcs::Inside(train) = fcs {
            header.packets = train.frames.max(1);
        } else if bytes[crc_at..end] != icrc(&bytes[packet.l3_offset..crc_at]).to_le_bytes() {
            return Err(BadFrame::Icrc);
        }
        Ok(Self {
            header,
            payload: &bytes[start..start + payload_bytes],
            ip,
            network,
            vlan: (packet.tags == 1).then_some(packet.tci[0]),
            dmac: *bytes.first_chunk().ok_or(BadFrame::Malformed)?,
        })
    }

    /// The IP header, where the transport headers start, and where the packet ends.
    fn behind_ip(
        bytes: &'a [u8],
        packet: &Packet,
        network: Network,
    ) -> Option<(&'a [u8], usize, usize)> {
        // Neither options nor extension headers: the ICRC has no rule for them.
        let ip = bytes.get(packet.l3_offset..packet.l4_offset)?;
        if ip.len() != network.len_bytes() || (network == Network::Ipv4 && checksum(ip) != 0) {
            return None;
        }
        let at = packet.l4_offset;
        let udp_len = usize::from(u16::from_be_bytes([bytes[at + 4], bytes[at + 5]]));
        // UDP fills the IP packet: bytes in between would be in no checksum.
        let fits = at + udp_len == packet.l3_end && udp_len >= UDP_BYTES + ICRC_BYTES;
        fits.then_some((ip, at + UDP_BYTES, at + udp_len))
    }

    /// The global route header, where the transport headers start, and where the packet ends.
    fn behind_grh(bytes: &'a [u8], l3: usize) -> Option<(&'a [u8], usize, usize)> {
        let grh = bytes.get(l3..l3 + IPV6_BYTES)?;
        let len = usize::from(u16::from_be_bytes([grh[4], grh[5]]));
        let at = l3 + IPV6_BYTES;
        // The length counts the ICRC. Source: IBTA vol. 1, 8.3.
        let fits = len >= ICRC_BYTES && at + len <= bytes.len();
        (grh[0] >> 4 == 6 && grh[6] == GRH_NEXT_HEADER && fits).then_some((grh, at, at + len))
    }
}

/// Whether a frame goes to the RoCE port.
#[must_use]
pub fn is_roce(bytes: &[u8], packet: &Packet) -> bool {
    if packet.malformed.is_some() {
        return false;
    }
    let is_v2 = packet.l4 == L4::Udp
        && packet.fragment == Fragment::No
        && bytes.get(packet.l4_offset + 2..packet.l4_offset + 4) == Some(&UDP_PORT.to_be_bytes());
    is_v2 || packet.ethertype == ETHERTYPE_V1
}

#[cfg(test)]
#[path = "packet_tests.rs"]
mod tests;
