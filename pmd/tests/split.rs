//! Packets in two parts: headers in host memory, what follows in memory of another device.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::{Bench, Burst, config, frame, packet, pool, pool_of};
use ferrocx_core::{Device, DeviceConfig, DeviceError, KeyMode, QueueFault};
use ferrocx_mempool::{Mbuf, OlFlags, Pool, PoolConfig, Region, TxLengths};
use ferrocx_model::fault::{CommandFault, Fault, FaultPlan};
use ferrocx_pmd::{BufferSplit, Rss, RssConfig, RxQueue, RxQueueConfig, TxQueue, TxQueueConfig};
use ferrocx_prm::syndrome::{CommandStatus, CqeSyndrome};

const MAC: [u8; 6] = [0x02, 0xfe, 0x0c, 0, 0, 1];
/// Bytes in front of the pool in the other device's memory, which nobody may touch.
const GUARD: usize = 4096;

/// Memory of another device: a file that is mapped twice, by its owner and by us.
struct Peer {
    owner: Arc<Region>,
    ours: Arc<Region>,
}

impl Peer {
    fn new(len_bytes: usize) -> Self {
        let file = tempfile::tempfile().unwrap();
        file.set_len(len_bytes as u64).unwrap();
        let map = || Region::map_file(&file, 0, len_bytes).unwrap();
        let peer = Self { owner: map(), ours: map() };
        peer.owner.fill(0, len_bytes, 0xa5).unwrap();
        peer
    }

    /// A pool behind the guard.
    fn pool(&self, count: usize, data_room_bytes: usize) -> Pool {
        let config = PoolConfig {
            name: "payload".into(),
            count,
            data_room_bytes,
            headroom_bytes: 0,
            cache_size: 16,
            ..PoolConfig::default()
        };
        Pool::with_region(&config, &self.ours, GUARD).unwrap()
    }

    /// What the owner finds where a segment lies.
    fn at(&self, segment: &ferrocx_mempool::Segment<'_>) -> Vec<u8> {
        let offset = segment.data_address() - self.ours.as_ptr().addr();
        assert!(offset >= GUARD);
        let mut bytes = vec![0; segment.data_len()];
        self.owner.copy_out(offset, &mut bytes).unwrap();
        bytes
    }

    /// The owner sees none of its other bytes changed.
    fn assert_guarded(&self) {
        let mut guard = [0; GUARD];
        self.owner.copy_out(0, &mut guard).unwrap();
        assert!(guard.iter().all(|byte| *byte == 0xa5));
    }
}

fn split(header_bytes: u16, payload: &Pool) -> RxQueueConfig {
    let split = Some(BufferSplit { header_bytes, payload: payload.clone() });
    RxQueueConfig { descriptors: 64, cache_size: 16, split, ..RxQueueConfig::default() }
}

/// A queue that splits, with everything steered to it.
fn receiver(device: &Device, headers: &Pool, config: &RxQueueConfig) -> (RxQueue, Rss) {
    device.register_pool(headers).unwrap();
    device.register_pool(&config.split.as_ref().unwrap().payload).unwrap();
    let queue = RxQueue::new(device, headers, config).unwrap();
    let rss = Rss::new(device, &[queue.queue_ref()], &RssConfig::default()).unwrap();
    (queue, rss)
}

/// Sends one frame to the device and takes it out of the queue.
fn received(bench: &mut Bench, queue: &mut RxQueue, bytes: &[u8]) -> Mbuf {
    bench.inject(bytes);
    bench.settle();
    let mut out = Burst::new();
    assert_eq!(queue.rx_burst(&mut out), 1, "{} bytes: {:?}", bytes.len(), bench.refusals());
    out.pop().unwrap()
}

/// Header and payload are where they belong, every byte of them.
#[track_caller]
fn assert_parts(peer: &Peer, mbuf: &Mbuf, bytes: &[u8], header_bytes: usize, room: usize) {
    assert_eq!(mbuf.pkt_len(), bytes.len());
    let (header, payload) = bytes.split_at(header_bytes.min(bytes.len()));
    let mut segments = mbuf.segments();
    assert_eq!(segments.next().unwrap().data(), header);
    let mut pieces = payload.chunks(room);
    for (segment, piece) in segments.by_ref().zip(pieces.by_ref()) {
        assert!(segment.is_foreign());
        assert!(peer.at(&segment) == piece, "payload of {} bytes", bytes.len());
    }
    assert!(segments.next().is_none() && pieces.next().is_none(), "{} bytes", bytes.len());
    let mut all = vec![0; bytes.len()];
    assert!(mbuf.read(0, &mut all) && all == bytes);
}

#[test]
fn packets_are_split_at_every_boundary_in_every_key_mode() {
    for mode in [KeyMode::Reserved, KeyMode::Physical, KeyMode::Translated] {
        let mut bench = Bench::new();
        let device = bench.try_device(&DeviceConfig { key_mode: Some(mode), ..config() });
        let (headers, peer) = (pool(128), Peer::new(1 << 19));
        let payloads = peer.pool(128, 2048);
        let (mut queue, rss) = receiver(&device, &headers, &split(64, &payloads));
        // Up to the header's end, one byte behind it, and up to the MTU; many laps of the ring.
        for (round, len) in
            [60, 63, 64, 65, 66, 128, 1000, 1513, 1514].into_iter().cycle().take(300).enumerate()
        {
            let sent = frame(MAC, len, round as u8);
            let mbuf = received(&mut bench, &mut queue, &sent);
            assert_eq!(mbuf.nb_segs(), if len > 64 { 2 } else { 1 }, "{len} bytes");
            assert_parts(&peer, &mbuf, &sent, 64, 2048);
        }
        assert_eq!(queue.stats().no_mbuf, 0);
        peer.assert_guarded();
        bench.assert_clean();
        drop((rss, queue));
        device.close().unwrap();
        assert_eq!((headers.stats().in_use, payloads.stats().in_use), (0, 0));
    }
}

#[test]
fn long_payloads_fill_several_buffers() {
    let mut bench = Bench::new();
    let device = bench.try_device(&DeviceConfig { mtu: 9000, ..config() });
    let (headers, peer) = (pool(128), Peer::new(4 << 20));
    let payloads = peer.pool(1024, 3000);
    // 100 + 3 * 3000 bytes are enough: four buffers.
    let (mut queue, _rss) = receiver(&device, &headers, &split(100, &payloads));
    for (round, len) in
        [60, 100, 101, 3100, 3101, 6099, 6100, 6101, 9014].into_iter().cycle().take(200).enumerate()
    {
        let sent = frame(MAC, len, round as u8);
        let mbuf = received(&mut bench, &mut queue, &sent);
        assert_parts(&peer, &mbuf, &sent, 100, 3000);
    }
    peer.assert_guarded();
    bench.assert_clean();
}

#[test]
fn either_pool_may_run_dry_and_recover() {
    for (headers, payloads, keep) in [(64, 256, "headers"), (256, 64, "payloads")] {
        let mut bench = Bench::new();
        let device = bench.device();
        let (headers, peer) = (pool(headers), Peer::new(1 << 20));
        let payloads = peer.pool(payloads, 2048);
        let (mut queue, _rss) = receiver(&device, &headers, &split(64, &payloads));
        let mut held = Vec::new();
        for step in 0..80 {
            bench.inject(&frame(MAC, 200, step));
            bench.settle();
            let mut out = Burst::new();
            queue.rx_burst(&mut out);
            held.extend(out);
        }
        assert_eq!(held.len(), 64, "every buffer of the {keep} is held");
        assert!(queue.stats().no_mbuf > 0);
        held.truncate(10);
        let mut out = Burst::new();
        assert_eq!(queue.rx_burst(&mut out), 0);
        let sent = frame(MAC, 200, 7);
        let mbuf = received(&mut bench, &mut queue, &sent);
        assert_parts(&peer, &mbuf, &sent, 64, 2048);
        assert!(queue.fault().is_none());
    }
}

#[test]
fn a_pool_that_is_too_small_is_named_with_its_own_figures() {
    // Of 64 packets of 1518 bytes: a header, and payloads as many as it takes.
    let cases = [
        (128, (63, 2048), ("payload", 64, 63)),
        (63, (128, 2048), ("test", 64, 63)),
        (128, (100, 512), ("payload", 192, 99)),
        (60, (192, 512), ("test", 64, 60)),
    ];
    for (headers, (payloads, room), expected) in cases {
        let bench = Bench::new();
        let device = bench.device();
        let (headers, peer) = (pool(headers), Peer::new(1 << 20));
        let payloads = peer.pool(payloads, room);
        for pool in [&headers, &payloads] {
            device.register_pool(pool).unwrap();
        }
        let error = RxQueue::new(&device, &headers, &split(64, &payloads)).unwrap_err();
        let DeviceError::PoolTooSmall { pool, need, got } = &error else { panic!("{error}") };
        assert_eq!((pool.as_str(), *need, *got), expected);
        assert_eq!((headers.stats().in_use, payloads.stats().in_use), (0, 0));
    }
}

#[test]
fn short_packets_give_their_payload_buffers_back() {
    let mut bench = Bench::new();
    let device = bench.device();
    let (headers, peer) = (pool(128), Peer::new(1 << 20));
    let payloads = peer.pool(64, 2048);
    let (mut queue, _rss) = receiver(&device, &headers, &split(64, &payloads));
    let mut held = Vec::new();
    // There are payload buffers for the ring and no more.
    for step in 0..64 {
        held.push(received(&mut bench, &mut queue, &frame(MAC, 60, step)));
    }
    assert_eq!(payloads.stats().in_use, 64, "all are posted");
    assert_eq!(queue.stats().no_mbuf, 0);
    assert!(held.iter().all(|mbuf| !mbuf.is_foreign() && mbuf.nb_segs() == 1));
    bench.assert_clean();
}

#[test]
fn chains_leave_from_foreign_memory_without_a_copy() {
    for mode in [KeyMode::Reserved, KeyMode::Translated] {
        let mut bench = Bench::new();
        let device = bench.try_device(&DeviceConfig { key_mode: Some(mode), ..config() });
        let (headers, peer) = (pool(256), Peer::new(1 << 20));
        let payloads = peer.pool(128, 2048);
        let (mut rx, _rss) = receiver(&device, &headers, &split(64, &payloads));
        // Everything up to 256 bytes would be copied into the request, were it not foreign.
        let config = TxQueueConfig { inline_bytes: 256, ..TxQueueConfig::default() };
        let mut tx = TxQueue::new(&device, &headers, &config).unwrap();
        for (round, len) in [60, 64, 65, 100, 300, 1514].into_iter().cycle().take(200).enumerate() {
            let sent = frame(MAC, len, round as u8);
            let mut mbuf = received(&mut bench, &mut rx, &sent);
            let mut expected = sent.clone();
            mbuf.data_mut().unwrap()[..6].fill(2);
            expected[..6].fill(2);
            if mbuf.nb_segs() == 2 {
                // The owner may still change what it was sent; that is what leaves.
                let segment = mbuf.segments().nth(1).unwrap();
                let offset = segment.data_address() - peer.ours.as_ptr().addr();
                peer.owner.copy_in(offset, b"!").unwrap();
                expected[64] = b'!';
            }
            let mut burst = Burst::new();
            burst.push(mbuf);
            assert_eq!(tx.tx_burst(&mut burst), 1);
            bench.settle();
            assert!(bench.all_sent() == [expected], "{len} bytes: {:?}", bench.refusals());
        }
        // What the ring holds, and the last packets in flight.
        assert!(payloads.stats().in_use <= 64 + 32);
        peer.assert_guarded();
        bench.assert_clean();
    }
}

#[test]
fn packets_that_lie_in_foreign_memory_as_a_whole_are_sent() {
    for inline_bytes in [0, 256] {
        let mut bench = Bench::new();
        let device = bench.device();
        let peer = Peer::new(1 << 20);
        let payloads = peer.pool(128, 2048);
        device.register_pool(&payloads).unwrap();
        let config = TxQueueConfig { inline_bytes, ..TxQueueConfig::default() };
        let mut tx = TxQueue::new(&device, &payloads, &config).unwrap();
        let frames: Vec<_> = (0..20).map(|at| frame([2; 6], 60 + 70 * at, at as u8)).collect();
        let mut burst = Burst::new();
        for bytes in &frames {
            let mut mbuf = payloads.get().unwrap();
            assert!(mbuf.reset_rx(0, bytes.len() as u32));
            let offset = mbuf.data_address() - peer.ours.as_ptr().addr();
            peer.owner.copy_in(offset, bytes).unwrap();
            burst.push(mbuf);
        }
        assert_eq!(tx.tx_burst(&mut burst), 20);
        bench.settle();
        assert!(bench.all_sent() == frames, "{:?}", bench.refusals());
        bench.assert_clean();
    }
}

#[test]
fn large_sends_take_their_headers_from_the_host() {
    let mut bench = Bench::new();
    let device = bench.device();
    let (headers, peer) = (pool(64), Peer::new(1 << 20));
    let payloads = peer.pool(64, 8192);
    for pool in [&headers, &payloads] {
        device.register_pool(pool).unwrap();
    }
    let mut tx = TxQueue::new(&device, &headers, &TxQueueConfig::default()).unwrap();
    let bytes = common::tcp([2; 6], 9, &[0; 4000]);
    let mut mbuf = packet(&headers, &bytes[..54]);
    let mut payload = payloads.get().unwrap();
    assert!(payload.reset_rx(0, 4000));
    let offset = payload.data_address() - peer.ours.as_ptr().addr();
    peer.owner.fill(offset, 4000, 0x5a).unwrap();
    mbuf.chain(payload).unwrap();
    mbuf.set_flags(OlFlags::TX_TSO);
    mbuf.set_tx_lengths(TxLengths { l2_len: 14, l3_len: 20, l4_len: 20, tso_mss: 1000 });
    let mut burst = Burst::new();
    burst.push(mbuf);
    assert_eq!(tx.tx_burst(&mut burst), 1);
    bench.settle();
    let sent = bench.all_sent();
    assert_eq!(sent.len(), 4, "{:?}", bench.refusals());
    assert!(sent.iter().all(|frame| frame.len() == 1054 && frame[54..] == [0x5a; 1000]));
    bench.assert_clean();
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let bench = Bench::new();
    let device = bench.device();
    let (headers, peer) = (pool_of(64, 256), Peer::new(1 << 20));
    device.register_pool(&headers).unwrap();
    let error = RxQueue::new(&device, &headers, &split(64, &peer.pool(64, 2048))).unwrap_err();
    assert!(matches!(&error, DeviceError::PoolNotRegistered { pool, .. } if pool == "payload"));
    let payloads = peer.pool(128, 64);
    device.register_pool(&payloads).unwrap();
    for (header_bytes, wanted) in [
        (0, "header bytes is 0; it must be 1 to 128"),
        (129, "header bytes is 129; it must be 1 to 128"),
        (128, "buffers for the largest frame is 32; it must be 1 to 8"),
    ] {
        let error = RxQueue::new(&device, &headers, &split(header_bytes, &payloads)).unwrap_err();
        assert!(error.to_string().contains(wanted), "{error}");
    }
    assert_eq!((headers.stats().in_use, payloads.stats().in_use), (0, 0));
}

#[test]
fn memory_goes_back_to_its_owner_when_nothing_uses_it() {
    for mode in [KeyMode::Reserved, KeyMode::Translated] {
        let mut bench = Bench::new();
        let device = bench.try_device(&DeviceConfig { key_mode: Some(mode), ..config() });
        let (headers, peer) = (pool(128), Peer::new(1 << 20));
        let payloads = peer.pool(128, 2048);
        // Queues of before made room for those to come.
        device.register_pool(&headers).unwrap();
        let plain = RxQueueConfig { split: None, ..split(64, &payloads) };
        let warm = RxQueue::new(&device, &headers, &plain).unwrap();
        drop((warm, TxQueue::new(&device, &headers, &TxQueueConfig::default()).unwrap()));
        let before = bench.mappings();
        let (mut rx, rss) = receiver(&device, &headers, &split(64, &payloads));
        let tx = TxQueue::new(&device, &headers, &TxQueueConfig::default()).unwrap();
        assert_eq!(bench.mappings(), before + 1);
        let mbuf = received(&mut bench, &mut rx, &frame(MAC, 200, 1));
        let refused = device.unregister_pool(&payloads).unwrap_err();
        assert!(matches!(refused, DeviceError::InUse { handles: 2 }), "{refused}");
        drop((rss, rx));
        let refused = device.unregister_pool(&payloads).unwrap_err();
        assert!(matches!(refused, DeviceError::InUse { handles: 1 }), "{refused}");
        drop(tx);
        let refused = device.unregister_pool(&payloads).unwrap_err();
        assert!(matches!(refused, DeviceError::Mempool(_)), "a packet is out: {refused}");
        assert_eq!((bench.mappings(), payloads.keys().is_some()), (before + 1, true));
        drop(mbuf);
        device.unregister_pool(&payloads).unwrap();
        assert_eq!((bench.mappings(), payloads.keys()), (before, None));
        device.unregister_pool(&payloads).unwrap();
        let refused = RxQueue::new(&device, &headers, &split(64, &payloads)).unwrap_err();
        assert!(matches!(refused, DeviceError::PoolNotRegistered { .. }), "{refused}");
        // Lent again, it works as before; the other pool never noticed.
        let (mut rx, _rss) = receiver(&device, &headers, &split(64, &payloads));
        let sent = frame(MAC, 300, 2);
        assert_parts(&peer, &received(&mut bench, &mut rx, &sent), &sent, 64, 2048);
        bench.assert_clean();
    }
}

#[test]
fn pools_of_one_region_keep_it_mapped_until_the_last() {
    let bench = Bench::new();
    let device = bench.device();
    let peer = Peer::new(1 << 20);
    let first = peer.pool(16, 2048);
    let config = PoolConfig { count: 16, data_room_bytes: 2048, ..PoolConfig::default() };
    let second = Pool::with_region(&config, &peer.ours, 1 << 19).unwrap();
    let before = bench.mappings();
    for pool in [&first, &second, &first] {
        device.register_pool(pool).unwrap();
    }
    assert_eq!(bench.mappings(), before + 1);
    device.unregister_pool(&first).unwrap();
    assert_eq!((bench.mappings(), first.keys()), (before + 1, None));
    assert!(second.keys().is_some());
    device.unregister_pool(&second).unwrap();
    assert_eq!(bench.mappings(), before);
}

#[test]
fn a_pool_whose_end_failed_half_way_is_registered_anew() {
    for (step, by_revoking) in [("key", false), ("key", true), ("map", false), ("map", true)] {
        let mut bench = Bench::new();
        let device = bench.device();
        let (headers, peer) = (pool(128), Peer::new(1 << 20));
        let payloads = peer.pool(128, 2048);
        device.register_pool(&headers).unwrap();
        let before = bench.mappings();
        device.register_pool(&payloads).unwrap();
        if step == "key" {
            let nth = bench.nic().state().counters.commands + 1;
            let fault = CommandFault::Status(CommandStatus::INTERNAL_ERR);
            bench.nic().set_faults(FaultPlan::at(&[Fault::Command { nth, fault }]));
        }
        bench.unmap_fails.store(step == "map", Ordering::Relaxed);
        let end = || match by_revoking {
            true => device.revoke_pool(&payloads),
            false => device.unregister_pool(&payloads),
        };
        let refused = end().unwrap_err().to_string();
        let said = if step == "key" { "DESTROY_MKEY: INTERNAL_ERR" } else { "no mapping is" };
        assert!(refused.contains(said), "{refused}");
        let unused = RxQueue::new(&device, &headers, &split(64, &payloads)).unwrap_err();
        assert!(matches!(unused, DeviceError::PoolNotRegistered { .. }), "{unused}");
        bench.unmap_fails.store(false, Ordering::Relaxed);
        // Another pool of the region does not get its key either.
        let config = PoolConfig { count: 16, data_room_bytes: 2048, ..PoolConfig::default() };
        let second = Pool::with_region(&config, &peer.ours, 1 << 19).unwrap();
        device.register_pool(&second).unwrap();
        let (mut rx, _rss) = receiver(&device, &headers, &split(64, &payloads));
        assert_eq!(bench.mappings(), before + 1);
        assert_eq!(payloads.keys(), second.keys());
        let sent = frame(MAC, 300, 2);
        assert_parts(&peer, &received(&mut bench, &mut rx, &sent), &sent, 64, 2048);
    }
}

#[test]
fn memory_taken_back_at_once_stops_its_queues_by_name() {
    for mode in [KeyMode::Reserved, KeyMode::Physical, KeyMode::Translated] {
        let mut bench = Bench::new();
        let device = bench.try_device(&DeviceConfig { key_mode: Some(mode), ..config() });
        let (headers, peer) = (pool(512), Peer::new(1 << 20));
        let payloads = peer.pool(128, 2048);
        let (mut rx, rss) = receiver(&device, &headers, &split(64, &payloads));
        let mut tx = TxQueue::new(&device, &headers, &TxQueueConfig::default()).unwrap();
        let other = TxQueueConfig { multi_packet: false, ..TxQueueConfig::default() };
        let mut other = TxQueue::new(&device, &headers, &other).unwrap();
        let held = received(&mut bench, &mut rx, &frame(MAC, 500, 1));
        let mapped = bench.mappings();
        device.revoke_pool(&payloads).unwrap();
        device.revoke_pool(&payloads).unwrap();
        peer.owner.fill(0, 1 << 20, 0x11).unwrap();

        // A packet without a payload needs none of it.
        assert_eq!(received(&mut bench, &mut rx, &frame(MAC, 64, 2)).nb_segs(), 1);
        bench.inject(&frame(MAC, 500, 3));
        bench.settle();
        let mut out = Burst::new();
        assert_eq!(rx.rx_burst(&mut out), 0);
        assert_named(rx.fault());
        let mut burst = Burst::new();
        burst.push(held);
        assert_eq!(tx.tx_burst(&mut burst), 1);
        bench.settle();
        // A send queue asks for completions now and then, and so learns of it a little later.
        for _ in 0..2 {
            burst.extend((0..32).map(|_| packet(&headers, &frame([2; 6], 60, 4))));
            assert_eq!(tx.tx_burst(&mut burst), 32);
            bench.settle();
        }
        tx.reclaim();
        assert_named(tx.fault());
        assert_eq!(bench.all_sent(), Vec::<Vec<u8>>::new());

        // Everything else goes on, and the owner's bytes are as it left them.
        burst.push(packet(&headers, &frame([2; 6], 100, 5)));
        assert_eq!(other.tx_burst(&mut burst), 1);
        bench.settle();
        assert_eq!(bench.all_sent(), [frame([2; 6], 100, 5)]);
        let mut bytes = vec![0; 1 << 20];
        peer.owner.copy_out(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0x11), "{mode}");

        drop((rss, rx, tx, other));
        assert_eq!((bench.mappings(), payloads.stats().in_use), (mapped - 1, 0));
        // Lent again, it works as before.
        let (mut rx, _rss) = receiver(&device, &headers, &split(64, &payloads));
        let sent = frame(MAC, 300, 2);
        assert_parts(&peer, &received(&mut bench, &mut rx, &sent), &sent, 64, 2048);
        let refused = device.revoke_pool(&headers).unwrap_err().to_string();
        assert!(refused.contains("memory of this process"), "{refused}");
    }
}

#[track_caller]
fn assert_named(fault: Option<QueueFault>) {
    let Some(QueueFault::Completion { syndrome, .. }) = fault else { panic!("{fault:?}") };
    assert_eq!(syndrome, CqeSyndrome::LOCAL_PROT_ERR);
}
