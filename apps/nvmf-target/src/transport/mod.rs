//! The target on a port: queues of hosts as queue pairs, commands as messages, data by READ and
//! WRITE.
//!
//! A [`Server`] is one polling core: [`Server::poll`] takes what has ended, carries commands out,
//! and rings each doorbell once. On the way of a command to RAM it allocates nothing, takes no lock
//! and makes no system call. [`Server::another`] makes another core of the same port: the first
//! listens, and gives each queue to the core that has the fewest. A core has its own completion
//! queue, queue pairs, buffers and io_uring. What cores share ([`Target`]) is locked when a queue
//! comes or goes, for commands that are none of I/O, and every 20 ms; I/O commands are checked by a
//! copy of what is offered. Other threads give a core work by a ring ([`Server::commands`]).
//!
//! | command | posted |
//! |---|---|
//! | read | WRITE from the namespace's memory, SEND of the answer behind it |
//! | write | READ into the namespace's memory at the end of the round; when it has ended, SEND |
//! | write in the capsule, or without data | SEND |
//!
//! The SEND ends the host's key if the command asked for it. A receive is posted again before its
//! command is answered, and a queue has one for each entry, so the host always finds one. READs of
//! a round share completions (`fetch`). Where the send queue is full or no buffer is free, commands
//! wait in order; those for which the host serves no READ wait for one another alone.

mod abort;
mod accept;
mod buffers;
mod clock;
mod config;
mod drive;
mod effort;
mod ending;
mod error;
mod execute;
mod fetch;
mod flush;
mod fused;
mod gate;
mod helper;
mod later;
mod leave;
mod line;
mod listed;
mod other;
mod outside;
mod owed;
mod session;
mod sleep;
mod stores;
mod trouble;
mod waiting;

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use buffers::Buffers;
pub use config::ServerConfig;
pub use error::ServerError;
use execute::Work;
use ferrocx::Region;
use ferrocx::verbs::cm::{CmConfig, CmListener, ConnRequest, Connecting, ConnectionManager};
use ferrocx::verbs::{CompletionChannel, Cq, Memory, Mr, Pd, QpTable, RdmaContext};
use ferrocx_nvme::IoQueue;
use ferrocx_uring::{Done, Ring};
use flush::Flush;
use fused::Gates;
use helper::Helper;
use rtrb::{Consumer, Producer, RingBuffer};
use session::Session;
use trouble::Trouble;

use crate::backend::{self, Backend, OpenFile};
use crate::controller::{Queue, Role, Target};
use crate::keeper::Keeper;
use crate::proto::status::Status;
pub use crate::stats::ServerStats;
use crate::stats::{PollerStats, Registry};
use crate::whole::Whole;

/// Completions that are taken in a round.
const BUDGET: usize = 64;
/// Rounds between looks at the clock.
const CLOCK_EVERY: u32 = 64;
/// Requests for files under way.
const RING_REQUESTS: u32 = 1024;
/// How long a queue may be without a Connect, and how long one that ends may keep its memory.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
const END_PATIENCE: Duration = Duration::from_secs(2);
/// Cores of a target at most, requests on their way to one, and commands on their way to one.
pub const MAX_POLLERS: usize = 64;
const REQUESTS: usize = 64;
const COMMANDS: usize = 64;
/// Back ends that a target may have been given since it was started: places are used once.
pub const MAX_BACKENDS: usize = 1 << 16;

/// What the cores of a target share.
#[derive(Debug)]
struct Shared {
    target: Mutex<Target>,
    registry: Arc<Registry>,
    epoch: Instant,
    helper: Helper,
    /// Where reservations are kept that outlive the target.
    keeper: Option<Arc<Keeper>>,
    gates: Mutex<Gates>,
    /// Polling cores.
    cores: AtomicUsize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Target> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gates(&self) -> MutexGuard<'_, Gates> {
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cores(&self) -> usize {
        self.cores.load(Ordering::Acquire)
    }
}

/// Something that another thread wants a core to do, between two rounds.
pub struct Command(Box<dyn FnOnce(&mut Server) + Send>);

impl Command {
    /// What is to be done. It runs on the polling core, so it must be short.
    #[must_use]
    pub fn new(run: impl FnOnce(&mut Server) + Send + 'static) -> Self {
        Self(Box::new(run))
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Command")
    }
}

/// A back end for one core.
#[derive(Debug)]
pub enum Ready {
    /// Memory of the port.
    Direct(Backend),
    /// The same, whose blocks are to be read and written as one.
    Whole(Whole),
    /// A file, for the core's own io_uring.
    File(OpenFile),
    /// The core's own queue pair of an NVMe drive, for its buffers ([`Server::buffers`]).
    Drive(Box<IoQueue>),
}

/// A host's request, and the port that it called.
type Asked = (ConnRequest, u16);

/// Another core, as the first sees it.
#[derive(Debug)]
struct Other {
    load: Arc<AtomicU32>,
    requests: Producer<Asked>,
}

/// Name of a queue for all cores: the core, and the place in its table, which has 24 bits.
fn name(poller: usize, place: u32) -> u32 {
    (poller as u32) << 24 | place
}

/// The place of a queue in the table of its core.
fn place(name: u32) -> u32 {
    name & 0xff_ffff
}

/// A polling core of a target on a port.
#[derive(Debug)]
pub struct Server {
    work: Work,
    shared: Arc<Shared>,
    /// Which core this is; the first listens.
    poller: usize,
    /// Queues of this core, those on their way to it among them.
    load: Arc<AtomicU32>,
    others: Vec<Other>,
    requests: Option<Consumer<Asked>>,
    commands: Option<Consumer<Command>>,
    shown: Arc<PollerStats>,
    sessions: QpTable<Session>,
    /// Its buffers lie in it.
    pool: Arc<Memory>,
    cq: Cq,
    /// What wakes it, where it may sleep.
    channel: Option<CompletionChannel>,
    /// Queues that are being accepted.
    coming: Vec<Coming>,
    /// Queues with commands that wait, the one whose turn it is first.
    stalled: VecDeque<u32>,
    /// Of these, those that have had their turn.
    served: VecDeque<u32>,
    /// What is flushed for hosts that shut their controllers down, and the last number of such a
    /// request.
    flushes: Vec<Flush>,
    flush_number: u16,
    stats: ServerStats,
    /// Rounds until it looks at the clock.
    rounds_to_clock: u32,
    next_turn: Duration,
    /// When the last queue was asked for.
    host_came: Duration,
    next_tick: Duration,
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
    service: u16,
}

impl Server {
    /// The first core of a server on a port whose addresses the context has. It listens on the
    /// services that `config` names.
    ///
    /// # Errors
    ///
    /// [`ServerError`]: memory, queues or ports that could not be had.
    pub fn new(
        context: &RdmaContext,
        target: Target,
        config: &ServerConfig,
    ) -> Result<Self, ServerError> {
        let cm = ConnectionManager::open(context, &CmConfig::default())?;
        Self::over(context, cm, target, config)
    }

    /// The same, beside what else uses the port's connection manager.
    ///
    /// # Errors
    ///
    /// [`ServerError`]: memory, queues or ports that could not be had.
    pub fn over(
        context: &RdmaContext,
        cm: ConnectionManager,
        mut target: Target,
        config: &ServerConfig,
    ) -> Result<Self, ServerError> {
        target.limit_queues(config.queues, config.queues_per_address);
        let (registry, epoch) = (Arc::default(), context.device().now());
        let keeper = config.reservations.as_deref().map(Keeper::open).transpose();
        let keeper = keeper.map_err(ServerError::Reservations)?.map(Arc::new);
        if keeper.is_some() {
            target.keep_reservations();
        }
        let (target, helper) = (Mutex::new(target), Helper::start().map_err(ServerError::Thread)?);
        let shared = Arc::new(Shared {
            target,
            registry,
            epoch,
            helper,
            keeper,
            gates: Mutex::default(),
            cores: AtomicUsize::new(0),
        });
        let mut server = Self::on(context, &context.alloc_pd()?, &cm, shared, config, 0)?;
        for service in &config.services {
            server.listen(*service)?;
        }
        Ok(server)
    }

    /// Another core of the same server, for another thread: it is given a share of the queues.
    ///
    /// # Errors
    ///
    /// [`ServerError`]: memory or queues that could not be had.
    pub fn another(&mut self) -> Result<Self, ServerError> {
        let poller = self.others.len() + 1;
        let Self { context, pd, cm, shared, config, .. } = &*self;
        let mut server = Self::on(context, pd, cm, shared.clone(), config, poller)?;
        let (producer, consumer) = RingBuffer::new(REQUESTS);
        server.requests = Some(consumer);
        self.others.push(Other { load: server.load.clone(), requests: producer });
        Ok(server)
    }

    fn on(
        context: &RdmaContext,
        pd: &Pd,
        cm: &ConnectionManager,
        shared: Arc<Shared>,
        config: &ServerConfig,
        poller: usize,
    ) -> Result<Self, ServerError> {
        let settings = *shared.lock().settings();
        let pool_bytes = config.pool_bytes(settings.max_transfer());
        let pool = backend::memory(context, pool_bytes, config.page)?;
        let per_queue = session::send_requests(settings.entries) + u32::from(settings.entries);
        let entries = per_queue.saturating_mul(config.queues);
        let channel = config.interrupts.map(|_| sleep::channel(context, poller)).transpose()?;
        let cq = match &channel {
            Some(channel) => context.create_cq_with_events(entries, channel)?,
            None => context.create_cq(entries)?,
        };
        // Not for a period of zero: without one the device waits for the count.
        let period_us = config.interrupts.map_or(0, |apart| apart.as_micros());
        if period_us > 0 {
            cq.moderate(BUDGET as u16, u16::try_from(period_us).unwrap_or(u16::MAX))?;
        }
        let dma = pd.get_dma_mr()?.over(&pool)?;
        let (each, hosts) = (settings.max_transfer() as usize, config.queues as usize + 1);
        let buffers = Buffers::new(dma, each, config.buffer_counts(), hosts);
        let shown = shared.registry.add_poller();
        shared.lock().set_cores(1 + shared.cores.fetch_add(1, Ordering::AcqRel));
        Ok(Self {
            work: Work::new(shared.clone(), buffers, config),
            shared,
            poller,
            load: Arc::default(),
            others: Vec::new(),
            requests: None,
            commands: None,
            shown,
            sessions: QpTable::new().only_signaled(),
            pool,
            cq,
            channel,
            coming: Vec::new(),
            stalled: VecDeque::with_capacity(config.queues as usize),
            served: VecDeque::with_capacity(config.queues as usize),
            flushes: Vec::new(),
            flush_number: 0,
            stats: ServerStats::default(),
            rounds_to_clock: 0,
            next_turn: Duration::ZERO,
            host_came: Duration::ZERO,
            next_tick: Duration::ZERO,
            config: config.clone(),
            listeners: Vec::new(),
            cm: cm.clone(),
            pd: pd.clone(),
            context: context.clone(),
        })
    }

    /// What is offered to whom. Other cores wait while this is held.
    pub fn target(&self) -> MutexGuard<'_, Target> {
        self.work.target()
    }

    /// What is offered to whom, to be changed. Other cores wait while this is held.
    pub fn target_mut(&mut self) -> MutexGuard<'_, Target> {
        self.work.target()
    }

    /// Whose counters there are, of all cores.
    #[must_use]
    pub fn registry(&self) -> Arc<Registry> {
        self.shared.registry.clone()
    }

    /// Where reservations are kept that outlive the target.
    #[must_use]
    pub fn keeper(&self) -> Option<Arc<Keeper>> {
        self.shared.keeper.clone()
    }

    /// What it may use.
    #[must_use]
    pub fn config(&self) -> &ServerConfig {
        &self.config
    }

    /// The way for work of another thread. There is one; another call makes the one before
    /// useless.
    pub fn commands(&mut self) -> Producer<Command> {
        let (producer, consumer) = RingBuffer::new(COMMANDS);
        self.commands = Some(consumer);
        producer
    }

    /// The protection domain of its queues, for back ends.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Listens on a port of the connection manager. Only the first core does.
    ///
    /// # Errors
    ///
    /// [`ServerError::Cm`]: somebody else has it.
    pub fn listen(&mut self, service: u16) -> Result<(), ServerError> {
        self.listeners.push(self.cm.listen(service)?);
        Ok(())
    }

    /// Listens no more on a port; whether it did. Queues that came by it stay.
    pub fn listen_no_more(&mut self, service: u16) -> bool {
        let before = self.listeners.len();
        self.listeners.retain(|it| it.port() != service);
        self.listeners.len() < before
    }

    /// The ports that it listens on.
    #[must_use]
    pub fn services(&self) -> Vec<u16> {
        self.listeners.iter().map(CmListener::port).collect()
    }

    /// The memory of this core's buffers: what an NVMe drive must reach.
    #[must_use]
    pub fn buffers(&self) -> Arc<Region> {
        self.pool.region().clone()
    }

    /// Buffers of both sizes that commands hold.
    #[must_use]
    pub fn held_buffers(&self) -> usize {
        self.work.buffers.count_held()
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        let Work { waits, buffer_waits, buffers, .. } = &self.work;
        let (waits, buffer_waits, lost_buffers) = (*waits, *buffer_waits, buffers.count_lost().0);
        ServerStats { waits, buffer_waits, lost_buffers, ..self.stats }
    }

    /// Does what is due; how many completions there were.
    ///
    /// # Errors
    ///
    /// [`ServerError::Device`], of a broken device.
    pub fn poll(&mut self) -> Result<usize, ServerError> {
        if self.rounds_to_clock == 0 {
            self.rounds_to_clock = CLOCK_EVERY;
            self.look_at_clock()?;
        }
        self.rounds_to_clock -= 1;
        if self.work.effort.begin_round() {
            self.rounds_to_clock = 0;
        }
        self.work.look_at_offer();
        self.poll_queues()
    }

    /// Takes what has ended on all queues, and carries it on.
    #[inline(never)]
    fn poll_queues(&mut self) -> Result<usize, ServerError> {
        let Self { sessions, cq, work, .. } = self;
        let mut done =
            sessions.poll_each(cq, BUDGET, |qp, session, wc| work.ended(qp, session, wc))?;
        if self.work.ring.is_some() {
            done += self.poll_files();
        }
        if !self.work.drives.is_empty() {
            done += self.poll_drives();
        }
        if !self.stalled.is_empty() {
            self.resume();
            // A core that has something to do does not sleep.
            done += usize::from(self.work.effort.is_wanted);
        }
        while let Some(index) = self.work.dirty.pop() {
            let Some((qp, session)) = self.sessions.get_mut(index) else { continue };
            session.link.is_dirty = false;
            if session.link.line.waiting() > 0 {
                self.work.fetch(qp, session);
            }
            qp.ring_doorbell();
            if !session.link.waiting.is_empty() {
                waiting::stand_in(&mut self.stalled, index);
            }
        }
        Ok(done)
    }

    /// Takes what has ended on files, and tells the kernel of what was begun.
    fn poll_files(&mut self) -> usize {
        let mut count = 0;
        while count < BUDGET
            && let Some(Done { token, result, .. }) = self.work.ring.as_mut().and_then(Ring::poll)
        {
            count += 1;
            self.store_done(token, &result.map_err(Trouble::System));
        }
        if let Some(ring) = &mut self.work.ring {
            ring.submit();
        }
        count
    }
}

/// Whether a command moves blocks, which a core does alone.
#[inline(always)]
pub(crate) fn is_io(queue: &Queue, opcode: u8) -> bool {
    matches!(queue.role, Role::Io(_))
        && opcode != crate::proto::sqe::admin::FABRICS
        && !crate::proto::sqe::io::is_reservation(opcode)
}

/// Why a queue ends whose requests cannot be posted.
pub(crate) const FULL: &str = "its send queue is full";
/// Why one ends whose host sends what is no command.
pub(crate) const CUT_SHORT: &str = "a command was cut short";

/// The status of data that are not there.
pub(crate) const NO_DATA: Status = Status::INTERNAL;
