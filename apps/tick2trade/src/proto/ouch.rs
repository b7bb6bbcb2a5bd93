//! OUCH 5.0: orders, and the exchange's answers, each with an appendage of optional fields.
//!
//! Source: reference 11.1.4 to 11.1.6. The same letter means different things in each direction,
//! so there are two types: [`Request`] from client to exchange, [`Answer`] back. Prices are
//! integers of eight bytes with four decimals, times nanoseconds since midnight, URN is the user's
//! reference number of an order.
//!
//! Behind its fixed part a message has its appendage: a length of two bytes and so many bytes of
//! tags. Some messages carry it only when it is not empty, and some implementations leave out even
//! a length that the specification wants: both forms of every message are read.
//!
//! # Example
//! ```
//! use ferrocx_tick2trade::proto::{Text, ouch};
//!
//! let order = ouch::EnterOrder {
//!     urn: 1.into(),
//!     quantity: 100.into(),
//!     symbol: Text::new("AAPL").unwrap(),
//!     price: 1_503_400.into(),
//!     ..ouch::EnterOrder::new(ferrocx_tick2trade::proto::Side::Buy)
//! };
//! let mut bytes = [0; 64];
//! let tags = [(ouch::Tag::USER_REF_INDEX, &[5][..])];
//! let len = ouch::write(&order, &tags, &mut bytes).unwrap();
//!
//! let (ouch::Request::EnterOrder(read), appendage) = ouch::Request::parse(&bytes[..len]).unwrap()
//! else {
//!     panic!("an order")
//! };
//! assert_eq!((read.price.get(), appendage.get(ouch::Tag::USER_REF_INDEX)), (1_503_400, Some(&[5][..])));
//! ```

use std::fmt;

use thiserror::Error;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{Side, Text, wire_structs};

/// Name of a security.
pub type Symbol = Text<8>;
/// A client's own name for an order.
pub type ClientOrderId = Text<14>;

/// The highest price that an order may have: 199,999.99.
pub const MAX_PRICE: u64 = 0x7735_939c;
/// Price of a market order: 200,000.00.
pub const MARKET: u64 = 2_000_000_000;
/// Price of a market order in an auction.
pub const MARKET_IN_CROSS: u64 = 0x7fff_ffff;
/// The most shares that an order may have.
pub const MAX_QUANTITY: u32 = 999_999;

/// How long an order stands. Source: reference 11.1.4.
pub mod time_in_force {
    /// Until the end of the day.
    pub const DAY: u8 = b'0';
    /// What does not trade at once is cancelled.
    pub const IOC: u8 = b'3';
    /// Through extended hours.
    pub const EXTENDED: u8 = b'5';
    /// Until the time in [`Tag::EXPIRE_TIME`](super::Tag::EXPIRE_TIME).
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
        /// Limit, or [`MARKET`].
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

/// What the exchange sends.
pub mod answers {
    use super::{ClientOrderId, Symbol, Text, U16, U32, U64, wire_structs};

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
}
use answers::{
    Accepted, AccountQueryAnswered, Broken, CancelPending, CancelRejected, Cancelled,
    DisableAnswered, EnableAnswered, Executed, MassCancelAnswered, Modified, PriorityUpdate,
    Rejected, Replaced, Restated, SelfMatchCancelled, SystemEvent,
};

/// Why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Malformed {
    /// No bytes at all.
    #[error("an empty message")]
    Empty,
    /// A letter that means nothing in this direction.
    #[error("message '{}' does not exist in this direction", .0.escape_ascii())]
    Unknown(u8),
    /// Fewer bytes than the fixed part has.
    #[error("message '{}' has {got} bytes, and at least {expected} are right", kind.escape_ascii())]
    Short {
        /// The letter.
        kind: u8,
        /// Bytes that came.
        got: usize,
        /// Bytes of its fixed part.
        expected: usize,
    },
    /// The appendage is not as long as it says, or a tag in it reaches behind its end.
    #[error("the appendage of message '{}' is not what its lengths say", kind.escape_ascii())]
    Appendage {
        /// The letter.
        kind: u8,
    },
}

/// Reads the fixed part of a message and the appendage behind it.
macro_rules! message_enum {
    ($(#[$doc:meta])* $enum:ident { $($name:ident)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $enum<'a> {
            $(
                #[doc = concat!("A [`", stringify!($name), "`](struct@", stringify!($name), ").")]
                $name(&'a $name),
            )*
        }

        impl<'a> $enum<'a> {
            /// The message that `bytes` are, all of them, and its appendage.
            #[inline]
            pub fn parse(bytes: &'a [u8]) -> Result<(Self, Appendage<'a>), Malformed> {
                let kind = *bytes.first().ok_or(Malformed::Empty)?;
                let short = |expected| Malformed::Short { kind, got: bytes.len(), expected };
                match kind {
                    $($name::KIND => {
                        let (fixed, rest) =
                            $name::ref_from_prefix(bytes).map_err(|_| short($name::LEN))?;
                        let appendage = Appendage::parse(rest);
                        let appendage = appendage.ok_or(Malformed::Appendage { kind })?;
                        Ok((Self::$name(fixed), appendage))
                    })*
                    _ => Err(Malformed::Unknown(kind)),
                }
            }

            /// Letter and fixed length of every message of this direction.
            pub const MESSAGES: &'static [(u8, usize)] = &[$(($name::KIND, $name::LEN)),*];
        }
    };
}

message_enum! {
    /// What a client sends.
    Request {
        EnterOrder ReplaceOrder CancelOrder ModifyOrder MassCancel DisableOrderEntry
        EnableOrderEntry AccountQuery
    }
}
message_enum! {
    /// What the exchange sends.
    Answer {
        SystemEvent Accepted Replaced Cancelled SelfMatchCancelled Executed Broken Rejected
        CancelPending CancelRejected PriorityUpdate Modified Restated MassCancelAnswered
        DisableAnswered EnableAnswered AccountQueryAnswered
    }
}

/// What an optional field of an appendage is. Source: reference 11.1.6.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u8);

macro_rules! tags {
    ($($(#[$doc:meta])* $number:literal $name:ident [$len:literal];)*) => {
        impl Tag {
            $($(#[$doc])* pub const $name: Self = Self($number);)*

            /// Bytes of its value; `None` for a tag that is not known.
            pub const fn value_len(self) -> Option<usize> {
                match self.0 {
                    $($number => Some($len),)*
                    _ => None,
                }
            }

            const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

tags! {
    /// Another number of the order at the exchange.
    1 SECONDARY_REFERENCE [8];
    /// The firm.
    2 FIRM [4];
    /// The fewest shares that may trade.
    3 MINIMUM_QUANTITY [4];
    /// Kind of customer.
    4 CUSTOMER_TYPE [4];
    /// Shares shown at a time.
    5 MAX_FLOOR [4];
    /// What the price means.
    6 PRICE_TYPE [1];
    /// Distance from what the price is pegged to, signed.
    7 PEG_OFFSET [4];
    /// Price of discretion.
    9 DISCRETION_PRICE [8];
    /// What the price of discretion means.
    10 DISCRETION_PRICE_TYPE [1];
    /// Distance of discretion, signed.
    11 DISCRETION_PEG_OFFSET [4];
    /// Only if it does not trade at once.
    12 POST_ONLY [1];
    /// Shares by which reserves vary.
    13 RANDOM_RESERVES [4];
    /// Where to send it on.
    14 ROUTE [4];
    /// Second of the day when it ends.
    15 EXPIRE_TIME [4];
    /// Whether it may trade while it stands.
    16 TRADE_NOW [1];
    /// How to handle it.
    17 HANDLING_INSTRUCTIONS [1];
    /// Weight of the best quote.
    18 BBO_WEIGHT [1];
    /// Shares that are shown.
    22 DISPLAY_QUANTITY [4];
    /// Price that is shown.
    23 DISPLAY_PRICE [8];
    /// Group of orders.
    24 GROUP_ID [2];
    /// Whether shares to lend were found.
    25 SHARES_LOCATED [1];
    /// Who lends them.
    26 LOCATE_BROKER [4];
    /// Side of a mass cancel.
    27 SIDE [1];
    /// Which of several counters of reference numbers.
    28 USER_REF_INDEX [1];
    /// What to do instead of trading with oneself.
    29 SELF_MATCH_STRATEGY [1];
    /// Among which orders.
    30 SELF_MATCH_GROUP [2];
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Tag({})", self.0),
        }
    }
}

/// The optional fields behind a message, checked: every tag lies inside.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Appendage<'a> {
    tags: &'a [u8],
}

impl<'a> Appendage<'a> {
    /// Nothing is an empty appendage; else a length of two bytes, and exactly so many bytes.
    #[inline]
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self::default());
        }
        let (length, tags) = bytes.split_first_chunk()?;
        if usize::from(u16::from_be_bytes(*length)) != tags.len() {
            return None;
        }
        let mut rest = tags;
        while !rest.is_empty() {
            (_, _, rest) = split_tag(rest)?;
        }
        Some(Self { tags })
    }

    /// The fields in their order, unknown ones included.
    pub const fn iter(&self) -> Tags<'a> {
        Tags { rest: self.tags }
    }

    /// The value of the first field `tag`, if it has the length that the tag wants.
    pub fn get(&self, tag: Tag) -> Option<&'a [u8]> {
        let value = self.iter().find_map(|(found, value)| (found == tag).then_some(value))?;
        (tag.value_len().is_none_or(|len| len == value.len())).then_some(value)
    }

    /// True if there is no field.
    pub const fn is_empty(&self) -> bool {
        self.tags.is_empty()
    }
}

impl<'a> IntoIterator for Appendage<'a> {
    type Item = (Tag, &'a [u8]);
    type IntoIter = Tags<'a>;

    fn into_iter(self) -> Tags<'a> {
        self.iter()
    }
}

impl fmt::Debug for Appendage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// The fields of an [`Appendage`].
#[derive(Debug, Clone)]
pub struct Tags<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Tags<'a> {
    type Item = (Tag, &'a [u8]);

    fn next(&mut self) -> Option<(Tag, &'a [u8])> {
        let (tag, value, rest) = split_tag(self.rest)?;
        self.rest = rest;
        Some((tag, value))
    }
}

/// The field at the start of `bytes`: a length that counts tag and value, tag, value; and the rest.
fn split_tag(bytes: &[u8]) -> Option<(Tag, &[u8], &[u8])> {
    let (&length, rest) = bytes.split_first()?;
    let (field, rest) = rest.split_at_checked(usize::from(length))?;
    let (&tag, value) = field.split_first()?;
    Some((Tag(tag), value, rest))
}

/// A message that the exchange or a client sends.
pub trait Fixed: IntoBytes + Immutable {
    /// Whether a length stands behind it even if the appendage is empty.
    const ALWAYS_APPENDED: bool;
    /// Whether anything may stand behind it.
    const APPENDED: bool = true;
}

macro_rules! fixed {
    ($($always:literal: $($name:ident)*;)*) => {
        $($(impl Fixed for $name { const ALWAYS_APPENDED: bool = $always; })*)*
    };
}
fixed! {
    true: EnterOrder ReplaceOrder MassCancel DisableOrderEntry EnableOrderEntry Accepted Replaced
        Executed Restated MassCancelAnswered DisableAnswered EnableAnswered;
    false: CancelOrder ModifyOrder AccountQuery Cancelled SelfMatchCancelled Rejected CancelPending
        CancelRejected PriorityUpdate Modified AccountQueryAnswered;
}
impl Fixed for SystemEvent {
    const ALWAYS_APPENDED: bool = false;
    const APPENDED: bool = false;
}
impl Fixed for Broken {
    const ALWAYS_APPENDED: bool = false;
    const APPENDED: bool = false;
}

/// Writes a message and its optional fields to the start of `bytes`; returns its length. `None`,
/// and `bytes` hold anything, if they are too few, if a value is longer than 254 bytes or not of
/// its tag's length, or if the message takes no fields.
pub fn write<T: Fixed>(message: &T, tags: &[(Tag, &[u8])], bytes: &mut [u8]) -> Option<usize> {
    message.write_to_prefix(bytes).ok()?;
    let mut len = size_of::<T>();
    if tags.is_empty() && !T::ALWAYS_APPENDED {
        return Some(len);
    }
    let length_at = len;
    len += 2;
    for (tag, value) in tags {
        let right = tag.value_len().is_none_or(|len| len == value.len());
        let length = u8::try_from(value.len() + 1).ok().filter(|_| right && T::APPENDED)?;
        let field = bytes.get_mut(len..len + 2 + value.len())?;
        (field[0], field[1]) = (length, tag.0);
        field[2..].copy_from_slice(value);
        len += field.len();
    }
    let length = u16::try_from(len - length_at - 2).ok()?;
    bytes.get_mut(length_at..length_at + 2)?.copy_from_slice(&length.to_be_bytes());
    Some(len)
}

/// What a reject code says, for the codes that are worth a name.
pub const fn reject_reason(code: u16) -> Option<&'static str> {
    Some(match code {
        0x0005 => "peg type",
        0x0006 => "price or size far from usual (fat finger)",
        0x0007 => "halted",
        0x000c => "firm",
        0x0013 => "quantity",
        0x0015 => "cannot be replaced",
        0x0017 => "symbol",
        0x0018 => "test mode",
        0x001d => "price",
        0x001e => "shares",
        0x001f => "notional",
        0x0020 => "risk: exposure",
        0x0021 => "risk: market impact",
        0x0022 => "risk: restricted stock",
        0x0023 => "risk: short sale",
        0x0024 => "risk: order type",
        0x0025 => "risk: average daily volume",
        0x0026 => "risk: fat finger",
        0x0027 => "risk: locate",
        0x0028 => "risk: rate per symbol",
        0x0029 => "risk: rate per port",
        0x002a => "risk: duplicate orders",
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
