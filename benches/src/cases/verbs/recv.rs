//! Receives, and the completions of receives.

use std::marker::PhantomData;

use ferrocx_prm::cqe::{Cqe64, CqeOpcode};
use ferrocx_verbs_lite::*;

use super::{RUN, Run, Still, Work, made, usual};

/// Where receives are posted.
pub(super) trait Queue {
    const IS_SHARED: bool;
    fn post(still: &mut Still<Buf>, at: u64, buf: Buf) -> Result<(), Refused<Buf>>;
    fn post_list(
        still: &mut Still<Buf>,
        receives: &mut impl Iterator<Item = (u64, Buf)>,
    ) -> Result<u32, Refused<Buf>>;
    fn complete(
        still: &mut Still<Buf>,
        completion: Completion,
        each: impl FnMut(Wc<Buf>),
    ) -> Result<(), WrongCompletion>;
}

/// To the queue pair itself.
pub(super) struct Own;
/// To a shared queue.
pub(super) struct Shared;

impl Queue for Own {
    const IS_SHARED: bool = false;

    #[inline(always)]
    fn post(still: &mut Still<Buf>, at: u64, buf: Buf) -> Result<(), Refused<Buf>> {
        still.qp.post_recv(at, buf)
    }

    #[inline(always)]
    fn post_list(
        still: &mut Still<Buf>,
        receives: &mut impl Iterator<Item = (u64, Buf)>,
    ) -> Result<u32, Refused<Buf>> {
        still.qp.post_recv_list(receives)
    }

    #[inline(always)]
    fn complete(
        still: &mut Still<Buf>,
        completion: Completion,
        each: impl FnMut(Wc<Buf>),
    ) -> Result<(), WrongCompletion> {
        still.qp.complete(completion, each)
    }
}

impl Queue for Shared {
    const IS_SHARED: bool = true;

    #[inline(always)]
    fn post(still: &mut Still<Buf>, at: u64, buf: Buf) -> Result<(), Refused<Buf>> {
        match &mut still.srq {
            Some(srq) => srq.post_recv(at, buf),
            None => unreachable!("the queue pair was made with one"),
        }
    }

    #[inline(always)]
    fn post_list(
        still: &mut Still<Buf>,
        receives: &mut impl Iterator<Item = (u64, Buf)>,
    ) -> Result<u32, Refused<Buf>> {
        match &mut still.srq {
            Some(srq) => srq.post_recv_list(receives),
            None => unreachable!("the queue pair was made with one"),
        }
    }

    #[inline(always)]
    fn complete(
        still: &mut Still<Buf>,
        completion: Completion,
        each: impl FnMut(Wc<Buf>),
    ) -> Result<(), WrongCompletion> {
        match &mut still.srq {
            Some(srq) => still.qp.complete_shared(completion, srq, each),
            None => unreachable!("the queue pair was made with one"),
        }
    }
}

#[inline(never)]
fn post_one<Q: Queue>(still: &mut Still<Buf>, at: u64, buf: Buf) -> bool {
    Q::post(still, at, buf).is_ok()
}

#[inline(never)]
fn post_all<Q: Queue>(still: &mut Still<Buf>, bufs: &mut Vec<Buf>) -> u64 {
    let mut posted = 0;
    for at in 0..RUN {
        let Some(buf) = bufs.pop() else { break };
        posted += u64::from(Q::post(still, at, buf).is_ok());
    }
    posted
}

#[inline(never)]
fn post_list<Q: Queue>(still: &mut Still<Buf>, bufs: &mut Vec<Buf>) -> u64 {
    let mut receives = (0..RUN).map_while(|at| Some((at, bufs.pop()?)));
    Q::post_list(still, &mut receives).map_or(0, u64::from)
}

/// As in an application: takes one completion, if there is one.
#[inline(never)]
fn poll_one<Q: Queue>(still: &mut Still<Buf>, bufs: &mut Vec<Buf>) -> bool {
    let Some(completion) = still.cq.poll() else { return false };
    Q::complete(still, completion, |wc| bufs.extend(wc.into_buffers())).is_ok()
}

/// The same for all that there are.
#[inline(never)]
fn poll_all<Q: Queue>(still: &mut Still<Buf>, bufs: &mut Vec<Buf>) {
    while let Some(completion) = still.cq.poll() {
        if Q::complete(still, completion, |wc| bufs.extend(wc.into_buffers())).is_err() {
            break;
        }
    }
}

/// Receives of one buffer.
pub(super) struct Receive<Q> {
    still: Still<Buf>,
    by: Run,
    bufs: Vec<Buf>,
    posted: u64,
    runs: u64,
    /// Number of the next receive, as completions name it.
    next: u32,
    queue: PhantomData<Q>,
}

impl<Q: Queue> Receive<Q> {
    pub(super) fn new(by: Run) -> Self {
        let still = made::<Buf>(&usual(), Q::IS_SHARED);
        let bufs = still.pieces(64, 1);
        Self { still, by, bufs, posted: 0, runs: 0, next: 0, queue: PhantomData }
    }

    fn post(&mut self) {
        match self.by {
            Run::Whole => self.posted += post_all::<Q>(&mut self.still, &mut self.bufs),
            Run::Batch => self.posted += post_list::<Q>(&mut self.still, &mut self.bufs),
            _ => self.post_each(),
        }
    }

    fn post_each(&mut self) {
        for at in 0..RUN {
            let Some(buf) = self.bufs.pop() else { break };
            self.posted += u64::from(post_one::<Q>(&mut self.still, at, buf));
        }
    }

    /// Fills what was posted, as the device does.
    fn fill(&mut self) {
        let qpn = self.still.qp.qpn().0;
        for _ in 0..RUN {
            let cqe = Cqe64::zeroed()
                .with_sop_drop_qpn(qpn)
                .with_byte_cnt(64)
                .with_wqe_counter(self.next)
                .with_opcode(CqeOpcode::RESPONDER_SEND.0);
            self.still.played.complete_with(cqe);
            // A shared queue has 256 entries, which are taken again in the order of their ends.
            let mask = if Q::IS_SHARED { 0xff } else { 0xffff };
            self.next = (self.next + 1) & mask;
        }
    }
}

impl<Q: Queue> Work for Receive<Q> {
    fn prepare(&mut self) {
        if self.bufs.is_empty() {
            self.fill();
            poll_all::<Q>(&mut self.still, &mut self.bufs);
        }
    }

    fn run(&mut self) {
        self.post();
        self.runs += 1;
    }

    fn verify(&mut self) {
        assert_eq!((self.posted, self.bufs.len()), (self.runs * RUN, 0), "every one was posted");
        self.prepare();
        assert_eq!(self.bufs.len() as u64, RUN, "and came back");
    }
}

/// Completions of such receives.
pub(super) struct Received<Q>(Receive<Q>);

impl<Q: Queue> Received<Q> {
    pub(super) fn new(by: Run) -> Self {
        Self(Receive::new(by))
    }
}

impl<Q: Queue> Work for Received<Q> {
    fn prepare(&mut self) {
        self.0.post();
        self.0.fill();
    }

    fn run(&mut self) {
        let Receive { still, by, bufs, .. } = &mut self.0;
        match by {
            Run::Single => while poll_one::<Q>(still, bufs) {},
            _ => poll_all::<Q>(still, bufs),
        }
    }

    fn verify(&mut self) {
        assert_eq!(self.0.bufs.len() as u64, RUN, "every buffer came back");
    }
}

#[inline(never)]
fn poll_empty(cq: &mut Cq) -> bool {
    cq.poll().is_none()
}

/// Looks at a queue without completions.
pub(super) struct Empty {
    still: Still<()>,
    empty: u64,
    runs: u64,
}

impl Empty {
    pub(super) fn new() -> Self {
        Self { still: made(&usual(), false), empty: 0, runs: 0 }
    }
}

impl Work for Empty {
    fn run(&mut self) {
        (0..RUN).for_each(|_| self.empty += u64::from(poll_empty(&mut self.still.cq)));
        self.runs += 1;
    }

    fn verify(&mut self) {
        assert_eq!(self.empty, self.runs * RUN, "there was none");
    }
}
