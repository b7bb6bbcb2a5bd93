//! The optional fields behind a message. Source: reference 11.1.6.

use std::fmt;

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
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
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
