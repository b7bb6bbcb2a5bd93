//! The port of a device: addresses, MTU, what is let in, link.

use std::collections::BTreeSet;

use ferrocx_net::ether::MacAddr;

use super::{Device, lock};
use crate::control::Control;
use crate::error::{ConfigError, DeviceError};
use crate::flow::tables::MAX_MULTICAST;
use crate::link::{self, Port};

impl Device {
    /// The unicast address whose frames are received.
    #[must_use]
    #[doc(alias = "rte_eth_macaddr_get")]
    pub fn mac(&self) -> MacAddr {
        lock(&self.inner().port).mac
    }

    /// Receives frames to another unicast address instead.
    ///
    /// # Errors
    /// [`ConfigError::Conflict`] for a multicast or zero address, or what the device refused.
    #[doc(alias = "rte_eth_dev_default_mac_addr_set")]
    pub fn set_mac(&self, mac: MacAddr) -> Result<(), DeviceError> {
        if mac.is_multicast() || mac == MacAddr::default() {
            let what = "the MAC address is multicast or zero; use a unicast address";
            return Err(ConfigError::Conflict { what }.into());
        }
        self.change_port(|port| port.mac = mac, Port::write_lists)
    }

    /// Largest layer-3 packet.
    #[must_use]
    pub fn mtu(&self) -> u16 {
        lock(&self.inner().port).mtu
    }

    /// Changes the MTU. Receive queues made before keep their `max_frame_bytes`.
    ///
    /// # Errors
    /// [`ConfigError::Range`], or what the device refused.
    #[doc(alias = "rte_eth_dev_set_mtu")]
    pub fn set_mtu(&self, mtu: u16) -> Result<(), DeviceError> {
        lock(&self.inner().port).set_mtu(&mut self.inner().control(), mtu)
    }

    /// Whether every frame is received.
    #[must_use]
    pub fn promiscuous(&self) -> bool {
        lock(&self.inner().port).promiscuous
    }

    /// Receives every frame, or only those to the port's addresses.
    #[doc(alias = "rte_eth_promiscuous_enable")]
    pub fn set_promiscuous(&self, on: bool) -> Result<(), DeviceError> {
        self.change_port(|port| port.promiscuous = on, Port::write_promisc)
    }

    /// Receives every multicast frame, or only those of [`Device::set_multicast`].
    #[doc(alias = "rte_eth_allmulticast_enable")]
    pub fn set_all_multicast(&self, on: bool) -> Result<(), DeviceError> {
        self.change_port(|port| port.all_multicast = on, Port::write_promisc)
    }

    /// Chooses the multicast groups whose frames are received, instead of those before.
    ///
    /// # Errors
    /// [`ConfigError::Conflict`] for a unicast address, [`ConfigError::Range`] for more than
    /// [`MAX_MULTICAST`](crate::MAX_MULTICAST) or than the vport's list holds, or what the device
    /// refused.
    #[doc(alias = "rte_eth_dev_set_mc_addr_list")]
    pub fn set_multicast(&self, groups: &[MacAddr]) -> Result<(), DeviceError> {
        if groups.iter().any(|mac| !mac.is_multicast()) {
            let what = "a unicast address is in the list of multicast groups; remove it";
            return Err(ConfigError::Conflict { what }.into());
        }
        let (count, max) = (groups.len() as u64, self.max_multicast());
        let hint = "; use Device::set_all_multicast";
        ConfigError::range("number of multicast groups", count, 0, max, hint)?;
        self.change_port(|port| port.multicast = groups.to_vec(), Port::write_lists)
    }

    /// Multicast groups that there is room for: of the vport's list broadcast takes one place.
    fn max_multicast(&self) -> u64 {
        let list = 1u64 << self.hca_cap().log_max_current_mc_list();
        (list - 1).min(MAX_MULTICAST as u64)
    }

    /// Lets frames to a group in, until [`Device::leave_multicast`]; counted, so that several users
    /// may join one group. They reach queue pairs that are attached to the group and queues whose
    /// flow rule matches them. Queues that get the port's other traffic need
    /// [`Device::set_multicast`]. No router or switch is told:
    /// that is what `Network::join` of verbs-lite does, by IGMP and MLD.
    ///
    /// # Errors
    /// [`ConfigError::Conflict`] for a unicast address, [`ConfigError::Range`] when all places of
    /// the device's list are taken, or what the device refused.
    pub fn join_multicast(&self, group: MacAddr) -> Result<(), DeviceError> {
        if !group.is_multicast() {
            let what = "the address to join is unicast; use a multicast address";
            return Err(ConfigError::Conflict { what }.into());
        }
        let (count, max) = {
            let port = lock(&self.inner().port);
            let groups: BTreeSet<_> = port.joined.iter().chain(&port.multicast).collect();
            let count = groups.len() + usize::from(!groups.contains(&group));
            (count as u64, self.max_multicast())
        };
        let hint = "; leave a group first";
        ConfigError::range("number of multicast groups", count, 0, max, hint)?;
        self.change_port(|port| port.joined.push(group), Port::write_lists)
    }

    /// Takes back one [`Device::join_multicast`] of the group.
    pub fn leave_multicast(&self, group: MacAddr) -> Result<(), DeviceError> {
        let leave = |port: &mut Port| {
            if let Some(at) = port.joined.iter().position(|joined| *joined == group) {
                port.joined.swap_remove(at);
            }
        };
        self.change_port(leave, Port::write_lists)
    }

    /// Changes the port's settings, tells the vport, and rewrites the address table.
    fn change_port(
        &self,
        change: impl FnOnce(&mut Port),
        write: fn(&Port, &mut Control) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let inner = self.inner();
        let mut port = lock(&inner.port);
        let mut wanted = port.clone();
        change(&mut wanted);
        let mut control = inner.control();
        write(&wanted, &mut control)?;
        lock(&inner.steering).set_addresses(&mut control, &wanted)?;
        *port = wanted;
        Ok(())
    }

    /// Switches the port on or off.
    #[doc(alias = "rte_eth_dev_set_link_up")]
    pub fn set_link(&self, up: bool) -> Result<(), DeviceError> {
        Ok(link::set(&mut self.inner().control(), up)?)
    }
}
