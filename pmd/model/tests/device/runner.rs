//! The runner: a device on a thread of its own.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common;
use crate::common::{CMDQ_HI, CMDQ_LO, DOORBELL};
use ferrocx_bus::local::{LocalConfig, LocalTransport, pair};
use ferrocx_bus::{BarClaim, DmaAccess, DmaHeap, Transport};
use ferrocx_model::runner::{Runner, RunnerConfig, Wait};
use ferrocx_model::{Nic, NicConfig};

fn device() -> (Arc<LocalTransport>, Nic) {
    let (transport, side) = pair(LocalConfig::default()).expect("in-process device");
    (transport, Nic::new(side, NicConfig::default()))
}

/// Sends a NOP and waits until it is done.
fn nop(transport: &LocalTransport) {
    nop_while(transport, std::thread::yield_now);
}

/// The same, with something to do while waiting.
fn nop_while(transport: &LocalTransport, idle: impl Fn()) {
    let heap = DmaHeap::new(common::map(&*transport.dma(), 8192, DmaAccess::ReadWrite));
    let queue = heap.alloc(4096, 4096).expect("room");
    // SAFETY: the tests are the only driver, and the memory of this device is only copied.
    let bar = transport.bar(unsafe { BarClaim::new() });
    bar.write_be32(CMDQ_HI, (queue.iova() >> 32) as u32);
    bar.write_be32(CMDQ_LO, queue.iova() as u32);
    let mut entry = [0; 64];
    (entry[0], entry[7], entry[0x10], entry[0x11]) = (7, 16, 0x08, 0x0d);
    (entry[0x3b], entry[0x3f]) = (16, 1);
    queue.copy_in(0, &entry);
    bar.write_be32(DOORBELL, 1);
    let start = Instant::now();
    while queue.load_acquire_be32(0x3c) & 1 != 0 {
        assert!(start.elapsed() < Duration::from_secs(120), "the command never completed");
        idle();
    }
}

#[test]
fn every_way_of_waiting_serves_commands() {
    for wait in [Wait::Busy, Wait::SpinHint, Wait::Yield, Wait::Sleep(Duration::from_micros(50))] {
        let (transport, nic) = device();
        let runner = Runner::start(vec![nic], RunnerConfig { wait, on_start: None });
        let runner = runner.expect("a thread");
        nop(&transport);
        let nics = runner.stop();
        assert_eq!(nics[0].state().counters.commands, 1, "{wait:?}");
    }
}

#[test]
fn one_thread_serves_several_devices() {
    let (first, a) = device();
    let (second, b) = device();
    let started = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&started);
    let on_start = move || flag.store(true, Ordering::Release);
    let config = RunnerConfig { on_start: Some(Box::new(on_start)), ..RunnerConfig::default() };
    let runner = Runner::start(vec![a, b], config).expect("a thread");
    nop(&first);
    nop(&second);
    nop(&second);
    assert!(started.load(Ordering::Acquire));
    let counts = runner
        .with(|nics| nics.iter().map(|nic| nic.state().counters.commands).collect::<Vec<_>>());
    assert_eq!(counts, [1, 2]);
}

#[test]
fn who_waits_does_the_work_of_a_thread_that_sleeps() {
    let (transport, nic) = device();
    let wait = Wait::Sleep(Duration::from_secs(3600));
    let runner = Runner::start(vec![nic], RunnerConfig { wait, on_start: None }).expect("a thread");
    // It sleeps after its idle rounds, and nothing that it serves wakes it.
    let rounds = runner.with(|nics| nics[0].state().counters.commands);
    std::thread::sleep(Duration::from_millis(20));
    let (first, second) = (runner.helper(), runner.helper());
    let done = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&done);
    let by_second = std::thread::spawn(move || {
        while !seen.load(Ordering::Acquire) {
            second.help();
        }
    });
    nop_while(&transport, || {
        first.help();
    });
    // The other one goes on as soon as the first one stops.
    nop(&transport);
    done.store(true, Ordering::Release);
    by_second.join().expect("it stepped the device");
    assert_eq!(runner.with(|nics| nics[0].state().counters.commands), rounds + 2);
    assert_eq!(runner.stop().len(), 1, "the thread wakes to be stopped");
}

#[test]
fn a_thread_that_was_taken_over_from_does_nothing_until_it_is_given_back() {
    let (transport, nic) = device();
    let runner = Runner::start(vec![nic], RunnerConfig::default()).expect("a thread");
    let helper = runner.helper();
    let taken = helper.take_over();
    // A job is done all the same; behind it the thread has stepped for the last time.
    assert_eq!(runner.with(|nics| nics[0].state().counters.commands), 0);
    let rounds = Cell::new(0);
    nop_while(&transport, || {
        rounds.set(rounds.get() + 1);
        if rounds.get() > 1_000 {
            helper.help();
        }
    });
    assert!(rounds.get() > 1_000, "nobody else did it");
    drop(taken);
    // Nobody helps any more.
    nop(&transport);
    assert_eq!(runner.with(|nics| nics[0].state().counters.commands), 2);
    let taken = helper.take_over();
    assert_eq!(runner.stop().len(), 1, "the thread wakes to be stopped");
    drop(taken);
}

#[test]
fn memory_is_unmapped_while_the_device_runs() {
    let (transport, nic) = device();
    let runner = Runner::start(vec![nic], RunnerConfig::default()).expect("a thread");
    for _ in 0..100 {
        nop(&transport);
    }
    drop(runner);
    transport.reset().expect("reset");
    assert!(!transport.reset_complete(), "nobody steps the device any more");
}

#[test]
fn a_panic_of_the_thread_reaches_whoever_stops_it() {
    let (_transport, nic) = device();
    let on_start = || panic!("pinning failed");
    let config = RunnerConfig { on_start: Some(Box::new(on_start)), ..RunnerConfig::default() };
    let runner = Runner::start(vec![nic], config).expect("a thread");
    let stopped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runner.stop()));
    let panic = stopped.expect_err("the panic comes through");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"pinning failed"));
}
