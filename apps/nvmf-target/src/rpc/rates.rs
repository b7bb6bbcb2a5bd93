//! What is moved in a second, between two statistics.

use std::time::Duration;

use ferrocx_app_common::report::Table;
use serde_json::Value;

/// Counters, by what is shown of them, and what a second's worth is divided by.
const SHOWN: [(&str, &str, f64); 4] = [
    ("reads", "reads/s", 1.0),
    ("bytes_read", "MiB/s", 1_048_576.0),
    ("writes", "writes/s", 1.0),
    ("bytes_written", "MiB/s", 1_048_576.0),
];

/// Rates of hosts and of namespaces, as text. What was not there before has counted from 0.
pub(super) fn text(before: &Value, now: &Value, time: Duration) -> String {
    let hosts = table((before, now), "hosts", &["host"], time);
    let namespaces = table((before, now), "namespaces", &["nsid", "nqn"], time);
    format!("{hosts}\n{namespaces}\n")
}

fn table((before, now): (&Value, &Value), list: &str, names: &[&str], time: Duration) -> String {
    let headings: Vec<&str> = names.iter().copied().chain(SHOWN.map(|it| it.1)).collect();
    let mut table = Table::new(&headings);
    let lines = |of: &Value| of[list].as_array().cloned().unwrap_or_default();
    let all = lines(before);
    for line in lines(now) {
        let is_it = |it: &&Value| names.iter().all(|name| it[*name] == line[*name]);
        let old = all.iter().find(is_it);
        let count = |of: Option<&Value>, what: &str| of.and_then(|it| it[what].as_u64());
        let rates = SHOWN.map(|(what, _, unit)| {
            let sum = count(Some(&line), what).unwrap_or(0);
            let more = sum.saturating_sub(count(old, what).unwrap_or(0));
            format!("{:.1}", more as f64 / unit / time.as_secs_f64())
        });
        let name = |name: &&str| match &line[*name] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        table.row(names.iter().map(name).chain(rates));
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rates_are_what_came_in_the_time() {
        let line = |nsid: u32, reads: u64, written: u64| {
            json!({"nqn": "nqn.a", "nsid": nsid, "reads": reads, "bytes_read": reads << 12,
                "writes": 3, "bytes_written": written})
        };
        let before = json!({"hosts": [], "namespaces": [line(1, 100, 0)]});
        let now = json!({"hosts": [], "namespaces": [line(1, 612, 3 << 20), line(2, 0, 0)]});
        let text = text(&before, &now, Duration::from_secs(2));
        let rows: Vec<Vec<&str>> = text.lines().map(|it| it.split_whitespace().collect()).collect();
        let row = |cells: [&str; 6]| rows.iter().any(|it| *it == cells);
        assert!(row(["1", "nqn.a", "256.0", "1.0", "0.0", "1.5"]), "{text}");
        assert!(row(["2", "nqn.a", "0.0", "0.0", "1.5", "0.0"]), "{text}");
    }
}
