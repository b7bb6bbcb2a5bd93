//! Two ports on a cable: two models, two drivers, all in one thread. The models step whenever a
//! driver waits, or when told.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferrocx_bus::local::{LocalConfig, LocalTransport, pair};
use ferrocx_bus::{PciIdentity, Transport};
use ferrocx_core::{DeviceConfig, MacAddr};
use ferrocx_mempool::{PageSize, Pool, PoolConfig, RegionConfig};
use ferrocx_model::wire::{Wire, link};
use ferrocx_model::{Nic, NicConfig};
use ferrocx_verbs_lite::*;

/// Device time of one step.
const STEP_NS: u64 = 1_000;
/// First PSNs: close to the wrap, and different.
pub const PSNS: [u32; 2] = [0xff_fffd, 0x12_3456];
/// Bytes of memory of each side.
pub const MEMORY_BYTES: usize = 256 << 10;
/// Message payload of a full packet.
pub const MTU: usize = 256;

/// Both models and their clock.
pub struct World {
    nics: [Mutex<Nic>; 2],
    clock: AtomicU64,
}

impl World {
    pub fn nic(&self, side: usize) -> MutexGuard<'_, Nic> {
        self.nics[side].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One step of both; whether either did anything.
    pub fn step(&self) -> bool {
        // Both are held, so that time goes on for both whichever thread steps.
        let (mut first, mut second) = (self.nic(0), self.nic(1));
        let now = self.clock.fetch_add(STEP_NS, Ordering::Relaxed);
        first.step(now) | second.step(now)
    }

    /// Runs until neither does anything for a while.
    pub fn settle(&self) {
        let mut quiet = 0;
        for _ in 0..1_000_000 {
            quiet = if self.step() { 0 } else { quiet + 1 };
            if quiet > 8 {
                return;
            }
        }
        panic!("still busy");
    }

    /// Lets time pass, in steps of a microsecond.
    pub fn wait_us(&self, count: usize) {
        for _ in 0..count {
            self.step();
        }
    }

    pub fn refusals(&self, side: usize) -> Vec<String> {
        self.nic(side).log().iter().map(ToString::to_string).collect()
    }

    /// Asserts that neither model had anything to complain about.
    pub fn assert_clean(&self) {
        assert_eq!((self.refusals(0), self.refusals(1)), (Vec::new(), Vec::new()));
    }
}

/// One port: its device, domain, completion queue and memory.
pub struct Side {
    pub context: RdmaContext,
    pub pd: Pd,
    pub cq: Cq,
    pub memory: Arc<Memory>,
    pub ip: Ipv4Addr,
}

/// Two ports on a cable.
pub struct Two {
    pub a: Side,
    pub b: Side,
    pub world: Arc<World>,
}

/// What a queue pair's requests gave back.
pub type Done<B> = Vec<Wc<B>>;

pub fn config() -> NicConfig {
    NicConfig { roce: true, ..NicConfig::default() }
}

fn model(number: u8, wire: impl Wire + 'static, config: NicConfig) -> (Arc<LocalTransport>, Nic) {
    let nic = NicConfig { mac: [2, 0, 0, 0, 0, number], ..config };
    let identity = PciIdentity {
        vendor: PciIdentity::VENDOR_MELLANOX,
        device: nic.identity.device_id(),
        name: format!("model{number}"),
        numa_node: None,
    };
    let local = LocalConfig { identity, seed: number.into(), ..LocalConfig::default() };
    let (transport, side) = pair(local).unwrap();
    let mut nic = Nic::new(side, nic);
    nic.datapath_mut().plug(wire);
    (transport, nic)
}

/// Settings of every device.
pub fn settings() -> DeviceConfig {
    DeviceConfig { page: PageSize::Base4K, ..DeviceConfig::default() }
}

/// Opens the verbs device behind a transport.
pub fn open(transport: Arc<dyn Transport>, number: u8) -> Side {
    open_as(&settings(), transport, number)
}

fn open_as(settings: &DeviceConfig, transport: Arc<dyn Transport>, number: u8) -> Side {
    let device = ferrocx_core::Device::open(transport, settings).unwrap();
    let context = RdmaContext::open(&device).unwrap();
    let ip = Ipv4Addr::new(192, 168, 0, number);
    let gid = GidConfig { address: ip.into(), prefix_len: 24, gateway: None, vlan: None };
    context.add_gid(gid).unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(4096).unwrap();
    let memory = memory(&context);
    Side { context, pd, cq, memory, ip }
}

/// Ends a context, and then its device.
pub fn close(context: RdmaContext) -> Result<(), ferrocx_core::DeviceError> {
    let device = context.device().clone();
    drop(context);
    device.close()
}

pub fn memory(context: &RdmaContext) -> Arc<Memory> {
    let region =
        RegionConfig { len_bytes: MEMORY_BYTES, page: PageSize::Base4K, ..RegionConfig::default() };
    Memory::alloc(context, &region).unwrap()
}

/// 64 packet buffers of 256 bytes.
pub fn pool(name: &str) -> Pool {
    let config = PoolConfig {
        name: name.into(),
        count: 64,
        data_room_bytes: 256,
        headroom_bytes: 32,
        cache_size: 8,
        region: RegionConfig { page: PageSize::Base4K, ..RegionConfig::default() },
    };
    Pool::new(&config).unwrap()
}

/// Two models and the transports to them, on the ends of `wires`.
pub fn models(
    a: impl Wire + 'static,
    b: impl Wire + 'static,
) -> ([Arc<LocalTransport>; 2], [Nic; 2]) {
    models_like(&config(), a, b)
}

/// As [`models`], of other devices.
pub fn models_like(
    config: &NicConfig,
    a: impl Wire + 'static,
    b: impl Wire + 'static,
) -> ([Arc<LocalTransport>; 2], [Nic; 2]) {
    let (first, nic_a) = model(1, a, config.clone());
    let (second, nic_b) = model(2, b, config.clone());
    ([first, second], [nic_a, nic_b])
}

impl Two {
    pub fn new() -> Self {
        let (a, b) = link(1 << 20);
        Self::on(a, b)
    }

    /// On the two ends of another wire.
    pub fn on(a: impl Wire + 'static, b: impl Wire + 'static) -> Self {
        Self::of(models(a, b))
    }

    /// With these models, which are joined already.
    pub fn of(models: ([Arc<LocalTransport>; 2], [Nic; 2])) -> Self {
        Self::opened(models, &settings(), |transport| transport)
    }

    /// With these models, opened with other settings, and through other transports.
    pub fn opened(
        (transports, nics): ([Arc<LocalTransport>; 2], [Nic; 2]),
        settings: &DeviceConfig,
        through: impl Fn(Arc<LocalTransport>) -> Arc<dyn Transport>,
    ) -> Self {
        let world = Arc::new(World { nics: nics.map(Mutex::new), clock: AtomicU64::new(0) });
        for transport in &transports {
            let world = Arc::downgrade(&world);
            transport.set_idle_hook(Some(Arc::new(move || {
                world.upgrade().map(|world| world.step());
            })));
        }
        let [first, second] = transports.map(through);
        Self { a: open_as(settings, first, 1), b: open_as(settings, second, 2), world }
    }

    /// A connected pair of reliable queue pairs, with all rights for the peer.
    pub fn rc<B: Buffers>(&self, config: &QpConfig) -> (Qp<B>, Qp<B>) {
        let (mut qa, mut qb) = (self.a.qp(config), self.b.qp(config));
        self.join([&mut qa, &mut qb], [Access::REMOTE; 2], &rts(0));
        (qa, qb)
    }

    /// A connected pair of usual sizes.
    pub fn connected<B: Buffers>(&self) -> (Qp<B>, Qp<B>) {
        self.rc(&small())
    }

    /// Leads two queue pairs in reset to each other, each with what it grants its peer.
    pub fn join<B: Buffers>(&self, qps: [&mut Qp<B>; 2], grants: [Access; 2], attr: &RtsAttr) {
        let numbers = [qps[0].qpn(), qps[1].qpn()];
        let sides = [(&self.a, &self.b), (&self.b, &self.a)];
        for (at, (qp, (own, peer))) in qps.into_iter().zip(sides).enumerate() {
            qp.init(&InitAttr { access: grants[at], qkey: 0 }).unwrap();
            qp.connect(&rtr(own, peer, numbers[1 - at], PSNS[1 - at])).unwrap();
            qp.activate(&RtsAttr { psn: Psn(PSNS[at]), ..*attr }).unwrap();
        }
    }

    /// Runs until nothing moves, and takes the completions of one queue pair at each side.
    pub fn run<B: Buffers>(&mut self, qa: &mut Qp<B>, qb: &mut Qp<B>) -> (Done<B>, Done<B>) {
        self.world.settle();
        (take(&mut self.a.cq, qa), take(&mut self.b.cq, qb))
    }
}

/// Takes all completions of a queue, which must be of one queue pair.
pub fn take<B: Buffers>(cq: &mut Cq, qp: &mut Qp<B>) -> Done<B> {
    let mut done = Vec::new();
    while let Some(completion) = cq.poll() {
        qp.complete(completion, |wc| done.push(wc)).unwrap();
    }
    done
}

pub fn small() -> QpConfig {
    QpConfig { max_send_wr: 16, max_recv_wr: 16, max_inline_bytes: 64, ..QpConfig::default() }
}

pub fn path(from: &Side, to: &Side) -> Path {
    let route = from.context.route(to.ip.into()).unwrap();
    assert_eq!(route.next_hop, std::net::IpAddr::V4(to.ip));
    Path::new(route, to.context.device().mac())
}

pub fn rtr(from: &Side, to: &Side, qpn: Qpn, psn: u32) -> RtrAttr {
    RtrAttr { min_rnr_timer: 1, ..RtrAttr::new(path(from, to), qpn, Psn(psn), Mtu::B256) }
}

pub fn rts(psn: u32) -> RtsAttr {
    RtsAttr { timeout: 8, retry_count: 3, rnr_retry: 3, ..RtsAttr::new(Psn(psn)) }
}

impl Side {
    /// A queue pair in reset on the side's completion queue.
    pub fn qp<B: Buffers>(&self, config: &QpConfig) -> Qp<B> {
        self.pd.create_qp(&self.cq, config).unwrap()
    }

    /// A queue pair for datagrams with this Q_Key, in RTS.
    pub fn datagrams(&self, qkey: u32) -> Qp {
        let mut qp = self.qp(&QpConfig { qp_type: QpType::Ud, ..small() });
        self.start(&mut qp, qkey);
        qp
    }

    /// Leads a queue pair without a peer of its own, for datagrams or frames, to RTS.
    pub fn start<B: Buffers>(&self, qp: &mut Qp<B>, qkey: u32) {
        qp.init(&InitAttr { access: Access::empty(), qkey }).unwrap();
        qp.receive().unwrap();
        qp.activate(&rts(0)).unwrap();
    }

    /// The whole memory under one key with all rights.
    pub fn mr(&self) -> Mr {
        self.pd.reg_mr(&self.memory, 0..MEMORY_BYTES, Access::LOCAL_WRITE | Access::REMOTE).unwrap()
    }

    pub fn mac(&self) -> MacAddr {
        self.context.device().mac()
    }

    pub fn fill(&self, offset: usize, bytes: &[u8]) {
        self.memory.region().copy_in(offset, bytes).unwrap();
    }

    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.region().copy_out(offset, &mut bytes).unwrap();
        bytes
    }
}

/// Bytes that differ from place to place.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed).wrapping_add((at >> 8) as u8))
        .collect()
}

/// Identifiers of what ended, and whether it went well.
pub fn ids<B>(done: &[Wc<B>]) -> Vec<(u64, bool)> {
    done.iter().map(|wc| (wc.wr_id, wc.result.is_ok())).collect()
}

/// Syndromes of what ended, 0 for success.
pub fn syndromes<B>(done: &[Wc<B>]) -> Vec<u8> {
    done.iter().map(|wc| wc.result.map_or_else(|failure| failure.syndrome.0, |()| 0)).collect()
}
