//! Capability pages: what the device can do (max) and what it was set to (cur).
//!
//! Whatever stands here is implemented. Values follow the "CX5" column of reference 5.10 and 5.11;
//! where they differ, the line says why.

use ferrocx_prm::Layout;
use ferrocx_prm::caps::{
    AtomicCap, CAP_PAGE_BYTES, DeviceMemCap, EthCap, FlowTableProps, HcaCap, QosCap, RoceCap,
    cap_type, nic_flow_table,
};
use ferrocx_prm::cmd::user::uctx_cap;
use ferrocx_prm::layout::Field;

pub use super::config::CapPage;
use super::config::NicConfig;
use super::refused::{Answer, Refused, ensure};
use crate::objects::ObjectLimits;
use crate::objects::mkey::MAX_INDIRECTION;

/// Frequency of the free-running clock, in kHz: 6.4 ns a tick. Source: reference 5.10.
pub const CLOCK_KHZ: u32 = 156_250;

/// Log2 limits, stated once and used for the pages and for the tables.
pub mod log_max {
    /// Send queues, receive queues, RMPs, TIRs, TISs: each.
    pub const QUEUES: u32 = 0x12;
    /// Completion queues. Reference 5.10 has 0x18; numbers start at 0x400, so one less is safe.
    pub const CQ: u32 = 0x17;
    /// Entries of a CQ.
    pub const CQ_SIZE: u32 = 0x16;
    /// Event queues.
    pub const EQ: u32 = 7;
    /// Entries of an EQ.
    pub const EQ_SIZE: u32 = 0x16;
    /// Memory keys.
    pub const MKEY: u32 = 0x17;
    /// Entries of a KLM or KSM key.
    pub const KLM: u32 = 0x10;
    /// Octwords, two pages each, of a key of pages: 128 GiB of 4 KiB pages. No capability says it.
    pub const MTT: u32 = 0x18;
    /// Protection, transport and XRC domains: each.
    pub const DOMAINS: u32 = 0x10;
    /// RSS tables.
    pub const RQT: u32 = 0x10;
    /// Entries of an RSS table.
    pub const RQT_SIZE: u32 = 0xb;
    /// Entries of a work queue.
    pub const WQ_SIZE: u32 = 0xf;
    /// Bytes of the largest receive entry.
    pub const RQ_STRIDE: u32 = 9;
    /// Bytes of the smallest receive entry; no maximum, in spite of the module's name.
    pub const RQ_STRIDE_MIN: u32 = 4;
    /// Bytes of a send basic block.
    pub const SQ_STRIDE: u32 = 6;
    /// Entries of a flow table. Nothing is stored for an entry that is not set.
    pub const FT_SIZE: u32 = 0x16;
    /// Flow tables.
    pub const FT_NUM: u32 = 0xa;
    /// Destinations of a flow table entry.
    pub const DESTINATIONS: u32 = 6;
    /// Counters of a flow table entry.
    pub const COUNTERS: u32 = 4;
    /// Flow counters that one query reads: those of a bulk. A driver that reads from a multiple of
    /// four on, as Linux does, needs at least 2.
    pub const FLOW_COUNTER_BULK: u32 = 9;
    /// Unicast addresses of the vport.
    pub const UC_LIST: u32 = 7;
    /// Multicast addresses of the vport; the list size field has 12 bits.
    pub const MC_LIST: u32 = 0xb;
    /// VLANs of the vport; the list size field has 12 bits.
    pub const VLAN_LIST: u32 = 0xb;
}

/// Memory of the device. Source: reference 4.12.
pub mod memic {
    use std::ops::Range;

    /// Part of the BAR that shows it: as much as Linux has numbers for pages of it.
    pub const BAR: Range<u64> = (31 << 20)..(32 << 20);
    /// Bytes of it, and of the largest piece.
    pub const BYTES: u32 = 128 << 10;
    /// Log2 of the bytes of the smallest piece, of which others are multiples.
    pub const LOG_UNIT: u32 = 6;
    /// Bytes of the smallest piece.
    pub const UNIT: u32 = 1 << LOG_UNIT;
    /// Log2 of the largest alignment in units: a page of the BAR.
    pub const LOG_MAX_ALIGNMENT: u32 = 6;
}

/// Log2 of the user contexts, and of the memory objects that they make: each.
const LOG_MAX_UCTX: u32 = 0xc;
const LOG_MAX_UMEM: u32 = 0x10;

/// Highest level of a flow table. Source: reference 3.9 (Linux needs 58).
pub const MAX_FT_LEVEL: u32 = 0x7f;

/// Entries of the RoCE address table. Source: reference 5.11.
pub const ROCE_ADDRESSES: u32 = 0x100;

/// Queue pairs of a multicast group. Source: reference 5.10.
pub const MAX_QP_MCG: u32 = 0x30;

/// Log2 of the multicast groups. Source: reference 5.10.
const LOG_MAX_MCG: u32 = 0x15;

/// What user contexts may ask for.
pub const UCTX_CAP: u32 = uctx_cap::RAW_TX | uctx_cap::INTERNAL_DEV_RES;

/// Number of flow counters.
pub const MAX_FLOW_COUNTERS: u32 = 0x1000;

/// Sizes of a bulk of flow counters: 512, and no other.
pub const FLOW_COUNTER_BULK: u32 = 1 << 2;

/// Number of Q counter sets: the set id has 8 bits.
pub const MAX_Q_COUNTERS: u32 = 0xff;

/// Log2 of the BAR in MiB. Source: reference 1.3.
const UAR_SZ: u32 = 5;

/// The pages of one device.
#[derive(Debug)]
pub struct Caps {
    pages: Vec<Page>,
}

#[derive(Debug)]
struct Page {
    kind: u32,
    max: Box<CapPage>,
    cur: Box<CapPage>,
}

/// Fields of the general page that SET_HCA_CAP may change, up to their maximum.
///
/// Source: reference 3.2.
const SETTABLE: &[&str] = &[
    "log_max_qp",
    "pkey_table_size",
    "cmdif_checksum",
    "log_uar_page_sz",
    "cache_line_128byte",
    "num_vhca_ports",
    "log_max_current_uc_list",
    "dct",
    "roce",
];

/// Fields of other pages that SET_HCA_CAP may change.
const SETTABLE_ELSEWHERE: &[&str] = &["sw_r_roce_src_udp_port", "atomic_req_8b_endianness_mode"];

impl Caps {
    /// The capabilities of a device after power-on.
    #[must_use]
    pub fn new(config: &NicConfig) -> Self {
        let general = general(config);
        let mut pages = vec![
            Page::new(cap_type::GENERAL, general.as_bytes()),
            Page::new(cap_type::ETHERNET_OFFLOADS, ethernet().as_bytes()),
            Page::new(cap_type::NIC_FLOW_TABLE, &flow_tables()),
            // Not advertised; rdma-core's direct rules and its tests ask all the same, and want a
            // register that a flow meter would use before they look for one.
            Page::new(cap_type::QOS, QosCap::zeroed().with_flow_meter_reg_id(1 << 2).as_bytes()),
            // They ask for this one, too, whether there is memory or not.
            Page::new(cap_type::DEVICE_MEMORY, device_memory(config).as_bytes()),
        ];
        if config.roce {
            pages.push(atomic_page());
            pages.push(roce_page());
        }
        for other in &config.cap_pages {
            pages.retain(|page| page.kind != other.kind);
            let (max, cur) = (other.max.clone(), other.cur.clone());
            pages.push(Page { kind: other.kind, max, cur });
        }
        Self { pages }
    }

    /// A page, or `None` when the device has no such page.
    #[must_use]
    pub fn page(&self, kind: u32, current: bool) -> Option<&CapPage> {
        let page = self.pages.iter().find(|page| page.kind == kind)?;
        Some(if current { &page.cur } else { &page.max })
    }

    /// Whether 8-byte atomics are in the byte order of the host.
    #[must_use]
    pub fn host_order_atomics(&self) -> bool {
        self.page(cap_type::ATOMIC, true)
            .and_then(|page| AtomicCap::read_from(page))
            .is_some_and(|cap| cap.atomic_req_8b_endianness_mode() == 1)
    }

    /// Whether the driver chooses the UDP ports that RoCE's packets come from.
    #[must_use]
    pub fn takes_udp_ports(&self) -> bool {
        self.page(cap_type::ROCE, true)
            .and_then(|page| RoceCap::read_from(page))
            .is_some_and(|cap| cap.sw_r_roce_src_udp_port())
    }

    /// The general page as set.
    ///
    /// # Panics
    ///
    /// Never: every device has this page.
    #[must_use]
    pub fn general(&self) -> HcaCap {
        let page = self.page(cap_type::GENERAL, true).expect("every device has a general page");
        HcaCap::read_from(page).expect("a page is longer than the structure")
    }

    /// SET_HCA_CAP: takes a page, if it only changes what may be changed.
    ///
    /// Of the atomic page Linux gives only what it sets: there zero stands for "as it is".
    pub(crate) fn set(&mut self, kind: u32, new: &CapPage) -> Answer<()> {
        let page = self.pages.iter_mut().find(|page| page.kind == kind);
        let page = page.ok_or_else(|| Refused::param("op_mod", kind, "no such capability page"))?;
        let fields = fields(kind);
        let mut expected = *page.cur;
        for field in fields {
            let value = bits(new, field);
            if value == bits(page.cur.as_slice(), field) {
                continue;
            }
            let settable = SETTABLE.contains(&field.name);
            let elsewhere = kind != cap_type::GENERAL && SETTABLE_ELSEWHERE.contains(&field.name);
            if kind == cap_type::ATOMIC && !elsewhere && value == 0 {
                continue;
            }
            ensure(settable || elsewhere, || {
                Refused::param(field.name, value, "the capability cannot be changed")
            })?;
            ensure(value <= bits(page.max.as_slice(), field), || {
                Refused::param(field.name, value, "above the maximum capability")
            })?;
            copy_bits(&mut expected, new, field);
        }
        let mut named = *page.cur;
        for field in fields {
            copy_bits(&mut named, new, field);
        }
        if let Some(at) = named.iter().zip(new).position(|(old, new)| old != new) {
            return Err(Refused::param("capability offset", at as u64, "a reserved bit changed"));
        }
        *page.cur = expected;
        Ok(())
    }

    /// A reset: what was set is forgotten.
    pub(crate) fn reset(&mut self, config: &NicConfig) {
        *self = Self::new(config);
    }
}

impl Page {
    fn new(kind: u32, content: &[u8]) -> Self {
        let mut max = Box::new([0; CAP_PAGE_BYTES]);
        max[..content.len()].copy_from_slice(content);
        Self { kind, cur: max.clone(), max }
    }
}

fn fields(kind: u32) -> &'static [Field] {
    match kind {
        cap_type::GENERAL => HcaCap::FIELDS,
        cap_type::ETHERNET_OFFLOADS => EthCap::FIELDS,
        cap_type::ATOMIC => AtomicCap::FIELDS,
        cap_type::ROCE => RoceCap::FIELDS,
        _ => &[],
    }
}

/// Value of a field of at most 64 bits; longer ones give their first 64.
fn bits(page: &[u8], field: &Field) -> u64 {
    let last = field.first_bit + field.width_bits.min(64);
    (field.first_bit..last)
        .fold(0, |value, bit| value << 1 | u64::from(page[bit / 8] >> (7 - bit % 8) & 1))
}

fn copy_bits(to: &mut [u8], from: &[u8], field: &Field) {
    for bit in field.first_bit..field.first_bit + field.width_bits {
        let mask = 0x80 >> (bit % 8);
        to[bit / 8] = to[bit / 8] & !mask | from[bit / 8] & mask;
    }
}

/// Limits of the object tables, as the pages advertise them.
#[must_use]
pub fn object_limits() -> ObjectLimits {
    ObjectLimits {
        // The BAR has 2^(20 + UAR_SZ - 12) pages; the first 16 and those of device memory, a
        // MiB at its end, are no UAR pages.
        uars: (1 << (8 + UAR_SZ)) - 0x10 - 0x100,
        eqs: 1 << log_max::EQ,
        domains: 1 << log_max::DOMAINS,
        mkeys: 1 << log_max::MKEY,
        cqs: 1 << log_max::CQ,
        queues: 1 << log_max::QUEUES,
        rqts: 1 << log_max::RQT,
        flow_tables: 1 << log_max::FT_NUM,
        flow_groups: 1 << 16,
        flow_counters: MAX_FLOW_COUNTERS,
        q_counters: MAX_Q_COUNTERS,
        user_contexts: 1 << LOG_MAX_UCTX,
        umems: 1 << LOG_MAX_UMEM,
    }
}

fn general(config: &NicConfig) -> HcaCap {
    let cap = HcaCap::zeroed()
        .with_log_max_qp_sz(0xf)
        .with_log_max_cq_sz(log_max::CQ_SIZE)
        .with_log_max_cq(log_max::CQ + 1)
        .with_log_max_eq_sz(log_max::EQ_SIZE)
        .with_log_max_mkey(log_max::MKEY + 1)
        .with_log_max_eq(log_max::EQ)
        .with_max_indirection(MAX_INDIRECTION)
        .with_log_max_mrw_sz(0x40)
        .with_force_teardown(true)
        .with_log_max_klm_list_size(log_max::KLM)
        .with_end_pad(true)
        .with_vport_counters(true)
        .with_max_qp_cnt(MAX_Q_COUNTERS)
        .with_nic_flow_table(true)
        .with_local_ca_ack_delay(0x10)
        .with_port_type(1)
        .with_num_ports(1)
        .with_log_max_msg(0x1e)
        .with_max_tc(8)
        .with_stat_rate_support(1)
        .with_cqe_version(1)
        .with_cmdif_checksum(0)
        .with_eth_net_offloads(true)
        .with_striding_rq(true)
        .with_log_max_transport_domain(log_max::DOMAINS)
        .with_log_max_pd(log_max::DOMAINS)
        .with_log_max_xrcd(log_max::DOMAINS);
    let cap = general_user(general_queues(general_cq(cap)));
    let cap = cap.with_device_memory(has_device_memory(config));
    if config.roce { general_roce(cap) } else { cap }
}

/// Whether the device has memory to lend: what is known of it is known of physical functions.
fn has_device_memory(config: &NicConfig) -> bool {
    config.roce && !config.identity.is_vf()
}

fn device_memory(config: &NicConfig) -> DeviceMemCap {
    if !has_device_memory(config) {
        return DeviceMemCap::zeroed();
    }
    DeviceMemCap::zeroed()
        .with_memic(true)
        .with_log_min_memic_alloc_size(memic::LOG_UNIT)
        .with_log_max_memic_addr_alignment(memic::LOG_MAX_ALIGNMENT)
        .with_memic_bar_start_addr(memic::BAR.start)
        .with_memic_bar_size(u32::try_from(memic::BAR.end - memic::BAR.start).unwrap_or(0))
        .with_max_memic_size(memic::BYTES)
}

fn general_cq(cap: HcaCap) -> HcaCap {
    cap.with_cq_oi(true)
        .with_cq_resize(true)
        .with_cq_moderation(true)
        .with_cq_period_mode_modify(true)
        .with_cq_eq_remap(true)
        .with_cq_period_start_from_cqe(true)
        .with_cqe_compression(true)
        .with_mini_cqe_resp_stride_index(true)
        .with_cqe_compression_timeout(8)
        .with_cqe_compression_max_num(0x10)
}

fn general_queues(cap: HcaCap) -> HcaCap {
    cap.with_uar_sz(UAR_SZ)
        .with_log_pg_sz(0xc)
        .with_bf(true)
        .with_driver_version(true)
        .with_log_bf_reg_size(9)
        .with_max_wqe_sz_sq(0x400)
        .with_max_wqe_sz_rq(0x200)
        .with_max_flow_counter_15_0(MAX_FLOW_COUNTERS)
        .with_flow_counter_bulk_alloc(FLOW_COUNTER_BULK)
        .with_log_max_flow_counter_bulk(log_max::FLOW_COUNTER_BULK)
        .with_log_max_rq(log_max::QUEUES)
        .with_log_max_sq(log_max::QUEUES)
        .with_log_max_tir(log_max::QUEUES)
        .with_log_max_tis(log_max::QUEUES)
        .with_basic_cyclic_rcv_wqe(true)
        .with_log_max_rmp(log_max::QUEUES)
        .with_log_max_rqt(log_max::RQT)
        .with_log_max_rqt_size(log_max::RQT_SIZE)
        .with_log_max_stride_sz_rq(log_max::RQ_STRIDE)
        .with_log_min_stride_sz_rq(log_max::RQ_STRIDE_MIN)
        .with_log_max_stride_sz_sq(log_max::SQ_STRIDE)
        .with_log_min_stride_sz_sq(log_max::SQ_STRIDE)
        .with_log_max_wq_sz(log_max::WQ_SIZE)
        .with_disable_local_lb_uc(true)
        .with_disable_local_lb_mc(true)
        .with_log_max_vlan_list(log_max::VLAN_LIST)
        .with_log_max_current_mc_list(log_max::MC_LIST)
        .with_log_max_current_uc_list(log_max::UC_LIST)
        .with_device_frequency_mhz(CLOCK_KHZ / 1000)
        .with_device_frequency_khz(CLOCK_KHZ)
        .with_num_of_uars_per_page(1)
}

/// User contexts (DevX) and what is made for them. Source: `MLX5_OBJ_TYPE_UCTX`, `_UMEM`.
fn general_user(cap: HcaCap) -> HcaCap {
    cap.with_log_max_uctx(LOG_MAX_UCTX)
        .with_log_max_umem(LOG_MAX_UMEM)
        .with_umem_uid_0(true)
        .with_general_obj_types(1 << 0 | 1 << 1)
        .with_uctx_cap(UCTX_CAP)
}

fn general_roce(cap: HcaCap) -> HcaCap {
    cap.with_log_max_qp(0x12)
        .with_log_max_srq(0x12)
        .with_log_max_srq_sz(0xf)
        .with_out_of_seq_cnt(true)
        .with_retransmission_q_counters(true)
        .with_modify_rq_counter_set_id(true)
        .with_enhanced_error_q_counters(true)
        .with_max_qp_mcg(MAX_QP_MCG)
        .with_log_max_mcg(LOG_MAX_MCG)
        .with_log_max_ra_req_qp(4)
        .with_log_max_ra_res_qp(4)
        .with_compact_address_vector(true)
        .with_roce(true)
        .with_atomic(true)
        .with_cc_query_allowed(true)
        .with_cc_modify_allowed(true)
        .with_sctr_data_cqe(true)
        .with_umr_ptr_rlky(true)
        .with_imaicl(true)
        .with_block_lb_mc(true)
        .with_qkv(true)
        .with_pkv(true)
        .with_xrc(true)
        .with_ud(true)
        .with_uc(true)
        .with_rc(true)
}

fn ethernet() -> EthCap {
    EthCap::zeroed()
        .with_csum_cap(true)
        .with_vlan_cap(true)
        .with_wqe_vlan_insert(true)
        .with_self_lb_en_modifiable(true)
        .with_max_lso_cap(0x12)
        .with_wqe_inline_mode(2)
        .with_rss_ind_tbl_cap(0xb)
        .with_multi_pkt_send_wqe(1)
        .with_enhanced_multi_pkt_send_wqe(true)
}

/// Match fields of receive tables: word 0 of `ft_field_support`. Source: reference 5.11. What is
/// compared and has no bit there: the kind of the first tag, and the length of the IPv4 header.
///
/// Bits: 31 dmac, 30 smac, 29 ether_type, 28 ip_version, 27 first_prio, 26 first_cfi, 25 first_vid,
/// 24 ipv4_ttl, 19 sip, 18 dip, 17 frag, 16 ip_protocol, 15 ip_ecn, 14 ip_dscp, 13 udp_sport,
/// 12 udp_dport, 11 tcp_sport, 10 tcp_dport, 9 tcp_flags.
const MATCH_FIELDS: u32 = 0xff0f_fe00;

fn flow_tables() -> CapPage {
    let mut fields = [0; 16];
    fields[..4].copy_from_slice(&MATCH_FIELDS.to_be_bytes());
    let receive = FlowTableProps::zeroed()
        .with_ft_support(true)
        .with_flow_counter(true)
        .with_flow_modify_en(true)
        .with_modify_root(true)
        .with_identified_miss_table_mode(true)
        .with_flow_table_modify(true)
        .with_log_max_ft_size(log_max::FT_SIZE)
        .with_max_ft_level(MAX_FT_LEVEL)
        .with_log_max_ft_num(log_max::FT_NUM)
        .with_log_max_flow_counter(log_max::COUNTERS)
        .with_log_max_destination(log_max::DESTINATIONS)
        .with_log_max_flow(0x16)
        .with_ft_field_support(fields)
        .with_ft_field_bitmask_support(fields);
    let mut page = [0; CAP_PAGE_BYTES];
    receive.write_to(&mut page[nic_flow_table::NIC_RECEIVE..]);
    page
}

/// Compare-and-swap and fetch-and-add of eight bytes, big-endian until the driver chooses; with
/// masks of four and eight.
///
/// Unlike TRACE the driver may choose the host's byte order: without it Linux offers no atomics.
fn atomic_page() -> Page {
    let cap = AtomicCap::zeroed()
        .with_supported_atomic_req_8b_endianness_mode_1(true)
        .with_atomic_operations(0xf)
        .with_atomic_size_qp(0xc);
    let mut page = Page::new(cap_type::ATOMIC, cap.as_bytes());
    let max = cap.with_atomic_req_8b_endianness_mode(1);
    page.max[..AtomicCap::SIZE_BYTES].copy_from_slice(max.as_bytes());
    page
}

/// The driver may choose the UDP ports that packets come from, and has to say so.
fn roce_page() -> Page {
    let cap = RoceCap::zeroed()
        .with_l3_type(0x6)
        .with_roce_version(0x5)
        .with_r_roce_dest_udp_port(4791)
        .with_r_roce_max_src_udp_port(0xffff)
        .with_r_roce_min_src_udp_port(0xc000)
        .with_roce_address_table_size(ROCE_ADDRESSES);
    let mut page = Page::new(cap_type::ROCE, cap.as_bytes());
    let max = cap.with_sw_r_roce_src_udp_port(true);
    page.max[..RoceCap::SIZE_BYTES].copy_from_slice(max.as_bytes());
    page
}
