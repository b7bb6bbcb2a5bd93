//! User contexts (DevX), and memory that their objects are made of.
//!
//! Source: reference 4.2, 4.11; `mlx5_ifc_create_uctx_in_bits`, `mlx5_ifc_create_umem_in_bits`.

use crate::layout;
use crate::layout::{bits, rows};

layout! {
    /// User context, 48 bytes (`uctx`).
    pub struct Uctx [0x30] {
        0x00 [31:0] cap "What the context may do beside its own objects, see [`uctx_cap`].";
    }

    /// User memory object, 32 bytes (`umem`); the page list follows it.
    pub struct Umem [0x20] {
        0x10 [31] ats "Addresses are translated by the address translation service.";
        0x10 [4:0] log_page_size "Log2 of the page size, minus 12.";
        0x14 [31:0] page_offset "Start of the memory in its first page in bytes.";
        0x18 (u64) num_of_mtt "Number of pages in the list.";
    }
}

bits! {
    /// Bits of [`Uctx::cap`]. Source: `MLX5_UCTX_CAP_*`.
    pub mod uctx_cap: u32 {
        0 RAW_TX: cap;
        1 INTERNAL_DEV_RES: cap;
    }
}

rows! { $
    umem_id {
        0x08 [23:0] umem_id "Number of the user memory object.";
    }
}

command! {
    without uid;
    CreateUctx CREATE_UCTX [0x40] {
        0x10 (Uctx) uctx "The user context.";
    } => {
        0x08 [15:0] uid "Number of the user context, for the header of its commands.";
    }
    DestroyUctx DESTROY_UCTX {
        0x08 [15:0] uid "Number of the user context.";
    }
}

command! {
    /// The page list follows the input; its low bits grant access, bit 0 reads, bit 1 writes.
    CreateUmem CREATE_UMEM [0x30] {
        0x10 (Umem) umem "The user memory object.";
    } => { ..umem_id; }
    DestroyUmem DESTROY_UMEM { ..umem_id; }
}
