//! What ferrocx costs, one question per case.
//!
//! A [`Case`] runs our own code with everything around it made in memory: posted work that nobody
//! consumes, completions written beforehand, buffers really taken and given back, and the work
//! verified. The same cases feed the criterion benches (`sw/` groups) and the `cost` program, which
//! `scripts/instructions.sh` runs under callgrind.
//!
//! # What it does not do
//! Nothing here measures a network adapter. Group names start with `sw/` (our instructions) or
//! `model/` (the software model's speed).
#![deny(unsafe_code)]

mod cases;

pub use cases::{Case, Work, cases};

use std::time::{Duration, Instant};

/// Runs `iterations` of a case; the time is that of the measured part alone.
pub fn run(work: &mut dyn Work, iterations: u64) -> Duration {
    let mut spent = Duration::ZERO;
    for _ in 0..iterations {
        work.prepare();
        let start = Instant::now();
        measured(work);
        spent += start.elapsed();
    }
    work.verify();
    spent
}

/// The measured part, under a name that callgrind can be told to count alone.
#[inline(never)]
fn measured(work: &mut dyn Work) {
    work.run();
}
