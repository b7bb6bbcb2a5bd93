//! Orders that would take: how far from the market they may be priced, as the other side tells it.

use super::told::{Told, offer};
use super::*;
use crate::proto::itch;
use crate::risk;

fn bid(reference: u64, shares: u32, price: u32) -> itch::AddOrder {
    itch::AddOrder { side: b'B', ..offer(reference, shares, price) }
}

/// Says what became of an order at a price, at every change of the book.
struct Probe {
    side: Side,
    price: u32,
    said: Vec<Result<bool, Refused>>,
}

impl Strategy for Probe {
    fn on_market(&mut self, event: MarketEvent, desk: &mut Desk<'_>) {
        if let MarketEvent::Book(_) = event {
            let entered = desk.enter(0, self.side, 1, self.price, Stands::Immediately);
            self.said.push(entered.map(|sent| sent.is_some()));
        }
    }

    fn on_order(&mut self, _: OrderEvent, _: &mut Desk<'_>) {}
}

/// What became of an order behind these of the market.
fn said(side: Side, price: u32, market: &[itch::AddOrder]) -> Result<bool, Refused> {
    let mut told = Told::new(Probe { side, price, said: Vec::new() });
    market.iter().for_each(|order| told.hear(order));
    *told.0.strategy().said.last().unwrap()
}

#[test]
fn a_stub_that_is_left_alone_on_its_side_is_not_taken() {
    let collar = |price, reference| {
        Err(Refused::Risk(risk::Refused::Collar { price, reference, limit_bp: 500 }))
    };
    let (high, low) = (19_999_900, 100);
    let stub = [bid(1, 100, 1_500_000), offer(2, 100, high)];
    assert_eq!(said(Side::Buy, high, &stub), collar(high, 10_749_950));
    let stub = [offer(1, 100, 1_500_000), bid(2, 100, low)];
    assert_eq!(said(Side::Sell, low, &stub), collar(low, 750_050));
    // Half of the spread is within five percent of the midpoint, or is not.
    for (ask, passes) in [(1_657_800, true), (1_657_900, false)] {
        let market = [bid(1, 100, 1_500_000), offer(2, 100, ask)];
        assert_eq!(said(Side::Buy, ask, &market).is_ok(), passes, "{ask}");
    }
    // Of one side alone nobody knows better.
    assert_eq!(said(Side::Buy, 1_500_000, &[offer(1, 100, 1_500_000)]), Ok(true));
    assert_eq!(said(Side::Sell, 1_500_000, &[bid(1, 100, 1_500_000)]), Ok(true));
}
