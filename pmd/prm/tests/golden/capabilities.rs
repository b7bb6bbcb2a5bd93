//! Capability pages as literal bytes. Positions: reference 5.10 and 5.11.

use crate::golden;
use ferrocx_prm::caps::{AtomicCap, EthCap, FlowTableProps, HcaCap, RoceCap};

golden! {
    hca_cap: HcaCap {
        "000: 00000000 800041a4 00000000 00000000"
        "010: 15170010 00090000 f4f2000c d53b0018"
        "020: cde6a717 003b001c 0026002e a0014ec0"
        "030: 622c2012 f7cb41d1 1e0e2000 f0df0002"
        "040: 006065e4 c3398209 002780da c20f0000"
        "050: 00005efa 0000e062 00002b07 0167db46"
        "060: 00000050 120f0005 00b3b9af 1403011d"
        "070: 8c0f1e09 9408180b 00000005 a018080c"
        "080: 8116d575 92afc60c 60000000 1803b863"
        "090: 1600292f 00000000 4f35cd74 9b28a87a"
        "0a0: 00000000 8827d866 00000000 00000000"
        "0b0: 00000000 00000001 1b9e9a1c 00000000"
        "0c0: 00001c00 00000000 00000000 00000000"
    } = {
        hca_cap_2, with_hca_cap_2: true;
        vhca_id, with_vhca_id: 0x41a4;
        log_max_srq_sz, with_log_max_srq_sz: 0x15;
        log_max_qp_sz, with_log_max_qp_sz: 0x17;
        event_cap, with_event_cap: false;
        log_max_qp, with_log_max_qp: 0x10;
        log_max_srq, with_log_max_srq: 0x9;
        max_sgl_for_optimized_performance, with_max_sgl_for_optimized_performance: 0xf4;
        log_max_cq_sz, with_log_max_cq_sz: 0xf2;
        relaxed_ordering_write_umr, with_relaxed_ordering_write_umr: false;
        relaxed_ordering_read_umr, with_relaxed_ordering_read_umr: false;
        log_max_cq, with_log_max_cq: 0xc;
        log_max_eq_sz, with_log_max_eq_sz: 0xd5;
        relaxed_ordering_write, with_relaxed_ordering_write: false;
        relaxed_ordering_read, with_relaxed_ordering_read: false;
        log_max_mkey, with_log_max_mkey: 0x3b;
        fast_teardown, with_fast_teardown: true;
        log_max_eq, with_log_max_eq: 0x8;
        max_indirection, with_max_indirection: 0xcd;
        fixed_buffer_size, with_fixed_buffer_size: true;
        log_max_mrw_sz, with_log_max_mrw_sz: 0x66;
        force_teardown, with_force_teardown: true;
        log_max_bsf_list_size, with_log_max_bsf_list_size: 0x27;
        umr_extended_translation_offset, with_umr_extended_translation_offset: false;
        null_mkey, with_null_mkey: false;
        log_max_klm_list_size, with_log_max_klm_list_size: 0x17;
        log_max_ra_req_dc, with_log_max_ra_req_dc: 0x3b;
        log_max_ra_res_dc, with_log_max_ra_res_dc: 0x1c;
        release_all_pages, with_release_all_pages: false;
        roce_accl, with_roce_accl: false;
        log_max_ra_req_qp, with_log_max_ra_req_qp: 0x26;
        log_max_ra_res_qp, with_log_max_ra_res_qp: 0x2e;
        end_pad, with_end_pad: true;
        cc_query_allowed, with_cc_query_allowed: false;
        cc_modify_allowed, with_cc_modify_allowed: true;
        start_pad, with_start_pad: false;
        cache_line_128byte, with_cache_line_128byte: false;
        qcam_reg, with_qcam_reg: true;
        gid_table_size, with_gid_table_size: 0x4ec0;
        out_of_seq_cnt, with_out_of_seq_cnt: false;
        vport_counters, with_vport_counters: true;
        retransmission_q_counters, with_retransmission_q_counters: true;
        debug, with_debug: false;
        max_qp_cnt, with_max_qp_cnt: 0x22c;
        pkey_table_size, with_pkey_table_size: 0x2012;
        vport_group_manager, with_vport_group_manager: true;
        vhca_group_manager, with_vhca_group_manager: true;
        ib_virt, with_ib_virt: true;
        eth_virt, with_eth_virt: true;
        ets, with_ets: true;
        nic_flow_table, with_nic_flow_table: true;
        eswitch_manager, with_eswitch_manager: true;
        device_memory, with_device_memory: true;
        mcam_reg, with_mcam_reg: true;
        pcam_reg, with_pcam_reg: false;
        local_ca_ack_delay, with_local_ca_ack_delay: 0xb;
        port_module_event, with_port_module_event: false;
        enhanced_error_q_counters, with_enhanced_error_q_counters: true;
        ports_check, with_ports_check: false;
        port_type, with_port_type: 0x1;
        num_ports, with_num_ports: 0xd1;
        log_max_msg, with_log_max_msg: 0x1e;
        max_tc, with_max_tc: 0xe;
        dcbx, with_dcbx: false;
        general_notification_event, with_general_notification_event: true;
        stat_rate_support, with_stat_rate_support: 0xf0df;
        cqe_version, with_cqe_version: 0x2;
        compact_address_vector, with_compact_address_vector: false;
        striding_rq, with_striding_rq: false;
        umr_modify_entity_size_disabled, with_umr_modify_entity_size_disabled: false;
        umr_modify_atomic_disabled, with_umr_modify_atomic_disabled: false;
        umr_indirect_mkey_disabled, with_umr_indirect_mkey_disabled: true;
        umr_fence, with_umr_fence: 0x2;
        cmdif_checksum, with_cmdif_checksum: 0x1;
        sigerr_cqe, with_sigerr_cqe: true;
        wq_signature, with_wq_signature: false;
        sctr_data_cqe, with_sctr_data_cqe: true;
        sho, with_sho: true;
        tph, with_tph: true;
        rf, with_rf: true;
        dct, with_dct: true;
        qos, with_qos: false;
        eth_net_offloads, with_eth_net_offloads: false;
        roce, with_roce: true;
        atomic, with_atomic: false;
        cq_oi, with_cq_oi: true;
        cq_resize, with_cq_resize: true;
        cq_moderation, with_cq_moderation: false;
        cq_eq_remap, with_cq_eq_remap: true;
        pg, with_pg: true;
        block_lb_mc, with_block_lb_mc: false;
        scqe_break_moderation, with_scqe_break_moderation: true;
        cq_period_start_from_cqe, with_cq_period_start_from_cqe: true;
        cd, with_cd: true;
        apm, with_apm: false;
        vector_calc, with_vector_calc: true;
        umr_ptr_rlky, with_umr_ptr_rlky: true;
        imaicl, with_imaicl: false;
        qkv, with_qkv: true;
        pkv, with_pkv: false;
        set_deth_sqpn, with_set_deth_sqpn: false;
        xrc, with_xrc: true;
        ud, with_ud: false;
        uc, with_uc: false;
        rc, with_rc: true;
        uar_4k, with_uar_4k: false;
        uar_sz, with_uar_sz: 0x27;
        port_selection_cap, with_port_selection_cap: true;
        umem_uid_0, with_umem_uid_0: false;
        log_pg_sz, with_log_pg_sz: 0xda;
        bf, with_bf: true;
        driver_version, with_driver_version: true;
        pad_tx_eth_packet, with_pad_tx_eth_packet: false;
        mkey_by_name, with_mkey_by_name: true;
        log_bf_reg_size, with_log_bf_reg_size: 0xf;
        max_wqe_sz_sq, with_max_wqe_sz_sq: 0x5efa;
        max_wqe_sz_rq, with_max_wqe_sz_rq: 0xe062;
        max_wqe_sz_sq_dc, with_max_wqe_sz_sq_dc: 0x2b07;
        max_qp_mcg, with_max_qp_mcg: 0x167_db46;
        log_max_mcg, with_log_max_mcg: 0x50;
        log_max_transport_domain, with_log_max_transport_domain: 0x12;
        log_max_pd, with_log_max_pd: 0xf;
        log_max_xrcd, with_log_max_xrcd: 0x5;
        log_max_flow_counter_bulk, with_log_max_flow_counter_bulk: 0xb3;
        max_flow_counter_15_0, with_max_flow_counter_15_0: 0xb9af;
        log_max_rq, with_log_max_rq: 0x14;
        log_max_sq, with_log_max_sq: 0x3;
        log_max_tir, with_log_max_tir: 0x1;
        log_max_tis, with_log_max_tis: 0x1d;
        basic_cyclic_rcv_wqe, with_basic_cyclic_rcv_wqe: true;
        log_max_rmp, with_log_max_rmp: 0xc;
        log_max_rqt, with_log_max_rqt: 0xf;
        log_max_rqt_size, with_log_max_rqt_size: 0x1e;
        log_max_tis_per_sq, with_log_max_tis_per_sq: 0x9;
        ext_stride_num_range, with_ext_stride_num_range: true;
        roce_rw_supported, with_roce_rw_supported: false;
        log_max_stride_sz_rq, with_log_max_stride_sz_rq: 0x14;
        log_min_stride_sz_rq, with_log_min_stride_sz_rq: 0x8;
        log_max_stride_sz_sq, with_log_max_stride_sz_sq: 0x18;
        log_min_stride_sz_sq, with_log_min_stride_sz_sq: 0xb;
        log_max_wq_sz, with_log_max_wq_sz: 0x5;
        nic_vport_change_event, with_nic_vport_change_event: true;
        disable_local_lb_uc, with_disable_local_lb_uc: false;
        disable_local_lb_mc, with_disable_local_lb_mc: true;
        log_max_vlan_list, with_log_max_vlan_list: 0x18;
        log_max_current_mc_list, with_log_max_current_mc_list: 0x8;
        log_max_current_uc_list, with_log_max_current_uc_list: 0xc;
        general_obj_types, with_general_obj_types: 0x8116_d575_92af_c60c;
        sq_ts_format, with_sq_ts_format: 0x1;
        rq_ts_format, with_rq_ts_format: 0x2;
        log_max_uctx, with_log_max_uctx: 0x18;
        log_max_umem, with_log_max_umem: 0x3;
        max_num_eqs, with_max_num_eqs: 0xb863;
        log_max_l2_table, with_log_max_l2_table: 0x16;
        log_uar_page_sz, with_log_uar_page_sz: 0x292f;
        device_frequency_mhz, with_device_frequency_mhz: 0x4f35_cd74;
        device_frequency_khz, with_device_frequency_khz: 0x9b28_a87a;
        num_of_uars_per_page, with_num_of_uars_per_page: 0x8827_d866;
        adv_virtualization, with_adv_virtualization: false;
        cqe_128_always, with_cqe_128_always: false;
        cqe_compression, with_cqe_compression: true;
        cqe_compression_timeout, with_cqe_compression_timeout: 0x1b9e;
        cqe_compression_max_num, with_cqe_compression_max_num: 0x9a1c;
        num_vhca_ports, with_num_vhca_ports: 0x1c;
    }

    eth_cap: EthCap {
        "000: b802935a e000d900 00000bef 00000000"
        "030: 646b727a 838c959e a8b3bec9 d4e0edfa"
    } = {
        csum_cap, with_csum_cap: true;
        vlan_cap, with_vlan_cap: false;
        lro_cap, with_lro_cap: true;
        lro_psh_flag, with_lro_psh_flag: true;
        lro_time_stamp, with_lro_time_stamp: true;
        wqe_vlan_insert, with_wqe_vlan_insert: false;
        self_lb_en_modifiable, with_self_lb_en_modifiable: false;
        max_lso_cap, with_max_lso_cap: 0x2;
        multi_pkt_send_wqe, with_multi_pkt_send_wqe: 0x2;
        wqe_inline_mode, with_wqe_inline_mode: 0x1;
        rss_ind_tbl_cap, with_rss_ind_tbl_cap: 0x3;
        reg_umr_sq, with_reg_umr_sq: false;
        scatter_fcs, with_scatter_fcs: true;
        enhanced_multi_pkt_send_wqe, with_enhanced_multi_pkt_send_wqe: false;
        tunnel_lso_const_out_ip_id, with_tunnel_lso_const_out_ip_id: true;
        tunnel_lro_gre, with_tunnel_lro_gre: true;
        tunnel_lro_vxlan, with_tunnel_lro_vxlan: false;
        tunnel_stateless_gre, with_tunnel_stateless_gre: true;
        tunnel_stateless_vxlan, with_tunnel_stateless_vxlan: false;
        swp, with_swp: true;
        swp_csum, with_swp_csum: true;
        swp_lso, with_swp_lso: true;
        cqe_checksum_full, with_cqe_checksum_full: false;
        max_vxlan_udp_ports, with_max_vxlan_udp_ports: 0xd9;
        lro_min_mss_size, with_lro_min_mss_size: 0xbef;
        lro_timer_supported_periods, with_lro_timer_supported_periods:
            [0x64, 0x6b, 0x72, 0x7a, 0x83, 0x8c, 0x95, 0x9e, 0xa8, 0xb3, 0xbe, 0xc9,
             0xd4, 0xe0, 0xed, 0xfa];
    }

    roce_cap: RoceCap {
        "000: 06000002 00000000 00000000 00000000"
        "010: 00050056 000004cc a3b8d4a3 00006f29"
    } = {
        roce_apm, with_roce_apm: false;
        sw_r_roce_src_udp_port, with_sw_r_roce_src_udp_port: false;
        fl_rc_qp_when_roce_disabled, with_fl_rc_qp_when_roce_disabled: true;
        fl_rc_qp_when_roce_enabled, with_fl_rc_qp_when_roce_enabled: true;
        qp_ts_format, with_qp_ts_format: 0x2;
        l3_type, with_l3_type: 0x5;
        roce_version, with_roce_version: 0x56;
        r_roce_dest_udp_port, with_r_roce_dest_udp_port: 0x4cc;
        r_roce_max_src_udp_port, with_r_roce_max_src_udp_port: 0xa3b8;
        r_roce_min_src_udp_port, with_r_roce_min_src_udp_port: 0xd4a3;
        roce_address_table_size, with_roce_address_table_size: 0x6f29;
    }

    atomic_cap: AtomicCap {
        "000: 00000000 00000000 40000000 00000000"
        "010: 0000ea70 00003543 000051ad 00000000"
    } = {
        atomic_req_8b_endianness_mode, with_atomic_req_8b_endianness_mode: 0x1;
        supported_atomic_req_8b_endianness_mode_1, with_supported_atomic_req_8b_endianness_mode_1:
            false;
        atomic_operations, with_atomic_operations: 0xea70;
        atomic_size_qp, with_atomic_size_qp: 0x3543;
        atomic_size_dc, with_atomic_size_dc: 0x51ad;
    }

    flow_table_props: FlowTableProps {
        "000: 85b00400 30000065 00000000 000000d8"
        "010: 00000c58 000000a7 00000000 00000000"
        "020: 3a414850 59626b74 7e89949f aab6c3d0"
        "030: fe050c14 1d262f38 424d5863 6e7a8794"
    } = {
        ft_support, with_ft_support: true;
        flow_counter, with_flow_counter: false;
        flow_modify_en, with_flow_modify_en: false;
        modify_root, with_modify_root: false;
        identified_miss_table_mode, with_identified_miss_table_mode: true;
        flow_table_modify, with_flow_table_modify: false;
        reformat, with_reformat: true;
        decap, with_decap: true;
        pop_vlan, with_pop_vlan: true;
        push_vlan, with_push_vlan: true;
        ignore_flow_level, with_ignore_flow_level: true;
        table_miss_action_domain, with_table_miss_action_domain: false;
        log_max_ft_size, with_log_max_ft_size: 0x30;
        max_ft_level, with_max_ft_level: 0x65;
        log_max_ft_num, with_log_max_ft_num: 0xd8;
        log_max_flow_counter, with_log_max_flow_counter: 0xc;
        log_max_destination, with_log_max_destination: 0x58;
        log_max_flow, with_log_max_flow: 0xa7;
        ft_field_support, with_ft_field_support:
            [0x3a, 0x41, 0x48, 0x50, 0x59, 0x62, 0x6b, 0x74, 0x7e, 0x89, 0x94, 0x9f,
             0xaa, 0xb6, 0xc3, 0xd0];
        ft_field_bitmask_support, with_ft_field_bitmask_support:
            [0xfe, 0x05, 0x0c, 0x14, 0x1d, 0x26, 0x2f, 0x38, 0x42, 0x4d, 0x58, 0x63,
             0x6e, 0x7a, 0x87, 0x94];
    }
}
