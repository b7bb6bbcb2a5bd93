//! A day that was recorded, played again: the same input gives the same orders, to the byte.
//!
//! What decides is given the recording's times and no other, so that it sees the same at the
//! recorded pace, at a factor of it, and as fast as it goes. Orders are answered by what the books
//! say (`paper`), and what was sent is one stream of bytes, with its SHA-1.
//!
//! # What it does not do
//! It does not go by queues: from the datagram on, the code is the trader's; before it, a file is
//! read. Captured answers of an exchange are passed over.

mod paper;
mod recording;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use sha1_smol::Sha1;

use crate::engine::{Engine, EngineConfig};
use crate::latency::now_ns;
use crate::proto::itch::Message;
use crate::proto::mold;
use crate::strategy::{Outbox, Strategy};
use paper::Paper;

pub use recording::{Lines, Recorded, Recording};

/// Securities that are named to who asks for another, at most.
const LISTED: usize = 12;
/// A wait that is longer lets the core sleep, all but the last of it.
const SLEEP_NS: u64 = 2_000_000;

/// How fast a recording is played.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// As fast as it goes.
    Unbound,
    /// So many times as fast as it was recorded.
    Times(f64),
}

impl FromStr for Pace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.parse().ok().filter(|&times| (0.001..=1e6).contains(&times));
        match (text, number) {
            ("max", _) => Ok(Self::Unbound),
            (_, Some(times)) => Ok(Self::Times(times)),
            _ => Err(format!(
                "pace {text}; give max, or 1 for the recorded pace, or another factor from 0.001 \
                 to 1000000"
            )),
        }
    }
}

/// What is played, and how.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The recording: pcapng, pcap, or ITCH messages behind their lengths.
    pub file: PathBuf,
    /// Where the lines of a capture are.
    pub lines: Lines,
    /// How fast.
    pub pace: Pace,
    /// Feed, books, orders.
    pub engine: EngineConfig,
    /// The stream of orders goes here, too.
    pub orders: Option<PathBuf>,
}

impl Plan {
    /// Refuses what cannot be told apart.
    ///
    /// # Errors
    /// One sentence: both lines are at the same group and port.
    fn check(&self) -> Result<()> {
        let [a, b] = self.lines.groups;
        ensure!(a != b, "line A and line B are both at {a}; give each its own group or port");
        Ok(())
    }

    /// Refuses a recording in which nothing that is traded is listed.
    ///
    /// # Errors
    /// One sentence: what was looked for, and some of what is listed.
    fn check_listed(&self, engine: &Engine<impl Strategy>) -> Result<()> {
        if engine.books().iter().len() != 0 {
            return Ok(());
        }
        let names = |stocks: Vec<String>| match stocks.is_empty() {
            true => "nothing".to_owned(),
            false => stocks.join(", "),
        };
        let wanted = self.engine.orders.symbols.iter().map(ToString::to_string).collect();
        let listed = self.listed()?;
        let more = if listed.len() == LISTED { ", and perhaps more" } else { "" };
        bail!(
            "{} does not list {}: it lists {}{more}; give a security that it lists",
            self.file.display(),
            names(wanted),
            names(listed),
        )
    }

    /// The first securities that a recording lists.
    fn listed(&self) -> Result<Vec<String>> {
        let (mut recording, mut listed) = (Recording::open(&self.file, self.lines)?, Vec::new());
        while let Some(Recorded { datagram, .. }) = recording.next_datagram()? {
            let Ok(packet) = mold::Packet::parse(datagram) else { continue };
            for message in packet.messages() {
                if let Ok(Message::StockDirectory(directory)) = Message::parse(message) {
                    let name = directory.stock.to_string();
                    if !listed.contains(&name) {
                        listed.push(name);
                    }
                    if listed.len() == LISTED {
                        return Ok(listed);
                    }
                }
            }
        }
        Ok(listed)
    }
}

/// What a recording gave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Played {
    /// Datagrams of the feed.
    pub datagrams: u64,
    /// Frames of a capture that are none of the feed's.
    pub passed_over: u64,
    /// Messages that the engine took, one above the number of the last.
    pub next_message: u64,
    /// Times that messages were missing.
    pub gaps: u64,
    /// Messages that the recording does not have.
    pub lost: u64,
    /// Messages that no book could apply, or that are none.
    pub refused: u64,
    /// Packets of orders and cancels.
    pub orders: u64,
    /// Bytes of them.
    pub order_bytes: u64,
    /// SHA-1 of these bytes.
    pub orders_sha1: String,
    /// Shares that traded, on paper.
    pub executed: u64,
    /// Answers that did not fit our orders.
    pub mismatches: u64,
    /// Time from the first datagram to the last, as recorded, ns.
    pub recorded_ns: u64,
    /// Securities that no trading action names: they count as halted all day. Source: Nasdaq
    /// TotalView-ITCH 5.0, section 1.2.2.
    pub halted: Vec<String>,
}

impl Played {
    /// The line for people.
    pub fn text(&self) -> String {
        let halted = match &self.halted[..] {
            [] => String::new(),
            names => {
                format!("; no trading action names {}, which counts as halted", names.join(", "))
            }
        };
        format!(
            "{} datagrams, {} messages, {} gaps, {} lost, {} refused; {} orders, {} shares on \
             paper, sha1 {}{halted}",
            self.datagrams,
            self.next_message.saturating_sub(1),
            self.gaps,
            self.lost,
            self.refused,
            self.orders,
            self.executed,
            self.orders_sha1,
        )
    }
}

/// The file that orders go to. What it held before goes with the first of them, or once the
/// recording turns out to be one that gives none.
struct OrdersFile {
    file: BufWriter<File>,
    path: PathBuf,
    is_new: bool,
    has_begun: bool,
}

impl OrdersFile {
    fn open(path: &Path) -> Result<Self> {
        let is_new = !path.exists();
        let file = File::options().write(true).create(true).truncate(false).open(path);
        let file = BufWriter::new(file.with_context(|| path.display().to_string())?);
        Ok(Self { file, path: path.to_owned(), is_new, has_begun: false })
    }

    /// Empties it, unless that was done. A pipe or a terminal has nothing to lose.
    fn begin(&mut self) -> io::Result<()> {
        let file = self.file.get_ref();
        if !self.has_begun && file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        self.has_begun = true;
        Ok(())
    }

    fn write(&mut self, packet: &[u8]) -> io::Result<()> {
        self.begin()?;
        self.file.write_all(packet)
    }

    fn end(&mut self) -> io::Result<()> {
        self.begin()?;
        self.file.flush()
    }
}

impl Drop for OrdersFile {
    fn drop(&mut self) {
        if self.is_new && !self.has_begun {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Takes orders, and keeps those that were not answered.
struct Stream {
    sha1: Sha1,
    file: Option<OrdersFile>,
    unanswered: Vec<Vec<u8>>,
    packets: u64,
    bytes: u64,
    failed: Option<io::Error>,
}

impl Outbox for Stream {
    fn send(&mut self, packet: &[u8]) -> bool {
        self.sha1.update(packet);
        if let Some(file) = &mut self.file {
            self.failed = self.failed.take().or(file.write(packet).err());
        }
        self.unanswered.push(packet.to_vec());
        self.packets += 1;
        self.bytes += packet.len() as u64;
        true
    }
}

/// Plays a recording once.
///
/// # Errors
/// One sentence: a file that cannot be read or written, and why; lines that are the same;
/// securities that the recording does not list.
pub fn play(plan: &Plan, strategy: impl Strategy) -> Result<Played> {
    plan.check()?;
    let name = || plan.file.display().to_string();
    let mut recording = Recording::open(&plan.file, plan.lines).with_context(name)?;
    let mut config = plan.engine.clone();
    if recording.is_messages() {
        // Nobody can tell there that a line fell silent.
        config.feed.silence_ns = u64::MAX;
    }
    let mut engine = Engine::new(config, strategy)?;
    let mut stream = Stream {
        sha1: Sha1::new(),
        file: plan.orders.as_deref().map(OrdersFile::open).transpose()?,
        unanswered: Vec::new(),
        packets: 0,
        bytes: 0,
        failed: None,
    };
    let (mut paper, mut datagrams, start_ns) = (Paper::default(), 0, now_ns());
    let (mut first_ns, mut last_ns) = (None, 0);
    while let Some(Recorded { at_ns, source, datagram }) =
        recording.next_datagram().with_context(name)?
    {
        let first = *first_ns.get_or_insert(at_ns);
        (last_ns, datagrams) = (at_ns, datagrams + 1);
        if let Pace::Times(times) = plan.pace {
            wait_until(start_ns + ((at_ns - first) as f64 / times) as u64);
        }
        // Nobody is asked for what is missing: what was answered is in the recording.
        while let Some(due_ns) = engine.poll_at().filter(|&due_ns| due_ns <= at_ns) {
            engine.poll(due_ns, &mut stream);
            answer(&mut engine, &mut paper, &mut stream, due_ns);
        }
        engine.feed(source, datagram, at_ns, &mut stream);
        answer(&mut engine, &mut paper, &mut stream, at_ns);
        if let Some(error) = stream.failed.take() {
            return Err(error).context("the orders cannot be written");
        }
    }
    if datagrams != 0 {
        plan.check_listed(&engine)?;
        if let Some(file) = &mut stream.file {
            file.end().context("the orders cannot be written")?;
        }
    }
    let books = engine.books();
    let halted = books.iter().filter(|book| book.trading() == b' ');
    let halted = halted.map(|book| book.stock().to_string()).collect();
    let (arbiter, stats) = (engine.arbiter(), engine.stats());
    let refused = stats.malformed_packets + stats.malformed_messages + books.errors();
    Ok(Played {
        datagrams,
        passed_over: recording.passed_over(),
        next_message: arbiter.next(),
        gaps: arbiter.stats().gaps,
        lost: arbiter.stats().lost,
        refused,
        orders: stream.packets,
        order_bytes: stream.bytes,
        orders_sha1: stream.sha1.digest().to_string(),
        executed: paper.executed(),
        mismatches: engine.orders().mismatches(),
        recorded_ns: last_ns - first_ns.unwrap_or(last_ns),
        halted,
    })
}

/// Plays a recording `runs` times, and shows each to `each`.
///
/// # Errors
/// As [`play`]; orders that differ from one run to another.
pub fn play_again<S: Strategy>(
    plan: &Plan,
    runs: u32,
    strategy: impl Fn() -> S,
    mut each: impl FnMut(&Played, Duration),
) -> Result<Played> {
    let mut first: Option<Played> = None;
    for run in 1..=runs {
        let start_ns = now_ns();
        let played = play(plan, strategy())?;
        each(&played, Duration::from_nanos(now_ns() - start_ns));
        match &first {
            Some(first) if *first != played => {
                bail!("run {run} differs from run 1: {} / {}", played.text(), first.text())
            }
            Some(_) => {}
            None => first = Some(played),
        }
    }
    let played = first.context("0 runs; give one at least")?;
    ensure!(played.datagrams != 0, "{} holds nothing of the feed", plan.file.display());
    Ok(played)
}

/// What the orders of one datagram lead to, and what their answers lead to.
fn answer<S: Strategy>(
    engine: &mut Engine<S>,
    paper: &mut Paper,
    stream: &mut Stream,
    now_ns: u64,
) {
    let mut answers: Vec<Vec<u8>> = Vec::new();
    paper.trade_standing(engine.books(), now_ns, &mut |bytes| answers.push(bytes.to_vec()));
    loop {
        for bytes in answers.drain(..) {
            engine.answer(&bytes, now_ns, stream);
        }
        if stream.unanswered.is_empty() {
            return;
        }
        for packet in stream.unanswered.drain(..) {
            paper.take(&packet, engine.books(), now_ns, &mut |bytes| answers.push(bytes.to_vec()));
        }
    }
}

fn wait_until(at_ns: u64) {
    loop {
        let left = at_ns.saturating_sub(now_ns());
        if left == 0 {
            return;
        }
        if left > SLEEP_NS {
            std::thread::sleep(Duration::from_nanos(left - SLEEP_NS / 2));
        }
        std::hint::spin_loop();
    }
}
