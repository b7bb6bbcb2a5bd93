//! Commands about queue pairs and RoCE addresses: what is taken and what is refused.

use crate::common;
use crate::common::roce::{QKEY, RC, Two, UD, create_qp, init2rtr, mapped, rst2init, rtr2rts};
use crate::common::{Host, input, words};
use ferrocx_model::NicConfig;

const BAD_OP: u8 = 0x02;
const BAD_PARAM: u8 = 0x03;
const BAD_RESOURCE: u8 = 0x05;
const RESOURCE_BUSY: u8 = 0x06;
const EXCEED_LIM: u8 = 0x08;
const BAD_QP_STATE: u8 = 0x10;

#[test]
fn without_roce_there_are_no_such_commands() {
    let mut host = Host::up_with(NicConfig { roce: false, ..NicConfig::default() });
    for opcode in [0x500, 0x502, 0x50b, 0x705, 0x761, 0x765] {
        let field = host.refused(&input(0x110, &[(0, opcode << 16)]), BAD_OP);
        assert_eq!(field, "opcode", "{opcode:#x}");
    }
}

#[test]
fn transitions_come_in_their_order_and_no_other() {
    let mut two = Two::new();
    let (qa, qb) = (two.a.create_qp(RC), two.b.create_qp(RC));
    let (to_b, _) = two.targets(&qa, &qb);
    let init = rst2init(qa.qpn, RC, two.a.pd, 0);
    let host = &mut two.a.host;
    let (rtr, rts) = (init2rtr(qa.qpn, &to_b), rtr2rts(qa.qpn, &to_b, 0));
    for early in [&rtr, &rts] {
        assert_eq!(host.refused(early, BAD_QP_STATE), "current state");
    }
    host.ok(&init, 0x10);
    assert_eq!(host.refused(&rts, BAD_QP_STATE), "current state");
    host.ok(&rtr, 0x10);
    host.ok(&rts, 0x10);
    assert_eq!(host.refused(&init, BAD_QP_STATE), "current state");
    assert_eq!(two.a.state(&qa), 3);
    two.a.host.ok(&words(&[0x0507_0000, 0, qa.qpn, 0]), 0x10);
    assert_eq!(two.a.state(&qa), 6);
    two.a.host.ok(&words(&[0x050a_0000, 0, qa.qpn, 0]), 0x10);
    assert_eq!(two.a.state(&qa), 0);
    two.a.host.ok(&init, 0x10);
}

#[test]
fn required_fields_are_checked_one_by_one() {
    let mut two = Two::new();
    let (qa, qb) = (two.a.create_qp(RC), two.b.create_qp(RC));
    let (to_b, _) = two.targets(&qa, &qb);
    let pd = two.a.pd;
    let host = &mut two.a.host;
    let init = |at: usize, value: u32| {
        let mut bytes = rst2init(qa.qpn, RC, pd, 0);
        bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
        bytes
    };
    for (at, value, field) in [
        (0x18, 2 << 16 | 3 << 11, "st"),
        (0x18, 1 << 11, "pm_state"),
        (0x1c, pd + 1, "pd"),
        (0x30, 1, "pkey_index"),
        (0x54, 2 << 16, "vhca_port_num"),
        (0x10, 1 << 1, "opt_param_mask"),
    ] {
        assert_eq!(host.refused(&init(at, value), BAD_PARAM), field);
    }
    assert_eq!(host.refused(&init(0x24, 9 << 24), BAD_RESOURCE), "counter_set_id");
    host.ok(&init(0, 0x0502_0000), 0x10);
    let rtr = |at: usize, value: u32| {
        let mut bytes = init2rtr(qa.qpn, &to_b);
        bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
        bytes
    };
    for (at, value, field) in [
        (0x20, 30 << 24, "mtu"),
        (0x20, 6 << 29, "mtu"),
        (0x20, 1 << 29 | 31 << 24, "log_msg_max"),
        (0x2c, 0, "remote_qpn"),
        (0x38, 7 << 16, "src_addr_index"),
        (0xa8, 5 << 21, "log_rra_max"),
        (0x10, 1, "opt_param_mask"),
    ] {
        assert_eq!(host.refused(&rtr(at, value), BAD_PARAM), field);
    }
    let mut no_hop = init2rtr(qa.qpn, &to_b);
    no_hop[0x54..0x5c].fill(0);
    assert_eq!(host.refused(&no_hop, BAD_PARAM), "rmac");
    host.ok(&init2rtr(qa.qpn, &to_b), 0x10);
    let mut rts = rtr2rts(qa.qpn, &to_b, 0);
    rts[0x88..0x8c].copy_from_slice(&(5_u32 << 21).to_be_bytes());
    assert_eq!(host.refused(&rts, BAD_PARAM), "log_sra_max");
}

#[test]
fn a_query_returns_what_the_transitions_set() {
    let mut two = Two::new();
    let (qa, _qb) = two.connected(RC);
    assert_eq!(two.a.query(&qa, 0x08) >> 29, 1, "mtu");
    assert_eq!(two.a.query(&qa, 0xa8), QKEY);
    assert_eq!(two.a.query(&qa, 0x78), common::roce::A_PSN);
    assert_eq!(two.a.query(&qa, 0x94) & 0xff_ffff, common::roce::B_PSN);
    assert_eq!(two.a.query(&qa, 0x70), 2 << 21 | 3 << 16 | 3 << 13 | 1 << 11);
}

#[test]
fn what_a_queue_pair_names_must_exist_and_stays_while_it_does() {
    let mut two = Two::new();
    let qp = two.a.create_qp(RC);
    let (pd, uar, cqn) = (two.a.pd, two.a.uar, two.a.cqn);
    let host = &mut two.a.host;
    let record = host.ring(64);
    let page = host.ring(4096);
    let create = |pd, uar, cqn| {
        let mut bytes = create_qp(RC, pd, uar, cqn, record);
        bytes.extend(page.to_be_bytes());
        bytes
    };
    assert_eq!(host.refused(&create(0xff_fff0, uar, cqn), BAD_RESOURCE), "pd");
    assert_eq!(host.refused(&create(pd, 0x3f0, cqn), BAD_RESOURCE), "uar_page");
    assert_eq!(host.refused(&create(pd, uar, 0xff_fff0), BAD_RESOURCE), "cqn_snd");
    assert_eq!(host.refused(&words(&[0x0401_0000, 0, cqn, 0]), RESOURCE_BUSY), "cqn");
    host.ok(&words(&[0x0501_0000, 0, qp.qpn, 0]), 0x10);
    assert_eq!(host.refused(&words(&[0x0501_0000, 0, qp.qpn, 0]), BAD_RESOURCE), "qpn");
    host.ok(&words(&[0x0401_0000, 0, cqn, 0]), 0x10);
}

/// Source: Linux 6.12, `create_kernel_qp` and `create_xrc_tgt_qp`.
#[test]
fn linux_leaves_out_what_a_service_does_not_need() {
    const XRC: u32 = 3;
    const REG_UMR: u32 = 0xc;
    let mut two = Two::new();
    let (pd, uar, cqn) = (two.a.pd, two.a.uar, two.a.cqn);
    let host = &mut two.a.host;
    let record = host.ring(64);
    let page = host.ring(4096).to_be_bytes();
    let umr = [create_qp(REG_UMR, 0, uar, cqn, record), page.to_vec()].concat();
    let qpn = host.ok(&umr, 0x10).word(8);
    host.ok(&rst2init(qpn, REG_UMR, pd, 0), 0x10);
    let mut target = create_qp(XRC, pd, 0, cqn, record);
    target[0xc4..0xc8].copy_from_slice(&(1_u32 << 24).to_be_bytes());
    assert_eq!(host.refused(&target, BAD_RESOURCE), "uar_page");
    // no_sq, bit 15 of the context's third word.
    target[0x22] |= 0x80;
    host.ok(&target, 0x10);
}

#[test]
fn addresses_are_kept_as_given_and_checked() {
    let mut two = Two::new();
    let host = &mut two.a.host;
    let done = host.ok(&words(&[0x0760_0000, 0, 0, 0]), 0x30);
    assert_eq!(done.output[0x10..0x20], mapped([192, 168, 0, 1]));
    let set = |index: u32, version: u32, gid: [u8; 16], mac: u32| {
        let fields = [(0, 0x0761_0000), (8, index << 16), (0x24, mac), (0x28, version)];
        let mut bytes = input(0x30, &fields);
        bytes[0x10..0x20].copy_from_slice(&gid);
        bytes
    };
    let gid = mapped([10, 0, 0, 1]);
    assert_eq!(host.refused(&set(0x100, 2, gid, 1), BAD_PARAM), "roce_address_index");
    assert_eq!(host.refused(&set(1, 1, gid, 1), BAD_PARAM), "roce_version");
    assert_eq!(host.refused(&set(1, 2, [1; 16], 1), BAD_PARAM), "roce_l3_type");
    assert_eq!(host.refused(&set(1, 2, gid, 0), BAD_PARAM), "source_mac");
    host.ok(&set(0xff, 2, gid, 1), 0x10);
    host.ok(&set(0xff, 0, [0; 16], 0), 0x10);
    let done = host.ok(&words(&[0x0760_0000, 0, 0xff << 16, 0]), 0x30);
    assert_eq!(done.output[0x10..0x30], [0; 32], "deleted");
}

#[test]
fn the_pkey_table_has_one_entry() {
    let mut two = Two::new();
    let done = two.a.host.ok(&words(&[0x0765_0000, 0, 0, 0]), 0x14);
    assert_eq!(done.word(0x10), 0xffff);
    assert_eq!(two.a.host.refused(&words(&[0x0765_0000, 0, 0, 1]), BAD_PARAM), "pkey_index");
}

#[test]
fn a_group_has_room_for_as_many_as_the_capability_says() {
    let mut two = Two::new();
    let attach = |qpn: u32| {
        let mut bytes = input(0x20, &[(0, 0x0806_0000), (8, qpn)]);
        bytes[0x10..0x20].copy_from_slice(&mapped([239, 1, 2, 3]));
        bytes
    };
    let members: Vec<u32> = (0..0x31).map(|_| two.a.create_qp(UD).qpn).collect();
    for qpn in &members[..0x30] {
        two.a.host.ok(&attach(*qpn), 0x10);
    }
    let full = two.a.host.refused(&attach(members[0x30]), EXCEED_LIM);
    assert_eq!(full, "max_qp_mcg");
}

#[test]
fn what_a_datagram_looks_through_is_short() {
    const GSI: u32 = 8;
    const MEMBERSHIPS: u32 = 1 << 12;
    let mut two = Two::new();
    let pairs: Vec<_> = (0..8).map(|_| two.a.create_qp(GSI)).collect();
    let mut another = create_qp(GSI, two.a.pd, two.a.uar, two.a.cqn, 0x1000);
    another.extend(0x1_0000_u64.to_be_bytes());
    assert_eq!(two.a.host.refused(&another, EXCEED_LIM), "st");
    two.a.host.ok(&words(&[0x0501_0000, 0, pairs[3].qpn, 0]), 0x10);
    two.a.host.ok(&another, 0x10);
    assert_eq!(two.a.host.refused(&another, EXCEED_LIM), "st");

    let ud = two.a.create_qp(UD).qpn;
    let member = |opcode: u32, group: u32| {
        let mut bytes = input(0x20, &[(0, opcode << 16), (8, ud)]);
        bytes[0x10..].copy_from_slice(&mapped(group.to_be_bytes()));
        bytes
    };
    for group in 0..MEMBERSHIPS {
        two.a.host.ok(&member(0x806, group), 0x10);
    }
    let one_more = member(0x806, MEMBERSHIPS);
    assert_eq!(two.a.host.refused(&one_more, EXCEED_LIM), "multicast_gid");
    two.a.host.ok(&member(0x806, 7), 0x10);
    two.a.host.ok(&member(0x807, 7), 0x10);
    two.a.host.ok(&one_more, 0x10);
    two.a.host.ok(&words(&[0x0501_0000, 0, ud, 0]), 0x10);
    assert!(two.a.host.nic.state().objects.multicast.is_empty());
}
