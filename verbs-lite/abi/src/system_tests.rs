//! The interface compared with that of the system's rdma-core, where it is installed, or of one
//! that was unpacked into the folder `FERROCX_RDMA_CORE`: `scripts/rdma/abi.sh` fetches the newest.

use std::collections::HashSet;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::abi::*;
use crate::face::rdma_cm::kernel::*;

/// Where Debian puts the library and its header.
const LIBRARY: &str = "usr/lib/x86_64-linux-gnu/libibverbs.so.1";
const HEADER: &str = "usr/include/infiniband/verbs.h";

/// Where the rdma-core to compare with is; and whether it is one that was asked for, which has to
/// be there.
fn place(file: &str) -> (PathBuf, bool) {
    let root = std::env::var_os("FERROCX_RDMA_CORE");
    let is_asked_for = root.is_some();
    (Path::new(&root.unwrap_or_else(|| "/".into())).join(file), is_asked_for)
}

/// Names and versions of a table in the form of `symbols.txt`.
fn ours() -> HashSet<(String, String)> {
    let mut node = String::new();
    let mut names = HashSet::new();
    for line in include_str!("../symbols.txt").lines().filter(|line| !line.starts_with('#')) {
        match line.strip_suffix(':') {
            Some(name) => name.clone_into(&mut node),
            None => {
                let name = line.split(' ').next().unwrap_or(line);
                names.insert((name.to_owned(), node.clone()));
            }
        }
    }
    names
}

#[test]
fn every_name_and_version_of_the_system_is_there() {
    let (library, is_asked_for) = place(LIBRARY);
    let Ok(listed) = Command::new("objdump").arg("-T").arg(&library).output() else {
        assert!(!is_asked_for, "no objdump");
        return println!("skipped: no objdump (apt-get install binutils)");
    };
    if !listed.status.success() {
        assert!(!is_asked_for, "no {}", library.display());
        return println!("skipped: no {} (apt-get install libibverbs1)", library.display());
    }
    let ours = ours();
    let text = String::from_utf8_lossy(&listed.stdout);
    let mut count = 0;
    for line in text.lines().filter(|line| !line.contains("*UND*") && !line.contains("*ABS*")) {
        let words: Vec<_> = line.split_whitespace().collect();
        let [.., version, name] = words[..] else { continue };
        let version = version.trim_matches(['(', ')']);
        if version.starts_with("IBVERBS_") {
            assert!(ours.contains(&(name.to_owned(), version.to_owned())), "{name}@{version}");
            count += 1;
        }
    }
    println!("{count} names and versions are there");
    assert!(count > 150, "{count} names were found");
}

/// A line of C that fails to compile unless a structure is as large, and its fields are where, ours
/// are. Fields have the names of the header, or `ours = theirs`.
macro_rules! layout {
    ($out:ident, $name:ident, $size:literal: $($field:ident $(= $theirs:literal)?),* $(,)?) => {
        if $size {
            let bytes = size_of::<$name>();
            let name = stringify!($name);
            $out.push_str(&format!(
                "_Static_assert(sizeof(struct {name}) == {bytes}, \"{name}\");\n"
            ));
        }
        $(
            let (name, at) = (stringify!($name), offset_of!($name, $field));
            #[allow(unused_assignments, unused_mut, reason = "only some have another name")]
            let mut field = stringify!($field);
            $(field = $theirs;)?
            $out.push_str(&format!(
                "_Static_assert(offsetof(struct {name}, {field}) == {at}, \"{name} {field}\");\n"
            ));
        )*
    };
}

/// The commands of `rdma_cm`.
fn rdma_cm_layouts(out: &mut String) {
    *out += "#include <rdma/rdma_user_cm.h>\n";
    layout!(out, rdma_ucm_cmd_hdr, true: cmd, input = "in", output = "out");
    layout!(out, rdma_ucm_create_id, true: uid, response, ps, qp_type);
    layout!(out, rdma_ucm_create_id_resp, true: id);
    layout!(out, rdma_ucm_destroy_id, true: response, id);
    layout!(out, rdma_ucm_destroy_id_resp, true: events_reported);
    layout!(out, rdma_ucm_bind_ip, false: response, addr, id);
    layout!(out, rdma_ucm_resolve_ip, true: src_addr, dst_addr, id, timeout_ms);
    layout!(out, rdma_ucm_resolve_route, true: id, timeout_ms);
    layout!(out, rdma_ucm_query, true: response, id, option);
    layout!(out, ib_user_path_rec, true: dgid, sgid, dlid, slid, raw_traffic, flow_label,
        reversible, mtu, pkey, hop_limit, traffic_class, numb_path, sl, mtu_selector,
        rate_selector, rate, packet_life_time_selector, packet_life_time, preference);
    layout!(out, rdma_ucm_query_route_resp, true: node_guid, ib_route, src_addr, dst_addr,
        num_paths, port_num, ibdev_index);
    layout!(out, rdma_ucm_conn_param, true: qp_num, qkey, private_data, private_data_len, srq,
        responder_resources, initiator_depth, flow_control, retry_count, rnr_retry_count, valid);
    layout!(out, rdma_ucm_ud_param, true: qp_num, qkey, ah_attr, private_data, private_data_len);
    layout!(out, rdma_ucm_connect, true: conn_param, id, ece);
    layout!(out, rdma_ucm_listen, true: id, backlog);
    layout!(out, rdma_ucm_accept, true: uid, conn_param, id, ece);
    layout!(out, rdma_ucm_reject, true: id, private_data_len, reason, private_data);
    layout!(out, rdma_ucm_disconnect, true: id);
    layout!(out, rdma_ucm_init_qp_attr, true: response, id, qp_state);
    layout!(out, ib_uverbs_global_route, true: dgid, flow_label, sgid_index, hop_limit,
        traffic_class);
    layout!(out, ib_uverbs_ah_attr, true: grh, dlid, sl, src_path_bits, static_rate, is_global,
        port_num);
    layout!(out, ib_uverbs_qp_attr, true: qp_attr_mask, qp_state, cur_qp_state, path_mtu,
        path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, ah_attr, alt_ah_attr,
        cap = "max_send_wr", pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining,
        max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry,
        alt_port_num, alt_timeout);
    layout!(out, rdma_ucm_notify, true: id, event);
    layout!(out, rdma_ucm_join_ip_mcast, false: response, uid, addr, id);
    layout!(out, rdma_ucm_get_event, true: response);
    layout!(out, rdma_ucm_event_resp, true: uid, id, event, status, param, ece);
    layout!(out, rdma_ucm_set_option, true: optval, id, level, optname, optlen);
    layout!(out, rdma_ucm_migrate_id, true: response, id, fd);
}

fn layouts(header: &Path) -> String {
    let header = header.display();
    let mut out =
        format!("#include <stddef.h>\n#include \"{header}\"\n#include <infiniband/sa.h>\n");
    rdma_cm_layouts(&mut out);
    layout!(out, ibv_device, true: node_type, transport_type, name, dev_name, dev_path, ibdev_path);
    layout!(out, ibv_context_ops, true: alloc_mw, bind_mw, dealloc_mw, poll_cq, req_notify_cq,
        post_srq_recv, post_send, post_recv);
    layout!(out, ibv_context, true: device, ops, cmd_fd, async_fd, num_comp_vectors, abi_compat);
    layout!(out, ibv_pd, true: context, handle);
    layout!(out, ibv_mr, true: context, pd, addr, length, handle, lkey, rkey);
    layout!(out, ibv_dm, true: context, memcpy_to_dm, memcpy_from_dm, comp_mask, handle);
    layout!(out, ibv_alloc_dm_attr, true: length, log_align_req, comp_mask);
    layout!(out, ibv_mw, true: context, pd, rkey, handle, kind = "type");
    layout!(out, ibv_mw_bind_info, true: mr, addr, length, mw_access_flags);
    layout!(out, ibv_mw_bind, true: wr_id, send_flags, bind_info);
    layout!(out, ibv_ah, true: context, pd, handle);
    layout!(out, ibv_comp_channel, true: context, fd, refcnt);
    layout!(out, ibv_cq, true: context, channel, cq_context, handle, cqe, comp_events_completed,
        async_events_completed);
    layout!(out, ibv_cq_ex, true: comp_mask, status, wr_id, start_poll, next_poll, end_poll,
        read_opcode, read_vendor_err, read_byte_len, read_imm_data, read_qp_num, read_src_qp,
        read_wc_flags, read_slid, read_sl, read_dlid_path_bits,
        read_completion_ts, read_unsupported = "read_cvlan", read_completion_wallclock_ns);
    layout!(out, ibv_modify_cq_attr, true: attr_mask, cq_count = "moderate.cq_count",
        cq_period = "moderate.cq_period");
    layout!(out, ibv_values_ex, true: comp_mask, raw_clock);
    layout!(out, ibv_td, true: context);
    layout!(out, ibv_parent_domain_init_attr, true: pd, td, comp_mask, alloc, free, pd_context);
    layout!(out, ibv_cq_init_attr_ex, true: cqe, cq_context, channel, comp_vector, wc_flags,
        comp_mask, flags, parent_domain);
    layout!(out, ibv_xrcd, true: context);
    layout!(out, ibv_xrcd_init_attr, true: comp_mask, fd, oflags);
    layout!(out, ibv_qp_open_attr, true: comp_mask, qp_num, xrcd, qp_context, qp_type);
    layout!(out, ibv_srq, true: context, srq_context, pd, handle, events_completed);
    layout!(out, ibv_srq_attr, true: max_wr, max_sge, srq_limit);
    layout!(out, ibv_srq_init_attr, true: srq_context, attr);
    layout!(out, ibv_srq_init_attr_ex, true: comp_mask, srq_type, pd, xrcd, cq, tm_cap);
    layout!(out, ibv_qp, true: context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num,
        state, qp_type, events_completed);
    // It has grown since 44: newer callers find null behind what they know.
    layout!(out, ibv_qp_ex, false: comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp,
        wr_atomic_fetch_add, wr_bind_mw, wr_local_inv, wr_rdma_read, wr_rdma_write,
        wr_rdma_write_imm, wr_send, wr_send_imm, wr_send_inv, wr_send_tso, wr_set_ud_addr,
        wr_set_xrc_srqn, wr_set_inline_data, wr_set_inline_data_list, wr_set_sge, wr_set_sge_list,
        wr_start, wr_complete, wr_abort, wr_atomic_write);
    layout!(out, ibv_data_buf, true: addr, length);
    layout!(out, ibv_qp_cap, true: max_send_wr, max_recv_wr, max_send_sge, max_recv_sge,
        max_inline_data);
    layout!(out, ibv_qp_init_attr, true: qp_context, send_cq, recv_cq, srq, cap, qp_type,
        sq_sig_all);
    layout!(out, ibv_qp_init_attr_ex, true: qp_context, cap, qp_type, sq_sig_all, comp_mask, pd,
        xrcd, create_flags, max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags);
    layout!(out, ibv_global_route, true: dgid, flow_label, sgid_index, hop_limit, traffic_class);
    layout!(out, ibv_ah_attr, true: grh, dlid, sl, src_path_bits, static_rate, is_global, port_num);
    layout!(out, ibv_qp_attr, true: qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn,
        sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index,
        alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic,
        min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout,
        rate_limit);
    layout!(out, ibv_sge, true: addr, length, lkey);
    layout!(out, ibv_send_wr, true: wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr,
        xrc_srqn = "qp_type.xrc.remote_srqn", bind_mw);
    layout!(out, ibv_recv_wr, true: wr_id, next, sg_list, num_sge);
    layout!(out, ibv_wc, true: wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num,
        src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits);
    layout!(out, ibv_device_attr, true: fw_ver, node_guid, sys_image_guid, max_mr_size,
        page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags,
        max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom,
        max_res_rd_atom, max_qp_init_rd_atom, atomic_cap, max_mw, max_raw_ethy_qp, max_mcast_grp,
        max_ah, max_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay,
        phys_port_cnt);
    layout!(out, ibv_device_attr_ex, true: comp_mask, odp_caps, completion_timestamp_mask,
        hca_core_clock, device_cap_flags_ex, rss_caps, max_wq_type_rq, raw_packet_caps, tm_caps,
        cq_mod_caps, max_dm_size, phys_port_cnt_ex);
    layout!(out, ibv_rss_caps, true: supported_qpts, max_rwq_indirection_tables,
        max_rwq_indirection_table_size, rx_hash_fields_mask, rx_hash_function);
    layout!(out, ibv_wq, true: context, wq_context, pd, cq, wq_num, handle, state, wq_type,
        post_recv, locks = "mutex", events_completed, comp_mask);
    layout!(out, ibv_wq_init_attr, true: wq_context, wq_type, max_wr, max_sge, pd, cq, comp_mask,
        create_flags);
    layout!(out, ibv_wq_attr, true: attr_mask, wq_state, curr_wq_state, flags, flags_mask);
    layout!(out, ibv_rwq_ind_table, true: context, ind_tbl_handle, ind_tbl_num, comp_mask);
    layout!(out, ibv_rwq_ind_table_init_attr, true: log_ind_tbl_size, ind_tbl, comp_mask);
    layout!(out, ibv_rx_hash_conf, true: rx_hash_function, rx_hash_key_len, rx_hash_key,
        rx_hash_fields_mask);
    layout!(out, ibv_flow, true: context, handle);
    layout!(out, ibv_flow_attr, true: comp_mask, kind = "type", size, priority, num_of_specs, port,
        flags);
    layout!(out, ibv_flow_spec_eth, true: kind = "type", size, val, mask);
    layout!(out, ibv_flow_spec_ipv4, true: kind = "type", size, val, mask);
    layout!(out, ibv_flow_spec_ipv4_ext, true: kind = "type", size, val, mask);
    layout!(out, ibv_flow_spec_ipv6, true: kind = "type", size, val, mask);
    layout!(out, ibv_flow_spec_tcp_udp, true: kind = "type", size, val, mask);
    layout!(out, ibv_flow_eth_filter, true: dst_mac, src_mac, ether_type, vlan_tag);
    layout!(out, ibv_flow_ipv4_ext_filter, true: src_ip, dst_ip, proto, tos, ttl, flags);
    layout!(out, ibv_flow_ipv6_filter, true: src_ip, dst_ip, flow_label, next_hdr, traffic_class,
        hop_limit);
    layout!(out, ibv_flow_tcp_udp_filter, true: dst_port, src_port);
    // It has grown since 44: as many bytes are written as the caller knows.
    layout!(out, ibv_port_attr, false: state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags,
        max_msg_sz, bad_pkey_cntr, qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num,
        sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer,
        flags, port_cap_flags2);
    layout!(out, ibv_gid_entry, true: gid, gid_index, port_num, gid_type, ndev_ifindex);
    layout!(out, ibv_async_event, true: element, event_type);
    layout!(out, ibv_sa_path_rec, true: dgid, sgid, dlid, slid, raw_traffic, flow_label, hop_limit,
        traffic_class, reversible, numb_path, pkey, sl, mtu_selector, mtu, rate_selector, rate,
        packet_life_time_selector, packet_life_time, preference);
    // Counted back from the context, which newer headers put further behind.
    for (field, at) in [
        ("sz", offset_of!(verbs_context, size)),
        ("create_srq_ex", offset_of!(verbs_context, create_srq_ex)),
        ("get_srq_num", offset_of!(verbs_context, get_srq_num)),
        ("create_qp_ex", offset_of!(verbs_context, create_qp_ex)),
        ("open_xrcd", offset_of!(verbs_context, open_xrcd)),
        ("close_xrcd", offset_of!(verbs_context, close_xrcd)),
        ("ibv_create_flow", offset_of!(verbs_context, create_flow)),
        ("ibv_destroy_flow", offset_of!(verbs_context, destroy_flow)),
        ("create_wq", offset_of!(verbs_context, create_wq)),
        ("modify_wq", offset_of!(verbs_context, modify_wq)),
        ("destroy_wq", offset_of!(verbs_context, destroy_wq)),
        ("create_rwq_ind_table", offset_of!(verbs_context, create_rwq_ind_table)),
        ("destroy_rwq_ind_table", offset_of!(verbs_context, destroy_rwq_ind_table)),
        ("open_qp", offset_of!(verbs_context, open_qp)),
        ("query_device_ex", offset_of!(verbs_context, query_device_ex)),
        ("create_cq_ex", offset_of!(verbs_context, create_cq_ex)),
        ("alloc_dm", offset_of!(verbs_context, alloc_dm)),
        ("free_dm", offset_of!(verbs_context, free_dm)),
        ("reg_dm_mr", offset_of!(verbs_context, reg_dm_mr)),
        ("query_port", offset_of!(verbs_context, query_port)),
    ] {
        let back = offset_of!(verbs_context, context) - at;
        out += &format!(
            "_Static_assert(offsetof(struct verbs_context, context) \
             - offsetof(struct verbs_context, {field}) == {back}, \"{field}\");\n"
        );
    }
    out
}

#[test]
fn structures_are_those_of_the_system_header() {
    let (header, is_asked_for) = place(HEADER);
    if !header.exists() {
        assert!(!is_asked_for, "no {}", header.display());
        return println!("skipped: no {} (apt-get install libibverbs-dev)", header.display());
    }
    let file = std::env::temp_dir().join(format!("ferrocx-layouts-{}.c", std::process::id()));
    let layouts = layouts(&header);
    std::fs::write(&file, &layouts).unwrap();
    let includes = place("usr/include").0;
    let mut compiler = Command::new("cc");
    let checked = compiler.arg("-I").arg(includes).arg("-fsyntax-only").arg(&file).output();
    std::fs::remove_file(&file).unwrap();
    let Ok(checked) = checked else {
        assert!(!is_asked_for, "no C compiler");
        return println!("skipped: no C compiler (apt-get install gcc)");
    };
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    println!("{} sizes and places are the header's", layouts.matches("_Static_assert").count());
}
