//! Structures of the kernel's made into those of programs, and back: stock librdmacm has
//! libibverbs do it.

use std::ffi::c_int;

use super::kernel::{ib_user_path_rec, ib_uverbs_ah_attr, ib_uverbs_qp_attr};
use crate::abi::{ibv_ah_attr, ibv_global_route, ibv_qp_attr, ibv_qp_cap, ibv_sa_path_rec};

fn address(from: &ib_uverbs_ah_attr) -> ibv_ah_attr {
    let word = |at: usize| {
        let bytes = from.grh.dgid[at..].first_chunk().copied().unwrap_or_default();
        u64::from_ne_bytes(bytes)
    };
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: [word(0), word(8)],
            flow_label: from.grh.flow_label,
            sgid_index: from.grh.sgid_index,
            hop_limit: from.grh.hop_limit,
            traffic_class: from.grh.traffic_class,
        },
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}

pub(crate) unsafe extern "C" fn ibv_copy_ah_attr_from_kern(
    to: *mut ibv_ah_attr,
    from: *const ib_uverbs_ah_attr,
) {
    promised!(to.write(address(&*from)));
}

pub(crate) unsafe extern "C" fn ibv_copy_qp_attr_from_kern(
    to: *mut ibv_qp_attr,
    from: *const ib_uverbs_qp_attr,
) {
    let (to, from) = promised!((&mut *to, &*from));
    let [max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data] = from.cap;
    let cap = ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data };
    *to = ibv_qp_attr {
        // The state is the one that the program has asked for.
        qp_state: to.qp_state,
        cur_qp_state: from.cur_qp_state as c_int,
        path_mtu: from.path_mtu as c_int,
        path_mig_state: from.path_mig_state as c_int,
        qkey: from.qkey,
        rq_psn: from.rq_psn,
        sq_psn: from.sq_psn,
        dest_qp_num: from.dest_qp_num,
        qp_access_flags: from.qp_access_flags,
        cap,
        ah_attr: address(&from.ah_attr),
        alt_ah_attr: address(&from.alt_ah_attr),
        pkey_index: from.pkey_index,
        alt_pkey_index: from.alt_pkey_index,
        en_sqd_async_notify: from.en_sqd_async_notify,
        sq_draining: from.sq_draining,
        max_rd_atomic: from.max_rd_atomic,
        max_dest_rd_atomic: from.max_dest_rd_atomic,
        min_rnr_timer: from.min_rnr_timer,
        port_num: from.port_num,
        timeout: from.timeout,
        retry_cnt: from.retry_cnt,
        rnr_retry: from.rnr_retry,
        alt_port_num: from.alt_port_num,
        alt_timeout: from.alt_timeout,
        rate_limit: 0,
    };
}

/// The fields that both forms of a path have, from one to the other.
macro_rules! path {
    ($to:ident, $from:expr, $($field:ident),*) => {
        $to { $($field: $from.$field as _),* }
    };
    ($to:ident, $from:expr) => {
        path!($to, $from, dgid, sgid, dlid, slid, raw_traffic, flow_label, reversible, mtu, pkey,
            hop_limit, traffic_class, numb_path, sl, mtu_selector, rate_selector, rate,
            packet_life_time_selector, packet_life_time, preference)
    };
}

pub(crate) unsafe extern "C" fn ibv_copy_path_rec_from_kern(
    to: *mut ibv_sa_path_rec,
    from: *const ib_user_path_rec,
) {
    promised!(to.write(path!(ibv_sa_path_rec, *from)));
}

pub(crate) unsafe extern "C" fn ibv_copy_path_rec_to_kern(
    to: *mut ib_user_path_rec,
    from: *const ibv_sa_path_rec,
) {
    promised!(to.write(path!(ib_user_path_rec, *from)));
}
