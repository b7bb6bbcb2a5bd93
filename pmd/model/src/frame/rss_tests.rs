//! Vectors of Microsoft, "Verifying the RSS Hash Calculation".

#![allow(clippy::cast_possible_truncation, reason = "test data")]

use super::*;

const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

const ADDRESSES: u32 = FieldSelector::SRC_IP | FieldSelector::DST_IP;
const FOUR_TUPLE: u32 = ADDRESSES | FieldSelector::L4_SPORT | FieldSelector::L4_DPORT;

fn toeplitz(selector: u32) -> FlowHasher {
    FlowHasher::new(HashFunction::Toeplitz, false, &KEY, FieldSelector(selector))
}

fn ipv4(protocol: u8, src: [u8; 4], dst: [u8; 4], sport: u16, dport: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend([0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0]);
    frame.extend(src);
    frame.extend(dst);
    frame.extend(sport.to_be_bytes());
    frame.extend(dport.to_be_bytes());
    frame.extend([0, 20, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 0, 0, 0]);
    frame
}

fn ipv6(src: &str, dst: &str, sport: u16, dport: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
    frame.extend([0x60, 0, 0, 0, 0, 20, 6, 64]);
    frame.extend(src.parse::<std::net::Ipv6Addr>().expect("an address").octets());
    frame.extend(dst.parse::<std::net::Ipv6Addr>().expect("an address").octets());
    frame.extend(sport.to_be_bytes());
    frame.extend(dport.to_be_bytes());
    frame.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 0, 0, 0]);
    frame
}

fn value(hasher: &FlowHasher, frame: &[u8]) -> FlowHash {
    hasher.hash(frame, &Packet::parse(frame))
}

#[test]
fn ipv4_vectors() {
    // destination, source, destination port, source port, addresses only, with TCP ports
    let vectors = [
        ([161, 142, 100, 80], [66, 9, 149, 187], 1766, 2794, 0x323e_8fc2, 0x51cc_c178),
        ([65, 69, 140, 83], [199, 92, 111, 2], 4739, 14230, 0xd718_262a, 0xc626_b0ea),
        ([12, 22, 207, 184], [24, 19, 198, 95], 38024, 12898, 0xd2d0_a5de, 0x5c2b_394a),
        ([209, 142, 163, 6], [38, 27, 205, 30], 2217, 48228, 0x8298_9176, 0xafc7_327f),
        ([202, 188, 127, 2], [153, 39, 163, 191], 1303, 44251, 0x5d18_09c5, 0x10e8_28a2),
    ];
    for (dst, src, dport, sport, addresses, four_tuple) in vectors {
        let frame = ipv4(6, src, dst, sport, dport);
        let expected = FlowHash { value: addresses, l3: 1, l4: 0 };
        assert_eq!(value(&toeplitz(ADDRESSES), &frame), expected);
        let expected = FlowHash { value: four_tuple, l3: 1, l4: 1 };
        assert_eq!(value(&toeplitz(FOUR_TUPLE), &frame), expected);
        // UDP hashes the same fields, when the selector says UDP.
        let frame = ipv4(17, src, dst, sport, dport);
        let udp = toeplitz(FOUR_TUPLE | FieldSelector::L4_UDP);
        assert_eq!(value(&udp, &frame), FlowHash { value: four_tuple, l3: 1, l4: 2 });
    }
}

#[test]
fn ipv6_vectors() {
    let vectors = [
        ("3ffe:2501:200:3::1", "3ffe:2501:200:1fff::7", 1766, 2794, 0x2cc1_8cd5, 0x4020_7d3d),
        ("ff02::1", "3ffe:501:8::260:97ff:fe40:efab", 4739, 14230, 0x0f0c_461c, 0xdde5_1bbf),
        (
            "fe80::200:f8ff:fe21:67cf",
            "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
            38024,
            44251,
            0x4b61_e985,
            0x02d1_feef,
        ),
    ];
    for (dst, src, dport, sport, addresses, four_tuple) in vectors {
        let frame = ipv6(src, dst, sport, dport);
        let v6 = FieldSelector::L3_IPV6;
        let expected = FlowHash { value: addresses, l3: 2, l4: 0 };
        assert_eq!(value(&toeplitz(ADDRESSES | v6), &frame), expected);
        let expected = FlowHash { value: four_tuple, l3: 2, l4: 1 };
        assert_eq!(value(&toeplitz(FOUR_TUPLE | v6), &frame), expected);
    }
}

#[test]
fn packets_without_the_selected_fields_hash_to_nothing() {
    let udp = ipv4(17, [1, 2, 3, 4], [5, 6, 7, 8], 9, 10);
    assert_eq!(value(&toeplitz(FOUR_TUPLE), &udp), FlowHash::default());
    let v6 = toeplitz(ADDRESSES | FieldSelector::L3_IPV6);
    assert_eq!(value(&v6, &udp), FlowHash::default());
    let mut fragment = ipv4(6, [1, 2, 3, 4], [5, 6, 7, 8], 9, 10);
    fragment[20] = 0x20;
    assert_eq!(value(&toeplitz(FOUR_TUPLE), &fragment), FlowHash::default());
    assert_ne!(value(&toeplitz(ADDRESSES), &fragment), FlowHash::default());
    assert_eq!(value(&toeplitz(0), &udp), FlowHash::default());
}

#[test]
fn single_fields_are_hashed_alone() {
    let a = ipv4(6, [1, 2, 3, 4], [5, 6, 7, 8], 9, 10);
    let b = ipv4(6, [1, 2, 3, 4], [9, 9, 9, 9], 77, 78);
    let src = toeplitz(FieldSelector::SRC_IP);
    assert_eq!(value(&src, &a), value(&src, &b));
    let dport = toeplitz(FieldSelector::L4_DPORT);
    assert_ne!(value(&dport, &a).value, value(&dport, &b).value);
}

#[test]
fn symmetric_hashing_gives_both_directions_one_value() {
    let there = ipv4(6, [1, 2, 3, 4], [5, 6, 7, 8], 9, 10);
    let back = ipv4(6, [5, 6, 7, 8], [1, 2, 3, 4], 10, 9);
    let plain = toeplitz(FOUR_TUPLE);
    assert_ne!(value(&plain, &there), value(&plain, &back));
    let selector = FieldSelector(FOUR_TUPLE);
    let symmetric = FlowHasher::new(HashFunction::Toeplitz, true, &KEY, selector);
    assert_eq!(value(&symmetric, &there), value(&symmetric, &back));
    // The smaller address comes first, so one direction hashes as without symmetry.
    assert_eq!(value(&symmetric, &there), value(&plain, &there));
}

#[test]
fn xor8_covers_all_bytes_and_is_inverted() {
    let selector = FieldSelector(FOUR_TUPLE);
    let hasher = FlowHasher::new(HashFunction::InvertedXor8, false, &KEY, selector);
    let frame = ipv4(6, [1, 2, 4, 8], [16, 32, 64, 128], 0, 0);
    assert_eq!(value(&hasher, &frame).value, 0);
    let frame = ipv4(6, [1, 2, 4, 8], [16, 32, 64, 128], 0x0100, 0);
    assert_eq!(value(&hasher, &frame).value, 1);
}
