//! Memory that the device may reach, for everything but packets: command queue, mailboxes,
//! rings, doorbell records, and the pages that the firmware runs in.

use std::sync::Arc;

use ferrocx_bus::{BusError, DmaAccess, DmaBuf, DmaHeap, DmaMapping, DmaSpace};
use ferrocx_mempool::{PageSize, Region, RegionConfig};

/// By how much the heap grows at least.
const GROWTH_BYTES: usize = 2 << 20;

/// Where control memory comes from, and the heap that hands it out.
#[derive(Debug)]
pub(crate) struct Memory {
    dma: Arc<dyn DmaSpace>,
    heap: DmaHeap,
    page: PageSize,
    numa_node: Option<u32>,
    shared: bool,
}

impl Memory {
    /// Makes a heap with its first mapping.
    pub(crate) fn new(
        dma: Arc<dyn DmaSpace>,
        page: PageSize,
        numa_node: Option<u32>,
        shared: bool,
    ) -> Result<Self, BusError> {
        let first = map(&dma, GROWTH_BYTES, page, numa_node, shared)?;
        Ok(Self { dma, heap: DmaHeap::new(first), page, numa_node, shared })
    }

    /// Takes a zeroed buffer; maps more memory if the heap is exhausted.
    pub(crate) fn alloc(&self, len_bytes: usize, align_bytes: usize) -> Result<DmaBuf, BusError> {
        match self.heap.alloc(len_bytes, align_bytes) {
            Err(BusError::HeapExhausted { .. }) => {
                let wanted = len_bytes.saturating_add(align_bytes);
                let grow_bytes = wanted.next_multiple_of(GROWTH_BYTES);
                self.heap.grow(self.map(grow_bytes)?);
                self.heap.alloc(len_bytes, align_bytes)
            }
            other => other,
        }
    }

    /// Bytes that are handed out.
    pub(crate) fn used_bytes(&self) -> usize {
        self.heap.used_bytes()
    }

    /// Maps a region of its own, outside the heap.
    pub(crate) fn map(&self, len_bytes: usize) -> Result<Arc<DmaMapping>, BusError> {
        map(&self.dma, len_bytes, self.page, self.numa_node, self.shared)
    }

    /// The device's address space.
    pub(crate) fn dma(&self) -> &Arc<dyn DmaSpace> {
        &self.dma
    }
}

/// Allocates a region and maps it for reading and writing.
fn map(
    dma: &Arc<dyn DmaSpace>,
    len_bytes: usize,
    page: PageSize,
    numa_node: Option<u32>,
    shared: bool,
) -> Result<Arc<DmaMapping>, BusError> {
    let config = RegionConfig { len_bytes, page, numa_node, shared, ..RegionConfig::default() };
    let region = Region::alloc(&config).map_err(|error| BusError::Os {
        what: "control memory".into(),
        source: std::io::Error::other(error),
    })?;
    dma.map(region, DmaAccess::ReadWrite)
}
