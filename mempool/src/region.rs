//! [`Region`]: one contiguous mapping of (huge) pages, the unit of DMA mapping.
#![expect(unsafe_code, reason = "atomic views of the mapping, after a range check")]

use std::{
    fmt,
    ops::Range,
    os::fd::BorrowedFd,
    ptr::NonNull,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
};

use crate::{
    access,
    error::{AccessError, MempoolError},
    mapping::{self, Mapping},
    region_config::{Backing, RegionConfig, RegionWarning},
};

/// One contiguous, page-aligned mapping that a device may be given; zero-filled, unless it is
/// [foreign](Backing::Foreign).
///
/// A device may write to it at any moment, so it is never seen as a slice. The methods here copy
/// bytes with atomic accesses to bytes, and check every range. Relaxed unless the name says
/// `acquire` or `release`. Words are the bus's, for buffers of its own.
///
/// Buffers of a [`crate::Pool`] lie in a region too, and an [`crate::Mbuf`] gives out slices of
/// them. So a region serves pools or copying, not both: copying is refused
/// ([`AccessError::Pooled`]) while a pool lies over the region, and no pool is made over a region
/// that was copied to or from, or whose descriptor was given out. [Foreign](Backing::Foreign)
/// memory is never borrowed and serves both. Whoever moves bytes for a device (the bus, the
/// software NIC) uses the base address, and writes only where a posted descriptor points; a write
/// elsewhere is undefined, as a faulty device's is.
pub struct Region {
    mapping: Mapping,
    numa_node: Option<u32>,
    warnings: Vec<RegionWarning>,
    claims: Mutex<Claims>,
    /// Whether it may be copied to and from, now and for ever. Set under the lock of `claims`.
    is_copied: AtomicBool,
}

/// Who uses a region: pools, or holders of [`RawUse`], never both.
#[derive(Debug, Default)]
struct Claims {
    /// Byte ranges that pools use, so that no two of them hand out the same memory.
    pools: Vec<Range<usize>>,
    /// How many [`RawUse`]s live.
    raw: usize,
}

/// The promise that no pool lies over a region: its bytes are only ever copied, never borrowed.
///
/// Whoever lets a device write anywhere into a region holds one; a [`crate::Mbuf`] over the same
/// bytes would give out slices that change under their reader.
pub struct RawUse(Arc<Region>);

impl RawUse {
    /// The region.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.0
    }
}

impl fmt::Debug for RawUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RawUse").field(&self.0).finish()
    }
}

impl Drop for RawUse {
    fn drop(&mut self) {
        self.0.claims().raw -= 1;
    }
}

/// Memory of a node if it is to be had, and the node that it is bound to.
fn create_near(
    config: &RegionConfig,
    node: u32,
) -> Result<(Option<u32>, Mapping, Vec<RegionWarning>), MempoolError> {
    let near = match mapping::create(&RegionConfig { numa_node: Some(node), ..config.clone() }) {
        Ok((mapping, warnings)) if warnings.is_empty() => {
            return Ok((Some(node), mapping, warnings));
        }
        near => near,
    };
    let on_it = |(mapping, warnings)| (Some(node), mapping, warnings);
    match (mapping::create(config), near) {
        (Ok((_, warnings)), Ok(near)) if !warnings.is_empty() => Ok(on_it(near)),
        (Ok((mapping, mut warnings)), near) => {
            let few = || "too few hugepages there".to_owned();
            let reason = near.err().map_or_else(few, |error| error.to_string());
            warnings.push(RegionWarning::Far { node, reason });
            Ok((None, mapping, warnings))
        }
        (Err(error), near) => near.map(on_it).map_err(|_| error),
    }
}

impl Region {
    /// Maps, binds, touches and (if asked) locks the memory. Its bytes are zero.
    ///
    /// # Errors
    /// [`MempoolError::RegionLength`], [`MempoolError::NoHugepages`], [`MempoolError::NoMemory`],
    /// [`MempoolError::PageSizeUnsupported`], [`MempoolError::NumaNode`],
    /// [`MempoolError::Unsupported`], [`MempoolError::Lock`], [`MempoolError::Os`]. Nothing stays
    /// mapped or open after an error.
    pub fn alloc(config: &RegionConfig) -> Result<Arc<Self>, MempoolError> {
        Self::alloc_near(config, None)
    }

    /// Memory of `node`, a device's or a core's, where it is known and the configuration names
    /// none. Where that node has none, or no hugepages while others do, it is of any node, with
    /// [`RegionWarning::Far`].
    ///
    /// # Errors
    /// Those of [`Region::alloc`].
    pub fn alloc_near(config: &RegionConfig, node: Option<u32>) -> Result<Arc<Self>, MempoolError> {
        let (bound, mapping, warnings) = match (node, config.numa_node) {
            (Some(node), None) => create_near(config, node)?,
            _ => {
                let (mapping, warnings) = mapping::create(config)?;
                (config.numa_node, mapping, warnings)
            }
        };
        for warning in &warnings {
            tracing::warn!(len_bytes = mapping.len(), "memory region: {warning}");
        }
        Ok(Self::of_mapping(mapping, bound, warnings))
    }

    pub(crate) fn of_mapping(
        mapping: Mapping,
        numa_node: Option<u32>,
        warnings: Vec<RegionWarning>,
    ) -> Arc<Self> {
        let is_copied = AtomicBool::new(mapping.backing() == Backing::Foreign);
        Arc::new(Self { mapping, numa_node, warnings, claims: Mutex::default(), is_copied })
    }

    /// First byte of the mapping.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.mapping.base()
    }

    /// First byte of the mapping, with provenance over the whole of it.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.base().as_ptr()
    }

    /// Bytes mapped: the configured length, rounded up to whole pages.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.mapping.len()
    }

    /// Size of the pages it is made of, in bytes.
    #[must_use]
    pub fn page_size_bytes(&self) -> usize {
        self.mapping.page_size()
    }

    /// Whether it is memory that somebody else mapped ([`Region::adopt`]), at an address of theirs.
    #[must_use]
    pub fn is_adopted(&self) -> bool {
        self.mapping.is_adopted()
    }

    /// The descriptor with which another process maps the region, from offset 0, or this one once
    /// more ([`Region::map_file`]). `None` unless the backing is [`Backing::Memfd`].
    ///
    /// Whoever has it may write to the region at any time, so this counts as copying: no pool is
    /// made over the region from now on.
    ///
    /// # Errors
    /// [`AccessError::Pooled`]: the packets of a pool lie there.
    pub fn fd(&self) -> Result<Option<BorrowedFd<'_>>, AccessError> {
        let fd = self.mapping.fd();
        if fd.is_some() {
            self.begin_copying()?;
        }
        Ok(fd)
    }

    /// The node that its memory was bound to, if it was.
    #[must_use]
    pub fn numa_node(&self) -> Option<u32> {
        self.numa_node
    }

    /// The backing in use; never [`Backing::Auto`].
    #[must_use]
    pub fn backing(&self) -> Backing {
        self.mapping.backing()
    }

    /// The wishes that could not be met. Empty when all is as asked.
    #[must_use]
    pub fn warnings(&self) -> &[RegionWarning] {
        &self.warnings
    }

    /// Copies `src` into the region.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], [`AccessError::Pooled`].
    #[inline]
    pub fn copy_in(&self, offset: usize, src: &[u8]) -> Result<(), AccessError> {
        let ptr = self.check(offset, src.len())?;
        // SAFETY: `check` proved the range; the mapping lives as long as `self`.
        unsafe { access::copy_in(ptr, src) };
        Ok(())
    }

    /// Copies from the region into `dst`.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], [`AccessError::Pooled`]; `dst` is then untouched.
    #[inline]
    pub fn copy_out(&self, offset: usize, dst: &mut [u8]) -> Result<(), AccessError> {
        let ptr = self.check(offset, dst.len())?;
        // SAFETY: as in `copy_in`.
        unsafe { access::copy_out(ptr, dst) };
        Ok(())
    }

    /// Copies `len_bytes` bytes from `offset` on to `to_offset` of a region, which may be this one.
    /// Where the two ranges overlap, the copy may be of bytes that it has just written.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], [`AccessError::Pooled`]; nothing is written then.
    #[inline]
    pub fn copy_to(
        &self,
        offset: usize,
        to: &Self,
        to_offset: usize,
        len_bytes: usize,
    ) -> Result<(), AccessError> {
        let (src, dst) = (self.check(offset, len_bytes)?, to.check(to_offset, len_bytes)?);
        // SAFETY: as in `copy_in`, for both.
        unsafe { access::copy_across(src, dst, len_bytes) };
        Ok(())
    }

    /// Writes `byte` to `len_bytes` bytes.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], [`AccessError::Pooled`].
    pub fn fill(&self, offset: usize, len_bytes: usize, byte: u8) -> Result<(), AccessError> {
        let ptr = self.check(offset, len_bytes)?;
        // SAFETY: as in `copy_in`.
        unsafe { access::fill(ptr, len_bytes, byte) };
        Ok(())
    }

    /// Reads one byte, then orders all later accesses after it.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], [`AccessError::Pooled`].
    #[inline]
    pub fn load_acquire_u8(&self, offset: usize) -> Result<u8, AccessError> {
        Ok(self.atomic_u8(offset)?.load(Ordering::Acquire))
    }

    /// Orders all earlier accesses before it, then writes one byte.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], [`AccessError::Pooled`].
    #[inline]
    pub fn store_release_u8(&self, offset: usize, value: u8) -> Result<(), AccessError> {
        self.atomic_u8(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    fn atomic_u8(&self, offset: usize) -> Result<&AtomicU8, AccessError> {
        let ptr = self.check(offset, 1)?;
        // SAFETY: in range (`check`) and only accessed atomically (type docs).
        Ok(unsafe { AtomicU8::from_ptr(ptr) })
    }

    /// The address of a range that lies inside the region.
    #[inline]
    fn check(&self, offset: usize, len: usize) -> Result<*mut u8, AccessError> {
        // Relaxed: nothing is read that was written before the flag was set.
        if !self.is_copied.load(Ordering::Relaxed) {
            self.begin_copying()?;
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.len_bytes() => {}
            _ => return Err(AccessError::OutOfRange),
        }
        // SAFETY: `offset <= len_bytes`, so the result is inside the mapping or one past its end.
        Ok(unsafe { self.as_ptr().add(offset) })
    }

    /// Keeps pools off the region from now on, unless one is there.
    #[cold]
    #[inline(never)]
    fn begin_copying(&self) -> Result<(), AccessError> {
        let claims = self.claims();
        if !claims.pools.is_empty() {
            return Err(AccessError::Pooled);
        }
        self.is_copied.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Keeps pools off the region for as long as the result lives. Any number may.
    ///
    /// # Errors
    /// [`MempoolError::RegionInUse`] when a pool lies over the region.
    pub fn use_raw(self: &Arc<Self>) -> Result<RawUse, MempoolError> {
        let mut claims = self.claims();
        if !claims.pools.is_empty() {
            return Err(MempoolError::RegionInUse);
        }
        claims.raw += 1;
        drop(claims);
        Ok(RawUse(Arc::clone(self)))
    }

    fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `range` for one pool. `false` if it overlaps a range taken before, or the region is
    /// in raw use or was copied to or from.
    pub(crate) fn claim(&self, range: Range<usize>) -> bool {
        let mut claims = self.claims();
        let taken = |c: &Range<usize>| c.start < range.end && range.start < c.end;
        let is_copied =
            self.backing() != Backing::Foreign && self.is_copied.load(Ordering::Relaxed);
        if is_copied || claims.raw > 0 || claims.pools.iter().any(taken) {
            return false;
        }
        claims.pools.push(range);
        true
    }

    /// Gives back what [`Region::claim`] took.
    pub(crate) fn unclaim(&self, range: &Range<usize>) {
        self.claims().pools.retain(|c| c != range);
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("base", &self.base())
            .field("len_bytes", &self.len_bytes())
            .field("page_size_bytes", &self.page_size_bytes())
            .field("backing", &self.backing())
            .field("numa_node", &self.numa_node)
            .field("warnings", &self.warnings)
            .finish_non_exhaustive()
    }
}
