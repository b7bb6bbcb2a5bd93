//! Shared receive queue context.
//!
//! Source: reference 4.9; PRM "XRC SRQ Context", `mlx5_ifc_xrc_srqc_bits`.

use crate::layout;

layout! {
    /// XRC shared receive queue context, 64 bytes (`xrc_srqc`).
    ///
    /// With ISSI 1 a basic shared receive queue is an RMP, see [`crate::wqc::Rmpc`].
    pub struct XrcSrqc [0x40] {
        0x00 [31:28] state "0 good, 1 error.";
        0x00 [27:24] log_xrc_srq_size "Log2 of the number of WQEs.";
        0x04 [31] wq_signature "The device checks the signatures of WQEs.";
        0x04 [30] cont_srq "The next WQE need not be linked yet.";
        0x04 [28] rlky "WQEs may use the reserved lkey.";
        0x04 [27] basic_cyclic_rcv_wqe
            "The queue is cyclic; else its WQEs are linked by a next segment.";
        0x04 [26:24] log_rq_stride "Log2 of the bytes of a WQE, minus 4.";
        0x04 [23:0] xrcd "XRC domain of the queue.";
        0x08 [31:26] page_offset
            "Start of the queue in its first page, in units of 64 bytes; not where other contexts \
             have it.";
        0x08 [24] dbr_umem_valid "The doorbell record stands in a user memory object.";
        0x08 [23:0] cqn "Completion queue of the queue.";
        0x10 [31] user_index_equal_xrc_srqn "CQEs carry the queue's own number as user index.";
        0x10 [29:24] log_page_size "Log2 of the page size of the buffer, minus 12.";
        0x10 [23:0] user_index "Value that CQEs carry when `cqe_version` is 1.";
        0x18 [23:0] pd "Protection domain of the queue.";
        0x1c [31:16] lwm "Low-water mark: an event is raised when fewer WQEs are left.";
        0x1c [15:0] wqe_cnt "WQEs that are left.";
        0x28 [31:0] db_record_addr_h "High half of the address of the doorbell record.";
        0x2c [31:2] db_record_addr_l "Bits 31 to 2 of the address of the doorbell record.";
    }
}

impl XrcSrqc {
    /// Address of the doorbell record, a multiple of 4.
    pub fn dbr_addr(&self) -> u64 {
        u64::from(self.db_record_addr_h()) << 32 | u64::from(self.db_record_addr_l()) << 2
    }

    /// Returns the context with that address replaced; the low two bits are cut off.
    #[must_use]
    pub fn with_dbr_addr(self, address: u64) -> Self {
        self.with_db_record_addr_h((address >> 32) as u32)
            .with_db_record_addr_l((address as u32) >> 2)
    }
}
