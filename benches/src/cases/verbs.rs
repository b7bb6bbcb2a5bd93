//! Posting and completing RDMA work requests on a queue pair whose device is only played.

use std::sync::{Arc, Mutex};

use ferrocx_bus::PciIdentity;
use ferrocx_bus::local::{LocalConfig, pair};
use ferrocx_mempool::{PageSize, RegionConfig};
use ferrocx_model::{Nic, NicConfig};
use ferrocx_pmd::DeviceConfig;
use ferrocx_verbs_lite::bench_support::PlayedCq;
use ferrocx_verbs_lite::registrar::looped_back;
use ferrocx_verbs_lite::*;

use super::{Case, Work};

/// Requests of one run.
const RUN: u64 = 32;
/// Device time of one step while the queue pair is made.
const STEP_NS: u64 = 1000;

/// Posts SENDs of eight bytes inline, a doorbell each.
pub(super) const POST_SEND_INLINE: Case =
    Case { name: "verbs_post_send_inline_8", elements: RUN, make: || Box::new(Inline::new()) };

/// Posts WRITEs of one buffer, a doorbell each.
pub(super) const POST_SEND_SGE: Case =
    Case { name: "verbs_post_send_1sge", elements: RUN, make: || Box::new(Gather::new()) };

/// Takes completions one by one and gives each request's buffer back.
pub(super) const POLL_CQ: Case =
    Case { name: "verbs_poll_cq", elements: RUN, make: || Box::new(Poll(Gather::new())) };

/// Posts registrations of one page, a doorbell each.
pub(super) const FAST_REG: Case =
    Case { name: "verbs_fast_reg_post", elements: RUN, make: || Box::new(Register::new()) };

/// Posts local invalidates, a doorbell each.
pub(super) const LOCAL_INV: Case =
    Case { name: "verbs_local_inv_post", elements: RUN, make: || Box::new(End(Register::new())) };

/// A queue pair of a model that stands still.
struct Still<B: Buffers> {
    qp: Qp<B>,
    cq: Cq,
    played: PlayedCq,
    device: Device,
    pd: Pd,
    memory: Arc<Memory>,
}

fn still<B: Buffers>() -> Still<B> {
    let nic = NicConfig { roce: true, ..NicConfig::default() };
    let identity = PciIdentity {
        vendor: PciIdentity::VENDOR_MELLANOX,
        device: nic.identity.device_id(),
        name: "model".into(),
        numa_node: None,
    };
    let (transport, side) =
        pair(LocalConfig { identity, ..LocalConfig::default() }).expect("a model");
    let world = Mutex::new((Nic::new(side, nic), 0));
    // The model steps while a command waits, and at no other time.
    transport.set_idle_hook(Some(Arc::new(move || {
        let mut world = world.lock().expect("no step panics");
        world.1 += STEP_NS;
        let now = world.1;
        world.0.step(now);
    })));
    let settings = DeviceConfig { page: PageSize::Base4K, ..DeviceConfig::default() };
    let port = ferrocx_pmd::Device::open(transport, &settings).expect("the model comes up");
    let device = Device::open(port).expect("the model has RoCE");
    let pd = device.alloc_pd().expect("a domain");
    let (qp, cq) = looped_back(&device, &pd, 256).expect("a queue pair");
    let played = PlayedCq::new(&cq).expect("a ring");
    let region =
        RegionConfig { len_bytes: 64 << 10, page: PageSize::Base4K, ..RegionConfig::default() };
    let memory = Memory::alloc(&device, &region).expect("memory");
    Still { qp, cq, played, device, pd, memory }
}

impl<B: Buffers> Still<B> {
    /// Ends all that is posted.
    fn finish(&mut self, mut each: impl FnMut(Wc<B>)) {
        self.played.complete_last(&self.qp);
        while let Some(completion) = self.cq.poll() {
            self.qp.complete(completion, &mut each).expect("as posted");
        }
    }
}

#[inline(never)]
fn post_inline(qp: &mut Qp<()>, wr: &SendWr<'_>, data: &[u8; 8]) -> bool {
    qp.post_send_inline(wr, data).is_ok()
}

struct Inline {
    still: Still<()>,
    posted: u64,
    ended: u64,
}

impl Inline {
    fn new() -> Self {
        Self { still: still(), posted: 0, ended: 0 }
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
fn post_write(qp: &mut Qp<Buf>, wr: &SendWr<'_>, buf: Buf) -> Option<Buf> {
    qp.post_send(wr, Some(buf)).err().and_then(|refused| refused.held)
}

/// As in an application: takes one completion, if there is one.
#[inline(never)]
fn poll_one(cq: &mut Cq, qp: &mut Qp<Buf>, bufs: &mut Vec<Buf>) -> bool {
    let Some(completion) = cq.poll() else { return false };
    qp.complete(completion, |wc| bufs.extend(wc.into_buffers())).is_ok()
}

struct Gather {
    still: Still<Buf>,
    bufs: Vec<Buf>,
    remote: RemoteAddr,
    runs: u64,
}

impl Gather {
    fn new() -> Self {
        let still = still();
        let mr = still.pd.get_dma_mr().and_then(|dma| dma.over(&still.memory)).expect("a key");
        let buf = |at: u64| mr.buf(at as usize * 64..at as usize * 64 + 64).expect("in range");
        let bufs = (0..RUN).map(buf).collect();
        let remote = RemoteAddr { addr: 0x1000, rkey: Rkey(0x1234) };
        Self { still, bufs, remote, runs: 0 }
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

impl Work for Gather {
    fn prepare(&mut self) {
        let bufs = &mut self.bufs;
        if bufs.is_empty() {
            self.still.finish(|wc| bufs.extend(wc.into_buffers()));
        }
    }

    fn run(&mut self) {
        self.post(SendFlags::empty());
        self.runs += 1;
    }

    fn verify(&mut self) {
        assert!(self.runs > 0 && self.bufs.is_empty(), "every buffer was taken");
        self.prepare();
        assert_eq!(self.bufs.len() as u64, RUN, "and came back");
    }
}

struct Poll(Gather);

impl Work for Poll {
    fn prepare(&mut self) {
        let first = self.0.still.qp.last_wqe_counter();
        self.0.post(SendFlags::SIGNALED);
        let Still { played, qp, .. } = &mut self.0.still;
        // One block each, behind the last of the run before; the very first starts at 0.
        let first = if self.0.runs == 0 { 0 } else { first.wrapping_add(1) };
        for at in 0..RUN {
            played.complete(qp, first.wrapping_add(at as u16));
        }
        self.0.runs += 1;
    }

    fn run(&mut self) {
        let Gather { still: Still { cq, qp, .. }, bufs, .. } = &mut self.0;
        while poll_one(cq, qp, bufs) {}
    }

    fn verify(&mut self) {
        assert_eq!(self.0.bufs.len() as u64, RUN, "every buffer came back");
    }
}

#[inline(never)]
fn post_fast_reg(
    qp: &mut Qp<()>,
    wr: &FastReg,
    mr: FastRegMr,
    list: PageList,
) -> Option<RegisteredMr> {
    qp.post_fast_reg(wr, mr, list).ok()
}

#[inline(never)]
fn post_local_inv(qp: &mut Qp<()>, mr: RegisteredMr) -> bool {
    qp.post_local_inv(0, SendFlags::empty(), mr).is_ok()
}

struct Register {
    still: Still<()>,
    free: Vec<(FastRegMr, PageList)>,
    bound: Vec<RegisteredMr>,
    lists: Vec<PageList>,
    mrs: Vec<FastRegMr>,
    posted: u64,
}

impl Register {
    fn new() -> Self {
        let still = still();
        let layout = ListLayout::Pages { log_page: 12 };
        let make = |_| {
            let mut list = still.device.alloc_page_list(layout, 8).expect("a list");
            let page = 0..4096;
            list.map(&still.memory, std::slice::from_ref(&page)).expect("one page");
            (still.pd.alloc_mr(layout, 8).expect("a key"), list)
        };
        let free = (0..RUN).map(make).collect();
        let (bound, lists, mrs) = (Vec::new(), Vec::new(), Vec::new());
        Self { still, free, bound, lists, mrs, posted: 0 }
    }

    fn register(&mut self) {
        let (access, flags) = (Access::LOCAL_WRITE | Access::REMOTE_WRITE, SendFlags::empty());
        let wr = FastReg { wr_id: 0, flags, start: 0, access, remote_invalidate: false };
        while let Some((mr, list)) = self.free.pop() {
            self.bound.extend(post_fast_reg(&mut self.still.qp, &wr, mr, list));
        }
    }

    fn end(&mut self) {
        while let Some(mr) = self.bound.pop() {
            self.posted += u64::from(post_local_inv(&mut self.still.qp, mr));
        }
    }

    fn finish(&mut self) {
        let (lists, mrs) = (&mut self.lists, &mut self.mrs);
        self.still.finish(|wc| match wc.returned {
            Returned::PageList(list) => lists.push(list),
            Returned::Mr(mr) => mrs.push(mr),
            _ => {}
        });
        while self.mrs.len().min(self.lists.len()) > 0 {
            self.free.extend(self.mrs.pop().zip(self.lists.pop()));
        }
    }
}

impl Work for Register {
    fn prepare(&mut self) {
        if self.free.is_empty() {
            self.end();
            self.finish();
        }
    }

    fn run(&mut self) {
        self.register();
    }

    fn verify(&mut self) {
        assert_eq!(self.bound.len() as u64, RUN, "every registration was posted");
    }
}

struct End(Register);

impl Work for End {
    fn prepare(&mut self) {
        if self.0.free.is_empty() {
            self.0.finish();
        }
        self.0.register();
        self.0.finish();
    }

    fn run(&mut self) {
        self.0.end();
    }

    fn verify(&mut self) {
        assert!(
            self.0.posted > 0 && self.0.posted.is_multiple_of(RUN),
            "every invalidate was posted"
        );
        self.0.finish();
        assert_eq!(self.0.free.len() as u64, RUN, "and every key came back");
    }
}
