//! Event queue entries.
//!
//! Source: reference 6.10; PRM "Event Queue Entry", `mlx5_eqe`.

use crate::layout;

layout! {
    /// Event queue entry, 64 bytes.
    pub struct Eqe [0x40] {
        /// What happened, see [`EventType`].
        0x00 [23:16] event_type;
        /// Detail; its meaning depends on the type.
        0x00 [7:0] event_sub_type;
        /// Depends on the type: one of the `Event*` layouts.
        0x20 ([u8; 28]) event_data;
        /// XOR signature of the entry.
        0x3c [15:8] signature;
        /// Toggles each time around the ring, 0 the first time.
        0x3c [0] owner;
    }

    /// Data of [`EventType::COMPLETION`].
    pub struct EventCompletion [0x1c] {
        /// Completion queue with something to report.
        0x18 [23:0] cqn;
    }

    /// Data of the events about a QP, RQ, SQ, or SRQ.
    pub struct EventQueue [0x1c] {
        /// 0 QP, 1 RQ, 2 SQ, 6 DCT.
        0x14 [31:24] queue_type;
        /// Number of that queue.
        0x18 [23:0] number;
    }

    /// Data of [`EventType::CQ_ERROR`].
    pub struct EventCqError [0x1c] {
        /// Completion queue that failed.
        0x00 [23:0] cqn;
        /// [`CQ_ERROR_OVERRUN`] or [`CQ_ERROR_ACCESS`].
        0x08 [7:0] syndrome;
    }

    /// Data of [`EventType::PORT_CHANGE`]; the sub type is a [`PortChange`].
    pub struct EventPortChange [0x1c] {
        /// Port, 1-based.
        0x08 [31:28] port_num;
    }

    /// Data of [`EventType::COMMAND`].
    pub struct EventCommand [0x1c] {
        /// Bit i: queue entry i has completed.
        0x00 [31:0] vector;
    }

    /// Data of [`EventType::PAGE_REQUEST`].
    pub struct EventPageRequest [0x1c] {
        /// The function is the embedded CPU's.
        0x00 [31] ec_function;
        /// The device has let go of all pages of the function.
        0x00 [30] release_all;
        /// Function that needs pages.
        0x00 [15:0] function_id;
        /// Number of 4 KiB pages, two's complement: negative means that they come back.
        0x04 [31:0] num_pages;
    }
}

/// [`Eqe::event_type`]. Source: reference 6.10, `enum mlx5_event`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventType(pub u8);

impl EventType {
    /// A completion queue has something to report.
    pub const COMPLETION: Self = Self(0x00);
    /// Path migrated.
    pub const PATH_MIGRATED: Self = Self(0x01);
    /// First packet on a queue pair that was waiting for it.
    pub const COMM_ESTABLISHED: Self = Self(0x02);
    /// A send queue is drained.
    pub const SQ_DRAINED: Self = Self(0x03);
    /// A completion queue overran or could not be written.
    pub const CQ_ERROR: Self = Self(0x04);
    /// A work queue failed for good.
    pub const WQ_CATASTROPHIC: Self = Self(0x05);
    /// Path migration failed.
    pub const PATH_MIG_FAILED: Self = Self(0x07);
    /// The firmware failed.
    pub const INTERNAL_ERROR: Self = Self(0x08);
    /// The link changed.
    pub const PORT_CHANGE: Self = Self(0x09);
    /// Commands have completed.
    pub const COMMAND: Self = Self(0x0a);
    /// The device wants pages, or gives them back.
    pub const PAGE_REQUEST: Self = Self(0x0b);
    /// The NIC vport context changed.
    pub const NIC_VPORT_CHANGE: Self = Self(0x0d);
    /// A work queue got an invalid request.
    pub const WQ_INVALID_REQ: Self = Self(0x10);
    /// A work queue violated access rights.
    pub const WQ_ACCESS_ERROR: Self = Self(0x11);
    /// A shared receive queue failed for good.
    pub const SRQ_CATASTROPHIC: Self = Self(0x12);
    /// The last WQE of a shared receive queue was taken by a queue pair in error.
    pub const SRQ_LAST_WQE: Self = Self(0x13);
    /// A shared receive queue fell below its limit.
    pub const SRQ_LIMIT: Self = Self(0x14);
    /// A module was plugged in or out.
    pub const PORT_MODULE: Self = Self(0x16);
    /// The device is hot.
    pub const TEMP_WARN: Self = Self(0x17);
    /// General notification.
    pub const GENERAL: Self = Self(0x22);
}

/// Sub type of [`EventType::PORT_CHANGE`]. Source: reference 6.10.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortChange(pub u8);

impl PortChange {
    /// The link went down.
    pub const DOWN: Self = Self(1);
    /// The link came up.
    pub const ACTIVE: Self = Self(4);
    /// The link is initialized (InfiniBand).
    pub const INITIALIZED: Self = Self(5);
}

/// [`EventCqError::syndrome`]: the queue was full.
pub const CQ_ERROR_OVERRUN: u32 = 1;
/// [`EventCqError::syndrome`]: the queue could not be written.
pub const CQ_ERROR_ACCESS: u32 = 2;

/// Last byte of an EQE that was never written: owner 1. Source: reference 4.3, CREATE_EQ.
pub const EQE_INVALID_OWNER: u8 = 0x01;

/// Log2 of the bytes of an [`Eqe`].
pub const LOG_EQE_BYTES: u32 = 6;
