//! A target from its file to its end.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ferrocx::verbs::GidConfig;
use ferrocx::{DeviceConfig, Port, PortConfig};
use ferrocx_app_common::signal::Stop;
use ferrocx_app_common::wait::Wait;

use rustix::fs::{FlockOperation, OFlags, flock};

use crate::cli::Args;
use crate::config::{Config, File, NamespaceConfig, Store, length};
use crate::controller::{Namespace, Settings, Subsystem, Target};
use crate::proto::identify;
use crate::stats::Snapshot;
use crate::transport::Server;

/// How long hosts are told that the target goes.
const FAREWELL: Duration = Duration::from_secs(3);
/// Rounds between looks at the clock for statistics.
const LOOK_EVERY: u32 = 4096;

/// Serves until it is told to stop.
///
/// # Errors
///
/// One sentence about the first thing that went wrong.
pub fn run(args: &Args, stop: &Stop) -> Result<()> {
    let place = || format!("{}", args.config.display());
    let text = std::fs::read_to_string(&args.config).with_context(place)?;
    let mut file: File = toml::from_str(&text).with_context(place)?;
    file.device = args.device.clone().unwrap_or(file.device);
    file.address = args.address.clone().unwrap_or(file.address);
    let config = Config::check(file).with_context(place)?;
    let wait: Wait = args.wait.parse()?;
    if args.check {
        println!("{}: {} subsystems, all right", args.config.display(), config.subsystems.len());
        return Ok(());
    }
    let settings = DeviceConfig { mtu: config.mtu, ..DeviceConfig::default() };
    let port =
        Port::open_with(&config.device, PortConfig { device: settings, ..PortConfig::default() })
            .with_context(|| format!("device {}", config.device))?;
    let mut server = serve(&port, &config)?;
    say_where(&config);
    let every = Duration::from_secs(args.stats);
    let (mut last, mut round) = (Instant::now(), 0u32);
    while !stop.is_raised() {
        if server.poll()? == 0 {
            wait.idle();
        }
        round = round.wrapping_add(1);
        if args.stats > 0 && round.is_multiple_of(LOOK_EVERY) && last.elapsed() >= every {
            last = Instant::now();
            print(&server, args.json);
        }
    }
    print(&server, args.json);
    server.stop(FAREWELL)?;
    drop(server);
    Ok(port.close()?)
}

fn print(server: &Server, is_json: bool) {
    let snapshot = Snapshot::of(server);
    match is_json {
        true => println!("{}", snapshot.json()),
        false => print!("{}", snapshot.text()),
    }
}

fn say_where(config: &Config) {
    let services: Vec<String> = config.server.services.iter().map(u16::to_string).collect();
    let (address, device) = (config.address, &config.device);
    println!("listening at {address}, port {}, on {device}", services.join(" and "));
    for subsystem in &config.subsystems {
        println!("  {}: {} namespaces", subsystem.nqn, subsystem.namespaces.len());
    }
}

/// A server on a port that offers what a file says.
///
/// # Errors
///
/// What the system or the device refused.
pub fn serve(port: &Port, config: &Config) -> Result<Server> {
    let context = port.rdma()?;
    let (address, prefix_len) = (config.address, config.prefix_len);
    context.add_gid(GidConfig { address, prefix_len, gateway: None, vlan: None })?;
    // Another one each time: see Settings.
    let first_cntlid = RandomState::new().hash_one(address) as u16 & 0x7fff | 1;
    let settings = Settings { first_cntlid, ..config.settings };
    let mut server = Server::new(&context, Target::new(settings), &config.server)?;
    for subsystem in &config.subsystems {
        let hosts = subsystem.hosts.clone();
        let offered = Subsystem::new(&subsystem.nqn, &subsystem.serial);
        server.target_mut().add_subsystem(offered.for_hosts(hosts))?;
        for namespace in &subsystem.namespaces {
            let place = || format!("namespace {} of {}", namespace.nsid, subsystem.nqn);
            offer(&mut server, &subsystem.nqn, namespace).with_context(place)?;
        }
    }
    Ok(server)
}

fn offer(server: &mut Server, nqn: &str, config: &NamespaceConfig) -> Result<()> {
    let (backend, len_bytes) = match &config.store {
        Store::Ram => {
            let len_bytes = config.len_bytes.unwrap_or(0);
            (server.add_ram(usize::try_from(len_bytes)?)?, len_bytes)
        }
        Store::Null => (server.add_null()?, config.len_bytes.unwrap_or(0)),
        Store::File { path, is_direct } => {
            let place = || format!("file {}", path.display());
            let (file, len) = open_file(path, *is_direct, config).with_context(place)?;
            (server.add_file(file)?, len)
        }
    };
    let shape = identify::Namespace {
        blocks: len_bytes >> config.block_shift,
        block_shift: config.block_shift,
        uuid: config.uuid,
        is_read_only: config.read_only,
        deallocates: false,
    };
    let has_cache = matches!(config.store, Store::File { .. });
    let namespace = Namespace { nsid: config.nsid, shape, has_cache, backend };
    Ok(server.target_mut().put_namespace(nqn, namespace)?)
}

/// Opens a file or a block device, for this process only; it and its length.
fn open_file(path: &Path, is_direct: bool, config: &NamespaceConfig) -> Result<(fs::File, u64)> {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(!config.read_only);
    options.create(config.len_bytes.is_some() && !config.read_only).truncate(false);
    if is_direct {
        options.custom_flags(OFlags::DIRECT.bits() as i32);
    }
    let mut file = options.open(path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).context("somebody else has it")?;
    let mut len = file.seek(SeekFrom::End(0))?;
    if let Some(wanted) = config.len_bytes {
        if len < wanted && file.metadata()?.is_file() && !config.read_only {
            file.set_len(wanted)?;
            len = wanted;
        }
        ensure!(len >= wanted, "it has {len} bytes, and size is {wanted}; make size smaller");
        len = wanted;
    }
    // What is behind the last whole block is nobody's.
    let len = len >> config.block_shift << config.block_shift;
    Ok((file, length(len, 1 << config.block_shift)?))
}
