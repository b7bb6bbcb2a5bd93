//! Completions that a device writes, one by one.

use arrayvec::ArrayVec;
use ferrocx_mempool::{Mbuf, OlFlags, PacketType, PageSize, Pool, PoolConfig, RegionConfig};
use ferrocx_prm::cqe::{Cqe64, CqeFormat, CqeOpcode, ErrCqe, MiniCqe, l3_hdr_type, l4_hdr_type};
use ferrocx_prm::syndrome::CqeSyndrome;

use super::meta::FLAGS;
use crate::{BufferSplit, RxQueue, RxQueueConfig, Striding};
use ferrocx_core::{Device, DeviceConfig, QueueFault};
use ferrocx_model::NicConfig;
use ferrocx_model::played::{PlayedRx, Still};

pub(super) struct Fixture {
    pub(super) rx: RxQueue,
    pub(super) played: PlayedRx,
    pub(super) pool: Pool,
}

pub(super) fn pool(count: usize) -> Pool {
    Pool::new(&PoolConfig {
        count,
        cache_size: 64,
        region: RegionConfig { page: PageSize::Base4K, ..RegionConfig::default() },
        ..PoolConfig::default()
    })
    .unwrap()
}

fn fixture() -> Fixture {
    fixture_with(512, |_| RxQueueConfig::default())
}

fn compressing() -> Fixture {
    fixture_with(512, |_| RxQueueConfig { cqe_compression: true, ..RxQueueConfig::default() })
}

/// A queue of 64 over a pool of `count`, and as `config` says.
pub(super) fn fixture_with(count: usize, config: impl FnOnce(&Device) -> RxQueueConfig) -> Fixture {
    let pool = pool(count);
    let still = Still::new(NicConfig::default()).unwrap();
    let settings = DeviceConfig { page: PageSize::Base4K, ..DeviceConfig::default() };
    let device = Device::open(still.transport(), &settings).unwrap();
    device.register_pool(&pool).unwrap();
    let config = config(&device);
    let descriptors = if config.striding.is_some() { config.descriptors } else { 64 };
    let config = RxQueueConfig { descriptors, ..config };
    let rx = RxQueue::new(&device, &pool, &config).unwrap();
    let played = still.receiver(rx.queue_ref().rqn());
    Fixture { rx, played, pool }
}

type Burst = ArrayVec<Mbuf, 16>;

/// Two large buffers in the ring, of a pool of four.
fn strided(device: &Device) -> RxQueueConfig {
    let buffers = Pool::new(&PoolConfig {
        name: "large".into(),
        count: 4,
        data_room_bytes: Striding::BUFFER_BYTES as usize,
        headroom_bytes: 0,
        cache_size: 0,
        region: RegionConfig { page: PageSize::Base4K, ..RegionConfig::default() },
    });
    let buffers = buffers.unwrap();
    device.register_pool(&buffers).unwrap();
    let striding = Some(Striding::new(buffers));
    RxQueueConfig { descriptors: 1024, striding, ..RxQueueConfig::default() }
}

fn cqe(counter: u32, len: u32) -> Cqe64 {
    Cqe64::zeroed()
        .with_byte_cnt(len)
        .with_wqe_counter(counter)
        .with_opcode(CqeOpcode::RESPONDER_SEND.0)
}

/// A completion with error of the request with this counter.
pub(super) fn failure(syndrome: CqeSyndrome, counter: u32) -> Cqe64 {
    let cqe = ErrCqe::zeroed()
        .with_syndrome(syndrome.0.into())
        .with_wqe_counter(counter)
        .with_opcode(CqeOpcode::RESPONDER_ERROR.0);
    Cqe64(cqe.0)
}

/// Source: Linux `cqe_syndrome_needs_recover`, DPDK `mlx5_rx_err_handle`.
#[test]
fn packets_that_were_not_delivered_are_counted_and_the_queue_goes_on() {
    let scattering = fixture_with(512, |_| RxQueueConfig {
        max_frame_bytes: Some(4000),
        ..RxQueueConfig::default()
    });
    let splitting = fixture_with(512, |device| {
        let payload = pool(512);
        device.register_pool(&payload).unwrap();
        let split = Some(BufferSplit { header_bytes: 32, payload });
        RxQueueConfig { split, ..RxQueueConfig::default() }
    });
    for mut fixture in [fixture(), compressing(), scattering, splitting] {
        // Three laps of the ring, and packets among them.
        for round in 0..200 {
            let counter = fixture.played.counter();
            let lost = failure(CqeSyndrome::LOCAL_LENGTH_ERR, counter);
            if round % 3 == 2 {
                // Compressed, two at once; what stands for each says nothing.
                let title = lost.with_byte_cnt(2).with_format(CqeFormat::COMPRESSED.0);
                fixture.played.complete_block(title, &[(1, [0; 64])], 2);
            } else {
                fixture.played.complete_with(lost);
                fixture.played.complete_with(failure(CqeSyndrome(0x22), counter + 1));
            }
            fixture.played.complete(1, 60);
            let mut out = Burst::new();
            for _ in 0..3 {
                fixture.rx.rx_burst(&mut out);
            }
            assert_eq!(fixture.rx.fault(), None, "round {round}");
            assert_eq!((out.len(), out[0].pkt_len()), (1, 60), "round {round}");
            assert_eq!(fixture.rx.stats().errors, 2 * (round + 1));
        }
        assert_eq!((fixture.rx.stats().packets, fixture.rx.stats().no_mbuf), (200, 0));
        fixture.played.complete_with(failure(CqeSyndrome::WR_FLUSH_ERR, fixture.played.counter()));
        assert_eq!(fixture.rx.rx_burst(&mut Burst::new()), 0);
        assert!(matches!(fixture.rx.fault(), Some(QueueFault::Completion { .. })));
        drop(fixture.rx);
        assert_eq!(fixture.pool.stats().in_use, 0);
    }
}

/// Source: Linux `mlx5e_handle_rx_cqe_mpwrq`: the strides count whatever the completion says.
#[test]
fn a_striding_queue_steps_over_packets_that_were_not_delivered() {
    let compressing = |device: &Device| RxQueueConfig { cqe_compression: true, ..strided(device) };
    let mut fixture = fixture_with(512, compressing);
    let mut next = 0;
    for round in 0..400 {
        // Eight strides a round: the buffers end behind a packet that was not delivered.
        fixture.played.complete_with(cqe(next, 1 << 16 | 60));
        fixture.played.complete_with(cqe(next + 1, 3 << 16 | 150));
        let lost = failure(CqeSyndrome::LOCAL_LENGTH_ERR, 0xabcd);
        if round % 2 == 0 {
            fixture.played.complete_with(lost);
            fixture.played.complete_with(lost.with_byte_cnt(4 << 16));
        } else {
            let mini = |strides: u32| MiniCqe::zeroed().with_byte_cnt(strides << 16).0;
            let mut minis = [0; 64];
            minis[..16].copy_from_slice(&[mini(1), mini(3)].concat());
            let title = lost.with_byte_cnt(2).with_format(CqeFormat::COMPRESSED.0);
            fixture.played.complete_block(title, &[(1, minis)], 2);
        }
        next = (next + 8) % Striding::STRIDES;
        let mut out = Burst::new();
        for _ in 0..4 {
            fixture.rx.rx_burst(&mut out);
        }
        assert_eq!(fixture.rx.fault(), None, "round {round}");
        assert_eq!((out.len(), fixture.rx.stats().errors), (2, 2 * (round + 1)), "round {round}");
    }
    // More strides than the buffer has left.
    let lost = failure(CqeSyndrome::LOCAL_LENGTH_ERR, 0).with_byte_cnt(513 << 16);
    fixture.played.complete_with(lost);
    assert_eq!(fixture.rx.rx_burst(&mut Burst::new()), 0);
    assert!(matches!(fixture.rx.fault(), Some(QueueFault::TooLong { .. })));
    drop(fixture.rx);
    assert_eq!(fixture.pool.stats().in_use, 0);
}

#[test]
fn completion_that_cannot_be_stops_the_queue() {
    for (cqe, wanted) in [
        (cqe(1, 60), QueueFault::WrongIndex { expected: 0, got: 1 }),
        (cqe(0, 2049), QueueFault::TooLong { len_bytes: 2049, room_bytes: 2048 }),
        (cqe(0, u32::MAX), QueueFault::TooLong { len_bytes: u32::MAX, room_bytes: 2048 }),
        (
            cqe(0, 60).with_format(CqeFormat::INLINE_32.0),
            QueueFault::BadCqe { opcode: 2, format: 1 },
        ),
        (
            failure(CqeSyndrome::LOCAL_PROT_ERR, 0),
            QueueFault::Completion {
                syndrome: CqeSyndrome::LOCAL_PROT_ERR,
                vendor: 0,
                wqe_counter: 0,
            },
        ),
        // A packet that was not delivered, but not of the request that is next.
        (failure(CqeSyndrome::LOCAL_LENGTH_ERR, 1), QueueFault::WrongIndex { expected: 0, got: 1 }),
        // A block of 65 of them.
        (
            failure(CqeSyndrome::LOCAL_LENGTH_ERR, 0)
                .with_byte_cnt(65)
                .with_format(CqeFormat::COMPRESSED.0),
            QueueFault::BadCqe { opcode: 2, format: 3 },
        ),
        // Compressed blocks of no completion, and of more than were posted.
        (
            cqe(0, 0).with_format(CqeFormat::COMPRESSED.0),
            QueueFault::BadCqe { opcode: 2, format: 3 },
        ),
        (
            cqe(0, 65).with_format(CqeFormat::COMPRESSED.0),
            QueueFault::BadCqe { opcode: 2, format: 3 },
        ),
    ] {
        let mut fixture = fixture();
        fixture.played.complete_with(cqe);
        let mut out = Burst::new();
        for _ in 0..3 {
            assert_eq!(fixture.rx.rx_burst(&mut out), 0);
        }
        assert_eq!(fixture.rx.fault(), Some(wanted));
        assert_eq!(fixture.rx.stats().errors, 1, "counted once");
        drop(fixture.rx);
        assert_eq!(fixture.pool.stats().in_use, 0);
    }
}

#[test]
fn completion_with_no_buffer_posted_stops_the_queue() {
    let plain = fixture_with(64, |_| RxQueueConfig::default());
    let scattering = fixture_with(128, |_| RxQueueConfig {
        max_frame_bytes: Some(4000),
        ..RxQueueConfig::default()
    });
    let splitting = fixture_with(64, |device| {
        let payload = pool(64);
        device.register_pool(&payload).unwrap();
        let split = Some(BufferSplit { header_bytes: 32, payload });
        RxQueueConfig { split, ..RxQueueConfig::default() }
    });
    for mut fixture in [plain, scattering, splitting] {
        // Frames that take every buffer, so that none is left to post.
        fixture.played.complete(64, 2100.min(fixture.rx.hot.room_bytes));
        let mut held = ArrayVec::<Mbuf, 64>::new();
        while held.len() < 64 {
            assert_ne!(fixture.rx.rx_burst(&mut held), 0);
        }
        assert_eq!(fixture.rx.rx_burst(&mut Burst::new()), 0);
        assert_eq!(fixture.rx.fault(), None);
        fixture.played.complete(1, 60);
        assert_eq!(fixture.rx.rx_burst(&mut Burst::new()), 0);
        let wanted = QueueFault::WrongIndex { expected: 64, got: 64 };
        assert_eq!(fixture.rx.fault(), Some(wanted));
        // Buffers to be had again do not start it.
        drop(held);
        fixture.played.complete(1, 60);
        for _ in 0..3 {
            assert_eq!(fixture.rx.rx_burst(&mut Burst::new()), 0);
            assert!(fixture.rx.rx_one().is_none());
        }
    }
}

#[test]
fn good_packets_before_a_bad_completion_are_delivered() {
    let mut fixture = fixture();
    fixture.played.complete(5, 60);
    fixture.played.complete_with(cqe(9, 60));
    let mut out = Burst::new();
    assert_eq!(fixture.rx.rx_burst(&mut out), 5);
    assert_eq!(fixture.rx.fault(), Some(QueueFault::WrongIndex { expected: 5, got: 9 }));
}

#[test]
fn counters_wrap() {
    let mut fixture = fixture();
    // As after 2^32 less 64 packets: 16-bit counters and 24-bit indices wrap with it.
    let start = 0u32.wrapping_sub(64);
    let hot = &mut fixture.rx.hot;
    (hot.ring.ci, hot.ring.pi, hot.cq.ci) = (start, start.wrapping_add(64), start);
    fixture.played.start_at(start);
    for round in 0..40 {
        fixture.played.complete(16, 60 + round);
        let mut out = Burst::new();
        assert_eq!(fixture.rx.rx_burst(&mut out), 16, "round {round}");
        assert!(out.iter().all(|mbuf| mbuf.pkt_len() == 60 + round as usize));
    }
}

/// Writes a compressed block: title, arrays at 1, 8, 16, ... behind it, holes elsewhere.
pub(super) fn block(rx: &mut PlayedRx, lengths: &[u32]) {
    let count = lengths.len() as u32;
    let title = cqe(rx.counter(), count)
        .with_format(CqeFormat::COMPRESSED.0)
        .with_rx_hash_l3(1)
        .with_l3_hdr_type(2)
        .with_l4_hdr_type(2)
        .with_l3_ok(true)
        .with_l4_ok(true);
    let arrays = lengths.chunks(8).enumerate().map(|(array, lengths)| {
        let mut bytes = [0; 64];
        for (at, len) in lengths.iter().enumerate() {
            let mini = MiniCqe::zeroed().with_rx_hash_result(0xa000 + *len).with_byte_cnt(*len);
            bytes[at * 8..at * 8 + 8].copy_from_slice(&mini.0);
        }
        (if array == 0 { 1 } else { array as u32 * 8 }, bytes)
    });
    rx.complete_block(title, &arrays.collect::<Vec<_>>(), count);
}

#[test]
fn compressed_blocks_are_unpacked_across_bursts_and_wraps() {
    let mut fixture = compressing();
    let mut expected = Vec::new();
    let mut got = Vec::new();
    for round in 0..200u32 {
        let count = 2 + round % 31;
        let lengths: Vec<u32> = (0..count).map(|at| 60 + (round * 7 + at) % 1400).collect();
        block(&mut fixture.played, &lengths);
        expected.extend(&lengths);
        // An ordinary completion between the blocks.
        if round % 3 == 0 {
            fixture.played.complete(1, 1500);
            expected.push(1500);
        }
        loop {
            let mut out = Burst::new();
            if fixture.rx.rx_burst(&mut out) == 0 {
                break;
            }
            for mbuf in out {
                let len = mbuf.pkt_len() as u32;
                if len != 1500 {
                    assert_eq!(mbuf.rss_hash(), Some(0xa000 + len));
                    assert_eq!(mbuf.packet_type().0, 0x09, "IPv4 and UDP, by the title");
                }
                got.push(len);
            }
        }
        assert_eq!(fixture.rx.fault(), None, "round {round}");
    }
    assert_eq!(got, expected);
}

/// A device compresses only what has tag, mark and checksum results in common. Source: reference
/// 6.8.
#[test]
fn packets_of_a_block_have_the_tag_the_mark_and_the_checksum_results_of_its_title() {
    let striding = |device: &Device| RxQueueConfig { cqe_compression: true, ..strided(device) };
    // A stride has room for 64 bytes.
    for (mut fixture, strides) in [(compressing(), 0), (fixture_with(512, striding), 1 << 16)] {
        let title = cqe(0, 3)
            .with_format(CqeFormat::COMPRESSED.0)
            .with_cv(true)
            .with_vlan_info(0x2123)
            .with_sop_drop_qpn(0xabcd)
            .with_rx_hash_l3(1)
            .with_l3_hdr_type(2)
            .with_l4_hdr_type(2)
            .with_l3_ok(true);
        let mut minis = [0; 64];
        for at in 0..3u32 {
            let mini = MiniCqe::zeroed().with_rx_hash_result(at).with_byte_cnt(strides | (60 + at));
            minis[at as usize * 8..][..8].copy_from_slice(&mini.0);
        }
        fixture.played.complete_block(title, &[(1, minis)], 3);
        fixture.played.complete_with(cqe(3, strides | 64));
        let mut out = Burst::new();
        // A block and what follows it may be two bursts.
        assert!(fixture.rx.rx_burst(&mut out) >= 3, "{:?}", fixture.rx.stats());
        fixture.rx.rx_burst(&mut out);
        assert_eq!((out.len(), fixture.rx.fault()), (4, None));
        let found = OlFlags::RX_VLAN
            | OlFlags::RX_VLAN_STRIPPED
            | OlFlags::RX_IP_CSUM_GOOD
            | OlFlags::RX_L4_CSUM_BAD;
        for (at, mbuf) in (0..).zip(&out[..3]) {
            assert_eq!(mbuf.flags().difference(OlFlags::RX_RSS_HASH), found, "packet {at}");
            assert_eq!((mbuf.vlan_tci(), mbuf.flow_mark()), (0x2123, Some(0xabcd)));
            assert_eq!((mbuf.pkt_len() as u32, mbuf.packet_type().0), (60 + at, 0x09));
            // Of strides the completion says where they begin, not the hash.
            assert_eq!(mbuf.rss_hash(), (strides == 0).then_some(at));
        }
        assert_eq!((out[3].flags(), out[3].flow_mark()), (OlFlags::empty(), None));
    }
}

#[test]
fn packets_come_one_by_one_as_in_bursts() {
    for (mut fixture, has_blocks) in [(fixture(), false), (compressing(), true)] {
        for round in 0..300u32 {
            if has_blocks && round % 3 == 2 {
                block(&mut fixture.played, &[60 + round % 64, 61, 62]);
            } else {
                fixture.played.complete(3, 60 + round % 64);
            }
            let first = fixture.rx.rx_one().unwrap();
            assert_eq!(first.pkt_len() as u32, 60 + round % 64);
            assert!(first.rss_hash().is_some(), "round {round}");
            let mut out = Burst::new();
            if round % 2 == 0 {
                assert_eq!(fixture.rx.rx_burst(&mut out), 2);
            } else {
                out.extend([fixture.rx.rx_one().unwrap(), fixture.rx.rx_one().unwrap()]);
            }
            assert!(fixture.rx.rx_one().is_none(), "round {round}");
        }
        assert_eq!(fixture.rx.stats().packets, 900);
        fixture.played.complete(1, 2049);
        assert!(fixture.rx.rx_one().is_none());
        let wanted = QueueFault::TooLong { len_bytes: 2049, room_bytes: 2048 };
        assert_eq!(fixture.rx.fault(), Some(wanted));
    }
}

#[test]
fn packets_one_by_one_starve_and_go_on_when_buffers_come_back() {
    let mut fixture = fixture_with(100, |_| RxQueueConfig::default());
    let mut held = Vec::new();
    for round in 0..10 {
        fixture.played.complete(fixture.rx.hot.elts.len() as u32, 60);
        while let Some(mbuf) = fixture.rx.rx_one() {
            held.push(mbuf);
        }
        assert_eq!(fixture.rx.fault(), None, "round {round}");
        assert!(held.len() >= 32, "round {round}: {}", held.len());
        held.clear();
        assert!(fixture.rx.rx_one().is_none());
    }
    assert!(fixture.rx.stats().no_mbuf > 0);
}

#[test]
fn timestamps_come_with_every_kind_of_packet() {
    let plain =
        fixture_with(512, |_| RxQueueConfig { timestamps: true, ..RxQueueConfig::default() });
    let scattering = fixture_with(512, |_| RxQueueConfig {
        timestamps: true,
        max_frame_bytes: Some(4000),
        ..RxQueueConfig::default()
    });
    let striding =
        fixture_with(512, |device| RxQueueConfig { timestamps: true, ..strided(device) });
    for (mut fixture, first) in [(plain, 0), (scattering, 0), (striding, 1 << 16)] {
        for round in 0..100 {
            for at in 0..3 {
                let ticks = (round * 3 + at) << 33 | 5;
                let cqe = cqe(fixture.played.counter() % 512, first | 60).with_timestamp(ticks);
                fixture.played.complete_with(cqe);
            }
            let mut out = Burst::new();
            out.extend(fixture.rx.rx_one());
            fixture.rx.rx_burst(&mut out);
            for (at, mbuf) in out.iter().enumerate() {
                assert_eq!(mbuf.rx_timestamp(), Some((round * 3 + at as u64) << 33 | 5));
                let clone = mbuf.clone_ref(&mut fixture.pool.cache()).unwrap();
                assert_eq!(clone.rx_timestamp(), mbuf.rx_timestamp());
            }
            assert_eq!(out.len(), 3, "{:?}", fixture.rx.fault());
        }
    }
    // Not asked for, not there; and whoever took a stamped buffer before is not asked.
    let mut fixture = fixture();
    fixture.played.complete_with(cqe(0, 60).with_timestamp(7));
    assert_eq!(fixture.rx.rx_one().unwrap().rx_timestamp(), None);
}

#[test]
fn a_block_that_nobody_asked_for_stops_the_queue() {
    let mut fixture = fixture();
    block(&mut fixture.played, &[60, 61, 62]);
    assert!(fixture.rx.rx_one().is_none());
    assert_eq!(fixture.rx.fault(), Some(QueueFault::BadCqe { opcode: 2, format: 3 }));
}

fn look_up(cqe: Cqe64) -> (OlFlags, PacketType) {
    let word = u32::from_be_bytes(cqe.0[0x1c..0x20].try_into().unwrap());
    let entry = FLAGS[(word >> 16) as usize];
    (OlFlags::from_bits_truncate(entry & 0xff_ffff), PacketType((entry >> 24) as u8))
}

/// A completion of a packet whose layer 2 is right, as all are that arrive.
fn of(l3: u32, l4: u32) -> Cqe64 {
    Cqe64::zeroed().with_l2_ok(true).with_l3_hdr_type(l3).with_l4_hdr_type(l4)
}

#[test]
fn completion_flags_are_translated() {
    use l3_hdr_type::{IPV4, IPV6};
    use l4_hdr_type::{TCP, TCP_ACK, UDP};
    let right = |cqe: Cqe64| cqe.with_l3_ok(true).with_l4_ok(true);
    let (flags, kind) = look_up(right(of(IPV4, TCP)));
    assert_eq!(flags, OlFlags::RX_IP_CSUM_GOOD | OlFlags::RX_L4_CSUM_GOOD);
    assert_eq!(kind.0, PacketType::L3_IPV4 | PacketType::L4_TCP);
    let (flags, _) = look_up(of(IPV4, UDP));
    assert_eq!(flags, OlFlags::RX_IP_CSUM_BAD | OlFlags::RX_L4_CSUM_BAD);
    let (flags, kind) = look_up(of(IPV6, UDP).with_l4_ok(true).with_cv(true));
    let vlan = OlFlags::RX_VLAN | OlFlags::RX_VLAN_STRIPPED;
    assert_eq!(flags, OlFlags::RX_L4_CSUM_GOOD | vlan);
    assert_eq!(kind.0, PacketType::L3_IPV6 | PacketType::L4_UDP);
    let (flags, kind) = look_up(of(0, 0));
    assert_eq!((flags, kind.0), (OlFlags::empty(), 0), "not IP: nothing was checked");
    let (flags, kind) = look_up(of(IPV4, UDP).with_l3_ok(true).with_ip_frag(true));
    assert_eq!(flags, OlFlags::RX_IP_CSUM_GOOD, "a fragment's checksum cannot be checked");
    assert_eq!(kind.0, PacketType::L3_IPV4 | PacketType::L4_FRAGMENT);
    let (flags, kind) = look_up(right(of(IPV4, TCP_ACK)).with_ip_ext_opts(true));
    assert_eq!(flags, OlFlags::RX_IP_CSUM_GOOD | OlFlags::RX_L4_CSUM_GOOD);
    assert_eq!(kind.0, PacketType::L3_IPV4 | PacketType::L4_TCP, "options hide nothing");
}

#[test]
fn reset_steps_over_compressed_blocks_that_were_not_read() {
    // None of the block read, some of it, and a second block behind it; lengths whose low byte,
    // the last of an array entry, has either owner bit.
    for (read, blocks) in [(false, 1), (true, 1), (true, 2)] {
        let mut fixture = compressing();
        fixture.played.complete(40, 60);
        let mut out = ArrayVec::<Mbuf, 40>::new();
        assert_eq!(fixture.rx.rx_burst(&mut out), 40);
        for _ in 0..blocks {
            block(&mut fixture.played, &(0..20).map(|at| 100 + at).collect::<Vec<_>>());
        }
        let mut some = Burst::new();
        if read {
            assert_eq!(fixture.rx.rx_burst(&mut some), 16);
        }
        fixture.rx.reset().unwrap();
        fixture.played.restart();
        for round in 0..12 {
            let mut out = Burst::new();
            assert_eq!(fixture.rx.rx_burst(&mut out), 0, "{read} {blocks} {round}");
            fixture.played.complete(16, 70);
            assert_eq!(fixture.rx.rx_burst(&mut out), 16, "{read} {blocks} {round}");
            assert!(out.iter().all(|mbuf| mbuf.pkt_len() == 70));
        }
        assert_eq!(fixture.rx.fault(), None);
    }
}

#[test]
fn strides_that_cannot_be_stop_the_queue() {
    const FILLER: u32 = 1 << 31;
    let too_long = |len_bytes, room_bytes| QueueFault::TooLong { len_bytes, room_bytes };
    for (stride, byte_cnt, wanted) in [
        (1, 1 << 16 | 60, QueueFault::WrongIndex { expected: 0, got: 1 }),
        (512, 1 << 16 | 60, QueueFault::WrongIndex { expected: 0, got: 512 }),
        (0, 60, too_long(0, 32768)),
        (0, 513 << 16 | 60, too_long(513 * 64, 32768)),
        (0, FILLER | 513 << 16, too_long(513 * 64, 32768)),
        (0, 1 << 16 | 65, too_long(65, 64)),
        (0, 2 << 16 | 129, too_long(129, 128)),
        (0, 512 << 16 | 0xffff, too_long(0xffff, 32768)),
    ] {
        let mut fixture = fixture_with(512, strided);
        fixture.played.complete_with(cqe(stride, byte_cnt));
        for _ in 0..3 {
            assert_eq!(fixture.rx.rx_burst(&mut Burst::new()), 0);
        }
        assert_eq!(fixture.rx.fault(), Some(wanted));
        assert_eq!(fixture.rx.stats().errors, 1, "counted once");
        drop(fixture.rx);
        assert_eq!(fixture.pool.stats().in_use, 0);
    }
}

#[test]
fn a_striding_queue_is_reset_in_the_middle_of_a_buffer() {
    let mut fixture = fixture_with(512, strided);
    let buffers = fixture.rx.hot.strides.as_ref().unwrap().pool().clone();
    let mut kept = Burst::new();
    for round in 0..5 {
        // A packet that is copied, one that is not, and one that nobody reads.
        fixture.played.complete_with(cqe(0, 1 << 16 | 60));
        fixture.played.complete_with(cqe(1, 3 << 16 | 130));
        let mut out = Burst::new();
        assert_eq!(fixture.rx.rx_burst(&mut out), 2, "round {round}: {:?}", fixture.rx.stats());
        assert_eq!((out[0].headroom(), out[1].headroom()), (128, 0));
        assert_eq!((out[1].data_len(), out[1].tailroom()), (130, 62));
        if round == 0 {
            kept.extend(out.pop());
        }
        fixture.played.complete_with(cqe(4, 1 << 16 | 60));
        drop(out);
        fixture.rx.reset().unwrap();
        fixture.played.restart();
        assert_eq!(fixture.rx.rx_burst(&mut Burst::new()), 0);
        assert_eq!(buffers.stats().in_use, 3, "two in the ring, one under a packet");
    }
    drop(fixture.rx);
    assert_eq!((buffers.stats().in_use, kept[0].data_len()), (1, 130));
    drop(kept);
    assert_eq!((buffers.stats().in_use, fixture.pool.stats().in_use), (0, 0));
}

#[test]
fn a_striding_queue_waits_for_buffers_and_loses_nothing() {
    let mut fixture = fixture_with(70, strided);
    let buffers = fixture.rx.hot.strides.as_ref().unwrap().pool().clone();
    // Four packets to each large buffer, all kept: two buffers are in the ring, two in the pool.
    let mut held = Vec::new();
    for packet in 0..16 {
        fixture.played.complete_with(cqe(packet % 4 * 128, 128 << 16 | 8000));
        held.extend(fixture.rx.rx_one());
    }
    assert_eq!((held.len(), buffers.stats().in_use, fixture.rx.fault()), (16, 4, None));
    assert!(fixture.rx.stats().no_mbuf > 0, "the ring is empty");
    held.truncate(12);
    assert!(fixture.rx.rx_one().is_none());
    // No buffer to name a packet: it stays where it is.
    for packet in 0..60 {
        fixture.played.complete_with(cqe(packet, 1 << 16 | 60));
        held.extend(fixture.rx.rx_one());
    }
    assert!(held.len() < 72 && fixture.rx.rx_one().is_none());
    held.truncate(1);
    while let Some(mbuf) = fixture.rx.rx_one() {
        held.push(mbuf);
    }
    assert_eq!((fixture.rx.stats().packets, fixture.rx.fault()), (76, None));
    drop((held, fixture.rx));
    assert_eq!((buffers.stats().in_use, fixture.pool.stats().in_use), (0, 0));
}

/// Who puts another pool's cache there gets a panic, and no buffer that the device may write to.
#[test]
fn a_panic_frees_nothing_that_is_posted() {
    let mut fixture = fixture_with(512, strided);
    let buffers = fixture.rx.hot.strides.as_ref().unwrap().pool().clone();
    let others = pool(8);
    *fixture.rx.cache() = others.cache();
    let panicked = (0..1024).any(|packet| {
        fixture.played.complete_with(cqe(packet % 512, 1 << 16 | 60));
        let burst = std::panic::AssertUnwindSafe(|| fixture.rx.rx_burst(&mut Burst::new()));
        std::panic::catch_unwind(burst).is_err()
    });
    assert!(panicked);
    assert_eq!(buffers.stats().in_use, 2, "those in the ring");
}
