//! [`Sliced`]: a buffer that a device fills with many packets, one behind the other.
#![expect(unsafe_code, reason = "reference counts by hand, and rooms inside of rooms")]

use std::{marker::PhantomData, mem, ops::Range, ptr, ptr::NonNull};

use crate::{
    header::{Attachment, Header, PoolInner},
    mbuf::Mbuf,
    pool::Pool,
    refcount::MAX_REFS,
};

/// Bytes that [`Sliced::copy`] moves at once, as far as there is room for them.
const CHUNK: usize = 64;

/// A buffer of which packets are cut off, front to back, while a device still fills the rest.
///
/// A packet either takes its part as its data room ([`Sliced::cut`]), or a copy of it
/// ([`Sliced::copy`]). Parts never overlap, so each is its packet's alone, to write to as well. The
/// buffer goes back to its pool when `Sliced` and all such packets are gone, on whichever thread
/// the last of them is freed. Counting them costs nothing a packet: as many holders as there may be
/// are counted beforehand.
#[derive(Debug)]
pub struct Sliced {
    header: NonNull<Header>,
    /// Its room, which nobody changes: first byte, length, and whether it may be borrowed.
    buf: *mut u8,
    len: u32,
    is_foreign: bool,
    /// Holders that were counted and that no packet is.
    unused: u16,
    /// What lies in front of this byte was given away.
    end: u32,
}

// SAFETY: the only user of the header but for its reference count, which is atomic, and of the
// room behind `end`, as an `Mbuf` is.
unsafe impl Send for Sliced {}

impl Sliced {
    /// Most packets that can be cut off one buffer.
    pub const MAX_SLICES: u16 = MAX_REFS - 1;

    /// Begins to cut up to `slices` packets off a buffer.
    ///
    /// # Errors
    /// The buffer, if it is not a single one that nobody shares and nothing is attached to, or for
    /// more than [`Sliced::MAX_SLICES`].
    pub fn new(buffer: Mbuf, slices: u16) -> Result<Self, Mbuf> {
        if slices > Self::MAX_SLICES || !buffer.is_simple() {
            return Err(buffer);
        }
        let header = buffer.into_raw().0;
        // SAFETY: the Mbuf owned it, and so does what is made here.
        unsafe {
            let h = header.as_ptr();
            (*h).refs.share(slices);
            (*h).home.mark_shared();
            let (buf, len, is_foreign) = ((*h).buf, (*h).buf_len.into(), (*h).foreign);
            Ok(Self { header, buf, len, is_foreign, unused: slices, end: 0 })
        }
    }

    /// Makes `room` bytes of the buffer, from byte `at` on, the data room of `packet`, whose first
    /// `len` bytes are its data. Its own room lies idle until it is freed.
    ///
    /// `false`, and no change, if some of these bytes are given away already or not the buffer's,
    /// `len` is above `room`, no slice is left, or `packet` is not a single buffer that nobody
    /// shares and nothing is attached to.
    #[inline]
    #[must_use]
    pub fn cut(&mut self, packet: &mut Mbuf, at: u32, room: u32, len: u32) -> bool {
        if !self.is_free(at, room) || len > room || self.unused == 0 || !packet.is_simple() {
            return false;
        }
        self.end = at + room;
        self.unused -= 1;
        let (from, to) = (self.header.as_ptr(), packet.header_ptr().as_ptr());
        // SAFETY: (1) both headers are ours, and `packet`'s has no other user; (2) `at + room` is
        // at most the room of the buffer; (3) the parent lives as long as this one counts on it:
        // it is one of the holders that `new` counted.
        unsafe {
            (*packet.cold().as_ptr()).attachment = Attachment::Slice(self.header);
            (*to).refs.set_attached(true);
            (*to).home.mark_shared();
            (*to).buf = self.buf.add(at as usize);
            (*to).iova = (*from).iova.wrapping_add(u64::from(at));
            (*to).lkey_be = (*from).lkey_be;
            (*to).buf_len = room as u16;
            (*to).foreign = self.is_foreign;
            (*to).data_off = 0;
            (*to).data_len = len as u16;
            (*to).pkt_len = len;
        }
        true
    }

    /// Overwrites the data of `packet`, as long as it is, with a copy of what the buffer has from
    /// byte `at` on, and gives the `room` bytes there away. What is behind the data is lost.
    ///
    /// `false`, and no change, if some of these bytes are given away already or not the buffer's,
    /// the data is longer, `packet` is not a single buffer that nobody shares and nothing is
    /// attached to, or the memory of either [is foreign](Mbuf::is_foreign).
    #[inline(always)]
    #[must_use]
    pub fn copy(&mut self, packet: &mut Mbuf, at: u32, room: u32) -> bool {
        let len = packet.data_len();
        let is_own = packet.is_simple() && !packet.is_foreign() && !self.is_foreign;
        if !self.is_free(at, room) || len > room as usize || !is_own {
            return false;
        }
        self.end = at + room;
        let to_room = packet.room_bytes() - packet.headroom();
        // SAFETY: (1) `at + room` is within the buffer, `len` within `room` and what `packet` has
        // from its data on; (2) a simple packet's room is its own, which is not the buffer's, so
        // they do not overlap; (3) the device is done with these bytes, nobody else has them, and
        // no foreign memory is among them; they were zeroed when they were mapped.
        unsafe {
            let from = self.buf.add(at as usize);
            copy_chunks((from, room as usize), (packet.data_ptr(), to_room), len);
        }
        true
    }

    /// Starts to copy packets out of some bytes of the buffer, one behind the other, into simple
    /// buffers of `pool`: what is the same for all of them is looked up once.
    ///
    /// `None` if some of these bytes are given away already or not the buffer's, and if the memory
    /// of either [is foreign](Mbuf::is_foreign).
    #[inline(always)]
    pub fn copier<'a>(&'a mut self, pool: &'a Pool, bytes: Range<u32>) -> Option<Copier<'a>> {
        let is_foreign = self.is_foreign || pool.is_foreign();
        if is_foreign || bytes.start < self.end || bytes.end < bytes.start || bytes.end > self.len {
            return None;
        }
        // SAFETY: within the room of the buffer.
        let from = unsafe { self.buf.add(bytes.start as usize) };
        Some(Copier {
            from,
            left: bytes.end - bytes.start,
            to_room: pool.data_room_bytes(),
            home: pool.inner_ptr(),
            last: bytes.end,
            end: &mut self.end,
            pool: PhantomData,
        })
    }

    /// Whether `room` bytes from `at` on are the buffer's, and not given away.
    #[inline(always)]
    fn is_free(&self, at: u32, room: u32) -> bool {
        at >= self.end && u64::from(at) + u64::from(room) <= u64::from(self.len)
    }

    /// Ends it. The buffer comes back if no packet has a part of it; else the last such packet
    /// takes it home.
    #[must_use]
    pub fn into_buffer(self) -> Option<Mbuf> {
        let this = mem::ManuallyDrop::new(self);
        // SAFETY: `this` is not used again.
        unsafe { this.release() }
    }

    /// Gives up the holders that no packet became.
    ///
    /// # Safety
    /// To be called once, and last.
    unsafe fn release(&self) -> Option<Mbuf> {
        // SAFETY: our header, with one holder that is `self`, and `unused` others.
        let is_last = unsafe { (*self.header.as_ptr()).refs.release_many(self.unused + 1) };
        is_last.then(|| {
            // SAFETY: the last holder, of a buffer that was simple when it was taken.
            unsafe { (*self.header.as_ptr()).home.unmark() };
            Mbuf(self.header)
        })
    }

    /// Forgets the buffer without freeing it: a device may still write to it.
    pub fn leak(self) {
        mem::forget(self);
    }
}

/// Copies packets out of a [`Sliced`], see [`Sliced::copier`].
#[derive(Debug)]
pub struct Copier<'a> {
    /// The bytes that are left.
    from: *const u8,
    left: u32,
    /// The pool of the packets, and the bytes of a room of it.
    home: NonNull<PoolInner>,
    to_room: usize,
    /// The byte behind those that are left, and where to note what was given away.
    last: u32,
    end: &'a mut u32,
    /// Another pool could have its place once it is gone.
    pool: PhantomData<&'a Pool>,
}

/// Bytes of a [`Sliced`], for one packet.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    from: *const u8,
    room: u32,
    of: PhantomData<&'a Sliced>,
}

impl<'a> Copier<'a> {
    /// The next `room` bytes; `None`, and no change, for no bytes, or more than are left.
    #[inline(always)]
    pub fn next_part(&mut self, room: u32) -> Option<Part<'a>> {
        if room.wrapping_sub(1) >= self.left {
            return None;
        }
        let part = Part { from: self.from, room, of: PhantomData };
        // SAFETY: `room` bytes are left.
        self.from = unsafe { self.from.add(room as usize) };
        self.left -= room;
        Some(part)
    }

    /// Where the next part begins in the buffer.
    #[inline(always)]
    #[must_use]
    pub fn at(&self) -> u32 {
        self.last - self.left
    }

    /// Overwrites the data of `packet`, as long as it is, with a copy of a part's first bytes. What
    /// is behind the data is lost. `false`, and no change, if the data is longer, or `packet` is
    /// no simple buffer of the pool, see [`Mbuf::is_simple_of`].
    #[inline(always)]
    #[must_use]
    pub fn copy(&self, part: Part<'a>, packet: &mut Mbuf) -> bool {
        let (len, room) = (packet.data_len(), part.room as usize);
        if len > room || !packet.is_simple_in(self.home) {
            return false;
        }
        // A simple buffer has the room of its pool, and its data lies in there.
        let to_room = self.to_room - packet.headroom();
        // SAFETY: as of `Sliced::copy`. The part is of bytes that were not given away when the
        // copier was made, and has borrowed the buffer since.
        unsafe {
            if len <= CHUNK && CHUNK <= room && CHUNK <= to_room {
                ptr::copy_nonoverlapping(part.from, packet.data_ptr(), CHUNK);
            } else {
                copy_chunks((part.from, room), (packet.data_ptr(), to_room), len);
            }
        }
        true
    }
}

impl Drop for Copier<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        *self.end = self.at();
    }
}

/// Copies `len` bytes, in whole chunks where there is room for the last.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of so many bytes, they do not overlap, and both
/// have `len` at least.
#[inline(never)]
unsafe fn copy_chunks(
    (from, from_room): (*const u8, usize),
    (to, to_room): (*mut u8, usize),
    len: usize,
) {
    let rounded = len.next_multiple_of(CHUNK);
    // SAFETY: `len`, and `rounded` where it is used, are within both.
    unsafe {
        if rounded > from_room || rounded > to_room {
            return ptr::copy_nonoverlapping(from, to, len);
        }
        let mut done = 0;
        while done < len {
            ptr::copy_nonoverlapping(from.add(done), to.add(done), CHUNK);
            done += CHUNK;
        }
    }
}

impl Drop for Sliced {
    fn drop(&mut self) {
        // SAFETY: the end of it.
        drop(unsafe { self.release() });
    }
}
