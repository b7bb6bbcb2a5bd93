//! Queue pairs.
//!
//! Source: reference 4.2; PRM, the chapter of each command; `mlx5_ifc_<command>_in_bits`.

use crate::layout::rows;
use crate::qpc::Qpc;

rows! { $
    qpn {
        /// Number of the queue pair.
        0x08 [23:0] qpn;
    }
}

command! {
    /// The page list follows the input.
    CreateQp CREATE_QP [0x110] {
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
    } => {
        ..qpn;
        /// Enhanced connection establishment options.
        0x0c [31:0] ece;
    }
    Rst2initQp RST2INIT_QP,
    Init2initQp INIT2INIT_QP,
    Init2rtrQp INIT2RTR_QP,
    Rtr2rtsQp RTR2RTS_QP,
    Rts2rtsQp RTS2RTS_QP [0x110] {
        ..qpn;
        /// Which optional fields of the context to take.
        0x10 [31:0] opt_param_mask;
        /// Enhanced connection establishment options.
        0x14 [31:0] ece;
        /// The queue pair context.
        0x18 (Qpc) qpc;
    } => {
        /// Enhanced connection establishment options.
        0x0c [31:0] ece;
    }
    Sqerr2rtsQp SQERR2RTS_QP,
    Sqd2rtsQp SQD2RTS_QP [0x110] {
        ..qpn;
        /// Which optional fields of the context to take.
        0x10 [31:0] opt_param_mask;
        /// The queue pair context.
        0x18 (Qpc) qpc;
    }
    ModifyQpToErr MODIFY_QP_2ERR,
    ModifyQpToRst MODIFY_QP_2RST,
    DestroyQp DESTROY_QP { ..qpn; }
    /// The page list follows the output.
    QueryQp QUERY_QP { ..qpn; } => [0x110] {
        /// Which optional fields of the context to take.
        0x10 [31:0] opt_param_mask;
        /// Enhanced connection establishment options.
        0x14 [31:0] ece;
        /// The queue pair context.
        0x18 (Qpc) qpc;
    }
}
