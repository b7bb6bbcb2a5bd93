//! Bring-up, capabilities, pages, teardown, resets. Reference 2.5, 3.1 to 3.9.

use crate::common;
use crate::common::{CMDQ_LO, HEALTH_SYND, Host, be32, input, words};
use ferrocx_bus::{DmaAccess, Transport};
use ferrocx_model::nic::HcaState;
use ferrocx_model::{Identity, NicConfig};

const BAD_OP: u8 = 2;
const BAD_PARAM: u8 = 3;
const BAD_SYS_STATE: u8 = 4;
const BAD_RES_STATE: u8 = 9;
const NO_RESOURCES: u8 = 0xf;
const BAD_INPUT_LEN: u8 = 0x50;

fn enabled() -> Host {
    let mut host = Host::new(NicConfig::default());
    host.set_queue();
    host.ok(&words(&[0x0104_0000, 0, 0, 0]), 0xc);
    host
}

/// QUERY_HCA_CAP: a page, current or maximum.
fn caps(host: &mut Host, kind: u32, current: bool) -> Vec<u8> {
    let op_mod = kind << 1 | u32::from(current);
    host.ok(&words(&[0x0100_0000, op_mod, 0, 0]), 0x1010).output[0x10..].to_vec()
}

fn set_caps(kind: u32, page: &[u8]) -> Vec<u8> {
    let mut bytes = words(&[0x0109_0000, kind << 1, 0, 0]);
    bytes.extend(page);
    bytes
}

fn needed(host: &mut Host, stage: u32) -> i32 {
    host.ok(&words(&[0x0107_0000, stage, 0, 0]), 0x10).word(0xc) as i32
}

fn give(pages: &[u64]) -> Vec<u8> {
    let mut bytes = words(&[0x0108_0000, 1, 0, pages.len() as u32]);
    bytes.extend(pages.iter().flat_map(|page| page.to_be_bytes()));
    bytes
}

fn take(count: u32) -> Vec<u8> {
    words(&[0x0108_0000, 2, 0, count])
}

#[test]
fn commands_before_their_time_are_bad_sys_state() {
    let mut host = Host::new(NicConfig::default());
    host.set_queue();
    for opcode in [0x107_u32, 0x10a, 0x100, 0x101, 0x802, 0x105] {
        assert_eq!(host.refused(&words(&[opcode << 16, 1, 0, 0]), BAD_SYS_STATE), "hca state");
    }
    host.ok(&words(&[0x0104_0000, 0, 0, 0]), 0xc);
    for opcode in [0x802_u32, 0x800, 0x203, 0x103, 0x754] {
        assert_eq!(host.refused(&words(&[opcode << 16, 0, 0, 0]), BAD_SYS_STATE), "hca state");
    }
}

#[test]
fn enable_and_disable_name_their_own_function_only() {
    let mut host = enabled();
    host.ok(&words(&[0x0104_0000, 0, 0, 0]), 0xc);
    assert_eq!(host.refused(&words(&[0x0104_0000, 0, 1, 0]), BAD_PARAM), "function_id");
    let embedded = words(&[0x0104_0000, 0, 1 << 31, 0]);
    assert_eq!(host.refused(&embedded, BAD_PARAM), "embedded_cpu_function");
    host.ok(&words(&[0x0105_0000, 0, 0, 0]), 0xc);
    assert_eq!(host.nic.state().hca, HcaState::Disabled);
}

#[test]
fn issi_is_one_and_nothing_else() {
    let mut host = enabled();
    let issi = host.ok(&words(&[0x010a_0000, 0, 0, 0]), 0x70);
    assert_eq!((issi.word(8), issi.word(0x6c)), (0, 2));
    assert_eq!(host.refused(&words(&[0x010b_0000, 0, 0, 0]), BAD_PARAM), "current_issi");
    assert_eq!(host.refused(&words(&[0x010b_0000, 0, 2, 0]), BAD_PARAM), "current_issi");
    host.ok(&words(&[0x010b_0000, 0, 1, 0]), 0x10);
    assert_eq!(host.ok(&words(&[0x010a_0000, 0, 0, 0]), 0x70).word(8), 1);
}

#[test]
fn general_capabilities_stand_where_the_manual_says() {
    let mut host = enabled();
    let page = caps(&mut host, 0, true);
    assert_eq!(page, caps(&mut host, 0, false), "nothing is changed yet");
    assert_eq!(be32(&page, 0x34) & 0x3ff, 0x101, "one Ethernet port");
    assert_eq!(be32(&page, 0x34) >> 25 & 1, 1, "nic_flow_table");
    assert_eq!(be32(&page, 0x40) >> 3 & 1, 1, "eth_net_offloads");
    assert_eq!(be32(&page, 0x40) >> 2 & 1, 1, "roce");
    assert_eq!(be32(&page, 0x3c) & 0xf, 1, "cqe_version");
    assert_eq!(be32(&page, 0x50) & 0xffff, 0x400, "max_wqe_sz_sq");
    assert_eq!(be32(&page, 0x9c), 156_250, "clock in kHz");
    let eth = caps(&mut host, 1, true);
    assert_eq!(be32(&eth, 0) >> 30, 3, "csum_cap and vlan_cap");
    let flow = caps(&mut host, 7, true);
    assert_eq!(be32(&flow, 0x40) >> 31, 1, "ft_support");
    assert!(be32(&flow, 0x44) & 0xff >= 64, "max_ft_level");
}

/// mlx5_ib tells of the two apart, and DPDK's driver believes in enhanced multi-packet sends only
/// where there are legacy ones. Source: reference 5.11.
#[test]
fn who_offers_enhanced_multi_packet_sends_offers_legacy_ones_too() {
    let word = be32(&caps(&mut enabled(), 1, true), 0);
    assert_eq!((word >> 14 & 3, word >> 5 & 1), (1, 1), "multi_pkt_send_wqe, enhanced");
}

/// Every outer field that entries are compared by: all of layer 2, but the second tag, to layer 4.
#[test]
fn match_fields_that_are_compared_are_advertised() {
    let page = caps(&mut enabled(), 7, true);
    for at in [0x40 + 0x20, 0x40 + 0x30] {
        let fields = be32(&page, at);
        for bit in 9..=31 {
            let is_second_tag_or_flow_label = matches!(bit, 20..=23);
            assert_eq!(fields >> bit & 1 == 0, is_second_tag_or_flow_label, "bit {bit}");
        }
        assert_eq!(fields & 0x1ff, 0, "no tunnels, no e-switch");
    }
}

#[test]
fn pages_that_are_not_advertised_do_not_exist() {
    let mut host = enabled();
    for kind in [2_u32, 8, 9, 0xd, 0x20, 0x7f] {
        assert_eq!(host.refused(&words(&[0x0100_0000, kind << 1, 0, 0]), BAD_PARAM), "op_mod");
    }
    let other = words(&[0x0100_0000, 1, 1 << 31, 0]);
    assert_eq!(host.refused(&other, BAD_PARAM), "other_function");
    assert_eq!(be32(&caps(&mut host, 4, true), 0x14) & 0xffff, 4791);
    let ethernet_only = NicConfig { roce: false, ..NicConfig::default() };
    let mut host = Host::new(ethernet_only);
    host.set_queue();
    host.ok(&words(&[0x0104_0000, 0, 0, 0]), 0xc);
    assert_eq!(be32(&caps(&mut host, 0, true), 0x40) >> 2 & 1, 0, "no roce");
    for kind in [3_u32, 4] {
        assert_eq!(host.refused(&words(&[0x0100_0000, kind << 1, 0, 0]), BAD_PARAM), "op_mod");
    }
}

/// Linux gives nothing of this page but what it sets. Source: Linux 6.12, `handle_hca_cap_atomic`.
#[test]
fn the_atomic_page_may_be_given_with_what_is_set_and_zeros() {
    let mut host = enabled();
    let before = caps(&mut host, 3, true);
    let mut page = vec![0; before.len()];
    page[8] = 0x40;
    host.ok(&set_caps(3, &page), 0x10);
    let after = caps(&mut host, 3, true);
    assert_eq!((be32(&before, 8), be32(&after, 8)), (0x0200_0000, 0x4200_0000), "host order");
    assert_eq!(be32(&after, 0x10), 0xf, "the operations stay");
    page[0x13] = 1;
    assert_eq!(host.refused(&set_caps(3, &page), BAD_PARAM), "atomic_operations");
}

#[test]
fn set_hca_cap_changes_what_may_be_changed() {
    let mut host = enabled();
    let mut page = caps(&mut host, 0, true);
    host.ok(&set_caps(0, &page), 0x10);
    // log_max_current_uc_list, 0x7c[4:0], from 7 to 3.
    page[0x7f] = page[0x7f] & 0xe0 | 3;
    host.ok(&set_caps(0, &page), 0x10);
    assert_eq!(caps(&mut host, 0, true), page);
    assert_eq!(caps(&mut host, 0, false)[0x7f] & 0x1f, 7, "the maximum stays");
    page[0x7f] = page[0x7f] & 0xe0 | 8;
    assert_eq!(host.refused(&set_caps(0, &page), BAD_PARAM), "log_max_current_uc_list");
}

#[test]
fn set_hca_cap_refuses_everything_else() {
    let mut host = enabled();
    let page = caps(&mut host, 0, true);
    let with = |offset: usize, xor: u8| {
        let mut page = page.clone();
        page[offset] ^= xor;
        set_caps(0, &page)
    };
    assert_eq!(host.refused(&with(0x37, 2), BAD_PARAM), "num_ports");
    assert_eq!(host.refused(&with(0xfff, 1), BAD_PARAM), "capability offset");
    let odd = words(&[0x0109_0000, 1, 0, 0]);
    assert_eq!(host.refused(&odd, BAD_OP), "op_mod");
    assert_eq!(host.refused(&set_caps(2, &page), BAD_PARAM), "op_mod");
    let mut host = Host::up();
    assert_eq!(host.refused(&set_caps(0, &page), BAD_SYS_STATE), "hca state");
}

#[test]
fn pages_are_counted() {
    let mut host = enabled();
    assert_eq!((needed(&mut host, 1), needed(&mut host, 2)), (6, 70));
    let init = words(&[0x0102_0000, 0, 0, 0]);
    host.give_pages(6);
    assert_eq!((needed(&mut host, 1), needed(&mut host, 2)), (0, 64));
    assert_eq!(host.refused(&init, NO_RESOURCES), "pages");
    host.give_pages(63);
    assert_eq!(host.refused(&init, NO_RESOURCES), "pages");
    host.give_pages(0);
    host.give_pages(2);
    assert_eq!(needed(&mut host, 3), -1, "one page too many: the device offers it");
    host.ok(&init, 0x10);
}

#[test]
fn bad_pages_are_refused_and_none_of_the_list_is_taken() {
    let mut host = enabled();
    let good = host.ring(4096);
    let other = host.ring(4096);
    assert_eq!(host.refused(&give(&[good, other + 8]), BAD_PARAM), "pas");
    assert_eq!(host.refused(&give(&[good, 0]), BAD_PARAM), "pas");
    assert_eq!(host.refused(&give(&[good, 0x7000_0000_0000]), BAD_PARAM), "pas");
    assert_eq!(host.refused(&give(&[good, other, good]), BAD_RES_STATE), "pas");
    assert_eq!(host.nic.state().pages.len(), 0);
    let mut short = give(&[good, other]);
    short.truncate(0x10 + 15);
    assert_eq!(host.refused(&short, BAD_INPUT_LEN), "input_num_entries");
    host.ok(&give(&[good]), 0x10);
    assert_eq!(host.refused(&give(&[good]), BAD_RES_STATE), "pas");
    let read_only = common::map(&*host.transport.dma(), 4096, DmaAccess::Read);
    assert_eq!(host.refused(&give(&[read_only.iova()]), BAD_PARAM), "pas");
}

#[test]
fn pages_in_use_do_not_come_back_and_all_do_after_teardown() {
    let mut host = Host::up();
    let mut given: Vec<u64> = host.given.iter().map(|page| page.iova()).collect();
    assert_eq!(host.ok(&take(768), 0x10 + 768 * 8).word(8), 0, "the firmware needs them");
    host.ok(&words(&[0x0103_0000, 0, 0, 0]), 0x10);
    assert_eq!(host.ok(&take(10), 0x10).word(8), 0, "no room in the output");
    let some = host.ok(&take(10), 0x10 + 4 * 8);
    assert_eq!(some.word(8), 4, "as many as the output holds");
    let rest = host.ok(&take(768), 0x10 + 768 * 8);
    assert_eq!(rest.word(8), 66);
    let list = |bytes: &[u8], count: usize| -> Vec<u64> {
        let list = bytes[0x10..].chunks_exact(8).take(count);
        list.map(|page| u64::from_be_bytes(page.try_into().expect("eight"))).collect()
    };
    let mut back = list(&some.output, 4);
    back.extend(list(&rest.output, 66));
    back.sort_unstable();
    given.sort_unstable();
    assert_eq!(back, given, "exactly the pages that were given");
    assert_eq!(host.ok(&take(768), 0x10 + 768 * 8).word(8), 0);
    host.ok(&words(&[0x0105_0000, 0, 0, 0]), 0xc);
}

#[test]
fn the_host_may_say_that_it_cannot_give_pages() {
    let mut host = enabled();
    host.ok(&words(&[0x0108_0000, 0, 0, 0]), 0x10);
    assert_eq!(host.nic.state().pages.refusals(), 1);
    let with_count = words(&[0x0108_0000, 0, 0, 1]);
    assert_eq!(host.refused(&with_count, BAD_PARAM), "input_num_entries");
    assert_eq!(host.refused(&words(&[0x0108_0000, 3, 0, 0]), BAD_OP), "op_mod");
}

#[test]
fn init_twice_and_disable_while_initialised_are_refused() {
    let mut host = Host::up();
    let init = words(&[0x0102_0000, 0, 0, 0]);
    assert_eq!(host.refused(&init, BAD_SYS_STATE), "hca state");
    assert_eq!(host.refused(&words(&[0x0105_0000, 0, 0, 0]), BAD_SYS_STATE), "hca state");
    assert_eq!(host.refused(&words(&[0x0103_0000, 0, 2, 0]), BAD_PARAM), "profile");
    host.ok(&words(&[0x0103_0000, 0, 1, 0]), 0x10);
    // Linux 6.1 sends 0x20 bytes.
    host.ok(&input(0x20, &[(0, 0x0102_0000)]), 0x10);
    host.ok(&words(&[0x0103_0000, 0, 0, 0]), 0x10);
    let vhca = input(0x20, &[(0, 0x0102_0000), (0xc, 1 << 16)]);
    assert_eq!(host.refused(&vhca, BAD_PARAM), "sw_vhca_id");
}

#[test]
fn the_adapter_says_who_made_it() {
    let mut host = Host::up();
    let adapter = host.ok(&words(&[0x0101_0000, 0, 0, 0]), 0x110);
    assert_eq!(adapter.word(0x10 + 0x18), 0x02c9);
    assert_eq!(adapter.word(0x10 + 0x1c), 0x15b3);
    assert_eq!(&adapter.output[0x100..0x104], b"FCX_");
}

#[test]
fn special_contexts_name_the_reserved_lkey() {
    let mut host = Host::up();
    let special = host.ok(&words(&[0x0203_0000, 0, 0, 0]), 0x20);
    assert_eq!(special.word(0xc), ferrocx_model::mkey::RESERVED_LKEY);
    assert_ne!(special.word(0xc), 0x100, "0x100 ends a scatter list");
}

#[test]
fn the_driver_version_is_kept() {
    let mut host = Host::up();
    let mut bytes = input(0x50, &[(0, 0x010d_0000)]);
    bytes[0x10..0x1e].copy_from_slice(b"Linux,mlx5,6.1");
    host.ok(&bytes, 0x10);
    assert_eq!(host.nic.state().driver.version, "Linux,mlx5,6.1");
}

#[test]
fn a_function_level_reset_forgets_everything_inside() {
    let mut host = Host::up();
    let base = host.base();
    assert!(!host.nic.state().objects.is_empty());
    host.post(0, &words(&[0x080d_0000, 0, 0, 0]), 0x10);
    host.ring_bell(1);
    host.transport.reset().expect("reset");
    assert!(!host.transport.reset_complete());
    host.step();
    assert!(host.transport.reset_complete());
    let state = host.nic.state();
    assert_eq!((state.hca, state.objects.len(), state.pages.len()), (HcaState::Disabled, 0, 0));
    assert_eq!(host.bar.read_be32(CMDQ_LO), 0x56, "no queue address");
    host.step();
    assert_eq!(host.take(0, 16), None, "a command pending at the reset never completes");
    host.set_queue();
    host.bring_up();
    // Numbers start from the beginning, and the old ones mean nothing.
    let gone = words(&[0x0402_0000, 0, base.cqn, 0]);
    assert_eq!(host.refused(&gone, 5), "cqn");
    assert_eq!(host.base().uar, base.uar);
}

#[test]
fn a_software_reset_disables_the_interface() {
    let mut host = Host::up();
    let at = host.queue.iova() as u32;
    host.bar.write_be32(CMDQ_LO, at | 7 << 8);
    host.step();
    assert_eq!(host.bar.read_be32(CMDQ_LO) >> 8 & 7, 1);
    assert_eq!(host.nic.state().hca, HcaState::Disabled);
    host.set_queue();
    host.bring_up();
}

#[test]
fn identities_differ_in_what_they_say() {
    for (identity, device, major) in [
        (Identity::ConnectX5, 0x1017, 16),
        (Identity::ConnectX5Vf, 0x1018, 16),
        (Identity::ConnectX6Dx, 0x101d, 22),
    ] {
        let host = Host::up_with(NicConfig { identity, ..NicConfig::default() });
        assert_eq!(identity.device_id(), device);
        assert_eq!(host.bar.read_be32(0) & 0xffff, major);
        assert_eq!(host.bar.read_be32(HEALTH_SYND) >> 16 & 0xff, 0);
    }
}

#[test]
fn three_hundred_bring_ups_leave_nothing() {
    let mut host = Host::new(NicConfig::default());
    host.set_queue();
    for _ in 0..300 {
        host.bring_up();
        host.short(0x802, 0);
        host.short(0x800, 0);
        host.ok(&words(&[0x0103_0000, 0, 0, 0]), 0x10);
        let back = host.ok(&take(768), 0x10 + 768 * 8).word(8);
        assert_eq!(back, 70);
        host.ok(&words(&[0x0105_0000, 0, 0, 0]), 0xc);
        host.given.clear();
        assert_eq!((host.nic.state().objects.len(), host.nic.state().pages.len()), (0, 0));
    }
    assert_eq!(host.nic.log().total(), 0);
}

#[test]
fn a_booting_device_says_so_and_runs_no_command() {
    let mut host = Host::new(NicConfig { boot_ns: 5_000, ..NicConfig::default() });
    assert_eq!(host.bar.read_be32(0x1fc), 1 << 31);
    host.set_queue();
    host.post(0, &words(&[0x080d_0000, 0, 0, 0]), 0x10);
    host.ring_bell(1);
    host.step();
    assert_eq!(host.take(0, 0x10), None);
    host.nic.step(4_999);
    assert_eq!(host.bar.read_be32(0x1fc), 1 << 31);
    host.now_ns = 5_000;
    host.nic.step(5_000);
    assert_eq!(host.bar.read_be32(0x1fc), 0);
    host.ok(&words(&[0x080d_0000, 0, 0, 0]), 0x10);
    host.transport.reset().expect("reset");
    host.step();
    assert_eq!(host.bar.read_be32(0x1fc), 1 << 31, "again after a reset");
}

#[test]
fn the_link_comes_with_init_and_goes_with_teardown() {
    let mut host = enabled();
    assert!(!host.nic.state().port.is_up());
    host.bring_up();
    assert!(host.nic.state().port.is_up());
    host.ok(&words(&[0x0103_0000, 0, 0, 0]), 0x10);
    assert!(!host.nic.state().port.is_up() && !host.nic.state().port.reported_up);
}
