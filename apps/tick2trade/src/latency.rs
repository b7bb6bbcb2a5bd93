//! Times of events, as histograms: percentiles as a table, and as a picture.

use std::fmt::Write;
use std::sync::OnceLock;

use ferrocx_app_common::report::Table;
use hdrhistogram::Histogram;
use nix::time::{ClockId, clock_gettime};

/// The longest time that is told apart, ns; longer ones count as this.
const LONGEST_NS: u64 = 10_000_000_000;
/// Percentiles of a table.
const PERCENTILES: [(&str, f64); 6] = [
    ("p50", 50.0),
    ("p90", 90.0),
    ("p99", 99.0),
    ("p99.9", 99.9),
    ("p99.99", 99.99),
    ("p99.999", 99.999),
];

/// An empty histogram of times in nanoseconds, to three digits. Recording allocates nothing.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("the bounds are constants that are right")
}

/// Nanoseconds since this was first asked for, of the machine's monotonic clock: on x86 the time
/// stamp counter, read without a system call.
#[inline]
pub fn now_ns() -> u64 {
    static START: OnceLock<u64> = OnceLock::new();
    // This clock is on every Linux, and neither part of its time is negative.
    let now_ns = clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |now| now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64);
    now_ns.wrapping_sub(*START.get_or_init(|| now_ns))
}

/// A named histogram.
#[derive(Debug, Clone)]
pub struct Row {
    /// What was measured.
    pub name: String,
    /// How long it took.
    pub times: Histogram<u64>,
}

impl Row {
    /// A row of a table.
    pub fn new(name: impl Into<String>, times: &Histogram<u64>) -> Self {
        Self { name: name.into(), times: times.clone() }
    }
}

/// Microseconds with as many digits as are worth showing.
fn us(ns: u64) -> String {
    let us = ns as f64 / 1_000.0;
    if us < 100.0 { format!("{us:.2}") } else { format!("{us:.0}") }
}

/// A table of percentiles, in microseconds.
pub fn table(rows: &[Row]) -> String {
    let headings: Vec<&str> = ["us", "count", "min"]
        .into_iter()
        .chain(PERCENTILES.map(|(name, _)| name))
        .chain(["max"])
        .collect();
    let mut table = Table::new(&headings);
    for Row { name, times } in rows.iter().filter(|row| !row.times.is_empty()) {
        let at = PERCENTILES.map(|(_, percentile)| us(times.value_at_percentile(percentile)));
        table.row(
            [name.clone(), times.len().to_string(), us(times.min())]
                .into_iter()
                .chain(at)
                .chain([us(times.max())]),
        );
    }
    table.render()
}

/// Width and height of a picture, and the margin around what is plotted.
const SIZE: (f64, f64) = (880.0, 480.0);
const MARGIN: f64 = 60.0;
/// Nines of the axis of percentiles: 99.999 % are five.
const NINES: f64 = 5.0;
const COLOURS: [&str; 6] = ["#0b6e99", "#d9480f", "#2b8a3e", "#862e9c", "#c92a2a", "#495057"];

/// What a line is made of when all colours are used: three times as many rows differ.
const DASHES: [&str; 3] = ["", " stroke-dasharray=\"8 4\"", " stroke-dasharray=\"2 3\""];

/// A picture of the rows: time over percentile, both axes logarithmic, as an SVG document.
pub fn svg(title: &str, rows: &[Row]) -> String {
    let rows: Vec<&Row> = rows.iter().filter(|row| !row.times.is_empty()).collect();
    let low = rows.iter().map(|row| row.times.min().max(1)).min().unwrap_or(1) as f64;
    let high = rows.iter().map(|row| row.times.max()).max().unwrap_or(10) as f64;
    let (low, high) = (low.log10().floor(), high.log10().ceil().max(low.log10().floor() + 1.0));
    let (width, height) = (SIZE.0 - 2.0 * MARGIN, SIZE.1 - 2.0 * MARGIN);
    let x = |nines: f64| MARGIN + width * nines / NINES;
    let y = |ns: f64| MARGIN + height * (1.0 - (ns.max(1.0).log10() - low) / (high - low));
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{MARGIN}\" y=\"24\" font-size=\"15\">{}</text>\n",
        SIZE.0,
        SIZE.1,
        escaped(title),
    );
    let mut line = |from: (f64, f64), to: (f64, f64), label: (f64, f64, &str, String)| {
        let _ = writeln!(
            out,
            "<path d=\"M{:.1} {:.1}L{:.1} {:.1}\" stroke=\"#dddddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{}\">{}</text>",
            from.0, from.1, to.0, to.1, label.0, label.1, label.2, label.3
        );
    };
    for decade in low as i32..=high as i32 {
        let at = y(10_f64.powi(decade));
        let label = match decade {
            ..3 => format!("{} ns", 10_u64.pow(decade.max(0) as u32)),
            3..6 => format!("{} us", 10_u64.pow(decade as u32 - 3)),
            6..9 => format!("{} ms", 10_u64.pow(decade as u32 - 6)),
            _ => format!("{} s", 10_u64.pow(decade as u32 - 9)),
        };
        let place = (MARGIN - 6.0, at + 4.0, "end", label);
        line((MARGIN, at), (SIZE.0 - MARGIN, at), place);
    }
    for (nines, label) in ["0", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %"].iter().enumerate()
    {
        let at = x(nines as f64);
        let place = (at, SIZE.1 - MARGIN + 18.0, "middle", (*label).to_owned());
        line((at, MARGIN), (at, SIZE.1 - MARGIN), place);
    }
    for (index, row) in rows.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let dashes = DASHES[index / COLOURS.len() % DASHES.len()];
        let points: String = (0..=250)
            .map(|step| {
                let nines = NINES * f64::from(step) / 250.0;
                let quantile = 1.0 - 10_f64.powf(-nines);
                let ns = row.times.value_at_quantile(quantile) as f64;
                format!("{:.1},{:.1} ", x(nines), y(ns))
            })
            .collect();
        let _ = writeln!(
            out,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes} \
             points=\"{points}\"/>\
             <path d=\"M{:.1} {:.1}h24\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{}</text>",
            MARGIN + 12.0,
            MARGIN + 14.0 + 16.0 * index as f64,
            MARGIN + 42.0,
            MARGIN + 18.0 + 16.0 * index as f64,
            escaped(&row.name),
        );
    }
    out + "</svg>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn row() -> Row {
        let mut times = histogram();
        (1..=1_000).for_each(|us| times.record(us * 1_000).unwrap());
        Row::new("a < b", &times)
    }

    #[test]
    fn percentiles_are_those_of_what_was_recorded() {
        let table = table(&[row(), Row::new("nothing", &histogram())]);
        let line = table.lines().find(|line| line.contains("a < b")).unwrap();
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells[3..7], ["1000", "1.00", "500", "900"]);
        assert_eq!(cells.last(), Some(&"1000"));
        assert!(!table.contains("nothing"));
    }

    #[test]
    fn a_picture_has_a_line_for_each_row_and_no_bare_angle() {
        let svg = svg("title", &[row(), row(), Row::new("nothing", &histogram())]);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("a &lt; b") && svg.contains(">1 ms<") && svg.ends_with("</svg>\n"));
        // Of as many rows as a run has, no two look alike.
        let rows: Vec<Row> = (0..13).map(|_| row()).collect();
        let lines = super::svg("title", &rows);
        let styles: BTreeSet<&str> = lines
            .lines()
            .filter(|line| line.starts_with("<polyline"))
            .filter_map(|line| line.split(" points=").next())
            .collect();
        assert_eq!(styles.len(), 13);
        // All points lie inside.
        let points = svg.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        for point in points.split_whitespace() {
            let (x, y) = point.split_once(',').unwrap();
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            assert!((MARGIN..=SIZE.0 - MARGIN).contains(&x), "{x}");
            assert!((MARGIN - 1.0..=SIZE.1 - MARGIN + 1.0).contains(&y), "{y}");
        }
    }
}
