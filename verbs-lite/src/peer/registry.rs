//! [`PeerRegistry`]: which providers there are, and the broker between them and the keys.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::provider::{PeerError, PeerMemory, PeerProvider, PeerRange};
use super::region::{self, Cause, Grant, PeerConfig, PeerMr};
use super::stats::{Counters, PeerStats, add};
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
    grants: Vec<Weak<Grant>>,
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
    fn enter(&self) -> Option<Call<'_>> {
        let mut gate = self.gate();
        if gate.is_closed {
            return None;
        }
        gate.calls += 1;
        Some(Call(self))
    }

    /// Keeps a region in mind, to end it when the provider is unregistered.
    pub(super) fn note(&self, grant: &Arc<Grant>) {
        let mut gate = self.gate();
        if gate.grants.len() == gate.grants.capacity() {
            gate.grants.retain(|grant| grant.strong_count() > 0);
        }
        gate.grants.push(Arc::downgrade(grant));
    }

    /// Lets nobody in, ends every region, and waits until the last callback has returned.
    fn close(&self, deadline: Duration) -> Result<(), PeerError> {
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
                self.note(&grant);
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

    fn providers(&self) -> MutexGuard<'_, Vec<Arc<Provider>>> {
        self.providers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a provider: from now on its callbacks may be called.
    ///
    /// # Errors
    ///
    /// [`PeerError::Name`].
    pub fn register(&self, provider: Arc<dyn PeerProvider>) -> Result<PeerClient, PeerError> {
        let (name, version) = (provider.name().to_owned(), provider.version().to_owned());
        let mut providers = self.providers();
        let why = match name.len() {
            0 => Some("empty"),
            NAME_MAX.. => Some("too long"),
            _ => providers.iter().any(|other| other.name == name).then_some("taken"),
        };
        if let Some(why) = why {
            return Err(PeerError::Name { name, why });
        }
        let (counters, gate, left) = (Counters::default(), Mutex::default(), Condvar::new());
        let provider =
            Arc::new(Provider { callbacks: provider, name, version, counters, gate, left });
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
            return Err(PeerError::Range { range });
        }
        let providers = self.providers().clone();
        for provider in providers {
            let Some(_call) = provider.enter() else { continue };
            let found = region::guarded(&provider, "acquire", || provider.callbacks.acquire(range));
            let result = match found {
                Ok(None) => continue,
                Ok(Some(memory)) => Self::checked(&provider, memory, config)
                    .and_then(|memory| region::register(&provider, pd, range, memory, config)),
                Err(error) => Err(error),
            };
            add(&provider.counters.num_failures, result.is_err().into());
            return result;
        }
        Err(PeerError::NotPeer { range })
    }

    /// Refuses what the caller could not lose.
    fn checked(
        provider: &Provider,
        memory: Box<dyn PeerMemory>,
        config: &PeerConfig,
    ) -> Result<Box<dyn PeerMemory>, PeerError> {
        if config.invalidation || !provider.callbacks.may_invalidate() {
            return Ok(memory);
        }
        region::guarded(provider, "release", || memory.release())?;
        Err(PeerError::NeedsInvalidation { provider: provider.name.clone() })
    }

    /// Counters of every provider.
    #[must_use]
    pub fn stats(&self) -> Vec<PeerStats> {
        let snapshot = |p: &Arc<Provider>| p.counters.snapshot(&p.name, &p.version);
        self.providers().iter().map(snapshot).collect()
    }
}

/// A provider's place in a registry. Dropping it unregisters the provider.
#[derive(Debug)]
pub struct PeerClient {
    registry: PeerRegistry,
    provider: Option<Arc<Provider>>,
}

impl PeerClient {
    /// Counters of this provider.
    #[must_use]
    pub fn stats(&self) -> Option<PeerStats> {
        let provider = self.provider.as_ref()?;
        Some(provider.counters.snapshot(&provider.name, &provider.version))
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
        self.registry.providers().retain(|other| !Arc::ptr_eq(other, provider));
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
