//! Where a worker's time goes, from a sample of its turns.
//!
//! One turn in [`PERIOD`] is timed, part by part. Reading the clock costs time too: its cost is
//! measured when a profile starts, and taken off each part.

use std::time::{Duration, Instant};

use serde::Serialize;

/// One turn in so many is timed. Odd, so that it does not beat with a number of queues.
pub const PERIOD: u32 = 127;

/// Parts of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Polling a receive queue that had nothing.
    Empty,
    /// Receiving frames.
    Receive,
    /// The forwarding engine, or making frames.
    Work,
    /// Sending frames, with taking back those sent before.
    Send,
}

const PARTS: usize = 4;

/// The times of one turn.
#[derive(Debug)]
pub struct Lap {
    last: Instant,
    parts: [Duration; PARTS],
    laps: [u32; PARTS],
}

impl Lap {
    /// Starts a turn.
    #[must_use]
    pub fn start() -> Self {
        Self { last: Instant::now(), parts: [Duration::ZERO; PARTS], laps: [0; PARTS] }
    }

    /// Ends a part; the time since the last one is its.
    pub fn lap(&mut self, part: Part) {
        let now = Instant::now();
        self.parts[part as usize] += now - self.last;
        self.laps[part as usize] += 1;
        self.last = now;
    }
}

/// Sampled times, and shares of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Profile {
    until_next: u32,
    clock: Duration,
    parts: [Duration; PARTS],
    turns: u64,
}

/// Shares of a worker's time in percent; together 100, or all 0 of nothing.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Shares {
    /// Polling queues that had nothing.
    pub empty_percent: f64,
    /// Receiving frames.
    pub receive_percent: f64,
    /// The forwarding engine.
    pub work_percent: f64,
    /// Sending frames.
    pub send_percent: f64,
    /// Turns that were timed.
    pub sampled_turns: u64,
}

impl Default for Profile {
    fn default() -> Self {
        Self::new()
    }
}

impl Profile {
    /// Measures the clock and starts empty.
    #[must_use]
    pub fn new() -> Self {
        let costs = (0..32).map(|_| {
            let start = Instant::now();
            start.elapsed()
        });
        let clock = costs.min().unwrap_or(Duration::ZERO);
        Self { until_next: PERIOD, clock, parts: [Duration::ZERO; PARTS], turns: 0 }
    }

    /// Whether this turn is one of those that are timed.
    #[inline]
    pub fn is_due(&mut self) -> bool {
        self.until_next -= 1;
        if self.until_next > 0 {
            return false;
        }
        self.until_next = PERIOD;
        true
    }

    /// Adds a timed turn.
    pub fn record(&mut self, lap: &Lap) {
        for at in 0..PARTS {
            self.parts[at] += lap.parts[at].saturating_sub(self.clock * lap.laps[at]);
        }
        self.turns += 1;
    }

    /// Adds the times of another worker.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.parts.iter_mut().zip(other.parts) {
            *mine += theirs;
        }
        self.turns += other.turns;
    }

    /// Shares of the time, in percent.
    #[must_use]
    pub fn shares(&self) -> Shares {
        let total = self.parts.iter().sum::<Duration>().as_secs_f64();
        if total == 0.0 {
            return Shares { sampled_turns: self.turns, ..Shares::default() };
        }
        let percent = |part: Part| self.parts[part as usize].as_secs_f64() * 100.0 / total;
        let share = |part: Part| (percent(part) * 10.0).round() / 10.0;
        Shares {
            empty_percent: share(Part::Empty),
            receive_percent: share(Part::Receive),
            work_percent: share(Part::Work),
            send_percent: share(Part::Send),
            sampled_turns: self.turns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_turn_in_a_period_is_timed() {
        let mut profile = Profile::new();
        let timed = (0..PERIOD * 3).filter(|_| profile.is_due()).count();
        assert_eq!(timed, 3);
    }

    #[test]
    fn shares_are_of_the_time_without_the_clock() {
        let mut profile = Profile { clock: Duration::from_nanos(10), ..Profile::new() };
        assert_eq!(profile.shares(), Shares::default());
        let ns = Duration::from_nanos;
        let lap = Lap {
            last: Instant::now(),
            parts: [ns(0), ns(110), ns(5), ns(320)],
            laps: [0, 1, 1, 2],
        };
        profile.record(&lap);
        let shares = profile.shares();
        assert_eq!(
            (shares.receive_percent, shares.send_percent, shares.work_percent),
            (25.0, 75.0, 0.0)
        );
        profile.merge(&profile.clone());
        assert_eq!(profile.shares(), Shares { sampled_turns: 2, ..shares });
    }

    #[test]
    fn laps_add_to_their_part() {
        let mut lap = Lap::start();
        lap.lap(Part::Work);
        lap.lap(Part::Work);
        assert_eq!(lap.laps, [0, 0, 2, 0]);
    }
}
