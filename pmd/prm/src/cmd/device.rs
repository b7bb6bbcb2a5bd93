//! Device and function.
//!
//! Source: reference 4.2; PRM, the chapter of each command; `mlx5_ifc_<command>_in_bits`.

use crate::{command, layout};

layout! {
    /// ENABLE_HCA input, 0x10 bytes.
    pub struct EnableHcaIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// The function belongs to the embedded CPU.
        0x08 [31] embedded_cpu_function;
        /// Function that the command is about, 0 for the caller.
        0x08 [15:0] function_id;
    }

    /// ENABLE_HCA output, 0xc bytes.
    pub struct EnableHcaOut [0xc] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// DISABLE_HCA input, 0x10 bytes.
    pub struct DisableHcaIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// The function belongs to the embedded CPU.
        0x08 [31] embedded_cpu_function;
        /// Function that the command is about, 0 for the caller.
        0x08 [15:0] function_id;
    }

    /// DISABLE_HCA output, 0xc bytes.
    pub struct DisableHcaOut [0xc] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// QUERY_ISSI input, 0x10 bytes.
    pub struct QueryIssiIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
    }

    /// QUERY_ISSI output, 0x70 bytes.
    pub struct QueryIssiOut [0x70] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Interface step sequence id in use.
        0x08 [15:0] current_issi;
        /// Ids that the device knows: bit n means id n.
        0x6c [31:0] supported_issi_dw0;
    }

    /// SET_ISSI input, 0x10 bytes.
    pub struct SetIssiIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Interface step sequence id to use from now on.
        0x08 [15:0] current_issi;
    }

    /// SET_ISSI output, 0x10 bytes.
    pub struct SetIssiOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// QUERY_PAGES input, 0x10 bytes; op_mod 1 boot, 2 init, 3 regular.
    pub struct QueryPagesIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// The function belongs to the embedded CPU.
        0x08 [31] embedded_cpu_function;
        /// Function that the command is about, 0 for the caller.
        0x08 [15:0] function_id;
    }

    /// QUERY_PAGES output, 0x10 bytes.
    pub struct QueryPagesOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// The function belongs to the embedded CPU.
        0x08 [31] embedded_cpu_function;
        /// Function that the command is about, 0 for the caller.
        0x08 [15:0] function_id;
        /// 4 KiB pages wanted, two's complement: negative means that they can be taken back.
        0x0c [31:0] num_pages;
    }

    /// MANAGE_PAGES input, 0x10 bytes; op_mod 0 cannot give, 1 give, 2 take. The page list follows.
    pub struct ManagePagesIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// The function belongs to the embedded CPU.
        0x08 [31] embedded_cpu_function;
        /// Function that the command is about, 0 for the caller.
        0x08 [15:0] function_id;
        /// Number of pages given, or to take back.
        0x0c [31:0] input_num_entries;
    }

    /// MANAGE_PAGES output, 0x10 bytes. The page list follows.
    pub struct ManagePagesOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Number of pages returned; their addresses follow.
        0x08 [31:0] output_num_entries;
    }

    /// SET_DRIVER_VERSION input, 0x50 bytes.
    pub struct SetDriverVersionIn [0x50] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Name and version of the driver, ASCII, zero-terminated.
        0x10 ([u8; 64]) driver_version;
    }

    /// SET_DRIVER_VERSION output, 0x10 bytes.
    pub struct SetDriverVersionOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// QUERY_HCA_CAP input, 0x10 bytes; op_mod is the page type times 2, plus 1 for current values.
    pub struct QueryHcaCapIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// The command is about another function.
        0x08 [31] other_function;
        /// Function that the command is about, 0 for the caller.
        0x08 [15:0] function_id;
    }

    /// QUERY_HCA_CAP output, 0x1010 bytes.
    pub struct QueryHcaCapOut [0x1010] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// The page, for instance a [`crate::caps::HcaCap`].
        0x10 ([u8; 4096]) capability;
    }

    /// SET_HCA_CAP input, 0x1010 bytes; op_mod is the page type times 2.
    pub struct SetHcaCapIn [0x1010] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// The command is about another function.
        0x08 [31] other_function;
        /// Function that the command is about, 0 for the caller.
        0x08 [15:0] function_id;
        /// The page as it shall become.
        0x10 ([u8; 4096]) capability;
    }

    /// SET_HCA_CAP output, 0x10 bytes.
    pub struct SetHcaCapOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// INIT_HCA input, 0x20 bytes.
    pub struct InitHcaIn [0x20] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number that the driver gives this function.
        0x0c [29:16] sw_vhca_id;
        /// Identifies the driver instance that owns this function.
        0x10 ([u8; 16]) sw_owner_id;
    }

    /// INIT_HCA output, 0x10 bytes.
    pub struct InitHcaOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// TEARDOWN_HCA input, 0x10 bytes.
    pub struct TeardownHcaIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// 0 graceful, 1 forced, 2 prepare fast teardown.
        0x08 [15:0] profile;
    }

    /// TEARDOWN_HCA output, 0x10 bytes.
    pub struct TeardownHcaOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// The forced or fast teardown failed.
        0x0c [0] state;
    }

    /// QUERY_ADAPTER input, 0x10 bytes.
    pub struct QueryAdapterIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
    }

    /// QUERY_ADAPTER output, 0x110 bytes.
    pub struct QueryAdapterOut [0x110] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Vendor ids at 0x18 and 0x1c, firmware build (PSID, 16 ASCII bytes) at 0xf0.
        0x10 ([u8; 256]) query_adapter_struct;
    }

    /// QUERY_SPECIAL_CONTEXTS input, 0x10 bytes.
    pub struct QuerySpecialContextsIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
    }

    /// QUERY_SPECIAL_CONTEXTS output, 0x20 bytes.
    pub struct QuerySpecialContextsOut [0x20] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Mkey that a DUMP request uses to send what it likes.
        0x08 [31:0] dump_fill_mkey;
        /// Reserved lkey: bus addresses, for queues created with `rlky`.
        0x0c [31:0] resd_lkey;
        /// Mkey that reads as zero and swallows writes.
        0x10 [31:0] null_mkey;
    }

    /// NOP input, 0x10 bytes.
    pub struct NopIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
    }

    /// NOP output, 0x10 bytes.
    pub struct NopOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }
}

command! {
    EnableHca ENABLE_HCA: EnableHcaIn => EnableHcaOut,
    DisableHca DISABLE_HCA: DisableHcaIn => DisableHcaOut,
    QueryIssi QUERY_ISSI: QueryIssiIn => QueryIssiOut,
    SetIssi SET_ISSI: SetIssiIn => SetIssiOut,
    QueryPages QUERY_PAGES: QueryPagesIn => QueryPagesOut,
    ManagePages MANAGE_PAGES: ManagePagesIn => ManagePagesOut,
    SetDriverVersion SET_DRIVER_VERSION: SetDriverVersionIn => SetDriverVersionOut,
    QueryHcaCap QUERY_HCA_CAP: QueryHcaCapIn => QueryHcaCapOut,
    SetHcaCap SET_HCA_CAP: SetHcaCapIn => SetHcaCapOut,
    InitHca INIT_HCA: InitHcaIn => InitHcaOut,
    TeardownHca TEARDOWN_HCA: TeardownHcaIn => TeardownHcaOut,
    QueryAdapter QUERY_ADAPTER: QueryAdapterIn => QueryAdapterOut,
    QuerySpecialContexts QUERY_SPECIAL_CONTEXTS: QuerySpecialContextsIn => QuerySpecialContextsOut,
    Nop NOP: NopIn => NopOut,
}

/// `op_mod` of QUERY_PAGES. Source: reference 2.5.
pub mod query_pages {
    /// Pages wanted before SET_HCA_CAP.
    pub const BOOT: u32 = 1;
    /// Pages wanted before INIT_HCA.
    pub const INIT: u32 = 2;
    /// Pages wanted now.
    pub const REGULAR: u32 = 3;
}

/// `op_mod` of MANAGE_PAGES. Source: reference 2.5.
pub mod manage_pages {
    /// The driver has none to give.
    pub const CANNOT_GIVE: u32 = 0;
    /// The driver gives pages.
    pub const GIVE: u32 = 1;
    /// The driver takes pages back.
    pub const TAKE: u32 = 2;
}
