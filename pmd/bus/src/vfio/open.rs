//! Opening a device, and joining it to an address space.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use ferrocx_mempool::Region;
use vfio_ioctls::{VfioContainer, VfioError};

use super::bar::MappedBar;
use super::config::{Interface, VfioConfig};
use super::domain::{AddressSpace, Domain};
use super::files::{self, LentFiles};
use super::iommufd::{Ioas, Linux};
use super::space::Space;
use super::sys;
use crate::sysfs::Sysfs;
use crate::{BusError, DmaAccess, DmaLimits, DmaMapping, DmaSpace, PciIdentity};

/// An open device and the domain it belongs to.
pub(super) struct OpenDevice {
    device: OwnedFd,
    /// Its group's file, which keeps the group in the container; none with iommufd.
    pub(super) group: Option<Arc<OwnedFd>>,
    pub(super) domain: Arc<Domain>,
    /// The domain knows by it whether the device is open.
    pub(super) identity: Arc<PciIdentity>,
}

/// A device's files, and the address space if it is a new one.
struct Joined {
    device: OwnedFd,
    group: Option<Arc<OwnedFd>>,
    new: Option<Space>,
}

impl OpenDevice {
    /// Opens the device and puts it into the configured address space, or one of its own.
    pub(super) fn open(
        config: &VfioConfig,
        identity: PciIdentity,
        number: u32,
    ) -> Result<Arc<Self>, BusError> {
        let own = AddressSpace::default();
        let space = config.space.as_deref().unwrap_or(&own);
        let reserved = config.sysfs.reserved_regions(number)?;
        let mut slot = space.domain.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.as_ref().is_some_and(|domain| domain.has(&identity.name)) {
            return Err(not_shareable(&identity.name, "it is in it already; open it once"));
        }
        let joined = join(config, &identity, number, slot.as_deref())?;
        let domain = match (joined.new, &*slot) {
            (None, Some(domain)) => {
                domain.restrict(&identity.name, &reserved)?;
                Arc::clone(domain)
            }
            (new, _) => {
                let new = new.expect("the first device opens the address space");
                let seed = config.seed.unwrap_or_else(|| RandomState::new().hash_one(0_u8));
                let is_shared = config.space.is_some();
                Arc::new(Domain::new(new, &identity.name, &reserved, seed, is_shared)?)
            }
        };
        let Joined { device, group, .. } = joined;
        let identity = Arc::new(identity);
        domain.add(&identity, number, group.as_ref());
        if let (Some(_), Some(group)) = (&config.lent, &group) {
            domain.keep(number, group);
        }
        *slot = Some(Arc::clone(&domain));
        Ok(Arc::new(Self { device, group, domain, identity }))
    }

    /// Every register reads as ones.
    pub(super) fn gone(&self) -> BusError {
        BusError::DeviceGone { name: self.identity.name.clone() }
    }

    pub(super) fn region_info(&self, index: u32) -> Result<sys::RegionInfo, BusError> {
        sys::region_info(self.as_fd(), index).map_err(|error| {
            BusError::os(format!("region {index} of device {}", self.identity.name), error)
        })
    }

    /// Maps BAR 0, or the parts of it that the kernel allows.
    pub(super) fn map_bar0(self: &Arc<Self>) -> Result<MappedBar, BusError> {
        let info = self.region_info(sys::BAR0_REGION)?;
        let name = self.identity.name.clone();
        let areas = sys::mappable(self.as_fd(), info)
            .map_err(|error| BusError::os(format!("BAR 0 of device {name}"), error))?;
        MappedBar::new(Arc::clone(self) as _, name, info.offset, info.size, &areas)
    }
}

impl DmaSpace for OpenDevice {
    fn map(&self, region: Arc<Region>, access: DmaAccess) -> Result<Arc<DmaMapping>, BusError> {
        self.domain.map(self.group.as_ref(), region, access)
    }

    fn unmap_all(&self) -> Result<(), BusError> {
        self.domain.unmap_all(&self.identity)
    }

    fn limits(&self) -> DmaLimits {
        self.domain.limits()
    }
}

impl fmt::Debug for OpenDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenDevice").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl AsFd for OpenDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

fn not_shareable(name: &str, why: &'static str) -> BusError {
    BusError::NotShareable { name: name.to_owned(), why }
}

/// Opens the device's files; the device is then in `shared`, or in the new space that is returned.
fn join(
    config: &VfioConfig,
    identity: &PciIdentity,
    number: u32,
    shared: Option<&Domain>,
) -> Result<Joined, BusError> {
    let name = &identity.name;
    if let Some(lent) = &config.lent {
        return of_lent(lent, name, number, shared);
    }
    let file_error = |(what, error)| {
        let way_out = "; the kernel needs VFIO_DEVICE_CDEV and iommufd, the user the files";
        BusError::os(format!("{what} of device {name}"), with(error, way_out))
    };
    match (config.interface, shared.map(|domain| &domain.space)) {
        (Interface::Group, Some(Space::Ioas(_)))
        | (Interface::Device, Some(Space::Container(_) | Space::Lent(_))) => {
            Err(not_shareable(name, "it was opened by the kernel's other interface"))
        }
        (Interface::Group, _) | (_, Some(Space::Container(_) | Space::Lent(_))) => {
            by_group(name, number, shared)
        }
        (Interface::Device, shared) | (_, shared @ Some(Space::Ioas(_))) => {
            by_file(&config.sysfs, name, shared).map_err(file_error)
        }
        (Interface::Auto, None) => match by_file(&config.sysfs, name, None) {
            Err((what, error)) if files::is_out_of_reach(&error) => {
                tracing::debug!(name, what, %error, "by its group then");
                by_group(name, number, None)
            }
            Err((what, error)) => Err(BusError::os(format!("{what} of device {name}"), error)),
            Ok(joined) => Ok(joined),
        },
    }
}

/// The older interface.
fn by_group(name: &str, number: u32, shared: Option<&Domain>) -> Result<Joined, BusError> {
    let new = match shared {
        Some(_) => None,
        None => Some(VfioContainer::new(None).map_err(|source| BusError::Vfio {
            what: "opening the VFIO container",
            name: name.to_owned(),
            hint: hint(&source),
            source,
        })?),
    };
    let group = match shared.and_then(|domain| domain.group(number)) {
        Some(group) => group,
        None => {
            let path = PathBuf::from(format!("/dev/vfio/{number}"));
            Arc::new(files::open(&path).map_err(|error| {
                let way_out = group_hint(&error);
                let what = format!("opening {} for device {name}", path.display());
                BusError::os(what, with(error, way_out))
            })?)
        }
    };
    let new = new.map(Space::Container);
    let space = new.as_ref().or(shared.map(|domain| &domain.space));
    let container = space.and_then(|space| space.container().ok()).expect("one of both");
    let device = files::device_of_group(container, group.as_fd(), name)?;
    Ok(Joined { device, group: Some(group), new })
}

/// The newer interface; an error comes with what was being done.
fn by_file(
    sysfs: &Sysfs,
    name: &str,
    shared: Option<&Space>,
) -> Result<Joined, (&'static str, std::io::Error)> {
    let file = sysfs.vfio_file(name).ok_or_else(|| {
        let error = std::io::Error::from(std::io::ErrorKind::NotFound);
        ("looking for the file", error)
    })?;
    let open = |path: &std::path::Path, what| files::open(path).map_err(|error| (what, error));
    let binding = |error| ("binding the file to iommufd", error);
    let (device, new) = match shared {
        Some(Space::Ioas(ioas)) => {
            let device = open(&file, "opening the file")?;
            ioas.attach(device.as_fd()).map_err(binding)?;
            (device, None)
        }
        _ => {
            let iommufd = open("/dev/iommu".as_ref(), "opening /dev/iommu")?;
            let device = open(&file, "opening the file")?;
            let ioas = Ioas::with(Arc::new(Linux), iommufd, device.as_fd()).map_err(binding)?;
            (device, Some(Space::Ioas(ioas)))
        }
    };
    tracing::debug!(name, file = %file.display(), "opened by its own file");
    Ok(Joined { device, group: None, new })
}

/// Either, with files that are open already. A shared address space is that of the first device's
/// files; what the others' say of one is not used.
fn of_lent(
    lent: &LentFiles,
    name: &str,
    number: u32,
    shared: Option<&Domain>,
) -> Result<Joined, BusError> {
    let copy = |file: &OwnedFd| {
        file.try_clone()
            .map_err(|error| BusError::os(format!("copying a lent file of device {name}"), error))
    };
    let binding = |error| {
        let way_out = "; lend /dev/vfio/vfio and the group, or /dev/iommu and the device";
        BusError::os(format!("binding the lent file of device {name}"), with(error, way_out))
    };
    match (lent, shared.map(|domain| &domain.space)) {
        (LentFiles::Group { container, group }, None) => {
            let (container, group) = (copy(container)?, Arc::new(copy(group)?));
            let device = files::device_of_group(container.as_raw_fd(), group.as_fd(), name)?;
            Ok(Joined { device, group: Some(group), new: Some(Space::Lent(container)) })
        }
        (LentFiles::Device { iommufd, device }, None) => {
            let (iommufd, device) = (copy(iommufd)?, copy(device)?);
            let ioas = Ioas::with(Arc::new(Linux), iommufd, device.as_fd()).map_err(binding)?;
            Ok(Joined { device, group: None, new: Some(Space::Ioas(ioas)) })
        }
        (LentFiles::Group { group, .. }, Some(Space::Container(_) | Space::Lent(_))) => {
            let known = shared.and_then(|domain| domain.group(number));
            let group = match known {
                Some(group) => group,
                None if files::is_in_container(group.as_fd(), name)? => {
                    let why = "its group is in a container already; lend it before it joins one";
                    return Err(not_shareable(name, why));
                }
                None => Arc::new(copy(group)?),
            };
            let space = shared.and_then(|domain| domain.space.container().ok());
            let container = space.expect("matched above");
            let device = files::device_of_group(container, group.as_fd(), name)?;
            Ok(Joined { device, group: Some(group), new: None })
        }
        (LentFiles::Device { device, .. }, Some(Space::Ioas(ioas))) => {
            let device = copy(device)?;
            ioas.attach(device.as_fd()).map_err(binding)?;
            Ok(Joined { device, group: None, new: None })
        }
        _ => Err(not_shareable(name, "its lent files are of the kernel's other interface")),
    }
}

/// An error with the way out behind it.
pub(super) fn with(error: std::io::Error, way_out: &str) -> std::io::Error {
    std::io::Error::new(error.kind(), format!("{error}{way_out}"))
}

/// The way out of a group that cannot be opened.
fn group_hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            "; give this user the file (chown, or a rule of udev), or start as root"
        }
        std::io::ErrorKind::ResourceBusy => {
            "; another process uses the group, end that one first; or this one has another device \
             of it, and then both need one address space (testpmd: --one-address-space)"
        }
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
