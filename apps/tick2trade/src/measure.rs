//! Tick to trade, measured: an exchange at one end of a wire, an engine at the other.
//!
//! The exchange has a thread of its own. Every interval it offers shares at the price that the
//! engine takes, and between two offers its crowd trades something else. From the moment when the
//! offer's frame goes onto the wire to the moment when the order's frame comes off it is one
//! measurement, taken at the exchange, the same for queues and for sockets. The next offer does not
//! wait for the last order: what is late delays what follows, and that counts.
//!
//! The engine's thread also steps the model that it drives: the model's time is in the figures.
//!
//! At the end the engine's books are compared with the exchange's, level by level: whatever was
//! lost or came late on the way, nothing may be missing.

mod cores;
mod report;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use core_affinity::CoreId;
use ferrocx::bus::local::{LocalConfig, pair};
use ferrocx::model::runner::{Runner, RunnerConfig};
use ferrocx::model::wire::{Capture, CaptureFile, PacketWire, TapWire, Wire, link};
use ferrocx::model::{Nic, NicConfig};
use ferrocx::{Port, PortConfig};
use hdrhistogram::Histogram;

use crate::book::{Books, BooksConfig, Health};
use crate::counters::Counters;
use crate::engine::EngineConfig;
use crate::exchange::{Venue, VenueConfig, VenueStats};
use crate::feed::ArbiterConfig;
use crate::gateway::GatewayState;
use crate::kernel::{KernelTrader, Waiting};
use crate::latency::{Row, now_ns};
use crate::operate::lock_memory;
use crate::orders::OrdersConfig;
use crate::proto::Side;
use crate::risk::Limits;
use crate::strategy::Taker;
use crate::timed::Stages;
use crate::trader::{Trader, TraderConfig};
use crate::watch::{Absence, Watch};

use cores::{Absences, spin_beside, take_core};
use report::{BY_TAP, KERNEL_AWAKE, KERNEL_BUSY, KERNEL_EPOLL, RECOVERY, UNDISTURBED, WHOLE};
pub use report::{FeedReport, Report, RowReport};

/// Bytes that the wire holds.
const WIRE_BYTES: usize = 4 << 20;
/// Price and shares of an offer.
pub(crate) const PRICE: u32 = 1_500_000;
pub(crate) const SHARES: u32 = 100;
/// How long the parts may take to find each other.
const PATIENCE_NS: u64 = 20_000_000_000;
/// How long the last orders may take.
const LINGER_NS: u64 = 100_000_000;

/// What is measured.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Offers.
    pub ticks: u64,
    /// Offers before them that do not count.
    pub warm_up: u64,
    /// Time from one offer to the next, ns.
    pub interval_ns: u64,
    /// An offer waits until the one before it was taken: for tests, whose machine may be busy.
    pub waits: bool,
    /// Seed of the crowd and of what is lost.
    pub seed: u64,
    /// Packets of each line that are lost, in a million.
    pub loss_ppm: u32,
    /// Packets of each line that come behind the next one, in a million.
    pub reorder_ppm: u32,
    /// Messages that both lines lose at a time, in the middle of the run.
    pub burst: u64,
    /// Cores of engine and exchange; `None` lets both wander.
    pub cores: Option<[CoreId; 2]>,
    /// Things that the crowd does before the engine may come, which takes a snapshot then. Not over
    /// the kernel's sockets.
    pub late: u64,
    /// The threads that poll have real-time priority.
    pub realtime: bool,
    /// Everything on the model's wire goes here, with its times.
    pub pcap: Option<PathBuf>,
    /// A TAP interface of 198.18.0.2/24, for the same over the kernel's sockets.
    pub baseline: Option<String>,
}

/// How far a run is: what exchange and engine tell each other.
#[derive(Debug, Default)]
struct Phase {
    phase: AtomicU8,
    /// Number of the message that the engine expects next.
    next: AtomicU64,
}

impl Phase {
    /// The engine may send orders.
    const OPEN: u8 = 1;
    /// What happens from here on counts.
    const MEASURED: u8 = 2;
    const OVER: u8 = 3;

    fn get(&self) -> u8 {
        self.phase.load(Ordering::Acquire)
    }

    fn set(&self, phase: u8) {
        self.phase.fetch_max(phase, Ordering::AcqRel);
    }

    /// Whether what counts has begun, and `is_measured` does not say so yet; it does then.
    fn begins(&self, is_measured: &mut bool) -> bool {
        self.get() == Self::MEASURED && !std::mem::replace(is_measured, true)
    }
}

/// What a run on one kind of transport gave.
#[derive(Debug)]
struct Run {
    venue: VenueStats,
    stages: Stages,
    absences: Absences,
    feed: Option<(FeedReport, Histogram<u64>)>,
    counters: Counters,
}

impl Run {
    /// Two rows, of all orders and of those whose cores were there, and a line about the others.
    fn rows(&self, name: &str, text: &mut String) -> [Row; 2] {
        let (all, undisturbed) =
            (&self.venue.wire_to_wire, self.absences.undisturbed(&self.venue.times));
        *text += &format!(
            "{name}: {} of {} orders were on their way while a core was not there, or behind such \
             an order, and are not in \"{name}{UNDISTURBED}\"\n{}",
            all.len() - undisturbed.len(),
            all.len(),
            self.absences,
        );
        [Row::new(name, all), Row::new(format!("{name}{UNDISTURBED}"), &undisturbed)]
    }
}

/// How the engine waits on the kernel's sockets, and whether somebody spins on its core beside it.
#[derive(Debug, Clone, Copy)]
struct Baseline {
    name: &'static str,
    waiting: Waiting,
    is_awake: bool,
}

const BASELINES: [Baseline; 3] = [
    Baseline { name: KERNEL_BUSY, waiting: Waiting::Busy, is_awake: false },
    Baseline { name: KERNEL_EPOLL, waiting: Waiting::Epoll, is_awake: false },
    Baseline { name: KERNEL_AWAKE, waiting: Waiting::Epoll, is_awake: true },
];

/// The levels of one side of a book, the best first: price, shares and orders.
type Depth = Vec<(u32, u64, u32)>;

/// What an exchange has in the end.
#[derive(Debug)]
struct Closed {
    stats: VenueStats,
    /// Of each security, bids and offers.
    books: Vec<[Depth; 2]>,
    /// When its thread was away.
    absences: Vec<Absence>,
}

/// Measures, on the model and if asked for on the kernel's sockets.
///
/// # Errors
/// One sentence about what did not work.
pub fn run(plan: &Plan) -> Result<Report> {
    let ours = apart(|| in_memory(plan))?;
    let mut rows =
        ours.stages.rows(["wire to book", "book to decision", "decision to doorbell"]).to_vec();
    let mut away = String::new();
    rows.extend(ours.rows(WHOLE, &mut away));
    let (feed, recovery) = ours.feed.context("the run on queues counts its feed")?;
    if !recovery.is_empty() {
        rows.push(Row::new(RECOVERY, &recovery));
    }
    if let Some(tap) = &plan.baseline {
        let mut kernels = Vec::new();
        // Who is on no core of its own has nobody beside it.
        let possible = |baseline: &Baseline| !baseline.is_awake || plan.cores.is_some();
        for baseline in BASELINES.into_iter().filter(possible) {
            let kernel = apart(|| on_sockets(plan, tap, baseline))?;
            kernels.extend(kernel.rows(baseline.name, &mut away));
            if baseline.waiting == Waiting::Busy {
                let names = [
                    "kernel: read to book",
                    "kernel: book to decision",
                    "kernel: decision to send",
                ];
                kernels.extend(kernel.stages.rows(names));
            }
        }
        rows.extend(apart(|| by_tap(plan, tap))?.rows(BY_TAP, &mut away));
        rows.extend(kernels);
    }
    let without_baseline = plan.baseline.is_none();
    let (interval_ns, cores) = (plan.interval_ns, plan.cores);
    let realtime = plan.realtime;
    let counters = ours.counters;
    Ok(Report { rows, feed, away, interval_ns, cores, realtime, without_baseline, counters })
}

/// Runs on a thread of its own: the core and the priority that it takes are not inherited by what
/// comes after.
fn apart(run: impl FnOnce() -> Result<Run> + Send) -> Result<Run> {
    thread::scope(|scope| scope.spawn(run).join().map_err(|_| anyhow!("a run panicked"))?)
}

fn venue_config(plan: &Plan) -> VenueConfig {
    let mut config = VenueConfig {
        loss_ppm: [plan.loss_ppm; 2],
        reorder_ppm: [plan.reorder_ppm; 2],
        room: (plan.warm_up + plan.ticks) as usize,
        ..VenueConfig::default()
    };
    config.crowd.seed = plan.seed;
    config
}

/// The trader of a venue, at the next address.
pub fn trader_config(venue: &VenueConfig) -> TraderConfig {
    let at = |port| SocketAddrV4::new(venue.address, port);
    let limits = Limits {
        rate: 65_536,
        position_shares: u32::MAX,
        credit: u64::MAX / 4,
        ..Limits::default()
    };
    let traded = venue.symbols.last().copied().into_iter().collect();
    TraderConfig {
        address: Ipv4Addr::from(u32::from(venue.address) + 1),
        prefix_len: 24,
        gateway: None,
        lines: venue.lines,
        orders: at(venue.orders_port),
        snapshots: None,
        joins_late: false,
        requests: at(venue.requests_port),
        answers_port: 26_500,
        user: venue.user,
        password: venue.password,
        timeout_ms: 15_000,
        // A machine that is busy beside is not an exchange that is silent.
        answer_timeout_ms: 15_000,
        // And what it keeps waiting is to be measured.
        away_ms: 15_000,
        cancels_at_start: false,
        engine: EngineConfig {
            // The exchange answers every request, if it is given the time.
            feed: ArbiterConfig { attempts: 1_000, ..ArbiterConfig::default() },
            books: BooksConfig { stocks: venue.symbols.clone(), ..BooksConfig::default() },
            orders: OrdersConfig { symbols: traded, limits, ..OrdersConfig::default() },
        },
        measure: true,
        stamp_orders: false,
    }
}

/// A venue's server of snapshots.
pub(crate) const fn snapshots(venue: &VenueConfig) -> SocketAddrV4 {
    SocketAddrV4::new(venue.address, venue.snapshots_port)
}

/// Takes every offer of a venue's.
pub const fn taker() -> Taker {
    Taker::new(0, PRICE, SHARES)
}

/// On queues, and the exchange at the other end of a wire in memory.
fn in_memory(plan: &Plan) -> Result<Run> {
    let (near, far) = link(WIRE_BYTES);
    let mut near: Box<dyn Wire> = Box::new(near);
    let mut file = None;
    if let Some(path) = &plan.pcap {
        let capture = CaptureFile::create(path)?;
        near = Box::new(Capture::new(near, &capture, "trader")?);
        file = Some(capture);
    }
    let config = venue_config(plan);
    let run = on_queues(plan, trader_config(&config), near, far);
    if let Some(file) = file {
        file.finish()?;
    }
    run
}

/// On queues, and every frame by the TAP interface that the kernel's sockets are measured by: the
/// exchange is at its end as it is for them, the model reads and writes the interface.
fn by_tap(plan: &Plan, tap: &str) -> Result<Run> {
    let far = TapWire::open(tap)?;
    let mut trader = trader_config(&venue_config(plan));
    // The first address is the kernel's.
    trader.address = Ipv4Addr::from(u32::from(trader.address) + 1);
    on_queues(plan, trader, Box::new(PacketWire::open(tap)?), far)
}

/// On queues of a model at the `near` end of a wire; the exchange is at the `far` one.
fn on_queues(
    plan: &Plan,
    mut trader: TraderConfig,
    near: Box<dyn Wire>,
    far: impl Wire,
) -> Result<Run> {
    let (local, side) = pair(LocalConfig { seed: plan.seed, ..LocalConfig::default() })?;
    let mut nic = Nic::new(side, NicConfig::default());
    nic.datapath_mut().plug(near);
    let runner = Runner::start(vec![nic], RunnerConfig::default())?;
    // One for the whole thread: of two, each would leave the steps to the other.
    let helper = Arc::new(runner.helper());
    let steps = Arc::clone(&helper);
    local.set_idle_hook(Some(Arc::new(move || {
        steps.help();
    })));
    local.keep(runner);
    let phase = Phase::default();
    let config = venue_config(plan);
    trader.snapshots = (plan.late != 0).then(|| snapshots(&config));
    trader.joins_late = plan.late != 0;
    thread::scope(|scope| {
        let exchange = scope.spawn(|| exchange(plan, config.clone(), far, &phase, true));
        let run = (|| -> Result<_> {
            // Each look of the port's own thread takes a core from a thread that polls.
            let housekeeping = Some(Duration::from_secs(1));
            let port = PortConfig { housekeeping, ..PortConfig::default() };
            let port = Port::from_transport(local, port)?;
            let mut trader = Trader::new(&port, &trader, taker())?;
            // Not before: threads that are made inherit core and priority.
            take_core(plan, 0)?;
            // Nobody else steps the model from here on, and so nobody takes a core to do it.
            let _taken_over = helper.take_over();
            lock_memory();
            let mut watch = Watch::start(now_ns());
            let (mut is_idle, mut is_measured) = (false, false);
            let until = now_ns() + PATIENCE_NS;
            while phase.get() != Phase::OVER {
                watch.round(now_ns(), is_idle);
                is_idle = !trader.poll();
                phase.next.store(trader.engine().arbiter().next(), Ordering::Release);
                // What was sent leaves, and what came arrives, without another thread's help.
                is_idle &= !helper.help();
                if trader.gateway().state() == GatewayState::Open {
                    phase.set(Phase::OPEN);
                } else if phase.get() < Phase::OPEN && now_ns() > until {
                    bail!("order entry did not open: {:?}", trader.gateway().state());
                }
                if phase.begins(&mut is_measured) {
                    is_idle = false;
                    trader.forget_times();
                    watch.forget();
                }
            }
            let stages = trader.stages().cloned().unwrap_or_default();
            let stamp_error_ns = trader.stamp_error_ns().unwrap_or(0);
            let feed = trader.engine().arbiter().stats().clone();
            let books = depths(trader.engine().books());
            let counters = trader.counters();
            Ok((stages, stamp_error_ns, feed, books, watch.into_absences(), counters))
        })();
        phase.set(Phase::OVER);
        let closed = exchange.join().map_err(|_| anyhow!("the exchange's thread panicked"))??;
        let (stages, stamp_error_ns, feed, books, away, counters) = run?;
        let (venue, levels) = (closed.stats, compare(&books?, &closed.books)?);
        let recovery = feed.recovery_ns.clone();
        let feed = FeedReport {
            messages: venue.messages,
            dropped: venue.dropped,
            reordered: venue.reordered,
            burst: plan.burst,
            gaps: feed.gaps,
            requests: feed.requests,
            lost: feed.lost,
            joined_at: feed.joined_at,
            longest_recovery_ns: feed.recovery_ns.max(),
            orders: venue.taken,
            levels,
            stamp_error_ns,
            impossible_stamps: stages.impossible,
        };
        let absences = Absences { engine: away, exchange: closed.absences, beside: None };
        Ok(Run { venue, stages, absences, feed: Some((feed, recovery)), counters })
    })
}

fn on_sockets(plan: &Plan, tap: &str, baseline: Baseline) -> Result<Run> {
    let wire = TapWire::open(tap)?;
    let phase = Phase::default();
    let config = venue_config(plan);
    thread::scope(|scope| {
        let exchange = scope.spawn(|| exchange(plan, config.clone(), wire, &phase, false));
        let beside = plan.cores.filter(|_| baseline.is_awake);
        let seen = &phase;
        let beside = beside.map(|[core, _]| scope.spawn(move || spin_beside(core, seen)));
        let run = (|| -> Result<_> {
            let trader = trader_config(&config);
            let address = trader.address;
            let trader = KernelTrader::new(&trader, taker(), baseline.waiting);
            let mut trader = trader.with_context(|| {
                format!(
                    "no trader on {tap}: the interface is made before, by ip tuntap add {tap} mode \
                     tap, ip addr add {address}/24 dev {tap}, and ip link set {tap} up"
                )
            })?;
            take_core(plan, 0)?;
            lock_memory();
            let mut watch = Watch::start(now_ns());
            let (mut is_idle, mut is_measured) = (false, false);
            while phase.get() != Phase::OVER {
                watch.round(now_ns(), is_idle);
                is_idle = !trader.poll()?;
                if trader.is_open() {
                    phase.set(Phase::OPEN);
                }
                if phase.begins(&mut is_measured) {
                    is_idle = false;
                    trader.forget_times();
                    watch.forget();
                }
            }
            Ok((trader.stages().clone(), watch.into_absences()))
        })();
        phase.set(Phase::OVER);
        let closed = exchange.join().map_err(|_| anyhow!("the exchange's thread panicked"))??;
        let (stages, engine) = run?;
        let beside = beside.map(|thread| {
            thread.join().map_err(|_| anyhow!("the thread that spins beside panicked"))?
        });
        let absences = Absences { engine, exchange: closed.absences, beside: beside.transpose()? };
        let (venue, counters) = (closed.stats, Counters::default());
        Ok(Run { venue, stages, absences, feed: None, counters })
    })
}

/// The engine's books, bids and offers of each in the order of their listing.
fn depths(books: &Books) -> Result<Vec<[Depth; 2]>> {
    if let Some(book) = books.iter().find(|book| book.health() != Health::Sound) {
        bail!("the book of locate {} may be wrong, the engine says", book.locate());
    }
    let depth = |book: &crate::book::Book| {
        [Side::Buy, Side::Sell].map(|side| {
            book.levels(side).map(|level| (level.price, level.shares, level.orders)).collect()
        })
    };
    Ok(books.iter().map(depth).collect())
}

/// How many levels there are, if ours are the exchange's.
fn compare(ours: &[[Depth; 2]], theirs: &[[Depth; 2]]) -> Result<usize> {
    let levels = |books: &[[Depth; 2]]| books.as_flattened().iter().map(Vec::len).sum::<usize>();
    if ours != theirs {
        bail!(
            "the engine's books, of {} levels, are not those of the exchange, of {}",
            levels(ours),
            levels(theirs),
        );
    }
    Ok(levels(ours))
}

/// The exchange's thread: waits for the engine, offers, and says when it is over. `until_heard`
/// waits for the engine to have every message.
fn exchange(
    plan: &Plan,
    config: VenueConfig,
    wire: impl Wire,
    phase: &Phase,
    until_heard: bool,
) -> Result<Closed> {
    take_core(plan, 1)?;
    let mut venue = Venue::new(config, wire, now_ns());
    for _ in 0..plan.late {
        venue.step(now_ns());
    }
    let (mut watch, mut is_idle) = (Watch::start(now_ns()), false);
    let until = now_ns() + PATIENCE_NS;
    while phase.get() < Phase::OPEN {
        venue.poll(now_ns);
        if now_ns() > until {
            phase.set(Phase::OVER);
            bail!("nobody traded within {} s", PATIENCE_NS / 1_000_000_000);
        }
    }
    let start = now_ns();
    for tick in 0..plan.warm_up + plan.ticks {
        if tick == plan.warm_up {
            venue.forget_times();
            watch.forget();
            phase.set(Phase::MEASURED);
        }
        let at = start + tick * plan.interval_ns;
        for (due, is_offer) in [(at, true), (at + plan.interval_ns / 2, false)] {
            let mut is_late = true;
            loop {
                let now = now_ns();
                watch.round(now, is_idle);
                if now >= due {
                    watch.due(is_late, now);
                    break;
                }
                is_late = false;
                is_idle = !venue.poll(now_ns);
            }
            // What follows is work.
            is_idle = false;
            if is_offer {
                if plan.burst != 0 && tick == plan.warm_up + plan.ticks / 2 {
                    venue.burst_loss(plan.burst, now_ns());
                }
                venue.offer(SHARES, PRICE, now_ns);
                let until = now_ns() + PATIENCE_NS;
                while plan.waits && venue.stats().taken <= tick {
                    venue.poll(now_ns);
                    if now_ns() > until || phase.get() == Phase::OVER {
                        phase.set(Phase::OVER);
                        bail!("offer {tick} was not taken");
                    }
                }
            } else {
                venue.step(now_ns());
            }
        }
        if phase.get() == Phase::OVER {
            break;
        }
    }
    let (mut say, until, limit) = (0, now_ns() + LINGER_NS, now_ns() + PATIENCE_NS);
    let is_heard = |sent: usize| {
        !until_heard
            || phase.next.load(Ordering::Acquire) > sent as u64
            || phase.get() == Phase::OVER
    };
    while now_ns() < until || !is_heard(venue.sent()) {
        venue.poll(now_ns);
        // The last packet may be one that was lost.
        if now_ns() >= say {
            say = now_ns() + LINGER_NS / 10;
            venue.heartbeat(now_ns());
        }
        if now_ns() > limit {
            phase.set(Phase::OVER);
            bail!("the engine did not get the last of {} messages", venue.sent());
        }
    }
    phase.set(Phase::OVER);
    let depths = |locate: usize| {
        [Side::Buy, Side::Sell].map(|side| venue.exchange().levels(locate as u16, side))
    };
    let books = (1..=venue.exchange().securities().len()).map(depths).collect();
    Ok(Closed { stats: venue.stats().clone(), books, absences: watch.into_absences() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run that came after on the same thread made its device's thread on the engine's core, with
    /// the engine's priority: it never ran.
    #[test]
    fn what_a_run_takes_for_its_thread_is_not_passed_on() {
        let allowed = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            status.lines().find(|line| line.starts_with("Cpus_allowed:")).map(str::to_owned)
        };
        let before = allowed();
        let mut cores = core_affinity::get_core_ids().unwrap_or_default();
        let core = cores.pop().unwrap();
        if cores.is_empty() {
            println!("skipped: there is one core only");
            return;
        }
        let within = std::sync::Mutex::new(None);
        let run = apart(|| {
            cores::stay_on(core)?;
            *within.lock().unwrap() = allowed();
            bail!("over")
        });
        assert_eq!(run.unwrap_err().to_string(), "over");
        assert_ne!(within.into_inner().unwrap(), before);
        assert_eq!(allowed(), before);
    }
}
