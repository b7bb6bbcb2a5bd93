//! Commands about XRC shared receive queues, RoCE addresses, P_Keys and multicast groups.
//!
//! Source: reference 4.2 "Shared receive queues" and "Ports, vports, RoCE", 4.6, 4.9.

use ferrocx_prm::Layout;
use ferrocx_prm::cmd::Opcode;
use ferrocx_prm::cmd::port::{
    QueryHcaVportPkey, QueryHcaVportPkeyOut, QueryRoceAddress, QueryRoceAddressOut, SetRoceAddress,
    SetRoceAddressOut,
};
use ferrocx_prm::cmd::srq::{
    ArmRq, ArmRqOut, ArmXrcSrq, ArmXrcSrqOut, AttachToMcg, AttachToMcgOut, CreateXrcSrq,
    CreateXrcSrqOut, DestroyXrcSrq, DestroyXrcSrqOut, DetachFromMcg, DetachFromMcgOut, QueryXrcSrq,
    QueryXrcSrqOut,
};
use ferrocx_prm::srqc::XrcSrqc;
use ferrocx_prm::syndrome::CommandStatus;
use ferrocx_prm::vport::RoceAddress;
use ferrocx_prm::wqc::Wq;

use super::basic::{add, remove};
use super::dispatch::{Handler, no_tail, parse, plain};
use super::queues::{RingPlace, check_record, ring};
use super::{Answer, Exec, Refused, ensure};
use crate::caps::{MAX_QP_MCG, ROCE_ADDRESSES, log_max};
use crate::objects::{QpType, ReceiveRing, RoceGid, WorkQueue, WqType, XrcSrq};
use crate::roce::Network;
use crate::roce::bth::DEFAULT_PKEY;

pub(super) fn handler(opcode: Opcode) -> Option<Handler> {
    Some(match opcode {
        Opcode::CREATE_XRC_SRQ => create_srq,
        Opcode::DESTROY_XRC_SRQ => destroy_srq,
        Opcode::QUERY_XRC_SRQ => query_srq,
        Opcode::ARM_XRC_SRQ => arm_srq,
        Opcode::ARM_RQ => arm_rq,
        Opcode::SET_ROCE_ADDRESS => set_address,
        Opcode::QUERY_ROCE_ADDRESS => query_address,
        Opcode::QUERY_HCA_VPORT_PKEY => query_pkey,
        Opcode::ATTACH_TO_MCG => attach,
        Opcode::DETACH_FROM_MCG => detach,
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
    let (pd, cqn, xrcd) = (context.pd(), context.cqn(), context.xrcd());
    ensure(objects.pds.contains(pd), || Refused::resource("pd", pd))?;
    ensure(objects.cqs.contains(cqn), || Refused::resource("cqn", cqn))?;
    ensure(objects.xrcds.contains(xrcd), || Refused::resource("xrcd", xrcd))?;
    let log_stride = context.log_rq_stride() + 4;
    let place = RingPlace {
        log_page_size: context.log_page_size(),
        page_offset: context.page_offset(),
        len_bytes: 1 << (context.log_xrc_srq_size() + log_stride),
    };
    let is_cyclic = context.basic_cyclic_rcv_wqe();
    let wq = WorkQueue {
        wq_type: if is_cyclic { WqType::Cyclic } else { WqType::LinkedList },
        memory: ring(&place, input.tail)?,
        log_size: context.log_xrc_srq_size(),
        log_stride,
        pd,
        dbr_addr: context.dbr_addr(),
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

/// RoCE versions. Source: reference 4.6.
const VERSION_1: u32 = 0;
const VERSION_2: u32 = 2;

/// Decodes an entry; `None` for one that deletes.
fn decode(raw: RoceAddress) -> Answer<Option<RoceGid>> {
    let gid = raw.source_l3_address();
    if gid == [0; 16] {
        return Ok(None);
    }
    let network = network(&raw)?;
    let (high, low) = (raw.source_mac_47_32(), raw.source_mac_31_0());
    let mac = u64::from(high) << 32 | u64::from(low);
    ensure(mac != 0 && high >> 8 & 1 == 0, || {
        Refused::param("source_mac", mac, "zero, or a group address")
    })?;
    let [_, _, mac @ ..] = mac.to_be_bytes();
    let vlan = raw.vlan_valid().then(|| u16::try_from(raw.vlan_id()).unwrap_or(0));
    Ok(Some(RoceGid { gid, mac, vlan, network, raw }))
}

/// The network header of an entry: its version, and with version 2 its type.
fn network(raw: &RoceAddress) -> Answer<Network> {
    let (version, l3_type) = (raw.roce_version(), raw.roce_l3_type());
    ensure(matches!(version, VERSION_1 | VERSION_2), || {
        Refused::param("roce_version", version, "only RoCEv1 and RoCEv2 are advertised")
    })?;
    if version == VERSION_1 {
        // A GID of any form; the type is 0 there. Source: reference 4.6.
        ensure(l3_type == 0, || Refused::param("roce_l3_type", l3_type, "RoCEv1 has no IP"))?;
        return Ok(Network::Grh);
    }
    ensure(l3_type <= 1, || Refused::param("roce_l3_type", l3_type, "no such type"))?;
    let gid = raw.source_l3_address();
    let is_mapped = gid[..10] == [0; 10] && gid[10..12] == [0xff, 0xff];
    ensure(l3_type == 1 || is_mapped, || {
        Refused::param("roce_l3_type", l3_type, "not an IPv4-mapped address")
    })?;
    Ok(if l3_type == 1 { Network::Ipv6 } else { Network::Ipv4 })
}

fn check_index(index: u32, port: u32) -> Answer<usize> {
    ensure(index < ROCE_ADDRESSES, || {
        Refused::param("roce_address_index", index, "above roce_address_table_size")
    })?;
    ensure(port <= 1, || Refused::param("vhca_port_num", port, "the device has one port"))?;
    Ok(index as usize)
}

fn set_address(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<SetRoceAddress>(exec, input, |exec, input| {
        let index = check_index(input.roce_address_index(), input.vhca_port_num())?;
        let entry = decode(input.roce_address())?;
        let gids = &mut exec.ctx.state.objects.roce_gids;
        if gids.len() <= index {
            gids.resize(index + 1, None);
        }
        gids[index] = entry;
        Ok(SetRoceAddressOut::zeroed())
    })
}

fn query_address(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<QueryRoceAddress>(exec, input, |exec, input| {
        check_index(input.roce_address_index(), input.vhca_port_num())?;
        let entry = exec.ctx.state.objects.roce_gid(input.roce_address_index());
        let raw = entry.map_or(RoceAddress::zeroed(), |entry| entry.raw);
        Ok(QueryRoceAddressOut::zeroed().with_roce_address(raw))
    })
}

/// The P_Key table of a RoCE port has one entry. Source: reference 4.3, 7.8.
fn query_pkey(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<QueryHcaVportPkey>(bytes, |op_mod| op_mod == 0)?;
    no_tail(input.tail)?;
    super::flow::check_vport(input.fixed.other_vport(), input.fixed.vport_number())?;
    let index = input.fixed.pkey_index();
    ensure(index == 0 || index == 0xffff, || {
        Refused::param("pkey_index", index, "the table has one entry")
    })?;
    let mut output = QueryHcaVportPkeyOut::zeroed().as_bytes().to_vec();
    output.extend(u32::from(DEFAULT_PKEY).to_be_bytes());
    output.resize(exec.output_len.max(output.len()), 0);
    Ok(output)
}

fn attach(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<AttachToMcg>(exec, input, |exec, input| {
        let (qpn, gid) = (input.qpn(), input.multicast_gid());
        let objects = &mut exec.ctx.state.objects;
        let qp = objects.qps.get(qpn).ok_or_else(|| Refused::resource("qpn", qpn))?;
        ensure(qp.qp_type == QpType::Ud, || {
            Refused::new(CommandStatus::BAD_PARAM, "qpn", qpn, "not a datagram queue pair")
        })?;
        let members = objects.multicast.iter().filter(|(group, _)| *group == gid).count();
        ensure(members < MAX_QP_MCG as usize, || Refused::full("max_qp_mcg"))?;
        if !objects.multicast.contains(&(gid, qpn)) {
            objects.multicast.push((gid, qpn));
        }
        Ok(AttachToMcgOut::zeroed())
    })
}

fn detach(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DetachFromMcg>(exec, input, |exec, input| {
        let member = (input.multicast_gid(), input.qpn());
        let multicast = &mut exec.ctx.state.objects.multicast;
        ensure(multicast.contains(&member), || Refused::resource("qpn", member.1))?;
        multicast.retain(|other| *other != member);
        Ok(DetachFromMcgOut::zeroed())
    })
}
