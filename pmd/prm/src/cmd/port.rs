//! Ports, vports and counters.
//!
//! Source: reference 4.2; PRM, the chapter of each command; `mlx5_ifc_<command>_in_bits`.

use crate::layout::{rows, values};
use crate::vport::{NicVportContext, RoceAddress};

rows! { $
    vport {
        0x08 [31] other_vport "The command is about another vport, named by `vport_number`.";
        0x08 [15:0] vport_number "Number of the other vport.";
    }
    roce_index {
        0x08 [31:16] roce_address_index "Entry of the RoCE address table.";
        0x08 [3:0] vhca_port_num "Port of a combined function, 0 on a function with one port.";
    }
    table_index {
        0x14 [23:0] table_index "Entry of the layer-2 table.";
    }
    l2_entry {
        0x1c [12] vlan_valid "`vlan` means something.";
        0x1c [11:0] vlan "VLAN id that frames must carry.";
        0x20 (u64) mac_address "MAC address in the low 48 bits.";
    }
}

command! {
    /// `op_mod` 0 write, 1 read. The register follows input and output.
    AccessReg ACCESS_REG {
        0x08 [15:0] register_id "A [`crate::reg::RegisterId`].";
        0x0c [31:0] argument "Argument that some registers take.";
    }
    QueryNicVportContext QUERY_NIC_VPORT_CONTEXT {
        ..vport;
        0x0c [26:24] allowed_list_type "List to return: 0 unicast MACs, 1 multicast MACs, 2 VLANs.";
    } => [0x110] {
        0x10 (NicVportContext) nic_vport_context "The vport's context.";
    }
    ModifyNicVportContext MODIFY_NIC_VPORT_CONTEXT [0x200] {
        ..vport;
        0x0c [31:0] field_select
            "Selects the fields to change, see [`crate::vport::field_select`].";
        0x100 (NicVportContext) nic_vport_context "The vport's context.";
    }
    /// The P_Keys follow the output, 4 bytes each.
    QueryHcaVportPkey QUERY_HCA_VPORT_PKEY {
        ..vport;
        0x08 [19:16] port_num "Port, 1-based.";
        0x0c [15:0] pkey_index "Entry of the P_Key table, 0xffff for all.";
    }
    /// `op_mod` 0 vnic, 1 esw, 2 uplink.
    QueryVportState QUERY_VPORT_STATE { ..vport; } => {
        0x0c [7:4] admin_state "State asked for: 0 down, 1 up, 2 follow the port.";
        0x0c [3:0] state "State of the link: 0 down, 1 up.";
    }
    /// `op_mod` 0 vnic, 1 esw, 2 uplink.
    ModifyVportState MODIFY_VPORT_STATE {
        ..vport;
        0x0c [7:4] admin_state "State asked for: 0 down, 1 up, 2 follow the port.";
    }
    QueryVportCounter QUERY_VPORT_COUNTER [0x20] {
        ..vport;
        0x08 [19:16] port_num "Port, 1-based.";
        0x18 [31] clear "Set the counters to zero after reading.";
    } => [0x210] {
        0x10 (u64) rx_errors_packets "Packets received with errors.";
        0x18 (u64) rx_errors_octets "Bytes received with errors.";
        0x20 (u64) tx_errors_packets "Packets that could not be sent.";
        0x28 (u64) tx_errors_octets "Bytes that could not be sent.";
        0x30 (u64) rx_ib_unicast_packets "Received infiniband unicast: packets.";
        0x38 (u64) rx_ib_unicast_octets "Received infiniband unicast: bytes.";
        0x40 (u64) tx_ib_unicast_packets "Sent infiniband unicast: packets.";
        0x48 (u64) tx_ib_unicast_octets "Sent infiniband unicast: bytes.";
        0x50 (u64) rx_ib_multicast_packets "Received infiniband multicast: packets.";
        0x58 (u64) rx_ib_multicast_octets "Received infiniband multicast: bytes.";
        0x60 (u64) tx_ib_multicast_packets "Sent infiniband multicast: packets.";
        0x68 (u64) tx_ib_multicast_octets "Sent infiniband multicast: bytes.";
        0x70 (u64) rx_eth_broadcast_packets "Received ethernet broadcast: packets.";
        0x78 (u64) rx_eth_broadcast_octets "Received ethernet broadcast: bytes.";
        0x80 (u64) tx_eth_broadcast_packets "Sent ethernet broadcast: packets.";
        0x88 (u64) tx_eth_broadcast_octets "Sent ethernet broadcast: bytes.";
        0x90 (u64) rx_eth_unicast_packets "Received ethernet unicast: packets.";
        0x98 (u64) rx_eth_unicast_octets "Received ethernet unicast: bytes.";
        0xa0 (u64) tx_eth_unicast_packets "Sent ethernet unicast: packets.";
        0xa8 (u64) tx_eth_unicast_octets "Sent ethernet unicast: bytes.";
        0xb0 (u64) rx_eth_multicast_packets "Received ethernet multicast: packets.";
        0xb8 (u64) rx_eth_multicast_octets "Received ethernet multicast: bytes.";
        0xc0 (u64) tx_eth_multicast_packets "Sent ethernet multicast: packets.";
        0xc8 (u64) tx_eth_multicast_octets "Sent ethernet multicast: bytes.";
    }
    QueryVnicEnv QUERY_VNIC_ENV { ..vport; } => [0x210] {
        0x10 ([u8; 512]) vport_env "Diagnostic counters of the vport.";
    }
    QueryLag QUERY_LAG {} => {
        0x08 [31] fdb_selection_mode "The ports share one table of the e-switch.";
        0x08 [10:8] port_select_mode "How a queue's port is chosen; 0: by the queue.";
        0x08 [2:0] lag_state "1: the ports are one link; 0: they are not.";
        0x0c [19:16] active_port "A bit for each port that is up, if flows choose theirs.";
        0x0c [11:8] tx_remap_affinity_2 "Port, 1-based, that queues of port 2 send on.";
        0x0c [3:0] tx_remap_affinity_1 "Port, 1-based, that queues of port 1 send on.";
    }
    SetRoceAddress SET_ROCE_ADDRESS [0x30] {
        ..roce_index;
        0x10 (RoceAddress) roce_address "The entry itself.";
    }
    QueryRoceAddress QUERY_ROCE_ADDRESS { ..roce_index; } => [0x30] {
        0x10 (RoceAddress) roce_address "The entry itself.";
    }
    SetL2TableEntry SET_L2_TABLE_ENTRY [0x40] {
        ..table_index;
        ..l2_entry;
    }
    QueryL2TableEntry QUERY_L2_TABLE_ENTRY [0x40] { ..table_index; } => [0x40] { ..l2_entry; }
    DeleteL2TableEntry DELETE_L2_TABLE_ENTRY [0x40] { ..table_index; }
    AllocQCounter ALLOC_Q_COUNTER {} => {
        0x08 [7:0] counter_set_id "Number of the counter set; 0 is a valid one.";
    }
    DeallocQCounter DEALLOC_Q_COUNTER {
        0x08 [7:0] counter_set_id "Number of the counter set.";
    }
    QueryQCounter QUERY_Q_COUNTER [0x20] {
        0x18 [31] clear "Set the counters to zero after reading.";
        0x1c [7:0] counter_set_id "Number of the counter set.";
    } => [0x100] {
        0x10 [31:0] rx_write_requests "RDMA writes received.";
        0x18 [31:0] rx_read_requests "RDMA reads received.";
        0x20 [31:0] rx_atomic_requests "Atomics received.";
        0x28 [31:0] rx_dct_connect "DC connections requested by others.";
        0x30 [31:0] out_of_buffer "Packets dropped because no receive WQE was posted.";
        0x38 [31:0] out_of_sequence "Packets received out of sequence.";
        0x40 [31:0] duplicate_request "Requests received again.";
        0x48 [31:0] rnr_nak_retry_err "\"Receiver not ready\" answers received.";
        0x50 [31:0] packet_seq_err "Sequence error NAKs received.";
        0x58 [31:0] implied_nak_seq_err "Answers that skipped an earlier request.";
        0x60 [31:0] local_ack_timeout_err "Acknowledgements that did not come in time.";
        0x70 [31:0] req_rnr_retries_exceeded
            "Requests given up after \"receiver not ready\" (Linux 6.12).";
        0x78 [31:0] resp_local_length_error "Messages received that were too long for their WQE.";
        0x7c [31:0] req_local_length_error "Answers received that were too long for their WQE.";
        0x80 [31:0] resp_local_qp_error "Local QP errors as responder.";
        0x84 [31:0] local_operation_error "Local operation errors.";
        0x88 [31:0] resp_local_protection "Local protection errors as responder.";
        0x8c [31:0] req_local_protection "Local protection errors as requester.";
        0x90 [31:0] resp_cqe_error "Receives that ended with an error.";
        0x94 [31:0] req_cqe_error "Sends that ended with an error.";
        0x98 [31:0] req_mw_binding "Memory window binds that failed.";
        0x9c [31:0] req_bad_response "Answers that did not fit their request.";
        0xa0 [31:0] req_remote_invalid_request "Own requests refused as invalid.";
        0xa4 [31:0] resp_remote_invalid_request "Requests of others refused as invalid.";
        0xa8 [31:0] req_remote_access_errors "Own requests refused for lack of access rights.";
        0xac [31:0] resp_remote_access_errors
            "Requests of others refused for lack of access rights.";
        0xb0 [31:0] req_remote_operation_errors "Own requests that failed at the other end.";
        0xb4 [31:0] req_transport_retries_exceeded
            "Requests given up because no acknowledgement came.";
        0xb8 [31:0] cq_overflow "Completion queues that overran.";
        0xbc [31:0] resp_cqe_flush_error "Receives flushed because their queue was in error.";
        0xc0 [31:0] req_cqe_flush_error "Sends flushed because their queue was in error.";
        0xc8 [31:0] roce_adp_retrans "Adaptive retransmissions.";
        0xcc [31:0] roce_adp_retrans_to "Adaptive retransmissions after a time-out.";
        0xd0 [31:0] roce_slow_restart "Slow restarts.";
        0xd4 [31:0] roce_slow_restart_cnps "Congestion notifications sent during slow restart.";
        0xd8 [31:0] roce_slow_restart_trans "Changes into slow restart.";
    }
}

values! {
    /// `op_mod` of ACCESS_REG. Source: reference 4.7.
    pub mod access_reg: u32 {
        0 WRITE "Write the register.";
        1 READ "Read the register.";
    }
}
