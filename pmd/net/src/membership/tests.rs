use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use etherparse::SlicedPacket;

use super::*;
use crate::checksum;
use crate::ether::MacAddr;

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 5]);
const SECOND: Duration = Duration::from_secs(1);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn host() -> Host {
    let (ipv4, ipv6) = (Ipv4Addr::new(10, 0, 0, 5), "fe80::5".parse().unwrap());
    Host { mac: MAC, vlan: None, ipv4, ipv6 }
}

fn member() -> Memberships {
    Memberships::new(host(), Config::default(), 1)
}

/// All frames that are due.
fn due(us: &mut Memberships, now: Duration) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| us.next_frame(now)).collect()
}

/// The IGMP or MLD message of a frame, whose headers a stranger's parser took and whose checksums
/// are right.
fn message(frame: &[u8]) -> Vec<u8> {
    SlicedPacket::from_ethernet(frame).unwrap();
    let (ethertype, start) = crate::ether::ethertype(frame).unwrap();
    let packet = &frame[start..];
    if ethertype == crate::ether::IPV4 {
        let total = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
        assert_eq!(packet[..2], [0x46, 0xc0]);
        assert_eq!(packet[8..10], [1, 2], "one hop, IGMP");
        assert_eq!(packet[20..24], [0x94, 4, 0, 0], "Router Alert");
        assert!(checksum::is_intact(checksum::sum(&packet[..24])));
        assert!(checksum::is_intact(checksum::sum(&packet[24..total])));
        return packet[24..total].to_vec();
    }
    assert_eq!(packet[6..8], [0, 1], "hop-by-hop options, one hop");
    assert_eq!(packet[40..48], [58, 0, 5, 2, 0, 0, 1, 0], "Router Alert");
    let message = &packet[48..];
    let pseudo = checksum::pseudo_v6(&packet[8..40], 58, message.len() as u32);
    assert!(checksum::is_intact(pseudo + checksum::sum(message)));
    message.to_vec()
}

/// Messages that are due, without their checksums.
fn said(us: &mut Memberships, now: Duration) -> Vec<Vec<u8>> {
    let frames = due(us, now);
    let mut messages: Vec<_> = frames.iter().map(|frame| message(frame)).collect();
    messages.iter_mut().for_each(|message| message[2..4].fill(0));
    messages
}

/// A query as a Linux bridge sends it: from 0.0.0.0, with Router Alert.
fn igmp_query(group: [u8; 4], code: u8, v3: Option<&[[u8; 4]]>) -> Vec<u8> {
    let mut message = vec![0x11, code, 0, 0];
    message.extend(group);
    if let Some(sources) = v3 {
        message.extend([0x02, 125]);
        message.extend((sources.len() as u16).to_be_bytes());
        sources.iter().for_each(|source| message.extend(source));
    }
    let sum = checksum::finish(checksum::sum(&message)).to_be_bytes();
    message[2..4].copy_from_slice(&sum);
    let mut packet = vec![0x46, 0xc0, 0, (24 + message.len()) as u8, 0, 0, 0x40, 0, 1, 2, 0, 0];
    packet.extend([0, 0, 0, 0, 224, 0, 0, 1, 0x94, 4, 0, 0]);
    let sum = checksum::finish(checksum::sum(&packet)).to_be_bytes();
    packet[10..12].copy_from_slice(&sum);
    [&[1, 0, 0x5e, 0, 0, 1, 2, 0, 0, 0, 0, 9, 8, 0][..], &packet, &message].concat()
}

fn mld_query(group: Ipv6Addr, code: u16, is_v2: bool) -> Vec<u8> {
    let mut message = vec![130, 0, 0, 0];
    message.extend(code.to_be_bytes());
    message.extend([0, 0]);
    message.extend(group.octets());
    if is_v2 {
        message.extend([2, 125, 0, 0]);
    }
    let source: Ipv6Addr = "fe80::9".parse().unwrap();
    let to: Ipv6Addr = "ff02::1".parse().unwrap();
    let addresses = [source.octets(), to.octets()].concat();
    let sum = checksum::pseudo_v6(&addresses, 58, message.len() as u32) + checksum::sum(&message);
    message[2..4].copy_from_slice(&checksum::finish(sum).to_be_bytes());
    let ethernet = [0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x86, 0xdd];
    let header = [0x60, 0, 0, 0, 0, (8 + message.len()) as u8, 0, 1];
    [&ethernet[..], &header, &addresses, &[58, 0, 5, 2, 0, 0, 1, 0], &message].concat()
}

#[test]
fn a_join_is_reported_at_once_and_once_more() {
    let mut us = member();
    us.join(ip("239.1.2.3"), None, SECOND).unwrap();
    let frames = due(&mut us, SECOND);
    assert_eq!(frames.len(), 1);
    assert_eq!(frames[0].len(), 60);
    assert_eq!(frames[0][..14], [1, 0, 0x5e, 0, 0, 22, 2, 0, 0, 0, 0, 5, 8, 0]);
    assert_eq!(frames[0][26..34], [10, 0, 0, 5, 224, 0, 0, 22]);
    let report = message(&frames[0]);
    assert_eq!(report[..2], [0x22, 0]);
    // One record: change to exclude nobody.
    assert_eq!(report[4..], [0, 0, 0, 1, 4, 0, 0, 0, 239, 1, 2, 3]);
    let again = us.next_time().unwrap();
    assert!(again >= SECOND && again <= 2 * SECOND);
    assert_eq!(due(&mut us, again), frames);
    assert_eq!((us.next_time(), us.stats().reports), (None, 2));
}

#[test]
fn joins_are_counted_and_the_last_leave_is_reported() {
    let mut us = member();
    let group = ip("239.1.2.3");
    us.join(group, None, Duration::ZERO).unwrap();
    us.join(group, None, Duration::ZERO).unwrap();
    assert_eq!(due(&mut us, 5 * SECOND).len(), 1);
    assert_eq!(due(&mut us, 9 * SECOND).len(), 1);
    assert!(us.leave(group, None, 10 * SECOND));
    assert_eq!((us.next_time(), us.groups().collect::<Vec<_>>()), (None, vec![group]));
    assert!(us.leave(group, None, 10 * SECOND));
    assert!(!us.leave(group, None, 10 * SECOND));
    // Change to include nobody.
    let left = [0x22, 0, 0, 0, 0, 0, 0, 1, 3, 0, 0, 0, 239, 1, 2, 3];
    assert_eq!(said(&mut us, 10 * SECOND), [left]);
    assert_eq!(said(&mut us, 20 * SECOND), [left]);
    assert_eq!((us.next_time(), us.groups().count()), (None, 0));
}

#[test]
fn an_ipv6_join_is_an_mldv2_report() {
    let mut us = member();
    us.join(ip("ff15::1234"), None, Duration::ZERO).unwrap();
    let frames = due(&mut us, Duration::ZERO);
    assert_eq!(frames[0][..14], [0x33, 0x33, 0, 0, 0, 0x16, 2, 0, 0, 0, 0, 5, 0x86, 0xdd]);
    let report = message(&frames[0]);
    assert_eq!((report[0], &report[4..12]), (143, &[0, 0, 0, 1, 4, 0, 0, 0][..]));
    assert_eq!(report[12..], "ff15::1234".parse::<Ipv6Addr>().unwrap().octets());
}

#[test]
fn a_general_query_is_answered_within_its_time_by_one_report_of_all_groups() {
    let mut us = member();
    for n in 0..200u8 {
        us.join(ip(&format!("239.1.2.{n}")), None, Duration::ZERO).unwrap();
    }
    us.join(ip("ff15::1"), None, Duration::ZERO).unwrap();
    while let Some(next) = us.next_time() {
        due(&mut us, next);
    }
    let now = 60 * SECOND;
    assert!(us.frame(&igmp_query([0; 4], 100, Some(&[])), now));
    let answer = us.next_time().unwrap();
    assert!((now..=now + 10 * SECOND).contains(&answer));
    let mut groups = 0;
    for report in said(&mut us, answer) {
        let count = usize::from(u16::from_be_bytes([report[6], report[7]]));
        assert_eq!(report.len(), 8 + 8 * count);
        assert!(report[8..].chunks(8).all(|record| record[..4] == [2, 0, 0, 0]));
        groups += count;
    }
    assert_eq!((groups, us.next_time(), us.stats().queries), (200, None, 1));
}

#[test]
fn a_query_for_a_group_is_answered_by_its_members_only() {
    let mut us = member();
    us.join(ip("239.1.2.3"), None, Duration::ZERO).unwrap();
    due(&mut us, Duration::ZERO);
    due(&mut us, 5 * SECOND);
    assert!(us.frame(&igmp_query([239, 1, 2, 4], 10, Some(&[])), 6 * SECOND));
    assert_eq!(us.next_time(), None);
    assert!(us.frame(&igmp_query([239, 1, 2, 3], 10, Some(&[[10, 0, 0, 7]])), 6 * SECOND));
    assert!(us.frame(&igmp_query([239, 1, 2, 3], 10, Some(&[[10, 0, 0, 8]])), 6 * SECOND));
    // It listens to everybody, so to both.
    let record = [1, 0, 0, 2, 239, 1, 2, 3, 10, 0, 0, 7, 10, 0, 0, 8];
    let report = [&[0x22, 0, 0, 0, 0, 0, 0, 1][..], &record].concat();
    assert_eq!(said(&mut us, 7 * SECOND), [report]);
}

#[test]
fn a_querier_of_version_2_gets_reports_and_a_leave_of_version_2() {
    let mut us = member();
    us.frame(&igmp_query([0; 4], 100, None), Duration::ZERO);
    us.join(ip("239.1.2.3"), None, SECOND).unwrap();
    let frames = due(&mut us, SECOND);
    assert_eq!(frames[0][30..34], [239, 1, 2, 3]);
    assert_eq!(said(&mut us, 11 * SECOND), [[0x16, 0, 0, 0, 239, 1, 2, 3]]);
    us.leave(ip("239.1.2.3"), None, 12 * SECOND);
    let frames = due(&mut us, 12 * SECOND);
    assert_eq!(frames[0][30..34], [224, 0, 0, 2]);
    assert_eq!((message(&frames[0])[0], us.next_time()), (0x17, None));
    // Two intervals and a response later nobody remembers that querier.
    us.join(ip("239.1.2.3"), None, 259 * SECOND).unwrap();
    assert_eq!(said(&mut us, 259 * SECOND)[0][0], 0x16);
    us.join(ip("239.1.2.4"), None, 261 * SECOND).unwrap();
    assert_eq!(said(&mut us, 261 * SECOND)[0][0], 0x22);
}

#[test]
fn version_1_has_no_leave() {
    let mut us = member();
    us.frame(&igmp_query([0; 4], 0, None), Duration::ZERO);
    us.join(ip("239.1.2.3"), None, SECOND).unwrap();
    assert_eq!(said(&mut us, SECOND), [[0x12, 0, 0, 0, 239, 1, 2, 3]]);
    us.leave(ip("239.1.2.3"), None, 2 * SECOND);
    assert!(due(&mut us, 20 * SECOND).is_empty());
    assert_eq!((us.next_time(), us.groups().count()), (None, 0));
}

#[test]
fn in_version_2_another_members_report_is_enough() {
    let mut us = member();
    us.frame(&igmp_query([0; 4], 100, None), Duration::ZERO);
    us.join(ip("239.1.2.3"), None, Duration::ZERO).unwrap();
    due(&mut us, Duration::ZERO);
    due(&mut us, 10 * SECOND);
    let mut other = Memberships::new(Host { mac: MacAddr([2; 6]), ..host() }, Config::default(), 2);
    other.frame(&igmp_query([0; 4], 100, None), Duration::ZERO);
    other.join(ip("239.1.2.3"), None, 19 * SECOND).unwrap();
    let theirs = other.next_frame(19 * SECOND).unwrap();
    us.frame(&igmp_query([0; 4], 100, None), 20 * SECOND);
    assert!(us.next_time().is_some());
    assert!(us.frame(&theirs, 20 * SECOND));
    assert_eq!((us.next_time(), us.stats().suppressed), (None, 1));
}

#[test]
fn mldv1_is_spoken_to_its_queriers() {
    let mut us = member();
    assert!(us.frame(&mld_query(Ipv6Addr::UNSPECIFIED, 10_000, false), Duration::ZERO));
    us.join(ip("ff15::1"), None, SECOND).unwrap();
    let frames = due(&mut us, SECOND);
    assert_eq!(frames[0][38..54], "ff15::1".parse::<Ipv6Addr>().unwrap().octets());
    assert_eq!(message(&frames[0])[0], 131);
    us.leave(ip("ff15::1"), None, 2 * SECOND);
    assert_eq!(said(&mut us, 2 * SECOND)[0][0], 132);
    // IPv4 goes on with its newest version.
    us.join(ip("239.1.2.3"), None, 3 * SECOND).unwrap();
    assert_eq!(said(&mut us, 3 * SECOND)[0][0], 0x22);
}

#[test]
fn sources_are_allowed_and_blocked_one_by_one() {
    let mut us = member();
    let (group, a, b) = (ip("232.1.2.3"), ip("10.0.0.7"), ip("10.0.0.8"));
    us.join(group, Some(a), Duration::ZERO).unwrap();
    us.join(group, Some(a), Duration::ZERO).unwrap();
    let header = |records: &[&[u8]]| {
        [&[0x22, 0, 0, 0, 0, 0, 0, records.len() as u8][..], &records.concat()].concat()
    };
    let one = |kind: u8, last: u8| [kind, 0, 0, 1, 232, 1, 2, 3, 10, 0, 0, last];
    assert_eq!(said(&mut us, Duration::ZERO), [header(&[&one(5, 7)])]);
    due(&mut us, SECOND);
    us.join(group, Some(b), 2 * SECOND).unwrap();
    us.leave(group, Some(a), 2 * SECOND);
    assert_eq!(said(&mut us, 2 * SECOND), [header(&[&one(5, 8)])]);
    us.leave(group, Some(a), 2 * SECOND);
    assert_eq!(said(&mut us, 2 * SECOND), [header(&[&one(5, 8), &one(6, 7)])]);
    due(&mut us, 3 * SECOND);
    us.frame(&igmp_query([0; 4], 10, Some(&[])), 4 * SECOND);
    assert_eq!(said(&mut us, 5 * SECOND), [header(&[&one(1, 8)])]);
    // Everybody, then that one again, then nobody.
    us.join(group, None, 6 * SECOND).unwrap();
    assert_eq!(said(&mut us, 6 * SECOND), [header(&[&[4, 0, 0, 0, 232, 1, 2, 3]])]);
    us.leave(group, None, 7 * SECOND);
    assert_eq!(said(&mut us, 7 * SECOND), [header(&[&one(3, 8)])]);
    due(&mut us, 8 * SECOND);
    us.leave(group, Some(b), 9 * SECOND);
    assert_eq!(said(&mut us, 9 * SECOND), [header(&[&one(6, 8)])]);
    due(&mut us, 10 * SECOND);
    assert_eq!((us.groups().count(), us.next_time()), (0, None));
}

#[test]
fn bad_joins_say_why() {
    let mut us = Memberships::new(host(), Config { groups: 1, ..Config::default() }, 1);
    let join = |us: &mut Memberships, group: &str, source: Option<&str>| {
        us.join(ip(group), source.map(ip), Duration::ZERO).unwrap_err().to_string()
    };
    let text = join(&mut us, "10.0.0.1", None);
    assert!(text.starts_with("10.0.0.1 is not the address of a group"), "{text}");
    let text = join(&mut us, "239.1.2.3", Some("fe80::1"));
    assert!(text.starts_with("fe80::1 cannot send to 239.1.2.3"), "{text}");
    us.join(ip("239.1.2.3"), None, Duration::ZERO).unwrap();
    let text = join(&mut us, "239.1.2.4", None);
    assert!(text.starts_with("1 groups are joined"), "{text}");
    for n in 0..MAX_SOURCES {
        us.join(ip("239.1.2.3"), Some(ip(&format!("10.0.0.{n}"))), Duration::ZERO).unwrap();
    }
    let text = join(&mut us, "239.1.2.3", Some("10.0.1.1"));
    assert!(text.contains("64 sources"), "{text}");
}

#[test]
fn the_group_of_all_hosts_is_not_reported() {
    let mut us = member();
    for group in ["224.0.0.1", "ff02::1", "ff01::5"] {
        us.join(ip(group), None, Duration::ZERO).unwrap();
    }
    assert!(due(&mut us, Duration::ZERO).is_empty());
    assert!(due(&mut us, 10 * SECOND).is_empty());
    assert_eq!((us.next_time(), us.groups().count()), (None, 3));
}

#[test]
fn what_is_not_as_it_must_be_is_not_heard() {
    let mut us = member();
    us.join(ip("239.1.2.3"), None, Duration::ZERO).unwrap();
    us.join(ip("ff15::1"), None, Duration::ZERO).unwrap();
    while let Some(next) = us.next_time() {
        due(&mut us, next);
    }
    let queries =
        [igmp_query([0; 4], 100, Some(&[[1; 4]])), mld_query(Ipv6Addr::UNSPECIFIED, 9, true)];
    for query in &queries {
        for len in 0..query.len() {
            assert!(!us.frame(&query[..len], SECOND));
        }
        for at in 14..query.len() {
            let mut damaged = query.clone();
            damaged[at] ^= 0x40;
            // Traffic class, flow label and padding of IPv6 have no checksum and do not matter.
            let is_covered = query[12] == 8 || !(14..18).contains(&at) && !(60..62).contains(&at);
            assert!(!us.frame(&damaged, SECOND) || !is_covered, "byte {at}");
        }
    }
    // Another VLAN is another link.
    let [query, _] = queries;
    let tagged = [&query[..12], &[0x81, 0, 0, 5], &query[12..]].concat();
    assert!(!us.frame(&tagged, SECOND));
    us.set_host(Host { vlan: Some(5), ..host() });
    assert!(us.frame(&tagged, SECOND) && !us.frame(&query, SECOND));
    let report = us.next_frame(200 * SECOND).unwrap();
    assert_eq!(report[12..18], [0x81, 0, 0, 5, 8, 0]);
}

#[test]
fn long_times_are_written_with_an_exponent() {
    let mut us = member();
    us.join(ip("239.1.2.3"), None, Duration::ZERO).unwrap();
    due(&mut us, Duration::ZERO);
    due(&mut us, SECOND);
    // 0xff: 0x1f << 10 tenths of a second, 3174.4 s.
    let draws = (0..64).map(|_| {
        us.frame(&igmp_query([239, 1, 2, 3], 0xff, Some(&[])), SECOND);
        let due = us.next_time().unwrap();
        due_all(&mut us);
        due
    });
    let longest = draws.max().unwrap();
    assert!(longest > 2000 * SECOND && longest <= Duration::from_millis(3_175_400), "{longest:?}");
}

fn due_all(us: &mut Memberships) {
    while let Some(next) = us.next_time() {
        due(us, next);
    }
}
