//! Where a device's memory is mapped: a container's IOMMU, or an address space of iommufd.
#![expect(unsafe_code, reason = "mapping memory for a device")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use vfio_ioctls::{VfioContainer, VfioError};

use super::iommufd::{Ioas, MAP_READABLE, MAP_WRITEABLE};
use super::sys::{self, IommuInfo};
use crate::DmaAccess;

/// The IOMMU's side of open devices.
pub(super) enum Space {
    /// A container that was opened here.
    Container(VfioContainer),
    /// A container that was lent.
    Lent(OwnedFd),
    /// An address space of iommufd.
    Ioas(Ioas),
}

impl Space {
    /// The container's file; `None` for iommufd.
    pub(super) fn container(&self) -> Result<RawFd, &Ioas> {
        match self {
            Self::Container(container) => Ok(container.as_raw_fd()),
            Self::Lent(file) => Ok(file.as_raw_fd()),
            Self::Ioas(ioas) => Err(ioas),
        }
    }

    /// Limits that the IOMMU states.
    pub(super) fn info(&self) -> io::Result<IommuInfo> {
        match self.container() {
            Ok(container) => sys::iommu_info(container),
            Err(ioas) => {
                let (iova_ranges, alignment) = ioas.ranges()?;
                // The smallest page is all that it says about pages; mappings are not counted.
                let page_sizes = alignment.checked_next_power_of_two().unwrap_or(0);
                Ok(IommuInfo { page_sizes, iova_ranges, available_mappings: None })
            }
        }
    }

    /// Maps memory with one call.
    ///
    /// # Safety
    ///
    /// The device may access `[base, base + len_bytes)` as `access` says until it is unmapped: the
    /// range is this process' memory for that long, and Rust code reaches it as shared memory only.
    pub(super) unsafe fn map(
        &self,
        base: *mut u8,
        len_bytes: usize,
        iova: u64,
        access: DmaAccess,
    ) -> io::Result<()> {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        match (self, self.container()) {
            (Self::Container(container), _) if access == DmaAccess::ReadWrite => {
                // SAFETY: the caller's promise.
                let mapped = unsafe { container.vfio_dma_map(iova, len_bytes, base) };
                mapped.map_err(|error| match error {
                    VfioError::IommuDmaMap(errno) => io::Error::from_raw_os_error(errno.errno()),
                    other => io::Error::other(other),
                })
            }
            (_, Ok(container)) => {
                let flags = flag(access.can_read(), sys::DMA_MAP_READ)
                    | flag(access.can_write(), sys::DMA_MAP_WRITE);
                // SAFETY: the caller's promise.
                unsafe { sys::map_dma(container, flags, base, iova, len_bytes as u64) }
            }
            (_, Err(ioas)) => {
                let flags =
                    flag(access.can_read(), MAP_READABLE) | flag(access.can_write(), MAP_WRITEABLE);
                // SAFETY: the caller's promise.
                unsafe { ioas.map(flags, base, iova, len_bytes as u64) }
            }
        }
    }

    /// Unmaps exactly one mapping. More or less than that is an error.
    pub(super) fn unmap(&self, iova: u64, len_bytes: usize) -> io::Result<()> {
        let len_bytes = len_bytes as u64;
        let unmapped = match self.container() {
            Ok(container) => sys::unmap_dma(container, iova, len_bytes)?,
            Err(ioas) => ioas.unmap(iova, len_bytes)?,
        };
        match unmapped == len_bytes {
            true => Ok(()),
            false => Err(io::Error::other(format!("the kernel unmapped {unmapped} bytes"))),
        }
    }

    /// Unmaps everything.
    pub(super) fn unmap_all(&self) -> io::Result<()> {
        match self.container() {
            Ok(container) => sys::unmap_all(container),
            Err(ioas) => ioas.unmap_all(),
        }
    }
}
