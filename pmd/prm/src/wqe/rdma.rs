//! Segments of RDMA work requests: address vector, atomics, XRC.
//!
//! Source: reference 6.3; PRM "Work Queue Entry", `mlx5_av`, `mlx5_wqe_atomic_seg`,
//! `mlx5_wqe_xrc_seg`. Masked atomics: UCX, `uct_ib_mlx5_atomic_masked_*_seg`; the 32 bytes that
//! `mlx5_wqe_masked_atomic_seg` of Linux has for both are right for compare and swap only.

use crate::layout;

layout! {
    /// Address vector of a datagram, 48 bytes: where a UD send goes.
    pub struct AddressVector [0x30] {
        0x00 [31:0] qkey "Q_Key that the packet carries.";
        0x08 [31] ext "All 48 bytes are there; else only the first 16 (compact form, InfiniBand).";
        0x08 [23:0] dqp_dct "Destination queue pair or DC target.";
        0x0c [31:28] stat_rate "Static rate limit; 0: the port's rate.";
        0x0c [27:24] sl "Service level; RoCE: the priority, in the upper three bits.";
        0x0c [23] fl "Force loop-back: the packet does not leave the device.";
        0x0c [22:16] mlid "Low bits of the source LID (InfiniBand).";
        0x0c [15:0] udp_sport_rlid
            "UDP source port of RoCE v2, or the destination LID (InfiniBand).";
        0x14 ([u8; 6]) rmac "MAC of the next hop.";
        0x18 [15:8] tclass "Traffic class: TOS of IPv4, traffic class of IPv6.";
        0x18 [7:0] hop_limit "Hop limit or time to live.";
        0x1c [30] grh "The packet carries a global route header (RoCE always does).";
        0x1c [27:20] src_addr_index
            "Entry of the GID or RoCE address table that the packet is sent from.";
        0x1c [19:0] flow_label "Flow label of IPv6 and of the global route header.";
        0x20 ([u8; 16]) rgid "GID of the destination; IPv4 stands in IPv4-mapped form.";
    }

    /// Operands of an 8-byte atomic, 16 bytes.
    pub struct Atomic [0x10] {
        0x00 (u64) swap_add "Value to swap in or to add.";
        0x08 (u64) compare "Compare and swap: value that memory must have.";
    }

    /// Operands of an 8-byte compare and swap under masks, 32 bytes.
    pub struct MaskedCompareSwap [0x20] {
        0x00 (u64) swap "Value to swap in.";
        0x08 (u64) compare "Value that memory must have in the bits of `compare_mask`.";
        0x10 (u64) swap_mask "Bits to swap.";
        0x18 (u64) compare_mask "Bits to compare.";
    }

    /// Operands of a 4-byte compare and swap under masks, 16 bytes.
    pub struct MaskedCompareSwap32 [0x10] {
        0x00 [31:0] swap "Value to swap in.";
        0x04 [31:0] compare "Value that memory must have in the bits of `compare_mask`.";
        0x08 [31:0] swap_mask "Bits to swap.";
        0x0c [31:0] compare_mask "Bits to compare.";
    }

    /// Operands of an 8-byte fetch and add of fields, 16 bytes.
    pub struct MaskedFetchAdd [0x10] {
        0x00 (u64) add "Value to add.";
        0x08 (u64) field_boundary "The last bit of every field: carries do not leave it.";
    }

    /// Operands of a 4-byte fetch and add of fields, 16 bytes.
    pub struct MaskedFetchAdd32 [0x10] {
        0x00 [31:0] add "Value to add.";
        0x04 [31:0] field_boundary "The last bit of every field: carries do not leave it.";
    }

    /// XRC segment, 16 bytes.
    pub struct Xrc [0x10] {
        0x00 [23:0] xrc_srqn "Shared receive queue at the other end.";
    }
}
