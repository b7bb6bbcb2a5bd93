//! Management datagrams, and those of the connection manager.
//!
//! Source: reference 7.8 and 7.10; IBTA vol. 1, 13.4.3 (header), 12.6 to 12.11 (messages);
//! offsets of Linux `ib_mad.h`, `ibta_vol1_c12.h`, `cma.c`. Messages stand behind the header.

use crate::layout;
use crate::layout::{rows, values};

/// Bytes of a management datagram.
pub const MAD_BYTES: usize = 256;
/// `mgmt_class` of the connection manager.
pub const CLASS_CM: u32 = 7;
/// `base_version` of every datagram.
pub const BASE_VERSION: u32 = 1;
/// `class_version` of the connection manager.
pub const CM_CLASS_VERSION: u32 = 2;
/// `method` of the connection manager: send.
pub const METHOD_SEND: u32 = 3;
/// Queue pair of the general services on the wire.
pub const GSI_QPN: u32 = 1;
/// Key of datagrams to it.
pub const GSI_QKEY: u32 = 0x8001_0000;
/// The partition that every port is a full member of.
pub const DEFAULT_PKEY: u32 = 0xffff;

values! {
    /// `attr_id` of the connection manager's messages.
    pub mod cm_attr: u32 {
        0x10 REQ "Request for a connection, [`super::CmReq`].";
        0x11 MRA "It will take longer, [`super::CmMra`].";
        0x12 REJ "Refusal, [`super::CmRej`].";
        0x13 REP "Acceptance of a connection, [`super::CmRep`].";
        0x14 RTU "Ready to use, [`super::CmRtu`].";
        0x15 DREQ "Request to end a connection, [`super::CmDreq`].";
        0x16 DREP "Answer to a request to end, [`super::CmDrep`].";
        0x17 SIDR_REQ "Question for a service, [`super::CmSidrReq`].";
        0x18 SIDR_REP "Answer to such a question, [`super::CmSidrRep`].";
    }
}

rows! { $
    comm_ids {
        0x00 [31:0] local_comm_id
            "Number of the connection at the sender, 0 in a refusal from one that has none.";
        0x04 [31:0] remote_comm_id "Number of the connection at the receiver.";
    }
}

layout! {
    /// Header of a management datagram, 24 bytes.
    pub struct MadHeader [0x18] {
        0x00 [31:24] base_version "Version of the header: 1.";
        0x00 [23:16] mgmt_class "Management class that the datagram belongs to.";
        0x00 [15:8] class_version "Version of the class.";
        0x00 [7:0] method "Operation, such as get or send.";
        0x04 [31:16] status "Status of the operation.";
        0x04 [15:0] class_specific "Defined by the class.";
        0x08 (u64) transaction_id "Transaction that the datagram belongs to.";
        0x10 [31:16] attr_id "Attribute, the kind of message that follows.";
        0x14 [31:0] attr_mod "Defined by the attribute.";
    }

    /// Request for a connection, 232 bytes.
    pub struct CmReq [0xe8] {
        0x00 [31:0] local_comm_id "Number of the connection at the sender.";
        0x04 [23:0] vendor_id "Vendor of enhanced connection establishment.";
        0x08 (u64) service_id "Service that is asked for.";
        0x10 (u64) local_ca_guid "The sender's device.";
        0x1c [31:0] local_q_key "Key of datagrams.";
        0x20 [31:8] local_qpn "The sender's queue pair.";
        0x20 [7:0] responder_resources "READs and atomics that the sender serves at a time.";
        0x24 [31:8] local_eecn "End-to-end context of reliable datagrams.";
        0x24 [7:0] initiator_depth "READs and atomics that the sender wants in flight.";
        0x28 [31:8] remote_eecn "The receiver's end-to-end context.";
        0x28 [7:3] remote_cm_response_timeout
            "The receiver shall answer within 4.096 us times 2 to this power.";
        0x28 [2:1] transport_service_type "0 RC, 1 UC, 2 RD, 3 see `extended_transport_type`.";
        0x28 [0] end_to_end_flow_control "The sender gives credits.";
        0x2c [31:8] starting_psn "First packet number that the receiver shall send.";
        0x2c [7:3] local_cm_response_timeout
            "The sender answers within 4.096 us times 2 to this power.";
        0x2c [2:0] retry_count "Repetitions that the receiver's queue pair shall make.";
        0x30 [31:16] partition_key "Partition.";
        0x30 [15:12] path_packet_payload_mtu "Payload of a full packet: 1 is 256 bytes, 5 is 4096.";
        0x30 [11] rdc_exists "A reliable datagram channel exists.";
        0x30 [10:8] rnr_retry_count
            "Repetitions of the receiver's queue pair when the sender is not ready; 7 for ever.";
        0x30 [7:4] max_cm_retries "Repetitions of messages of the connection manager.";
        0x30 [3] srq "The sender receives through a shared queue.";
        0x30 [2:0] extended_transport_type "1 for XRC.";
        0x34 [31:16] primary_local_port_lid "LID of the sender; 0xffff where there is none.";
        0x34 [15:0] primary_remote_port_lid "LID of the receiver.";
        0x38 ([u8; 16]) primary_local_port_gid "Address of the sender.";
        0x48 ([u8; 16]) primary_remote_port_gid "Address of the receiver.";
        0x58 [31:12] primary_flow_label "Flow label of the path.";
        0x58 [5:0] primary_packet_rate "Static rate.";
        0x5c [31:24] primary_traffic_class "Traffic class.";
        0x5c [23:16] primary_hop_limit "Hop limit.";
        0x5c [15:12] primary_sl "Service level.";
        0x5c [11] primary_subnet_local "Both are on one subnet.";
        0x5c [7:3] primary_local_ack_timeout
            "The receiver's queue pair waits this long for acknowledgements.";
        0x60 ([u8; 44]) alternate_path
            "The alternate path, of the same fields as the primary one; zero without one.";
        0x8c ([u8; 92]) private_data "Private data of the user.";
    }

    /// "It will take longer", 232 bytes.
    pub struct CmMra [0xe8] {
        ..comm_ids;
        0x08 [31:30] message_mraed "Message that was received: 0 REQ, 1 REP, 2 LAP.";
        0x08 [23:19] service_timeout "The answer comes within 4.096 us times 2 to this power.";
        0x0a ([u8; 222]) private_data "Private data of the user.";
    }

    /// Refusal, 232 bytes.
    pub struct CmRej [0xe8] {
        ..comm_ids;
        0x08 [31:30] message_rejected
            "Message that is refused: 0 REQ, 1 REP, 2 nothing in particular.";
        0x08 [23:17] rejected_info_length "Bytes of `ari` that count.";
        0x08 [15:0] reason "Reason of the refusal, as the class numbers it.";
        0x0c ([u8; 72]) ari "Additional information: values that would have been accepted.";
        0x54 ([u8; 148]) private_data "Private data of the user.";
    }

    /// Acceptance of a connection, 232 bytes.
    pub struct CmRep [0xe8] {
        ..comm_ids;
        0x08 [31:0] local_q_key "Key of datagrams.";
        0x0c [31:8] local_qpn "The sender's queue pair.";
        0x0c [7:0] vendor_id_h "Vendor of enhanced connection establishment, high part.";
        0x10 [31:8] local_ee_context_number "End-to-end context of reliable datagrams.";
        0x10 [7:0] vendor_id_m "Vendor, middle part.";
        0x14 [31:8] starting_psn "First packet number that the receiver shall send.";
        0x14 [7:0] vendor_id_l "Vendor, low part.";
        0x18 [31:24] responder_resources "READs and atomics that the sender serves at a time.";
        0x18 [23:16] initiator_depth "READs and atomics that the sender will have in flight.";
        0x18 [15:11] target_ack_delay "How long its acknowledgements may take.";
        0x18 [10:9] failover_accepted
            "Fate of the alternate path: 0 accepted, 1 not supported, 2 refused.";
        0x18 [8] end_to_end_flow_control "The sender gives credits.";
        0x18 [7:5] rnr_retry_count
            "Repetitions of the receiver's queue pair when the sender is not ready; 7 for ever.";
        0x18 [4] srq "The sender receives through a shared queue.";
        0x1c (u64) local_ca_guid "The sender's device.";
        0x24 ([u8; 196]) private_data "Private data of the user.";
    }

    /// "Ready to use", 232 bytes.
    pub struct CmRtu [0xe8] {
        ..comm_ids;
        0x08 ([u8; 224]) private_data "Private data of the user.";
    }

    /// Request to end a connection, 232 bytes.
    pub struct CmDreq [0xe8] {
        ..comm_ids;
        0x08 [31:8] remote_qpn_eecn "The receiver's queue pair.";
        0x0c ([u8; 220]) private_data "Private data of the user.";
    }

    /// Answer to [`CmDreq`], 232 bytes.
    pub struct CmDrep [0xe8] {
        ..comm_ids;
        0x08 ([u8; 224]) private_data "Private data of the user.";
    }

    /// Question for a service's queue pair for datagrams, 232 bytes.
    pub struct CmSidrReq [0xe8] {
        0x00 [31:0] request_id "Number of the question.";
        0x04 [31:16] partition_key "Partition.";
        0x08 (u64) service_id "Service that is asked for.";
        0x10 ([u8; 216]) private_data "Private data of the user.";
    }

    /// Answer to [`CmSidrReq`], 232 bytes.
    pub struct CmSidrRep [0xe8] {
        0x00 [31:0] request_id "Number of the question.";
        0x04 [31:24] status
            "0 here it is, 1 no such service, 2 refused by it, 3 no queue pair, 4 ask elsewhere, 5 \
             version not supported.";
        0x04 [23:16] additional_information_length "Bytes of `additional_information` that count.";
        0x04 [15:0] vendor_id_h "Vendor of enhanced connection establishment, high part.";
        0x08 [31:8] qpn "The queue pair.";
        0x08 [7:0] vendor_id_l "Vendor, low part.";
        0x0c (u64) service_id "Service that was asked for.";
        0x14 [31:0] q_key "Key of its datagrams.";
        0x18 ([u8; 72]) additional_information "Details that `status` asks for.";
        0x60 ([u8; 136]) private_data "Private data of the user.";
    }

    /// Header of `rdma_cm` before the private data of requests, 36 bytes: IP addresses and port.
    pub struct CmaHeader [0x24] {
        0x00 [31:24] cma_version "Version of this header: 0.";
        0x00 [23:20] ip_version "4 or 6.";
        0x00 [15:0] port "The sender's port.";
        0x04 ([u8; 16]) source "The sender; an IPv4 address stands in the last four bytes.";
        0x14 ([u8; 16]) destination "The receiver.";
    }
}
