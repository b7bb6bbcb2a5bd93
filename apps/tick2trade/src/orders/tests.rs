use super::*;
use crate::proto::ouch::answers::{Accepted, Cancelled, Executed, Rejected};
use crate::risk::Exposure;

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
    assert_eq!(exposure(&entry), Exposure { position: 60, buying: 40, selling: 0 });
    let event = entry.answer(&Answer::Cancelled(&cancelled(1, 40)));
    assert_eq!(event, OrderEvent::Cancelled { urn: 1, shares: 40, left: 0, reason: b'U' });
    assert_eq!(exposure(&entry), Exposure { position: 60, ..Exposure::default() });
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
        let expected = Exposure { position: 60, buying: 40, selling: 0 };
        assert_eq!(entry.risk().exposure(0), Some(expected));
        assert_eq!(entry.mismatches(), 0);
    }
    assert_eq!(lived.risk().owed(), restarted.risk().owed());
}

#[test]
fn the_kill_switch_cancels_everything_and_lets_nothing_out() {
    let mut entry = entry();
    enter(&mut entry, 100).unwrap();
    let mut out = Vec::new();
    entry.kill(&mut out);
    let golden = b"\0\x14UC\0\0\0\x02FIRM        \0\0\0\x0cUD\0\0\0\x03FIRM\0\0";
    assert_eq!(out, golden);
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
