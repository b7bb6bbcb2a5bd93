//! Offloads, several packets per WQE, wraps, and a wire that is full.

use etherparse::{PacketBuilder, SlicedPacket};

use super::{frame, port};
use crate::datapath::harness::{KEY, Port, TestCq, TestSq, data, send};
use crate::frame::offload;
use crate::frame::packet::Packet;
use crate::objects::mkey::{Rights, STEPS_PER_TURN};
use crate::wire::{Link, Wire, link, switch};

/// An IPv4/UDP frame with wrong checksums.
fn udp(payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1])
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .udp(1000, 2000)
        .write(&mut frame, payload)
        .expect("written to memory");
    frame[24..26].copy_from_slice(&[0xde, 0xad]);
    frame[40..42].copy_from_slice(&[0xde, 0xad]);
    frame
}

fn start(change: impl FnOnce(&mut crate::objects::Sq)) -> (Port, Link, TestCq, TestSq) {
    let (mut port, far) = port();
    let cq = port.cq(6);
    let sq = port.sq_with(cq.cqn, 6, change);
    (port, far, cq, sq)
}

fn go(port: &mut Port, sq: &TestSq) {
    sq.record();
    port.ring(sq);
    for _ in 0..4 {
        port.poll();
    }
}

#[test]
fn checksums_are_filled_in_as_the_flags_say() {
    for (flags, l3_ok, l4_ok) in
        [(0xc0, true, true), (0x40, true, false), (0x80, false, true), (0, false, false)]
    {
        let (mut port, mut far, _cq, mut sq) = start(|_| {});
        let buf = port.bytes(&udp(b"0123456789abcdefgh!"));
        sq.write(&send(2, flags, &[(61, KEY, buf.iova())]));
        go(&mut port, &sq);
        let sent = far.receive(0).expect("a frame").bytes;
        let verified = offload::verify(sent, &Packet::parse(sent), false);
        assert_eq!((verified.l3_ok, verified.l4_ok), (l3_ok, l4_ok), "{flags:#x}");
    }
}

#[test]
fn a_packet_is_gathered_from_an_inline_header_and_several_segments() {
    let (mut port, mut far, _cq, mut sq) = start(|sq| sq.min_wqe_inline_mode = 1);
    let whole = frame(0x33);
    let (a, b) = (port.bytes(&whole[18..30]), port.bytes(&whole[30..]));
    let key = port.mkey(b.iova(), 30, Rights::LOCAL_READ);
    // Control, Ethernet segment with 18 inline bytes (32 bytes in all), two data segments: ds 5.
    let mut wqe = vec![0, 0, 0, 0x0a, 0, 0, 0, 5, 0, 0, 0, 8, 0, 0, 0, 0];
    wqe.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 18]);
    wqe.extend(&whole[..18]);
    wqe.extend(data(12, KEY, a.iova()));
    wqe.extend(data(30, key, b.iova()));
    assert_eq!(wqe.len(), 80);
    assert_eq!(sq.write(&wqe), 0);
    assert_eq!(sq.posted, 2);
    go(&mut port, &sq);
    assert_eq!(far.receive(0).expect("a frame").bytes, whole);
}

#[test]
fn a_tag_is_inserted() {
    let (mut port, mut far, _cq, mut sq) = start(|_| {});
    let buf = port.bytes(&udp(b"0123456789abcdefgh"));
    let mut wqe = send(2, 0xc0, &[(60, KEY, buf.iova())]);
    wqe[0x1c..0x20].copy_from_slice(&[0x80, 0x00, 0x20, 0x05]);
    sq.write(&wqe);
    go(&mut port, &sq);
    let sent = far.receive(0).expect("a frame").bytes;
    assert_eq!(sent.len(), 64);
    assert_eq!(sent[12..18], [0x81, 0x00, 0x20, 0x05, 0x08, 0x00]);
    let verified = offload::verify(sent, &Packet::parse(sent), false);
    assert!(verified.l3_ok && verified.l4_ok);
}

/// An LSO WQE: 54 inline header bytes, `mss`, payload from memory.
fn lso(mss: u16, payload: &[(u32, u32, u64)]) -> Vec<u8> {
    let mut header = Vec::new();
    PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1])
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .tcp(1000, 2000, 7, 1024)
        .write(&mut header, &[])
        .expect("written to memory");
    // Control 16, Ethernet 14 + 54 = 68 -> 80 bytes with control's 16: ds is 1 + 5 + segments.
    let ds = 6 + payload.len() as u8;
    let mut wqe = vec![0, 0, 0, 0x0e, 0, 0, 0, ds, 0, 0, 0, 8, 0, 0, 0, 0];
    wqe.extend([0, 0, 0, 0, 0xc0, 0]);
    wqe.extend(mss.to_be_bytes());
    wqe.extend([0, 0, 0, 0, 0, 54]);
    wqe.extend(&header);
    wqe.resize(96, 0);
    for &(len, key, addr) in payload {
        wqe.extend(data(len, key, addr));
    }
    wqe
}

#[test]
fn a_large_send_becomes_segments_with_one_completion() {
    let (mut port, mut far, mut cq, mut sq) = start(|_| {});
    let payload: Vec<u8> = (0..3500_u32).map(|at| at as u8).collect();
    let buf = port.bytes(&payload);
    sq.write(&lso(1000, &[(1500, KEY, buf.iova()), (2000, KEY, buf.iova() + 1500)]));
    go(&mut port, &sq);
    let mut joined: Vec<u8> = Vec::new();
    for len in [1054, 1054, 1054, 554] {
        let sent = far.receive(0).expect("a segment").bytes;
        assert_eq!(sent.len(), len);
        let verified = offload::verify(sent, &Packet::parse(sent), false);
        assert!(verified.l3_ok && verified.l4_ok);
        let sliced = SlicedPacket::from_ethernet(sent).expect("a packet");
        let Some(etherparse::TransportSlice::Tcp(tcp)) = sliced.transport else { panic!("TCP") };
        assert_eq!(tcp.sequence_number() as usize, 7 + joined.len());
        joined.extend(tcp.payload());
    }
    assert_eq!(joined, payload);
    assert!(far.receive(0).is_none());
    assert!(cq.poll().is_some() && cq.poll().is_none());
}

#[test]
fn a_large_send_asks_for_checksums_as_any_other() {
    let payload = [0x5a; 1500];
    // Neither, that of IP, that of TCP.
    for flags in [0, 0x40, 0x80] {
        let (mut port, mut far, _, mut sq) = start(|_| {});
        let buf = port.bytes(&payload);
        let mut wqe = lso(1000, &[(1500, KEY, buf.iova())]);
        wqe[20] = flags;
        let header = wqe[30..84].to_vec();
        sq.write(&wqe);
        go(&mut port, &sq);
        for _ in 0..2 {
            let sent = far.receive(0).expect("a segment").bytes;
            let verified = offload::verify(sent, &Packet::parse(sent), false);
            assert_eq!((verified.l3_ok, verified.l4_ok), (flags == 0x40, flags == 0x80));
            assert_eq!(sent[24..26] == header[24..26], flags != 0x40, "IP, as it was");
            assert_eq!(sent[50..52] == header[50..52], flags != 0x80, "TCP, as it was");
        }
    }
}

#[test]
fn a_data_segment_of_zero_bytes_is_one_of_two_gibibytes() {
    let (mut port, mut far, _, mut sq) = start(|_| {});
    let buf = port.bytes(&[0x5a; 60]);
    sq.write(&send(2, 0, &[(60, KEY, buf.iova()), (0, KEY, buf.iova())]));
    go(&mut port, &sq);
    assert!(far.receive(0).is_none());
    let dropped = port.state.port.counters.tx_errors;
    assert_eq!((dropped.packets, dropped.octets), (1, (1 << 31) + 60));
}

#[test]
fn a_large_send_waits_inside_the_wqe_when_the_wire_is_full() {
    let mut port = Port::new(1);
    let (near, mut far) = link(0);
    port.plug(near);
    let mut cq = port.cq(6);
    let mut sq = port.sq(cq.cqn, 6);
    let payload: Vec<u8> = (0..200_000_u32).map(|at| (at / 7) as u8).collect();
    let buf = port.alloc(200_000);
    buf.copy_in(0, &payload);
    sq.write(&lso(1000, &[(200_000, KEY, buf.iova())]));
    go(&mut port, &sq);
    assert!(cq.poll().is_none(), "the wire holds about 32 KiB");
    let mut joined: Vec<u8> = Vec::new();
    for _ in 0..1000 {
        while let Some(sent) = far.receive(0) {
            joined.extend(&sent.bytes[54..]);
        }
        port.poll();
    }
    assert!(joined == payload);
    assert!(cq.poll().is_some() && cq.poll().is_none());
}

/// A step leaves frames to the next one, whether they read memory, which key they name and whether
/// they are dropped, as does a wire that is never full.
#[test]
fn a_step_makes_a_bounded_number_of_frames() {
    let most = STEPS_PER_TURN;
    let frames = |change: fn(&mut Port)| {
        let mut port = Port::new(1);
        change(&mut port);
        let cq = port.cq(6);
        let mut sq = port.sq(cq.cqn, 6);
        let buf = port.alloc(1 << 18);
        for _ in 0..4 {
            sq.write(&lso(1, &[(1 << 18, KEY, buf.iova())]));
        }
        sq.record();
        port.ring(&sq);
        let accesses = |port: &Port| port.side.counts().dma.reads;
        let mut before = accesses(&port);
        let made = |port: &Port| {
            let counters = &port.state.port.counters;
            counters.tx_unicast.packets + counters.tx_errors.packets + counters.tx_link_down
        };
        for step in 1..=12 {
            let had = made(&port);
            port.poll();
            let (frames, reads) = (made(&port) - had, accesses(&port) - before);
            assert!(frames <= most && reads <= most, "{frames} frames, {reads} reads in a step");
            assert!(frames > 0 || had == 4 << 18, "step {step} did nothing");
            before = accesses(&port);
        }
        made(&port)
    };
    // Nothing in front of the port, which is down; a switch, which is never full; a small MTU.
    assert!(frames(|port| port.state.port.admin_up = false) > 8 * most / 2);
    let switched = |port: &mut Port| {
        port.plug(switch(1, 0).remove(0));
        port.poll();
    };
    assert!(frames(switched) > most);
    assert!(frames(|port| port.state.port.mtu = 56) > most);
}

#[test]
fn large_sends_that_cannot_be_cut_are_refused() {
    let refused = |change: fn(&mut Vec<u8>), len: u32| {
        let (mut port, mut far, mut cq, mut sq) = start(|_| {});
        let buf = port.alloc(1 << 19);
        let mut wqe = lso(1000, &[(len, KEY, buf.iova())]);
        change(&mut wqe);
        sq.write(&wqe);
        go(&mut port, &sq);
        assert!(far.receive(0).is_none());
        cq.poll().expect("an error")[0x37]
    };
    assert_eq!(refused(|wqe| wqe[0x16..0x18].fill(0), 2000), 0x02);
    assert_eq!(refused(|wqe| wqe[0x1e + 23] = 1, 2000), 0x02);
    assert_eq!(refused(|_| {}, (1 << 18) + 1), 0x01);
}

#[test]
fn a_multi_packet_wqe_sends_one_packet_per_segment() {
    let (mut port, mut far, mut cq, mut sq) = start(|_| {});
    let (a, c) = (port.bytes(&frame(1)), port.bytes(&frame(3)));
    // Control, Ethernet segment, pointer, 60 inline bytes in 64, pointer: ds 1 + 1 + 1 + 4 + 1.
    let mut wqe = vec![0, 0, 0, 0x29, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0, 0];
    wqe.extend([0; 16]);
    wqe.extend(data(60, KEY, a.iova()));
    wqe.extend((0x8000_0000_u32 | 60).to_be_bytes());
    wqe.extend(frame(2));
    wqe.extend(data(60, KEY, c.iova()));
    sq.write(&wqe);
    go(&mut port, &sq);
    for fill in 1..=3 {
        assert_eq!(far.receive(0).expect("a frame").bytes, frame(fill));
    }
    let cqe = cq.poll().expect("one completion");
    assert_eq!(cqe[0x38], 0x29);
    assert_eq!(cq.poll(), None);
}

#[test]
fn counters_wrap() {
    // The ring has 64 blocks; counters start 4 below 2^16, in the middle of the ring's last lap.
    let (mut port, mut far) = port();
    let mut cq = port.cq_with(2, |cq| {
        cq.producer = 0xff_fffe;
        cq.consumer = 0xff_fffe;
    });
    let mut sq = port.sq_with(cq.cqn, 6, |sq| {
        sq.executed = 0xfffc;
        sq.posted = 0xfffc;
    });
    let buf = port.bytes(&frame(5));
    let mut counters = Vec::new();
    for _ in 0..40 {
        // Two blocks each, so that a WQE also wraps around the end of the ring.
        let mut wqe = send(2, 0, &[(20, KEY, buf.iova()), (20, KEY, buf.iova() + 20)]);
        wqe.extend(data(20, KEY, buf.iova() + 40));
        wqe[7] = 5;
        sq.write(&wqe);
        sq.record();
        port.ring(&sq);
        port.poll();
        assert_eq!(far.receive(0).expect("a frame").bytes, frame(5));
        let cqe = cq.poll().expect("a completion");
        counters.push(u16::from_be_bytes([cqe[0x3c], cqe[0x3d]]));
        cq.ci &= 0xff_ffff;
    }
    assert_eq!(counters[..4], [0xfffc, 0xfffe, 0, 2]);
    assert_eq!(port.state.log.total(), 0);
}

#[test]
fn a_nop_completes_and_a_full_ring_of_wqes_is_executed() {
    let (mut port, _far, mut cq, mut sq) = start(|_| {});
    for _ in 0..64 {
        sq.write(&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0]);
    }
    go(&mut port, &sq);
    let counters: Vec<_> = std::iter::from_fn(|| cq.poll()).map(|cqe| cqe[0x3d]).collect();
    assert!(counters.iter().copied().eq(0..64));
}

#[test]
fn a_collapsed_queue_keeps_only_the_last_completion() {
    let (mut port, _far) = port();
    let cq = port.cq_with(0, |cq| cq.collapsed = true);
    let mut sq = port.sq(cq.cqn, 6);
    for _ in 0..5 {
        sq.write(&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0]);
    }
    go(&mut port, &sq);
    let mut entry = [0; 64];
    cq.ring.copy_out(0, &mut entry);
    assert_eq!(entry[0x3c..0x3e], [0, 4]);
}

#[test]
fn entries_of_128_bytes_carry_their_content_in_the_second_half() {
    let (mut port, _far) = port();
    let ring = port.alloc(128 * 16);
    ring.fill(0xff);
    let cq = port.cq_with(4, |cq| {
        cq.cqe_bytes = 128;
        cq.memory = crate::objects::QueueMemory::new(vec![ring.iova()], 20, 0, 128 * 16);
    });
    let mut sq = port.sq(cq.cqn, 6);
    for _ in 0..2 {
        sq.write(&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0]);
    }
    go(&mut port, &sq);
    let mut bytes = [0; 256];
    ring.copy_out(0, &mut bytes);
    assert_eq!(bytes[..64], [0xff; 64]);
    assert_eq!(bytes[0x7c..0x80], [0, 0, 0, 0]);
    assert_eq!(bytes[128..192], [0xff; 64]);
    assert_eq!(bytes[0xfc..0x100], [0, 1, 0, 0]);
}

#[test]
fn frames_beyond_the_mtu_or_without_a_link_are_counted_and_completed() {
    let (mut port, mut far, mut cq, mut sq) = start(|_| {});
    let buf = port.alloc(4096);
    sq.write(&send(2, 0, &[(1519, KEY, buf.iova())]));
    go(&mut port, &sq);
    assert!(far.receive(0).is_none() && cq.poll().is_some());
    assert_eq!(port.state.port.counters.tx_errors.packets, 1);
    sq.write(&send(2, 0, &[(1518, KEY, buf.iova())]));
    go(&mut port, &sq);
    assert!(far.receive(0).is_some() && cq.poll().is_some());
    port.state.port.admin_up = false;
    sq.write(&send(2, 0, &[(60, KEY, buf.iova())]));
    go(&mut port, &sq);
    assert!(far.receive(0).is_none() && cq.poll().is_some());
    assert_eq!(port.state.port.counters.tx_link_down, 1);
}

#[test]
fn two_queues_share_the_wire() {
    let (mut port, mut far, mut cq, mut a) = start(|_| {});
    let mut b = port.sq(cq.cqn, 6);
    let buf = port.bytes(&frame(8));
    for sq in [&mut a, &mut b] {
        sq.write(&send(2, 0, &[(60, KEY, buf.iova())]));
        sq.record();
    }
    // One doorbell register, overwritten: the device looks at both queues.
    port.ring(&a);
    port.ring(&b);
    port.poll();
    assert!(far.receive(0).is_some() && far.receive(0).is_some());
    let numbers: Vec<_> = std::iter::from_fn(|| cq.poll()).map(|cqe| cqe[0x3b]).collect();
    assert_eq!(numbers, [0, 1]);
}
