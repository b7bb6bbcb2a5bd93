use super::*;
use crate::icmpecho::{self, Station as Echo, Tail, Verdict};

const US: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const THEM: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn own(text: &str) -> Own {
    Own { ip: ip(text), mac: US, vlan: None }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn config() -> Config {
    Config { entries: 2, strangers: 2, attempts: 3, interval: ms(100), lifetime: ms(1000) }
}

/// Knows its own addresses, which were announced.
fn at(texts: &[&str]) -> Neighbours {
    let mut us = Neighbours::new(config());
    us.set_own(texts.iter().map(|text| own(text)), ms(0));
    while us.next_frame(ms(0)).is_some() || us.next_frame(ms(100)).is_some() {}
    us
}

/// The answer of the one who owns `address`.
fn answer(question: &[u8], address: &str) -> Vec<u8> {
    let mut frame = question.to_vec();
    let station = Echo { mac: THEM, addresses: vec![ip(address)] };
    let Verdict::Reply { len_bytes } = icmpecho::reply(&mut frame, Tail::NONE, &station) else {
        panic!("no answer to {question:02x?}")
    };
    frame.truncate(len_bytes);
    frame
}

#[test]
fn a_question_for_ipv4_is_literal() {
    let mut us = at(&["10.0.0.1"]);
    assert_eq!(us.resolve(ip("10.0.0.2"), &own("10.0.0.1"), ms(0)), Ok(None));
    let frame = us.next_frame(ms(0)).unwrap();
    let mut expected =
        hex("ffffffffffff 020000000001 0806 0001 0800 06 04 0001 020000000001 0a000001
         000000000000 0a000002");
    expected.resize(60, 0);
    assert_eq!(frame[..], expected[..]);
    assert_eq!(us.next_frame(ms(99)), None);
    assert_eq!(us.frame(&answer(&frame, "10.0.0.2"), ms(50)), None);
    assert_eq!(us.resolve(ip("10.0.0.2"), &own("10.0.0.1"), ms(50)), Ok(Some(THEM)));
}

#[test]
fn a_question_for_ipv6_is_literal() {
    let mut us = at(&["fd00::1"]);
    assert_eq!(us.resolve(ip("fd00::12:3456"), &own("fd00::1"), ms(0)), Ok(None));
    let frame = us.next_frame(ms(0)).unwrap();
    let expected = hex("3333ff123456 020000000001 86dd 60000000 0020 3a ff
         fd000000000000000000000000000001 ff0200000000000000000001ff123456
         8700 0000 00000000 fd000000000000000000000000123456 0101 020000000001");
    let mut zeroed = frame.to_vec();
    // Judged by another parser below.
    zeroed[56..58].fill(0);
    assert_eq!(zeroed, expected);
    assert_eq!(us.frame(&answer(&frame, "fd00::12:3456"), ms(0)), None);
    assert_eq!(us.resolve(ip("fd00::12:3456"), &own("fd00::1"), ms(1)), Ok(Some(THEM)));
}

/// Another parser finds the checksum right and the message as it should be.
#[test]
fn messages_of_ipv6_are_intact() {
    let mut us = Neighbours::new(config());
    us.set_own([own("fd00::1")], ms(0));
    let announced = us.next_frame(ms(0)).unwrap();
    assert_eq!(us.resolve(ip("fd00::2"), &own("fd00::1"), ms(0)), Ok(None));
    let asked = us.next_frame(ms(0)).unwrap();
    for (frame, kind, flags) in [(announced, 136, 0x20), (asked, 135, 0)] {
        let packet = etherparse::SlicedPacket::from_ethernet(&frame).unwrap();
        let Some(etherparse::NetSlice::Ipv6(ip)) = packet.net else { panic!("no IPv6") };
        let header = ip.header().to_header();
        assert_eq!(header.hop_limit, 255);
        let Some(etherparse::TransportSlice::Icmpv6(icmp)) = packet.transport else {
            panic!("no ICMPv6")
        };
        assert!(icmp.is_checksum_valid(header.source, header.destination));
        assert_eq!((icmp.type_u8(), icmp.code_u8(), frame[58]), (kind, 0, flags));
    }
}

#[test]
fn an_address_is_announced_twice_and_not_again() {
    let mut us = Neighbours::new(config());
    us.set_own([own("10.0.0.1")], ms(0));
    let frame = us.next_frame(ms(0)).unwrap();
    assert_eq!(frame[..6], [0xff; 6]);
    assert_eq!((&frame[28..32], &frame[38..42]), (&[10, 0, 0, 1][..], &[10, 0, 0, 1][..]));
    assert_eq!(us.next_frame(ms(99)), None);
    assert_eq!(us.next_frame(ms(100)), Some(frame));
    assert_eq!(us.next_frame(ms(5000)), None);
    us.set_own([own("10.0.0.1")], ms(5000));
    assert_eq!(us.next_frame(ms(5000)), None);
    let all_nodes = &hex("333300000001")[..];
    us.set_own([own("10.0.0.1"), own("fd00::1")], ms(6000));
    assert_eq!(us.next_frame(ms(6000)).map(|frame| frame[..6].to_vec()), Some(all_nodes.to_vec()));
}

#[test]
fn silence_ends_in_a_sentence_and_the_next_call_asks_again() {
    let mut us = at(&["10.0.0.1"]);
    let (them, from) = (ip("10.0.0.2"), own("10.0.0.1"));
    for at in [0, 100, 200] {
        assert_eq!(us.resolve(them, &from, ms(at)), Ok(None));
        assert!(us.next_frame(ms(at)).is_some());
        assert_eq!(us.next_frame(ms(at + 99)), None);
    }
    assert_eq!(us.resolve(them, &from, ms(299)), Ok(None));
    let error = us.resolve(them, &from, ms(300)).unwrap_err();
    assert_eq!(error, Unresolved::NoAnswer { target: them, attempts: 3 });
    assert_eq!(
        error.to_string(),
        "10.0.0.2 did not answer 3 questions for its MAC address; is it up, on this link, and \
         does it own the address?"
    );
    assert_eq!(us.resolve(them, &from, ms(300)), Ok(None));
    assert!(us.next_frame(ms(300)).is_some());
}

#[test]
fn an_entry_is_asked_for_again_before_its_end_and_gone_after_it() {
    let mut us = at(&["10.0.0.1"]);
    let (them, from) = (ip("10.0.0.2"), own("10.0.0.1"));
    let ask = |us: &mut Neighbours, at| us.resolve(them, &from, ms(at));
    assert_eq!(ask(&mut us, 0), Ok(None));
    let question = us.next_frame(ms(0)).unwrap();
    us.frame(&answer(&question, "10.0.0.2"), ms(0));
    assert_eq!(ask(&mut us, 749), Ok(Some(THEM)));
    assert_eq!(us.next_frame(ms(749)), None);
    assert_eq!(ask(&mut us, 750), Ok(Some(THEM)));
    // To its owner alone.
    let question = us.next_frame(ms(750)).unwrap();
    assert_eq!(question[..6], THEM.0);
    us.frame(&answer(&question, "10.0.0.2"), ms(800));
    assert_eq!(ask(&mut us, 1549), Ok(Some(THEM)));
    assert_eq!(ask(&mut us, 1799), Ok(Some(THEM)));
    assert_eq!(ask(&mut us, 1800), Ok(None));
    assert_eq!(us.next_frame(ms(1800)).unwrap()[..6], [0xff; 6]);
}

#[test]
fn who_asks_for_us_is_known_and_who_tells_unasked_is_not() {
    let mut us = at(&["10.0.0.1"]);
    let mut peer = Neighbours::new(config());
    let theirs = Own { ip: ip("10.0.0.2"), mac: THEM, vlan: None };
    peer.set_own([theirs], ms(0));
    let announced = peer.next_frame(ms(0)).unwrap();
    us.frame(&announced, ms(0));
    assert_eq!(us.entries.len(), 0);
    assert_eq!(peer.resolve(ip("10.0.0.1"), &theirs, ms(0)), Ok(None));
    let question = peer.next_frame(ms(0)).unwrap();
    us.frame(&question, ms(0));
    assert_eq!(us.resolve(ip("10.0.0.2"), &own("10.0.0.1"), ms(1)), Ok(Some(THEM)));
    // An announcement moves an entry that exists.
    let mut moved = announced;
    moved[22..28].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    us.frame(&moved, ms(2));
    let now = us.resolve(ip("10.0.0.2"), &own("10.0.0.1"), ms(3));
    assert_eq!(now, Ok(Some(MacAddr([2, 0, 0, 0, 0, 9]))));
    // A group address does not.
    moved[22..28].copy_from_slice(&[3, 0, 0, 0, 0, 9]);
    us.frame(&moved, ms(4));
    assert_eq!(us.resolve(ip("10.0.0.2"), &own("10.0.0.1"), ms(5)), now);
}

#[test]
fn an_advertisement_without_override_moves_nothing() {
    let mut us = at(&["fd00::1"]);
    let theirs = Own { ip: ip("fd00::2"), mac: THEM, vlan: None };
    let (them, from) = (theirs.ip, own("fd00::1"));
    assert_eq!(us.resolve(them, &from, ms(0)), Ok(None));
    let meek = |mac: MacAddr| {
        let mut frame = frames::announcement(&Own { mac, ..theirs });
        frame[58] = 0;
        let sum = u16::from_be_bytes([frame[56], frame[57]]);
        let sum = crate::checksum::update(sum, 0x2000, 0);
        frame[56..58].copy_from_slice(&sum.to_be_bytes());
        frame
    };
    us.frame(&meek(THEM), ms(0));
    assert_eq!(us.resolve(them, &from, ms(0)), Ok(Some(THEM)));
    us.frame(&meek(MacAddr([2, 0, 0, 0, 0, 9])), ms(0));
    assert_eq!(us.resolve(them, &from, ms(0)), Ok(Some(THEM)));
    let mut broken = frames::announcement(&Own { mac: MacAddr([2, 0, 0, 0, 0, 9]), ..theirs });
    broken[80] ^= 1;
    us.frame(&broken, ms(0));
    assert_eq!(us.resolve(them, &from, ms(0)), Ok(Some(THEM)));
}

#[test]
fn a_claim_to_our_address_is_told_and_answered_once_in_a_while() {
    let mut us = at(&["10.0.0.1", "fd00::1"]);
    for text in ["10.0.0.1", "fd00::1"] {
        let theirs = Own { ip: ip(text), mac: THEM, vlan: None };
        let claim = frames::announcement(&theirs);
        let conflict = Conflict { ip: theirs.ip, mac: THEM };
        assert_eq!(us.frame(&claim, ms(200)), Some(conflict));
        assert_eq!(us.next_frame(ms(200)), Some(frames::announcement(&own(text))));
        assert_eq!(us.frame(&claim, ms(5000)), Some(conflict));
        assert_eq!(us.next_frame(ms(5000)), None);
        assert_eq!(us.frame(&claim, ms(10_200)), Some(conflict));
        assert!(us.next_frame(ms(10_200)).is_some());
        assert_eq!(us.frame(&frames::announcement(&own(text)), ms(10_200)), None);
    }
}

#[test]
fn a_probe_for_our_ipv6_address_is_answered_to_all() {
    let mut us = at(&["fd00::1"]);
    let mut probe = frames::question(&Own { mac: THEM, ..own("fd00::9") }, ip("fd00::1"), None);
    // From nobody, without the option.
    probe.truncate(14 + 40 + 24);
    probe[18..20].copy_from_slice(&[0, 24]);
    probe[22..38].fill(0);
    probe[56..58].fill(0);
    let sum =
        crate::checksum::pseudo_v6(&probe[22..54], 58, 24) + crate::checksum::sum(&probe[54..]);
    probe[56..58].copy_from_slice(&crate::checksum::finish(sum).to_be_bytes());
    assert_eq!(us.frame(&probe, ms(200)), None);
    assert_eq!(us.next_frame(ms(200)), Some(frames::announcement(&own("fd00::1"))));
}

#[test]
fn vlans_are_worlds_of_their_own() {
    let mut us = Neighbours::new(config());
    let tagged = Own { vlan: Some(5), ..own("10.0.0.1") };
    us.set_own([own("10.0.0.1"), tagged], ms(0));
    while us.next_frame(ms(100)).is_some() {}
    while us.next_frame(ms(300)).is_some() {}
    let them = ip("10.0.0.2");
    assert_eq!(us.resolve(them, &tagged, ms(300)), Ok(None));
    let question = us.next_frame(ms(300)).unwrap();
    assert_eq!(question[12..18], [0x81, 0, 0, 5, 8, 6]);
    us.frame(&answer(&question, "10.0.0.2"), ms(300));
    assert_eq!(us.resolve(them, &tagged, ms(300)), Ok(Some(THEM)));
    assert_eq!(us.resolve(them, &own("10.0.0.1"), ms(300)), Ok(None));
}

#[test]
fn what_cannot_be_asked_for_is_refused() {
    let mut us = at(&["10.0.0.1", "fd00::1"]);
    for text in ["0.0.0.0", "255.255.255.255", "224.0.0.1", "::", "ff02::1"] {
        let target = ip(text);
        let from = if target.is_ipv4() { own("10.0.0.1") } else { own("fd00::1") };
        assert_eq!(us.resolve(target, &from, ms(0)), Err(Unresolved::NotAHost { target }));
    }
    let (target, from) = (ip("fd00::2"), own("10.0.0.1"));
    let refused = Unresolved::OtherFamily { target, own: from.ip };
    assert_eq!(us.resolve(target, &from, ms(0)), Err(refused));
    // Our own address needs no question.
    assert_eq!(us.resolve(ip("10.0.0.1"), &own("10.0.0.1"), ms(0)), Ok(Some(US)));
}

#[test]
fn a_full_cache_forgets_what_ends_first_but_nothing_that_is_asked_for() {
    let mut us = at(&["10.0.0.1"]);
    let from = own("10.0.0.1");
    for (last, now) in [(2, 0), (3, 1)] {
        let them = IpAddr::from([10, 0, 0, last]);
        assert_eq!(us.resolve(them, &from, ms(now)), Ok(None));
        let question = us.next_frame(ms(now)).unwrap();
        us.frame(&answer(&question, &them.to_string()), ms(now));
    }
    assert_eq!(us.resolve(ip("10.0.0.4"), &from, ms(2)), Ok(None));
    assert_eq!(us.resolve(ip("10.0.0.3"), &from, ms(2)), Ok(Some(THEM)));
    assert_eq!(us.resolve(ip("10.0.0.5"), &from, ms(2)), Ok(None));
    assert_eq!(us.resolve(ip("10.0.0.6"), &from, ms(2)), Err(Unresolved::Full { entries: 2 }));
    us.forget(ip("10.0.0.4"), None);
    assert_eq!(us.resolve(ip("10.0.0.6"), &from, ms(2)), Ok(None));
}

/// An ARP question from `them` for 10.0.0.1.
fn asked_by(them: IpAddr) -> Vec<u8> {
    let theirs = Own { ip: them, mac: THEM, vlan: None };
    frames::question(&theirs, ip("10.0.0.1"), None).to_vec()
}

#[test]
fn strangers_push_out_each_other_and_nobody_who_was_wanted() {
    let mut us = at(&["10.0.0.1"]);
    let (from, friend) = (own("10.0.0.1"), ip("10.0.0.2"));
    assert_eq!(us.resolve(friend, &from, ms(0)), Ok(None));
    let question = us.next_frame(ms(0)).unwrap();
    us.frame(&answer(&question, "10.0.0.2"), ms(0));
    // One who asked us is answered without a question of ours.
    let honest = ip("10.0.0.3");
    us.frame(&asked_by(honest), ms(1));
    assert_eq!(us.resolve_stranger(honest, &from, ms(1)), Ok(Some(THEM)));
    for n in 0..1000u16 {
        let now = ms(2) + Duration::from_micros(n.into());
        let [high, low] = n.to_be_bytes();
        let invented = IpAddr::from([10, 1, high, low]);
        let full = Err(Unresolved::Full { entries: 2 });
        let expected = if n < 2 { Ok(None) } else { full };
        assert_eq!(us.resolve_stranger(invented, &from, now), expected);
        assert!(us.len() <= 2 + 2 + 2, "{}", us.len());
        assert_eq!(us.orders.iter().map(BTreeSet::len).sum::<usize>(), us.len());
        assert!(us.due.len() <= us.len());
    }
    // Two are asked for; nobody who is known or was wanted made room.
    assert_eq!(us.resolve_stranger(honest, &from, ms(4)), Ok(Some(THEM)));
    assert_eq!(us.resolve(friend, &from, ms(4)), Ok(Some(THEM)));
    assert_eq!(us.pushed_out(), 0);
    // Wanted now: other strangers that ask us push it out no more.
    assert_eq!(us.resolve(honest, &from, ms(4)), Ok(Some(THEM)));
    for n in 0..100 {
        us.frame(&asked_by(IpAddr::from([10, 2, 0, n])), ms(5));
    }
    assert_eq!(us.resolve(honest, &from, ms(5)), Ok(Some(THEM)));
    assert_eq!(us.resolve(friend, &from, ms(5)), Ok(Some(THEM)));
    assert_eq!(us.pushed_out(), 98);
    assert_eq!(us.len(), 2 + 2 + 2);
    // Who was asked for in vain and is not wanted any more makes room for the next.
    for n in 0..3 {
        while us.next_frame(ms(5 + 100 * n)).is_some() {}
    }
    let next = ip("10.1.9.9");
    let full = Err(Unresolved::Full { entries: 2 });
    assert_eq!(us.resolve_stranger(next, &from, ms(304)), full);
    assert_eq!(us.resolve_stranger(next, &from, ms(305)), Ok(None));
    assert_eq!(us.len(), 2 + 2 + 2);
    // Others that are wanted take the places of those that were learned first.
    assert_eq!(us.resolve(ip("10.0.0.4"), &from, ms(306)), Ok(None));
    assert_eq!(us.resolve(honest, &from, ms(306)), Ok(Some(THEM)));
    assert_eq!(us.resolve(friend, &from, ms(306)), Ok(None));
    assert_eq!(us.resolve(honest, &from, ms(306)), Err(Unresolved::Full { entries: 2 }));
}

proptest::proptest! {
    #[test]
    fn noise_teaches_nothing_and_never_panics(
        mut frame in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..100),
        kind in 0..3usize,
    ) {
        let mut us = at(&["10.0.0.1", "fd00::1"]);
        if frame.len() > 14 {
            frame[12..14].copy_from_slice([[8, 6], [0x86, 0xdd], [0x81, 0]][kind].as_slice());
        }
        us.frame(&frame, ms(0));
        while us.next_frame(ms(1000)).is_some() {}
    }
}
