//! The header of a buffer: one cache line, in memory that no device can reach.
#![expect(unsafe_code, reason = "a header may move to another thread")]

use std::ptr::{self, NonNull};

use crate::{
    flags::{OlFlags, TxLengths},
    pool::PoolInner,
    refcount::RefCount,
};

/// `lkey` of a buffer that was never stamped: the key that ends a scatter list, valid for nothing.
/// Source: mlx5 `MLX5_INVALID_LKEY`.
pub(crate) const INVALID_LKEY: u32 = 0x100;

/// The hot half. While a buffer is in use, only the holder of its [`crate::Mbuf`] touches it, but
/// for `refs`; the fields of a header whose `Mbuf` is gone and that clones keep alive are read by
/// nobody until the last of them frees it.
///
/// In the pool `refs` is plain, `next` null, `nb_segs` 1, and `buf`, `iova`, `lkey_be`, `buf_len`,
/// `foreign` are the pool's own; the other fields are what the last user left. Always
/// `data_off + data_len <= buf_len`.
#[repr(C, align(64))]
pub(crate) struct Header {
    /// First byte of the data room.
    pub(crate) buf: *mut u8,
    /// The same for the device.
    pub(crate) iova: u64,
    /// Next segment of the packet.
    pub(crate) next: *mut Header,
    /// The pool that this header belongs to, wherever its data lies.
    pub(crate) pool: NonNull<PoolInner>,
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
    /// Bytes of data in this segment.
    pub(crate) data_len: u16,
    pub(crate) vlan_tci: u16,
    /// Bytes of data in all segments, in the first header.
    pub(crate) pkt_len: u32,
    pub(crate) rss_hash: u32,
    pub(crate) flow_mark: u32,
    /// [`OlFlags`] in bits 23 to 0, packet type above.
    pub(crate) flags: u32,
}

/// Position of the packet type in `flags`.
pub(crate) const PACKET_TYPE_SHIFT: u32 = 24;
const _: () = assert!(OlFlags::all().bits() < 1 << PACKET_TYPE_SHIFT);

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
            pool,
            lkey_be: INVALID_LKEY.to_be(),
            buf_len,
            refs: RefCount::new(),
            nb_segs: 1,
            foreign,
            data_off: 0,
            data_len: 0,
            vlan_tci: 0,
            pkt_len: 0,
            rss_hash: 0,
            flow_mark: 0,
            flags: 0,
        }
    }
}

/// The cold half, in an array of its own.
#[derive(Default)]
pub(crate) struct Cold {
    pub(crate) attachment: Attachment,
    pub(crate) lengths: TxLengths,
}

/// Where the data of a header lies, if not in its own room.
#[derive(Default)]
pub(crate) enum Attachment {
    #[default]
    None,
    /// In the room (or external buffer) of another header, on whose `refs` this one counts.
    Indirect(NonNull<Header>),
    /// In memory that is not of the pool.
    External(ExternalFree),
}

/// How an external buffer is given back.
pub(crate) struct ExternalFree {
    pub(crate) free: unsafe fn(NonNull<u8>, usize),
    pub(crate) ptr: NonNull<u8>,
    pub(crate) opaque: usize,
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

/// Writes a field of the first header.
macro_rules! set_header {
    ($mbuf:expr, $field:ident, $value:expr) => {{
        let value = $value;
        // SAFETY: `&mut self` of the method: the Mbuf is the only user of this field.
        unsafe { (*$mbuf.0.as_ptr()).$field = value }
    }};
}

pub(crate) use {header, set_header};
