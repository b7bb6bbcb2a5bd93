//! Flow steering: table, group and entry contexts, and the match fields.
//!
//! Source: reference 5.12; PRM "Flow Table Context", `mlx5_ifc_flow_context_bits`,
//! `fte_match_set_lyr_2_4`.

use crate::layout;
use crate::layout::{bits, values};

layout! {
    /// Flow table context, 40 bytes (`flow_table_context`).
    pub struct FlowTableContext [0x28] {
        0x00 [31] reformat_en "Entries of this table may reformat packets.";
        0x00 [30] decap_en "Entries of this table may unwrap packets.";
        0x00 [29] sw_owner "The driver writes the table's memory itself.";
        0x00 [28] termination_table "Packets leave the pipeline here.";
        0x00 [27:24] table_miss_action
            "On a miss: 0 default, 1 go on with `table_miss_id`, 2 go on in the next domain.";
        0x00 [23:16] level "Level in the chain; an entry forwards to higher levels only.";
        0x00 [7:0] log_size "Log2 of the number of entries.";
        0x04 [23:0] table_miss_id "Table to go on with on a miss.";
        0x08 [23:0] lag_master_next_table_id
            "Table to go on with on the master of a link aggregation.";
    }

    /// Layer 2 to 4 match fields, 64 bytes (`fte_match_set_lyr_2_4`).
    pub struct FlowMatchLyr24 [0x40] {
        0x00 [31:0] smac_47_16 "First four bytes of the source MAC.";
        0x04 [31:16] smac_15_0 "Last two bytes of the source MAC.";
        0x04 [15:0] ethertype "Ethertype behind any VLAN tags.";
        0x08 [31:0] dmac_47_16 "First four bytes of the destination MAC.";
        0x0c [31:16] dmac_15_0 "Last two bytes of the destination MAC.";
        0x0c [15:13] first_prio "Priority in the first VLAN tag.";
        0x0c [12] first_cfi "Drop eligible bit of the first VLAN tag.";
        0x0c [11:0] first_vid "VLAN id in the first VLAN tag.";
        0x10 [31:24] ip_protocol "Protocol or next header of IP.";
        0x10 [23:18] ip_dscp "Differentiated services code point of IP.";
        0x10 [17:16] ip_ecn "Congestion bits of IP.";
        0x10 [15] cvlan_tag "The first VLAN tag is a customer tag (0x8100).";
        0x10 [14] svlan_tag "The first VLAN tag is a service tag (0x88a8).";
        0x10 [13] frag "The packet is an IP fragment.";
        0x10 [12:9] ip_version "4 or 6, 0 if the packet is not IP.";
        0x10 [8:0] tcp_flags "Flags of TCP.";
        0x14 [31:16] tcp_sport "TCP source port.";
        0x14 [15:0] tcp_dport "TCP destination port.";
        0x18 [15:12] ipv4_ihl "Length of the IPv4 header in 32-bit words.";
        0x18 [7:0] ttl_hoplimit "Time to live or hop limit of IP.";
        0x1c [31:16] udp_sport "UDP source port.";
        0x1c [15:0] udp_dport "UDP destination port.";
        0x20 ([u8; 16]) src_ipv4_src_ipv6 "Source address; IPv4 stands in the last four bytes.";
        0x30 ([u8; 16]) dst_ipv4_dst_ipv6
            "Destination address; IPv4 stands in the last four bytes.";
    }

    /// Miscellaneous match fields, 64 bytes (`fte_match_set_misc`).
    pub struct FlowMatchMisc [0x40] {
        0x00 [23:0] source_sqn "Send queue that the packet came from.";
        0x04 [15:0] source_port "Vport that the packet came from.";
        0x08 [31:29] outer_second_prio "Priority of the second VLAN tag.";
        0x08 [28] outer_second_cfi "DEI of the second VLAN tag.";
        0x08 [27:16] outer_second_vid "Id of the second VLAN tag.";
        0x0c [15:0] gre_protocol "Protocol type in the GRE header.";
        0x10 [31:0] gre_key "Key in the GRE header.";
        0x14 [31:8] vxlan_vni "Network identifier in the VXLAN header.";
        0x14 [7:0] bth_opcode "Opcode in the RoCE base header.";
        0x1c [19:0] outer_ipv6_flow_label "Flow label of the outer IPv6 header.";
        0x28 [23:0] bth_dst_qp "Destination QP in the RoCE base header.";
    }

    /// All match fields, 512 bytes (`fte_match_param`).
    pub struct FlowMatchParam [0x200] {
        0x00 (FlowMatchLyr24) outer_headers "Layers 2 to 4 of the packet itself.";
        0x40 (FlowMatchMisc) misc_parameters "Further fields of the outer packet.";
        0x80 (FlowMatchLyr24) inner_headers "Inner layer 2 to 4 of a tunnelled packet.";
        0xc0 ([u8; 320]) misc_2_to_6 "The blocks misc 2 to misc 6, undecoded.";
    }

    /// Flow context, 768 bytes (`flow_context`); the destination list follows it.
    pub struct FlowContext [0x300] {
        0x00 [31:0] push_vlan "VLAN tag to insert: ethertype, priority, DEI, id.";
        0x04 [31:0] group_id "Group that the entry belongs to.";
        0x08 [23:0] flow_tag "Value that a matching packet's CQE carries in `sop_drop_qpn`.";
        0x0c [15:0] action
            "Bits of [`action`], and 0x10 reformat, 0x20 decap, 0x40 modify header, 0x80 pop VLAN, \
             0x100 push VLAN.";
        0x10 [31] extended_destination "Entries of the destination list have 16 bytes, not 8.";
        0x10 [29:28] flow_source
            "Where packets come from: 0 anywhere, 1 the uplink, 2 local vports.";
        0x10 [27:24] encrypt_decrypt_type "Kind of the cryptographic object: 0 IPsec, 1 MACsec.";
        0x10 [23:0] destination_list_size "Number of destinations.";
        0x14 [23:0] flow_counter_list_size "Number of counters; they follow the destinations.";
        0x18 [31:0] packet_reformat_id "Reformat object to use.";
        0x1c [31:0] modify_header_id "Header modification object to use.";
        0x20 [31:0] push_vlan_2 "Second VLAN tag to insert.";
        0x24 [31:0] encrypt_decrypt_obj_id "Cryptographic object to use.";
        0x40 (FlowMatchParam) match_value "Values of the fields that the group's criteria select.";
        0x240 ([u8; 32]) execute_aso "Asynchronous objects to execute, four of 8 bytes, undecoded.";
    }

    /// Entry of the destination list (`dest_format_struct`).
    pub struct FlowDestination [0x8] {
        0x00 [31:24] destination_type
            "0 vport, 1 flow table, 2 TIR, 6 sampler, 8 uplink, 9 table type.";
        0x00 [23:0] destination_id "Number of the object of that type.";
    }

    /// Entry of the counter list behind the destinations (`flow_counter_list`).
    pub struct FlowCounterEntry [0x8] {
        0x00 [31:0] flow_counter_id "Number of the flow counter, or of the first of a bulk.";
    }
}

/// `table_type` of the flow table commands: packets that the NIC receives. Source: reference 5.12.
pub const TABLE_TYPE_NIC_RX: u32 = 0;

values! {
    /// [`FlowDestination::destination_type`]. Source: reference 5.12.
    pub mod destination_type: u32 {
        1 FLOW_TABLE "Another flow table.";
        2 TIR "A TIR.";
    }
}

bits! {
    /// Bits of [`FlowContext::action`]. Source: reference 5.12.
    pub mod action: u32 {
        0 ALLOW: allow;
        1 DROP: drop;
        2 FORWARD: forward;
        3 COUNT: count;
    }
}

bits! {
    /// Bits of CREATE_FLOW_GROUP's `match_criteria_enable`. Source: reference 4.3.
    pub mod match_criteria: u32 {
        0 OUTER_HEADERS: outer_headers;
        1 MISC: misc_parameters;
        2 INNER_HEADERS: inner_headers;
    }
}
