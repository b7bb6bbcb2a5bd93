//! Packets of several segments.
#![expect(unsafe_code, reason = "headers are reached through pointers that the Mbuf owns")]

use std::{
    fmt,
    marker::PhantomData,
    mem::ManuallyDrop,
    ptr::{self, NonNull},
    slice,
};

use crate::{
    access,
    header::{Header, header, home, set_header},
    holders::{domain_of, is_alone},
    mbuf::Mbuf,
};

/// Most segments of one packet.
pub const MAX_SEGMENTS: u16 = u8::MAX as u16;

impl Mbuf {
    /// Segments of the packet.
    #[inline]
    #[must_use]
    pub fn nb_segs(&self) -> usize {
        usize::from(header!(self, nb_segs))
    }

    /// Puts `tail` behind the last segment. Its metadata is lost; its data is not moved.
    ///
    /// # Errors
    /// `tail` comes back if the packet would have more than [`MAX_SEGMENTS`].
    #[doc(alias = "rte_pktmbuf_chain")]
    pub fn chain(&mut self, tail: Mbuf) -> Result<(), Mbuf> {
        let Some(segs) = header!(self, nb_segs).checked_add(header!(tail, nb_segs)) else {
            return Err(tail);
        };
        let last = self.last();
        set_header!(self, nb_segs, segs);
        let pkt_len = header!(self, pkt_len).wrapping_add(header!(tail, pkt_len));
        set_header!(self, pkt_len, pkt_len);
        let tail = tail.into_raw().0.as_ptr();
        // SAFETY: both chains are ours; `last` ends the first.
        unsafe {
            (*tail).nb_segs = 1;
            (*last).next = tail;
            (*last).home.set_chained(true);
        }
        Ok(())
    }

    /// Takes off everything behind the first segment, as a packet of its own without metadata.
    pub fn take_next(&mut self) -> Option<Mbuf> {
        let next = NonNull::new(header!(self, next))?;
        let rest_len = header!(self, pkt_len).wrapping_sub(u32::from(header!(self, data_len)));
        let segs = header!(self, nb_segs);
        set_header!(self, next, ptr::null_mut());
        home!(self).set_chained(false);
        set_header!(self, nb_segs, 1);
        set_header!(self, pkt_len, u32::from(header!(self, data_len)));
        let rest = Self(next);
        set_header!(rest, nb_segs, segs - 1);
        set_header!(rest, pkt_len, rest_len);
        set_header!(rest, flags, 0);
        Some(rest)
    }

    /// The segments, first to last.
    #[inline]
    #[must_use]
    pub fn segments(&self) -> Segments<'_> {
        Segments { next: self.0.as_ptr(), packet: PhantomData }
    }

    /// Copies bytes `offset..offset + out.len()` of the packet, across segments. `false` if the
    /// packet is shorter; `out` then holds a part.
    ///
    /// [Foreign](Mbuf::is_foreign) segments are read too, which may be slow: each eight bytes of a
    /// BAR are a round trip over PCIe.
    #[must_use]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> bool {
        let (mut skip, mut done) = (offset, 0);
        for segment in self.segments() {
            let len = segment.data_len();
            let from = skip.min(len);
            skip -= from;
            let n = (len - from).min(out.len() - done);
            let part = &mut out[done..done + n];
            if segment.is_foreign() {
                // SAFETY: `from + n` bytes of data lie in the segment's room, which the pool keeps
                // mapped. Nobody borrows them, because `data` refuses to.
                unsafe { access::copy_out(segment.segment.data_ptr().add(from), part) };
            } else {
                part.copy_from_slice(&segment.data()[from..from + n]);
            }
            done += n;
        }
        skip == 0 && done == out.len()
    }

    /// The segments that are filled next: the last one that has data, else the first, and those
    /// behind it.
    pub(crate) fn tail(&self) -> Segments<'_> {
        let mut tail = self.segments();
        let mut rest = self.segments();
        let mut at = rest.next;
        while let Some(segment) = rest.next() {
            if segment.data_len() != 0 {
                tail.next = at;
            }
            at = rest.next;
        }
        tail
    }

    /// Adds `n` bytes to the data of the segments of [`Mbuf::tail`], as far as they have room.
    /// Gives the bytes for which there is none.
    pub(crate) fn fill_tail(&mut self, n: usize) -> usize {
        let (mut left, mut at) = (n, self.tail().next);
        while left > 0 && !at.is_null() {
            // SAFETY: a header of the chain that this Mbuf owns, whose lengths are ours to change;
            // always `data_off + data_len <= buf_len`.
            unsafe {
                let free = (*at).buf_len - (*at).data_off - (*at).data_len;
                let here = usize::from(free).min(left);
                (*at).data_len += here as u16;
                left -= here;
                at = (*at).next;
            }
        }
        left
    }

    pub(crate) fn last(&self) -> *mut Header {
        let mut h = self.0.as_ptr();
        // SAFETY: headers of a chain that this Mbuf owns, ended by null.
        unsafe {
            while !(*h).next.is_null() {
                h = (*h).next;
            }
        }
        h
    }
}

/// Iterator over the segments of a packet: see [`Mbuf::segments`].
#[derive(Debug, Clone)]
pub struct Segments<'a> {
    next: *mut Header,
    packet: PhantomData<&'a Mbuf>,
}

impl<'a> Iterator for Segments<'a> {
    type Item = Segment<'a>;

    #[inline]
    fn next(&mut self) -> Option<Segment<'a>> {
        let header = NonNull::new(self.next)?;
        // SAFETY: a header of the chain that the borrowed Mbuf owns.
        self.next = unsafe { (*header.as_ptr()).next };
        // SAFETY: as above.
        Some(unsafe { Segment::of(header) })
    }
}

/// One segment of a borrowed packet.
pub struct Segment<'a> {
    segment: ManuallyDrop<Mbuf>,
    packet: PhantomData<&'a Mbuf>,
}

impl<'a> Segment<'a> {
    /// The segment of a header.
    ///
    /// # Safety
    /// The header is one of a packet that is borrowed for `'a`.
    #[inline(always)]
    pub(crate) unsafe fn of(header: NonNull<Header>) -> Self {
        Self { segment: ManuallyDrop::new(Mbuf(header)), packet: PhantomData }
    }

    /// Its bytes.
    ///
    /// # Panics
    /// If it [is foreign](Segment::is_foreign).
    #[inline]
    #[must_use]
    pub fn data(&self) -> &'a [u8] {
        let data = self.segment.data();
        // SAFETY: the packet is borrowed for `'a`, and the data with it.
        unsafe { slice::from_raw_parts(data.as_ptr(), data.len()) }
    }

    /// Whether its bytes lie in [foreign](crate::Backing::Foreign) memory, see
    /// [`Mbuf::is_foreign`].
    #[inline]
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.segment.is_foreign()
    }

    /// Virtual address of its first byte.
    #[inline]
    #[must_use]
    pub fn data_address(&self) -> usize {
        self.segment.data_address()
    }

    /// The address of its first byte in the I/O address space of the device that stamped its pool,
    /// or that an external buffer was made for.
    #[inline]
    #[must_use]
    pub fn data_iova(&self) -> u64 {
        self.segment.data_iova()
    }

    /// Number of its bytes.
    #[inline]
    #[must_use]
    pub fn data_len(&self) -> usize {
        self.segment.data_len()
    }

    /// Free bytes behind its data.
    #[inline]
    #[must_use]
    pub fn tailroom(&self) -> usize {
        let used = usize::from(header!(self.segment, data_off)) + self.data_len();
        usize::from(header!(self.segment, buf_len)) - used
    }

    /// Who may use its key, as in [`PoolKeys::domain`](crate::PoolKeys::domain): 0 until the pool
    /// of its data is stamped.
    #[inline]
    #[must_use]
    pub fn domain(&self) -> u32 {
        // SAFETY: a header of the packet, which is borrowed.
        unsafe { domain_of(self.segment.header_ptr()) }
    }

    /// Whether no clone shares its data, so that a device may be told to write there.
    #[inline]
    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        // SAFETY: a header of the packet, which is borrowed.
        unsafe { is_alone(self.segment.header_ptr().as_ptr()) }
    }

    /// Local key, host order.
    #[inline]
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.segment.lkey()
    }

    /// Local key as it stands in a WQE.
    #[inline]
    #[must_use]
    pub fn lkey_be(&self) -> u32 {
        self.segment.lkey_be()
    }
}

impl fmt::Debug for Segment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment")
            .field("data_len", &self.data_len())
            .field("data_iova", &format_args!("{:#x}", self.data_iova()))
            .finish_non_exhaustive()
    }
}
