//! IP protocol numbers, as `protocol` of IPv4 headers and `next header` of IPv6 headers hold them.
//! Source: IANA, "Protocol Numbers".

/// Options that every router on the way looks at; IPv6 only.
pub const HOP_BY_HOP: u8 = 0;
/// Control messages of IPv4, echo among them.
pub const ICMP: u8 = 1;
/// Membership of IPv4 multicast groups.
pub const IGMP: u8 = 2;
/// Streams.
pub const TCP: u8 = 6;
/// Datagrams.
pub const UDP: u8 = 17;
/// Control messages of IPv6: echo, neighbour discovery, membership of multicast groups.
pub const ICMPV6: u8 = 58;
