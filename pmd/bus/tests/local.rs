//! The in-process transport, both halves in one test.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use ferrocx_bus::local::{self, DeviceSide, DmaFaultCause, LocalConfig, LocalTransport};
use ferrocx_bus::{
    Bar, BarClaim, BusError, DmaAccess, DmaBuf, DmaHeap, DmaWord, DoorbellKind, Ring, Transport,
};
use ferrocx_mempool::{Pool, PoolConfig, Region, RegionConfig};

fn pair(seed: u64) -> (Arc<LocalTransport>, DeviceSide) {
    local::pair(LocalConfig { bar_len_bytes: 64 << 10, seed, ..LocalConfig::default() })
        .expect("a valid configuration")
}

fn bar(driver: &LocalTransport) -> Arc<dyn Bar> {
    // SAFETY: these tests are driver and device at once, and no device writes where they borrow.
    driver.bar(unsafe { BarClaim::new() })
}

fn region(len_bytes: usize) -> Arc<Region> {
    Region::alloc(&RegionConfig::heap(len_bytes)).expect("heap memory")
}

fn heap(transport: &LocalTransport, len_bytes: usize) -> DmaHeap {
    let mapping = transport.dma().map(region(len_bytes), DmaAccess::ReadWrite).expect("mapped");
    DmaHeap::new(mapping)
}

#[test]
fn driver_reads_what_the_device_published() {
    let (driver, device) = pair(1);
    let bar = bar(&driver);
    assert_eq!(bar.read_be32(0), 0);
    device.set_be32(0x14, 0x0102_0356);
    assert_eq!(bar.read_be32(0x14), 0x0102_0356);
    let mut bytes = [0; 6];
    device.bar_read(0x13, &mut bytes);
    assert_eq!(bytes, [0, 0x01, 0x02, 0x03, 0x56, 0]);
}

#[test]
fn writes_arrive_in_order_and_never_merge() {
    let (driver, device) = pair(1);
    let bar = bar(&driver);
    bar.write_be32(0x18, 1);
    bar.write_be32(0x18, 1);
    bar.write_be64(0x3020, 0x1122_3344_5566_7788);
    device.bar_write(0x3040, &[1, 2, 3, 4]).expect("aligned");
    let writes: Vec<_> = device.poll_writes().map(|w| (w.offset, w.len_bytes, w.value)).collect();
    let expected =
        [(0x18, 4, 1), (0x18, 4, 1), (0x3020, 8, 0x1122_3344_5566_7788), (0x3040, 4, 0x0102_0304)];
    assert_eq!(writes, expected);
    assert_eq!(device.poll_write(), None);
    assert_eq!(device.counts().bar_writes, 4);
}

#[test]
fn doorbells_are_words_in_a_uar_page() {
    let (driver, device) = pair(1);
    let doorbell = bar(&driver).doorbell(0x3900).expect("a send doorbell");
    assert_eq!(device.uar_load(3, 0x900), 0);
    let raw = u64::from_ne_bytes([0, 0, 1, 0x0a, 0, 0, 0x12, 3]);
    doorbell.ring(raw);
    assert_eq!(device.uar_load(3, 0x900), raw);
    let mut bytes = [0; 8];
    device.bar_read(0x3900, &mut bytes);
    assert_eq!(bytes, [0, 0, 1, 0x0a, 0, 0, 0x12, 3]);
    assert_eq!(device.uar_take(3, 0x900), Some(raw));
    assert_eq!(device.uar_take(3, 0x900), None);
    doorbell.ring(raw);
    assert_eq!(device.uar_take(3, 0x900), Some(raw));
    assert_eq!(device.poll_write(), None);
}

#[test]
fn a_doorbell_outlives_its_transport() {
    let (driver, device) = pair(1);
    let doorbell = bar(&driver).doorbell(0x3800).expect("a send doorbell");
    drop((driver, device));
    doorbell.ring(1);
}

#[test]
fn other_registers_are_not_doorbells() {
    let (driver, _device) = pair(1);
    let bar = bar(&driver);
    for offset in [0x800, 0x2800, 0x3020, 0x37f8, 0x3804, 0x3fff] {
        assert!(matches!(bar.doorbell(offset), Err(BusError::NotADoorbell { .. })), "{offset:#x}");
    }
    assert!(bar.doorbell(0x3800).is_ok());
    assert!(bar.doorbell(0x3ff8).is_ok());
    assert!(bar.doorbell(0xfff8).is_ok());
    assert!(matches!(bar.doorbell(0x1_0800), Err(BusError::BarRange { .. })));
}

#[test]
#[should_panic(expected = "outside the BAR")]
fn a_read_past_the_bar_panics() {
    let (driver, _device) = pair(1);
    let _ = bar(&driver).read_be32(0x1_0000);
}

#[test]
fn trapped_accesses_are_bounded() {
    let (_driver, device) = pair(1);
    for (offset, len) in [(0x1_0000, 4), (0xfffe, 4), (0x12, 4), (0, 3), (0, 0), (0, 16)] {
        let refused = device.bar_write(offset, &vec![0; len]);
        assert!(matches!(refused, Err(BusError::BarRange { .. })), "{offset:#x} {len}");
    }
    let mut bytes = [0; 4];
    device.bar_read(0xfffe, &mut bytes);
    assert_eq!(bytes, [0, 0, 0xff, 0xff]);
    device.bar_read(u64::MAX, &mut bytes);
    assert_eq!(bytes, [0xff; 4]);
}

/// Two pages at the end of the BAR, the first of them open; their I/O address.
fn with_memory(device: &DeviceSide) -> u64 {
    let iova = device.make_memory(0xe000..0x1_0000).expect("whole pages");
    device.open_memory(0xe000..0xf000, true);
    iova
}

#[test]
fn memory_of_the_device_is_reached_from_all_sides() {
    let (driver, device) = pair(1);
    let iova = with_memory(&device);
    let memory = bar(&driver).memory(0xe040, 0x40).expect("memory");
    memory.copy_in(4, &[1, 2, 3, 4, 5, 6, 7, 8]).expect("whole words");
    let view = device.memory();
    assert_eq!(view.read_be64(iova + 0x40), Ok(0x0102_0304));
    assert_eq!(view.fetch_update_be64(iova + 0x48, |old| old + 1), Ok(0x0506_0708 << 32));
    drop(view);
    device.bar_write(0xe050, &[9, 8, 7, 6, 5, 4, 3, 2]).expect("aligned");
    assert_eq!(device.poll_write(), None, "no register was written");
    let mut bytes = [0; 24];
    device.bar_read(0xe040, &mut bytes);
    let expected = [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 1, 9, 8, 7, 6, 5, 4, 3, 2];
    assert_eq!(bytes, expected);
    let mut words = [0; 8];
    memory.copy_out(0x10, &mut words).expect("whole words");
    assert_eq!(words, [9, 8, 7, 6, 5, 4, 3, 2]);
}

#[test]
fn memory_that_is_closed_reads_as_ones_and_starts_anew() {
    let (driver, device) = pair(1);
    let iova = with_memory(&device);
    device.bar_write(0xf000, &[1; 8]).expect("aligned");
    device.bar_write(0xeff8, &[2; 8]).expect("aligned");
    let mut bytes = [0; 16];
    device.bar_read(0xeff8, &mut bytes);
    assert_eq!(bytes, [2, 2, 2, 2, 2, 2, 2, 2, 255, 255, 255, 255, 255, 255, 255, 255]);
    device.open_memory(0xe000..0xf000, false);
    device.bar_read(0xeff8, &mut bytes);
    assert_eq!(bytes, [0xff; 16]);
    device.open_memory(0xe000..0x1_0000, true);
    device.bar_read(0xeff8, &mut bytes);
    assert_eq!(bytes, [0; 16]);
    // Those who unmap all leave it where it is.
    driver.dma().unmap_all().expect("unmapped");
    device.memory().write_be32(iova + 0x1ffc, 7).expect("still there");
    device.clear_bar();
    device.open_memory(0xf000..0x1_0000, true);
    assert_eq!(device.memory().read_be32(iova + 0x1ffc), Ok(0));
    device.bar_read(0xe000, &mut bytes);
    assert_eq!(bytes, [0xff; 16], "a reset closes");
}

#[test]
fn only_whole_pages_above_the_registers_become_memory_and_once() {
    let (driver, device) = pair(1);
    for range in [0xe000..0xe000, 0xe800..0xf000, 0xe000..0xf800, 0x2000..0x3000, 0xf000..0x1_1000]
    {
        let refused = device.make_memory(range.clone());
        assert!(matches!(refused, Err(BusError::NotBarMemory { .. })), "{range:x?}");
    }
    assert!(bar(&driver).memory(0xe000, 4).is_err(), "nothing is memory yet");
    let iova = with_memory(&device);
    assert_eq!(device.make_memory(0xe000..0x1_0000).ok(), Some(iova), "it is that already");
    assert!(device.make_memory(0xd000..0xe000).is_err(), "other pages are");
    let bar = bar(&driver);
    for (offset, len_bytes) in [(0xdffc, 4), (0xdffc, 8), (0xe002, 4), (0xe000, 0), (0xfffc, 8)] {
        let refused = bar.memory(offset, len_bytes);
        assert!(matches!(refused, Err(BusError::NotBarMemory { .. })), "{offset:#x}");
    }
    // Its I/O addresses are its own, and end with it.
    for at in [iova - 0x1000, iova, iova + 0x1000] {
        let mapped = device.dma_map(at, region(0x2000), DmaAccess::ReadWrite);
        assert!(matches!(mapped, Err(BusError::MappingOverlap { .. })), "{at:#x}");
    }
    assert!(!device.memory().is_mapped(iova - 1, 1, false));
    assert!(!device.memory().is_mapped(iova + 0x2000, 1, false));
    assert!(device.memory().is_mapped(iova, 0x2000, true));
    device.dma_map(iova + 0x2000, region(0x1000), DmaAccess::ReadWrite).expect("behind it");
}

#[test]
#[should_panic(expected = "are no pages of the memory")]
fn pages_outside_the_memory_cannot_be_opened() {
    let (_driver, device) = pair(1);
    with_memory(&device);
    device.open_memory(0xf000..0x1_1000, true);
}

#[test]
fn a_device_that_is_gone_reads_as_ones() {
    let (driver, device) = pair(1);
    device.set_be32(0x230, 0x1234);
    device.set_gone(true);
    assert_eq!(bar(&driver).read_be32(0x230), u32::MAX);
    bar(&driver).write_be32(0x18, 1);
    device.set_gone(false);
    assert_eq!(bar(&driver).read_be32(0x230), 0x1234);
    assert_eq!(device.poll_write(), None);
    // So is its memory, to those whose accesses are trapped.
    with_memory(&device);
    device.bar_write(0xe000, &[5; 8]).expect("aligned");
    device.set_gone(true);
    device.bar_write(0xe000, &[6; 8]).expect("aligned");
    let mut bytes = [0; 8];
    device.bar_read(0xe000, &mut bytes);
    assert_eq!(bytes, [0xff; 8]);
    device.set_gone(false);
    device.bar_read(0xe000, &mut bytes);
    assert_eq!(bytes, [5; 8]);
}

#[test]
fn reset_is_a_request_that_the_device_acknowledges() {
    let (driver, device) = pair(1);
    assert!(driver.reset_complete());
    bar(&driver).write_be32(0x18, 1);
    driver.reset().expect("the model can reset");
    bar(&driver).write_be32(0x10, 2);
    assert!(!driver.reset_complete());
    assert!(device.reset_requested());
    device.clear_bar();
    device.reset_done();
    assert!(driver.reset_complete());
    // The write from before the request went into the device that was reset.
    assert_eq!(device.poll_writes().map(|w| w.offset).collect::<Vec<_>>(), [0x10]);
}

#[test]
fn relax_runs_the_hook() {
    let (driver, device) = pair(1);
    driver.relax();
    let turns = Arc::new(AtomicU32::new(0));
    let hook = {
        let turns = Arc::clone(&turns);
        move || {
            turns.fetch_add(1, Ordering::Relaxed);
            if device.reset_requested() {
                device.reset_done();
            }
        }
    };
    driver.set_idle_hook(Some(Arc::new(hook)));
    driver.reset().expect("the model can reset");
    while !driver.reset_complete() {
        driver.relax();
    }
    assert_eq!(turns.load(Ordering::Relaxed), 1);
}

#[test]
fn a_watched_mapping_is_counted_apart() {
    let (driver, device) = pair(7);
    let map = || driver.dma().map(region(8192), DmaAccess::ReadWrite).expect("mapped");
    let (peer, host) = (map(), map());
    device.dma_watch(peer.iova()).expect("mapped");
    assert!(device.dma_watch(peer.iova() + 4096).is_err(), "the start of a mapping only");
    let memory = device.memory();
    memory.write(peer.iova() + 100, &[1; 7]).expect("mapped");
    memory.write(host.iova(), &[1; 11]).expect("mapped");
    memory.read(peer.iova(), &mut [0; 5]).expect("mapped");
    memory.read(host.iova(), &mut [0; 13]).expect("mapped");
    assert!(memory.write(0, &[0; 3]).is_err());
    memory.note_data(13, false);
    memory.note_data(2, true);
    drop(memory);
    let counts = device.counts().dma;
    assert_eq!((counts.written_bytes, counts.read_bytes), (18, 18));
    assert_eq!((counts.watched_written_bytes, counts.watched_read_bytes), (7, 5));
    assert_eq!((counts.data_written_bytes, counts.data_read_bytes), (2, 13));
}

#[test]
fn a_refused_mapping_is_out_of_reach_until_it_is_not() {
    let (driver, device) = pair(7);
    let map = || driver.dma().map(region(8192), DmaAccess::ReadWrite).expect("mapped");
    let mappings = [map(), map(), map()];
    let reached = |device: &DeviceSide| {
        let memory = device.memory();
        mappings.iter().filter(|at| memory.write(at.iova(), &[1]).is_ok()).count()
    };
    let first = mappings.iter().map(|mapping| mapping.iova()).min().expect("three");
    for (nth, left) in [(Some(0), 2), (Some(5), 2), (Some(3), 2), (None, 3)] {
        device.dma_refuse(nth);
        assert_eq!(reached(&device), left, "{nth:?}");
        let is_refused = device.memory().read(first, &mut [0]).is_err();
        assert_eq!(is_refused, matches!(nth, Some(0 | 3)), "{nth:?}");
    }
    device.dma_refuse(Some(1));
    assert_eq!(device.dma_mappings(), 3);
    drop(mappings);
    assert_eq!(device.dma_mappings(), 0);
    device.dma_refuse(Some(1));
}

#[test]
fn the_device_sees_mapped_memory_only() {
    let (driver, device) = pair(7);
    let mapping = driver.dma().map(region(8192), DmaAccess::ReadWrite).expect("mapped");
    let iova = mapping.iova();
    assert_ne!(iova, mapping.region().base().as_ptr().addr() as u64);
    let memory = device.memory();
    memory.write(iova + 5, b"ferrocx").expect("mapped");
    let mut back = [0; 7];
    mapping.region().copy_out(5, &mut back).expect("in range");
    assert_eq!(&back, b"ferrocx");
    let mut dst = [0; 16];
    memory.read(iova + 8192 - 16, &mut dst).expect("the last bytes");
    let fault = memory.read(iova + 8192 - 15, &mut dst).expect_err("one past the end");
    assert_eq!((fault.iova, fault.len_bytes), (iova + 8192 - 15, 16));
    assert_eq!((fault.is_write, fault.cause), (false, DmaFaultCause::Unmapped));
    assert!(memory.write(iova - 1, &[0]).is_err());
    assert!(memory.read_be32(0).is_err());
    assert!(memory.read(u64::MAX - 1, &mut dst).is_err());
    assert_eq!(memory.read(iova - 1, &mut []), Ok(()));
    // One write, one read, four faults, and fewer than 512 bytes.
    assert_eq!(memory.work(), 6);
    let mut large = vec![0; 8193];
    assert!(memory.read(iova, &mut large).is_err());
    assert_eq!(memory.work(), 7 + 8192 / 512, "what came before the fault is work, too");
    drop(memory);
    let counts = device.counts().dma;
    assert_eq!((counts.reads, counts.read_bytes), (1, 16));
    assert_eq!((counts.writes, counts.written_bytes, counts.faults), (1, 7, 5));
    drop(mapping);
    assert!(device.memory().read(iova, &mut dst).is_err());
}

#[test]
fn permissions_are_per_mapping_and_direction() {
    let (driver, device) = pair(7);
    let read = driver.dma().map(region(4096), DmaAccess::Read).expect("mapped");
    let write = driver.dma().map(region(4096), DmaAccess::Write).expect("mapped");
    let memory = device.memory();
    assert_eq!(memory.read_be64(read.iova()), Ok(0));
    let fault = memory.write_be64(read.iova(), 1).expect_err("read only");
    assert_eq!((fault.cause, fault.is_write), (DmaFaultCause::Permission, true));
    assert_eq!(memory.write_be32(write.iova(), 1), Ok(()));
    let fault = memory.read_be32(write.iova()).expect_err("write only");
    assert_eq!((fault.cause, fault.is_write), (DmaFaultCause::Permission, false));
    assert!(memory.fetch_update_be64(read.iova(), |v| v + 1).is_err());
    assert!(memory.is_mapped(read.iova(), 4096, false));
    assert!(!memory.is_mapped(read.iova(), 4097, false));
    assert!(!memory.is_mapped(read.iova(), 1, true));
}

#[test]
fn accesses_cross_adjacent_mappings_and_fault_in_gaps() {
    let (_driver, device) = pair(7);
    let parts: Vec<_> = (0..3).map(|_| region(4096)).collect();
    let base = 0x10_0000;
    device.dma_map(base, Arc::clone(&parts[0]), DmaAccess::ReadWrite).expect("free");
    device.dma_map(base + 4096, Arc::clone(&parts[1]), DmaAccess::ReadWrite).expect("free");
    device.dma_map(base + 3 * 4096, Arc::clone(&parts[2]), DmaAccess::ReadWrite).expect("free");
    let memory = device.memory();
    let pattern: Vec<u8> = (0..100).collect();
    memory.write(base + 4096 - 33, &pattern).expect("contiguous");
    let mut back = [0; 100];
    memory.read(base + 4096 - 33, &mut back).expect("contiguous");
    assert_eq!(&back[..], &pattern[..]);
    let mut tail = [0; 67];
    parts[1].copy_out(0, &mut tail).expect("in range");
    assert_eq!(&tail[..], &pattern[33..]);
    memory.write_release(base + 4096 - 32, &pattern[..64]).expect("contiguous");
    parts[1].copy_out(0, &mut tail[..32]).expect("in range");
    assert_eq!(&tail[..32], &pattern[32..64]);
    memory.write_release(base + 4096 - 60, &pattern[..64]).expect("contiguous");
    parts[1].copy_out(0, &mut tail[..4]).expect("in range");
    assert_eq!(&tail[..4], &pattern[60..64]);
    assert!(memory.write_release(base + 2 * 4096 - 60, &pattern[..64]).is_err());
    assert!(memory.write(base + 2 * 4096 - 33, &pattern).is_err());
    assert!(memory.write(base + 3 * 4096 - 1, &[1]).is_err());
    memory.write(base + 3 * 4096, &[1]).expect("mapped");
}

#[test]
fn an_expected_access_is_none_wherever_it_points() {
    let (_driver, device) = pair(7);
    let parts = [region(4096), region(4096)];
    device.dma_map(0x4000, Arc::clone(&parts[0]), DmaAccess::ReadWrite).expect("free");
    device.dma_map(0x5000, Arc::clone(&parts[1]), DmaAccess::Read).expect("free");
    let before = device.counts().dma;
    let memory = device.memory();
    for iova in [0, 0x3fff, 0x4000, 0x4fff, 0x5000, 0x6000, u64::MAX] {
        memory.expect_write(iova);
        memory.expect_read(iova, 4096);
    }
    drop(memory);
    assert_eq!(device.counts().dma, before);
    for part in parts {
        let mut bytes = [1; 4096];
        part.copy_out(0, &mut bytes).expect("in range");
        assert_eq!(bytes, [0; 4096]);
    }
}

#[test]
fn mappings_do_not_overlap_and_unmap_exactly() {
    let (_driver, device) = pair(7);
    device.dma_map(0x4000, region(8192), DmaAccess::Read).expect("free");
    for iova in [0x3000, 0x4000, 0x5000] {
        let refused = device.dma_map(iova, region(8192), DmaAccess::Read);
        assert!(matches!(refused, Err(BusError::MappingOverlap { .. })), "{iova:#x}");
    }
    assert!(device.dma_map(0x2000, region(8192), DmaAccess::Read).is_ok());
    assert!(device.dma_map(0x6000, region(8192), DmaAccess::Read).is_ok());
    for (iova, len) in [(0x4000, 4096), (0x5000, 4096), (0x4000, 16384), (0x8000, 8192)] {
        assert!(matches!(device.dma_unmap(iova, len), Err(BusError::NotMapped { .. })));
    }
    device.dma_unmap(0x4000, 8192).expect("mapped");
    assert!(device.dma_unmap(0x4000, 8192).is_err());
    for iova in [1, 0xfff, u64::MAX - 4095] {
        assert!(matches!(
            device.dma_map(iova, region(4096), DmaAccess::Read),
            Err(BusError::OutOfRange { .. })
        ));
    }
}

#[test]
fn word_accesses_are_big_endian_and_aligned() {
    let (driver, device) = pair(9);
    let heap = heap(&driver, 4096);
    let buf = heap.alloc(64, 64).expect("room");
    let memory = device.memory();
    memory.write_be64(buf.iova(), 0x0102_0304_0506_0708).expect("mapped");
    assert_eq!(buf.load_be32(4), 0x0506_0708);
    let mut bytes = [0; 8];
    buf.copy_out(0, &mut bytes);
    assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8]);
    buf.store_release_be32(8, 0xdead_beef);
    assert_eq!(memory.load_acquire_be32(buf.iova() + 8), Ok(0xdead_beef));
    assert_eq!(memory.fetch_update_be64(buf.iova(), |v| v + 1), Ok(0x0102_0304_0506_0708));
    assert_eq!(buf.load_be64(0), 0x0102_0304_0506_0709);
    for (off, width) in [(1, 4), (2, 4), (4, 8)] {
        let cause = match width {
            4 => memory.read_be32(buf.iova() + off).map(u64::from),
            _ => memory.read_be64(buf.iova() + off),
        };
        assert_eq!(cause.map_err(|f| f.cause), Err(DmaFaultCause::Misaligned));
    }
}

#[test]
fn write_release_counts_once_and_refuses_fragments() {
    let (driver, device) = pair(9);
    let heap = heap(&driver, 4096);
    let buf = heap.alloc(64, 64).expect("room");
    let memory = device.memory();
    let cqe: Vec<u8> = (1..=64).collect();
    memory.write_release(buf.iova(), &cqe).expect("mapped");
    let mut back = [0; 64];
    buf.copy_out(0, &mut back);
    assert_eq!(&back[..], &cqe[..]);
    assert!(memory.write_release(buf.iova(), &[1, 2, 3]).is_err());
    assert!(memory.write_release(buf.iova(), &[0; 6]).is_err());
    memory.write_release(buf.iova(), &[9; 4]).expect("one word");
    drop(memory);
    let counts = device.counts().dma;
    assert_eq!((counts.writes, counts.written_bytes, counts.faults), (2, 68, 2));
}

#[test]
fn same_seed_same_addresses_and_freed_ones_stay_unused() {
    let iovas = |seed| {
        let (driver, _device) = pair(seed);
        let first = driver.dma().map(region(4096), DmaAccess::Read).expect("mapped").iova();
        let second = driver.dma().map(region(4096), DmaAccess::Read).expect("mapped").iova();
        assert_ne!(first, second, "the first is unmapped by now, but not used again");
        (first, second)
    };
    assert_eq!(iovas(3), iovas(3));
    assert_ne!(iovas(3), iovas(4));
}

#[test]
fn everything_unmapped_at_once_is_out_of_reach_and_dropped_once() {
    let (driver, device) = pair(5);
    let dma = driver.dma();
    let kept = region(4096);
    let old = dma.map(Arc::clone(&kept), DmaAccess::ReadWrite).expect("mapped");
    assert_eq!(device.memory().read_be32(old.iova()), Ok(0));
    dma.unmap_all().expect("unmapped");
    assert!(device.memory().read_be32(old.iova()).is_err());
    // The address of the old mapping is not given out while its handle lives.
    let new = dma.map(region(4096), DmaAccess::ReadWrite).expect("mapped");
    assert_ne!(old.iova(), new.iova());
    drop(old);
    assert_eq!(Arc::strong_count(&kept), 1, "freed, not leaked");
    assert_eq!(device.memory().read_be32(new.iova()), Ok(0));
    let iova = new.iova();
    drop(new);
    assert!(device.memory().read_be32(iova).is_err());
}

#[test]
fn mapping_count_is_limited() {
    let config = LocalConfig { bar_len_bytes: 64 << 10, max_mappings: 2, ..LocalConfig::default() };
    let (driver, _device) = local::pair(config).expect("valid");
    let dma = driver.dma();
    let first = dma.map(region(4096), DmaAccess::Read).expect("mapped");
    let _second = dma.map(region(4096), DmaAccess::Read).expect("mapped");
    assert!(matches!(
        dma.map(region(4096), DmaAccess::Read),
        Err(BusError::OutOfRange { value: 3, max: 2, .. })
    ));
    drop(first);
    assert!(dma.map(region(4096), DmaAccess::Read).is_ok());
}

/// A sparse file of any length costs its owner nothing.
fn sparse(len_bytes: u64) -> std::fs::File {
    let file = tempfile::tempfile().expect("a file");
    file.set_len(len_bytes).expect("sparse");
    file
}

#[test]
#[cfg_attr(miri, ignore = "Miri maps no files")]
fn mapped_bytes_are_limited() {
    const LIMIT: u64 = 1 << 30;
    let config =
        LocalConfig { bar_len_bytes: 64 << 10, max_mapped_bytes: LIMIT, ..LocalConfig::default() };
    let (_driver, device) = local::pair(config).expect("valid");
    let map = |iova, len_bytes| {
        device.dma_map_fd(iova, sparse(len_bytes), 0, len_bytes, DmaAccess::ReadWrite)
    };
    map(1 << 40, LIMIT - 4096).expect("within");
    let refused = map(2 << 40, 8192);
    assert!(matches!(refused, Err(BusError::OutOfRange { max: LIMIT, .. })), "{refused:?}");
    map(2 << 40, 4096).expect("the rest");
    device.dma_unmap(1 << 40, LIMIT - 4096).expect("mapped");
    map(3 << 40, 8192).expect("given back");
}

/// Memory and I/O addresses begin at the same place of a page, or an aligned word would not be.
#[test]
#[cfg_attr(miri, ignore = "Miri maps no files")]
fn a_file_is_mapped_from_a_page_boundary_only() {
    let (_driver, device) = pair(1);
    for offset in [1, 4, 2048, 4095, 4097] {
        let refused =
            device.dma_map_fd(1 << 40, sparse(16_384), offset, 4096, DmaAccess::ReadWrite);
        let is_refused =
            matches!(refused, Err(BusError::OutOfRange { value, .. }) if value == offset);
        assert!(is_refused, "{offset}: {refused:?}");
    }
    device.dma_map_fd(1 << 40, sparse(16_384), 8192, 4096, DmaAccess::ReadWrite).expect("a page");
    device.memory().write_be64((1 << 40) + 8, 1).expect("mapped");
}

/// The kernel maps a file of hugepages by whole ones, and unmaps it by whole ones or not at all.
#[test]
#[cfg_attr(miri, ignore = "Miri maps no files")]
fn a_part_of_a_huge_page_is_unmapped_and_charged_whole() {
    use rustix::fs::MemfdFlags;
    const NAME: &str = "ferrocx-part-of-a-huge-page";
    const HUGE: u64 = 2 << 20;
    let huge = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let config =
        LocalConfig { bar_len_bytes: 64 << 10, max_mapped_bytes: HUGE, ..LocalConfig::default() };
    let (_driver, device) = local::pair(config).expect("valid");
    let Ok(file) = rustix::fs::memfd_create(NAME, huge) else {
        println!("skipped: this kernel has no 2 MiB hugepages");
        return;
    };
    rustix::fs::ftruncate(&file, HUGE).expect("a length");
    let map = |iova, at| device.dma_map_fd(iova, &file, at, 4096, DmaAccess::ReadWrite);
    if map(1 << 40, 0).is_err() {
        println!("skipped: no free 2 MiB hugepages");
        return;
    }
    let refused = map(2 << 40, 0);
    let is_refused = matches!(refused, Err(BusError::OutOfRange { max: HUGE, .. }));
    assert!(is_refused, "a whole one is charged: {refused:?}");
    device.dma_unmap(1 << 40, 4096).expect("mapped");
    map(1 << 40, 8192).expect("given back");
    device.memory().write_be64(1 << 40, 0x0102_0304_0506_0708).expect("mapped");
    device.dma_unmap(1 << 40, 4096).expect("mapped");
    let mut bytes = [0; 8];
    rustix::io::pread(&file, &mut bytes, 8192).expect("the file's bytes");
    assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8], "the place in the page");
    for _ in 0..10 {
        map(1 << 40, 0).expect("given back");
        device.dma_unmap(1 << 40, 4096).expect("mapped");
    }
    let maps = std::fs::read_to_string("/proc/self/maps").expect("our own");
    assert_eq!(maps.lines().filter(|line| line.contains(NAME)).count(), 0, "{maps}");
}

#[test]
fn a_heap_and_a_pool_share_no_memory() {
    let (driver, _device) = pair(1);
    let shared = region(1 << 20);
    let heap = DmaHeap::new(driver.dma().map(Arc::clone(&shared), DmaAccess::ReadWrite).unwrap());
    let buf = heap.alloc(64, 64).expect("room");
    let config = PoolConfig { count: 8, ..PoolConfig::default() };
    let pool = || Pool::with_region(&config, &shared, 0);
    assert!(pool().is_err(), "a heap lies there");
    drop(heap);
    assert!(pool().is_err(), "a buffer of it lives");
    drop(buf);
    let _pool = pool().expect("nobody uses it");
    let mapping = driver.dma().map(Arc::clone(&shared), DmaAccess::ReadWrite).expect("mapped");
    let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| DmaHeap::new(mapping)));
    assert!(refused.is_err(), "a pool lies there");
}

#[test]
fn bad_configurations_are_refused() {
    for (bar_len_bytes, vectors) in
        [(32 << 10, 1), (100_000, 1), (8 << 30, 1), (64 << 10, 0), (64 << 10, 2049)]
    {
        let config = LocalConfig { bar_len_bytes, vectors, ..LocalConfig::default() };
        assert!(matches!(local::pair(config), Err(BusError::OutOfRange { .. })));
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows no eventfd through raw system calls")]
fn interrupts_reach_the_eventfd_of_an_enabled_vector() {
    let (driver, device) = pair(1);
    let irq = driver.interrupts();
    assert!(!device.raise(0));
    assert!(matches!(irq.eventfd(0), Err(BusError::VectorNotEnabled { vector: 0, enabled: 0 })));
    irq.enable(2).expect("two vectors");
    let fd = irq.eventfd(1).expect("enabled");
    assert!(device.raise(1));
    assert!(device.raise(1));
    assert!(!device.raise(2));
    let mut count = [0; 8];
    assert_eq!(rustix::io::read(&fd, &mut count), Ok(8));
    assert_eq!(u64::from_ne_bytes(count), 2);
    assert_eq!(rustix::io::read(&fd, &mut count), Err(rustix::io::Errno::AGAIN));
    assert!(matches!(irq.enable(65), Err(BusError::OutOfRange { max: 64, .. })));
    irq.enable(0).expect("none");
    assert!(!device.raise(1));
    assert_eq!((device.counts().interrupts, device.counts().interrupts_lost), (2, 3));
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows no eventfd through raw system calls")]
fn a_vector_can_have_the_eventfd_of_another_process() {
    use rustix::event::{EventfdFlags, eventfd};
    let (driver, device) = pair(1);
    let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
    let theirs = fd.try_clone().expect("a duplicate");
    device.set_vector(63, Some(fd)).expect("the last vector");
    assert!(!device.raise(62), "vectors below are not enabled by it");
    assert!(device.raise(63));
    let mut count = [0; 8];
    assert_eq!(rustix::io::read(&theirs, &mut count), Ok(8));
    assert_eq!(u64::from_ne_bytes(count), 1);
    assert!(driver.interrupts().eventfd(62).is_err());
    device.set_vector(63, None).expect("the last vector");
    assert!(!device.raise(63));
    let refused = device.set_vector(64, None);
    assert!(matches!(refused, Err(BusError::OutOfRange { value: 64, max: 63, .. })));
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows no eventfd through raw system calls")]
fn what_is_raised_while_a_vector_is_away_is_signalled_when_it_is_back_but_not_after_a_reset() {
    use rustix::event::{EventfdFlags, eventfd};
    let (_driver, device) = pair(1);
    let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
    let give = |vector| device.set_vector(vector, Some(fd.try_clone().expect("a duplicate")));
    assert!(!device.raise(5) && !device.raise(5) && !device.raise(6));
    give(5).expect("vector 5");
    let mut count = [0; 8];
    assert_eq!(rustix::io::read(&fd, &mut count), Ok(8));
    assert_eq!(u64::from_ne_bytes(count), 1, "once, however often it was raised");
    device.set_vector(5, None).expect("vector 5");
    give(5).expect("vector 5");
    device.request_reset();
    device.reset_done();
    give(6).expect("vector 6");
    assert_eq!(rustix::io::read(&fd, &mut count), Err(rustix::io::Errno::AGAIN));
}

/// One thread polls CQEs, the other writes them: the acquire of the last word covers the rest.
#[test]
fn a_polled_entry_is_whole() {
    let laps: u32 = if cfg!(miri) { 8 } else { 20_000 };
    let (driver, device) = pair(11);
    let heap = heap(&driver, 8192);
    let buf = Arc::new(heap.alloc(4 * 64, 64).expect("room"));
    let record_buf = Arc::new(heap.alloc(8, 64).expect("room"));
    let record = DmaWord::new(Arc::clone(&record_buf), 0).expect("aligned");
    let ring = Ring::<64>::new(buf, 0, 2).expect("four entries");
    let (cq, db) = (ring.iova(), record.iova());
    let producer = std::thread::spawn(move || {
        for n in 1..=laps {
            // Flow control through the record, as a driver updates a CQ's consumer index.
            while n - device.memory().load_acquire_be32(db).expect("mapped") > 4 {
                std::thread::yield_now();
            }
            let cqe: Vec<u8> = n.to_be_bytes().repeat(16);
            let at = cq + u64::from((n - 1) % 4) * 64;
            device.memory().write_release(at, &cqe).expect("mapped");
        }
    });
    for n in 1..=laps {
        let slot = ring.at(n - 1);
        while slot.load_acquire_be32::<0x3c>() != n {
            std::thread::yield_now();
        }
        assert_eq!(slot.load_be32::<0>(), n);
        assert_eq!(slot.load_be64::<0x10>(), u64::from(n) << 32 | u64::from(n));
        assert_eq!(slot.load_be32::<0x38>(), n);
        record.store_release_be32(n);
    }
    producer.join().expect("no panic");
}

/// What the driver stored before ringing is visible once the doorbell's value is.
#[test]
fn a_doorbell_publishes_earlier_stores() {
    let laps: u32 = if cfg!(miri) { 8 } else { 20_000 };
    let (driver, device) = pair(12);
    let heap = heap(&driver, 4096);
    let buf = Arc::new(heap.alloc(64, 64).expect("room"));
    let ring = Ring::<64>::new(buf, 0, 0).expect("one entry");
    let iova = ring.iova();
    let doorbell = bar(&driver).doorbell(0x4800).expect("a send doorbell");
    let consumed = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&consumed);
    let consumer = std::thread::spawn(move || {
        for n in 1..=laps {
            while device.uar_load(4, 0x800) != u64::from(n) {
                std::thread::yield_now();
            }
            let mut wqe = [0; 64];
            device.memory().read(iova, &mut wqe).expect("mapped");
            assert_eq!(wqe.to_vec(), n.to_be_bytes().repeat(16));
            seen.store(n, Ordering::Release);
        }
    });
    for n in 1..=laps {
        let wqe: Vec<u8> = n.to_be_bytes().repeat(16);
        ring.at(n).store(&wqe.try_into().expect("64 bytes"));
        doorbell.ring(u64::from(n));
        while consumed.load(Ordering::Acquire) != n {
            std::thread::yield_now();
        }
    }
    consumer.join().expect("no panic");
}

/// Unmap is an ending: once it has returned, no access reaches the memory.
#[test]
fn nothing_reaches_memory_after_unmap() {
    let rounds = if cfg!(miri) { 3 } else { 500 };
    let (driver, device) = pair(13);
    let stop = Arc::new(AtomicBool::new(false));
    let (send, receive) = std::sync::mpsc::channel::<u64>();
    let reached_iova = Arc::new(AtomicU64::new(0));
    let writer = {
        let (stop, reached) = (Arc::clone(&stop), Arc::clone(&reached_iova));
        std::thread::spawn(move || {
            let mut target = None;
            let (mut hits, mut faults) = (0_u64, 0_u64);
            while !stop.load(Ordering::Relaxed) {
                target = receive.try_iter().last().or(target);
                let Some(iova) = target else {
                    std::thread::yield_now();
                    continue;
                };
                match device.memory().write(iova, &[0xff; 4096]) {
                    Ok(()) => {
                        hits += 1;
                        reached.store(iova, Ordering::Relaxed);
                    }
                    Err(_) => faults += 1,
                }
                if faults > 0 || cfg!(miri) {
                    std::thread::yield_now();
                }
            }
            (hits, faults)
        })
    };
    for _ in 0..rounds {
        let memory = region(4096);
        let mapping = driver.dma().map(Arc::clone(&memory), DmaAccess::ReadWrite).expect("mapped");
        send.send(mapping.iova()).expect("the writer lives");
        while reached_iova.load(Ordering::Relaxed) != mapping.iova() {
            std::thread::yield_now();
        }
        drop(mapping);
        // The memory is ours again. A straggler would change it back.
        memory.fill(0, 4096, 0).expect("in range");
        for _ in 0..20 {
            std::thread::yield_now();
        }
        let mut bytes = vec![0; 4096];
        memory.copy_out(0, &mut bytes).expect("in range");
        assert!(bytes == [0; 4096]);
    }
    stop.store(true, Ordering::Relaxed);
    let (hits, _) = writer.join().expect("no panic");
    assert!(hits >= rounds);
}

#[test]
#[cfg(debug_assertions)]
fn what_would_deadlock_panics_in_debug_builds() {
    let (driver, device) = pair(14);
    let (_other_driver, other_device) = pair(14);
    let mapping = driver.dma().map(region(4096), DmaAccess::Read).expect("mapped");
    let view = device.memory();
    let panics =
        |access: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(access)).is_err();
    assert!(panics(&|| drop(device.memory())));
    assert!(panics(&|| device.dma_unmap(mapping.iova(), 4096).expect("mapped")));
    assert!(!panics(&|| drop(other_device.memory())));
    drop(view);
    assert!(!panics(&|| drop(device.memory())));
}

#[test]
fn views_of_a_buffer_keep_it() {
    let (driver, device) = pair(14);
    let heap = heap(&driver, 4096);
    let buf = Arc::new(heap.alloc(64, 64).expect("room"));
    let word = DmaWord::new(Arc::clone(&buf), 60).expect("the last word");
    assert!(DmaWord::new(Arc::clone(&buf), 62).is_err());
    assert!(DmaWord::new(Arc::clone(&buf), 64).is_err());
    let iova = buf.iova();
    drop((buf, heap, driver));
    word.store_release_be32(0x55aa_0001);
    assert_eq!(device.memory().load_acquire_be32(iova + 60), Ok(0x55aa_0001));
    drop(word);
    assert!(device.memory().load_acquire_be32(iova + 60).is_err());
}

#[test]
#[cfg_attr(miri, ignore = "leaks memory, as it should")]
fn leaked_buffers_stay_mapped_and_taken() {
    let (driver, device) = pair(15);
    let heap = heap(&driver, 4096);
    let buf: DmaBuf = heap.alloc(4096, 64).expect("room");
    let iova = buf.iova();
    buf.leak();
    assert!(matches!(heap.alloc(64, 64), Err(BusError::HeapExhausted { free_bytes: 0, .. })));
    drop(heap);
    assert!(device.memory().is_mapped(iova, 4096, true));
}

#[test]
fn a_heap_knows_what_it_has_handed_out() {
    let (driver, _device) = pair(1);
    let heap = heap(&driver, 8192);
    assert_eq!(heap.used_bytes(), 0);
    let (one, two) = (heap.alloc(1, 64).expect("room"), heap.alloc(4096, 4096).expect("room"));
    assert_eq!(heap.used_bytes(), 64 + 4096);
    drop(one);
    assert_eq!(heap.used_bytes(), 4096);
    drop(two);
    assert_eq!(heap.used_bytes(), 0);
}

#[test]
fn blueflame_registers_take_whole_requests_in_turn() {
    let blueflame = DoorbellKind::WriteCombining;
    let config = LocalConfig { bar_len_bytes: 64 << 10, blueflame, ..LocalConfig::default() };
    let (transport, device) = local::pair(config).expect("a device");
    let buf = heap(&transport, 4096).alloc(256, 64).expect("a buffer");
    let ring = Ring::<64>::new(Arc::new(buf), 0, 2).expect("fits");
    (0..4u32).for_each(|at| ring.at(at).store(&[at as u8 + 1; 64]));
    let registers = bar(&transport);
    let mut blueflame = registers.blueflame(0x3800, 256).expect("in range").expect("there is one");
    assert_eq!(blueflame.kind(), DoorbellKind::WriteCombining);
    let two = ring.view().run::<128>(1).expect("in one piece");
    assert!(blueflame.ring(&two, 2));
    assert!(blueflame.ring(&ring.at(3), 1));
    let word = |offset| device.uar_load(3, offset).to_ne_bytes();
    assert_eq!((word(0x800), word(0x840), word(0x878)), ([2; 8], [3; 8], [3; 8]));
    assert_eq!((word(0x880), word(0x900), word(0x938)), ([0; 8], [4; 8], [4; 8]));
    assert!(!blueflame.ring(&two, 3), "longer than what is given");
    let mut unread = blueflame.unread().expect("of the same kind");
    assert!(unread.ring(&two, 1));
    assert_eq!(word(0x800), [2; 8]);
    assert!(registers.blueflame(0x3e00, 512).is_err(), "past the page");
    assert!(registers.blueflame(0x2800, 256).is_err(), "not a page of doorbells");
    for (offset, bytes) in [(0x3808, 256), (0x3800, 384), (0x3800, 32), (0x3800, 1 << 63)] {
        assert!(registers.blueflame(offset, bytes).is_err(), "{bytes} at {offset:#x}");
    }
    let (plain, _device) = pair(1);
    assert!(bar(&plain).blueflame(0x3800, 256).expect("in range").is_none());
}
