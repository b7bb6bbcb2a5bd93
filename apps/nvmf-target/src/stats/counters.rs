//! Counters that one core writes and others read, without a lock: [`Counters`], [`Latency`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::proto::log::Traffic;

/// One command of so many is timed, and the first of every look of its core.
pub const TIMED_EVERY: u64 = 32;

/// Parts of a power of two: values of a bucket differ by a sixteenth.
const PARTS: u32 = 16;
const PART_BITS: u32 = PARTS.ilog2();
/// The longest time that is told apart from longer ones: 2^36 ns, a minute.
const MAX_EXPONENT: u32 = 36;
const BUCKETS: usize = ((MAX_EXPONENT - PART_BITS + 2) * PARTS) as usize;

/// Adds to a counter that only the caller writes.
fn add(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// What was moved, as of the last look of the core that moves it: every 20 ms.
#[derive(Debug, Default)]
pub struct Counters([AtomicU64; 6]);

impl Counters {
    /// Shows others what was moved.
    pub fn publish(&self, traffic: &Traffic) {
        let Traffic { commands, errors, reads, writes, bytes_read, bytes_written } = traffic;
        let all = [commands, errors, reads, writes, bytes_read, bytes_written];
        for (shown, value) in self.0.iter().zip(all) {
            shown.store(*value, Ordering::Relaxed);
        }
    }

    /// What was shown last. Numbers of one look may be 20 ms apart from each other.
    #[must_use]
    pub fn read(&self) -> Traffic {
        let all = self.0.each_ref().map(|shown| shown.load(Ordering::Relaxed));
        let [commands, errors, reads, writes, bytes_read, bytes_written] = all;
        Traffic { commands, errors, reads, writes, bytes_read, bytes_written }
    }
}

/// How long commands took, in buckets that the core counts in while others look.
#[derive(Debug)]
pub struct Latency {
    buckets: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
}

impl Default for Latency {
    fn default() -> Self {
        let buckets = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Self { buckets, sum_ns: AtomicU64::new(0) }
    }
}

/// The bucket of a time.
fn bucket(ns: u64) -> usize {
    let exponent = ns.max(1).ilog2();
    if exponent < PART_BITS {
        return ns as usize;
    }
    if exponent > MAX_EXPONENT {
        return BUCKETS - 1;
    }
    let part = ns >> (exponent - PART_BITS) & u64::from(PARTS - 1);
    ((exponent - PART_BITS + 1) * PARTS) as usize + part as usize
}

/// The least time of a bucket.
fn least(bucket: usize) -> u64 {
    let (octave, part) = (bucket as u32 / PARTS, bucket as u64 % u64::from(PARTS));
    match octave {
        0 => part,
        _ => (u64::from(PARTS) + part) << (octave - 1),
    }
}

impl Latency {
    /// Counts a command. Only one core may call it.
    pub fn record(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        add(&self.buckets[bucket(ns)], 1);
        add(&self.sum_ns, ns);
    }

    /// Adds what was counted to a histogram; the sum of all times in ns.
    pub fn add_to(&self, histogram: &mut Histogram<u64>) -> u64 {
        for (at, bucket) in self.buckets.iter().enumerate() {
            let count = bucket.load(Ordering::Relaxed);
            if count > 0 {
                histogram.saturating_record_n(least(at).max(1), count);
            }
        }
        self.sum_ns.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_has_a_bucket_that_is_near_it() {
        for ns in (0..4096).chain((0..63).flat_map(|bit| [(1 << bit) - 1, 1 << bit, 3 << bit])) {
            let ns: u64 = ns;
            let (at, low) = (bucket(ns), least(bucket(ns)));
            assert!(at < BUCKETS, "{ns}");
            if ns < 1 << (MAX_EXPONENT + 1) {
                assert!(low <= ns && ns - low <= ns / 16, "{ns} in {low}");
            }
        }
        assert_eq!((bucket(15), bucket(16), bucket(31), bucket(32)), (15, 16, 31, 32));
        assert_eq!((bucket(u64::MAX), bucket(1 << 37)), (BUCKETS - 1, BUCKETS - 1));
        assert_eq!((least(16), least(32), least(33)), (16, 32, 34));
    }

    #[test]
    fn what_was_counted_is_in_the_histogram() {
        let latency = Latency::default();
        for us in 1..=1000 {
            latency.record(Duration::from_micros(us));
        }
        let mut histogram = super::super::histogram();
        assert_eq!(latency.add_to(&mut histogram), 500_500_000);
        assert_eq!(histogram.len(), 1000);
        let half = histogram.value_at_quantile(0.5);
        assert!((460_000..=510_000).contains(&half), "{half}");
    }

    #[test]
    fn counters_show_what_was_published() {
        let counters = Counters::default();
        let traffic = Traffic {
            reads: 1,
            writes: 2,
            bytes_read: 3,
            bytes_written: 4,
            commands: 5,
            errors: 6,
        };
        counters.publish(&traffic);
        assert_eq!(counters.read(), traffic);
    }
}
