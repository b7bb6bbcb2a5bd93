//! [`PostedRing`]: the buffers that a device works through, in order.
#![expect(unsafe_code, reason = "slots are moved in bulk; those between head and tail are set")]

use std::{fmt, mem::MaybeUninit, ptr, slice};

use arrayvec::ArrayVec;

use crate::{
    cache::PoolCache,
    mbuf::{Mbuf, RawMbuf},
    pool::Pool,
};

/// The buffers behind a ring of descriptors: first in, first out, moved in bulk.
///
/// A queue puts in what it posts and takes out, or frees, what completed. Buffers that were plain
/// when they went in stay so, because nobody else can reach them: they are freed without another
/// look at their headers.
///
/// Dropping the ring frees its buffers; [`PostedRing::leak`] forgets them, for a device that may
/// still be using them.
pub struct PostedRing {
    slots: Box<[MaybeUninit<Mbuf>]>,
    /// Positions of the oldest buffer and behind the youngest; they wrap.
    head: u32,
    tail: u32,
    /// Position behind the last buffer that is not known to be plain, or `head` if there is none.
    odd_until: u32,
    pool: Pool,
}

impl PostedRing {
    /// An empty ring for buffers, mostly of `pool`.
    ///
    /// # Panics
    /// Unless `capacity` is a power of two from 1 to 2^30.
    #[must_use]
    pub fn new(pool: &Pool, capacity: usize) -> Self {
        assert!(capacity.is_power_of_two() && capacity <= 1 << 30, "capacity {capacity}");
        let slots = Box::new_uninit_slice(capacity);
        Self { slots, head: 0, tail: 0, odd_until: 0, pool: pool.clone() }
    }

    /// Buffers in the ring.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.tail.wrapping_sub(self.head) as usize
    }

    /// Whether there is none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tail == self.head
    }

    /// Buffers that the ring has place for.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        self.slots.len() - self.len()
    }

    /// Buffers ever put in, modulo 2^32: the position of the next one.
    #[inline]
    #[must_use]
    pub fn tail(&self) -> u32 {
        self.tail
    }

    /// Buffers ever taken out, modulo 2^32.
    #[inline]
    #[must_use]
    pub fn head(&self) -> u32 {
        self.head
    }

    #[inline(always)]
    fn slot(&self, position: u32) -> usize {
        position as usize & (self.slots.len() - 1)
    }

    /// Puts in one packet of any kind; hands it back if the ring is full.
    ///
    /// # Errors
    /// The packet, if there is no room.
    #[inline]
    pub fn push(&mut self, mbuf: Mbuf) -> Result<(), Mbuf> {
        if self.room() == 0 {
            return Err(mbuf);
        }
        if !mbuf.is_simple_of(&self.pool) {
            self.odd_until = self.tail.wrapping_add(1);
        }
        let slot = self.slot(self.tail);
        self.slots[slot].write(mbuf);
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Moves packets from the front of `packets` as long as they are single plain buffers of the
    /// ring's pool, `accept` says yes, and there is room; returns how many. `most` bounds it.
    #[inline]
    pub fn push_plain<const N: usize>(
        &mut self,
        packets: &mut ArrayVec<Mbuf, N>,
        most: usize,
        mut accept: impl FnMut(&Mbuf) -> bool,
    ) -> usize {
        let most = most.min(self.room());
        let pool = &self.pool;
        let n = packets
            .iter()
            .take(most)
            .take_while(|mbuf| mbuf.is_simple_of(pool) && accept(mbuf))
            .count();
        let rest = packets.len() - n;
        let (first, second) = self.gaps(n);
        // SAFETY: (1) `packets` holds `n + rest` packets and the gaps together `n` free slots; (2)
        // the length is 0 while packets are moved out, and afterwards covers the `rest` that were
        // moved to the front, so that each packet is in one place.
        unsafe {
            packets.set_len(0);
            let from = packets.as_mut_ptr();
            ptr::copy_nonoverlapping(from, first.as_mut_ptr().cast(), first.len());
            if !second.is_empty() {
                let from = from.add(first.len());
                ptr::copy_nonoverlapping(from, second.as_mut_ptr().cast(), second.len());
            }
            if rest != 0 {
                ptr::copy(from.add(n), from, rest);
            }
            packets.set_len(rest);
        }
        self.tail = self.tail.wrapping_add(n as u32);
        n
    }

    /// The `n` free slots from the tail on, in two runs.
    #[inline(always)]
    fn gaps(&mut self, n: usize) -> (&mut [MaybeUninit<Mbuf>], &mut [MaybeUninit<Mbuf>]) {
        let at = self.slot(self.tail);
        let (front, back) = self.slots.split_at_mut(at);
        let run = n.min(back.len());
        (&mut back[..run], &mut front[..n - run])
    }

    /// Takes up to `n` buffers from `cache` straight into the ring; returns them, to be posted.
    ///
    /// All of one contiguous run or none: the answer may be shorter than `n` at the end of the
    /// ring, and is empty if the pool has too few or the ring no room.
    ///
    /// # Panics
    /// If `cache` is of another pool.
    #[inline]
    pub fn refill(&mut self, cache: &mut PoolCache, n: usize) -> &[Mbuf] {
        assert!(*cache.pool() == self.pool, "a ring is refilled from its own pool");
        let n = n.min(self.room());
        let (run, _) = self.gaps(n);
        let run: *mut [MaybeUninit<Mbuf>] = run;
        // SAFETY: exclusive, through `self`.
        if !cache.get_bulk_uninit(unsafe { &mut *run }) {
            return &[];
        }
        self.tail = self.tail.wrapping_add(run.len() as u32);
        // SAFETY: a get that succeeds fills all of `run`, which is part of `self.slots`.
        unsafe { slice::from_raw_parts(run.cast::<Mbuf>(), run.len()) }
    }

    /// Takes out the oldest buffer.
    #[inline]
    pub fn take(&mut self) -> Option<Mbuf> {
        if self.is_empty() {
            return None;
        }
        let slot = self.slot(self.head);
        self.advance(1);
        // SAFETY: the slot held the oldest buffer, and is outside the ring now.
        Some(unsafe { self.slots[slot].assume_init_read() })
    }

    /// Moves the oldest buffers to `out`: `n`, or as many as there are and fit. Returns how many.
    #[inline]
    pub fn take_into<const N: usize>(&mut self, n: usize, out: &mut ArrayVec<Mbuf, N>) -> usize {
        let len = out.len();
        let n = n.min(self.len()).min(N - len);
        let at = self.slot(self.head);
        let run = n.min(self.slots.len() - at);
        // SAFETY: (1) `n` buffers from `head` on are set, `run` of them up to the end of the slots
        // and the others from its start; (2) `out` has room for `n` behind its `len`; (3) `advance`
        // gives them up here, and `set_len` takes them over there.
        unsafe {
            let to = out.as_mut_ptr().add(len);
            let from = self.slots.as_ptr().cast::<Mbuf>();
            ptr::copy_nonoverlapping(from.add(at), to, run);
            if run != n {
                ptr::copy_nonoverlapping(from, to.add(run), n - run);
            }
            self.advance(n as u32);
            out.set_len(len + n);
        }
        n
    }

    /// Frees the `n` oldest buffers, or as many as there are, through `cache`.
    #[inline]
    pub fn free(&mut self, n: usize, cache: &mut PoolCache) {
        let n = n.min(self.len());
        if self.odd_until != self.head || *cache.pool() != self.pool {
            return self.free_slowly(n, cache);
        }
        let at = self.slot(self.head);
        let run = n.min(self.slots.len() - at);
        self.advance(n as u32);
        // SAFETY: (1) as in `take_into`; (2) all were plain buffers of the cache's pool when they
        // were put in (`odd_until`), and nobody could reach them since; (3) an Mbuf and a RawMbuf
        // are the same transparent pointer.
        unsafe {
            let from = self.slots.as_ptr().cast::<RawMbuf>();
            cache.put_simple_bulk(slice::from_raw_parts(from.add(at), run));
            if run != n {
                cache.put_simple_bulk(slice::from_raw_parts(from, n - run));
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn free_slowly(&mut self, n: usize, cache: &mut PoolCache) {
        for _ in 0..n {
            if let Some(mbuf) = self.take() {
                cache.put(mbuf);
            }
        }
    }

    /// Moves the head; the buffers passed over are the caller's.
    #[inline(always)]
    fn advance(&mut self, n: u32) {
        if self.odd_until != self.head {
            let odd = self.odd_until.wrapping_sub(self.head);
            self.odd_until = self.head.wrapping_add(odd.max(n));
        } else {
            self.odd_until = self.head.wrapping_add(n);
        }
        self.head = self.head.wrapping_add(n);
    }

    /// Forgets all buffers without freeing them.
    #[cold]
    pub fn leak(&mut self) {
        self.advance(self.len() as u32);
    }
}

impl Drop for PostedRing {
    fn drop(&mut self) {
        while self.take().is_some() {}
    }
}

impl fmt::Debug for PostedRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostedRing")
            .field("pool", &self.pool.name())
            .field("len", &self.len())
            .field("capacity", &self.slots.len())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{PoolConfig, RegionConfig};

    fn pool(count: usize) -> Pool {
        let region = RegionConfig::heap(0);
        Pool::new(&PoolConfig { count, cache_size: 8, region, ..PoolConfig::default() })
            .expect("a pool on the heap")
    }

    fn take_all(pool: &Pool) -> ArrayVec<Mbuf, 64> {
        std::iter::from_fn(|| pool.get()).collect()
    }

    /// Starts the positions just below their wrap.
    fn ring(pool: &Pool, capacity: usize) -> PostedRing {
        let mut ring = PostedRing::new(pool, capacity);
        let start = u32::MAX - 2;
        (ring.head, ring.tail, ring.odd_until) = (start, start, start);
        ring
    }

    #[test]
    fn miri_first_in_first_out_across_the_wrap() {
        let pool = pool(8);
        let mut ring = ring(&pool, 4);
        let mut bufs = take_all(&pool);
        let order: Vec<_> = bufs.iter().map(|m| m.room_iova()).collect();
        assert_eq!(ring.push_plain(&mut bufs, 3, |_| true), 3);
        assert_eq!((ring.len(), ring.room(), bufs.len()), (3, 1, 5));
        let mut out = ArrayVec::<Mbuf, 2>::new();
        assert_eq!(ring.take_into(9, &mut out), 2, "as many as fit");
        assert_eq!(ring.push_plain(&mut bufs, 9, |_| true), 3, "as many as there is room for");
        let rest: Vec<_> = std::iter::from_fn(|| ring.take()).map(|m| m.room_iova()).collect();
        assert_eq!(rest, order[2..6]);
        assert_eq!(out[1].room_iova(), order[1]);
        assert!(ring.is_empty() && ring.take().is_none());
        drop((out, bufs));
        assert_eq!(pool.stats().in_use, 0);
    }

    #[test]
    fn miri_a_refused_packet_ends_the_run_and_stays_with_the_caller() {
        let pool = pool(4);
        let mut ring = ring(&pool, 8);
        let mut bufs = take_all(&pool);
        let mut seen = 0;
        let pushed = ring.push_plain(&mut bufs, 9, |_| {
            seen += 1;
            seen != 3
        });
        assert_eq!((pushed, seen, bufs.len(), ring.len()), (2, 3, 2, 2));
        assert_eq!(ring.push_plain(&mut bufs, 0, |_| true), 0);
    }

    #[test]
    fn miri_clones_are_freed_once_and_later_ones_fast() {
        let pool = pool(6);
        let mut cache = pool.cache();
        let mut ring = ring(&pool, 8);
        let mut bufs = take_all(&pool);
        let mut first = bufs.remove(0);
        assert!(first.append(10).is_some());
        let spare = bufs.pop().expect("six buffers");
        drop(spare);
        let clone = first.clone_ref(&mut cache).expect("a spare header");
        assert_eq!(ring.push_plain(&mut bufs, 1, |_| true), 1);
        assert!(ring.push(first).is_ok());
        assert_eq!(ring.push_plain(&mut bufs, 9, |_| true), 3);
        assert_ne!(ring.odd_until, ring.head);
        ring.free(2, &mut cache);
        assert_eq!(ring.odd_until, ring.head, "the clone's original is out");
        assert_eq!(clone.data_len(), 10, "the clone keeps the data");
        ring.free(9, &mut cache);
        drop(clone);
        assert_eq!(pool.stats().in_use, 0);
    }

    #[test]
    fn miri_refill_takes_a_run_or_nothing() {
        let pool = pool(6);
        let mut cache = pool.cache();
        let mut ring = ring(&pool, 8);
        // Position u32::MAX - 2 is slot 5 of 8: three slots to the end.
        assert_eq!(ring.refill(&mut cache, 4).len(), 3);
        assert_eq!(ring.refill(&mut cache, 4).len(), 0, "three left, four asked for");
        assert_eq!(ring.refill(&mut cache, 3).len(), 3);
        assert_eq!((ring.len(), pool.stats().exhausted), (6, 1));
        ring.free(6, &mut cache);
        assert_eq!(pool.stats().in_use, 0);
    }

    #[test]
    fn miri_dropped_rings_free_their_buffers() {
        let pool = pool(4);
        let mut cache = pool.cache();
        let mut ring = PostedRing::new(&pool, 4);
        assert_eq!(ring.refill(&mut cache, 3).len(), 3);
        let last = pool.get().or_else(|| cache.get()).expect("one is left");
        assert!(ring.push(last).is_ok());
        assert_eq!(ring.room(), 0);
        drop(ring);
        assert_eq!(pool.stats().in_use, 0);
    }

    #[test]
    fn leaked_rings_keep_their_buffers_out_of_the_pool() {
        let pool = pool(4);
        let mut cache = pool.cache();
        let mut ring = PostedRing::new(&pool, 4);
        assert_eq!(ring.refill(&mut cache, 3).len(), 3);
        ring.leak();
        drop(ring);
        assert_eq!(pool.stats().in_use, 3);
    }

    #[test]
    fn a_full_ring_hands_the_packet_back() {
        let pool = pool(2);
        let mut ring = PostedRing::new(&pool, 1);
        let mut bufs = take_all(&pool);
        assert_eq!(ring.push_plain(&mut bufs, 2, |_| true), 1);
        let back = ring.push(bufs.remove(0)).expect_err("no room");
        assert_eq!(back.data_len(), 0);
    }
}
