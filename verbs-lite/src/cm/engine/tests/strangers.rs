//! Messages of others, messages out of order, and bytes that are no messages.

use proptest::prelude::*;

use super::*;

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
    let req = conn::req(77, &request(), &config(1).cm, 1);
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
