//! The frames of group membership: what queries and reports say, and how reports are written.
//!
//! Source: RFC 2236 section 2, RFC 3376 section 4 (IGMP), RFC 2710 section 3, RFC 3810 section 5
//! (MLD), RFC 2113 and RFC 2711 (Router Alert).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::checksum;
use crate::ether::{self, MacAddr};
use crate::ip;

/// Addresses that reports come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Host {
    /// The MAC address.
    pub mac: MacAddr,
    /// The VLAN.
    pub vlan: Option<u16>,
    /// The IPv4 address; unspecified if there is none yet.
    pub ipv4: Ipv4Addr,
    /// The link-local IPv6 address; unspecified if there is none yet.
    pub ipv6: Ipv6Addr,
}

/// Longest packet that is written: every link carries it. Source: RFC 8200 section 5.
const MAX_PACKET_BYTES: usize = 1280;
/// Bytes of the longest report: an IPv6 packet that every link carries (RFC 8200 section 5), with
/// its Ethernet header and a VLAN tag.
pub const MAX_FRAME_BYTES: usize = 14 + 4 + MAX_PACKET_BYTES;
/// Frames are padded to this, without the check sequence. Source: IEEE 802.3 clause 4.2.3.3.
const MIN_FRAME_BYTES: usize = 60;
/// The part of a VLAN tag that is its number.
const VLAN_ID: u16 = 0x0fff;

/// IPv4 header without and with the Router Alert option.
const IPV4_BYTES: usize = 20;
const IPV4_ALERT_BYTES: usize = 24;
const IPV4_ALERT: [u8; 4] = [0x94, 4, 0, 0];
/// Precedence of network control, which reports of IGMPv3 must have. Source: RFC 3376 section 4.
const TOS: u8 = 0xc0;
const IGMP_QUERY: u8 = 0x11;
const IGMP_REPORT_V1: u8 = 0x12;
const IGMP_REPORT_V2: u8 = 0x16;
const IGMP_LEAVE: u8 = 0x17;
const IGMP_REPORT_V3: u8 = 0x22;
/// Bytes of a message before its sources: IGMPv1 and v2, IGMPv3.
const IGMP_BYTES: usize = 8;
const IGMP_QUERY_V3_BYTES: usize = 12;
const ALL_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 2);
const ALL_IGMPV3: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 22);

/// IPv6 header, and the hop-by-hop header: next header, length, Router Alert, two bytes of padding.
const IPV6_BYTES: usize = 40;
const HOP_BY_HOP_BYTES: usize = 8;
const IPV6_ALERT: [u8; 6] = [5, 2, 0, 0, 1, 0];
const ROUTER_ALERT: u8 = 5;
const MLD_QUERY: u8 = 130;
const MLD_REPORT_V1: u8 = 131;
const MLD_DONE: u8 = 132;
const MLD_REPORT_V2: u8 = 143;
/// Bytes of a message before its sources: MLDv1, MLDv2.
const MLD_BYTES: usize = 24;
const MLD_QUERY_V2_BYTES: usize = 28;
const ALL_ROUTERS_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
const ALL_MLDV2: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// Header of a report of IGMPv3 and MLDv2, before its records.
const REPORT_BYTES: usize = 8;

/// Time that IGMPv1 hosts answer in. Source: RFC 2236 section 4.
const V1_RESPONSE: Duration = Duration::from_secs(10);

/// A question of a router or a switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) is_ipv6: bool,
    /// 1 to 3 for IGMP, 1 or 2 for MLD.
    pub(super) version: u8,
    /// Answers are due within this.
    pub(super) max_response: Duration,
    /// The group that is asked for; without, all.
    pub(super) group: Option<IpAddr>,
    /// The sources that are asked for; without, all.
    pub(super) sources: Vec<IpAddr>,
    /// The querier's numbers, where it says them.
    pub(super) robustness: Option<u8>,
    pub(super) interval: Option<Duration>,
}

/// What a frame says about groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Heard {
    Query(Query),
    /// Another member's report of an old version.
    Report(IpAddr),
}

/// Kind of a record. Source: RFC 3376 section 4.2.12, RFC 3810 section 5.2.12.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RecordKind {
    IsInclude = 1,
    IsExclude = 2,
    ToInclude = 3,
    ToExclude = 4,
    Allow = 5,
    Block = 6,
}

/// What a report says about one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) kind: RecordKind,
    pub(super) group: IpAddr,
    pub(super) sources: Vec<IpAddr>,
}

impl Record {
    /// Bytes of it in a report.
    pub(super) fn len_bytes(&self) -> usize {
        4 + (1 + self.sources.len()) * if self.group.is_ipv6() { 16 } else { 4 }
    }
}

/// Room for records in one report.
pub(super) fn records_room(is_ipv6: bool) -> usize {
    let headers = if is_ipv6 { IPV6_BYTES + HOP_BY_HOP_BYTES } else { IPV4_ALERT_BYTES };
    MAX_PACKET_BYTES - headers - REPORT_BYTES
}

/// Reads a frame of a VLAN, or without; `None` if it says nothing about groups, or is not as it
/// must be.
pub(super) fn parse(frame: &[u8], vlan: Option<u16>) -> Option<Heard> {
    let (ethertype, start) = ether::ethertype(frame)?;
    let tag = match ether::be16(frame, 12)? {
        ether::VLAN => Some(ether::be16(frame, 14)? & VLAN_ID),
        _ => None,
    };
    let packet = frame.get(start..).filter(|_| tag == vlan)?;
    match ethertype {
        ether::IPV4 => parse_igmp(packet),
        ether::IPV6 => parse_mld(packet),
        _ => None,
    }
}

/// Reads an IGMP message. Queries without Router Alert are taken: switches send such (reference
/// 11.1.10).
fn parse_igmp(packet: &[u8]) -> Option<Heard> {
    let header_bytes = usize::from(packet.first()? & 0xf) * 4;
    let total = usize::from(ether::be16(packet, 2)?);
    let header = packet.get(..header_bytes).filter(|header| header.len() >= IPV4_BYTES)?;
    let message = packet.get(header_bytes..total)?;
    let is_fragment = ether::be16(header, 6)? & 0x3fff != 0;
    let is_igmp = header[0] >> 4 == 4 && header[9] == ip::IGMP && !is_fragment;
    let is_intact = |bytes| checksum::is_intact(checksum::sum(bytes));
    if !is_igmp || message.len() < IGMP_BYTES || !is_intact(header) || !is_intact(message) {
        return None;
    }
    let group = v4_at(message, 4)?;
    let group = Some(group).filter(|group| !group.is_unspecified()).map(IpAddr::V4);
    if matches!(message[0], IGMP_REPORT_V1 | IGMP_REPORT_V2) {
        return group.map(Heard::Report);
    }
    if message[0] != IGMP_QUERY || group.is_some_and(|group| !group.is_multicast()) {
        return None;
    }
    let tenths = |tenths: u32| Duration::from_millis(u64::from(tenths) * 100);
    let old = |version, max_response| Query {
        is_ipv6: false,
        version,
        max_response,
        group,
        sources: Vec::new(),
        robustness: None,
        interval: None,
    };
    Some(Heard::Query(match (message.len(), message[1]) {
        (IGMP_BYTES, 0) => Query { group: None, ..old(1, V1_RESPONSE) },
        (IGMP_BYTES, code) => old(2, tenths(code.into())),
        (..IGMP_QUERY_V3_BYTES, _) => return None,
        (_, code) => {
            let count = usize::from(ether::be16(message, 10)?);
            let sources = message.get(IGMP_QUERY_V3_BYTES..IGMP_QUERY_V3_BYTES + 4 * count)?;
            let source = |at| v4_at(sources, at).map(IpAddr::V4);
            Query {
                sources: (0..count).filter_map(|at| source(at * 4)).collect(),
                robustness: robustness(message[8]),
                interval: seconds(message[9]),
                ..old(3, tenths(float(code)))
            }
        }
    }))
}

/// Reads an MLD message: from a link-local address, with hop limit 1 and Router Alert. Source:
/// RFC 3810 section 6.2.
fn parse_mld(packet: &[u8]) -> Option<Heard> {
    let header: &[u8; IPV6_BYTES] = packet.first_chunk()?;
    let payload = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let rest = packet.get(IPV6_BYTES..IPV6_BYTES + payload)?;
    let source = v6_at(header, 8)?;
    let is_link_local = source.is_unicast_link_local();
    if header[0] >> 4 != 6 || header[6] != ip::HOP_BY_HOP || header[7] != 1 || !is_link_local {
        return None;
    }
    let (next, options_bytes) = (*rest.first()?, usize::from(*rest.get(1)?) * 8 + 8);
    let (options, message) = rest.split_at_checked(options_bytes)?;
    if next != ip::ICMPV6 || !has_alert(&options[2..]) || message.len() < MLD_BYTES {
        return None;
    }
    let len = u32::try_from(message.len()).ok()?;
    let pseudo = checksum::pseudo_v6(&packet[8..40], ip::ICMPV6, len);
    if !checksum::is_intact(pseudo + checksum::sum(message)) {
        return None;
    }
    let group = v6_at(message, 8)?;
    let group = Some(group).filter(|group| !group.is_unspecified()).map(IpAddr::V6);
    if message[0] == MLD_REPORT_V1 {
        return group.map(Heard::Report);
    }
    if message[0] != MLD_QUERY || group.is_some_and(|group| !group.is_multicast()) {
        return None;
    }
    let code = ether::be16(message, 4)?;
    let millis = |millis: u32| Duration::from_millis(millis.into());
    let old = |version, max_response| Query {
        is_ipv6: true,
        version,
        max_response,
        group,
        sources: Vec::new(),
        robustness: None,
        interval: None,
    };
    Some(Heard::Query(match message.len() {
        MLD_BYTES => old(1, millis(code.into())),
        ..MLD_QUERY_V2_BYTES => return None,
        _ => {
            let count = usize::from(ether::be16(message, 26)?);
            let sources = message.get(MLD_QUERY_V2_BYTES..MLD_QUERY_V2_BYTES + 16 * count)?;
            let source = |at| v6_at(sources, at).map(IpAddr::V6);
            Query {
                sources: (0..count).filter_map(|at| source(at * 16)).collect(),
                robustness: robustness(message[24]),
                interval: seconds(message[25]),
                ..old(2, millis(float16(code)))
            }
        }
    }))
}

/// Whether hop-by-hop options have the Router Alert for MLD among them. Source: RFC 2711 section
/// 2.1.
fn has_alert(mut options: &[u8]) -> bool {
    while let Some((&kind, rest)) = options.split_first() {
        // One byte of padding is the only option without a length.
        if kind == 0 {
            options = rest;
            continue;
        }
        if kind == ROUTER_ALERT {
            return rest.starts_with(&[2, 0, 0]);
        }
        let len = rest.first().map_or(usize::MAX, |&len| usize::from(len) + 1);
        options = rest.get(len..).unwrap_or_default();
    }
    false
}

/// The querier's robustness; 0 says none. Source: RFC 3376 section 4.1.6.
fn robustness(byte: u8) -> Option<u8> {
    Some(byte & 7).filter(|robustness| *robustness > 0)
}

/// The querier's interval; 0 says none. Source: RFC 3376 section 4.1.7.
fn seconds(code: u8) -> Option<Duration> {
    (code > 0).then(|| Duration::from_secs(float(code).into()))
}

/// A number of one byte: from 128 on three bits of exponent, four of mantissa. Source: RFC 3376
/// section 4.1.1.
fn float(code: u8) -> u32 {
    let code = u32::from(code);
    if code < 128 { code } else { (code & 0xf | 0x10) << ((code >> 4 & 7) + 3) }
}

/// A number of two bytes: from 32768 on three bits of exponent, twelve of mantissa. Source:
/// RFC 3810 section 5.1.3.
fn float16(code: u16) -> u32 {
    let code = u32::from(code);
    if code < 0x8000 { code } else { (code & 0xfff | 0x1000) << ((code >> 12 & 7) + 3) }
}

fn v4_at(bytes: &[u8], offset: usize) -> Option<Ipv4Addr> {
    Some(Ipv4Addr::from(*bytes.get(offset..)?.first_chunk::<4>()?))
}

fn v6_at(bytes: &[u8], offset: usize) -> Option<Ipv6Addr> {
    Some(Ipv6Addr::from(*bytes.get(offset..)?.first_chunk::<16>()?))
}

/// A report of the newest version.
pub(super) fn report(host: &Host, is_ipv6: bool, records: &[Record]) -> Vec<u8> {
    let kind = if is_ipv6 { MLD_REPORT_V2 } else { IGMP_REPORT_V3 };
    let mut message = vec![kind, 0, 0, 0, 0, 0];
    message.extend((records.len() as u16).to_be_bytes());
    for record in records {
        message.extend([record.kind as u8, 0]);
        message.extend((record.sources.len() as u16).to_be_bytes());
        push_ip(&mut message, record.group);
        record.sources.iter().for_each(|ip| push_ip(&mut message, *ip));
    }
    if is_ipv6 { mld(host, ALL_MLDV2, message) } else { igmp(host, ALL_IGMPV3, message) }
}

/// A report of an old version, or that a group was left, if the version has such.
pub(super) fn report_old(
    host: &Host,
    group: IpAddr,
    version: u8,
    is_member: bool,
) -> Option<Vec<u8>> {
    match group {
        IpAddr::V4(ip) => {
            let (kind, to) = match (version, is_member) {
                (1, true) => (IGMP_REPORT_V1, ip),
                (1, false) => return None,
                (_, true) => (IGMP_REPORT_V2, ip),
                (_, false) => (IGMP_LEAVE, ALL_ROUTERS),
            };
            let mut message = vec![kind, 0, 0, 0];
            push_ip(&mut message, group);
            Some(igmp(host, to, message))
        }
        IpAddr::V6(ip) => {
            let (kind, to) =
                if is_member { (MLD_REPORT_V1, ip) } else { (MLD_DONE, ALL_ROUTERS_V6) };
            let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
            push_ip(&mut message, group);
            Some(mld(host, to, message))
        }
    }
}

fn push_ip(bytes: &mut Vec<u8>, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => bytes.extend(ip.octets()),
        IpAddr::V6(ip) => bytes.extend(ip.octets()),
    }
}

/// A frame with an IGMP message whose checksum is still 0.
fn igmp(host: &Host, to: Ipv4Addr, mut message: Vec<u8>) -> Vec<u8> {
    let sum = checksum::finish(checksum::sum(&message));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = start(host, MacAddr::of_ipv4_group(to), ether::IPV4);
    let at = frame.len();
    let total = (IPV4_ALERT_BYTES + message.len()) as u16;
    frame.extend([0x40 | (IPV4_ALERT_BYTES / 4) as u8, TOS]);
    frame.extend(total.to_be_bytes());
    // No identification, do not fragment, one hop.
    frame.extend([0, 0, 0x40, 0, 1, ip::IGMP, 0, 0]);
    frame.extend(host.ipv4.octets());
    frame.extend(to.octets());
    frame.extend(IPV4_ALERT);
    let sum = checksum::finish(checksum::sum(&frame[at..]));
    frame[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(message);
    frame.resize(frame.len().max(MIN_FRAME_BYTES), 0);
    frame
}

/// A frame with an MLD message whose checksum is still 0.
fn mld(host: &Host, to: Ipv6Addr, mut message: Vec<u8>) -> Vec<u8> {
    let mut frame = start(host, MacAddr::of_ipv6_group(to), ether::IPV6);
    let at = frame.len();
    let payload = (HOP_BY_HOP_BYTES + message.len()) as u16;
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(payload.to_be_bytes());
    frame.extend([ip::HOP_BY_HOP, 1]);
    frame.extend(host.ipv6.octets());
    frame.extend(to.octets());
    frame.extend([ip::ICMPV6, 0]);
    frame.extend(IPV6_ALERT);
    let pseudo = checksum::pseudo_v6(&frame[at + 8..at + 40], ip::ICMPV6, message.len() as u32);
    let sum = checksum::finish(pseudo + checksum::sum(&message));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    frame.extend(message);
    frame
}

fn start(host: &Host, to: MacAddr, ethertype: u16) -> Vec<u8> {
    let mut frame = Vec::with_capacity(MAX_FRAME_BYTES);
    frame.extend(to.0);
    frame.extend(host.mac.0);
    if let Some(vlan) = host.vlan {
        frame.extend(ether::VLAN.to_be_bytes());
        frame.extend(vlan.to_be_bytes());
    }
    frame.extend(ethertype.to_be_bytes());
    frame
}
