//! A device that lies must not make the driver panic, hang, take memory without limit, or lend out
//! memory that the device can still write.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ferrocx_bus::DmaAccess;
use ferrocx_core::{
    CommandError, CqAttr, CqRing, DeadDevice, Device, DeviceConfig, DeviceError, Uar,
};
use ferrocx_mempool::{
    AccessError, MempoolError, PageSize, Pool, PoolConfig, Region, RegionConfig,
};
use ferrocx_prm::cmd::Opcode;
use ferrocx_prm::eqe::{Eqe, EventPageRequest, EventType};
use ferrocx_prm::init_seg::offset;
use ferrocx_prm::syndrome::CommandStatus;
use support::{Liar, LyingTransport};

fn config() -> DeviceConfig {
    DeviceConfig {
        page: PageSize::Base4K,
        command_timeout: Duration::from_millis(50),
        reset_timeout: Duration::from_millis(50),
        ..DeviceConfig::default()
    }
}

fn open(liar: &Arc<Liar>) -> Result<Device, DeviceError> {
    Device::open(Arc::new(LyingTransport(Arc::clone(liar))), &config())
}

fn pool() -> Pool {
    Pool::new(&PoolConfig {
        count: 64,
        cache_size: 0,
        region: RegionConfig { page: PageSize::Base4K, ..RegionConfig::default() },
        ..PoolConfig::default()
    })
    .unwrap()
}

/// Registers by which a device may claim to be dead.
fn lies() -> Vec<(&'static str, u64, u32)> {
    vec![
        ("the firmware starts", offset::INITIALIZING, 1 << 31),
        ("another command queue", offset::CMDQ_ADDR_LO, 0x1234_5000),
        ("another command queue, high half", offset::CMDQ_ADDR_HI, 0x00ab_cdef),
        ("interface disabled", offset::CMDQ_ADDR_LO, 1 << 8),
        ("all ones", offset::HEALTH_BUFFER + 0x30, u32::MAX),
    ]
}

#[test]
fn memory_of_objects_that_count_as_gone_is_out_of_the_devices_reach() {
    for (what, at, word) in lies() {
        for refuses in [false, true] {
            let liar = Liar::new();
            let device = open(&liar).unwrap();
            let pool = pool();
            device.register_pool(&pool).unwrap();
            let mut buffers: Vec<_> = std::iter::from_fn(|| pool.get()).collect();
            for buffer in &mut buffers {
                assert!(buffer.extend_from_slice(&[0x11; 64]));
            }
            assert_eq!(buffers.len(), 64);
            let attr = CqAttr { log_size: 6, compression: None, events: None };
            let cq = CqRing::new(&device, &attr).unwrap();
            let used = device.dma_bytes_used();
            liar.refuse_unmap(refuses);
            liar.lie_in_register(at, word);
            let dead = device.health().dead;
            assert!(dead.is_some(), "{what}: believed");
            // The owner of a queue that is gone takes its buffers back, and lends them out.
            if device.objects_are_gone() {
                let written = buffers.iter().filter(|mbuf| liar.scribbles(mbuf.data_iova(), 64));
                assert_eq!(written.count(), 0, "{what}: buffers that the device wrote");
                assert!(buffers.iter().all(|mbuf| mbuf.data() == [0x11; 64]), "{what}");
            }
            drop(cq);
            if !device.objects_are_gone() {
                assert_eq!(device.dma_bytes_used(), used, "{what}: leaked, for the device has it");
            }
            assert!(!refuses || !device.objects_are_gone(), "{what}: nothing ended its access");
            drop(buffers);
            liar.registers_are_true();
        }
    }
}

#[test]
fn memory_of_what_is_not_destroyed_comes_back_when_the_device_is_closed() {
    let liar = Liar::new();
    for _ in 0..3 {
        let device = open(&liar).unwrap();
        let attr = CqAttr { log_size: 6, compression: None, events: None };
        let cq = CqRing::new(&device, &attr).unwrap();
        let used = device.dma_bytes_used();
        liar.lie_in_outputs(|opcode, output| {
            if opcode == Opcode::DESTROY_CQ {
                output[0] = CommandStatus::BAD_RESOURCE.0;
            }
        });
        drop(cq);
        assert_eq!(device.dma_bytes_used(), used, "the device may have it");
        liar.outputs_are_true();
        // It is reset, which ends whatever it has.
        device.close().unwrap();
        assert_eq!(liar.mappings(), 0);
    }
}

#[test]
fn a_device_that_dies_under_a_destroy_command_takes_the_object_with_it() {
    let liar = Liar::new();
    let device = open(&liar).unwrap();
    let used = device.dma_bytes_used();
    let attr = CqAttr { log_size: 6, compression: None, events: None };
    let cq = CqRing::new(&device, &attr).unwrap();
    liar.ignore_the_next_command();
    liar.lie_in_register(offset::INITIALIZING, 1 << 31);
    drop(cq);
    assert!(device.objects_are_gone());
    assert_eq!(device.dma_bytes_used(), used, "nothing is leaked, for the device reaches nothing");
}

#[test]
fn a_restart_is_believed_and_the_device_opens_again() {
    let liar = Liar::new();
    let device = open(&liar).unwrap();
    liar.lie_in_register(offset::INITIALIZING, 1 << 31);
    assert_eq!(device.health().dead, Some(DeadDevice::Restarting));
    assert!(device.objects_are_gone());
    let _ = device.close();
    liar.registers_are_true();
    open(&liar).unwrap().close().unwrap();
}

#[test]
fn the_function_of_a_bluefields_own_processor_is_left_alone() {
    let liar = Liar::new();
    liar.lie_in_register(offset::INITIALIZING, 1 << 23);
    let error = open(&liar).unwrap_err().to_string();
    assert!(error.starts_with("bit 23 of register 0x1fc is 1"), "{error}");
    assert_eq!(liar.commands(), 0, "it was commanded");
    liar.registers_are_true();
    open(&liar).unwrap().close().unwrap();
}

#[test]
fn a_uar_page_outside_the_bar_is_refused_once_and_for_all() {
    let lie = |opcode, output: &mut [u8; 16]| {
        if opcode == Opcode::ALLOC_UAR {
            output[8..12].copy_from_slice(&[0, 0xff, 0xff, 0xff]);
        }
    };
    let liar = Liar::new();
    liar.lie_in_outputs(lie);
    let error = open(&liar).unwrap_err().to_string();
    assert!(error.contains("0xffffff") && error.contains("BAR"), "{error}");
    liar.outputs_are_true();
    let device = open(&liar).unwrap();
    liar.lie_in_outputs(lie);
    let error = Uar::new(&device).unwrap_err().to_string();
    assert!(error.contains("0xffffff") && error.contains("BAR"), "{error}");
}

/// Why memory is refused that the device says to begin at `start`.
fn memory_at(liar: &Arc<Liar>, device: &Device, start: u64) -> DeviceError {
    liar.lie_in_outputs(move |opcode, output| {
        if opcode == Opcode::ALLOC_MEMIC {
            output[8..].copy_from_slice(&start.to_be_bytes());
        }
    });
    let error = device.alloc_memory(4096, 0).unwrap_err();
    liar.outputs_are_true();
    error
}

#[test]
fn memory_that_begins_where_it_cannot_be_is_refused() {
    let liar = Liar::new();
    let device = open(&liar).unwrap();
    let truth = device.alloc_memory(64, 0).unwrap();
    let first = truth.bar_offset();
    // Each lie leaves a page taken, since the device knows none that begins where it said.
    let (below, behind) = (|page: u64| first + page * 4096 - 64, |page: u64| first + page * 4096);
    for (page, start) in [(1, 0), (2, below(2)), (3, behind(3) + 64), (4, behind(5)), (5, !0)] {
        let error = memory_at(&liar, &device, start);
        let is_outside =
            matches!(error, DeviceError::MemoryOutside { start: said, .. } if said == start);
        assert!(is_outside, "{page}, {start:#x}: {error}");
    }
    // No whole words.
    liar.lie_in_outputs(move |opcode, output| {
        if opcode == Opcode::ALLOC_MEMIC {
            output[15] |= 2;
        }
    });
    let error = device.alloc_memory(64, 0).unwrap_err();
    assert!(matches!(error, DeviceError::Bus(_)), "{error}");
    liar.outputs_are_true();
    truth.copy_in(0, &[1; 64]).unwrap();
    assert!(device.alloc_memory(4096, 0).unwrap().bar_offset() > first);
}

#[test]
fn a_device_that_has_room_for_no_page_is_asked_once_for_each() {
    let liar = Liar::new();
    let device = open(&liar).unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    liar.lie_in_outputs(move |opcode, output| {
        if opcode == Opcode::ALLOC_MEMIC {
            count.fetch_add(1, Ordering::Relaxed);
            output[0] = CommandStatus::NO_RESOURCES.0;
        }
    });
    let error = device.alloc_memory(4096, 0).unwrap_err();
    assert!(matches!(error, DeviceError::NoDeviceMemory { len_bytes: 4096, .. }), "{error}");
    assert_eq!(asked.load(Ordering::Relaxed), 256, "a MiB of the BAR in pages");
}

#[test]
fn memory_of_a_device_that_restarted_is_gone_and_nobody_asks_for_it() {
    let liar = Liar::new();
    let device = open(&liar).unwrap();
    let mut memory = device.alloc_memory(64, 0).unwrap();
    memory.copy_in(0, &[1; 64]).unwrap();
    liar.lie_in_register(offset::INITIALIZING, 1 << 31);
    assert!(device.health().dead.is_some() && device.objects_are_gone());
    assert!(!memory.is_alive());
    assert_eq!(memory.copy_in(0, &[2; 64]), Err(AccessError::OutOfRange));
    assert_eq!(memory.copy_out(0, &mut [0; 64]), Err(AccessError::OutOfRange));
    memory.destroy().unwrap();
    liar.registers_are_true();
}

#[test]
fn firmware_that_wants_the_whole_memory_gets_an_error_with_the_number() {
    let liar = Liar::new();
    liar.lie_in_outputs(|opcode, output| {
        if opcode == Opcode::QUERY_PAGES {
            output[12..].copy_from_slice(&0x7fff_ffffu32.to_be_bytes());
        }
    });
    let error = open(&liar).unwrap_err();
    let DeviceError::Step { source: CommandError::TooManyPages { count, max, .. }, .. } = error
    else {
        panic!("{error}")
    };
    assert_eq!((count, max), (0x7fff_ffff, config().max_firmware_pages));
    liar.outputs_are_true();
    open(&liar).unwrap().close().unwrap();
}

/// A request for pages, as an event.
fn page_request(num_pages: i32) -> Eqe {
    let data = EventPageRequest::zeroed().with_num_pages(num_pages as u32);
    Eqe::zeroed().with_event_type(EventType::PAGE_REQUEST.0.into()).with_event_data(data.0)
}

#[test]
fn a_flood_of_events_ends_each_call_and_takes_no_memory() {
    let liar = Liar::new();
    let device = open(&liar).unwrap();
    for event in [page_request(1), page_request(-1), page_request(0), page_request(i32::MAX)] {
        let pages = device.firmware_pages();
        liar.flood(Some(event));
        for _ in 0..3 {
            device.serve_events();
            let _ = device.poll_event();
            assert!(device.has_page_requests());
            let _ = device.link();
        }
        let more = device.firmware_pages().saturating_sub(pages);
        assert!(more <= config().max_firmware_pages as usize, "{more} pages");
        liar.flood(None);
    }
    liar.flood(Some(Eqe::zeroed().with_event_type(EventType::PORT_CHANGE.0.into())));
    // Those that are kept are pushed out in the end.
    let is_lost = |_| device.poll_event().is_some() && device.lost_events() > 0;
    assert!((0..100).any(is_lost));
    device.link().unwrap();
}

#[test]
fn wild_outputs_never_panic() {
    let told = Arc::new(AtomicUsize::new(0));
    for seed in 1..=300u64 {
        let liar = Liar::new();
        let count = Arc::clone(&told);
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        liar.lie_in_outputs(move |_, output| {
            if random() % 32 == 0 {
                count.fetch_add(1, Ordering::Relaxed);
                // Numbers and lengths mostly; a status in one of four.
                let first = if random() % 4 == 0 { 0 } else { 8 };
                for byte in &mut output[first..] {
                    *byte = random() as u8;
                }
            }
        });
        let Ok(device) = open(&liar) else { continue };
        let pool = pool();
        let _ = device.register_pool(&pool);
        let attr = CqAttr { log_size: 6, compression: None, events: None };
        let cq = CqRing::new(&device, &attr);
        let uar = Uar::new(&device);
        let _ = (device.link(), device.set_mtu(1400), device.set_promiscuous(true));
        let _ = (device.poll_event(), device.health(), device.vport_counters());
        let _ = (device.create_rqt(&[1, 2]), device.unregister_pool(&pool));
        drop((cq, uar));
        let _ = device.close();
    }
    assert!(told.load(Ordering::Relaxed) > 200);
}

#[test]
fn no_pool_comes_over_memory_that_the_device_may_write() {
    let liar = Liar::new();
    let device = open(&liar).unwrap();
    let region = Region::alloc(&RegionConfig::heap(1 << 20)).unwrap();
    let over = || {
        let config = PoolConfig { count: 64, cache_size: 0, ..PoolConfig::default() };
        Pool::with_region(&config, &region, 0)
    };
    let mapping = device.map_region(region.use_raw().unwrap(), DmaAccess::ReadWrite).unwrap();
    let (iova, len_bytes) = (mapping.iova(), mapping.len_bytes());
    assert!(liar.scribbles(iova, len_bytes));
    let refused = over().unwrap_err();
    assert!(matches!(refused, MempoolError::RegionRange { .. }), "{refused}");
    drop(mapping);
    assert!(!liar.scribbles(iova, len_bytes));
    drop(over().unwrap());
    // What is leaked stays mapped, so that no pool may ever come.
    let mapping = device.map_region(region.use_raw().unwrap(), DmaAccess::ReadWrite).unwrap();
    let iova = mapping.iova();
    mapping.leak();
    drop(mapping);
    assert!(liar.scribbles(iova, len_bytes));
    over().unwrap_err();
}
