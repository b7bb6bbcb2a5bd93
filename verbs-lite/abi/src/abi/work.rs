//! Receive work queues, tables of them, and how frames are hashed into a table.

use std::ffi::{c_int, c_void};

use super::{LOCKS, Opaque, ibv_context, ibv_cq, ibv_pd, ibv_recv_wr};

/// `enum ibv_wq_state`.
pub(crate) mod wqs {
    pub(crate) const RESET: i32 = 0;
    pub(crate) const RDY: i32 = 1;
    pub(crate) const ERR: i32 = 2;
}

#[repr(C)]
pub(crate) struct ibv_wq {
    pub(crate) context: *mut ibv_context,
    pub(crate) wq_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) cq: *mut ibv_cq,
    pub(crate) wq_num: u32,
    pub(crate) handle: u32,
    pub(crate) state: c_int,
    pub(crate) wq_type: c_int,
    pub(crate) post_recv:
        unsafe extern "C" fn(*mut ibv_wq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    pub(crate) locks: Opaque<LOCKS>,
    pub(crate) events_completed: u32,
    pub(crate) comp_mask: u32,
}

#[repr(C)]
pub(crate) struct ibv_wq_init_attr {
    pub(crate) wq_context: *mut c_void,
    pub(crate) wq_type: c_int,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) cq: *mut ibv_cq,
    pub(crate) comp_mask: u32,
    pub(crate) create_flags: u32,
}

#[repr(C)]
pub(crate) struct ibv_wq_attr {
    pub(crate) attr_mask: u32,
    pub(crate) wq_state: c_int,
    pub(crate) curr_wq_state: c_int,
    pub(crate) flags: u32,
    pub(crate) flags_mask: u32,
}

#[repr(C)]
pub(crate) struct ibv_rwq_ind_table {
    pub(crate) context: *mut ibv_context,
    pub(crate) ind_tbl_handle: c_int,
    pub(crate) ind_tbl_num: c_int,
    pub(crate) comp_mask: u32,
}

#[repr(C)]
pub(crate) struct ibv_rwq_ind_table_init_attr {
    pub(crate) log_ind_tbl_size: u32,
    pub(crate) ind_tbl: *mut *mut ibv_wq,
    pub(crate) comp_mask: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_rx_hash_conf {
    pub(crate) rx_hash_function: u8,
    pub(crate) rx_hash_key_len: u8,
    pub(crate) rx_hash_key: *mut u8,
    pub(crate) rx_hash_fields_mask: u64,
}

#[repr(C)]
pub(crate) struct ibv_rss_caps {
    pub(crate) supported_qpts: u32,
    pub(crate) max_rwq_indirection_tables: u32,
    pub(crate) max_rwq_indirection_table_size: u32,
    pub(crate) rx_hash_fields_mask: u64,
    pub(crate) rx_hash_function: u8,
}
