//! The end that measures: it posts messages and takes the time.

use std::time::Instant;

use anyhow::Result;
use hdrhistogram::Histogram;

use crate::measure::{Kind, Test};
use crate::queue_pair::{Polled, QpGroup};
use crate::report::histogram;

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

/// Runs a round on the queue pairs of one thread.
///
/// # Errors
///
/// A request that failed, a wrong byte, or nothing for too long.
pub fn run(group: &mut QpGroup) -> Result<Sent> {
    let mut times = histogram()?;
    let start = Instant::now();
    match (group.plan.measure.kind, group.plan.measure.test) {
        (Kind::Bw, _) => pump(group)?,
        (Kind::Lat, Test::Send) => ping_sends(group, &mut times)?,
        (Kind::Lat, Test::Write) => ping_writes(group, &mut times)?,
        (Kind::Lat, _) => one_by_one(group, &mut times)?,
    }
    let time = (start, Instant::now());
    Ok(Sent {
        time,
        messages: group.pairs.iter().map(|pair| pair.messages.posted).collect(),
        checked: group.pairs.iter().map(|pair| pair.messages.checked).sum(),
        doorbells: group.pairs.iter().map(|pair| pair.qp.doorbells()).sum(),
        times,
    })
}

/// As many messages on the way as allowed, until the round is over and all have ended.
fn pump(group: &mut QpGroup) -> Result<()> {
    let deadline = group.plan.deadline();
    let mut last = Instant::now();
    loop {
        let is_late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let (mut busy, mut open) = (false, false);
        for pair in &mut group.pairs {
            busy |= pair.fill(&group.plan, is_late)?;
            open |= pair.messages.done < pair.messages.posted;
            open |= !group.plan.is_over(pair.messages.posted, is_late);
        }
        if !open {
            return Ok(());
        }
        while !matches!(group.poll()?, Polled::Nothing) {
            busy = true;
        }
        if busy {
            last = Instant::now();
        } else {
            group.plan.idle(last)?;
        }
    }
}

/// The time until a message is sent back, for each message.
fn ping_sends(group: &mut QpGroup, times: &mut Histogram<u64>) -> Result<()> {
    let deadline = group.plan.deadline();
    while !ends(group, deadline) {
        let start = Instant::now();
        post(group)?;
        while group.pairs.iter().any(|pair| pair.messages.received < pair.messages.posted) {
            match group.poll()? {
                Polled::Nothing => group.plan.idle(start)?,
                Polled::Sent => {}
                Polled::Received(index, wc) => {
                    times.saturating_record(nanoseconds(start));
                    group.pairs[index].received(wc, &group.plan)?;
                }
            }
        }
        wait_for_end(group, start)?;
    }
    Ok(())
}

/// The time until a written message is written back, for each message.
fn ping_writes(group: &mut QpGroup, times: &mut Histogram<u64>) -> Result<()> {
    let deadline = group.plan.deadline();
    while !ends(group, deadline) {
        let start = Instant::now();
        post(group)?;
        for pair in &mut group.pairs {
            while !pair.messages.landed(&group.plan, pair.messages.received)? {
                group.plan.idle(start)?;
            }
            times.saturating_record(nanoseconds(start));
            pair.messages.take_landed(&group.plan)?;
        }
        wait_for_end(group, start)?;
    }
    Ok(())
}

/// The time of each READ or atomic.
fn one_by_one(group: &mut QpGroup, times: &mut Histogram<u64>) -> Result<()> {
    let deadline = group.plan.deadline();
    while !ends(group, deadline) {
        let start = Instant::now();
        post(group)?;
        wait_for_end(group, start)?;
        times.saturating_record(nanoseconds(start));
    }
    Ok(())
}

fn ends(group: &QpGroup, deadline: Option<Instant>) -> bool {
    let is_late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
    group.pairs.iter().all(|pair| group.plan.is_over(pair.messages.posted, is_late))
}

fn post(group: &mut QpGroup) -> Result<()> {
    for pair in &mut group.pairs {
        pair.queue(&group.plan)?;
        pair.qp.ring_doorbell();
    }
    Ok(())
}

fn wait_for_end(group: &mut QpGroup, start: Instant) -> Result<()> {
    while group.pairs.iter().any(|pair| pair.messages.done < pair.messages.posted) {
        if matches!(group.poll()?, Polled::Nothing) {
            group.plan.idle(start)?;
        }
    }
    Ok(())
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
