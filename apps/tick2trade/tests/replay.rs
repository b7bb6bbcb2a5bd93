//! A recorded day gives the same orders each time, at any pace, from a file of ITCH and from a
//! capture of our lines.

use std::path::{Path, PathBuf};

use ferrocx_tick2trade::exchange::VenueConfig;
use ferrocx_tick2trade::measure::{self, trader_config};
use ferrocx_tick2trade::proto::{Text, itch::TradingAction};
use ferrocx_tick2trade::replay::{Lines, Pace, Plan, Played, play, play_again};
use ferrocx_tick2trade::strategy::{Quoter, Taker};
use ferrocx_tick2trade::{book::BooksConfig, day};
use tempfile::TempDir;

fn plan(file: &Path, symbol: &str, orders: Option<PathBuf>) -> Plan {
    let venue = VenueConfig::default();
    let symbol = Text::new(symbol).unwrap();
    let mut engine = trader_config(&venue).engine;
    engine.orders.symbols = vec![symbol];
    engine.books = BooksConfig { stocks: vec![symbol], ..BooksConfig::default() };
    let lines = Lines { groups: venue.lines, answers_port: 26_500 };
    Plan { file: file.into(), lines, pace: Pace::Unbound, engine, orders }
}

fn three_times(plan: &Plan) -> Played {
    let played = play_again(plan, 3, || Quoter::new(0, 100, 300), |_, _| ()).unwrap();
    assert_eq!((played.lost, played.refused, played.mismatches), (0, 0, 0), "{played:?}");
    played
}

#[test]
fn a_day_of_itch_gives_the_same_orders_three_times_and_at_every_pace() {
    let folder = TempDir::new().unwrap();
    let (file, orders) = (folder.path().join("day"), folder.path().join("orders"));
    day::write(50_000, 1, std::fs::File::create(&file).unwrap(), std::io::sink()).unwrap();
    let mut plan = plan(&file, "AAAAAAAA", Some(orders.clone()));
    let played = three_times(&plan);
    assert!(played.orders > 100, "{played:?}");
    let bytes = std::fs::read(&orders).unwrap();
    assert_eq!(bytes.len() as u64, played.order_bytes);
    let sha1 = sha1_smol::Sha1::from(&bytes).digest().to_string();
    assert_eq!(sha1, played.orders_sha1);
    // What is recorded is a tenth of a second: at its own pace, and at others.
    for times in [1.0, 10.0, 0.5] {
        plan.pace = Pace::Times(times);
        assert_eq!(play(&plan, Quoter::new(0, 100, 300)).unwrap(), played);
    }
    // Another strategy gives others; another day, too.
    let taker = play(&plan, Taker::new(0, 1_500_000, 100)).unwrap();
    assert!(taker.orders > 0 && taker.orders_sha1 != played.orders_sha1, "{taker:?}");
    day::write(50_000, 2, std::fs::File::create(&file).unwrap(), std::io::sink()).unwrap();
    plan.pace = Pace::Unbound;
    assert_ne!(three_times(&plan).orders_sha1, played.orders_sha1);
}

#[test]
fn a_capture_gives_the_same_orders_three_times_with_what_was_lost_and_asked_for() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("lines.pcapng");
    let measured = measure::run(&measure::Plan {
        ticks: 1_000,
        warm_up: 10,
        interval_ns: 100_000,
        waits: true,
        seed: 1,
        loss_ppm: 50_000,
        reorder_ppm: 20_000,
        burst: 300,
        cores: None,
        pcap: Some(file.clone()),
        late: 0,
        realtime: false,
        baseline: None,
    })
    .unwrap();
    let played = three_times(&plan(&file, "AAPL", None));
    assert_eq!(played.next_message, measured.feed().messages + 1, "every message is there");
    assert!(played.gaps > 0 && played.passed_over > 1_000, "{played:?}");
    assert!(played.orders > 10, "{played:?}");
}

#[test]
fn a_security_of_which_no_trading_action_says_that_it_trades_is_named() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("day");
    let mut day = Vec::new();
    day::write(1_000, 1, &mut day, std::io::sink()).unwrap();
    std::fs::write(&file, &day).unwrap();
    let taker = || Taker::new(0, u32::MAX, 1);
    assert_eq!(play(&plan(&file, "AAAAAAAA", None), taker()).unwrap().halted, [""; 0]);
    let (mut rest, mut quiet) = (&day[..], Vec::new());
    while let [high, low, ..] = *rest {
        let message;
        (message, rest) = rest.split_at(2 + usize::from(u16::from_be_bytes([high, low])));
        if message[2] != TradingAction::KIND {
            quiet.extend(message);
        }
    }
    std::fs::write(&file, &quiet).unwrap();
    let played = play(&plan(&file, "AAAAAAAA", None), taker()).unwrap();
    assert_eq!((played.orders, &played.halted[..]), (0, &["AAAAAAAA".to_owned()][..]));
    let said = played.text();
    assert!(said.ends_with("; no trading action names AAAAAAAA, which counts as halted"), "{said}");
}

#[test]
fn what_cannot_be_played_is_said_in_a_sentence() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("day");
    let why = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        let plan = plan(&file, "AAPL", None);
        let error = play_again(&plan, 1, || Quoter::new(0, 100, 300), |_, _| ()).unwrap_err();
        format!("{error:#}")
    };
    assert!(why(b"").ends_with("holds nothing of the feed"), "{}", why(b""));
    assert!(why(&[0, 12, b'S']).contains("it ends in the middle of message 1"));
    let zipped = why(&[0x1f, 0x8b, 8, 0, 0]);
    assert!(zipped.ends_with("it is compressed by gzip: unpack it first, by gunzip --keep"));
    let mut same = plan(&file, "AAPL", None);
    same.lines.groups[1] = same.lines.groups[0];
    let said = play(&same, Taker::new(0, 1, 1)).unwrap_err().to_string();
    assert!(said.starts_with("line A and line B are both at 239.1.1.1:26400; give"), "{said}");
    day::write(1_000, 1, std::fs::File::create(&file).unwrap(), std::io::sink()).unwrap();
    let said = play(&plan(&file, "ZZZZ", None), Taker::new(0, 1, 1)).unwrap_err().to_string();
    assert!(said.contains("does not list ZZZZ: it lists AAAAAAAA, BBBBBBBB, "), "{said}");
    let orders = folder.path().join("orders");
    let refused = || play(&plan(&file, "ZZZZ", Some(orders.clone())), Taker::new(0, 1, 1));
    refused().unwrap_err();
    assert!(!orders.exists());
    std::fs::write(&orders, "of another day").unwrap();
    refused().unwrap_err();
    assert_eq!(std::fs::read(&orders).unwrap(), b"of another day");
    for pace in ["", "0", "-1", "fast", "nan", "1e9"] {
        assert!(pace.parse::<Pace>().unwrap_err().contains("give max, or 1"), "{pace}");
    }
    assert_eq!("max".parse::<Pace>(), Ok(Pace::Unbound));
    assert_eq!("2".parse::<Pace>(), Ok(Pace::Times(2.0)));
}
