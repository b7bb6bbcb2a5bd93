//! What the kernel says about a PCI device, from a sysfs tree that a test can record.
//!
//! Nothing here needs rights beyond reading sysfs, and nothing is changed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::{BusError, KNOWN_DEVICES, PciIdentity};

/// A sysfs tree: `/sys`, or a recorded one.
#[derive(Debug, Clone)]
pub struct Sysfs {
    root: PathBuf,
}

/// A PCI device as sysfs describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PciDevice {
    /// Ids, address, NUMA node.
    pub identity: PciIdentity,
    /// PCI class, 24 bits: 0x020000 for Ethernet.
    pub class: u32,
    /// The driver it is bound to.
    pub driver: Option<String>,
    /// Its IOMMU group, and the other devices in it.
    pub group: Option<IommuGroup>,
}

/// An IOMMU group, without the device it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IommuGroup {
    /// Group number: `/dev/vfio/NUMBER`.
    pub number: u32,
    /// Whether the group is of VFIO's mode without an IOMMU, which protects nothing.
    pub is_noiommu: bool,
    /// The other devices of the group.
    pub siblings: Vec<Sibling>,
}

/// Another device in the same IOMMU group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sibling {
    /// Its PCI address.
    pub name: String,
    /// Its driver.
    pub driver: Option<String>,
}

impl Default for Sysfs {
    fn default() -> Self {
        Self::new("/sys")
    }
}

impl Sysfs {
    /// Reads the tree below `root`.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The directory of a PCI device.
    #[must_use]
    pub fn device_path(&self, name: &str) -> PathBuf {
        self.devices_path().join(name)
    }

    fn devices_path(&self) -> PathBuf {
        self.root.join("bus/pci/devices")
    }

    /// Reads one device. `address` may leave out the domain.
    ///
    /// # Errors
    ///
    /// [`BusError::BadPciAddress`], [`BusError::NoSuchDevice`], or [`BusError::Os`] for a tree that
    /// is not as the kernel makes it.
    pub fn device(&self, address: &str) -> Result<PciDevice, BusError> {
        let name = canonical_address(address)?;
        let path = self.device_path(&name);
        if !path.is_dir() {
            return Err(BusError::NoSuchDevice { name, present: self.list_known() });
        }
        let identity = PciIdentity {
            vendor: narrow(hex(&path.join("vendor"))?),
            device: narrow(hex(&path.join("device"))?),
            // -1 stands for "unknown".
            numa_node: fs::read_to_string(path.join("numa_node"))
                .ok()
                .and_then(|text| text.trim().parse().ok()),
            name: name.clone(),
        };
        let class = hex(&path.join("class"))?;
        let group = self.group(&path, &name)?;
        Ok(PciDevice { identity, class, driver: link_name(&path.join("driver")), group })
    }

    /// Addresses of the devices that this driver knows, ascending.
    #[must_use]
    pub fn known_devices(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.devices_path()) else { return Vec::new() };
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| self.device(name).is_ok_and(|found| found.identity.known().is_some()))
            .collect();
        names.sort();
        names
    }

    /// The device's own file of VFIO, `/dev/vfio/devices/vfioN`, where the kernel has such.
    #[must_use]
    pub fn vfio_file(&self, name: &str) -> Option<PathBuf> {
        let entries = fs::read_dir(self.device_path(name).join("vfio-dev")).ok()?;
        let file = entries.flatten().next()?.file_name();
        Some(Path::new("/dev/vfio/devices").join(file))
    }

    fn list_known(&self) -> String {
        let names = self.known_devices();
        if names.is_empty() { "none".into() } else { names.join(", ") }
    }

    fn group(&self, device: &Path, name: &str) -> Result<Option<IommuGroup>, BusError> {
        let link = device.join("iommu_group");
        let Some(number) = link_name(&link).and_then(|number| number.parse().ok()) else {
            return Ok(None);
        };
        let members = link.join("devices");
        let describe = |error: io::Error| BusError::os(format!("reading {members:?}"), error);
        let mut siblings = Vec::new();
        for entry in fs::read_dir(&members).map_err(describe)? {
            let Ok(sibling) = entry.map_err(describe)?.file_name().into_string() else { continue };
            if sibling != name {
                let driver = link_name(&self.device_path(&sibling).join("driver"));
                siblings.push(Sibling { name: sibling, driver });
            }
        }
        siblings.sort_by(|a, b| a.name.cmp(&b.name));
        let kind = fs::read_to_string(link.join("name")).unwrap_or_default();
        Ok(Some(IommuGroup { number, is_noiommu: kind.trim() == "vfio-noiommu", siblings }))
    }

    /// The ranges of I/O addresses that the IOMMU keeps for itself (the MSI window and so on).
    ///
    /// # Errors
    ///
    /// [`BusError::Os`] for a line that cannot be read; a missing file is an empty list.
    pub fn reserved_regions(&self, group: u32) -> Result<Vec<(u64, u64)>, BusError> {
        let path = self.root.join(format!("kernel/iommu_groups/{group}/reserved_regions"));
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(BusError::os(format!("reading {path:?}"), error)),
        };
        let parse = |line: &str| {
            let mut words = line.split_whitespace();
            let mut number = || {
                let word = words.next()?;
                u64::from_str_radix(word.trim_start_matches("0x"), 16).ok()
            };
            Some((number()?, number()?)).filter(|(start, end)| start <= end)
        };
        text.lines()
            .map(|line| {
                parse(line).ok_or_else(|| {
                    BusError::os(format!("line {line:?} of {path:?}"), invalid("a range"))
                })
            })
            .collect()
    }
}

impl PciDevice {
    /// Checks everything that can be known before VFIO is asked.
    ///
    /// `also_accept` are vendor and device ids beside those of [`KNOWN_DEVICES`].
    ///
    /// # Errors
    ///
    /// In this order: [`BusError::WrongPciId`], [`BusError::NoIommuGroup`],
    /// [`BusError::NotBoundToVfio`], [`BusError::GroupNotViable`].
    pub fn check_ready(&self, also_accept: &[(u16, u16)]) -> Result<&IommuGroup, BusError> {
        let identity = &self.identity;
        let name = identity.name.clone();
        let is_accepted = also_accept.contains(&(identity.vendor, identity.device));
        if identity.known().is_none() && !is_accepted {
            let accepted = accepted_ids();
            let (vendor, device) = (identity.vendor, identity.device);
            return Err(BusError::WrongPciId { name, vendor, device, accepted });
        }
        let group = match &self.group {
            Some(group) if !group.is_noiommu => group,
            _ => return Err(BusError::NoIommuGroup { name }),
        };
        if self.driver.as_deref() != Some("vfio-pci") {
            let driver = self.driver.clone().unwrap_or_else(|| "no driver".into());
            return Err(BusError::NotBoundToVfio { name, driver });
        }
        let in_the_way: Vec<String> = group
            .siblings
            .iter()
            .filter_map(|sibling| {
                let driver = sibling.driver.as_deref()?;
                // The drivers that Linux's VFIO allows beside its own: they do no DMA.
                let harmless =
                    driver.starts_with("vfio") || ["pci-stub", "pcieport"].contains(&driver);
                (!harmless).then(|| format!("{} ({driver})", sibling.name))
            })
            .collect();
        if in_the_way.is_empty() {
            return Ok(group);
        }
        let siblings = in_the_way.join(", ");
        Err(BusError::GroupNotViable { name, group: group.number, siblings })
    }
}

/// The accepted ids, for an error message.
fn accepted_ids() -> String {
    let ids: Vec<String> =
        KNOWN_DEVICES.iter().map(|known| format!("{:04x}", known.device)).collect();
    let vendor = PciIdentity::VENDOR_MELLANOX;
    format!("ConnectX-4 and later, vendor {vendor:04x}, devices {}", ids.join(" "))
}

/// Checks an address and adds the domain where it is missing.
fn canonical_address(address: &str) -> Result<String, BusError> {
    let bad = || BusError::BadPciAddress { value: address.into() };
    let full = match address.matches(':').count() {
        1 => format!("0000:{address}"),
        _ => address.to_owned(),
    };
    let (domain_bus, rest) = full.rsplit_once(':').ok_or_else(bad)?;
    let (domain, bus) = domain_bus.split_once(':').ok_or_else(bad)?;
    let (slot, function) = rest.split_once('.').ok_or_else(bad)?;
    let is_hex = |text: &str, digits: std::ops::RangeInclusive<usize>| {
        digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let ok = is_hex(domain, 4..=8)
        && is_hex(bus, 2..=2)
        && is_hex(slot, 2..=2)
        && function.len() == 1
        && function.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    if ok { Ok(full.to_ascii_lowercase()) } else { Err(bad()) }
}

/// The last component of a link's target.
fn link_name(link: &Path) -> Option<String> {
    fs::read_link(link).ok()?.file_name()?.to_str().map(str::to_owned)
}

/// Reads a file that holds one number such as `0x15b3`.
fn hex(path: &Path) -> Result<u32, BusError> {
    let describe = |error| BusError::os(format!("reading {path:?}"), error);
    let text = fs::read_to_string(path).map_err(describe)?;
    u32::from_str_radix(text.trim().trim_start_matches("0x"), 16)
        .map_err(|_| describe(invalid("a hexadecimal number")))
}

/// PCI ids have 16 bits; anything longer in sysfs is not an id of ours.
fn narrow(value: u32) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
}

fn invalid(expected: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("expected {expected}"))
}

#[cfg(all(test, not(miri)))]
mod tests;
