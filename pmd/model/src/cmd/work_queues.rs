//! Commands about Ethernet work queues: SQ, RQ, RMP.
//!
//! Source: reference 4.2 "Ethernet work queues", 4.3, 5.6 to 5.9.

use ferrocx_prm::caps::HcaCap;
use ferrocx_prm::cmd::Opcode;
use ferrocx_prm::cmd::wq::{
    CreateRmp, CreateRmpOut, CreateRq, CreateRqOut, CreateSq, CreateSqOut, DestroyRmp,
    DestroyRmpOut, DestroyRq, DestroyRqOut, DestroySq, DestroySqOut, ModifyRmp, ModifyRmpOut,
    ModifyRq, ModifyRqOut, ModifySq, ModifySqOut, QueryRmp, QueryRmpOut, QueryRq, QueryRqOut,
    QuerySq, QuerySqOut,
};
use ferrocx_prm::syndrome::CommandStatus;
use ferrocx_prm::wqc::{Rqc, Sqc, Wq};

use super::handler::{Exec, Handler, add, drivers_only, parse, plain, remove};
use super::queues::check_uar;
use super::ring::{RingPlace, RingSource};
use crate::device::caps::log_max;
use crate::device::refused::{Answer, Refused, ensure};
use crate::objects::{
    Objects, QueueState, QueueStats, ReceiveRing, Rmp, Rq, RqMemory, Sq, WorkQueue, WqType,
};

pub(super) fn handler(opcode: Opcode) -> Option<Handler> {
    Some(match opcode {
        Opcode::CREATE_SQ => create_sq,
        Opcode::MODIFY_SQ => modify_sq,
        Opcode::DESTROY_SQ => destroy_sq,
        Opcode::QUERY_SQ => query_sq,
        Opcode::CREATE_RQ => create_rq,
        Opcode::MODIFY_RQ => modify_rq,
        Opcode::DESTROY_RQ => destroy_rq,
        Opcode::QUERY_RQ => query_rq,
        Opcode::CREATE_RMP => create_rmp,
        Opcode::MODIFY_RMP => modify_rmp,
        Opcode::DESTROY_RMP => destroy_rmp,
        Opcode::QUERY_RMP => query_rmp,
        _ => return None,
    })
}

/// Smallest log of strides in a striding entry, and of bytes in a stride. Source: reference 5.6.
const LOG_STRIDES_BASE: u32 = 9;
const LOG_STRIDE_BYTES_BASE: u32 = 6;
/// Largest encoded value of both.
const LOG_STRIDES_MAX: u32 = 7;

fn refuse_set(field: &'static str, is_set: bool, why: &'static str) -> Answer<()> {
    ensure(!is_set, || Refused::param(field, 1_u32, why))
}

fn check_state_field(raw: u32, wanted: QueueState) -> Answer<()> {
    ensure(raw == wanted.raw(), || {
        Refused::param("state", raw, "not the state in which such a queue is created")
    })
}

/// A PD that exists from the start and that no memory key belongs to.
///
/// Linux creates the queue whose packets are dropped with it: nothing is ever posted there.
/// Source: Linux 6.12 `mlx5e_build_drop_rq_param` leaves the field 0.
const NO_PD: u32 = 0;

/// Checks and decodes the work queue part of a context.
fn work_queue(objects: &Objects, context: Wq, tail: &[u8]) -> Answer<WorkQueue> {
    let raw = context.wq_type();
    let wq_type = WqType::from_raw(raw);
    let wq_type = wq_type.ok_or_else(|| Refused::param("wq_type", raw, "no such type"))?;
    refuse_set("wq_signature", context.wq_signature(), "not advertised")?;
    refuse_set("cd_slave", context.cd_slave(), "not advertised")?;
    refuse_set("shampo_enable", context.shampo_enable(), "not advertised")?;
    refuse_set("hds_skip_first_sge", context.hds_skip_first_sge(), "not advertised")?;
    let padding = context.end_padding_mode();
    ensure(padding <= 1, || Refused::param("end_padding_mode", padding, "no such mode"))?;
    let log_size = context.log_wq_sz();
    ensure(log_size <= log_max::WQ_SIZE, || {
        Refused::param("log_wq_sz", log_size, "above log_max_wq_sz")
    })?;
    let pd = context.pd();
    ensure(pd == NO_PD || objects.pds.contains(pd), || Refused::resource("pd", pd))?;
    check_strides(&context, wq_type)?;
    let place = RingPlace {
        log_page_size: context.log_wq_pg_sz(),
        page_offset: context.page_offset(),
        len_bytes: 1 << (log_size + context.log_wq_stride()),
        log_entry: context.log_wq_stride(),
    };
    let in_umem = || (context.wq_umem_id(), context.wq_umem_offset());
    let source = RingSource {
        place,
        record: context.dbr_addr(),
        ring_umem: context.wq_umem_valid().then(in_umem),
        record_umem: context.dbr_umem_valid().then(|| context.dbr_umem_id()),
        is_written: false,
    };
    let (memory, dbr_addr) = source.take(objects, tail)?;
    let is_striding = wq_type.is_striding();
    let when = |base, raw| if is_striding { base + raw } else { 0 };
    Ok(WorkQueue {
        wq_type,
        memory,
        log_size,
        log_stride: context.log_wq_stride(),
        pd,
        dbr_addr,
        next_segment: wq_type.is_linked(),
        signature: false,
        two_byte_shift: context.two_byte_shift_en(),
        end_padding: padding == 1,
        log_strides_per_wqe: when(LOG_STRIDES_BASE, context.log_wqe_num_of_strides()),
        log_stride_bytes: when(LOG_STRIDE_BYTES_BASE, context.log_wqe_stride_size()),
        context,
    })
}

fn check_strides(context: &Wq, wq_type: WqType) -> Answer<()> {
    let (count, size) = (context.log_wqe_num_of_strides(), context.log_wqe_stride_size());
    let limit = if wq_type.is_striding() { LOG_STRIDES_MAX } else { 0 };
    ensure(count <= limit, || {
        Refused::param("log_wqe_num_of_strides", count, "out of range for this wq_type")
    })?;
    ensure(size <= limit, || {
        Refused::param("log_wqe_stride_size", size, "out of range for this wq_type")
    })
}

/// Checks the entry size of a receive ring.
fn check_receive_stride(wq: &WorkQueue) -> Answer<()> {
    // Room for a next segment and a data segment. Source: reference 6.5.
    let least = if wq.next_segment { 5 } else { log_max::RQ_STRIDE_MIN };
    ensure((least..=log_max::RQ_STRIDE).contains(&wq.log_stride), || {
        Refused::param("log_wq_stride", wq.log_stride, "out of range for a receive queue")
    })
}

fn hold_cq(objects: &Objects, cqn: u32) -> Answer<()> {
    ensure(objects.cqs.contains(cqn), || Refused::resource("cqn", cqn))
}

/// `ts_format` of a queue by what its kind can do, `sq_ts_format` or `rq_ts_format`: a device whose
/// clock is the real-time one has no other. Source: DPDK `mlx5_ts_format_conv`.
fn check_ts_format(format: u32, cap: u32) -> Answer<()> {
    ensure(format <= 1, || Refused::param("ts_format", format, "no real-time clock"))?;
    ensure(format != 0 || cap != 1, || {
        Refused::param("ts_format", format, "the clock does not run freely")
    })
}

fn check_sqc(context: &Sqc, caps: &HcaCap) -> Answer<()> {
    check_state_field(context.state(), QueueState::Reset)?;
    refuse_set("cd_master", context.cd_master(), "not advertised")?;
    refuse_set("fre", context.fre(), "not advertised")?;
    refuse_set("reg_umr", context.reg_umr(), "reg_umr_sq is not advertised")?;
    refuse_set("allow_swp", context.allow_swp(), "swp is not advertised")?;
    refuse_set("hairpin", context.hairpin(), "not advertised")?;
    refuse_set("non_wire", context.non_wire(), "not advertised")?;
    let mode = context.min_wqe_inline_mode();
    ensure(mode <= 3, || Refused::param("min_wqe_inline_mode", mode, "no such mode"))?;
    check_ts_format(context.ts_format(), caps.sq_ts_format())?;
    let pacing = context.packet_pacing_rate_limit_index();
    ensure(pacing == 0, || {
        Refused::param("packet_pacing_rate_limit_index", pacing, "qos is not advertised")
    })?;
    let tis_count = context.tis_lst_sz();
    ensure(tis_count <= 1, || {
        Refused::param("tis_lst_sz", tis_count, "log_max_tis_per_sq is 0: at most one")
    })
}

fn create_sq(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<CreateSq>(bytes, |op_mod| op_mod == 0)?;
    let context = input.fixed.ctx();
    check_sqc(&context, &exec.ctx.state.caps.general())?;
    let objects = &mut exec.ctx.state.objects;
    drivers_only(objects, "rlky", context.rlky())?;
    let wq = work_queue(objects, context.wq(), input.tail)?;
    ensure(wq.wq_type == WqType::Cyclic, || {
        Refused::param("wq_type", context.wq().wq_type(), "a send queue is cyclic")
    })?;
    ensure(wq.log_stride == log_max::SQ_STRIDE, || {
        Refused::param("log_wq_stride", wq.log_stride, "a send basic block is 64 bytes")
    })?;
    let (uar_page, cqn, pd) = (context.wq().uar_page(), context.cqn(), wq.pd);
    check_uar(objects, uar_page)?;
    hold_cq(objects, cqn)?;
    let tisn = (context.tis_lst_sz() == 1).then(|| context.tis_num_0());
    if let Some(tisn) = tisn {
        ensure(objects.tiss.contains(tisn), || Refused::resource("tis_num_0", tisn))?;
    }
    let sq = Sq {
        state: QueueState::Reset,
        wq,
        uar_page,
        cqn,
        rlky: context.rlky(),
        tisn,
        min_wqe_inline_mode: context.min_wqe_inline_mode(),
        allow_multi_pkt: context.allow_multi_pkt_send_wqe(),
        reg_umr: false,
        flush_in_error: context.flush_in_error_en(),
        user_index: context.user_index(),
        posted: 0,
        executed: 0,
        is_active: false,
        listed_at: 0,
        wqe_progress: 0,
        error_reported: false,
        stats: QueueStats::default(),
        context,
    };
    let sqn = add(&mut objects.sqs, "sqn", sq)?;
    objects.cqs.hold(cqn);
    objects.pds.hold(pd);
    objects.uars.hold(uar_page);
    if let Some(tisn) = tisn {
        objects.tiss.hold(tisn);
    }
    objects.list_sq(sqn);
    Ok(CreateSqOut::zeroed().with_sqn(sqn).0.to_vec())
}

/// Decodes the current and the new state of a MODIFY command, and checks the step.
///
/// A queue that went to error by itself may be named by the state that its driver gave it. Linux's
/// mlx5_ib knows no other, and resets and ends such queues so; mlx5e names the error.
fn transition(current: QueueState, named: u32, new: u32) -> Answer<QueueState> {
    let failed_unseen = (current, named) == (QueueState::Error, QueueState::Ready.raw());
    ensure(named == current.raw() || failed_unseen, || {
        let status = CommandStatus::BAD_QP_STATE;
        Refused::new(status, "current state", named, "not the state that the queue is in")
    })?;
    let new_state = QueueState::from_raw(new);
    let new_state = new_state.ok_or_else(|| Refused::param("state", new, "no such state"))?;
    let skips = matches!(
        (current, new_state),
        (QueueState::Reset, QueueState::Error) | (QueueState::Error, QueueState::Ready)
    );
    ensure(!skips, || Refused::param("state", new, "no such transition"))?;
    Ok(new_state)
}

fn modify_sq(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<ModifySq>(exec, input, |exec, input| {
        let sqn = input.sqn();
        let sq = exec.ctx.state.objects.sqs.get_mut(sqn);
        let sq = sq.ok_or_else(|| Refused::resource("sqn", sqn))?;
        let bitmask = input.modify_bitmask();
        ensure(bitmask == 0, || {
            Refused::param("modify_bitmask", bitmask, "pacing and qos are not advertised")
        })?;
        let from = sq.state;
        sq.state = transition(from, input.sq_state(), input.ctx().state())?;
        if sq.state == QueueState::Reset {
            (sq.posted, sq.executed, sq.is_active) = (0, 0, false);
            (sq.wqe_progress, sq.error_reported) = (0, false);
        }
        if sq.state != from {
            exec.datapath.sq_state_changed(exec.ctx, sqn, from);
        }
        Ok(ModifySqOut::zeroed())
    })
}

fn destroy_sq(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DestroySq>(exec, input, |exec, input| {
        let sqn = input.sqn();
        let objects = &mut exec.ctx.state.objects;
        let sq = remove(&mut objects.sqs, "sqn", sqn)?;
        objects.cqs.release(sq.cqn);
        objects.pds.release(sq.wq.pd);
        objects.uars.release(sq.uar_page);
        if let Some(tisn) = sq.tisn {
            objects.tiss.release(tisn);
        }
        objects.unlist_sq(&sq);
        Ok(DestroySqOut::zeroed())
    })
}

fn query_sq(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<QuerySq>(exec, input, |exec, input| {
        let sqn = input.sqn();
        let sq = exec.ctx.state.objects.sqs.get(sqn);
        let sq = sq.ok_or_else(|| Refused::resource("sqn", sqn))?;
        let wq =
            sq.context.wq().with_hw_counter(sq.executed.into()).with_sw_counter(sq.posted.into());
        let context = sq.context.with_state(sq.state.raw()).with_wq(wq);
        Ok(QuerySqOut::zeroed().with_sq_context(context))
    })
}

fn check_rqc(context: &Rqc, caps: &HcaCap) -> Answer<()> {
    check_state_field(context.state(), QueueState::Reset)?;
    refuse_set("delay_drop_en", context.delay_drop_en(), "not advertised")?;
    refuse_set("scatter_fcs", context.scatter_fcs(), "not advertised")?;
    refuse_set("hairpin", context.hairpin(), "not advertised")?;
    check_ts_format(context.ts_format(), caps.rq_ts_format())
}

/// `mem_rq_type`. Source: reference 5.8.
const MEMORY_INLINE: u32 = 0;
const MEMORY_RMP: u32 = 1;

fn create_rq(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<CreateRq>(bytes, |op_mod| op_mod == 0)?;
    let context = input.fixed.ctx();
    check_rqc(&context, &exec.ctx.state.caps.general())?;
    let objects = &mut exec.ctx.state.objects;
    drivers_only(objects, "rlky", context.rlky())?;
    let memory = match context.mem_rq_type() {
        MEMORY_INLINE => {
            let wq = work_queue(objects, context.wq(), input.tail)?;
            check_receive_stride(&wq)?;
            RqMemory::Inline(wq)
        }
        MEMORY_RMP => {
            let rmpn = context.rmpn();
            ensure(objects.rmps.contains(rmpn), || Refused::resource("rmpn", rmpn))?;
            RqMemory::Rmp(rmpn)
        }
        other => return Err(Refused::param("mem_rq_type", other, "no such type")),
    };
    let cqn = context.cqn();
    hold_cq(objects, cqn)?;
    check_counter_set(objects, context.counter_set_id())?;
    let rq = Rq {
        state: QueueState::Reset,
        memory,
        cqn,
        rlky: context.rlky(),
        vlan_strip_disable: context.vsd(),
        scatter_fcs: false,
        flush_in_error: context.flush_in_error_en(),
        user_index: context.user_index(),
        counter_set_id: context.counter_set_id(),
        ring: ReceiveRing::default(),
        owed: 0,
        stats: QueueStats::default(),
        context,
    };
    let held = rq_holds(&rq);
    let rqn = add(&mut objects.rqs, "rqn", rq)?;
    objects.cqs.hold(cqn);
    match held {
        RqHold::Pd(pd) => objects.pds.hold(pd),
        RqHold::Rmp(rmpn) => objects.rmps.hold(rmpn),
    }
    Ok(CreateRqOut::zeroed().with_rqn(rqn).0.to_vec())
}

/// Objects that an RQ holds besides its CQ.
enum RqHold {
    Pd(u32),
    Rmp(u32),
}

fn rq_holds(rq: &Rq) -> RqHold {
    match &rq.memory {
        RqMemory::Inline(wq) => RqHold::Pd(wq.pd),
        RqMemory::Rmp(rmpn) => RqHold::Rmp(*rmpn),
    }
}

/// Set 0 stands for "none" as well; drivers name it without having allocated it.
fn check_counter_set(objects: &Objects, id: u32) -> Answer<()> {
    ensure(id == 0 || objects.q_counters.contains(id), || Refused::resource("counter_set_id", id))
}

/// Bits of MODIFY_RQ's bitmask. Source: reference 4.3.
mod rq_field {
    pub(super) const VSD: u64 = 1 << 1;
    pub(super) const COUNTER_SET_ID: u64 = 1 << 3;
    pub(super) const ALL: u64 = VSD | COUNTER_SET_ID;
}

fn modify_rq(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<ModifyRq>(exec, input, |exec, input| {
        let (rqn, bitmask, new) = (input.rqn(), input.modify_bitmask(), input.ctx());
        let objects = &mut exec.ctx.state.objects;
        ensure(bitmask & !rq_field::ALL == 0, || {
            Refused::param("modify_bitmask", bitmask, "no such field, or not advertised")
        })?;
        if bitmask & rq_field::COUNTER_SET_ID != 0 {
            check_counter_set(objects, new.counter_set_id())?;
        }
        let rq = objects.rqs.get_mut(rqn).ok_or_else(|| Refused::resource("rqn", rqn))?;
        let from = rq.state;
        rq.state = transition(from, input.rq_state(), new.state())?;
        if bitmask & rq_field::VSD != 0 {
            rq.vlan_strip_disable = new.vsd();
            rq.context = rq.context.with_vsd(new.vsd());
        }
        if bitmask & rq_field::COUNTER_SET_ID != 0 {
            rq.counter_set_id = new.counter_set_id();
            rq.context = rq.context.with_counter_set_id(new.counter_set_id());
        }
        if rq.state == QueueState::Reset {
            rq.ring = ReceiveRing::default();
        }
        if rq.state != from {
            exec.datapath.rq_state_changed(exec.ctx, rqn, from);
        }
        Ok(ModifyRqOut::zeroed())
    })
}

fn destroy_rq(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DestroyRq>(exec, input, |exec, input| {
        let objects = &mut exec.ctx.state.objects;
        let rq = remove(&mut objects.rqs, "rqn", input.rqn())?;
        objects.cqs.release(rq.cqn);
        match rq_holds(&rq) {
            RqHold::Pd(pd) => objects.pds.release(pd),
            RqHold::Rmp(rmpn) => objects.rmps.release(rmpn),
        }
        Ok(DestroyRqOut::zeroed())
    })
}

fn query_rq(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<QueryRq>(exec, input, |exec, input| {
        let rqn = input.rqn();
        let rq = exec.ctx.state.objects.rqs.get(rqn);
        let rq = rq.ok_or_else(|| Refused::resource("rqn", rqn))?;
        let wq = rq.context.wq();
        let wq = wq.with_hw_counter(rq.ring.consumed.into()).with_sw_counter(rq.ring.posted.into());
        let context = rq.context.with_state(rq.state.raw()).with_wq(wq);
        Ok(QueryRqOut::zeroed().with_rq_context(context))
    })
}

fn create_rmp(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<CreateRmp>(bytes, |op_mod| op_mod == 0)?;
    let context = input.fixed.ctx();
    check_state_field(context.state(), QueueState::Ready)?;
    let objects = &mut exec.ctx.state.objects;
    let mut wq = work_queue(objects, context.wq(), input.tail)?;
    let is_basic = context.basic_cyclic_rcv_wqe();
    ensure(!(is_basic && wq.wq_type.is_linked()), || {
        let raw = context.wq().wq_type();
        Refused::param("wq_type", raw, "basic_cyclic_rcv_wqe: an entry has no link")
    })?;
    wq.next_segment = !is_basic;
    check_receive_stride(&wq)?;
    let (pd, limit) = (wq.pd, context.wq().lwm());
    let state = QueueState::Ready;
    let rmp = Rmp { state, wq, ring: ReceiveRing::default(), limit, context };
    let rmpn = add(&mut objects.rmps, "rmpn", rmp)?;
    objects.pds.hold(pd);
    Ok(CreateRmpOut::zeroed().with_rmpn(rmpn).0.to_vec())
}

/// Bit of MODIFY_RMP's bitmask: the limit. Source: reference 4.3.
const RMP_LWM: u64 = 1;

fn modify_rmp(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<ModifyRmp>(exec, input, |exec, input| {
        let (rmpn, bitmask) = (input.rmpn(), input.bitmask());
        let rmp = exec.ctx.state.objects.rmps.get_mut(rmpn);
        let rmp = rmp.ok_or_else(|| Refused::resource("rmpn", rmpn))?;
        ensure(bitmask & !RMP_LWM == 0, || Refused::param("bitmask", bitmask, "no such field"))?;
        rmp.state = transition(rmp.state, input.rmp_state(), input.ctx().state())?;
        if bitmask & RMP_LWM != 0 {
            rmp.limit = input.ctx().wq().lwm();
        }
        Ok(ModifyRmpOut::zeroed())
    })
}

fn destroy_rmp(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DestroyRmp>(exec, input, |exec, input| {
        let objects = &mut exec.ctx.state.objects;
        let rmp = remove(&mut objects.rmps, "rmpn", input.rmpn())?;
        objects.pds.release(rmp.wq.pd);
        Ok(DestroyRmpOut::zeroed())
    })
}

fn query_rmp(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<QueryRmp>(exec, input, |exec, input| {
        let rmpn = input.rmpn();
        let rmp = exec.ctx.state.objects.rmps.get(rmpn);
        let rmp = rmp.ok_or_else(|| Refused::resource("rmpn", rmpn))?;
        let wq = rmp.context.wq().with_lwm(rmp.limit);
        let wq = wq.with_hw_counter(rmp.ring.consumed.into());
        let context = rmp.context.with_state(rmp.state.raw()).with_wq(wq);
        Ok(QueryRmpOut::zeroed().with_rmp_context(context))
    })
}
