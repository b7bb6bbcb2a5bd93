//! Transport interface contexts: TIR, TIS, and the RSS table RQT.
//!
//! Source: reference 5.9; PRM "TIR Context", `mlx5_ifc_tirc_bits`, `tisc`, `rqtc`.

use crate::layout;
use crate::layout::{bits, values};

layout! {
    /// Transport interface receive context, 240 bytes (`tirc`).
    pub struct Tirc [0xf0] {
        0x04 [31:28] disp_type "Where packets go, see [`disp_type`].";
        0x04 [27] tls_en "Packets are decrypted (TLS).";
        0x10 [27:12] lro_timeout_period_usecs "LRO: longest wait for another segment in us.";
        0x10 [11:8] packet_merge_mask "LRO: bit 0 merges IPv4, bit 1 IPv6.";
        0x10 [7:0] lro_max_ip_payload_size "LRO: longest merged IP payload, in units of 256 bytes.";
        0x1c [23:0] inline_rqn "Receive queue of a direct TIR.";
        0x20 [31] rx_hash_symmetric "Both directions of a connection get the same hash.";
        0x20 [29] tunneled_offload_en "Offloads look at the inner headers.";
        0x20 [23:0] indirect_table "RQ table of an indirect TIR.";
        0x24 [31:28] rx_hash_fn "Kind of hash, see [`hash_fn`].";
        0x24 [25:24] self_lb_block
            "Own packets that come back, despite the name: bit 0 unicast, bit 1 multicast.";
        0x24 [23:0] transport_domain "Transport domain of the TIR.";
        0x28 ([u8; 40]) rx_hash_toeplitz_key "Key of the Toeplitz hash.";
        0x50 [31:0] rx_hash_field_selector_outer "Fields that are hashed, see [`hash_field`].";
        0x54 [31:0] rx_hash_field_selector_inner
            "Inner header fields of a tunnel that are hashed, see [`hash_field`].";
    }

    /// Transport interface send context, 160 bytes (`tisc`).
    pub struct Tisc [0xa0] {
        0x00 [31] strict_lag_tx_port_affinity
            "Packets never move to another port of the aggregation.";
        0x00 [30] tls_en "Packets are encrypted (TLS).";
        0x00 [27:24] lag_tx_port_affinity
            "Port of a link aggregation to send through, 1-based; 0: any.";
        0x00 [19:16] prio "Priority, in the upper three of the four bits.";
        0x24 [23:0] transport_domain "Transport domain of the TIS.";
        0x28 [23:0] underlay_qpn "QP underneath (IPoIB).";
        0x2c [23:0] pd "Protection domain of the TLS keys.";
    }

    /// RQ table context, 240 bytes (`rqtc`); the list follows it.
    pub struct Rqtc [0xf0] {
        0x14 [26:24] list_q_type "Kind of queues in the list, 0 RQ.";
        0x14 [15:0] rqt_max_size "Entries that the table can have.";
        0x18 [15:0] rqt_actual_size "Entries that the list behind the context has.";
    }

    /// Entry of the RQ list behind [`Rqtc`].
    pub struct RqNum [0x4] {
        0x00 [23:0] rq_num "Number of the receive queue.";
    }
}

values! {
    /// [`Tirc::disp_type`]. Source: reference 5.9.
    pub mod disp_type: u32 {
        0 DIRECT "To [`super::Tirc::inline_rqn`].";
        1 INDIRECT "Through [`super::Tirc::indirect_table`].";
    }
}

values! {
    /// [`Tirc::rx_hash_fn`]. Source: reference 5.9.
    pub mod hash_fn: u32 {
        0 NONE "Packets are not hashed.";
        1 INVERTED_XOR8 "Exclusive or of the bytes, inverted.";
        2 TOEPLITZ "Toeplitz hash with [`super::Tirc::rx_hash_toeplitz_key`].";
    }
}

bits! {
    /// Bits of [`Tirc::rx_hash_field_selector_outer`] and of its inner sister. Without `L3_IPV6`
    /// the packets are IPv4, without `L4_UDP` they are TCP. Source: reference 5.9.
    pub mod hash_field: u32 {
        0 SRC_IP: source_address;
        1 DST_IP: destination_address;
        2 L4_SPORT: source_port;
        3 L4_DPORT: destination_port;
        4 SPI: security_parameter_index;
        30 L4_UDP: udp;
        31 L3_IPV6: ipv6;
    }
}
