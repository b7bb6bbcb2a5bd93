//! The end that measures: it posts messages and takes the time.

use std::time::Instant;

use anyhow::Result;
use hdrhistogram::Histogram;

use crate::flow::{Crew, Polled};
use crate::measure::{Kind, Test};

/// Longest time that a histogram tells from longer ones, in nanoseconds.
const MAX_NS: u64 = 60_000_000_000;

/// What one thread measured.
#[derive(Debug)]
pub struct Sent {
    /// Before the first message was posted, and after the last had ended.
    pub time: (Instant, Instant),
    /// Messages of each queue pair.
    pub messages: Vec<u64>,
    /// Messages whose bytes were checked here.
    pub checked: u64,
    /// Rings of doorbells.
    pub doorbells: u64,
    /// Times of single messages, in nanoseconds; empty for bandwidth.
    pub times: Histogram<u64>,
}

/// A histogram that allocates nothing while it records.
///
/// # Errors
///
/// Never: the bounds are right.
pub fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, MAX_NS, 3)?)
}

/// Runs a round on the queue pairs of one thread.
///
/// # Errors
///
/// A request that failed, a wrong byte, or nothing for too long.
pub fn run(crew: &mut Crew) -> Result<Sent> {
    let mut times = histogram()?;
    let start = Instant::now();
    match (crew.plan.measure.kind, crew.plan.measure.test) {
        (Kind::Bw, _) => pump(crew)?,
        (Kind::Lat, Test::Send) => ping_sends(crew, &mut times)?,
        (Kind::Lat, Test::Write) => ping_writes(crew, &mut times)?,
        (Kind::Lat, _) => one_by_one(crew, &mut times)?,
    }
    let time = (start, Instant::now());
    Ok(Sent {
        time,
        messages: crew.flows.iter().map(|flow| flow.side.posted).collect(),
        checked: crew.flows.iter().map(|flow| flow.side.checked).sum(),
        doorbells: crew.flows.iter().map(|flow| flow.qp.doorbells()).sum(),
        times,
    })
}

/// As many messages on the way as allowed, until the round is over and all have ended.
fn pump(crew: &mut Crew) -> Result<()> {
    let deadline = crew.plan.deadline();
    let mut last = Instant::now();
    loop {
        let is_late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let (mut busy, mut open) = (false, false);
        for flow in &mut crew.flows {
            busy |= flow.fill(&crew.plan, is_late)?;
            open |= flow.side.done < flow.side.posted;
            open |= !crew.plan.is_over(flow.side.posted, is_late);
        }
        if !open {
            return Ok(());
        }
        while !matches!(crew.poll()?, Polled::Nothing) {
            busy = true;
        }
        if busy {
            last = Instant::now();
        } else {
            crew.plan.idle(last)?;
        }
    }
}

/// The time until a message is sent back, for each message.
fn ping_sends(crew: &mut Crew, times: &mut Histogram<u64>) -> Result<()> {
    let deadline = crew.plan.deadline();
    while !ends(crew, deadline) {
        let start = Instant::now();
        post(crew)?;
        while crew.flows.iter().any(|flow| flow.side.received < flow.side.posted) {
            match crew.poll()? {
                Polled::Nothing => crew.plan.idle(start)?,
                Polled::Sent => {}
                Polled::Received(index, wc) => {
                    times.saturating_record(nanoseconds(start));
                    crew.flows[index].received(wc, &crew.plan)?;
                }
            }
        }
        wait_for_end(crew, start)?;
    }
    Ok(())
}

/// The time until a written message is written back, for each message.
fn ping_writes(crew: &mut Crew, times: &mut Histogram<u64>) -> Result<()> {
    let deadline = crew.plan.deadline();
    while !ends(crew, deadline) {
        let start = Instant::now();
        post(crew)?;
        for flow in &mut crew.flows {
            while !flow.side.landed(&crew.plan, flow.side.received)? {
                crew.plan.idle(start)?;
            }
            times.saturating_record(nanoseconds(start));
            flow.side.take_landed(&crew.plan)?;
        }
        wait_for_end(crew, start)?;
    }
    Ok(())
}

/// The time of each READ or atomic.
fn one_by_one(crew: &mut Crew, times: &mut Histogram<u64>) -> Result<()> {
    let deadline = crew.plan.deadline();
    while !ends(crew, deadline) {
        let start = Instant::now();
        post(crew)?;
        wait_for_end(crew, start)?;
        times.saturating_record(nanoseconds(start));
    }
    Ok(())
}

fn ends(crew: &Crew, deadline: Option<Instant>) -> bool {
    let is_late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
    crew.flows.iter().all(|flow| crew.plan.is_over(flow.side.posted, is_late))
}

fn post(crew: &mut Crew) -> Result<()> {
    for flow in &mut crew.flows {
        flow.queue(&crew.plan)?;
        flow.qp.ring_doorbell();
    }
    Ok(())
}

fn wait_for_end(crew: &mut Crew, start: Instant) -> Result<()> {
    while crew.flows.iter().any(|flow| flow.side.done < flow.side.posted) {
        if matches!(crew.poll()?, Polled::Nothing) {
            crew.plan.idle(start)?;
        }
    }
    Ok(())
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
