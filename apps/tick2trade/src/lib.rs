//! Market data in, orders out: what a trading engine on ferrocx starts from.
//!
//! What decides is sans I/O: packets and the time come in, packets and orders go out. So a day that
//! is played again gives the same orders, and every part is tested without a network. Around it are
//! our queues, and to compare with, the kernel's sockets.
//!
//! # Architecture
//! - [`proto`]: the wire formats: MoldUDP64, SoupBinTCP, ITCH 5.0, OUCH 5.0 and 4.2.
//! - [`feed`]: one stream of messages out of two lines that lose some.
//! - [`book`]: price levels and their orders; a book that may be wrong says so.
//! - [`strategy`]: what a trader writes, and two examples.
//! - [`orders`] and [`risk`]: what was sent, what became of it, and what may be sent.
//! - [`engine`]: all of these, put together.
//! - [`tcp`]: the client that orders travel by; [`order_line`] puts it on a send queue, [`gateway`]
//!   keeps its session.
//! - [`trader`]: an engine on the queues of a port; [`kernel`]: the same on sockets.
//! - [`exchange`]: something to trade with: matching, feed, accounts, at the end of a wire.
//! - [`measure`], with [`timed`] and [`latency`]: how long it takes; [`watch`]: what of it is the
//!   machine's doing.
//! - [`capture`]: what came and went, with its times, as a file.
//! - [`replay`]: a recorded day again, with the same orders; [`day`]: a day for strangers to judge.
//! - [`programs`]: exchange and replay as processes of their own; [`operate`]: the trader as one,
//!   with [`config`], its file, [`signals`], what it is asked, and [`counters`], what it reports.
//! - [`cli`]: the command line.
//!
//! # What it does not do yet
//! Nothing here has met an exchange or an adapter. Auctions, hidden orders and orders at the market
//! are not traded.
//!
//! # Limits
//!
//! | what | where |
//! |---|---|
//! | messages kept ahead of a gap | [`feed::ArbiterConfig::window`] |
//! | books, orders, levels | [`book::BooksConfig`] |
//! | own orders at a time, and what they may do | [`orders::OrdersConfig`], [`risk::Limits`] |
//! | bytes and segments on their way | [`tcp::Config`] |
//! | silence of a connection, and how long an answer may take | [`trader::TraderConfig`] |
//! | a server that moves to another station: found within 10 s | [`trader`] |
//! | one member, one session, one strategy, one core | [`trader::Trader`] |
#![forbid(unsafe_code)]

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use core_affinity::CoreId;
use ferrocx_app_common::cores::{self, Costs, Setting};
use ferrocx_app_common::{report::JsonTarget, signal::Stop};

pub mod book;
pub mod capture;
pub mod cli;
pub mod config;
pub mod counters;
pub mod day;
pub mod engine;
pub mod exchange;
pub mod feed;
pub mod gateway;
pub mod kernel;
pub mod latency;
mod later;
pub mod measure;
pub mod operate;
pub mod order_line;
pub mod orders;
pub mod programs;
pub mod proto;
pub mod replay;
pub mod risk;
pub mod signals;
pub mod strategy;
pub mod tcp;
pub mod timed;
pub mod trader;
pub mod watch;

/// Does what the command line says.
///
/// # Errors
/// One sentence about the first thing that went wrong.
pub fn main(args: &cli::Args) -> Result<()> {
    match &args.command {
        cli::Command::Measure(args) => measure(args),
        cli::Command::Check(args) => check(args),
        cli::Command::Day(args) => day(args),
        cli::Command::Replay(args) => programs::replay(args),
        cli::Command::Exchange(args) => programs::exchange(args, &Stop::on_signals()?),
        cli::Command::Trade(args) => operate::trade(args),
    }
}

fn day(args: &cli::Day) -> Result<()> {
    let create = |path: &Path| -> Result<_> {
        let file = std::fs::File::create(path).with_context(|| path.display().to_string())?;
        Ok(std::io::BufWriter::with_capacity(1 << 20, file))
    };
    let (file, bests) = (create(&args.file)?, create(&args.bests)?);
    let stats = day::write(args.messages, args.seed, file, bests)?;
    println!(
        "{} messages of {} kinds, {} changes of the best prices",
        stats.messages, stats.kinds, stats.changes
    );
    Ok(())
}

fn check(args: &cli::Check) -> Result<()> {
    operate::take_core(args.core)?;
    for Setting { check, is, costs } in cores::settings(Path::new("/"), args.core) {
        let mark = if costs.is_some() { "costs" } else { "ok" };
        println!("{mark:<6} {check:<12} {is}");
        if let Some(Costs { why, mend }) = costs {
            println!("       {why}; mend: {mend}");
        }
    }
    let absences = watch::jitter(std::time::Duration::from_secs(args.seconds));
    let away =
        absences.iter_recorded().map(|step| step.value_iterated_to() * step.count_at_value());
    println!(
        "core {} was away {} times in {} s, {:.3} % of the time:",
        args.core,
        absences.len(),
        args.seconds,
        away.sum::<u64>() as f64 / 1e7 / args.seconds as f64,
    );
    print!("{}", latency::table(&[latency::Row::new("away", &absences)]));
    Ok(())
}

/// The cores of engine and exchange: those that were named, or the first and the last of this
/// process's. Two threads spin: on one core, each would wait for the other's turn to end.
fn cores_of_two(args: &cli::Measure) -> Result<Option<[CoreId; 2]>> {
    let known = core_affinity::get_core_ids().unwrap_or_default();
    let Some(cores) = &args.cores else {
        return Ok(match known[..] {
            [engine, .., exchange] => Some([engine, exchange]),
            _ => None,
        });
    };
    let named: Vec<CoreId> = cores.0.iter().map(|&id| CoreId { id }).collect();
    match named[..] {
        [engine, exchange] if named.iter().all(|core| known.contains(core)) => {
            Ok(Some([engine, exchange]))
        }
        _ => bail!(
            "--cores {}: give two of those that this process may use, {}",
            operate::listed(&named),
            operate::listed(&known)
        ),
    }
}

fn measure(args: &cli::Measure) -> Result<()> {
    for target in [&args.json, &args.counts].into_iter().flatten() {
        target.check()?;
    }
    args.svg.as_deref().map_or(Ok(()), operate::check_svg)?;
    let cores = cores_of_two(args)?;
    cores.iter().for_each(|[engine, _]| operate::warn_of(engine.id));
    let report = measure::run(&measure::Plan {
        ticks: args.ticks,
        warm_up: args.ticks / 10,
        interval_ns: args.interval_us * 1_000,
        waits: args.closed,
        seed: args.seed,
        loss_ppm: args.loss_ppm,
        reorder_ppm: args.reorder_ppm,
        burst: args.burst,
        cores,
        late: 0,
        realtime: args.realtime,
        pcap: args.pcap.clone(),
        baseline: args.baseline.clone(),
    })?;
    if [&args.json, &args.counts].contains(&&Some(JsonTarget::Stdout)) {
        eprint!("{}", report.text());
    } else {
        // A closed pipe is no reason to lose the files.
        let _ = std::io::stdout().write_all(report.text().as_bytes());
    }
    if let Some(path) = &args.svg {
        std::fs::write(path, report.svg()).with_context(|| format!("{}", path.display()))?;
    }
    if let Some(target) = &args.json {
        target.write(&report.rows())?;
    }
    if let Some(target) = &args.counts {
        target.write(report.counters())?;
    }
    Ok(())
}
