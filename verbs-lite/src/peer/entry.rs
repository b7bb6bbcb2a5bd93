//! [`Provider`]: a provider as the registry knows it, and who is calling it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::provider::{Cause, EndRegion, PeerError, PeerProvider};
use super::stats::{Counters, PeerStats};

/// A provider as the registry knows it.
#[derive(Debug)]
pub(super) struct Provider {
    callbacks: Arc<dyn PeerProvider>,
    name: String,
    version: String,
    counters: Counters,
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
        self.0.gate().calls -= 1;
        self.0.left.notify_all();
    }
}

impl Provider {
    pub(super) fn new(callbacks: Arc<dyn PeerProvider>) -> Self {
        let (name, version) = (callbacks.name().to_owned(), callbacks.version().to_owned());
        let (counters, gate, left) = (Counters::default(), Mutex::default(), Condvar::new());
        Self { callbacks, name, version, counters, gate, left }
    }

    pub(super) fn callbacks(&self) -> &dyn PeerProvider {
        &*self.callbacks
    }

    pub(super) fn stats(&self) -> PeerStats {
        self.counters.snapshot(&self.name, &self.version)
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Ends are never refused: a closed provider has no live region, so none calls back.
    pub(super) fn call(&self) -> Call<'_> {
        self.gate().calls += 1;
        Call(self)
    }

    /// For a new registration.
    pub(super) fn enter(&self) -> Option<Call<'_>> {
        let mut gate = self.gate();
        if gate.is_closed {
            return None;
        }
        gate.calls += 1;
        Some(Call(self))
    }

    /// Keeps a region in mind, to end it when the provider is unregistered.
    pub(super) fn note(&self, grant: Arc<dyn EndRegion>) {
        let mut gate = self.gate();
        if gate.grants.len() == gate.grants.capacity() {
            gate.grants.retain(|grant| grant.strong_count() > 0);
        }
        gate.grants.push(Arc::downgrade(&grant));
    }

    /// Lets nobody in, ends every region, and waits until the last callback has returned.
    pub(super) fn close(&self, deadline: Duration) -> Result<(), PeerError> {
        let start = Instant::now();
        let grants = {
            let mut gate = self.gate();
            gate.is_closed = true;
            std::mem::take(&mut gate.grants)
        };
        let mut result = Ok(());
        for grant in grants {
            let Some(grant) = grant.upgrade() else { continue };
            if let Err(error) = grant.end(Cause::Dereg) {
                // To be found again by the next attempt.
                self.note(grant);
                result = Err(error);
            }
        }
        let mut gate = self.gate();
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
