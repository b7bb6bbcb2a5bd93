//! Steering contexts as literal bytes. Positions: reference 5.12.

use crate::{golden, pattern};
use ferrocx_prm::flow::*;

golden! {
    flow_table_context: FlowTableContext {
        "000: 7b4a00eb 0057c947 00927aee 00000000"
    } = {
        reformat_en: false;
        decap_en: true;
        sw_owner: true;
        termination_table: true;
        table_miss_action: 0xb;
        level: 0x4a;
        log_size: 0xeb;
        table_miss_id: 0x57_c947;
        lag_master_next_table_id: 0x92_7aee;
    }

    flow_match_lyr_2_4: FlowMatchLyr24 {
        "000: b92db64f bd4264a6 0dd5975b 6ba08ee9"
        "010: 59160e2f 3d99c0c2 0000b0aa ccdf94c0"
        "020: 888f969e a7b0b9c2 ccd7e2ed f804111e"
        "030: adb4bbc3 ccd5dee7 f1fc0712 1d293643"
    } = {
        smac_47_16: 0xb92d_b64f;
        smac_15_0: 0xbd42;
        ethertype: 0x64a6;
        dmac_47_16: 0xdd5_975b;
        dmac_15_0: 0x6ba0;
        first_prio: 0x4;
        first_cfi: false;
        first_vid: 0xee9;
        ip_protocol: 0x59;
        ip_dscp: 0x5;
        ip_ecn: 0x2;
        cvlan_tag: false;
        svlan_tag: false;
        frag: false;
        ip_version: 0x7;
        tcp_flags: 0x2f;
        tcp_sport: 0x3d99;
        tcp_dport: 0xc0c2;
        ipv4_ihl: 0xb;
        ttl_hoplimit: 0xaa;
        udp_sport: 0xccdf;
        udp_dport: 0x94c0;
        src_ipv4_src_ipv6:
            [0x88, 0x8f, 0x96, 0x9e, 0xa7, 0xb0, 0xb9, 0xc2, 0xcc, 0xd7, 0xe2, 0xed,
             0xf8, 0x04, 0x11, 0x1e];
        dst_ipv4_dst_ipv6:
            [0xad, 0xb4, 0xbb, 0xc3, 0xcc, 0xd5, 0xde, 0xe7, 0xf1, 0xfc, 0x07, 0x12,
             0x1d, 0x29, 0x36, 0x43];
    }

    flow_match_misc: FlowMatchMisc {
        "000: 00d7bf21 00000654 65110000 00002911"
        "010: 7a4da082 c7da8532 00000000 000870ad"
        "020: 00000000 00000000 0039f040 00000000"
    } = {
        source_sqn: 0xd7_bf21;
        source_port: 0x654;
        outer_second_prio: 0x3;
        outer_second_cfi: false;
        outer_second_vid: 0x511;
        gre_protocol: 0x2911;
        gre_key: 0x7a4d_a082;
        vxlan_vni: 0xc7_da85;
        bth_opcode: 0x32;
        outer_ipv6_flow_label: 0x8_70ad;
        bth_dst_qp: 0x39_f040;
    }

    flow_match_param: FlowMatchParam {
        "010: 00000000 00000000 000000c5 00000000"
        "050: 00000000 00000064 00000000 00000000"
        "090: 00000c00 00000000 00000000 00000000"
        "0c0: 2e353c44 4d565f68 727d8893 9eaab7c4"
        "0d0: d1deecfb 0a192838 495a6b7c 8ea1b4c7"
        "0e0: daee0318 2d42586f 869db4cc e5fe1730"
        "0f0: 4a65809b b6d2ef0c 29466483 a2c1e000"
        "100: 21426384 a6c9ec0f 32567ba0 c5ea1037"
        "110: 5e85acd4 fd264f78 a2cdf823 4e7aa7d4"
        "120: 012e5c8b bae91848 79aadb0c 3e71a4d7"
        "130: 0a3e73a8 dd12487f b6ed245c 95ce0740"
        "140: 7ab5f02b 66a2df1c 5996d413 5291d010"
        "150: 5192d314 5699dc1f 62a6eb30 75ba0047"
        "160: 8ed51c64 adf63f88 d21d68b3 fe4a97e4"
        "170: 317ecc1b 6ab90858 a9fa4b9c ee4194e7"
        "180: 3a8ee338 8de2388f e63d94ec 459ef750"
        "190: aa0560bb 1672cf2c 89e644a3 0261c020"
        "1a0: 81e243a4 0669cc2f 92f65bc0 258af057"
        "1b0: be258cf4 5dc62f98 026dd843 ae1a87f4"
        "1c0: 61ce3cab 1a89f868 d94abb2c 9e1184f7"
        "1d0: 6ade53c8 3db2289f 168d047c f56ee760"
        "1e0: da55d04b c642bf3c b936b433 b231b030"
        "1f0: b132b334 b639bc3f c246cb50 d55ae067"
    } = {
        outer_headers: FlowMatchLyr24::zeroed().with_ttl_hoplimit(0xc5);
        misc_parameters: FlowMatchMisc::zeroed().with_bth_opcode(0x64);
        inner_headers: FlowMatchLyr24::zeroed().with_ip_version(6);
        misc_2_to_6: pattern(0x2e);
    }

    flow_context: FlowContext {
        "000: 4d4793fd ec20a883 0073cb4e 00009f4f"
        "010: 9d670bf9 00dd495f f40d0644 016dc6a7"
        "020: f2902e0f 84948d5c 00000000 00000000"
        "0d0: 00000c00 00000000 00000000 00000000"
        "240: afb6bdc5 ced7e0e9 f3fe0914 1f2b3845"
        "250: 525f6d7c 8b9aa9b9 cadbecfd 0f223548"
    } = {
        push_vlan: 0x4d47_93fd;
        group_id: 0xec20_a883;
        flow_tag: 0x73_cb4e;
        action: 0x9f4f;
        extended_destination: true;
        flow_source: 0x1;
        encrypt_decrypt_type: 0xd;
        destination_list_size: 0x67_0bf9;
        flow_counter_list_size: 0xdd_495f;
        packet_reformat_id: 0xf40d_0644;
        modify_header_id: 0x16d_c6a7;
        push_vlan_2: 0xf290_2e0f;
        encrypt_decrypt_obj_id: 0x8494_8d5c;
        match_value:
            FlowMatchParam::zeroed()
                .with_inner_headers(FlowMatchLyr24::zeroed().with_ip_version(6));
        execute_aso:
            [0xaf, 0xb6, 0xbd, 0xc5, 0xce, 0xd7, 0xe0, 0xe9, 0xf3, 0xfe, 0x09, 0x14,
             0x1f, 0x2b, 0x38, 0x45, 0x52, 0x5f, 0x6d, 0x7c, 0x8b, 0x9a, 0xa9, 0xb9,
             0xca, 0xdb, 0xec, 0xfd, 0x0f, 0x22, 0x35, 0x48];
    }

    flow_destination: FlowDestination {
        "000: 0f800700 00000000"
    } = {
        destination_type: 0xf;
        destination_id: 0x80_0700;
    }

    flow_counter_entry: FlowCounterEntry {
        "000: 13b0bf6f 00000000"
    } = {
        flow_counter_id: 0x13b0_bf6f;
    }
}
