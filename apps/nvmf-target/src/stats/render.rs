//! A [`Snapshot`] as text, JSON and Prometheus' text.

use std::fmt::Write;

use ferrocx_app_common::report::Table;

use super::{Snapshot, Times, TimesOfBoth};
use crate::proto::log::Traffic;

fn us(ns: u64) -> String {
    format!("{}.{}", ns / 1000, ns / 100 % 10)
}

/// What was moved, as cells: commands, failed, reads, KiB, writes, KiB.
fn cells(moved: &Traffic) -> [String; 6] {
    let Traffic { commands, errors, reads, writes, bytes_read, bytes_written } = moved;
    [commands, errors, reads, &(bytes_read >> 10), writes, &(bytes_written >> 10)]
        .map(u64::to_string)
}

const MOVED: [&str; 6] = ["commands", "failed", "reads", "KiB", "writes", "KiB"];

fn times(it: &TimesOfBoth) -> [String; 4] {
    [it.reads.p50_ns, it.reads.p99_ns, it.writes.p50_ns, it.writes.p99_ns].map(us)
}

const TIMES: [&str; 4] = ["read p50 us", "p99", "write p50 us", "p99"];

/// A label's value. Source: Prometheus, "Text-based format".
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Labels, and how a number is got from a line of what they name.
type Metric<'a> = (&'a str, &'a str, &'a dyn Fn(&Traffic) -> u64);

impl Snapshot {
    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut pollers = Table::new(&[
            "core",
            "queues",
            "accepted",
            "refused",
            "ended",
            "by failures",
            "waits",
            "for buffers",
            "free buffers",
            "small",
            "lost",
            "over share",
        ]);
        for it in &self.pollers {
            let all = [it.queues, it.accepted, it.rejected, it.ended, it.failed, it.waits];
            let free = [it.buffer_waits, it.free_buffers, it.free_small_buffers];
            let rest = [it.lost_buffers, it.refused_shares];
            let all = all.into_iter().chain(free).chain(rest).map(|it| it.to_string());
            pollers.row(std::iter::once(it.poller.to_string()).chain(all));
        }
        let mut hosts = Table::new(&[&["host", "queues"], &MOVED[..]].concat());
        for it in &self.hosts {
            let name = [it.host.clone(), it.queues.to_string()];
            hosts.row(name.into_iter().chain(cells(&it.moved)));
        }
        let mut namespaces = Table::new(&[&["namespace"], &MOVED[2..], &TIMES[..]].concat());
        for it in &self.namespaces {
            let name = [format!("{} of {}", it.nsid, it.nqn)];
            let moved = cells(&it.moved).into_iter().skip(2);
            namespaces.row(name.into_iter().chain(moved).chain(times(&it.times)));
        }
        let headings = [&["queue", "core", "host"], &MOVED[..], &TIMES[..]].concat();
        let mut queues = Table::new(&headings);
        for it in &self.queues {
            let name = &it.name;
            let which = format!("{}:{}", name.cntlid, name.qid);
            let row = [which, name.poller.to_string(), name.host.clone()];
            queues.row(row.into_iter().chain(cells(&it.moved)).chain(times(&it.times)));
        }
        let tables = [pollers, hosts, namespaces, queues];
        tables.iter().map(Table::render).collect::<Vec<_>>().join("\n")
    }

    /// One line of JSON.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// For Prometheus. Source: Prometheus, "Text-based format".
    #[must_use]
    pub fn prometheus(&self) -> String {
        let mut text = String::new();
        self.poller_metrics(&mut text);
        let hosts: Vec<(String, &Traffic)> = self
            .hosts
            .iter()
            .map(|it| (format!("host=\"{}\"", escaped(&it.host)), &it.moved))
            .collect();
        let namespaces: Vec<(String, &Traffic)> = self
            .namespaces
            .iter()
            .map(|it| (format!("nqn=\"{}\",nsid=\"{}\"", escaped(&it.nqn), it.nsid), &it.moved))
            .collect();
        let all: [Metric<'_>; 6] = [
            ("commands", "Commands of any kind.", &|it| it.commands),
            ("errors", "Commands that failed.", &|it| it.errors),
            ("reads", "Commands that read.", &|it| it.reads),
            ("writes", "Commands that wrote.", &|it| it.writes),
            ("read_bytes", "Bytes that were read.", &|it| it.bytes_read),
            ("written_bytes", "Bytes that were written.", &|it| it.bytes_written),
        ];
        for (name, help, number) in all {
            metric(&mut text, &format!("host_{name}_total"), "counter", help);
            for (labels, moved) in &hosts {
                line(&mut text, &format!("host_{name}_total"), labels, number(moved));
            }
        }
        // Cores count a namespace's reads and writes; what else came is a queue's.
        for (name, help, number) in &all[2..] {
            metric(&mut text, &format!("namespace_{name}_total"), "counter", help);
            for (labels, moved) in &namespaces {
                line(&mut text, &format!("namespace_{name}_total"), labels, number(moved));
            }
        }
        self.queue_metrics(&mut text);
        text
    }

    fn poller_metrics(&self, text: &mut String) {
        type Get = fn(&super::PollerLine) -> u64;
        let all: [(&str, &str, &str, Get); 11] = [
            ("queues", "gauge", "Queues that are connected.", |it| it.queues),
            ("queues_accepted_total", "counter", "Queues that were accepted.", |it| it.accepted),
            ("queues_refused_total", "counter", "Queues that were refused.", |it| it.rejected),
            ("queues_ended_total", "counter", "Queues that have ended.", |it| it.ended),
            ("queues_failed_total", "counter", "Queues that a failure ended.", |it| it.failed),
            ("waits_total", "counter", "Times that a command waited for room.", |it| it.waits),
            ("buffer_waits_total", "counter", "Of these, for a buffer.", |it| it.buffer_waits),
            ("free_buffers", "gauge", "Large buffers that no command holds.", |it| it.free_buffers),
            ("free_small_buffers", "gauge", "The same, small ones.", |it| it.free_small_buffers),
            ("lost_buffers", "gauge", "Buffers lost to stuck drives.", |it| it.lost_buffers),
            ("shares_refused_total", "counter", "Refused above a share.", |it| it.refused_shares),
        ];
        for (name, kind, help, number) in all {
            metric(text, name, kind, help);
            for it in &self.pollers {
                line(text, name, &format!("core=\"{}\"", it.poller), number(it));
            }
        }
    }

    fn queue_metrics(&self, text: &mut String) {
        let labels = |it: &super::QueueLine| {
            let super::QueueName { host, nqn, cntlid, qid, poller, .. } = &it.name;
            let (host, nqn) = (escaped(host), escaped(nqn));
            format!(
                "host=\"{host}\",nqn=\"{nqn}\",cntlid=\"{cntlid}\",qid=\"{qid}\",core=\"{poller}\""
            )
        };
        metric(text, "queue_commands_total", "counter", "Commands of any kind.");
        for it in &self.queues {
            line(text, "queue_commands_total", &labels(it), it.moved.commands);
        }
        let help = format!("Time in the target of one command in {}.", super::TIMED_EVERY);
        metric(text, "queue_seconds", "summary", &help);
        for it in &self.queues {
            summary(text, "queue_seconds", &labels(it), &it.times);
        }
        metric(text, "namespace_seconds", "summary", &help);
        for it in &self.namespaces {
            let labels = format!("nqn=\"{}\",nsid=\"{}\"", escaped(&it.nqn), it.nsid);
            summary(text, "namespace_seconds", &labels, &it.times);
        }
    }
}

fn metric(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP nvmf_target_{name} {help}\n# TYPE nvmf_target_{name} {kind}");
}

fn line(text: &mut String, name: &str, labels: &str, value: u64) {
    let _ = writeln!(text, "nvmf_target_{name}{{{labels}}} {value}");
}

fn summary(text: &mut String, name: &str, labels: &str, times: &TimesOfBoth) {
    let secs = |ns: u64| ns as f64 / 1e9;
    for (what, it) in [("read", &times.reads), ("write", &times.writes)] {
        let Times { count, sum_ns, p50_ns, p90_ns, p99_ns, p999_ns, .. } = it;
        let labels = format!("{labels},command=\"{what}\"");
        for (quantile, ns) in
            [("0.5", p50_ns), ("0.9", p90_ns), ("0.99", p99_ns), ("0.999", p999_ns)]
        {
            let value = secs(*ns);
            let _ =
                writeln!(text, "nvmf_target_{name}{{{labels},quantile=\"{quantile}\"}} {value:e}");
        }
        let _ = writeln!(text, "nvmf_target_{name}_sum{{{labels}}} {:e}", secs(*sum_ns));
        let _ = writeln!(text, "nvmf_target_{name}_count{{{labels}}} {count}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::{NamespaceStats, QueueName, Registry, ServerStats};
    use super::*;

    const TRAFFIC: Traffic = Traffic {
        commands: 11,
        errors: 12,
        reads: 13,
        bytes_read: 14 << 10,
        writes: 15,
        bytes_written: 16 << 10,
    };

    fn filled() -> (Registry, Arc<super::super::QueueStats>) {
        let registry = Registry::default();
        let stats = ServerStats { queues: 1, accepted: 2, ..ServerStats::default() };
        registry.add_poller().publish(&stats, [7, 9]);
        let name = QueueName {
            host: "nqn.2014-08.a:\"h".into(),
            nqn: "nqn.2014-08.a:s".into(),
            cntlid: 3,
            qid: 1,
            peer: "192.0.2.2:4000".parse().unwrap(),
            poller: 0,
        };
        let queue = registry.add_queue(name);
        queue.set_known();
        queue.moved.publish(&TRAFFIC);
        queue.times[0].record(Duration::from_micros(20));
        // Two cores count the same namespace.
        for _ in 0..2 {
            let namespace = Arc::new(NamespaceStats::new("nqn.2014-08.a:s", 9));
            namespace.moved.publish(&TRAFFIC);
            namespace.times[1].record(Duration::from_micros(30));
            registry.add_namespace(&namespace);
        }
        (registry, queue)
    }

    #[test]
    fn all_three_forms_have_the_numbers() {
        let (registry, queue) = filled();
        let snapshot = registry.snapshot();
        let text = snapshot.text();
        for part in ["3:1", "nqn.2014-08.a:\"h", "9 of nqn.2014-08.a:s", "26", "28"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let json: serde_json::Value = serde_json::from_str(&snapshot.json()).unwrap();
        assert_eq!(json["queues"][0]["bytes_written"], 16 << 10);
        assert_eq!(json["queues"][0]["times"]["reads"]["count"], 1);
        assert_eq!(json["namespaces"][0]["reads"], 26);
        assert_eq!(json["namespaces"][0]["times"]["writes"]["count"], 2);
        assert_eq!(json["pollers"][0]["free_buffers"], 7);
        assert_eq!(json["pollers"][0]["free_small_buffers"], 9);
        let prometheus = snapshot.prometheus();
        for line in [
            "nvmf_target_queues{core=\"0\"} 1",
            "nvmf_target_host_commands_total{host=\"nqn.2014-08.a:\\\"h\"} 11",
            "nvmf_target_namespace_reads_total{nqn=\"nqn.2014-08.a:s\",nsid=\"9\"} 26",
        ] {
            assert!(prometheus.lines().any(|it| it == line), "{line}: {prometheus}");
        }
        // Every name has its type before its first line, and once.
        for name in prometheus.lines().filter_map(|it| it.strip_prefix("# TYPE ")) {
            let name = name.split(' ').next().unwrap();
            let types = prometheus.matches(&format!("# TYPE {name} ")).count();
            assert_eq!(types, 1, "{name}");
        }
        // What an ended queue moved stays its host's.
        registry.remove_queue(&queue);
        let snapshot = registry.snapshot();
        assert_eq!((snapshot.queues.len(), snapshot.hosts[0].queues), (0, 0));
        assert_eq!(snapshot.hosts[0].moved, TRAFFIC);
    }

    /// Sums of a host never shrink, whoever names it and comes and goes.
    #[test]
    fn a_queue_whose_host_is_not_let_in_is_not_its_host_s() {
        let (registry, queue) = filled();
        let sums = || -> Vec<(String, u64, u64)> {
            let hosts = registry.snapshot().hosts;
            hosts.into_iter().map(|it| (it.host, it.queues, it.moved.commands)).collect()
        };
        let name = queue.name.host.clone();
        let of_host = |queues, commands| (name.clone(), queues, commands);
        let [stranger, late] = [(); 2].map(|()| {
            let queue = registry.add_queue(queue.name.clone());
            queue.moved.publish(&TRAFFIC);
            queue
        });
        assert_eq!(registry.snapshot().queues.len(), 3);
        assert_eq!(sums(), [of_host(1, 11)]);
        late.set_known();
        assert_eq!(sums(), [of_host(2, 22)]);
        let others = || ("others".to_owned(), 0, 11);
        registry.remove_queue(&stranger);
        assert_eq!(sums(), [of_host(2, 22), others()]);
        registry.remove_queue(&late);
        assert_eq!(sums(), [of_host(1, 22), others()]);
    }
}
