//! Fast memory regions (FMR): keys that are mapped to a list of pages, unmapped, and mapped again,
//! one call each; and pools of them ([`FmrPool`]).
//!
//! The shape is that of the kernel's former `ib_alloc_fmr`, `ib_map_phys_fmr`, `ib_unmap_fmr`,
//! `ib_dealloc_fmr` and `ib_create_fmr_pool`. What is beneath is not: each call posts a fast
//! registration or a local invalidate on a queue pair of its own and waits for its end, so keys
//! change at each mapping and are ended by the device, in order. Programs that need not wait use
//! [`crate::fastreg`] or a [`crate::registrar`].
//!
//! # When remote access ends
//!
//! Linux removed its FMRs because unmapping was lazy: peers could reach memory long after the call
//! that was to end it. Here:
//!
//! | what | peers are shut out |
//! |---|---|
//! | [`FmrQueue::unmap`] | when it returns |
//! | [`FmrQueue::map_phys`] of an FMR that is mapped | from the old pages before the new key exists |
//! | [`FmrQueue::dealloc`], dropping an [`Fmr`] | when it returns |
//! | [`FmrPool::unmap`], [`FmrMode::Strict`] | when the last user's call returns |
//! | [`FmrPool::unmap`], [`FmrMode::Lazy`] | **later**: at the next flush, see [`FmrMode::Lazy`] |
//!
//! While an FMR may be reached, the memory behind it stays mapped for the device and is not given
//! to anybody else by this library, however late that is.
//!
//! # Failures
//!
//! When a request fails, what it left behind is unknown: the key is ended by a command instead
//! ([`KeySlot::revoke`]), the queue pair is set up anew, and the call says
//! [`FmrError::Failed`]. An unmap that had to take that way has still ended access.

mod pool;

use std::borrow::BorrowMut;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

pub use pool::{FlushReport, FmrMode, FmrPool, FmrPoolConfig, FmrPoolStats, PoolFmr};

use crate::context::RdmaContext;
use crate::cq::Cq;
use crate::error::{Failure, PostError, VerbsError};
use crate::fastreg::{FastReg, KeySlot, KeyState, ListLayout, PageListError};
use crate::mr::Memory;
use crate::pd::Pd;
use crate::qp::Qp;
use crate::registrar::{lead_to_itself, looped_back};
use crate::types::{Access, Lkey, Qpn, Rkey};
use crate::wr::SendFlags;

/// How long the device may take for a request. It needs microseconds.
const PATIENCE: Duration = Duration::from_secs(2);
/// Empty polls before the driver below is asked to let the device make progress.
const SPINS: u32 = 64;

/// Attributes that all mappings of an FMR have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FmrAttr {
    /// Pages of a mapping: 1 to
    /// [`DeviceAttr::max_fast_reg_page_list_len`](crate::DeviceAttr::max_fast_reg_page_list_len).
    pub max_pages: u32,
    /// Log2 of the page size: 12 to 30.
    pub log_page: u8,
    /// Rights that the key grants.
    pub access: Access,
}

impl Default for FmrAttr {
    fn default() -> Self {
        Self { max_pages: 64, log_page: 12, access: Access::LOCAL_WRITE }
    }
}

/// Why a call on an FMR failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FmrError {
    /// The control path.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The request could not be posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The pages cannot be mapped.
    #[error("the pages cannot be mapped: {0}")]
    Pages(#[from] PageListError),
    /// The device failed the request. The FMR is unmapped, and can be mapped again.
    #[error("the device failed the request: {0}")]
    Failed(Failure),
    /// The device did not answer. The FMR is unmapped.
    #[error("the device did not end the request within 2 seconds")]
    TimedOut,
    /// All FMRs of a pool are in use: so many.
    #[error("all {0} FMRs of the pool are in use; unmap one, or make the pool larger")]
    PoolEmpty(u32),
    /// A handle of another pool.
    #[error("the FMR is of another pool")]
    OtherPool,
}

/// A fast memory region. Dropping it destroys its key, which ends all access through it.
#[derive(Debug)]
pub struct Fmr {
    key: KeySlot,
    attr: FmrAttr,
}

/// How a mapped FMR is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FmrKey {
    /// Key for local use.
    pub lkey: Lkey,
    /// Key for peers; it works as far as [`FmrAttr::access`] grants.
    pub rkey: Rkey,
    /// Address of the first byte.
    pub addr: u64,
    /// Length of the mapping in bytes.
    pub len_bytes: u64,
}

impl Fmr {
    /// How it is reached, while it is mapped.
    #[must_use]
    pub fn key(&self) -> Option<FmrKey> {
        let mr = self.key.mr()?;
        let (lkey, rkey, len_bytes) = (mr.lkey(), mr.rkey(), mr.len_bytes());
        Some(FmrKey { lkey, rkey, addr: mr.addr(), len_bytes })
    }

    /// Attributes that it was made with.
    #[must_use]
    pub fn attr(&self) -> &FmrAttr {
        &self.attr
    }
}

/// Maps and unmaps the FMRs of a domain: a queue pair that leads back to this port. Belongs to
/// one core at a time.
#[derive(Debug)]
pub struct FmrQueue {
    qp: Qp<()>,
    cq: Cq,
    context: RdmaContext,
    pd: Pd,
    depth: usize,
    pieces: Vec<Range<usize>>,
}

impl FmrQueue {
    /// Makes one that has up to `depth` requests in flight: 1 to 4096.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`], or what the device refused.
    pub fn new(context: &RdmaContext, pd: &Pd, depth: u32) -> Result<Self, VerbsError> {
        VerbsError::range("depth", depth.into(), 1, 4096)?;
        let (qp, cq) = looped_back(context, pd, depth)?;
        let (context, pd, depth) = (context.clone(), pd.clone(), depth as usize);
        Ok(Self { qp, cq, context, pd, depth, pieces: Vec::new() })
    }

    /// Number of its queue pair, as events and the device's log name it.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    /// Makes an FMR, unmapped.
    ///
    /// # Errors
    ///
    /// Those of [`Pd::alloc_mr`]; [`VerbsError::RemoteWithoutLocalWrite`].
    pub fn alloc(&self, attr: &FmrAttr) -> Result<Fmr, VerbsError> {
        if !attr.access.is_consistent() {
            return Err(VerbsError::RemoteWithoutLocalWrite);
        }
        Ok(Fmr { key: self.make_key(attr)?, attr: *attr })
    }

    fn make_key(&self, attr: &FmrAttr) -> Result<KeySlot, VerbsError> {
        let layout = ListLayout::Pages { log_page: attr.log_page };
        KeySlot::new(&self.context, &self.pd, layout, attr.max_pages)
    }

    /// Maps an FMR to pages of a memory, given by their offsets, as one region whose first byte has
    /// the address `iova`. When it returns, the key works. One that is mapped already is unmapped
    /// first.
    ///
    /// # Errors
    ///
    /// [`FmrError::Pages`] or [`FmrError::Post`] for pages or an address that are no multiple of
    /// the page size, for too many or none; [`FmrError::Failed`]. The FMR is unmapped then.
    pub fn map_phys(
        &mut self,
        fmr: &mut Fmr,
        memory: &Arc<Memory>,
        pages: &[usize],
        iova: u64,
    ) -> Result<FmrKey, FmrError> {
        if fmr.key().is_some() {
            self.end(&mut [&mut *fmr], &[0])?;
        }
        // A request that was never reported may have the key or the list of before.
        if fmr.key.state() != KeyState::Free || fmr.key.list_mut().is_none() {
            fmr.key = self.make_key(&fmr.attr)?;
        }
        let page = 1usize << fmr.attr.log_page;
        self.pieces.clear();
        self.pieces.extend(pages.iter().map(|at| *at..at.saturating_add(page)));
        fmr.key.map(memory, &self.pieces)?;
        if fmr.key.list_mut().is_some_and(|list| list.first_offset() != 0) {
            return Err(PageListError::Unaligned.into());
        }
        let wr = FastReg {
            wr_id: 0,
            flags: SendFlags::SIGNALED,
            start: iova,
            access: fmr.attr.access,
            remote_invalidate: false,
        };
        fmr.key.register(&mut self.qp, &wr)?;
        let ended = self.wait(&mut [&mut *fmr]);
        match (ended, fmr.key()) {
            (Ok(()), Some(key)) => Ok(key),
            (ended, _) => {
                self.recover(&mut [fmr], &[0])?;
                Err(ended.err().unwrap_or(FmrError::TimedOut))
            }
        }
    }

    /// Unmaps FMRs, any number with one doorbell. When it returns, no access through their keys
    /// succeeds. Those that are not mapped stay as they are.
    ///
    /// # Errors
    ///
    /// What the device refused when a key had to be ended by a command; that FMR may then still be
    /// reached, until it is dropped. A failed request alone is no error: access has ended.
    pub fn unmap(&mut self, fmrs: &mut [&mut Fmr]) -> Result<(), FmrError> {
        let all: Vec<u32> = (0..fmrs.len() as u32).collect();
        self.end(fmrs, &all)
    }

    /// Unmaps the FMRs at these places: see [`FmrQueue::unmap`].
    fn end<F: BorrowMut<Fmr>>(&mut self, fmrs: &mut [F], places: &[u32]) -> Result<(), FmrError> {
        let batches = places.chunks(self.depth);
        batches.map(|batch| self.end_batch(fmrs, batch)).fold(Ok(()), Result::and)
    }

    fn end_batch<F: BorrowMut<Fmr>>(
        &mut self,
        fmrs: &mut [F],
        batch: &[u32],
    ) -> Result<(), FmrError> {
        let mut is_refused = false;
        for at in batch {
            let key = &mut fmrs[*at as usize].borrow_mut().key;
            let flags = SendFlags::MORE;
            // What cannot be posted is ended by a command: the queue pair has failed meanwhile, or
            // the key is stale.
            is_refused |=
                key.mr().is_some() && key.invalidate(&mut self.qp, u64::from(*at), flags).is_err();
        }
        self.qp.ring_doorbell_signaled();
        let ended = self.wait(fmrs);
        if ended.is_err() || is_refused { self.recover(fmrs, batch) } else { Ok(()) }
    }

    /// Destroys an FMR and says how that went.
    ///
    /// # Errors
    ///
    /// What the device refused; the key is then leaked, with its memory.
    pub fn dealloc(&mut self, fmr: Fmr) -> Result<(), FmrError> {
        Ok(fmr.key.dealloc()?)
    }

    /// Takes completions until nothing is posted, and puts what they bring into the FMRs, which
    /// requests name by their places. The first failure.
    fn wait<F: BorrowMut<Fmr>>(&mut self, fmrs: &mut [F]) -> Result<(), FmrError> {
        let device = self.context.device();
        let (mut first, mut turns, start) = (Ok(()), 0_u32, device.now());
        while self.qp.has_outstanding() {
            // Whatever comes: a device that lies may send completions of nothing without end.
            turns += 1;
            let is_due = turns % SPINS == 0;
            if is_due && device.now() - start > PATIENCE {
                return Err(FmrError::TimedOut);
            }
            let Some(mut completion) = self.cq.poll() else {
                if is_due {
                    device.relax();
                }
                continue;
            };
            // A completion of nothing that is posted ends nothing; the time limit does.
            while let Ok(Some(wc)) = self.qp.next_wc(&mut completion) {
                let ended = match fmrs.get_mut(wc.wr_id as usize) {
                    Some(fmr) => fmr.borrow_mut().key.complete(wc).map(drop),
                    None => wc.result,
                };
                if let (Err(failure), Ok(())) = (ended, &first) {
                    first = Err(FmrError::Failed(failure));
                }
            }
        }
        first
    }

    /// After a failure: ends every key that may be valid by a command, and sets the queue pair up
    /// anew.
    #[cold]
    fn recover<F: BorrowMut<Fmr>>(
        &mut self,
        fmrs: &mut [F],
        batch: &[u32],
    ) -> Result<(), FmrError> {
        self.qp.to_error()?;
        // What was flushed comes back here; a second time limit is the end of the matter.
        if matches!(self.wait(fmrs), Err(FmrError::TimedOut)) {
            return Err(FmrError::TimedOut);
        }
        // Nobody knows whether a request of this batch was carried out.
        let revoked = batch.iter().map(|at| fmrs[*at as usize].borrow_mut().key.revoke());
        let first = revoked.fold(Ok(()), Result::and);
        self.qp.reset()?;
        lead_to_itself(&self.context, &mut self.qp)?;
        first.map_err(FmrError::Verbs)
    }
}
