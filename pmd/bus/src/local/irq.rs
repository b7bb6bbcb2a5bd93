//! Interrupt vectors as eventfds that the device side signals.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::transport::eventfds;
use crate::{BusError, Interrupts};

/// The vectors of one device.
#[derive(Debug)]
pub(super) struct IrqShared {
    vectors: u16,
    enabled: RwLock<Vec<Option<OwnedFd>>>,
    /// The MSI-X pending bits: raised while not enabled. Changed under the lock of `enabled`.
    pending: Vec<AtomicBool>,
    raised: AtomicU64,
    lost: AtomicU64,
}

impl IrqShared {
    pub(super) fn new(vectors: u16) -> Self {
        Self {
            vectors,
            enabled: RwLock::new(Vec::new()),
            pending: (0..vectors).map(|_| AtomicBool::new(false)).collect(),
            raised: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }

    /// Signals a vector; `false` when it is not enabled: it is signalled when [`Self::set`] enables
    /// it.
    pub(super) fn raise(&self, vector: u16) -> bool {
        let enabled = self.enabled.read().unwrap_or_else(PoisonError::into_inner);
        let Some(Some(fd)) = enabled.get(usize::from(vector)) else {
            self.lost.fetch_add(1, Ordering::Relaxed);
            if let Some(pending) = self.pending.get(usize::from(vector)) {
                pending.store(true, Ordering::Relaxed);
            }
            return false;
        };
        self.raised.fetch_add(1, Ordering::Relaxed);
        signal(fd);
        true
    }

    /// Forgets what was raised while not enabled: the device was reset.
    pub(super) fn clear_pending(&self) {
        let _lock = self.enabled.write().unwrap_or_else(PoisonError::into_inner);
        self.pending.iter().for_each(|pending| pending.store(false, Ordering::Relaxed));
    }

    /// Replaces the eventfd of one vector; `None` disables it.
    ///
    /// What was raised while it was disabled is signalled now, as a PCI function does when a
    /// vector is unmasked: a client may disable vectors for a moment only to add one.
    pub(super) fn set(&self, vector: u16, fd: Option<OwnedFd>) -> Result<(), BusError> {
        if vector >= self.vectors {
            return Err(BusError::OutOfRange {
                what: "interrupt vector",
                value: u64::from(vector),
                min: 0,
                max: u64::from(self.vectors - 1),
                hint: "",
            });
        }
        let mut enabled = self.enabled.write().unwrap_or_else(PoisonError::into_inner);
        let at = usize::from(vector);
        if enabled.len() <= at {
            enabled.resize_with(at + 1, || None);
        }
        if let Some(fd) = &fd
            && self.pending[at].swap(false, Ordering::Relaxed)
        {
            signal(fd);
        }
        enabled[at] = fd;
        Ok(())
    }

    /// Interrupts raised, and interrupts lost because their vector was not enabled.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.raised.load(Ordering::Relaxed), self.lost.load(Ordering::Relaxed))
    }
}

fn signal(fd: &OwnedFd) {
    // The write can fail only when the counter is at its maximum: the fd is readable then too.
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

impl Interrupts for IrqShared {
    fn vectors(&self) -> u16 {
        self.vectors
    }

    fn enable(&self, count: u16) -> Result<(), BusError> {
        let fds = eventfds(count, self.vectors)?.into_iter().map(Some).collect();
        let mut enabled = self.enabled.write().unwrap_or_else(PoisonError::into_inner);
        self.pending.iter().for_each(|pending| pending.store(false, Ordering::Relaxed));
        *enabled = fds;
        Ok(())
    }

    fn eventfd(&self, vector: u16) -> Result<OwnedFd, BusError> {
        let enabled = self.enabled.read().unwrap_or_else(PoisonError::into_inner);
        let fd = enabled.get(usize::from(vector)).and_then(Option::as_ref).ok_or_else(|| {
            BusError::VectorNotEnabled {
                vector,
                enabled: u16::try_from(enabled.len()).unwrap_or(u16::MAX),
            }
        })?;
        fd.try_clone().map_err(|error| BusError::os("duplicating an eventfd", error))
    }
}
