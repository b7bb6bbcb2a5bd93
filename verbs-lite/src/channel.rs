//! [`CompletionChannel`]: waiting for completions instead of polling.

use std::os::fd::{AsFd, BorrowedFd};

use ferrocx_core::CompletionEvents;

use crate::context::RdmaContext;
use crate::error::VerbsError;

/// log2 of the entries of the event queue: an armed completion queue takes one at a time.
const LOG_ENTRIES: u8 = 8;

/// Wakes a waiter when one of its completion queues, once armed, has something to report.
///
/// To wait without missing anything: [`Cq::arm`](crate::Cq::arm) the queue, poll it once more,
/// [`CompletionChannel::arm`], then wait for [`CompletionChannel::as_fd`] to be readable, read its
/// eight bytes, and [`CompletionChannel::poll`] for the queues that fired.
#[derive(Debug)]
pub struct CompletionChannel {
    events: CompletionEvents,
}

impl CompletionChannel {
    pub(crate) fn new(context: &RdmaContext, vector: u16) -> Result<Self, VerbsError> {
        Ok(Self { events: CompletionEvents::new(context.device(), LOG_ENTRIES, vector)? })
    }

    pub(crate) fn events(&self) -> &CompletionEvents {
        &self.events
    }

    /// The next completion queue that fired, by its number.
    pub fn poll(&mut self) -> Option<u32> {
        self.events.poll()
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
