//! GLIMPSE 5.0: the books as they stand, for who comes late.
//!
//! A session of [`soup`](super::soup) that is asked for its first message. What comes are messages
//! of [`itch`](super::itch), as if the books had been built that moment, and behind them one of its
//! own: the number of the feed's message to go on from. Source: reference 11.1.1, last line.

use zerocopy::FromBytes;

use super::{MalformedMessage, Text, wire_structs};

wire_structs! {
    /// The snapshot is whole.
    b'G' [21] SnapshotEnd {
        /// The letter.
        0 kind: u8,
        /// Number of the first message of the feed that the snapshot does not know of, in digits.
        1 next: Text<20>,
    }
}

/// A message of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotMessage<'a> {
    /// A message as the feed has it.
    Feed(&'a [u8]),
    /// The snapshot is whole; the feed goes on from this message.
    End(u64),
}

impl<'a> SnapshotMessage<'a> {
    /// Reads a message.
    ///
    /// # Errors
    /// A [`MalformedMessage`] if it is empty, or an end whose length or number is none.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, MalformedMessage> {
        let kind = *bytes.first().ok_or(MalformedMessage::Empty)?;
        if kind != SnapshotEnd::KIND {
            return Ok(Self::Feed(bytes));
        }
        let (got, expected) = (bytes.len(), SnapshotEnd::LEN);
        let end = SnapshotEnd::read_from_bytes(bytes);
        let end = end.map_err(|_| MalformedMessage::Length { kind, got, expected })?;
        end.next.to_number().map(Self::End).ok_or(MalformedMessage::Unknown(kind))
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn the_end_has_its_golden_bytes_both_ways() {
        let end = SnapshotEnd { kind: SnapshotEnd::KIND, next: Text::number(1_234).unwrap() };
        assert_eq!(end.as_bytes(), b"G                1234");
        for digits in
            [&b"G                1234"[..], b"G1234                ", b"G00000000000000001234"]
        {
            assert_eq!(SnapshotMessage::parse(digits), Ok(SnapshotMessage::End(1_234)));
        }
    }

    #[test]
    fn what_is_no_end_is_the_feeds_and_half_an_end_is_nothing() {
        assert_eq!(SnapshotMessage::parse(b"A..."), Ok(SnapshotMessage::Feed(b"A...")));
        assert_eq!(SnapshotMessage::parse(b""), Err(MalformedMessage::Empty));
        let short = MalformedMessage::Length { kind: b'G', got: 3, expected: 21 };
        assert_eq!(SnapshotMessage::parse(b"G12"), Err(short));
        for number in ["G                    ", "G             12 34  ", "G99999999999999999999"] {
            let expected = Err(MalformedMessage::Unknown(b'G'));
            assert_eq!(SnapshotMessage::parse(number.as_bytes()), expected, "{number}");
        }
    }
}
