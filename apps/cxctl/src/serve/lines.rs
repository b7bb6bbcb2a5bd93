//! Log lines that a guest or a client can provoke: so many a second, and how many were left out.

use std::cell::Cell;
use std::time::Instant;

/// Lines of each kind for a port that are logged in one second; any number can be provoked.
pub(super) const LINES_PER_SECOND: u64 = 500;

/// What was said in this second, and what was not.
#[derive(Debug)]
pub(super) struct Lines {
    begun: Instant,
    second: Cell<u64>,
    said: Cell<u64>,
    unsaid: Cell<u64>,
}

impl Lines {
    pub(super) fn new() -> Self {
        let [second, said, unsaid] = Default::default();
        Self { begun: Instant::now(), second, said, unsaid }
    }

    /// How many of `wanted` lines about `port`, of which `at_hand` can still be had, may be said
    /// now. The others count as left out, of which the first line of a later second tells.
    pub(super) fn take(&self, port: &str, at_hand: u64, wanted: u64) -> u64 {
        self.take_at(self.begun.elapsed().as_secs(), port, at_hand, wanted)
    }

    fn take_at(&self, second: u64, port: &str, at_hand: u64, wanted: u64) -> u64 {
        if second != self.second.replace(second) {
            let count = self.unsaid.take();
            if count > 0 {
                tracing::warn!(port, count, "not logged");
            }
            self.said.set(0);
        }
        let may = at_hand.min(wanted).min(LINES_PER_SECOND - self.said.get());
        self.said.set(self.said.get() + may);
        self.unsaid.set(self.unsaid.get() + wanted - may);
        may
    }

    /// Whether one more line may be said.
    pub(super) fn may_say(&self, port: &str) -> bool {
        self.take(port, 1, 1) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_so_many_lines_and_the_next_tells_of_the_others() {
        let lines = Lines::new();
        assert_eq!(lines.take_at(0, "port0", 5, 3), 3);
        assert_eq!(lines.take_at(0, "port0", 1000, LINES_PER_SECOND), LINES_PER_SECOND - 3);
        assert_eq!(lines.take_at(0, "port0", 7, 7), 0);
        assert_eq!(lines.unsaid.get(), 10);
        assert_eq!(lines.take_at(1, "port0", 1, 1), 1);
        assert_eq!(lines.unsaid.get(), 0);
        // Those that nobody has any more are not said, nor taken for said.
        assert_eq!(lines.take_at(1, "port0", 256, 400), 256);
        assert_eq!((lines.said.get(), lines.unsaid.get()), (257, 144));
    }
}
