//! Flow steering.
//!
//! Source: reference 4.2; PRM, the chapter of each command; `mlx5_ifc_<command>_in_bits`.

use crate::flow::{FlowContext, FlowMatchParam, FlowTableContext};
use crate::layout::bits;
use crate::{command, layout};

layout! {
    /// CREATE_FLOW_TABLE input, 0x40 bytes; op_mod 0 normal, 1 LAG demux.
    pub struct CreateFlowTableIn [0x40] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// The command is about another vport, named by `vport_number`.
        0x08 [31] other_vport;
        /// Number of the other vport.
        0x08 [15:0] vport_number;
        /// 0 NIC receive, 1 NIC transmit, 4 FDB, 5 and 6 sniffer, 7 and 8 RDMA.
        0x10 [31:24] table_type;
        /// The table's context.
        0x18 (FlowTableContext) flow_table_context;
    }

    /// CREATE_FLOW_TABLE output, 0x10 bytes.
    pub struct CreateFlowTableOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Number of the flow table.
        0x08 [23:0] table_id;
    }

    /// DESTROY_FLOW_TABLE input, 0x40 bytes.
    pub struct DestroyFlowTableIn [0x40] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// The command is about another vport, named by `vport_number`.
        0x08 [31] other_vport;
        /// Number of the other vport.
        0x08 [15:0] vport_number;
        /// 0 NIC receive, 1 NIC transmit, 4 FDB, 5 and 6 sniffer, 7 and 8 RDMA.
        0x10 [31:24] table_type;
        /// Number of the flow table.
        0x14 [23:0] table_id;
    }

    /// DESTROY_FLOW_TABLE output, 0x10 bytes.
    pub struct DestroyFlowTableOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// MODIFY_FLOW_TABLE input, 0x40 bytes.
    pub struct ModifyFlowTableIn [0x40] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// The command is about another vport, named by `vport_number`.
        0x08 [31] other_vport;
        /// Number of the other vport.
        0x08 [15:0] vport_number;
        /// What to change: bit 0 the miss table.
        0x0c [15:0] modify_field_select;
        /// 0 NIC receive, 1 NIC transmit, 4 FDB, 5 and 6 sniffer, 7 and 8 RDMA.
        0x10 [31:24] table_type;
        /// Number of the flow table.
        0x14 [23:0] table_id;
        /// The table's context.
        0x18 (FlowTableContext) flow_table_context;
    }

    /// MODIFY_FLOW_TABLE output, 0x10 bytes.
    pub struct ModifyFlowTableOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// QUERY_FLOW_TABLE input, 0x40 bytes.
    pub struct QueryFlowTableIn [0x40] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// 0 NIC receive, 1 NIC transmit, 4 FDB, 5 and 6 sniffer, 7 and 8 RDMA.
        0x10 [31:24] table_type;
        /// Number of the flow table.
        0x14 [23:0] table_id;
    }

    /// QUERY_FLOW_TABLE output, 0x40 bytes.
    pub struct QueryFlowTableOut [0x40] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// The table's context.
        0x18 (FlowTableContext) flow_table_context;
    }

    /// CREATE_FLOW_GROUP input, 0x400 bytes.
    pub struct CreateFlowGroupIn [0x400] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// The command is about another vport, named by `vport_number`.
        0x08 [31] other_vport;
        /// Number of the other vport.
        0x08 [15:0] vport_number;
        /// 0 NIC receive, 1 NIC transmit, 4 FDB, 5 and 6 sniffer, 7 and 8 RDMA.
        0x10 [31:24] table_type;
        /// Kind of group: 0 matches by criteria, 1 splits by a hash.
        0x10 [19:16] group_type;
        /// Number of the flow table.
        0x14 [23:0] table_id;
        /// The criteria name the owner of the source e-switch.
        0x18 [31] source_eswitch_owner_vhca_id_valid;
        /// First entry of the group.
        0x1c [31:0] start_flow_index;
        /// Last entry of the group, inclusive.
        0x24 [31:0] end_flow_index;
        /// Match definer that a hash split uses.
        0x28 [15:0] match_definer_id;
        /// Blocks that are matched: bit 0 outer, 1 misc, 2 inner, 3 to 6 misc 2 to 5.
        0x3c [7:0] match_criteria_enable;
        /// Mask: the bits of a packet that entries of this group compare.
        0x40 (FlowMatchParam) match_criteria;
    }

    /// CREATE_FLOW_GROUP output, 0x10 bytes.
    pub struct CreateFlowGroupOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Number of the flow group.
        0x08 [23:0] group_id;
    }

    /// DESTROY_FLOW_GROUP input, 0x40 bytes.
    pub struct DestroyFlowGroupIn [0x40] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// The command is about another vport, named by `vport_number`.
        0x08 [31] other_vport;
        /// Number of the other vport.
        0x08 [15:0] vport_number;
        /// 0 NIC receive, 1 NIC transmit, 4 FDB, 5 and 6 sniffer, 7 and 8 RDMA.
        0x10 [31:24] table_type;
        /// Number of the flow table.
        0x14 [23:0] table_id;
        /// Number of the flow group.
        0x18 [31:0] group_id;
    }

    /// DESTROY_FLOW_GROUP output, 0x10 bytes.
    pub struct DestroyFlowGroupOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// SET_FTE input, 0x340 bytes; op_mod 0 set, 1 modify. The destination list follows.
    pub struct SetFteIn [0x340] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// The command is about another vport, named by `vport_number`.
        0x08 [31] other_vport;
        /// Number of the other vport.
        0x08 [15:0] vport_number;
        /// 0 NIC receive, 1 NIC transmit, 4 FDB, 5 and 6 sniffer, 7 and 8 RDMA.
        0x10 [31:24] table_type;
        /// Number of the flow table.
        0x14 [23:0] table_id;
        /// The destination table may have any level.
        0x18 [31] ignore_flow_level;
        /// What to change: bit 0 action, 1 tag, 2 destinations, 3 counters.
        0x18 [7:0] modify_enable_mask;
        /// Index of the entry in its table.
        0x20 [31:0] flow_index;
        /// The entry's context.
        0x40 (FlowContext) flow_context;
    }

    /// SET_FTE output, 0x10 bytes.
    pub struct SetFteOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// DELETE_FTE input, 0x40 bytes.
    pub struct DeleteFteIn [0x40] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// The command is about another vport, named by `vport_number`.
        0x08 [31] other_vport;
        /// Number of the other vport.
        0x08 [15:0] vport_number;
        /// 0 NIC receive, 1 NIC transmit, 4 FDB, 5 and 6 sniffer, 7 and 8 RDMA.
        0x10 [31:24] table_type;
        /// Number of the flow table.
        0x14 [23:0] table_id;
        /// Index of the entry in its table.
        0x20 [31:0] flow_index;
    }

    /// DELETE_FTE output, 0x10 bytes.
    pub struct DeleteFteOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// QUERY_FTE input, 0x40 bytes.
    pub struct QueryFteIn [0x40] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// 0 NIC receive, 1 NIC transmit, 4 FDB, 5 and 6 sniffer, 7 and 8 RDMA.
        0x10 [31:24] table_type;
        /// Number of the flow table.
        0x14 [23:0] table_id;
        /// Index of the entry in its table.
        0x20 [31:0] flow_index;
    }

    /// QUERY_FTE output, 0x340 bytes.
    pub struct QueryFteOut [0x340] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// The entry's context.
        0x40 (FlowContext) flow_context;
    }

    /// SET_FLOW_TABLE_ROOT input, 0x40 bytes; op_mod 0 set, 1 disconnect.
    pub struct SetFlowTableRootIn [0x40] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// The command is about another vport, named by `vport_number`.
        0x08 [31] other_vport;
        /// Number of the other vport.
        0x08 [15:0] vport_number;
        /// 0 NIC receive, 1 NIC transmit, 4 FDB, 5 and 6 sniffer, 7 and 8 RDMA.
        0x10 [31:24] table_type;
        /// The table belongs to another vport.
        0x10 [16] table_of_other_vport;
        /// Vport that the table belongs to.
        0x10 [15:0] table_vport_number;
        /// Number of the flow table.
        0x14 [23:0] table_id;
        /// QP whose packets start at this table (IPoIB).
        0x18 [23:0] underlay_qpn;
        /// `table_eswitch_owner_vhca_id` means something.
        0x1c [31] table_eswitch_owner_vhca_id_valid;
        /// Function that owns the table's e-switch.
        0x1c [15:0] table_eswitch_owner_vhca_id;
    }

    /// SET_FLOW_TABLE_ROOT output, 0x10 bytes.
    pub struct SetFlowTableRootOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// ALLOC_FLOW_COUNTER input, 0x10 bytes.
    pub struct AllocFlowCounterIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Log2 of the number of counters to allocate at a time.
        0x0c [12:8] flow_counter_bulk_log_size;
        /// Size of the bulk as one of the bits of the capability.
        0x0c [7:0] flow_counter_bulk;
    }

    /// ALLOC_FLOW_COUNTER output, 0x10 bytes.
    pub struct AllocFlowCounterOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Number of the flow counter, or of the first of a bulk.
        0x08 [31:0] flow_counter_id;
    }

    /// DEALLOC_FLOW_COUNTER input, 0x10 bytes.
    pub struct DeallocFlowCounterIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the flow counter, or of the first of a bulk.
        0x08 [31:0] flow_counter_id;
    }

    /// DEALLOC_FLOW_COUNTER output, 0x10 bytes.
    pub struct DeallocFlowCounterOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// QUERY_FLOW_COUNTER input, 0x20 bytes.
    pub struct QueryFlowCounterIn [0x20] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Set the counters to zero after reading.
        0x18 [31] clear;
        /// Number of counters to read from the first one on.
        0x18 [15:0] num_of_counters;
        /// Number of the flow counter, or of the first of a bulk.
        0x1c [31:0] flow_counter_id;
    }

    /// QUERY_FLOW_COUNTER output, 0x10 bytes. Packets and bytes of each counter follow, 64 bits
    /// each.
    pub struct QueryFlowCounterOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }
}

command! {
    CreateFlowTable CREATE_FLOW_TABLE: CreateFlowTableIn => CreateFlowTableOut,
    DestroyFlowTable DESTROY_FLOW_TABLE: DestroyFlowTableIn => DestroyFlowTableOut,
    ModifyFlowTable MODIFY_FLOW_TABLE: ModifyFlowTableIn => ModifyFlowTableOut,
    QueryFlowTable QUERY_FLOW_TABLE: QueryFlowTableIn => QueryFlowTableOut,
    CreateFlowGroup CREATE_FLOW_GROUP: CreateFlowGroupIn => CreateFlowGroupOut,
    DestroyFlowGroup DESTROY_FLOW_GROUP: DestroyFlowGroupIn => DestroyFlowGroupOut,
    SetFte SET_FTE: SetFteIn => SetFteOut,
    DeleteFte DELETE_FTE: DeleteFteIn => DeleteFteOut,
    QueryFte QUERY_FTE: QueryFteIn => QueryFteOut,
    SetFlowTableRoot SET_FLOW_TABLE_ROOT: SetFlowTableRootIn => SetFlowTableRootOut,
    AllocFlowCounter ALLOC_FLOW_COUNTER: AllocFlowCounterIn => AllocFlowCounterOut,
    DeallocFlowCounter DEALLOC_FLOW_COUNTER: DeallocFlowCounterIn => DeallocFlowCounterOut,
    QueryFlowCounter QUERY_FLOW_COUNTER: QueryFlowCounterIn => QueryFlowCounterOut,
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
