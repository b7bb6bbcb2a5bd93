//! Commands about RoCE addresses, P_Keys and multicast groups.
//!
//! Source: reference 4.2 "Ports, vports, RoCE", 4.6.

use ferrocx_prm::Layout;
use ferrocx_prm::cmd::Opcode;
use ferrocx_prm::cmd::port::{
    QueryHcaVportPkey, QueryHcaVportPkeyOut, QueryRoceAddress, QueryRoceAddressOut, SetRoceAddress,
    SetRoceAddressOut,
};
use ferrocx_prm::cmd::srq::{AttachToMcg, AttachToMcgOut, DetachFromMcg, DetachFromMcgOut};
use ferrocx_prm::syndrome::CommandStatus;
use ferrocx_prm::vport::RoceAddress;

use crate::cmd::handler::{Exec, Handler, check_vport, no_tail, parse, plain};
use crate::device::caps::{MAX_QP_MCG, ROCE_ADDRESSES};
use crate::device::refused::{Answer, Refused, ensure};
use crate::objects::{Full, QpType, RoceGid};
use crate::roce::transport::Network;
use crate::roce::transport::bth::DEFAULT_PKEY;

pub(super) fn handler(opcode: Opcode) -> Option<Handler> {
    Some(match opcode {
        Opcode::SET_ROCE_ADDRESS => set_address,
        Opcode::QUERY_ROCE_ADDRESS => query_address,
        Opcode::QUERY_HCA_VPORT_PKEY => query_pkey,
        Opcode::ATTACH_TO_MCG => attach,
        Opcode::DETACH_FROM_MCG => detach,
        _ => return None,
    })
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
    check_vport(input.fixed.other_vport(), input.fixed.vport_number())?;
    let index = input.fixed.pkey_index();
    ensure(index == 0 || index == 0xffff, || {
        Refused::param("pkey_index", index, "the table has one entry")
    })?;
    let mut output = QueryHcaVportPkeyOut::zeroed().as_bytes().to_vec();
    output.extend(u32::from(DEFAULT_PKEY).to_be_bytes());
    output.resize(exec.output_len.max(output.len()), 0);
    Ok(output)
}

/// Members of all multicast groups together: each such packet looks for those of its group.
const MAX_MEMBERSHIPS: usize = 1 << 12;

fn attach(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<AttachToMcg>(exec, input, |exec, input| {
        let (qpn, gid) = (input.qpn(), input.multicast_gid());
        let objects = &mut exec.ctx.state.objects;
        let qp = objects.qps.get(qpn).ok_or_else(|| Refused::resource("qpn", qpn))?;
        ensure(qp.qp_type == QpType::Ud, || {
            Refused::new(CommandStatus::BAD_PARAM, "qpn", qpn, "not a datagram queue pair")
        })?;
        let members = objects.multicast.iter().filter(|(group, _)| *group == gid).count();
        ensure(members < MAX_QP_MCG as usize, || Refused::full("max_qp_mcg", Full::Numbers))?;
        if !objects.multicast.contains(&(gid, qpn)) {
            ensure(objects.multicast.len() < MAX_MEMBERSHIPS, || {
                let why = "the groups of this port have 4096 members already";
                Refused::new(CommandStatus::EXCEED_LIM, "multicast_gid", qpn, why)
            })?;
            objects
                .multicast
                .push((gid, qpn))
                .map_err(|out| Refused::full("multicast_gid", out.into()))?;
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
