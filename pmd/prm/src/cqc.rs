//! Completion queue context.
//!
//! Source: reference 5.4; PRM "Completion Queue Context", `mlx5_ifc_cqc_bits`.

use crate::layout;

layout! {
    /// Completion queue context, 64 bytes (`cqc`).
    pub struct Cqc [0x40] {
        /// 0 ok, 9 overflow, 0xa write failure.
        0x00 [31:28] status;
        /// The doorbell record stands in a user memory object.
        0x00 [25] dbr_umem_valid;
        /// `c_eqn_or_apu_element` names an extended element, not an event queue.
        0x00 [24] apu_cq;
        /// Size of an entry: 0 64 bytes, 1 128 bytes, 2 64 bytes padded to 128.
        0x00 [23:21] cqe_sz;
        /// Collapsed: every CQE overwrites entry 0.
        0x00 [20] cc;
        /// A solicited CQE ends moderation early.
        0x00 [18] scqe_break_moderation_en;
        /// The device does not check the consumer index for overruns.
        0x00 [17] oi;
        /// The moderation period starts 0 at the event, 1 at each CQE.
        0x00 [16:15] cq_period_mode;
        /// CQEs may be compressed.
        0x00 [14] cqe_comp_en;
        /// What a mini CQE carries: 0 hash, 1 checksum, 3 checksum and stride index.
        0x00 [13:12] mini_cqe_res_format;
        /// 6 armed for solicited CQEs, 9 armed, 0xa fired.
        0x00 [11:8] st;
        /// 0 basic, 1 enhanced.
        0x00 [1:0] cqe_compression_layout;
        /// Start of the queue in its first page, in units of 64 bytes.
        0x08 [11:6] page_offset;
        /// Log2 of the number of entries.
        0x0c [28:24] log_cq_size;
        /// UAR page from which the queue is armed.
        0x0c [23:0] uar_page;
        /// Moderation: longest wait for an event in us.
        0x10 [27:16] cq_period;
        /// Moderation: most CQEs until an event.
        0x10 [15:0] cq_max_count;
        /// Event queue that completions are reported to, in the low eight bits.
        0x14 [31:0] c_eqn_or_apu_element;
        /// Log2 of the page size of the buffer, minus 12.
        0x18 [28:24] log_page_size;
        /// Index of the CQE that raised the last event.
        0x20 [23:0] last_notified_index;
        /// Index of the last solicited CQE.
        0x24 [23:0] last_solicit_index;
        /// Consumer index as the device knows it.
        0x28 [23:0] consumer_counter;
        /// Index of the next CQE that the device writes.
        0x2c [23:0] producer_counter;
        /// Address of the doorbell record: consumer index, then arm word.
        0x38 (u64) dbr_addr;
    }
}

/// [`Cqc::st`] and [`Eqc::st`](crate::eqc::Eqc::st). Source: reference 5.4 and 5.5.
pub mod arm_state {
    /// A solicited or failed completion raises an event.
    pub const SOLICITED_ARMED: u32 = 6;
    /// The next entry raises an event.
    pub const ARMED: u32 = 9;
    /// The event was raised; the queue waits to be armed.
    pub const FIRED: u32 = 0xa;
    /// An event queue that needs no arming.
    pub const ALWAYS_ARMED: u32 = 0xb;
}

/// [`Cqc::status`] and [`Eqc::status`](crate::eqc::Eqc::status). Source: reference 5.4 and 5.5.
pub mod status {
    /// The queue works.
    pub const OK: u32 = 0;
    /// The completion queue was full.
    pub const OVERFLOW: u32 = 9;
    /// An entry could not be written.
    pub const WRITE_FAILURE: u32 = 0xa;
}

/// [`Cqc::mini_cqe_res_format`]. Source: reference 5.4.
pub mod mini_cqe_format {
    /// RSS hash.
    pub const HASH: u32 = 0;
    /// Checksum.
    pub const CHECKSUM: u32 = 1;
    /// Checksum and stride index.
    pub const CHECKSUM_STRIDE_INDEX: u32 = 3;
}
