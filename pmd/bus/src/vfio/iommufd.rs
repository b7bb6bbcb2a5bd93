//! The newer interface: a file for each device, and an address space of iommufd.
//!
//! # Source
//!
//! Linux `include/uapi/linux/iommufd.h` and `vfio.h`: numbers are `_IO(';', n)`; each structure
//! begins with its own size; a newer kernel takes an older structure.
#![expect(unsafe_code, reason = "ioctl")]

use std::ffi::c_void;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

const fn request(n: libc::Ioctl) -> libc::Ioctl {
    (b';' as libc::Ioctl) << 8 | n
}

const IOAS_ALLOC: libc::Ioctl = request(0x81);
const IOAS_IOVA_RANGES: libc::Ioctl = request(0x84);
const IOAS_MAP: libc::Ioctl = request(0x85);
const IOAS_UNMAP: libc::Ioctl = request(0x86);
const DEVICE_BIND: libc::Ioctl = request(100 + 18);
const DEVICE_ATTACH: libc::Ioctl = request(100 + 19);

const MAP_FIXED_IOVA: u32 = 1 << 0;
/// Allows the device to write a mapping. Same header, `IOMMU_IOAS_MAP_WRITEABLE`.
pub(super) const MAP_WRITEABLE: u32 = 1 << 1;
/// Allows the device to read a mapping. Same header, `IOMMU_IOAS_MAP_READABLE`.
pub(super) const MAP_READABLE: u32 = 1 << 2;

/// Ranges that are asked for at once; a kernel has a handful.
const MAX_RANGES: u32 = 256;

/// The system call, or a test's stand-in.
pub(super) trait Kernel: Send + Sync {
    /// # Safety
    ///
    /// `argument` points to what the kernel's header asks of this request.
    unsafe fn ioctl(
        &self,
        file: BorrowedFd<'_>,
        request: libc::Ioctl,
        argument: *mut c_void,
    ) -> io::Result<()>;
}

/// The kernel itself.
pub(super) struct Linux;

impl Kernel for Linux {
    unsafe fn ioctl(
        &self,
        file: BorrowedFd<'_>,
        request: libc::Ioctl,
        argument: *mut c_void,
    ) -> io::Result<()> {
        // SAFETY: the caller's promise.
        match unsafe { libc::ioctl(file.as_raw_fd(), request, argument) } {
            result if result < 0 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

#[repr(C)]
struct Bind {
    argsz: u32,
    flags: u32,
    iommufd: i32,
    out_devid: u32,
}

#[repr(C)]
struct Attach {
    argsz: u32,
    flags: u32,
    pt_id: u32,
}

#[repr(C)]
struct Alloc {
    size: u32,
    flags: u32,
    out_ioas_id: u32,
}

#[repr(C)]
struct IovaRanges {
    size: u32,
    ioas_id: u32,
    num_iovas: u32,
    reserved: u32,
    allowed_iovas: u64,
    out_iova_alignment: u64,
}

#[repr(C)]
struct Map {
    size: u32,
    flags: u32,
    ioas_id: u32,
    reserved: u32,
    user_va: u64,
    length: u64,
    iova: u64,
}

#[repr(C)]
struct Unmap {
    size: u32,
    ioas_id: u32,
    iova: u64,
    length: u64,
}

/// An address space of iommufd. It lives as long as the file.
pub(super) struct Ioas {
    kernel: Arc<dyn Kernel>,
    file: OwnedFd,
    id: u32,
}

impl Ioas {
    /// A new address space of the iommufd of `file`, with its first device.
    pub(super) fn with(
        kernel: Arc<dyn Kernel>,
        file: OwnedFd,
        device: BorrowedFd<'_>,
    ) -> io::Result<Self> {
        let mut alloc = Alloc { size: 12, flags: 0, out_ioas_id: 0 };
        // SAFETY: the structure is this request's.
        unsafe { kernel.ioctl(file.as_fd(), IOAS_ALLOC, (&raw mut alloc).cast())? };
        let ioas = Self { kernel, file, id: alloc.out_ioas_id };
        ioas.attach(device)?;
        Ok(ioas)
    }

    /// Hands `device` to the iommufd, and makes it use this address space until it is closed.
    pub(super) fn attach(&self, device: BorrowedFd<'_>) -> io::Result<()> {
        let mut bind = Bind { argsz: 16, flags: 0, iommufd: self.file.as_raw_fd(), out_devid: 0 };
        // SAFETY: the structure is this request's.
        unsafe { self.kernel.ioctl(device, DEVICE_BIND, (&raw mut bind).cast())? };
        let mut attach = Attach { argsz: 12, flags: 0, pt_id: self.id };
        // SAFETY: the structure is this request's.
        unsafe { self.kernel.ioctl(device, DEVICE_ATTACH, (&raw mut attach).cast()) }
    }

    /// The addresses that may be mapped, and what they and lengths must be multiples of.
    pub(super) fn ranges(&self) -> io::Result<(Vec<RangeInclusive<u64>>, u64)> {
        let mut list = [[0_u64; 2]; MAX_RANGES as usize];
        let mut ranges = IovaRanges {
            size: 32,
            ioas_id: self.id,
            num_iovas: MAX_RANGES,
            reserved: 0,
            allowed_iovas: list.as_mut_ptr().expose_provenance() as u64,
            out_iova_alignment: 0,
        };
        // SAFETY: the kernel writes at most `num_iovas` pairs to the list.
        unsafe { self.call(IOAS_IOVA_RANGES, (&raw mut ranges).cast())? };
        let count = ranges.num_iovas.min(MAX_RANGES) as usize;
        let found = list[..count].iter().filter(|[start, last]| start <= last);
        Ok((found.map(|[start, last]| *start..=*last).collect(), ranges.out_iova_alignment))
    }

    /// Maps memory at `iova` with the given `MAP_*` flags.
    ///
    /// # Safety
    ///
    /// The device may access `[user_va, user_va + length)` as `flags` say until it is unmapped: the
    /// range is this process' memory for that long, and Rust code reaches it as shared memory only.
    pub(super) unsafe fn map(
        &self,
        flags: u32,
        user_va: *mut u8,
        iova: u64,
        length: u64,
    ) -> io::Result<()> {
        let user_va = user_va.expose_provenance() as u64;
        let (flags, ioas_id) = (flags | MAP_FIXED_IOVA, self.id);
        let mut map = Map { size: 40, flags, ioas_id, reserved: 0, user_va, length, iova };
        // SAFETY: the structure is this request's; for the rest, the caller's promise.
        unsafe { self.call(IOAS_MAP, (&raw mut map).cast()) }
    }

    /// Unmaps exactly what was mapped at `iova`; answers how many bytes that were.
    pub(super) fn unmap(&self, iova: u64, length: u64) -> io::Result<u64> {
        let mut unmap = Unmap { size: 24, ioas_id: self.id, iova, length };
        // SAFETY: the structure is this request's. Fewer mappings make no memory invalid.
        unsafe { self.call(IOAS_UNMAP, (&raw mut unmap).cast())? };
        Ok(unmap.length)
    }

    /// Unmaps everything.
    pub(super) fn unmap_all(&self) -> io::Result<()> {
        match self.unmap(0, u64::MAX) {
            // Nothing is mapped.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// # Safety
    ///
    /// As [`Kernel::ioctl`].
    unsafe fn call(&self, request: libc::Ioctl, argument: *mut c_void) -> io::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.kernel.ioctl(self.file.as_fd(), request, argument) }
    }
}

#[cfg(all(test, not(miri)))]
#[path = "iommufd_tests.rs"]
mod tests;
