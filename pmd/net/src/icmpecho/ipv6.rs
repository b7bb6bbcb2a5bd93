//! ICMPv6 echo (RFC 4443) and neighbour solicitation (RFC 4861) over IPv6 (RFC 8200).

use std::net::{IpAddr, Ipv6Addr};

use super::{HOPS, Station, Tail, is_intact};
use crate::{
    checksum,
    ether::{self, MacAddr, be16},
    ip,
    reason::Reason,
};

pub(crate) const HEADER_BYTES: usize = 40;
const ECHO_REQUEST: u8 = 128;
const ECHO_REPLY: u8 = 129;
const ECHO_HEADER_BYTES: usize = 8;
pub(crate) const NEIGHBOUR_SOLICITATION: u8 = 135;
pub(crate) const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
/// Bytes of a solicitation or advertisement before its options.
pub(crate) const ND_BYTES: usize = 24;
/// Option types of RFC 4861 section 4.6.1; both are 8 bytes with Ethernet.
pub(crate) const SOURCE_LINK_ADDRESS: u8 = 1;
pub(crate) const TARGET_LINK_ADDRESS: u8 = 2;
pub(crate) const LINK_OPTION_BYTES: usize = 8;
/// Flags of an advertisement: solicited, override.
const SOLICITED_OVERRIDE: u8 = 0x60;
/// Only neighbours can send with this hop limit (RFC 4861 section 7.1.1).
pub(crate) const NEIGHBOUR_HOPS: u8 = 255;

/// Turns an echo request or a solicitation into its answer; answers the length of the packet.
pub(super) fn answer(
    packet: &mut [u8],
    tail: Tail<'_>,
    station: &Station,
    to_group: bool,
) -> Result<usize, Reason> {
    let whole = packet.len() + tail.len_bytes;
    let header: &[u8; HEADER_BYTES] = packet.first_chunk().ok_or(Reason::Ipv6Malformed)?;
    let payload = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let (next_header, hops) = (header[6], header[7]);
    let source = address_at(header, 8);
    let target = address_at(header, 24);
    if header[0] >> 4 != 6 || HEADER_BYTES + payload > whole {
        return Err(Reason::Ipv6Malformed);
    }
    if source.is_multicast() || target.is_unspecified() {
        return Err(Reason::Ipv6Address);
    }
    if next_header != ip::ICMPV6 {
        return Err(Reason::OtherProtocol);
    }
    // All messages of interest have at least 8 bytes.
    if payload < ECHO_HEADER_BYTES || packet.len() < HEADER_BYTES + ECHO_HEADER_BYTES {
        return Err(Reason::IcmpMalformed);
    }
    let len = u32::try_from(payload).map_err(|_| Reason::Ipv6Malformed)?;
    let pseudo = checksum::pseudo_v6(&packet[8..40], ip::ICMPV6, len);
    if !is_intact(packet, tail, HEADER_BYTES, payload, pseudo) {
        return Err(Reason::IcmpChecksum);
    }
    match (packet[HEADER_BYTES], packet[HEADER_BYTES + 1]) {
        (ECHO_REQUEST, 0) => {
            let ours = !target.is_multicast() && station.answers(IpAddr::V6(target));
            if to_group || source.is_unspecified() || !ours {
                return Err(Reason::Ipv6Address);
            }
            echo(packet)?;
            set_header(packet, target, source, HOPS);
            Ok(HEADER_BYTES + payload)
        }
        (NEIGHBOUR_SOLICITATION, code) => {
            if hops != NEIGHBOUR_HOPS || code != 0 {
                return Err(Reason::NdMalformed);
            }
            let solicitation = packet.get_mut(HEADER_BYTES..HEADER_BYTES + payload);
            // A solicitation is far shorter than a segment, so it must lie in the first one.
            let message = solicitation.ok_or(Reason::NdMalformed)?;
            let (ours, len_bytes) = advertise(message, source, target, station)?;
            set_header(packet, ours, source, NEIGHBOUR_HOPS);
            finish_advertisement(packet, len_bytes)?;
            Ok(HEADER_BYTES + len_bytes)
        }
        _ => Err(Reason::IcmpIgnored),
    }
}

/// Makes an echo request a reply. Addresses change places, which leaves the sum as it was.
fn echo(packet: &mut [u8]) -> Result<(), Reason> {
    let old = be16(packet, HEADER_BYTES + 2).ok_or(Reason::IcmpMalformed)?;
    let request = u16::from_be_bytes([ECHO_REQUEST, 0]);
    let field = checksum::update(old, request, u16::from_be_bytes([ECHO_REPLY, 0]));
    packet[HEADER_BYTES] = ECHO_REPLY;
    packet[HEADER_BYTES + 2..HEADER_BYTES + 4].copy_from_slice(&field.to_be_bytes());
    Ok(())
}

/// Makes a solicitation an advertisement, without its checksum: the address that is advertised,
/// and the length of the message.
fn advertise(
    message: &mut [u8],
    source: Ipv6Addr,
    target: Ipv6Addr,
    station: &Station,
) -> Result<(Ipv6Addr, usize), Reason> {
    if message.len() < ND_BYTES {
        return Err(Reason::NdMalformed);
    }
    let asked = address_at(message, 8);
    let source_link = link_address(&message[ND_BYTES..], SOURCE_LINK_ADDRESS)?.is_some();
    if asked.is_multicast() || asked.is_unspecified() {
        return Err(Reason::NdMalformed);
    }
    if source.is_unspecified() {
        // A duplicate-address probe goes to the solicited-node group and has no link address. It
        // is answered to all nodes, which an answer in place cannot be: the owner stays silent.
        let malformed = source_link || !target.is_multicast();
        return Err(if malformed { Reason::NdMalformed } else { Reason::NdIgnored });
    }
    if target.is_multicast() && !source_link {
        return Err(Reason::NdMalformed);
    }
    if !station.answers(IpAddr::V6(asked)) {
        return Err(Reason::NdIgnored);
    }
    message[0] = NEIGHBOUR_ADVERTISEMENT;
    message[4..8].copy_from_slice(&[SOLICITED_OVERRIDE, 0, 0, 0]);
    if !source_link {
        // There may be no room for the option, and a unicast solicitation can do without it
        // (RFC 4861 section 4.4).
        return Ok((asked, ND_BYTES));
    }
    // A source option was found, so the message has room for the target option.
    let option = &mut message[ND_BYTES..ND_BYTES + LINK_OPTION_BYTES];
    option[..2].copy_from_slice(&[TARGET_LINK_ADDRESS, 1]);
    option[2..].copy_from_slice(&station.mac.0);
    Ok((asked, ND_BYTES + LINK_OPTION_BYTES))
}

/// The link-layer address in the option of a kind, if the options hold one; the last counts.
pub(crate) fn link_address(mut options: &[u8], wanted: u8) -> Result<Option<MacAddr>, Reason> {
    let mut found = None;
    while let [kind, units, ..] = *options {
        let len_bytes = usize::from(units) * 8;
        // RFC 4861 section 4.6: a length of 0 voids the whole packet.
        if len_bytes == 0 || len_bytes > options.len() {
            return Err(Reason::NdMalformed);
        }
        if kind == wanted && len_bytes == LINK_OPTION_BYTES {
            found = ether::mac_at(options, 2);
        }
        options = &options[len_bytes..];
    }
    if options.is_empty() { Ok(found) } else { Err(Reason::NdMalformed) }
}

/// Writes the payload length and checksum of an advertisement of `len_bytes`.
fn finish_advertisement(packet: &mut [u8], len_bytes: usize) -> Result<(), Reason> {
    let payload = u16::try_from(len_bytes).map_err(|_| Reason::NdMalformed)?;
    packet[4..6].copy_from_slice(&payload.to_be_bytes());
    let checksum_at = HEADER_BYTES + 2;
    packet[checksum_at..checksum_at + 2].fill(0);
    let sum = checksum::pseudo_v6(&packet[8..40], ip::ICMPV6, u32::from(payload))
        + checksum::sum(&packet[HEADER_BYTES..HEADER_BYTES + len_bytes]);
    packet[checksum_at..checksum_at + 2].copy_from_slice(&checksum::finish(sum).to_be_bytes());
    Ok(())
}

/// Writes hop limit and addresses.
fn set_header(packet: &mut [u8], source: Ipv6Addr, destination: Ipv6Addr, hops: u8) {
    packet[7] = hops;
    packet[8..24].copy_from_slice(&source.octets());
    packet[24..40].copy_from_slice(&destination.octets());
}

/// The address at `offset`, which the caller has checked to lie in `bytes`.
pub(crate) fn address_at(bytes: &[u8], offset: usize) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&bytes[offset..offset + 16]);
    Ipv6Addr::from(octets)
}
