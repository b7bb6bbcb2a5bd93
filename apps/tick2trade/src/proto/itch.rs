//! ITCH 5.0: what happened on the market, every message of it.
//!
//! Source: reference 11.1.3. Each structure is a row of the table there. Prices are integers with
//! four decimals (150.34 is 1,503,400), those of the market-wide breaker with eight. Times are
//! nanoseconds since midnight.
//!
//! # Example
//! ```
//! use ferrocx_tick2trade::proto::{Text, itch};
//! use zerocopy::IntoBytes;
//!
//! let add = itch::AddOrder {
//!     header: itch::Header::new(itch::AddOrder::KIND, 1, 34_200_000_000_123),
//!     reference: 1.into(),
//!     side: b'B',
//!     shares: 100.into(),
//!     stock: Text::new("AAPL").unwrap(),
//!     price: 1_503_400.into(),
//! };
//! let itch::Message::AddOrder(read) = itch::Message::parse(add.as_bytes()).unwrap() else {
//!     panic!("an add order")
//! };
//! assert_eq!((read.price.get(), read.header.timestamp_ns()), (1_503_400, 34_200_000_000_123));
//! ```

use thiserror::Error;
use zerocopy::FromBytes;
use zerocopy::big_endian::{U16, U32, U64};

use super::{Text, wire_structs};

/// Name of a security.
pub type Stock = Text<8>;

/// What every message starts with.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    zerocopy::FromBytes,
    zerocopy::IntoBytes,
    zerocopy::Immutable,
    zerocopy::KnownLayout,
    zerocopy::Unaligned,
)]
#[repr(C)]
pub struct Header {
    /// The letter that says what message this is.
    pub kind: u8,
    /// Number of the security on this day, small and dense; 0 if the message is about none.
    pub locate: U16,
    /// Number for the exchange's own use.
    pub tracking: U16,
    timestamp: [u8; 6],
}

/// Bytes of a [`Header`].
pub const HEADER_LEN: usize = size_of::<Header>();
const _: () = assert!(HEADER_LEN == 11);

impl Header {
    /// The header of a message of the kind `kind` about the security `locate`, with no tracking
    /// number. Of `timestamp_ns` the low 48 bits count.
    pub fn new(kind: u8, locate: u16, timestamp_ns: u64) -> Self {
        let [_, _, timestamp @ ..] = timestamp_ns.to_be_bytes();
        Self { kind, locate: locate.into(), tracking: 0.into(), timestamp }
    }

    /// When it happened: nanoseconds since midnight.
    #[inline]
    pub const fn timestamp_ns(&self) -> u64 {
        let [a, b, c, d, e, f] = self.timestamp;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }
}

wire_structs! {
    /// The day's course: `O` messages start, `S` system hours start, `Q` market opens, `M` market
    /// closes, `E` system hours end, `C` messages end.
    b'S' [12] SystemEvent {
        /// Kind, security and time.
        0 header: Header,
        /// Which event.
        11 event: u8,
    }
    /// A security, its number for the day, and its rules.
    b'R' [39] StockDirectory {
        /// Kind, security and time.
        0 header: Header,
        /// Its name.
        11 stock: Stock,
        /// Market tier.
        19 market_category: u8,
        /// Whether the issuer is in order.
        20 financial_status: u8,
        /// Shares of a round lot.
        21 round_lot_size: U32,
        /// `Y` if only round lots are taken.
        25 round_lots_only: u8,
        /// Class of the issue.
        26 issue_classification: u8,
        /// Subtype of the issue.
        27 issue_subtype: Text<2>,
        /// `P` live, `T` a test.
        29 authenticity: u8,
        /// Short sale threshold.
        30 short_sale_threshold: u8,
        /// Whether it is new on the market.
        31 ipo: u8,
        /// Tier of the price collar.
        32 luld_tier: u8,
        /// Whether it is an exchange traded product.
        33 etp: u8,
        /// Leverage of that product.
        34 etp_leverage: U32,
        /// Whether it runs against its index.
        38 inverse: u8,
    }
    /// Whether a security trades: `H` halted, `P` paused, `Q` quotes only, `T` trades.
    b'H' [25] TradingAction {
        /// Kind, security and time.
        0 header: Header,
        /// Name of the security.
        11 stock: Stock,
        /// State from now on.
        19 state: u8,
        /// Nothing.
        20 reserved: u8,
        /// Why.
        21 reason: Text<4>,
    }
    /// Restriction of short sales.
    b'Y' [20] RegSho {
        /// Kind, security and time.
        0 header: Header,
        /// Name of the security.
        11 stock: Stock,
        /// What holds from now on.
        19 action: u8,
    }
    /// A market participant's part in a security.
    b'L' [26] ParticipantPosition {
        /// Kind, security and time.
        0 header: Header,
        /// The participant.
        11 participant: Text<4>,
        /// Name of the security.
        15 stock: Stock,
        /// Whether it is a primary market maker.
        23 primary: u8,
        /// Mode of market making.
        24 mode: u8,
        /// State of the participant.
        25 state: u8,
    }
    /// Levels of the market-wide circuit breaker; eight decimals.
    b'V' [35] BreakerLevels {
        /// Kind and time.
        0 header: Header,
        /// First level.
        11 level_1: U64,
        /// Second level.
        19 level_2: U64,
        /// Third level.
        27 level_3: U64,
    }
    /// A level of the market-wide circuit breaker was passed.
    b'W' [12] BreakerStatus {
        /// Kind and time.
        0 header: Header,
        /// Which level.
        11 level: u8,
    }
    /// When quoting of a new issue starts.
    b'K' [28] IpoQuoting {
        /// Kind, security and time.
        0 header: Header,
        /// Name of the security.
        11 stock: Stock,
        /// Seconds since midnight.
        19 release_time_s: U32,
        /// Whether the time holds or was withdrawn.
        23 qualifier: u8,
        /// Price of the issue.
        24 price: U32,
    }
    /// Price collar of an auction after a pause.
    b'J' [35] AuctionCollar {
        /// Kind, security and time.
        0 header: Header,
        /// Name of the security.
        11 stock: Stock,
        /// Price that the collar is made from.
        19 reference_price: U32,
        /// Upper end.
        23 upper: U32,
        /// Lower end.
        27 lower: U32,
        /// How often it was made wider.
        31 extension: U32,
    }
    /// A security is halted on one market, or no longer.
    b'h' [21] OperationalHalt {
        /// Kind, security and time.
        0 header: Header,
        /// Name of the security.
        11 stock: Stock,
        /// Which market.
        19 market: u8,
        /// `H` halted, `T` trades again.
        20 action: u8,
    }
    /// An order enters the book.
    b'A' [36] AddOrder {
        /// Kind, security and time.
        0 header: Header,
        /// The order, for the rest of the day.
        11 reference: U64,
        /// `B` or `S`.
        19 side: u8,
        /// Shares of it.
        20 shares: U32,
        /// Name of the security.
        24 stock: Stock,
        /// Price, four decimals.
        32 price: U32,
    }
    /// An order enters the book, and whose it is.
    b'F' [40] AddAttributed {
        /// All that an order without a name has; its kind is `F`.
        0 order: AddOrder,
        /// The participant.
        36 attribution: Text<4>,
    }
    /// Shares of an order traded at its own price.
    b'E' [31] Executed {
        /// Kind, security and time.
        0 header: Header,
        /// The order.
        11 reference: U64,
        /// Shares that traded.
        19 shares: U32,
        /// The trade.
        23 match_number: U64,
    }
    /// Shares of an order traded at another price than its own; they leave its own level.
    b'C' [36] ExecutedAtPrice {
        /// Kind, security and time.
        0 header: Header,
        /// The order.
        11 reference: U64,
        /// Shares that traded.
        19 shares: U32,
        /// The trade.
        23 match_number: U64,
        /// `Y` counts as volume, `N` is counted elsewhere.
        31 printable: u8,
        /// Price of the trade.
        32 price: U32,
    }
    /// Shares are taken off an order.
    b'X' [23] Cancelled {
        /// Kind, security and time.
        0 header: Header,
        /// The order.
        11 reference: U64,
        /// Shares taken off, not those left.
        19 shares: U32,
    }
    /// An order leaves the book.
    b'D' [19] Deleted {
        /// Kind, security and time.
        0 header: Header,
        /// The order.
        11 reference: U64,
    }
    /// An order leaves the book, and another of the same security and side enters it at the back of
    /// its level.
    b'U' [35] Replaced {
        /// Kind, security and time.
        0 header: Header,
        /// The order that leaves.
        11 reference: U64,
        /// The order that enters.
        19 new_reference: U64,
        /// Shares of the new one.
        27 shares: U32,
        /// Price of the new one.
        31 price: U32,
    }
    /// A trade with an order that the book does not show. Its reference and side mean nothing.
    b'P' [44] Trade {
        /// Kind, security and time.
        0 header: Header,
        /// May be 0: not to be looked up.
        11 reference: U64,
        /// May always be `B`.
        19 side: u8,
        /// Shares that traded.
        20 shares: U32,
        /// Name of the security.
        24 stock: Stock,
        /// Price of the trade.
        32 price: U32,
        /// The trade.
        36 match_number: U64,
    }
    /// An auction's trade.
    b'Q' [40] CrossTrade {
        /// Kind, security and time.
        0 header: Header,
        /// Shares that traded: eight bytes here.
        11 shares: U64,
        /// Name of the security.
        19 stock: Stock,
        /// Price of all of them.
        27 price: U32,
        /// The trade.
        31 match_number: U64,
        /// Which auction.
        39 cross: u8,
    }
    /// A trade is declared void.
    b'B' [19] BrokenTrade {
        /// Kind, security and time.
        0 header: Header,
        /// The trade.
        11 match_number: U64,
    }
    /// How an auction stands before it is held.
    b'I' [50] Imbalance {
        /// Kind, security and time.
        0 header: Header,
        /// Shares that would trade.
        11 paired: U64,
        /// Shares that would not.
        19 imbalance: U64,
        /// Side of those.
        27 direction: u8,
        /// Name of the security.
        28 stock: Stock,
        /// Price at which orders for the auction alone would trade.
        36 far_price: U32,
        /// Price at which those and the book would.
        40 near_price: U32,
        /// Price that the other figures are for.
        44 reference_price: U32,
        /// Which auction.
        48 cross: u8,
        /// How far the near price is from the best quote.
        49 variation: u8,
    }
    /// Retail orders at or inside the best quote.
    b'N' [20] RetailInterest {
        /// Kind, security and time.
        0 header: Header,
        /// Name of the security.
        11 stock: Stock,
        /// Which sides.
        19 interest: u8,
    }
    /// Prices of a direct listing before its first auction.
    b'O' [48] DirectListing {
        /// Kind, security and time.
        0 header: Header,
        /// Name of the security.
        11 stock: Stock,
        /// Whether it may be released.
        19 open_eligibility: u8,
        /// Lowest price of the auction.
        20 minimum_price: U32,
        /// Highest price of the auction.
        24 maximum_price: U32,
        /// Price at which the auction would be held.
        28 near_price: U32,
        /// When that was computed.
        32 near_time_ns: U64,
        /// Lower end of the collar.
        40 lower_collar: U32,
        /// Upper end of the collar.
        44 upper_collar: U32,
    }
}

/// Why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Malformed {
    /// Fewer bytes than every message has.
    #[error("{0} bytes, and every ITCH message has at least {HEADER_LEN}")]
    NoHeader(usize),
    /// A known kind of another length than it has.
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

macro_rules! message_enum {
    ($($name:ident)*) => {
        /// One message, borrowed from where it was received.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Message<'a> {
            $(
                #[doc = concat!("A [`", stringify!($name), "`](struct@", stringify!($name), ").")]
                $name(&'a $name),
            )*
            /// A kind that came after this was written: to be skipped by its length.
            Unknown(&'a Header),
        }

        impl<'a> Message<'a> {
            /// The message that `bytes` are, all of them.
            #[inline(always)]
            pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
                let got = bytes.len();
                let (header, _) =
                    Header::ref_from_prefix(bytes).map_err(|_| Malformed::NoHeader(got))?;
                let wrong = |expected| Malformed::Length { kind: header.kind, got, expected };
                Ok(match header.kind {
                    $($name::KIND => Self::$name(
                        $name::ref_from_bytes(bytes).map_err(|_| wrong($name::LEN))?,
                    ),)*
                    _ => Self::Unknown(header),
                })
            }
        }

        /// Letter and length of every message, in the order of the specification's chapters.
        pub const MESSAGES: &[(u8, usize)] = &[$(($name::KIND, $name::LEN)),*];
    };
}

message_enum! {
    SystemEvent StockDirectory TradingAction RegSho ParticipantPosition BreakerLevels BreakerStatus
    IpoQuoting AuctionCollar OperationalHalt AddOrder AddAttributed Executed ExecutedAtPrice
    Cancelled Deleted Replaced Trade CrossTrade BrokenTrade Imbalance RetailInterest DirectListing
}

impl StockDirectory {
    /// A common share as most are: in order, live, in round lots of 100, in the first tier.
    pub fn common(locate: u16, stock: Stock, timestamp_ns: u64) -> Self {
        Self {
            header: Header::new(Self::KIND, locate, timestamp_ns),
            stock,
            market_category: b'Q',
            financial_status: b'N',
            round_lot_size: 100.into(),
            round_lots_only: b'N',
            issue_classification: b'C',
            issue_subtype: Text(*b"Z "),
            authenticity: b'P',
            short_sale_threshold: b'N',
            ipo: b'N',
            luld_tier: b'1',
            etp: b'N',
            etp_leverage: 0.into(),
            inverse: b'N',
        }
    }
}

#[cfg(test)]
mod tests;
