//! Small data that travel in completions.

use crate::common;
use crate::common::objects::create_cq;
use crate::common::roce::{Peer, RC, TestQp, Two, UC, UD, Work, data, inline, pattern, work};
use ferrocx_bus::DmaBuf;
use ferrocx_model::NicConfig;
use ferrocx_model::caps::Caps;
use ferrocx_model::config::CapOverride;
use ferrocx_model::wire::link;

const SEND: u32 = 0x0a;
const SEND_IMM: u32 = 0x0b;
const WRITE_IMM: u32 = 0x09;
const READ: u32 = 0x10;
const FETCH_ADD: u32 = 0x12;

/// Capability page of atomics. Source: reference 3.3.
const ATOMIC_PAGE: u32 = 3;
/// Word of CREATE_QP with `cs_req` and `cs_res`.
const SCATTER_AT: usize = 0x18 + 0xc4;
const UP_TO_32: u32 = 0x11 << 8 | 1;
const UP_TO_64: u32 = 0x22 << 8 | 2;

/// A connected pair whose queue pairs both take up to 32 bytes in completions.
fn connected(two: &mut Two, st: u32) -> (TestQp, TestQp) {
    let fields = [(SCATTER_AT, UP_TO_32)];
    let (qa, qb) = (two.a.create_qp_with(st, &fields), two.b.create_qp_with(st, &fields));
    two.connect(st, &qa, &qb);
    (qa, qb)
}

/// A receive with a key that does not exist: whoever writes through it fails.
fn post_blind_receive(peer: &mut Peer, qp: &mut TestQp, len: u32) {
    peer.post_receive_raw(qp, &data(len, 0xdead_be00, 0));
}

#[test]
fn short_sends_stand_in_the_completion_and_longer_ones_in_memory() {
    for st in [RC, UC] {
        let mut two = Two::new();
        let (mut qa, mut qb) = connected(&mut two, st);
        for len in [1, 31, 32] {
            post_blind_receive(&mut two.b, &mut qb, 64);
            let bytes = pattern(len, 9);
            two.a.post_send(&mut qa, &work(SEND), &inline(&bytes));
            two.run();
            let got = two.b.polled();
            assert_eq!(got.len(), 1, "service {st}, length {len}");
            // Opcode 2, format 1 in bits 3:2.
            assert_eq!(got[0].0[63] & 0xfe, 0x24);
            assert_eq!(got[0].byte_cnt(), len as u32);
            assert_eq!(got[0].0[..len], bytes);
            assert!(got[0].0[len..32].iter().all(|byte| *byte == 0));
            assert_eq!(got[0].word(0x20) & 0xff_ffff, 0xabc, "the user index stays");
        }
        for len in [0, 33, 64] {
            two.b.write(0, &[0xee; 64]);
            two.b.post_receive(&mut qb, 0, 64);
            let bytes = pattern(len, 5);
            let segments = if len == 0 { Vec::new() } else { inline(&bytes) };
            two.a.post_send(&mut qa, &work(SEND), &segments);
            two.run();
            let got = two.b.polled();
            assert_eq!(got[0].0[63] & 0xfe, 0x20, "length {len} is plain");
            assert_eq!(two.b.read(0, len), bytes);
        }
        let counts = two.b.host.nic.datapath().inline_counts();
        assert_eq!((counts.responder, counts.requester), (3, 0));
    }
}

#[test]
fn immediate_data_and_the_event_bit_stay_and_a_write_is_not_meant() {
    let mut two = Two::new();
    let (mut qa, mut qb) = connected(&mut two, RC);
    post_blind_receive(&mut two.b, &mut qb, 8);
    let request = Work { imm: 0xcafe_f00d, solicited: true, ..work(SEND_IMM) };
    two.a.post_send(&mut qa, &request, &inline(&[1, 2, 3, 4, 5, 6, 7, 8]));
    two.run();
    let got = two.b.polled();
    assert_eq!((got[0].0[63] & 0xfe, got[0].word(0x24)), (0x36, 0xcafe_f00d));
    assert_eq!(got[0].0[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
    // The bytes of a WRITE with immediate go to their address.
    two.b.post_receive(&mut qb, 0, 0);
    let mut segments = Peer::raddr(&two.b, 100, two.b.key);
    segments.extend(inline(&[9; 4]));
    two.a.post_send(&mut qa, &Work { imm: 7, ..work(WRITE_IMM) }, &segments);
    two.run();
    let got = two.b.polled();
    assert_eq!((got[0].0[63] & 0xfe, got[0].byte_cnt()), (0x10, 4));
    assert_eq!(two.b.read(100, 4), [9; 4]);
}

#[test]
fn a_message_longer_than_its_buffers_fails_as_ever() {
    let mut two = Two::new();
    let (mut qa, mut qb) = connected(&mut two, RC);
    let mut list = two.b.sge(0, 3);
    list.extend(two.b.sge(8, 4));
    two.b.post_receive_raw(&mut qb, &list);
    two.b.post_receive_raw(&mut qb, &list);
    two.a.post_send(&mut qa, &work(SEND), &inline(&[1; 7]));
    two.a.post_send(&mut qa, &work(SEND), &inline(&[1; 8]));
    two.run();
    let got = two.b.polled();
    assert_eq!((got[0].opcode(), got[0].byte_cnt()), (2, 7));
    assert_eq!((got[1].opcode(), got[1].syndrome()), (14, 0x01), "local length");
    assert_eq!(two.a.polled()[1].syndrome(), 0x12, "remote invalid request");
}

#[test]
fn a_short_read_stands_in_its_completion_if_it_has_one() {
    let mut two = Two::new();
    let (mut qa, _qb) = connected(&mut two, RC);
    let bytes = pattern(64, 1);
    two.b.write(512, &bytes);
    let read = |two: &Two, len: u32, key: u32| {
        let mut segments = Peer::raddr(&two.b, 512, two.b.key);
        segments.extend(data(len, key, two.a.memory.iova()));
        segments
    };
    for len in [1, 32] {
        let segments = read(&two, len, 0xdead_be00);
        two.a.post_send(&mut qa, &work(READ), &segments);
        two.run();
        let done = two.a.polled();
        // Opcode 0, format 1; the opcode of the WQE stays.
        assert_eq!((done[0].0[63] & 0xfe, done[0].word(0x38) >> 24), (0x04, READ));
        assert_eq!(done[0].byte_cnt(), len);
        assert_eq!(done[0].0[..len as usize], bytes[..len as usize]);
    }
    // 33 bytes are too many, and nobody would copy for a request without completion.
    for (len, completion) in [(33, 2), (8, 0)] {
        two.a.write(0, &[0; 64]);
        let segments = read(&two, len, two.a.key);
        two.a.post_send(&mut qa, &Work { completion, ..work(READ) }, &segments);
        two.run();
        assert!(two.a.polled().iter().all(|cqe| cqe.0[63] & 0xfe == 0), "plain");
        assert_eq!(two.a.read(0, len as usize), bytes[..len as usize]);
    }
    assert_eq!(two.a.host.nic.datapath().inline_counts().requester, 2);
}

/// A device set to answer atomics in the byte order of the host.
fn host_order() -> NicConfig {
    let page = |current| {
        let caps = Caps::new(&NicConfig::default());
        let mut page = Box::new(*caps.page(ATOMIC_PAGE, current).expect("atomics"));
        page[8] |= 1 << 6;
        page
    };
    let cap_pages = vec![CapOverride { kind: ATOMIC_PAGE, max: page(false), cur: page(true) }];
    NicConfig { cap_pages, ..NicConfig::default() }
}

#[test]
fn the_answer_of_an_atomic_stands_there_only_in_network_order() {
    for is_host_order in [false, true] {
        let config = || if is_host_order { host_order() } else { NicConfig::default() };
        let (to_b, to_a) = link(1 << 20);
        let (a, b) = (Peer::with(1, to_b, config()), Peer::with(2, to_a, config()));
        let mut two = Two { a, b };
        let (mut qa, _qb) = connected(&mut two, RC);
        let old = 0x0102_0304_0506_0708_u64;
        let bytes = if is_host_order { old.to_le_bytes() } else { old.to_be_bytes() };
        two.b.write(64, &bytes);
        let mut segments = Peer::raddr(&two.b, 64, two.b.key);
        segments.extend(1_u64.to_be_bytes());
        segments.extend(0_u64.to_be_bytes());
        segments.extend(two.a.sge(0, 8));
        two.a.write(0, &[0; 8]);
        two.a.post_send(&mut qa, &work(FETCH_ADD), &segments);
        two.run();
        let done = two.a.polled();
        if is_host_order {
            assert_eq!(done[0].0[63] & 0xfe, 0);
            assert_eq!(two.a.read(0, 8), old.to_le_bytes());
        } else {
            assert_eq!(done[0].0[63] & 0xfe, 0x04);
            assert_eq!(done[0].0[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
            assert_eq!(two.a.read(0, 8), [0; 8]);
        }
    }
}

/// CREATE_CQ with entries of 128 bytes; returns its number and its ring.
fn wide_cq(peer: &mut Peer) -> (u32, DmaBuf) {
    let alloc = |peer: &Peer, len| peer.host.heap.alloc(len, 4096).expect("room");
    let (ring, record) = (alloc(peer, 4096), alloc(peer, 64));
    ring.fill(0xff);
    record.fill(0);
    let mut create = create_cq(peer.uar, peer.eqn, 4, record.iova(), ring.iova());
    // cqe_sz, bits 23:21 of the first word of the context.
    create[0x11] |= 1 << 5;
    (peer.host.ok(&create, 0x10).word(8), ring)
}

/// CREATE_QP of a service with another word `cs_req`, `cs_res` and other CQs.
fn create(peer: &Peer, st: u32, scatter: u32, cqn: u32) -> Vec<u8> {
    let record = peer.host.heap.alloc(64, 64).expect("room").iova();
    let mut bytes = common::roce::create_qp(st, peer.pd, peer.uar, cqn, record);
    bytes[SCATTER_AT..SCATTER_AT + 4].copy_from_slice(&scatter.to_be_bytes());
    bytes.extend(peer.memory.iova().to_be_bytes());
    bytes
}

#[test]
fn up_to_64_bytes_stand_in_the_first_half_of_an_entry_of_128() {
    let mut two = Two::new();
    let (cqn, ring) = wide_cq(&mut two.b);
    two.b.cqn = cqn;
    let mut qa = two.a.create_qp(RC);
    let mut qb = two.b.create_qp_with(RC, &[(SCATTER_AT, UP_TO_64)]);
    two.connect(RC, &qa, &qb);
    for (slot, len) in [1, 32, 33, 64].into_iter().enumerate() {
        post_blind_receive(&mut two.b, &mut qb, 64);
        let bytes = pattern(len, 3);
        two.a.post_send(&mut qa, &work(SEND), &inline(&bytes));
        two.run();
        let mut entry = [0; 128];
        ring.copy_out(slot * 128, &mut entry);
        // Opcode 2, format 2, owner 0.
        assert_eq!(entry[127], 0x28, "length {len}");
        assert_eq!(entry[..len], bytes);
        assert_eq!(common::be32(&entry, 64 + 0x2c), len as u32);
    }
}

#[test]
fn a_read_of_up_to_64_bytes_too() {
    let mut two = Two::new();
    let (cqn, ring) = wide_cq(&mut two.a);
    two.a.cqn = cqn;
    let mut qa = two.a.create_qp_with(RC, &[(SCATTER_AT, UP_TO_64)]);
    let qb = two.b.create_qp(RC);
    two.connect(RC, &qa, &qb);
    let bytes = pattern(64, 8);
    two.b.write(512, &bytes);
    for (slot, len) in [1, 32, 33, 64].into_iter().enumerate() {
        let mut segments = Peer::raddr(&two.b, 512, two.b.key);
        segments.extend(data(len as u32, 0xdead_be00, 0));
        two.a.post_send(&mut qa, &work(READ), &segments);
        two.run();
        let mut entry = [0; 128];
        ring.copy_out(slot * 128, &mut entry);
        // Opcode 0, format 2, owner 0.
        assert_eq!(entry[127], 0x08, "length {len}");
        assert_eq!(entry[..len], bytes[..len]);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let mut two = Two::new();
    let peer = &mut two.a;
    let cqn = peer.cqn;
    for (st, scatter, field) in [
        (RC, 0x10 << 8, "cs_req"),
        (RC, 3, "cs_res"),
        // A datagram has many senders, and its header goes in front of the data.
        (UD, 1, "cs_res"),
        // 64 bytes need entries of 128.
        (RC, 2, "cs_res"),
        (RC, 0x22 << 8, "cs_req"),
    ] {
        let bytes = create(peer, st, scatter, cqn);
        assert_eq!(peer.host.refused(&bytes, 0x03), field);
    }
    let (wide, _ring) = wide_cq(peer);
    let bytes = create(peer, RC, UP_TO_64, wide);
    peer.host.ok(&bytes, 0x10);
}
