//! Reference chapter 3: bring-up, page supply, teardown, and what can go wrong on the way.

mod common;

use std::time::{Duration, Instant};

use common::{Bench, config, frame, pool, pool_of};
use ferrocx_core::{DeviceConfig, DeviceError, KeyMode, MacAddr};
use ferrocx_model::NicConfig;
use ferrocx_model::config::Identity;
use ferrocx_model::fault::{CommandFault, Fault, FaultPlan};
use ferrocx_pmd::{Rss, RssConfig, RxQueue, RxQueueConfig, Striding, TxQueue, TxQueueConfig};
use ferrocx_prm::caps::HcaCap;
use ferrocx_prm::syndrome::CommandStatus;

#[test]
fn device_comes_up_and_goes_down_cleanly() {
    let bench = Bench::new();
    let device = bench.device();
    assert_eq!(device.info().model, "ConnectX-5");
    assert_eq!(device.info().firmware.to_string(), "16.35.2000");
    assert_eq!(device.mac(), MacAddr([0x02, 0xfe, 0x0c, 0, 0, 1]));
    assert_eq!(device.key_mode(), KeyMode::Reserved);
    assert_eq!(device.mtu(), 1500);
    assert_eq!(device.firmware_pages(), 70);
    assert!(device.link().unwrap().up);
    assert!(device.health().is_healthy());
    bench.assert_clean();
    device.close().unwrap();
    bench.assert_clean();
    assert_eq!(bench.nic().state().objects.len(), 0, "objects left on the device");
}

#[test]
fn virtual_function_comes_up() {
    let bench =
        Bench::with(NicConfig { identity: Identity::ConnectX5Vf, ..NicConfig::default() }, 2);
    let device = bench.device();
    assert!(device.info().is_vf);
    device.close().unwrap();
    bench.assert_clean();
}

/// The embedded switch forwards a virtual function the addresses of the vport's lists alone.
#[test]
fn virtual_function_receives_by_its_own_address_and_broadcast_from_the_start() {
    const OWN: [u8; 6] = [0x02, 0xfe, 0x0c, 0, 0, 1];
    const NEW: [u8; 6] = [0x02, 0xfe, 0x0c, 0, 0, 7];
    const GROUP: [u8; 6] = [1, 0, 0x5e, 0, 0, 1];
    let mut bench =
        Bench::with(NicConfig { identity: Identity::ConnectX5Vf, ..NicConfig::default() }, 2);
    let device = bench.device();
    let pool = pool(512);
    device.register_pool(&pool).unwrap();
    let mut rx = RxQueue::new(&device, &pool, &RxQueueConfig::default()).unwrap();
    let _rss = Rss::new(&device, &[rx.queue_ref()], &RssConfig::default()).unwrap();
    let mut came = |bench: &mut Bench| {
        [OWN, NEW, [0xff; 6], GROUP].map(|to| {
            bench.inject(&frame(to, 64, 0));
            bench.settle();
            rx.rx_one().is_some()
        })
    };
    assert_eq!(came(&mut bench), [true, false, true, false]);
    device.set_mac(MacAddr(NEW)).unwrap();
    device.set_multicast(&[MacAddr(GROUP)]).unwrap();
    assert_eq!(came(&mut bench), [false, true, true, true]);
    device.set_multicast(&[]).unwrap();
    assert_eq!(came(&mut bench), [false, true, true, false]);
    device.set_promiscuous(true).unwrap();
    assert_eq!(came(&mut bench), [true; 4]);
}

#[test]
fn virtual_function_that_nobody_gave_an_address_draws_one() {
    let config = NicConfig { identity: Identity::ConnectX5Vf, mac: [0; 6], ..NicConfig::default() };
    let bench = Bench::with(config, 2);
    let device = bench.device();
    let mac = device.mac();
    assert_eq!(mac.0[0] & 3, 2, "{mac}: unicast, and locally administered");
    assert_eq!(bench.nic().state().port.vport.unicast, [mac.0]);
    assert_eq!(device.info().permanent_mac, MacAddr::default());
    bench.assert_clean();
}

/// Linux goes on, too: `mlx5e_set_mtu`.
#[test]
fn an_mtu_that_the_port_takes_and_the_vport_does_not_is_taken() {
    let bench = Bench::new();
    let device = bench.device();
    let refuse = |nth: u64| {
        let nth = bench.nic().state().counters.commands + nth;
        let fault = CommandFault::Status(CommandStatus::BAD_PARAM);
        bench.nic().set_faults(FaultPlan::at(&[Fault::Command { nth, fault }]));
    };
    refuse(2);
    device.set_mtu(1400).unwrap();
    assert_eq!((device.mtu(), bench.nic().state().port.mtu), (1400, 1422));
    refuse(1);
    let error = device.set_mtu(1300).unwrap_err().to_string();
    assert!(error.contains("BAD_PARAM (0x03)"), "{error}");
    assert_eq!((device.mtu(), bench.nic().state().port.mtu), (1400, 1422));
}

#[test]
fn boot_needs_many_pages() {
    let bench = Bench::with(NicConfig { init_pages: 12868, ..NicConfig::default() }, 4);
    let device = bench.device();
    assert_eq!(device.firmware_pages(), 12874);
    device.close().unwrap();
    bench.assert_clean();
}

#[test]
fn no_pages_at_all_is_fine() {
    let config = NicConfig { boot_pages: 0, init_pages: 0, ..NicConfig::default() };
    let bench = Bench::with(config, 5);
    bench.device().close().unwrap();
    bench.assert_clean();
}

#[test]
fn pages_are_asked_for_by_event_and_given_back() {
    let bench = Bench::with(NicConfig { regular_pages: 300, ..NicConfig::default() }, 6);
    let device = bench.device();
    bench.settle();
    assert!(device.poll_event().is_none());
    bench.settle();
    assert_eq!(device.firmware_pages(), 370);
    bench.nic().request_pages(5);
    bench.settle();
    assert!(device.poll_event().is_none());
    assert_eq!(device.firmware_pages(), 375);
    bench.nic().request_pages(-100);
    bench.settle();
    assert!(device.poll_event().is_none());
    assert_eq!(device.firmware_pages(), 275);
    device.close().unwrap();
    bench.assert_clean();
}

#[test]
fn page_request_is_served_while_a_command_waits() {
    let bench = Bench::new();
    let device = bench.device();
    // The next command is answered 1 ms of device time later; meanwhile the device wants pages.
    let next = bench.nic().state().counters.commands + 1;
    let delayed = Fault::Command { nth: next, fault: CommandFault::DelayNs(1_000_000) };
    bench.nic().set_faults(FaultPlan::at(&[delayed]));
    bench.nic().request_pages(17);
    assert!(device.link().unwrap().up);
    assert_eq!(device.firmware_pages(), 87, "served while QUERY_VPORT_STATE waited");
    device.close().unwrap();
    bench.assert_clean();
}

#[test]
fn every_failing_command_of_bring_up_is_reported_and_undone() {
    let bench = Bench::new();
    bench.device().close().unwrap();
    let per_cycle = bench.nic().state().counters.commands;
    let mut failed = 0;
    for nth in 1..per_cycle {
        let start = bench.nic().state().counters.commands;
        let status = CommandStatus::INTERNAL_ERR;
        let fault = Fault::Command { nth: start + nth, fault: CommandFault::Status(status) };
        bench.nic().set_faults(FaultPlan::at(&[fault]));
        match bench.open(&config()) {
            Ok(device) => drop(device),
            Err(error) => {
                failed += 1;
                assert!(error.to_string().contains("INTERNAL_ERR (0x01)"), "{nth}: {error}");
            }
        }
        assert_eq!(bench.mappings(), 0, "command {nth}: mappings left");
    }
    assert!(failed > 15, "only {failed} steps of bring-up failed");
    bench.nic().set_faults(FaultPlan::default());
    bench.device().close().unwrap();
}

#[test]
fn stuck_command_times_out_and_its_slot_is_avoided() {
    let bench = Bench::new();
    let device =
        bench.try_device(&DeviceConfig { command_timeout: Duration::from_secs(1), ..config() });
    let next = bench.nic().state().counters.commands + 1;
    let stuck = Fault::Command { nth: next, fault: CommandFault::Stuck };
    bench.nic().set_faults(FaultPlan::at(&[stuck]));
    let start = Instant::now();
    let error = device.link().unwrap_err().to_string();
    assert!(error.contains("QUERY_VPORT_STATE: no answer in slot 0"), "{error}");
    assert!(start.elapsed() < config().command_timeout / 2, "its own time-out, not the default");
    assert!(device.link().unwrap().up, "the next command uses another slot");
    // The device may still write to the stuck command's slot: closing resets it first.
    device.close().unwrap();
    assert_eq!(bench.mappings(), 0);
}

#[test]
fn key_mode_follows_configuration() {
    for (mode, word) in [
        (KeyMode::Reserved, "reserved L_Key"),
        (KeyMode::Physical, "physical-address mkey"),
        (KeyMode::Translated, "translated mkeys"),
    ] {
        let bench = Bench::new();
        let device = bench.try_device(&DeviceConfig { key_mode: Some(mode), ..config() });
        assert_eq!(device.key_mode(), mode);
        assert_eq!(device.key_mode().to_string(), word);
        let pool = pool(64);
        device.register_pool(&pool).unwrap();
        device.register_pool(&pool).unwrap();
        assert!(pool.keys().is_some());
        device.close().unwrap();
        assert!(pool.keys().is_none(), "unstamped for the next device");
        bench.assert_clean();
    }
}

#[test]
fn wrong_settings_are_refused_before_anything_happens() {
    let bench = Bench::new();
    let error = bench.open(&DeviceConfig { mtu: 9979, ..config() }).unwrap_err();
    assert_eq!(error.to_string(), "MTU is 9979; it must be 68 to 9978");
    let error = bench.open(&DeviceConfig { flow_rules: 3, ..config() }).unwrap_err();
    assert!(error.to_string().contains("flow rules is 3; it must be a power of two"));
    assert_eq!(bench.nic().state().counters.commands, 0);
    // The port's own limit is smaller than the driver's.
    let bench = Bench::with(NicConfig { max_mtu: 1522, ..NicConfig::default() }, 7);
    let error = bench.open(&DeviceConfig { mtu: 9000, ..config() }).unwrap_err();
    assert_eq!(error.to_string(), "MTU is 9000; it must be 68 to 1500");
    assert_eq!(bench.mappings(), 0);
}

#[test]
fn unknown_device_is_refused() {
    use ferrocx_bus::local::{LocalConfig, pair};
    use ferrocx_bus::{PciIdentity, Transport};
    use std::sync::Arc;
    let identity = PciIdentity {
        vendor: 0x8086,
        device: 0x1572,
        name: "0000:01:00.0".into(),
        numa_node: None,
    };
    let (transport, _side) = pair(LocalConfig { identity, ..LocalConfig::default() }).unwrap();
    let transport: Arc<dyn Transport> = transport;
    let error = ferrocx_core::Device::open(transport, &config()).unwrap_err();
    assert!(matches!(error, DeviceError::UnknownDevice { vendor: 0x8086, .. }));
    assert!(error.to_string().contains("device 0000:01:00.0 is 8086:1572"), "{error}");
}

#[test]
fn port_in_infiniband_mode_is_refused_with_the_way_out() {
    // The port's type alone: the model has no InfiniBand.
    let bench = Bench::with_caps(|cap| cap.with_port_type(0));
    let error = bench.open(&config()).unwrap_err().to_string();
    let sentence = "this device has no Ethernet port; set its link type to Ethernet (mlxconfig set \
                    LINK_TYPE_P1=2) and reset it";
    assert_eq!(error, sentence);
    assert_eq!(bench.mappings(), 0, "nothing half-open stays behind");
}

/// Of a card with several hosts each takes the frames to its own addresses. Source: Linux
/// `mlx5_mpfs_add_mac`.
#[test]
fn the_manager_of_the_embedded_switch_says_which_frames_are_its_hosts() {
    let manager = |cap: HcaCap| cap.with_eswitch_manager(true).with_log_max_l2_table(4);
    let bench = Bench::with_caps(manager);
    let table = || Vec::from_iter(bench.nic().state().port.l2_table.clone());
    let device = bench.device();
    assert_eq!(table(), [(0, device.mac().0)]);
    device.set_mac(MacAddr([2, 0, 0, 0, 0, 7])).unwrap();
    assert_eq!(table(), [(0, [2, 0, 0, 0, 0, 7])]);
    device.close().unwrap();
    assert_eq!(table(), []);
    bench.assert_clean();
    let bench = Bench::with_caps(|cap| cap.with_eswitch_manager(true));
    bench.device().close().unwrap();
    assert_eq!(bench.nic().state().port.l2_table.len(), 0, "a table of one entry is none");
}

/// The model has none, so that it refuses what it is asked for.
#[test]
fn keys_ask_for_relaxed_ordering_where_the_device_has_it() {
    for mode in [KeyMode::Physical, KeyMode::Translated] {
        let bench = Bench::with_caps(|cap| cap.with_relaxed_ordering_write(true));
        let opened = bench.open(&DeviceConfig { key_mode: Some(mode), ..config() });
        let made = opened.and_then(|device| device.register_pool(&pool(64)));
        assert!(made.is_err(), "{mode}");
        let refusals = bench.refusals();
        assert!(refusals[0].contains("relaxed_ordering"), "{refusals:?}");
    }
}

/// Firmware whose clock is the real-time one refuses queues of the other. Source: DPDK
/// `mlx5_ts_format_conv`.
#[test]
fn queues_of_a_device_with_a_real_time_clock_alone_carry_no_ticks() {
    for (format, has_ticks) in [(0, true), (1, false), (2, true)] {
        let mut bench =
            Bench::with_caps(|cap| cap.with_rq_ts_format(format).with_sq_ts_format(format));
        let device = bench.device();
        let pool = pool(512);
        device.register_pool(&pool).unwrap();
        let config = RxQueueConfig::default();
        let mut rx = RxQueue::new(&device, &pool, &config).unwrap();
        drop(TxQueue::new(&device, &pool, &Default::default()).unwrap());
        let rss = Rss::new(&device, &[rx.queue_ref()], &RssConfig::default()).unwrap();
        bench.inject(&frame(device.mac().0, 64, 0));
        bench.settle();
        assert!(rx.rx_one().is_some());
        drop((rx, rss));
        let stamped = RxQueueConfig { timestamps: true, ..config };
        let refused = [
            RxQueue::new(&device, &pool, &stamped).map(|_| ()),
            TxQueue::new(&device, &pool, &TxQueueConfig { timestamps: 64, ..Default::default() })
                .map(|_| ()),
        ];
        for made in refused {
            let sentence = made.map_err(|error| error.to_string());
            let no_ticks = "this device has no timestamps of a clock that runs freely; ask for \
                            none, or switch its real-time clock off (mlxconfig set \
                            REAL_TIME_CLOCK_ENABLE=0)";
            assert_eq!(sentence, if has_ticks { Ok(()) } else { Err(no_ticks.to_owned()) });
        }
        bench.assert_clean();
    }
}

#[test]
fn what_a_device_has_less_of_is_refused_in_a_sentence() {
    let bench = Bench::with_caps(|cap| cap.with_log_max_current_mc_list(2));
    let device = bench.device();
    let group = |last| MacAddr([1, 0, 0x5e, 0, 0, last]);
    device.set_multicast(&[1, 2, 3].map(group)).unwrap();
    let error = device.set_multicast(&[1, 2, 3, 4].map(group)).unwrap_err().to_string();
    let sentence = "number of multicast groups is 4; it must be 0 to 3; use \
                    Device::set_all_multicast";
    assert_eq!(error, sentence, "of four places broadcast has one");
    assert!(device.join_multicast(group(4)).is_err());
    device.join_multicast(group(3)).unwrap();

    let bench = Bench::with_caps(|cap| cap.with_mini_cqe_resp_stride_index(false));
    let device = bench.device();
    let (pool, buffers) = (pool(512), pool_of(8, Striding::BUFFER_BYTES as usize));
    [&pool, &buffers].into_iter().for_each(|pool| device.register_pool(pool).unwrap());
    let striding = Some(Striding::new(buffers));
    for (cqe_compression, striding) in
        [(true, None), (false, striding.clone()), (true, striding.clone())]
    {
        let refused = cqe_compression && striding.is_some();
        let descriptors = if striding.is_some() { 1024 } else { 64 };
        let config = RxQueueConfig { descriptors, cqe_compression, striding, ..Default::default() };
        let made = RxQueue::new(&device, &pool, &config);
        assert_eq!(made.is_err(), refused, "{config:?}");
        let sentence = made.err().map_or_else(String::new, |error| error.to_string());
        assert_eq!(sentence.contains("say where in a buffer a packet lies"), refused, "{sentence}");
    }

    let bench = Bench::with_caps(|cap| cap.with_max_wqe_sz_sq(0x200));
    let device = bench.device();
    device.register_pool(&pool).unwrap();
    let error = TxQueue::new(&device, &pool, &Default::default()).unwrap_err().to_string();
    assert_eq!(error, "this device has no send requests of 1008 bytes; update its firmware");
}

/// Firmware is asked for no smaller queue by other drivers: Linux has 256 entries at least.
#[test]
fn event_queues_take_a_page_at_least() {
    let bench = Bench::new();
    let device = bench.device();
    let pool = pool(1024);
    device.register_pool(&pool).unwrap();
    let config = RxQueueConfig { interrupt: Some(1), ..Default::default() };
    let _rx = RxQueue::new(&device, &pool, &config).unwrap();
    let sizes: Vec<_> = bench.nic().state().objects.eqs.iter().map(|(_, eq)| eq.log_size).collect();
    assert!(sizes.len() == 2 && sizes.iter().all(|log_size| *log_size >= 6), "{sizes:?}");
}

#[test]
fn device_stays_up_while_queues_live() {
    let bench = Bench::new();
    let device = bench.device();
    let pool = pool(1024);
    device.register_pool(&pool).unwrap();
    let queue = TxQueue::new(&device, &pool, &Default::default()).unwrap();
    let other = device.clone();
    let error = device.close().unwrap_err().to_string();
    assert!(error.contains("other handles of the device are alive"), "{error}");
    drop(other);
    assert!(!bench.nic().state().objects.is_empty(), "the queue holds the device");
    drop(queue);
    assert_eq!(bench.nic().state().objects.len(), 0);
    bench.assert_clean();
}
