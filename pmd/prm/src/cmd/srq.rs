//! Shared receive queues and multicast groups.
//!
//! Source: reference 4.2; PRM, the chapter of each command; `mlx5_ifc_<command>_in_bits`.

use crate::srqc::XrcSrqc;
use crate::{command, layout};

layout! {
    /// CREATE_XRC_SRQ input, 0x110 bytes. The page list follows.
    pub struct CreateXrcSrqIn [0x110] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// The queue's context.
        0x10 (XrcSrqc) xrc_srq_context_entry;
        /// The queue stands in a user memory object.
        0x5c [31] xrc_srq_umem_valid;
    }

    /// CREATE_XRC_SRQ output, 0x10 bytes.
    pub struct CreateXrcSrqOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// Number of the shared receive queue.
        0x08 [23:0] xrc_srqn;
    }

    /// DESTROY_XRC_SRQ input, 0x10 bytes.
    pub struct DestroyXrcSrqIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the shared receive queue.
        0x08 [23:0] xrc_srqn;
    }

    /// DESTROY_XRC_SRQ output, 0x10 bytes.
    pub struct DestroyXrcSrqOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// QUERY_XRC_SRQ input, 0x10 bytes.
    pub struct QueryXrcSrqIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the shared receive queue.
        0x08 [23:0] xrc_srqn;
    }

    /// QUERY_XRC_SRQ output, 0x110 bytes. The page list follows.
    pub struct QueryXrcSrqOut [0x110] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
        /// The queue's context.
        0x10 (XrcSrqc) xrc_srq_context_entry;
    }

    /// ARM_XRC_SRQ input, 0x10 bytes; op_mod 1.
    pub struct ArmXrcSrqIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the shared receive queue.
        0x08 [23:0] xrc_srqn;
        /// Low-water mark: the event is raised when fewer WQEs are left.
        0x0c [15:0] lwm;
    }

    /// ARM_XRC_SRQ output, 0x10 bytes.
    pub struct ArmXrcSrqOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// ARM_RQ input, 0x10 bytes; op_mod 1 SRQ, 2 XRQ.
    pub struct ArmRqIn [0x10] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the shared receive queue.
        0x08 [23:0] srq_number;
        /// Low-water mark: the event is raised when fewer WQEs are left.
        0x0c [15:0] lwm;
    }

    /// ARM_RQ output, 0x10 bytes.
    pub struct ArmRqOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// ATTACH_TO_MCG input, 0x20 bytes.
    pub struct AttachToMcgIn [0x20] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the queue pair.
        0x08 [23:0] qpn;
        /// GID of the multicast group.
        0x10 ([u8; 16]) multicast_gid;
    }

    /// ATTACH_TO_MCG output, 0x10 bytes.
    pub struct AttachToMcgOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }

    /// DETACH_FROM_MCG input, 0x20 bytes.
    pub struct DetachFromMcgIn [0x20] {
        /// Command opcode.
        0x00 [31:16] opcode;
        /// User context, 0 for the driver itself.
        0x00 [15:0] uid;
        /// Operation modifier.
        0x04 [15:0] op_mod;
        /// Number of the queue pair.
        0x08 [23:0] qpn;
        /// GID of the multicast group.
        0x10 ([u8; 16]) multicast_gid;
    }

    /// DETACH_FROM_MCG output, 0x10 bytes.
    pub struct DetachFromMcgOut [0x10] {
        /// Output status, see [`crate::syndrome::CommandStatus`].
        0x00 [31:24] status;
        /// Diagnostic code of the firmware.
        0x04 [31:0] syndrome;
    }
}

command! {
    CreateXrcSrq CREATE_XRC_SRQ: CreateXrcSrqIn => CreateXrcSrqOut,
    DestroyXrcSrq DESTROY_XRC_SRQ: DestroyXrcSrqIn => DestroyXrcSrqOut,
    QueryXrcSrq QUERY_XRC_SRQ: QueryXrcSrqIn => QueryXrcSrqOut,
    ArmXrcSrq ARM_XRC_SRQ: ArmXrcSrqIn => ArmXrcSrqOut,
    ArmRq ARM_RQ: ArmRqIn => ArmRqOut,
    AttachToMcg ATTACH_TO_MCG: AttachToMcgIn => AttachToMcgOut,
    DetachFromMcg DETACH_FROM_MCG: DetachFromMcgIn => DetachFromMcgOut,
}
