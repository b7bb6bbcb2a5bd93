//! Capability pages of the recorded boot.
//!
//! Values: reference 5.10 and 5.11, column TRACE.

use ferrocx_prm::Layout;
use ferrocx_prm::caps::{AtomicCap, EthCap, FlowTableProps, HcaCap, RoceCap};
use ferrocx_prm::caps::{CAP_PAGE_BYTES, cap_type, nic_flow_table};
use ferrocx_prm::cmd::Opcode;
use ferrocx_prm::layout::first_reserved;

use crate::facts::{self, Exchange};

/// Fields of the general page: name, maximum, current value before SET_HCA_CAP.
const GENERAL: &[(&str, u128, u128)] = &[
    ("hca_cap_2", 0x0, 0x0),
    ("vhca_id", 0x0, 0x0),
    ("log_max_srq_sz", 0xf, 0xf),
    ("log_max_qp_sz", 0xf, 0xf),
    ("event_cap", 0x0, 0x0),
    ("log_max_qp", 0x17, 0xe),
    ("log_max_srq", 0x17, 0x17),
    ("max_sgl_for_optimized_performance", 0x0, 0x0),
    ("log_max_cq_sz", 0x16, 0x16),
    ("relaxed_ordering_write_umr", 0x0, 0x0),
    ("relaxed_ordering_read_umr", 0x0, 0x0),
    ("log_max_cq", 0x18, 0x18),
    ("log_max_eq_sz", 0x16, 0x16),
    ("relaxed_ordering_write", 0x0, 0x0),
    ("relaxed_ordering_read", 0x0, 0x0),
    ("log_max_mkey", 0x18, 0x18),
    ("fast_teardown", 0x0, 0x0),
    ("log_max_eq", 0x8, 0x8),
    ("max_indirection", 0x4, 0x4),
    ("fixed_buffer_size", 0x0, 0x0),
    ("log_max_mrw_sz", 0x40, 0x40),
    ("force_teardown", 0x0, 0x0),
    ("log_max_bsf_list_size", 0x10, 0x10),
    ("umr_extended_translation_offset", 0x0, 0x0),
    ("null_mkey", 0x0, 0x0),
    ("log_max_klm_list_size", 0x10, 0x10),
    ("log_max_ra_req_dc", 0x4, 0x4),
    ("log_max_ra_res_dc", 0x4, 0x4),
    ("release_all_pages", 0x0, 0x0),
    ("roce_accl", 0x0, 0x0),
    ("log_max_ra_req_qp", 0x4, 0x4),
    ("log_max_ra_res_qp", 0x4, 0x4),
    ("end_pad", 0x1, 0x1),
    ("cc_query_allowed", 0x1, 0x1),
    ("cc_modify_allowed", 0x1, 0x1),
    ("start_pad", 0x0, 0x0),
    ("cache_line_128byte", 0x0, 0x0),
    ("qcam_reg", 0x0, 0x0),
    ("gid_table_size", 0x4, 0x0),
    ("out_of_seq_cnt", 0x0, 0x0),
    ("vport_counters", 0x1, 0x1),
    ("retransmission_q_counters", 0x0, 0x0),
    ("debug", 0x0, 0x0),
    ("modify_rq_counter_set_id", 0x0, 0x0),
    ("max_qp_cnt", 0xff, 0xff),
    ("pkey_table_size", 0x5, 0x0),
    ("vport_group_manager", 0x1, 0x1),
    ("vhca_group_manager", 0x1, 0x1),
    ("ib_virt", 0x0, 0x0),
    ("eth_virt", 0x0, 0x0),
    ("ets", 0x1, 0x1),
    ("nic_flow_table", 0x1, 0x1),
    ("eswitch_manager", 0x1, 0x1),
    ("device_memory", 0x0, 0x0),
    ("mcam_reg", 0x0, 0x0),
    ("pcam_reg", 0x0, 0x0),
    ("local_ca_ack_delay", 0x10, 0x10),
    ("port_module_event", 0x0, 0x0),
    ("enhanced_error_q_counters", 0x0, 0x0),
    ("ports_check", 0x0, 0x0),
    ("port_type", 0x1, 0x1),
    ("num_ports", 0x1, 0x1),
    ("log_max_msg", 0x1e, 0x1e),
    ("max_tc", 0x0, 0x0),
    ("dcbx", 0x0, 0x0),
    ("general_notification_event", 0x0, 0x0),
    ("stat_rate_support", 0x1, 0x1),
    ("cqe_version", 0x1, 0x1),
    ("compact_address_vector", 0x1, 0x1),
    ("striding_rq", 0x1, 0x1),
    ("umr_modify_entity_size_disabled", 0x0, 0x0),
    ("umr_modify_atomic_disabled", 0x0, 0x0),
    ("umr_indirect_mkey_disabled", 0x0, 0x0),
    ("umr_fence", 0x0, 0x0),
    ("cmdif_checksum", 0x3, 0x0),
    ("sigerr_cqe", 0x0, 0x0),
    ("wq_signature", 0x1, 0x1),
    ("sctr_data_cqe", 0x1, 0x1),
    ("sho", 0x0, 0x0),
    ("tph", 0x0, 0x0),
    ("rf", 0x0, 0x0),
    ("dct", 0x0, 0x0),
    ("qos", 0x0, 0x0),
    ("eth_net_offloads", 0x1, 0x1),
    ("roce", 0x1, 0x1),
    ("atomic", 0x1, 0x1),
    ("cq_oi", 0x1, 0x1),
    ("cq_resize", 0x1, 0x1),
    ("cq_moderation", 0x1, 0x1),
    ("cq_eq_remap", 0x1, 0x1),
    ("pg", 0x0, 0x0),
    ("block_lb_mc", 0x1, 0x1),
    ("scqe_break_moderation", 0x1, 0x1),
    ("cq_period_start_from_cqe", 0x1, 0x1),
    ("cd", 0x1, 0x1),
    ("apm", 0x1, 0x1),
    ("vector_calc", 0x0, 0x0),
    ("umr_ptr_rlky", 0x0, 0x0),
    ("imaicl", 0x0, 0x0),
    ("qkv", 0x1, 0x1),
    ("pkv", 0x1, 0x1),
    ("set_deth_sqpn", 0x0, 0x0),
    ("xrc", 0x1, 0x1),
    ("ud", 0x1, 0x1),
    ("uc", 0x1, 0x1),
    ("rc", 0x1, 0x1),
    ("uar_4k", 0x0, 0x0),
    ("uar_sz", 0x5, 0x5),
    ("port_selection_cap", 0x0, 0x0),
    ("umem_uid_0", 0x0, 0x0),
    ("log_pg_sz", 0xc, 0xc),
    ("bf", 0x1, 0x1),
    ("driver_version", 0x0, 0x0),
    ("pad_tx_eth_packet", 0x1, 0x1),
    ("mkey_by_name", 0x0, 0x0),
    ("log_bf_reg_size", 0x9, 0x9),
    ("max_wqe_sz_sq", 0x400, 0x400),
    ("max_wqe_sz_rq", 0x200, 0x200),
    ("max_wqe_sz_sq_dc", 0x100, 0x100),
    ("max_qp_mcg", 0x30, 0x30),
    ("log_max_mcg", 0x15, 0x15),
    ("log_max_transport_domain", 0x10, 0x10),
    ("log_max_pd", 0x18, 0x18),
    ("log_max_xrcd", 0x18, 0x18),
    ("log_max_flow_counter_bulk", 0x0, 0x0),
    ("max_flow_counter_15_0", 0x0, 0x0),
    ("log_max_rq", 0x17, 0x17),
    ("log_max_sq", 0x17, 0x17),
    ("log_max_tir", 0x17, 0x17),
    ("log_max_tis", 0x17, 0x17),
    ("basic_cyclic_rcv_wqe", 0x1, 0x1),
    ("log_max_rmp", 0x17, 0x17),
    ("log_max_rqt", 0x10, 0x10),
    ("log_max_rqt_size", 0x9, 0x9),
    ("log_max_tis_per_sq", 0x0, 0x0),
    ("ext_stride_num_range", 0x0, 0x0),
    ("roce_rw_supported", 0x0, 0x0),
    ("log_max_stride_sz_rq", 0x9, 0x9),
    ("log_min_stride_sz_rq", 0x4, 0x4),
    ("log_max_stride_sz_sq", 0x6, 0x6),
    ("log_min_stride_sz_sq", 0x6, 0x6),
    ("log_max_wq_sz", 0xf, 0xf),
    ("nic_vport_change_event", 0x1, 0x1),
    ("disable_local_lb_uc", 0x0, 0x0),
    ("disable_local_lb_mc", 0x0, 0x0),
    ("log_max_vlan_list", 0xc, 0xc),
    ("log_max_current_mc_list", 0xe, 0xe),
    ("log_max_current_uc_list", 0xa, 0xa),
    ("general_obj_types", 0x0, 0x0),
    ("sq_ts_format", 0x0, 0x0),
    ("rq_ts_format", 0x0, 0x0),
    ("log_max_uctx", 0x0, 0x0),
    ("log_max_umem", 0x0, 0x0),
    ("max_num_eqs", 0x0, 0x0),
    ("log_max_l2_table", 0x10, 0x10),
    ("log_uar_page_sz", 0x8, 0x0),
    ("device_frequency_mhz", 0x113, 0x113),
    ("device_frequency_khz", 0x0, 0x0),
    ("num_of_uars_per_page", 0x0, 0x0),
    ("adv_virtualization", 0x0, 0x0),
    ("mini_cqe_resp_stride_index", 0x0, 0x0),
    ("cqe_128_always", 0x0, 0x0),
    ("cqe_compression", 0x1, 0x1),
    ("cqe_compression_timeout", 0x8, 0x8),
    ("cqe_compression_max_num", 0x10, 0x10),
    ("num_vhca_ports", 0x0, 0x0),
];

/// Fields of the Ethernet page.
const ETHERNET: &[(&str, u128)] = &[
    ("csum_cap", 0x1),
    ("vlan_cap", 0x1),
    ("lro_cap", 0x1),
    ("lro_psh_flag", 0x0),
    ("lro_time_stamp", 0x1),
    ("wqe_vlan_insert", 0x0),
    ("self_lb_en_modifiable", 0x0),
    ("max_lso_cap", 0x12),
    ("multi_pkt_send_wqe", 0x1),
    ("wqe_inline_mode", 0x1),
    ("rss_ind_tbl_cap", 0x9),
    ("reg_umr_sq", 0x0),
    ("scatter_fcs", 0x0),
    ("enhanced_multi_pkt_send_wqe", 0x0),
    ("tunnel_lso_const_out_ip_id", 0x0),
    ("tunnel_lro_gre", 0x0),
    ("tunnel_lro_vxlan", 0x0),
    ("tunnel_stateless_gre", 0x1),
    ("tunnel_stateless_vxlan", 0x1),
    ("swp", 0x0),
    ("swp_csum", 0x0),
    ("swp_lso", 0x0),
    ("cqe_checksum_full", 0x0),
    ("max_vxlan_udp_ports", 0x0),
    ("lro_min_mss_size", 0x544),
    ("lro_timer_supported_periods", 0x8_0000_0010_0000_0020_0000_0200),
];

/// Fields of the properties of receive tables, from the flow table page.
const NIC_RECEIVE: &[(&str, u128)] = &[
    ("ft_support", 0x1),
    ("flow_counter", 0x0),
    ("flow_modify_en", 0x0),
    ("modify_root", 0x1),
    ("identified_miss_table_mode", 0x0),
    ("flow_table_modify", 0x0),
    ("reformat", 0x0),
    ("decap", 0x0),
    ("pop_vlan", 0x0),
    ("push_vlan", 0x0),
    ("ignore_flow_level", 0x0),
    ("table_miss_action_domain", 0x0),
    ("log_max_ft_size", 0x10),
    ("max_ft_level", 0xff),
    ("log_max_ft_num", 0x9),
    ("log_max_flow_counter", 0x0),
    ("log_max_destination", 0xa),
    ("log_max_flow", 0x19),
];

/// Bits that this device sets and that neither the reference nor the Linux headers name: page
/// type, byte offset in the page, bits.
const UNNAMED: &[(u32, usize, u32)] = &[
    (cap_type::GENERAL, 0x40, 0x0006_0000),
    (cap_type::GENERAL, 0x44, 0x0040_0000),
    (cap_type::ETHERNET_OFFLOADS, 0x00, 0x0060_0000),
    (cap_type::ROCE, 0x00, 0x4000_0000),
    (cap_type::NIC_FLOW_TABLE, nic_flow_table::NIC_RECEIVE, 0x4000_0000),
    (cap_type::NIC_FLOW_TABLE, nic_flow_table::NIC_RECEIVE_SNIFFER, 0x4000_0000),
    (cap_type::NIC_FLOW_TABLE, nic_flow_table::NIC_TRANSMIT_SNIFFER, 0x4000_0000),
];

/// The queries of `type << 1 | current` in order, as their 4 KiB pages.
fn pages(exchanges: &[Exchange], op_mod: u32) -> Vec<Vec<u8>> {
    let pages: Vec<_> = exchanges
        .iter()
        .filter(|e| e.opcode == Opcode::QUERY_HCA_CAP && e.op_mod == op_mod)
        .map(|e| e.output.output_bytes()[0x10..].to_vec())
        .collect();
    assert!(pages.iter().all(|page| page.len() == CAP_PAGE_BYTES));
    pages
}

/// Value of the field `name`, by the layout's own table.
fn value<T: Layout>(page: &T, name: &str) -> u128 {
    let field = T::FIELDS.iter().find(|f| f.name == name);
    let field = field.unwrap_or_else(|| panic!("{} has no field {name}", T::NAME));
    (field.first_bit..field.first_bit + field.width_bits).fold(0, |value, bit| {
        value << 1 | u128::from(page.as_bytes()[bit / 8] >> (7 - bit % 8) & 1)
    })
}

#[test]
fn general_capabilities_equal_the_reference() {
    let exchanges = facts::load();
    let maximum = pages(&exchanges, cap_type::GENERAL << 1);
    let current = pages(&exchanges, cap_type::GENERAL << 1 | 1);
    assert_eq!((maximum.len(), current.len()), (2, 2), "once before and once after INIT_HCA");
    let before = HcaCap::read_from(&current[0]).unwrap();
    let after = HcaCap::read_from(&current[1]).unwrap();
    for (name, max, cur) in GENERAL {
        for page in &maximum {
            assert_eq!(value(&HcaCap::read_from(page).unwrap(), name), *max, "{name}, maximum");
        }
        assert_eq!(value(&before, name), *cur, "{name}, current");
    }
    assert_eq!(maximum[0], maximum[1]);
    assert_eq!(after, before.with_log_max_qp(0x11), "SET_HCA_CAP changed one field");
    // A field of ours that the reference leaves out is one of a later device, and 0 here.
    for field in HcaCap::FIELDS {
        if !GENERAL.iter().any(|g| g.0 == field.name) {
            assert_eq!(value(&before, field.name), 0, "{}", field.name);
        }
    }
}

#[test]
fn set_hca_cap_asks_for_one_change() {
    let exchanges = facts::load();
    let current = pages(&exchanges, cap_type::GENERAL << 1 | 1);
    let set = exchanges.iter().find(|e| e.opcode == Opcode::SET_HCA_CAP).unwrap();
    let set = &set.input.input_bytes()[0x10..];
    let before = HcaCap::read_from(&current[0]).unwrap();
    assert_eq!(HcaCap::read_from(set).unwrap(), before.with_log_max_qp(0x11));
    assert!(set[HcaCap::SIZE_BYTES..].iter().all(|byte| *byte == 0));
    assert!(current[0][HcaCap::SIZE_BYTES..].iter().all(|byte| *byte == 0));
}

#[test]
fn ethernet_roce_and_atomic_capabilities_equal_the_reference() {
    let exchanges = facts::load();
    let page = |kind: u32| {
        let (maximum, current) = (pages(&exchanges, kind << 1), pages(&exchanges, kind << 1 | 1));
        assert_eq!((maximum.len(), current.len()), (1, 1), "page type {kind:#x}");
        assert_eq!(maximum, current, "page type {kind:#x}");
        maximum[0].clone()
    };
    let ethernet = EthCap::read_from(&page(cap_type::ETHERNET_OFFLOADS)).unwrap();
    for (name, expected) in ETHERNET {
        assert_eq!(value(&ethernet, name), *expected, "{name}");
    }
    assert_eq!(ETHERNET.len(), EthCap::FIELDS.len());

    let roce = RoceCap::read_from(&page(cap_type::ROCE)).unwrap();
    assert_eq!((roce.l3_type(), roce.roce_version()), (7, 7));
    assert_eq!(roce.r_roce_dest_udp_port(), 4791);
    assert_eq!((roce.r_roce_min_src_udp_port(), roce.r_roce_max_src_udp_port()), (0xc000, 0xffff));
    assert_eq!(roce.roce_address_table_size(), 0x100);

    let atomic = AtomicCap::read_from(&page(cap_type::ATOMIC)).unwrap();
    assert_eq!(atomic.atomic_operations(), 0xf);
    assert_eq!((atomic.atomic_size_qp(), atomic.atomic_size_dc()), (0x3c, 0x3c));
    assert!(!atomic.supported_atomic_req_8b_endianness_mode_1());

    let tables = page(cap_type::NIC_FLOW_TABLE);
    let receive = FlowTableProps::read_from(&tables[nic_flow_table::NIC_RECEIVE..]).unwrap();
    for (name, expected) in NIC_RECEIVE {
        assert_eq!(value(&receive, name), *expected, "{name}");
    }
}

/// The words of `page` that have reserved bits set, at `base` in the whole page.
fn unnamed<T: Layout>(page: &[u8], base: usize, found: &mut Vec<(usize, u32)>) {
    let mut rest = page[base..base + T::SIZE_BYTES].to_vec();
    while let Some(reserved) = first_reserved(&T::read_from(&rest).unwrap()) {
        found.push((base + reserved.offset, reserved.bits));
        rest[reserved.offset..reserved.offset + 4].fill(0);
    }
}

#[test]
fn only_known_bits_are_without_a_name() {
    let exchanges = facts::load();
    let kinds = [
        cap_type::GENERAL,
        cap_type::ETHERNET_OFFLOADS,
        cap_type::ATOMIC,
        cap_type::ROCE,
        cap_type::NIC_FLOW_TABLE,
    ];
    for kind in kinds {
        let expected: Vec<_> = UNNAMED.iter().filter(|u| u.0 == kind).map(|u| (u.1, u.2)).collect();
        for page in pages(&exchanges, kind << 1).iter().chain(&pages(&exchanges, kind << 1 | 1)) {
            let mut found = Vec::new();
            let end = match kind {
                cap_type::GENERAL => {
                    unnamed::<HcaCap>(page, 0, &mut found);
                    HcaCap::SIZE_BYTES
                }
                cap_type::ETHERNET_OFFLOADS => {
                    unnamed::<EthCap>(page, 0, &mut found);
                    EthCap::SIZE_BYTES
                }
                cap_type::ATOMIC => {
                    unnamed::<AtomicCap>(page, 0, &mut found);
                    AtomicCap::SIZE_BYTES
                }
                cap_type::ROCE => {
                    unnamed::<RoceCap>(page, 0, &mut found);
                    RoceCap::SIZE_BYTES
                }
                _ => {
                    let last = nic_flow_table::NIC_TRANSMIT_SNIFFER;
                    let blocks = nic_flow_table::NIC_RECEIVE..=last;
                    for base in blocks.step_by(FlowTableProps::SIZE_BYTES) {
                        unnamed::<FlowTableProps>(page, base, &mut found);
                    }
                    last + FlowTableProps::SIZE_BYTES
                }
            };
            assert_eq!(found, expected, "page type {kind:#x}");
            assert!(page[end..].iter().all(|byte| *byte == 0), "page type {kind:#x} goes on");
        }
    }
}
