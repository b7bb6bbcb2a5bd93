//! The target on a port: queues of hosts as queue pairs, commands as messages, data by READ and
//! WRITE.
//!
//! A [`Server`] has all of it on one core: [`Server::poll`] takes what has ended, carries commands
//! out, and rings each doorbell once. On the way of a command to RAM it allocates nothing, takes no
//! lock and makes no system call.
//!
//! | command | posted |
//! |---|---|
//! | read | WRITE from the namespace's memory, SEND of the answer behind it |
//! | write | READ into the namespace's memory; when that has ended, SEND |
//! | write in the capsule, or without data | SEND |
//!
//! The SEND ends the host's key if the command asked for it. A receive is posted again before its
//! command is answered, and a queue has one for each entry, so the host always finds one. Where the
//! send queue is full, the host serves no more READs, or no buffer is free, commands wait in order.

mod accept;
mod ending;
mod execute;
mod file;
mod session;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use execute::Work;
use ferrocx::verbs::cm::{CmConfig, CmError, CmListener, Connecting, ConnectionManager};
use ferrocx::verbs::{
    Cq, Memory, Mr, Pd, QpTable, RdmaContext, VerbsError, WcOpcode, WrongCompletion,
};
use ferrocx_uring::{Done, Ring};
use session::{Session, State};
use thiserror::Error;

use crate::backend::{self, Backend};
use crate::controller::{Queue, Role, Target};
use crate::proto::status::Status;

/// Completions that are taken in a round.
const BUDGET: usize = 64;
/// Rounds between looks at the clock.
const CLOCK_EVERY: u32 = 64;
/// Requests for files under way.
const RING_REQUESTS: u32 = 1024;
/// Time between turns of the connection manager, and between looks at timers.
const TURN: Duration = Duration::from_millis(1);
const TICK: Duration = Duration::from_millis(20);
/// How long a queue may be without a Connect, and how long one that ends may keep its memory.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
const END_PATIENCE: Duration = Duration::from_secs(2);

/// What a server may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// Ports to listen on.
    pub services: Vec<u16>,
    /// Queues of all hosts together: 1 to 1024. Each takes `entries` times 8 KiB, or 20 KiB on an
    /// admin queue.
    pub queues: u32,
    /// Buffers of the largest transfer, for commands whose data do not go straight to the back end.
    pub buffers: u16,
    /// Answers end the host's key where it asks for that. Off for devices that cannot.
    pub remote_invalidate: bool,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self { services: vec![4420], queues: 64, buffers: 8, remote_invalidate: true }
    }
}

/// Why there is no server, or not any more.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The device refused.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The connection manager refused.
    #[error(transparent)]
    Cm(#[from] CmError),
    /// The system has no io_uring, or forbids it.
    #[error("io_uring: {0}; a file needs it: see kernel.io_uring_disabled")]
    Ring(#[from] std::io::Error),
    /// The device gave an answer that cannot be.
    #[error(transparent)]
    Device(#[from] WrongCompletion),
}

/// Counters of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ServerStats {
    /// Queues that are connected.
    pub queues: u32,
    /// Queues that were accepted.
    pub accepted: u64,
    /// Queues that were refused.
    pub rejected: u64,
    /// Queues that have ended.
    pub ended: u64,
    /// Of these, those that ended by a failure.
    pub failed: u64,
    /// Times that a command had to wait for room.
    pub waits: u64,
}

/// Buffers for data that do not go straight to a back end.
#[derive(Debug)]
pub(crate) struct Buffers {
    mr: Mr,
    each: usize,
    free: Vec<u16>,
}

/// A target on a port.
#[derive(Debug)]
pub struct Server {
    work: Work,
    sessions: QpTable<Session>,
    cq: Cq,
    /// Queues that are being accepted.
    coming: Vec<Coming>,
    /// Queues with requests that the port was not told of.
    dirty: Vec<u32>,
    /// Queues with commands that wait.
    stalled: Vec<u32>,
    stats: ServerStats,
    round: u32,
    next_turn: Duration,
    next_tick: Duration,
    epoch: Instant,
    config: ServerConfig,
    listeners: Vec<CmListener>,
    cm: ConnectionManager,
    pd: Pd,
    context: RdmaContext,
}

/// A queue that is being accepted.
#[derive(Debug)]
struct Coming {
    place: u32,
    connecting: Connecting,
    request: crate::proto::cm::Request,
    pages: Mr,
    page_bytes: usize,
    since: Duration,
    peer: IpAddr,
}

impl Server {
    /// A server on a port whose addresses the context has.
    ///
    /// # Errors
    ///
    /// [`ServerError`]: memory, queues or ports that could not be had.
    pub fn new(
        context: &RdmaContext,
        target: Target,
        config: &ServerConfig,
    ) -> Result<Self, ServerError> {
        let pd = context.alloc_pd()?;
        let each = target.settings().max_transfer() as usize;
        let pool = backend::memory(context, each * usize::from(config.buffers.max(1)))?;
        let per_queue = session::send_requests(target.settings().entries)
            + u32::from(target.settings().entries);
        let cq = context.create_cq(per_queue.saturating_mul(config.queues))?;
        let cm = ConnectionManager::open(context, &CmConfig::default())?;
        let listen = |service: &u16| cm.listen(*service);
        let listeners = config.services.iter().map(listen).collect::<Result<_, _>>()?;
        let buffers = Buffers {
            mr: pd.get_dma_mr()?.over(&pool)?,
            each,
            free: (0..config.buffers.max(1)).collect(),
        };
        Ok(Self {
            work: Work::new(target, buffers),
            sessions: QpTable::new().only_signaled(),
            cq,
            coming: Vec::new(),
            dirty: Vec::with_capacity(config.queues as usize),
            stalled: Vec::with_capacity(config.queues as usize),
            stats: ServerStats::default(),
            round: 0,
            next_turn: Duration::ZERO,
            next_tick: Duration::ZERO,
            epoch: Instant::now(),
            config: config.clone(),
            listeners,
            cm,
            pd,
            context: context.clone(),
        })
    }

    /// What is offered to whom.
    #[must_use]
    pub fn target(&self) -> &Target {
        self.work.target()
    }

    /// What is offered to whom, to be changed.
    pub fn target_mut(&mut self) -> &mut Target {
        self.work.target_mut()
    }

    /// Adds a back end of `len_bytes` of RAM, all zeros; its place.
    ///
    /// # Errors
    ///
    /// The system has no such memory.
    pub fn add_ram(&mut self, len_bytes: usize) -> Result<usize, ServerError> {
        let memory = backend::memory(&self.context, len_bytes)?;
        self.add_memory(&memory)
    }

    /// Adds a back end over memory that is there already; its place.
    ///
    /// # Errors
    ///
    /// The memory is another device's.
    pub fn add_memory(&mut self, memory: &Arc<Memory>) -> Result<usize, ServerError> {
        self.work.backends.push(Backend::ram(&self.pd, memory)?);
        Ok(self.work.backends.len() - 1)
    }

    /// Adds a back end that keeps nothing; its place.
    ///
    /// # Errors
    ///
    /// The system has no memory.
    pub fn add_null(&mut self) -> Result<usize, ServerError> {
        let len = self.work.target().settings().max_transfer() as usize;
        let memory = backend::memory(&self.context, len)?;
        self.work.backends.push(Backend::null(&self.pd, &memory)?);
        Ok(self.work.backends.len() - 1)
    }

    /// Adds a back end that is a file or a block device, open for what hosts may do; its place.
    ///
    /// # Errors
    ///
    /// [`ServerError::Ring`].
    pub fn add_file(&mut self, file: std::fs::File) -> Result<usize, ServerError> {
        let ring = match self.work.ring.take() {
            Some(ring) => self.work.ring.insert(ring),
            None => self.work.ring.insert(Ring::new(RING_REQUESTS)?),
        };
        let id = ring.add(file);
        self.work.backends.push(Backend::File(id));
        Ok(self.work.backends.len() - 1)
    }

    /// Buffers that no command holds.
    #[must_use]
    pub fn free_buffers(&self) -> usize {
        self.work.buffers.free.len()
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        ServerStats { waits: self.work.waits, ..self.stats }
    }

    /// Does what is due; how many completions there were.
    ///
    /// # Errors
    ///
    /// [`ServerError::Device`], of a broken device.
    pub fn poll(&mut self) -> Result<usize, ServerError> {
        if self.round.is_multiple_of(CLOCK_EVERY) {
            self.look_at_clock()?;
        }
        self.round = self.round.wrapping_add(1);
        self.poll_queues()
    }

    /// Takes what has ended on all queues, and carries it on.
    #[inline(never)]
    fn poll_queues(&mut self) -> Result<usize, ServerError> {
        let Self { sessions, cq, work, dirty, .. } = self;
        let mut done = sessions.poll_each(cq, BUDGET, |qp, session, wc| {
            let outcome = work.ended(qp, session, wc);
            session.touched(outcome, qp.user_index(), dirty);
        })?;
        if self.work.ring.is_some() {
            done += self.poll_files()?;
        }
        if !self.stalled.is_empty() {
            self.resume();
        }
        while let Some(index) = self.dirty.pop() {
            let Some((qp, session)) = self.sessions.get_mut(index) else { continue };
            session.is_dirty = false;
            qp.ring_doorbell();
            if !session.waiting.is_empty() && !self.stalled.contains(&index) {
                self.stalled.push(index);
            }
        }
        Ok(done)
    }

    /// Takes what has ended on files, and tells the kernel of what was begun.
    fn poll_files(&mut self) -> Result<usize, ServerError> {
        let mut count = 0;
        while count < BUDGET
            && let Some(Done { token, result, .. }) = self.work.ring.as_mut().and_then(Ring::poll)
        {
            count += 1;
            let (index, slot) = ((token >> 16) as u32, token as u16);
            let Some((qp, session)) = self.sessions.get_mut(index) else { continue };
            let outcome = self.work.file_done(qp, session, slot, &result);
            session.touched(outcome, index, &mut self.dirty);
        }
        if let Some(ring) = &mut self.work.ring {
            ring.submit()?;
        }
        Ok(count)
    }

    /// Goes on with commands that wait, a queue after the other.
    #[cold]
    fn resume(&mut self) {
        for _ in 0..self.stalled.len() {
            let index = self.stalled.remove(0);
            let Some((qp, session)) = self.sessions.get_mut(index) else { continue };
            let outcome = self.work.resume(qp, session);
            session.touched(outcome, index, &mut self.dirty);
        }
    }

    /// Timers, and the connection manager's turn.
    fn look_at_clock(&mut self) -> Result<(), ServerError> {
        let now = self.epoch.elapsed();
        if now < self.next_turn {
            return Ok(());
        }
        self.next_turn = now + TURN;
        self.cm.poll();
        self.accept(now)?;
        if now >= self.next_tick {
            self.next_tick = now + TICK;
            self.tick(now);
        }
        Ok(())
    }

    /// Looks after every queue: its connection, its deadline, its end.
    fn tick(&mut self, now: Duration) {
        let mut gone = Vec::new();
        for (qp, session) in self.sessions.iter_mut() {
            self.work.target_mut().account(&mut session.queue);
            if session.connection.poll().is_some() {
                session.end("its host has disconnected");
            }
            let is_late = now.saturating_sub(session.since) > CONNECT_PATIENCE;
            if session.queue.role == Role::Unconnected && is_late {
                session.end("no Connect came");
            }
            if session.is_over(qp, now, &mut self.work.buffers) {
                gone.push(qp.user_index());
            }
        }
        for index in gone {
            if let Some((qp, session)) = self.sessions.remove(index) {
                self.forget(session);
                drop(qp);
            }
        }
        self.work.target_mut().tick(now);
        while let Some((index, why)) = self.work.target_mut().next_doomed() {
            if let Some((_, session)) = self.sessions.get_mut(index) {
                session.end(why);
            }
        }
        while let Some(held) = self.work.target_mut().next_held() {
            let Some((qp, session)) = self.sessions.get_mut(held.queue) else { continue };
            let cqe = session.queue.answer(held.cid, held.status, held.result);
            let is_held = |slot: &session::Slot| slot.state == State::Held;
            if session.slots.get(usize::from(held.slot)).is_some_and(is_held)
                && session.ending.is_none()
            {
                if session.answer(qp, held.slot, &cqe).is_err() {
                    session.fail("its send queue is full");
                }
                qp.ring_doorbell();
            }
        }
    }

    fn forget(&mut self, mut session: Session) {
        let why = session.ending.unwrap_or("the target stops");
        let info = self.work.target().info(&session.queue);
        tracing::info!(
            peer = %session.connection.peer(),
            qid = session.queue.qid,
            host = info.map_or("", |info| info.hostnqn),
            cntlid = info.map_or(0, |info| info.cntlid),
            why,
            "queue ended"
        );
        self.work.target_mut().closed(&mut session.queue);
        self.stats.queues -= 1;
        self.stats.ended += 1;
        self.stats.failed += u64::from(session.has_failed);
    }

    /// Ends every queue, and tells the hosts; up to `limit`.
    ///
    /// # Errors
    ///
    /// Those of [`Server::poll`].
    pub fn stop(&mut self, limit: Duration) -> Result<(), ServerError> {
        self.listeners.clear();
        for it in self.coming.drain(..) {
            self.sessions.remove(it.place);
            self.stats.queues -= 1;
        }
        for (_, session) in self.sessions.iter_mut() {
            session.end("the target stops");
        }
        let start = Instant::now();
        while self.stats.queues > 0 && start.elapsed() < limit {
            self.poll()?;
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// Whether the command of a queue without Connect is one of I/O.
#[inline]
pub(crate) fn is_io(queue: &Queue, opcode: u8) -> bool {
    matches!(queue.role, Role::Io(_)) && opcode != crate::proto::sqe::admin::FABRICS
}

/// Why a queue ends whose requests cannot be posted.
pub(crate) const FULL: &str = "its send queue is full";

/// The status of data that are not there.
pub(crate) const NO_DATA: Status = Status::INTERNAL;

/// Whether a completion is of a receive.
#[inline]
pub(crate) fn is_receive(opcode: WcOpcode) -> bool {
    opcode == WcOpcode::Recv
}
