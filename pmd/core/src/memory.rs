//! Memory that the device may reach, for everything but packets: command queue, mailboxes,
//! rings, doorbell records, and the pages that the firmware runs in.

use std::sync::Arc;

use ferrocx_bus::{BusError, DmaAccess, DmaBuf, DmaHeap, DmaMapping, DmaSpace};
use ferrocx_mempool::{Region, RegionConfig};

/// By how much the heap grows at least.
const GROWTH_BYTES: usize = 2 << 20;

/// Where control memory comes from, and the heap that hands it out.
#[derive(Debug)]
pub(crate) struct Memory {
    /// The device's address space.
    pub(crate) dma: Arc<dyn DmaSpace>,
    heap: DmaHeap,
    /// How regions are made, but for their length.
    region: RegionConfig,
}

impl Memory {
    /// Makes a heap with its first mapping.
    pub(crate) fn new(dma: Arc<dyn DmaSpace>, region: RegionConfig) -> Result<Self, BusError> {
        let heap = DmaHeap::new(map(&dma, &region, GROWTH_BYTES)?);
        Ok(Self { dma, heap, region })
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
        map(&self.dma, &self.region, len_bytes)
    }
}

/// Allocates a region and maps it for reading and writing.
fn map(
    dma: &Arc<dyn DmaSpace>,
    config: &RegionConfig,
    len_bytes: usize,
) -> Result<Arc<DmaMapping>, BusError> {
    let region = Region::alloc(&RegionConfig { len_bytes, ..config.clone() });
    let region = region.map_err(|error| BusError::Os {
        what: "control memory".into(),
        source: std::io::Error::other(error),
    })?;
    dma.map(region, DmaAccess::ReadWrite)
}
