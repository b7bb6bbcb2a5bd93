//! Files that are as they should be, and others.

use super::*;
use crate::exchange::VenueConfig;

#[test]
fn the_example_trades_with_our_exchange_and_says_every_default() {
    let config = Config::parse(EXAMPLE).unwrap();
    let (trader, venue) = (&config.trader, VenueConfig::default());
    assert_eq!((config.device.as_str(), config.core), ("model", None));
    assert_eq!((trader.lines, trader.user), (venue.lines, venue.user));
    let at = |port| SocketAddrV4::new(venue.address, port);
    let servers = (trader.orders, trader.requests, trader.snapshots);
    let wanted = [venue.orders_port, venue.requests_port, venue.snapshots_port].map(at);
    assert_eq!(servers, (wanted[0], wanted[1], Some(wanted[2])));
    let taker = Traded::Taker { security: 0, at_most: 1_500_000, shares: 100 };
    assert_eq!(config.strategy, taker);
    // Without what has a default, the same.
    let mut short: toml::Table = EXAMPLE.parse().unwrap();
    for key in [
        "device",
        "answers_port",
        "late",
        "password",
        "firm",
        "timeout_ms",
        "answer_timeout_ms",
        "away_ms",
        "cancel_at_start",
        "measure",
        "market",
        "limits",
        "feed",
        "books",
    ] {
        assert!(short.remove(key).is_some(), "{key}");
    }
    let short = Config::parse(&short.to_string()).unwrap();
    assert_eq!(format!("{short:?}"), format!("{config:?}"));
    let limits = &config.trader.engine.orders.limits;
    assert_eq!(format!("{limits:?}"), format!("{:?}", risk::Limits::default()));
}

#[test]
fn what_cannot_be_is_refused_in_a_sentence_that_names_it() {
    for (from, to, why) in [
        ("198.18.0.2/24", "198.18.0.2", "address `198.18.0.2`; give one like 198.18.0.2/24"),
        ("198.18.0.2/24", "198.18.0.2/33", "the prefix length is 33; give 1 to 32"),
        (
            "239.1.1.2:26401",
            "239.1.1.1:26400",
            "both lines are at 239.1.1.1:26400; give each its own group or port",
        ),
        (
            "239.1.1.2:26401",
            "198.18.0.1:26401",
            "line 198.18.0.1:26401 is at no group; give one of 224.0.0.0 to 239.255.255.255",
        ),
        (
            "198.18.0.1:9000",
            "239.1.1.1:9000",
            "no server is at 239.1.1.1; give the address of one, such as 198.18.0.1",
        ),
        ("away_ms = 10 ", "away_ms = 0 ", "away_ms is 0; give 1 to 1000"),
        ("1:9000", "1:0", "nobody is at port 0 of 198.18.0.1; give 1 to 65535"),
        ("26500", "0", "answers_port is 0; give 1 to 65535"),
        ("timeout_ms = 15000", "timeout_ms = 1999", "timeout_ms is 1999; give 2000 to 600000"),
        ("order_shares = 1000", "order_shares = 0", "limits.order_shares is 0; give 1 to 999999"),
        (
            "order_shares = 1000",
            "order_shares = 1000000",
            "limits.order_shares is 1000000; give 1 to 999999",
        ),
        (
            "user = \"ferro\"",
            "user = \"ferrocx\"",
            "user `ferrocx`; give up to 6 printable characters of ASCII",
        ),
        ("symbols = [\"NVDA\"]", "symbols = []", "no symbols; give at least one, such as \"AAPL\""),
        ("[\"NVDA\"]", "[\"A\", \"A\"]", "symbol `A` is there twice; leave one out"),
        ("[\"NVDA\"]", "[\"A\"]", "strategy.symbol `NVDA` is none of symbols; put it there"),
        ("shares = 100\n", "shares = 1001\n", "strategy.shares is 1001; give 1 to 1000"),
        (
            "at_most = \"150\"",
            "at_most = \"1.00001\"",
            "strategy.at_most is `1.00001`; give more than 0, with up to four decimals, such \
             as 150.25",
        ),
        (
            "at_most = \"150\"",
            "at_most = \"429496.73\"",
            "strategy.at_most is 429496.73; prices go up to 429496.7295",
        ),
        (
            "kind = \"taker\"",
            "kind = \"quoter\"",
            "a quoter has `spread`, and no `at_most`; give it so",
        ),
        ("rate = 1000 ", "rate = 65537 ", "limits.rate is 65537; give 1 to 65536"),
        (
            "\norders = 1024",
            "\norders = 1000",
            "limits.orders is 1000; give a power of two from 1 to 65536",
        ),
        ("retry_us = 2000", "retry_us = 99", "feed.retry_us is 99; give 100 to 10000000"),
        ("pace_us = 100 ", "pace_us = 0 ", "feed.pace_us is 0; give 1 to 1000000"),
        ("attempts = 5", "attempts = 100001", "feed.attempts is 100001; give 0 to 100000"),
        (
            "window = 65536",
            "window = 65535",
            "feed.window is 65535; give a power of two from 2 to 16777216",
        ),
        ("silence_ms = 2500", "silence_ms = 1000", "feed.silence_ms is 1000; give 1100 to 600000"),
        (
            "market = \"Q\"",
            "market = \"N\"",
            "market is `N`; give the letter that its halts name: Q, B or X",
        ),
        ("levels = 4096", "levels = 0", "books.levels is 0; give 1 to 65536"),
    ] {
        let text = EXAMPLE.replacen(from, to, 1);
        assert_ne!(text, EXAMPLE, "{from}");
        assert_eq!(format!("{:#}", Config::parse(&text).unwrap_err()), why);
    }
    let late = EXAMPLE.replace("late = false", "late = true").replace("snapshots =", "# ");
    let why = Config::parse(&late).unwrap_err().to_string();
    assert_eq!(why, "a late join needs `snapshots`, the address of the exchange's server of them");
    let shown = "password = 1234567\n";
    let why = Config::parse(shown).unwrap_err().to_string();
    assert_eq!(why, "line 1: password: give text in quotes");
    let unknown = format!("colour = 1\n{EXAMPLE}");
    let why = format!("{:#}", Config::parse(&unknown).unwrap_err());
    assert!(why.starts_with("line 1: there is no `colour`; give one of `device`"), "{why}");
}

#[test]
fn a_firm_that_nobody_gave_is_doubted() {
    let named = EXAMPLE.replace("firm = \"\"", "firm = \"FIRM\"");
    assert_eq!(Config::parse(&named).unwrap().doubt(), None);
    let doubt = Config::parse(EXAMPLE).unwrap().doubt();
    assert!(doubt.is_some_and(|doubt| doubt.starts_with("firm is blank")), "{doubt:?}");
}

#[test]
fn money_has_up_to_four_decimals() {
    for (text, amount) in [("1", 10_000), ("0.0001", 1), ("150.25", 1_502_500)] {
        assert_eq!(money("it", text).unwrap(), amount);
    }
    for text in ["", ".", "1.", ".5", "-1", "1e3", "0", "0.00000", "99999999999999999999"] {
        assert!(money("it", text).is_err(), "{text}");
    }
}
