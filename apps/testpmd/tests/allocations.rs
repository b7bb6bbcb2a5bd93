//! Nothing is allocated on the data path: driver, forwarding and model, counted over 10^6 bursts.

use std::sync::{Arc, Mutex};

use clap::Parser;
use ferrocx_bus::local::{LocalConfig, pair};
use ferrocx_heapcount::allocations;
use ferrocx_model::{
    Nic, NicConfig,
    wire::{Generator, GeneratorConfig, Pace},
};
use ferrocx_testpmd::{
    cli::Args,
    config::Config,
    engine::{Engine, Offloads},
    payload::Payloads,
    ports::Port,
    stream::Stream,
};

const BURSTS: u64 = 1_000_000;
/// Bursts before counting starts: buffers of the model grow to their size.
const WARM_UP: u64 = 10_000;
const BURST: usize = 4;

#[test]
fn a_million_bursts_allocate_nothing() {
    let sizes = GeneratorConfig::default().sizes;
    no_allocation("", sizes, BURSTS);
}

#[test]
fn bursts_of_split_packets_allocate_nothing() {
    no_allocation("--payload host --split 64", vec![60, 64, 65, 1514], BURSTS / 10);
}

#[test]
fn bursts_of_packets_that_share_buffers_allocate_nothing() {
    no_allocation("--striding 128", vec![60, 64, 65, 1514], BURSTS / 10);
}

/// Forwards so many bursts of frames of these sizes, with these options beside the usual ones.
fn no_allocation(options: &str, sizes: Vec<usize>, bursts: u64) {
    let words = "testpmd --burst 4 --rxd 64 --txd 64".split(' ').chain(options.split_whitespace());
    let config = Config::new(&Args::parse_from(words)).unwrap();
    let (transport, side) = pair(LocalConfig::default()).unwrap();
    let mut nic = Nic::new(side, NicConfig::default());
    let window = Pace::Window(2 * BURST as u32);
    let generator =
        Generator::new(GeneratorConfig { sizes, pace: window, ..GeneratorConfig::default() });
    let handle = generator.handle();
    handle.set_paused(true);
    nic.datapath_mut().plug(generator);
    let nic = Arc::new(Mutex::new((nic, 0u64)));
    let step = {
        let nic = Arc::clone(&nic);
        move || {
            let (nic, now_ns) = &mut *nic.lock().unwrap();
            *now_ns += 1000;
            nic.step(*now_ns);
        }
    };
    transport.set_idle_hook(Some(Arc::new(step.clone())));

    let split = config.queues.split;
    let mut payloads = split.map(|split| Payloads::open(split.payload).unwrap());
    let mut port = Port::open(0, Arc::clone(&transport) as _, &config, payloads.as_mut()).unwrap();
    for pool in port.pools() {
        port.device.register_pool(pool).unwrap();
    }
    let tx = port.tx_queues(&config, &port.pool).unwrap().remove(0);
    let mut rx = port.rx_queues(&config).unwrap();
    port.start(&rx, &config).unwrap();
    let cache = port.pool.cache();
    let queues = (rx.remove(0), tx);
    let mut stream: Stream<_, _, BURST> =
        Stream::new(0, queues, Engine::MacSwap, Offloads::default(), None, cache);
    handle.set_paused(false);

    let mut burst = |counted: &mut (u64, u64)| {
        let start = allocations();
        step();
        let stepped = allocations();
        let moved = stream.turn();
        counted.0 += allocations() - stepped;
        counted.1 += stepped - start;
        moved
    };
    let mut warm = (0, 0);
    for _ in 0..WARM_UP {
        burst(&mut warm);
    }
    let mut counted = (0, 0);
    let mut moved = 0;
    while moved < bursts {
        moved += u64::from(burst(&mut counted));
    }
    assert_eq!(counted, (0, 0), "allocations of driver and forwarding, and of the model");

    let ended = stream.finish();
    assert!(ended.counts.received.frames >= bursts);
    assert_eq!(ended.counts.check(), Ok(()));
    port.stop().unwrap();
    ended.tx.destroy().unwrap();
    ended.rx.destroy().unwrap();
    let pools = port.close().unwrap();
    assert!(pools.iter().all(|pool| pool.in_use == 0), "{pools:?}");
    transport.set_idle_hook(None);
}
