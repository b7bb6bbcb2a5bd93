//! Fast-register keys in two protection domains, bound and ended by work requests.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ferrocx_verbs_lite::registrar::looped_back;
use ferrocx_verbs_lite::{
    Access, Cq, FastReg, InvalidatedRkey, KeySlot, ListLayout, Memory, Pd, Qp, RdmaContext,
    RemoteAddr, Rkey, SendFlags, Wc,
};

use crate::end::End;

/// Pages of the lists, and how many a list has.
const LAYOUT: ListLayout = ListLayout::Pages { log_page: 12 };
const LIST_PAGES: u32 = 64;

/// Nothing for this long: it will not come.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// A domain, and the queue pair that changes its keys.
struct Domain {
    context: RdmaContext,
    pd: Pd,
    qp: Qp<()>,
    cq: Cq,
    /// Keys that are bound to nothing; the one used last is used next.
    free: Vec<KeySlot>,
}

/// The keys of both domains.
pub(super) struct Keys {
    domains: [Domain; 2],
    bound: HashMap<u32, (usize, KeySlot)>,
}

impl Keys {
    pub(super) fn new(end: &End) -> Result<Self> {
        let other = end.context.alloc_pd()?;
        let domain = |pd: Pd| {
            let (qp, cq) = looped_back(&end.context, &pd, 16)?;
            let context = end.context.clone();
            Ok::<_, anyhow::Error>(Domain { context, pd, qp, cq, free: vec![] })
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
        let mut key = match domain.free.pop() {
            Some(key) => key,
            None => {
                let mut key = KeySlot::new(&domain.context, &domain.pd, LAYOUT, LIST_PAGES)?;
                key.attach(memory)?;
                key
            }
        };
        key.map(memory, std::slice::from_ref(&range))?;
        let start = key.list_mut().map_or(0, |list| list.first_offset());
        let flags = SendFlags::SIGNALED;
        let wr = FastReg { wr_id: 0, flags, start, access, remote_invalidate };
        let remote = key.register(&mut domain.qp, &wr).context("not posted")?;
        key.complete(domain.end_of(wait)?).context("the registration failed")?;
        self.bound.insert(remote.rkey.0, (index, key));
        Ok(remote)
    }

    /// Ends a key by a local invalidate.
    pub(super) fn end(&mut self, rkey: Rkey, wait: impl Fn()) -> Result<()> {
        let (index, mut key) = self.bound.remove(&rkey.0).with_context(|| unknown(rkey))?;
        let domain = &mut self.domains[index];
        key.invalidate(&mut domain.qp, 0, SendFlags::SIGNALED).context("not posted")?;
        key.complete(domain.end_of(wait)?).context("the invalidation failed")?;
        domain.free.push(key);
        Ok(())
    }

    /// A key is free because the peer ended it.
    pub(super) fn ended_by_peer(&mut self, proof: InvalidatedRkey) -> Result<()> {
        let rkey = proof.rkey();
        let (index, mut key) = self.bound.remove(&rkey.0).with_context(|| unknown(rkey))?;
        if let Err(proof) = key.invalidated_by(proof) {
            bail!("{:?} was not valid", proof.rkey());
        }
        self.domains[index].free.push(key);
        Ok(())
    }
}

impl Domain {
    /// The end of the request that was posted.
    fn end_of(&mut self, wait: impl Fn()) -> Result<Wc<()>> {
        let start = Instant::now();
        loop {
            if let Some(mut completion) = self.cq.poll() {
                return self.qp.next_wc(&mut completion)?.context("a completion of nothing");
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
