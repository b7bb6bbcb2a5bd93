//! Vport contexts.
//!
//! Source: reference 4.5 and 4.6; PRM "NIC vPort Context", `mlx5_ifc_nic_vport_context_bits`,
//! `mlx5_ifc_roce_addr_layout_bits`.

use crate::layout;
use crate::layout::{bits, values};

layout! {
    /// NIC vport context, 256 bytes; the address list follows it.
    pub struct NicVportContext [0x100] {
        0x00 [31] multi_prio_sq "Several priorities on one send queue (DPDK).";
        0x00 [26:24] min_wqe_inline_mode
            "Headers that a send WQE must carry inline: 0 none, 1 L2, 2 IP, 3 TCP/UDP.";
        0x00 [2] disable_mc_local_lb "Multicast is not looped back.";
        0x00 [1] disable_uc_local_lb "Unicast is not looped back.";
        0x00 [0] roce_en "RoCE is switched on.";
        0x04 [31] arm_change_event "The next change raises a NIC vport change event.";
        0x04 [4:0] event_on
            "Changes that raise the event: MTU 16, promiscuous 8, VLAN 4, multicast 2, unicast 1.";
        0x08 [31] vhca_id_type "How the affiliated function is named.";
        0x08 [19:16] affiliation_criteria "Affiliation criteria of multi-port RoCE.";
        0x08 [15:0] affiliated_vhca_id "Function that this vport is affiliated with.";
        0x20 [30:28] sd_group
            "Socket-direct group that the vport belongs to, 0 for none (Linux 6.12).";
        0x24 [15:0] mtu "Largest frame in bytes, Ethernet header included.";
        0x28 (u64) system_image_guid "GUID that all functions of a board share.";
        0x30 (u64) port_guid "GUID of the port.";
        0x38 (u64) node_guid "GUID of this function.";
        0x68 [31:16] qkey_violation_counter "Packets with a wrong Q_Key.";
        0xf0 [31] promisc_uc "Every unicast frame is received.";
        0xf0 [30] promisc_mc "Every multicast frame is received.";
        0xf0 [29] promisc_all "Every frame of the port is received.";
        0xf0 [26:24] allowed_list_type
            "Kind of entries in the list: 0 unicast MACs, 1 multicast MACs, 2 VLANs.";
        0xf0 [11:0] allowed_list_size "Number of entries in the list.";
        0xf4 ([u8; 8]) permanent_address
            "Two zero bytes and the six bytes of the permanent MAC address.";
    }

    /// RoCE address table entry, 32 bytes. All zero means no entry.
    pub struct RoceAddress [0x20] {
        0x00 ([u8; 16]) source_l3_address "GID; an IPv4 address stands in IPv4-mapped form.";
        0x10 [28] vlan_valid "Frames carry a VLAN tag with `vlan_id`.";
        0x10 [27:16] vlan_id "VLAN id that frames carry.";
        0x10 [15:0] source_mac_47_32 "First two bytes of the source MAC.";
        0x14 [31:0] source_mac_31_0 "Last four bytes of the source MAC.";
        0x18 [11:8] roce_l3_type "Kind of the address: 0 IPv4, 1 IPv6.";
        0x18 [7:0] roce_version "RoCE version: 0 v1, 1 v1.5, 2 v2.";
    }
}

bits! {
    /// Bits of MODIFY_NIC_VPORT_CONTEXT's `field_select`. `PROMISC` stands for all `promisc_*`,
    /// `CHANGE_EVENT` for `arm_change_event` and `event_on`, `AFFILIATION` for the affiliation
    /// fields, `ADDRESSES_LIST` for the list behind the context. Source: reference 4.5.
    pub mod field_select: u32 {
        1 ROCE_EN: roce_en;
        2 ADDRESSES_LIST: addresses_list;
        3 PERMANENT_ADDRESS: permanent_address;
        4 PROMISC: promisc;
        5 CHANGE_EVENT: change_event;
        6 MTU: mtu;
        7 MIN_INLINE: min_inline;
        8 PORT_GUID: port_guid;
        9 NODE_GUID: node_guid;
        10 DISABLE_MC_LOCAL_LB: disable_mc_local_lb;
        11 DISABLE_UC_LOCAL_LB: disable_uc_local_lb;
        13 AFFILIATION: affiliation;
    }
}

values! {
    /// [`NicVportContext::allowed_list_type`]. Source: reference 4.5.
    pub mod list_type: u32 {
        0 UNICAST "Unicast MAC addresses.";
        1 MULTICAST "Multicast MAC addresses.";
        2 VLAN "VLAN ids.";
    }
}

values! {
    /// [`RoceAddress::roce_l3_type`]. Source: reference 4.6.
    pub mod roce_l3_type: u32 {
        0 IPV4 "The address is an IPv4 one.";
        1 IPV6 "The address is an IPv6 one.";
    }
}

values! {
    /// [`RoceAddress::roce_version`]. Source: reference 4.6.
    pub mod roce_version: u32 {
        0 V1 "RoCE v1: Ethertype 0x8915, no IP header.";
        2 V2 "RoCE v2: over UDP.";
    }
}
