//! Sizes and offsets, checked when this is compiled. Source: reference 9.3, for x86-64; other
//! machines have other sizes of locks.

use std::mem::offset_of;

use super::*;

const _: () = {
    assert!(size_of::<ibv_device>() == 664 && offset_of!(ibv_device, name) == 24);
    assert!(size_of::<ibv_context>() == 328 && offset_of!(ibv_context, abi_compat) == 320);
    assert!(offset_of!(ibv_context, ops.alloc_mw) == 64);
    assert!(offset_of!(ibv_context, ops.poll_cq) == 96);
    assert!(offset_of!(ibv_context, ops.post_srq_recv) == 168);
    assert!(offset_of!(ibv_context, ops.post_send) == 208);
    assert!(size_of::<verbs_context>() == 648);
    let at = offset_of!(verbs_context, context);
    assert!(at - offset_of!(verbs_context, size) == 8);
    assert!(at - offset_of!(verbs_context, create_srq_ex) == 40);
    assert!(at - offset_of!(verbs_context, create_qp_ex) == 56);
    assert!(at - offset_of!(verbs_context, open_qp) == 64);
    assert!(at - offset_of!(verbs_context, open_xrcd) == 32);
    assert!(at - offset_of!(verbs_context, close_xrcd) == 24);
    assert!(size_of::<ibv_xrcd_init_attr>() == 12 && size_of::<ibv_qp_open_attr>() == 32);
    assert!(offset_of!(ibv_send_wr, xrc_srqn) == 72);
    assert!(at - offset_of!(verbs_context, query_device_ex) == 104);
    assert!(at - offset_of!(verbs_context, create_cq_ex) == 120);
    assert!(at - offset_of!(verbs_context, query_port) == 320);
    assert!(at - offset_of!(verbs_context, create_flow) == 80);
    assert!(at - offset_of!(verbs_context, destroy_flow) == 96);
    assert!(at - offset_of!(verbs_context, create_wq) == 136);
    assert!(size_of::<ibv_rss_caps>() == 32 && offset_of!(ibv_device_attr_ex, rss_caps) == 296);
    assert!(size_of::<ibv_rx_hash_conf>() == 24 && size_of::<ibv_wq>() == 152);
    assert!(size_of::<ibv_flow_attr>() == 20 && size_of::<ibv_flow>() == 24);
    assert!(size_of::<ibv_flow_spec_eth>() == 40 && size_of::<ibv_flow_spec_ipv6>() == 88);
    assert!(size_of::<ibv_pd>() == 16 && size_of::<ibv_mr>() == 48 && size_of::<ibv_ah>() == 24);
    assert!(size_of::<ibv_cq>() == 128 && size_of::<ibv_cq_ex>() == 288);
    assert!(offset_of!(ibv_cq_ex, status) == 132 && offset_of!(ibv_cq_ex, start_poll) == 144);
    assert!(size_of::<ibv_qp>() == 160 && size_of::<ibv_qp_ex>() == 360);
    assert!(offset_of!(ibv_qp_ex, wr_start) == 320 && offset_of!(ibv_qp_ex, wr_flags) == 176);
    assert!(size_of::<ibv_send_wr>() == 128 && offset_of!(ibv_send_wr, wr) == 40);
    assert!(offset_of!(ibv_send_wr, bind_mw) == 80 && size_of::<wr_bind_mw>() == 48);
    assert!(size_of::<ibv_mw>() == 32 && size_of::<ibv_mw_bind>() == 48);
    assert!(size_of::<ibv_recv_wr>() == 32 && size_of::<ibv_wc>() == 48);
    assert!(size_of::<ibv_device_attr>() == 232 && size_of::<ibv_device_attr_ex>() == 400);
    assert!(offset_of!(ibv_device_attr_ex, phys_port_cnt_ex) == 396);
    assert!(offset_of!(ibv_device_attr_ex, cq_mod_caps) == 368);
    assert!(at - offset_of!(verbs_context, alloc_parent_domain) == 208);
    assert!(at - offset_of!(verbs_context, alloc_dm) == 256);
    assert!(size_of::<ibv_dm>() == 32 && size_of::<ibv_alloc_dm_attr>() == 16);
    assert!(offset_of!(ibv_device_attr_ex, max_dm_size) == 376);
    assert!(at - offset_of!(verbs_context, query_rt_values) == 128);
    assert!(size_of::<ibv_port_attr>() == 52 && offset_of!(ibv_port_attr, link_layer) == 46);
    assert!(size_of::<ibv_qp_attr>() == 144 && offset_of!(ibv_qp_attr, ah_attr) == 56);
    assert!(offset_of!(ibv_qp_attr, max_rd_atomic) == 126);
    assert!(size_of::<ibv_qp_init_attr>() == 64 && size_of::<ibv_qp_init_attr_ex>() == 136);
    assert!(offset_of!(ibv_qp_init_attr_ex, comp_mask) == 60);
    assert!(offset_of!(ibv_qp_init_attr_ex, send_ops_flags) == 128);
    assert!(size_of::<ibv_srq>() == 128 && size_of::<ibv_srq_init_attr>() == 24);
    assert!(size_of::<ibv_gid_entry>() == 32 && size_of::<ibv_async_event>() == 16);
};
