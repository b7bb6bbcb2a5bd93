//! Device and function.
//!
//! Source: reference 4.2; PRM, the chapter of each command; `mlx5_ifc_<command>_in_bits`.

use crate::layout::{rows, values};

rows! { $
    function {
        /// The function belongs to the embedded CPU.
        0x08 [31] embedded_cpu_function;
        /// Function that the command is about, 0 for the caller.
        0x08 [15:0] function_id;
    }
    other_function {
        /// The command is about another function.
        0x08 [31] other_function;
        /// Function that the command is about, 0 for the caller.
        0x08 [15:0] function_id;
    }
}

command! {
    EnableHca ENABLE_HCA,
    DisableHca DISABLE_HCA { ..function; } => [0xc] {}
    QueryIssi QUERY_ISSI {} => [0x70] {
        /// Interface step sequence id in use.
        0x08 [15:0] current_issi;
        /// Ids that the device knows: bit n means id n.
        0x6c [31:0] supported_issi_dw0;
    }
    SetIssi SET_ISSI {
        /// Interface step sequence id to use from now on.
        0x08 [15:0] current_issi;
    }
    /// `op_mod` 1 boot, 2 init, 3 regular.
    QueryPages QUERY_PAGES { ..function; } => {
        ..function;
        /// 4 KiB pages wanted, two's complement: negative means that they can be taken back.
        0x0c [31:0] num_pages;
    }
    /// `op_mod` 0 cannot give, 1 give, 2 take. The page list follows input and output.
    ManagePages MANAGE_PAGES {
        ..function;
        /// Number of pages given, or to take back.
        0x0c [31:0] input_num_entries;
    } => {
        /// Number of pages returned; their addresses follow.
        0x08 [31:0] output_num_entries;
    }
    SetDriverVersion SET_DRIVER_VERSION [0x50] {
        /// Name and version of the driver, ASCII, zero-terminated.
        0x10 ([u8; 64]) driver_version;
    }
    /// `op_mod` is the page type times 2, plus 1 for current values.
    QueryHcaCap QUERY_HCA_CAP { ..other_function; } => [0x1010] {
        /// The page, for instance a [`crate::caps::HcaCap`].
        0x10 ([u8; 4096]) capability;
    }
    /// `op_mod` is the page type times 2.
    SetHcaCap SET_HCA_CAP [0x1010] {
        ..other_function;
        /// The page as it shall become.
        0x10 ([u8; 4096]) capability;
    }
    InitHca INIT_HCA [0x20] {
        /// Number that the driver gives this function.
        0x0c [29:16] sw_vhca_id;
        /// Identifies the driver instance that owns this function.
        0x10 ([u8; 16]) sw_owner_id;
    }
    TeardownHca TEARDOWN_HCA {
        /// 0 graceful, 1 forced, 2 prepare fast teardown.
        0x08 [15:0] profile;
    } => {
        /// The forced or fast teardown failed.
        0x0c [0] state;
    }
    QueryAdapter QUERY_ADAPTER {} => [0x110] {
        /// Vendor ids at 0x18 and 0x1c, firmware build (PSID, 16 ASCII bytes) at 0xf0.
        0x10 ([u8; 256]) query_adapter_struct;
    }
    QuerySpecialContexts QUERY_SPECIAL_CONTEXTS {} => [0x20] {
        /// Mkey that a DUMP request uses to send what it likes.
        0x08 [31:0] dump_fill_mkey;
        /// Reserved lkey: bus addresses, for queues created with `rlky`.
        0x0c [31:0] resd_lkey;
        /// Mkey that reads as zero and swallows writes.
        0x10 [31:0] null_mkey;
    }
    Nop NOP {}
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
