//! Memory windows of type 2: keys over a part of a region, for the peer of one queue pair.
//!
//! Binding is a work request: no command, no page list. A window is bound to a [`Mr`] that was
//! registered with [`Access::MW_BIND`], and to the queue pair that bound it: its key works for that
//! queue pair's peer alone (type 2B). It ends by a work request of the same queue pair, by a SEND
//! with invalidate of the peer, or with [`BoundMw::revoke`].
//!
//! # States
//!
//! | state | held as | next, and by what |
//! |---|---|---|
//! | free | [`Mw`] | [`Qp::post_bind_mw`](crate::Qp::post_bind_mw) |
//! | posted, then bound | [`BoundMw`] | [`Qp::post_local_inv_mw`](crate::Qp::post_local_inv_mw), or the peer |
//! | invalidating | the queue pair | the completion brings a [`Mw`] |
//!
//! The region of a bound window cannot end before it: [`Mr::dereg`] says
//! [`VerbsError::WindowsBound`]. Of failures and flushes the same is true as of fast registration,
//! see [`crate::fastreg`]: a window whose invalidation was flushed comes back as
//! [`Returned::StaleMw`](crate::Returned::StaleMw), may still be bound, and is ended by `revoke` or
//! by dropping it.
//!
//! ```compile_fail,E0382
//! # use ferrocx_verbs_lite::*;
//! fn twice(qp: &mut Qp, mw: BoundMw) {
//!     let _ = qp.post_local_inv_mw(1, SendFlags::SIGNALED, mw);
//!     let _ = qp.post_local_inv_mw(2, SendFlags::SIGNALED, mw);
//! }
//! ```

use ferrocx_prm::mkey::{AccessMode, Mkc};

use crate::context::DeviceCaps;
use crate::error::VerbsError;
use crate::fastreg::{BoundKey, FreeKey, Key, ListLayout};
use crate::pd::Pd;
use crate::types::Access;
use crate::wr::SendFlags;

#[cfg(doc)]
use crate::mr::Mr;

/// 16-byte units of translations of a window: one piece, in whole 64 bytes. Source: reference 6.4,
/// Linux 6.12 `mlx5_ib_alloc_mw`.
pub(crate) const WINDOW_OCTOWORDS: u32 = 4;

/// A window that is free: nobody can use it.
pub type Mw = FreeKey<true>;

/// A window that was bound, or will be when its request is carried out.
pub type BoundMw = BoundKey<true>;

/// How a window is bound.
#[derive(Debug, Clone, Copy)]
pub struct BindMw {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// How it is carried out.
    pub flags: SendFlags,
    /// Rights of the peer; with [`Access::ZERO_BASED`], addresses count from the first byte of
    /// the window. The region must have [`Access::LOCAL_WRITE`] if the peer may write.
    pub access: Access,
}

impl Pd {
    /// Makes a memory window.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Unsupported`] without [`DeviceCaps::MEM_WINDOW_TYPE_2`], or what the device
    /// refused.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(&self) -> Result<Mw, VerbsError> {
        if !self.inner.core.attr.caps.contains(DeviceCaps::MEM_WINDOW_TYPE_2) {
            let (what, way_out) = ("memory windows", "grant the peer a region of its own");
            return Err(VerbsError::Unsupported { what, way_out });
        }
        // Source: reference 6.4; Linux 6.12 `mlx5_ib_alloc_mw`.
        let mkc = Mkc::zeroed()
            .with_free(true)
            .with_umr_en(true)
            .with_lr(true)
            .with_en_rinval(true)
            .with_access_mode(AccessMode::KLM)
            .with_translations_octword_size(WINDOW_OCTOWORDS);
        Ok(FreeKey(Key::new(&self.inner, ListLayout::Pieces, 1, mkc)?))
    }
}
