//! The enumerations of the interface, a module each.

/// `enum ibv_qp_attr_mask`.
pub(crate) mod mask {
    pub(crate) const STATE: u32 = 1;
    pub(crate) const CUR_STATE: u32 = 1 << 1;
    pub(crate) const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    pub(crate) const ACCESS_FLAGS: u32 = 1 << 3;
    pub(crate) const PKEY_INDEX: u32 = 1 << 4;
    pub(crate) const PORT: u32 = 1 << 5;
    pub(crate) const QKEY: u32 = 1 << 6;
    pub(crate) const AV: u32 = 1 << 7;
    pub(crate) const PATH_MTU: u32 = 1 << 8;
    pub(crate) const TIMEOUT: u32 = 1 << 9;
    pub(crate) const RETRY_CNT: u32 = 1 << 10;
    pub(crate) const RNR_RETRY: u32 = 1 << 11;
    pub(crate) const RQ_PSN: u32 = 1 << 12;
    pub(crate) const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub(crate) const ALT_PATH: u32 = 1 << 14;
    pub(crate) const MIN_RNR_TIMER: u32 = 1 << 15;
    pub(crate) const SQ_PSN: u32 = 1 << 16;
    pub(crate) const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub(crate) const PATH_MIG_STATE: u32 = 1 << 18;
    pub(crate) const CAP: u32 = 1 << 19;
    pub(crate) const DEST_QPN: u32 = 1 << 20;
    pub(crate) const RATE_LIMIT: u32 = 1 << 25;
}

/// `enum ibv_qp_state`.
pub(crate) mod qps {
    pub(crate) const RESET: i32 = 0;
    pub(crate) const INIT: i32 = 1;
    pub(crate) const RTR: i32 = 2;
    pub(crate) const RTS: i32 = 3;
    pub(crate) const SQE: i32 = 5;
    pub(crate) const ERR: i32 = 6;
}

/// `enum ibv_qp_type`.
pub(crate) mod qpt {
    pub(crate) const RC: i32 = 2;
    pub(crate) const UC: i32 = 3;
    pub(crate) const UD: i32 = 4;
    pub(crate) const RAW_PACKET: i32 = 8;
    pub(crate) const XRC_SEND: i32 = 9;
    pub(crate) const XRC_RECV: i32 = 10;
}

/// `enum ibv_wr_opcode`.
pub(crate) mod wr_op {
    pub(crate) const RDMA_WRITE: i32 = 0;
    pub(crate) const RDMA_WRITE_WITH_IMM: i32 = 1;
    pub(crate) const SEND: i32 = 2;
    pub(crate) const SEND_WITH_IMM: i32 = 3;
    pub(crate) const RDMA_READ: i32 = 4;
    pub(crate) const ATOMIC_CMP_AND_SWP: i32 = 5;
    pub(crate) const ATOMIC_FETCH_AND_ADD: i32 = 6;
    pub(crate) const LOCAL_INV: i32 = 7;
    pub(crate) const BIND_MW: i32 = 8;
    pub(crate) const SEND_WITH_INV: i32 = 9;
}

/// `enum ibv_send_flags`.
pub(crate) mod send {
    pub(crate) const FENCE: u32 = 1;
    pub(crate) const SIGNALED: u32 = 1 << 1;
    pub(crate) const SOLICITED: u32 = 1 << 2;
    pub(crate) const INLINE: u32 = 1 << 3;
    pub(crate) const IP_CSUM: u32 = 1 << 4;
}

/// `enum ibv_wc_opcode` and `enum ibv_wc_flags`.
pub(crate) mod wc {
    pub(crate) const SEND: i32 = 0;
    pub(crate) const RDMA_WRITE: i32 = 1;
    pub(crate) const RDMA_READ: i32 = 2;
    pub(crate) const COMP_SWAP: i32 = 3;
    pub(crate) const FETCH_ADD: i32 = 4;
    pub(crate) const BIND_MW: i32 = 5;
    pub(crate) const LOCAL_INV: i32 = 6;
    pub(crate) const RECV: i32 = 1 << 7;
    pub(crate) const RECV_RDMA_WITH_IMM: i32 = (1 << 7) + 1;

    pub(crate) const GRH: u32 = 1;
    pub(crate) const WITH_IMM: u32 = 1 << 1;
    pub(crate) const IP_CSUM_OK: u32 = 1 << 2;
    pub(crate) const WITH_INV: u32 = 1 << 3;
}

/// `enum ibv_access_flags`.
pub(crate) mod access {
    pub(crate) const LOCAL_WRITE: u32 = 1;
    pub(crate) const REMOTE_WRITE: u32 = 1 << 1;
    pub(crate) const REMOTE_READ: u32 = 1 << 2;
    pub(crate) const REMOTE_ATOMIC: u32 = 1 << 3;
    pub(crate) const MW_BIND: u32 = 1 << 4;
    pub(crate) const ZERO_BASED: u32 = 1 << 5;
    pub(crate) const HUGETLB: u32 = 1 << 7;
    /// Flags that a device may leave aside, relaxed ordering for one: this one does.
    pub(crate) const OPTIONAL: u32 = 0x3ff0_0000;
}

/// `enum ibv_event_type`.
pub(crate) mod event {
    pub(crate) const CQ_ERR: i32 = 0;
    pub(crate) const QP_FATAL: i32 = 1;
    pub(crate) const QP_REQ_ERR: i32 = 2;
    pub(crate) const QP_ACCESS_ERR: i32 = 3;
    pub(crate) const COMM_EST: i32 = 4;
    pub(crate) const SQ_DRAINED: i32 = 5;
    pub(crate) const DEVICE_FATAL: i32 = 8;
    pub(crate) const PORT_ACTIVE: i32 = 9;
    pub(crate) const PORT_ERR: i32 = 10;
    pub(crate) const SRQ_ERR: i32 = 14;
    pub(crate) const SRQ_LIMIT_REACHED: i32 = 15;
    pub(crate) const QP_LAST_WQE_REACHED: i32 = 16;
}
