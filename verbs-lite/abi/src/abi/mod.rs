//! Structures and numbers that programs compile in, as `infiniband/verbs.h` of rdma-core 44 to 65
//! lays them out on 64-bit machines. Source: reference 9.3; `system_tests` compares them with the
//! header of the system.
//!
//! Structures stand here, as the header has them in one place; [`numbers`] has the enumerations,
//! `layout` the sizes and offsets that programs rely on.
//!
//! Long file: structures in the order of the header, field by field.
#![allow(non_camel_case_types, reason = "the names are those of the C header")]

mod flow;
#[cfg(target_arch = "x86_64")]
mod layout;
mod numbers;
mod work;

pub(crate) use flow::*;
pub(crate) use numbers::*;
pub(crate) use work::*;

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::AtomicU32;

/// A lock or condition of the C library that nobody outside this library uses: zeros are its
/// initial value.
pub(crate) type Opaque<const N: usize> = [u64; N];
/// Bytes of `pthread_mutex_t` and `pthread_cond_t` together.
const LOCKS: usize = (size_of::<libc::pthread_mutex_t>() + size_of::<libc::pthread_cond_t>()) / 8;
const MUTEX: usize = size_of::<libc::pthread_mutex_t>() / 8;

/// A function that callers find null, and so not supported.
pub(crate) type Absent = *const c_void;
pub(crate) const ABSENT: Absent = std::ptr::null();

#[repr(C)]
pub(crate) struct ibv_device {
    pub(crate) ops: [Absent; 2],
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
    pub(crate) name: [c_char; 64],
    pub(crate) dev_name: [c_char; 64],
    pub(crate) dev_path: [c_char; 256],
    pub(crate) ibdev_path: [c_char; 256],
}

#[repr(C)]
pub(crate) struct ibv_context_ops {
    pub(crate) before_alloc_mw: [Absent; 7],
    pub(crate) alloc_mw: unsafe extern "C" fn(*mut ibv_pd, c_int) -> *mut ibv_mw,
    pub(crate) bind_mw: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int,
    pub(crate) dealloc_mw: unsafe extern "C" fn(*mut ibv_mw) -> c_int,
    pub(crate) before_poll_cq: Absent,
    pub(crate) poll_cq: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut MaybeUninit<ibv_wc>) -> c_int,
    pub(crate) req_notify_cq: unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int,
    pub(crate) before_post_srq_recv: [Absent; 7],
    pub(crate) post_srq_recv:
        unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    pub(crate) before_post_send: [Absent; 4],
    pub(crate) post_send:
        unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
    pub(crate) post_recv:
        unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    pub(crate) last: [Absent; 5],
}

#[repr(C)]
pub(crate) struct ibv_context {
    pub(crate) device: *mut ibv_device,
    pub(crate) ops: ibv_context_ops,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
    pub(crate) mutex: Opaque<MUTEX>,
    pub(crate) abi_compat: *mut c_void,
}

/// Grows at the front: a newer caller finds `sz` too small for what it asks for.
#[repr(C)]
pub(crate) struct verbs_context {
    pub(crate) query_port:
        unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int,
    pub(crate) before_reg_dm_mr: [Absent; 6],
    pub(crate) reg_dm_mr:
        unsafe extern "C" fn(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint) -> *mut ibv_mr,
    pub(crate) alloc_dm:
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_alloc_dm_attr) -> *mut ibv_dm,
    pub(crate) free_dm: unsafe extern "C" fn(*mut ibv_dm) -> c_int,
    pub(crate) before_alloc_parent_domain: [Absent; 4],
    pub(crate) alloc_parent_domain:
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd,
    pub(crate) dealloc_td: unsafe extern "C" fn(*mut ibv_td) -> c_int,
    pub(crate) alloc_td: unsafe extern "C" fn(*mut ibv_context, *mut u32) -> *mut ibv_td,
    pub(crate) modify_cq: unsafe extern "C" fn(*mut ibv_cq, *mut ibv_modify_cq_attr) -> c_int,
    pub(crate) before_rwq_ind_table: Absent,
    pub(crate) destroy_rwq_ind_table: unsafe extern "C" fn(*mut ibv_rwq_ind_table) -> c_int,
    pub(crate) create_rwq_ind_table: unsafe extern "C" fn(
        *mut ibv_context,
        *mut ibv_rwq_ind_table_init_attr,
    ) -> *mut ibv_rwq_ind_table,
    pub(crate) destroy_wq: unsafe extern "C" fn(*mut ibv_wq) -> c_int,
    pub(crate) modify_wq: unsafe extern "C" fn(*mut ibv_wq, *mut ibv_wq_attr) -> c_int,
    pub(crate) create_wq:
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_wq_init_attr) -> *mut ibv_wq,
    pub(crate) query_rt_values: unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int,
    pub(crate) create_cq_ex:
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex,
    pub(crate) private: Absent,
    pub(crate) query_device_ex: unsafe extern "C" fn(
        *mut ibv_context,
        *const c_void,
        *mut ibv_device_attr_ex,
        usize,
    ) -> c_int,
    pub(crate) destroy_flow: unsafe extern "C" fn(*mut ibv_flow) -> c_int,
    pub(crate) before_create_flow: Absent,
    pub(crate) create_flow: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_flow_attr) -> *mut ibv_flow,
    pub(crate) before_open_qp: Absent,
    pub(crate) open_qp:
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_open_attr) -> *mut ibv_qp,
    pub(crate) create_qp_ex:
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp,
    pub(crate) get_srq_num: unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int,
    pub(crate) create_srq_ex:
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq,
    pub(crate) open_xrcd:
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd,
    pub(crate) close_xrcd: unsafe extern "C" fn(*mut ibv_xrcd) -> c_int,
    pub(crate) before_size: Absent,
    pub(crate) size: usize,
    pub(crate) context: ibv_context,
}

#[repr(C)]
pub(crate) struct ibv_pd {
    pub(crate) context: *mut ibv_context,
    pub(crate) handle: u32,
}

#[repr(C)]
pub(crate) struct ibv_xrcd {
    pub(crate) context: *mut ibv_context,
}

#[repr(C)]
pub(crate) struct ibv_xrcd_init_attr {
    pub(crate) comp_mask: u32,
    pub(crate) fd: c_int,
    pub(crate) oflags: c_int,
}

#[repr(C)]
pub(crate) struct ibv_qp_open_attr {
    pub(crate) comp_mask: u32,
    pub(crate) qp_num: u32,
    pub(crate) xrcd: *mut ibv_xrcd,
    pub(crate) qp_context: *mut c_void,
    pub(crate) qp_type: c_int,
}

#[repr(C)]
pub(crate) struct ibv_dm {
    pub(crate) context: *mut ibv_context,
    pub(crate) memcpy_to_dm: unsafe extern "C" fn(*mut ibv_dm, u64, *const c_void, usize) -> c_int,
    pub(crate) memcpy_from_dm: unsafe extern "C" fn(*mut c_void, *mut ibv_dm, u64, usize) -> c_int,
    pub(crate) comp_mask: u32,
    pub(crate) handle: u32,
}

#[repr(C)]
pub(crate) struct ibv_alloc_dm_attr {
    pub(crate) length: usize,
    pub(crate) log_align_req: u32,
    pub(crate) comp_mask: u32,
}

#[repr(C)]
pub(crate) struct ibv_mr {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

#[repr(C)]
pub(crate) struct ibv_mw {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) rkey: u32,
    pub(crate) handle: u32,
    pub(crate) kind: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_mw_bind_info {
    pub(crate) mr: *mut ibv_mr,
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) mw_access_flags: c_uint,
}

#[repr(C)]
pub(crate) struct ibv_mw_bind {
    pub(crate) wr_id: u64,
    pub(crate) send_flags: c_uint,
    pub(crate) bind_info: ibv_mw_bind_info,
}

#[repr(C)]
pub(crate) struct ibv_ah {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) handle: u32,
}

#[repr(C)]
pub(crate) struct ibv_comp_channel {
    pub(crate) context: *mut ibv_context,
    pub(crate) fd: c_int,
    pub(crate) refcnt: c_int,
}

#[repr(C)]
pub(crate) struct ibv_cq {
    pub(crate) context: *mut ibv_context,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: c_int,
    pub(crate) locks: Opaque<LOCKS>,
    pub(crate) comp_events_completed: AtomicU32,
    pub(crate) async_events_completed: AtomicU32,
}

#[repr(C)]
pub(crate) struct ibv_cq_ex {
    pub(crate) base: ibv_cq,
    pub(crate) comp_mask: u32,
    pub(crate) status: c_int,
    pub(crate) wr_id: u64,
    pub(crate) start_poll: unsafe extern "C" fn(*mut ibv_cq_ex, *mut c_void) -> c_int,
    pub(crate) next_poll: unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int,
    pub(crate) end_poll: unsafe extern "C" fn(*mut ibv_cq_ex),
    pub(crate) read_opcode: unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int,
    pub(crate) read_vendor_err: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
    pub(crate) read_byte_len: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
    pub(crate) read_imm_data: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
    pub(crate) read_qp_num: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
    pub(crate) read_src_qp: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
    pub(crate) read_wc_flags: unsafe extern "C" fn(*mut ibv_cq_ex) -> c_uint,
    pub(crate) read_slid: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
    pub(crate) read_sl: unsafe extern "C" fn(*mut ibv_cq_ex) -> u8,
    pub(crate) read_dlid_path_bits: unsafe extern "C" fn(*mut ibv_cq_ex) -> u8,
    pub(crate) read_completion_ts: unsafe extern "C" fn(*mut ibv_cq_ex) -> u64,
    pub(crate) read_unsupported: [Absent; 3],
    pub(crate) read_completion_wallclock_ns: unsafe extern "C" fn(*mut ibv_cq_ex) -> u64,
}

#[repr(C)]
pub(crate) struct ibv_modify_cq_attr {
    pub(crate) attr_mask: u32,
    pub(crate) cq_count: u16,
    /// In microseconds.
    pub(crate) cq_period: u16,
}

#[repr(C)]
pub(crate) struct ibv_values_ex {
    pub(crate) comp_mask: u32,
    pub(crate) raw_clock: libc::timespec,
}

#[repr(C)]
pub(crate) struct ibv_td {
    pub(crate) context: *mut ibv_context,
}

#[repr(C)]
pub(crate) struct ibv_parent_domain_init_attr {
    pub(crate) pd: *mut ibv_pd,
    pub(crate) td: *mut ibv_td,
    pub(crate) comp_mask: u32,
    pub(crate) alloc:
        Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void>,
    pub(crate) free: Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64)>,
    pub(crate) pd_context: *mut c_void,
}

#[repr(C)]
pub(crate) struct ibv_cq_init_attr_ex {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) comp_vector: u32,
    pub(crate) wc_flags: u64,
    pub(crate) comp_mask: u32,
    pub(crate) flags: u32,
    pub(crate) parent_domain: *mut ibv_pd,
}

#[repr(C)]
pub(crate) struct ibv_srq {
    pub(crate) context: *mut ibv_context,
    pub(crate) srq_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) handle: u32,
    pub(crate) locks: Opaque<LOCKS>,
    pub(crate) events_completed: AtomicU32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_srq_attr {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

#[repr(C)]
pub(crate) struct ibv_srq_init_attr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: ibv_srq_attr,
}

#[repr(C)]
pub(crate) struct ibv_srq_init_attr_ex {
    pub(crate) base: ibv_srq_init_attr_head,
    pub(crate) comp_mask: u32,
    pub(crate) srq_type: c_int,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) xrcd: *mut ibv_xrcd,
    pub(crate) cq: *mut ibv_cq,
    pub(crate) tm_cap: [u32; 2],
}

/// [`ibv_srq_init_attr`] without the padding at its end.
#[repr(C, packed(4))]
#[derive(Clone, Copy)]
pub(crate) struct ibv_srq_init_attr_head {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: ibv_srq_attr,
}

#[repr(C)]
pub(crate) struct ibv_qp {
    pub(crate) context: *mut ibv_context,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: c_int,
    pub(crate) qp_type: c_int,
    pub(crate) locks: Opaque<LOCKS>,
    pub(crate) events_completed: AtomicU32,
}

#[repr(C)]
pub(crate) struct ibv_qp_ex {
    pub(crate) base: ibv_qp,
    pub(crate) comp_mask: u64,
    pub(crate) wr_id: u64,
    pub(crate) wr_flags: c_uint,
    pub(crate) wr_atomic_cmp_swp: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64, u64),
    pub(crate) wr_atomic_fetch_add: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64),
    pub(crate) wr_bind_mw:
        unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_mw, u32, *const ibv_mw_bind_info),
    pub(crate) wr_local_inv: unsafe extern "C" fn(*mut ibv_qp_ex, u32),
    pub(crate) wr_rdma_read: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64),
    pub(crate) wr_rdma_write: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64),
    pub(crate) wr_rdma_write_imm: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32),
    pub(crate) wr_send: unsafe extern "C" fn(*mut ibv_qp_ex),
    pub(crate) wr_send_imm: unsafe extern "C" fn(*mut ibv_qp_ex, u32),
    pub(crate) wr_send_inv: unsafe extern "C" fn(*mut ibv_qp_ex, u32),
    pub(crate) wr_send_tso: Absent,
    pub(crate) wr_set_ud_addr: unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32),
    pub(crate) wr_set_xrc_srqn: unsafe extern "C" fn(*mut ibv_qp_ex, u32),
    pub(crate) wr_set_inline_data: unsafe extern "C" fn(*mut ibv_qp_ex, *const u8, usize),
    pub(crate) wr_set_inline_data_list:
        unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_data_buf),
    pub(crate) wr_set_sge: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32),
    pub(crate) wr_set_sge_list: unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge),
    pub(crate) wr_start: unsafe extern "C" fn(*mut ibv_qp_ex),
    pub(crate) wr_complete: unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int,
    pub(crate) wr_abort: unsafe extern "C" fn(*mut ibv_qp_ex),
    pub(crate) wr_atomic_write: Absent,
    pub(crate) wr_flush: Absent,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_data_buf {
    pub(crate) addr: *const u8,
    pub(crate) length: usize,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ibv_qp_cap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_qp_init_attr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
}

/// The plain attributes, with `comp_mask` in the padding at their end.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_qp_init_attr_ex {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
    pub(crate) comp_mask: u32,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) xrcd: *mut ibv_xrcd,
    pub(crate) create_flags: u32,
    pub(crate) max_tso_header: u16,
    pub(crate) rwq_ind_tbl: *mut ibv_rwq_ind_table,
    pub(crate) rx_hash_conf: ibv_rx_hash_conf,
    pub(crate) source_qpn: u32,
    pub(crate) send_ops_flags: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ibv_global_route {
    /// A union with two words of eight bytes, whence the alignment.
    pub(crate) dgid: [u64; 2],
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ibv_ah_attr {
    pub(crate) grh: ibv_global_route,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ibv_qp_attr {
    pub(crate) qp_state: c_int,
    pub(crate) cur_qp_state: c_int,
    pub(crate) path_mtu: c_int,
    pub(crate) path_mig_state: c_int,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: c_uint,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) ah_attr: ibv_ah_attr,
    pub(crate) alt_ah_attr: ibv_ah_attr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ibv_sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct wr_rdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct wr_atomic {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct wr_ud {
    pub(crate) ah: *mut ibv_ah,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union wr_of {
    pub(crate) rdma: wr_rdma,
    pub(crate) atomic: wr_atomic,
    pub(crate) ud: wr_ud,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_send_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut ibv_send_wr,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_int,
    pub(crate) send_flags: c_uint,
    /// Immediate data as they stand on the wire, or the key to invalidate.
    pub(crate) imm_data: u32,
    pub(crate) wr: wr_of,
    pub(crate) xrc_srqn: u32,
    pub(crate) bind_mw: wr_bind_mw,
}

/// What `BIND_MW` says; in a union with what this device has not, which is smaller.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct wr_bind_mw {
    pub(crate) mw: *mut ibv_mw,
    pub(crate) rkey: u32,
    pub(crate) bind_info: ibv_mw_bind_info,
}

#[repr(C)]
pub(crate) struct ibv_recv_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut ibv_recv_wr,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ibv_wc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_int,
    pub(crate) opcode: c_int,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// Immediate data as they stood on the wire, or the key that was invalidated.
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: c_uint,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

#[repr(C)]
pub(crate) struct ibv_device_attr {
    pub(crate) fw_ver: [c_char; 64],
    pub(crate) node_guid: u64,
    pub(crate) sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) device_cap_flags: c_uint,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    pub(crate) max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    pub(crate) max_ee_rd_atom: c_int,
    pub(crate) max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    pub(crate) max_ee_init_rd_atom: c_int,
    pub(crate) atomic_cap: c_int,
    pub(crate) max_ee: c_int,
    pub(crate) max_rdd: c_int,
    pub(crate) max_mw: c_int,
    pub(crate) max_raw_ipv6_qp: c_int,
    pub(crate) max_raw_ethy_qp: c_int,
    pub(crate) max_mcast_grp: c_int,
    pub(crate) max_mcast_qp_attach: c_int,
    pub(crate) max_total_mcast_qp_attach: c_int,
    pub(crate) max_ah: c_int,
    pub(crate) max_fmr: c_int,
    pub(crate) max_map_per_fmr: c_int,
    pub(crate) max_srq: c_int,
    pub(crate) max_srq_wr: c_int,
    pub(crate) max_srq_sge: c_int,
    pub(crate) max_pkeys: u16,
    pub(crate) local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
}

/// What is named neither here nor in the plain attributes is zero: it is not supported.
#[repr(C)]
pub(crate) struct ibv_device_attr_ex {
    pub(crate) base: ibv_device_attr,
    pub(crate) comp_mask: u32,
    pub(crate) odp_caps: [u64; 3],
    pub(crate) completion_timestamp_mask: u64,
    /// In kHz.
    pub(crate) hca_core_clock: u64,
    pub(crate) device_cap_flags_ex: u64,
    pub(crate) tso_caps: [u32; 2],
    pub(crate) rss_caps: ibv_rss_caps,
    pub(crate) max_wq_type_rq: u32,
    pub(crate) packet_pacing_caps: [u32; 3],
    pub(crate) raw_packet_caps: u32,
    pub(crate) tm_caps: [u32; 5],
    /// Completions, and microseconds.
    pub(crate) cq_mod_caps: [u16; 2],
    /// Bytes of the largest piece of memory of the device.
    pub(crate) max_dm_size: u64,
    pub(crate) before_phys_port_cnt_ex: [u32; 3],
    pub(crate) phys_port_cnt_ex: u32,
}

#[repr(C)]
#[derive(Default)]
pub(crate) struct ibv_port_attr {
    pub(crate) state: c_int,
    pub(crate) max_mtu: c_int,
    pub(crate) active_mtu: c_int,
    pub(crate) gid_tbl_len: c_int,
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    pub(crate) bad_pkey_cntr: u32,
    pub(crate) qkey_viol_cntr: u32,
    pub(crate) pkey_tbl_len: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) lmc: u8,
    pub(crate) max_vl_num: u8,
    pub(crate) sm_sl: u8,
    pub(crate) subnet_timeout: u8,
    pub(crate) init_type_reply: u8,
    pub(crate) active_width: u8,
    pub(crate) active_speed: u8,
    pub(crate) phys_state: u8,
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
    pub(crate) port_cap_flags2: u16,
}

/// Bytes of [`ibv_port_attr`] when `ibv_query_port` was still no inline function.
pub(crate) const OLD_PORT_ATTR_BYTES: usize = 48;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_gid_entry {
    pub(crate) gid: [u64; 2],
    pub(crate) gid_index: u32,
    pub(crate) port_num: u32,
    pub(crate) gid_type: u32,
    pub(crate) ndev_ifindex: u32,
}

/// A path as librdmacm hands it out (`infiniband/sa.h`).
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct ibv_sa_path_rec {
    pub(crate) dgid: [u8; 16],
    pub(crate) sgid: [u8; 16],
    pub(crate) dlid: u16,
    pub(crate) slid: u16,
    pub(crate) raw_traffic: c_int,
    pub(crate) flow_label: u32,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) reversible: c_int,
    pub(crate) numb_path: u8,
    pub(crate) pkey: u16,
    pub(crate) sl: u8,
    pub(crate) mtu_selector: u8,
    pub(crate) mtu: u8,
    pub(crate) rate_selector: u8,
    pub(crate) rate: u8,
    pub(crate) packet_life_time_selector: u8,
    pub(crate) packet_life_time: u8,
    pub(crate) preference: u8,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct ibv_async_event {
    /// The object, or the number of the port.
    pub(crate) element: u64,
    pub(crate) event_type: c_int,
}
