//! Queue pair context and address path.
//!
//! Source: reference 5.2 and 5.3; PRM "Queue Pair Context", `mlx5_ifc_qpc_bits`, `mlx5_ifc_ads_bits`.

use crate::layout;

layout! {
    /// Address path, 44 bytes (`ads`).
    pub struct Ads [0x2c] {
        /// Force loop-back.
        0x00 [31] fl, with_fl;
        /// `free_ar`.
        0x00 [30] free_ar, with_free_ar;
        /// `pkey_index`.
        0x00 [15:0] pkey_index, with_pkey_index;
        /// IB only.
        0x04 [23] grh, with_grh;
        /// Source path bits.
        0x04 [22:16] mlid, with_mlid;
        /// IB: remote LID (RoCE: see udp_sport).
        0x04 [15:0] rlid, with_rlid;
        /// 4.096 us * 2^n, 0 = infinite.
        0x08 [31:27] ack_timeout, with_ack_timeout;
        /// GID table index (RoCE address index).
        0x08 [23:16] src_addr_index, with_src_addr_index;
        /// 0 = port rate.
        0x08 [11:8] stat_rate, with_stat_rate;
        /// TTL/hop limit.
        0x08 [7:0] hop_limit, with_hop_limit;
        /// RoCE v2 IP TOS/TC.
        0x0c [27:20] tclass, with_tclass;
        /// `flow_label`.
        0x0c [19:0] flow_label, with_flow_label;
        /// Remote GID; IPv4 as IPv4-mapped.
        0x10 ([u8; 16]) rgid_rip, with_rgid_rip;
        /// `f_dscp`.
        0x20 [27] f_dscp, with_f_dscp;
        /// `f_ecn`.
        0x20 [26] f_ecn, with_f_ecn;
        /// `f_eth_prio`.
        0x20 [24] f_eth_prio, with_f_eth_prio;
        /// `ecn`.
        0x20 [23:22] ecn, with_ecn;
        /// RoCEv2: Linux writes traffic_class >> 2.
        0x20 [21:16] dscp, with_dscp;
        /// RoCEv2 source port.
        0x20 [15:0] udp_sport, with_udp_sport;
        /// `dei_cfi`.
        0x24 [31] dei_cfi, with_dei_cfi;
        /// 802.1p priority.
        0x24 [30:28] eth_prio, with_eth_prio;
        /// IB only.
        0x24 [27:24] sl, with_sl;
        /// Port, 1-based.
        0x24 [23:16] vhca_port_num, with_vhca_port_num;
        /// Next hop MAC.
        0x24 [15:0] rmac_47_32, with_rmac_47_32;
        /// `rmac_31_0`.
        0x28 [31:0] rmac_31_0, with_rmac_31_0;
    }

    /// Queue pair context, 232 bytes (`qpc`).
    pub struct Qpc [0xe8] {
        /// See commands.md 4.4.
        0x00 [31:28] state, with_state;
        /// `lag_tx_port_affinity`.
        0x00 [27:24] lag_tx_port_affinity, with_lag_tx_port_affinity;
        /// 0 RC, 1 UC, 2 UD, 3 XRC, 4 MLX, 5 DCI, 6 DCT, 7 QP0, 8 QP1 (GSI), 9 raw datagram,
        /// 0xc REG_UMR, 0xd PTP, 0xe SYNC_UMR.
        0x00 [23:16] st, with_st;
        /// `isolate_vl_tc`.
        0x00 [13] isolate_vl_tc, with_isolate_vl_tc;
        /// 3 migrated (normal), 0 armed, 1 rearm.
        0x00 [12:11] pm_state, with_pm_state;
        /// `req_e2e_credit_mode`.
        0x00 [9:8] req_e2e_credit_mode, with_req_e2e_credit_mode;
        /// 1 rendezvous.
        0x00 [7:4] offload_type, with_offload_type;
        /// 1 = pad to cache line.
        0x00 [3:2] end_padding_mode, with_end_padding_mode;
        /// WQE signature check.
        0x04 [31] wq_signature, with_wq_signature;
        /// `block_lb_mc`.
        0x04 [30] block_lb_mc, with_block_lb_mc;
        /// `atomic_like_write_en`.
        0x04 [29] atomic_like_write_en, with_atomic_like_write_en;
        /// Linux sets it for REG_UMR.
        0x04 [28] latency_sensitive, with_latency_sensitive;
        /// `drain_sigerr`.
        0x04 [26] drain_sigerr, with_drain_sigerr;
        /// `pd`.
        0x04 [23:0] pd, with_pd;
        /// 1=256 2=512 3=1024 4=2048 5=4096, 7 raw Ethernet.
        0x08 [31:29] mtu, with_mtu;
        /// Log2 max message (30); GSI 8, UD 12.
        0x08 [28:24] log_msg_max, with_log_msg_max;
        /// Log2 WQEs.
        0x08 [22:19] log_rq_size, with_log_rq_size;
        /// Log2(stride bytes) - 4.
        0x08 [18:16] log_rq_stride, with_log_rq_stride;
        /// `no_sq`.
        0x08 [15] no_sq, with_no_sq;
        /// Log2 of 64-byte basic blocks.
        0x08 [14:11] log_sq_size, with_log_sq_size;
        /// 0 free running, 1 default, 2 real time.
        0x08 [7:6] ts_format, with_ts_format;
        /// 1 = reserved lkey allowed on this QP (Linux kernel QPs).
        0x08 [4] rlky, with_rlky;
        /// 1 IPoIB.
        0x08 [3:0] ulp_stateless_offload_mode, with_ulp_stateless_offload_mode;
        /// `counter_set_id`.
        0x0c [31:24] counter_set_id, with_counter_set_id;
        /// UAR index for doorbells.
        0x0c [23:0] uar_page, with_uar_page;
        /// 24 bit returned in CQE 0x20\[23:0\] when cqe_version=1; 0xffffff = driver wants
        /// version 0 behaviour.
        0x10 [23:0] user_index, with_user_index;
        /// Log2(page) - 12 of the pas list.
        0x14 [28:24] log_page_size, with_log_page_size;
        /// `remote_qpn`.
        0x14 [23:0] remote_qpn, with_remote_qpn;
        /// Ads, 5.3.
        0x18 (Ads) primary_address_path, with_primary_address_path;
        /// Ads.
        0x44 (Ads) secondary_address_path, with_secondary_address_path;
        /// Linux 8 (MLX5_IB_ACK_REQ_FREQ).
        0x70 [31:28] log_ack_req_freq, with_log_ack_req_freq;
        /// Initiator outstanding reads/atomics, log2.
        0x70 [23:21] log_sra_max, with_log_sra_max;
        /// 0..7.
        0x70 [18:16] retry_count, with_retry_count;
        /// 7 = infinite.
        0x70 [15:13] rnr_retry, with_rnr_retry;
        /// Fast registration enable.
        0x70 [11] fre, with_fre;
        /// Device maintained.
        0x70 [10:8] cur_rnr_retry, with_cur_rnr_retry;
        /// Device maintained.
        0x70 [7:5] cur_retry_count, with_cur_retry_count;
        /// `next_send_psn`.
        0x78 [23:0] next_send_psn, with_next_send_psn;
        /// `log_num_dci_stream_channels`.
        0x7c [28:24] log_num_dci_stream_channels, with_log_num_dci_stream_channels;
        /// `cqn_snd`.
        0x7c [23:0] cqn_snd, with_cqn_snd;
        /// `log_num_dci_errored_streams`.
        0x80 [28:24] log_num_dci_errored_streams, with_log_num_dci_errored_streams;
        /// UD: source QPN put on wire (1 for GSI TX QPs; needs cap set_deth_sqpn).
        0x80 [23:0] deth_sqpn, with_deth_sqpn;
        /// `last_acked_psn`.
        0x88 [23:0] last_acked_psn, with_last_acked_psn;
        /// `ssn`.
        0x8c [23:0] ssn, with_ssn;
        /// Responder resources log2.
        0x90 [23:21] log_rra_max, with_log_rra_max;
        /// 1 IB spec, 2 only 8B, 3 up to 8B, 4 16B, 5 32B, 6 64B, 7 128B, 8 256B.
        0x90 [19:16] atomic_mode, with_atomic_mode;
        /// Remote read enable.
        0x90 [15] rre, with_rre;
        /// Remote write enable.
        0x90 [14] rwe, with_rwe;
        /// Remote atomic enable.
        0x90 [13] rae, with_rae;
        /// 64-byte units.
        0x90 [11:6] page_offset, with_page_offset;
        /// Cross-channel.
        0x90 [2] cd_slave_receive, with_cd_slave_receive;
        /// `cd_slave_send`.
        0x90 [1] cd_slave_send, with_cd_slave_send;
        /// `cd_master`.
        0x90 [0] cd_master, with_cd_master;
        /// RNR timer code.
        0x94 [28:24] min_rnr_nak, with_min_rnr_nak;
        /// `next_rcv_psn`.
        0x94 [23:0] next_rcv_psn, with_next_rcv_psn;
        /// `xrcd`.
        0x98 [23:0] xrcd, with_xrcd;
        /// `cqn_rcv`.
        0x9c [23:0] cqn_rcv, with_cqn_rcv;
        /// DMA address of the 8-byte doorbell record.
        0xa0 (u64) dbr_addr, with_dbr_addr;
        /// `q_key`.
        0xa8 [31:0] q_key, with_q_key;
        /// 0 own RQ, 1 SRQ/RMP, 2 cross RQ, 3 zero-size RQ.
        0xac [26:24] rq_type, with_rq_type;
        /// `srqn_rmpn_xrqn`.
        0xac [23:0] srqn_rmpn_xrqn, with_srqn_rmpn_xrqn;
        /// `rmsn`.
        0xb0 [23:0] rmsn, with_rmsn;
        /// `hw_sq_wqebb_counter`.
        0xb4 [31:16] hw_sq_wqebb_counter, with_hw_sq_wqebb_counter;
        /// `sw_sq_wqebb_counter`.
        0xb4 [15:0] sw_sq_wqebb_counter, with_sw_sq_wqebb_counter;
        /// `hw_rq_counter`.
        0xb8 [31:0] hw_rq_counter, with_hw_rq_counter;
        /// `sw_rq_counter`.
        0xbc [31:0] sw_rq_counter, with_sw_rq_counter;
        /// `cgs`.
        0xc4 [16] cgs, with_cgs;
        /// Requester inline-data-in-CQE: 0 off, 0x11 32 B, 0x22 64 B.
        0xc4 [15:8] cs_req, with_cs_req;
        /// Responder: 0 off, 1 32 B, 2 64 B.
        0xc4 [7:0] cs_res, with_cs_res;
        /// `dc_access_key`.
        0xc8 (u64) dc_access_key, with_dc_access_key;
        /// `dbr_umem_valid`.
        0xd0 [28] dbr_umem_valid, with_dbr_umem_valid;
    }
}
