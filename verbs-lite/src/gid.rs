//! Addresses of the port (GIDs), and the choice of the one that reaches a peer.
//!
//! A RoCEv2 GID is an IP address: IPv6 as it is, IPv4 in its mapped form. Nobody has to know its
//! index: [`RdmaContext::route`](crate::RdmaContext::route) finds the entry whose subnet the peer
//! is on, or one with a gateway. [`Route::next_hop`] is the address whose MAC packets go to;
//! [`crate::net`] finds that MAC.

use std::net::IpAddr;

use ferrocx_core::{Device, MacAddr};
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::port::SetRoceAddress;
use ferrocx_prm::qpc::Ads;
use ferrocx_prm::vport::{RoceAddress, roce_l3_type, roce_version};
use ferrocx_prm::wqe::AddressVector;

use crate::command::Execute;
use crate::error::VerbsError;
use crate::types::Gid;

/// ECN of packets: capable, as Linux sends RoCEv2. Source: reference 6.3, "Address vector".
const ECT: u8 = 2;
/// Hop limit unless the path says otherwise.
const HOP_LIMIT: u8 = 64;
/// Hop limit of packets to a multicast group unless the path says otherwise: none leaves the
/// subnet. Source: RFC 1112, section 6.1.
const MULTICAST_HOP_LIMIT: u8 = 1;
/// UDP source port of datagrams without a flow. Source: reference 7.9.
const FIRST_UDP_PORT: u32 = 0xc000;

/// An address to give the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidConfig {
    /// The address.
    pub address: IpAddr,
    /// Bits of it that name the subnet: 0 to 32, 0 to 128.
    pub prefix_len: u8,
    /// Where packets go that leave the subnet.
    pub gateway: Option<IpAddr>,
    /// VLAN that the address is on: 0 to 4094.
    pub vlan: Option<u16>,
}

/// An address of the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidEntry {
    /// Its place in the device's table.
    pub index: u8,
    /// The address.
    pub gid: Gid,
    /// Configuration that it was made from.
    pub config: GidConfig,
    /// MAC address that its packets come from.
    pub mac: MacAddr,
}

/// How a peer is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The own address, and its place in the device's table.
    pub source: GidEntry,
    /// The peer.
    pub destination: Gid,
    /// The neighbour whose MAC packets carry: the peer itself, or the gateway.
    pub next_hop: IpAddr,
}

/// All addresses of a port.
#[derive(Debug)]
pub(crate) struct GidTable {
    entries: Vec<Option<GidEntry>>,
    /// Goes up whenever an address comes or goes.
    pub(crate) changes: u64,
}

impl GidTable {
    pub(crate) fn new(size: u32) -> Self {
        // Address paths name an entry with eight bits. Source: reference 5.3.
        Self { entries: vec![None; size.min(256) as usize], changes: 0 }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &GidEntry> {
        self.entries.iter().flatten()
    }

    /// Adds an address, if the device takes it; one that is there already is found again.
    pub(crate) fn add(
        &mut self,
        device: &Device,
        mac: MacAddr,
        config: GidConfig,
    ) -> Result<GidEntry, VerbsError> {
        let max = if config.address.is_ipv4() { 32 } else { 128 };
        VerbsError::range("prefix length", config.prefix_len.into(), 0, max)?;
        VerbsError::range("VLAN id", config.vlan.unwrap_or(0).into(), 0, 4094)?;
        let gid = Gid::from(config.address);
        if let Some(known) = self.iter().find(|e| e.gid == gid && e.config.vlan == config.vlan) {
            return Ok(*known);
        }
        let size = self.entries.len() as u32;
        let free = self.entries.iter().position(Option::is_none);
        let at = free.ok_or(VerbsError::GidTableFull { size })?;
        let entry = GidEntry { index: at as u8, gid, config, mac };
        set_address(device, at as u32, address_of(&entry))?;
        self.entries[at] = Some(entry);
        self.changes += 1;
        Ok(entry)
    }

    /// Removes an address; connections that use it stop working.
    pub(crate) fn remove(&mut self, device: &Device, index: u8) -> Result<(), VerbsError> {
        if self.entries.get(usize::from(index)).is_some_and(Option::is_some) {
            let none = RoceAddress::zeroed().with_roce_version(roce_version::V2);
            set_address(device, u32::from(index), none)?;
            self.entries[usize::from(index)] = None;
            self.changes += 1;
        }
        Ok(())
    }

    /// The path to a multicast group, from an address of its family: a link-local one for
    /// IPv6 groups of the link, any other if there is one.
    pub(crate) fn multicast_path(&self, group: Gid) -> Result<Path, VerbsError> {
        let none = VerbsError::NoRoute { remote: group };
        let Some(mac) = group.multicast_mac() else { return Err(none) };
        let is_of_link = matches!(group.ip(), IpAddr::V6(ip) if ip.octets()[1] & 0xf == 2);
        let family = self.iter().filter(|entry| entry.gid.ip().is_ipv4() == group.ip().is_ipv4());
        let source = family.max_by_key(|entry| entry.gid.is_link_local() == is_of_link);
        let source = *source.ok_or(none)?;
        let route = Route { source, destination: group, next_hop: group.ip() };
        Ok(Path { hop_limit: MULTICAST_HOP_LIMIT, ..Path::new(route, mac) })
    }

    /// The route to a peer from a given address of the port.
    pub(crate) fn route_from(&self, local: Gid, remote: Gid) -> Result<Route, VerbsError> {
        let source = self.iter().find(|entry| entry.gid == local);
        source.ok_or(VerbsError::NotOurs { address: local })?.route(remote)
    }

    /// The entry that reaches a peer: the longest subnet that has it, else one with a gateway.
    pub(crate) fn route(&self, remote: Gid) -> Result<Route, VerbsError> {
        let is_v4 = remote.ip().is_ipv4();
        let family = || self.iter().filter(|entry| entry.gid.ip().is_ipv4() == is_v4);
        let on_link = family()
            .filter(|entry| entry.gid.is_link_local() == remote.is_link_local())
            .filter(|entry| entry.gid.shares_prefix(&remote, entry.config.prefix_len))
            .max_by_key(|entry| entry.config.prefix_len);
        let source = on_link.or_else(|| family().find(|entry| entry.config.gateway.is_some()));
        source.ok_or(VerbsError::NoRoute { remote })?.route(remote)
    }
}

impl GidEntry {
    /// The route from this address: the peer is on its subnet, or behind its gateway.
    fn route(&self, remote: Gid) -> Result<Route, VerbsError> {
        if self.gid.ip().is_ipv4() != remote.ip().is_ipv4() {
            return Err(VerbsError::NoRoute { remote });
        }
        let is_on_link = self.gid.shares_prefix(&remote, self.config.prefix_len);
        let gateway = self.config.gateway.filter(|_| !remote.is_link_local());
        let next_hop = if is_on_link { Some(remote.ip()) } else { gateway };
        let next_hop = next_hop.ok_or(VerbsError::NoRoute { remote })?;
        Ok(Route { source: *self, destination: remote, next_hop })
    }
}

fn address_of(entry: &GidEntry) -> RoceAddress {
    let [a, b, c, d, e, f] = entry.mac.0;
    let is_v4 = entry.gid.ip().is_ipv4();
    let l3_type = if is_v4 { roce_l3_type::IPV4 } else { roce_l3_type::IPV6 };
    RoceAddress::zeroed()
        .with_source_l3_address(entry.gid.0)
        .with_vlan_valid(entry.config.vlan.is_some())
        .with_vlan_id(entry.config.vlan.unwrap_or(0).into())
        .with_source_mac_47_32(u32::from_be_bytes([0, 0, a, b]))
        .with_source_mac_31_0(u32::from_be_bytes([c, d, e, f]))
        .with_roce_l3_type(l3_type)
        .with_roce_version(roce_version::V2)
}

fn set_address(device: &Device, index: u32, address: RoceAddress) -> Result<(), VerbsError> {
    let input = SetRoceAddress::input().with_roce_address_index(index).with_roce_address(address);
    device.execute::<SetRoceAddress>(&input, &[], &mut [])?;
    Ok(())
}

/// Everything a packet to a peer carries below the transport: what an address handle is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// How the peer is reached.
    pub route: Route,
    /// MAC address of [`Route::next_hop`].
    pub dmac: MacAddr,
    /// Hop limit, or time to live.
    pub hop_limit: u8,
    /// Traffic class; its low two bits are replaced by "ECN capable".
    pub traffic_class: u8,
    /// Flow label, 20 bits; 0 lets the queue pair numbers choose the UDP source port.
    pub flow_label: u32,
    /// Priority in the VLAN tag: 0 to 7.
    pub priority: u8,
}

impl Path {
    /// A path with the usual hop limit and no traffic class.
    #[must_use]
    pub fn new(route: Route, dmac: MacAddr) -> Self {
        Self { route, dmac, hop_limit: HOP_LIMIT, traffic_class: 0, flow_label: 0, priority: 0 }
    }

    /// The path as a connection's context holds it.
    pub(crate) fn ads(&self, local_qpn: u32, remote_qpn: u32) -> Ads {
        let [a, b, c, d, e, f] = self.dmac.0;
        Ads::zeroed()
            .with_src_addr_index(self.route.source.index.into())
            .with_hop_limit(self.hop_limit.into())
            .with_tclass(u32::from(self.traffic_class & !3 | ECT))
            .with_flow_label(self.flow_label & 0xf_ffff)
            .with_rgid_rip(self.route.destination.0)
            .with_dscp(u32::from(self.traffic_class >> 2))
            .with_ecn(ECT.into())
            .with_udp_sport(udp_source_port(self.flow_label, local_qpn, remote_qpn))
            .with_eth_prio(self.priority.into())
            .with_vhca_port_num(1)
            .with_rmac_47_32(u32::from_be_bytes([0, 0, a, b]))
            .with_rmac_31_0(u32::from_be_bytes([c, d, e, f]))
    }

    /// The path as a datagram's work request holds it.
    pub(crate) fn address_vector(&self) -> AddressVector {
        let port = match self.flow_label {
            0 => FIRST_UDP_PORT,
            label => port_of_label(label),
        };
        AddressVector::zeroed()
            .with_ext(true)
            .with_sl(u32::from(self.priority & 7) << 1)
            .with_udp_sport_rlid(port)
            .with_rmac(self.dmac.0)
            .with_tclass(u32::from(self.traffic_class & !3 | ECT))
            .with_hop_limit(self.hop_limit.into())
            .with_grh(true)
            .with_src_addr_index(self.route.source.index.into())
            .with_flow_label(self.flow_label & 0xf_ffff)
            .with_rgid(self.route.destination.0)
    }
}

/// Source: reference 7.9.
fn port_of_label(label: u32) -> u32 {
    ((label & 0x3fff) ^ (label & 0xf_ffff) >> 14) | FIRST_UDP_PORT
}

/// UDP source port of a connection: of its flow label, or the same at both ends without one.
fn udp_source_port(flow_label: u32, local_qpn: u32, remote_qpn: u32) -> u32 {
    if flow_label != 0 {
        return port_of_label(flow_label);
    }
    let mut label = u64::from(local_qpn) * u64::from(remote_qpn);
    label ^= label >> 20;
    label ^= label >> 40;
    port_of_label(label as u32 & 0xf_ffff)
}

#[cfg(test)]
#[path = "gid_tests.rs"]
mod tests;
