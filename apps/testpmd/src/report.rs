//! The end of a run: what happened, for people and for programs.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use ferrocx_app_common::{
    report::{Table, percent, short},
    wait::Wait,
};
use ferrocx_core::VportCounters;
use ferrocx_mempool::PoolStats;
use ferrocx_pmd::{RxStats, TxStats};
use serde::Serialize;

use crate::{
    config::{Config, Mode},
    ether::MacAddr,
    link_partner::LinkPartnerReport,
    profile::{Profile, Shares},
    totals::{Counts, Imbalance},
};

/// Counters that stay 0 while nothing goes wrong, by name.
pub type Errors = BTreeMap<&'static str, u64>;

/// Frames and bits per second.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Rates {
    /// Frames received per second.
    pub received_fps: f64,
    /// Frames forwarded per second.
    pub forwarded_fps: f64,
    /// Frames generated per second.
    pub generated_fps: f64,
    /// Bits received per second, without FCS, preamble and gap.
    pub received_bps: f64,
    /// Bits forwarded per second, counted the same way.
    pub forwarded_bps: f64,
}

/// One port.
#[derive(Debug, Clone, Serialize)]
pub struct PortReport {
    /// Its number.
    pub port: usize,
    /// Its device.
    pub device: String,
    /// Marketing name of the device.
    pub model: &'static str,
    /// How the device is reached: vfio or model.
    pub transport: &'static str,
    /// Its address.
    pub mac: MacAddr,
    /// How its buffers are addressed.
    pub key_mode: String,
    /// Pages of its buffers, in bytes.
    pub page_bytes: usize,
    /// What its receive queues got, and what became of that.
    pub counts: Counts,
    /// Counters that stay 0 while nothing goes wrong.
    pub errors: Errors,
    /// Times that a burst found the send ring full, over all queues.
    pub tx_full: u64,
    /// Packets that found no buffer in the receive ring, by the device's count.
    pub rx_missed: u64,
    /// Doorbells rung by its send queues.
    pub doorbells: u64,
    /// Frames that the device counted, received.
    pub vport_received: u64,
    /// Frames that the device counted, sent.
    pub vport_sent: u64,
    /// Buffers not back in the pool after teardown; 0 unless something leaks.
    pub buffers_missing: u64,
    /// Its link partner, on the model.
    #[serde(flatten)]
    pub link_partner: LinkPartnerReport,
}

/// The whole run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// What was done.
    pub mode: Mode,
    /// Seconds from the start of the workers to their end.
    pub seconds: f64,
    /// Cores that polled.
    pub cores: Vec<usize>,
    /// Core of the model, if there is one.
    pub model_core: Option<usize>,
    /// How idle cores waited.
    pub wait: Wait,
    /// Whether received = forwarded + dropped, on each port and together.
    pub balanced: bool,
    /// All ports together.
    pub totals: Counts,
    /// Averages over the run.
    pub rates: Rates,
    /// Where the workers' time went, in percent.
    pub time: Shares,
    /// The ports.
    pub ports: Vec<PortReport>,
}

impl Report {
    /// Adds up the ports.
    #[must_use]
    pub fn new(
        config: &Config,
        placement: (Vec<usize>, Option<usize>, Wait),
        took: Duration,
        profile: &Profile,
        ports: Vec<PortReport>,
    ) -> Self {
        let mut totals = Counts::default();
        for port in &ports {
            totals.merge(&port.counts);
        }
        let balanced = ports.iter().all(|port| port.counts.check().is_ok());
        let (cores, model_core, wait) = placement;
        Self {
            mode: config.mode,
            seconds: took.as_secs_f64(),
            cores,
            model_core,
            wait,
            balanced,
            rates: rates(&totals, took),
            totals,
            time: profile.shares(),
            ports,
        }
    }

    /// The first port whose totals do not add up.
    ///
    /// # Errors
    /// [`Imbalance`].
    pub fn check(&self) -> Result<(), Imbalance> {
        self.ports.iter().try_for_each(|port| port.counts.check())?;
        self.totals.check()
    }

    /// The report for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("\n{} for {:.2} s", self.mode.name(), self.seconds);
        let list: Vec<_> = self.cores.iter().map(ToString::to_string).collect();
        let _ = write!(text, " on core {}, wait {}", list.join(","), self.wait);
        if let Some(core) = self.model_core {
            let _ = write!(text, "; the model on core {core}");
        }
        text.push_str("\n\n");
        text.push_str(&self.table());
        for port in &self.ports {
            text.push_str(&port.notes());
        }
        text.push('\n');
        text.push_str(&self.summary());
        text
    }

    fn table(&self) -> String {
        let headings = ["port", "received", "forwarded", "dropped", "generated", "in", "out"];
        let mut table = Table::new(&headings);
        let mut row = |name: String, counts: &Counts| {
            let rates = rates(counts, Duration::from_secs_f64(self.seconds.max(1e-9)));
            table.row([
                name,
                counts.received.frames.to_string(),
                counts.forwarded.frames.to_string(),
                counts.dropped.total().to_string(),
                counts.generated.frames.to_string(),
                format!("{}pps", short(rates.received_fps)),
                format!("{}pps", short(rates.forwarded_fps + rates.generated_fps)),
            ]);
        };
        for port in &self.ports {
            row(port.port.to_string(), &port.counts);
        }
        if self.ports.len() > 1 {
            row("all".into(), &self.totals);
        }
        table.render()
    }

    fn summary(&self) -> String {
        let totals = &self.totals;
        let mut text = format!(
            "total: received {} = forwarded {} + dropped {}",
            totals.received.frames,
            totals.forwarded.frames,
            totals.dropped.total()
        );
        let reasons: Vec<_> =
            totals.dropped.occurred().map(|(why, n)| format!("{} {n}", why.name())).collect();
        if !reasons.is_empty() {
            let _ = write!(text, " ({})", reasons.join(", "));
        }
        text.push('\n');
        let shares = &self.time;
        let _ = writeln!(
            text,
            "time:  {:.0}% empty polls, {:.0}% receiving, {:.0}% working, {:.0}% sending ({} turns \
             sampled); {} of the polls found nothing",
            shares.empty_percent,
            shares.receive_percent,
            shares.work_percent,
            shares.send_percent,
            shares.sampled_turns,
            percent(totals.empty_polls, totals.polls)
        );
        text
    }
}

impl PortReport {
    /// What is worth a line of its own.
    fn notes(&self) -> String {
        let mut text = String::new();
        let at = self.port;
        let wrong: Vec<_> = self.errors.iter().filter(|(_, count)| **count > 0).collect();
        if !wrong.is_empty() {
            let list: Vec<_> = wrong.iter().map(|(name, n)| format!("{name} {n}")).collect();
            let _ = writeln!(text, "port {at}: errors: {}", list.join(", "));
        }
        if self.rx_missed > 0 {
            let missed = self.rx_missed;
            let _ = writeln!(text, "port {at}: {missed} packets found no buffer in a receive ring");
        }
        if self.buffers_missing > 0 {
            let _ = writeln!(text, "port {at}: {} buffers did not come back", self.buffers_missing);
        }
        if let Some(generator) = &self.link_partner.generator {
            let _ = writeln!(text, "port {at}: generator: {generator}");
        }
        text
    }
}

/// Averages of `counts` over `took`.
#[expect(clippy::cast_precision_loss, reason = "averages for people")]
fn rates(counts: &Counts, took: Duration) -> Rates {
    let seconds = took.as_secs_f64();
    if seconds == 0.0 {
        return Rates::default();
    }
    let per_second = |n: u64| n as f64 / seconds;
    Rates {
        received_fps: per_second(counts.received.frames),
        forwarded_fps: per_second(counts.forwarded.frames),
        generated_fps: per_second(counts.generated.frames),
        received_bps: per_second(counts.received.bytes) * 8.0,
        forwarded_bps: per_second(counts.forwarded.bytes) * 8.0,
    }
}

/// Adds the error counters of a receive queue.
pub fn add_rx(errors: &mut Errors, stats: &RxStats) {
    for (name, count) in [
        ("rx_errors", stats.errors),
        ("rx_no_mbuf", stats.no_mbuf),
        ("rx_resets", stats.resets),
        ("rx_stopped", u64::from(stats.fault.is_some())),
    ] {
        *errors.entry(name).or_default() += count;
    }
}

/// Adds the error counters of a send queue.
pub fn add_tx(errors: &mut Errors, stats: &TxStats) {
    for (name, count) in [
        ("tx_errors", stats.errors),
        ("tx_dropped", stats.dropped),
        ("tx_resets", stats.resets),
        ("tx_stopped", u64::from(stats.fault.is_some())),
    ] {
        *errors.entry(name).or_default() += count;
    }
}

/// Adds the error counters of a vport.
pub fn add_vport(errors: &mut Errors, counters: &VportCounters) {
    *errors.entry("vport_rx_errors").or_default() += counters.rx_errors.packets;
    *errors.entry("vport_tx_errors").or_default() += counters.tx_errors.packets;
}

/// Buffers that are neither free nor in a cache.
#[must_use]
pub fn missing(pool: &PoolStats) -> u64 {
    pool.in_use
}

/// One line of live statistics: what changed since `before`, `elapsed` ago.
#[must_use]
pub fn live(before: &Counts, now: &Counts, elapsed: Duration, seconds: f64) -> String {
    let delta = |after: u64, before: u64| after.saturating_sub(before);
    let mut change = Counts::default();
    change.received.frames = delta(now.received.frames, before.received.frames);
    change.received.bytes = delta(now.received.bytes, before.received.bytes);
    change.forwarded.frames = delta(now.forwarded.frames, before.forwarded.frames);
    change.generated.frames = delta(now.generated.frames, before.generated.frames);
    let rates = rates(&change, elapsed);
    let polls = delta(now.polls, before.polls);
    format!(
        "{seconds:8.1} s  in {:>7}pps {:>7}bit/s  out {:>7}pps  dropped {} (+{})  empty polls {}",
        short(rates.received_fps),
        short(rates.received_bps),
        short(rates.forwarded_fps + rates.generated_fps),
        now.dropped.total(),
        delta(now.dropped.total(), before.dropped.total()),
        percent(delta(now.empty_polls, before.empty_polls), polls),
    )
}
