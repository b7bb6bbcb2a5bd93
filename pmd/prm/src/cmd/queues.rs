//! Event and completion queues.
//!
//! Source: reference 4.2; PRM, the chapter of each command; `mlx5_ifc_<command>_in_bits`.

use crate::cqc::Cqc;
use crate::eqc::Eqc;
use crate::layout::{bits, rows};

rows! { $
    eqn {
        0x08 [7:0] eq_number "Number of the event queue.";
    }
    cq_context {
        0x10 (Cqc) cq_context "The completion queue's context.";
    }
    cq_umem {
        0x50 (u64) cq_umem_offset "Offset of the queue in its user memory object.";
        0x58 [31:0] cq_umem_id "User memory object of the queue.";
        0x5c [31] cq_umem_valid "The queue stands in a user memory object.";
    }
    cqn {
        0x08 [23:0] cqn "Number of the completion queue.";
    }
}

command! {
    /// The page list follows the input.
    CreateEq CREATE_EQ [0x110] {
        0x10 (Eqc) eq_context_entry "The event queue's context.";
        0x58 ([u8; 32]) event_bitmask
            "Events to raise, four big-endian 64-bit words: event n is bit n % 64 of word n / 64.";
    } => { ..eqn; }
    DestroyEq DESTROY_EQ { ..eqn; }
    /// The page list follows the output.
    QueryEq QUERY_EQ { ..eqn; } => [0x110] {
        0x10 (Eqc) eq_context_entry "The event queue's context.";
        0x58 (u64) event_bitmask
            "Events to raise, four big-endian 64-bit words: event n is bit n % 64 of word n / 64.";
    }
    /// The page list follows the input.
    CreateCq CREATE_CQ [0x110] {
        ..cq_context;
        ..cq_umem;
    } => { ..cqn; }
    /// `op_mod` 0 fields, 1 resize. The page list follows the input.
    ModifyCq MODIFY_CQ [0x110] {
        ..cqn;
        ..cq_context;
        ..cq_umem;
        0x0c [31:0] modify_field_select_resize_field_select
            "Selects the fields to change, see [`modify_cq`] and [`resize_cq`].";
    }
    DestroyCq DESTROY_CQ { ..cqn; }
    /// The page list follows the output.
    QueryCq QUERY_CQ { ..cqn; } => [0x110] { ..cq_context; }
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
