//! [`Pd`]: protection domains, and what is made in them.

use std::sync::Arc;

use ferrocx_bus::DmaBuf;
use ferrocx_core::{Handle, Kind};
use ferrocx_mempool::{Region, unique_domain};
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::objects::AllocPd;

use crate::command::{Execute, own};
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
    /// Where rings lie, if not in the device's own memory, and the domain that this one is.
    rings: Option<(Arc<dyn RingMemory>, Arc<PdCore>)>,
}

/// Memory of the caller's for the rings of queue pairs: [`Pd::with_ring_memory`].
///
/// # Safety
/// A region that [`RingMemory::take`] returned is the queue pair's until it is dropped. Nobody
/// else writes to it, and it is not returned twice: the device carries out the requests that stand
/// there, wherever in mapped memory they say.
///
/// ```compile_fail,E0200
/// # use std::sync::Arc;
/// # use ferrocx_verbs_lite::{RingMemory, VerbsError};
/// # #[derive(Debug)]
/// # struct Kept(Arc<ferrocx_mempool::Region>);
/// impl RingMemory for Kept {
///     fn take(&self, _: usize) -> Result<Option<Arc<ferrocx_mempool::Region>>, VerbsError> {
///         Ok(Some(Arc::clone(&self.0)))
///     }
/// }
/// ```
#[expect(unsafe_code, reason = "requests in the memory tell the device where to write")]
pub unsafe trait RingMemory: std::fmt::Debug + Send + Sync {
    /// A region of `len_bytes` or more, which is unmapped and dropped when the queue pair is gone;
    /// `None` for the device's own memory.
    ///
    /// # Errors
    ///
    /// Any, when there is none to be had: making the queue pair fails with it.
    fn take(&self, len_bytes: usize) -> Result<Option<Arc<Region>>, VerbsError>;
}

impl PdCore {
    /// Its number.
    #[inline(always)]
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Zeroed memory for rings, at a whole page.
    pub(crate) fn ring_memory(&self, len_bytes: usize) -> Result<DmaBuf, VerbsError> {
        let device = self.core.device();
        let own = self.rings.as_ref().map(|(memory, _)| memory.take(len_bytes)).transpose()?;
        match own.flatten() {
            Some(region) => Ok(device.adopt_dma(&region.use_raw()?, len_bytes)?),
            None => Ok(device.alloc_dma(len_bytes, 4096)?),
        }
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
        let handle = own(core.device(), Kind::Pd, number, Vec::new());
        let (_handle, id) = (Some(handle), unique_domain());
        Ok(Pd { inner: Arc::new(PdCore { number, _handle, id, core, rings: None }) })
    }

    /// The device's own protection domain, in which the keys of registered pools are: those of
    /// foreign memory always, and all of them on a device without a reserved L_Key. Packets of such
    /// pools go on queue pairs of this domain; see [`Buffers`](crate::Buffers).
    #[must_use]
    pub fn device_pd(&self) -> Pd {
        let core = Arc::clone(self.core());
        let (number, id) = (core.device().pdn(), core.device().key_domains().pd);
        Pd { inner: Arc::new(PdCore { number, _handle: None, id, core, rings: None }) }
    }
}

impl Pd {
    /// The same domain, whose queue pairs have their rings in memory of the caller's from now on:
    /// huge pages, or memory near a core. Those of raw packets, shared receive queues and
    /// completion queues have them where they had them.
    #[must_use]
    #[doc(alias = "ibv_alloc_parent_domain")]
    pub fn with_ring_memory(&self, memory: Arc<dyn RingMemory>) -> Self {
        let (number, id, core) = (self.number(), self.domain(), Arc::clone(&self.inner.core));
        let rings = Some((memory, Arc::clone(&self.inner)));
        Self { inner: Arc::new(PdCore { number, _handle: None, id, core, rings }) }
    }

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
