//! [`Sliced`]: a buffer that a device fills with many packets, one behind the other.
#![expect(unsafe_code, reason = "reference counts by hand, and rooms inside of rooms")]

use std::{mem, ptr, ptr::NonNull};

use crate::{
    header::{Attachment, Header},
    mbuf::Mbuf,
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
        let rounded = len.next_multiple_of(CHUNK);
        let fits = rounded <= room as usize && rounded <= packet.room_bytes() - packet.headroom();
        // SAFETY: (1) `at + room` is within the buffer, and `len`, and `rounded` where it is used,
        // within `room` and within what `packet` has from its data on; (2) a simple packet's room
        // is its own, which is not the buffer's, so they do not overlap; (3) the device is done
        // with these bytes, nobody else has them, and no foreign memory is among them; they were
        // zeroed when they were mapped.
        unsafe {
            let (from, to) = (self.buf.add(at as usize), packet.data_ptr());
            if fits {
                let mut done = 0;
                while done < len {
                    ptr::copy_nonoverlapping(from.add(done), to.add(done), CHUNK);
                    done += CHUNK;
                }
            } else {
                ptr::copy_nonoverlapping(from, to, len);
            }
        }
        true
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
        is_last.then(|| Mbuf(self.header))
    }

    /// Forgets the buffer without freeing it: a device may still write to it.
    pub fn leak(self) {
        mem::forget(self);
    }
}

impl Drop for Sliced {
    fn drop(&mut self) {
        // SAFETY: the end of it.
        drop(unsafe { self.release() });
    }
}
