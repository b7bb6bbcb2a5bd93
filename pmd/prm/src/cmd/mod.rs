//! The command interface: queue entry, mailbox, and the input and output of every command.
//!
//! A command's input starts with opcode, uid and op_mod, its output with status and syndrome.
//! Inputs and outputs are layouts of the *fixed* part; a variable tail (page list, RQ list,
//! destinations) starts right behind it, at [`Layout::SIZE_BYTES`].
//!
//! Source: reference 2.1, 2.2 and 4; PRM "Command Interface".

use crate::layout;
use crate::layout::{Layout, rows};
use crate::syndrome::CommandStatus;

rows! { $
    input_header {
        0x00 [31:16] opcode "Operation code, see [`Opcode`](crate::cmd::Opcode).";
        0x00 [15:0] uid "User context, 0 for the driver itself.";
        0x04 [15:0] op_mod "Variant of the command.";
    }
    input_header_without_uid {
        0x00 [31:16] opcode "Operation code, see [`Opcode`](crate::cmd::Opcode).";
        0x04 [15:0] op_mod "Variant of the command.";
    }
    output_header {
        0x00 [31:24] status "Output status, see [`CommandStatus`](crate::syndrome::CommandStatus).";
        0x04 [31:0] syndrome "Diagnostic code of the firmware.";
    }
}

/// Declares commands: `Name OPCODE [size] { input } => [size] { output }`.
///
/// A body holds the fields behind the header, which every input and output has by itself. A size
/// that is left out is 0x10, an output that is left out has only its header. Names that share a
/// body are listed before it. Each name gets the layouts `NameIn` and `NameOut`.
macro_rules! command {
    (@all $header:ident; $(
        $(#[$($meta:tt)*])*
        $( $name:ident $op:ident ),+ $([$in_size:literal])? { $($in:tt)* }
        $( => $([$out_size:literal])? { $($out:tt)* } )?
    )*) => { $( command! {
        @each [$($name $op)+] [$(#[$($meta)*])*]
        [$($in_size)?] { ..$header; $($in)* }
        [$($($out_size)?)?] { ..output_header; $($($out)*)? }
    } )* };
    (@each $names:tt $meta:tt [] $in:tt $out_size:tt $out:tt) => {
        command! { @each $names $meta [0x10] $in $out_size $out }
    };
    (@each $names:tt $meta:tt $in_size:tt $in:tt [] $out:tt) => {
        command! { @each $names $meta $in_size $in [0x10] $out }
    };
    (@each [$($name:ident $op:ident)+] $meta:tt $in_size:tt $in:tt $out_size:tt $out:tt) => {
        $( command! { @one $name $op $meta $in_size $in $out_size $out } )+
    };
    (@one $name:ident $op:ident [$($meta:tt)*] $in_size:tt $in:tt $out_size:tt $out:tt) => {
        pastey::paste! {
            #[doc = concat!("The command ", stringify!($op), ".\n")]
            $($meta)*
            #[derive(Debug, Clone, Copy)]
            pub enum $name {}

            impl $crate::cmd::Command for $name {
                const OPCODE: $crate::cmd::Opcode = $crate::cmd::Opcode::$op;
                type In = [<$name In>];
                type Out = [<$name Out>];
                fn input() -> Self::In {
                    [<$name In>]::zeroed().with_opcode(u32::from(Self::OPCODE.0))
                }
            }

            impl $crate::cmd::CommandInput for [<$name In>] {
                type Command = $name;
            }

            impl $crate::cmd::CommandOutput for [<$name Out>] {
                fn command_status(&self) -> $crate::syndrome::CommandStatus {
                    $crate::syndrome::CommandStatus(self.status() as u8)
                }
                fn command_syndrome(&self) -> u32 {
                    self.syndrome()
                }
            }

            $crate::layout! {
                #[doc = concat!("Fixed part of the input of ", stringify!($op), ".")]
                pub struct [<$name In>] $in_size $in
                #[doc = concat!("Fixed part of the output of ", stringify!($op), ".")]
                pub struct [<$name Out>] $out_size $out
            }
        }
    };
    (without uid; $($commands:tt)*) => {
        command! { @all input_header_without_uid; $($commands)* }
    };
    ($($commands:tt)*) => { command! { @all input_header; $($commands)* } };
}

pub mod cong;
pub mod device;
pub mod flow;
pub mod memic;
pub mod objects;
mod opcode;
pub mod port;
pub mod qp;
pub mod queues;
pub mod srq;
pub mod tir;
pub mod user;
pub mod wq;

pub use opcode::Opcode;

/// One command of the interface: its opcode and the fixed parts of its input and output.
pub trait Command {
    /// Opcode that the input carries.
    const OPCODE: Opcode;
    /// Fixed part of the input.
    type In: CommandInput<Command = Self>;
    /// Fixed part of the output.
    type Out: CommandOutput;
    /// Input with the opcode set and everything else zero.
    fn input() -> Self::In;
}

/// Fixed part of an input.
pub trait CommandInput: Layout {
    /// The command whose input it is.
    type Command: Command<In = Self>;
}

/// Status and syndrome, with which every output starts.
pub trait CommandOutput: Layout {
    /// Output status; the other fields mean something only if it is [`CommandStatus::OK`].
    fn command_status(&self) -> CommandStatus;
    /// Diagnostic code of the firmware, 0 if there is none.
    fn command_syndrome(&self) -> u32;
}

/// Bytes of input and of output that fit into the queue entry itself.
///
/// Source: reference 2.1, `command_input_inline_data`.
pub const INLINE_BYTES: usize = 16;

/// Bytes of command data in one mailbox block. Source: reference 2.1.
pub const MAILBOX_DATA_BYTES: usize = 512;

/// Alignment of a mailbox block in memory. Source: reference 2.1 (576 bytes, aligned to 1024).
pub const MAILBOX_ALIGN_BYTES: usize = 1024;

/// Number of mailbox blocks that carry `len_bytes` of input or output.
pub const fn mailbox_blocks(len_bytes: usize) -> usize {
    len_bytes.saturating_sub(INLINE_BYTES).div_ceil(MAILBOX_DATA_BYTES)
}

/// Bytes of a page that the device is given, and of one in a list with `log_page_size` 0.
pub const PAGE_BYTES: usize = 4096;

/// The only command transport, in [`CommandEntry::command_type`]. Source: reference 2.1.
pub const TRANSPORT_PCIE: u32 = 7;

layout! {
    /// Command queue entry, 64 bytes. Source: reference 2.1; `mlx5_cmd_layout`.
    pub struct CommandEntry [0x40] {
        0x00 [31:24] command_type "Transport, [`TRANSPORT_PCIE`].";
        0x04 [31:0] input_length "Length of the whole input in bytes, inline part included.";
        0x08 (u64) input_mailbox_ptr
            "Address of the first input block, 0 if the input fits inline.";
        0x10 ([u8; 16]) command_input_inline_data "The first 16 bytes of input.";
        0x20 ([u8; 16]) command_output_inline_data
            "The first 16 bytes of output, written by the device.";
        0x30 (u64) output_mailbox_ptr
            "Address of the first output block, 0 if the output fits inline.";
        0x38 [31:0] output_length "Length in bytes that the driver can take.";
        0x3c [31:24] token "Equal to the token in every mailbox block of this command.";
        0x3c [23:16] signature "Makes the XOR of the entry 0xff, or is not used.";
        0x3c [7:1] status "Delivery status, written by the device.";
        0x3c [0] ownership "The entry belongs to the device; it clears this bit last.";
    }

    /// Mailbox block, 576 bytes. Source: reference 2.1; `mlx5_cmd_prot_block`.
    pub struct Mailbox [0x240] {
        0x000 ([u8; 512]) data "Up to 512 bytes of input or output.";
        0x230 (u64) next_pointer "Address of the next block, 0 at the end.";
        0x238 [31:0] block_number "Position in the chain, from 0.";
        0x23c [23:16] token "Equal to the token of the queue entry.";
        0x23c [15:8] ctrl_signature "Makes the XOR of bytes 0x200 to 0x23e 0xff, or is not used.";
        0x23c [7:0] signature "Makes the XOR of the block 0xff, or is not used.";
    }

    /// First eight bytes of every input.
    pub struct InputHeader [0x8] {
        ..input_header;
    }

    /// First eight bytes of every output.
    pub struct OutputHeader [0x8] {
        ..output_header;
    }
}
