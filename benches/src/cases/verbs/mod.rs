//! Posting and completing RDMA work requests on a queue pair whose device is only played.

mod keys;
mod recv;
mod send;

use std::sync::Arc;

use ferrocx_core::DeviceConfig;
use ferrocx_mempool::{PageSize, RegionConfig};
use ferrocx_model::NicConfig;
use ferrocx_model::played::{self, PlayedTx, Sender};
use ferrocx_verbs_lite::*;

use super::{Case, Work};
use keys::{Cycle, End, Register};
use recv::{Empty, Own, Receive, Received, Shared};
use send::*;

/// Requests of one run.
const RUN: u64 = 32;
/// Most that stands in a request.
const MOST: usize = QpConfig::MAX_INLINE_BYTES as usize;

const fn case(name: &'static str, make: fn() -> Box<dyn Work>) -> Case {
    Case { name, elements: RUN, make }
}

/// One by one, and a loop of 32 with one doorbell behind it where there is any.
macro_rules! both {
    ($name:literal, $make:path) => {
        &[
            case($name, || Box::new($make(Run::Single))),
            case(concat!($name, "_32"), || Box::new($make(Run::Whole))),
        ]
    };
}

/// Every case.
pub(super) const CASES: &[&[Case]] = &[
    // SENDs of bytes that stand in the request. Of eight, the length is known when the program is
    // compiled; of all others, when it runs.
    both!("verbs_post_send_inline_8", Inline::<8>::new),
    both!("verbs_post_send_inline_1", Inline::<1>::new),
    both!("verbs_post_send_inline_16", Inline::<16>::new),
    both!("verbs_post_send_inline_32", Inline::<32>::new),
    both!("verbs_post_send_inline_64", Inline::<64>::new),
    both!("verbs_post_send_inline_128", Inline::<128>::new),
    both!("verbs_post_send_inline_928", Inline::<MOST>::new),
    // WRITEs of one buffer, of one packet of a registered pool, and of lists of buffers. What a
    // request does is known when the program is compiled, as in programs.
    both!("verbs_post_send_1sge", Gather::<Buf, WRITE>::new),
    // A WRITE whose operation is known only when the program runs.
    &[case("verbs_post_opaque", || Box::new(Gather::<Buf, WRITE>::new(Run::Opaque)))],
    both!("verbs_post_send_mbuf", Gather::<_, WRITE>::packets),
    both!("verbs_post_send_2sge", Gather::<[Buf; 2], WRITE>::new),
    both!("verbs_post_send_3sge", Gather::<[Buf; 3], WRITE>::new),
    both!("verbs_post_send_4sge", Gather::<[Buf; 4], WRITE>::new),
    // The same of other requests with one buffer.
    both!("verbs_post_signaled", Gather::<Buf, SIGNALED>::new),
    both!("verbs_post_fenced", Gather::<Buf, FENCED>::new),
    both!("verbs_post_write_imm", Gather::<Buf, WRITE_IMM>::new),
    both!("verbs_post_read", Gather::<Buf, READ>::new),
    both!("verbs_post_send", Gather::<Buf, SEND>::new),
    both!("verbs_post_send_imm", Gather::<Buf, SEND_IMM>::new),
    both!("verbs_post_send_inv", Gather::<Buf, SEND_INV>::new),
    both!("verbs_post_datagram", Gather::<Buf, DATAGRAM>::new),
    both!("verbs_post_fetch_add", Gather::<Buf, FETCH_ADD>::new),
    both!("verbs_post_compare_swap", Gather::<Buf, COMPARE_SWAP>::new),
    // Receives of one buffer, into the queue pair's own queue and into a shared one.
    both!("verbs_post_recv", Receive::<Own>::new),
    both!("verbs_post_srq_recv", Receive::<Shared>::new),
    // Lists of them, of which the device is told once.
    &[
        case("verbs_post_recv_list_32", || Box::new(Receive::<Own>::new(Run::Batch))),
        case("verbs_post_srq_recv_list_32", || Box::new(Receive::<Shared>::new(Run::Batch))),
    ],
    // Completions of requests with a buffer, one of each; it is given back.
    both!("verbs_poll_cq", Poll::new),
    both!("verbs_poll_recv", Received::<Own>::new),
    both!("verbs_poll_srq_recv", Received::<Shared>::new),
    &[
        // The same of sends, told to the device once: by a batch, and one by one in place, which
        // drops the buffer.
        case("verbs_poll_batch_32", || Box::new(Poll::new(Run::Batch))),
        case("verbs_taking_32", || Box::new(Poll::new(Run::Taking))),
        // One completion that ends 32 such requests.
        case("verbs_end_unsignaled_32", || Box::new(Poll::new(Run::Unsignaled))),
        // There is none.
        case("verbs_poll_empty", || Box::new(Empty::new())),
        // Registrations of one page, local invalidates.
        case("verbs_fast_reg_post", || Box::new(Register::new())),
        case("verbs_local_inv_post", || Box::new(End::new())),
    ],
    // A page put into a list and registered, a WRITE of eight bytes, the key ended, all of it
    // completed: with a doorbell and a completion for each such cycle, then for 32 of them.
    both!("verbs_fast_reg_cycle", Cycle::new),
];

/// How the requests of a run go to the device and come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Run {
    /// Each by a call, with a doorbell or a completion of its own.
    Single,
    /// The same, by a call that is told what to do.
    Opaque,
    /// All in one loop, with one doorbell behind it, or with a completion of its own each.
    Whole,
    /// In a list; or each with a completion of its own, which are taken together.
    Batch,
    /// Each with a completion of its own, which are looked at where they stand.
    Taking,
    /// One completion ends all.
    Unsignaled,
}

/// A queue pair of a model that stands still.
struct Still<B: Buffers> {
    qp: Qp<B>,
    cq: Cq,
    srq: Option<Srq<B>>,
    played: PlayedTx,
    context: RdmaContext,
    pd: Pd,
    memory: Arc<Memory>,
}

/// How queue pairs are made, if nothing else is asked for.
fn usual() -> QpConfig {
    QpConfig {
        max_send_wr: 256,
        max_recv_wr: 256,
        max_inline_bytes: 16,
        fast_reg: true,
        ..QpConfig::default()
    }
}

fn still<B: Buffers>() -> Still<B> {
    made(&usual(), false)
}

/// A queue pair that is connected to itself, with receives of its own or of a shared queue.
fn made<B: Buffers>(config: &QpConfig, is_shared: bool) -> Still<B> {
    let nic = NicConfig { roce: true, ..NicConfig::default() };
    let still = played::Still::new(nic).expect("a model");
    let settings = DeviceConfig { page: PageSize::Base4K, ..DeviceConfig::default() };
    let device =
        ferrocx_core::Device::open(still.transport(), &settings).expect("the model comes up");
    let context = RdmaContext::open(&device).expect("the model has RoCE");
    let pd = context.alloc_pd().expect("a domain");
    let cq = context.create_cq(512).expect("a completion queue");
    let srq = SrqConfig { max_wr: 255, max_sge: 1 };
    let srq = is_shared.then(|| pd.create_srq(&srq).expect("a shared queue"));
    let queues = QpQueues { send_cq: &cq, recv_cq: &cq, srq: srq.as_ref() };
    let mut qp = pd.create_qp(queues, config).expect("a queue pair");
    qp.init(&InitAttr::default()).expect("INIT");
    let to = RtrAttr::new(path_to_itself(&context), qp.qpn(), Psn(0), Mtu::B256);
    qp.connect(&to).expect("RTR");
    qp.activate(&RtsAttr::new(Psn(0))).expect("RTS");
    let played = still.sender(Sender::Qp(qp.qpn().0));
    let region =
        RegionConfig { len_bytes: 64 << 10, page: PageSize::Base4K, ..RegionConfig::default() };
    let memory = Memory::alloc(&context, &region).expect("memory");
    Still { qp, cq, srq, played, context, pd, memory }
}

fn path_to_itself(context: &RdmaContext) -> Path {
    let own = context.gids().first().expect("an address").gid;
    Path::new(context.route(own).expect("a route"), context.device().mac())
}

fn pieces(mr: &Mr, len: usize, each: usize) -> Vec<Buf> {
    let starts = (0..RUN as usize * each).map(|at| at * len);
    starts.map(|start| mr.buf(start..start + len).expect("in range")).collect()
}

impl<B: Buffers> Still<B> {
    fn mr(&self) -> Mr {
        self.pd.get_dma_mr().and_then(|dma| dma.over(&self.memory)).expect("a key")
    }

    /// Pieces of so many bytes each for every request of a run, as many as one takes.
    fn pieces(&self, len: usize, each: usize) -> Vec<Buf> {
        pieces(&self.mr(), len, each)
    }

    /// Ends all that is posted.
    fn finish(&mut self, mut each: impl FnMut(Wc<B>)) {
        self.played.complete_last();
        while let Some(completion) = self.cq.poll() {
            self.qp.complete(completion, &mut each).expect("as posted");
        }
    }
}
