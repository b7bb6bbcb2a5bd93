//! [`Pd`]: protection domains, and what is made in them.

use std::sync::Arc;

use ferrocx_pmd::objects::{Handle, Kind};
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::objects::AllocPd;

use crate::device::{Core, Device};
use crate::error::VerbsError;

/// A protection domain, destroyed with the last object made in it.
#[derive(Debug)]
pub(crate) struct PdCore {
    handle: Handle,
    pub(crate) core: Arc<Core>,
}

impl PdCore {
    /// Its number.
    #[inline(always)]
    pub(crate) fn number(&self) -> u32 {
        self.handle.number()
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
    pub(crate) fn new(device: &Device) -> Result<Self, VerbsError> {
        let core = Arc::clone(device.core());
        let number = core.port().execute::<AllocPd>(&AllocPd::input(), &[], &mut [])?.pd();
        let handle = core.port().adopt(Kind::Pd, number, Vec::new());
        Ok(Self { inner: Arc::new(PdCore { handle, core }) })
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.inner.number()
    }
}
