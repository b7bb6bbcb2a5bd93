//! How connections begin, and why they do not.

use super::*;

#[test]
fn a_request_is_literal() {
    let mut engine = Engine::new(config(1));
    engine.connect(&request(), Duration::ZERO);
    let bytes = Two::take(&mut engine, "REQ").to_bytes();
    let mut expected = [0; 256];
    // Header: base 1, class 7, version 2, send; transaction; REQ.
    expected[..4].copy_from_slice(&[1, 7, 2, 3]);
    expected[8..16].copy_from_slice(&[0, 0, 0, 100, 0, 0, 0, 100]);
    expected[17] = 0x10;
    let body = &mut expected[24..];
    body[3] = 100;
    body[8..16].copy_from_slice(&[0, 0, 0, 0, 1, 6, 0x1c, 0x06]);
    body[23] = 1;
    body[32..36].copy_from_slice(&[0x0a, 0x0b, 0x0c, 4]);
    body[39] = 5;
    body[43] = 8 << 3;
    body[44..48].copy_from_slice(&[0x11, 0x22, 0x33, 8 << 3 | 6]);
    // P_Key; MTU 1024 and RNR retries; retries of the manager.
    body[48..52].copy_from_slice(&[0xff, 0xff, 3 << 4 | 7, 3 << 4]);
    body[52..56].fill(0xff);
    body[66..72].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1]);
    body[82..88].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 2]);
    body[93] = 64;
    body[95] = 9 << 3;
    // The header of rdma_cm: version 0, IPv4, port 50000, both addresses; then ours.
    body[140..144].copy_from_slice(&[0, 0x40, 0xc3, 0x50]);
    body[156..160].copy_from_slice(&[10, 0, 0, 1]);
    body[172..176].copy_from_slice(&[10, 0, 0, 2]);
    body[176..181].copy_from_slice(b"hello");
    assert_eq!(bytes, expected);
}

#[test]
fn what_could_not_be_sent_is_wanted_as_long_as_its_connection() {
    let mut engine = Engine::new(config(1));
    let id = engine.connect(&request(), Duration::ZERO);
    let asked = Two::take(&mut engine, "REQ").message;
    let [refusal, farewell] = [Message::Rej(CmRej::zeroed()), Message::Drep(CmDrep::zeroed())];
    assert!(engine.wants(id, &asked) && engine.wants(id, &refusal));
    engine.forget(id, Duration::ZERO);
    assert!(!engine.wants(id, &asked), "nobody waits for the answer");
    assert!(engine.wants(id, &refusal) && engine.wants(id, &farewell), "the peer waits for these");
    let mut two = Two::new();
    let (id, _) = two.established();
    two.a.disconnect(id, &[], two.now);
    let ended = Two::take(&mut two.a, "DREQ").message;
    assert!(two.a.wants(id, &ended));
    two.pass(INTERVAL * 100);
    two.pass(INTERVAL * 100);
    two.pass(INTERVAL * 100);
    two.pass(INTERVAL * 100);
    assert_ne!(two.a.state(id), State::DreqSent);
    assert!(!two.a.wants(id, &ended), "it was given up");
}

#[test]
fn the_header_of_ipv6_has_whole_addresses() {
    let mut engine = Engine::new(config(1));
    let (local, remote) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
    engine.connect(&Request { ends: Ends { local, remote }, ..request() }, Duration::ZERO);
    let bytes = Two::take(&mut engine, "REQ").to_bytes();
    let head = &bytes[24 + 140..];
    assert_eq!(head[..4], [0, 0x60, 0xc3, 0x50]);
    assert_eq!((head[4], head[19], head[20], head[35]), (0xfd, 1, 0xfd, 2));
    assert_eq!((bytes[24 + 56], bytes[24 + 71], bytes[24 + 87]), (0xfd, 1, 2));
}

#[test]
fn an_acceptance_carries_what_was_agreed() {
    let mut two = Two::new();
    let (id, theirs) = two.asked();
    let req = &two.b.conn(theirs).unwrap().request;
    assert_eq!((req.responder_resources(), req.initiator_depth()), (4, 5));
    two.accept(theirs);
    let Message::Rep(rep) = two.pass_to_a("REP").message else { panic!() };
    assert_eq!((rep.local_comm_id(), rep.remote_comm_id()), (200, 100));
    assert_eq!((rep.local_qpn(), rep.starting_psn()), (0x01_0203, 0x44_5566));
    assert_eq!((rep.responder_resources(), rep.initiator_depth()), (5, 4));
    assert_eq!((rep.rnr_retry_count(), rep.target_ack_delay()), (6, 15));
    assert_eq!((rep.local_ca_guid(), &rep.private_data()[..8]), (2, &b"welcome\0"[..]));
    assert_eq!(two.a.conn(id).unwrap().reply.as_deref(), Some(&rep));
    two.a.establish(id);
    two.pass_to_b("RTU");
    two.clean(id, theirs);
}

#[test]
fn a_request_without_answer_is_repeated_and_given_up() {
    let mut two = Two::new();
    let id = two.a.connect(&request(), two.now);
    let first = Two::take(&mut two.a, "REQ");
    for _ in 0..RETRIES {
        two.pass(INTERVAL - Duration::from_nanos(1));
        two.quiet();
        two.pass(Duration::from_nanos(1));
        assert_eq!(Two::take(&mut two.a, "REQ"), first);
    }
    two.pass(INTERVAL);
    let Message::Rej(rej) = Two::take(&mut two.a, "REJ").message else { panic!() };
    assert_eq!((rej.reason(), rej.rejected_info_length()), (4, 8));
    assert_eq!(rej.ari()[..8], 1u64.to_be_bytes());
    let after = INTERVAL * 4;
    let end = End::NoAnswer { message: "REQ", sent: 4, after };
    assert_eq!((two.a.state(id), two.a.end_of(id)), (State::Ended, Some(&end)));
    two.a.forget(id, two.now);
    assert!(two.a.is_empty());
}

#[test]
fn a_peer_that_gave_up_takes_its_request_back() {
    let mut two = Two::new();
    let id = two.a.connect(&request(), two.now);
    two.pass_to_b("REQ");
    // Nobody has taken it: it leaves the queue and everything else.
    two.a.disconnect(id, &[], two.now);
    two.pass_to_b("REJ");
    assert_eq!(two.b.take_request(service_id(PORT)), None);
    assert!(two.b.is_empty());
    // Somebody has: he is told.
    let mut two = Two::new();
    let (id, theirs) = two.asked();
    two.a.forget(id, two.now);
    two.pass_to_b("REJ");
    assert!(!two.accept(theirs));
    let Some(End::Rejected { reason, .. }) = two.b.end_of(theirs) else { panic!() };
    assert_eq!(*reason, RejectReason::TIMEOUT);
    two.clean(id, theirs);
}

#[test]
fn a_lost_acceptance_is_repeated() {
    let mut two = Two::new();
    let (id, theirs) = two.asked();
    two.accept(theirs);
    let lost = Two::take(&mut two.b, "REP");
    // By the peer's asking again, and by itself.
    two.pass(INTERVAL);
    assert_eq!(Two::take(&mut two.b, "REP"), lost);
    let again = Two::take(&mut two.a, "REQ");
    two.b.receive(back(), &again, two.now);
    assert_eq!(two.pass_to_a("REP"), lost);
    two.a.establish(id);
    two.pass_to_b("RTU");
    two.quiet();
    two.clean(id, theirs);
}

#[test]
fn an_acceptance_without_answer_is_given_up() {
    let mut two = Two::new();
    let (id, theirs) = two.asked();
    two.a.forget(id, two.now);
    while two.a.next_out().is_some() {}
    two.accept(theirs);
    for _ in 0..=RETRIES {
        Two::take(&mut two.b, "REP");
        two.pass(INTERVAL);
    }
    let Message::Rej(rej) = Two::take(&mut two.b, "REJ").message else { panic!() };
    assert_eq!((rej.reason(), rej.message_rejected()), (4, 1));
    assert_eq!(two.b.state(theirs), State::TimeWait);
    let Some(End::NoAnswer { message: "REP", sent: 4, .. }) = two.b.end_of(theirs) else {
        panic!("{:?}", two.b.end_of(theirs))
    };
    two.clean(id, theirs);
}

#[test]
fn a_lost_rtu_is_sent_again() {
    let mut two = Two::new();
    let (id, theirs) = two.asked();
    two.accept(theirs);
    two.pass_to_a("REP");
    two.a.establish(id);
    let lost = Two::take(&mut two.a, "RTU");
    two.pass(INTERVAL);
    two.pass_to_a("REP");
    assert_eq!(two.pass_to_b("RTU"), lost);
    assert_eq!(two.b.state(theirs), State::Established);
    two.pass(INTERVAL * 10);
    two.quiet();
    two.clean(id, theirs);
}

#[test]
fn a_slow_program_is_waited_for() {
    let mut two = Two::new();
    let (id, theirs) = two.asked();
    two.pass(INTERVAL);
    two.pass_to_b("REQ");
    let Message::Mra(mra) = two.pass_to_a("MRA").message else { panic!() };
    assert_eq!((mra.message_mraed(), mra.service_timeout()), (0, 10));
    // 4.2 ms, and a last interval.
    two.pass(time_of(10) + INTERVAL - Duration::from_nanos(1));
    two.quiet();
    two.pass(Duration::from_nanos(1));
    two.pass_to_b("REQ");
    two.pass_to_a("MRA");
    assert!(two.accept(theirs));
    two.pass_to_a("REP");
    two.a.establish(id);
    two.pass_to_b("RTU");
    two.clean(id, theirs);
}

#[test]
fn an_mra_about_something_else_changes_nothing() {
    let mut two = Two::new();
    let (id, theirs) = two.asked();
    let mra = CmMra::zeroed().with_remote_comm_id(id).with_message_mraed(1);
    let mad = Mad { transaction_id: 0, message: Message::Mra(mra.with_service_timeout(31)) };
    two.a.receive(ahead(), &mad, two.now);
    two.pass(INTERVAL);
    two.pass_to_b("REQ");
    two.pass_to_a("MRA");
    two.clean(id, theirs);
}

/// What an end says to a request that was changed.
fn refusal(change: impl FnOnce(CmReq) -> CmReq) -> (u32, u32, Vec<u8>) {
    let mut two = Two::new();
    two.a.connect(&request(), two.now);
    let Message::Req(req) = Two::take(&mut two.a, "REQ").message else { panic!() };
    let mad = Mad { transaction_id: 7, message: Message::Req(change(req)) };
    two.b.receive(back(), &mad, two.now);
    let mad = two.pass_to_a("REJ");
    assert_eq!(mad.transaction_id, 7);
    let Message::Rej(rej) = mad.message else { panic!() };
    assert_eq!((rej.local_comm_id(), rej.remote_comm_id()), (0, 100));
    assert!(two.b.is_empty());
    let Some(End::Rejected { reason, .. }) = two.a.end_of(100) else { panic!() };
    assert_eq!(u32::from(reason.0), rej.reason());
    let ari = rej.ari()[..rej.rejected_info_length() as usize].to_vec();
    (rej.reason(), rej.message_rejected(), ari)
}

#[test]
fn requests_that_cannot_be_served_are_refused_with_the_reason() {
    assert_eq!(refusal(|req| req.with_service_id(service_id(1))), (8, 0, vec![]));
    assert_eq!(refusal(|req| req.with_transport_service_type(1)), (9, 0, vec![]));
    assert_eq!(refusal(|req| req.with_path_packet_payload_mtu(4)), (26, 0, vec![0x30]));
    assert_eq!(refusal(|req| req.with_path_packet_payload_mtu(0)), (26, 0, vec![0x30]));
    assert_eq!(refusal(|req| req.with_private_data([0xff; 92])), (5, 0, vec![]));
    assert_eq!(refusal(|req| req.with_private_data([0; 92])), (5, 0, vec![]));
}

#[test]
fn a_full_queue_refuses() {
    let mut two = Two::new();
    for at in 0..3 {
        two.a.connect(&Request { qpn: at, ..request() }, two.now);
        two.pass_to_b("REQ");
    }
    let Message::Rej(rej) = two.pass_to_a("REJ").message else { panic!() };
    assert_eq!(rej.reason(), 3);
    two.quiet();
    // The others are refused when the listener goes.
    two.b.unlisten(service_id(PORT), two.now);
    two.pass_to_a("REJ");
    two.pass_to_a("REJ");
    assert!(two.b.is_empty());
    assert!(two.b.listen(service_id(PORT), 1));
    assert!(!two.b.listen(service_id(PORT), 1));
}

#[test]
fn a_program_may_refuse_with_words() {
    let mut two = Two::new();
    let (id, theirs) = two.asked();
    two.b.reject(theirs, RejectReason::CONSUMER_DEFINED, b"no", two.now);
    two.pass_to_a("REJ");
    let Some(End::Rejected { reason, private_data }) = two.a.end_of(id) else { panic!() };
    assert_eq!((*reason, &private_data[..3]), (RejectReason::CONSUMER_DEFINED, &b"no\0"[..]));
    two.clean(id, theirs);
    // The active end too, when its queue pair is refused.
    let mut two = Two::new();
    let (id, theirs) = two.asked();
    two.accept(theirs);
    two.pass_to_a("REP");
    two.a.forget(id, two.now);
    let Message::Rej(rej) = two.pass_to_b("REJ").message else { panic!() };
    assert_eq!((rej.reason(), rej.message_rejected()), (28, 1));
    assert_eq!(two.b.state(theirs), State::TimeWait);
    two.clean(id, theirs);
}

#[test]
fn a_queue_pair_that_is_used_anew_ends_the_old_connection() {
    let mut two = Two::new();
    let (_, theirs) = two.established();
    // The peer's host has forgotten everything: another engine of the same device.
    two.a = Engine::new(EngineConfig { first_id: 500, ..config(1) });
    let anew = two.a.connect(&request(), two.now);
    two.pass_to_b("REQ");
    let Message::Rej(rej) = two.pass_to_a("REJ").message else { panic!() };
    assert_eq!(rej.reason(), 10);
    assert_eq!(two.b.end_of(theirs), Some(&End::Stale));
    // It is asked again later, when time wait is over there.
    assert_eq!(two.a.state(anew), State::ReqSent);
    two.pass_to_a("DREQ");
    two.pass_to_b("DREP");
    assert_eq!(two.b.state(theirs), State::TimeWait);
    two.pass(INTERVAL);
    two.pass_to_b("REQ");
    two.pass_to_a("REJ");
    two.pass(INTERVAL);
    two.pass_to_b("REQ");
    let taken = two.b.take_request(service_id(PORT)).unwrap();
    two.b.forget(theirs, two.now);
    two.accept(taken);
    two.pass_to_a("REP");
    assert_eq!(two.a.state(anew), State::RepRcvd);
    two.clean(anew, taken);
}

#[test]
fn a_peer_that_stays_stale_is_given_up() {
    let mut two = Two::new();
    let id = two.a.connect(&request(), two.now);
    for _ in 0..=RETRIES {
        Two::take(&mut two.a, "REQ");
        assert_eq!(two.a.end_of(id), None);
        let message = rej((0, id), 0, RejectReason::STALE_CONNECTION, &[], &[]);
        let mad = Mad { transaction_id: 0, message };
        two.a.receive(ahead(), &mad, two.now);
        two.pass(INTERVAL);
    }
    let Some(End::Rejected { reason, .. }) = two.a.end_of(id) else { panic!() };
    assert_eq!(*reason, RejectReason::STALE_CONNECTION);
}

#[test]
fn a_peer_without_address_ends_what_is_under_way() {
    let mut two = Two::new();
    let id = two.a.connect(&request(), two.now);
    two.a.unreachable(id, "nobody there", two.now);
    let Some(end) = two.a.end_of(id) else { panic!() };
    assert_eq!((two.a.state(id), end.to_string().as_str()), (State::Ended, "nobody there"));
    let mut two = Two::new();
    let (id, theirs) = two.established();
    two.a.unreachable(id, "a moment", two.now);
    assert_eq!(two.a.state(id), State::Established);
    two.clean(id, theirs);
}

#[test]
fn numbers_wrap_past_zero_and_those_in_use() {
    let mut engine = Engine::new(EngineConfig { first_id: u32::MAX, ..config(1) });
    let ids: Vec<u32> = (0..3).map(|_| engine.connect(&request(), Duration::ZERO)).collect();
    assert_eq!(ids, [u32::MAX, 1, 2]);
    engine.next_id = u32::MAX;
    assert_eq!(engine.connect(&request(), Duration::ZERO), 3);
}

#[test]
fn an_own_address_is_a_peer_like_others() {
    let mut engine = Engine::new(config(1));
    engine.listen(service_id(PORT), 1);
    let now = Duration::ZERO;
    let ends = Ends { local: ip(1), remote: ip(1) };
    let id = engine.connect(&Request { ends, ..request() }, now);
    let mut theirs = None;
    while let Some(out) = engine.next_out() {
        engine.receive(ends, &out.mad, now);
        if let Some(taken) = engine.take_request(service_id(PORT)) {
            assert!(engine.prepare(taken, &answer()) && engine.accept(taken, now));
            theirs = Some(taken);
        }
        engine.establish(id);
    }
    assert_eq!(engine.state(id), State::Established);
    assert_eq!(engine.state(theirs.unwrap()), State::Established);
}
