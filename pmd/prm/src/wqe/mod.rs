//! Work queue entries: segments, opcodes, flags.
//!
//! A send WQE is a sequence of 16-byte units; it takes up whole 64-byte basic blocks.
//! Source: reference 6.1 to 6.5; PRM "Work Queue Entry", `mlx5_wqe_ctrl_seg` and siblings.

mod rdma;

pub use rdma::{
    AddressVector, Atomic, MaskedCompareSwap, MaskedCompareSwap32, MaskedFetchAdd,
    MaskedFetchAdd32, Xrc,
};

use crate::layout;
use crate::layout::{Layout, bits, values};

/// Log2 of [`BASIC_BLOCK_BYTES`].
pub const LOG_BASIC_BLOCK_BYTES: u32 = 6;
/// Bytes of one send basic block (WQEBB). Source: reference 6.1.
pub const BASIC_BLOCK_BYTES: usize = 1 << LOG_BASIC_BLOCK_BYTES;
/// Log2 of [`DS_BYTES`].
pub const LOG_DS_BYTES: u32 = 4;
/// Bytes of the unit in which [`Ctrl::ds`] counts. Source: reference 6.1.
pub const DS_BYTES: usize = 1 << LOG_DS_BYTES;
/// Units of [`DS_BYTES`] in one basic block.
pub const DS_PER_BLOCK: u32 = (BASIC_BLOCK_BYTES / DS_BYTES) as u32;
/// The longest send WQE in 16-byte units. Source: reference 6.1.
pub const MAX_DS: u32 = 63;
/// lkey that ends a receive scatter list. Source: reference 6.3.
pub const INVALID_LKEY: u32 = 0x100;
/// Bit 31 of an inline data segment's first word, in a send WQE. Source: reference 6.3.
pub const INLINE_SEG: u32 = InlineHeader::INLINE.mask();
/// Bit 31 of a data segment's `byte_count` in a receive WQE: no length, but a request to pad the
/// start. There are no inline segments in receive WQEs. Source: Linux 6.12 `MLX5_HW_START_PADDING`,
/// which mlx5e sets in every entry of a cyclic receive queue.
pub const HW_START_PADDING: u32 = 1 << 31;

layout! {
    /// Control segment, 16 bytes: the start of every send WQE.
    pub struct Ctrl [0x10] {
        0x00 [31:24] opmod "Modifier of the opcode, 0 for most.";
        0x00 [23:8] wqe_index "Running count of basic blocks, not masked by the queue size.";
        0x00 [7:0] opcode "Operation of the request, see [`Opcode`].";
        0x04 [31:8] qpn "Number of the QP or SQ that the WQE is on.";
        0x04 [5:0] ds "Length of the WQE in 16-byte units, this segment included.";
        0x08 [31:24] signature "Makes the XOR of the WQE 0xff, if the queue checks it.";
        0x08 [23:8] dci_stream "Stream channel of a DC initiator.";
        0x08 [7:5] fm "Fence mode, see [`FenceMode`].";
        0x08 [3:2] ce "Completion mode, see [`CompletionMode`].";
        0x08 [1] se "The receiver raises a solicited event.";
        0x0c [31:0] imm
            "Immediate data, rkey to invalidate, mkey of a UMR, or TIS/TIR number in 31:8.";
    }

    /// Ethernet segment, first 16 bytes.
    pub struct Eth [0x10] {
        0x00 [31:24] swp_outer_l4_offset
            "Offset of the outer layer-4 header in 2-byte units (software parser).";
        0x00 [23:16] swp_outer_l3_offset
            "Offset of the outer layer-3 header in 2-byte units (software parser).";
        0x00 [15:8] swp_inner_l4_offset
            "Offset of the inner layer-4 header in 2-byte units (software parser).";
        0x00 [7:0] swp_inner_l3_offset
            "Offset of the inner layer-3 header in 2-byte units (software parser).";
        0x04 [31] l4_csum "Fill in the layer-4 checksum.";
        0x04 [30] l3_csum "Fill in the IPv4 header checksum.";
        0x04 [29] l4_inner_csum "Fill in the inner layer-4 checksum.";
        0x04 [28] l3_inner_csum "Fill in the inner IPv4 header checksum.";
        0x04 [21] swp_outer_l4_udp "Software parser: the outer layer 4 is UDP.";
        0x04 [20] swp_outer_l3_ipv6 "Software parser: the outer layer 3 is IPv6.";
        0x04 [17] swp_inner_l4_udp "Software parser: the inner layer 4 is UDP.";
        0x04 [16] swp_inner_l3_ipv6 "Software parser: the inner layer 3 is IPv6.";
        0x04 [15:0] mss "TSO: payload bytes of one segment.";
        0x08 [31:0] flow_table_metadata "Metadata for the flow tables.";
        0x0c [31:16] inline_hdr_sz
            "Bytes of packet header that stand inline from offset 0x0e; with [`ETH_VLAN_INSERT`]: \
             insert the tag in `inline_hdr_start`.";
        0x0c [15:0] inline_hdr_start "First two inline bytes, or the VLAN tag to insert.";
    }

    /// Data segment, 16 bytes: gather or scatter entry.
    pub struct Data [0x10] {
        0x00 [31:0] byte_count "Length in bytes; bit 31 is 0.";
        0x04 [31:0] lkey "Key of the memory.";
        0x08 (u64) addr "Address in the space of the key.";
    }

    /// Header of an inline data segment; the data follow, padded to 16 bytes.
    pub struct InlineHeader [0x4] {
        0x00 [31] inline "Always set; tells it from a data segment.";
        0x00 [9:0] byte_count "Length of the data in bytes.";
    }

    /// Remote address segment, 16 bytes.
    pub struct Raddr [0x10] {
        0x00 (u64) raddr "Address in the remote key's space.";
        0x08 [31:0] rkey "Key of the remote memory.";
    }

    /// Next segment, 16 bytes: start of a WQE in a linked-list receive queue.
    pub struct Next [0x10] {
        0x00 [15:0] next_wqe_index "Index of the WQE that follows.";
        0x04 [31:24] signature "XOR signature of the WQE.";
    }

    /// UMR control segment, 48 bytes. Source: reference 6.4.
    pub struct UmrCtrl [0x30] {
        0x00 [31] inline "The translations stand in the WQE.";
        0x00 [30] check_not_free
            "Fail unless the mkey is in use (kernel's `CHECK_FREE`: \"fail if free\").";
        0x00 [29] check_free "Fail unless the mkey is free.";
        0x00 [28] translation_offset_en "`xlt_offset` means something.";
        0x00 [27] check_qpn "Check the mkey's queue pair number.";
        0x04 [31:16] xlt_octowords "16-byte units of translation supplied.";
        0x04 [15:0] xlt_offset_15_0 "Low part of the first unit to change, or units of BSF.";
        0x08 (u64) mkey_mask "Which fields of the mkey segment are applied, see [`mkey_mask`].";
        0x10 [31:0] xlt_offset_47_16 "High part of the first unit to change.";
    }
}

/// In [`Eth::inline_hdr_sz`]: insert a VLAN tag; bit 0 chooses an S-tag. Source: reference 6.3.
pub const ETH_VLAN_INSERT: u32 = 1 << 15;
/// Byte offset of the first inline header byte in [`Eth`]. Source: reference 6.3.
pub const ETH_INLINE_OFFSET: usize = Eth::INLINE_HDR_START.offset + 2;
/// Inline header bytes that [`Eth`] holds itself; the others follow it. Source: reference 6.3.
pub const ETH_INLINE_BYTES: usize = Eth::SIZE_BYTES - ETH_INLINE_OFFSET;

/// The word of [`Ctrl`] that asks for a completion in any case: `ce` and nothing else.
pub const CE_ALWAYS: u32 = Ctrl::CE.of(CompletionMode::ALWAYS.0);

values! {
    /// Byte offsets of the parts of a UMR request behind its [`Ctrl`]. Source: reference 6.4.
    pub mod umr: usize {
        0x10 CONTROL "The UMR control segment, [`super::UmrCtrl`].";
        0x40 MKEY "The mkey segment, a [`crate::mkey::Mkc`].";
        0x80 TRANSLATIONS
            "The translations if they are inline, else the data segment that points to them.";
        16 OCTOWORD_BYTES "Bytes of a unit of [`super::UmrCtrl::xlt_octowords`].";
    }
}

values! {
    /// Send opcodes. Source: reference 6.2, `MLX5_OPCODE_*`.
    pub struct Opcode(u8) {
        0x00 NOP "No operation.";
        0x01 SEND_INVAL "Send with invalidate.";
        0x08 RDMA_WRITE "RDMA write.";
        0x09 RDMA_WRITE_IMM "RDMA write with immediate.";
        0x0a SEND "Send; on an Ethernet SQ, one packet.";
        0x0b SEND_IMM "Send with immediate.";
        0x0e LSO "Send one large packet in segments.";
        0x10 RDMA_READ "RDMA read.";
        0x11 ATOMIC_CS "Atomic compare and swap.";
        0x12 ATOMIC_FA "Atomic fetch and add.";
        0x14 ATOMIC_MASKED_CS "Masked atomic compare and swap.";
        0x15 ATOMIC_MASKED_FA "Masked atomic fetch and add.";
        0x25 UMR "Change an mkey.";
        0x29 ENHANCED_MPSW "Several Ethernet packets in one WQE.";
    }
}

values! {
    /// [`Ctrl::ce`]. Source: reference 6.1.
    pub struct CompletionMode(u32) {
        0 ON_ERROR "A CQE only if the request fails.";
        1 ON_FIRST_ERROR "A CQE only for the first failure.";
        2 ALWAYS "Always a CQE.";
        3 ALWAYS_AND_EQE "Always a CQE and an EQE.";
    }
}

values! {
    /// [`Ctrl::fm`]. Source: reference 6.1.
    pub struct FenceMode(u32) {
        0 NONE "The request starts when those before it have started.";
        1 INITIATOR_SMALL
            "The request waits for earlier registrations and invalidations of the same queue.";
        2 FENCE "The request waits for earlier READs and atomics.";
        3 STRONG_ORDERING "The request waits for all earlier ones.";
        4 SMALL_AND_FENCE "Both [`FenceMode::INITIATOR_SMALL`] and [`FenceMode::FENCE`].";
    }
}

bits! {
    /// Bits of [`UmrCtrl::mkey_mask`]. Source: reference 6.4, `MLX5_MKEY_MASK_*`.
    pub mod mkey_mask: u64 {
        0 LEN: len;
        1 PAGE_SIZE: log_page_size;
        6 START_ADDR: start_addr;
        7 PD: pd;
        8 EN_RINVAL: en_rinval;
        9 SIGERR: expected_sigerr_count;
        12 BSF_EN: bsf_en;
        13 KEY: mkey_7_0;
        14 QPN: qpn;
        17 LR: lr;
        18 LW: lw;
        19 RR: rr;
        20 RW: rw;
        21 A: a;
        23 SMALL_FENCE: small_fence_on_rdma_read_response;
        25 RELAXED_ORDERING_WRITE: relaxed_ordering_write;
        29 FREE: free;
        47 RELAXED_ORDERING_READ: relaxed_ordering_read;
    }
}
