//! Flow steering: table, group and entry contexts, and the match fields.
//!
//! Source: reference 5.12; PRM "Flow Table Context", `mlx5_ifc_flow_context_bits`, `fte_match_set_lyr_2_4`.

use crate::layout;

layout! {
    /// Flow table context, 40 bytes (`flow_table_context`).
    pub struct FlowTableContext [0x28] {
        /// `reformat_en`.
        0x00 [31] reformat_en, with_reformat_en;
        /// `decap_en`.
        0x00 [30] decap_en, with_decap_en;
        /// `sw_owner`.
        0x00 [29] sw_owner, with_sw_owner;
        /// `termination_table`.
        0x00 [28] termination_table, with_termination_table;
        /// 0 default (drop in NIC RX / pass), 1 forward to table_miss_id, 2 switch domain.
        0x00 [27:24] table_miss_action, with_table_miss_action;
        /// 0..max.
        0x00 [23:16] level, with_level;
        /// Log2 entries.
        0x00 [7:0] log_size, with_log_size;
        /// `table_miss_id`.
        0x04 [23:0] table_miss_id, with_table_miss_id;
        /// `lag_master_next_table_id`.
        0x08 [23:0] lag_master_next_table_id, with_lag_master_next_table_id;
    }

    /// Layer 2 to 4 match fields, 64 bytes (`fte_match_set_lyr_2_4`).
    pub struct FlowMatchLyr24 [0x40] {
        /// `smac_47_16`.
        0x00 [31:0] smac_47_16, with_smac_47_16;
        /// `smac_15_0`.
        0x04 [31:16] smac_15_0, with_smac_15_0;
        /// `ethertype`.
        0x04 [15:0] ethertype, with_ethertype;
        /// `dmac_47_16`.
        0x08 [31:0] dmac_47_16, with_dmac_47_16;
        /// `dmac_15_0`.
        0x0c [31:16] dmac_15_0, with_dmac_15_0;
        /// `first_prio`.
        0x0c [15:13] first_prio, with_first_prio;
        /// `first_cfi`.
        0x0c [12] first_cfi, with_first_cfi;
        /// `first_vid`.
        0x0c [11:0] first_vid, with_first_vid;
        /// `ip_protocol`.
        0x10 [31:24] ip_protocol, with_ip_protocol;
        /// `ip_dscp`.
        0x10 [23:18] ip_dscp, with_ip_dscp;
        /// `ip_ecn`.
        0x10 [17:16] ip_ecn, with_ip_ecn;
        /// VLAN present (C).
        0x10 [15] cvlan_tag, with_cvlan_tag;
        /// VLAN present (S).
        0x10 [14] svlan_tag, with_svlan_tag;
        /// `frag`.
        0x10 [13] frag, with_frag;
        /// 4 or 6.
        0x10 [12:9] ip_version, with_ip_version;
        /// `tcp_flags`.
        0x10 [8:0] tcp_flags, with_tcp_flags;
        /// `tcp_sport`.
        0x14 [31:16] tcp_sport, with_tcp_sport;
        /// `tcp_dport`.
        0x14 [15:0] tcp_dport, with_tcp_dport;
        /// `ipv4_ihl`.
        0x18 [15:12] ipv4_ihl, with_ipv4_ihl;
        /// `ttl_hoplimit`.
        0x18 [7:0] ttl_hoplimit, with_ttl_hoplimit;
        /// `udp_sport`.
        0x1c [31:16] udp_sport, with_udp_sport;
        /// `udp_dport`.
        0x1c [15:0] udp_dport, with_udp_dport;
        /// IPv4 in the last 4 bytes (0x2c).
        0x20 ([u8; 16]) src_ipv4_src_ipv6, with_src_ipv4_src_ipv6;
        /// IPv4 in the last 4 bytes (0x3c).
        0x30 ([u8; 16]) dst_ipv4_dst_ipv6, with_dst_ipv4_dst_ipv6;
    }

    /// Miscellaneous match fields, 64 bytes (`fte_match_set_misc`).
    pub struct FlowMatchMisc [0x40] {
        /// Send queue that the packet came from.
        0x00 [23:0] source_sqn, with_source_sqn;
        /// Source vport.
        0x04 [15:0] source_port, with_source_port;
        /// Priority of the second VLAN tag.
        0x08 [31:29] outer_second_prio, with_outer_second_prio;
        /// DEI of the second VLAN tag.
        0x08 [28] outer_second_cfi, with_outer_second_cfi;
        /// Id of the second VLAN tag.
        0x08 [27:16] outer_second_vid, with_outer_second_vid;
        /// GRE protocol.
        0x0c [15:0] gre_protocol, with_gre_protocol;
        /// GRE key.
        0x10 [31:0] gre_key, with_gre_key;
        /// VXLAN network identifier.
        0x14 [31:8] vxlan_vni, with_vxlan_vni;
        /// RoCE opcode.
        0x14 [7:0] bth_opcode, with_bth_opcode;
        /// IPv6 flow label.
        0x1c [19:0] outer_ipv6_flow_label, with_outer_ipv6_flow_label;
        /// RoCE destination QP.
        0x28 [23:0] bth_dst_qp, with_bth_dst_qp;
    }

    /// All match fields, 512 bytes (`fte_match_param`).
    pub struct FlowMatchParam [0x200] {
        /// Outer layer 2 to 4.
        0x00 (FlowMatchLyr24) outer_headers, with_outer_headers;
        /// Further fields of the outer packet.
        0x40 (FlowMatchMisc) misc_parameters, with_misc_parameters;
        /// Inner layer 2 to 4 of a tunnelled packet.
        0x80 (FlowMatchLyr24) inner_headers, with_inner_headers;
        /// Blocks misc 2 to misc 6.
        0xc0 ([u8; 320]) misc_2_to_6, with_misc_2_to_6;
    }

    /// Flow context, 768 bytes (`flow_context`); the destination list follows it.
    pub struct FlowContext [0x300] {
        /// `push_vlan`.
        0x00 [31:0] push_vlan, with_push_vlan;
        /// `group_id`.
        0x04 [31:0] group_id, with_group_id;
        /// 24-bit value returned in CQE sop_drop_qpn.
        0x08 [23:0] flow_tag, with_flow_tag;
        /// 0x1 allow, 0x2 drop, 0x4 forward, 0x8 count, 0x10 reformat, 0x20 decap, 0x40 modify
        /// header, 0x80 vlan pop, 0x100 vlan push.
        0x0c [15:0] action, with_action;
        /// 16 B destinations.
        0x10 [31] extended_destination, with_extended_destination;
        /// `flow_source`.
        0x10 [29:28] flow_source, with_flow_source;
        /// `encrypt_decrypt_type`.
        0x10 [27:24] encrypt_decrypt_type, with_encrypt_decrypt_type;
        /// `destination_list_size`.
        0x10 [23:0] destination_list_size, with_destination_list_size;
        /// Counters follow destinations.
        0x14 [23:0] flow_counter_list_size, with_flow_counter_list_size;
        /// `packet_reformat_id`.
        0x18 [31:0] packet_reformat_id, with_packet_reformat_id;
        /// `modify_header_id`.
        0x1c [31:0] modify_header_id, with_modify_header_id;
        /// `push_vlan_2`.
        0x20 [31:0] push_vlan_2, with_push_vlan_2;
        /// `encrypt_decrypt_obj_id`.
        0x24 [31:0] encrypt_decrypt_obj_id, with_encrypt_decrypt_obj_id;
        /// Fte_match_param.
        0x40 (FlowMatchParam) match_value, with_match_value;
        /// `execute_aso`.
        0x240 ([u8; 32]) execute_aso, with_execute_aso;
    }

    /// Entry of the destination list (`dest_format_struct`).
    pub struct FlowDestination [0x8] {
        /// Kind of destination.
        0x00 [31:24] destination_type, with_destination_type;
        /// Its number.
        0x00 [23:0] destination_id, with_destination_id;
    }

    /// Entry of the counter list behind the destinations (`flow_counter_list`).
    pub struct FlowCounterEntry [0x8] {
        /// Flow counter number.
        0x00 [31:0] flow_counter_id, with_flow_counter_id;
    }
}
