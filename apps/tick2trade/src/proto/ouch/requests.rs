//! What a client sends: a documented row for each field. Source: reference 11.1.4.

use zerocopy::big_endian::{U32, U64};

use super::super::{Side, Text, wire_structs};
use super::{ClientOrderId, Symbol};

/// How long an order stands. Source: reference 11.1.4.
pub mod time_in_force {
    /// Until the end of the day.
    pub const DAY: u8 = b'0';
    /// What does not trade at once is cancelled.
    pub const IOC: u8 = b'3';
    /// Through extended hours.
    pub const EXTENDED: u8 = b'5';
    /// Until the time in [`Tag::EXPIRE_TIME`](crate::proto::ouch::Tag::EXPIRE_TIME).
    pub const GOOD_TILL_TIME: u8 = b'6';
    /// After hours.
    pub const AFTER_HOURS: u8 = b'E';
}

wire_structs! {
    /// Enters an order.
    b'O' [45] EnterOrder {
        /// The letter.
        0 kind: u8,
        /// Reference number, above all that were used.
        1 urn: U32,
        /// `B` buys, `S` sells, `T` sells short, `E` sells short and exempt.
        5 side: u8,
        /// Shares.
        6 quantity: U32,
        /// The security.
        10 symbol: Symbol,
        /// Limit, or [`MARKET`](super::MARKET).
        18 price: U64,
        /// A letter of [`time_in_force`].
        26 time_in_force: u8,
        /// `Y` shown, `N` hidden, `A` shown with attribution.
        27 display: u8,
        /// `A` agency, `P` principal, `R` riskless principal, `O` other.
        28 capacity: u8,
        /// `Y` for an intermarket sweep.
        29 intermarket_sweep: u8,
        /// `N` continuous trading; otherwise which auction.
        30 cross: u8,
        /// The client's own name for it.
        31 client_order_id: ClientOrderId,
    }
    /// Replaces an order by another: it loses its place.
    b'U' [38] ReplaceOrder {
        /// The letter.
        0 kind: u8,
        /// The order to replace.
        1 old_urn: U32,
        /// The order that it becomes.
        5 urn: U32,
        /// Shares to be liable for, those that traded already included.
        9 quantity: U32,
        /// Limit.
        13 price: U64,
        /// A letter of [`time_in_force`].
        21 time_in_force: u8,
        /// As in [`EnterOrder::display`].
        22 display: u8,
        /// As in [`EnterOrder::intermarket_sweep`].
        23 intermarket_sweep: u8,
        /// The client's own name for it.
        24 client_order_id: ClientOrderId,
    }
    /// Reduces an order to a quantity, or to nothing.
    b'X' [9] CancelOrder {
        /// The letter.
        0 kind: u8,
        /// The order.
        1 urn: U32,
        /// Shares that shall remain in total; 0 for none.
        5 quantity: U32,
    }
    /// Changes an order without loss of its place.
    b'M' [10] ModifyOrder {
        /// The letter.
        0 kind: u8,
        /// The order.
        1 urn: U32,
        /// One kind of selling in place of another.
        5 side: u8,
        /// Shares that shall remain in total, not more than before.
        6 quantity: U32,
    }
    /// Cancels every order of a firm, or of a firm in one security.
    b'C' [17] MassCancel {
        /// The letter.
        0 kind: u8,
        /// Reference number of this request.
        1 urn: U32,
        /// The firm.
        5 firm: Text<4>,
        /// The security; blank for all.
        9 symbol: Symbol,
    }
    /// Takes no more orders of a firm.
    b'D' [9] DisableOrderEntry {
        /// The letter.
        0 kind: u8,
        /// Reference number of this request.
        1 urn: U32,
        /// The firm.
        5 firm: Text<4>,
    }
    /// Takes orders of a firm again.
    b'E' [9] EnableOrderEntry {
        /// The letter.
        0 kind: u8,
        /// Reference number of this request.
        1 urn: U32,
        /// The firm.
        5 firm: Text<4>,
    }
    /// Asks for the next reference number.
    b'Q' [1] AccountQuery {
        /// The letter.
        0 kind: u8,
    }
}

impl EnterOrder {
    /// An order for continuous trading: day, shown, principal, no shares at no price yet.
    pub fn new(side: Side) -> Self {
        Self {
            kind: Self::KIND,
            urn: 0.into(),
            side: side.letter(),
            quantity: 0.into(),
            symbol: Text::BLANK,
            price: 0.into(),
            time_in_force: time_in_force::DAY,
            display: b'Y',
            capacity: b'P',
            intermarket_sweep: b'N',
            cross: b'N',
            client_order_id: Text::BLANK,
        }
    }
}
