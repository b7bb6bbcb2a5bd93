//! The header of a buffer, one cache line in memory that no device can reach, and the part of a
//! pool that all its headers point to.
#![expect(unsafe_code, reason = "headers and their pool point to each other")]

use std::{
    mem::offset_of,
    ops::Range,
    ptr::{self, NonNull},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

use crate::{
    flags::TxLengths,
    home::Home,
    keys::{INVALID_LKEY, PoolKeys},
    objects::Core,
    refcount::RefCount,
    region::Region,
};

/// The hot half. While a buffer is in use, only the holder of its [`crate::Mbuf`] touches it, but
/// for `refs`; the fields of a header whose `Mbuf` is gone and that clones keep alive are read by
/// nobody until the last of them frees it.
///
/// In the pool `refs` is plain, `next` null, `nb_segs` 1, and `buf`, `iova`, `lkey_be`, `buf_len`,
/// `foreign` are the pool's own; the other fields are what the last user left. Always
/// `data_off + data_len <= buf_len`, and `home` has no mark unless `refs` is not plain or was not
/// once, or `next` is not null.
#[repr(C, align(64))]
pub(crate) struct Header {
    /// First byte of the data room.
    pub(crate) buf: *mut u8,
    /// The device's address of the first byte of the data room.
    pub(crate) iova: u64,
    /// Next segment of the packet.
    pub(crate) next: *mut Header,
    /// The pool that this header belongs to, and whether it may be other than simple.
    pub(crate) home: Home<PoolInner>,
    /// Key of the memory at `buf`, big-endian, ready for a WQE.
    pub(crate) lkey_be: u32,
    /// Bytes at `buf`.
    pub(crate) buf_len: u16,
    pub(crate) refs: RefCount,
    /// Segments of the packet, in its first header; 1 in all others.
    pub(crate) nb_segs: u8,
    /// Whether the data lies in memory that this process shares with its owner, and never borrows.
    pub(crate) foreign: bool,
    pub(crate) data_off: u16,
    // From here to the end are the fields that `clear` zeroes, two wide stores.
    /// Bytes of data in this segment.
    pub(crate) data_len: u16,
    pub(crate) vlan_tci: u16,
    /// Bytes of data in all segments, in the first header.
    pub(crate) pkt_len: u32,
    /// As in a completion, big-endian: who never looks at it, swaps no bytes.
    pub(crate) rss_hash_be: u32,
    /// The same; its highest byte, the first in memory, means nothing.
    pub(crate) flow_mark_be: u32,
    /// `OlFlags` in bits 23 to 0, packet type above.
    pub(crate) flags: u32,
}

// `Marks` are written over both.
const _: () = assert!(offset_of!(Header, flags) == offset_of!(Header, flow_mark_be) + 4);

#[cfg(not(loom))]
const _: () = assert!(size_of::<Header>() == 64 && align_of::<Header>() == 64);

// SAFETY: the pointers lead to memory of the pool and to other headers, none of which is bound to
// a thread; see the type's docs for who may touch what.
unsafe impl Send for Header {}

impl Header {
    pub(crate) fn new(buf: *mut u8, buf_len: u16, foreign: bool, pool: NonNull<PoolInner>) -> Self {
        Self {
            buf,
            iova: 0,
            next: ptr::null_mut(),
            home: Home::new(pool),
            lkey_be: INVALID_LKEY.to_be(),
            buf_len,
            refs: RefCount::new(),
            nb_segs: 1,
            foreign,
            data_off: 0,
            data_len: 0,
            vlan_tci: 0,
            pkt_len: 0,
            rss_hash_be: 0,
            flow_mark_be: 0,
            flags: 0,
        }
    }

    /// Empties the room, `data_off` bytes into it, and forgets what the last user noted.
    ///
    /// # Safety
    /// The caller's Mbuf owns `header`, a single one whose room has `data_off` bytes.
    #[inline(always)]
    pub(crate) unsafe fn clear(header: NonNull<Header>, data_off: u16) {
        let h = header.as_ptr();
        // SAFETY: as the caller promises. No reference to the whole header is made, since clones
        // on other threads change its `refs`.
        unsafe {
            (*h).data_off = data_off;
            (*h).data_len = 0;
            (*h).vlan_tci = 0;
            (*h).pkt_len = 0;
            (*h).rss_hash_be = 0;
            (*h).flow_mark_be = 0;
            (*h).flags = 0;
        }
    }
}

/// The cold half, in an array of its own.
#[derive(Default)]
pub(crate) struct Cold {
    pub(crate) attachment: Attachment,
    pub(crate) lengths: TxLengths,
    /// When the packet came, in ticks of the device that received it.
    pub(crate) rx_ticks: u64,
    /// Name of the packet, for its send timestamp.
    pub(crate) tx_id: u64,
}

/// Where the data of a header lies, if not in its own room.
#[derive(Default)]
pub(crate) enum Attachment {
    #[default]
    None,
    /// In the room (or external buffer) of another header, on whose `refs` this one counts.
    Indirect(NonNull<Header>),
    /// In a part of the room of another header, on whose `refs` this one counts, and that is no
    /// other header's: see [`crate::Sliced`].
    Slice(NonNull<Header>),
    /// In memory that is not of the pool.
    External(ExternalFree),
}

/// How an external buffer is given back, and who may use its key.
pub(crate) struct ExternalFree {
    pub(crate) free: unsafe fn(NonNull<u8>, usize),
    pub(crate) ptr: NonNull<u8>,
    pub(crate) opaque: usize,
    pub(crate) domain: u32,
}

/// The part of a pool that all handles and buffers share. Freed by [`crate::holders::end`].
pub(crate) struct PoolInner {
    pub(crate) core: Core<Header>,
    /// One entry per header: a leaked box.
    pub(crate) cold: NonNull<Cold>,
    pub(crate) region: Arc<Region>,
    /// The bytes of the region that are this pool's.
    pub(crate) range: Range<usize>,
    pub(crate) stride: usize,
    pub(crate) foreign: bool,
    pub(crate) data_room: u16,
    pub(crate) headroom: u16,
    pub(crate) cache_size: usize,
    pub(crate) keys: Mutex<Option<PoolKeys>>,
    /// IOVA of the first data room and key, for headers that get their own room back. Written
    /// only while all buffers are at home.
    pub(crate) iova: AtomicU64,
    pub(crate) lkey_be: AtomicU32,
    /// [`PoolKeys::domain`] of the keys in the headers, 0 when they mean nothing.
    pub(crate) domain: AtomicU32,
}

impl PoolInner {
    /// The cold half of a header of this pool.
    #[inline]
    pub(crate) fn cold(&self, header: NonNull<Header>) -> NonNull<Cold> {
        // SAFETY: the array has one entry per header.
        unsafe { self.cold.add(self.core.index_of(header) as usize) }
    }

    /// Writes a header's own room, address and key into it, with nothing in the room.
    ///
    /// # Safety
    /// `header` is this pool's, and the caller its only user.
    pub(crate) unsafe fn restore_room(&self, header: NonNull<Header>) {
        let offset = self.core.index_of(header) as usize * self.stride;
        let h = header.as_ptr();
        // SAFETY: exclusive (caller); the room lies inside the region.
        unsafe {
            (*h).buf = self.region.as_ptr().add(self.range.start + offset);
            (*h).iova = self.iova.load(Relaxed).wrapping_add(offset as u64);
            (*h).lkey_be = self.lkey_be.load(Relaxed);
            (*h).buf_len = self.data_room;
            (*h).foreign = self.foreign;
            (*h).data_off = self.headroom;
            (*h).data_len = 0;
        }
    }
}

impl Drop for PoolInner {
    fn drop(&mut self) {
        let cold = NonNull::slice_from_raw_parts(self.cold, self.core.count() as usize);
        // SAFETY: a box that `Pool::with_region` leaked; all buffers are home.
        drop(unsafe { Box::from_raw(cold.as_ptr()) });
        self.region.unclaim(&self.range);
    }
}

/// A field of the first header.
macro_rules! header {
    ($mbuf:expr, $field:ident) => {
        // SAFETY: the Mbuf owns its header; `&self` or `&mut self` of the method decides whether
        // others may read or nobody may. No reference to the whole header is made, since clones
        // on other threads change its `refs`.
        unsafe { (*$mbuf.0.as_ptr()).$field }
    };
}

/// Where the first header notes its pool.
macro_rules! home {
    ($mbuf:expr) => {
        // SAFETY: as in `header!`; a word that is accessed atomically.
        unsafe { &(*$mbuf.0.as_ptr()).home }
    };
}

/// Writes a field of the first header.
macro_rules! set_header {
    ($mbuf:expr, $field:ident, $value:expr) => {{
        let value = $value;
        // SAFETY: `&mut self` of the method: the Mbuf is the only user of this field.
        unsafe { (*$mbuf.0.as_ptr()).$field = value }
    }};
}

pub(crate) use {header, home, set_header};
