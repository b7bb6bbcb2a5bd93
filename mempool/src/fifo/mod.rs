//! [`MbufFifo`]: the buffers that a queue has handed to its device, oldest first.
//!
//! All that touches its slots is here and in [`hand_over`], and rests on one invariant.
#![expect(unsafe_code, reason = "slots between tail and head hold packets, the others nothing")]

use std::{
    fmt,
    mem::{ManuallyDrop, MaybeUninit},
    slice,
};

use arrayvec::ArrayVec;

use crate::{
    cache::PoolCache,
    mbuf::{Mbuf, RawMbuf},
    pool::Pool,
};

mod hand_over;
mod packet;
#[cfg(test)]
mod tests;

pub use hand_over::{HandOver, Parts};
pub use packet::Packet;

/// Largest capacity of a fifo.
const MAX_CAPACITY: usize = 1 << 24;

/// A bounded first-in first-out list of packets, for the buffers of a receive or send queue.
///
/// It belongs to one pool, and knows which of its packets are *simple* buffers of that pool (see
/// [`Mbuf::is_simple_of`]): those are moved in bulk and freed without touching their headers.
/// Others are welcome and take longer. Nothing is allocated after it was made. Dropping it frees
/// what is in it.
pub struct MbufFifo {
    /// A power of two of slots. Those from `tail` to `head`, modulo the length, hold packets, but
    /// for the first of them that were taken out of `line`.
    slots: Box<[MaybeUninit<Mbuf>]>,
    head: u32,
    tail: u32,
    /// Packets in front of this position may be other than simple; those from here to `head` are
    /// simple. Never behind `tail`.
    complex_end: u32,
    line: Line,
    /// The pool's headroom, and the bytes behind it.
    headroom: u16,
    room: u32,
    pool: Pool,
}

/// Slots of a list that hold its oldest packets, side by side and all simple. The list's tail
/// stands at `start` until the line ends; slots in front of `front` were emptied since.
#[derive(Debug, Clone, Copy, Default)]
struct Line {
    start: u32,
    front: u32,
    /// 0 if there is no line.
    end: u32,
}

impl Line {
    /// Packets that were taken out.
    #[inline(always)]
    fn taken(self) -> u32 {
        self.front - self.start
    }
}

/// What a device says about the buffers that it has filled, oldest first: see
/// [`MbufFifo::pop_filled`].
pub trait Arrivals {
    /// Bytes of the next one, if it has arrived.
    fn next(&mut self) -> Option<u32>;

    /// It has arrived with more bytes than a buffer has; nothing more is asked for.
    fn too_long(&mut self, len: u32);

    /// Describes it; its data is set. Follows [`Arrivals::next`] unless it was too long.
    fn describe(&mut self, mbuf: &mut Mbuf);
}

impl MbufFifo {
    /// An empty list for `capacity` packets, mostly of `pool`.
    ///
    /// # Panics
    /// Unless `capacity` is a power of two from 1 to 2^24.
    #[must_use]
    pub fn new(pool: &Pool, capacity: usize) -> Self {
        assert!(capacity.is_power_of_two() && capacity <= MAX_CAPACITY, "capacity {capacity}");
        let slots = Box::new_uninit_slice(capacity);
        let headroom = pool.headroom_bytes() as u16;
        let room = pool.data_room_bytes() as u32 - u32::from(headroom);
        let (line, pool) = (Line::default(), pool.clone());
        Self { slots, head: 0, tail: 0, complex_end: 0, line, headroom, room, pool }
    }

    /// The pool of its simple buffers.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Packets that fit.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Packets in the list.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.head.wrapping_sub(self.tail).wrapping_sub(self.line.taken()) as usize
    }

    /// Packets in the list, if there is no line.
    #[inline(always)]
    fn count(&self) -> usize {
        debug_assert_eq!(self.line.end, 0);
        self.head.wrapping_sub(self.tail) as usize
    }

    /// Packets that can be added, if there is no line.
    #[inline(always)]
    fn room(&self) -> usize {
        self.slots.len() - self.count()
    }

    /// Ends the line, with the tail where it belongs.
    #[inline(always)]
    fn end_line(&mut self) {
        if self.line.end != 0 {
            // All are simple as long as there is a line.
            self.tail = self.tail.wrapping_add(self.line.taken());
            self.complex_end = self.tail;
            self.line = Line::default();
        }
    }

    /// Packets ever added, modulo 2^32.
    #[inline(always)]
    #[must_use]
    pub fn end(&self) -> u32 {
        self.head
    }

    /// Whether there is none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Packets that can be added.
    #[inline]
    #[must_use]
    pub fn free_slots(&self) -> usize {
        self.slots.len() - self.len()
    }

    #[inline(always)]
    fn index(&self, position: u32) -> usize {
        position as usize & (self.slots.len() - 1)
    }

    /// Adds one packet of any kind, or hands it back if the list is full.
    ///
    /// # Errors
    /// The packet.
    #[inline]
    pub fn push(&mut self, mbuf: Mbuf) -> Result<(), Mbuf> {
        self.end_line();
        if self.room() == 0 {
            return Err(mbuf);
        }
        let simple = mbuf.is_simple_of(&self.pool);
        let at = self.index(self.head);
        self.slots[at].write(mbuf);
        self.head = self.head.wrapping_add(1);
        if !simple {
            self.complex_end = self.head;
        }
        Ok(())
    }

    /// Adds `n` buffers out of `cache`, fewer only at the end of the array, and shows where the
    /// room of each lies to `each`: [`Mbuf::room_address`]. Their headers are untouched, as by
    /// [`PoolCache::get_raw_bulk`]. Returns how many: 0 if the pool has too few, or the list is
    /// full.
    ///
    /// # Panics
    /// If `cache` is another pool's.
    #[inline(always)]
    pub fn fill(&mut self, cache: &mut PoolCache, n: usize, mut each: impl FnMut(usize)) -> usize {
        let run = self.take_in(cache, n);
        run.iter().for_each(|mbuf| each(mbuf.room_address()));
        run.len()
    }

    /// Does what [`MbufFifo::fill`] does, with a buffer for each of `places`, which `each` is shown
    /// with the address.
    #[inline(always)]
    pub fn fill_each<P>(
        &mut self,
        cache: &mut PoolCache,
        places: &[P],
        mut each: impl FnMut(&P, usize),
    ) -> usize {
        let run = self.take_in(cache, places.len());
        run.iter().zip(places).for_each(|(mbuf, place)| each(place, mbuf.room_address()));
        run.len()
    }

    /// Adds `n` buffers out of `cache`, as [`MbufFifo::fill`] says; those that were added.
    #[inline(always)]
    fn take_in(&mut self, cache: &mut PoolCache, n: usize) -> &[Mbuf] {
        assert!(*cache.pool() == self.pool, "the cache of another pool");
        self.end_line();
        let start = self.index(self.head);
        let n = n.min(self.room()).min(self.slots.len() - start);
        let run = &mut self.slots[start..start + n];
        if !cache.get_raw_uninit(run) {
            return &[];
        }
        self.head = self.head.wrapping_add(n as u32);
        // SAFETY: a get that succeeds fills all of `run`.
        unsafe { slice::from_raw_parts(run.as_ptr().cast(), run.len()) }
    }

    /// Moves buffers that a device has filled to `out`, oldest first, at most `max` and as many as
    /// fit, as long as more have arrived, and makes packets of them behind the pool's headroom.
    /// Returns how many. Stops at the end of the array, as [`HandOver::take_while`] does; at one
    /// that is said to be longer than its buffer, which stays; and takes none while a packet that
    /// is not simple is in the list.
    ///
    /// If `arrivals` panics, the packets of the list are leaked.
    #[inline(always)]
    pub fn pop_filled<const N: usize>(
        &mut self,
        out: &mut ArrayVec<Mbuf, N>,
        max: usize,
        arrivals: &mut impl Arrivals,
    ) -> usize {
        self.end_line();
        let (before, tail, headroom, room) = (out.len(), self.tail, self.headroom, self.room);
        if !self.all_simple() {
            return 0;
        }
        let start = self.index(tail);
        let most = max.min(N - before).min(self.count()).min(self.slots.len() - start);
        // The list counts as empty while others' code runs, so that a panic leaves no packet to
        // two owners.
        (self.tail, self.complex_end) = (self.head, self.head);
        let mut n = 0;
        for slot in &self.slots[start..start + most] {
            let Some(len) = arrivals.next() else { break };
            if len > room {
                arrivals.too_long(len);
                break;
            }
            // SAFETY: fewer than `len` slots from `tail` hold packets, one after the other, which
            // the list gave up above. This one is moved to `out`.
            let mut mbuf = ManuallyDrop::new(unsafe { slot.assume_init_read() });
            mbuf.set_filled(headroom, len);
            arrivals.describe(&mut mbuf);
            // SAFETY: `before + n < N`.
            unsafe { out.as_mut_ptr().add(before + n).write(ManuallyDrop::into_inner(mbuf)) };
            n += 1;
        }
        self.tail = tail.wrapping_add(n as u32);
        self.complex_end = self.tail;
        // SAFETY: `before + n <= N`, and the new ones were written above.
        unsafe { out.set_len(before + n) };
        n
    }

    /// Takes the oldest buffer, which a device has filled with `len` bytes behind the pool's
    /// headroom, for the caller to describe. `None`, and no change, if no packets are
    /// [lined up](MbufFifo::line_up), or the buffer is shorter.
    #[inline(always)]
    pub fn pop_lined_up(&mut self, len: u32) -> Option<Mbuf> {
        let Line { front, end, .. } = self.line;
        if front == end || len > self.room {
            return None;
        }
        // SAFETY: `line_up` saw slots `front..end` of the array with packets, the oldest of a list
        // of simple ones; whatever else takes packets from the front, or adds one that is not
        // simple, ends the line first. The list gives this one up with the line below.
        let mut mbuf = unsafe { self.slots.get_unchecked(front as usize).assume_init_read() };
        self.line.front = front + 1;
        mbuf.set_filled(self.headroom, len);
        Some(mbuf)
    }

    /// Lines packets up for [`MbufFifo::pop_lined_up`], at most `max`, and as many as lie side by
    /// side; returns how many. None while a packet that is not simple is in the list. Whatever else
    /// adds or takes packets breaks the line up.
    pub fn line_up(&mut self, max: usize) -> usize {
        self.end_line();
        let at = self.index(self.tail);
        let there = if self.all_simple() { self.count() } else { 0 };
        let n = max.min(there).min(self.slots.len() - at);
        if n != 0 {
            self.line = Line { start: at as u32, front: at as u32, end: (at + n) as u32 };
        }
        n
    }

    /// Packets that are lined up.
    #[inline(always)]
    #[must_use]
    pub fn lined_up(&self) -> usize {
        (self.line.end - self.line.front) as usize
    }

    /// Whether all packets in the list are simple buffers of its pool, see
    /// [`Mbuf::is_simple_of`].
    #[inline(always)]
    #[must_use]
    pub fn all_simple(&self) -> bool {
        self.complex_end == self.tail
    }

    /// Takes the oldest packet.
    #[inline]
    pub fn pop(&mut self) -> Option<Mbuf> {
        self.end_line();
        if self.count() == 0 {
            return None;
        }
        let at = self.index(self.tail);
        // SAFETY: the slot at `tail` holds a packet, which the list gives up with the next line.
        let mbuf = unsafe { self.slots[at].assume_init_read() };
        self.passed(1);
        Some(mbuf)
    }

    /// Moves the tail past `n` packets that were given up. There is no line.
    #[inline(always)]
    fn passed(&mut self, n: u32) {
        self.tail = self.tail.wrapping_add(n);
        if self.complex_end.wrapping_sub(self.tail) as i32 <= 0 {
            self.complex_end = self.tail;
        }
    }

    /// Frees the `n` oldest packets into `cache`.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline(always)]
    pub fn free(&mut self, n: usize, cache: &mut PoolCache) {
        self.end_line();
        self.free_oldest(n, cache);
    }

    /// Frees the packets that were added before the `end`th, see [`MbufFifo::end`], into `cache`.
    ///
    /// # Panics
    /// If some of these are not in the list.
    #[inline(always)]
    pub fn free_until(&mut self, end: u32, cache: &mut PoolCache) {
        self.end_line();
        self.free_oldest(end.wrapping_sub(self.tail) as usize, cache);
    }

    #[inline(always)]
    fn free_oldest(&mut self, n: usize, cache: &mut PoolCache) {
        assert!(n <= self.count());
        if self.complex_end != self.tail || *cache.pool() != self.pool {
            return self.free_mixed(n, cache);
        }
        let start = self.index(self.tail);
        let first = n.min(self.slots.len() - start);
        // The list gives the packets up first, so that none is freed twice whatever happens.
        self.passed(n as u32);
        for (start, len) in [(start, first), (0, n - first)] {
            if len == 0 {
                break;
            }
            let run = self.slots[start..start + len].as_ptr().cast::<RawMbuf>();
            // SAFETY: (1) the slots held packets, and an Mbuf and a RawMbuf are the same
            // transparent pointer; (2) all are simple buffers of the pool: `complex_end` says that
            // they were when they were added, and nobody could reach them since; (3) the list no
            // longer has them.
            unsafe { cache.put_simple_bulk(slice::from_raw_parts(run, len)) };
        }
    }

    #[inline(never)]
    fn free_mixed(&mut self, n: usize, cache: &mut PoolCache) {
        let tail = self.tail;
        // As in `free`: whatever happens, none is freed twice.
        self.passed(n as u32);
        let start = self.index(tail);
        let first = n.min(self.slots.len() - start);
        for run in [&self.slots[start..start + first], &self.slots[..n - first]] {
            // SAFETY: the slots held packets, which the list gave up.
            cache.put_mixed(run.iter().map(|slot| unsafe { slot.assume_init_read() }));
        }
    }

    /// Forgets all packets without freeing them: a device may still use their memory.
    pub fn leak(&mut self) {
        self.end_line();
        self.passed(self.count() as u32);
        // The buffers keep the pool, and so its memory, alive for ever.
    }
}

impl Drop for MbufFifo {
    fn drop(&mut self) {
        while let Some(mbuf) = self.pop() {
            drop(mbuf);
        }
    }
}

impl fmt::Debug for MbufFifo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MbufFifo")
            .field("pool", &self.pool.name())
            .field("capacity", &self.capacity())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
