//! [`Pd`]: protection domains, and what is made in them.

use std::sync::Arc;

use ferrocx_core::{Handle, Kind};
use ferrocx_mempool::unique_domain;
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::objects::AllocPd;

use crate::command::Execute;
use crate::context::{ContextCore, RdmaContext};
use crate::error::VerbsError;

/// A protection domain, destroyed with the last object made in it.
#[derive(Debug)]
pub(crate) struct PdCore {
    number: u32,
    /// `None` for the device's own, which ends with the device.
    _handle: Option<Handle>,
    /// A number that no other domain of any device ever has.
    id: u32,
    pub(crate) core: Arc<ContextCore>,
}

impl PdCore {
    /// Its number.
    #[inline(always)]
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// A number that no other domain of any device ever has, see [`Pd::domain`].
    #[inline(always)]
    pub(crate) fn id(&self) -> u32 {
        self.id
    }
}

/// A protection domain: queue pairs reach only memory that was registered in their own.
///
/// A handle: clones are the same domain.
#[derive(Debug, Clone)]
pub struct Pd {
    pub(crate) inner: Arc<PdCore>,
}

impl RdmaContext {
    /// Makes a protection domain.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<Pd, VerbsError> {
        let core = Arc::clone(self.core());
        let number = core.device().execute::<AllocPd>(&AllocPd::input(), &[], &mut [])?.pd();
        let handle = Handle::new(core.device(), Kind::Pd, number, Vec::new());
        let (_handle, id) = (Some(handle), unique_domain());
        Ok(Pd { inner: Arc::new(PdCore { number, _handle, id, core }) })
    }

    /// The device's own protection domain, in which the keys of registered pools are: those of
    /// foreign memory always, and all of them on a device without a reserved L_Key. Packets of such
    /// pools go on queue pairs of this domain; see [`Buffers`](crate::Buffers).
    #[must_use]
    pub fn device_pd(&self) -> Pd {
        let core = Arc::clone(self.core());
        let (number, id) = (core.device().pdn(), core.device().key_domains().pd);
        Pd { inner: Arc::new(PdCore { number, _handle: None, id, core }) }
    }
}

impl Pd {
    /// Its number, as the device knows it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.inner.number()
    }

    /// A number that no other domain of any device in this process ever has: buffers and queue
    /// pairs are matched by it, see [`Sge::domain`](crate::mr::Sge::domain).
    #[must_use]
    pub fn domain(&self) -> u32 {
        self.inner.id()
    }
}
