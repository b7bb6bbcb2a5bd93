//! [`Memory`]: a region that the device can reach, before any key covers it.

use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};

use ferrocx_bus::DmaAccess;
use ferrocx_core::RawMapping;
use ferrocx_mempool::{Region, RegionConfig};

use super::Mkey;
use crate::context::{ContextCore, RdmaContext};
use crate::error::{VerbsError, lock};

/// Keys over a memory.
#[derive(Debug, Default)]
struct Keys {
    /// Whether it was taken back: no key may be added.
    is_revoked: bool,
    list: Vec<Weak<Mkey>>,
}

/// A region mapped for a device. It stays mapped until [`Memory::revoke`], or until the last
/// registration and buffer over it is dropped.
///
/// Its bytes are only ever copied, with atomic accesses, because a peer may write them at any
/// time: keys over it are as long-lived as their holder likes, whatever is posted. A pool lends
/// its bytes as slices to whoever holds the [`Mbuf`](ferrocx_mempool::Mbuf), so none may lie over
/// the region, and peers reach an `Mbuf` only while a key owns it
/// ([`PageList::map_mbuf`](crate::PageList::map_mbuf)). That is why there are two kinds of memory.
#[derive(Debug)]
pub struct Memory {
    mapping: RawMapping,
    core: Arc<ContextCore>,
    keys: Mutex<Keys>,
    /// The peer region that it is of, which may be taken back at any time; 0 for none.
    peer: u64,
}

impl RdmaContext {
    /// Lets the device reach a region, for registering all or parts of it.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Mempool`] when a pool lies over the region, or the bus's reason.
    pub fn map_memory(&self, region: Arc<Region>) -> Result<Arc<Memory>, VerbsError> {
        Memory::of_peer(self, region, DmaAccess::ReadWrite, 0)
    }
}

impl Memory {
    /// Memory of the peer region `peer`, a number that no other has.
    pub(crate) fn of_peer(
        context: &RdmaContext,
        region: Arc<Region>,
        access: DmaAccess,
        peer: u64,
    ) -> Result<Arc<Self>, VerbsError> {
        let raw = region.use_raw()?;
        let core = Arc::clone(context.core());
        let mapping = core.device().map_region(raw, access)?;
        let keys = Mutex::default();
        Ok(Arc::new(Self { mapping, core, keys, peer }))
    }

    /// Allocates and maps zeroed memory: of the device's memory node, if that is known and has
    /// some, and the configuration names no other.
    ///
    /// # Errors
    ///
    /// Those of [`Region::alloc_near`] and [`RdmaContext::map_memory`].
    pub fn alloc(context: &RdmaContext, config: &RegionConfig) -> Result<Arc<Self>, VerbsError> {
        let node = context.device().info().numa_node;
        context.map_memory(Region::alloc_near(config, node)?)
    }

    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.mapping.len_bytes()
    }

    /// Address of the first byte as the device sees it.
    #[must_use]
    pub fn iova(&self) -> u64 {
        self.mapping.iova()
    }

    /// The memory itself.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        self.mapping.region()
    }

    pub(crate) fn core(&self) -> &Arc<ContextCore> {
        &self.core
    }

    /// Virtual address of the first byte.
    pub(crate) fn virtual_address(&self) -> u64 {
        self.region().base().as_ptr().addr() as u64
    }

    /// Checks that a range lies inside and is not empty.
    pub(crate) fn check(&self, range: &Range<usize>) -> Result<(), VerbsError> {
        let len = self.len_bytes() as u64;
        VerbsError::range("start of the range", range.start as u64, 0, len - 1)?;
        VerbsError::range("end of the range", range.end as u64, range.start as u64 + 1, len)
    }

    /// The peer region that it is of; 0 for none.
    #[inline(always)]
    pub(crate) fn peer(&self) -> u64 {
        self.peer
    }

    /// Checks that it was not taken back, and notes a key over it, which [`Memory::revoke`] will
    /// end.
    pub(crate) fn note(&self, key: Option<&Arc<Mkey>>) -> Result<(), VerbsError> {
        let mut keys = lock(&self.keys);
        if keys.is_revoked {
            return Err(VerbsError::Revoked);
        }
        if keys.list.len() == keys.list.capacity() {
            keys.list.retain(|key| key.strong_count() > 0);
        }
        keys.list.extend(key.map(Arc::downgrade));
        Ok(())
    }

    /// Takes the memory back from the device, whatever is posted: when this returns, the device
    /// reaches none of it, and never will through this mapping.
    ///
    /// Registrations over it end first, so that work in flight completes with a protection error
    /// here or a remote access error at the peer. Then the memory is unmapped, which ends access by
    /// the reserved L_Key and by fast-register keys; behind an IOMMU such an access is a fault, and
    /// the device may report it as a failure of its own. Buffers can still be read and written
    /// here. A command for each key: not for the data path.
    ///
    /// # Errors
    ///
    /// The bus's reason for not unmapping: the device may still reach the memory then.
    pub fn revoke(&self) -> Result<(), VerbsError> {
        let mut keys = lock(&self.keys);
        keys.is_revoked = true;
        for key in keys.list.drain(..).filter_map(|key| key.upgrade()) {
            if let Err(error) = key.take() {
                tracing::warn!(?key, %error, "key not destroyed; unmapping ends its access");
            }
        }
        Ok(self.mapping.end()?)
    }

    /// Keeps it mapped for the rest of the process.
    pub(crate) fn leak(&self) {
        self.mapping.leak();
    }
}
