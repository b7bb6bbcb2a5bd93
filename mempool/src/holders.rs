//! Who holds a buffer, and what the last holder does: reference counts, attachments, the way home.
#![expect(unsafe_code, reason = "reference counts by hand, and a pool that its last buffer ends")]

use std::{mem, ptr::NonNull, sync::atomic::Ordering::Relaxed};

use crate::{
    header::{Attachment, Header, PoolInner},
    objects::Core,
};

/// Whether nobody but the caller's Mbuf can reach the data of this header: no clone shares it.
///
/// # Safety
/// The caller's Mbuf owns `header`.
#[inline]
pub(crate) unsafe fn is_alone(header: *mut Header) -> bool {
    // SAFETY: as the caller promises.
    let refs = unsafe { &(*header).refs };
    // SAFETY: as the caller promises.
    refs.is_plain() || (refs.is_unique() && unsafe { attachment_is_unique(header) })
}

/// Whether the data of this header can be reached through it only, and may be borrowed.
///
/// # Safety
/// The caller's Mbuf owns `header`.
#[inline]
pub(crate) unsafe fn is_writable(header: *mut Header) -> bool {
    // SAFETY: as the caller promises.
    unsafe { !(*header).foreign && is_alone(header) }
}

/// Whether no other holder counts on the data of a header with an attachment.
///
/// # Safety
/// The caller's Mbuf owns `header`.
#[cold]
unsafe fn attachment_is_unique(header: *mut Header) -> bool {
    // SAFETY: as the caller promises; a parent lives as long as this header counts on it, and the
    // pool as long as its buffers are out.
    unsafe {
        let cold = (*header).home.pool().as_ref().cold(NonNull::new_unchecked(header));
        match &(*cold.as_ptr()).attachment {
            Attachment::Indirect(parent) => (*parent.as_ptr()).refs.is_unique(),
            Attachment::External(_) | Attachment::Slice(_) | Attachment::None => true,
        }
    }
}

/// The header that the data is counted on: the parent of a clone, else the header itself.
///
/// # Safety
/// The caller's Mbuf owns `header`.
#[inline]
pub(crate) unsafe fn owner_of(header: NonNull<Header>) -> NonNull<Header> {
    // SAFETY: as the caller promises; the pool lives as long as its buffers are out.
    unsafe {
        if (*header.as_ptr()).refs.is_attached() {
            let cold = (*header.as_ptr()).home.pool().as_ref().cold(header);
            if let Attachment::Indirect(parent) = &(*cold.as_ptr()).attachment {
                return *parent;
            }
        }
    }
    header
}

/// Who may use the key of this header's data: what the data's pool is stamped with, or what came
/// with an external buffer.
///
/// # Safety
/// The caller's Mbuf owns `header`.
#[inline]
pub(crate) unsafe fn domain_of(header: NonNull<Header>) -> u32 {
    // SAFETY: as the caller promises; a parent, which is attached to no other header but as a
    // slice whose own parent is attached to none, lives and keeps its attachment as long as this
    // header counts on it, and a pool lives as long as its buffers are out.
    unsafe {
        // The usual case: nothing is shared or attached.
        if let Some(pool) = (*header.as_ptr()).home.unmarked() {
            return pool.as_ref().domain.load(Relaxed);
        }
        let owner = owner_of(header);
        let pool = (*owner.as_ptr()).home.pool().as_ref();
        if (*owner.as_ptr()).refs.is_attached() {
            match &(*pool.cold(owner).as_ptr()).attachment {
                Attachment::External(external) => return external.domain,
                Attachment::Slice(parent) => {
                    return (*parent.as_ptr()).home.pool().as_ref().domain.load(Relaxed);
                }
                Attachment::Indirect(_) | Attachment::None => {}
            }
        }
        pool.domain.load(Relaxed)
    }
}

/// Lets go of a single segment. `true` if its header is now free, with its own room back: the
/// caller then owns the header and puts it home. `false` if clones keep it.
///
/// # Safety
/// The caller holds one reference on `header`, which is not chained, and gives it up.
#[inline]
pub(crate) unsafe fn release(header: NonNull<Header>) -> bool {
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
        let pool = (*header.as_ptr()).home.pool();
        let cold = pool.as_ref().cold(header);
        let attachment = mem::take(&mut (*cold.as_ptr()).attachment);
        (*header.as_ptr()).refs.set_attached(false);
        pool.as_ref().restore_room(header);
        match attachment {
            Attachment::None => {}
            Attachment::Indirect(parent) | Attachment::Slice(parent) => {
                if release(parent) {
                    put_home(parent);
                }
            }
            Attachment::External(ext) => (ext.free)(ext.ptr, ext.opaque),
        }
    }
}

/// Gives a free header to the shared list of its pool, and ends the pool if that was all it
/// waited for.
///
/// # Safety
/// The header is in the state of a free one (see [`Header`]) and nobody uses it any more.
pub(crate) unsafe fn put_home(header: NonNull<Header>) {
    // SAFETY: the pool lives until this header is in its list; the last of all is told to end it.
    unsafe {
        (*header.as_ptr()).home.unmark();
        let pool: NonNull<PoolInner> = (*header.as_ptr()).home.pool();
        let core = &raw const (*pool.as_ptr()).core;
        (*core).mark_home(header);
        if Core::put_shared(core, &[header]) {
            end(pool);
        }
    }
}

/// Ends a pool whose handles are gone and whose buffers are home.
///
/// # Safety
/// [`Core::put_shared`] or [`Core::drop_handle`] told the caller, and so nobody else, to do it.
#[cold]
pub(crate) unsafe fn end(pool: NonNull<PoolInner>) {
    // SAFETY: the caller is the one that ends it; after `wait_home` no other thread touches it.
    unsafe {
        pool.as_ref().core.wait_home();
        drop(Box::from_raw(pool.as_ptr()));
    }
}
