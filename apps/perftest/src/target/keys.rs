//! Fast-register keys in two protection domains, bound and ended by work requests.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ferrocx_verbs_lite::registrar::looped_back;
use ferrocx_verbs_lite::{
    Access, Cq, FastReg, FastRegMr, InvalidatedRkey, ListLayout, Memory, PageList, Pd, Qp,
    RdmaContext, RegisteredMr, RemoteAddr, Returned, Rkey, SendFlags, Wc,
};

use crate::end::End;

/// Pages of the lists, and how many a list has.
const LAYOUT: ListLayout = ListLayout::Pages { log_page: 12 };
const LIST_PAGES: u32 = 64;

/// Nothing for this long: it will not come.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// A domain, and the queue pair that changes its keys.
struct Domain {
    device: RdmaContext,
    pd: Pd,
    qp: Qp<()>,
    cq: Cq,
    /// Keys that are bound to nothing; the one used last is used next.
    free: Vec<FastRegMr>,
    lists: Vec<PageList>,
}

/// The keys of both domains.
pub(super) struct Keys {
    domains: [Domain; 2],
    bound: HashMap<u32, (usize, RegisteredMr)>,
}

impl Keys {
    pub(super) fn new(end: &End) -> Result<Self> {
        let other = end.device.alloc_pd()?;
        let domain = |pd: Pd| {
            let (qp, cq) = looped_back(&end.device, &pd, 16)?;
            let device = end.device.clone();
            Ok::<_, anyhow::Error>(Domain { device, pd, qp, cq, free: vec![], lists: vec![] })
        };
        let domains = [domain(end.pd.clone())?, domain(other)?];
        Ok(Self { domains, bound: HashMap::new() })
    }

    /// Binds a key to a range of the memory.
    pub(super) fn bind(
        &mut self,
        memory: &Arc<Memory>,
        range: Range<usize>,
        access: Access,
        remote_invalidate: bool,
        domain: usize,
        wait: impl Fn(),
    ) -> Result<RemoteAddr> {
        let (index, domain) = (domain, &mut self.domains[domain]);
        let mr = match domain.free.pop() {
            Some(mr) => mr,
            None => {
                let mut mr = domain.pd.alloc_mr(LAYOUT, LIST_PAGES)?;
                mr.attach(memory)?;
                mr
            }
        };
        let mut list = match domain.lists.pop() {
            Some(list) => list,
            None => domain.device.alloc_page_list(LAYOUT, LIST_PAGES)?,
        };
        list.map(memory, std::slice::from_ref(&range))?;
        let start = list.first_offset();
        let flags = SendFlags::SIGNALED;
        let wr = FastReg { wr_id: 0, flags, start, access, remote_invalidate };
        let mr = match domain.qp.post_fast_reg(&wr, mr, list) {
            Ok(mr) => mr,
            Err(refused) => bail!("not posted: {}", refused.cause),
        };
        let wc = domain.end_of(wait)?;
        wc.result.context("the registration failed")?;
        if let Returned::PageList(list) = wc.returned {
            domain.lists.push(list);
        }
        let remote = mr.remote();
        self.bound.insert(remote.rkey.0, (index, mr));
        Ok(remote)
    }

    /// Ends a key by a local invalidate.
    pub(super) fn end(&mut self, rkey: Rkey, wait: impl Fn()) -> Result<()> {
        let (index, mr) = self.bound.remove(&rkey.0).with_context(|| unknown(rkey))?;
        let domain = &mut self.domains[index];
        if let Err(refused) = domain.qp.post_local_inv(0, SendFlags::SIGNALED, mr) {
            bail!("not posted: {}", refused.cause);
        }
        let wc = domain.end_of(wait)?;
        wc.result.context("the invalidation failed")?;
        if let Returned::Mr(mr) = wc.returned {
            domain.free.push(mr);
        }
        Ok(())
    }

    /// A key is free because the peer ended it.
    pub(super) fn ended_by_peer(&mut self, proof: InvalidatedRkey) -> Result<()> {
        let rkey = proof.rkey();
        let (index, mr) = self.bound.remove(&rkey.0).with_context(|| unknown(rkey))?;
        match mr.invalidated_by(proof) {
            Ok(mr) => self.domains[index].free.push(mr),
            Err((mr, _)) => bail!("the proof is not of {:?}", mr.rkey()),
        }
        Ok(())
    }
}

impl Domain {
    /// The end of the request that was posted.
    fn end_of(&mut self, wait: impl Fn()) -> Result<Wc<()>> {
        let start = Instant::now();
        loop {
            if let Some(completion) = self.cq.poll() {
                let mut ended = None;
                self.qp.complete(completion, |wc| ended = Some(wc))?;
                return ended.context("a completion of nothing");
            }
            if start.elapsed() > PATIENCE {
                bail!("the request did not end in {} s", PATIENCE.as_secs());
            }
            wait();
        }
    }
}

fn unknown(rkey: Rkey) -> String {
    format!("{rkey:?} is not bound")
}
