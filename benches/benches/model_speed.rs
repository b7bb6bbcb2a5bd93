//! How fast the model is, beside what the same machine does without it, in one run.
//!
//! `cargo bench -p ferrocx-benches --bench model_speed -- [--seconds N] [--rounds N] [--check]`: an
//! 8-byte WRITE there and back beside a ping-pong over TCP's loopback, WRITEs of 1 MiB beside TCP's
//! loopback and a plain copy, 64-byte SENDs on one queue pair, and forwarding of 64-byte frames.
//! Two ends are on two cores everywhere. Of several rounds the best counts, for the model and for
//! what stands beside it alike: whatever else the machine does only takes away. With `--check`, a
//! ratio or a rate that misses its limit makes
//! the exit status 1.
//!
//! All of it is the model's speed, and no NIC's.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use ferrocx_app_common::signal::Stop;
use ferrocx_perftest::report::Row;
use ferrocx_perftest::{cli, config, run};

/// Bytes of a large message, and how many are on the way: buffers that take turns.
const LARGE_BYTES: usize = 1 << 20;
const BUFFERS: usize = 8;
const MIB: f64 = 1_048_576.0;

/// Limits: a WRITE there and back to TCP's time, WRITEs to TCP's and to a copy's bandwidth, SENDs
/// and frames a second.
const MAX_TIME_TO_TCP: f64 = 0.2;
const MIN_RATE_TO_TCP: f64 = 1.0;
const MIN_RATE_TO_COPY: f64 = 0.4;
const MIN_SENDS: f64 = 2e6;
const MIN_FRAMES: f64 = 8e6;

/// Measures the model beside TCP's loopback and a copy, in one run.
#[derive(Debug, Parser)]
struct Args {
    /// Seconds of each measurement
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Rounds, of which the best counts
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Fail where a limit is missed
    #[arg(long)]
    check: bool,
    /// What cargo adds
    #[arg(long, hide = true)]
    bench: bool,
}

/// What a round found: times in microseconds, bandwidths in MiB/s, rates a second.
#[derive(Debug, Clone, Copy)]
struct Round {
    write_us: f64,
    tcp_us: f64,
    write_mib: f64,
    tcp_mib: f64,
    copy_mib: f64,
    sends: f64,
    frames: f64,
}

impl Round {
    fn measure(seconds: f64) -> Result<Self> {
        let small = perftest(&["write", "lat", "--size", "8", "--inline", "8"], seconds)?;
        let large = perftest(
            &["write", "bw", "--size", "1048576", "--depth", "8", "--mtu", "4096"],
            seconds,
        )?;
        let sends = perftest(&["send", "bw", "--size", "64"], seconds)?;
        Ok(Self {
            write_us: small.times.value_at_quantile(0.5) as f64 / 1e3,
            tcp_us: tcp_ping_pong(seconds)?,
            write_mib: large.messages as f64 / large.seconds * LARGE_BYTES as f64 / MIB,
            tcp_mib: tcp_stream(seconds)?,
            copy_mib: copy(seconds),
            sends: sends.messages as f64 / sends.seconds,
            frames: forward(seconds)?,
        })
    }

    /// The better of each.
    fn best(self, other: Self) -> Self {
        Self {
            write_us: self.write_us.min(other.write_us),
            tcp_us: self.tcp_us.min(other.tcp_us),
            write_mib: self.write_mib.max(other.write_mib),
            tcp_mib: self.tcp_mib.max(other.tcp_mib),
            copy_mib: self.copy_mib.max(other.copy_mib),
            sends: self.sends.max(other.sends),
            frames: self.frames.max(other.frames),
        }
    }

    /// Lines of the table: what, its figure, what it is held against, and whether it holds.
    fn lines(&self) -> [(String, bool); 5] {
        let Self { write_us, tcp_us, write_mib, tcp_mib, copy_mib, sends, frames } = *self;
        let line = |what: &str, figure: String, against: String, holds: bool| {
            let verdict = if holds { "holds" } else { "MISSED" };
            (format!("{what:<30}{figure:>14}  {against:<46}{verdict}"), holds)
        };
        let (time, rate, copied) = (write_us / tcp_us, write_mib / tcp_mib, write_mib / copy_mib);
        [
            line(
                "WRITE of 8 B, there and back",
                format!("{write_us:.2} us"),
                format!("{time:.2} of TCP's {tcp_us:.2} us, at most {MAX_TIME_TO_TCP}"),
                time <= MAX_TIME_TO_TCP,
            ),
            line(
                "WRITE of 1 MiB",
                format!("{write_mib:.0} MiB/s"),
                format!("{rate:.2} of TCP's {tcp_mib:.0} MiB/s, at least {MIN_RATE_TO_TCP:.1}"),
                rate >= MIN_RATE_TO_TCP,
            ),
            line(
                "",
                String::new(),
                format!("{copied:.2} of a copy's {copy_mib:.0} MiB/s, at least {MIN_RATE_TO_COPY}"),
                copied >= MIN_RATE_TO_COPY,
            ),
            line(
                "SENDs of 64 B, one queue pair",
                format!("{:.2} M/s", sends / 1e6),
                format!("at least {:.1} M/s", MIN_SENDS / 1e6),
                sends >= MIN_SENDS,
            ),
            line(
                "forwarding of 64 B frames",
                format!("{:.2} Mpps", frames / 1e6),
                format!("at least {:.1} Mpps", MIN_FRAMES / 1e6),
                frames >= MIN_FRAMES,
            ),
        ]
    }
}

/// A round of perftest on two models.
fn perftest(args: &[&str], seconds: f64) -> Result<Row> {
    let seconds = seconds.to_string();
    let line = ["perftest"].into_iter().chain(args.iter().copied());
    let line = line.chain(["--duration", &seconds]);
    let config = config::Config::new(&cli::Args::try_parse_from(line)?)?;
    let config::Job::Measure(measure) = &config.job else { bail!("not a measurement") };
    run::measure(&config, measure)?.pop().context("no round was measured")
}

/// Frames that testpmd forwards in a second, the model's generator at the other end.
fn forward(seconds: f64) -> Result<f64> {
    let seconds = seconds.to_string();
    let line = "testpmd --wire generator --forward-mode io --size 64 --burst 64 --rxd 2048 \
                --txd 2048 --stats 0 --duration";
    let line = line.split_whitespace().chain([seconds.as_str()]);
    let args = ferrocx_testpmd::cli::Args::try_parse_from(line)?;
    let config = ferrocx_testpmd::config::Config::new(&args)?;
    let report = ferrocx_testpmd::run::run(&config, &Stop::new())?;
    report.check()?;
    Ok(report.rates.forwarded_fps)
}

/// A thread on a core of its own, as the model's two ends are: on one core together, where the
/// scheduler puts them at times, two ends of a socket hand over to each other without any wake-up.
fn on_core<T: Send + 'static>(
    at: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    std::thread::spawn(move || {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        if let Some(core) = cores.get(at) {
            core_affinity::set_for_current(*core);
        }
        work()
    })
}

/// Two ends of a connection over the loopback, which send at once.
fn tcp_pair() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    Ok((near, far))
}

/// Median time of eight bytes there and back, in microseconds.
fn tcp_ping_pong(seconds: f64) -> Result<f64> {
    let (mut near, mut far) = tcp_pair()?;
    let answering = on_core(1, move || {
        let mut bytes = [0; 8];
        while far.read_exact(&mut bytes).is_ok() && far.write_all(&bytes).is_ok() {}
    });
    let asking = on_core(0, move || -> Result<Vec<Duration>> {
        let mut times = Vec::new();
        let (start, limit) = (Instant::now(), Duration::from_secs_f64(seconds));
        while start.elapsed() < limit {
            let mut bytes = [7; 8];
            let sent = Instant::now();
            near.write_all(&bytes)?;
            near.read_exact(&mut bytes)?;
            times.push(sent.elapsed());
        }
        Ok(times)
    });
    let mut times = asking.join().ok().context("the asking end panicked")??;
    answering.join().ok().context("the answering end panicked")?;
    times.sort_unstable();
    Ok(times[times.len() / 2].as_secs_f64() * 1e6)
}

/// Bandwidth of writes of 1 MiB from buffers that take turns, in MiB/s.
fn tcp_stream(seconds: f64) -> Result<f64> {
    let (mut near, mut far) = tcp_pair()?;
    let taking = on_core(1, move || {
        let mut bytes = vec![0; LARGE_BYTES];
        while far.read_exact(&mut bytes).is_ok() {}
    });
    let giving = on_core(0, move || -> Result<f64> {
        let buffers = vec![vec![7; LARGE_BYTES]; BUFFERS];
        let (start, limit) = (Instant::now(), Duration::from_secs_f64(seconds));
        let mut sent = 0_u64;
        for buffer in buffers.iter().cycle() {
            near.write_all(buffer)?;
            sent += 1;
            if start.elapsed() >= limit {
                break;
            }
        }
        Ok(sent as f64 * LARGE_BYTES as f64 / MIB / start.elapsed().as_secs_f64())
    });
    let rate = giving.join().ok().context("the giving end panicked")??;
    taking.join().ok().context("the taking end panicked")?;
    Ok(rate)
}

/// Bandwidth of copying as many buffers of the same size as the WRITEs have, in MiB/s.
fn copy(seconds: f64) -> f64 {
    let from = vec![vec![7_u8; LARGE_BYTES]; BUFFERS];
    let mut into = vec![vec![0_u8; LARGE_BYTES]; BUFFERS];
    let (start, limit) = (Instant::now(), Duration::from_secs_f64(seconds));
    let mut copied = 0_u64;
    while start.elapsed() < limit {
        for (from, into) in from.iter().zip(&mut into) {
            into.copy_from_slice(black_box(from));
            black_box(&into);
        }
        copied += BUFFERS as u64;
    }
    copied as f64 * LARGE_BYTES as f64 / MIB / start.elapsed().as_secs_f64()
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let mut best = Round::measure(args.seconds)?;
    for _ in 1..args.rounds {
        best = best.best(Round::measure(args.seconds)?);
    }
    println!("model speed, the best of {} rounds of {} s each", args.rounds, args.seconds);
    let lines = best.lines();
    for (line, _) in &lines {
        println!("{line}");
    }
    let holds = lines.iter().all(|(_, holds)| *holds);
    Ok(if holds || !args.check { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
