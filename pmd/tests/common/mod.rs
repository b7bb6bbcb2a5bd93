//! A driver and a model in one thread: the model steps whenever the driver waits, or when told.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use arrayvec::ArrayVec;
use ferrocx_bus::local::{LocalConfig, LocalTransport, pair};
use ferrocx_bus::{
    Bar, BarClaim, BusError, DmaAccess, DmaLimits, DmaMapping, DmaSpace, DmaUnmap, DoorbellKind,
    Interrupts, Notice, PciIdentity, Transport,
};
use ferrocx_core::{Device, DeviceConfig, DeviceError};
use ferrocx_mempool::{Mbuf, PageSize, Pool, PoolConfig, Region, RegionConfig};
use ferrocx_model::caps::Caps;
use ferrocx_model::config::CapOverride;
use ferrocx_model::wire::{Fcs, Link, Wire, link};
use ferrocx_model::{Nic, NicConfig};
use ferrocx_prm::Layout;
use ferrocx_prm::caps::{HcaCap, cap_type};

/// Device time of one step.
const STEP_NS: u64 = 1_000;

/// A model, its cable, and the transport to it.
pub struct Bench {
    pub transport: Arc<LocalTransport>,
    nic: Arc<Mutex<Nic>>,
    clock: Arc<AtomicU64>,
    mappings: Mappings,
    /// Makes the system refuse to unmap.
    pub unmap_fails: Arc<AtomicBool>,
    /// What the system says about the device.
    pub notice: Said,
    /// The far end of the cable.
    pub wire: Link,
}

impl Bench {
    pub fn new() -> Self {
        Self::with(NicConfig::default(), 1)
    }

    pub fn with(config: NicConfig, seed: u64) -> Self {
        Self::on(config, LocalConfig { seed, ..LocalConfig::default() })
    }

    /// A device with other general capabilities. What it then has more of it need not do.
    pub fn with_caps(change: impl Fn(HcaCap) -> HcaCap) -> Self {
        let own = Caps::new(&NicConfig::default());
        let changed = |current| {
            let mut page = *own.page(cap_type::GENERAL, current).unwrap();
            change(HcaCap::read_from(&page).unwrap()).write_to(&mut page);
            Box::new(page)
        };
        let page = CapOverride { kind: cap_type::GENERAL, max: changed(false), cur: changed(true) };
        Self::with(NicConfig { cap_pages: vec![page], ..NicConfig::default() }, 3)
    }

    /// A device whose BlueFlame registers are written in this way.
    pub fn with_blueflame(blueflame: DoorbellKind) -> Self {
        Self::on(NicConfig::default(), LocalConfig { blueflame, ..LocalConfig::default() })
    }

    fn on(config: NicConfig, local: LocalConfig) -> Self {
        let identity = PciIdentity {
            vendor: PciIdentity::VENDOR_MELLANOX,
            device: config.identity.device_id(),
            name: "model".into(),
            numa_node: None,
        };
        let local = LocalConfig { identity, ..local };
        let (transport, side) = pair(local).unwrap();
        let mut nic = Nic::new(side, config);
        let (near, wire) = link(1 << 20);
        nic.datapath_mut().plug(near);
        let nic = Arc::new(Mutex::new(nic));
        let clock = Arc::new(AtomicU64::new(0));
        let (model, time) = (Arc::clone(&nic), Arc::clone(&clock));
        transport.set_idle_hook(Some(Arc::new(move || {
            let mut nic = model.lock().unwrap_or_else(PoisonError::into_inner);
            nic.step(time.fetch_add(STEP_NS, Ordering::Relaxed));
        })));
        let (mappings, notice, unmap_fails) = Default::default();
        Self { transport, nic, clock, mappings, unmap_fails, notice, wire }
    }

    pub fn nic(&self) -> MutexGuard<'_, Nic> {
        self.nic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn open(&self, config: &DeviceConfig) -> Result<Device, DeviceError> {
        let inner = Arc::clone(&self.transport);
        let (mappings, notice) = (Arc::clone(&self.mappings), Arc::clone(&self.notice));
        let unmap_fails = Arc::clone(&self.unmap_fails);
        let transport = Counting { inner, mappings, unmap_fails, notice };
        Device::open(Arc::new(transport), config)
    }

    /// Mappings that the driver holds.
    pub fn mappings(&self) -> usize {
        let list = self.mappings.lock().unwrap_or_else(PoisonError::into_inner);
        list.iter().filter(|mapping| mapping.strong_count() > 0).count()
    }

    pub fn device(&self) -> Device {
        self.try_device(&config())
    }

    /// Opens, and prints what the model refused if that fails.
    pub fn try_device(&self, config: &DeviceConfig) -> Device {
        match self.open(config) {
            Ok(device) => device,
            Err(error) => panic!("{error}\nmodel: {:#?}", self.refusals()),
        }
    }

    /// Lets the model run until it has nothing to do, a few hundred steps at most.
    pub fn settle(&self) {
        for _ in 0..300 {
            let now = self.clock.fetch_add(STEP_NS, Ordering::Relaxed);
            if !self.nic().step(now) {
                break;
            }
        }
    }

    pub fn step(&self) {
        let now = self.clock.fetch_add(STEP_NS, Ordering::Relaxed);
        self.nic().step(now);
    }

    pub fn now_ns(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Moves device time.
    pub fn pass(&self, ns: u64) {
        self.clock.fetch_add(ns, Ordering::Relaxed);
        self.step();
    }

    pub fn refusals(&self) -> Vec<String> {
        self.nic().log().iter().map(ToString::to_string).collect()
    }

    /// Asserts that the model had nothing to complain about.
    pub fn assert_clean(&self) {
        assert_eq!(self.refusals(), Vec::<String>::new());
    }

    /// Puts a frame on the wire towards the device.
    pub fn inject(&mut self, frame: &[u8]) {
        self.wire.reserve(frame.len()).expect("room on the wire").copy_from_slice(frame);
        let now = self.now_ns();
        self.wire.commit(now, Fcs::Good);
        self.wire.flush(now);
    }

    /// The next frame that the device sent.
    pub fn sent(&mut self) -> Option<Vec<u8>> {
        let now = self.now_ns();
        self.wire.receive(now).map(|received| received.bytes.to_vec())
    }

    pub fn all_sent(&mut self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.sent()).collect()
    }
}

/// Settings for tests: small pages, short limits.
pub fn config() -> DeviceConfig {
    DeviceConfig { page: PageSize::Base4K, ..DeviceConfig::default() }
}

pub fn pool(count: usize) -> Pool {
    pool_of(count, 2048 + 128)
}

pub fn pool_of(count: usize, data_room_bytes: usize) -> Pool {
    Pool::new(&PoolConfig {
        name: "test".into(),
        count,
        data_room_bytes,
        cache_size: 64,
        region: RegionConfig { page: PageSize::Base4K, ..RegionConfig::default() },
        ..PoolConfig::default()
    })
    .unwrap()
}

/// An Ethernet frame to `dst`, of `len` bytes in all, filled with a pattern.
pub fn frame(dst: [u8; 6], len: usize, tag: u8) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|at| (at as u8).wrapping_add(tag)).collect();
    bytes[..6].copy_from_slice(&dst);
    bytes[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    bytes
}

/// A UDP frame.
pub fn udp(dst: [u8; 6], source_port: u16, destination_port: u16, payload: &[u8]) -> Vec<u8> {
    let builder = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 9], dst)
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .udp(source_port, destination_port);
    let mut bytes = Vec::new();
    builder.write(&mut bytes, payload).unwrap();
    bytes
}

/// A TCP frame.
pub fn tcp(dst: [u8; 6], source_port: u16, payload: &[u8]) -> Vec<u8> {
    let builder = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 9], dst)
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .tcp(source_port, 80, 1000, 4096);
    let mut bytes = Vec::new();
    builder.write(&mut bytes, payload).unwrap();
    bytes
}

/// A packet of `pool` with these bytes, in one buffer.
pub fn packet(pool: &Pool, bytes: &[u8]) -> Mbuf {
    let mut mbuf = pool.get().expect("a free buffer");
    assert!(mbuf.extend_from_slice(bytes));
    mbuf
}

/// The bytes of a packet, all segments.
pub fn bytes_of(mbuf: &Mbuf) -> Vec<u8> {
    mbuf.segments().flat_map(|segment| segment.data().to_vec()).collect()
}

pub type Burst = ArrayVec<Mbuf, 32>;

type Said = Arc<Mutex<Option<Notice>>>;
type Mappings = Arc<Mutex<Vec<Weak<DmaMapping>>>>;

/// A transport that knows which mappings live.
#[derive(Debug)]
struct Counting {
    inner: Arc<LocalTransport>,
    mappings: Mappings,
    unmap_fails: Arc<AtomicBool>,
    notice: Said,
}

/// Its address space.
#[derive(Debug)]
struct CountingDma {
    inner: Arc<dyn DmaSpace>,
    mappings: Mappings,
    unmap_fails: Arc<AtomicBool>,
}

/// What unmaps one of its mappings, unless that is to fail.
struct Unmapping {
    inner: Arc<DmaMapping>,
    fails: Arc<AtomicBool>,
}

impl DmaUnmap for Unmapping {
    fn unmap(&self, iova: u64, len_bytes: usize) -> Result<(), BusError> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(BusError::NotMapped { iova, len_bytes: len_bytes as u64 });
        }
        self.inner.end()
    }

    // The inner mapping does, when it is dropped.
    fn release(&self, _: u64, _: usize) {}
}

impl DmaSpace for CountingDma {
    fn map(&self, region: Arc<Region>, access: DmaAccess) -> Result<Arc<DmaMapping>, BusError> {
        let inner = self.inner.map(Arc::clone(&region), access)?;
        let (iova, fails) = (inner.iova(), Arc::clone(&self.unmap_fails));
        let mapping = DmaMapping::new(region, iova, access, Box::new(Unmapping { inner, fails }));
        let mut list = self.mappings.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|known| known.strong_count() > 0);
        list.push(Arc::downgrade(&mapping));
        Ok(mapping)
    }

    fn unmap_all(&self) -> Result<(), BusError> {
        self.inner.unmap_all()
    }

    fn limits(&self) -> DmaLimits {
        self.inner.limits()
    }
}

impl Transport for Counting {
    fn bar(&self, claim: BarClaim) -> Arc<dyn Bar> {
        self.inner.bar(claim)
    }

    fn dma(&self) -> Arc<dyn DmaSpace> {
        let mappings = Arc::clone(&self.mappings);
        let unmap_fails = Arc::clone(&self.unmap_fails);
        Arc::new(CountingDma { inner: self.inner.dma(), mappings, unmap_fails })
    }

    fn interrupts(&self) -> Arc<dyn Interrupts> {
        self.inner.interrupts()
    }

    fn identity(&self) -> &PciIdentity {
        self.inner.identity()
    }

    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn reset(&self) -> Result<(), BusError> {
        self.inner.reset()
    }

    fn reset_complete(&self) -> bool {
        self.inner.reset_complete()
    }

    fn notice(&self) -> Option<Notice> {
        *self.notice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn relax(&self) {
        self.inner.relax();
    }
}
