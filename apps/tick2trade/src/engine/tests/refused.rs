//! A cancel that the exchange refuses.

use super::*;
use crate::proto::ouch::answers::CancelRejected;
use zerocopy::IntoBytes;

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
