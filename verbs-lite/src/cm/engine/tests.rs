//! Two engines and the messages between them, lost, repeated and swapped at will.
//!
//! Long file: one small test for each thing that can happen to a message.

use std::net::IpAddr;

use ferrocx_prm::mad::{CmDrep, CmDreq, CmMra, CmRej, CmRep, CmReq, CmRtu};
use proptest::prelude::*;

use super::super::config::{CmLimits, ConnParams};
use super::super::conn::{rej, service_id};
use super::*;

const PORT: u16 = 7174;
/// 4.096 us times 2 to the power 8: about a millisecond.
const TIMEOUT: u8 = 8;
const INTERVAL: Duration = Duration::from_nanos(4096 << TIMEOUT);
const RETRIES: u8 = 3;

fn config(guid: u64) -> EngineConfig {
    let (response_timeout, max_retries) = (TIMEOUT, RETRIES);
    let cm = CmConfig { response_timeout, max_retries, service_timeout: 10, ..CmConfig::default() };
    EngineConfig { cm, guid, max_mtu: 3, first_id: guid as u32 * 100 }
}

fn ip(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

/// From 10.0.0.1 to 10.0.0.2.
fn ahead() -> Ends {
    Ends { local: ip(1), remote: ip(2) }
}

/// And back.
fn back() -> Ends {
    Ends { local: ip(2), remote: ip(1) }
}

fn request() -> Request<'static> {
    Request {
        ends: ahead(),
        port: PORT,
        source_port: 50_000,
        qpn: 0x0a_0b0c,
        psn: 0x11_2233,
        mtu: 3,
        hop_limit: 64,
        traffic_class: 0,
        params: ConnParams {
            responder_resources: 4,
            initiator_depth: 5,
            retry_count: 6,
            rnr_retry_count: 7,
            ack_timeout: 9,
            private_data: b"hello",
        },
    }
}

fn answer() -> Answer<'static> {
    Answer {
        qpn: 0x01_0203,
        psn: 0x44_5566,
        params: ConnParams {
            responder_resources: 6,
            initiator_depth: 9,
            rnr_retry_count: 6,
            private_data: b"welcome",
            ..ConnParams::default()
        },
    }
}

/// Both ends and their clock.
struct Two {
    a: Engine,
    b: Engine,
    now: Duration,
}

impl Two {
    fn new() -> Self {
        let (a, mut b) = (Engine::new(config(1)), Engine::new(config(2)));
        assert!(b.listen(service_id(PORT), 2));
        Self { a, b, now: Duration::from_secs(1) }
    }

    /// The next message of an end, which must have that name.
    fn take(engine: &mut Engine, name: &str) -> Mad {
        let out = engine.next_out().unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(out.mad.message.name(), name);
        out.mad
    }

    fn pass_to_a(&mut self, name: &str) -> Mad {
        let mad = Self::take(&mut self.b, name);
        self.a.receive(ahead(), &mad, self.now);
        mad
    }

    fn pass_to_b(&mut self, name: &str) -> Mad {
        let mad = Self::take(&mut self.a, name);
        self.b.receive(back(), &mad, self.now);
        mad
    }

    fn quiet(&mut self) {
        assert_eq!(self.a.next_out(), None);
        assert_eq!(self.b.next_out(), None);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.a.poll(self.now);
        self.b.poll(self.now);
    }

    /// Asked for, arrived, taken: numbers at both ends.
    fn asked(&mut self) -> (u32, u32) {
        let id = self.a.connect(&request(), self.now);
        self.pass_to_b("REQ");
        let theirs = self.b.take_request(service_id(PORT)).unwrap();
        assert_eq!((self.a.state(id), self.b.state(theirs)), (State::ReqSent, State::ReqRcvd));
        (id, theirs)
    }

    fn accept(&mut self, theirs: u32) -> bool {
        self.b.prepare(theirs, &answer()) && self.b.accept(theirs, self.now)
    }

    fn established(&mut self) -> (u32, u32) {
        let (id, theirs) = self.asked();
        assert!(self.accept(theirs));
        assert_eq!(self.b.state(theirs), State::RepSent);
        self.pass_to_a("REP");
        assert_eq!(self.a.state(id), State::RepRcvd);
        assert!(self.a.establish(id));
        self.pass_to_b("RTU");
        let states = (self.a.state(id), self.b.state(theirs));
        assert_eq!(states, (State::Established, State::Established));
        self.quiet();
        (id, theirs)
    }

    /// Everybody lets go; after time wait nothing is left.
    fn clean(mut self, id: u32, theirs: u32) {
        self.a.forget(id, self.now);
        self.b.forget(theirs, self.now);
        for _ in 0..200 {
            self.pass(INTERVAL);
            while self.a.next_out().is_some() || self.b.next_out().is_some() {}
        }
        for engine in [&self.a, &self.b] {
            assert!(engine.is_empty() && engine.deadlines.is_empty());
            assert!(engine.by_remote.is_empty() && engine.by_qpn.is_empty());
        }
    }
}

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
fn either_end_may_end_it() {
    let mut two = Two::new();
    let (id, theirs) = two.established();
    two.a.disconnect(id, b"bye", two.now);
    assert_eq!(two.a.state(id), State::DreqSent);
    let Message::Dreq(dreq) = two.pass_to_b("DREQ").message else { panic!() };
    assert_eq!(dreq.remote_qpn_eecn(), 0x01_0203);
    let Some(End::ByPeer(private_data)) = two.b.end_of(theirs) else { panic!() };
    assert_eq!(private_data[..4], *b"bye\0");
    two.pass_to_a("DREP");
    assert_eq!((two.a.state(id), two.a.end_of(id)), (State::TimeWait, Some(&End::ByUs)));
    two.clean(id, theirs);

    let mut two = Two::new();
    let (id, theirs) = two.established();
    two.b.disconnect(theirs, &[], two.now);
    let Message::Dreq(dreq) = two.pass_to_a("DREQ").message else { panic!() };
    assert_eq!(dreq.remote_qpn_eecn(), 0x0a_0b0c);
    two.pass_to_b("DREP");
    two.quiet();
    two.clean(id, theirs);
}

#[test]
fn both_may_end_it_at_once() {
    let mut two = Two::new();
    let (id, theirs) = two.established();
    two.a.disconnect(id, &[], two.now);
    two.b.disconnect(theirs, &[], two.now);
    two.pass_to_a("DREQ");
    two.pass_to_b("DREQ");
    two.pass_to_a("DREP");
    two.pass_to_b("DREP");
    two.quiet();
    assert_eq!((two.a.state(id), two.b.state(theirs)), (State::TimeWait, State::TimeWait));
    two.clean(id, theirs);
}

#[test]
fn a_lost_drep_is_sent_again_in_time_wait_and_after_it() {
    let mut two = Two::new();
    let (id, theirs) = two.established();
    two.a.disconnect(id, &[], two.now);
    two.pass_to_b("DREQ");
    let lost = Two::take(&mut two.b, "DREP");
    two.now += INTERVAL;
    two.a.poll(two.now);
    two.pass_to_b("DREQ");
    assert_eq!(Two::take(&mut two.b, "DREP"), lost);
    // 2.1 ms of time wait are over.
    two.pass(INTERVAL * 2);
    two.b.forget(theirs, two.now);
    assert!(two.b.is_empty());
    two.pass_to_b("DREQ");
    assert_eq!(two.pass_to_a("DREP"), lost);
    two.clean(id, theirs);
}

#[test]
fn a_dreq_without_answer_ends_it_too() {
    let mut two = Two::new();
    let (id, theirs) = two.established();
    two.a.disconnect(id, &[], two.now);
    for _ in 0..=RETRIES {
        Two::take(&mut two.a, "DREQ");
        two.now += INTERVAL;
        two.a.poll(two.now);
    }
    assert_eq!(two.a.state(id), State::TimeWait);
    let Some(End::NoAnswer { message: "DREQ", .. }) = two.a.end_of(id) else { panic!() };
    two.clean(id, theirs);
}

#[test]
fn an_end_that_comes_before_the_rtu_is_an_end() {
    let mut two = Two::new();
    let (id, theirs) = two.asked();
    two.accept(theirs);
    two.pass_to_a("REP");
    two.a.establish(id);
    Two::take(&mut two.a, "RTU");
    two.a.disconnect(id, &[], two.now);
    two.pass_to_b("DREQ");
    assert_eq!(two.b.state(theirs), State::TimeWait);
    two.pass_to_a("DREP");
    two.clean(id, theirs);
}

#[test]
fn messages_that_do_not_fit_are_ignored() {
    let mut two = Two::new();
    let (id, theirs) = two.established();
    let dreq = CmDreq::zeroed().with_local_comm_id(200).with_remote_comm_id(100);
    let other = dreq.with_local_comm_id(9).with_remote_qpn_eecn(0x0a_0b0c);
    for (message, is_answered) in [
        // Another queue pair; another number of the peer's; a second RTU; a stray DREP.
        (Message::Dreq(dreq.with_remote_qpn_eecn(1)), false),
        (Message::Dreq(other), true),
        (Message::Rtu(CmRtu::zeroed().with_remote_comm_id(100)), false),
        (Message::Drep(CmDrep::zeroed().with_remote_comm_id(100)), false),
        (rej((9, 100), 0, RejectReason::NO_QP, &[], &[]), false),
    ] {
        let mad = Mad { transaction_id: 0, message };
        two.a.receive(ahead(), &mad, two.now);
        assert_eq!(two.a.next_out().is_some(), is_answered, "{message:?}");
        assert_eq!(two.a.state(id), State::Established);
    }
    // An acceptance of what nobody asked for is refused.
    let rep = CmRep::zeroed().with_local_comm_id(5).with_remote_comm_id(6);
    let mad = Mad { transaction_id: 0, message: Message::Rep(rep) };
    two.a.receive(ahead(), &mad, two.now);
    let Message::Rej(rej) = Two::take(&mut two.a, "REJ").message else { panic!() };
    assert_eq!((rej.reason(), rej.local_comm_id(), rej.remote_comm_id()), (6, 6, 5));
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

/// Lets the time of the called end pass; how long it took until nothing more was due.
fn until_over(engine: &mut Engine, start: Duration) -> Duration {
    let mut end = start;
    while let Some(at) = engine.next_deadline() {
        end = at;
        engine.poll(at);
        while engine.next_out().is_some() {}
    }
    end - start
}

/// A request that asks for the longest times there are: 2.4 hours, sixteen times.
fn patient(two: &mut Two) -> Mad {
    two.a.connect(&request(), two.now);
    let Message::Req(req) = Two::take(&mut two.a, "REQ").message else { panic!() };
    let req = req.with_local_cm_response_timeout(31).with_max_cm_retries(15);
    Mad { transaction_id: 7, message: Message::Req(req.with_primary_local_ack_timeout(31)) }
}

#[test]
fn a_silent_peer_is_waited_for_no_longer_than_the_limits_say() {
    let limits = CmLimits::default();
    // Accepted: the acceptance is given up, and time wait ends.
    let mut two = Two::new();
    let mad = patient(&mut two);
    two.b.receive(back(), &mad, two.now);
    let theirs = two.b.take_request(service_id(PORT)).unwrap();
    assert!(two.accept(theirs));
    let (state, now) = (two.b.state(theirs), two.now);
    assert_eq!(state, State::RepSent);
    let took = until_over(&mut two.b, now);
    assert_eq!(took, limits.patience + limits.time_wait);
    assert!(matches!(two.b.end_of(theirs), Some(End::NoAnswer { message: "REP", .. })));
    assert_eq!(two.b.limit_stats().timed_out, 1, "half open until its time was over");
    // Decided by nobody, taken or not.
    for is_taken in [false, true] {
        let mut two = Two::new();
        let mad = patient(&mut two);
        two.b.receive(back(), &mad, two.now);
        let taken = if is_taken { two.b.take_request(service_id(PORT)) } else { None };
        assert_eq!(until_over(&mut two.b, two.now), limits.patience);
        let end = taken.map(|id| two.b.end_of(id).cloned());
        assert!(end.is_none_or(|end| matches!(end, Some(End::GivenUp(_)))));
        assert_eq!((two.b.len(), two.b.limit_stats().timed_out), (usize::from(is_taken), 1));
    }
}

#[test]
fn a_peer_that_asks_for_more_time_again_and_again_gets_what_the_limits_say() {
    let mut two = Two::new();
    let (id, start) = (two.a.connect(&request(), two.now), two.now);
    let mra = CmMra::zeroed().with_remote_comm_id(id).with_service_timeout(31);
    let mad = Mad { transaction_id: 0, message: Message::Mra(mra) };
    for _ in 0..200 {
        two.a.receive(ahead(), &mad, two.now);
        two.pass(Duration::from_secs(1));
    }
    let Some(End::NoAnswer { message: "REQ", after, .. }) = two.a.end_of(id) else { panic!() };
    assert!(*after <= CmLimits::default().patience + Duration::from_secs(1), "{after:?}");
    assert!(two.now - start >= Duration::from_secs(200));
}

#[test]
fn a_peer_cannot_make_us_answer_in_bursts() {
    let mut two = Two::new();
    let Message::Req(req) = patient(&mut two).message else { panic!() };
    let message = Message::Req(req.with_local_cm_response_timeout(0));
    two.b.receive(back(), &Mad { transaction_id: 7, message }, two.now);
    let theirs = two.b.take_request(service_id(PORT)).unwrap();
    two.accept(theirs);
    Two::take(&mut two.b, "REP");
    two.pass(INTERVAL - Duration::from_nanos(1));
    assert_eq!(two.b.next_out(), None);
}

/// An engine with small limits, and a queue that is larger than they are.
fn crowded() -> Engine {
    let limits = CmLimits {
        half_open: 8,
        half_open_per_peer: 4,
        ending: 6,
        ending_per_peer: 3,
        ..CmLimits::default()
    };
    let EngineConfig { cm, .. } = config(2);
    let mut engine = Engine::new(EngineConfig { cm: CmConfig { limits, ..cm }, ..config(2) });
    engine.listen(service_id(PORT), 128);
    engine
}

/// A request from that host, about that connection of its.
fn ask(engine: &mut Engine, host: u8, id: u32) {
    let ends = Ends { local: ip(2), remote: ip(host) };
    let EngineConfig { cm, .. } = config(1);
    let request = Request { ends, qpn: id, ..request() };
    let message = Message::Req(super::super::conn::req(id, &request, &cm, host.into()));
    engine.receive(ends, &Mad { transaction_id: 0, message }, Duration::ZERO);
}

#[test]
fn half_open_connections_are_limited_by_peer_and_in_all() {
    let mut engine = crowded();
    for id in 0..100 {
        ask(&mut engine, 9, id);
    }
    // The peer's own are refused, and others' go on.
    assert_eq!((engine.len(), engine.limit_stats().refused), (4, 96));
    let refused = std::iter::from_fn(|| engine.next_out()).count();
    assert_eq!(refused, 96);
    let first = engine.take_request(service_id(PORT)).unwrap();
    for host in 10..110 {
        ask(&mut engine, host, 1);
        assert!(engine.len() <= 8 + 1);
    }
    assert_eq!(engine.limit_stats().pushed_out, 96);
    assert_eq!(engine.next_out(), None, "who makes room is not told");
    let end = engine.end_of(first).unwrap().to_string();
    assert!(end.contains("CmLimits"), "{end}");
    assert!(!engine.prepare(first, &answer()));
    // The youngest are those that wait.
    let ids: Vec<_> = std::iter::from_fn(|| engine.take_request(service_id(PORT))).collect();
    assert_eq!(ids.len(), 8);
    let hosts: Vec<_> = ids.iter().map(|id| engine.conn(*id).unwrap().ends.remote).collect();
    assert_eq!(hosts, (102..110).map(ip).collect::<Vec<_>>());
}

#[test]
fn ended_connections_are_limited_by_peer_and_in_all() {
    let mut engine = crowded();
    let now = Duration::ZERO;
    for round in 0..100 {
        let host = if round < 50 { 9 } else { round as u8 };
        ask(&mut engine, host, round);
        let id = engine.take_request(service_id(PORT)).unwrap();
        assert!(engine.prepare(id, &answer()) && engine.accept(id, now));
        let dreq = CmDreq::zeroed().with_local_comm_id(round).with_remote_comm_id(id);
        let message = Message::Dreq(dreq.with_remote_qpn_eecn(answer().qpn));
        let ends = engine.conn(id).unwrap().ends;
        engine.receive(ends, &Mad { transaction_id: 0, message }, now);
        assert_eq!(engine.state(id), State::TimeWait);
        engine.forget(id, now);
        assert!(engine.len() <= if round < 50 { 3 } else { 6 });
        while engine.next_out().is_some() {}
    }
    assert_eq!(engine.limit_stats().forgotten, 47 + 47);
}

#[test]
fn messages_between_other_addresses_change_nothing() {
    let other = Ends { local: ip(1), remote: ip(66) };
    // A request is neither accepted, refused nor put off by somebody else.
    let mut two = Two::new();
    let (id, theirs) = two.asked();
    let deadline = two.a.next_deadline();
    two.accept(theirs);
    let rep = Two::take(&mut two.b, "REP");
    let mra = CmMra::zeroed().with_remote_comm_id(id).with_service_timeout(31);
    for (message, answers) in [
        (rep.message, 1),
        (rej((9, id), 0, RejectReason::NO_QP, &[], &[]), 0),
        (Message::Mra(mra), 0),
    ] {
        two.a.receive(other, &Mad { message, ..rep }, two.now);
        assert_eq!(std::iter::from_fn(|| two.a.next_out()).count(), answers, "{message:?}");
        assert_eq!((two.a.state(id), two.a.next_deadline()), (State::ReqSent, deadline));
    }
    // An acceptance is not confirmed by somebody else.
    let other_back = Ends { local: ip(2), remote: ip(66) };
    let rtu = CmRtu::zeroed().with_local_comm_id(id).with_remote_comm_id(theirs);
    two.b.receive(other_back, &Mad { message: Message::Rtu(rtu), ..rep }, two.now);
    assert_eq!(two.b.state(theirs), State::RepSent);
    // Nor is a connection ended.
    two.a.receive(ahead(), &rep, two.now);
    two.a.establish(id);
    two.pass_to_b("RTU");
    let dreq = CmDreq::zeroed().with_local_comm_id(id).with_remote_comm_id(theirs);
    let dreq = Message::Dreq(dreq.with_remote_qpn_eecn(answer().qpn));
    two.b.receive(other_back, &Mad { message: dreq, ..rep }, two.now);
    let gone = rej((id, theirs), 1, RejectReason::TIMEOUT, &1u64.to_be_bytes(), &[]);
    two.b.receive(other_back, &Mad { message: gone, ..rep }, two.now);
    // A request with the peer's device and queue pair is another peer's.
    let req = super::super::conn::req(77, &request(), &config(1).cm, 1);
    two.b.receive(other_back, &Mad { message: Message::Req(req), ..rep }, two.now);
    assert_eq!(two.b.state(theirs), State::Established);
    two.b.disconnect(theirs, &[], two.now);
    let drep = CmDrep::zeroed().with_local_comm_id(id).with_remote_comm_id(theirs);
    two.b.receive(other_back, &Mad { message: Message::Drep(drep), ..rep }, two.now);
    assert_eq!(two.b.state(theirs), State::DreqSent);
}

/// What happens to the messages under way in one step.
#[derive(Debug, Clone, Copy)]
enum Luck {
    Deliver,
    Lose,
    Repeat,
    Swap,
}

fn luck() -> impl Strategy<Value = Luck> {
    prop_oneof![
        4 => Just(Luck::Deliver),
        1 => Just(Luck::Lose),
        1 => Just(Luck::Repeat),
        1 => Just(Luck::Swap),
    ]
}

proptest! {
    /// Whatever is lost, repeated and swapped: both ends agree in the end, and nothing is left.
    #[test]
    fn both_ends_agree_on_any_cable(
        lucks in prop::collection::vec(luck(), 0..60),
        ends_first: bool,
    ) {
        let mut two = Two::new();
        let id = two.a.connect(&request(), two.now);
        let mut theirs = None;
        let mut wire: Vec<(bool, Mad)> = Vec::new();
        let mut lucks = lucks.into_iter();
        let mut was_established = (false, false);
        for _ in 0..2000 {
            wire.extend(std::iter::from_fn(|| two.a.next_out()).map(|out| (true, out.mad)));
            wire.extend(std::iter::from_fn(|| two.b.next_out()).map(|out| (false, out.mad)));
            if wire.is_empty() {
                two.pass(INTERVAL / 2);
            } else {
                let (to_b, mad) = match lucks.next().unwrap_or(Luck::Deliver) {
                    Luck::Deliver => wire.remove(0),
                    Luck::Lose => {
                        wire.remove(0);
                        two.pass(INTERVAL / 4);
                        continue;
                    }
                    Luck::Repeat => wire[0],
                    Luck::Swap => wire.pop().unwrap(),
                };
                let receiver = if to_b { &mut two.b } else { &mut two.a };
                let ends = if to_b { back() } else { ahead() };
                receiver.receive(ends, &mad, two.now);
            }
            if let Some(taken) = two.b.take_request(service_id(PORT)) {
                two.accept(taken);
                theirs = Some(taken);
            }
            two.a.establish(id);
            was_established.0 |= two.a.state(id) == State::Established;
            was_established.1 |= theirs.is_some_and(|id| two.b.state(id) == State::Established);
            if was_established == (true, true) {
                break;
            }
        }
        // The one that hears of the connection last hears of it, or of its end.
        if let Some(theirs) = theirs {
            if ends_first {
                two.b.disconnect(theirs, &[], two.now);
            }
            two.a.disconnect(id, &[], two.now);
            for _ in 0..200 {
                while let Some(out) = two.a.next_out() {
                    two.b.receive(back(), &out.mad, two.now);
                }
                while let Some(out) = two.b.next_out() {
                    two.a.receive(ahead(), &out.mad, two.now);
                }
                two.pass(INTERVAL / 2);
            }
            prop_assert_eq!(two.a.state(id), State::Ended);
            prop_assert_eq!(two.b.state(theirs), State::Ended);
            two.clean(id, theirs);
        }
    }

    /// Any bytes that parse, in any order.
    #[test]
    fn strange_messages_never_panic(
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 232), 1..20),
        kinds in prop::collection::vec(0x10..0x19u8, 20),
        ids in prop::collection::vec(0..4u8, 40),
    ) {
        let mut two = Two::new();
        let (id, theirs) = two.established();
        for (at, body) in bodies.iter().enumerate() {
            let mut bytes = [0; 256];
            bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
            bytes[17] = kinds[at];
            bytes[24..].copy_from_slice(body);
            // Often a number that is known.
            for (place, id) in [(24, ids[2 * at]), (28, ids[2 * at + 1])] {
                let known = match id { 0 => 100, 1 => 200, 2 => 0, _ => continue };
                bytes[place..place + 4].copy_from_slice(&u32::to_be_bytes(known));
            }
            let mad = Mad::parse(&bytes).unwrap();
            two.a.receive(ahead(), &mad, two.now);
            two.b.receive(ahead(), &mad, two.now);
            two.pass(INTERVAL / 3);
        }
        two.a.forget(id, two.now);
        two.b.forget(theirs, two.now);
    }
}
