//! [`EventReader`]: what the device reports; and [`CompletionEvents`]: the event queue that wakes
//! those who wait for completions.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ferrocx_bus::BusError;
use ferrocx_prm::eqc::Eqc;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::device::Device;
use crate::eq::{EqRing, Event, Polled};
use crate::error::DeviceError;
use crate::handle::Handle;
use crate::kept::Place;
use crate::objects::Kind;

/// Reads all events of a device from when it was made, whoever else reads them: made by
/// [`Device::event_reader`].
#[derive(Debug)]
pub struct EventReader {
    device: Device,
    place: Place,
}

impl Device {
    /// Reads the device's events from now on, whoever else does.
    #[must_use]
    pub fn event_reader(&self) -> EventReader {
        let place = self.inner().control().events.end();
        EventReader { device: self.clone(), place }
    }
}

impl EventReader {
    /// The oldest event that this reader has not read yet. Also serves the firmware's page
    /// requests.
    pub fn poll(&mut self) -> Option<Event> {
        let mut control = self.device.inner().control();
        control.serve();
        control.events.read(&mut self.place)
    }

    /// Events that this reader missed: more came between two polls than the 4096 that are kept.
    #[must_use]
    pub fn lost_events(&self) -> u64 {
        self.device.inner().control().events.lost(&self.place)
    }
}

/// An event queue of completion events, with an interrupt vector of its own.
///
/// Completion queues that name it report here once they are armed.
#[derive(Debug)]
pub struct CompletionEvents {
    ring: EqRing,
    handle: Arc<Handle>,
    eventfd: OwnedFd,
}

/// The descriptor of an interrupt vector. All vectors are enabled when the first is needed, because
/// enabling more later would replace them.
fn eventfd(device: &Device, vector: u16) -> Result<OwnedFd, BusError> {
    let interrupts = device.interrupts();
    if interrupts.eventfd(vector).is_err() {
        interrupts.enable(device.interrupt_vectors())?;
    }
    interrupts.eventfd(vector)
}

impl CompletionEvents {
    /// Makes an event queue of `2^log_size` entries, which raises interrupt `vector` when armed.
    ///
    /// # Errors
    /// What the device refused, or the system's reason for refusing the interrupt.
    pub fn new(device: &Device, log_size: u8, vector: u16) -> Result<Self, DeviceError> {
        let eventfd = eventfd(device, vector)?;
        let inner = device.inner();
        let eqc = Eqc::zeroed().with_uar_page(inner.made.uar_page).with_intr(u32::from(vector));
        // An empty mask makes it a queue of completion events. Source: reference 4.3, CREATE_EQ.
        let (ring, buf) = inner.control().create_eq(eqc, log_size, [0; 32])?;
        let handle = Arc::new(Handle::new(device, Kind::Eq, u32::from(ring.eqn), vec![buf]));
        Ok(Self { ring, handle, eventfd })
    }

    /// What completion queues that report here must hold: they are destroyed first.
    #[must_use]
    pub fn handle(&self) -> Arc<Handle> {
        Arc::clone(&self.handle)
    }

    /// The next completion queue that has something to report.
    pub fn poll(&mut self) -> Option<u32> {
        // A device that lies may hand over entries without end.
        for _ in 0..self.ring.entries() {
            match self.ring.poll()? {
                Polled::Event(Event::Completion { cqn }) => return Some(cqn),
                other => tracing::warn!(?other, "not a completion event"),
            }
        }
        None
    }

    /// Events that the queue holds.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.ring.entries()
    }

    /// Asks for an interrupt at the next event, or at once if one was not polled yet.
    pub fn arm(&mut self) {
        self.ring.arm();
    }

    /// Waits for an interrupt, for no longer than `timeout`. Whether one came: `false` when the
    /// time is over, and when a signal came instead.
    ///
    /// # Errors
    /// [`DeviceError::Bus`] with the system's reason.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool, DeviceError> {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut fds = [PollFd::new(&self.eventfd, PollFlags::IN)];
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(false),
            Ok(_) => {
                self.clear();
                Ok(true)
            }
            Err(errno) => {
                let (what, source) = ("waiting for an interrupt".to_owned(), errno.into());
                Err(BusError::Os { what, source }.into())
            }
        }
    }

    /// Makes the descriptor unreadable until the next interrupt.
    pub fn clear(&self) {
        // It does not block; there may be nothing to read.
        let _ = rustix::io::read(&self.eventfd, &mut [0; 8]);
    }
}

/// Becomes readable with each interrupt.
impl AsFd for CompletionEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}
