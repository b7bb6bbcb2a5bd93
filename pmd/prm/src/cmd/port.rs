//! Ports, vports and counters.
//!
//! Source: reference 4.2; PRM, the chapter of each command; `mlx5_ifc_<command>_in_bits`.

use crate::layout::{rows, values};
use crate::vport::{NicVportContext, RoceAddress};

rows! { $
    vport {
        /// The command is about another vport, named by `vport_number`.
        0x08 [31] other_vport;
        /// Number of the other vport.
        0x08 [15:0] vport_number;
    }
    roce_index {
        /// Entry of the RoCE address table.
        0x08 [31:16] roce_address_index;
        /// Port of a combined function, 0 on a function with one port.
        0x08 [3:0] vhca_port_num;
    }
    table_index {
        /// Entry of the layer-2 table.
        0x14 [23:0] table_index;
    }
    l2_entry {
        /// `vlan` means something.
        0x1c [12] vlan_valid;
        /// VLAN id that frames must carry.
        0x1c [11:0] vlan;
        /// MAC address in the low 48 bits.
        0x20 (u64) mac_address;
    }
}

command! {
    /// `op_mod` 0 write, 1 read. The register follows input and output.
    AccessReg ACCESS_REG {
        /// A [`crate::reg::RegisterId`].
        0x08 [15:0] register_id;
        /// Argument that some registers take.
        0x0c [31:0] argument;
    }
    QueryNicVportContext QUERY_NIC_VPORT_CONTEXT {
        ..vport;
        /// List to return: 0 unicast MACs, 1 multicast MACs, 2 VLANs.
        0x0c [26:24] allowed_list_type;
    } => [0x110] {
        /// The vport's context.
        0x10 (NicVportContext) nic_vport_context;
    }
    ModifyNicVportContext MODIFY_NIC_VPORT_CONTEXT [0x200] {
        ..vport;
        /// Selects the fields to change, see [`crate::vport::field_select`].
        0x0c [31:0] field_select;
        /// The vport's context.
        0x100 (NicVportContext) nic_vport_context;
    }
    /// The P_Keys follow the output, 4 bytes each.
    QueryHcaVportPkey QUERY_HCA_VPORT_PKEY {
        ..vport;
        /// Port, 1-based.
        0x08 [19:16] port_num;
        /// Entry of the P_Key table, 0xffff for all.
        0x0c [15:0] pkey_index;
    }
    /// `op_mod` 0 vnic, 1 esw, 2 uplink.
    QueryVportState QUERY_VPORT_STATE { ..vport; } => {
        /// State asked for: 0 down, 1 up, 2 follow the port.
        0x0c [7:4] admin_state;
        /// State of the link: 0 down, 1 up.
        0x0c [3:0] state;
    }
    /// `op_mod` 0 vnic, 1 esw, 2 uplink.
    ModifyVportState MODIFY_VPORT_STATE {
        ..vport;
        /// State asked for: 0 down, 1 up, 2 follow the port.
        0x0c [7:4] admin_state;
    }
    QueryVportCounter QUERY_VPORT_COUNTER [0x20] {
        ..vport;
        /// Port, 1-based.
        0x08 [19:16] port_num;
        /// Set the counters to zero after reading.
        0x18 [31] clear;
    } => [0x210] {
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
    QueryVnicEnv QUERY_VNIC_ENV { ..vport; } => [0x210] {
        /// Diagnostic counters of the vport.
        0x10 ([u8; 512]) vport_env;
    }
    SetRoceAddress SET_ROCE_ADDRESS [0x30] {
        ..roce_index;
        /// The entry itself.
        0x10 (RoceAddress) roce_address;
    }
    QueryRoceAddress QUERY_ROCE_ADDRESS { ..roce_index; } => [0x30] {
        /// The entry itself.
        0x10 (RoceAddress) roce_address;
    }
    SetL2TableEntry SET_L2_TABLE_ENTRY [0x40] {
        ..table_index;
        ..l2_entry;
    }
    QueryL2TableEntry QUERY_L2_TABLE_ENTRY [0x40] { ..table_index; } => [0x40] { ..l2_entry; }
    DeleteL2TableEntry DELETE_L2_TABLE_ENTRY [0x40] { ..table_index; }
    AllocQCounter ALLOC_Q_COUNTER {} => {
        /// Number of the counter set; 0 is a valid one.
        0x08 [7:0] counter_set_id;
    }
    DeallocQCounter DEALLOC_Q_COUNTER {
        /// Number of the counter set.
        0x08 [7:0] counter_set_id;
    }
    QueryQCounter QUERY_Q_COUNTER [0x20] {
        /// Set the counters to zero after reading.
        0x18 [31] clear;
        /// Number of the counter set.
        0x1c [7:0] counter_set_id;
    } => [0x100] {
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

values! {
    /// `op_mod` of ACCESS_REG. Source: reference 4.7.
    pub mod access_reg: u32 {
        0 WRITE "Write the register.";
        1 READ "Read the register.";
    }
}
