//! Offload flags, packet types and lengths: findings about received packets, requests for those to
//! send.

use bitflags::bitflags;

/// Position of the packet type in the word of flags that a header holds.
pub(crate) const PACKET_TYPE_SHIFT: u32 = 24;
const _: () = assert!(OlFlags::all().bits() < 1 << PACKET_TYPE_SHIFT);

bitflags! {
    /// Flags of a packet: results of receiving in the low half, requests for sending in the high
    /// half: what DPDK calls `ol_flags`. Without a `GOOD` or `BAD` bit, the device did not check
    /// that checksum.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    #[doc(alias = "ol_flags")]
    pub struct OlFlags: u32 {
        /// `rss_hash` is valid.
        const RX_RSS_HASH = 1 << 0;
        /// The packet had a VLAN tag, and `vlan_tci` holds its tag control information.
        const RX_VLAN = 1 << 2;
        /// The VLAN tag was taken out of the data.
        const RX_VLAN_STRIPPED = 1 << 3;
        /// The IPv4 header checksum is right.
        const RX_IP_CSUM_GOOD = 1 << 4;
        /// The IPv4 header checksum is wrong.
        const RX_IP_CSUM_BAD = 1 << 5;
        /// The TCP or UDP checksum is right.
        const RX_L4_CSUM_GOOD = 1 << 6;
        /// The TCP or UDP checksum is wrong.
        const RX_L4_CSUM_BAD = 1 << 7;
        /// The device noted when the packet came: `rx_timestamp` is valid.
        const RX_TIMESTAMP = 1 << 8;
        /// Fill in the IPv4 header checksum.
        const TX_IP_CSUM = 1 << 16;
        /// Fill in the TCP or UDP checksum.
        const TX_L4_CSUM = 1 << 17;
        /// Insert a VLAN tag with `vlan_tci`.
        const TX_VLAN_INSERT = 1 << 18;
        /// Cut the payload into TCP segments; the lengths say how.
        const TX_TSO = 1 << 19;
        /// Note when the device has sent the packet, by the name that `tx_id` gives it.
        const TX_TIMESTAMP = 1 << 20;
    }
}

/// Layer 3 and layer 4 of a received packet as the device recognised them. Open: a value that has
/// no constant here is kept as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PacketType(pub u8);

impl PacketType {
    /// Bits of layer 3.
    pub const L3_MASK: u8 = 0x03;
    /// IPv4.
    pub const L3_IPV4: u8 = 0x01;
    /// IPv6.
    pub const L3_IPV6: u8 = 0x02;
    /// Bits of layer 4.
    pub const L4_MASK: u8 = 0x1c;
    /// TCP.
    pub const L4_TCP: u8 = 0x04;
    /// UDP.
    pub const L4_UDP: u8 = 0x08;
    /// A fragment of an IP packet.
    pub const L4_FRAGMENT: u8 = 0x0c;
    /// IPsec ESP or AH.
    pub const L4_IPSEC: u8 = 0x10;
    /// The packet is encapsulated, and the other bits speak of the outer headers.
    pub const TUNNELED: u8 = 0x20;

    /// The bits of layer 3.
    #[must_use]
    pub const fn l3(self) -> u8 {
        self.0 & Self::L3_MASK
    }

    /// The bits of layer 4.
    #[must_use]
    pub const fn l4(self) -> u8 {
        self.0 & Self::L4_MASK
    }
}

/// Metadata of a received packet out of its completion, for [`crate::Mbuf::init_rx`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RxMeta {
    /// Which of the fields are valid, and the state of the checksums.
    pub flags: OlFlags,
    /// RSS hash, host order.
    pub rss_hash: u32,
    /// Mark of the rule that matched, 24 bits, host order; 0 for none.
    pub flow_mark: u32,
    /// VLAN tag control information, host order.
    pub vlan_tci: u16,
    /// Layers that the device recognised.
    pub packet_type: PacketType,
}

/// Mark, flags and packet type of received packets that have them in common, as a header holds
/// them: see [`crate::Mbuf::set_marks`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Marks(u64);

impl Marks {
    /// Those of what is known about a packet.
    #[must_use]
    pub fn of(meta: &RxMeta) -> Self {
        let packet_type = u32::from(meta.packet_type.0) << PACKET_TYPE_SHIFT;
        let [a, b, c, d] = meta.flow_mark.to_be_bytes();
        let [e, f, g, h] = (meta.flags.bits() | packet_type).to_ne_bytes();
        Self(u64::from_ne_bytes([a, b, c, d, e, f, g, h]))
    }
}

/// Lengths that segmentation offload needs, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TxLengths {
    /// Ethernet header with its VLAN tags.
    pub l2_len: u8,
    /// IP header with its options or extension headers.
    pub l3_len: u16,
    /// TCP header with its options.
    pub l4_len: u8,
    /// Payload bytes of each segment but the last. Source: RFC 9293, §3.7.1.
    pub tso_mss: u16,
}
