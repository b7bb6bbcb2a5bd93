//! What a target has done: per core, host, namespace and queue, as text, JSON and Prometheus' text.
//!
//! The polling cores count for themselves ([`Counters`], [`Latency`]); a [`Registry`] knows whose
//! counters there are, and a [`Snapshot`] reads them from any other thread. A core takes the
//! registry's lock when a queue begins and ends, never for a command.

mod counters;
mod render;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use counters::{Counters, Latency, TIMED_EVERY};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::proto::log::Traffic;

/// Hosts whose sums are kept after their queues have ended; those of others are one sum.
const MAX_HOSTS: usize = 1024;
/// Name of that sum.
const OTHERS: &str = "others";

/// A queue of a host, as its core counts.
#[derive(Debug)]
pub struct QueueStats {
    /// Whose it is, and where it runs.
    pub name: QueueName,
    /// What it moved.
    pub moved: Counters,
    /// Times of reads and of writes.
    pub times: [Latency; 2],
    /// Its host was let in: before, its name may be any.
    is_known: AtomicBool,
}

impl QueueStats {
    /// Its host was let in: what the queue moves is among its host's sums from now on.
    pub fn set_known(&self) {
        self.is_known.store(true, Ordering::Relaxed);
    }

    fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }
}

/// Whose a queue is, and where it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QueueName {
    /// Name of the host.
    pub host: String,
    /// Name of the subsystem.
    pub nqn: String,
    /// Number of the controller.
    pub cntlid: u16,
    /// Number of the queue, 0 for the admin queue.
    pub qid: u16,
    /// Address and port of the host.
    pub peer: SocketAddr,
    /// The polling core that serves it, counted from 0.
    pub poller: usize,
}

/// A namespace, as one core counts.
#[derive(Debug)]
pub struct NamespaceStats {
    /// Name of the subsystem.
    pub nqn: String,
    /// Number of the namespace.
    pub nsid: u32,
    /// What was moved.
    pub moved: Counters,
    /// Times of reads and of writes.
    pub times: [Latency; 2],
}

impl NamespaceStats {
    /// Counters of a namespace that has moved nothing yet.
    #[must_use]
    pub fn new(nqn: &str, nsid: u32) -> Self {
        let (moved, times) = (Counters::default(), Default::default());
        Self { nqn: nqn.into(), nsid, moved, times }
    }
}

/// Counters of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ServerStats {
    /// Queues that are connected.
    pub queues: u32,
    /// Queues that were accepted.
    pub accepted: u64,
    /// Queues that were refused.
    pub rejected: u64,
    /// Queues that have ended.
    pub ended: u64,
    /// Of these, those that ended by a failure.
    pub failed: u64,
    /// Times that a command had to wait for room.
    pub waits: u64,
    /// Of these, those for a buffer.
    pub buffer_waits: u64,
    /// Buffers that a drive may still reach that nobody could stop: they are never used again.
    pub lost_buffers: u64,
    /// Queues and controllers that were refused because an address had its share: of all cores,
    /// and counted by the first.
    pub refused_shares: u64,
}

/// A polling core, as it counts.
#[derive(Debug, Default)]
pub struct PollerStats([AtomicU64; 11]);

impl PollerStats {
    /// Shows others how the core stands, and how many buffers are free: large ones, small ones.
    pub fn publish(&self, stats: &ServerStats, [free, free_small]: [usize; 2]) {
        let ServerStats { queues, accepted, rejected, ended, failed, waits, .. } = *stats;
        let ServerStats { buffer_waits, lost_buffers, refused_shares, .. } = *stats;
        let of_queues = [queues.into(), accepted, rejected, ended, failed, refused_shares];
        let of_room = [waits, buffer_waits, free as u64, free_small as u64, lost_buffers];
        for (shown, value) in self.0.iter().zip(of_queues.into_iter().chain(of_room)) {
            shown.store(value, Ordering::Relaxed);
        }
    }

    fn line(&self, poller: usize) -> PollerLine {
        let all = self.0.each_ref().map(|shown| shown.load(Ordering::Relaxed));
        let [queues, accepted, rejected, ended, failed, refused_shares, of_room @ ..] = all;
        let [waits, buffer_waits, free_buffers, free_small_buffers, lost_buffers] = of_room;
        PollerLine {
            poller,
            queues,
            accepted,
            rejected,
            ended,
            failed,
            waits,
            buffer_waits,
            free_buffers,
            free_small_buffers,
            lost_buffers,
            refused_shares,
        }
    }
}

/// Whose counters there are.
#[derive(Debug, Default)]
pub struct Registry {
    pollers: Mutex<Vec<Arc<PollerStats>>>,
    queues: Mutex<Vec<Arc<QueueStats>>>,
    namespaces: Mutex<Vec<Arc<NamespaceStats>>>,
    /// Sums of queues that have ended, by host.
    ended: Mutex<BTreeMap<String, Traffic>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    /// Adds a polling core.
    pub fn add_poller(&self) -> Arc<PollerStats> {
        let stats = Arc::new(PollerStats::default());
        lock(&self.pollers).push(stats.clone());
        stats
    }

    /// Adds a queue.
    pub fn add_queue(&self, name: QueueName) -> Arc<QueueStats> {
        let (moved, times) = (Counters::default(), Default::default());
        let stats = Arc::new(QueueStats { name, moved, times, is_known: AtomicBool::new(false) });
        lock(&self.queues).push(stats.clone());
        stats
    }

    /// Takes a queue away; what it moved stays among its host's sums. Of one whose host was let in
    /// nowhere it goes to the others': its name may be any, and there is room for the sums of so
    /// many.
    pub fn remove_queue(&self, stats: &Arc<QueueStats>) {
        let host = if stats.is_known() { &stats.name.host } else { OTHERS };
        // Whoever adds both up finds it in one of them.
        let mut queues = lock(&self.queues);
        let mut ended = lock(&self.ended);
        queues.retain(|it| !Arc::ptr_eq(it, stats));
        let is_kept = ended.contains_key(host) || ended.len() < MAX_HOSTS;
        let host = if is_kept { host } else { OTHERS };
        ended.entry(host.into()).or_default().add(&stats.moved.read());
    }

    /// Adds a namespace on a core.
    pub fn add_namespace(&self, stats: &Arc<NamespaceStats>) {
        lock(&self.namespaces).push(stats.clone());
    }

    /// Takes a namespace on a core away.
    pub fn remove_namespace(&self, stats: &Arc<NamespaceStats>) {
        lock(&self.namespaces).retain(|it| !Arc::ptr_eq(it, stats));
    }

    /// What all of them have counted so far.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let pollers = lock(&self.pollers).clone();
        let (queues, ended) = {
            let queues = lock(&self.queues);
            (queues.clone(), lock(&self.ended).clone())
        };
        let namespaces = lock(&self.namespaces).clone();
        let mut hosts: BTreeMap<String, HostLine> = BTreeMap::new();
        for (host, moved) in ended {
            let line = HostLine { host: host.clone(), queues: 0, moved };
            hosts.insert(host, line);
        }
        let mut all: BTreeMap<(String, u32), Sum> = BTreeMap::new();
        for it in &namespaces {
            all.entry((it.nqn.clone(), it.nsid)).or_default().add(&it.moved, &it.times);
        }
        let line = |it: &Arc<QueueStats>| {
            let mut sum = Sum::default();
            sum.add(&it.moved, &it.times);
            QueueLine { name: it.name.clone(), moved: sum.moved, times: sum.times() }
        };
        let lines: Vec<QueueLine> = queues.iter().map(line).collect();
        // Of one whose host may still be let in nobody knows yet where its sums stay, and sums
        // never shrink.
        for (_, queue) in queues.iter().zip(&lines).filter(|(stats, _)| stats.is_known()) {
            let host = &queue.name.host;
            let line = hosts
                .entry(host.clone())
                .or_insert_with(|| HostLine { host: host.clone(), ..HostLine::default() });
            line.queues += 1;
            line.moved.add(&queue.moved);
        }
        let namespace = |((nqn, nsid), sum): ((String, u32), Sum)| {
            let times = sum.times();
            NamespaceLine { nqn, nsid, moved: sum.moved, times }
        };
        Snapshot {
            pollers: pollers.iter().enumerate().map(|(at, it)| it.line(at)).collect(),
            hosts: hosts.into_values().collect(),
            namespaces: all.into_iter().map(namespace).collect(),
            queues: lines,
        }
    }
}

/// A histogram of times in ns, a hundredth apart from each other, up to 100 s.
fn histogram() -> Histogram<u64> {
    let made = Histogram::new_with_bounds(1, 100_000_000_000, 2);
    made.unwrap_or_else(|_| unreachable!("the bounds are constants that the crate allows"))
}

/// Sums of counters of several cores.
struct Sum {
    moved: Traffic,
    histograms: [(Histogram<u64>, u64); 2],
}

impl Default for Sum {
    fn default() -> Self {
        let histograms = [(histogram(), 0), (histogram(), 0)];
        Self { moved: Traffic::default(), histograms }
    }
}

impl Sum {
    fn add(&mut self, moved: &Counters, times: &[Latency; 2]) {
        self.moved.add(&moved.read());
        for ((histogram, sum), latency) in self.histograms.iter_mut().zip(times) {
            *sum += latency.add_to(histogram);
        }
    }

    fn times(&self) -> TimesOfBoth {
        let [reads, writes] = self.histograms.each_ref().map(|(histogram, sum_ns)| Times {
            count: histogram.len(),
            sum_ns: *sum_ns,
            p50_ns: histogram.value_at_quantile(0.5),
            p90_ns: histogram.value_at_quantile(0.9),
            p99_ns: histogram.value_at_quantile(0.99),
            p999_ns: histogram.value_at_quantile(0.999),
            max_ns: histogram.max(),
        });
        TimesOfBoth { reads, writes }
    }
}

/// How long commands took, from their arrival in this process to their answer's posting: one of
/// [`TIMED_EVERY`] is timed, and the first in 20 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Times {
    /// Commands that were timed.
    pub count: u64,
    /// Sum of their times.
    pub sum_ns: u64,
    /// Half of them took no longer.
    pub p50_ns: u64,
    /// Nine of ten took no longer.
    pub p90_ns: u64,
    /// 99 of a hundred took no longer.
    pub p99_ns: u64,
    /// 999 of a thousand took no longer.
    pub p999_ns: u64,
    /// None took longer.
    pub max_ns: u64,
}

/// Times of reads, and those of writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct TimesOfBoth {
    /// Reads.
    pub reads: Times,
    /// Writes.
    pub writes: Times,
}

/// A polling core.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct PollerLine {
    /// Which one, counted from 0.
    pub poller: usize,
    /// Queues that are connected.
    pub queues: u64,
    /// Queues that were accepted.
    pub accepted: u64,
    /// Queues that were refused.
    pub rejected: u64,
    /// Queues that have ended.
    pub ended: u64,
    /// Of these, those that ended by a failure.
    pub failed: u64,
    /// Times that a command had to wait for room.
    pub waits: u64,
    /// Of these, those for a buffer.
    pub buffer_waits: u64,
    /// Buffers of the largest transfer that no command holds.
    pub free_buffers: u64,
    /// Small buffers that no command holds.
    pub free_small_buffers: u64,
    /// Buffers that a drive may still reach that nobody could stop: they are never used again.
    pub lost_buffers: u64,
    /// Queues and controllers that were refused because an address had its share: of all cores,
    /// and counted by the first.
    pub refused_shares: u64,
}

/// A host: all queues by which it was let in, those that have ended among them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct HostLine {
    /// Its name.
    pub host: String,
    /// Queues that it has now.
    pub queues: u64,
    /// What it moved.
    #[serde(flatten)]
    pub moved: Traffic,
}

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NamespaceLine {
    /// Name of its subsystem.
    pub nqn: String,
    /// Its number.
    pub nsid: u32,
    /// What was moved.
    #[serde(flatten)]
    pub moved: Traffic,
    /// How long that took.
    pub times: TimesOfBoth,
}

/// A queue that is connected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QueueLine {
    /// Whose it is.
    #[serde(flatten)]
    pub name: QueueName,
    /// What it moved.
    #[serde(flatten)]
    pub moved: Traffic,
    /// How long that took.
    pub times: TimesOfBoth,
}

/// What a target has done so far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// Polling cores.
    pub pollers: Vec<PollerLine>,
    /// Hosts, by name.
    pub hosts: Vec<HostLine>,
    /// Namespaces, by subsystem and number.
    pub namespaces: Vec<NamespaceLine>,
    /// Queues that are connected.
    pub queues: Vec<QueueLine>,
}
