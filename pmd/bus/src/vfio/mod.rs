//! The transport to a real device: Linux VFIO with a group, a container and the type1 IOMMU.
//!
//! **Never run on hardware.** Its judge is the virtual lab (`scripts/vm-lab run vfio-nvme`): Linux'
//! VFIO and an emulated IOMMU in front of a device that strangers wrote, QEMU's NVMe controller.
//! That covers registers, DMA and its refusals, MSI-X, reset, reopening and the memlock limit, not
//! doorbells. What needs no kernel (sysfs checks, IOMMU capabilities, register access through
//! mapped and unmapped pages, configuration space) has unit tests over recorded data.
//!
//! # Interfaces
//!
//! The newer one, a file for each device and an address space of iommufd, where the kernel has it
//! and this user may open the files; else a group and a container. [`VfioConfig::interface`] asks
//! for one of them; [`VfioConfig::lent`] are files of either that a launcher opened.
//!
//! A device has an address space of its own, unless several are opened with one [`AddressSpace`]:
//! that is a container with all their groups, or one address space of iommufd.
//!
//! # Use of `vfio-ioctls`, and its limits
//!
//! The crate opens and checks the container and maps memory. This module does itself what version
//! 0.10 does not do or not do well:
//!
//! - It takes no file that is open already, and drops its device with a panic when that left sysfs:
//!   group and device are opened here.
//! - `region_read` and `region_write` only log a failure and leave the buffer as it was: registers
//!   are mapped here, and configuration space is read with `pread`, whose errors count.
//! - `vfio_dma_map` always maps for reading and writing: other access is mapped here.
//! - `reset` and `enable_msix` drop the system's reason: both are called here.
//! - It does not ask the IOMMU for usable addresses: done here.
//! - Its iommufd needs a feature that pulls in KVM bindings: the six calls are made here.

mod bar;
mod config;
mod domain;
mod files;
mod iommufd;
mod irq;
mod notice;
mod open;
mod region;
mod space;
mod sys;

use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;

use self::bar::{ConfigSpace, MappedBar};
pub use self::config::{Interface, VfioConfig};
pub use self::domain::AddressSpace;
pub use self::files::LentFiles;
use self::irq::VfioInterrupts;
use self::notice::Notices;
use self::open::OpenDevice;
pub use self::region::VfioBar;
use crate::{Bar, BarClaim, BusError, DmaSpace, Interrupts, Notice, PciIdentity, Transport};

/// A device opened through VFIO.
///
/// Closing it lets the kernel reset the device. For one that answers nothing, not even reads of
/// its configuration space, the kernel waits up to a minute, and the thread that drops the last
/// handle with it; one that was unplugged in good order is not waited for.
pub struct VfioTransport {
    bar: Arc<MappedBar>,
    interrupts: Arc<VfioInterrupts>,
    config: ConfigSpace,
    notices: Notices,
    vfio: Arc<OpenDevice>,
}

impl VfioTransport {
    /// Opens a device that is bound to vfio-pci, maps its BAR and lets it be a bus master.
    ///
    /// # Errors
    ///
    /// The errors of [`crate::sysfs::Sysfs::device`] and
    /// [`crate::sysfs::PciDevice::check_ready`];
    /// [`BusError::Vfio`] where VFIO refuses; [`BusError::NotShareable`] when the device cannot
    /// join [`VfioConfig::space`]; [`BusError::DeviceGone`] when its registers read as ones.
    /// Nothing stays open or mapped after an error.
    pub fn open(config: &VfioConfig) -> Result<Arc<Self>, BusError> {
        let found = config.sysfs.device(&config.address)?;
        let group = found.check_ready(&config.also_accept)?.number;
        let vfio = OpenDevice::open(config, found.identity, group)?;

        let config_info = vfio.region_info(sys::CONFIG_REGION)?;
        let space = ConfigSpace::new(Arc::clone(&vfio) as _, config_info.offset);
        space.check(&vfio.identity)?;
        space.enable_bus_master()?;

        let bar = Arc::new(vfio.map_bar0()?);
        if bar.read_be32(0) == u32::MAX {
            return Err(vfio.gone());
        }
        let interrupts = Arc::new(VfioInterrupts::new(Arc::clone(&vfio)));
        let notices = Notices::subscribe(vfio.as_fd(), &vfio.identity.name)?;
        Ok(Arc::new(Self { bar, interrupts, config: space, notices, vfio }))
    }
}

impl Transport for VfioTransport {
    fn bar(&self, _: BarClaim) -> Arc<dyn Bar> {
        Arc::clone(&self.bar) as Arc<dyn Bar>
    }

    fn dma(&self) -> Arc<dyn DmaSpace> {
        Arc::clone(&self.vfio) as Arc<dyn DmaSpace>
    }

    fn interrupts(&self) -> Arc<dyn Interrupts> {
        Arc::clone(&self.interrupts) as Arc<dyn Interrupts>
    }

    fn identity(&self) -> &PciIdentity {
        &self.vfio.identity
    }

    fn name(&self) -> &'static str {
        "vfio"
    }

    /// Resets the device and waits for it; the kernel restores the configuration space.
    fn reset(&self) -> Result<(), BusError> {
        sys::reset(self.vfio.as_fd()).map_err(|error| {
            BusError::os(format!("resetting device {}", self.vfio.identity.name), error)
        })?;
        self.config.enable_bus_master()
    }

    fn notice(&self) -> Option<Notice> {
        self.notices.latest()
    }

    /// Always: [`Transport::reset`] returned after the reset.
    fn reset_complete(&self) -> bool {
        true
    }
}

impl fmt::Debug for VfioTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VfioTransport")
            .field("identity", &self.vfio.identity)
            .field("bar", &self.bar)
            .finish_non_exhaustive()
    }
}

impl Drop for VfioTransport {
    /// Stops the device's DMA. Mappings may live on in other handles and lose nothing by it.
    fn drop(&mut self) {
        if let Err(error) = self.config.disable_bus_master() {
            tracing::warn!(%error, "the device stays a bus master until its file is closed");
        }
    }
}
