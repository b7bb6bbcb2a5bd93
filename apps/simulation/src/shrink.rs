//! Making a plan that fails smaller, as long as it fails.

use crate::plan::Plan;
use crate::run::{Options, run};

/// Runs that shrinking may take.
const MAX_RUNS: u32 = 200;

/// The smallest plan that was found which still fails, whatever it fails with; and how many runs
/// that took.
#[must_use]
pub fn shrink(plan: &Plan) -> (Plan, u32) {
    let mut best = plan.clone();
    let mut runs = 0;
    let mut fails = |candidate: &Plan| {
        runs += 1;
        run(candidate, &Options::default()).violation.is_some()
    };
    let mut budget = MAX_RUNS;
    loop {
        let before = best.clone();
        let mut part = best.faults.len().div_ceil(2);
        while part > 0 && budget > 0 {
            let mut at = 0;
            while at < best.faults.len() && budget > 0 {
                let mut candidate = best.clone();
                candidate.faults.drain(at..(at + part).min(best.faults.len()));
                budget -= 1;
                if fails(&candidate) { best = candidate } else { at += part }
            }
            part = if part == 1 { 0 } else { part.div_ceil(2) };
        }
        for at in (0..best.talks.len()).rev() {
            if best.talks.len() == 1 || budget == 0 {
                break;
            }
            let mut candidate = best.clone();
            candidate.talks.remove(at);
            budget -= 1;
            if fails(&candidate) {
                best = candidate;
            }
        }
        if budget > 0 && best.storage.is_some() {
            let candidate = Plan { storage: None, ..best.clone() };
            budget -= 1;
            if fails(&candidate) {
                best = candidate;
            }
        }
        if budget > 0 && best.frames.is_some() {
            let candidate = Plan { frames: None, ..best.clone() };
            budget -= 1;
            if fails(&candidate) {
                best = candidate;
            }
        }
        if budget > 0
            && let Some(candidate) = best.with_half_the_work()
        {
            budget -= 1;
            if fails(&candidate) {
                best = candidate;
            }
        }
        if best == before || budget == 0 {
            return (best, runs);
        }
    }
}
