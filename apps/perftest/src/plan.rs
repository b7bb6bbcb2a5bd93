//! The plan of a round: what is measured, with messages of which size, and when it is over.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use ferrocx_app_common::wait::Wait;
use ferrocx_model::runner::Helper;

use crate::measure::{Kind, Limit, Measure, Test};
use crate::placement::Placement;

/// Nothing for this long: the other end is gone.
const PATIENCE: Duration = Duration::from_secs(30);

/// What all queue pairs of a round have in common.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What is measured.
    pub measure: Measure,
    /// Bytes of a message.
    pub size: usize,
    /// Messages on the way on a queue pair at most.
    pub slots: usize,
    /// How the thread waits.
    pub wait: Wait,
    /// The models, which the thread steps while it waits.
    helper: Option<Helper>,
    /// Every so many messages one asks for a completion.
    signal_every: u64,
    /// Messages of each queue pair.
    messages: u64,
    /// Whether messages stand in the request.
    pub(crate) is_inline: bool,
}

impl Plan {
    /// For messages of `size` bytes.
    #[must_use]
    pub fn new(measure: &Measure, size: usize, placement: &Placement) -> Self {
        let slots = measure.slots(size);
        let takes_data = matches!(measure.test, Test::Send | Test::Write);
        Self {
            size,
            slots,
            wait: placement.wait,
            helper: placement.helper.clone(),
            signal_every: measure.signal_every.min(slots) as u64,
            messages: match measure.limit {
                Limit::Messages(count) => count,
                Limit::Milliseconds(_) => u64::MAX,
            },
            is_inline: takes_data && size <= measure.inline_bytes,
            measure: measure.clone(),
        }
    }

    /// Bytes between two messages in memory.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        Measure::slot_bytes(self.size)
    }

    /// Places for messages that a queue pair has: to send from, and to receive or check in.
    #[must_use]
    pub fn places(&self) -> usize {
        2 * self.slots
    }

    /// When the round is over, if time says so.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match self.measure.limit {
            Limit::Messages(_) => None,
            Limit::Milliseconds(ms) => Some(Instant::now() + Duration::from_millis(ms)),
        }
    }

    /// Whether message `seq` is the last: `is_late` says that the time is over.
    #[must_use]
    pub fn is_over(&self, seq: u64, is_late: bool) -> bool {
        // Those behind the last one that asks for a completion would never be known to end.
        seq >= self.messages || is_late && seq.is_multiple_of(self.signal_every)
    }

    /// Whether message `seq` is the last, counted over all threads together.
    #[must_use]
    pub fn is_over_in_all(&self, seq: u64, is_late: bool) -> bool {
        is_late || seq >= self.messages.saturating_mul(self.measure.workers as u64)
    }

    /// Waits after a poll that found nothing; `since` is when there was something last.
    ///
    /// # Errors
    ///
    /// Nothing has come for too long.
    pub fn idle(&self, since: Instant) -> Result<()> {
        if since.elapsed() > PATIENCE {
            bail!("nothing came for {} s", PATIENCE.as_secs());
        }
        if !self.helper.as_ref().is_some_and(Helper::help) {
            self.wait.idle();
        }
        Ok(())
    }

    pub(crate) fn is_signaled(&self, seq: u64) -> bool {
        (seq + 1).is_multiple_of(self.signal_every) || seq + 1 == self.messages
    }

    /// Whether each WRITE is followed by a READ of what it wrote.
    pub(crate) fn reads_back(&self) -> bool {
        self.measure.verify && self.measure.test == Test::Write && self.measure.kind == Kind::Bw
    }
}
