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
//! assert_eq!(read.price.get(), 1_503_400);
//! assert_eq!(appendage.get(ouch::Tag::USER_REF_INDEX), Some(&[5][..]));
//! ```

pub mod answers;
mod appendage;
mod requests;
#[cfg(test)]
mod tests;

use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::Text;
use answers::{
    Accepted, AccountQueryAnswered, Broken, CancelPending, CancelRejected, Cancelled,
    DisableAnswered, EnableAnswered, Executed, MassCancelAnswered, Modified, PriorityUpdate,
    Rejected, Replaced, Restated, SelfMatchCancelled, SystemEvent,
};

pub use appendage::{Appendage, Tag, Tags};
pub use requests::{
    AccountQuery, CancelOrder, DisableOrderEntry, EnableOrderEntry, EnterOrder, MassCancel,
    ModifyOrder, ReplaceOrder, time_in_force,
};

/// Name of a security.
pub type Symbol = Text<8>;
/// A client's own name for an order.
pub type ClientOrderId = Text<14>;

/// Side of an order that sells short. Source: reference 11.1.4.
pub const SHORT: u8 = b'T';
/// Side of one that sells short, and is exempt from the rule about its price.
pub const SHORT_EXEMPT: u8 = b'E';
/// The highest price that an order may have: 199,999.99.
pub const MAX_PRICE: u64 = 0x7735_939c;
/// Price of a market order: 200,000.00.
pub const MARKET: u64 = 2_000_000_000;
/// Price of a market order in an auction.
pub const MARKET_IN_CROSS: u64 = 0x7fff_ffff;
/// The most shares that an order may have.
pub const MAX_QUANTITY: u32 = 999_999;

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
                let (message, rest) = Self::parse_fixed(bytes)?;
                let kind = bytes[0];
                let appendage = Appendage::parse(rest).ok_or(Malformed::Appendage { kind })?;
                Ok((message, appendage))
            }

            /// The message that `bytes` begin with, and what stands behind its fixed part: for who
            /// wants no appendage, and would miss a message for one that cannot be read.
            #[inline]
            pub fn parse_fixed(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
                let kind = *bytes.first().ok_or(Malformed::Empty)?;
                let short = |expected| Malformed::Short { kind, got: bytes.len(), expected };
                match kind {
                    $($name::KIND => {
                        let fixed = $name::ref_from_prefix(bytes);
                        let (fixed, rest) = fixed.map_err(|_| short($name::LEN))?;
                        Ok((Self::$name(fixed), rest))
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
