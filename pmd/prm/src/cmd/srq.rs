//! Shared receive queues and multicast groups.
//!
//! Source: reference 4.2; PRM, the chapter of each command; `mlx5_ifc_<command>_in_bits`.

use crate::layout::rows;
use crate::srqc::XrcSrqc;

rows! { $
    xrc_srqn {
        /// Number of the shared receive queue.
        0x08 [23:0] xrc_srqn;
    }
}

command! {
    /// The page list follows the input.
    CreateXrcSrq CREATE_XRC_SRQ [0x110] {
        /// The queue's context.
        0x10 (XrcSrqc) xrc_srq_context_entry;
        /// The queue stands in a user memory object.
        0x5c [31] xrc_srq_umem_valid;
    } => { ..xrc_srqn; }
    DestroyXrcSrq DESTROY_XRC_SRQ { ..xrc_srqn; }
    /// The page list follows the output.
    QueryXrcSrq QUERY_XRC_SRQ { ..xrc_srqn; } => [0x110] {
        /// The queue's context.
        0x10 (XrcSrqc) xrc_srq_context_entry;
    }
    /// `op_mod` 1.
    ArmXrcSrq ARM_XRC_SRQ {
        ..xrc_srqn;
        /// Low-water mark: the event is raised when fewer WQEs are left.
        0x0c [15:0] lwm;
    }
    /// `op_mod` 1 SRQ, 2 XRQ.
    ArmRq ARM_RQ {
        /// Number of the shared receive queue.
        0x08 [23:0] srq_number;
        /// Low-water mark: the event is raised when fewer WQEs are left.
        0x0c [15:0] lwm;
    }
    AttachToMcg ATTACH_TO_MCG,
    DetachFromMcg DETACH_FROM_MCG [0x20] {
        /// Number of the queue pair.
        0x08 [23:0] qpn;
        /// GID of the multicast group.
        0x10 ([u8; 16]) multicast_gid;
    }
}
