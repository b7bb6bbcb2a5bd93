//! [`PageList`]: what a registration binds its key to, in memory that the device reads.
//!
//! A list moves into the work request that registers and comes back with its completion. Until
//! then nobody can change or free it, because nobody holds it:
//!
//! ```compile_fail,E0382
//! # use ferrocx_verbs_lite::*;
//! # use std::sync::Arc;
//! fn in_flight(qp: &mut Qp, wr: &FastReg, mr: FastRegMr, list: PageList, m: &Arc<Memory>) {
//!     let _ = qp.post_fast_reg(wr, mr, list);
//!     let mut list = list;
//!     let _ = list.map(m, &[0..4096]);
//! }
//! ```

use std::ops::Range;
use std::sync::Arc;

use ferrocx_bus::{Ring, Slot};
use ferrocx_mempool::Mbuf;
use ferrocx_prm::mkey::{AccessMode, Klm, Mtt};
use thiserror::Error;

use crate::context::{ContextCore, RdmaContext};
use crate::error::VerbsError;
use crate::mr::{Memory, Reach};

/// Page sizes of registrations: 4 KiB to 1 GiB.
const MIN_LOG_PAGE: u8 = 12;
const MAX_LOG_PAGE: u8 = 30;
/// Lists are read in units of 64 bytes: eight words. Source: reference 6.4.
const MIN_LOG_WORDS: u8 = 3;
/// Where lists start that requests point to. Source: Linux 6.12 `MLX5_UMR_ALIGN`.
const LIST_ALIGN: usize = 2048;
/// Bytes of one piece.
const MAX_PIECE_BYTES: u64 = (1 << 31) - 1;
/// Entry bits that permit reads and writes.
const MTT_READ_WRITE: u64 = (Mtt::WR_EN.mask() | Mtt::RD_EN.mask()) as u64;

/// What the entries of a list are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListLayout {
    /// Pages of one size (MTT), eight bytes each: pieces must meet at page borders.
    Pages {
        /// Log2 of the page size: 12 to 30.
        log_page: u8,
    },
    /// Pieces of any length at any place (KLM), 16 bytes each. The device walks them for each
    /// access.
    Pieces,
}

impl ListLayout {
    pub(crate) fn check(self) -> Result<(), VerbsError> {
        let Self::Pages { log_page } = self else { return Ok(()) };
        let (min, max) = (MIN_LOG_PAGE.into(), MAX_LOG_PAGE.into());
        VerbsError::range("log2 of the page size", log_page.into(), min, max)
    }

    pub(crate) fn access_mode(self) -> AccessMode {
        match self {
            Self::Pages { .. } => AccessMode::MTT,
            Self::Pieces => AccessMode::KLM,
        }
    }

    /// 8-byte words of an entry, log2.
    #[inline(always)]
    fn log_words(self) -> u32 {
        match self {
            Self::Pages { .. } => 0,
            Self::Pieces => 1,
        }
    }

    /// 16-byte units of `len` entries, in whole 64 bytes.
    #[inline(always)]
    pub(crate) fn octowords(self, len: u32) -> u32 {
        (len << self.log_words()).div_ceil(8) * 4
    }

    /// Entries of a list at most: requests count its 16-byte units with 16 bits, in fours.
    pub(crate) fn most(self) -> u32 {
        ((u32::from(u16::MAX) - 3) * 2) >> self.log_words()
    }

    /// Whether lists of one can be bound to keys of the other: page sizes may differ.
    #[inline(always)]
    pub(crate) fn is_like(self, other: Self) -> bool {
        self.log_words() == other.log_words()
    }
}

/// Why a list cannot describe some memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PageListError {
    /// More entries than the list has room for.
    #[error("the list has not enough entries")]
    TooLong,
    /// A piece is empty, longer than 2 GiB, or outside the memory.
    #[error("a piece is empty, too long, or outside the memory")]
    Range,
    /// Pieces do not meet at page borders.
    #[error("pieces do not meet at page borders; use a smaller page or ListLayout::Pieces")]
    Unaligned,
    /// A queue pair holds the list until the registration has ended.
    #[error("the list is with a queue pair until the registration has ended")]
    Posted,
    /// The memory belongs to another device, or the pool of a packet is not registered with this
    /// one.
    #[error("the memory belongs to another device, or the packet's pool is not registered")]
    OtherDevice,
    /// A packet in foreign memory, which its owner may take back: pages would outlast its key.
    #[error("the packet lies in foreign memory; use ListLayout::Pieces")]
    Foreign,
}

/// A packet that a list cannot describe.
#[derive(Debug, Error)]
#[error("{cause}")]
pub struct RefusedMbuf {
    /// The packet.
    pub mbuf: Mbuf,
    /// Why.
    pub cause: PageListError,
}

/// A packet that a key is bound to, or will be. Nobody borrows it.
#[derive(Debug)]
pub(crate) struct HeldMbuf {
    pub(super) mbuf: Mbuf,
    /// Keeps its memory mapped where the registration of its pool does not.
    _reach: Reach,
}

/// I/O address and length of a run of memory, and the key that a list of pieces names it by. A
/// length of 0 is none that a list can have.
type Run = (u64, u64, u32);

#[derive(Debug)]
pub(super) struct List {
    words: Ring<8>,
    /// The list in units that are read.
    units: Ring<64>,
    layout: ListLayout,
    max_len: u32,
    len: u32,
    first_offset: u64,
    len_bytes: u64,
    memory: Option<Arc<Memory>>,
    /// See [`Memory::peer`].
    pub(super) peer: u64,
    /// Whether `peer` or `mbuf` is there.
    is_lent: bool,
    /// What it describes instead of `memory`, which is `None` then.
    pub(super) mbuf: Option<HeldMbuf>,
    /// The protection domain that keys bound to it must be of; 0 for any.
    pub(super) domain: u32,
    reach: Reach,
    core: Arc<ContextCore>,
}

/// A page list: owned by the caller while it is filled, by the queue pair from posting to
/// completion.
#[derive(Debug)]
pub struct PageList(pub(super) Box<List>);

impl RdmaContext {
    /// Makes a list of up to `max_len` entries.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`], or without memory.
    pub fn alloc_page_list(
        &self,
        layout: ListLayout,
        max_len: u32,
    ) -> Result<PageList, VerbsError> {
        layout.check()?;
        let most = self.attr().max_fast_reg_page_list_len.min(layout.most());
        VerbsError::range("max_page_list_len", max_len.into(), 1, most.into())?;
        let words = (max_len << layout.log_words()).next_power_of_two().max(1 << MIN_LOG_WORDS);
        // One of eight words stands in its request.
        let align = if words > 1 << MIN_LOG_WORDS { LIST_ALIGN } else { 64 };
        let buf = Arc::new(self.device().alloc_dma(words as usize * 8, align)?);
        let log_words = words.ilog2() as u8;
        Ok(PageList(Box::new(List {
            units: Ring::new(Arc::clone(&buf), 0, log_words - MIN_LOG_WORDS)?,
            words: Ring::new(buf, 0, log_words)?,
            layout,
            max_len,
            len: 0,
            first_offset: 0,
            len_bytes: 0,
            memory: None,
            peer: 0,
            is_lent: false,
            mbuf: None,
            domain: 0,
            reach: Reach::new(self.core(), self.device().key_domains().pd),
            core: Arc::clone(self.core()),
        })))
    }
}

impl PageList {
    /// Describes pieces of memory, in their order, as one region. Replaces what was there.
    ///
    /// Of pages, only the first piece may start inside one, and only the last may end inside one.
    ///
    /// # Errors
    ///
    /// [`PageListError`]; the list is then empty.
    #[inline]
    pub fn map(
        &mut self,
        memory: &Arc<Memory>,
        pieces: &[Range<usize>],
    ) -> Result<(), PageListError> {
        let list = &mut *self.0;
        list.clear();
        if !list.memory.as_ref().is_some_and(|known| Arc::ptr_eq(known, memory)) {
            list.change_memory(memory)?;
        }
        // A device with fast registration has the key, see `attributes` in context.rs.
        let lkey = list.core.lkey.unwrap_or(0);
        list.map_runs(pieces.iter().map(|piece| {
            let is_inside = piece.start < piece.end && piece.end <= memory.len_bytes();
            let len = if is_inside { piece.end - piece.start } else { 0 };
            // Wraps for a piece outside the memory, whose length is 0.
            (memory.iova().wrapping_add(piece.start as u64), len as u64, lkey)
        }))
    }

    /// Describes the data of a packet as one region, and takes the packet. Replaces what was there,
    /// and frees the packet that was.
    ///
    /// The packet is the list's until [`PageList::take_mbuf`], or the key's that the list is bound
    /// to: see [`fastreg`](crate::fastreg). The list comes back from a registration empty. A key
    /// that lets peers write needs a packet that [is exclusive](Mbuf::is_exclusive) and is as long
    /// as they may write ([`Mbuf::grow`]).
    ///
    /// # Errors
    ///
    /// [`PageListError`], with the packet; the list is then empty. Its pool must have been
    /// registered with the device, and if another device stamped it, before the list was made.
    #[inline]
    pub fn map_mbuf(&mut self, mbuf: Mbuf) -> Result<(), RefusedMbuf> {
        let list = &mut *self.0;
        list.clear();
        list.let_go();
        let reach = list.reach.clone();
        let mut result = Ok(());
        let mut domain = 0;
        for piece in mbuf.pieces() {
            match reach.entry(piece.into()) {
                None => result = Err(PageListError::OtherDevice),
                Some(_) if !piece.is_foreign => {}
                Some(_) if list.layout != ListLayout::Pieces => {
                    result = Err(PageListError::Foreign)
                }
                Some(there) if there.domain == reach.device() => {}
                Some(there) => domain = there.domain,
            }
        }
        // All memory of this process that is mapped, by the reserved key; foreign by its own.
        let own = list.core.lkey.unwrap_or(0);
        let runs = mbuf.pieces().filter_map(|piece| {
            let there = reach.entry(piece.into())?;
            let lkey = if piece.is_foreign { u32::from_be(there.lkey_be) } else { own };
            Some((there.addr, u64::from(there.len), lkey))
        });
        let result = result.and_then(|()| list.map_runs(runs));
        match result {
            Ok(()) => {
                (list.domain, list.is_lent) = (domain, true);
                list.mbuf = Some(HeldMbuf { mbuf, _reach: reach });
                Ok(())
            }
            Err(cause) => Err(RefusedMbuf { mbuf, cause }),
        }
    }

    /// Takes the packet out that was mapped and not registered; the list is empty then.
    #[must_use]
    pub fn take_mbuf(&mut self) -> Option<Mbuf> {
        let held = self.0.mbuf.take()?;
        self.0.clear();
        Some(held.mbuf)
    }

    /// Chooses another page size for the next [`PageList::map`]; the list is empty then.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] outside 12 to 30, or for a list of pieces.
    pub fn set_log_page(&mut self, log_page: u8) -> Result<(), VerbsError> {
        let layout = ListLayout::Pages { log_page };
        layout.check()?;
        if self.0.layout == ListLayout::Pieces {
            return Err(VerbsError::Unsupported {
                what: "page size for a list of pieces",
                way_out: "make a list of ListLayout::Pages",
            });
        }
        (self.0.layout, self.0.len) = (layout, 0);
        Ok(())
    }

    /// Entries in use.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u32 {
        self.0.len
    }

    /// Whether nothing was mapped.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Entries that there is room for.
    #[must_use]
    pub fn max_len(&self) -> u32 {
        self.0.max_len
    }

    /// What the entries are.
    #[inline]
    #[must_use]
    pub fn layout(&self) -> ListLayout {
        self.0.layout
    }

    /// Bytes that it describes.
    #[inline]
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.0.len_bytes
    }

    /// Where in its page the first byte is; 0 for pieces. The least address that a registration
    /// can start at.
    #[inline]
    #[must_use]
    pub fn first_offset(&self) -> u64 {
        self.0.first_offset
    }

    /// Log2 of the page size, 0 for pieces.
    #[inline(always)]
    pub(crate) fn log_page(&self) -> u32 {
        match self.0.layout {
            ListLayout::Pages { log_page } => log_page.into(),
            ListLayout::Pieces => 0,
        }
    }

    /// 8-byte words in use.
    #[inline(always)]
    pub(crate) fn words(&self) -> u32 {
        self.0.len << self.0.layout.log_words()
    }

    /// Copies the first eight words to a block of a request. Those behind the words in use describe
    /// nothing: the region that a key is bound to ends before them.
    #[inline(always)]
    pub(crate) fn put_first(&self, block: Slot<'_, 64>) {
        block.copy_from(&self.0.units.at(0));
    }

    #[inline(always)]
    pub(crate) fn iova(&self) -> u64 {
        self.0.words.iova()
    }

    #[inline(always)]
    pub(crate) fn memory(&self) -> Option<&Arc<Memory>> {
        self.0.memory.as_ref()
    }

    /// Whether it describes memory that somebody gets back: a peer's, or a packet.
    #[inline(always)]
    pub(crate) fn is_lent(&self) -> bool {
        self.0.is_lent
    }

    #[inline(always)]
    pub(crate) fn core(&self) -> &Arc<ContextCore> {
        &self.0.core
    }
}

impl List {
    /// Describes nothing.
    #[inline(always)]
    pub(super) fn clear(&mut self) {
        (self.len, self.len_bytes, self.first_offset) = (0, 0, 0);
    }

    /// Lets go of memory and packet.
    fn let_go(&mut self) {
        (self.memory, self.peer, self.mbuf, self.domain) = (None, 0, None, 0);
        self.is_lent = false;
    }

    #[inline(never)]
    fn change_memory(&mut self, memory: &Arc<Memory>) -> Result<(), PageListError> {
        self.let_go();
        if !Arc::ptr_eq(memory.core(), &self.core) {
            return Err(PageListError::OtherDevice);
        }
        (self.memory, self.peer) = (Some(Arc::clone(memory)), memory.peer());
        self.is_lent = self.peer != 0;
        Ok(())
    }

    #[inline(always)]
    fn map_runs(&mut self, runs: impl Iterator<Item = Run>) -> Result<(), PageListError> {
        let result = match self.layout {
            ListLayout::Pages { log_page } => self.map_pages(runs, log_page),
            ListLayout::Pieces => self.map_pieces(runs),
        };
        if result.is_err() {
            self.len = 0;
        }
        result
    }

    #[inline]
    fn map_pages(
        &mut self,
        runs: impl Iterator<Item = Run>,
        log_page: u8,
    ) -> Result<(), PageListError> {
        let page = 1u64 << log_page;
        let mut end_before = 0;
        for (at, (start, len, _)) in runs.enumerate() {
            if len == 0 {
                return Err(PageListError::Range);
            }
            let (end, inside) = (start + len, start & (page - 1));
            if at == 0 {
                self.first_offset = inside;
            } else if (inside | end_before & (page - 1)) != 0 {
                return Err(PageListError::Unaligned);
            }
            let mut next = start - inside;
            while next < end {
                if self.len == self.max_len {
                    return Err(PageListError::TooLong);
                }
                self.words.at(self.len).store(&(next | MTT_READ_WRITE).to_be_bytes());
                self.len += 1;
                next += page;
            }
            self.len_bytes += len;
            end_before = end;
        }
        Ok(())
    }

    #[inline]
    fn map_pieces(&mut self, runs: impl Iterator<Item = Run>) -> Result<(), PageListError> {
        for (start, len, lkey) in runs {
            if !(1..=MAX_PIECE_BYTES).contains(&len) {
                return Err(PageListError::Range);
            }
            if self.len == self.max_len {
                return Err(PageListError::TooLong);
            }
            let klm = Klm::zeroed().with_byte_count(len as u32).with_mkey(lkey).with_va(start);
            for (word, at) in klm.0.as_chunks::<8>().0.iter().zip(self.len << 1..) {
                self.words.at(at).store(word);
            }
            self.len += 1;
            self.len_bytes += len;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::ListLayout;

    /// The field of requests for that has 16 bits.
    #[test]
    fn the_units_of_the_longest_list_can_be_told() {
        for layout in [ListLayout::Pages { log_page: 12 }, ListLayout::Pieces] {
            let most = layout.most();
            assert!(layout.octowords(most) <= u16::MAX.into());
            assert!(layout.octowords(most + 1) > u16::MAX.into());
        }
    }
}
