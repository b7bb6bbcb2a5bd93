//! [`HandOver`]: packets on their way from an array into the list, or back.
#![expect(unsafe_code, reason = "elements from taken to len are packets of the hand-over")]

use std::{
    mem::{ManuallyDrop, MaybeUninit},
    ptr::{self, NonNull},
    slice,
};

use arrayvec::ArrayVec;

use super::{MbufFifo, Packet};
use crate::{
    chain::Segment,
    header::{Header, PoolInner},
    mbuf::Mbuf,
};

/// Packets on their way into an [`MbufFifo`]: see [`MbufFifo::hand_over`].
#[derive(Debug)]
pub struct HandOver<'a, const N: usize> {
    pub(super) fifo: &'a mut MbufFifo,
    /// Of length 0 meanwhile: elements `taken..len` are packets that the hand-over owns.
    pub(super) packets: &'a mut ArrayVec<Mbuf, N>,
    pub(super) len: usize,
    pub(super) taken: usize,
}

impl MbufFifo {
    /// Starts to move packets from the front of `packets` to the end of the list. What is left when
    /// the hand-over ends stays in `packets`.
    #[inline(always)]
    pub fn hand_over<'a, const N: usize>(
        &'a mut self,
        packets: &'a mut ArrayVec<Mbuf, N>,
    ) -> HandOver<'a, N> {
        self.end_line();
        let len = packets.len();
        // SAFETY: the hand-over owns the packets until its end.
        unsafe { packets.set_len(0) };
        HandOver { fifo: self, packets, len, taken: 0 }
    }
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
        self.fifo.room()
    }

    /// Moves packets into the list, at most `max`, as long as `each` answers `true`. Returns how
    /// many.
    ///
    /// Stops at the end of the array, too: a result smaller than asked for says nothing until
    /// the next call answers 0.
    #[inline(always)]
    pub fn take_while(&mut self, max: usize, mut each: impl FnMut(Packet<'_>) -> bool) -> usize {
        let start = self.fifo.index(self.fifo.head);
        let room = self.fifo.room().min(self.fifo.slots.len() - start);
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
        }
        self.fifo.head = self.fifo.head.wrapping_add(n as u32);
        self.taken += n;
        n
    }

    /// Does what [`HandOver::take_while`] does, at most a packet for each of `places`, which `each`
    /// is shown with it.
    #[inline(always)]
    pub fn take_while_each<P>(
        &mut self,
        places: &[P],
        mut each: impl FnMut(Packet<'_>, &P) -> bool,
    ) -> usize {
        let mut at = 0;
        self.take_while(places.len(), |packet| {
            // SAFETY: it is asked no more often than there are places.
            let place = unsafe { places.get_unchecked(at) };
            at += 1;
            each(packet, place)
        })
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
        // SAFETY: `taken <= len`, and the array has as many elements.
        let front = unsafe { self.packets.as_ptr().add(self.taken) };
        let (pool, room) = (self.fifo.pool.inner_ptr(), self.fifo.room());
        // A chain that goes on at the other end of the array is put together here, so that `each`
        // stands in the code once: else it may become a function, and what it changes stand in
        // memory.
        let mut split = [const { MaybeUninit::uninit() }; K];
        let is_split = to_end < K;
        let slots = if is_split {
            &mut slice::from_mut(&mut split)[..most.min(room / K).min(1)]
        } else {
            let most = most.min(room.min(to_end) / K);
            self.fifo.slots[start..start + most * K].as_chunks_mut::<K>().0
        };
        let mut n = 0;
        while n < slots.len() {
            // SAFETY: one of `taken..len`.
            let Some(buffers) = (unsafe { offer::<K>(front.add(n), pool, &mut each) }) else {
                break;
            };
            slots[n] = buffers;
            n += 1;
        }
        if is_split && n != 0 {
            self.fifo.put_behind(&split);
        }
        self.fifo.head = self.fifo.head.wrapping_add((n * K) as u32);
        self.taken += n;
        n
    }

    /// Does what [`HandOver::take_chains`] does with chains of two, for an `each` that is so short
    /// that the compiler lets it stand in the code twice: the loop needs fewer registers.
    #[inline(always)]
    pub fn take_pairs(
        &mut self,
        max: usize,
        mut each: impl FnMut(Packet<'_>, [Segment<'_>; 2]) -> bool,
    ) -> usize {
        let start = self.fifo.index(self.fifo.head);
        let to_end = self.fifo.slots.len() - start;
        let most = max.min(self.len - self.taken);
        if to_end < 2 {
            // The chain that goes on at the other end of the array.
            let one = most.min(self.fifo.room() / 2).min(1);
            return self.take_pair(one, each);
        }
        let most = most.min(self.fifo.room().min(to_end) / 2);
        // SAFETY: `taken <= len`, and the array has as many elements.
        let front = unsafe { self.packets.as_ptr().add(self.taken) };
        let pool = self.fifo.pool.inner_ptr();
        let (slots, _) = self.fifo.slots[start..start + most * 2].as_chunks_mut::<2>();
        let mut n = 0;
        while n < slots.len() {
            // SAFETY: one of `taken..len`.
            let Some(buffers) = (unsafe { offer::<2>(front.add(n), pool, &mut each) }) else {
                break;
            };
            slots[n] = buffers;
            n += 1;
        }
        self.fifo.head = self.fifo.head.wrapping_add((n * 2) as u32);
        self.taken += n;
        n
    }

    /// As [`HandOver::take_pairs`]: at most `max` chains, for which there is room.
    #[inline(always)]
    fn take_pair(
        &mut self,
        max: usize,
        mut each: impl FnMut(Packet<'_>, [Segment<'_>; 2]) -> bool,
    ) -> usize {
        let pool = self.fifo.pool.inner_ptr();
        for n in 0..max {
            // SAFETY: one of `taken..len`: `max` chains are left.
            let offered =
                unsafe { offer::<2>(self.packets.as_ptr().add(self.taken), pool, &mut each) };
            let Some(buffers) = offered else { return n };
            self.fifo.put_behind(&buffers);
            self.fifo.head = self.fifo.head.wrapping_add(2);
            self.taken += 1;
        }
        max
    }

    /// Moves chains of up to `MOST` segments into the list, at most `max`, as long as `each`
    /// answers `true`, and takes them apart as [`HandOver::take_chains`] does. Returns how many.
    /// Stops at the first packet that is not a chain of buffers of the list's pool that nobody
    /// shares, and at one that has more segments than that, or than the list has room for.
    #[inline(always)]
    pub fn take_long_chains<const MOST: usize>(
        &mut self,
        max: usize,
        mut each: impl for<'s> FnMut(Packet<'s>, Parts<'s>) -> bool,
    ) -> usize {
        let most = max.min(self.len - self.taken);
        let pool = self.fifo.pool.inner_ptr();
        let mut split = [const { MaybeUninit::uninit() }; MOST];
        for n in 0..most {
            // SAFETY: one of `taken..len`, and a copy that is not dropped: the original leaves when
            // its segments belong to the list, and is given back if `each` panics.
            let mbuf =
                ManuallyDrop::new(unsafe { ptr::read(self.packets.as_ptr().add(self.taken)) });
            let segments = mbuf.nb_segs();
            let start = self.fifo.index(self.fifo.head);
            if segments < 2 || segments > MOST || segments > self.fifo.room() {
                return n;
            }
            // A chain that goes on at the other end of the array is put together elsewhere.
            let is_split = segments > self.fifo.slots.len() - start;
            let slots = if is_split {
                &mut split[..segments]
            } else {
                &mut self.fifo.slots[start..start + segments]
            };
            let Some(parts) = lay_out(&mbuf, pool, slots) else { return n };
            if !each(Packet { mbuf: &mbuf, is_simple: false }, parts.clone()) {
                return n;
            }
            // SAFETY: the packet and its chain are the hand-over's, which gives them to the list:
            // all segments are plain. What is not last loses its successor; what is, has none.
            unsafe {
                (*mbuf.0.as_ptr()).nb_segs = 1;
                for header in parts.headers {
                    (*header.as_ptr()).next = ptr::null_mut();
                    (*header.as_ptr()).home.unmark_of(pool);
                }
            }
            if is_split {
                self.fifo.put_behind(&split[..segments]);
            }
            self.fifo.head = self.fifo.head.wrapping_add(segments as u32);
            self.taken += 1;
        }
        most
    }

    /// Takes the next packet out without adding it to the list.
    pub fn refuse(&mut self) -> Option<Mbuf> {
        let mbuf = ptr::from_ref(self.rest().first()?);
        self.taken += 1;
        // SAFETY: the next packet, which is behind `taken` now.
        Some(unsafe { ptr::read(mbuf) })
    }
}

impl MbufFifo {
    /// Puts buffers behind the head, which stays, wherever the array ends.
    fn put_behind(&mut self, buffers: &[MaybeUninit<Mbuf>]) {
        for (n, buffer) in buffers.iter().enumerate() {
            let at = self.index(self.head.wrapping_add(n as u32));
            // SAFETY: a copy of a handle, or of nothing: the other one is never used.
            self.slots[at] = unsafe { ptr::read(buffer) };
        }
    }
}

/// The segments of a chain: see [`HandOver::take_long_chains`].
#[derive(Debug, Clone)]
pub struct Parts<'s> {
    /// All are those of one packet, which is borrowed.
    headers: slice::Iter<'s, NonNull<Header>>,
}

impl<'s> Iterator for Parts<'s> {
    type Item = Segment<'s>;

    #[inline(always)]
    fn next(&mut self) -> Option<Segment<'s>> {
        // SAFETY: as the field says.
        self.headers.next().map(|header| unsafe { Segment::of(*header) })
    }
}

/// Writes the segments of a chain, which has as many as there are slots; `None` unless all are
/// plain buffers of the pool.
#[inline(always)]
fn lay_out<'s>(
    mbuf: &'s Mbuf,
    pool: NonNull<PoolInner>,
    slots: &'s mut [MaybeUninit<Mbuf>],
) -> Option<Parts<'s>> {
    let (last, before) = slots.split_last_mut()?;
    let mut header = mbuf.0;
    for slot in before {
        // SAFETY: a header of the chain that the Mbuf owns.
        if !unsafe { &(*header.as_ptr()).home }.is_only_chained(pool) {
            return None;
        }
        slot.write(Mbuf(header));
        // SAFETY: as above. The mark says that a segment follows.
        header = unsafe { NonNull::new_unchecked((*header.as_ptr()).next) };
    }
    // SAFETY: as above.
    if !unsafe { &(*header.as_ptr()).home }.is_unmarked(pool) {
        return None;
    }
    last.write(Mbuf(header));
    // SAFETY: all slots are written, and an Mbuf is a transparent pointer to a header.
    let headers =
        unsafe { slice::from_raw_parts(slots.as_ptr().cast::<NonNull<Header>>(), slots.len()) };
    Some(Parts { headers: headers.iter() })
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
        for header in &headers[..K - 1] {
            (*header.as_ptr()).next = ptr::null_mut();
            (*header.as_ptr()).home.unmark_of(pool);
        }
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
