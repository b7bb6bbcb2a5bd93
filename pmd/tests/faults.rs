//! What goes wrong: queues in error, resets in mid-traffic, dead devices, links that flap.

mod common;

use std::time::{Duration, Instant};

use common::{Bench, Burst, config, frame, packet, pool};
use ferrocx_bus::Notice;
use ferrocx_core::{
    CommandError, DeadDevice, Device, DeviceConfig, DeviceError, Event, QueueFault,
};
use ferrocx_mempool::Pool;
use ferrocx_model::NicConfig;
use ferrocx_model::fault::{CommandFault, Fault, FaultPlan};
use ferrocx_pmd::{Rss, RssConfig, RxQueue, RxQueueConfig, TxQueue, TxQueueConfig};
use ferrocx_prm::syndrome::{CommandStatus, CqeSyndrome, HealthSyndrome};

const MAC: [u8; 6] = [0x02, 0xfe, 0x0c, 0, 0, 1];

fn both(device: &Device, pool: &Pool) -> (RxQueue, TxQueue, Rss) {
    device.register_pool(pool).unwrap();
    let config = RxQueueConfig { descriptors: 64, ..RxQueueConfig::default() };
    let rx = RxQueue::new(device, pool, &config).unwrap();
    let tx = TxQueue::new(device, pool, &TxQueueConfig::default()).unwrap();
    let rss = Rss::new(device, &[rx.queue_ref()], &RssConfig::default()).unwrap();
    (rx, tx, rss)
}

fn send(tx: &mut TxQueue, pool: &Pool, count: u8) -> usize {
    let mut burst = Burst::new();
    burst.extend((0..count).map(|step| packet(pool, &frame([2; 6], 64, step))));
    tx.tx_burst(&mut burst)
}

fn receive(bench: &mut Bench, rx: &mut RxQueue) -> usize {
    bench.inject(&frame(MAC, 64, 0));
    bench.settle();
    rx.rx_burst(&mut Burst::new())
}

#[test]
fn send_queue_error_is_kept_explained_and_recovered() {
    let mut bench = Bench::new();
    let device = bench.device();
    let pool = pool(512);
    let (_rx, mut tx, _rss) = both(&device, &pool);
    assert_eq!(send(&mut tx, &pool, 5), 5);
    bench.settle();
    bench.nic().set_faults(FaultPlan::at(&[Fault::SendDma { nth: 3 }]));
    // It is noticed where a completion was asked for.
    for _ in 0..2 {
        assert_eq!(send(&mut tx, &pool, 32), 32);
        bench.settle();
    }
    assert_eq!(send(&mut tx, &pool, 1), 0, "a queue in error takes nothing");
    let Some(QueueFault::Completion { syndrome, .. }) = tx.fault() else {
        panic!("no fault: {:?}", tx.stats())
    };
    assert_eq!(syndrome, CqeSyndrome::LOCAL_PROT_ERR);
    assert!(tx.fault().unwrap().to_string().contains("LOCAL_PROT_ERR (0x04)"));
    assert!(tx.stats().errors > 0);
    bench.nic().set_faults(FaultPlan::default());
    tx.reset().unwrap();
    bench.all_sent();
    for _ in 0..100 {
        assert_eq!(send(&mut tx, &pool, 10), 10);
        bench.settle();
        assert_eq!(bench.all_sent().len(), 10, "{:?}", bench.refusals());
    }
    assert_eq!((tx.stats().resets, tx.fault()), (1, None));
    drop(tx);
}

#[test]
fn receive_queue_error_is_kept_explained_and_recovered() {
    let mut bench = Bench::new();
    let device = bench.device();
    let pool = pool(512);
    let (mut rx, _tx, _rss) = both(&device, &pool);
    assert_eq!(receive(&mut bench, &mut rx), 1);
    bench.nic().set_faults(FaultPlan::at(&[Fault::ReceiveDma { nth: 1 }]));
    assert_eq!(receive(&mut bench, &mut rx), 0);
    bench.nic().set_faults(FaultPlan::default());
    assert!(matches!(rx.fault(), Some(QueueFault::Completion { .. })), "{:?}", rx.stats());
    rx.reset().unwrap();
    for _ in 0..200 {
        assert_eq!(receive(&mut bench, &mut rx), 1, "{:?}", bench.refusals());
    }
    assert_eq!(rx.stats().resets, 1);
}

/// Another port's MTU may be larger than what a queue was made for.
#[test]
fn a_frame_that_is_too_long_is_lost_alone() {
    let mut bench = Bench::new();
    let device = bench.try_device(&DeviceConfig { mtu: 4000, ..config() });
    let pool = pool(512);
    device.register_pool(&pool).unwrap();
    let short =
        RxQueueConfig { descriptors: 64, max_frame_bytes: Some(1514), ..Default::default() };
    let compressing = RxQueueConfig { cqe_compression: true, ..short.clone() };
    for config in [short, compressing] {
        let mut rx = RxQueue::new(&device, &pool, &config).unwrap();
        let _rss = Rss::new(&device, &[rx.queue_ref()], &RssConfig::default()).unwrap();
        for round in 1..=100 {
            bench.inject(&frame(MAC, 3000, 0));
            bench.inject(&frame(MAC, 64, 0));
            bench.settle();
            let mut out = Burst::new();
            rx.rx_burst(&mut out);
            rx.rx_burst(&mut out);
            assert_eq!((out.len(), rx.fault()), (1, None), "round {round}");
            assert_eq!((rx.stats().packets, rx.stats().errors), (round, round));
        }
    }
}

#[test]
fn healthy_queues_can_be_reset_in_mid_traffic() {
    let mut bench = Bench::new();
    let device = bench.device();
    let pool = pool(512);
    let (mut rx, mut tx, _rss) = both(&device, &pool);
    for round in 0..20 {
        for _ in 0..round {
            bench.inject(&frame(MAC, 64, 0));
        }
        send(&mut tx, &pool, 20);
        if round % 2 == 0 {
            bench.settle();
        }
        tx.reset().unwrap();
        rx.reset().unwrap();
        bench.settle();
        rx.rx_burst(&mut Burst::new());
        bench.all_sent();
        assert_eq!(receive(&mut bench, &mut rx), 1, "round {round}");
        assert_eq!(send(&mut tx, &pool, 1), 1);
        bench.settle();
        assert_eq!(bench.all_sent().len(), 1);
    }
    drop((tx, rx));
}

#[test]
fn completion_queue_overrun_is_an_event() {
    let mut bench = Bench::new();
    let device = bench.device();
    let pool = pool(512);
    let (mut rx, _tx, _rss) = both(&device, &pool);
    bench.nic().set_faults(FaultPlan::at(&[Fault::CqOverrun { nth: 1 }]));
    assert_eq!(receive(&mut bench, &mut rx), 0);
    let events: Vec<_> = std::iter::from_fn(|| device.poll_event()).collect();
    assert!(
        events.iter().any(|event| matches!(event, Event::CqError { syndrome: 1, .. })),
        "{events:?}"
    );
}

#[test]
fn link_changes_are_events() {
    let bench = Bench::new();
    let device = bench.device();
    while device.poll_event().is_some() {}
    for up in [false, true, false, true] {
        bench.nic().set_carrier(up);
        bench.settle();
        assert_eq!(device.poll_event(), Some(Event::LinkChange { up }));
        assert_eq!(device.poll_event(), None);
        assert_eq!(device.link().unwrap().up, up);
    }
    device.set_link(false).unwrap();
    bench.settle();
    assert!(!device.link().unwrap().up);
    device.set_link(true).unwrap();
    bench.settle();
    assert!(device.link().unwrap().up);
    bench.assert_clean();
}

#[test]
fn own_reset_in_mid_traffic_voids_everything_and_the_device_opens_again() {
    let mut bench = Bench::new();
    let pool = pool(512);
    for _ in 0..5 {
        let device = bench.device();
        let (mut rx, mut tx, rss) = both(&device, &pool);
        for step in 0..20 {
            bench.inject(&frame(MAC, 64, step));
        }
        send(&mut tx, &pool, 20);
        bench.step();
        device.reset().unwrap();
        bench.settle();
        // Packets that had arrived may still come out; nothing hangs and nothing is sent.
        while rx.rx_burst(&mut Burst::new()) > 0 {}
        let _ = send(&mut tx, &pool, 4);
        let error = device.link().unwrap_err();
        assert!(error.to_string().contains("was reset by this driver"), "{error}");
        drop((rss, rx, tx));
        device.close().unwrap();
        assert_eq!(bench.mappings(), 0);
        assert_eq!(pool.stats().in_use, 0);
        bench.all_sent();
    }
    let device = bench.device();
    let (mut rx, _tx, _rss) = both(&device, &pool);
    assert_eq!(receive(&mut bench, &mut rx), 1);
}

#[test]
fn foreign_reset_in_mid_traffic_is_reported_and_never_hangs() {
    let mut bench = Bench::new();
    let pool = pool(512);
    let device = bench.device();
    let (mut rx, mut tx, rss) = both(&device, &pool);
    send(&mut tx, &pool, 20);
    let at_ns = bench.now_ns() + 1;
    bench.nic().set_faults(FaultPlan::at(&[Fault::Reset { at_ns }]));
    for step in 0..20 {
        bench.inject(&frame(MAC, 64, step));
    }
    bench.settle();
    while rx.rx_burst(&mut Burst::new()) > 0 {}
    send(&mut tx, &pool, 20);
    bench.settle();
    // The reset is over before anyone looks: what tells is the command queue's address.
    assert_eq!(device.health().dead, Some(DeadDevice::Restarting));
    let error = device.link().unwrap_err();
    let DeviceError::Command(error) = error else { panic!("{error}") };
    assert!(matches!(error, CommandError::Dead { .. }), "{error}");
    drop((rss, rx, tx));
    let _ = device.close();
    let device = bench.device();
    let (mut rx, _tx, _rss) = both(&device, &pool);
    assert_eq!(receive(&mut bench, &mut rx), 1);
}

#[test]
fn device_that_left_the_bus_is_dead_at_once() {
    let bench = Bench::new();
    let device = bench.device();
    bench.nic().side().set_gone(true);
    let start = Instant::now();
    let error = device.link().unwrap_err().to_string();
    assert!(error.contains("reads as all ones"), "{error}");
    assert!(start.elapsed() < config().command_timeout / 2, "not a command's time-out");
    assert_eq!(device.health().dead, Some(DeadDevice::AllOnes));
    let error = device.link().unwrap_err().to_string();
    assert!(error.contains("reads as all ones"), "and stays so: {error}");
    bench.nic().side().set_gone(false);
    drop(device);
    bench.device().close().unwrap();
}

#[test]
fn device_that_left_the_bus_is_closed_without_waiting_for_a_reset() {
    let mut bench = Bench::new();
    let device = bench.device();
    let pool = pool(512);
    let (rx, mut tx, rss) = both(&device, &pool);
    send(&mut tx, &pool, 20);
    bench.nic().side().set_gone(true);
    bench.settle();
    let resets = bench.nic().state().counters.resets;
    assert_eq!(device.health().dead, Some(DeadDevice::AllOnes));
    let start = Instant::now();
    drop((rss, rx, tx));
    let error = device.close().unwrap_err().to_string();
    assert!(error.contains("reads as all ones"), "{error}");
    assert!(start.elapsed() < config().reset_timeout / 2, "not a reset's time-out");
    // What the device cannot reach any more is not leaked.
    assert_eq!((bench.mappings(), pool.stats().in_use), (0, 0));
    bench.nic().side().set_gone(false);
    assert_eq!(bench.nic().state().counters.resets, resets);
    let device = bench.device();
    let (mut rx, _tx, _rss) = both(&device, &pool);
    assert_eq!(receive(&mut bench, &mut rx), 1);
}

#[test]
fn removal_is_an_orderly_end_and_a_bus_error_is_not() {
    let bench = Bench::new();
    let device = bench.device();
    *bench.notice.lock().unwrap() = Some(Notice::RemovalRequested);
    let report = device.health();
    assert_eq!((report.dead, report.notice), (None, Some(Notice::RemovalRequested)));
    assert!(!report.is_healthy());
    // Commands still work, so nothing of the device is left behind.
    device.close().unwrap();
    assert_eq!(bench.mappings(), 0);
    *bench.notice.lock().unwrap() = None;
    let device = bench.device();
    *bench.notice.lock().unwrap() = Some(Notice::BusError);
    assert_eq!(device.health().dead, Some(DeadDevice::BusError));
    let error = device.link().unwrap_err().to_string();
    assert!(error.contains("uncorrectable PCI error"), "{error}");
    drop(device);
    *bench.notice.lock().unwrap() = None;
    assert_eq!(bench.mappings(), 0);
    bench.device().close().unwrap();
}

#[test]
fn health_syndrome_and_stalled_counter_are_reported() {
    let bench = Bench::new();
    let interval = Duration::from_millis(1);
    let device = bench.try_device(&DeviceConfig { health_interval: interval, ..config() });
    assert!(device.health().is_healthy());
    for _ in 0..3 {
        std::thread::sleep(interval * 2);
        // Device time stands still, so does the counter.
        device.health();
    }
    std::thread::sleep(interval * 2);
    assert!(device.health().stalled);
    for _ in 0..4 {
        bench.pass(2_000_000_000);
    }
    std::thread::sleep(interval * 2);
    assert!(!device.health().stalled);
    let at_ns = bench.now_ns();
    let syndrome = HealthSyndrome::HIGH_TEMP_ERR;
    bench.nic().set_faults(FaultPlan::at(&[Fault::Health { at_ns, syndrome }]));
    bench.pass(1_000_000);
    let report = device.health();
    assert_eq!(report.syndrome, syndrome);
    assert!(!report.is_healthy());
}

#[test]
fn failed_destroy_leaks_and_logs_but_frees_nothing() {
    let bench = Bench::new();
    let device = bench.device();
    let pool = pool(512);
    device.register_pool(&pool).unwrap();
    let tx = TxQueue::new(&device, &pool, &TxQueueConfig::default()).unwrap();
    // QUERY_SQ, MODIFY_SQ twice, then DESTROY_SQ fails once.
    let next = bench.nic().state().counters.commands;
    let status = CommandFault::Status(CommandStatus::INTERNAL_ERR);
    bench.nic().set_faults(FaultPlan::at(&[Fault::Command { nth: next + 4, fault: status }]));
    let failed = tx.destroy().unwrap_err();
    assert!(failed.cause.to_string().contains("DESTROY_SQ: INTERNAL_ERR"), "{}", failed.cause);
    failed.object.destroy().expect("the second try works");
    device.close().unwrap();
    assert_eq!(bench.mappings(), 0);
}

#[test]
fn random_command_faults_never_hang_or_break_the_next_open() {
    let bench = Bench::with(NicConfig { init_pages: 4, ..NicConfig::default() }, 11);
    let pool = pool(512);
    for seed in 0..60 {
        let start = bench.nic().state().counters.commands;
        let nth = start + 1 + seed * 7 % 64;
        let fault = if seed % 3 == 0 {
            CommandFault::Stuck
        } else {
            CommandFault::Status(CommandStatus::NO_RESOURCES)
        };
        bench.nic().set_faults(FaultPlan::at(&[Fault::Command { nth, fault }]));
        let config = DeviceConfig {
            command_timeout: Duration::from_millis(20),
            reset_timeout: Duration::from_secs(5),
            ..config()
        };
        let run = || -> Result<(), DeviceError> {
            let device = bench.open(&config)?;
            device.register_pool(&pool)?;
            let rx_config = RxQueueConfig { descriptors: 64, ..RxQueueConfig::default() };
            let rx = RxQueue::new(&device, &pool, &rx_config)?;
            let _tx = TxQueue::new(&device, &pool, &TxQueueConfig::default())?;
            let _rss = Rss::new(&device, &[rx.queue_ref()], &RssConfig::default())?;
            Ok(())
        };
        let _ = run();
        bench.nic().set_faults(FaultPlan::default());
        let device = bench.device();
        assert!(device.link().unwrap().up, "seed {seed}");
        device.close().unwrap();
    }
}

#[test]
fn a_pool_that_cannot_be_stamped_is_not_mapped_either() {
    let bench = Bench::new();
    let device = bench.device();
    let pool = pool(64);
    let out = pool.get().unwrap();
    let before = bench.mappings();
    assert!(matches!(device.register_pool(&pool), Err(DeviceError::Mempool(_))));
    assert_eq!(bench.mappings(), before);
    drop(out);
    device.register_pool(&pool).unwrap();
    assert_eq!(bench.mappings(), before + 1);
}
