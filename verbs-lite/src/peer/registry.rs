//! [`PeerRegistry`]: which providers there are, and the broker between them and the keys.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::entry::Provider;
use super::provider::{PeerError, PeerMemory, PeerProvider, PeerRange};
use super::region::{self, PeerConfig, PeerMr};
use super::stats::{PeerStats, add};
use crate::pd::Pd;

/// Bytes of a provider's name, terminating zero included. Source: seed 004,
/// `IB_PEER_MEMORY_NAME_MAX`.
const NAME_MAX: usize = 64;
/// How long dropping a [`PeerClient`] waits for callbacks.
const DROP_DEADLINE: Duration = Duration::from_secs(10);

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
        let provider = Arc::new(Provider::new(provider));
        let name = provider.name();
        let mut providers = self.providers();
        let why = match name.len() {
            0 => Some("empty"),
            NAME_MAX.. => Some("too long"),
            _ => providers.iter().any(|other| other.name() == name).then_some("taken"),
        };
        if let Some(why) = why {
            return Err(PeerError::Name { name: name.to_owned(), why });
        }
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
            let found =
                region::guarded(&provider, "acquire", || provider.callbacks().acquire(range));
            let result = match found {
                Ok(None) => continue,
                Ok(Some(memory)) => Self::checked(&provider, memory, config)
                    .and_then(|memory| region::register(&provider, pd, range, memory, config)),
                Err(error) => Err(error),
            };
            add(&provider.counters().num_failures, result.is_err().into());
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
        if config.invalidation || !provider.callbacks().may_invalidate() {
            return Ok(memory);
        }
        region::guarded(provider, "release", || memory.release())?;
        Err(PeerError::NeedsInvalidation { provider: provider.name().to_owned() })
    }

    /// Counters of every provider.
    #[must_use]
    pub fn stats(&self) -> Vec<PeerStats> {
        self.providers().iter().map(|provider| provider.stats()).collect()
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
