//! Commands about the vport and its counters.
//!
//! Source: reference 4.2 "Ports, vports, RoCE, counters", 4.5, 4.8.

use ferrocx_prm::cmd::Opcode;
use ferrocx_prm::cmd::port::{
    AllocQCounter, AllocQCounterOut, DeallocQCounter, DeallocQCounterOut, ModifyNicVportContext,
    ModifyNicVportContextOut, ModifyVportState, ModifyVportStateOut, QueryLag, QueryLagOut,
    QueryNicVportContext, QueryNicVportContextOut, QueryQCounter, QueryQCounterOut, QueryVnicEnv,
    QueryVnicEnvOut, QueryVportCounter, QueryVportCounterOut, QueryVportState, QueryVportStateOut,
};
use ferrocx_prm::syndrome::CommandStatus;
use ferrocx_prm::vport::{NicVportContext, field_select};

use super::handler::{Exec, Handler, add, check_vport, no_tail, parse, plain, remove};
use crate::device::caps::log_max;
use crate::device::port::{PortCounters, Promiscuous, Vport};
use crate::device::refused::{Answer, Refused, ensure};
use crate::objects::{QCounter, RoceCounters};

pub(super) fn handler(opcode: Opcode) -> Option<Handler> {
    Some(match opcode {
        Opcode::QUERY_NIC_VPORT_CONTEXT => query_context,
        Opcode::MODIFY_NIC_VPORT_CONTEXT => modify_context,
        Opcode::QUERY_VPORT_STATE => query_state,
        Opcode::MODIFY_VPORT_STATE => modify_state,
        Opcode::QUERY_VPORT_COUNTER => query_counter,
        Opcode::QUERY_VNIC_ENV => query_env,
        Opcode::QUERY_LAG => query_lag,
        Opcode::ALLOC_Q_COUNTER => alloc_q_counter,
        Opcode::DEALLOC_Q_COUNTER => dealloc_q_counter,
        Opcode::QUERY_Q_COUNTER => query_q_counter,
        _ => return None,
    })
}

/// `allowed_list_type`. Source: reference 4.5.
const LIST_UNICAST: u32 = 0;
const LIST_MULTICAST: u32 = 1;
const LIST_VLAN: u32 = 2;

fn mac_entry(mac: &[u8; 6]) -> [u8; 8] {
    let mut entry = [0; 8];
    entry[2..].copy_from_slice(mac);
    entry
}

fn mac_of(entry: &[u8]) -> [u8; 6] {
    let mut mac = [0; 6];
    mac.copy_from_slice(&entry[2..8]);
    mac
}

fn query_context(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<QueryNicVportContext>(bytes, |op_mod| op_mod == 0)?;
    no_tail(input.tail)?;
    check_vport(input.fixed.other_vport(), input.fixed.vport_number())?;
    let vport = &exec.ctx.state.port.vport;
    let kind = input.fixed.allowed_list_type();
    let (count, list): (usize, Vec<u8>) = match kind {
        LIST_UNICAST => (vport.unicast.len(), vport.unicast.iter().flat_map(mac_entry).collect()),
        LIST_MULTICAST => {
            (vport.multicast.len(), vport.multicast.iter().flat_map(mac_entry).collect())
        }
        LIST_VLAN => {
            let vlans = vport.vlans.iter().flat_map(|vlan| u32::from(*vlan).to_be_bytes());
            (vport.vlans.len(), vlans.collect())
        }
        _ => return Err(Refused::param("allowed_list_type", kind, "no such list")),
    };
    // The counter has 16 bits, and stays where it is full.
    let qkey_violations = exec.datapath.roce_drops().qkey.min(0xffff);
    let context = context(vport)
        .with_qkey_violation_counter(u32::try_from(qkey_violations).unwrap_or(0xffff))
        .with_allowed_list_type(kind)
        .with_allowed_list_size(u32::try_from(count).unwrap_or(0));
    let mut output = QueryNicVportContextOut::zeroed().with_nic_vport_context(context).0.to_vec();
    output.extend(list);
    Ok(output)
}

fn context(vport: &Vport) -> NicVportContext {
    NicVportContext::zeroed()
        .with_min_wqe_inline_mode(vport.min_wqe_inline_mode)
        .with_disable_mc_local_lb(vport.disable_mc_local_lb)
        .with_disable_uc_local_lb(vport.disable_uc_local_lb)
        .with_roce_en(vport.roce_en)
        .with_arm_change_event(vport.event_armed)
        .with_event_on(vport.event_on)
        .with_mtu(vport.mtu)
        .with_system_image_guid(vport.system_image_guid)
        .with_port_guid(vport.port_guid)
        .with_node_guid(vport.node_guid)
        .with_promisc_uc(vport.promiscuous.unicast)
        .with_promisc_mc(vport.promiscuous.multicast)
        .with_promisc_all(vport.promiscuous.all)
        .with_permanent_address(mac_entry(&vport.mac))
}

/// Fields that MODIFY_NIC_VPORT_CONTEXT may select here.
const SELECTABLE: u32 = field_select::ROCE_EN
    | field_select::ADDRESSES_LIST
    | field_select::PERMANENT_ADDRESS
    | field_select::PROMISC
    | field_select::CHANGE_EVENT
    | field_select::MTU
    | field_select::MIN_INLINE
    | field_select::PORT_GUID
    | field_select::NODE_GUID
    | field_select::DISABLE_MC_LOCAL_LB
    | field_select::DISABLE_UC_LOCAL_LB;

fn modify_context(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<ModifyNicVportContext>(bytes, |op_mod| op_mod == 0)?;
    check_vport(input.fixed.other_vport(), input.fixed.vport_number())?;
    let select = input.fixed.field_select();
    ensure(select & !SELECTABLE == 0, || {
        Refused::param("field_select", select, "no such field, or not supported")
    })?;
    let state = &mut *exec.ctx.state;
    let new = input.fixed.nic_vport_context();
    let mut vport = state.port.vport.clone();
    if select & field_select::ROCE_EN != 0 {
        ensure(state.config.roce || !new.roce_en(), || {
            Refused::param("roce_en", 1_u32, "roce is not advertised")
        })?;
        vport.roce_en = new.roce_en();
    }
    if select & field_select::MTU != 0 {
        let (mtu, max) = (new.mtu(), state.port.max_mtu);
        ensure((68..=max).contains(&mtu), || Refused::param("mtu", mtu, "not from 68 to max_mtu"))?;
        vport.mtu = mtu;
    }
    if select & field_select::ADDRESSES_LIST != 0 {
        set_list(&mut vport, &new, input.tail)?;
    } else {
        no_tail(input.tail)?;
    }
    set_flags(&mut vport, &new, select)?;
    state.port.vport = vport;
    Ok(ModifyNicVportContextOut::zeroed().0.to_vec())
}

fn set_flags(vport: &mut Vport, new: &NicVportContext, select: u32) -> Answer<()> {
    let selected = |bit| select & bit != 0;
    if selected(field_select::PERMANENT_ADDRESS) {
        let address = new.permanent_address();
        ensure(address[2] & 1 == 0, || {
            Refused::param("permanent_address", u64::from_be_bytes(address), "a group address")
        })?;
        vport.mac = mac_of(&address);
    }
    if selected(field_select::PROMISC) {
        vport.promiscuous = Promiscuous {
            unicast: new.promisc_uc(),
            multicast: new.promisc_mc(),
            all: new.promisc_all(),
        };
    }
    if selected(field_select::CHANGE_EVENT) {
        vport.event_armed = new.arm_change_event();
        vport.event_on = new.event_on();
    }
    if selected(field_select::MIN_INLINE) {
        let mode = new.min_wqe_inline_mode();
        ensure(mode <= 3, || Refused::param("min_wqe_inline_mode", mode, "no such mode"))?;
        vport.min_wqe_inline_mode = mode;
    }
    if selected(field_select::PORT_GUID) {
        vport.port_guid = new.port_guid();
    }
    if selected(field_select::NODE_GUID) {
        vport.node_guid = new.node_guid();
    }
    if selected(field_select::DISABLE_MC_LOCAL_LB) {
        vport.disable_mc_local_lb = new.disable_mc_local_lb();
    }
    if selected(field_select::DISABLE_UC_LOCAL_LB) {
        vport.disable_uc_local_lb = new.disable_uc_local_lb();
    }
    Ok(())
}

fn set_list(vport: &mut Vport, new: &NicVportContext, tail: &[u8]) -> Answer<()> {
    let kind = new.allowed_list_type();
    let (log_limit, entry_bytes) = match kind {
        LIST_UNICAST => (log_max::UC_LIST, 8),
        LIST_MULTICAST => (log_max::MC_LIST, 8),
        LIST_VLAN => (log_max::VLAN_LIST, 4),
        _ => return Err(Refused::param("allowed_list_type", kind, "no such list")),
    };
    let count = new.allowed_list_size() as usize;
    ensure(count <= 1 << log_limit, || {
        let status = CommandStatus::EXCEED_LIM;
        Refused::new(status, "allowed_list_size", count as u64, "above the advertised list size")
    })?;
    ensure(tail.len() >= count * entry_bytes, || {
        let status = CommandStatus::BAD_INPUT_LEN;
        Refused::new(status, "allowed_list_size", count as u64, "the list is shorter")
    })?;
    let entries = tail.chunks_exact(entry_bytes).take(count);
    match kind {
        LIST_UNICAST => vport.unicast = entries.map(mac_of).collect(),
        LIST_MULTICAST => vport.multicast = entries.map(mac_of).collect(),
        _ => vport.vlans = entries.map(|at| u16::from_be_bytes([at[2], at[3]]) & 0xfff).collect(),
    }
    Ok(())
}

/// The e-switch's own view (op_mod 1) does not exist here; the uplink (2) is the port.
fn is_state_op_mod(op_mod: u32) -> bool {
    matches!(op_mod, 0 | 2)
}

fn query_state(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<QueryVportState>(bytes, is_state_op_mod)?;
    no_tail(input.tail)?;
    check_vport(input.fixed.other_vport(), input.fixed.vport_number())?;
    let port = &exec.ctx.state.port;
    let output = QueryVportStateOut::zeroed()
        .with_admin_state(port.vport.admin_state)
        .with_state(u32::from(port.is_up()));
    Ok(output.0.to_vec())
}

fn modify_state(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<ModifyVportState>(bytes, is_state_op_mod)?;
    no_tail(input.tail)?;
    check_vport(input.fixed.other_vport(), input.fixed.vport_number())?;
    let admin = input.fixed.admin_state();
    ensure(admin <= 2, || Refused::param("admin_state", admin, "no such state"))?;
    exec.ctx.state.port.vport.admin_state = admin;
    exec.ctx.port_changed();
    Ok(ModifyVportStateOut::zeroed().0.to_vec())
}

fn query_counter(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<QueryVportCounter>(exec, input, |exec, input| {
        check_vport(input.other_vport(), input.vport_number())?;
        let port = input.port_num();
        ensure(port <= 1, || Refused::param("port_num", port, "the device has one port"))?;
        let counters = &mut exec.ctx.state.port.counters;
        let output = vport_counters(counters);
        if input.clear() {
            *counters = PortCounters::default();
        }
        Ok(output)
    })
}

fn vport_counters(counters: &PortCounters) -> QueryVportCounterOut {
    QueryVportCounterOut::zeroed()
        .with_rx_errors_packets(counters.rx_errors.packets)
        .with_rx_errors_octets(counters.rx_errors.octets)
        .with_tx_errors_packets(counters.tx_errors.packets)
        .with_tx_errors_octets(counters.tx_errors.octets)
        .with_rx_ib_unicast_packets(counters.rx_ib_unicast.packets)
        .with_rx_ib_unicast_octets(counters.rx_ib_unicast.octets)
        .with_tx_ib_unicast_packets(counters.tx_ib_unicast.packets)
        .with_tx_ib_unicast_octets(counters.tx_ib_unicast.octets)
        .with_rx_ib_multicast_packets(counters.rx_ib_multicast.packets)
        .with_rx_ib_multicast_octets(counters.rx_ib_multicast.octets)
        .with_tx_ib_multicast_packets(counters.tx_ib_multicast.packets)
        .with_tx_ib_multicast_octets(counters.tx_ib_multicast.octets)
        .with_rx_eth_broadcast_packets(counters.rx_broadcast.packets)
        .with_rx_eth_broadcast_octets(counters.rx_broadcast.octets)
        .with_tx_eth_broadcast_packets(counters.tx_broadcast.packets)
        .with_tx_eth_broadcast_octets(counters.tx_broadcast.octets)
        .with_rx_eth_unicast_packets(counters.rx_unicast.packets)
        .with_rx_eth_unicast_octets(counters.rx_unicast.octets)
        .with_tx_eth_unicast_packets(counters.tx_unicast.packets)
        .with_tx_eth_unicast_octets(counters.tx_unicast.octets)
        .with_rx_eth_multicast_packets(counters.rx_multicast.packets)
        .with_rx_eth_multicast_octets(counters.rx_multicast.octets)
        .with_tx_eth_multicast_packets(counters.tx_multicast.packets)
        .with_tx_eth_multicast_octets(counters.tx_multicast.octets)
}

fn query_env(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<QueryVnicEnv>(exec, input, |_, input| {
        check_vport(input.other_vport(), input.vport_number())?;
        // Every counter in it belongs to a capability that is not advertised.
        Ok(QueryVnicEnvOut::zeroed())
    })
}

fn query_lag(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    // A function is one port of its own, and its driver cannot join it to another.
    plain::<QueryLag>(exec, input, |_, _| Ok(QueryLagOut::zeroed()))
}

fn alloc_q_counter(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<AllocQCounter>(exec, input, |exec, _| {
        let counters = &mut exec.ctx.state.objects.q_counters;
        let id = add(counters, "counter_set_id", QCounter::default())?;
        Ok(AllocQCounterOut::zeroed().with_counter_set_id(id))
    })
}

fn dealloc_q_counter(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DeallocQCounter>(exec, input, |exec, input| {
        let id = input.counter_set_id();
        remove(&mut exec.ctx.state.objects.q_counters, "counter_set_id", id)?;
        Ok(DeallocQCounterOut::zeroed())
    })
}

fn query_q_counter(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<QueryQCounter>(exec, input, |exec, input| {
        let id = input.counter_set_id();
        let counter = exec.ctx.state.objects.q_counters.get_mut(id);
        let counter = counter.ok_or_else(|| Refused::resource("counter_set_id", id))?;
        // 32-bit counters wrap. Source: reference 4.8.
        let low = |value: u64| u32::try_from(value & 0xffff_ffff).unwrap_or(0);
        let output = QueryQCounterOut::zeroed()
            .with_out_of_buffer(low(counter.out_of_buffer))
            .with_cq_overflow(low(counter.cq_overflow));
        let output = roce_counters(output, &counter.roce);
        if input.clear() {
            *counter = QCounter::default();
        }
        Ok(output)
    })
}

fn roce_counters(output: QueryQCounterOut, roce: &RoceCounters) -> QueryQCounterOut {
    let low = |value: u64| u32::try_from(value & 0xffff_ffff).unwrap_or(0);
    output
        .with_rx_write_requests(low(roce.rx_write_requests))
        .with_rx_read_requests(low(roce.rx_read_requests))
        .with_rx_atomic_requests(low(roce.rx_atomic_requests))
        .with_out_of_sequence(low(roce.out_of_sequence))
        .with_duplicate_request(low(roce.duplicate_request))
        .with_rnr_nak_retry_err(low(roce.rnr_nak_retry_err))
        .with_packet_seq_err(low(roce.packet_seq_err))
        .with_implied_nak_seq_err(low(roce.implied_nak_seq_err))
        .with_local_ack_timeout_err(low(roce.local_ack_timeout_err))
        .with_resp_local_length_error(low(roce.resp_local_length_error))
        .with_resp_cqe_error(low(roce.resp_cqe_error))
        .with_req_cqe_error(low(roce.req_cqe_error))
        .with_resp_cqe_flush_error(low(roce.resp_cqe_flush_error))
        .with_req_cqe_flush_error(low(roce.req_cqe_flush_error))
        .with_req_transport_retries_exceeded(low(roce.req_transport_retries_exceeded))
        .with_req_rnr_retries_exceeded(low(roce.req_rnr_retries_exceeded))
        .with_req_remote_access_errors(low(roce.req_remote_access_errors))
        .with_req_remote_invalid_request(low(roce.req_remote_invalid_request))
        .with_resp_remote_access_errors(low(roce.resp_remote_access_errors))
}
