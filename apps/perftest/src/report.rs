//! What came of it: a table for people, JSON for programs, a script for gnuplot.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use anyhow::Result;
use ferrocx_app_common::report::{Table, short};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::measure::{Kind, Measure, Test};

/// Quantiles that are printed, and what they are called.
const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

/// Longest time that a histogram tells from longer ones, in nanoseconds.
const MAX_NS: u64 = 60_000_000_000;

/// A histogram that allocates nothing while it records.
///
/// # Errors
///
/// Never: the bounds are right.
pub fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, MAX_NS, 3)?)
}

/// A round.
#[derive(Debug)]
pub struct Row {
    /// Bytes of a message.
    pub size: usize,
    /// Messages on the way on each queue pair at most.
    pub on_the_way: usize,
    /// Messages of all queue pairs.
    pub messages: u64,
    /// From the first post to the last end.
    pub seconds: f64,
    /// Rings of doorbells.
    pub doorbells: u64,
    /// Messages whose bytes were checked, at both ends.
    pub checked: u64,
    /// Times of single messages, there and back, in nanoseconds; empty for bandwidth.
    pub times: Histogram<u64>,
}

impl Row {
    fn rate(&self) -> f64 {
        self.messages as f64 / self.seconds
    }

    fn mib_per_second(&self) -> f64 {
        self.rate() * self.size as f64 / f64::from(1 << 20)
    }
}

/// All rounds of a run.
#[derive(Debug)]
pub struct Report {
    /// What was measured.
    pub measure: Measure,
    /// On what: `model` or `device`.
    pub group: &'static str,
    /// Its name.
    pub device: String,
    /// The rounds.
    pub rows: Vec<Row>,
}

#[derive(Serialize)]
struct JsonRow {
    size_bytes: usize,
    on_the_way: usize,
    messages: u64,
    seconds: f64,
    messages_per_second: f64,
    mib_per_second: f64,
    doorbells: u64,
    messages_checked: u64,
    /// There and back, in microseconds.
    microseconds: Option<Latency>,
}

#[derive(Serialize)]
struct Latency {
    min: f64,
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

#[derive(Serialize)]
struct Json<'a> {
    /// Whose speed it is: `model/…` is never a NIC's.
    group: String,
    device: &'a str,
    measure: &'a Measure,
    rounds: Vec<JsonRow>,
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

impl Report {
    /// The name of the figures: `model/send_bw` and the like.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}_{}", self.group, self.measure.test.name(), self.measure.kind.name())
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let whose = match self.group {
            "model" => " (the model's speed, not a NIC's)",
            _ => "",
        };
        let measure = &self.measure;
        let mut text = format!("{} on {}{whose}", self.name(), self.device);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            ": {} queue pair(s), {} thread(s), inline up to {}, a completion every {}, a doorbell \
             every {}",
            measure.qps, measure.workers, measure.inline_bytes, measure.signal_every, measure.batch
        );
        text.push_str(&self.table().render());
        if measure.verify {
            let checked: u64 = self.rows.iter().map(|row| row.checked).sum();
            let _ = writeln!(text, "{checked} messages checked, every byte was right");
        }
        text
    }

    fn table(&self) -> Table {
        let is_lat = self.measure.kind == Kind::Lat;
        let round_trip = matches!(self.measure.test, Test::Send | Test::Write);
        let mut headings = vec!["bytes", "messages"];
        if is_lat {
            headings.push(if round_trip { "us there and back: mean" } else { "us each: mean" });
            headings.extend(QUANTILES.map(|(name, _)| name));
        } else {
            headings.extend(["on the way", "per second", "MiB/s", "doorbells"]);
        }
        let mut table = Table::new(&headings);
        for row in &self.rows {
            let mut cells = vec![row.size.to_string(), row.messages.to_string()];
            if is_lat {
                cells.push(format!("{:.2}", row.times.mean() / 1e3));
                let quantile = |(_, at)| format!("{:.2}", us(row.times.value_at_quantile(at)));
                cells.extend(QUANTILES.map(quantile));
            } else {
                cells.push(row.on_the_way.to_string());
                cells.push(short(row.rate()));
                cells.push(format!("{:.1}", row.mib_per_second()));
                cells.push(row.doorbells.to_string());
            }
            table.row(cells);
        }
        table
    }

    /// For programs.
    #[must_use]
    pub fn json(&self) -> impl Serialize + use<'_> {
        let row = |row: &Row| JsonRow {
            size_bytes: row.size,
            on_the_way: row.on_the_way,
            messages: row.messages,
            seconds: row.seconds,
            messages_per_second: row.rate(),
            mib_per_second: row.mib_per_second(),
            doorbells: row.doorbells,
            messages_checked: row.checked,
            microseconds: (!row.times.is_empty()).then(|| Latency {
                min: us(row.times.min()),
                mean: row.times.mean() / 1e3,
                p50: us(row.times.value_at_quantile(0.5)),
                p90: us(row.times.value_at_quantile(0.9)),
                p99: us(row.times.value_at_quantile(0.99)),
                p999: us(row.times.value_at_quantile(0.999)),
                max: us(row.times.max()),
            }),
        };
        Json {
            group: self.name(),
            device: &self.device,
            measure: &self.measure,
            rounds: self.rows.iter().map(row).collect(),
        }
    }

    /// A script for gnuplot with its data: `gnuplot -p FILE` shows it.
    #[must_use]
    pub fn plot(&self) -> String {
        let mut text = format!("# gnuplot -p FILE\nset title '{}'\nset grid\n", self.name());
        match self.measure.kind {
            Kind::Bw => self.plot_rates(&mut text),
            Kind::Lat => self.plot_times(&mut text),
        }
        text
    }

    fn plot_rates(&self, text: &mut String) {
        text.push_str("set logscale x 2\nset xlabel 'bytes'\nset ylabel 'MiB/s'\n");
        text.push_str("$rates << EOD\n");
        for row in &self.rows {
            let _ = writeln!(text, "{} {:.3} {:.1}", row.size, row.mib_per_second(), row.rate());
        }
        text.push_str("EOD\nplot $rates using 1:2 with linespoints title 'MiB/s'\n");
    }

    /// The share of messages that took at most so long, one curve for each size.
    fn plot_times(&self, text: &mut String) {
        text.push_str("set logscale x\nset xlabel 'us'\nset ylabel 'share of messages'\n");
        let mut curves = Vec::new();
        for (at, row) in self.rows.iter().enumerate() {
            let _ = writeln!(text, "$times{at} << EOD");
            let mut seen = 0;
            for value in row.times.iter_recorded() {
                seen += value.count_since_last_iteration();
                let share = seen as f64 / row.times.len() as f64;
                let _ = writeln!(text, "{:.3} {share:.6}", us(value.value_iterated_to()));
            }
            text.push_str("EOD\n");
            curves.push(format!("$times{at} using 1:2 with steps title '{} bytes'", row.size));
        }
        let _ = writeln!(text, "plot {}", curves.join(", "));
    }

    /// Writes the script.
    ///
    /// # Errors
    ///
    /// The system's reason.
    pub fn write_plot(&self, path: &Path) -> io::Result<()> {
        std::fs::write(path, self.plot())
    }
}
