//! Numbers that stand for something, read again from the Linux headers.
//!
//! Source: Linux 6.12.117, `mlx5_ifc.h` (`MLX5_CMD_OP_*`), `device.h` (`MLX5_CMD_STAT_*`,
//! `MLX5_EVENT_TYPE_*`, `MLX5_OPCODE_*`, `MLX5_MKEY_MASK_*`), `cq.h` (`MLX5_CQE_*`), `driver.h`
//! (`MLX5_REG_*`), `core/cmd.c` (`MLX5_CMD_DELIVERY_STAT_*`), `core/health.c`.

use ferrocx_prm::cmd::Opcode;
use ferrocx_prm::cqe::CqeOpcode;
use ferrocx_prm::eqe::{EventType, PortChange};
use ferrocx_prm::init_seg::NicInterface;
use ferrocx_prm::reg::RegisterId;
use ferrocx_prm::syndrome::{CommandStatus, CqeSyndrome, DeliveryStatus, HealthSyndrome};
use ferrocx_prm::wqe::{self, mkey_mask};

/// Commands. `2ERR_QP`, `2RST_QP`, `SQD_RTS_QP` and the `*_FLOW_TABLE_ENTRY` of the header carry
/// the names that the rest of the interface uses.
#[rustfmt::skip]
const OPCODES: &[(&str, u16)] = &[
    ("QUERY_HCA_CAP", 0x100), ("QUERY_ADAPTER", 0x101), ("INIT_HCA", 0x102),
    ("TEARDOWN_HCA", 0x103), ("ENABLE_HCA", 0x104), ("DISABLE_HCA", 0x105), ("QUERY_PAGES", 0x107),
    ("MANAGE_PAGES", 0x108), ("SET_HCA_CAP", 0x109), ("QUERY_ISSI", 0x10a), ("SET_ISSI", 0x10b),
    ("SET_DRIVER_VERSION", 0x10d), ("CREATE_MKEY", 0x200), ("QUERY_MKEY", 0x201),
    ("DESTROY_MKEY", 0x202), ("QUERY_SPECIAL_CONTEXTS", 0x203), ("CREATE_EQ", 0x301),
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
    ("DELETE_L2_TABLE_ENTRY", 0x82b), ("CREATE_TIR", 0x900), ("MODIFY_TIR", 0x901),
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
    ("CREATE_UCTX", 0xa04), ("CREATE_UMEM", 0xa08), ("DESTROY_UMEM", 0xa0a),
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
