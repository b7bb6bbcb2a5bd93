//! ICMP echo over IPv4 (RFC 791, RFC 792, RFC 1122 section 3.2.2.6).

use std::net::{IpAddr, Ipv4Addr};

use super::{HOPS, Station, Tail, is_intact};
use crate::{checksum, ether::be16, ip, reason::Reason};

const MIN_HEADER_BYTES: usize = 20;
const ICMP_HEADER_BYTES: usize = 8;
const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST: u8 = 8;

/// Turns an echo request into its reply; answers the length of the datagram, without padding that
/// the frame may carry behind it, but with what padding is needed to reach 46 bytes.
pub(super) fn answer(
    packet: &mut [u8],
    tail: Tail<'_>,
    station: &Station,
) -> Result<usize, Reason> {
    let whole = packet.len() + tail.len_bytes;
    let header: &[u8; MIN_HEADER_BYTES] = packet.first_chunk().ok_or(Reason::Ipv4Malformed)?;
    let header_bytes = usize::from(header[0] & 0xf) * 4;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff;
    let protocol = header[9];
    let source = Ipv4Addr::new(header[12], header[13], header[14], header[15]);
    let target = Ipv4Addr::new(header[16], header[17], header[18], header[19]);
    let fits = (MIN_HEADER_BYTES..=packet.len()).contains(&header_bytes);
    if header[0] >> 4 != 4 || !fits || total < header_bytes || total > whole {
        return Err(Reason::Ipv4Malformed);
    }
    if !checksum::is_intact(checksum::sum(&packet[..header_bytes])) {
        return Err(Reason::Ipv4Checksum);
    }
    if fragment != 0 {
        return Err(Reason::Ipv4Fragment);
    }
    if !is_host(source) || !is_host(target) || !station.answers(IpAddr::V4(target)) {
        return Err(Reason::Ipv4Address);
    }
    if protocol != ip::ICMP {
        return Err(Reason::OtherProtocol);
    }
    echo(packet, tail, header_bytes, total)?;
    // The addresses change places, which leaves the sum as it was; the TTL is ours.
    packet[12..16].copy_from_slice(&target.octets());
    packet[16..20].copy_from_slice(&source.octets());
    packet[8] = HOPS;
    packet[10..12].fill(0);
    let field = checksum::finish(checksum::sum(&packet[..header_bytes]));
    packet[10..12].copy_from_slice(&field.to_be_bytes());
    // Ethernet pads the payload of a frame to 46 bytes (IEEE 802.3 clause 4.2.3.3); padding that
    // came along is kept up to there.
    Ok(total.max(whole.min(46)))
}

/// Checks the ICMP message from `start` to `end` of the packet and makes it a reply.
fn echo(packet: &mut [u8], tail: Tail<'_>, start: usize, end: usize) -> Result<(), Reason> {
    if end - start < ICMP_HEADER_BYTES || packet.len() - start < ICMP_HEADER_BYTES {
        return Err(Reason::IcmpMalformed);
    }
    if !is_intact(packet, tail, start, end - start, 0) {
        return Err(Reason::IcmpChecksum);
    }
    if packet[start..start + 2] != [ECHO_REQUEST, 0] {
        return Err(Reason::IcmpIgnored);
    }
    let old = be16(packet, start + 2).ok_or(Reason::IcmpMalformed)?;
    let request = u16::from_be_bytes([ECHO_REQUEST, 0]);
    let field = checksum::update(old, request, u16::from_be_bytes([ECHO_REPLY, 0]));
    packet[start] = ECHO_REPLY;
    packet[start + 2..start + 4].copy_from_slice(&field.to_be_bytes());
    Ok(())
}

/// Whether the address can be that of one host.
fn is_host(address: Ipv4Addr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && !address.is_broadcast()
}
