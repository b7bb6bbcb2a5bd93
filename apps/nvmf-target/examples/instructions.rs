//! What a command costs the target: run under callgrind, which counts `measured` alone.
//!
//! ```text
//! instructions read|write|write-in-capsule BATCH ROUNDS
//! ```
//!
//! Target and host are on two models of this process. The target is polled seldom, so that a batch
//! is there as a whole; the difference of two runs with other ROUNDS is free of what a start costs:
//!
//! ```text
//! cargo build --release -p ferrocx-nvmf-target --example instructions
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null \
//!     --toggle-collect='instructions::measured*' target/release/examples/instructions read 32 10
//! ```
//!
//! What is counted: everything from completions on, verbs, doorbells and a share of the timers
//! included. What is not: the model, and the host.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use ferrocx::verbs::GidConfig;
use ferrocx::verbs::cm::{CmConfig, ConnectionManager};
use ferrocx::{Port, PortConfig};
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
/// Time for the models to move what was posted, so that few rounds find nothing.
const PAUSE: Duration = Duration::from_millis(20);

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [what, batch, rounds] = args.as_slice() else {
        return Err("give read, write or write-in-capsule, BATCH and ROUNDS".into());
    };
    let (batch, rounds): (usize, usize) = (batch.parse()?, rounds.parse()?);
    let [far, near] = Port::open_all_with(["model", "model"], PortConfig::default())?;
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
    let base = Base { context, pd, cm, target: at };

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
            std::thread::sleep(PAUSE);
            measured(&mut server)?;
            std::thread::sleep(PAUSE);
            while let Some(cqe) = queue.poll()? {
                assert!(cqe.status().is_success(), "{}", cqe.status());
                done += 1;
            }
        }
    }
    println!("{} commands", batch * rounds);
    Ok(())
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
