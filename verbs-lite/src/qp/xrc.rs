//! Posting of requests that name a shared receive queue. Source: reference 6.4.

use ferrocx_prm::wqe::Xrc;

use super::sq::Sq;
use super::{NAMES_SRQ, Qp, QpType};
use crate::error::{PostError, Refused};
use crate::mr::Buffers;
use crate::types::Srqn;
use crate::wr::SendWr;

impl<B: Buffers> Qp<B> {
    /// Posts a request of an initiator of [XRC](crate::xrc) that names a shared receive queue of
    /// the peer; rings like [`Qp::post_send`]. It has the operations of RC. WRITEs, READs and
    /// atomics, too, name a queue: they reach memory in its protection domain.
    ///
    /// # Errors
    ///
    /// [`PostError`], with the buffers: [`PostError::Operation`] for another service. Nothing was
    /// posted then.
    #[doc(alias = "ibv_post_send")]
    pub fn post_send_xrc(
        &mut self,
        to: Srqn,
        wr: &SendWr<'_>,
        buffers: Option<B>,
    ) -> Result<(), Refused<Option<B>>> {
        self.sq.push_xrc(to, wr, None, buffers)
    }

    /// Posts a request like [`Qp::post_send_xrc`], whose data are copied into it.
    ///
    /// # Errors
    ///
    /// [`PostError`], as of [`Qp::post_send_xrc`].
    pub fn post_send_xrc_inline(
        &mut self,
        to: Srqn,
        wr: &SendWr<'_>,
        data: &[u8],
    ) -> Result<(), PostError> {
        self.sq.push_xrc(to, wr, Some(data), None).map_err(|refused| refused.cause)
    }
}

impl<B: Buffers> Sq<B> {
    fn push_xrc(
        &mut self,
        Srqn(srqn): Srqn,
        wr: &SendWr<'_>,
        inline: Option<&[u8]>,
        held: Option<B>,
    ) -> Result<(), Refused<Option<B>>> {
        let has_operation = QpType::Rc.operations() >> wr.op.number() & 1 != 0;
        let checked = self.check(NAMES_SRQ);
        let checked = checked.and(has_operation.then_some(()).ok_or(PostError::Operation));
        self.push_checked(checked, &Xrc::zeroed().with_xrc_srqn(srqn).0, wr, inline, held)
    }
}
