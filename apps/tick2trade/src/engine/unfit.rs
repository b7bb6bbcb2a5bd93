//! Messages that cannot be read, or do not fit the books: which books may be wrong by them.

use super::Market;
use crate::proto::itch;
use crate::strategy::MarketEvent;

/// Letters of the messages that change books: those that [`Books::apply`] reads.
///
/// [`Books::apply`]: crate::book::Books::apply
const CHANGES_BOOKS: [u8; 10] = [
    itch::AddOrder::KIND,
    itch::AddAttributed::KIND,
    itch::Executed::KIND,
    itch::ExecutedAtPrice::KIND,
    itch::Cancelled::KIND,
    itch::Deleted::KIND,
    itch::Replaced::KIND,
    itch::StockDirectory::KIND,
    itch::TradingAction::KIND,
    itch::OperationalHalt::KIND,
];

impl<S> Market<S> {
    /// Every book may be wrong.
    pub(super) fn suspect_all(&mut self) {
        self.books.suspect_all();
        self.is_broken = true;
    }

    /// Notes that a message did not fit the book of a locate: a snapshot would mend that, unless
    /// the book is too small for its market, or there is no room for it at all.
    #[cold]
    pub(super) fn misfit(&mut self, locate: u16) {
        self.is_broken |= self.books.get(locate).is_some_and(|book| !book.is_too_small());
    }

    /// Counts a message that is none, and says what is to be told of it. Of a kind that changes
    /// books it makes the one of its locate suspect, or all of them if it has none; of any other it
    /// is passed over. Source: reference 11.1.1, 11.1.3.
    #[cold]
    pub(super) fn malformed(&mut self, bytes: &[u8]) -> Option<MarketEvent> {
        self.stats.malformed_messages += 1;
        bytes.first().filter(|kind| CHANGES_BOOKS.contains(kind))?;
        let Some(&locate) = bytes.get(1..).and_then(|rest| rest.first_chunk()) else {
            self.suspect_all();
            return Some(MarketEvent::Lost);
        };
        let locate = u16::from_be_bytes(locate);
        if !self.books.suspect(locate) {
            return None;
        }
        self.misfit(locate);
        Some(MarketEvent::Suspect(locate))
    }
}
