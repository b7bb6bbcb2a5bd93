//! Commands about transport interfaces and RSS tables: TIR, TIS, RQT.
//!
//! Source: reference 4.2, 4.3, 5.9.

use std::sync::Arc;

use ferrocx_prm::Layout;
use ferrocx_prm::cmd::Opcode;
use ferrocx_prm::cmd::tir::{
    CreateRqt, CreateRqtOut, CreateTir, CreateTirOut, CreateTis, CreateTisOut, DestroyRqt,
    DestroyRqtOut, DestroyTir, DestroyTirOut, DestroyTis, DestroyTisOut, ModifyRqt, ModifyRqtOut,
    ModifyTir, ModifyTirOut, ModifyTis, ModifyTisOut, QueryRqt, QueryRqtOut, QueryTir, QueryTirOut,
    QueryTis, QueryTisOut,
};
use ferrocx_prm::syndrome::CommandStatus;
use ferrocx_prm::tirc::{RqNum, Rqtc, Tirc, Tisc};

use super::handler::{Exec, Handler, add, no_tail, parse, plain, remove};
use crate::device::caps::log_max;
use crate::device::refused::{Answer, Refused, ensure};
use crate::objects::budget::list_bytes;
use crate::objects::{Objects, Rqt, RxHash, Tir, TirTarget, Tis};

pub(super) fn handler(opcode: Opcode) -> Option<Handler> {
    Some(match opcode {
        Opcode::CREATE_TIR => create_tir,
        Opcode::MODIFY_TIR => modify_tir,
        Opcode::DESTROY_TIR => destroy_tir,
        Opcode::QUERY_TIR => query_tir,
        Opcode::CREATE_TIS => create_tis,
        Opcode::MODIFY_TIS => modify_tis,
        Opcode::DESTROY_TIS => destroy_tis,
        Opcode::QUERY_TIS => query_tis,
        Opcode::CREATE_RQT => create_rqt,
        Opcode::MODIFY_RQT => modify_rqt,
        Opcode::DESTROY_RQT => destroy_rqt,
        Opcode::QUERY_RQT => query_rqt,
        _ => return None,
    })
}

/// A transport domain that is there from the start: DPDK's queue for what is dropped names it.
/// Source: DPDK 24.11 `mlx5_devx_drop_action_create`, before the first send queue told of one.
const NO_TD: u32 = 0;

fn check_td(objects: &Objects, td: u32) -> Answer<()> {
    ensure(td == NO_TD || objects.tds.contains(td), || Refused::resource("transport_domain", td))
}

fn rx_hash(raw: u32) -> Answer<RxHash> {
    match raw {
        0 => Ok(RxHash::None),
        1 => Ok(RxHash::InvertedXor8),
        2 => Ok(RxHash::Toeplitz),
        _ => Err(Refused::param("rx_hash_fn", raw, "no such function")),
    }
}

/// Bits of a hash field selector: protocols 31:30, fields 4:0. Source: reference 5.9.
const HASH_FIELDS: u32 = 0xc000_001f;

fn check_hash(context: &Tirc) -> Answer<RxHash> {
    let (outer, inner) =
        (context.rx_hash_field_selector_outer(), context.rx_hash_field_selector_inner());
    ensure(outer & !HASH_FIELDS == 0, || {
        Refused::param("rx_hash_field_selector_outer", outer, "no such field")
    })?;
    ensure(inner == 0, || {
        Refused::param("rx_hash_field_selector_inner", inner, "no tunnel offload is advertised")
    })?;
    rx_hash(context.rx_hash_fn())
}

fn check_lro(context: &Tirc) -> Answer<()> {
    let mask = context.packet_merge_mask();
    ensure(mask == 0, || Refused::param("packet_merge_mask", mask, "lro_cap is not advertised"))
}

/// `disp_type`. Source: reference 5.9.
const DIRECT: u32 = 0;
const INDIRECT: u32 = 1;

fn target(objects: &Objects, context: &Tirc) -> Answer<TirTarget> {
    match context.disp_type() {
        DIRECT => {
            let rqn = context.inline_rqn();
            ensure(objects.rqs.contains(rqn), || Refused::resource("inline_rqn", rqn))?;
            Ok(TirTarget::Direct { rqn })
        }
        INDIRECT => {
            let rqtn = context.indirect_table();
            ensure(objects.rqts.contains(rqtn), || Refused::resource("indirect_table", rqtn))?;
            Ok(TirTarget::Indirect { rqtn })
        }
        other => Err(Refused::param("disp_type", other, "no such type")),
    }
}

fn hold_target(objects: &mut Objects, target: TirTarget) {
    match target {
        TirTarget::Direct { rqn } => objects.rqs.hold(rqn),
        TirTarget::Indirect { rqtn } => objects.rqts.hold(rqtn),
    }
}

fn release_target(objects: &mut Objects, target: TirTarget) {
    match target {
        TirTarget::Direct { rqn } => objects.rqs.release(rqn),
        TirTarget::Indirect { rqtn } => objects.rqts.release(rqtn),
    }
}

fn create_tir(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<CreateTir>(exec, input, |exec, input| {
        let context = input.ctx();
        let objects = &mut exec.ctx.state.objects;
        let td = context.transport_domain();
        check_td(objects, td)?;
        check_lro(&context)?;
        ensure(!context.tls_en(), || Refused::param("tls_en", 1_u32, "not advertised"))?;
        ensure(!context.tunneled_offload_en(), || {
            Refused::param("tunneled_offload_en", 1_u32, "not advertised")
        })?;
        let target = target(objects, &context)?;
        let tir = Tir {
            target,
            hash: check_hash(&context)?,
            hash_key: context.rx_hash_toeplitz_key(),
            hash_symmetric: context.rx_hash_symmetric(),
            hash_fields_outer: context.rx_hash_field_selector_outer(),
            hash_fields_inner: 0,
            transport_domain: td,
            self_lb_block: context.self_lb_block(),
            lro_mask: 0,
            changed: 0,
            context,
        };
        let tirn = add(&mut objects.tirs, "tirn", tir)?;
        objects.tds.hold(td);
        hold_target(objects, target);
        objects.tir_changed(tirn);
        Ok(CreateTirOut::zeroed().with_tirn(tirn))
    })
}

/// Bits of MODIFY_TIR's bitmask. Source: reference 4.3.
mod tir_field {
    pub(super) const PACKET_MERGE: u64 = 1;
    pub(super) const HASH: u64 = 1 << 2;
    pub(super) const SELF_LB: u64 = 1 << 4;
    pub(super) const ALL: u64 = PACKET_MERGE | HASH | SELF_LB;
}

fn modify_tir(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<ModifyTir>(exec, input, |exec, input| {
        let (tirn, bitmask, new) = (input.tirn(), input.bitmask(), input.ctx());
        ensure(bitmask & !tir_field::ALL == 0, || {
            Refused::param("bitmask", bitmask, "no such field")
        })?;
        if bitmask & tir_field::PACKET_MERGE != 0 {
            check_lro(&new)?;
        }
        let objects = &mut exec.ctx.state.objects;
        let tir = objects.tirs.get_mut(tirn).ok_or_else(|| Refused::resource("tirn", tirn))?;
        if bitmask & tir_field::HASH != 0 {
            tir.hash = check_hash(&new)?;
            tir.hash_key = new.rx_hash_toeplitz_key();
            tir.hash_symmetric = new.rx_hash_symmetric();
            tir.hash_fields_outer = new.rx_hash_field_selector_outer();
            tir.context = tir
                .context
                .with_rx_hash_fn(new.rx_hash_fn())
                .with_rx_hash_symmetric(new.rx_hash_symmetric())
                .with_rx_hash_toeplitz_key(new.rx_hash_toeplitz_key())
                .with_rx_hash_field_selector_outer(new.rx_hash_field_selector_outer());
        }
        if bitmask & tir_field::SELF_LB != 0 {
            tir.self_lb_block = new.self_lb_block();
            tir.context = tir.context.with_self_lb_block(new.self_lb_block());
        }
        objects.tir_changed(tirn);
        Ok(ModifyTirOut::zeroed())
    })
}

fn destroy_tir(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DestroyTir>(exec, input, |exec, input| {
        let objects = &mut exec.ctx.state.objects;
        let tir = remove(&mut objects.tirs, "tirn", input.tirn())?;
        objects.tds.release(tir.transport_domain);
        release_target(objects, tir.target);
        objects.steering_changed();
        Ok(DestroyTirOut::zeroed())
    })
}

fn query_tir(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<QueryTir>(exec, input, |exec, input| {
        let tirn = input.tirn();
        let tir = exec.ctx.state.objects.tirs.get(tirn);
        let tir = tir.ok_or_else(|| Refused::resource("tirn", tirn))?;
        Ok(QueryTirOut::zeroed().with_tir_context(tir.context))
    })
}

fn check_tisc(context: &Tisc) -> Answer<()> {
    ensure(!context.tls_en(), || Refused::param("tls_en", 1_u32, "not advertised"))?;
    let qpn = context.underlay_qpn();
    ensure(qpn == 0, || Refused::param("underlay_qpn", qpn, "IPoIB is not supported"))?;
    let affinity = context.lag_tx_port_affinity();
    ensure(affinity <= 1, || {
        Refused::param("lag_tx_port_affinity", affinity, "the device has one port")
    })
}

fn create_tis(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<CreateTis>(exec, input, |exec, input| {
        let context = input.ctx();
        check_tisc(&context)?;
        let objects = &mut exec.ctx.state.objects;
        let td = context.transport_domain();
        check_td(objects, td)?;
        let tis = Tis { prio: context.prio(), transport_domain: td, context };
        let tisn = add(&mut objects.tiss, "tisn", tis)?;
        objects.tds.hold(td);
        Ok(CreateTisOut::zeroed().with_tisn(tisn))
    })
}

/// Bits of MODIFY_TIS's bitmask: prio, strict LAG, LAG affinity. Source: reference 4.3.
const TIS_FIELDS: u64 = 7;

fn modify_tis(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<ModifyTis>(exec, input, |exec, input| {
        let (tisn, bitmask, new) = (input.tisn(), input.bitmask(), input.ctx());
        ensure(bitmask & !TIS_FIELDS == 0, || Refused::param("bitmask", bitmask, "no such field"))?;
        check_tisc(&new)?;
        let tis = exec.ctx.state.objects.tiss.get_mut(tisn);
        let tis = tis.ok_or_else(|| Refused::resource("tisn", tisn))?;
        if bitmask & 1 != 0 {
            tis.prio = new.prio();
            tis.context = tis.context.with_prio(new.prio());
        }
        Ok(ModifyTisOut::zeroed())
    })
}

fn destroy_tis(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DestroyTis>(exec, input, |exec, input| {
        let objects = &mut exec.ctx.state.objects;
        let tis = remove(&mut objects.tiss, "tisn", input.tisn())?;
        objects.tds.release(tis.transport_domain);
        Ok(DestroyTisOut::zeroed())
    })
}

fn query_tis(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<QueryTis>(exec, input, |exec, input| {
        let tisn = input.tisn();
        let tis = exec.ctx.state.objects.tiss.get(tisn);
        let tis = tis.ok_or_else(|| Refused::resource("tisn", tisn))?;
        Ok(QueryTisOut::zeroed().with_tis_context(tis.context))
    })
}

/// The RQ list behind an RQT context, checked.
fn rq_list(objects: &Objects, context: &Rqtc, max_size: u32, tail: &[u8]) -> Answer<Arc<[u32]>> {
    let count = context.rqt_actual_size();
    ensure(context.list_q_type() == 0, || {
        Refused::param("list_q_type", context.list_q_type(), "only lists of RQs are supported")
    })?;
    ensure(count.is_power_of_two() && count <= max_size, || {
        Refused::param("rqt_actual_size", count, "not a power of two up to rqt_max_size")
    })?;
    let given = tail.len() / 4;
    ensure(count as usize <= given, || {
        let status = CommandStatus::BAD_INPUT_LEN;
        Refused::new(status, "rq_num", given as u64, "fewer RQs than rqt_actual_size")
    })?;
    objects.mkeys.work(u64::from(count) / QUEUES_PER_STEP);
    let mut rqns = Vec::with_capacity(count as usize);
    for entry in tail.chunks_exact(4).take(count as usize) {
        let rqn = RqNum::read_from(entry).unwrap_or_default().rq_num();
        ensure(entry[0] == 0, || Refused::param("rq_num", rqn, "reserved bits are set"))?;
        ensure(objects.rqs.contains(rqn), || Refused::resource("rq_num", rqn))?;
        rqns.push(rqn);
    }
    Ok(rqns.into())
}

/// Queues that are looked up in the time of an access to memory.
const QUEUES_PER_STEP: u64 = 4;

fn hold_list(objects: &mut Objects, rqns: &[u32]) {
    objects.mkeys.work(rqns.len() as u64 / QUEUES_PER_STEP);
    for rqn in rqns {
        objects.rqs.hold(*rqn);
    }
}

fn release_list(objects: &mut Objects, rqns: &[u32]) {
    objects.mkeys.work(rqns.len() as u64 / QUEUES_PER_STEP);
    for rqn in rqns {
        objects.rqs.release(*rqn);
    }
}

fn create_rqt(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<CreateRqt>(bytes, |op_mod| op_mod == 0)?;
    let context = input.fixed.rqt_context();
    let max_size = context.rqt_max_size();
    ensure((1..=1 << log_max::RQT_SIZE).contains(&max_size), || {
        Refused::param("rqt_max_size", max_size, "0, or above log_max_rqt_size")
    })?;
    let objects = &mut exec.ctx.state.objects;
    let rqns = rq_list(objects, &context, max_size, input.tail)?;
    let rqtn = add(&mut objects.rqts, "rqtn", Rqt { max_size, rqns: rqns.clone() })?;
    hold_list(objects, &rqns);
    objects.steering_changed();
    Ok(CreateRqtOut::zeroed().with_rqtn(rqtn).0.to_vec())
}

/// Bit of MODIFY_RQT's bitmask: the list. Source: reference 4.3.
const RQT_LIST: u64 = 1;

fn modify_rqt(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<ModifyRqt>(bytes, |op_mod| op_mod == 0)?;
    let (rqtn, bitmask) = (input.fixed.rqtn(), input.fixed.bitmask());
    ensure(bitmask & !RQT_LIST == 0, || Refused::param("bitmask", bitmask, "no such field"))?;
    let objects = &mut exec.ctx.state.objects;
    let rqt = objects.rqts.get(rqtn).ok_or_else(|| Refused::resource("rqtn", rqtn))?;
    if bitmask & RQT_LIST != 0 {
        let new = rq_list(objects, &input.fixed.ctx(), rqt.max_size, input.tail)?;
        objects
            .rqts
            .grow(rqtn, list_bytes::<u32>(new.len()))
            .map_err(|full| Refused::full("rq_num", full))?;
        hold_list(objects, &new);
        let old = objects.rqts.get_mut(rqtn).map(|rqt| std::mem::replace(&mut rqt.rqns, new));
        let old = old.unwrap_or_default();
        objects.rqts.shrink(rqtn, list_bytes::<u32>(old.len()));
        release_list(objects, &old);
        objects.steering_changed();
    }
    Ok(ModifyRqtOut::zeroed().0.to_vec())
}

fn destroy_rqt(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DestroyRqt>(exec, input, |exec, input| {
        let objects = &mut exec.ctx.state.objects;
        let rqt = remove(&mut objects.rqts, "rqtn", input.rqtn())?;
        release_list(objects, &rqt.rqns);
        objects.steering_changed();
        Ok(DestroyRqtOut::zeroed())
    })
}

fn query_rqt(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<QueryRqt>(bytes, |op_mod| op_mod == 0)?;
    no_tail(input.tail)?;
    let rqtn = input.fixed.rqtn();
    let rqt = exec.ctx.state.objects.rqts.get(rqtn);
    let rqt = rqt.ok_or_else(|| Refused::resource("rqtn", rqtn))?;
    let count = u32::try_from(rqt.rqns.len()).unwrap_or(0);
    let context = Rqtc::zeroed().with_rqt_max_size(rqt.max_size).with_rqt_actual_size(count);
    let mut output = QueryRqtOut::zeroed().with_rqt_context(context).0.to_vec();
    output.extend(rqt.rqns.iter().flat_map(|rqn| RqNum::zeroed().with_rq_num(*rqn).0));
    Ok(output)
}
