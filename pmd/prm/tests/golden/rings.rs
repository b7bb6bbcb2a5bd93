//! Queue entries as literal bytes. Positions: reference 6.1 to 6.10.

use crate::golden;
use ferrocx_prm::cqe::{Cqe64, ErrCqe, MiniCqe};
use ferrocx_prm::eqe::*;
use ferrocx_prm::wqe::{AddressVector, Atomic, Ctrl, Data, Eth, InlineHeader, Next};
use ferrocx_prm::wqe::{MaskedCompareSwap, MaskedCompareSwap32, MaskedFetchAdd, MaskedFetchAdd32};
use ferrocx_prm::wqe::{Raddr, UmrCtrl, Xrc};

golden! {
    cqe64: Cqe64 {
        "000: 1100f334 00145e1c 482cd2ba 56adad9b"
        "010: 845b0000 6ba52f87 1b28c5fe 03e72d2d"
        "020: f25c0643 83251113 00000000 f6c473f3"
        "030: 446c571c c056525a f8db5b74 903b82a6"
    } = {
        tls_offload: 0x2;
        outer_l3_tunneled: true;
        wqe_id: 0xf334;
        lro_tcppsh: false;
        lro_min_ttl: 0x14;
        lro_tcp_win: 0x5e1c;
        lro_ack_seq_num: 0x482c_d2ba;
        rx_hash_result: 0x56ad_ad9b;
        rx_hash_l4: 0x2;
        rx_hash_l3: 0x1;
        ml_path: 0x5b;
        check_sum: 0x6ba5;
        slid: 0x2f87;
        grh: 0x1;
        sl: 0xb;
        rqpn: 0x28_c5fe;
        l4_ok: false;
        l3_ok: true;
        l2_ok: true;
        ip_frag: true;
        l4_hdr_type: 0x6;
        l3_hdr_type: 0x1;
        ip_ext_opts: true;
        cv: true;
        vlan_info: 0x2d2d;
        lro_num_seg: 0xf2;
        srqn_uidx: 0x5c_0643;
        imm_inval_pkey: 0x8325_1113;
        byte_cnt: 0xf6c4_73f3;
        timestamp: 0x446c_571c_c056_525a;
        sop_qpn_opcode: 0xf8;
        sop_drop_qpn: 0xdb_5b74;
        wqe_counter: 0x903b;
        signature: 0x82;
        opcode: 0xa;
        format: 0x1;
        se: true;
        owner: false;
    }

    err_cqe: ErrCqe {
        "020: 00666bd0 00000000 00000000 00000000"
        "030: 00000000 8708584a 3dff5035 cfcd4c25"
    } = {
        srqn_uidx: 0x66_6bd0;
        hw_error_syndrome: 0x87;
        hw_syndrome_type: 0x8;
        vendor_err_synd: 0x58;
        syndrome: 0x4a;
        s_wqe_opcode: 0x3d;
        qpn: 0xff_5035;
        wqe_counter: 0xcfcd;
        signature: 0x4c;
        opcode: 0x2;
        format: 0x1;
        owner: true;
    }

    mini_cqe: MiniCqe {
        "000: 87621d1a e46fa962"
    } = {
        rx_hash_result: 0x8762_1d1a;
        byte_cnt: 0xe46f_a962;
    }

    eqe: Eqe {
        "000: 00b80055 00000000 00000000 00000000"
        "020: 444b525a 636c757e 88939ea9 b4c0cdda"
        "030: e7f40211 202f3e4e 5f708192 00008500"
    } = {
        event_type: 0xb8;
        event_sub_type: 0x55;
        event_data:
            [0x44, 0x4b, 0x52, 0x5a, 0x63, 0x6c, 0x75, 0x7e, 0x88, 0x93, 0x9e, 0xa9,
             0xb4, 0xc0, 0xcd, 0xda, 0xe7, 0xf4, 0x02, 0x11, 0x20, 0x2f, 0x3e, 0x4e,
             0x5f, 0x70, 0x81, 0x92];
        signature: 0x85;
        owner: false;
    }

    event_completion: EventCompletion {
        "010: 00000000 00000000 0094494b"
    } = {
        cqn: 0x94_494b;
    }

    event_queue: EventQueue {
        "010: 00000000 13000000 001b2ea8"
    } = {
        queue_type: 0x13;
        number: 0x1b_2ea8;
    }

    event_cq_error: EventCqError {
        "000: 00983774 00000000 00000070 00000000"
    } = {
        cqn: 0x98_3774;
        syndrome: 0x70;
    }

    event_port_change: EventPortChange {
        "000: 00000000 00000000 30000000 00000000"
    } = {
        port_num: 0x3;
    }

    event_command: EventCommand {
        "000: c1ef33cb 00000000 00000000 00000000"
    } = {
        vector: 0xc1ef_33cb;
    }

    event_page_request: EventPageRequest {
        "000: 400073d1 73ac2411 00000000 00000000"
    } = {
        ec_function: false;
        release_all: true;
        function_id: 0x73d1;
        num_pages: 0x73ac_2411;
    }

    ctrl: Ctrl {
        "000: 4c4ede65 c9b5ea27 0f426b68 fbb18719"
    } = {
        opmod: 0x4c;
        wqe_index: 0x4ede;
        opcode: 0x65;
        qpn: 0xc9_b5ea;
        ds: 0x27;
        signature: 0xf;
        dci_stream: 0x426b;
        fm: 0x3;
        ce: 0x2;
        se: false;
        imm: 0xfbb1_8719;
    }

    eth: Eth {
        "000: ebc60c32 00208ff8 05dbe4d3 5ff5daf1"
    } = {
        swp_outer_l4_offset: 0xeb;
        swp_outer_l3_offset: 0xc6;
        swp_inner_l4_offset: 0xc;
        swp_inner_l3_offset: 0x32;
        l4_csum: false;
        l3_csum: false;
        l4_inner_csum: false;
        l3_inner_csum: false;
        swp_outer_l4_udp: true;
        swp_outer_l3_ipv6: false;
        swp_inner_l4_udp: false;
        swp_inner_l3_ipv6: false;
        mss: 0x8ff8;
        flow_table_metadata: 0x5db_e4d3;
        inline_hdr_sz: 0x5ff5;
        inline_hdr_start: 0xdaf1;
    }

    data: Data {
        "000: 7b6626ce 1f0c3607 5eca9891 0b34772b"
    } = {
        byte_count: 0x7b66_26ce;
        lkey: 0x1f0c_3607;
        addr: 0x5eca_9891_0b34_772b;
    }

    inline_header: InlineHeader {
        "000: 800003e9"
    } = {
        inline: true;
        byte_count: 0x3e9;
    }

    raddr: Raddr {
        "000: 3ba5e30e f9895032 41b783bb 00000000"
    } = {
        raddr: 0x3ba5_e30e_f989_5032;
        rkey: 0x41b7_83bb;
    }

    next: Next {
        "000: 00003249 20000000 00000000 00000000"
    } = {
        next_wqe_index: 0x3249;
        signature: 0x20;
    }

    umr_ctrl: UmrCtrl {
        "000: 78000000 ef9d854a 5bb17a2d c321f189"
        "010: 552c1df8 00000000 00000000 00000000"
    } = {
        inline: false;
        check_not_free: true;
        check_free: true;
        translation_offset_en: true;
        check_qpn: true;
        xlt_octowords: 0xef9d;
        xlt_offset_15_0: 0x854a;
        mkey_mask: 0x5bb1_7a2d_c321_f189;
        xlt_offset_47_16: 0x552c_1df8;
    }

    address_vector: AddressVector {
        "000: 6bb929e7 00000000 008442bf 4edffc06"
        "010: 00000000 d4dbe2ea f3fc0615 0474bfa8"
        "020: 373e454d 565f6871 7b86919c a7b3c0cd"
    } = {
        qkey: 0x6bb9_29e7;
        ext: false;
        dqp_dct: 0x84_42bf;
        stat_rate: 0x4;
        sl: 0xe;
        fl: true;
        mlid: 0x5f;
        udp_sport_rlid: 0xfc06;
        rmac: [0xd4, 0xdb, 0xe2, 0xea, 0xf3, 0xfc];
        tclass: 0x6;
        hop_limit: 0x15;
        grh: false;
        src_addr_index: 0x47;
        flow_label: 0x4_bfa8;
        rgid:
            [0x37, 0x3e, 0x45, 0x4d, 0x56, 0x5f, 0x68, 0x71, 0x7b, 0x86, 0x91, 0x9c,
             0xa7, 0xb3, 0xc0, 0xcd];
    }

    atomic: Atomic {
        "000: fe86a884 00c50e2b 8dc3df9a d2b4f8bd"
    } = {
        swap_add: 0xfe86_a884_00c5_0e2b;
        compare: 0x8dc3_df9a_d2b4_f8bd;
    }

    masked_compare_swap: MaskedCompareSwap {
        "000: 5004daad 9583c1e8 def2ea38 7c680bab"
        "010: c2afe88e 38f68c85 347d66af 6a401c96"
    } = {
        swap: 0x5004_daad_9583_c1e8;
        compare: 0xdef2_ea38_7c68_0bab;
        swap_mask: 0xc2af_e88e_38f6_8c85;
        compare_mask: 0x347d_66af_6a40_1c96;
    }

    masked_compare_swap32: MaskedCompareSwap32 {
        "000: 5004daad 9583c1e8 def2ea38 7c680bab"
    } = {
        swap: 0x5004_daad;
        compare: 0x9583_c1e8;
        swap_mask: 0xdef2_ea38;
        compare_mask: 0x7c68_0bab;
    }

    masked_fetch_add: MaskedFetchAdd {
        "000: c2afe88e 38f68c85 347d66af 6a401c96"
    } = {
        add: 0xc2af_e88e_38f6_8c85;
        field_boundary: 0x347d_66af_6a40_1c96;
    }

    masked_fetch_add32: MaskedFetchAdd32 {
        "000: c2afe88e 38f68c85 00000000 00000000"
    } = {
        add: 0xc2af_e88e;
        field_boundary: 0x38f6_8c85;
    }

    xrc: Xrc {
        "000: 00a2f6a4 00000000 00000000 00000000"
    } = {
        xrc_srqn: 0xa2_f6a4;
    }
}
