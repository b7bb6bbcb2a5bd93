//! Vport context, port registers, counters. Reference 4.5, 4.7, 4.8.

use crate::common::{Host, be32, input, words};
use ferrocx_model::NicConfig;

const BAD_PARAM: u8 = 3;
const EXCEED_LIM: u8 = 8;
const BAD_INPUT_LEN: u8 = 0x50;

/// ACCESS_REG: writes (0) or reads (1) a register.
fn access(id: u32, op_mod: u32, data: &[u32]) -> Vec<u8> {
    let mut bytes = words(&[0x0805_0000, op_mod, id, 0]);
    bytes.extend(words(data));
    bytes
}

/// Reads a register of `len` bytes whose first word is `first`.
#[track_caller]
fn read(host: &mut Host, id: u32, len: usize, first: u32) -> Vec<u8> {
    let mut data = vec![0; len / 4];
    data[0] = first;
    host.ok(&access(id, 1, &data), 0x10 + len).output[0x10..].to_vec()
}

const PORT: u32 = 1 << 16;

#[test]
fn pmtu_is_set_within_its_limits() {
    let mut host = Host::up();
    let pmtu = read(&mut host, 0x5003, 16, PORT);
    assert_eq!(
        (be32(&pmtu, 4), be32(&pmtu, 8), be32(&pmtu, 12)),
        (9978 << 16, 1522 << 16, 1522 << 16)
    );
    host.ok(&access(0x5003, 0, &[PORT, 0, 9022 << 16, 0]), 0x20);
    assert_eq!(be32(&read(&mut host, 0x5003, 16, PORT), 12), 9022 << 16);
    assert_eq!(host.refused(&access(0x5003, 0, &[PORT, 0, 9979 << 16, 0]), BAD_PARAM), "admin_mtu");
    assert_eq!(host.refused(&access(0x5003, 0, &[PORT, 0, 67 << 16, 0]), BAD_PARAM), "admin_mtu");
    assert_eq!(host.refused(&access(0x5003, 1, &[2 << 16, 0, 0, 0]), BAD_PARAM), "local_port");
    let reserved = access(0x5003, 1, &[PORT, 1, 0, 0]);
    assert_eq!(host.refused(&reserved, BAD_PARAM), "register reserved bits");
}

#[test]
fn paos_takes_the_link_down_and_up() {
    let mut host = Host::up();
    let state = words(&[0x0750_0000, 0, 0, 0]);
    assert_eq!(host.ok(&state, 0x10).word(0xc), 0x21, "follows the port, up");
    assert_eq!(be32(&read(&mut host, 0x5006, 16, PORT), 0), PORT | 0x101);
    host.ok(&access(0x5006, 0, &[PORT | 2 << 8, 1 << 31, 0, 0]), 0x20);
    assert_eq!(be32(&read(&mut host, 0x5006, 16, PORT), 0), PORT | 0x202);
    assert_eq!(host.ok(&state, 0x10).word(0xc), 0x20, "down");
    // Without ase the status is not taken.
    host.ok(&access(0x5006, 0, &[PORT | 1 << 8, 0, 0, 0]), 0x20);
    assert_eq!(host.ok(&state, 0x10).word(0xc), 0x20);
    host.ok(&access(0x5006, 0, &[PORT | 1 << 8, 1 << 31, 0, 0]), 0x20);
    assert_eq!(host.ok(&state, 0x10).word(0xc), 0x21);
    let odd = access(0x5006, 0, &[PORT | 3 << 8, 1 << 31, 0, 0]);
    assert_eq!(host.refused(&odd, BAD_PARAM), "admin_status");
}

#[test]
fn the_vport_has_a_state_of_its_own() {
    let mut host = Host::up();
    host.ok(&words(&[0x0751_0000, 0, 0, 0]), 0x10);
    assert_eq!(host.ok(&words(&[0x0750_0000, 0, 0, 0]), 0x10).word(0xc), 0);
    host.ok(&words(&[0x0751_0000, 2, 0, 1 << 4]), 0x10);
    assert_eq!(host.ok(&words(&[0x0750_0000, 2, 0, 0]), 0x10).word(0xc), 0x11);
    assert_eq!(host.refused(&words(&[0x0751_0000, 0, 0, 3 << 4]), BAD_PARAM), "admin_state");
    assert_eq!(host.refused(&words(&[0x0750_0000, 1, 0, 0]), 2), "op_mod");
}

#[test]
fn ptys_knows_the_speeds() {
    let mut host = Host::up();
    let ptys = read(&mut host, 0x5004, 64, PORT | 4);
    let speeds = 1 << 20 | 1 << 27;
    assert_eq!((be32(&ptys, 0xc), be32(&ptys, 0x18), be32(&ptys, 0x24)), (speeds, speeds, 1 << 27));
    let set = |speed: u32| {
        let mut data = [0; 16];
        (data[0], data[6]) = (PORT | 4, speed);
        access(0x5004, 0, &data)
    };
    host.ok(&set(1 << 20), 0x50);
    assert_eq!(be32(&read(&mut host, 0x5004, 64, PORT | 4), 0x24), 1 << 20);
    assert_eq!(host.refused(&set(0), BAD_PARAM), "eth_proto_admin");
    assert_eq!(host.refused(&set(1 << 6), BAD_PARAM), "eth_proto_admin");
    host.nic.set_carrier(false);
    assert_eq!(be32(&read(&mut host, 0x5004, 64, PORT | 4), 0x24), 0, "no speed while down");
    let mut infiniband = vec![0; 16];
    infiniband[0] = PORT | 1;
    assert_eq!(host.refused(&access(0x5004, 1, &infiniband), BAD_PARAM), "proto_mask");
}

#[test]
fn the_other_registers_answer() {
    let mut host = Host::up();
    host.ok(&access(0x5007, 0, &[PORT, 0, 1 << 31, 1 << 31, 0, 0, 0, 0]), 0x30);
    let pfcc = read(&mut host, 0x5007, 32, PORT);
    assert_eq!((be32(&pfcc, 8), be32(&pfcc, 12)), (1 << 31, 1 << 31));
    let per_priority = access(0x5007, 0, &[PORT, 0, 1 << 16, 0, 0, 0, 0, 0]);
    assert_eq!(host.refused(&per_priority, BAD_PARAM), "pfctx or pfcrx");
    assert_eq!(be32(&read(&mut host, 0x5002, 64, PORT), 0) & 0xff, 4, "four lanes");
    assert_eq!(be32(&read(&mut host, 0xc00e, 64, 0), 0x30), 5000, "reclaim_pages in ms");
    assert_eq!(host.refused(&access(0xc00e, 0, &[0; 16]), BAD_PARAM), "DTOR");
    host.ok(&access(0x7004, 0, &[0x8000_0000, 0, 0, 0]), 0x20);
    assert_eq!(host.refused(&access(0x7004, 0, &[0x4000_0000, 0, 0, 0]), BAD_PARAM), "he");
    assert_eq!(&read(&mut host, 0x6001, 64, 0)[..13], b"ferrocx model");
    host.ok(&access(0x6001, 0, &[u32::from_be_bytes(*b"abcd"), 0]), 0x50);
    assert_eq!(&read(&mut host, 0x6001, 64, 0)[..5], b"abcd\0");
    assert_eq!(host.refused(&access(0x5999, 1, &[0; 4]), BAD_PARAM), "register_id");
}

#[test]
fn counter_groups_that_exist_are_answered() {
    let mut host = Host::up();
    for group in [0, 1, 2, 3, 5, 0x10, 0x11, 0x12, 0x20] {
        let ppcnt = read(&mut host, 0x5008, 256, PORT | group);
        assert_eq!(be32(&ppcnt, 0), PORT | group);
        assert_eq!(ppcnt[8..], [0; 248]);
    }
    let mut unknown = vec![0; 64];
    unknown[0] = PORT | 0x3f;
    assert_eq!(host.refused(&access(0x5008, 1, &unknown), BAD_PARAM), "grp");
    unknown[0] = PORT;
    assert_eq!(host.refused(&access(0x5008, 0, &unknown), BAD_PARAM), "PPCNT");
}

/// MODIFY_NIC_VPORT_CONTEXT with words of the context (from 0x100 on).
fn modify(select: u32, set: &[(usize, u32)], list: &[u8]) -> Vec<u8> {
    let mut all = vec![(0, 0x0755_0000), (0xc, select)];
    all.extend(set.iter().map(|(offset, word)| (0x100 + offset, *word)));
    let mut bytes = input(0x200, &all);
    bytes.extend(list);
    bytes
}

fn context(host: &mut Host, list: u32, len: usize) -> Vec<u8> {
    let query = words(&[0x0754_0000, 0, 0, list << 24]);
    host.ok(&query, 0x110 + len).output[0x10..].to_vec()
}

#[test]
fn the_mac_stands_after_two_bytes_of_padding() {
    let mac = [0x02, 1, 2, 3, 4, 5];
    let mut host = Host::up_with(NicConfig { mac, ..NicConfig::default() });
    let vport = context(&mut host, 0, 0);
    assert_eq!(vport[0xf4..0xfc], [0, 0, 0x02, 1, 2, 3, 4, 5]);
    assert_eq!(be32(&vport, 0x24), 1522);
    host.ok(&modify(1 << 3, &[(0xf4, 0x0600), (0xf8, 0x0000_0009)], &[]), 0x10);
    assert_eq!(host.nic.state().port.vport.mac, [6, 0, 0, 0, 0, 9]);
    let group = modify(1 << 3, &[(0xf4, 0x0100)], &[]);
    assert_eq!(host.refused(&group, BAD_PARAM), "permanent_address");
}

#[test]
fn the_vport_context_is_modified_field_by_field() {
    let mut host = Host::up();
    let everything = [(0x0, 0x0100_0006), (0x4, 1 << 31 | 0x1f), (0x24, 9000), (0xf0, 7 << 29)];
    host.ok(&modify(0, &everything, &[]), 0x10);
    assert_eq!(be32(&context(&mut host, 0, 0), 0xf0), 0, "nothing was selected");
    host.ok(&modify(0xcf0, &everything, &[]), 0x10);
    let vport = context(&mut host, 0, 0);
    assert_eq!((be32(&vport, 0), be32(&vport, 4)), (0x0100_0006, 1 << 31 | 0x1f));
    assert_eq!((be32(&vport, 0x24), be32(&vport, 0xf0)), (9000, 7 << 29));
    assert_eq!(host.refused(&modify(1 << 13, &[], &[]), BAD_PARAM), "field_select");
    host.ok(&modify(2, &[(0, 1)], &[]), 0x10);
    let mut ethernet_only = Host::up_with(NicConfig { roce: false, ..NicConfig::default() });
    assert_eq!(ethernet_only.refused(&modify(2, &[(0, 1)], &[]), BAD_PARAM), "roce_en");
    assert_eq!(host.refused(&modify(1 << 6, &[(0x24, 9979)], &[]), BAD_PARAM), "mtu");
    assert_eq!(
        host.refused(&modify(1 << 7, &[(0, 4 << 24)], &[]), BAD_PARAM),
        "min_wqe_inline_mode"
    );
    let other = words(&[0x0754_0000, 0, 1 << 31 | 1, 0]);
    assert_eq!(host.refused(&other, BAD_PARAM), "vport_number");
}

#[test]
fn address_lists_are_kept_by_kind() {
    let mut host = Host::up();
    let macs = [[0, 0, 2, 0, 0, 0, 0, 1], [0, 0, 2, 0, 0, 0, 0, 2]].concat();
    host.ok(&modify(4, &[(0xf0, 2)], &macs), 0x10);
    host.ok(&modify(4, &[(0xf0, 1 << 24 | 1)], &[0, 0, 0x33, 0x33, 0, 0, 0, 1]), 0x10);
    host.ok(&modify(4, &[(0xf0, 2 << 24 | 1)], &[0, 0, 0, 7]), 0x10);
    assert_eq!(context(&mut host, 0, 16)[0x100..], macs);
    assert_eq!(context(&mut host, 1, 8)[0x100..], [0, 0, 0x33, 0x33, 0, 0, 0, 1]);
    assert_eq!(context(&mut host, 2, 4)[0x100..], [0, 0, 0, 7]);
    assert_eq!(host.nic.state().port.vport.vlans, [7]);
    assert_eq!(host.refused(&modify(4, &[(0xf0, 3)], &macs), BAD_INPUT_LEN), "allowed_list_size");
    assert_eq!(host.refused(&modify(4, &[(0xf0, 129)], &macs), EXCEED_LIM), "allowed_list_size");
    assert_eq!(host.refused(&modify(4, &[(0xf0, 3 << 24)], &[]), BAD_PARAM), "allowed_list_type");
}

#[test]
fn vport_counters_start_at_zero_and_name_one_port() {
    let mut host = Host::up();
    let query = input(0x20, &[(0, 0x0770_0000)]);
    assert_eq!(host.ok(&query, 0x210).output[0x10..], [0; 0x200]);
    host.ok(&input(0x20, &[(0, 0x0770_0000), (0x18, 1 << 31)]), 0x210);
    let port = input(0x20, &[(0, 0x0770_0000), (8, 2 << 16)]);
    assert_eq!(host.refused(&port, BAD_PARAM), "port_num");
    host.ok(&words(&[0x076f_0000, 0, 0, 0]), 0x210);
}
