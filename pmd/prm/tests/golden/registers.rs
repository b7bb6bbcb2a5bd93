//! The command queue, BAR0, doorbells and registers as literal bytes.
//!
//! Positions: reference 1.1 to 1.3, 2.1, 2.2 and 4.7.

use crate::{golden, pattern};
use ferrocx_prm::cmd::{CommandEntry, InputHeader, Mailbox, OutputHeader};
use ferrocx_prm::init_seg::*;
use ferrocx_prm::reg::*;

golden! {
    command_entry: CommandEntry {
        "000: 56000000 4b6db422 2de0de75 dfe0de69"
        "010: eef5fc04 0d161f28 323d4853 5e6a7784"
        "020: 10171e26 2f38414a 545f6a75 808c99a6"
        "030: fd48a576 cc595c06 edd7bc81 ae9f0027"
    } = {
        command_type: 0x56;
        input_length: 0x4b6d_b422;
        input_mailbox_ptr: 0x2de0_de75_dfe0_de69;
        command_input_inline_data:
            [0xee, 0xf5, 0xfc, 0x04, 0x0d, 0x16, 0x1f, 0x28, 0x32, 0x3d, 0x48, 0x53,
             0x5e, 0x6a, 0x77, 0x84];
        command_output_inline_data:
            [0x10, 0x17, 0x1e, 0x26, 0x2f, 0x38, 0x41, 0x4a, 0x54, 0x5f, 0x6a, 0x75,
             0x80, 0x8c, 0x99, 0xa6];
        output_mailbox_ptr: 0xfd48_a576_cc59_5c06;
        output_length: 0xedd7_bc81;
        token: 0xae;
        signature: 0x9f;
        status: 0x13;
        ownership: true;
    }

    mailbox: Mailbox {
        "000: 1b222931 3a434c55 5f6a7580 8b97a4b1"
        "010: becbd9e8 f7061525 36475869 7b8ea1b4"
        "020: c7dbf005 1a2f455c 738aa1b9 d2eb041d"
        "030: 37526d88 a3bfdcf9 16335170 8faecded"
        "040: 0e2f5071 93b6d9fc 1f43688d b2d7fd24"
        "050: 4b7299c1 ea133c65 8fbae510 3b6794c1"
        "060: ee1b4978 a7d60535 6697c8f9 2b5e91c4"
        "070: f72b6095 caff356c a3da1149 82bbf42d"
        "080: 67a2dd18 538fcc09 4683c100 3f7ebdfd"
        "090: 3e7fc001 4386c90c 4f93d81d 62a7ed34"
        "0a0: 7bc20951 9ae32c75 bf0a55a0 eb3784d1"
        "0b0: 1e6bb908 57a6f545 96e73889 db2e81d4"
        "0c0: 277bd025 7acf257c d32a81d9 328be43d"
        "0d0: 97f24da8 035fbc19 76d33190 ef4ead0d"
        "0e0: 6ecf3091 f356b91c 7fe348ad 1277dd44"
        "0f0: ab1279e1 4ab31c85 ef5ac530 9b0774e1"
        "100: 4ebb2998 0776e555 c637a819 8bfe71e4"
        "110: 57cb40b5 2a9f158c 037af169 e25bd44d"
        "120: c742bd38 b32fac29 a623a120 9f1e9d1d"
        "130: 9e1fa021 a326a92c af33b83d c247cd54"
        "140: db62e971 fa830c95 1faa35c0 4bd764f1"
        "150: 7e0b9928 b746d565 f68718a9 3bce61f4"
        "160: 871bb045 da6f059c 33ca61f9 922bc45d"
        "170: f7922dc8 63ff9c39 d67311b0 4fee8d2d"
        "180: ce6f10b1 53f6993c df8328cd 7217bd64"
        "190: 0bb25901 aa53fca5 4ffaa550 fba75401"
        "1a0: ae5b09b8 6716c575 26d78839 eb9e5104"
        "1b0: b76b20d5 8a3ff5ac 631ad189 42fbb46d"
        "1c0: 27e29d58 13cf8c49 06c38140 ffbe7d3d"
        "1d0: febf8041 03c6894c 0fd3985d 22e7ad74"
        "1e0: 3b02c991 5a23ecb5 7f4a15e0 ab774411"
        "1f0: deab7948 17e6b585 5627f8c9 9b6e4114"
        "230: c4d5ce2e 2abe2c25 ad7e296c 00a1b2eb"
    } = {
        data: pattern(0x1b);
        next_pointer: 0xc4d5_ce2e_2abe_2c25;
        block_number: 0xad7e_296c;
        token: 0xa1;
        ctrl_signature: 0xb2;
        signature: 0xeb;
    }

    input_header: InputHeader {
        "000: 1e765894 0000fc11"
    } = {
        opcode: 0x1e76;
        uid: 0x5894;
        op_mod: 0xfc11;
    }

    output_header: OutputHeader {
        "000: d2000000 cb22a8a2"
    } = {
        status: 0xd2;
        syndrome: 0xcb22_a8a2;
    }

    init_segment: InitSegment {
        "000: 3160cd08 b082914f 00000000 00000000"
        "010: eb6c2768 b9a55485 eac2fdef 00000000"
    } = {
        fw_rev_minor: 0x3160;
        fw_rev_major: 0xcd08;
        cmd_interface_rev: 0xb082;
        fw_rev_subminor: 0x914f;
        cmdq_phy_addr_63_32: 0xeb6c_2768;
        cmdq_phy_addr_31_12: 0xb_9a55;
        nic_interface: 0x4;
        log_cmdq_size: 0x8;
        log_cmdq_stride: 0x5;
        command_doorbell_vector: 0xeac2_fdef;
    }

    initializing: Initializing {
        "000: c4800000"
    } = {
        initializing: true;
        fw_reset_supported: true;
        nic_interface_supported: 0x4;
        embedded_cpu: true;
    }

    health_buffer: HealthBuffer {
        "000: 888f969e a7b0b9c2 ccd7e2ed f804111e"
        "010: 2b384655 64738292 00000000 00000000"
        "020: e4177a9d 04d4a104 00000000 0d6050ba"
        "030: 08acedfc b3f3f238 84000000 2d2a63c2"
    } = {
        assert_var:
            [0x88, 0x8f, 0x96, 0x9e, 0xa7, 0xb0, 0xb9, 0xc2, 0xcc, 0xd7, 0xe2, 0xed,
             0xf8, 0x04, 0x11, 0x1e, 0x2b, 0x38, 0x46, 0x55, 0x64, 0x73, 0x82, 0x92];
        assert_exit_ptr: 0xe417_7a9d;
        assert_callra: 0x4d4_a104;
        time: 0xd60_50ba;
        fw_ver: 0x8ac_edfc;
        hw_id: 0xb3f3_f238;
        rfr: true;
        severity_valid: false;
        severity: 0x4;
        irisc_index: 0x2d;
        synd: 0x2a;
        ext_synd: 0x63c2;
    }

    health_counter: HealthCounter {
        "000: 355dc035"
    } = {
        health_syndrome: 0x35;
        health_counter: 0x5d_c035;
    }

    time_out: TimeOut {
        "000: 8002dbf7"
    } = {
        unit: 0x4;
        value: 0x2_dbf7;
    }

    wq_doorbell_record: WqDoorbellRecord {
        "000: 0000a1b3 0000c5d7"
    } = {
        recv_counter: 0xa1b3;
        send_counter: 0xc5d7;
    }

    cq_doorbell_record: CqDoorbellRecord {
        "000: 00a1b3c5 31d7e9fb"
    } = {
        set_ci: 0xa1_b3c5;
        arm: 0x31d7_e9fb;
    }

    cq_arm: CqArm {
        "000: 114fdc32 00fd0c91"
    } = {
        sn: 0x1;
        solicited_only: true;
        ci: 0x4f_dc32;
        cqn: 0xfd_0c91;
    }

    eq_doorbell: EqDoorbell {
        "000: 8607060f"
    } = {
        eqn: 0x86;
        ci: 0x7_060f;
    }

    pmtu: Pmtu {
        "000: 00360000 fa2c0000 aa680000 bc330000"
    } = {
        local_port: 0x36;
        max_mtu: 0xfa2c;
        admin_mtu: 0xaa68;
        oper_mtu: 0xbc33;
    }

    ptys: Ptys {
        "000: 20d00043 00000000 03fd3ef3 16c716e7"
        "010: a98f1931 93c1b07f d1faa7d7 599e2c23"
        "020: b9faacd0 8881f521 8cea9be0 0000000e"
        "030: 2e024637 00000000 00000000 00000000"
    } = {
        an_disable_admin: false;
        an_disable_cap: true;
        local_port: 0xd0;
        plane_ind: 0x4;
        proto_mask: 0x3;
        ext_eth_proto_capability: 0x3fd_3ef3;
        eth_proto_capability: 0x16c7_16e7;
        ib_capability: 0xa98f_1931;
        ext_eth_proto_admin: 0x93c1_b07f;
        eth_proto_admin: 0xd1fa_a7d7;
        ib_admin: 0x599e_2c23;
        ext_eth_proto_oper: 0xb9fa_acd0;
        eth_proto_oper: 0x8881_f521;
        ib_oper: 0x8cea_9be0;
        connector_type: 0xe;
        eth_proto_lp_advertise: 0x2e02_4637;
    }

    paos: Paos {
        "000: 00960c03 80000001 00000000 00000000"
    } = {
        local_port: 0x96;
        admin_status: 0xc;
        oper_status: 0x3;
        ase: true;
        ee: false;
        e: 0x1;
    }

    pfcc: Pfcc {
        "000: 00510000 00000000 80e90000 80fc0000"
    } = {
        local_port: 0x51;
        pptx: true;
        pfctx: 0xe9;
        pprx: true;
        pfcrx: 0xfc;
    }

    pmlp: Pmlp {
        "000: 00a6008a a2c04948 2efd9fcd 1bc2379c"
        "010: e906a6fd 00000000 00000000 00000000"
    } = {
        local_port: 0xa6;
        width: 0x8a;
        lane0_module_mapping: 0xa2c0_4948;
        lane1_module_mapping: 0x2efd_9fcd;
        lane2_module_mapping: 0x1bc2_379c;
        lane3_module_mapping: 0xe906_a6fd;
    }

    ppcnt: Ppcnt {
        "000: 00e6002b 0000001c e5ecf3fb 040d161f"
        "010: 29343f4a 55616e7b 8895a3b2 c1d0dfef"
        "020: 00112233 45586b7e 91a5bacf e4f90f26"
        "030: 3d546b83 9cb5cee7 011c3752 6d89a6c3"
        "040: e0fd1b3a 597897b7 d8f91a3b 5d80a3c6"
        "050: e90d3257 7ca1c7ee 153c638b b4dd062f"
        "060: 5984afda 05315e8b b8e51342 71a0cfff"
        "070: 306192c3 f5285b8e c1f52a5f 94c9ff36"
        "080: 6da4db13 4c85bef7 316ca7e2 1d5996d3"
        "090: 104d8bca 094887c7 08498acb 0d5093d6"
        "0a0: 195da2e7 2c71b7fe 458cd31b 64adf63f"
        "0b0: 89d41f6a b5014e9b e83583d2 2170bf0f"
        "0c0: 60b10253 a5f84b9e f1459aef 4499ef46"
        "0d0: 9df44ba3 fc55ae07 61bc1772 cd2986e3"
        "0e0: 409dfb5a b91877d7 3899fa5b bd2083e6"
        "0f0: 49ad1277 dc41a70e 75dc43ab 147de64f"
    } = {
        local_port: 0xe6;
        grp: 0x2b;
        prio_tc: 0x1c;
        counter_set: pattern(0xe5);
    }

    ieee_802_3_counters: Ieee8023Counters {
        "000: bc0f7120 ae8a4c29 c35a731c b9ef921f"
        "010: ba9773fc 437899b8 25e88ece 9f575474"
        "020: 1d64fd4a e9e5be7b 8dd9c955 5dec7ac9"
    } = {
        a_frames_transmitted_ok: 0xbc0f_7120_ae8a_4c29;
        a_frames_received_ok: 0xc35a_731c_b9ef_921f;
        a_frame_check_sequence_errors: 0xba97_73fc_4378_99b8;
        a_alignment_errors: 0x25e8_8ece_9f57_5474;
        a_octets_transmitted_ok: 0x1d64_fd4a_e9e5_be7b;
        a_octets_received_ok: 0x8dd9_c955_5dec_7ac9;
    }

    host_endianness: HostEndianness {
        "000: 39000000 00000000 00000000 00000000"
    } = {
        he: 0x39;
    }

    dtor: Dtor {
        "000: 00000000 5cf537f2 00000000 00000000"
        "010: 00000000 b59bddc8 0386b045 accb7ee0"
        "020: 9d1b04d2 d1ec317d 97d5766d f43e705a"
        "030: 0a2ff55f 0a0aca34 895b2997 00000000"
    } = {
        pcie_toggle_to: 0x5cf5_37f2;
        health_poll_to: 0xb59b_ddc8;
        full_crdump_to: 0x386_b045;
        fw_reset_to: 0xaccb_7ee0;
        flush_on_err_to: 0x9d1b_04d2;
        pci_sync_update_to: 0xd1ec_317d;
        tear_down_to: 0x97d5_766d;
        fsm_reactivate_to: 0xf43e_705a;
        reclaim_pages_to: 0xa2f_f55f;
        reclaim_vfs_pages_to: 0xa0a_ca34;
        reset_unload_to: 0x895b_2997;
    }
}
