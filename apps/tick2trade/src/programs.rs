//! An exchange as a program of its own, at the end of a TAP interface; and a day played again.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use ferrocx::model::wire::TapWire;
use ferrocx_app_common::{report::JsonTarget, signal::Stop};

use crate::book::BooksConfig;
use crate::cli;
use crate::config::Trades;
use crate::exchange::{Venue, VenueConfig};
use crate::latency::now_ns;
use crate::measure::{PRICE, SHARES, trader_config};
use crate::proto::Text;
use crate::proto::ouch::Answer;
use crate::replay;
use crate::strategy::{Quoter, Taker};

/// How long the end of the day is said again, to the feed's hearers and then to the member, ns. The
/// first begins again with each order that still comes, from a member who is behind, up to a limit.
const END_NS: u64 = 1_000_000_000;
const LATE_NS: u64 = 60_000_000_000;
/// Orders and levels that the book of a replayed security holds.
const REPLAY_ORDERS: usize = 1 << 18;
const REPLAY_LEVELS: usize = 1 << 14;
/// Time from one saying to the next, ns.
const SAY_NS: u64 = 100_000_000;

/// Runs an exchange at the end of a TAP interface: it waits for its member, trades for so many
/// offers, says that the day is over, and prints what it knows of the member's orders.
///
/// # Errors
/// One sentence: the interface cannot be had.
pub fn exchange(args: &cli::Exchange, stop: &Stop) -> Result<()> {
    let mut config = VenueConfig {
        loss_ppm: [args.loss_ppm; 2],
        cancels_on_disconnect: args.cancel_on_disconnect,
        ..VenueConfig::default()
    };
    config.crowd.seed = args.seed;
    let mut venue = Venue::new(config, TapWire::open(&args.tap)?, now_ns());
    for _ in 0..args.before {
        venue.step(now_ns());
    }
    println!("waiting for {} at {}", venue.config().user, venue.config().address);
    while !venue.is_connected() && !stop.is_raised() {
        venue.poll(now_ns);
    }
    let (mut next, interval_ns) = (now_ns(), args.interval_us * 1_000);
    for _ in 0..args.ticks {
        while now_ns() < next && !stop.is_raised() {
            venue.poll(now_ns);
        }
        if stop.is_raised() {
            break;
        }
        next += interval_ns;
        venue.step(now_ns());
        venue.offer(SHARES, PRICE, now_ns);
    }
    // First the feed, for a second; then the member.
    for is_over in [false, true] {
        let limit = now_ns() + LATE_NS;
        let (mut end, mut say, mut answered) = (now_ns() + END_NS, 0, venue.answered());
        while now_ns() < end {
            venue.poll(now_ns);
            if venue.answered() != answered {
                answered = venue.answered();
                end = (now_ns() + END_NS).min(limit);
            }
            if now_ns() >= say {
                say = now_ns() + SAY_NS;
                venue.end(now_ns());
            }
        }
        if !is_over {
            venue.dismiss();
        }
    }
    let member = Member::of(venue.answers());
    println!(
        "{} messages; {} orders of {} numbers up to {}, {} shares: {} bought, {} sold; {} \
         orders stand",
        venue.sent(),
        member.accepted,
        member.orders.len(),
        member.orders.keys().last().copied().unwrap_or(0),
        member.traded[0] + member.traded[1],
        member.traded[0],
        member.traded[1],
        member.orders.values().filter(|order| order.left != 0).count(),
    );
    Ok(())
}

/// What an exchange told its member, put together.
#[derive(Debug, Default)]
struct Member {
    /// Orders that were accepted, however often under one number.
    accepted: u64,
    orders: BTreeMap<u32, Told>,
    /// Shares bought and sold.
    traded: [u64; 2],
}

/// What a member was told of an order.
#[derive(Debug)]
struct Told {
    buys: bool,
    left: u32,
}

impl Member {
    fn of<'a>(answers: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut member = Self::default();
        for answer in answers {
            match Answer::parse(answer) {
                Ok((Answer::Accepted(order), _)) => {
                    member.accepted += 1;
                    let left = if order.state == b'L' { order.quantity.get() } else { 0 };
                    let told = Told { buys: order.side == b'B', left };
                    member.orders.insert(order.urn.get(), told);
                }
                Ok((Answer::Executed(trade), _)) => {
                    let shares = trade.quantity.get();
                    if let Some(buys) = member.take_off(trade.urn.get(), shares) {
                        member.traded[usize::from(!buys)] += u64::from(shares);
                    }
                }
                Ok((Answer::Cancelled(off), _)) => {
                    member.take_off(off.urn.get(), off.quantity.get());
                }
                Ok((Answer::Replaced(new), _)) => {
                    member.take_off(new.old_urn.get(), u32::MAX);
                    let told = Told { buys: new.side == b'B', left: new.quantity.get() };
                    member.orders.insert(new.urn.get(), told);
                }
                _ => {}
            }
        }
        member
    }

    /// Shares of an order are gone; says whether it buys.
    fn take_off(&mut self, urn: u32, shares: u32) -> Option<bool> {
        let order = self.orders.get_mut(&urn)?;
        order.left = order.left.saturating_sub(shares);
        Some(order.buys)
    }
}

/// Plays a recorded day, as often as it was told to, and prints what came of it.
///
/// # Errors
/// One sentence: a file, a name, or orders that differ from one time to another.
pub fn replay(args: &cli::Replay) -> Result<()> {
    if let Some(target) = &args.json {
        target.check()?;
    }
    let symbol = Text::new(&args.symbol).with_context(|| {
        format!("symbol {}; give 1 to 8 printable characters, such as AAPL", args.symbol)
    })?;
    let mut engine = trader_config(&VenueConfig::default()).engine;
    engine.orders.symbols = vec![symbol];
    engine.books = BooksConfig {
        stocks: vec![symbol],
        books: 1,
        orders: REPLAY_ORDERS,
        levels: REPLAY_LEVELS,
        ..BooksConfig::default()
    };
    let plan = replay::Plan {
        file: args.file.clone(),
        lines: replay::Lines {
            groups: [args.line_a, args.line_b],
            answers_port: args.answers_port,
        },
        pace: args.pace,
        engine,
        orders: args.orders.clone(),
    };
    let show = |played: &replay::Played, took: Duration| {
        let line = format!("{}; took {:.3} s", played.text(), took.as_secs_f64());
        match args.json {
            Some(JsonTarget::Stdout) => eprintln!("{line}"),
            _ => println!("{line}"),
        }
    };
    let played = match args.strategy {
        Trades::Taker => {
            let taker = || Taker::new(0, args.at_most, args.shares);
            replay::play_again(&plan, args.runs, taker, show)
        }
        Trades::Quoter => {
            let quoter = || Quoter::new(0, args.shares, args.spread);
            replay::play_again(&plan, args.runs, quoter, show)
        }
    }?;
    if let Some(target) = &args.json {
        target.write(&played)?;
    }
    Ok(())
}
