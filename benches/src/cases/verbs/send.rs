//! Sends, and the completions of sends.

use arrayvec::ArrayVec;
use ferrocx_mempool::{Mbuf, PageSize, Pool, PoolConfig, RegionConfig};
use ferrocx_verbs_lite::*;

use super::{MOST, RUN, Run, Still, Work, made, path_to_itself, pieces, still, usual};

/// Operations. A loop of one has it as a constant, as in a program.
pub(super) const SEND: u8 = 0;
pub(super) const SEND_IMM: u8 = 1;
pub(super) const SEND_INV: u8 = 2;
pub(super) const WRITE: u8 = 3;
pub(super) const WRITE_IMM: u8 = 4;
pub(super) const READ: u8 = 5;
pub(super) const COMPARE_SWAP: u8 = 6;
pub(super) const FETCH_ADD: u8 = 7;
pub(super) const DATAGRAM: u8 = 8;
/// WRITEs with a flag.
pub(super) const SIGNALED: u8 = 9;
pub(super) const FENCED: u8 = 10;

/// What requests name.
struct Target {
    remote: RemoteAddr,
    peer: AddressHandle,
}

/// A request.
#[inline(always)]
fn request<const OP: u8>(wr_id: u64, target: &Target, flags: SendFlags) -> SendWr<'_> {
    let remote = target.remote;
    let op = match OP {
        SEND_IMM => SendOp::SendImm(7),
        SEND_INV => SendOp::SendInv(remote.rkey),
        WRITE | SIGNALED | FENCED => SendOp::Write(remote),
        WRITE_IMM => SendOp::WriteImm(remote, 7),
        READ => SendOp::Read(remote),
        COMPARE_SWAP => SendOp::CompareSwap { remote, compare: wr_id, swap: 7 },
        FETCH_ADD => SendOp::FetchAdd { remote, add: wr_id },
        DATAGRAM => SendOp::Datagram { to: &target.peer, imm: None },
        _ => SendOp::Send,
    };
    let own = match OP {
        SIGNALED => SendFlags::SIGNALED,
        FENCED => SendFlags::FENCE,
        _ => SendFlags::empty(),
    };
    SendWr { wr_id, flags: flags | own, op }
}

#[inline(never)]
fn post_eight(qp: &mut Qp<()>, at: u64) -> bool {
    qp.post_send_inline(&SendWr::unsignaled(at, SendOp::Send), &at.to_ne_bytes()).is_ok()
}

#[inline(never)]
fn post_inline(qp: &mut Qp<()>, at: u64, data: &[u8]) -> bool {
    qp.post_send_inline(&SendWr::unsignaled(at, SendOp::Send), data).is_ok()
}

#[inline(never)]
fn post_eight_run(qp: &mut Qp<()>) -> u64 {
    let mut posted = 0;
    for at in 0..RUN {
        let wr = SendWr::unsignaled(at, SendOp::Send).with(SendFlags::MORE);
        posted += u64::from(qp.post_send_inline(&wr, &at.to_ne_bytes()).is_ok());
    }
    qp.ring_doorbell();
    posted
}

#[inline(never)]
fn post_inline_run(qp: &mut Qp<()>, data: &[u8]) -> u64 {
    let mut posted = 0;
    for at in 0..RUN {
        let wr = SendWr::unsignaled(at, SendOp::Send).with(SendFlags::MORE);
        posted += u64::from(qp.post_send_inline(&wr, data).is_ok());
    }
    qp.ring_doorbell();
    posted
}

/// SENDs of bytes that stand in the request.
pub(super) struct Inline<const LEN: usize> {
    still: Still<()>,
    by: Run,
    data: [u8; MOST],
    posted: u64,
    ended: u64,
}

impl<const LEN: usize> Inline<LEN> {
    pub(super) fn new(by: Run) -> Self {
        let config = QpConfig { max_inline_bytes: LEN.max(16) as u32, ..usual() };
        Self { still: made(&config, false), by, data: [7; MOST], posted: 0, ended: 0 }
    }
}

impl<const LEN: usize> Work for Inline<LEN> {
    fn prepare(&mut self) {
        if self.posted > self.ended {
            let ended = &mut self.ended;
            self.still.finish(|_| *ended += 1);
        }
    }

    fn run(&mut self) {
        let (qp, data) = (&mut self.still.qp, &self.data[..LEN]);
        self.posted += match self.by {
            Run::Whole if LEN == 8 => post_eight_run(qp),
            Run::Whole => post_inline_run(qp, data),
            _ => {
                let mut posted = 0;
                for at in 0..RUN {
                    posted += u64::from(match LEN {
                        8 => post_eight(qp, at),
                        _ => post_inline(qp, at, data),
                    });
                }
                posted
            }
        };
    }

    fn verify(&mut self) {
        self.prepare();
        assert_eq!((self.posted % RUN, self.posted), (0, self.ended), "every request ended");
    }
}

/// The operation is a constant, as in a program.
#[inline(never)]
fn post_one<B: Buffers, const OP: u8>(
    qp: &mut Qp<B>,
    at: u64,
    target: &Target,
    buf: B,
) -> Option<B> {
    let wr = request::<OP>(at, target, SendFlags::empty());
    qp.post_send(&wr, Some(buf)).err().and_then(|refused| refused.held)
}

/// The operation is known only when the program runs.
#[inline(never)]
fn post_opaque<B: Buffers>(qp: &mut Qp<B>, wr: &SendWr<'_>, buf: B) -> Option<B> {
    qp.post_send(wr, Some(buf)).err().and_then(|refused| refused.held)
}

#[inline(never)]
fn post_all<B: Buffers, const OP: u8>(qp: &mut Qp<B>, target: &Target, bufs: &mut Vec<B>) {
    for at in 0..RUN {
        let Some(buf) = bufs.pop() else { break };
        let wr = request::<OP>(at, target, SendFlags::MORE);
        if let Err(refused) = qp.post_send(&wr, Some(buf)) {
            bufs.extend(refused.held);
        }
    }
    qp.ring_doorbell();
}

/// What requests take along: one buffer, or a list of them.
pub(super) trait List: Buffers + Sized {
    /// Buffers of it.
    const COUNT: usize;
    fn of(buffers: &mut Vec<Buf>) -> Option<Self>;
}

impl List for Buf {
    const COUNT: usize = 1;

    fn of(buffers: &mut Vec<Buf>) -> Option<Self> {
        buffers.pop()
    }
}

impl<const N: usize> List for [Buf; N] {
    const COUNT: usize = N;

    fn of(buffers: &mut Vec<Buf>) -> Option<Self> {
        let rest = buffers.len().checked_sub(N)?;
        buffers.drain(rest..).collect::<ArrayVec<_, N>>().into_inner().ok()
    }
}

/// Requests with buffers.
pub(super) struct Gather<B: Buffers, const OP: u8> {
    still: Still<B>,
    by: Run,
    bufs: Vec<B>,
    target: Target,
    runs: u64,
}

impl<const OP: u8> Gather<Mbuf, OP> {
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

impl<B: List, const OP: u8> Gather<B, OP> {
    pub(super) fn new(by: Run) -> Self {
        let is_datagram = OP == DATAGRAM;
        let still = made(
            &QpConfig {
                qp_type: if is_datagram { QpType::Ud } else { QpType::Rc },
                fast_reg: !is_datagram,
                max_send_sge: B::COUNT as u32,
                ..usual()
            },
            false,
        );
        let bytes = if matches!(OP, COMPARE_SWAP | FETCH_ADD) { 8 } else { 64 };
        let mut pieces = still.pieces(bytes, B::COUNT);
        let lists = std::iter::from_fn(|| B::of(&mut pieces)).collect();
        Self::of(still, by, lists)
    }
}

impl<B: Buffers, const OP: u8> Gather<B, OP> {
    fn of(still: Still<B>, by: Run, bufs: Vec<B>) -> Self {
        let path = path_to_itself(&still.context);
        let target = Target {
            remote: RemoteAddr { addr: 0x1000, rkey: Rkey(0x1234) },
            peer: AddressHandle::new(&path, still.qp.qpn(), 0x1111_1111),
        };
        Self { still, by, bufs, target, runs: 0 }
    }

    fn post(&mut self) {
        for at in 0..RUN {
            let Some(buf) = self.bufs.pop() else { break };
            let refused = post_one::<B, OP>(&mut self.still.qp, at, &self.target, buf);
            self.bufs.extend(refused);
        }
    }

    fn post_opaque(&mut self, flags: SendFlags) {
        for at in 0..RUN {
            let Some(buf) = self.bufs.pop() else { break };
            let wr = request::<OP>(at, &self.target, flags);
            self.bufs.extend(post_opaque(&mut self.still.qp, &wr, buf));
        }
    }
}

impl<B: Buffers, const OP: u8> Work for Gather<B, OP> {
    fn prepare(&mut self) {
        let bufs = &mut self.bufs;
        if bufs.is_empty() {
            self.still.finish(|wc| bufs.extend(wc.into_buffers()));
        }
    }

    fn run(&mut self) {
        match self.by {
            Run::Whole => post_all::<B, OP>(&mut self.still.qp, &self.target, &mut self.bufs),
            Run::Opaque => self.post_opaque(SendFlags::empty()),
            _ => self.post(),
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

/// The same, with one word to the device.
#[inline(never)]
fn poll_batch(cq: &mut Cq, qp: &mut Qp<Buf>, bufs: &mut Vec<Buf>) {
    let mut batch = ArrayVec::<_, { RUN as usize }>::new();
    cq.poll_batch(&mut batch);
    for completion in batch {
        if qp.complete(completion, |wc| bufs.extend(wc.into_buffers())).is_err() {
            break;
        }
    }
}

/// The same, with the completions where they stand; gives the sum of the requests' names.
#[inline(never)]
fn take_all(cq: &mut Cq, qp: &mut Qp<Buf>) -> u64 {
    let (mut names, mut taking) = (0, cq.taking());
    while let Some(entry) = taking.next() {
        match qp.complete_one(entry) {
            Ok(sent) => names += sent.wr_id,
            // The first of a queue pair's life is looked at.
            Err(entry) => {
                let Some(rest) = qp.complete_sent(entry, |sent| names += sent.wr_id) else {
                    continue;
                };
                if qp.complete_signaled(rest, |wc| names += wc.wr_id).is_err() {
                    break;
                }
            }
        }
    }
    names
}

/// Completions of WRITEs of one buffer.
pub(super) struct Poll {
    of: Gather<Buf, WRITE>,
    /// What buffers are cut from.
    mr: Mr,
    /// Sum of the names that came back.
    names: u64,
}

impl Poll {
    pub(super) fn new(by: Run) -> Self {
        let of = Gather::new(by);
        Self { mr: of.still.mr(), of, names: 0 }
    }
}

impl Work for Poll {
    fn prepare(&mut self) {
        let of = &mut self.of;
        if of.by == Run::Unsignaled {
            of.post_opaque(SendFlags::empty());
            return of.still.played.complete_last();
        }
        if of.by == Run::Taking {
            of.bufs = pieces(&self.mr, 64, 1);
        }
        of.post_opaque(SendFlags::SIGNALED);
        let played = &mut of.still.played;
        for request in played.posted() {
            played.complete_index(request.wqe_index);
        }
        of.runs += 1;
    }

    fn run(&mut self) {
        let Gather { still: Still { cq, qp, .. }, by, bufs, .. } = &mut self.of;
        match by {
            Run::Single | Run::Opaque => while poll_one(cq, qp, bufs) {},
            Run::Whole | Run::Unsignaled => poll_all(cq, qp, bufs),
            Run::Batch => poll_batch(cq, qp, bufs),
            Run::Taking => self.names += take_all(cq, qp),
        }
    }

    fn verify(&mut self) {
        if self.of.by == Run::Taking {
            let each = RUN * (RUN - 1) / 2;
            assert_eq!(self.names, self.of.runs * each, "every request ended once");
            assert_eq!(self.of.still.qp.free_wr(), usual().max_send_wr, "none is left");
            return;
        }
        assert_eq!(self.of.bufs.len() as u64, RUN, "every buffer came back");
    }
}
