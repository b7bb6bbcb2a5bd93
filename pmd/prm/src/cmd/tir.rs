//! Transport interface objects and RSS tables.
//!
//! Source: reference 4.2; PRM, the chapter of each command; `mlx5_ifc_<command>_in_bits`.

use crate::layout::{bits, rows};
use crate::tirc::{Rqtc, Tirc, Tisc};

rows! { $
    rqtn {
        /// Number of the RQ table.
        0x08 [23:0] rqtn;
    }
    tirn {
        /// Number of the TIR.
        0x08 [23:0] tirn;
    }
    tisn {
        /// Number of the TIS.
        0x08 [23:0] tisn;
    }
}

command! {
    /// The list of RQ numbers follows the input.
    CreateRqt CREATE_RQT [0x110] {
        /// The RQ table's context.
        0x20 (Rqtc) rqt_context;
    } => { ..rqtn; }
    /// The list of RQ numbers follows the input.
    ModifyRqt MODIFY_RQT [0x110] {
        ..rqtn;
        /// Selects the fields to change.
        0x10 (u64) bitmask;
        /// The context.
        0x20 (Rqtc) ctx;
    }
    DestroyRqt DESTROY_RQT { ..rqtn; }
    QueryRqt QUERY_RQT { ..rqtn; } => [0x110] {
        /// The RQ table's context.
        0x20 (Rqtc) rqt_context;
    }
    CreateTir CREATE_TIR [0x110] {
        /// The context.
        0x20 (Tirc) ctx;
    } => { ..tirn; }
    ModifyTir MODIFY_TIR [0x110] {
        ..tirn;
        /// Selects the fields to change.
        0x10 (u64) bitmask;
        /// The context.
        0x20 (Tirc) ctx;
    }
    DestroyTir DESTROY_TIR { ..tirn; }
    QueryTir QUERY_TIR { ..tirn; } => [0x110] {
        /// The TIR's context.
        0x20 (Tirc) tir_context;
    }
    CreateTis CREATE_TIS [0xc0] {
        /// The context.
        0x20 (Tisc) ctx;
    } => { ..tisn; }
    ModifyTis MODIFY_TIS [0xc0] {
        ..tisn;
        /// Selects the fields to change.
        0x10 (u64) bitmask;
        /// The context.
        0x20 (Tisc) ctx;
    }
    DestroyTis DESTROY_TIS { ..tisn; }
    QueryTis QUERY_TIS { ..tisn; } => [0xb0] {
        /// The TIS's context.
        0x10 (Tisc) tis_context;
    }
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
