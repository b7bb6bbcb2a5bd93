//! Headers of a frame to send.

use std::net::{IpAddr, SocketAddr};

use thiserror::Error;

use super::{DONT_FRAGMENT, IPV4_BYTES, IPV6_BYTES, TCP_BYTES, UDP_BYTES, seal, tcp};
use crate::ether::{self, MacAddr};
use crate::ip;

/// What stands behind the IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// UDP.
    #[default]
    Udp,
    /// TCP, with no option but that of its first segment.
    Tcp {
        /// Sequence number of the first byte of the payload.
        sequence: u32,
        /// Next byte that is expected.
        acknowledgment: u32,
        /// Those of [`tcp`].
        flags: u8,
        /// Bytes that the other end may send.
        window: u16,
        /// The largest payload that the sender takes: an option that goes with SYN.
        max_segment: Option<u16>,
    },
}

/// The headers of a frame to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headers {
    /// Station that it is for: see [`crate::neighbour`], and [`MacAddr::of_group`] for groups.
    pub destination_mac: MacAddr,
    /// Station that sends it.
    pub source_mac: MacAddr,
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
        ether::HEADER_BYTES + if self.vlan_tci.is_some() { ether::TAG_BYTES } else { 0 }
    }

    fn ip_bytes(&self) -> usize {
        if self.source.is_ipv6() { IPV6_BYTES } else { IPV4_BYTES }
    }

    fn transport_bytes(&self) -> usize {
        match self.transport {
            Transport::Udp => UDP_BYTES,
            Transport::Tcp { max_segment: None, .. } => TCP_BYTES,
            Transport::Tcp { .. } => TCP_BYTES + tcp::MSS_BYTES,
        }
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
            put(rest, 0, &ether::VLAN.to_be_bytes());
            put(rest, 2, &tci.to_be_bytes());
        }
        put(rest, rest.len() - 2, &ethertype.to_be_bytes());
    }

    /// Writes the IP header, with `len` in its place.
    fn write_ip(&self, header: &mut [u8], len: u16) {
        let protocol = if self.transport == Transport::Udp { ip::UDP } else { ip::TCP };
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
            Transport::Tcp { sequence, acknowledgment, flags, window, max_segment } => {
                put(segment, 4, &sequence.to_be_bytes());
                put(segment, 8, &acknowledgment.to_be_bytes());
                put(segment, 12, &[(self.transport_bytes() as u8 / 4) << 4, flags]);
                put(segment, 14, &window.to_be_bytes());
                put(segment, 16, &[0, 0, 0, 0]);
                if let Some(bytes) = max_segment {
                    put(segment, TCP_BYTES, &[tcp::OPTION_MSS, tcp::MSS_BYTES as u8]);
                    put(segment, TCP_BYTES + 2, &bytes.to_be_bytes());
                }
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
