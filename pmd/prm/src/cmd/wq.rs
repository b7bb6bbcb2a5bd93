//! Ethernet work queues.
//!
//! Source: reference 4.2; PRM, the chapter of each command; `mlx5_ifc_<command>_in_bits`.

use crate::layout::{bits, rows};
use crate::wqc::{Rmpc, Rqc, Sqc};

rows! { $
    sqn {
        0x08 [23:0] sqn "Number of the send queue.";
    }
    rqn {
        0x08 [23:0] rqn "Number of the receive queue.";
    }
    rmpn {
        0x08 [23:0] rmpn "Number of the receive memory pool.";
    }
}

command! {
    /// The page list follows the input.
    CreateSq CREATE_SQ [0x110] {
        0x20 (Sqc) ctx "The context.";
    } => { ..sqn; }
    ModifySq MODIFY_SQ [0x110] {
        ..sqn;
        0x08 [31:28] sq_state "State that the queue is in now: 0 reset, 1 ready, 3 error.";
        0x10 (u64) modify_bitmask "Selects the fields to change.";
        0x20 (Sqc) ctx "The context.";
    }
    DestroySq DESTROY_SQ { ..sqn; }
    QuerySq QUERY_SQ { ..sqn; } => [0x110] {
        0x20 (Sqc) sq_context "The send queue's context.";
    }
    /// The page list follows the input.
    CreateRq CREATE_RQ [0x110] {
        0x20 (Rqc) ctx "The context.";
    } => { ..rqn; }
    ModifyRq MODIFY_RQ [0x110] {
        ..rqn;
        0x08 [31:28] rq_state "State that the queue is in now: 0 reset, 1 ready, 3 error.";
        0x10 (u64) modify_bitmask "Selects the fields to change.";
        0x20 (Rqc) ctx "The context.";
    }
    DestroyRq DESTROY_RQ { ..rqn; }
    QueryRq QUERY_RQ { ..rqn; } => [0x110] {
        0x20 (Rqc) rq_context "The receive queue's context.";
    }
    /// The page list follows the input.
    CreateRmp CREATE_RMP [0x110] {
        0x20 (Rmpc) ctx "The context.";
    } => { ..rmpn; }
    ModifyRmp MODIFY_RMP [0x110] {
        ..rmpn;
        0x08 [31:28] rmp_state "State that the pool is in now: 1 ready, 3 error.";
        0x10 (u64) bitmask "Selects the fields to change.";
        0x20 (Rmpc) ctx "The context.";
    }
    DestroyRmp DESTROY_RMP { ..rmpn; }
    QueryRmp QUERY_RMP { ..rmpn; } => [0x110] {
        0x20 (Rmpc) rmp_context "The pool's context.";
    }
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
