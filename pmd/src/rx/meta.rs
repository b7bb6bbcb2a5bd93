//! What a completion says about its packet.

use ferrocx_bus::Slot;
use ferrocx_mempool::{Mbuf, OlFlags, PacketType, RxMeta};
use ferrocx_prm::cqe::{Cqe64, l3_hdr_type, l4_hdr_type};

/// Which headers were hashed, in the word that says so.
const HASHED: u32 = Cqe64::RX_HASH_L3.mask() | Cqe64::RX_HASH_L4.mask();

/// Packet flags and type by the upper half of the CQE's word that has the VLAN tag: layer checks,
/// header types, fragment, tag. Type in the highest byte, as [`Mbuf`] stores it.
pub(super) static FLAGS: [u32; 2048] = flag_table();

/// Builds [`FLAGS`]. Source: reference 6.7, `hds_ip_ext` and `l4_l3_hdr_type`.
const fn flag_table() -> [u32; 2048] {
    let mut table = [0; 2048];
    let mut index = 0;
    while index < 2048 {
        let word = (index as u32) << u16::BITS;
        let (vlan, fragment) = (Cqe64::CV.get(word) != 0, Cqe64::IP_FRAG.get(word) != 0);
        let (l3, l4) = (Cqe64::L3_HDR_TYPE.get(word), Cqe64::L4_HDR_TYPE.get(word));
        let (l3_ok, l4_ok) = (Cqe64::L3_OK.get(word) != 0, Cqe64::L4_OK.get(word) != 0);
        let mut flags = 0;
        let mut kind = 0;
        if vlan {
            flags |= OlFlags::RX_VLAN.bits() | OlFlags::RX_VLAN_STRIPPED.bits();
        }
        // IPv6 has no header checksum.
        if l3 == l3_hdr_type::IPV4 {
            kind |= PacketType::L3_IPV4;
            flags |= if l3_ok {
                OlFlags::RX_IP_CSUM_GOOD.bits()
            } else {
                OlFlags::RX_IP_CSUM_BAD.bits()
            };
        } else if l3 == l3_hdr_type::IPV6 {
            kind |= PacketType::L3_IPV6;
        }
        if fragment {
            kind |= PacketType::L4_FRAGMENT;
        } else if l3 != 0 && l4 != 0 && l4 <= l4_hdr_type::TCP_ACK {
            kind |= if l4 == l4_hdr_type::UDP { PacketType::L4_UDP } else { PacketType::L4_TCP };
            flags |= if l4_ok {
                OlFlags::RX_L4_CSUM_GOOD.bits()
            } else {
                OlFlags::RX_L4_CSUM_BAD.bits()
            };
        }
        table[index] = flags | (kind as u32) << 24;
        index += 1;
    }
    table
}

/// Stores what a completion says about its packet, field by field.
#[inline(always)]
pub(super) fn describe(mbuf: &mut Mbuf, cqe: &Slot<'_, 64>) {
    let word = cqe.load_be32::<{ Cqe64::VLAN_INFO.offset }>();
    mbuf.set_vlan_tci(word as u16);
    let known = FLAGS[(word >> u16::BITS) as usize & (FLAGS.len() - 1)];
    mbuf.set_rss_hash_be(cqe.load_raw32::<{ Cqe64::RX_HASH_RESULT.offset }>());
    mbuf.set_flow_mark_be(cqe.load_raw32::<{ Cqe64::SOP_DROP_QPN.offset }>());
    let flags = (known & 0x00ff_ffff) | (is_hashed(cqe) * OlFlags::RX_RSS_HASH.bits());
    mbuf.set_rx_flags(OlFlags::from_bits_retain(flags), PacketType((known >> 24) as u8));
}

/// 1 if headers were hashed, else 0: by a carry, because a comparison would take a register more.
#[inline(always)]
fn is_hashed(cqe: &Slot<'_, 64>) -> u32 {
    const BITS_BE: u32 = HASHED.to_be();
    const ABOVE: u32 = BITS_BE.ilog2() + 1;
    let bits = u64::from(cqe.load_raw32::<{ Cqe64::RX_HASH_L4.offset }>() & BITS_BE);
    ((bits + ((1 << ABOVE) - 1)) >> ABOVE) as u32
}

/// Notes when the packet of a completion came.
#[inline(always)]
pub(super) fn stamp(mbuf: &mut Mbuf, cqe: &Slot<'_, 64>) {
    mbuf.set_rx_timestamp(cqe.load_be64::<{ Cqe64::TIMESTAMP.offset }>());
}

/// What a completion says about its packet.
pub(super) fn meta(cqe: &Slot<'_, 64>) -> RxMeta {
    let word = cqe.load_be32::<{ Cqe64::VLAN_INFO.offset }>();
    let known = FLAGS[(word >> u16::BITS) as usize & (FLAGS.len() - 1)];
    let mut flags = OlFlags::from_bits_retain(known & 0x00ff_ffff);
    flags.set(OlFlags::RX_RSS_HASH, cqe.load_be32::<{ Cqe64::RX_HASH_L4.offset }>() & HASHED != 0);
    RxMeta {
        flags,
        rss_hash: cqe.load_be32::<{ Cqe64::RX_HASH_RESULT.offset }>(),
        flow_mark: cqe.load_be32::<{ Cqe64::SOP_DROP_QPN.offset }>() & Cqe64::SOP_DROP_QPN.mask(),
        vlan_tci: word as u16,
        packet_type: PacketType((known >> 24) as u8),
    }
}
