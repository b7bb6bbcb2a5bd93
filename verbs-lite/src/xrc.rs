//! XRC: connections whose requests each name a shared receive queue of the peer's, so that many
//! processes of a host share the connections to it.
//!
//! | object | made by | what it is |
//! |---|---|---|
//! | [`Xrcd`] | [`RdmaContext::alloc_xrcd`] | the domain: its targets lead to its shared queues, and to no others |
//! | [`Srq`] | [`Xrcd::create_srq`] | holds receives, and has a completion queue of its own |
//! | target | [`Xrcd::create_target`] | a [`Qp`] that only receives: for all shared queues of its domain |
//! | initiator | [`Pd::create_qp`] with [`QpType::XrcSend`](crate::QpType::XrcSend) | a [`Qp`] that only sends: [`Qp::post_send_xrc`] |
//!
//! An initiator is connected to one target, as two queue pairs of RC are. WRITEs, READs and atomics
//! name a shared queue, too: they reach memory in the protection domain of that queue.
//!
//! Completions of receives name the target, and carry the `user_index` of the shared queue: give
//! them to [`Srq::complete`]. A target has no others, and no completion tells of its failures:
//! [`Qp::query`] does.
//!
//! Source: IBTA vol. 1, annex A14; reference 4.9, 5.2, 6.4.

use std::sync::Arc;

use ferrocx_core::wq::XrcSrqAttr;

use crate::command::shared_ring;
use crate::context::RdmaContext;
use crate::cq::Cq;
use crate::error::VerbsError;
use crate::mr::Buffers;
use crate::pd::Pd;
use crate::qp::Qp;
use crate::srq::{Srq, SrqConfig};
use crate::xrcd::{Place, XrcdCore};

/// An XRC domain. A handle: clones are the same domain.
#[derive(Debug, Clone)]
#[doc(alias = "ibv_xrcd")]
pub struct Xrcd {
    inner: Arc<XrcdCore>,
}

impl RdmaContext {
    /// Makes an XRC domain.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Unsupported`] for a device without XRC, or what the device refused.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn alloc_xrcd(&self) -> Result<Xrcd, VerbsError> {
        Ok(Xrcd { inner: Arc::new(XrcdCore::new(self)?) })
    }
}

impl Xrcd {
    /// Its number, as the device knows it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.inner.number()
    }

    /// Makes a shared receive queue of the domain. Its receives, and the memory that requests reach
    /// which name it, are those of `pd`; receives complete in `cq`, with `user_index`: an index
    /// into the caller's own table, below 2^24 - 1, and of no other queue of the domain.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`], [`VerbsError::UserIndexTaken`], [`VerbsError::CqTooSmall`],
    /// [`VerbsError::OtherDevice`], or what the device refused.
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn create_srq<B: Buffers>(
        &self,
        pd: &Pd,
        cq: &Cq,
        user_index: u32,
        config: &SrqConfig,
    ) -> Result<Srq<B>, VerbsError> {
        VerbsError::range("user_index", user_index.into(), 0, 0xff_fffe)?;
        if !Arc::ptr_eq(self.inner.core(), &pd.inner.core) {
            return Err(VerbsError::OtherDevice { what: "the protection domain" });
        }
        let room = cq.reserve(self.inner.core(), config.max_wr)?;
        let place = Place::take(&self.inner, user_index, cq)?;
        let attr = XrcSrqAttr {
            xrcd: self.number(),
            pd: pd.number(),
            rlky: pd.inner.core.lkey.is_some(),
            cqn: cq.number(),
            user_index,
        };
        Srq::new(pd, config, |device, size| {
            let (ring, handle) = shared_ring(device, attr.pd, Some(&attr), size)?;
            Ok((ring, handle, Some((place, room))))
        })
    }

    /// Makes a queue pair in reset that receives for all shared queues of the domain. It is led to
    /// RTR or RTS like one of RC, and takes no requests.
    #[doc(alias = "IBV_QPT_XRC_RECV")]
    pub fn create_target<B: Buffers>(&self) -> Result<Qp<B>, VerbsError> {
        Qp::new_target(&self.inner)
    }
}
