//! Frames of peers that do not exist, at every layer that listens to the wire.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use ferrocx_model::roce::icrc::icrc;
use ferrocx_model::wire::SplitMix64;
use ferrocx_net::ip;
use ferrocx_prm::Layout;
use ferrocx_prm::mad::{
    BASE_VERSION, CLASS_CM, CM_CLASS_VERSION, CmDreq, CmMra, CmRej, CmRep, CmReq, CmRtu, CmaHeader,
    DEFAULT_PKEY, GSI_QKEY, GSI_QPN, MAD_BYTES, METHOD_SEND, MadHeader, cm_attr,
};

use crate::host::{ip_of, mac_of};
use crate::plan::Intruder;

const BROADCAST: [u8; 6] = [0xff; 6];
const ARP: [u8; 2] = [0x08, 0x06];
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const ROCE_PORT: u16 = 4791;
/// Shortest Ethernet frame without its check sequence. Source: IEEE 802.3, 4A.4.2.
const MIN_FRAME: usize = 60;
/// Opcode of a datagram. Source: IBTA vol. 1, table 38, "UD SEND only".
const UD_SEND_ONLY: u8 = 0x64;
/// Opcodes of reliable connections end here.
const RC_OPCODES: u8 = 0x18;
/// Those of them that answer a request. Source: IBTA vol. 1, table 38.
const RC_ANSWERS: RangeInclusive<u8> = 0x0d..=0x12;
/// Service ids of TCP ports begin here. Source: IBTA annex A11, "IP addressing".
const TCP_SERVICES: u64 = 0x0106_0000;

/// An invented station, by its number.
fn stranger(number: u64) -> ([u8; 6], Ipv4Addr) {
    let [.., b, c, d] = number.to_be_bytes();
    // Inside the subnet of the hosts, whose numbers are small, or anywhere.
    let ip = match b & 1 {
        0 => Ipv4Addr::new(10, 0, 0, 100 + d % 100),
        _ => Ipv4Addr::new(172, 16 + (c & 15), b, d),
    };
    ([0x06, 0xee, 0, b, c, d], ip)
}

/// An IPv4 address in the last four bytes of a field.
fn in_field(ip: Ipv4Addr) -> [u8; 16] {
    let mut field = [0; 16];
    field[12..].copy_from_slice(&ip.octets());
    field
}

fn ethernet(to: [u8; 6], from: [u8; 6], ethertype: [u8; 2]) -> Vec<u8> {
    [&to[..], &from, &ethertype].concat()
}

fn sum(bytes: &[u8], mut sum: u32) -> u16 {
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Adds an IPv4 header for `len` bytes of a protocol.
fn ipv4(frame: &mut Vec<u8>, from: Ipv4Addr, to: Ipv4Addr, protocol: u8, len: usize) {
    let start = frame.len();
    let [high, low] = (20 + len as u16).to_be_bytes();
    frame.extend([0x45, 2, high, low, 0, 0, 0x40, 0, 64, protocol, 0, 0]);
    frame.extend(from.octets());
    frame.extend(to.octets());
    let checksum = sum(&frame[start..], 0).to_be_bytes();
    frame[start + 10..start + 12].copy_from_slice(&checksum);
}

/// A RoCEv2 packet with a right ICRC: transport header and what follows.
fn roce(to: usize, number: u64, transport: &[u8]) -> Vec<u8> {
    let (mac, ip) = stranger(number);
    let mut frame = ethernet(mac_of(to), mac, IPV4);
    let udp_len = 8 + transport.len() + 4;
    ipv4(&mut frame, ip, ip_of(to), ip::UDP, udp_len);
    frame.extend((0xc000 | number as u16 & 0x3fff).to_be_bytes());
    frame.extend(ROCE_PORT.to_be_bytes());
    frame.extend((udp_len as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(transport);
    let crc = icrc(&frame[14..]).to_le_bytes();
    frame.extend(crc);
    frame
}

fn bth(opcode: u8, qpn: u32, psn: u32) -> [u8; 12] {
    let ([_, q0, q1, q2], [_, p0, p1, p2]) = (qpn.to_be_bytes(), psn.to_be_bytes());
    let [.., k0, k1] = DEFAULT_PKEY.to_be_bytes();
    [opcode, 0, k0, k1, 0, q0, q1, q2, 0x80, p0, p1, p2]
}

/// A message of the connection manager from a stranger, about a connection that may be there.
pub(crate) fn cm(to: usize, port: u16, random: &mut SplitMix64) -> Vec<u8> {
    let (number, word) = (random.next_u64(), random.next_u64());
    let (ours, theirs) = (word as u32, (word >> 32) as u32);
    let mut mad = [0; MAD_BYTES];
    let ids = |bytes: &mut [u8]| {
        bytes[..4].copy_from_slice(&ours.to_be_bytes());
        bytes[4..8].copy_from_slice(&theirs.to_be_bytes());
    };
    let (attribute, body) = match number % 7 {
        0 => {
            let mut private = [0; 92];
            let header = CmaHeader::zeroed()
                .with_ip_version(4)
                .with_port((number as u32 & 0xffff) | 1)
                .with_source(in_field(stranger(number).1))
                .with_destination(in_field(ip_of(to)));
            private[..CmaHeader::SIZE_BYTES].copy_from_slice(&header.0);
            let req = CmReq::zeroed()
                .with_local_comm_id(ours)
                .with_service_id(TCP_SERVICES | u64::from(port))
                .with_local_ca_guid(number)
                .with_local_qpn(theirs & 0xff_ffff)
                .with_remote_cm_response_timeout(31)
                .with_local_cm_response_timeout(31)
                .with_retry_count(7)
                .with_partition_key(DEFAULT_PKEY)
                .with_path_packet_payload_mtu(3)
                .with_max_cm_retries(15)
                .with_primary_local_port_lid(0xffff)
                .with_primary_remote_port_lid(0xffff)
                .with_primary_hop_limit(64)
                .with_primary_local_ack_timeout(31)
                .with_primary_local_port_gid(stranger(number).1.to_ipv6_mapped().octets())
                .with_primary_remote_port_gid(ip_of(to).to_ipv6_mapped().octets())
                .with_private_data(private);
            (cm_attr::REQ, req.0.to_vec())
        }
        1 => (cm_attr::REP, CmRep::zeroed().0.to_vec()),
        2 => (cm_attr::RTU, CmRtu::zeroed().0.to_vec()),
        3 => (cm_attr::REJ, CmRej::zeroed().with_reason(4).0.to_vec()),
        4 => (cm_attr::DREQ, CmDreq::zeroed().0.to_vec()),
        5 => (
            cm_attr::MRA,
            CmMra::zeroed().with_message_mraed(1).with_service_timeout(31).0.to_vec(),
        ),
        _ => {
            let mut noise = vec![0; MAD_BYTES - MadHeader::SIZE_BYTES];
            noise.chunks_mut(8).for_each(|chunk| {
                chunk.copy_from_slice(&random.next_u64().to_be_bytes()[..chunk.len()]);
            });
            (0x10 + (number >> 8) as u32 % 9, noise)
        }
    };
    let header = MadHeader::zeroed()
        .with_base_version(BASE_VERSION)
        .with_mgmt_class(CLASS_CM)
        .with_class_version(CM_CLASS_VERSION)
        .with_method(METHOD_SEND)
        .with_transaction_id(number)
        .with_attr_id(attribute);
    mad[..MadHeader::SIZE_BYTES].copy_from_slice(&header.0);
    mad[MadHeader::SIZE_BYTES..][..body.len()].copy_from_slice(&body);
    if number % 7 != 0 && number % 7 != 6 {
        ids(&mut mad[MadHeader::SIZE_BYTES..]);
    }
    let mut transport = bth(UD_SEND_ONLY, GSI_QPN, number as u32 & 0xff_ffff).to_vec();
    transport.extend(GSI_QKEY.to_be_bytes());
    transport.extend([0, 0, 0, 1]);
    transport.extend(mad);
    roce(to, number, &transport)
}

fn arp(random: &mut SplitMix64, to: usize) -> Vec<u8> {
    let (mac, ip) = stranger(random.next_u64());
    let is_question = random.chance(500_000);
    let target = if is_question { BROADCAST } else { mac_of(to) };
    let mut frame = ethernet(target, mac, ARP);
    frame.extend([0, 1, 0x08, 0, 6, 4, 0, if is_question { 1 } else { 2 }]);
    frame.extend(mac);
    frame.extend(ip.octets());
    frame.extend(if is_question { [0; 6] } else { mac_of(to) });
    frame.extend(ip_of(to).octets());
    frame
}

fn nd(random: &mut SplitMix64, to: usize) -> Vec<u8> {
    let number = random.next_u64();
    let (mac, _) = stranger(number);
    let [_, _, _, b, c, d] = mac;
    let source = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, b, c, d];
    // Solicitation or advertisement, with the option of its link-layer address.
    let kind = 135 + (number >> 60) as u8 % 2;
    let mut message = vec![kind, 0, 0, 0, 0x20, 0, 0, 0];
    message.extend(source);
    message.extend([kind - 134, 1]);
    message.extend(mac);
    let mut frame = ethernet(mac_of(to), mac, IPV6);
    frame.extend([0x60, 0, 0, 0, 0, message.len() as u8, ip::ICMPV6, 255]);
    frame.extend(source);
    frame.extend(source);
    let mut pseudo = [&source[..], &source].concat();
    pseudo.extend((message.len() as u32).to_be_bytes());
    pseudo.extend([0, 0, 0, ip::ICMPV6]);
    pseudo.extend(&message);
    let checksum = sum(&pseudo, 0).to_be_bytes();
    message[2..4].copy_from_slice(&checksum);
    frame.extend(message);
    frame
}

fn igmp(random: &mut SplitMix64) -> Vec<u8> {
    let number = random.next_u64();
    let (mac, ip) = stranger(number);
    let group = Ipv4Addr::new(224, 0, 0, 1);
    let mut frame = ethernet([0x01, 0x00, 0x5e, 0, 0, 1], mac, IPV4);
    let mut message = vec![[0x11, 0x12, 0x16, 0x17, 0x22][(number % 5) as usize], number as u8];
    message.extend([0, 0, 0, 0, 0, 0]);
    let checksum = sum(&message, 0).to_be_bytes();
    message[2..4].copy_from_slice(&checksum);
    ipv4(&mut frame, ip, group, ip::IGMP, message.len());
    frame.extend(message);
    frame
}

/// A packet of a reliable connection: a request to a queue pair that is there, or an answer.
///
/// Nothing but its packet number protects a connection from an answer of somebody else, and 64 of
/// 2^24 numbers fit: so answers go to numbers that are hardly anybody's.
fn packet(random: &mut SplitMix64, to: usize, qpns: &[u32]) -> Vec<u8> {
    let (number, word) = (random.next_u64(), random.next_u64());
    let opcode = (number >> 8) as u8 % RC_OPCODES;
    let qpn = match qpns.is_empty() || RC_ANSWERS.contains(&opcode) {
        true => word as u32 & 0xff_ffff,
        false => qpns[(word % qpns.len() as u64) as usize],
    };
    let mut transport = bth(opcode, qpn, (word >> 32) as u32 & 0xff_ffff).to_vec();
    let len = random.below(64) as usize / 4 * 4;
    transport.extend((0..len).map(|at| (number >> (at % 8)) as u8));
    roce(to, number, &transport)
}

/// A frame of an intruder for a host, among whose queue pairs are these.
pub(crate) fn frame(
    intruder: Intruder,
    to: usize,
    port: u16,
    qpns: &[u32],
    random: &mut SplitMix64,
) -> Vec<u8> {
    let mut frame = match intruder {
        Intruder::Arp => arp(random, to),
        Intruder::Nd => nd(random, to),
        Intruder::Igmp => igmp(random),
        Intruder::Cm => cm(to, port, random),
        Intruder::Roce => packet(random, to, qpns),
        Intruder::Noise => {
            let types = [ARP, IPV4, IPV6, [0x81, 0x00], [0x12, 0x34]];
            let mut frame = ethernet(
                mac_of(to),
                stranger(random.next_u64()).0,
                types[random.below(5) as usize],
            );
            let len = random.below(200);
            frame.extend((0..len).map(|_| random.next_u64() as u8));
            frame
        }
    };
    let len = frame.len().max(MIN_FRAME);
    frame.resize(len, 0);
    frame
}
