//! Regions of every backing. Those that need hugepages skip aloud where none are free.

use std::sync::Arc;

use crate::{AccessError, Backing, MempoolError, PageSize, Region, RegionConfig};

fn heap(len: usize) -> Arc<Region> {
    Region::alloc(&RegionConfig::heap(len)).unwrap()
}

#[test]
fn a_region_is_zero_page_aligned_and_whole_pages_long() {
    for (len, mapped) in [(1, 4096), (4095, 4096), (4096, 4096), (4097, 8192)] {
        let region = heap(len);
        assert_eq!(region.len_bytes(), mapped);
        assert_eq!(region.as_ptr() as usize % 4096, 0);
        assert_eq!(region.page_size_bytes(), 4096);
        assert_eq!(region.backing(), Backing::Heap);
        assert!(region.fd().unwrap().is_none() && region.warnings().is_empty());
        let mut bytes = vec![0xa5; mapped];
        region.copy_out(0, &mut bytes).unwrap();
        assert!(bytes == vec![0; mapped]);
    }
}

#[test]
fn a_large_region_is_zero_page_aligned_and_its_ends_can_be_used() {
    // The last of another way, the first of this one, and one that is no whole pages.
    for len in [(1 << 20) - 4096, 1 << 20, (1 << 20) + 1] {
        let region = heap(len);
        let mapped = len.next_multiple_of(4096);
        assert_eq!((region.len_bytes(), region.as_ptr() as usize % 4096), (mapped, 0));
        let ends = [0, mapped - 64];
        for at in ends {
            let mut bytes = [0xa5; 64];
            region.copy_out(at, &mut bytes).unwrap();
            assert_eq!(bytes, [0; 64]);
            region.copy_in(at, &[0x5a; 64]).unwrap();
            region.copy_out(at, &mut bytes).unwrap();
            assert_eq!(bytes, [0x5a; 64]);
        }
    }
}

#[test]
fn lengths_out_of_range_are_refused() {
    for len in [0, (1 << 40) + 1, usize::MAX] {
        let err = Region::alloc(&RegionConfig::heap(len)).unwrap_err();
        assert!(matches!(err, MempoolError::RegionLength { len_bytes, .. } if len_bytes == len));
    }
}

#[test]
fn copies_of_every_alignment_touch_their_bytes_and_no_other() {
    let region = heap(4096);
    let src: Vec<u8> = (1..=40).collect();
    // Miri is slow, and alignment repeats after 8.
    let starts = if cfg!(miri) { 6..9 } else { 0..17 };
    for start in starts {
        for len in 0..=src.len() {
            region.fill(0, 80, 0xa5).unwrap();
            region.copy_in(start, &src[..len]).unwrap();
            let mut all = [0; 80];
            region.copy_out(0, &mut all).unwrap();
            assert_eq!(all[..start], [0xa5; 80][..start], "before {start}+{len}");
            assert_eq!(all[start..start + len], src[..len]);
            assert_eq!(all[start + len..], [0xa5; 80][start + len..], "after {start}+{len}");
            let mut part = vec![0; len];
            region.copy_out(start, &mut part).unwrap();
            assert_eq!(part, src[..len]);
        }
    }
}

#[test]
fn fill_writes_its_range_only() {
    let region = heap(4096);
    region.fill(5, 131, 0x77).unwrap();
    let mut all = [0; 200];
    region.copy_out(0, &mut all).unwrap();
    for (i, byte) in all.iter().enumerate() {
        assert_eq!(*byte, if (5..136).contains(&i) { 0x77 } else { 0 }, "{i}");
    }
}

/// Miri refuses unordered accesses of different widths to the same bytes, which safe code could
/// make when aligned parts of a copy went by words.
#[test]
fn unordered_copies_of_any_alignment_and_bytes_are_defined() {
    let region = heap(4096);
    let rounds = if cfg!(miri) { 8 } else { 20_000 };
    std::thread::scope(|scope| {
        scope.spawn(|| (0..rounds).for_each(|_| region.copy_in(0, &[1; 24]).unwrap()));
        scope.spawn(|| (0..rounds).for_each(|_| region.copy_in(3, &[2; 11]).unwrap()));
        scope.spawn(|| (0..rounds).for_each(|_| region.store_release_u8(9, 3).unwrap()));
        for _ in 0..rounds {
            let mut seen = [0; 9];
            region.copy_out(8, &mut seen).unwrap();
            assert!(seen.iter().all(|byte| *byte <= 3) && seen[8] <= 1, "{seen:?}");
        }
    });
    let mut bytes = [0; 24];
    region.copy_out(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| (1..=3).contains(byte)), "{bytes:?}");
}

#[test]
fn the_last_bytes_are_reachable_and_the_next_are_not() {
    let region = heap(4096);
    assert_eq!(region.copy_in(4095, &[1]), Ok(()));
    assert_eq!(region.copy_in(4096, &[]), Ok(()));
    assert_eq!(region.copy_in(4096, &[1]), Err(AccessError::OutOfRange));
    assert_eq!(region.copy_in(4095, &[1, 2]), Err(AccessError::OutOfRange));
    assert_eq!(region.copy_out(usize::MAX, &mut [0; 2]), Err(AccessError::OutOfRange));
    assert_eq!(region.fill(0, 4097, 0), Err(AccessError::OutOfRange));
    assert_eq!(region.fill(0, 4096, 0), Ok(()));
    assert_eq!(region.load_acquire_u8(4095), Ok(0));
    assert_eq!(region.load_acquire_u8(4096), Err(AccessError::OutOfRange));
}

#[test]
fn a_range_has_one_owner_at_a_time() {
    let region = heap(8192);
    assert!(region.claim(0..4096));
    assert!(!region.claim(4095..4097));
    assert!(!region.claim(0..1));
    assert!(region.claim(4096..8192));
    region.unclaim(&(0..4096));
    assert!(region.claim(1..2));
}

#[test]
fn raw_use_and_pools_keep_each_other_off() {
    let region = heap(8192);
    assert!(region.claim(0..64));
    assert!(matches!(region.use_raw(), Err(MempoolError::RegionInUse)));
    region.unclaim(&(0..64));
    let (first, second) = (region.use_raw().unwrap(), region.use_raw().unwrap());
    drop(first);
    assert!(!region.claim(4096..8192), "the second use goes on");
    drop(second);
    assert!(region.claim(4096..8192));
}

#[test]
fn a_region_is_copied_or_borrowed_and_never_both() {
    let region = heap(8192);
    assert!(region.claim(0..64));
    let mut byte = [0xa5];
    // The bytes of the pool and all others, by every way there is.
    for offset in [0, 4096] {
        assert_eq!(region.copy_in(offset, &[1]), Err(AccessError::Pooled));
        assert_eq!(region.copy_out(offset, &mut byte), Err(AccessError::Pooled));
        assert_eq!(region.fill(offset, 1, 1), Err(AccessError::Pooled));
        assert_eq!(region.load_acquire_u8(offset), Err(AccessError::Pooled));
        assert_eq!(region.store_release_u8(offset, 1), Err(AccessError::Pooled));
    }
    assert_eq!(byte, [0xa5]);
    region.unclaim(&(0..64));
    assert_eq!(region.load_acquire_u8(0), Ok(0), "nothing was written");
    assert!(!region.claim(0..64), "copied from");
    assert!(region.use_raw().is_ok());
}

#[test]
fn heap_memory_refuses_what_it_cannot_do() {
    let base = RegionConfig::heap(4096);
    for config in [
        RegionConfig { shared: true, ..base.clone() },
        RegionConfig { numa_node: Some(0), ..base.clone() },
        RegionConfig { lock: true, ..base.clone() },
        RegionConfig { page: PageSize::Huge2M, ..base.clone() },
    ] {
        let err = Region::alloc(&config).unwrap_err();
        assert!(matches!(err, MempoolError::Unsupported { .. }), "{config:?}: {err}");
    }
}

#[cfg(not(miri))]
mod mapped {
    use std::os::fd::AsFd;

    use super::*;
    use crate::{RegionWarning, hugepage, numa};

    /// Whether `need` 2 MiB pages are free; says so where not.
    fn huge_pages(need: u64) -> bool {
        let free = hugepage::require(hugepage::HUGE_2M, need, None).is_ok();
        if !free {
            println!("skipped: no free 2 MiB hugepages");
        }
        free
    }

    /// A region of so many 2 MiB hugepages, where there are some. Another test, or another process,
    /// may have taken what was free a moment ago.
    fn huge_region(need: u64, config: &RegionConfig) -> Option<Arc<Region>> {
        for _ in 0..100 {
            if !huge_pages(need) {
                return None;
            }
            match Region::alloc(config) {
                Ok(region) => return Some(region),
                Err(error) => println!("again: {error}"),
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("hugepages are free, and {config:?} gets none");
    }

    /// Held by tests that map many regions, and by those that count what there is.
    static MANY: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn hugepage_rs_refuses_what_it_cannot_do() {
        let base = RegionConfig { len_bytes: 1, ..RegionConfig::default() };
        let base = RegionConfig { backing: Backing::HugepageRs, ..base };
        for config in [
            RegionConfig { shared: true, ..base.clone() },
            RegionConfig { numa_node: Some(0), ..base.clone() },
            RegionConfig { page: PageSize::Base4K, ..base.clone() },
        ] {
            let err = Region::alloc(&config).unwrap_err();
            assert!(matches!(err, MempoolError::Unsupported { .. }), "{config:?}: {err}");
        }
    }

    #[test]
    fn small_pages_that_were_wanted_warn_of_nothing() {
        let config =
            RegionConfig { len_bytes: 5000, page: PageSize::Base4K, ..RegionConfig::default() };
        let region = Region::alloc(&config).unwrap();
        assert_eq!((region.backing(), region.len_bytes()), (Backing::Memfd, 8192));
        assert!(region.warnings().is_empty());
        region.copy_in(8191, &[9]).unwrap();
    }

    /// Whoever counted free hugepages and lost them to another takes small pages.
    #[test]
    #[cfg_attr(miri, ignore = "maps memory")]
    fn auto_never_fails_when_others_take_the_hugepages() {
        let config = RegionConfig { len_bytes: 2 << 20, ..RegionConfig::default() };
        let take = || {
            let regions = (0..8).map(|_| Region::alloc(&config)).collect::<Result<Vec<_>, _>>();
            regions.map(drop)
        };
        let _alone = MANY.lock();
        std::thread::scope(|scope| {
            let takers: Vec<_> = (0..64).map(|_| scope.spawn(take)).collect();
            for taker in takers {
                taker.join().expect("no panic").expect("hugepages or small pages");
            }
        });
    }

    #[test]
    fn auto_without_enough_hugepages_warns() {
        // 64 GiB of address space would be too much to touch, so ask for just more 2 MiB pages
        // than there are, where that is little: how many are free changes with what else runs.
        let Some((size, _)) = hugepage::default_size_and_free() else {
            println!("skipped: this kernel has no hugepages");
            return;
        };
        let pool = |file: &str| -> u64 {
            let path = hugepage::pool_dir(size, None).join(file);
            std::fs::read_to_string(path).ok().and_then(|it| it.trim().parse().ok()).unwrap_or(0)
        };
        let all = pool("nr_hugepages") + pool("nr_overcommit_hugepages");
        if size != hugepage::HUGE_2M || all > 128 {
            println!("skipped: {all} hugepages of {size} bytes are too many to outdo");
            return;
        }
        let len_bytes = (all as usize + 32) * size;
        let region = Region::alloc(&RegionConfig { len_bytes, ..RegionConfig::default() }).unwrap();
        assert_eq!(region.page_size_bytes(), 4096);
        let [RegionWarning::SmallPages { reason }] = region.warnings() else {
            panic!("{:?}", region.warnings())
        };
        assert!(reason.contains("nr_hugepages"), "{reason}");
    }

    #[test]
    fn two_mebibyte_pages_come_from_hugepage_rs() {
        let config = RegionConfig {
            len_bytes: hugepage::HUGE_2M + 1,
            page: PageSize::Huge2M,
            lock: true,
            ..RegionConfig::default()
        };
        let Some(region) = huge_region(2, &config) else { return };
        assert_eq!(region.backing(), Backing::HugepageRs);
        assert_eq!((region.len_bytes(), region.page_size_bytes()), (4 << 20, 2 << 20));
        assert_eq!(region.as_ptr() as usize % (2 << 20), 0);
        assert!(region.fd().unwrap().is_none() && region.warnings().is_empty());
        region.copy_in((4 << 20) - 3, &[1, 2, 3]).unwrap();
    }

    #[test]
    fn a_shared_region_is_seen_through_its_descriptor_and_cannot_shrink() {
        let mut config = RegionConfig { len_bytes: 4096, shared: true, ..RegionConfig::default() };
        for page in [PageSize::Base4K, PageSize::Huge2M] {
            config.page = page;
            let region = match page {
                PageSize::Huge2M => huge_region(1, &config),
                _ => Some(Region::alloc(&config).unwrap()),
            };
            let Some(region) = region else { continue };
            let fd = region.fd().unwrap().unwrap();
            let other = memmap2::MmapRaw::map_raw(&fd).unwrap();
            assert_eq!(other.len(), region.len_bytes());
            region.copy_in(100, b"seen").unwrap();
            let mut seen = [0; 4];
            rustix::io::pread(fd, &mut seen, 100).unwrap();
            assert_eq!(&seen, b"seen");
            assert!(rustix::fs::ftruncate(fd.as_fd(), 0).is_err());
        }
    }

    #[test]
    fn packets_are_in_no_memory_that_can_be_mapped_once_more() {
        let config = RegionConfig {
            len_bytes: 1 << 20,
            page: PageSize::Base4K,
            shared: true,
            ..RegionConfig::default()
        };
        let pool_config = crate::PoolConfig { count: 64, ..crate::PoolConfig::default() };
        let region = Region::alloc(&config).unwrap();
        let pool = crate::Pool::with_region(&pool_config, &region, 0).unwrap();
        assert!(matches!(region.fd(), Err(AccessError::Pooled)));
        drop(pool);
        let fd = region.fd().unwrap().expect("it is shared");
        let again = Region::map_file(&fd, 0, region.len_bytes()).unwrap();
        let refused = crate::Pool::with_region(&pool_config, &region, 0);
        assert!(refused.is_err(), "somebody may write there");
        again.copy_in(0, b"through the file").unwrap();
        let mut seen = [0; 16];
        region.copy_out(0, &mut seen).unwrap();
        assert_eq!(&seen, b"through the file");
    }

    #[test]
    fn a_bound_region_lies_on_its_node() {
        let config = RegionConfig {
            len_bytes: 8192,
            page: PageSize::Base4K,
            numa_node: Some(0),
            ..RegionConfig::default()
        };
        let region = match Region::alloc(&config) {
            Err(MempoolError::Os { call: "mbind", source, .. }) => {
                println!("skipped: mbind: {source}");
                return;
            }
            other => other.unwrap(),
        };
        assert_eq!(region.numa_node(), Some(0));
        match numa::node_of(region.as_ptr()) {
            Ok(node) => assert_eq!(node, 0),
            Err(err) => println!("skipped: get_mempolicy: {err}"),
        }
    }

    #[test]
    fn memory_of_a_node_that_has_none_is_of_any_node_and_says_so() {
        let config =
            RegionConfig { len_bytes: 8192, page: PageSize::Base4K, ..RegionConfig::default() };
        let region = Region::alloc_near(&config, Some(999)).unwrap();
        assert_eq!(region.numa_node(), None, "there is no such node here");
        assert!(matches!(region.warnings(), [RegionWarning::Far { node: 999, .. }]));
        let sentence = region.warnings()[0].to_string();
        assert!(sentence.starts_with("not of memory node 999: "), "{sentence}");
        let unknown = Region::alloc_near(&config, None).unwrap();
        assert_eq!((unknown.numa_node(), unknown.warnings()), (None, &[][..]));
        let asked_for = RegionConfig { numa_node: Some(999), ..config.clone() };
        let refused = Region::alloc_near(&asked_for, Some(0));
        assert!(refused.is_err(), "what is asked for is had or refused");
        if let Ok(near) = Region::alloc(&RegionConfig { numa_node: Some(0), ..config.clone() }) {
            let found = Region::alloc_near(&config, Some(0)).unwrap();
            assert_eq!((found.numa_node(), found.warnings()), (near.numa_node(), &[][..]));
        }
    }

    #[test]
    fn gigabyte_pages_are_had_or_refused_with_the_way_out() {
        let config =
            RegionConfig { len_bytes: 1, page: PageSize::Huge1G, ..RegionConfig::default() };
        match Region::alloc(&config) {
            Ok(region) => assert_eq!(region.len_bytes(), 1 << 30),
            Err(err) => {
                let text = err.to_string();
                assert!(text.contains("1048576") && text.contains("hugepagesz=1048576K"), "{text}");
                println!("skipped: 1 GiB pages: {text}");
            }
        }
    }

    #[test]
    fn more_than_may_be_locked_is_refused_and_names_the_limit() {
        let len_bytes = 64 << 20;
        let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
        let config = RegionConfig {
            len_bytes,
            page: PageSize::Base4K,
            lock: true,
            ..RegionConfig::default()
        };
        match Region::alloc(&config) {
            Ok(_) => println!("skipped: may lock {len_bytes} bytes (limit {limit:?}, or root)"),
            Err(err) => {
                let text = err.to_string();
                assert!(matches!(err, MempoolError::Lock { .. }), "{text}");
                assert!(text.contains("67108864") && text.contains("ulimit -l"), "{text}");
            }
        }
    }

    #[test]
    fn regions_leave_no_mapping_and_no_descriptor_behind() {
        let config = RegionConfig {
            len_bytes: 123 * 4096,
            page: PageSize::Base4K,
            ..RegionConfig::default()
        };
        let _alone = MANY.lock();
        // Other tests map regions at the same time, so only a leak per round shows.
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = open();
        for _ in 0..200 {
            drop(Region::alloc(&config).unwrap());
        }
        assert!(open() < before + 100);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(maps.matches("ferrocx-region").count() < 100);
    }
}
