#![allow(clippy::cast_possible_truncation, reason = "test data")]

use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use proptest::prelude::*;

use super::*;

const SRC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const DST: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// A frame with right checksums, made by the oracle.
fn oracle(v6: bool, tcp: bool, payload: &[u8]) -> Vec<u8> {
    let eth = PacketBuilder::ethernet2(SRC, DST);
    let ip = if v6 {
        eth.ipv6([0xfe; 16], [0xfd; 16], 64)
    } else {
        eth.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
    };
    let mut frame = Vec::new();
    if tcp {
        let tcp = ip.tcp(1000, 2000, 0xffff_ff00, 1024).ack(77).psh().fin();
        tcp.write(&mut frame, payload).expect("written to memory");
    } else {
        ip.udp(1000, 2000).write(&mut frame, payload).expect("written to memory");
    }
    frame
}

/// Overwrites every checksum field, so that nothing of the oracle's is left.
fn spoil(frame: &mut [u8], packet: &Packet) {
    if packet.l3 == L3::Ipv4 {
        put16(frame, packet.l3_offset + 10, 0xa5a5);
    }
    let field = packet.l4_offset + if packet.l4 == L4::Tcp { 16 } else { 6 };
    put16(frame, field, 0xa5a5);
}

#[test]
fn sum_of_the_example_in_rfc_1071() {
    assert_eq!(sum16(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
    assert_eq!(sum16(&[]), 0);
    assert_eq!(sum16(&[0x12]), 0x1200);
    assert_eq!(sum16(&[0x12, 0x34, 0x56]), 0x6834);
    assert_eq!(sum16(&[0xff; 70000]), 0xffff);
}

#[test]
fn ipv4_header_checksum_of_a_known_header() {
    // The header of the example in RFC 1071's usual illustration: checksum 0xb861.
    let mut frame = vec![0; 14];
    frame[12] = 8;
    frame.extend([0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0]);
    frame.extend([0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7]);
    frame.resize(14 + 0x73, 0);
    frame[38..40].copy_from_slice(&0x5fu16.to_be_bytes());
    let packet = Packet::parse(&frame);
    insert_checksums(&mut frame, &packet, true, false);
    assert_eq!(frame[24..26], [0xb8, 0x61]);
    assert_eq!(frame[40..42], [0, 0], "layer 4 was not asked for");
    assert!(verify(&frame, &packet, false).l3_ok);
}

#[test]
fn a_udp_checksum_of_zero_is_sent_as_ones_and_none_is_accepted_over_ipv4_only() {
    for v6 in [false, true] {
        let mut frame = oracle(v6, false, &[0, 0]);
        let packet = Packet::parse(&frame);
        // Choose the payload so that the sum comes out as 0xffff, its complement as 0.
        put16(&mut frame, packet.l4_offset + 6, 0);
        let without =
            fold(sum(&frame[packet.l4_offset..]) + pseudo_sum(&frame, &packet, packet.l3_end));
        put16(&mut frame, packet.l4_offset + 8, !without);
        insert_checksums(&mut frame, &packet, true, true);
        assert_eq!(get16(&frame, packet.l4_offset + 6), 0xffff);
        assert!(verify(&frame, &packet, false).l4_ok);
        put16(&mut frame, packet.l4_offset + 6, 0);
        assert_eq!(verify(&frame, &packet, false).l4_ok, !v6);
    }
}

#[test]
fn one_flipped_bit_is_seen() {
    for (v6, tcp) in [(false, false), (false, true), (true, false), (true, true)] {
        let good = oracle(v6, tcp, b"0123456");
        let packet = Packet::parse(&good);
        for bit in packet.l4_offset * 8..good.len() * 8 {
            let mut frame = good.clone();
            frame[bit / 8] ^= 0x80 >> (bit % 8);
            let changed = Packet::parse(&frame);
            let verified = verify(&frame, &changed, false);
            assert!(!verified.l4_ok || changed.l4 == L4::None, "bit {bit}");
        }
    }
}

#[test]
fn check_sum_covers_the_packet_and_only_on_request_its_padding() {
    let mut frame = oracle(false, false, &[1, 2, 3]);
    let end = frame.len();
    frame.resize(60, 0xee);
    let packet = Packet::parse(&frame);
    assert_eq!(verify(&frame, &packet, false).check_sum, sum16(&frame[14..end]));
    assert_eq!(verify(&frame, &packet, true).check_sum, sum16(&frame[14..]));
    let other = [[0xff; 12].as_slice(), &[0x88, 0xb5, 1, 2, 3]].concat();
    assert_eq!(verify(&other, &Packet::parse(&other), false).check_sum, 0x0402);
}

#[test]
fn a_tag_is_inserted_behind_the_addresses() {
    let frame = oracle(false, false, b"x");
    let mut buffer = vec![0xa5; 4];
    buffer.extend(&frame);
    insert_vlan(&mut buffer, false, 0x6123);
    assert_eq!(buffer[..12], frame[..12]);
    assert_eq!(buffer[12..16], [0x81, 0x00, 0x61, 0x23]);
    assert_eq!(buffer[16..], frame[12..]);
    assert_eq!(strippable(&Packet::parse(&buffer)), Some(0x6123));
    let mut buffer = vec![0xa5; 4];
    buffer.extend(&frame);
    insert_vlan(&mut buffer, true, 7);
    assert_eq!(buffer[12..16], [0x88, 0xa8, 0, 7]);
    assert_eq!(strippable(&Packet::parse(&buffer)), None);
}

#[test]
fn bad_large_sends_are_refused() {
    let frame = oracle(false, true, &[]);
    assert_eq!(Tso::new(&frame, 0, 100).unwrap_err(), TsoError::ZeroMss);
    assert_eq!(Tso::new(&frame[..40], 100, 100).unwrap_err(), TsoError::Header);
    assert_eq!(Tso::new(&frame[..14], 100, 100).unwrap_err(), TsoError::Header);
    let longer = oracle(false, true, &[1]);
    assert_eq!(Tso::new(&longer, 100, 100).unwrap_err(), TsoError::Header);
    assert_eq!(Tso::new(&frame, 65_496, 70_000).unwrap_err(), TsoError::TooLong);
    assert!(Tso::new(&frame, 65_495, 70_000).is_ok());
}

#[test]
fn tcp_flags_identification_and_sequence_change_per_segment() {
    let mut header = oracle(false, true, &[]);
    header[18..20].copy_from_slice(&0xffffu16.to_be_bytes());
    header[47] |= TCP_CWR;
    let tso = Tso::new(&header, 1000, 2500).expect("a TCP header");
    assert_eq!(tso.segments(), 3);
    let expect = [
        (1054, 0xffff, 0xffff_ff00u32, 0x10 | TCP_CWR),
        (1054, 0x0000, 0x0000_02e8, 0x10),
        (554, 0x0001, 0x0000_06d0, 0x10 | TCP_FIN | TCP_PSH),
    ];
    for (index, (len, id, seq, flags)) in expect.into_iter().enumerate() {
        assert_eq!(tso.frame_bytes(index), len);
        let mut frame = header.clone();
        frame.resize(len, 0x5a);
        tso.finish(&mut frame, index, (true, true));
        assert_eq!(get16(&frame, 16), (len - 14) as u16);
        assert_eq!(get16(&frame, 18), id);
        assert_eq!(frame[38..42], seq.to_be_bytes());
        assert_eq!(frame[47], flags);
    }
}

/// Checks every checksum and length of a frame with the oracle; gives its payload.
fn accepted_by_oracle(frame: &[u8]) -> Vec<u8> {
    let sliced = SlicedPacket::from_ethernet(frame).expect("the oracle can read it");
    let net = sliced.net.as_ref().expect("IP");
    let transport = sliced.transport.as_ref().expect("TCP or UDP");
    if let etherparse::NetSlice::Ipv4(ip) = net {
        let header = ip.header().to_header();
        assert_eq!(header.header_checksum, header.calc_header_checksum());
    }
    match (transport, net) {
        (TransportSlice::Tcp(tcp), etherparse::NetSlice::Ipv4(ip)) => {
            let sum = tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination());
            assert_eq!(Ok(tcp.checksum()), sum);
            tcp.payload().to_vec()
        }
        (TransportSlice::Tcp(tcp), etherparse::NetSlice::Ipv6(ip)) => {
            let header = ip.header();
            assert_eq!(
                Ok(tcp.checksum()),
                tcp.calc_checksum_ipv6(header.source(), header.destination())
            );
            tcp.payload().to_vec()
        }
        (TransportSlice::Udp(udp), etherparse::NetSlice::Ipv4(ip)) => {
            let header = ip.header().to_header();
            let sum = udp.to_header().calc_checksum_ipv4(&header, udp.payload());
            assert_eq!(Ok(udp.checksum()), sum);
            udp.payload().to_vec()
        }
        (TransportSlice::Udp(udp), etherparse::NetSlice::Ipv6(ip)) => {
            let header = ip.header().to_header();
            let sum = udp.to_header().calc_checksum_ipv6(&header, udp.payload());
            assert_eq!(Ok(udp.checksum()), sum);
            udp.payload().to_vec()
        }
        other => panic!("not TCP or UDP over IP: {other:?}"),
    }
}

proptest! {
    #[test]
    fn inserted_checksums_are_the_oracles(
        v6: bool,
        tcp: bool,
        payload in proptest::collection::vec(any::<u8>(), 0..300),
        padding in 0usize..9,
    ) {
        let good = oracle(v6, tcp, &payload);
        let mut frame = good.clone();
        frame.resize(good.len() + padding, 0xee);
        let packet = Packet::parse(&frame);
        prop_assert_eq!(verify(&frame, &packet, false), Verified {
            l3_ok: true,
            l4_ok: true,
            check_sum: sum16(&good[14..]),
        });
        prop_assert_eq!(verify(&frame, &packet, true).check_sum, sum16(&frame[14..]));
        spoil(&mut frame, &packet);
        insert_checksums(&mut frame, &packet, true, true);
        prop_assert_eq!(&frame[..good.len()], &good[..]);
    }

    #[test]
    fn segments_are_accepted_by_the_oracle_and_add_up(
        v6: bool,
        tcp: bool,
        mss in 1usize..200,
        payload in proptest::collection::vec(any::<u8>(), 0..900),
    ) {
        let header = oracle(v6, tcp, &[]);
        let tso = Tso::new(&header, mss, payload.len()).expect("a complete header");
        let mut joined = Vec::new();
        for index in 0..tso.segments() {
            let (start, len) = tso.payload_of(index);
            let mut frame = header.clone();
            frame.extend(&payload[start..start + len]);
            prop_assert_eq!(frame.len(), tso.frame_bytes(index));
            tso.finish(&mut frame, index, (true, true));
            joined.extend(accepted_by_oracle(&frame));
        }
        prop_assert_eq!(joined, payload);
    }

    #[test]
    fn no_frame_makes_an_offload_panic(
        mut frame in proptest::collection::vec(any::<u8>(), 0..120),
        ethertype in prop_oneof![Just(0x0800u16), Just(0x86dd), Just(0x8100)],
        version in prop_oneof![Just(0x45u8), Just(0x46), Just(0x60)],
        protocol in prop_oneof![Just(6u8), Just(17), any::<u8>()],
        total in 0u16..120,
        mss in 0usize..50,
    ) {
        if frame.len() > 30 {
            frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
            frame[14] = version;
            frame[16..18].copy_from_slice(&total.to_be_bytes());
            frame[if version == 0x60 { 20 } else { 23 }] = protocol;
        }
        let packet = Packet::parse(&frame);
        let _ = verify(&frame, &packet, true);
        insert_checksums(&mut frame.clone(), &packet, true, true);
        if let Ok(tso) = Tso::new(&frame, mss, 70) {
            let mut segment = frame.clone();
            segment.resize(tso.frame_bytes(0), 0);
            tso.finish(&mut segment, 0, (true, true));
        }
    }
}
