//! [`PeerRegistry`]: which providers there are, who is calling them, and the broker between them
//! and the keys.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::provider::{
    Cause, EndRegion, PeerError, PeerFault, PeerMemory, PeerProvider, PeerRange,
};
use super::region::{self, PeerConfig, PeerMr};
use super::stats::{Counters, PeerStats, add};
use crate::error::lock;
use crate::pd::Pd;

/// Bytes of a provider's name, terminating zero included. Source: seed 004,
/// `IB_PEER_MEMORY_NAME_MAX`.
const NAME_MAX: usize = 64;
/// How long dropping a [`PeerClient`] waits for callbacks.
const DROP_DEADLINE: Duration = Duration::from_secs(10);

/// A provider as the registry knows it.
#[derive(Debug)]
pub(super) struct Provider {
    callbacks: Arc<dyn PeerProvider>,
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
    fn stats(&self) -> PeerStats {
        self.counters.snapshot(&self.name, &self.version)
    }

    /// For an end, which is never refused: a closed provider has no live region, so none calls
    /// back.
    pub(super) fn enter(&self) -> Call<'_> {
        lock(&self.gate).calls += 1;
        Call(self)
    }

    /// For a new registration.
    fn enter_if_open(&self) -> Option<Call<'_>> {
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

    /// Keeps a region in mind, to end it when the provider is unregistered.
    pub(super) fn note(&self, grant: &Arc<dyn EndRegion>) {
        let mut gate = lock(&self.gate);
        if gate.grants.len() == gate.grants.capacity() {
            gate.grants.retain(|grant| grant.strong_count() > 0);
        }
        gate.grants.push(Arc::downgrade(grant));
    }

    /// Lets nobody in, ends every region, and waits until the last callback has returned.
    fn close(&self, deadline: Duration) -> Result<(), PeerError> {
        let start = Instant::now();
        let mut gate = lock(&self.gate);
        gate.is_closed = true;
        let grants = std::mem::take(&mut gate.grants);
        drop(gate);
        let mut result = Ok(());
        for grant in grants.iter().filter_map(Weak::upgrade) {
            if let Err(error) = grant.end(Cause::Dereg) {
                // To be found again by the next attempt.
                self.note(&grant);
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

/// The providers of peer memory that this process knows. A handle: clones are the same registry.
#[derive(Debug, Clone, Default)]
pub struct PeerRegistry {
    providers: Arc<Mutex<Vec<Arc<Provider>>>>,
}

impl PeerRegistry {
    /// Without providers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a provider: from now on its callbacks may be called.
    pub fn register(&self, callbacks: Arc<dyn PeerProvider>) -> Result<PeerClient, PeerError> {
        let (name, version) = (callbacks.name().to_owned(), callbacks.version().to_owned());
        let mut providers = lock(&self.providers);
        let why = match name.len() {
            0 => Some("empty"),
            NAME_MAX.. => Some("too long"),
            _ => providers.iter().any(|other| other.name == name).then_some("taken"),
        };
        if let Some(why) = why {
            return Err(PeerError::Name { name, why });
        }
        let (counters, gate, left) = (Counters::default(), Mutex::default(), Condvar::new());
        let provider = Arc::new(Provider { callbacks, name, version, counters, gate, left });
        providers.push(Arc::clone(&provider));
        drop(providers);
        Ok(PeerClient { registry: self.clone(), provider: Some(provider) })
    }

    /// Registers memory of whichever provider owns it, under a key of its own whose addresses are
    /// the provider's. Providers are asked in the order in which they came.
    ///
    /// # Errors
    ///
    /// [`PeerError::Range`], [`PeerError::NotPeer`], [`PeerError::NeedsInvalidation`], or what the
    /// provider, the bus or the device refused. Nothing stays pinned or mapped then.
    pub fn reg_mr(
        &self,
        pd: &Pd,
        range: PeerRange,
        config: &PeerConfig,
    ) -> Result<PeerMr, PeerError> {
        let last = range.addr.checked_add(range.len_bytes.wrapping_sub(1));
        if range.len_bytes == 0 || last.is_none_or(|last| last == u64::MAX) {
            return Err(PeerError::Range(range));
        }
        let providers = lock(&self.providers).clone();
        for provider in providers {
            let Some(_call) = provider.enter_if_open() else { continue };
            let found = provider.call("acquire", || Ok(provider.callbacks.acquire(range)));
            let result = match found {
                Ok(None) => continue,
                Err(error) => Err(error),
                // What the caller could not lose.
                Ok(Some(memory)) if !config.invalidation && provider.callbacks.may_invalidate() => {
                    let refused = PeerError::NeedsInvalidation(provider.name.clone());
                    provider.release(memory).and(Err(refused))
                }
                Ok(Some(memory)) => region::register(&provider, pd, range, memory, config),
            };
            add(&provider.counters.num_failures, result.is_err().into());
            return result;
        }
        Err(PeerError::NotPeer(range))
    }

    /// Counters of every provider.
    #[must_use]
    pub fn stats(&self) -> Vec<PeerStats> {
        lock(&self.providers).iter().map(|provider| provider.stats()).collect()
    }
}

/// A provider's place in a registry. Dropping it unregisters the provider.
#[derive(Debug)]
pub struct PeerClient {
    registry: PeerRegistry,
    provider: Option<Arc<Provider>>,
}

impl PeerClient {
    /// Counters of this provider, unless it was unregistered.
    #[must_use]
    pub fn stats(&self) -> Option<PeerStats> {
        self.provider.as_ref().map(|provider| provider.stats())
    }

    /// Takes the provider out: nothing new can be registered, what is registered ends, and when
    /// this returns `Ok`, no callback of it is running or ever will.
    ///
    /// # Errors
    ///
    /// [`PeerError::Late`] when a callback does not return within `deadline`, or
    /// [`PeerError::StillReachable`]; try again.
    pub fn unregister(&mut self, deadline: Duration) -> Result<(), PeerError> {
        let Some(provider) = &self.provider else { return Ok(()) };
        provider.close(deadline)?;
        lock(&self.registry.providers).retain(|other| !Arc::ptr_eq(other, provider));
        self.provider = None;
        Ok(())
    }
}

impl Drop for PeerClient {
    fn drop(&mut self) {
        if let Err(error) = self.unregister(DROP_DEADLINE) {
            tracing::error!(%error, "provider of peer memory not unregistered");
        }
    }
}
