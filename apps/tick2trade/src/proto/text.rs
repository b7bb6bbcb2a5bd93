//! Text of fixed length, padded with blanks.

use std::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `N` bytes of ASCII, padded with blanks: on the right, as names are, or on the left, as
/// SoupBinTCP pads numbers.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(transparent)]
pub struct Text<const N: usize>(pub [u8; N]);

impl<const N: usize> Text<N> {
    /// Nothing but blanks.
    pub const BLANK: Self = Self([b' '; N]);

    /// `text`, padded on the right; `None` if it is longer than `N` bytes or not printable ASCII.
    pub const fn new(text: &str) -> Option<Self> {
        let (mut padded, text) = ([b' '; N], text.as_bytes());
        if text.len() > N {
            return None;
        }
        let mut at = 0;
        while at < text.len() {
            if !matches!(text[at], b' '..=b'~') {
                return None;
            }
            padded[at] = text[at];
            at += 1;
        }
        Some(Self(padded))
    }

    /// The digits of `number`, padded on the left; `None` if they are more than `N`.
    pub const fn number(mut number: u64) -> Option<Self> {
        let (mut padded, mut at) = ([b' '; N], N);
        loop {
            if at == 0 {
                return None;
            }
            at -= 1;
            padded[at] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return Some(Self(padded));
            }
        }
    }

    /// The number whose digits these are, blanks on either side ignored: strangers pad on both.
    /// `None` for anything else, and for nothing but blanks.
    pub fn to_number(self) -> Option<u64> {
        let digits = self.trimmed();
        if digits.is_empty() {
            return None;
        }
        digits.iter().try_fold(0_u64, |number, &digit| {
            let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
            number.checked_mul(10)?.checked_add(digit)
        })
    }

    /// What stands between the blanks.
    pub fn trimmed(&self) -> &[u8] {
        let start = self.0.iter().position(|&byte| byte != b' ').unwrap_or(N);
        let end = self.0.iter().rposition(|&byte| byte != b' ').map_or(start, |last| last + 1);
        &self.0[start..end]
    }

    /// True if there is nothing but blanks.
    pub fn is_blank(&self) -> bool {
        self.trimmed().is_empty()
    }
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self::BLANK
    }
}

impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.trimmed().escape_ascii())
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_padded_on_the_right_and_numbers_on_the_left() {
        assert_eq!(Text::<8>::new("AAPL").unwrap().0, *b"AAPL    ");
        assert_eq!(Text::<4>::new("AAPLX"), None);
        assert_eq!(Text::<4>::new("a\n"), None);
        assert_eq!(Text::<20>::number(0).unwrap().0, *b"                   0");
        assert_eq!(Text::<3>::number(999).unwrap().0, *b"999");
        assert_eq!(Text::<3>::number(1000), None);
    }

    #[test]
    fn numbers_are_read_with_blanks_on_either_side() {
        assert_eq!(Text(*b"  42").to_number(), Some(42));
        assert_eq!(Text(*b"42  ").to_number(), Some(42));
        assert_eq!(Text(*b"4 2 ").to_number(), None);
        assert_eq!(Text(*b"    ").to_number(), None);
        assert_eq!(Text(*b"18446744073709551615").to_number(), Some(u64::MAX));
        assert_eq!(Text(*b"18446744073709551616").to_number(), None);
    }

    #[test]
    fn foreign_bytes_are_shown_escaped() {
        assert_eq!(format!("{} {:?}", Text(*b"A\xffB "), Text(*b"    ")), "A\\xffB \"\"");
    }
}
