//! Network adapters as sysfs describes them.

use std::fs;
use std::path::{Path, PathBuf};

use ferrocx_bus::{PciIdentity, sysfs::PciDevice};
use serde::Serialize;

use super::{Link, Tree};

/// Links to all interfaces of this network namespace.
const CLASS_NET: &str = "sys/class/net";
/// PCI base class of network controllers, the upper eight of the 24 bits of a class.
const CLASS_NETWORK: u32 = 0x02;
/// `type` of an IP-over-InfiniBand interface. Source: Linux `if_arp.h`, ARPHRD_INFINIBAND.
const ARPHRD_INFINIBAND: u32 = 32;

/// An adapter's function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Nic {
    /// PCI address.
    pub address: String,
    /// Vendor and device id, as in `15b3:1017`.
    pub ids: String,
    /// Name of a device that ferrocx knows.
    pub model: Option<&'static str>,
    /// Whether it is a virtual function.
    pub is_vf: bool,
    /// Virtual functions that exist below it.
    pub vfs: u32,
    /// The driver it is bound to.
    pub driver: Option<String>,
    /// Its IOMMU group.
    pub group: Option<Group>,
    /// Its own file of VFIO, `/dev/vfio/devices/NAME`, where the kernel has such.
    pub vfio_file: Option<PathBuf>,
    /// The node whose memory is near.
    pub numa_node: Option<u32>,
    /// Interfaces of the kernel's driver that this network namespace sees.
    pub netdevs: Vec<Netdev>,
    /// What its ports speak, as the RDMA driver says: `Ethernet` or `InfiniBand`.
    pub link_layer: Option<String>,
    /// Version, known while the kernel's RDMA driver has it.
    pub firmware: Option<String>,
    /// Link to the port above.
    pub pcie: Option<Link>,
}

/// An IOMMU group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Number: `/dev/vfio/NUMBER`.
    pub number: u32,
    /// Whether it is one of VFIO's mode without an IOMMU.
    pub is_noiommu: bool,
    /// All members and their drivers.
    pub members: Vec<(String, Option<String>)>,
}

/// An interface of the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Netdev {
    /// Its name.
    pub name: String,
    /// Whether there is a carrier; `None` while it is down.
    pub carrier: Option<bool>,
    /// Speed in Mbit/s, while there is a carrier.
    pub speed_mbps: Option<u32>,
    /// Whether it carries IP over InfiniBand.
    pub is_infiniband: bool,
    /// Bond, bridge or other interface that it is a part of, and interfaces on top of it.
    pub used_by: Vec<String>,
}

/// Adapters that ferrocx knows, or all network controllers.
#[must_use]
pub fn nics(tree: &Tree, all: bool) -> Vec<Nic> {
    let addresses = tree.list("sys/bus/pci/devices");
    let found = addresses.iter().filter_map(|address| {
        let device = tree.sysfs().device(address).ok()?;
        let is_network = device.class >> 16 == CLASS_NETWORK;
        let wanted = device.identity.known().is_some() || (all && is_network);
        wanted.then(|| Nic::describe(tree, &device))
    });
    found.collect()
}

impl Nic {
    /// Describes one device, whatever it is.
    ///
    /// # Errors
    ///
    /// What [`ferrocx_bus::sysfs::Sysfs::device`] refuses.
    pub fn read(tree: &Tree, address: &str) -> Result<Self, ferrocx_bus::BusError> {
        Ok(Self::describe(tree, &tree.sysfs().device(address)?))
    }

    fn describe(tree: &Tree, device: &PciDevice) -> Self {
        let identity = &device.identity;
        let path = Tree::device(&identity.name);
        let known = identity.known();
        let rdma = tree.list(path.join("infiniband")).into_iter().next();
        let rdma = rdma.map(|name| path.join("infiniband").join(name));
        let rdma = |file: &str| tree.text(rdma.as_ref()?.join(file));
        let is_vf = tree.exists(path.join("physfn")) || known.is_some_and(|known| known.is_vf);
        Self {
            address: identity.name.clone(),
            ids: format!("{:04x}:{:04x}", identity.vendor, identity.device),
            model: known.map(|known| known.name),
            is_vf,
            vfs: tree.number(path.join("sriov_numvfs")).unwrap_or(0),
            driver: device.driver.clone(),
            group: group(device),
            vfio_file: tree.sysfs().vfio_file(&identity.name),
            numa_node: identity.numa_node,
            netdevs: netdevs(tree, &identity.name),
            link_layer: rdma("ports/1/link_layer"),
            firmware: rdma("fw_ver"),
            pcie: Link::read(tree, &identity.name),
        }
    }

    /// Its own file of VFIO, relative.
    #[must_use]
    pub fn device_file(&self) -> Option<&Path> {
        self.vfio_file.as_ref()?.strip_prefix("/").ok()
    }

    /// The file of its IOMMU group, relative.
    #[must_use]
    pub fn group_file(&self) -> Option<PathBuf> {
        Some(Path::new("dev/vfio").join(self.group.as_ref()?.number.to_string()))
    }

    /// Whether the vendor is the one of ConnectX adapters.
    #[must_use]
    pub fn is_mellanox(&self) -> bool {
        self.ids.starts_with(&format!("{:04x}:", PciIdentity::VENDOR_MELLANOX))
    }

    /// Whether its port speaks InfiniBand.
    #[must_use]
    pub fn is_infiniband(&self) -> bool {
        let by_rdma = self.link_layer.as_deref() == Some("InfiniBand");
        by_rdma || self.netdevs.iter().any(|netdev| netdev.is_infiniband)
    }

    /// `up 25000 Mb/s`, `no carrier`, `down`, of each interface.
    #[must_use]
    pub fn link_text(&self) -> String {
        let one = |netdev: &Netdev| {
            let state = match (netdev.carrier, netdev.speed_mbps) {
                (Some(true), Some(speed)) => format!("up {speed} Mb/s"),
                (Some(true), None) => "up".to_owned(),
                (Some(false), _) => "no carrier".to_owned(),
                (None, _) => "down".to_owned(),
            };
            format!("{} {state}", netdev.name)
        };
        let texts: Vec<String> = self.netdevs.iter().map(one).collect();
        if texts.is_empty() { "-".to_owned() } else { texts.join(", ") }
    }
}

fn group(device: &PciDevice) -> Option<Group> {
    let group = device.group.as_ref()?;
    let own = (device.identity.name.clone(), device.driver.clone());
    let others = group.siblings.iter().map(|other| (other.name.clone(), other.driver.clone()));
    let mut members: Vec<_> = others.chain([own]).collect();
    members.sort();
    Some(Group { number: group.number, is_noiommu: group.is_noiommu, members })
}

/// The interfaces below a function, at any depth: virtio's stand below a bus of their own.
fn netdevs(tree: &Tree, address: &str) -> Vec<Netdev> {
    let Ok(device) = fs::canonicalize(tree.path(Tree::device(address))) else { return Vec::new() };
    let is_below = |name: &&String| {
        let place = fs::canonicalize(tree.path(Path::new(CLASS_NET).join(name)));
        place.is_ok_and(|place| place.starts_with(&device))
    };
    tree.list(CLASS_NET).iter().filter(is_below).map(|name| netdev(tree, name)).collect()
}

fn netdev(tree: &Tree, name: &str) -> Netdev {
    let path = Path::new(CLASS_NET).join(name);
    let carrier = tree.number::<u8>(path.join("carrier")).map(|value| value == 1);
    let speed = tree.number::<i64>(path.join("speed"));
    let mut used_by: Vec<String> = tree.link(path.join("master")).into_iter().collect();
    let names = tree.list(&path);
    let upper = names.iter().filter_map(|name| name.strip_prefix("upper_"));
    let upper: Vec<String> =
        upper.filter(|name| used_by.iter().all(|known| known != name)).map(str::to_owned).collect();
    used_by.extend(upper);
    Netdev {
        name: name.to_owned(),
        carrier,
        speed_mbps: speed
            .and_then(|speed| u32::try_from(speed).ok())
            .filter(|speed| ![0, u32::MAX].contains(speed)),
        is_infiniband: tree.number(path.join("type")) == Some(ARPHRD_INFINIBAND),
        used_by,
    }
}
