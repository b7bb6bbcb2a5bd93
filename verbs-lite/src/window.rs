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

use std::sync::Arc;

use ferrocx_core::Handle;
use ferrocx_prm::mkey::{ANY_QPN, AccessMode, Mkc};

use crate::context::DeviceCaps;
use crate::error::VerbsError;
use crate::fastreg::{Key, ListLayout, Mkey, Origin};
use crate::mr::create_mkey;
use crate::pd::{Pd, PdCore};
use crate::types::{Access, RemoteAddr, Rkey};
use crate::wr::{InvalidatedRkey, SendFlags};

#[cfg(doc)]
use crate::mr::Mr;

/// 16-byte units of translations of a window: one piece, in whole 64 bytes. Source: reference 6.4,
/// Linux 6.12 `mlx5_ib_alloc_mw`.
pub(crate) const WINDOW_OCTOWORDS: u32 = 4;

/// A window that is free: nobody can use it.
#[derive(Debug)]
pub struct Mw(pub(crate) Box<Key>);

/// A window that was bound, or will be when its request is carried out.
#[derive(Debug)]
pub struct BoundMw(pub(crate) Box<Key>);

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

/// A window that could not be revoked.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub struct RevokeMwError {
    /// The window: it may still be bound.
    pub mw: BoundMw,
    /// Why it was not revoked.
    pub cause: VerbsError,
}

impl Mw {
    /// The key of its last binding. Each binding has the low byte of the one before plus one.
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        Rkey(self.0.value())
    }

    /// Destroys it and says how that went.
    ///
    /// # Errors
    ///
    /// What the device refused; the window is then leaked.
    pub fn dealloc(self) -> Result<(), VerbsError> {
        self.0.mkey.destroy()
    }
}

impl BoundMw {
    /// The key for the peer.
    #[inline]
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        Rkey(self.0.value())
    }

    /// Address of the first byte, as the peer names it.
    #[inline]
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.0.start
    }

    /// Bytes.
    #[inline]
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.0.len
    }

    /// Rights of the peer.
    #[must_use]
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// Address and key of the first byte, for the peer.
    #[inline]
    #[must_use]
    pub fn remote(&self) -> RemoteAddr {
        RemoteAddr { addr: self.addr(), rkey: self.rkey() }
    }

    /// The window is free again because the peer ended it: `proof` stands in the completion that
    /// says so.
    ///
    /// # Errors
    ///
    /// The window and the proof, if it is of another key.
    pub fn invalidated_by(self, proof: InvalidatedRkey) -> Result<Mw, (Self, InvalidatedRkey)> {
        if proof.rkey() == self.rkey() { Ok(self.into_free()) } else { Err((self, proof)) }
    }

    /// Ends the window now, in whatever state it is, by destroying it and making another. When this
    /// returns, no access through it succeeds. A command: not for the data path.
    ///
    /// # Errors
    ///
    /// The window, and what the device refused: try again.
    pub fn revoke(mut self) -> Result<Mw, RevokeMwError> {
        let key = &mut self.0;
        let variant = key.pd.core.next_variant();
        let result = create(&key.pd, variant).and_then(|new| Ok((key.mkey.destroy()?, new)));
        match result {
            Ok(((), new)) => {
                (key.mkey, key.variant) = (Mkey::new(new), variant);
                Ok(self.into_free())
            }
            Err(cause) => Err(RevokeMwError { mw: self, cause }),
        }
    }

    /// The caller knows that the device does not hold it bound.
    pub(crate) fn into_free(mut self) -> Mw {
        self.0.region = None;
        Mw(self.0)
    }
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
        let pd = &self.inner;
        if !pd.core.attr.caps.contains(DeviceCaps::MEM_WINDOW_TYPE_2) {
            let (what, way_out) = ("memory windows", "grant the peer a region of its own");
            return Err(VerbsError::Unsupported { what, way_out });
        }
        let variant = pd.core.next_variant();
        Ok(Mw(Box::new(Key {
            mkey: Mkey::new(create(pd, variant)?),
            pd: Arc::clone(pd),
            layout: ListLayout::Pieces,
            max_len: 1,
            variant,
            start: 0,
            len: 0,
            access: Access::empty(),
            memory: None,
            mbuf: None,
            region: None,
            origin: Origin::default(),
            peer: 0,
        })))
    }
}

/// Creates a free window. Source: reference 6.4; Linux 6.12 `mlx5_ib_alloc_mw`.
fn create(pd: &PdCore, variant: u8) -> Result<Handle, VerbsError> {
    let mkc = Mkc::zeroed()
        .with_free(true)
        .with_umr_en(true)
        .with_lr(true)
        .with_en_rinval(true)
        .with_access_mode(AccessMode::KLM)
        .with_qpn(ANY_QPN)
        .with_pd(pd.number())
        .with_mkey_7_0(variant.into())
        .with_translations_octword_size(WINDOW_OCTOWORDS);
    create_mkey(pd, mkc, Vec::new())
}
