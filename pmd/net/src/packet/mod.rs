//! UDP and TCP over IPv4 and IPv6: a view of a frame that came in, headers for one to send.
//!
//! Source: RFC 791 section 3.1 (IPv4), RFC 8200 section 3 (IPv6), RFC 768 (UDP), RFC 9293 section
//! 3.1 (TCP), IEEE 802.1Q clause 9.6 (tags).

mod headers;
pub mod tcp;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use thiserror::Error;

use crate::checksum;
use crate::ether::{self, be16};
use crate::ip;

pub use headers::{Headers, HeadersError, Transport};

const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
const TCP_BYTES: usize = 20;
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
        match Self::plain_udp(frame) {
            Some(packet) => Ok(packet),
            None => Self::parse_any(frame),
        }
    }

    /// UDP over IPv4 without tags, options and fragments, in one look; `None` for all others.
    #[inline]
    fn plain_udp(frame: &'a [u8]) -> Option<Self> {
        const IP: usize = ether::HEADER_BYTES;
        const AT: usize = IP + IPV4_BYTES;
        let headers: &[u8; AT + UDP_BYTES] = frame.first_chunk()?;
        let be16 = |at: usize| u16::from_be_bytes([headers[at], headers[at + 1]]);
        let is_plain = be16(IP - 2) == ether::IPV4
            && headers[IP] == 0x45
            && be16(IP + 6) & FRAGMENT == 0
            && headers[IP + 9] == ip::UDP;
        let (packet_end, len) = (IP + usize::from(be16(IP + 2)), usize::from(be16(AT + 4)));
        let (payload, end) = (AT + UDP_BYTES, AT + len);
        let fits = len >= UDP_BYTES && end <= packet_end && packet_end <= frame.len();
        (is_plain && fits).then_some(Self {
            frame,
            ip: IP,
            transport: AT,
            payload,
            end,
            protocol: ip::UDP,
        })
    }

    #[inline(never)]
    fn parse_any(frame: &'a [u8]) -> Result<Self, Unread> {
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
            ip::UDP => {
                let len = usize::from(be16(rest, 4).ok_or(Unread::Transport)?);
                if !(UDP_BYTES..=rest.len()).contains(&len) {
                    return Err(Unread::Transport);
                }
                end = transport + len;
                UDP_BYTES
            }
            ip::TCP => usize::from(*rest.get(12).ok_or(Unread::Transport)? >> 4) * 4,
            other => return Err(Unread::Protocol(other)),
        };
        if header > rest.len() || (protocol == ip::TCP && header < TCP_BYTES) {
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
        self.protocol == ip::UDP
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

    /// Whether it is for this address and port: as [`Packet::destination`] says, for less.
    #[inline]
    #[must_use]
    pub fn is_for(&self, at: SocketAddr) -> bool {
        let SocketAddr::V4(at) = at else { return self.destination() == at };
        let address = self.frame.get(self.ip + 16..).and_then(|rest| rest.first_chunk());
        !self.is_ipv6()
            && address == Some(&at.ip().octets())
            && be16(self.frame, self.transport + 2) == Some(at.port())
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

    /// What its TCP header says; `None` of UDP.
    #[inline]
    #[must_use]
    pub fn tcp(&self) -> Option<tcp::Segment<'a>> {
        let header = self.frame.get(self.transport..self.payload).filter(|_| !self.is_udp())?;
        tcp::Segment::new(header, self.payload())
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
        0 if protocol == ip::UDP => 0xffff,
        field => field,
    };
    frame[at..at + 2].copy_from_slice(&field.to_be_bytes());
    Ok(())
}
