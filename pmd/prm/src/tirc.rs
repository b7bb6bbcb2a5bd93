//! Transport interface contexts: TIR, TIS, and the RSS table RQT.
//!
//! Source: reference 5.9; PRM "TIR Context", `mlx5_ifc_tirc_bits`, `tisc`, `rqtc`.

use crate::layout;

layout! {
    /// Transport interface receive context, 240 bytes (`tirc`).
    pub struct Tirc [0xf0] {
        /// Packets go 0 to `inline_rqn`, 1 through the RQ table.
        0x04 [31:28] disp_type;
        /// Packets are decrypted (TLS).
        0x04 [27] tls_en;
        /// LRO: longest wait for another segment in us.
        0x10 [27:12] lro_timeout_period_usecs;
        /// LRO: bit 0 merges IPv4, bit 1 IPv6.
        0x10 [11:8] packet_merge_mask;
        /// LRO: longest merged IP payload, in units of 256 bytes.
        0x10 [7:0] lro_max_ip_payload_size;
        /// Receive queue of a direct TIR.
        0x1c [23:0] inline_rqn;
        /// Both directions of a connection get the same hash.
        0x20 [31] rx_hash_symmetric;
        /// Offloads look at the inner headers.
        0x20 [29] tunneled_offload_en;
        /// RQ table of an indirect TIR.
        0x20 [23:0] indirect_table;
        /// Hash: 0 none, 1 inverted XOR8, 2 Toeplitz.
        0x24 [31:28] rx_hash_fn;
        /// Own packets that are not looped back: bit 0 unicast, bit 1 multicast.
        0x24 [25:24] self_lb_block;
        /// Transport domain of the TIR.
        0x24 [23:0] transport_domain;
        /// Key of the Toeplitz hash.
        0x28 ([u8; 40]) rx_hash_toeplitz_key;
        /// What is hashed: bit 31 IPv6 (else IPv4), bit 30 UDP (else TCP); bit 0 source address, 1
        /// destination address, 2 source port, 3 destination port, 4 SPI.
        0x50 [31:0] rx_hash_field_selector_outer;
        /// The same, for the inner headers of a tunnel.
        0x54 [31:0] rx_hash_field_selector_inner;
    }

    /// Transport interface send context, 160 bytes (`tisc`).
    pub struct Tisc [0xa0] {
        /// Packets never move to another port of the aggregation.
        0x00 [31] strict_lag_tx_port_affinity;
        /// Packets are encrypted (TLS).
        0x00 [30] tls_en;
        /// Port of a link aggregation to send through, 1-based; 0: any.
        0x00 [27:24] lag_tx_port_affinity;
        /// Priority, in the upper three of the four bits.
        0x00 [19:16] prio;
        /// Transport domain of the TIS.
        0x24 [23:0] transport_domain;
        /// QP underneath (IPoIB).
        0x28 [23:0] underlay_qpn;
        /// Protection domain of the TLS keys.
        0x2c [23:0] pd;
    }

    /// RQ table context, 240 bytes (`rqtc`); the list follows it.
    pub struct Rqtc [0xf0] {
        /// Kind of queues in the list, 0 RQ.
        0x14 [26:24] list_q_type;
        /// Entries that the table can have.
        0x14 [15:0] rqt_max_size;
        /// Entries that the list behind the context has.
        0x18 [15:0] rqt_actual_size;
    }

    /// Entry of the RQ list behind [`Rqtc`].
    pub struct RqNum [0x4] {
        /// Number of the receive queue.
        0x00 [23:0] rq_num;
    }
}
