//! The command line.

use std::net::SocketAddrV4;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use ferrocx_app_common::list::CoreList;
use ferrocx_app_common::report::JsonTarget;

use crate::config::Trades;
use crate::replay::Pace;

/// Market data in, orders out, on our queues: an engine, an exchange to trade with, and what lies
/// between, measured.
#[derive(Debug, Clone, Parser)]
#[command(name = "tick2trade", version, max_term_width = 100)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Say more; twice for all
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,
}

/// What to do.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Measure tick to trade: exchange and engine in this process, on the software ConnectX
    Measure(Measure),
    /// Say what of this machine will cost time, and measure how long its cores are away
    Check(Check),
    /// Write a synthetic day of ITCH, and what our books say of it, for strangers to judge
    Day(Day),
    /// Play a recorded day to the engine: the same day gives the same orders, to the byte
    Replay(Replay),
    /// Be an exchange at the end of a TAP interface: 198.18.0.1, for one member
    Exchange(Exchange),
    /// Trade with an exchange on a device, as a file says
    Trade(Trade),
}

/// What to look at.
#[derive(Debug, Clone, clap::Args)]
pub struct Check {
    /// Core that will poll
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub core: usize,
    /// Seconds to measure, 1 to 3600
    #[arg(long, visible_alias = "duration", value_name = "S", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub seconds: u64,
}

/// Which day.
#[derive(Debug, Clone, clap::Args)]
pub struct Day {
    /// Messages, 1 to 1000000000
    #[arg(long, value_name = "N", default_value_t = 1_000_000,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub messages: u64,
    /// Seed of the day
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Where the messages go, each behind its length
    #[arg(long, value_name = "FILE")]
    pub file: PathBuf,
    /// Where the changes of the best prices go, rows of eight little-endian 64-bit numbers
    #[arg(long, value_name = "FILE")]
    pub bests: PathBuf,
}

/// What is played.
#[derive(Debug, Clone, clap::Args)]
pub struct Replay {
    /// Recording: pcapng or pcap of a feed's lines, or ITCH messages, each behind its length
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// How fast: max, or 1 for the recorded pace, or another factor from 0.001 to 1000000
    #[arg(long, value_name = "PACE", default_value = "max")]
    pub pace: Pace,
    /// Times that it is played; orders that differ from one time to another are an error
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub runs: u32,
    /// Security that is traded
    #[arg(long, value_name = "NAME", default_value = "AAPL")]
    pub symbol: String,
    /// Strategy that trades
    #[arg(long, value_enum, default_value = "taker")]
    pub strategy: Trades,
    /// Highest price that the taker pays, in ten thousandths; 1500000 is 150.0000
    #[arg(long, value_name = "PRICE", default_value_t = 1_500_000)]
    pub at_most: u32,
    /// Least distance of the quoter's prices, in ten thousandths
    #[arg(long, value_name = "PRICE", default_value_t = 300)]
    pub spread: u32,
    /// Shares of an order, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub shares: u32,
    /// Group and port of line A in a capture
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "239.1.1.1:26400")]
    pub line_a: SocketAddrV4,
    /// Group and port of line B in a capture
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "239.1.1.2:26401")]
    pub line_b: SocketAddrV4,
    /// UDP port that answers to requests for lost messages came to in a capture
    #[arg(long, value_name = "PORT", default_value_t = 26_500)]
    pub answers_port: u16,
    /// Write what was sent to this file: SoupBinTCP packets with OUCH, one behind the other
    #[arg(long, value_name = "FILE")]
    pub orders: Option<PathBuf>,
    /// Write the counts for programs to this file, - for standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<JsonTarget>,
}

/// What an exchange does.
#[derive(Debug, Clone, clap::Args)]
pub struct Exchange {
    /// TAP interface whose other end it is
    #[arg(long, value_name = "NAME")]
    pub tap: String,
    /// Offers, 1 to 100000000; then the day is over
    #[arg(long, value_name = "N", default_value_t = 10_000,
        value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub ticks: u64,
    /// Microseconds from one offer to the next, 1 to 1000000
    #[arg(long, value_name = "US", default_value_t = 1_000,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub interval_us: u64,
    /// Seed of the crowd and of what is lost
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Packets of each line that are lost on purpose, in a million, 0 to 1000000
    #[arg(long, value_name = "PPM", default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub loss_ppm: u32,
    /// Things that the crowd does before the member may come, 0 to 1000000
    #[arg(long, value_name = "N", default_value_t = 0,
        value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub before: u64,
    /// Cancel what stands of the member when its connection is lost
    #[arg(long)]
    pub cancel_on_disconnect: bool,
}

/// How to trade.
///
/// SIGUSR1 throws the kill switch: no order leaves any more, and the exchange is told to cancel
/// everything and to take nothing new, when order entry opens again if it is not open. SIGUSR2
/// prints all counts. Ctrl-C and SIGTERM cancel what stands, log out and end.
#[derive(Debug, Clone, clap::Args)]
pub struct Trade {
    /// Who trades what, where, and how much at most: see examples/trade.toml, which is taken where
    /// no file is given
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Device, instead of the file's: model, model:tap=NAME, or a PCI address like 0000:3b:00.0
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Core that polls, instead of the file's
    #[arg(long, value_name = "N")]
    pub core: Option<usize>,
    /// Join late, whatever the file says: take the books from the exchange's snapshot, not the day
    /// from its first message
    #[arg(long)]
    pub late: bool,
    /// Ask the exchange to take orders again, behind a kill switch that was thrown today
    #[arg(long)]
    pub enable: bool,
    /// Write all counts to this file at the end and at each SIGUSR2, - for standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<JsonTarget>,
    /// Write every frame of feed and sessions to this pcapng file, with the device's stamps if the
    /// file says `measure = true`; a thread of its own does it
    #[arg(long, visible_alias = "capture", value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Draw into this file at the end where the time went, if the file says `measure = true`
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Only check the file, and not whether the cores, devices and files that it names are there
    #[arg(long)]
    pub check: bool,
}

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub struct Measure {
    /// Offers that are taken, 1 to 100000000
    #[arg(long, value_name = "N", default_value_t = 100_000,
        value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub ticks: u64,
    /// Microseconds from one offer to the next, 1 to 1000000
    #[arg(long, value_name = "US", default_value_t = 50,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub interval_us: u64,
    /// Offer only when the last offer was taken: every one is, however busy the machine, and the
    /// figures do not show what a queue would do
    #[arg(long)]
    pub closed: bool,
    /// Seed of the crowd and of what is lost
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Packets of each line that are lost on purpose, in a million, 0 to 1000000
    #[arg(long, value_name = "PPM", default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub loss_ppm: u32,
    /// Packets of each line that come behind the next one, in a million, 0 to 1000000
    #[arg(long, value_name = "PPM", default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub reorder_ppm: u32,
    /// Messages that both lines lose at a time, in the middle of the run, 0 to 1000000
    #[arg(long, value_name = "N", default_value_t = 0,
        value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub burst: u64,
    /// Cores of engine and exchange, such as 2,3 [default: the first and the last]
    #[arg(long, value_name = "LIST")]
    pub cores: Option<CoreList>,
    /// Draw the histograms into this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write percentiles for programs to this file, - for standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<JsonTarget>,
    /// Write all that the engine on queues counted to this file, - for standard output
    #[arg(long, value_name = "FILE")]
    pub counts: Option<JsonTarget>,
    /// Write every frame on the model's wire to a pcapng file; costs time that is in the figures
    #[arg(long, visible_alias = "capture", value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Give the threads that poll, ours and the kernel's sockets' alike, real-time priority
    /// (SCHED_FIFO 1): nothing of normal priority takes their cores, but for the share that the
    /// kernel keeps for it (see check)
    #[arg(long)]
    pub realtime: bool,
    /// Do the same over the kernel's sockets, on this TAP interface, which has 198.18.0.2/24
    #[arg(long, value_name = "NAME")]
    pub baseline: Option<String>,
}
