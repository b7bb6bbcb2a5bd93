//! Any packets into a send queue and any completions under it: no panic, no buffer freed twice,
//! none lost.
#![no_main]

use arbitrary::{Result, Unstructured};
use arrayvec::ArrayVec;
use ferrocx_core::{Device, DeviceConfig};
use ferrocx_fuzz::word;
use ferrocx_mempool::{Mbuf, OlFlags, PageSize, Pool, PoolConfig, RegionConfig, TxLengths};
use ferrocx_model::NicConfig;
use ferrocx_model::caps::Caps;
use ferrocx_model::config::CapOverride;
use ferrocx_model::played::{PlayedTx, Sender, Still};
use ferrocx_pmd::{TxQueue, TxQueueConfig};
use ferrocx_prm::Layout;
use ferrocx_prm::caps::{EthCap, cap_type};
use ferrocx_prm::cqe::Cqe64;
use libfuzzer_sys::fuzz_target;

const BLOCKS: u32 = 64;

fuzz_target!(|data: &[u8]| {
    let mut u = Unstructured::new(data);
    let mut state = State::new(u.arbitrary().unwrap_or(false));
    // Running out of input ends the sequence.
    let _ = state.sequence(&mut u);
    state.end();
});

thread_local! {
    /// A device, and one that wants headers inline, for all sequences; each makes its own queue.
    static DEVICES: [(Still, Device); 2] = [Vec::new(), vec![headers_inline()]].map(|cap_pages| {
        let nic = NicConfig { cap_pages, ..NicConfig::default() };
        let still = Still::new(nic).expect("a model");
        let config = DeviceConfig { page: PageSize::Base4K, ..DeviceConfig::default() };
        let device = Device::open(still.transport(), &config).expect("it comes up");
        (still, device)
    });
}

/// The Ethernet capabilities of a device that wants the layer 2 header of each packet inline.
fn headers_inline() -> CapOverride {
    let kind = cap_type::ETHERNET_OFFLOADS;
    let caps = Caps::new(&NicConfig::default());
    let mut page = Box::new(*caps.page(kind, true).expect("the model has Ethernet"));
    let cap = EthCap::read_from(&*page).expect("a whole page");
    // Source: reference 5.11, `wqe_inline_mode`.
    cap.with_wqe_inline_mode(0).write_to(&mut *page);
    CapOverride { kind, max: page.clone(), cur: page }
}

struct State {
    device: Device,
    pools: [Pool; 2],
    tx: TxQueue,
    played: PlayedTx,
    /// Packets taken by the queue.
    taken: u64,
    /// Packets that share data with some that were sent, with the byte that fills them.
    clones: Vec<(Mbuf, u8)>,
}

impl State {
    fn new(offloads: bool) -> Self {
        let pools = [200, 16].map(|count| {
            Pool::new(&PoolConfig {
                count,
                data_room_bytes: 256,
                headroom_bytes: 32,
                cache_size: 32,
                region: RegionConfig { page: PageSize::Base4K, ..RegionConfig::default() },
                ..PoolConfig::default()
            })
            .expect("a pool")
        });
        let (still, device) = DEVICES.with(|devices| devices[usize::from(offloads)].clone());
        for pool in &pools {
            device.register_pool(pool).expect("a pool for a device");
        }
        let config = TxQueueConfig {
            descriptors: BLOCKS,
            inline_bytes: if offloads { 64 } else { 0 },
            ..TxQueueConfig::default()
        };
        let tx = TxQueue::new(&device, &pools[0], &config).expect("a queue");
        let played = still.sender(Sender::Sq(tx.sqn()));
        Self { device, pools, tx, played, taken: 0, clones: Vec::new() }
    }

    fn sequence(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        while !u.is_empty() {
            match u.int_in_range(0..=9)? {
                0..=3 => self.send(u)?,
                4 | 5 => drop(self.played.complete()),
                6 => {
                    let cqe = Cqe64(u.arbitrary()?);
                    self.played.complete_with(cqe.with_opcode(word(u)? & 0xf).with_format(0));
                }
                7 => {
                    let bytes = u.arbitrary()?;
                    self.played.write_cqe(u.int_in_range(0..=BLOCKS)?, &bytes);
                }
                8 => {
                    self.tx.reclaim();
                }
                _ if u.ratio(1, 4)? => {
                    self.tx.reset().expect("the device does not refuse");
                    self.played.restart();
                }
                _ => self.clones.truncate(u.int_in_range(0..=3)?),
            }
            for (clone, byte) in &self.clones {
                let mut segments = clone.segments();
                assert!(segments.all(|segment| segment.data().iter().all(|b| b == byte)));
            }
        }
        Ok(())
    }

    /// A packet of some segments, with any wishes.
    fn packet(&mut self, u: &mut Unstructured<'_>) -> Result<Option<Mbuf>> {
        let byte = u.arbitrary()?;
        let mut whole: Option<Mbuf> = None;
        let segments = if u.ratio(3, 4)? { 1 } else { u.int_in_range(1..=64)? };
        for _ in 0..segments {
            let pool = &self.pools[usize::from(u.ratio(1, 8)?)];
            let Some(mut mbuf) = pool.get() else { break };
            let room = mbuf.append(u.int_in_range(0..=224)?).expect("it fits");
            room.fill(byte);
            match &mut whole {
                None => whole = Some(mbuf),
                Some(whole) => whole.chain(mbuf).expect("a short chain"),
            }
        }
        let Some(mut mbuf) = whole else { return Ok(None) };
        if u.arbitrary()? {
            mbuf.set_flags(OlFlags::from_bits_truncate(u.arbitrary()?));
            mbuf.set_vlan_tci(u.arbitrary()?);
            mbuf.set_tx_lengths(TxLengths {
                l2_len: u.arbitrary::<u8>()?.into(),
                l3_len: u.arbitrary()?,
                l4_len: u.arbitrary()?,
                tso_mss: u.arbitrary()?,
            });
        }
        if u.ratio(1, 8)? {
            let clone = mbuf.clone_ref(self.tx.cache());
            self.clones.extend(clone.map(|clone| (clone, byte)));
        }
        Ok(Some(mbuf))
    }

    fn send(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let mut burst = ArrayVec::<Mbuf, 40>::new();
        for _ in 0..u.int_in_range(1..=40)? {
            let Some(mbuf) = self.packet(u)? else { break };
            burst.push(mbuf);
        }
        let before = burst.len();
        let taken = self.tx.tx_burst(&mut burst);
        assert_eq!(before, taken + burst.len());
        self.taken += taken as u64;
        let stats = self.tx.stats();
        assert_eq!(stats.packets + stats.dropped, self.taken);
        Ok(())
    }

    fn end(self) {
        let Self { device, pools, tx, clones, .. } = self;
        drop((tx, clones));
        while device.poll_event().is_some() {}
        for pool in pools {
            device.unregister_pool(&pool).expect("no queue holds it");
            let stats = pool.stats();
            assert_eq!((stats.shared, stats.double_frees), (stats.count, 0), "a buffer is lost");
        }
    }
}
