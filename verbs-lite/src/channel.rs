//! [`CompletionChannel`]: waiting for completions instead of polling.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrocx_core::{CompletionEvents, Notify};

use crate::context::RdmaContext;
use crate::cq::{Cq, Room};
use crate::error::VerbsError;
use crate::seats::{MAX_QUEUES, Seats};

/// log2 of the entries of the event queue: an armed completion queue takes one at a time. Half of
/// them are for those that were taken, and that the device was not told of.
const LOG_ENTRIES: u8 = 11;
const _: () = assert!(CompletionChannel::MAX_QUEUES == 1 << (LOG_ENTRIES - 1));

/// Wakes a waiter when one of its completion queues, once armed, has something to report.
///
/// [`CompletionChannel::wait`] does all that it takes. In an event loop: [`Cq::arm`] the queue,
/// poll it once more, [`CompletionChannel::arm`], wait for [`CompletionChannel::as_fd`] to be
/// readable, read its eight bytes, then [`CompletionChannel::poll`] for the queues that fired, and
/// [`Cq::ack_event`] each.
#[derive(Debug)]
pub struct CompletionChannel {
    events: CompletionEvents,
    seats: Arc<Seats>,
}

impl RdmaContext {
    /// Makes a completion queue whose events go to a [`CompletionChannel`].
    ///
    /// # Errors
    ///
    /// Those of [`RdmaContext::create_cq`], and [`VerbsError::ChannelFull`].
    pub fn create_cq_with_events(
        &self,
        entries: u32,
        channel: &CompletionChannel,
    ) -> Result<Cq, VerbsError> {
        Cq::new(self, entries, Room::Reserved, Some((&channel.events, &channel.seats)))
    }

    /// Makes a completion queue like [`RdmaContext::create_cq`] that reserves no room for its queue
    /// pairs, so that it may be smaller than the sum of what they may have in flight. It is the
    /// caller's business to poll before it is full: one that overruns is of no use any more, and
    /// says so by [`Event::CqError`](ferrocx_core::Event::CqError).
    ///
    /// # Errors
    ///
    /// Those of [`RdmaContext::create_cq_with_events`].
    pub fn create_cq_unreserved(
        &self,
        entries: u32,
        channel: Option<&CompletionChannel>,
    ) -> Result<Cq, VerbsError> {
        let channel = channel.map(|channel| (&channel.events, &channel.seats));
        Cq::new(self, entries, Room::Shared, channel)
    }

    /// Makes a channel that wakes its waiter by the eventfd of interrupt `vector`.
    ///
    /// # Errors
    ///
    /// What the device refused, or the system's reason for refusing the interrupt.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_comp_channel(&self, vector: u16) -> Result<CompletionChannel, VerbsError> {
        let events = CompletionEvents::new(self.device(), LOG_ENTRIES, vector)?;
        Ok(CompletionChannel { events, seats: Arc::default() })
    }
}

impl CompletionChannel {
    /// Completion queues that may report to one channel at a time.
    pub const MAX_QUEUES: u32 = MAX_QUEUES;

    /// Waits until one of `cqs` has a completion to poll, for no longer than `timeout`. Whether one
    /// has. `cqs` should be all queues of this channel: an event of another one is only logged, and
    /// that queue is not woken for again.
    ///
    /// The thread sleeps: for cores that need not answer within microseconds.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Device`], when the system does not let it wait.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn wait(
        &mut self,
        cqs: &mut [&mut Cq],
        timeout: Option<Duration>,
    ) -> Result<bool, VerbsError> {
        let start = Instant::now();
        while !self.has_fired(cqs) {
            let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
            if left == Some(Duration::ZERO) {
                return Ok(false);
            }
            // A queue that is armed already, with an event still to come, stays as it is.
            cqs.iter().for_each(|cq| cq.arm(Notify::Next));
            if cqs.iter().any(|cq| cq.has_completion()) {
                break;
            }
            self.arm();
            // An interrupt may be that of an event whose completion was polled before.
            self.events.wait(left)?;
        }
        Ok(true)
    }

    /// Takes the events that came. Whether a queue has a completion.
    fn has_fired(&mut self, cqs: &mut [&mut Cq]) -> bool {
        self.acknowledge(cqs);
        cqs.iter().any(|cq| cq.has_completion())
    }

    /// Takes the events that came.
    fn acknowledge(&mut self, cqs: &mut [&mut Cq]) {
        while let Some(cqn) = self.poll() {
            match cqs.iter_mut().find(|cq| cq.number() == cqn) {
                Some(cq) => cq.ack_event(),
                None => tracing::warn!(cqn, "an event of a completion queue nobody waits for"),
            }
        }
    }

    /// The next completion queue that fired, by its number.
    pub fn poll(&mut self) -> Option<u32> {
        let left = self.seats.left();
        let next = self.events.poll();
        if next.is_none() && left > 0 {
            // Nothing waits any more of those that were gone before.
            self.seats.clear(left);
        }
        next
    }

    /// Asks for a wake-up at the next event, or at once if one was not polled yet.
    pub fn arm(&mut self) {
        self.events.arm();
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}
