//! Flow steering.
//!
//! Source: reference 4.2; PRM, the chapter of each command; `mlx5_ifc_<command>_in_bits`.

use crate::flow::{FlowContext, FlowMatchParam, FlowTableContext};
use crate::layout::{bits, rows};

rows! { $
    vport {
        0x08 [31] other_vport "The command is about another vport, named by `vport_number`.";
        0x08 [15:0] vport_number "Number of the other vport.";
    }
    table_type {
        0x10 [31:24] table_type
            "0 NIC receive, 1 NIC transmit, 4 FDB, 5 and 6 sniffer, 7 and 8 RDMA.";
    }
    table_context {
        0x18 (FlowTableContext) flow_table_context "The table's context.";
    }
    table_id {
        0x14 [23:0] table_id "Number of the flow table.";
    }
    flow_index {
        0x20 [31:0] flow_index "Index of the entry in its table.";
    }
    counter_id {
        0x08 [31:0] flow_counter_id "Number of the flow counter, or of the first of a bulk.";
    }
}

command! {
    /// `op_mod` 0 normal, 1 LAG demux.
    CreateFlowTable CREATE_FLOW_TABLE [0x40] {
        ..vport;
        ..table_type;
        ..table_context;
    } => {
        0x08 [23:0] table_id "Number of the flow table.";
    }
    DestroyFlowTable DESTROY_FLOW_TABLE [0x40] {
        ..vport;
        ..table_type;
        ..table_id;
    }
    ModifyFlowTable MODIFY_FLOW_TABLE [0x40] {
        ..vport;
        ..table_type;
        ..table_id;
        ..table_context;
        0x0c [15:0] modify_field_select "Selects the fields to change: bit 0 the miss table.";
    }
    QueryFlowTable QUERY_FLOW_TABLE [0x40] {
        ..table_type;
        ..table_id;
    } => [0x40] { ..table_context; }
    CreateFlowGroup CREATE_FLOW_GROUP [0x400] {
        ..vport;
        ..table_type;
        ..table_id;
        0x10 [19:16] group_type "Kind of group: 0 matches by criteria, 1 splits by a hash.";
        0x18 [31] source_eswitch_owner_vhca_id_valid
            "The criteria name the owner of the source e-switch.";
        0x1c [31:0] start_flow_index "First entry of the group.";
        0x24 [31:0] end_flow_index "Last entry of the group, inclusive.";
        0x28 [15:0] match_definer_id "Match definer that a hash split uses.";
        0x3c [7:0] match_criteria_enable
            "Blocks that are matched: bit 0 outer, 1 misc, 2 inner, 3 to 6 misc 2 to 5.";
        0x40 (FlowMatchParam) match_criteria
            "Mask: the bits of a packet that entries of this group compare.";
    } => {
        0x08 [23:0] group_id "Number of the flow group.";
    }
    DestroyFlowGroup DESTROY_FLOW_GROUP [0x40] {
        ..vport;
        ..table_type;
        ..table_id;
        0x18 [31:0] group_id "Number of the flow group.";
    }
    /// `op_mod` 0 set, 1 modify. The destination list follows the input.
    SetFte SET_FTE [0x340] {
        ..vport;
        ..table_type;
        ..table_id;
        ..flow_index;
        0x18 [31] ignore_flow_level "The destination table may have any level.";
        0x18 [7:0] modify_enable_mask "Selects the fields to change, see [`modify_fte`].";
        0x40 (FlowContext) flow_context "The entry's context.";
    }
    DeleteFte DELETE_FTE [0x40] {
        ..vport;
        ..table_type;
        ..table_id;
        ..flow_index;
    }
    QueryFte QUERY_FTE [0x40] {
        ..table_type;
        ..table_id;
        ..flow_index;
    } => [0x340] {
        0x40 (FlowContext) flow_context "The entry's context.";
    }
    /// `op_mod` 0 set, 1 disconnect.
    SetFlowTableRoot SET_FLOW_TABLE_ROOT [0x40] {
        ..vport;
        ..table_type;
        ..table_id;
        0x10 [16] table_of_other_vport "The table belongs to another vport.";
        0x10 [15:0] table_vport_number "Vport that the table belongs to.";
        0x18 [23:0] underlay_qpn "QP whose packets start at this table (IPoIB).";
        0x1c [31] table_eswitch_owner_vhca_id_valid
            "`table_eswitch_owner_vhca_id` means something.";
        0x1c [15:0] table_eswitch_owner_vhca_id "Function that owns the table's e-switch.";
    }
    AllocFlowCounter ALLOC_FLOW_COUNTER {
        0x0c [12:8] flow_counter_bulk_log_size
            "Log2 of the number of counters to allocate at a time.";
        0x0c [7:0] flow_counter_bulk "Size of the bulk as one of the bits of the capability.";
    } => { ..counter_id; }
    DeallocFlowCounter DEALLOC_FLOW_COUNTER { ..counter_id; }
    /// Packets and bytes of each counter follow the output, 64 bits each.
    QueryFlowCounter QUERY_FLOW_COUNTER [0x20] {
        0x18 [31] clear "Set the counters to zero after reading.";
        0x18 [15:0] num_of_counters "Number of counters to read from the first one on.";
        0x1c [31:0] flow_counter_id "Number of the flow counter, or of the first of a bulk.";
    }
}

bits! {
    /// Bits of SET_FTE's `modify_enable_mask` with `op_mod` 1. Source: reference 4.3.
    pub mod modify_fte: u32 {
        0 ACTION: action;
        1 FLOW_TAG: flow_tag;
        2 DESTINATIONS: destination_list_size;
        3 COUNTERS: flow_counter_list_size;
    }
}
