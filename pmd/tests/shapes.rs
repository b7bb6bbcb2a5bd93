//! Packets of every shape, by queues of every kind: what leaves is what leaves of the same bytes in
//! one buffer, sent one by one by a queue that copies nothing, and in the same order.

mod common;

use std::collections::VecDeque;

use common::{Bench, Burst, pool, tcp};
use ferrocx_core::Device;
use ferrocx_mempool::{Mbuf, OlFlags, Pool, TxLengths};
use ferrocx_model::NicConfig;
use ferrocx_model::caps::Caps;
use ferrocx_model::config::CapOverride;
use ferrocx_pmd::{TxQueue, TxQueueConfig};
use ferrocx_prm::Layout;
use ferrocx_prm::caps::{EthCap, cap_type};
use proptest::prelude::*;

/// Bytes of the headers of a TCP frame.
const HEADERS: usize = 54;

/// A packet that is to be made.
#[derive(Debug, Clone)]
struct Shape {
    payload: usize,
    /// Lengths of its segments but the last, as far as it has so many bytes; 0 is an empty one.
    segments: Vec<usize>,
    /// Of each segment, in turn: whether it is in the other pool, or shared.
    kinds: Vec<(bool, bool)>,
    checksums: bool,
    is_large: bool,
    tag: Option<u16>,
    is_stamped: bool,
}

fn shape() -> impl Strategy<Value = Shape> {
    let payload = prop_oneof![6..12usize, 1..260usize, 200..1400usize];
    let length = prop_oneof![
        1 => Just(0usize),
        6 => 1..20usize,
        4 => Just(HEADERS),
        6 => 17..130usize,
        3 => 30..600usize,
    ];
    let segments = prop_oneof![
        4 => Just(Vec::new()),
        4 => prop::collection::vec(length.clone(), 1..4),
        1 => prop::collection::vec(length, 4..24),
    ];
    let kinds = prop_oneof![
        4 => Just(vec![(false, false)]),
        1 => prop::collection::vec(any::<(bool, bool)>(), 1..4),
    ];
    let rarely = prop::bool::weighted(0.15);
    let tag = prop::option::weighted(0.2, any::<u16>());
    (payload, segments, kinds, any::<bool>(), rarely, tag, rarely).prop_map(
        |(payload, segments, kinds, checksums, is_large, tag, is_stamped)| Shape {
            payload,
            segments,
            kinds,
            checksums,
            is_large,
            tag,
            is_stamped,
        },
    )
}

impl Shape {
    /// The same bytes, and wishes, in one buffer.
    fn flat(&self) -> Self {
        Self { segments: Vec::new(), kinds: vec![(false, false)], ..self.clone() }
    }

    /// The packet, and originals of what is shared.
    fn make(&self, number: u16, pools: &[Pool; 2], originals: &mut Vec<Mbuf>) -> Mbuf {
        let payload: Vec<_> = (0..self.payload).map(|at| (at as u16 ^ number) as u8).collect();
        let whole = tcp([2; 6], number, &payload);
        let mut rest = whole.as_slice();
        let lengths = self.segments.iter().copied().map(Some).chain([None]);
        let mut made: Option<Mbuf> = None;
        for (length, (is_other, is_shared)) in lengths.zip(self.kinds.iter().cycle()) {
            let (part, left) = rest.split_at(length.unwrap_or(rest.len()).min(rest.len()));
            rest = left;
            let mut mbuf = pools[usize::from(*is_other)].get().expect("a buffer");
            assert!(mbuf.extend_from_slice(part));
            if *is_shared {
                let clone = mbuf.clone_ref(&mut pools[0].cache()).expect("a buffer");
                originals.push(std::mem::replace(&mut mbuf, clone));
            }
            match &mut made {
                None => made = Some(mbuf),
                Some(first) => first.chain(mbuf).expect("a short chain"),
            }
        }
        let mut made = made.expect("a segment at least");
        let mut flags = OlFlags::empty();
        flags.set(OlFlags::TX_IP_CSUM | OlFlags::TX_L4_CSUM, self.checksums);
        flags.set(OlFlags::TX_TSO, self.is_large);
        flags.set(OlFlags::TX_VLAN_INSERT, self.tag.is_some());
        made.set_flags(flags);
        made.set_vlan_tci(self.tag.unwrap_or(0));
        made.set_tx_lengths(TxLengths { l2_len: 14, l3_len: 20, l4_len: 20, tso_mss: 100 });
        if self.is_stamped {
            made.set_tx_timestamp(number.into());
        }
        made
    }
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

/// What leaves when packets of these shapes are sent, and the names whose timestamps were told.
fn sent(
    nic: NicConfig,
    config: &TxQueueConfig,
    shapes: &[Shape],
    bursts: &[usize],
) -> (Vec<Vec<u8>>, Vec<u64>) {
    let mut bench = Bench::with(nic, 1);
    let device: Device = bench.device();
    let pools = [pool(600), pool(600)];
    pools.iter().for_each(|pool| device.register_pool(pool).unwrap());
    let mut tx = TxQueue::new(&device, &pools[0], config).unwrap();
    let (mut frames, mut stamps, mut originals) = (Vec::new(), Vec::new(), Vec::new());
    let mut left: VecDeque<_> = shapes.iter().zip(1..).collect();
    let mut bursts = bursts.iter().cycle();
    let mut burst = Burst::new();
    while !left.is_empty() || !burst.is_empty() {
        for _ in burst.len()..*bursts.next().expect("a length") {
            let Some((shape, number)) = left.pop_front() else { break };
            burst.push(shape.make(number, &pools, &mut originals));
        }
        tx.tx_burst(&mut burst);
        bench.settle();
        assert_eq!(tx.fault(), None, "{:?}", bench.refusals());
        frames.extend(bench.all_sent());
        stamps.extend(std::iter::from_fn(|| tx.next_timestamp()).map(|stamp| stamp.id));
        tx.reclaim();
        originals.clear();
    }
    let stats = tx.stats();
    assert_eq!((stats.dropped, stats.fault), (0, None), "{:?}", bench.refusals());
    assert_eq!(stats.packets, shapes.len() as u64);
    bench.assert_clean();
    drop(tx);
    assert_eq!(pools.each_ref().map(|pool| pool.stats().in_use), [0, 0]);
    (frames, stamps)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn shapes_leave_as_their_bytes_do(
        shapes in prop::collection::vec(shape(), 1..60),
        bursts in prop::collection::vec(1..32usize, 1..6),
        inline_bytes in prop::sample::select(vec![0, 0, 64, 256]),
        multi_packet: bool,
        wants_headers: bool,
    ) {
        let timestamps = 128;
        let plain = TxQueueConfig {
            descriptors: 256, multi_packet: false, timestamps, ..TxQueueConfig::default()
        };
        let flat: Vec<_> = shapes.iter().map(Shape::flat).collect();
        let wanted = sent(NicConfig::default(), &plain, &flat, &[1]);
        let config = TxQueueConfig {
            descriptors: 64, multi_packet, inline_bytes, timestamps, ..TxQueueConfig::default()
        };
        let nic = if wants_headers { headers_inline() } else { NicConfig::default() };
        let got = sent(nic, &config, &shapes, &bursts);
        prop_assert_eq!(&got.1, &wanted.1, "timestamps");
        prop_assert_eq!(got.0.len(), wanted.0.len());
        for (at, (got, wanted)) in got.0.iter().zip(&wanted.0).enumerate() {
            prop_assert_eq!(got, wanted, "frame {}", at);
        }
    }
}
