//! Queue pairs with something to do, in the order of their turns.

use std::collections::VecDeque;

/// A line in which a queue pair stands once at most.
#[derive(Debug, Default)]
pub(super) struct Active {
    line: VecDeque<u32>,
    /// Whether a queue pair stands in the line, by number.
    is_in: Vec<bool>,
}

impl Active {
    /// Puts a queue pair at the end, unless it stands in the line.
    pub(super) fn add(&mut self, qpn: u32) {
        let index = qpn as usize;
        if self.is_in.len() <= index {
            self.is_in.resize(index + 1, false);
        }
        if !std::mem::replace(&mut self.is_in[index], true) {
            self.line.push_back(qpn);
        }
    }

    /// Takes the first one out.
    pub(super) fn take(&mut self) -> Option<u32> {
        let qpn = self.line.pop_front()?;
        self.is_in[qpn as usize] = false;
        Some(qpn)
    }

    /// Length of the line.
    pub(super) fn len(&self) -> usize {
        self.line.len()
    }

    /// Sends all away.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stands_in_line_once_and_comes_in_turn() {
        let mut active = Active::default();
        [7, 3, 7, 0, 3].into_iter().for_each(|qpn| active.add(qpn));
        assert_eq!(active.len(), 3);
        assert_eq!(active.take(), Some(7));
        active.add(7);
        assert_eq!([active.take(), active.take(), active.take()], [Some(3), Some(0), Some(7)]);
        assert_eq!(active.take(), None);
    }

    #[test]
    fn who_was_sent_away_may_come_again() {
        let mut active = Active::default();
        active.add(5);
        active.clear();
        assert_eq!((active.len(), active.take()), (0, None));
        active.add(5);
        assert_eq!(active.take(), Some(5));
    }
}
