//! An I/O address space and what is mapped in it: one call to the kernel per region.
#![expect(unsafe_code, reason = "mapping memory for a device")]

use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ferrocx_mempool::{Backing, Region};
use rustix::process::{Resource, getrlimit};

use super::space::Space;
use crate::iova::{place, subtract};
use crate::{
    BusError, DmaAccess, DmaLimits, DmaMapping, DmaUnmap, IovaAllocator, PciIdentity, to_usize,
};

/// Used where the kernel does not say what is usable: above 4 GiB, within three levels of tables.
const DEFAULT_RANGE: RangeInclusive<u64> = 1 << 32..=(1 << 39) - 1;

/// Addresses below are left to devices with 32-bit DMA where there is room above.
const LOW_LIMIT: u64 = 1 << 32;
/// I/O addresses from here on are left alone: an AMD IOMMU takes a level of page tables more for
/// every nine bits, and what an Intel one or a bridge decodes ends at 48 bits or below.
const HIGH_LIMIT: u64 = 1 << 47;

/// One I/O address space for several devices of this process, see
/// [`VfioConfig::space`](super::VfioConfig::space).
///
/// A region is mapped once for all of them, at one address, until the last of them has ended or
/// dropped its mapping. That costs one entry of the IOMMU and counts once against the limit of
/// locked memory, and a pool's buffers need no translation on the way from one device to another.
///
/// The price is that each device can reach what any of them maps, and one fate:
/// [`DmaSpace::unmap_all`](crate::DmaSpace::unmap_all) refuses while others use the space, so what
/// a device had that answers no more stays allocated. Memory of other devices
/// ([`Backing::Foreign`](ferrocx_mempool::Backing)) is mapped for each on its own, because it is
/// taken back one by one.
///
/// Open all devices first and map then: the kernel refuses a device that cannot use an address
/// where memory is mapped already.
#[derive(Default)]
pub struct AddressSpace {
    pub(super) domain: Mutex<Option<Arc<Domain>>>,
}

impl fmt::Debug for AddressSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressSpace").finish_non_exhaustive()
    }
}

/// An I/O address space, with what is mapped in it and the devices that use it.
pub(super) struct Domain {
    pub(super) space: Space,
    iovas: Mutex<IovaAllocator>,
    limits: Mutex<DmaLimits>,
    mapped_bytes: AtomicU64,
    mappings: AtomicU64,
    /// Number of times that everything was unmapped at once; changed under the lock of `iovas`.
    sweeps: AtomicU64,
    members: Mutex<Vec<Member>>,
    /// Mappings that all devices use; `None` where there is only one. Locked before the handles
    /// of what it holds, and these before `iovas`.
    common: Option<Mutex<Vec<Weak<Mapped>>>>,
    /// Files of groups that were lent: the lender keeps such a group in the container, so that its
    /// device can come back to no other.
    lent: Mutex<Vec<(u32, Arc<OwnedFd>)>>,
}

/// A device of a domain.
struct Member {
    /// Held by the open device alone, so that it is gone with it.
    device: Weak<PciIdentity>,
    number: u32,
    /// The file of its group, which mappings may keep open for longer than the device is.
    group: Option<Weak<OwnedFd>>,
}

impl Domain {
    /// `name` is the first device's; `is_shared`: there may be others.
    pub(super) fn new(
        space: Space,
        name: &str,
        reserved: &[(u64, u64)],
        seed: u64,
        is_shared: bool,
    ) -> Result<Self, BusError> {
        let limits = limits(&space, name, reserved)?;
        let iovas = Mutex::new(IovaAllocator::new(&limits.iova_ranges, 0, seed));
        let [mapped_bytes, mappings, sweeps] = [0; 3].map(AtomicU64::new);
        let (limits, members) = (Mutex::new(limits), Mutex::default());
        let (common, lent) = (is_shared.then(Mutex::default), Mutex::default());
        Ok(Self { space, iovas, limits, mapped_bytes, mappings, sweeps, members, common, lent })
    }

    /// Uses only what a further device can use, too.
    pub(super) fn restrict(&self, name: &str, reserved: &[(u64, u64)]) -> Result<(), BusError> {
        let ranges = limits(&self.space, name, reserved)?.iova_ranges;
        lock(&self.iovas).restrict(&ranges);
        lock(&self.limits).iova_ranges = ranges;
        Ok(())
    }

    /// Notes an open device, its group's number and the file that keeps it in a container.
    pub(super) fn add(&self, device: &Arc<PciIdentity>, number: u32, group: Option<&Arc<OwnedFd>>) {
        let mut members = lock(&self.members);
        members.retain(Member::is_here);
        let (device, group) = (Arc::downgrade(device), group.map(Arc::downgrade));
        members.push(Member { device, number, group });
    }

    /// Notes the file of a group that somebody lent.
    pub(super) fn keep(&self, number: u32, group: &Arc<OwnedFd>) {
        let mut lent = lock(&self.lent);
        if lent.iter().all(|(known, _)| *known != number) {
            lent.push((number, Arc::clone(group)));
        }
    }

    /// Whether a device of this name uses the space.
    pub(super) fn has(&self, name: &str) -> bool {
        self.devices().iter().any(|device| device.name == name)
    }

    /// The file of a group that is in the container already.
    pub(super) fn group(&self, number: u32) -> Option<Arc<OwnedFd>> {
        if let Some((_, group)) = lock(&self.lent).iter().find(|(known, _)| *known == number) {
            return Some(Arc::clone(group));
        }
        let members = lock(&self.members);
        let mut files = members.iter().filter(|member| member.number == number);
        files.find_map(|member| member.group.as_ref()?.upgrade())
    }

    /// The devices that are open.
    fn devices(&self) -> Vec<Arc<PciIdentity>> {
        lock(&self.members).iter().filter_map(|member| member.device.upgrade()).collect()
    }
}

impl Member {
    fn is_here(&self) -> bool {
        let has_group = self.group.as_ref().is_some_and(|group| group.strong_count() > 0);
        has_group || self.device.strong_count() > 0
    }
}

/// Limits of a space, without the addresses that a device reserves.
fn limits(space: &Space, name: &str, reserved: &[(u64, u64)]) -> Result<DmaLimits, BusError> {
    let info = space
        .info()
        .map_err(|error| BusError::os(format!("asking the IOMMU of device {name}"), error))?;
    Ok(DmaLimits {
        page_size_bytes: to_usize(smallest_page(info.page_sizes)),
        max_mappings: info.available_mappings,
        iova_ranges: usable(&info.iova_ranges, reserved),
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The smallest page of a bitmap of page sizes.
fn smallest_page(page_sizes: u64) -> u64 {
    if page_sizes == 0 { 4096 } else { 1 << page_sizes.trailing_zeros() }
}

/// The ranges to allocate from: what the IOMMU offers without what it reserves, if any above 4 GiB
/// and below [`HIGH_LIMIT`].
fn usable(offered: &[RangeInclusive<u64>], reserved: &[(u64, u64)]) -> Vec<RangeInclusive<u64>> {
    let all = match offered {
        [] => vec![DEFAULT_RANGE],
        _ => offered.to_vec(),
    };
    let free = subtract(&all, reserved);
    let reachable = subtract(&free, &[(HIGH_LIMIT, u64::MAX)]);
    let high = subtract(&reachable, &[(0, LOW_LIMIT - 1)]);
    [high, reachable, free].into_iter().find(|ranges| !ranges.is_empty()).unwrap_or_default()
}

impl Domain {
    /// Maps a region for a device, or joins what is mapped of it for all devices already.
    ///
    /// `group` is the file of the device's group, where it has one.
    pub(super) fn map(
        self: &Arc<Self>,
        group: Option<&Arc<OwnedFd>>,
        region: Arc<Region>,
        access: DmaAccess,
    ) -> Result<Arc<DmaMapping>, BusError> {
        let mut common = match (region.backing(), &self.common) {
            (Backing::Heap, _) => return Err(BusError::HeapRegion),
            (Backing::Foreign, _) | (_, None) => {
                return Ok(self.map_anew(group, region, access)?.handle());
            }
            (_, Some(common)) => lock(common),
        };
        common.retain(|known| known.strong_count() > 0);
        let known = common.iter().filter_map(Weak::upgrade);
        if let Some(known) = known.into_iter().find(|known| known.join(&region, access)) {
            return Ok(known.handle());
        }
        let mapped = self.map_anew(group, region, access)?;
        common.push(Arc::downgrade(&mapped));
        Ok(mapped.handle())
    }

    fn map_anew(
        self: &Arc<Self>,
        group: Option<&Arc<OwnedFd>>,
        region: Arc<Region>,
        access: DmaAccess,
    ) -> Result<Arc<Mapped>, BusError> {
        let len_bytes = region.len_bytes() as u64;
        let place = place(&region, self.limits().page_size_bytes as u64);
        let va = region.as_ptr().addr() as u64;
        let mut iovas = lock(&self.iovas);
        let iova = iovas.alloc(len_bytes, place, va)?;
        if let Err(error) = self.map_dma(&region, iova, access) {
            iovas.free(iova, len_bytes);
            return Err(self.describe(error, iova, &region));
        }
        let sweep = self.sweeps.load(Ordering::Relaxed);
        drop(iovas);
        self.mapped_bytes.fetch_add(len_bytes, Ordering::Relaxed);
        self.mappings.fetch_add(1, Ordering::Relaxed);
        let (domain, _group) = (Arc::clone(self), group.cloned());
        let handles = Mutex::new(1);
        Ok(Arc::new(Mapped { domain, region, iova, access, sweep, handles, _group }))
    }

    /// Unmaps everything at once, unless a device other than `device` uses the space.
    pub(super) fn unmap_all(&self, device: &Arc<PciIdentity>) -> Result<(), BusError> {
        // Nobody joins what is about to go.
        let _common = self.common.as_ref().map(lock);
        let _iovas = lock(&self.iovas);
        let name = &device.name;
        let others = self.devices().iter().filter(|other| !Arc::ptr_eq(other, device)).count();
        if others > 0 {
            return Err(BusError::SpaceShared { name: name.clone(), others });
        }
        let unmapped = self.space.unmap_all();
        unmapped.map_err(|error| BusError::os(format!("unmapping device {name}"), error))?;
        self.sweeps.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Limits of the space.
    pub(super) fn limits(&self) -> DmaLimits {
        lock(&self.limits).clone()
    }

    /// One call to the kernel, which pins the memory and fills the IOMMU's tables.
    fn map_dma(&self, region: &Region, iova: u64, access: DmaAccess) -> io::Result<()> {
        // SAFETY: the region is a mapping of this process that `DmaMapping` keeps until it is
        // unmapped, and leaks if that fails. It is reached with atomics, or as slices of buffers
        // that no posted descriptor names, which the device then leaves alone.
        unsafe { self.space.map(region.as_ptr(), region.len_bytes(), iova, access) }
    }

    fn describe(&self, error: io::Error, iova: u64, region: &Region) -> BusError {
        let len_bytes = region.len_bytes() as u64;
        if error.raw_os_error() == Some(libc::EFAULT) && region.backing() == Backing::Foreign {
            let hint = match self.space {
                Space::Ioas(_) => "; iommufd maps no BARs: open the adapter by its group",
                _ => "",
            };
            return BusError::ForeignPages { len_bytes, hint };
        }
        if error.raw_os_error() == Some(libc::EEXIST) {
            return BusError::IovaTaken { iova, len_bytes };
        }
        let limit_bytes = getrlimit(Resource::Memlock).current;
        let mapped_bytes = self.mapped_bytes.load(Ordering::Relaxed);
        let mappings = self.mappings.load(Ordering::Relaxed);
        describe(error, len_bytes, mapped_bytes, mappings, limit_bytes)
    }
}

/// Explains a refusal of the kernel. `limit_bytes` is `None` without a limit.
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
        // It counts more than this address space. Source: Linux `vfio_iommu_type1.c`,
        // `vfio_pin_pages_remote`; `iommufd/pages.c`, `incr_user_locked_vm`.
        (Some(libc::ENOMEM), Some(limit_bytes)) => BusError::os(
            format!(
                "mapping {len_bytes} bytes for DMA, with {mapped_bytes} in this address space and \
                 a limit of {limit_bytes} locked bytes (`ulimit -l`) for all of the process, by \
                 iommufd for all processes of the user"
            ),
            error,
        ),
        (Some(libc::ENOSPC), _) => BusError::TooManyMappings { mappings },
        _ => BusError::os(format!("mapping {len_bytes} bytes for DMA"), error),
    }
}

/// A mapping of the kernel. Each [`DmaMapping`] over it is one of its handles.
struct Mapped {
    domain: Arc<Domain>,
    region: Arc<Region>,
    iova: u64,
    access: DmaAccess,
    /// Of [`Domain::sweeps`], when it was mapped.
    sweep: u64,
    /// Handles that nobody has ended; it is unmapped with the last of them.
    handles: Mutex<usize>,
    /// A container without groups forgets its mappings.
    _group: Option<Arc<OwnedFd>>,
}

impl Mapped {
    /// The handle that was counted when this was made or joined.
    fn handle(self: Arc<Self>) -> Arc<DmaMapping> {
        let (region, iova, access) = (Arc::clone(&self.region), self.iova, self.access);
        DmaMapping::new(region, iova, access, Box::new(Handle(self)))
    }

    /// Counts another handle, if this is what is wanted and still mapped. With `common` locked.
    fn join(&self, region: &Arc<Region>, access: DmaAccess) -> bool {
        let is_there = self.sweep == self.domain.sweeps.load(Ordering::Relaxed);
        let mut handles = lock(&self.handles);
        let joins = Arc::ptr_eq(&self.region, region) && self.access == access;
        let joins = joins && is_there && *handles > 0;
        *handles += usize::from(joins);
        joins
    }

    /// Takes back what [`Domain::map_anew`] did, unless a sweep has.
    fn unmap(&self) -> Result<(), BusError> {
        let (domain, len_bytes) = (&self.domain, self.region.len_bytes());
        // With the lock, a sweep is before it or after it.
        let _iovas = lock(&domain.iovas);
        if domain.sweeps.load(Ordering::Relaxed) == self.sweep {
            domain.space.unmap(self.iova, len_bytes).map_err(|error| {
                let what = format!("unmapping {len_bytes} bytes at {:#x}", self.iova);
                BusError::os(what, error)
            })?;
        }
        domain.mapped_bytes.fetch_sub(len_bytes as u64, Ordering::Relaxed);
        domain.mappings.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Mapped {
    /// Lets its addresses be used again; never, where it could not be unmapped.
    fn drop(&mut self) {
        if *lock(&self.handles) == 0 {
            lock(&self.domain.iovas).free(self.iova, self.region.len_bytes() as u64);
        }
    }
}

/// One of the handles.
struct Handle(Arc<Mapped>);

impl DmaUnmap for Handle {
    fn unmap(&self, _: u64, _: usize) -> Result<(), BusError> {
        let _common = self.0.domain.common.as_ref().map(lock);
        let mut handles = lock(&self.0.handles);
        if *handles == 1 {
            self.0.unmap()?;
        }
        *handles -= 1;
        Ok(())
    }

    /// The addresses go with the last handle.
    fn release(&self, _: u64, _: usize) {}
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
        // An AMD IOMMU offers addresses up to 2^63 or all of them.
        let wide = [0..=0xfedf_ffff, 0xfef0_0000..=0xfc_ffff_ffff, 0x100_0000_0000..=u64::MAX];
        let ranges = [0x1_0000_0000..=0xfc_ffff_ffff, 0x100_0000_0000..=0x7fff_ffff_ffff];
        assert_eq!(usable(&wide, &[]), ranges);
        assert_eq!(usable(&[1 << 50..=1 << 51], &[]), [1 << 50..=1 << 51], "there is no other");
        assert_eq!(usable(&[0..=0xffff, 1 << 50..=1 << 51], &[]), [0..=0xffff]);
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
        // Room enough as far as we know: other mappings count as well, or memory itself is short.
        let may_be = refuse(libc::ENOMEM, Some(9 << 20));
        assert!(may_be.contains("with 7340032 in this address space and a limit of 9437184"));
        assert!(may_be.contains("os error 12"));
        assert!(refuse(libc::ENOMEM, None).contains("os error 12"));
        assert!(refuse(libc::ENOSPC, None).contains("beside 3; use fewer"));
        assert!(refuse(libc::EINVAL, None).starts_with("mapping 2097152 bytes for DMA: "));
    }
}
