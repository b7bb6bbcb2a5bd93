//! Types of traffic, and the entries of a table that tells them apart.

use std::ops::RangeInclusive;

use ferrocx_net::ip;
use ferrocx_prm::flow::FlowMatchLyr24;

use super::matches::{FlowMatch, Ipv4Match, Ipv6Match};
use crate::error::ConfigError;

/// Kinds of traffic that lead to a TIR each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrafficType {
    /// TCP over IPv4.
    TcpV4,
    /// UDP over IPv4.
    UdpV4,
    /// TCP over IPv6.
    TcpV6,
    /// UDP over IPv6.
    UdpV6,
    /// IPv4 with another protocol, and fragments.
    IpV4,
    /// IPv6 with another protocol, and fragments.
    IpV6,
    /// Everything that is not IP.
    Any,
}

impl TrafficType {
    /// All of them in the order of the flow table: the first match wins.
    pub const ALL: [Self; 7] =
        [Self::TcpV4, Self::UdpV4, Self::TcpV6, Self::UdpV6, Self::IpV4, Self::IpV6, Self::Any];

    /// The type that all packets are of that match, where it is one.
    pub(super) fn of(matches: &FlowMatch) -> Option<Self> {
        Some(match (matches.ip_protocol?, matches.ipv6.is_some()) {
            (ip::TCP, false) => Self::TcpV4,
            (ip::UDP, false) => Self::UdpV4,
            (ip::TCP, true) => Self::TcpV6,
            (ip::UDP, true) => Self::UdpV6,
            (_, false) => Self::IpV4,
            (_, true) => Self::IpV6,
        })
    }

    /// Which packets these are.
    fn matches(self) -> FlowMatch {
        let (v4, v6) = (Some(Ipv4Match::default()), Some(Ipv6Match::default()));
        let (ipv4, ipv6, ip_protocol) = match self {
            Self::TcpV4 => (v4, None, Some(ip::TCP)),
            Self::UdpV4 => (v4, None, Some(ip::UDP)),
            Self::TcpV6 => (None, v6, Some(ip::TCP)),
            Self::UdpV6 => (None, v6, Some(ip::UDP)),
            Self::IpV4 => (v4, None, None),
            Self::IpV6 => (None, v6, None),
            Self::Any => (None, None, None),
        };
        FlowMatch { ipv4, ipv6, ip_protocol, ..FlowMatch::default() }
    }
}

/// log2 of the places in a table that tells types of traffic apart.
pub(super) const LOG_ENTRIES: u32 = 3;

/// The groups of such a table: what is compared, and the places.
pub(super) fn groups(
    by_version: bool,
) -> Result<[(FlowMatchLyr24, RangeInclusive<u32>); 3], ConfigError> {
    let (l4, _) = TrafficType::TcpV4.matches().encode(by_version)?;
    let (l3, _) = TrafficType::IpV4.matches().encode(by_version)?;
    Ok([(l4, 0..=3), (l3, 4..=5), (FlowMatchLyr24::zeroed(), 6..=6)])
}

/// Its entries, by place: which of [`groups`], and the value.
pub(super) fn values(
    by_version: bool,
) -> Result<[(usize, FlowMatchLyr24); TrafficType::ALL.len()], ConfigError> {
    let mut values = [(0, const { FlowMatchLyr24::zeroed() }); TrafficType::ALL.len()];
    let of_groups = [0, 0, 0, 0, 1, 1, 2];
    for ((traffic, group), value) in TrafficType::ALL.into_iter().zip(of_groups).zip(&mut values) {
        *value = (group, traffic.matches().encode(by_version)?.1);
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_are_literal() {
        let (mask, value) = TrafficType::UdpV6.matches().encode(true).unwrap();
        assert_eq!(value.0[0x10..0x14], [17, 0, 0x0c, 0]);
        assert_eq!(mask.0[0x10..0x14], [0xff, 0, 0x1e, 0]);
        let (_, value) = TrafficType::IpV4.matches().encode(false).unwrap();
        assert_eq!(value.0[0x04..0x08], [0, 0, 0x08, 0x00]);
        let nothing = FlowMatchLyr24::zeroed();
        assert_eq!(TrafficType::Any.matches().encode(true).unwrap(), (nothing, nothing));
    }

    #[test]
    fn a_match_has_the_type_of_all_that_it_matches() {
        let v4 = FlowMatch { ipv4: Some(Ipv4Match::default()), ..FlowMatch::default() };
        let v6 = FlowMatch { ipv6: Some(Ipv6Match::default()), ..FlowMatch::default() };
        let of = |matches: FlowMatch, protocol| {
            TrafficType::of(&FlowMatch { ip_protocol: protocol, ..matches })
        };
        assert_eq!(of(v4, Some(ip::TCP)), Some(TrafficType::TcpV4));
        assert_eq!(of(v6, Some(ip::UDP)), Some(TrafficType::UdpV6));
        assert_eq!(of(v6, Some(ip::IGMP)), Some(TrafficType::IpV6));
        assert_eq!(of(v4, None), None, "TCP, UDP and others");
        assert_eq!(
            TrafficType::of(&FlowMatch { vlan: Some(Some(5)), ..FlowMatch::default() }),
            None
        );
    }
}
