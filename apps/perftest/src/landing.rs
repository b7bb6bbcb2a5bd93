//! Messages that are written into memory without a completion: the last byte says which one it is.
//!
//! A device writes the bytes of a message in rising order, unless the memory was registered for
//! relaxed ordering, which these tests never do: when the last byte is there, all are.

use crate::pattern::{self, Damage};

/// What stands in the last byte of message `seq`: never 0, and never that of the one before.
#[must_use]
pub fn mark_of(seq: u64) -> u8 {
    // At most 255.
    (seq % 255 + 1) as u8
}

/// Puts the mark into a message.
pub fn mark(message: &mut [u8], seq: u64) {
    if let Some(last) = message.last_mut() {
        *last = mark_of(seq);
    }
}

/// Checks the bytes in front of the mark.
///
/// # Errors
///
/// The first byte that is wrong.
pub fn check(message: &[u8], seq: u64) -> Result<(), Damage> {
    message.split_last().map_or(Ok(()), |(_, rest)| pattern::check(rest, seq))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_differ_from_their_neighbours_and_from_nothing() {
        for seq in [0, 1, 253, 254, 255, 256, u64::MAX - 1] {
            assert_ne!(mark_of(seq), 0);
            assert_ne!(mark_of(seq), mark_of(seq + 1));
        }
    }

    #[test]
    fn all_but_the_mark_is_checked() {
        for len in [1, 8, 9, 17] {
            let mut message = vec![0; len];
            pattern::fill(&mut message, 3);
            mark(&mut message, 3);
            assert_eq!(message[len - 1], 4);
            check(&message, 3).unwrap();
            message[0] ^= 1;
            assert_eq!(check(&message, 3).is_err(), len > 1);
        }
        mark(&mut [], 3);
        check(&[], 3).unwrap();
    }
}
