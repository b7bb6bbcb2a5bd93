//! Multicast groups: who gets a datagram that is sent to one, by IPv4 and IPv6.

use std::net::IpAddr;

use crate::common::{Side, Two, take};
use ferrocx_core::{MAX_MULTICAST, MacAddr};
use ferrocx_mempool::PageSize;
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::port::QueryNicVportContext;
use ferrocx_verbs_lite::net::{NetConfig, NetError, Network};
use ferrocx_verbs_lite::*;

const QKEY: u32 = 0x1122_3344;

fn group(text: &str) -> Gid {
    Gid::from(text.parse::<IpAddr>().unwrap())
}

/// Groups whose MAC addresses the device lets in.
fn let_in(side: &Side) -> u32 {
    let input = QueryNicVportContext::input().with_allowed_list_type(1);
    let device = side.context.device();
    // SAFETY: a question changes nothing.
    let output = unsafe { device.execute_raw::<QueryNicVportContext>(&input, &[], &mut []) };
    // Broadcast always stands in the list.
    output.unwrap().nic_vport_context().allowed_list_size() - 1
}

/// Sends a datagram to a group and returns how many arrived at `b`.
fn send(two: &mut Two, qa: &mut Qp, qbs: &mut [Qp], group: Gid) -> usize {
    let path = two.a.context.multicast_path(group).unwrap();
    let to = AddressHandle::new(&path, Qpn::MULTICAST, QKEY);
    let wr = SendWr::signaled(2, SendOp::Datagram { to: &to, imm: Some(7) });
    qa.post_send_inline(&wr, b"to all").unwrap();
    two.world.settle();
    assert!(take(&mut two.a.cq, qa).iter().all(|wc| wc.result.is_ok()));
    let mut got = 0;
    while let Some(completion) = two.b.cq.poll() {
        let qb = qbs.iter_mut().find(|qb| qb.qpn() == completion.qpn()).unwrap();
        qb.complete(completion, |wc| {
            assert_eq!((wc.result, wc.byte_len, wc.recv.imm), (Ok(()), 46, Some(7)));
            got += 1;
        })
        .unwrap();
    }
    got
}

#[test]
fn members_get_what_is_sent_to_their_group_and_nobody_else_does() {
    for (first, second) in [("239.1.2.3", "239.1.2.4"), ("ff02::1:7", "ff0e::1:8")] {
        let mut two = Two::new();
        let mb = two.b.mr();
        let mut qa = two.a.datagrams(QKEY);
        let mut qbs = [two.b.datagrams(QKEY), two.b.datagrams(QKEY)];
        let (first, second) = (group(first), group(second));
        for qb in &mut qbs {
            for id in 0..8 {
                qb.post_recv(id, mb.buf(0..1000).unwrap()).unwrap();
            }
        }
        assert_eq!(send(&mut two, &mut qa, &mut qbs, first), 0, "no member");
        qbs[0].attach_multicast(first).unwrap();
        qbs[0].attach_multicast(first).unwrap();
        qbs[1].attach_multicast(first).unwrap();
        qbs[1].attach_multicast(second).unwrap();
        assert_eq!(send(&mut two, &mut qa, &mut qbs, first), 2);
        assert_eq!(send(&mut two, &mut qa, &mut qbs, second), 1);
        qbs[1].detach_multicast(first).unwrap();
        assert_eq!(send(&mut two, &mut qa, &mut qbs, first), 1);
        assert!(matches!(qbs[1].detach_multicast(first), Err(VerbsError::NoRoute { .. })));
        assert_eq!(let_in(&two.b), 2, "both groups");
        let [q0, q1] = qbs;
        drop(q1);
        assert_eq!(let_in(&two.b), 1);
        drop(q0);
        assert_eq!(let_in(&two.b), 0, "nobody is left");
        drop(qa);
        two.world.assert_clean();
    }
}

#[test]
fn what_is_no_group_or_no_datagram_service_is_refused() {
    let two = Two::new();
    let mut qa = two.a.datagrams(QKEY);
    let unicast = group("192.168.0.2");
    assert!(matches!(qa.attach_multicast(unicast), Err(VerbsError::NoRoute { .. })));
    assert!(matches!(two.a.context.multicast_path(unicast), Err(VerbsError::NoRoute { .. })));
    let (mut rc, _peer) = two.connected::<Buf>();
    let refused = rc.attach_multicast(group("239.1.2.3")).unwrap_err();
    assert!(matches!(refused, VerbsError::Unsupported { .. }), "{refused}");
    assert_eq!(let_in(&two.a), 0);
    two.world.assert_clean();
}

#[test]
fn addresses_of_groups_are_those_of_the_standards() {
    for (ip, mac) in [
        ("239.129.2.3", Some([1, 0, 0x5e, 1, 2, 3])),
        ("224.0.0.1", Some([1, 0, 0x5e, 0, 0, 1])),
        ("ff02::1:ff28:9c5a", Some([0x33, 0x33, 0xff, 0x28, 0x9c, 0x5a])),
        ("10.0.0.1", None),
        ("fe80::1", None),
    ] {
        assert_eq!(group(ip).multicast_mac().map(|mac| mac.0), mac, "{ip}");
    }
}

#[test]
fn groups_of_addresses_that_found_no_room_are_counted_right() {
    let two = Two::new();
    let device = two.a.context.device();
    let before = let_in(&two.a);
    let config = NetConfig { page: PageSize::Base4K, ..NetConfig::default() };
    let mut net = Network::open(&two.a.context, &config).unwrap();
    // Room for one group more, and two addresses, each with a group of its own.
    let left = MAX_MULTICAST - 1 - let_in(&two.a) as usize;
    let others: Vec<_> = (0..left as u8).map(|n| MacAddr([1, 0, 0x5e, 9, 9, n])).collect();
    others.iter().for_each(|group| device.join_multicast(*group).unwrap());
    for address in ["fd00::11:1", "fd00::22:2"] {
        let address = address.parse().unwrap();
        let config = GidConfig { address, prefix_len: 64, gateway: None, vlan: None };
        two.a.context.add_gid(config).unwrap();
    }
    let neighbour = "fd00::33:3".parse().unwrap();
    for _ in 0..3 {
        let full = net.resolve(neighbour).unwrap_err();
        assert!(matches!(full, NetError::Device(_)), "{full}");
    }
    device.leave_multicast(others[0]).unwrap();
    assert_eq!(net.resolve(neighbour).unwrap(), None, "asked for");
    drop(net);
    others[1..].iter().for_each(|group| device.leave_multicast(*group).unwrap());
    assert_eq!(let_in(&two.a), before, "every join was taken back");
}
