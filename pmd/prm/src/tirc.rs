//! Transport interface contexts: TIR, TIS, and the RSS table RQT.
//!
//! Source: reference 5.9; PRM "TIR Context", `mlx5_ifc_tirc_bits`, `tisc`, `rqtc`.

use crate::layout;

layout! {
    /// Transport interface receive context, 240 bytes (`tirc`).
    pub struct Tirc [0xf0] {
        /// 0 direct (inline_rqn), 1 indirect (RQT).
        0x04 [31:28] disp_type, with_disp_type;
        /// `tls_en`.
        0x04 [27] tls_en, with_tls_en;
        /// `lro_timeout_period_usecs`.
        0x10 [27:12] lro_timeout_period_usecs, with_lro_timeout_period_usecs;
        /// Bit 0 IPv4 LRO, bit 1 IPv6 LRO.
        0x10 [11:8] packet_merge_mask, with_packet_merge_mask;
        /// 256-byte units.
        0x10 [7:0] lro_max_ip_payload_size, with_lro_max_ip_payload_size;
        /// `inline_rqn`.
        0x1c [23:0] inline_rqn, with_inline_rqn;
        /// `rx_hash_symmetric`.
        0x20 [31] rx_hash_symmetric, with_rx_hash_symmetric;
        /// `tunneled_offload_en`.
        0x20 [29] tunneled_offload_en, with_tunneled_offload_en;
        /// RQT number.
        0x20 [23:0] indirect_table, with_indirect_table;
        /// 0 none, 1 inverted XOR8, 2 Toeplitz.
        0x24 [31:28] rx_hash_fn, with_rx_hash_fn;
        /// Bit 0 unicast, bit 1 multicast.
        0x24 [25:24] self_lb_block, with_self_lb_block;
        /// `transport_domain`.
        0x24 [23:0] transport_domain, with_transport_domain;
        /// `rx_hash_toeplitz_key`.
        0x28 ([u8; 40]) rx_hash_toeplitz_key, with_rx_hash_toeplitz_key;
        /// \[31\] l3 prot 0 IPv4/1 IPv6, \[30\] l4 prot 0 TCP/1 UDP, \[29:0\]: bit 0 src IP, 1
        /// dst IP, 2 l4 sport, 3 l4 dport, 4 SPI.
        0x50 [31:0] rx_hash_field_selector_outer, with_rx_hash_field_selector_outer;
        /// Same.
        0x54 [31:0] rx_hash_field_selector_inner, with_rx_hash_field_selector_inner;
    }

    /// Transport interface send context, 160 bytes (`tisc`).
    pub struct Tisc [0xa0] {
        /// `strict_lag_tx_port_affinity`.
        0x00 [31] strict_lag_tx_port_affinity, with_strict_lag_tx_port_affinity;
        /// `tls_en`.
        0x00 [30] tls_en, with_tls_en;
        /// `lag_tx_port_affinity`.
        0x00 [27:24] lag_tx_port_affinity, with_lag_tx_port_affinity;
        /// 4 bits; Linux puts priority << 1.
        0x00 [19:16] prio, with_prio;
        /// `transport_domain`.
        0x24 [23:0] transport_domain, with_transport_domain;
        /// IPoIB.
        0x28 [23:0] underlay_qpn, with_underlay_qpn;
        /// TLS.
        0x2c [23:0] pd, with_pd;
    }

    /// RQ table context, 240 bytes (`rqtc`); the list follows it.
    pub struct Rqtc [0xf0] {
        /// Kind of queues in the list, 0 RQ.
        0x14 [26:24] list_q_type, with_list_q_type;
        /// Entries that the table can have.
        0x14 [15:0] rqt_max_size, with_rqt_max_size;
        /// Entries that it has.
        0x18 [15:0] rqt_actual_size, with_rqt_actual_size;
    }

    /// Entry of the RQ list behind [`Rqtc`].
    pub struct RqNum [0x4] {
        /// Receive queue number.
        0x00 [23:0] rq_num, with_rq_num;
    }
}
