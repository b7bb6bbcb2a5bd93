//! The wire formats of market data and order entry, sans I/O: views that borrow, builders that
//! write, sessions that take bytes and the time and give bytes back.
//!
//! | module | protocol |
//! |---|---|
//! | [`mold`] | MoldUDP64 1.00: numbered messages in datagrams, and requests for lost ones |
//! | [`soup`] | SoupBinTCP 3.00 to 4.1: numbered messages in a TCP stream, both ends |
//! | [`itch`] | ITCH 5.0: what happened on the market, every message |
//! | [`glimpse`] | GLIMPSE 5.0: the books as they stand, for who comes late |
//! | [`ouch`] | OUCH 5.0: orders and their answers, with appendages |
//! | [`ouch42`] | OUCH 4.2: the older form of the same |
//!
//! Layouts are structures of bytes, written down as the tables of reference 11.1 print them:
//! offset, name, type. The compiler checks every offset and every length.

pub mod glimpse;
pub mod itch;
pub mod mold;
pub mod ouch;
pub mod ouch42;
pub mod soup;
mod text;

pub use text::Text;

/// Structures of a byte-aligned protocol, each a row of its table: letter if it has one, length,
/// and the offset of every field, which the compiler compares with where the field lies.
macro_rules! wire_structs {
    ($($(#[$meta:meta])* $($kind:literal)? [$len:literal] $name:ident {
        $($(#[$doc:meta])* $at:literal $field:ident: $type:ty,)*
    })*) => { $(
        $(#[$meta])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, zerocopy::FromBytes, zerocopy::IntoBytes,
            zerocopy::Immutable, zerocopy::KnownLayout, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name { $($(#[$doc])* pub $field: $type,)* }

        impl $name {
            $(
                /// The letter that says what message this is.
                pub const KIND: u8 = $kind;
            )?
            /// Bytes of it on the wire, what may follow at the end not included.
            pub const LEN: usize = $len;
        }

        const _: () = {
            assert!(size_of::<$name>() == $len);
            $(assert!(std::mem::offset_of!($name, $field) == $at);)*
        };
    )* };
}
pub(crate) use wire_structs;

/// Why bytes are not a message of a protocol whose messages have one length each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MalformedMessage {
    /// No bytes at all.
    #[error("an empty message")]
    Empty,
    /// A letter that means nothing in this direction.
    #[error("message '{}' does not exist in this direction", .0.escape_ascii())]
    Unknown(u8),
    /// A known letter, and another length than it has.
    #[error("message '{}' has {got} bytes, and {expected} are right", kind.escape_ascii())]
    Length {
        /// The letter.
        kind: u8,
        /// Bytes that came.
        got: usize,
        /// Bytes that it has.
        expected: usize,
    },
}

/// An enum of the messages of one direction, each of one length, borrowed from where they lie.
macro_rules! exact_messages {
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
            /// The message that `bytes` are, all of them.
            #[inline]
            pub fn parse(bytes: &'a [u8]) -> Result<Self, $crate::proto::MalformedMessage> {
                use $crate::proto::MalformedMessage as Malformed;
                let kind = *bytes.first().ok_or(Malformed::Empty)?;
                let wrong = |expected| Malformed::Length { kind, got: bytes.len(), expected };
                Ok(match kind {
                    $($name::KIND => Self::$name(
                        zerocopy::FromBytes::ref_from_bytes(bytes)
                            .map_err(|_| wrong($name::LEN))?,
                    ),)*
                    _ => return Err(Malformed::Unknown(kind)),
                })
            }

            /// Letter and length of every message of this direction.
            pub const MESSAGES: &'static [(u8, usize)] = &[$(($name::KIND, $name::LEN)),*];
        }
    };
}
pub(crate) use exact_messages;

/// Which way an order goes, and which side of a book it stands on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// Bids: who buys.
    Buy,
    /// Offers: who sells.
    Sell,
}

impl Side {
    /// The side that a letter stands for: `B` buys; `S`, and in orders also `T` (short) and `E`
    /// (short, exempt), sell.
    pub const fn from_letter(letter: u8) -> Option<Self> {
        match letter {
            b'B' => Some(Self::Buy),
            b'S' | b'T' | b'E' => Some(Self::Sell),
            _ => None,
        }
    }

    /// `B` or `S`.
    pub const fn letter(self) -> u8 {
        match self {
            Self::Buy => b'B',
            Self::Sell => b'S',
        }
    }

    /// The side that this one trades with.
    pub const fn opposite(self) -> Self {
        match self {
            Self::Buy => Self::Sell,
            Self::Sell => Self::Buy,
        }
    }
}
