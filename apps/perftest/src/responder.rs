//! The other end: it receives, answers or just holds memory, until told how many there were.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Result;

use crate::flow::{Crew, Polled};
use crate::measure::{Kind, Test};

/// What one thread is told, and what it found.
#[derive(Debug)]
pub struct Target(AtomicU64);

impl Default for Target {
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

impl Target {
    /// Tells how many messages there were in all, on the queue pairs of the thread.
    pub fn set(&self, messages: u64) {
        self.0.store(messages, Ordering::Release);
    }

    /// How many there are in all; [`u64::MAX`] until that is known.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// Posts the receives of a round; before its queue pairs are connected.
///
/// # Errors
///
/// Never: there is room.
pub fn prepare(crew: &mut Crew) -> Result<()> {
    let Crew { flows, plan, .. } = crew;
    let is_ping = plan.measure.kind == Kind::Lat;
    for flow in flows {
        match plan.measure.test {
            // A ping is sent from the first half of the places.
            Test::Send if is_ping => {
                (plan.slots..plan.places()).try_for_each(|place| flow.receive_into(place))?;
            }
            Test::Send => (0..plan.places()).try_for_each(|place| flow.receive_into(place))?,
            Test::Read => flow.side.fill_places(plan)?,
            Test::Write | Test::Atomic | Test::FastReg => {}
        }
    }
    Ok(())
}

/// Answers until `target` messages have come.
///
/// # Errors
///
/// A receive that failed, or a byte that is wrong.
pub fn run(crew: &mut Crew, target: &Target) -> Result<()> {
    match (crew.plan.measure.test, crew.plan.measure.kind) {
        (Test::Send, _) => receive(crew, target),
        (Test::Write, Kind::Lat) => write_back(crew, target),
        // The device answers by itself.
        _ => Ok(()),
    }
}

fn receive(crew: &mut Crew, target: &Target) -> Result<()> {
    let sends_back = crew.plan.measure.kind == Kind::Lat;
    let (mut received, mut since) = (0, Instant::now());
    while received < target.get() || crew.flows.iter().any(|flow| flow.side.done < flow.side.posted)
    {
        match crew.poll()? {
            Polled::Nothing => {
                // Until all is sent, the other end may be silent as long as it likes.
                if target.get() == u64::MAX {
                    since = Instant::now();
                }
                crew.plan.idle(since)?;
            }
            Polled::Sent => {}
            Polled::Received(index, wc) => {
                received += 1;
                crew.flows[index].received(wc, &crew.plan)?;
            }
        }
        for flow in crew.flows.iter_mut().filter(|_| sends_back) {
            // The answer before may have arrived, and only its acknowledgement was lost.
            if flow.side.posted < flow.side.received && flow.side.done == flow.side.posted {
                flow.queue(&crew.plan)?;
                flow.qp.ring_doorbell();
            }
        }
    }
    Ok(())
}

fn write_back(crew: &mut Crew, target: &Target) -> Result<()> {
    let (mut received, mut since) = (0, Instant::now());
    while received < target.get() || crew.flows.iter().any(|flow| flow.side.done < flow.side.posted)
    {
        let mut busy = !matches!(crew.poll()?, Polled::Nothing);
        for flow in &mut crew.flows {
            if flow.side.done == flow.side.posted
                && flow.side.landed(&crew.plan, flow.side.received)?
            {
                flow.side.take_landed(&crew.plan)?;
                flow.queue(&crew.plan)?;
                flow.qp.ring_doorbell();
                received += 1;
                busy = true;
            }
        }
        if busy || target.get() == u64::MAX {
            since = Instant::now();
        }
        if !busy {
            crew.plan.idle(since)?;
        }
    }
    Ok(())
}
