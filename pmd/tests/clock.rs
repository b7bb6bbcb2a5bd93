//! The device's counter beside a clock of the host, an hour long, in device time of our own making.

mod common;

use std::sync::{Arc, Mutex};

use common::Bench;

/// How far an hour's conversions may be from the model's clock.
const BOUND_NS: u64 = 100;

#[test]
fn an_hour_of_the_models_clock_is_converted_within_100_ns() {
    let bench = Bench::new();
    let device = bench.device();
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
        let device_ns = {
            let bench = bench.lock().unwrap();
            bench.pass(1_000_000_000);
            bench.now_ns()
        };
        let base = clock.time_base();
        // 5 ticks in 32 ns of device time.
        let converted = base.to_ns(device_ns / 32 * 5);
        let error = converted.abs_diff(host_ns(device_ns / 32 * 32));
        assert!(converted > last && (error <= BOUND_NS || second < 5), "{error} ns at {second} s");
        last = converted;
        clock.update().unwrap();
    }
    let stats = clock.stats();
    assert_eq!((stats.updates, stats.steps), (3601, 0));
    assert!((30_000..40_000).contains(&stats.drift_ppb), "{stats:?}");
    drop(clock);
    assert!(bench.lock().unwrap().refusals().is_empty());
}
