//! Memory windows: keys over a part of a region. Those with typed states are of type 2, for the
//! peer of one queue pair; [`UntypedMw`] is for programs that keep the state themselves.
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

use std::sync::Arc;

use ferrocx_prm::mkey::{AccessMode, Mkc};

use crate::context::DeviceCaps;
use crate::error::VerbsError;
use crate::fastreg::{BoundKey, FreeKey, Key, ListLayout};
use crate::mr::Mkey;
use crate::pd::{Pd, PdCore};
use crate::types::{Access, Lkey, Rkey};
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
        let mkc = self.window_context(MwKind::Type2)?;
        Ok(FreeKey(Key::new(&self.inner, ListLayout::Pieces, 1, mkc)?))
    }

    /// Makes a memory window whose state the caller keeps.
    ///
    /// # Errors
    ///
    /// Those of [`Pd::alloc_mw`].
    pub fn alloc_untyped_mw(&self, kind: MwKind) -> Result<UntypedMw, VerbsError> {
        let (mkey, value) = Mkey::create(&self.inner, self.window_context(kind)?, Vec::new())?;
        Ok(UntypedMw { mkey, value, kind, pd: Arc::clone(&self.inner) })
    }

    /// The context that a window is made with. Source: reference 6.4; Linux 6.12
    /// `mlx5_ib_alloc_mw`.
    fn window_context(&self, kind: MwKind) -> Result<Mkc, VerbsError> {
        if !self.inner.core.attr.caps.contains(DeviceCaps::MEM_WINDOW_TYPE_2) {
            let (what, way_out) = ("memory windows", "grant the peer a region of its own");
            return Err(VerbsError::Unsupported { what, way_out });
        }
        Ok(Mkc::zeroed()
            .with_free(true)
            .with_umr_en(true)
            .with_lr(true)
            .with_en_rinval(kind == MwKind::Type2)
            .with_access_mode(AccessMode::KLM)
            .with_translations_octword_size(WINDOW_OCTOWORDS))
    }
}

/// Who may use a window, and who may end it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "ibv_mw_type")]
pub enum MwKind {
    /// Any queue pair of the domain may be used with it; it ends when it is bound anew, to nothing
    /// for example.
    Type1,
    /// The peer of the queue pair that bound it alone may use it (type 2B); it ends by a local
    /// invalidate of that queue pair, or by the peer.
    Type2,
}

/// A window that may be bound and ended in any state: a wrong request is answered by the device,
/// with a completion of
/// [`CqeSyndrome::MW_BIND_ERR`](ferrocx_prm::syndrome::CqeSyndrome::MW_BIND_ERR).
///
/// Where the device lets the region end that it is bound to, as the model does, its key leads
/// nowhere from then on; an adapter refuses that. Dropping it destroys it, which ends it.
#[derive(Debug)]
pub struct UntypedMw {
    mkey: Arc<Mkey>,
    value: u32,
    kind: MwKind,
    pub(crate) pd: Arc<PdCore>,
}

impl UntypedMw {
    /// The key that it was made with. What it is bound with has the same upper 24 bits.
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        Rkey(self.value)
    }

    /// Its type.
    #[must_use]
    pub fn kind(&self) -> MwKind {
        self.kind
    }

    /// Destroys it: when this returns `Ok`, no access through it succeeds.
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn dealloc(&self) -> Result<(), VerbsError> {
        self.mkey.destroy()
    }
}

impl Drop for UntypedMw {
    fn drop(&mut self) {
        if let Err(error) = self.dealloc() {
            tracing::error!(rkey = self.value, %error, "memory window not destroyed");
        }
    }
}

/// How an [`UntypedMw`] is bound.
#[derive(Debug, Clone, Copy)]
pub struct BindUntyped {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// How it is carried out.
    pub flags: SendFlags,
    /// Rights of the peer; with [`Access::ZERO_BASED`], addresses count from the first byte of the
    /// window.
    pub access: Access,
    /// The key that the window has now.
    pub old: Rkey,
    /// Low byte of the key that it will have.
    pub variant: u8,
    /// Key of the region.
    pub lkey: Lkey,
    /// First address of the window, in the region's space.
    pub addr: u64,
    /// Bytes of the window, at most 2^31 - 1. Of none, it is ended.
    pub len_bytes: u64,
}
