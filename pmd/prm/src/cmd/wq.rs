//! Ethernet work queues.
//!
//! Source: reference 4.2; PRM, the chapter of each command; `mlx5_ifc_<command>_in_bits`.

use crate::layout::bits;
use crate::wqc::{Rmpc, Rqc, Sqc};
use crate::{command, layout};

layout! {
    /// CREATE_SQ input, 0x110 bytes. The page list follows.
    pub struct CreateSqIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// The context.
        0x20 (Sqc) ctx;
    }

    /// CREATE_SQ output, 0x10 bytes.
    pub struct CreateSqOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Number of the send queue.
        0x08 [23:0] sqn;
    }

    /// MODIFY_SQ input, 0x110 bytes.
    pub struct ModifySqIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// State that the queue is in now: 0 reset, 1 ready, 3 error.
        0x08 [31:28] sq_state;
        /// Number of the send queue.
        0x08 [23:0] sqn;
        /// What to change.
        0x10 (u64) modify_bitmask;
        /// The context.
        0x20 (Sqc) ctx;
    }

    /// MODIFY_SQ output, 0x10 bytes.
    pub struct ModifySqOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// DESTROY_SQ input, 0x10 bytes.
    pub struct DestroySqIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the send queue.
        0x08 [23:0] sqn;
    }

    /// DESTROY_SQ output, 0x10 bytes.
    pub struct DestroySqOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// QUERY_SQ input, 0x10 bytes.
    pub struct QuerySqIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the send queue.
        0x08 [23:0] sqn;
    }

    /// QUERY_SQ output, 0x110 bytes.
    pub struct QuerySqOut [0x110] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// The send queue's context.
        0x20 (Sqc) sq_context;
    }

    /// CREATE_RQ input, 0x110 bytes. The page list follows.
    pub struct CreateRqIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// The context.
        0x20 (Rqc) ctx;
    }

    /// CREATE_RQ output, 0x10 bytes.
    pub struct CreateRqOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Number of the receive queue.
        0x08 [23:0] rqn;
    }

    /// MODIFY_RQ input, 0x110 bytes.
    pub struct ModifyRqIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// State that the queue is in now: 0 reset, 1 ready, 3 error.
        0x08 [31:28] rq_state;
        /// Number of the receive queue.
        0x08 [23:0] rqn;
        /// What to change.
        0x10 (u64) modify_bitmask;
        /// The context.
        0x20 (Rqc) ctx;
    }

    /// MODIFY_RQ output, 0x10 bytes.
    pub struct ModifyRqOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// DESTROY_RQ input, 0x10 bytes.
    pub struct DestroyRqIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the receive queue.
        0x08 [23:0] rqn;
    }

    /// DESTROY_RQ output, 0x10 bytes.
    pub struct DestroyRqOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// QUERY_RQ input, 0x10 bytes.
    pub struct QueryRqIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the receive queue.
        0x08 [23:0] rqn;
    }

    /// QUERY_RQ output, 0x110 bytes.
    pub struct QueryRqOut [0x110] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// The receive queue's context.
        0x20 (Rqc) rq_context;
    }

    /// CREATE_RMP input, 0x110 bytes. The page list follows.
    pub struct CreateRmpIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// The context.
        0x20 (Rmpc) ctx;
    }

    /// CREATE_RMP output, 0x10 bytes.
    pub struct CreateRmpOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Number of the receive memory pool.
        0x08 [23:0] rmpn;
    }

    /// MODIFY_RMP input, 0x110 bytes.
    pub struct ModifyRmpIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// State that the pool is in now: 1 ready, 3 error.
        0x08 [31:28] rmp_state;
        /// Number of the receive memory pool.
        0x08 [23:0] rmpn;
        /// What to change.
        0x10 (u64) bitmask;
        /// The context.
        0x20 (Rmpc) ctx;
    }

    /// MODIFY_RMP output, 0x10 bytes.
    pub struct ModifyRmpOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// DESTROY_RMP input, 0x10 bytes.
    pub struct DestroyRmpIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the receive memory pool.
        0x08 [23:0] rmpn;
    }

    /// DESTROY_RMP output, 0x10 bytes.
    pub struct DestroyRmpOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// QUERY_RMP input, 0x10 bytes.
    pub struct QueryRmpIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the receive memory pool.
        0x08 [23:0] rmpn;
    }

    /// QUERY_RMP output, 0x110 bytes.
    pub struct QueryRmpOut [0x110] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// The pool's context.
        0x20 (Rmpc) rmp_context;
    }
}

command! {
    CreateSq CREATE_SQ: CreateSqIn => CreateSqOut,
    ModifySq MODIFY_SQ: ModifySqIn => ModifySqOut,
    DestroySq DESTROY_SQ: DestroySqIn => DestroySqOut,
    QuerySq QUERY_SQ: QuerySqIn => QuerySqOut,
    CreateRq CREATE_RQ: CreateRqIn => CreateRqOut,
    ModifyRq MODIFY_RQ: ModifyRqIn => ModifyRqOut,
    DestroyRq DESTROY_RQ: DestroyRqIn => DestroyRqOut,
    QueryRq QUERY_RQ: QueryRqIn => QueryRqOut,
    CreateRmp CREATE_RMP: CreateRmpIn => CreateRmpOut,
    ModifyRmp MODIFY_RMP: ModifyRmpIn => ModifyRmpOut,
    DestroyRmp DESTROY_RMP: DestroyRmpIn => DestroyRmpOut,
    QueryRmp QUERY_RMP: QueryRmpIn => QueryRmpOut,
}

bits! {
    /// Bits of MODIFY_RQ's `modify_bitmask`. Source: reference 4.3.
    pub mod modify_rq: u64 {
        1 VSD: vsd;
        2 SCATTER_FCS: scatter_fcs;
        3 COUNTER_SET_ID: counter_set_id;
    }
}

/// Bit of MODIFY_RMP's `modify_bitmask`: the limit. Source: reference 4.3.
pub const MODIFY_RMP_LWM: u64 = 1;
