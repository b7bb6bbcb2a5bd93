//! The VFIO system calls that `vfio-ioctls` does not offer, and the parser of what they return.
//!
//! # Source
//!
//! Linux `include/uapi/linux/vfio.h`: numbers are `_IO(';', 100 + n)`; layouts in native order.
#![expect(unsafe_code, reason = "ioctl")]

use std::ffi::CString;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

const fn request(n: libc::Ioctl) -> libc::Ioctl {
    (b';' as libc::Ioctl) << 8 | (100 + n)
}

const SET_IOMMU: libc::Ioctl = request(2);
const GROUP_GET_STATUS: libc::Ioctl = request(3);
const GROUP_SET_CONTAINER: libc::Ioctl = request(4);
const GROUP_GET_DEVICE_FD: libc::Ioctl = request(6);
const DEVICE_GET_REGION_INFO: libc::Ioctl = request(8);
const DEVICE_GET_IRQ_INFO: libc::Ioctl = request(9);
const DEVICE_SET_IRQS: libc::Ioctl = request(10);
const DEVICE_RESET: libc::Ioctl = request(11);
const IOMMU_GET_INFO: libc::Ioctl = request(12);
const IOMMU_MAP_DMA: libc::Ioctl = request(13);
const IOMMU_UNMAP_DMA: libc::Ioctl = request(14);
const DEVICE_FEATURE: libc::Ioctl = request(17);

const TYPE1V2_IOMMU: libc::c_ulong = 3;
const GROUP_FLAGS_VIABLE: u32 = 1 << 0;
const GROUP_FLAGS_CONTAINER_SET: u32 = 1 << 1;
const REGION_INFO_FLAG_MMAP: u32 = 1 << 2;
const REGION_INFO_FLAG_CAPS: u32 = 1 << 3;
const REGION_INFO_CAP_SPARSE_MMAP: u16 = 1;
const IRQ_SET_DATA_NONE: u32 = 1 << 0;
const IRQ_SET_DATA_EVENTFD: u32 = 1 << 2;
const IRQ_SET_ACTION_TRIGGER: u32 = 1 << 5;
const DMA_UNMAP_ALL: u32 = 1 << 1;
const FEATURE_GET: u32 = 1 << 16;
const FEATURE_DMA_BUF: u32 = 11;
const IOMMU_INFO_PGSIZES: u32 = 1 << 0;
const IOMMU_INFO_CAPS: u32 = 1 << 1;
const IOMMU_INFO_CAP_IOVA_RANGE: u16 = 1;
const IOMMU_INFO_CAP_DMA_AVAIL: u16 = 3;

/// Region of BAR 0, where a ConnectX has its registers. `VFIO_PCI_BAR0_REGION_INDEX`.
pub(super) const BAR0_REGION: u32 = 0;
/// Region of the configuration space. `VFIO_PCI_CONFIG_REGION_INDEX`.
pub(super) const CONFIG_REGION: u32 = 7;
/// Interrupts of MSI-X. `VFIO_PCI_MSIX_IRQ_INDEX`.
pub(super) const MSIX_IRQ: u32 = 2;
/// Allows the device to read a mapping. `VFIO_DMA_MAP_FLAG_READ`.
pub(super) const DMA_MAP_READ: u32 = 1 << 0;
/// Allows the device to write a mapping.
pub(super) const DMA_MAP_WRITE: u32 = 1 << 1;

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `struct vfio_region_info`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct RegionInfo {
    argsz: u32,
    flags: u32,
    index: u32,
    cap_offset: u32,
    /// Length in bytes.
    pub(super) size: u64,
    /// Where the region starts in the device's file.
    pub(super) offset: u64,
}

impl RegionInfo {
    /// Whether the region, or parts of it, can be mapped.
    pub(super) fn can_mmap(&self) -> bool {
        self.flags & REGION_INFO_FLAG_MMAP != 0
    }
}

/// Asks for one region of the device.
pub(super) fn region_info(device: BorrowedFd<'_>, index: u32) -> io::Result<RegionInfo> {
    let mut info = RegionInfo { argsz: 32, index, ..RegionInfo::default() };
    // SAFETY: the kernel writes at most `argsz` bytes, the size of `info`.
    check(unsafe { libc::ioctl(device.as_raw_fd(), DEVICE_GET_REGION_INFO, &raw mut info) })?;
    Ok(info)
}

/// The parts of a region that can be mapped: offset in the region, and length.
pub(super) fn mappable(device: BorrowedFd<'_>, info: RegionInfo) -> io::Result<Vec<(u64, u64)>> {
    const WORDS: usize = 512;
    if !info.can_mmap() {
        return Ok(Vec::new());
    }
    if info.flags & REGION_INFO_FLAG_CAPS == 0 {
        return Ok(vec![(0, info.size)]);
    }
    let head = RegionInfo { argsz: 8 * 512, cap_offset: 0, flags: 0, ..info };
    let mut buffer = [0_u64; WORDS];
    // SAFETY: 32 bytes of plain numbers at the start of an aligned, longer buffer.
    unsafe { buffer.as_mut_ptr().cast::<RegionInfo>().write(head) };
    // SAFETY: the kernel writes at most `argsz` bytes, the size of the buffer.
    check(unsafe { libc::ioctl(device.as_raw_fd(), DEVICE_GET_REGION_INFO, buffer.as_mut_ptr()) })?;
    let bytes: Vec<u8> = buffer.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let areas = parse_sparse(&bytes).ok_or(io::ErrorKind::InvalidData)?;
    Ok(areas.unwrap_or_else(|| vec![(0, info.size)]))
}

/// Reads the list of mappable areas behind a `struct vfio_region_info`; `Some(None)` without one,
/// `None` for a chain that leaves the buffer or does not end.
fn parse_sparse(bytes: &[u8]) -> Option<Option<Vec<(u64, u64)>>> {
    let u16_at = |at: usize| Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let u32_at = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let u64_at = |at: usize| Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let mut at = if u32_at(4)? & REGION_INFO_FLAG_CAPS != 0 { u32_at(12)? as usize } else { 0 };
    for _ in 0..bytes.len() / 8 {
        if at == 0 {
            return Some(None);
        }
        if u16_at(at)? == REGION_INFO_CAP_SPARSE_MMAP {
            let area = |i: usize| Some((u64_at(at + 16 + i * 16)?, u64_at(at + 24 + i * 16)?));
            return (0..u32_at(at + 8)? as usize).map(area).collect::<Option<_>>().map(Some);
        }
        at = u32_at(at + 4)? as usize;
    }
    None
}

/// `struct vfio_irq_info`.
#[repr(C)]
#[derive(Default)]
struct IrqInfo {
    argsz: u32,
    flags: u32,
    index: u32,
    count: u32,
}

/// Number of vectors of an interrupt.
pub(super) fn irq_count(device: BorrowedFd<'_>, index: u32) -> io::Result<u32> {
    let mut info = IrqInfo { argsz: 16, index, ..IrqInfo::default() };
    // SAFETY: the kernel writes at most `argsz` bytes, the size of `info`.
    check(unsafe { libc::ioctl(device.as_raw_fd(), DEVICE_GET_IRQ_INFO, &raw mut info) })?;
    Ok(info.count)
}

/// `struct vfio_device_feature` with `struct vfio_device_feature_dma_buf` of one range.
#[repr(C)]
struct ExportDmaBuf {
    argsz: u32,
    flags: u32,
    region_index: u32,
    open_flags: u32,
    dma_buf_flags: u32,
    nr_ranges: u32,
    offset: u64,
    length: u64,
}

/// A new dma-buf of a part of a region.
pub(super) fn export_dma_buf(
    device: BorrowedFd<'_>,
    region_index: u32,
    offset: u64,
    length: u64,
) -> io::Result<OwnedFd> {
    let export = ExportDmaBuf {
        argsz: 40,
        flags: FEATURE_GET | FEATURE_DMA_BUF,
        region_index,
        open_flags: (libc::O_RDWR | libc::O_CLOEXEC).cast_unsigned(),
        dma_buf_flags: 0,
        nr_ranges: 1,
        offset,
        length,
    };
    // SAFETY: the kernel reads `argsz` bytes, the size of `export`.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), DEVICE_FEATURE, &raw const export) };
    check(fd)?;
    // SAFETY: the kernel made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// State of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GroupStatus {
    /// Every device of it is VFIO's or nobody's.
    pub(super) viable: bool,
    /// It belongs to a container.
    pub(super) in_container: bool,
}

/// Asks a group about itself.
pub(super) fn group_status(group: BorrowedFd<'_>) -> io::Result<GroupStatus> {
    // struct vfio_group_status: argsz, flags.
    let mut status = [8_u32, 0];
    // SAFETY: the kernel writes at most `argsz` bytes, the size of `status`.
    check(unsafe { libc::ioctl(group.as_raw_fd(), GROUP_GET_STATUS, status.as_mut_ptr()) })?;
    let has = |flag| status[1] & flag != 0;
    Ok(GroupStatus {
        viable: has(GROUP_FLAGS_VIABLE),
        in_container: has(GROUP_FLAGS_CONTAINER_SET),
    })
}

/// Puts a group into a container.
pub(super) fn set_container(group: BorrowedFd<'_>, container: RawFd) -> io::Result<()> {
    // SAFETY: the kernel reads the number of a file.
    check(unsafe { libc::ioctl(group.as_raw_fd(), GROUP_SET_CONTAINER, &raw const container) })
}

/// Chooses the type1 IOMMU, second version, for a container with a group.
pub(super) fn set_iommu(container: RawFd) -> io::Result<()> {
    // SAFETY: the argument is a number.
    check(unsafe { libc::ioctl(container, SET_IOMMU, TYPE1V2_IOMMU) })
}

/// Opens a device of a group by its PCI address.
pub(super) fn group_device(group: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let name = CString::new(name)?;
    // SAFETY: the kernel reads a string that ends in 0.
    let fd = unsafe { libc::ioctl(group.as_raw_fd(), GROUP_GET_DEVICE_FD, name.as_ptr()) };
    check(fd)?;
    // SAFETY: the kernel made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Function-level reset; returns when it is over.
pub(super) fn reset(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: this request takes no argument.
    check(unsafe { libc::ioctl(device.as_raw_fd(), DEVICE_RESET) })
}

/// Connects vectors `0..eventfds.len()` of interrupt `index`; an empty list disconnects all.
pub(super) fn set_irqs(device: BorrowedFd<'_>, index: u32, eventfds: &[RawFd]) -> io::Result<()> {
    let count = u32::try_from(eventfds.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let data = if count == 0 { IRQ_SET_DATA_NONE } else { IRQ_SET_DATA_EVENTFD };
    // argsz, flags, index, start, count, then one 32-bit descriptor per vector.
    let mut set = vec![20 + 4 * count, data | IRQ_SET_ACTION_TRIGGER, index, 0, count];
    set.extend(eventfds.iter().map(|fd| fd.cast_unsigned()));
    // SAFETY: the kernel reads `argsz` bytes, which `set` has.
    check(unsafe { libc::ioctl(device.as_raw_fd(), DEVICE_SET_IRQS, set.as_ptr()) })
}

/// `struct vfio_iommu_type1_dma_map`.
#[repr(C)]
struct DmaMap {
    argsz: u32,
    flags: u32,
    vaddr: u64,
    iova: u64,
    size: u64,
}

/// Maps memory for the device with the given `DMA_MAP_*` flags.
///
/// # Safety
///
/// The device may access `[vaddr, vaddr + size)` as `flags` say until it is unmapped: the range is
/// this process' memory for that long, and Rust code reaches it as shared memory only.
pub(super) unsafe fn map_dma(
    container: RawFd,
    flags: u32,
    vaddr: *mut u8,
    iova: u64,
    size: u64,
) -> io::Result<()> {
    let vaddr = vaddr.expose_provenance() as u64;
    let map = DmaMap { argsz: 32, flags, vaddr, iova, size };
    // SAFETY: the kernel reads `argsz` bytes, the size of `map`; for the rest, see above.
    check(unsafe { libc::ioctl(container, IOMMU_MAP_DMA, &raw const map) })
}

/// `struct vfio_iommu_type1_dma_unmap`, without the bitmap that may follow.
#[repr(C)]
struct DmaUnmap {
    argsz: u32,
    flags: u32,
    iova: u64,
    size: u64,
}

/// Unmaps everything (`VFIO_UNMAP_ALL`, Linux 5.12).
pub(super) fn unmap_all(container: RawFd) -> io::Result<()> {
    unmap(container, DMA_UNMAP_ALL, 0, 0).map(|_| ())
}

/// Unmaps exactly what was mapped at `iova`; answers how many bytes that were.
pub(super) fn unmap_dma(container: RawFd, iova: u64, size: u64) -> io::Result<u64> {
    unmap(container, 0, iova, size)
}

fn unmap(container: RawFd, flags: u32, iova: u64, size: u64) -> io::Result<u64> {
    let mut unmap = DmaUnmap { argsz: 24, flags, iova, size };
    // SAFETY: the kernel reads and writes `argsz` bytes, the size of `unmap`. Fewer mappings make
    // no memory of this process invalid.
    check(unsafe { libc::ioctl(container, IOMMU_UNMAP_DMA, &raw mut unmap) })?;
    Ok(unmap.size)
}

/// Limits that the IOMMU states.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct IommuInfo {
    /// One bit per supported page size.
    pub(super) page_sizes: u64,
    /// Usable I/O addresses; empty where the kernel does not say.
    pub(super) iova_ranges: Vec<RangeInclusive<u64>>,
    /// Mappings that can still be made, where the kernel says.
    pub(super) available_mappings: Option<u32>,
}

/// Asks the container's IOMMU about itself.
pub(super) fn iommu_info(container: RawFd) -> io::Result<IommuInfo> {
    const WORDS: usize = 512;
    let mut buffer = [0_u64; WORDS];
    let argsz: u32 = 8 * 512;
    let mut head = [0; 8];
    head[..4].copy_from_slice(&argsz.to_ne_bytes());
    buffer[0] = u64::from_ne_bytes(head);
    // SAFETY: the kernel writes at most `argsz` bytes, the size of `buffer`.
    check(unsafe { libc::ioctl(container, IOMMU_GET_INFO, buffer.as_mut_ptr()) })?;
    let bytes: Vec<u8> = buffer.iter().flat_map(|word| word.to_ne_bytes()).collect();
    parse_iommu_info(&bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Reads `struct vfio_iommu_type1_info` and its chain of capabilities.
///
/// `None` for a chain that leaves the buffer or does not end.
fn parse_iommu_info(bytes: &[u8]) -> Option<IommuInfo> {
    let u16_at = |at: usize| Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let u32_at = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let u64_at = |at: usize| Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let flags = u32_at(4)?;
    let mut info = IommuInfo::default();
    if flags & IOMMU_INFO_PGSIZES != 0 {
        info.page_sizes = u64_at(8)?;
    }
    let mut at = if flags & IOMMU_INFO_CAPS != 0 { u32_at(16)? as usize } else { 0 };
    let mut seen = 0;
    while at != 0 {
        // Capabilities are at least 8 bytes long, so a longer chain goes in a circle.
        seen += 1;
        if seen > bytes.len() / 8 {
            return None;
        }
        match u16_at(at)? {
            IOMMU_INFO_CAP_IOVA_RANGE => {
                for i in 0..u32_at(at + 8)? as usize {
                    let (start, end) = (u64_at(at + 16 + i * 16)?, u64_at(at + 24 + i * 16)?);
                    info.iova_ranges.push(start..=end);
                }
            }
            IOMMU_INFO_CAP_DMA_AVAIL => info.available_mappings = Some(u32_at(at + 8)?),
            _ => {}
        }
        at = u32_at(at + 4)? as usize;
    }
    Some(info)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reply of an x86 kernel: header of 24 bytes, a migration capability (skipped), the
    /// ranges around the MSI window, and the number of mappings left.
    fn reply() -> Vec<u8> {
        let mut bytes = vec![0; 256];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &256_u32.to_ne_bytes());
        put(4, &3_u32.to_ne_bytes());
        put(8, &0x4020_1000_u64.to_ne_bytes());
        put(16, &24_u32.to_ne_bytes());
        // Migration, id 2, next at 56.
        put(24, &2_u16.to_ne_bytes());
        put(28, &56_u32.to_ne_bytes());
        // Ranges, id 1, next at 104, two of them.
        put(56, &1_u16.to_ne_bytes());
        put(60, &104_u32.to_ne_bytes());
        put(64, &2_u32.to_ne_bytes());
        put(72, &0_u64.to_ne_bytes());
        put(80, &0xfedf_ffff_u64.to_ne_bytes());
        put(88, &0xfef0_0000_u64.to_ne_bytes());
        put(96, &0x7f_ffff_ffff_u64.to_ne_bytes());
        // Mappings left, id 3, the last.
        put(104, &3_u16.to_ne_bytes());
        put(112, &65535_u32.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_kernel_reply_is_read() {
        let info = parse_iommu_info(&reply()).expect("well-formed");
        assert_eq!(info.page_sizes, 0x4020_1000);
        assert_eq!(info.iova_ranges, [0..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff]);
        assert_eq!(info.available_mappings, Some(65535));
    }

    #[test]
    fn a_reply_without_capabilities_is_read() {
        let mut bytes = reply();
        bytes[4..8].copy_from_slice(&1_u32.to_ne_bytes());
        let info = parse_iommu_info(&bytes).expect("well-formed");
        assert_eq!((info.page_sizes, info.iova_ranges.len()), (0x4020_1000, 0));
        assert_eq!(info.available_mappings, None);
    }

    #[test]
    fn a_chain_that_circles_or_leaves_is_refused() {
        let mut circle = reply();
        circle[108..112].copy_from_slice(&56_u32.to_ne_bytes());
        assert_eq!(parse_iommu_info(&circle), None);
        let mut outside = reply();
        outside[108..112].copy_from_slice(&254_u32.to_ne_bytes());
        assert_eq!(parse_iommu_info(&outside), None);
        let mut many = reply();
        many[64..68].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(parse_iommu_info(&many), None);
        assert_eq!(parse_iommu_info(&reply()[..20]), None);
        assert_eq!(parse_iommu_info(&[]), None);
    }

    /// A region of 0x10000 bytes whose page at 0x2000 cannot be mapped.
    fn sparse_reply() -> Vec<u8> {
        let mut bytes = vec![0; 256];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &256_u32.to_ne_bytes());
        put(4, &0xf_u32.to_ne_bytes());
        put(12, &32_u32.to_ne_bytes());
        // MSI-X may be mapped, id 3, next at 40.
        put(32, &3_u16.to_ne_bytes());
        put(36, &40_u32.to_ne_bytes());
        // Areas, id 1, the last, two of them.
        put(40, &1_u16.to_ne_bytes());
        put(48, &2_u32.to_ne_bytes());
        for (at, value) in [(56, 0_u64), (64, 0x2000), (72, 0x3000), (80, 0xd000)] {
            put(at, &value.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn mappable_areas_are_read_and_a_broken_list_is_refused() {
        assert_eq!(parse_sparse(&sparse_reply()), Some(Some(vec![(0, 0x2000), (0x3000, 0xd000)])));
        let mut plain = sparse_reply();
        plain[4] = 7;
        assert_eq!(parse_sparse(&plain), Some(None));
        let mut without = sparse_reply();
        without[40] = 9;
        assert_eq!(parse_sparse(&without), Some(None));
        let mut circle = without.clone();
        circle[44..48].copy_from_slice(&32_u32.to_ne_bytes());
        assert_eq!(parse_sparse(&circle), None);
        let mut many = sparse_reply();
        many[48..52].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(parse_sparse(&many), None);
        assert_eq!(parse_sparse(&sparse_reply()[..60]), None);
        assert_eq!(parse_sparse(&[]), None);
    }

    #[test]
    fn numbers_and_sizes_are_the_kernels() {
        assert_eq!(DEVICE_GET_REGION_INFO, 0x3b6c);
        assert_eq!(DEVICE_SET_IRQS, 0x3b6e);
        assert_eq!(DEVICE_RESET, 0x3b6f);
        assert_eq!(IOMMU_GET_INFO, 0x3b70);
        assert_eq!(IOMMU_MAP_DMA, 0x3b71);
        assert_eq!(IOMMU_UNMAP_DMA, 0x3b72);
        assert_eq!((SET_IOMMU, GROUP_GET_STATUS, GROUP_SET_CONTAINER), (0x3b66, 0x3b67, 0x3b68));
        assert_eq!((GROUP_GET_DEVICE_FD, DEVICE_GET_IRQ_INFO), (0x3b6a, 0x3b6d));
        assert_eq!(size_of::<IrqInfo>(), 16);
        assert_eq!((size_of::<RegionInfo>(), size_of::<DmaMap>()), (32, 32));
        assert_eq!(size_of::<DmaUnmap>(), 24);
    }
}
