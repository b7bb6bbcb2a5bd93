//! Work queue contexts: the shared `wq`, and SQ, RQ and RMP around it.
//!
//! Source: reference 5.6 to 5.9; PRM "Work Queue Context", `mlx5_ifc_wq_bits`, `sqc`, `rqc`, `rmpc`.

use crate::layout;

layout! {
    /// Work queue, 192 bytes (`wq`); the page list follows it.
    pub struct Wq [0xc0] {
        /// 0 linked list, 1 cyclic, 2 linked-list striding, 3 cyclic striding.
        0x00 [31:28] wq_type, with_wq_type;
        /// `wq_signature`.
        0x00 [27] wq_signature, with_wq_signature;
        /// 0 none, 1 pad to cache line.
        0x00 [26:25] end_padding_mode, with_end_padding_mode;
        /// `cd_slave`.
        0x00 [24] cd_slave, with_cd_slave;
        /// `hds_skip_first_sge`.
        0x04 [31] hds_skip_first_sge, with_hds_skip_first_sge;
        /// `log2_hds_buf_size`.
        0x04 [30:28] log2_hds_buf_size, with_log2_hds_buf_size;
        /// 64-byte units.
        0x04 [20:16] page_offset, with_page_offset;
        /// SRQ/RMP limit.
        0x04 [15:0] lwm, with_lwm;
        /// `pd`.
        0x08 [23:0] pd, with_pd;
        /// SQ only.
        0x0c [23:0] uar_page, with_uar_page;
        /// RQ: word 0 is the receive counter; SQ: word 1 is the send counter (8-byte record).
        0x10 (u64) dbr_addr, with_dbr_addr;
        /// `hw_counter`.
        0x18 [31:0] hw_counter, with_hw_counter;
        /// `sw_counter`.
        0x1c [31:0] sw_counter, with_sw_counter;
        /// Log2 bytes (SQ 6).
        0x20 [19:16] log_wq_stride, with_log_wq_stride;
        /// Minus 12.
        0x20 [12:8] log_wq_pg_sz, with_log_wq_pg_sz;
        /// Log2 entries (SQ: 64-byte blocks).
        0x20 [4:0] log_wq_sz, with_log_wq_sz;
        /// `dbr_umem_valid`.
        0x24 [31] dbr_umem_valid, with_dbr_umem_valid;
        /// `wq_umem_valid`.
        0x24 [30] wq_umem_valid, with_wq_umem_valid;
        /// `log_hairpin_num_packets`.
        0x24 [28:24] log_hairpin_num_packets, with_log_hairpin_num_packets;
        /// `log_hairpin_data_sz`.
        0x24 [20:16] log_hairpin_data_sz, with_log_hairpin_data_sz;
        /// Striding RQ: value - 9 (6 with ext_stride_num_range).
        0x24 [11:8] log_wqe_num_of_strides, with_log_wqe_num_of_strides;
        /// IP alignment.
        0x24 [7] two_byte_shift_en, with_two_byte_shift_en;
        /// Value - 6.
        0x24 [2:0] log_wqe_stride_size, with_log_wqe_stride_size;
        /// `headers_mkey`.
        0x38 [31:0] headers_mkey, with_headers_mkey;
        /// `shampo_enable`.
        0x3c [31] shampo_enable, with_shampo_enable;
        /// `log_reservation_size`.
        0x3c [26:24] log_reservation_size, with_log_reservation_size;
        /// `log_max_num_of_packets_per_reservation`.
        0x3c [18:16] log_max_num_of_packets_per_reservation, with_log_max_num_of_packets_per_reservation;
        /// `log_headers_entry_size`.
        0x3c [9:8] log_headers_entry_size, with_log_headers_entry_size;
        /// `log_headers_buffer_entry_num`.
        0x3c [3:0] log_headers_buffer_entry_num, with_log_headers_buffer_entry_num;
        /// User memory object of the doorbell record (umem queues).
        0x28 [31:0] dbr_umem_id, with_dbr_umem_id;
        /// User memory object of the queue (umem queues).
        0x2c [31:0] wq_umem_id, with_wq_umem_id;
        /// Offset of the queue in its user memory object.
        0x30 (u64) wq_umem_offset, with_wq_umem_offset;
    }

    /// Send queue context, 240 bytes (`sqc`).
    pub struct Sqc [0xf0] {
        /// `rlky`.
        0x00 [31] rlky, with_rlky;
        /// `cd_master`.
        0x00 [30] cd_master, with_cd_master;
        /// Fast registration.
        0x00 [29] fre, with_fre;
        /// 1: flush with CQEs after error.
        0x00 [28] flush_in_error_en, with_flush_in_error_en;
        /// Legacy multi-packet.
        0x00 [27] allow_multi_pkt_send_wqe, with_allow_multi_pkt_send_wqe;
        /// 0 none, 1 L2, 2 IP, 3 TCP/UDP.
        0x00 [26:24] min_wqe_inline_mode, with_min_wqe_inline_mode;
        /// 0 RST, 1 RDY, 3 ERR.
        0x00 [23:20] state, with_state;
        /// UMR allowed (ICOSQ).
        0x00 [19] reg_umr, with_reg_umr;
        /// Software parser.
        0x00 [18] allow_swp, with_allow_swp;
        /// `hairpin`.
        0x00 [17] hairpin, with_hairpin;
        /// `ts_format`.
        0x00 [5:4] ts_format, with_ts_format;
        /// `user_index`.
        0x04 [23:0] user_index, with_user_index;
        /// `cqn`.
        0x08 [23:0] cqn, with_cqn;
        /// `hairpin_peer_rq`.
        0x0c [23:0] hairpin_peer_rq, with_hairpin_peer_rq;
        /// `hairpin_peer_vhca`.
        0x10 [15:0] hairpin_peer_vhca, with_hairpin_peer_vhca;
        /// `ts_cqe_to_dest_cqn`.
        0x18 [23:0] ts_cqe_to_dest_cqn, with_ts_cqe_to_dest_cqn;
        /// `packet_pacing_rate_limit_index`.
        0x1c [15:0] packet_pacing_rate_limit_index, with_packet_pacing_rate_limit_index;
        /// 1 normal, 0 for ICOSQ without TIS.
        0x20 [31:16] tis_lst_sz, with_tis_lst_sz;
        /// `qos_queue_group_id`.
        0x20 [15:0] qos_queue_group_id, with_qos_queue_group_id;
        /// `tis_num_0`.
        0x2c [23:0] tis_num_0, with_tis_num_0;
        /// `wq`.
        0x30 (Wq) wq, with_wq;
        /// Packets of this queue never reach the wire (Linux 6.12, DPDK).
        0x00 [16] non_wire, with_non_wire;
    }

    /// Receive queue context, 240 bytes (`rqc`).
    pub struct Rqc [0xf0] {
        /// `rlky`.
        0x00 [31] rlky, with_rlky;
        /// `delay_drop_en`.
        0x00 [30] delay_drop_en, with_delay_drop_en;
        /// `scatter_fcs`.
        0x00 [29] scatter_fcs, with_scatter_fcs;
        /// 1 = do NOT strip VLAN.
        0x00 [28] vsd, with_vsd;
        /// 0 inline memory, 1 RMP.
        0x00 [27:24] mem_rq_type, with_mem_rq_type;
        /// 0 RST, 1 RDY, 3 ERR.
        0x00 [23:20] state, with_state;
        /// `flush_in_error_en`.
        0x00 [18] flush_in_error_en, with_flush_in_error_en;
        /// `hairpin`.
        0x00 [17] hairpin, with_hairpin;
        /// `ts_format`.
        0x00 [5:4] ts_format, with_ts_format;
        /// `user_index`.
        0x04 [23:0] user_index, with_user_index;
        /// `cqn`.
        0x08 [23:0] cqn, with_cqn;
        /// Q counter for out_of_buffer etc.
        0x0c [31:24] counter_set_id, with_counter_set_id;
        /// If mem_rq_type 1.
        0x10 [23:0] rmpn, with_rmpn;
        /// `hairpin_peer_sq`.
        0x14 [23:0] hairpin_peer_sq, with_hairpin_peer_sq;
        /// `hairpin_peer_vhca`.
        0x18 [15:0] hairpin_peer_vhca, with_hairpin_peer_vhca;
        /// `shampo_no_match_alignment_granularity`.
        0x24 [25:24] shampo_no_match_alignment_granularity, with_shampo_no_match_alignment_granularity;
        /// `shampo_match_criteria_type`.
        0x24 [17:16] shampo_match_criteria_type, with_shampo_match_criteria_type;
        /// `reservation_timeout`.
        0x24 [15:0] reservation_timeout, with_reservation_timeout;
        /// `wq`.
        0x30 (Wq) wq, with_wq;
    }

    /// Receive memory pool context, 240 bytes (`rmpc`).
    pub struct Rmpc [0xf0] {
        /// 1 ready.
        0x00 [23:20] state, with_state;
        /// 0: linked WQEs with a next segment, 1: cyclic.
        0x04 [31] basic_cyclic_rcv_wqe, with_basic_cyclic_rcv_wqe;
        /// The work queue.
        0x30 (Wq) wq, with_wq;
    }
}
