//! Sends, and the completions of sends.

use ferrocx_mempool::{Mbuf, PageSize, Pool, PoolConfig, RegionConfig};
use ferrocx_verbs_lite::*;

use super::{RUN, Run, Still, Work, still};

#[inline(never)]
fn post_inline(qp: &mut Qp<()>, wr: &SendWr<'_>, data: &[u8; 8]) -> bool {
    qp.post_send_inline(wr, data).is_ok()
}

#[inline(never)]
fn post_inline_run(qp: &mut Qp<()>) -> u64 {
    let mut posted = 0;
    for at in 0..RUN {
        let wr = SendWr::unsignaled(at, SendOp::Send).with(SendFlags::MORE);
        posted += u64::from(qp.post_send_inline(&wr, &at.to_ne_bytes()).is_ok());
    }
    qp.ring_doorbell();
    posted
}

/// SENDs of eight bytes that stand in the request.
pub(super) struct Inline {
    still: Still<()>,
    by: Run,
    posted: u64,
    ended: u64,
}

impl Inline {
    pub(super) fn new(by: Run) -> Self {
        Self { still: still(), by, posted: 0, ended: 0 }
    }
}

impl Work for Inline {
    fn prepare(&mut self) {
        if self.posted > self.ended {
            let ended = &mut self.ended;
            self.still.finish(|_| *ended += 1);
        }
    }

    fn run(&mut self) {
        if self.by == Run::Whole {
            self.posted += post_inline_run(&mut self.still.qp);
            return;
        }
        for at in 0..RUN {
            let wr = SendWr::unsignaled(at, SendOp::Send);
            self.posted += u64::from(post_inline(&mut self.still.qp, &wr, &at.to_ne_bytes()));
        }
    }

    fn verify(&mut self) {
        self.prepare();
        assert_eq!((self.posted % RUN, self.posted), (0, self.ended), "every request ended");
    }
}

#[inline(never)]
fn post_write<B: Buffers>(qp: &mut Qp<B>, wr: &SendWr<'_>, buf: B) -> Option<B> {
    qp.post_send(wr, Some(buf)).err().and_then(|refused| refused.held)
}

#[inline(never)]
fn post_writes<B: Buffers>(qp: &mut Qp<B>, remote: RemoteAddr, bufs: &mut Vec<B>) {
    for at in 0..RUN {
        let Some(buf) = bufs.pop() else { break };
        let wr = SendWr::unsignaled(at, SendOp::Write(remote)).with(SendFlags::MORE);
        if let Err(refused) = qp.post_send(&wr, Some(buf)) {
            bufs.extend(refused.held);
        }
    }
    qp.ring_doorbell();
}

/// WRITEs of one buffer.
pub(super) struct Gather<B: Buffers> {
    still: Still<B>,
    by: Run,
    bufs: Vec<B>,
    remote: RemoteAddr,
    runs: u64,
}

impl Gather<Mbuf> {
    /// Packets of a pool that is registered with the device.
    pub(super) fn packets(by: Run) -> Self {
        let still = still();
        let region = RegionConfig { page: PageSize::Base4K, ..RegionConfig::default() };
        let pool = PoolConfig { count: RUN as usize, cache_size: 0, region, ..Default::default() };
        let pool = Pool::new(&pool).expect("a pool");
        still.context.device().register_pool(&pool).expect("registered");
        let packet = |_| {
            let mut packet = pool.get().expect("one for each request");
            assert!(packet.grow(64));
            packet
        };
        Self::of(still, by, (0..RUN).map(packet).collect())
    }
}

impl Gather<Buf> {
    pub(super) fn new(by: Run) -> Self {
        let still = still();
        let mr = still.pd.get_dma_mr().and_then(|dma| dma.over(&still.memory)).expect("a key");
        let buf = |at: u64| mr.buf(at as usize * 64..at as usize * 64 + 64).expect("in range");
        Self::of(still, by, (0..RUN).map(buf).collect())
    }
}

impl<B: Buffers> Gather<B> {
    fn of(still: Still<B>, by: Run, bufs: Vec<B>) -> Self {
        let remote = RemoteAddr { addr: 0x1000, rkey: Rkey(0x1234) };
        Self { still, by, bufs, remote, runs: 0 }
    }

    fn post(&mut self, flags: SendFlags) {
        for at in 0..RUN {
            let Some(buf) = self.bufs.pop() else { break };
            let wr = SendWr { wr_id: at, flags, op: SendOp::Write(self.remote) };
            if let Some(refused) = post_write(&mut self.still.qp, &wr, buf) {
                self.bufs.push(refused);
            }
        }
    }
}

impl<B: Buffers> Work for Gather<B> {
    fn prepare(&mut self) {
        let bufs = &mut self.bufs;
        if bufs.is_empty() {
            self.still.finish(|wc| bufs.extend(wc.into_buffers()));
        }
    }

    fn run(&mut self) {
        if self.by == Run::Whole {
            post_writes(&mut self.still.qp, self.remote, &mut self.bufs);
        } else {
            self.post(SendFlags::empty());
        }
        self.runs += 1;
    }

    fn verify(&mut self) {
        assert!(self.runs > 0 && self.bufs.is_empty(), "every buffer was taken");
        self.prepare();
        assert_eq!(self.bufs.len() as u64, RUN, "and came back");
    }
}

/// As in an application: takes one completion, if there is one.
#[inline(never)]
fn poll_one(cq: &mut Cq, qp: &mut Qp<Buf>, bufs: &mut Vec<Buf>) -> bool {
    let Some(completion) = cq.poll() else { return false };
    qp.complete(completion, |wc| bufs.extend(wc.into_buffers())).is_ok()
}

/// The same for all that there are.
#[inline(never)]
fn poll_all(cq: &mut Cq, qp: &mut Qp<Buf>, bufs: &mut Vec<Buf>) {
    while let Some(completion) = cq.poll() {
        if qp.complete(completion, |wc| bufs.extend(wc.into_buffers())).is_err() {
            break;
        }
    }
}

/// Completions of WRITEs of one buffer.
pub(super) struct Poll(Gather<Buf>);

impl Poll {
    pub(super) fn new(by: Run) -> Self {
        Self(Gather::new(by))
    }
}

impl Work for Poll {
    fn prepare(&mut self) {
        if self.0.by == Run::Unsignaled {
            self.0.post(SendFlags::empty());
            return self.0.still.played.complete_last();
        }
        self.0.post(SendFlags::SIGNALED);
        let played = &mut self.0.still.played;
        for request in played.posted() {
            played.complete_index(request.wqe_index);
        }
        self.0.runs += 1;
    }

    fn run(&mut self) {
        let Gather { still: Still { cq, qp, .. }, by, bufs, .. } = &mut self.0;
        match by {
            Run::Single => while poll_one(cq, qp, bufs) {},
            Run::Whole | Run::Unsignaled => poll_all(cq, qp, bufs),
        }
    }

    fn verify(&mut self) {
        assert_eq!(self.0.bufs.len() as u64, RUN, "every buffer came back");
    }
}
