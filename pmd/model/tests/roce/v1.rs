//! RoCEv1: the entry of the address table that a queue pair or a datagram names decides.

use crate::common;
use crate::common::input;
use crate::common::roce::{
    Peer, QKEY, RC, TIMEOUT, Target, TestQp, Two, UD, av, init2rtr, inline, mapped, pattern,
    rtr2rts, work,
};
use ferrocx_model::roce::packet::Frame;
use ferrocx_model::wire::{Wire, link};

const SEND: u32 = 0x0a;
const READ: u32 = 0x10;
const GSI: u32 = 8;
const BAD_PARAM: u8 = 0x03;

/// Index of the RoCEv1 entries here; 0 is RoCEv2.
const V1: u32 = 3;

/// A link-local GID.
fn gid(number: u8) -> [u8; 16] {
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, number]
}

fn with_v1(two: &mut Two) {
    for (peer, number) in [(&mut two.a, 1), (&mut two.b, 2)] {
        let mac = peer.mac;
        peer.set_gid_v1(V1, gid(number), mac);
    }
}

/// RST to RTS over the entry `index`, to the peer with this GID.
fn connect(peer: &mut Peer, qp: &TestQp, index: u32, to: &Target, remote: [u8; 16]) {
    peer.enter_init(qp, RC);
    let mut bytes = init2rtr(qp.qpn, to);
    bytes[0x39] = index as u8;
    // Class 0x5a and flow label 0x12345: those of the global route header.
    bytes[0x3c..0x40].copy_from_slice(&(0x5a << 20 | 0x1_2345_u32).to_be_bytes());
    bytes[0x40..0x50].copy_from_slice(&remote);
    peer.host.ok(&bytes, 0x10);
    peer.host.ok(&rtr2rts(qp.qpn, to, TIMEOUT), 0x10);
}

/// An address vector over the RoCEv1 entry.
fn av_v1(qkey: u32, qpn: u32, mac: [u8; 6], gid: [u8; 16]) -> Vec<u8> {
    let mut bytes = av(qkey, qpn, mac, [0; 4]);
    bytes[0x1c..0x20].copy_from_slice(&(1 << 30 | V1 << 20 | 0x12345).to_be_bytes());
    bytes[0x20..].copy_from_slice(&gid);
    bytes
}

#[test]
fn a_send_over_such_an_entry_has_these_bytes() {
    let (mut ours, theirs) = link(1 << 20);
    let mut a = Peer::new(1, theirs);
    a.set_gid_v1(V1, gid(1), [2, 0, 0, 0, 0, 1]);
    let mut qp = a.create_qp(RC);
    let to = Target {
        qpn: 0x12,
        mac: [2, 0, 0, 0, 0, 2],
        ip: [0; 4],
        send_psn: 0x345,
        receive_psn: 0,
        retry: 7,
        rnr_retry: 7,
    };
    connect(&mut a, &qp, V1, &to, gid(2));
    a.post_send(&mut qp, &work(SEND), &inline(&[0, 1, 2, 3]));
    a.host.step();
    let frame = ours.receive(0).expect("a frame").bytes.to_vec();
    let expected = [
        &[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x89, 0x15][..],
        &[0x65, 0xa1, 0x23, 0x45, 0, 0x14, 0x1b, 0x40],
        &gid(1),
        &gid(2),
        &[0x04, 0x40, 0xff, 0xff, 0, 0, 0, 0x12, 0x80, 0, 0x03, 0x45, 0, 1, 2, 3],
    ]
    .concat();
    assert_eq!(frame[..70], expected[..]);
    assert_eq!(frame.len(), 74, "and the ICRC");
}

#[test]
fn both_versions_work_side_by_side() {
    let mut two = Two::new();
    with_v1(&mut two);
    for (index, to_b, to_a) in [(0, mapped(two.b.ip), mapped(two.a.ip)), (V1, gid(2), gid(1))] {
        let (mut qa, mut qb) = (two.a.create_qp(RC), two.b.create_qp(RC));
        let (target_b, target_a) = two.targets(&qa, &qb);
        connect(&mut two.a, &qa, index, &target_b, to_b);
        connect(&mut two.b, &qb, index, &target_a, to_a);
        let bytes = pattern(1000, index as u8);
        two.a.write(0, &bytes);
        two.b.post_receive(&mut qb, 0, 1000);
        two.a.post_send(&mut qa, &work(SEND), &two.a.sge(0, 1000));
        let mut segments = Peer::raddr(&two.b, 0, two.b.key);
        segments.extend(two.a.sge(4000, 1000));
        two.a.post_send(&mut qa, &common::roce::Work { fence: 3, ..work(READ) }, &segments);
        two.run();
        assert_eq!(two.a.polled().len(), 2, "entry {index}");
        assert_eq!(two.b.polled().len(), 1);
        assert_eq!(two.a.read(4000, 1000), bytes);
    }
}

#[test]
fn a_datagram_brings_its_global_route_header() {
    let mut two = Two::new();
    with_v1(&mut two);
    let (mut qa, mut qb) = two.connected(UD);
    two.b.post_receive(&mut qb, 0, 1000);
    let mut segments = av_v1(QKEY, qb.qpn, two.b.mac, gid(2));
    segments.extend(inline(b"hello"));
    two.a.post_send(&mut qa, &work(SEND), &segments);
    two.run();
    let got = two.b.polled();
    assert_eq!((got[0].opcode(), got[0].byte_cnt()), (2, 45));
    // GRH in the buffer, L3 type 0.
    assert_eq!(got[0].word(0x18), 1 << 28 | qa.qpn);
    // Class 2 and the flow label of the address vector; BTH, DETH, 5 bytes, 3 of padding, ICRC.
    let grh = [&[0x60, 0x21, 0x23, 0x45, 0, 0x20, 0x1b, 0x40][..], &gid(1), &gid(2)].concat();
    assert_eq!(two.b.read(0, 40), grh);
    assert_eq!(two.b.read(40, 5), b"hello");
}

#[test]
fn management_datagrams_and_groups_too() {
    let mut two = Two::new();
    with_v1(&mut two);
    let (mut qa, mut qb) = two.connected(GSI);
    two.b.post_receive(&mut qb, 0, 1000);
    let mut segments = av_v1(0x8001_0000, 1, two.b.mac, gid(2));
    segments.extend(inline(&[7; 64]));
    two.a.post_send(&mut qa, &work(SEND), &segments);
    two.run();
    let got = two.b.polled();
    assert_eq!(got[0].word(0x18), 1 << 28 | 1, "from QP 1, L3 type 0");
    let (mut qa, mut qb) = two.connected(UD);
    let group = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5];
    let mut attach = input(0x20, &[(0, 0x0806_0000), (8, qb.qpn)]);
    attach[0x10..].copy_from_slice(&group);
    two.b.host.ok(&attach, 0x10);
    two.b.post_receive(&mut qb, 0, 100);
    let mut segments = av_v1(QKEY, 0xff_ffff, [0x33, 0x33, 0, 0, 0, 5], group);
    segments.extend(inline(b"all"));
    two.a.post_send(&mut qa, &work(SEND), &segments);
    two.run();
    assert_eq!(two.b.polled().len(), 1);
    assert_eq!(two.b.read(40, 3), b"all");
}

#[test]
fn a_spoiled_packet_is_counted_and_what_no_port_has_is_left_alone() {
    let (mut ours, theirs) = link(1 << 20);
    let mut a = Peer::new(1, theirs);
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x89, 0x15];
    frame.extend([0x60, 0, 0, 0, 0, 0x10, 0x1b, 0x40]);
    frame.extend([gid(2), gid(1)].concat());
    frame.extend([0x11, 0x40, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 0]);
    let mut send = |a: &mut Peer, frame: &[u8]| {
        let room = ours.reserve(frame.len()).expect("room");
        room.copy_from_slice(frame);
        ours.commit(0, ferrocx_model::wire::Fcs::Good);
        ours.flush(0);
        a.host.step();
        a.host.nic.datapath().roce_drops()
    };
    frame.extend([0; 4]);
    assert_eq!(send(&mut a, &frame).malformed, 1, "an ACK without its AETH");
    frame[14 + 40] = 0x01;
    assert_eq!(send(&mut a, &frame).icrc, 1);
    frame[5] = 9;
    let drops = send(&mut a, &frame);
    assert_eq!((drops.malformed, drops.icrc), (1, 1), "another port's");
    let packet = ferrocx_model::datapath::packet::Packet::parse(&frame);
    assert!(Frame::parse(&frame, &packet).is_err());
}

#[test]
fn entries_say_their_version() {
    let mut two = Two::new();
    with_v1(&mut two);
    let a = &mut two.a;
    let entry = a.host.ok(&input(0x10, &[(0, 0x0760_0000), (8, V1 << 16)]), 0x30);
    assert_eq!(entry.word(0x10 + 0x18) & 0xff, 0, "version 1 is 0");
    let set = |version: u32, l3_type: u32| {
        let word = l3_type << 8 | version;
        let mut bytes = input(0x30, &[(0, 0x0761_0000), (8, 5 << 16), (0x28, word)]);
        bytes[0x10..0x20].copy_from_slice(&gid(1));
        bytes[0x22..0x28].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        bytes
    };
    assert_eq!(a.host.refused(&set(1, 0), BAD_PARAM), "roce_version", "1.5");
    assert_eq!(a.host.refused(&set(3, 0), BAD_PARAM), "roce_version");
    assert_eq!(a.host.refused(&set(0, 1), BAD_PARAM), "roce_l3_type", "no IP in version 1");
    a.host.ok(&set(0, 0), 0x10);
}
