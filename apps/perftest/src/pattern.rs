//! The bytes of messages: each is known from the number of its message and its place in it.

use thiserror::Error;

/// Page starts, where `ibv_*_pingpong -c` wants zeros. Source: rdma-core, rc_pingpong.c.
const PAGE_BYTES: usize = 4096;
/// What `ibv_*_pingpong` fills its buffer with at first. Source: the same.
const STOCK_FILL: u8 = 0x7b;

/// What the buffers of the stock tools hold at first: `ibv_srq_pingpong` starts with zeros. Source:
/// the same, srq_pingpong.c.
pub const STOCK_FILLS: [u8; 2] = [STOCK_FILL, 0];

/// A byte that is not what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("message {seq}: byte {at} is {got:#04x}, it should be {want:#04x}")]
pub struct Damage {
    /// Number of the message.
    pub seq: u64,
    /// Place in it.
    pub at: usize,
    /// What stands there.
    pub got: u8,
    /// What should.
    pub want: u8,
}

/// The eight bytes at `8 * index` of message `seq`.
#[inline]
fn word(seq: u64, index: u64) -> [u8; 8] {
    // The finaliser of SplitMix64: neighbouring numbers give unlike words.
    let mut z = seq.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index.wrapping_add(1) << 1);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).to_le_bytes()
}

/// Fills `bytes` with message `seq`.
pub fn fill(bytes: &mut [u8], seq: u64) {
    for (index, chunk) in (0..).zip(bytes.chunks_mut(8)) {
        chunk.copy_from_slice(&word(seq, index)[..chunk.len()]);
    }
}

/// Checks that `bytes` are message `seq`.
///
/// # Errors
///
/// The first byte that is wrong.
pub fn check(bytes: &[u8], seq: u64) -> Result<(), Damage> {
    for (index, chunk) in (0..).zip(bytes.chunks(8)) {
        let want = &word(seq, index)[..chunk.len()];
        if chunk != want {
            return Err(first_difference(chunk, want, seq, 8 * index as usize));
        }
    }
    Ok(())
}

#[cold]
fn first_difference(got: &[u8], want: &[u8], seq: u64, start: usize) -> Damage {
    let at = got.iter().zip(want).position(|(got, want)| got != want).unwrap_or(0);
    Damage { seq, at: start + at, got: got[at], want: want[at] }
}

/// As [`fill`], with the zeros that `ibv_*_pingpong -c` looks for.
pub fn fill_for_stock(bytes: &mut [u8], seq: u64) {
    fill(bytes, seq);
    bytes.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 0);
}

/// Checks that `bytes` are `want`.
///
/// # Errors
///
/// The first byte that is wrong.
pub fn check_equal(bytes: &[u8], want: &[u8], seq: u64) -> Result<(), Damage> {
    if bytes == want { Ok(()) } else { Err(first_difference(bytes, want, seq, 0)) }
}

/// Whether these are the bytes that `ibv_*_pingpong` starts with, with or without its `-c`.
#[must_use]
pub fn is_stock_fill(bytes: &[u8]) -> bool {
    let fits = |(at, &byte): (usize, &u8)| {
        byte == STOCK_FILL || at.is_multiple_of(PAGE_BYTES) && byte == 0
    };
    bytes.iter().enumerate().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_checked_to_its_last_byte() {
        for len in [0, 1, 7, 8, 9, 4096, 5001] {
            let mut bytes = vec![0; len];
            fill(&mut bytes, 7);
            check(&bytes, 7).unwrap();
            if len > 0 {
                bytes[len - 1] ^= 1;
                let damage = check(&bytes, 7).unwrap_err();
                assert_eq!((damage.at, damage.got ^ damage.want), (len - 1, 1));
                assert_eq!(check_equal(&[1, 2], &[1, 3], 9).unwrap_err().at, 1);
            }
        }
    }

    #[test]
    fn messages_differ_by_their_number_and_place() {
        let (mut one, mut two) = ([0; 64], [0; 64]);
        fill(&mut one, 1);
        fill(&mut two, 2);
        assert_ne!(one, two);
        assert!(check(&one, 2).is_err());
        // Shifted by one word it is another message.
        assert!(check(&one[8..], 1).is_err());
    }

    #[test]
    fn the_stock_tool_finds_its_zeros() {
        let mut bytes = vec![0; 9000];
        fill_for_stock(&mut bytes, 3);
        assert_eq!([bytes[0], bytes[4096], bytes[8192]], [0, 0, 0]);
        assert_ne!(bytes[1..9], [0; 8]);
        assert!(!is_stock_fill(&bytes));
        let mut stock = vec![0x7b; 5000];
        assert!(is_stock_fill(&stock));
        stock[4096] = 0;
        assert!(is_stock_fill(&stock));
        stock[4097] = 0;
        assert!(!is_stock_fill(&stock));
    }
}
