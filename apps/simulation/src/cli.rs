//! The program: one seed or many, and what is shown of one that fails.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Parser;
use ferrocx_model::wire::CaptureFile;

use crate::{Counts, Options, Plan, flood, run, shrink};

/// Simulates hosts, cards, cables and their faults, from seeds.
#[derive(Debug, Clone, Parser)]
#[command(name = "simulation", version)]
pub struct Args {
    /// Run this seed alone, and print its plan and its timeline.
    #[arg(long, conflicts_with_all = ["seeds", "seconds"])]
    pub seed: Option<u64>,
    /// Run these seeds: FIRST..END, without END.
    #[arg(long, value_name = "FIRST..END", value_parser = range)]
    pub seeds: Option<Range<u64>>,
    /// Run for so long, from a seed that is new each time, and printed.
    #[arg(long, visible_alias = "duration")]
    pub seconds: Option<u64>,
    /// Messages of each seed.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: u64,
    /// Send so many hostile messages to a server, 10^6 in a simulated minute, and nothing else.
    #[arg(long, value_name = "MESSAGES", conflicts_with_all = ["seed", "seeds", "seconds"])]
    pub flood: Option<u64>,
    /// Say what the library does: -v warnings and errors, which are expected; -vv, -vvv more.
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Go on with other seeds after one that fails.
    #[arg(long)]
    pub keep_going: bool,
    /// Where the capture of a seed that fails goes.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub out: PathBuf,
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let wrong = || format!("'{text}' is no range of seeds; give FIRST..END, for example 0..1000");
    let (first, end) = text.split_once("..").ok_or_else(wrong)?;
    let (first, end) = (first.parse().map_err(|_| wrong())?, end.parse().map_err(|_| wrong())?);
    if first < end { Ok(first..end) } else { Err(wrong()) }
}

/// Does what the arguments say.
///
/// # Errors
///
/// A seed that fails, or a file that cannot be written.
pub fn main(args: &Args) -> anyhow::Result<()> {
    if let Some(messages) = args.flood {
        println!("{}", flood(messages, 1)?);
        return Ok(());
    }
    if let Some(seed) = args.seed {
        return show(args, &Plan::draw(seed, args.messages), true);
    }
    let limit = args.seconds.map(Duration::from_secs);
    let seeds = match (&args.seeds, limit) {
        (Some(seeds), _) => seeds.clone(),
        (None, Some(_)) => {
            // Room for any number of seeds behind it.
            let first = RandomState::new().build_hasher().finish() >> 16;
            first..u64::MAX
        }
        (None, None) => 0..100,
    };
    println!("seeds from {}, {} messages each", seeds.start, args.messages);
    let (start, mut told) = (Instant::now(), Instant::now());
    let (mut counts, mut ran, mut failed) = (Counts::default(), 0_u64, Vec::new());
    for seed in seeds {
        if limit.is_some_and(|limit| start.elapsed() >= limit) {
            break;
        }
        let outcome = run(&Plan::draw(seed, args.messages), &Options::default());
        counts.add(&outcome.counts);
        ran += 1;
        if let Some(violation) = outcome.violation {
            println!("seed {seed}: {violation}");
            failed.push(seed);
            if !args.keep_going {
                break;
            }
        }
        if told.elapsed() > Duration::from_secs(60) {
            told = Instant::now();
            println!("{ran} seeds in {:?}: {counts}", start.elapsed());
        }
    }
    println!("{ran} seeds in {:?}: {counts}", start.elapsed());
    for (name, count) in &counts.errors {
        println!("{count:>10}  {name}");
    }
    let Some(first) = failed.first() else { return Ok(()) };
    println!("{} of {ran} seeds failed", failed.len());
    show(args, &Plan::draw(*first, args.messages), false)
}

/// Runs a plan once more, smaller if it fails, and prints what happened.
fn show(args: &Args, plan: &Plan, is_asked: bool) -> anyhow::Result<()> {
    let options = Options { timeline: true, ..Options::default() };
    let outcome = run(plan, &options);
    let Some(violation) = outcome.violation else {
        if !is_asked {
            bail!(
                "seed {} fails in one run and not in another: a bug of the simulation",
                plan.seed
            );
        }
        print!("{plan}");
        print_timeline(&outcome.timeline);
        println!("{}", outcome.counts);
        return Ok(());
    };
    let (small, runs) = shrink(plan);
    println!("the smallest plan that fails, of {runs}:");
    print!("{small}");
    let path = args.out.join(format!("seed-{}.pcapng", plan.seed));
    let outcome = captured(&small, &path)?;
    print_timeline(&outcome.timeline);
    println!("frames: {}", path.display());
    println!(
        "again: simulation --seed {} --messages {}   # the whole plan",
        plan.seed, args.messages
    );
    bail!("seed {}: {violation}", plan.seed)
}

fn captured(plan: &Plan, path: &Path) -> anyhow::Result<crate::Outcome> {
    let capture = CaptureFile::create_at(path, 0)?;
    let options = Options { timeline: true, capture: Some(capture.clone()) };
    let outcome = run(plan, &options);
    capture.finish()?;
    Ok(outcome)
}

fn print_timeline(lines: &[(u64, String)]) {
    for (now_ns, line) in lines {
        println!("{:>14.3} us  {line}", *now_ns as f64 / 1e3);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_seeds_are_two_numbers() {
        assert_eq!(range("3..10"), Ok(3..10));
        for wrong in ["", "3", "3..", "..3", "3..3", "4..3", "a..b"] {
            assert!(range(wrong).unwrap_err().contains("FIRST..END"), "{wrong}");
        }
    }
}
