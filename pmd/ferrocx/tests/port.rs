//! Ports that are opened in other ways than by a name alone, and pools that suffice or do not.

use std::time::Duration;

use ferrocx::bus::local::{LocalConfig, LocalTransport, pair};
use ferrocx::model::runner::{Runner, RunnerConfig};
use ferrocx::model::wire::{Impair, ImpairConfig, Link, SplitMix64, link};
use ferrocx::model::{Nic, NicConfig};
use ferrocx::{
    Burst, Device, DeviceConfig, DeviceError, Event, Lane, LaneConfig, OpenWarning, PageSize,
    PoolConfig, Port, PortConfig, Region, RegionConfig, RssConfig, RxQueueConfig, TxQueueConfig,
};

/// A model whose wire is that end of a cable, which loses frames of this seed.
fn model(number: u8, end: Link, loss_ppm: u32) -> std::sync::Arc<LocalTransport> {
    let config = LocalConfig { seed: number.into(), ..LocalConfig::default() };
    model_as(config, number, end, loss_ppm)
}

fn model_as(
    config: LocalConfig,
    number: u8,
    end: Link,
    loss_ppm: u32,
) -> std::sync::Arc<LocalTransport> {
    let (transport, side) = pair(config).unwrap();
    let mut nic =
        Nic::new(side, NicConfig { mac: [2, 0, 0, 0, 0, number], ..NicConfig::default() });
    let config = ImpairConfig { loss_ppm, ..ImpairConfig::default() };
    nic.datapath_mut().plug(Impair::new(end, config, SplitMix64::new(7)));
    transport.keep(Runner::start(vec![nic], RunnerConfig::default()).unwrap());
    transport
}

/// Sends `count` frames and says how many arrived, once the last of all has: it is sent until it
/// does.
fn exchange(
    from: &mut Lane,
    to: &mut Lane,
    [destination, source]: [[u8; 6]; 2],
    count: u16,
) -> u16 {
    let frame = |last: bool| {
        let header = [&destination[..], &source, &[0x88, 0xb5, last.into()]].concat();
        [header, vec![0; 60]].concat()
    };
    for _ in 0..count {
        let mut burst = Burst::<1>::from_iter(from.alloc_copy(&frame(false)));
        while from.tx_burst(&mut burst) == 0 {}
    }
    let (mut arrived, mut is_over) = (0, false);
    while !is_over {
        let mut burst = Burst::<32>::from_iter(from.alloc_copy(&frame(true)));
        from.tx_burst(&mut burst);
        burst.clear();
        to.rx_burst(&mut burst);
        for packet in &burst {
            let is_last = packet.data()[14] == 1;
            is_over |= is_last;
            arrived += u16::from(!is_last);
        }
    }
    arrived
}

#[test]
fn a_port_of_a_transport_or_a_device_has_all_that_a_named_one_has() {
    let (west, east) = link(1 << 20);
    let west = Port::from_transport(model(1, west, 500_000), PortConfig::default()).unwrap();
    let device = Device::open(model(2, east, 0), &DeviceConfig::default()).unwrap();
    let shared_pool = Some(west.pool().clone());
    let config = PortConfig { shared_pool, ..PortConfig::default() };
    let east = Port::from_device(device, config).unwrap();
    let macs = [east.device().mac().0, west.device().mac().0];
    let (mut sender, mut receiver) = (west.lane().unwrap(), east.lane().unwrap());
    let arrived = exchange(&mut sender, &mut receiver, macs, 200);
    assert!((50..150).contains(&arrived), "{arrived} of 200 over a cable that loses half");
}

#[test]
fn a_pool_is_of_the_node_of_its_adapter_where_there_is_one() {
    let pool = PoolConfig { count: 64, ..PoolConfig::default() };
    let on = |node| {
        let (end, _far) = link(1 << 20);
        let mut config = LocalConfig::default();
        config.identity.numa_node = Some(node);
        let config =
            (model_as(config, 4, end, 0), PortConfig { pool: pool.clone(), ..Default::default() });
        let port = Port::from_transport(config.0, config.1).unwrap();
        assert_eq!(port.device().info().numa_node, Some(node));
        port.pool().region().numa_node()
    };
    // A container may not be allowed to bind memory.
    let region = RegionConfig { len_bytes: 4096, numa_node: Some(0), ..RegionConfig::default() };
    let bound = Region::alloc(&region).ok().and_then(|region| region.numa_node());
    assert_eq!(on(0), bound);
}

#[test]
fn what_opening_found_wanting_is_said() {
    let (end, _far) = link(1 << 20);
    let device = Device::open(model(5, end, 0), &DeviceConfig::default()).unwrap();
    device.set_link(false).unwrap();
    while device.link().unwrap().up {}
    let region = RegionConfig { page: PageSize::Base4K, ..RegionConfig::default() };
    let pool = PoolConfig { count: 64, region, ..PoolConfig::default() };
    let link_wait = Duration::from_millis(5);
    let config = PortConfig { pool, link_wait, ..PortConfig::default() };
    let port = Port::from_device(device.clone(), config.clone()).unwrap();
    assert_eq!(port.warnings(), [OpenWarning::NoLink], "small pages were asked for");
    drop(port);

    device.set_link(true).unwrap();
    let config = PortConfig { link_wait: Duration::from_secs(10), ..config };
    let port = Port::from_device(device, config).unwrap();
    assert_eq!(port.warnings(), [], "the link came within the time");
    let sentence = OpenWarning::NoLink.to_string();
    assert!(sentence.contains("cable"), "{sentence}");
}

#[test]
fn housekeeping_takes_no_event_from_anybody() {
    let (end, far) = link(1 << 20);
    let config = PortConfig { housekeeping: Some(Duration::from_millis(1)), ..Default::default() };
    let port = Port::from_transport(model(3, end, 0), config).unwrap();
    let rdma = port.rdma().unwrap();
    let mut reader = port.device().event_reader();
    let _also = rdma.background(Duration::from_millis(1)).unwrap();
    while port.device().poll_event().is_some() {}
    for up in [false, true] {
        port.device().set_link(up).unwrap();
        while port.device().link().unwrap().up != up {}
        // Time for the thread to see it first.
        std::thread::sleep(Duration::from_millis(20));
        let event = Some(Event::LinkChange { up });
        let seen = [port.device().poll_event(), rdma.poll_async_event(), reader.poll()];
        assert_eq!(seen, [event; 3]);
    }
    assert_eq!((reader.poll(), reader.lost_events()), (None, 0));
    drop(far);
}

#[test]
fn a_pool_too_small_for_the_lanes_is_a_sentence_with_numbers() {
    let rx = RxQueueConfig { descriptors: 256, cache_size: 64, ..RxQueueConfig::default() };
    let config =
        LaneConfig { rx, tx: TxQueueConfig { descriptors: 128, ..TxQueueConfig::default() } };
    let pool = PoolConfig { cache_size: 32, ..PoolConfig::default() };
    assert_eq!(config.buffers(&pool), 256 + 128 + 64 + 32);

    let rss = RssConfig::default();
    // Three pairs of rings hold 1152.
    let pool = PoolConfig { count: 1151, ..pool };
    let port = Port::open_with("model:net=small", PortConfig { pool, ..Default::default() });
    let port = port.unwrap();
    let refused = Lane::spread(port.device(), port.pool(), 3, &config, &rss).unwrap_err();
    assert!(
        matches!(
            refused,
            DeviceError::PoolTooSmallForLanes { lanes: 3, need: 1152, free: 1151, .. }
        ),
        "{refused}"
    );
    let sentence = refused.to_string();
    assert!(sentence.contains("1151 free") && sentence.contains("hold 1152"), "{sentence}");
    let two = Lane::spread(port.device(), port.pool(), 2, &config, &rss).unwrap();
    // What others hold is not free: 256 in each receive ring.
    let refused = Lane::matching(
        port.device(),
        port.pool(),
        ferrocx::FlowMatch::default(),
        &LaneConfig { tx: TxQueueConfig { descriptors: 512, ..config.tx.clone() }, ..config },
    );
    let refused = refused.unwrap_err();
    assert!(
        matches!(refused, DeviceError::PoolTooSmallForLanes { lanes: 1, need: 768, free: 639, .. }),
        "{refused}"
    );
    drop(two);
}

#[test]
fn a_pool_suffices_for_the_lanes_of_a_list_of_ports() {
    let names = vec!["model:net=list".to_owned(); 3];
    let config = PortConfig { lanes: 4, ..PortConfig::default() };
    let ports = Port::open_each(&names, config.clone()).unwrap();
    assert_eq!(ports.len(), 3);
    let pool = ports[0].pool();
    assert!(ports.iter().all(|port| port.pool() == pool), "one pool for all");
    assert_eq!(pool.stats().count, 4 * 2048 + 2047);
    let lanes: Vec<Lane> = ports.iter().flat_map(|port| port.lanes(1).unwrap()).collect();
    assert_eq!(lanes.len(), 3);

    // One that is asked for is not made smaller; without lanes it is as it is asked for.
    let config = |count, lanes| {
        let pool = PoolConfig { count, ..PoolConfig::default() };
        PortConfig { pool, lanes, ..PortConfig::default() }
    };
    for (count, lanes, is) in [(5000, 1, 5000), (64, 1, 4095), (64, 0, 64)] {
        let port = Port::open_with("model:net=list", config(count, lanes)).unwrap();
        assert_eq!(port.pool().stats().count, is);
    }

    // Of a list with a bad name nothing stays.
    let refused = Port::open_each(["model:net=list", "eth0"], config(64, 0)).unwrap_err();
    assert!(refused.to_string().contains("`eth0`"), "{refused}");
    assert!(Port::open_each([""; 0], config(64, 0)).unwrap().is_empty());
}

#[test]
fn several_ports_share_the_pool_that_is_given() {
    let pool = PoolConfig { name: "shared".into(), count: 4096, ..PoolConfig::default() };
    let config = PortConfig { pool, ..PortConfig::default() };
    let [a, b, c] = Port::open_all_with(["model:net=three"; 3], config).unwrap();
    for port in [&a, &b, &c] {
        assert_eq!((port.pool(), port.pool().name()), (a.pool(), "shared"));
        port.lane().unwrap();
    }
}
