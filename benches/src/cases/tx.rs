//! Sending: every kind of packet.

use std::ptr::NonNull;

use ferrocx_mempool::{ExternalBuffer, Mbuf, OlFlags, Pool, PoolCache, TxLengths};
use ferrocx_model::played::PlayedTx;
use ferrocx_pmd::{TxQueue, TxQueueConfig};

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

const fn case(name: &'static str, make: fn() -> Box<dyn Work>) -> Case {
    Case { name, elements: RUN, make }
}

/// Every case. Of those with `raw` packets, 32 buffers at a time are taken in the measured part
/// and sent as their last user left them; the others are made before it, and freed in it.
pub(super) const CASES: [Case; 17] = [
    case("tx_burst", || Box::new(Tx::raw(|_| ()))),
    case("tx_checksums", || Box::new(Tx::raw(|mbuf| mbuf.set_flags(CHECKSUMS)))),
    case("tx_vlan", || {
        Box::new(Tx::raw(|mbuf| {
            mbuf.set_flags(OlFlags::TX_VLAN_INSERT | CHECKSUMS);
            mbuf.set_vlan_tci(100);
        }))
    }),
    case("tx_tso", || {
        Box::new(Tx::raw(|mbuf| {
            mbuf.set_flags(OlFlags::TX_TSO);
            mbuf.set_tx_lengths(TSO);
            lengthen(mbuf, TSO_BYTES);
        }))
    }),
    // Copied into the ring.
    case("tx_inline_60", || Box::new(Tx::raw(|_| ()).inline())),
    case("tx_inline_61", || Box::new(Tx::raw(|mbuf| lengthen(mbuf, 61)).inline())),
    case("tx_inline_128", || Box::new(Tx::raw(|mbuf| lengthen(mbuf, 128)).inline())),
    // A request of its own for each packet.
    case("tx_single_requests", || {
        let config = TxQueueConfig { multi_packet: false, ..config() };
        Box::new(Tx::new(&config, Packets::Raw(|_| ())))
    }),
    // Every second packet with checksums, every fourth with a tag.
    case("tx_mixed", || Box::new(Tx::new(&config(), Packets::Made(mixed)))),
    case("tx_segments_2", || Box::new(Tx::new(&config(), Packets::Made(|mix| mix.chain(2))))),
    case("tx_segments_3", || Box::new(Tx::new(&config(), Packets::Made(|mix| mix.chain(3))))),
    case("tx_segments_4", || Box::new(Tx::new(&config(), Packets::Made(|mix| mix.chain(4))))),
    case("tx_segments_2_checksums", || {
        Box::new(Tx::new(&config(), Packets::Made(|mix| mix.flagged(CHECKSUMS))))
    }),
    // A clone, whose original stays.
    case("tx_clones", || {
        Box::new(Tx::new(
            &config(),
            Packets::Made(|mix| mix.original.clone_ref(&mut mix.cache).expect("a buffer")),
        ))
    }),
    // A header in the queue's pool, its data in a clone.
    case("tx_header_and_clone", || {
        Box::new(Tx::new(
            &config(),
            Packets::Made(|mix| {
                let mut mbuf = mix.chain(1);
                let clone = mix.original.clone_ref(&mut mix.cache).expect("a buffer");
                mbuf.chain(clone).expect("two segments");
                mbuf
            }),
        ))
    }),
    case("tx_external", || Box::new(Tx::new(&config(), Packets::Made(Mix::external)))),
    case("tx_other_pool", || {
        Box::new(Tx::new(&config(), Packets::Made(|mix| packet(&mut mix.other))))
    }),
];

fn config() -> TxQueueConfig {
    TxQueueConfig { descriptors: RING, ..TxQueueConfig::default() }
}

fn packet(cache: &mut PoolCache) -> Mbuf {
    let mut mbuf = cache.get().expect("a buffer");
    mbuf.append(FRAME_BYTES as usize).expect("room").fill(0xa5);
    mbuf
}

fn lengthen(mbuf: &mut Mbuf, len_bytes: usize) {
    mbuf.append(len_bytes - mbuf.pkt_len()).expect("room");
}

fn mixed(mix: &mut Mix) -> Mbuf {
    let mut mbuf = packet(&mut mix.cache);
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
    cache: PoolCache,
    other: PoolCache,
    original: Mbuf,
    made: u64,
}

impl Mix {
    fn new(bench: &Bench) -> Self {
        let mut cache = bench.pool.cache();
        let other = bench.second_pool().cache();
        Self { original: packet(&mut cache), cache, other, made: 0 }
    }

    fn chain(&mut self, segments: usize) -> Mbuf {
        let mut mbuf = packet(&mut self.cache);
        for _ in 1..segments {
            mbuf.chain(packet(&mut self.cache)).expect("a short chain");
        }
        mbuf
    }

    fn flagged(&mut self, flags: OlFlags) -> Mbuf {
        let mut mbuf = self.chain(2);
        mbuf.set_flags(flags);
        mbuf
    }

    fn external(&mut self) -> Mbuf {
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
        let mut mbuf = self.cache.get().expect("a buffer");
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
    Made(fn(&mut Mix) -> Mbuf),
}

struct Tx {
    queue: TxQueue,
    played: PlayedTx,
    mix: Mix,
    packets: Packets,
    bursts: Vec<Burst>,
    sent: u64,
    runs: u64,
    _pool: Pool,
}

impl Tx {
    fn new(config: &TxQueueConfig, packets: Packets) -> Self {
        let bench = Bench::new();
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
        Self { queue, played, mix, packets, bursts, sent: 0, runs: 0, _pool: bench.pool }
    }

    fn raw(make: fn(&mut Mbuf)) -> Self {
        Self::new(&config(), Packets::Raw(make))
    }

    fn inline(self) -> Self {
        let Packets::Raw(make) = self.packets else { return self };
        Self::new(&TxQueueConfig { inline_bytes: 256, ..config() }, Packets::Raw(make))
    }
}

impl Work for Tx {
    fn prepare(&mut self) {
        self.played.complete();
        self.runs += 1;
        if let Packets::Made(make) = self.packets {
            for burst in &mut self.bursts {
                (0..BURST).for_each(|_| burst.push(make(&mut self.mix)));
            }
        }
    }

    fn run(&mut self) {
        for burst in &mut self.bursts {
            if let Packets::Raw(_) = self.packets {
                assert!(self.queue.cache().get_raw_bulk(burst, BURST));
            }
            self.sent += tx_burst(&mut self.queue, burst) as u64;
        }
    }

    fn verify(&mut self) {
        let stats = self.queue.stats();
        assert_eq!((self.sent, stats.packets), (self.runs * RUN, self.sent));
        assert_eq!((stats.dropped, stats.full, stats.fault), (0, 0, None));
    }
}
