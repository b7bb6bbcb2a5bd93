//! Ethernet work queues.
//!
//! Source: reference 4.2; PRM, the chapter of each command; `mlx5_ifc_<command>_in_bits`.

use crate::wqc::{Rmpc, Rqc, Sqc};
use crate::{command, layout};

layout! {
    /// CREATE_SQ input, 0x110 bytes. The page list follows.
    pub struct CreateSqIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// The context.
        0x20 (Sqc) ctx, with_ctx;
    }

    /// CREATE_SQ output, 0x10 bytes.
    pub struct CreateSqOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
        /// Number of the send queue.
        0x08 [23:0] sqn, with_sqn;
    }

    /// MODIFY_SQ input, 0x110 bytes.
    pub struct ModifySqIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// State that the queue is in now: 0 reset, 1 ready, 3 error.
        0x08 [31:28] sq_state, with_sq_state;
        /// Number of the send queue.
        0x08 [23:0] sqn, with_sqn;
        /// What to change.
        0x10 (u64) modify_bitmask, with_modify_bitmask;
        /// The context.
        0x20 (Sqc) ctx, with_ctx;
    }

    /// MODIFY_SQ output, 0x10 bytes.
    pub struct ModifySqOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
    }

    /// DESTROY_SQ input, 0x10 bytes.
    pub struct DestroySqIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// Number of the send queue.
        0x08 [23:0] sqn, with_sqn;
    }

    /// DESTROY_SQ output, 0x10 bytes.
    pub struct DestroySqOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
    }

    /// QUERY_SQ input, 0x10 bytes.
    pub struct QuerySqIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// Number of the send queue.
        0x08 [23:0] sqn, with_sqn;
    }

    /// QUERY_SQ output, 0x110 bytes.
    pub struct QuerySqOut [0x110] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
        /// The send queue's context.
        0x20 (Sqc) sq_context, with_sq_context;
    }

    /// CREATE_RQ input, 0x110 bytes. The page list follows.
    pub struct CreateRqIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// The context.
        0x20 (Rqc) ctx, with_ctx;
    }

    /// CREATE_RQ output, 0x10 bytes.
    pub struct CreateRqOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
        /// Number of the receive queue.
        0x08 [23:0] rqn, with_rqn;
    }

    /// MODIFY_RQ input, 0x110 bytes.
    pub struct ModifyRqIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// State that the queue is in now: 0 reset, 1 ready, 3 error.
        0x08 [31:28] rq_state, with_rq_state;
        /// Number of the receive queue.
        0x08 [23:0] rqn, with_rqn;
        /// What to change.
        0x10 (u64) modify_bitmask, with_modify_bitmask;
        /// The context.
        0x20 (Rqc) ctx, with_ctx;
    }

    /// MODIFY_RQ output, 0x10 bytes.
    pub struct ModifyRqOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
    }

    /// DESTROY_RQ input, 0x10 bytes.
    pub struct DestroyRqIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// Number of the receive queue.
        0x08 [23:0] rqn, with_rqn;
    }

    /// DESTROY_RQ output, 0x10 bytes.
    pub struct DestroyRqOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
    }

    /// QUERY_RQ input, 0x10 bytes.
    pub struct QueryRqIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// Number of the receive queue.
        0x08 [23:0] rqn, with_rqn;
    }

    /// QUERY_RQ output, 0x110 bytes.
    pub struct QueryRqOut [0x110] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
        /// The receive queue's context.
        0x20 (Rqc) rq_context, with_rq_context;
    }

    /// CREATE_RMP input, 0x110 bytes. The page list follows.
    pub struct CreateRmpIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// The context.
        0x20 (Rmpc) ctx, with_ctx;
    }

    /// CREATE_RMP output, 0x10 bytes.
    pub struct CreateRmpOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
        /// Number of the receive memory pool.
        0x08 [23:0] rmpn, with_rmpn;
    }

    /// MODIFY_RMP input, 0x110 bytes.
    pub struct ModifyRmpIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// State that the pool is in now: 1 ready, 3 error.
        0x08 [31:28] rmp_state, with_rmp_state;
        /// Number of the receive memory pool.
        0x08 [23:0] rmpn, with_rmpn;
        /// What to change.
        0x10 (u64) bitmask, with_bitmask;
        /// The context.
        0x20 (Rmpc) ctx, with_ctx;
    }

    /// MODIFY_RMP output, 0x10 bytes.
    pub struct ModifyRmpOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
    }

    /// DESTROY_RMP input, 0x10 bytes.
    pub struct DestroyRmpIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// Number of the receive memory pool.
        0x08 [23:0] rmpn, with_rmpn;
    }

    /// DESTROY_RMP output, 0x10 bytes.
    pub struct DestroyRmpOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
    }

    /// QUERY_RMP input, 0x10 bytes.
    pub struct QueryRmpIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode, with_opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid, with_uid;
        /// Operation modifier.
        0x04 [15:0] op_mod, with_op_mod;
        /// Number of the receive memory pool.
        0x08 [23:0] rmpn, with_rmpn;
    }

    /// QUERY_RMP output, 0x110 bytes.
    pub struct QueryRmpOut [0x110] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status, with_status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome, with_syndrome;
        /// The pool's context.
        0x20 (Rmpc) rmp_context, with_rmp_context;
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
