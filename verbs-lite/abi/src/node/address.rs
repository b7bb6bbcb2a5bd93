//! [`Address`] of a port on the model's wire, and the MAC address that follows from it: peers need
//! neither ARP nor neighbour discovery.
//!
//! | IP address | MAC address |
//! |---|---|
//! | IPv4 | `02:00`, then the address |
//! | IPv6, link-local and made of a MAC address | that one: both are told from each other's |
//! | IPv6, any other | `06`, then 40 bits of a hash |
//! | of a group | as everywhere |

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};

use ferrocx_core::MacAddr;
use ferrocx_verbs_lite::Gid;

use super::invalid;

/// What the MAC addresses of ports begin with.
const OF_V4: [u8; 2] = [2, 0];
const OF_V6: u8 = 6;

/// Where a port is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) ip: IpAddr,
    /// The interface of an address of IPv6, as far as it is known, or 0.
    pub(super) scope: u32,
}

impl From<Ipv4Addr> for Address {
    fn from(ip: Ipv4Addr) -> Self {
        Self { ip: ip.into(), scope: 0 }
    }
}

impl Address {
    /// Reads what the environment says: `10.0.0.2`, `fd00::2`, `fe80::2%eth0`.
    ///
    /// # Errors
    ///
    /// It is nobody's address, or its interface is not there, in one sentence.
    pub(super) fn read(text: &str) -> io::Result<Self> {
        let bad = || {
            invalid(format!(
                "FERROCX_IP is {text}; it must be an IP address of this machine, such as 10.0.0.2, \
                 fd00::2 or, with its interface, fe80::2%eth0"
            ))
        };
        let ip = text.split_once('%').map_or(text, |(ip, _)| ip);
        let ip = ip.parse::<IpAddr>().map_err(|_| bad())?.to_canonical();
        if ip.is_unspecified() || ip.is_multicast() {
            return Err(bad());
        }
        let IpAddr::V6(v6) = ip else {
            return if text.contains('%') { Err(bad()) } else { Ok(Self { ip, scope: 0 }) };
        };
        // The system's own reading, which knows interfaces by name.
        let found = (text, 0).to_socket_addrs().ok().and_then(|mut found| found.next());
        let Some(SocketAddr::V6(found)) = found else { return Err(bad()) };
        // One address of the link is on each of its interfaces.
        if v6.is_unicast_link_local() && found.scope_id() == 0 {
            return Err(bad());
        }
        let table = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
        let scope = Some(found.scope_id()).filter(|scope| *scope != 0);
        Ok(Self { ip, scope: scope.or_else(|| interface_of(v6, &table)).unwrap_or(0) })
    }

    pub(super) fn mac(&self) -> [u8; 6] {
        mac_of(self.ip)
    }

    /// A UDP port at an address that is reached from this one.
    pub(super) fn socket(&self, ip: IpAddr, port: u16) -> SocketAddr {
        match ip {
            IpAddr::V6(ip) if ip.is_unicast_link_local() || ip.is_multicast() => {
                SocketAddrV6::new(ip, port, 0, self.scope).into()
            }
            _ => SocketAddr::new(ip, port),
        }
    }
}

/// The interface that has an address, by the system's table of them: an address without colons,
/// then the number. Source: Linux `if6_seq_show`.
fn interface_of(ip: Ipv6Addr, table: &str) -> Option<u32> {
    let of = |line: &str| {
        let (address, rest) = line.split_once(' ')?;
        let is_own = u128::from_str_radix(address, 16).ok()? == ip.to_bits();
        let number = rest.split_whitespace().next().filter(|_| is_own)?;
        u32::from_str_radix(number, 16).ok()
    };
    table.lines().find_map(of)
}

/// MAC address of the port, or the group, with an IP address.
pub(crate) fn mac_of(ip: IpAddr) -> [u8; 6] {
    if let Some(group) = MacAddr::of_group(ip) {
        return group.0;
    }
    match ip {
        IpAddr::V4(ip) => {
            let ([first, second], [a, b, c, d]) = (OF_V4, ip.octets());
            [first, second, a, b, c, d]
        }
        IpAddr::V6(ip) => Gid::from(IpAddr::V6(ip)).link_local_mac().map_or_else(
            || {
                // FNV-1a, folded: the same on every machine, today and tomorrow.
                let hash = ip.octets().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                    (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
                });
                let [a, b, c, d, e, f, g, h] = hash.to_be_bytes();
                [OF_V6, d, e ^ a, f ^ b, g ^ c, h]
            },
            |mac| mac.0,
        ),
    }
}

/// The address that a frame to a MAC address is for: the one that its packet names, if it names
/// one, or of one of `ports`, those of this machine, or the IPv4 address that it is made of.
pub(super) fn ip_of(
    mac: [u8; 6],
    named: Option<IpAddr>,
    ports: impl FnOnce() -> Vec<IpAddr>,
) -> Option<IpAddr> {
    let of_port = || {
        let is_of_port = mac[..2] == OF_V4 || mac[0] == OF_V6;
        is_of_port.then(ports)?.into_iter().find(|ip| mac_of(*ip) == mac)
    };
    let v4 = || {
        let [a, b, c, d, e, f] = mac;
        ([a, b] == OF_V4).then(|| Ipv4Addr::new(c, d, e, f).into())
    };
    named.filter(|ip| mac_of(*ip) == mac).or_else(of_port).or_else(v4)
}

/// The one of `ports`, those of this machine, that has a link-local address besides its own.
pub(super) fn port_behind(
    link_local: IpAddr,
    ports: impl FnOnce() -> Vec<IpAddr>,
) -> Option<IpAddr> {
    let mac = Gid::from(link_local).link_local_mac()?;
    ports().into_iter().find(|port| *port != link_local && mac_of(*port) == mac.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn every_address_has_a_mac_address_that_peers_can_tell() {
        assert_eq!(mac_of(ip("127.88.0.1")), [2, 0, 127, 88, 0, 1]);
        assert_eq!(mac_of(ip("239.1.2.3")), [1, 0, 0x5e, 1, 2, 3]);
        assert_eq!(mac_of(ip("ff05::5")), [0x33, 0x33, 0, 0, 0, 5]);
        // Of the port above, of an interface, of one that no unicast frame could reach.
        assert_eq!(mac_of(ip("fe80::7fff:fe58:1")), [2, 0, 0x7f, 0x58, 0, 1]);
        assert_eq!(mac_of(ip("fe80::42:acff:fe11:2")), [2, 0x42, 0xac, 0x11, 0, 2]);
        assert_eq!(mac_of(ip("fe80::342:acff:fe11:2"))[0], OF_V6);
        // Both ends compute it, perhaps of two releases.
        assert_eq!(mac_of(ip("fd00::1")), [6, 0x9e, 0x7b, 0x76, 0, 0x8b]);
        assert_ne!(mac_of(ip("fd00::1")), mac_of(ip("fd00::2")));
    }

    #[test]
    fn a_frame_is_for_the_port_that_its_packet_names() {
        let ports = || vec![ip("127.88.0.1"), ip("fd00::1")];
        let none = || unreachable!("it is named");
        for named in ["10.0.0.2", "fd00::2", "fe80::2"].map(ip) {
            assert_eq!(ip_of(mac_of(named), Some(named), none), Some(named));
        }
        // Frames that programs made name nobody, or somebody else.
        assert_eq!(ip_of(mac_of(ip("fd00::1")), None, ports), Some(ip("fd00::1")));
        assert_eq!(ip_of(mac_of(ip("fd00::3")), Some(ip("fd00::1")), ports), None);
        assert_eq!(ip_of(mac_of(ip("10.0.0.2")), None, ports), Some(ip("10.0.0.2")));
        assert_eq!(ip_of([0x52, 0x54, 0, 1, 2, 3], Some(ip("10.0.0.2")), none), None);
        let far = ip("fe80::42:acff:fe11:2");
        assert_eq!(ip_of(mac_of(far), Some(far), none), Some(far));
    }

    #[test]
    fn a_port_is_known_by_its_link_local_address_too() {
        let ports = || vec![ip("127.88.0.1"), ip("fd00::1"), ip("fe80::42:acff:fe11:2")];
        for (link_local, port) in
            [("fe80::7fff:fe58:1", "127.88.0.1"), ("fe80::49e:7bff:fe76:8b", "fd00::1")]
        {
            assert_eq!(port_behind(ip(link_local), ports), Some(ip(port)));
        }
        for none in ["fe80::42:acff:fe11:2", "fe80::42:acff:fe11:3", "fe80::1"] {
            assert_eq!(port_behind(ip(none), ports), None, "{none}");
        }
        assert_eq!(port_behind(ip("127.88.0.1"), || unreachable!()), None);
    }

    #[test]
    fn an_address_of_the_environment_is_one_that_a_port_can_have() {
        let read = |text: &str| Address::read(text).map(|address| (address.ip, address.scope));
        assert_eq!(read("127.0.0.1").unwrap(), (ip("127.0.0.1"), 0));
        assert_eq!(read("::ffff:10.0.0.2").unwrap(), (ip("10.0.0.2"), 0));
        assert_eq!(read("2001:db8::2").unwrap(), (ip("2001:db8::2"), 0), "nobody's");
        assert_eq!(read("fe80::2%lo").unwrap(), (ip("fe80::2"), 1));
        assert_eq!(read("fe80::2%1").unwrap(), (ip("fe80::2"), 1));
        let wrong = ["", "host", "::", "0.0.0.0", "224.0.0.1", "ff02::1", "fe80::2", "fe80::2%nix"];
        for text in wrong.into_iter().chain(["10.0.0.2%lo", "fd00::2/64"]) {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("FERROCX_IP is {text};")), "{error}");
        }
        let table = "00000000000000000000000000000001 01 80 10 80       lo\n\
                     fd000000000000000000000000000002 1c 40 00 80     eth0\n";
        assert_eq!(interface_of("fd00::2".parse().unwrap(), table), Some(28));
        assert_eq!(interface_of("fd00::3".parse().unwrap(), table), None);
        let address = Address::read("fe80::2%lo").unwrap();
        assert_eq!(address.socket(ip("ff02::3"), 7).to_string(), "[ff02::3%1]:7");
        assert_eq!(address.socket(ip("fe80::3"), 7).to_string(), "[fe80::3%1]:7");
        assert_eq!(address.socket(ip("fd00::3"), 7).to_string(), "[fd00::3]:7");
    }
}
