//! The other end: it receives, answers or just holds memory, until told how many there were.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Result;

use crate::measure::{Kind, Test};
use crate::queue_pair::{Polled, QpGroup};

/// How many messages a thread is to get, which is told while it runs.
#[derive(Debug)]
pub struct Expected(AtomicU64);

impl Default for Expected {
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

impl Expected {
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
pub fn prepare(group: &mut QpGroup) -> Result<()> {
    let QpGroup { pairs, plan, .. } = group;
    let is_ping = plan.measure.kind == Kind::Lat;
    for pair in pairs {
        match plan.measure.test {
            // A ping is sent from the first half of the places.
            Test::Send if is_ping => {
                (plan.slots..plan.places()).try_for_each(|place| pair.receive_into(place))?;
            }
            Test::Send => (0..plan.places()).try_for_each(|place| pair.receive_into(place))?,
            Test::Read => pair.messages.fill_places(plan)?,
            Test::Write | Test::Atomic | Test::FastReg => {}
        }
    }
    Ok(())
}

/// Answers until `expected` messages have come.
///
/// # Errors
///
/// A receive that failed, or a byte that is wrong.
pub fn run(group: &mut QpGroup, expected: &Expected) -> Result<()> {
    match (group.plan.measure.test, group.plan.measure.kind) {
        (Test::Send, _) => receive(group, expected),
        (Test::Write, Kind::Lat) => write_back(group, expected),
        // The device answers by itself.
        _ => Ok(()),
    }
}

fn receive(group: &mut QpGroup, expected: &Expected) -> Result<()> {
    let sends_back = group.plan.measure.kind == Kind::Lat;
    let (mut received, mut since) = (0, Instant::now());
    while received < expected.get()
        || group.pairs.iter().any(|pair| pair.messages.done < pair.messages.posted)
    {
        match group.poll()? {
            Polled::Nothing => {
                // Until all is sent, the other end may be silent as long as it likes.
                if expected.get() == u64::MAX {
                    since = Instant::now();
                }
                group.plan.idle(since)?;
            }
            Polled::Sent => {}
            Polled::Received(index, wc) => {
                received += 1;
                group.pairs[index].received(wc, &group.plan)?;
            }
        }
        for pair in group.pairs.iter_mut().filter(|_| sends_back) {
            // The answer before may have arrived, and only its acknowledgement was lost.
            if pair.messages.posted < pair.messages.received
                && pair.messages.done == pair.messages.posted
            {
                pair.queue(&group.plan)?;
                pair.qp.ring_doorbell();
            }
        }
    }
    Ok(())
}

fn write_back(group: &mut QpGroup, expected: &Expected) -> Result<()> {
    let (mut received, mut since) = (0, Instant::now());
    while received < expected.get()
        || group.pairs.iter().any(|pair| pair.messages.done < pair.messages.posted)
    {
        let mut busy = !matches!(group.poll()?, Polled::Nothing);
        for pair in &mut group.pairs {
            if pair.messages.done == pair.messages.posted
                && pair.messages.landed(&group.plan, pair.messages.received)?
            {
                pair.messages.take_landed(&group.plan)?;
                pair.queue(&group.plan)?;
                pair.qp.ring_doorbell();
                received += 1;
                busy = true;
            }
        }
        if busy || expected.get() == u64::MAX {
            since = Instant::now();
        }
        if !busy {
            group.plan.idle(since)?;
        }
    }
    Ok(())
}
