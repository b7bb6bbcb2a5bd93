//! Answers that do not come, and what is asked of all orders at once.

use super::*;
use crate::proto::ouch::answers::{
    CancelPending, CancelRejected, DisableAnswered, EnableAnswered, MassCancelAnswered,
};
use crate::risk::Stop;

const FIRM: Text<4> = Text(*b"FIRM");

/// Looks at all orders until something is overdue: so many rounds found nothing.
fn rounds_until_overdue(entry: &mut OrderEntry) -> (u8, Watched) {
    for round in 0..100 {
        match entry.watch() {
            Watched::Fine => {}
            overdue => return (round, overdue),
        }
    }
    (100, Watched::Fine)
}

fn all_cancelled(entry: &mut OrderEntry, urn: u32) -> OrderEvent {
    entry.answer(&Answer::MassCancelAnswered(&MassCancelAnswered {
        kind: MassCancelAnswered::KIND,
        timestamp_ns: 0.into(),
        urn: urn.into(),
        firm: FIRM,
        symbol: Text::BLANK,
    }))
}

fn stopped(entry: &mut OrderEntry, urn: u32, firm: Text<4>) -> OrderEvent {
    let (kind, timestamp_ns) = (DisableAnswered::KIND, 0.into());
    let answer = DisableAnswered { kind, timestamp_ns, urn: urn.into(), firm };
    entry.answer(&Answer::DisableAnswered(&answer))
}

fn enabled(entry: &mut OrderEntry, urn: u32) -> OrderEvent {
    let (kind, timestamp_ns) = (EnableAnswered::KIND, 0.into());
    let answer = EnableAnswered { kind, timestamp_ns, urn: urn.into(), firm: FIRM };
    entry.answer(&Answer::EnableAnswered(&answer))
}

fn resumed(entry: &mut OrderEntry, next_urn: u32) -> OrderEvent {
    let (kind, timestamp_ns) = (AccountQueryAnswered::KIND, 0.into());
    entry.resume(&AccountQueryAnswered { kind, timestamp_ns, next_urn: next_urn.into() })
}

/// What is due: the letters of the packets and their numbers.
fn due(entry: &mut OrderEntry) -> Vec<(u8, u8)> {
    std::iter::from_fn(|| entry.due()).map(|packet| (packet[3], packet[7])).collect()
}

#[test]
fn an_order_without_an_answer_is_overdue_and_everything_is_cancelled() {
    let mut entry = entry();
    enter(&mut entry, 100).unwrap();
    assert_eq!(rounds_until_overdue(&mut entry), (LOOKS, Watched::Overdue(1)));
    assert_eq!(enter(&mut entry, 1), Err(Refused::Risk(risk::Refused::Overdue)));
    assert_eq!(due(&mut entry), [(b'C', 2)]);
    // The answer comes late: entry goes on, and the order has as much time as ever.
    assert_eq!(all_cancelled(&mut entry, 2), OrderEvent::AllCancelled);
    // The place of the third is the first one's.
    assert_eq!(enter(&mut entry, 1), Ok(4));
    entry.answer(&Answer::Accepted(&accepted(4, 1, b'L')));
    // It was to be cancelled, and nothing is said of it still: positions may be wrong.
    assert_eq!(rounds_until_overdue(&mut entry), (LOOKS, Watched::Lost(1)));
    assert!(entry.risk().is_stopped_by(Stop::Doubtful));
    assert_eq!((entry.overdue(), entry.mismatches()), (1, 1));
    // What was entered since is cancelled, too.
    let mass = due(&mut entry);
    assert_eq!((mass.as_slice(), entry.has_strays()), (&[(b'C', 5)][..], true));
    all_cancelled(&mut entry, 5);
    assert!(!entry.has_strays() && entry.risk().is_stopped_by(Stop::Doubtful));
    assert_eq!(rounds_until_overdue(&mut entry), (100, Watched::Fine), "it is said once");
}

#[test]
fn what_is_answered_is_never_overdue() {
    let mut entry = entry();
    enter(&mut entry, 100).unwrap();
    assert_eq!(entry.watch(), Watched::Fine);
    entry.answer(&Answer::Accepted(&accepted(1, 100, b'L')));
    assert_eq!(rounds_until_overdue(&mut entry), (100, Watched::Fine));
    // A replacement is an order of its own.
    replace(&mut entry, 1, 50, 1_503_500).unwrap();
    assert_eq!(rounds_until_overdue(&mut entry), (LOOKS, Watched::Overdue(2)));
}

#[test]
fn a_cancel_without_an_answer_is_overdue_and_one_that_waits_is_not() {
    let (kind, timestamp_ns, urn) = (CancelPending::KIND, 0.into(), 1.into());
    let pending = CancelPending { kind, timestamp_ns, urn };
    let rejected = CancelRejected { kind: CancelRejected::KIND, timestamp_ns, urn };
    for (answer, event) in [
        (Answer::CancelPending(&pending), OrderEvent::CancelPending { urn: 1 }),
        (Answer::CancelRejected(&rejected), OrderEvent::CancelRejected { urn: 1 }),
    ] {
        let mut entry = entry();
        enter(&mut entry, 100).unwrap();
        entry.answer(&Answer::Accepted(&accepted(1, 100, b'L')));
        entry.cancel(1, 0).unwrap();
        entry.watch();
        assert_eq!(entry.answer(&answer), event);
        assert_eq!(rounds_until_overdue(&mut entry), (100, Watched::Fine));
        entry.cancel(1, 0).unwrap();
        entry.cancel_not_sent(1);
        assert_eq!(rounds_until_overdue(&mut entry), (100, Watched::Fine));
        entry.cancel(1, 0).unwrap();
        assert_eq!(rounds_until_overdue(&mut entry), (LOOKS, Watched::Overdue(1)));
        assert_eq!(entry.left(1), Some(100), "nothing is believed but an answer");
    }
}

/// What is owed an answer is owed one still, whatever else is said or does not leave.
#[test]
fn neither_an_accepted_nor_a_cancel_that_does_not_leave_is_an_answer_to_another() {
    // Cancelled before it was accepted, and the exchange passes over the cancel.
    let mut entry = entry();
    enter(&mut entry, 100).unwrap();
    entry.cancel(1, 0).unwrap();
    entry.watch();
    entry.answer(&Answer::Accepted(&accepted(1, 100, b'L')));
    assert_eq!(rounds_until_overdue(&mut entry), (LOOKS, Watched::Overdue(1)));
    // An order without an answer, whose cancel does not leave.
    let mut entry = self::entry();
    enter(&mut entry, 100).unwrap();
    entry.watch();
    entry.cancel(1, 0).unwrap();
    entry.cancel_not_sent(1);
    assert_eq!(rounds_until_overdue(&mut entry), (LOOKS - 1, Watched::Overdue(1)));
    // A cancel without an answer, and others behind it, which leave or do not.
    let mut entry = self::entry();
    enter(&mut entry, 100).unwrap();
    entry.answer(&Answer::Accepted(&accepted(1, 100, b'L')));
    entry.cancel(1, 0).unwrap();
    entry.watch();
    entry.cancel(1, 0).unwrap();
    entry.watch();
    entry.cancel(1, 0).unwrap();
    entry.cancel_not_sent(1);
    assert_eq!(rounds_until_overdue(&mut entry), (LOOKS - 2, Watched::Overdue(1)));
}

#[test]
fn a_mass_cancel_without_an_answer_gives_the_connection_up_and_is_asked_again() {
    let mut entry = entry();
    enter(&mut entry, 100).unwrap();
    rounds_until_overdue(&mut entry);
    assert_eq!(due(&mut entry), [(b'C', 2)]);
    assert_eq!(rounds_until_overdue(&mut entry), (LOOKS, Watched::Silent));
    assert_eq!(due(&mut entry), []);
    // The exchange never got the order, nor the request.
    assert_eq!(resumed(&mut entry, 1), OrderEvent::Resumed { lost: 1 });
    assert_eq!(due(&mut entry), [(b'C', 3)]);
    all_cancelled(&mut entry, 3);
    assert_eq!((entry.count(), enter(&mut entry, 1)), (0, Ok(4)));
}

/// The exchange's window is closed, and its heartbeats come: no mass cancel leaves.
#[test]
fn a_request_that_cannot_leave_gives_the_connection_up() {
    // As the engine asks: whenever something came or was looked for.
    let is_tried = |entry: &mut OrderEntry| {
        let is_due = entry.due().is_some();
        entry.due_not_sent();
        is_due
    };
    let rounds = |entry: &mut OrderEntry| {
        let rounds = (0..100).find(|_| is_tried(entry) && entry.watch() == Watched::Silent);
        rounds.unwrap_or(100)
    };
    let mut entry = entry();
    enter(&mut entry, 100).unwrap();
    assert_eq!(rounds_until_overdue(&mut entry).1, Watched::Overdue(1));
    assert_eq!(rounds(&mut entry), LOOKS);
    // The next connection has as much time, and what left has it for its answer.
    resumed(&mut entry, 2);
    for _ in 0..LOOKS {
        assert!(is_tried(&mut entry) && entry.watch() == Watched::Fine);
    }
    assert_eq!(due(&mut entry), [(b'C', 2)]);
    assert_eq!(rounds_until_overdue(&mut entry), (LOOKS, Watched::Silent));
    // A kill, of which a half leaves.
    let mut entry = self::entry();
    entry.kill();
    assert_eq!(rounds(&mut entry), LOOKS);
    assert_eq!(entry.due().map(|packet| packet[3]), Some(b'C'));
    all_cancelled(&mut entry, 1);
    assert_eq!(rounds(&mut entry), LOOKS);
    // The exchange refuses to cancel all at once, and takes nothing then.
    let mut entry = self::entry();
    enter(&mut entry, 100).unwrap();
    entry.answer(&Answer::Accepted(&accepted(1, 100, b'L')));
    entry.cancel_all();
    assert_eq!(due(&mut entry), [(b'C', 2)]);
    assert!(entry.is_asked_refused(2));
    let rounds = (0..100).find(|_| {
        assert_eq!(entry.left_by_refusal(), Some(1));
        entry.cancel(1, 0).unwrap();
        entry.left_not_sent(1);
        entry.watch() == Watched::Silent
    });
    assert_eq!(rounds, Some(LOOKS.into()));
}

#[test]
fn a_large_table_is_looked_at_piece_by_piece() {
    let symbols = vec![Text::new("AAPL").unwrap()];
    let config = OrdersConfig { symbols, capacity: 256, ..OrdersConfig::default() };
    let mut entry = OrderEntry::new(config).unwrap();
    assert_eq!(entry.looks_per_round(), 4);
    enter(&mut entry, 100).unwrap();
    let (looks, overdue) = rounds_until_overdue(&mut entry);
    assert_eq!((looks, overdue), (4 * LOOKS, Watched::Overdue(1)));
}

#[test]
fn a_kill_is_due_until_it_leaves_and_again_until_it_is_answered() {
    let mut entry = entry();
    entry.kill();
    let packet = entry.due().unwrap();
    entry.due_not_sent();
    assert_eq!(entry.due(), Some(packet), "the same, under the same number");
    assert_eq!(due(&mut entry), [(b'D', 2)]);
    // The mass cancel was answered before the connection was lost.
    all_cancelled(&mut entry, 1);
    assert!(entry.is_asking());
    resumed(&mut entry, 2);
    assert_eq!(due(&mut entry), [(b'D', 3)]);
    assert_eq!(stopped(&mut entry, 3, Text(*b"ELSE")), OrderEvent::Other);
    assert!(entry.is_asking());
    assert_eq!(stopped(&mut entry, 3, FIRM), OrderEvent::EntryStopped);
    assert!(!entry.is_asking() && !entry.has_due());
    resumed(&mut entry, 4);
    assert_eq!(due(&mut entry), []);
}

/// No answer comes any more, and nobody may take the switch for heard.
#[test]
fn a_kill_that_the_exchange_refuses_is_said_to_be() {
    let mut entry = entry();
    assert!(entry.is_kill_answered());
    entry.kill();
    assert_eq!(due(&mut entry), [(b'C', 1), (b'D', 2)]);
    all_cancelled(&mut entry, 1);
    assert!(!entry.is_kill_answered() && entry.is_asking());
    assert!(entry.is_asked_refused(2));
    assert!(!entry.is_kill_answered() && !entry.is_asking());
    assert_eq!(entry.entry_refusals(), [true, false]);
    entry.enable();
    assert_eq!(due(&mut entry), [(b'E', 3)]);
    assert!(entry.is_asked_refused(3) && entry.is_kill_answered());
    assert_eq!(entry.entry_refusals(), [false, true]);
}

/// Who gave no firm hears the exchange name the one that it knows.
#[test]
fn a_kill_of_a_firm_that_nobody_gave_is_answered() {
    let symbols = vec![Text::new("AAPL").unwrap()];
    let mut entry = OrderEntry::new(OrdersConfig { symbols, ..OrdersConfig::default() }).unwrap();
    entry.kill();
    assert_eq!(due(&mut entry), [(b'C', 1), (b'D', 2)]);
    all_cancelled(&mut entry, 1);
    assert_eq!(stopped(&mut entry, 2, FIRM), OrderEvent::EntryStopped);
    assert!(!entry.is_asking());
    entry.enable();
    assert_eq!(due(&mut entry), [(b'E', 3)]);
    assert_eq!(enabled(&mut entry, 3), OrderEvent::EntryEnabled);
    assert!(!entry.is_asking() && !entry.risk().is_stopped_by(Stop::Killed));
}

#[test]
fn the_days_answers_tell_of_a_kill_and_of_its_end() {
    let mut entry = entry();
    stopped(&mut entry, 7, FIRM);
    assert_eq!(entry.next_urn(), 8, "its number is used");
    assert_eq!(enter(&mut entry, 1), Err(Refused::Risk(risk::Refused::Killed)));
    entry.enable();
    assert_eq!(due(&mut entry), [(b'E', 8)]);
    assert_eq!(enabled(&mut entry, 8), OrderEvent::EntryEnabled);
    assert_eq!(enter(&mut entry, 1), Ok(9));
    // One that it has not heard of yet is not ended by what was said before, nor is one that it has
    // by what others ask of it: that is for who threw it.
    entry.kill();
    enabled(&mut entry, 8);
    assert!(entry.risk().is_stopped_by(Stop::Killed));
    let sent = due(&mut entry);
    assert_eq!(sent, [(b'C', 10), (b'D', 11)]);
    all_cancelled(&mut entry, 10);
    stopped(&mut entry, 11, FIRM);
    assert_eq!(enabled(&mut entry, 12), OrderEvent::EntryEnabled);
    assert_eq!(enter(&mut entry, 1), Err(Refused::Risk(risk::Refused::Killed)));
    entry.enable();
    assert!(entry.risk().is_stopped_by(Stop::Killed), "not before the exchange says so");
    assert_eq!(due(&mut entry), [(b'E', 13)]);
    enabled(&mut entry, 13);
    assert_eq!(enter(&mut entry, 1), Ok(14));
}

#[test]
fn orders_are_cancelled_one_by_one_if_the_exchange_refuses_to_cancel_all() {
    let mut entry = entry();
    for urn in 1..=2 {
        enter(&mut entry, 100).unwrap();
        entry.answer(&Answer::Accepted(&accepted(urn, 100, b'L')));
    }
    entry.close();
    assert!(entry.risk().is_stopped_by(Stop::Closing));
    assert_eq!(due(&mut entry), [(b'C', 3)]);
    let rejected = Rejected {
        kind: Rejected::KIND,
        timestamp_ns: 0.into(),
        urn: 3.into(),
        reason: 0x0c.into(),
        client_order_id: Text::BLANK,
    };
    let event = OrderEvent::Rejected { urn: 3, reason: 0x0c };
    assert_eq!(entry.answer(&Answer::Rejected(&rejected)), event);
    assert_eq!(entry.mismatches(), 0);
    // The connection takes one, and not the other: that one is next, and the first is not again.
    assert_eq!(entry.left_by_refusal(), Some(2));
    entry.cancel(2, 0).unwrap();
    for _ in 0..3 {
        assert_eq!(entry.left_by_refusal(), Some(1));
        entry.cancel(1, 0).unwrap();
        entry.left_not_sent(1);
    }
    assert_eq!(entry.left_by_refusal(), Some(1));
    entry.cancel(1, 0).unwrap();
    assert_eq!(entry.left_by_refusal(), None);
    entry.refusal_heeded();
    assert!(!entry.is_asking() && !entry.has_due());
    // They may be lost with the connection: all of it again.
    resumed(&mut entry, 4);
    assert_eq!(due(&mut entry), [(b'C', 4)]);
}

/// Orders pass while a mass cancel is on its way: they are not among what it cancels.
#[test]
fn what_left_behind_a_mass_cancel_is_cancelled_by_another() {
    let doubt = |entry: &mut OrderEntry| {
        let event = entry.answer(&Answer::Executed(&executed(77, 1)));
        assert_eq!(event, OrderEvent::Mismatch { urn: 77 });
    };
    let asks: [&dyn Fn(&mut OrderEntry); 4] =
        [&OrderEntry::close, &OrderEntry::cancel_all, &doubt, &OrderEntry::kill];
    for (at, ask) in asks.into_iter().enumerate() {
        let mut entry = entry();
        enter(&mut entry, 100).unwrap();
        entry.cancel_all();
        assert_eq!(due(&mut entry), [(b'C', 2)]);
        entry.cancel_all();
        assert_eq!(due(&mut entry), [], "nothing stands behind it");
        assert_eq!(enter(&mut entry, 100), Ok(4));
        ask(&mut entry);
        assert_eq!(due(&mut entry)[0], (b'C', 5));
        let mismatches = entry.mismatches();
        // The first is answered, or refused, and the second is owed an answer all the same.
        match at {
            0 => assert_eq!(all_cancelled(&mut entry, 2), OrderEvent::AllCancelled),
            _ => rejected(&mut entry, 2),
        }
        assert!(entry.is_asking() && entry.mismatches() == mismatches);
        entry.answer(&Answer::Cancelled(&cancelled(1, 100)));
        entry.answer(&Answer::Cancelled(&cancelled(4, 100)));
        all_cancelled(&mut entry, 5);
        assert_eq!((entry.count(), entry.asked.mass), (0, Ask::No));
    }
}

fn rejected(entry: &mut OrderEntry, urn: u32) {
    let event = entry.answer(&Answer::Rejected(&Rejected {
        kind: Rejected::KIND,
        timestamp_ns: 0.into(),
        urn: urn.into(),
        reason: 0x0c.into(),
        client_order_id: Text::BLANK,
    }));
    assert_eq!(event, OrderEvent::Rejected { urn, reason: 0x0c });
}

/// What is due leaves, and the exchange refuses to cancel all at once: the orders that are asked to
/// be cancelled by themselves.
fn refused(entry: &mut OrderEntry) -> Vec<u32> {
    let sent = due(entry);
    let &[(b'C', urn)] = sent.as_slice() else { panic!("{sent:?}") };
    rejected(entry, urn.into());
    let mut left = Vec::new();
    while let Some(urn) = entry.left_by_refusal() {
        entry.cancel(urn, 0).unwrap();
        left.push(urn);
    }
    entry.refusal_heeded();
    left
}

/// An order without an answer, and an exchange that refuses to cancel all at once: none leaves
/// until it has said that each is cancelled. If it does not, another connection hears it, and what
/// it does not say there either stops trading for the session.
#[test]
fn what_is_overdue_ends_by_its_own_answer_if_the_exchange_refuses_to_cancel_all() {
    let overdue = Err(Refused::Risk(risk::Refused::Overdue));
    let mut entry = entry();
    enter(&mut entry, 100).unwrap();
    assert_eq!(rounds_until_overdue(&mut entry), (LOOKS, Watched::Overdue(1)));
    assert_eq!(refused(&mut entry), [1]);
    assert_eq!(entry.watch(), Watched::Fine);
    assert_eq!(enter(&mut entry, 1), overdue);
    // The exchange says that it is gone: orders pass behind the next round of looks.
    entry.answer(&Answer::Accepted(&accepted(1, 100, b'L')));
    assert_eq!(entry.watch(), Watched::Fine);
    assert_eq!(enter(&mut entry, 1), overdue);
    entry.answer(&Answer::Cancelled(&cancelled(1, 100)));
    assert_eq!(entry.watch(), Watched::Fine);
    let urn = enter(&mut entry, 100).unwrap();
    // Of this one it says nothing, and of its cancel neither.
    assert_eq!(rounds_until_overdue(&mut entry), (LOOKS, Watched::Overdue(urn)));
    assert_eq!(refused(&mut entry), [urn]);
    assert_eq!(rounds_until_overdue(&mut entry), (LOOKS, Watched::Silent));
    assert_eq!(enter(&mut entry, 1), overdue);
    // It was taken, and nothing more is said of it: neither unasked, nor when it is asked again.
    resumed(&mut entry, urn + 1);
    assert_eq!(refused(&mut entry), [urn]);
    assert_eq!(rounds_until_overdue(&mut entry), (LOOKS, Watched::Lost(urn)));
    assert!(entry.risk().is_stopped_by(Stop::Doubtful));
    assert!(refused(&mut entry).is_empty(), "it is asked once on each connection");
    assert_eq!(rounds_until_overdue(&mut entry), (100, Watched::Fine), "it is said once");
    assert_eq!(enter(&mut entry, 1), Err(Refused::Risk(risk::Refused::Doubtful)));
    assert_eq!((entry.overdue(), entry.mismatches(), entry.count()), (2, 1, 1));
    // The next connection is asked again: who doubts wants everything cancelled.
    resumed(&mut entry, urn + 1);
    assert_eq!(refused(&mut entry), [urn]);
}

/// The next connection takes the mass cancel: what it does not say of an order then is missing,
/// whatever was asked of that one on the connection before.
#[test]
fn a_single_cancel_that_was_lost_takes_nothing_off_what_a_mass_cancel_owes() {
    let mut entry = entry();
    enter(&mut entry, 100).unwrap();
    assert_eq!(rounds_until_overdue(&mut entry), (LOOKS, Watched::Overdue(1)));
    assert_eq!(refused(&mut entry), [1]);
    resumed(&mut entry, 2);
    let sent = due(&mut entry);
    assert_eq!(sent, [(b'C', 3)]);
    all_cancelled(&mut entry, 3);
    assert!(!entry.risk().is_stopped_by(Stop::Overdue));
    assert_eq!(rounds_until_overdue(&mut entry), (LOOKS, Watched::Lost(1)));
}

#[test]
fn a_cancel_that_was_lost_with_its_connection_is_owed_no_answer() {
    let mut entry = entry();
    enter(&mut entry, 100).unwrap();
    entry.answer(&Answer::Accepted(&accepted(1, 100, b'L')));
    entry.cancel(1, 0).unwrap();
    assert_eq!(resumed(&mut entry, 2), OrderEvent::Resumed { lost: 0 });
    assert_eq!(rounds_until_overdue(&mut entry), (100, Watched::Fine));
    assert_eq!((entry.left(1), due(&mut entry)), (Some(100), vec![]));
    // Nor is one that has no answer yet and is lost with its order.
    let urn = enter(&mut entry, 100).unwrap();
    entry.cancel(urn, 0).unwrap();
    assert_eq!(resumed(&mut entry, urn), OrderEvent::Resumed { lost: 1 });
    assert_eq!(rounds_until_overdue(&mut entry), (100, Watched::Fine));
}
