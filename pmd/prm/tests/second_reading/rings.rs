//! What stands in rings, doorbells and the command queue, in cumulative widths.
//!
//! Source: the byte-wise structures of `device.h` and `qp.h` of Linux 6.12.117 (`mlx5_cqe64`,
//! `mlx5_err_cqe`, `mlx5_mini_cqe8`, `mlx5_eqe` and the members of its union, `mlx5_cmd_layout`,
//! `mlx5_cmd_prot_block`, `health_buffer`, `mlx5_wqe_*_seg`, `mlx5_wqe_srq_next_seg`); bits inside
//! a byte from the masks and shifts that the same headers apply to it; the start of the
//! initialization segment from `mlx5_ifc_initial_seg_bits`; klm and ksm from `mlx5_klm`,
//! `mlx5_ksm`; doorbell records from `MLX5_RCV_DBR`, `MLX5_SND_DBR`, `MLX5_CQ_SET_CI`,
//! `MLX5_CQ_ARM_DB` and what is stored at these indices. Members that a header calls by one name
//! for several fields carry the fields' names.

use crate::reading;
use ferrocx_prm::cmd::{CommandEntry, InputHeader, Mailbox, OutputHeader};
use ferrocx_prm::cqe::{Cqe64, ErrCqe, MiniCqe};
use ferrocx_prm::eqe::*;
use ferrocx_prm::init_seg::{CqArm, CqDoorbellRecord, EqDoorbell, HealthBuffer, HealthCounter};
use ferrocx_prm::init_seg::{InitSegment, Initializing, WqDoorbellRecord};
use ferrocx_prm::mkey::{Klm, Ksm};
use ferrocx_prm::wqe::*;

reading! {
    InitSegment {
        fw_rev_minor 16, fw_rev_major 16, cmd_interface_rev 16, fw_rev_subminor 16, _ 64,
        cmdq_phy_addr_63_32 32, cmdq_phy_addr_31_12 20, _ 2, nic_interface 2, log_cmdq_size 4,
        log_cmdq_stride 4, command_doorbell_vector 32, _ 32,
    }
    Initializing {
        initializing 1, fw_reset_supported 1, _ 3, nic_interface_supported 3, embedded_cpu 1, _ 23,
    }
    HealthBuffer {
        assert_var 192, _ 64, assert_exit_ptr 32, assert_callra 32, _ 32, time 32, fw_ver 32,
        hw_id 32, rfr 1, _ 3, valid 1, severity 3, _ 24, irisc_index 8, synd 8, ext_synd 16,
    }
    HealthCounter { health_syndrome 8, health_counter 24 }
    CqArm { _ 2, arm_sn 2, _ 3, cmd 1, ci 24, _ 8, cqn 24 }
    EqDoorbell { eqn 8, ci 24 }
    CommandEntry {
        type 8, _ 24, inlen 32, in_ptr 64, in 128, out 128, out_ptr 64, outlen 32, token 8, sig 8,
        _ 8, status 7, own 1,
    }
    Mailbox { data 4096, _ 384, next 64, block_num 32, _ 8, token 8, ctrl_sig 8, sig 8 }
    InputHeader { opcode 16, uid 16, _ 16, op_mod 16 }
    OutputHeader { status 8, _ 24, syndrome 32 }
    Klm { bcount 32, key 32, va 64 }
    Ksm { _ 32, key 32, va 64 }
    Cqe64 {
        _ 3, tls_offload 2, _ 2, outer_l3_tunneled 1, _ 8, wqe_id 16, _ 1, tcppsh 1, _ 6,
        min_ttl 8, tcp_win 16, ack_seq_num 32, rss_hash_result 32, rss_htype_l4 2, _ 2,
        rss_htype_ip 2, _ 2, ml_path 8, _ 16, check_sum 16, slid 16, _ 2, grh 2, sl 4, rqpn 24,
        _ 5, l4_ok 1, l3_ok 1, l2_ok 1, _ 1, l4_hdr_type 3, l3_hdr_type 2, _ 1, vlan 1,
        vlan_info 16, lro_num_seg 8, srqn 24, immediate 32, _ 32, byte_cnt 32, timestamp_h 32,
        timestamp_l 32, sop 8, drop_qpn 24, wqe_counter 16, signature 8, opcode 4, format 2,
        solicited 1, owner 1,
    }
    ErrCqe {
        _ 256, _ 8, srqn 24, _ 144, vendor_err_synd 8, syndrome 8, s_wqe_opcode 8, qpn 24,
        wqe_counter 16, signature 8, opcode 4, format 2, solicited 1, owner 1,
    }
    MiniCqe { rx_hash_result 32, byte_cnt 32 }
    Eqe { _ 8, type 8, _ 8, sub_type 8, _ 224, data 224, _ 16, signature 8, _ 7, owner 1 }
    EventCompletion { _ 192, _ 8, cqn 24 }
    EventQueue { _ 160, type 8, _ 24, _ 8, qp_srq_n 24 }
    EventCqError { _ 8, cqn 24, _ 56, syndrome 8, _ 128 }
    EventPortChange { _ 64, port 4, _ 4, _ 152 }
    EventCommand { vector 32, _ 192 }
    EventPageRequest { ec_function 1, release_all 1, _ 14, func_id 16, num_pages 32, _ 160 }
    Ctrl {
        opmod 8, idx 16, opcode 8, qpn 24, _ 2, ds 6, signature 8, _ 16, fm 3, _ 1, ce 2, se 1,
        _ 1, imm 32,
    }
    Eth {
        swp_outer_l4_offset 8, swp_outer_l3_offset 8, swp_inner_l4_offset 8, swp_inner_l3_offset 8,
        l4_csum 1, l3_csum 1, l4_inner_csum 1, l3_inner_csum 1, _ 4, _ 2, swp_outer_l4_udp 1,
        swp_outer_l3_ipv6 1, _ 2, swp_inner_l4_udp 1, swp_inner_l3_ipv6 1, mss 16,
        flow_table_metadata 32, sz 16, start 16,
    }
    Data { byte_count 32, lkey 32, addr 64 }
    InlineHeader { inline 1, _ 21, byte_count 10 }
    Raddr { raddr 64, rkey 32, _ 32 }
    AddressVector {
        qkey 32, _ 32, ext 1, _ 7, dqp_dct 24, stat_rate 4, sl 4, fl 1, mlid 7, rlid 16, _ 32,
        rmac 48, tclass 8, hop_limit 8, _ 1, grh 1, _ 2, gid_index 8, flow_label 20, rgid 128,
    }
    Atomic { swap_add 64, compare 64 }
    MaskedCompareSwap { swap 64, compare 64, swap_mask 64, compare_mask 64 }
    MaskedCompareSwap32 { swap 32, compare 32, swap_mask 32, compare_mask 32 }
    MaskedFetchAdd { add 64, field_boundary 64 }
    MaskedFetchAdd32 { add 32, field_boundary 32, _ 64 }
    Xrc { _ 8, xrc_srqn 24, _ 96 }
    Next { _ 16, next_wqe_index 16, signature 8, _ 88 }
    UmrCtrl {
        inline 1, check_free 1, check_not_free 1, translation_offset_en 1, _ 4, _ 24,
        xlt_octowords 16, xlt_offset 16, mkey_mask 64, xlt_offset_47_16 32, _ 224,
    }
    WqDoorbellRecord { _ 16, recv_counter 16, _ 16, send_counter 16 }
    CqDoorbellRecord { _ 8, set_ci 24, arm 32 }
}
