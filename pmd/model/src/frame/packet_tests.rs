#![allow(clippy::cast_possible_truncation, reason = "test data")]

use proptest::prelude::*;

use super::*;

/// An IPv4/TCP frame of 54 bytes without padding.
fn tcp4() -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend([0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2, 0x08, 0x00]);
    frame.extend([0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0x12, 0x34, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    frame
}

fn with_tags(frame: &[u8], tags: &[(u16, u16)]) -> Vec<u8> {
    let mut out = frame[..12].to_vec();
    for (tpid, tci) in tags {
        out.extend(tpid.to_be_bytes());
        out.extend(tci.to_be_bytes());
    }
    out.extend(&frame[12..]);
    out
}

/// An IPv6 frame with the given next header and payload.
fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
    frame.extend([0x60, 0, 0, 0, 0, payload.len() as u8, next, 64]);
    frame.extend([0xfe; 16]);
    frame.extend([0xfd; 16]);
    frame.extend(payload);
    frame
}

#[test]
fn tcp_over_ipv4_is_found() {
    let packet = Packet::parse(&tcp4());
    assert_eq!(packet.cast, Cast::Unicast);
    assert_eq!((packet.l3, packet.l4), (L3::Ipv4, L4::Tcp));
    assert_eq!((packet.l3_offset, packet.l4_offset, packet.payload_offset), (14, 34, 54));
    assert_eq!((packet.l3_end, packet.ip_protocol, packet.malformed), (54, 6, None));
}

#[test]
fn padding_is_not_part_of_the_ip_packet() {
    let mut frame = tcp4();
    frame.resize(60, 0xee);
    assert_eq!(Packet::parse(&frame).l3_end, 54);
}

#[test]
fn one_and_two_tags_are_read_and_a_third_is_payload() {
    let one = with_tags(&tcp4(), &[(0x8100, 0xa123)]);
    let packet = Packet::parse(&one);
    assert_eq!((packet.tags, packet.tpid[0], packet.tci[0]), (1, 0x8100, 0xa123));
    assert_eq!((packet.l3_offset, packet.l4), (18, L4::Tcp));

    let two = with_tags(&tcp4(), &[(0x88a8, 5), (0x8100, 6)]);
    let packet = Packet::parse(&two);
    assert_eq!((packet.tags, packet.tpid, packet.tci), (2, [0x88a8, 0x8100], [5, 6]));
    assert_eq!((packet.l3_offset, packet.l4), (22, L4::Tcp));

    let three = with_tags(&tcp4(), &[(0x88a8, 5), (0x8100, 6), (0x8100, 7)]);
    let packet = Packet::parse(&three);
    assert_eq!((packet.tags, packet.ethertype, packet.l3), (2, 0x8100, L3::None));
}

#[test]
fn ipv4_options_move_layer_4() {
    let mut frame = tcp4();
    frame[14] = 0x46;
    frame[17] = 44;
    frame.splice(34..34, [1, 1, 1, 0]);
    let packet = Packet::parse(&frame);
    assert_eq!((packet.l4_offset, packet.l4, packet.l3_end), (38, L4::Tcp, 58));
}

#[test]
fn fragments_have_no_layer_4() {
    let mut first = tcp4();
    first[20] = 0x20;
    assert_eq!(Packet::parse(&first).fragment, Fragment::First);
    assert_eq!(Packet::parse(&first).l4, L4::None);
    let mut later = tcp4();
    later[21] = 0x05;
    assert_eq!(Packet::parse(&later).fragment, Fragment::Later);
    // "Do not fragment" alone is no fragment.
    assert_eq!(Packet::parse(&tcp4()).fragment, Fragment::No);
}

#[test]
fn ipv6_extension_headers_are_followed() {
    let udp = [0x12, 0x34, 0, 53, 0, 8, 0, 0];
    let plain = Packet::parse(&ipv6(17, &udp));
    assert_eq!((plain.cast, plain.l3, plain.l4), (Cast::Multicast, L3::Ipv6, L4::Udp));
    assert_eq!((plain.l4_offset, plain.l3_end), (54, 62));

    // Hop-by-hop of 8 bytes, destination options of 16 bytes, UDP.
    let mut chain = vec![60, 0, 1, 4, 0, 0, 0, 0];
    chain.extend([17, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    chain.extend(udp);
    let packet = Packet::parse(&ipv6(0, &chain));
    assert_eq!((packet.l4, packet.l4_offset, packet.ip_protocol), (L4::Udp, 78, 17));

    // Fragment header: offset 1 unit, more fragments.
    let mut fragment = vec![17, 0, 0, 0x09, 0, 0, 0, 1];
    fragment.extend(udp);
    let packet = Packet::parse(&ipv6(44, &fragment));
    assert_eq!((packet.fragment, packet.l4), (Fragment::Later, L4::None));

    // An atomic fragment is a whole packet (RFC 6946).
    let mut atomic = vec![17, 0, 0, 0, 0, 0, 0, 1];
    atomic.extend(udp);
    let packet = Packet::parse(&ipv6(44, &atomic));
    assert_eq!((packet.fragment, packet.l4, packet.l4_offset), (Fragment::No, L4::Udp, 62));
}

#[test]
fn an_authentication_header_has_at_least_its_fixed_part() {
    // Payload length 1: three words in all, then the first word of UDP. RFC 4302 2.
    let udp = [0x12, 0xb5, 0x12, 0xb5, 0, 8, 0, 0];
    let header = |units: u8| [vec![17, units, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1], udp.into()].concat();
    let packet = Packet::parse(&ipv6(51, &header(1)));
    assert_eq!((packet.l4, packet.l4_offset), (L4::Udp, 66));
    let packet = Packet::parse(&ipv6(51, &header(0)));
    assert_eq!(packet.malformed, Some(Malformed::Ipv6Extension));
}

#[test]
fn hop_by_hop_options_stand_first_or_are_unknown() {
    let udp = [0x12, 0xb5, 0x12, 0xb5, 0, 8, 0, 0];
    let chain = [&[0, 0, 0, 0, 0, 0, 0, 0][..], &[17, 0, 0, 0, 0, 0, 0, 0], &udp].concat();
    for first in [0, 60] {
        let packet = Packet::parse(&ipv6(first, &chain));
        assert_eq!((packet.malformed, packet.l4), (None, L4::None));
        assert_eq!((packet.ip_protocol, packet.l4_offset), (0, 62));
    }
}

#[test]
fn an_endless_chain_of_extensions_is_malformed() {
    let chain = [60, 0, 0, 0, 0, 0, 0, 0].repeat(9);
    assert_eq!(Packet::parse(&ipv6(60, &chain)).malformed, Some(Malformed::Ipv6Extension));
}

#[test]
fn every_way_of_being_malformed_is_named() {
    let change = |offset: usize, value: u8| {
        let mut frame = tcp4();
        frame[offset] = value;
        Packet::parse(&frame)
    };
    assert_eq!(Packet::parse(&tcp4()[..13]).malformed, Some(Malformed::Ethernet));
    let tagged = with_tags(&tcp4(), &[(0x8100, 1)]);
    assert_eq!(Packet::parse(&tagged[..17]).malformed, Some(Malformed::Vlan));
    assert_eq!(Packet::parse(&tcp4()[..33]).malformed, Some(Malformed::Ipv4Header));
    assert_eq!(change(14, 0x65).malformed, Some(Malformed::Ipv4Header));
    assert_eq!(change(14, 0x44).malformed, Some(Malformed::Ipv4Header));
    assert_eq!(change(14, 0x4f).malformed, Some(Malformed::Ipv4Header));
    assert_eq!(change(17, 19).malformed, Some(Malformed::Ipv4Length));
    assert_eq!(change(17, 41).malformed, Some(Malformed::Ipv4Length));
    assert_eq!(change(46, 0x40).malformed, Some(Malformed::Tcp));
    assert_eq!(change(46, 0x60).malformed, Some(Malformed::Tcp));
    assert_eq!(change(17, 39).malformed, Some(Malformed::Tcp));

    let udp = [0, 1, 0, 2, 0, 9, 0, 0];
    assert_eq!(Packet::parse(&ipv6(17, &udp)).malformed, Some(Malformed::Udp));
    assert_eq!(Packet::parse(&ipv6(17, &udp[..7])).malformed, Some(Malformed::Udp));
    let whole = ipv6(17, &udp);
    assert_eq!(Packet::parse(&whole[..53]).malformed, Some(Malformed::Ipv6Header));
    assert_eq!(Packet::parse(&whole[..61]).malformed, Some(Malformed::Ipv6Length));
    let mut version = whole.clone();
    version[14] = 0x40;
    assert_eq!(Packet::parse(&version).malformed, Some(Malformed::Ipv6Header));
}

#[test]
fn a_payload_length_beyond_the_frame_hides_no_header() {
    let mut frame = ipv6(17, &[0, 1, 0, 2, 0, 8, 0xff, 0xfe]);
    frame[19] += 40;
    let packet = Packet::parse(&frame);
    assert_eq!(packet.malformed, Some(Malformed::Ipv6Length));
    assert_eq!((packet.l3, packet.l4, packet.l3_end), (L3::Ipv6, L4::Udp, 62));
    let verified = crate::frame::offload::verify(&frame, &packet, false);
    assert!(!verified.l3_ok && !verified.l4_ok);
}

#[test]
fn headers_only_ignores_lengths() {
    let mut frame = tcp4();
    frame[16..18].copy_from_slice(&9000u16.to_be_bytes());
    assert_eq!(Packet::parse(&frame).malformed, Some(Malformed::Ipv4Length));
    let packet = Packet::parse_with(&frame, Lengths::HeadersOnly);
    assert_eq!((packet.l4, packet.malformed), (L4::Tcp, None));
}

proptest! {
    #[test]
    fn any_bytes_give_an_answer_inside_the_frame(
        mut frame in proptest::collection::vec(any::<u8>(), 0..200),
        ethertype in prop_oneof![Just(0x0800u16), Just(0x86dd), Just(0x8100), Just(0x88a8)],
        version in prop_oneof![Just(0x45u8), Just(0x46), Just(0x60)],
    ) {
        if frame.len() > 14 {
            frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
            frame[14] = version;
        }
        for lengths in [Lengths::Whole, Lengths::HeadersOnly] {
            let packet = Packet::parse_with(&frame, lengths);
            prop_assert!(packet.l3_end <= frame.len());
            if packet.l3 != L3::None {
                prop_assert!(packet.l3_offset < packet.l4_offset);
                prop_assert!(packet.l4_offset <= packet.payload_offset);
            }
            if packet.l4 != L4::None {
                prop_assert!(packet.payload_offset <= packet.l3_end);
            }
        }
    }
}
