//! [`Node`]: the one device of a process, whoever opens it, and what makes its model run: the
//! software model, or the adapter that the environment names.
//!
//! Whoever polls and finds nothing steps the model; a thread of the library serves everybody else:
//! peers that read and write this process's memory, waiters for events, retransmissions. It sleeps
//! until a peer calls, or for a millisecond; a peer calls only when nobody looks into its ring. An
//! adapter works by itself: there the thread answers its firmware, its neighbours and the
//! connection manager's peers.

mod adapter;
mod address;
mod children;
mod events;
mod groups;
mod hub;
mod links;
mod live;
mod local;
mod peers;
mod ring;
mod sleep;
mod sockets;
mod thread;
mod udp;
mod wire;

pub(crate) use children::{MESSAGE_BYTES, Requests};
pub(crate) use events::Listener;
pub(crate) use groups::Membership;
pub(crate) use hub::{Hub, Mailbox};
pub(crate) use links::Known;
pub(crate) use sleep::Polled;

use std::fs::File;
use std::io::BufWriter;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::yield_now;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, io, process};

use crate::face::life::Process;
use crate::face::signals::held_back;
use ferrocx_bus::local::{LocalConfig, pair};
use ferrocx_bus::{PciIdentity, Transport};
use ferrocx_core::{Device, DeviceConfig, MacAddr};
use ferrocx_mempool::PageSize;
use ferrocx_model::wire::{Capture, CaptureFile, Impair, ImpairConfig, SplitMix64, Wire};
use ferrocx_model::{Nic, NicConfig};
use ferrocx_verbs_lite::net::Network;
use ferrocx_verbs_lite::{Gid, GidConfig, GidEntry, Path, RdmaContext};

use address::{Address, mac_of};
use events::Events;
use live::Live;
use ring::now_ns;
use sleep::{ROUND, Sleep};
use sockets::Sockets;
use wire::HostWire;

/// Largest IP packet where nothing says otherwise: of one machine, and of Ethernet.
const LOCAL_MTU: u16 = 4200;
const ETHERNET_MTU: u16 = 1500;
/// Addresses of processes on one machine that ask for none: 127.88.0.1 and up. Any user may bind
/// to all of 127.0.0.0/8.
const FIRST_LOCAL: u32 = 0x7f58_0001;
const LOCALS: u32 = 0xffe;
/// Shortest wait for an answer, in nanoseconds: with the usual seven retries, a peer may stand
/// still for eight seconds. Programs ask for 67 ms, which a process that shares its processor with
/// others can be without one, again and again; what a wire of one machine carries is rarely lost.
const MIN_ACK_TIMEOUT_NS: u64 = 1_000_000_000;
/// Longest sleep of the thread while nobody polls, its naps while somebody does, and how soon it
/// looks again when there is something that somebody is at already.
const SLEEP: Duration = Duration::from_millis(1);
const NAP: Duration = Duration::from_micros(500);
const GLANCE: Duration = Duration::from_micros(50);
/// A part of a wait for an event, after which the caller goes on waiting: so soon a thread ends
/// that is cancelled meanwhile.
pub(crate) const WHILE: Duration = Duration::from_millis(50);
/// How long a caller polls for nothing, in nanoseconds, before it sleeps for a glance instead of
/// giving its turn away: who sleeps is woken as soon as a peer calls, who yields waits until all
/// others on its core had a turn.
const KEEN_NS: u64 = 50_000;
/// How long after a poll for nothing the next one is believed to come, in nanoseconds: pollers that
/// share a core let each other in.
const AT_IT_NS: u64 = 20_000;
/// Steps of the thread in a row, so that callers get their turn.
const STEPS: u32 = 64;

/// Locks, whoever panicked under the lock.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Since when callers have polled for nothing, at whatever device; 0 when something has been done
/// since.
static IDLE_NS: AtomicU64 = AtomicU64::new(0);

/// The software device, in this process.
#[derive(Debug)]
struct Model {
    nic: Mutex<Nic>,
    sockets: Arc<Sockets>,
    /// When somebody polled for nothing last.
    polled_ns: AtomicU64,
    /// Who may step it: a child has a copy, whose rings are shared with other processes.
    process: Process,
}

impl Model {
    /// One step, unless somebody else is making one. Whether anything was done.
    // A function of its own, like `Node::step_idle`.
    #[inline(never)]
    fn step(&self) -> bool {
        if self.process.here().is_err() {
            return false;
        }
        let Ok(mut nic) = self.nic.try_lock() else { return false };
        let is_busy = nic.step(now_ns());
        if is_busy && IDLE_NS.load(Ordering::Relaxed) != 0 {
            IDLE_NS.store(0, Ordering::Relaxed);
        }
        is_busy
    }

    /// Whether somebody has polled for nothing just now.
    fn is_polled(&self) -> bool {
        now_ns().saturating_sub(self.polled_ns.load(Ordering::Relaxed)) < AT_IT_NS
    }

    /// Whether a caller that polls for nothing has not done so for long.
    fn is_keen(&self) -> bool {
        let now_ns = now_ns();
        let last_ns = self.polled_ns.swap(now_ns, Ordering::Relaxed);
        let idle_ns = IDLE_NS.load(Ordering::Relaxed);
        // One that did something else meanwhile starts anew.
        if idle_ns == 0 || now_ns.saturating_sub(last_ns) > KEEN_NS {
            IDLE_NS.store(now_ns, Ordering::Relaxed);
            return true;
        }
        now_ns.saturating_sub(idle_ns) < KEEN_NS
    }
}

/// A device that this process uses.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) context: RdmaContext,
    /// Index 0 of the GID table as programs see it: the address that they reach each other by.
    pub(crate) address: GidEntry,
    model: Option<Arc<Model>>,
    /// The Ethernet side of an adapter's port. The model's peers need none: their MAC addresses
    /// follow from their IP addresses.
    network: Option<Mutex<Network>>,
    /// This process has other devices besides.
    has_others: bool,
    /// Polls that found nothing since the thread last looked.
    empty_polls: AtomicU32,
    /// Callers that sleep and step the model when they wake.
    sleepers: AtomicUsize,
    /// Interrupt vectors that nobody has, and what those share who have none of their own.
    vectors: Mutex<Vectors>,
    /// Asynchronous events, and where they go.
    events: Events,
    /// What children of this process ask of it.
    pub(crate) requests: Requests,
    /// Who has work to do whenever the model has made steps.
    turns: Mutex<Option<Weak<dyn Turn>>>,
    /// The last to go: what it has of the machine is free again then.
    live: Live,
}

/// Interrupt vectors of completion channels.
#[derive(Debug)]
struct Vectors {
    free: Vec<u16>,
    /// So many are kept for hubs.
    kept: usize,
    hubs: Vec<Arc<Hub>>,
}

impl Vectors {
    fn new(count: u16) -> Self {
        let free: Vec<_> = (1..count).rev().collect();
        Self { kept: (free.len() / 4).max(1), free, hubs: Vec::new() }
    }
}

/// Somebody who has work to do now and then.
pub(crate) trait Turn: Send + Sync + std::fmt::Debug {
    /// Does what is due.
    fn turn(&self);
}

/// A process, and its nodes by their numbers: a child after a fork has none.
static NODES: Mutex<(u32, Vec<Weak<Node>>)> = Mutex::new((0, Vec::new()));

/// A variable of the environment, if it says anything.
fn setting(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// What a variable of the environment says of the device of a number: they stand in order, between
/// commas.
fn setting_of(name: &str, index: usize) -> Option<String> {
    let all = setting(name)?;
    all.split(',').nth(index).filter(|value| !value.is_empty()).map(str::to_owned)
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

/// Takes the address that the environment names for a device, or the first that is free.
fn take_address(index: usize) -> io::Result<Sockets> {
    if let Some(text) = setting_of("FERROCX_IP", index) {
        return Sockets::bind(Address::read(&text)?);
    }
    let mut last = io::ErrorKind::AddrInUse.into();
    for offset in 0..LOCALS {
        match Sockets::bind(Ipv4Addr::from_bits(FIRST_LOCAL + offset).into()) {
            Ok(sockets) => return Ok(sockets),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The largest packet of the port, where nothing says otherwise `usual`.
fn mtu_of(usual: u16) -> io::Result<u16> {
    let Some(text) = setting("FERROCX_MTU") else { return Ok(usual) };
    text.parse().ok().filter(|mtu| (352..=9978).contains(mtu)).ok_or_else(|| {
        invalid(format!("FERROCX_MTU is {text}; it must be 352 to 9978, the bytes of an IP packet"))
    })
}

/// The wire of a port, with what the environment says goes wrong on it, and who looks.
fn wire_of(sockets: &Arc<Sockets>) -> io::Result<Box<dyn Wire>> {
    let address = sockets.address;
    let mut wire: Box<dyn Wire> = Box::new(HostWire::new(Arc::clone(sockets)));
    if let Some(folder) = setting("FERROCX_CAPTURE") {
        let path = std::path::Path::new(&folder).join(format!("{}.pcapng", address.ip));
        let unwritten = |error: &dyn std::fmt::Display| {
            let path = path.display();
            invalid(format!(
                "the capture {path} cannot be written ({error}); FERROCX_CAPTURE must be a folder \
                 of yours"
            ))
        };
        let file = File::create(&path).map_err(|error| unwritten(&error))?;
        // Device time is the machine's since it was started; a capture's is the clock's.
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let start_ns = u64::try_from(since_1970.as_nanos()).unwrap_or(0) - now_ns();
        let file = CaptureFile::live(BufWriter::new(file), start_ns);
        let file = file.map_err(|error| unwritten(&error))?;
        let capture = Capture::new(wire, &file, &address.ip.to_string());
        wire = Box::new(capture.map_err(|error| unwritten(&error))?);
    }
    let config: ImpairConfig = setting("FERROCX_IMPAIR")
        .unwrap_or_default()
        .parse()
        .map_err(|error| invalid(format!("FERROCX_IMPAIR: {error}")))?;
    if config == ImpairConfig::default() {
        return Ok(wire);
    }
    let seed = setting("FERROCX_SEED").unwrap_or_else(|| "1".into());
    let seed: u64 = seed
        .parse()
        .map_err(|_| invalid(format!("FERROCX_SEED is {seed}; it must be a number")))?;
    // Each port's frames go wrong in an order of their own.
    let [.., a, b, c, d] = address.mac();
    let seed = SplitMix64::new(seed ^ u64::from_be_bytes([a, b, c, d, 0, 0, 0, 0]));
    Ok(Box::new(Impair::new(wire, config, seed)))
}

/// A refusal of a layer below, as the system's kind of error.
fn refused(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

impl Node {
    /// How many devices this process has: as many as `FERROCX_DEVICE` names, or one.
    pub(crate) fn count() -> usize {
        setting("FERROCX_DEVICE").map_or(1, |all| all.split(',').count())
    }

    /// The node of a device of this process, which is made when it is first asked for.
    ///
    /// # Errors
    ///
    /// What keeps the device from being opened, in one sentence.
    pub(crate) fn open(index: usize) -> io::Result<Arc<Self>> {
        let mut nodes = lock(&NODES);
        if nodes.0 != process::id() {
            *nodes = (process::id(), Vec::new());
        }
        if let Some(open) = nodes.1.get(index).and_then(Weak::upgrade) {
            return Ok(open);
        }
        // One that is about to end still has its address, or its adapter.
        Live::wait_for_none(index);
        let opened = held_back(|| {
            let device = setting_of("FERROCX_DEVICE", index);
            let opened = match device.filter(|device| device != "model") {
                Some(pci) => adapter::open(pci, index)?,
                None => Self::open_model(index)?,
            };
            thread::start(&opened)?;
            Ok::<_, io::Error>(opened)
        })?;
        let least = nodes.1.len().max(index + 1);
        nodes.1.resize(least, Weak::new());
        nodes.1[index] = Arc::downgrade(&opened);
        Ok(opened)
    }

    /// The node of a device, which stays until the process ends: what is said of it now, its number
    /// and its address, holds when it is opened again.
    ///
    /// # Errors
    ///
    /// Those of [`Node::open`].
    pub(crate) fn open_and_keep(index: usize) -> io::Result<Arc<Self>> {
        static KEPT: Mutex<(u32, Vec<Arc<Node>>)> = Mutex::new((0, Vec::new()));
        let node = Self::open(index)?;
        let mut kept = lock(&KEPT);
        if kept.0 != process::id() {
            // The parent's: a child has neither their threads nor their locks.
            std::mem::forget(std::mem::replace(&mut *kept, (process::id(), Vec::new())));
        }
        if !kept.1.iter().any(|other| Arc::ptr_eq(other, &node)) {
            kept.1.push(Arc::clone(&node));
        }
        Ok(node)
    }

    fn open_model(index: usize) -> io::Result<Arc<Self>> {
        let sockets = Arc::new(take_address(index)?);
        let address = sockets.address;
        let mtu = mtu_of(if address.ip.is_loopback() { LOCAL_MTU } else { ETHERNET_MTU })?;
        let mac = address.mac();
        let min_ack_timeout_ns = MIN_ACK_TIMEOUT_NS;
        let config = NicConfig { mac, roce: true, min_ack_timeout_ns, ..NicConfig::default() };
        let identity = PciIdentity {
            vendor: PciIdentity::VENDOR_MELLANOX,
            device: config.identity.device_id(),
            name: "model".into(),
            numa_node: None,
        };
        let seed = u64::from(process::id()) | (index as u64) << 32;
        let local = LocalConfig { identity, seed, ..LocalConfig::default() };
        let (transport, side) = pair(local).map_err(refused)?;
        let mut nic = Nic::new(side, config);
        nic.datapath_mut().plug(wire_of(&sockets)?);
        let model = Arc::new(Model {
            nic: Mutex::new(nic),
            sockets,
            polled_ns: AtomicU64::new(0),
            process: Process::this(),
        });
        let stepped = Arc::clone(&model);
        transport.set_idle_hook(Some(Arc::new(move || {
            if !stepped.step() {
                yield_now();
            }
        })));
        let transport: Arc<dyn Transport> = transport;
        let settings = DeviceConfig { mtu, page: PageSize::Base4K, ..DeviceConfig::default() };
        let device = Device::open(transport, &settings).map_err(refused)?;
        let context = RdmaContext::open(&device).map_err(refused)?;
        // Every peer is on the link: its MAC address follows from its IP address.
        let gid = GidConfig { address: address.ip, prefix_len: 0, gateway: None, vlan: None };
        let own = context.gids().into_iter().find(|entry| entry.gid.ip() == address.ip);
        let entry = own.map_or_else(|| context.add_gid(gid).map_err(refused), Ok)?;
        tracing::info!(address = %address.ip, mtu, "the model is up");
        Self::of(index, context, entry, Some(model), None)
    }

    fn of(
        index: usize,
        context: RdmaContext,
        address: GidEntry,
        model: Option<Arc<Model>>,
        network: Option<Mutex<Network>>,
    ) -> io::Result<Arc<Self>> {
        let vectors = Vectors::new(context.device().interrupt_vectors());
        Ok(Arc::new(Self {
            context,
            address,
            model,
            network,
            has_others: Self::count() > 1,
            empty_polls: AtomicU32::new(0),
            sleepers: AtomicUsize::new(0),
            vectors: Mutex::new(vectors),
            events: Events::default(),
            requests: Requests::new()?,
            turns: Mutex::default(),
            live: Live::new(index),
        }))
    }

    /// Whether the device is the software model, whose peers may be processes of this machine.
    pub(crate) fn is_model(&self) -> bool {
        self.model.is_some()
    }

    /// One step of the model, for a caller that has posted something. Whether anything was done.
    pub(crate) fn step(&self) -> bool {
        self.model.as_ref().is_some_and(|model| model.step())
    }

    /// One step of the model for a caller that polled a queue and found nothing. Whether there may
    /// be something now; an adapter needs no such step.
    pub(crate) fn turn(&self, polled: &Polled) -> bool {
        self.model.as_ref().is_some_and(|model| self.step_idle(model, polled))
    }

    // A function of its own: what a card does by itself is counted apart.
    #[cold]
    #[inline(never)]
    fn step_idle(&self, model: &Model, polled: &Polled) -> bool {
        self.empty_polls.fetch_add(1, Ordering::Relaxed);
        if model.step() {
            return true;
        }
        let is_keen = model.is_keen();
        if !polled.ends(&ROUND) {
            return false;
        }
        if is_keen || self.has_others {
            // The peer may need this core. A sleep here would not end when another device's called.
            yield_now();
            return false;
        }
        // A signal is the program's business.
        let woken = self.sleep(&[], Sleep::at_most(GLANCE));
        model.polled_ns.store(now_ns(), Ordering::Relaxed);
        if woken.is_ok_and(|woken| woken.was_called) {
            // Somebody else may be at what came: this one is keen again.
            IDLE_NS.store(0, Ordering::Relaxed);
        }
        woken.is_ok_and(|woken| woken.has_worked)
    }

    /// The entries of the GID table as programs see it.
    pub(crate) fn gids(&self) -> Vec<GidEntry> {
        let others = self.context.gids().into_iter().filter(|entry| *entry != self.address);
        std::iter::once(self.address).chain(others).collect()
    }

    /// The path from an entry of that table to a peer; `None` if there is none.
    pub(crate) fn path(&self, sgid_index: u8, to: Gid) -> Option<Path> {
        let from = *self.gids().get(usize::from(sgid_index))?;
        if to.multicast_mac().is_some() {
            return self.context.multicast_path(to).ok();
        }
        if let Some(network) = &self.network {
            let found = adapter::resolve(network, from.gid.ip(), to.ip());
            return found.inspect_err(|error| tracing::info!(%error, "no path")).ok();
        }
        let route = self.context.route_from(from.gid, to).ok()?;
        Some(Path::new(route, MacAddr(mac_of(to.ip()))))
    }

    /// An address with the interface of the port's, where it has to have one.
    pub(crate) fn scoped(&self, address: SocketAddr) -> SocketAddr {
        match (address, &self.model) {
            (SocketAddr::V6(v6), Some(model)) if v6.scope_id() == 0 => {
                model.sockets.address.socket(address.ip(), address.port())
            }
            _ => address,
        }
    }

    /// Whether the process that had an address of this machine alone has ended.
    pub(crate) fn is_gone(&self, ip: IpAddr) -> bool {
        let Some(model) = &self.model else { return false };
        ip.is_loopback() && !model.sockets.knows(ip)
    }

    /// An interrupt vector that nobody else has; `None` where those that are left are for hubs.
    pub(crate) fn take_vector(&self) -> Option<u16> {
        let mut vectors = lock(&self.vectors);
        let (left, kept) = (vectors.free.len() + vectors.hubs.len(), vectors.kept);
        if left > kept { vectors.free.pop() } else { None }
    }

    pub(crate) fn give_vector(&self, vector: u16) {
        lock(&self.vectors).free.push(vector);
    }

    /// The hub that a channel without a vector is to use: the one that fewest use.
    ///
    /// # Errors
    ///
    /// The system's, for want of a thread or a file, or [`io::ErrorKind::Other`] with what the
    /// device refused.
    pub(crate) fn hub(&self) -> io::Result<Arc<Hub>> {
        let mut vectors = lock(&self.vectors);
        let least = vectors.hubs.iter().min_by_key(|hub| Arc::strong_count(hub)).cloned();
        let is_busy = least.as_ref().is_none_or(|hub| Arc::strong_count(hub) > hub::CHANNELS);
        if is_busy && let Some(vector) = vectors.free.pop() {
            let made = Hub::new(&self.context, vector, self.live.beside());
            match made {
                Ok(hub) => {
                    vectors.hubs.push(Arc::clone(&hub));
                    return Ok(hub);
                }
                Err(error) => {
                    vectors.free.push(vector);
                    return least.ok_or(error);
                }
            }
        }
        least.ok_or_else(|| io::Error::from(io::ErrorKind::QuotaExceeded))
    }

    /// Tells `listener` of asynchronous events as long as it lives.
    pub(crate) fn listen(&self, listener: Weak<dyn Listener>) {
        self.events.listen(listener);
    }

    /// Gives `turn` work to do whenever the model has made steps, as long as it lives.
    pub(crate) fn give_turns(&self, turn: Weak<dyn Turn>) {
        *lock(&self.turns) = Some(turn);
    }

    fn take_turns(&self) {
        let turn = lock(&self.turns).as_ref().and_then(Weak::upgrade);
        if let Some(turn) = turn {
            turn.turn();
        }
    }

    fn tell_events(&self) {
        self.events.tell(&self.context);
        self.requests.serve(|request, said| self.events.answer(request, said));
    }
}
