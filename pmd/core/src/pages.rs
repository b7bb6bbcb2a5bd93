//! Memory that the firmware runs in: 4 KiB pages that the host lends it.
//!
//! Pages are lent out of chunks, each one mapping. A chunk is unmapped and freed when its last
//! page has come back. What never comes back is leaked: the device may still use it.
//!
//! A physical function lends for others, too: those that it manages. Each page is its function's.

use std::collections::BTreeMap;
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
    /// Pages that each function has, of those that have any.
    lent: BTreeMap<u16, usize>,
}

/// One mapping, and to which function each of its pages is lent.
#[derive(Debug)]
struct Chunk {
    mapping: Arc<DmaMapping>,
    lent: Vec<Option<u16>>,
    free: Vec<u32>,
}

impl Chunk {
    fn new(mapping: Arc<DmaMapping>) -> Self {
        let count = mapping.len_bytes() / PAGE_BYTES;
        // Popped from the end, so that pages go out in ascending order.
        let free = (0..count as u32).rev().collect();
        Self { mapping, lent: vec![None; count], free }
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
        self.lent.values().sum()
    }

    /// Functions that have pages, and how many.
    pub(crate) fn holders(&self) -> Vec<(u16, usize)> {
        self.lent.iter().map(|(function, count)| (*function, *count)).collect()
    }

    /// Pages that a function has.
    pub(crate) fn lent_to(&self, function: u16) -> usize {
        self.lent.get(&function).copied().unwrap_or(0)
    }

    /// Marks `count` pages as lent to a function and returns their addresses.
    pub(crate) fn lend(
        &mut self,
        memory: &Memory,
        function: u16,
        count: usize,
    ) -> Result<Vec<u64>, BusError> {
        let free: usize = self.chunks.iter().map(|chunk| chunk.free.len()).sum();
        if free < count {
            let wanted = (count - free) * PAGE_BYTES;
            self.chunks.push(Chunk::new(memory.map(wanted.next_multiple_of(CHUNK_BYTES))?));
        }
        let mut pages = Vec::with_capacity(count);
        for chunk in &mut self.chunks {
            while pages.len() < count {
                let Some(page) = chunk.free.pop() else { break };
                chunk.lent[page as usize] = Some(function);
                pages.push(chunk.page_iova(page));
            }
        }
        if !pages.is_empty() {
            *self.lent.entry(function).or_default() += pages.len();
        }
        Ok(pages)
    }

    /// Takes pages back; returns how many addresses were not those of lent pages.
    pub(crate) fn take_back(&mut self, pages: &[u64]) -> usize {
        let mut unknown = 0;
        for iova in pages {
            let found = self.chunks.iter_mut().find_map(|chunk| {
                let page = chunk.page_at(*iova)?;
                let function = chunk.lent[page as usize].take()?;
                Some((chunk, page, function))
            });
            match found {
                Some((chunk, page, function)) => {
                    chunk.free.push(page);
                    self.count_back(function);
                }
                None => unknown += 1,
            }
        }
        self.free_unused();
        unknown
    }

    /// Takes back what a function has: it has let go of all of it. Source: Linux
    /// `release_all_pages`.
    pub(crate) fn take_back_from(&mut self, function: u16) {
        for chunk in &mut self.chunks {
            for (page, lent) in (0..).zip(&mut chunk.lent) {
                if lent.take_if(|to| *to == function).is_some() {
                    chunk.free.push(page);
                }
            }
        }
        self.lent.remove(&function);
        self.free_unused();
    }

    /// Takes every page back: the device has let go of all of them, for example by a reset.
    pub(crate) fn take_all_back(&mut self) {
        self.chunks.clear();
        self.lent.clear();
    }

    /// A function has a page less.
    fn count_back(&mut self, function: u16) {
        if let Some(count) = self.lent.get_mut(&function) {
            *count -= 1;
            if *count == 0 {
                self.lent.remove(&function);
            }
        }
    }

    /// Frees the chunks of which nothing is lent.
    fn free_unused(&mut self) {
        self.chunks.retain(|chunk| chunk.free.len() < chunk.lent.len());
    }

    /// Keeps every chunk mapped for ever, because the device did not give its pages back.
    pub(crate) fn leak(&mut self) {
        let pages = self.lent();
        if pages > 0 {
            tracing::error!(pages, "the firmware kept pages; they are leaked");
        }
        for chunk in self.chunks.drain(..) {
            chunk.mapping.leak();
        }
        self.lent.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrocx_bus::Transport;
    use ferrocx_bus::local::{LocalConfig, pair};
    use ferrocx_mempool::{PageSize, RegionConfig};

    #[test]
    fn pages_are_those_of_the_function_that_they_were_lent_to() {
        let (transport, _device) = pair(LocalConfig::default()).unwrap();
        let region = RegionConfig { page: PageSize::Base4K, ..RegionConfig::default() };
        let memory = Memory::new(transport.dma(), region).unwrap();
        let mut supply = PageSupply::default();
        let own = supply.lend(&memory, 0, 300).unwrap();
        supply.lend(&memory, 5, 700).unwrap();
        let more = supply.lend(&memory, 0, 1).unwrap();
        assert_eq!(supply.holders(), [(0, 301), (5, 700)]);
        assert_eq!((supply.lent(), supply.lent_to(5), supply.lent_to(4)), (1001, 700, 0));
        supply.take_back_from(4);
        supply.take_back_from(5);
        assert_eq!((supply.holders(), supply.lent_to(5)), (vec![(0, 301)], 0));
        assert_eq!(supply.take_back(&own), 0, "not freed with the other function's");
        assert_eq!(supply.take_back(&more), 0);
        assert_eq!((supply.holders(), supply.lent()), (vec![], 0));
        assert!(supply.chunks.is_empty(), "empty chunks are unmapped");
    }

    #[test]
    fn pages_are_distinct_aligned_and_counted() {
        let (transport, _device) = pair(LocalConfig::default()).unwrap();
        let region = RegionConfig { page: PageSize::Base4K, ..RegionConfig::default() };
        let memory = Memory::new(transport.dma(), region).unwrap();
        let mut supply = PageSupply::default();
        let mut pages = supply.lend(&memory, 0, 513).unwrap();
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
        assert!(supply.lend(&memory, 0, 0).unwrap().is_empty());
    }
}
