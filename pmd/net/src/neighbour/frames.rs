//! The frames of address resolution: what they say, and how they are written.
//!
//! Source: RFC 826 (ARP), RFC 5227 (announcements), RFC 4861 sections 4.3, 4.4, 7.1 (neighbour
//! discovery).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use arrayvec::ArrayVec;

use crate::checksum;
use crate::ether::{self, MacAddr};
use crate::icmpecho::arp::{self, ETHERNET_IPV4};
use crate::icmpecho::ipv6::{
    HEADER_BYTES as IPV6_BYTES, LINK_OPTION_BYTES, ND_BYTES, NEIGHBOUR_ADVERTISEMENT,
    NEIGHBOUR_HOPS, NEIGHBOUR_SOLICITATION, SOURCE_LINK_ADDRESS, TARGET_LINK_ADDRESS, address_at,
    link_address,
};
use crate::ip;

/// An address of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Own {
    /// The address.
    pub ip: IpAddr,
    /// The MAC address that it is reached by.
    pub mac: MacAddr,
    /// The VLAN that it is on.
    pub vlan: Option<u16>,
}

/// Bytes of the longest frame: Ethernet header, tag, IPv6 header, message, option.
pub const MAX_FRAME_BYTES: usize = 14 + 4 + IPV6_BYTES + ND_BYTES + LINK_OPTION_BYTES;
/// Frames are padded to this, without the check sequence. Source: IEEE 802.3 clause 4.2.3.3.
const MIN_FRAME_BYTES: usize = 60;
const VLAN_ID: u16 = 0x0fff;
/// Flag of an advertisement: it replaces what is known.
const OVERRIDE: u8 = 0x20;

/// A frame to send.
pub type Frame = ArrayVec<u8, MAX_FRAME_BYTES>;

/// What a frame says about addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Heard {
    /// VLAN of the frame.
    pub(super) vlan: Option<u16>,
    /// The address that is told of, and its MAC; a probe tells of none.
    pub(super) tells: Option<(IpAddr, MacAddr)>,
    /// The address that is asked for.
    pub(super) asks: Option<IpAddr>,
    /// What is told replaces what is known.
    pub(super) overrides: bool,
}

/// Reads a frame; `None` if it says nothing about addresses, or is not as it must be.
pub(super) fn parse(frame: &[u8]) -> Option<Heard> {
    let (ethertype, start) = ether::ethertype(frame)?;
    let vlan = match ether::be16(frame, 12)? {
        ether::VLAN => Some(ether::be16(frame, 14)? & VLAN_ID),
        _ => None,
    };
    let packet = frame.get(start..)?;
    let heard = match ethertype {
        ether::ARP => parse_arp(packet),
        ether::IPV6 => parse_nd(packet),
        _ => None,
    }?;
    // Nobody's address is that of a group.
    let is_real = |&(_, mac): &(IpAddr, MacAddr)| !mac.is_multicast() && mac != MacAddr::default();
    Some(Heard { vlan, tells: heard.tells.filter(is_real), ..heard })
}

fn parse_arp(packet: &[u8]) -> Option<Heard> {
    let arp: &[u8; arp::LEN_BYTES] = packet.first_chunk()?;
    if arp[..6] != ETHERNET_IPV4 || ![arp::REQUEST, arp::REPLY].contains(&[arp[6], arp[7]]) {
        return None;
    }
    let sender = Ipv4Addr::new(arp[14], arp[15], arp[16], arp[17]);
    let target = Ipv4Addr::new(arp[24], arp[25], arp[26], arp[27]);
    let tells = (!sender.is_unspecified()).then_some((sender.into(), ether::mac_at(arp, 8)?));
    let is_request = [arp[6], arp[7]] == arp::REQUEST;
    Some(Heard {
        vlan: None,
        tells,
        asks: (is_request && sender != target).then_some(target.into()),
        overrides: true,
    })
}

fn parse_nd(packet: &[u8]) -> Option<Heard> {
    let header: &[u8; IPV6_BYTES] = packet.first_chunk()?;
    let payload = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let message = packet.get(IPV6_BYTES..IPV6_BYTES + payload)?;
    let is_nd = header[0] >> 4 == 6 && header[6] == ip::ICMPV6 && header[7] == NEIGHBOUR_HOPS;
    if !is_nd || message.len() < ND_BYTES || message[1] != 0 {
        return None;
    }
    let pseudo = checksum::pseudo_v6(&packet[8..40], ip::ICMPV6, u32::try_from(payload).ok()?);
    if !checksum::is_intact(pseudo + checksum::sum(message)) {
        return None;
    }
    let target = address_at(message, 8);
    let options = &message[ND_BYTES..];
    match message[0] {
        NEIGHBOUR_SOLICITATION => {
            let source = address_at(header, 8);
            let mac = link_address(options, SOURCE_LINK_ADDRESS).ok()?;
            let tells = mac.filter(|_| !source.is_unspecified()).map(|mac| (source.into(), mac));
            Some(Heard { vlan: None, tells, asks: Some(target.into()), overrides: true })
        }
        NEIGHBOUR_ADVERTISEMENT => {
            let mac = link_address(options, TARGET_LINK_ADDRESS).ok()?;
            let tells = mac.map(|mac| (target.into(), mac));
            let overrides = message[4] & OVERRIDE != 0;
            Some(Heard { vlan: None, tells, asks: None, overrides })
        }
        _ => None,
    }
}

/// A question for the MAC address of `target`, to its owner's last known address or to all.
pub(super) fn question(own: &Own, target: IpAddr, to: Option<MacAddr>) -> Frame {
    match (own.ip, target) {
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            let group = solicited_node(target);
            let mac = MacAddr::of_ipv6_group(group);
            let to = to.map_or((group, mac), |mac| (target, mac));
            nd_frame(own, to, source, NEIGHBOUR_SOLICITATION, target)
        }
        (source, target) => {
            let v4 = |ip| if let IpAddr::V4(ip) = ip { ip } else { Ipv4Addr::UNSPECIFIED };
            arp_request(own, to.unwrap_or(MacAddr::BROADCAST), v4(source), v4(target))
        }
    }
}

/// Tells everybody of an address of ours: gratuitous ARP, or an unsolicited advertisement.
pub(super) fn announcement(own: &Own) -> Frame {
    match own.ip {
        IpAddr::V4(ip) => arp_request(own, MacAddr::BROADCAST, ip, ip),
        IpAddr::V6(ip) => {
            let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
            let mac = MacAddr::of_ipv6_group(group);
            nd_frame(own, (group, mac), ip, NEIGHBOUR_ADVERTISEMENT, ip)
        }
    }
}

/// The group that hears questions for an address. Source: RFC 4291 section 2.7.1.
#[must_use]
pub fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = ip.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]))
}

fn start(own: &Own, to: MacAddr, ethertype: u16) -> Frame {
    let mut frame = Frame::new();
    push(&mut frame, &to.0);
    push(&mut frame, &own.mac.0);
    if let Some(vlan) = own.vlan {
        push(&mut frame, &ether::VLAN.to_be_bytes());
        push(&mut frame, &vlan.to_be_bytes());
    }
    push(&mut frame, &ethertype.to_be_bytes());
    frame
}

fn push(frame: &mut Frame, bytes: &[u8]) {
    let fits = frame.try_extend_from_slice(bytes);
    debug_assert!(fits.is_ok(), "MAX_FRAME_BYTES is the longest frame");
}

fn pad(frame: &mut Frame) {
    while frame.len() < MIN_FRAME_BYTES {
        frame.push(0);
    }
}

fn arp_request(own: &Own, to: MacAddr, sender: Ipv4Addr, target: Ipv4Addr) -> Frame {
    let mut frame = start(own, to, ether::ARP);
    push(&mut frame, &ETHERNET_IPV4);
    push(&mut frame, &arp::REQUEST);
    push(&mut frame, &own.mac.0);
    push(&mut frame, &sender.octets());
    push(&mut frame, &[0; 6]);
    push(&mut frame, &target.octets());
    pad(&mut frame);
    frame
}

/// A solicitation with our address as source option, or an advertisement that overrides.
fn nd_frame(
    own: &Own,
    (destination, mac): (Ipv6Addr, MacAddr),
    source: Ipv6Addr,
    kind: u8,
    target: Ipv6Addr,
) -> Frame {
    let mut frame = start(own, mac, ether::IPV6);
    let start = frame.len();
    let payload = (ND_BYTES + LINK_OPTION_BYTES) as u16;
    push(&mut frame, &[0x60, 0, 0, 0]);
    push(&mut frame, &payload.to_be_bytes());
    push(&mut frame, &[ip::ICMPV6, NEIGHBOUR_HOPS]);
    push(&mut frame, &source.octets());
    push(&mut frame, &destination.octets());
    let is_advertisement = kind == NEIGHBOUR_ADVERTISEMENT;
    let flags = if is_advertisement { OVERRIDE } else { 0 };
    push(&mut frame, &[kind, 0, 0, 0, flags, 0, 0, 0]);
    push(&mut frame, &target.octets());
    let option = if is_advertisement { TARGET_LINK_ADDRESS } else { SOURCE_LINK_ADDRESS };
    push(&mut frame, &[option, 1]);
    push(&mut frame, &own.mac.0);
    let message = start + IPV6_BYTES;
    let sum = checksum::pseudo_v6(&frame[start + 8..message], ip::ICMPV6, u32::from(payload))
        + checksum::sum(&frame[message..]);
    frame[message + 2..message + 4].copy_from_slice(&checksum::finish(sum).to_be_bytes());
    frame
}
