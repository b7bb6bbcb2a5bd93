//! [`Dm`]: memory that lies in the device, and keys over it.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use ferrocx_core::DeviceMemory;
use ferrocx_mempool::AccessError;
use ferrocx_prm::mkey::AccessMode;

use super::mkey::{Mkey, context};
use super::{Mr, Place, Registration};
use crate::context::{ContextCore, RdmaContext};
use crate::error::VerbsError;
use crate::pd::Pd;
use crate::types::Access;

/// Bytes of a word: what is written to the device's memory is whole words.
pub(super) const WORD_BYTES: usize = 4;
/// Bytes that are copied at a time where source or target is not whole words.
pub(super) const CHUNK_BYTES: usize = 256;

/// A piece of the device's memory, and how many regions are registered over it.
#[derive(Debug)]
struct Piece {
    memory: RwLock<DeviceMemory>,
    len_bytes: usize,
    core: Arc<ContextCore>,
    regions: AtomicU32,
}

/// Memory that lies in the device: what is sent from it is not fetched over the bus, and what peers
/// write to it does not cross the bus until somebody reads it.
///
/// The processor reaches it over the bus, word by word of four bytes ([`Dm::copy_in`],
/// [`Dm::copy_out`]); the device by the key of a region ([`Pd::reg_dm_mr`]), whose buffers go into
/// work requests like any others. There is little of it: [`DeviceAttr::max_dm_bytes`].
///
/// A handle: clones are the same memory. It goes back to the device with [`Dm::free`], or with the
/// last handle and region.
///
/// [`DeviceAttr::max_dm_bytes`]: crate::DeviceAttr::max_dm_bytes
#[derive(Debug, Clone)]
#[doc(alias = "ibv_dm")]
pub struct Dm {
    piece: Arc<Piece>,
}

impl RdmaContext {
    /// Takes a piece of the device's memory, at a multiple of 2^`log_align` bytes; what it holds is
    /// not defined. Its length is rounded up to whole words.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Device`]: the device lends no memory, not so much at a time, none that is
    /// aligned so, or none any more.
    #[doc(alias = "ibv_alloc_dm")]
    pub fn alloc_dm(&self, len_bytes: usize, log_align: u32) -> Result<Dm, VerbsError> {
        let core = Arc::clone(self.core());
        let memory = core.device().alloc_memory(len_bytes as u64, log_align)?;
        let len_bytes = memory.len_bytes();
        let (memory, regions) = (RwLock::new(memory), AtomicU32::new(0));
        Ok(Dm { piece: Arc::new(Piece { memory, len_bytes, core, regions }) })
    }
}

impl Dm {
    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.piece.len_bytes
    }

    /// Copies bytes in; they are there before a request that is posted later. Others may see some
    /// of the words before others.
    ///
    /// # Shape
    ///
    /// `offset` and the length are multiples of four.
    ///
    /// # Errors
    ///
    /// [`AccessError::OutOfRange`], also after [`Dm::free`], [`AccessError::Misaligned`]; nothing
    /// is copied then.
    #[doc(alias = "ibv_memcpy_to_dm")]
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<(), AccessError> {
        self.piece.memory().copy_in(offset, bytes)
    }

    /// Copies bytes out. What is written meanwhile may be seen in part.
    ///
    /// # Shape
    ///
    /// `offset` and the length are multiples of four.
    ///
    /// # Errors
    ///
    /// Those of [`Dm::copy_in`].
    #[doc(alias = "ibv_memcpy_from_dm")]
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> Result<(), AccessError> {
        self.piece.memory().copy_out(offset, bytes)
    }

    /// Gives the memory back to the device now, whoever has handles to it.
    ///
    /// # Errors
    ///
    /// [`VerbsError::StillRegistered`], or what the device refused; try again.
    #[doc(alias = "ibv_free_dm")]
    pub fn free(&self) -> Result<(), VerbsError> {
        let mut memory = self.piece.memory.write().unwrap_or_else(PoisonError::into_inner);
        let regions = self.piece.regions.load(Ordering::Acquire);
        if regions > 0 {
            return Err(VerbsError::StillRegistered { regions });
        }
        Ok(memory.destroy()?)
    }
}

impl Piece {
    fn memory(&self) -> RwLockReadGuard<'_, DeviceMemory> {
        self.memory.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// With a region that was leaked, so is the memory.
impl Drop for Piece {
    fn drop(&mut self) {
        if *self.regions.get_mut() > 0 {
            self.memory.get_mut().unwrap_or_else(PoisonError::into_inner).leak();
        }
    }
}

/// Device memory with a region over it: it is not given back before.
#[derive(Debug)]
pub(super) struct DmHold(Arc<Piece>);

impl DmHold {
    /// Copies whole words in.
    #[cold]
    pub(super) fn copy_in(&self, at: usize, bytes: &[u8]) -> Result<(), AccessError> {
        self.0.memory().copy_in(at, bytes)
    }

    /// Copies any bytes out.
    #[cold]
    pub(super) fn copy_out(&self, at: usize, bytes: &mut [u8]) -> Result<(), AccessError> {
        let memory = self.0.memory();
        let (mut at, mut rest) = (at, bytes);
        while !rest.is_empty() {
            let skip = at % WORD_BYTES;
            let len = rest.len().min(CHUNK_BYTES - skip);
            let mut words = [0; CHUNK_BYTES];
            let whole = (skip + len).next_multiple_of(WORD_BYTES);
            memory.copy_out(at - skip, &mut words[..whole])?;
            let (head, tail) = rest.split_at_mut(len);
            head.copy_from_slice(&words[skip..skip + len]);
            (at, rest) = (at + len, tail);
        }
        Ok(())
    }

    /// Counts as a region for ever: its key may have stayed, by which a peer would reach what the
    /// memory is used for next.
    pub(super) fn leak(&self) {
        self.0.regions.fetch_add(1, Ordering::AcqRel);
    }
}

impl Drop for DmHold {
    fn drop(&mut self) {
        self.0.regions.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Pd {
    /// Registers a range of the device's memory under a key of its own, whose addresses begin at 0:
    /// [`Access::ZERO_BASED`] goes without saying.
    ///
    /// Bytes go into its buffers in whole words; see [`Buf::copy_in`](super::Buf::copy_in).
    ///
    /// # Errors
    ///
    /// [`VerbsError::RemoteWithoutLocalWrite`], [`VerbsError::OutOfRange`],
    /// [`VerbsError::OtherDevice`], [`VerbsError::Unsupported`] for [`Access::MW_BIND`],
    /// [`VerbsError::Revoked`] after [`Dm::free`], or what the device refused.
    #[doc(alias = "ibv_reg_dm_mr")]
    pub fn reg_dm_mr(
        &self,
        dm: &Dm,
        range: Range<usize>,
        access: Access,
    ) -> Result<Mr, VerbsError> {
        let piece = &dm.piece;
        if !access.is_consistent() {
            return Err(VerbsError::RemoteWithoutLocalWrite);
        }
        if access.contains(Access::MW_BIND) {
            let (what, way_out) = ("memory windows over device memory", "grant the region's key");
            return Err(VerbsError::Unsupported { what, way_out });
        }
        if !Arc::ptr_eq(&piece.core, &self.inner.core) {
            return Err(VerbsError::OtherDevice { what: "the device memory" });
        }
        let (start, end, len) = (range.start as u64, range.end as u64, piece.len_bytes as u64);
        VerbsError::range("start of the range", start, 0, len)?;
        VerbsError::range("end of the range", end, start, len)?;
        // Nobody gives it back meanwhile.
        let memory = piece.memory();
        if !memory.is_alive() {
            return Err(VerbsError::Revoked);
        }
        let access = access | Access::ZERO_BASED;
        let mkc = context(AccessMode::MEMIC, access)
            .with_start_addr(memory.bar_offset() + start)
            .with_len(end - start);
        let (mkey, lkey) = Mkey::create(&self.inner, mkc, Vec::new())?;
        piece.regions.fetch_add(1, Ordering::AcqRel);
        let registration = Registration {
            mkey: Some(mkey),
            lkey,
            access,
            start: 0,
            len: end - start,
            offset: Some(range.start),
            memory: Place::Device(DmHold(Arc::clone(piece))),
            others: Vec::new(),
            domain: self.domain(),
            pd: Arc::clone(&self.inner),
            _dma: None,
            windows: AtomicU32::new(0),
        };
        drop(memory);
        registration.into_mr()
    }
}
