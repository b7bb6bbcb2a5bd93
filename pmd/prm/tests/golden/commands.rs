//! Whole commands and work requests as a driver sends them, worked out word by word.
//!
//! Positions: reference 4.2, 4.3, 6.1 and 6.4; the event queue is the first of the boot trace.

use ferrocx_prm::Layout;
use ferrocx_prm::cmd::cong;
use ferrocx_prm::cmd::device::*;
use ferrocx_prm::cmd::objects::{CreateMkey, CreateMkeyOut};
use ferrocx_prm::cmd::port::{AccessReg, SetRoceAddress};
use ferrocx_prm::cmd::qp::Init2rtrQp;
use ferrocx_prm::cmd::queues::{CreateCq, CreateEq};
use ferrocx_prm::cmd::wq::{CreateSq, ModifySq};
use ferrocx_prm::cmd::{Command, CommandOutput, flow, mailbox_blocks, memic, user};
use ferrocx_prm::cqc::Cqc;
use ferrocx_prm::eqc::Eqc;
use ferrocx_prm::flow::{FlowContext, FlowMatchLyr24, FlowMatchParam};
use ferrocx_prm::mkey::{ANY_QPN, AccessMode, Mkc};
use ferrocx_prm::qpc::{Ads, Qpc};
use ferrocx_prm::srqc::XrcSrqc;
use ferrocx_prm::syndrome::CommandStatus;
use ferrocx_prm::vport::RoceAddress;
use ferrocx_prm::wqc::{Sqc, Wq};
use ferrocx_prm::wqe::{Ctrl, Opcode, UmrCtrl, mkey_mask};

use crate::{bytes_of, check_written};

/// Checks `value` against a dump, and that the dump reads back as `value`.
fn check<T: Layout + PartialEq>(value: &T, dump: &[&str]) {
    let expected = bytes_of(T::SIZE_BYTES, dump);
    check_written(value, &expected);
    assert!(T::read_from(&expected).unwrap() == *value);
}

#[test]
fn enable_hca() {
    let input = EnableHca::input().with_embedded_cpu_function(true).with_function_id(0x1203);
    check(&input, &["000: 01040000 00000000 80001203 00000000"]);
}

#[test]
fn query_hca_cap() {
    let input = QueryHcaCap::input().with_uid(0x0102).with_op_mod(0x7 << 1 | 1);
    check(&input, &["000: 01000102 0000000f 00000000 00000000"]);
}

#[test]
fn manage_pages() {
    let input = ManagePages::input().with_op_mod(1).with_input_num_entries(0x3244);
    check(&input, &["000: 01080000 00000001 00000000 00003244"]);
}

#[test]
fn create_eq_of_the_boot_trace() {
    let context =
        Eqc::zeroed().with_log_eq_size(8).with_uar_page(0x10).with_intr(1).with_log_page_size(2);
    let mut events = [0; 32];
    events[6] = 0x04;
    let input = CreateEq::input().with_eq_context_entry(context).with_event_bitmask(events);
    check(
        &input,
        &[
            "000: 03010000 00000000 00000000 00000000",
            "010: 00000000 00000000 00000000 08000010",
            "020: 00000000 00000001 02000000 00000000",
            "050: 00000000 00000000 00000000 00000400",
        ],
    );
}

#[test]
fn create_cq() {
    let context = Cqc::zeroed()
        .with_oi(true)
        .with_page_offset(0x21)
        .with_log_cq_size(0x17)
        .with_uar_page(0x12_3456)
        .with_c_eqn_or_apu_element(0x89)
        .with_dbr_addr(0x0102_0304_0506_0708);
    check(
        &CreateCq::input().with_cq_context(context),
        &[
            "000: 04000000 00000000 00000000 00000000",
            "010: 00020000 00000000 00000840 17123456",
            "020: 00000000 00000089 00000000 00000000",
            "040: 00000000 00000000 01020304 05060708",
        ],
    );
}

#[test]
fn create_cq_in_user_memory() {
    let context = Cqc::zeroed().with_dbr_umem_valid(true).with_dbr_umem_id(0x1234).with_dbr_addr(8);
    check(
        &CreateCq::input()
            .with_uid(0x0a0b)
            .with_cq_context(context)
            .with_cq_umem_offset(0x0102_0304_0506_0708)
            .with_cq_umem_id(0x5678)
            .with_cq_umem_valid(true),
        &[
            "000: 04000a0b 00000000 00000000 00000000",
            "010: 02000000 00001234 00000000 00000000",
            "040: 00000000 00000000 00000000 00000008",
            "050: 01020304 05060708 00005678 80000000",
        ],
    );
}

#[test]
fn user_contexts_and_their_memory() {
    let uctx = user::Uctx::zeroed().with_cap(user::uctx_cap::RAW_TX);
    check(
        &user::CreateUctx::input().with_uctx(uctx),
        &["000: 0a040000 00000000 00000000 00000000", "010: 00000001"],
    );
    check(
        &user::DestroyUctx::input().with_uid(0xabcd),
        &["000: 0a060000 00000000 0000abcd 00000000"],
    );
    let umem = user::Umem::zeroed()
        .with_log_page_size(9)
        .with_page_offset(0x1_2345)
        .with_num_of_mtt(0x0102_0304_0506_0708);
    check(
        &user::CreateUmem::input().with_uid(3).with_umem(umem),
        &["000: 0a080003 00000000 00000000 00000000", "020: 00000009 00012345 01020304 05060708"],
    );
    check(
        &user::DestroyUmem::input().with_umem_id(0x12_3456),
        &["000: 0a0a0000 00000000 00123456 00000000"],
    );
}

#[test]
fn device_memory_is_taken_and_given_back() {
    let input = memic::AllocMemic::input()
        .with_log_memic_addr_alignment(0x6)
        .with_range_start_addr(0x0102_0304_0506_0000)
        .with_range_size(0x1_2000)
        .with_memic_size(0x1_1040);
    check(
        &input,
        &["000: 02050000 00000000 00000000 00000006", "010: 01020304 05060000 00012000 00011040"],
    );
    let output = memic::AllocMemicOut::zeroed().with_memic_start_addr(0x0102_0304_0506_0040);
    check(&output, &["000: 00000000 00000000 01020304 05060040"]);
    let input = memic::DeallocMemic::input()
        .with_memic_start_addr(0x0102_0304_0506_0040)
        .with_memic_size(0x1_1040);
    check(
        &input,
        &["000: 02060000 00000000 00000000 00000000", "010: 01020304 05060040 00011040 00000000"],
    );
}

#[test]
fn create_mkey_over_device_memory() {
    let key = Mkc::zeroed()
        .with_access_mode(AccessMode::MEMIC)
        .with_lr(true)
        .with_start_addr(0x1f0_3040)
        .with_len(0x80);
    check(
        &key,
        &["000: 04000500 00000000 00000000 00000000", "010: 00000000 01f03040 00000000 00000080"],
    );
}

#[test]
fn create_mkey_over_physical_addresses() {
    let key = Mkc::zeroed()
        .with_access_mode(AccessMode::PA)
        .with_lr(true)
        .with_lw(true)
        .with_qpn(ANY_QPN)
        .with_mkey_7_0(0x42)
        .with_length64(true)
        .with_pd(0x12_3456);
    let input = CreateMkey::input()
        .with_pg_access(true)
        .with_memory_key_mkey_entry(key)
        .with_translations_octword_actual_size(5);
    check(
        &input,
        &[
            "000: 02000000 00000000 00000000 80000000",
            "010: 00000c00 ffffff42 00000000 80123456",
            "060: 00000005 00000000 00000000 00000000",
        ],
    );
}

#[test]
fn create_mkey_refused() {
    let bytes = bytes_of(0x10, &["000: 03000000 00c0ffee 00000000 00000000"]);
    let output = CreateMkeyOut::read_from(&bytes).unwrap();
    assert_eq!(output.command_status(), CommandStatus(0x03));
    assert_eq!(output.command_syndrome(), 0x00c0_ffee);
    let bytes = bytes_of(0x10, &["000: 00000000 00000000 00123456 00000000"]);
    assert_eq!(CreateMkeyOut::read_from(&bytes).unwrap().mkey_index(), 0x12_3456);
}

#[test]
fn create_and_modify_sq() {
    let queue = Wq::zeroed()
        .with_wq_type(1)
        .with_pd(0x65_4321)
        .with_uar_page(0x10)
        .with_dbr_addr(0x7_a831_8040)
        .with_log_wq_stride(6)
        .with_log_wq_pg_sz(9)
        .with_log_wq_sz(0x13);
    let context = Sqc::zeroed()
        .with_rlky(true)
        .with_flush_in_error_en(true)
        .with_min_wqe_inline_mode(1)
        .with_cqn(0x40_8001)
        .with_tis_lst_sz(1)
        .with_tis_num_0(0x20_4003)
        .with_wq(queue);
    check(
        &CreateSq::input().with_ctx(context),
        &[
            "000: 09040000 00000000 00000000 00000000",
            "020: 91000000 00000000 00408001 00000000",
            "040: 00010000 00000000 00000000 00204003",
            "050: 10000000 00000000 00654321 00000010",
            "060: 00000007 a8318040 00000000 00000000",
            "070: 00060913 00000000 00000000 00000000",
        ],
    );
    let ready = ModifySq::input()
        .with_sq_state(0)
        .with_sqn(0xab_cdef)
        .with_modify_bitmask(0x5)
        .with_ctx(Sqc::zeroed().with_state(1));
    check(
        &ready,
        &[
            "000: 09050000 00000000 00abcdef 00000000",
            "010: 00000000 00000005 00000000 00000000",
            "020: 00100000 00000000 00000000 00000000",
        ],
    );
}

#[test]
fn init2rtr_qp() {
    let path = Ads::zeroed()
        .with_src_addr_index(0x17)
        .with_hop_limit(64)
        .with_rgid_rip([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3])
        .with_udp_sport(0xc123)
        .with_vhca_port_num(1)
        .with_rmac_47_32(0x0c42)
        .with_rmac_31_0(0xa1b2_c3d4);
    let context = Qpc::zeroed()
        .with_pm_state(3)
        .with_mtu(3)
        .with_log_msg_max(30)
        .with_remote_qpn(0x0a_0b0c)
        .with_primary_address_path(path)
        .with_log_rra_max(4)
        .with_min_rnr_nak(12)
        .with_next_rcv_psn(0xfe_dcba);
    let input = Init2rtrQp::input().with_qpn(0x12_3456).with_opt_param_mask(0xe).with_qpc(context);
    check(
        &input,
        &[
            "000: 05030000 00000000 00123456 00000000",
            "010: 0000000e 00000000 00001800 00000000",
            "020: 7e000000 00000000 00000000 000a0b0c",
            "030: 00000000 00000000 00170040 00000000",
            "040: 00000000 00000000 0000ffff 0a010203",
            "050: 0000c123 00010c42 a1b2c3d4 00000000",
            "0a0: 00000000 00000000 00800000 0cfedcba",
        ],
    );
}

#[test]
fn congestion_control_is_asked_and_told() {
    let input = cong::QueryCongStatus::input().with_priority(5).with_cong_protocol(2);
    check(&input, &["000: 08220000 00000000 00000052 00000000"]);
    let input = cong::ModifyCongStatus::input().with_priority(5).with_cong_protocol(1);
    check(&input.with_enable(true), &["000: 08230000 00000000 00000051 80000000"]);
    check(
        &cong::QueryCongParams::input().with_cong_protocol(2),
        &["000: 08240000 00000000 00000002 00000000"],
    );
    let params = cong::CongNp::zeroed()
        .with_min_time_between_cnps(0x0102_0304)
        .with_cnp_dscp(0x2e)
        .with_cnp_prio_mode(true)
        .with_cnp_802p_prio(5);
    let input = cong::ModifyCongParams::input()
        .with_cong_protocol(2)
        .with_field_select(0x1c)
        .with_congestion_parameters(params.0);
    check(
        &input,
        &["000: 08250000 00000000 00000002 0000001c", "030: 00000000 01020304 00002e0d 00000000"],
    );
    check(
        &cong::QueryCongStatistics::input().with_clear(true),
        &["000: 08260000 00000000 80000000 00000000"],
    );
    let output = cong::QueryCongStatisticsOut::zeroed()
        .with_rp_cnp_ignored(0x1_0000_0002)
        .with_rp_cnp_handled(0x3_0000_0004)
        .with_np_ecn_marked_roce_packets(0x5_0000_0006)
        .with_np_cnp_sent(0x7_0000_0008);
    check(
        &output,
        &[
            "010: 00000000 00000000 00000001 00000002",
            "020: 00000003 00000004 00000000 00000000",
            "050: 00000000 00000005 00000006 00000007",
            "060: 00000008 00000000 00000000 00000000",
        ],
    );
}

#[test]
fn set_fte_forwards_udp_to_a_tir() {
    let fields = FlowMatchLyr24::zeroed()
        .with_ip_protocol(17)
        .with_ip_version(4)
        .with_udp_dport(4791)
        .with_dst_ipv4_dst_ipv6([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 192, 0, 2, 129]);
    let context = FlowContext::zeroed()
        .with_group_id(0x0102_0304)
        .with_action(4)
        .with_destination_list_size(1)
        .with_match_value(FlowMatchParam::zeroed().with_outer_headers(fields));
    let input = flow::SetFte::input()
        .with_table_id(0x0a_0b0c)
        .with_flow_index(0x1122_3344)
        .with_flow_context(context);
    check(
        &input,
        &[
            "000: 09360000 00000000 00000000 00000000",
            "010: 00000000 000a0b0c 00000000 00000000",
            "020: 11223344 00000000 00000000 00000000",
            "040: 00000000 01020304 00000000 00000004",
            "050: 00000001 00000000 00000000 00000000",
            "090: 11000800 00000000 00000000 000012b7",
            "0b0: 00000000 00000000 00000000 c0000281",
        ],
    );
}

#[test]
fn set_roce_address() {
    let address = RoceAddress::zeroed()
        .with_source_l3_address([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3])
        .with_vlan_valid(true)
        .with_vlan_id(0x123)
        .with_source_mac_47_32(0x0c42)
        .with_source_mac_31_0(0xa1b2_c3d4)
        .with_roce_version(2);
    let input = SetRoceAddress::input().with_roce_address_index(0x0102).with_roce_address(address);
    check(
        &input,
        &[
            "000: 07610000 00000000 01020000 00000000",
            "010: 00000000 00000000 0000ffff 0a010203",
            "020: 11230c42 a1b2c3d4 00000002 00000000",
        ],
    );
}

#[test]
fn access_reg_reads_the_port_mtu() {
    let input = AccessReg::input().with_op_mod(1).with_register_id(0x5003).with_argument(7);
    check(&input, &["000: 08050000 00000001 00005003 00000007"]);
}

#[test]
fn fast_register_work_request() {
    let ctrl = Ctrl::zeroed()
        .with_wqe_index(0x1234)
        .with_opcode(u32::from(Opcode::UMR.0))
        .with_qpn(0xab_cdef)
        .with_ds(12)
        .with_fm(1)
        .with_ce(2)
        .with_imm(0x0001_2342);
    check(&ctrl, &["000: 00123425 abcdef0c 00000028 00012342"]);
    let mask = mkey_mask::LEN
        | mkey_mask::PAGE_SIZE
        | mkey_mask::START_ADDR
        | mkey_mask::EN_RINVAL
        | mkey_mask::KEY
        | mkey_mask::LR
        | mkey_mask::LW
        | mkey_mask::RR
        | mkey_mask::RW
        | mkey_mask::SMALL_FENCE
        | mkey_mask::FREE;
    // Bit 7 inline, bit 5 "must be free", of the first byte.
    let umr = UmrCtrl::zeroed()
        .with_inline(true)
        .with_check_free(true)
        .with_xlt_octowords(4)
        .with_mkey_mask(mask);
    check(&umr, &["000: a0000000 00040000 00000000 209e2143"]);
    assert_eq!(mkey_mask::RELAXED_ORDERING_READ, 0x0000_8000_0000_0000);
}

#[test]
fn access_mode_is_split_over_two_fields() {
    let mode = AccessMode(0b1_0110);
    let key = Mkc::zeroed().with_access_mode(mode);
    check(&key, &["000: 14000200 00000000 00000000 00000000"]);
    assert_eq!(key.access_mode(), mode);
    assert_eq!(key.with_access_mode(AccessMode::KSM).0[..4], [0x00, 0x00, 0x03, 0x00]);
}

#[test]
fn mailboxes_start_behind_the_inline_bytes() {
    let cases = [(0, 0), (16, 0), (17, 1), (528, 1), (529, 2), (0x1010, 8), (0x1_9230, 202)];
    for (len_bytes, blocks) in cases {
        assert_eq!(mailbox_blocks(len_bytes), blocks, "{len_bytes:#x} bytes");
    }
}

#[test]
fn xrc_srq_splits_its_doorbell_address() {
    let context = XrcSrqc::zeroed().with_page_offset(0x21).with_dbr_addr(0x0102_0304_0506_0707);
    check(
        &context,
        &["000: 00000000 00000000 84000000 00000000", "020: 00000000 00000000 01020304 05060704"],
    );
    assert_eq!(context.dbr_addr(), 0x0102_0304_0506_0704);
}
