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
    assert_eq!(fs::read_to_string(&file).unwrap(), "remove this file, and start with --enable\n");
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
