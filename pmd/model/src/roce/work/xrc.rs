//! Which shared receive queue a request of XRC uses, and whose memory it reaches.

use super::env::Env;
use crate::objects::{Qp, SHARED_UID};
use crate::roce::transport::bth::{Header, Transport};

/// The shared receive queue that an XRC packet names. The queue pair of a user context takes from
/// those of this context only, though the domain be one for all.
///
/// # Source
///
/// Linux 6.12, `create_xrc_tgt_qp`: targets that a kernel makes for programs are the driver's own.
pub(super) fn queue(qp: &Qp, env: &Env<'_>, header: &Header) -> Result<u32, &'static str> {
    let srqn = header.xrc_srqn;
    let is_ours = env.srqs.get(srqn).is_some_and(|srq| srq.xrcd == qp.context.xrcd());
    if !is_ours {
        return Err("no such queue in this XRC domain");
    }
    if !matches!(env.owner, 0 | SHARED_UID) && env.srqs.owner(srqn) != Some(env.owner) {
        return Err("the queue belongs to the driver or to another user context");
    }
    Ok(srqn)
}

/// The protection domain in which a request reaches memory: the queue pair's; of an XRC request
/// that of the shared receive queue it names.
///
/// # Source
///
/// IBTA vol. 1, annex A14; Linux 6.12, whose XRC targets all have one domain of the driver's own.
pub(super) fn domain(qp: &Qp, env: &Env<'_>, header: &Header) -> Result<u32, &'static str> {
    if header.transport != Transport::Xrc {
        return Ok(qp.context.pd());
    }
    let srqn = queue(qp, env, header)?;
    env.srqs.get(srqn).map(|srq| srq.wq.pd).ok_or("no such queue")
}
