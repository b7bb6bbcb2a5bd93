//! [`AllSame`]: a comparison of many words with one, with two instructions a word.

use std::ops::{BitAnd, BitOr};

/// Whether every word that was added equals an expected one.
///
/// The union and the intersection of the words' bits are both the expected word just when each
/// of them is. Unlike a comparison per word, this has no branch to mispredict.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AllSame<W> {
    expected: W,
    any: W,
    all: W,
}

impl<W: Copy + PartialEq + BitAnd<Output = W> + BitOr<Output = W>> AllSame<W> {
    /// No word was added yet: all are the same.
    #[inline(always)]
    pub(crate) fn new(expected: W) -> Self {
        Self { expected, any: expected, all: expected }
    }

    /// Adds a word.
    #[inline(always)]
    pub(crate) fn add(&mut self, word: W) {
        self.any = self.any | word;
        self.all = self.all & word;
    }

    /// Whether all words added were the expected one.
    #[inline(always)]
    pub(crate) fn is_so(self) -> bool {
        self.any == self.expected && self.all == self.expected
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_other_word_is_found_wherever_it_differs() {
        assert!(AllSame::new(5u16).is_so(), "nothing was added");
        let mut same = AllSame::new(5u16);
        [5, 5, 5].into_iter().for_each(|word| same.add(word));
        assert!(same.is_so());
        for other in [4, 1, 7, 0, 0xffff, 2] {
            for at in 0..3 {
                let mut same = AllSame::new(5u16);
                (0..3).for_each(|i| same.add(if i == at { other } else { 5 }));
                assert!(!same.is_so(), "{other} at {at}");
            }
        }
    }
}
