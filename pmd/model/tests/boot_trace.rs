//! The boot of a real ConnectX-4 Lx, replayed: every input as it stood in memory, at the addresses
//! where it stood.
//!
//! The bytes are made from the recording's facts, see `pmd/prm/tests/common/facts.rs`.

mod common;
#[path = "../../prm/tests/common/facts.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the tests of the layouts")]
mod facts;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{CMDQ_HI, CMDQ_LO, DOORBELL, be32, region};
use facts::Exchange;
use ferrocx_bus::local::{LocalConfig, pair};
use ferrocx_bus::{BarClaim, DmaAccess, Transport};
use ferrocx_mempool::Region;
use ferrocx_model::config::CapOverride;
use ferrocx_model::{Nic, NicConfig};
use ferrocx_prm::Layout;
use ferrocx_prm::caps::{AtomicCap, EthCap, HcaCap, RoceCap, cap_type};
use ferrocx_prm::cmd::{Mailbox, Opcode, mailbox_blocks};
use ferrocx_prm::layout::{Field, Part};

/// Where the command queue stood: `descriptor at dma 0x7af3d0000` in the log.
const QUEUE: u64 = 0x7_af3d_0000;

/// Free addresses for blocks and pages that the log leaves out.
const LEFT_OUT: u64 = 0x20_0000_0000;

const PAGE: u64 = 4096;

/// Memory by address, one page at a time.
struct Memory {
    pages: BTreeMap<u64, Arc<Region>>,
}

impl Memory {
    fn write(&self, at: u64, bytes: &[u8]) {
        for (index, byte) in bytes.iter().enumerate() {
            let at = at + index as u64;
            let region = &self.pages[&(at & !(PAGE - 1))];
            region.copy_in((at % PAGE) as usize, &[*byte]).expect("in the page");
        }
    }

    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for (index, byte) in bytes.iter_mut().enumerate() {
            let at = at + index as u64;
            let region = &self.pages[&(at & !(PAGE - 1))];
            region.copy_out((at % PAGE) as usize, std::slice::from_mut(byte)).expect("in the page");
        }
        bytes
    }
}

/// Blocks of a chain with their addresses; those that the log leaves out are made up.
fn chain(first: u64, blocks: &[Mailbox], count: usize, token: u32) -> Vec<(u64, Mailbox)> {
    let mut at = first;
    let mut chain = Vec::new();
    // Two commands have blocks left out; their pages must differ.
    let mut page = LEFT_OUT + ((1 + count as u64) << 30);
    for number in 0..count {
        let block = blocks.get(number).copied().unwrap_or_else(|| {
            let next = LEFT_OUT + number as u64 * 1024;
            let mut data = [0_u8; 512];
            for entry in data.chunks_exact_mut(8) {
                entry.copy_from_slice(&page.to_be_bytes());
                page += PAGE;
            }
            Mailbox::zeroed()
                .with_data(data)
                .with_block_number(number as u32)
                .with_token(token)
                .with_next_pointer(next)
        });
        chain.push((at, block));
        at = block.next_pointer();
    }
    chain
}

fn input_chain(exchange: &Exchange) -> Vec<(u64, Mailbox)> {
    let entry = &exchange.input.entry;
    let count = mailbox_blocks(entry.input_length() as usize);
    chain(entry.input_mailbox_ptr(), &exchange.input.blocks, count, entry.token())
}

/// The log prints output blocks after the device wrote them: framing as posted, data emptied.
fn output_chain(exchange: &Exchange) -> Vec<(u64, Mailbox)> {
    let entry = &exchange.input.entry;
    let count = mailbox_blocks(entry.output_length() as usize);
    let blocks: Vec<_> =
        exchange.output.blocks.iter().map(|block| block.with_data([0xa5; 512])).collect();
    chain(entry.output_mailbox_ptr(), &blocks, count, entry.token())
}

/// The whole input, with what the log leaves out made up.
fn input_bytes(exchange: &Exchange) -> Vec<u8> {
    let mut bytes = exchange.input.entry.command_input_inline_data().to_vec();
    for (_, block) in input_chain(exchange) {
        bytes.extend(block.data());
    }
    bytes.truncate(exchange.input.entry.input_length() as usize);
    bytes
}

/// Every page that the boot touches: queue, mailboxes, pages given to the firmware, event queues.
fn touched(exchanges: &[Exchange]) -> Vec<u64> {
    let mut pages = vec![QUEUE];
    for exchange in exchanges {
        let blocks = input_chain(exchange).into_iter().chain(output_chain(exchange));
        pages.extend(blocks.map(|(at, _)| at & !(PAGE - 1)));
        if exchange.opcode == Opcode::MANAGE_PAGES {
            let bytes = input_bytes(exchange);
            let list = bytes[16..].chunks_exact(8);
            pages.extend(list.map(|page| u64::from_be_bytes(page.try_into().expect("eight"))));
        }
    }
    pages.extend(exchanges.iter().filter(|e| e.opcode == Opcode::CREATE_EQ).flat_map(eq_pages));
    pages.sort_unstable();
    pages.dedup();
    pages
}

/// The ring of an EQ, in pages of 4 KiB.
fn eq_pages(exchange: &Exchange) -> Vec<u64> {
    let bytes = input_bytes(exchange);
    let log_page_size = be32(&bytes, 0x28) >> 24 & 0x1f;
    let list = bytes[0x110..].chunks_exact(8);
    let starts = list.map(|page| u64::from_be_bytes(page.try_into().expect("eight")));
    starts.flat_map(|at| (0..1 << log_page_size).map(move |page| at + page * PAGE)).collect()
}

/// The recorded capability pages, so that SET_HCA_CAP meets the device it was meant for.
fn recorded_caps(exchanges: &[Exchange]) -> Vec<CapOverride> {
    let mut caps: BTreeMap<u32, CapOverride> = BTreeMap::new();
    let mut boxed = |exchange: &Exchange| {
        let output = exchange.output.output_bytes();
        let page: [u8; 4096] = output[0x10..].try_into().expect("a page");
        let kind = exchange.op_mod >> 1;
        let blank = || CapOverride { kind, max: Box::new([0; 4096]), cur: Box::new([0; 4096]) };
        let cap = caps.entry(kind).or_insert_with(blank);
        let is_current = exchange.op_mod & 1 != 0;
        **(if is_current { &mut cap.cur } else { &mut cap.max }) = page;
    };
    // The last answers come after SET_HCA_CAP; the first ones are what the device started with.
    exchanges.iter().rev().filter(|e| e.opcode == Opcode::QUERY_HCA_CAP).for_each(&mut boxed);
    caps.into_values().collect()
}

struct Replay {
    nic: Nic,
    bar: Arc<dyn ferrocx_bus::Bar>,
    memory: Memory,
    now_ns: u64,
}

impl Replay {
    /// The model with the capabilities of the recorded device.
    fn new(exchanges: &[Exchange]) -> Self {
        Self::with(exchanges, recorded_caps(exchanges))
    }

    fn with(exchanges: &[Exchange], cap_pages: Vec<CapOverride>) -> Self {
        let local = LocalConfig { vectors: 32, seed: 5, ..LocalConfig::default() };
        let (transport, side) = pair(local).expect("in-process device");
        let mut pages = BTreeMap::new();
        for at in touched(exchanges) {
            let page = region(PAGE as usize);
            side.dma_map(at, Arc::clone(&page), DmaAccess::ReadWrite).expect("mapping");
            pages.insert(at, page);
        }
        let config = NicConfig {
            boot_pages: 6,
            init_pages: 0x3244,
            cap_pages,
            roce: true,
            ..NicConfig::default()
        };
        // SAFETY: the tests are the only driver, and the memory of this device is only copied.
        let bar = transport.bar(unsafe { BarClaim::new() });
        let nic = Nic::new(side, config);
        let mut replay = Self { nic, bar, memory: Memory { pages }, now_ns: 0 };
        replay.bar.write_be32(CMDQ_HI, (QUEUE >> 32) as u32);
        replay.bar.write_be32(CMDQ_LO, QUEUE as u32);
        replay.step();
        replay
    }

    fn step(&mut self) {
        self.now_ns += 1_000_000;
        self.nic.step(self.now_ns);
    }

    /// Puts entry and blocks where they stood, rings, and returns delivery status and output.
    fn play(&mut self, exchange: &Exchange) -> (u8, Vec<u8>) {
        let entry = &exchange.input.entry;
        let slot = exchange.doorbell.trailing_zeros();
        let at = QUEUE + u64::from(slot) * 64;
        let outputs = output_chain(exchange);
        for (at, block) in input_chain(exchange).iter().chain(&outputs) {
            self.memory.write(*at, block.as_bytes());
        }
        self.memory.write(at, entry.as_bytes());
        self.bar.write_be32(DOORBELL, exchange.doorbell);
        self.step();
        let done = self.memory.read(at, 64);
        assert_eq!(done[63] & 1, 0, "{}: still the device's", exchange.opcode);
        assert_eq!(done[60], entry.as_bytes()[60], "the token stays");
        let mut output = done[32..48].to_vec();
        for (at, _) in outputs {
            output.extend(self.memory.read(at, 512));
        }
        output.truncate(entry.output_length() as usize);
        (done[63] >> 1, output)
    }
}

/// Commands whose output differs from the recorded one, and why.
const DIFFERENT: &[(Opcode, &str)] =
    &[(Opcode::QUERY_ADAPTER, "vendor-specific data and PSID are the model's own")];

#[test]
fn every_recorded_command_is_accepted_and_answered_alike() {
    let exchanges = facts::load();
    let mut replay = Replay::new(&exchanges);
    for exchange in &exchanges {
        let (delivery, output) = replay.play(exchange);
        let name = format!("{} op_mod {:#x}", exchange.opcode, exchange.op_mod);
        let log = replay.nic.log().last().cloned();
        let recorded = exchange.output.output_bytes();
        assert_eq!(delivery, 0, "{name}: delivery, {log:?}");
        assert_eq!(output[0], recorded[0], "{name}: status, {log:?}");
        match DIFFERENT.iter().find(|(opcode, _)| *opcode == exchange.opcode) {
            Some((_, why)) => {
                assert_ne!(output, recorded, "{name} is listed as different");
                println!("{name} differs: {why}");
            }
            // Of some outputs the log prints the inline part only.
            None => assert_eq!(output[..recorded.len()], recorded[..], "{name}: output"),
        }
    }
    assert_eq!(replay.nic.log().total(), 0, "{:?}", replay.nic.log().last());
    assert_eq!(replay.nic.state().pages.len(), 6 + 0x3244);
}

#[test]
fn the_adapter_names_the_same_vendor_at_the_same_place() {
    let exchanges = facts::load();
    let mut replay = Replay::new(&exchanges);
    for exchange in &exchanges {
        let (_, output) = replay.play(exchange);
        if exchange.opcode == Opcode::QUERY_ADAPTER {
            let recorded = exchange.output.output_bytes();
            assert_eq!(be32(&output, 0x10 + 0x18), be32(&recorded, 0x10 + 0x18), "OUI");
            assert_eq!(be32(&output, 0x10 + 0x1c), be32(&recorded, 0x10 + 0x1c), "VSD vendor");
            return;
        }
    }
    panic!("the boot has a QUERY_ADAPTER");
}

/// Fields of the capability pages in which the model as delivered, a ConnectX-5, differs from the
/// recorded ConnectX-4 Lx, and why.
const DIFFERENT_CAPS: &[(&str, &[&str])] = &[
    (
        "the model's tables are smaller",
        &[
            "log_max_qp",
            "log_max_srq",
            "log_max_eq",
            "log_max_pd",
            "log_max_xrcd",
            "log_max_rq",
            "log_max_sq",
            "log_max_tir",
            "log_max_tis",
            "log_max_rmp",
            "log_max_vlan_list",
            "log_max_current_mc_list",
            "log_max_current_uc_list",
            "gid_table_size",
        ],
    ),
    (
        "a ConnectX-5 has more",
        &[
            "device_memory",
            "umem_uid_0",
            "general_obj_types",
            "log_max_uctx",
            "log_max_umem",
            "uctx_cap",
            "flow_counter_bulk_alloc",
            "log_max_flow_counter_bulk",
            "mini_cqe_resp_stride_index",
            "force_teardown",
            "max_tc",
            "cq_period_mode_modify",
            "umr_ptr_rlky",
            "imaicl",
            "driver_version",
            "max_flow_counter_15_0",
            "log_max_rqt_size",
            "disable_local_lb_uc",
            "disable_local_lb_mc",
            "wqe_vlan_insert",
            "self_lb_en_modifiable",
            "wqe_inline_mode",
            "rss_ind_tbl_cap",
            "enhanced_multi_pkt_send_wqe",
            "modify_rq_counter_set_id",
            "sw_r_roce_src_udp_port",
            "atomic_req_8b_endianness_mode",
            "supported_atomic_req_8b_endianness_mode_1",
        ],
    ),
    ("the clock is the model's", &["device_frequency_mhz", "device_frequency_khz"]),
    ("UAR pages are 4 KiB", &["log_uar_page_sz", "num_of_uars_per_page"]),
    (
        "no e-switch",
        &[
            "vport_group_manager",
            "vhca_group_manager",
            "eswitch_manager",
            "nic_vport_change_event",
            "log_max_l2_table",
        ],
    ),
    (
        "no dynamically connected transport",
        &["log_max_ra_req_dc", "log_max_ra_res_dc", "cd", "max_wqe_sz_sq_dc", "atomic_size_dc"],
    ),
    ("no signatures", &["log_max_bsf_list_size", "wq_signature", "cmdif_checksum"]),
    ("no InfiniBand, no automatic path migration", &["pkey_table_size", "apm"]),
    (
        "Q counters that this firmware did not have yet",
        &["out_of_seq_cnt", "retransmission_q_counters", "enhanced_error_q_counters"],
    ),
    ("no traffic classes to set", &["ets"]),
    (
        "no LRO, no tunnels, no padding by the device",
        &[
            "lro_cap",
            "lro_time_stamp",
            "lro_min_mss_size",
            "lro_timer_supported_periods",
            "tunnel_stateless_gre",
            "tunnel_stateless_vxlan",
            "scqe_break_moderation",
            "pad_tx_eth_packet",
        ],
    ),
    ("RoCE versions 1 and 2, not 1.5", &["l3_type", "roce_version"]),
    ("masked atomics of four and eight bytes only", &["atomic_size_qp"]),
];

/// Double words of the pages with bits that no public source names: kind, offset.
const UNNAMED: &[(u32, usize)] = &[(0, 0x40), (0, 0x44), (1, 0x0), (4, 0x0)];

/// The fields of a capability page; none of the flow tables, which differ as a whole: the model has
/// receive tables, and compares fewer fields.
fn cap_fields(kind: u32) -> &'static [Field] {
    match kind {
        cap_type::GENERAL => HcaCap::FIELDS,
        cap_type::ETHERNET_OFFLOADS => EthCap::FIELDS,
        cap_type::ATOMIC => AtomicCap::FIELDS,
        cap_type::ROCE => RoceCap::FIELDS,
        cap_type::NIC_FLOW_TABLE => &[],
        other => panic!("capability page {other} is not in the recording"),
    }
}

fn bit(page: &[u8], at: usize) -> bool {
    page[at / 8] >> (7 - at % 8) & 1 != 0
}

/// Names of the fields in which two pages differ; then double words with differences elsewhere.
fn differences(kind: u32, a: &[u8], b: &[u8]) -> (Vec<&'static str>, Vec<usize>) {
    let mut is_named = vec![false; a.len() * 8];
    let mut names = Vec::new();
    for field in cap_fields(kind) {
        let bits = field.first_bit..field.first_bit + field.width_bits;
        is_named[bits.clone()].fill(true);
        if bits.clone().any(|at| bit(a, at) != bit(b, at)) {
            names.push(field.name);
        }
    }
    let unnamed = (0..a.len() * 8).filter(|at| !is_named[*at] && bit(a, *at) != bit(b, *at));
    let mut words: Vec<usize> = unnamed.map(|at| at / 32 * 4).collect();
    words.dedup();
    (names, words)
}

/// The recorded SET_HCA_CAP asks for 2^17 queue pairs and leaves the rest as it was told: the same
/// request, of this device.
fn set_caps_of(exchange: &Exchange, current: &[u8]) -> Exchange {
    let mut page = current[16..].to_vec();
    HcaCap::load(&page[..HcaCap::SIZE_BYTES]).with_log_max_qp(0x11).write_to(&mut page);
    let mut own = exchange.clone();
    for (block, data) in own.input.blocks.iter_mut().zip(page.chunks_exact(512)) {
        *block = block.with_data(data.try_into().expect("a block"));
    }
    own
}

#[test]
fn the_model_as_delivered_accepts_the_boot_and_differs_for_known_reasons() {
    let exchanges = facts::load();
    let mut replay = Replay::with(&exchanges, Vec::new());
    let mut current = Vec::new();
    for exchange in &exchanges {
        let own;
        let mut played = exchange;
        if exchange.opcode == Opcode::SET_HCA_CAP {
            own = set_caps_of(exchange, &current);
            played = &own;
        }
        let (delivery, output) = replay.play(played);
        let name = format!("{} op_mod {:#x}", exchange.opcode, exchange.op_mod);
        let recorded = exchange.output.output_bytes();
        let log = replay.nic.log().last();
        assert_eq!((delivery, output[..8].to_vec()), (0, recorded[..8].to_vec()), "{name} {log:?}");
        match exchange.opcode {
            Opcode::QUERY_HCA_CAP => {
                let kind = exchange.op_mod >> 1;
                let (names, words) = differences(kind, &recorded[16..], &output[16..]);
                for field in names {
                    let known = DIFFERENT_CAPS.iter().find(|(_, names)| names.contains(&field));
                    let (why, _) = known.unwrap_or_else(|| panic!("{name}: {field} differs"));
                    println!("{name}: {field} differs: {why}");
                }
                let foreign = |at: &usize| {
                    kind != cap_type::NIC_FLOW_TABLE && !UNNAMED.contains(&(kind, *at))
                };
                assert_eq!(words.into_iter().find(foreign), None, "{name}: an unnamed bit");
                if exchange.op_mod == 1 {
                    current = output;
                }
            }
            // Vendor-specific data and PSID.
            Opcode::QUERY_ADAPTER => {}
            _ => assert_eq!(output[..recorded.len()], recorded[..], "{name}: output"),
        }
    }
    assert_eq!(replay.nic.log().total(), 0, "{:?}", replay.nic.log().last());
}
