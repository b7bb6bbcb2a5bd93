//! [`CompletionChannel`]: waiting for completions instead of polling.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ferrocx_pmd::objects::CompletionEvents;

use crate::device::Device;
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
    eventfd: OwnedFd,
}

impl CompletionChannel {
    pub(crate) fn new(device: &Device, vector: u16) -> Result<Self, VerbsError> {
        let interrupts = device.port().interrupts();
        // Enabling replaces what was enabled; a channel made before must keep its vector.
        if interrupts.eventfd(vector).is_err() {
            interrupts.enable(interrupts.vectors())?;
        }
        let eventfd = interrupts.eventfd(vector)?;
        let events = device.port().completion_events(LOG_ENTRIES, vector)?;
        Ok(Self { events, eventfd })
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
        self.eventfd.as_fd()
    }
}
