//! [`HandOver`]: packets on their way from an array into the list, or back.
#![expect(unsafe_code, reason = "elements from taken to len are packets of the hand-over")]

use std::{
    mem::{ManuallyDrop, MaybeUninit},
    ptr::{self, NonNull},
    slice,
};

use arrayvec::ArrayVec;

use super::{MbufFifo, Packet};
use crate::{chain::Segment, header::PoolInner, mbuf::Mbuf};

/// Packets on their way into an [`MbufFifo`]: see [`MbufFifo::hand_over`].
#[derive(Debug)]
pub struct HandOver<'a, const N: usize> {
    pub(super) fifo: &'a mut MbufFifo,
    /// Of length 0 meanwhile: elements `taken..len` are packets that the hand-over owns.
    pub(super) packets: &'a mut ArrayVec<Mbuf, N>,
    pub(super) len: usize,
    pub(super) taken: usize,
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
        if to_end < K {
            // The chain that goes on at the other end of the array.
            let one = most.min(self.fifo.room() / K).min(1);
            return self.take_chains_at::<K>(one, each);
        }
        let most = most.min(self.fifo.room().min(to_end) / K);
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
    // Not a function of its own: what `each` changes would then have to stand in memory.
    #[inline(always)]
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
