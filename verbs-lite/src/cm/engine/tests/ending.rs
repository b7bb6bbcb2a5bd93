//! How connections end, and messages that do not fit their state.

use super::*;

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
