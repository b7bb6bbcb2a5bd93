//! Ports, vports and counters.
//!
//! Source: reference 4.2; PRM, the chapter of each command; `mlx5_ifc_<command>_in_bits`.

use crate::vport::{NicVportContext, RoceAddress};
use crate::{command, layout};

layout! {
    /// ACCESS_REG input, 0x10 bytes; op_mod 0 write, 1 read. The register follows.
    pub struct AccessRegIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// A [`crate::reg::RegisterId`].
        0x08 [15:0] register_id;
        /// Argument that some registers take.
        0x0c [31:0] argument;
    }

    /// ACCESS_REG output, 0x10 bytes. The register follows.
    pub struct AccessRegOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// QUERY_NIC_VPORT_CONTEXT input, 0x10 bytes.
    pub struct QueryNicVportContextIn [0x10] {
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
        /// List to return: 0 unicast MACs, 1 multicast MACs, 2 VLANs.
        0x0c [26:24] allowed_list_type;
    }

    /// QUERY_NIC_VPORT_CONTEXT output, 0x110 bytes.
    pub struct QueryNicVportContextOut [0x110] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// The vport's context.
        0x10 (NicVportContext) nic_vport_context;
    }

    /// MODIFY_NIC_VPORT_CONTEXT input, 0x200 bytes.
    pub struct ModifyNicVportContextIn [0x200] {
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
        /// What to change, see [`crate::vport::field_select`].
        0x0c [31:0] field_select;
        /// The vport's context.
        0x100 (NicVportContext) nic_vport_context;
    }

    /// MODIFY_NIC_VPORT_CONTEXT output, 0x10 bytes.
    pub struct ModifyNicVportContextOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// QUERY_HCA_VPORT_PKEY input, 0x10 bytes.
    pub struct QueryHcaVportPkeyIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// The command is about another vport, named by `vport_number`.
        0x08 [31] other_vport;
        /// Port, 1-based.
        0x08 [19:16] port_num;
        /// Number of the other vport.
        0x08 [15:0] vport_number;
        /// Entry of the P_Key table, 0xffff for all.
        0x0c [15:0] pkey_index;
    }

    /// QUERY_HCA_VPORT_PKEY output, 0x10 bytes. The P_Keys follow, 4 bytes each.
    pub struct QueryHcaVportPkeyOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// QUERY_VPORT_STATE input, 0x10 bytes; op_mod 0 vnic, 1 esw, 2 uplink.
    pub struct QueryVportStateIn [0x10] {
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
    }

    /// QUERY_VPORT_STATE output, 0x10 bytes.
    pub struct QueryVportStateOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// State asked for: 0 down, 1 up, 2 follow the port.
        0x0c [7:4] admin_state;
        /// State of the link: 0 down, 1 up.
        0x0c [3:0] state;
    }

    /// MODIFY_VPORT_STATE input, 0x10 bytes; op_mod 0 vnic, 1 esw, 2 uplink.
    pub struct ModifyVportStateIn [0x10] {
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
        /// State asked for: 0 down, 1 up, 2 follow the port.
        0x0c [7:4] admin_state;
    }

    /// MODIFY_VPORT_STATE output, 0x10 bytes.
    pub struct ModifyVportStateOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// QUERY_VPORT_COUNTER input, 0x20 bytes.
    pub struct QueryVportCounterIn [0x20] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// The command is about another vport, named by `vport_number`.
        0x08 [31] other_vport;
        /// Port, 1-based.
        0x08 [19:16] port_num;
        /// Number of the other vport.
        0x08 [15:0] vport_number;
        /// Set the counters to zero after reading.
        0x18 [31] clear;
    }

    /// QUERY_VPORT_COUNTER output, 0x210 bytes.
    pub struct QueryVportCounterOut [0x210] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Packets received with errors.
        0x10 (u64) rx_errors_packets;
        /// Bytes received with errors.
        0x18 (u64) rx_errors_octets;
        /// Packets that could not be sent.
        0x20 (u64) tx_errors_packets;
        /// Bytes that could not be sent.
        0x28 (u64) tx_errors_octets;
        /// Received infiniband unicast: packets.
        0x30 (u64) rx_ib_unicast_packets;
        /// Received infiniband unicast: bytes.
        0x38 (u64) rx_ib_unicast_octets;
        /// Sent infiniband unicast: packets.
        0x40 (u64) tx_ib_unicast_packets;
        /// Sent infiniband unicast: bytes.
        0x48 (u64) tx_ib_unicast_octets;
        /// Received infiniband multicast: packets.
        0x50 (u64) rx_ib_multicast_packets;
        /// Received infiniband multicast: bytes.
        0x58 (u64) rx_ib_multicast_octets;
        /// Sent infiniband multicast: packets.
        0x60 (u64) tx_ib_multicast_packets;
        /// Sent infiniband multicast: bytes.
        0x68 (u64) tx_ib_multicast_octets;
        /// Received ethernet broadcast: packets.
        0x70 (u64) rx_eth_broadcast_packets;
        /// Received ethernet broadcast: bytes.
        0x78 (u64) rx_eth_broadcast_octets;
        /// Sent ethernet broadcast: packets.
        0x80 (u64) tx_eth_broadcast_packets;
        /// Sent ethernet broadcast: bytes.
        0x88 (u64) tx_eth_broadcast_octets;
        /// Received ethernet unicast: packets.
        0x90 (u64) rx_eth_unicast_packets;
        /// Received ethernet unicast: bytes.
        0x98 (u64) rx_eth_unicast_octets;
        /// Sent ethernet unicast: packets.
        0xa0 (u64) tx_eth_unicast_packets;
        /// Sent ethernet unicast: bytes.
        0xa8 (u64) tx_eth_unicast_octets;
        /// Received ethernet multicast: packets.
        0xb0 (u64) rx_eth_multicast_packets;
        /// Received ethernet multicast: bytes.
        0xb8 (u64) rx_eth_multicast_octets;
        /// Sent ethernet multicast: packets.
        0xc0 (u64) tx_eth_multicast_packets;
        /// Sent ethernet multicast: bytes.
        0xc8 (u64) tx_eth_multicast_octets;
    }

    /// QUERY_VNIC_ENV input, 0x10 bytes.
    pub struct QueryVnicEnvIn [0x10] {
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
    }

    /// QUERY_VNIC_ENV output, 0x210 bytes.
    pub struct QueryVnicEnvOut [0x210] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Diagnostic counters of the vport.
        0x10 ([u8; 512]) vport_env;
    }

    /// SET_ROCE_ADDRESS input, 0x30 bytes.
    pub struct SetRoceAddressIn [0x30] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Entry of the RoCE address table.
        0x08 [31:16] roce_address_index;
        /// Port of a combined function, 0 on a function with one port.
        0x08 [3:0] vhca_port_num;
        /// The entry itself.
        0x10 (RoceAddress) roce_address;
    }

    /// SET_ROCE_ADDRESS output, 0x10 bytes.
    pub struct SetRoceAddressOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// QUERY_ROCE_ADDRESS input, 0x10 bytes.
    pub struct QueryRoceAddressIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Entry of the RoCE address table.
        0x08 [31:16] roce_address_index;
        /// Port of a combined function, 0 on a function with one port.
        0x08 [3:0] vhca_port_num;
    }

    /// QUERY_ROCE_ADDRESS output, 0x30 bytes.
    pub struct QueryRoceAddressOut [0x30] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// The entry itself.
        0x10 (RoceAddress) roce_address;
    }

    /// SET_L2_TABLE_ENTRY input, 0x40 bytes.
    pub struct SetL2TableEntryIn [0x40] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Entry of the layer-2 table.
        0x14 [23:0] table_index;
        /// `vlan` means something.
        0x1c [12] vlan_valid;
        /// VLAN id that frames must carry.
        0x1c [11:0] vlan;
        /// MAC address in the low 48 bits.
        0x20 (u64) mac_address;
    }

    /// SET_L2_TABLE_ENTRY output, 0x10 bytes.
    pub struct SetL2TableEntryOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// QUERY_L2_TABLE_ENTRY input, 0x40 bytes.
    pub struct QueryL2TableEntryIn [0x40] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Entry of the layer-2 table.
        0x14 [23:0] table_index;
    }

    /// QUERY_L2_TABLE_ENTRY output, 0x40 bytes.
    pub struct QueryL2TableEntryOut [0x40] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// `vlan` means something.
        0x1c [12] vlan_valid;
        /// VLAN id that frames must carry.
        0x1c [11:0] vlan;
        /// MAC address in the low 48 bits.
        0x20 (u64) mac_address;
    }

    /// DELETE_L2_TABLE_ENTRY input, 0x40 bytes.
    pub struct DeleteL2TableEntryIn [0x40] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Entry of the layer-2 table.
        0x14 [23:0] table_index;
    }

    /// DELETE_L2_TABLE_ENTRY output, 0x10 bytes.
    pub struct DeleteL2TableEntryOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// ALLOC_Q_COUNTER input, 0x10 bytes.
    pub struct AllocQCounterIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
    }

    /// ALLOC_Q_COUNTER output, 0x10 bytes.
    pub struct AllocQCounterOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Number of the counter set; 0 is a valid one.
        0x08 [7:0] counter_set_id;
    }

    /// DEALLOC_Q_COUNTER input, 0x10 bytes.
    pub struct DeallocQCounterIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the counter set.
        0x08 [7:0] counter_set_id;
    }

    /// DEALLOC_Q_COUNTER output, 0x10 bytes.
    pub struct DeallocQCounterOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// QUERY_Q_COUNTER input, 0x20 bytes.
    pub struct QueryQCounterIn [0x20] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Set the counters to zero after reading.
        0x18 [31] clear;
        /// Number of the counter set.
        0x1c [7:0] counter_set_id;
    }

    /// QUERY_Q_COUNTER output, 0x100 bytes.
    pub struct QueryQCounterOut [0x100] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// RDMA writes received.
        0x10 [31:0] rx_write_requests;
        /// RDMA reads received.
        0x18 [31:0] rx_read_requests;
        /// Atomics received.
        0x20 [31:0] rx_atomic_requests;
        /// DC connections requested by others.
        0x28 [31:0] rx_dct_connect;
        /// Packets dropped because no receive WQE was posted.
        0x30 [31:0] out_of_buffer;
        /// Packets received out of sequence.
        0x38 [31:0] out_of_sequence;
        /// Requests received again.
        0x40 [31:0] duplicate_request;
        /// "Receiver not ready" answers received.
        0x48 [31:0] rnr_nak_retry_err;
        /// Sequence error NAKs received.
        0x50 [31:0] packet_seq_err;
        /// Answers that skipped an earlier request.
        0x58 [31:0] implied_nak_seq_err;
        /// Acknowledgements that did not come in time.
        0x60 [31:0] local_ack_timeout_err;
        /// Requests given up after "receiver not ready" (Linux 6.12).
        0x70 [31:0] req_rnr_retries_exceeded;
        /// Messages received that were too long for their WQE.
        0x78 [31:0] resp_local_length_error;
        /// Answers received that were too long for their WQE.
        0x7c [31:0] req_local_length_error;
        /// Local QP errors as responder.
        0x80 [31:0] resp_local_qp_error;
        /// Local operation errors.
        0x84 [31:0] local_operation_error;
        /// Local protection errors as responder.
        0x88 [31:0] resp_local_protection;
        /// Local protection errors as requester.
        0x8c [31:0] req_local_protection;
        /// Receives that ended with an error.
        0x90 [31:0] resp_cqe_error;
        /// Sends that ended with an error.
        0x94 [31:0] req_cqe_error;
        /// Memory window binds that failed.
        0x98 [31:0] req_mw_binding;
        /// Answers that did not fit their request.
        0x9c [31:0] req_bad_response;
        /// Own requests refused as invalid.
        0xa0 [31:0] req_remote_invalid_request;
        /// Requests of others refused as invalid.
        0xa4 [31:0] resp_remote_invalid_request;
        /// Own requests refused for lack of access rights.
        0xa8 [31:0] req_remote_access_errors;
        /// Requests of others refused for lack of access rights.
        0xac [31:0] resp_remote_access_errors;
        /// Own requests that failed at the other end.
        0xb0 [31:0] req_remote_operation_errors;
        /// Requests given up because no acknowledgement came.
        0xb4 [31:0] req_transport_retries_exceeded;
        /// Completion queues that overran.
        0xb8 [31:0] cq_overflow;
        /// Receives flushed because their queue was in error.
        0xbc [31:0] resp_cqe_flush_error;
        /// Sends flushed because their queue was in error.
        0xc0 [31:0] req_cqe_flush_error;
        /// Adaptive retransmissions.
        0xc8 [31:0] roce_adp_retrans;
        /// Adaptive retransmissions after a time-out.
        0xcc [31:0] roce_adp_retrans_to;
        /// Slow restarts.
        0xd0 [31:0] roce_slow_restart;
        /// Congestion notifications sent during slow restart.
        0xd4 [31:0] roce_slow_restart_cnps;
        /// Changes into slow restart.
        0xd8 [31:0] roce_slow_restart_trans;
    }
}

command! {
    AccessReg ACCESS_REG: AccessRegIn => AccessRegOut,
    QueryNicVportContext QUERY_NIC_VPORT_CONTEXT: QueryNicVportContextIn => QueryNicVportContextOut,
    ModifyNicVportContext MODIFY_NIC_VPORT_CONTEXT:
        ModifyNicVportContextIn => ModifyNicVportContextOut,
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

/// `op_mod` of ACCESS_REG. Source: reference 4.7.
pub mod access_reg {
    /// Write the register.
    pub const WRITE: u32 = 0;
    /// Read the register.
    pub const READ: u32 = 1;
}
