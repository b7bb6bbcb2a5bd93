//! Any completions under a receive queue: no panic, no buffer given out twice, none lost.
#![no_main]

use std::collections::HashSet;

use arbitrary::{Result, Unstructured};
use arrayvec::ArrayVec;
use ferrocx_core::{Device, DeviceConfig};
use ferrocx_fuzz::word;
use ferrocx_mempool::{Mbuf, PageSize, Pool, PoolConfig, RegionConfig};
use ferrocx_model::NicConfig;
use ferrocx_model::played::{PlayedRx, Still};
use ferrocx_pmd::{RxQueue, RxQueueConfig, Striding};
use ferrocx_prm::cqe::{Cqe64, CqeFormat, CqeOpcode, MiniCqe};
use libfuzzer_sys::fuzz_target;

const DESCRIPTORS: u32 = 64;
const HEADROOM: usize = 32;
const ROOM: usize = 256;

fuzz_target!(|data: &[u8]| {
    let mut u = Unstructured::new(data);
    let kind = u.arbitrary().unwrap_or(0);
    let mut state = State::new(kind);
    // Running out of input ends the sequence.
    let _ = state.sequence(&mut u);
    state.end();
});

thread_local! {
    /// One device for all sequences; each makes a queue of its own.
    static DEVICE: (Still, Device) = {
        let still = Still::new(NicConfig::default()).expect("a model");
        let config = DeviceConfig { page: PageSize::Base4K, ..DeviceConfig::default() };
        let device = Device::open(still.transport(), &config).expect("it comes up");
        (still, device)
    };
}

struct State {
    device: Device,
    pool: Pool,
    rx: RxQueue,
    played: PlayedRx,
    log_segs: u8,
    /// Large buffers, of a striding queue, and the stride that a device would name next.
    large: Option<Pool>,
    next: u32,
    held: Vec<Mbuf>,
    /// Rooms of the buffers held, by address.
    rooms: HashSet<usize>,
}

/// Where a segment's room starts: packets are 16 bytes or more apart from each other's room.
fn rooms(mbuf: &Mbuf) -> impl Iterator<Item = usize> {
    let (first, headroom) = (mbuf.data().as_ptr().addr(), mbuf.headroom());
    mbuf.segments().map(move |segment| {
        let at = segment.data().as_ptr().addr();
        at - if at == first { headroom } else { 0 }
    })
}

/// Large buffers for a striding queue of two of them, and the settings for it.
fn striding(device: &Device) -> (Pool, Striding) {
    let pool = Pool::new(&PoolConfig {
        name: "large".to_owned(),
        count: 4,
        data_room_bytes: Striding::BUFFER_BYTES as usize,
        headroom_bytes: 0,
        cache_size: 0,
        region: RegionConfig { page: PageSize::Base4K, ..RegionConfig::default() },
    })
    .expect("a pool");
    device.register_pool(&pool).expect("a pool for a device");
    let striding = Striding { buffers: pool.clone(), copy_bytes: 100 };
    (pool, striding)
}

impl State {
    /// A queue of one, two or four buffers to a packet, or of many packets to a buffer, with or
    /// without compressed completions.
    fn new(kind: u8) -> Self {
        let log_segs = if kind & 3 == 3 { 0 } else { kind & 3 };
        let pool = Pool::new(&PoolConfig {
            count: (DESCRIPTORS as usize + 24) << log_segs,
            data_room_bytes: ROOM,
            headroom_bytes: HEADROOM,
            cache_size: 32,
            region: RegionConfig { page: PageSize::Base4K, ..RegionConfig::default() },
            ..PoolConfig::default()
        })
        .expect("a pool");
        let (still, device) = DEVICE.with(Clone::clone);
        device.register_pool(&pool).expect("a pool for a device");
        let (large, striding) = (kind & 3 == 3).then(|| striding(&device)).unzip();
        let config = RxQueueConfig {
            descriptors: if large.is_some() { 2 * Striding::STRIDES } else { DESCRIPTORS },
            max_frame_bytes: Some(((ROOM << log_segs) - HEADROOM) as u32),
            cqe_compression: kind & 4 != 0,
            timestamps: kind & 12 == 8,
            striding,
            ..RxQueueConfig::default()
        };
        let rx = RxQueue::new(&device, &pool, &config).expect("a queue");
        let played = still.receiver(rx.queue_ref().rqn());
        let (held, rooms) = (Vec::new(), HashSet::new());
        Self { device, pool, rx, played, log_segs, large, next: 0, held, rooms }
    }

    fn sequence(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        while !u.is_empty() {
            match u.int_in_range(0..=9)? {
                0 | 1 if self.large.is_some() => self.strides(u)?,
                0 | 1 => self.played.complete(u.int_in_range(0..=40)?, u.int_in_range(0..=1100)?),
                2 => self.played.complete_with(self.cqe(u)?),
                3 | 4 => self.block(u)?,
                5 => {
                    let bytes = u.arbitrary()?;
                    self.played.write_cqe(u.int_in_range(0..=DESCRIPTORS)?, &bytes);
                }
                6 => self.burst::<1>(),
                7 => self.burst::<32>(),
                8 => self.free(u)?,
                _ => {
                    self.rx.reset().expect("the device does not refuse");
                    self.played.restart();
                    self.next = 0;
                }
            }
        }
        Ok(())
    }

    /// Packets of strides, or fillers, as a device writes them.
    fn strides(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        for _ in 0..u.int_in_range(0..=40)? {
            let strides = u.int_in_range(1..=200)?.min(Striding::STRIDES - self.next);
            let len = u.int_in_range(0..=strides * Striding::STRIDE_BYTES)?;
            let filler = u32::from(u.ratio(1, 20)?) << 31;
            let cqe = Cqe64::zeroed()
                .with_byte_cnt(filler | strides << 16 | len)
                .with_wqe_counter(self.next)
                .with_opcode(CqeOpcode::RESPONDER_SEND.0);
            self.played.complete_with(cqe);
            self.next = (self.next + strides) % Striding::STRIDES;
        }
        Ok(())
    }

    /// A completion that may be right.
    fn cqe(&self, u: &mut Unstructured<'_>) -> Result<Cqe64> {
        let counter = self.played.counter().wrapping_add(u.int_in_range(0..=1)?);
        let opcode = if u.arbitrary()? { CqeOpcode::RESPONDER_SEND.0 } else { word(u)? & 0xf };
        Ok(Cqe64(u.arbitrary()?)
            .with_byte_cnt(word(u)?)
            .with_wqe_counter(counter)
            .with_opcode(opcode)
            .with_format(if u.arbitrary()? { 0 } else { word(u)? & 3 }))
    }

    /// A compressed block, whose arrays may be missing.
    fn block(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let count = u.int_in_range(0..=DESCRIPTORS + 1)?;
        let title = self.cqe(u)?.with_format(CqeFormat::COMPRESSED.0).with_byte_cnt(count);
        let mut arrays = Vec::new();
        for array in 0..count.div_ceil(8) {
            let mut bytes = [0; 64];
            for mini in bytes.chunks_mut(8) {
                mini.copy_from_slice(&MiniCqe::zeroed().with_byte_cnt(word(u)?).0);
            }
            arrays.push((if array == 0 { 1 } else { array * 8 }, bytes));
        }
        self.played.complete_block(title, &arrays, count);
        Ok(())
    }

    fn burst<const N: usize>(&mut self) {
        let mut out = ArrayVec::<Mbuf, N>::new();
        let n = self.rx.rx_burst(&mut out);
        assert_eq!(n, out.len());
        for mbuf in out {
            assert!(mbuf.nb_segs() <= 1 << self.log_segs);
            let most =
                if self.large.is_some() { 1 << 15 } else { (ROOM << self.log_segs) - HEADROOM };
            assert!(mbuf.pkt_len() <= most);
            for room in rooms(&mbuf) {
                assert!(self.rooms.insert(room), "a buffer that is out already");
            }
            self.held.push(mbuf);
        }
    }

    /// Frees packets, into the queue's stock or past it.
    fn free(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        for _ in 0..u.int_in_range(0..=40)? {
            let Some(mbuf) = self.held.pop() else { break };
            for room in rooms(&mbuf) {
                self.rooms.remove(&room);
            }
            if u.arbitrary()? {
                self.rx.cache().put(mbuf);
            }
        }
        Ok(())
    }

    fn end(self) {
        let Self { device, pool, rx, held, rooms, large, .. } = self;
        drop(rx);
        while device.poll_event().is_some() {}
        let stats = pool.stats();
        assert_eq!((stats.in_use, stats.double_frees), (rooms.len() as u64, 0));
        drop(held);
        for pool in std::iter::once(&pool).chain(&large) {
            device.unregister_pool(pool).expect("nobody holds it");
            assert_eq!(pool.stats().shared, pool.stats().count, "a buffer is lost");
        }
    }
}
