//! A target from its file to its end: [`Running`].

use std::hash::{BuildHasher, RandomState};
use std::io::stdout;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use ferrocx::lcore::{Lcores, StopFlag, Worker};
use ferrocx::verbs::GidConfig;
use ferrocx::{DeviceConfig, Port, PortConfig};
use ferrocx_app_common::report::say;
use ferrocx_app_common::signal::Stop;
use ferrocx_app_common::wait::Wait;

use crate::cli::Args;
use crate::config::{Config, File, check_readers};
use crate::control::{About, Control};
use crate::controller::{Settings, Target};
use crate::drive::Drives;
use crate::rpc;
use crate::stats::Registry;
use crate::store::NewFile;
use crate::transport::{Server, ServerConfig, ServerError};

/// How long hosts are told that the target goes.
const FAREWELL: Duration = Duration::from_secs(3);
/// Time between looks at the cores and at the signals.
const LOOK: Duration = Duration::from_millis(50);

/// Serves until it is told to stop.
///
/// # Errors
///
/// One sentence about the first thing that went wrong.
pub fn run(args: &Args, stop: &Stop) -> Result<()> {
    let (config, wait) = (read_config(args)?, args.wait.parse()?);
    if args.check {
        let subsystems = match config.subsystems.len() {
            1 => "1 subsystem".to_owned(),
            count => format!("{count} subsystems"),
        };
        let path = args.path()?.display();
        println!("{path}: {subsystems}, all right; of the machine, ask `nvmf-target doctor`");
        return Ok(());
    }
    let settings = DeviceConfig { mtu: config.mtu, ..DeviceConfig::default() };
    let port =
        Port::open_with(&config.device, PortConfig { device: settings, ..PortConfig::default() })
            .with_context(|| format!("device {}", config.device))?;
    let mut running = Running::start(&port, &config, wait)?;
    let registry = running.registry.clone();
    let control = running.control.take().ok_or_else(|| anyhow!("the target has no control"))?;
    let service = match &config.socket {
        Some(path) => rpc::Service::start(path, control, stop.clone()),
        None => Ok(rpc::Service::none(control)),
    };
    let service = match service {
        Ok(service) => service,
        Err(error) => {
            running.stop()?;
            return Err(error);
        }
    };
    say_where(&config);
    let every = Duration::from_secs(args.stats);
    let mut last = Instant::now();
    while !stop.is_raised() && !running.has_ended() {
        thread::sleep(LOOK);
        if args.stats > 0 && last.elapsed() >= every {
            last = Instant::now();
            print(&registry, args.json);
        }
    }
    print(&registry, args.json);
    // A request that is being carried out may take minutes, as a drive's start does: hosts are told
    // meanwhile. Nobody changes a target that goes.
    running.begin_stop();
    service.end();
    running.stop()?;
    Ok(port.close()?)
}

/// The file of a command line, checked.
///
/// # Errors
///
/// One sentence that names the value, its limit and the way out.
pub fn read_config(args: &Args) -> Result<Config> {
    let path = args.path()?;
    let place = || format!("{}", path.display());
    let text = std::fs::read_to_string(path).with_context(place)?;
    let mut file = File::parse(&text).with_context(place)?;
    if file.has_keys() {
        check_readers(path).with_context(place)?;
    }
    file.device = args.device.clone().unwrap_or(file.device);
    file.address = args.address.clone().unwrap_or(file.address);
    file.socket = args.socket.clone().or(file.socket);
    Config::check(file).with_context(place)
}

fn print(registry: &Registry, is_json: bool) {
    let snapshot = registry.snapshot();
    let text = if is_json { snapshot.json().to_string() } else { snapshot.text() };
    say(&format!("{text}\n"), stdout());
}

fn say_where(config: &Config) {
    let services: Vec<String> = config.server.services.iter().map(u16::to_string).collect();
    let (address, device) = (config.address, &config.device);
    say(
        &format!("listening at {address}, port {}, on {device}\n", services.join(" and ")),
        stdout(),
    );
    for subsystem in &config.subsystems {
        say(&format!("  {}: {} namespaces\n", subsystem.nqn, subsystem.namespaces.len()), stdout());
    }
}

/// A polling core's thread.
#[derive(Debug)]
enum Thread {
    Pinned(Worker<Result<(), ServerError>>),
    Free(JoinHandle<Result<(), ServerError>>),
}

impl Thread {
    fn has_ended(&self) -> bool {
        match self {
            Self::Pinned(worker) => worker.is_finished(),
            Self::Free(thread) => thread.is_finished(),
        }
    }

    fn join(self) -> Result<()> {
        Ok(match self {
            Self::Pinned(worker) => worker.join()?,
            Self::Free(thread) => thread.join().map_err(|_| anyhow!("the target panicked"))?,
        }?)
    }
}

/// A target whose cores run.
#[derive(Debug)]
pub struct Running {
    /// What asks and changes it, until somebody takes that.
    pub control: Option<Control>,
    /// Counters of all cores.
    pub registry: Arc<Registry>,
    stop: StopFlag,
    threads: Vec<Thread>,
    /// Behind the cores, whose commands they end.
    drives: Drives,
}

impl Running {
    /// Starts the cores, offers what a file says, and then listens: hosts that try again meanwhile
    /// find nobody, rather than a target that does not know what they want.
    ///
    /// # Errors
    ///
    /// What the system or the device refused.
    pub fn start(port: &Port, config: &Config, wait: Wait) -> Result<Self> {
        let context = port.rdma()?;
        let (address, prefix_len) = (config.address, config.prefix_len);
        context.add_gid(GidConfig { address, prefix_len, gateway: None, vlan: None })?;
        // Another one each time: see Settings.
        let first_cntlid = RandomState::new().hash_one(address) as u16 & 0x7fff | 1;
        let settings = Settings { first_cntlid, ..config.settings };
        let interrupts = match wait {
            Wait::Interrupt(apart) => Some(apart),
            _ => None,
        };
        let deaf = ServerConfig { services: Vec::new(), interrupts, ..config.server.clone() };
        let mut target = Target::new(settings);
        target.report_ana(&config.ana);
        let mut servers = vec![Server::new(&context, target, &deaf)?];
        for _ in 1..config.cores.len() {
            let another = servers[0].another()?;
            servers.push(another);
        }
        let about = About {
            version: env!("CARGO_PKG_VERSION"),
            device: config.device.clone(),
            address,
            cores: config.cores.clone(),
        };
        let mut control = Control::new(&mut servers, &context, about);
        let (registry, stop) = (control.registry().clone(), StopFlag::new());
        for core in &config.cores {
            if Lcores::is_remote(*core, context.device().info().numa_node) {
                tracing::warn!(core, "the core is on another NUMA node than the port");
            }
        }
        let threads = launch(servers, &config.cores, &stop, wait)?;
        let drives = control.drives();
        let mut running = Self { control: None, registry, stop, threads, drives };
        let offered = offer(&mut control, config);
        running.control = Some(control);
        match offered {
            Ok(()) => Ok(running),
            Err(error) => {
                running.stop()?;
                Err(error)
            }
        }
    }

    /// Whether a core has ended by itself, which [`Running::stop`] gives the reason of.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.threads.iter().any(Thread::has_ended)
    }

    /// Lets the cores end every queue in good order, and then themselves, without waiting for them.
    pub fn begin_stop(&self) {
        self.stop.stop();
    }

    /// Ends every queue in good order, and the cores.
    ///
    /// # Errors
    ///
    /// Why a core has ended by itself.
    pub fn stop(self) -> Result<()> {
        self.begin_stop();
        drop(self.control);
        let ended: Vec<Result<()>> = self.threads.into_iter().map(Thread::join).collect();
        drop(self.drives);
        ended.into_iter().collect()
    }
}

fn offer(control: &mut Control, config: &Config) -> Result<()> {
    let mut new_files = Vec::new();
    for subsystem in &config.subsystems {
        new_files.extend(control.offer(subsystem)?);
    }
    // From here on a host may have written to them.
    new_files.into_iter().for_each(NewFile::keep);
    for service in &config.server.services {
        control.add_port(*service, None)?;
    }
    Ok(())
}

fn launch(
    servers: Vec<Server>,
    cores: &[usize],
    stop: &StopFlag,
    wait: Wait,
) -> Result<Vec<Thread>> {
    if cores.is_empty() {
        let one = |server: Server| {
            let flag = stop.clone();
            let builder = thread::Builder::new().name("nvmf-poller".into());
            Ok(Thread::Free(builder.spawn(move || poll(server, &flag, wait))?))
        };
        return servers.into_iter().map(one).collect();
    }
    let lcores = Lcores::detect()?;
    let mut threads = Vec::with_capacity(cores.len());
    for (server, core) in servers.into_iter().zip(cores) {
        let run = move |flag: &StopFlag| poll(server, flag, wait);
        threads.push(Thread::Pinned(lcores.launch(*core, stop.clone(), run)?));
    }
    Ok(threads)
}

fn poll(mut server: Server, stop: &StopFlag, wait: Wait) -> Result<(), ServerError> {
    let nap = match wait {
        Wait::Sleep(nap) => nap,
        Wait::Interrupt(_) => Wait::SLEEP,
        Wait::Busy | Wait::Spin | Wait::Yield => Duration::ZERO,
    };
    while !stop.is_set() {
        if server.poll()? == 0 && !server.sleep(server.turn())? {
            wait.idle();
            server.napped(nap);
        }
    }
    server.stop(FAREWELL)
}
