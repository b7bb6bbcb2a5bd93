//! 1,000 bring-ups and teardowns leave nothing behind. Alone in its process, because it counts file
//! descriptors.

mod common;

use common::Bench;
use ferrocx_model::NicConfig;

#[test]
fn a_thousand_cycles_leave_nothing_behind() {
    let bench = Bench::with(NicConfig { init_pages: 8, ..NicConfig::default() }, 3);
    let cycle = |cycle: usize| {
        let device = bench.device();
        device.close().unwrap_or_else(|error| panic!("cycle {cycle}: {error}"));
    };
    // The first ones let the allocator take what it keeps.
    (0..10).for_each(cycle);
    let before = held();
    (10..1010).for_each(cycle);
    bench.assert_clean();
    assert_eq!(bench.nic().state().objects.len(), 0);
    assert_eq!(bench.mappings(), 0, "mappings left");
    assert_eq!(held(), before, "file descriptors, threads, or mappings of the process left");
}

/// File descriptors, threads and memory mappings of this process.
fn held() -> (usize, usize, usize) {
    let entries = |path| std::fs::read_dir(path).map_or(0, Iterator::count);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    (entries("/proc/self/fd"), entries("/proc/self/task"), maps.lines().count())
}
