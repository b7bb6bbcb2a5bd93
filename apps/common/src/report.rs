//! Numbers for people, JSON for programs.

use std::{
    fmt::Write as _,
    fs, io,
    io::Write as _,
    path::{Path, PathBuf},
    str::FromStr,
};

use serde::Serialize;
use thiserror::Error;

/// A count or rate with three significant digits and a decimal prefix: `3.21 M`.
///
/// Values below 1000 are printed whole. Not a number and infinity are printed as `-`.
#[must_use]
pub fn short(value: f64) -> String {
    if !value.is_finite() {
        return "-".into();
    }
    let mut scaled = value;
    for prefix in ["", "k", "M", "G", "T"] {
        // The largest value that still prints with three digits below 1000.
        if scaled.abs() < 999.5 || prefix == "T" {
            let space = if prefix.is_empty() { "" } else { " " };
            let digits = match scaled.abs() {
                _ if prefix.is_empty() => 0,
                s if s < 9.995 => 2,
                s if s < 99.95 => 1,
                _ => 0,
            };
            return format!("{scaled:.digits$}{space}{prefix}");
        }
        scaled /= 1000.0;
    }
    unreachable!("the last prefix always returns")
}

/// `part` of `whole` in percent with one decimal; `-` of nothing.
#[must_use]
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".into();
    }
    #[expect(clippy::cast_precision_loss, reason = "three digits are printed")]
    let share = part as f64 * 100.0 / whole as f64;
    format!("{share:.1}%")
}

/// A plain-text table: the first column to the left, all others to the right.
#[derive(Debug, Clone, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    #[must_use]
    pub fn new(headings: &[&str]) -> Self {
        Self { rows: vec![headings.iter().map(ToString::to_string).collect()] }
    }

    /// Adds a row. A row shorter than the headings ends early.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table, each line ended by a newline.
    #[must_use]
    pub fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                // Writing to a string cannot fail.
                let _ = match column {
                    0 => write!(line, "{cell:<width$}"),
                    _ => write!(line, "  {cell:>width$}"),
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Writes text for people, to whom it may concern: a reader that is gone ends nothing, unlike with
/// `println!` (see [`log::init`](crate::log::init)). For programs that serve others meanwhile.
pub fn say(text: &str, mut out: impl io::Write) {
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Where a JSON report goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JsonTarget {
    /// Standard output, as `-`.
    Stdout,
    /// A file, replaced as a whole.
    File(PathBuf),
}

/// A report could not be written.
#[derive(Debug, Error)]
#[error("cannot write the report to {target}: {source}; name a writable file or `-`")]
pub struct ReportError {
    target: String,
    source: io::Error,
}

impl JsonTarget {
    /// Checks that a report can be written later, before a long run: the folder must exist.
    ///
    /// # Errors
    /// [`ReportError`] if the folder of the file is not there.
    pub fn check(&self) -> Result<(), ReportError> {
        let Self::File(path) = self else { return Ok(()) };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        match folder.unwrap_or(Path::new(".")).metadata() {
            Ok(_) if path.is_dir() => Err(self.error(io::ErrorKind::IsADirectory.into())),
            Ok(data) if data.is_dir() => Ok(()),
            Ok(_) => Err(self.error(io::ErrorKind::NotADirectory.into())),
            Err(source) => Err(self.error(source)),
        }
    }

    /// Writes `report` as indented JSON and a newline.
    ///
    /// # Errors
    /// [`ReportError`] with the reason of the system.
    pub fn write(&self, report: &impl Serialize) -> Result<(), ReportError> {
        let mut text = serde_json::to_string_pretty(report)
            .map_err(|error| self.error(io::Error::other(error)))?;
        text.push('\n');
        match self {
            Self::Stdout => io::stdout().write_all(text.as_bytes()),
            Self::File(path) => fs::write(path, text),
        }
        .map_err(|source| self.error(source))
    }

    fn error(&self, source: io::Error) -> ReportError {
        let target = match self {
            Self::Stdout => "standard output".into(),
            Self::File(path) => path.display().to_string(),
        };
        ReportError { target, source }
    }
}

impl FromStr for JsonTarget {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(if text == "-" { Self::Stdout } else { Self::File(text.into()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_keeps_three_digits_across_each_prefix() {
        let cases = [
            (0.0, "0"),
            (999.4, "999"),
            (999.5, "1.00 k"),
            (1000.0, "1.00 k"),
            (9_994.0, "9.99 k"),
            (9_996.0, "10.0 k"),
            (99_960.0, "100 k"),
            (999_499.0, "999 k"),
            (999_600.0, "1.00 M"),
            (3_214_000.0, "3.21 M"),
            (14_880_952.0, "14.9 M"),
            (1.0e9, "1.00 G"),
            (1.0e16, "10000 T"),
            (-1500.0, "-1.50 k"),
            (f64::NAN, "-"),
            (f64::INFINITY, "-"),
        ];
        for (value, text) in cases {
            assert_eq!(short(value), text, "{value}");
        }
    }

    #[test]
    fn percent_of_nothing_is_a_dash() {
        assert_eq!(percent(1, 0), "-");
        assert_eq!(percent(1, 3), "33.3%");
        assert_eq!(percent(u64::MAX, u64::MAX), "100.0%");
    }

    #[test]
    fn a_table_aligns_its_columns() {
        let mut table = Table::new(&["mode", "Mpps"]);
        table.row(["io".into(), "3.21".into()]);
        table.row(["macswap".into()]);
        assert_eq!(table.render(), "mode     Mpps\nio       3.21\nmacswap\n");
    }

    #[test]
    fn json_goes_to_a_file_and_errors_name_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        let target: JsonTarget = path.display().to_string().parse().unwrap();
        target.check().unwrap();
        target.write(&[1, 2]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "[\n  1,\n  2\n]\n");
        let target = JsonTarget::File("/nonexistent/report.json".into());
        let error = target.check().unwrap_err().to_string();
        assert!(error.contains("/nonexistent/report.json"), "{error}");
        assert_eq!(target.write(&1).unwrap_err().to_string(), error);
        assert!(JsonTarget::File(folder.path().into()).check().is_err());
        assert_eq!("-".parse(), Ok(JsonTarget::Stdout));
        assert!(JsonTarget::Stdout.check().is_ok());
    }
}
