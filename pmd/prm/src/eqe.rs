//! Event queue entries.
//!
//! Source: reference 6.10; PRM "Event Queue Entry", `mlx5_eqe`.

use crate::layout;
use crate::layout::values;

layout! {
    /// Event queue entry, 64 bytes.
    pub struct Eqe [0x40] {
        0x00 [23:16] event_type "Type of the event, see [`EventType`].";
        0x00 [7:0] event_sub_type "Detail; its meaning depends on the type.";
        0x20 ([u8; 28]) event_data "Depends on the type: one of the `Event*` layouts.";
        0x3c [15:8] signature "XOR signature of the entry.";
        0x3c [0] owner "Toggles each time around the ring, 0 the first time.";
    }

    /// Data of [`EventType::COMPLETION`].
    pub struct EventCompletion [0x1c] {
        0x18 [23:0] cqn "Completion queue with something to report.";
    }

    /// Data of the events about a QP, RQ, SQ, or SRQ.
    pub struct EventQueue [0x1c] {
        0x14 [31:24] queue_type "0 QP, 1 RQ, 2 SQ, 6 DCT.";
        0x18 [23:0] number "Number of that queue.";
    }

    /// Data of [`EventType::CQ_ERROR`].
    pub struct EventCqError [0x1c] {
        0x00 [23:0] cqn "Completion queue that failed.";
        0x08 [7:0] syndrome "[`CQ_ERROR_OVERRUN`] or [`CQ_ERROR_ACCESS`].";
    }

    /// Data of [`EventType::PORT_CHANGE`]; the sub type is a [`PortChange`].
    pub struct EventPortChange [0x1c] {
        0x08 [31:28] port_num "Port, 1-based.";
    }

    /// Data of [`EventType::COMMAND`].
    pub struct EventCommand [0x1c] {
        0x00 [31:0] vector "Bit i: queue entry i has completed.";
    }

    /// Data of [`EventType::PAGE_REQUEST`].
    pub struct EventPageRequest [0x1c] {
        0x00 [31] ec_function "The function is the embedded CPU's.";
        0x00 [30] release_all "The device has let go of all pages of the function.";
        0x00 [15:0] function_id "Function that needs pages.";
        0x04 [31:0] num_pages
            "Number of 4 KiB pages, two's complement: negative means that they come back.";
    }
}

values! {
    /// [`Eqe::event_type`]. Source: reference 6.10, `enum mlx5_event`.
    pub struct EventType(u8) {
        0x00 COMPLETION "A completion queue has something to report.";
        0x01 PATH_MIGRATED "Path migrated.";
        0x02 COMM_ESTABLISHED "First packet on a queue pair that was waiting for it.";
        0x03 SQ_DRAINED "A send queue is drained.";
        0x04 CQ_ERROR "A completion queue overran or could not be written.";
        0x05 WQ_CATASTROPHIC "A work queue failed for good.";
        0x07 PATH_MIG_FAILED "Path migration failed.";
        0x08 INTERNAL_ERROR "The firmware failed.";
        0x09 PORT_CHANGE "The link changed.";
        0x0a COMMAND "Commands have completed.";
        0x0b PAGE_REQUEST "The device wants pages, or gives them back.";
        0x0d NIC_VPORT_CHANGE "The NIC vport context changed.";
        0x10 WQ_INVALID_REQ "A work queue got an invalid request.";
        0x11 WQ_ACCESS_ERROR "A work queue violated access rights.";
        0x12 SRQ_CATASTROPHIC "A shared receive queue failed for good.";
        0x13 SRQ_LAST_WQE
            "The last WQE of a shared receive queue was taken by a queue pair in error.";
        0x14 SRQ_LIMIT "A shared receive queue fell below its limit.";
        0x16 PORT_MODULE "A module was plugged in or out.";
        0x17 TEMP_WARN "The device is hot.";
        0x22 GENERAL "General notification.";
    }
}

values! {
    /// Sub type of [`EventType::PORT_CHANGE`]. Source: reference 6.10.
    pub struct PortChange(u8) {
        1 DOWN "The link went down.";
        4 ACTIVE "The link came up.";
        5 INITIALIZED "The link is initialized (InfiniBand).";
    }
}

/// [`EventCqError::syndrome`]: the queue was full.
pub const CQ_ERROR_OVERRUN: u32 = 1;
/// [`EventCqError::syndrome`]: the queue could not be written.
pub const CQ_ERROR_ACCESS: u32 = 2;

/// Last byte of an EQE that was never written: owner 1. Source: reference 4.3, CREATE_EQ.
pub const EQE_INVALID_OWNER: u8 = 0x01;
