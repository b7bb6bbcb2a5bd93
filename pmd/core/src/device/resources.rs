//! What the crates above make their own device objects from: memory, capabilities, domains, keys.
//!
//! [`Device::execute_raw`] carries out the command that creates an object;
//! [`Handle::new`](crate::Handle::new) turns its number into a handle that destroys it.

use std::any::Any;
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

use ferrocx_bus::{DmaAccess, DmaBuf, DmaHeap, DmaMapping, Interrupts};
use ferrocx_mempool::{Pool, RawUse};
use ferrocx_prm::caps::{CAP_PAGE_BYTES, HcaCap};

use super::{Device, lock};
use crate::bringup;
use crate::cmd::CommandError;
use crate::error::{ConfigError, DeviceError};
use crate::keys::{KeyDomains, RegionKeys};
use crate::quota::{KeyRoom, KeyUse};

/// Vectors that are enabled when the first is needed.
const MAX_VECTORS: u16 = 64;

/// A region that the device can reach and that no pool lies over, until it is dropped.
///
/// When it cannot be unmapped then, its memory is leaked, and pools stay off it for ever.
#[derive(Debug)]
pub struct RawMapping {
    // Dropped in this order: the device's access ends before pools may come. Nobody but `leak`
    // makes a second handle, and a mapping that stays keeps pools off by itself.
    mapping: Arc<DmaMapping>,
    _raw: RawUse,
}

impl RawMapping {
    /// Keeps the memory mapped for the rest of the process.
    pub fn leak(&self) {
        Arc::clone(&self.mapping).leak();
    }
}

impl Deref for RawMapping {
    type Target = DmaMapping;

    fn deref(&self) -> &DmaMapping {
        &self.mapping
    }
}

impl Device {
    /// Takes room for a memory key that is made next. Hold it as long as the key exists.
    ///
    /// # Errors
    /// [`ConfigError::Range`] when as many exist as may. The first time the log says so, too.
    pub fn take_key_room(&self) -> Result<KeyRoom, ConfigError> {
        self.inner().quota.take()
    }

    /// How many memory keys exist, may exist, and were refused.
    #[must_use]
    pub fn key_use(&self) -> KeyUse {
        self.inner().quota.usage()
    }

    /// Takes zeroed memory that the device may read and write.
    ///
    /// # Shape
    /// `align_bytes` is a power of two up to [`ferrocx_bus::MAX_ALIGN_BYTES`].
    ///
    /// # Errors
    /// [`DeviceError::Bus`] without memory.
    pub fn alloc_dma(&self, len_bytes: usize, align_bytes: usize) -> Result<DmaBuf, DeviceError> {
        Ok(self.inner().memory.alloc(len_bytes, align_bytes)?)
    }

    /// Has memory of the caller's do as [`Device::alloc_dma`]'s: its first `len_bytes`, zeroed, at
    /// an I/O address that is a multiple of 4096. The region stays mapped until the buffer is
    /// dropped.
    ///
    /// # Errors
    /// [`DeviceError::Bus`]: a length of 0 or beyond the region's, no I/O addresses left, or the
    /// system's reason.
    pub fn adopt_dma(&self, raw: &RawUse, len_bytes: usize) -> Result<DmaBuf, DeviceError> {
        let mapping =
            self.inner().memory.dma.map(Arc::clone(raw.region()), DmaAccess::ReadWrite)?;
        // The heap lives as long as its one buffer; `raw` keeps pools off until it does so itself.
        Ok(DmaHeap::new(mapping).alloc(len_bytes, 4096)?)
    }

    /// Bytes of such memory in use, the driver's own included: command queue, rings, records.
    #[must_use]
    pub fn dma_bytes_used(&self) -> usize {
        self.inner().memory.used_bytes()
    }

    /// Lets the device reach a region that no pool lies over, until the mapping is dropped. No
    /// pool can lie over it before that: it could lend out slices of what the device may write.
    ///
    /// # Errors
    /// [`DeviceError::Bus`]: no I/O addresses left, or the system's reason.
    pub fn map_region(&self, raw: RawUse, access: DmaAccess) -> Result<RawMapping, DeviceError> {
        let mapping = self.inner().memory.dma.map(Arc::clone(raw.region()), access)?;
        Ok(RawMapping { mapping, _raw: raw })
    }

    /// The general capabilities, as they were after bring-up.
    #[must_use]
    pub fn hca_cap(&self) -> &HcaCap {
        &self.inner().made.caps.hca
    }

    /// A capability page as it is now; `kind` is one of [`ferrocx_prm::caps::cap_type`].
    pub fn capability_page(&self, kind: u32) -> Result<[u8; CAP_PAGE_BYTES], DeviceError> {
        bringup::query_caps(&mut self.inner().control(), kind)
    }

    /// The reserved L_Key: local access to all that is mapped, for queues created with `rlky`.
    /// `None` if the device has none.
    pub fn reserved_lkey(&self) -> Result<Option<u32>, CommandError> {
        let lkey = self.inner().control().reserved_lkey()?;
        Ok((lkey != 0).then_some(lkey))
    }

    /// Interrupt vectors that may be used, at most 64. Without
    /// [`CompletionEvents`](crate::CompletionEvents) none is.
    #[must_use]
    pub fn interrupt_vectors(&self) -> u16 {
        self.interrupts().vectors().min(MAX_VECTORS)
    }

    /// The interrupts of the function.
    pub(crate) fn interrupts(&self) -> Arc<dyn Interrupts> {
        self.inner().transport.interrupts()
    }

    /// How this device reaches a pool that was registered.
    ///
    /// # Errors
    /// [`DeviceError::PoolNotRegistered`].
    pub fn region_keys(&self, pool: &Pool) -> Result<RegionKeys, DeviceError> {
        let registrations = lock(&self.inner().registrations);
        registrations.get(pool).ok_or_else(|| DeviceError::PoolNotRegistered {
            pool: pool.name().to_owned(),
            device: self.inner().made.info.name.clone(),
        })
    }

    /// How this device reaches every registered region, for packets of any pool.
    #[must_use]
    pub fn all_region_keys(&self) -> Vec<RegionKeys> {
        lock(&self.inner().registrations).all()
    }

    /// How this device reaches the registered regions with a pool that another device stamped: the
    /// addresses in such buffers are the other device's.
    #[must_use]
    pub fn region_keys_elsewhere(&self) -> Vec<RegionKeys> {
        lock(&self.inner().registrations).stamped_elsewhere()
    }

    /// Whose keys stand in the buffers of pools that this device stamped.
    #[must_use]
    pub fn key_domains(&self) -> KeyDomains {
        self.inner().made.keys.domains
    }

    /// The low byte of a new key: another one each time, because the device gives the index of a
    /// key that was destroyed to the next one, and peers and requests may still name the old key.
    /// Never 0, so that a bare index is no key.
    #[must_use]
    pub fn next_key_variant(&self) -> u8 {
        self.inner().made.keys.variant()
    }

    /// The protection domain of the port itself: Ethernet queues, and the keys of pools.
    #[must_use]
    pub fn pdn(&self) -> u32 {
        self.inner().made.pd
    }

    /// Whether queues that carry buffers of pools are created with the right to use the reserved
    /// L_Key (`rlky`).
    #[must_use]
    pub fn uses_reserved_lkey(&self) -> bool {
        self.inner().made.keys.rlky()
    }

    /// The TIS that send queues of Ethernet frames are made with.
    #[must_use]
    pub fn tisn(&self) -> u32 {
        self.inner().made.tisn
    }

    /// The `min_wqe_inline_mode` that they are made with. In bytes:
    /// [`Limits::min_inline_bytes`](crate::Limits::min_inline_bytes).
    #[must_use]
    pub fn min_inline_mode(&self) -> u32 {
        lock(&self.inner().port).min_inline_mode(&self.inner().made.caps.eth)
    }

    /// What a crate above keeps once for each device: the value that somebody holds already, or the
    /// one that `make` returns. The device does not keep it.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn shared<T: Any + Send + Sync, E>(
        &self,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        let mut shared = lock(&self.inner().shared);
        shared.retain(|value| value.strong_count() > 0);
        let mut known = shared.iter().filter_map(Weak::upgrade);
        if let Some(value) = known.find_map(|value| value.downcast().ok()) {
            return Ok(value);
        }
        let value = Arc::new(make()?);
        let any: Arc<dyn Any + Send + Sync> = Arc::<T>::clone(&value);
        shared.push(Arc::downgrade(&any));
        Ok(value)
    }

    /// Whether a reset made every object of this device void.
    #[must_use]
    pub fn objects_are_gone(&self) -> bool {
        self.inner().gone.load(Ordering::Acquire)
    }

    /// Lets the device make progress; called in each turn of a control-path wait loop.
    pub fn relax(&self) {
        self.inner().transport.relax();
    }

    /// The time by which to wait for this device and for peers behind it:
    /// [`Transport::now`](ferrocx_bus::Transport::now).
    #[must_use]
    pub fn now(&self) -> Instant {
        self.inner().transport.now()
    }

    /// 64 bits that nobody can guess: [`Transport::random`](ferrocx_bus::Transport::random).
    #[must_use]
    pub fn random(&self) -> u64 {
        self.inner().transport.random()
    }
}
