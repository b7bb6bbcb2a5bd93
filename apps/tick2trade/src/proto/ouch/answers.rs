//! What the exchange sends: a documented row for each field. Source: reference 11.1.5.

use zerocopy::big_endian::{U16, U32, U64};

use super::super::{Text, wire_structs};
use super::{ClientOrderId, Symbol};

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
    /// An order was taken; what it became may differ from what was asked.
    b'A' [62] Accepted {
        /// The letter.
        0 kind: u8,
        /// Nanoseconds since midnight.
        1 timestamp_ns: U64,
        /// The order.
        9 urn: U32,
        /// Its side.
        13 side: u8,
        /// Its shares.
        14 quantity: U32,
        /// Its security.
        18 symbol: Symbol,
        /// Its price.
        26 price: U64,
        /// How long it stands.
        34 time_in_force: u8,
        /// Whether it is shown.
        35 display: u8,
        /// The exchange's number of it: that of the feed.
        36 reference: U64,
        /// For whom it is.
        44 capacity: u8,
        /// Whether it is an intermarket sweep.
        45 intermarket_sweep: u8,
        /// Which auction.
        46 cross: u8,
        /// `L` it lives, `D` it was taken and is dead.
        47 state: u8,
        /// The client's own name for it.
        48 client_order_id: ClientOrderId,
    }
    /// An order was replaced.
    b'U' [66] Replaced {
        /// The letter.
        0 kind: u8,
        /// Nanoseconds since midnight.
        1 timestamp_ns: U64,
        /// The order that is no more.
        9 old_urn: U32,
        /// The order that it became.
        13 urn: U32,
        /// Its side.
        17 side: u8,
        /// Its shares that are outstanding.
        18 quantity: U32,
        /// Its security.
        22 symbol: Symbol,
        /// Its price.
        30 price: U64,
        /// How long it stands.
        38 time_in_force: u8,
        /// Whether it is shown.
        39 display: u8,
        /// The exchange's number of it.
        40 reference: U64,
        /// For whom it is.
        48 capacity: u8,
        /// Whether it is an intermarket sweep.
        49 intermarket_sweep: u8,
        /// Which auction.
        50 cross: u8,
        /// `L` it lives, `D` it is dead.
        51 state: u8,
        /// The client's own name for it.
        52 client_order_id: ClientOrderId,
    }
    /// Shares were taken off an order.
    b'C' [18] Cancelled {
        /// The letter.
        0 kind: u8,
        /// Nanoseconds since midnight.
        1 timestamp_ns: U64,
        /// The order.
        9 urn: U32,
        /// Shares taken off, not those left.
        13 quantity: U32,
        /// Why: `U` asked, `I` immediate or cancel, `T` its time is over, ...
        17 reason: u8,
    }
    /// Shares were taken off an order that would have traded with another of its owner's.
    b'D' [32] SelfMatchCancelled {
        /// The letter.
        0 kind: u8,
        /// Nanoseconds since midnight.
        1 timestamp_ns: U64,
        /// The order.
        9 urn: U32,
        /// Shares taken off.
        13 quantity: U32,
        /// `Q`.
        17 reason: u8,
        /// Shares that did not trade.
        18 prevented: U32,
        /// Price at which they would have.
        22 price: U64,
        /// What it would have been.
        30 liquidity: u8,
        /// Rule that was applied.
        31 strategy: u8,
    }
    /// Shares of an order traded.
    b'E' [34] Executed {
        /// The letter.
        0 kind: u8,
        /// Nanoseconds since midnight.
        1 timestamp_ns: U64,
        /// The order.
        9 urn: U32,
        /// Shares that traded.
        13 quantity: U32,
        /// Price of them.
        17 price: U64,
        /// `A` it stood in the book, `R` it came and took, ...
        25 liquidity: u8,
        /// The trade.
        26 match_number: U64,
    }
    /// A trade is declared void.
    b'B' [36] Broken {
        /// The letter.
        0 kind: u8,
        /// Nanoseconds since midnight.
        1 timestamp_ns: U64,
        /// The order.
        9 urn: U32,
        /// The trade.
        13 match_number: U64,
        /// Why.
        21 reason: u8,
        /// The client's own name for the order.
        22 client_order_id: ClientOrderId,
    }
    /// An order was not taken.
    b'J' [29] Rejected {
        /// The letter.
        0 kind: u8,
        /// Nanoseconds since midnight.
        1 timestamp_ns: U64,
        /// The order.
        9 urn: U32,
        /// Why: [`reject_reason`](super::reject_reason) says it in words.
        13 reason: U16,
        /// The client's own name for the order.
        15 client_order_id: ClientOrderId,
    }
    /// A cancel waits for the end of an auction.
    b'P' [13] CancelPending {
        /// The letter.
        0 kind: u8,
        /// Nanoseconds since midnight.
        1 timestamp_ns: U64,
        /// The order.
        9 urn: U32,
    }
    /// A cancel was refused.
    b'I' [13] CancelRejected {
        /// The letter.
        0 kind: u8,
        /// Nanoseconds since midnight.
        1 timestamp_ns: U64,
        /// The order.
        9 urn: U32,
    }
    /// An order has another place in the book.
    b'T' [30] PriorityUpdate {
        /// The letter.
        0 kind: u8,
        /// Nanoseconds since midnight.
        1 timestamp_ns: U64,
        /// The order.
        9 urn: U32,
        /// Its price.
        13 price: U64,
        /// Whether it is shown.
        21 display: u8,
        /// The exchange's number of it.
        22 reference: U64,
    }
    /// An order was modified.
    b'M' [18] Modified {
        /// The letter.
        0 kind: u8,
        /// Nanoseconds since midnight.
        1 timestamp_ns: U64,
        /// The order.
        9 urn: U32,
        /// Its side.
        13 side: u8,
        /// Its shares that are outstanding.
        14 quantity: U32,
    }
    /// The exchange changed an order by itself.
    b'R' [14] Restated {
        /// The letter.
        0 kind: u8,
        /// Nanoseconds since midnight.
        1 timestamp_ns: U64,
        /// The order.
        9 urn: U32,
        /// `R` its reserve was shown, `P` its shown price changed.
        13 reason: u8,
    }
    /// A mass cancel was taken.
    b'X' [25] MassCancelAnswered {
        /// The letter.
        0 kind: u8,
        /// Nanoseconds since midnight.
        1 timestamp_ns: U64,
        /// The request.
        9 urn: U32,
        /// The firm.
        13 firm: Text<4>,
        /// The security; blank for all.
        17 symbol: Symbol,
    }
    /// A firm's orders are taken no more.
    b'G' [17] DisableAnswered {
        /// The letter.
        0 kind: u8,
        /// Nanoseconds since midnight.
        1 timestamp_ns: U64,
        /// The request.
        9 urn: U32,
        /// The firm.
        13 firm: Text<4>,
    }
    /// A firm's orders are taken again.
    b'K' [17] EnableAnswered {
        /// The letter.
        0 kind: u8,
        /// Nanoseconds since midnight.
        1 timestamp_ns: U64,
        /// The request.
        9 urn: U32,
        /// The firm.
        13 firm: Text<4>,
    }
    /// The next reference number.
    b'Q' [13] AccountQueryAnswered {
        /// The letter.
        0 kind: u8,
        /// Nanoseconds since midnight.
        1 timestamp_ns: U64,
        /// What the next order's number has to be at least.
        9 next_urn: U32,
    }
}
