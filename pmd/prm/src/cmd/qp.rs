//! Queue pairs.
//!
//! Source: reference 4.2; PRM, the chapter of each command; `mlx5_ifc_<command>_in_bits`.

use crate::qpc::Qpc;
use crate::{command, layout};

layout! {
    /// CREATE_QP input, 0x110 bytes. The page list follows.
    pub struct CreateQpIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// QP number to use; 0: the device chooses.
        0x08 [23:0] input_qpn;
        /// Which optional fields of the context to take.
        0x10 [31:0] opt_param_mask;
        /// Enhanced connection establishment options.
        0x14 [31:0] ece;
        /// The queue pair context.
        0x18 (Qpc) qpc;
        /// The queues stand in a user memory object.
        0x10c [31] wq_umem_valid;
    }

    /// CREATE_QP output, 0x10 bytes.
    pub struct CreateQpOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Number of the queue pair.
        0x08 [23:0] qpn;
        /// Enhanced connection establishment options.
        0x0c [31:0] ece;
    }

    /// RST2INIT_QP input, 0x110 bytes.
    pub struct Rst2initQpIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the queue pair.
        0x08 [23:0] qpn;
        /// Which optional fields of the context to take.
        0x10 [31:0] opt_param_mask;
        /// Enhanced connection establishment options.
        0x14 [31:0] ece;
        /// The queue pair context.
        0x18 (Qpc) qpc;
    }

    /// RST2INIT_QP output, 0x10 bytes.
    pub struct Rst2initQpOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Enhanced connection establishment options.
        0x0c [31:0] ece;
    }

    /// INIT2INIT_QP input, 0x110 bytes.
    pub struct Init2initQpIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the queue pair.
        0x08 [23:0] qpn;
        /// Which optional fields of the context to take.
        0x10 [31:0] opt_param_mask;
        /// Enhanced connection establishment options.
        0x14 [31:0] ece;
        /// The queue pair context.
        0x18 (Qpc) qpc;
    }

    /// INIT2INIT_QP output, 0x10 bytes.
    pub struct Init2initQpOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Enhanced connection establishment options.
        0x0c [31:0] ece;
    }

    /// INIT2RTR_QP input, 0x110 bytes.
    pub struct Init2rtrQpIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the queue pair.
        0x08 [23:0] qpn;
        /// Which optional fields of the context to take.
        0x10 [31:0] opt_param_mask;
        /// Enhanced connection establishment options.
        0x14 [31:0] ece;
        /// The queue pair context.
        0x18 (Qpc) qpc;
    }

    /// INIT2RTR_QP output, 0x10 bytes.
    pub struct Init2rtrQpOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Enhanced connection establishment options.
        0x0c [31:0] ece;
    }

    /// RTR2RTS_QP input, 0x110 bytes.
    pub struct Rtr2rtsQpIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the queue pair.
        0x08 [23:0] qpn;
        /// Which optional fields of the context to take.
        0x10 [31:0] opt_param_mask;
        /// Enhanced connection establishment options.
        0x14 [31:0] ece;
        /// The queue pair context.
        0x18 (Qpc) qpc;
    }

    /// RTR2RTS_QP output, 0x10 bytes.
    pub struct Rtr2rtsQpOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Enhanced connection establishment options.
        0x0c [31:0] ece;
    }

    /// RTS2RTS_QP input, 0x110 bytes.
    pub struct Rts2rtsQpIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the queue pair.
        0x08 [23:0] qpn;
        /// Which optional fields of the context to take.
        0x10 [31:0] opt_param_mask;
        /// Enhanced connection establishment options.
        0x14 [31:0] ece;
        /// The queue pair context.
        0x18 (Qpc) qpc;
    }

    /// RTS2RTS_QP output, 0x10 bytes.
    pub struct Rts2rtsQpOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Enhanced connection establishment options.
        0x0c [31:0] ece;
    }

    /// SQERR2RTS_QP input, 0x110 bytes.
    pub struct Sqerr2rtsQpIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the queue pair.
        0x08 [23:0] qpn;
        /// Which optional fields of the context to take.
        0x10 [31:0] opt_param_mask;
        /// The queue pair context.
        0x18 (Qpc) qpc;
    }

    /// SQERR2RTS_QP output, 0x10 bytes.
    pub struct Sqerr2rtsQpOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// SQD2RTS_QP input, 0x110 bytes.
    pub struct Sqd2rtsQpIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the queue pair.
        0x08 [23:0] qpn;
        /// Which optional fields of the context to take.
        0x10 [31:0] opt_param_mask;
        /// The queue pair context.
        0x18 (Qpc) qpc;
    }

    /// SQD2RTS_QP output, 0x10 bytes.
    pub struct Sqd2rtsQpOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// 2ERR_QP input, 0x10 bytes.
    pub struct ModifyQpToErrIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the queue pair.
        0x08 [23:0] qpn;
    }

    /// 2ERR_QP output, 0x10 bytes.
    pub struct ModifyQpToErrOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// 2RST_QP input, 0x10 bytes.
    pub struct ModifyQpToRstIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the queue pair.
        0x08 [23:0] qpn;
    }

    /// 2RST_QP output, 0x10 bytes.
    pub struct ModifyQpToRstOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// QUERY_QP input, 0x10 bytes.
    pub struct QueryQpIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the queue pair.
        0x08 [23:0] qpn;
    }

    /// QUERY_QP output, 0x110 bytes. The page list follows.
    pub struct QueryQpOut [0x110] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Which optional fields of the context to take.
        0x10 [31:0] opt_param_mask;
        /// Enhanced connection establishment options.
        0x14 [31:0] ece;
        /// The queue pair context.
        0x18 (Qpc) qpc;
    }

    /// DESTROY_QP input, 0x10 bytes.
    pub struct DestroyQpIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the queue pair.
        0x08 [23:0] qpn;
    }

    /// DESTROY_QP output, 0x10 bytes.
    pub struct DestroyQpOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }
}

command! {
    CreateQp CREATE_QP: CreateQpIn => CreateQpOut,
    Rst2initQp RST2INIT_QP: Rst2initQpIn => Rst2initQpOut,
    Init2initQp INIT2INIT_QP: Init2initQpIn => Init2initQpOut,
    Init2rtrQp INIT2RTR_QP: Init2rtrQpIn => Init2rtrQpOut,
    Rtr2rtsQp RTR2RTS_QP: Rtr2rtsQpIn => Rtr2rtsQpOut,
    Rts2rtsQp RTS2RTS_QP: Rts2rtsQpIn => Rts2rtsQpOut,
    Sqerr2rtsQp SQERR2RTS_QP: Sqerr2rtsQpIn => Sqerr2rtsQpOut,
    Sqd2rtsQp SQD2RTS_QP: Sqd2rtsQpIn => Sqd2rtsQpOut,
    ModifyQpToErr MODIFY_QP_2ERR: ModifyQpToErrIn => ModifyQpToErrOut,
    ModifyQpToRst MODIFY_QP_2RST: ModifyQpToRstIn => ModifyQpToRstOut,
    QueryQp QUERY_QP: QueryQpIn => QueryQpOut,
    DestroyQp DESTROY_QP: DestroyQpIn => DestroyQpOut,
}
