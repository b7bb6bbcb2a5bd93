//! Runs one case: `cost list | elements CASE | run CASE WARM ITERATIONS | ns CASE`.
//!
//! `run` calls [`warmed`] between WARM iterations, in which rings and pools grow warm, and those
//! that count: callgrind can be told to begin there (`--zero-before`).
#![forbid(unsafe_code)]

use std::process::ExitCode;

use ferrocx_benches::{Case, cases, run};

const USAGE: &str = "usage: cost list | elements CASE | run CASE WARM ITERATIONS | ns CASE";

fn find(name: &str) -> Option<&'static Case> {
    cases().find(|case| case.name == name)
}

/// Median over 15 repetitions of the nanoseconds per element.
fn median_ns(case: &Case) -> f64 {
    let mut work = (case.make)();
    let iterations = (300_000 / case.elements).max(1);
    run(&mut *work, iterations);
    let mut runs: Vec<_> = (0..15).map(|_| run(&mut *work, iterations)).collect();
    runs.sort();
    runs[runs.len() / 2].as_secs_f64() * 1e9 / (iterations * case.elements) as f64
}

/// Where counting begins, under a name that callgrind can be told.
#[inline(never)]
fn warmed() {
    std::hint::black_box(());
}

fn run_warm(case: &Case, warm: u64, iterations: u64) {
    let mut work = (case.make)();
    run(&mut *work, warm);
    warmed();
    run(&mut *work, iterations);
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match (args.as_slice(), args.get(1).and_then(|name| find(name))) {
        (["list"], _) => cases().for_each(|case| println!("{}", case.name)),
        (["elements", _], Some(case)) => println!("{}", case.elements),
        (["ns", _], Some(case)) => println!("{:.3}", median_ns(case)),
        (["run", _, warm, iterations], Some(case)) => match (warm.parse(), iterations.parse()) {
            (Ok(warm), Ok(iterations)) => run_warm(case, warm, iterations),
            _ => {
                eprintln!("iterations must be numbers, not {warm} and {iterations}; {USAGE}");
                return ExitCode::from(2);
            }
        },
        _ => {
            let names: Vec<_> = cases().map(|case| case.name).collect();
            eprintln!("{USAGE}; cases: {}", names.join(" "));
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
