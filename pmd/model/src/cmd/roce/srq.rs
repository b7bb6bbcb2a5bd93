//! Commands about shared receive queues of XRC, and the limits of receive memory pools.
//!
//! Source: reference 4.2 "Shared receive queues", 4.9.

use ferrocx_prm::cmd::Opcode;
use ferrocx_prm::cmd::srq::{
    ArmRq, ArmRqOut, ArmXrcSrq, ArmXrcSrqOut, CreateXrcSrq, CreateXrcSrqOut, DestroyXrcSrq,
    DestroyXrcSrqOut, QueryXrcSrq, QueryXrcSrqOut,
};
use ferrocx_prm::srqc::XrcSrqc;
use ferrocx_prm::wqc::Wq;

use crate::cmd::handler::{Exec, Handler, add, drivers_only, no_tail, parse, plain, remove};
use crate::cmd::ring::{RingPlace, check_record, ring};
use crate::device::caps::log_max;
use crate::device::refused::{Answer, Refused, ensure};
use crate::objects::{ReceiveRing, WorkQueue, WqType, XrcSrq};

pub(super) fn handler(opcode: Opcode) -> Option<Handler> {
    Some(match opcode {
        Opcode::CREATE_XRC_SRQ => create_srq,
        Opcode::DESTROY_XRC_SRQ => destroy_srq,
        Opcode::QUERY_XRC_SRQ => query_srq,
        Opcode::ARM_XRC_SRQ => arm_srq,
        Opcode::ARM_RQ => arm_rq,
        _ => return None,
    })
}

/// `user_index` that asks for the queue's own number in completions. Source: reference 5.2.
const NO_USER_INDEX: u32 = 0xff_ffff;

fn check_srqc(context: &XrcSrqc) -> Answer<()> {
    let refuse =
        |field, is_set: bool| ensure(!is_set, || Refused::param(field, 1_u32, "not advertised"));
    refuse("wq_signature", context.wq_signature())?;
    refuse("cont_srq", context.cont_srq())?;
    refuse("dbr_umem_valid", context.dbr_umem_valid())?;
    let stride = context.log_rq_stride() + 4;
    // Linked entries start with a next segment. Source: reference 6.5.
    let least = if context.basic_cyclic_rcv_wqe() { log_max::RQ_STRIDE_MIN } else { 5 };
    ensure((least..=log_max::RQ_STRIDE).contains(&stride), || {
        Refused::param("log_rq_stride", stride, "out of range")
    })
}

fn create_srq(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<CreateXrcSrq>(bytes, |op_mod| op_mod == 0)?;
    ensure(!input.fixed.xrc_srq_umem_valid(), || {
        Refused::param("xrc_srq_umem_valid", 1_u32, "no user memory objects")
    })?;
    let context = input.fixed.xrc_srq_context_entry();
    check_srqc(&context)?;
    check_record(context.dbr_addr())?;
    let objects = &mut exec.ctx.state.objects;
    drivers_only(objects, "rlky", context.rlky())?;
    let (pd, cqn, xrcd) = (context.pd(), context.cqn(), context.xrcd());
    ensure(objects.pds.contains(pd), || Refused::resource("pd", pd))?;
    ensure(objects.cqs.contains(cqn), || Refused::resource("cqn", cqn))?;
    ensure(objects.xrcds.contains(xrcd), || Refused::resource("xrcd", xrcd))?;
    let log_stride = context.log_rq_stride() + 4;
    let place = RingPlace {
        log_page_size: context.log_page_size(),
        page_offset: context.page_offset(),
        len_bytes: 1 << (context.log_xrc_srq_size() + log_stride),
        log_entry: log_stride,
    };
    let is_cyclic = context.basic_cyclic_rcv_wqe();
    let wq = WorkQueue {
        wq_type: if is_cyclic { WqType::Cyclic } else { WqType::LinkedList },
        memory: ring(&place, input.tail)?,
        log_size: context.log_xrc_srq_size(),
        log_stride,
        pd,
        dbr_addr: context.dbr_addr(),
        next_segment: !is_cyclic,
        signature: false,
        two_byte_shift: false,
        end_padding: false,
        log_strides_per_wqe: 0,
        log_stride_bytes: 0,
        context: Wq::zeroed(),
    };
    let srq = XrcSrq {
        wq,
        ring: ReceiveRing::default(),
        cqn,
        xrcd,
        rlky: context.rlky(),
        user_index: context.user_index(),
        limit: context.lwm(),
        context,
    };
    let own_number = context.user_index_equal_xrc_srqn() || srq.user_index == NO_USER_INDEX;
    let srqn = add(&mut objects.xrc_srqs, "xrc_srqn", srq)?;
    if own_number && let Some(srq) = objects.xrc_srqs.get_mut(srqn) {
        srq.user_index = srqn;
    }
    objects.pds.hold(pd);
    objects.cqs.hold(cqn);
    objects.xrcds.hold(xrcd);
    Ok(CreateXrcSrqOut::zeroed().with_xrc_srqn(srqn).0.to_vec())
}

fn destroy_srq(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DestroyXrcSrq>(exec, input, |exec, input| {
        let objects = &mut exec.ctx.state.objects;
        let srq = remove(&mut objects.xrc_srqs, "xrc_srqn", input.xrc_srqn())?;
        objects.pds.release(srq.wq.pd);
        objects.cqs.release(srq.cqn);
        objects.xrcds.release(srq.xrcd);
        Ok(DestroyXrcSrqOut::zeroed())
    })
}

fn query_srq(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<QueryXrcSrq>(bytes, |op_mod| op_mod == 0)?;
    no_tail(input.tail)?;
    let srqn = input.fixed.xrc_srqn();
    let srq = exec.ctx.state.objects.xrc_srqs.get(srqn);
    let srq = srq.ok_or_else(|| Refused::resource("xrc_srqn", srqn))?;
    let posted = srq.ring.posted.wrapping_sub(srq.ring.consumed);
    let context = srq.context.with_lwm(srq.limit).with_wqe_cnt(posted.into());
    let mut output = QueryXrcSrqOut::zeroed().with_xrc_srq_context_entry(context).0.to_vec();
    output.extend(srq.wq.memory.pages().iter().flat_map(|page| page.to_be_bytes()));
    Ok(output)
}

fn arm_srq(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<ArmXrcSrq>(bytes, |op_mod| op_mod == 1)?;
    no_tail(input.tail)?;
    let srqn = input.fixed.xrc_srqn();
    let srq = exec.ctx.state.objects.xrc_srqs.get_mut(srqn);
    srq.ok_or_else(|| Refused::resource("xrc_srqn", srqn))?.limit = input.fixed.lwm();
    Ok(ArmXrcSrqOut::zeroed().0.to_vec())
}

/// The limit of a receive memory pool, by the command of older drivers.
fn arm_rq(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<ArmRq>(bytes, |op_mod| op_mod == 1)?;
    no_tail(input.tail)?;
    let number = input.fixed.srq_number();
    let rmp = exec.ctx.state.objects.rmps.get_mut(number);
    rmp.ok_or_else(|| Refused::resource("srq_number", number))?.limit = input.fixed.lwm();
    Ok(ArmRqOut::zeroed().0.to_vec())
}
