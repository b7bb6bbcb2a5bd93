//! Congestion control of RoCE: whether it is on, its parameters, what it counted.
//!
//! Source: reference 4.2 "Ports, vports, RoCE"; Linux 6.12 `mlx5_ifc.h`, `query_cong_*`,
//! `modify_cong_*`, `cong_control_r_roce_ecn_np`.

use crate::layout;
use crate::layout::{rows, values};

rows! { $
    cong_protocol {
        0x08 [3:0] cong_protocol "Which part, see [`CongProtocol`].";
    }
    priority {
        0x08 [7:4] priority "Priority, 0 to 7.";
    }
}

command! {
    without uid;
    QueryCongStatus QUERY_CONG_STATUS {
        ..cong_protocol;
        ..priority;
    } => {
        0x0c [31] enable "It is on for this priority.";
        0x0c [30] tag_enable "802.1Qau: frames carry a tag.";
    }
    ModifyCongStatus MODIFY_CONG_STATUS {
        ..cong_protocol;
        ..priority;
        0x0c [31] enable "Turn it on for this priority.";
        0x0c [30] tag_enable "802.1Qau: frames carry a tag.";
    }
    QueryCongParams QUERY_CONG_PARAMS { ..cong_protocol; } => [0x110] {
        0x10 ([u8; 0x100]) congestion_parameters "The parameters of that part.";
    }
    ModifyCongParams MODIFY_CONG_PARAMS [0x120] {
        ..cong_protocol;
        0x0c [31:0] field_select "Which parameters are taken, a bit each.";
        0x20 ([u8; 0x100]) congestion_parameters "The parameters of that part.";
    }
    QueryCongStatistics QUERY_CONG_STATISTICS {
        0x08 [31] clear "Set the counters to zero once they are read.";
    } => [0x110] {
        0x10 [31:0] rp_cur_flows "Flows whose rate is limited now.";
        0x14 [31:0] sum_flows "Flows whose rate was limited.";
        0x18 (u64) rp_cnp_ignored "Notifications that were not acted on.";
        0x20 (u64) rp_cnp_handled "Notifications that were acted on.";
        0x48 (u64) time_stamp "When the counters were read.";
        0x50 [31:0] accumulators_period "Time over which they were summed up.";
        0x54 (u64) np_ecn_marked_roce_packets
            "RoCE packets that arrived with the mark \"congestion experienced\".";
        0x5c (u64) np_cnp_sent "Notifications sent.";
    }
}

layout! {
    /// Parameters of the notification point, 256 bytes (`cong_control_r_roce_ecn_np`).
    pub struct CongNp [0x100] {
        0x14 [31:0] min_time_between_cnps "Microseconds between two notifications of a flow.";
        0x18 [13:8] cnp_dscp "Differentiated services code point of notifications.";
        0x18 [3] cnp_prio_mode
            "0: notifications have the priority `cnp_802p_prio`; 1: that of their flow.";
        0x18 [2:0] cnp_802p_prio "Priority of notifications.";
    }
}

values! {
    /// `cong_protocol`. Source: Linux 6.12 `enum mlx5_ib_cong_node_type`.
    pub struct CongProtocol(u32) {
        1 ROCE_RP "RoCE, reaction point: the sender that slows down.";
        2 ROCE_NP "RoCE, notification point: the receiver that tells of congestion.";
    }
}
