//! What the exchange's answers do to our orders.

use super::trades::Trade;
use super::waiting::PLACES;
use super::{OrderEntry, OrderEvent, Standing};
use crate::proto::Side;
use crate::proto::ouch::{self, Answer, Symbol, answers};

/// Letters of the answers that say which orders stand and what traded.
const MOVES_SHARES: [u8; 6] = [
    answers::Accepted::KIND,
    answers::Replaced::KIND,
    answers::Cancelled::KIND,
    answers::SelfMatchCancelled::KIND,
    answers::Executed::KIND,
    answers::Broken::KIND,
];

/// What an answer says of an order that was taken.
#[derive(Debug, Clone, Copy)]
struct Taken {
    urn: u32,
    symbol: Symbol,
    side: u8,
    shares: u32,
    /// Shares that traded under the numbers that it had before.
    executed: u32,
    price: u64,
    immediate: bool,
}

impl OrderEntry {
    /// Takes an answer of the exchange, one that was counted, in its order.
    pub fn answer(&mut self, answer: &Answer<'_>) -> OrderEvent {
        let event = match *answer {
            Answer::SystemEvent(event) => OrderEvent::Day(event.event),
            Answer::Accepted(accepted) => self.accepted(accepted),
            Answer::Replaced(replaced) => self.replaced(replaced),
            Answer::Executed(trade) => self.executed(trade),
            Answer::Broken(broken) => self.broken(broken),
            Answer::Cancelled(off) => self.cancelled(off.urn.get(), off.quantity.get(), off.reason),
            Answer::SelfMatchCancelled(off) => {
                self.cancelled(off.urn.get(), off.quantity.get(), off.reason)
            }
            Answer::Rejected(rejected) => self.rejected(rejected.urn.get(), rejected.reason.get()),
            Answer::AccountQueryAnswered(known) => self.known(known.next_urn.get()),
            Answer::CancelRejected(off) => {
                self.answered(off.urn.get());
                OrderEvent::CancelRejected { urn: off.urn.get() }
            }
            Answer::CancelPending(off) => {
                self.answered(off.urn.get());
                OrderEvent::CancelPending { urn: off.urn.get() }
            }
            Answer::MassCancelAnswered(all) => self.all_cancelled(all.urn.get()),
            Answer::DisableAnswered(off) => self.entry_stopped(off.urn.get(), off.firm),
            Answer::EnableAnswered(on) => self.entry_enabled(on.urn.get(), on.firm),
            _ => OrderEvent::Other,
        };
        // A reject moves no shares, whosever it is.
        self.note(event, !matches!(answer, Answer::Rejected(_)));
        event
    }

    /// Takes the answer to the query that a session begins with, behind every answer of before: the
    /// exchange knows of no order from this number on. What was sent with one was lost with its
    /// connection, before it arrived. One that the exchange took and does not know is a mismatch.
    pub fn resume(&mut self, answered: &answers::AccountQueryAnswered) -> OrderEvent {
        let (before, next_urn) = (self.count, answered.next_urn.get());
        let mut event = self.known(next_urn);
        if event == OrderEvent::Other {
            for place in 0..self.standing.len() {
                if let Some(order) = self.standing[place].filter(|order| order.urn >= next_urn) {
                    self.never_was(order.urn);
                }
            }
            event = OrderEvent::Resumed { lost: before - self.count };
        }
        self.ask_again();
        self.note(event, true);
        event
    }

    /// Counts what was said; what does not fit, and may have moved shares, ends order entry.
    fn note(&mut self, event: OrderEvent, moves_shares: bool) {
        self.told.count(event);
        let is_mismatch = matches!(event, OrderEvent::Mismatch { .. });
        self.mismatches += u64::from(is_mismatch);
        if is_mismatch && moves_shares {
            self.doubt();
        }
    }

    /// Takes an answer that cannot be read to its end. Its fixed part says all that is needed of
    /// it; without that, one that moved shares is a mismatch. `None` for what is no answer.
    #[cold]
    pub fn malformed(&mut self, message: &[u8]) -> Option<OrderEvent> {
        if let Ok((answer, _)) = Answer::parse_fixed(message) {
            return Some(self.answer(&answer));
        }
        message.first().filter(|kind| MOVES_SHARES.contains(kind))?;
        let urn = message.get(9..13).and_then(|urn| urn.try_into().ok());
        let event = OrderEvent::Mismatch { urn: urn.map_or(0, u32::from_be_bytes) };
        self.told.count(event);
        self.mismatches += 1;
        self.doubt();
        Some(event)
    }

    /// The number that the exchange takes next, as it tells who asks: one above all that it took.
    fn known(&mut self, next_urn: u32) -> OrderEvent {
        if next_urn <= self.taken_to {
            return OrderEvent::Mismatch { urn: self.taken_to };
        }
        self.next_urn = self.next_urn.max(next_urn);
        OrderEvent::Other
    }

    fn accepted(&mut self, accepted: &answers::Accepted) -> OrderEvent {
        let taken = Taken {
            urn: accepted.urn.get(),
            symbol: accepted.symbol,
            side: accepted.side,
            shares: accepted.quantity.get(),
            executed: 0,
            price: accepted.price.get(),
            immediate: accepted.time_in_force == ouch::time_in_force::IOC,
        };
        let Taken { urn, shares, .. } = taken;
        let Some(order) = self.taken(&taken) else { return OrderEvent::Mismatch { urn } };
        if accepted.state == b'D' {
            self.take_off(order, order.left);
            return OrderEvent::Cancelled { urn, shares, left: 0, reason: accepted.state };
        }
        OrderEvent::Live { urn, reference: accepted.reference.get() }
    }

    /// The old order is gone, and the new one has what it says. What traded of the old one counts
    /// among what the new one is liable for.
    fn replaced(&mut self, replaced: &answers::Replaced) -> OrderEvent {
        let (old_urn, urn) = (replaced.old_urn.get(), replaced.urn.get());
        let Some(&mut old) = self.get(old_urn) else { return OrderEvent::Mismatch { urn } };
        self.take_off(Standing { successor: 0, ..old }, old.left);
        let executed = old.executed;
        let taken = Taken {
            urn,
            symbol: replaced.symbol,
            side: replaced.side,
            shares: replaced.quantity.get(),
            executed,
            price: replaced.price.get(),
            immediate: replaced.time_in_force == ouch::time_in_force::IOC,
        };
        let Some(order) = self.taken(&taken) else { return OrderEvent::Mismatch { urn } };
        if replaced.state == b'D' {
            self.take_off(order, order.left);
            let (shares, reason) = (taken.shares, replaced.state);
            return OrderEvent::Cancelled { urn, shares, left: 0, reason };
        }
        OrderEvent::Replaced { old_urn, urn, reference: replaced.reference.get() }
    }

    /// An order stands as the exchange took it; `None` if that cannot be ours.
    fn taken(&mut self, taken: &Taken) -> Option<Standing> {
        if self.get(taken.urn).is_none() && !self.recover(taken) {
            return None;
        }
        let order = *self.get(taken.urn)?;
        // Of before a crash the exchange may have another of this number.
        let symbol = self.symbols[order.security as usize];
        if (symbol, Some(order.side)) != (taken.symbol, Side::from_letter(taken.side)) {
            return None;
        }
        // The exchange may take less, and at a better price, never more.
        let left = order.left.min(taken.shares);
        if left != taken.shares {
            return None;
        }
        let price = u32::try_from(taken.price).unwrap_or(order.price);
        self.risk.release(order.security as usize, order.side, order.left, order.price);
        let order = Standing { left, price, executed: taken.executed, ..order };
        self.risk.restore(order.security as usize, order.side, order.left, order.price);
        let place = self.place(taken.urn);
        self.standing[place] = Some(order);
        self.was_taken(taken.urn);
        self.taken_to = self.taken_to.max(taken.urn);
        Some(order)
    }

    /// An order of before a restart stands again. `false` if it cannot: an unknown security, or a
    /// place that another order has.
    fn recover(&mut self, taken: &Taken) -> bool {
        let &Taken { urn, shares: left, executed, immediate, .. } = taken;
        let security = self.symbols.iter().position(|&symbol| symbol == taken.symbol);
        let (Some(security), Some(side)) = (security, Side::from_letter(taken.side)) else {
            return false;
        };
        let place = self.place(urn);
        // A number below the next is of an order that came and went.
        if urn < self.next_urn || self.standing[place].is_some() {
            return false;
        }
        let Ok(price) = u32::try_from(taken.price) else { return false };
        self.risk.restore(security, side, left, price);
        let security = security as u32;
        self.standing[place] = Some(Standing {
            urn,
            security,
            side,
            price,
            left,
            executed,
            immediate,
            is_short: matches!(taken.side, ouch::SHORT | ouch::SHORT_EXEMPT),
            successor: 0,
            predecessor: 0,
        });
        self.count += 1;
        self.next_urn = urn.saturating_add(1);
        true
    }

    fn executed(&mut self, trade: &answers::Executed) -> OrderEvent {
        let (urn, shares, price) = (trade.urn.get(), trade.quantity.get(), trade.price.get());
        let Some(&mut order) = self.get(urn) else { return OrderEvent::Mismatch { urn } };
        let Some(left) = order.left.checked_sub(shares) else {
            return OrderEvent::Mismatch { urn };
        };
        let paid = u32::try_from(price).unwrap_or(order.price);
        self.risk.traded(order.security as usize, order.side, shares, order.price, paid);
        let match_number = trade.match_number.get();
        let Standing { security, side, .. } = order;
        self.trades.note(Trade { urn, match_number, security, side, shares, paid });
        let executed = order.executed.saturating_add(shares);
        self.keep(Standing { executed, ..order }, left);
        OrderEvent::Executed { urn, shares, price, left }
    }

    /// A trade is void: the position is as without it. The order, if it stands, is not as before:
    /// the exchange gives it no shares back.
    fn broken(&mut self, broken: &answers::Broken) -> OrderEvent {
        let (urn, reason) = (broken.urn.get(), broken.reason);
        let Some(trade) = self.trades.take(urn, broken.match_number.get()) else {
            return OrderEvent::Mismatch { urn };
        };
        let Trade { security, side, shares, paid: price, .. } = trade;
        let security = security as usize;
        self.risk.voided(security, side, shares, price);
        OrderEvent::Broken { urn, security, shares, price, reason }
    }

    fn cancelled(&mut self, urn: u32, shares: u32, reason: u8) -> OrderEvent {
        let Some(&mut order) = self.get(urn) else { return OrderEvent::Mismatch { urn } };
        if shares > order.left {
            return OrderEvent::Mismatch { urn };
        }
        self.take_off(order, shares);
        OrderEvent::Cancelled { urn, shares, left: order.left - shares, reason }
    }

    fn rejected(&mut self, urn: u32, reason: u16) -> OrderEvent {
        if self.is_asked_refused(urn) {
            return OrderEvent::Rejected { urn, reason };
        }
        self.keep_predecessor(urn);
        if let Some(&mut order) = self.get(urn) {
            self.take_off(order, order.left);
            return OrderEvent::Rejected { urn, reason };
        }
        // Of before a restart: it never stood, and its number is used.
        if urn < self.next_urn {
            return OrderEvent::Mismatch { urn };
        }
        self.next_urn = urn.saturating_add(1);
        OrderEvent::Rejected { urn, reason }
    }

    /// Shares of an order will not trade.
    pub(super) fn take_off(&mut self, order: Standing, shares: u32) {
        self.risk.release(order.security as usize, order.side, shares, order.price);
        self.keep(order, order.left - shares);
    }

    /// So many shares of an order are left; with none it goes, and takes along the one that should
    /// have replaced it: of an order that does not stand the exchange makes no other.
    fn keep(&mut self, order: Standing, left: u32) {
        let place = self.place(order.urn);
        self.standing[place] = (left != 0).then_some(Standing { left, ..order });
        if left != 0 {
            return;
        }
        self.taken[place / PLACES] &= !(1 << (place % PLACES));
        self.count -= 1;
        if order.successor != 0
            && let Some(&mut successor) = self.get(order.successor)
        {
            self.take_off(successor, successor.left);
        }
    }

    /// The order that this one should have replaced stands as before.
    pub(super) fn keep_predecessor(&mut self, urn: u32) {
        let predecessor = self.get(urn).map_or(0, |order| order.predecessor);
        let replaced = |order: &&mut Standing| order.successor == urn;
        if let Some(order) = self.get(predecessor).filter(replaced) {
            order.successor = 0;
        }
    }
}
