//! Commands about event and completion queues.
//!
//! Source: reference 4.2 "Event and completion queues", 4.3, 5.4, 5.5.

use ferrocx_prm::Layout;
use ferrocx_prm::cmd::Opcode;
use ferrocx_prm::cmd::queues::{
    CreateCq, CreateCqOut, CreateEq, CreateEqOut, DestroyCq, DestroyCqOut, DestroyEq, DestroyEqOut,
    ModifyCq, ModifyCqOut, QueryCq, QueryCqOut, QueryEq, QueryEqOut,
};
use ferrocx_prm::cqc::Cqc;
use ferrocx_prm::eqc::Eqc;
use ferrocx_prm::eqe::EventType;
use ferrocx_prm::syndrome::CommandStatus;

use super::handler::{Exec, Handler, add, no_tail, parse, plain, remove};
use super::ring::{RingPlace, RingSource, ring};
use crate::bits::be64;
use crate::device::caps::log_max;
use crate::device::refused::{Answer, Refused, ensure};
use crate::objects::{Cq, CqArmState, CqStatus, Eq, Objects, QueueMemory};
use crate::queue::eq::EQE_BYTES;

pub(super) fn handler(opcode: Opcode) -> Option<Handler> {
    Some(match opcode {
        Opcode::CREATE_EQ => create_eq,
        Opcode::DESTROY_EQ => destroy_eq,
        Opcode::QUERY_EQ => query_eq,
        Opcode::CREATE_CQ => create_cq,
        Opcode::MODIFY_CQ => modify_cq,
        Opcode::DESTROY_CQ => destroy_cq,
        Opcode::QUERY_CQ => query_cq,
        _ => return None,
    })
}

pub(super) fn check_uar(objects: &Objects, uar_page: u32) -> Answer<()> {
    ensure(objects.uars.contains(uar_page), || Refused::resource("uar_page", uar_page))
}

/// `status`/`st` values. Source: reference 5.4, 5.5.
const ST_ARMED: u32 = 9;
const ST_FIRED: u32 = 0xa;
const ST_SOLICITED_ARMED: u32 = 6;
const STATUS_OVERFLOW: u32 = 9;
const STATUS_WRITE_FAILURE: u32 = 0xa;

fn create_eq(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<CreateEq>(bytes, |op_mod| op_mod == 0)?;
    let context = input.fixed.eq_context_entry();
    check_eqc(&context)?;
    let ctx = &mut *exec.ctx;
    check_uar(&ctx.state.objects, context.uar_page())?;
    let vector = context.intr();
    ensure(vector < u32::from(ctx.side.vectors()), || {
        Refused::param("intr", vector, "not a vector of this device")
    })?;
    let place = RingPlace {
        log_page_size: context.log_page_size(),
        page_offset: context.page_offset(),
        len_bytes: EQE_BYTES << context.log_eq_size(),
        log_entry: EQE_BYTES.trailing_zeros(),
    };
    let mask = input.fixed.event_bitmask();
    let mut events = [0; 4];
    for (word, raw) in events.iter_mut().zip(mask.chunks_exact(8)) {
        *word = be64(raw);
    }
    // Type 0 needs no subscription: a CQ names the EQ of its completion events.
    let eq = Eq {
        memory: ring(&place, input.tail)?,
        log_size: context.log_eq_size(),
        uar_page: context.uar_page(),
        vector: u16::try_from(vector).unwrap_or(0),
        events,
        overrun_ignore: context.oi(),
        producer: 0,
        consumer: 0,
        armed: context.st() == ST_ARMED,
        failed: false,
        overruns: 0,
        context,
    };
    let wants_pages = eq.wants(EventType::PAGE_REQUEST);
    let objects = &mut ctx.state.objects;
    let eqn = add(&mut objects.eqs, "eq_number", eq)?;
    objects.uars.hold(context.uar_page());
    if wants_pages {
        ctx.ask_for_regular_pages();
    }
    Ok(CreateEqOut::zeroed().with_eq_number(eqn).0.to_vec())
}

fn check_eqc(context: &Eqc) -> Answer<()> {
    let log_size = context.log_eq_size();
    ensure(log_size <= log_max::EQ_SIZE, || {
        Refused::param("log_eq_size", log_size, "above log_max_eq_sz")
    })?;
    ensure(!context.ec(), || Refused::param("ec", 1_u32, "collapsed EQs are not supported"))?;
    let st = context.st();
    ensure(matches!(st, 0 | ST_ARMED | ST_FIRED), || {
        Refused::param("st", st, "no such state to create an EQ in")
    })?;
    ensure(context.status() == 0, || {
        Refused::param("status", context.status(), "the device owns this field")
    })
}

fn destroy_eq(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DestroyEq>(exec, input, |exec, input| {
        let objects = &mut exec.ctx.state.objects;
        let eq = remove(&mut objects.eqs, "eq_number", input.eq_number())?;
        objects.uars.release(eq.uar_page);
        Ok(DestroyEqOut::zeroed())
    })
}

fn query_eq(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<QueryEq>(bytes, |op_mod| op_mod == 0)?;
    no_tail(input.tail)?;
    let eqn = input.fixed.eq_number();
    let eq = exec.ctx.state.objects.eqs.get(eqn);
    let eq = eq.ok_or_else(|| Refused::resource("eq_number", eqn))?;
    let context = eq
        .context
        .with_status(if eq.failed { STATUS_WRITE_FAILURE } else { 0 })
        .with_st(if eq.armed { ST_ARMED } else { ST_FIRED })
        .with_consumer_counter(eq.consumer)
        .with_producer_counter(eq.producer);
    let output =
        QueryEqOut::zeroed().with_eq_context_entry(context).with_event_bitmask(eq.events[0]);
    Ok(with_pages(output.as_bytes(), &eq.memory))
}

fn with_pages(fixed: &[u8], memory: &QueueMemory) -> Vec<u8> {
    let mut output = fixed.to_vec();
    output.extend(memory.pages().iter().flat_map(|page| page.to_be_bytes()));
    output
}

/// Bytes of an entry by `cqe_sz`. Source: reference 5.4.
fn cqe_bytes(cqe_sz: u32) -> Answer<u32> {
    match cqe_sz {
        0 => Ok(64),
        1 => Ok(128),
        _ => Err(Refused::param("cqe_sz", cqe_sz, "cqe_128_always is not advertised")),
    }
}

fn cq_source(context: &Cqc, cqe_bytes: u32, umem: Option<(u32, u64)>) -> Answer<RingSource> {
    let log_size = context.log_cq_size();
    ensure(log_size <= log_max::CQ_SIZE, || {
        Refused::param("log_cq_size", log_size, "above log_max_cq_sz")
    })?;
    let place = RingPlace {
        log_page_size: context.log_page_size(),
        page_offset: context.page_offset(),
        len_bytes: u64::from(cqe_bytes) << log_size,
        log_entry: cqe_bytes.trailing_zeros(),
    };
    Ok(RingSource {
        place,
        record: context.dbr_addr(),
        ring_umem: umem,
        record_umem: context.dbr_umem_valid().then(|| context.dbr_umem_id()),
        is_written: true,
    })
}

fn create_cq(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<CreateCq>(bytes, |op_mod| op_mod == 0)?;
    let context = input.fixed.cq_context();
    check_cqc(&context)?;
    let objects = &mut exec.ctx.state.objects;
    let (uar_page, eqn) = (context.uar_page(), context.c_eqn_or_apu_element());
    check_uar(objects, uar_page)?;
    ensure(objects.eqs.contains(eqn), || Refused::resource("c_eqn", eqn))?;
    let cqe_bytes = cqe_bytes(context.cqe_sz())?;
    let fixed = &input.fixed;
    let umem = fixed.cq_umem_valid().then(|| (fixed.cq_umem_id(), fixed.cq_umem_offset()));
    let (memory, dbr_addr) = cq_source(&context, cqe_bytes, umem)?.take(objects, input.tail)?;
    let cq = Cq {
        memory,
        log_size: context.log_cq_size(),
        cqe_bytes,
        uar_page,
        eqn,
        dbr_addr,
        overrun_ignore: context.oi(),
        collapsed: context.cc(),
        period_us: context.cq_period(),
        max_count: context.cq_max_count(),
        period_from_cqe: context.cq_period_mode() == 1,
        compression: context.cqe_comp_en(),
        mini_cqe_format: context.mini_cqe_res_format(),
        enhanced_compression: false,
        producer: 0,
        consumer: 0,
        arm: CqArmState::Idle,
        arm_sn: 0,
        told: 0,
        solicited: 0,
        moderation_since_ns: None,
        moderation_count: 0,
        status: CqStatus::Ok,
        completions: 0,
        context,
    };
    let cqn = add(&mut objects.cqs, "cqn", cq)?;
    objects.eqs.hold(eqn);
    objects.uars.hold(uar_page);
    Ok(CreateCqOut::zeroed().with_cqn(cqn).0.to_vec())
}

fn check_cqc(context: &Cqc) -> Answer<()> {
    let refuse = |field, why| Err(Refused::param(field, 1_u32, why));
    if context.apu_cq() {
        return refuse("apu_cq", "not supported");
    }
    if context.scqe_break_moderation_en() {
        return refuse("scqe_break_moderation_en", "not advertised");
    }
    if context.cqe_comp_en() && (context.cc() || context.cqe_sz() != 0) {
        return refuse("cqe_comp_en", "compression needs a ring of 64-byte entries");
    }
    ensure(context.cqe_compression_layout() == 0, || {
        let layout = context.cqe_compression_layout();
        Refused::param("cqe_compression_layout", layout, "enhanced compression is not advertised")
    })?;
    ensure(context.mini_cqe_res_format() != 2, || {
        Refused::param("mini_cqe_res_format", 2_u32, "no such format")
    })?;
    check_period_mode(context)?;
    ensure(context.st() == 0 && context.status() == 0, || {
        Refused::param("status or st", context.st(), "the device owns these fields")
    })
}

fn check_period_mode(context: &Cqc) -> Answer<()> {
    ensure(context.cq_period_mode() <= 1, || {
        Refused::param("cq_period_mode", context.cq_period_mode(), "no such mode")
    })
}

/// Fields of MODIFY_CQ, op_mod 0. Source: reference 4.3.
mod cq_field {
    pub(super) const PERIOD: u32 = 1;
    pub(super) const COUNT: u32 = 2;
    pub(super) const OI: u32 = 4;
    pub(super) const C_EQN: u32 = 8;
    pub(super) const PERIOD_MODE: u32 = 16;
    pub(super) const ALL: u32 = 31;
    /// op_mod 1: log size, page offset, page size.
    pub(super) const RESIZE_ALL: u32 = 7;
}

fn modify_cq(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<ModifyCq>(bytes, |op_mod| op_mod <= 1)?;
    let cqn = input.fixed.cqn();
    let select = input.fixed.modify_field_select_resize_field_select();
    let context = input.fixed.cq_context();
    ensure(exec.ctx.state.objects.cqs.contains(cqn), || Refused::resource("cqn", cqn))?;
    if input.op_mod == 1 {
        let fixed = &input.fixed;
        let umem = fixed.cq_umem_valid().then(|| (fixed.cq_umem_id(), fixed.cq_umem_offset()));
        resize_cq(exec, cqn, (select, &context, umem), input.tail)?;
    } else {
        no_tail(input.tail)?;
        modify_cq_fields(&mut exec.ctx.state.objects, cqn, select, &context)?;
    }
    Ok(ModifyCqOut::zeroed().0.to_vec())
}

fn modify_cq_fields(objects: &mut Objects, cqn: u32, select: u32, new: &Cqc) -> Answer<()> {
    ensure(select & !cq_field::ALL == 0, || {
        Refused::param("modify_field_select", select, "no such field")
    })?;
    check_period_mode(new)?;
    let eqn = new.c_eqn_or_apu_element();
    if select & cq_field::C_EQN != 0 {
        ensure(objects.eqs.contains(eqn), || Refused::resource("c_eqn", eqn))?;
    }
    let cq = objects.cqs.get_mut(cqn).ok_or_else(|| Refused::resource("cqn", cqn))?;
    if select & cq_field::PERIOD != 0 {
        cq.period_us = new.cq_period();
        cq.context = cq.context.with_cq_period(new.cq_period());
    }
    if select & cq_field::COUNT != 0 {
        cq.max_count = new.cq_max_count();
        cq.context = cq.context.with_cq_max_count(new.cq_max_count());
    }
    if select & cq_field::OI != 0 {
        cq.overrun_ignore = new.oi();
        cq.context = cq.context.with_oi(new.oi());
    }
    if select & cq_field::PERIOD_MODE != 0 {
        cq.period_from_cqe = new.cq_period_mode() == 1;
        cq.context = cq.context.with_cq_period_mode(new.cq_period_mode());
    }
    if select & cq_field::C_EQN != 0 {
        cq.context = cq.context.with_c_eqn_or_apu_element(eqn);
        let former = std::mem::replace(&mut cq.eqn, eqn);
        objects.eqs.hold(eqn);
        objects.eqs.release(former);
    }
    Ok(())
}

fn resize_cq(
    exec: &mut Exec<'_, '_>,
    cqn: u32,
    (select, new, umem): (u32, &Cqc, Option<(u32, u64)>),
    tail: &[u8],
) -> Answer<()> {
    ensure(select & !cq_field::RESIZE_ALL == 0 && select & 1 != 0, || {
        Refused::param("resize_field_select", select, "log size must be selected, nothing unknown")
    })?;
    let cq = exec.ctx.state.objects.cqs.get(cqn).ok_or_else(|| Refused::resource("cqn", cqn))?;
    ensure(!cq.compression && !cq.collapsed, || {
        let status = CommandStatus::BAD_RES_STATE;
        Refused::new(status, "cqn", cqn, "a compressed or collapsed CQ cannot be resized")
    })?;
    // The doorbell record stays where it is.
    let kept = new.with_dbr_addr(cq.dbr_addr).with_dbr_umem_valid(false);
    let source = cq_source(&kept, cq.cqe_bytes, umem)?;
    let (memory, _) = source.take(&exec.ctx.state.objects, tail)?;
    let memory = memory.keeping_record(cq.memory.record_pin());
    let record = exec.ctx.mem.load_acquire_be32(cq.dbr_addr).unwrap_or(cq.consumer);
    let outstanding = cq.producer.wrapping_sub(record) & 0xff_ffff;
    let size = 1_u32 << new.log_cq_size();
    ensure(outstanding < size, || {
        let status = CommandStatus::BAD_SIZE_OUTS_CQES;
        Refused::new(status, "log_cq_size", size, "fewer entries than are outstanding")
    })?;
    let (old_bytes, new_bytes) = (cq.memory.heap_bytes(), memory.heap_bytes());
    let cqs = &mut exec.ctx.state.objects.cqs;
    cqs.grow(cqn, new_bytes).map_err(|full| Refused::full("log_cq_size", full))?;
    cqs.shrink(cqn, old_bytes);
    exec.datapath.resize_cq(exec.ctx, cqn, memory, new.log_cq_size());
    if let Some(cq) = exec.ctx.state.objects.cqs.get_mut(cqn) {
        cq.context = cq
            .context
            .with_log_cq_size(new.log_cq_size())
            .with_log_page_size(new.log_page_size())
            .with_page_offset(new.page_offset());
    }
    Ok(())
}

fn destroy_cq(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DestroyCq>(exec, input, |exec, input| {
        let cqn = input.cqn();
        let objects = &mut exec.ctx.state.objects;
        let cq = remove(&mut objects.cqs, "cqn", cqn)?;
        objects.eqs.release(cq.eqn);
        objects.uars.release(cq.uar_page);
        Ok(DestroyCqOut::zeroed())
    })
}

fn query_cq(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<QueryCq>(bytes, |op_mod| op_mod == 0)?;
    no_tail(input.tail)?;
    let cqn = input.fixed.cqn();
    let cq = exec.ctx.state.objects.cqs.get(cqn);
    let cq = cq.ok_or_else(|| Refused::resource("cqn", cqn))?;
    let status = match cq.status {
        CqStatus::Ok => 0,
        CqStatus::Overflow => STATUS_OVERFLOW,
        CqStatus::WriteFailure => STATUS_WRITE_FAILURE,
    };
    let st = match cq.arm {
        CqArmState::Idle => ST_FIRED,
        CqArmState::Next { .. } => ST_ARMED,
        CqArmState::Solicited { .. } => ST_SOLICITED_ARMED,
    };
    let context = cq
        .context
        .with_status(status)
        .with_st(st)
        .with_consumer_counter(cq.consumer)
        .with_producer_counter(cq.producer);
    Ok(with_pages(QueryCqOut::zeroed().with_cq_context(context).as_bytes(), &cq.memory))
}
