//! Completion queue context.
//!
//! Source: reference 5.4; PRM "Completion Queue Context", `mlx5_ifc_cqc_bits`.

use crate::layout;

layout! {
    /// Completion queue context, 64 bytes (`cqc`).
    pub struct Cqc [0x40] {
        /// 0 ok, 9 overflow, 0xa write failure.
        0x00 [31:28] status, with_status;
        /// `dbr_umem_valid`.
        0x00 [25] dbr_umem_valid, with_dbr_umem_valid;
        /// DPDK: ext_element.
        0x00 [24] apu_cq, with_apu_cq;
        /// 0 = 64 B, 1 = 128 B, 2 = 128 B with 64 B padded.
        0x00 [23:21] cqe_sz, with_cqe_sz;
        /// Collapsed CQ: all CQEs overwrite entry 0 (Snabb TX).
        0x00 [20] cc, with_cc;
        /// `scqe_break_moderation_en`.
        0x00 [18] scqe_break_moderation_en, with_scqe_break_moderation_en;
        /// Overrun ignore.
        0x00 [17] oi, with_oi;
        /// 0 from EQE, 1 from CQE.
        0x00 [16:15] cq_period_mode, with_cq_period_mode;
        /// `cqe_comp_en`.
        0x00 [14] cqe_comp_en, with_cqe_comp_en;
        /// 0 hash, 1 checksum, 3 checksum + stride index.
        0x00 [13:12] mini_cqe_res_format, with_mini_cqe_res_format;
        /// 6 solicited armed, 9 armed, 0xa fired.
        0x00 [11:8] st, with_st;
        /// 0 basic, 1 enhanced.
        0x00 [1:0] cqe_compression_layout, with_cqe_compression_layout;
        /// 64-byte units.
        0x08 [11:6] page_offset, with_page_offset;
        /// `log_cq_size`.
        0x0c [28:24] log_cq_size, with_log_cq_size;
        /// `uar_page`.
        0x0c [23:0] uar_page, with_uar_page;
        /// Us.
        0x10 [27:16] cq_period, with_cq_period;
        /// `cq_max_count`.
        0x10 [15:0] cq_max_count, with_cq_max_count;
        /// EQN, low 8 bits.
        0x14 [31:0] c_eqn_or_apu_element, with_c_eqn_or_apu_element;
        /// Minus 12.
        0x18 [28:24] log_page_size, with_log_page_size;
        /// `last_notified_index`.
        0x20 [23:0] last_notified_index, with_last_notified_index;
        /// `last_solicit_index`.
        0x24 [23:0] last_solicit_index, with_last_solicit_index;
        /// `consumer_counter`.
        0x28 [23:0] consumer_counter, with_consumer_counter;
        /// `producer_counter`.
        0x2c [23:0] producer_counter, with_producer_counter;
        /// 8 bytes: consumer index, arm.
        0x38 (u64) dbr_addr, with_dbr_addr;
    }
}
