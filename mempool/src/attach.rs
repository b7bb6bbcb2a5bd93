//! Data that lies elsewhere: clones that share another buffer's data, and external buffers.
#![expect(unsafe_code, reason = "reference counts and free callbacks by hand")]

use std::{fmt, mem, ptr::NonNull};

use crate::{
    cache::PoolCache,
    header::{Attachment, ExternalFree, Header},
    mbuf::{Mbuf, put_home},
    pool::MAX_DATA_ROOM_BYTES,
};

/// Memory of somebody else, to be sent as the data of a packet without a copy.
#[derive(Clone, Copy)]
pub struct ExternalBuffer {
    /// First byte.
    pub ptr: NonNull<u8>,
    /// Bytes: 1 to 65535.
    pub len_bytes: usize,
    /// The device's address of `ptr`.
    pub iova: u64,
    /// Local key that covers it, host order.
    pub lkey: u32,
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
            .finish_non_exhaustive()
    }
}

/// Whether the data of this header can be reached through it only, and may be borrowed.
///
/// # Safety
/// The caller's Mbuf owns `header`.
#[inline]
pub(crate) unsafe fn is_writable(header: *mut Header) -> bool {
    // SAFETY: as the caller promises.
    let (refs, foreign) = unsafe { (&(*header).refs, (*header).foreign) };
    // SAFETY: as above.
    let is_alone =
        || refs.is_plain() || (refs.is_unique() && unsafe { attachment_is_unique(header) });
    !foreign && is_alone()
}

/// # Safety
/// As for [`is_writable`].
#[cold]
unsafe fn attachment_is_unique(header: *mut Header) -> bool {
    // SAFETY: as the caller promises; a parent lives as long as this header counts on it, and the
    // pool as long as its buffers are out.
    unsafe {
        let cold = (*header).pool.as_ref().cold(NonNull::new_unchecked(header));
        match &(*cold.as_ptr()).attachment {
            Attachment::Indirect(parent) => (*parent.as_ptr()).refs.is_unique(),
            Attachment::External(_) | Attachment::None => true,
        }
    }
}

impl Mbuf {
    /// Another packet with the same data and metadata, without a copy: headers from `cache`, one
    /// for each segment, whose own data rooms lie idle meanwhile.
    ///
    /// While both live, the data is read-only through either. `None`, and nothing taken, if the
    /// cache's pool is exhausted or a segment has 16383 holders already.
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
    /// and used by nobody else. `free` may be called on any thread.
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
        let ExternalBuffer { ptr, len_bytes, iova, lkey, free, opaque } = buffer;
        // SAFETY: header and cold half are ours alone, since `refs` is plain.
        unsafe {
            (*self.cold().as_ptr()).attachment =
                Attachment::External(ExternalFree { free, ptr, opaque });
            (*h).refs.set_attached(true);
            (*h).buf = ptr.as_ptr();
            (*h).iova = iova;
            (*h).lkey_be = lkey.to_be();
            (*h).buf_len = len_bytes as u16;
            (*h).foreign = false;
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

    /// Lets go of a single segment. `true` if its header is now free, with its own room back: the
    /// caller then owns the header and puts it home. `false` if clones keep it.
    #[inline]
    pub(crate) fn release(&mut self) -> bool {
        // SAFETY: our header, which we give up.
        unsafe { release(self.header_ptr()) }
    }
}

/// The header that the data is counted on: the parent of a clone, else the header itself.
///
/// # Safety
/// The caller's Mbuf owns `header`.
unsafe fn owner_of(header: NonNull<Header>) -> NonNull<Header> {
    // SAFETY: as the caller promises; the pool lives as long as its buffers are out.
    unsafe {
        if (*header.as_ptr()).refs.is_attached() {
            let cold = (*header.as_ptr()).pool.as_ref().cold(header);
            if let Attachment::Indirect(parent) = &(*cold.as_ptr()).attachment {
                return *parent;
            }
        }
    }
    header
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
        (*clone.cold().as_ptr()).lengths = (*(*from).pool.as_ref().cold(header).as_ptr()).lengths;
        (*to).refs.set_attached(true);
        (*to).buf = (*from).buf;
        (*to).iova = (*from).iova;
        (*to).lkey_be = (*from).lkey_be;
        (*to).buf_len = (*from).buf_len;
        (*to).foreign = (*from).foreign;
        (*to).data_off = (*from).data_off;
        (*to).data_len = (*from).data_len;
        (*to).vlan_tci = (*from).vlan_tci;
        (*to).pkt_len = u32::from((*from).data_len);
        (*to).rss_hash = (*from).rss_hash;
        (*to).flow_mark = (*from).flow_mark;
        (*to).flags = (*from).flags;
    }
    Some(clone)
}

/// See [`Mbuf::release`].
///
/// # Safety
/// The caller holds one reference on `header`, which is not chained, and gives it up.
unsafe fn release(header: NonNull<Header>) -> bool {
    // SAFETY: as the caller promises.
    let refs = unsafe { &(*header.as_ptr()).refs };
    if refs.is_plain() {
        return true;
    }
    if !refs.release() {
        return false;
    }
    if refs.is_attached() {
        // SAFETY: the last holder.
        unsafe { detach(header) };
    }
    true
}

/// Ends an attachment and gives the header its own room back.
///
/// # Safety
/// The caller is the last holder of `header`, which is attached.
#[cold]
unsafe fn detach(header: NonNull<Header>) {
    // SAFETY: header and cold half are the caller's; the pool lives as long as its buffers are
    // out. A parent was counted on, so it is live until it is released here, once.
    unsafe {
        let pool = (*header.as_ptr()).pool;
        let cold = pool.as_ref().cold(header);
        let attachment = mem::take(&mut (*cold.as_ptr()).attachment);
        (*header.as_ptr()).refs.set_attached(false);
        pool.as_ref().restore_room(header);
        match attachment {
            Attachment::None => {}
            Attachment::Indirect(parent) => {
                if release(parent) {
                    put_home(parent);
                }
            }
            Attachment::External(ext) => (ext.free)(ext.ptr, ext.opaque),
        }
    }
}
