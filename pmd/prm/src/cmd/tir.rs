//! Transport interface objects and RSS tables.
//!
//! Source: reference 4.2; PRM, the chapter of each command; `mlx5_ifc_<command>_in_bits`.

use crate::layout::{bits, rows};
use crate::tirc::{Rqtc, Tirc, Tisc};

rows! { $
    rqtn {
        0x08 [23:0] rqtn "Number of the RQ table.";
    }
    tirn {
        0x08 [23:0] tirn "Number of the TIR.";
    }
    tisn {
        0x08 [23:0] tisn "Number of the TIS.";
    }
}

command! {
    /// The list of RQ numbers follows the input.
    CreateRqt CREATE_RQT [0x110] {
        0x20 (Rqtc) rqt_context "The RQ table's context.";
    } => { ..rqtn; }
    /// The list of RQ numbers follows the input.
    ModifyRqt MODIFY_RQT [0x110] {
        ..rqtn;
        0x10 (u64) bitmask "Selects the fields to change.";
        0x20 (Rqtc) ctx "The context.";
    }
    DestroyRqt DESTROY_RQT { ..rqtn; }
    QueryRqt QUERY_RQT { ..rqtn; } => [0x110] {
        0x20 (Rqtc) rqt_context "The RQ table's context.";
    }
    CreateTir CREATE_TIR [0x110] {
        0x20 (Tirc) ctx "The context.";
    } => { ..tirn; }
    ModifyTir MODIFY_TIR [0x110] {
        ..tirn;
        0x10 (u64) bitmask "Selects the fields to change.";
        0x20 (Tirc) ctx "The context.";
    }
    DestroyTir DESTROY_TIR { ..tirn; }
    QueryTir QUERY_TIR { ..tirn; } => [0x110] {
        0x20 (Tirc) tir_context "The TIR's context.";
    }
    CreateTis CREATE_TIS [0xc0] {
        0x20 (Tisc) ctx "The context.";
    } => { ..tisn; }
    ModifyTis MODIFY_TIS [0xc0] {
        ..tisn;
        0x10 (u64) bitmask "Selects the fields to change.";
        0x20 (Tisc) ctx "The context.";
    }
    DestroyTis DESTROY_TIS { ..tisn; }
    QueryTis QUERY_TIS { ..tisn; } => [0xb0] {
        0x10 (Tisc) tis_context "The TIS's context.";
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
