//! The device's counter beside a clock of the host, an hour long, in device time of our own making.

mod common;

use std::sync::{Arc, Mutex};

use common::{Bench, Burst, frame, pool};
use ferrocx_pmd::{Rss, RssConfig, RxQueue, RxQueueConfig};

/// How far an hour's conversions may be from the model's clock.
const BOUND_NS: u64 = 100;

#[test]
fn an_hour_of_packets_is_stamped_and_converted_within_100_ns() {
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
    for second in 1..=3600 {
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
        assert!(converted > last && (error <= BOUND_NS || second < 5), "{error} ns at {second} s");
        last = converted;
        clock.update().unwrap();
    }
    let stats = clock.stats();
    assert_eq!((stats.updates, stats.steps), (3601, 0));
    assert!((30_000..40_000).contains(&stats.drift_ppb), "{stats:?}");
    drop((clock, rss, queue));
    assert!(bench.lock().unwrap().refusals().is_empty());
}
