//! Registers behind ACCESS_REG and time-outs, in cumulative widths.
//!
//! Source: `mlx5_ifc.h` of Linux 6.12.117, names and widths only; `_` is reserved. Taken from the
//! header by a script, not from our layouts, and cut at the size of ours where we carry only the
//! start; correct it only against the header.

use crate::reading;
use ferrocx_prm::init_seg::TimeOut;
use ferrocx_prm::reg::*;

reading! {
    TimeOut { to_multiplier 3, _ 9, to_value 20 }
    Pmtu { _ 8, local_port 8, _ 16, max_mtu 16, _ 16, admin_mtu 16, _ 16, oper_mtu 16, _ 16 }
    Ptys {
        _ 1, an_disable_admin 1, an_disable_cap 1, _ 5, local_port 8, _ 8, plane_ind 4, _ 1,
        proto_mask 3, an_status 4, _ 12, data_rate_oper 16, ext_eth_proto_capability 32,
        eth_proto_capability 32, ib_link_width_capability 16, ib_proto_capability 16,
        ext_eth_proto_admin 32, eth_proto_admin 32, ib_link_width_admin 16, ib_proto_admin 16,
        ext_eth_proto_oper 32, eth_proto_oper 32, ib_link_width_oper 16, ib_proto_oper 16, _ 28,
        connector_type 4, eth_proto_lp_advertise 32, _ 96,
    }
    Paos {
        swid 8, local_port 8, _ 4, admin_status 4, _ 4, oper_status 4, ase 1, ee 1, _ 28, e 2, _ 64,
    }
    Pfcc {
        _ 4, buf_ownership 2, _ 2, local_port 8, _ 11, ppan_mask_n 1, minor_stall_mask 1,
        critical_stall_mask 1, _ 2, ppan 4, _ 4, prio_mask_tx 8, _ 8, prio_mask_rx 8, pptx 1,
        aptx 1, pptx_mask_n 1, _ 5, pfctx 8, _ 16, pprx 1, aprx 1, pprx_mask_n 1, _ 5, pfcrx 8,
        _ 16, device_stall_minor_watermark 16, device_stall_critical_watermark 16, _ 96,
    }
    Pmlp {
        rxtx 1, _ 7, local_port 8, _ 8, width 8, lane0_module_mapping 32, lane1_module_mapping 32,
        lane2_module_mapping 32, lane3_module_mapping 32, _ 352,
    }
    Ppcnt {
        swid 8, local_port 8, pnat 2, _ 8, grp 6, clr 1, _ 19, plane_ind 4, _ 3, prio_tc 5,
        counter_set 1984,
    }
    Ieee8023Counters {
        a_frames_transmitted_ok_high 32, a_frames_transmitted_ok_low 32,
        a_frames_received_ok_high 32, a_frames_received_ok_low 32,
        a_frame_check_sequence_errors_high 32, a_frame_check_sequence_errors_low 32,
        a_alignment_errors_high 32, a_alignment_errors_low 32, a_octets_transmitted_ok_high 32,
        a_octets_transmitted_ok_low 32, a_octets_received_ok_high 32, a_octets_received_ok_low 32,
    }
    HostEndianness { he 1, _ 127 }
    Dtor {
        _ 32, pcie_toggle_to 32, _ 96, health_poll_to 32, full_crdump_to 32, fw_reset_to 32,
        flush_on_err_to 32, pci_sync_update_to 32, tear_down_to 32, fsm_reactivate_to 32,
        reclaim_pages_to 32, reclaim_vfs_pages_to 32, reset_unload_to 32, _ 32,
    }
}
