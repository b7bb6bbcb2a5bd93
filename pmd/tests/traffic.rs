//! Packets in and out: lengths, chains, offloads, queues that fill up and run dry.

mod common;

use common::{Bench, Burst, bytes_of, config, frame, packet, pool, pool_of, tcp, udp};
use ferrocx_bus::DoorbellKind;
use ferrocx_core::{Device, DeviceConfig, KeyMode, MacAddr};
use ferrocx_mempool::{OlFlags, PacketType, TxLengths};
use ferrocx_model::NicConfig;
use ferrocx_pmd::{PrebuiltFrame, Rss, RssConfig, RxQueue, RxQueueConfig, TxQueue, TxQueueConfig};

const MAC: [u8; 6] = [0x02, 0xfe, 0x0c, 0, 0, 1];

/// One receive queue with everything steered to it.
fn receiver(
    device: &Device,
    pool: &ferrocx_mempool::Pool,
    config: &RxQueueConfig,
) -> (RxQueue, Rss) {
    device.register_pool(pool).unwrap();
    let queue = RxQueue::new(device, pool, config).unwrap();
    let rss = Rss::new(device, &[queue.queue_ref()], &RssConfig::default()).unwrap();
    (queue, rss)
}

fn small() -> RxQueueConfig {
    RxQueueConfig { descriptors: 64, ..RxQueueConfig::default() }
}

#[test]
fn frames_of_all_lengths_arrive_unchanged_in_every_key_mode() {
    for mode in [KeyMode::Reserved, KeyMode::Physical, KeyMode::Translated] {
        let mut bench = Bench::new();
        let device = bench.try_device(&DeviceConfig { key_mode: Some(mode), ..config() });
        let pool = pool(512);
        let (mut queue, rss) = receiver(&device, &pool, &small());
        let mut total = 0;
        for len in [60, 64, 65, 127, 128, 1000, 1513, 1514] {
            let sent = frame(MAC, len, len as u8);
            bench.inject(&sent);
            bench.settle();
            let mut out = Burst::new();
            assert_eq!(queue.rx_burst(&mut out), 1, "length {len}: {:?}", bench.refusals());
            assert_eq!(bytes_of(&out[0]), sent, "length {len}");
            total += len as u64;
        }
        assert_eq!((queue.stats().packets, queue.stats().bytes), (8, total));
        bench.assert_clean();
        drop((rss, queue));
        device.close().unwrap();
        bench.assert_clean();
        assert_eq!(pool.stats().in_use, 0);
    }
}

#[test]
fn rings_wrap_many_times_in_order() {
    let mut bench = Bench::new();
    let device = bench.device();
    let pool = pool(512);
    let (mut queue, _rss) = receiver(&device, &pool, &small());
    let mut next = 0u32;
    for round in 0..300u32 {
        let count = round % 33;
        for step in 0..count {
            let mut sent = frame(MAC, 64, 0);
            sent[14..18].copy_from_slice(&(next + step).to_be_bytes());
            bench.inject(&sent);
        }
        bench.settle();
        let mut out = Burst::new();
        assert_eq!(queue.rx_burst(&mut out), count as usize);
        for mbuf in &out {
            assert_eq!(mbuf.data()[14..18], next.to_be_bytes());
            next += 1;
        }
    }
    bench.assert_clean();
}

#[test]
fn full_ring_drops_on_the_device_and_recovers() {
    let mut bench = Bench::new();
    let device = bench.device();
    let pool = pool(512);
    let (mut queue, _rss) = receiver(&device, &pool, &small());
    for step in 0..100 {
        bench.inject(&frame(MAC, 64, step));
    }
    bench.settle();
    let mut received = 0;
    for _ in 0..10 {
        let mut out = Burst::new();
        received += queue.rx_burst(&mut out);
    }
    assert_eq!(received, 64, "the ring holds 64");
    assert_eq!(queue.missed().unwrap(), Some(36));
    bench.inject(&frame(MAC, 64, 1));
    bench.settle();
    let mut out = Burst::new();
    assert_eq!(queue.rx_burst(&mut out), 1);
    assert_eq!(queue.missed().unwrap(), Some(36), "counted once");
}

#[test]
fn queues_count_what_they_missed_apart_and_more_of_them_than_counters_work() {
    let mut bench = Bench::new();
    let device = bench.device();
    let pool = pool(2048);
    device.register_pool(&pool).unwrap();
    let idle = RxQueue::new(&device, &pool, &small()).unwrap();
    let (queue, rss) = receiver(&device, &pool, &small());
    for step in 0..70 {
        bench.inject(&frame(MAC, 64, step));
    }
    bench.settle();
    assert_eq!((queue.missed().unwrap(), idle.missed().unwrap()), (Some(6), Some(0)));
    drop((rss, queue));
    // Sets are given back with their queues, and a queue that gets none does without.
    let sets = device.limits().drop_counters as usize;
    let many: Vec<_> =
        (0..sets).map(|_| ferrocx_core::DropCounter::new(&device).unwrap()).collect();
    assert_eq!(many.iter().filter(|set| set.is_none()).count(), 1, "one is the idle queue's");
    let (mut last, _rss) = receiver(&device, &pool, &small());
    assert_eq!(last.missed().unwrap(), None);
    bench.inject(&frame(MAC, 64, 1));
    bench.settle();
    assert_eq!(last.rx_burst(&mut Burst::new()), 1);
    assert_eq!(bench.refusals().len(), 2, "{:?}", bench.refusals());
}

#[test]
fn empty_pool_stops_nothing_for_good() {
    let mut bench = Bench::new();
    let device = bench.device();
    let pool = pool(64);
    let (mut queue, _rss) = receiver(&device, &pool, &small());
    let mut held = Vec::new();
    for step in 0..80 {
        bench.inject(&frame(MAC, 64, step));
        bench.settle();
        let mut out = Burst::new();
        queue.rx_burst(&mut out);
        held.extend(out);
    }
    assert_eq!(held.len(), 64, "every buffer of the pool is held");
    assert!(queue.stats().no_mbuf > 0);
    held.truncate(10);
    let mut out = Burst::new();
    queue.rx_burst(&mut out);
    bench.inject(&frame(MAC, 64, 7));
    bench.settle();
    assert_eq!(queue.rx_burst(&mut out), 1, "{:?}", queue.stats());
    assert!(queue.fault().is_none());
}

/// Options in the IP header hide no checksum, and of a fragment nobody can tell: by the device's
/// own look at real frames.
#[test]
fn options_and_fragments_are_told_apart() {
    let mut bench = Bench::new();
    let device = bench.device();
    let pool = pool(512);
    let (mut queue, _rss) = receiver(&device, &pool, &small());
    let plain = udp(MAC, 7, 9, &[3; 58]);
    let sum = |header: &[u8]| {
        let words = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
        let sum: u32 = words.sum();
        !((sum & 0xffff) + (sum >> 16)) as u16
    };
    let with_header = |options: &[u8], fragment: [u8; 2]| {
        let mut frame = plain.clone();
        frame.splice(34..34, options.iter().copied());
        frame[14] = 0x45 + (options.len() / 4) as u8;
        let len = u16::from_be_bytes([frame[16], frame[17]]) + options.len() as u16;
        frame[16..18].copy_from_slice(&len.to_be_bytes());
        frame[20..22].copy_from_slice(&fragment);
        frame[24..26].fill(0);
        let check = sum(&frame[14..34 + options.len()]);
        frame[24..26].copy_from_slice(&check.to_be_bytes());
        frame
    };
    let (good, l4_good) = (OlFlags::RX_IP_CSUM_GOOD, OlFlags::RX_L4_CSUM_GOOD);
    for (frame, flags, kind) in [
        (with_header(&[], [0, 0]), good | l4_good, PacketType::L4_UDP),
        (with_header(&[1, 1, 1, 1], [0, 0]), good | l4_good, PacketType::L4_UDP),
        (with_header(&[], [0x20, 0]), good, PacketType::L4_FRAGMENT),
    ] {
        bench.inject(&frame);
        bench.settle();
        let mbuf = queue.rx_one().expect("a packet");
        let checks = OlFlags::RX_IP_CSUM_GOOD
            | OlFlags::RX_IP_CSUM_BAD
            | OlFlags::RX_L4_CSUM_GOOD
            | OlFlags::RX_L4_CSUM_BAD;
        assert_eq!(mbuf.flags() & checks, flags);
        assert_eq!(mbuf.packet_type().0, PacketType::L3_IPV4 | kind);
    }
}

#[test]
fn long_frames_spread_over_a_chain() {
    let mut bench = Bench::new();
    let device = bench.try_device(&DeviceConfig { mtu: 9000, ..config() });
    let pool = pool(1024);
    let config = RxQueueConfig { descriptors: 64, ..RxQueueConfig::default() };
    let (mut queue, _rss) = receiver(&device, &pool, &config);
    // First buffer 2048 behind the headroom, the others 2176.
    let edges = [60, 2047, 2048, 2049, 4223, 4224, 4225, 6400, 6401, 9014];
    for (round, len) in edges.into_iter().cycle().take(200).enumerate() {
        let sent = frame(MAC, len, round as u8);
        bench.inject(&sent);
        bench.settle();
        let mut out = Burst::new();
        assert_eq!(queue.rx_burst(&mut out), 1, "length {len}: {:?}", bench.refusals());
        assert_eq!(out[0].pkt_len(), len);
        let segments = 1 + len.saturating_sub(2048).div_ceil(2176);
        assert_eq!(out[0].nb_segs(), segments, "length {len}");
        assert!(bytes_of(&out[0]) == sent, "length {len}");
    }
    bench.assert_clean();
}

#[test]
fn packets_leave_unchanged() {
    for mode in [KeyMode::Reserved, KeyMode::Physical, KeyMode::Translated] {
        for multi_packet in [true, false] {
            let mut bench = Bench::new();
            let device = bench.try_device(&DeviceConfig { key_mode: Some(mode), ..config() });
            let pool = pool(512);
            device.register_pool(&pool).unwrap();
            let config =
                TxQueueConfig { descriptors: 64, multi_packet, ..TxQueueConfig::default() };
            let mut queue = TxQueue::new(&device, &pool, &config).unwrap();
            for round in 0..50u8 {
                let frames: Vec<_> = (0..32u8)
                    .map(|step| frame([2; 6], 60 + usize::from(step) * 40, round))
                    .collect();
                let mut burst = Burst::new();
                burst.extend(frames.iter().map(|bytes| packet(&pool, bytes)));
                assert_eq!(queue.tx_burst(&mut burst), 32, "round {round}");
                bench.settle();
                assert!(bench.all_sent() == frames, "round {round}: {:?}", bench.refusals());
            }
            let stats = queue.stats();
            assert_eq!((stats.packets, stats.doorbells, stats.full), (1600, 50, 0));
            assert_eq!(queue.reclaim(), 0);
            bench.assert_clean();
            drop(queue);
            device.close().unwrap();
            assert_eq!(pool.stats().in_use, 0);
        }
    }
}

#[test]
fn full_send_ring_leaves_the_rest_with_the_caller() {
    let mut bench = Bench::new();
    let device = bench.device();
    let pool = pool(512);
    device.register_pool(&pool).unwrap();
    let config = TxQueueConfig { descriptors: 64, ..TxQueueConfig::default() };
    let mut queue = TxQueue::new(&device, &pool, &config).unwrap();
    let mut taken = 0;
    for _ in 0..4 {
        let mut burst = Burst::new();
        burst.extend((0..32).map(|step| packet(&pool, &frame([2; 6], 64, step))));
        let now = queue.tx_burst(&mut burst);
        assert_eq!(burst.len(), 32 - now);
        taken += now;
    }
    assert_eq!(taken, 64, "one buffer for each block");
    assert!(queue.stats().full > 0);
    bench.settle();
    assert_eq!(bench.all_sent().len(), 64);
    let mut burst = Burst::new();
    burst.push(packet(&pool, &frame([2; 6], 64, 1)));
    assert_eq!(queue.tx_burst(&mut burst), 1);
    bench.settle();
    assert_eq!(bench.all_sent().len(), 1);
    bench.assert_clean();
}

#[test]
fn single_packets_are_sent_at_once() {
    let mut bench = Bench::new();
    let device = bench.device();
    let pool = pool(512);
    device.register_pool(&pool).unwrap();
    let mut queue = TxQueue::new(&device, &pool, &TxQueueConfig::default()).unwrap();
    for step in 0..200u8 {
        let bytes = frame([2; 6], 64, step);
        let mut burst = Burst::new();
        burst.push(packet(&pool, &bytes));
        assert_eq!(queue.tx_burst(&mut burst), 1);
        bench.settle();
        assert_eq!(bench.all_sent(), [bytes]);
    }
    assert!(queue.reclaim() < 64);
    bench.assert_clean();
}

#[test]
fn single_frames_and_bursts_take_turns() {
    for (kind, blueflame) in [
        (DoorbellKind::Plain, true),
        (DoorbellKind::WriteCombining, true),
        (DoorbellKind::WriteCombining, false),
    ] {
        let told = if blueflame { kind } else { DoorbellKind::Plain };
        take_turns(Bench::with_blueflame(kind), blueflame, told);
    }
}

fn take_turns(mut bench: Bench, blueflame: bool, told: DoorbellKind) {
    let device = bench.device();
    let pool = pool(512);
    device.register_pool(&pool).unwrap();
    let config = TxQueueConfig { descriptors: 64, ..TxQueueConfig::default() };
    let config = TxQueueConfig { blueflame, ..config };
    let mut queue = TxQueue::new(&device, &pool, &config).unwrap();
    assert_eq!(queue.doorbell_kind(), told);
    let plain = frame([2; 6], 100, 9);
    let mut order = PrebuiltFrame::<150>::new(frame([2; 6], 150, 7).first_chunk().unwrap());
    let field = order.field::<5>(61).unwrap();
    for step in 0..300u16 {
        order.set(field, [step as u8; 5]);
        queue.warm_up(&order);
        assert!(queue.send_one(&order), "{:?}", queue.stats());
        let mut sent = vec![order.bytes().to_vec()];
        if step % 3 == 0 {
            let mut burst = Burst::new();
            burst.push(packet(&pool, &plain));
            assert_eq!(queue.tx_burst(&mut burst), 1);
            sent.push(plain.clone());
        }
        bench.settle();
        assert_eq!(bench.all_sent(), sent, "step {step}: {:?}", bench.refusals());
    }
    let stats = queue.stats();
    assert_eq!((stats.packets, stats.doorbells, stats.full), (400, 400, 0));
    bench.assert_clean();
    drop(queue);
    device.close().unwrap();
    assert_eq!(pool.stats().in_use, 0);
}

#[test]
fn chains_are_gathered() {
    let mut bench = Bench::new();
    let device = bench.device();
    let pool = pool(512);
    device.register_pool(&pool).unwrap();
    let mut queue = TxQueue::new(&device, &pool, &TxQueueConfig::default()).unwrap();
    for segments in [2, 3, 4, 5, 20, 60, 4, 3, 2] {
        let each = if segments < 20 { 30 } else { 25 };
        let bytes = frame([2; 6], segments * each, 3);
        let mut pieces = bytes.chunks(each).map(|piece| packet(&pool, piece));
        let mut whole = pieces.next().unwrap();
        pieces.for_each(|piece| whole.chain(piece).unwrap());
        let mut burst = Burst::new();
        burst.push(packet(&pool, &bytes[..60]));
        burst.push(whole);
        assert_eq!(queue.tx_burst(&mut burst), 2);
        bench.settle();
        assert_eq!(bench.all_sent(), [bytes[..60].to_vec(), bytes]);
    }
    // 61 segments and 2 headers fit a request of 63 units; 62 do not.
    for (segments, sent) in [(61, 1), (62, 0)] {
        let mut whole = packet(&pool, &frame([2; 6], 20, 0));
        for _ in 1..segments {
            whole.chain(packet(&pool, &[0x55; 4])).unwrap();
        }
        let mut burst = Burst::new();
        burst.push(whole);
        assert_eq!(queue.tx_burst(&mut burst), 1);
        bench.settle();
        assert_eq!(bench.all_sent().len(), sent, "{segments} segments");
    }
    assert_eq!(queue.stats().dropped, 1);
    bench.assert_clean();
}

#[test]
fn empty_packets_are_dropped_not_sent() {
    let mut bench = Bench::new();
    let device = bench.device();
    let pool = pool(64);
    device.register_pool(&pool).unwrap();
    let mut queue = TxQueue::new(&device, &pool, &TxQueueConfig::default()).unwrap();
    let mut burst = Burst::new();
    burst.push(pool.get().unwrap());
    burst.push(packet(&pool, &frame([2; 6], 64, 0)));
    assert_eq!(queue.tx_burst(&mut burst), 2);
    bench.settle();
    assert_eq!(bench.all_sent().len(), 1);
    assert_eq!((queue.stats().dropped, queue.stats().packets), (1, 1));
    bench.assert_clean();
}

#[test]
fn small_packets_are_copied_into_the_request() {
    for multi_packet in [true, false] {
        let mut bench = Bench::new();
        let device = bench.device();
        let pool = pool(512);
        device.register_pool(&pool).unwrap();
        let config = TxQueueConfig { inline_bytes: 128, multi_packet, ..TxQueueConfig::default() };
        let mut queue = TxQueue::new(&device, &pool, &config).unwrap();
        let frames: Vec<_> =
            [60, 61, 75, 76, 77, 127, 128, 129, 500].map(|len| frame([2; 6], len, 9)).into();
        let mut burst = Burst::new();
        burst.extend(frames.iter().map(|bytes| packet(&pool, bytes)));
        assert_eq!(queue.tx_burst(&mut burst), frames.len());
        bench.settle();
        assert_eq!(bench.all_sent(), frames);
        bench.assert_clean();
    }
}

#[test]
fn checksums_are_filled_in_and_checked() {
    let mut bench = Bench::new();
    let device = bench.device();
    let pool = pool(512);
    let (mut rx, _rss) = receiver(&device, &pool, &small());
    let mut tx = TxQueue::new(&device, &pool, &TxQueueConfig::default()).unwrap();
    let right = udp(MAC, 1, 2, b"a payload that needs no padding");
    let mut wrong = right.clone();
    wrong[24..26].fill(0); // IPv4 header checksum
    wrong[40..42].fill(0xee); // UDP checksum
    let mut mbuf = packet(&pool, &wrong);
    mbuf.set_flags(OlFlags::TX_IP_CSUM | OlFlags::TX_L4_CSUM);
    let mut burst = Burst::new();
    burst.push(mbuf);
    assert_eq!(tx.tx_burst(&mut burst), 1);
    bench.settle();
    assert_eq!(bench.all_sent(), std::slice::from_ref(&right));

    bench.inject(&right);
    bench.inject(&wrong);
    bench.settle();
    let mut out = Burst::new();
    assert_eq!(rx.rx_burst(&mut out), 2);
    let checks = OlFlags::RX_IP_CSUM_GOOD
        | OlFlags::RX_IP_CSUM_BAD
        | OlFlags::RX_L4_CSUM_GOOD
        | OlFlags::RX_L4_CSUM_BAD;
    let good = OlFlags::RX_IP_CSUM_GOOD | OlFlags::RX_L4_CSUM_GOOD;
    assert_eq!(out[0].flags() & checks, good);
    assert_eq!(out[0].packet_type().l3(), PacketType::L3_IPV4);
    assert_eq!(out[0].packet_type().l4(), PacketType::L4_UDP);
    assert!(out[1].flags().contains(OlFlags::RX_IP_CSUM_BAD), "{:?}", out[1].flags());
    bench.assert_clean();
}

#[test]
fn vlan_tags_are_inserted_and_stripped() {
    let mut bench = Bench::new();
    let device = bench.device();
    let pool = pool(512);
    let config = RxQueueConfig { vlan_strip: true, ..small() };
    let (mut rx, _rss) = receiver(&device, &pool, &config);
    let mut tx = TxQueue::new(&device, &pool, &TxQueueConfig::default()).unwrap();
    let bare = frame(MAC, 64, 5);
    let mut tagged = bare[..12].to_vec();
    tagged.extend([0x81, 0x00, 0x60, 0x2a]);
    tagged.extend(&bare[12..]);
    let mut mbuf = packet(&pool, &bare);
    mbuf.set_flags(OlFlags::TX_VLAN_INSERT);
    mbuf.set_vlan_tci(0x602a);
    let mut burst = Burst::new();
    burst.push(mbuf);
    assert_eq!(tx.tx_burst(&mut burst), 1);
    bench.settle();
    assert_eq!(bench.all_sent(), std::slice::from_ref(&tagged));

    bench.inject(&tagged);
    bench.inject(&bare);
    bench.settle();
    let mut out = Burst::new();
    assert_eq!(rx.rx_burst(&mut out), 2);
    assert_eq!(bytes_of(&out[0]), bare);
    assert!(out[0].flags().contains(OlFlags::RX_VLAN | OlFlags::RX_VLAN_STRIPPED));
    assert_eq!(out[0].vlan_tci(), 0x602a);
    assert!(!out[1].flags().contains(OlFlags::RX_VLAN));
    bench.assert_clean();
}

#[test]
fn large_sends_are_cut_into_segments() {
    let mut bench = Bench::new();
    let device = bench.device();
    let pool = pool_of(64, 16384);
    device.register_pool(&pool).unwrap();
    let mut tx = TxQueue::new(&device, &pool, &TxQueueConfig::default()).unwrap();
    let payload: Vec<u8> = (0..9001u32).map(|at| at as u8).collect();
    let whole = tcp([2; 6], 5, &payload);
    let lengths = TxLengths { l2_len: 14, l3_len: 20, l4_len: 20, tso_mss: 1460 };
    let mut mbuf = packet(&pool, &whole);
    mbuf.set_flags(OlFlags::TX_TSO);
    mbuf.set_tx_lengths(lengths);
    let mut burst = Burst::new();
    burst.push(mbuf);
    assert_eq!(tx.tx_burst(&mut burst), 1);
    bench.settle();
    let sent = bench.all_sent();
    assert_eq!(sent.len(), 7, "{:?}", bench.refusals());
    let mut joined = Vec::<u8>::new();
    for segment in &sent {
        let parsed = etherparse::SlicedPacket::from_ethernet(segment).unwrap();
        let Some(etherparse::TransportSlice::Tcp(header)) = &parsed.transport else {
            panic!("not TCP")
        };
        assert_eq!(header.sequence_number(), 1000 + joined.len() as u32);
        joined.extend(header.payload());
    }
    assert!(joined == payload);
    bench.assert_clean();

    // Lengths that contradict the packet.
    for wrong in [
        TxLengths { tso_mss: 0, ..lengths },
        TxLengths { l4_len: 0, ..lengths },
        TxLengths { l3_len: 10000, ..lengths },
        TxLengths { l2_len: 0, ..lengths },
    ] {
        let mut mbuf = packet(&pool, &whole);
        mbuf.set_flags(OlFlags::TX_TSO);
        mbuf.set_tx_lengths(wrong);
        let mut burst = Burst::new();
        burst.push(mbuf);
        assert_eq!(tx.tx_burst(&mut burst), 1);
    }
    assert_eq!(tx.stats().dropped, 4);
    bench.settle();
    assert!(bench.all_sent().is_empty());
}

#[test]
fn pool_of_another_device_is_translated() {
    let mut a = Bench::new();
    let mut b = Bench::with(NicConfig::default(), 99);
    let (first, second) = (a.device(), b.device());
    let pool = pool(1024);
    let (mut rx, _rss) = receiver(&first, &pool, &small());
    second.register_pool(&pool).unwrap();
    let mut tx = TxQueue::new(&second, &pool, &TxQueueConfig::default()).unwrap();
    let (mut back, _rss2) = receiver(&second, &pool, &small());
    for step in 0..100 {
        let sent = frame(MAC, 80, step);
        a.inject(&sent);
        a.settle();
        let mut burst = Burst::new();
        assert_eq!(rx.rx_burst(&mut burst), 1);
        assert_eq!(tx.tx_burst(&mut burst), 1);
        b.settle();
        assert_eq!(b.all_sent(), std::slice::from_ref(&sent));
        // And the second device receives into buffers stamped for the first.
        b.inject(&sent);
        b.settle();
        let mut burst = Burst::new();
        assert_eq!(back.rx_burst(&mut burst), 1);
        assert_eq!(bytes_of(&burst[0]), sent);
    }
    a.assert_clean();
    b.assert_clean();
}

#[test]
fn packets_of_other_pools_are_sent_too() {
    let mut bench = Bench::new();
    let device =
        bench.try_device(&DeviceConfig { key_mode: Some(KeyMode::Translated), ..config() });
    let (own, other) = (pool(64), pool(64));
    device.register_pool(&own).unwrap();
    device.register_pool(&other).unwrap();
    let mut tx = TxQueue::new(&device, &own, &TxQueueConfig::default()).unwrap();
    let frames: Vec<_> = (0..20).map(|step| frame([2; 6], 64, step)).collect();
    let mut burst = Burst::new();
    for (step, bytes) in frames.iter().enumerate() {
        burst.push(packet(if step % 3 == 0 { &other } else { &own }, bytes));
    }
    assert_eq!(tx.tx_burst(&mut burst), 20);
    bench.settle();
    assert_eq!(bench.all_sent(), frames);
    drop(tx);
    assert_eq!((own.stats().in_use, other.stats().in_use), (0, 0));
    bench.assert_clean();
}

#[test]
fn wrong_queue_settings_name_value_limit_and_way_out() {
    let bench = Bench::new();
    let device = bench.device();
    let pool = pool(128);
    let error = RxQueue::new(&device, &pool, &small()).unwrap_err().to_string();
    assert!(error.contains("pool test is not registered with device model"), "{error}");
    device.register_pool(&pool).unwrap();
    let rx = |descriptors| {
        let config = RxQueueConfig { descriptors, ..RxQueueConfig::default() };
        RxQueue::new(&device, &pool, &config).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(rx(32).unwrap_err(), "receive descriptors is 32; it must be 64 to 32768");
    assert!(rx(65536).unwrap_err().contains("must be 64 to 32768"));
    assert!(rx(100).unwrap_err().contains("must be a power of two, for example 128"));
    let error = rx(256).unwrap_err();
    assert!(error.contains("pool test gave 128 of the 256 buffers"), "{error}");
    assert!(rx(64).is_ok());
    let config = RxQueueConfig { max_frame_bytes: Some(65535), ..small() };
    let error = RxQueue::new(&device, &pool, &config).unwrap_err().to_string();
    assert!(error.contains("buffers for the largest frame"), "{error}");
    let config = TxQueueConfig { inline_bytes: 257, ..TxQueueConfig::default() };
    let error = TxQueue::new(&device, &pool, &config).unwrap_err().to_string();
    assert!(error.contains("inline bytes is 257; it must be 0 to 256"), "{error}");
    bench.assert_clean();
    assert_eq!(pool.stats().in_use, 0);
}

#[test]
fn addresses_are_filtered() {
    let mut bench = Bench::new();
    let device = bench.device();
    let pool = pool(512);
    let (mut queue, _rss) = receiver(&device, &pool, &small());
    let group = [0x01, 0, 0x5e, 1, 2, 3];
    let other = [0x02, 9, 9, 9, 9, 9];
    let mut arrives = |bench: &mut Bench, dst: [u8; 6]| {
        bench.inject(&frame(dst, 64, 0));
        bench.settle();
        let mut out = Burst::new();
        queue.rx_burst(&mut out) == 1
    };
    assert!(arrives(&mut bench, MAC));
    assert!(arrives(&mut bench, [0xff; 6]));
    assert!(!arrives(&mut bench, group));
    assert!(!arrives(&mut bench, other));
    device.set_multicast(&[MacAddr(group)]).unwrap();
    assert!(arrives(&mut bench, group));
    device.set_multicast(&[]).unwrap();
    assert!(!arrives(&mut bench, group));
    device.set_all_multicast(true).unwrap();
    assert!(arrives(&mut bench, group));
    assert!(!arrives(&mut bench, other));
    device.set_all_multicast(false).unwrap();
    device.set_promiscuous(true).unwrap();
    assert!(arrives(&mut bench, other));
    device.set_promiscuous(false).unwrap();
    assert!(!arrives(&mut bench, other));
    device.set_mac(MacAddr(other)).unwrap();
    assert!(arrives(&mut bench, other));
    assert!(!arrives(&mut bench, MAC));
    assert!(device.set_mac(MacAddr(group)).is_err());
    assert!(device.set_multicast(&[MacAddr(other)]).is_err());
    bench.assert_clean();
}

#[test]
fn vport_counters_count() {
    let mut bench = Bench::new();
    let device = bench.device();
    let pool = pool(512);
    let (mut rx, _rss) = receiver(&device, &pool, &small());
    let mut tx = TxQueue::new(&device, &pool, &TxQueueConfig::default()).unwrap();
    bench.inject(&frame(MAC, 100, 0));
    bench.inject(&frame([0xff; 6], 100, 0));
    bench.settle();
    let mut burst = Burst::new();
    assert_eq!(rx.rx_burst(&mut burst), 2);
    assert_eq!(tx.tx_burst(&mut burst), 2);
    bench.settle();
    let counters = device.vport_counters().unwrap();
    assert_eq!((counters.rx_unicast.packets, counters.rx_broadcast.packets), (1, 1));
    assert_eq!((counters.rx_packets(), counters.tx_packets()), (2, 2));
    bench.assert_clean();
}

#[test]
fn compressed_completions_lose_nothing() {
    let mut bench = Bench::new();
    let device = bench.device();
    if !device.limits().cqe_compression {
        println!("skipped: this model does not compress completions");
        return;
    }
    let pool = pool(1024);
    let config = RxQueueConfig { cqe_compression: true, ..small() };
    let (mut queue, _rss) = receiver(&device, &pool, &config);
    let mut expected = Vec::new();
    let mut got = Vec::new();
    for round in 0..60u32 {
        for step in 0..round % 50 {
            let sent = frame(MAC, 60 + (step % 5) as usize, (round + step) as u8);
            bench.inject(&sent);
            expected.push(sent);
        }
        bench.settle();
        // Compression may wait for more: device time passes.
        bench.pass(1_000_000);
        bench.settle();
        loop {
            let mut out = Burst::new();
            if queue.rx_burst(&mut out) == 0 {
                break;
            }
            got.extend(out.iter().map(bytes_of));
        }
        assert_eq!(queue.fault(), None, "round {round}");
    }
    assert_eq!(got.len(), expected.len());
    assert!(got == expected);
    bench.assert_clean();
}

/// The entries of a block are the device's again when all of it is read; buffers that are posted
/// sooner have room for their completions all the same.
#[test]
fn a_block_of_completions_that_is_read_in_part_keeps_its_room() {
    for max_frame_bytes in [None, Some(4000)] {
        let mut bench = Bench::new();
        let device = bench.device();
        if !device.limits().cqe_compression {
            println!("skipped: this model does not compress completions");
            return;
        }
        let pool = pool(1024);
        let config = RxQueueConfig { cqe_compression: true, max_frame_bytes, ..small() };
        let (mut queue, _rss) = receiver(&device, &pool, &config);
        for round in 0..20 {
            let (mut sent, mut got) = (Vec::new(), Vec::new());
            // Two blocks, of which one is read and the other in part; then as many as there are
            // buffers for.
            for count in [17, 40, 32] {
                for tag in 0..count {
                    sent.push(frame(MAC, 64, tag + round));
                    bench.inject(&sent[sent.len() - 1]);
                }
                // Compression may wait for more: device time passes.
                bench.settle();
                bench.pass(1_000_000);
                bench.settle();
                if count == 40 {
                    let mut out = Burst::new();
                    assert_eq!(queue.rx_burst(&mut out), 32);
                    got.extend(out.iter().map(bytes_of));
                }
            }
            loop {
                let mut out = Burst::new();
                if queue.rx_burst(&mut out) == 0 {
                    break;
                }
                got.extend(out.iter().map(bytes_of));
            }
            bench.assert_clean();
            // As many as the ring has, at least: how many it has again by then is its own affair.
            assert_eq!(queue.fault(), None);
            assert!(got.len() >= 64 && got == sent[..got.len()], "{} frames", got.len());
        }
    }
}

#[test]
fn forwarding_recycles_buffers_between_queues() {
    let mut bench = Bench::new();
    let device = bench.device();
    let pool = pool(256);
    let (mut rx, _rss) = receiver(&device, &pool, &small());
    let mut tx = TxQueue::new(&device, &pool, &TxQueueConfig::default()).unwrap();
    let mut recycled = 0;
    for round in 0..200u8 {
        for _ in 0..32 {
            bench.inject(&frame(MAC, 64, round));
        }
        bench.settle();
        let mut burst = Burst::new();
        assert_eq!(rx.rx_burst(&mut burst), 32, "round {round}: {:?}", rx.stats());
        assert_eq!(tx.tx_burst(&mut burst), 32);
        recycled += rx.recycle(&mut tx);
        bench.settle();
        assert_eq!(bench.all_sent().len(), 32);
    }
    assert!(recycled > 5000, "{recycled}");
    bench.assert_clean();
}
