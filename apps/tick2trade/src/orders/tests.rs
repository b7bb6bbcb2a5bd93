mod places;
mod silence;

use super::*;
use crate::proto::ouch::answers::{Accepted, AccountQueryAnswered, Cancelled, Executed, Rejected};
use crate::proto::ouch::{Answer, answers};
use crate::risk::{Exposure, Stop};

fn entry() -> OrderEntry {
    let symbols = ["AAPL", "MSFT"].map(|symbol| Text::new(symbol).unwrap()).to_vec();
    let firm = Text::new("FIRM").unwrap();
    OrderEntry::new(OrdersConfig { symbols, firm, capacity: 2, ..OrdersConfig::default() }).unwrap()
}

fn buy(shares: u32) -> Intent {
    let (security, side, price) = (0, Side::Buy, 1_503_400);
    Intent { security, side, shares, price, reference: Some(1_500_000) }
}

fn enter(entry: &mut OrderEntry, shares: u32) -> Result<u32, Refused> {
    entry.enter(&buy(shares), false, 0, &mut [0; ENTER_LEN])
}

fn accepted(urn: u32, shares: u32, state: u8) -> Accepted {
    Accepted {
        kind: Accepted::KIND,
        timestamp_ns: 0.into(),
        urn: urn.into(),
        side: b'B',
        quantity: shares.into(),
        symbol: Text::new("AAPL").unwrap(),
        price: 1_503_400.into(),
        time_in_force: b'0',
        display: b'Y',
        reference: 77.into(),
        capacity: b'P',
        intermarket_sweep: b'N',
        cross: b'N',
        state,
        client_order_id: Text::BLANK,
    }
}

fn executed(urn: u32, shares: u32) -> Executed {
    Executed {
        kind: Executed::KIND,
        timestamp_ns: 0.into(),
        urn: urn.into(),
        quantity: shares.into(),
        price: 1_500_000.into(),
        liquidity: b'R',
        match_number: 9.into(),
    }
}

fn cancelled(urn: u32, shares: u32) -> Cancelled {
    let (kind, timestamp_ns, reason) = (Cancelled::KIND, 0.into(), b'U');
    Cancelled { kind, timestamp_ns, urn: urn.into(), quantity: shares.into(), reason }
}

#[test]
fn an_order_has_its_golden_bytes() {
    let mut bytes = [0xa5; ENTER_LEN];
    let mut entry = entry();
    assert_eq!(entry.enter(&buy(100), true, 0, &mut bytes), Ok(1));
    let golden =
        b"\0\x30UO\0\0\0\x01B\0\0\0\x64AAPL    \0\0\0\0\0\x16\xf0\xa83YPNN              \0\0";
    assert_eq!(&bytes[..], golden);
}

#[test]
fn an_order_goes_its_way_and_its_exposure_with_it() {
    let mut entry = entry();
    enter(&mut entry, 100).unwrap();
    let exposure = |entry: &OrderEntry| entry.risk().exposure(0).unwrap();
    assert_eq!(exposure(&entry), Exposure { buying: 100, ..Exposure::default() });
    let event = entry.answer(&Answer::Accepted(&accepted(1, 100, b'L')));
    assert_eq!(event, OrderEvent::Live { urn: 1, reference: 77 });
    let event = entry.answer(&Answer::Executed(&executed(1, 60)));
    assert_eq!(event, OrderEvent::Executed { urn: 1, shares: 60, price: 1_500_000, left: 40 });
    assert_eq!(
        exposure(&entry),
        Exposure { position: 60, buying: 40, selling: 0, cost: 60 * 1_500_000 }
    );
    let event = entry.answer(&Answer::Cancelled(&cancelled(1, 40)));
    assert_eq!(event, OrderEvent::Cancelled { urn: 1, shares: 40, left: 0, reason: b'U' });
    let held = Exposure { position: 60, cost: 60 * 1_500_000, ..Exposure::default() };
    assert_eq!(exposure(&entry), held);
    assert_eq!(entry.risk().owed(), 60 * 1_500_000);
    assert_eq!((entry.count(), entry.left(1)), (0, None));
}

#[test]
fn accepted_and_dead_leaves_nothing() {
    let mut entry = entry();
    enter(&mut entry, 100).unwrap();
    let event = entry.answer(&Answer::Accepted(&accepted(1, 100, b'D')));
    assert_eq!(event, OrderEvent::Cancelled { urn: 1, shares: 100, left: 0, reason: b'D' });
    assert_eq!((entry.count(), entry.risk().owed()), (0, 0));
}

#[test]
fn a_rejected_order_and_one_that_did_not_leave_free_what_they_took() {
    let mut entry = entry();
    enter(&mut entry, 100).unwrap();
    enter(&mut entry, 100).unwrap();
    assert_eq!(enter(&mut entry, 1), Err(Refused::Full(2)));
    entry.not_sent(1);
    let rejected = Rejected {
        kind: Rejected::KIND,
        timestamp_ns: 0.into(),
        urn: 2.into(),
        reason: 0x1d.into(),
        client_order_id: Text::BLANK,
    };
    let event = entry.answer(&Answer::Rejected(&rejected));
    assert_eq!(event, OrderEvent::Rejected { urn: 2, reason: 0x1d });
    assert_eq!((entry.count(), entry.risk().owed()), (0, 0));
    assert_eq!(enter(&mut entry, 1), Ok(3));
}

/// A line that takes nothing uses up no rate; and an order can be taken back whatever was sent.
#[test]
fn the_rate_counts_what_left_and_holds_no_first_cancel_up() {
    let symbols = vec![Text::new("AAPL").unwrap()];
    let limits = risk::Limits { rate: 2, ..risk::Limits::default() };
    let config = OrdersConfig { symbols, limits, capacity: 4, ..OrdersConfig::default() };
    let mut entry = OrderEntry::new(config).unwrap();
    let rate = Refused::Risk(risk::Refused::Rate { limit: 2 });
    for _ in 0..10 {
        let urn = enter(&mut entry, 100).unwrap();
        entry.not_sent(urn);
    }
    let [first, second] = [0; 2].map(|_| enter(&mut entry, 100).unwrap());
    assert_eq!(enter(&mut entry, 100), Err(rate));
    for urn in [first, second] {
        assert!(entry.cancel(urn, 0).is_ok());
        entry.cancel_not_sent(urn);
        assert!(entry.cancel(urn, 0).is_ok());
        assert_eq!(entry.cancel(urn, 0), Err(rate), "one that is on its way already");
    }
    assert_eq!(enter(&mut entry, 100), Err(rate), "they count");
    assert_eq!(entry.cancel(first, 1_000_000_000).map(|_| ()), Ok(()));
}

/// A day order keeps its place, and no more than that.
#[test]
fn an_order_that_stands_for_long_is_in_nobodys_way() {
    let symbols = vec![Text::new("AAPL").unwrap()];
    let limits = risk::Limits { rate: 65_536, ..risk::Limits::default() };
    let config = OrdersConfig { symbols, limits, capacity: 4, ..OrdersConfig::default() };
    let mut entry = OrderEntry::new(config).unwrap();
    assert_eq!(enter(&mut entry, 100), Ok(1));
    entry.answer(&Answer::Accepted(&accepted(1, 100, b'L')));
    let mut last = 1;
    for round in 0..13 {
        let urn = match round % 2 {
            0 => enter(&mut entry, 10).unwrap(),
            // One that comes by a replacement finds a place as well.
            _ => {
                let old = enter(&mut entry, 10).unwrap();
                let urn = replace(&mut entry, old, 10, 1_504_000).unwrap();
                assert!(urn > old, "numbers rise");
                entry.answer(&Answer::Replaced(&replaced(old, urn, 10, 1_504_000, b'L')));
                urn
            }
        };
        assert!(urn > last, "numbers rise");
        last = urn;
        entry.answer(&Answer::Cancelled(&cancelled(urn, 10)));
        assert_eq!((entry.count(), entry.left(1)), (1, Some(100)));
    }
    assert!(last > 3 * 4, "over three times as many as the table has places");
    // A table that is full is full, whichever number would be next.
    let stand: Vec<_> = (0..3).map(|_| enter(&mut entry, 1).unwrap()).collect();
    assert_eq!(enter(&mut entry, 1), Err(Refused::Full(4)));
    assert!(stand.is_sorted() && entry.mismatches() == 0);
}

#[test]
fn what_may_have_moved_shares_that_nobody_knows_of_stops_entry_and_a_reject_does_not() {
    let mut entry = entry();
    enter(&mut entry, 100).unwrap();
    entry.answer(&Answer::Accepted(&accepted(1, 100, b'L')));
    entry.answer(&Answer::Cancelled(&cancelled(1, 100)));
    let late = Rejected {
        kind: Rejected::KIND,
        timestamp_ns: 0.into(),
        urn: 1.into(),
        reason: 1.into(),
        client_order_id: Text::BLANK,
    };
    assert_eq!(entry.answer(&Answer::Rejected(&late)), OrderEvent::Mismatch { urn: 1 });
    assert_eq!(enter(&mut entry, 100), Ok(2));
    assert_eq!(entry.answer(&Answer::Executed(&executed(1, 5))), OrderEvent::Mismatch { urn: 1 });
    assert_eq!(enter(&mut entry, 100), Err(Refused::Risk(risk::Refused::Doubtful)));
    assert_eq!(entry.mismatches(), 2);
}

/// An order of the exchange's that is none of ours here, or another under our number: the exchange
/// is to cancel everything, whatever stands here, until it has said that it did.
#[test]
fn an_order_that_only_the_exchange_has_is_cancelled_with_all_others() {
    let other = Accepted { symbol: Text::new("NVDA").unwrap(), ..accepted(1, 100, b'L') };
    let stranger = Accepted { symbol: Text::new("MSFT").unwrap(), ..accepted(1, 100, b'L') };
    let sold = Accepted { side: b'S', ..accepted(1, 100, b'L') };
    for (is_sent, accepted) in [(false, other), (true, stranger), (true, sold)] {
        let mut entry = entry();
        if is_sent {
            enter(&mut entry, 100).unwrap();
        }
        assert!(!entry.has_strays() && !entry.has_due());
        let event = entry.answer(&Answer::Accepted(&accepted));
        assert_eq!(event, OrderEvent::Mismatch { urn: 1 });
        let sent = entry.due().unwrap();
        assert_eq!((sent[3], entry.has_strays()), (b'C', true));
        // What it does meanwhile is no reason for another.
        entry.answer(&Answer::Executed(&executed(9, 1)));
        assert_eq!(entry.due(), None);
        // Ended by the answer alone, and asked for again until then: the program ends as well.
        let rejected = Rejected {
            kind: Rejected::KIND,
            timestamp_ns: 0.into(),
            urn: u32::from(sent[7]).into(),
            reason: 0x0c.into(),
            client_order_id: Text::BLANK,
        };
        entry.answer(&Answer::Rejected(&rejected));
        entry.refusal_heeded();
        entry.close();
        let urn = u32::from(entry.due().unwrap()[7]);
        entry.answer(&Answer::MassCancelAnswered(&answers::MassCancelAnswered {
            kind: answers::MassCancelAnswered::KIND,
            timestamp_ns: 0.into(),
            urn: urn.into(),
            firm: Text::new("FIRM").unwrap(),
            symbol: Text::BLANK,
        }));
        assert!(!entry.has_strays() && !entry.is_asking());
        assert_eq!(enter(&mut entry, 1), Err(Refused::Risk(risk::Refused::Closing)));
        assert!(entry.risk().is_stopped_by(Stop::Doubtful));
    }
}

#[test]
fn answers_that_do_not_fit_are_counted_and_change_nothing() {
    let mut entry = entry();
    enter(&mut entry, 100).unwrap();
    let before = entry.risk().exposure(0);
    for (urn, answer) in [
        (9, Answer::Executed(&executed(9, 1))),
        (1, Answer::Executed(&executed(1, 101))),
        (1, Answer::Cancelled(&cancelled(1, 101))),
        (1, Answer::Accepted(&accepted(1, 101, b'L'))),
    ] {
        assert_eq!(entry.answer(&answer), OrderEvent::Mismatch { urn });
    }
    assert_eq!(
        (entry.mismatches(), entry.risk().exposure(0), entry.left(1)),
        (4, before, Some(100))
    );
}

#[test]
fn the_day_replayed_brings_orders_positions_and_the_next_number_back() {
    let day = |entry: &mut OrderEntry| {
        entry.answer(&Answer::Accepted(&accepted(1, 100, b'L')));
        entry.answer(&Answer::Executed(&executed(1, 60)));
        entry.answer(&Answer::Accepted(&accepted(2, 50, b'L')));
        entry.answer(&Answer::Cancelled(&cancelled(2, 50)));
    };
    let mut lived = entry();
    enter(&mut lived, 100).unwrap();
    enter(&mut lived, 50).unwrap();
    day(&mut lived);
    let mut restarted = entry();
    day(&mut restarted);
    for entry in [&lived, &restarted] {
        assert_eq!((entry.next_urn(), entry.left(1), entry.left(2)), (3, Some(40), None));
        let expected = Exposure { position: 60, buying: 40, selling: 0, cost: 60 * 1_500_000 };
        assert_eq!(entry.risk().exposure(0), Some(expected));
        assert_eq!(entry.mismatches(), 0);
    }
    assert_eq!(lived.risk().owed(), restarted.risk().owed());
}

#[test]
fn the_kill_switch_cancels_everything_and_lets_nothing_out() {
    let mut entry = entry();
    enter(&mut entry, 100).unwrap();
    entry.kill();
    let all = b"\0\x14UC\0\0\0\x02FIRM        \0\0";
    assert_eq!(entry.due().as_deref(), Some(&all[..]));
    let stop = b"\0\x0cUD\0\0\0\x03FIRM\0\0";
    assert_eq!(entry.due().as_deref(), Some(&stop[..]));
    assert_eq!(entry.due(), None);
    assert_eq!(enter(&mut entry, 1), Err(Refused::Risk(risk::Refused::Killed)));
    assert_eq!(entry.cancel(1, 0), Ok(*b"\0\x0aUX\0\0\0\x01\0\0\0\0"));
    assert_eq!(entry.cancel(9, 0), Err(Refused::Unknown(9)));
}

#[test]
fn a_table_that_cannot_be_is_refused() {
    let config = OrdersConfig { capacity: 3, ..OrdersConfig::default() };
    assert_eq!(
        OrderEntry::new(config).unwrap_err().to_string(),
        "3 orders at a time; a power of two from 1 to 65536 is possible"
    );
}

fn replace(entry: &mut OrderEntry, old: u32, shares: u32, price: u32) -> Result<u32, Refused> {
    entry.replace(old, (shares, price), |_| Some(1_500_000), 0, &mut [0; REPLACE_LEN])
}

fn replaced(old: u32, urn: u32, shares: u32, price: u64, state: u8) -> answers::Replaced {
    answers::Replaced {
        kind: answers::Replaced::KIND,
        timestamp_ns: 0.into(),
        old_urn: old.into(),
        urn: urn.into(),
        side: b'B',
        quantity: shares.into(),
        symbol: Text::new("AAPL").unwrap(),
        price: price.into(),
        time_in_force: b'0',
        display: b'Y',
        reference: 78.into(),
        capacity: b'P',
        intermarket_sweep: b'N',
        cross: b'N',
        state,
        client_order_id: Text::BLANK,
    }
}

/// An entry whose order 1, of 100 shares, is to be replaced by order 2, of 80 at another price.
fn replacing() -> OrderEntry {
    let symbols = vec![Text::new("AAPL").unwrap()];
    let config = OrdersConfig { symbols, capacity: 4, ..OrdersConfig::default() };
    let mut entry = OrderEntry::new(config).unwrap();
    enter(&mut entry, 100).unwrap();
    assert_eq!(replace(&mut entry, 1, 80, 1_504_000), Ok(2));
    entry
}

#[test]
fn a_replacement_has_its_golden_bytes_and_both_orders_count() {
    let mut entry = entry();
    enter(&mut entry, 100).unwrap();
    let mut bytes = [0xa5; REPLACE_LEN];
    let collar = |_| Some(1_500_000);
    assert_eq!(entry.replace(1, (80, 1_504_000), collar, 0, &mut bytes), Ok(2));
    let golden =
        b"\0\x29UU\0\0\0\x01\0\0\0\x02\0\0\0\x50\0\0\0\0\0\x16\xf3\x000YN              \0\0";
    assert_eq!(&bytes[..], golden);
    assert_eq!(entry.risk().exposure(0).unwrap().buying, 180);
    assert_eq!(replace(&mut entry, 1, 1, 1_500_000), Err(Refused::Replacing(1)));
    assert_eq!(replace(&mut entry, 9, 1, 1_500_000), Err(Refused::Unknown(9)));
}

/// A sale is marked by what is held and not for sale yet; a replacement cannot change the mark.
#[test]
fn who_sells_more_than_he_has_says_so() {
    let symbols = vec![Text::new("AAPL").unwrap()];
    let config = OrdersConfig { symbols, capacity: 8, ..OrdersConfig::default() };
    let mut entry = OrderEntry::new(config).unwrap();
    enter(&mut entry, 100).unwrap();
    entry.answer(&Answer::Accepted(&accepted(1, 100, b'L')));
    entry.answer(&Answer::Executed(&executed(1, 100)));
    let sell = |entry: &mut OrderEntry, shares| {
        let mut bytes = [0; ENTER_LEN];
        let order = Intent { side: Side::Sell, ..buy(shares) };
        let urn = entry.enter(&order, false, 0, &mut bytes).unwrap();
        (urn, bytes[8])
    };
    assert_eq!(sell(&mut entry, 60), (2, b'S'));
    assert_eq!(sell(&mut entry, 40), (3, b'S'));
    assert_eq!(sell(&mut entry, 1), (4, b'T'), "all that is held is for sale");
    entry.not_sent(4);
    assert_eq!(replace(&mut entry, 2, 61, 1_504_000), Err(Refused::Short(2)));
    assert_eq!(replace(&mut entry, 2, 60, 1_504_000), Ok(5), "one takes the place of the other");
    entry.not_sent(5);
    entry.not_sent(3);
    let (short, mark) = sell(&mut entry, 41);
    assert_eq!(mark, b'T');
    assert_eq!(replace(&mut entry, short, 50, 1_504_000), Ok(short + 1), "marked already");
    // So it is after a restart, by the exchange's word.
    let day = [
        Accepted { side: b'T', ..accepted(1, 100, b'L') },
        Accepted { side: b'S', ..accepted(2, 100, b'L') },
    ];
    let symbols = vec![Text::new("AAPL").unwrap()];
    let config = OrdersConfig { symbols, capacity: 8, ..OrdersConfig::default() };
    let mut restarted = OrderEntry::new(config).unwrap();
    day.iter().for_each(|order| _ = restarted.answer(&Answer::Accepted(order)));
    assert_eq!(replace(&mut restarted, 2, 100, 1_504_000), Err(Refused::Short(2)));
    assert_eq!(restarted.risk().exposure(0).unwrap().selling, 200);
}

/// Reference 11.1.4: the quantity is what to be liable for in all, what traded included.
#[test]
fn a_replacement_is_liable_for_what_traded_too() {
    let mut entry = entry();
    enter(&mut entry, 100).unwrap();
    entry.answer(&Answer::Accepted(&accepted(1, 100, b'L')));
    entry.answer(&Answer::Executed(&executed(1, 40)));
    let mut bytes = [0xa5; REPLACE_LEN];
    let collar = |_| Some(1_500_000);
    assert_eq!(entry.replace(1, (80, 1_504_000), collar, 0, &mut bytes), Ok(2));
    let golden =
        b"\0\x29UU\0\0\0\x01\0\0\0\x02\0\0\0\x78\0\0\0\0\0\x16\xf3\x000YN              \0\0";
    assert_eq!(&bytes[..], golden, "80 shall stand, 40 traded");
    // Ten more trade on the way: the exchange leaves so many less.
    entry.answer(&Answer::Executed(&executed(1, 10)));
    entry.answer(&Answer::Replaced(&replaced(1, 2, 70, 1_504_000, b'L')));
    assert_eq!((entry.left(2), entry.mismatches()), (Some(70), 0));
    // What traded goes on from order to order.
    entry.answer(&Answer::Executed(&executed(2, 5)));
    assert_eq!(entry.replace(2, (65, 1_504_000), collar, 0, &mut bytes), Ok(3));
    assert_eq!(bytes[12..16], [0, 0, 0, 65 + 55]);
    assert_eq!(
        replace(&mut entry, 2, 1, 1_504_000),
        Err(Refused::Replacing(2)),
        "before anything else"
    );
}

#[test]
fn a_replacement_liable_for_more_than_the_exchange_takes_is_refused() {
    let symbols = vec![Text::new("AAPL").unwrap()];
    let limits = risk::Limits {
        order_shares: u32::MAX,
        order_value: u64::MAX,
        position_shares: u32::MAX,
        credit: u64::MAX,
        ..risk::Limits::default()
    };
    let config = OrdersConfig { symbols, limits, capacity: 4, ..OrdersConfig::default() };
    let mut entry = OrderEntry::new(config).unwrap();
    enter(&mut entry, 900_000).unwrap();
    entry.answer(&Answer::Accepted(&accepted(1, 900_000, b'L')));
    entry.answer(&Answer::Executed(&executed(1, 800_000)));
    let refused = replace(&mut entry, 1, 200_000, 1_504_000).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "200000 shares beside the 800000 that traded of the order; together 999999 at most are \
         possible: enter another order"
    );
    assert_eq!((entry.count(), entry.next_urn()), (1, 2));
    assert_eq!(replace(&mut entry, 1, 199_999, 1_504_000), Ok(2));
}

#[test]
fn a_replacement_that_a_limit_refuses_changes_nothing() {
    let mut entry = entry();
    enter(&mut entry, 100).unwrap();
    let refused = replace(&mut entry, 1, 80, 2_000_000).unwrap_err();
    assert!(matches!(refused, Refused::Risk(risk::Refused::Collar { .. })), "{refused}");
    assert_eq!((entry.count(), entry.next_urn(), entry.left(1)), (1, 2, Some(100)));
    assert_eq!(replace(&mut entry, 1, 80, 1_504_000), Ok(2));
}

/// Every outcome of a replacement: reference 11.1.7, 3.
#[test]
fn each_answer_to_a_replacement_leaves_what_the_exchange_has() {
    let left = |answer: &dyn Fn(&mut OrderEntry)| {
        let mut entry = replacing();
        answer(&mut entry);
        assert_eq!(entry.mismatches(), 0);
        let exposure = entry.risk().exposure(0).unwrap();
        let stands = u64::from(entry.left(1).unwrap_or(0) + entry.left(2).unwrap_or(0));
        assert_eq!(exposure.buying, stands);
        (entry.left(1), entry.left(2), entry.count())
    };
    let replaced_by = |shares, state| {
        move |entry: &mut OrderEntry| {
            let replaced = replaced(1, 2, shares, 1_504_000, state);
            let event = entry.answer(&Answer::Replaced(&replaced));
            match state {
                b'L' => {
                    let expected = OrderEvent::Replaced { old_urn: 1, urn: 2, reference: 78 };
                    assert_eq!(event, expected);
                }
                _ => assert!(matches!(event, OrderEvent::Cancelled { urn: 2, left: 0, .. })),
            }
        }
    };
    assert_eq!(left(&replaced_by(80, b'L')), (None, Some(80), 1));
    assert_eq!(left(&replaced_by(80, b'D')), (None, None, 0));
    // Shares of the old one traded on the way, and count into those of the new one.
    let partly = |entry: &mut OrderEntry| {
        entry.answer(&Answer::Executed(&executed(1, 30)));
        replaced_by(50, b'L')(entry);
    };
    assert_eq!(left(&partly), (None, Some(50), 1));
    // The old one traded in full: there is no answer.
    let traded = |entry: &mut OrderEntry| {
        entry.answer(&Answer::Executed(&executed(1, 100)));
    };
    assert_eq!(left(&traded), (None, None, 0));
    // The new details cannot be: the old one is cancelled.
    let off = |entry: &mut OrderEntry| {
        entry.answer(&Answer::Cancelled(&cancelled(1, 100)));
    };
    assert_eq!(left(&off), (None, None, 0));
    // It cannot be replaced now: the old one lives on, and may be replaced again.
    let rejected = |entry: &mut OrderEntry| {
        let rejected = Rejected {
            kind: Rejected::KIND,
            timestamp_ns: 0.into(),
            urn: 2.into(),
            reason: 0x15.into(),
            client_order_id: Text::BLANK,
        };
        entry.answer(&Answer::Rejected(&rejected));
    };
    assert_eq!(left(&rejected), (Some(100), None, 1));
    // The connection did not take it: the same.
    assert_eq!(left(&|entry: &mut OrderEntry| entry.not_sent(2)), (Some(100), None, 1));
    let mut entry = replacing();
    rejected(&mut entry);
    assert_eq!(replace(&mut entry, 1, 80, 1_504_000), Ok(3));
}

#[test]
fn a_replaced_order_comes_back_after_a_restart() {
    let day = |entry: &mut OrderEntry| {
        entry.answer(&Answer::Accepted(&accepted(1, 100, b'L')));
        entry.answer(&Answer::Replaced(&replaced(1, 2, 80, 1_504_000, b'L')));
        entry.answer(&Answer::Executed(&executed(2, 30)));
    };
    let (mut lived, mut restarted) = (replacing(), entry());
    for entry in [&mut lived, &mut restarted] {
        day(entry);
        assert_eq!((entry.left(1), entry.left(2), entry.count()), (None, Some(50), 1));
        assert_eq!((entry.next_urn(), entry.mismatches()), (3, 0));
    }
    assert_eq!(lived.risk().owed(), restarted.risk().owed());
}

/// Orders 1 to 4: one that stands, one with a replacement that is on its way, one on its way.
#[test]
fn what_never_arrived_is_taken_off_when_the_session_begins_anew() {
    let symbols = vec![Text::new("AAPL").unwrap()];
    let config = OrdersConfig { symbols, capacity: 8, ..OrdersConfig::default() };
    let mut entry = OrderEntry::new(config).unwrap();
    for urn in 1..=2 {
        assert_eq!(enter(&mut entry, 100), Ok(urn));
        entry.answer(&Answer::Accepted(&accepted(urn, 100, b'L')));
    }
    assert_eq!(replace(&mut entry, 2, 50, 1_504_000), Ok(3));
    assert_eq!(enter(&mut entry, 100), Ok(4));
    let exposure = entry.risk().exposure(0);
    let known = |next_urn: u32| AccountQueryAnswered {
        kind: AccountQueryAnswered::KIND,
        timestamp_ns: 0.into(),
        next_urn: next_urn.into(),
    };
    // All of them arrived: nothing changes.
    assert_eq!(entry.resume(&known(5)), OrderEvent::Resumed { lost: 0 });
    assert_eq!((entry.count(), entry.risk().exposure(0)), (4, exposure));
    assert_eq!(entry.resume(&known(3)), OrderEvent::Resumed { lost: 2 });
    assert_eq!((entry.count(), entry.next_urn()), (2, 5), "numbers are not used again");
    assert_eq!([1, 2, 3, 4].map(|urn| entry.left(urn)), [Some(100), Some(100), None, None]);
    // The second stands as before: it may be replaced, and cancelled.
    assert_eq!(replace(&mut entry, 2, 50, 1_504_000), Ok(5));
    // Of before a restart: the next number is the exchange's.
    entry.resume(&known(90));
    assert_eq!(entry.next_urn(), 90);
    assert_eq!(entry.mismatches(), 0);
}

/// The exchange took an order, and says later that it has none of its number; or says at any time,
/// and to nobody who begins a session, which number is next.
#[test]
fn what_the_exchange_took_is_not_taken_off_and_what_is_on_its_way_stays() {
    let known = |next_urn: u32| AccountQueryAnswered {
        kind: AccountQueryAnswered::KIND,
        timestamp_ns: 0.into(),
        next_urn: next_urn.into(),
    };
    let live = || {
        let mut entry = entry();
        enter(&mut entry, 100).unwrap();
        entry.answer(&Answer::Accepted(&accepted(1, 100, b'L')));
        enter(&mut entry, 50).unwrap();
        (entry.risk().exposure(0), entry)
    };
    for resumes in [true, false] {
        let (exposure, mut entry) = live();
        let event = match resumes {
            true => entry.resume(&known(1)),
            false => entry.answer(&Answer::AccountQueryAnswered(&known(1))),
        };
        assert_eq!(event, OrderEvent::Mismatch { urn: 1 });
        assert_eq!((entry.count(), entry.risk().exposure(0)), (2, exposure));
        assert!(entry.risk().is_stopped_by(Stop::Doubtful));
        assert_eq!(entry.due().map(|packet| packet[3]), Some(b'C'));
    }
    let (exposure, mut entry) = live();
    assert_eq!(entry.answer(&Answer::AccountQueryAnswered(&known(2))), OrderEvent::Other);
    assert_eq!((entry.count(), entry.risk().exposure(0)), (2, exposure));
    assert_eq!(entry.resume(&known(2)), OrderEvent::Resumed { lost: 1 });
    // A replacement that the exchange made is one that it took.
    assert_eq!(replace(&mut entry, 1, 80, 1_504_000), Ok(4));
    entry.answer(&Answer::Replaced(&replaced(1, 4, 80, 1_504_000, b'L')));
    assert_eq!(entry.resume(&known(4)), OrderEvent::Mismatch { urn: 4 });
    assert_eq!(entry.left(4), Some(80));
}

#[test]
fn a_void_trade_is_taken_back_by_its_number_and_one_that_is_not_known_stops_order_entry() {
    let broken = |urn: u32, match_number: u64| answers::Broken {
        kind: answers::Broken::KIND,
        timestamp_ns: 0.into(),
        urn: urn.into(),
        match_number: match_number.into(),
        reason: b'E',
        client_order_id: Text::BLANK,
    };
    let second = Executed { match_number: 10.into(), ..executed(1, 40) };
    let day = |entry: &mut OrderEntry| {
        entry.answer(&Answer::Accepted(&accepted(1, 100, b'L')));
        entry.answer(&Answer::Executed(&executed(1, 60)));
        entry.answer(&Answer::Executed(&second));
        // The order is gone; its trade was not.
        entry.answer(&Answer::Broken(&broken(1, 10)))
    };
    // Who hears the day anew after a restart comes to the same.
    for is_new in [true, false] {
        let mut entry = entry();
        if is_new {
            enter(&mut entry, 100).unwrap();
        }
        let (security, shares, price, reason) = (0, 40, 1_500_000, b'E');
        let event = OrderEvent::Broken { urn: 1, security, shares, price, reason };
        assert_eq!(day(&mut entry), event);
        let held = Exposure { position: 60, cost: 60 * 1_500_000, ..Exposure::default() };
        assert_eq!((entry.risk().exposure(0), entry.risk().owed()), (Some(held), held.cost));
        assert_eq!((enter(&mut entry, 1), entry.mismatches()), (Ok(2), 0));
    }
    // The same again, another's, and one that never was.
    for (urn, match_number) in [(1, 10), (2, 9), (1, 11)] {
        let mut entry = entry();
        day(&mut entry);
        let held = entry.risk().exposure(0);
        let event = entry.answer(&Answer::Broken(&broken(urn, match_number)));
        assert_eq!((event, entry.risk().exposure(0)), (OrderEvent::Mismatch { urn }, held));
        let refused = Refused::Risk(risk::Refused::Doubtful);
        assert_eq!((enter(&mut entry, 1), entry.mismatches()), (Err(refused), 1));
    }
}
