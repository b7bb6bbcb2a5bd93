//! Queue pairs made with extended attributes: what they may do, what they belong to.

use std::ptr::null_mut;

use super::context::Context;
use super::qp::{create, create_target, service};
use super::{Errno, check, object, work};
use crate::abi::{ibv_context, ibv_qp, ibv_qp_init_attr, ibv_qp_init_attr_ex, qpt};

pub(super) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    /// `IBV_QP_INIT_ATTR_PD`, `_XRCD`, `_CREATE_FLAGS`, `_IND_TABLE`, `_RX_HASH`,
    /// `_SEND_OPS_FLAGS`.
    const PD: u32 = 1;
    const XRCD: u32 = 1 << 1;
    const CREATE_FLAGS: u32 = 1 << 2;
    const IND_TABLE: u32 = 1 << 4;
    const RX_HASH: u32 = 1 << 5;
    const SEND_OPS: u32 = 1 << 6;
    let init = promised!(&mut *init);
    let has = |bit: u32| init.comp_mask & bit != 0;
    if init.qp_type == qpt::XRC_RECV {
        let is_known = init.comp_mask & !(PD | XRCD | CREATE_FLAGS | SEND_OPS) == 0
            && (!has(CREATE_FLAGS) || init.create_flags == 0)
            && (!has(SEND_OPS) || init.send_ops_flags == 0);
        let made = match (is_known, has(XRCD)) {
            (false, _) => Err(Errno::NOT_SUPPORTED),
            (_, false) => Err(Errno::INVALID),
            // librdmacm makes a shared queue in the domain that it reads of its target.
            _ => create_target(context, if has(PD) { init.pd } else { null_mut() }, init),
        };
        return object(made).cast();
    }
    if has(IND_TABLE) || has(RX_HASH) {
        let is_known = init.comp_mask & !(PD | CREATE_FLAGS | IND_TABLE | RX_HASH) == 0
            && (!has(CREATE_FLAGS) || init.create_flags == 0);
        let made = match is_known {
            false => Err(Errno::NOT_SUPPORTED),
            true if !has(PD) || !has(IND_TABLE) || !has(RX_HASH) => Err(Errno::INVALID),
            true => work::create_over(init),
        };
        return object(made).cast();
    }
    let caps = match promised!(Context::of(context)) {
        Ok(shared) => shared.node.context.attr().caps,
        Err(errno) => return object(Err(errno)),
    };
    let ops = if has(SEND_OPS) { init.send_ops_flags } else { 0 };
    let is_known = init.comp_mask & !(PD | CREATE_FLAGS | SEND_OPS) == 0
        && (!has(CREATE_FLAGS) || init.create_flags == 0)
        && service(init.qp_type).is_ok_and(|service| ops & !check::operations(service, caps) == 0);
    if !is_known {
        return object(Err(Errno::NOT_SUPPORTED));
    }
    if !has(PD) {
        return object(Err(Errno::INVALID));
    }
    let mut plain = ibv_qp_init_attr {
        qp_context: init.qp_context,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        cap: init.cap,
        qp_type: init.qp_type,
        sq_sig_all: init.sq_sig_all,
    };
    let made = object(create(init.pd, &mut plain));
    init.cap = plain.cap;
    made.cast()
}
