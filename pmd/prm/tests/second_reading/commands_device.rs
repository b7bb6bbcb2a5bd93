//! Commands about the device, its ports and basic objects, in cumulative widths.
//!
//! Source: `mlx5_ifc.h` of Linux 6.12.117, names and widths only; `_` is reserved. Taken from the
//! header by a script, not from our layouts, and cut at the size of ours where we carry only the
//! start; correct it only against the header.

use crate::reading;
use ferrocx_prm::cmd::device::*;
use ferrocx_prm::cmd::memic::*;
use ferrocx_prm::cmd::objects::*;
use ferrocx_prm::cmd::port::*;
use ferrocx_prm::mkey::Mkc;
use ferrocx_prm::vport::{NicVportContext, RoceAddress};

reading! {
    EnableHcaIn {
        opcode 16, uid 16, _ 16, op_mod 16, embedded_cpu_function 1, _ 15, function_id 16, _ 32,
    }
    EnableHcaOut { status 8, _ 24, syndrome 32, _ 32 }
    DisableHcaIn {
        opcode 16, uid 16, _ 16, op_mod 16, embedded_cpu_function 1, _ 15, function_id 16, _ 32,
    }
    DisableHcaOut { status 8, _ 24, syndrome 32, _ 32 }
    QueryIssiIn { opcode 16, uid 16, _ 16, op_mod 16, _ 64 }
    QueryIssiOut {
        status 8, _ 24, syndrome 32, _ 16, current_issi 16, _ 768, supported_issi_dw0 32,
    }
    SetIssiIn { opcode 16, uid 16, _ 16, op_mod 16, _ 16, current_issi 16, _ 32 }
    SetIssiOut { status 8, _ 24, syndrome 32, _ 64 }
    QueryPagesIn {
        opcode 16, uid 16, _ 16, op_mod 16, embedded_cpu_function 1, _ 15, function_id 16, _ 32,
    }
    QueryPagesOut {
        status 8, _ 24, syndrome 32, embedded_cpu_function 1, _ 15, function_id 16, num_pages 32,
    }
    ManagePagesIn {
        opcode 16, uid 16, _ 16, op_mod 16, embedded_cpu_function 1, _ 15, function_id 16,
        input_num_entries 32,
    }
    ManagePagesOut { status 8, _ 24, syndrome 32, output_num_entries 32, _ 32 }
    SetDriverVersionIn { opcode 16, uid 16, _ 16, op_mod 16, _ 64, driver_version 512 }
    SetDriverVersionOut { status 8, _ 24, syndrome 32, _ 64 }
    QueryHcaCapIn {
        opcode 16, uid 16, _ 16, op_mod 16, other_function 1, ec_vf_function 1, _ 14,
        function_id 16, _ 32,
    }
    QueryHcaCapOut { status 8, _ 24, syndrome 32, _ 64, capability 32768 }
    SetHcaCapIn {
        opcode 16, uid 16, _ 16, op_mod 16, other_function 1, ec_vf_function 1, _ 14,
        function_id 16, _ 32, capability 32768,
    }
    SetHcaCapOut { status 8, _ 24, syndrome 32, _ 64 }
    InitHcaIn { opcode 16, uid 16, _ 16, op_mod 16, _ 34, sw_vhca_id 14, _ 16, sw_owner_id 128 }
    InitHcaOut { status 8, _ 24, syndrome 32, _ 64 }
    TeardownHcaIn { opcode 16, uid 16, _ 16, op_mod 16, _ 16, profile 16, _ 32 }
    TeardownHcaOut { status 8, _ 24, syndrome 32, _ 63, state 1 }
    QueryAdapterIn { opcode 16, uid 16, _ 16, op_mod 16, _ 64 }
    QueryAdapterOut { status 8, _ 24, syndrome 32, _ 64, query_adapter_struct 2048 }
    QuerySpecialContextsIn { opcode 16, uid 16, _ 16, op_mod 16, _ 64 }
    QuerySpecialContextsOut {
        status 8, _ 24, syndrome 32, dump_fill_mkey 32, resd_lkey 32, null_mkey 32,
        terminate_scatter_list_mkey 32, repeated_mkey 32, _ 32,
    }
    NopIn { opcode 16, uid 16, _ 16, op_mod 16, _ 64 }
    NopOut { status 8, _ 24, syndrome 32, _ 64 }
    AllocUarIn { opcode 16, uid 16, _ 16, op_mod 16, _ 64 }
    AllocUarOut { status 8, _ 24, syndrome 32, _ 8, uar 24, _ 32 }
    DeallocUarIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, uar 24, _ 32 }
    DeallocUarOut { status 8, _ 24, syndrome 32, _ 64 }
    AllocPdIn { opcode 16, uid 16, _ 16, op_mod 16, _ 64 }
    AllocPdOut { status 8, _ 24, syndrome 32, _ 8, pd 24, _ 32 }
    DeallocPdIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, pd 24, _ 32 }
    DeallocPdOut { status 8, _ 24, syndrome 32, _ 64 }
    AllocTransportDomainIn { opcode 16, uid 16, _ 16, op_mod 16, _ 64 }
    AllocTransportDomainOut { status 8, _ 24, syndrome 32, _ 8, transport_domain 24, _ 32 }
    DeallocTransportDomainIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, transport_domain 24, _ 32 }
    DeallocTransportDomainOut { status 8, _ 24, syndrome 32, _ 64 }
    AllocXrcdIn { opcode 16, uid 16, _ 16, op_mod 16, _ 64 }
    AllocXrcdOut { status 8, _ 24, syndrome 32, _ 8, xrcd 24, _ 32 }
    DeallocXrcdIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, xrcd 24, _ 32 }
    DeallocXrcdOut { status 8, _ 24, syndrome 32, _ 64 }
    AllocMemicIn {
        opcode 16, _ 32, op_mod 16, _ 56, log_memic_addr_alignment 8, range_start_addr 64,
        range_size 32, memic_size 32,
    }
    AllocMemicOut { status 8, _ 24, syndrome 32, memic_start_addr 64 }
    DeallocMemicIn { opcode 16, _ 32, op_mod 16, _ 64, memic_start_addr 64, memic_size 32, _ 32 }
    DeallocMemicOut { status 8, _ 24, syndrome 32, _ 64 }
    CreateMkeyIn {
        opcode 16, uid 16, _ 16, op_mod 16, _ 32, pg_access 1, mkey_umem_valid 1, data_direct 1,
        _ 29, memory_key_mkey_entry (Mkc), _ 128, translations_octword_actual_size 32, _ 1376,
    }
    CreateMkeyOut { status 8, _ 24, syndrome 32, _ 8, mkey_index 24, _ 32 }
    QueryMkeyIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, mkey_index 24, pg_access 1, _ 31 }
    QueryMkeyOut {
        status 8, _ 24, syndrome 32, _ 64, memory_key_mkey_entry (Mkc), _ 1536,
        bsf0_klm0_pas_mtt0_1 128, bsf1_klm1_pas_mtt2_3 128,
    }
    DestroyMkeyIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, mkey_index 24, _ 32 }
    DestroyMkeyOut { status 8, _ 24, syndrome 32, _ 64 }
    AccessRegIn { opcode 16, uid 16, _ 16, op_mod 16, _ 16, register_id 16, argument 32 }
    AccessRegOut { status 8, _ 24, syndrome 32, _ 64 }
    QueryNicVportContextIn {
        opcode 16, uid 16, _ 16, op_mod 16, other_vport 1, _ 15, vport_number 16, _ 5,
        allowed_list_type 3, _ 24,
    }
    QueryNicVportContextOut {
        status 8, _ 24, syndrome 32, _ 64, nic_vport_context (NicVportContext),
    }
    ModifyNicVportContextIn {
        opcode 16, uid 16, _ 16, op_mod 16, other_vport 1, _ 15, vport_number 16, field_select 32,
        _ 1920, nic_vport_context (NicVportContext),
    }
    ModifyNicVportContextOut { status 8, _ 24, syndrome 32, _ 64 }
    QueryHcaVportPkeyIn {
        opcode 16, uid 16, _ 16, op_mod 16, other_vport 1, _ 11, port_num 4, vport_number 16, _ 16,
        pkey_index 16,
    }
    QueryHcaVportPkeyOut { status 8, _ 24, syndrome 32, _ 64 }
    QueryVportStateIn {
        opcode 16, uid 16, _ 16, op_mod 16, other_vport 1, _ 15, vport_number 16, _ 32,
    }
    QueryVportStateOut { status 8, _ 24, syndrome 32, _ 56, admin_state 4, state 4 }
    ModifyVportStateIn {
        opcode 16, uid 16, _ 16, op_mod 16, other_vport 1, _ 15, vport_number 16, _ 24,
        admin_state 4, _ 4,
    }
    ModifyVportStateOut { status 8, _ 24, syndrome 32, _ 64 }
    QueryVportCounterIn {
        opcode 16, uid 16, _ 16, op_mod 16, other_vport 1, _ 11, port_num 4, vport_number 16, _ 96,
        clear 1, _ 63,
    }
    QueryVportCounterOut {
        status 8, _ 24, syndrome 32, _ 64, received_errors_packets 64, received_errors_octets 64,
        transmit_errors_packets 64, transmit_errors_octets 64, received_ib_unicast_packets 64,
        received_ib_unicast_octets 64, transmitted_ib_unicast_packets 64,
        transmitted_ib_unicast_octets 64, received_ib_multicast_packets 64,
        received_ib_multicast_octets 64, transmitted_ib_multicast_packets 64,
        transmitted_ib_multicast_octets 64, received_eth_broadcast_packets 64,
        received_eth_broadcast_octets 64, transmitted_eth_broadcast_packets 64,
        transmitted_eth_broadcast_octets 64, received_eth_unicast_packets 64,
        received_eth_unicast_octets 64, transmitted_eth_unicast_packets 64,
        transmitted_eth_unicast_octets 64, received_eth_multicast_packets 64,
        received_eth_multicast_octets 64, transmitted_eth_multicast_packets 64,
        transmitted_eth_multicast_octets 64, local_loopback 128, _ 2432,
    }
    QueryVnicEnvIn {
        opcode 16, uid 16, _ 16, op_mod 16, other_vport 1, _ 15, vport_number 16, _ 32,
    }
    QueryVnicEnvOut { status 8, _ 24, syndrome 32, _ 64, vport_env 4096 }
    QueryLagIn { opcode 16, uid 16, _ 16, op_mod 16, _ 64 }
    QueryLagOut {
        status 8, _ 24, syndrome 32, fdb_selection_mode 1, _ 20, port_select_mode 3, _ 5,
        lag_state 3, _ 12, active_port 4, _ 4, tx_remap_affinity_2 4, _ 4, tx_remap_affinity_1 4,
    }
    SetRoceAddressIn {
        opcode 16, uid 16, _ 16, op_mod 16, roce_address_index 16, _ 12, vhca_port_num 4, _ 32,
        roce_address (RoceAddress),
    }
    SetRoceAddressOut { status 8, _ 24, syndrome 32, _ 64 }
    QueryRoceAddressIn {
        opcode 16, uid 16, _ 16, op_mod 16, roce_address_index 16, _ 12, vhca_port_num 4, _ 32,
    }
    QueryRoceAddressOut { status 8, _ 24, syndrome 32, _ 64, roce_address (RoceAddress) }
    SetL2TableEntryIn {
        opcode 16, uid 16, _ 16, op_mod 16, _ 104, table_index 24, _ 48, silent_mode_valid 1,
        silent_mode 1, _ 1, vlan_valid 1, vlan 12, mac_address 64, _ 192,
    }
    SetL2TableEntryOut { status 8, _ 24, syndrome 32, _ 64 }
    QueryL2TableEntryIn { opcode 16, uid 16, _ 16, op_mod 16, _ 104, table_index 24, _ 320 }
    QueryL2TableEntryOut {
        status 8, _ 24, syndrome 32, _ 179, vlan_valid 1, vlan 12, mac_address 64, _ 192,
    }
    DeleteL2TableEntryIn { opcode 16, uid 16, _ 16, op_mod 16, _ 104, table_index 24, _ 320 }
    DeleteL2TableEntryOut { status 8, _ 24, syndrome 32, _ 64 }
    AllocQCounterIn { opcode 16, uid 16, _ 16, op_mod 16, _ 64 }
    AllocQCounterOut { status 8, _ 24, syndrome 32, _ 24, counter_set_id 8, _ 32 }
    DeallocQCounterIn { opcode 16, uid 16, _ 16, op_mod 16, _ 24, counter_set_id 8, _ 32 }
    DeallocQCounterOut { status 8, _ 24, syndrome 32, _ 64 }
    QueryQCounterIn {
        opcode 16, uid 16, _ 16, op_mod 16, other_vport 1, _ 15, vport_number 16, _ 96, clear 1,
        aggregate 1, _ 54, counter_set_id 8,
    }
    QueryQCounterOut {
        status 8, _ 24, syndrome 32, _ 64, rx_write_requests 32, _ 32, rx_read_requests 32, _ 32,
        rx_atomic_requests 32, _ 32, rx_dct_connect 32, _ 32, out_of_buffer 32, _ 32,
        out_of_sequence 32, _ 32, duplicate_request 32, _ 32, rnr_nak_retry_err 32, _ 32,
        packet_seq_err 32, _ 32, implied_nak_seq_err 32, _ 32, local_ack_timeout_err 32, _ 96,
        req_rnr_retries_exceeded 32, _ 32, resp_local_length_error 32, req_local_length_error 32,
        resp_local_qp_error 32, local_operation_error 32, resp_local_protection 32,
        req_local_protection 32, resp_cqe_error 32, req_cqe_error 32, req_mw_binding 32,
        req_bad_response 32, req_remote_invalid_request 32, resp_remote_invalid_request 32,
        req_remote_access_errors 32, resp_remote_access_errors 32, req_remote_operation_errors 32,
        req_transport_retries_exceeded 32, cq_overflow 32, resp_cqe_flush_error 32,
        req_cqe_flush_error 32, _ 32, roce_adp_retrans 32, roce_adp_retrans_to 32,
        roce_slow_restart 32, roce_slow_restart_cnps 32, roce_slow_restart_trans 32, _ 288,
    }
}
