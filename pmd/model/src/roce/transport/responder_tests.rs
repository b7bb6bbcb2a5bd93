//! Packets in, replies out, without memory.

use super::*;
use crate::roce::transport::bth::Transport;

const MTU: u32 = 256;
/// Every test crosses the wrap.
const START: Psn = Psn::new(0xff_ffff);

fn responder() -> Responder {
    Responder::new(START, 2, MTU)
}

fn packet(op: Op, offset: u32) -> Header {
    Header::new(Transport::Rc, op, 1, START.plus(offset))
}

fn read(offset: u32, va: u64, len: u32) -> Header {
    let mut header = packet(Op::ReadRequest, offset);
    header.reth = Reth { va, rkey: 7, len };
    header
}

#[track_caller]
fn accept(responder: &mut Responder, op: Op, offset: u32, len: u32) {
    let header = packet(op, offset);
    assert_eq!(responder.receive(&header, len), Arrival::New);
    responder.accept(&header, len);
}

fn replies(responder: &mut Responder) -> Vec<Reply> {
    let mut replies = Vec::new();
    while let Some(reply) = responder.reply() {
        replies.push(reply);
        responder.replied(1);
    }
    replies
}

fn ack(offset: u32, syndrome: AckSyndrome, msn: u32) -> Reply {
    Reply::Ack { psn: START.plus(offset), syndrome, msn }
}

#[test]
fn messages_are_counted_and_acknowledgements_run_together() {
    let mut responder = responder();
    accept(&mut responder, Op::SendFirst, 0, MTU);
    accept(&mut responder, Op::SendMiddle, 1, MTU);
    accept(&mut responder, Op::SendLast, 2, 1);
    responder.acknowledge(START.plus(2));
    accept(&mut responder, Op::SendOnly, 3, 0);
    responder.acknowledge(START.plus(3));
    assert_eq!(replies(&mut responder), [ack(3, AckSyndrome::ACK, 2)]);
    assert_eq!((responder.expected(), responder.msn()), (START.plus(4), 2));
}

#[test]
fn one_nak_tells_of_a_gap() {
    let mut responder = responder();
    for offset in [1, 2, 3] {
        let arrival = responder.receive(&packet(Op::SendOnly, offset), 1);
        assert_eq!(arrival, Arrival::OutOfSequence);
    }
    assert_eq!(replies(&mut responder), [ack(0, AckSyndrome::NAK_SEQUENCE, 0)]);
    accept(&mut responder, Op::SendOnly, 0, 1);
    responder.receive(&packet(Op::SendOnly, 2), 1);
    assert_eq!(replies(&mut responder), [ack(1, AckSyndrome::NAK_SEQUENCE, 1)], "a new gap");
}

#[test]
fn duplicates_are_acknowledged_and_not_carried_out() {
    let mut responder = responder();
    accept(&mut responder, Op::SendOnly, 0, 1);
    accept(&mut responder, Op::SendOnly, 1, 1);
    assert_eq!(responder.receive(&packet(Op::SendOnly, 0), 1), Arrival::Duplicate);
    assert_eq!(replies(&mut responder), [ack(1, AckSyndrome::ACK, 2)], "the last one");
}

#[test]
fn opcodes_out_of_order_and_wrong_lengths_are_invalid() {
    let invalid = |responder: &mut Responder, op, offset, len| {
        let arrival = responder.receive(&packet(op, offset), len);
        assert!(matches!(arrival, Arrival::Invalid(_)), "{op:?} {len}: {arrival:?}");
    };
    let mut responder = responder();
    for op in [Op::SendMiddle, Op::SendLast, Op::WriteMiddle, Op::WriteLastImm] {
        invalid(&mut responder, op, 0, MTU);
    }
    invalid(&mut responder, Op::SendOnly, 0, MTU + 1);
    invalid(&mut responder, Op::SendFirst, 0, MTU - 1);
    invalid(&mut responder, Op::ReadRequest, 0, 4);
    accept(&mut responder, Op::SendFirst, 0, MTU);
    for op in [Op::SendFirst, Op::SendOnly, Op::WriteOnly, Op::WriteLast, Op::ReadRequest] {
        invalid(&mut responder, op, 1, if op == Op::ReadRequest { 0 } else { MTU });
    }
    invalid(&mut responder, Op::SendLast, 1, 0);
}

#[test]
fn the_length_of_a_write_is_kept_to() {
    let mut header = packet(Op::WriteFirst, 0);
    header.reth = Reth { va: 0x1000, rkey: 7, len: MTU + 10 };
    let mut responder = responder();
    assert_eq!(responder.receive(&header, MTU), Arrival::New);
    responder.begin_write(header.reth);
    assert_eq!(responder.write_target(), Some((0x1000, 7)));
    responder.accept(&header, MTU);
    assert_eq!(responder.write_target(), Some((0x1000 + u64::from(MTU), 7)));
    for len in [9, 11] {
        let arrival = responder.receive(&packet(Op::WriteLast, 1), len);
        assert!(matches!(arrival, Arrival::Invalid(_)));
    }
    assert!(matches!(responder.receive(&packet(Op::WriteMiddle, 1), MTU), Arrival::Invalid(_)));
    accept(&mut responder, Op::WriteLast, 1, 10);
    assert_eq!((responder.write_target(), responder.msn()), (None, 1));
    header.op = Op::WriteOnly;
    header.psn = START.plus(2);
    assert!(matches!(responder.receive(&header, MTU), Arrival::Invalid(_)), "shorter than said");
}

#[test]
fn a_read_is_answered_packet_by_packet_and_again_from_any_of_them() {
    let mut responder = responder();
    let request = read(0, 0x1000, 2 * MTU + 1);
    assert_eq!(responder.receive(&request, 0), Arrival::New);
    responder.accept_read(request.psn, request.reth, 5);
    assert_eq!(responder.expected(), START.plus(3));
    let numbers = replies(&mut responder);
    assert_eq!(numbers.len(), 3);
    assert!(matches!(numbers[2], Reply::Read { number: 2, msn: 1, .. }));
    let again = read(1, 0x1000 + u64::from(MTU), MTU + 1);
    assert_eq!(responder.receive(&again, 0), Arrival::Duplicate);
    assert_eq!(replies(&mut responder).len(), 2);
    for wrong in [read(1, 0x1000, MTU), read(1, 0x1000 + u64::from(MTU), MTU + 2)] {
        assert_eq!(responder.receive(&wrong, 0), Arrival::Dropped, "outside the first range");
    }
    assert!(replies(&mut responder).is_empty());
}

#[test]
fn a_read_whose_key_went_is_refused_and_its_repetition_dropped() {
    let mut responder = responder();
    for offset in [0, 1] {
        let header = read(offset, 0x1000, MTU);
        assert_eq!(responder.receive(&header, 0), Arrival::New);
        responder.accept_read(header.psn, header.reth, 3);
    }
    responder.replied(1);
    responder.replied(1);
    // The network brings the first again, and then something that is acknowledged.
    assert_eq!(responder.receive(&read(0, 0x1000, MTU), 0), Arrival::Duplicate);
    accept(&mut responder, Op::SendOnly, 2, 0);
    responder.acknowledge(START.plus(2));
    assert!(!responder.refuse_reply(AckSyndrome::NAK_REMOTE_ACCESS));
    assert_eq!(replies(&mut responder), [ack(2, AckSyndrome::ACK, 3)]);
    // One that was never answered is refused, and nothing follows it.
    let header = read(3, 0x1000, 2 * MTU);
    assert_eq!(responder.receive(&header, 0), Arrival::New);
    responder.accept_read(header.psn, header.reth, 3);
    responder.acknowledge(START.plus(5));
    responder.replied(1);
    assert!(responder.refuse_reply(AckSyndrome::NAK_REMOTE_ACCESS));
    assert_eq!(replies(&mut responder), [ack(4, AckSyndrome::NAK_REMOTE_ACCESS, 4)]);
}

#[test]
fn an_atomic_is_remembered_and_forgotten_in_turn() {
    let mut responder = responder();
    for offset in 0..3 {
        let header = packet(Op::FetchAdd, offset);
        assert_eq!(responder.receive(&header, 0), Arrival::New);
        responder.accept_atomic(header.psn, 100 + u64::from(offset));
    }
    assert!(!responder.has_room());
    replies(&mut responder);
    assert!(responder.has_room());
    assert_eq!(responder.receive(&packet(Op::FetchAdd, 1), 0), Arrival::Duplicate);
    let (psn, original, msn) = (START.plus(1), 101, 3);
    assert_eq!(replies(&mut responder), [Reply::Atomic { psn, original, msn }]);
    assert_eq!(responder.receive(&packet(Op::FetchAdd, 0), 0), Arrival::Dropped, "two are kept");
}

#[test]
fn a_lost_packet_costs_an_unreliable_message_only_its_own() {
    let mut responder = responder();
    let first = packet(Op::SendFirst, 0);
    assert_eq!(responder.receive_unreliable(&first, MTU), Arrival::New);
    responder.accept(&first, MTU);
    assert_eq!(responder.receive_unreliable(&packet(Op::SendLast, 2), 1), Arrival::Restart);
    assert_eq!(responder.receive_unreliable(&packet(Op::SendMiddle, 3), MTU), Arrival::Dropped);
    let only = packet(Op::SendOnly, 9);
    assert_eq!(responder.receive_unreliable(&only, 1), Arrival::New, "a new message");
    responder.accept(&only, 1);
    assert_eq!(responder.msn(), 1);
}

#[test]
fn packets_that_come_as_one_are_as_many_as_they_say() {
    let together = |op, offset, packets| Header { packets, ..packet(op, offset) };
    let mut responder = responder();
    for (op, packets, len) in [
        (Op::SendOnly, 3, 2 * MTU),
        (Op::SendOnly, 3, 3 * MTU + 1),
        (Op::SendFirst, 2, 2 * MTU - 1),
        (Op::SendFirst, 2, MTU),
        (Op::SendFirst, u32::MAX, 0),
        (Op::ReadRequest, 1, 1),
    ] {
        let arrival = responder.receive(&together(op, 0, packets), len);
        assert!(matches!(arrival, Arrival::Invalid(_)), "{op:?} {packets} {len}");
    }
    for (op, offset, packets, len) in [
        (Op::SendOnly, 0, 3, 2 * MTU + 1),
        (Op::SendFirst, 3, 2, 2 * MTU),
        (Op::SendMiddle, 5, 2, 2 * MTU),
        (Op::SendLast, 7, 2, MTU + 1),
    ] {
        let header = together(op, offset, packets);
        assert_eq!(responder.receive(&header, len), Arrival::New, "{op:?}");
        responder.accept(&header, len);
        responder.acknowledge(header.last_psn());
    }
    assert_eq!((responder.expected(), responder.msn()), (START.plus(9), 2));
    assert_eq!(replies(&mut responder), [ack(8, AckSyndrome::ACK, 2)]);
}
