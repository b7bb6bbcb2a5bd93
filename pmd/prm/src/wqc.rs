//! Work queue contexts: the shared `wq`, and SQ, RQ and RMP around it.
//!
//! Source: reference 5.6 to 5.9; PRM "Work Queue Context", `mlx5_ifc_wq_bits`, `sqc`, `rqc`,
//! `rmpc`.

use crate::layout;
use crate::layout::values;

layout! {
    /// Work queue, 192 bytes (`wq`); the page list follows it.
    pub struct Wq [0xc0] {
        0x00 [31:28] wq_type "Shape of the ring, see [`wq_type`].";
        0x00 [27] wq_signature "The device checks the signatures of WQEs.";
        0x00 [26:25] end_padding_mode "Received data are padded: 0 not, 1 to a whole cache line.";
        0x00 [24] cd_slave "Cross-channel: the queue waits to be enabled.";
        0x04 [31] hds_skip_first_sge "Header split: the first scatter entry is left out.";
        0x04 [30:28] log2_hds_buf_size "Header split: log2 of the header buffer.";
        0x04 [20:16] page_offset "Start of the queue in its first page, in units of 64 bytes.";
        0x04 [15:0] lwm "Low-water mark: the limit of an SRQ or RMP in WQEs.";
        0x08 [23:0] pd "Protection domain of the queue.";
        0x0c [23:0] uar_page "SQ: UAR page from which its doorbell is rung.";
        0x10 (u64) dbr_addr "Address of the doorbell record: receive counter, then send counter.";
        0x18 [31:0] hw_counter "WQEs that the device has taken.";
        0x1c [31:0] sw_counter "WQEs that the driver has posted.";
        0x20 [19:16] log_wq_stride "Log2 of the bytes of a WQE; 6 for an SQ.";
        0x20 [12:8] log_wq_pg_sz "Log2 of the page size of the buffer, minus 12.";
        0x20 [4:0] log_wq_sz "Log2 of the number of WQEs; for an SQ, of basic blocks.";
        0x24 [31] dbr_umem_valid "The doorbell record stands in a user memory object.";
        0x24 [30] wq_umem_valid "The queue stands in a user memory object.";
        0x24 [28:24] log_hairpin_num_packets "Hairpin: log2 of the packets in the queue.";
        0x24 [20:16] log_hairpin_data_sz "Hairpin: log2 of the bytes in the queue.";
        0x24 [11:8] log_wqe_num_of_strides "Striding RQ: log2 of the strides per WQE, minus 9.";
        0x24 [7] two_byte_shift_en
            "Packets start two bytes into their buffer, so that IP is aligned.";
        0x24 [2:0] log_wqe_stride_size "Striding RQ: log2 of the bytes of a stride, minus 6.";
        0x28 [31:0] dbr_umem_id "User memory object of the doorbell record (umem queues).";
        0x2c [31:0] wq_umem_id "User memory object of the queue (umem queues).";
        0x30 (u64) wq_umem_offset "Offset of the queue in its user memory object.";
        0x38 [31:0] headers_mkey "SHAMPO: mkey of the header buffer.";
        0x3c [31] shampo_enable
            "SHAMPO: headers and data are split, packets of a connection merged.";
        0x3c [26:24] log_reservation_size "SHAMPO: log2 of the memory reserved for a connection.";
        0x3c [18:16] log_max_num_of_packets_per_reservation
            "SHAMPO: log2 of the packets merged into a reservation.";
        0x3c [9:8] log_headers_entry_size "SHAMPO: log2 of the bytes of a header entry.";
        0x3c [3:0] log_headers_buffer_entry_num "SHAMPO: log2 of the entries of the header buffer.";
    }

    /// Send queue context, 240 bytes (`sqc`).
    pub struct Sqc [0xf0] {
        0x00 [31] rlky "WQEs may use the reserved lkey.";
        0x00 [30] cd_master "Cross-channel: this queue may enable others.";
        0x00 [29] fre "Fast registration is allowed.";
        0x00 [28] flush_in_error_en "WQEs left over after an error get a CQE each.";
        0x00 [27] allow_multi_pkt_send_wqe "Legacy multi-packet WQEs are allowed.";
        0x00 [26:24] min_wqe_inline_mode
            "Headers that a WQE must carry inline: 0 none, 1 L2, 2 IP, 3 TCP/UDP.";
        0x00 [23:20] state "One of [`state`].";
        0x00 [19] reg_umr "UMR requests are allowed.";
        0x00 [18] allow_swp "WQEs may say where their headers are (software parser).";
        0x00 [17] hairpin "The queue is one end of a hairpin.";
        0x00 [16] non_wire "Packets of this queue never reach the wire (Linux 6.12, DPDK).";
        0x00 [5:4] ts_format "Time stamps of CQEs: 0 free running, 1 default, 2 real time.";
        0x04 [23:0] user_index "Value that CQEs carry when `cqe_version` is 1.";
        0x08 [23:0] cqn "Completion queue of this queue.";
        0x0c [23:0] hairpin_peer_rq "Receive queue at the other end of the hairpin.";
        0x10 [15:0] hairpin_peer_vhca "Function at the other end of the hairpin.";
        0x18 [23:0] ts_cqe_to_dest_cqn "Completion queue that time stamps go to.";
        0x1c [15:0] packet_pacing_rate_limit_index "Entry of the rate limit table; 0: no limit.";
        0x20 [31:16] tis_lst_sz
            "Number of TISs: 1, or 0 for a queue that only carries UMR requests.";
        0x20 [15:0] qos_queue_group_id "QoS queue group; 0: none.";
        0x2c [23:0] tis_num_0 "TIS of the queue.";
        0x30 (Wq) wq "The work queue itself.";
    }

    /// Receive queue context, 240 bytes (`rqc`).
    pub struct Rqc [0xf0] {
        0x00 [31] rlky "WQEs may use the reserved lkey.";
        0x00 [30] delay_drop_en "Packets wait for a WQE instead of being dropped.";
        0x00 [29] scatter_fcs "The frame check sequence is received too.";
        0x00 [28] vsd "VLAN tags are not stripped.";
        0x00 [27:24] mem_rq_type "Where WQEs come from, see [`mem_rq_type`].";
        0x00 [23:20] state "One of [`state`].";
        0x00 [18] flush_in_error_en "WQEs left over after an error get a CQE each.";
        0x00 [17] hairpin "The queue is one end of a hairpin.";
        0x00 [5:4] ts_format "Time stamps of CQEs: 0 free running, 1 default, 2 real time.";
        0x04 [23:0] user_index "Value that CQEs carry when `cqe_version` is 1.";
        0x08 [23:0] cqn "Completion queue of this queue.";
        0x0c [31:24] counter_set_id "Q counter set that counts drops of this queue.";
        0x10 [23:0] rmpn "RMP that WQEs come from.";
        0x14 [23:0] hairpin_peer_sq "Send queue at the other end of the hairpin.";
        0x18 [15:0] hairpin_peer_vhca "Function at the other end of the hairpin.";
        0x24 [25:24] shampo_no_match_alignment_granularity
            "SHAMPO: alignment of packets that match no connection.";
        0x24 [17:16] shampo_match_criteria_type "SHAMPO: what makes packets belong together.";
        0x24 [15:0] reservation_timeout "SHAMPO: how long a reservation stays open.";
        0x30 (Wq) wq "The work queue itself.";
    }

    /// Receive memory pool context, 240 bytes (`rmpc`).
    pub struct Rmpc [0xf0] {
        0x00 [23:20] state "One of [`state`].";
        0x04 [31] basic_cyclic_rcv_wqe
            "The pool is cyclic; else its WQEs are linked by a next segment.";
        0x30 (Wq) wq "The work queue that holds the WQEs.";
    }
}

values! {
    /// [`Wq::wq_type`]. Source: reference 5.6.
    pub mod wq_type: u32 {
        0 LINKED_LIST "WQEs are linked by their next segments.";
        1 CYCLIC "WQEs follow each other in the ring.";
        2 LINKED_LIST_STRIDING "Linked, each WQE a buffer of many strides.";
        3 CYCLIC_STRIDING "Cyclic, each WQE a buffer of many strides.";
    }
}

values! {
    /// States of an SQ, an RQ and an RMP. Source: reference 4.3, MODIFY_SQ and MODIFY_RQ.
    pub mod state: u32 {
        0 RST "Reset: the device does not touch the queue.";
        1 RDY "Ready: the device works on it.";
        3 ERR "Error: the device flushes it.";
    }
}

values! {
    /// [`Rqc::mem_rq_type`]. Source: reference 5.8.
    pub mod mem_rq_type: u32 {
        0 INLINE "WQEs stand in the queue's own ring.";
        1 RMP "WQEs come from the receive memory pool [`super::Rqc::rmpn`].";
    }
}

/// Log2 of the strides is [`Wq::log_wqe_num_of_strides`] plus this. Source: reference 5.6.
pub const LOG_STRIDES_BASE: u32 = 9;
/// Log2 of the bytes of a stride is [`Wq::log_wqe_stride_size`] plus this. Source: reference 5.6.
pub const LOG_STRIDE_BYTES_BASE: u32 = 6;
