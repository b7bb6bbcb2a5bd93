//! [`FlowMatch`]: what packets of a rule are like, in layers 2 to 4.

use std::net::{Ipv4Addr, Ipv6Addr};

use ferrocx_net::ether::{self, MacAddr};
use ferrocx_net::ip;
use ferrocx_prm::flow::FlowMatchLyr24;

use crate::error::ConfigError;

/// A value of which only the bits of the mask are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Masked<T> {
    /// The value; bits outside the mask must be 0.
    pub value: T,
    /// The bits that are compared.
    pub mask: T,
}

macro_rules! exact {
    ($($t:ty: $ones:expr;)*) => { $(
        impl From<$t> for Masked<$t> {
            /// Compares every bit.
            fn from(value: $t) -> Self {
                Self { value, mask: $ones }
            }
        }
    )* };
}
exact! {
    u8: u8::MAX;
    u16: u16::MAX;
    MacAddr: MacAddr::BROADCAST;
    Ipv4Addr: Ipv4Addr::BROADCAST;
    Ipv6Addr: Ipv6Addr::from_bits(u128::MAX);
}

/// Addresses of IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ipv4Match {
    /// Source address.
    pub source: Option<Masked<Ipv4Addr>>,
    /// Destination address.
    pub destination: Option<Masked<Ipv4Addr>>,
}

/// Addresses of IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ipv6Match {
    /// Source address.
    pub source: Option<Masked<Ipv6Addr>>,
    /// Destination address.
    pub destination: Option<Masked<Ipv6Addr>>,
}

/// What a packet must be like: all fields that are set. The default matches everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[doc(alias = "rte_flow_item")]
pub struct FlowMatch {
    /// Source MAC.
    pub source_mac: Option<Masked<MacAddr>>,
    /// Destination MAC.
    pub destination_mac: Option<Masked<MacAddr>>,
    /// Ethertype, behind VLAN tags.
    pub ethertype: Option<u16>,
    /// VLAN id: `Some(None)` for packets without a tag.
    pub vlan: Option<Option<u16>>,
    /// IPv4 with these addresses; excludes `ipv6`.
    pub ipv4: Option<Ipv4Match>,
    /// IPv6 with these addresses; excludes `ipv4`.
    pub ipv6: Option<Ipv6Match>,
    /// IP protocol; needs `ipv4` or `ipv6`. 6 (TCP) or 17 (UDP) for ports.
    pub ip_protocol: Option<u8>,
    /// Source port.
    pub source_port: Option<Masked<u16>>,
    /// Destination port.
    pub destination_port: Option<Masked<u16>>,
}

impl FlowMatch {
    /// Mask and value as the device wants them.
    pub(super) fn encode(
        &self,
        by_version: bool,
    ) -> Result<(FlowMatchLyr24, FlowMatchLyr24), ConfigError> {
        let conflict = |what| Err(ConfigError::Conflict { what });
        if self.ipv4.is_some() && self.ipv6.is_some() {
            return conflict("a rule cannot match IPv4 and IPv6 at once; make two rules");
        }
        let ip = self.ipv4.is_some() || self.ipv6.is_some();
        if self.ip_protocol.is_some() && !ip {
            return conflict("a rule with an IP protocol needs ipv4 or ipv6; set one of them");
        }
        if ip && self.ethertype.is_some() {
            return conflict("ipv4 and ipv6 imply the ethertype; leave the ethertype out");
        }
        let ports = self.source_port.is_some() || self.destination_port.is_some();
        if ports && !matches!(self.ip_protocol, Some(ip::TCP | ip::UDP)) {
            return conflict("a rule with ports needs ip_protocol 6 (TCP) or 17 (UDP); set it");
        }
        let mask = self.part(true, by_version);
        let value = self.part(false, by_version);
        if value.0.iter().zip(&mask.0).any(|(value, mask)| value & !mask != 0) {
            return conflict("a value of the rule has bits outside its mask; clear them");
        }
        Ok((mask, value))
    }

    /// The mask, or the value.
    fn part(&self, mask: bool, by_version: bool) -> FlowMatchLyr24 {
        fn side<T: Copy>(masked: Masked<T>, mask: bool) -> T {
            if mask { masked.mask } else { masked.value }
        }
        let number = |value: u32, ones: u32| if mask { ones } else { value };
        let mut out = FlowMatchLyr24::zeroed();
        if let Some(mac) = self.source_mac {
            let (high, low) = words(side(mac, mask));
            out = out.with_smac_47_16(high).with_smac_15_0(low);
        }
        if let Some(mac) = self.destination_mac {
            let (high, low) = words(side(mac, mask));
            out = out.with_dmac_47_16(high).with_dmac_15_0(low);
        }
        if let Some(ethertype) = self.ethertype {
            out = out.with_ethertype(number(ethertype.into(), 0xffff));
        }
        if let Some(vlan) = self.vlan {
            out = out.with_cvlan_tag(mask || vlan.is_some());
            out = out.with_first_vid(vlan.map_or(0, |id| number(id.into(), 0xfff)));
        }
        let version = self.ipv4.map(|_| (4, ether::IPV4));
        if let Some((version, ethertype)) = version.or(self.ipv6.map(|_| (6, ether::IPV6))) {
            out = match by_version {
                true => out.with_ip_version(number(version, 0xf)),
                false => out.with_ethertype(number(ethertype.into(), 0xffff)),
            };
        }
        let padded = |address: Masked<Ipv4Addr>| {
            let [a, b, c, d] = side(address, mask).octets();
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]
        };
        let octets = |address: Masked<Ipv6Addr>| side(address, mask).octets();
        let v4 = self.ipv4.map(|ip| (ip.source.map(padded), ip.destination.map(padded)));
        let v6 = self.ipv6.map(|ip| (ip.source.map(octets), ip.destination.map(octets)));
        let (source, destination) = v4.or(v6).unwrap_or_default();
        out = out
            .with_src_ipv4_src_ipv6(source.unwrap_or_default())
            .with_dst_ipv4_dst_ipv6(destination.unwrap_or_default())
            .with_ip_protocol(self.ip_protocol.map_or(0, |id| number(id.into(), 0xff)));
        let udp = self.ip_protocol == Some(ip::UDP);
        if let Some(port) = self.source_port {
            let port = u32::from(side(port, mask));
            out = if udp { out.with_udp_sport(port) } else { out.with_tcp_sport(port) };
        }
        if let Some(port) = self.destination_port {
            let port = u32::from(side(port, mask));
            out = if udp { out.with_udp_dport(port) } else { out.with_tcp_dport(port) };
        }
        out
    }
}

/// The first four bytes of an address and the last two, as matches have them.
pub(super) fn words(mac: MacAddr) -> (u32, u32) {
    let [a, b, c, d, e, f] = mac.0;
    (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([0, 0, e, f]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn match_is_literal() {
        let matches = FlowMatch {
            source_mac: Some(MacAddr([1, 2, 3, 4, 5, 6]).into()),
            vlan: Some(Some(0x123)),
            ipv4: Some(Ipv4Match {
                source: None,
                destination: Some(Masked {
                    value: Ipv4Addr::new(10, 1, 0, 0),
                    mask: Ipv4Addr::new(255, 255, 0, 0),
                }),
            }),
            ip_protocol: Some(17),
            destination_port: Some(4791.into()),
            ..FlowMatch::default()
        };
        let (mask, value) = matches.encode(true).unwrap();
        let mut expected = [0; 0x40];
        expected[..6].copy_from_slice(&[1, 2, 3, 4, 5, 6]);
        expected[0x0e..0x10].copy_from_slice(&[0x01, 0x23]);
        expected[0x10..0x14].copy_from_slice(&[17, 0, 0x88, 0]); // UDP, C-tag, version 4
        expected[0x1e..0x20].copy_from_slice(&[0x12, 0xb7]);
        expected[0x3c..].copy_from_slice(&[10, 1, 0, 0]);
        assert_eq!(value.0, expected);
        let mut expected = [0; 0x40];
        expected[..6].fill(0xff);
        expected[0x0e..0x10].copy_from_slice(&[0x0f, 0xff]);
        expected[0x10..0x14].copy_from_slice(&[0xff, 0, 0x9e, 0]);
        expected[0x1e..0x20].fill(0xff);
        expected[0x3c..].copy_from_slice(&[255, 255, 0, 0]);
        assert_eq!(mask.0, expected);
    }

    #[test]
    fn contradictions_are_refused_in_words() {
        let ip = FlowMatch { ip_protocol: Some(6), ..FlowMatch::default() };
        assert!(ip.encode(true).unwrap_err().to_string().contains("needs ipv4 or ipv6"));
        let both = FlowMatch {
            ipv4: Some(Ipv4Match::default()),
            ipv6: Some(Ipv6Match::default()),
            ..FlowMatch::default()
        };
        assert!(both.encode(true).is_err());
        let port = FlowMatch { source_port: Some(1.into()), ..FlowMatch::default() };
        assert!(port.encode(true).is_err());
        let outside = FlowMatch {
            destination_mac: Some(Masked {
                value: MacAddr([1, 0, 0, 0, 0, 1]),
                mask: MacAddr([1, 0, 0, 0, 0, 0]),
            }),
            ..FlowMatch::default()
        };
        assert!(outside.encode(true).is_err());
        assert!(FlowMatch::default().encode(true).is_ok());
    }
}
