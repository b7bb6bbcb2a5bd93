//! The device's counter beside a clock of the host, an hour long, in device time of our own making.

mod common;

use std::sync::{Arc, Mutex};

use common::{Bench, Burst, frame, pool};
use ferrocx_core::Clock;
use ferrocx_mempool::{OlFlags, PoolCache};
use ferrocx_pmd::{PrebuiltFrame, Rss, RssConfig, RxQueue, RxQueueConfig, TxQueue, TxQueueConfig};

/// How far an hour's conversions may be from the model's clock, once they have settled. The model's
/// counter is read in no time; what a card's read takes comes on top.
const BOUND_NS: u64 = 50;

#[test]
fn an_hour_of_packets_is_stamped_and_converted_within_50_ns() {
    let bench = Bench::new();
    let device = bench.device();
    let pool = pool(256);
    device.register_pool(&pool).unwrap();
    let config = RxQueueConfig { descriptors: 64, timestamps: true, ..RxQueueConfig::default() };
    let mut queue = RxQueue::new(&device, &pool, &config).unwrap();
    let rss = Rss::new(&device, &[queue.queue_ref()], &RssConfig::default()).unwrap();
    let mac = device.mac().0;
    let bench = Arc::new(Mutex::new(bench));
    // The host's crystal is 35 ppm slower than the device's, and wanders by 3 ppm in half an hour.
    let host_ns = |device_ns: u64| {
        let angle = device_ns as f64 / 1e9 * std::f64::consts::TAU / 1800.0;
        let wander = 3e-6 * 1e9 * 1800.0 / std::f64::consts::TAU * (1.0 - angle.cos());
        (device_ns as f64 * (1.0 - 35e-6) - wander) as u64 + 1_000_000_000
    };
    let model = Arc::clone(&bench);
    let mut clock = device
        .clock_by(move || {
            // The registers show what the device's clock was when it last did something.
            let model = model.lock().unwrap();
            let now_ns = model.now_ns();
            model.nic().step(now_ns);
            host_ns(now_ns)
        })
        .unwrap();
    let mut last = 0;
    for second in 1..=3600u64 {
        // A packet, received in a step at this time.
        let device_ns = {
            let mut bench = bench.lock().unwrap();
            bench.pass(1_000_000_000);
            bench.inject(&frame(mac, 60, second as u8));
            let device_ns = bench.now_ns();
            bench.step();
            device_ns
        };
        let mut burst = Burst::new();
        assert_eq!(queue.rx_burst(&mut burst), 1, "{second} s");
        let ticks = burst[0].rx_timestamp().expect("the queue was asked for it");
        // 5 ticks in 32 ns of device time.
        assert_eq!(ticks, device_ns * 5 / 32);
        let converted = clock.time_base().to_ns(ticks);
        let error = converted.abs_diff(host_ns(device_ns));
        // The update of this second comes behind the packet.
        let is_settled = second > Clock::SETTLING_UPDATES;
        assert!(converted > last, "{converted} after {last}");
        assert!(error <= BOUND_NS || !is_settled, "{error} ns at {second} s");
        last = converted;
        clock.update().unwrap();
    }
    let stats = clock.stats();
    assert_eq!((stats.updates, stats.steps), (3601, 0));
    assert!((30_000..40_000).contains(&stats.drift_ppb), "{stats:?}");
    drop((clock, rss, queue));
    assert!(bench.lock().unwrap().refusals().is_empty());
}

#[test]
fn an_hour_of_sends_is_stamped_and_converted_within_50_ns() {
    let bench = Bench::new();
    let device = bench.device();
    let pool = pool(256);
    device.register_pool(&pool).unwrap();
    let config = TxQueueConfig { descriptors: 64, timestamps: 8, ..TxQueueConfig::default() };
    let mut queue = TxQueue::new(&device, &pool, &config).unwrap();
    let frame = PrebuiltFrame::new(&[0x5a; 60]);
    let bench = Arc::new(Mutex::new(bench));
    let host_ns = |device_ns: u64| (device_ns as f64 * (1.0 + 20e-6)) as u64 + 5_000_000_000;
    let model = Arc::clone(&bench);
    let mut clock = device
        .clock_by(move || {
            let model = model.lock().unwrap();
            let now_ns = model.now_ns();
            model.nic().step(now_ns);
            host_ns(now_ns)
        })
        .unwrap();
    let mut last = 0;
    for second in 1..=3600u64 {
        bench.lock().unwrap().pass(1_000_000_000);
        // One among others that do not ask, and a single frame.
        let mut burst = Burst::new();
        for at in 0..5 {
            let mut mbuf = queue.cache().get().unwrap();
            assert!(mbuf.extend_from_slice(&[at; 64]));
            if at == 2 {
                mbuf.set_tx_timestamp(second);
            }
            burst.push(mbuf);
        }
        assert_eq!(queue.tx_burst(&mut burst), 5);
        assert!(queue.send_one_stamped(&frame, second | 1 << 63));
        assert_eq!(queue.next_timestamp(), None, "not sent yet");
        let sent = {
            let mut bench = bench.lock().unwrap();
            let start = bench.now_ns();
            bench.settle();
            assert_eq!(bench.all_sent().len(), 6);
            start * 5 / 32..=bench.now_ns() * 5 / 32
        };
        for id in [second, second | 1 << 63] {
            let stamp = queue.next_timestamp();
            let stamp = stamp.unwrap_or_else(|| panic!("{second} s: {:?}", queue.stats()));
            assert!(stamp.id == id && sent.contains(&stamp.ticks), "{stamp:?} {sent:?}");
            // 5 ticks in 32 ns of device time.
            let device_ns = stamp.ticks * 32 / 5;
            let converted = clock.time_base().to_ns(stamp.ticks);
            // Two of a step may be of the same tick, and never of an earlier time.
            assert!(converted >= last, "{converted} after {last}");
            last = converted;
            let error = converted.abs_diff(host_ns(device_ns));
            let is_settled = second > Clock::SETTLING_UPDATES;
            assert!(error <= BOUND_NS || !is_settled, "{error} ns at {second} s");
        }
        assert_eq!(queue.next_timestamp(), None);
        clock.update().unwrap();
    }
    let stats = queue.stats();
    assert_eq!((stats.packets, stats.timestamps_lost, stats.dropped), (6 * 3600, 0, 0));
    drop((clock, queue));
    assert!(bench.lock().unwrap().refusals().is_empty());
}

/// Every packet asks, of every kind; nobody takes more than the queue keeps.
#[test]
fn every_kind_of_packet_is_stamped_and_what_nobody_takes_is_counted() {
    let bench = Bench::new();
    let device = bench.device();
    let pool = pool(256);
    device.register_pool(&pool).unwrap();
    let refused = TxQueueConfig { timestamps: 65537, ..TxQueueConfig::default() };
    let refused = TxQueue::new(&device, &pool, &refused).unwrap_err().to_string();
    assert!(refused.contains("send timestamps to keep") && refused.contains("65537"), "{refused}");
    let plain = TxQueueConfig { descriptors: 64, ..TxQueueConfig::default() };
    let kept = TxQueueConfig { timestamps: 8, ..plain.clone() };
    let packets = |cache: &mut PoolCache| {
        let mut burst = Burst::new();
        for at in 0..12u64 {
            let mut mbuf = cache.get().unwrap();
            assert!(mbuf.extend_from_slice(&frame([2; 6], 200, at as u8)));
            match at % 6 {
                1 => mbuf.set_flags(OlFlags::TX_IP_CSUM | OlFlags::TX_L4_CSUM),
                2 => mbuf.set_flags(OlFlags::TX_VLAN_INSERT),
                3 => {
                    let mut tail = cache.get().unwrap();
                    assert!(tail.extend_from_slice(&[7; 100]));
                    mbuf.chain(tail).unwrap();
                }
                4 => mbuf.set_flags(OlFlags::TX_IP_CSUM),
                _ => {}
            }
            mbuf.set_tx_timestamp(at);
            burst.push(mbuf);
        }
        burst
    };
    let mut queue = TxQueue::new(&device, &pool, &plain).unwrap();
    let mut burst = packets(queue.cache());
    assert_eq!((queue.tx_burst(&mut burst), queue.stats().dropped), (12, 12));
    assert!(!queue.send_one_stamped(&PrebuiltFrame::new(&[0; 60]), 1));
    let mut queue = TxQueue::new(&device, &pool, &kept).unwrap();
    for round in 0..20 {
        let mut burst = packets(queue.cache());
        assert_eq!(queue.tx_burst(&mut burst), 12, "{round}");
        bench.settle();
        assert_eq!(queue.reclaim(), 0, "each asked for a completion");
        let ids: Vec<_> = std::iter::from_fn(|| queue.next_timestamp()).collect();
        assert_eq!(
            ids.iter().map(|stamp| stamp.id).collect::<Vec<_>>(),
            (0..8).collect::<Vec<_>>()
        );
        assert!(ids.is_sorted_by_key(|stamp| stamp.ticks));
        assert_eq!(queue.stats().timestamps_lost, 4 * (round + 1));
    }
    assert_eq!((queue.stats().packets, queue.stats().dropped), (240, 0));
    drop(queue);
    bench.assert_clean();
}
