//! Numbers that stand for something, read again from the Linux headers.
//!
//! Source: Linux 6.12.117, `mlx5_ifc.h` (`MLX5_CMD_OP_*`), `device.h` (`MLX5_CMD_STAT_*`,
//! `MLX5_EVENT_TYPE_*`, `MLX5_OPCODE_*`, `MLX5_MKEY_MASK_*`), `cq.h` (`MLX5_CQE_*`), `driver.h`
//! (`MLX5_REG_*`), `core/cmd.c` (`MLX5_CMD_DELIVERY_STAT_*`), `core/health.c`.

use ferrocx_prm::cmd::Opcode;
use ferrocx_prm::cqe::{Cqe64, CqeOpcode};
use ferrocx_prm::eqe::{EventType, PortChange};
use ferrocx_prm::init_seg::{NicInterface, uar};
use ferrocx_prm::reg::RegisterId;
use ferrocx_prm::syndrome::{CommandStatus, CqeSyndrome, DeliveryStatus, HealthSyndrome};
use ferrocx_prm::wqe::{self, FenceMode, mkey_mask};
use ferrocx_prm::{cmd, cqc, cqe, flow, qpc, tirc, vport, wqc};

/// Commands. `2ERR_QP`, `2RST_QP`, `SQD_RTS_QP` and the `*_FLOW_TABLE_ENTRY` of the header carry
/// the names that the rest of the interface uses.
#[rustfmt::skip]
const OPCODES: &[(&str, u16)] = &[
    ("QUERY_HCA_CAP", 0x100), ("QUERY_ADAPTER", 0x101), ("INIT_HCA", 0x102),
    ("TEARDOWN_HCA", 0x103), ("ENABLE_HCA", 0x104), ("DISABLE_HCA", 0x105), ("QUERY_PAGES", 0x107),
    ("MANAGE_PAGES", 0x108), ("SET_HCA_CAP", 0x109), ("QUERY_ISSI", 0x10a), ("SET_ISSI", 0x10b),
    ("SET_DRIVER_VERSION", 0x10d), ("CREATE_MKEY", 0x200), ("QUERY_MKEY", 0x201),
    ("DESTROY_MKEY", 0x202), ("QUERY_SPECIAL_CONTEXTS", 0x203), ("ALLOC_MEMIC", 0x205),
    ("DEALLOC_MEMIC", 0x206), ("CREATE_EQ", 0x301),
    ("DESTROY_EQ", 0x302), ("QUERY_EQ", 0x303), ("GEN_EQE", 0x304), ("CREATE_CQ", 0x400),
    ("DESTROY_CQ", 0x401), ("QUERY_CQ", 0x402), ("MODIFY_CQ", 0x403), ("CREATE_QP", 0x500),
    ("DESTROY_QP", 0x501), ("RST2INIT_QP", 0x502), ("INIT2RTR_QP", 0x503), ("RTR2RTS_QP", 0x504),
    ("RTS2RTS_QP", 0x505), ("SQERR2RTS_QP", 0x506), ("MODIFY_QP_2ERR", 0x507),
    ("MODIFY_QP_2RST", 0x50a), ("QUERY_QP", 0x50b), ("SQD2RTS_QP", 0x50c), ("MAD_IFC", 0x50d),
    ("INIT2INIT_QP", 0x50e), ("CREATE_PSV", 0x600), ("DESTROY_PSV", 0x601), ("CREATE_SRQ", 0x700),
    ("DESTROY_SRQ", 0x701), ("QUERY_SRQ", 0x702), ("ARM_RQ", 0x703), ("CREATE_XRC_SRQ", 0x705),
    ("DESTROY_XRC_SRQ", 0x706), ("QUERY_XRC_SRQ", 0x707), ("ARM_XRC_SRQ", 0x708),
    ("CREATE_DCT", 0x710), ("DESTROY_DCT", 0x711), ("DRAIN_DCT", 0x712), ("CREATE_XRQ", 0x717),
    ("DESTROY_XRQ", 0x718), ("QUERY_XRQ", 0x719), ("ARM_XRQ", 0x71a),
    ("QUERY_ESW_FUNCTIONS", 0x740), ("QUERY_VPORT_STATE", 0x750), ("MODIFY_VPORT_STATE", 0x751),
    ("QUERY_NIC_VPORT_CONTEXT", 0x754), ("MODIFY_NIC_VPORT_CONTEXT", 0x755),
    ("QUERY_ROCE_ADDRESS", 0x760), ("SET_ROCE_ADDRESS", 0x761), ("QUERY_HCA_VPORT_CONTEXT", 0x762),
    ("MODIFY_HCA_VPORT_CONTEXT", 0x763), ("QUERY_HCA_VPORT_GID", 0x764),
    ("QUERY_HCA_VPORT_PKEY", 0x765), ("QUERY_VNIC_ENV", 0x76f), ("QUERY_VPORT_COUNTER", 0x770),
    ("ALLOC_Q_COUNTER", 0x771), ("DEALLOC_Q_COUNTER", 0x772), ("QUERY_Q_COUNTER", 0x773),
    ("ALLOC_PD", 0x800), ("DEALLOC_PD", 0x801), ("ALLOC_UAR", 0x802), ("DEALLOC_UAR", 0x803),
    ("ACCESS_REG", 0x805), ("ATTACH_TO_MCG", 0x806), ("DETACH_FROM_MCG", 0x807), ("NOP", 0x80d),
    ("ALLOC_XRCD", 0x80e), ("DEALLOC_XRCD", 0x80f), ("ALLOC_TRANSPORT_DOMAIN", 0x816),
    ("DEALLOC_TRANSPORT_DOMAIN", 0x817), ("QUERY_CONG_STATUS", 0x822),
    ("MODIFY_CONG_STATUS", 0x823), ("QUERY_CONG_PARAMS", 0x824),
    ("MODIFY_CONG_PARAMS", 0x825), ("QUERY_CONG_STATISTICS", 0x826), ("ADD_VXLAN_UDP_DPORT", 0x827),
    ("SET_L2_TABLE_ENTRY", 0x829), ("QUERY_L2_TABLE_ENTRY", 0x82a),
    ("DELETE_L2_TABLE_ENTRY", 0x82b), ("QUERY_LAG", 0x842),
    ("CREATE_TIR", 0x900), ("MODIFY_TIR", 0x901),
    ("DESTROY_TIR", 0x902), ("QUERY_TIR", 0x903), ("CREATE_SQ", 0x904), ("MODIFY_SQ", 0x905),
    ("DESTROY_SQ", 0x906), ("QUERY_SQ", 0x907), ("CREATE_RQ", 0x908), ("MODIFY_RQ", 0x909),
    ("DESTROY_RQ", 0x90a), ("QUERY_RQ", 0x90b), ("CREATE_RMP", 0x90c), ("MODIFY_RMP", 0x90d),
    ("DESTROY_RMP", 0x90e), ("QUERY_RMP", 0x90f), ("CREATE_TIS", 0x912), ("MODIFY_TIS", 0x913),
    ("DESTROY_TIS", 0x914), ("QUERY_TIS", 0x915), ("CREATE_RQT", 0x916), ("MODIFY_RQT", 0x917),
    ("DESTROY_RQT", 0x918), ("QUERY_RQT", 0x919), ("SET_FLOW_TABLE_ROOT", 0x92f),
    ("CREATE_FLOW_TABLE", 0x930), ("DESTROY_FLOW_TABLE", 0x931), ("QUERY_FLOW_TABLE", 0x932),
    ("CREATE_FLOW_GROUP", 0x933), ("DESTROY_FLOW_GROUP", 0x934), ("SET_FTE", 0x936),
    ("QUERY_FTE", 0x937), ("DELETE_FTE", 0x938), ("ALLOC_FLOW_COUNTER", 0x939),
    ("DEALLOC_FLOW_COUNTER", 0x93a), ("QUERY_FLOW_COUNTER", 0x93b), ("MODIFY_FLOW_TABLE", 0x93c),
    ("CREATE_UCTX", 0xa04), ("DESTROY_UCTX", 0xa06), ("CREATE_UMEM", 0xa08),
    ("DESTROY_UMEM", 0xa0a),
];

#[test]
fn opcodes() {
    let ours: Vec<_> = Opcode::ALL.iter().map(|op| (op.name().unwrap(), op.0)).collect();
    assert_eq!(ours, OPCODES);
    assert_eq!(Opcode(0x806).to_string(), "ATTACH_TO_MCG");
    assert_eq!(Opcode(0xfff).to_string(), "opcode 0x0fff");
}

#[test]
fn command_and_delivery_status() {
    let numbers: Vec<_> = CommandStatus::ALL.iter().map(|s| s.0).collect();
    let output = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0xa, 0xf, 0x10, 0x30, 0x40, 0x50, 0x51];
    assert_eq!(numbers, output);
    assert_eq!(CommandStatus::NOT_READY.0, 0x7);
    assert_eq!(CommandStatus::EXCEED_LIM.0, 0x8);
    assert_eq!(CommandStatus::BAD_INDEX.0, 0xa);
    assert_eq!(CommandStatus::BAD_QP_STATE.0, 0x10);
    assert_eq!(CommandStatus::BAD_INPUT_LEN.0, 0x50);
    let numbers: Vec<_> = DeliveryStatus::ALL.iter().map(|s| s.0).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0x10]);
    assert_eq!(DeliveryStatus::TOKEN_ERR.0, 2);
    assert_eq!(DeliveryStatus::BAD_OUTPUT_POINTER.0, 4);
    assert_eq!(DeliveryStatus::BAD_INPUT_POINTER.0, 5);
}

#[test]
fn syndromes() {
    let numbers: Vec<_> = CqeSyndrome::ALL.iter().map(|s| s.0).collect();
    let cqe = [1, 2, 4, 5, 6, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x22];
    assert_eq!(numbers, cqe);
    assert_eq!(CqeSyndrome::LOCAL_PROT_ERR.0, 0x04);
    assert_eq!(CqeSyndrome::WR_FLUSH_ERR.0, 0x05);
    assert_eq!(CqeSyndrome::LOCAL_ACCESS_ERR.0, 0x11);
    assert_eq!(CqeSyndrome::REMOTE_ACCESS_ERR.0, 0x13);
    assert_eq!(CqeSyndrome::TRANSPORT_RETRY_EXC_ERR.0, 0x15);
    assert_eq!(CqeSyndrome::RNR_RETRY_EXC_ERR.0, 0x16);
    let numbers: Vec<_> = HealthSyndrome::ALL.iter().map(|s| s.0).collect();
    assert_eq!(numbers, [0, 1, 7, 8, 9, 0xa, 0xb, 0xc, 0xd, 0xe, 0xf, 0x10, 0x12]);
}

#[test]
fn event_types() {
    let read = [
        (EventType::COMPLETION, 0x00),
        (EventType::PATH_MIGRATED, 0x01),
        (EventType::COMM_ESTABLISHED, 0x02),
        (EventType::SQ_DRAINED, 0x03),
        (EventType::CQ_ERROR, 0x04),
        (EventType::WQ_CATASTROPHIC, 0x05),
        (EventType::PATH_MIG_FAILED, 0x07),
        (EventType::INTERNAL_ERROR, 0x08),
        (EventType::PORT_CHANGE, 0x09),
        (EventType::COMMAND, 0x0a),
        (EventType::PAGE_REQUEST, 0x0b),
        (EventType::NIC_VPORT_CHANGE, 0x0d),
        (EventType::WQ_INVALID_REQ, 0x10),
        (EventType::WQ_ACCESS_ERROR, 0x11),
        (EventType::SRQ_CATASTROPHIC, 0x12),
        (EventType::SRQ_LAST_WQE, 0x13),
        (EventType::SRQ_LIMIT, 0x14),
        (EventType::PORT_MODULE, 0x16),
        (EventType::TEMP_WARN, 0x17),
        (EventType::GENERAL, 0x22),
    ];
    for (ours, theirs) in read {
        assert_eq!(ours.0, theirs);
    }
    assert_eq!((PortChange::DOWN.0, PortChange::ACTIVE.0, PortChange::INITIALIZED.0), (1, 4, 5));
}

#[test]
fn work_and_completion_opcodes() {
    let read = [
        (wqe::Opcode::NOP, 0x00),
        (wqe::Opcode::SEND_INVAL, 0x01),
        (wqe::Opcode::RDMA_WRITE, 0x08),
        (wqe::Opcode::RDMA_WRITE_IMM, 0x09),
        (wqe::Opcode::SEND, 0x0a),
        (wqe::Opcode::SEND_IMM, 0x0b),
        (wqe::Opcode::LSO, 0x0e),
        (wqe::Opcode::RDMA_READ, 0x10),
        (wqe::Opcode::ATOMIC_CS, 0x11),
        (wqe::Opcode::ATOMIC_FA, 0x12),
        (wqe::Opcode::ATOMIC_MASKED_CS, 0x14),
        (wqe::Opcode::ATOMIC_MASKED_FA, 0x15),
        (wqe::Opcode::UMR, 0x25),
        (wqe::Opcode::ENHANCED_MPSW, 0x29),
    ];
    for (ours, theirs) in read {
        assert_eq!(ours.0, theirs);
    }
    let read = [
        (CqeOpcode::REQUESTER, 0),
        (CqeOpcode::RESPONDER_WRITE_IMM, 1),
        (CqeOpcode::RESPONDER_SEND, 2),
        (CqeOpcode::RESPONDER_SEND_IMM, 3),
        (CqeOpcode::RESPONDER_SEND_INVAL, 4),
        (CqeOpcode::RESIZE_CQ, 5),
        (CqeOpcode::SIGNATURE_ERROR, 12),
        (CqeOpcode::REQUESTER_ERROR, 13),
        (CqeOpcode::RESPONDER_ERROR, 14),
        (CqeOpcode::INVALID, 15),
    ];
    for (ours, theirs) in read {
        assert_eq!(ours.0, theirs);
    }
}

#[test]
fn masks_registers_and_interface_modes() {
    let read = [
        (mkey_mask::LEN, 0),
        (mkey_mask::PAGE_SIZE, 1),
        (mkey_mask::START_ADDR, 6),
        (mkey_mask::PD, 7),
        (mkey_mask::EN_RINVAL, 8),
        (mkey_mask::SIGERR, 9),
        (mkey_mask::BSF_EN, 12),
        (mkey_mask::KEY, 13),
        (mkey_mask::QPN, 14),
        (mkey_mask::LR, 17),
        (mkey_mask::LW, 18),
        (mkey_mask::RR, 19),
        (mkey_mask::RW, 20),
        (mkey_mask::A, 21),
        (mkey_mask::SMALL_FENCE, 23),
        (mkey_mask::RELAXED_ORDERING_WRITE, 25),
        (mkey_mask::FREE, 29),
        (mkey_mask::RELAXED_ORDERING_READ, 47),
    ];
    for (ours, bit) in read {
        assert_eq!(ours.trailing_zeros(), bit);
        assert_eq!(ours.count_ones(), 1);
    }
    let read = [
        (RegisterId::PMLP, 0x5002),
        (RegisterId::PMTU, 0x5003),
        (RegisterId::PTYS, 0x5004),
        (RegisterId::PAOS, 0x5006),
        (RegisterId::PFCC, 0x5007),
        (RegisterId::PPCNT, 0x5008),
        (RegisterId::NODE_DESC, 0x6001),
        (RegisterId::HOST_ENDIANNESS, 0x7004),
        (RegisterId::DTOR, 0xc00e),
    ];
    for (ours, theirs) in read {
        assert_eq!(ours.0, theirs);
    }
    let modes = [NicInterface::FULL, NicInterface::DISABLED];
    assert_eq!(modes.map(|m| m.0), [0, 1]);
    assert_eq!((NicInterface::NO_DRAM.0, NicInterface::SW_RESET.0), (2, 7));
}

/// Places in whole words. Source: reference 1.3 and 6.1 to 6.9, not the headers.
#[test]
fn words_of_the_hot_path() {
    assert_eq!((wqe::CE_ALWAYS, wqe::Ctrl::CE.offset), (0x08, 8));
    assert_eq!(wqe::Ctrl::SE.mask(), 0x02);
    let fences = [FenceMode::INITIATOR_SMALL, FenceMode::FENCE, FenceMode::SMALL_AND_FENCE];
    assert_eq!(fences.map(|fence| wqe::Ctrl::FM.of(fence.0)), [1 << 5, 2 << 5, 4 << 5]);
    assert_eq!(wqe::Ctrl::FM.of(FenceMode::STRONG_ORDERING.0), 3 << 5);
    assert_eq!(wqe::INLINE_SEG, 0x8000_0000);
    assert_eq!((wqe::Eth::L4_CSUM.mask(), wqe::Eth::L3_CSUM.mask()), (1 << 31, 1 << 30));
    assert_eq!((wqe::ETH_INLINE_OFFSET, wqe::ETH_INLINE_BYTES), (0x0e, 2));
    assert_eq!((wqe::BASIC_BLOCK_BYTES, wqe::DS_BYTES, wqe::DS_PER_BLOCK), (64, 16, 4));
    assert_eq!((wqe::umr::CONTROL, wqe::umr::MKEY, wqe::umr::TRANSLATIONS), (0x10, 0x40, 0x80));
    assert_eq!((cqe::OP_OWN_MASK, Cqe64::OPCODE.offset), (0xfd, 0x3c));
    let right = [Cqe64::L4_OK, Cqe64::L3_OK, Cqe64::L2_OK].map(|place| place.mask());
    assert_eq!(right, [1 << 26, 1 << 25, 1 << 24]);
    let parts = [cqe::striding::FILLER, cqe::striding::STRIDES, cqe::striding::BYTES];
    assert_eq!(parts.map(|part| part.mask()), [0x8000_0000, 0x7fff_0000, 0x0000_ffff]);
    assert!(parts.iter().all(|part| part.offset == 0x2c));
    assert_eq!((uar::CQ_ARM, uar::EQ_ARM, uar::EQ_CI, uar::SEND_DOORBELL), (32, 64, 72, 2048));
}

/// Numbers that fields hold. Source: reference 4.4, 4.6 and 5.2 to 5.12, not the headers.
#[test]
fn values_of_fields() {
    use wqc::{mem_rq_type, state, wq_type};
    assert_eq!([wq_type::LINKED_LIST, wq_type::CYCLIC], [0, 1]);
    assert_eq!([wq_type::LINKED_LIST_STRIDING, wq_type::CYCLIC_STRIDING], [2, 3]);
    assert_eq!([state::RST, state::RDY, state::ERR], [0, 1, 3]);
    assert_eq!([mem_rq_type::INLINE, mem_rq_type::RMP], [0, 1]);
    assert_eq!([wqc::LOG_STRIDES_BASE, wqc::LOG_STRIDE_BYTES_BASE], [9, 6]);
    use qpc::{opt_param, rq_type, service};
    assert_eq!(
        [service::RC, service::UC, service::UD, service::XRC, service::GSI],
        [0, 1, 2, 3, 8]
    );
    assert_eq!((service::REG_UMR, qpc::PM_STATE_MIGRATED, qpc::ATOMIC_MODE_IB), (0xc, 3, 1));
    assert_eq!([rq_type::OWN, rq_type::SHARED, rq_type::EMPTY], [0, 1, 3]);
    let rights = opt_param::RRE | opt_param::RAE | opt_param::RWE;
    assert_eq!((rights, opt_param::PKEY_INDEX, opt_param::Q_KEY), (0b1110, 1 << 4, 1 << 5));
    assert_eq!((opt_param::MIN_RNR_NAK, opt_param::PM_STATE), (1 << 6, 1 << 10));
    let paths = [opt_param::ALTERNATE_PATH, opt_param::PRIMARY_PATH, opt_param::PRIMARY_PORT];
    assert_eq!(paths, [1 << 0, 1 << 7, 1 << 16]);
    let limits = [opt_param::LOG_SRA_MAX, opt_param::LOG_RRA_MAX, opt_param::RETRY_COUNT];
    assert_eq!(limits, [1 << 8, 1 << 9, 1 << 12]);
    let others = [opt_param::RNR_RETRY, opt_param::ACK_TIMEOUT, opt_param::LAG_TX_PORT_AFFINITY];
    assert_eq!(others, [1 << 13, 1 << 14, 1 << 15]);
    assert_eq!(opt_param::COUNTER_SET_ID, 1 << 25);
    use cqc::{arm_state, mini_cqe_format, status};
    let states = [arm_state::SOLICITED_ARMED, arm_state::ARMED, arm_state::FIRED];
    assert_eq!((states, arm_state::ALWAYS_ARMED), ([6, 9, 0xa], 0xb));
    assert_eq!([status::OK, status::OVERFLOW, status::WRITE_FAILURE], [0, 9, 0xa]);
    assert_eq!([mini_cqe_format::HASH, mini_cqe_format::CHECKSUM], [0, 1]);
    assert_eq!(mini_cqe_format::CHECKSUM_STRIDE_INDEX, 3);
    use tirc::{disp_type, hash_field, hash_fn};
    assert_eq!([disp_type::DIRECT, disp_type::INDIRECT], [0, 1]);
    assert_eq!([hash_fn::NONE, hash_fn::INVERTED_XOR8, hash_fn::TOEPLITZ], [0, 1, 2]);
    assert_eq!([hash_field::SRC_IP, hash_field::DST_IP], [1, 2]);
    assert_eq!([hash_field::L4_SPORT, hash_field::L4_DPORT, hash_field::SPI], [4, 8, 16]);
    assert_eq!([hash_field::L4_UDP, hash_field::L3_IPV6], [1 << 30, 1 << 31]);
    use flow::{action, destination_type, match_criteria};
    assert_eq!([action::ALLOW, action::DROP, action::FORWARD, action::COUNT], [1, 2, 4, 8]);
    assert_eq!([destination_type::FLOW_TABLE, destination_type::TIR], [1, 2]);
    let criteria = [match_criteria::OUTER_HEADERS, match_criteria::MISC];
    assert_eq!((criteria, match_criteria::INNER_HEADERS), ([1, 2], 4));
    assert_eq!(flow::TABLE_TYPE_NIC_RX, 0);
    use vport::{list_type, roce_version};
    assert_eq!([list_type::UNICAST, list_type::MULTICAST, list_type::VLAN], [0, 1, 2]);
    assert_eq!([roce_version::V1, roce_version::V2], [0, 2]);
}

/// Variants and select words of commands. Source: reference 2.5, 4.3 and 4.7, not the headers.
#[test]
fn variants_of_commands() {
    use cmd::device::{manage_pages, query_pages};
    use cmd::flow::modify_fte;
    use cmd::queues::{modify_cq, resize_cq};
    use cmd::tir::{MODIFY_RQT_LIST, modify_tir};
    use cmd::wq::{MODIFY_RMP_LWM, modify_rq};
    assert_eq!([cmd::port::access_reg::WRITE, cmd::port::access_reg::READ], [0, 1]);
    assert_eq!([query_pages::BOOT, query_pages::INIT, query_pages::REGULAR], [1, 2, 3]);
    let moves = [manage_pages::CANNOT_GIVE, manage_pages::GIVE, manage_pages::TAKE];
    assert_eq!(moves, [0, 1, 2]);
    assert_eq!([modify_cq::PERIOD, modify_cq::MAX_COUNT, modify_cq::OI], [1, 2, 4]);
    assert_eq!([modify_cq::C_EQN, modify_cq::PERIOD_MODE], [8, 16]);
    let resize = [resize_cq::LOG_SIZE, resize_cq::PAGE_OFFSET, resize_cq::LOG_PAGE_SIZE];
    assert_eq!(resize, [1, 2, 4]);
    let rq = [modify_rq::VSD, modify_rq::SCATTER_FCS, modify_rq::COUNTER_SET_ID];
    assert_eq!(rq, [2, 4, 8]);
    assert_eq!([modify_tir::PACKET_MERGE, modify_tir::HASH, modify_tir::SELF_LB], [1, 4, 16]);
    assert_eq!([MODIFY_RMP_LWM, MODIFY_RQT_LIST], [1, 1]);
    let fte = [modify_fte::ACTION, modify_fte::FLOW_TAG, modify_fte::DESTINATIONS];
    assert_eq!((fte, modify_fte::COUNTERS), ([1, 2, 4], 8));
}
