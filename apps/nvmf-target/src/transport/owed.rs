//! [`Owed`]: how long a host has let the oldest of its requests wait.

use std::collections::VecDeque;
use std::time::Duration;

/// Parts of a host's patience: [`Owed`] takes what it lets wait for up to a part older.
const PARTS: u32 = 8;

/// Requests that a host lets wait, which end in the order in which they were posted: how long the
/// oldest has.
#[derive(Debug, Default)]
pub(super) struct Owed {
    /// Those that have ended so far.
    ended: u64,
    /// How many there had been, ended or not, at a time. The oldest first, which is one that has
    /// not seen all of them end; a part of the limit between two.
    marks: VecDeque<(u64, Duration)>,
}

impl Owed {
    /// So many have ended.
    #[inline(always)]
    pub(super) fn ended(&mut self, count: u16) {
        self.ended += u64::from(count);
    }

    /// Its core has stood still for a time.
    pub(super) fn was_unheard(&mut self, time: Duration, now: Duration) {
        for (_, at) in &mut self.marks {
            *at = now.min(*at + time);
        }
    }

    /// Whether the oldest of those under way is older than `limit`. To be asked at every look at
    /// the clock.
    pub(super) fn is_older(&mut self, under_way: u64, now: Duration, limit: Duration) -> bool {
        while self.marks.front().is_some_and(|(posted, _)| *posted <= self.ended) {
            self.marks.pop_front();
        }
        let (posted, last) = (self.ended + under_way, self.marks.back().copied());
        let is_new = last.map_or(self.ended, |(before, _)| before) < posted;
        if is_new && last.is_none_or(|(_, at)| now.saturating_sub(at) >= limit / PARTS) {
            self.marks.push_back((posted, now));
        }
        self.marks.front().is_some_and(|(_, at)| now.saturating_sub(*at) > limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One end now and then does not make the others younger.
    #[test]
    fn the_oldest_request_counts() {
        const LIMIT: Duration = Duration::from_secs(8);
        let at = |ms| Duration::from_millis(ms);
        // Six are posted at once, and one ends every 2 s: the last would end after 12.
        let (mut owed, mut stuck_at) = (Owed::default(), None);
        for ms in (0..20_000).step_by(20) {
            let under_way = 6_u64.saturating_sub(ms / 2000);
            if ms > 0 && ms % 2000 == 0 && under_way < 6 {
                owed.ended(1);
            }
            if owed.is_older(under_way, at(ms), LIMIT) {
                stuck_at.get_or_insert(ms);
            }
            assert!(owed.marks.len() <= PARTS as usize + 2, "{owed:?}");
        }
        assert_eq!(stuck_at, Some(8020));
        // As many, but each ends in time: two are always under way.
        let mut owed = Owed::default();
        for ms in (0..60_000).step_by(20) {
            if ms > 0 && ms % 6000 == 0 {
                owed.ended(2);
            }
            assert!(!owed.is_older(2, at(ms), LIMIT), "{owed:?}");
        }
        // What its core did not see counts for nobody.
        let mut owed = Owed::default();
        assert!(!owed.is_older(1, at(0), LIMIT));
        owed.was_unheard(at(9000), at(9000));
        assert!(!owed.is_older(1, at(9000), LIMIT));
        assert!(owed.is_older(1, at(17_020), LIMIT));
    }
}
