//! Fast-register keys: bound, used and ended.

use std::sync::Arc;

use ferrocx_verbs_lite::*;

use super::{RUN, Run, Still, Work, still};

/// The page that keys are bound to.
const PAGE: std::ops::Range<usize> = 0..4096;

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

/// Keys and lists that nothing holds.
#[derive(Default)]
struct Free {
    pairs: Vec<(FastRegMr, PageList)>,
    lists: Vec<PageList>,
}

impl Free {
    /// Takes back what an ended request held: the list of a registration, later its key.
    #[inline]
    fn take(&mut self, wc: Wc<()>) {
        match wc.returned {
            Returned::PageList(list) => self.lists.push(list),
            Returned::Mr(mr) => self.pairs.extend(self.lists.pop().map(|list| (mr, list))),
            _ => {}
        }
    }
}

fn keys() -> (Still<()>, Free) {
    let still = still();
    let layout = ListLayout::Pages { log_page: 12 };
    let make = |_| {
        let mut list = still.context.alloc_page_list(layout, 8).expect("a list");
        list.map(&still.memory, std::slice::from_ref(&PAGE)).expect("one page");
        (still.pd.alloc_mr(layout, 8).expect("a key"), list)
    };
    let pairs = (0..RUN).map(make).collect();
    (still, Free { pairs, lists: Vec::new() })
}

fn fast_reg(flags: SendFlags) -> FastReg {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    FastReg { wr_id: 0, flags, start: 0, access, remote_invalidate: false }
}

/// Registrations of one page, a doorbell each.
pub(super) struct Register {
    still: Still<()>,
    free: Free,
    bound: Vec<RegisteredMr>,
    posted: u64,
}

impl Register {
    pub(super) fn new() -> Self {
        let (still, free) = keys();
        Self { still, free, bound: Vec::new(), posted: 0 }
    }

    fn register(&mut self) {
        let wr = fast_reg(SendFlags::empty());
        while let Some((mr, list)) = self.free.pairs.pop() {
            self.bound.extend(post_fast_reg(&mut self.still.qp, &wr, mr, list));
        }
    }

    fn end(&mut self) {
        while let Some(mr) = self.bound.pop() {
            self.posted += u64::from(post_local_inv(&mut self.still.qp, mr));
        }
    }

    fn finish(&mut self) {
        let free = &mut self.free;
        self.still.finish(|wc| free.take(wc));
    }
}

impl Work for Register {
    fn prepare(&mut self) {
        if self.free.pairs.is_empty() {
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

/// Local invalidates, a doorbell each.
pub(super) struct End(Register);

impl End {
    pub(super) fn new() -> Self {
        Self(Register::new())
    }
}

impl Work for End {
    fn prepare(&mut self) {
        if self.0.free.pairs.is_empty() {
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
        assert_eq!(self.0.free.pairs.len() as u64, RUN, "and every key came back");
    }
}

/// Blocks of a registration of one page, of a WRITE of eight bytes, and of the invalidate behind
/// them: those before the invalidate, and all.
const BEFORE_END: u16 = 3 + 1;
const CYCLE: u16 = BEFORE_END + 2;

/// Posts what a key goes through; the peer is told the key. `last` are the flags of the end.
#[inline(never)]
fn post_cycle(
    qp: &mut Qp<()>,
    memory: &Arc<Memory>,
    (mr, mut list): (FastRegMr, PageList),
    last: SendFlags,
) -> bool {
    if list.map(memory, std::slice::from_ref(&PAGE)).is_err() {
        return false;
    }
    let Ok(mr) = qp.post_fast_reg(&fast_reg(SendFlags::MORE), mr, list) else { return false };
    let to = RemoteAddr { addr: 0x1000, rkey: Rkey(0x1234) };
    let key = u64::from(mr.rkey().0).to_be_bytes();
    let write = SendWr::unsignaled(1, SendOp::Write(to)).with(SendFlags::MORE);
    qp.post_send_inline(&write, &key).is_ok() && qp.post_local_inv(2, last, mr).is_ok()
}

/// Takes one completion, and what it ends.
#[inline(never)]
fn poll_cycle(cq: &mut Cq, qp: &mut Qp<()>, free: &mut Free) -> bool {
    let Some(completion) = cq.poll() else { return false };
    qp.complete(completion, |wc| free.take(wc)).is_ok()
}

/// Whole cycles of a key.
pub(super) struct Cycle {
    still: Still<()>,
    free: Free,
    by: Run,
    /// First block of the next cycle.
    next: u16,
    posted: u64,
    /// Whether each completion was right.
    polled: bool,
}

impl Cycle {
    pub(super) fn new(by: Run) -> Self {
        let (still, free) = keys();
        Self { still, free, by, next: 0, posted: 0, polled: true }
    }
}

impl Work for Cycle {
    fn prepare(&mut self) {
        let Self { still: Still { played, .. }, by, next, .. } = self;
        for at in 1..=RUN {
            if *by == Run::Single || at == RUN {
                played.complete_index(next.wrapping_add(BEFORE_END));
            }
            *next = next.wrapping_add(CYCLE);
        }
    }

    fn run(&mut self) {
        let Self { still: Still { cq, qp, memory, .. }, free, by, posted, polled, .. } = self;
        if *by == Run::Single {
            for _ in 0..RUN {
                let Some(pair) = free.pairs.pop() else { break };
                *posted += u64::from(post_cycle(qp, memory, pair, SendFlags::SIGNALED));
                *polled &= poll_cycle(cq, qp, free);
            }
            return;
        }
        while let Some(pair) = free.pairs.pop() {
            *posted += u64::from(post_cycle(qp, memory, pair, SendFlags::MORE));
        }
        qp.ring_doorbell_signaled();
        *polled &= poll_cycle(cq, qp, free);
    }

    fn verify(&mut self) {
        assert!(self.posted > 0 && self.posted.is_multiple_of(RUN), "every cycle was posted");
        assert!(self.polled, "every completion was right");
        assert_eq!(self.free.pairs.len() as u64, RUN, "and every key and list came back");
    }
}
