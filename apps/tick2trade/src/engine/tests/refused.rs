//! An order or a cancel that the exchange refuses.

use super::told::{Told, offer};
use super::*;
use crate::proto::itch::AddOrder;
use crate::proto::ouch::answers::{CancelRejected, Cancelled, Rejected};
use zerocopy::IntoBytes;

/// A quoter in a book of one bid and one offer: what stands of it, the bid first.
fn quoted(spread: u32, bid: u32, ask: u32) -> (Told<Quoter>, [u32; 2]) {
    let mut told = Told::new(Quoter::new(0, 100, spread));
    told.hear(&AddOrder { side: b'B', ..offer(1, 100, bid) });
    told.hear(&offer(2, 100, ask));
    let mut quotes: Vec<_> = told.0.orders().standing().collect();
    quotes.sort_by_key(|quote| quote.price);
    let [(bid, Side::Buy), (offer, Side::Sell)] =
        [0, 1].map(|at| (quotes[at].price, quotes[at].side))
    else {
        panic!("{quotes:?}")
    };
    (told, [bid, offer])
}

/// Rule 612 of Reg NMS: whole cents from a dollar up.
#[test]
fn a_quoters_prices_are_whole_cents_and_no_nearer_than_its_spread() {
    for (spread, market, quotes) in [
        (200, [1_000_000, 1_000_100], [999_900, 1_000_200]),
        (300, [1_000_000, 1_000_200], [999_900, 1_000_300]),
        (100, [1_000_000, 1_000_100], [1_000_000, 1_000_100]),
        (3, [9_000, 9_001], [8_999, 9_002]),
        (4, [9_999, 10_000], [9_997, 10_100]),
    ] {
        assert_eq!(quoted(spread, market[0], market[1]).1, quotes, "{spread} {market:?}");
    }
}

/// A quote that the exchange does not take, or takes off by itself, is sent again when the market
/// has moved: not at once, for ever and ever.
#[test]
fn a_quote_that_is_refused_waits_for_the_market() {
    let (mut told, _) = quoted(200, 1_000_000, 1_000_100);
    let timestamp_ns = 0.into();
    let rejected = Rejected {
        kind: Rejected::KIND,
        timestamp_ns,
        urn: 1.into(),
        reason: 0x1d.into(),
        client_order_id: Text::BLANK,
    };
    let (urn, quantity, reason) = (2.into(), 100.into(), b'K');
    let off = Cancelled { kind: Cancelled::KIND, timestamp_ns, urn, quantity, reason };
    let mut wire = Wire::default();
    for (left, answer) in [(1, rejected.as_bytes()), (0, off.as_bytes())] {
        told.0.answer(answer, 0, &mut wire);
        assert_eq!((told.0.orders().count(), wire.sent.len()), (left, 0));
    }
    told.hear(&offer(3, 100, 1_000_200));
    assert_eq!(told.0.orders().count(), 0, "not the best price");
    told.hear(&offer(4, 100, 1_000_100));
    assert_eq!(told.0.orders().count(), 2);
}

/// The crowd goes on, and nothing that the engine sends arrives, until it cancels an order, of this
/// number if one is given.
fn until_cancel(day: &mut Day<Quoter>, urn: Option<u32>) -> u32 {
    for _ in 0..10_000 {
        day.now += 10 * US;
        let mut out = Output::default();
        day.crowd.step(&mut day.exchange, day.now, &mut out);
        day.publish(out);
        let mut wire = Wire::default();
        while let Some(packet) = day.publisher.next_packet(3) {
            day.engine.feed(Source::A, &packet, day.now, &mut wire);
        }
        let cancels = wire.sent.iter().filter(|packet| packet[3] == b'X');
        let mut cancels =
            cancels.map(|packet| u32::from_be_bytes(*packet[4..].first_chunk().unwrap()));
        if let Some(found) = cancels.find(|&found| urn.is_none_or(|urn| urn == found)) {
            return found;
        }
    }
    panic!("no cancel of {urn:?}");
}

#[test]
fn a_quote_whose_cancel_is_refused_is_cancelled_again_when_the_market_moves() {
    let mut day = Day::new(21, LOSSLESS, Quoter::new(0, 100, 300));
    while day.engine.orders().count() < 2 {
        day.run(10);
    }
    let urn = until_cancel(&mut day, None);
    let refused = CancelRejected {
        kind: CancelRejected::KIND,
        timestamp_ns: day.now.into(),
        urn: urn.into(),
    };
    let mut wire = Wire::default();
    day.engine.answer(refused.as_bytes(), day.now, &mut wire);
    assert!(wire.sent.iter().all(|packet| packet[3] != b'X'), "not at once, for ever and ever");
    assert_eq!(until_cancel(&mut day, Some(urn)), urn);
}
