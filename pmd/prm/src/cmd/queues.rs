//! Event and completion queues.
//!
//! Source: reference 4.2; PRM, the chapter of each command; `mlx5_ifc_<command>_in_bits`.

use crate::cqc::Cqc;
use crate::eqc::Eqc;
use crate::layout::bits;
use crate::{command, layout};

layout! {
    /// CREATE_EQ input, 0x110 bytes. The page list follows.
    pub struct CreateEqIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// The event queue's context.
        0x10 (Eqc) eq_context_entry;
        /// Events to raise, four big-endian 64-bit words: event n is bit n % 64 of word n / 64.
        0x58 ([u8; 32]) event_bitmask;
    }

    /// CREATE_EQ output, 0x10 bytes.
    pub struct CreateEqOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Number of the event queue.
        0x08 [7:0] eq_number;
    }

    /// DESTROY_EQ input, 0x10 bytes.
    pub struct DestroyEqIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the event queue.
        0x08 [7:0] eq_number;
    }

    /// DESTROY_EQ output, 0x10 bytes.
    pub struct DestroyEqOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// QUERY_EQ input, 0x10 bytes.
    pub struct QueryEqIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the event queue.
        0x08 [7:0] eq_number;
    }

    /// QUERY_EQ output, 0x110 bytes. The page list follows.
    pub struct QueryEqOut [0x110] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// The event queue's context.
        0x10 (Eqc) eq_context_entry;
        /// Events to raise, four big-endian 64-bit words: event n is bit n % 64 of word n / 64.
        0x58 (u64) event_bitmask;
    }

    /// CREATE_CQ input, 0x110 bytes. The page list follows.
    pub struct CreateCqIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// The completion queue's context.
        0x10 (Cqc) cq_context;
        /// The queue stands in a user memory object.
        0x5c [31] cq_umem_valid;
    }

    /// CREATE_CQ output, 0x10 bytes.
    pub struct CreateCqOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Number of the completion queue.
        0x08 [23:0] cqn;
    }

    /// MODIFY_CQ input, 0x110 bytes; op_mod 0 fields, 1 resize. The page list follows.
    pub struct ModifyCqIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the completion queue.
        0x08 [23:0] cqn;
        /// What to change: period 1, count 2, `oi` 4, EQ 8; resizing: size 1, offset 2, page size
        /// 4.
        0x0c [31:0] modify_field_select_resize_field_select;
        /// The completion queue's context.
        0x10 (Cqc) cq_context;
        /// The queue stands in a user memory object.
        0x5c [31] cq_umem_valid;
    }

    /// MODIFY_CQ output, 0x10 bytes.
    pub struct ModifyCqOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// DESTROY_CQ input, 0x10 bytes.
    pub struct DestroyCqIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the completion queue.
        0x08 [23:0] cqn;
    }

    /// DESTROY_CQ output, 0x10 bytes.
    pub struct DestroyCqOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// QUERY_CQ input, 0x10 bytes.
    pub struct QueryCqIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the completion queue.
        0x08 [23:0] cqn;
    }

    /// QUERY_CQ output, 0x110 bytes. The page list follows.
    pub struct QueryCqOut [0x110] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// The completion queue's context.
        0x10 (Cqc) cq_context;
    }
}

command! {
    CreateEq CREATE_EQ: CreateEqIn => CreateEqOut,
    DestroyEq DESTROY_EQ: DestroyEqIn => DestroyEqOut,
    QueryEq QUERY_EQ: QueryEqIn => QueryEqOut,
    CreateCq CREATE_CQ: CreateCqIn => CreateCqOut,
    ModifyCq MODIFY_CQ: ModifyCqIn => ModifyCqOut,
    DestroyCq DESTROY_CQ: DestroyCqIn => DestroyCqOut,
    QueryCq QUERY_CQ: QueryCqIn => QueryCqOut,
}

bits! {
    /// Bits of MODIFY_CQ's select word with `op_mod` 0. Source: reference 4.3.
    pub mod modify_cq: u32 {
        0 PERIOD: cq_period;
        1 MAX_COUNT: cq_max_count;
        2 OI: oi;
        3 C_EQN: c_eqn_or_apu_element;
        4 PERIOD_MODE: cq_period_mode;
    }
}

bits! {
    /// Bits of MODIFY_CQ's select word with `op_mod` 1, a resize. Source: reference 4.3.
    pub mod resize_cq: u32 {
        0 LOG_SIZE: log_cq_size;
        1 PAGE_OFFSET: page_offset;
        2 LOG_PAGE_SIZE: log_page_size;
    }
}
