//! Sending: every kind of packet.

use std::ptr::NonNull;

use ferrocx_mempool::{ExternalBuffer, Mbuf, OlFlags, Pool, PoolCache, TxLengths};
use ferrocx_model::NicConfig;
use ferrocx_model::caps::Caps;
use ferrocx_model::config::CapOverride;
use ferrocx_model::played::PlayedTx;
use ferrocx_pmd::{TxQueue, TxQueueConfig};
use ferrocx_prm::Layout;
use ferrocx_prm::caps::{EthCap, cap_type};

use super::queues::{BURST, Bench, Burst, FRAME_BYTES, tx_burst};
use super::{Case, Work};

/// Bursts in one run: as many packets, each of four buffers, as a core's cache holds.
const BURSTS: usize = 4;
const RUN: u64 = (BURSTS * BURST) as u64;
/// Blocks of the ring: room for a run of the largest requests, and for what is not completed.
const RING: u32 = 2048;
const CHECKSUMS: OlFlags = OlFlags::TX_IP_CSUM.union(OlFlags::TX_L4_CSUM);
/// Bytes of a packet that is cut into segments, and its headers.
const TSO_BYTES: usize = 2000;
const TSO: TxLengths = TxLengths { l2_len: 14, l3_len: 20, l4_len: 20, tso_mss: 400 };
const TSO_HEADERS: usize = 54;

const fn case(name: &'static str, make: fn() -> Box<dyn Work>) -> Case {
    Case { name, elements: RUN, make }
}

/// Every case. Of those with `raw` packets, 32 buffers at a time are taken in the measured part
/// and sent as their last user left them; the others are made before it, and freed in it.
pub(super) const CASES: [Case; 32] = [
    case("tx_burst", || Tx::raw(|_| ())),
    case("tx_checksums", || Tx::raw(|mbuf| mbuf.set_flags(CHECKSUMS))),
    case("tx_vlan", || Tx::raw(tag)),
    case("tx_tso", || {
        Tx::raw(|mbuf| {
            lengthen(mbuf, TSO_BYTES);
            cut(mbuf);
        })
    }),
    // Headers in a buffer of their own, as a TCP stack has them.
    case("tx_tso_chain_2", || Tx::made(|_, cache| large(cache, 1))),
    case("tx_tso_chain_3", || Tx::made(|_, cache| large(cache, 2))),
    // Copied into the ring.
    case("tx_inline_1", || Tx::raw_by(inline(), |mbuf| shorten(mbuf, 1))),
    case("tx_inline_17", || Tx::raw_by(inline(), |mbuf| shorten(mbuf, 17))),
    case("tx_inline_60", || Tx::raw_by(inline(), |_| ())),
    case("tx_inline_61", || Tx::raw_by(inline(), |mbuf| lengthen(mbuf, 61))),
    case("tx_inline_128", || Tx::raw_by(inline(), |mbuf| lengthen(mbuf, 128))),
    case("tx_inline_256", || Tx::raw_by(inline(), |mbuf| lengthen(mbuf, 256))),
    case("tx_inline_60_single", || Tx::raw_by(single(inline()), |_| ())),
    case("tx_vlan_inline_60", || Tx::raw_by(inline(), tag)),
    case("tx_segments_2_inline", || Tx::made_by(inline(), |_, cache| chain(cache, 2))),
    // A request of its own for each packet.
    case("tx_single_requests", || Tx::raw_by(single(config()), |_| ())),
    // Every second packet with checksums, every fourth with a tag.
    case("tx_mixed", || Tx::made(mixed)),
    case("tx_segments_2", || Tx::made(|_, cache| chain(cache, 2))),
    case("tx_segments_3", || Tx::made(|_, cache| chain(cache, 3))),
    case("tx_segments_4", || Tx::made(|_, cache| chain(cache, 4))),
    // As many buffers as of the others.
    Case { elements: RUN / 2, ..case("tx_segments_5", || Tx::long(|_, cache| chain(cache, 5))) },
    Case { elements: RUN / 2, ..case("tx_segments_8", || Tx::long(|_, cache| chain(cache, 8))) },
    case("tx_segments_2_checksums", || {
        Tx::made(|_, cache| with(chain(cache, 2), |mbuf| mbuf.set_flags(CHECKSUMS)))
    }),
    case("tx_vlan_segments_2", || Tx::made(|_, cache| with(chain(cache, 2), tag))),
    // A clone, whose original stays.
    case("tx_clones", || Tx::made(|mix, cache| mix.clone(cache))),
    case("tx_clones_vlan", || Tx::made(|mix, cache| with(mix.clone(cache), tag))),
    // A header in the queue's pool, its data in a clone.
    case("tx_header_and_clone", || {
        Tx::made(|mix, cache| {
            let mut mbuf = packet(cache);
            mbuf.chain(mix.clone(cache)).expect("two segments");
            mbuf
        })
    }),
    case("tx_external", || Tx::made(Mix::external)),
    case("tx_other_pool", || Tx::made(|mix, _| packet(&mut mix.other))),
    // With the moment of sending to be noted of each.
    case("tx_stamped", || {
        Tx::made_by(TxQueueConfig { timestamps: RUN as u32, ..config() }, |_, cache| {
            with(packet(cache), |mbuf| mbuf.set_tx_timestamp(7))
        })
    }),
    // By a device that wants the layer 2 header in each request.
    case("tx_headed_18", || Tx::boxed(&headers_inline(), &config(), Packets::Raw(|_| ()))),
    case("tx_headed_18_segments_2", || {
        Tx::boxed(&headers_inline(), &config(), Packets::Made(|_, cache| chain(cache, 2)))
    }),
];

fn config() -> TxQueueConfig {
    TxQueueConfig { descriptors: RING, ..TxQueueConfig::default() }
}

fn inline() -> TxQueueConfig {
    TxQueueConfig { inline_bytes: 256, ..config() }
}

fn single(config: TxQueueConfig) -> TxQueueConfig {
    TxQueueConfig { multi_packet: false, ..config }
}

/// A device that wants the layer 2 header of each packet in its request.
fn headers_inline() -> NicConfig {
    let kind = cap_type::ETHERNET_OFFLOADS;
    let caps = Caps::new(&NicConfig::default());
    let mut page = Box::new(*caps.page(kind, true).expect("the model has Ethernet"));
    let cap = EthCap::read_from(&*page).expect("a whole page");
    // Source: reference 5.11, `wqe_inline_mode`.
    cap.with_wqe_inline_mode(0).write_to(&mut *page);
    NicConfig {
        cap_pages: vec![CapOverride { kind, max: page.clone(), cur: page }],
        ..NicConfig::default()
    }
}

fn packet(cache: &mut PoolCache) -> Mbuf {
    let mut mbuf = cache.get().expect("a buffer");
    mbuf.append(FRAME_BYTES as usize).expect("room").fill(0xa5);
    mbuf
}

fn with(mut mbuf: Mbuf, change: fn(&mut Mbuf)) -> Mbuf {
    change(&mut mbuf);
    mbuf
}

fn tag(mbuf: &mut Mbuf) {
    mbuf.set_flags(OlFlags::TX_VLAN_INSERT | CHECKSUMS);
    mbuf.set_vlan_tci(100);
}

fn cut(mbuf: &mut Mbuf) {
    mbuf.set_flags(OlFlags::TX_TSO);
    mbuf.set_tx_lengths(TSO);
}

/// A packet that is cut into segments: its headers in one buffer, its payload in others.
fn large(cache: &mut PoolCache, payloads: usize) -> Mbuf {
    let mut mbuf = cache.get().expect("a buffer");
    mbuf.append(TSO_HEADERS).expect("room").fill(0xa5);
    for _ in 0..payloads {
        let mut payload = packet(cache);
        lengthen(&mut payload, (TSO_BYTES - TSO_HEADERS) / payloads);
        mbuf.chain(payload).expect("a short chain");
    }
    cut(&mut mbuf);
    mbuf
}

fn lengthen(mbuf: &mut Mbuf, len_bytes: usize) {
    mbuf.append(len_bytes - mbuf.pkt_len()).expect("room");
}

fn shorten(mbuf: &mut Mbuf, len_bytes: usize) {
    assert!(mbuf.trim(mbuf.pkt_len() - len_bytes));
}

fn chain(cache: &mut PoolCache, segments: usize) -> Mbuf {
    let mut mbuf = packet(cache);
    for _ in 1..segments {
        mbuf.chain(packet(cache)).expect("a short chain");
    }
    mbuf
}

fn mixed(mix: &mut Mix, cache: &mut PoolCache) -> Mbuf {
    let mut mbuf = packet(cache);
    mix.made += 1;
    match mix.made % 4 {
        0 | 2 => mbuf.set_flags(CHECKSUMS),
        1 => mbuf.set_flags(OlFlags::TX_VLAN_INSERT),
        _ => {}
    }
    mbuf
}

/// What packets are made of.
struct Mix {
    other: PoolCache,
    original: Mbuf,
    made: u64,
}

impl Mix {
    fn new(bench: &Bench) -> Self {
        let original = packet(&mut bench.pool.cache());
        Self { original, other: bench.second_pool().cache(), made: 0 }
    }

    fn clone(&mut self, cache: &mut PoolCache) -> Mbuf {
        self.original.clone_ref(cache).expect("a buffer")
    }

    fn external(&mut self, cache: &mut PoolCache) -> Mbuf {
        static BYTES: [u8; FRAME_BYTES as usize] = [0; FRAME_BYTES as usize];
        let buffer = ExternalBuffer {
            ptr: NonNull::from(&BYTES).cast(),
            len_bytes: BYTES.len(),
            iova: 0x1000,
            lkey: 0x700,
            domain: 0,
            // Nobody may write to a static.
            is_foreign: true,
            free: |_, _| (),
            opaque: 0,
        };
        let mut mbuf = cache.get().expect("a buffer");
        attach(&mut mbuf, buffer);
        mbuf
    }
}

#[expect(unsafe_code, reason = "external buffers come from those who vouch for their memory")]
fn attach(mbuf: &mut Mbuf, buffer: ExternalBuffer) {
    // SAFETY: the bytes are a static's, which nobody writes to: foreign memory is not given out to
    // be written, and the device, which is only played, reads and writes nothing at all.
    assert!(unsafe { mbuf.attach_external(buffer) }.is_ok());
}

/// What is sent.
enum Packets {
    /// Buffers out of the pool, which look as this made them look once.
    Raw(fn(&mut Mbuf)),
    /// Packets that this makes, each before it is sent.
    Made(fn(&mut Mix, &mut PoolCache) -> Mbuf),
}

struct Tx {
    queue: TxQueue,
    played: PlayedTx,
    mix: Mix,
    packets: Packets,
    bursts: Vec<Burst>,
    sent: u64,
    /// Whether timestamps are taken, and how many were.
    is_stamped: bool,
    stamps: u64,
    runs: u64,
    _pool: Pool,
}

impl Tx {
    fn boxed(nic: &NicConfig, config: &TxQueueConfig, packets: Packets) -> Box<dyn Work> {
        Box::new(Self::of(nic, config, packets))
    }

    fn of(nic: &NicConfig, config: &TxQueueConfig, packets: Packets) -> Self {
        let bench = Bench::of(nic.clone());
        let (mut queue, played) = bench.tx(config);
        let mix = Mix::new(&bench);
        if let Packets::Raw(make) = &packets {
            let cache = queue.cache();
            // Buffers keep their length when they come back, so that no run sets it again.
            let mut all = Vec::new();
            while let Some(mut mbuf) = cache.get() {
                mbuf.append(FRAME_BYTES as usize).expect("room").fill(0xa5);
                make(&mut mbuf);
                all.push(mbuf);
            }
            all.into_iter().for_each(|mbuf| cache.put(mbuf));
        }
        let bursts = (0..BURSTS).map(|_| Burst::new()).collect();
        let pool = bench.pool;
        Self {
            queue,
            played,
            mix,
            packets,
            bursts,
            sent: 0,
            is_stamped: config.timestamps != 0,
            stamps: 0,
            runs: 0,
            _pool: pool,
        }
    }

    fn raw(make: fn(&mut Mbuf)) -> Box<dyn Work> {
        Self::raw_by(config(), make)
    }

    fn raw_by(config: TxQueueConfig, make: fn(&mut Mbuf)) -> Box<dyn Work> {
        Self::boxed(&NicConfig::default(), &config, Packets::Raw(make))
    }

    fn made(make: fn(&mut Mix, &mut PoolCache) -> Mbuf) -> Box<dyn Work> {
        Self::made_by(config(), make)
    }

    /// Of half as many packets.
    fn long(make: fn(&mut Mix, &mut PoolCache) -> Mbuf) -> Box<dyn Work> {
        let mut tx = Self::of(&NicConfig::default(), &config(), Packets::Made(make));
        tx.bursts.truncate(BURSTS / 2);
        Box::new(tx)
    }

    fn made_by(config: TxQueueConfig, make: fn(&mut Mix, &mut PoolCache) -> Mbuf) -> Box<dyn Work> {
        Self::boxed(&NicConfig::default(), &config, Packets::Made(make))
    }
}

impl Work for Tx {
    fn prepare(&mut self) {
        self.played.complete();
        self.runs += 1;
        if let Packets::Made(make) = self.packets {
            for burst in &mut self.bursts {
                (0..BURST).for_each(|_| burst.push(make(&mut self.mix, self.queue.cache())));
            }
        }
    }

    fn run(&mut self) {
        for burst in &mut self.bursts {
            if let Packets::Raw(_) = self.packets {
                assert!(self.queue.cache().get_raw_bulk(burst, BURST));
            }
            self.sent += tx_burst(&mut self.queue, burst) as u64;
            while self.is_stamped && self.queue.next_timestamp().is_some() {
                self.stamps += 1;
            }
        }
    }

    fn verify(&mut self) {
        let (stats, run) = (self.queue.stats(), (self.bursts.len() * BURST) as u64);
        assert_eq!((self.sent, stats.packets), (self.runs * run, self.sent));
        assert_eq!((stats.dropped, stats.full, stats.fault), (0, 0, None));
        assert!(!self.is_stamped || self.stamps + run >= self.sent, "all but those of the last");
    }
}
