//! Memory that the firmware runs in: 4 KiB pages that the host lends it.
//!
//! Pages are lent out of chunks, each one mapping. A chunk is unmapped and freed when its last
//! page has come back. What never comes back is leaked: the device may still use it.

use std::sync::Arc;

use ferrocx_bus::{BusError, DmaMapping};
use ferrocx_prm::cmd::PAGE_BYTES;

use crate::memory::Memory;

/// Least size of a chunk.
const CHUNK_BYTES: usize = 2 << 20;

/// The pages that the firmware has, and free pages of the same chunks.
#[derive(Debug, Default)]
pub(crate) struct PageSupply {
    chunks: Vec<Chunk>,
    lent: usize,
}

/// One mapping, and which of its pages are lent.
#[derive(Debug)]
struct Chunk {
    mapping: Arc<DmaMapping>,
    lent: Vec<bool>,
    free: Vec<u32>,
}

impl Chunk {
    fn new(mapping: Arc<DmaMapping>) -> Self {
        let count = mapping.len_bytes() / PAGE_BYTES;
        // Popped from the end, so that pages go out in ascending order.
        let free = (0..count as u32).rev().collect();
        Self { mapping, lent: vec![false; count], free }
    }

    fn page_iova(&self, page: u32) -> u64 {
        self.mapping.iova() + u64::from(page) * PAGE_BYTES as u64
    }

    /// The page that `iova` is the address of.
    fn page_at(&self, iova: u64) -> Option<u32> {
        let offset = iova.checked_sub(self.mapping.iova())?;
        let page = offset / PAGE_BYTES as u64;
        let exact = offset.is_multiple_of(PAGE_BYTES as u64);
        (exact && page < self.lent.len() as u64).then_some(page as u32)
    }
}

impl PageSupply {
    /// Pages that the firmware has.
    pub(crate) fn lent(&self) -> usize {
        self.lent
    }

    /// Marks `count` pages as lent and returns their addresses.
    pub(crate) fn lend(&mut self, memory: &Memory, count: usize) -> Result<Vec<u64>, BusError> {
        let free: usize = self.chunks.iter().map(|chunk| chunk.free.len()).sum();
        if free < count {
            let wanted = (count - free) * PAGE_BYTES;
            self.chunks.push(Chunk::new(memory.map(wanted.next_multiple_of(CHUNK_BYTES))?));
        }
        let mut pages = Vec::with_capacity(count);
        for chunk in &mut self.chunks {
            while pages.len() < count {
                let Some(page) = chunk.free.pop() else { break };
                chunk.lent[page as usize] = true;
                pages.push(chunk.page_iova(page));
            }
        }
        self.lent += pages.len();
        Ok(pages)
    }

    /// Takes pages back; returns how many addresses were not those of lent pages.
    pub(crate) fn take_back(&mut self, pages: &[u64]) -> usize {
        let mut unknown = 0;
        for iova in pages {
            let found = self.chunks.iter_mut().find_map(|chunk| {
                let page = chunk.page_at(*iova)?;
                std::mem::take(&mut chunk.lent[page as usize]).then_some((chunk, page))
            });
            match found {
                Some((chunk, page)) => {
                    chunk.free.push(page);
                    self.lent -= 1;
                }
                None => unknown += 1,
            }
        }
        self.chunks.retain(|chunk| chunk.free.len() < chunk.lent.len());
        unknown
    }

    /// Takes every page back: the device has let go of all of them, for example by a reset.
    pub(crate) fn take_all_back(&mut self) {
        self.chunks.clear();
        self.lent = 0;
    }

    /// Keeps every chunk mapped for ever, because the device did not give its pages back.
    pub(crate) fn leak(&mut self) {
        if self.lent > 0 {
            tracing::error!(pages = self.lent, "the firmware kept pages; they are leaked");
        }
        for chunk in self.chunks.drain(..) {
            chunk.mapping.leak();
        }
        self.lent = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrocx_bus::Transport;
    use ferrocx_bus::local::{LocalConfig, pair};
    use ferrocx_mempool::{PageSize, RegionConfig};

    #[test]
    fn pages_are_distinct_aligned_and_counted() {
        let (transport, _device) = pair(LocalConfig::default()).unwrap();
        let region = RegionConfig { page: PageSize::Base4K, ..RegionConfig::default() };
        let memory = Memory::new(transport.dma(), region).unwrap();
        let mut supply = PageSupply::default();
        let mut pages = supply.lend(&memory, 513).unwrap();
        assert_eq!((pages.len(), supply.lent()), (513, 513));
        assert!(pages.iter().all(|page| page % 4096 == 0 && *page != 0));
        pages.sort_unstable();
        pages.dedup();
        assert_eq!(pages.len(), 513);

        assert_eq!(supply.take_back(&pages[..1]), 0);
        assert_eq!(supply.take_back(&pages[..1]), 1, "taken twice");
        assert_eq!(supply.take_back(&[pages[1] + 8, 0]), 2, "not an address of a page");
        assert_eq!(supply.lent(), 512);
        assert_eq!(supply.take_back(&pages[1..]), 0);
        assert_eq!(supply.lent(), 0);
        assert!(supply.chunks.is_empty(), "empty chunks are unmapped");
        assert!(supply.lend(&memory, 0).unwrap().is_empty());
    }
}
