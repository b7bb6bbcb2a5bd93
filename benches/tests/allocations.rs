//! No case allocates while it is measured; tick to trade not in two million ticks of all kinds, nor
//! when a session follows another.

#![expect(unsafe_code, reason = "an allocator that counts must implement GlobalAlloc")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use ferrocx_tick2trade::engine::{Engine, EngineConfig};
use ferrocx_tick2trade::feed::Source;
use ferrocx_tick2trade::orders::OrdersConfig;
use ferrocx_tick2trade::proto::itch::StockDirectory;
use ferrocx_tick2trade::proto::{Text, mold};
use ferrocx_tick2trade::strategy::{Outbox, Taker};
use zerocopy::IntoBytes;

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
/// Of each other kind of message.
const OTHER_TICKS: u64 = 100_000;
/// Runs of every other case, and before counting starts.
const RUNS: u64 = 20;

/// Sends nothing.
struct Nowhere;

impl Outbox for Nowhere {
    fn send(&mut self, _: &[u8]) -> bool {
        true
    }
}

#[test]
fn a_day_that_follows_another_allocates_nothing() {
    let symbols = vec![Text::new("AAPL").unwrap()];
    let orders = OrdersConfig { symbols, ..OrdersConfig::default() };
    let config = EngineConfig { orders, ..EngineConfig::default() };
    let mut engine = Engine::new(config, Taker::new(0, 1, 1)).unwrap();
    let directory = StockDirectory::common(1, Text::new("AAPL").unwrap(), 0);
    let mut bytes = [0; 128];
    for day in 0..10 {
        let session = Text::number(day).unwrap();
        let mut packet = mold::Builder::new(&mut bytes, session, 1).unwrap();
        assert!(packet.push(directory.as_bytes()));
        let packet = packet.finish();
        let end = mold::end_of_session(session, 2);
        let before = ALLOCATIONS.with(Cell::get);
        engine.feed(Source::A, packet, day, &mut Nowhere);
        engine.feed(Source::A, end.as_bytes(), day, &mut Nowhere);
        assert_eq!(ALLOCATIONS.with(Cell::get), before, "day {day}");
        assert_eq!((engine.arbiter().session(), engine.books().iter().len()), (Some(session), 1));
    }
}

#[test]
fn what_is_measured_allocates_nothing() {
    for case in ferrocx_benches::cases() {
        let mut work = (case.make)();
        let runs = match case.name {
            "tick_to_doorbell" => TICKS.div_ceil(case.elements),
            name if name.starts_with("tick_") => OTHER_TICKS.div_ceil(case.elements),
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
