//! ACCESS_REG: the registers of the port and of the device.
//!
//! Source: reference 4.7.

use ferrocx_prm::Layout;
use ferrocx_prm::cmd::Opcode;
use ferrocx_prm::cmd::port::{AccessReg, AccessRegOut};
use ferrocx_prm::init_seg::TimeOut;
use ferrocx_prm::layout::first_reserved;
use ferrocx_prm::reg::{
    Dtor, HostEndianness, Ieee8023Counters, Paos, Pfcc, Pmlp, Pmtu, PortStatus, Ppcnt, Ptys,
    RegisterId, counter_group,
};

use super::handler::{Exec, Handler, no_tail, parse};
use crate::device::port::{Port, PortCounters};
use crate::device::refused::{Answer, Refused, ensure};

pub(super) fn handler(opcode: Opcode) -> Option<Handler> {
    (opcode == Opcode::ACCESS_REG).then_some(access_reg as Handler)
}

/// Bytes of the NODE_DESC register.
const NODE_DESC_BYTES: usize = 64;

/// op_mod: 0 writes, 1 reads. Source: reference 4.7.
const READ: u32 = 1;

fn access_reg(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<AccessReg>(bytes, |op_mod| op_mod <= 1)?;
    let id = RegisterId(u16::try_from(input.fixed.register_id()).unwrap_or(0));
    let is_read = input.op_mod == READ;
    let value = match id {
        RegisterId::PMTU => access(exec, input.tail, is_read, pmtu)?,
        RegisterId::PTYS => access(exec, input.tail, is_read, ptys)?,
        RegisterId::PAOS => access(exec, input.tail, is_read, paos)?,
        RegisterId::PFCC => access(exec, input.tail, is_read, pfcc)?,
        RegisterId::PPCNT => access(exec, input.tail, is_read, ppcnt)?,
        RegisterId::PMLP => access(exec, input.tail, is_read, pmlp)?,
        RegisterId::HOST_ENDIANNESS => access(exec, input.tail, is_read, host_endianness)?,
        RegisterId::DTOR => access(exec, input.tail, is_read, dtor)?,
        RegisterId::NODE_DESC => node_desc(exec, input.tail, is_read)?,
        _ => return Err(Refused::param("register_id", id.0, "no such register here")),
    };
    let mut output = AccessRegOut::zeroed().0.to_vec();
    output.extend(value);
    Ok(output)
}

/// Parses a register, runs its access, and returns its new content.
fn access<R: Layout>(
    exec: &mut Exec<'_, '_>,
    tail: &[u8],
    is_read: bool,
    run: fn(&mut Exec<'_, '_>, R, bool) -> Answer<R>,
) -> Answer<Vec<u8>> {
    let mut bytes = tail[..tail.len().min(R::SIZE_BYTES)].to_vec();
    bytes.resize(R::SIZE_BYTES, 0);
    no_tail(tail.get(R::SIZE_BYTES..).unwrap_or(&[]))?;
    let Some(register) = R::read_from(&bytes) else {
        return Err(Refused::param("register_data", tail.len() as u64, "too short"));
    };
    // Linux leaves the reserved bytes of HOST_ENDIANNESS uninitialised, and TRACE shows a real
    // device taking them.
    let is_lenient = R::NAME == HostEndianness::NAME;
    if let Some(reserved) = first_reserved(&register).filter(|_| !is_lenient) {
        let place = (reserved.offset as u64) << 32 | u64::from(reserved.bits);
        return Err(Refused::param("register reserved bits", place, "reserved bits are set"));
    }
    Ok(run(exec, register, is_read)?.as_bytes().to_vec())
}

fn check_port(local_port: u32) -> Answer<()> {
    ensure(local_port == 1, || Refused::param("local_port", local_port, "the device has port 1"))
}

fn read_only(field: &'static str, is_read: bool) -> Answer<()> {
    ensure(is_read, || Refused::param(field, 0_u32, "the register cannot be written"))
}

fn pmtu(exec: &mut Exec<'_, '_>, input: Pmtu, is_read: bool) -> Answer<Pmtu> {
    check_port(input.local_port())?;
    let port = &mut exec.ctx.state.port;
    if !is_read {
        let (mtu, max) = (input.admin_mtu(), port.max_mtu);
        ensure((68..=max).contains(&mtu), || {
            Refused::param("admin_mtu", mtu, "not from 68 to max_mtu")
        })?;
        port.mtu = mtu;
    }
    let output = Pmtu::zeroed().with_local_port(1).with_max_mtu(port.max_mtu);
    Ok(output.with_admin_mtu(port.mtu).with_oper_mtu(port.mtu))
}

/// `proto_mask` for Ethernet. Source: reference 4.7.
const PROTO_ETHERNET: u32 = 4;

fn ptys(exec: &mut Exec<'_, '_>, input: Ptys, is_read: bool) -> Answer<Ptys> {
    check_port(input.local_port())?;
    ensure(input.proto_mask() == PROTO_ETHERNET, || {
        Refused::param("proto_mask", input.proto_mask(), "the port is Ethernet")
    })?;
    let state = &mut *exec.ctx.state;
    let able = state.config.speeds;
    if !is_read {
        let wanted = input.eth_proto_admin();
        ensure(wanted != 0 && wanted & !able == 0, || {
            Refused::param("eth_proto_admin", wanted, "none, or a speed that the port cannot do")
        })?;
        state.port.speeds_admin = wanted;
    }
    let port = &state.port;
    Ok(Ptys::zeroed()
        .with_local_port(1)
        .with_proto_mask(PROTO_ETHERNET)
        .with_eth_proto_capability(able)
        .with_eth_proto_admin(port.speeds_admin)
        .with_eth_proto_oper(speed_in_force(port)))
}

/// One of the allowed speeds; 0 while the link is down.
fn speed_in_force(port: &Port) -> u32 {
    let allowed = port.speeds_admin;
    if port.is_up() && allowed != 0 { 1 << (31 - allowed.leading_zeros()) } else { 0 }
}

fn paos(exec: &mut Exec<'_, '_>, input: Paos, is_read: bool) -> Answer<Paos> {
    check_port(input.local_port())?;
    if !is_read && input.ase() {
        let status = PortStatus(input.admin_status());
        ensure(matches!(status, PortStatus::UP | PortStatus::DOWN), || {
            Refused::param("admin_status", status.0, "only up (1) and down (2)")
        })?;
        exec.ctx.state.port.admin_up = status == PortStatus::UP;
        exec.ctx.port_changed();
    }
    let port = &exec.ctx.state.port;
    let status = |is_up| if is_up { PortStatus::UP.0 } else { PortStatus::DOWN.0 };
    let output = Paos::zeroed().with_local_port(1).with_admin_status(status(port.admin_up));
    Ok(output.with_oper_status(status(port.is_up())))
}

fn pfcc(exec: &mut Exec<'_, '_>, input: Pfcc, is_read: bool) -> Answer<Pfcc> {
    check_port(input.local_port())?;
    let port = &mut exec.ctx.state.port;
    if !is_read {
        let priorities = input.pfctx() | input.pfcrx();
        ensure(priorities == 0, || {
            Refused::param("pfctx or pfcrx", priorities, "per-priority pause is not supported")
        })?;
        (port.pause_tx, port.pause_rx) = (input.pptx(), input.pprx());
    }
    Ok(Pfcc::zeroed().with_local_port(1).with_pptx(port.pause_tx).with_pprx(port.pause_rx))
}

/// Groups of PPCNT that have no counters of their own here and read as zero. Source: reference 4.7.
const ZERO_GROUPS: &[u32] = &[
    counter_group::RFC_3635,
    counter_group::ETH_EXTENDED,
    counter_group::PER_PRIORITY,
    0x11,
    counter_group::PHYSICAL_LAYER,
    // `mlx5_ib` reads it for the counters of a RoCE port in sysfs.
    counter_group::INFINIBAND,
];

fn ppcnt(exec: &mut Exec<'_, '_>, input: Ppcnt, is_read: bool) -> Answer<Ppcnt> {
    check_port(input.local_port())?;
    read_only("PPCNT", is_read)?;
    let group = input.grp();
    let counters = &exec.ctx.state.port.counters;
    let mut set = [0; 248];
    match group {
        counter_group::IEEE_802_3 => ieee_802_3(counters).write_to(&mut set),
        counter_group::RFC_2863 => fill(&mut set, &rfc_2863(counters)),
        counter_group::RFC_2819 => fill(&mut set, &rfc_2819(counters)),
        _ => ensure(ZERO_GROUPS.contains(&group), || {
            Refused::param("grp", group, "no such group of counters")
        })?,
    }
    let output = Ppcnt::zeroed().with_local_port(1).with_grp(group).with_prio_tc(input.prio_tc());
    Ok(output.with_counter_set(set))
}

/// Bytes of the FCS, which octet counters of the wire include.
const FCS_BYTES: u64 = 4;

fn ieee_802_3(counters: &PortCounters) -> Ieee8023Counters {
    let (rx, tx) = (counters.rx(), counters.tx());
    Ieee8023Counters::zeroed()
        .with_a_frames_transmitted_ok(tx.packets)
        .with_a_frames_received_ok(rx.packets)
        .with_a_frame_check_sequence_errors(counters.rx_fcs_errors)
        .with_a_octets_transmitted_ok(tx.octets + tx.packets * FCS_BYTES)
        .with_a_octets_received_ok(rx.octets + rx.packets * FCS_BYTES)
}

/// The interface counters of RFC 2863, in the order of `mlx5_ifc_eth_2863_cntrs_grp_data_layout`.
fn rfc_2863(counters: &PortCounters) -> [u64; 13] {
    let (rx, tx) = (counters.rx(), counters.tx());
    let ([rx_unicast, rx_multicast, rx_broadcast], [tx_unicast, tx_multicast, tx_broadcast]) =
        (counters.rx_by_cast(), counters.tx_by_cast());
    [
        rx.octets + rx.packets * FCS_BYTES,
        rx_unicast.packets,
        0,
        counters.rx_errors.packets,
        0,
        tx.octets + tx.packets * FCS_BYTES,
        tx_unicast.packets,
        0,
        counters.tx_errors.packets,
        rx_multicast.packets,
        rx_broadcast.packets,
        tx_multicast.packets,
        tx_broadcast.packets,
    ]
}

/// The first counters of RFC 2819, in the order of `mlx5_ifc_eth_2819_cntrs_grp_data_layout`:
/// drop events, octets, packets, broadcast, multicast.
fn rfc_2819(counters: &PortCounters) -> [u64; 5] {
    let rx = counters.rx();
    let octets = rx.octets + rx.packets * FCS_BYTES;
    let [_, multicast, broadcast] = counters.rx_by_cast();
    [0, octets, rx.packets, broadcast.packets, multicast.packets]
}

fn fill(set: &mut [u8], values: &[u64]) {
    for (place, value) in set.chunks_exact_mut(8).zip(values) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

fn pmlp(_: &mut Exec<'_, '_>, input: Pmlp, is_read: bool) -> Answer<Pmlp> {
    check_port(input.local_port())?;
    read_only("PMLP", is_read)?;
    // Four lanes, all of module 0.
    Ok(Pmlp::zeroed().with_local_port(1).with_width(4))
}

fn host_endianness(
    exec: &mut Exec<'_, '_>,
    input: HostEndianness,
    is_read: bool,
) -> Answer<HostEndianness> {
    if !is_read {
        let value = input.he();
        ensure(matches!(value, 0 | 0x80), || {
            Refused::param("he", value, "neither little (0) nor big (0x80)")
        })?;
        exec.ctx.state.driver.endianness = value;
    }
    Ok(HostEndianness::zeroed().with_he(exec.ctx.state.driver.endianness))
}

fn dtor(_: &mut Exec<'_, '_>, _: Dtor, is_read: bool) -> Answer<Dtor> {
    read_only("DTOR", is_read)?;
    // What Linux takes where a device states nothing, in milliseconds: reference 2.4.
    let ms = |value| u32::from_be_bytes(TimeOut::zeroed().with_value(value).0);
    Ok(Dtor::zeroed()
        .with_pcie_toggle_to(ms(2000))
        .with_health_poll_to(ms(2000))
        .with_full_crdump_to(ms(60_000))
        .with_fw_reset_to(ms(60_000))
        .with_flush_on_err_to(ms(2000))
        .with_pci_sync_update_to(ms(5000))
        .with_tear_down_to(ms(3000))
        .with_fsm_reactivate_to(ms(5000))
        .with_reclaim_pages_to(ms(5000))
        .with_reclaim_vfs_pages_to(ms(120_000))
        .with_reset_unload_to(ms(300_000)))
}

fn node_desc(exec: &mut Exec<'_, '_>, tail: &[u8], is_read: bool) -> Answer<Vec<u8>> {
    let state = &mut *exec.ctx.state;
    if !is_read {
        let text = &tail[..tail.len().min(NODE_DESC_BYTES)];
        let len = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        state.driver.node_desc = text[..len].to_vec();
    }
    let mut bytes = state.driver.node_desc.clone();
    bytes.resize(NODE_DESC_BYTES, 0);
    Ok(bytes)
}
