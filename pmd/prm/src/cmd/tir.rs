//! Transport interface objects and RSS tables.
//!
//! Source: reference 4.2; PRM, the chapter of each command; `mlx5_ifc_<command>_in_bits`.

use crate::layout::bits;
use crate::tirc::{Rqtc, Tirc, Tisc};
use crate::{command, layout};

layout! {
    /// CREATE_RQT input, 0x110 bytes. The list of RQ numbers follows.
    pub struct CreateRqtIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// The RQ table's context.
        0x20 (Rqtc) rqt_context;
    }

    /// CREATE_RQT output, 0x10 bytes.
    pub struct CreateRqtOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Number of the RQ table.
        0x08 [23:0] rqtn;
    }

    /// MODIFY_RQT input, 0x110 bytes. The list of RQ numbers follows.
    pub struct ModifyRqtIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the RQ table.
        0x08 [23:0] rqtn;
        /// What to change.
        0x10 (u64) bitmask;
        /// The context.
        0x20 (Rqtc) ctx;
    }

    /// MODIFY_RQT output, 0x10 bytes.
    pub struct ModifyRqtOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// DESTROY_RQT input, 0x10 bytes.
    pub struct DestroyRqtIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the RQ table.
        0x08 [23:0] rqtn;
    }

    /// DESTROY_RQT output, 0x10 bytes.
    pub struct DestroyRqtOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// QUERY_RQT input, 0x10 bytes.
    pub struct QueryRqtIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the RQ table.
        0x08 [23:0] rqtn;
    }

    /// QUERY_RQT output, 0x110 bytes.
    pub struct QueryRqtOut [0x110] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// The RQ table's context.
        0x20 (Rqtc) rqt_context;
    }

    /// CREATE_TIR input, 0x110 bytes.
    pub struct CreateTirIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// The context.
        0x20 (Tirc) ctx;
    }

    /// CREATE_TIR output, 0x10 bytes.
    pub struct CreateTirOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Number of the TIR.
        0x08 [23:0] tirn;
    }

    /// MODIFY_TIR input, 0x110 bytes.
    pub struct ModifyTirIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the TIR.
        0x08 [23:0] tirn;
        /// What to change.
        0x10 (u64) bitmask;
        /// The context.
        0x20 (Tirc) ctx;
    }

    /// MODIFY_TIR output, 0x10 bytes.
    pub struct ModifyTirOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// DESTROY_TIR input, 0x10 bytes.
    pub struct DestroyTirIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the TIR.
        0x08 [23:0] tirn;
    }

    /// DESTROY_TIR output, 0x10 bytes.
    pub struct DestroyTirOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// QUERY_TIR input, 0x10 bytes.
    pub struct QueryTirIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the TIR.
        0x08 [23:0] tirn;
    }

    /// QUERY_TIR output, 0x110 bytes.
    pub struct QueryTirOut [0x110] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// The TIR's context.
        0x20 (Tirc) tir_context;
    }

    /// CREATE_TIS input, 0xc0 bytes.
    pub struct CreateTisIn [0xc0] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// The context.
        0x20 (Tisc) ctx;
    }

    /// CREATE_TIS output, 0x10 bytes.
    pub struct CreateTisOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Number of the TIS.
        0x08 [23:0] tisn;
    }

    /// MODIFY_TIS input, 0xc0 bytes.
    pub struct ModifyTisIn [0xc0] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the TIS.
        0x08 [23:0] tisn;
        /// What to change.
        0x10 (u64) bitmask;
        /// The context.
        0x20 (Tisc) ctx;
    }

    /// MODIFY_TIS output, 0x10 bytes.
    pub struct ModifyTisOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// DESTROY_TIS input, 0x10 bytes.
    pub struct DestroyTisIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the TIS.
        0x08 [23:0] tisn;
    }

    /// DESTROY_TIS output, 0x10 bytes.
    pub struct DestroyTisOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// QUERY_TIS input, 0x10 bytes.
    pub struct QueryTisIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the TIS.
        0x08 [23:0] tisn;
    }

    /// QUERY_TIS output, 0xb0 bytes.
    pub struct QueryTisOut [0xb0] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// The TIS's context.
        0x10 (Tisc) tis_context;
    }
}

command! {
    CreateRqt CREATE_RQT: CreateRqtIn => CreateRqtOut,
    ModifyRqt MODIFY_RQT: ModifyRqtIn => ModifyRqtOut,
    DestroyRqt DESTROY_RQT: DestroyRqtIn => DestroyRqtOut,
    QueryRqt QUERY_RQT: QueryRqtIn => QueryRqtOut,
    CreateTir CREATE_TIR: CreateTirIn => CreateTirOut,
    ModifyTir MODIFY_TIR: ModifyTirIn => ModifyTirOut,
    DestroyTir DESTROY_TIR: DestroyTirIn => DestroyTirOut,
    QueryTir QUERY_TIR: QueryTirIn => QueryTirOut,
    CreateTis CREATE_TIS: CreateTisIn => CreateTisOut,
    ModifyTis MODIFY_TIS: ModifyTisIn => ModifyTisOut,
    DestroyTis DESTROY_TIS: DestroyTisIn => DestroyTisOut,
    QueryTis QUERY_TIS: QueryTisIn => QueryTisOut,
}

/// Bit of MODIFY_RQT's `modify_bitmask`: the list of queues. Source: reference 4.3.
pub const MODIFY_RQT_LIST: u64 = 1;

bits! {
    /// Bits of MODIFY_TIR's `modify_bitmask`. Source: reference 4.3.
    pub mod modify_tir: u64 {
        0 PACKET_MERGE: packet_merge_mask;
        2 HASH: rx_hash_fn;
        4 SELF_LB: self_lb_block;
    }
}
