//! Keys of other kinds: FMRs of a pool in strict mode, and memory windows.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use ferrocx_verbs_lite::{
    Access, BindMw, BoundMw, Buf, FmrAttr, FmrMode, FmrPool, FmrPoolConfig, InvalidatedRkey,
    Memory, Mr, Mw, Pd, PoolFmr, Qp, Qpn, RemoteAddr, Rkey, SendFlags,
};

use crate::end::End;

/// Pages of an FMR, and FMRs of the pool.
const FMR_PAGES: u32 = 16;
const FMRS: u32 = 4;
/// What peers may do through an FMR.
const FMR_ACCESS: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// FMRs, which end when they are unmapped.
pub(super) struct Fmrs {
    pool: FmrPool,
    mapped: HashMap<u32, PoolFmr>,
}

impl Fmrs {
    pub(super) fn new(end: &End) -> Result<Self> {
        let fmr = FmrAttr { max_pages: FMR_PAGES, log_page: 12, access: FMR_ACCESS };
        let mode = FmrMode::Strict;
        let settings =
            FmrPoolConfig { fmr, pool_size: FMRS, dirty_watermark: 1, cache: false, mode };
        let pool = FmrPool::new(&end.context, &end.pd, &settings)?;
        Ok(Self { pool, mapped: HashMap::new() })
    }

    /// Maps one to pages of the memory, in this order.
    pub(super) fn map(&mut self, memory: &Arc<Memory>, pages: &[usize]) -> Result<RemoteAddr> {
        let fmr = self.pool.map_phys(memory, pages, 0)?;
        let key = fmr.key();
        self.mapped.insert(key.rkey.0, fmr);
        Ok(RemoteAddr { addr: key.addr, rkey: key.rkey })
    }

    /// Unmaps one, if there is one of that key.
    pub(super) fn unmap(&mut self, rkey: Rkey) -> Option<Result<()>> {
        let fmr = self.mapped.remove(&rkey.0)?;
        Some(self.pool.unmap(fmr).context("the FMR was not unmapped"))
    }
}

/// Windows, each with the queue pair that bound it.
pub(super) struct Windows {
    pd: Pd,
    region: Mr,
    free: Vec<Mw>,
    bound: HashMap<u32, (Qpn, BoundMw)>,
}

impl Windows {
    pub(super) fn new(end: &End, region: Mr) -> Self {
        Self { pd: end.pd.clone(), region, free: Vec::new(), bound: HashMap::new() }
    }

    /// Posts the binding of one to a range of the memory.
    pub(super) fn bind(
        &mut self,
        qp: &mut Qp<Buf>,
        range: Range<usize>,
        access: Access,
    ) -> Result<RemoteAddr> {
        let mw = match self.free.pop() {
            Some(mw) => mw,
            None => self.pd.alloc_mw()?,
        };
        // A window's own right is the peer's alone.
        let access = access - Access::LOCAL_WRITE;
        let wr = BindMw { wr_id: 0, flags: SendFlags::SIGNALED, access };
        match qp.post_bind_mw(&wr, mw, &self.region, range) {
            Ok(mw) => {
                let remote = mw.remote();
                self.bound.insert(remote.rkey.0, (qp.qpn(), mw));
                Ok(remote)
            }
            Err(refused) => {
                self.free.push(refused.held);
                bail!("not posted: {}", refused.cause);
            }
        }
    }

    /// Ends one, if there is one of that key: `true` when a local invalidate was posted for it. One
    /// of a queue pair that is gone, or that takes no requests, is ended by a command.
    pub(super) fn end(&mut self, qp: Option<&mut Qp<Buf>>, rkey: Rkey) -> Option<Result<bool>> {
        let (qpn, mw) = self.bound.remove(&rkey.0)?;
        let mw = match qp.filter(|qp| qp.qpn() == qpn) {
            Some(qp) => match qp.post_local_inv_mw(0, SendFlags::SIGNALED, mw) {
                Ok(()) => return Some(Ok(true)),
                Err(refused) => refused.held,
            },
            None => mw,
        };
        Some(self.revoke(mw).map(|()| false))
    }

    /// Ends one by a command.
    pub(super) fn revoke(&mut self, mw: BoundMw) -> Result<()> {
        self.free.push(mw.revoke().map_err(|error| error.cause)?);
        Ok(())
    }

    /// One that a completion has brought back.
    pub(super) fn ended(&mut self, mw: Mw) {
        self.free.push(mw);
    }

    /// One is free because the peer ended it; the proof comes back if it is of something else.
    pub(super) fn ended_by_peer(&mut self, proof: InvalidatedRkey) -> Option<InvalidatedRkey> {
        let Some((qpn, mw)) = self.bound.remove(&proof.rkey().0) else { return Some(proof) };
        match mw.invalidated_by(proof) {
            Ok(mw) => self.free.push(mw),
            Err((mw, proof)) => {
                self.bound.insert(mw.rkey().0, (qpn, mw));
                return Some(proof);
            }
        }
        None
    }
}
