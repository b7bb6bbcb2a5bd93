//! [`PeerRegistry`]: which providers there are, and the broker between them and the keys.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::entry::Provider;
use super::provider::{PeerError, PeerProvider, PeerRange};
use super::region::{self, PeerConfig, PeerMr};
use super::stats::{PeerStats, add};
use crate::error::lock;
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

    /// Adds a provider: from now on its callbacks may be called.
    pub fn register(&self, callbacks: Arc<dyn PeerProvider>) -> Result<PeerClient, PeerError> {
        let provider = Arc::new(Provider::new(callbacks));
        let name = &provider.name;
        let mut providers = lock(&self.providers);
        let why = match name.len() {
            0 => Some("empty"),
            NAME_MAX.. => Some("too long"),
            _ => providers.iter().any(|other| other.name == *name).then_some("taken"),
        };
        if let Some(why) = why {
            return Err(PeerError::Name { name: name.clone(), why });
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
