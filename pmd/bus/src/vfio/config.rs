//! How a device is to be opened.

use std::sync::Arc;

use super::domain::AddressSpace;
use super::files::LentFiles;
use crate::sysfs::Sysfs;

/// Address, interface and files by which a device is opened.
#[derive(Debug, Clone, Default)]
pub struct VfioConfig {
    /// PCI address: `0000:3b:00.0` or `3b:00.0`.
    pub address: String,
    /// Chooses the first I/O address; `None` takes a random one.
    pub seed: Option<u64>,
    /// Vendor and device ids to accept beside [`crate::KNOWN_DEVICES`]: a newer or a test's device.
    pub also_accept: Vec<(u16, u16)>,
    /// Tree to look the device up in; the default is `/sys`.
    pub sysfs: Sysfs,
    /// Interface of the kernel to open the device by. Lent files say it themselves.
    pub interface: Interface,
    /// The device's files, where somebody else opened them: then this process needs no rights. Each
    /// open takes copies; the lent files stay open as long as this is kept.
    pub lent: Option<Arc<LentFiles>>,
    /// The address space to share with other devices; `None` gives the device one of its own.
    pub space: Option<Arc<AddressSpace>>,
}

/// The kernel's interfaces to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Interface {
    /// The device's file, where it is there for this user; else the group's.
    #[default]
    Auto,
    /// `/dev/vfio/GROUP` and a container.
    Group,
    /// `/dev/vfio/devices/vfioN` and iommufd.
    Device,
}
