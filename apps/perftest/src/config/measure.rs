//! The options of what is measured between two ends of ours.

use ferrocx_app_common::list;
use ferrocx_app_common::option::{ConfigError, cores};
use ferrocx_verbs_lite::{Mtu, QpConfig};

use crate::cli::Args;
use crate::measure::{ATOMIC_BYTES, Kind, Limit, Measure, Test};

/// Longest message: what an RC or UC queue pair of the device sends at once.
pub(super) const MAX_SIZE: u64 = 1 << 30;
/// Messages on the way: two requests each must fit the ring.
const MAX_DEPTH: usize = 8192;
/// Keys of a registration pipeline, and pipelines: all errands must fit one ring.
const MAX_KEYS: usize = 1024;
const MAX_PIPELINES: usize = 16;
/// Queue pairs of a run.
const MAX_QPS: usize = 16384;
/// Longest run of one size, in seconds.
const MAX_SECONDS: f64 = 86_400.0;
/// log2 of the largest size of `--all`.
const LAST_POWER: u32 = 20;
const DEFAULT_DEPTH: usize = 128;
const DEFAULT_MESSAGES: u64 = 1000;
const DEFAULT_REGISTRATIONS: u64 = 10_000;

/// Checks the options.
pub(super) fn measure(args: &Args, mtu: Mtu) -> Result<Measure, ConfigError> {
    let known = "send, write, read, atomic, fastreg, pingpong or target";
    let test = Test::ALL.into_iter().find(|(name, _)| *name == args.test);
    let (_, test) = test.ok_or_else(|| ConfigError::unknown("test", &args.test, known))?;
    let kind = match args.kind.as_str() {
        "lat" => Kind::Lat,
        "bw" => Kind::Bw,
        other => return Err(ConfigError::unknown("kind of test", other, "lat or bw")),
    };
    let is_lat = kind == Kind::Lat;
    let many = args.qps.or(args.depth).or(args.threads).is_some();
    if is_lat && (many || args.batch > 1 || args.signal_every > 1) {
        let way_out = "leave --qps, --depth, --threads, --batch and --signal-every out";
        return Err(ConfigError::together("lat has one message on the way", way_out));
    }
    let depth = args.depth.unwrap_or(if is_lat { 1 } else { DEFAULT_DEPTH });
    let check = |option, value: usize, min: usize, max: usize| {
        ConfigError::check(option, value as u64, min as u64, max as u64)
    };
    check("depth", depth, 1, if test == Test::FastReg { MAX_KEYS } else { MAX_DEPTH })?;
    check("inline", args.inline, 0, QpConfig::MAX_INLINE_BYTES as usize)?;
    for (option, value) in [("signal-every", args.signal_every), ("batch", args.batch)] {
        if !(1..=depth).contains(&value) {
            return Err(ConfigError::range(option, value, format!("1 to {depth}, the depth")));
        }
    }
    let (qps, workers) = threads(args, test, is_lat)?;
    Ok(Measure {
        test,
        kind,
        sizes: sizes(args, test, kind)?,
        limit: limit(args, test)?,
        depth,
        qps,
        workers,
        inline_bytes: args.inline,
        signal_every: args.signal_every,
        batch: args.batch,
        verify: args.verify,
        mtu: mtu.bytes(),
        ack_timeout: args.ack_timeout,
    })
}

/// Queue pairs and threads.
fn threads(args: &Args, test: Test, is_lat: bool) -> Result<(usize, usize), ConfigError> {
    let cores = cores("cores", args.cores.as_deref())?.len().max(1);
    let workers = args.threads.unwrap_or(if is_lat { 1 } else { cores });
    if test == Test::FastReg {
        return pipelines(args, workers);
    }
    let qps = args.qps.unwrap_or(1);
    ConfigError::check("qps", qps as u64, 1, MAX_QPS as u64)?;
    if !(1..=qps).contains(&workers) {
        let range = format!("1 to {qps}, a queue pair for each; see --qps");
        return Err(ConfigError::range("threads", workers, range));
    }
    Ok((qps, workers))
}

fn pipelines(args: &Args, workers: usize) -> Result<(usize, usize), ConfigError> {
    if args.qps.is_some() {
        let what = "each pipeline of fastreg has a queue pair of its own";
        return Err(ConfigError::together(what, "leave --qps out; see --threads"));
    }
    if args.server.is_some() && !args.verify {
        let what = "without --verify nobody uses the keys";
        return Err(ConfigError::together(what, "leave SERVER out, or add --verify"));
    }
    ConfigError::check("threads", workers as u64, 1, MAX_PIPELINES as u64)?;
    Ok((workers, workers))
}

fn sizes(args: &Args, test: Test, kind: Kind) -> Result<Vec<usize>, ConfigError> {
    if test == Test::Atomic {
        if args.all || args.size.as_deref().is_some_and(|size| size != "8") {
            let what = "atomics work on 8 bytes";
            return Err(ConfigError::together(what, "leave --size out"));
        }
        return Ok(vec![ATOMIC_BYTES]);
    }
    match (args.all, args.size.as_deref()) {
        (true, Some(_)) => {
            let what = "--all and --size name sizes twice";
            Err(ConfigError::together(what, "leave one out"))
        }
        (true, None) => Ok((0..=LAST_POWER).map(|power| 1 << power).collect()),
        (false, Some(text)) => list::numbers(text, 1, MAX_SIZE as usize)
            .map_err(|source| ConfigError::List { option: "size", source }),
        (false, None) => Ok(vec![if kind == Kind::Lat { 64 } else { 4096 }]),
    }
}

fn limit(args: &Args, test: Test) -> Result<Limit, ConfigError> {
    let Some(seconds) = args.duration else {
        let usual = if test == Test::FastReg { DEFAULT_REGISTRATIONS } else { DEFAULT_MESSAGES };
        let messages = args.iterations.unwrap_or(usual);
        ConfigError::check("iterations", messages, 1, u64::from(u32::MAX))?;
        return Ok(Limit::Messages(messages));
    };
    if args.iterations.is_some() {
        let what = "--iterations and --duration end a round twice";
        return Err(ConfigError::together(what, "leave one out"));
    }
    if !(0.001..=MAX_SECONDS).contains(&seconds) {
        let range = format!("0.001 to {MAX_SECONDS} seconds");
        return Err(ConfigError::range("duration", seconds, range));
    }
    Ok(Limit::Milliseconds((seconds * 1e3) as u64))
}
