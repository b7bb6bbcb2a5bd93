//! [`Parts`]: what of a queue the drive reaches.

use std::fmt;
use std::sync::Arc;

use ferrocx_bus::{DmaAccess, DmaBuf, DmaHeap, DmaMapping, Ring, Transport};
use ferrocx_mempool::{PageSize, RawUse, Region, RegionConfig};

use crate::NvmeError;
use crate::registers::Doorbells;

/// A region that data may be in.
pub(crate) struct Memory {
    // Dropped first, for its access to end before pools may come; where that fails, it keeps them
    // off by itself. Nobody else holds it.
    pub(crate) mapping: Arc<DmaMapping>,
    /// Nobody lends its bytes, so that the drive may write to them at any time.
    pub(crate) _raw: RawUse,
}

/// What of a queue the drive reaches.
pub(crate) struct Parts {
    pub(crate) doorbells: Doorbells,
    pub(crate) sq: Ring<64>,
    pub(crate) cq: Ring<16>,
    /// A page for each command: its list of pages, or of ranges.
    pub(crate) lists: DmaBuf,
    pub(crate) memory: Vec<Memory>,
    /// Rings and lists lie in it.
    pub(crate) _heap: DmaHeap,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = self.memory.iter().map(|it| &it.mapping);
        f.debug_struct("Parts").field("sq", &self.sq).field("memory", &memory.len()).finish()
    }
}

/// Memory of so many bytes for rings and lists, mapped for the drive.
pub(crate) fn heap(transport: &dyn Transport, len_bytes: usize) -> Result<DmaHeap, NvmeError> {
    // Queues are small, and no hugepage is worth one: where they are is the IOMMU's business.
    let page = PageSize::Base4K;
    let config = RegionConfig { len_bytes, page, ..RegionConfig::default() };
    let region = Region::alloc_near(&config, transport.identity().numa_node)?;
    Ok(DmaHeap::new(transport.dma().map(region, DmaAccess::ReadWrite)?))
}
