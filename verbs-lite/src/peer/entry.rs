//! [`Provider`]: a provider as the registry knows it, and who is calling it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::provider::{Cause, EndRegion, PeerError, PeerFault, PeerMemory, PeerProvider};
use super::stats::{Counters, PeerStats};
use crate::error::lock;

/// A provider as the registry knows it.
#[derive(Debug)]
pub(super) struct Provider {
    pub(super) callbacks: Arc<dyn PeerProvider>,
    pub(super) name: String,
    version: String,
    pub(super) counters: Counters,
    gate: Mutex<Gate>,
    /// A call ended.
    left: Condvar,
}

#[derive(Debug, Default)]
struct Gate {
    is_closed: bool,
    /// Calls under way, in which callbacks may run.
    calls: usize,
    grants: Vec<Weak<dyn EndRegion>>,
}

/// Callbacks may run as long as this lives.
#[derive(Debug)]
pub(super) struct Call<'a>(&'a Provider);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        lock(&self.0.gate).calls -= 1;
        self.0.left.notify_all();
    }
}

impl Provider {
    pub(super) fn new(callbacks: Arc<dyn PeerProvider>) -> Self {
        let (name, version) = (callbacks.name().to_owned(), callbacks.version().to_owned());
        let (counters, gate, left) = (Counters::default(), Mutex::default(), Condvar::new());
        Self { callbacks, name, version, counters, gate, left }
    }

    pub(super) fn stats(&self) -> PeerStats {
        self.counters.snapshot(&self.name, &self.version)
    }

    /// For an end, which is never refused: a closed provider has no live region, so none calls
    /// back.
    pub(super) fn enter(&self) -> Call<'_> {
        lock(&self.gate).calls += 1;
        Call(self)
    }

    /// For a new registration.
    pub(super) fn enter_if_open(&self) -> Option<Call<'_>> {
        let mut gate = lock(&self.gate);
        if gate.is_closed {
            return None;
        }
        gate.calls += 1;
        Some(Call(self))
    }

    /// Runs a callback, whose panic is its own.
    pub(super) fn call<T>(
        &self,
        call: &'static str,
        callback: impl FnOnce() -> Result<T, PeerFault>,
    ) -> Result<T, PeerError> {
        let ended = catch_unwind(AssertUnwindSafe(callback));
        let ended = ended.unwrap_or_else(|_| Err("it panicked".into()));
        ended.map_err(|cause| PeerError::Callback { provider: self.name.clone(), call, cause })
    }

    /// Tells a view of the memory that it is the last that it hears.
    pub(super) fn release(&self, memory: Box<dyn PeerMemory>) -> Result<(), PeerError> {
        self.call("release", || {
            memory.release();
            Ok(())
        })
    }

    /// Keeps a region in mind, to end it when the provider is unregistered. `false` if that has
    /// begun, and has perhaps ended all the regions that it found: a new one must not go live.
    #[must_use]
    pub(super) fn note(&self, grant: &Arc<dyn EndRegion>) -> bool {
        let mut gate = lock(&self.gate);
        if gate.grants.len() == gate.grants.capacity() {
            gate.grants.retain(|grant| grant.strong_count() > 0);
        }
        gate.grants.push(Arc::downgrade(grant));
        !gate.is_closed
    }

    /// Lets nobody in, ends every region, and waits until the last callback has returned.
    pub(super) fn close(&self, deadline: Duration) -> Result<(), PeerError> {
        let start = Instant::now();
        let mut gate = lock(&self.gate);
        gate.is_closed = true;
        let grants = std::mem::take(&mut gate.grants);
        drop(gate);
        let mut result = Ok(());
        for grant in grants.iter().filter_map(Weak::upgrade) {
            if let Err(error) = grant.end(Cause::Dereg) {
                // To be found again by the next attempt.
                let _ = self.note(&grant);
                result = Err(error);
            }
        }
        let mut gate = lock(&self.gate);
        while gate.calls > 0 {
            let Some(left) = deadline.checked_sub(start.elapsed()) else {
                return Err(PeerError::Late {
                    provider: self.name.clone(),
                    what: "a callback or a registration",
                    deadline_ms: deadline.as_millis(),
                });
            };
            gate = self.left.wait_timeout(gate, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        result
    }
}
