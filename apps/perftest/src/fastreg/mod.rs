//! Registration pipelines: how many keys a second are bound and ended, and whether they work.
//!
//! A [`registrar`](ferrocx_verbs_lite::registrar) worker on each thread binds keys to pieces of
//! memory and ends them; this end feeds them. When told to verify, the other end is given each
//! key, writes a message of its own through it, and says so; every byte is checked before the key
//! is ended.
//!
//! A "message" of the report is one such cycle: bound, used if verified, ended.

mod verify;

use std::io::{Read, Write};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use ferrocx_app_common::wait::Wait;
use ferrocx_core::lcore::{StopFlag, WaitStrategy};
use ferrocx_verbs_lite::registrar::{
    Answer, Client, Drained, KeyId, Lane, RegisteredKey, RegistrarConfig, Registration, registrar,
};
use ferrocx_verbs_lite::{Access, ListLayout, Memory};
use hdrhistogram::Histogram;

use crate::cm::CmPeer;
use crate::connector::greet;
use crate::end::End;
use crate::exchange::{Done, Lines, Offer, Ready, Role, Verdict};
use crate::measure::Measure;
use crate::pattern;
use crate::placement::{Placement, Thread};
use crate::plan::Plan;
use crate::report::{Row, histogram};

use verify::VerifyQp;
pub use verify::serve;

/// Pages of the lists.
const LOG_PAGE: u8 = 12;
const PAGE_BYTES: usize = 1 << LOG_PAGE;
/// What peers may do through the keys.
const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

/// A piece of memory, and the cycle that it is in.
#[derive(Debug)]
struct Piece {
    pipeline: usize,
    range: Range<usize>,
    /// Number of the cycle.
    seq: u64,
    begun: Instant,
    /// While the other end writes through it.
    key: Option<KeyId>,
}

/// The pipelines of a round, and what goes through them.
struct Pipelines {
    plan: Plan,
    clients: Vec<Client>,
    workers: Vec<Thread<Drained>>,
    stop: StopFlag,
    memory: Arc<Memory>,
    pieces: Vec<Piece>,
    /// Pieces that are in no cycle.
    free: Vec<usize>,
    verify: Option<VerifyQp>,
    scratch: Vec<u8>,
    begun: u64,
    ended: u64,
    checked: u64,
    times: Histogram<u64>,
}

/// Measures without another end: nobody uses the keys.
///
/// # Errors
///
/// One sentence about the first thing that went wrong.
pub fn alone(end: &End, placement: &Placement, measure: &Measure) -> Result<Vec<Row>> {
    let round = |&size: &usize| {
        let plan = Plan::new(measure, size, placement);
        Pipelines::new(end, placement, &plan, None)?.run()
    };
    measure.sizes.iter().map(round).collect()
}

/// Measures with another end, which writes through every key.
///
/// # Errors
///
/// One sentence about the first thing that went wrong, here or there.
pub fn client<S: Read + Write>(
    end: &End,
    placement: &Placement,
    measure: &Measure,
    stream: S,
    cm: Option<CmPeer>,
) -> Result<Vec<Row>> {
    let mut lines = Lines::new(stream);
    let (mut connector, _) = greet(end, placement, measure, &mut lines, cm, Role::Client)?;
    let mut rows = Vec::new();
    for &size in &measure.sizes {
        let plan = Plan::new(measure, size, placement);
        let verify = VerifyQp::new(end, &plan)?;
        lines.say(&Offer { size, endpoints: vec![verify.endpoint()?] })?;
        let peer = lines.hear::<Offer>()?;
        let peer = peer.endpoints.first().context("the other end has no queue pair")?;
        let verify = verify.connect(&plan, &mut connector, peer)?;
        lines.say(&Ready {})?;
        lines.hear::<Ready>()?;
        let row = Pipelines::new(end, placement, &plan, Some(verify))?.run()?;
        lines.say(&Done { messages: vec![row.messages] })?;
        let verdict: Verdict = lines.hear().context("the other end failed")?;
        if let Some(error) = verdict.error {
            bail!("the other end: {error}");
        }
        rows.push(row);
    }
    Ok(rows)
}

impl Pipelines {
    fn new(
        end: &End,
        placement: &Placement,
        plan: &Plan,
        verify: Option<VerifyQp>,
    ) -> Result<Self> {
        let measure = &plan.measure;
        let (depth, pipelines) = (plan.slots, measure.workers);
        let stride = plan.size.next_multiple_of(PAGE_BYTES);
        let (memory, _) = end.memory(depth * pipelines * stride, Access::empty())?;
        let config = RegistrarConfig {
            keys: depth as u32,
            layout: ListLayout::Pages { log_page: LOG_PAGE },
            max_page_list_len: (stride / PAGE_BYTES) as u32,
            ring_entries: depth,
        };
        let stop = StopFlag::new();
        let (mut clients, mut workers) = (Vec::new(), Vec::new());
        for pipeline in 0..pipelines {
            // A registration and an invalidation of each key, and a turn's chain.
            let lane = Lane::looped_back(&end.context, &end.pd, 2 * depth as u32 + 8)?;
            let memories = vec![Arc::clone(&memory)];
            let (client, worker) = registrar(&end.context, &end.pd, lane, memories, &config)?;
            let (flag, wait) = (stop.clone(), strategy(placement.wait));
            clients.push(client);
            workers.push(placement.start(pipeline, move || worker.run(&flag, wait))?);
        }
        let piece = |at: usize| Piece {
            pipeline: at % pipelines,
            range: at * stride..at * stride + plan.size,
            seq: 0,
            begun: Instant::now(),
            key: None,
        };
        let pieces: Vec<Piece> = (0..depth * pipelines).map(piece).collect();
        Ok(Self {
            plan: plan.clone(),
            clients,
            workers,
            stop,
            memory,
            free: (0..pieces.len()).rev().collect(),
            pieces,
            verify,
            scratch: vec![0; plan.size],
            begun: 0,
            ended: 0,
            checked: 0,
            times: histogram()?,
        })
    }

    /// A round; then the pipelines are drained.
    fn run(mut self) -> Result<Row> {
        let start = Instant::now();
        let turned = self.turn_until_over();
        let seconds = start.elapsed().as_secs_f64();
        self.stop.stop();
        // A worker waits for answers to be taken, unless nobody can any more.
        self.clients.clear();
        let mut doorbells = 0;
        for worker in std::mem::take(&mut self.workers) {
            let drained = worker.join()?;
            doorbells += drained.qp.doorbells();
            if turned.is_ok() && !drained.bound.is_empty() {
                bail!("{} keys were left bound", drained.bound.len());
            }
        }
        turned?;
        Ok(Row {
            size: self.plan.size,
            on_the_way: self.plan.slots,
            messages: self.ended,
            seconds,
            doorbells,
            checked: self.checked,
            times: self.times,
        })
    }

    fn turn_until_over(&mut self) -> Result<()> {
        let deadline = self.plan.deadline();
        let mut last = Instant::now();
        loop {
            let is_late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            let is_over = self.plan.is_over_in_all(self.begun, is_late);
            if is_over && self.ended == self.begun {
                return Ok(());
            }
            let mut busy = !is_over && self.begin()?;
            busy |= self.take_answers()?;
            busy |= self.take_verified()?;
            if busy {
                last = Instant::now();
            } else {
                self.plan.idle(last)?;
            }
        }
    }

    /// Asks for keys over every piece that is free.
    fn begin(&mut self) -> Result<bool> {
        let mut busy = false;
        while !self.plan.is_over_in_all(self.begun, false) {
            let Some(at) = self.free.pop() else { break };
            let piece = &mut self.pieces[at];
            (piece.seq, piece.begun) = (self.begun, Instant::now());
            let pieces = std::iter::once(piece.range.clone()).collect();
            let client = &mut self.clients[piece.pipeline];
            let (tag, access) = (at as u64, ACCESS);
            let wanted = Registration { tag, memory: 0, pieces, access, remote_invalidate: false };
            // Its ring has room for all pieces of the pipeline.
            if client.register(wanted).is_err() {
                bail!("the ring of pipeline {} is full", piece.pipeline);
            }
            self.begun += 1;
            busy = true;
        }
        Ok(busy)
    }

    fn take_answers(&mut self) -> Result<bool> {
        let mut busy = false;
        for pipeline in 0..self.clients.len() {
            while let Some(answer) = self.clients[pipeline].poll() {
                busy = true;
                match answer {
                    Answer::Key { tag, key } => self.bound(tag as usize, key)?,
                    Answer::Ended { tag } => self.ended(tag as usize),
                    Answer::Read { tag } => bail!("registration {tag} became a READ"),
                    Answer::Failed { cause, .. } => bail!("a registration failed: {cause:?}"),
                }
            }
        }
        Ok(busy)
    }

    /// A key is bound: the other end gets it, or it is ended at once.
    fn bound(&mut self, at: usize, key: RegisteredKey) -> Result<()> {
        let piece = self.pieces.get_mut(at).context("an answer to no request")?;
        match &mut self.verify {
            Some(verify) => {
                verify.request(at, piece.seq, key.remote, key.len_bytes)?;
                piece.key = Some(key.id);
                Ok(())
            }
            None => self.end(at, key.id),
        }
    }

    fn end(&mut self, at: usize, id: KeyId) -> Result<()> {
        let pipeline = self.pieces[at].pipeline;
        let given = self.clients[pipeline].invalidate(id);
        given.ok().with_context(|| format!("the ring of pipeline {pipeline} is full"))
    }

    fn ended(&mut self, at: usize) {
        let ns = u64::try_from(self.pieces[at].begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.times.saturating_record(ns);
        self.ended += 1;
        self.free.push(at);
    }

    /// Takes what the other end says it has written: every byte must be there.
    fn take_verified(&mut self) -> Result<bool> {
        let mut busy = false;
        while let Some(at) = self.verify.as_mut().map(VerifyQp::poll).transpose()?.flatten() {
            busy = true;
            let piece = self.pieces.get_mut(at).context("an answer to no request")?;
            let id = piece.key.take().context("a request was answered twice")?;
            self.memory.region().copy_out(piece.range.start, &mut self.scratch)?;
            pattern::check(&self.scratch, piece.seq)?;
            self.checked += 1;
            self.end(at, id)?;
        }
        Ok(busy)
    }
}

fn strategy(wait: Wait) -> WaitStrategy {
    match wait {
        Wait::Busy => WaitStrategy::Busy,
        Wait::Spin => WaitStrategy::SpinHint,
        Wait::Yield => WaitStrategy::Yield,
        Wait::Sleep(pause) => WaitStrategy::Sleep(pause),
        Wait::Interrupt(_) => WaitStrategy::Sleep(Wait::SLEEP),
    }
}
