use etherparse::{PacketBuilder, SlicedPacket, TcpHeader, TransportSlice};
use proptest::prelude::*;

use super::*;
use crate::ether::MacAddr;

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

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

const SEGMENT: Transport = Transport::Tcp {
    sequence: 7,
    acknowledgment: 0x0102_0304,
    flags: 0x18,
    window: 512,
    max_segment: None,
};

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
    let (from, to): (Ipv6Addr, Ipv6Addr) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
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
    for (is_ipv6, tci) in [(false, None), (false, Some(0x6005)), (true, None), (true, Some(5))] {
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

    /// The short way takes nothing but what the long way takes, and reads the same in it.
    #[test]
    fn plain_datagrams_are_read_as_all_others_are(
        payload in 0usize..20,
        pad in 0usize..4,
        changes in prop::collection::vec((12usize..42, any::<u8>()), 0..4),
        cut in 0usize..80,
    ) {
        let mut frame = built(&headers(false, None, Transport::Udp), &[7; 20][..payload]);
        prop_assert!(Packet::plain_udp(&frame).is_some());
        for (at, byte) in changes {
            frame[at] = byte;
        }
        frame.resize(frame.len() + pad, 0);
        frame.truncate(frame.len().max(cut));
        if cut > 60 {
            frame.truncate(cut - 40);
        }
        if let Some(plain) = Packet::plain_udp(&frame) {
            let any = Packet::parse_any(&frame).map(|packet| format!("{packet:?}"));
            prop_assert_eq!(Ok(format!("{plain:?}")), any);
        }
    }

    #[test]
    fn whom_a_packet_is_for_is_its_destination(
        ipv6: bool,
        at in 0usize..4,
        change: u8,
    ) {
        let headers = headers(ipv6, None, Transport::Udp);
        let frame = built(&headers, &[]);
        let packet = Packet::parse(&frame).unwrap();
        prop_assert!(packet.is_for(headers.destination));
        let mut others = [headers.source, headers.destination, headers.destination];
        others[1].set_port(headers.destination.port() ^ 1 << (change % 16));
        if let IpAddr::V4(address) = others[2].ip() {
            let mut octets = address.octets();
            octets[at] ^= 1 << (change % 8);
            others[2].set_ip(Ipv4Addr::from(octets).into());
        } else {
            others[2].set_ip(Ipv4Addr::from([192, 0, 2, 2]).into());
        }
        for other in others {
            prop_assert!(!packet.is_for(other), "{}", other);
        }
    }
}

#[test]
fn a_first_segment_says_how_much_it_takes() {
    let syn = Transport::Tcp {
        sequence: 7,
        acknowledgment: 9,
        flags: tcp::SYN,
        window: 512,
        max_segment: Some(1460),
    };
    for is_ipv6 in [false, true] {
        let frame = built(&headers(is_ipv6, None, syn), b"");
        let packet = Packet::parse(&frame).unwrap();
        let segment = packet.tcp().unwrap();
        assert!(packet.is_intact() && segment.payload.is_empty());
        assert_eq!((segment.sequence(), segment.acknowledgment()), (7, None));
        assert_eq!((segment.window(), segment.max_segment()), (512, Some(1460)));
        assert_eq!(frame[packet.transport_at() + 12..][..2], [0x60, tcp::SYN]);
        assert_eq!(frame[frame.len() - 4..], [2, 4, 0x05, 0xb4]);
        let theirs = SlicedPacket::from_ethernet(&frame).unwrap();
        let Some(TransportSlice::Tcp(theirs)) = theirs.transport else { panic!("no TCP") };
        assert!(theirs.syn() && !theirs.ack());
        assert_eq!(theirs.options(), [2, 4, 0x05, 0xb4]);
    }
    let frame = built(&headers(false, None, SEGMENT), b"order");
    let segment = Packet::parse(&frame).unwrap().tcp().unwrap();
    assert_eq!((segment.acknowledgment(), segment.max_segment()), (Some(0x0102_0304), None));
    assert_eq!(segment.payload, b"order");
    let frame = built(&headers(false, None, Transport::Udp), b"order");
    assert!(Packet::parse(&frame).unwrap().tcp().is_none());
}
