//! The trader as a program: what its file says, on a device, until the day is over.

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
use ferrocx_app_common::report::JsonTarget;
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
        println!("the file is right: {}", config.summary());
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

/// Writes text for people, to whom it may concern: a reader that is gone ends no trading.
fn say(text: &str, mut out: impl Write) {
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Whether a picture can be drawn there.
pub(crate) fn check_svg(path: &Path) -> Result<()> {
    if path.is_dir() || !folder(path).is_dir() {
        bail!("--svg {}: name a file in a folder that is there", path.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};

    use anyhow::anyhow;
    use ferrocx::PortConfig;
    use ferrocx::bus::local::{LocalConfig, pair};
    use ferrocx::model::wire::{Link, link};
    use ferrocx::model::{Nic, NicConfig};
    use nix::sys::signal::Signal;

    use super::*;
    use crate::engine::EngineConfig;
    use crate::exchange::{Venue, VenueConfig};
    use crate::feed::Source;
    use crate::latency::now_ns;
    use crate::measure::trader_config;
    use crate::proto::{Text, mold};
    use crate::strategy::Outbox;

    fn args(config: Option<PathBuf>) -> cli::Trade {
        cli::Trade {
            config,
            device: None,
            core: None,
            late: false,
            enable: false,
            json: None,
            pcap: None,
            svg: None,
            check: true,
        }
    }

    #[test]
    fn a_password_is_not_for_others_to_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trade.toml");
        fs::write(&path, EXAMPLE.replace("password = \"\"", "password = \"secret\"")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = format!("{:#}", load(&args(Some(path.clone()))).unwrap_err());
        assert!(error.ends_with("its mode is 0640; chmod 600 it"), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let config = load(&args(Some(path.clone()))).unwrap();
        assert_eq!(config.trader.password.trimmed(), b"secret");
        // A line that cannot be read is not shown.
        fs::write(&path, EXAMPLE.replace("password = \"\"", "password = \"secret")).unwrap();
        let error = format!("{:#}", load(&args(Some(path))).unwrap_err());
        assert!(error.contains("line ") && !error.contains("secret"), "{error}");
        let error = load(&args(Some("/no/such".into()))).unwrap_err();
        assert!(format!("{error:#}").starts_with("/no/such: "));
    }

    #[test]
    fn a_kill_that_is_kept_is_not_undone_by_the_way() {
        let dir = tempfile::tempdir().unwrap();
        let (path, kill) = (dir.path().join("trade.toml"), dir.path().join("kill"));
        let key = format!("kill_file = \"{}\"\nsymbols", kill.display());
        fs::write(&path, EXAMPLE.replace("\nsymbols", &format!("\n{key}"))).unwrap();
        let mut args = args(Some(path));
        args.enable = true;
        assert_eq!(load(&args).unwrap().kill_file.as_deref(), Some(&*kill));
        fs::write(&kill, "").unwrap();
        let error = load(&args).unwrap_err().to_string();
        assert!(error.starts_with("--enable, and the kill switch is thrown while "), "{error}");
        args.enable = false;
        load(&args).unwrap();
    }

    #[test]
    fn a_kill_makes_its_file_and_says_so_if_it_cannot() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kill");
        let thrown = "the kill switch is thrown: no order leaves, and the exchange ";
        let told = format!("{thrown}was told to cancel all\n");
        assert_eq!(keep_kill("was told to cancel all", None), told);
        assert_eq!(keep_kill("was told to cancel all", Some(&file)), told);
        assert_eq!(
            fs::read_to_string(&file).unwrap(),
            "remove this file, and start with --enable\n"
        );
        let nowhere = dir.path().join("no/such");
        let said = keep_kill("hears", Some(&nowhere));
        let waits = format!("{thrown}hears\n{}: ", nowhere.display());
        assert!(said.starts_with(&waits) && said.lines().count() == 2, "{said}");
    }

    /// A trader of quotes that stand, and its exchange, which also keeps the device going, until
    /// nobody holds it. A kill is asked for when the trader idles next, once that is armed.
    struct Played {
        asked: Asked,
        is_armed: Arc<AtomicBool>,
        world: Arc<Mutex<(Nic, Venue<Link>)>>,
        kill_file: PathBuf,
        _dir: tempfile::TempDir,
    }

    impl Played {
        fn answers(&self, kind: u8) -> usize {
            let world = self.world.lock().unwrap();
            world.1.answers().filter(|answer| answer[0] == kind).count()
        }

        /// Runs `of` with the program, whose orders stand.
        fn run(of: impl FnOnce(&Self, Run<'_, Quoter>)) {
            let dir = tempfile::tempdir().unwrap();
            let kill_file = dir.path().join("kill");
            let mut config = Config::parse(EXAMPLE).unwrap();
            let venue = VenueConfig::default();
            config.trader = trader_config(&venue);
            config.trader.engine.orders.symbols = vec![venue.symbols[0]];
            config.kill_file = Some(kill_file.clone());
            let (near, wire) = link(4 << 20);
            let (local, side) = pair(LocalConfig::default()).unwrap();
            let mut nic = Nic::new(side, NicConfig::default());
            nic.datapath_mut().plug(near);
            let world = Arc::new(Mutex::new((nic, Venue::new(venue, wire, now_ns()))));
            let (asked, is_armed) = (Asked::default(), Arc::<AtomicBool>::default());
            let played = Self { asked, is_armed, world, kill_file, _dir: dir };
            let weak = Arc::downgrade(&played.world);
            let (flag, asked) = (Arc::clone(&played.is_armed), played.asked.clone());
            local.set_idle_hook(Some(Arc::new(move || {
                let Some(world) = weak.upgrade() else { return };
                let (nic, venue) = &mut *world.lock().unwrap();
                nic.step(now_ns());
                venue.poll(now_ns);
                if flag.swap(false, Ordering::Relaxed) {
                    asked.raise(Signal::SIGUSR1);
                }
            })));
            let port = PortConfig { housekeeping: None, ..PortConfig::default() };
            let port = Port::from_transport(local, port).unwrap();
            let trader = Trader::new(&port, &config.trader, Quoter::new(0, 100, 300)).unwrap();
            let later = |name| Later::start(name).unwrap();
            let [reports, warnings, kills] = ["reports", "warnings", "kills"].map(later);
            let mut run = Run {
                config: &config,
                json: None,
                svg: None,
                capture: None,
                port,
                trader,
                is_warned: false,
                warned: Warned::default(),
                warn_ns: 0,
                reports,
                warnings,
                kills,
            };
            let until = now_ns() + 120_000_000_000;
            while run.trader.engine().orders().count() == 0 {
                assert!(now_ns() < until, "no order stands");
                if run.trader.gateway().state() == GatewayState::Open {
                    played.world.lock().unwrap().1.step(now_ns());
                }
                (0..20).for_each(|_| {
                    run.trader.poll();
                    run.port.device().relax();
                });
            }
            of(&played, run);
        }
    }

    /// The switch is thrown with the signal that ends, or while what stands is being cancelled: it
    /// is kept, and the exchange hears of it before the session ends.
    #[test]
    fn a_kill_beside_the_end_or_during_it_is_told_and_kept() {
        for is_beside in [true, false] {
            Played::run(|played, mut run| {
                let stop = Stop::new();
                stop.raise();
                if is_beside {
                    played.asked.raise(Signal::SIGUSR1);
                }
                assert!(!run.trade(&stop, &played.asked).unwrap());
                played.is_armed.store(!is_beside, Ordering::Relaxed);
                run.end(false, &played.asked).unwrap();
                assert_eq!(played.answers(b'G'), 1, "it takes nothing new");
                assert!(played.kill_file.exists() && !played.asked.takes_kill());
            });
        }
    }

    /// The exchange says that the day is over, and the switch is thrown before that is seen.
    #[test]
    fn a_kill_beside_the_end_of_the_day_is_kept() {
        Played::run(|played, mut run| {
            played.world.lock().unwrap().1.dismiss();
            let until = now_ns() + 60_000_000_000;
            while !matches!(run.trader.gateway().state(), GatewayState::Done(_)) {
                assert!(now_ns() < until, "the day is not over");
                run.trader.poll();
                run.port.device().relax();
            }
            played.asked.raise(Signal::SIGUSR1);
            assert!(run.trade(&Stop::new(), &played.asked).unwrap());
            run.end(true, &played.asked).unwrap();
            assert!(played.kill_file.exists());
        });
    }

    /// Too few places for the market's orders: the counts alone would say so to nobody.
    #[test]
    fn what_no_book_took_is_said_once_of_each_kind() {
        let mut config = EngineConfig::default();
        config.books.orders = 1;
        config.books.stocks = vec![Text::new("AAPL").unwrap()];
        let mut engine = Engine::new(config, Quoter::new(0, 100, 300)).unwrap();
        let mut warned = Warned::default();
        assert_eq!(warned.news(&engine), "");
        let mut bytes = [0; 512];
        let session = Text::new("S").unwrap();
        let mut packet = mold::Builder::new(&mut bytes, session, 1).unwrap();
        let mut directory = [b' '; 39];
        directory[..3].copy_from_slice(&[b'R', 0, 1]);
        directory[11..15].copy_from_slice(b"AAPL");
        assert!(packet.push(&directory));
        for reference in 0..9 {
            let mut order = [0; 36];
            order[..3].copy_from_slice(&[b'A', 0, 1]);
            (order[18], order[19], order[23], order[35]) = (reference, b'B', 1, 1);
            assert!(packet.push(&order));
        }
        engine.feed(Source::A, packet.finish(), 0, &mut Nowhere);
        let (_, count) = engine.books().errors_by_reason().nth(5).unwrap();
        assert!(count > 0);
        assert_eq!(
            warned.news(&engine),
            format!(
                "messages that no book took, {count} by now, find no room in the table of orders; \
                 raise `orders` of [books]\n"
            )
        );
        assert_eq!(warned.news(&engine), "", "once");
    }

    /// Takes nothing.
    struct Nowhere;

    impl Outbox for Nowhere {
        fn send(&mut self, _: &[u8]) -> bool {
            false
        }
    }

    #[test]
    fn a_picture_of_what_nobody_measures_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trade.toml");
        let mut args = args(Some(path.clone()));
        args.svg = Some("x.svg".into());
        for (measure, refusal) in [
            ("false", Some("--svg x.svg, and nothing is measured; give `measure = true`")),
            ("true", None),
        ] {
            let text = EXAMPLE.replace("\nmeasure = false", &format!("\nmeasure = {measure}"));
            fs::write(&path, text).unwrap();
            let error = load(&args).err().map(|error| error.to_string());
            assert_eq!(error.is_some(), refusal.is_some(), "{error:?}");
            let said = error.unwrap_or_default();
            assert!(said.starts_with(refusal.unwrap_or_default()), "{said}");
        }
        args.svg = Some("/no/such/x.svg".into());
        let error = load(&args).unwrap_err().to_string();
        assert_eq!(error, "--svg /no/such/x.svg: name a file in a folder that is there");
    }

    #[test]
    fn whatever_ends_trading_what_stands_is_cancelled_and_both_reasons_are_said() {
        let ended = std::cell::Cell::new(None);
        let finish = |traded, end: Result<()>| {
            finish(traded, |is_over| {
                ended.set(Some(is_over));
                end
            })
            .map_err(|why| why.to_string())
        };
        assert_eq!(finish(Ok(true), Ok(())), Ok(()));
        assert_eq!(ended.take(), Some(true));
        for end in [Ok(()), Err(anyhow!("2 may stand"))] {
            let expected = if end.is_ok() { "no entry" } else { "no entry; 2 may stand" };
            assert_eq!(finish(Err(anyhow!("no entry")), end), Err(expected.into()));
            assert_eq!(ended.take(), Some(false));
        }
    }

    #[test]
    fn a_reader_that_is_gone_ends_nothing() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }

            fn flush(&mut self) -> io::Result<()> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
        }
        say("a line", Gone);
        let mut heard = Vec::new();
        say("a line", &mut heard);
        assert_eq!(heard, b"a line");
    }

    #[test]
    fn nodes_that_differ_are_named_and_those_that_nobody_knows_are_not() {
        for one in [[None; 3], [Some(1), None, None], [Some(1), None, Some(1)], [Some(0); 3]] {
            assert_eq!(split_nodes(one[0], one[1], one[2]), None);
        }
        let split = split_nodes(Some(0), Some(1), None).unwrap();
        assert!(split.starts_with("core of node 0, adapter of node 1: what crosses"), "{split}");
        assert!(split_nodes(Some(1), None, Some(0)).is_some());
    }

    #[test]
    fn the_command_line_goes_before_the_file() {
        let mut args = args(None);
        args.device = Some("model:tap=x".into());
        (args.core, args.late) = (Some(1), true);
        let config = load(&args).unwrap();
        assert_eq!((config.device.as_str(), config.core), ("model:tap=x", Some(1)));
        assert!(config.trader.joins_late);
    }
}
