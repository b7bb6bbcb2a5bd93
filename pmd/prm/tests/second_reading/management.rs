//! Management datagrams, in cumulative widths.
//!
//! Source: `ibta_vol1_c12.h`, `ib_mad.h` and `cma.c` of Linux, names and widths only; `_` is
//! reserved. Taken from the headers by a script, not from our layouts; the alternate path is one
//! piece here. Correct it only against the headers.

use crate::reading;
use ferrocx_prm::mad::*;

reading! {
    CmDrep {
        local_comm_id 32, remote_comm_id 32, private_data 1792,
    }
    CmDreq {
        local_comm_id 32, remote_comm_id 32, remote_qpn_eecn 24, _ 8, private_data 1760,
    }
    CmMra {
        local_comm_id 32, remote_comm_id 32, message_mraed 2, _ 6, service_timeout 5, _ 3,
        private_data 1776,
    }
    CmRej {
        local_comm_id 32, remote_comm_id 32, message_rejected 2, _ 6, rejected_info_length 7, _ 1,
        reason 16, ari 576, private_data 1184,
    }
    CmRep {
        local_comm_id 32, remote_comm_id 32, local_q_key 32, local_qpn 24, vendor_id_h 8,
        local_ee_context_number 24, vendor_id_m 8, starting_psn 24, vendor_id_l 8,
        responder_resources 8, initiator_depth 8, target_ack_delay 5, failover_accepted 2,
        end_to_end_flow_control 1, rnr_retry_count 3, srq 1, _ 4, local_ca_guid 64,
        private_data 1568,
    }
    CmReq {
        local_comm_id 32, _ 8, vendor_id 24, service_id 64, local_ca_guid 64, _ 32, local_q_key 32,
        local_qpn 24, responder_resources 8, local_eecn 24, initiator_depth 8, remote_eecn 24,
        remote_cm_response_timeout 5, transport_service_type 2, end_to_end_flow_control 1,
        starting_psn 24, local_cm_response_timeout 5, retry_count 3, partition_key 16,
        path_packet_payload_mtu 4, rdc_exists 1, rnr_retry_count 3, max_cm_retries 4, srq 1,
        extended_transport_type 3, primary_local_port_lid 16, primary_remote_port_lid 16,
        primary_local_port_gid 128, primary_remote_port_gid 128, primary_flow_label 20, _ 6,
        primary_packet_rate 6, primary_traffic_class 8, primary_hop_limit 8, primary_sl 4,
        primary_subnet_local 1, _ 3, primary_local_ack_timeout 5, _ 3, alternate_path 352,
        private_data 736,
    }
    CmRtu {
        local_comm_id 32, remote_comm_id 32, private_data 1792,
    }
    CmSidrRep {
        request_id 32, status 8, additional_information_length 8, vendor_id_h 16, qpn 24,
        vendor_id_l 8, service_id 64, q_key 32, additional_information 576, private_data 1088,
    }
    CmSidrReq {
        request_id 32, partition_key 16, _ 16, service_id 64, private_data 1728,
    }
    CmaHeader {
        cma_version 8, ip_version 4, _ 4, port 16, source 128, destination 128,
    }
    MadHeader {
        base_version 8, mgmt_class 8, class_version 8, method 8, status 16, class_specific 16,
        transaction_id 64, attr_id 16, _ 16, attr_mod 32,
    }
}
