//! Packets reach a queue pair by their IP addresses, not by their MAC address alone.

use crate::common::roce::{
    Peer, QKEY, TIMEOUT, Target, TestQp, Two, UC, UD, av, init2rtr, inline, mapped, rtr2rts, work,
};

const SEND: u32 = 0x0a;
/// An address that neither port has.
const NOBODY: [u8; 4] = [192, 168, 0, 9];

/// RST to RTS over the entry `index` of the address table.
fn connect(peer: &mut Peer, qp: &TestQp, to: &Target, index: u8) {
    peer.enter_init(qp, UC);
    let mut bytes = init2rtr(qp.qpn, to);
    bytes[0x39] = index;
    peer.host.ok(&bytes, 0x10);
    peer.host.ok(&rtr2rts(qp.qpn, to, TIMEOUT), 0x10);
}

/// Sends one message from `a`, whose end is changed; gives what arrived and what was dropped.
fn sent_by(index: u8, change: impl FnOnce(&mut Target)) -> (usize, u64) {
    let mut two = Two::new();
    let (mac, ip) = (two.a.mac, two.a.ip);
    two.a.set_gid(1, NOBODY, mac);
    two.a.set_gid_v1(2, mapped(ip), mac);
    let (mut qa, mut qb) = (two.a.create_qp(UC), two.b.create_qp(UC));
    let (mut to_b, to_a) = two.targets(&qa, &qb);
    change(&mut to_b);
    connect(&mut two.a, &qa, &to_b, index);
    connect(&mut two.b, &qb, &to_a, 0);
    two.b.post_receive(&mut qb, 0, 100);
    two.a.post_send(&mut qa, &work(SEND), &inline(b"hello"));
    two.run();
    (two.b.polled().len(), two.b.host.nic.datapath().roce_drops().address)
}

#[test]
fn a_connection_takes_what_its_peer_sends_to_its_own_address() {
    assert_eq!(sent_by(0, |_| {}), (1, 0));
    assert_eq!(sent_by(0, |to| to.ip = NOBODY), (0, 1), "to another address");
    assert_eq!(sent_by(1, |_| {}), (0, 1), "from another address");
    assert_eq!(sent_by(2, |_| {}), (0, 1), "the same addresses, version 1");
}

#[test]
fn a_datagram_comes_to_an_address_of_the_port() {
    let mut two = Two::new();
    let (mut qa, mut qb) = two.connected(UD);
    let mac = two.b.mac;
    for (number, ip) in [NOBODY, [239, 1, 2, 3]].into_iter().enumerate() {
        two.b.post_receive(&mut qb, 0, 100);
        let mut segments = av(QKEY, qb.qpn, mac, ip);
        segments.extend(inline(&[1]));
        two.a.post_send(&mut qa, &work(SEND), &segments);
        two.run();
        assert!(two.b.polled().is_empty(), "{ip:?}");
        assert_eq!(two.b.host.nic.datapath().roce_drops().address, number as u64 + 1);
    }
    // Any entry of the table will do.
    two.b.set_gid(5, NOBODY, mac);
    let mut segments = av(QKEY, qb.qpn, mac, NOBODY);
    segments.extend(inline(&[1]));
    two.a.post_send(&mut qa, &work(SEND), &segments);
    two.run();
    assert_eq!(two.b.polled().len(), 1);
}
