//! Memory mapped through the type1 IOMMU: one call per region.
#![expect(unsafe_code, reason = "mapping memory for a device")]

use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ferrocx_mempool::{Backing, Region};
use rustix::process::{Resource, getrlimit};

use super::OpenDevice;
use crate::iova::subtract;
use crate::{
    BusError, DmaAccess, DmaLimits, DmaMapping, DmaSpace, DmaUnmap, IovaAllocator, to_usize,
};

/// Used where the kernel does not say what is usable: above 4 GiB, within three levels of tables.
const DEFAULT_RANGE: RangeInclusive<u64> = 1 << 32..=(1 << 39) - 1;

/// Addresses below are left to devices with 32-bit DMA where there is room above.
const LOW_LIMIT: u64 = 1 << 32;

/// The IOMMU domain of an open device.
pub(super) struct VfioDma {
    inner: Arc<Inner>,
}

struct Inner {
    vfio: Arc<OpenDevice>,
    iovas: Mutex<IovaAllocator>,
    limits: DmaLimits,
    mapped_bytes: AtomicU64,
    mappings: AtomicU64,
    /// How often everything was unmapped at once; changed under the lock of `iovas`.
    sweeps: AtomicU64,
}

impl VfioDma {
    pub(super) fn new(
        vfio: Arc<OpenDevice>,
        reserved: &[(u64, u64)],
        seed: u64,
    ) -> Result<Self, BusError> {
        let info = vfio.space.info().map_err(|error| {
            BusError::os(format!("asking the IOMMU of device {}", vfio.identity.name), error)
        })?;
        let iova_ranges = usable(&info.iova_ranges, reserved);
        let iovas = Mutex::new(IovaAllocator::new(&iova_ranges, 0, seed));
        let page_size_bytes = to_usize(smallest_page(info.page_sizes));
        let limits =
            DmaLimits { page_size_bytes, max_mappings: info.available_mappings, iova_ranges };
        let [mapped_bytes, mappings, sweeps] = [0; 3].map(AtomicU64::new);
        let inner = Inner { vfio, iovas, limits, mapped_bytes, mappings, sweeps };
        Ok(Self { inner: Arc::new(inner) })
    }
}

/// The smallest page of a bitmap of page sizes.
fn smallest_page(page_sizes: u64) -> u64 {
    if page_sizes == 0 { 4096 } else { 1 << page_sizes.trailing_zeros() }
}

/// The ranges to allocate from: what the IOMMU offers without what it reserves, above 4 GiB if any.
fn usable(offered: &[RangeInclusive<u64>], reserved: &[(u64, u64)]) -> Vec<RangeInclusive<u64>> {
    let all = match offered {
        [] => vec![DEFAULT_RANGE],
        _ => offered.to_vec(),
    };
    let free = subtract(&all, reserved);
    let high = subtract(&free, &[(0, LOW_LIMIT - 1)]);
    if high.is_empty() { free } else { high }
}

impl Inner {
    /// One call to the kernel, which pins the memory and fills the IOMMU's tables.
    fn map_dma(&self, region: &Region, iova: u64, access: DmaAccess) -> io::Result<()> {
        // SAFETY: the region is a mapping of this process that `DmaMapping` keeps until it is
        // unmapped, and leaks if that fails. It is reached with atomics, or as slices of buffers
        // that no posted descriptor names, which the device then leaves alone.
        unsafe { self.vfio.space.map(region.as_ptr(), region.len_bytes(), iova, access) }
    }

    fn describe(&self, error: io::Error, iova: u64, len_bytes: u64) -> BusError {
        if error.raw_os_error() == Some(libc::EEXIST) {
            return BusError::IovaTaken { iova, len_bytes };
        }
        let limit_bytes = getrlimit(Resource::Memlock).current;
        let mapped_bytes = self.mapped_bytes.load(Ordering::Relaxed);
        let mappings = self.mappings.load(Ordering::Relaxed);
        describe(error, len_bytes, mapped_bytes, mappings, limit_bytes)
    }
}

/// What a refusal of the kernel means. `limit_bytes` is `None` without a limit.
fn describe(
    error: io::Error,
    len_bytes: u64,
    mapped_bytes: u64,
    mappings: u64,
    limit_bytes: Option<u64>,
) -> BusError {
    let needed_bytes = mapped_bytes.saturating_add(len_bytes);
    match (error.raw_os_error(), limit_bytes) {
        // The kernel says "no memory" for the limit as well; name the limit where it may be meant.
        (Some(libc::ENOMEM), Some(limit_bytes)) if needed_bytes > limit_bytes => {
            BusError::MemlockTooSmall { len_bytes, needed_bytes, limit_bytes }
        }
        (Some(libc::ENOSPC), _) => BusError::TooManyMappings { mappings },
        _ => BusError::os(format!("mapping {len_bytes} bytes for DMA"), error),
    }
}

impl DmaSpace for VfioDma {
    fn map(&self, region: Arc<Region>, access: DmaAccess) -> Result<Arc<DmaMapping>, BusError> {
        if region.backing() == Backing::Heap {
            return Err(BusError::HeapRegion);
        }
        let inner = &self.inner;
        let len_bytes = region.len_bytes() as u64;
        let align = region.page_size_bytes().max(inner.limits.page_size_bytes) as u64;
        let va = region.as_ptr().addr() as u64;
        let mut iovas = inner.iovas.lock().unwrap_or_else(PoisonError::into_inner);
        let iova = iovas.alloc(len_bytes, align, va)?;
        if let Err(error) = inner.map_dma(&region, iova, access) {
            iovas.free(iova, len_bytes);
            return Err(inner.describe(error, iova, len_bytes));
        }
        let sweep = inner.sweeps.load(Ordering::Relaxed);
        drop(iovas);
        inner.mapped_bytes.fetch_add(len_bytes, Ordering::Relaxed);
        inner.mappings.fetch_add(1, Ordering::Relaxed);
        let owner = Box::new(VfioUnmap { inner: Arc::clone(inner), sweep });
        Ok(DmaMapping::new(region, iova, access, owner))
    }

    fn unmap_all(&self) -> Result<(), BusError> {
        let inner = &self.inner;
        let _iovas = inner.iovas.lock().unwrap_or_else(PoisonError::into_inner);
        inner.vfio.space.unmap_all().map_err(|error| {
            BusError::os(format!("unmapping device {}", inner.vfio.identity.name), error)
        })?;
        inner.sweeps.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn limits(&self) -> DmaLimits {
        self.inner.limits.clone()
    }
}

impl fmt::Debug for VfioDma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VfioDma").field("limits", &self.inner.limits).finish_non_exhaustive()
    }
}

/// Removes a mapping that [`VfioDma::map`] made.
struct VfioUnmap {
    inner: Arc<Inner>,
    /// Of [`Inner::sweeps`], when it was mapped.
    sweep: u64,
}

impl DmaUnmap for VfioUnmap {
    fn unmap(&self, iova: u64, len_bytes: usize) -> Result<(), BusError> {
        let inner = &self.inner;
        // With the lock, a sweep is before it or after it.
        let _iovas = inner.iovas.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.sweeps.load(Ordering::Relaxed) == self.sweep {
            inner.vfio.space.unmap(iova, len_bytes).map_err(|error| {
                let name = &inner.vfio.identity.name;
                BusError::os(format!("unmapping {len_bytes} bytes of device {name}"), error)
            })?;
        }
        inner.mapped_bytes.fetch_sub(len_bytes as u64, Ordering::Relaxed);
        inner.mappings.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    fn release(&self, iova: u64, len_bytes: usize) {
        let mut iovas = self.inner.iovas.lock().unwrap_or_else(PoisonError::into_inner);
        iovas.free(iova, len_bytes as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn high_ranges_are_preferred_and_reserved_ones_left_out() {
        let offered = [0..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff];
        assert_eq!(usable(&offered, &[]), [0x1_0000_0000..=0x7f_ffff_ffff]);
        let reserved = [(0xfee0_0000, 0xfeef_ffff), (0x2_0000_0000, 0x2_ffff_ffff)];
        let ranges = [0x1_0000_0000..=0x1_ffff_ffff, 0x3_0000_0000..=0x7f_ffff_ffff];
        assert_eq!(usable(&offered, &reserved), ranges);
        assert_eq!(usable(&[], &[]), [DEFAULT_RANGE]);
        let low = [0x1000..=0xffff_ffff];
        let msi = [(0xfee0_0000, 0xfeef_ffff)];
        assert_eq!(usable(&low, &msi), [0x1000..=0xfedf_ffff, 0xfef0_0000..=0xffff_ffff]);
    }

    #[test]
    fn page_sizes_are_a_bitmap() {
        assert_eq!(smallest_page(0x4020_1000), 4096);
        assert_eq!(smallest_page(0x1_0000), 65536);
        assert_eq!(smallest_page(0), 4096);
    }

    #[test]
    fn refusals_name_value_limit_and_way_out() {
        let refuse = |code, limit| {
            describe(io::Error::from_raw_os_error(code), 2 << 20, 7 << 20, 3, limit).to_string()
        };
        assert_eq!(
            refuse(libc::ENOMEM, Some(8 << 20)),
            "mapping 2097152 bytes for DMA needs 9437184 bytes of locked memory, the limit is \
             8388608; raise it with `ulimit -l` or LimitMEMLOCK"
        );
        // Room enough under the limit: then memory itself is short, and the limit not to blame.
        assert!(refuse(libc::ENOMEM, Some(9 << 20)).contains("os error 12"));
        assert!(refuse(libc::ENOMEM, None).contains("os error 12"));
        assert!(refuse(libc::ENOSPC, None).contains("beside 3; use fewer"));
        assert!(refuse(libc::EINVAL, None).starts_with("mapping 2097152 bytes for DMA: "));
    }
}
