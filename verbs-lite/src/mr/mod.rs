//! Memory regions: memory, the keys over it, and the pieces that work requests carry.
//!
//! | kind | made by | its addresses | who reaches it |
//! |---|---|---|---|
//! | registered | [`Pd::reg_mr`] | virtual addresses, or from 0 | local, peers as granted |
//! | DMA | [`Pd::get_dma_mr`] | bus addresses | local only |
//! | physical list | [`Pd::reg_phys_mr`] | from a start that the caller chooses | local, peers as granted |
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
mod create;
mod dma;
mod memory;
mod phys;
mod reach;
mod sge;

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ferrocx_core::Handle;

pub(crate) use create::create_mkey;

pub use buf::Buf;
pub use buffers::{Buffers, Payload};
pub use dma::DmaMr;
pub(crate) use memory::EndKey;
pub use memory::Memory;
pub use phys::PhysBuf;
pub(crate) use reach::Reach;
pub use sge::Sge;

use crate::error::VerbsError;
use crate::pd::{Pd, PdCore};
use crate::types::{Access, Lkey, Rkey};

/// A key over memory, and what keeps both.
#[derive(Debug)]
pub(crate) struct Registration {
    /// The mkey. `None` for a key that is shared: the reserved one, or a domain's DMA key.
    key: Mutex<Option<Handle>>,
    lkey: u32,
    access: Access,
    /// First address in the space of the key, and bytes.
    start: u64,
    len: u64,
    /// Where the first byte lies in the region; `None` when the pieces lie apart.
    offset: Option<usize>,
    memory: Arc<Memory>,
    /// More memory, for pieces that lie apart.
    _others: Vec<Arc<Memory>>,
    /// Who may use the key, see [`Sge::domain`].
    domain: u32,
    _pd: Arc<PdCore>,
    /// The DMA key that it is, or that its pieces are named by.
    _dma: Option<Arc<dma::DmaKey>>,
    /// Windows that are bound to it.
    windows: AtomicU32,
}

impl Registration {
    #[inline(always)]
    pub(crate) fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Who may use the key, see [`Sge::domain`].
    #[inline(always)]
    pub(crate) fn domain(&self) -> u32 {
        self.domain
    }

    /// Where in the region an address of the key lies; the key's memory is contiguous.
    fn offset_of(&self, addr: u64) -> usize {
        self.offset.unwrap_or(0) + addr.wrapping_sub(self.start) as usize
    }

    /// The key for peers, if any right was granted to them.
    pub(crate) fn rkey(&self) -> Option<Rkey> {
        self.access.intersects(Access::REMOTE).then_some(Rkey(self.lkey))
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Notes the key with its memory; destroys it if that was taken back meanwhile.
    fn into_mr(self) -> Result<Mr, VerbsError> {
        let inner = Arc::new(self);
        for memory in std::iter::once(&inner.memory).chain(&inner._others) {
            let key: Arc<dyn EndKey> = Arc::<Self>::clone(&inner);
            memory.note(Arc::downgrade(&key))?;
        }
        Ok(Mr { inner })
    }

    fn dereg(&self) -> Result<(), VerbsError> {
        let windows = self.windows.load(Ordering::Acquire);
        if windows > 0 {
            return Err(VerbsError::WindowsBound { windows });
        }
        let mut key = self.key.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = key.as_mut() {
            handle.destroy()?;
        }
        Ok(())
    }
}

impl EndKey for Registration {
    fn end(&self) -> Result<(), VerbsError> {
        self.dereg()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Err(error) = self.dereg() {
            tracing::error!(lkey = self.lkey, %error, "memory key not destroyed, memory leaked");
            self.memory.leak();
            self._others.iter().for_each(|memory| memory.leak());
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

    /// Keeps the region for ever: the device may still reach it through the window.
    pub(crate) fn leak(self) {
        std::mem::forget(self);
    }
}

impl Drop for WindowHold {
    fn drop(&mut self) {
        self.0.windows.fetch_sub(1, Ordering::AcqRel);
    }
}

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

    /// Bytes.
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
    pub fn buf(&self, range: Range<usize>) -> Result<Buf, VerbsError> {
        let len = self.inner.len;
        VerbsError::range("start of the range", range.start as u64, 0, len)?;
        VerbsError::range("end of the range", range.end as u64, range.start as u64, len)?;
        let bytes = (range.end - range.start) as u64;
        VerbsError::range("bytes of the buffer", bytes, 0, 1 << 31)?;
        if self.inner.offset.is_none() {
            let what = "contiguous memory behind this region";
            return Err(VerbsError::Unsupported { what, way_out: "take buffers from reg_mr" });
        }
        let addr = self.inner.start + range.start as u64;
        let registration = Arc::clone(&self.inner);
        Ok(Buf::new(registration, addr, bytes as u32))
    }

    /// The whole region.
    ///
    /// # Errors
    ///
    /// Those of [`Mr::buf`].
    pub fn whole(&self) -> Result<Buf, VerbsError> {
        self.buf(0..usize::try_from(self.inner.len).unwrap_or(usize::MAX))
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
        create::contiguous(self, memory, range, access)
    }
}
