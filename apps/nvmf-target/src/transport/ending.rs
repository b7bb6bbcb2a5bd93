//! How a session ends.

use std::collections::VecDeque;
use std::time::Duration;

use ferrocx::verbs::Qp;

use super::session::{Link, Session};
use super::{Buffers, END_PATIENCE};

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
    fn is_older(&mut self, under_way: u64, now: Duration, limit: Duration) -> bool {
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

impl Link {
    /// Ends it for a failure.
    #[cold]
    pub(super) fn fail(&mut self, why: &'static str) {
        self.has_failed |= self.ending.is_none();
        self.end(why);
    }

    /// Whether its host has let data or answers wait for longer than `limit`: it posts no receives,
    /// or is gone. Of what holds something that others may need too, the oldest counts, so that one
    /// end now and then does not keep the rest; a send queue that is full is its own loss, and is
    /// given up when nothing of it ends at all.
    pub(super) fn is_stuck(&mut self, qp: &Qp, now: Duration, limit: Duration) -> bool {
        if std::mem::take(&mut self.is_heard) || self.has_room(qp) {
            self.heard_at = now;
        }
        let under_way = u64::from(self.reads) + self.pooled.len() as u64;
        self.owed.is_older(under_way, now, limit) || now.saturating_sub(self.heard_at) > limit
    }

    /// Ends it. The first reason counts.
    pub(super) fn end(&mut self, why: &'static str) {
        self.ending.get_or_insert(why);
    }
}

impl Session {
    /// Goes on with its end: the host is told, the queue pair is led into its error state, and
    /// everything posted comes back. Whether that is done.
    pub(super) fn is_over(&mut self, qp: &mut Qp, now: Duration, buffers: &mut Buffers) -> bool {
        let link = &mut self.link;
        if link.ending.is_none() {
            return false;
        }
        let Some(since) = link.ended_at else {
            link.ended_at = Some(now);
            if let Err(error) = link.connection.disconnect(&[]) {
                tracing::debug!(%error, "the host was not told");
            }
            if let Err(error) = qp.to_error() {
                tracing::debug!(%error, "queue pair not led to its error state");
            }
            return false;
        };
        // Every READ ends before its buffer is anybody else's.
        let is_late = now.saturating_sub(since) > END_PATIENCE;
        let is_done = link.outside == 0 && (!qp.has_outstanding() || is_late);
        if is_done {
            for it in &mut self.slots {
                buffers.give_back(it);
            }
        }
        is_done
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
