//! Completion queue context.
//!
//! Source: reference 5.4; PRM "Completion Queue Context", `mlx5_ifc_cqc_bits`.

use crate::layout;
use crate::layout::values;

layout! {
    /// Completion queue context, 64 bytes (`cqc`).
    pub struct Cqc [0x40] {
        0x00 [31:28] status "State of the queue, see [`status`].";
        0x00 [25] dbr_umem_valid "The doorbell record stands in a user memory object.";
        0x00 [24] apu_cq "`c_eqn_or_apu_element` names an extended element, not an event queue.";
        0x00 [23:21] cqe_sz "Size of an entry: 0 64 bytes, 1 128 bytes, 2 64 bytes padded to 128.";
        0x00 [20] cc "Collapsed: every CQE overwrites entry 0.";
        0x00 [18] scqe_break_moderation_en "A solicited CQE ends moderation early.";
        0x00 [17] oi "The device does not check the consumer index for overruns.";
        0x00 [16:15] cq_period_mode "The moderation period starts 0 at the event, 1 at each CQE.";
        0x00 [14] cqe_comp_en "CQEs may be compressed.";
        0x00 [13:12] mini_cqe_res_format "Content of a mini CQE, see [`mini_cqe_format`].";
        0x00 [11:8] st "Whether a CQE raises an event, see [`arm_state`].";
        0x00 [1:0] cqe_compression_layout "0 basic, 1 enhanced.";
        0x04 [31:0] dbr_umem_id "User memory object of the doorbell record.";
        0x08 [11:6] page_offset "Start of the queue in its first page, in units of 64 bytes.";
        0x0c [28:24] log_cq_size "Log2 of the number of entries.";
        0x0c [23:0] uar_page "UAR page from which the queue is armed.";
        0x10 [27:16] cq_period "Moderation: longest wait for an event in us.";
        0x10 [15:0] cq_max_count "Moderation: most CQEs until an event.";
        0x14 [31:0] c_eqn_or_apu_element
            "Event queue that completions are reported to, in the low eight bits.";
        0x18 [28:24] log_page_size "Log2 of the page size of the buffer, minus 12.";
        0x20 [23:0] last_notified_index "Index of the CQE that raised the last event.";
        0x24 [23:0] last_solicit_index "Index of the last solicited CQE.";
        0x28 [23:0] consumer_counter "Consumer index as the device knows it.";
        0x2c [23:0] producer_counter "Index of the next CQE that the device writes.";
        0x38 (u64) dbr_addr "Address of the doorbell record: consumer index, then arm word.";
    }
}

values! {
    /// [`Cqc::st`] and [`Eqc::st`](crate::eqc::Eqc::st). Source: reference 5.4 and 5.5.
    pub mod arm_state: u32 {
        6 SOLICITED_ARMED "A solicited or failed completion raises an event.";
        9 ARMED "The next entry raises an event.";
        0xa FIRED "The event was raised; the queue waits to be armed.";
        0xb ALWAYS_ARMED "An event queue that needs no arming.";
    }
}

values! {
    /// [`Cqc::status`] and [`Eqc::status`](crate::eqc::Eqc::status). Source: reference 5.4 and 5.5.
    pub mod status: u32 {
        0 OK "The queue works.";
        9 OVERFLOW "The completion queue was full.";
        0xa WRITE_FAILURE "An entry could not be written.";
    }
}

values! {
    /// [`Cqc::mini_cqe_res_format`]. Source: reference 5.4.
    pub mod mini_cqe_format: u32 {
        0 HASH "RSS hash.";
        1 CHECKSUM "Checksum.";
        3 CHECKSUM_STRIDE_INDEX "Checksum and stride index.";
    }
}
