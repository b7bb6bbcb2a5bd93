//! Which interfaces packets are routed through: `/proc/net/route` and `/proc/net/ipv6_route`.
//!
//! # Limits
//!
//! The main table of this network namespace; of a route over several interfaces the kernel lists
//! the first one only.

use super::Tree;

/// A route through an interface, as it is told to people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The interface.
    pub netdev: String,
    /// `default`, or a destination such as `10.0.0.0/24`.
    pub destination: String,
}

/// All routes but those that every interface that is up has: IPv6 link-local and multicast.
#[must_use]
pub fn routes(tree: &Tree) -> Vec<Route> {
    let v4 = tree.text("proc/net/route").unwrap_or_default();
    let v6 = tree.text("proc/net/ipv6_route").unwrap_or_default();
    let v4 = v4.lines().skip(1).filter_map(ipv4);
    v4.chain(v6.lines().filter_map(ipv6)).collect()
}

/// Interface, destination and mask, in the byte order of the machine, which is little-endian.
/// Source: Linux `fib_route_seq_show`.
fn ipv4(line: &str) -> Option<Route> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |at: usize| u32::from_str_radix(words.get(at)?, 16).ok();
    let (destination, mask) = (number(1)?, number(7)?);
    let [a, b, c, d] = destination.to_ne_bytes();
    let destination = match mask {
        0 => "default".to_owned(),
        _ => format!("{a}.{b}.{c}.{d}/{}", mask.count_ones()),
    };
    Some(Route { netdev: (*words.first()?).to_owned(), destination })
}

/// Source: Linux `rt6_native_seq_show`: destination and prefix length first, interface last.
fn ipv6(line: &str) -> Option<Route> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (destination, prefix) = (*words.first()?, u8::from_str_radix(words.get(1)?, 16).ok()?);
    let netdev = *words.get(9)?;
    let address = u128::from_str_radix(destination, 16).ok()?;
    let (first, second) = ((address >> 120) as u8, (address >> 112) as u8);
    let is_link_local = first == 0xfe && second & 0xc0 == 0x80;
    if netdev == "lo" || is_link_local || first == 0xff {
        return None;
    }
    let destination = match prefix {
        0 => "default (IPv6)".to_owned(),
        _ => format!("{}/{prefix}", std::net::Ipv6Addr::from_bits(address)),
    };
    Some(Route { netdev: netdev.to_owned(), destination })
}
