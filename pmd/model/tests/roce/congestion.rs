//! Congestion on the way: marks, notifications, their parameters and counters.

use crate::common;
use crate::common::roce::{Peer, RC, Target, Two, UD, av, inline, pattern, work};
use crate::common::{input, words};
use ferrocx_model::datapath::packet::Packet;
use ferrocx_model::roce::Psn;
use ferrocx_model::roce::bth::{Header, Op, Transport};
use ferrocx_model::roce::packet::{Frame, IpPair, Path, seal};
use ferrocx_model::wire::{Fcs, Impair, ImpairConfig, Link, SplitMix64, Wire, link};

const SEND: u32 = 0x0a;
const BAD_PARAM: u8 = 0x03;

/// A connection of `a` to nobody.
const TO: Target = Target {
    qpn: 0x118,
    mac: [2, 0, 0, 0, 0, 2],
    ip: [192, 168, 0, 2],
    send_psn: 0,
    receive_psn: 0,
    retry: 7,
    rnr_retry: 7,
};

/// Sends a packet to `a`, with these bits of the type of service.
fn arrive(wire: &mut Link, a: &Peer, tos: u8, header: &Header, payload: &[u8]) {
    let ip = IpPair::V4 { src: TO.ip, dst: a.ip };
    let path = Path {
        dmac: a.mac,
        smac: TO.mac,
        vlan: None,
        ip,
        tos,
        ttl: 64,
        flow_label: 0,
        sport: 0xc000,
    };
    let room = wire.reserve(path.frame_bytes(header, payload.len())).expect("room");
    let at = path.write(header, payload.len(), room);
    room[at.clone()].copy_from_slice(payload);
    seal(&path, room, at);
    wire.commit(0, Fcs::Good);
    wire.flush(0);
}

/// Everything that `a` has sent, by opcode.
fn sent(wire: &mut Link) -> Vec<(u8, Vec<u8>)> {
    std::iter::from_fn(|| wire.receive(0).map(|frame| (frame.bytes[42], frame.bytes.to_vec())))
        .collect()
}

/// QUERY_CONG_STATISTICS: ignored, handled, marked, sent.
fn statistics(peer: &mut Peer, clear: bool) -> [u32; 4] {
    let done = peer.host.ok(&words(&[0x0826_0000, 0, u32::from(clear) << 31, 0]), 0x110);
    [0x1c, 0x24, 0x58, 0x60].map(|at| done.word(at))
}

#[test]
fn a_marked_packet_is_answered_by_a_notification_with_these_bytes() {
    let (mut ours, theirs) = link(1 << 20);
    let mut a = Peer::new(1, theirs);
    let mut qp = a.create_qp(RC);
    a.connect(&qp, RC, &TO, 0);
    for number in 0..4 {
        a.post_receive(&mut qp, number * 64, 64);
    }
    let send = |psn| Header::new(Transport::Rc, Op::SendOnly, qp.qpn, Psn::new(psn));
    // ECT(0): it could tell of congestion, and met none.
    arrive(&mut ours, &a, 2, &send(0), &[1; 4]);
    a.host.step();
    assert!(sent(&mut ours).is_empty());
    arrive(&mut ours, &a, 3, &send(1), &[1; 4]);
    a.host.step();
    let frames = sent(&mut ours);
    assert_eq!(frames.len(), 1);
    // As a ConnectX-4 Lx sends it: code point 48, ECT(0), length 0x3c; BECN and nothing else in the
    // flags; sixteen bytes of zero. Addresses, port and queue pair are those of this flow.
    let expected = [
        &[0x45, 0xc2, 0, 0x3c, 0, 0, 0x40, 0, 64, 0x11][..],
        &frames[0].1[24..26],
        &[192, 168, 0, 1, 192, 168, 0, 2, 0xc1, 0x23, 0x12, 0xb7, 0, 0x28, 0, 0],
        &[0x81, 0, 0xff, 0xff, 0x40, 0, 0x01, 0x18, 0, 0, 0, 0],
        &[0; 16],
    ]
    .concat();
    assert_eq!(frames[0].1[14..70], expected[..]);
    let packet = Packet::parse(&frames[0].1);
    let frame = Frame::parse(&frames[0].1, &packet).expect("a good frame");
    assert_eq!((frame.header.op, frame.payload), (Op::Notification, &[0; 16][..]));
    // At most one in four microseconds, and every mark counts; a step takes one microsecond.
    for (psn, count) in [(2, 0), (3, 0)] {
        arrive(&mut ours, &a, 3, &send(psn), &[1; 4]);
        a.host.step();
        assert_eq!(sent(&mut ours).len(), count, "PSN {psn}");
    }
    assert_eq!(statistics(&mut a, true), [0, 0, 3, 1]);
    assert_eq!(statistics(&mut a, false), [0; 4], "cleared");
}

#[test]
fn a_notification_is_handled_by_connections_only() {
    let (mut ours, theirs) = link(1 << 20);
    let mut a = Peer::new(1, theirs);
    let (rc, ud) = (a.create_qp(RC), a.create_qp(UD));
    a.connect(&rc, RC, &TO, 0);
    a.connect(&ud, UD, &TO, 0);
    for (qpn, expected) in [(rc.qpn, [0, 1, 0, 0]), (ud.qpn, [1, 1, 0, 0]), (0x7777, [1, 1, 0, 0])]
    {
        let header = Header::new(Transport::Cnp, Op::Notification, qpn, Psn::new(0));
        arrive(&mut ours, &a, 0xc3, &header, &[0; 16]);
        a.host.step();
        assert_eq!(statistics(&mut a, false), expected, "queue pair {qpn:#x}");
    }
    assert_eq!(a.host.nic.datapath().roce_drops().no_queue, 1);
    assert!(sent(&mut ours).is_empty(), "a marked notification brings forth none");
    // MODIFY_CONG_STATUS: the reaction point of priority 0 off.
    a.host.ok(&words(&[0x0823_0000, 0, 1, 0]), 0x10);
    let header = Header::new(Transport::Cnp, Op::Notification, rc.qpn, Psn::new(0));
    arrive(&mut ours, &a, 0, &header, &[0; 16]);
    a.host.step();
    assert_eq!(statistics(&mut a, false), [2, 1, 0, 0]);
}

#[test]
fn who_reacts_says_that_it_can_be_told() {
    let (mut ours, theirs) = link(1 << 20);
    let mut a = Peer::new(1, theirs);
    let mut qp = a.create_qp(RC);
    a.connect(&qp, RC, &TO, 0);
    for (enable, tos) in [(1, 2), (0, 0)] {
        a.host.ok(&words(&[0x0823_0000, 0, 1, enable << 31]), 0x10);
        let status = a.host.ok(&words(&[0x0822_0000, 0, 1, 0]), 0x10);
        assert_eq!(status.word(0xc) >> 31, enable);
        a.post_send(&mut qp, &work(SEND), &inline(&[1]));
        a.host.step();
        assert_eq!(sent(&mut ours)[0].1[15], tos);
    }
}

#[test]
fn marks_on_a_cable_reach_both_sides() {
    let (to_b, to_a) = link(1 << 20);
    let config = ImpairConfig { congestion_ppm: 1_000_000, ..ImpairConfig::default() };
    let mut two = Two::on(Impair::new(to_b, config, SplitMix64::new(1)), to_a);
    let (mut qa, mut qb) = two.connected(RC);
    two.a.write(0, &pattern(4000, 1));
    two.b.post_receive(&mut qb, 0, 4000);
    two.a.post_send(&mut qa, &work(SEND), &two.a.sge(0, 4000));
    two.run();
    assert_eq!(two.b.read(0, 4000), pattern(4000, 1));
    let (of_a, of_b) = (statistics(&mut two.a, false), statistics(&mut two.b, false));
    assert_eq!(of_b[2], 16, "every packet of the message");
    assert!(of_b[3] >= 1 && of_b[3] < 16, "{of_b:?}");
    assert_eq!((of_a[1], of_b[3]), (of_b[3], of_a[1]), "all of them arrive");
    // A datagram counts and is not answered: it has no flow.
    let (mut ua, mut ub) = two.connected(UD);
    two.b.post_receive(&mut ub, 0, 100);
    let mut segments = av(common::roce::QKEY, ub.qpn, two.b.mac, two.b.ip);
    segments.extend(inline(&[1]));
    two.a.post_send(&mut ua, &work(SEND), &segments);
    two.run();
    let after = statistics(&mut two.b, false);
    assert_eq!((after[2], after[3]), (of_b[2] + 1, of_b[3]));
}

#[test]
fn parameters_are_read_and_written_a_part_at_a_time() {
    let (_ours, theirs) = link(1 << 20);
    let mut a = Peer::new(1, theirs);
    let query = |protocol: u32| words(&[0x0824_0000, 0, protocol, 0]);
    let before = a.host.ok(&query(2), 0x110);
    assert_eq!((before.word(0x24), before.word(0x28)), (4, 48 << 8 | 6));
    assert_eq!(a.host.ok(&query(1), 0x110).word(0x34), 5, "rp_ai_rate");
    let modify = |protocol: u32, select: u32| {
        input(0x120, &[(0, 0x0825_0000), (8, protocol), (0xc, select), (0x34, 9), (0x38, !0)])
    };
    a.host.ok(&modify(2, 1 << 2), 0x10);
    let after = a.host.ok(&query(2), 0x110);
    assert_eq!((after.word(0x24), after.word(0x28)), (9, 48 << 8 | 6), "only what is selected");
    assert_eq!(a.host.refused(&modify(2, 1 << 9), BAD_PARAM), "field_select");
    assert_eq!(a.host.refused(&modify(3, 0), BAD_PARAM), "cong_protocol");
    assert_eq!(a.host.refused(&query(0), BAD_PARAM), "cong_protocol");
    assert_eq!(a.host.refused(&words(&[0x0822_0000, 0, 8 << 4 | 1, 0]), BAD_PARAM), "priority");
    let tagged = words(&[0x0823_0000, 0, 1, 1 << 30]);
    assert_eq!(a.host.refused(&tagged, BAD_PARAM), "tag_enable");
}
