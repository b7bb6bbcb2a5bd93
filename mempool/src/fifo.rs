//! [`MbufFifo`]: the buffers that a queue has handed to its device, oldest first.
//!
//! Long file: all that touches the slots, whose `unsafe` rests on one invariant, and its tests.
#![expect(unsafe_code, reason = "slots between tail and head hold packets, the others nothing")]

use std::{
    fmt,
    mem::{ManuallyDrop, MaybeUninit},
    ptr::{self, NonNull},
    slice,
};

use arrayvec::ArrayVec;

use crate::{
    cache::PoolCache,
    chain::{Segment, Segments},
    flags::{OlFlags, TxLengths},
    header::PoolInner,
    mbuf::{Mbuf, RawMbuf},
    pool::Pool,
};

/// Largest capacity of a fifo.
const MAX_CAPACITY: usize = 1 << 24;

/// A packet as a [`HandOver`] shows it: enough to describe it to a device, and no handle by which
/// it could be shared.
#[derive(Debug, Clone, Copy)]
pub struct Packet<'a> {
    mbuf: &'a Mbuf,
    is_simple: bool,
}

impl<'a> Packet<'a> {
    /// Whether it is a single buffer of the list's pool that nobody shares, see
    /// [`Mbuf::is_simple_of`].
    #[inline(always)]
    #[must_use]
    pub fn is_simple(&self) -> bool {
        self.is_simple
    }

    /// Whether it has any of these requests to the device.
    #[inline(always)]
    #[must_use]
    pub fn wants(&self, any_of: OlFlags) -> bool {
        self.mbuf.raw_flags() & any_of.bits() != 0
    }

    /// Its requests to the device.
    #[inline(always)]
    #[must_use]
    pub fn flags(&self) -> OlFlags {
        self.mbuf.flags()
    }

    /// Bytes of data in the first segment.
    #[inline(always)]
    #[must_use]
    pub fn data_len(&self) -> usize {
        self.mbuf.data_len()
    }

    /// Bytes of data in all segments.
    #[inline(always)]
    #[must_use]
    pub fn pkt_len(&self) -> usize {
        self.mbuf.pkt_len()
    }

    /// Virtual address of the first byte, see [`Mbuf::data_address`].
    #[inline(always)]
    #[must_use]
    pub fn data_address(&self) -> usize {
        self.mbuf.data_address()
    }

    /// Number of its segments.
    #[inline(always)]
    #[must_use]
    pub fn nb_segs(&self) -> usize {
        self.mbuf.nb_segs()
    }

    /// Its segments, first to last.
    #[inline(always)]
    #[must_use]
    pub fn segments(&self) -> Segments<'a> {
        self.mbuf.segments()
    }

    /// The VLAN tag to insert, see [`Mbuf::vlan_tci`].
    #[inline(always)]
    #[must_use]
    pub fn vlan_tci(&self) -> u16 {
        self.mbuf.vlan_tci()
    }

    /// What segmentation needs, see [`Mbuf::tx_lengths`].
    #[inline(always)]
    #[must_use]
    pub fn tx_lengths(&self) -> TxLengths {
        self.mbuf.tx_lengths()
    }

    /// Copies bytes of the packet, see [`Mbuf::read`].
    #[must_use]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> bool {
        self.mbuf.read(offset, out)
    }
}

/// A bounded first-in first-out list of packets, for the buffers of a receive or send queue.
///
/// It belongs to one pool, and knows which of its packets are *simple* buffers of that pool (see
/// [`Mbuf::is_simple_of`]): those are moved in bulk and freed without touching their headers.
/// Others are welcome and take longer. Nothing is allocated after it was made. Dropping it frees
/// what is in it.
pub struct MbufFifo {
    /// A power of two of slots. Those from `tail` to `head`, modulo the length, hold packets.
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

/// Slots of a list that hold its oldest packets, side by side and all simple.
#[derive(Debug, Clone, Copy, Default)]
struct Line {
    front: u32,
    end: u32,
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
        self.head.wrapping_sub(self.tail) as usize
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
        self.head == self.tail
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
        if self.free_slots() == 0 {
            return Err(mbuf);
        }
        let simple = mbuf.is_simple_of(&self.pool);
        let at = self.index(self.head);
        self.slots[at].write(mbuf);
        self.head = self.head.wrapping_add(1);
        if !simple {
            self.complex_end = self.head;
            self.line = Line::default();
        }
        Ok(())
    }

    /// Starts to move packets from the front of `packets` to the end of the list. What is left when
    /// the hand-over ends stays in `packets`.
    #[inline(always)]
    pub fn hand_over<'a, const N: usize>(
        &'a mut self,
        packets: &'a mut ArrayVec<Mbuf, N>,
    ) -> HandOver<'a, N> {
        let len = packets.len();
        // SAFETY: the hand-over owns the packets until its end.
        unsafe { packets.set_len(0) };
        HandOver { fifo: self, packets, len, taken: 0 }
    }

    /// Adds `n` buffers out of `cache`, fewer only at the end of the array, and shows the device's
    /// address of each room to `each`. Their headers are untouched, as by
    /// [`PoolCache::get_raw_bulk`]. Returns how many: 0 if the pool has too few, or the list
    /// is full.
    ///
    /// # Panics
    /// If `cache` is another pool's.
    #[inline(always)]
    pub fn fill(&mut self, cache: &mut PoolCache, n: usize, mut each: impl FnMut(u64)) -> usize {
        assert!(*cache.pool() == self.pool, "the cache of another pool");
        let start = self.index(self.head);
        let n = n.min(self.free_slots()).min(self.slots.len() - start);
        let run = &mut self.slots[start..start + n];
        if !cache.get_raw_uninit(run) {
            return 0;
        }
        self.head = self.head.wrapping_add(n as u32);
        for slot in run {
            // SAFETY: a get that succeeds fills all of `run`.
            each(unsafe { slot.assume_init_ref() }.room_iova());
        }
        n
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
        let (before, tail, headroom, room) = (out.len(), self.tail, self.headroom, self.room);
        self.line = Line::default();
        if !self.all_simple() {
            return 0;
        }
        let start = self.index(tail);
        let most = max.min(N - before).min(self.len()).min(self.slots.len() - start);
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
        let Line { front, end } = self.line;
        if front == end || len > self.room {
            return None;
        }
        // SAFETY: `line_up` saw slots `front..end` of the array with packets, the oldest of a list
        // of simple ones; whatever takes packets from the front, or adds one that is not simple,
        // clears the line. The list gives this one up with the lines below.
        let mut mbuf = unsafe { self.slots.get_unchecked(front as usize).assume_init_read() };
        self.line.front = front + 1;
        self.tail = self.tail.wrapping_add(1);
        self.complex_end = self.tail;
        mbuf.set_filled(self.headroom, len);
        Some(mbuf)
    }

    /// Lines packets up for [`MbufFifo::pop_lined_up`], at most `max`, and as many as lie side by
    /// side; returns how many. None while a packet that is not simple is in the list. Whatever else
    /// takes packets out breaks the line up.
    pub fn line_up(&mut self, max: usize) -> usize {
        let at = self.index(self.tail);
        let there = if self.all_simple() { self.len() } else { 0 };
        let n = max.min(there).min(self.slots.len() - at);
        self.line = Line { front: at as u32, end: (at + n) as u32 };
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
        if self.is_empty() {
            return None;
        }
        let at = self.index(self.tail);
        // SAFETY: the slot at `tail` holds a packet, which the list gives up with the next line.
        let mbuf = unsafe { self.slots[at].assume_init_read() };
        self.passed(1);
        Some(mbuf)
    }

    /// Moves the tail past `n` packets that were given up.
    #[inline(always)]
    fn passed(&mut self, n: u32) {
        self.line = Line::default();
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
        assert!(n <= self.len());
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
        self.passed(self.len() as u32);
        // The buffers keep the pool, and so its memory, alive for ever.
    }
}

/// Packets on their way into an [`MbufFifo`]: see [`MbufFifo::hand_over`].
#[derive(Debug)]
pub struct HandOver<'a, const N: usize> {
    fifo: &'a mut MbufFifo,
    /// Of length 0 meanwhile: elements `taken..len` are packets that the hand-over owns.
    packets: &'a mut ArrayVec<Mbuf, N>,
    len: usize,
    taken: usize,
}

impl<const N: usize> HandOver<'_, N> {
    /// The packets that are left.
    #[inline(always)]
    fn rest(&self) -> &[Mbuf] {
        let front = self.packets.as_ptr();
        // SAFETY: elements `taken..len` are packets, which nobody else reaches meanwhile.
        unsafe { slice::from_raw_parts(front.add(self.taken), self.len - self.taken) }
    }

    /// Packets that left the front so far.
    #[inline(always)]
    #[must_use]
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Whether no packet is left.
    #[inline(always)]
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.taken == self.len
    }

    /// The next packet.
    #[inline(always)]
    #[must_use]
    pub fn peek(&self) -> Option<Packet<'_>> {
        let mbuf = self.rest().first()?;
        Some(Packet { mbuf, is_simple: mbuf.is_simple_of(&self.fifo.pool) })
    }

    /// Packets that the list has room for.
    #[inline(always)]
    #[must_use]
    pub fn free_slots(&self) -> usize {
        self.fifo.free_slots()
    }

    /// Moves packets into the list, at most `max`, as long as `each` answers `true`. Returns how
    /// many.
    ///
    /// Stops at the end of the array, too: a result smaller than asked for says nothing until
    /// the next call answers 0.
    #[inline(always)]
    pub fn take_while(&mut self, max: usize, mut each: impl FnMut(Packet<'_>) -> bool) -> usize {
        let start = self.fifo.index(self.fifo.head);
        let room = self.fifo.free_slots().min(self.fifo.slots.len() - start);
        let most = max.min(self.len - self.taken).min(room);
        // SAFETY: `taken <= len`, and the array has as many elements.
        let front = unsafe { self.packets.as_ptr().add(self.taken) };
        let pool = self.fifo.pool.inner_ptr();
        let slots = &mut self.fifo.slots[start..start + most];
        let mut complex_end = 0;
        let mut n = 0;
        while n < slots.len() {
            // SAFETY: one of `taken..len`, and a copy that is not dropped. It becomes the owner
            // below, when the original leaves; if it does not, or if `each` panics, it is
            // forgotten.
            let mbuf = ManuallyDrop::new(unsafe { ptr::read(front.add(n)) });
            let is_simple = mbuf.is_simple_in(pool);
            if !each(Packet { mbuf: &mbuf, is_simple }) {
                break;
            }
            slots[n].write(ManuallyDrop::into_inner(mbuf));
            n += 1;
            if !is_simple {
                complex_end = n;
            }
        }
        if complex_end != 0 {
            self.fifo.complex_end = self.fifo.head.wrapping_add(complex_end as u32);
            self.fifo.line = Line::default();
        }
        self.fifo.head = self.fifo.head.wrapping_add(n as u32);
        self.taken += n;
        n
    }

    /// Moves packets of `K` segments into the list, at most `max`, as long as `each` answers
    /// `true`. Returns how many. Stops at the first packet that is not a chain of `K` buffers of
    /// the list's pool that nobody shares.
    ///
    /// The list takes each chain apart, so that it holds `K` simple buffers, which are freed as
    /// such. Stops at the end of the array, too, as [`HandOver::take_while`] does.
    #[inline(always)]
    pub fn take_chains<const K: usize>(
        &mut self,
        max: usize,
        mut each: impl FnMut(Packet<'_>, [Segment<'_>; K]) -> bool,
    ) -> usize {
        const { assert!(K >= 2, "a chain has two segments at least") };
        let start = self.fifo.index(self.fifo.head);
        let to_end = self.fifo.slots.len() - start;
        let most = max.min(self.len - self.taken);
        if to_end < K {
            // The chain that goes on at the other end of the array.
            let one = most.min(self.fifo.free_slots() / K).min(1);
            return self.take_chains_at::<K>(one, each);
        }
        let most = most.min(self.fifo.free_slots().min(to_end) / K);
        // SAFETY: `taken <= len`, and the array has as many elements.
        let front = unsafe { self.packets.as_ptr().add(self.taken) };
        let pool = self.fifo.pool.inner_ptr();
        let (slots, _) = self.fifo.slots[start..start + most * K].as_chunks_mut::<K>();
        let mut n = 0;
        while n < slots.len() {
            // SAFETY: one of `taken..len`.
            let Some(buffers) = (unsafe { offer::<K>(front.add(n), pool, &mut each) }) else {
                break;
            };
            slots[n] = buffers;
            n += 1;
        }
        self.fifo.head = self.fifo.head.wrapping_add((n * K) as u32);
        self.taken += n;
        n
    }

    /// As [`HandOver::take_chains`], slot by slot: at most `max` chains, for which there is room.
    #[cold]
    fn take_chains_at<const K: usize>(
        &mut self,
        max: usize,
        mut each: impl FnMut(Packet<'_>, [Segment<'_>; K]) -> bool,
    ) -> usize {
        let pool = self.fifo.pool.inner_ptr();
        for n in 0..max {
            // SAFETY: one of `taken..len`: `max` chains are left.
            let offered =
                unsafe { offer::<K>(self.packets.as_ptr().add(self.taken), pool, &mut each) };
            let Some(buffers) = offered else { return n };
            for buffer in buffers {
                let at = self.fifo.index(self.fifo.head);
                self.fifo.slots[at] = buffer;
                self.fifo.head = self.fifo.head.wrapping_add(1);
            }
            self.taken += 1;
        }
        max
    }

    /// Takes the next packet out without adding it to the list.
    pub fn refuse(&mut self) -> Option<Mbuf> {
        let mbuf = ptr::from_ref(self.rest().first()?);
        self.taken += 1;
        // SAFETY: the next packet, which is behind `taken` now.
        Some(unsafe { ptr::read(mbuf) })
    }
}

/// Shows a chain to `each`, and takes it apart if the answer is `true`.
///
/// # Safety
/// `mbuf` points to a packet. If the answer is `Some`, its buffers are the caller's, and the
/// packet is not used again.
#[inline(always)]
unsafe fn offer<const K: usize>(
    mbuf: *const Mbuf,
    pool: NonNull<PoolInner>,
    each: &mut impl FnMut(Packet<'_>, [Segment<'_>; K]) -> bool,
) -> Option<[MaybeUninit<Mbuf>; K]> {
    // SAFETY: as the caller promises; a copy that is not dropped.
    let mbuf = ManuallyDrop::new(unsafe { ptr::read(mbuf) });
    let headers = mbuf.simple_chain::<K>(pool)?;
    // SAFETY: headers of the chain, which is borrowed as long as `each` runs.
    let segments = headers.map(|header| unsafe { Segment::of(header) });
    if !each(Packet { mbuf: &mbuf, is_simple: false }, segments) {
        return None;
    }
    // SAFETY: the packet and its chain are the caller's, who alone uses them: all segments are
    // plain. What is not last loses its successor, and the first its count.
    unsafe {
        headers[..K - 1].iter().for_each(|header| (*header.as_ptr()).next = ptr::null_mut());
        (*headers[0].as_ptr()).nb_segs = 1;
    }
    Some(headers.map(|header| MaybeUninit::new(Mbuf(header))))
}

impl<const N: usize> Drop for HandOver<'_, N> {
    #[inline(always)]
    fn drop(&mut self) {
        let rest = self.len - self.taken;
        // SAFETY: elements `taken..len` are packets of the hand-over, which gives them back.
        unsafe {
            if self.taken != 0 && rest != 0 {
                let front = self.packets.as_mut_ptr();
                ptr::copy(front.add(self.taken), front, rest);
            }
            self.packets.set_len(rest);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PoolConfig, RegionConfig};

    fn pool(count: usize) -> Pool {
        let config = PoolConfig {
            name: "fifo".into(),
            count,
            data_room_bytes: 256,
            cache_size: 32,
            region: RegionConfig::heap(1),
            ..PoolConfig::default()
        };
        Pool::new(&config).unwrap()
    }

    /// Arrivals of these lengths, the last first.
    struct Lengths(Vec<u32>);

    impl Arrivals for Lengths {
        fn next(&mut self) -> Option<u32> {
            self.0.pop()
        }

        fn too_long(&mut self, len: u32) {
            self.0 = vec![len, u32::MAX];
        }

        fn describe(&mut self, mbuf: &mut Mbuf) {
            mbuf.set_vlan_tci(mbuf.data_len() as u16);
        }
    }

    fn packet(pool: &Pool, tag: u8) -> Mbuf {
        let mut mbuf = pool.get().unwrap();
        assert!(mbuf.extend_from_slice(&[tag; 20]));
        mbuf
    }

    #[test]
    fn packets_come_out_in_order_across_the_wrap() {
        let pool = pool(64);
        let mut cache = pool.cache();
        let mut fifo = MbufFifo::new(&pool, 8);
        (fifo.head, fifo.tail, fifo.complex_end) = (u32::MAX - 5, u32::MAX - 5, u32::MAX - 5);
        let (mut next_in, mut next_out) = (0u8, 0u8);
        for round in 0..200usize {
            let mut packets = ArrayVec::<Mbuf, 16>::new();
            for _ in 0..round % 9 {
                packets.push(packet(&pool, next_in));
                next_in = next_in.wrapping_add(1);
            }
            let (had, room) = (packets.len(), fifo.free_slots());
            let mut run = fifo.hand_over(&mut packets);
            let mut n = run.take_while(16, |packet| packet.pkt_len() == 20);
            n += run.take_while(16, |packet| packet.pkt_len() == 20);
            assert_eq!(run.taken(), n);
            drop(run);
            assert_eq!(n, had.min(room));
            assert_eq!(packets.len(), had - n);
            // What did not fit is sent again first.
            next_in = next_in.wrapping_sub((had - n) as u8);
            drop(packets);
            if round % 3 == 0 {
                let n = fifo.len() / 2;
                fifo.free(n, &mut cache);
                next_out = next_out.wrapping_add(n as u8);
            } else {
                let mut out = ArrayVec::<Mbuf, 4>::new();
                fifo.pop_filled(&mut out, 9, &mut Lengths(vec![20; 9]));
                for mbuf in out {
                    assert_eq!((mbuf.data()[0], mbuf.data_len()), (next_out, 20));
                    next_out = next_out.wrapping_add(1);
                }
            }
        }
        drop(fifo);
        drop(cache);
        assert_eq!(pool.stats().shared, 64);
    }

    #[test]
    fn packets_of_every_kind_are_freed_right() {
        let (own, other) = (pool(64), pool(64));
        let mut cache = own.cache();
        let mut fifo = MbufFifo::new(&own, 16);
        let mut chained = packet(&own, 1);
        chained.chain(packet(&other, 2)).unwrap();
        let original = packet(&own, 3);
        let clone = original.clone_ref(&mut cache).unwrap();
        fifo.push(packet(&own, 0)).unwrap();
        fifo.push(chained).unwrap();
        fifo.push(packet(&other, 4)).unwrap();
        fifo.push(original).unwrap();
        let mut more = ArrayVec::<Mbuf, 4>::new();
        more.extend([packet(&own, 5), packet(&own, 6), packet(&other, 7)]);
        let mut run = fifo.hand_over(&mut more);
        assert_eq!(run.take_while(9, |packet| packet.is_simple()), 2, "stops at the other pool's");
        assert_eq!(run.peek().map(|packet| packet.is_simple()), Some(false));
        assert_eq!(run.refuse().map(|mbuf| mbuf.data()[0]), Some(7));
        assert!(run.peek().is_none() && run.refuse().is_none());
        drop(run);
        assert!(more.is_empty());
        let mut last = ArrayVec::<Mbuf, 4>::new();
        last.extend([packet(&own, 8), packet(&other, 9), packet(&own, 10), packet(&own, 11)]);
        assert_eq!(fifo.hand_over(&mut last).take_while(3, |_| true), 3);
        assert_eq!(last[0].data()[0], 11, "the rest moves to the front");
        fifo.free(5, &mut cache);
        assert_eq!(other.stats().in_use, 1);
        assert_eq!(clone.data()[0], 3, "shared data outlives the freed packet");
        fifo.free(1, &mut cache);
        drop((clone, more, last, cache, fifo));
        assert_eq!((own.stats().shared, other.stats().shared), (64, 64));
    }

    #[test]
    fn chains_are_taken_apart_across_the_wrap_and_freed_in_bulk() {
        let (own, other) = (pool(64), pool(64));
        let mut cache = own.cache();
        let mut fifo = MbufFifo::new(&own, 8);
        (fifo.head, fifo.tail, fifo.complex_end) = (u32::MAX - 3, u32::MAX - 3, u32::MAX - 3);
        let chain = |tags: &[u8]| {
            let mut first = packet(&own, tags[0]);
            tags[1..].iter().for_each(|tag| first.chain(packet(&own, *tag)).unwrap());
            first
        };
        let mut next = 0;
        for round in 0..40u8 {
            let mut packets = ArrayVec::<Mbuf, 4>::new();
            packets.extend([chain(&[1, 2, 3]), chain(&[4, 5, 6])]);
            let mut run = fifo.hand_over(&mut packets);
            assert_eq!(run.take_chains::<2>(9, |_, _| true), 0, "not of two");
            let mut taken = 0;
            while !run.is_done() {
                taken += run.take_chains::<3>(9, |packet, segments| {
                    assert_eq!((packet.nb_segs(), packet.pkt_len()), (3, 60));
                    let tags = segments.map(|segment| segment.data()[0]);
                    tags == [1, 2, 3] || tags == [4, 5, 6]
                });
            }
            assert_eq!((taken, run.taken()), (2, 2));
            drop(run);
            assert_eq!((fifo.len(), fifo.complex_end), (6, fifo.tail), "all are simple");
            if round % 2 == 0 {
                let all = fifo.len();
                fifo.free(all, &mut cache);
            } else {
                while let Some(mbuf) = fifo.pop() {
                    assert_eq!((mbuf.nb_segs(), mbuf.data()[0]), (1, next % 6 + 1));
                    next += 1;
                }
            }
            // The next round starts elsewhere.
            fifo.push(packet(&own, 0)).unwrap();
            fifo.free(1, &mut cache);
        }
        // Whatever is shared, foreign to the pool, or refused stays whole.
        let shared = chain(&[7, 8]);
        let clone = shared.clone_ref(&mut cache).unwrap();
        let mut mixed = chain(&[9]);
        mixed.chain(packet(&other, 10)).unwrap();
        for (mbuf, answer) in [(shared, true), (mixed, true), (chain(&[11, 12]), false)] {
            let mut packets = ArrayVec::<Mbuf, 1>::new();
            packets.push(mbuf);
            assert_eq!(fifo.hand_over(&mut packets).take_chains::<2>(9, |_, _| answer), 0);
            assert_eq!((packets[0].nb_segs(), packets[0].pkt_len()), (2, 40));
        }
        drop((clone, cache, fifo));
        assert_eq!((own.stats().shared, other.stats().shared), (64, 64));
    }

    #[test]
    fn full_and_empty_and_refusals() {
        let pool = pool(8);
        let mut cache = pool.cache_with_size(4);
        let mut fifo = MbufFifo::new(&pool, 4);
        assert!(fifo.pop().is_none());
        assert_eq!(fifo.fill(&mut cache, 5, |_| ()), 4);
        assert_eq!(fifo.free_slots(), 0);
        let extra = packet(&pool, 9);
        let extra = fifo.push(extra).unwrap_err();
        assert_eq!(extra.data()[0], 9);
        let mut out = ArrayVec::<Mbuf, 8>::new();
        let mut arrivals = Lengths(vec![5, 129, 128, 0]);
        let two = fifo.pop_filled(&mut out, 9, &mut arrivals);
        assert_eq!((two, fifo.len(), out.len()), (2, 2, 2));
        assert_eq!(arrivals.0, [129, u32::MAX], "one byte more than a buffer has");
        assert_eq!((out[1].headroom(), out[1].data_len(), out[1].vlan_tci()), (128, 128, 128));
        assert!(fifo.pop_lined_up(1).is_none(), "no packet is lined up");
        assert_eq!((fifo.line_up(9), fifo.lined_up()), (2, 2));
        assert!(fifo.pop_lined_up(129).is_none());
        let one = fifo.pop_lined_up(128).unwrap();
        assert_eq!((one.headroom(), one.pkt_len(), fifo.len()), (128, 128, 1));
        fifo.push(one.clone_ref(&mut cache).unwrap()).unwrap();
        drop(one);
        assert!(fifo.pop_lined_up(1).is_none());
        assert_eq!((fifo.line_up(1), fifo.len()), (0, 2), "a clone is in the list");
        assert_eq!(fifo.pop_filled(&mut out, 9, &mut Lengths(vec![1])), 0);
        fifo.free(2, &mut cache);
        drop((out, extra));
        let mut big = MbufFifo::new(&pool, 16);
        assert_eq!(big.fill(&mut cache, 9, |_| ()), 0, "the pool has 8");
        assert_eq!(big.fill(&mut cache, 8, |_| ()), 8);
        drop((big, cache, fifo));
        assert_eq!(pool.stats().shared, 8);
    }
}
