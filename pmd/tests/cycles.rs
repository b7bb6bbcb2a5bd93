//! 1,000 bring-ups and teardowns leave nothing behind. Alone in its process, because it counts file
//! descriptors.

mod common;

use common::Bench;
use ferrocx_model::NicConfig;

#[test]
fn a_thousand_cycles_leave_nothing_behind() {
    let bench = Bench::with(NicConfig { init_pages: 8, ..NicConfig::default() }, 3);
    let before = open_files();
    for cycle in 0..1000 {
        let device = bench.device();
        device.close().unwrap_or_else(|error| panic!("cycle {cycle}: {error}"));
    }
    bench.assert_clean();
    assert_eq!(bench.nic().state().objects.len(), 0);
    assert_eq!(bench.mappings(), 0, "mappings left");
    assert_eq!(open_files(), before, "file descriptors left");
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}
