//! How the device addresses packet buffers: which key, and where each pool lies.
#![expect(unsafe_code, reason = "stamping a pool says where the device writes")]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use ferrocx_bus::{DmaAccess, DmaMapping};
use ferrocx_mempool::{Backing, Pool, PoolKeys, Region, unique_domain};
use ferrocx_prm::mkey::{AccessMode, key};
use ferrocx_prm::syndrome::CommandStatus;

use crate::cmd::CommandError;
use crate::config::KeyMode;
use crate::control::Control;
use crate::error::{ConfigError, DeviceError};
use crate::objects::{Kind, local_mkc};

/// Variant byte of the driver's first mkey.
const FIRST_VARIANT: u8 = 0x5a;
/// Largest `log_page_size` of an mkey. Source: reference 5.1 (12 to 31 in Linux).
const MAX_LOG_PAGE: u32 = 31;

/// The device-wide part: mode and, unless each region has its own, the key.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) mode: KeyMode,
    /// The key of [`KeyMode::Reserved`] and [`KeyMode::Physical`].
    lkey: u32,
    /// The mkey behind it, for destroying.
    pub(crate) mkey_index: Option<u32>,
    pd: u32,
    /// Writes to packet buffers may pass each other on PCIe, where the device can: its completions
    /// pass none. Foreign memory is written in order, since a completion lies elsewhere. Source:
    /// Linux `mlx5e_mkey_set_relaxed_ordering`.
    relaxed_writes: bool,
    pub(crate) domains: KeyDomains,
    next_variant: AtomicU8,
}

/// Whose keys stand in the buffers of pools that this device stamped: numbers that no other device
/// or protection domain of the process has, see [`PoolKeys::domain`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyDomains {
    /// The reserved L_Key: every protection domain of the device may use it.
    pub device: u32,
    /// A key of the device's own protection domain ([`Device::pdn`](crate::Device::pdn)): of all
    /// pools where there is no reserved L_Key, and always of foreign memory.
    pub pd: u32,
}

impl Keys {
    /// Chooses the mode: the one asked for, or the first that the device has.
    pub(crate) fn choose(
        control: &mut Control,
        pd: u32,
        wanted: Option<KeyMode>,
        relaxed_writes: bool,
    ) -> Result<Self, DeviceError> {
        let modes: &[KeyMode] = match &wanted {
            Some(mode) => std::slice::from_ref(mode),
            None => &[KeyMode::Reserved, KeyMode::Physical, KeyMode::Translated],
        };
        for mode in modes {
            if let Some(keys) = Self::try_mode(control, pd, *mode, relaxed_writes)? {
                tracing::info!(%mode, lkey = format_args!("{:#010x}", keys.lkey), "buffer keys");
                return Ok(keys);
            }
            tracing::info!(%mode, "the device does not offer this key mode");
        }
        Err(ConfigError::Unsupported {
            what: "key mode as configured",
            way_out: "leave DeviceConfig::key_mode unset",
        }
        .into())
    }

    /// `None` if the device refuses the mode.
    fn try_mode(
        control: &mut Control,
        pd: u32,
        mode: KeyMode,
        relaxed_writes: bool,
    ) -> Result<Option<Self>, DeviceError> {
        let keys = |lkey, mkey_index| {
            let domains = KeyDomains { device: unique_domain(), pd: unique_domain() };
            let next_variant = AtomicU8::new(FIRST_VARIANT + 1);
            Some(Self { mode, lkey, mkey_index, pd, relaxed_writes, domains, next_variant })
        };
        Ok(match mode {
            KeyMode::Reserved => match control.reserved_lkey() {
                Ok(0) => None,
                Ok(lkey) => keys(lkey, None),
                Err(error) => refused(error).map(|()| None)?,
            },
            KeyMode::Physical => {
                let variant = FIRST_VARIANT.into();
                let mkc = local_mkc(AccessMode::PA, pd)
                    .with_relaxed_ordering_write(relaxed_writes)
                    .with_length64(true)
                    .with_mkey_7_0(variant);
                match control.create_mkey(mkc, &[]) {
                    Ok(index) => keys(key(index, variant), Some(index)),
                    Err(error) => refused(error).map(|()| None)?,
                }
            }
            KeyMode::Translated => keys(0, None),
        })
    }

    /// Whether queues must be created with the right to use the reserved key.
    pub(crate) fn rlky(&self) -> bool {
        self.mode == KeyMode::Reserved
    }

    /// The key for a region: the device's, or a new one with translations.
    fn for_region(
        &self,
        control: &mut Control,
        mapping: &DmaMapping,
    ) -> Result<(u32, Option<u32>), DeviceError> {
        // Foreign memory has a key of its own in every mode: one that has an end.
        let is_foreign = mapping.region().backing() == Backing::Foreign;
        if self.mode != KeyMode::Translated && !is_foreign {
            return Ok((self.lkey, None));
        }
        let len = mapping.len_bytes() as u64;
        // The addresses are one run, so pages are as large as its ends allow.
        let log_page = (mapping.iova() | len).trailing_zeros().min(MAX_LOG_PAGE);
        let pages = (0..len).step_by(1 << log_page).map(|at| mapping.iova() + at);
        let mtts: Vec<u64> = pages.collect();
        let variant = self.variant().into();
        let mkc = local_mkc(AccessMode::MTT, self.pd)
            .with_relaxed_ordering_write(self.relaxed_writes && !is_foreign)
            .with_mkey_7_0(variant)
            .with_start_addr(mapping.iova())
            .with_len(len)
            .with_log_page_size(log_page);
        let index = control.create_mkey(mkc, &mtts)?;
        Ok((key(index, variant), Some(index)))
    }

    /// See [`Device::next_key_variant`](crate::Device::next_key_variant).
    pub(crate) fn variant(&self) -> u8 {
        match self.next_variant.fetch_add(1, Ordering::Relaxed) {
            0 => self.variant(),
            variant => variant,
        }
    }
}

/// Whether an error means that the device lacks something; other errors are passed on.
fn refused(error: CommandError) -> Result<(), CommandError> {
    match error.status() {
        Some(
            CommandStatus::BAD_OP
            | CommandStatus::BAD_PARAM
            | CommandStatus::BAD_RESOURCE
            | CommandStatus::EXCEED_LIM,
        ) => Ok(()),
        _ => Err(error),
    }
}

/// A region that this device can reach, and how.
#[derive(Debug)]
pub(crate) struct Registration {
    region: Arc<Region>,
    mapping: Arc<DmaMapping>,
    lkey: u32,
    mkey_index: Option<u32>,
    /// Who may use the key.
    domain: u32,
    pools: Vec<Registered>,
    /// Its end began and failed half-way: nothing may use it any more.
    is_ending: bool,
}

/// A pool over a region that this device can reach.
#[derive(Debug)]
struct Registered {
    pool: Pool,
    /// Whether its buffers carry this device's keys, not another's.
    stamped: bool,
}

/// All regions that this device can reach.
#[derive(Debug, Default)]
pub(crate) struct Registrations {
    list: Vec<Registration>,
}

/// What a queue needs to know about a pool's region.
#[derive(Debug, Clone)]
pub struct RegionKeys {
    /// Virtual addresses of the region.
    pub addresses: Range<usize>,
    /// What turns a virtual address into an I/O address, wrapping.
    pub va_to_iova: u64,
    /// Key, as it stands in a WQE.
    pub lkey_be: u32,
    /// Who may use the key: one of [`KeyDomains`].
    pub domain: u32,
    /// Keeps the region mapped.
    _mapping: Arc<DmaMapping>,
}

impl Registrations {
    /// Maps the pool's region, makes its key, and stamps the pool if no device has yet. What is
    /// left of a registration whose end failed is ended before.
    pub(crate) fn add(
        &mut self,
        control: &mut Control,
        keys: &Keys,
        pool: &Pool,
    ) -> Result<(), DeviceError> {
        if let Some(at) = self.find(pool).filter(|at| self.list[*at].is_ending) {
            self.end(control, at)?;
        }
        let at = match self.find(pool) {
            Some(at) => at,
            None => {
                let region = Arc::clone(pool.region());
                let dma = Arc::clone(&control.memory.dma);
                let mapping = dma.map(Arc::clone(&region), DmaAccess::ReadWrite)?;
                let (lkey, mkey_index) = keys.for_region(control, &mapping)?;
                let is_reserved = keys.rlky() && mkey_index.is_none();
                let domain = if is_reserved { keys.domains.device } else { keys.domains.pd };
                let pools = Vec::new();
                self.list.push(Registration {
                    region,
                    mapping,
                    lkey,
                    mkey_index,
                    domain,
                    pools,
                    is_ending: false,
                });
                self.list.len() - 1
            }
        };
        let entry = &mut self.list[at];
        if entry.pools.iter().any(|known| known.pool == *pool) {
            return Ok(());
        }
        let stamped = pool.keys().is_none();
        // SAFETY: as `stamp` says.
        if stamped && let Err(error) = unsafe { pool.stamp(entry.stamp()) } {
            if entry.pools.is_empty() {
                self.end(control, at)?;
            }
            return Err(error.into());
        }
        entry.pools.push(Registered { pool: pool.clone(), stamped });
        Ok(())
    }

    /// Takes a pool out. With the last one of its region goes its key, and then its mapping.
    pub(crate) fn remove(&mut self, control: &mut Control, pool: &Pool) -> Result<(), DeviceError> {
        let Some(at) = self.find(pool) else { return Ok(()) };
        let entry = &mut self.list[at];
        let Some(place) = entry.pools.iter().position(|known| known.pool == *pool) else {
            return Ok(());
        };
        // Queues hold the mapping of every region that they may name to the device.
        let handles = Arc::strong_count(&entry.mapping) - 1;
        if handles > 0 {
            return Err(DeviceError::InUse { handles });
        }
        if entry.pools[place].stamped {
            // SAFETY: receive queues, of whatever device, post buffers by the mapping that they
            // hold, not by the stamp. Send queues of this device hold this mapping, so there is
            // none, and those of others look up what this one stamped. Queue pairs look at the
            // domain, which is withdrawn first; what they, their keys or their page lists hold is
            // out of the pool, so that this is refused.
            if let Err(error) = unsafe { pool.unstamp() } {
                // SAFETY: as `stamp` says: the registration goes on.
                unsafe { pool.stamp(entry.stamp()) }?;
                return Err(error.into());
            }
            entry.pools[place].stamped = false;
        }
        if entry.pools.len() == 1 {
            return self.end(control, at);
        }
        entry.pools.remove(place);
        Ok(())
    }

    /// Ends the device's access to a pool of foreign memory, whatever uses it.
    pub(crate) fn revoke(&mut self, control: &mut Control, pool: &Pool) -> Result<(), DeviceError> {
        if !pool.is_foreign() {
            let what = "memory of this process is not revoked; destroy the queues that use the \
                        pool, then unregister it";
            return Err(ConfigError::Conflict { what }.into());
        }
        self.find(pool).map_or(Ok(()), |at| self.end(control, at))
    }

    /// Ends a registration: first its key, then its mapping. When it fails, nothing uses what is
    /// left, and another call goes on with that.
    fn end(&mut self, control: &mut Control, at: usize) -> Result<(), DeviceError> {
        let entry = &mut self.list[at];
        entry.is_ending = true;
        if let Some(index) = entry.mkey_index {
            control.destroy(Kind::Mkey, index)?;
            entry.mkey_index = None;
        }
        entry.mapping.end()?;
        let entry = self.list.remove(at);
        give_free(entry.pools);
        Ok(())
    }

    fn find(&self, pool: &Pool) -> Option<usize> {
        self.list.iter().position(|entry| Arc::ptr_eq(&entry.region, pool.region()))
    }

    /// How this device reaches a pool.
    pub(crate) fn get(&self, pool: &Pool) -> Option<RegionKeys> {
        let entry = self.list.get(self.find(pool)?).filter(|entry| !entry.is_ending)?;
        entry.pools.iter().any(|known| known.pool == *pool).then(|| entry.keys())
    }

    /// How this device reaches every region, for packets of any pool.
    pub(crate) fn all(&self) -> Vec<RegionKeys> {
        self.list.iter().filter(|entry| !entry.is_ending).map(Registration::keys).collect()
    }

    /// How this device reaches the regions with a pool whose buffers carry the addresses of another
    /// one.
    pub(crate) fn stamped_elsewhere(&self) -> Vec<RegionKeys> {
        let elsewhere = |entry: &&Registration| entry.pools.iter().any(|pool| !pool.stamped);
        let live = self.list.iter().filter(|entry| !entry.is_ending);
        live.filter(elsewhere).map(Registration::keys).collect()
    }

    /// mkeys of regions, to destroy at the end.
    pub(crate) fn mkeys(&self) -> impl Iterator<Item = u32> {
        self.list.iter().filter_map(|entry| entry.mkey_index)
    }

    /// Gives the pools free for another device, and unmaps their regions.
    pub(crate) fn clear(&mut self) {
        give_free(self.list.drain(..).flat_map(|entry| entry.pools));
    }

    /// Keeps everything mapped for ever.
    pub(crate) fn leak(&mut self) {
        for entry in self.list.drain(..) {
            entry.mapping.leak();
        }
    }
}

/// Takes the stamps of pools back whose mapping, or whole device, is gone.
fn give_free(pools: impl IntoIterator<Item = Registered>) {
    for Registered { pool, .. } in pools.into_iter().filter(|known| known.stamped) {
        // Buffers may still be out, or in a core's cache. The stamp then stays without its domain,
        // and means nothing to anybody.
        // SAFETY: the device reaches nothing through this mapping any more, whatever a queue of it
        // still posts; and those of others post nothing by this stamp, as in `remove`.
        if let Err(error) = unsafe { pool.unstamp() } {
            tracing::debug!(%error, "pool keeps its stamp");
        }
    }
}

impl Registration {
    /// The words for the buffers of a pool over the region. They hold what [`Pool::stamp`] demands
    /// until `unstamp` takes them back before key and mapping end: the region is mapped at this
    /// address, and the key covers it for whom `domain` stands.
    fn stamp(&self) -> PoolKeys {
        PoolKeys { region_iova: self.mapping.iova(), lkey: self.lkey, domain: self.domain }
    }

    fn keys(&self) -> RegionKeys {
        let start = self.region.base().as_ptr().addr();
        RegionKeys {
            addresses: start..start + self.region.len_bytes(),
            va_to_iova: self.mapping.iova().wrapping_sub(start as u64),
            lkey_be: self.lkey.to_be(),
            domain: self.domain,
            _mapping: Arc::clone(&self.mapping),
        }
    }
}
