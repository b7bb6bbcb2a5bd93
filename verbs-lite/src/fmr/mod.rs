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
//! ([`RegisteredMr::revoke`]), the queue pair is set up anew, and the call says
//! [`FmrError::Failed`]. An unmap that had to take that way has still ended access.

mod pool;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thiserror::Error;

pub use pool::{FlushReport, FmrMode, FmrPool, FmrPoolConfig, FmrPoolStats, PoolFmr};

use crate::context::RdmaContext;
use crate::cq::Cq;
use crate::error::{Failure, PostError, VerbsError};
use crate::fastreg::{FastReg, FastRegMr, ListLayout, PageList, PageListError, RegisteredMr};
use crate::mr::Memory;
use crate::pd::Pd;
use crate::qp::Qp;
use crate::registrar::{lead_to_itself, looped_back};
use crate::types::{Access, Lkey, Qpn, Rkey};
use crate::wr::{Returned, SendFlags, Wc};

/// How long the device may take for a request. It needs microseconds.
const PATIENCE: Duration = Duration::from_secs(2);
/// Empty polls before the driver below is asked to let the device make progress.
const SPINS: u32 = 64;

/// What all mappings of an FMR have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FmrAttr {
    /// Pages of a mapping: 1 to
    /// [`DeviceAttr::max_fast_reg_page_list_len`](crate::DeviceAttr::max_fast_reg_page_list_len).
    pub max_pages: u32,
    /// Log2 of the page size: 12 to 30.
    pub log_page: u8,
    /// What may be done through the key.
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
    /// All FMRs of a pool are in use.
    #[error("all {size} FMRs of the pool are in use; unmap one, or make the pool larger")]
    PoolEmpty {
        /// FMRs of the pool.
        size: u32,
    },
    /// A handle of another pool.
    #[error("the FMR is of another pool")]
    OtherPool,
}

/// Whether an FMR can be used.
#[derive(Debug)]
enum State {
    /// Nobody can use it.
    Free(FastRegMr),
    /// Peers and queue pairs may use it.
    Mapped(RegisteredMr),
    /// A request holds it, or it was lost with a key that could not be made anew.
    Gone,
}

/// A fast memory region. Dropping it destroys its key, which ends all access through it.
#[derive(Debug)]
pub struct Fmr {
    state: State,
    list: Option<PageList>,
    attr: FmrAttr,
}

/// How a mapped FMR is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FmrKey {
    /// For local use.
    pub lkey: Lkey,
    /// For peers; it works as far as [`FmrAttr::access`] grants.
    pub rkey: Rkey,
    /// Address of the first byte.
    pub addr: u64,
    /// Bytes.
    pub len_bytes: u64,
}

impl Fmr {
    /// How it is reached, while it is mapped.
    #[must_use]
    pub fn key(&self) -> Option<FmrKey> {
        let State::Mapped(mr) = &self.state else { return None };
        Some(FmrKey {
            lkey: mr.lkey(),
            rkey: mr.rkey(),
            addr: mr.addr(),
            len_bytes: mr.len_bytes(),
        })
    }

    /// What it was made for.
    #[must_use]
    pub fn attr(&self) -> &FmrAttr {
        &self.attr
    }
}

/// What maps and unmaps FMRs of a domain: a queue pair that leads back to this port. Belongs to
/// one core at a time.
#[derive(Debug)]
pub struct FmrQueue {
    qp: Qp<()>,
    cq: Cq,
    device: RdmaContext,
    pd: Pd,
    depth: usize,
    pieces: Vec<Range<usize>>,
    /// Keys that a failed request left behind, by place in the batch.
    stale: Vec<(usize, RegisteredMr)>,
}

impl FmrQueue {
    /// Makes one that has up to `depth` requests in flight: 1 to 4096.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`], or what the device refused.
    pub fn new(device: &RdmaContext, pd: &Pd, depth: u32) -> Result<Self, VerbsError> {
        VerbsError::range("depth", depth.into(), 1, 4096)?;
        let (qp, cq) = looped_back(device, pd, depth)?;
        let (device, pd, depth) = (device.clone(), pd.clone(), depth as usize);
        Ok(Self { qp, cq, device, pd, depth, pieces: Vec::new(), stale: Vec::new() })
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
    /// As [`Pd::alloc_mr`]; [`VerbsError::RemoteWithoutLocalWrite`].
    pub fn alloc(&self, attr: &FmrAttr) -> Result<Fmr, VerbsError> {
        if !attr.access.is_consistent() {
            return Err(VerbsError::RemoteWithoutLocalWrite);
        }
        let layout = ListLayout::Pages { log_page: attr.log_page };
        let list = self.device.alloc_page_list(layout, attr.max_pages)?;
        let mr = self.pd.alloc_mr(layout, attr.max_pages)?;
        Ok(Fmr { state: State::Free(mr), list: Some(list), attr: *attr })
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
            self.unmap(&mut [&mut *fmr])?;
        }
        let mut list = self.take_list(fmr)?;
        let page = 1usize << fmr.attr.log_page;
        self.pieces.clear();
        self.pieces.extend(pages.iter().map(|at| *at..at.saturating_add(page)));
        let mapped = list.map(memory, &self.pieces);
        if mapped.is_ok() && list.first_offset() != 0 {
            fmr.list = Some(list);
            return Err(PageListError::Unaligned.into());
        }
        if let Err(error) = mapped {
            fmr.list = Some(list);
            return Err(error.into());
        }
        let mr = match self.take_free(fmr) {
            Ok(mr) => mr,
            Err(error) => {
                fmr.list = Some(list);
                return Err(error);
            }
        };
        let wr = FastReg {
            wr_id: 0,
            flags: SendFlags::SIGNALED,
            start: iova,
            access: fmr.attr.access,
            remote_invalidate: false,
        };
        match self.qp.post_fast_reg(&wr, mr, list) {
            Ok(mr) => fmr.state = State::Mapped(mr),
            Err(refused) => {
                let (mr, list) = refused.held;
                (fmr.state, fmr.list) = (State::Free(mr), Some(list));
                return Err(refused.cause.into());
            }
        }
        let ended = self.wait(&mut [&mut *fmr]);
        match (ended, fmr.key()) {
            (Ok(()), Some(key)) => Ok(key),
            (ended, _) => {
                self.recover(&mut [&mut *fmr])?;
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
        for batch in fmrs.chunks_mut(self.depth) {
            self.unmap_batch(batch)?;
        }
        Ok(())
    }

    fn unmap_batch(&mut self, fmrs: &mut [&mut Fmr]) -> Result<(), FmrError> {
        let mut is_refused = false;
        for (at, fmr) in fmrs.iter_mut().enumerate() {
            let mr = match std::mem::replace(&mut fmr.state, State::Gone) {
                State::Mapped(mr) => mr,
                other => {
                    fmr.state = other;
                    continue;
                }
            };
            if let Err(refused) = self.qp.queue_local_inv(at as u64, SendFlags::empty(), mr) {
                // The queue pair has failed meanwhile.
                self.stale.push((at, refused.held));
                is_refused = true;
            }
        }
        self.qp.ring_doorbell_signaled();
        let ended = self.wait(fmrs);
        if ended.is_err() || is_refused { self.recover(fmrs) } else { Ok(()) }
    }

    /// Destroys an FMR and says how that went.
    ///
    /// # Errors
    ///
    /// What the device refused; the key is then leaked, with its memory.
    pub fn dealloc(&mut self, fmr: Fmr) -> Result<(), FmrError> {
        match fmr.state {
            State::Free(mr) => Ok(mr.dealloc()?),
            State::Mapped(mr) => Ok(mr.revoke().map_err(|error| error.cause)?.dealloc()?),
            State::Gone => Ok(()),
        }
    }

    /// The list of an FMR; another one if a request that failed has it.
    fn take_list(&self, fmr: &mut Fmr) -> Result<PageList, VerbsError> {
        match fmr.list.take() {
            Some(list) => Ok(list),
            None => {
                let layout = ListLayout::Pages { log_page: fmr.attr.log_page };
                self.device.alloc_page_list(layout, fmr.attr.max_pages)
            }
        }
    }

    /// The key of an FMR that is not mapped; another one if its own was lost.
    fn take_free(&self, fmr: &mut Fmr) -> Result<FastRegMr, FmrError> {
        match std::mem::replace(&mut fmr.state, State::Gone) {
            State::Free(mr) => Ok(mr),
            State::Mapped(_) | State::Gone => {
                let layout = ListLayout::Pages { log_page: fmr.attr.log_page };
                Ok(self.pd.alloc_mr(layout, fmr.attr.max_pages)?)
            }
        }
    }

    /// Takes completions until nothing is posted, and puts what they bring into the FMRs, which
    /// requests name by their places. The first failure.
    fn wait(&mut self, fmrs: &mut [&mut Fmr]) -> Result<(), FmrError> {
        let (mut first, mut empty, start) = (Ok(()), 0, Instant::now());
        while self.qp.has_outstanding() {
            let Some(completion) = self.cq.poll() else {
                empty += 1;
                if empty % SPINS == 0 {
                    self.device.device().relax();
                    if start.elapsed() > PATIENCE {
                        return Err(FmrError::TimedOut);
                    }
                }
                continue;
            };
            let stale = &mut self.stale;
            // A completion of nothing that is posted ends nothing; the time limit does.
            let _ = self.qp.complete(completion, |wc| {
                if let (Err(failure), Ok(())) = (wc.result, &first) {
                    first = Err(FmrError::Failed(failure));
                }
                put_back(fmrs, stale, wc);
            });
        }
        first
    }

    /// After a failure: ends every key that may be valid by a command, and sets the queue pair up
    /// anew.
    #[cold]
    fn recover(&mut self, fmrs: &mut [&mut Fmr]) -> Result<(), FmrError> {
        self.qp.to_error()?;
        // What was flushed comes back here; a second time limit is the end of the matter.
        if matches!(self.wait(fmrs), Err(FmrError::TimedOut)) {
            return Err(FmrError::TimedOut);
        }
        let mut first = Ok(());
        for fmr in fmrs.iter_mut() {
            let State::Mapped(mr) = std::mem::replace(&mut fmr.state, State::Gone) else {
                continue;
            };
            // A registration of this batch: nobody knows whether it was carried out.
            fmr.state = revoke(mr, &mut first);
        }
        for (at, mr) in self.stale.drain(..) {
            let state = revoke(mr, &mut first);
            if let Some(fmr) = fmrs.get_mut(at) {
                fmr.state = state;
            }
        }
        self.qp.reset()?;
        lead_to_itself(&self.device, &mut self.qp)?;
        first.map_err(FmrError::Verbs)
    }
}

/// Ends a key by a command; a key that the device does not let go of stays as it may be: mapped.
fn revoke(mr: RegisteredMr, first: &mut Result<(), VerbsError>) -> State {
    match mr.revoke() {
        Ok(mr) => State::Free(mr),
        Err(error) => {
            *first = Err(error.cause);
            State::Mapped(*error.mr)
        }
    }
}

/// Gives what a request held back to its FMR.
fn put_back(fmrs: &mut [&mut Fmr], stale: &mut Vec<(usize, RegisteredMr)>, wc: Wc<()>) {
    let at = wc.wr_id as usize;
    match wc.returned {
        Returned::Stale(mr) => stale.push((at, mr)),
        Returned::PageList(list) => {
            if let Some(fmr) = fmrs.get_mut(at) {
                fmr.list = Some(list);
            }
        }
        Returned::Mr(mr) => {
            if let Some(fmr) = fmrs.get_mut(at) {
                fmr.state = State::Free(mr);
            }
        }
        _ => {}
    }
}
