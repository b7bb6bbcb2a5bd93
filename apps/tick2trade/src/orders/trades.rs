//! The trades of the day, for as long as they may be declared void.

use crate::proto::Side;

/// Trades that are remembered: the last ones.
pub(super) const REMEMBERED: usize = 65_536;

/// Shares of one of our orders that traded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Trade {
    pub(super) urn: u32,
    pub(super) match_number: u64,
    pub(super) security: u32,
    pub(super) side: Side,
    /// 0 for none: no trade, or one that is void already.
    pub(super) shares: u32,
    /// Price of them.
    pub(super) paid: u32,
}

/// A ring of trades. Nothing is allocated after [`Trades::new`].
#[derive(Debug)]
pub(super) struct Trades {
    ring: Box<[Trade]>,
    next: usize,
}

impl Trades {
    pub(super) fn new() -> Self {
        let (urn, match_number, security, side, shares, paid) = (0, 0, 0, Side::Buy, 0, 0);
        let none = Trade { urn, match_number, security, side, shares, paid };
        Self { ring: vec![none; REMEMBERED].into(), next: 0 }
    }

    /// Remembers a trade, in the place of the one that is longest ago.
    pub(super) fn note(&mut self, trade: Trade) {
        self.ring[self.next] = trade;
        self.next = (self.next + 1) % REMEMBERED;
    }

    /// Takes out a trade of an order; `None` if it is not known, or was taken out.
    #[cold]
    pub(super) fn take(&mut self, urn: u32, match_number: u64) -> Option<Trade> {
        let is_it = |trade: &&mut Trade| {
            trade.shares != 0 && (trade.urn, trade.match_number) == (urn, match_number)
        };
        let found = self.ring.iter_mut().find(is_it)?;
        let trade = *found;
        found.shares = 0;
        Some(trade)
    }
}
