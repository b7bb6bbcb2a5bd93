//! Memory regions: memory, the keys over it, and the pieces that work requests carry.
//!
//! | kind | made by | its addresses | who reaches it |
//! |---|---|---|---|
//! | registered | [`Pd::reg_mr`] | virtual addresses, or from 0 | local, peers as granted |
//! | DMA | [`Pd::get_dma_mr`] | bus addresses | local only |
//! | physical list | [`Pd::reg_phys_mr`] | from a start that the caller chooses | local, peers as granted |
//! | device | [`Pd::reg_dm_mr`] over a [`Dm`] | from 0 | local, peers as granted |
//! | window | [`Pd::alloc_mw`], then work requests | those of its region, or from 0 | one queue pair's peer |
//! | fast-register | [`Pd::alloc_mr`], then work requests | chosen at each registration | local, peers as granted |
//!
//! A [`Memory`] is mapped once; any number of keys may cover it. A key ends at once with
//! [`Mr::dereg`], or with the last handle and [`Buf`] of it.
//!
//! Packets need none of these: a [`Mbuf`](ferrocx_mempool::Mbuf) of a pool that is registered with
//! the device carries its key along, see [`Buffers`]. Peers reach it by a fast-register key,
//! [`PageList::map_mbuf`](crate::PageList::map_mbuf).

mod buf;
mod buffers;
mod dm;
mod dma;
mod memory;
mod mkey;
mod register;
mod sge;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

pub use buf::Buf;
pub use buffers::{Buffers, Payload};
pub use dm::Dm;
pub use dma::DmaMr;
pub use memory::Memory;
pub(crate) use mkey::Mkey;
pub use register::PhysBuf;
pub(crate) use sge::Reach;
pub use sge::Sge;

use crate::context::ContextCore;
use crate::error::VerbsError;
use crate::pd::{Pd, PdCore};
use crate::types::{Access, Lkey, Rkey};

/// Where the memory of a key lies.
#[derive(Debug)]
enum Place {
    /// In this process.
    Host(Arc<Memory>),
    /// In the device.
    Device(dm::DmHold),
}

/// A key over memory, and what keeps both.
#[derive(Debug)]
pub(crate) struct Registration {
    /// `None` for a key that is shared: the reserved one, or a domain's DMA key.
    mkey: Option<Arc<Mkey>>,
    lkey: u32,
    access: Access,
    /// First address in the space of the key, and bytes.
    start: u64,
    len: u64,
    /// Where the first byte lies in the region; `None` when the pieces lie apart.
    offset: Option<usize>,
    memory: Place,
    /// More memory, for pieces that lie apart.
    others: Vec<Arc<Memory>>,
    /// Who may use the key, see [`Sge::domain`].
    pub(crate) domain: u32,
    pd: Arc<PdCore>,
    /// The DMA key that it is, or that its pieces are named by.
    _dma: Option<Arc<dma::DmaKey>>,
    /// Windows that are bound to it.
    windows: AtomicU32,
}

impl Registration {
    /// Where in the region an address of the key lies; the key's memory is contiguous.
    #[inline]
    fn offset_of(&self, addr: u64) -> usize {
        self.offset.unwrap_or(0) + addr.wrapping_sub(self.start) as usize
    }

    /// Notes that the device knows the key with other rights, in a domain.
    pub(crate) fn adopt(&mut self, pd: &Pd, access: Access) {
        (self.access, self.domain, self.pd) = (access, pd.domain(), Arc::clone(&pd.inner));
    }

    /// The key for peers, if any right was granted to them.
    fn rkey(&self) -> Option<Rkey> {
        self.access.intersects(Access::REMOTE).then_some(Rkey(self.lkey))
    }

    fn memories(&self) -> impl Iterator<Item = &Arc<Memory>> {
        let first = match &self.memory {
            Place::Host(memory) => Some(memory),
            Place::Device(_) => None,
        };
        first.into_iter().chain(&self.others)
    }

    /// Notes the key with its memory; destroys it if that was taken back meanwhile.
    fn into_mr(self) -> Result<Mr, VerbsError> {
        self.memories().try_for_each(|memory| memory.note(self.mkey.as_ref()))?;
        Ok(Mr { inner: Arc::new(self) })
    }

    fn dereg(&self) -> Result<(), VerbsError> {
        let windows = self.windows.load(Ordering::Acquire);
        if windows > 0 {
            return Err(VerbsError::WindowsBound { windows });
        }
        self.mkey.as_ref().map_or(Ok(()), |mkey| mkey.destroy())
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Err(error) = self.dereg() {
            tracing::error!(lkey = self.lkey, %error, "memory key not destroyed, memory leaked");
            self.memories().for_each(|memory| memory.leak());
            if let Place::Device(dm) = &self.memory {
                dm.leak();
            }
        }
    }
}

/// The part of a region that a bound window holds: the region cannot end before it.
#[derive(Debug)]
pub(crate) struct WindowHold(Arc<Registration>);

impl WindowHold {
    pub(crate) fn new(mr: &Mr) -> Self {
        mr.inner.windows.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(&mr.inner))
    }
}

impl Drop for WindowHold {
    fn drop(&mut self) {
        self.0.windows.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Bytes of the longest [`Buf`]: what a data segment can describe.
const MAX_BUF_BYTES: u64 = 1 << 31;

/// A memory region: registered memory, reachable by one key.
///
/// A handle: clones are the same region. The key lives until [`Mr::dereg`], or until the last
/// handle and [`Buf`] is dropped.
#[derive(Debug, Clone)]
pub struct Mr {
    pub(crate) inner: Arc<Registration>,
}

impl Mr {
    /// The key for local use.
    #[must_use]
    pub fn lkey(&self) -> Lkey {
        Lkey(self.inner.lkey)
    }

    /// The key for peers; `None` if they were granted nothing.
    #[must_use]
    pub fn rkey(&self) -> Option<Rkey> {
        self.inner.rkey()
    }

    /// First address in the space of the key.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.inner.start
    }

    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.inner.len
    }

    /// Rights that the key grants.
    #[must_use]
    pub fn access(&self) -> Access {
        self.inner.access
    }

    /// A piece of the region, counted from its first byte. Pieces may overlap.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] outside the region or above 2 GiB, [`VerbsError::Unsupported`]
    /// for a region whose pieces lie apart in memory.
    #[inline(always)]
    pub fn buf(&self, range: Range<usize>) -> Result<Buf, VerbsError> {
        let (start, end) = (range.start as u64, range.end as u64);
        let is_inside = start <= end && end <= self.inner.len && end - start <= MAX_BUF_BYTES;
        if !is_inside || self.inner.offset.is_none() {
            return Err(self.no_buf(start, end));
        }
        let addr = self.inner.start + start;
        Ok(Buf::new(Arc::clone(&self.inner), addr, (end - start) as u32))
    }

    /// Why a range is no piece of the region.
    #[cold]
    #[inline(never)]
    fn no_buf(&self, start: u64, end: u64) -> VerbsError {
        let len = self.inner.len;
        VerbsError::range("start of the range", start, 0, len)
            .and_then(|()| VerbsError::range("end of the range", end, start, len))
            .and_then(|()| VerbsError::range("bytes of the buffer", end - start, 0, MAX_BUF_BYTES))
            .err()
            .unwrap_or(VerbsError::Unsupported {
                what: "contiguous memory behind this region",
                way_out: "take buffers from reg_mr",
            })
    }

    /// The whole region.
    ///
    /// # Errors
    ///
    /// Those of [`Mr::buf`].
    pub fn whole(&self) -> Result<Buf, VerbsError> {
        self.buf(0..usize::try_from(self.inner.len).unwrap_or(usize::MAX))
    }

    /// The region for a change of its key, if nobody else holds it, the key is of the device, its
    /// own, and the memory is reached without another key.
    pub(crate) fn for_change(&mut self, core: &Arc<ContextCore>) -> Option<&mut Registration> {
        let region = Arc::get_mut(&mut self.inner)?;
        let is_own = region.mkey.is_some() && region._dma.is_none();
        let is_simple = is_own && matches!(region.memory, Place::Host(_));
        (is_simple && Arc::ptr_eq(core, &region.pd.core)).then_some(region)
    }

    /// Ends the key now, whatever is posted: when this returns, no access through it succeeds, and
    /// work in flight completes with a local protection error, or at the peer with a remote access
    /// error. Buffers of it can still be read and written here.
    ///
    /// # Errors
    ///
    /// [`VerbsError::WindowsBound`], or what the device refused; try again. A DMA key is shared and
    /// ends with its [`DmaMr`].
    #[doc(alias = "ibv_dereg_mr")]
    pub fn dereg(&self) -> Result<(), VerbsError> {
        self.inner.dereg()
    }
}
