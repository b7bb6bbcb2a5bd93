//! What was measured, for people and for programs.

use core_affinity::CoreId;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::counters::Counters;
use crate::latency::{Row, svg, table};
use crate::watch::SUSPICIOUS_NS;

pub(super) const RECOVERY: &str = "recovery of gaps";
pub(super) const WHOLE: &str = "wire to wire, our queues";
pub(super) const BY_TAP: &str = "wire to wire, our queues by the TAP";
/// What the name of a row of undisturbed orders ends in.
pub(super) const UNDISTURBED: &str = ", cores there";
pub(super) const KERNEL_BUSY: &str = "wire to wire, kernel busy";
pub(super) const KERNEL_EPOLL: &str = "wire to wire, kernel epoll";
pub(super) const KERNEL_AWAKE: &str = "wire to wire, kernel epoll, awake";

/// Orders of each of two rows that are compared, at least: of fewer none is the 999th of 1,000.
const COMPARED: u64 = 1_000;

/// What the feed went through.
#[derive(Debug, Clone, Serialize)]
pub struct FeedReport {
    /// Messages that the exchange sent.
    pub messages: u64,
    /// Packets that were lost on purpose.
    pub dropped: u64,
    /// Packets that came behind the next one on purpose.
    pub reordered: u64,
    /// Messages that both lines lost at a time.
    pub burst: u64,
    /// Times that messages were missing.
    pub gaps: u64,
    /// Requests for them.
    pub requests: u64,
    /// Messages given up.
    pub lost: u64,
    /// Number of the message that a late join went on from; 0 if there was none.
    pub joined_at: u64,
    /// Longest time from a gap's first sign to its end, ns.
    pub longest_recovery_ns: u64,
    /// Orders.
    pub orders: u64,
    /// Levels of the engine's books in the end, each as the exchange has it.
    pub levels: usize,
    /// How far the frames' time stamps may be off, ns.
    pub stamp_error_ns: u64,
    /// Time stamps behind the book that they led to: they are in no row.
    pub impossible_stamps: u64,
}

/// One row of the table, for programs; times in nanoseconds.
#[derive(Debug, Clone, Serialize)]
pub struct RowReport {
    /// What was measured.
    pub name: String,
    /// How often.
    pub count: u64,
    /// Percentiles.
    pub p50: u64,
    /// 99 of 100 took no longer.
    pub p99: u64,
    /// 999 of 1000.
    pub p999: u64,
    /// 99,999 of 100,000.
    pub p99999: u64,
    /// The longest.
    pub max: u64,
}

/// How many times as long as ours theirs took, if there are enough of both to say so.
fn compared(ours: &Histogram<u64>, theirs: &Histogram<u64>) -> String {
    let least = ours.len().min(theirs.len());
    if least < COMPARED {
        return format!("not compared, {least} orders are too few, {COMPARED} are needed");
    }
    let [p50, p999] = [50.0, 99.9].map(|percentile| {
        let [ours, theirs] = [ours, theirs].map(|times| times.value_at_percentile(percentile));
        theirs as f64 / ours.max(1) as f64
    });
    format!("{p50:.1} times ours at p50, {p999:.1} at p99.9")
}

/// What was measured.
#[derive(Debug)]
pub struct Report {
    pub(super) rows: Vec<Row>,
    pub(super) feed: FeedReport,
    /// What is said of the cores.
    pub(super) away: String,
    pub(super) interval_ns: u64,
    pub(super) cores: Option<[CoreId; 2]>,
    pub(super) realtime: bool,
    pub(super) without_baseline: bool,
    pub(super) counters: Counters,
}

impl Report {
    /// The rows, for programs.
    pub fn rows(&self) -> Vec<RowReport> {
        let row = |Row { name, times }: &Row| RowReport {
            name: name.clone(),
            count: times.len(),
            p50: times.value_at_percentile(50.0),
            p99: times.value_at_percentile(99.0),
            p999: times.value_at_percentile(99.9),
            p99999: times.value_at_percentile(99.999),
            max: times.max(),
        };
        self.rows.iter().map(row).collect()
    }

    /// What the feed of the run on queues went through.
    pub const fn feed(&self) -> &FeedReport {
        &self.feed
    }

    /// All that the engine on queues counted.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The histograms as an SVG document.
    pub fn svg(&self) -> String {
        svg(
            "tick to trade: our queues on the model, and kernel sockets (neither is a NIC's)",
            &self.rows,
        )
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let feed = &self.feed;
        let mut text = format!(
            "tick to trade, an offer every {} us, {} orders\n\n{}\n",
            self.interval_ns / 1_000,
            feed.orders,
            table(&self.rows),
        );
        if let Some([engine, exchange]) = self.cores {
            text += &format!("engine on core {}, exchange on core {}", engine.id, exchange.id);
            text += if self.realtime { ", both of real-time priority\n" } else { "\n" };
        }
        text += &self.away;
        text += &format!(
            "The machine took a core when a round of a polling thread that had nothing to do took \
             {} us or more and the kernel knows of no other thread and of no sleep: what it takes \
             during work is in every row.\n",
            SUSPICIOUS_NS / 1_000,
        );
        if !self.without_baseline {
            text += "A thread that sleeps in epoll cannot see that its core is away; beside that \
                     of the rows \"awake\" one of the idle class spins, and sees it.\n";
        }
        text += "Our code and the software model on this machine, or the kernel's sockets: no row \
                 is a NIC's.\n";
        text += &format!(
            "wire to book: the device's clock is known to {} ns; {} time stamps lie behind their \
             book, and are not in that row\n",
            feed.stamp_error_ns, feed.impossible_stamps,
        );
        text += &format!(
            "feed: {} messages, {} packets lost on purpose and a burst of {} messages, {} \
             reordered; {} gaps, {} requests, {} messages given up, longest recovery {:.1} us; in \
             the end {} price levels, each as the exchange has it\n",
            feed.messages,
            feed.dropped,
            feed.burst,
            feed.reordered,
            feed.gaps,
            feed.requests,
            feed.lost,
            feed.longest_recovery_ns as f64 / 1_000.0,
            feed.levels,
        );
        let row = |name: String| self.rows.iter().find(|row| row.name == name);
        // What nobody saw of the sleeper's core cannot be compared with what was seen of ours.
        for (kernel, which) in [KERNEL_BUSY, KERNEL_EPOLL, KERNEL_AWAKE]
            .into_iter()
            .flat_map(|kernel| ["", UNDISTURBED].map(|which| (kernel, which)))
            .filter(|&row| row != (KERNEL_EPOLL, UNDISTURBED))
        {
            let names = [WHOLE, kernel].map(|name| format!("{name}{which}"));
            if let [Some(ours), Some(theirs)] = names.map(row) {
                text += &format!("{kernel}{which}: {}\n", compared(&ours.times, &theirs.times));
            }
        }
        if self.without_baseline {
            text += "skipped: no comparison with the kernel's sockets (as root: \
                     scripts/net/trading.sh)\n";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::histogram;

    #[test]
    fn rows_of_too_few_orders_are_not_compared() {
        let [mut ours, mut theirs] = [histogram(), histogram()];
        for order in 0..COMPARED {
            ours.record(if order < 500 { 10 } else { 100 }).unwrap();
            theirs.record(if order < 500 { 105 } else { 2_000 }).unwrap();
        }
        assert_eq!(compared(&ours, &theirs), "10.5 times ours at p50, 20.0 at p99.9");
        theirs.reset();
        theirs.record_n(1_000_000, COMPARED - 1).unwrap();
        let expected = "not compared, 999 orders are too few, 1000 are needed";
        assert_eq!(
            (compared(&ours, &theirs), compared(&theirs, &ours)),
            (expected.into(), expected.into())
        );
    }
}
