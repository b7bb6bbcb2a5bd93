//! The transport to a real device: Linux VFIO with a group, a container and the type1 IOMMU.
//!
//! **Never run on hardware.** Its judge is the virtual lab (`scripts/vm-lab run vfio-nvme`): Linux'
//! VFIO and an emulated IOMMU in front of a device that strangers wrote, QEMU's NVMe controller.
//! That covers registers, DMA and its refusals, MSI-X, reset, reopening and the memlock limit, not
//! doorbells. What needs no kernel (sysfs checks, IOMMU capabilities, register access through
//! mapped and unmapped pages, configuration space) has unit tests over recorded data.
//!
//! # Use of `vfio-ioctls`, and its limits
//!
//! The crate opens container, group and device, reports interrupts and region capabilities, and
//! maps and unmaps memory. This module does itself what version 0.10 does not do or not do well:
//!
//! - `region_read` and `region_write` only log a failure and leave the buffer as it was: registers
//!   are mapped here, and configuration space is read with `pread`, whose errors count.
//! - A region whose description fails is skipped in its list, which shifts all later numbers: the
//!   BAR and the configuration space are asked for by index here, and compared.
//! - `vfio_dma_map` always maps for reading and writing: other access is mapped here.
//! - `reset` and `enable_msix` drop the system's reason: both are called here.
//! - It does not ask the IOMMU for usable addresses: done here.
//! - Dropping its device panics when the device left sysfs: it is leaked then.
//!
//! The newer interface (one file per device, iommufd) needs a feature of the crate that pulls in
//! KVM bindings, and no Debian kernel to test against has it: not supported.

mod bar;
mod dma;
mod irq;
mod sys;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;

use vfio_ioctls::{VfioContainer, VfioDevice, VfioError, VfioRegionInfoCap};

use self::bar::{ConfigSpace, MappedBar};
use self::dma::VfioDma;
use self::irq::VfioInterrupts;
use crate::sysfs::Sysfs;
use crate::{Bar, BusError, DmaSpace, Interrupts, PciIdentity, Transport};

/// Index of BAR 0, where a ConnectX has its registers.
///
/// # Source
///
/// Linux `include/uapi/linux/vfio.h`, `VFIO_PCI_BAR0_REGION_INDEX`.
const BAR0_REGION: u32 = 0;

/// Index of the configuration space. Same source, `VFIO_PCI_CONFIG_REGION_INDEX`.
const CONFIG_REGION: u32 = 7;

/// Index of the MSI-X interrupts. Same source, `VFIO_PCI_MSIX_IRQ_INDEX`.
const MSIX_IRQ: u32 = 2;

/// How to open a device.
#[derive(Debug, Clone, Default)]
pub struct VfioConfig {
    /// PCI address: `0000:3b:00.0` or `3b:00.0`.
    pub address: String,
    /// Chooses the first I/O address; `None` takes a random one.
    pub seed: Option<u64>,
    /// Vendor and device ids to accept beside [`crate::KNOWN_DEVICES`]: a newer or a test's device.
    pub also_accept: Vec<(u16, u16)>,
    /// Where to look the device up; the default is `/sys`.
    pub sysfs: Sysfs,
}

/// A device opened through VFIO.
pub struct VfioTransport {
    bar: Arc<MappedBar>,
    dma: Arc<VfioDma>,
    interrupts: Arc<VfioInterrupts>,
    config: ConfigSpace,
    vfio: Arc<OpenDevice>,
}

impl VfioTransport {
    /// Opens a device that is bound to vfio-pci, maps its BAR and lets it be a bus master.
    ///
    /// # Errors
    ///
    /// What [`Sysfs::device`] and [`crate::sysfs::PciDevice::check_ready`] say;
    /// [`BusError::Vfio`] where VFIO refuses; [`BusError::DeviceGone`] when its registers read as
    /// ones. Nothing stays open or mapped after an error.
    pub fn open(config: &VfioConfig) -> Result<Arc<Self>, BusError> {
        let found = config.sysfs.device(&config.address)?;
        let group = found.check_ready(&config.also_accept)?.number;
        let reserved = config.sysfs.reserved_regions(group)?;
        let path = config.sysfs.device_path(&found.identity.name);
        let vfio = Arc::new(OpenDevice::open(found.identity, path)?);

        let config_info = vfio.region_info(CONFIG_REGION)?;
        let space = ConfigSpace::new(Arc::clone(&vfio) as _, config_info.offset);
        check_config(&space, &vfio.identity)?;
        space.enable_bus_master()?;

        let bar = Arc::new(vfio.map_bar0()?);
        if bar.read_be32(0) == u32::MAX {
            return Err(vfio.gone());
        }
        let seed = config.seed.unwrap_or_else(|| RandomState::new().hash_one(0_u8));
        let dma = Arc::new(VfioDma::new(Arc::clone(&vfio), &reserved, seed)?);
        let interrupts = Arc::new(VfioInterrupts::new(Arc::clone(&vfio)));
        Ok(Arc::new(Self { bar, dma, interrupts, config: space, vfio }))
    }
}

/// Compares the device's own ids with those in sysfs.
fn check_config(space: &ConfigSpace, identity: &PciIdentity) -> Result<(), BusError> {
    let ids = space.read_u32(0)?;
    if ids == u32::MAX {
        return Err(BusError::DeviceGone { name: identity.name.clone() });
    }
    let expected = u32::from(identity.device) << 16 | u32::from(identity.vendor);
    if ids != expected {
        let found = format!("expected PCI ids {expected:#010x}, found {ids:#010x}");
        let error = std::io::Error::new(std::io::ErrorKind::InvalidData, found);
        let what = format!("configuration space of device {}", identity.name);
        return Err(BusError::os(what, error));
    }
    Ok(())
}

impl Transport for VfioTransport {
    fn bar(&self) -> Arc<dyn Bar> {
        Arc::clone(&self.bar) as Arc<dyn Bar>
    }

    fn dma(&self) -> Arc<dyn DmaSpace> {
        Arc::clone(&self.dma) as Arc<dyn DmaSpace>
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

/// The open device, its group and container; closed when the last mapping is gone.
struct OpenDevice {
    device: ManuallyDrop<VfioDevice>,
    container: Arc<VfioContainer>,
    identity: PciIdentity,
    sysfs_path: PathBuf,
}

impl OpenDevice {
    fn open(identity: PciIdentity, sysfs_path: PathBuf) -> Result<Self, BusError> {
        let refuse = |what| {
            let name = identity.name.clone();
            move |source: VfioError| {
                let hint = hint(&source);
                BusError::Vfio { what, name, source, hint }
            }
        };
        let container = VfioContainer::new(None).map_err(refuse("opening the VFIO container"))?;
        let container = Arc::new(container);
        let device = VfioDevice::new(&sysfs_path, Arc::clone(&container) as _, false)
            .map_err(refuse("opening the VFIO group"))?;
        Ok(Self { device: ManuallyDrop::new(device), container, identity, sysfs_path })
    }

    fn gone(&self) -> BusError {
        BusError::DeviceGone { name: self.identity.name.clone() }
    }

    fn region_info(&self, index: u32) -> Result<sys::RegionInfo, BusError> {
        sys::region_info(self.as_fd(), index).map_err(|error| {
            BusError::os(format!("region {index} of device {}", self.identity.name), error)
        })
    }

    /// Maps BAR 0, or the parts of it that the kernel allows.
    fn map_bar0(self: &Arc<Self>) -> Result<MappedBar, BusError> {
        let info = self.region_info(BAR0_REGION)?;
        let mut areas = vec![(0, info.size)];
        // The crate's list is trusted only where it agrees on which region is number 0.
        if self.device.get_region_offset(BAR0_REGION) == info.offset {
            for cap in self.device.get_region_caps(BAR0_REGION) {
                if let VfioRegionInfoCap::SparseMmap(sparse) = cap {
                    areas = sparse.areas.iter().map(|area| (area.offset, area.size)).collect();
                }
            }
        }
        if !info.can_mmap() {
            areas.clear();
        }
        let name = self.identity.name.clone();
        MappedBar::new(Arc::clone(self) as _, name, info.offset, info.size, &areas)
    }
}

/// The way out of the usual refusals.
fn hint(error: &VfioError) -> &'static str {
    match error {
        VfioError::OpenContainer(_) => {
            "; load the module (`modprobe vfio-pci`) and run with access to /dev/vfio/vfio"
        }
        VfioError::OpenGroup(..) => {
            "; another process may have it open, or this user has no access to /dev/vfio/GROUP"
        }
        VfioError::GroupViable => {
            "; bind every device of the group to vfio-pci, or end the process that uses the group"
        }
        VfioError::VfioExtension | VfioError::ContainerSetIOMMU(_) => {
            "; load vfio_iommu_type1, and look for \"no interrupt remapping\" in the kernel log"
        }
        _ => "",
    }
}

impl AsFd for OpenDevice {
    #[expect(unsafe_code, reason = "the crate lends its file as a number only")]
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the device keeps its file open until it is dropped, which `&self` outlives.
        unsafe { BorrowedFd::borrow_raw(self.device.as_raw_fd()) }
    }
}

impl Drop for OpenDevice {
    #[expect(unsafe_code, reason = "the device is dropped in one of two ways")]
    fn drop(&mut self) {
        // The crate looks the group up in sysfs when its device is dropped, and panics without it.
        if self.sysfs_path.join("iommu_group").exists() {
            // SAFETY: dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.device) };
        } else {
            tracing::error!(
                name = self.identity.name,
                "device left the system; its file is leaked"
            );
        }
    }
}
