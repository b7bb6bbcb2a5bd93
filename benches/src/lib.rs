//! What ferrocx costs, one question per case.
//!
//! A [`Case`] is a loop over our own code with everything around it made in memory: posted work
//! that nobody consumes, completions written beforehand, buffers really taken and given back, and
//! the work verified. The same cases feed the criterion benches (`sw/` groups) and the `cost`
//! program, which `scripts/cost.sh` runs under callgrind.
//!
//! # What it does not do
//! Nothing here measures a network adapter. Group names start with `sw/` (our instructions) or
//! `model/` (the software model's speed).
#![forbid(unsafe_code)]

mod cases;

pub use cases::{CASES, Case};

use std::time::Instant;

/// Time-stamp counter cycles per nanosecond are not portable; this is the portable stand-in: the
/// nanoseconds that `iterations` of a case took.
pub fn nanoseconds(case: &mut dyn FnMut(u64), iterations: u64) -> f64 {
    let start = Instant::now();
    case(iterations);
    start.elapsed().as_secs_f64() * 1e9
}
