//! Sleeping instead of polling: a receive queue with an interrupt.
//!
//! A queue made with [`RxQueueConfig::interrupt`](crate::RxQueueConfig::interrupt) has an event
//! queue and an interrupt vector of its own. It is polled as any other; when it has been idle for a
//! while, its core asks for a wake-up and sleeps. No packet is missed in between: asking says how
//! far the queue was read, and what has come since wakes at once.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use ferrocx_core::{Armer, CompletionEvents, CqRing, Device, DeviceError, Handle, Notify};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::RxQueue;

/// log2 of the entries of the event queue: one completion queue has one event under way, but a page
/// is what the smallest takes, and firmware knows no driver that asks for fewer.
const LOG_ENTRIES: u8 = 6;

/// The interrupt side of a queue.
#[derive(Debug)]
pub(super) struct Wake {
    events: CompletionEvents,
    /// `None` until the completion queue exists.
    armer: Option<Armer>,
    /// An event was asked for and has not come.
    is_armed: bool,
}

impl Wake {
    pub(super) fn new(device: &Device, vector: u16) -> Result<Self, DeviceError> {
        let events = CompletionEvents::new(device, LOG_ENTRIES, vector)?;
        Ok(Self { events, armer: None, is_armed: false })
    }

    /// The event queue, which the completion queue needs as long as it exists.
    pub(super) fn handle(&self) -> Arc<Handle> {
        self.events.handle()
    }

    /// The completion queue whose events these are.
    pub(super) fn watch(&mut self, ring: &CqRing, handle: &Handle) -> Result<(), DeviceError> {
        self.armer = Some(Armer::new(ring, handle)?);
        Ok(())
    }

    fn arm(&mut self, consumer_index: u32) {
        self.take();
        if let Some(armer) = self.armer.as_ref().filter(|_| !self.is_armed) {
            armer.arm(consumer_index, Notify::Next);
            self.is_armed = true;
        }
        self.events.arm();
    }

    /// Takes what has come; answers whether there was an event.
    fn take(&mut self) -> bool {
        self.events.clear();
        let mut woken = false;
        for _ in 0..self.events.entries() {
            if self.events.poll().is_none() {
                break;
            }
            if let Some(armer) = &mut self.armer {
                armer.event();
            }
            self.is_armed = false;
            woken = true;
        }
        woken
    }
}

impl RxQueue {
    /// Asks for a wake-up when the next packet comes, or at once if one came since the last burst.
    /// `false` for a queue that was made without an interrupt.
    ///
    /// The queue's descriptor, [`RxQueue::wake_fd`], is readable then; [`RxQueue::woken`] takes
    /// the wake-up. Bursts may go on meanwhile. No system call but a read of the descriptor.
    pub fn arm(&mut self) -> bool {
        let consumer_index = self.hot.cq.consumer_index();
        let Some(wake) = &mut self.wake else { return false };
        wake.arm(consumer_index);
        true
    }

    /// Becomes readable when the queue, once armed, has a packet: for `poll`, `epoll` and the like.
    /// `None` for a queue that was made without an interrupt.
    #[must_use]
    pub fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.wake.as_ref().map(|wake| wake.events.as_fd())
    }

    /// Takes a wake-up; answers whether there was one. Arm the queue again for the next.
    pub fn woken(&mut self) -> bool {
        self.wake.as_mut().is_some_and(Wake::take)
    }

    /// Sleeps until there is a packet, at most for `timeout`; answers whether it was woken.
    /// Returns at once, with `true`, for a queue that was made without an interrupt.
    ///
    /// # Errors
    ///
    /// The system's reason for not waiting. A signal is none: it ends the sleep.
    #[doc(alias = "rte_eth_dev_rx_intr_enable")]
    pub fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        if !self.arm() {
            return Ok(true);
        }
        sleep_on([&*self], timeout)?;
        Ok(self.woken())
    }
}

/// Most queues that one core sleeps on.
const MAX_QUEUES: usize = 64;

/// Sleeps until one of `queues`, all armed, has a packet, or for `timeout`. Then ask each whether
/// it was [`RxQueue::woken`].
///
/// Queues without an interrupt, and those behind the first 64, are passed over.
///
/// # Errors
///
/// The system's reason for not waiting. A signal is none: it ends the sleep.
pub fn sleep_on<'q>(
    queues: impl IntoIterator<Item = &'q RxQueue>,
    timeout: Duration,
) -> io::Result<()> {
    let fds = queues.into_iter().filter_map(RxQueue::wake_fd).take(MAX_QUEUES);
    let mut fds: arrayvec::ArrayVec<PollFd<'_>, MAX_QUEUES> =
        fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let timeout = Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
