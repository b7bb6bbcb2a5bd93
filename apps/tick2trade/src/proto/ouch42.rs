//! OUCH 4.2: the older form of the orders, with a token of 14 letters, prices of four bytes, and no
//! appendage.
//!
//! Source: reference 11.1.8; the fields and their order are those that public dissectors of the
//! protocol read. It is here because strangers' tools judge it.

use zerocopy::big_endian::{U32, U64};

use super::ouch::Symbol;
use super::{Text, exact_messages, wire_structs};

/// A client's name for an order, unique on its port and day.
pub type Token = Text<14>;

/// Seconds that an order stands: traded at once or cancelled.
pub const IOC: u32 = 0;
/// Seconds that an order stands: until the market closes.
pub const MARKET_HOURS: u32 = 99_998;
/// Seconds that an order stands: until the system closes.
pub const SYSTEM_HOURS: u32 = 99_999;

wire_structs! {
    /// Enters an order.
    b'O' [49] EnterOrder {
        /// The letter.
        0 kind: u8,
        /// The order.
        1 token: Token,
        /// `B` buys, `S` sells, `T` sells short, `E` sells short and exempt.
        15 side: u8,
        /// Shares.
        16 shares: U32,
        /// The security.
        20 stock: Symbol,
        /// Limit, four decimals.
        28 price: U32,
        /// Seconds that it stands.
        32 time_in_force: U32,
        /// The firm.
        36 firm: Text<4>,
        /// Whether it is shown.
        40 display: u8,
        /// For whom it is.
        41 capacity: u8,
        /// Whether it is an intermarket sweep.
        42 intermarket_sweep: u8,
        /// The fewest shares that may trade.
        43 minimum_quantity: U32,
        /// Which auction; `N` for none.
        47 cross: u8,
        /// Kind of customer.
        48 customer_type: u8,
    }
    /// Replaces an order by another.
    b'U' [47] ReplaceOrder {
        /// The letter.
        0 kind: u8,
        /// The order to replace.
        1 existing: Token,
        /// The order that it becomes.
        15 replacement: Token,
        /// Shares to be liable for, those that traded already included.
        29 shares: U32,
        /// Limit.
        33 price: U32,
        /// Seconds that it stands.
        37 time_in_force: U32,
        /// Whether it is shown.
        41 display: u8,
        /// Whether it is an intermarket sweep.
        42 intermarket_sweep: u8,
        /// The fewest shares that may trade.
        43 minimum_quantity: U32,
    }
    /// Reduces an order to a number of shares, or to none.
    b'X' [19] CancelOrder {
        /// The letter.
        0 kind: u8,
        /// The order.
        1 token: Token,
        /// Shares that shall remain.
        15 shares: U32,
    }
    /// Changes an order without loss of its place.
    b'M' [20] ModifyOrder {
        /// The letter.
        0 kind: u8,
        /// The order.
        1 token: Token,
        /// One kind of selling in place of another.
        15 side: u8,
        /// Shares that shall remain.
        16 shares: U32,
    }
}

/// What the exchange sends.
pub mod answers {
    use super::{Symbol, Text, Token, U32, U64, wire_structs};

    wire_structs! {
        /// `S`: the day starts; `E`: it ends.
        b'S' [10] SystemEvent {
            /// The letter.
            0 kind: u8,
            /// Nanoseconds since midnight.
            1 timestamp_ns: U64,
            /// Which event.
            9 event: u8,
        }
        /// An order was taken.
        b'A' [66] Accepted {
            /// The order.
            0 order: Order,
            /// Weight of the best quote.
            65 bbo_weight: u8,
        }
        /// An order was replaced.
        b'U' [80] Replaced {
            /// The order that it became.
            0 order: Order,
            /// The order that is no more.
            65 previous: Token,
            /// Weight of the best quote.
            79 bbo_weight: u8,
        }
        /// An order as [`Accepted`] and [`Replaced`] tell it: their kind, and all else up to 65.
        b'A' [65] Order {
            /// The letter.
            0 kind: u8,
            /// Nanoseconds since midnight.
            1 timestamp_ns: U64,
            /// The order.
            9 token: Token,
            /// Its side.
            23 side: u8,
            /// Its shares.
            24 shares: U32,
            /// Its security.
            28 stock: Symbol,
            /// Its price.
            36 price: U32,
            /// Seconds that it stands.
            40 time_in_force: U32,
            /// The firm.
            44 firm: Text<4>,
            /// Whether it is shown.
            48 display: u8,
            /// The exchange's number of it.
            49 reference: U64,
            /// For whom it is.
            57 capacity: u8,
            /// Whether it is an intermarket sweep.
            58 intermarket_sweep: u8,
            /// The fewest shares that may trade.
            59 minimum_quantity: U32,
            /// Which auction.
            63 cross: u8,
            /// `L` it lives, `D` it is dead.
            64 state: u8,
        }
        /// Shares were taken off an order.
        b'C' [28] Cancelled {
            /// The letter.
            0 kind: u8,
            /// Nanoseconds since midnight.
            1 timestamp_ns: U64,
            /// The order.
            9 token: Token,
            /// Shares taken off.
            23 shares: U32,
            /// Why.
            27 reason: u8,
        }
        /// Shares were taken off an order that would have traded with another of its owner's.
        b'D' [37] SelfMatchCancelled {
            /// The letter.
            0 kind: u8,
            /// Nanoseconds since midnight.
            1 timestamp_ns: U64,
            /// The order.
            9 token: Token,
            /// Shares taken off.
            23 shares: U32,
            /// `Q`.
            27 reason: u8,
            /// Shares that did not trade.
            28 prevented: U32,
            /// Price at which they would have.
            32 price: U32,
            /// What it would have been.
            36 liquidity: u8,
        }
        /// Shares of an order traded.
        b'E' [40] Executed {
            /// The letter.
            0 kind: u8,
            /// Nanoseconds since midnight.
            1 timestamp_ns: U64,
            /// The order.
            9 token: Token,
            /// Shares that traded.
            23 shares: U32,
            /// Price of them.
            27 price: U32,
            /// Whether the order stood or came.
            31 liquidity: u8,
            /// The trade.
            32 match_number: U64,
        }
        /// Shares of an order traded, at a price that follows another.
        b'G' [45] ExecutedByReference {
            /// The letter.
            0 kind: u8,
            /// Nanoseconds since midnight.
            1 timestamp_ns: U64,
            /// The order.
            9 token: Token,
            /// Shares that traded.
            23 shares: U32,
            /// Price of them.
            27 price: U32,
            /// Whether the order stood or came.
            31 liquidity: u8,
            /// The trade.
            32 match_number: U64,
            /// The price that it follows.
            40 reference_price: U32,
            /// Which price that is.
            44 reference_kind: u8,
        }
        /// A trade has another price than was said.
        b'F' [41] Corrected {
            /// The letter.
            0 kind: u8,
            /// Nanoseconds since midnight.
            1 timestamp_ns: U64,
            /// The order.
            9 token: Token,
            /// Shares that traded.
            23 shares: U32,
            /// Price of them from now on.
            27 price: U32,
            /// Whether the order stood or came.
            31 liquidity: u8,
            /// The trade.
            32 match_number: U64,
            /// Why.
            40 reason: u8,
        }
        /// A trade is declared void.
        b'B' [32] Broken {
            /// The letter.
            0 kind: u8,
            /// Nanoseconds since midnight.
            1 timestamp_ns: U64,
            /// The order.
            9 token: Token,
            /// The trade.
            23 match_number: U64,
            /// Why.
            31 reason: u8,
        }
        /// An order was not taken.
        b'J' [24] Rejected {
            /// The letter.
            0 kind: u8,
            /// Nanoseconds since midnight.
            1 timestamp_ns: U64,
            /// The order.
            9 token: Token,
            /// Why: one letter.
            23 reason: u8,
        }
        /// A cancel waits for the end of an auction.
        b'P' [23] CancelPending {
            /// The letter.
            0 kind: u8,
            /// Nanoseconds since midnight.
            1 timestamp_ns: U64,
            /// The order.
            9 token: Token,
        }
        /// A cancel was refused.
        b'I' [23] CancelRejected {
            /// The letter.
            0 kind: u8,
            /// Nanoseconds since midnight.
            1 timestamp_ns: U64,
            /// The order.
            9 token: Token,
        }
        /// An order has another place in the book.
        b'T' [36] PriorityUpdate {
            /// The letter.
            0 kind: u8,
            /// Nanoseconds since midnight.
            1 timestamp_ns: U64,
            /// The order.
            9 token: Token,
            /// Its price.
            23 price: U32,
            /// Whether it is shown.
            27 display: u8,
            /// The exchange's number of it.
            28 reference: U64,
        }
        /// An order was modified.
        b'M' [28] Modified {
            /// The letter.
            0 kind: u8,
            /// Nanoseconds since midnight.
            1 timestamp_ns: U64,
            /// The order.
            9 token: Token,
            /// Its side.
            23 side: u8,
            /// Its shares that are outstanding.
            24 shares: U32,
        }
    }
}
use answers::{
    Accepted, Broken, CancelPending, CancelRejected, Cancelled, Corrected, Executed,
    ExecutedByReference, Modified, PriorityUpdate, Rejected, Replaced, SelfMatchCancelled,
    SystemEvent,
};

exact_messages! {
    /// What a client sends.
    Request { EnterOrder ReplaceOrder CancelOrder ModifyOrder }
}
exact_messages! {
    /// What the exchange sends.
    Answer {
        SystemEvent Accepted Replaced Cancelled SelfMatchCancelled Executed ExecutedByReference
        Corrected Broken Rejected CancelPending CancelRejected PriorityUpdate Modified
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;
    use crate::proto::MalformedMessage;

    #[test]
    fn an_order_has_its_golden_bytes() {
        let order = EnterOrder {
            kind: EnterOrder::KIND,
            token: Text::new("T1").unwrap(),
            side: b'B',
            shares: 100.into(),
            stock: Text::new("AAPL").unwrap(),
            price: 1_503_400.into(),
            time_in_force: MARKET_HOURS.into(),
            firm: Text::new("FIRM").unwrap(),
            display: b'Y',
            capacity: b'P',
            intermarket_sweep: b'N',
            minimum_quantity: 0.into(),
            cross: b'N',
            customer_type: b'R',
        };
        let golden = b"OT1            B\0\0\0\x64AAPL    \0\x16\xf0\xa8\0\x01\x86\x9e\
                       FIRMYPN\0\0\0\0NR";
        assert_eq!(order.as_bytes(), golden);
        assert_eq!(Request::parse(golden), Ok(Request::EnterOrder(&order)));
    }

    /// Letters and lengths, typed once more from the reference.
    #[test]
    fn every_message_has_its_letter_and_length() {
        let listed = |messages: &[(u8, usize)]| {
            let words = messages.iter().map(|(kind, len)| format!("{}{len}", *kind as char));
            words.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(listed(Request::MESSAGES), "O49 U47 X19 M20");
        assert_eq!(
            listed(Answer::MESSAGES),
            "S10 A66 U80 C28 D37 E40 G45 F41 B32 J24 P23 I23 T36 M28"
        );
    }

    #[test]
    fn letters_and_lengths_that_do_not_exist_are_refused() {
        assert_eq!(Request::parse(b""), Err(MalformedMessage::Empty));
        assert_eq!(Request::parse(b"A"), Err(MalformedMessage::Unknown(b'A')));
        let wrong = MalformedMessage::Length { kind: b'X', got: 1, expected: 19 };
        assert_eq!(Request::parse(b"X"), Err(wrong));
        assert_eq!(wrong.to_string(), "message 'X' has 1 bytes, and 19 are right");
    }
}
