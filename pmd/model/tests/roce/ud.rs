//! Datagrams, the general services interface, multicast; unreliable connections.

use crate::common;
use crate::common::roce::{
    MTU, Peer, QKEY, TestQp, Two, UC, UD, av, data, inline, mapped, pattern, work,
};
use crate::common::{input, words};

const WRITE_IMM: u32 = 0x09;
const SEND: u32 = 0x0a;
const SEND_IMM: u32 = 0x0b;
const GSI: u32 = 8;

fn to(peer: &Peer, qkey: u32, qpn: u32) -> Vec<u8> {
    av(qkey, qpn, peer.mac, peer.ip)
}

fn pair(two: &mut Two, st: u32) -> (TestQp, TestQp) {
    two.connected(st)
}

#[test]
fn a_datagram_brings_its_ip_header_and_its_source() {
    let mut two = Two::new();
    let (mut qa, mut qb) = pair(&mut two, UD);
    two.b.post_receive(&mut qb, 0, 1000);
    let mut segments = to(&two.b, QKEY, qb.qpn);
    segments.extend(inline(b"hello"));
    let request = common::roce::Work { imm: 9, ..work(SEND_IMM) };
    two.a.post_send(&mut qa, &request, &segments);
    two.run();
    assert_eq!(two.a.polled()[0].opcode(), 0);
    let got = two.b.polled();
    assert_eq!((got[0].opcode(), got[0].byte_cnt(), got[0].word(0x24)), (3, 45, 9));
    // GRH in the buffer, IPv4, source queue pair.
    assert_eq!(got[0].word(0x18), 1 << 28 | 2 << 24 | qa.qpn);
    let bytes = two.b.read(0, 45);
    assert_eq!(bytes[20..24], [0x45, 0x02, 0, 0x40], "the IPv4 header, at its end");
    assert_eq!(bytes[32..40], [192, 168, 0, 1, 192, 168, 0, 2]);
    assert_eq!(&bytes[40..], b"hello");
}

#[test]
fn a_wrong_qkey_is_dropped_and_counted() {
    let mut two = Two::new();
    let (mut qa, mut qb) = pair(&mut two, UD);
    two.b.post_receive(&mut qb, 0, 1000);
    for (qkey, arrives) in [(QKEY + 1, false), (1 << 31, true)] {
        let mut segments = to(&two.b, qkey, qb.qpn);
        segments.extend(inline(&[1]));
        two.a.post_send(&mut qa, &work(SEND), &segments);
        two.run();
        assert_eq!(two.b.polled().len(), usize::from(arrives), "Q_Key {qkey:#x}");
    }
    assert_eq!(two.b.host.nic.datapath().roce_drops().qkey, 1);
    let context = two.b.host.ok(&input(0x10, &[(0, 0x0754_0000)]), 0x110);
    assert_eq!(context.word(0x10 + 0x68) >> 16, 1, "the vport counts it as well");
}

#[test]
fn ports_count_these_packets_apart_from_those_of_ethernet() {
    let mut two = Two::new();
    let (mut qa, mut qb) = pair(&mut two, UD);
    two.b.post_receive(&mut qb, 0, 1000);
    let mut segments = to(&two.b, QKEY, qb.qpn);
    segments.extend(inline(b"hello"));
    two.a.post_send(&mut qa, &work(SEND), &segments);
    let mut segments = av(QKEY, 0xff_ffff, [1, 0, 0x5e, 1, 2, 3], [239, 1, 2, 3]);
    segments.extend(inline(b"hello"));
    two.a.post_send(&mut qa, &work(SEND), &segments);
    two.run();
    // Headers of 14, 20, 8, 12 and 8 bytes, 5 bytes and 3 of padding, ICRC.
    for (peer, [unicast, multicast]) in [(&mut two.a, [0x40, 0x60]), (&mut two.b, [0x30, 0x50])] {
        let counters = peer.host.ok(&input(0x20, &[(0, 0x0770_0000)]), 0x210);
        for (at, word) in (0x10..0x210).step_by(4).map(|at| (at, counters.word(at))) {
            let expected = match at {
                _ if [unicast + 4, multicast + 4].contains(&at) => 1,
                _ if [unicast + 12, multicast + 12].contains(&at) => 74,
                _ => 0,
            };
            assert_eq!(word, expected, "at {at:#x}");
        }
    }
    // The port counts both. PPCNT, group 1: unicast received, multicast received.
    let mut bytes = words(&[0x0805_0000, 1, 0x5008, 0, 1 << 16 | 1]);
    bytes.resize(0x10 + 256, 0);
    let counters = two.b.host.ok(&bytes, 0x10 + 256);
    assert_eq!([counters.word(0x10 + 8 + 12), counters.word(0x10 + 8 + 76)], [1, 1]);
}

#[test]
fn a_datagram_without_a_receive_is_lost_and_one_too_long_leaves_the_receive_to_others() {
    let mut two = Two::new();
    let (mut qa, mut qb) = pair(&mut two, UD);
    let mut segments = to(&two.b, QKEY, qb.qpn);
    segments.extend(inline(&[1; 8]));
    two.a.post_send(&mut qa, &work(SEND), &segments);
    two.run();
    assert_eq!(two.a.polled()[0].opcode(), 0, "nobody tells the sender");
    assert!(two.b.polled().is_empty());
    assert_eq!(two.b.host.nic.state().port.counters.rx_out_of_buffer, 1);
    two.b.post_receive(&mut qb, 0, 47);
    two.a.post_send(&mut qa, &work(SEND), &segments);
    two.run();
    assert!(two.b.polled().is_empty(), "48 bytes do not fit 47");
    assert_eq!(two.b.host.nic.datapath().roce_drops().too_long, 1);
    assert_eq!(two.b.state(&qb), 3, "receiving goes on");
    let mut shorter = to(&two.b, QKEY, qb.qpn);
    shorter.extend(inline(&[2; 7]));
    two.a.post_send(&mut qa, &work(SEND), &shorter);
    two.run();
    let got = two.b.polled();
    assert_eq!((got[0].opcode(), got[0].byte_cnt(), got[0].wqe_counter()), (2, 47, 0));
    let mut segments = to(&two.b, QKEY, qb.qpn);
    segments.extend(two.a.sge(0, MTU as u32 + 1));
    two.a.polled();
    two.a.post_send(&mut qa, &work(SEND), &segments);
    two.run();
    assert_eq!(two.a.polled()[0].syndrome(), 0x01, "longer than the MTU");
    assert_eq!(two.a.state(&qa), 4, "send queue error: receiving goes on");
}

#[test]
fn management_datagrams_go_from_queue_pair_one_to_queue_pair_one() {
    let mut two = Two::new();
    let (mut qa, mut qb) = pair(&mut two, GSI);
    two.b.post_receive(&mut qb, 0, 1000);
    let mut segments = to(&two.b, 0x8001_0000, 1);
    two.a.write(0, &pattern(256, 4));
    segments.extend(two.a.sge(0, 256));
    two.a.post_send(&mut qa, &work(SEND), &segments);
    two.run();
    let got = two.b.polled();
    assert_eq!((got[0].opcode(), got[0].byte_cnt()), (2, 296));
    assert_eq!(got[0].word(0x18) & 0xff_ffff, 1, "from QP 1");
    assert_eq!(got[0].word(0x24), 0xffff, "P_Key");
    assert_eq!(two.b.read(40, 256), pattern(256, 4));
}

#[test]
fn queue_pair_one_has_a_qkey_of_its_own() {
    let mut two = Two::new();
    let (mut qa, _) = pair(&mut two, UD);
    let mut gsi = two.b.create_qp(GSI);
    let (_, to_a) = two.targets(&qa, &gsi);
    two.b.connect(&gsi, GSI, &to_a, 0);
    two.b.post_receive(&mut gsi, 0, 1000);
    // 1 << 31 takes the sender's own.
    for qkey in [1, 1 << 31] {
        let mut segments = to(&two.b, qkey, 1);
        segments.extend(inline(&[1]));
        two.a.post_send(&mut qa, &work(SEND), &segments);
        two.run();
    }
    assert!(two.b.polled().is_empty());
    assert_eq!(two.b.host.nic.datapath().roce_drops().qkey, 2);
}

#[test]
fn a_group_reaches_its_members_only() {
    let mut two = Two::new();
    let (mut qa, mut qb) = pair(&mut two, UD);
    let mut other = two.b.create_qp(UD);
    let (_, to_a) = two.targets(&qa, &qb);
    two.b.connect(&other, UD, &to_a, 0);
    let group = [239, 1, 2, 3];
    let mut attach = input(0x20, &[(0, 0x0806_0000), (8, qb.qpn)]);
    attach[0x10..].copy_from_slice(&mapped(group));
    two.b.host.ok(&attach, 0x10);
    two.b.post_receive(&mut qb, 0, 100);
    two.b.post_receive(&mut other, 200, 100);
    let mut segments = av(QKEY, 0xff_ffff, [1, 0, 0x5e, 1, 2, 3], group);
    segments.extend(inline(b"all"));
    two.a.post_send(&mut qa, &work(SEND), &segments);
    two.run();
    let got = two.b.polled();
    assert_eq!((got.len(), got[0].word(0x38) & 0xff_ffff), (1, qb.qpn));
    assert_eq!(two.b.read(40, 3), b"all");
}

#[test]
fn an_unreliable_connection_sends_without_answers() {
    let mut two = Two::new();
    let (mut qa, mut qb) = two.connected(UC);
    let len = 3 * MTU + 5;
    two.a.write(0, &pattern(len, 1));
    two.b.post_receive(&mut qb, 0, len as u32);
    two.a.post_send(&mut qa, &work(SEND), &two.a.sge(0, len as u32));
    two.run();
    assert_eq!((two.a.polled().len(), two.b.polled().len()), (1, 1));
    assert_eq!(two.b.read(0, len), pattern(len, 1));
    assert_eq!(two.a.host.nic.state().port.counters.rx().packets, 0, "no acknowledgement");
}

#[test]
fn an_unreliable_connection_loses_what_its_peer_did_wrong_and_keeps_the_receive() {
    let mut two = Two::new();
    let (mut qa, mut qb) = two.connected(UC);
    let room = MTU + 10;
    two.b.post_receive(&mut qb, 0, room as u32);
    // In one packet, at its third packet, and at its last.
    for len in [MTU, 3 * MTU, room + 1] {
        if len == MTU {
            // A key that reaches nothing: the immediate would take the receive.
            let mut segments = Peer::raddr(&two.b, 0, two.b.key ^ 1);
            segments.extend(two.a.sge(0, len as u32));
            two.a.post_send(&mut qa, &work(WRITE_IMM), &segments);
        } else {
            two.a.post_send(&mut qa, &work(SEND), &two.a.sge(0, len as u32));
        }
        two.run();
        assert_eq!(two.a.polled()[0].opcode(), 0, "nobody tells the sender");
        assert!(two.b.polled().is_empty(), "{len} bytes");
        assert_eq!(two.b.state(&qb), 3, "receiving goes on after {len} bytes");
    }
    assert_eq!(two.b.host.nic.datapath().roce_drops().too_long, 2);
    two.a.write(0, &pattern(room, 7));
    two.a.post_send(&mut qa, &work(SEND), &two.a.sge(0, room as u32));
    two.run();
    let got = two.b.polled();
    assert_eq!((got.len(), got[0].opcode(), got[0].wqe_counter()), (1, 2, 0), "the same receive");
    assert_eq!(two.b.read(0, room), pattern(room, 7));
    assert!(two.b.events().iter().all(|(kind, _)| *kind == 0), "completions only");
}

#[test]
fn a_fault_of_the_receive_ends_an_unreliable_connection() {
    let mut two = Two::new();
    let (mut qa, mut qb) = two.connected(UC);
    let addr = two.b.memory.iova();
    let foreign = data(100, two.b.key ^ 1, addr);
    two.b.post_receive_raw(&mut qb, &foreign);
    two.a.post_send(&mut qa, &work(SEND), &inline(&[1; 8]));
    two.run();
    assert_eq!(two.b.polled()[0].syndrome(), 0x04, "local protection");
    assert_eq!(two.b.state(&qb), 6);
}
