//! Event queue context.
//!
//! Source: reference 5.5; PRM "Event Queue Context", `mlx5_ifc_eqc_bits`.

use crate::layout;

layout! {
    /// Event queue context, 64 bytes (`eqc`).
    pub struct Eqc [0x40] {
        /// 0 ok, 0xa write failure.
        0x00 [31:28] status, with_status;
        /// Collapse.
        0x00 [18] ec, with_ec;
        /// Overrun ignore.
        0x00 [17] oi, with_oi;
        /// 9 armed, 0xa fired, 0xb always armed.
        0x00 [11:8] st, with_st;
        /// `page_offset`.
        0x08 [11:6] page_offset, with_page_offset;
        /// `log_eq_size`.
        0x0c [28:24] log_eq_size, with_log_eq_size;
        /// `uar_page`.
        0x0c [23:0] uar_page, with_uar_page;
        /// MSI-X vector; RC header has 8 bits \[7:0\].
        0x14 [11:0] intr, with_intr;
        /// Minus 12.
        0x18 [28:24] log_page_size, with_log_page_size;
        /// `consumer_counter`.
        0x28 [23:0] consumer_counter, with_consumer_counter;
        /// `producer_counter`.
        0x2c [23:0] producer_counter, with_producer_counter;
    }
}
