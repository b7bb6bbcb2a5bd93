//! [`Watch`]: whether the device has said that a queue of ours is lost.

use std::time::Duration;

use ferrocx_core::{Device, EventReader};

use crate::mr::Buffers;
use crate::qp::{Qp, QpState};

/// Time between two looks at the device's events, which take a lock.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Time after which what could not be had is tried again: its commands may have waited for long.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Looks after a queue pair that serves until it is dropped: nobody else would notice that it, or
/// the queue of its completions, is lost.
#[derive(Debug)]
pub(crate) struct Watch {
    events: EventReader,
    /// In the time of whoever asks.
    look_at: Duration,
    missed: u64,
}

impl Watch {
    pub(crate) fn new(device: &Device) -> Self {
        Self { events: device.event_reader(), look_at: Duration::ZERO, missed: 0 }
    }

    /// Whether the queue pair cannot send, is lost as the device says, or is not there, when it is
    /// time to look.
    pub(crate) fn finds_lost<B: Buffers>(&mut self, now: Duration, qp: Option<&Qp<B>>) -> bool {
        if now < self.look_at {
            return false;
        }
        self.look_at = now + LOOK_EVERY;
        let missed = self.events.lost_events();
        // Whatever was missed may have been of it.
        let mut is_lost = missed != self.missed;
        self.missed = missed;
        while let Some(event) = self.events.poll() {
            is_lost |= qp.is_some_and(|qp| qp.is_ended_by(&event));
        }
        is_lost || qp.is_none_or(|qp| qp.state() != QpState::Rts)
    }

    /// Another could not be made: looks again later.
    pub(crate) fn wait(&mut self, now: Duration) {
        self.look_at = now + RETRY_AFTER;
    }
}
