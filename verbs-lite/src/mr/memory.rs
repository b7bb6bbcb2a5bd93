//! [`Memory`]: a region that the device can reach, before any key covers it.

use std::ops::Range;
use std::sync::Arc;

use ferrocx_bus::{DmaAccess, DmaMapping};
use ferrocx_mempool::{RawUse, Region, RegionConfig};

use crate::device::{Core, Device};
use crate::error::VerbsError;

/// A region mapped for a device. It stays mapped until the last registration and buffer over it is
/// dropped.
///
/// Its bytes are only ever copied, with atomic accesses, because the device or a peer may write
/// them at any time. No pool may lie over the region.
#[derive(Debug)]
pub struct Memory {
    // Unmapped before pools may use the region again.
    mapping: Arc<DmaMapping>,
    _raw: RawUse,
    core: Arc<Core>,
}

impl Memory {
    pub(crate) fn new(device: &Device, region: Arc<Region>) -> Result<Arc<Self>, VerbsError> {
        let raw = region.use_raw()?;
        let core = Arc::clone(device.core());
        let mapping = core.port().map_region(region, DmaAccess::ReadWrite)?;
        Ok(Arc::new(Self { mapping, _raw: raw, core }))
    }

    /// Allocates and maps zeroed memory.
    ///
    /// # Errors
    ///
    /// As [`Region::alloc`] and [`Device::map_memory`].
    pub fn alloc(device: &Device, config: &RegionConfig) -> Result<Arc<Self>, VerbsError> {
        Self::new(device, Region::alloc(config)?)
    }

    /// Bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.mapping.len_bytes()
    }

    /// Address of the first byte as the device sees it.
    #[must_use]
    pub fn iova(&self) -> u64 {
        self.mapping.iova()
    }

    /// The memory itself.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        self.mapping.region()
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Virtual address of the first byte.
    pub(crate) fn virtual_address(&self) -> u64 {
        self.region().base().as_ptr().addr() as u64
    }

    /// Checks that a range lies inside and is not empty.
    pub(crate) fn check(&self, range: &Range<usize>) -> Result<(), VerbsError> {
        let len = self.len_bytes() as u64;
        VerbsError::range("start of the range", range.start as u64, 0, len - 1)?;
        VerbsError::range("end of the range", range.end as u64, range.start as u64 + 1, len)
    }

    /// Keeps it mapped for the rest of the process.
    pub(crate) fn leak(&self) {
        Arc::clone(&self.mapping).leak();
    }
}
