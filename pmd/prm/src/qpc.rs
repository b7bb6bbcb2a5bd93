//! Queue pair context and address path.
//!
//! Source: reference 5.2 and 5.3; PRM "Queue Pair Context", `mlx5_ifc_qpc_bits`,
//! `mlx5_ifc_ads_bits`.

use crate::layout;
use crate::layout::{bits, values};

layout! {
    /// Address path, 44 bytes (`ads`).
    pub struct Ads [0x2c] {
        0x00 [31] fl "Force loop-back: packets do not leave the device.";
        0x00 [30] free_ar "Adaptive routing may choose the path freely.";
        0x00 [15:0] pkey_index "Entry of the P_Key table.";
        0x04 [23] grh "Packets carry a global route header (InfiniBand; RoCE always does).";
        0x04 [22:16] mlid "Low bits of the source LID (InfiniBand).";
        0x04 [15:0] rlid "LID of the other end (InfiniBand).";
        0x08 [31:27] ack_timeout
            "Time to wait for an acknowledgement: 4.096 us times 2^n; 0: for ever.";
        0x08 [23:16] src_addr_index
            "Entry of the GID or RoCE address table that packets are sent from.";
        0x08 [11:8] stat_rate "Static rate limit; 0: the port's rate.";
        0x08 [7:0] hop_limit "Hop limit or time to live.";
        0x0c [27:20] tclass "Traffic class: TOS of IPv4, traffic class of IPv6.";
        0x0c [19:0] flow_label "Flow label of IPv6 and of the global route header.";
        0x10 ([u8; 16]) rgid_rip "GID of the other end; IPv4 stands in IPv4-mapped form.";
        0x20 [27] f_dscp "`dscp` overrides the traffic class.";
        0x20 [26] f_ecn "`ecn` overrides the traffic class.";
        0x20 [24] f_eth_prio "`eth_prio` overrides the priority.";
        0x20 [23:22] ecn "Congestion bits of IP.";
        0x20 [21:16] dscp "Differentiated services code point of IP.";
        0x20 [15:0] udp_sport "UDP source port of RoCE v2.";
        0x24 [31] dei_cfi "Drop eligible bit of the VLAN tag.";
        0x24 [30:28] eth_prio "Priority in the VLAN tag.";
        0x24 [27:24] sl "Service level (InfiniBand).";
        0x24 [23:16] vhca_port_num "Port of this device, 1-based.";
        0x24 [15:0] rmac_47_32 "First two bytes of the next hop's MAC.";
        0x28 [31:0] rmac_31_0 "Last four bytes of the next hop's MAC.";
    }

    /// Queue pair context, 232 bytes (`qpc`).
    pub struct Qpc [0xe8] {
        0x00 [31:28] state
            "0 reset, 1 init, 2 RTR, 3 RTS, 4 SQ error, 5 or 7 SQ drained, 6 error, 9 suspended.";
        0x00 [27:24] lag_tx_port_affinity
            "Port of a link aggregation to send through, 1-based; 0: any.";
        0x00 [23:16] st
            "Service type: 0 RC, 1 UC, 2 UD, 3 XRC, 4 MLX, 5 DCI, 6 DCT, 7 QP0, 8 QP1 (GSI), 9 raw \
             datagram, 0xc REG_UMR, 0xd PTP, 0xe SYNC_UMR.";
        0x00 [13] isolate_vl_tc "Virtual lanes and traffic classes are kept apart.";
        0x00 [12:11] pm_state "Path migration: 0 armed, 1 rearm, 3 migrated (the normal state).";
        0x00 [9:8] req_e2e_credit_mode "End-to-end credits of the requester.";
        0x00 [7:4] offload_type "1: rendezvous offload.";
        0x00 [3:2] end_padding_mode "1: received data are padded to a whole cache line.";
        0x04 [31] wq_signature "The device checks the signatures of WQEs.";
        0x04 [30] block_lb_mc "Own multicasts are not looped back.";
        0x04 [29] atomic_like_write_en "RDMA writes of atomic size are atomic.";
        0x04 [28] latency_sensitive "The queue is served for low latency.";
        0x04 [26] drain_sigerr "The send queue drains on a signature error.";
        0x04 [23:0] pd "Protection domain of the QP.";
        0x08 [31:29] mtu "Path MTU: 1 256 bytes, 2 512, 3 1024, 4 2048, 5 4096, 7 raw Ethernet.";
        0x08 [28:24] log_msg_max "Log2 of the longest message in bytes.";
        0x08 [22:19] log_rq_size "Log2 of the number of receive WQEs.";
        0x08 [18:16] log_rq_stride "Log2 of the bytes of a receive WQE, minus 4.";
        0x08 [15] no_sq "The QP has no send queue.";
        0x08 [14:11] log_sq_size "Log2 of the number of 64-byte send basic blocks.";
        0x08 [7:6] ts_format "Time stamps of CQEs: 0 free running, 1 default, 2 real time.";
        0x08 [4] rlky "WQEs may use the reserved lkey.";
        0x08 [3:0] ulp_stateless_offload_mode "1: IPoIB offloads.";
        0x0c [31:24] counter_set_id "Q counter set that counts this QP's events.";
        0x0c [23:0] uar_page "UAR page from which the QP's doorbell is rung.";
        0x10 [23:0] user_index
            "Value that CQEs carry when `cqe_version` is 1; 0xffffff: as with version 0.";
        0x14 [28:24] log_page_size "Log2 of the page size of the buffer, minus 12.";
        0x14 [23:0] remote_qpn "QP number at the other end.";
        0x18 (Ads) primary_address_path "Path that packets take.";
        0x44 (Ads) secondary_address_path "Path to migrate to.";
        0x70 [31:28] log_ack_req_freq
            "Log2 of the packets after which an acknowledgement is asked for.";
        0x70 [23:21] log_sra_max "Log2 of the reads and atomics that this side may have in flight.";
        0x70 [18:16] retry_count
            "How often a request is repeated when no acknowledgement comes, 0 to 7.";
        0x70 [15:13] rnr_retry
            "How often a request is repeated after \"receiver not ready\"; 7: for ever.";
        0x70 [11] fre "Fast registration is enabled.";
        0x70 [10:8] cur_rnr_retry
            "Repetitions left after \"receiver not ready\"; the device keeps it.";
        0x70 [7:5] cur_retry_count "Repetitions left; the device keeps it.";
        0x78 [23:0] next_send_psn "Packet sequence number of the next request.";
        0x7c [28:24] log_num_dci_stream_channels "Log2 of the streams of a DC initiator.";
        0x7c [23:0] cqn_snd "Completion queue of the send queue.";
        0x80 [28:24] log_num_dci_errored_streams
            "Log2 of the streams that may be in error before the DC initiator is.";
        0x80 [23:0] deth_sqpn "UD: source QP number to send instead of the own one.";
        0x88 [23:0] last_acked_psn "Sequence number of the last request that was acknowledged.";
        0x8c [23:0] ssn "Send sequence number; the device keeps it.";
        0x90 [23:21] log_rra_max "Log2 of the reads and atomics that this side serves at a time.";
        0x90 [19:16] atomic_mode
            "Atomics served: 1 InfiniBand's, 2 only 8 bytes, 3 up to 8, 4 up to 16, 5 up to 32, 6 \
             up to 64, 7 up to 128, 8 up to 256.";
        0x90 [15] rre "RDMA reads from the other end are served.";
        0x90 [14] rwe "RDMA writes from the other end are served.";
        0x90 [13] rae "Atomics from the other end are served.";
        0x90 [11:6] page_offset "Start of the queues in their first page, in units of 64 bytes.";
        0x90 [2] cd_slave_receive "Cross-channel: the receive queue waits to be enabled.";
        0x90 [1] cd_slave_send "Cross-channel: the send queue waits to be enabled.";
        0x90 [0] cd_master "Cross-channel: this queue may enable others.";
        0x94 [28:24] min_rnr_nak
            "Time that \"receiver not ready\" answers ask for, as the transport codes it.";
        0x94 [23:0] next_rcv_psn "Sequence number expected in the next request.";
        0x98 [23:0] xrcd "XRC domain of the QP.";
        0x9c [23:0] cqn_rcv "Completion queue of the receive queue.";
        0xa0 (u64) dbr_addr "Address of the doorbell record: receive counter, then send counter.";
        0xa8 [31:0] q_key "UD: key that received packets must carry.";
        0xac [26:24] rq_type "Receive queue: 0 own, 1 SRQ or RMP, 2 cross, 3 none.";
        0xac [23:0] srqn_rmpn_xrqn "Number of the shared receive queue or pool.";
        0xb0 [23:0] rmsn "Message sequence number of the responder; the device keeps it.";
        0xb4 [31:16] hw_sq_wqebb_counter "Send basic blocks that the device has taken.";
        0xb4 [15:0] sw_sq_wqebb_counter "Send basic blocks that the driver has posted.";
        0xb8 [31:0] hw_rq_counter "Receive WQEs that the device has taken.";
        0xbc [31:0] sw_rq_counter "Receive WQEs that the driver has posted.";
        0xc4 [16] cgs "Known by this name only; the public headers say no more.";
        0xc4 [15:8] cs_req "Requester: data in CQEs: 0 none, 0x11 up to 32 bytes, 0x22 up to 64.";
        0xc4 [7:0] cs_res "Responder: data in CQEs: 0 none, 1 up to 32 bytes, 2 up to 64.";
        0xc8 (u64) dc_access_key "DC: key that connections must name.";
        0xd0 [28] dbr_umem_valid "The doorbell record stands in a user memory object.";
        0xe4 [31:0] dbr_umem_id "User memory object of the doorbell record.";
    }
}

values! {
    /// [`Qpc::st`] of the services that are used here. Source: reference 5.2.
    pub mod service: u32 {
        0 RC "Reliable connection.";
        1 UC "Unreliable connection.";
        2 UD "Unreliable datagram.";
        3 XRC "Extended reliable connection.";
        8 GSI "General services, queue pair 1 on the wire.";
        0xc REG_UMR "A queue that only carries UMR requests.";
    }
}

/// [`Qpc::pm_state`] without path migration: migrated. Source: reference 5.2.
pub const PM_STATE_MIGRATED: u32 = 3;

values! {
    /// [`Qpc::rq_type`]. Source: reference 5.2.
    pub mod rq_type: u32 {
        0 OWN "The queue pair has a receive queue of its own.";
        1 SHARED "Receives come from [`super::Qpc::srqn_rmpn_xrqn`].";
        3 EMPTY "The receive queue has no entries.";
    }
}

/// [`Qpc::atomic_mode`]: eight bytes, as InfiniBand has them. Source: reference 5.2.
pub const ATOMIC_MODE_IB: u32 = 1;

/// [`Qpc::user_index`]: CQEs are as with `cqe_version` 0. Source: reference 5.2.
pub const NO_USER_INDEX: u32 = 0xff_ffff;

bits! {
    /// Bits of `opt_param_mask` in the transitions of a queue pair. Source: reference 4.4.
    pub mod opt_param: u32 {
        0 ALTERNATE_PATH: secondary_address_path;
        1 RRE: rre;
        2 RAE: rae;
        3 RWE: rwe;
        4 PKEY_INDEX: pkey_index;
        5 Q_KEY: q_key;
        6 MIN_RNR_NAK: min_rnr_nak;
        7 PRIMARY_PATH: primary_address_path;
        8 LOG_SRA_MAX: log_sra_max;
        9 LOG_RRA_MAX: log_rra_max;
        10 PM_STATE: pm_state;
        12 RETRY_COUNT: retry_count;
        13 RNR_RETRY: rnr_retry;
        14 ACK_TIMEOUT: ack_timeout;
        15 LAG_TX_PORT_AFFINITY: lag_tx_port_affinity;
        16 PRIMARY_PORT: vhca_port_num;
        25 COUNTER_SET_ID: counter_set_id;
    }
}
