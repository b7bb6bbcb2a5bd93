//! `cxctl model serve`: the software ConnectX behind vfio-user sockets.
//!
//! Each socket is one PCI function with one port; QEMU's `vfio-user-pci` is the client. Ports are
//! joined by cables in memory, or lead to interfaces of the host. Each device runs on a thread of
//! its own, so that no guest keeps another's device from its work.
//!
//! Every register access is a message ("trap everything"): slow, and strict, because no doorbell
//! is lost between two looks. UAR pages are not offered for mapping. Linux rings all event queues,
//! all completion queues and its send queues on the same few pages; a send queue has a doorbell
//! record to fall back on, an event queue has none, so of two stores to its register one would be
//! lost, and an interrupt with it.
//!
//! Once it serves, the process gives up files, programs and the system calls that it does not need.

mod confine;
pub(crate) mod control;
mod engine;
mod function;
mod lines;
pub mod pci;
mod ports;
mod socket;
pub(crate) mod status;
#[cfg(test)]
mod tests;
mod wires;

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, ValueEnum};
use ferrocx_app_common::signal::Stop;
use ferrocx_bus::local::{DeviceSide, LocalConfig, pair};
use ferrocx_model::NicConfig;
use ferrocx_model::config::MIN_MEMORY_BYTES;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use self::engine::{Engine, Neighbours};
use self::function::{Function, Trust};
use self::pci::{MSIX_VECTORS, PciFunction};
use self::ports::Port;
pub use self::wires::WireSpec;
use self::wires::{WireOptions, Wires};

/// Which device the guest sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Identity {
    /// ConnectX-5, physical function (15b3:1017).
    Cx5,
    /// ConnectX-5, virtual function (15b3:1018).
    Cx5Vf,
    /// ConnectX-6 Dx, physical function (15b3:101d).
    Cx6dx,
}

impl From<Identity> for ferrocx_model::Identity {
    fn from(identity: Identity) -> Self {
        match identity {
            Identity::Cx5 => Self::ConnectX5,
            Identity::Cx5Vf => Self::ConnectX5Vf,
            Identity::Cx6dx => Self::ConnectX6Dx,
        }
    }
}

/// Ports of one process; each is two threads and a device.
const MAX_PORTS: usize = 16;

/// The least that a model takes, in MiB.
const MIN_MEMORY_MIB: u64 = MIN_MEMORY_BYTES >> 20;

/// What to serve.
#[derive(Debug, Args)]
pub struct Options {
    /// Path of a socket to open; one per port. It must not exist, and is deleted at the end.
    #[arg(long = "socket", value_name = "PATH", required = true)]
    pub sockets: Vec<PathBuf>,
    /// Which device a port is, once for each port; the last one holds for all further ports.
    #[arg(long = "identity", value_name = "DEVICE", value_enum, default_value = "cx5")]
    pub identities: Vec<Identity>,
    /// Path of a socket that tells each reader what the ports are doing, as JSON.
    #[arg(long, value_name = "PATH")]
    pub status: Option<PathBuf>,
    /// Path of a socket that takes orders for ports, such as `cxctl model vanish`.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Map any file that a client offers as memory. A client can then end this process by cutting
    /// off its file; QEMU's memory-backend-memfd is sealed against that and needs no trust.
    #[arg(long)]
    pub trust_clients: bool,
    /// Count DMA to memory from files of so many bytes apart, as `dma_watched_*` of the status: to
    /// tell the memory of a client's other device from its RAM.
    #[arg(long, value_name = "BYTES")]
    pub watch_dma: Option<u64>,
    /// MiB that the guest of each port can make its model hold: keys, queues, flow rules. What goes
    /// beyond is refused as a device refuses it that has no more (EXCEED_LIM).
    #[arg(long, value_name = "MIB", default_value_t = 256,
          value_parser = clap::value_parser!(u64).range(MIN_MEMORY_MIB..=1 << 20))]
    pub memory_per_function: u64,
    /// GiB that the client of each port can map, its guest's memory in each place counted.
    #[arg(long, value_name = "GIB", default_value_t = 1024,
          value_parser = clap::value_parser!(u64).range(1..=1 << 16))]
    pub mapped_per_function: u64,
    /// Serve without giving up files, programs and system calls first, and say in the log why: for
    /// a debugger, or a kernel that does not let this program do it.
    #[arg(long, value_name = "WHY")]
    pub unconfined: Option<String>,
    /// A device without RoCE: Ethernet only.
    #[arg(long)]
    pub no_roce: bool,
    /// What the ports are plugged into.
    #[command(flatten)]
    pub wires: WireOptions,
}

/// Takes as many descriptors as the process may have: each client of each port keeps an eventfd for
/// each of its vectors, and a file for each of its mappings.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let all = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, all) {
        tracing::warn!(%error, now = limit.current, "no more descriptors");
    }
}

/// Serves until interrupted (SIGINT, SIGTERM).
///
/// # Errors
///
/// A socket that cannot be opened, or a model that stopped.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let count = options.sockets.len();
    anyhow::ensure!(count <= MAX_PORTS, "{count} sockets; give at most {MAX_PORTS}");
    let stop = Stop::on_signals()?;
    let given = options.identities.len();
    anyhow::ensure!(given <= count, "{given} identities for {count} ports");
    let names: Vec<String> = options.sockets.iter().map(|path| port_name(path)).collect();
    let configs = port_configs(options, count);
    let addressed: Vec<_> =
        names.iter().cloned().zip(configs.iter().map(|config| config.mac)).collect();
    let Wires { wires, neighbours: joined, capture } = options.wires.build(&addressed)?;
    let local = LocalConfig {
        vectors: MSIX_VECTORS,
        max_mappings: mappings_per_port(count),
        max_mapped_bytes: mapped_bytes_per_port(options.mapped_per_function, count),
        ..LocalConfig::default()
    };
    let sockets = || options.sockets.iter().chain(&options.status).chain(&options.control);
    let made = Sockets::at(sockets().cloned())?;
    raise_descriptors();
    // Before the threads that it shall hold for.
    let begun = confine::begin(options.unconfined.as_deref(), sockets())?;
    let start = Instant::now();
    let trust = if options.trust_clients { Trust::Any } else { Trust::Sealed };
    let (mut served, mut listening) = (Vec::new(), Vec::new());
    let (mut sides, mut asks) = (Vec::new(), Vec::new());
    for (((path, config), name), wire) in options.sockets.iter().zip(configs).zip(names).zip(wires)
    {
        let server = socket::listen(path).with_context(|| format!("socket {}", path.display()))?;
        let (_driver, side) = pair(local.clone())?;
        let identity = config.identity;
        let function = PciFunction { device: identity.device_id(), is_vf: identity.is_vf() };
        let neighbours = Neighbours::default();
        let (port, ask) = Port::new(name.clone(), side.clone(), config, wire, neighbours.clone());
        let engine = Engine::start(&name, start, port)?;
        sides.push((name.clone(), side.clone()));
        asks.push((ask, engine.wake()));
        let watch = options.watch_dma;
        let wake = engine.wake();
        let function = Function::new(name.clone(), trust, watch, side.clone(), function, wake);
        served.push(Served { name, engine, side, neighbours });
        listening.push((server, function));
    }
    for (port, joined) in served.iter().zip(joined) {
        port.neighbours.set(joined.into_iter().map(|at| served[at].engine.wake()).collect());
    }
    for (port, (server, function)) in served.iter().zip(listening) {
        let name = port.name.clone();
        std::thread::Builder::new()
            .name(name.clone())
            .spawn(move || socket::serve(&server, &name, function))?;
    }
    if let Some(path) = &options.control {
        control::listen(path, sides)?;
    }
    if let Some(path) = &options.status {
        status::listen(path, asks, capture.clone())?;
    }
    begun.finish()?;
    let stopped = serve(&stop, served);
    drop(made);
    if let Some(capture) = capture {
        capture.finish()?;
    }
    anyhow::ensure!(stopped.is_empty(), "models stopped: {}; the log says why", stopped.join(", "));
    Ok(())
}

/// Paths at which sockets are made; they go with it.
struct Sockets(Vec<PathBuf>);

impl Sockets {
    /// Paths where nothing is, or a socket that a server has left which is gone.
    ///
    /// # Errors
    /// A path twice, or one where somebody serves, or that is no socket.
    fn at(paths: impl Iterator<Item = PathBuf>) -> anyhow::Result<Self> {
        let mut free = Vec::new();
        for path in paths {
            let shown = path.display();
            anyhow::ensure!(!free.contains(&path), "{shown} is named for two sockets");
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            anyhow::ensure!(
                folder.is_none_or(Path::is_dir),
                "socket {shown}: there is no such folder; make it, or name another path"
            );
            if path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket()) {
                let left = UnixStream::connect(&path)
                    .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
                anyhow::ensure!(left, "somebody serves {shown}; end it, or name another socket");
                std::fs::remove_file(&path)
                    .with_context(|| format!("{shown}, which a server has left"))?;
            }
            anyhow::ensure!(
                path.symlink_metadata().is_err(),
                "{shown} is there and no socket; name another path, or delete it"
            );
            free.push(path);
        }
        Ok(Self(free))
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A port at work.
struct Served {
    name: String,
    engine: Engine,
    side: DeviceSide,
    neighbours: Neighbours,
}

/// Waits for the end: of the program, or of the last model. One that stops takes no other with it.
/// Returns the names of those that stopped.
fn serve(stop: &Stop, mut served: Vec<Served>) -> Vec<String> {
    let mut stopped = Vec::new();
    while !stop.is_raised() && !served.is_empty() {
        std::thread::sleep(Duration::from_millis(50));
        for port in served.extract_if(.., |port| !port.engine.wake().is_running()) {
            tracing::error!(port = port.name, "the model stopped; its guest sees no device");
            stopped.push(port.name);
        }
    }
    for Served { engine, side, .. } in served {
        // A client may hold it in an interrupt.
        engine.end(|| side.free_interrupts());
    }
    stopped
}

/// Half of the mappings that the kernel grants a process, shared among the ports: a guest behind a
/// virtual IOMMU chooses how many there are, and the other half is for the process itself.
fn mappings_per_port(ports: usize) -> u32 {
    const KERNEL_DEFAULT: u32 = 65_530;
    let granted = std::fs::read_to_string("/proc/sys/vm/max_map_count")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(KERNEL_DEFAULT);
    let ports = u32::try_from(ports.max(1)).unwrap_or(u32::MAX);
    (granted / 2 / ports).clamp(1, LocalConfig::default().max_mappings)
}

/// What `--mapped-per-function` says, and at most half of the address space, shared by the ports.
fn mapped_bytes_per_port(gib: u64, ports: usize) -> u64 {
    const HALF_OF_ADDRESSES: u64 = 1 << 46;
    (gib << 30).min(HALF_OF_ADDRESSES / ports.max(1) as u64)
}

/// A port is called as its socket is.
fn port_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// The ports differ in the last byte of their address, and in what they say they are.
fn port_configs(options: &Options, count: usize) -> Vec<NicConfig> {
    let of = |index: u8| {
        let given = &options.identities;
        let identity = given.get(usize::from(index)).or(given.last());
        let mut config = NicConfig {
            identity: identity.copied().unwrap_or(Identity::Cx5).into(),
            roce: !options.no_roce,
            memory_bytes: options.memory_per_function << 20,
            ..NicConfig::default()
        };
        config.mac[5] = config.mac[5].wrapping_add(index);
        config
    };
    (0..=u8::MAX).take(count).map(of).collect()
}

#[cfg(test)]
mod limits {
    use super::{mapped_bytes_per_port, mappings_per_port};

    #[test]
    fn ports_share_the_mappings_of_the_process() {
        assert!((1..=65_535).contains(&mappings_per_port(1)));
        assert!(mappings_per_port(16) <= mappings_per_port(1));
        assert_eq!(mappings_per_port(usize::MAX), 1);
        assert_eq!(mapped_bytes_per_port(1024, 1), 1 << 40);
        assert_eq!(mapped_bytes_per_port(1 << 16, 1), 1 << 46);
        assert_eq!(mapped_bytes_per_port(1 << 16, 16), 1 << 42);
    }
}
