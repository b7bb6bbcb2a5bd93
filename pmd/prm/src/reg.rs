//! Registers behind ACCESS_REG.
//!
//! Source: reference 4.7; PRM "Port Registers", `mlx5_ifc_<name>_reg_bits`.

use crate::layout;
use crate::layout::{rows, values};

values! {
    /// Number of a register.
    pub struct RegisterId(u16) {
        0x5003 PMTU "Port MTU, [`Pmtu`].";
        0x5004 PTYS "Port type and speed, [`Ptys`].";
        0x5006 PAOS "Port administrative and operational status, [`Paos`].";
        0x5007 PFCC "Port flow control, [`Pfcc`].";
        0x5008 PPCNT "Port counters, [`Ppcnt`].";
        0x5002 PMLP "Port module lane mapping, [`Pmlp`].";
        0x6001 NODE_DESC "Node description, 64 ASCII bytes.";
        0x7004 HOST_ENDIANNESS "Endianness of the host, [`HostEndianness`].";
        0xc00e DTOR "Default time-outs, [`Dtor`].";
    }
}

rows! { $
    local_port {
        0x00 [23:16] local_port "Port, 1-based.";
    }
}

layout! {
    /// Port MTU, 16 bytes.
    pub struct Pmtu [0x10] {
        ..local_port;
        0x04 [31:16] max_mtu
            "Largest MTU of the port in bytes, Ethernet header, VLAN tag and FCS included.";
        0x08 [31:16] admin_mtu "MTU that the driver asked for.";
        0x0c [31:16] oper_mtu "MTU in force: the smaller of the two.";
    }

    /// Port type and speed, 64 bytes.
    pub struct Ptys [0x40] {
        ..local_port;
        0x00 [30] an_disable_admin "The driver has switched autonegotiation off.";
        0x00 [29] an_disable_cap "Autonegotiation can be switched off.";
        0x00 [7:4] plane_ind "Plane of a multi-plane port (Linux 6.12).";
        0x00 [2:0] proto_mask "Protocols asked about: 1 InfiniBand, 4 Ethernet.";
        0x08 [31:0] ext_eth_proto_capability "Extended Ethernet speeds that the port can do.";
        0x0c [31:0] eth_proto_capability "Ethernet speeds that the port can do, see [`speed`].";
        0x10 [31:0] ib_capability "InfiniBand widths and speeds that the port can do.";
        0x14 [31:0] ext_eth_proto_admin "Extended Ethernet speeds that the driver allows.";
        0x18 [31:0] eth_proto_admin "Ethernet speeds that the driver allows.";
        0x1c [31:0] ib_admin "InfiniBand widths and speeds that the driver allows.";
        0x20 [31:0] ext_eth_proto_oper "Extended Ethernet speed in force.";
        0x24 [31:0] eth_proto_oper "Ethernet speed in force, 0 while the link is down.";
        0x28 [31:0] ib_oper "InfiniBand width and speed in force.";
        0x2c [3:0] connector_type "Kind of connector, 0 if not known.";
        0x30 [31:0] eth_proto_lp_advertise "Ethernet speeds that the link partner offers.";
    }

    /// Port administrative and operational status, 16 bytes.
    pub struct Paos [0x10] {
        ..local_port;
        0x00 [11:8] admin_status "Status asked for, see [`PortStatus`].";
        0x00 [3:0] oper_status "Status in force, see [`PortStatus`].";
        0x04 [31] ase "`admin_status` is to be taken.";
        0x04 [30] ee "`e` is to be taken over.";
        0x04 [1:0] e "When a change raises an event: 0 never, 1 always, 2 once.";
    }

    /// Port flow control, 32 bytes.
    pub struct Pfcc [0x20] {
        ..local_port;
        0x08 [31] pptx "Pause frames are sent.";
        0x08 [23:16] pfctx "Priorities that send pause frames.";
        0x0c [31] pprx "Pause frames are obeyed.";
        0x0c [23:16] pfcrx "Priorities that obey pause frames.";
    }

    /// Port module lane mapping, 64 bytes.
    pub struct Pmlp [0x40] {
        ..local_port;
        0x00 [7:0] width "Number of lanes that the port uses.";
        0x04 [31:0] lane0_module_mapping "Mapping of lane 0: module in 7:0.";
        0x08 [31:0] lane1_module_mapping "Mapping of lane 1, coded in the same way.";
        0x0c [31:0] lane2_module_mapping "Mapping of lane 2, coded in the same way.";
        0x10 [31:0] lane3_module_mapping "Mapping of lane 3, coded in the same way.";
    }

    /// Port counters, 256 bytes.
    pub struct Ppcnt [0x100] {
        ..local_port;
        0x00 [5:0] grp "Group of counters, see [`counter_group`].";
        0x04 [4:0] prio_tc "Priority or traffic class.";
        0x08 ([u8; 248]) counter_set "The counters of the group.";
    }

    /// IEEE 802.3 counters, the start of [`counter_group::IEEE_802_3`].
    pub struct Ieee8023Counters [0x30] {
        0x00 (u64) a_frames_transmitted_ok "Frames sent without error.";
        0x08 (u64) a_frames_received_ok "Frames received without error.";
        0x10 (u64) a_frame_check_sequence_errors
            "Frames received with a wrong frame check sequence.";
        0x18 (u64) a_alignment_errors "Frames that were not a whole number of bytes.";
        0x20 (u64) a_octets_transmitted_ok "Bytes of payload sent without error.";
        0x28 (u64) a_octets_received_ok "Bytes of payload received without error.";
    }

    /// Endianness of the host, 16 bytes.
    pub struct HostEndianness [0x10] {
        0x00 [31:24] he "0 little-endian, 0x80 big-endian.";
    }

    /// Default time-outs, 64 bytes; each word is a [`crate::init_seg::TimeOut`].
    pub struct Dtor [0x40] {
        0x04 [31:0] pcie_toggle_to "Time for the PCIe link to go down and up.";
        0x14 [31:0] health_poll_to "Interval of the health poll.";
        0x18 [31:0] full_crdump_to "Time for a full crash dump.";
        0x1c [31:0] fw_reset_to "Time for a firmware reset.";
        0x20 [31:0] flush_on_err_to "Time to flush the queues after an error.";
        0x24 [31:0] pci_sync_update_to "Time for a synchronised firmware update.";
        0x28 [31:0] tear_down_to "Time for a fast teardown.";
        0x2c [31:0] fsm_reactivate_to "Time to activate new firmware.";
        0x30 [31:0] reclaim_pages_to "Time to get pages back.";
        0x34 [31:0] reclaim_vfs_pages_to "Time to get pages of virtual functions back.";
        0x38 [31:0] reset_unload_to "Time to unload before a reset (Linux 6.12).";
    }
}

values! {
    /// [`Paos::admin_status`] and [`Paos::oper_status`]. Source: reference 4.7.
    pub struct PortStatus(u32) {
        1 UP "Up.";
        2 DOWN "Down.";
    }
}

values! {
    /// [`Ppcnt::grp`]. Source: reference 4.7.
    pub mod counter_group: u32 {
        0x0 IEEE_802_3 "IEEE 802.3, [`super::Ieee8023Counters`].";
        0x1 RFC_2863 "RFC 2863.";
        0x2 RFC_2819 "RFC 2819.";
        0x3 RFC_3635 "RFC 3635.";
        0x5 ETH_EXTENDED "Ethernet extended.";
        0x10 PER_PRIORITY "Per priority.";
        0x12 PHYSICAL_LAYER "Physical layer.";
        0x20 INFINIBAND "InfiniBand port, RoCE ports too.";
    }
}

/// Bits of [`Ptys::eth_proto_capability`]. Source: reference 4.7, `eth_proto_*`.
pub mod speed {
    /// 25GBASE-CR.
    pub const ETH_25G_CR: u32 = 1 << 27;
    /// 100GBASE-CR4.
    pub const ETH_100G_CR4: u32 = 1 << 20;
}
