//! The file that `trade` is started with: [`File`], and [`Config`], which is it, checked.
//!
//! ```
//! use ferrocx_tick2trade::config::{Config, EXAMPLE};
//!
//! let config = Config::parse(EXAMPLE)?;
//! assert_eq!(config.trader.engine.orders.limits.position_shares, 10_000);
//! # Ok::<(), anyhow::Error>(())
//! ```

use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use ferrocx_app_common::input::{self, Wrong};
use ferrocx_app_common::list::MAX_CORE;
use serde::Deserialize;

use crate::book::BooksConfig;
use crate::engine::EngineConfig;
use crate::feed::ArbiterConfig;
use crate::orders::OrdersConfig;
use crate::proto::Text;
use crate::proto::itch::Stock;
use crate::proto::ouch::MAX_QUANTITY;
use crate::risk;
use crate::trader::TraderConfig;

/// What is counted in one unit of money: prices and values have four decimals.
const MONEY: u64 = 10_000;

/// The file that is taken where none is given: a trader for `tick2trade exchange`.
pub const EXAMPLE: &str = include_str!("../examples/trade.toml");

/// The file, as it is written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// `model`, `model:tap=NAME`, or a PCI address such as `0000:3b:00.0`.
    #[serde(default = "model")]
    pub device: String,
    /// The core that polls; without it the system chooses.
    pub core: Option<usize>,
    /// Our address and its prefix length, such as `198.18.0.2/24`.
    pub address: String,
    /// Where packets go that leave the subnet.
    pub gateway: Option<Ipv4Addr>,
    /// Groups and ports of line A and line B.
    pub lines: [SocketAddrV4; 2],
    /// The exchange's order entry.
    pub orders: SocketAddrV4,
    /// Its server of lost messages.
    pub requests: SocketAddrV4,
    /// Its server of snapshots.
    pub snapshots: Option<SocketAddrV4>,
    /// Our UDP port, that lost messages come to.
    #[serde(default = "answers_port")]
    pub answers_port: u16,
    /// The first books come from `snapshots`, too.
    #[serde(default)]
    pub late: bool,
    /// The member, up to 6 characters.
    pub user: String,
    /// Its password, up to 10 characters.
    #[serde(default)]
    pub password: String,
    /// The firm, up to 4 characters, for mass cancels.
    #[serde(default)]
    pub firm: String,
    /// Silence of the exchange after which a connection counts as dead, ms: 2000, for it says every
    /// second that it is there, to 600000.
    #[serde(default = "timeout_ms")]
    pub timeout_ms: u64,
    /// Time that the exchange has to answer, ms: 10 to 600000. What is overdue is cancelled, with
    /// everything else.
    #[serde(default = "answer_timeout_ms")]
    pub answer_timeout_ms: u64,
    /// Absence of the core, ms, behind which what came meanwhile is old, and not traded on: 1 to
    /// 1000.
    #[serde(default = "away_ms")]
    pub away_ms: u64,
    /// What stands of an earlier run is cancelled when order entry opens: the strategies here know
    /// of their own orders alone.
    #[serde(default = "cancel_at_start")]
    pub cancel_at_start: bool,
    /// If this file is there at the start, the kill switch is thrown; throwing it makes the file.
    /// Without one a restart knows of a kill only what the exchange was told.
    pub kill_file: Option<PathBuf>,
    /// Times of each stage, and from wire to wire by the device, come with each report.
    #[serde(default)]
    pub measure: bool,
    /// The market that is traded at, whose halts stop us: `Q`, `B` or `X`.
    #[serde(default = "q")]
    pub market: char,
    /// Securities that may be traded, up to 8 characters each.
    pub symbols: Vec<String>,
    /// What may be sent at most.
    #[serde(default)]
    pub limits: Limits,
    /// How patient the feed is.
    #[serde(default)]
    pub feed: Patience,
    /// Sizes of the books.
    #[serde(default)]
    pub books: BookSizes,
    /// What trades.
    pub strategy: StrategyFile,
}

fn model() -> String {
    "model".into()
}

const fn answers_port() -> u16 {
    26_500
}

const fn timeout_ms() -> u64 {
    15_000
}

const fn q() -> char {
    'Q'
}

const fn cancel_at_start() -> bool {
    true
}

const fn answer_timeout_ms() -> u64 {
    2_000
}

const fn away_ms() -> u64 {
    10
}

/// What may be sent at most, as the file has it: [`risk::Limits`] says what each means. Money has
/// up to four decimals.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Shares of one order: 1 to 999999.
    pub order_shares: u32,
    /// Value of one order.
    pub order_value: String,
    /// Distance from the reference price, hundredths of a percent: 1 to 10000.
    pub collar_bp: u32,
    /// Messages in any `rate_window_ms`: 1 to 65536.
    pub rate: usize,
    /// Length of that time, ms: 1 to 60000.
    pub rate_window_ms: u64,
    /// Shares of one security, long or short: 1 to 1000000000.
    pub position_shares: u32,
    /// Value of everything that stands and of all positions.
    pub credit: String,
    /// Orders of ours that may trade at a time: a power of two, 1 to 65536.
    pub orders: usize,
}

impl Default for Limits {
    fn default() -> Self {
        let (limits, orders) = (risk::Limits::default(), OrdersConfig::default().capacity);
        Self {
            order_shares: limits.order_shares,
            order_value: (limits.order_value / MONEY).to_string(),
            collar_bp: limits.collar_bp,
            rate: limits.rate,
            rate_window_ms: limits.rate_window_ns / 1_000_000,
            position_shares: limits.position_shares,
            credit: (limits.credit / MONEY).to_string(),
            orders,
        }
    }
}

/// How patient the feed is with messages that are missing, as the file has it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Patience {
    /// Time for the other line, us: 1 to 1000000.
    pub wait_us: u64,
    /// Time for the answer to a request, us: 100 to 10000000.
    pub retry_us: u64,
    /// Least time between two requests, of whatever is missing, us: 1 to 1000000. It bounds what
    /// the server is asked: 100 are 10,000 requests a second at most, of up to 30 messages each.
    pub pace_us: u64,
    /// Requests without an answer after which messages are lost: 0, which never asks, to 100000.
    pub attempts: u32,
    /// Messages that are kept ahead of one that is missing, and while a snapshot comes: a power of
    /// two, 2 to 2^24. Those of the time that a snapshot takes should fit.
    pub window: usize,
    /// Silence of both lines after which no order leaves, ms: 1100, a feed says every second that
    /// it is there, to 600000.
    pub silence_ms: u64,
}

impl Default for Patience {
    fn default() -> Self {
        let ArbiterConfig { wait_ns, retry_ns, pace_ns, attempts, window, silence_ns, .. } =
            ArbiterConfig::default();
        let [wait_us, retry_us, pace_us] = [wait_ns, retry_ns, pace_ns].map(|ns| ns / 1_000);
        Self { wait_us, retry_us, pace_us, attempts, window, silence_ms: silence_ns / 1_000_000 }
    }
}

impl Patience {
    fn check(&self) -> Result<ArbiterConfig> {
        let window = self.window;
        ensure!(
            window.is_power_of_two() && (2..=1 << 24).contains(&window),
            "feed.window is {window}; give a power of two from 2 to 16777216"
        );
        Ok(ArbiterConfig {
            window,
            wait_ns: in_range("feed.wait_us", self.wait_us, 1, 1_000_000)? * 1_000,
            retry_ns: in_range("feed.retry_us", self.retry_us, 100, 10_000_000)? * 1_000,
            pace_ns: in_range("feed.pace_us", self.pace_us, 1, 1_000_000)? * 1_000,
            attempts: in_range("feed.attempts", self.attempts, 0, 100_000)?,
            silence_ns: in_range("feed.silence_ms", self.silence_ms, 1_100, 600_000)? * 1_000_000,
            ..ArbiterConfig::default()
        })
    }
}

/// Sizes of the books, as the file has them.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BookSizes {
    /// Orders that stand at a time, in all books: 1 to 2^30.
    pub orders: usize,
    /// Price levels on each side of each book: 1 to 65536.
    pub levels: usize,
}

impl Default for BookSizes {
    fn default() -> Self {
        let BooksConfig { orders, levels, .. } = BooksConfig::default();
        Self { orders, levels }
    }
}

/// Which of the example strategies trades.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Trades {
    /// Takes what is offered at a price or below
    Taker,
    /// Stands on both sides of the book
    Quoter,
}

/// What trades, as the file has it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StrategyFile {
    /// Which strategy.
    pub kind: Trades,
    /// The security; the first of `symbols` where it is not given.
    pub symbol: Option<String>,
    /// Shares of an order: 1 to `limits.order_shares`.
    #[serde(default = "shares")]
    pub shares: u32,
    /// Highest price that the taker pays.
    pub at_most: Option<String>,
    /// Least distance of the quoter's prices.
    pub spread: Option<String>,
}

const fn shares() -> u32 {
    100
}

/// What trades, checked. Prices have four decimals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traded {
    /// A [`Taker`](crate::strategy::Taker).
    Taker {
        /// The security, an index of those that may be traded.
        security: usize,
        /// Highest price.
        at_most: u32,
        /// Shares of an order.
        shares: u32,
    },
    /// A [`Quoter`](crate::strategy::Quoter).
    Quoter {
        /// The security, an index of those that may be traded.
        security: usize,
        /// Shares of an order.
        shares: u32,
        /// Least distance of its prices.
        spread: u32,
    },
}

/// The file, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// The device.
    pub device: String,
    /// The core that polls.
    pub core: Option<usize>,
    /// The file that keeps the kill switch thrown over a restart.
    pub kill_file: Option<PathBuf>,
    /// Who trades where, and what at most.
    pub trader: TraderConfig,
    /// What trades.
    pub strategy: Traded,
}

fn in_range<T: PartialOrd + Display>(what: &str, value: T, min: T, max: T) -> Result<T> {
    ensure!(value >= min && value <= max, "{what} is {value}; give {min} to {max}");
    Ok(value)
}

fn text<const N: usize>(what: &str, text: &str) -> Result<Text<N>> {
    Text::new(text)
        .with_context(|| format!("{what} `{text}`; give up to {N} printable characters of ASCII"))
}

/// An amount of money in ten thousandths.
fn money(what: &str, text: &str) -> Result<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let amount = || {
        let part = format!("{part:0<4}").parse::<u64>().ok()?;
        whole.parse::<u64>().ok()?.checked_mul(MONEY)?.checked_add(part)
    };
    let is_one = is_digits(whole) && is_digits(part) && part.len() <= 4;
    is_one.then(amount).flatten().filter(|&amount| amount != 0).with_context(|| {
        format!("{what} is `{text}`; give more than 0, with up to four decimals, such as 150.25")
    })
}

fn price(what: &str, text: &str) -> Result<u32> {
    u32::try_from(money(what, text)?)
        .ok()
        .with_context(|| format!("{what} is {text}; prices go up to 429496.7295"))
}

impl Config {
    /// Reads and checks a file's text.
    ///
    /// # Errors
    /// One sentence that names the value, its limit and the way out.
    pub fn parse(text: &str) -> Result<Self> {
        let file = input::toml(text).map_err(|wrong| match &*wrong.path {
            // What it is, is nobody's business.
            "password" => Wrong { message: "give text in quotes".into(), ..wrong },
            _ => wrong,
        })?;
        Self::check(file)
    }

    /// What it says, in a line.
    pub fn summary(&self) -> String {
        let Self { device, trader, strategy, .. } = self;
        let limits = &trader.engine.orders.limits;
        let symbols = trader.engine.orders.symbols.iter().map(ToString::to_string);
        format!(
            "{} on {device} trades {} at {}, with {} shares of each and {} in money at most: \
             {strategy:?}",
            trader.user,
            symbols.collect::<Vec<_>>().join(", "),
            trader.orders,
            limits.position_shares,
            limits.credit / MONEY,
        )
    }

    /// What of it is possible and deserves a second look.
    pub fn doubt(&self) -> Option<&'static str> {
        (self.trader.engine.orders.firm == Text::BLANK).then_some(
            "firm is blank: the kill switch and mass cancels name it, so an exchange may refuse \
             them; give the one that it knows",
        )
    }

    /// Checks a file.
    ///
    /// # Errors
    /// Those of [`Config::parse`].
    pub fn check(file: File) -> Result<Self> {
        let place = || format!("address `{}`; give one like 198.18.0.2/24", file.address);
        let (address, bits) = file.address.split_once('/').with_context(place)?;
        let address: Ipv4Addr = address.parse().ok().with_context(place)?;
        let prefix_len = bits.parse().ok().with_context(place)?;
        let prefix_len = in_range("the prefix length", prefix_len, 1, 32)?;
        let [a, b] = file.lines;
        ensure!(a != b, "both lines are at {a}; give each its own group or port");
        for line in file.lines {
            ensure!(
                line.ip().is_multicast(),
                "line {line} is at no group; give one of 224.0.0.0 to 239.255.255.255"
            );
        }
        let servers = [Some(a), Some(b), Some(file.orders), Some(file.requests), file.snapshots];
        for at in servers.into_iter().flatten() {
            ensure!(at.port() != 0, "nobody is at port 0 of {}; give 1 to 65535", at.ip());
        }
        for at in [Some(file.orders), Some(file.requests), file.snapshots].into_iter().flatten() {
            ensure!(
                !at.ip().is_multicast() && !at.ip().is_unspecified() && !at.ip().is_broadcast(),
                "no server is at {}; give the address of one, such as 198.18.0.1",
                at.ip()
            );
        }
        in_range("answers_port", file.answers_port, 1, u16::MAX)?;
        ensure!(
            !file.late || file.snapshots.is_some(),
            "a late join needs `snapshots`, the address of the exchange's server of them"
        );
        if let Some(core) = file.core {
            in_range("core", core, 0, MAX_CORE)?;
        }
        let symbols = symbols(&file.symbols)?;
        // Before what they are a limit of.
        let limits = file.limits.check()?;
        let strategy = strategy(&file.strategy, &symbols, limits.order_shares)?;
        let books = BooksConfig {
            stocks: symbols.clone(),
            books: symbols.len(),
            orders: in_range("books.orders", file.books.orders, 1, 1 << 30)?,
            levels: in_range("books.levels", file.books.levels, 1, 1 << 16)?,
            market: market(file.market)?,
        };
        let orders = OrdersConfig {
            symbols,
            firm: text("firm", &file.firm)?,
            capacity: in_range("limits.orders", file.limits.orders, 1, 65_536)?,
            limits,
        };
        let trader = TraderConfig {
            address,
            prefix_len,
            gateway: file.gateway,
            lines: file.lines,
            orders: file.orders,
            snapshots: file.snapshots,
            joins_late: file.late,
            requests: file.requests,
            answers_port: file.answers_port,
            user: text("user", &file.user)?,
            password: Text::new(&file.password)
                .context("the password is longer than 10 printable characters of ASCII")?,
            timeout_ms: in_range("timeout_ms", file.timeout_ms, 2_000, 600_000)?,
            answer_timeout_ms: in_range("answer_timeout_ms", file.answer_timeout_ms, 10, 600_000)?,
            away_ms: in_range("away_ms", file.away_ms, 1, 1_000)?,
            cancels_at_start: file.cancel_at_start,
            engine: EngineConfig { feed: file.feed.check()?, books, orders },
            measure: file.measure,
            stamp_orders: file.measure,
        };
        let File { device, core, kill_file, .. } = file;
        Ok(Self { device, core, kill_file, trader, strategy })
    }
}

impl Limits {
    fn check(&self) -> Result<risk::Limits> {
        let orders = self.orders;
        ensure!(
            orders.is_power_of_two(),
            "limits.orders is {orders}; give a power of two from 1 to 65536"
        );
        Ok(risk::Limits {
            order_shares: in_range("limits.order_shares", self.order_shares, 1, MAX_QUANTITY)?,
            order_value: money("limits.order_value", &self.order_value)?,
            collar_bp: in_range("limits.collar_bp", self.collar_bp, 1, 10_000)?,
            rate: in_range("limits.rate", self.rate, 1, 65_536)?,
            rate_window_ns: in_range("limits.rate_window_ms", self.rate_window_ms, 1, 60_000)?
                * 1_000_000,
            position_shares: in_range(
                "limits.position_shares",
                self.position_shares,
                1,
                1_000_000_000,
            )?,
            credit: money("limits.credit", &self.credit)?,
        })
    }
}

/// The letter that a market's halts name.
fn market(letter: char) -> Result<u8> {
    let known = u8::try_from(letter).ok().filter(|letter| b"QBX".contains(letter));
    known.with_context(|| {
        format!("market is `{letter}`; give the letter that its halts name: Q, B or X")
    })
}

fn symbols(names: &[String]) -> Result<Vec<Stock>> {
    ensure!(!names.is_empty(), "no symbols; give at least one, such as \"AAPL\"");
    let mut symbols = Vec::with_capacity(names.len());
    for name in names {
        let symbol = text("symbol", name)?;
        ensure!(symbol != Text::BLANK, "a symbol is blank; give 1 to 8 characters");
        ensure!(!symbols.contains(&symbol), "symbol `{name}` is there twice; leave one out");
        symbols.push(symbol);
    }
    Ok(symbols)
}

fn strategy(file: &StrategyFile, symbols: &[Stock], order_shares: u32) -> Result<Traded> {
    let security = match &file.symbol {
        None => 0,
        Some(name) => {
            let symbol = text("strategy.symbol", name)?;
            let place = || format!("strategy.symbol `{name}` is none of symbols; put it there");
            symbols.iter().position(|&other| other == symbol).with_context(place)?
        }
    };
    let shares = in_range("strategy.shares", file.shares, 1, order_shares)?;
    match (file.kind, &file.at_most, &file.spread) {
        (Trades::Taker, Some(at_most), None) => {
            let at_most = price("strategy.at_most", at_most)?;
            Ok(Traded::Taker { security, at_most, shares })
        }
        (Trades::Quoter, None, Some(spread)) => {
            let spread = price("strategy.spread", spread)?;
            Ok(Traded::Quoter { security, shares, spread })
        }
        (Trades::Taker, ..) => bail!("a taker has `at_most`, and no `spread`; give it so"),
        (Trades::Quoter, ..) => bail!("a quoter has `spread`, and no `at_most`; give it so"),
    }
}

#[cfg(test)]
mod tests;
