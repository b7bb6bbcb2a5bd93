//! Queue pairs.
//!
//! Source: reference 4.2; PRM, the chapter of each command; `mlx5_ifc_<command>_in_bits`.

use crate::layout::rows;
use crate::qpc::Qpc;

rows! { $
    qpn {
        0x08 [23:0] qpn "Number of the queue pair.";
    }
}

command! {
    /// The page list follows the input.
    CreateQp CREATE_QP [0x110] {
        0x08 [23:0] input_qpn "QP number to use; 0: the device chooses.";
        0x10 [31:0] opt_param_mask "Which optional fields of the context to take.";
        0x14 [31:0] ece "Enhanced connection establishment options.";
        0x18 (Qpc) qpc "The queue pair context.";
        0x100 (u64) wq_umem_offset "Offset of the queues in their user memory object.";
        0x108 [31:0] wq_umem_id "User memory object of the queues.";
        0x10c [31] wq_umem_valid "The queues stand in a user memory object.";
    } => {
        ..qpn;
        0x0c [31:0] ece "Enhanced connection establishment options.";
    }
    Rst2initQp RST2INIT_QP,
    Init2initQp INIT2INIT_QP,
    Init2rtrQp INIT2RTR_QP,
    Rtr2rtsQp RTR2RTS_QP,
    Rts2rtsQp RTS2RTS_QP [0x110] {
        ..qpn;
        0x10 [31:0] opt_param_mask "Which optional fields of the context to take.";
        0x14 [31:0] ece "Enhanced connection establishment options.";
        0x18 (Qpc) qpc "The queue pair context.";
    } => {
        0x0c [31:0] ece "Enhanced connection establishment options.";
    }
    Sqerr2rtsQp SQERR2RTS_QP,
    Sqd2rtsQp SQD2RTS_QP [0x110] {
        ..qpn;
        0x10 [31:0] opt_param_mask "Which optional fields of the context to take.";
        0x18 (Qpc) qpc "The queue pair context.";
    }
    ModifyQpToErr MODIFY_QP_2ERR,
    ModifyQpToRst MODIFY_QP_2RST,
    DestroyQp DESTROY_QP { ..qpn; }
    /// The page list follows the output.
    QueryQp QUERY_QP { ..qpn; } => [0x110] {
        0x10 [31:0] opt_param_mask "Which optional fields of the context to take.";
        0x14 [31:0] ece "Enhanced connection establishment options.";
        0x18 (Qpc) qpc "The queue pair context.";
    }
}
