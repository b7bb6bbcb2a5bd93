//! Contexts as literal bytes. Positions: reference 4.5, 4.6 and 5.1 to 5.9.

use crate::golden;
use ferrocx_prm::cqc::Cqc;
use ferrocx_prm::eqc::Eqc;
use ferrocx_prm::mkey::{Klm, Ksm, Mkc, Mtt};
use ferrocx_prm::qpc::{Ads, Qpc};
use ferrocx_prm::srqc::XrcSrqc;
use ferrocx_prm::tirc::{RqNum, Rqtc, Tirc, Tisc};
use ferrocx_prm::vport::{NicVportContext, RoceAddress};
use ferrocx_prm::wqc::{Rmpc, Rqc, Sqc, Wq};

golden! {
    mkc: Mkc {
        "000: 4c00c510 a0121884 00000000 248984f3"
        "010: 3cbd02db 66634f07 c59cee4a 8be5ee8a"
        "020: 1b8d628b 00000000 00000000 00000000"
        "030: 00000000 724509b0 0000005e 00000000"
    } = {
        free: true;
        access_mode_4_2: 0x3;
        relaxed_ordering_write: false;
        small_fence_on_rdma_read_response: false;
        umr_en: true;
        a: true;
        rw: false;
        rr: false;
        lw: false;
        lr: true;
        access_mode_1_0: 0x1;
        ma_translation_mode: 0x1;
        qpn: 0xa0_1218;
        mkey_7_0: 0x84;
        length64: false;
        bsf_en: false;
        sync_umr: true;
        expected_sigerr_count: true;
        en_rinval: false;
        pd: 0x89_84f3;
        start_addr: 0x3cbd_02db_6663_4f07;
        len: 0xc59c_ee4a_8be5_ee8a;
        bsf_octword_size: 0x1b8d_628b;
        translations_octword_size: 0x7245_09b0;
        relaxed_ordering_read: true;
        log_page_size: 0x1e;
    }

    mtt: Mtt {
        "000: 4a3b6362 a49afa32"
    } = {
        ptag_63_32: 0x4a3b_6362;
        ptag_31_3: 0x1493_5f46;
        wr_en: true;
        rd_en: false;
    }

    klm: Klm {
        "000: e566dfd5 c252927f c9df5493 5605ea76"
    } = {
        byte_count: 0xe566_dfd5;
        mkey: 0xc252_927f;
        va: 0xc9df_5493_5605_ea76;
    }

    ksm: Ksm {
        "000: 00000000 ddeccd4c 9eaa798f 51e9a8bc"
    } = {
        mkey: 0xddec_cd4c;
        va: 0x9eaa_798f_51e9_a8bc;
    }

    ads: Ads {
        "000: 8000d4ad 00705ffe e098085f 0353b0a2"
        "010: b8bfc6ce d7e0e9f2 fc07121d 2834414e"
        "020: 0db0b276 45de7f79 228372ff"
    } = {
        fl: true;
        free_ar: false;
        pkey_index: 0xd4ad;
        grh: false;
        mlid: 0x70;
        rlid: 0x5ffe;
        ack_timeout: 0x1c;
        src_addr_index: 0x98;
        stat_rate: 0x8;
        hop_limit: 0x5f;
        tclass: 0x35;
        flow_label: 0x3_b0a2;
        rgid_rip:
            [0xb8, 0xbf, 0xc6, 0xce, 0xd7, 0xe0, 0xe9, 0xf2, 0xfc, 0x07, 0x12, 0x1d,
             0x28, 0x34, 0x41, 0x4e];
        f_dscp: true;
        f_ecn: true;
        f_eth_prio: true;
        ecn: 0x2;
        dscp: 0x30;
        udp_sport: 0xb276;
        dei_cfi: false;
        eth_prio: 0x4;
        sl: 0x5;
        vhca_port_num: 0xde;
        rmac_47_32: 0x7f79;
        rmac_31_0: 0x2283_72ff;
    }

    qpc: Qpc {
        "000: 88522984 04480a54 6f41508d a35547ce"
        "010: 00d87190 0f573322 00000000 00001234"
        "060: 00000000 00000000 80000000 56789abd"
        "070: 70662c20 00000000 002a46f4 0bba5308"
        "080: 029a7b91 00000000 002e7d69 00975540"
        "090: 00818e43 128c9d97 0040ec95 001f86f8"
        "0a0: ecbfadaa ce4eba81 89bb1336 0606c048"
        "0b0: 00cbd566 fe87fdb4 5b909b2c e037f2a5"
        "0c0: 00000000 0000f56f 0171c263 1304636c"
        "0d0: 10000000 00000000 00000000 00000000"
        "0e0: 00000000 93d407b6"
    } = {
        state: 0x8;
        lag_tx_port_affinity: 0x8;
        st: 0x52;
        isolate_vl_tc: true;
        pm_state: 0x1;
        req_e2e_credit_mode: 0x1;
        offload_type: 0x8;
        end_padding_mode: 0x1;
        wq_signature: false;
        block_lb_mc: false;
        atomic_like_write_en: false;
        latency_sensitive: false;
        drain_sigerr: true;
        pd: 0x48_0a54;
        mtu: 0x3;
        log_msg_max: 0xf;
        log_rq_size: 0x8;
        log_rq_stride: 0x1;
        no_sq: false;
        log_sq_size: 0xa;
        ts_format: 0x2;
        rlky: false;
        ulp_stateless_offload_mode: 0xd;
        counter_set_id: 0xa3;
        uar_page: 0x55_47ce;
        user_index: 0xd8_7190;
        log_page_size: 0xf;
        remote_qpn: 0x57_3322;
        primary_address_path: Ads::zeroed().with_rlid(0x1234);
        secondary_address_path:
            Ads::zeroed().with_dei_cfi(true).with_rmac_31_0(0x5678_9abd);
        log_ack_req_freq: 0x7;
        log_sra_max: 0x3;
        retry_count: 0x6;
        rnr_retry: 0x1;
        fre: true;
        cur_rnr_retry: 0x4;
        cur_retry_count: 0x1;
        next_send_psn: 0x2a_46f4;
        log_num_dci_stream_channels: 0xb;
        cqn_snd: 0xba_5308;
        log_num_dci_errored_streams: 0x2;
        deth_sqpn: 0x9a_7b91;
        last_acked_psn: 0x2e_7d69;
        ssn: 0x97_5540;
        log_rra_max: 0x4;
        atomic_mode: 0x1;
        rre: true;
        rwe: false;
        rae: false;
        page_offset: 0x39;
        cd_slave_receive: false;
        cd_slave_send: true;
        cd_master: true;
        min_rnr_nak: 0x12;
        next_rcv_psn: 0x8c_9d97;
        xrcd: 0x40_ec95;
        cqn_rcv: 0x1f_86f8;
        dbr_addr: 0xecbf_adaa_ce4e_ba81;
        q_key: 0x89bb_1336;
        rq_type: 0x6;
        srqn_rmpn_xrqn: 0x6_c048;
        rmsn: 0xcb_d566;
        hw_sq_wqebb_counter: 0xfe87;
        sw_sq_wqebb_counter: 0xfdb4;
        hw_rq_counter: 0x5b90_9b2c;
        sw_rq_counter: 0xe037_f2a5;
        cgs: false;
        cs_req: 0xf5;
        cs_res: 0x6f;
        dc_access_key: 0x171_c263_1304_636c;
        dbr_umem_valid: true;
        dbr_umem_id: 0x93d4_07b6;
    }

    cqc: Cqc {
        "000: 42712101 5be01c2d 00000980 1722076e"
        "010: 09273b18 0cf841b0 08000000 00000000"
        "020: 0035d652 00163908 0023e7a7 00c3f74e"
        "030: 00000000 00000000 7267e11b 2968e213"
    } = {
        status: 0x4;
        dbr_umem_valid: true;
        apu_cq: false;
        cqe_sz: 0x3;
        cc: true;
        scqe_break_moderation_en: false;
        oi: false;
        cq_period_mode: 0x2;
        cqe_comp_en: false;
        mini_cqe_res_format: 0x2;
        st: 0x1;
        cqe_compression_layout: 0x1;
        dbr_umem_id: 0x5be0_1c2d;
        page_offset: 0x26;
        log_cq_size: 0x17;
        uar_page: 0x22_076e;
        cq_period: 0x927;
        cq_max_count: 0x3b18;
        c_eqn_or_apu_element: 0xcf8_41b0;
        log_page_size: 0x8;
        last_notified_index: 0x35_d652;
        last_solicit_index: 0x16_3908;
        consumer_counter: 0x23_e7a7;
        producer_counter: 0xc3_f74e;
        dbr_addr: 0x7267_e11b_2968_e213;
    }

    eqc: Eqc {
        "000: b0020c00 00000000 00000580 03f3e392"
        "010: 00000000 00000bcd 10000000 00000000"
        "020: 00000000 00000000 00ae1277 003f1dea"
    } = {
        status: 0xb;
        ec: false;
        oi: true;
        st: 0xc;
        page_offset: 0x16;
        log_eq_size: 0x3;
        uar_page: 0xf3_e392;
        intr: 0xbcd;
        log_page_size: 0x10;
        consumer_counter: 0xae_1277;
        producer_counter: 0x3f_1dea;
    }

    wq: Wq {
        "000: dd000000 600869db 00a9b9d1 00f36646"
        "010: b165addc 91636608 f63a1c26 6c4283a3"
        "020: 00051307 d81c0201 0522df7a 0a184e3b"
        "030: 6a011872 540c7eae 20cc08c9 83060202"
    } = {
        wq_type: 0xd;
        wq_signature: true;
        end_padding_mode: 0x2;
        cd_slave: true;
        hds_skip_first_sge: false;
        log2_hds_buf_size: 0x6;
        page_offset: 0x8;
        lwm: 0x69db;
        pd: 0xa9_b9d1;
        uar_page: 0xf3_6646;
        dbr_addr: 0xb165_addc_9163_6608;
        hw_counter: 0xf63a_1c26;
        sw_counter: 0x6c42_83a3;
        log_wq_stride: 0x5;
        log_wq_pg_sz: 0x13;
        log_wq_sz: 0x7;
        dbr_umem_valid: true;
        wq_umem_valid: true;
        log_hairpin_num_packets: 0x18;
        log_hairpin_data_sz: 0x1c;
        log_wqe_num_of_strides: 0x2;
        two_byte_shift_en: false;
        log_wqe_stride_size: 0x1;
        headers_mkey: 0x20cc_08c9;
        shampo_enable: true;
        log_reservation_size: 0x3;
        log_max_num_of_packets_per_reservation: 0x6;
        log_headers_entry_size: 0x2;
        log_headers_buffer_entry_num: 0x2;
        dbr_umem_id: 0x522_df7a;
        wq_umem_id: 0xa18_4e3b;
        wq_umem_offset: 0x6a01_1872_540c_7eae;
    }

    sqc: Sqc {
        "000: c32b0010 002b5c65 007e64ec 007388f4"
        "010: 00009967 00000000 0021a1e9 0000b781"
        "020: 4e607577 00000000 00000000 0079a0d2"
        "030: 00000000 00008421 00000000 00000000"
    } = {
        rlky: true;
        cd_master: true;
        fre: false;
        flush_in_error_en: false;
        allow_multi_pkt_send_wqe: false;
        min_wqe_inline_mode: 0x3;
        state: 0x2;
        reg_umr: true;
        allow_swp: false;
        hairpin: true;
        ts_format: 0x1;
        user_index: 0x2b_5c65;
        cqn: 0x7e_64ec;
        hairpin_peer_rq: 0x73_88f4;
        hairpin_peer_vhca: 0x9967;
        ts_cqe_to_dest_cqn: 0x21_a1e9;
        packet_pacing_rate_limit_index: 0xb781;
        tis_lst_sz: 0x4e60;
        qos_queue_group_id: 0x7577;
        tis_num_0: 0x79_a0d2;
        wq: Wq::zeroed().with_lwm(0x8421);
        non_wire: true;
    }

    rqc: Rqc {
        "000: 41e60010 00890c7a 00f73f87 ba000000"
        "010: 00cf6cf4 0061f548 0000601b 00000000"
        "020: 00000000 010135dd 00000000 00000000"
        "030: 00000000 00008421 00000000 00000000"
    } = {
        rlky: false;
        delay_drop_en: true;
        scatter_fcs: false;
        vsd: false;
        mem_rq_type: 0x1;
        state: 0xe;
        flush_in_error_en: true;
        hairpin: true;
        ts_format: 0x1;
        user_index: 0x89_0c7a;
        cqn: 0xf7_3f87;
        counter_set_id: 0xba;
        rmpn: 0xcf_6cf4;
        hairpin_peer_sq: 0x61_f548;
        hairpin_peer_vhca: 0x601b;
        shampo_no_match_alignment_granularity: 0x1;
        shampo_match_criteria_type: 0x1;
        reservation_timeout: 0x35dd;
        wq: Wq::zeroed().with_lwm(0x8421);
    }

    rmpc: Rmpc {
        "000: 00400000 80000000 00000000 00000000"
        "030: 00000000 00008421 00000000 00000000"
    } = {
        state: 0x4;
        basic_cyclic_rcv_wqe: true;
        wq: Wq::zeroed().with_lwm(0x8421);
    }

    tirc: Tirc {
        "000: 00000000 c8000000 00000000 00000000"
        "010: 0fe8c156 00000000 00000000 0042f935"
        "020: 80236e20 e1a0b6a4 858c939b a4adb6bf"
        "030: c9d4dfea f5010e1b 28354352 61707f8f"
        "040: a0b1c2d3 e5f80b1e 31455a6f 8499afc6"
        "050: fbbda010 0a18f64e 00000000 00000000"
    } = {
        disp_type: 0xc;
        tls_en: true;
        lro_timeout_period_usecs: 0xfe8c;
        packet_merge_mask: 0x1;
        lro_max_ip_payload_size: 0x56;
        inline_rqn: 0x42_f935;
        rx_hash_symmetric: true;
        tunneled_offload_en: false;
        indirect_table: 0x23_6e20;
        rx_hash_fn: 0xe;
        self_lb_block: 0x1;
        transport_domain: 0xa0_b6a4;
        rx_hash_toeplitz_key:
            [0x85, 0x8c, 0x93, 0x9b, 0xa4, 0xad, 0xb6, 0xbf, 0xc9, 0xd4, 0xdf, 0xea,
             0xf5, 0x01, 0x0e, 0x1b, 0x28, 0x35, 0x43, 0x52, 0x61, 0x70, 0x7f, 0x8f,
             0xa0, 0xb1, 0xc2, 0xd3, 0xe5, 0xf8, 0x0b, 0x1e, 0x31, 0x45, 0x5a, 0x6f,
             0x84, 0x99, 0xaf, 0xc6];
        rx_hash_field_selector_outer: 0xfbbd_a010;
        rx_hash_field_selector_inner: 0xa18_f64e;
    }

    tisc: Tisc {
        "000: c30d0000 00000000 00000000 00000000"
        "020: 00000000 002f7307 003f80f4 009fcd19"
    } = {
        strict_lag_tx_port_affinity: true;
        tls_en: true;
        lag_tx_port_affinity: 0x3;
        prio: 0xd;
        transport_domain: 0x2f_7307;
        underlay_qpn: 0x3f_80f4;
        pd: 0x9f_cd19;
    }

    rqtc: Rqtc {
        "010: 00000000 06003aae 00002463 00000000"
    } = {
        list_q_type: 0x6;
        rqt_max_size: 0x3aae;
        rqt_actual_size: 0x2463;
    }

    rq_num: RqNum {
        "000: 0036118d"
    } = {
        rq_num: 0x36_118d;
    }

    nic_vport_context: NicVportContext {
        "000: 06000006 80000013 00013582 00000000"
        "020: 10000000 00001040 b8bb28e7 5217ddeb"
        "030: 9d091bfb 13180d37 0147c93a c42c7605"
        "060: 00000000 00000000 b1890000 00000000"
        "0f0: e3000aa7 8b9299a1 aab3bcc5 00000000"
    } = {
        sd_group: 0x1;
        multi_prio_sq: false;
        min_wqe_inline_mode: 0x6;
        disable_mc_local_lb: true;
        disable_uc_local_lb: true;
        roce_en: false;
        arm_change_event: true;
        event_on: 0x13;
        vhca_id_type: false;
        affiliation_criteria: 0x1;
        affiliated_vhca_id: 0x3582;
        mtu: 0x1040;
        system_image_guid: 0xb8bb_28e7_5217_ddeb;
        port_guid: 0x9d09_1bfb_1318_0d37;
        node_guid: 0x147_c93a_c42c_7605;
        qkey_violation_counter: 0xb189;
        promisc_uc: true;
        promisc_mc: true;
        promisc_all: true;
        allowed_list_type: 0x3;
        allowed_list_size: 0xaa7;
        permanent_address: [0x8b, 0x92, 0x99, 0xa1, 0xaa, 0xb3, 0xbc, 0xc5];
    }

    roce_address: RoceAddress {
        "000: 4d545b63 6c757e87 919ca7b2 bdc9d6e3"
        "010: 1b32f2b6 0f9774d5 00000d95 00000000"
    } = {
        source_l3_address:
            [0x4d, 0x54, 0x5b, 0x63, 0x6c, 0x75, 0x7e, 0x87, 0x91, 0x9c, 0xa7, 0xb2,
             0xbd, 0xc9, 0xd6, 0xe3];
        vlan_valid: true;
        vlan_id: 0xb32;
        source_mac_47_32: 0xf2b6;
        source_mac_31_0: 0xf97_74d5;
        roce_l3_type: 0xd;
        roce_version: 0x95;
    }

    xrc_srqc: XrcSrqc {
        "000: dd000000 860bd537 2c8a8017 00000000"
        "010: 1d4a820b 00000000 00c08096 7e6a1d80"
        "020: 00000000 00000000 b40d29a6 0c89c5f0"
    } = {
        state: 0xd;
        log_xrc_srq_size: 0xd;
        wq_signature: true;
        cont_srq: false;
        rlky: false;
        basic_cyclic_rcv_wqe: false;
        log_rq_stride: 0x6;
        xrcd: 0xb_d537;
        page_offset: 0xb;
        cqn: 0x8a_8017;
        user_index_equal_xrc_srqn: false;
        log_page_size: 0x1d;
        user_index: 0x4a_820b;
        pd: 0xc0_8096;
        lwm: 0x7e6a;
        wqe_cnt: 0x1d80;
        db_record_addr_h: 0xb40d_29a6;
        db_record_addr_l: 0x322_717c;
    }
}
