//! Shared receive queues and multicast groups.
//!
//! Source: reference 4.2; PRM, the chapter of each command; `mlx5_ifc_<command>_in_bits`.

use crate::layout::rows;
use crate::srqc::XrcSrqc;

rows! { $
    xrc_srqn {
        0x08 [23:0] xrc_srqn "Number of the shared receive queue.";
    }
}

/// `op_mod` of [`ArmXrcSrq`]. Source: reference 4.2.
pub const ARM_XRC_SRQ_LWM: u32 = 1;

command! {
    /// The page list follows the input.
    CreateXrcSrq CREATE_XRC_SRQ [0x110] {
        0x10 (XrcSrqc) xrc_srq_context_entry "The queue's context.";
        0x5c [31] xrc_srq_umem_valid "The queue stands in a user memory object.";
    } => { ..xrc_srqn; }
    DestroyXrcSrq DESTROY_XRC_SRQ { ..xrc_srqn; }
    /// The page list follows the output.
    QueryXrcSrq QUERY_XRC_SRQ { ..xrc_srqn; } => [0x110] {
        0x10 (XrcSrqc) xrc_srq_context_entry "The queue's context.";
    }
    /// `op_mod` [`ARM_XRC_SRQ_LWM`].
    ArmXrcSrq ARM_XRC_SRQ {
        ..xrc_srqn;
        0x0c [15:0] lwm "Low-water mark: the event is raised when fewer WQEs are left.";
    }
    /// `op_mod` 1 SRQ, 2 XRQ.
    ArmRq ARM_RQ {
        0x08 [23:0] srq_number "Number of the shared receive queue.";
        0x0c [15:0] lwm "Low-water mark: the event is raised when fewer WQEs are left.";
    }
    AttachToMcg ATTACH_TO_MCG,
    DetachFromMcg DETACH_FROM_MCG [0x20] {
        0x08 [23:0] qpn "Number of the queue pair.";
        0x10 ([u8; 16]) multicast_gid "GID of the multicast group.";
    }
}
