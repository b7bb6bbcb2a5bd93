//! Capability pages of QUERY_HCA_CAP and SET_HCA_CAP.
//!
//! Source: reference 5.10 and 5.11; PRM "HCA Capabilities", `mlx5_ifc_cmd_hca_cap_bits` and siblings.

use crate::layout;

layout! {
    /// General capabilities, the first 256 bytes of page type 0 (`cmd_hca_cap`).
    pub struct HcaCap [0x100] {
        /// `hca_cap_2`.
        0x04 [31] hca_cap_2, with_hca_cap_2;
        /// `vhca_id`.
        0x04 [15:0] vhca_id, with_vhca_id;
        /// `log_max_srq_sz`.
        0x10 [31:24] log_max_srq_sz, with_log_max_srq_sz;
        /// `log_max_qp_sz`.
        0x10 [23:16] log_max_qp_sz, with_log_max_qp_sz;
        /// `event_cap`.
        0x10 [15] event_cap, with_event_cap;
        /// `log_max_qp`.
        0x10 [4:0] log_max_qp, with_log_max_qp;
        /// `log_max_srq`.
        0x14 [20:16] log_max_srq, with_log_max_srq;
        /// `max_sgl_for_optimized_performance`.
        0x18 [31:24] max_sgl_for_optimized_performance, with_max_sgl_for_optimized_performance;
        /// `log_max_cq_sz`.
        0x18 [23:16] log_max_cq_sz, with_log_max_cq_sz;
        /// `relaxed_ordering_write_umr`.
        0x18 [15] relaxed_ordering_write_umr, with_relaxed_ordering_write_umr;
        /// `relaxed_ordering_read_umr`.
        0x18 [14] relaxed_ordering_read_umr, with_relaxed_ordering_read_umr;
        /// `log_max_cq`.
        0x18 [4:0] log_max_cq, with_log_max_cq;
        /// `log_max_eq_sz`.
        0x1c [31:24] log_max_eq_sz, with_log_max_eq_sz;
        /// `relaxed_ordering_write`.
        0x1c [23] relaxed_ordering_write, with_relaxed_ordering_write;
        /// `relaxed_ordering_read`.
        0x1c [22] relaxed_ordering_read, with_relaxed_ordering_read;
        /// `log_max_mkey`.
        0x1c [21:16] log_max_mkey, with_log_max_mkey;
        /// `fast_teardown`.
        0x1c [4] fast_teardown, with_fast_teardown;
        /// `log_max_eq`.
        0x1c [3:0] log_max_eq, with_log_max_eq;
        /// `max_indirection`.
        0x20 [31:24] max_indirection, with_max_indirection;
        /// `fixed_buffer_size`.
        0x20 [23] fixed_buffer_size, with_fixed_buffer_size;
        /// `log_max_mrw_sz`.
        0x20 [22:16] log_max_mrw_sz, with_log_max_mrw_sz;
        /// `force_teardown`.
        0x20 [15] force_teardown, with_force_teardown;
        /// `log_max_bsf_list_size`.
        0x20 [13:8] log_max_bsf_list_size, with_log_max_bsf_list_size;
        /// `umr_extended_translation_offset`.
        0x20 [7] umr_extended_translation_offset, with_umr_extended_translation_offset;
        /// `null_mkey`.
        0x20 [6] null_mkey, with_null_mkey;
        /// `log_max_klm_list_size`.
        0x20 [5:0] log_max_klm_list_size, with_log_max_klm_list_size;
        /// `log_max_ra_req_dc`.
        0x24 [21:16] log_max_ra_req_dc, with_log_max_ra_req_dc;
        /// `log_max_ra_res_dc`.
        0x24 [5:0] log_max_ra_res_dc, with_log_max_ra_res_dc;
        /// `release_all_pages`.
        0x28 [26] release_all_pages, with_release_all_pages;
        /// `roce_accl`.
        0x28 [22] roce_accl, with_roce_accl;
        /// `log_max_ra_req_qp`.
        0x28 [21:16] log_max_ra_req_qp, with_log_max_ra_req_qp;
        /// `log_max_ra_res_qp`.
        0x28 [5:0] log_max_ra_res_qp, with_log_max_ra_res_qp;
        /// `end_pad`.
        0x2c [31] end_pad, with_end_pad;
        /// `cc_query_allowed`.
        0x2c [30] cc_query_allowed, with_cc_query_allowed;
        /// `cc_modify_allowed`.
        0x2c [29] cc_modify_allowed, with_cc_modify_allowed;
        /// `start_pad`.
        0x2c [28] start_pad, with_start_pad;
        /// `cache_line_128byte`.
        0x2c [27] cache_line_128byte, with_cache_line_128byte;
        /// `qcam_reg`.
        0x2c [16] qcam_reg, with_qcam_reg;
        /// `gid_table_size`.
        0x2c [15:0] gid_table_size, with_gid_table_size;
        /// `out_of_seq_cnt`.
        0x30 [31] out_of_seq_cnt, with_out_of_seq_cnt;
        /// `vport_counters`.
        0x30 [30] vport_counters, with_vport_counters;
        /// `retransmission_q_counters`.
        0x30 [29] retransmission_q_counters, with_retransmission_q_counters;
        /// `debug`.
        0x30 [28] debug, with_debug;
        /// `max_qp_cnt`.
        0x30 [25:16] max_qp_cnt, with_max_qp_cnt;
        /// `pkey_table_size`.
        0x30 [15:0] pkey_table_size, with_pkey_table_size;
        /// `vport_group_manager`.
        0x34 [31] vport_group_manager, with_vport_group_manager;
        /// `vhca_group_manager`.
        0x34 [30] vhca_group_manager, with_vhca_group_manager;
        /// `ib_virt`.
        0x34 [29] ib_virt, with_ib_virt;
        /// `eth_virt`.
        0x34 [28] eth_virt, with_eth_virt;
        /// `ets`.
        0x34 [26] ets, with_ets;
        /// `nic_flow_table`.
        0x34 [25] nic_flow_table, with_nic_flow_table;
        /// `eswitch_manager`.
        0x34 [24] eswitch_manager, with_eswitch_manager;
        /// `device_memory`.
        0x34 [23] device_memory, with_device_memory;
        /// `mcam_reg`.
        0x34 [22] mcam_reg, with_mcam_reg;
        /// `pcam_reg`.
        0x34 [21] pcam_reg, with_pcam_reg;
        /// `local_ca_ack_delay`.
        0x34 [20:16] local_ca_ack_delay, with_local_ca_ack_delay;
        /// `port_module_event`.
        0x34 [15] port_module_event, with_port_module_event;
        /// `ports_check`.
        0x34 [13] ports_check, with_ports_check;
        /// `port_type`.
        0x34 [9:8] port_type, with_port_type;
        /// `num_ports`.
        0x34 [7:0] num_ports, with_num_ports;
        /// `log_max_msg`.
        0x38 [28:24] log_max_msg, with_log_max_msg;
        /// `max_tc`.
        0x38 [19:16] max_tc, with_max_tc;
        /// `dcbx`.
        0x38 [14] dcbx, with_dcbx;
        /// `general_notification_event`.
        0x38 [13] general_notification_event, with_general_notification_event;
        /// `stat_rate_support`.
        0x3c [31:16] stat_rate_support, with_stat_rate_support;
        /// `cqe_version`.
        0x3c [3:0] cqe_version, with_cqe_version;
        /// `compact_address_vector`.
        0x40 [31] compact_address_vector, with_compact_address_vector;
        /// `striding_rq`.
        0x40 [30] striding_rq, with_striding_rq;
        /// `umr_modify_entity_size_disabled`.
        0x40 [24] umr_modify_entity_size_disabled, with_umr_modify_entity_size_disabled;
        /// `umr_modify_atomic_disabled`.
        0x40 [23] umr_modify_atomic_disabled, with_umr_modify_atomic_disabled;
        /// `umr_indirect_mkey_disabled`.
        0x40 [22] umr_indirect_mkey_disabled, with_umr_indirect_mkey_disabled;
        /// `umr_fence`.
        0x40 [21:20] umr_fence, with_umr_fence;
        /// `cmdif_checksum`.
        0x40 [15:14] cmdif_checksum, with_cmdif_checksum;
        /// `sigerr_cqe`.
        0x40 [13] sigerr_cqe, with_sigerr_cqe;
        /// `wq_signature`.
        0x40 [11] wq_signature, with_wq_signature;
        /// `sctr_data_cqe`.
        0x40 [10] sctr_data_cqe, with_sctr_data_cqe;
        /// `sho`.
        0x40 [8] sho, with_sho;
        /// `tph`.
        0x40 [7] tph, with_tph;
        /// `rf`.
        0x40 [6] rf, with_rf;
        /// `dct`.
        0x40 [5] dct, with_dct;
        /// `qos`.
        0x40 [4] qos, with_qos;
        /// `eth_net_offloads`.
        0x40 [3] eth_net_offloads, with_eth_net_offloads;
        /// `roce`.
        0x40 [2] roce, with_roce;
        /// `atomic`.
        0x40 [1] atomic, with_atomic;
        /// `cq_oi`.
        0x44 [31] cq_oi, with_cq_oi;
        /// `cq_resize`.
        0x44 [30] cq_resize, with_cq_resize;
        /// `cq_moderation`.
        0x44 [29] cq_moderation, with_cq_moderation;
        /// `cq_eq_remap`.
        0x44 [25] cq_eq_remap, with_cq_eq_remap;
        /// `pg`.
        0x44 [24] pg, with_pg;
        /// `block_lb_mc`.
        0x44 [23] block_lb_mc, with_block_lb_mc;
        /// `scqe_break_moderation`.
        0x44 [21] scqe_break_moderation, with_scqe_break_moderation;
        /// `cq_period_start_from_cqe`.
        0x44 [20] cq_period_start_from_cqe, with_cq_period_start_from_cqe;
        /// `cd`.
        0x44 [19] cd, with_cd;
        /// `apm`.
        0x44 [17] apm, with_apm;
        /// `vector_calc`.
        0x44 [16] vector_calc, with_vector_calc;
        /// `umr_ptr_rlky`.
        0x44 [15] umr_ptr_rlky, with_umr_ptr_rlky;
        /// `imaicl`.
        0x44 [14] imaicl, with_imaicl;
        /// `qkv`.
        0x44 [9] qkv, with_qkv;
        /// `pkv`.
        0x44 [8] pkv, with_pkv;
        /// `set_deth_sqpn`.
        0x44 [7] set_deth_sqpn, with_set_deth_sqpn;
        /// `xrc`.
        0x44 [3] xrc, with_xrc;
        /// `ud`.
        0x44 [2] ud, with_ud;
        /// `uc`.
        0x44 [1] uc, with_uc;
        /// `rc`.
        0x44 [0] rc, with_rc;
        /// `uar_4k`.
        0x48 [31] uar_4k, with_uar_4k;
        /// `uar_sz`.
        0x48 [21:16] uar_sz, with_uar_sz;
        /// `port_selection_cap`.
        0x48 [15] port_selection_cap, with_port_selection_cap;
        /// `umem_uid_0`.
        0x48 [13] umem_uid_0, with_umem_uid_0;
        /// `log_pg_sz`.
        0x48 [7:0] log_pg_sz, with_log_pg_sz;
        /// `bf`.
        0x4c [31] bf, with_bf;
        /// `driver_version`.
        0x4c [30] driver_version, with_driver_version;
        /// `pad_tx_eth_packet`.
        0x4c [29] pad_tx_eth_packet, with_pad_tx_eth_packet;
        /// `mkey_by_name`.
        0x4c [25] mkey_by_name, with_mkey_by_name;
        /// `log_bf_reg_size`.
        0x4c [20:16] log_bf_reg_size, with_log_bf_reg_size;
        /// `max_wqe_sz_sq`.
        0x50 [15:0] max_wqe_sz_sq, with_max_wqe_sz_sq;
        /// `max_wqe_sz_rq`.
        0x54 [15:0] max_wqe_sz_rq, with_max_wqe_sz_rq;
        /// `max_wqe_sz_sq_dc`.
        0x58 [15:0] max_wqe_sz_sq_dc, with_max_wqe_sz_sq_dc;
        /// `max_qp_mcg`.
        0x5c [24:0] max_qp_mcg, with_max_qp_mcg;
        /// `log_max_mcg`.
        0x60 [7:0] log_max_mcg, with_log_max_mcg;
        /// `log_max_transport_domain`.
        0x64 [28:24] log_max_transport_domain, with_log_max_transport_domain;
        /// `log_max_pd`.
        0x64 [20:16] log_max_pd, with_log_max_pd;
        /// `log_max_xrcd`.
        0x64 [4:0] log_max_xrcd, with_log_max_xrcd;
        /// `log_max_flow_counter_bulk`.
        0x68 [23:16] log_max_flow_counter_bulk, with_log_max_flow_counter_bulk;
        /// `max_flow_counter_15_0`.
        0x68 [15:0] max_flow_counter_15_0, with_max_flow_counter_15_0;
        /// `log_max_rq`.
        0x6c [28:24] log_max_rq, with_log_max_rq;
        /// `log_max_sq`.
        0x6c [20:16] log_max_sq, with_log_max_sq;
        /// `log_max_tir`.
        0x6c [12:8] log_max_tir, with_log_max_tir;
        /// `log_max_tis`.
        0x6c [4:0] log_max_tis, with_log_max_tis;
        /// `basic_cyclic_rcv_wqe`.
        0x70 [31] basic_cyclic_rcv_wqe, with_basic_cyclic_rcv_wqe;
        /// `log_max_rmp`.
        0x70 [28:24] log_max_rmp, with_log_max_rmp;
        /// `log_max_rqt`.
        0x70 [20:16] log_max_rqt, with_log_max_rqt;
        /// `log_max_rqt_size`.
        0x70 [12:8] log_max_rqt_size, with_log_max_rqt_size;
        /// `log_max_tis_per_sq`.
        0x70 [4:0] log_max_tis_per_sq, with_log_max_tis_per_sq;
        /// `ext_stride_num_range`.
        0x74 [31] ext_stride_num_range, with_ext_stride_num_range;
        /// `roce_rw_supported`.
        0x74 [30] roce_rw_supported, with_roce_rw_supported;
        /// `log_max_stride_sz_rq`.
        0x74 [28:24] log_max_stride_sz_rq, with_log_max_stride_sz_rq;
        /// `log_min_stride_sz_rq`.
        0x74 [20:16] log_min_stride_sz_rq, with_log_min_stride_sz_rq;
        /// `log_max_stride_sz_sq`.
        0x74 [12:8] log_max_stride_sz_sq, with_log_max_stride_sz_sq;
        /// `log_min_stride_sz_sq`.
        0x74 [4:0] log_min_stride_sz_sq, with_log_min_stride_sz_sq;
        /// `log_max_wq_sz`.
        0x78 [4:0] log_max_wq_sz, with_log_max_wq_sz;
        /// `nic_vport_change_event`.
        0x7c [31] nic_vport_change_event, with_nic_vport_change_event;
        /// `disable_local_lb_uc`.
        0x7c [30] disable_local_lb_uc, with_disable_local_lb_uc;
        /// `disable_local_lb_mc`.
        0x7c [29] disable_local_lb_mc, with_disable_local_lb_mc;
        /// `log_max_vlan_list`.
        0x7c [20:16] log_max_vlan_list, with_log_max_vlan_list;
        /// `log_max_current_mc_list`.
        0x7c [12:8] log_max_current_mc_list, with_log_max_current_mc_list;
        /// `log_max_current_uc_list`.
        0x7c [4:0] log_max_current_uc_list, with_log_max_current_uc_list;
        /// `general_obj_types`.
        0x80 (u64) general_obj_types, with_general_obj_types;
        /// `sq_ts_format`.
        0x88 [31:30] sq_ts_format, with_sq_ts_format;
        /// `rq_ts_format`.
        0x88 [29:28] rq_ts_format, with_rq_ts_format;
        /// `log_max_uctx`.
        0x8c [28:24] log_max_uctx, with_log_max_uctx;
        /// `log_max_umem`.
        0x8c [20:16] log_max_umem, with_log_max_umem;
        /// `max_num_eqs`.
        0x8c [15:0] max_num_eqs, with_max_num_eqs;
        /// `log_max_l2_table`.
        0x90 [28:24] log_max_l2_table, with_log_max_l2_table;
        /// `log_uar_page_sz`.
        0x90 [15:0] log_uar_page_sz, with_log_uar_page_sz;
        /// `device_frequency_mhz`.
        0x98 [31:0] device_frequency_mhz, with_device_frequency_mhz;
        /// `device_frequency_khz`.
        0x9c [31:0] device_frequency_khz, with_device_frequency_khz;
        /// `num_of_uars_per_page`.
        0xa4 [31:0] num_of_uars_per_page, with_num_of_uars_per_page;
        /// `adv_virtualization`.
        0xac [6] adv_virtualization, with_adv_virtualization;
        /// `cqe_128_always`.
        0xb4 [2] cqe_128_always, with_cqe_128_always;
        /// `cqe_compression`.
        0xb4 [0] cqe_compression, with_cqe_compression;
        /// `cqe_compression_timeout`.
        0xb8 [31:16] cqe_compression_timeout, with_cqe_compression_timeout;
        /// `cqe_compression_max_num`.
        0xb8 [15:0] cqe_compression_max_num, with_cqe_compression_max_num;
        /// `num_vhca_ports`.
        0xc0 [15:8] num_vhca_ports, with_num_vhca_ports;
        /// The device never sends page requests (Linux 6.12).
        0x00 [25] page_request_disable, with_page_request_disable;
        /// Go-back-N retransmission (Linux 6.12).
        0x14 [6] go_back_n, with_go_back_n;
        /// The device has such a key (Linux 6.12).
        0x1c [9] terminate_scatter_list_mkey, with_terminate_scatter_list_mkey;
        /// RQTs may name RQs of other functions (Linux 6.12).
        0x8c [29] cross_vhca_rqt, with_cross_vhca_rqt;
    }

    /// Ethernet offload capabilities, page type 1 (`per_protocol_networking_offload_caps`).
    pub struct EthCap [0x40] {
        /// `csum_cap`.
        0x00 [31] csum_cap, with_csum_cap;
        /// `vlan_cap`.
        0x00 [30] vlan_cap, with_vlan_cap;
        /// `lro_cap`.
        0x00 [29] lro_cap, with_lro_cap;
        /// `lro_psh_flag`.
        0x00 [28] lro_psh_flag, with_lro_psh_flag;
        /// `lro_time_stamp`.
        0x00 [27] lro_time_stamp, with_lro_time_stamp;
        /// `wqe_vlan_insert`.
        0x00 [24] wqe_vlan_insert, with_wqe_vlan_insert;
        /// `self_lb_en_modifiable`.
        0x00 [23] self_lb_en_modifiable, with_self_lb_en_modifiable;
        /// `max_lso_cap`.
        0x00 [20:16] max_lso_cap, with_max_lso_cap;
        /// `multi_pkt_send_wqe`.
        0x00 [15:14] multi_pkt_send_wqe, with_multi_pkt_send_wqe;
        /// `wqe_inline_mode`.
        0x00 [13:12] wqe_inline_mode, with_wqe_inline_mode;
        /// `rss_ind_tbl_cap`.
        0x00 [11:8] rss_ind_tbl_cap, with_rss_ind_tbl_cap;
        /// `reg_umr_sq`.
        0x00 [7] reg_umr_sq, with_reg_umr_sq;
        /// `scatter_fcs`.
        0x00 [6] scatter_fcs, with_scatter_fcs;
        /// `enhanced_multi_pkt_send_wqe`.
        0x00 [5] enhanced_multi_pkt_send_wqe, with_enhanced_multi_pkt_send_wqe;
        /// `tunnel_lso_const_out_ip_id`.
        0x00 [4] tunnel_lso_const_out_ip_id, with_tunnel_lso_const_out_ip_id;
        /// `tunnel_lro_gre`.
        0x00 [3] tunnel_lro_gre, with_tunnel_lro_gre;
        /// `tunnel_lro_vxlan`.
        0x00 [2] tunnel_lro_vxlan, with_tunnel_lro_vxlan;
        /// `tunnel_stateless_gre`.
        0x00 [1] tunnel_stateless_gre, with_tunnel_stateless_gre;
        /// `tunnel_stateless_vxlan`.
        0x00 [0] tunnel_stateless_vxlan, with_tunnel_stateless_vxlan;
        /// `swp`.
        0x04 [31] swp, with_swp;
        /// `swp_csum`.
        0x04 [30] swp_csum, with_swp_csum;
        /// `swp_lso`.
        0x04 [29] swp_lso, with_swp_lso;
        /// `cqe_checksum_full`.
        0x04 [28] cqe_checksum_full, with_cqe_checksum_full;
        /// `max_vxlan_udp_ports`.
        0x04 [15:8] max_vxlan_udp_ports, with_max_vxlan_udp_ports;
        /// `lro_min_mss_size`.
        0x08 [15:0] lro_min_mss_size, with_lro_min_mss_size;
        /// `lro_timer_supported_periods`.
        0x30 ([u8; 16]) lro_timer_supported_periods, with_lro_timer_supported_periods;
    }

    /// RoCE capabilities, page type 4 (`roce_cap`).
    pub struct RoceCap [0x20] {
        /// `roce_apm`.
        0x00 [31] roce_apm, with_roce_apm;
        /// 1 = driver may set UDP source port in ads/AV.
        0x00 [27] sw_r_roce_src_udp_port, with_sw_r_roce_src_udp_port;
        /// `fl_rc_qp_when_roce_disabled`.
        0x00 [26] fl_rc_qp_when_roce_disabled, with_fl_rc_qp_when_roce_disabled;
        /// Force-loopback RC QPs.
        0x00 [25] fl_rc_qp_when_roce_enabled, with_fl_rc_qp_when_roce_enabled;
        /// 0 free, 1 real time, 2 both.
        0x00 [1:0] qp_ts_format, with_qp_ts_format;
        /// Bit mask: bit 0 GRH, bit 1 IPv4, bit 2 IPv6. TRACE 7.
        0x10 [19:16] l3_type, with_l3_type;
        /// Bit mask: bit 0 v1, bit 1 v1.5, bit 2 v2. TRACE 7.
        0x10 [7:0] roce_version, with_roce_version;
        /// TRACE 0x12b7 (4791).
        0x14 [15:0] r_roce_dest_udp_port, with_r_roce_dest_udp_port;
        /// TRACE 0xffff.
        0x18 [31:16] r_roce_max_src_udp_port, with_r_roce_max_src_udp_port;
        /// TRACE 0xc000.
        0x18 [15:0] r_roce_min_src_udp_port, with_r_roce_min_src_udp_port;
        /// TRACE 0x100.
        0x1c [15:0] roce_address_table_size, with_roce_address_table_size;
    }

    /// Atomic capabilities, page type 3 (`atomic_caps`).
    pub struct AtomicCap [0x20] {
        /// 0 big endian result, 1 host endianness (written by Linux).
        0x08 [31:30] atomic_req_8b_endianness_mode, with_atomic_req_8b_endianness_mode;
        /// TRACE 0 (the SET step is skipped).
        0x08 [25] supported_atomic_req_8b_endianness_mode_1, with_supported_atomic_req_8b_endianness_mode_1;
        /// Bit 0 swap, 1 compare-swap... see below. TRACE 0xf.
        0x10 [15:0] atomic_operations, with_atomic_operations;
        /// Bit n = 2^n bytes: TRACE 0x3c (4,8,16,32).
        0x14 [15:0] atomic_size_qp, with_atomic_size_qp;
        /// TRACE 0x3c.
        0x18 [15:0] atomic_size_dc, with_atomic_size_dc;
    }

    /// Properties of one kind of flow table (`flow_table_prop_layout`).
    pub struct FlowTableProps [0x40] {
        /// `ft_support`.
        0x00 [31] ft_support, with_ft_support;
        /// `flow_counter`.
        0x00 [29] flow_counter, with_flow_counter;
        /// `flow_modify_en`.
        0x00 [28] flow_modify_en, with_flow_modify_en;
        /// `modify_root`.
        0x00 [27] modify_root, with_modify_root;
        /// `identified_miss_table_mode`.
        0x00 [26] identified_miss_table_mode, with_identified_miss_table_mode;
        /// `flow_table_modify`.
        0x00 [25] flow_table_modify, with_flow_table_modify;
        /// `reformat`.
        0x00 [24] reformat, with_reformat;
        /// `decap`.
        0x00 [23] decap, with_decap;
        /// `pop_vlan`.
        0x00 [21] pop_vlan, with_pop_vlan;
        /// `push_vlan`.
        0x00 [20] push_vlan, with_push_vlan;
        /// `ignore_flow_level`.
        0x00 [10] ignore_flow_level, with_ignore_flow_level;
        /// `table_miss_action_domain`.
        0x00 [8] table_miss_action_domain, with_table_miss_action_domain;
        /// `log_max_ft_size`.
        0x04 [29:24] log_max_ft_size, with_log_max_ft_size;
        /// `max_ft_level`.
        0x04 [7:0] max_ft_level, with_max_ft_level;
        /// `log_max_ft_num`.
        0x0c [7:0] log_max_ft_num, with_log_max_ft_num;
        /// `log_max_flow_counter`.
        0x10 [15:8] log_max_flow_counter, with_log_max_flow_counter;
        /// `log_max_destination`.
        0x10 [7:0] log_max_destination, with_log_max_destination;
        /// `log_max_flow`.
        0x14 [7:0] log_max_flow, with_log_max_flow;
        /// `ft_field_support`.
        0x20 ([u8; 16]) ft_field_support, with_ft_field_support;
        /// `ft_field_bitmask_support`.
        0x30 ([u8; 16]) ft_field_bitmask_support, with_ft_field_bitmask_support;
    }
}

/// Page types of QUERY_HCA_CAP; `op_mod` is `type << 1 | current`. Source: reference 3.3.
pub mod cap_type {
    /// [`super::HcaCap`].
    pub const GENERAL: u32 = 0x0;
    /// [`super::EthCap`].
    pub const ETHERNET_OFFLOADS: u32 = 0x1;
    /// On-demand paging.
    pub const ODP: u32 = 0x2;
    /// [`super::AtomicCap`].
    pub const ATOMIC: u32 = 0x3;
    /// [`super::RoceCap`].
    pub const ROCE: u32 = 0x4;
    /// Flow tables of the NIC: [`super::FlowTableProps`] blocks at [`super::nic_flow_table`].
    pub const NIC_FLOW_TABLE: u32 = 0x7;
    /// E-switch flow tables.
    pub const ESWITCH_FLOW_TABLE: u32 = 0x8;
    /// E-switch.
    pub const ESWITCH: u32 = 0x9;
    /// Quality of service.
    pub const QOS: u32 = 0xc;
    /// General capabilities, second page.
    pub const GENERAL_2: u32 = 0x20;
}

/// Size of a capability page in bytes. Source: reference 4.2, QUERY_HCA_CAP.
pub const CAP_PAGE_BYTES: usize = 4096;

/// Byte offsets of the [`FlowTableProps`] blocks in page type 7. Source: reference 5.11.
pub mod nic_flow_table {
    /// Receive.
    pub const NIC_RECEIVE: usize = 0x40;
    /// Receive, RDMA.
    pub const NIC_RECEIVE_RDMA: usize = 0x80;
    /// Receive, sniffer.
    pub const NIC_RECEIVE_SNIFFER: usize = 0xc0;
    /// Transmit.
    pub const NIC_TRANSMIT: usize = 0x100;
    /// Transmit, RDMA.
    pub const NIC_TRANSMIT_RDMA: usize = 0x140;
    /// Transmit, sniffer.
    pub const NIC_TRANSMIT_SNIFFER: usize = 0x180;
}
