//! Commands about queues, queue pairs and steering, in cumulative widths.
//!
//! Source: `mlx5_ifc.h` of Linux 6.12.117, names and widths only; `_` is reserved. Taken from the
//! header by a script, not from our layouts, and cut at the size of ours where we carry only the
//! start; correct it only against the header.

use crate::reading;
use ferrocx_prm::cmd::cong::*;
use ferrocx_prm::cmd::flow::*;
use ferrocx_prm::cmd::qp::*;
use ferrocx_prm::cmd::queues::*;
use ferrocx_prm::cmd::srq::*;
use ferrocx_prm::cmd::tir::*;
use ferrocx_prm::cmd::user::*;
use ferrocx_prm::cmd::wq::*;
use ferrocx_prm::cqc::Cqc;
use ferrocx_prm::eqc::Eqc;
use ferrocx_prm::flow::{FlowContext, FlowMatchParam, FlowTableContext};
use ferrocx_prm::qpc::Qpc;
use ferrocx_prm::srqc::XrcSrqc;
use ferrocx_prm::tirc::{Rqtc, Tirc, Tisc};
use ferrocx_prm::wqc::{Rmpc, Rqc, Sqc};

reading! {
    CreateFlowTableIn {
        opcode 16, uid 16, _ 16, op_mod 16, other_vport 1, _ 15, vport_number 16, _ 32,
        table_type 8, _ 56, flow_table_context (FlowTableContext),
    }
    CreateFlowTableOut {
        status 8, icm_address_63_40 24, syndrome 32, icm_address_39_32 8, table_id 24,
        icm_address_31_0 32,
    }
    DestroyFlowTableIn {
        opcode 16, uid 16, _ 16, op_mod 16, other_vport 1, _ 15, vport_number 16, _ 32,
        table_type 8, _ 32, table_id 24, _ 320,
    }
    DestroyFlowTableOut { status 8, _ 24, syndrome 32, _ 64 }
    ModifyFlowTableIn {
        opcode 16, uid 16, _ 16, op_mod 16, other_vport 1, _ 15, vport_number 16, _ 16,
        modify_field_select 16, table_type 8, _ 32, table_id 24,
        flow_table_context (FlowTableContext),
    }
    ModifyFlowTableOut { status 8, _ 24, syndrome 32, _ 64 }
    QueryFlowTableIn {
        opcode 16, uid 16, _ 16, op_mod 16, _ 64, table_type 8, _ 32, table_id 24, _ 320,
    }
    QueryFlowTableOut { status 8, _ 24, syndrome 32, _ 128, flow_table_context (FlowTableContext) }
    CreateFlowGroupIn {
        opcode 16, uid 16, _ 16, op_mod 16, other_vport 1, _ 15, vport_number 16, _ 32,
        table_type 8, _ 4, group_type 4, _ 24, table_id 24, source_eswitch_owner_vhca_id_valid 1,
        _ 31, start_flow_index 32, _ 32, end_flow_index 32, _ 16, match_definer_id 16, _ 152,
        match_criteria_enable 8, match_criteria (FlowMatchParam), _ 3584,
    }
    CreateFlowGroupOut { status 8, _ 24, syndrome 32, _ 8, group_id 24, _ 32 }
    DestroyFlowGroupIn {
        opcode 16, uid 16, _ 16, op_mod 16, other_vport 1, _ 15, vport_number 16, _ 32,
        table_type 8, _ 32, table_id 24, group_id 32, _ 288,
    }
    DestroyFlowGroupOut { status 8, _ 24, syndrome 32, _ 64 }
    SetFteIn {
        opcode 16, uid 16, _ 16, op_mod 16, other_vport 1, _ 15, vport_number 16, _ 32,
        table_type 8, _ 32, table_id 24, ignore_flow_level 1, _ 23, modify_enable_mask 8, _ 32,
        flow_index 32, _ 224, flow_context (FlowContext),
    }
    SetFteOut { status 8, _ 24, syndrome 32, _ 64 }
    DeleteFteIn {
        opcode 16, uid 16, _ 16, op_mod 16, other_vport 1, _ 15, vport_number 16, _ 32,
        table_type 8, _ 32, table_id 24, _ 64, flow_index 32, _ 224,
    }
    DeleteFteOut { status 8, _ 24, syndrome 32, _ 64 }
    QueryFteIn {
        opcode 16, uid 16, _ 16, op_mod 16, _ 64, table_type 8, _ 32, table_id 24, _ 64,
        flow_index 32, _ 224,
    }
    QueryFteOut { status 8, _ 24, syndrome 32, _ 448, flow_context (FlowContext) }
    SetFlowTableRootIn {
        opcode 16, uid 16, _ 16, op_mod 16, other_vport 1, _ 15, vport_number 16, _ 32,
        table_type 8, _ 7, table_of_other_vport 1, table_vport_number 16, _ 8, table_id 24, _ 8,
        underlay_qpn 24, table_eswitch_owner_vhca_id_valid 1, _ 15, table_eswitch_owner_vhca_id 16,
        _ 256,
    }
    SetFlowTableRootOut { status 8, _ 24, syndrome 32, _ 64 }
    AllocFlowCounterIn {
        opcode 16, uid 16, _ 16, op_mod 16, _ 51, flow_counter_bulk_log_size 5, flow_counter_bulk 8,
    }
    AllocFlowCounterOut { status 8, _ 24, syndrome 32, flow_counter_id 32, _ 32 }
    DeallocFlowCounterIn { opcode 16, uid 16, _ 16, op_mod 16, flow_counter_id 32, _ 32 }
    DeallocFlowCounterOut { status 8, _ 24, syndrome 32, _ 64 }
    QueryFlowCounterIn {
        opcode 16, uid 16, _ 16, op_mod 16, _ 128, clear 1, _ 15, num_of_counters 16,
        flow_counter_id 32,
    }
    QueryFlowCounterOut { status 8, _ 24, syndrome 32, _ 64 }
    CreateQpIn {
        opcode 16, uid 16, _ 16, op_mod 16, qpc_ext 1, _ 7, input_qpn 24, _ 32, opt_param_mask 32,
        ece 32, qpc (Qpc), wq_umem_offset 64, wq_umem_id 32, wq_umem_valid 1, _ 31,
    }
    CreateQpOut { status 8, _ 24, syndrome 32, _ 8, qpn 24, ece 32 }
    Rst2initQpIn {
        opcode 16, uid 16, _ 16, op_mod 16, _ 8, qpn 24, _ 32, opt_param_mask 32, ece 32, qpc (Qpc),
        _ 128,
    }
    Rst2initQpOut { status 8, _ 24, syndrome 32, _ 32, ece 32 }
    Init2initQpIn {
        opcode 16, uid 16, _ 16, op_mod 16, _ 8, qpn 24, _ 32, opt_param_mask 32, ece 32, qpc (Qpc),
        _ 128,
    }
    Init2initQpOut { status 8, _ 24, syndrome 32, _ 32, ece 32 }
    Init2rtrQpIn {
        opcode 16, uid 16, _ 16, op_mod 16, _ 8, qpn 24, _ 32, opt_param_mask 32, ece 32, qpc (Qpc),
        _ 128,
    }
    Init2rtrQpOut { status 8, _ 24, syndrome 32, _ 32, ece 32 }
    Rtr2rtsQpIn {
        opcode 16, uid 16, _ 16, op_mod 16, _ 8, qpn 24, _ 32, opt_param_mask 32, ece 32, qpc (Qpc),
        _ 128,
    }
    Rtr2rtsQpOut { status 8, _ 24, syndrome 32, _ 32, ece 32 }
    Rts2rtsQpIn {
        opcode 16, uid 16, _ 16, op_mod 16, _ 8, qpn 24, _ 32, opt_param_mask 32, ece 32, qpc (Qpc),
        _ 128,
    }
    Rts2rtsQpOut { status 8, _ 24, syndrome 32, _ 32, ece 32 }
    Sqerr2rtsQpIn {
        opcode 16, uid 16, _ 16, op_mod 16, _ 8, qpn 24, _ 32, opt_param_mask 32, _ 32, qpc (Qpc),
        _ 128,
    }
    Sqerr2rtsQpOut { status 8, _ 24, syndrome 32, _ 64 }
    Sqd2rtsQpIn {
        opcode 16, uid 16, _ 16, op_mod 16, _ 8, qpn 24, _ 32, opt_param_mask 32, _ 32, qpc (Qpc),
        _ 128,
    }
    Sqd2rtsQpOut { status 8, _ 24, syndrome 32, _ 64 }
    ModifyQpToErrIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, qpn 24, _ 32 }
    ModifyQpToErrOut { status 8, _ 24, syndrome 32, _ 64 }
    ModifyQpToRstIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, qpn 24, _ 32 }
    ModifyQpToRstOut { status 8, _ 24, syndrome 32, _ 64 }
    QueryQpIn { opcode 16, uid 16, _ 16, op_mod 16, qpc_ext 1, _ 7, qpn 24, _ 32 }
    QueryQpOut { status 8, _ 24, syndrome 32, _ 64, opt_param_mask 32, ece 32, qpc (Qpc), _ 128 }
    DestroyQpIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, qpn 24, _ 32 }
    DestroyQpOut { status 8, _ 24, syndrome 32, _ 64 }
    CreateEqIn {
        opcode 16, uid 16, _ 16, op_mod 16, _ 64, eq_context_entry (Eqc), _ 64, event_bitmask 256,
        _ 1216,
    }
    CreateUctxIn { opcode 16, _ 16, _ 16, op_mod 16, _ 64, uctx (Uctx) }
    CreateUctxOut { status 8, _ 24, syndrome 32, _ 16, uid 16, _ 32 }
    DestroyUctxIn { opcode 16, _ 16, _ 16, op_mod 16, _ 16, uid 16, _ 32 }
    DestroyUctxOut { status 8, _ 24, syndrome 32, _ 64 }
    CreateUmemIn { opcode 16, uid 16, _ 16, op_mod 16, _ 64, umem (Umem) }
    CreateUmemOut { status 8, _ 24, syndrome 32, _ 8, umem_id 24, _ 32 }
    DestroyUmemIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, umem_id 24, _ 32 }
    DestroyUmemOut { status 8, _ 24, syndrome 32, _ 64 }
    CreateEqOut { status 8, _ 24, syndrome 32, _ 24, eq_number 8, _ 32 }
    DestroyEqIn { opcode 16, uid 16, _ 16, op_mod 16, _ 24, eq_number 8, _ 32 }
    DestroyEqOut { status 8, _ 24, syndrome 32, _ 64 }
    QueryEqIn { opcode 16, uid 16, _ 16, op_mod 16, _ 24, eq_number 8, _ 32 }
    QueryEqOut {
        status 8, _ 24, syndrome 32, _ 64, eq_context_entry (Eqc), _ 64, event_bitmask 64, _ 1408,
    }
    CreateCqIn {
        opcode 16, uid 16, _ 16, op_mod 16, _ 64, cq_context (Cqc), _ 96, cq_umem_valid 1, _ 1439,
    }
    CreateCqOut { status 8, _ 24, syndrome 32, _ 8, cqn 24, _ 32 }
    ModifyCqIn {
        opcode 16, uid 16, _ 16, op_mod 16, _ 8, cqn 24, modify_field_select_resize_field_select 32,
        cq_context (Cqc), _ 96, cq_umem_valid 1, _ 1439,
    }
    ModifyCqOut { status 8, _ 24, syndrome 32, _ 64 }
    DestroyCqIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, cqn 24, _ 32 }
    DestroyCqOut { status 8, _ 24, syndrome 32, _ 64 }
    QueryCqIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, cqn 24, _ 32 }
    QueryCqOut { status 8, _ 24, syndrome 32, _ 64, cq_context (Cqc), _ 1536 }
    CreateRqtIn { opcode 16, uid 16, _ 16, op_mod 16, _ 192, rqt_context (Rqtc) }
    CreateRqtOut { status 8, _ 24, syndrome 32, _ 8, rqtn 24, _ 32 }
    ModifyRqtIn {
        opcode 16, uid 16, _ 16, op_mod 16, _ 8, rqtn 24, _ 32, bitmask 64, _ 64, ctx (Rqtc),
    }
    ModifyRqtOut { status 8, _ 24, syndrome 32, _ 64 }
    DestroyRqtIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, rqtn 24, _ 32 }
    DestroyRqtOut { status 8, _ 24, syndrome 32, _ 64 }
    QueryRqtIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, rqtn 24, _ 32 }
    QueryRqtOut { status 8, _ 24, syndrome 32, _ 192, rqt_context (Rqtc) }
    CreateTirIn { opcode 16, uid 16, _ 16, op_mod 16, _ 192, ctx (Tirc) }
    CreateTirOut {
        status 8, icm_address_63_40 24, syndrome 32, icm_address_39_32 8, tirn 24,
        icm_address_31_0 32,
    }
    ModifyTirIn {
        opcode 16, uid 16, _ 16, op_mod 16, _ 8, tirn 24, _ 32, bitmask 64, _ 64, ctx (Tirc),
    }
    ModifyTirOut { status 8, _ 24, syndrome 32, _ 64 }
    DestroyTirIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, tirn 24, _ 32 }
    DestroyTirOut { status 8, _ 24, syndrome 32, _ 64 }
    QueryTirIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, tirn 24, _ 32 }
    QueryTirOut { status 8, _ 24, syndrome 32, _ 192, tir_context (Tirc) }
    CreateTisIn { opcode 16, uid 16, _ 16, op_mod 16, _ 192, ctx (Tisc) }
    CreateTisOut { status 8, _ 24, syndrome 32, _ 8, tisn 24, _ 32 }
    ModifyTisIn {
        opcode 16, uid 16, _ 16, op_mod 16, _ 8, tisn 24, _ 32, bitmask 64, _ 64, ctx (Tisc),
    }
    ModifyTisOut { status 8, _ 24, syndrome 32, _ 64 }
    DestroyTisIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, tisn 24, _ 32 }
    DestroyTisOut { status 8, _ 24, syndrome 32, _ 64 }
    QueryTisIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, tisn 24, _ 32 }
    QueryTisOut { status 8, _ 24, syndrome 32, _ 64, tis_context (Tisc) }
    CreateSqIn { opcode 16, uid 16, _ 16, op_mod 16, _ 192, ctx (Sqc) }
    CreateSqOut { status 8, _ 24, syndrome 32, _ 8, sqn 24, _ 32 }
    ModifySqIn {
        opcode 16, uid 16, _ 16, op_mod 16, sq_state 4, _ 4, sqn 24, _ 32, modify_bitmask 64, _ 64,
        ctx (Sqc),
    }
    ModifySqOut { status 8, _ 24, syndrome 32, _ 64 }
    DestroySqIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, sqn 24, _ 32 }
    DestroySqOut { status 8, _ 24, syndrome 32, _ 64 }
    QuerySqIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, sqn 24, _ 32 }
    QuerySqOut { status 8, _ 24, syndrome 32, _ 192, sq_context (Sqc) }
    CreateRqIn { opcode 16, uid 16, _ 16, op_mod 16, _ 192, ctx (Rqc) }
    CreateRqOut { status 8, _ 24, syndrome 32, _ 8, rqn 24, _ 32 }
    ModifyRqIn {
        opcode 16, uid 16, _ 16, op_mod 16, rq_state 4, _ 4, rqn 24, _ 32, modify_bitmask 64, _ 64,
        ctx (Rqc),
    }
    ModifyRqOut { status 8, _ 24, syndrome 32, _ 64 }
    DestroyRqIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, rqn 24, _ 32 }
    DestroyRqOut { status 8, _ 24, syndrome 32, _ 64 }
    QueryRqIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, rqn 24, _ 32 }
    QueryRqOut { status 8, _ 24, syndrome 32, _ 192, rq_context (Rqc) }
    CreateRmpIn { opcode 16, uid 16, _ 16, op_mod 16, _ 192, ctx (Rmpc) }
    CreateRmpOut { status 8, _ 24, syndrome 32, _ 8, rmpn 24, _ 32 }
    ModifyRmpIn {
        opcode 16, uid 16, _ 16, op_mod 16, rmp_state 4, _ 4, rmpn 24, _ 32, bitmask 64, _ 64,
        ctx (Rmpc),
    }
    ModifyRmpOut { status 8, _ 24, syndrome 32, _ 64 }
    DestroyRmpIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, rmpn 24, _ 32 }
    DestroyRmpOut { status 8, _ 24, syndrome 32, _ 64 }
    QueryRmpIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, rmpn 24, _ 32 }
    QueryRmpOut { status 8, _ 24, syndrome 32, _ 192, rmp_context (Rmpc) }
    CreateXrcSrqIn {
        opcode 16, uid 16, _ 16, op_mod 16, _ 64, xrc_srq_context_entry (XrcSrqc), _ 96,
        xrc_srq_umem_valid 1, _ 1439,
    }
    CreateXrcSrqOut { status 8, _ 24, syndrome 32, _ 8, xrc_srqn 24, _ 32 }
    DestroyXrcSrqIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, xrc_srqn 24, _ 32 }
    DestroyXrcSrqOut { status 8, _ 24, syndrome 32, _ 64 }
    QueryXrcSrqIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, xrc_srqn 24, _ 32 }
    QueryXrcSrqOut { status 8, _ 24, syndrome 32, _ 64, xrc_srq_context_entry (XrcSrqc), _ 1536 }
    ArmXrcSrqIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, xrc_srqn 24, _ 16, lwm 16 }
    ArmXrcSrqOut { status 8, _ 24, syndrome 32, _ 64 }
    QueryCongStatusIn { opcode 16, _ 16, _ 16, op_mod 16, _ 24, priority 4, cong_protocol 4, _ 32 }
    QueryCongStatusOut { status 8, _ 24, syndrome 32, _ 32, enable 1, tag_enable 1, _ 30 }
    ModifyCongStatusIn {
        opcode 16, _ 16, _ 16, op_mod 16, _ 24, priority 4, cong_protocol 4, enable 1, tag_enable 1,
        _ 30,
    }
    ModifyCongStatusOut { status 8, _ 24, syndrome 32, _ 64 }
    QueryCongParamsIn { opcode 16, _ 16, _ 16, op_mod 16, _ 28, cong_protocol 4, _ 32 }
    QueryCongParamsOut { status 8, _ 24, syndrome 32, _ 64, congestion_parameters 2048 }
    ModifyCongParamsIn {
        opcode 16, _ 16, _ 16, op_mod 16, _ 28, cong_protocol 4, field_select 32, _ 128,
        congestion_parameters 2048,
    }
    ModifyCongParamsOut { status 8, _ 24, syndrome 32, _ 64 }
    QueryCongStatisticsIn { opcode 16, _ 16, _ 16, op_mod 16, clear 1, _ 31, _ 32 }
    QueryCongStatisticsOut {
        status 8, _ 24, syndrome 32, _ 64, rp_cur_flows 32, sum_flows 32, rp_cnp_ignored 64,
        rp_cnp_handled 64, _ 256, time_stamp 64, accumulators_period 32,
        np_ecn_marked_roce_packets 64, np_cnp_sent 64, _ 1376,
    }
    CongNp {
        _ 160, min_time_between_cnps 32, _ 18, cnp_dscp 6, _ 4, cnp_prio_mode 1, cnp_802p_prio 3,
        _ 1824,
    }
    ArmRqIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, srq_number 24, _ 16, lwm 16 }
    ArmRqOut { status 8, _ 24, syndrome 32, _ 64 }
    AttachToMcgIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, qpn 24, _ 32, multicast_gid 128 }
    AttachToMcgOut { status 8, _ 24, syndrome 32, _ 64 }
    DetachFromMcgIn { opcode 16, uid 16, _ 16, op_mod 16, _ 8, qpn 24, _ 32, multicast_gid 128 }
    DetachFromMcgOut { status 8, _ 24, syndrome 32, _ 64 }
}
