//! [`Pd`]: protection domains, and what is made in them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ferrocx_core::{Handle, Kind};
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::objects::AllocPd;

use crate::context::{ContextCore, RdmaContext};
use crate::error::VerbsError;

/// Numbers of domains.
static NEXT_ID: AtomicU32 = AtomicU32::new(1);

/// A protection domain, destroyed with the last object made in it.
#[derive(Debug)]
pub(crate) struct PdCore {
    handle: Handle,
    /// A number that no other domain of any device ever has.
    id: u32,
    pub(crate) core: Arc<ContextCore>,
}

impl PdCore {
    /// Its number.
    #[inline(always)]
    pub(crate) fn number(&self) -> u32 {
        self.handle.number()
    }

    /// A number that no other domain of any device ever has: what buffers and queue pairs are
    /// matched by.
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

impl Pd {
    pub(crate) fn new(context: &RdmaContext) -> Result<Self, VerbsError> {
        let core = Arc::clone(context.core());
        let number = core.device().execute::<AllocPd>(&AllocPd::input(), &[], &mut [])?.pd();
        let handle = Handle::new(core.device(), Kind::Pd, number, Vec::new());
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Ok(Self { inner: Arc::new(PdCore { handle, id, core }) })
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.inner.number()
    }
}
