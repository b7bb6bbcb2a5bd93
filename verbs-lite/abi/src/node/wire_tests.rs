//! Two ports of one machine, each in a process of its own as far as the wire can tell.

use super::*;
use crate::node::address::Address;
use crate::node::local::{LocalSocket, Told};
use crate::node::peers::BELIEF_NS;
use crate::node::ring::WAIT_NS;
use crate::node::sockets::There;

fn port(ip: IpAddr) -> HostWire {
    let address = Address::read(&ip.to_string()).unwrap();
    let mut wire = HostWire::new(Arc::new(Sockets::bind(address).unwrap()));
    wire.adopt();
    wire
}

/// An address of a test: each of each process has addresses of its own.
fn ip(test: u8, host: u8) -> IpAddr {
    let process = (1 + std::process::id() % 254) as u8;
    [127, process, test, host].into()
}

/// Two ports, and the address of the second.
fn pair(test: u8) -> (HostWire, HostWire, IpAddr) {
    let [own, to] = [1, 2].map(|host| ip(test, host));
    (port(own), port(to), to)
}

/// A frame to a port that says its number.
fn frame_to(to: IpAddr, number: u16) -> Vec<u8> {
    let mut frame = vec![0x5a; 4096];
    frame[..6].copy_from_slice(&mac_of(to));
    frame[6..8].copy_from_slice(&number.to_be_bytes());
    frame
}

fn send(wire: &mut HostWire, to: IpAddr, number: u16, now_ns: u64) -> bool {
    let Some(room) = wire.reserve(4096) else { return false };
    room.copy_from_slice(&frame_to(to, number));
    wire.commit(now_ns, Fcs::Good);
    true
}

/// What arrived, as numbers.
fn receive(wire: &mut HostWire, now_ns: u64) -> Vec<u16> {
    let (mut out, ip) = (Vec::new(), wire.sockets.address.ip);
    while let Some(received) = wire.receive(now_ns) {
        let number = u16::from_be_bytes([received.bytes[6], received.bytes[7]]);
        assert_eq!((received.bytes, received.fcs), (&frame_to(ip, number)[..], Fcs::Good));
        out.push(number);
    }
    out
}

#[test]
fn a_slow_receiver_is_waited_for_and_loses_nothing() {
    let (mut a, mut b, to) = pair(1);
    assert!(Sockets::bind(b.sockets.address).is_err(), "an address is one process's");
    let (mut sent, mut got) = (0_u16, 0);
    while got < 2000 {
        while sent < 2000 && send(&mut a, to, sent, 0) {
            sent += 1;
        }
        a.flush(0);
        assert!(sent == 2000 || sent > got, "the sender goes on when there is room");
        for _ in 0..7 {
            let Some(received) = b.receive(0) else { break };
            assert_eq!(received.bytes, frame_to(to, got));
            got += 1;
        }
    }
    assert_eq!((a.peers.lost, b.receive(0).is_none()), (0, true));
    assert!(a.is_private(&mac_of(to)), "by the ring");
}

#[test]
fn a_process_that_takes_the_place_of_another_gets_a_ring_of_its_own() {
    let (mut a, mut b, to) = pair(2);
    assert!(send(&mut a, to, 1, 0));
    assert_eq!(receive(&mut b, 0), [0; 0]);
    a.flush(0);
    assert_eq!(receive(&mut b, 0), [1]);
    drop(b);
    let mut b = port(to);
    // This one goes to the ring that nobody reads, and shows that later.
    assert!(send(&mut a, to, 2, 1));
    a.flush(1);
    let mut now_ns = BELIEF_NS;
    for number in 3..6 {
        now_ns += BELIEF_NS;
        assert!(send(&mut a, to, number, now_ns));
        a.flush(now_ns);
        assert_eq!(receive(&mut b, now_ns).len() + receive(&mut a, now_ns).len(), 0);
        a.receive(now_ns);
        a.flush(now_ns);
        let got = receive(&mut b, now_ns);
        if got == [number] {
            return;
        }
    }
    panic!("the new process never got a frame");
}

#[test]
fn a_peer_that_is_gone_loses_its_frames_and_holds_nobody_up() {
    let (mut a, mut b, to) = pair(3);
    assert!(send(&mut a, to, 1, 0));
    a.flush(0);
    receive(&mut b, 0);
    a.flush(0);
    drop(b);
    let mut sent = 0;
    for round in 1..400 {
        // Ten milliseconds each.
        sent += u32::from(send(&mut a, to, 2, round * 10_000_000));
        a.flush(round * 10_000_000);
    }
    assert!(sent > 200, "the port stood still: {sent} frames in four seconds");
    assert!(lock(&a.sockets.rings).outbound.is_empty(), "the ring is given back");
}

#[test]
fn what_was_sent_arrives_though_its_sender_has_ended_before_anybody_looked() {
    let (mut a, mut b, to) = pair(4);
    assert!(send(&mut a, to, 1, 0) && send(&mut a, to, 2, 0));
    a.flush(0);
    drop(a);
    assert_eq!(receive(&mut b, 0), [0; 0], "that was the offer");
    assert_eq!(receive(&mut b, 0), [1, 2]);
}

/// A RoCEv2 frame to a port, of an operation.
fn roce_to(to: IpAddr, operation: u8) -> Vec<u8> {
    let mut frame = vec![0; 62];
    frame[..6].copy_from_slice(&mac_of(to));
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[23] = 17;
    frame[36..38].copy_from_slice(&4791_u16.to_be_bytes());
    frame[42] = operation;
    frame
}

/// Sends frames of operations as one burst.
fn burst(wire: &mut HostWire, to: IpAddr, operations: &[u8], now_ns: u64) {
    for operation in operations {
        wire.reserve(62).unwrap().copy_from_slice(&roce_to(to, *operation));
        wire.commit(now_ns, Fcs::Good);
    }
    wire.flush(now_ns);
}

/// The operations that arrived.
fn operations(wire: &mut HostWire, now_ns: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(received) = wire.receive(now_ns) {
        out.push(received.bytes[42]);
    }
    out
}

#[test]
fn an_acknowledgement_of_who_was_answered_itself_is_taken_with_what_follows() {
    // Operations by reference 7.2, of reliable connections and of extended ones.
    let (write, acknowledge, atomic) = (0x0a, 0x11, 0xb2);
    let (mut a, mut b, to_b) = pair(5);
    let to_a = a.sockets.address.ip;
    for (wire, to) in [(&mut a, to_b), (&mut b, to_a)] {
        burst(wire, to, &[write], 0);
    }
    assert_eq!((operations(&mut a, 0), operations(&mut b, 0)), (vec![], vec![]), "the offers");
    assert_eq!((operations(&mut a, 0), operations(&mut b, 0)), (vec![write], vec![write]));
    // Nobody here waits for an answer: it goes at once.
    for wire in [&mut a, &mut b] {
        wire.flush(0);
    }
    burst(&mut a, to_b, &[acknowledge], 10);
    assert_eq!(operations(&mut b, 10), [acknowledge]);
    // Here somebody was answered, and what they ask for next takes the acknowledgement along.
    burst(&mut b, to_a, &[acknowledge], 20);
    assert_eq!(operations(&mut a, 20), [], "it waits, too");
    burst(&mut b, to_a, &[write], 21);
    assert_eq!(operations(&mut a, 21), [acknowledge, write]);
    burst(&mut a, to_b, &[acknowledge], 22);
    assert_eq!(operations(&mut b, 22), []);
    assert_eq!(operations(&mut b, 22 + WAIT_NS), [acknowledge]);
    // That was one burst: the next one's answers go at once.
    a.flush(30_000);
    burst(&mut a, to_b, &[acknowledge], 30_000);
    assert_eq!(operations(&mut b, 30_000), [acknowledge]);
    b.flush(30_000);
    // Only acknowledgements wait: other answers bring what a program looks for.
    burst(&mut b, to_a, &[write, atomic], 30_001);
    assert_eq!(operations(&mut a, 30_001), [write, atomic]);
    burst(&mut a, to_b, &[atomic], 30_002);
    assert_eq!(operations(&mut b, 30_002), [atomic]);
    // Of every transport that is acknowledged.
    burst(&mut b, to_a, &[0xb1], 30_003);
    assert_eq!(operations(&mut a, 30_003), []);
}

#[test]
fn a_call_that_somebody_else_took_is_made_again() {
    let (mut a, mut b, to) = pair(6);
    assert!(send(&mut a, to, 1, 0));
    a.flush(0);
    assert_eq!(receive(&mut b, 0), [0; 0], "that was the offer");
    assert_eq!(receive(&mut b, 0), [1]);
    let called = |wire: &HostWire| {
        let fd = wire.sockets.fds().0;
        let mut polled = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut polled, Some(&rustix::time::Timespec::default())).unwrap() > 0
    };
    // One thread sleeps, as far as the peer knows, until it is called.
    assert_eq!(b.sockets.sleep(0, true), There::Nothing);
    assert!(send(&mut a, to, 2, 1_000_000));
    a.flush(1_000_000);
    assert!(called(&b));
    // Another one takes the call and what it is for.
    b.sockets.look();
    assert_eq!(receive(&mut b, 1_000_000), [2]);
    assert!(!called(&b));
    assert!(send(&mut a, to, 3, 1_000_001));
    a.flush(1_000_001);
    a.flush(1_000_000 + QUIET_NS - 1);
    assert!(!called(&b), "somebody is at it");
    assert_eq!(a.sockets.sleep(0, true), There::PutOff);
    a.flush(1_000_000 + QUIET_NS);
    assert!(called(&b), "the first one sleeps still");
    assert_eq!(a.sockets.sleep(0, true), There::Nothing);
    assert_eq!(b.sockets.sleep(0, true), There::Records);
}

#[test]
fn an_acknowledgement_of_a_process_that_has_ended_outlasts_the_offer_of_another() {
    let (mut a, mut b, to_b) = pair(7);
    let to_a = a.sockets.address.ip;
    burst(&mut a, to_b, &[0x0a], 0);
    burst(&mut b, to_a, &[0x0a, 0x11], 0);
    assert_eq!((operations(&mut a, 0), operations(&mut b, 0)), (vec![], vec![]), "the offers");
    assert_eq!((operations(&mut a, 0), operations(&mut b, 0)), (vec![0x0a, 0x11], vec![0x0a]));
    burst(&mut a, to_b, &[0x11], 0);
    drop(a);
    let mut other = port(ip(7, 3));
    burst(&mut other, to_b, &[0x04], 0);
    assert_eq!(operations(&mut b, LOOK_NS), [], "it waits, and the offer is read");
    assert_eq!(operations(&mut b, LOOK_NS + WAIT_NS), [0x04, 0x11]);
}

#[test]
fn a_port_that_was_called_by_its_link_local_address_before_it_was_there_is_found() {
    let mut a = port(ip(8, 1));
    let to = ip(8, 2);
    // Of the MAC address 02:00:7f:59:08:02.
    let link_local: std::net::Ipv6Addr = "fe80::7fff:fe59:802".parse().unwrap();
    let mut frame = vec![0; 82];
    frame[..6].copy_from_slice(&mac_of(to));
    frame[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
    frame[20] = 17;
    frame[38..54].copy_from_slice(&link_local.octets());
    frame[56..58].copy_from_slice(&4791_u16.to_be_bytes());
    let send = |wire: &mut HostWire, now_ns: u64| {
        wire.reserve(frame.len()).unwrap().copy_from_slice(&frame);
        wire.commit(now_ns, Fcs::Good);
        wire.flush(now_ns);
    };
    send(&mut a, 0);
    let mut b = port(to);
    send(&mut a, BELIEF_NS);
    assert!(b.receive(BELIEF_NS).is_none(), "that was the offer");
    assert_eq!(b.receive(BELIEF_NS).map(|received| received.bytes.to_vec()), Some(frame));
}

#[test]
fn a_peer_that_does_not_take_the_ring_gets_datagrams() {
    let mut a = port(ip(9, 1));
    let to = ip(9, 2);
    let b = LocalSocket::bind(to).unwrap();
    let mut inbox = vec![0; local::DATAGRAM_BYTES];
    assert!(send(&mut a, to, 1, 0));
    a.flush(0);
    // Before each, it is seen whether somebody is there.
    let next = |inbox: &mut [u8]| match b.receive(inbox) {
        Some(Came::Nothing) => b.receive(inbox),
        _ => None,
    };
    assert!(matches!(next(&mut inbox), Some(Came::Offer(..))));
    assert_eq!(b.refuse(a.sockets.address.ip), Told::Done);
    assert_eq!(receive(&mut a, 0), [0; 0]);
    assert!(send(&mut a, to, 2, 0));
    assert!(matches!(next(&mut inbox), Some(Came::Frame(4096))));
    assert_eq!(&inbox[1..4097], frame_to(to, 2));
}

#[test]
fn strangers_without_end_are_answered_and_leave_nothing_behind() {
    let (mut a, mut b, to) = pair(10);
    assert!(send(&mut a, to, 1, 0));
    a.flush(0);
    assert_eq!(receive(&mut b, 0), [0; 0], "that was the offer");
    assert_eq!(receive(&mut b, 0), [1]);
    for stranger in 0..5000_u32 {
        let [.., high, low] = stranger.to_be_bytes();
        assert!(send(&mut a, [198, 18, high, low].into(), 2, 0));
        a.flush(0);
        let (near, far) = a.peers.count();
        assert!(near == 1 && far <= 1024, "{near} peers are looked at, {far} are remembered");
    }
    assert!(send(&mut a, to, 3, 0));
    a.flush(0);
    assert_eq!(receive(&mut b, 0), [3], "by the same ring");
    // So do those of this machine that have ended.
    drop(b);
    let mut c = port(ip(10, 3));
    assert!(send(&mut a, c.sockets.address.ip, 4, 0));
    assert_eq!((receive(&mut c, 0), a.peers.count().0), (vec![], 1));
    assert_eq!(lock(&a.sockets.rings).outbound.len(), 1);
}

#[test]
fn datagrams_of_no_use_keep_no_call_for_long() {
    let (mut a, mut b, to) = pair(11);
    assert!(send(&mut a, to, 1, 0));
    a.flush(0);
    assert_eq!((receive(&mut b, 0), receive(&mut b, 0)), (vec![], vec![1]));
    // Of other machines: too short for RoCE, and one that is none too short.
    let stranger = std::net::UdpSocket::bind((ip(11, 3), 0)).unwrap();
    let to_b = std::net::SocketAddr::new(to, 4791);
    for datagram in std::iter::repeat_n(&[0; 1][..], 100).chain([&[0x5a; 16][..]]) {
        stranger.send_to(datagram, to_b).unwrap();
    }
    let now_ns = LOOK_NS;
    assert!(b.receive(now_ns).is_none(), "so many for each call");
    let len = b.receive(now_ns).map(|received| received.bytes.len());
    assert_eq!(len, Some(14 + 20 + 8 + 16), "it is looked for at once");
    assert!(b.receive(now_ns).is_none());
}
