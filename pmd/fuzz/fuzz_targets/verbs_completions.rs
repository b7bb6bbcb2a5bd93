//! Any completions under a queue pair with sends, receives and keys in flight: no panic, nothing
//! completes twice, and all that requests held comes back or goes with the queue pair.
#![no_main]

use std::collections::HashSet;
use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use ferrocx_core::{Device, DeviceConfig};
use ferrocx_fuzz::word;
use ferrocx_mempool::{PageSize, RegionConfig};
use ferrocx_model::NicConfig;
use ferrocx_model::played::{PlayedTx, Sender, Still};
use ferrocx_prm::Layout;
use ferrocx_prm::cqe::{Cqe64, CqeOpcode, ErrCqe};
use ferrocx_verbs_lite::registrar::looped_back;
use ferrocx_verbs_lite::*;
use libfuzzer_sys::fuzz_target;

/// Requests in flight at most.
const WRS: u32 = 16;
/// Bytes of the memory of each sequence.
const BYTES: usize = 16 << 10;
const REMOTE: RemoteAddr = RemoteAddr { addr: 0x1000, rkey: Rkey(0x1234_5600) };
const LAYOUT: ListLayout = ListLayout::Pages { log_page: 12 };

fuzz_target!(|data: &[u8]| {
    let mut state = State::new();
    // Running out of input ends the sequence.
    let _ = state.sequence(&mut Unstructured::new(data));
    state.end();
});

thread_local! {
    /// One device for all sequences; each makes a queue pair of its own.
    static DEVICE: (Still, RdmaContext) = {
        let nic = NicConfig { roce: true, ..NicConfig::default() };
        let still = Still::new(nic).expect("a model");
        let config = DeviceConfig { page: PageSize::Base4K, ..DeviceConfig::default() };
        let device = Device::open(still.transport(), &config).expect("it comes up");
        let context = RdmaContext::open(&device).expect("it has RoCE");
        (still, context)
    };
}

struct State {
    pd: Pd,
    context: RdmaContext,
    qp: Qp<Buf>,
    cq: Cq,
    played: PlayedTx,
    memory: Arc<Memory>,
    mr: Mr,
    keys: Vec<FastRegMr>,
    lists: Vec<PageList>,
    bound: Vec<RegisteredMr>,
    /// Names of requests that have not completed.
    posted: HashSet<u64>,
    next: u64,
}

impl State {
    fn new() -> Self {
        let (still, context) = DEVICE.with(Clone::clone);
        let pd = context.alloc_pd().expect("a domain");
        let (qp, cq) = looped_back::<Buf>(&context, &pd, WRS).expect("a queue pair");
        let played = still.sender(Sender::Qp(qp.qpn().0));
        let region =
            RegionConfig { len_bytes: BYTES, page: PageSize::Base4K, ..RegionConfig::default() };
        let memory = Memory::alloc(&context, &region).expect("memory");
        let mr = pd.reg_mr(&memory, 0..BYTES, Access::LOCAL_WRITE).expect("a key");
        let keys = (0..4).map(|_| pd.alloc_mr(LAYOUT, 1).expect("a key")).collect();
        let list = |_| {
            let mut list = context.alloc_page_list(LAYOUT, 1).expect("a list");
            list.map(&memory, std::slice::from_ref(&(0..4096))).expect("one page");
            list
        };
        let lists = (0..4).map(list).collect();
        let (bound, posted, next) = (Vec::new(), HashSet::new(), 0);
        Self { pd, context, qp, cq, played, memory, mr, keys, lists, bound, posted, next }
    }

    fn name(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn sequence(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        while !u.is_empty() {
            match u.int_in_range(0..=10)? {
                0..=3 => self.post(u)?,
                4 => self.key(u)?,
                5 => drop(self.played.complete()),
                6 | 7 => {
                    let cqe = self.cqe(u)?;
                    self.played.complete_with(cqe);
                }
                8 => {
                    let bytes = u.arbitrary()?;
                    self.played.write_cqe(u.int_in_range(0..=2 * WRS)?, &bytes);
                }
                9 if u.ratio(1, 8)? => _ = self.qp.to_error(),
                _ => self.poll(u.int_in_range(1..=WRS)?),
            }
        }
        Ok(())
    }

    fn post(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let wr_id = self.name();
        let start = u.int_in_range(0..=BYTES - 64)?;
        let buf = self.mr.buf(start..start + u.int_in_range(1..=64)?).expect("inside");
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, u.arbitrary()?);
        let op = match u.int_in_range(0..=6)? {
            0 => SendOp::Send,
            1 => SendOp::SendImm(u.arbitrary()?),
            2 => SendOp::Write(REMOTE),
            3 => SendOp::Read(REMOTE),
            4 => SendOp::FetchAdd { remote: REMOTE, add: u.arbitrary()? },
            5 => {
                let wr = SendWr { wr_id, flags, op: SendOp::Send };
                if self.qp.post_send_inline(&wr, &[1, 2, 3]).is_ok() {
                    self.posted.insert(wr_id);
                }
                return Ok(());
            }
            _ => {
                if self.qp.post_recv(wr_id, buf).is_ok() {
                    self.posted.insert(wr_id);
                }
                return Ok(());
            }
        };
        if self.qp.post_send(&SendWr { wr_id, flags, op }, Some(buf)).is_ok() {
            self.posted.insert(wr_id);
        }
        Ok(())
    }

    /// Binds a key, or ends one.
    fn key(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let wr_id = self.name();
        let flags = if u.arbitrary()? { SendFlags::SIGNALED } else { SendFlags::empty() };
        if u.arbitrary()? {
            let Some(mr) = self.bound.pop() else { return Ok(()) };
            match self.qp.post_local_inv(wr_id, flags, mr) {
                Ok(()) => _ = self.posted.insert(wr_id),
                Err(refused) => self.bound.push(refused.held),
            }
            return Ok(());
        }
        let Some((mr, list)) = self.keys.pop().zip(self.lists.pop()) else { return Ok(()) };
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let wr = FastReg { wr_id, flags, start: 0, access, remote_invalidate: false };
        if let Ok(bound) = self.qp.post_fast_reg(&wr, mr, list) {
            self.posted.insert(wr_id);
            self.bound.push(bound);
        }
        Ok(())
    }

    /// A completion that may be right.
    fn cqe(&self, u: &mut Unstructured<'_>) -> Result<Cqe64> {
        let qpn = if u.ratio(7, 8)? { self.qp.qpn().0 } else { word(u)? & 0xff_ffff };
        let any = word(u)? & 0xf;
        let opcodes = [CqeOpcode::REQUESTER, CqeOpcode::RESPONDER_SEND].map(|known| known.0);
        let opcodes = [opcodes[0], opcodes[1], CqeOpcode::REQUESTER_ERROR.0, any];
        let opcode = *u.choose(&opcodes)?;
        let cqe = Cqe64(u.arbitrary()?)
            .with_opcode(opcode)
            .with_format(0)
            .with_sop_drop_qpn(qpn)
            .with_wqe_counter(u.int_in_range(0..=2 * WRS)?)
            .with_byte_cnt(u.int_in_range(0..=128)?);
        if u.ratio(1, 8)? {
            let failed = ErrCqe::read_from(&cqe.0).map(|cqe| cqe.with_qpn(qpn));
            return Ok(failed.map_or(cqe, |failed| Cqe64(failed.0)));
        }
        Ok(cqe)
    }

    fn poll(&mut self, most: u32) {
        let Self { qp, cq, posted, keys, lists, .. } = self;
        for _ in 0..most {
            let Some(completion) = cq.poll() else { break };
            let _ = qp.complete(completion, |wc| {
                assert!(posted.remove(&wc.wr_id), "request {} completed twice", wc.wr_id);
                match wc.returned {
                    Returned::PageList(list) => lists.push(list),
                    Returned::Mr(mr) => keys.push(mr),
                    _ => {}
                }
            });
        }
        let capacity = (WRS * 2 + 64) as usize;
        assert!(posted.len() <= capacity, "{} in flight", posted.len());
    }

    fn end(mut self) {
        self.poll(2 * WRS);
        let Self { qp, cq, keys, lists, bound, mr, memory, pd, context, .. } = self;
        drop((qp, keys, lists, bound, mr));
        drop((cq, pd));
        while context.device().poll_event().is_some() {}
        assert_eq!(Arc::strong_count(&memory), 1, "something still holds the memory");
    }
}
