//! A target and its host on two models of one thread: nothing moves unless that thread has it move.
#![allow(dead_code, unreachable_pub, reason = "each program uses its part")]

use std::error::Error;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use ferrocx::bus::local::{LocalConfig, LocalTransport, pair};
use ferrocx::model::runner::{Helper, Runner, RunnerConfig, TakenOver};
use ferrocx::model::wire::{Link, Wire, link};
use ferrocx::model::{Nic, NicConfig};
use ferrocx::verbs::cm::{CmConfig, ConnectionManager};
use ferrocx::verbs::{GidConfig, Memory, Mr};
use ferrocx::{PageSize, Port, PortConfig};
use ferrocx_nvmf_target::backend;
use ferrocx_nvmf_target::controller::{Namespace, Settings, Subsystem, Target};
use ferrocx_nvmf_target::host::{Base, Host, HostConfig, HostQueue, keyed};
use ferrocx_nvmf_target::proto::identify;
use ferrocx_nvmf_target::proto::sgl::Sgl;
use ferrocx_nvmf_target::proto::sqe::{Sqe, io};
use ferrocx_nvmf_target::transport::{Server, ServerConfig};

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

const NQN: &str = "nqn.2026-11.org.ferrocx:cost";
const LEN: usize = 4096;
/// Bytes of namespace 1, which are all of RAM.
pub const NAMESPACE_BYTES: usize = 16 << 20;
/// Rounds of the target between its looks at the clock, and a time after which a look finds every
/// timer due.
pub const CLOCK_EVERY: usize = 64;
pub const TICK: Duration = Duration::from_millis(25);
/// Bytes on a cable, and idle steps after which the models have nothing more to do.
const WIRE_BYTES: usize = 1 << 20;
const IDLE_STEPS: u32 = 64;

/// What the host asks for, 4 KiB each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    Read,
    /// The data are the target's to read.
    Write,
    /// The data come with the command.
    WriteInCapsule,
}

impl FromStr for What {
    type Err = &'static str;

    fn from_str(name: &str) -> std::result::Result<Self, Self::Err> {
        match name {
            "read" => Ok(Self::Read),
            "write" => Ok(Self::Write),
            "write-in-capsule" => Ok(Self::WriteInCapsule),
            _ => Err("not read, write or write-in-capsule"),
        }
    }
}

/// All of it, in the order in which it goes.
pub struct Rig {
    _taken_over: TakenOver,
    /// The host's memory: 4 KiB for each command of a batch.
    pub mr: Mr,
    queue: HostQueue,
    _host: Host,
    /// The target, which is polled by hand. Its namespace 1 is RAM.
    pub server: Server,
    /// log2 of the bytes of a block: of namespaces that are offered, and of commands.
    pub block_shift: u8,
    ports: [Port; 2],
    models: Models,
}

impl Rig {
    /// A host that has connected, with room for a batch of so many commands.
    pub fn start(batch: usize) -> Result<Self> {
        Self::start_on(Link::boxed, batch)
    }

    /// The same, by a cable whose ends are made so.
    pub fn start_on(end: fn(Link) -> Box<dyn Wire>, batch: usize) -> Result<Self> {
        let models = Models::start(end)?;
        let [far, near] = [models.open(0)?, models.open(1)?];
        let at: SocketAddr = "10.9.0.1:4420".parse()?;
        let gid = |address| GidConfig { address, prefix_len: 24, gateway: None, vlan: None };
        let context = far.rdma()?;
        context.add_gid(gid(at.ip()))?;
        let target = Target::new(Settings::default());
        let mut server = Server::new(&context, target, &ServerConfig::default())?;
        let backend = server.add_ram(NAMESPACE_BYTES)?;
        server.target_mut().add_subsystem(Subsystem::new(NQN, "COST"))?;
        let blocks = NAMESPACE_BYTES as u64 / 512;
        server.target_mut().put_namespace(NQN, namespace(1, (blocks, 9), backend))?;
        let context = near.rdma()?;
        context.add_gid(gid([10, 9, 0, 2].into()))?;
        let pd = context.alloc_pd()?;
        let cm = ConnectionManager::open(&context, &CmConfig::default())?;
        let base = Base { context, pd, cm, target: at, page: PageSize::default() };
        // Connecting waits for the target, so that is polled beside it meanwhile.
        let connected = std::thread::scope(|scope| {
            let host = scope.spawn(|| connect(&base).map_err(|error| error.to_string()));
            while !host.is_finished() {
                server.poll()?;
            }
            host.join().map_err(|_| "the host panicked")?.map_err(Into::<Box<dyn Error>>::into)
        });
        let (host, queue) = connected?;
        let (_, mr) = host.memory(batch * LEN)?;
        // What is made once, at the first timers, is none of a command.
        pass_time(&mut server)?;
        pass_time(&mut server)?;
        let _taken_over = models.helper.take_over();
        let (ports, block_shift) = ([far, near], 9);
        Ok(Self { _taken_over, mr, queue, _host: host, server, block_shift, ports, models })
    }

    /// Offers another back end of the target, which has so many blocks.
    pub fn offer(&mut self, nsid: u32, blocks: u64, backend: usize) -> Result<()> {
        let namespace = namespace(nsid, (blocks, self.block_shift), backend);
        self.server.target_mut().put_namespace(NQN, namespace)?;
        pass_time(&mut self.server)
    }

    /// Memory of the target's port.
    pub fn memory(&self, len_bytes: usize) -> Result<Arc<Memory>> {
        Ok(backend::memory(&self.ports[0].rdma()?, len_bytes, PageSize::default())?)
    }

    /// Every timer of the target is due, once.
    pub fn pass_time(&mut self) -> Result<()> {
        pass_time(&mut self.server)
    }

    /// No host may stay: the end of each queue begins.
    pub fn send_away(&mut self) -> Result<()> {
        self.server.target_mut().set_hosts(NQN, Some(Vec::new()))?;
        // One finds that it is to end, the next one begins that.
        self.pass_time()?;
        self.pass_time()
    }

    /// The host gives a batch of commands for a namespace.
    pub fn submit(&mut self, what: What, nsid: u32, batch: usize) -> Result<()> {
        let each = LEN >> self.block_shift;
        for at in 0..batch {
            let buf = self.mr.buf(at * LEN..(at + 1) * LEN)?;
            let blocks = ((at * each) as u64, each as u32);
            let sqe = |opcode, sgl| Sqe::blocks(opcode, 0, nsid, blocks, sgl);
            let submitted = match what {
                What::Read => self.queue.submit(sqe(io::READ, keyed(&buf)))?,
                What::Write => self.queue.submit(sqe(io::WRITE, keyed(&buf)))?,
                What::WriteInCapsule => {
                    let sgl = Sgl::InCapsule { offset: 0, len: LEN as u32 };
                    self.queue.submit_with(sqe(io::WRITE, sgl), &[0x5a; LEN])?
                }
            };
            submitted.ok_or("the queue is full")?;
        }
        Ok(())
    }

    /// Lets the models do all that they have.
    pub fn settle(&self) {
        self.models.settle();
    }

    /// Lets the models do a little.
    pub fn nudge(&self) {
        self.models.helper.help();
    }

    /// Commands that were answered since this was last asked.
    pub fn answered(&mut self) -> Result<usize> {
        let mut answered = 0;
        while let Some(cqe) = self.queue.poll()? {
            if !cqe.status().is_success() {
                return Err(cqe.status().to_string().into());
            }
            answered += 1;
        }
        Ok(answered)
    }
}

/// Two cards on one cable.
struct Models {
    transports: [Arc<LocalTransport>; 2],
    helper: Arc<Helper>,
}

impl Models {
    fn start(end: fn(Link) -> Box<dyn Wire>) -> Result<Self> {
        let (one, other) = link(WIRE_BYTES);
        let card = |number: u8, wire: Link| -> Result<_> {
            let config = LocalConfig { seed: number.into(), ..LocalConfig::default() };
            let (transport, side) = pair(config)?;
            let mac = [2, 0xfc, 0, 0, 0, number];
            let mut nic = Nic::new(side, NicConfig { mac, ..NicConfig::default() });
            nic.datapath_mut().plug(end(wire));
            Ok((transport, nic))
        };
        let ((first, far), (second, near)) = (card(1, one)?, card(2, other)?);
        let runner = Runner::start(vec![far, near], RunnerConfig::default())?;
        let helper = Arc::new(runner.helper());
        for transport in [&first, &second] {
            let steps = Arc::clone(&helper);
            transport.set_idle_hook(Some(Arc::new(move || {
                steps.help();
            })));
        }
        first.keep(runner);
        Ok(Self { transports: [first, second], helper })
    }

    fn open(&self, at: usize) -> Result<Port> {
        let config = PortConfig { housekeeping: None, ..PortConfig::default() };
        Ok(Port::from_transport(self.transports[at].clone(), config)?)
    }

    fn settle(&self) {
        let mut idle = 0;
        while idle < IDLE_STEPS {
            idle = if self.helper.help() { 0 } else { idle + 1 };
        }
    }
}

/// Every timer of the target is due, once.
fn pass_time(server: &mut Server) -> Result<()> {
    std::thread::sleep(TICK);
    for _ in 0..CLOCK_EVERY {
        server.poll()?;
    }
    Ok(())
}

fn namespace(nsid: u32, (blocks, block_shift): (u64, u8), backend: usize) -> Namespace {
    let shape = identify::Namespace {
        blocks,
        block_shift,
        uuid: [nsid as u8; 16],
        is_read_only: false,
        deallocates: false,
    };
    Namespace { nsid, shape, backend, ana_group: 1 }
}

fn connect(base: &Base) -> Result<(Host, HostQueue)> {
    let host = Host::connect(base, &HostConfig::new(NQN))?;
    let queue = host.open_queue(1, 128, 0)?;
    Ok((host, queue))
}
