//! Capability pages of QUERY_HCA_CAP and SET_HCA_CAP.
//!
//! Source: reference 5.10 and 5.11; PRM "HCA Capabilities", `mlx5_ifc_cmd_hca_cap_bits` and
//! siblings.

use crate::layout;
use crate::layout::{bits, values};

layout! {
    /// General capabilities, the first 256 bytes of page type 0 (`cmd_hca_cap`).
    pub struct HcaCap [0x100] {
        0x00 [25] page_request_disable "The device never sends page requests (Linux 6.12).";
        0x04 [31] hca_cap_2
            "There is a second page of general capabilities, type [`cap_type::GENERAL_2`].";
        0x04 [15:0] vhca_id "Number of this function in the device.";
        0x10 [31:24] log_max_srq_sz "Log2 of the largest shared receive queue in WQEs.";
        0x10 [23:16] log_max_qp_sz "Log2 of the largest queue of a QP in WQEs or basic blocks.";
        0x10 [15] event_cap "There is a page of device events, type 0x14.";
        0x10 [4:0] log_max_qp "Log2 of the number of QPs; the driver may lower it in SET_HCA_CAP.";
        0x14 [20:16] log_max_srq "Log2 of the number of shared receive queues.";
        0x14 [6] go_back_n "Go-back-N retransmission (Linux 6.12).";
        0x18 [31:24] max_sgl_for_optimized_performance
            "Longest scatter list that costs no extra fetch, 0 if not stated.";
        0x18 [23:16] log_max_cq_sz "Log2 of the largest completion queue in entries.";
        0x18 [15] relaxed_ordering_write_umr "UMR may change an mkey's `relaxed_ordering_write`.";
        0x18 [14] relaxed_ordering_read_umr "UMR may change an mkey's `relaxed_ordering_read`.";
        0x18 [4:0] log_max_cq "Log2 of the number of completion queues.";
        0x1c [31:24] log_max_eq_sz "Log2 of the largest event queue in entries.";
        0x1c [23] relaxed_ordering_write "Mkeys may ask for relaxed ordering of PCIe writes.";
        0x1c [22] relaxed_ordering_read
            "Mkeys may ask for relaxed ordering of PCIe reads, if PCI configuration allows it.";
        0x1c [21:16] log_max_mkey "Log2 of the number of mkeys.";
        0x1c [9] terminate_scatter_list_mkey "The device has such a key (Linux 6.12).";
        0x1c [4] fast_teardown "TEARDOWN_HCA knows the fast profile.";
        0x1c [3:0] log_max_eq "Log2 of the number of event queues, unless `max_num_eqs` states it.";
        0x20 [31:24] max_indirection "How deep KLM and KSM mkeys may refer to each other.";
        0x20 [23] fixed_buffer_size "There are KSM mkeys (pieces of equal size).";
        0x20 [22:16] log_max_mrw_sz "Log2 of the largest memory region or window in bytes.";
        0x20 [15] force_teardown "TEARDOWN_HCA knows the forced profile.";
        0x20 [13:8] log_max_bsf_list_size "Log2 of the longest list of signature descriptors.";
        0x20 [7] umr_extended_translation_offset "A UMR's translation offset has 48 bits, not 16.";
        0x20 [6] null_mkey "There is a null mkey, see QUERY_SPECIAL_CONTEXTS.";
        0x20 [5:0] log_max_klm_list_size "Log2 of the longest list of KLM entries.";
        0x24 [21:16] log_max_ra_req_dc "Log2 of the reads and atomics in flight of a DC initiator.";
        0x24 [5:0] log_max_ra_res_dc "Log2 of the reads and atomics in flight at a DC target.";
        0x28 [26] release_all_pages "Page request events may carry the \"release all\" flag.";
        0x28 [22] roce_accl "There is a register of RoCE acceleration options.";
        0x28 [21:16] log_max_ra_req_qp
            "Log2 of the reads and atomics that a QP may have in flight.";
        0x28 [5:0] log_max_ra_res_qp "Log2 of the reads and atomics that a QP may serve at a time.";
        0x2c [31] end_pad "Received data may be padded to a whole cache line.";
        0x2c [30] cc_query_allowed "Congestion control parameters may be queried.";
        0x2c [29] cc_modify_allowed "Congestion control parameters may be changed.";
        0x2c [28] start_pad "Received data may be padded at the start.";
        0x2c [27] cache_line_128byte "Cache lines of 128 bytes can be chosen; current: are chosen.";
        0x2c [16] qcam_reg "There is a register QCAM that lists QoS registers.";
        0x2c [15:0] gid_table_size
            "GID table of an InfiniBand port: 8 entries times 2 to this power.";
        0x30 [31] out_of_seq_cnt "The Q counter counts packets out of sequence.";
        0x30 [30] vport_counters "There is QUERY_VPORT_COUNTER.";
        0x30 [29] retransmission_q_counters "The Q counter counts retransmissions.";
        0x30 [28] debug "There is a page of debug capabilities.";
        0x30 [27] modify_rq_counter_set_id "MODIFY_RQ may change the Q counter set of an RQ.";
        0x30 [25:16] max_qp_cnt "Number of Q counter sets; 0: there are none.";
        0x30 [15:0] pkey_table_size "P_Key table: 128 entries times 2 to this power.";
        0x34 [31] vport_group_manager "This function manages the vports of its port.";
        0x34 [30] vhca_group_manager "This function manages other functions.";
        0x34 [29] ib_virt "An InfiniBand port has virtual ports.";
        0x34 [28] eth_virt "An Ethernet port has virtual ports.";
        0x34 [26] ets "Enhanced transmission selection can be configured.";
        0x34 [25] nic_flow_table
            "There are NIC flow tables, page type [`cap_type::NIC_FLOW_TABLE`].";
        0x34 [24] eswitch_manager "This function manages the e-switch.";
        0x34 [23] device_memory "There is memory on the device that can be allocated.";
        0x34 [22] mcam_reg "There is a register MCAM that lists management registers.";
        0x34 [21] pcam_reg "There is a register PCAM that lists port registers.";
        0x34 [20:16] local_ca_ack_delay
            "Longest delay of an acknowledgement: 4.096 us times 2 to this power.";
        0x34 [15] port_module_event "Plugging a module raises an event.";
        0x34 [14] enhanced_error_q_counters
            "The Q counter counts completions with errors, by kind.";
        0x34 [13] ports_check
            "There is a register PCMR that switches the check of frame check sequences.";
        0x34 [9:8] port_type "0 InfiniBand, 1 Ethernet.";
        0x34 [7:0] num_ports "Number of physical ports of this function.";
        0x38 [28:24] log_max_msg "Log2 of the longest message in bytes.";
        0x38 [19:16] max_tc "Number of traffic classes; 0 means 8.";
        0x38 [14] dcbx "The firmware can run DCBX.";
        0x38 [13] general_notification_event "There is an event of type 0x22.";
        0x3c [31:16] stat_rate_support
            "Static rates that address vectors may ask for, one bit each.";
        0x3c [3:0] cqe_version "1: a CQE carries the queue's user index; 0: the SRQ number.";
        0x40 [31] compact_address_vector
            "A short address vector will do; the UDP source port can be given.";
        0x40 [30] striding_rq "There are striding receive queues.";
        0x40 [24] umr_modify_entity_size_disabled "UMR cannot change the page size of an mkey.";
        0x40 [23] umr_modify_atomic_disabled "UMR cannot change the atomic right of an mkey.";
        0x40 [22] umr_indirect_mkey_disabled "UMR cannot be used on KLM and KSM mkeys.";
        0x40 [21:20] umr_fence "Fence that a UMR needs: 0 strong ordering, 1 small, 2 none.";
        0x40 [15:14] cmdif_checksum
            "Checksums of the command interface: 0 none, 3 all; the driver chooses.";
        0x40 [13] sigerr_cqe "Signature errors are reported in CQEs.";
        0x40 [11] wq_signature "WQEs can carry a signature that the device checks.";
        0x40 [10] sctr_data_cqe "Received data can be scattered into the CQE.";
        0x40 [8] sho "Signatures can be handed over between memory and wire.";
        0x40 [7] tph "PCIe TLP processing hints.";
        0x40 [6] rf "Known by this name only; the public headers say no more.";
        0x40 [5] dct "There are dynamically connected transports.";
        0x40 [4] qos "There is a page of QoS capabilities.";
        0x40 [3] eth_net_offloads "There is a page of Ethernet offloads.";
        0x40 [2] roce "There is RoCE, and a page about it.";
        0x40 [1] atomic "There are atomics, and a page about them.";
        0x44 [31] cq_oi "Completion queues may ignore overruns.";
        0x44 [30] cq_resize "MODIFY_CQ can move a completion queue to another buffer.";
        0x44 [29] cq_moderation "Completion events can be moderated.";
        0x44 [28] cq_period_mode_modify
            "MODIFY_CQ can change what starts the moderation period. Source: Linux 6.12; not in \
             6.1.";
        0x44 [25] cq_eq_remap "MODIFY_CQ can move a completion queue to another event queue.";
        0x44 [24] pg "There is on-demand paging, and a page about it.";
        0x44 [23] block_lb_mc "A QP can refuse to loop back its multicasts.";
        0x44 [21] scqe_break_moderation "A solicited CQE can end moderation early.";
        0x44 [20] cq_period_start_from_cqe
            "The moderation period can start at each CQE, not only at the event.";
        0x44 [19] cd "There are cross-channel QPs.";
        0x44 [17] apm "There is automatic path migration.";
        0x44 [16] vector_calc "There are vector calculations.";
        0x44 [15] umr_ptr_rlky "A UMR may point to its list with the reserved lkey.";
        0x44 [14] imaicl "There are memory windows.";
        0x44 [9] qkv "Wrong Q_Keys are counted.";
        0x44 [8] pkv "Wrong P_Keys are counted.";
        0x44 [7] set_deth_sqpn "A QP can name the source QPN that it sends.";
        0x44 [3] xrc "There is the extended reliable connected transport.";
        0x44 [2] ud "There is the unreliable datagram transport.";
        0x44 [1] uc "There is the unreliable connected transport.";
        0x44 [0] rc "There is the reliable connected transport.";
        0x48 [31] uar_4k "UAR pages have 4 KiB whatever the host's page size; the driver chooses.";
        0x48 [21:16] uar_sz "Log2 of the size of the UAR area in MiB.";
        0x48 [15] port_selection_cap "There is a page of port selection capabilities.";
        0x48 [13] umem_uid_0 "User memory objects may be used with uid 0.";
        0x48 [7:0] log_pg_sz "Log2 of the smallest page in bytes.";
        0x4c [31] bf "There are BlueFlame registers.";
        0x4c [30] driver_version "There is SET_DRIVER_VERSION.";
        0x4c [29] pad_tx_eth_packet "Frames that are too short are padded when sent.";
        0x4c [25] mkey_by_name
            "Drivers switch it on where they can and still take the mkey index from CREATE_MKEY.";
        0x4c [20:16] log_bf_reg_size
            "Log2 of the size of a BlueFlame register, both buffers, in bytes.";
        0x50 [15:0] max_wqe_sz_sq "Largest send WQE in bytes.";
        0x54 [15:0] max_wqe_sz_rq "Largest receive WQE in bytes.";
        0x58 [15:0] max_wqe_sz_sq_dc "Largest send WQE of a DC initiator in bytes.";
        0x5c [24:0] max_qp_mcg "Number of QPs in a multicast group.";
        0x60 [15:8] flow_counter_bulk_alloc
            "Sizes of a bulk of flow counters: bit n means 128 counters times 2^n.";
        0x60 [7:0] log_max_mcg "Log2 of the number of multicast groups.";
        0x64 [28:24] log_max_transport_domain "Log2 of the number of transport domains.";
        0x64 [20:16] log_max_pd "Log2 of the number of protection domains.";
        0x64 [4:0] log_max_xrcd "Log2 of the number of XRC domains.";
        0x68 [23:16] log_max_flow_counter_bulk "Log2 of the flow counters that one query can read.";
        0x68 [15:0] max_flow_counter_15_0 "Number of flow counters, low half.";
        0x6c [28:24] log_max_rq "Log2 of the number of receive queues.";
        0x6c [20:16] log_max_sq "Log2 of the number of send queues.";
        0x6c [12:8] log_max_tir "Log2 of the number of TIRs.";
        0x6c [4:0] log_max_tis "Log2 of the number of TISs.";
        0x70 [31] basic_cyclic_rcv_wqe "Shared receive queues may be cyclic.";
        0x70 [28:24] log_max_rmp "Log2 of the number of receive memory pools.";
        0x70 [20:16] log_max_rqt "Log2 of the number of RQ tables.";
        0x70 [12:8] log_max_rqt_size "Log2 of the number of entries in an RQ table.";
        0x70 [4:0] log_max_tis_per_sq "Log2 of the number of TISs that a send queue may name.";
        0x74 [31] ext_stride_num_range "Striding receive WQEs may have fewer than 512 strides.";
        0x74 [30] roce_rw_supported "The driver may switch `roce` off and on.";
        0x74 [28:24] log_max_stride_sz_rq "Log2 of the largest stride of a receive queue in bytes.";
        0x74 [20:16] log_min_stride_sz_rq
            "Log2 of the smallest stride of a receive queue in bytes.";
        0x74 [12:8] log_max_stride_sz_sq "Log2 of the largest stride of a send queue in bytes.";
        0x74 [4:0] log_min_stride_sz_sq "Log2 of the smallest stride of a send queue in bytes.";
        0x78 [4:0] log_max_wq_sz "Log2 of the largest work queue in strides.";
        0x7c [31] nic_vport_change_event "Changes of the NIC vport context raise an event.";
        0x7c [30] disable_local_lb_uc "Looping back unicasts can be switched off.";
        0x7c [29] disable_local_lb_mc "Looping back multicasts can be switched off.";
        0x7c [20:16] log_max_vlan_list "Log2 of the VLANs in the list of a vport.";
        0x7c [12:8] log_max_current_mc_list
            "Log2 of the multicast addresses in the list of a vport.";
        0x7c [4:0] log_max_current_uc_list "Log2 of the unicast addresses in the list of a vport.";
        0x80 (u64) general_obj_types "Kinds of general objects that can be created, one bit each.";
        0x88 [31:30] sq_ts_format
            "Time stamps of send queues: 0 free running, 1 real time, 2 both.";
        0x88 [29:28] rq_ts_format
            "Time stamps of receive queues: 0 free running, 1 real time, 2 both.";
        0x8c [29] cross_vhca_rqt "RQTs may name RQs of other functions (Linux 6.12).";
        0x8c [28:24] log_max_uctx "Log2 of the number of user contexts; 0: there are none.";
        0x8c [20:16] log_max_umem "Log2 of the number of user memory objects; 0: there are none.";
        0x8c [15:0] max_num_eqs "Number of event queues; 0: `log_max_eq` states it.";
        0x90 [28:24] log_max_l2_table "Log2 of the number of layer-2 table entries.";
        0x90 [15:0] log_uar_page_sz "Log2 of the host's page size, minus 12; the driver sets it.";
        0x98 [31:0] device_frequency_mhz "Frequency of the device clock in MHz.";
        0x9c [31:0] device_frequency_khz "Frequency of the device clock in kHz, 0 if not stated.";
        0xa4 [31:0] num_of_uars_per_page "Number of UARs in a page of the host.";
        0xac [6] adv_virtualization "There is a page of advanced virtualization capabilities.";
        0xb4 [3] mini_cqe_resp_stride_index "Compressed CQEs can say where strides begin.";
        0xb4 [2] cqe_128_always "128-byte CQEs can be had on every queue.";
        0xb4 [0] cqe_compression "CQEs can be compressed.";
        0xb8 [31:16] cqe_compression_timeout "How long the device waits for more CQEs to compress.";
        0xb8 [15:0] cqe_compression_max_num "Most CQEs in a compressed block.";
        0xc0 [15:8] num_vhca_ports "Ports that one function can combine; 0: only its own.";
        0xd4 [31:0] uctx_cap "What user contexts may ask for, see [`crate::cmd::user::uctx_cap`].";
    }

    /// Ethernet offload capabilities, page type 1 (`per_protocol_networking_offload_caps`).
    pub struct EthCap [0x40] {
        0x00 [31] csum_cap "Checksums are computed and checked.";
        0x00 [30] vlan_cap "VLAN tags are stripped and inserted.";
        0x00 [29] lro_cap "There is large receive offload.";
        0x00 [28] lro_psh_flag "Large receive offload reports the PSH flag.";
        0x00 [27] lro_time_stamp "Large receive offload works with TCP time stamps.";
        0x00 [24] wqe_vlan_insert "The Ethernet segment can ask for a VLAN tag.";
        0x00 [23] self_lb_en_modifiable "MODIFY_TIR can change the loop-back of own packets.";
        0x00 [20:16] max_lso_cap
            "Log2 of the largest TCP payload of one LSO request in bytes; 0: no LSO.";
        0x00 [15:14] multi_pkt_send_wqe "There are legacy multi-packet send WQEs.";
        0x00 [13:12] wqe_inline_mode
            "Inline headers: 0 layer 2 needed, 1 see the vport context, 2 none needed.";
        0x00 [11:8] rss_ind_tbl_cap "Log2 of the entries of an RSS table.";
        0x00 [7] reg_umr_sq "A send queue can carry UMR requests.";
        0x00 [6] scatter_fcs "The frame check sequence can be received.";
        0x00 [5] enhanced_multi_pkt_send_wqe "There are enhanced multi-packet send WQEs.";
        0x00 [4] tunnel_lso_const_out_ip_id "LSO of a tunnel keeps the outer IP identification.";
        0x00 [3] tunnel_lro_gre "Large receive offload works inside GRE.";
        0x00 [2] tunnel_lro_vxlan "Large receive offload works inside VXLAN.";
        0x00 [1] tunnel_stateless_gre "Checksums and RSS work inside GRE.";
        0x00 [0] tunnel_stateless_vxlan "Checksums and RSS work inside VXLAN.";
        0x04 [31] swp "A WQE can say where its headers are (software parser).";
        0x04 [30] swp_csum "The software parser works with checksums.";
        0x04 [29] swp_lso "The software parser works with LSO.";
        0x04 [28] cqe_checksum_full "`check_sum` of a CQE covers the padding of the frame too.";
        0x04 [15:8] max_vxlan_udp_ports "Number of UDP ports that can be declared as VXLAN.";
        0x08 [15:0] lro_min_mss_size
            "Smallest segment that large receive offload merges, in bytes.";
        0x30 ([u8; 16]) lro_timer_supported_periods
            "Four periods that large receive offload can wait, in us, 32 bits each.";
    }

    /// RoCE capabilities, page type 4 (`roce_cap`).
    pub struct RoceCap [0x20] {
        0x00 [31] roce_apm "There is automatic path migration over RoCE.";
        0x00 [27] sw_r_roce_src_udp_port
            "The driver may choose the UDP source port in address paths and vectors.";
        0x00 [26] fl_rc_qp_when_roce_disabled "RC QPs forced to loop back work while RoCE is off.";
        0x00 [25] fl_rc_qp_when_roce_enabled "RC QPs forced to loop back work while RoCE is on.";
        0x00 [1:0] qp_ts_format "Time stamps of QPs: 0 free running, 1 real time, 2 both.";
        0x10 [19:16] l3_type "Kinds of address: bit 0 GRH, bit 1 IPv4, bit 2 IPv6.";
        0x10 [7:0] roce_version "Versions: bit 0 v1, bit 1 v1.5, bit 2 v2.";
        0x14 [15:0] r_roce_dest_udp_port "UDP destination port of RoCE v2, 4791.";
        0x18 [31:16] r_roce_max_src_udp_port "Highest UDP source port that may be chosen.";
        0x18 [15:0] r_roce_min_src_udp_port "Lowest UDP source port that may be chosen.";
        0x1c [15:0] roce_address_table_size "Number of RoCE addresses.";
    }

    /// Quality of service, page type 0xc (`qos_cap`): its first word.
    pub struct QosCap [0x4] {
        0x00 [7:0] flow_meter_reg_id "Registers that a flow meter can colour, one bit each.";
    }

    /// Device memory, page type 0xf (`device_mem_cap`): what does not concern flow steering.
    pub struct DeviceMemCap [0x44] {
        0x00 [31] memic "There is device memory.";
        0x04 [20:16] log_min_memic_alloc_size "Log2 of the bytes of the smallest piece.";
        0x04 [7:0] log_max_memic_addr_alignment
            "Log2 of the largest alignment, in units of 64 bytes.";
        0x08 (u64) memic_bar_start_addr "Where the part of the BAR begins that shows it.";
        0x10 [31:0] memic_bar_size "Bytes of that part.";
        0x14 [31:0] max_memic_size "Bytes of the largest piece.";
        0x40 [31:0] memic_operations "Operations on it by addresses of their own, one bit each.";
    }

    /// Atomic capabilities, page type 3 (`atomic_caps`).
    pub struct AtomicCap [0x20] {
        0x08 [31:30] atomic_req_8b_endianness_mode
            "Byte order of 8-byte atomics: 0 big-endian, 1 the host's; the driver chooses.";
        0x08 [25] supported_atomic_req_8b_endianness_mode_1 "The host's byte order can be chosen.";
        0x10 [15:0] atomic_operations
            "Bit 0 compare and swap, 1 fetch and add, 2 and 3 the same with masks.";
        0x14 [15:0] atomic_size_qp "Sizes that a QP can serve: bit n means 2^n bytes.";
        0x18 [15:0] atomic_size_dc "Sizes that a DC target can serve: bit n means 2^n bytes.";
    }

    /// Properties of one kind of flow table (`flow_table_prop_layout`).
    pub struct FlowTableProps [0x40] {
        0x00 [31] ft_support "There are tables of this kind.";
        0x00 [29] flow_counter "Entries can count packets.";
        0x00 [28] flow_modify_en "SET_FTE can change an entry.";
        0x00 [27] modify_root "SET_FLOW_TABLE_ROOT can name the first table.";
        0x00 [26] identified_miss_table_mode "A table can name the one to go on with on a miss.";
        0x00 [25] flow_table_modify "MODIFY_FLOW_TABLE can change the miss table.";
        0x00 [24] reformat "Entries can wrap a packet in another header.";
        0x00 [23] decap "Entries can unwrap a packet.";
        0x00 [21] pop_vlan "Entries can remove a VLAN tag.";
        0x00 [20] push_vlan "Entries can insert a VLAN tag.";
        0x00 [10] ignore_flow_level "Entries may forward to a table of any level.";
        0x00 [8] table_miss_action_domain "A miss can go on in the next domain.";
        0x04 [29:24] log_max_ft_size "Log2 of the entries of a table.";
        0x04 [7:0] max_ft_level "Highest level of a table.";
        0x0c [7:0] log_max_ft_num "Log2 of the number of tables.";
        0x10 [15:8] log_max_flow_counter "Log2 of the counters of an entry.";
        0x10 [7:0] log_max_destination "Log2 of the destinations of an entry.";
        0x14 [7:0] log_max_flow "Log2 of the number of entries of all tables.";
        0x20 ([u8; 16]) ft_field_support
            "Fields that can be matched, one bit each; reference 5.11 lists them.";
        0x30 ([u8; 16]) ft_field_bitmask_support
            "Fields that can be matched under a mask, one bit each.";
    }
}

values! {
    /// Page types of QUERY_HCA_CAP, see [`cap_op_mod`]. Source: reference 3.3.
    pub mod cap_type: u32 {
        0x0 GENERAL "General capabilities, [`super::HcaCap`].";
        0x1 ETHERNET_OFFLOADS "Ethernet offloads, [`super::EthCap`].";
        0x2 ODP "On-demand paging.";
        0x3 ATOMIC "Atomics, [`super::AtomicCap`].";
        0x4 ROCE "RoCE, [`super::RoceCap`].";
        0x7 NIC_FLOW_TABLE
            "NIC flow tables: [`super::FlowTableProps`] at [`super::nic_flow_table`].";
        0x8 ESWITCH_FLOW_TABLE "E-switch flow tables.";
        0x9 ESWITCH "E-switch.";
        0xc QOS "Quality of service.";
        0xf DEVICE_MEMORY "Memory of the device, [`super::DeviceMemCap`].";
        0x20 GENERAL_2 "General capabilities, second page.";
    }
}

/// `op_mod` of QUERY_HCA_CAP and SET_HCA_CAP for a page of [`cap_type`]: what the device has now,
/// or what it could have and is to have. Source: reference 3.3.
pub const fn cap_op_mod(page: u32, is_current: bool) -> u32 {
    page << 1 | is_current as u32
}

bits! {
    /// [`RoceCap::roce_version`]. Source: reference 5.11.
    pub mod roce_versions: u32 {
        0 V1: v1;
        1 V1_5: v1_5;
        2 V2: v2;
    }
}

bits! {
    /// [`AtomicCap::atomic_operations`]. Source: reference 5.11.
    pub mod atomic_operations: u32 {
        0 COMPARE_SWAP: compare_and_swap;
        1 FETCH_ADD: fetch_and_add;
        2 MASKED_COMPARE_SWAP: masked_compare_and_swap;
        3 MASKED_FETCH_ADD: masked_fetch_and_add;
    }
}

bits! {
    /// [`AtomicCap::atomic_size_qp`]. Source: reference 5.11.
    pub mod atomic_size: u32 {
        3 BYTES_8: bytes_8;
    }
}

bits! {
    /// The first byte of [`FlowTableProps::ft_field_support`]. Source: reference 5.11.
    pub mod ft_field: u8 {
        4 OUTER_IP_VERSION: outer_ip_version;
    }
}

/// Size of a capability page in bytes. Source: reference 4.2, QUERY_HCA_CAP.
pub const CAP_PAGE_BYTES: usize = 4096;

values! {
    /// Byte offsets of the [`FlowTableProps`] blocks in page type 7. Source: reference 5.11.
    pub mod nic_flow_table: usize {
        0x40 NIC_RECEIVE "Receive.";
        0x80 NIC_RECEIVE_RDMA "Receive, RDMA.";
        0xc0 NIC_RECEIVE_SNIFFER "Receive, sniffer.";
        0x100 NIC_TRANSMIT "Transmit.";
        0x140 NIC_TRANSMIT_RDMA "Transmit, RDMA.";
        0x180 NIC_TRANSMIT_SNIFFER "Transmit, sniffer.";
    }
}

/// [`HcaCap::port_type`] of an Ethernet port. Source: reference 5.10.
pub const PORT_TYPE_ETHERNET: u32 = 1;
