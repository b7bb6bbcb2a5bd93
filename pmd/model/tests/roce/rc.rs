//! Reliable connections: data, order, completions, and every way to fail.

use crate::common;
use crate::common::roce::{
    A_PSN, ALL_RIGHTS, MTU, Peer, RC, TIMEOUT, Two, data, init2rtr, inline, pattern, rtr2rts, work,
};
use crate::common::words;
use ferrocx_model::NicConfig;
use ferrocx_model::wire::{Impair, ImpairConfig, SplitMix64, Wire, link};

const SEND: u32 = 0x0a;
const SEND_IMM: u32 = 0x0b;
const WRITE: u32 = 0x08;
const WRITE_IMM: u32 = 0x09;
const READ: u32 = 0x10;
const COMPARE_SWAP: u32 = 0x11;
const FETCH_ADD: u32 = 0x12;

/// RTS, ERR. Source: reference 4.4.
const RTS: u32 = 3;
const ERR: u32 = 6;

#[test]
fn a_send_has_these_bytes_on_the_wire_and_waits_for_its_acknowledgement() {
    let (mut ours, theirs) = link(1 << 20);
    let mut a = Peer::new(1, theirs);
    let mut qp = a.create_qp(RC);
    let to = common::roce::Target {
        qpn: 0x12,
        mac: [2, 0, 0, 0, 0, 2],
        ip: [192, 168, 0, 2],
        send_psn: 0x345,
        receive_psn: 0,
        retry: 7,
        rnr_retry: 7,
    };
    a.connect(&qp, RC, &to, 0);
    a.post_send(&mut qp, &work(SEND), &inline(&[0, 1, 2, 3]));
    a.host.step();
    let frame = ours.receive(0).expect("a frame").bytes.to_vec();
    let expected: Vec<u8> = [
        &[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00][..],
        // ECT(0): the port reacts to congestion.
        &[0x45, 2, 0, 0x30, 0, 0, 0x40, 0, 0x40, 0x11, 0xb9, 0x67],
        &[192, 168, 0, 1, 192, 168, 0, 2],
        &[0xc1, 0x23, 0x12, 0xb7, 0, 0x1c, 0, 0],
        &[0x04, 0x40, 0xff, 0xff, 0, 0, 0, 0x12, 0x80, 0, 0x03, 0x45, 0, 1, 2, 3],
    ]
    .concat();
    assert_eq!(frame[..58], expected[..]);
    assert_eq!(frame.len(), 62, "and the ICRC");
    assert!(a.polled().is_empty(), "not acknowledged");
    // An ACK for PSN 0x345, and one for a PSN never sent before it.
    for (psn, completes) in [(0x346, false), (0x345, true)] {
        let mut header = ferrocx_model::roce::bth::Header::new(
            ferrocx_model::roce::bth::Transport::Rc,
            ferrocx_model::roce::bth::Op::Acknowledge,
            qp.qpn,
            ferrocx_model::roce::Psn::new(psn),
        );
        header.aeth.syndrome = ferrocx_model::roce::bth::AckSyndrome::ACK;
        let path = ferrocx_model::roce::packet::Path {
            dmac: a.mac,
            smac: to.mac,
            vlan: None,
            ip: ferrocx_model::roce::packet::IpPair::V4 { src: to.ip, dst: a.ip },
            tos: 0,
            ttl: 1,
            flow_label: 0,
            sport: 0xc000,
        };
        let room = ours.reserve(path.frame_bytes(&header, 0)).expect("room");
        let at = path.write(&header, 0, room);
        ferrocx_model::roce::packet::seal(&path, room, at);
        ours.commit(0, ferrocx_model::wire::Fcs::Good);
        ours.flush(0);
        a.host.step();
        let done = a.polled();
        assert_eq!(done.len(), usize::from(completes));
        if let [cqe] = &done[..] {
            assert_eq!((cqe.opcode(), cqe.wqe_counter()), (0, 0));
            assert_eq!(cqe.word(0x38), SEND << 24 | qp.qpn);
            assert_eq!(cqe.word(0x20) & 0xff_ffff, 0xabc, "user index");
        }
    }
}

#[test]
fn messages_of_every_length_arrive_whole() {
    let mut two = Two::new();
    let (mut qa, mut qb) = two.connected(RC);
    for (round, len) in [0, 1, MTU - 1, MTU, MTU + 1, 3 * MTU, 40 * MTU + 7].into_iter().enumerate()
    {
        let bytes = pattern(len, round as u8);
        two.a.write(0, &bytes);
        two.b.write(0, &vec![0xee; len + 1]);
        two.b.post_receive(&mut qb, 0, 32 << 10);
        let sge = if len == 0 { Vec::new() } else { two.a.sge(0, len as u32) };
        let counter = two.a.post_send(&mut qa, &work(SEND), &sge);
        two.run();
        let (done, got) = (two.a.polled(), two.b.polled());
        assert_eq!((done.len(), got.len()), (1, 1), "length {len}");
        assert_eq!((done[0].opcode(), done[0].wqe_counter()), (0, counter));
        assert_eq!((got[0].opcode(), got[0].byte_cnt()), (2, len as u32));
        assert_eq!(got[0].wqe_counter(), round as u16);
        assert_eq!(got[0].word(0x38) & 0xff_ffff, qb.qpn);
        assert_eq!(two.b.read(0, len), bytes);
        assert_eq!(two.b.read(len, 1), [0xee], "and not a byte more");
    }
    assert_eq!(two.a.query(&qa, 0x78), (A_PSN + 1 + 1 + 1 + 1 + 2 + 3 + 41) & 0xff_ffff);
}

#[test]
fn immediate_solicited_and_scattered() {
    let mut two = Two::new();
    let (mut qa, mut qb) = two.connected(RC);
    let mut list = two.b.sge(0, 10);
    list.extend(two.b.sge(100, 1));
    list.extend(two.b.sge(200, 500));
    two.b.post_receive_raw(&mut qb, &list);
    let bytes = pattern(300, 3);
    two.a.write(0, &bytes);
    let mut gather = two.a.sge(0, 299);
    gather.extend(inline(&bytes[299..]));
    let request = common::roce::Work { imm: 0xcafe_f00d, solicited: true, ..work(SEND_IMM) };
    two.a.post_send(&mut qa, &request, &gather);
    two.run();
    let got = two.b.polled();
    assert_eq!((got[0].opcode(), got[0].word(0x24)), (3, 0xcafe_f00d));
    assert_eq!(got[0].0[63] & 2, 2, "solicited");
    let arrived = [two.b.read(0, 10), two.b.read(100, 1), two.b.read(200, 289)].concat();
    assert_eq!(arrived, bytes);
}

#[test]
fn writes_and_reads_reach_the_named_memory() {
    let mut two = Two::new();
    let (mut qa, mut qb) = two.connected(RC);
    let bytes = pattern(1000, 7);
    two.a.write(0, &bytes);
    let key = two.b.key;
    let mut segments = Peer::raddr(&two.b, 5000, key);
    segments.extend(two.a.sge(0, 1000));
    two.a.post_send(&mut qa, &work(WRITE), &segments);
    let mut segments = Peer::raddr(&two.b, 5001, key);
    segments.extend(two.a.sge(20000, 10));
    segments.extend(two.a.sge(21000, 900));
    two.a.post_send(&mut qa, &common::roce::Work { fence: 2, ..work(READ) }, &segments);
    two.run();
    assert_eq!(two.b.read(5000, 1000), bytes);
    let read = [two.a.read(20000, 10), two.a.read(21000, 900)].concat();
    assert_eq!(read, bytes[1..911]);
    let done = two.a.polled();
    assert_eq!(done.iter().map(|cqe| cqe.opcode()).collect::<Vec<_>>(), [0, 0]);
    assert_eq!(done[1].byte_cnt(), 910);
    assert!(two.b.polled().is_empty(), "the responder completes nothing");
    // With immediate data the write takes a receive and tells its own length.
    two.b.post_receive(&mut qb, 0, 0);
    let mut segments = Peer::raddr(&two.b, 9000, key);
    segments.extend(two.a.sge(0, 700));
    let request = common::roce::Work { imm: 5, ..work(WRITE_IMM) };
    two.a.post_send(&mut qa, &request, &segments);
    two.run();
    let got = two.b.polled();
    assert_eq!((got[0].opcode(), got[0].word(0x24), got[0].byte_cnt()), (1, 5, 700));
    assert_eq!(two.b.read(9000, 700), bytes[..700]);
}

#[test]
fn atomics_change_memory_once_and_return_what_was_there() {
    let mut two = Two::new();
    let (mut qa, _qb) = two.connected(RC);
    two.b.write(64, &41_u64.to_be_bytes());
    let key = two.b.key;
    let atomic = |two: &Two, value: u64, compare: u64, result: usize| {
        let mut segments = Peer::raddr(&two.b, 64, key);
        segments.extend(value.to_be_bytes());
        segments.extend(compare.to_be_bytes());
        segments.extend(two.a.sge(result, 8));
        segments
    };
    let add = atomic(&two, 1, 0, 0);
    two.a.post_send(&mut qa, &work(FETCH_ADD), &add);
    for (compare, result) in [(42, 8), (42, 16)] {
        let swap = atomic(&two, 99, compare, result);
        two.a.post_send(&mut qa, &work(COMPARE_SWAP), &swap);
    }
    two.run();
    let results: Vec<u64> = (0..3)
        .map(|at| u64::from_be_bytes(two.a.read(at * 8, 8).try_into().expect("8 bytes")))
        .collect();
    assert_eq!(results, [41, 42, 99], "the last one finds another value and leaves it");
    assert_eq!(two.b.read(64, 8), 99_u64.to_be_bytes());
    assert_eq!(two.a.polled().len(), 3);
}

#[test]
fn unsignaled_requests_complete_silently_and_in_order() {
    let mut two = Two::new();
    let (mut qa, mut qb) = two.connected(RC);
    let silent = common::roce::Work { completion: 0, ..work(SEND) };
    for _ in 0..5 {
        two.b.post_receive(&mut qb, 0, 64);
        two.a.post_send(&mut qa, &silent, &inline(&[1; 8]));
    }
    two.b.post_receive(&mut qb, 0, 64);
    let last = two.a.post_send(&mut qa, &work(SEND), &inline(&[1; 8]));
    two.run();
    let done = two.a.polled();
    assert_eq!((done.len(), done[0].wqe_counter()), (1, last));
    assert_eq!(two.b.polled().len(), 6);
}

/// Runs one failing request; returns the requester's syndromes, the responder's, and both states.
fn failing(
    prepare: impl FnOnce(&mut Two, &mut common::roce::TestQp, &mut common::roce::TestQp),
) -> (Vec<u8>, Vec<u8>, u32, u32, Vec<u8>) {
    let mut two = Two::new();
    let (mut qa, mut qb) = two.connected(RC);
    prepare(&mut two, &mut qa, &mut qb);
    two.wait_us(20_000);
    let errors = |peer: &mut Peer| {
        let done = peer.polled();
        done.iter().filter(|cqe| cqe.opcode() >= 13).map(|cqe| cqe.syndrome()).collect()
    };
    let (of_a, of_b) = (errors(&mut two.a), errors(&mut two.b));
    let (state_a, state_b) = (two.a.state(&qa), two.b.state(&qb));
    let events = two.b.events().iter().map(|(event, _)| *event).collect();
    (of_a, of_b, state_a, state_b, events)
}

#[test]
fn local_errors_blame_the_request_and_flush_the_rest() {
    // 0x04: an lkey that does not exist; the next request is flushed.
    let outcome = failing(|two, qa, _| {
        two.a.post_send(qa, &work(SEND), &data(8, 0xdead_be00, 0));
        two.a.post_send(qa, &work(SEND), &inline(&[1]));
    });
    assert_eq!(outcome.0, [0x04, 0x05]);
    assert_eq!((outcome.2, outcome.3), (ERR, RTS));
    // 0x02: an opcode that does not exist.
    let outcome = failing(|two, qa, _| {
        two.a.post_send(qa, &work(0x3f), &[]);
    });
    assert_eq!((outcome.0, outcome.2), (vec![0x02], ERR));
    // 0x01: an atomic of another length than eight bytes.
    let outcome = failing(|two, qa, _| {
        let mut segments = Peer::raddr(&two.b, 0, two.b.key);
        segments.extend([0; 16]);
        segments.extend(two.a.sge(0, 4));
        two.a.post_send(qa, &work(FETCH_ADD), &segments);
    });
    assert_eq!(outcome.0, [0x01]);
    // 0x04: a read whose answer cannot be scattered.
    let outcome = failing(|two, qa, _| {
        let mut segments = Peer::raddr(&two.b, 0, two.b.key);
        segments.extend(data(8, 0xdead_be00, 0));
        two.a.post_send(qa, &work(READ), &segments);
    });
    assert_eq!(outcome.0, [0x04]);
}

#[test]
fn remote_access_errors_end_both_ends() {
    for (key, offset, rights) in [(0xdead_be00, 0, ALL_RIGHTS), (0, 0, 0x3 << 10)] {
        for opcode in [WRITE, READ] {
            let outcome = failing(|two, qa, qb| {
                let key = if key == 0 { two.b.pa_key(rights) } else { key };
                two.b.post_receive(qb, 0, 64);
                let mut segments = Peer::raddr(&two.b, offset, key);
                segments.extend(two.a.sge(0, 8));
                two.a.post_send(qa, &work(opcode), &segments);
            });
            assert_eq!((outcome.0, outcome.1), (vec![0x13], vec![0x05]), "opcode {opcode:#x}");
            assert_eq!((outcome.2, outcome.3), (ERR, ERR));
            assert_eq!(outcome.4, [0x11], "WQ access error");
        }
    }
}

#[test]
fn invalid_requests_end_both_ends() {
    // A message longer than its receive: length error there, invalid request here.
    let outcome = failing(|two, qa, qb| {
        two.b.post_receive(qb, 0, 7);
        two.b.post_receive(qb, 0, 64);
        two.a.post_send(qa, &work(SEND), &inline(&[1; 8]));
    });
    assert_eq!((outcome.0, outcome.1), (vec![0x12], vec![0x01, 0x05]));
    assert_eq!((outcome.2, outcome.3), (ERR, ERR));
    // An atomic that is not aligned.
    let outcome = failing(|two, qa, _| {
        let mut segments = Peer::raddr(&two.b, 4, two.b.key);
        segments.extend([0; 16]);
        segments.extend(two.a.sge(0, 8));
        two.a.post_send(qa, &work(FETCH_ADD), &segments);
    });
    assert_eq!((outcome.0, outcome.4), (vec![0x12], vec![0x10]), "WQ invalid request");
}

#[test]
fn a_receive_that_cannot_be_written_is_a_remote_operation_error() {
    let outcome = failing(|two, qa, qb| {
        two.b.post_receive_raw(qb, &data(64, 0xdead_be00, 0));
        two.a.post_send(qa, &work(SEND), &inline(&[1; 8]));
    });
    assert_eq!((outcome.0, outcome.1), (vec![0x14], vec![0x04]));
}

#[test]
fn without_a_receive_it_waits_and_then_gives_up() {
    let outcome = failing(|two, qa, _| {
        two.a.post_send(qa, &work(SEND), &inline(&[1; 8]));
    });
    assert_eq!((outcome.0, outcome.2, outcome.3), (vec![0x16], ERR, RTS));
    let outcome = failing(|two, qa, qb| {
        two.a.post_send(qa, &work(SEND), &inline(&[1; 8]));
        two.wait_us(5);
        two.b.post_receive(qb, 0, 64);
    });
    assert!(outcome.0.is_empty(), "the receive came in time: {outcome:?}");
    assert_eq!(outcome.2, RTS);
}

#[test]
fn without_an_answer_it_ends_within_the_time_of_its_retries() {
    let mut two = Two::new();
    let (mut qa, qb) = two.connected(RC);
    two.b.host.ok(&words(&[0x050a_0000, 0, qb.qpn, 0]), 0x10);
    two.a.post_send(&mut qa, &work(SEND), &inline(&[1; 8]));
    // 4.096 us * 2^8, four times (three retries).
    two.wait_us(4 * 1049 - 20);
    assert!(two.a.polled().is_empty());
    two.wait_us(60);
    let done = two.a.polled();
    assert_eq!((done.len(), done[0].syndrome()), (1, 0x15));
    assert_eq!(done[0].0[0x38], SEND as u8, "the opcode of the failed request");
}

#[test]
fn a_device_may_wait_longer_for_answers_than_it_was_asked_to() {
    let (to_b, to_a) = link(1 << 20);
    let patient = NicConfig { min_ack_timeout_ns: 5_000_000, ..NicConfig::default() };
    let mut two = Two { a: Peer::with(1, to_b, patient), b: Peer::new(2, to_a) };
    let (mut qa, qb) = two.connected(RC);
    two.b.host.ok(&words(&[0x050a_0000, 0, qb.qpn, 0]), 0x10);
    two.a.post_send(&mut qa, &work(SEND), &inline(&[1; 8]));
    // Four times 5 ms, though the queue pair says 1 ms.
    two.wait_us(4 * 5000 - 20);
    assert!(two.a.polled().is_empty());
    two.wait_us(60);
    assert_eq!(two.a.polled()[0].syndrome(), 0x15);
}

#[test]
fn the_error_state_flushes_what_is_posted_before_and_after() {
    let mut two = Two::new();
    let (mut qa, _qb) = two.connected(RC);
    two.a.post_receive(&mut qa, 0, 64);
    two.a.host.ok(&words(&[0x0507_0000, 0, qa.qpn, 0]), 0x10);
    two.a.post_receive(&mut qa, 0, 64);
    two.a.post_send(&mut qa, &work(SEND), &inline(&[1]));
    two.wait_us(10);
    let done = two.a.polled();
    let seen: Vec<(u8, u8)> = done.iter().map(|cqe| (cqe.opcode(), cqe.syndrome())).collect();
    assert_eq!(seen.iter().filter(|seen| **seen == (14, 5)).count(), 2, "{seen:?}");
    assert_eq!(seen.iter().filter(|seen| **seen == (13, 5)).count(), 1, "{seen:?}");
    assert_eq!(two.a.state(&qa), ERR);
}

#[test]
fn loss_duplicates_reordering_and_damage_leave_the_data_whole() {
    let bad = ImpairConfig {
        loss_ppm: 30_000,
        duplicate_ppm: 30_000,
        reorder_ppm: 30_000,
        reorder_frames: 3,
        corrupt_ppm: 10_000,
        silent_corrupt_ppm: 10_000,
        delay_ns: 2_000,
        ..ImpairConfig::default()
    };
    let mut damaged = 0;
    for seed in 0..4 {
        let (to_b, to_a) = link(1 << 20);
        let rng = SplitMix64::new(seed);
        let a = Impair::new(to_b, bad, rng);
        let b = Impair::new(to_a, bad, SplitMix64::new(seed + 100));
        let mut two = Two::on(a, b);
        let (qa, qb) = (two.a.create_qp(RC), two.b.create_qp(RC));
        let (mut to_b, mut to_a) = two.targets(&qa, &qb);
        (to_b.retry, to_a.retry) = (7, 7);
        two.a.connect(&qa, RC, &to_b, 5);
        two.b.connect(&qb, RC, &to_a, 5);
        let (mut qa, mut qb) = (qa, qb);
        let len = 20 * MTU + 13;
        for round in 0..6_u8 {
            let bytes = pattern(len, round);
            two.a.write(0, &bytes);
            two.b.write(0, &vec![0; 60 << 10]);
            two.b.post_receive(&mut qb, 0, 16 << 10);
            let (key, add) = (two.b.key, 0x8000);
            let mut segments = Peer::raddr(&two.b, 16 << 10, key);
            segments.extend(two.a.sge(0, len as u32));
            two.a.post_send(&mut qa, &work(WRITE), &segments);
            two.a.post_send(&mut qa, &work(SEND), &two.a.sge(0, len as u32));
            let mut segments = Peer::raddr(&two.b, add, key);
            segments.extend(1_u64.to_be_bytes());
            segments.extend([0; 8]);
            segments.extend(two.a.sge(60 << 10, 8));
            for _ in 0..3 {
                two.a.post_send(&mut qa, &work(FETCH_ADD), &segments);
            }
            let mut segments = Peer::raddr(&two.b, 16 << 10, key);
            segments.extend(two.a.sge(32 << 10, len as u32));
            two.a.post_send(&mut qa, &work(READ), &segments);
            let mut done = Vec::new();
            for _ in 0..50 {
                two.wait_us(1000);
                done.extend(two.a.polled());
                if done.len() == 6 {
                    break;
                }
            }
            let opcodes: Vec<u8> = done.iter().map(|cqe| cqe.opcode()).collect();
            assert_eq!(opcodes, [0; 6], "seed {seed} round {round}: {done:02x?}");
            assert_eq!(two.b.polled().len(), 1, "received once");
            assert_eq!(two.b.read(0, len), bytes, "sent");
            assert_eq!(two.b.read(16 << 10, len), bytes, "written");
            assert_eq!(two.a.read(32 << 10, len), bytes, "read back");
            assert_eq!(two.b.read(add, 8), 3_u64.to_be_bytes(), "three atomics, each once");
        }
        damaged += two.b.host.nic.datapath().roce_drops().icrc;
    }
    assert_ne!(damaged, 0, "the ICRC found what the frame check sequence did not");
}

#[test]
fn two_queue_pairs_of_one_port_talk_to_each_other() {
    let mut two = Two::new();
    let (qa, qb) = (two.a.create_qp(RC), two.a.create_qp(RC));
    let (mut to_b, to_a) = two.targets(&qa, &qb);
    (to_b.mac, to_b.ip) = (two.a.mac, two.a.ip);
    two.a.connect(&qa, RC, &to_b, 0);
    two.a.connect(&qb, RC, &to_a, 0);
    let (mut qa, mut qb) = (qa, qb);
    two.a.write(0, b"to myself");
    two.a.post_receive(&mut qb, 100, 64);
    two.a.post_send(&mut qa, &work(SEND), &two.a.sge(0, 9));
    two.run();
    assert_eq!(two.a.polled().len(), 2);
    assert_eq!(two.a.read(100, 9), b"to myself");
    assert_eq!(two.b.host.nic.state().port.counters.rx().packets, 0, "nothing left the port");
}

#[test]
fn a_write_is_no_longer_than_a_message_of_the_responder_may_be() {
    let mut two = Two::new();
    let (mut qa, qb) = (two.a.create_qp(RC), two.b.create_qp(RC));
    let (to_b, to_a) = two.targets(&qa, &qb);
    two.a.connect(&qa, RC, &to_b, TIMEOUT);
    two.b.enter_init(&qb, RC);
    let mut bytes = init2rtr(qb.qpn, &to_a);
    // MTU 256, messages up to 2^9 bytes.
    bytes[0x20] = 1 << 5 | 9;
    two.b.host.ok(&bytes, 0x10);
    two.b.host.ok(&rtr2rts(qb.qpn, &to_a, TIMEOUT), 0x10);
    for (len, syndrome) in [(512, None), (513, Some(0x12))] {
        let mut segments = Peer::raddr(&two.b, 0, two.b.key);
        segments.extend(two.a.sge(0, len));
        two.a.post_send(&mut qa, &work(WRITE), &segments);
        two.run();
        let got = &two.a.polled()[0];
        assert_eq!((got.opcode() == 13).then(|| got.syndrome()), syndrome, "{len} bytes");
    }
    assert_eq!(two.b.state(&qb), ERR);
}

#[test]
fn a_data_segment_of_zero_bytes_is_one_of_two_gibibytes() {
    let mut two = Two::new();
    let (mut qa, _qb) = two.connected(RC);
    two.a.post_send(&mut qa, &work(SEND), &two.a.sge(0, 0));
    two.run();
    assert_eq!(two.a.polled()[0].syndrome(), 0x01, "longer than a message may be");
}
