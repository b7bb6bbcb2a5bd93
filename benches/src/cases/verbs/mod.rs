//! Posting and completing RDMA work requests on a queue pair whose device is only played.

mod keys;
mod send;

use std::sync::Arc;

use ferrocx_core::DeviceConfig;
use ferrocx_mempool::{PageSize, RegionConfig};
use ferrocx_model::NicConfig;
use ferrocx_model::played::{self, PlayedTx, Sender};
use ferrocx_verbs_lite::registrar::looped_back;
use ferrocx_verbs_lite::*;

use super::{Case, Work};
use keys::{Cycle, End, Register};
use send::{Gather, Inline, Poll};

/// Requests of one run.
const RUN: u64 = 32;

const fn case(name: &'static str, make: fn() -> Box<dyn Work>) -> Case {
    Case { name, elements: RUN, make }
}

/// Every case. `_32`: a loop of 32 calls, with one doorbell behind it where there is any.
pub(super) const CASES: [Case; 12] = [
    // SENDs of eight bytes inline.
    case("verbs_post_send_inline_8", || Box::new(Inline::new(Run::Single))),
    case("verbs_post_send_inline_8_32", || Box::new(Inline::new(Run::Whole))),
    // WRITEs of one buffer.
    case("verbs_post_send_1sge", || Box::new(Gather::new(Run::Single))),
    case("verbs_post_send_1sge_32", || Box::new(Gather::new(Run::Whole))),
    // The same with packets of a registered pool.
    case("verbs_post_send_mbuf_32", || Box::new(Gather::packets(Run::Whole))),
    // Completions of requests with a buffer, one of each; it is given back.
    case("verbs_poll_cq", || Box::new(Poll::new(Run::Single))),
    case("verbs_poll_cq_32", || Box::new(Poll::new(Run::Whole))),
    // One completion that ends 32 such requests.
    case("verbs_end_unsignaled_32", || Box::new(Poll::new(Run::Unsignaled))),
    // Registrations of one page, local invalidates.
    case("verbs_fast_reg_post", || Box::new(Register::new())),
    case("verbs_local_inv_post", || Box::new(End::new())),
    // A page put into a list and registered, a WRITE of eight bytes, the key ended, all of it
    // completed: with a doorbell and a completion for each such cycle, then for 32 of them.
    case("verbs_fast_reg_cycle", || Box::new(Cycle::new(Run::Single))),
    case("verbs_fast_reg_cycle_32", || Box::new(Cycle::new(Run::Whole))),
];

/// How the requests of a run go to the device and come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Run {
    /// Each by a call, with a doorbell or a completion of its own.
    Single,
    /// All in one loop, with one doorbell behind it, or with a completion of its own each.
    Whole,
    /// One completion ends all.
    Unsignaled,
}

/// A queue pair of a model that stands still.
struct Still<B: Buffers> {
    qp: Qp<B>,
    cq: Cq,
    played: PlayedTx,
    device: RdmaContext,
    pd: Pd,
    memory: Arc<Memory>,
}

fn still<B: Buffers>() -> Still<B> {
    let nic = NicConfig { roce: true, ..NicConfig::default() };
    let still = played::Still::new(nic).expect("a model");
    let settings = DeviceConfig { page: PageSize::Base4K, ..DeviceConfig::default() };
    let port =
        ferrocx_core::Device::open(still.transport(), &settings).expect("the model comes up");
    let device = RdmaContext::open(&port).expect("the model has RoCE");
    let pd = device.alloc_pd().expect("a domain");
    let (qp, cq) = looped_back(&device, &pd, 256).expect("a queue pair");
    let played = still.sender(Sender::Qp(qp.qpn().0));
    let region =
        RegionConfig { len_bytes: 64 << 10, page: PageSize::Base4K, ..RegionConfig::default() };
    let memory = Memory::alloc(&device, &region).expect("memory");
    Still { qp, cq, played, device, pd, memory }
}

impl<B: Buffers> Still<B> {
    /// Ends all that is posted.
    fn finish(&mut self, mut each: impl FnMut(Wc<B>)) {
        self.played.complete_last();
        while let Some(completion) = self.cq.poll() {
            self.qp.complete(completion, &mut each).expect("as posted");
        }
    }
}
