//! Capability pages as literal bytes. Positions: reference 5.10 and 5.11.

use crate::golden;
use ferrocx_prm::caps::{AtomicCap, DeviceMemCap, EthCap, FlowTableProps, HcaCap, QosCap, RoceCap};

golden! {
    hca_cap: HcaCap {
        "000: 00000000 800041a4 00000000 00000000"
        "010: 15170010 00090000 f4f2000c d53b0018"
        "020: cde6a717 003b001c 0026002e a0014ec0"
        "030: 6a2c2012 f7cb41d1 1e0e2000 f0df0002"
        "040: 006065e4 c3398209 002780da c20f0000"
        "050: 00005efa 0000e062 00002b07 0167db46"
        "060: 0000a750 120f0005 00b3b9af 1403011d"
        "070: 8c0f1e09 9408180b 00000005 a018080c"
        "080: 8116d575 92afc60c 60000000 1803b863"
        "090: 1600292f 00000000 4f35cd74 9b28a87a"
        "0a0: 00000000 8827d866 00000000 00000000"
        "0b0: 00000000 00000009 1b9e9a1c 00000000"
        "0c0: 00001c00 00000000 00000000 00000000"
        "0d0: 00000000 c3a1f05e 00000000 00000000"
    } = {
        hca_cap_2: true;
        vhca_id: 0x41a4;
        log_max_srq_sz: 0x15;
        log_max_qp_sz: 0x17;
        event_cap: false;
        log_max_qp: 0x10;
        log_max_srq: 0x9;
        max_sgl_for_optimized_performance: 0xf4;
        log_max_cq_sz: 0xf2;
        relaxed_ordering_write_umr: false;
        relaxed_ordering_read_umr: false;
        log_max_cq: 0xc;
        log_max_eq_sz: 0xd5;
        relaxed_ordering_write: false;
        relaxed_ordering_read: false;
        log_max_mkey: 0x3b;
        fast_teardown: true;
        log_max_eq: 0x8;
        max_indirection: 0xcd;
        fixed_buffer_size: true;
        log_max_mrw_sz: 0x66;
        force_teardown: true;
        log_max_bsf_list_size: 0x27;
        umr_extended_translation_offset: false;
        null_mkey: false;
        log_max_klm_list_size: 0x17;
        log_max_ra_req_dc: 0x3b;
        log_max_ra_res_dc: 0x1c;
        release_all_pages: false;
        roce_accl: false;
        log_max_ra_req_qp: 0x26;
        log_max_ra_res_qp: 0x2e;
        end_pad: true;
        cc_query_allowed: false;
        cc_modify_allowed: true;
        start_pad: false;
        cache_line_128byte: false;
        qcam_reg: true;
        gid_table_size: 0x4ec0;
        out_of_seq_cnt: false;
        vport_counters: true;
        retransmission_q_counters: true;
        debug: false;
        modify_rq_counter_set_id: true;
        max_qp_cnt: 0x22c;
        pkey_table_size: 0x2012;
        vport_group_manager: true;
        vhca_group_manager: true;
        ib_virt: true;
        eth_virt: true;
        ets: true;
        nic_flow_table: true;
        eswitch_manager: true;
        device_memory: true;
        mcam_reg: true;
        pcam_reg: false;
        local_ca_ack_delay: 0xb;
        port_module_event: false;
        enhanced_error_q_counters: true;
        ports_check: false;
        port_type: 0x1;
        num_ports: 0xd1;
        log_max_msg: 0x1e;
        max_tc: 0xe;
        dcbx: false;
        general_notification_event: true;
        stat_rate_support: 0xf0df;
        cqe_version: 0x2;
        compact_address_vector: false;
        striding_rq: false;
        umr_modify_entity_size_disabled: false;
        umr_modify_atomic_disabled: false;
        umr_indirect_mkey_disabled: true;
        umr_fence: 0x2;
        cmdif_checksum: 0x1;
        sigerr_cqe: true;
        wq_signature: false;
        sctr_data_cqe: true;
        sho: true;
        tph: true;
        rf: true;
        dct: true;
        qos: false;
        eth_net_offloads: false;
        roce: true;
        atomic: false;
        cq_oi: true;
        cq_resize: true;
        cq_moderation: false;
        cq_eq_remap: true;
        pg: true;
        block_lb_mc: false;
        scqe_break_moderation: true;
        cq_period_start_from_cqe: true;
        cd: true;
        apm: false;
        vector_calc: true;
        umr_ptr_rlky: true;
        imaicl: false;
        qkv: true;
        pkv: false;
        set_deth_sqpn: false;
        xrc: true;
        ud: false;
        uc: false;
        rc: true;
        uar_4k: false;
        uar_sz: 0x27;
        port_selection_cap: true;
        umem_uid_0: false;
        log_pg_sz: 0xda;
        bf: true;
        driver_version: true;
        pad_tx_eth_packet: false;
        mkey_by_name: true;
        log_bf_reg_size: 0xf;
        max_wqe_sz_sq: 0x5efa;
        max_wqe_sz_rq: 0xe062;
        max_wqe_sz_sq_dc: 0x2b07;
        max_qp_mcg: 0x167_db46;
        flow_counter_bulk_alloc: 0xa7;
        log_max_mcg: 0x50;
        log_max_transport_domain: 0x12;
        log_max_pd: 0xf;
        log_max_xrcd: 0x5;
        log_max_flow_counter_bulk: 0xb3;
        max_flow_counter_15_0: 0xb9af;
        log_max_rq: 0x14;
        log_max_sq: 0x3;
        log_max_tir: 0x1;
        log_max_tis: 0x1d;
        basic_cyclic_rcv_wqe: true;
        log_max_rmp: 0xc;
        log_max_rqt: 0xf;
        log_max_rqt_size: 0x1e;
        log_max_tis_per_sq: 0x9;
        ext_stride_num_range: true;
        roce_rw_supported: false;
        log_max_stride_sz_rq: 0x14;
        log_min_stride_sz_rq: 0x8;
        log_max_stride_sz_sq: 0x18;
        log_min_stride_sz_sq: 0xb;
        log_max_wq_sz: 0x5;
        nic_vport_change_event: true;
        disable_local_lb_uc: false;
        disable_local_lb_mc: true;
        log_max_vlan_list: 0x18;
        log_max_current_mc_list: 0x8;
        log_max_current_uc_list: 0xc;
        general_obj_types: 0x8116_d575_92af_c60c;
        sq_ts_format: 0x1;
        rq_ts_format: 0x2;
        log_max_uctx: 0x18;
        log_max_umem: 0x3;
        max_num_eqs: 0xb863;
        log_max_l2_table: 0x16;
        log_uar_page_sz: 0x292f;
        device_frequency_mhz: 0x4f35_cd74;
        device_frequency_khz: 0x9b28_a87a;
        num_of_uars_per_page: 0x8827_d866;
        adv_virtualization: false;
        mini_cqe_resp_stride_index: true;
        cqe_128_always: false;
        cqe_compression: true;
        cqe_compression_timeout: 0x1b9e;
        cqe_compression_max_num: 0x9a1c;
        num_vhca_ports: 0x1c;
        uctx_cap: 0xc3a1_f05e;
    }

    eth_cap: EthCap {
        "000: b802935a e000d900 00000bef 00000000"
        "030: 646b727a 838c959e a8b3bec9 d4e0edfa"
    } = {
        csum_cap: true;
        vlan_cap: false;
        lro_cap: true;
        lro_psh_flag: true;
        lro_time_stamp: true;
        wqe_vlan_insert: false;
        self_lb_en_modifiable: false;
        max_lso_cap: 0x2;
        multi_pkt_send_wqe: 0x2;
        wqe_inline_mode: 0x1;
        rss_ind_tbl_cap: 0x3;
        reg_umr_sq: false;
        scatter_fcs: true;
        enhanced_multi_pkt_send_wqe: false;
        tunnel_lso_const_out_ip_id: true;
        tunnel_lro_gre: true;
        tunnel_lro_vxlan: false;
        tunnel_stateless_gre: true;
        tunnel_stateless_vxlan: false;
        swp: true;
        swp_csum: true;
        swp_lso: true;
        cqe_checksum_full: false;
        max_vxlan_udp_ports: 0xd9;
        lro_min_mss_size: 0xbef;
        lro_timer_supported_periods:
            [0x64, 0x6b, 0x72, 0x7a, 0x83, 0x8c, 0x95, 0x9e, 0xa8, 0xb3, 0xbe, 0xc9,
             0xd4, 0xe0, 0xed, 0xfa];
    }

    roce_cap: RoceCap {
        "000: 06000002 00000000 00000000 00000000"
        "010: 00050056 000004cc a3b8d4a3 00006f29"
    } = {
        roce_apm: false;
        sw_r_roce_src_udp_port: false;
        fl_rc_qp_when_roce_disabled: true;
        fl_rc_qp_when_roce_enabled: true;
        qp_ts_format: 0x2;
        l3_type: 0x5;
        roce_version: 0x56;
        r_roce_dest_udp_port: 0x4cc;
        r_roce_max_src_udp_port: 0xa3b8;
        r_roce_min_src_udp_port: 0xd4a3;
        roce_address_table_size: 0x6f29;
    }

    qos_cap: QosCap {
        "000: 000000b5"
    } = {
        flow_meter_reg_id: 0xb5;
    }

    device_mem_cap: DeviceMemCap {
        "000: 80000000 00150063 01020304 05060708"
        "010: 11121314 15161718 00000000 00000000"
        "040: 21222324"
    } = {
        memic: true;
        log_min_memic_alloc_size: 0x15;
        log_max_memic_addr_alignment: 0x63;
        memic_bar_start_addr: 0x0102_0304_0506_0708;
        memic_bar_size: 0x1112_1314;
        max_memic_size: 0x1516_1718;
        memic_operations: 0x2122_2324;
    }

    atomic_cap: AtomicCap {
        "000: 00000000 00000000 40000000 00000000"
        "010: 0000ea70 00003543 000051ad 00000000"
    } = {
        atomic_req_8b_endianness_mode: 0x1;
        supported_atomic_req_8b_endianness_mode_1:
            false;
        atomic_operations: 0xea70;
        atomic_size_qp: 0x3543;
        atomic_size_dc: 0x51ad;
    }

    flow_table_props: FlowTableProps {
        "000: 85b00400 30000065 00000000 000000d8"
        "010: 00000c58 000000a7 00000000 00000000"
        "020: 3a414850 59626b74 7e89949f aab6c3d0"
        "030: fe050c14 1d262f38 424d5863 6e7a8794"
    } = {
        ft_support: true;
        flow_counter: false;
        flow_modify_en: false;
        modify_root: false;
        identified_miss_table_mode: true;
        flow_table_modify: false;
        reformat: true;
        decap: true;
        pop_vlan: true;
        push_vlan: true;
        ignore_flow_level: true;
        table_miss_action_domain: false;
        log_max_ft_size: 0x30;
        max_ft_level: 0x65;
        log_max_ft_num: 0xd8;
        log_max_flow_counter: 0xc;
        log_max_destination: 0x58;
        log_max_flow: 0xa7;
        ft_field_support:
            [0x3a, 0x41, 0x48, 0x50, 0x59, 0x62, 0x6b, 0x74, 0x7e, 0x89, 0x94, 0x9f,
             0xaa, 0xb6, 0xc3, 0xd0];
        ft_field_bitmask_support:
            [0xfe, 0x05, 0x0c, 0x14, 0x1d, 0x26, 0x2f, 0x38, 0x42, 0x4d, 0x58, 0x63,
             0x6e, 0x7a, 0x87, 0x94];
    }
}
