//! Fast registration: keys that work requests bind to memory, end, and bind again.
//!
//! # States
//!
//! A key changes hands as it changes state, so that a wrong step does not compile:
//!
//! | state | held as | next, and by what |
//! |---|---|---|
//! | free | [`FastRegMr`] | [`Qp::post_fast_reg`](crate::Qp::post_fast_reg) takes it and a [`PageList`] |
//! | posted | [`RegisteredMr`] | the completion of the registration brings the list back |
//! | valid | [`RegisteredMr`] | [`Qp::post_local_inv`](crate::Qp::post_local_inv), `post_read_with_inv`, or the peer |
//! | invalidating | the queue pair | the completion brings a [`FastRegMr`] |
//!
//! The new key is known when the registration is posted, so requests that use it, and the one
//! that ends it, can be posted behind it at once: the device carries them out in order.
//!
//! Programs that keep keys in tables use [`KeySlot`], which owns a key in whatever state it is.
//!
//! # Packets
//!
//! A list can describe a packet, which then belongs to the list, from posting on to the key, and
//! comes out again when the key is known to have ended:
//!
//! | held by | from | out by |
//! |---|---|---|
//! | [`PageList`] | [`PageList::map_mbuf`] | [`PageList::take_mbuf`] |
//! | [`RegisteredMr`] | posting | nothing: peers may be using it |
//! | the queue pair | posting of the invalidation | its completion, or [`Returned::Stale`](crate::Returned::Stale) as before |
//! | [`FastRegMr`] | the key's end, however it came | [`FastRegMr::take_mbuf`] |
//!
//! So nobody borrows or frees a packet that peers may use, and its pool cannot be unregistered.
//!
//! # Failures
//!
//! When a queue pair fails, what was posted behind the failure is reported as flushed. Nobody can
//! tell how far it came: a registration or an invalidation needs no answer from the peer, so the
//! device may have carried it out before the failure was known. Therefore:
//!
//! | what was flushed or failed | the key | comes back as | way out |
//! |---|---|---|---|
//! | the registration | may be valid ([`MrState::Unknown`]) | the caller has it | [`RegisteredMr::revoke`] |
//! | the invalidation | may be valid | [`Returned::Stale`](crate::Returned::Stale) | the same |
//! | neither, and none was posted | valid | the caller has it | end it on another queue pair |
//!
//! [`RegisteredMr::revoke`] ends a key at once, unless its registration has not ended. Dropping it
//! destroys it, which ends it too: at once, or when the registration has ended, which keeps the
//! packet and the key's number until then. [`Qp::mr_state`](crate::Qp::mr_state) tells what is
//! known.

mod key;
mod list;
mod posted;
mod slot;

use std::sync::Arc;

use ferrocx_mempool::Mbuf;
use ferrocx_prm::mkey::Mkc;

pub(crate) use key::Key;
pub use key::{BoundKey, FreeKey, RevokeError};
pub(crate) use list::HeldMbuf;
pub use list::{ListLayout, PageList, PageListError, RefusedMbuf};
pub(crate) use posted::{Changes, Origin, Posted};
pub use slot::{KeySlot, KeyState};

use crate::context::DeviceCaps;
use crate::error::VerbsError;
use crate::mr::Memory;
use crate::pd::Pd;
use crate::types::{Access, Lkey};

/// Log2 of the page size that a key has before its first registration. Source: reference 5.1.
const FIRST_LOG_PAGE: u32 = 12;

/// A fast-register key that is free: nobody can use it. Its [`FreeKey::rkey`] is the key that the
/// next registration will have.
pub type FastRegMr = FreeKey<false>;

/// A fast-register key that was bound, or will be when its registration is carried out.
pub type RegisteredMr = BoundKey<false>;

/// Knowledge of a key that was registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MrState {
    /// The registration has not ended yet.
    Posted,
    /// Its registration was carried out: peers may use it as far as it grants.
    Valid,
    /// The registration failed or was flushed, or was posted elsewhere: it may be bound.
    Unknown,
}

impl FastRegMr {
    /// Entries that a page list may have.
    #[must_use]
    pub fn max_page_list_len(&self) -> u32 {
        self.0.max_len
    }

    /// Layout of its page lists.
    #[must_use]
    pub fn layout(&self) -> ListLayout {
        self.0.layout
    }

    /// The packet that it was bound to ([`PageList::map_mbuf`]), with what the peer has written:
    /// the key is known to have ended. One that is left here is freed with the key, or when another
    /// takes its place.
    #[must_use]
    pub fn take_mbuf(&mut self) -> Option<Mbuf> {
        self.0.mbuf.take().map(|held| held.mbuf)
    }

    /// Chooses the low byte of the key of the next registration. Without it, each registration
    /// has the byte of the one before plus one.
    pub fn update_fast_reg_key(&mut self, new_key: u8) {
        self.0.set_variant(new_key);
    }

    /// Lets it be bound to peer memory ([`PeerMr::memories`](crate::peer::PeerMr::memories)): it
    /// ends with that, so that no binding outlasts the owner's consent. Other memory needs no such
    /// thing. Takes a lock: for set-up.
    ///
    /// A key that was ended so is refused when it is posted, with
    /// [`PostError::Peer`](crate::PostError::Peer), and by the device if it was posted before. Drop
    /// it, or [`RegisteredMr::revoke`] it.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Revoked`] if the memory was taken back, [`VerbsError::OtherDevice`],
    /// [`VerbsError::Unsupported`] for a key that is attached to another peer region.
    pub fn attach(&mut self, memory: &Arc<Memory>) -> Result<(), VerbsError> {
        let key = &mut *self.0;
        if !Arc::ptr_eq(memory.core(), &key.pd.core) {
            return Err(VerbsError::OtherDevice { what: "the memory" });
        }
        if memory.peer() == 0 || memory.peer() == key.peer {
            return Ok(());
        }
        if key.peer != 0 {
            let (what, way_out) = ("keys for two peer regions", "make a key for each");
            return Err(VerbsError::Unsupported { what, way_out });
        }
        memory.note(Some(&key.mkey))?;
        key.peer = memory.peer();
        Ok(())
    }
}

impl RegisteredMr {
    /// The key for local use.
    #[inline]
    #[must_use]
    pub fn lkey(&self) -> Lkey {
        Lkey(self.0.value())
    }
}

/// A registration: the rights that it grants, and where the region starts.
#[derive(Debug, Clone, Copy)]
pub struct FastReg {
    /// Name of the request, which comes back in its completion.
    pub wr_id: u64,
    /// Flags of the request.
    pub flags: crate::SendFlags,
    /// Address of the first byte. Its place in a page must be that of the first byte of the list
    /// ([`PageList::first_offset`]).
    pub start: u64,
    /// Rights that the key grants.
    pub access: Access,
    /// The peer may end it with a SEND with invalidate.
    pub remote_invalidate: bool,
}

impl Pd {
    /// Makes a fast-register key for lists of up to `max_page_list_len` entries, rounded up to a
    /// multiple of 8.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Unsupported`] without [`DeviceCaps::MEM_MGT_EXTENSIONS`],
    /// [`VerbsError::OutOfRange`], or what the device refused.
    #[doc(alias = "ib_alloc_mr")]
    pub fn alloc_mr(
        &self,
        layout: ListLayout,
        max_page_list_len: u32,
    ) -> Result<FastRegMr, VerbsError> {
        let attr = &self.inner.core.attr;
        if !attr.caps.contains(DeviceCaps::MEM_MGT_EXTENSIONS) {
            let (what, way_out) = ("fast registration", "register memory with reg_mr");
            return Err(VerbsError::Unsupported { what, way_out });
        }
        layout.check()?;
        let most = attr.max_fast_reg_page_list_len.min(layout.most());
        VerbsError::range("max_page_list_len", max_page_list_len.into(), 1, most.into())?;
        let max_len = max_page_list_len.next_multiple_of(8).min(most);
        let first_log_page = if layout == ListLayout::Pieces { 0 } else { FIRST_LOG_PAGE };
        // Source: reference 5.1, "Fast-reg MR".
        let mkc = Mkc::zeroed()
            .with_free(true)
            .with_umr_en(true)
            .with_access_mode(layout.access_mode())
            .with_log_page_size(first_log_page)
            .with_translations_octword_size(layout.octowords(max_len));
        Ok(FreeKey(Key::new(&self.inner, layout, max_len, mkc)?))
    }
}
