//! What the calling thread has allocated and not freed, as the system's allocator was asked for it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts for the thread that allocates. A test and its device live in one thread.
struct Counting;

thread_local! {
    static NOW: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    let now = NOW.get() + bytes;
    NOW.set(now);
    PEAK.set(PEAK.get().max(now));
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches thread-locals of
// constant initial values, which neither allocate nor need destructors.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: `ptr` came from this allocator, that is from the system's.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // Both are there while the content moves.
        count(new_size as i64);
        // SAFETY: as in `dealloc`, and the caller's promise about `new_size` is passed on.
        let new = unsafe { System.realloc(ptr, layout, new_size) };
        count(-(layout.size() as i64));
        new
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Measures the most bytes that the thread holds, beyond what it holds now.
pub(crate) struct Watch(i64);

impl Watch {
    pub(crate) fn start() -> Self {
        PEAK.set(NOW.get());
        Self(NOW.get())
    }

    /// The most bytes held since the start.
    pub(crate) fn peak(&self) -> u64 {
        (PEAK.get() - self.0).try_into().unwrap_or(0)
    }
}
