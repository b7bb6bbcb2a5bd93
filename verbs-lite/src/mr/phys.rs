//! Regions over a list of pieces that lie apart: `reg_phys_mr`.

use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use ferrocx_prm::mkey::{AccessMode, Klm};

use super::create::{MIN_LOG_PAGE, check, context, create_mkey};
use super::{Memory, Mr, Registration};
use crate::error::VerbsError;
use crate::pd::Pd;
use crate::types::Access;

/// Largest page of an MTT key. Source: reference 5.1.
const MAX_LOG_PAGE: u32 = 31;

/// One piece of a physical list.
#[derive(Debug, Clone)]
pub struct PhysBuf {
    /// The memory that it lies in.
    pub memory: Arc<Memory>,
    /// Bytes of it.
    pub range: Range<usize>,
}

impl PhysBuf {
    fn iova(&self) -> u64 {
        self.memory.iova() + self.range.start as u64
    }

    fn len(&self) -> u64 {
        (self.range.end - self.range.start) as u64
    }
}

/// Log2 of the page by which pieces of `(address, bytes)`, one after the other from `start` on,
/// can be described page by page; `None` if they cannot.
///
/// Only the first piece may start inside a page, where `start` does, and only the last may end in
/// one.
pub(crate) fn common_log_page(start: u64, pieces: impl Iterator<Item = (u64, u64)>) -> Option<u32> {
    let mut borders = 0;
    let mut end_before = None;
    for (at, (address, len)) in pieces.enumerate() {
        borders |= if at == 0 { address ^ start } else { address };
        borders |= end_before.replace(address + len).unwrap_or(0);
    }
    let log_page = borders.trailing_zeros().min(MAX_LOG_PAGE);
    (log_page >= MIN_LOG_PAGE).then_some(log_page)
}

impl Pd {
    /// Registers pieces of memory that need not be adjacent as one region, whose first byte has
    /// the address `start`.
    ///
    /// Pieces that meet at page borders are described page by page; any others by a list of
    /// pieces (KLM), which the device walks for each access.
    ///
    /// # Errors
    ///
    /// Those of [`Pd::reg_mr`].
    pub fn reg_phys_mr(
        &self,
        pieces: &[PhysBuf],
        start: u64,
        access: Access,
    ) -> Result<Mr, VerbsError> {
        let most = u64::from(self.inner.core.attr.max_fast_reg_page_list_len);
        VerbsError::range("pieces", pieces.len() as u64, 1, most)?;
        for piece in pieces {
            check(self, &piece.memory, access)?;
            piece.memory.check(&piece.range)?;
        }
        let len = pieces.iter().map(PhysBuf::len).sum();
        let list = || pieces.iter().map(|piece| (piece.iova(), piece.len()));
        let (mkc, tail, dma) = match common_log_page(start, list()) {
            Some(log_page) => {
                let page = 1u64 << log_page;
                let pages = list()
                    .flat_map(|(at, len)| (at & !(page - 1)..at + len).step_by(1 << log_page));
                let mkc =
                    context(&self.inner, AccessMode::MTT, access).with_log_page_size(log_page);
                (mkc, pages.flat_map(u64::to_be_bytes).collect::<Vec<u8>>(), None)
            }
            None => {
                for piece in pieces {
                    VerbsError::range("bytes of a piece", piece.len(), 1, (1 << 31) - 1)?;
                }
                let key = self.get_dma_mr()?;
                let lkey = key.lkey().0;
                let entry = |(va, len): (u64, u64)| {
                    Klm::zeroed().with_byte_count(len as u32).with_mkey(lkey).with_va(va).0
                };
                let mkc = context(&self.inner, AccessMode::KLM, access);
                // The list names the key at each access, so it lives as long as this one.
                (mkc, list().flat_map(entry).collect(), Some(key.key))
            }
        };
        let octowords = tail.len().div_ceil(16) as u32;
        let variant = self.inner.core.next_variant().into();
        let mkc = mkc
            .with_mkey_7_0(variant)
            .with_start_addr(start)
            .with_len(len)
            .with_translations_octword_size(octowords);
        let handle = create_mkey(&self.inner, mkc, tail)?;
        let lkey = handle.number() << 8 | variant;
        let mut memories = pieces.iter().map(|piece| Arc::clone(&piece.memory));
        let Some(memory) = memories.next() else { unreachable!("there is a piece") };
        let registration = Registration {
            key: Mutex::new(Some(handle)),
            lkey,
            access,
            start,
            len,
            offset: if let [piece] = pieces { Some(piece.range.start) } else { None },
            memory,
            _others: memories.collect(),
            domain: self.domain(),
            _pd: Arc::clone(&self.inner),
            _dma: dma,
            windows: AtomicU32::new(0),
        };
        registration.into_mr()
    }
}

#[cfg(test)]
mod tests {
    use super::common_log_page;

    #[test]
    fn pages_fit_lists_that_meet_at_their_borders() {
        let page = |start, list: &[(u64, u64)]| common_log_page(start, list.iter().copied());
        assert_eq!(page(0x123, &[(0x5123, 0xedd), (0x2000, 0x800)]), Some(12));
        assert_eq!(page(0, &[(0x20_0000, 0x20_0000), (0x80_0000, 5)]), Some(21));
        assert_eq!(page(0, &[(0x5123, 0xedd), (0x2000, 0x800)]), None, "start inside a page");
        assert_eq!(page(0x123, &[(0x5123, 0xedc), (0x2000, 1)]), None, "ends before the border");
        assert_eq!(page(0, &[(0x1000, 0x1000), (0x2008, 1)]), None, "starts behind a border");
        assert_eq!(page(7, &[(7, 1)]), Some(31));
    }
}
