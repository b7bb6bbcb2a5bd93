//! Runs one case: `cost list | elements CASE | run CASE ITERATIONS | ns CASE`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use ferrocx_benches::{Case, cases, run};

const USAGE: &str = "usage: cost list | elements CASE | run CASE ITERATIONS | ns CASE";

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

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match (args.as_slice(), args.get(1).and_then(|name| find(name))) {
        (["list"], _) => cases().for_each(|case| println!("{}", case.name)),
        (["elements", _], Some(case)) => println!("{}", case.elements),
        (["ns", _], Some(case)) => println!("{:.3}", median_ns(case)),
        (["run", _, iterations], Some(case)) => match iterations.parse() {
            Ok(iterations) => drop(run(&mut *(case.make)(), iterations)),
            Err(_) => {
                eprintln!("iterations must be a number, not {iterations}; {USAGE}");
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
