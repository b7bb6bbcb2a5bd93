//! A storage target on one host and initiators on all others: NVMe over RDMA, block by block.
//!
//! The target is `apps/nvmf-target` with RAM behind it, which is gone when its device is. Of each
//! block the run knows what it may hold (`blocks`): what was answered, and what was under way when
//! a queue ended. An initiator comes back only when the target has let go of its queues, since a
//! command of theirs could be carried out until then.

mod commands;

use std::sync::Arc;
use std::time::Duration;

use commands::Op;
use ferrocx_mempool::PageSize;
use ferrocx_model::wire::SplitMix64;
use ferrocx_nvmf_target::controller::{Namespace, Settings, Subsystem, Target};
use ferrocx_nvmf_target::host::{
    Base, HostError, HostQueue, Joining, QueueConfig, connect_command,
};
use ferrocx_nvmf_target::proto::connect::{
    ADMIN_ENTRIES, ANY_CONTROLLER, CONNECT_BYTES, ConnectData,
};
use ferrocx_nvmf_target::proto::sgl::Sgl;
use ferrocx_nvmf_target::proto::sqe::{Sqe, admin, fabrics};
use ferrocx_nvmf_target::proto::status::Status;
use ferrocx_nvmf_target::proto::{identify, property};
use ferrocx_nvmf_target::transport::{Server, ServerConfig};
use ferrocx_verbs_lite::{Access, Memory, Mr};

use crate::blocks::{BLOCK, Blocks};
use crate::host::ip_of;
use crate::stage::{Stage, Violation, ensure};

const NQN: &str = "nqn.2026-11.org.ferrocx:simulation";
const SERVICE: u16 = 4420;
/// Blocks of the namespace, and of a command that looks at all of them in the end.
const BLOCKS: usize = 256;
const AUDIT_BLOCKS: usize = 32;
/// Buffers of the target, all free when nothing is under way.
const BUFFERS: u16 = 2;
/// Silence after which the target ends a controller, in ms.
const KEEP_ALIVE_MS: u32 = 500;
/// Simulated time in which a target that works has let go of a host's queues: those without
/// Connect last, which are waited for for 10 s, and 2 s to end.
const LEAVING_NS: u64 = 15_000_000_000;
/// Simulated time that an initiator waits for each answer on its way to its queues: who dies in
/// silence is found out by nobody who has nothing to send.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause before another attempt.
const PAUSE_NS: u64 = 500_000;

/// Sizes and habits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoragePlan {
    pub(crate) seed: u64,
    /// The host that serves; all others use it.
    pub(crate) target: usize,
    /// Commands of all initiators together.
    pub(crate) operations: u64,
    /// Commands of one under way at a time.
    pub(crate) depth: u16,
    /// Blocks of a command at most.
    pub(crate) most_blocks: usize,
}

/// How far an initiator is.
enum Phase {
    /// The target may still know its last queues.
    Leaving { since_ns: u64 },
    /// The admin queue asks to be let in.
    Joining(Joining),
    /// Its commands, one after the other: so many are done.
    Starting { admin: HostQueue, done: usize, is_asked: bool },
    /// The I/O queue asks to be let in.
    JoiningIo { admin: HostQueue, joining: Joining },
    /// The I/O queue has sent its Connect.
    Connecting { admin: HostQueue, io: HostQueue },
    /// Commands go on.
    Up { admin: HostQueue, io: HostQueue, alive_at_ns: u64 },
}

struct Initiator {
    host: usize,
    phase: Phase,
    /// When it last got further on its way to its queues.
    since_ns: u64,
    cntlid: u16,
    /// By their names.
    ops: Vec<Option<Op>>,
    slots: Vec<usize>,
    data: Option<(Arc<Memory>, Mr)>,
}

/// A target that runs.
struct Served {
    server: Server,
    /// The namespace's memory, for what is planted.
    ram: Mr,
    since_ns: u64,
}

/// The target and its hosts.
pub(crate) struct Storage {
    plan: StoragePlan,
    random: SplitMix64,
    served: Option<Served>,
    serve_at_ns: u64,
    /// Goes up with each target.
    life: u64,
    initiators: Vec<Initiator>,
    blocks: Blocks,
    /// Queues that ended since an initiator last had all of its own.
    pub(crate) failures: u32,
    begun: u64,
    done: u64,
    /// Places that are to be looked at in the end, and those that were.
    to_audit: Vec<usize>,
    audited: usize,
}

/// What an initiator cannot go on with: the queue has ended, or the device refused.
fn why(error: &HostError) -> String {
    error.to_string()
}

impl Storage {
    pub(crate) fn new(plan: StoragePlan, hosts: usize) -> Self {
        let initiator = |host| Initiator {
            host,
            phase: Phase::Leaving { since_ns: 0 },
            since_ns: 0,
            cntlid: 0,
            ops: vec![None; plan.depth.into()],
            slots: (0..usize::from(plan.depth)).collect(),
            data: None,
        };
        Self {
            plan,
            random: SplitMix64::new(plan.seed),
            served: None,
            serve_at_ns: 0,
            life: 0,
            initiators: (0..hosts).filter(|host| *host != plan.target).map(initiator).collect(),
            blocks: Blocks::new(plan.seed, BLOCKS),
            failures: 0,
            begun: 0,
            done: 0,
            to_audit: (0..BLOCKS).step_by(AUDIT_BLOCKS).collect(),
            audited: 0,
        }
    }

    /// Commands that were answered, and those that are wanted.
    pub(crate) fn progress(&self) -> (u64, u64) {
        let audits = (BLOCKS / AUDIT_BLOCKS) as u64;
        (self.done + self.audited as u64, self.plan.operations + audits)
    }

    pub(crate) fn is_done(&self) -> bool {
        let (done, wanted) = self.progress();
        done >= wanted
    }

    /// What it is doing, for whoever asks why nothing goes on.
    pub(crate) fn describe(&self) -> String {
        let (done, wanted) = self.progress();
        let phases: Vec<_> = self.initiators.iter().map(Initiator::describe).collect();
        let state = if self.served.is_some() { "up" } else { "down" };
        let (target, phases) = (self.plan.target, phases.join(", "));
        format!("storage of {target} {state}, {phases}: {done} of {wanted}")
    }

    /// One turn; whether anything moved.
    pub(crate) fn turn(&mut self, stage: &mut Stage) -> Result<bool, Violation> {
        if self.is_done() {
            return Ok(false);
        }
        match self.go_on(stage) {
            Ok(moved) => Ok(moved),
            Err(violation) => {
                let hosts: Vec<_> = (0..stage.hosts.len()).collect();
                stage.judged(&hosts, Err(violation))?;
                hosts.into_iter().for_each(|host| self.abandon(host, stage));
                Ok(true)
            }
        }
    }

    fn go_on(&mut self, stage: &mut Stage) -> Result<bool, Violation> {
        let mut moved = self.serve(stage)?;
        for at in 0..self.initiators.len() {
            moved |= self.drive(at, stage)?;
        }
        Ok(moved)
    }

    /// The target's turn.
    fn serve(&mut self, stage: &mut Stage) -> Result<bool, Violation> {
        let target = self.plan.target;
        let Some(served) = &mut self.served else {
            if stage.hosts[target].up.is_none() || stage.now_ns() < self.serve_at_ns {
                return Ok(false);
            }
            match self.started(stage) {
                Ok(served) => self.served = Some(served),
                Err(error) => {
                    stage.named("no target", &error);
                    self.serve_at_ns = stage.now_ns() + PAUSE_NS;
                }
            }
            return Ok(true);
        };
        match served.server.poll() {
            Ok(count) => Ok(count > 0),
            Err(error) => {
                let ill = &stage.hosts[target];
                let is_ill = ill.is_tainted || ill.doom.is_some();
                ensure(is_ill, || format!("the target ends on a device that works: {error}"))?;
                stage.named("target", &error);
                self.end_target(stage);
                Ok(true)
            }
        }
    }

    fn started(&self, stage: &mut Stage) -> Result<Served, String> {
        let since_ns = stage.now_ns();
        let host = &mut stage.hosts[self.plan.target];
        let memory = host.plain_memory(BLOCKS * BLOCK).ok_or("the host is down")?;
        let memory = memory.map_err(|error| error.to_string())?;
        let up = host.up.as_ref().ok_or("the host is down")?;
        let settings = Settings {
            entries: 16,
            mdts: 2,
            io_queues: 1,
            controllers: 8,
            service: SERVICE,
            ..Settings::default()
        };
        let config = ServerConfig {
            services: vec![SERVICE],
            queues: 8,
            buffers: BUFFERS,
            small_buffers: BUFFERS,
            page: PageSize::Base4K,
            host_patience: Duration::from_secs(1),
            ..ServerConfig::default()
        };
        let made = Server::over(&up.context, up.cm.clone(), Target::new(settings), &config);
        let mut server = made.map_err(|error| error.to_string())?;
        let ram = up.pd.reg_mr(&memory, 0..BLOCKS * BLOCK, Access::LOCAL_WRITE);
        let ram = ram.map_err(|error| error.to_string())?;
        let backend = server.add_memory(&memory).map_err(|error| error.to_string())?;
        let shape = identify::Namespace {
            blocks: BLOCKS as u64,
            block_shift: BLOCK.trailing_zeros() as u8,
            uuid: [1; 16],
            is_read_only: false,
            deallocates: false,
        };
        let namespace = Namespace { nsid: 1, shape, backend, ana_group: 1 };
        let mut target = server.target_mut();
        let offered = target.add_subsystem(Subsystem::new(NQN, "SIM"));
        let offered = offered.and_then(|()| target.put_namespace(NQN, namespace));
        offered.map_err(|error| error.to_string())?;
        drop(target);
        stage.note(|| "storage: the target is there".into());
        Ok(Served { server, ram, since_ns })
    }

    /// The target is no more, and what it kept.
    fn end_target(&mut self, stage: &Stage) {
        if self.served.take().is_some() {
            self.life += 1;
            self.blocks.reset();
            self.serve_at_ns = stage.now_ns() + PAUSE_NS;
        }
    }

    /// An initiator's turn.
    fn drive(&mut self, at: usize, stage: &mut Stage) -> Result<bool, Violation> {
        let host = self.initiators[at].host;
        let Some(up) = &stage.hosts[host].up else { return Ok(false) };
        let base = Base {
            context: up.context.clone(),
            pd: up.pd.clone(),
            cm: up.cm.clone(),
            target: stage.hosts[self.plan.target].address(SERVICE),
            page: PageSize::Base4K,
        };
        let phase = &mut self.initiators[at].phase;
        let phase = std::mem::replace(phase, Phase::Leaving { since_ns: stage.now_ns() });
        let entries = self.plan.depth + 1;
        let lent_pages = (self.plan.most_blocks * BLOCK).div_ceil(4096) as u32 + 1;
        let config = |qid: u16, entries, lent_pages| QueueConfig {
            qid,
            cntlid: self.initiators[at].cntlid,
            entries,
            lent_pages,
            ..QueueConfig::default()
        };
        let went = match phase {
            Phase::Leaving { since_ns } => {
                if !self.may_come(at, since_ns, stage)? {
                    self.initiators[at].phase = Phase::Leaving { since_ns };
                    return Ok(false);
                }
                Joining::begin(&base, &config(0, ADMIN_ENTRIES, 0))
                    .map(|it| (Phase::Joining(it), true))
            }
            Phase::Joining(joining) => {
                base.cm.poll();
                joining.poll().map(|it| match it {
                    Ok(admin) => (Phase::Starting { admin, done: 0, is_asked: false }, true),
                    Err(joining) => (Phase::Joining(joining), false),
                })
            }
            Phase::Starting { admin, done: STEPS, .. } => {
                let config = config(1, entries, lent_pages);
                let joining = Joining::begin(&base, &config);
                joining.map(|joining| (Phase::JoiningIo { admin, joining }, true))
            }
            Phase::Starting { admin, done, is_asked } => {
                self.start(at, admin, done, is_asked, stage)
            }
            Phase::JoiningIo { admin, joining } => {
                base.cm.poll();
                joining.poll().and_then(|it| match it {
                    Ok(mut io) => {
                        let cntlid = self.initiators[at].cntlid;
                        connect(&mut io, (1, entries, 0), host, cntlid)?;
                        Ok((Phase::Connecting { admin, io }, true))
                    }
                    Err(joining) => Ok((Phase::JoiningIo { admin, joining }, false)),
                })
            }
            Phase::Connecting { admin, mut io } => match io.poll() {
                Ok(None) => Ok((Phase::Connecting { admin, io }, false)),
                Ok(Some(cqe)) if cqe.status() == Status::SUCCESS => {
                    stage.counts.connections += 1;
                    self.failures = 0;
                    stage.note(|| format!("storage: host {host} has its queues"));
                    Ok((Phase::Up { admin, io, alive_at_ns: 0 }, true))
                }
                Ok(Some(cqe)) => Err(HostError::Ended(format!("Connect: {}", cqe.status()))),
                Err(error) => Err(error),
            },
            Phase::Up { mut admin, mut io, mut alive_at_ns } => {
                let went = self.up(at, &mut admin, &mut io, &mut alive_at_ns, stage)?;
                went.map(|moved| (Phase::Up { admin, io, alive_at_ns }, moved))
            }
        };
        match went {
            Ok((phase, moved)) => {
                let now_ns = stage.now_ns();
                let it = &mut self.initiators[at];
                if moved {
                    it.since_ns = now_ns;
                }
                let waited = Duration::from_nanos(now_ns - it.since_ns);
                let is_up = matches!(phase, Phase::Up { .. });
                let may_wait = is_up && !stage.are_deceived(&[self.plan.target, host]);
                if !may_wait && waited > PATIENCE {
                    stage.named("storage", &HostError::Silent(PATIENCE));
                    drop(phase);
                    self.broke(at, stage);
                    return Ok(true);
                }
                it.phase = phase;
                Ok(moved)
            }
            Err(error) => {
                stage.named("storage", &why(&error));
                self.broke(at, stage);
                Ok(true)
            }
        }
    }

    /// Whether the target knows nothing of an initiator any more, and is there.
    fn may_come(&self, at: usize, since_ns: u64, stage: &Stage) -> Result<bool, Violation> {
        let Some(served) = &self.served else { return Ok(false) };
        let host = self.initiators[at].host;
        let waited = stage.now_ns() - since_ns.max(served.since_ns);
        let queues = served.server.target().queues_of(ip_of(host).into());
        let target = &stage.hosts[self.plan.target];
        let is_ill = target.is_tainted || target.doom.is_some();
        ensure(queues == 0 || is_ill || waited < LEAVING_NS, || {
            format!("the target has {queues} queues of host {host}, gone for {waited} ns")
        })?;
        Ok(queues == 0 && waited >= PAUSE_NS)
    }

    /// What the admin queue is asked at the start, one command after the other.
    fn start(
        &mut self,
        at: usize,
        mut admin: HostQueue,
        done: usize,
        is_asked: bool,
        stage: &mut Stage,
    ) -> Result<(Phase, bool), HostError> {
        let host = self.initiators[at].host;
        if !is_asked {
            match done {
                0 => connect(&mut admin, (0, ADMIN_ENTRIES, KEEP_ALIVE_MS), host, ANY_CONTROLLER)?,
                1 => drop(admin.submit(Sqe {
                    cdw11: property::CC.into(),
                    cdw12: 0x0046_0001.into(),
                    ..Sqe::fabrics(fabrics::PROPERTY_SET, 0, Sgl::NONE)
                })?),
                2 => drop(admin.submit(Sqe {
                    cdw11: property::CSTS.into(),
                    ..Sqe::fabrics(fabrics::PROPERTY_GET, 0, Sgl::NONE)
                })?),
                _ => drop(admin.submit(Sqe {
                    cdw10: 7.into(),
                    ..Sqe::new(admin::SET_FEATURES, 0, Sgl::NONE)
                })?),
            }
            return Ok((Phase::Starting { admin, done, is_asked: true }, true));
        }
        let Some(cqe) = admin.poll()? else {
            return Ok((Phase::Starting { admin, done, is_asked }, false));
        };
        if cqe.status() != Status::SUCCESS {
            return Err(HostError::Ended(format!("step {done}: {}", cqe.status())));
        }
        match done {
            0 => self.initiators[at].cntlid = cqe.result.get() as u16,
            2 if cqe.result.get() as u32 & property::CSTS_RDY == 0 => {
                stage.note(|| format!("storage: host {host}: not ready"));
                return Ok((Phase::Starting { admin, done, is_asked: false }, true));
            }
            _ => {}
        }
        Ok((Phase::Starting { admin, done: done + 1, is_asked: false }, true))
    }

    /// Takes answers and gives commands; whether any. The inner error ends the queues.
    fn up(
        &mut self,
        at: usize,
        admin: &mut HostQueue,
        io: &mut HostQueue,
        alive_at_ns: &mut u64,
        stage: &mut Stage,
    ) -> Result<Result<bool, HostError>, Violation> {
        for queue in [&mut *admin, &mut *io] {
            if let Some(end) = queue.connection.poll() {
                return Ok(Err(HostError::Ended(end.to_string())));
            }
        }
        let mut moved = false;
        match admin.poll() {
            Ok(None) => {}
            Ok(Some(cqe)) => ensure(cqe.status() == Status::SUCCESS, || {
                format!("a keep-alive is answered: {}", cqe.status())
            })?,
            Err(error) => return Ok(Err(error)),
        }
        if stage.now_ns() >= *alive_at_ns {
            *alive_at_ns = stage.now_ns() + u64::from(KEEP_ALIVE_MS) * 1_000_000 / 3;
            let alive = admin.submit(Sqe::new(admin::KEEP_ALIVE, 0, Sgl::NONE));
            if let Err(error) = alive {
                return Ok(Err(error));
            }
        }
        loop {
            match io.poll() {
                Ok(None) => break,
                Ok(Some(cqe)) => self.answered(at, &cqe, stage)?,
                Err(error) => return Ok(Err(error)),
            }
            moved = true;
        }
        ensure(io.wrong_keys == 0, || "the target ended a key that is not the command's".into())?;
        while io.room() > 0 {
            match self.give(at, io, stage) {
                Ok(true) => moved = true,
                Ok(false) => break,
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(moved))
    }

    /// The queues of an initiator have ended.
    fn broke(&mut self, at: usize, stage: &mut Stage) {
        stage.counts.breaks += 1;
        self.failures += 1;
        let since_ns = stage.now_ns();
        self.initiators[at].phase = Phase::Leaving { since_ns };
        for cid in 0..self.initiators[at].ops.len() {
            if let Some(op) = self.initiators[at].ops[cid].take() {
                self.unknown(at, &op);
            }
        }
    }

    /// Lets go of everything on a host whose device is gone.
    pub(crate) fn abandon(&mut self, host: usize, stage: &mut Stage) {
        if host == self.plan.target {
            self.end_target(stage);
        }
        for at in 0..self.initiators.len() {
            if self.initiators[at].host == host {
                self.broke(at, stage);
                self.initiators[at].data = None;
            }
        }
    }

    /// Lets go of everything: the run is over. A target that has no queues but those of its hosts
    /// of now, which have no commands under way, has all of its buffers.
    pub(crate) fn close(&mut self, stage: &mut Stage) -> Result<(), Violation> {
        let is_up = |it: &&Initiator| matches!(it.phase, Phase::Up { .. });
        let queues = 2 * self.initiators.iter().filter(is_up).count() as u32;
        if let Some(served) = &self.served
            && served.server.stats().queues == queues
            && !stage.hosts[self.plan.target].is_tainted
            && !stage.hosts.iter().any(|host| host.is_deceived)
        {
            let held = served.server.held_buffers();
            ensure(held == 0, || format!("the target lacks {held} of its buffers"))?;
        }
        for host in 0..stage.hosts.len() {
            self.abandon(host, stage);
        }
        Ok(())
    }
}

/// Commands of the admin queue at the start.
const STEPS: usize = 4;

/// Sends Connect.
fn connect(
    queue: &mut HostQueue,
    (qid, entries, keep_alive_ms): (u16, u16, u32),
    host: usize,
    cntlid: u16,
) -> Result<(), HostError> {
    let name = format!("nqn.2026-11.org.ferrocx:host{host}");
    let data = ConnectData::new([host as u8 + 1; 16], cntlid, NQN, &name);
    let sgl = Sgl::InCapsule { offset: 0, len: CONNECT_BYTES as u32 };
    let sqe = connect_command(qid, entries, keep_alive_ms, sgl);
    queue.submit_with(sqe, zerocopy::IntoBytes::as_bytes(&data)).map(drop)
}

impl Initiator {
    fn describe(&self) -> String {
        let phase = match &self.phase {
            Phase::Leaving { .. } => "leaving",
            Phase::Joining(_) | Phase::JoiningIo { .. } | Phase::Connecting { .. } => "joining",
            Phase::Starting { .. } => "starting",
            Phase::Up { .. } => "up",
        };
        let under_way = self.ops.iter().flatten().count();
        format!("host {} {phase} with {under_way} commands", self.host)
    }
}
