//! Keys over memory: `reg_mr`, and `reg_phys_mr` for a list of pieces that lie apart.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use ferrocx_mempool::AccessError;
use ferrocx_prm::mkey::{AccessMode, Klm};

use super::mkey::{Mkey, context};
use super::{Memory, Mr, Place, Registration};
use crate::error::VerbsError;
use crate::pd::Pd;
use crate::types::Access;

/// Page sizes of an MTT key. Source: reference 5.1.
const MIN_LOG_PAGE: u32 = 12;
const MAX_LOG_PAGE: u32 = 31;

/// Lists of pieces are read in units of 64 bytes. Source: Linux 6.12 vdpa, `klm_byte_size`.
const KLM_LIST_ALIGN: usize = 64;

/// One piece of a physical list.
#[derive(Debug, Clone)]
pub struct PhysBuf {
    /// The memory that it lies in.
    pub memory: Arc<Memory>,
    /// Bytes of it.
    pub range: Range<usize>,
}

/// Log2 of the largest page by which pieces of `(address, bytes)`, one after the other from `start`
/// on, can be described page by page, and that saves pages; `None` if they cannot.
///
/// Only the first piece may start inside a page, where `start` does, and only the last may end in
/// one.
fn common_log_page(start: u64, pieces: impl Iterator<Item = (u64, u64)>) -> Option<u32> {
    let (mut borders, mut total, mut end_before) = (0, 0, 0);
    for (at, (address, len)) in pieces.enumerate() {
        borders |= if at == 0 { address ^ start } else { address };
        borders |= end_before;
        (end_before, total) = (address + len, total + len);
    }
    let fits = total.next_power_of_two().trailing_zeros();
    let log_page = borders.trailing_zeros().min(fits.max(MIN_LOG_PAGE)).min(MAX_LOG_PAGE);
    (log_page >= MIN_LOG_PAGE).then_some(log_page)
}

impl Pd {
    /// Registers a range of memory under a key of its own.
    ///
    /// Peers use the virtual address of the memory, or with [`Access::ZERO_BASED`] the offset in
    /// the range, which must then start at a multiple of 4096.
    ///
    /// # Errors
    ///
    /// [`VerbsError::RemoteWithoutLocalWrite`], [`VerbsError::OutOfRange`],
    /// [`VerbsError::OtherDevice`], or what the device refused.
    #[doc(alias = "ibv_reg_mr")]
    pub fn reg_mr(
        &self,
        memory: &Arc<Memory>,
        range: Range<usize>,
        access: Access,
    ) -> Result<Mr, VerbsError> {
        memory.check(&range)?;
        let start = if !access.contains(Access::ZERO_BASED) {
            memory.virtual_address() + range.start as u64
        } else if range.start.is_multiple_of(1 << MIN_LOG_PAGE) {
            0
        } else {
            return Err(AccessError::Misaligned.into());
        };
        self.reg_phys_mr(&[PhysBuf { memory: Arc::clone(memory), range }], start, access)
    }

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
            self.check_registrable(&piece.memory, access)?;
            piece.memory.check(&piece.range)?;
        }
        let list = || {
            pieces.iter().map(|PhysBuf { memory, range }| {
                (memory.iova() + range.start as u64, range.len() as u64)
            })
        };
        let len = list().map(|(_, len)| len).sum();
        VerbsError::range("start", start, 0, u64::MAX - len)?;
        let (mkc, tail, dma): (_, Vec<u8>, _) = match common_log_page(start, list()) {
            Some(log_page) => {
                let page = 1u64 << log_page;
                let pages = list()
                    .flat_map(|(at, len)| (at & !(page - 1)..at + len).step_by(1 << log_page));
                let mkc = context(AccessMode::MTT, access).with_log_page_size(log_page);
                (mkc, pages.flat_map(u64::to_be_bytes).collect(), None)
            }
            None => {
                for (_, len) in list() {
                    VerbsError::range("bytes of a piece", len, 1, (1 << 31) - 1)?;
                }
                let dma = self.get_dma_mr()?;
                let lkey = dma.lkey().0;
                let entry = |(va, len): (u64, u64)| {
                    Klm::zeroed().with_byte_count(len as u32).with_mkey(lkey).with_va(va).0
                };
                let mut tail: Vec<u8> = list().flat_map(entry).collect();
                tail.resize(tail.len().next_multiple_of(KLM_LIST_ALIGN), 0);
                (context(AccessMode::KLM, access), tail, Some(dma.key))
            }
        };
        // Requests may change it, see `MrChanger`.
        let mkc = mkc
            .with_umr_en(true)
            .with_start_addr(start)
            .with_len(len)
            .with_translations_octword_size(tail.len().div_ceil(16) as u32);
        let (mkey, lkey) = Mkey::create(&self.inner, mkc, tail)?;
        let mut memories = pieces.iter().map(|piece| Arc::clone(&piece.memory));
        let Some(memory) = memories.next() else { unreachable!("there is a piece") };
        let registration = Registration {
            mkey: Some(mkey),
            lkey,
            access,
            start,
            len,
            offset: if let [piece] = pieces { Some(piece.range.start) } else { None },
            memory: Place::Host(memory),
            others: memories.collect(),
            domain: self.domain(),
            pd: Arc::clone(&self.inner),
            _dma: dma,
            windows: AtomicU32::new(0),
        };
        registration.into_mr()
    }

    /// Checks that every registration needs.
    pub(super) fn check_registrable(
        &self,
        memory: &Memory,
        access: Access,
    ) -> Result<(), VerbsError> {
        if !access.is_consistent() {
            return Err(VerbsError::RemoteWithoutLocalWrite);
        }
        if memory.peer() != 0 && access.contains(Access::MW_BIND) {
            let (what, way_out) = ("memory windows over peer memory", "grant the region's own key");
            return Err(VerbsError::Unsupported { what, way_out });
        }
        if !Arc::ptr_eq(memory.core(), &self.inner.core) {
            return Err(VerbsError::OtherDevice { what: "the memory" });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::common_log_page;

    #[test]
    fn pages_are_as_large_as_addresses_and_length_allow() {
        let page = |start, at, len| common_log_page(start, std::iter::once((at, len)));
        assert_eq!(page(0x7f00_0000_0000, 0x1_0000_0000, 4 << 20), Some(22));
        assert_eq!(page(0x7f00_0000_0000, 0x1_0020_0000, 4 << 20), Some(21));
        assert_eq!(page(0x7f00_0000_1000, 0x1_0000_0000, 4 << 20), Some(12));
        assert_eq!(page(0x7f00_0000_0123, 0x1_0000_0123, 6000), Some(13));
        assert_eq!(page(0, 0, u64::MAX >> 8), Some(31));
        assert_eq!(page(7, 7, 1), Some(12));
    }

    #[test]
    fn pages_fit_lists_that_meet_at_their_borders() {
        let page = |start, list: &[(u64, u64)]| common_log_page(start, list.iter().copied());
        assert_eq!(page(0x123, &[(0x5123, 0xedd), (0x2000, 0x800)]), Some(12));
        assert_eq!(page(0, &[(0x20_0000, 0x20_0000), (0x80_0000, 5)]), Some(21));
        assert_eq!(page(0, &[(0x5123, 0xedd), (0x2000, 0x800)]), None, "start inside a page");
        assert_eq!(page(0x123, &[(0x5123, 0xedc), (0x2000, 1)]), None, "ends before the border");
        assert_eq!(page(0, &[(0x1000, 0x1000), (0x2008, 1)]), None, "starts behind a border");
    }
}
