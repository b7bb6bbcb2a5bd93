//! Random operation sequences against simple oracles.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ferrocx_bus::local::{self, LocalConfig};
use ferrocx_bus::{DmaAccess, DmaBuf, DmaHeap, IovaAllocator, IovaPlace, Transport};
use ferrocx_mempool::{Region, RegionConfig};
use proptest::prelude::*;

/// Cases per property: Miri runs a few, to look at the unsafe code behind them.
fn config() -> ProptestConfig {
    let cases = if cfg!(miri) { 1 } else { 256 };
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) }
}

/// Operations per case and bytes per probe; Miri takes about a thousand times as long for each.
const OPS: usize = if cfg!(miri) { 12 } else { 80 };
const PROBE_BYTES: usize = if cfg!(miri) { 200 } else { 10_000 };

fn region(len_bytes: usize) -> Arc<Region> {
    Region::alloc(&RegionConfig::heap(len_bytes)).expect("heap memory")
}

/// What to do with a heap: take (length, log2 of the alignment), or give back the nth buffer.
#[derive(Debug, Clone)]
enum HeapOp {
    Alloc(usize, u32),
    Free(usize),
}

fn heap_op() -> impl Strategy<Value = HeapOp> {
    prop_oneof![
        3 => (1_usize..3000, 0_u32..13).prop_map(|(len, align)| HeapOp::Alloc(len, align)),
        2 => any::<usize>().prop_map(HeapOp::Free),
    ]
}

proptest! {
    #![proptest_config(config())]

    /// Buffers are aligned, zeroed, disjoint; a refusal is right; all memory comes back.
    #[test]
    fn heap_matches_a_set_of_units(ops in prop::collection::vec(heap_op(), 1..OPS)) {
        let (driver, _device) =
            local::pair(LocalConfig { bar_len_bytes: 64 << 10, ..LocalConfig::default() })
                .expect("valid");
        let dma = driver.dma();
        let maps: Vec<_> = [8192, 4096]
            .map(|len| dma.map(region(len), DmaAccess::ReadWrite).expect("mapped"))
            .into();
        let heap = DmaHeap::new(Arc::clone(&maps[0]));
        heap.grow(Arc::clone(&maps[1]));
        // The oracle: the free 64-byte units by I/O address.
        let mut free: BTreeSet<u64> = maps
            .iter()
            .flat_map(|m| (0..m.len_bytes() as u64 / 64).map(|unit| m.iova() + unit * 64))
            .collect();
        let total = free.len();
        let mut live: Vec<DmaBuf> = Vec::new();
        for op in ops {
            match op {
                HeapOp::Alloc(len, log_align) => {
                    let align = (1_u64 << log_align).max(64);
                    let units = |at: u64| (0..len.div_ceil(64) as u64).map(move |i| at + i * 64);
                    let fits = |at: u64| units(at).all(|unit| free.contains(&unit));
                    let first = |m: &Arc<ferrocx_bus::DmaMapping>| {
                        let end = m.iova() + m.len_bytes() as u64;
                        free.range(m.iova()..end).copied().find(|&at| at % align == 0 && fits(at))
                    };
                    let expected = maps.iter().find_map(first);
                    match heap.alloc(len, 1 << log_align) {
                        Ok(buf) => {
                            prop_assert_eq!(Some(buf.iova()), expected);
                            prop_assert_eq!(buf.len_bytes(), len);
                            let mut bytes = vec![1; len];
                            buf.copy_out(0, &mut bytes);
                            prop_assert!(bytes.iter().all(|&byte| byte == 0));
                            buf.fill(0xff);
                            for unit in units(buf.iova()) {
                                prop_assert!(free.remove(&unit));
                            }
                            live.push(buf);
                        }
                        Err(_) => prop_assert_eq!(expected, None),
                    }
                }
                HeapOp::Free(nth) if !live.is_empty() => {
                    let buf = live.swap_remove(nth % live.len());
                    let units = buf.len_bytes().div_ceil(64) as u64;
                    free.extend((0..units).map(|i| buf.iova() + i * 64));
                }
                HeapOp::Free(_) => {}
            }
            prop_assert_eq!(heap.free_bytes(), free.len() * 64);
        }
        live.clear();
        prop_assert_eq!(heap.free_bytes(), total * 64);
        // Free neighbours were merged: each mapping is one run again.
        prop_assert!(heap.alloc(8192, 64).is_ok());
        prop_assert!(heap.alloc(4096, 64).is_ok());
    }

    /// Ranges are inside what was given, placed as asked, disjoint, avoid one address, and merge
    /// again.
    #[test]
    fn iova_allocator_matches_a_set_of_pages(
        ops in prop::collection::vec((any::<bool>(), 1_u64..6, 0_u32..4, any::<usize>()), 1..OPS),
        seed in any::<u64>(),
        guard in 0_u64..2,
    ) {
        let (page, guard) = (4096_u64, guard * 4096);
        let ranges = [0x10_000..=0x2f_fff, 0x40_000..=0x4f_fff, 0x50_000..=0x57_fff];
        let mut allocator = IovaAllocator::new(&ranges, guard, seed);
        let mut free: BTreeSet<u64> =
            ranges.iter().flat_map(|range| range.clone().step_by(4096)).collect();
        let total = free.clone();
        let mut live: Vec<(u64, u64)> = Vec::new();
        for (is_alloc, pages, log_align, nth) in ops {
            if is_alloc {
                let (len, align_bytes) = (pages * page, page << log_align);
                let avoid = nth as u64 % 0x58 * page;
                let phase = nth as u64 / 0x58 % 64 * page % align_bytes;
                let place = IovaPlace { align_bytes, phase };
                let is_placed = |at: u64| at % align_bytes == place.phase;
                let all = |at: u64| {
                    (0..pages + guard / page).all(|i| free.contains(&(at + i * page)))
                };
                match allocator.alloc(len, place, avoid) {
                    Ok(at) => {
                        prop_assert!(is_placed(at) && at != avoid && all(at));
                        for i in 0..pages + guard / page {
                            free.remove(&(at + i * page));
                        }
                        live.push((at, len));
                    }
                    Err(_) => {
                        let fits = free.iter().filter(|&&at| is_placed(at) && all(at));
                        prop_assert_eq!(fits.filter(|&&at| at != avoid).count(), 0);
                    }
                }
            } else if !live.is_empty() {
                let (at, len) = live.swap_remove(nth % live.len());
                allocator.free(at, len);
                free.extend((0..(len + guard) / page).map(|i| at + i * page));
            }
        }
        for (at, len) in live {
            allocator.free(at, len);
            free.extend((0..(len + guard) / page).map(|i| at + i * page));
        }
        prop_assert_eq!(&free, &total);
        // All of the adjacent ranges is one run again.
        prop_assert!(allocator.alloc(0x20_000 - guard, IovaPlace::aligned(page), 0).is_ok());
        prop_assert!(allocator.alloc(0x18_000 - guard, IovaPlace::aligned(page), 0).is_ok());
    }

    /// The device reaches exactly what is mapped, with the right bytes and rights.
    #[test]
    fn iova_map_matches_a_table_of_pages(
        ops in prop::collection::vec((0_u64..24, 1_u64..4, 0_u8..3, any::<bool>()), 1..OPS),
        probes in prop::collection::vec((0_u64..26 * 4096, 0_usize..PROBE_BYTES), 1..20),
    ) {
        let (_driver, device) =
            local::pair(LocalConfig { bar_len_bytes: 64 << 10, ..LocalConfig::default() })
                .expect("valid");
        let base = 0x7000_0000_u64;
        // The oracle: page -> (start of its mapping, pages of it, access, marker byte).
        let mut table: BTreeMap<u64, (u64, u64, DmaAccess, u8)> = BTreeMap::new();
        for (n, (page, pages, access, is_map)) in ops.into_iter().enumerate() {
            let (iova, len) = (base + page * 4096, pages * 4096);
            if is_map {
                let access =
                    [DmaAccess::Read, DmaAccess::Write, DmaAccess::ReadWrite][usize::from(access)];
                let memory = region(len.try_into().expect("small"));
                let mark = u8::try_from(n + 1).expect("few operations");
                memory.fill(0, memory.len_bytes(), mark).expect("in range");
                let overlaps = (page..page + pages).any(|page| table.contains_key(&page));
                prop_assert_eq!(device.dma_map(iova, memory, access).is_err(), overlaps);
                if !overlaps {
                    table.extend((page..page + pages).map(|at| (at, (page, pages, access, mark))));
                }
            } else {
                let exact = table.get(&page).is_some_and(|at| (at.0, at.1) == (page, pages));
                prop_assert_eq!(device.dma_unmap(iova, len).is_ok(), exact);
                if exact {
                    table.retain(|_, entry| entry.0 != page);
                }
            }
        }
        let memory = device.memory();
        for (offset, len) in probes {
            let entries: Option<Vec<_>> = (offset..offset + len as u64)
                .map(|at| table.get(&(at / 4096)).copied())
                .collect();
            let all = |can: fn(DmaAccess) -> bool| {
                entries.as_ref().is_some_and(|e| e.iter().all(|entry| can(entry.2)))
            };
            let mut bytes = vec![0; len];
            let read = memory.read(base + offset, &mut bytes);
            prop_assert_eq!(read.is_ok(), all(DmaAccess::can_read));
            prop_assert_eq!(memory.is_mapped(base + offset, len, true), all(DmaAccess::can_write));
            if let (Ok(()), Some(entries)) = (read, entries) {
                prop_assert!(bytes.iter().zip(entries).all(|(&byte, entry)| byte == entry.3));
            }
        }
    }
}

#[test]
fn one_range_is_used_up_and_comes_back() {
    let mut allocator = IovaAllocator::new(std::slice::from_ref(&(0x1000..=0x2fff)), 0, 5);
    let a = allocator.alloc(0x1000, IovaPlace::aligned(0x1000), 0).expect("room");
    let b = allocator.alloc(0x1000, IovaPlace::aligned(0x1000), 0).expect("room");
    assert_eq!(a.min(b), 0x1000);
    assert_eq!(a.max(b), 0x2000);
    assert!(allocator.alloc(1, IovaPlace::aligned(1), 0).is_err());
    allocator.free(a, 0x1000);
    assert!(allocator.alloc(0x1000, IovaPlace::aligned(0x1000), a).is_err());
    assert_eq!(allocator.alloc(0x1000, IovaPlace::aligned(0x1000), 0).expect("room"), a);
}

#[test]
fn extreme_ranges_do_not_overflow() {
    let mut none = IovaAllocator::new(&[], 0, 1);
    assert!(none.alloc(4096, IovaPlace::aligned(4096), 0).is_err());
    for seed in 0..20 {
        let mut all = IovaAllocator::new(std::slice::from_ref(&(0..=u64::MAX)), 4096, seed);
        let at = all.alloc(1 << 30, IovaPlace::aligned(1 << 30), 0).expect("room");
        assert!(at != 0 && at.is_multiple_of(1 << 30));
        assert!(all.alloc(u64::MAX, IovaPlace::aligned(4096), 0).is_err());
    }
}

#[test]
#[should_panic(expected = "freed twice")]
fn freeing_twice_panics() {
    let mut allocator = IovaAllocator::new(std::slice::from_ref(&(0x1000..=0x8fff)), 0, 5);
    let at = allocator.alloc(0x1000, IovaPlace::aligned(0x1000), 0).expect("room");
    allocator.free(at, 0x1000);
    allocator.free(at, 0x1000);
}
