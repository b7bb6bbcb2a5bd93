//! A run from the command line to the report: bring-up, workers, supervision, teardown.

use std::{
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use ferrocx_app_common::{privileges, report::JsonTarget, signal::Stop, wait::Wait};
use ferrocx_core::lcore::{Lcores, StopFlag};
use ferrocx_mempool::Pool;
use ferrocx_pmd::{RxQueue, TxQueue};

use crate::{
    config::{Config, Mode, WireSpec},
    engine::{Engine, Offloads},
    ether::MacAddr,
    icmpecho::Station,
    link_partner::{LinkPartnerReport, LinkPartners},
    payload::Payloads,
    ports::{Port, peer},
    profile::Profile,
    report::{self, Errors, PortReport, Report},
    stream::{Finished, Source, Stream},
    totals::Counts,
    txonly::Frames,
    worker::{Ended, Handle},
};

/// Time between two looks of the main thread.
const TICK: Duration = Duration::from_millis(10);
/// How long to wait for links at the start.
const LINK_PATIENCE: Duration = Duration::from_secs(5);
/// Time between two looks at the health of the devices.
const HEALTH: Duration = Duration::from_millis(100);

/// Where workers and model run, and how they wait.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Placement {
    cores: Vec<usize>,
    model_core: usize,
    wait: Wait,
}

impl Placement {
    /// Fills in what the command line leaves open: the worker on the last core, the model on the
    /// first; and yielding in place of spinning where the two have to share one.
    fn new(config: &Config, usable: &[usize]) -> Self {
        let first = usable.first().copied().unwrap_or(0);
        let last = usable.last().copied().unwrap_or(0);
        let cores = match config.cores.as_slice() {
            [] if config.model_core == Some(last) => vec![first],
            [] => vec![last],
            cores => cores.to_vec(),
        };
        let free = usable.iter().copied().find(|core| !cores.contains(core));
        let model_core = config.model_core.or(free).unwrap_or(first);
        let shared = config.has_model() && cores.contains(&model_core);
        let wait = config.wait.unwrap_or(if shared { Wait::Yield } else { Wait::Busy });
        Self { cores, model_core, wait }
    }
}

/// Why a run came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Asked,
    TimeOver,
    CountReached,
}

/// Carries out a run until its end, or until `stop` is raised, and reports it.
///
/// # Errors
/// The first thing that went wrong, as one sentence. Whatever was opened is closed again.
pub fn run(config: &Config, stop: &Stop) -> Result<Report> {
    let lcores = Lcores::detect()?;
    let usable: Vec<usize> = lcores.ids().collect();
    let placement = Placement::new(config, &usable);
    // Dropped last: devices of the model need it for their teardown.
    let mut partners = LinkPartners::open(config, &lcores, placement.model_core, placement.wait)?;
    let transports = partners.transports(config)?;
    let payloads = config.queues.split.map(|split| Payloads::open(split.payload));
    let mut payloads = payloads.transpose().context("--payload")?;
    let mut ports = Vec::new();
    for (index, transport) in transports.into_iter().enumerate() {
        let port = Port::open(index, transport, config, payloads.as_mut())?;
        for core in &placement.cores {
            if Lcores::is_remote(*core, port.device.info().numa_node) {
                tracing::warn!(
                    core,
                    port = index,
                    "the core is on another NUMA node than the port"
                );
            }
        }
        ports.push(port);
    }
    let flag = StopFlag::new();
    let launched = launch_any(config, &placement, &lcores, &flag, &mut ports)?;
    wait_for_links(config, &ports)?;
    partners.start();
    let start = Instant::now();
    let mut run =
        Run { config, stop, partners: &mut partners, ports: &ports, workers: launched, start };
    let end = run.supervise()?;
    tracing::info!(?end, "stopping");
    run.partners.quiesce();
    let workers = run.workers;
    flag.stop();
    let took = start.elapsed();
    let mut ended = Vec::new();
    for worker in workers {
        ended.extend(worker.join()?);
    }
    let (mut ports, profile) = finish(config, ports, ended)?;
    partners.close()?;
    for (port, seen) in ports.iter_mut().zip(partners.reports()) {
        port.link_partner = seen.clone();
    }
    let cores = placement.cores;
    let model_core = config.has_model().then_some(placement.model_core);
    Ok(Report::new(config, (cores, model_core, placement.wait), took, &profile, ports))
}

/// Makes queues and streams for the burst size that was chosen, and starts the workers.
fn launch_any(
    config: &Config,
    placement: &Placement,
    lcores: &Lcores,
    flag: &StopFlag,
    ports: &mut [Port],
) -> Result<Vec<Handle>> {
    let launch = match config.queues.burst {
        1 => launch::<1>,
        2 => launch::<2>,
        4 => launch::<4>,
        8 => launch::<8>,
        16 => launch::<16>,
        64 => launch::<64>,
        128 => launch::<128>,
        _ => launch::<32>,
    };
    launch(config, placement, lcores, flag, ports)
}

fn launch<const N: usize>(
    config: &Config,
    placement: &Placement,
    lcores: &Lcores,
    flag: &StopFlag,
    ports: &mut [Port],
) -> Result<Vec<Handle>> {
    let peers: Vec<usize> = (0..ports.len()).map(|p| peer(config.mode, p, ports.len())).collect();
    for (port, &to) in peers.iter().enumerate() {
        for pool in ports[port].pools() {
            for owner in [port, to] {
                let registered = ports[owner].device.register_pool(pool);
                registered.with_context(|| format!("port {owner}, buffers of port {port}"))?;
            }
        }
    }
    let mut tx: Vec<Vec<TxQueue>> = Vec::new();
    for (port, &from) in peers.iter().enumerate() {
        // Pairs: what leaves through a port came in through its peer.
        let pool: Pool = ports[from].pool.clone();
        tx.push(ports[port].tx_queues(config, &pool)?);
    }
    let mut streams: Vec<Vec<Stream<RxQueue, TxQueue, N>>> = Vec::new();
    streams.resize_with(placement.cores.len(), Vec::new);
    let total = ports.len() * config.queues.count;
    for port in 0..ports.len() {
        let rx = ports[port].rx_queues(config)?;
        ports[port].start(&rx, config)?;
        let senders = std::mem::take(&mut tx[peers[port]]);
        for (queue, pair) in rx.into_iter().zip(senders).enumerate() {
            let number = port * config.queues.count + queue;
            let engine = engine(config, &ports[port], &ports[peers[port]]);
            let queues = &config.queues;
            let offloads = Offloads { checksum: queues.checksum, vlan: queues.vlan };
            let source = source(config, &ports[port], number, total);
            let cache = ports[port].pool.cache();
            let stream = Stream::new(port, pair, engine, offloads, source, cache);
            streams[number % placement.cores.len()].push(stream);
        }
    }
    if let Some(user) = config.user {
        // Before the workers start, so that they have no rights either.
        privileges::drop_to(user)?;
        tracing::info!(?user, "rights dropped");
    }
    let start = |(core, streams): (&usize, Vec<_>)| {
        Handle::launch(lcores, *core, flag.clone(), placement.wait, streams).map_err(Into::into)
    };
    placement.cores.iter().zip(streams).map(start).collect()
}

/// The default destination of a port: locally administered, and not one of the ports'.
fn default_peer(port: usize) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, u8::try_from(port).unwrap_or(u8::MAX)])
}

fn engine(config: &Config, from: &Port, to: &Port) -> Engine {
    match config.mode {
        Mode::Io => Engine::Io,
        Mode::Mac => Engine::Mac {
            destination: config.peer.unwrap_or(default_peer(to.index)),
            source: to.mac(),
        },
        Mode::MacSwap => Engine::MacSwap,
        Mode::IcmpEcho => {
            Engine::IcmpEcho(Station { mac: from.mac(), addresses: config.addresses.clone() })
        }
        Mode::RxOnly | Mode::TxOnly => Engine::Consume,
    }
}

/// The frames that stream `number` of `total` makes in txonly, or before it forwards.
fn source(config: &Config, port: &Port, number: usize, total: usize) -> Option<Source> {
    if config.mode != Mode::TxOnly && config.tx_first == 0 {
        return None;
    }
    let peer = config.peer.unwrap_or(default_peer(port.index));
    let stream = u8::try_from(number % 256).unwrap_or(0);
    let frames = Frames::new(&config.load, port.mac(), peer, stream);
    if config.mode != Mode::TxOnly {
        return Some(Source::first(frames, config.tx_first * config.queues.burst as u64));
    }
    let share = |all: u64| {
        let (number, total) = (number as u64, total as u64);
        all / total + u64::from(number < all % total)
    };
    Some(Source::new(frames, config.count.map(share), config.load.rate.map(share)))
}

/// Waits until the ports have a link, so that the first frames are not lost. A port that stays
/// without one is reported, and no reason to give up: its link may come later.
fn wait_for_links(config: &Config, ports: &[Port]) -> Result<()> {
    let deadline = Instant::now() + LINK_PATIENCE;
    for (port, spec) in ports.iter().zip(&config.ports) {
        if spec.wire == WireSpec::Unplugged {
            continue;
        }
        while !port.device.link()?.up {
            if Instant::now() > deadline {
                tracing::warn!(port = port.index, "no link yet");
                break;
            }
            std::thread::sleep(TICK);
        }
    }
    Ok(())
}

/// What the main thread watches while workers run.
struct Run<'a> {
    config: &'a Config,
    stop: &'a Stop,
    partners: &'a mut LinkPartners,
    ports: &'a [Port],
    workers: Vec<Handle>,
    start: Instant,
}

impl Run<'_> {
    /// Waits for the end of the run; serves events, health and live statistics meanwhile.
    fn supervise(&mut self) -> Result<End> {
        let mut printer = Printer::new(self.config);
        let mut next_health = self.start + HEALTH;
        loop {
            std::thread::sleep(TICK);
            let now = Instant::now();
            if self.stop.is_raised() {
                return Ok(End::Asked);
            }
            if self.config.duration.is_some_and(|limit| now - self.start >= limit) {
                return Ok(End::TimeOver);
            }
            let totals = self.totals();
            if self.count_is_reached(&totals) {
                return Ok(End::CountReached);
            }
            printer.print(now - self.start, &totals);
            if let Some(worker) = self.workers.iter().find(|worker| worker.is_finished()) {
                bail!("the worker of core {} ended early", worker.core());
            }
            for port in self.ports {
                while let Some(event) = port.device.poll_event() {
                    tracing::info!(port = port.index, ?event, "event");
                }
            }
            if now >= next_health {
                next_health = now + HEALTH;
                self.check_health()?;
            }
        }
    }

    /// The counts of all workers, as fresh as the last tick.
    fn totals(&mut self) -> Counts {
        let mut totals = Counts::default();
        for worker in &mut self.workers {
            worker.refresh();
            worker.latest().for_each(|(_, counts)| totals.merge(counts));
        }
        totals
    }

    fn count_is_reached(&mut self, totals: &Counts) -> bool {
        let Some(count) = self.config.count else { return false };
        match self.config.mode {
            Mode::TxOnly => totals.generated.frames >= count,
            _ => self.partners.generators_are_done().unwrap_or(totals.received.frames >= count),
        }
    }

    fn check_health(&self) -> Result<()> {
        for port in self.ports {
            let health = port.device.health();
            // Said at once, and again at the end: closing may take its time.
            if let Some(notice) = health.notice.filter(|_| health.dead.is_none()) {
                tracing::error!(port = port.index, %notice, "port lost");
                bail!("port {} ({}) is lost: {notice}", port.index, port.name);
            }
            if let Some(cause) = health.dead {
                tracing::error!(port = port.index, %cause, "port lost");
                bail!("port {} ({}) died: {cause}", port.index, port.name);
            }
            if health.stalled {
                tracing::warn!(port = port.index, "the health counter of the device stands still");
            }
        }
        Ok(())
    }
}

/// Live statistics: a line in place on a terminal, line after line elsewhere.
struct Printer {
    every: Option<Duration>,
    next: Duration,
    last: (Duration, Counts),
    /// Standard output carries the report; statistics go to standard error then.
    to_stderr: bool,
    in_place: bool,
}

impl Printer {
    fn new(config: &Config) -> Self {
        let to_stderr = config.json == Some(JsonTarget::Stdout);
        let in_place =
            if to_stderr { io::stderr().is_terminal() } else { io::stdout().is_terminal() };
        let every = config.stats;
        let last = (Duration::ZERO, Counts::default());
        Self { every, next: every.unwrap_or_default(), last, to_stderr, in_place }
    }

    fn print(&mut self, now: Duration, totals: &Counts) {
        let Some(every) = self.every.filter(|_| now >= self.next) else { return };
        self.next = now + every;
        let (then, before) = self.last;
        self.last = (now, *totals);
        let line = report::live(&before, totals, now - then, now.as_secs_f64());
        let text = if self.in_place { format!("\r\x1b[2K{line}") } else { format!("{line}\n") };
        // Nobody may be reading any more; that is no reason to stop.
        let _ = if self.to_stderr {
            io::stderr().write_all(text.as_bytes())
        } else {
            let mut out = io::stdout();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        };
    }
}

/// Reads the last counters, destroys the queues, and closes the devices.
fn finish(
    config: &Config,
    mut ports: Vec<Port>,
    ended: Ended,
) -> Result<(Vec<PortReport>, Profile)> {
    let mut profile = Profile::new();
    let mut counts = vec![Counts::default(); ports.len()];
    let mut errors = vec![Errors::new(); ports.len()];
    let mut rings = vec![(0, 0); ports.len()];
    let mut missed = vec![0; ports.len()];
    let count = ports.len();
    for port in &mut ports {
        port.stop()?;
    }
    for Finished { port, counts: stream, profile: share, rx, tx } in ended {
        counts[port].merge(&stream);
        profile.merge(&share);
        report::add_rx(&mut errors[port], &rx.stats());
        missed[port] += rx.missed()?.unwrap_or(0);
        // Forwarding modes send through the neighbour.
        let sender = peer(config.mode, port, count);
        let stats = tx.stats();
        report::add_tx(&mut errors[sender], &stats);
        rings[sender].0 += stats.full;
        rings[sender].1 += stats.doorbells;
        tx.destroy().map_err(|refused| refused.cause).context("send queue, teardown")?;
        rx.destroy().map_err(|refused| refused.cause).context("receive queue, teardown")?;
    }
    let mut reports = Vec::new();
    for ((((port, counts), mut errors), (tx_full, doorbells)), rx_missed) in
        ports.into_iter().zip(counts).zip(errors).zip(rings).zip(missed)
    {
        let vport = port.device.vport_counters()?;
        report::add_vport(&mut errors, &vport);
        let info = port.device.info().clone();
        let index = port.index;
        let mut made = PortReport {
            port: index,
            device: port.name.clone(),
            model: info.model,
            transport: info.transport,
            mac: port.mac(),
            key_mode: port.device.key_mode().to_string(),
            page_bytes: port.pool.region().page_size_bytes(),
            counts,
            errors,
            tx_full,
            rx_missed,
            doorbells,
            vport_received: vport.rx_packets(),
            vport_sent: vport.tx_packets(),
            buffers_missing: 0,
            link_partner: LinkPartnerReport::default(),
        };
        made.buffers_missing = port.close()?.iter().map(report::missing).sum();
        reports.push(made);
    }
    Ok((reports, profile))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Args;

    fn placement(line: &str, usable: &[usize]) -> Placement {
        let words = std::iter::once("testpmd").chain(line.split_whitespace());
        let config = Config::new(&Args::try_parse_from(words).unwrap()).unwrap();
        Placement::new(&config, usable)
    }

    #[test]
    fn worker_and_model_get_cores_of_their_own_where_there_are_two() {
        let new = |cores: &[usize], model_core, wait| Placement {
            cores: cores.to_vec(),
            model_core,
            wait,
        };
        assert_eq!(placement("", &[0, 1]), new(&[1], 0, Wait::Busy));
        assert_eq!(placement("", &[0]), new(&[0], 0, Wait::Yield));
        assert_eq!(placement("--model-core 1", &[0, 1]), new(&[0], 1, Wait::Busy));
        assert_eq!(placement("--cores 0", &[0, 1]), new(&[0], 1, Wait::Busy));
        assert_eq!(placement("--cores 0,1", &[0, 1]), new(&[0, 1], 0, Wait::Yield));
        assert_eq!(placement("--cores 2-3", &[0, 1, 2, 3]), new(&[2, 3], 0, Wait::Busy));
        assert_eq!(placement("--wait spin", &[5]), new(&[5], 5, Wait::Spin));
        assert_eq!(placement("--device 3b:00.0", &[7]), new(&[7], 7, Wait::Busy));
    }
}
