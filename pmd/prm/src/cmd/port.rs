//! Ports, vports and counters.
//!
//! Source: reference 4.2; PRM, the chapter of each command; `mlx5_ifc_<command>_in_bits`.

use crate::vport::NicVportContext;
use crate::vport::RoceAddress;
use crate::{command, layout};

layout! {
    /// ACCESS_REG input, 0x10 bytes; op_mod 0 write, 1 read. Register_data follow.
    pub struct AccessRegIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// Register id.
        0x08 [15:0] register_id, with_register_id;
        /// Argument.
        0x0c [31:0] argument, with_argument;
    }

    /// ACCESS_REG output, 0x10 bytes. Register_data follow.
    pub struct AccessRegOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
    }

    /// QUERY_NIC_VPORT_CONTEXT input, 0x10 bytes.
    pub struct QueryNicVportContextIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// The command is about another vport, named by `vport_number`.
        0x08 [31] other_vport, with_other_vport;
        /// Number of the other vport.
        0x08 [15:0] vport_number, with_vport_number;
        /// Allowed list type.
        0x0c [26:24] allowed_list_type, with_allowed_list_type;
    }

    /// QUERY_NIC_VPORT_CONTEXT output, 0x110 bytes.
    pub struct QueryNicVportContextOut [0x110] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
        /// Nic vport context.
        0x10 (NicVportContext) nic_vport_context, with_nic_vport_context;
    }

    /// MODIFY_NIC_VPORT_CONTEXT input, 0x200 bytes.
    pub struct ModifyNicVportContextIn [0x200] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// The command is about another vport, named by `vport_number`.
        0x08 [31] other_vport, with_other_vport;
        /// Number of the other vport.
        0x08 [15:0] vport_number, with_vport_number;
        /// Field select.
        0x0c [31:0] field_select, with_field_select;
        /// Nic vport context.
        0x100 (NicVportContext) nic_vport_context, with_nic_vport_context;
    }

    /// MODIFY_NIC_VPORT_CONTEXT output, 0x10 bytes.
    pub struct ModifyNicVportContextOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
    }

    /// QUERY_HCA_VPORT_PKEY input, 0x10 bytes.
    pub struct QueryHcaVportPkeyIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// The command is about another vport, named by `vport_number`.
        0x08 [31] other_vport, with_other_vport;
        /// Port, 1-based.
        0x08 [19:16] port_num, with_port_num;
        /// Number of the other vport.
        0x08 [15:0] vport_number, with_vport_number;
        /// Pkey index.
        0x0c [15:0] pkey_index, with_pkey_index;
    }

    /// QUERY_HCA_VPORT_PKEY output, 0x10 bytes. Pkey follow.
    pub struct QueryHcaVportPkeyOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
    }

    /// QUERY_VPORT_STATE input, 0x10 bytes; op_mod 0 vnic, 1 esw, 2 uplink.
    pub struct QueryVportStateIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// The command is about another vport, named by `vport_number`.
        0x08 [31] other_vport, with_other_vport;
        /// Number of the other vport.
        0x08 [15:0] vport_number, with_vport_number;
    }

    /// QUERY_VPORT_STATE output, 0x10 bytes.
    pub struct QueryVportStateOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
        /// Admin state.
        0x0c [7:4] admin_state, with_admin_state;
        /// State.
        0x0c [3:0] state, with_state;
    }

    /// MODIFY_VPORT_STATE input, 0x10 bytes; op_mod same.
    pub struct ModifyVportStateIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// The command is about another vport, named by `vport_number`.
        0x08 [31] other_vport, with_other_vport;
        /// Number of the other vport.
        0x08 [15:0] vport_number, with_vport_number;
        /// Admin state.
        0x0c [7:4] admin_state, with_admin_state;
    }

    /// MODIFY_VPORT_STATE output, 0x10 bytes.
    pub struct ModifyVportStateOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
    }

    /// QUERY_VPORT_COUNTER input, 0x20 bytes.
    pub struct QueryVportCounterIn [0x20] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// The command is about another vport, named by `vport_number`.
        0x08 [31] other_vport, with_other_vport;
        /// Port, 1-based.
        0x08 [19:16] port_num, with_port_num;
        /// Number of the other vport.
        0x08 [15:0] vport_number, with_vport_number;
        /// Set the counters to zero after reading.
        0x18 [31] clear, with_clear;
    }

    /// QUERY_VPORT_COUNTER output, 0x210 bytes.
    pub struct QueryVportCounterOut [0x210] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
        /// Received errors: packets.
        0x10 (u64) rx_errors_packets, with_rx_errors_packets;
        /// Received errors: bytes.
        0x18 (u64) rx_errors_octets, with_rx_errors_octets;
        /// Sent errors: packets.
        0x20 (u64) tx_errors_packets, with_tx_errors_packets;
        /// Sent errors: bytes.
        0x28 (u64) tx_errors_octets, with_tx_errors_octets;
        /// Received infiniband unicast: packets.
        0x30 (u64) rx_ib_unicast_packets, with_rx_ib_unicast_packets;
        /// Received infiniband unicast: bytes.
        0x38 (u64) rx_ib_unicast_octets, with_rx_ib_unicast_octets;
        /// Sent infiniband unicast: packets.
        0x40 (u64) tx_ib_unicast_packets, with_tx_ib_unicast_packets;
        /// Sent infiniband unicast: bytes.
        0x48 (u64) tx_ib_unicast_octets, with_tx_ib_unicast_octets;
        /// Received infiniband multicast: packets.
        0x50 (u64) rx_ib_multicast_packets, with_rx_ib_multicast_packets;
        /// Received infiniband multicast: bytes.
        0x58 (u64) rx_ib_multicast_octets, with_rx_ib_multicast_octets;
        /// Sent infiniband multicast: packets.
        0x60 (u64) tx_ib_multicast_packets, with_tx_ib_multicast_packets;
        /// Sent infiniband multicast: bytes.
        0x68 (u64) tx_ib_multicast_octets, with_tx_ib_multicast_octets;
        /// Received ethernet broadcast: packets.
        0x70 (u64) rx_eth_broadcast_packets, with_rx_eth_broadcast_packets;
        /// Received ethernet broadcast: bytes.
        0x78 (u64) rx_eth_broadcast_octets, with_rx_eth_broadcast_octets;
        /// Sent ethernet broadcast: packets.
        0x80 (u64) tx_eth_broadcast_packets, with_tx_eth_broadcast_packets;
        /// Sent ethernet broadcast: bytes.
        0x88 (u64) tx_eth_broadcast_octets, with_tx_eth_broadcast_octets;
        /// Received ethernet unicast: packets.
        0x90 (u64) rx_eth_unicast_packets, with_rx_eth_unicast_packets;
        /// Received ethernet unicast: bytes.
        0x98 (u64) rx_eth_unicast_octets, with_rx_eth_unicast_octets;
        /// Sent ethernet unicast: packets.
        0xa0 (u64) tx_eth_unicast_packets, with_tx_eth_unicast_packets;
        /// Sent ethernet unicast: bytes.
        0xa8 (u64) tx_eth_unicast_octets, with_tx_eth_unicast_octets;
        /// Received ethernet multicast: packets.
        0xb0 (u64) rx_eth_multicast_packets, with_rx_eth_multicast_packets;
        /// Received ethernet multicast: bytes.
        0xb8 (u64) rx_eth_multicast_octets, with_rx_eth_multicast_octets;
        /// Sent ethernet multicast: packets.
        0xc0 (u64) tx_eth_multicast_packets, with_tx_eth_multicast_packets;
        /// Sent ethernet multicast: bytes.
        0xc8 (u64) tx_eth_multicast_octets, with_tx_eth_multicast_octets;
    }

    /// QUERY_VNIC_ENV input, 0x10 bytes.
    pub struct QueryVnicEnvIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// The command is about another vport, named by `vport_number`.
        0x08 [31] other_vport, with_other_vport;
        /// Number of the other vport.
        0x08 [15:0] vport_number, with_vport_number;
    }

    /// QUERY_VNIC_ENV output, 0x210 bytes.
    pub struct QueryVnicEnvOut [0x210] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
        /// Vport env.
        0x10 ([u8; 512]) vport_env, with_vport_env;
    }

    /// SET_ROCE_ADDRESS input, 0x30 bytes.
    pub struct SetRoceAddressIn [0x30] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// Roce address index.
        0x08 [31:16] roce_address_index, with_roce_address_index;
        /// Vhca port num.
        0x08 [3:0] vhca_port_num, with_vhca_port_num;
        /// Roce address.
        0x10 (RoceAddress) roce_address, with_roce_address;
    }

    /// SET_ROCE_ADDRESS output, 0x10 bytes.
    pub struct SetRoceAddressOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
    }

    /// QUERY_ROCE_ADDRESS input, 0x10 bytes.
    pub struct QueryRoceAddressIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// Roce address index.
        0x08 [31:16] roce_address_index, with_roce_address_index;
        /// Vhca port num.
        0x08 [3:0] vhca_port_num, with_vhca_port_num;
    }

    /// QUERY_ROCE_ADDRESS output, 0x30 bytes.
    pub struct QueryRoceAddressOut [0x30] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
        /// Roce address.
        0x10 (RoceAddress) roce_address, with_roce_address;
    }

    /// SET_L2_TABLE_ENTRY input, 0x40 bytes.
    pub struct SetL2TableEntryIn [0x40] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// Table index.
        0x14 [23:0] table_index, with_table_index;
        /// Vlan valid.
        0x1c [12] vlan_valid, with_vlan_valid;
        /// Vlan.
        0x1c [11:0] vlan, with_vlan;
        /// Mac address.
        0x20 (u64) mac_address, with_mac_address;
    }

    /// SET_L2_TABLE_ENTRY output, 0x10 bytes.
    pub struct SetL2TableEntryOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
    }

    /// QUERY_L2_TABLE_ENTRY input, 0x40 bytes.
    pub struct QueryL2TableEntryIn [0x40] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// Table index.
        0x14 [23:0] table_index, with_table_index;
    }

    /// QUERY_L2_TABLE_ENTRY output, 0x40 bytes.
    pub struct QueryL2TableEntryOut [0x40] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
        /// Vlan valid.
        0x1c [12] vlan_valid, with_vlan_valid;
        /// Vlan.
        0x1c [11:0] vlan, with_vlan;
        /// Mac address.
        0x20 (u64) mac_address, with_mac_address;
    }

    /// DELETE_L2_TABLE_ENTRY input, 0x40 bytes.
    pub struct DeleteL2TableEntryIn [0x40] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// Table index.
        0x14 [23:0] table_index, with_table_index;
    }

    /// DELETE_L2_TABLE_ENTRY output, 0x10 bytes.
    pub struct DeleteL2TableEntryOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
    }

    /// ALLOC_Q_COUNTER input, 0x10 bytes.
    pub struct AllocQCounterIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
    }

    /// ALLOC_Q_COUNTER output, 0x10 bytes.
    pub struct AllocQCounterOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
        /// Counter set id.
        0x08 [7:0] counter_set_id, with_counter_set_id;
    }

    /// DEALLOC_Q_COUNTER input, 0x10 bytes.
    pub struct DeallocQCounterIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// Counter set id.
        0x08 [7:0] counter_set_id, with_counter_set_id;
    }

    /// DEALLOC_Q_COUNTER output, 0x10 bytes.
    pub struct DeallocQCounterOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
    }

    /// QUERY_Q_COUNTER input, 0x20 bytes.
    pub struct QueryQCounterIn [0x20] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// Set the counters to zero after reading.
        0x18 [31] clear, with_clear;
        /// Counter set id.
        0x1c [7:0] counter_set_id, with_counter_set_id;
    }

    /// QUERY_Q_COUNTER output, 0x100 bytes.
    pub struct QueryQCounterOut [0x100] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
        /// Counter `rx_write_requests`.
        0x10 [31:0] rx_write_requests, with_rx_write_requests;
        /// Counter `rx_read_requests`.
        0x18 [31:0] rx_read_requests, with_rx_read_requests;
        /// Counter `rx_atomic_requests`.
        0x20 [31:0] rx_atomic_requests, with_rx_atomic_requests;
        /// Counter `rx_dct_connect`.
        0x28 [31:0] rx_dct_connect, with_rx_dct_connect;
        /// Counter `out_of_buffer`.
        0x30 [31:0] out_of_buffer, with_out_of_buffer;
        /// Counter `out_of_sequence`.
        0x38 [31:0] out_of_sequence, with_out_of_sequence;
        /// Counter `duplicate_request`.
        0x40 [31:0] duplicate_request, with_duplicate_request;
        /// Counter `rnr_nak_retry_err`.
        0x48 [31:0] rnr_nak_retry_err, with_rnr_nak_retry_err;
        /// Counter `packet_seq_err`.
        0x50 [31:0] packet_seq_err, with_packet_seq_err;
        /// Counter `implied_nak_seq_err`.
        0x58 [31:0] implied_nak_seq_err, with_implied_nak_seq_err;
        /// Counter `local_ack_timeout_err`.
        0x60 [31:0] local_ack_timeout_err, with_local_ack_timeout_err;
        /// Counter `req_rnr_retries_exceeded`.
        0x70 [31:0] req_rnr_retries_exceeded, with_req_rnr_retries_exceeded;
        /// Counter `resp_local_length_error`.
        0x78 [31:0] resp_local_length_error, with_resp_local_length_error;
        /// Counter `req_local_length_error`.
        0x7c [31:0] req_local_length_error, with_req_local_length_error;
        /// Counter `resp_local_qp_error`.
        0x80 [31:0] resp_local_qp_error, with_resp_local_qp_error;
        /// Counter `local_operation_error`.
        0x84 [31:0] local_operation_error, with_local_operation_error;
        /// Counter `resp_local_protection`.
        0x88 [31:0] resp_local_protection, with_resp_local_protection;
        /// Counter `req_local_protection`.
        0x8c [31:0] req_local_protection, with_req_local_protection;
        /// Counter `resp_cqe_error`.
        0x90 [31:0] resp_cqe_error, with_resp_cqe_error;
        /// Counter `req_cqe_error`.
        0x94 [31:0] req_cqe_error, with_req_cqe_error;
        /// Counter `req_mw_binding`.
        0x98 [31:0] req_mw_binding, with_req_mw_binding;
        /// Counter `req_bad_response`.
        0x9c [31:0] req_bad_response, with_req_bad_response;
        /// Counter `req_remote_invalid_request`.
        0xa0 [31:0] req_remote_invalid_request, with_req_remote_invalid_request;
        /// Counter `resp_remote_invalid_request`.
        0xa4 [31:0] resp_remote_invalid_request, with_resp_remote_invalid_request;
        /// Counter `req_remote_access_errors`.
        0xa8 [31:0] req_remote_access_errors, with_req_remote_access_errors;
        /// Counter `resp_remote_access_errors`.
        0xac [31:0] resp_remote_access_errors, with_resp_remote_access_errors;
        /// Counter `req_remote_operation_errors`.
        0xb0 [31:0] req_remote_operation_errors, with_req_remote_operation_errors;
        /// Counter `req_transport_retries_exceeded`.
        0xb4 [31:0] req_transport_retries_exceeded, with_req_transport_retries_exceeded;
        /// Counter `cq_overflow`.
        0xb8 [31:0] cq_overflow, with_cq_overflow;
        /// Counter `resp_cqe_flush_error`.
        0xbc [31:0] resp_cqe_flush_error, with_resp_cqe_flush_error;
        /// Counter `req_cqe_flush_error`.
        0xc0 [31:0] req_cqe_flush_error, with_req_cqe_flush_error;
        /// Counter `roce_adp_retrans`.
        0xc8 [31:0] roce_adp_retrans, with_roce_adp_retrans;
        /// Counter `roce_adp_retrans_to`.
        0xcc [31:0] roce_adp_retrans_to, with_roce_adp_retrans_to;
        /// Counter `roce_slow_restart`.
        0xd0 [31:0] roce_slow_restart, with_roce_slow_restart;
        /// Counter `roce_slow_restart_cnps`.
        0xd4 [31:0] roce_slow_restart_cnps, with_roce_slow_restart_cnps;
        /// Counter `roce_slow_restart_trans`.
        0xd8 [31:0] roce_slow_restart_trans, with_roce_slow_restart_trans;
    }
}

command! {
    AccessReg ACCESS_REG: AccessRegIn => AccessRegOut,
    QueryNicVportContext QUERY_NIC_VPORT_CONTEXT: QueryNicVportContextIn => QueryNicVportContextOut,
    ModifyNicVportContext MODIFY_NIC_VPORT_CONTEXT: ModifyNicVportContextIn => ModifyNicVportContextOut,
    QueryHcaVportPkey QUERY_HCA_VPORT_PKEY: QueryHcaVportPkeyIn => QueryHcaVportPkeyOut,
    QueryVportState QUERY_VPORT_STATE: QueryVportStateIn => QueryVportStateOut,
    ModifyVportState MODIFY_VPORT_STATE: ModifyVportStateIn => ModifyVportStateOut,
    QueryVportCounter QUERY_VPORT_COUNTER: QueryVportCounterIn => QueryVportCounterOut,
    QueryVnicEnv QUERY_VNIC_ENV: QueryVnicEnvIn => QueryVnicEnvOut,
    SetRoceAddress SET_ROCE_ADDRESS: SetRoceAddressIn => SetRoceAddressOut,
    QueryRoceAddress QUERY_ROCE_ADDRESS: QueryRoceAddressIn => QueryRoceAddressOut,
    SetL2TableEntry SET_L2_TABLE_ENTRY: SetL2TableEntryIn => SetL2TableEntryOut,
    QueryL2TableEntry QUERY_L2_TABLE_ENTRY: QueryL2TableEntryIn => QueryL2TableEntryOut,
    DeleteL2TableEntry DELETE_L2_TABLE_ENTRY: DeleteL2TableEntryIn => DeleteL2TableEntryOut,
    AllocQCounter ALLOC_Q_COUNTER: AllocQCounterIn => AllocQCounterOut,
    DeallocQCounter DEALLOC_Q_COUNTER: DeallocQCounterIn => DeallocQCounterOut,
    QueryQCounter QUERY_Q_COUNTER: QueryQCounterIn => QueryQCounterOut,
}
