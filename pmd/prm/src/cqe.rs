//! Completion queue entries.
//!
//! Source: reference 6.7 and 6.8; PRM "Completion Queue Entry", `mlx5_cqe64`, `mlx5_err_cqe`,
//! `mlx5_mini_cqe8`.

use crate::layout;
use crate::layout::values;

layout! {
    /// Completion queue entry, 64 bytes.
    pub struct Cqe64 [0x40] {
        0x00 [28:27] tls_offload "TLS offload: 0 none, 1 decrypted, 2 resynchronise, 3 error.";
        0x00 [24] outer_l3_tunneled "The packet came through a tunnel.";
        0x00 [15:0] wqe_id "Number of the WQE (striding RQ and SRQ).";
        0x04 [30] lro_tcppsh "LRO: a merged segment had the PSH flag.";
        0x04 [23:16] lro_min_ttl "LRO: the smallest TTL seen.";
        0x04 [15:0] lro_tcp_win "LRO: the TCP window of the last segment.";
        0x08 [31:0] lro_ack_seq_num "LRO: the TCP acknowledgement number.";
        0x0c [31:0] rx_hash_result "RSS hash of the packet.";
        0x10 [31:30] rx_hash_l4 "Layer-4 part of what was hashed: 1 TCP, 2 UDP, 3 IPsec SPI.";
        0x10 [27:26] rx_hash_l3 "Layer-3 part of what was hashed: 1 IPv4, 2 IPv6.";
        0x10 [23:16] ml_path "Source path bits (InfiniBand).";
        0x14 [31:16] check_sum "Ones' complement sum of the packet behind its layer-2 header.";
        0x14 [15:0] slid "Source LID of the packet (InfiniBand).";
        0x18 [29:28] grh "0 no GRH, 1 in the buffer, 2 in the CQE.";
        0x18 [27:24] sl "Service level; RoCE: bits 25:24 are 0 GRH, 1 IPv6, 2 IPv4.";
        0x18 [23:0] rqpn "Source queue pair of the packet.";
        0x1c [26] l4_ok "The layer-4 checksum is right.";
        0x1c [25] l3_ok "The layer-3 header checksum is right.";
        0x1c [24] l2_ok "The layer-2 header is right.";
        0x1c [23] ip_frag "The packet was an IP fragment.";
        0x1c [22:20] l4_hdr_type "Layer-4 header, see [`l4_hdr_type`]; 0 for none.";
        0x1c [19:18] l3_hdr_type "Layer-3 header, see [`l3_hdr_type`]; 0 for none.";
        0x1c [17] ip_ext_opts "The IPv4 header has options, or the IPv6 header extension headers.";
        0x1c [16] cv "A VLAN tag was present and, if so configured, stripped.";
        0x1c [15:0] vlan_info "The stripped tag: priority, DEI, id.";
        0x20 [31:24] lro_num_seg "LRO: number of segments merged.";
        0x20 [23:0] srqn_uidx "SRQ number, or the queue's user index when `cqe_version` is 1.";
        0x24 [31:0] imm_inval_pkey
            "Immediate data, invalidated rkey, P_Key, or flow table metadata.";
        0x2c [31:0] byte_cnt
            "Bytes scattered; striding RQ: bit 31 filler, 30:16 strides consumed, 15:0 bytes.";
        0x30 (u64) timestamp "Device clock when the completion was made.";
        0x38 [31:24] sop_qpn_opcode "Requester: opcode of the WQE.";
        0x38 [23:0] sop_drop_qpn "Requester: queue number; Ethernet receive: flow tag.";
        0x3c [31:16] wqe_counter
            "Requester: first basic block of the WQE; receive: WQE counter or stride index.";
        0x3c [15:8] signature "Signature, or validity iteration count of enhanced compression.";
        0x3c [7:4] opcode "Kind of completion, see [`CqeOpcode`].";
        0x3c [3:2] format "Further content of the entry, see [`CqeFormat`].";
        0x3c [1] se "The sender asked for a solicited event.";
        0x3c [0] owner "Toggles each time around the ring, 0 the first time.";
    }

    /// Completion with error, 64 bytes.
    pub struct ErrCqe [0x40] {
        0x20 [23:0] srqn_uidx "SRQ number, or the queue's user index.";
        0x34 [31:24] hw_error_syndrome "Hardware error syndrome (DPDK).";
        0x34 [23:16] hw_syndrome_type "Hardware syndrome type (DPDK).";
        0x34 [15:8] vendor_err_synd "Diagnostic code of the firmware.";
        0x34 [7:0] syndrome "See [`crate::syndrome::CqeSyndrome`].";
        0x38 [31:24] s_wqe_opcode "Opcode of the failed WQE.";
        0x38 [23:0] qpn "Number of the queue that failed.";
        0x3c [31:16] wqe_counter "Counter of the failed WQE.";
        0x3c [15:8] signature "XOR signature of the entry.";
        0x3c [7:4] opcode "[`CqeOpcode::REQUESTER_ERROR`] or [`CqeOpcode::RESPONDER_ERROR`].";
        0x3c [3:2] format "Always 0.";
        0x3c [0] owner "Toggles each time around the ring.";
    }

    /// One completion of a compressed block, 8 bytes, receive side.
    pub struct MiniCqe [0x8] {
        0x00 [31:0] rx_hash_result
            "RSS hash (format 0), or checksum 31:16 and stride index 15:0 (formats 1 and 3).";
        0x04 [31:0] byte_cnt "Bytes scattered, coded like [`Cqe64::byte_cnt`].";
    }
}

values! {
    /// [`Cqe64::l3_hdr_type`]. Source: reference 6.7.
    pub mod l3_hdr_type: u32 {
        1 IPV6 "IPv6.";
        2 IPV4 "IPv4.";
    }
}

values! {
    /// [`Cqe64::l4_hdr_type`]. Source: reference 6.7.
    pub mod l4_hdr_type: u32 {
        1 TCP "TCP, other than those below.";
        2 UDP "UDP.";
        3 TCP_EMPTY_ACK "TCP with ACK and no data.";
        4 TCP_ACK "TCP with ACK and data.";
    }
}

values! {
    /// [`Cqe64::opcode`]. Source: reference 6.7, "CQE opcodes".
    pub struct CqeOpcode(u32) {
        0 REQUESTER "A send-side work request ended.";
        1 RESPONDER_WRITE_IMM "An RDMA write with immediate arrived.";
        2 RESPONDER_SEND "A message or an Ethernet packet arrived.";
        3 RESPONDER_SEND_IMM "A message with immediate arrived.";
        4 RESPONDER_SEND_INVAL "A message with invalidate arrived.";
        5 RESIZE_CQ "Last entry of the old buffer of a resized CQ.";
        12 SIGNATURE_ERROR "Signature error.";
        13 REQUESTER_ERROR "A send-side work request failed.";
        14 RESPONDER_ERROR "A receive failed.";
        15 INVALID "Never written.";
    }
}

values! {
    /// [`Cqe64::format`]. Source: reference 6.7, `op_own`.
    pub struct CqeFormat(u32) {
        0 PLAIN "No data in the entry.";
        1 INLINE_32 "Up to 32 bytes of data in the entry.";
        2 INLINE_64 "Up to 64 bytes of data in the first half of a 128-byte entry.";
        3 COMPRESSED "Title of a compressed block.";
    }
}

/// Bits of an entry's last word that tell what an entry is and whose: opcode, format, owner.
pub const OP_OWN_MASK: u32 = Cqe64::OPCODE.mask() | Cqe64::FORMAT.mask() | Cqe64::OWNER.mask();
/// Compressed completions that one 64-byte entry of a ring holds. Source: reference 6.8.
pub const MINI_CQES_PER_ENTRY: u32 = 8;

/// Parts of [`Cqe64::byte_cnt`] of a striding receive queue. Source: reference 6.7.
pub mod striding {
    use crate::layout::Bits;

    /// The strides were skipped, and hold no packet.
    pub const FILLER: Bits = Bits::new(super::Cqe64::BYTE_CNT.offset, 31, 31);
    /// Number of strides used up.
    pub const STRIDES: Bits = Bits::new(super::Cqe64::BYTE_CNT.offset, 30, 16);
    /// Bytes of the packet.
    pub const BYTES: Bits = Bits::new(super::Cqe64::BYTE_CNT.offset, 15, 0);
}
