//! Who answers the orders of a replay: nobody traded then, so what would have come is worked out
//! from the books.
//!
//! | order | answer |
//! |---|---|
//! | immediate | trades with the other side's best level, as far as it goes; the rest goes |
//! | all day | stands; trades at its own price once the other side's best reaches it |
//! | replace, cancel, mass cancel | done |
//!
//! The recorded book does not change by it: the same shares may be traded with again. So this says
//! what a strategy does, and nothing of what it would have earned.

use zerocopy::IntoBytes;

use crate::book::Books;
use crate::proto::ouch::answers::{Accepted, Cancelled, Executed, Replaced};
use crate::proto::ouch::{EnterOrder, Request, Symbol, time_in_force};
use crate::proto::{Side, soup};

/// Orders whose numbers the feed does not use.
const FIRST_REFERENCE: u64 = 1 << 63;

#[derive(Debug, Clone, Copy)]
struct Resting {
    urn: u32,
    symbol: Symbol,
    side: Side,
    price: u64,
    left: u32,
    /// Shares that traded, of the orders too that it replaced: quantities count them.
    executed: u32,
}

/// Answers orders out of the books.
#[derive(Debug, Default)]
pub(super) struct Paper {
    standing: Vec<Resting>,
    answered: u64,
    executed: u64,
}

impl Paper {
    /// Shares that traded.
    pub(super) const fn executed(&self) -> u64 {
        self.executed
    }

    /// What becomes of a packet that was sent.
    pub(super) fn take(
        &mut self,
        packet: &[u8],
        books: &Books,
        now_ns: u64,
        answer: &mut impl FnMut(&[u8]),
    ) {
        let message = packet.get(soup::HEADER_LEN..).unwrap_or_default();
        let Ok((request, _)) = Request::parse(message) else { return };
        match request {
            Request::EnterOrder(order) => self.enter(order, books, now_ns, answer),
            Request::ReplaceOrder(new) => {
                let Some(at) = self.find(new.old_urn.get()) else { return };
                let old = self.standing[at];
                let left = new.quantity.get().saturating_sub(old.executed);
                if left == 0 {
                    // All that it is to be liable for has traded.
                    return self.cancel(at, 0, now_ns, answer);
                }
                self.standing.swap_remove(at);
                let reference = self.reference();
                answer(
                    Replaced {
                        kind: Replaced::KIND,
                        timestamp_ns: now_ns.into(),
                        old_urn: new.old_urn,
                        urn: new.urn,
                        side: old.side.letter(),
                        quantity: left.into(),
                        symbol: old.symbol,
                        price: new.price,
                        time_in_force: new.time_in_force,
                        display: new.display,
                        reference: reference.into(),
                        capacity: b'P',
                        intermarket_sweep: new.intermarket_sweep,
                        cross: b'N',
                        state: b'L',
                        client_order_id: new.client_order_id,
                    }
                    .as_bytes(),
                );
                let (urn, price) = (new.urn.get(), new.price.get());
                self.standing.push(Resting { urn, price, left, ..old });
            }
            Request::CancelOrder(cancel) => {
                if let Some(at) = self.find(cancel.urn.get()) {
                    self.cancel(at, cancel.quantity.get(), now_ns, answer);
                }
            }
            Request::MassCancel(_) => {
                while !self.standing.is_empty() {
                    self.cancel(0, 0, now_ns, answer);
                }
            }
            _ => {}
        }
    }

    fn enter(
        &mut self,
        order: &EnterOrder,
        books: &Books,
        now_ns: u64,
        answer: &mut impl FnMut(&[u8]),
    ) {
        let Some(side) = Side::from_letter(order.side) else { return };
        let reference = self.reference();
        answer(
            Accepted {
                kind: Accepted::KIND,
                timestamp_ns: now_ns.into(),
                urn: order.urn,
                side: order.side,
                quantity: order.quantity,
                symbol: order.symbol,
                price: order.price,
                time_in_force: order.time_in_force,
                display: order.display,
                reference: reference.into(),
                capacity: order.capacity,
                intermarket_sweep: order.intermarket_sweep,
                cross: order.cross,
                state: b'L',
                client_order_id: order.client_order_id,
            }
            .as_bytes(),
        );
        let mut resting = Resting {
            urn: order.urn.get(),
            symbol: order.symbol,
            side,
            price: order.price.get(),
            left: order.quantity.get(),
            executed: 0,
        };
        if order.time_in_force != time_in_force::IOC {
            self.standing.push(resting);
            return;
        }
        if let Some((price, shares)) = reached(&resting, books) {
            self.trade(&mut resting, shares, price, now_ns, answer);
        }
        if resting.left != 0 {
            answer(off(resting.urn, resting.left, b'I', now_ns).as_bytes());
        }
    }

    /// Trades what stands and is reached by the books as they are now.
    pub(super) fn trade_standing(
        &mut self,
        books: &Books,
        now_ns: u64,
        answer: &mut impl FnMut(&[u8]),
    ) {
        let mut at = 0;
        while let Some(&(mut resting)) = self.standing.get(at) {
            let Some((_, shares)) = reached(&resting, books) else {
                at += 1;
                continue;
            };
            let price = resting.price;
            self.trade(&mut resting, shares, price, now_ns, answer);
            if resting.left == 0 {
                self.standing.remove(at);
            } else {
                self.standing[at] = resting;
                at += 1;
            }
        }
    }

    fn trade(
        &mut self,
        order: &mut Resting,
        shares: u64,
        price: u64,
        now_ns: u64,
        answer: &mut impl FnMut(&[u8]),
    ) {
        let shares = u64::from(order.left).min(shares) as u32;
        order.left -= shares;
        order.executed += shares;
        self.executed += u64::from(shares);
        self.answered += 1;
        answer(
            Executed {
                kind: Executed::KIND,
                timestamp_ns: now_ns.into(),
                urn: order.urn.into(),
                quantity: shares.into(),
                price: price.into(),
                liquidity: b'R',
                match_number: self.answered.into(),
            }
            .as_bytes(),
        );
    }

    /// An order is reduced to so many shares, those included that traded; 0 for nothing.
    fn cancel(&mut self, at: usize, quantity: u32, now_ns: u64, answer: &mut impl FnMut(&[u8])) {
        let order = &mut self.standing[at];
        let shares = order.left.saturating_sub(quantity.saturating_sub(order.executed));
        order.left -= shares;
        if shares != 0 {
            answer(off(order.urn, shares, b'U', now_ns).as_bytes());
        }
        if order.left == 0 {
            self.standing.remove(at);
        }
    }

    fn find(&self, urn: u32) -> Option<usize> {
        self.standing.iter().position(|order| order.urn == urn)
    }

    const fn reference(&mut self) -> u64 {
        self.answered += 1;
        FIRST_REFERENCE + self.answered
    }
}

/// Price and shares of the other side's best level, if the order's limit reaches it.
fn reached(order: &Resting, books: &Books) -> Option<(u64, u64)> {
    let book = books.iter().find(|book| book.stock() == order.symbol)?;
    let best = book.best(order.side.opposite())?;
    let price = u64::from(best.price);
    let is_reached = match order.side {
        Side::Buy => price <= order.price,
        Side::Sell => price >= order.price,
    };
    is_reached.then_some((price, best.shares))
}

fn off(urn: u32, shares: u32, reason: u8, now_ns: u64) -> Cancelled {
    Cancelled {
        kind: Cancelled::KIND,
        timestamp_ns: now_ns.into(),
        urn: urn.into(),
        quantity: shares.into(),
        reason,
    }
}
