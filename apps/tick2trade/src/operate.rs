//! The trader as a program: what its file says, on a device, until the day is over.

#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use core_affinity::CoreId;
use ferrocx::Port;
use ferrocx_app_common::cores::{self, Costs, Setting};
use ferrocx_app_common::memory;
use ferrocx_app_common::report::{JsonTarget, say};
use ferrocx_app_common::signal::Stop;

use crate::book::BookError;
use crate::capture::{Capture, Captured};
use crate::cli;
use crate::config::{Config, EXAMPLE, Traded};
use crate::counters::Counters;
use crate::engine::Engine;
use crate::gateway::GatewayState;
use crate::latency::{self, Row};
use crate::later::Later;
use crate::proto::soup::Ended;
use crate::signals::Asked;
use crate::strategy::{Quoter, Strategy, Taker};
use crate::trader::Trader;

/// How long the exchange may take to answer at the end, and the connection to close, ns each.
const CLOSE_NS: u64 = 2_000_000_000;
/// How long what was to be written may take then, each.
const FLUSH: Duration = Duration::from_secs(2);
/// Time between two looks for what an operator should know, ns.
const WARN_NS: u64 = 100_000_000;
/// What the exchange refuses of a kill switch, and of the way back.
const REFUSALS: [&str; 2] = [
    "the exchange refuses to stop order entry: no order leaves here, and it takes those of others \
     of the firm; call it\n",
    "the exchange refuses to open order entry again: no order leaves; call it\n",
];
/// What follows of a kill file that is not there.
const NOT_KEPT: &str = "only the exchange will know of the kill behind a restart\n";

/// What the exchange hears of a kill behind the end of the session.
const NOT_TOLD: &str = "was not told: the session is over";

/// The file that the command line names, or the example, with what the command line says instead.
///
/// # Errors
/// One sentence: the file, or a value in it.
pub fn load(args: &cli::Trade) -> Result<Config> {
    let mut config = match &args.config {
        None => Config::parse(EXAMPLE)?,
        Some(path) => read(path).with_context(|| path.display().to_string())?,
    };
    if let Some(device) = &args.device {
        config.device.clone_from(device);
    }
    config.core = args.core.or(config.core);
    if args.late {
        ensure!(
            config.trader.snapshots.is_some(),
            "--late, and the file names no server of snapshots; give `snapshots` there"
        );
        config.trader.joins_late = true;
    }
    if let Some(svg) = &args.svg {
        ensure!(
            config.trader.measure,
            "--svg {}, and nothing is measured; give `measure = true` in the file",
            svg.display()
        );
        check_svg(svg)?;
    }
    if let Some(file) = config.kill_file.as_deref().filter(|file| args.enable && file.exists()) {
        bail!(
            "--enable, and the kill switch is thrown while {} is there; remove it",
            file.display()
        );
    }
    Ok(config)
}

fn read(path: &Path) -> Result<Config> {
    let config = Config::parse(&fs::read_to_string(path)?)?;
    let mode = fs::metadata(path)?.permissions().mode() & 0o777;
    let has_password = !config.trader.password.is_blank();
    ensure!(
        !has_password || mode & 0o077 == 0,
        "a password is written in it, and others can get at it, its mode is {mode:04o}; chmod 600 \
         it"
    );
    Ok(config)
}

/// Trades on a device until the exchange says that the day is over, or until Ctrl-C, and prints
/// what it has then.
///
/// # Errors
/// One sentence: the file, the device, the exchange or a group cannot be had.
pub fn trade(args: &cli::Trade) -> Result<()> {
    let config = load(args)?;
    if let Some(doubt) = config.doubt() {
        eprintln!("{doubt}");
    }
    if args.check {
        println!("the file is right, what it names was not looked at: {}", config.summary());
        return Ok(());
    }
    if let Some(target) = &args.json {
        target.check()?;
    }
    // Before the others: they start threads.
    let (asked, stop) = (Asked::on_signals()?, Stop::on_signals()?);
    let ended = match config.strategy {
        Traded::Taker { security, at_most, shares } => {
            run(&config, args, Taker::new(security, at_most, shares), &stop, &asked)
        }
        Traded::Quoter { security, shares, spread } => {
            run(&config, args, Quoter::new(security, shares, spread), &stop, &asked)
        }
    };
    asked.look();
    if asked.takes_kill() {
        say(&keep_kill(NOT_TOLD, config.kill_file.as_deref()), io::stderr());
    }
    ended
}

/// What of a core's settings will cost time, a line each.
pub(crate) fn warn_of(core: usize) {
    for Setting { check, is, costs } in cores::settings(Path::new("/"), core) {
        if let Some(Costs { why, mend }) = costs {
            eprintln!("core {core}: {check} is {is}: {why}; mend: {mend}");
        }
    }
}

/// Has all memory found now, or says what it costs that it is not.
pub(crate) fn lock_memory() {
    if let Err(why) = memory::lock() {
        eprintln!("{why}");
    }
}

/// What it costs that core, adapter and pool are not of one memory node; `None` if they are, as far
/// as anybody knows.
fn split_nodes(core: Option<u32>, adapter: Option<u32>, pool: Option<u32>) -> Option<String> {
    let named = [("core", core), ("adapter", adapter), ("pool", pool)];
    let known: Vec<_> = named.into_iter().filter_map(|(who, node)| Some((who, node?))).collect();
    if known.windows(2).all(|pair| pair[0].1 == pair[1].1) {
        return None;
    }
    let list: Vec<_> = known.iter().map(|(who, node)| format!("{who} of node {node}")).collect();
    Some(format!(
        "{}: what crosses takes 100 ns more each time; give a core of the adapter's node",
        list.join(", ")
    ))
}

/// Keeps this thread on a core.
///
/// # Errors
/// One sentence: it is not one of this process's.
pub(crate) fn take_core(core: usize) -> Result<()> {
    check_core(core)?;
    ensure!(core_affinity::set_for_current(CoreId { id: core }), "core {core} cannot be had");
    Ok(())
}

/// Whether a core is one of this process's.
fn check_core(core: usize) -> Result<()> {
    let known = core_affinity::get_core_ids().unwrap_or_default();
    ensure!(
        known.contains(&CoreId { id: core }),
        "core {core} is not one that this process may use; give one of {}",
        listed(&known)
    );
    Ok(())
}

/// Cores by their numbers.
pub(crate) fn listed(cores: &[CoreId]) -> String {
    cores.iter().map(|core| core.id.to_string()).collect::<Vec<_>>().join(", ")
}

/// A trader that runs, and how it is operated.
struct Run<'a, S> {
    config: &'a Config,
    json: Option<&'a JsonTarget>,
    svg: Option<&'a Path>,
    capture: Option<Capture>,
    port: Port,
    trader: Trader<S>,
    /// It was said that there are no snapshots.
    is_warned: bool,
    /// What else was said once.
    warned: Warned,
    /// When it is looked for anew, ns.
    warn_ns: u64,
    /// Write what is said while the core polls: reports, and what must not wait behind those.
    reports: Later,
    warnings: Later,
    /// Keeps a kill, and says it: behind nothing else.
    kills: Later,
}

impl<S: Strategy> Run<'_, S> {
    /// Trades until the day is over or somebody ends it. `true` if the exchange ended it.
    fn trade(&mut self, stop: &Stop, asked: &Asked) -> Result<bool> {
        let mut is_open = false;
        while !stop.is_raised() {
            if !self.trader.poll() {
                self.port.device().relax();
                self.warn();
            }
            if asked.takes_kill() {
                self.kill();
            }
            match self.trader.gateway().state() {
                GatewayState::Open if !is_open => {
                    is_open = true;
                    let orders = self.trader.engine().orders();
                    let (next, stand) = (orders.next_urn(), orders.count());
                    let text =
                        format!("order entry is open, the next order is {next}, {stand} stand\n");
                    self.reports.run(move || say(&text, io::stdout()));
                }
                GatewayState::Done(why @ Ended::Rejected(_)) => bail!("no order entry: {why}"),
                GatewayState::Done(why) => {
                    self.reports.run(move || say(&format!("{why}\n"), io::stdout()));
                    return Ok(true);
                }
                _ => {}
            }
            if let Some(GatewayState::Done(why @ Ended::Rejected(_))) = self.trader.joining() {
                // Who has books goes on with them: those that may be wrong are not traded on. Who
                // came late, or gave his books up for a snapshot that broke off, will have none.
                let has_books = self.trader.engine().arbiter().next() != 0;
                ensure!(has_books, "no snapshot to have the books from: {why}");
                if !std::mem::replace(&mut self.is_warned, true) {
                    let text =
                        format!("no snapshots: {why}: books that lose messages stay suspect\n");
                    self.warnings.run(move || say(&text, io::stderr()));
                }
            }
            if asked.takes_report() {
                let report = self.report();
                self.reports.run(move || {
                    if let Err(why) = report.write() {
                        say(&format!("no report: {why:#}\n"), io::stderr());
                    }
                });
            }
        }
        Ok(false)
    }

    fn kill(&mut self) {
        throw(&mut self.trader, &mut self.kills, self.config.kill_file.as_deref());
    }

    /// Says what an operator should know, once of each kind: now and then, when nothing came.
    fn warn(&mut self) {
        let now = latency::now_ns();
        if now < self.warn_ns {
            return;
        }
        self.warn_ns = now.saturating_add(WARN_NS);
        let text = self.warned.news(self.trader.engine());
        if !text.is_empty() {
            self.warnings.run(move || say(&text, io::stderr()));
        }
    }

    /// Where the time went so far, if it is measured.
    fn times(&self) -> Vec<Row> {
        let Some(stages) = self.trader.stages() else { return Vec::new() };
        let rows = stages.rows(["wire to book", "book to decision", "decision to doorbell"]);
        let whole = Row::new("wire to wire, by the device", &stages.wire_to_wire);
        rows.into_iter().chain([whole]).collect()
    }

    /// All counts, and where the time went: a copy, for who writes them.
    fn report(&mut self) -> Report {
        Report {
            counters: self.trader.counters(),
            times: self.times(),
            stamp_error_ns: self.trader.stamp_error_ns().unwrap_or(0),
            json: self.json.cloned(),
        }
    }

    /// Cancels what stands, logs out, and prints what there is then. What may stand is said before
    /// anything else that went wrong.
    fn end(mut self, is_over: bool, asked: &Asked) -> Result<()> {
        // Before the session ends: then nobody can be told of a kill any more.
        asked.look();
        if asked.takes_kill() {
            self.kill();
        }
        let Self { config, port, trader, kills, .. } = &mut self;
        let closing = trader.close(CLOSE_NS, |trader, is_busy| {
            if asked.takes_kill() {
                throw(trader, kills, config.kill_file.as_deref());
            }
            if !is_busy {
                port.device().relax();
            }
        });
        // Nothing is left that would have to wait for who reads nothing.
        self.warnings.finish(FLUSH);
        if self.kills.finish(FLUSH) != 0 {
            say(&format!("the kill file may not be there: {NOT_KEPT}"), io::stderr());
        }
        if let count @ 1.. = self.reports.finish(FLUSH) {
            say(&format!("{count} reports were not written: nobody read them\n"), io::stderr());
        }
        let written = self.write_all_of_it();
        self.summarise();
        ensure!(
            is_over || closing.is_known,
            "order entry was never open: orders of an earlier run may stand; ask the exchange"
        );
        ensure!(
            is_over || closing.standing == 0 && closing.is_answered,
            "{} orders may still stand, the exchange did not answer; start again, or call it",
            closing.standing
        );
        ensure!(
            is_over || !closing.has_strays,
            "answers did not fit our orders, so that others may stand which are not known here: \
             the exchange did not say that all are cancelled; call it"
        );
        ensure!(
            is_over || closing.is_kill_answered,
            "the kill switch is thrown, and the exchange did not say that it takes nothing new; \
             call it"
        );
        written
    }

    /// The report, the capture and the picture.
    fn write_all_of_it(&mut self) -> Result<()> {
        let reported = self.report().write();
        if let Some(Captured { frames, lost }) =
            self.capture.take().map(Capture::finish).transpose()?
        {
            let text = format!("{frames} frames captured, {lost} lost for want of room\n");
            say(&text, io::stderr());
        }
        if let Some(path) = self.svg {
            let picture = latency::svg("from wire to wire", &self.times());
            fs::write(path, picture).with_context(|| path.display().to_string())?;
        }
        reported
    }

    /// The last line.
    fn summarise(&self) {
        let orders = self.trader.engine().orders();
        let position = |(security, symbol)| {
            let held = orders.risk().exposure(security).map_or(0, |exposure| exposure.position);
            format!("{held} shares of {symbol}")
        };
        let positions: Vec<_> = orders.symbols().iter().enumerate().map(position).collect();
        let summary = format!(
            "{} messages, {} lost; next order {}, {} stand, {} answers that do not fit; \
             {}\n",
            self.trader.engine().arbiter().next().saturating_sub(1),
            self.trader.engine().arbiter().stats().lost,
            orders.next_urn(),
            orders.count(),
            orders.mismatches(),
            positions.join(", "),
        );
        tell(&summary, self.json);
    }
}

/// What was said once, of all that is counted.
#[derive(Debug, Default)]
struct Warned {
    books: [bool; BookError::REASONS.len()],
    entry: [bool; 2],
}

impl Warned {
    /// A line for each kind that is new.
    fn news<T: Strategy>(&mut self, engine: &Engine<T>) -> String {
        let mut text = String::new();
        let books = engine.books().errors_by_reason().zip(BookError::MEANINGS);
        for (((_, count), meaning), is_said) in books.zip(&mut self.books) {
            if count != 0 && !std::mem::replace(is_said, true) {
                text += &format!("messages that no book took, {count} by now, {meaning}\n");
            }
        }
        let refusals = engine.orders().entry_refusals().into_iter().zip(REFUSALS);
        for ((is_refused, line), is_said) in refusals.zip(&mut self.entry) {
            if is_refused && !std::mem::replace(is_said, true) {
                text += line;
            }
        }
        text
    }
}

/// All counts of a moment, where the time went up to then, and where both go.
struct Report {
    counters: Counters,
    times: Vec<Row>,
    stamp_error_ns: u64,
    json: Option<JsonTarget>,
}

impl Report {
    /// Prints it for people, and writes the counts where the command line says.
    fn write(&self) -> Result<()> {
        let mut text = self.counters.text();
        if self.times.iter().any(|row| !row.times.is_empty()) {
            text += &latency::table(&self.times);
            text += &format!(
                "wire to book: the device's clock is known to {} ns\n",
                self.stamp_error_ns
            );
        }
        tell(&text, self.json.as_ref());
        self.json.as_ref().map_or(Ok(()), |target| target.write(&self.counters))?;
        Ok(())
    }
}

/// Writes text for people where no JSON goes.
fn tell(text: &str, json: Option<&JsonTarget>) {
    if json == Some(&JsonTarget::Stdout) {
        say(text, io::stderr());
    } else {
        say(text, io::stdout());
    }
}

fn run<S: Strategy>(
    config: &Config,
    args: &cli::Trade,
    strategy: S,
    stop: &Stop,
    asked: &Asked,
) -> Result<()> {
    config.core.map_or(Ok(()), check_core)?;
    let is_thrown = config.kill_file.as_deref().is_some_and(Path::exists);
    if let Some(file) = config.kill_file.as_ref().filter(|_| !is_thrown) {
        asked.watch(file.clone())?;
    }
    let port = Port::open(&config.device).with_context(|| config.device.clone())?;
    let mut trader = Trader::new(&port, &config.trader, strategy)?;
    let mut capture = None;
    if let Some(path) = &args.pcap {
        let (started, recorders) = Capture::start(path)?;
        trader.record(recorders);
        capture = Some(started);
    }
    let later = |name| Later::start(name).with_context(|| format!("no thread for {name}"));
    let [reports, warnings, kills] = [later("reports")?, later("warnings")?, later("kills")?];
    // Not before: threads that are made inherit the core.
    match config.core {
        Some(core) => {
            take_core(core)?;
            warn_of(core);
            let own = cores::node(Path::new("/"), core);
            let pool = port.pool().region().numa_node();
            let split = split_nodes(own, port.device().info().numa_node, pool);
            split.iter().for_each(|split| eprintln!("{split}"));
        }
        None => eprintln!("no core is given: the system moves this thread about, and others in"),
    }
    if let Some(file) = config.kill_file.as_deref().filter(|_| is_thrown) {
        trader.kill();
        eprintln!("the kill switch is thrown: {} is there", file.display());
    }
    // Thrown since the arguments were looked at: it stays so.
    if args.enable && !is_thrown {
        trader.enable();
    }
    eprintln!("orders go by {}", trader.gateway().line().tx().doorbell_kind());
    lock_memory();
    let (json, svg) = (args.json.as_ref(), args.svg.as_deref());
    let mut run = Run {
        config,
        json,
        svg,
        capture,
        port,
        trader,
        is_warned: false,
        warned: Warned::default(),
        warn_ns: 0,
        reports,
        warnings,
        kills,
    };
    let traded = run.trade(stop, asked);
    finish(traded, |is_over| run.end(is_over, asked))
}

/// Throws the kill switch. The file that keeps it thrown over a restart is made by another thread:
/// what the exchange is told may have to be sent again, whatever a disk does.
fn throw<S: Strategy>(trader: &mut Trader<S>, kills: &mut Later, file: Option<&Path>) {
    let is_told = trader.kill();
    let told = match trader.gateway().state() {
        _ if is_told => "was told to cancel all",
        GatewayState::Done(_) | GatewayState::Closed => NOT_TOLD,
        _ => "is told when order entry opens",
    };
    let file = file.map(Path::to_owned);
    kills.run(move || say(&keep_kill(told, file.as_deref()), io::stderr()));
}

/// Makes the file that keeps a kill, and says what became of both.
fn keep_kill(told: &str, file: Option<&Path>) -> String {
    let thrown = format!("the kill switch is thrown: no order leaves, and the exchange {told}\n");
    let Some(file) = file else { return thrown };
    match write_through(file, "remove this file, and start with --enable\n") {
        Ok(()) => thrown,
        Err(error) => format!("{thrown}{}: {error}: {NOT_KEPT}", file.display()),
    }
}

/// Writes a file that is there whatever becomes of the machine from now on.
fn write_through(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    // Its name is in the folder.
    File::open(folder(path))?.sync_all()
}

/// The folder that a file is in.
fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Ends what was traded, however that ended: what stands is cancelled, or a sentence says that it
/// may stand. Why it ended is said first.
fn finish(traded: Result<bool>, end: impl FnOnce(bool) -> Result<()>) -> Result<()> {
    let ended = end(traded.as_ref().is_ok_and(|&is_over| is_over));
    match (traded, ended) {
        (Ok(_), ended) => ended,
        (Err(why), Ok(())) => Err(why),
        (Err(why), Err(more)) => bail!("{why:#}; {more:#}"),
    }
}

/// Whether a picture can be drawn there.
pub(crate) fn check_svg(path: &Path) -> Result<()> {
    if path.is_dir() || !folder(path).is_dir() {
        bail!("--svg {}: name a file in a folder that is there", path.display());
    }
    Ok(())
}
