//! Data that lies elsewhere: clones that share another buffer's data, and external buffers.
#![expect(unsafe_code, reason = "reference counts and free callbacks by hand")]

use std::{fmt, ptr::NonNull};

use crate::{
    cache::PoolCache,
    header::{Attachment, ExternalFree, Header},
    holders::owner_of,
    mbuf::Mbuf,
    pool::MAX_DATA_ROOM_BYTES,
};

/// Memory of somebody else, to be sent as the data of a packet without a copy.
#[derive(Clone, Copy)]
pub struct ExternalBuffer {
    /// First byte.
    pub ptr: NonNull<u8>,
    /// Bytes: 1 to 65535.
    pub len_bytes: usize,
    /// The address of `ptr` in the I/O address space of the device that `lkey` is for.
    pub iova: u64,
    /// Local key that covers it, host order.
    pub lkey: u32,
    /// Who may use the key, as in [`PoolKeys::domain`](crate::PoolKeys::domain): 0 if nobody may
    /// take it from here.
    pub domain: u32,
    /// Whether others may write to the bytes at any time: a peer's memory, a buffer that a remote
    /// key covers. They are then never borrowed, see [`Mbuf::is_foreign`].
    pub is_foreign: bool,
    /// Called with `ptr` and `opaque` exactly once: when the packet and all its clones are gone,
    /// on the thread that frees the last of them.
    pub free: unsafe fn(NonNull<u8>, usize),
    /// Passed to `free`.
    pub opaque: usize,
}

impl fmt::Debug for ExternalBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalBuffer")
            .field("ptr", &self.ptr)
            .field("len_bytes", &self.len_bytes)
            .field("lkey", &format_args!("{:#x}", self.lkey))
            .field("domain", &self.domain)
            .field("is_foreign", &self.is_foreign)
            .finish_non_exhaustive()
    }
}

impl Mbuf {
    /// Another packet with the same data and metadata, without a copy: headers from `cache`, one
    /// for each segment, whose own data rooms lie idle meanwhile.
    ///
    /// While both live, the data is read-only through either. `None`, and nothing taken, if the
    /// cache's pool is exhausted or a segment has 16383 holders already.
    #[doc(alias = "rte_pktmbuf_clone")]
    pub fn clone_ref(&self, cache: &mut PoolCache) -> Option<Mbuf> {
        let mut first: Option<Mbuf> = None;
        let mut segment = Some(self.header_ptr());
        while let Some(header) = segment {
            // SAFETY: a header of the chain that `self` owns.
            let clone = unsafe { clone_segment(header, cache)? };
            match &mut first {
                None => first = Some(clone),
                // A chain of `self`'s length is one that `chain` takes.
                Some(first) => first.chain(clone).ok()?,
            }
            // SAFETY: as above.
            segment = NonNull::new(unsafe { (*header.as_ptr()).next });
        }
        first
    }

    /// Makes `buffer` the data of this packet, all of it. What was in its own room is lost.
    ///
    /// # Safety
    /// From now until `free` is called, the bytes are valid for reads and writes, initialised,
    /// and used by nobody else; if `is_foreign`, nobody borrows them, and others use them by atomic
    /// accesses only. As long, they are at `iova` under `lkey` for every device and protection
    /// domain that `domain` stands for. `free` may be called on any thread.
    ///
    /// # Errors
    /// The buffer comes back, and `free` will not be called, if its length is out of range, or if
    /// this packet has clones, several segments or an attachment.
    pub unsafe fn attach_external(&mut self, buffer: ExternalBuffer) -> Result<(), ExternalBuffer> {
        let h = self.header_ptr().as_ptr();
        // SAFETY: our header.
        let single = unsafe { (*h).refs.is_plain() && (*h).next.is_null() };
        if !single || !(1..=MAX_DATA_ROOM_BYTES).contains(&buffer.len_bytes) {
            return Err(buffer);
        }
        let ExternalBuffer { ptr, len_bytes, iova, lkey, domain, is_foreign, free, opaque } =
            buffer;
        // SAFETY: header and cold half are ours alone, since `refs` is plain.
        unsafe {
            (*self.cold().as_ptr()).attachment =
                Attachment::External(ExternalFree { free, ptr, opaque, domain });
            (*h).refs.set_attached(true);
            (*h).home.mark_shared();
            (*h).buf = ptr.as_ptr();
            (*h).iova = iova;
            (*h).lkey_be = lkey.to_be();
            (*h).buf_len = len_bytes as u16;
            (*h).foreign = is_foreign;
            (*h).data_off = 0;
            (*h).data_len = len_bytes as u16;
            (*h).pkt_len = len_bytes as u32;
        }
        Ok(())
    }

    /// Holders of the first segment's data: this packet and its clones.
    #[must_use]
    pub fn ref_count(&self) -> usize {
        // SAFETY: our header; a parent lives as long as we count on it.
        unsafe { usize::from((*owner_of(self.header_ptr()).as_ptr()).refs.count()) }
    }
}

/// A header from `cache` that shares the data of one segment.
///
/// # Safety
/// The caller's Mbuf owns `header`.
unsafe fn clone_segment(header: NonNull<Header>, cache: &mut PoolCache) -> Option<Mbuf> {
    let clone = cache.get()?;
    let to = clone.header_ptr().as_ptr();
    // SAFETY: `header` is live and nobody writes to it while its Mbuf is borrowed; `to` is ours
    // alone. A parent lives as long as `header` counts on it, and then as `to` does.
    unsafe {
        let parent = owner_of(header);
        if !(*parent.as_ptr()).refs.retain() {
            cache.put(clone);
            return None;
        }
        let from = header.as_ptr();
        (*clone.cold().as_ptr()).attachment = Attachment::Indirect(parent);
        let cold = (*from).home.pool().as_ref().cold(header).as_ptr();
        (*clone.cold().as_ptr()).lengths = (*cold).lengths;
        (*clone.cold().as_ptr()).rx_ticks = (*cold).rx_ticks;
        (*clone.cold().as_ptr()).tx_id = (*cold).tx_id;
        (*parent.as_ptr()).home.mark_shared_once();
        (*to).refs.set_attached(true);
        (*to).home.mark_shared();
        (*to).buf = (*from).buf;
        (*to).iova = (*from).iova;
        (*to).lkey_be = (*from).lkey_be;
        (*to).buf_len = (*from).buf_len;
        (*to).foreign = (*from).foreign;
        (*to).data_off = (*from).data_off;
        (*to).data_len = (*from).data_len;
        (*to).vlan_tci = (*from).vlan_tci;
        (*to).pkt_len = u32::from((*from).data_len);
        (*to).rss_hash_be = (*from).rss_hash_be;
        (*to).flow_mark_be = (*from).flow_mark_be;
        (*to).flags = (*from).flags;
    }
    Some(clone)
}
