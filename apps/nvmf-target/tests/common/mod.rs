//! A target and a host on two models in this process; the target has a thread of its own.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use ferrocx::verbs::cm::{CmConfig, ConnectionManager};
use ferrocx::verbs::{GidConfig, RdmaContext};
use ferrocx::{PageSize, Port, PortConfig};
use ferrocx_nvmf_target::backend::{self, Backend};
use ferrocx_nvmf_target::controller::{Namespace, Settings, Subsystem, Target};
use ferrocx_nvmf_target::host::{Base, Host, HostConfig, HostError};
use ferrocx_nvmf_target::proto::identify;
use ferrocx_nvmf_target::proto::status::Status;
use ferrocx_nvmf_target::transport::{Ready, Server, ServerConfig};

pub const NQN: &str = "nqn.2026-11.org.ferrocx:ram";
pub const PRIVATE: &str = "nqn.2026-11.org.ferrocx:private";
pub const BLOCK: usize = 512;
pub const BLOCKS: u64 = 16384;

/// Connects, as soon as no write of a connection that the host had before is under way any more:
/// until then the target is busy, and every host tries again.
pub fn connect(base: &Base, config: &HostConfig) -> Host {
    let begun = Instant::now();
    loop {
        match Host::connect(base, config) {
            Ok(host) => return host,
            Err(HostError::Refused { status: Status::CONNECT_BUSY, .. }) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "its writes do not end");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A change of the target, made between two rounds.
type Change = Box<dyn FnOnce(&mut Server) + Send>;

/// A host's side of a running target.
pub struct Here {
    pub base: Base,
    changes: Sender<Change>,
    /// The switch that the ports are on.
    net: String,
    _port: Port,
}

impl Here {
    /// Changes the target, and waits until that is done.
    pub fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Server) -> T + Send + 'static,
    ) -> T {
        self.begin(change).recv().unwrap()
    }

    /// Has the target's thread do something; what comes of it.
    pub fn begin<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Server) -> T + Send + 'static,
    ) -> Receiver<T> {
        let (done, wait) = channel();
        let change = move |server: &mut Server| drop(done.send(change(server)));
        self.changes.send(Box::new(change)).unwrap();
        wait
    }

    /// A port of another machine on the target's network, and what queues of it are made on.
    pub fn neighbour(&self, number: u8) -> (Port, Base) {
        let name = format!("model:net={},seed={}", self.net, 100 + u32::from(number));
        let port = Port::open_with(&name, PortConfig::default()).unwrap();
        let context = rdma(&port, [10, 9, 0, 100 + number].into());
        let pd = context.alloc_pd().unwrap();
        let cm = ConnectionManager::open(&context, &CmConfig::default()).unwrap();
        (port, Base { context, pd, cm, ..self.base.clone() })
    }

    pub fn host(&self) -> Host {
        connect(&self.base, &HostConfig::new(NQN))
    }

    /// Waits until commands hold `count` buffers: one that was brought from is free when its WRITE
    /// has ended for the target, too.
    pub fn until_held(&self, count: usize) {
        for _ in 0..1000 {
            if self.change(|server| server.held_buffers()) == count {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("a buffer is lost");
    }

    /// Waits until the target has `count` queues.
    pub fn until_queues(&self, count: u32) {
        for _ in 0..1000 {
            self.base.cm.poll();
            if self.change(|server| server.stats().queues) == count {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("the target does not come to {count} queues");
    }
}

fn rdma(port: &Port, address: IpAddr) -> RdmaContext {
    let context = port.rdma().unwrap();
    let prefix_len = if address.is_ipv4() { 24 } else { 64 };
    context.add_gid(GidConfig { address, prefix_len, gateway: None, vlan: None }).unwrap();
    context
}

pub fn namespace(nsid: u32, blocks: u64, backend: usize) -> Namespace {
    let shape = identify::Namespace {
        blocks,
        block_shift: 9,
        uuid: [nsid as u8; 16],
        is_read_only: false,
        deallocates: false,
    };
    Namespace { nsid, shape, backend, ana_group: 1 }
}

/// Offers RAM whose blocks are read and written as one.
pub fn add_whole(here: &Here, nsid: u32, blocks: u64) {
    here.change(move |server| {
        let ram = server.add_whole_ram(blocks as usize * BLOCK, 9).unwrap();
        server.target_mut().put_namespace(NQN, namespace(nsid, blocks, ram)).unwrap();
    });
}

/// Offers a file of as many blocks; whether this machine has io_uring, and why the test is skipped
/// where it has not.
#[must_use]
pub fn offers_file(here: &Here, nsid: u32, blocks: u64, file: File) -> bool {
    let offered = here.change(move |server| {
        let backend = server.add_file(file).map_err(|error| error.to_string())?;
        let namespace = namespace(nsid, blocks, backend);
        server.target_mut().put_namespace(NQN, namespace).map_err(|error| error.to_string())
    });
    offered.inspect_err(|error| println!("skipped: {error}")).is_ok()
}

/// The same, of a file of zeros that goes with the target.
#[must_use]
pub fn offers_new_file(here: &Here, nsid: u32, blocks: u64) -> bool {
    let file = tempfile::tempfile().unwrap();
    file.set_len(blocks * BLOCK as u64).unwrap();
    offers_file(here, nsid, blocks, file)
}

/// A target with a subsystem of RAM for all, and one for nobody.
fn offer(server: &mut Server) {
    let ram = server.add_ram(BLOCKS as usize * BLOCK).unwrap();
    let null = server.add_null().unwrap();
    let mut target = server.target_mut();
    target.add_subsystem(Subsystem::new(NQN, "SN-1")).unwrap();
    let hosts = Some(vec!["nqn.2026-11.org.ferrocx:nobody".to_owned()]);
    target.add_subsystem(Subsystem::new(PRIVATE, "SN-2").for_hosts(hosts)).unwrap();
    target.put_namespace(NQN, namespace(1, BLOCKS, ram)).unwrap();
    target.put_namespace(NQN, namespace(3, BLOCKS, null)).unwrap();
}

fn serve(server: &mut Server, changes: &Receiver<Change>, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        for change in changes.try_iter() {
            change(server);
        }
        if server.poll().unwrap() == 0 {
            thread::yield_now();
        }
    }
    server.stop(Duration::from_secs(5)).unwrap();
}

/// A page of a log once it says what is due, which cores tell each 20 ms; or after ten seconds.
pub fn log_in_time(
    host: &mut Host,
    (lid, len): (u8, usize),
    is_due: impl Fn(&[u8]) -> bool,
) -> Vec<u8> {
    let begun = Instant::now();
    loop {
        let page = host.log(lid, 0, len).unwrap();
        if is_due(&page) || begun.elapsed() > Duration::from_secs(10) {
            return page;
        }
    }
}

/// Runs a test against a running target.
pub fn with_target(test: impl FnOnce(&Here)) {
    with(Settings::default(), ServerConfig::default(), test);
}

/// Runs a test against a running target of these sizes.
pub fn with(settings: Settings, config: ServerConfig, test: impl FnOnce(&Here)) {
    with_cores(1, settings, config, test);
}

/// Runs a test against a running target that one or two threads poll; with two, namespace 1 is the
/// only one.
pub fn with_cores(
    cores: usize,
    settings: Settings,
    config: ServerConfig,
    test: impl FnOnce(&Here),
) {
    between(["10.9.0.1", "10.9.0.2"], (cores, settings, config), test);
}

/// Runs a test against a running target of this address, with a host of the other.
pub fn between(
    [target, host]: [&str; 2],
    (cores, settings, config): (usize, Settings, ServerConfig),
    test: impl FnOnce(&Here),
) {
    static NUMBER: AtomicU16 = AtomicU16::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    // A switch of its own for each test.
    let net = format!("nvmf{}-{number}", std::process::id());
    let open = |seed: u8| {
        let name = format!("model:net={net},seed={seed}");
        Port::open_with(&name, PortConfig::default()).unwrap()
    };
    let (far, near) = (open(1), open(2));
    let at = SocketAddr::new(target.parse().unwrap(), 4420);
    let served = rdma(&far, at.ip());
    let mut server = Server::new(&served, Target::new(settings), &config).unwrap();
    let mut other = None;
    if cores == 2 {
        let another = other.insert(server.another().unwrap());
        let memory = backend::memory(&served, BLOCKS as usize * BLOCK, config.page).unwrap();
        for server in [&mut server, another] {
            let ready = Ready::Direct(Backend::ram(server.pd(), &memory).unwrap());
            server.put_backend(0, ready, (NQN, 1)).unwrap();
        }
        let mut target = server.target_mut();
        target.add_subsystem(Subsystem::new(NQN, "SN-1")).unwrap();
        target.put_namespace(NQN, namespace(1, BLOCKS, 0)).unwrap();
    } else {
        offer(&mut server);
    }
    let context = rdma(&near, host.parse().unwrap());
    let pd = context.alloc_pd().unwrap();
    let cm = ConnectionManager::open(&context, &CmConfig::default()).unwrap();
    let (changes, received) = channel();
    let here = Here {
        base: Base { context, pd, cm, target: at, page: PageSize::default() },
        changes,
        net,
        _port: near,
    };
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let server = &mut server;
        let stop_it = StopAtEnd(&stop);
        let flag = &stop;
        scope.spawn(move || serve(server, &received, flag));
        if let Some(other) = &mut other {
            scope.spawn(move || serve(other, &channel().1, flag));
        }
        test(&here);
        drop(stop_it);
    });
    drop(here);
    drop((other, server));
    drop(far);
}

/// Ends the target, or another thread, even when the test fails.
pub struct StopAtEnd<'a>(pub &'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
