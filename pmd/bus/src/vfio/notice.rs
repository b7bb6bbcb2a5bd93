//! What the kernel says about a device: that it wants it back, or that the bus failed it.
//!
//! # Source
//!
//! Linux `include/uapi/linux/vfio.h`, `VFIO_PCI_ERR_IRQ_INDEX`, `VFIO_PCI_REQ_IRQ_INDEX`;
//! `drivers/vfio/pci/vfio_pci_core.c`: a removal signals the request every 10 s until the device
//! is closed, and waits for that without end; an error is signalled once, by AER.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use super::sys;
use crate::{BusError, Notice};

const ERR_IRQ: u32 = 3;
const REQ_IRQ: u32 = 4;

/// One eventfd, and whether it was ever signalled.
struct Flag {
    fd: OwnedFd,
    raised: AtomicBool,
}

impl Flag {
    fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd, raised: AtomicBool::new(false) })
    }

    fn is_raised(&self) -> bool {
        // Eight bytes come only from a counter that is not 0.
        if rustix::io::read(&self.fd, &mut [0_u8; 8]) == Ok(8) {
            self.raised.store(true, Ordering::Relaxed);
        }
        self.raised.load(Ordering::Relaxed)
    }
}

/// The notices of an open device.
pub(super) struct Notices {
    removal: Flag,
    error: Flag,
}

impl Notices {
    /// Asks the kernel to tell. A kernel or a device without one of the two tells the other only.
    ///
    /// # Errors
    ///
    /// The system has no more descriptors.
    pub(super) fn subscribe(device: BorrowedFd<'_>, name: &str) -> Result<Self, BusError> {
        let flag = || {
            Flag::new().map_err(|error| {
                BusError::os(format!("eventfd for notices of device {name}"), error)
            })
        };
        let (removal, error) = (flag()?, flag()?);
        for (index, what, flag) in [(REQ_IRQ, "removal", &removal), (ERR_IRQ, "errors", &error)] {
            if let Err(error) = sys::set_irqs(device, index, &[flag.fd.as_raw_fd()]) {
                // A device outside PCI Express has no errors to report.
                tracing::debug!(name, what, %error, "the kernel gives no notice");
            }
        }
        Ok(Self { removal, error })
    }

    /// The worst that was said so far. Two reads that do not wait.
    pub(super) fn latest(&self) -> Option<Notice> {
        let removal = self.removal.is_raised().then_some(Notice::RemovalRequested);
        let error = self.error.is_raised().then_some(Notice::BusError);
        removal.max(error)
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    fn signal(fd: &OwnedFd) {
        assert_eq!(rustix::io::write(fd, &1_u64.to_ne_bytes()), Ok(8));
    }

    #[test]
    fn what_was_said_stays_said_and_an_error_is_worse() {
        let notices = Notices {
            removal: Flag::new().expect("eventfd"),
            error: Flag::new().expect("eventfd"),
        };
        assert_eq!(notices.latest(), None);
        signal(&notices.removal.fd);
        assert_eq!(notices.latest(), Some(Notice::RemovalRequested));
        assert_eq!(notices.latest(), Some(Notice::RemovalRequested));
        signal(&notices.error.fd);
        signal(&notices.error.fd);
        assert_eq!(notices.latest(), Some(Notice::BusError));
        assert_eq!(notices.latest(), Some(Notice::BusError));
    }

    #[test]
    fn a_kernel_that_gives_no_notice_is_no_reason_to_refuse_the_device() {
        // An ordinary file knows none of these calls.
        let file = tempfile::tempfile().expect("a temporary file");
        let notices = Notices::subscribe(std::os::fd::AsFd::as_fd(&file), "x").expect("eventfds");
        assert_eq!(notices.latest(), None);
    }
}
