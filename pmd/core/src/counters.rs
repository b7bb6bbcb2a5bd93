//! Sets of queue counters: what the device drops for want of a buffer, repeats and refuses.

use std::sync::{Arc, Mutex};

use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::port::{AllocQCounter, QueryQCounter, QueryQCounterOut};
use ferrocx_prm::syndrome::CommandStatus;

use crate::cmd::CommandError;
use crate::device::{Device, lock};
use crate::handle::Handle;
use crate::objects::Kind;

/// A set of queue counters, which the contexts of queues and queue pairs name. Source:
/// QUERY_Q_COUNTER, reference 4.8.
#[derive(Debug)]
pub struct CounterSet(Arc<Handle>);

impl CounterSet {
    /// Takes a set of the device's; `None` if it has no more. There are
    /// [`Limits::drop_counters`](crate::Limits::drop_counters) for all users of the function.
    ///
    /// # Errors
    /// What the device refused, other than that.
    pub fn new(device: &Device) -> Result<Option<Self>, CommandError> {
        if device.limits().drop_counters == 0 {
            return Ok(None);
        }
        let output = match device.inner().control().call(&AllocQCounter::input()) {
            Ok(output) => output,
            Err(error) => {
                return match error.status() {
                    Some(CommandStatus::EXCEED_LIM | CommandStatus::NO_RESOURCES) => Ok(None),
                    _ => Err(error),
                };
            }
        };
        let number = output.counter_set_id();
        let set = Handle::new(device, Kind::QueueCounters, number, Vec::new());
        Ok(Some(Self(Arc::new(set))))
    }

    /// Its number, for a context.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.0.number()
    }

    /// Keeps the set until an object is gone whose context names it.
    #[must_use]
    pub fn needed_by(&self, handle: Handle) -> Handle {
        handle.needing(&self.0)
    }

    /// The counters as they stand: 32 bits each, which wrap. One command.
    ///
    /// # Errors
    /// What the device refused, or that it is gone.
    pub fn query(&self) -> Result<QueryQCounterOut, CommandError> {
        let input = QueryQCounter::input().with_counter_set_id(self.number());
        self.0.device().inner().control().call(&input)
    }
}

/// What the device drops for want of a buffer: a set of counters of receive queues alone.
#[derive(Debug)]
pub struct DropCounter {
    set: CounterSet,
    /// What was read last, and all that it had counted by then.
    seen: Mutex<(u32, u64)>,
}

impl DropCounter {
    /// Takes a set; `None` if the device has no more.
    ///
    /// # Errors
    /// Those of [`CounterSet::new`].
    pub fn new(device: &Device) -> Result<Option<Self>, CommandError> {
        let set = CounterSet::new(device)?;
        Ok(set.map(|set| Self { set, seen: Mutex::new((0, 0)) }))
    }

    /// The set, for [`RqAttr`](crate::wq::RqAttr).
    #[must_use]
    pub fn set(&self) -> &CounterSet {
        &self.set
    }

    /// Packets that found no buffer posted since the counter was made. One command.
    ///
    /// The device counts 32 bits: of more than 2^32 packets between two readings, 2^32 are not
    /// seen.
    ///
    /// # Errors
    /// What the device refused, or that it is gone.
    pub fn read(&self) -> Result<u64, CommandError> {
        let mut seen = lock(&self.seen);
        let now = self.set.query()?.out_of_buffer();
        let all = seen.1 + u64::from(now.wrapping_sub(seen.0));
        *seen = (now, all);
        Ok(all)
    }
}
