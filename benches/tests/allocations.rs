//! No case allocates while it is measured; tick to trade not in a million ticks.

#![expect(unsafe_code, reason = "an allocator that counts must implement GlobalAlloc")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts what the calling thread allocates.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches a thread-local of
// constant initial value, which neither allocates nor needs a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `alloc` above, that is from the system's allocator.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Ticks that nothing is allocated in.
const TICKS: u64 = 1_000_000;
/// Runs of every other case, and before counting starts.
const RUNS: u64 = 20;

#[test]
fn what_is_measured_allocates_nothing() {
    for case in ferrocx_benches::cases() {
        let mut work = (case.make)();
        let runs = match case.name {
            "tick_to_doorbell" => TICKS.div_ceil(case.elements),
            _ => RUNS,
        };
        let mut allocations = 0;
        for run in 0..RUNS + runs {
            work.prepare();
            let before = ALLOCATIONS.with(Cell::get);
            work.run();
            if run >= RUNS {
                allocations += ALLOCATIONS.with(Cell::get) - before;
            }
        }
        work.verify();
        assert_eq!(allocations, 0, "{} in {runs} runs", case.name);
    }
}
