//! What a command costs the target: run under callgrind, which counts `measured` alone.
//!
//! ```text
//! instructions read|write|write-in-capsule BATCH ROUNDS
//! ```
//!
//! Target and host are on two models of this process, which stand still while the target is polled
//! and do everything that they have before it is polled again: a batch is there as a whole, no
//! round finds nothing, and timers are due in every 64th round. Of a whole multiple of 64 ROUNDS,
//! the difference of two runs is thus the same whenever and wherever, and free of what a start
//! costs:
//!
//! ```text
//! cargo build --release -p ferrocx-nvmf-target --example instructions
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null \
//!     --toggle-collect='instructions::measured*' target/release/examples/instructions read 32 64
//! ```
//!
//! What is counted: everything from completions on, verbs and doorbells included, and a share of
//! the timers: a turn and a tick in 64 rounds, far more than a core has of them that polls as fast
//! as it can. What is not: the model, and the host.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ferrocx::bus::local::{LocalConfig, LocalTransport, pair};
use ferrocx::model::runner::{Helper, Runner, RunnerConfig};
use ferrocx::model::wire::{Link, link};
use ferrocx::model::{Nic, NicConfig};
use ferrocx::verbs::GidConfig;
use ferrocx::verbs::cm::{CmConfig, ConnectionManager};
use ferrocx::{PageSize, Port, PortConfig};
use ferrocx_nvmf_target::controller::{Namespace, Settings, Subsystem, Target};
use ferrocx_nvmf_target::host::{Base, Host, HostConfig, HostQueue, keyed};
use ferrocx_nvmf_target::proto::identify;
use ferrocx_nvmf_target::proto::sgl::Sgl;
use ferrocx_nvmf_target::proto::sqe::{Sqe, io};
use ferrocx_nvmf_target::transport::{Server, ServerConfig};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const NQN: &str = "nqn.2026-11.org.ferrocx:cost";
const LEN: usize = 4096;
const NAMESPACE_BYTES: usize = 16 << 20;
/// Rounds of the target between its looks at the clock, and a time after which a look finds every
/// timer due.
const CLOCK_EVERY: usize = 64;
const TICK: Duration = Duration::from_millis(25);
/// Bytes on a cable, and idle steps after which the models have nothing more to do.
const WIRE_BYTES: usize = 1 << 20;
const IDLE_STEPS: u32 = 64;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [what, batch, rounds] = args.as_slice() else {
        return Err("give read, write or write-in-capsule, BATCH and ROUNDS".into());
    };
    let (batch, rounds): (usize, usize) = (batch.parse()?, rounds.parse()?);
    let models = Models::start()?;
    let [far, near] = [models.open(0)?, models.open(1)?];
    let at: SocketAddr = "10.9.0.1:4420".parse()?;
    let gid = |address| GidConfig { address, prefix_len: 24, gateway: None, vlan: None };
    let context = far.rdma()?;
    context.add_gid(gid(at.ip()))?;
    let mut server =
        Server::new(&context, Target::new(Settings::default()), &ServerConfig::default())?;
    offer(&mut server)?;
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
    let (host, mut queue) = connected?;
    let (_, mr) = host.memory(batch * LEN)?;
    let data = vec![0x5a; LEN];
    // What is made once, at the first ticks, is none of a command.
    for _ in 0..2 {
        std::thread::sleep(TICK);
        for _ in 0..CLOCK_EVERY {
            server.poll()?;
        }
    }
    let _taken_over = models.helper.take_over();
    let mut polls = 0_usize;
    for _ in 0..rounds {
        for at in 0..batch {
            let buf = mr.buf(at * LEN..(at + 1) * LEN)?;
            let blocks = (at as u64 * 8, 8);
            let sqe = |opcode, sgl| Sqe::blocks(opcode, 0, 1, blocks, sgl);
            let submitted = match what.as_str() {
                "read" => queue.submit(sqe(io::READ, keyed(&buf)))?,
                "write" => queue.submit(sqe(io::WRITE, keyed(&buf)))?,
                _ => {
                    let sgl = Sgl::InCapsule { offset: 0, len: LEN as u32 };
                    queue.submit_with(sqe(io::WRITE, sgl), &data)?
                }
            };
            submitted.ok_or("the queue is full")?;
        }
        let mut done = 0;
        while done < batch {
            models.settle();
            if polls.is_multiple_of(CLOCK_EVERY) {
                std::thread::sleep(TICK);
            }
            polls += 1;
            if measured(&mut server)? == 0 {
                return Err("the target was polled and found nothing".into());
            }
            models.settle();
            while let Some(cqe) = queue.poll()? {
                assert!(cqe.status().is_success(), "{}", cqe.status());
                done += 1;
            }
        }
    }
    println!("{} commands, {polls} rounds of the target", batch * rounds);
    Ok(())
}

/// Two cards on one cable.
struct Models {
    transports: [Arc<LocalTransport>; 2],
    helper: Arc<Helper>,
}

impl Models {
    fn start() -> Result<Self> {
        let (one, other) = link(WIRE_BYTES);
        let card = |number: u8, wire: Link| -> Result<_> {
            let config = LocalConfig { seed: number.into(), ..LocalConfig::default() };
            let (transport, side) = pair(config)?;
            let mac = [2, 0xfc, 0, 0, 0, number];
            let mut nic = Nic::new(side, NicConfig { mac, ..NicConfig::default() });
            nic.datapath_mut().plug(wire);
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

    /// Lets them do all that they have.
    fn settle(&self) {
        let mut idle = 0;
        while idle < IDLE_STEPS {
            idle = if self.helper.help() { 0 } else { idle + 1 };
        }
    }
}

/// The measured part, under a name that callgrind can be told to count alone.
#[inline(never)]
fn measured(server: &mut Server) -> Result<usize> {
    Ok(server.poll()?)
}

fn offer(server: &mut Server) -> Result<()> {
    let backend = server.add_ram(NAMESPACE_BYTES)?;
    server.target_mut().add_subsystem(Subsystem::new(NQN, "COST"))?;
    let shape = identify::Namespace {
        blocks: NAMESPACE_BYTES as u64 / 512,
        block_shift: 9,
        uuid: [1; 16],
        is_read_only: false,
        deallocates: false,
    };
    let namespace = Namespace { nsid: 1, shape, backend, ana_group: 1 };
    Ok(server.target_mut().put_namespace(NQN, namespace)?)
}

fn connect(base: &Base) -> Result<(Host, HostQueue)> {
    let host = Host::connect(base, &HostConfig::new(NQN))?;
    let queue = host.open_queue(1, 128, 0)?;
    Ok((host, queue))
}
