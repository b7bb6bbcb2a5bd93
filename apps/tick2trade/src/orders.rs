//! Orders that we sent and what became of them: the client's side of OUCH 5.0.
//!
//! Nothing is believed but the exchange's answers. An order counts as able to trade from the moment
//! it is sent until an answer says that it is not; an answer that never comes leaves it there.
//!
//! | state | how it is reached | what follows |
//! |---|---|---|
//! | sent | [`OrderEntry::enter`] | accepted (live or dead), rejected |
//! | live | accepted; or replayed after a restart | executed, cancelled, replaced |
//! | replacing | [`OrderEntry::replace`]; its successor is sent | replaced, or as before |
//! | gone | no shares left, rejected, accepted dead | its place is free for another |
//!
//! After a restart the counted messages of the day are taken again from the first one: an
//! "accepted" of an order that is not known tells everything of it, so positions, orders and the
//! next number come back, and no order is sent twice.

mod answering;
mod asking;
mod counts;
mod trades;
mod waiting;

use thiserror::Error;
use zerocopy::IntoBytes;

use self::asking::Asked;
pub use self::asking::{Ask, DUE_LEN};
pub use self::counts::Told;
pub use self::waiting::{LOOKS, Watched};
use self::waiting::{PLACES, Wait};
use crate::proto::ouch::{self, CancelOrder, EnterOrder, ReplaceOrder, Symbol};
use crate::proto::soup::{self, PacketType};
use crate::proto::{Side, Text};
use crate::risk::{self, Intent, Risk, Stop};
use trades::Trades;

/// Bytes of an order as it is sent: the packet's header, the order, an empty appendage.
pub const ENTER_LEN: usize = soup::HEADER_LEN + EnterOrder::LEN + 2;

/// Bytes of a cancel as it is sent.
pub const CANCEL_LEN: usize = soup::HEADER_LEN + CancelOrder::LEN;

/// Bytes of a replacement as it is sent: the packet's header, the replacement, an empty appendage.
pub const REPLACE_LEN: usize = soup::HEADER_LEN + ReplaceOrder::LEN + 2;

/// Whose orders these are, and how many may stand.
#[derive(Debug, Clone)]
pub struct OrdersConfig {
    /// The securities that may be traded; their places are the indexes that [`Intent`] uses.
    pub symbols: Vec<Symbol>,
    /// The firm, for mass cancels.
    pub firm: Text<4>,
    /// Orders at most that may trade at a time: a power of two, 1 to 65,536. Default 1,024.
    pub capacity: usize,
    /// What a trader may do at most.
    pub limits: risk::Limits,
}

impl Default for OrdersConfig {
    fn default() -> Self {
        Self {
            symbols: Vec::new(),
            firm: Text::BLANK,
            capacity: 1024,
            limits: risk::Limits::default(),
        }
    }
}

/// Why orders cannot be kept so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{0} orders at a time; a power of two from 1 to 65536 is possible")]
pub struct BadCapacity(pub usize);

/// Why an order or a cancel was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refused {
    /// A check before the order said no.
    #[error(transparent)]
    Risk(#[from] risk::Refused),
    /// As many orders stand as may.
    #[error("{0} orders stand already, as many as may; wait for an answer, or raise the capacity")]
    Full(usize),
    /// All numbers of the day are used.
    #[error("the day's last order number is used")]
    NoNumber,
    /// No such order stands.
    #[error("order {0} does not stand")]
    Unknown(u32),
    /// The order is being replaced: the answer is not known.
    #[error("order {0} is being replaced")]
    Replacing(u32),
    /// The order is marked as a sale of what is held, and its replacement would sell short.
    #[error("order {0} sells what is held, and its replacement would sell short; enter another")]
    Short(u32),
    /// The exchange counts what traded of an order into what replaces it, and takes no more.
    #[error(
        "{shares} shares beside the {executed} that traded of the order; together {} at most are \
         possible: enter another order",
        ouch::MAX_QUANTITY
    )]
    Liable {
        /// Shares that should stand.
        shares: u32,
        /// Shares that traded.
        executed: u32,
    },
}

/// What became of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderEvent {
    /// It stands in the book, under the feed's number.
    Live {
        /// Our number of it.
        urn: u32,
        /// The exchange's number of it.
        reference: u64,
    },
    /// Another stands in its place.
    Replaced {
        /// Our number of the order that is no more.
        old_urn: u32,
        /// Our number of the one that it became.
        urn: u32,
        /// The exchange's number of it.
        reference: u64,
    },
    /// Shares of it traded.
    Executed {
        /// Our number of it.
        urn: u32,
        /// Shares.
        shares: u32,
        /// Price.
        price: u64,
        /// Shares that may still trade.
        left: u32,
    },
    /// Shares of it that traded did not: the trade is void, and our position as without it. What
    /// the order had left stays as it is.
    Broken {
        /// Our number of it.
        urn: u32,
        /// The security, an index of those that may be traded.
        security: usize,
        /// Shares.
        shares: u32,
        /// Price.
        price: u32,
        /// The exchange's letter.
        reason: u8,
    },
    /// Shares were taken off it.
    Cancelled {
        /// Our number of it.
        urn: u32,
        /// Shares taken off.
        shares: u32,
        /// Shares that may still trade.
        left: u32,
        /// The exchange's letter.
        reason: u8,
    },
    /// It was not taken.
    Rejected {
        /// Our number of it.
        urn: u32,
        /// The exchange's code: [`ouch::reject_reason`].
        reason: u16,
    },
    /// The day starts (`S`) or ends (`E`).
    Day(u8),
    /// A session begins, behind every answer of the day: [`OrderEntry::resume`]. What was asked on
    /// a connection that was cut, and not answered, was not heard: orders are gone, cancels have
    /// to be asked for again.
    Resumed {
        /// Orders that stood here, and that the exchange never got.
        lost: usize,
    },
    /// An answer about an order that does not stand, about more shares than it has, or that
    /// declares a trade void which is none of the last 65,536, or one that cannot be read: our
    /// books and the exchange's differ. No order leaves any more, and everything is being
    /// cancelled, what is not known here as well.
    Mismatch {
        /// Number that the answer has.
        urn: u32,
    },
    /// A cancel was refused: the order stands as before.
    CancelRejected {
        /// Our number of it.
        urn: u32,
    },
    /// A cancel waits for the end of an auction: the order may trade until then.
    CancelPending {
        /// Our number of it.
        urn: u32,
    },
    /// The exchange did not answer an order, a replacement or a cancel in time: everything is
    /// being cancelled, and no order leaves until the exchange says that it is.
    Overdue {
        /// Our number of the order.
        urn: u32,
    },
    /// Every order was cancelled: what was not answered before is not overdue any more.
    AllCancelled,
    /// The exchange takes no more orders of ours: [`OrderEntry::kill`].
    EntryStopped,
    /// The exchange takes orders of ours again: [`OrderEntry::enable`].
    EntryEnabled,
    /// An answer that changes nothing here.
    Other,
}

#[derive(Debug, Clone, Copy)]
struct Standing {
    urn: u32,
    security: u32,
    side: Side,
    price: u32,
    left: u32,
    /// Shares that traded, of the orders too that it replaced.
    executed: u32,
    immediate: bool,
    /// It is marked as a short sale.
    is_short: bool,
    /// The order that shall take its place, and the one whose place it shall take; 0 for none.
    successor: u32,
    predecessor: u32,
}

const fn time_in_force(immediate: bool) -> u8 {
    match immediate {
        true => ouch::time_in_force::IOC,
        false => ouch::time_in_force::DAY,
    }
}

/// One of our orders, as it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnOrder {
    /// Our number of it.
    pub urn: u32,
    /// The security, an index of those that may be traded.
    pub security: usize,
    /// Which way.
    pub side: Side,
    /// Its limit, four decimals.
    pub price: u32,
    /// Shares that may still trade.
    pub left: u32,
}

/// Our orders, their risk, and the bytes that they are sent as. Nothing is allocated after
/// [`OrderEntry::new`].
#[derive(Debug)]
pub struct OrderEntry {
    symbols: Vec<Symbol>,
    firm: Text<4>,
    /// Orders that may trade, each at its number modulo the table's size.
    standing: Box<[Option<Standing>]>,
    /// Places of orders that were seen to stand, a bit each. Nothing is noted when an order leaves,
    /// so that others may stand, too.
    taken: Box<[u64]>,
    count: usize,
    next_urn: u32,
    /// The highest number of an order that the exchange took.
    taken_to: u32,
    trades: Trades,
    risk: Risk,
    mismatches: u64,
    /// What the order of each place waits for, as the last look found it.
    waits: Box<[Wait]>,
    /// What the order waited for whose cancel was made last.
    wait_before: Wait,
    /// Place that is looked at next.
    looked: usize,
    /// Of the places that were looked at in this round one waits.
    is_owed: bool,
    overdue: u64,
    asked: Asked,
    told: Told,
}

impl OrderEntry {
    /// No orders yet; the first has the number 1.
    ///
    /// # Errors
    /// [`BadCapacity`] for a table that cannot be.
    pub fn new(config: OrdersConfig) -> Result<Self, BadCapacity> {
        if !config.capacity.is_power_of_two() || config.capacity > 65_536 {
            return Err(BadCapacity(config.capacity));
        }
        Ok(Self {
            risk: Risk::new(config.limits, config.symbols.len()),
            symbols: config.symbols,
            firm: config.firm,
            standing: vec![None; config.capacity].into(),
            taken: vec![0; config.capacity.div_ceil(PLACES)].into(),
            count: 0,
            next_urn: 1,
            taken_to: 0,
            trades: Trades::new(),
            mismatches: 0,
            waits: vec![Wait::default(); config.capacity].into(),
            wait_before: Wait::default(),
            looked: 0,
            is_owed: false,
            overdue: 0,
            asked: Asked::default(),
            told: Told::default(),
        })
    }

    fn place(&self, urn: u32) -> usize {
        urn as usize & (self.standing.len() - 1)
    }

    /// The next number whose place is free, and that place. Numbers need only rise: those whose
    /// places older orders have are passed over.
    #[inline]
    fn free_place(&mut self) -> Result<(u32, usize), Refused> {
        let (urn, place) = (self.next_urn, self.place(self.next_urn));
        if self.standing[place].is_none() && urn != u32::MAX {
            return Ok((urn, place));
        }
        self.find_place()
    }

    /// Passes over places that others have: those that were seen before up to 64 at a time.
    #[cold]
    #[inline(never)]
    fn find_place(&mut self) -> Result<(u32, usize), Refused> {
        if self.count == self.standing.len() {
            return Err(Refused::Full(self.count));
        }
        let mut urn = self.next_urn;
        while urn != u32::MAX {
            let place = self.place(urn);
            let (word, bit) = (&mut self.taken[place / PLACES], place % PLACES);
            let seen = (*word >> bit).trailing_ones();
            if seen == 0 && self.standing[place].is_none() {
                return Ok((urn, place));
            }
            *word |= 1 << bit;
            urn = urn.saturating_add(seen.max(1));
        }
        Err(Refused::NoNumber)
    }

    fn get(&mut self, urn: u32) -> Option<&mut Standing> {
        let place = self.place(urn);
        self.standing[place].as_mut().filter(|order| order.urn == urn)
    }

    /// Checks an order, writes it to `out` as a packet for the session, and returns its number.
    /// From now on it counts as able to trade; [`OrderEntry::not_sent`] takes that back.
    ///
    /// # Errors
    /// A [`Refused`]; nothing is counted and `out` holds anything.
    #[inline]
    pub fn enter(
        &mut self,
        intent: &Intent,
        immediate: bool,
        now_ns: u64,
        out: &mut [u8; ENTER_LEN],
    ) -> Result<u32, Refused> {
        let (urn, place) = self.free_place()?;
        self.risk.take(intent, now_ns)?;
        let symbol = self.symbols[intent.security];
        let is_short = intent.side == Side::Sell && self.risk.is_short(intent.security, 0, 0);
        let order = EnterOrder {
            urn: urn.into(),
            quantity: intent.shares.into(),
            symbol,
            price: u64::from(intent.price).into(),
            time_in_force: time_in_force(immediate),
            side: if is_short { ouch::SHORT } else { intent.side.letter() },
            ..EnterOrder::new(intent.side)
        };
        const PAYLOAD: usize = ENTER_LEN - soup::HEADER_LEN;
        let header = const { (PAYLOAD as u16 + 1).to_be_bytes() };
        [out[0], out[1], out[2]] = [header[0], header[1], PacketType::UNSEQUENCED.0];
        out[soup::HEADER_LEN..ENTER_LEN - 2].copy_from_slice(order.as_bytes());
        out[ENTER_LEN - 2..].fill(0);
        self.standing[place] = Some(Standing {
            urn,
            security: intent.security as u32,
            side: intent.side,
            price: intent.price,
            left: intent.shares,
            executed: 0,
            immediate,
            is_short,
            successor: 0,
            predecessor: 0,
        });
        self.count += 1;
        self.next_urn = urn + 1;
        Ok(urn)
    }

    /// Replaces an order that stands by one of so many shares at another price, at the back of its
    /// level; writes the packet to `out` and returns the number of the new order.
    ///
    /// `shares` are those that shall stand: what traded is added to them, because the exchange
    /// takes it off again. Of what trades on the way so much less stands. Until the answer both
    /// count as able to trade, so that the new one has to pass every limit beside the old;
    /// [`OrderEntry::not_sent`] takes that back. `collar` gives the price that the collar is drawn
    /// around, of a security.
    ///
    /// # Errors
    /// A [`Refused`]; nothing is counted and `out` holds anything.
    #[inline]
    pub fn replace(
        &mut self,
        old_urn: u32,
        (shares, price): (u32, u32),
        collar: impl FnOnce(usize) -> Option<u32>,
        now_ns: u64,
        out: &mut [u8; REPLACE_LEN],
    ) -> Result<u32, Refused> {
        let old_place = self.place(old_urn);
        let old = self.standing[old_place].as_ref().filter(|order| order.urn == old_urn);
        let &Standing { security, side, left, executed, immediate, is_short, successor, .. } =
            old.ok_or(Refused::Unknown(old_urn))?;
        if successor != 0 {
            return Err(Refused::Replacing(old_urn));
        }
        let quantity = shares.saturating_add(executed);
        if quantity > ouch::MAX_QUANTITY {
            return Err(Refused::Liable { shares, executed });
        }
        let (urn, place) = self.free_place()?;
        let reference = collar(security as usize);
        let intent = Intent { security: security as usize, side, shares, price, reference };
        // A replacement is marked as the order that it replaces: one that would sell more than is
        // held needs the other mark.
        let sells_more = side == Side::Sell && !is_short;
        if sells_more && self.risk.is_short(intent.security, shares, left) {
            return Err(Refused::Short(old_urn));
        }
        self.risk.take(&intent, now_ns)?;
        let replace = ReplaceOrder {
            kind: ReplaceOrder::KIND,
            old_urn: old_urn.into(),
            urn: urn.into(),
            quantity: quantity.into(),
            price: u64::from(price).into(),
            time_in_force: time_in_force(immediate),
            display: b'Y',
            intermarket_sweep: b'N',
            client_order_id: Text::BLANK,
        };
        const PAYLOAD: usize = REPLACE_LEN - soup::HEADER_LEN;
        let header = const { (PAYLOAD as u16 + 1).to_be_bytes() };
        [out[0], out[1], out[2]] = [header[0], header[1], PacketType::UNSEQUENCED.0];
        out[soup::HEADER_LEN..REPLACE_LEN - 2].copy_from_slice(replace.as_bytes());
        out[REPLACE_LEN - 2..].fill(0);
        self.standing[place] = Some(Standing {
            urn,
            security,
            side,
            price,
            left: shares,
            executed,
            immediate,
            is_short,
            successor: 0,
            predecessor: old_urn,
        });
        if let Some(old) = &mut self.standing[old_place] {
            old.successor = urn;
        }
        self.count += 1;
        self.next_urn = urn + 1;
        Ok(urn)
    }

    /// Takes an order back that [`OrderEntry::enter`] or [`OrderEntry::replace`] made and the
    /// connection did not take: it never left, and counts against no limit. To be called before
    /// anything else is sent. Its number is used up, which the exchange allows.
    pub fn not_sent(&mut self, urn: u32) {
        self.risk.message_not_sent();
        self.never_was(urn);
    }

    /// The exchange never got an order: it is taken off, and what it should have replaced stands.
    fn never_was(&mut self, urn: u32) {
        self.keep_predecessor(urn);
        if let Some(&mut order) = self.get(urn) {
            self.take_off(order, order.left);
        }
    }

    /// A cancel of what is left of an order, as a packet for the session. Answers may still execute
    /// it, and its [successor](OrderEntry::successor) takes its place if the exchange heard of that
    /// before: then the exchange passes over the cancel without a word.
    ///
    /// The first cancel of an order always passes; others, while one has no answer, pass if not too
    /// many messages were sent.
    ///
    /// # Errors
    /// [`Refused::Unknown`], or [`Refused::Risk`] of the rate.
    pub fn cancel(&mut self, urn: u32, now_ns: u64) -> Result<[u8; CANCEL_LEN], Refused> {
        self.get(urn).ok_or(Refused::Unknown(urn))?;
        let place = self.place(urn);
        let wait = &mut self.waits[place];
        self.wait_before = *wait;
        if wait.is_for_cancel(urn) {
            self.risk.message(now_ns)?;
        } else {
            self.risk.count_message(now_ns);
            *wait = Wait::for_cancel(urn);
        }
        let cancel = CancelOrder { kind: CancelOrder::KIND, urn: urn.into(), quantity: 0.into() };
        let mut packet = [0; CANCEL_LEN];
        packet[1..soup::HEADER_LEN]
            .copy_from_slice(&[const { CancelOrder::LEN as u8 + 1 }, PacketType::UNSEQUENCED.0]);
        packet[soup::HEADER_LEN..].copy_from_slice(cancel.as_bytes());
        Ok(packet)
    }

    /// The order that is to replace this one, if one is.
    pub fn successor(&self, urn: u32) -> Option<u32> {
        let order = self.standing[self.place(urn)].as_ref().filter(|order| order.urn == urn)?;
        Some(order.successor).filter(|&successor| successor != 0)
    }

    /// No order passes while the books are behind the market.
    pub const fn set_stale(&mut self, is_stale: bool) {
        if is_stale {
            self.risk.stop(Stop::Stale);
        } else {
            self.risk.end_stop(Stop::Stale);
        }
    }

    /// Shares of an order that may still trade; `None` if it does not stand.
    pub fn left(&self, urn: u32) -> Option<u32> {
        let order = self.standing[self.place(urn)].filter(|order| order.urn == urn);
        order.map(|order| order.left)
    }

    /// Every order that may trade, in no order.
    pub fn standing(&self) -> impl Iterator<Item = OwnOrder> + '_ {
        self.standing.iter().flatten().map(
            |&Standing { urn, security, side, price, left, .. }| OwnOrder {
                urn,
                security: security as usize,
                side,
                price,
                left,
            },
        )
    }

    /// Orders that may trade.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// The securities that may be traded.
    pub fn symbols(&self) -> &[Symbol] {
        &self.symbols
    }

    /// The limits' state: exposures, credit, kill switch.
    pub const fn risk(&self) -> &Risk {
        &self.risk
    }

    /// Number of the next order.
    pub const fn next_urn(&self) -> u32 {
        self.next_urn
    }

    /// Answers that did not fit our orders.
    pub const fn mismatches(&self) -> u64 {
        self.mismatches
    }

    /// What the exchange said so far.
    pub const fn told(&self) -> &Told {
        &self.told
    }
}

#[cfg(test)]
mod tests;
