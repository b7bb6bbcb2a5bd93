//! Management datagrams as literal bytes. Positions: Linux `ibta_vol1_c12.h`, IBTA vol. 1, 12.6.

use crate::{golden, pattern};
use ferrocx_prm::mad::*;

golden! {
    cm_drep: CmDrep {
        "000: 52e6b438 f2a74de4 4d545b63 6c757e87"
        "010: 919ca7b2 bdc9d6e3 f0fd0b1a 29384757"
        "020: 68798a9b adc0d3e6 f90d2237 4c61778e"
        "030: a5bcd3eb 041d364f 69849fba d5f10e2b"
        "040: 486583a2 c1e0ff1f 406182a3 c5e80b2e"
        "050: 51759abf e4092f56 7da4cbf3 1c456e97"
        "060: c1ec1742 6d99c6f3 204d7baa d9083767"
        "070: 98c9fa2b 5d90c3f6 295d92c7 fc31679e"
        "080: d50c437b b4ed265f 99d40f4a 85c1fe3b"
        "090: 78b5f332 71b0ef2f 70b1f233 75b8fb3e"
        "0a0: 81c50a4f 94d91f66 adf43b83 cc155ea7"
        "0b0: f13c87d2 1d69b603 509deb3a 89d82777"
        "0c0: c8196abb 0d60b306 59ad0257 ac0157ae"
        "0d0: 055cb30b 64bd166f c9247fda 3591ee4b"
        "0e0: a80563c2 2180df3f"
    } = {
        local_comm_id: 0x52e6_b438;
        remote_comm_id: 0xf2a7_4de4;
        private_data: pattern(77);
    }
    cm_dreq: CmDreq {
        "000: 6513270e a6a3a450 0c5c7f00 252c333b"
        "010: 444d565f 69747f8a 95a1aebb c8d5e3f2"
        "020: 01101f2f 40516273 8598abbe d1e5fa0f"
        "030: 24394f66 7d94abc3 dcf50e27 415c7792"
        "040: adc9e603 203d5b7a 99b8d7f7 18395a7b"
        "050: 9dc0e306 294d7297 bce1072e 557ca3cb"
        "060: f41d466f 99c4ef1a 45719ecb f8255382"
        "070: b1e00f3f 70a1d203 35689bce 01356a9f"
        "080: d4093f76 ade41b53 8cc5fe37 71ace722"
        "090: 5d99d613 508dcb0a 4988c707 4889ca0b"
        "0a0: 4d90d316 599de227 6cb1f73e 85cc135b"
        "0b0: a4ed367f c9145faa f5418edb 2875c312"
        "0c0: 61b0ff4f a0f14293 e5388bde 3185da2f"
        "0d0: 84d92f86 dd348be3 3c95ee47 a1fc57b2"
        "0e0: 0d69c623 80dd3b9a"
    } = {
        local_comm_id: 0x6513_270e;
        remote_comm_id: 0xa6a3_a450;
        remote_qpn_eecn: 0xc_5c7f;
        private_data: pattern(37);
    }
    cm_mra: CmMra {
        "000: d23f0824 892f902b 00581d24 2b333c45"
        "010: 4e57616c 77828d99 a6b3c0cd dbeaf908"
        "020: 17273849 5a6b7d90 a3b6c9dd f2071c31"
        "030: 475e758c a3bbd4ed 061f3954 6f8aa5c1"
        "040: defb1835 537291b0 cfef1031 527395b8"
        "050: dbfe2145 6a8fb4d9 ff264d74 9bc3ec15"
        "060: 3e6791bc e7123d69 96c3f01d 4b7aa9d8"
        "070: 07376899 cafb2d60 93c6f92d 6297cc01"
        "080: 376ea5dc 134b84bd f62f69a4 df1a5591"
        "090: ce0b4885 c3024180 bfff4081 c2034588"
        "0a0: cb0e5195 da1f64a9 ef367dc4 0b539ce5"
        "0b0: 2e77c10c 57a2ed39 86d3206d bb0a59a8"
        "0c0: f74798e9 3a8bdd30 83d6297d d2277cd1"
        "0d0: 277ed52c 83db348d e63f99f4 4faa0561"
        "0e0: be1b78d5 3392f150"
    } = {
        local_comm_id: 0xd23f_0824;
        remote_comm_id: 0x892f_902b;
        message_mraed: 0x0;
        service_timeout: 0xb;
        private_data: pattern(29);
    }
    cm_rej: CmRej {
        "000: e8e25d94 81e74ef5 00081600 dee5ecf4"
        "010: fd060f18 222d3843 4e5a6774 818e9cab"
        "020: bac9d8e8 f90a1b2c 3e516477 8a9eb3c8"
        "030: ddf2081f 364d647c 95aec7e0 fa15304b"
        "040: 66829fbc d9f61433 527190b0 d1f21334"
        "050: 56799cbf d6dde4ec f5fe0710 1a25303b"
        "060: 46525f6c 798694a3 b2c1d0e0 f1021324"
        "070: 36495c6f 8296abc0 d5ea0017 2e455c74"
        "080: 8da6bfd8 f20d2843 5e7a97b4 d1ee0c2b"
        "090: 4a6988a8 c9ea0b2c 4e7194b7 dafe2348"
        "0a0: 6d92b8df 062d547c a5cef720 4a75a0cb"
        "0b0: f6224f7c a9d60433 6291c0f0 215283b4"
        "0c0: e6194c7f b2e61b50 85baf027 5e95cc04"
        "0d0: 3d76afe8 225d98d3 0e4a87c4 013e7cbb"
        "0e0: fa3978b8 f93a7bbc"
    } = {
        local_comm_id: 0xe8e2_5d94;
        remote_comm_id: 0x81e7_4ef5;
        message_rejected: 0x0;
        rejected_info_length: 0x4;
        reason: 0x1600;
        ari: pattern(222);
        private_data: pattern(214);
    }
    cm_rep: CmRep {
        "000: 11e20b8f 3d9c1724 1738f7d9 8d116e6c"
        "010: 0f21ddd3 90c1921f f239a5e0 95e60af5"
        "020: 93bd04cf cbd2d9e1 eaf3fc05 0f1a2530"
        "030: 3b475461 6e7b8998 a7b6c5d5 e6f70819"
        "040: 2b3e5164 778ba0b5 cadff50c 233a5169"
        "050: 829bb4cd e7021d38 536f8ca9 c6e30120"
        "060: 3f5e7d9d bedf0021 436689ac cff3183d"
        "070: 6287add4 fb224971 9ac3ec15 3f6a95c0"
        "080: eb174471 9ecbf928 5786b5e5 164778a9"
        "090: db0e4174 a7db1045 7aafe51c 538ac1f9"
        "0a0: 326ba4dd 17528dc8 033f7cb9 f63371b0"
        "0b0: ef2e6dad ee2f70b1 f33679bc ff4388cd"
        "0c0: 12579de4 2b72b901 4a93dc25 6fba0550"
        "0d0: 9be73481 ce1b69b8 0756a5f5 4697e839"
        "0e0: 8bde3184 d72b80d5"
    } = {
        local_comm_id: 0x11e2_0b8f;
        remote_comm_id: 0x3d9c_1724;
        local_q_key: 0x1738_f7d9;
        local_qpn: 0x8d_116e;
        vendor_id_h: 0x6c;
        local_ee_context_number: 0xf_21dd;
        vendor_id_m: 0xd3;
        starting_psn: 0x90_c192;
        vendor_id_l: 0x1f;
        responder_resources: 0xf2;
        initiator_depth: 0x39;
        target_ack_delay: 0x14;
        failover_accepted: 0x2;
        end_to_end_flow_control: true;
        rnr_retry_count: 0x7;
        srq: false;
        local_ca_guid: 0x95e6_0af5_93bd_04cf;
        private_data: pattern(203);
    }
    cm_req: CmReq {
        "000: 0cb1e29c 00f9ebda 0becd7b0 3898d190"
        "010: dbc496cb 8e81973e 00000000 2217bead"
        "020: 4a23d56b 24ede68a 1e27a193 d0eda8a9"
        "030: 1a619d30 8c38b64c 20272e36 3f48515a"
        "040: 646f7a85 909ca9b6 1e252c34 3d464f58"
        "050: 626d7883 8e9aa7b4 9e77600d 7fae80c0"
        "060: a0a7aeb6 bfc8d1da e4effa05 101c2936"
        "070: 43505e6d 7c8b9aaa bbccddee 00132639"
        "080: 4c60758a 9fb4cae1 f80f263e eef5fc04"
        "090: 0d161f28 323d4853 5e6a7784 919eacbb"
        "0a0: cad9e8f8 091a2b3c 4e617487 9aaec3d8"
        "0b0: ed02182f 465d748c a5bed7f0 0a25405b"
        "0c0: 7692afcc e9062443 6281a0c0 e1022344"
        "0d0: 6689accf f2163b60 85aad0f7 1e456c94"
        "0e0: bde60f38 628db8e3"
    } = {
        local_comm_id: 0xcb1_e29c;
        vendor_id: 0xf9_ebda;
        service_id: 0x0bec_d7b0_3898_d190;
        local_ca_guid: 0xdbc4_96cb_8e81_973e;
        local_q_key: 0x2217_bead;
        local_qpn: 0x4a_23d5;
        responder_resources: 0x6b;
        local_eecn: 0x24_ede6;
        initiator_depth: 0x8a;
        remote_eecn: 0x1e_27a1;
        remote_cm_response_timeout: 0x12;
        transport_service_type: 0x1;
        end_to_end_flow_control: true;
        starting_psn: 0xd0_eda8;
        local_cm_response_timeout: 0x15;
        retry_count: 0x1;
        partition_key: 0x1a61;
        path_packet_payload_mtu: 0x9;
        rdc_exists: true;
        rnr_retry_count: 0x5;
        max_cm_retries: 0x3;
        srq: false;
        extended_transport_type: 0x0;
        primary_local_port_lid: 0x8c38;
        primary_remote_port_lid: 0xb64c;
        primary_local_port_gid: pattern(32);
        primary_remote_port_gid: pattern(30);
        primary_flow_label: 0x9_e776;
        primary_packet_rate: 0xd;
        primary_traffic_class: 0x7f;
        primary_hop_limit: 0xae;
        primary_sl: 0x8;
        primary_subnet_local: false;
        primary_local_ack_timeout: 0x18;
        alternate_path: pattern(160);
        private_data: pattern(238);
    }
    cm_rtu: CmRtu {
        "000: 95e761d1 ec66a787 e8eff6fe 07101922"
        "010: 2c37424d 5864717e 8b98a6b5 c4d3e2f2"
        "020: 03142536 485b6e81 94a8bdd2 e7fc1229"
        "030: 40576e86 9fb8d1ea 041f3a55 708ca9c6"
        "040: e3001e3d 5c7b9aba dbfc1d3e 6083a6c9"
        "050: ec10355a 7fa4caf1 183f668e b7e00932"
        "060: 5c87b2dd 0834618e bbe81645 74a3d202"
        "070: 336495c6 f82b5e91 c4f82d62 97cc0239"
        "080: 70a7de16 4f88c1fa 346faae5 205c99d6"
        "090: 13508ecd 0c4b8aca 0b4c8dce 105396d9"
        "0a0: 1c60a5ea 2f74ba01 488fd61e 67b0f942"
        "0b0: 8cd7226d b804519e eb3886d5 2473c212"
        "0c0: 63b40556 a8fb4ea1 f4489df2 479cf249"
        "0d0: a0f74ea6 ff58b10a 64bf1a75 d02c89e6"
        "0e0: 43a0fe5d bc1b7ada"
    } = {
        local_comm_id: 0x95e7_61d1;
        remote_comm_id: 0xec66_a787;
        private_data: pattern(232);
    }
    cm_sidr_rep: CmSidrRep {
        "000: 5c90a958 4c3fcb5c 2e0531b2 3e7d1bfb"
        "010: c7a2ea20 14f4733f 99a0a7af b8c1cad3"
        "020: dde8f3fe 0915222f 3c495766 758493a3"
        "030: b4c5d6e7 f90c1f32 45596e83 98adc3da"
        "040: f1081f37 5069829b b5d0eb06 213d5a77"
        "050: 94b1cfee 0d2c4b6b 8cadceef 1134577a"
        "060: fd040b13 1c252e37 414c5762 6d798693"
        "070: a0adbbca d9e8f707 18293a4b 5d708396"
        "080: a9bdd2e7 fc11273e 556c839b b4cde6ff"
        "090: 19344f6a 85a1bedb f8153352 7190afcf"
        "0a0: f0113253 7598bbde 01254a6f 94b9df06"
        "0b0: 2d547ba3 ccf51e47 719cc7f2 1d4976a3"
        "0c0: d0fd2b5a 89b8e717 4879aadb 0d4073a6"
        "0d0: d90d4277 ace1174e 85bcf32b 649dd60f"
        "0e0: 4984bffa 3571aeeb"
    } = {
        request_id: 0x5c90_a958;
        status: 0x4c;
        additional_information_length: 0x3f;
        vendor_id_h: 0xcb5c;
        qpn: 0x2e_0531;
        vendor_id_l: 0xb2;
        service_id: 0x3e7d_1bfb_c7a2_ea20;
        q_key: 0x14f4_733f;
        additional_information: pattern(153);
        private_data: pattern(253);
    }
    cm_sidr_req: CmSidrReq {
        "000: e00902c7 57ee0000 72e6cc3a babced20"
        "010: 939aa1a9 b2bbc4cd d7e2edf8 030f1c29"
        "020: 36435160 6f7e8d9d aebfd0e1 f306192c"
        "030: 3f53687d 92a7bdd4 eb021931 4a637c95"
        "040: afcae500 1b375471 8eabc9e8 07264565"
        "050: 86a7c8e9 0b2e5174 97bbe005 2a4f759c"
        "060: c3ea1139 628bb4dd 07325d88 b3df0c39"
        "070: 6693c1f0 1f4e7dad de0f4071 a3d6093c"
        "080: 6fa3d80d 4277ade4 1b5289c1 fa336ca5"
        "090: df1a5590 cb074481 befb3978 b7f63575"
        "0a0: b6f73879 bbfe4184 c70b5095 da1f65ac"
        "0b0: f33a81c9 125ba4ed 3782cd18 63affc49"
        "0c0: 96e33180 cf1e6dbd 0e5fb001 53a6f94c"
        "0d0: 9ff3489d f2479df4 4ba2f951 aa035cb5"
        "0e0: 0f6ac520 7bd73491"
    } = {
        request_id: 0xe009_02c7;
        partition_key: 0x57ee;
        service_id: 0x72e6_cc3a_babc_ed20;
        private_data: pattern(147);
    }
    cma_header: CmaHeader {
        "000: 9bf012bd 3c434a52 5b646d76 808b96a1"
        "010: acb8c5d2 d6dde4ec f5fe0710 1a25303b"
        "020: 46525f6c"
    } = {
        cma_version: 0x9b;
        ip_version: 0xf;
        port: 0x12bd;
        source: pattern(60);
        destination: pattern(214);
    }
    mad_header: MadHeader {
        "000: 2ac15726 eeea7d2c 0a097c97 6bf46c69"
        "010: f6460000 ab1031d0"
    } = {
        base_version: 0x2a;
        mgmt_class: 0xc1;
        class_version: 0x57;
        method: 0x26;
        status: 0xeeea;
        class_specific: 0x7d2c;
        transaction_id: 0x0a09_7c97_6bf4_6c69;
        attr_id: 0xf646;
        attr_mod: 0xab10_31d0;
    }
}
