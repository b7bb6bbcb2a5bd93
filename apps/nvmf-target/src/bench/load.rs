//! The loop of a host of load: [`run`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ferrocx::verbs::{Memory, Mr};
use ferrocx_app_common::signal::Stop;
use hdrhistogram::Histogram;

use super::{Outcome, Pattern, Plan};
use crate::host::{Host, HostError, HostQueue, keyed};
use crate::proto::sqe::{Sqe, io};

/// How long nothing may end.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between looks at connections.
const LOOK: Duration = Duration::from_millis(10);
/// Longest time that is told apart.
const LONGEST_NS: u64 = 60_000_000_000;

/// A place of the namespace, counted in commands from its start, and what is done there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    place: u64,
    is_write: bool,
}

/// A command that is under way.
#[derive(Debug, Clone, Copy)]
struct UnderWay {
    /// Its piece of the memory.
    piece: usize,
    step: Step,
    began: Instant,
}

/// A queue, and the memory that its commands move.
#[derive(Debug)]
pub(super) struct Lane {
    queue: HostQueue,
    memory: Arc<Memory>,
    mr: Mr,
    /// Pieces of the memory that no command has.
    free: Vec<usize>,
    /// By the names of commands.
    under_way: Vec<Option<UnderWay>>,
}

impl Lane {
    pub(super) fn open(host: &Host, qid: u16, plan: &Plan) -> Result<Self> {
        let (len, depth) = (plan.len_bytes as usize, plan.depth);
        let pages = if plan.lends { len.div_ceil(4096) as u32 + 1 } else { 0 };
        let queue = host.open_queue(qid, depth + 1, pages)?;
        let (memory, mr) = host.memory(len * usize::from(depth))?;
        let under_way = vec![None; usize::from(depth) + 1];
        Ok(Self { queue, memory, mr, free: (0..depth.into()).collect(), under_way })
    }

    /// Submits a command; whether there was room for it.
    fn submit(&mut self, plan: &Plan, shift: u8, step: Step) -> Result<bool> {
        let Some(piece) = self.free.last().copied() else { return Ok(false) };
        let len = plan.len_bytes as usize;
        let range = piece * len..(piece + 1) * len;
        let mut buf = self.mr.buf(range.clone())?;
        if plan.pattern == Pattern::Verify {
            // What is not written shows.
            let bytes = if step.is_write { pattern(step.place, len) } else { vec![0xa5; len] };
            buf.copy_in(0, &bytes)?;
        }
        let opcode = if step.is_write { io::WRITE } else { io::READ };
        let count = plan.len_bytes >> shift;
        let blocks = (step.place * count, count as u32);
        let sqe = Sqe::blocks(opcode, 0, plan.nsid, blocks, keyed(&buf));
        let began = Instant::now();
        let submitted = match plan.lends {
            true => self.queue.submit_lent(sqe, &self.memory, range)?,
            false => self.queue.submit(sqe)?,
        };
        let place = submitted.and_then(|cid| self.under_way.get_mut(usize::from(cid)));
        let Some(place) = place else { return Ok(false) };
        *place = Some(UnderWay { piece, step, began });
        self.free.pop();
        Ok(true)
    }

    /// Takes the next command that has ended, and how long it took.
    fn take(&mut self, plan: &Plan) -> Result<Option<Duration>> {
        let Some(cqe) = self.queue.poll()? else { return Ok(None) };
        let cid = cqe.cid.get();
        let found = self.under_way.get_mut(usize::from(cid)).and_then(Option::take);
        let UnderWay { piece, step, began } =
            found.with_context(|| format!("the target answered command {cid}, which is none"))?;
        let took = began.elapsed();
        self.free.push(piece);
        let (place, len) = (step.place, plan.len_bytes as usize);
        let what = if step.is_write { "write" } else { "read" };
        let (at, status) = (place * plan.len_bytes, cqe.status());
        ensure!(status.is_success(), "a {what} of {len} bytes at {at} failed: {status}");
        if plan.pattern == Pattern::Verify && !step.is_write {
            let is = self.mr.buf(piece * len..(piece + 1) * len)?.to_vec();
            let wanted = pattern(place, len);
            if let Some(first) = (0..len).find(|byte| is[*byte] != wanted[*byte]) {
                bail!(
                    "byte {} is {:#04x}, and {:#04x} was written there",
                    at + first as u64,
                    is[first],
                    wanted[first]
                );
            }
        }
        ensure!(self.queue.wrong_keys == 0, "the target ended a key that is not the command's");
        Ok(Some(took))
    }

    fn is_idle(&self) -> bool {
        self.under_way.iter().all(Option::is_none)
    }
}

/// What stands at a place: other bytes at each, and none of them twice in a row.
fn pattern(place: u64, len: usize) -> Vec<u8> {
    let mut random = random(place);
    (0..len.div_ceil(8)).flat_map(|_| random().to_le_bytes()).take(len).collect()
}

/// Numbers that a seed begins. Source: Vigna, "splitmix64".
fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Which commands there are, in their order.
#[derive(Debug)]
struct Steps<R> {
    pattern: Pattern,
    /// Places of the namespace.
    places: u64,
    random: R,
    given: u64,
    /// Nothing is under way.
    is_idle: bool,
    until: Instant,
}

impl<R: FnMut() -> u64> Steps<R> {
    /// The next command; `None` when there is none. Of a comparison all writes end before the first
    /// read.
    fn next(&mut self) -> Option<Step> {
        let at = self.given;
        let step = match self.pattern {
            Pattern::Verify if at >= 2 * self.places || at == self.places && !self.is_idle => None,
            Pattern::Verify => {
                let is_write = at < self.places;
                Some(Step { place: at % self.places, is_write })
            }
            _ if Instant::now() >= self.until => None,
            pattern => {
                let is_write = match pattern {
                    Pattern::Mixed => at % 2 == 1,
                    pattern => pattern == Pattern::Write,
                };
                // The high half of the product is below the number of places.
                let place = (u128::from((self.random)()) * u128::from(self.places)) >> 64;
                Some(Step { place: place as u64, is_write })
            }
        }?;
        Some(step)
    }

    /// The command was submitted.
    fn began(&mut self) {
        self.given += 1;
        self.is_idle = false;
    }

    fn is_over(&self) -> bool {
        match self.pattern {
            Pattern::Verify => self.given >= 2 * self.places,
            _ => Instant::now() >= self.until,
        }
    }
}

/// Keeps every queue full until a plan is over or somebody stops it, and waits for what is under
/// way.
pub(super) fn run(
    lanes: &mut [Lane],
    plan: &Plan,
    (places, shift): (u64, u8),
    stop: &Stop,
) -> Result<Outcome> {
    let began = Instant::now();
    let until = began + plan.time;
    let pattern = plan.pattern;
    let random = random(places);
    let mut steps = Steps { pattern, places, random, given: 0, is_idle: true, until };
    let mut times = Histogram::new_with_bounds(1, LONGEST_NS, 3)?;
    let (mut commands, mut last, mut looked) = (0, began, began);
    loop {
        let is_over = steps.is_over() || stop.is_raised();
        steps.is_idle = lanes.iter().all(Lane::is_idle);
        if is_over && steps.is_idle {
            break;
        }
        let mut ended = 0;
        for lane in lanes.iter_mut() {
            while !is_over
                && let Some(step) = steps.next()
                && lane.submit(plan, shift, step)?
            {
                steps.began();
            }
            while let Some(took) = lane.take(plan)? {
                times.saturating_record((took.as_nanos() as u64).max(1));
                ended += 1;
            }
        }
        commands += ended;
        if ended > 0 {
            last = Instant::now();
            continue;
        }
        if last.elapsed() > PATIENCE {
            return Err(HostError::Silent(PATIENCE).into());
        }
        if looked.elapsed() > LOOK {
            looked = Instant::now();
            lanes.iter_mut().try_for_each(|lane| lane.queue.look_after())?;
        }
        plan.wait.idle();
    }
    // Half a comparison is none, and who counts on it has to be told.
    ensure!(
        pattern != Pattern::Verify || steps.is_over(),
        "stopped after {commands} of {} commands: nothing is said of the others",
        2 * places
    );
    let (took, bytes) = (began.elapsed(), commands * plan.len_bytes);
    Ok(Outcome { commands, bytes, took, times })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_have_bytes_of_their_own() {
        let (one, other) = (pattern(0, 4096), pattern(1, 4096));
        assert_eq!((one.len(), pattern(0, 5).len()), (4096, 5));
        assert_eq!(one[..5], pattern(0, 5));
        assert_ne!(one, other);
        assert_ne!(one[..8], one[8..16]);
    }

    #[test]
    fn a_comparison_reads_what_was_written_once_all_is() {
        let until = Instant::now();
        let random = || 0;
        let is_idle = true;
        let mut steps =
            Steps { pattern: Pattern::Verify, places: 2, random, given: 0, is_idle, until };
        let place = |step: Option<Step>| step.map(|it| (it.place, it.is_write));
        for expected in [(0, true), (1, true)] {
            assert_eq!(place(steps.next()), Some(expected));
            steps.began();
        }
        // Another queue's turn in the same pass: the writes of this one are under way.
        assert_eq!(place(steps.next()), None);
        steps.is_idle = true;
        for expected in [(0, false), (1, false)] {
            assert_eq!(place(steps.next()), Some(expected));
            steps.began();
        }
        assert!(steps.is_over());
        assert_eq!(place(steps.next()), None);
    }

    #[test]
    fn random_places_are_inside() {
        let until = Instant::now() + Duration::from_secs(60);
        for (random, place) in [(0, 0), (u64::MAX, 9), (1 << 63, 5)] {
            let random = move || random;
            let (pattern, is_idle) = (Pattern::Mixed, false);
            let mut steps = Steps { pattern, places: 10, random, given: 1, is_idle, until };
            assert_eq!(steps.next(), Some(Step { place, is_write: true }));
            steps.given = 2;
            assert_eq!(steps.next(), Some(Step { place, is_write: false }));
        }
    }
}
