//! [`ObjectPool`]: a fixed number of objects of any type, made once and used again and again.
#![expect(unsafe_code, reason = "the pool is freed by whoever brings the last object home")]

use std::{
    fmt,
    mem::{ManuallyDrop, MaybeUninit},
    ops::{Deref, DerefMut},
    ptr::NonNull,
    slice,
};

use arrayvec::ArrayVec;

use crate::{
    error::MempoolError,
    objects::{Core, Stack},
    pool::{MAX_CACHE_SIZE, MAX_COUNT, check_ranges},
    stats::PoolStats,
};

/// An object and the way home.
struct Slot<T> {
    value: T,
    pool: NonNull<Inner<T>>,
}

// SAFETY: the pointer leads to the pool, which is usable from any thread if `T` is Send.
unsafe impl<T: Send> Send for Slot<T> {}

struct Inner<T> {
    core: Core<Slot<T>>,
    cache_size: usize,
}

/// Ends a pool whose handles are gone and whose objects are home.
///
/// # Safety
/// [`Core::put_shared`] or [`Core::drop_handle`] told the caller, and so nobody else, to do it.
#[cold]
unsafe fn end<T>(pool: NonNull<Inner<T>>) {
    // SAFETY: after `wait_home` no other thread touches the pool.
    unsafe {
        pool.as_ref().core.wait_home();
        drop(Box::from_raw(pool.as_ptr()));
    }
}

/// A handle to a pool of objects. Cloning it is cheap, and all clones are the same pool.
///
/// The objects are made when the pool is, and dropped when it ends; in between a get hands one out
/// *as its last user left it*. For work requests, contexts and descriptors of software; packets
/// come from a [`crate::Pool`].
///
/// ```
/// use ferrocx_mempool::ObjectPool;
///
/// let pool = ObjectPool::new("contexts", 64, 16, |index| (index, Vec::<u8>::new()))?;
/// let mut cache = pool.cache();
/// let mut context = cache.get().expect("64 are free");
/// context.1.push(7);
/// cache.put(context);
/// assert_eq!(pool.stats().in_use, 0);
/// # Ok::<(), ferrocx_mempool::MempoolError>(())
/// ```
pub struct ObjectPool<T: Send>(NonNull<Inner<T>>);

// SAFETY: `Inner` is Sync for `T: Send` (its `Core` is), and a handle keeps it alive.
unsafe impl<T: Send> Send for ObjectPool<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for ObjectPool<T> {}

impl<T: Send> ObjectPool<T> {
    /// A pool of `count` objects (1 to 2^30), each made by `make` from its number, whose caches
    /// hold `cache_size` (0 to 4096).
    ///
    /// # Errors
    /// [`MempoolError::PoolConfig`].
    pub fn new(
        name: &str,
        count: usize,
        cache_size: usize,
        mut make: impl FnMut(usize) -> T,
    ) -> Result<Self, MempoolError> {
        let cache = ("cache_size", cache_size, 0..=MAX_CACHE_SIZE);
        check_ranges(name, [("count", count, 1..=MAX_COUNT), cache])?;
        let pool = NonNull::from(Box::leak(Box::<Inner<T>>::new_uninit())).cast::<Inner<T>>();
        let core = Core::new(name, count as u32, |i| Slot { value: make(i as usize), pool });
        // SAFETY: allocated above for exactly this; `end` frees it as a Box.
        unsafe { pool.write(Inner { core, cache_size }) };
        Ok(Self(pool))
    }

    /// Name of the pool.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner().core.name()
    }

    /// Counts of the pool. Takes a lock against the making of caches; not for the data path.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.inner().core.stats()
    }

    /// A cache for one core, empty.
    #[must_use]
    pub fn cache(&self) -> ObjectCache<T> {
        let Inner { core, cache_size } = self.inner();
        ObjectCache { stack: Stack::new(core, *cache_size), pool: self.clone() }
    }

    /// Takes one object from the shared list. `None`, which counts as exhausted, if there is none.
    #[must_use]
    pub fn get(&self) -> Option<Pooled<T>> {
        self.inner().core.get().map(Pooled)
    }

    fn inner(&self) -> &Inner<T> {
        // SAFETY: a handle keeps the pool alive, and nobody has `&mut` to it.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Send> Clone for ObjectPool<T> {
    fn clone(&self) -> Self {
        self.inner().core.add_handle();
        Self(self.0)
    }
}

impl<T: Send> Drop for ObjectPool<T> {
    fn drop(&mut self) {
        // SAFETY: live until this handle goes; told to end it, this is the only thread that may.
        unsafe {
            if Core::drop_handle(&raw const (*self.0.as_ptr()).core) {
                end(self.0);
            }
        }
    }
}

impl<T: Send> fmt::Debug for ObjectPool<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectPool")
            .field("name", &self.name())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// A core's own stock of free objects: see [`crate::PoolCache`], whose rules it shares.
pub struct ObjectCache<T: Send> {
    stack: Stack<Slot<T>>,
    pool: ObjectPool<T>,
}

impl<T: Send> ObjectCache<T> {
    /// Takes one object. `None`, which counts as exhausted, if there is none.
    #[inline]
    pub fn get(&mut self) -> Option<Pooled<T>> {
        let mut out = Batch::<T, 1>::new();
        self.get_bulk(&mut out, 1);
        out.pop()
    }

    /// Appends `n` objects to `out`, or takes nothing, answers `false` and counts as exhausted.
    ///
    /// # Panics
    /// If `out` has room for fewer than `n`, or holds objects of another pool.
    #[inline]
    pub fn get_bulk<const N: usize>(&mut self, out: &mut Batch<T, N>, n: usize) -> bool {
        let len = out.objects.len();
        assert!(n <= N - len, "no room for the objects");
        assert!(len == 0 || out.home == Some(self.pool.0), "a batch is of one pool");
        out.home = Some(self.pool.0);
        // SAFETY: (1) elements `len..len + n` lie inside the array and may be uninitialised; (2) a
        // Pooled is a transparent `NonNull<Slot<T>>`.
        let spare = unsafe {
            let spare = out.objects.as_mut_ptr().add(len).cast::<MaybeUninit<NonNull<Slot<T>>>>();
            slice::from_raw_parts_mut(spare, n)
        };
        let got = self.stack.get_bulk(&self.pool.inner().core, spare);
        if got {
            // SAFETY: a get that succeeds fills all of `spare`.
            unsafe { out.objects.set_len(len + n) };
        }
        got
    }

    /// Gives an object back. One of another pool goes to that pool's shared list.
    #[inline]
    pub fn put(&mut self, object: Pooled<T>) {
        if object.home() == self.pool.0 {
            let slot = ManuallyDrop::new(object).0;
            // SAFETY: this pool's, just checked, and no longer a Pooled.
            unsafe { self.stack.put_bulk(&self.pool.inner().core, &[slot]) };
        }
    }

    /// Gives back all objects of a batch, each to its own pool.
    #[inline]
    pub fn put_bulk<const N: usize>(&mut self, batch: &mut Batch<T, N>) {
        if batch.home != Some(self.pool.0) {
            batch.objects.clear();
            return;
        }
        let len = batch.objects.len();
        // SAFETY: (1) the length is set to 0 first, so that none is dropped; (2) a Pooled is a
        // transparent pointer, and `len` of them are still there; (3) all are this pool's.
        unsafe {
            batch.objects.set_len(0);
            let slots = slice::from_raw_parts(batch.objects.as_ptr().cast(), len);
            self.stack.put_bulk(&self.pool.inner().core, slots);
        }
    }

    /// Moves all objects to the shared list.
    pub fn flush(&mut self) {
        self.stack.flush(&self.pool.inner().core);
    }
}

impl<T: Send> Drop for ObjectCache<T> {
    fn drop(&mut self) {
        self.stack.retire(&self.pool.inner().core);
    }
}

impl<T: Send> fmt::Debug for ObjectCache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectCache")
            .field("pool", &self.pool.name())
            .field("len", &self.stack.len())
            .finish_non_exhaustive()
    }
}

/// Up to `N` objects of one pool, which is why giving them back takes one check for all.
pub struct Batch<T: Send, const N: usize> {
    /// Their pool; means nothing while there are none.
    home: Option<NonNull<Inner<T>>>,
    objects: ArrayVec<Pooled<T>, N>,
}

// SAFETY: `home` is only compared, and the objects may go to another thread.
unsafe impl<T: Send, const N: usize> Send for Batch<T, N> {}

impl<T: Send, const N: usize> Batch<T, N> {
    /// Holds nothing.
    #[must_use]
    pub fn new() -> Self {
        Self { home: None, objects: ArrayVec::new() }
    }

    /// Adds an object; hands it back if there is no room or it is of another pool.
    ///
    /// # Errors
    /// The object.
    pub fn push(&mut self, object: Pooled<T>) -> Result<(), Pooled<T>> {
        if !self.objects.is_empty() && self.home != Some(object.home()) {
            return Err(object);
        }
        self.home = Some(object.home());
        self.objects.try_push(object).map_err(|full| full.element())
    }

    /// Takes the last object out.
    pub fn pop(&mut self) -> Option<Pooled<T>> {
        self.objects.pop()
    }

    /// The objects, to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.objects.iter_mut().map(|object| &mut **object)
    }
}

impl<T: Send, const N: usize> Default for Batch<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Send, const N: usize> Deref for Batch<T, N> {
    type Target = [Pooled<T>];

    fn deref(&self) -> &[Pooled<T>] {
        &self.objects
    }
}

impl<T: Send, const N: usize> fmt::Debug for Batch<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("len", &self.objects.len()).finish_non_exhaustive()
    }
}

/// An object of a pool: one word. Dropping it gives it back, on any thread, even after the last
/// handle of the pool.
#[repr(transparent)]
pub struct Pooled<T: Send>(NonNull<Slot<T>>);

// SAFETY: a Pooled is the only user of its object.
unsafe impl<T: Send> Send for Pooled<T> {}
// SAFETY: through `&Pooled` one gets `&T` only.
unsafe impl<T: Send + Sync> Sync for Pooled<T> {}

impl<T: Send> Pooled<T> {
    #[inline]
    fn home(&self) -> NonNull<Inner<T>> {
        // SAFETY: the object is ours.
        unsafe { (*self.0.as_ptr()).pool }
    }
}

impl<T: Send> Deref for Pooled<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the object is ours.
        unsafe { &(*self.0.as_ptr()).value }
    }
}

impl<T: Send> DerefMut for Pooled<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the object is ours.
        unsafe { &mut (*self.0.as_ptr()).value }
    }
}

impl<T: Send> Drop for Pooled<T> {
    fn drop(&mut self) {
        let pool = self.home();
        // SAFETY: the pool lives until this object is in its list; the last of all is told to end
        // it. The object is not used again.
        unsafe {
            let core = &raw const (*pool.as_ptr()).core;
            (*core).mark_home(self.0);
            if Core::put_shared(core, &[self.0]) {
                end(pool);
            }
        }
    }
}

impl<T: Send + fmt::Debug> fmt::Debug for Pooled<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    };

    use super::*;

    #[test]
    fn objects_keep_what_their_last_user_left() {
        let pool = ObjectPool::new("numbers", 3, 2, |i| i * 10).unwrap();
        let mut cache = pool.cache();
        let mut all = Batch::<_, 4>::new();
        assert!(!cache.get_bulk(&mut all, 4));
        assert!(cache.get_bulk(&mut all, 3));
        assert!(cache.get().is_none() && pool.get().is_none());
        assert_eq!(pool.stats().exhausted, 3);
        let mut values: Vec<_> = all.iter().map(|o| **o).collect();
        values.sort_unstable();
        assert_eq!(values, [0, 10, 20]);
        all.iter_mut().for_each(|o| *o += 1);
        cache.put_bulk(&mut all);
        drop(cache);
        let all: Vec<_> = (0..3).map(|_| pool.get().unwrap()).collect();
        let mut values: Vec<_> = all.iter().map(|o| **o).collect();
        values.sort_unstable();
        assert_eq!(values, [1, 11, 21]);
    }

    #[test]
    fn a_foreign_object_goes_home() {
        let a = ObjectPool::new("a", 2, 2, |_| 'a').unwrap();
        let b = ObjectPool::new("b", 2, 2, |_| 'b').unwrap();
        let mut cache = a.cache();
        cache.put(b.get().unwrap());
        assert_eq!((b.stats().shared, a.stats().cached), (2, 0));
        let mut batch = Batch::<_, 2>::new();
        assert!(batch.push(b.get().unwrap()).is_ok());
        let refused = batch.push(a.get().unwrap()).expect_err("of another pool");
        assert_eq!((*refused, batch.len()), ('a', 1));
        cache.put_bulk(&mut batch);
        assert_eq!((b.stats().shared, a.stats().cached, batch.len()), (2, 0, 0));
        assert!(batch.push(refused).is_ok(), "an empty batch takes any pool's");
        cache.put_bulk(&mut batch);
        assert_eq!((b.stats().shared, a.stats().cached, a.stats().in_use), (2, 1, 0));
        assert!(cache.get_bulk(&mut batch, 2));
        assert!(batch.push(b.get().unwrap()).is_err(), "full, and of another pool");
        cache.put_bulk(&mut batch);
        assert_eq!(*cache.get().unwrap(), 'a');
    }

    #[test]
    fn objects_are_dropped_once_when_the_last_is_home() {
        struct Counted(Arc<AtomicUsize>);
        impl Drop for Counted {
            fn drop(&mut self) {
                self.0.fetch_add(1, SeqCst);
            }
        }
        let dropped = Arc::new(AtomicUsize::new(0));
        for _ in 0..if cfg!(miri) { 8 } else { 500 } {
            dropped.store(0, SeqCst);
            let pool = ObjectPool::new("counted", 4, 2, |_| Counted(dropped.clone())).unwrap();
            let mut cache = pool.cache();
            let held = [(); 3].map(|()| cache.get().unwrap());
            std::thread::scope(|scope| {
                for object in held {
                    scope.spawn(move || drop(object));
                }
                drop((pool, cache));
            });
            assert_eq!(dropped.load(SeqCst), 4);
        }
    }

    #[test]
    fn counts_out_of_range_are_refused() {
        for (count, cache) in [(0, 0), (usize::MAX, 0), ((1 << 30) + 1, 0), (1, 4097)] {
            let err = ObjectPool::new("bad", count, cache, |_| ()).unwrap_err();
            assert!(matches!(err, MempoolError::PoolConfig { .. }), "{err}");
        }
        let smallest = ObjectPool::new("one", 1, 0, |_| ()).unwrap();
        let mut cache = smallest.cache();
        let one = cache.get().unwrap();
        assert!(cache.get().is_none());
        cache.put(one);
        assert_eq!(smallest.stats().shared, 1);
    }
}
