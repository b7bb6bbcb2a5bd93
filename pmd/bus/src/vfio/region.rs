//! [`VfioBar`]: a BAR of a device that is bound to vfio-pci, as memory for another device.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::bar::ConfigSpace;
use super::config::VfioConfig;
use super::open::{OpenDevice, with};
use super::sys;
use crate::BusError;

/// BARs have regions 0 to 5. Source: Linux `include/uapi/linux/vfio.h`,
/// `VFIO_PCI_BAR0_REGION_INDEX` and those behind it.
const BARS: u8 = 6;

/// A BAR of any PCI device that vfio-pci has, open until this is dropped: memory for a NIC to read
/// and write, which is how a device without a driver of the kernel lends its own.
///
/// The device itself does nothing: it is no bus master. The NIC's own container maps the memory,
/// as part of this process' address space: the type1 IOMMU takes such mappings, iommufd does not.
pub struct VfioBar {
    device: Arc<OpenDevice>,
    index: u8,
    file_offset: u64,
    len_bytes: u64,
}

impl VfioBar {
    /// Opens a device of any vendor, whose group no other adapter is in, and looks at its BAR.
    ///
    /// # Errors
    ///
    /// As [`super::VfioTransport::open`]; [`BusError::Os`] for a BAR that is not there, is made of
    /// I/O ports, or that the kernel lets be mapped in parts only.
    pub fn open(address: &str, bar: u8) -> Result<Self, BusError> {
        let mut config = VfioConfig { address: address.to_owned(), ..VfioConfig::default() };
        let found = config.sysfs.device(address)?;
        config.also_accept = vec![(found.identity.vendor, found.identity.device)];
        let group = found.check_ready(&config.also_accept)?.number;
        let device = OpenDevice::open(&config, found.identity, group)?;
        let info = device.region_info(sys::CONFIG_REGION)?;
        let space = ConfigSpace::new(Arc::clone(&device) as _, info.offset);
        space.check(&device.identity)?;
        space.enable_memory()?;
        let refuse = |error: io::Error| {
            BusError::os(format!("BAR {bar} of device {}", device.identity.name), error)
        };
        if bar >= BARS {
            return Err(refuse(io::Error::other("BARs have numbers from 0 to 5")));
        }
        let info = device.region_info(bar.into())?;
        match sys::mappable(device.as_fd(), info).map_err(refuse)?[..] {
            [(0, len)] if len == info.size && len != 0 => {}
            _ => {
                let what = "it is no memory that can be mapped as a whole (`lspci -v` lists BARs)";
                return Err(refuse(io::Error::other(what)));
            }
        }
        Ok(Self { index: bar, file_offset: info.offset, len_bytes: info.size, device })
    }

    /// A copy of the device's file, to map the BAR from.
    ///
    /// # Errors
    ///
    /// [`BusError::Os`]: no more files may be open.
    pub fn file(&self) -> Result<OwnedFd, BusError> {
        let what = || format!("copying the file of device {}", self.device.identity.name);
        self.device.as_fd().try_clone_to_owned().map_err(|error| BusError::os(what(), error))
    }

    /// A dma-buf of the whole BAR, for drivers and processes that take such files: RDMA drivers of
    /// the kernel, iommufd, another process that may not open the device.
    ///
    /// # Errors
    ///
    /// [`BusError::Os`]: the kernel has no VFIO_PCI_DMABUF (Linux 6.19; Debian's backports have
    /// it), or the device no memory that others may reach.
    pub fn export_dma_buf(&self) -> Result<OwnedFd, BusError> {
        let Self { device, index, len_bytes, .. } = self;
        sys::export_dma_buf(device.as_fd(), (*index).into(), 0, *len_bytes).map_err(|error| {
            let way_out = match error.raw_os_error() {
                Some(libc::ENOTTY) => {
                    "; it takes a kernel with VFIO_PCI_DMABUF, Linux 6.19 or newer"
                }
                _ => "",
            };
            let what = format!("exporting BAR {index} of device {}", device.identity.name);
            BusError::os(what, with(error, way_out))
        })
    }

    /// Where the BAR starts in that file.
    #[must_use]
    pub fn file_offset(&self) -> u64 {
        self.file_offset
    }

    /// Length of the BAR.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }
}

impl fmt::Debug for VfioBar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VfioBar")
            .field("device", &self.device.identity.name)
            .field("index", &self.index)
            .field("len_bytes", &self.len_bytes)
            .finish_non_exhaustive()
    }
}
