//! [`Line`]: commands whose data are fetched, in order.

/// Commands of a queue whose data come by READ, by their places: those whose READs are under way,
/// and behind them those that have none yet.
#[derive(Debug)]
pub(super) struct Line {
    /// Places by position: a power of two of them, one for each command at least.
    places: Box<[u16]>,
    mask: usize,
    /// Positions behind the last command whose READ has ended, whose READ is posted, that stands
    /// here, and that stood here when READs were posted last.
    ended: u32,
    posted: u32,
    end: u32,
    seen: u32,
    /// The version of what is offered that those without a READ were checked by.
    pub(super) version: u64,
}

impl Line {
    /// For a queue of so many entries.
    pub(super) fn new(entries: u16) -> Self {
        let places: Box<[u16]> = vec![0; usize::from(entries).next_power_of_two()].into();
        Self { mask: places.len() - 1, places, ended: 0, posted: 0, end: 0, seen: 0, version: 0 }
    }

    /// Commands that have no READ yet.
    #[inline(always)]
    pub(super) fn waiting(&self) -> u32 {
        self.end.wrapping_sub(self.posted)
    }

    #[inline(always)]
    fn at(&self, position: u32) -> Option<u16> {
        self.places.get(position as usize & self.mask).copied()
    }

    /// Puts a command in, behind all others. Each stands here once at most, so there is room.
    #[inline(always)]
    pub(super) fn push(&mut self, place: u16) {
        if let Some(at) = self.places.get_mut(self.end as usize & self.mask) {
            *at = place;
        }
        self.end = self.end.wrapping_add(1);
    }

    /// The first command without a READ, for which one is posted now.
    #[inline(always)]
    pub(super) fn post(&mut self) -> Option<u16> {
        let place = self.at(self.posted)?;
        self.posted = self.posted.wrapping_add(1);
        Some(place)
    }

    /// The command whose READ has ended.
    #[inline(always)]
    pub(super) fn end(&mut self) -> Option<u16> {
        let place = self.at(self.ended)?;
        self.ended = self.ended.wrapping_add(1);
        Some(place)
    }

    /// Whether `is_it` says so of a command whose READ has not ended.
    pub(super) fn any(&self, is_it: impl Fn(u16) -> bool) -> bool {
        let count = self.end.wrapping_sub(self.ended);
        (0..count).any(|ahead| self.at(self.ended.wrapping_add(ahead)).is_some_and(&is_it))
    }

    /// Takes out those commands without a READ that `stays` says no of.
    pub(super) fn retain(&mut self, mut stays: impl FnMut(u16) -> bool) {
        let all = self.waiting();
        self.end = self.posted;
        for ahead in 0..all {
            if let Some(place) = self.at(self.posted.wrapping_add(ahead))
                && stays(place)
            {
                self.push(place);
            }
        }
        if self.waiting() < all {
            self.seen = self.end;
        }
    }

    /// How many commands came since it was last asked that have no READ yet.
    #[inline(always)]
    pub(super) fn left_behind(&mut self) -> u32 {
        let new = self.end.wrapping_sub(self.seen);
        self.seen = self.end;
        self.waiting().min(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line that is about to wrap.
    fn line() -> Line {
        let near = u32::MAX - 2;
        Line { ended: near, posted: near, end: near, seen: near, ..Line::new(5) }
    }

    #[test]
    fn commands_leave_in_the_order_in_which_they_came_over_every_wrap() {
        let mut line = line();
        assert_eq!(line.places.len(), 8, "five entries, rounded up");
        for round in 0..20 {
            (0..5).for_each(|at| line.push(round * 5 + at));
            assert_eq!((line.waiting(), line.post()), (5, Some(round * 5)));
            assert_eq!((line.waiting(), line.end()), (4, Some(round * 5)));
            (1..5).for_each(|at| assert_eq!(line.post(), Some(round * 5 + at)));
            (1..5).for_each(|at| assert_eq!(line.end(), Some(round * 5 + at)));
            assert_eq!(line.waiting(), 0);
        }
    }

    #[test]
    fn those_that_are_taken_out_leave_the_others_in_order() {
        let mut line = line();
        (0..5).for_each(|at| line.push(at));
        assert_eq!(line.post(), Some(0));
        line.retain(|place| place % 2 == 0);
        // Not those whose READs are under way.
        assert_eq!((line.waiting(), line.end()), (2, Some(0)));
        assert_eq!((line.post(), line.post(), line.waiting()), (Some(2), Some(4), 0));
    }

    #[test]
    fn each_command_that_is_left_behind_counts_once() {
        let mut line = line();
        (0..4).for_each(|at| line.push(at));
        line.post();
        assert_eq!((line.left_behind(), line.left_behind()), (3, 0));
        line.push(4);
        assert_eq!(line.left_behind(), 1);
    }
}
