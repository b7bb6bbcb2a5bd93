//! What is reported on which VLAN, for which groups.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ferrocx_net::ether::MacAddr;
use ferrocx_net::membership::{Config, Host, Memberships};

use crate::gid::GidEntry;

/// The memberships of a port, by VLAN.
#[derive(Debug)]
pub(super) struct Groups {
    pub(super) config: Config,
    pub(super) of_vlans: Vec<(Host, Memberships)>,
}

impl Groups {
    pub(super) fn new(config: Config) -> Self {
        Self { config, of_vlans: Vec::new() }
    }

    /// Takes over the addresses of the port.
    pub(super) fn set_hosts(&mut self, gids: &[GidEntry]) {
        for (host, memberships) in &mut self.of_vlans {
            *host = host_on(host.mac, host.vlan, gids);
            memberships.set_host(*host);
        }
    }

    pub(super) fn frame(&mut self, frame: &[u8], now: Duration) -> bool {
        self.of_vlans.iter_mut().any(|(_, memberships)| memberships.frame(frame, now))
    }

    pub(super) fn next_frame(&mut self, now: Duration) -> Option<Vec<u8>> {
        self.of_vlans.iter_mut().find_map(|(_, memberships)| memberships.next_frame(now))
    }

    pub(super) fn on(&mut self, vlan: Option<u16>) -> Option<&mut Memberships> {
        self.of_vlans.iter_mut().find(|(host, _)| host.vlan == vlan).map(|(_, known)| known)
    }
}

/// The addresses of the port on a VLAN that reports come from.
pub(super) fn host_on(mac: MacAddr, vlan: Option<u16>, gids: &[GidEntry]) -> Host {
    let mut host = Host { mac, vlan, ipv4: Ipv4Addr::UNSPECIFIED, ipv6: Ipv6Addr::UNSPECIFIED };
    for entry in gids.iter().filter(|entry| entry.config.vlan == vlan).rev() {
        match entry.gid.ip() {
            IpAddr::V4(ip) => host.ipv4 = ip,
            IpAddr::V6(ip) if ip.is_unicast_link_local() => host.ipv6 = ip,
            IpAddr::V6(_) => {}
        }
    }
    host
}

/// A multicast group, as one that listens means it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// Its address.
    pub ip: IpAddr,
    /// The only one whose packets are wanted; `None` for whatever is sent to the group.
    pub source: Option<IpAddr>,
    /// The VLAN on which it is.
    pub vlan: Option<u16>,
}

impl From<IpAddr> for Group {
    /// From any source, on no VLAN.
    fn from(ip: IpAddr) -> Self {
        Self { ip, source: None, vlan: None }
    }
}

/// The MAC address of a group.
pub(super) fn mac_of(group: IpAddr) -> MacAddr {
    match group {
        IpAddr::V4(group) => MacAddr::of_ipv4_group(group),
        IpAddr::V6(group) => MacAddr::of_ipv6_group(group),
    }
}
