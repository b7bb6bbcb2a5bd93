//! [`Ends`]: where a queue pair completes.

use std::sync::Arc;

use super::{QpConfig, QpQueues, QpType};
use crate::context::ContextCore;
use crate::error::VerbsError;
use crate::mr::Buffers;
use crate::names::Name;
use crate::share::Share;
use crate::srq::{Srq, SrqCore};
use crate::xrcd::XrcdCore;

/// Where the requests of a queue pair complete, and where its receives come from.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) send_share: Share,
    /// `None` when a shared receive queue keeps the room, or there are no receives.
    pub(super) recv_share: Option<Share>,
    pub(super) srq: Option<Arc<SrqCore>>,
    /// Of XRC.
    pub(super) xrcd: Option<Arc<XrcdCore>>,
    /// Of sends, and of receives.
    pub(super) cqns: [u32; 2],
    /// The numbers that its completions have there.
    pub(super) names: Vec<Name>,
}

impl Ends {
    /// Reserves the room of everything but a target's.
    pub(super) fn new<B: Buffers>(
        core: &Arc<ContextCore>,
        queues: &QpQueues<'_, B>,
        config: &QpConfig,
    ) -> Result<Self, VerbsError> {
        let &QpQueues { send_cq, recv_cq, srq } = queues;
        let (qp_type, srq) = (config.qp_type, srq.map(Srq::core));
        qp_type.check_shared(srq.map(|srq| srq.is_xrc()))?;
        let send_share = send_cq.reserve(core, config.max_send_wr)?;
        let mut ends = Self {
            send_share,
            recv_share: None,
            srq: srq.map(Arc::clone),
            xrcd: None,
            cqns: [send_cq.number(), recv_cq.number()],
            names: Vec::new(),
        };
        match srq {
            Some(srq) => srq.reserve(core, recv_cq)?,
            None if qp_type == QpType::XrcSend => {
                let xrcd = XrcdCore::of_initiators(core)?;
                // It has no receives, and names a queue for them all the same. Source: Linux 6.12
                // `qp.c`, "Set default resources".
                ends.cqns[1] = xrcd.no_cq().number();
                ends.xrcd = Some(xrcd);
            }
            None => ends.recv_share = Some(recv_cq.reserve(core, config.max_recv_wr)?),
        }
        Ok(ends)
    }
}
