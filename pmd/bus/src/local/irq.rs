//! Interrupt vectors as eventfds that the device side signals.
//!
//! An eventfd that a client handed over is the client's as well: it may fill the counter, and have
//! writes wait for a reader, at any time (`O_NONBLOCK` belongs to the file, not to a descriptor of
//! it). So it is written to only where there is room, never under a lock, and who waits for a
//! writer that was caught all the same reads the counter down, which lets the writer go.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::transport::eventfds;
use crate::{BusError, Interrupts};

/// A write to an eventfd takes microseconds; one that takes this long waits for a reader.
const CAUGHT_AFTER: Duration = Duration::from_millis(10);

/// The eventfd of an enabled vector. Who signals it holds a clone meanwhile.
#[derive(Debug, Clone)]
struct Vector {
    fd: Arc<OwnedFd>,
    /// It came from outside.
    is_foreign: bool,
}

/// The vectors of one device.
#[derive(Debug)]
pub(super) struct IrqShared {
    vectors: u16,
    enabled: RwLock<Vec<Option<Vector>>>,
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
        let Some(Some(known)) = enabled.get(usize::from(vector)) else {
            self.lost.fetch_add(1, Ordering::Relaxed);
            if let Some(pending) = self.pending.get(usize::from(vector)) {
                pending.store(true, Ordering::Relaxed);
            }
            return false;
        };
        let known = known.clone();
        drop(enabled);
        self.raised.fetch_add(1, Ordering::Relaxed);
        known.signal();
        true
    }

    /// Lets a thread go that a client holds in a signal: reads the counters down of those eventfds
    /// that are being written to. Interrupts that the client has not read yet may be lost.
    pub(super) fn free_writers(&self) {
        let enabled = self.enabled.read().unwrap_or_else(PoisonError::into_inner);
        enabled.iter().flatten().filter(|vector| vector.is_in_use()).for_each(Vector::drain);
    }

    /// Forgets what was raised while not enabled: the device was reset.
    pub(super) fn clear_pending(&self) {
        let _lock = self.enabled.write().unwrap_or_else(PoisonError::into_inner);
        self.pending.iter().for_each(|pending| pending.store(false, Ordering::Relaxed));
    }

    /// Replaces the eventfd of one vector; `None` disables it.
    ///
    /// What was raised while it was disabled is signalled now, as a PCI function does when a
    /// vector is unmasked: a client may disable vectors for a moment only to add one. When this
    /// returns, nobody writes to the former eventfd any more.
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
        let new = fd.map(|fd| Vector { fd: Arc::new(fd), is_foreign: true });
        let mut enabled = self.enabled.write().unwrap_or_else(PoisonError::into_inner);
        let at = usize::from(vector);
        if enabled.len() <= at {
            enabled.resize_with(at + 1, || None);
        }
        let former = std::mem::replace(&mut enabled[at], new.clone());
        let is_due = new.is_some() && self.pending[at].swap(false, Ordering::Relaxed);
        drop(enabled);
        if let Some(new) = new.filter(|_| is_due) {
            new.signal();
        }
        if let Some(former) = former {
            former.wait_for_writers();
        }
        Ok(())
    }

    /// Interrupts raised, and interrupts lost because their vector was not enabled.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.raised.load(Ordering::Relaxed), self.lost.load(Ordering::Relaxed))
    }
}

impl Vector {
    fn signal(&self) {
        if self.is_foreign {
            // No room means that it is readable already. The flag is set again in case that the
            // client took it away: what is left to it is the moment before the write.
            let mut room = [PollFd::new(&self.fd, PollFlags::OUT)];
            let is_ready = poll(&mut room, Some(&Timespec::default())).is_ok_and(|count| count > 0);
            if !is_ready || !self.set_nonblocking() {
                return;
            }
        }
        // The write can fail only when the counter is at its maximum: the fd is readable then too.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Makes reads and writes return at once; `false` when that cannot be.
    fn set_nonblocking(&self) -> bool {
        fcntl_getfl(&self.fd).is_ok_and(|flags| {
            let is_set = flags.contains(OFlags::NONBLOCK);
            is_set || fcntl_setfl(&self.fd, flags | OFlags::NONBLOCK).is_ok()
        })
    }

    /// Whether somebody is signalling it: the clone in the list, and another one.
    fn is_in_use(&self) -> bool {
        self.is_foreign && Arc::strong_count(&self.fd) > 1
    }

    /// Reads the counter down, so that a write that waits for room goes on.
    fn drain(&self) {
        let mut content = [PollFd::new(&self.fd, PollFlags::IN)];
        let is_ready = poll(&mut content, Some(&Timespec::default())).is_ok_and(|count| count > 0);
        if is_ready && self.set_nonblocking() {
            let _ = rustix::io::read(&self.fd, &mut [0_u8; 8]);
        }
    }

    /// Waits until nobody signals this vector, which is in no list any more.
    fn wait_for_writers(&self) {
        let start = Instant::now();
        while self.is_in_use() {
            if start.elapsed() > CAUGHT_AFTER {
                self.drain();
            }
            std::thread::yield_now();
        }
    }
}

impl Interrupts for IrqShared {
    fn vectors(&self) -> u16 {
        self.vectors
    }

    fn enable(&self, count: u16) -> Result<(), BusError> {
        let own = |fd| Some(Vector { fd: Arc::new(fd), is_foreign: false });
        let fds = eventfds(count, self.vectors)?.into_iter().map(own).collect();
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
        fd.fd.try_clone().map_err(|error| BusError::os("duplicating an eventfd", error))
    }
}
