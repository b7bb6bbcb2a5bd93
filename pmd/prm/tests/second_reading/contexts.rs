//! Contexts of objects, in cumulative widths.
//!
//! Source: `mlx5_ifc.h` of Linux 6.12.117, names and widths only; `_` is reserved. Taken from the
//! header by a script, not from our layouts, and cut at the size of ours where we carry only the
//! start; correct it only against the header.

use crate::reading;
use ferrocx_prm::cmd::user::{Uctx, Umem};
use ferrocx_prm::cqc::Cqc;
use ferrocx_prm::eqc::Eqc;
use ferrocx_prm::flow::*;
use ferrocx_prm::mkey::{Mkc, Mtt};
use ferrocx_prm::qpc::{Ads, Qpc};
use ferrocx_prm::srqc::XrcSrqc;
use ferrocx_prm::tirc::{RqNum, Rqtc, Tirc, Tisc};
use ferrocx_prm::vport::{NicVportContext, RoceAddress};
use ferrocx_prm::wqc::{Rmpc, Rqc, Sqc, Wq};

reading! {
    Uctx { cap 32, _ 352 }
    Umem { _ 128, ats 1, _ 26, log_page_size 5, page_offset 32, num_of_mtt 64 }
    Cqc {
        status 4, _ 2, dbr_umem_valid 1, apu_cq 1, cqe_sz 3, cc 1, _ 1, scqe_break_moderation_en 1,
        oi 1, cq_period_mode 2, cqe_comp_en 1, mini_cqe_res_format 2, st 4, _ 6,
        cqe_compression_layout 2, _ 52, page_offset 6, _ 9, log_cq_size 5, uar_page 24, _ 4,
        cq_period 12, cq_max_count 16, c_eqn_or_apu_element 32, _ 3, log_page_size 5, _ 64,
        last_notified_index 24, _ 8, last_solicit_index 24, _ 8, consumer_counter 24, _ 8,
        producer_counter 24, _ 64, dbr_addr 64,
    }
    Eqc {
        status 4, _ 9, ec 1, oi 1, _ 5, st 4, _ 60, page_offset 6, _ 9, log_eq_size 5, uar_page 24,
        _ 52, intr 12, _ 3, log_page_size 5, _ 128, consumer_counter 24, _ 8, producer_counter 24,
        _ 128,
    }
    FlowTableContext {
        reformat_en 1, decap_en 1, sw_owner 1, termination_table 1, table_miss_action 4, level 8,
        rtc_valid 1, _ 7, log_size 8, _ 8, table_miss_id 24, _ 8, lag_master_next_table_id 24, _ 96,
        sw_owner_icm_or_rtc 128,
    }
    FlowMatchLyr24 {
        smac_47_16 32, smac_15_0 16, ethertype 16, dmac_47_16 32, dmac_15_0 16, first_prio 3,
        first_cfi 1, first_vid 12, ip_protocol 8, ip_dscp 6, ip_ecn 2, cvlan_tag 1, svlan_tag 1,
        frag 1, ip_version 4, tcp_flags 9, tcp_sport 16, tcp_dport 16, l4_type 2, _ 14, ipv4_ihl 4,
        _ 4, ttl_hoplimit 8, udp_sport 16, udp_dport 16, src_ipv4_src_ipv6 128,
        dst_ipv4_dst_ipv6 128,
    }
    FlowMatchMisc {
        gre_c_present 1, _ 1, gre_k_present 1, gre_s_present 1, source_vhca_port 4, source_sqn 24,
        source_eswitch_owner_vhca_id 16, source_port 16, outer_second_prio 3, outer_second_cfi 1,
        outer_second_vid 12, inner_second_prio 3, inner_second_cfi 1, inner_second_vid 12,
        outer_second_cvlan_tag 1, inner_second_cvlan_tag 1, outer_second_svlan_tag 1,
        inner_second_svlan_tag 1, _ 12, gre_protocol 16, gre_key 32, vxlan_vni 24, bth_opcode 8,
        geneve_vni 24, _ 6, geneve_tlv_option_0_exist 1, geneve_oam 1, _ 12,
        outer_ipv6_flow_label 20, _ 12, inner_ipv6_flow_label 20, _ 10, geneve_opt_len 6,
        geneve_protocol_type 16, _ 8, bth_dst_qp 24, inner_esp_spi 32, outer_esp_spi 32, _ 96,
    }
    FlowMatchParam {
        outer_headers (FlowMatchLyr24), misc_parameters (FlowMatchMisc),
        inner_headers (FlowMatchLyr24), misc_parameters_2 512, misc_parameters_3 512,
        misc_parameters_4 512, misc_parameters_5 512, _ 512,
    }
    FlowContext {
        push_vlan 32, group_id 32, _ 8, flow_tag 24, _ 16, action 16, extended_destination 1,
        uplink_hairpin_en 1, flow_source 2, encrypt_decrypt_type 4, destination_list_size 24, _ 8,
        flow_counter_list_size 24, packet_reformat_id 32, modify_header_id 32, push_vlan_2 32,
        encrypt_decrypt_obj_id 32, _ 192, match_value (FlowMatchParam), execute_aso 256, _ 1280,
    }
    FlowDestination {
        destination_type 8, destination_id 24, destination_eswitch_owner_vhca_id_valid 1,
        packet_reformat 1, _ 6, destination_table_type 8, destination_eswitch_owner_vhca_id 16,
    }
    FlowCounterEntry { flow_counter_id 32, _ 32 }
    Mkc {
        _ 1, free 1, _ 1, access_mode_4_2 3, _ 7, relaxed_ordering_write 1, _ 1,
        small_fence_on_rdma_read_response 1, umr_en 1, a 1, rw 1, rr 1, lw 1, lr 1,
        access_mode_1_0 2, _ 2, ma_translation_mode 2, _ 4, qpn 24, mkey_7_0 8, _ 32, length64 1,
        bsf_en 1, sync_umr 1, _ 2, expected_sigerr_count 1, _ 1, en_rinval 1, pd 24, start_addr 64,
        len 64, bsf_octword_size 32, _ 96, crossing_target_vhca_id 16, _ 16,
        translations_octword_size 32, _ 25, relaxed_ordering_read 1, log_page_size 6, _ 32,
    }
    Mtt { ptag_63_32 32, ptag_31_8 24, _ 6, wr_en 1, rd_en 1 }
    Ads {
        fl 1, free_ar 1, _ 14, pkey_index 16, plane_index 8, grh 1, mlid 7, rlid 16, ack_timeout 5,
        _ 3, src_addr_index 8, _ 4, stat_rate 4, hop_limit 8, _ 4, tclass 8, flow_label 20,
        rgid_rip 128, _ 4, f_dscp 1, f_ecn 1, _ 1, f_eth_prio 1, ecn 2, dscp 6, udp_sport 16,
        dei_cfi 1, eth_prio 3, sl 4, vhca_port_num 8, rmac_47_32 16, rmac_31_0 32,
    }
    Qpc {
        state 4, lag_tx_port_affinity 4, st 8, _ 2, isolate_vl_tc 1, pm_state 2, _ 1,
        req_e2e_credit_mode 2, offload_type 4, end_padding_mode 2, _ 2, wq_signature 1,
        block_lb_mc 1, atomic_like_write_en 1, latency_sensitive 1, _ 1, drain_sigerr 1, _ 2, pd 24,
        mtu 3, log_msg_max 5, _ 1, log_rq_size 4, log_rq_stride 3, no_sq 1, log_sq_size 4, _ 1,
        retry_mode 2, ts_format 2, _ 1, rlky 1, ulp_stateless_offload_mode 4, counter_set_id 8,
        uar_page 24, _ 8, user_index 24, _ 3, log_page_size 5, remote_qpn 24,
        primary_address_path (Ads), secondary_address_path (Ads), log_ack_req_freq 4, _ 4,
        log_sra_max 3, _ 2, retry_count 3, rnr_retry 3, _ 1, fre 1, cur_rnr_retry 3,
        cur_retry_count 3, _ 45, next_send_psn 24, _ 3, log_num_dci_stream_channels 5, cqn_snd 24,
        _ 3, log_num_dci_errored_streams 5, deth_sqpn 24, _ 40, last_acked_psn 24, _ 8, ssn 24, _ 8,
        log_rra_max 3, _ 1, atomic_mode 4, rre 1, rwe 1, rae 1, _ 1, page_offset 6, _ 3,
        cd_slave_receive 1, cd_slave_send 1, cd_master 1, _ 3, min_rnr_nak 5, next_rcv_psn 24, _ 8,
        xrcd 24, _ 8, cqn_rcv 24, dbr_addr 64, q_key 32, _ 5, rq_type 3, srqn_rmpn_xrqn 24, _ 8,
        rmsn 24, hw_sq_wqebb_counter 16, sw_sq_wqebb_counter 16, hw_rq_counter 32, sw_rq_counter 32,
        _ 47, cgs 1, cs_req 8, cs_res 8, dc_access_key 64, _ 3, dbr_umem_valid 1, _ 188,
    }
    Tirc {
        _ 32, disp_type 4, tls_en 1, _ 95, lro_timeout_period_usecs 16, packet_merge_mask 4,
        lro_max_ip_payload_size 8, _ 72, inline_rqn 24, rx_hash_symmetric 1, _ 1,
        tunneled_offload_en 1, _ 5, indirect_table 24, rx_hash_fn 4, _ 2, self_lb_block 2,
        transport_domain 24, rx_hash_toeplitz_key 320, rx_hash_field_selector_outer 32,
        rx_hash_field_selector_inner 32, _ 1216,
    }
    Tisc {
        strict_lag_tx_port_affinity 1, tls_en 1, _ 2, lag_tx_port_affinity 4, _ 4, prio 4, _ 280,
        transport_domain 24, _ 8, underlay_qpn 24, _ 8, pd 24, _ 896,
    }
    Rqtc {
        _ 165, list_q_type 3, _ 8, rqt_max_size 16, rq_vhca_id_format 1, _ 15, rqt_actual_size 16,
        _ 1696,
    }
    RqNum { _ 8, rq_num 24 }
    NicVportContext {
        _ 5, min_wqe_inline_mode 3, _ 21, disable_mc_local_lb 1, disable_uc_local_lb 1, roce_en 1,
        arm_change_event 1, _ 26, event_on_mtu 1, event_on_promisc_change 1, event_on_vlan_change 1,
        event_on_mc_address_change 1, event_on_uc_address_change 1, vhca_id_type 1, _ 11,
        affiliation_criteria 4, affiliated_vhca_id 16, _ 161, sd_group 3, _ 44, mtu 16,
        system_image_guid 64, port_guid 64, node_guid 64, _ 320, qkey_violation_counter 16, _ 1072,
        promisc_uc 1, promisc_mc 1, promisc_all 1, _ 2, allowed_list_type 3, _ 12,
        allowed_list_size 12, permanent_address 64, _ 32,
    }
    RoceAddress {
        source_l3_address 128, _ 3, vlan_valid 1, vlan_id 12, source_mac_47_32 16,
        source_mac_31_0 32, _ 20, roce_l3_type 4, roce_version 8, _ 32,
    }
    Wq {
        wq_type 4, wq_signature 1, end_padding_mode 2, cd_slave 1, _ 24, hds_skip_first_sge 1,
        log2_hds_buf_size 3, _ 7, page_offset 5, lwm 16, _ 8, pd 24, _ 8, uar_page 24, dbr_addr 64,
        hw_counter 32, sw_counter 32, _ 12, log_wq_stride 4, _ 3, log_wq_pg_sz 5, _ 3, log_wq_sz 5,
        dbr_umem_valid 1, wq_umem_valid 1, _ 1, log_hairpin_num_packets 5, _ 3,
        log_hairpin_data_sz 5, _ 4, log_wqe_num_of_strides 4, two_byte_shift_en 1, _ 4,
        log_wqe_stride_size 3, dbr_umem_id 32, wq_umem_id 32, wq_umem_offset 64, headers_mkey 32,
        shampo_enable 1, _ 4, log_reservation_size 3, _ 5, log_max_num_of_packets_per_reservation 3,
        _ 6, log_headers_entry_size 2, _ 4, log_headers_buffer_entry_num 4, _ 1024,
    }
    Sqc {
        rlky 1, cd_master 1, fre 1, flush_in_error_en 1, allow_multi_pkt_send_wqe 1,
        min_wqe_inline_mode 3, state 4, reg_umr 1, allow_swp 1, hairpin 1, non_wire 1, _ 10,
        ts_format 2, _ 12, user_index 24, _ 8, cqn 24, _ 8, hairpin_peer_rq 24, _ 16,
        hairpin_peer_vhca 16, _ 40, ts_cqe_to_dest_cqn 24, _ 16, packet_pacing_rate_limit_index 16,
        tis_lst_sz 16, qos_queue_group_id 16, _ 72, tis_num_0 24, wq (Wq),
    }
    Rqc {
        rlky 1, delay_drop_en 1, scatter_fcs 1, vsd 1, mem_rq_type 4, state 4, _ 1,
        flush_in_error_en 1, hairpin 1, _ 11, ts_format 2, _ 12, user_index 24, _ 8, cqn 24,
        counter_set_id 8, _ 32, rmpn 24, _ 8, hairpin_peer_sq 24, _ 16, hairpin_peer_vhca 16, _ 70,
        shampo_no_match_alignment_granularity 2, _ 6, shampo_match_criteria_type 2,
        reservation_timeout 16, _ 64, wq (Wq),
    }
    Rmpc { _ 8, state 4, _ 20, basic_cyclic_rcv_wqe 1, _ 351, wq (Wq) }
    XrcSrqc {
        state 4, log_xrc_srq_size 4, _ 24, wq_signature 1, cont_srq 1, _ 1, rlky 1,
        basic_cyclic_rcv_wqe 1, log_rq_stride 3, xrcd 24, page_offset 6, _ 1, dbr_umem_valid 1,
        cqn 24, _ 32, user_index_equal_xrc_srqn 1, _ 1, log_page_size 6, user_index 24, _ 40, pd 24,
        lwm 16, wqe_cnt 16, _ 64, db_record_addr_h 32, db_record_addr_l 30, _ 130,
    }
}
