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
mod dma;
mod files;
mod iommufd;
mod irq;
mod notice;
mod space;
mod sys;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use vfio_ioctls::{VfioContainer, VfioError};

use self::bar::{ConfigSpace, MappedBar};
use self::dma::VfioDma;
pub use self::files::LentFiles;
use self::iommufd::{Ioas, Linux};
use self::irq::VfioInterrupts;
use self::notice::Notices;
use self::space::Space;
use crate::sysfs::Sysfs;
use crate::{Bar, BusError, DmaSpace, Interrupts, Notice, PciIdentity, Transport};

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
    /// Which of the kernel's interfaces to open the device by. Lent files say it themselves.
    pub interface: Interface,
    /// The device's files, where somebody else opened them: then this process needs no rights. Each
    /// open takes copies; the lent files stay open as long as this is kept.
    pub lent: Option<Arc<LentFiles>>,
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

/// A device opened through VFIO.
pub struct VfioTransport {
    bar: Arc<MappedBar>,
    dma: Arc<VfioDma>,
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
    /// What [`Sysfs::device`] and [`crate::sysfs::PciDevice::check_ready`] say;
    /// [`BusError::Vfio`] where VFIO refuses; [`BusError::DeviceGone`] when its registers read as
    /// ones. Nothing stays open or mapped after an error.
    pub fn open(config: &VfioConfig) -> Result<Arc<Self>, BusError> {
        let found = config.sysfs.device(&config.address)?;
        let group = found.check_ready(&config.also_accept)?.number;
        let reserved = config.sysfs.reserved_regions(group)?;
        let vfio = Arc::new(OpenDevice::open(config, found.identity, group)?);

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
        let notices = Notices::subscribe(vfio.as_fd(), &vfio.identity.name)?;
        Ok(Arc::new(Self { bar, dma, interrupts, config: space, notices, vfio }))
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

/// The open device with what it hangs on; closed when the last mapping is gone.
struct OpenDevice {
    device: OwnedFd,
    /// Without its group, a device's file is closed.
    _group: Option<OwnedFd>,
    space: Space,
    identity: PciIdentity,
}

impl OpenDevice {
    fn open(config: &VfioConfig, identity: PciIdentity, group: u32) -> Result<Self, BusError> {
        if let Some(lent) = &config.lent {
            return Self::of_lent(lent, identity);
        }
        let name = identity.name.clone();
        match config.interface {
            Interface::Group => Self::by_group(identity, group),
            Interface::Device => Self::by_file(&config.sysfs, identity).map_err(|(what, error)| {
                let way_out = "; the kernel needs VFIO_DEVICE_CDEV and iommufd, the user the files";
                BusError::os(format!("{what} of device {name}"), with(error, way_out))
            }),
            Interface::Auto => match Self::by_file(&config.sysfs, identity.clone()) {
                Ok(open) => Ok(open),
                Err((what, error)) if files::is_out_of_reach(&error) => {
                    tracing::debug!(name, what, %error, "by its group then");
                    Self::by_group(identity, group)
                }
                Err((what, error)) => Err(BusError::os(format!("{what} of device {name}"), error)),
            },
        }
    }

    /// The older interface.
    fn by_group(identity: PciIdentity, number: u32) -> Result<Self, BusError> {
        let container = VfioContainer::new(None).map_err(|source| BusError::Vfio {
            what: "opening the VFIO container",
            name: identity.name.clone(),
            hint: hint(&source),
            source,
        })?;
        let path = PathBuf::from(format!("/dev/vfio/{number}"));
        let group = files::open(&path).map_err(|error| {
            let way_out = group_hint(&error);
            let what = format!("opening {} for device {}", path.display(), identity.name);
            BusError::os(what, with(error, way_out))
        })?;
        let name = identity.name.clone();
        let device = files::device_of_group(container.as_raw_fd(), group.as_fd(), &name)?;
        Ok(Self { device, _group: Some(group), space: Space::Container(container), identity })
    }

    /// The newer interface; an error comes with what was being done.
    fn by_file(
        sysfs: &Sysfs,
        identity: PciIdentity,
    ) -> Result<Self, (&'static str, std::io::Error)> {
        let file = sysfs.vfio_file(&identity.name).ok_or_else(|| {
            let error = std::io::Error::from(std::io::ErrorKind::NotFound);
            ("looking for the file", error)
        })?;
        let iommufd =
            files::open("/dev/iommu".as_ref()).map_err(|error| ("opening /dev/iommu", error))?;
        let device = files::open(&file).map_err(|error| ("opening the file", error))?;
        let space = Ioas::attach(Arc::new(Linux), iommufd, device.as_fd())
            .map_err(|error| ("binding the file to iommufd", error))?;
        tracing::debug!(name = identity.name, file = %file.display(), "opened by its own file");
        Ok(Self { device, _group: None, space: Space::Ioas(space), identity })
    }

    /// Either, with files that are open already.
    fn of_lent(lent: &LentFiles, identity: PciIdentity) -> Result<Self, BusError> {
        let name = identity.name.clone();
        let copy = |file: &OwnedFd| {
            file.try_clone().map_err(|error| {
                BusError::os(format!("copying a lent file of device {name}"), error)
            })
        };
        match lent {
            LentFiles::Group { container, group } => {
                let (container, group) = (copy(container)?, copy(group)?);
                let device = files::device_of_group(container.as_raw_fd(), group.as_fd(), &name)?;
                Ok(Self { device, _group: Some(group), space: Space::Lent(container), identity })
            }
            LentFiles::Device { iommufd, device } => {
                let (iommufd, device) = (copy(iommufd)?, copy(device)?);
                let space = Ioas::attach(Arc::new(Linux), iommufd, device.as_fd());
                let space = space.map_err(|error| {
                    let way_out =
                        "; lend /dev/vfio/vfio and the group, or /dev/iommu and the device";
                    let what = format!("binding the lent file of device {name}");
                    BusError::os(what, with(error, way_out))
                })?;
                Ok(Self { device, _group: None, space: Space::Ioas(space), identity })
            }
        }
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
        let name = self.identity.name.clone();
        let areas = sys::mappable(self.as_fd(), info)
            .map_err(|error| BusError::os(format!("BAR 0 of device {name}"), error))?;
        MappedBar::new(Arc::clone(self) as _, name, info.offset, info.size, &areas)
    }
}

/// An error with the way out behind it.
fn with(error: std::io::Error, way_out: &str) -> std::io::Error {
    std::io::Error::new(error.kind(), format!("{error}{way_out}"))
}

/// The way out of a group that cannot be opened.
fn group_hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            "; give this user the file (chown, or a rule of udev), or start as root"
        }
        std::io::ErrorKind::ResourceBusy => "; another process uses the group, end that one first",
        _ => "",
    }
}

/// The way out of the usual refusals.
fn hint(error: &VfioError) -> &'static str {
    match error {
        VfioError::OpenContainer(_) => {
            "; load the module (`modprobe vfio-pci`) and run with access to /dev/vfio/vfio"
        }
        VfioError::VfioExtension => {
            "; load vfio_iommu_type1, and look for \"no interrupt remapping\" in the kernel log"
        }
        _ => "",
    }
}

impl AsFd for OpenDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}
