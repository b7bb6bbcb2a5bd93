//! Queue pairs, or other queues, with something to do, in the order of their turns.

use std::collections::VecDeque;

/// A line in which a number stands once at most, whoever bears it by now.
#[derive(Debug, Default)]
pub(crate) struct Active {
    line: VecDeque<u32>,
    /// Whether a queue stands in the line, by number.
    is_in: Vec<bool>,
}

impl Active {
    /// Bytes for each number: its place in a line that doubles, and its mark.
    pub(crate) const BYTES_PER_NUMBER: usize = 3 * (size_of::<u32>() + size_of::<bool>());

    /// Puts a queue at the end, unless it stands in the line.
    pub(crate) fn add(&mut self, number: u32) {
        let index = number as usize;
        if self.is_in.len() <= index {
            self.is_in.resize(index + 1, false);
        }
        if !std::mem::replace(&mut self.is_in[index], true) {
            self.line.push_back(number);
        }
    }

    /// Takes the first one out.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let number = self.line.pop_front()?;
        self.is_in[number as usize] = false;
        Some(number)
    }

    /// Takes one out that has nothing to do any more.
    pub(crate) fn remove(&mut self, number: u32) {
        let is_in = self.is_in.get_mut(number as usize);
        if is_in.is_some_and(std::mem::take) {
            self.line.retain(|other| *other != number);
        }
    }

    /// Length of the line.
    pub(crate) fn len(&self) -> usize {
        self.line.len()
    }

    /// Sends all away.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stands_in_line_once_and_comes_in_turn() {
        let mut active = Active::default();
        [7, 3, 7, 0, 3].into_iter().for_each(|number| active.add(number));
        assert_eq!(active.len(), 3);
        assert_eq!(active.take(), Some(7));
        active.add(7);
        assert_eq!([active.take(), active.take(), active.take()], [Some(3), Some(0), Some(7)]);
        assert_eq!(active.take(), None);
    }

    #[test]
    fn who_was_sent_away_may_come_again() {
        let mut active = Active::default();
        [4, 5].into_iter().for_each(|number| active.add(number));
        active.remove(5);
        active.remove(6);
        active.add(5);
        assert_eq!([active.take(), active.take(), active.take()], [Some(4), Some(5), None]);
        active.add(5);
        active.clear();
        assert_eq!((active.len(), active.take()), (0, None));
        active.add(5);
        assert_eq!(active.take(), Some(5));
    }
}
