//! What no book can apply, and why.

use thiserror::Error;

/// What a message says that cannot be, or that there is no room for. The book that it was about is
/// suspect from then on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BookError {
    /// An order that was never added: a message before this one was missed.
    #[error("order {reference} is not in the book of locate {locate}")]
    UnknownOrder {
        /// The order.
        reference: u64,
        /// The message's locate.
        locate: u16,
    },
    /// An order that stands already.
    #[error("order {0} is added a second time")]
    DuplicateOrder(u64),
    /// More shares leave an order than it has.
    #[error("{taken} shares leave order {reference}, which has {left}")]
    TooManyShares {
        /// The order.
        reference: u64,
        /// Shares that the message takes off.
        taken: u32,
        /// Shares that the order has.
        left: u32,
    },
    /// An order without shares, or with a side that is none.
    #[error("order {0} has no shares, or a side that is neither B nor S")]
    BadOrder(u64),
    /// A stock for which no book is left.
    #[error("a book for locate {0}, and all are taken; raise `books`")]
    NoBook(u16),
    /// The table of orders is full.
    #[error("order {0} does not fit into the table; raise `orders`")]
    NoOrderSlot(u64),
    /// A side of a book has as many levels as it can.
    #[error("price {price} is one level too many for locate {locate}; raise `levels`")]
    NoLevel {
        /// The price.
        price: u32,
        /// The book.
        locate: u16,
    },
    /// A locate that has a book is said to be another stock's.
    #[error("locate {0} has a book, and is given to another stock")]
    OtherStock(u16),
}

impl BookError {
    /// Names of the reasons, as counts have them.
    pub const REASONS: [&'static str; 8] = [
        "unknown_order",
        "duplicate_order",
        "too_many_shares",
        "bad_order",
        "no_book",
        "no_order_slot",
        "no_level",
        "other_stock",
    ];
    /// What each of [`BookError::REASONS`] means, for people.
    pub const MEANINGS: [&'static str; Self::REASONS.len()] = [
        "of an order that is not in the book: one before was missed",
        "add an order a second time",
        "take more shares off an order than it has",
        "add an order without shares, or with a side that is neither B nor S",
        "want a book, and all are taken",
        "find no room in the table of orders; raise `orders` of [books]",
        "are of one level too many; raise `levels` of [books]",
        "give a locate that has a book to another stock",
    ];

    /// Place of this one's name in [`BookError::REASONS`].
    pub const fn reason(self) -> usize {
        match self {
            Self::UnknownOrder { .. } => 0,
            Self::DuplicateOrder(_) => 1,
            Self::TooManyShares { .. } => 2,
            Self::BadOrder(_) => 3,
            Self::NoBook(_) => 4,
            Self::NoOrderSlot(_) => 5,
            Self::NoLevel { .. } => 6,
            Self::OtherStock(_) => 7,
        }
    }
}
