//! UDP and TCP over IPv4 and IPv6: a view of a frame that came in, headers for one to send.
//!
//! Source: RFC 791 section 3.1 (IPv4), RFC 8200 section 3 (IPv6), RFC 768 (UDP), RFC 9293 section
//! 3.1 (TCP), IEEE 802.1Q clause 9.6 (tags).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use thiserror::Error;

use crate::checksum;
use crate::ether::{self, Mac, be16};

const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
const TCP_BYTES: usize = 20;
const TAG_BYTES: usize = 4;
/// Ethertype of a VLAN tag.
const TAG: u16 = 0x8100;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Flag of IPv4: do not fragment.
const DONT_FRAGMENT: u16 = 0x4000;
/// More fragments, and the offset of one.
const FRAGMENT: u16 = 0x3fff;

/// Why a frame is not read as UDP or TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Unread {
    /// It is shorter than its Ethernet header and tags.
    #[error("the frame is shorter than its Ethernet header and tags")]
    Runt,
    /// It holds neither IPv4 nor IPv6.
    #[error("ethertype {0:#06x} is neither IPv4 nor IPv6")]
    Ethertype(u16),
    /// Version or a length of its IP header contradicts the frame.
    #[error("version or a length of the IP header contradicts the frame")]
    Ip,
    /// It is a fragment: those are not put together.
    #[error("the packet is a fragment")]
    Fragment,
    /// It holds neither UDP nor TCP; extension headers of IPv6 are not looked through.
    #[error("protocol {0} is neither UDP (17) nor TCP (6)")]
    Protocol(u8),
    /// A length of its UDP or TCP header contradicts the packet.
    #[error("a length of the UDP or TCP header contradicts the packet")]
    Transport,
}

/// A frame that holds UDP or TCP, borrowed: nothing is copied.
#[derive(Debug, Clone, Copy)]
pub struct Packet<'a> {
    frame: &'a [u8],
    ip: usize,
    transport: usize,
    payload: usize,
    /// Behind the last byte of the payload: padding may follow.
    end: usize,
    protocol: u8,
}

impl<'a> Packet<'a> {
    /// Reads the headers of a frame, up to two tags included. Checksums are another matter:
    /// [`Packet::is_intact`].
    ///
    /// # Errors
    ///
    /// [`Unread`] says why the frame is no such packet.
    #[inline]
    pub fn parse(frame: &'a [u8]) -> Result<Self, Unread> {
        let (ethertype, ip) = ether::ethertype(frame).ok_or(Unread::Runt)?;
        let packet = frame.get(ip..).ok_or(Unread::Runt)?;
        let (protocol, header, len) = match ethertype {
            ether::IPV4 => ipv4(packet)?,
            ether::IPV6 => ipv6(packet)?,
            other => return Err(Unread::Ethertype(other)),
        };
        let (transport, mut end) = (ip + header, ip + len);
        let rest = frame.get(transport..end).ok_or(Unread::Ip)?;
        let header = match protocol {
            UDP => {
                let len = usize::from(be16(rest, 4).ok_or(Unread::Transport)?);
                if !(UDP_BYTES..=rest.len()).contains(&len) {
                    return Err(Unread::Transport);
                }
                end = transport + len;
                UDP_BYTES
            }
            TCP => usize::from(*rest.get(12).ok_or(Unread::Transport)? >> 4) * 4,
            other => return Err(Unread::Protocol(other)),
        };
        if header > rest.len() || (protocol == TCP && header < TCP_BYTES) {
            return Err(Unread::Transport);
        }
        Ok(Self { frame, ip, transport, payload: transport + header, end, protocol })
    }

    /// The outermost VLAN tag's control information.
    #[must_use]
    pub fn vlan_tci(&self) -> Option<u16> {
        be16(self.frame, 14).filter(|_| self.ip > ether::HEADER_BYTES)
    }

    /// Whether it is IPv6.
    #[inline]
    #[must_use]
    pub fn is_ipv6(&self) -> bool {
        self.frame[self.ip] >> 4 == 6
    }

    /// Whether it is UDP; else it is TCP.
    #[inline]
    #[must_use]
    pub fn is_udp(&self) -> bool {
        self.protocol == UDP
    }

    /// Address and port that sent it.
    #[must_use]
    pub fn source(&self) -> SocketAddr {
        self.end_point(0)
    }

    /// Address and port that it is for.
    #[must_use]
    pub fn destination(&self) -> SocketAddr {
        self.end_point(1)
    }

    fn end_point(&self, which: usize) -> SocketAddr {
        let at = |first: usize, len: usize| &self.frame[first + which * len..][..len];
        let address = if self.is_ipv6() {
            let bytes = at(self.ip + 8, 16).try_into().unwrap_or([0; 16]);
            IpAddr::V6(Ipv6Addr::from(bytes))
        } else {
            let bytes = at(self.ip + 12, 4).try_into().unwrap_or([0; 4]);
            IpAddr::V4(Ipv4Addr::from(bytes))
        };
        let port = at(self.transport, 2).try_into().map_or(0, u16::from_be_bytes);
        SocketAddr::new(address, port)
    }

    /// Offset in the frame of the IP header.
    #[inline]
    #[must_use]
    pub fn ip_at(&self) -> usize {
        self.ip
    }

    /// Offset in the frame of the UDP or TCP header.
    #[inline]
    #[must_use]
    pub fn transport_at(&self) -> usize {
        self.transport
    }

    /// Offset in the frame of the UDP or TCP checksum.
    #[inline]
    #[must_use]
    pub fn checksum_at(&self) -> usize {
        self.transport + if self.is_udp() { 6 } else { 16 }
    }

    /// Offset in the frame of the payload.
    #[inline]
    #[must_use]
    pub fn payload_at(&self) -> usize {
        self.payload
    }

    /// The payload, without the padding of a short frame.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        &self.frame[self.payload..self.end]
    }

    /// Whether the checksums of IPv4 and of UDP or TCP are right. A UDP checksum of 0 over IPv4
    /// says that there is none.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        let header = checksum::sum(&self.frame[self.ip..self.transport]);
        let is_unchecked =
            self.is_udp() && !self.is_ipv6() && self.frame[self.checksum_at()..][..2] == [0, 0];
        (self.is_ipv6() || checksum::is_intact(header))
            && (is_unchecked || checksum::is_intact(self.sum()))
    }

    /// The sum over pseudo header, UDP or TCP header with its checksum field, and payload.
    fn sum(&self) -> u64 {
        let (start, len) = if self.is_ipv6() { (8, 32) } else { (12, 8) };
        let addresses = checksum::sum(&self.frame[self.ip + start..][..len]);
        let part = &self.frame[self.transport..self.end];
        addresses + u64::from(self.protocol) + part.len() as u64 + checksum::sum(part)
    }
}

/// Protocol, bytes of the header, and bytes of the packet.
#[inline]
fn ipv4(packet: &[u8]) -> Result<(u8, usize, usize), Unread> {
    let header: &[u8; IPV4_BYTES] = packet.first_chunk().ok_or(Unread::Ip)?;
    let header_bytes = usize::from(header[0] & 0xf) * 4;
    let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if header[0] >> 4 != 4 || header_bytes < IPV4_BYTES || len < header_bytes {
        return Err(Unread::Ip);
    }
    if u16::from_be_bytes([header[6], header[7]]) & FRAGMENT != 0 {
        return Err(Unread::Fragment);
    }
    Ok((header[9], header_bytes, len))
}

/// As [`ipv4`].
#[inline]
fn ipv6(packet: &[u8]) -> Result<(u8, usize, usize), Unread> {
    let header: &[u8; IPV6_BYTES] = packet.first_chunk().ok_or(Unread::Ip)?;
    if header[0] >> 4 != 6 {
        return Err(Unread::Ip);
    }
    let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
    Ok((header[6], IPV6_BYTES, IPV6_BYTES + len))
}

/// Computes the checksums of a frame, of IPv4 and of UDP or TCP, and writes them into it.
///
/// # Errors
///
/// [`Unread`] for a frame that holds neither; it is left as it was.
pub fn seal(frame: &mut [u8]) -> Result<(), Unread> {
    let packet = Packet::parse(frame)?;
    let Packet { ip, transport, protocol, .. } = packet;
    let (is_ipv6, at) = (packet.is_ipv6(), packet.checksum_at());
    if !is_ipv6 {
        let field = ip + 10;
        frame[field..field + 2].fill(0);
        let header = checksum::finish(checksum::sum(&frame[ip..transport]));
        frame[field..field + 2].copy_from_slice(&header.to_be_bytes());
    }
    frame[at..at + 2].fill(0);
    let sum = Packet::parse(frame)?.sum();
    let field = match checksum::finish(sum) {
        // In UDP, 0 says that there is no checksum. Source: RFC 768.
        0 if protocol == UDP => 0xffff,
        field => field,
    };
    frame[at..at + 2].copy_from_slice(&field.to_be_bytes());
    Ok(())
}

/// What stands behind the IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// UDP.
    #[default]
    Udp,
    /// TCP without options.
    Tcp {
        /// Sequence number of the first byte of the payload.
        sequence: u32,
        /// Next byte that is expected.
        acknowledgment: u32,
        /// FIN, SYN, RST, PSH, ACK, URG, ECE, CWR, from bit 0 on.
        flags: u8,
        /// Bytes that the other end may send.
        window: u16,
    },
}

/// The headers of a frame to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headers {
    /// Station that it is for: see [`crate::neighbour`], and [`ether::group_mac`] for groups.
    pub destination_mac: Mac,
    /// Station that sends it.
    pub source_mac: Mac,
    /// Control information of a VLAN tag.
    pub vlan_tci: Option<u16>,
    /// Address and port that send it.
    pub source: SocketAddr,
    /// Address and port that it is for, of the same family.
    pub destination: SocketAddr,
    /// Time to live, or hop limit.
    pub hop_limit: u8,
    /// Type of service, or traffic class.
    pub traffic_class: u8,
    /// UDP or TCP.
    pub transport: Transport,
}

/// Headers that do not fit a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HeadersError {
    /// The frame is too short or too long for them.
    #[error("a frame of {len_bytes} bytes; these headers take {min} to {max} with their payload")]
    Length {
        /// Bytes of the frame.
        len_bytes: usize,
        /// Bytes of the headers.
        min: usize,
        /// Bytes of the longest frame whose lengths can be written.
        max: usize,
    },
    /// One address is IPv4 and the other IPv6.
    #[error("source {0} and destination {1} are of two families; give both IPv4 or both IPv6")]
    Families(SocketAddr, SocketAddr),
}

impl Headers {
    /// Bytes of all headers: offset of the payload.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.ip_at() + self.ip_bytes() + self.transport_bytes()
    }

    fn ip_at(&self) -> usize {
        ether::HEADER_BYTES + if self.vlan_tci.is_some() { TAG_BYTES } else { 0 }
    }

    fn ip_bytes(&self) -> usize {
        if self.source.is_ipv6() { IPV6_BYTES } else { IPV4_BYTES }
    }

    fn transport_bytes(&self) -> usize {
        if self.transport == Transport::Udp { UDP_BYTES } else { TCP_BYTES }
    }

    /// Writes the headers to the start of a frame that has its payload, and the checksums over
    /// both. All behind the headers is payload, so that a frame for the wire has 60 bytes at least
    /// or is padded by whoever sends it.
    ///
    /// # Errors
    ///
    /// [`HeadersError`]; the frame is left as it was.
    pub fn write(&self, frame: &mut [u8]) -> Result<(), HeadersError> {
        if self.source.is_ipv6() != self.destination.is_ipv6() {
            return Err(HeadersError::Families(self.source, self.destination));
        }
        let (len_bytes, ip) = (frame.len(), self.ip_at());
        // The length of IPv6 does not count its header.
        let uncounted = if self.source.is_ipv6() { IPV6_BYTES } else { 0 };
        let (min, max) = (self.len_bytes(), ip + uncounted + usize::from(u16::MAX));
        let len = u16::try_from(len_bytes.saturating_sub(ip + uncounted));
        let (true, Ok(len)) = (len_bytes >= min, len) else {
            return Err(HeadersError::Length { len_bytes, min, max });
        };
        let (ethernet, rest) = frame.split_at_mut(ip);
        self.write_ethernet(ethernet);
        let (header, transport) = rest.split_at_mut(self.ip_bytes());
        self.write_ip(header, len);
        self.write_transport(transport);
        // What was written is such a packet.
        let sealed = seal(frame);
        debug_assert_eq!(sealed, Ok(()));
        Ok(())
    }

    fn write_ethernet(&self, header: &mut [u8]) {
        ether::set_addresses(header, self.destination_mac, self.source_mac);
        let ethertype = if self.source.is_ipv6() { ether::IPV6 } else { ether::IPV4 };
        let (_, rest) = header.split_at_mut(12);
        if let Some(tci) = self.vlan_tci {
            put(rest, 0, &TAG.to_be_bytes());
            put(rest, 2, &tci.to_be_bytes());
        }
        put(rest, rest.len() - 2, &ethertype.to_be_bytes());
    }

    /// Writes the IP header, with `len` in its place.
    fn write_ip(&self, header: &mut [u8], len: u16) {
        let protocol = if self.transport == Transport::Udp { UDP } else { TCP };
        match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                put(header, 0, &[0x45, self.traffic_class]);
                put(header, 2, &len.to_be_bytes());
                // Not fragmented, so the identification says nothing. Source: RFC 6864, §4.1.
                put(header, 4, &[0, 0]);
                put(header, 6, &DONT_FRAGMENT.to_be_bytes());
                put(header, 8, &[self.hop_limit, protocol, 0, 0]);
                put(header, 12, &source.octets());
                put(header, 16, &destination.octets());
            }
            (source, destination) => {
                put(header, 0, &(6 << 28 | u32::from(self.traffic_class) << 20).to_be_bytes());
                put(header, 4, &len.to_be_bytes());
                put(header, 6, &[protocol, self.hop_limit]);
                put(header, 8, &octets(source));
                put(header, 24, &octets(destination));
            }
        }
    }

    /// Writes the UDP or TCP header at the start of `segment`, which ends with the payload.
    fn write_transport(&self, segment: &mut [u8]) {
        let len = segment.len();
        put(segment, 0, &self.source.port().to_be_bytes());
        put(segment, 2, &self.destination.port().to_be_bytes());
        match self.transport {
            Transport::Udp => {
                put(segment, 4, &u16::try_from(len).unwrap_or(0).to_be_bytes());
                put(segment, 6, &[0, 0]);
            }
            Transport::Tcp { sequence, acknowledgment, flags, window } => {
                put(segment, 4, &sequence.to_be_bytes());
                put(segment, 8, &acknowledgment.to_be_bytes());
                put(segment, 12, &[5 << 4, flags]);
                put(segment, 14, &window.to_be_bytes());
                put(segment, 16, &[0, 0, 0, 0]);
            }
        }
    }
}

/// The bytes of an address in a header of IPv6.
fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn put(header: &mut [u8], at: usize, bytes: &[u8]) {
    header[at..at + bytes.len()].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use etherparse::{PacketBuilder, SlicedPacket, TcpHeader, TransportSlice};
    use proptest::prelude::*;

    use super::*;

    const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn headers(is_ipv6: bool, vlan_tci: Option<u16>, transport: Transport) -> Headers {
        let (source, destination) = if is_ipv6 {
            ("[fd00::1]:4000", "[fd00::2]:5000")
        } else {
            ("192.0.2.1:4000", "192.0.2.2:5000")
        };
        Headers {
            destination_mac: B,
            source_mac: A,
            vlan_tci,
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            hop_limit: 64,
            traffic_class: 0,
            transport,
        }
    }

    fn built(headers: &Headers, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0xa5; headers.len_bytes()];
        frame.extend_from_slice(payload);
        headers.write(&mut frame).unwrap();
        frame
    }

    const SEGMENT: Transport =
        Transport::Tcp { sequence: 7, acknowledgment: 0x0102_0304, flags: 0x18, window: 512 };

    #[test]
    fn an_udp_datagram_over_ipv4_is_literal() {
        let frame = built(&headers(false, None, Transport::Udp), &[1, 2, 3]);
        let expected = [
            2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00, // Ethernet
            0x45, 0, 0, 31, 0, 0, 0x40, 0, 64, 17, 0xb6, 0xca, // IPv4
            192, 0, 2, 1, 192, 0, 2, 2, // addresses
            0x0f, 0xa0, 0x13, 0x88, 0, 11, 0x54, 0xaa, // UDP
            1, 2, 3,
        ];
        assert_eq!(frame, expected);
    }

    /// etherparse writes and reads the same.
    #[test]
    fn a_stranger_builds_the_same_frames() {
        let payload: Vec<u8> = (0..77).collect();
        let ours = built(&headers(false, None, Transport::Udp), &payload);
        let mut theirs = Vec::new();
        PacketBuilder::ethernet2(A.0, B.0)
            .ipv4([192, 0, 2, 1], [192, 0, 2, 2], 64)
            .udp(4000, 5000)
            .write(&mut theirs, &payload)
            .unwrap();
        assert_eq!(ours, theirs);
        let ours = built(&headers(true, None, SEGMENT), &payload);
        let mut header = TcpHeader::new(4000, 5000, 7, 512);
        (header.acknowledgment_number, header.psh, header.ack) = (0x0102_0304, true, true);
        let (from, to): (Ipv6Addr, Ipv6Addr) =
            ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        let mut theirs = Vec::new();
        PacketBuilder::ethernet2(A.0, B.0)
            .ipv6(from.octets(), to.octets(), 64)
            .tcp_header(header)
            .write(&mut theirs, &payload)
            .unwrap();
        assert_eq!(ours, theirs);
    }

    #[test]
    fn what_was_written_is_read_again_and_by_a_stranger() {
        for (is_ipv6, tci) in [(false, None), (false, Some(0x6005)), (true, None), (true, Some(5))]
        {
            for transport in [Transport::Udp, SEGMENT] {
                let headers = headers(is_ipv6, tci, transport);
                let mut frame = built(&headers, b"order");
                frame.extend([0; 9]); // padding
                let packet = Packet::parse(&frame).unwrap();
                assert_eq!(packet.source(), headers.source);
                assert_eq!(packet.destination(), headers.destination);
                assert_eq!(packet.vlan_tci(), tci);
                assert_eq!((packet.is_ipv6(), packet.payload_at()), (is_ipv6, headers.len_bytes()));
                assert!(packet.is_intact() && packet.payload() == b"order");
                let theirs = SlicedPacket::from_ethernet(&frame).unwrap();
                match theirs.transport.unwrap() {
                    TransportSlice::Udp(udp) => {
                        assert!(packet.is_udp());
                        assert_eq!(udp.payload(), b"order");
                    }
                    TransportSlice::Tcp(tcp) => {
                        assert!(!packet.is_udp());
                        assert_eq!((tcp.sequence_number(), tcp.payload()), (7, &b"order"[..]));
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    #[test]
    fn frames_that_are_no_such_packets_are_refused_with_a_reason() {
        let good = built(&headers(false, None, Transport::Udp), &[0; 20]);
        let changed = |at: usize, byte: u8| {
            let mut frame = good.clone();
            frame[at] = byte;
            Packet::parse(&frame).map(|_| ())
        };
        assert_eq!(Packet::parse(&good[..13]).unwrap_err(), Unread::Runt);
        assert_eq!(changed(12, 0x99), Err(Unread::Ethertype(0x9900)));
        assert_eq!(changed(14, 0x65), Err(Unread::Ip));
        assert_eq!(changed(14, 0x44), Err(Unread::Ip));
        assert_eq!(changed(17, 200), Err(Unread::Ip));
        assert_eq!(changed(20, 0x20), Err(Unread::Fragment));
        assert_eq!(changed(23, 50), Err(Unread::Protocol(50)));
        assert_eq!(changed(39, 7), Err(Unread::Transport));
        assert_eq!(changed(39, 29), Err(Unread::Transport));
        let mut wrong = good.clone();
        wrong[45] ^= 1;
        assert!(!Packet::parse(&wrong).unwrap().is_intact());
        (wrong[40], wrong[41]) = (0, 0);
        assert!(Packet::parse(&wrong).unwrap().is_intact(), "no checksum");
        assert_eq!(seal(&mut wrong), Ok(()));
        assert!(Packet::parse(&wrong).unwrap().is_intact() && wrong[40..42] != [0, 0]);
    }

    #[test]
    fn headers_that_do_not_fit_change_nothing() {
        let mut frame = [1; 41];
        let headers = headers(false, None, Transport::Udp);
        let refused = HeadersError::Length { len_bytes: 41, min: 42, max: 14 + 0xffff };
        assert_eq!(headers.write(&mut frame), Err(refused));
        let mixed = Headers { source: "[::1]:1".parse().unwrap(), ..headers };
        assert!(matches!(mixed.write(&mut [1; 100]), Err(HeadersError::Families(..))));
        assert!(headers.write(&mut vec![0; 14 + 0x1_0000]).is_err());
        assert_eq!(frame, [1; 41]);
    }

    proptest! {
        #[test]
        fn nothing_that_arrives_panics(
            bytes in prop::collection::vec(any::<u8>(), 0..90),
            ipv6 in any::<bool>(),
        ) {
            let mut frame = built(&headers(ipv6, None, Transport::Udp), &[0; 30]);
            for (at, byte) in bytes.into_iter().enumerate().filter(|(at, _)| at % 3 == 0) {
                frame[12 + at % 60] = byte;
            }
            if let Ok(packet) = Packet::parse(&frame) {
                let _ = packet.is_intact();
                prop_assert!(packet.payload().len() <= frame.len());
                prop_assert_eq!(packet.source().is_ipv6(), packet.destination().is_ipv6());
            }
        }
    }
}
