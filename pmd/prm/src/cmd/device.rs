//! Device and function.
//!
//! Source: reference 4.2; PRM, the chapter of each command; `mlx5_ifc_<command>_in_bits`.

use crate::layout::{bits, rows, values};

rows! { $
    function {
        0x08 [31] embedded_cpu_function "The function belongs to the embedded CPU.";
        0x08 [15:0] function_id "Function that the command is about, 0 for the caller.";
    }
    other_function {
        0x08 [31] other_function "The command is about another function.";
        0x08 [15:0] function_id "Function that the command is about, 0 for the caller.";
    }
}

command! {
    EnableHca ENABLE_HCA,
    DisableHca DISABLE_HCA { ..function; } => [0xc] {}
    QueryIssi QUERY_ISSI {} => [0x70] {
        0x08 [15:0] current_issi "Interface step sequence id in use.";
        0x6c [31:0] supported_issi_dw0 "Ids that the device knows: bit n means id n.";
    }
    SetIssi SET_ISSI {
        0x08 [15:0] current_issi "Interface step sequence id to use from now on.";
    }
    /// `op_mod` 1 boot, 2 init, 3 regular.
    QueryPages QUERY_PAGES { ..function; } => {
        ..function;
        0x0c [31:0] num_pages
            "4 KiB pages wanted, two's complement: negative means that they can be taken back.";
    }
    /// `op_mod` 0 cannot give, 1 give, 2 take. The page list follows input and output.
    ManagePages MANAGE_PAGES {
        ..function;
        0x0c [31:0] input_num_entries "Number of pages given, or to take back.";
    } => {
        0x08 [31:0] output_num_entries "Number of pages returned; their addresses follow.";
    }
    SetDriverVersion SET_DRIVER_VERSION [0x50] {
        0x10 ([u8; 64]) driver_version "Name and version of the driver, ASCII, zero-terminated.";
    }
    /// `op_mod` is the page type times 2, plus 1 for current values.
    QueryHcaCap QUERY_HCA_CAP { ..other_function; } => [0x1010] {
        0x10 ([u8; 4096]) capability "The page, for instance a [`crate::caps::HcaCap`].";
    }
    /// `op_mod` is the page type times 2.
    SetHcaCap SET_HCA_CAP [0x1010] {
        ..other_function;
        0x10 ([u8; 4096]) capability "The page as it shall become.";
    }
    InitHca INIT_HCA [0x20] {
        0x0c [29:16] sw_vhca_id "Number that the driver gives this function.";
        0x10 ([u8; 16]) sw_owner_id "Identifies the driver instance that owns this function.";
    }
    TeardownHca TEARDOWN_HCA {
        0x08 [15:0] profile "0 graceful, 1 forced, 2 prepare fast teardown.";
    } => {
        0x0c [0] state "The forced or fast teardown failed.";
    }
    QueryAdapter QUERY_ADAPTER {} => [0x110] {
        0x10 ([u8; 256]) query_adapter_struct
            "Vendor ids at 0x18 and 0x1c, firmware build (PSID, 16 ASCII bytes) at 0xf0.";
    }
    QuerySpecialContexts QUERY_SPECIAL_CONTEXTS {} => [0x20] {
        0x08 [31:0] dump_fill_mkey "Mkey that a DUMP request uses to send what it likes.";
        0x0c [31:0] resd_lkey "Reserved lkey: bus addresses, for queues created with `rlky`.";
        0x10 [31:0] null_mkey "Mkey that reads as zero and swallows writes.";
    }
    Nop NOP {}
}

bits! {
    /// [`QueryIssiOut::supported_issi_dw0`]. Source: reference 4.2, QUERY_ISSI.
    pub mod supported_issi: u32 {
        1 ISSI_1: issi_1;
    }
}

values! {
    /// `op_mod` of QUERY_PAGES. Source: reference 2.5.
    pub mod query_pages: u32 {
        1 BOOT "Pages wanted before SET_HCA_CAP.";
        2 INIT "Pages wanted before INIT_HCA.";
        3 REGULAR "Pages wanted now.";
    }
}

values! {
    /// `op_mod` of MANAGE_PAGES. Source: reference 2.5.
    pub mod manage_pages: u32 {
        0 CANNOT_GIVE "The driver has none to give.";
        1 GIVE "The driver gives pages.";
        2 TAKE "The driver takes pages back.";
    }
}
