//! What the calling thread asks of the heap: allocations, bytes that it holds, and their peak.
//!
//! For tests and benches only. A program that uses anything of this crate has its allocator, which
//! counts and leaves the work to the system's; others are not touched.
//!
//! # What it does not do
//!
//! Threads are counted apart. Bytes that one allocates and another frees stand in the counts of
//! both; a library that is silent in its own thread may still be loud in another.
//!
//! ```
//! let before = ferrocx_heapcount::allocations();
//! drop(std::hint::black_box(Box::new(1)));
//! assert_eq!(ferrocx_heapcount::allocations() - before, 1);
//! ```
#![deny(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

#[derive(Debug)]
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static HELD: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

fn allocated(bytes: usize) {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    HELD.set(HELD.get() + bytes as i64);
    PEAK.set(PEAK.get().max(HELD.get()));
}

fn freed(bytes: usize) {
    HELD.set(HELD.get() - bytes as i64);
}

#[expect(unsafe_code, reason = "an allocator that counts must implement GlobalAlloc")]
// SAFETY: every call goes to the system's allocator unchanged; counting touches thread-locals of
// constant initial values, which neither allocate nor need destructors.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocated(layout.size());
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        freed(layout.size());
        // SAFETY: `ptr` came from this allocator, that is from the system's.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // Both are there while the content moves.
        allocated(new_size);
        // SAFETY: as in `dealloc`, and the caller's promise about `new_size` is passed on.
        let new = unsafe { System.realloc(ptr, layout, new_size) };
        freed(layout.size());
        new
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of the calling thread so far: a piece that grows or moves is another one.
#[must_use]
pub fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Bytes that the calling thread has allocated, less those that it has freed.
#[must_use]
pub fn held_bytes() -> i64 {
    HELD.get()
}

/// Measures the most bytes that the calling thread holds beyond what it held at the start. There is
/// one at a time: a new one starts the others' peaks again.
#[derive(Debug)]
pub struct Watch(i64);

impl Watch {
    /// Starts to measure.
    #[must_use]
    pub fn start() -> Self {
        PEAK.set(HELD.get());
        Self(HELD.get())
    }

    /// The most bytes held since the start.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        (PEAK.get() - self.0).try_into().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[test]
    fn pieces_bytes_and_peak_are_counted_in_their_own_thread() {
        let (pieces, bytes, watch) = (allocations(), held_bytes(), Watch::start());
        let kept = black_box(vec![1_u8; 100]);
        drop(black_box(vec![2_u8; 1000]));
        assert_eq!((allocations() - pieces, held_bytes() - bytes), (2, 100));
        assert_eq!(watch.peak_bytes(), 1100);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let before = (allocations(), held_bytes());
                drop(black_box(Box::new(1)));
                (allocations() - before.0, held_bytes() - before.1)
            });
            assert_eq!(other.join().expect("it counts"), (1, 0));
        });
        drop(kept);
        let again = Watch::start();
        assert_eq!(again.peak_bytes(), 0);
    }

    #[test]
    fn a_piece_that_grows_is_there_twice_meanwhile() {
        let mut grows = Vec::<u8>::with_capacity(64);
        let (pieces, watch) = (allocations(), Watch::start());
        grows.reserve_exact(black_box(128));
        assert_eq!((allocations() - pieces, watch.peak_bytes()), (1, 128));
        drop(grows);
    }
}
