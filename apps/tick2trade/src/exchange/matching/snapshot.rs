//! The market as it stands: its levels, and all of it in messages of the feed.

use std::collections::VecDeque;

use zerocopy::IntoBytes;

use super::Exchange;
use crate::proto::itch;
use crate::proto::{Side, Text};

impl Exchange {
    /// The levels of a side, the best one first: price, shares and orders.
    pub fn levels(&self, locate: u16, side: Side) -> Vec<(u32, u64, u32)> {
        let book = usize::from(locate).checked_sub(1).and_then(|index| self.books.get(index));
        let level = |(&price, queue): (&u32, &VecDeque<u64>)| {
            let shares = queue.iter().map(|reference| u64::from(self.orders[reference].shares));
            (price, shares.sum(), queue.len() as u32)
        };
        match (book, side) {
            (None, _) => Vec::new(),
            (Some(book), Side::Buy) => book.bids.iter().rev().map(level).collect(),
            (Some(book), Side::Sell) => book.asks.iter().map(level).collect(),
        }
    }

    /// What is listed and trades.
    pub(super) fn listing(&self, now_ns: u64) -> Vec<Vec<u8>> {
        let mut messages = Vec::new();
        for (locate, security) in (1..).zip(&self.securities) {
            let directory = itch::StockDirectory::common(locate, security.stock, now_ns);
            messages.push(directory.as_bytes().to_vec());
            let trading = itch::TradingAction {
                header: itch::Header::new(itch::TradingAction::KIND, locate, now_ns),
                stock: security.stock,
                state: b'T',
                reserved: b' ',
                reason: Text::BLANK,
            };
            messages.push(trading.as_bytes().to_vec());
        }
        messages
    }

    /// The books as they stand, in messages of the feed: who applies them to none has them.
    pub fn snapshot(&self, now_ns: u64) -> Vec<Vec<u8>> {
        let mut messages = self.listing(now_ns);
        for (locate, book) in (1..).zip(&self.books) {
            let bids = book.bids.iter().rev().map(|level| (Side::Buy, level));
            let asks = book.asks.iter().map(|level| (Side::Sell, level));
            for (side, (&price, queue)) in bids.chain(asks) {
                messages.extend(queue.iter().map(|reference| {
                    let add = itch::AddOrder {
                        header: itch::Header::new(itch::AddOrder::KIND, locate, now_ns),
                        reference: (*reference).into(),
                        side: side.letter(),
                        shares: self.orders[reference].shares.into(),
                        stock: self.stock(locate),
                        price: price.into(),
                    };
                    add.as_bytes().to_vec()
                }));
            }
        }
        messages
    }
}
