//! Literal frames. Their bytes and checksums were worked out apart from this crate, from the RFCs.

use proptest::prelude::*;

use super::*;

const ARP_REQUEST: &str = "\
    ffffffffffff a2b4c6d8eafc 0806 \
    00010800 06040001 a2b4c6d8 eafc0a00 00010000 00000000 0a000002";
const ARP_REPLY: &str = "\
    a2b4c6d8eafc 020000000001 0806 \
    00010800 06040002 02000000 00010a00 0002a2b4 c6d8eafc 0a000001";
const ECHO_REQUEST: &str = "\
    020000000001 a2b4c6d8eafc 0800 \
    45000025 12344000 400114a2 0a000001 0a000002 080079ab beef0007 66657272 6f637821 ff";
const ECHO_REPLY: &str = "\
    a2b4c6d8eafc 020000000001 0800 \
    45000025 12344000 400114a2 0a000002 0a000001 000081ab beef0007 66657272 6f637821 ff";
const ECHO6_REQUEST: &str = "\
    020000000001 a2b4c6d8eafc 86dd \
    60000000 00113a21 fd000000 00000000 00000000 00000001 fd000000 00000000 00000000 00000002 \
    8000075b beef0007 66657272 6f637821 ff";
const ECHO6_REPLY: &str = "\
    a2b4c6d8eafc 020000000001 86dd \
    60000000 00113a40 fd000000 00000000 00000000 00000002 fd000000 00000000 00000000 00000001 \
    8100065b beef0007 66657272 6f637821 ff";
const SOLICITATION: &str = "\
    3333ff000002 a2b4c6d8eafc 86dd \
    60000000 00203aff fd000000 00000000 00000000 00000001 ff020000 00000000 00000001 ff000002 \
    87002b0e 00000000 fd000000 00000000 00000000 00000002 0101a2b4 c6d8eafc";
const ADVERTISEMENT: &str = "\
    a2b4c6d8eafc 020000000001 86dd \
    60000000 00203aff fd000000 00000000 00000000 00000002 fd000000 00000000 00000000 00000001 \
    88001c9b 60000000 fd000000 00000000 00000000 00000002 02010200 00000001";
const UNICAST_SOLICITATION: &str = "\
    020000000001 a2b4c6d8eafc 86dd \
    60000000 00183aff fd000000 00000000 00000000 00000001 fd000000 00000000 00000000 00000002 \
    870081a5 00000000 fd000000 00000000 00000000 00000002";
const UNICAST_ADVERTISEMENT: &str = "\
    a2b4c6d8eafc 020000000001 86dd \
    60000000 00183aff fd000000 00000000 00000000 00000002 fd000000 00000000 00000000 00000001 \
    880020a5 60000000 fd000000 00000000 00000000 00000002";

const US: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn everyone() -> Station {
    Station { mac: US, addresses: Vec::new() }
}

fn named(address: &str) -> Station {
    Station { mac: US, addresses: vec![address.parse().unwrap()] }
}

/// The answer of `station` to a frame of one segment.
fn answer_of(mut frame: Vec<u8>, station: &Station) -> Result<Vec<u8>, Reason> {
    match reply(&mut frame, Tail::NONE, station) {
        Verdict::Reply { len_bytes } => {
            frame.truncate(len_bytes);
            Ok(frame)
        }
        Verdict::Drop(reason) => Err(reason),
    }
}

/// The reason for which the frame gets no answer after `change`.
fn refused(frame: &str, change: impl Fn(&mut Vec<u8>)) -> Option<Reason> {
    let mut frame = hex(frame);
    change(&mut frame);
    answer_of(frame, &everyone()).err()
}

#[test]
fn each_request_has_its_literal_answer() {
    for (request, answer) in [
        (ARP_REQUEST, ARP_REPLY),
        (ECHO_REQUEST, ECHO_REPLY),
        (ECHO6_REQUEST, ECHO6_REPLY),
        (SOLICITATION, ADVERTISEMENT),
        (UNICAST_SOLICITATION, UNICAST_ADVERTISEMENT),
    ] {
        let got = answer_of(hex(request), &everyone());
        assert_eq!(got, Ok(hex(answer)), "{request}");
    }
}

#[test]
fn a_tag_stays_on_the_answer() {
    let tag = |frame: &str| {
        let mut frame = hex(frame);
        frame.splice(12..12, [0x81, 0x00, 0x60, 0x07]);
        frame
    };
    for (request, answer) in [(ARP_REQUEST, ARP_REPLY), (SOLICITATION, ADVERTISEMENT)] {
        assert_eq!(answer_of(tag(request), &everyone()), Ok(tag(answer)));
    }
    let mut deep = tag(ECHO_REQUEST);
    deep.splice(12..12, [0x88, 0xa8, 0x00, 0x01, 0x81, 0x00, 0x00, 0x02]);
    assert_eq!(answer_of(deep, &everyone()), Err(Reason::OtherEthertype));
}

#[test]
fn padding_is_kept_up_to_the_smallest_frame() {
    let mut padded = hex(ECHO_REQUEST);
    let len = padded.len();
    padded.resize(60, 0);
    let mut answer = hex(ECHO_REPLY);
    answer.resize(60, 0);
    assert_eq!(answer_of(padded.clone(), &everyone()), Ok(answer.clone()));
    padded.resize(100, 0xaa);
    assert_eq!(answer_of(padded, &everyone()), Ok(answer));
    assert!(len < 60);
}

#[test]
fn ethernet_refusals() {
    assert_eq!(refused(ECHO_REQUEST, |f| f.truncate(13)), Some(Reason::Runt));
    assert_eq!(refused(ECHO_REQUEST, |f| f.truncate(5)), Some(Reason::Runt));
    assert_eq!(refused(ECHO_REQUEST, Vec::clear), Some(Reason::Runt));
    assert_eq!(refused(ECHO_REQUEST, |f| f[5] = 9), Some(Reason::OtherStation));
    assert_eq!(refused(ECHO_REQUEST, |f| f[6] |= 1), Some(Reason::BadSource));
    assert_eq!(refused(ECHO_REQUEST, |f| f[6..12].fill(0)), Some(Reason::BadSource));
    assert_eq!(refused(ECHO_REQUEST, |f| f[12] = 0x88), Some(Reason::OtherEthertype));
    assert_eq!(refused(ECHO_REQUEST, |f| f[..6].fill(0xff)), Some(Reason::Ipv4Address));
}

#[test]
fn arp_refusals() {
    assert_eq!(refused(ARP_REQUEST, |f| f.truncate(41)), Some(Reason::ArpMalformed));
    for offset in 14..20 {
        assert_eq!(refused(ARP_REQUEST, |f| f[offset] ^= 0x10), Some(Reason::ArpMalformed));
    }
    assert_eq!(refused(ARP_REPLY, |f| f[..6].fill(0xff)), Some(Reason::ArpIgnored));
    // A probe, an announcement, a broadcast target.
    assert_eq!(refused(ARP_REQUEST, |f| f[28..32].fill(0)), Some(Reason::ArpIgnored));
    assert_eq!(refused(ARP_REQUEST, |f| f[31] = 2), Some(Reason::ArpIgnored));
    assert_eq!(refused(ARP_REQUEST, |f| f[38..42].fill(0xff)), Some(Reason::ArpIgnored));
    assert_eq!(refused(ARP_REQUEST, |f| f[38..42].fill(0)), Some(Reason::ArpIgnored));
}

#[test]
fn named_addresses_are_answered_and_defended_and_no_others() {
    assert_eq!(answer_of(hex(ARP_REQUEST), &named("10.0.0.2")), Ok(hex(ARP_REPLY)));
    assert_eq!(answer_of(hex(ARP_REQUEST), &named("10.0.0.3")), Err(Reason::ArpIgnored));
    let mut probe = hex(ARP_REQUEST);
    probe[28..32].fill(0);
    let mut defence = hex(ARP_REPLY);
    defence[38..42].fill(0);
    assert_eq!(answer_of(probe, &named("10.0.0.2")), Ok(defence));
    assert_eq!(answer_of(hex(ECHO_REQUEST), &named("10.0.0.2")), Ok(hex(ECHO_REPLY)));
    assert_eq!(answer_of(hex(ECHO_REQUEST), &named("10.0.0.3")), Err(Reason::Ipv4Address));
    assert_eq!(answer_of(hex(ECHO6_REQUEST), &named("fd00::2")), Ok(hex(ECHO6_REPLY)));
    assert_eq!(answer_of(hex(ECHO6_REQUEST), &named("fd00::3")), Err(Reason::Ipv6Address));
    assert_eq!(answer_of(hex(SOLICITATION), &named("fd00::3")), Err(Reason::NdIgnored));
}

/// Makes the IPv4 header checksum right again.
fn fix_ipv4(frame: &mut [u8]) {
    let end = 14 + usize::from(frame[14] & 0xf) * 4;
    frame[24..26].fill(0);
    let field = crate::checksum::finish(crate::checksum::sum(&frame[14..end]));
    frame[24..26].copy_from_slice(&field.to_be_bytes());
}

#[test]
fn ipv4_refusals() {
    assert_eq!(refused(ECHO_REQUEST, |f| f.truncate(33)), Some(Reason::Ipv4Malformed));
    assert_eq!(refused(ECHO_REQUEST, |f| f[14] = 0x55), Some(Reason::Ipv4Malformed));
    assert_eq!(refused(ECHO_REQUEST, |f| f[14] = 0x44), Some(Reason::Ipv4Malformed));
    assert_eq!(refused(ECHO_REQUEST, |f| f[14] = 0x4f), Some(Reason::Ipv4Malformed));
    // Total length: one more than the frame holds, less than the header.
    assert_eq!(refused(ECHO_REQUEST, |f| f[17] += 1), Some(Reason::Ipv4Malformed));
    assert_eq!(refused(ECHO_REQUEST, |f| f[17] = 19), Some(Reason::Ipv4Malformed));
    assert_eq!(refused(ECHO_REQUEST, |f| f[18] ^= 1), Some(Reason::Ipv4Checksum));
    let fixed = |change: &dyn Fn(&mut Vec<u8>)| {
        refused(ECHO_REQUEST, |f| {
            change(f);
            fix_ipv4(f);
        })
    };
    assert_eq!(fixed(&|f| f[20] |= 0x20), Some(Reason::Ipv4Fragment));
    assert_eq!(fixed(&|f| f[21] = 1), Some(Reason::Ipv4Fragment));
    assert_eq!(fixed(&|f| f[23] = 17), Some(Reason::OtherProtocol));
    assert_eq!(fixed(&|f| f[26] = 0xe0), Some(Reason::Ipv4Address));
    assert_eq!(fixed(&|f| f[26..30].fill(0)), Some(Reason::Ipv4Address));
    assert_eq!(fixed(&|f| f[30..34].fill(0xff)), Some(Reason::Ipv4Address));
    assert_eq!(fixed(&|f| f[17] = 27), Some(Reason::IcmpMalformed));
    assert_eq!(fixed(&|f| f[17] = 20), Some(Reason::IcmpMalformed));
    assert_eq!(fixed(&|f| f[42] ^= 1), Some(Reason::IcmpChecksum));
}

#[test]
fn other_icmp_is_ignored() {
    // Swapping type and code of a request keeps the sum over pairs the same only for zero, so each
    // message gets its checksum adjusted by the incremental rule.
    for (kind, code) in [(0u8, 0u8), (3, 1), (8, 1), (13, 0)] {
        let reason = refused(ECHO_REQUEST, |f| {
            let field = u16::from_be_bytes([f[36], f[37]]);
            let new = u16::from_be_bytes([kind, code]);
            let field = crate::checksum::update(field, 0x0800, new);
            f[34..36].copy_from_slice(&[kind, code]);
            f[36..38].copy_from_slice(&field.to_be_bytes());
        });
        assert_eq!(reason, Some(Reason::IcmpIgnored), "{kind}/{code}");
    }
}

/// Makes the ICMPv6 checksum right again.
fn fix_icmpv6(frame: &mut [u8]) {
    let payload = usize::from(u16::from_be_bytes([frame[18], frame[19]]));
    frame[56..58].fill(0);
    let pseudo = crate::checksum::pseudo_v6(&frame[22..54], 58, u32::try_from(payload).unwrap());
    let field = crate::checksum::finish(pseudo + crate::checksum::sum(&frame[54..54 + payload]));
    frame[56..58].copy_from_slice(&field.to_be_bytes());
}

#[test]
fn ipv6_refusals() {
    assert_eq!(refused(ECHO6_REQUEST, |f| f.truncate(53)), Some(Reason::Ipv6Malformed));
    assert_eq!(refused(ECHO6_REQUEST, |f| f[14] = 0x40), Some(Reason::Ipv6Malformed));
    assert_eq!(refused(ECHO6_REQUEST, |f| f[19] += 1), Some(Reason::Ipv6Malformed));
    assert_eq!(refused(ECHO6_REQUEST, |f| f[18] = 0xff), Some(Reason::Ipv6Malformed));
    assert_eq!(refused(ECHO6_REQUEST, |f| f[19] = 7), Some(Reason::IcmpMalformed));
    assert_eq!(refused(ECHO6_REQUEST, |f| f[20] = 0), Some(Reason::OtherProtocol));
    assert_eq!(refused(ECHO6_REQUEST, |f| f[22] = 0xff), Some(Reason::Ipv6Address));
    assert_eq!(refused(ECHO6_REQUEST, |f| f[38..54].fill(0)), Some(Reason::Ipv6Address));
    assert_eq!(refused(ECHO6_REQUEST, |f| f[62] ^= 1), Some(Reason::IcmpChecksum));
    let fixed = |frame, change: &dyn Fn(&mut Vec<u8>)| {
        refused(frame, |f| {
            change(f);
            fix_icmpv6(f);
        })
    };
    assert_eq!(fixed(ECHO6_REQUEST, &|f| f[54] = 1), Some(Reason::IcmpIgnored));
    assert_eq!(fixed(ECHO6_REQUEST, &|f| f[22..38].fill(0)), Some(Reason::Ipv6Address));
    // All nodes: every station would answer.
    let all_nodes = |f: &mut Vec<u8>| {
        f[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
        f[38..54].copy_from_slice(&hex("ff02000000000000 0000000000000001"));
    };
    assert_eq!(fixed(ECHO6_REQUEST, &all_nodes), Some(Reason::Ipv6Address));
}

#[test]
fn neighbour_discovery_refusals() {
    let fixed = |frame, change: &dyn Fn(&mut Vec<u8>)| {
        refused(frame, |f| {
            change(f);
            fix_icmpv6(f);
        })
    };
    assert_eq!(fixed(SOLICITATION, &|f| f[21] = 254), Some(Reason::NdMalformed));
    assert_eq!(fixed(SOLICITATION, &|f| f[55] = 1), Some(Reason::NdMalformed));
    assert_eq!(fixed(SOLICITATION, &|f| f[62] = 0xff), Some(Reason::NdMalformed));
    // An option of length 0, one that is longer than the message, one byte of an option.
    assert_eq!(fixed(SOLICITATION, &|f| f[79] = 0), Some(Reason::NdMalformed));
    assert_eq!(fixed(SOLICITATION, &|f| f[79] = 2), Some(Reason::NdMalformed));
    assert_eq!(fixed(SOLICITATION, &|f| f[19] = 25), Some(Reason::NdMalformed));
    assert_eq!(fixed(SOLICITATION, &|f| f[19] = 23), Some(Reason::NdMalformed));
    // A multicast solicitation without the option.
    assert_eq!(fixed(SOLICITATION, &|f| f[19] = 24), Some(Reason::NdMalformed));
    // A duplicate-address probe, well formed and with the option that it must not have.
    assert_eq!(fixed(SOLICITATION, &|f| f[22..38].fill(0)), Some(Reason::NdMalformed));
    let probe = |f: &mut Vec<u8>| {
        f[22..38].fill(0);
        f[19] = 24;
    };
    assert_eq!(fixed(SOLICITATION, &probe), Some(Reason::NdIgnored));
}

/// A frame split over two segments is answered as one: every split behind the headers.
#[test]
fn a_chain_is_answered_like_one_segment() {
    for (request, answer, headers) in
        [(ECHO_REQUEST, ECHO_REPLY, 42), (ECHO6_REQUEST, ECHO6_REPLY, 62)]
    {
        let (request, answer) = (hex(request), hex(answer));
        for split in headers..=request.len() {
            let (mut head, tail) = (request[..split].to_vec(), &request[split..]);
            let sum = |n: usize| crate::checksum::sum(&tail[..n]);
            let tail = Tail { len_bytes: tail.len(), sum: Some(&sum) };
            let verdict = reply(&mut head, tail, &everyone());
            assert_eq!(verdict, Verdict::Reply { len_bytes: request.len() }, "split at {split}");
            assert_eq!(head, answer[..split]);
            // The same without a look at the tail, even a damaged one: the answer shows that.
            let mut head = request[..split].to_vec();
            let tail = Tail { sum: None, ..tail };
            let verdict = reply(&mut head, tail, &everyone());
            assert_eq!(verdict, Verdict::Reply { len_bytes: request.len() }, "split at {split}");
            assert_eq!(head, answer[..split]);
        }
        let (mut head, tail) = (request[..headers - 1].to_vec(), &request[headers - 1..]);
        let sum = |n: usize| crate::checksum::sum(&tail[..n]);
        let verdict =
            reply(&mut head, Tail { len_bytes: tail.len(), sum: Some(&sum) }, &everyone());
        assert_eq!(verdict, Verdict::Drop(Reason::IcmpMalformed));
    }
}

fn request() -> impl Strategy<Value = &'static str> {
    let all = [ARP_REQUEST, ECHO_REQUEST, ECHO6_REQUEST, SOLICITATION, UNICAST_SOLICITATION];
    prop::sample::select(all.to_vec())
}

proptest! {
    /// Bytes flipped and ends cut: an answer or a reason, never a panic, never a longer frame.
    #[test]
    fn damaged_frames_never_panic(
        text in request(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in 0usize..100,
        fix in any::<bool>(),
    ) {
        let mut frame = hex(text);
        for (at, byte) in damage {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        // Half of the frames get valid checksums again, so that the checks behind them are met.
        if fix && text == ECHO_REQUEST && frame[14] == 0x45 {
            fix_ipv4(&mut frame);
        }
        frame.truncate(100 - cut);
        let len = frame.len();
        if let Verdict::Reply { len_bytes } = reply(&mut frame, Tail::NONE, &everyone()) {
            prop_assert!((14..=len).contains(&len_bytes));
            prop_assert_eq!(&frame[6..12], &US.0);
        }
    }

    #[test]
    fn noise_never_panics(mut frame in prop::collection::vec(any::<u8>(), 0..128)) {
        let _ = reply(&mut frame, Tail::NONE, &everyone());
    }

    /// A reply of any length is one that another parser finds intact.
    #[test]
    fn replies_are_intact(
        payload in prop::collection::vec(any::<u8>(), 0..1473),
        id in any::<u16>(),
    ) {
        let builder = etherparse::PacketBuilder::ethernet2([0xa2; 6], US.0)
            .ipv4([192, 0, 2, 1], [192, 0, 2, 2], 7)
            .icmpv4_echo_request(id, 1);
        let mut frame = Vec::new();
        builder.write(&mut frame, &payload).unwrap();
        let reply = answer_of(frame, &everyone()).unwrap();
        let sliced = etherparse::SlicedPacket::from_ethernet(&reply).unwrap();
        let Some(etherparse::NetSlice::Ipv4(ip)) = sliced.net else { panic!("no IPv4") };
        let header = ip.header();
        prop_assert_eq!(header.to_header().calc_header_checksum(), header.header_checksum());
        let Some(etherparse::TransportSlice::Icmpv4(icmp)) = sliced.transport else {
            panic!("no ICMP")
        };
        let kind = icmp.icmp_type();
        prop_assert_eq!(kind.calc_checksum(icmp.payload()), icmp.checksum());
        let echo = etherparse::IcmpEchoHeader { id, seq: 1 };
        prop_assert_eq!(kind, etherparse::Icmpv4Type::EchoReply(echo));
        prop_assert_eq!(icmp.payload(), &payload[..]);
    }
}
