//! Ethernet addresses and header, and the rewriting of the `mac` and `macswap` modes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

#[cfg(feature = "serde")]
use serde::{Serialize, Serializer};
use thiserror::Error;

/// Bytes of an Ethernet header without tags.
pub const HEADER_BYTES: usize = 14;
/// Ethertype of IPv4.
pub const IPV4: u16 = 0x0800;
/// Ethertype of ARP.
pub const ARP: u16 = 0x0806;
/// Ethertype of IPv6.
pub const IPV6: u16 = 0x86dd;
/// Tag protocol identifier of a customer's VLAN tag. Source: IEEE 802.1Q, table 9-1.
pub const VLAN: u16 = 0x8100;
/// Tag protocol identifier of a service provider's VLAN tag. Source: IEEE 802.1Q, table 9-1.
pub const SERVICE_VLAN: u16 = 0x88a8;
/// Bytes of a VLAN tag.
pub const TAG_BYTES: usize = 4;
/// Tags that are looked through; deeper frames count as another ethertype.
const MAX_TAGS: usize = 2;

/// A MAC address: the one type of the project, and of its applications.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// All stations.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether the group bit is set: multicast or broadcast.
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// The address of frames to a multicast group; `None` for any other address.
    #[must_use]
    pub const fn of_group(group: IpAddr) -> Option<Self> {
        match group {
            IpAddr::V4(ip) if ip.is_multicast() => Some(Self::of_ipv4_group(ip)),
            IpAddr::V6(ip) if ip.is_multicast() => Some(Self::of_ipv6_group(ip)),
            _ => None,
        }
    }

    /// The address of frames to an IPv4 group, which it shares with 31 others: 23 bits of `group`
    /// are in it. Source: RFC 1112 section 6.4.
    #[must_use]
    pub const fn of_ipv4_group(group: Ipv4Addr) -> Self {
        let [_, a, b, c] = group.octets();
        Self([0x01, 0x00, 0x5e, a & 0x7f, b, c])
    }

    /// The address of frames to an IPv6 group: the last 32 bits of `group` are in it. Source: RFC
    /// 2464 section 7.
    #[must_use]
    pub const fn of_ipv6_group(group: Ipv6Addr) -> Self {
        let [.., a, b, c, d] = group.octets();
        Self([0x33, 0x33, a, b, c, d])
    }
}

/// Text that is not an Ethernet address.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is not an Ethernet address; write six bytes such as 02:00:00:00:00:01")]
pub struct BadMac(String);

impl FromStr for MacAddr {
    type Err = BadMac;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || BadMac(text.into());
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2).ok_or_else(bad)?;
            if !part.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(bad());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| bad())?;
        }
        if parts.next().is_some() { Err(bad()) } else { Ok(Self(bytes)) }
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(feature = "serde")]
impl Serialize for MacAddr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The two bytes at `offset` as a number, or `None` past the end.
#[inline]
#[must_use]
pub fn be16(frame: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*frame.get(offset..)?.first_chunk()?))
}

/// The address at `offset`, or `None` past the end.
#[inline]
#[must_use]
pub fn mac_at(frame: &[u8], offset: usize) -> Option<MacAddr> {
    Some(MacAddr(*frame.get(offset..)?.first_chunk()?))
}

/// The ethertype behind up to two tags, and the offset of what follows it.
#[must_use]
pub fn ethertype(frame: &[u8]) -> Option<(u16, usize)> {
    let mut offset = 12;
    for _ in 0..MAX_TAGS {
        if !matches!(be16(frame, offset)?, VLAN | SERVICE_VLAN) {
            break;
        }
        offset += TAG_BYTES;
    }
    Some((be16(frame, offset)?, offset + 2))
}

/// Writes both addresses: what `mac` mode does to each frame. Frames too short for addresses are
/// left alone.
#[inline]
pub fn set_addresses(frame: &mut [u8], destination: MacAddr, source: MacAddr) {
    if let Some(addresses) = frame.first_chunk_mut::<12>() {
        addresses[..6].copy_from_slice(&destination.0);
        addresses[6..].copy_from_slice(&source.0);
    }
}

/// Exchanges the addresses: what `macswap` mode does to each frame. Frames too short for addresses
/// are left alone.
#[inline]
pub fn swap_addresses(frame: &mut [u8]) {
    if let Some(addresses) = frame.first_chunk_mut::<12>() {
        let (destination, source) = addresses.split_at_mut(6);
        destination.swap_with_slice(source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_printed() {
        let mac = MacAddr([0x02, 0, 0, 0xab, 0, 0xff]);
        assert_eq!("02:00:00:AB:00:ff".parse(), Ok(mac));
        assert_eq!(mac.to_string(), "02:00:00:ab:00:ff");
        for wrong in
            ["", "2:0:0:0:0:1", "02:00:00:00:00", "02:00:00:00:00:01:02", "02-00-00-00-00-01"]
        {
            assert!(wrong.parse::<MacAddr>().is_err(), "{wrong}");
        }
        assert!(MacAddr::BROADCAST.is_multicast() && !mac.is_multicast());
    }

    #[test]
    fn groups_have_addresses_of_their_own() {
        let mac = |group: &str| MacAddr::of_group(group.parse().unwrap()).map(|mac| mac.0);
        assert_eq!(mac("233.54.12.1"), Some([0x01, 0, 0x5e, 0x36, 0x0c, 0x01]));
        assert_eq!(mac("224.128.0.1"), Some([0x01, 0, 0x5e, 0, 0, 0x01]));
        assert_eq!(mac("239.129.2.3"), Some([0x01, 0x00, 0x5e, 0x01, 2, 3]));
        assert_eq!(mac("ff02::1:ff12:3456"), Some([0x33, 0x33, 0xff, 0x12, 0x34, 0x56]));
        assert_eq!((mac("192.0.2.1"), mac("fe80::1")), (None, None));
    }

    #[test]
    fn tags_are_looked_through_twice() {
        let mut frame = [0; 26];
        frame[12..14].copy_from_slice(&[0x08, 0x06]);
        assert_eq!(ethertype(&frame), Some((ARP, 14)));
        frame[12..18].copy_from_slice(&[0x81, 0x00, 0x00, 0x05, 0x08, 0x00]);
        assert_eq!(ethertype(&frame), Some((IPV4, 18)));
        frame[12..22].copy_from_slice(&[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 0x86, 0xdd]);
        assert_eq!(ethertype(&frame), Some((IPV6, 22)));
        frame[20..22].copy_from_slice(&[0x81, 0x00]);
        assert_eq!(ethertype(&frame), Some((0x8100, 22)));
        assert_eq!(ethertype(&frame[..21]), None);
        assert_eq!(ethertype(&frame[..13]), None);
    }

    #[test]
    fn rewriting_touches_the_addresses_only() {
        let mut frame: Vec<u8> = (0..14).collect();
        swap_addresses(&mut frame);
        assert_eq!(frame, [6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 12, 13]);
        set_addresses(&mut frame, MacAddr([0xd; 6]), MacAddr([0x5; 6]));
        assert_eq!(frame[..6], [0xd; 6]);
        assert_eq!(frame[6..], [5, 5, 5, 5, 5, 5, 12, 13]);
        let mut short = [1; 11];
        swap_addresses(&mut short);
        set_addresses(&mut short, MacAddr::default(), MacAddr::default());
        assert_eq!(short, [1; 11]);
    }
}
