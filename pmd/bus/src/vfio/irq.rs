//! MSI-X vectors connected to eventfds.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use super::open::OpenDevice;
use super::sys;
use crate::transport::eventfds;
use crate::{BusError, Interrupts};

/// The MSI-X vectors of an open device.
pub(super) struct VfioInterrupts {
    vfio: Arc<OpenDevice>,
    vectors: u16,
    enabled: Mutex<Vec<OwnedFd>>,
}

impl VfioInterrupts {
    pub(super) fn new(vfio: Arc<OpenDevice>) -> Self {
        let count = sys::irq_count(vfio.as_fd(), sys::MSIX_IRQ).unwrap_or(0);
        // The MSI-X capability has an 11-bit count.
        let vectors = u16::try_from(count).unwrap_or(2048);
        Self { vfio, vectors, enabled: Mutex::new(Vec::new()) }
    }

    fn os(&self, what: &str, error: impl Into<std::io::Error>) -> BusError {
        BusError::os(format!("{what} of device {}", self.vfio.identity.name), error)
    }
}

impl Interrupts for VfioInterrupts {
    fn vectors(&self) -> u16 {
        self.vectors
    }

    fn enable(&self, count: u16) -> Result<(), BusError> {
        let fds = eventfds(count, self.vectors)?;
        let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let mut enabled = self.enabled.lock().unwrap_or_else(PoisonError::into_inner);
        let device = self.vfio.as_fd();
        if !enabled.is_empty() {
            // A kernel without dynamic MSI-X refuses more vectors while some are connected.
            sys::set_irqs(device, sys::MSIX_IRQ, &[])
                .map_err(|error| self.os("disconnecting the interrupts", error))?;
            enabled.clear();
        }
        if count > 0 {
            sys::set_irqs(device, sys::MSIX_IRQ, &raw)
                .map_err(|error| self.os("connecting the interrupts", error))?;
        }
        *enabled = fds;
        Ok(())
    }

    fn eventfd(&self, vector: u16) -> Result<OwnedFd, BusError> {
        let enabled = self.enabled.lock().unwrap_or_else(PoisonError::into_inner);
        let fd = enabled.get(usize::from(vector)).ok_or_else(|| BusError::VectorNotEnabled {
            vector,
            enabled: u16::try_from(enabled.len()).unwrap_or(u16::MAX),
        })?;
        fd.try_clone().map_err(|error| self.os("duplicating an eventfd", error))
    }
}

impl std::fmt::Debug for VfioInterrupts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VfioInterrupts").field("vectors", &self.vectors).finish_non_exhaustive()
    }
}
