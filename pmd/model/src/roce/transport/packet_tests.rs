//! Whole frames, byte for byte, and frames that are spoiled.

use proptest::prelude::*;

use super::*;
use crate::roce::transport::bth::{Op, Transport};
use crate::roce::transport::psn::Psn;
use crate::roce::transport::testing::hex;

fn header() -> Header {
    let mut header = Header::new(Transport::Rc, Op::SendOnly, 0x12, Psn::new(0x345));
    header.ack_request = true;
    header
}

fn v4() -> Path {
    Path {
        dmac: [2, 0, 0, 0, 0, 2],
        smac: [2, 0, 0, 0, 0, 1],
        vlan: None,
        ip: IpPair::V4 { src: [192, 168, 0, 1], dst: [192, 168, 0, 2] },
        tos: 2,
        ttl: 64,
        flow_label: 0,
        sport: 0xc000,
    }
}

fn v6() -> Path {
    let src = hex("fe80000000000000020000fffe000001").try_into().expect("16 bytes");
    let dst = hex("fe80000000000000020000fffe000002").try_into().expect("16 bytes");
    Path { ip: IpPair::V6 { src, dst }, vlan: Some(0x6064), ..v4() }
}

fn build(path: &Path, header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0xa5; path.frame_bytes(header, payload.len())];
    let at = path.write(header, payload.len(), &mut frame);
    frame[at.clone()].copy_from_slice(payload);
    seal(path, &mut frame, at);
    frame
}

fn parse(frame: &[u8]) -> Result<Frame<'_>, BadFrame> {
    Frame::parse(frame, &Packet::parse(frame))
}

#[test]
fn an_ipv4_frame_has_these_bytes() {
    let frame = build(&v4(), &header(), &[0, 1, 2, 3]);
    // As the vector of reference 7.3, but with identification 0 and a checksum: the first changes
    // the ICRC. Total length 0x30 and UDP length 0x1c, as there.
    let bytes = hex("020000000002020000000001 0800 4502003000004000 4011 b967 c0a80001 c0a80002 \
                     c00012b7001c0000 0440ffff0000001280000345 00010203");
    assert_eq!(frame[..58], bytes[..]);
    assert_eq!(frame.len(), 62);
    let mut with_id = frame[14..58].to_vec();
    with_id[4..6].copy_from_slice(&[0x12, 0x34]);
    assert_eq!(icrc(&with_id), 0x781f_8bcd, "the vector of reference 7.3");
    assert_eq!(frame[58..], icrc(&frame[14..58]).to_le_bytes());
    let parsed = parse(&frame).expect("a good frame");
    assert_eq!((parsed.header, parsed.payload), (header(), &[0, 1, 2, 3][..]));
    assert_eq!((parsed.ip.len(), parsed.vlan, parsed.dmac), (20, None, [2, 0, 0, 0, 0, 2]));
}

#[test]
fn an_ipv6_frame_with_a_tag_ends_in_the_icrc_of_the_reference() {
    let frame = build(&v6(), &header(), &[0, 1, 2, 3]);
    assert_eq!(frame[12..22], hex("8100 6064 86dd 60200000"));
    assert_eq!(frame[frame.len() - 4..], hex("f5aa05a4"));
    let parsed = parse(&frame).expect("a good frame");
    assert_eq!((parsed.vlan, parsed.network), (Some(0x6064), Network::Ipv6));
}

/// RoCEv1 between the GIDs of the IPv6 vector.
fn v1() -> Path {
    let IpPair::V6 { src, dst } = v6().ip else { panic!("IPv6") };
    Path { ip: IpPair::Grh { src, dst }, vlan: None, ..v4() }
}

#[test]
fn a_frame_of_version_1_has_a_global_route_header_and_no_udp() {
    let frame = build(&v1(), &header(), &[0, 1, 2, 3]);
    // Length 0x14: BTH, payload, ICRC; next header 0x1b. The ICRC was computed with zlib from
    // Python: eight bytes of ones, then the packet with its variant fields set to ones.
    let bytes = hex("020000000002020000000001 8915 60200000 0014 1b 40 \
                     fe80000000000000020000fffe000001 fe80000000000000020000fffe000002 \
                     0440ffff0000001280000345 00010203 26e9af30");
    assert_eq!(frame, bytes);
    let parsed = parse(&frame).expect("a good frame");
    assert_eq!((parsed.header, parsed.payload), (header(), &[0, 1, 2, 3][..]));
    assert_eq!((parsed.network, parsed.ip), (Network::Grh, &bytes[14..54]));
    let tagged = build(&Path { vlan: Some(0x6064), ..v1() }, &header(), &[0, 1, 2, 3]);
    assert_eq!(tagged[12..18], hex("8100 6064 8915"));
    assert_eq!(tagged[18..], frame[14..], "the tag is in no checksum");
    assert_eq!(parse(&tagged).expect("a good frame").vlan, Some(0x6064));
}

#[test]
fn a_spoiled_frame_of_version_1_is_dropped() {
    let good = build(&v1(), &header(), &[1; 4]);
    let with = |at: usize, byte: u8| {
        let mut frame = good.clone();
        frame[at] = byte;
        parse(&frame).map(|_| ())
    };
    assert_eq!(with(14, 0x40), Err(BadFrame::Malformed), "another version of the header");
    assert_eq!(with(20, 0x11), Err(BadFrame::Malformed), "another next header");
    assert_eq!(with(19, 0x15), Err(BadFrame::Malformed), "longer than the frame");
    assert_eq!(with(19, 0x03), Err(BadFrame::Malformed), "no room for an ICRC");
    assert_eq!(with(19, 0x0c), Err(BadFrame::Malformed), "no room for a BTH");
    assert_eq!(with(22, 0xfd), Err(BadFrame::Icrc), "source");
    assert_eq!(with(66, 2), Err(BadFrame::Icrc), "payload");
    assert_eq!(with(13, 0x14), Err(BadFrame::NotRoce), "another ethertype");
    for (at, what) in [(15, "class"), (16, "label"), (17, "label"), (21, "hops"), (58, "FECN")] {
        assert_eq!(with(at, 0x8f), Ok(()), "{what} is not covered");
    }
    for len in 0..good.len() {
        assert!(parse(&good[..len]).is_err(), "cut to {len} bytes");
    }
}

#[test]
fn payloads_are_padded_and_short_frames_too() {
    for len in 0..9 {
        let payload = vec![0x77; len];
        let frame = build(&v4(), &header(), &payload);
        let parsed = parse(&frame).expect("a good frame");
        assert_eq!(parsed.payload, payload);
        assert_eq!(usize::from(parsed.header.pad), len.next_multiple_of(4) - len);
        assert!(frame.len() >= 60);
    }
    let frame = build(&v4(), &header(), &[]);
    assert_eq!((frame.len(), &frame[58..]), (60, &[0, 0][..]), "58 bytes, and two of padding");
}

#[test]
fn what_is_not_roce_is_left_to_others() {
    let good = build(&v4(), &header(), &[1; 4]);
    let with = |at: usize, byte: u8| {
        let mut frame = good.clone();
        frame[at] = byte;
        parse(&frame).map(|_| ())
    };
    assert_eq!(with(37, 0xb8), Err(BadFrame::NotRoce), "another port");
    assert_eq!(with(23, 6), Err(BadFrame::NotRoce), "TCP");
    assert_eq!(with(20, 0x20), Err(BadFrame::NotRoce), "a fragment");
    assert_eq!(with(13, 0x06), Err(BadFrame::NotRoce), "ARP");
}

#[test]
fn what_is_spoiled_is_dropped() {
    let good = build(&v4(), &header(), &[1; 4]);
    let with = |at: usize, byte: u8| {
        let mut frame = good.clone();
        frame[at] = byte;
        parse(&frame).map(|_| ())
    };
    assert_eq!(with(25, 0), Err(BadFrame::Malformed), "IPv4 checksum");
    assert_eq!(with(39, 0x1b), Err(BadFrame::Malformed), "UDP shorter than IP");
    assert_eq!(with(42, 0x15), Err(BadFrame::Malformed), "no such opcode");
    assert_eq!(with(54, 2), Err(BadFrame::Icrc), "payload");
    assert_eq!(with(61, 0), Err(BadFrame::Icrc), "the ICRC itself");
    assert_eq!(with(45, 0xfe), Err(BadFrame::Icrc), "P_Key");
    assert_eq!(with(46, 0x80), Ok(()), "FECN is not covered");
}

proptest! {
    #[test]
    fn a_flipped_bit_never_changes_what_is_delivered(at in 0_usize..70, bit in 0_u8..8) {
        let mut frame = build(&v6(), &header(), &[9; 8]);
        let good = frame.clone();
        frame[at] ^= 1 << bit;
        if let Ok(parsed) = parse(&frame) {
            let before = parse(&good).expect("a good frame");
            prop_assert_eq!(parsed.payload, before.payload);
            prop_assert_eq!(parsed.header, before.header);
        }
    }

    #[test]
    fn a_flipped_bit_of_version_1_neither(at in 0_usize..70, bit in 0_u8..8) {
        let mut frame = build(&v1(), &header(), &[9; 4]);
        let good = frame.clone();
        frame[at] ^= 1 << bit;
        if let Ok(parsed) = parse(&frame) {
            let before = parse(&good).expect("a good frame");
            prop_assert_eq!((parsed.payload, parsed.header), (before.payload, before.header));
        }
    }

    #[test]
    fn any_bytes_are_parsed_or_refused(frame in proptest::collection::vec(any::<u8>(), 0..128)) {
        let _ = parse(&frame);
    }

    #[test]
    fn any_udp_payload_is_parsed_or_refused(
        body in proptest::collection::vec(any::<u8>(), 28..57), len: u16,
    ) {
        let mut frame = build(&v4(), &header(), &[3; 40]);
        frame[42..42 + body.len()].copy_from_slice(&body);
        frame[38..40].copy_from_slice(&len.to_be_bytes());
        let _ = parse(&frame);
    }
}
