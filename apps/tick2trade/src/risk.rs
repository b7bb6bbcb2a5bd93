//! Checks that an order passes before it leaves: integers compared with integers, each with its
//! name.
//!
//! What the exchange may still do with an order counts from the moment it is sent: an order without
//! an answer is as good as one that trades in full. Prices have four decimals; values are price
//! times shares, so they do, too.

use std::mem;

use thiserror::Error;

use crate::proto::Side;
use crate::proto::ouch::MAX_PRICE;

/// What a trader may do at most. Every limit is on; there is no value that turns one off.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Shares of one order. Default 1,000.
    pub order_shares: u32,
    /// Value of one order, four decimals. Default 1,000,000.0000.
    pub order_value: u64,
    /// How far from the reference price an order may be priced, in hundredths of a percent of it:
    /// from the midpoint of the book, or the best price of the one side that it has.
    /// Default 500: five percent.
    pub collar_bp: u32,
    /// Messages in any [`Limits::rate_window_ns`]. Default 1,000, at most 65,536. The first cancel
    /// of an order counts, and is held up by no limit: an order that may leave may be taken back.
    pub rate: usize,
    /// Length of that time, ns. Default 1 s.
    pub rate_window_ns: u64,
    /// Shares of one security, long or short, if everything that stands should trade. Default
    /// 10,000. What makes a position smaller that is beyond it passes.
    pub position_shares: u32,
    /// Value of everything that stands and of all positions at what was paid for them. Default
    /// 10,000,000.0000. What closes a position needs none.
    pub credit: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            order_shares: 1_000,
            order_value: 1_000_000 * 10_000,
            collar_bp: 500,
            rate: 1_000,
            rate_window_ns: 1_000_000_000,
            position_shares: 10_000,
            credit: 10_000_000 * 10_000,
        }
    }
}

/// Why an order did not leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refused {
    /// The kill switch was thrown.
    #[error("the kill switch was thrown")]
    Killed,
    /// The trader ends.
    #[error("the trader ends: its orders are being cancelled, and none leaves any more")]
    Closing,
    /// The exchange owes an answer for too long.
    #[error("an answer of the exchange is overdue: orders are being cancelled, and none leaves")]
    Overdue,
    /// An answer did not fit: positions may be wrong.
    #[error(
        "an answer of the exchange did not fit our orders, so positions may be wrong, which a \
         restart hears again: no order leaves for the rest of this session"
    )]
    Doubtful,
    /// The books are behind the market.
    #[error("the feed is behind, silent or over: no order leaves until it is live")]
    Stale,
    /// No shares, or more than one order may have.
    #[error("an order of {shares} shares; 1 to {limit} are allowed")]
    Shares {
        /// Shares of the order.
        shares: u32,
        /// The limit.
        limit: u32,
    },
    /// More value than one order may have.
    #[error("an order worth {value} (four decimals); {limit} are allowed")]
    Value {
        /// Value of the order.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// A price that is none: nothing, or what the exchange takes for a market order.
    #[error("price {0}; 1 to {MAX_PRICE} are possible, and what is above is a market order")]
    Price(u32),
    /// No price is known to compare the order's with.
    #[error("no reference price: the book is empty, halted, or may be wrong")]
    NoReference,
    /// Too far from the reference price.
    #[error("price {price} is more than {limit_bp} basis points from {reference}")]
    Collar {
        /// Price of the order.
        price: u32,
        /// Price that it was compared with.
        reference: u32,
        /// The limit.
        limit_bp: u32,
    },
    /// Too many messages.
    #[error("{limit} messages in the time that the limit has are sent already")]
    Rate {
        /// The limit.
        limit: usize,
    },
    /// The position could become too big.
    #[error("a position of {shares} shares could come of it; {limit} are allowed")]
    Position {
        /// Shares if everything on this side trades.
        shares: u64,
        /// The limit.
        limit: u32,
    },
    /// Not enough credit.
    #[error("{value} (four decimals) could be owed; {limit} are allowed")]
    Credit {
        /// Value with the order.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// A security that has no place in the table.
    #[error("security {0} is not one that may be traded")]
    Unknown(usize),
}

/// One security's shares: held, and standing on each side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exposure {
    /// Shares held; negative if sold short.
    pub position: i64,
    /// Shares of orders that may still buy.
    pub buying: u64,
    /// Shares of orders that may still sell.
    pub selling: u64,
    /// What was paid for the shares held, or taken for those sold short, four decimals. Of a
    /// position that becomes smaller the cost falls in proportion, whatever price that has.
    pub cost: u64,
}

impl Exposure {
    fn standing(&mut self, side: Side) -> &mut u64 {
        match side {
            Side::Buy => &mut self.buying,
            Side::Sell => &mut self.selling,
        }
    }

    /// Shares in the direction of one side if everything on it trades and nothing on the other:
    /// long for buying, short for selling; 0 if the position only becomes smaller by it.
    fn worst(&self, side: Side) -> u64 {
        let worst = match side {
            Side::Buy => self.position.saturating_add_unsigned(self.buying),
            Side::Sell => self.position.saturating_sub_unsigned(self.selling).saturating_neg(),
        };
        worst.max(0) as u64
    }

    /// Shares change hands at a price: a position that grows costs that much more; one that becomes
    /// smaller keeps its cost for each share; one that turns around has the price of the trade.
    fn moved(&mut self, side: Side, shares: u32, price: u32) {
        let (before, shares, price) = (self.position, u64::from(shares), u64::from(price));
        self.position = match side {
            Side::Buy => before.saturating_add_unsigned(shares),
            Side::Sell => before.saturating_sub_unsigned(shares),
        };
        let (held, after) = (before.unsigned_abs(), self.position.unsigned_abs());
        self.cost = if before.signum() * self.position.signum() < 0 {
            after.saturating_mul(price)
        } else if after >= held {
            self.cost.saturating_add(shares.saturating_mul(price))
        } else {
            // Less than the cost before, which is of 64 bits.
            (u128::from(self.cost) * u128::from(after) / u128::from(held)) as u64
        };
    }
}

/// An order before it leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Intent {
    /// Which security, an index from 0.
    pub security: usize,
    /// Which way.
    pub side: Side,
    /// Shares.
    pub shares: u32,
    /// Limit, four decimals.
    pub price: u32,
    /// Price that the collar is drawn around.
    pub reference: Option<u32>,
}

/// The state behind the checks. Nothing is allocated after [`Risk::new`].
#[derive(Debug)]
pub struct Risk {
    limits: Limits,
    exposures: Box<[Exposure]>,
    /// Value of everything that stands, and of positions at what was paid.
    owed: u64,
    /// When each place of the window may hold another message, and the place that is next: the one
    /// that was filled longest ago.
    free_at_ns: Box<[u64]>,
    next_place: usize,
    /// What the place held that was filled last: a message that cannot be held up takes one that is
    /// not free.
    before_ns: u64,
    /// Why no order passes at all: the bits of [`Stop`].
    stops: u8,
}

/// Why no order passes at all. More than one may hold at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// [`Refused::Stale`].
    Stale = 16,
    /// [`Refused::Overdue`].
    Overdue = 1,
    /// [`Refused::Doubtful`].
    Doubtful = 2,
    /// [`Refused::Closing`].
    Closing = 4,
    /// [`Refused::Killed`].
    Killed = 8,
}

impl Risk {
    /// No positions and no orders in `securities` securities. A rate above 65,536 counts as that.
    pub fn new(limits: Limits, securities: usize) -> Self {
        let rate = limits.rate.clamp(1, 65_536);
        Self {
            exposures: vec![Exposure::default(); securities].into(),
            owed: 0,
            free_at_ns: vec![0; rate].into(),
            next_place: 0,
            before_ns: 0,
            stops: 0,
            limits,
        }
    }

    /// Lets an order pass, and counts it as sent.
    ///
    /// # Errors
    /// The first [`Refused`] that is found; nothing was counted.
    #[inline(always)]
    pub fn take(&mut self, order: &Intent, now_ns: u64) -> Result<(), Refused> {
        if self.stops != 0 {
            return Err(self.stopped());
        }
        let limits = &self.limits;
        let (shares, price) = (order.shares, order.price);
        if shares == 0 || shares > limits.order_shares {
            return Err(Refused::Shares { shares, limit: limits.order_shares });
        }
        if price == 0 || u64::from(price) > MAX_PRICE {
            return Err(Refused::Price(price));
        }
        let value = u64::from(shares) * u64::from(price);
        if value > limits.order_value {
            return Err(Refused::Value { value, limit: limits.order_value });
        }
        let reference = order.reference.ok_or(Refused::NoReference)?;
        let away = u64::from(price.abs_diff(reference)) * 10_000;
        if away > u64::from(reference) * u64::from(limits.collar_bp) {
            return Err(Refused::Collar { price, reference, limit_bp: limits.collar_bp });
        }
        let exposure = self.exposures.get_mut(order.security);
        let exposure = exposure.ok_or(Refused::Unknown(order.security))?;
        let mut after = *exposure;
        *after.standing(order.side) += u64::from(shares);
        let worst = after.worst(order.side);
        if worst > u64::from(limits.position_shares) {
            return Err(Refused::Position { shares: worst, limit: limits.position_shares });
        }
        let owed = self.owed.saturating_add(value);
        if owed > limits.credit && worst != 0 {
            return Err(Refused::Credit { value: owed, limit: limits.credit });
        }
        *exposure = after;
        if let Err(refused) = self.message(now_ns) {
            *self.exposures[order.security].standing(order.side) -= u64::from(shares);
            return Err(refused);
        }
        self.owed = owed;
        Ok(())
    }

    /// Why no order passes, of one who is stopped.
    #[cold]
    const fn stopped(&self) -> Refused {
        if self.is_stopped_by(Stop::Killed) {
            Refused::Killed
        } else if self.is_stopped_by(Stop::Closing) {
            Refused::Closing
        } else if self.is_stopped_by(Stop::Doubtful) {
            Refused::Doubtful
        } else if self.is_stopped_by(Stop::Overdue) {
            Refused::Overdue
        } else {
            Refused::Stale
        }
    }

    /// Counts a message against the rate.
    ///
    /// # Errors
    /// [`Refused::Rate`]; it was not counted.
    #[inline(always)]
    pub fn message(&mut self, now_ns: u64) -> Result<(), Refused> {
        if now_ns < self.free_at_ns[self.next_place] {
            return Err(Refused::Rate { limit: self.free_at_ns.len() });
        }
        self.count_message(now_ns);
        Ok(())
    }

    /// Counts a message that the rate does not hold up, though it does those behind it.
    #[inline(always)]
    pub fn count_message(&mut self, now_ns: u64) {
        let free_at_ns = now_ns.saturating_add(self.limits.rate_window_ns);
        self.before_ns = mem::replace(&mut self.free_at_ns[self.next_place], free_at_ns);
        let next = self.next_place + 1;
        self.next_place = if next == self.free_at_ns.len() { 0 } else { next };
    }

    /// The last message that was counted did not leave.
    pub fn message_not_sent(&mut self) {
        self.next_place = self.next_place.checked_sub(1).unwrap_or(self.free_at_ns.len() - 1);
        self.free_at_ns[self.next_place] = self.before_ns;
    }

    /// Shares of an order stand whatever the limits say: the exchange says that they do.
    pub fn restore(&mut self, security: usize, side: Side, shares: u32, price: u32) {
        if let Some(exposure) = self.exposures.get_mut(security) {
            let standing = exposure.standing(side);
            *standing = standing.saturating_add(shares.into());
            self.owed = self.owed.saturating_add(u64::from(shares) * u64::from(price));
        }
    }

    /// Shares of an order that stood will not trade any more: cancelled, rejected, never sent.
    pub fn release(&mut self, security: usize, side: Side, shares: u32, price: u32) {
        if let Some(exposure) = self.exposures.get_mut(security) {
            let standing = exposure.standing(side);
            *standing = standing.saturating_sub(shares.into());
            self.owed = self.owed.saturating_sub(u64::from(shares) * u64::from(price));
        }
    }

    /// Shares of an order that stood at the limit `price` traded at `paid`.
    pub fn traded(&mut self, security: usize, side: Side, shares: u32, price: u32, paid: u32) {
        self.release(security, side, shares, price);
        self.moved(security, side, shares, paid);
    }

    /// A trade that was counted is void: its shares go back at the price that was `paid`. What the
    /// position costs is then as after a trade the other way.
    pub fn voided(&mut self, security: usize, side: Side, shares: u32, paid: u32) {
        self.moved(security, side.opposite(), shares, paid);
    }

    fn moved(&mut self, security: usize, side: Side, shares: u32, paid: u32) {
        let Some(exposure) = self.exposures.get_mut(security) else { return };
        let cost = exposure.cost;
        exposure.moved(side, shares, paid);
        self.owed = self.owed.saturating_sub(cost).saturating_add(exposure.cost);
    }

    /// Lets no order pass, until this reason ends and no other holds.
    pub const fn stop(&mut self, why: Stop) {
        self.stops |= why as u8;
    }

    /// This reason holds no more.
    pub const fn end_stop(&mut self, why: Stop) {
        self.stops &= !(why as u8);
    }

    /// Whether no order passes for this reason.
    pub const fn is_stopped_by(&self, why: Stop) -> bool {
        self.stops & why as u8 != 0
    }

    /// The reasons for which no order passes, bits of [`Stop`].
    pub const fn stops(&self) -> u8 {
        self.stops
    }

    /// Whether what stands to be sold of a security, and so many shares more and less, is more than
    /// is held of it.
    #[inline]
    pub fn is_short(&self, security: usize, more: u32, less: u32) -> bool {
        self.exposures.get(security).is_some_and(|exposure| {
            let selling = exposure.selling.saturating_add(more.into()).saturating_sub(less.into());
            exposure.position.saturating_sub_unsigned(selling) < 0
        })
    }

    /// What one security may still become.
    pub fn exposure(&self, security: usize) -> Option<Exposure> {
        self.exposures.get(security).copied()
    }

    /// Value of everything that stands and of all positions, four decimals.
    pub const fn owed(&self) -> u64 {
        self.owed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn limits() -> Limits {
        Limits {
            order_shares: 100,
            order_value: 50_000,
            collar_bp: 1_000,
            rate: 3,
            rate_window_ns: S,
            position_shares: 150,
            credit: 100_000,
        }
    }

    fn buy(shares: u32, price: u32) -> Intent {
        Intent { security: 0, side: Side::Buy, shares, price, reference: Some(500) }
    }

    fn refusal(order: Intent) -> String {
        let mut risk = Risk::new(limits(), 1);
        let refused = risk.take(&order, 0).unwrap_err();
        assert_eq!((risk.owed(), risk.exposure(0)), (0, Some(Exposure::default())));
        refused.to_string()
    }

    #[test]
    fn who_is_stopped_for_several_reasons_hears_the_gravest_until_each_has_ended() {
        let mut risk = Risk::new(limits(), 1);
        let stops = [
            (Stop::Stale, Refused::Stale),
            (Stop::Overdue, Refused::Overdue),
            (Stop::Doubtful, Refused::Doubtful),
            (Stop::Closing, Refused::Closing),
            (Stop::Killed, Refused::Killed),
        ];
        for (stop, refused) in stops {
            risk.stop(stop);
            assert_eq!(risk.take(&buy(1, 500), 0), Err(refused));
        }
        for (stop, refused) in stops.into_iter().rev() {
            assert_eq!(risk.take(&buy(1, 500), 0), Err(refused));
            risk.end_stop(stop);
        }
        assert_eq!((risk.stops(), risk.take(&buy(1, 500), 0)), (0, Ok(())));
    }

    #[test]
    fn every_limit_bites_just_above_itself_and_says_so() {
        assert_eq!(refusal(buy(0, 500)), "an order of 0 shares; 1 to 100 are allowed");
        assert_eq!(refusal(buy(101, 400)), "an order of 101 shares; 1 to 100 are allowed");
        assert_eq!(
            refusal(buy(100, 501)),
            "an order worth 50100 (four decimals); 50000 are allowed"
        );
        assert_eq!(refusal(buy(1, 551)), "price 551 is more than 1000 basis points from 500");
        assert_eq!(refusal(buy(1, 449)), "price 449 is more than 1000 basis points from 500");
        for price in [0, MAX_PRICE as u32 + 1, 2_000_000_000, u32::MAX] {
            // Whatever else is allowed: the exchange would take some of them for any price.
            let any = Limits { order_value: u64::MAX, credit: u64::MAX, ..limits() };
            let order = Intent { reference: Some(MAX_PRICE as u32), ..buy(1, price) };
            assert_eq!(Risk::new(any, 1).take(&order, 0), Err(Refused::Price(price)));
        }
        assert_eq!(
            refusal(buy(1, 0)),
            "price 0; 1 to 1999999900 are possible, and what is above is a market order"
        );
        assert_eq!(
            refusal(Intent { reference: None, ..buy(1, 500) }),
            "no reference price: the book is empty, halted, or may be wrong"
        );
        assert_eq!(
            refusal(Intent { security: 1, ..buy(1, 500) }),
            "security 1 is not one that may be traded"
        );
        for allowed in [buy(100, 500), buy(1, 550), buy(1, 450)] {
            assert_eq!(Risk::new(limits(), 1).take(&allowed, 0), Ok(()));
        }
    }

    #[test]
    fn what_stands_counts_towards_position_and_credit_until_it_cannot_trade() {
        let mut risk = Risk::new(Limits { rate: 100, ..limits() }, 2);
        risk.take(&buy(100, 500), 0).unwrap();
        let refused = Refused::Position { shares: 151, limit: 150 };
        assert_eq!(risk.take(&buy(51, 500), 0), Err(refused));
        risk.take(&Intent { security: 1, ..buy(100, 500) }, 0).unwrap();
        let refused = Refused::Credit { value: 100_500, limit: 100_000 };
        assert_eq!(risk.take(&buy(1, 500), 0), Err(refused));
        risk.release(1, Side::Buy, 100, 500);
        risk.take(&buy(50, 500), 0).unwrap();
        assert_eq!(risk.owed(), 75_000);
    }

    #[test]
    fn trades_become_positions_and_the_other_side_works_them_off() {
        let mut risk = Risk::new(Limits { rate: 100, ..limits() }, 1);
        risk.take(&buy(100, 500), 0).unwrap();
        risk.traded(0, Side::Buy, 100, 500, 490);
        let held = Exposure { position: 100, cost: 49_000, ..Exposure::default() };
        assert_eq!((risk.exposure(0), risk.owed()), (Some(held), 49_000));
        let sell = Intent { side: Side::Sell, ..buy(100, 500) };
        risk.take(&sell, 0).unwrap();
        assert_eq!(risk.owed(), 99_000);
        risk.traded(0, Side::Sell, 100, 500, 490);
        assert_eq!((risk.exposure(0), risk.owed()), (Some(Exposure::default()), 0));
    }

    /// Trades of a security at so many shares and a price, nothing else standing.
    fn trade(risk: &mut Risk, security: usize, side: Side, shares: u32, price: u32) {
        risk.restore(security, side, shares, price);
        risk.traded(security, side, shares, price, price);
    }

    #[test]
    fn what_one_security_earns_or_loses_is_no_credit_or_debt_of_another() {
        let mut risk = Risk::new(limits(), 2);
        trade(&mut risk, 0, Side::Buy, 100, 490);
        trade(&mut risk, 1, Side::Buy, 100, 490);
        assert_eq!(risk.owed(), 98_000);
        // At double: the other is still held, and still costs what it did.
        trade(&mut risk, 0, Side::Sell, 100, 980);
        assert_eq!(risk.owed(), 49_000);
        // At half: nothing is held, and nothing owed for it.
        trade(&mut risk, 1, Side::Sell, 100, 245);
        assert_eq!((risk.owed(), risk.exposure(1)), (0, Some(Exposure::default())));
        // A part of a position costs a part; one that turns around costs what its new side does.
        trade(&mut risk, 0, Side::Buy, 30, 100);
        trade(&mut risk, 0, Side::Buy, 10, 500);
        trade(&mut risk, 0, Side::Sell, 10, 7);
        assert_eq!((risk.owed(), risk.exposure(0).unwrap().position), (6_000, 30));
        trade(&mut risk, 0, Side::Sell, 50, 200);
        assert_eq!((risk.owed(), risk.exposure(0).unwrap().position), (4_000, -20));
        trade(&mut risk, 0, Side::Buy, 20, 900);
        assert_eq!(risk.owed(), 0);
    }

    #[test]
    fn a_position_beyond_the_limits_can_be_closed_and_not_turned_around_beyond_them() {
        for (held, closes) in [(Side::Buy, Side::Sell), (Side::Sell, Side::Buy)] {
            let mut risk = Risk::new(Limits { rate: 100, ..limits() }, 1);
            trade(&mut risk, 0, held, 300, 500);
            assert_eq!(risk.owed(), 150_000, "beyond the credit");
            let order = |side, shares| Intent { side, ..buy(shares, 500) };
            let refused = risk.take(&order(held, 1), 0);
            assert_eq!(refused, Err(Refused::Position { shares: 301, limit: 150 }));
            for _ in 0..3 {
                assert_eq!(risk.take(&order(closes, 100), 0), Ok(()));
            }
            // What stands would close it: more would open another.
            let refused = risk.take(&order(closes, 1), 0);
            assert_eq!(refused, Err(Refused::Credit { value: 300_500, limit: 100_000 }));
            for _ in 0..3 {
                risk.traded(0, closes, 100, 500, 500);
            }
            assert_eq!((risk.owed(), risk.exposure(0)), (0, Some(Exposure::default())));
        }
    }

    #[test]
    fn a_trade_that_is_void_is_no_position_and_no_debt() {
        for side in [Side::Buy, Side::Sell] {
            let mut risk = Risk::new(limits(), 1);
            trade(&mut risk, 0, side, 100, 490);
            risk.voided(0, side, 100, 490);
            assert_eq!((risk.owed(), risk.exposure(0)), (0, Some(Exposure::default())));
            // What was sold on of it is now owed.
            trade(&mut risk, 0, side, 100, 490);
            trade(&mut risk, 0, side.opposite(), 60, 500);
            risk.voided(0, side, 100, 490);
            let position = risk.exposure(0).unwrap().position;
            assert_eq!(position, if side == Side::Buy { -60 } else { 60 });
            assert_eq!(risk.owed(), 60 * 490);
        }
    }

    #[test]
    fn the_rate_holds_in_any_window_and_not_only_from_second_to_second() {
        let mut risk = Risk::new(limits(), 1);
        for now in [S - 2, S - 1, S] {
            assert_eq!(risk.take(&buy(1, 500), now), Ok(()));
        }
        assert_eq!(risk.take(&buy(1, 500), S + 1), Err(Refused::Rate { limit: 3 }));
        assert_eq!(risk.exposure(0).unwrap().buying, 3, "what was refused does not stand");
        assert_eq!(risk.take(&buy(1, 500), 2 * S - 2), Ok(()));
        assert_eq!(risk.message(2 * S - 2), Err(Refused::Rate { limit: 3 }));
        assert_eq!(risk.message(2 * S - 1), Ok(()));
    }

    #[test]
    fn what_did_not_leave_is_not_counted_and_what_cannot_be_held_up_is() {
        let mut risk = Risk::new(limits(), 1);
        for now in 0..100 {
            assert_eq!(risk.message(now), Ok(()), "of a line that takes nothing");
            risk.message_not_sent();
        }
        for now in [0, 1, 2] {
            assert_eq!(risk.message(now), Ok(()));
        }
        assert_eq!(risk.message(2), Err(Refused::Rate { limit: 3 }));
        // One that cannot be held up, and does not leave, makes no room for others.
        risk.count_message(2);
        risk.message_not_sent();
        assert_eq!(risk.message(2), Err(Refused::Rate { limit: 3 }));
        risk.count_message(3);
        // Those at 1, 2 and 3 are in the window.
        assert_eq!(risk.message(S), Err(Refused::Rate { limit: 3 }));
        assert_eq!(risk.message(S + 1), Ok(()));
    }

    #[test]
    fn nothing_passes_after_the_kill_switch() {
        let mut risk = Risk::new(limits(), 1);
        risk.stop(Stop::Killed);
        assert_eq!(risk.take(&buy(1, 500), 0), Err(Refused::Killed));
        assert_eq!(risk.message(0), Ok(()), "cancels still do");
        risk.stop(Stop::Doubtful);
        assert_eq!(risk.take(&buy(1, 500), 0), Err(Refused::Killed), "doubt takes nothing back");
        let mut risk = Risk::new(limits(), 1);
        risk.stop(Stop::Doubtful);
        assert_eq!(risk.take(&buy(1, 500), 0), Err(Refused::Doubtful));
        risk.stop(Stop::Killed);
        assert_eq!(risk.take(&buy(1, 500), 0), Err(Refused::Killed));
    }
}
