//! Multicast groups: [`Network::join`] and [`Network::leave`], and what is reported on which VLAN.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ferrocx_net::ether::MacAddr;
use ferrocx_net::membership::{Config, Host, Memberships};

use super::{NetError, Network};
use crate::gid::GidEntry;

/// How often the end of the last leaves is waited for, a step of the device each.
const LAST_STEPS: usize = 1000;

/// The memberships of a port, by VLAN.
#[derive(Debug)]
pub(super) struct Groups {
    config: Config,
    of_vlans: Vec<(Host, Memberships)>,
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

    fn on(&mut self, vlan: Option<u16>) -> Option<&mut Memberships> {
        self.of_vlans.iter_mut().find(|(host, _)| host.vlan == vlan).map(|(_, known)| known)
    }
}

/// The addresses of the port on a VLAN that reports come from.
fn host_on(mac: MacAddr, vlan: Option<u16>, gids: &[GidEntry]) -> Host {
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

impl Network {
    /// Joins a multicast group, for whatever is sent to it or for what one source sends: lets its
    /// frames into the port, and tells switches and routers of the VLAN by IGMP or MLD, for as
    /// long as [`Network::poll`] is called. Joins are counted.
    ///
    /// A network is that of an [`RdmaContext`](crate::RdmaContext), which is refused for a port
    /// without RoCE v2, though multicast needs none of it. On such a port
    /// [`ferrocx_net::membership`] does the same over queues of one's own.
    ///
    /// Where the frames go is for flow rules to say, or
    /// [`Qp::attach_multicast`](crate::Qp::attach_multicast). 32 IPv4 groups share a MAC address:
    /// match the group in the rule.
    ///
    /// # Errors
    ///
    /// [`NetError::Join`], [`NetError::Device`]; nothing is joined then.
    pub fn join(&mut self, group: impl Into<Group>) -> Result<(), NetError> {
        let Group { ip: group, source, vlan } = group.into();
        self.refresh()?;
        let now = self.now();
        if self.memberships.on(vlan).is_none() {
            let host = host_on(self.station.mac, vlan, &self.gids);
            // Hosts of one link shall not answer at the same time.
            let seed = self.context.device().random();
            let memberships = Memberships::new(host, self.memberships.config, seed);
            self.memberships.of_vlans.push((host, memberships));
        }
        let Some(memberships) = self.memberships.on(vlan) else { unreachable!("made above") };
        memberships.join(group, source, now)?;
        if let Err(error) = self.context.device().join_multicast(mac_of(group)) {
            memberships.leave(group, source, now);
            return Err(error.into());
        }
        self.poll();
        Ok(())
    }

    /// Takes one [`Network::join`] of this group back; whether there was one.
    ///
    /// # Errors
    ///
    /// [`NetError::Device`]: the port still lets the group's frames in.
    pub fn leave(&mut self, group: impl Into<Group>) -> Result<bool, NetError> {
        let Group { ip: group, source, vlan } = group.into();
        let now = self.now();
        let Some(memberships) = self.memberships.on(vlan) else { return Ok(false) };
        if !memberships.joins().contains(&(group, source)) {
            return Ok(false);
        }
        self.context.device().leave_multicast(mac_of(group))?;
        memberships.leave(group, source, now);
        self.poll();
        Ok(true)
    }

    /// Leaves every group, and sends what says so once.
    pub(super) fn leave_all(&mut self) {
        let now = self.now();
        for (_, memberships) in &mut self.memberships.of_vlans {
            for (group, source) in memberships.joins() {
                memberships.leave(group, source, now);
                if let Err(error) = self.context.device().leave_multicast(mac_of(group)) {
                    tracing::warn!(%error, %group, "multicast group not left");
                }
            }
        }
        self.poll();
        for _ in 0..LAST_STEPS {
            if self.free.len() + self.posted as usize == 2 * self.receives as usize {
                break;
            }
            self.poll();
            self.context.device().relax();
        }
    }
}

fn mac_of(group: IpAddr) -> MacAddr {
    match group {
        IpAddr::V4(group) => MacAddr::of_ipv4_group(group),
        IpAddr::V6(group) => MacAddr::of_ipv6_group(group),
    }
}
