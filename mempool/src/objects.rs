//! The machinery of a pool: an array of objects, the shared list of the free ones, the caches that
//! cores keep in front of it, and the counts.
//!
//! A pool outlives its handles for as long as objects are out. When the last handle goes, the list
//! is closed; whoever brings the last object home ends the pool. So an object needs no reference
//! count of its own on the pool, and can still be freed anywhere and at any time.
#![expect(unsafe_code, reason = "raw pointers to the objects of the array")]

use std::{
    mem::MaybeUninit,
    ptr::{self, NonNull},
    slice,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64 as Counter, Ordering::Relaxed},
    },
};

use crossbeam_utils::CachePadded;

use crate::{
    freelist::{FreeList, Put},
    stats::PoolStats,
    sync::{AtomicUsize, Ordering, fence},
};

/// Counts of one cache, written by its owner only and read by anybody.
#[derive(Debug, Default)]
pub(crate) struct CacheCounts {
    /// Objects in the cache.
    len: Counter,
    /// Gets that found neither cache nor list full enough.
    exhausted: Counter,
}

/// The shared half of a pool of `T`.
pub(crate) struct Core<T> {
    name: Box<str>,
    items: NonNull<T>,
    free: FreeList,
    handles: CachePadded<AtomicUsize>,
    caches: Mutex<Vec<Arc<CachePadded<CacheCounts>>>>,
    /// Of gets without a cache, and of caches that are gone.
    exhausted: Counter,
    double_frees: Counter,
    /// Per object, whether it is out: for the check of double frees in debug builds.
    out: Box<[AtomicBool]>,
}

// SAFETY: the items are reached only by whoever took them from the list, one holder at a time,
// so `T: Send` is enough; all other fields are Send and Sync.
unsafe impl<T: Send> Send for Core<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Core<T> {}

impl<T> Core<T> {
    /// `count` objects, made by `make` from their index and address. One handle.
    pub(crate) fn new(name: &str, count: u32, mut make: impl FnMut(u32) -> T) -> Self {
        let items: Box<[T]> = (0..count).map(&mut make).collect();
        // SAFETY: a Box is not null.
        let items = unsafe { NonNull::new_unchecked(Box::into_raw(items).cast::<T>()) };
        let checked = if cfg!(debug_assertions) { count } else { 0 };
        Self {
            name: name.into(),
            items,
            free: FreeList::new(count),
            handles: CachePadded::new(AtomicUsize::new(1)),
            caches: Mutex::default(),
            exhausted: Counter::new(0),
            double_frees: Counter::new(0),
            out: (0..checked).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn count(&self) -> u32 {
        self.free.count()
    }

    /// Objects in the shared list.
    pub(crate) fn shared_len(&self) -> u32 {
        self.free.len()
    }

    /// The index of an object of this pool.
    #[inline]
    pub(crate) fn index_of(&self, item: NonNull<T>) -> u32 {
        let bytes = item.as_ptr() as usize - self.items.as_ptr() as usize;
        (bytes / size_of::<T>()) as u32
    }

    /// Takes as many objects as `out` has places from the shared list, or none.
    pub(crate) fn get_shared(&self, out: &mut [MaybeUninit<NonNull<T>>]) -> bool {
        let items = self.items;
        // SAFETY: the list holds indices below `count` only.
        self.free.get_bulk(out, |index| unsafe { items.add(index as usize) })
    }

    /// Takes one object without a cache, and counts if there is none.
    pub(crate) fn get(&self) -> Option<NonNull<T>> {
        let mut taken = [MaybeUninit::uninit()];
        if self.get_shared(&mut taken) {
            // SAFETY: a get that succeeds fills all of `taken`.
            let item = unsafe { taken[0].assume_init() };
            self.mark_out(item);
            Some(item)
        } else {
            self.exhausted.fetch_add(1, Relaxed);
            None
        }
    }

    /// Gives objects back to the shared list. `true` if the pool is to be ended by the caller,
    /// with [`Core::wait_home`] first.
    ///
    /// # Safety
    /// The objects are this pool's and the caller's, who does not use them again. A handle exists,
    /// or all handles are gone for good.
    pub(crate) unsafe fn put_shared(this: *const Self, items: &[NonNull<T>]) -> bool {
        // SAFETY: live (caller); after the call to `put` only if `Overfull`, when nothing ended.
        let base = unsafe { (*this).items.as_ptr() as usize };
        let indices = items.iter().map(|i| ((i.as_ptr() as usize - base) / size_of::<T>()) as u32);
        // SAFETY: as the caller promises.
        match unsafe { FreeList::put(&raw const (*this).free, indices) } {
            Put::Done => false,
            Put::LastHome => true,
            Put::Overfull => {
                // SAFETY: the objects did not come home, so the pool is not ended.
                unsafe { (*this).double_frees.fetch_add(items.len() as u64, Relaxed) };
                false
            }
        }
    }

    /// Adds a handle.
    pub(crate) fn add_handle(&self) {
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a handle. `true` if the pool is to be ended by the caller, as for
    /// [`Core::put_shared`].
    ///
    /// # Safety
    /// `this` is live, and the caller gives up one handle.
    pub(crate) unsafe fn drop_handle(this: *const Self) -> bool {
        // SAFETY: the handle of the caller keeps it alive until this decrement. After it, another
        // thread may be the last, so the pool is used again only by the one that saw 1.
        unsafe {
            if (*this).handles.fetch_sub(1, Ordering::Release) != 1 {
                return false;
            }
            fence(Ordering::Acquire);
            FreeList::close(&raw const (*this).free)
        }
    }

    pub(crate) fn wait_home(&self) {
        self.free.wait_home();
    }

    /// Notes that an object leaves the pool.
    #[inline]
    pub(crate) fn mark_out(&self, item: NonNull<T>) {
        if cfg!(debug_assertions) {
            self.out[self.index_of(item) as usize].store(true, Relaxed);
        }
    }

    /// Notes that an object comes home.
    ///
    /// # Panics
    /// In debug builds, if it was home already.
    #[inline]
    pub(crate) fn mark_home(&self, item: NonNull<T>) {
        if cfg!(debug_assertions) {
            let index = self.index_of(item);
            let was_out = self.out[index as usize].swap(false, Relaxed);
            // While unwinding, a second panic would abort before the first is reported.
            assert!(
                was_out || std::thread::panicking(),
                "double free: object {index} of pool {} is free already",
                self.name
            );
        }
    }

    pub(crate) fn stats(&self) -> PoolStats {
        let caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = |field: fn(&CacheCounts) -> &Counter| -> u64 {
            caches.iter().map(|c| field(c).load(Relaxed)).sum()
        };
        let (count, shared, cached) =
            (u64::from(self.count()), u64::from(self.free.len()), sum(|c| &c.len));
        PoolStats {
            count,
            in_use: count.saturating_sub(shared + cached),
            cached,
            shared,
            exhausted: self.exhausted.load(Relaxed) + sum(|c| &c.exhausted),
            double_frees: self.double_frees.load(Relaxed),
        }
    }
}

impl<T> Drop for Core<T> {
    fn drop(&mut self) {
        let items = NonNull::slice_from_raw_parts(self.items, self.count() as usize);
        // SAFETY: made by `Box::into_raw` in `new`. The pool ends only when all objects are home.
        drop(unsafe { Box::from_raw(items.as_ptr()) });
    }
}

/// Eight pointers in a cache line of their own: bulks of eight and more then move by whole lines.
#[repr(align(64))]
struct Line<T>(#[expect(dead_code, reason = "reached by address")] [MaybeUninit<NonNull<T>>; 8]);

/// A core's own stack of free objects. Needs no atomics but for publishing its length.
pub(crate) struct Stack<T> {
    lines: Box<[MaybeUninit<Line<T>>]>,
    /// Objects that it holds at most.
    size: usize,
    len: usize,
    counts: Arc<CachePadded<CacheCounts>>,
}

// SAFETY: the objects in the stack belong to it, so `T: Send` is enough.
unsafe impl<T: Send> Send for Stack<T> {}

impl<T> Stack<T> {
    /// An empty stack for `size` objects, known to the pool's statistics.
    pub(crate) fn new(core: &Core<T>, size: usize) -> Self {
        let counts = Arc::new(CachePadded::new(CacheCounts::default()));
        core.caches.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&counts));
        Self { lines: Box::new_uninit_slice(size.div_ceil(8)), size, len: 0, counts }
    }

    /// All slots. Those below `len` hold objects.
    #[inline]
    fn slots(&mut self) -> &mut [MaybeUninit<NonNull<T>>] {
        // SAFETY: `size` slots lie in the lines, which have no bytes besides; a slot may be
        // uninitialised.
        unsafe { slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.size) }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn set_len(&mut self, len: usize) {
        self.len = len;
        self.counts.len.store(len as u64, Relaxed);
    }

    /// Takes `out.len()` objects, or none, which counts as exhausted.
    #[inline]
    pub(crate) fn get_bulk(&mut self, core: &Core<T>, out: &mut [MaybeUninit<NonNull<T>>]) -> bool {
        let n = out.len();
        if n > self.len && !self.refill(core, n) {
            return self.get_past(core, out);
        }
        let rest = self.len - n;
        // SAFETY: the slots below `len` hold objects, and `rest + n == len`.
        unsafe {
            let from = self.slots().as_ptr().add(rest);
            ptr::copy_nonoverlapping(from, out.as_mut_ptr(), n);
        }
        self.set_len(rest);
        if cfg!(debug_assertions) {
            // SAFETY: just written.
            out.iter().for_each(|item| core.mark_out(unsafe { item.assume_init() }));
        }
        true
    }

    /// Brings in objects until `n` are there and half of the stack besides, or just `n`.
    #[cold]
    #[inline(never)]
    fn refill(&mut self, core: &Core<T>, n: usize) -> bool {
        let missing = n - self.len;
        let (len, room) = (self.len, self.size - self.len);
        for want in [missing + self.size / 2, missing] {
            if want <= room && core.get_shared(&mut self.slots()[len..len + want]) {
                self.set_len(self.len + want);
                return true;
            }
        }
        false
    }

    /// A get of more than the stack can hold, or of more than there is.
    #[cold]
    #[inline(never)]
    fn get_past(&mut self, core: &Core<T>, out: &mut [MaybeUninit<NonNull<T>>]) -> bool {
        let missing = out.len() - self.len;
        if !core.get_shared(&mut out[..missing]) {
            self.counts.exhausted.store(self.counts.exhausted.load(Relaxed) + 1, Relaxed);
            return false;
        }
        let len = self.len;
        out[missing..].copy_from_slice(&self.slots()[..len]);
        self.set_len(0);
        // SAFETY: all were just written.
        out.iter().for_each(|item| core.mark_out(unsafe { item.assume_init() }));
        true
    }

    /// Gives back objects.
    ///
    /// # Safety
    /// They are the pool's and the caller's, who does not use them again; `core` is the pool
    /// that this stack was made for.
    #[inline]
    pub(crate) unsafe fn put_bulk(&mut self, core: &Core<T>, items: &[NonNull<T>]) {
        if cfg!(debug_assertions) {
            items.iter().for_each(|item| core.mark_home(*item));
        }
        let n = items.len();
        if n > self.size - self.len {
            // SAFETY: as the caller promises.
            return unsafe { self.spill(core, items) };
        }
        // SAFETY: `len + n` is at most the number of slots.
        unsafe {
            let len = self.len;
            let to = self.slots().as_mut_ptr().add(len).cast();
            ptr::copy_nonoverlapping(items.as_ptr(), to, n);
        }
        self.set_len(self.len + n);
    }

    /// Makes room by giving the oldest objects to the shared list, keeping about half.
    ///
    /// # Safety
    /// The caller promises what [`Stack::put_bulk`] asks for.
    #[cold]
    #[inline(never)]
    unsafe fn spill(&mut self, core: &Core<T>, items: &[NonNull<T>]) {
        let keep = self.size / 2;
        if items.len() > keep {
            // SAFETY: as the caller promises; the cache's handle keeps the pool alive, so the
            // answer is false.
            unsafe { Core::put_shared(core, items) };
            return;
        }
        self.give_oldest(core, self.len.saturating_sub(keep - items.len()));
        let len = self.len;
        for (slot, item) in self.slots()[len..].iter_mut().zip(items) {
            slot.write(*item);
        }
        self.set_len(self.len + items.len());
    }

    /// Moves the `n` oldest objects to the shared list.
    fn give_oldest(&mut self, core: &Core<T>, n: usize) {
        let oldest = &raw const self.slots()[..n] as *const [NonNull<T>];
        // SAFETY: the slots below `len` hold objects of `core`; they leave the stack below.
        unsafe { Core::put_shared(core, &*oldest) };
        let len = self.len;
        self.slots().copy_within(n..len, 0);
        self.set_len(self.len - n);
    }

    /// Objects that fit beside those held.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.size - self.len
    }

    /// Takes up to `n` objects over from another stack of the same pool.
    #[inline]
    pub(crate) fn take_from(&mut self, other: &mut Self, n: usize) -> usize {
        let n = n.min(other.len).min(self.room());
        let rest = other.len - n;
        let (from, to) = (rest..other.len, self.len..self.len + n);
        self.slots()[to].copy_from_slice(&other.slots()[from]);
        other.set_len(rest);
        self.set_len(self.len + n);
        n
    }

    /// Moves all objects to the shared list.
    pub(crate) fn flush(&mut self, core: &Core<T>) {
        self.give_oldest(core, self.len);
    }

    /// Empties the stack and takes its counts over into the pool.
    pub(crate) fn retire(&mut self, core: &Core<T>) {
        self.flush(core);
        let mut caches = core.caches.lock().unwrap_or_else(PoisonError::into_inner);
        caches.retain(|c| !Arc::ptr_eq(c, &self.counts));
        core.exhausted.fetch_add(self.counts.exhausted.load(Relaxed), Relaxed);
    }
}
