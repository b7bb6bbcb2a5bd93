//! [`PoolCache`]: the free buffers that one core keeps for itself.
#![expect(unsafe_code, reason = "buffers and their headers are the same word")]

use std::{
    fmt, iter,
    mem::MaybeUninit,
    ptr::{self, NonNull},
    slice,
};

use arrayvec::ArrayVec;

use crate::{
    header::Header,
    holders::{put_home, release},
    mbuf::{Mbuf, RawMbuf},
    objects::Stack,
    pool::{MAX_CACHE_SIZE, Pool},
};

/// Buffers of mixed packets that go into the stock at once.
const FREED_AT_ONCE: usize = 64;

/// A core's or queue's own stock of free buffers of a pool.
///
/// A get or put that the stock can serve copies pointers and touches no shared line but the one
/// that publishes its length. The stock is filled from and spilled to the shared list in bulk,
/// about half its size at a time. Dropping the cache gives its buffers back.
///
/// Buffers come out as new: no data, the pool's headroom before it, no flags and no metadata.
/// [`PoolCache::get_raw_bulk`] is for those who write all of that themselves.
pub struct PoolCache {
    stack: Stack<Header>,
    pool: Pool,
}

impl PoolCache {
    /// The pool behind it.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Free buffers held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.stack.len()
    }

    /// Whether it holds no buffer; a get then goes to the shared list.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stack.len() == 0
    }

    /// Takes one empty buffer. `None` if the pool has none left, which counts as exhausted.
    #[inline]
    #[doc(alias = "rte_pktmbuf_alloc")]
    pub fn get(&mut self) -> Option<Mbuf> {
        let mut out = ArrayVec::<Mbuf, 1>::new();
        self.get_bulk(&mut out, 1);
        out.pop()
    }

    /// Fills `out` with buffers whose headers are as their last users left them, or takes nothing,
    /// answers `false` and counts as exhausted.
    #[inline]
    #[must_use = "after `false`, `out` is still uninitialised"]
    pub(crate) fn get_raw_uninit(&mut self, out: &mut [MaybeUninit<Mbuf>]) -> bool {
        let (ptr, len) = (out.as_mut_ptr().cast::<MaybeUninit<NonNull<Header>>>(), out.len());
        // SAFETY: an Mbuf is a transparent `NonNull<Header>`.
        let headers = unsafe { slice::from_raw_parts_mut(ptr, len) };
        self.stack.get_bulk(&self.pool.inner().core, headers)
    }

    /// Appends `n` empty buffers to `out`, or takes nothing, answers `false` and counts as
    /// exhausted.
    ///
    /// # Panics
    /// If `out` has room for fewer than `n`.
    #[inline]
    #[doc(alias = "rte_pktmbuf_alloc_bulk")]
    pub fn get_bulk<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>, n: usize) -> bool {
        let len = out.len();
        let got = self.get_raw_bulk(out, n);
        let headroom = self.pool.inner().headroom;
        for mbuf in &out[len..] {
            // SAFETY: taken just now, so single and ours; the headroom is not above the room.
            unsafe { Header::clear(mbuf.header_ptr(), headroom) };
        }
        got
    }

    /// Appends `n` buffers to `out` without touching their headers, or takes nothing, answers
    /// `false` and counts as exhausted. `rte_mbuf_raw_alloc_bulk` by its field's name.
    ///
    /// Length, headroom, flags and metadata are what the last user left: [`Mbuf::init_rx`] or
    /// [`Mbuf::reset`] comes before anybody reads them. For queues that post the room of a buffer
    /// and learn what is in it from the completion.
    ///
    /// # Panics
    /// If `out` has room for fewer than `n`.
    #[inline]
    pub fn get_raw_bulk<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>, n: usize) -> bool {
        let len = out.len();
        assert!(n <= N - len, "no room for the buffers");
        // SAFETY: elements `len..len + n` lie inside the array and may be uninitialised.
        let spare = unsafe {
            slice::from_raw_parts_mut(out.as_mut_ptr().add(len).cast::<MaybeUninit<Mbuf>>(), n)
        };
        let got = self.get_raw_uninit(spare);
        if got {
            // SAFETY: a get that succeeds fills all of `spare`.
            unsafe { out.set_len(len + n) };
        }
        got
    }

    /// Gives back a packet: all its segments, each to its own pool.
    ///
    /// Segments of other pools, clones, and attached buffers take the slow way; all is correct for
    /// them too.
    #[inline]
    pub fn put(&mut self, mbuf: Mbuf) {
        if mbuf.is_simple_of(&self.pool) {
            let raw = mbuf.into_raw();
            // SAFETY: `is_simple_of` is what that function asks for.
            unsafe { self.put_simple_bulk(&[raw]) };
        } else {
            self.put_mixed(iter::once(mbuf));
        }
    }

    /// Gives back packets of every kind, segment by segment; those of this pool through the stack.
    #[inline(never)]
    pub(crate) fn put_mixed(&mut self, mbufs: impl Iterator<Item = Mbuf>) {
        let home = self.pool.inner_ptr();
        let mut free = ArrayVec::<RawMbuf, FREED_AT_ONCE>::new();
        for mbuf in mbufs {
            let mut next = Some(mbuf.into_raw().0);
            while let Some(header) = next {
                let h = header.as_ptr();
                // SAFETY: a header of the chain that the Mbuf owned, cut off before it is let go:
                // once a clone may hold it alone, nothing of it is touched.
                unsafe {
                    next = NonNull::new((*h).next);
                    if next.is_some() {
                        (*h).next = ptr::null_mut();
                        (*h).home.set_chained(false);
                    }
                    (*h).nb_segs = 1;
                    if !release(header) {
                        continue;
                    }
                    if (*h).home.pool() != home {
                        put_home(header);
                        continue;
                    }
                    (*h).home.unmark_of(home);
                }
                if free.try_push(RawMbuf(header)).is_err() {
                    // SAFETY: free and single, of this pool, and used no more.
                    unsafe { self.put_simple_bulk(&free) };
                    free.clear();
                    free.push(RawMbuf(header));
                }
            }
        }
        // SAFETY: as above.
        unsafe { self.put_simple_bulk(&free) };
    }

    /// Gives back all packets of `mbufs`, as [`PoolCache::put`] does.
    #[inline]
    pub fn put_bulk<const N: usize>(&mut self, mbufs: &mut ArrayVec<Mbuf, N>) {
        if Mbuf::all_simple(mbufs, &self.pool) {
            let len = mbufs.len();
            // SAFETY: (1) the length is set to 0 first, so that no Mbuf is dropped; (2) an Mbuf
            // and a RawMbuf are the same transparent pointer, and `len` of them are still there;
            // (3) all are simple, just checked.
            unsafe {
                mbufs.set_len(0);
                let raw = slice::from_raw_parts(mbufs.as_ptr().cast::<RawMbuf>(), len);
                self.put_simple_bulk(raw);
            }
        } else {
            self.put_mixed(mbufs.drain(..));
        }
    }

    /// Gives back packets without touching their headers: what a transmit queue does with a batch
    /// of completions, when it noted at posting that all were simple.
    ///
    /// # Safety
    /// Each comes from [`Mbuf::into_raw`], was [`Mbuf::is_simple_of`] this cache's pool then, and
    /// is not used again.
    #[inline]
    pub unsafe fn put_simple_bulk(&mut self, raw: &[RawMbuf]) {
        // SAFETY: a RawMbuf is a transparent `NonNull<Header>`.
        let headers = unsafe { slice::from_raw_parts(raw.as_ptr().cast(), raw.len()) };
        // SAFETY: as the caller promises.
        unsafe { self.stack.put_bulk(&self.pool.inner().core, headers) };
    }

    /// Takes up to `n` free buffers over from another cache of the same pool, as far as there is
    /// room; returns how many. For a core whose one cache fills what another empties: nothing goes
    /// through the shared list.
    #[inline]
    pub fn take_from(&mut self, other: &mut PoolCache, n: usize) -> usize {
        if self.pool != other.pool {
            return 0;
        }
        self.stack.take_from(&mut other.stack, n)
    }

    /// Buffers that fit beside those held.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        self.stack.room()
    }

    /// Moves all buffers to the shared list.
    pub fn flush(&mut self) {
        self.stack.flush(&self.pool.inner().core);
    }
}

impl Pool {
    /// A cache for one core or queue, of the configured size, empty.
    #[must_use]
    pub fn cache(&self) -> PoolCache {
        self.cache_with_size(self.inner().cache_size)
    }

    /// A cache of another size, at most [`MAX_CACHE_SIZE`] (larger sizes are cut to that).
    #[must_use]
    pub fn cache_with_size(&self, size: usize) -> PoolCache {
        let stack = Stack::new(&self.inner().core, size.min(MAX_CACHE_SIZE));
        PoolCache { stack, pool: self.clone() }
    }

    /// Takes one empty buffer from the shared list, without a cache. `None` if there is none,
    /// which counts as exhausted.
    #[must_use]
    pub fn get(&self) -> Option<Mbuf> {
        let header = self.inner().core.get()?;
        // SAFETY: taken just now, so single and ours; the headroom is not above the room.
        unsafe { Header::clear(header, self.inner().headroom) };
        Some(Mbuf(header))
    }
}

impl Drop for PoolCache {
    fn drop(&mut self) {
        self.stack.retire(&self.pool.inner().core);
    }
}

impl fmt::Debug for PoolCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolCache")
            .field("pool", &self.pool.name())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
