//! [`Pool`]: a fixed number of packet buffers over one region.
#![expect(unsafe_code, reason = "the pool is freed by whoever brings the last buffer home")]

use std::{
    fmt,
    ops::{Range, RangeInclusive},
    ptr::NonNull,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

use crate::{
    error::MempoolError,
    header::{Cold, Header, PoolInner},
    holders::end,
    keys::{INVALID_LKEY, PoolKeys},
    objects::Core,
    region::Region,
    region_config::{Backing, RegionConfig},
    stats::PoolStats,
};

/// Bytes kept free in front of the data, unless the configuration says otherwise.
pub const DEFAULT_HEADROOM_BYTES: usize = 128;
/// Room for 2048 bytes behind the default headroom.
pub const DEFAULT_DATA_ROOM_BYTES: usize = 2048 + DEFAULT_HEADROOM_BYTES;
/// Buffers that a core's cache holds, unless the configuration says otherwise.
pub const DEFAULT_CACHE_SIZE: usize = 512;
/// Most buffers of one pool.
pub const MAX_COUNT: usize = 1 << 30;
/// Largest data room: lengths are 16 bits.
pub const MAX_DATA_ROOM_BYTES: usize = 65535;
/// Largest cache of one core.
pub const MAX_CACHE_SIZE: usize = 4096;
/// Data rooms start at multiples of this: a cache line, so that no two buffers share one.
const ROOM_ALIGN: usize = 64;

/// The shape of a pool to make. `PoolConfig::default()` with `name` and `count` set is the common
/// case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolConfig {
    /// Name for messages and statistics.
    pub name: String,
    /// Buffers: 1 to 2^30.
    pub count: usize,
    /// Bytes of each buffer, headroom included: 64 to 65535.
    pub data_room_bytes: usize,
    /// Bytes kept free in front of the data: 0 to `data_room_bytes`.
    pub headroom_bytes: usize,
    /// Free buffers that each core may keep for itself: 0 to 4096. Plan for `count` at least the
    /// buffers in rings and in flight, and this much for each core besides.
    pub cache_size: usize,
    /// The region to make. Its `len_bytes` is set by the pool; leave it 0.
    pub region: RegionConfig,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            name: "mbufs".to_owned(),
            count: 8191,
            data_room_bytes: DEFAULT_DATA_ROOM_BYTES,
            headroom_bytes: DEFAULT_HEADROOM_BYTES,
            cache_size: DEFAULT_CACHE_SIZE,
            region: RegionConfig::default(),
        }
    }
}

impl PoolConfig {
    /// Distance from one data room to the next, in bytes.
    #[must_use]
    pub fn stride_bytes(&self) -> usize {
        self.data_room_bytes.next_multiple_of(ROOM_ALIGN)
    }

    /// Bytes of region that the pool needs.
    #[must_use]
    pub fn region_bytes(&self) -> usize {
        self.count.saturating_mul(self.stride_bytes())
    }

    fn validate(&self) -> Result<(), MempoolError> {
        let room = self.data_room_bytes;
        check_ranges(
            &self.name,
            [
                ("count", self.count, 1..=MAX_COUNT),
                ("data_room_bytes", room, 64..=MAX_DATA_ROOM_BYTES),
                ("headroom_bytes", self.headroom_bytes, 0..=room),
                ("cache_size", self.cache_size, 0..=MAX_CACHE_SIZE),
            ],
        )
    }
}

/// Refuses the first field that is out of its range.
fn check_ranges<const N: usize>(
    pool: &str,
    fields: [(&'static str, usize, RangeInclusive<usize>); N],
) -> Result<(), MempoolError> {
    for (field, value, range) in fields {
        if !range.contains(&value) {
            let range = format!("{} to {}", range.start(), range.end());
            return Err(MempoolError::PoolConfig { pool: pool.to_owned(), field, value, range });
        }
    }
    Ok(())
}

/// A handle to a pool of packet buffers. Cloning it is cheap, and all clones are the same pool.
///
/// Buffers come from the cache of a core ([`Pool::cache`]) or, off the data path, from the pool
/// itself. They may outlive every handle: the memory goes when the last of them comes home.
///
/// The driver *stamps* a pool with the address and key of its region when the region is
/// registered. Its buffers carry those of the first device that registered it; another one that
/// uses the same pool works with the difference of the addresses and a key of its own.
pub struct Pool(NonNull<PoolInner>);

// SAFETY: `PoolInner` is Sync (its parts are, and its raw pointers lead to memory that it owns);
// a handle keeps it alive.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// Makes a region of the right length and a pool over it.
    ///
    /// # Errors
    /// [`MempoolError::PoolConfig`], and those of [`Region::alloc`].
    #[doc(alias = "rte_pktmbuf_pool_create")]
    pub fn new(config: &PoolConfig) -> Result<Self, MempoolError> {
        Self::near(config, None)
    }

    /// A pool in memory of `node`, where it is known, the configuration names none, and that node
    /// has some: [`Region::alloc_near`].
    ///
    /// # Errors
    /// Those of [`Pool::new`].
    pub fn near(config: &PoolConfig, node: Option<u32>) -> Result<Self, MempoolError> {
        config.validate()?;
        let region = RegionConfig { len_bytes: config.region_bytes(), ..config.region.clone() };
        Self::with_region(config, &Region::alloc_near(&region, node)?, 0)
    }

    /// Makes a pool over the bytes of `region` from `offset`, a multiple of 64. The region's
    /// configuration in `config` is not used.
    ///
    /// Over [foreign](Backing::Foreign) memory it is a pool of *foreign* buffers, see
    /// [`Mbuf::is_foreign`](crate::Mbuf::is_foreign). Making it, using it and ending it touch none
    /// of that memory: headers and free lists lie on the heap.
    ///
    /// # Errors
    /// [`MempoolError::PoolConfig`]; [`MempoolError::RegionRange`] if the region is too small or
    /// another pool has some of those bytes.
    #[doc(alias = "rte_pktmbuf_pool_create_extbuf")]
    pub fn with_region(
        config: &PoolConfig,
        region: &Arc<Region>,
        offset: usize,
    ) -> Result<Self, MempoolError> {
        config.validate()?;
        let range = claim(config, region, offset)?;
        let count = config.count as u32;
        let (stride, room) = (config.stride_bytes(), config.data_room_bytes as u16);
        let cold: Box<[Cold]> = (0..count).map(|_| Cold::default()).collect();
        let (first, foreign) = (range.start, region.backing() == Backing::Foreign);
        let inner = Box::<PoolInner>::new_uninit();
        let inner = NonNull::from(Box::leak(inner)).cast::<PoolInner>();
        let core = Core::new(&config.name, count, |index| {
            // SAFETY: `claim` checked that all rooms lie inside the region.
            let buf = unsafe { region.as_ptr().add(first + index as usize * stride) };
            Header::new(buf, room, foreign, inner)
        });
        let value = PoolInner {
            core,
            cold: NonNull::from(Box::leak(cold)).cast(),
            region: Arc::clone(region),
            range,
            stride,
            foreign,
            data_room: room,
            headroom: config.headroom_bytes as u16,
            cache_size: config.cache_size,
            keys: Mutex::default(),
            iova: AtomicU64::new(0),
            lkey_be: AtomicU32::new(INVALID_LKEY.to_be()),
            domain: AtomicU32::new(0),
        };
        // SAFETY: allocated above for exactly this; `end` frees it as a Box.
        unsafe { inner.write(value) };
        Ok(Self(inner))
    }

    /// Name of the pool.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner().core.name()
    }

    /// Number of buffers.
    #[must_use]
    pub fn count(&self) -> usize {
        self.inner().core.count() as usize
    }

    /// Bytes of each buffer, headroom included.
    #[must_use]
    pub fn data_room_bytes(&self) -> usize {
        usize::from(self.inner().data_room)
    }

    /// Bytes kept free in front of the data.
    #[must_use]
    pub fn headroom_bytes(&self) -> usize {
        usize::from(self.inner().headroom)
    }

    /// The memory that a device must be given to use these buffers.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.inner().region
    }

    /// Whether its buffers lie in [foreign](Backing::Foreign) memory, see
    /// [`Mbuf::is_foreign`](crate::Mbuf::is_foreign).
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.inner().foreign
    }

    /// The bytes of the region in which this pool's data rooms lie.
    #[must_use]
    pub fn region_range(&self) -> Range<usize> {
        self.inner().range.clone()
    }

    /// Writes the device's address and key into every buffer: once, before the first use.
    ///
    /// A pool that carries this address and key already keeps them, and takes the domain over if
    /// its own was withdrawn by [`Pool::unstamp`].
    ///
    /// # Safety
    /// Until the pool is unstamped, byte `n` of [`Pool::region`] is `keys.region_iova + n` for
    /// every device, and `keys.lkey` covers the region in every protection domain, that
    /// `keys.domain` stands for. Queues hand these words to the device without another look: a
    /// wrong one lets it write into any memory that it reaches.
    ///
    /// # Errors
    /// [`MempoolError::AlreadyStamped`] with other keys; [`MempoolError::BuffersAway`] unless
    /// every buffer is in the shared list.
    pub unsafe fn stamp(&self, keys: PoolKeys) -> Result<(), MempoolError> {
        let mut stamped = self.stamped();
        match *stamped {
            Some(old) if old == keys || old == (PoolKeys { domain: 0, ..keys }) => {}
            Some(old) => return Err(self.already_stamped(old)),
            None => self.write_keys(
                keys.region_iova.wrapping_add(self.inner().range.start as u64),
                keys.lkey,
            )?,
        }
        self.inner().domain.store(keys.domain, Relaxed);
        *stamped = Some(keys);
        Ok(())
    }

    /// Takes the keys back when the device's registration ends, so that another device may stamp
    /// the pool.
    ///
    /// The domain of the keys is withdrawn even where that fails: [`Segment::domain`] of every
    /// buffer answers 0 from then on, and the address and key that they go on carrying mean nothing
    /// to anybody who looks there first.
    ///
    /// [`Segment::domain`]: crate::Segment::domain
    ///
    /// # Safety
    /// No queue of a device posts buffers by the address that they carry any more: an unstamped
    /// buffer carries address 0, which a queue would post under a key that is valid.
    ///
    /// # Errors
    /// [`MempoolError::BuffersAway`] unless every buffer is in the shared list.
    pub unsafe fn unstamp(&self) -> Result<(), MempoolError> {
        let mut stamped = self.stamped();
        if let Some(keys) = &mut *stamped {
            self.inner().domain.store(0, Relaxed);
            keys.domain = 0;
            self.write_keys(0, INVALID_LKEY)?;
            *stamped = None;
        }
        Ok(())
    }

    /// The keys that the buffers carry; `None` if no device may be given them yet.
    #[must_use]
    pub fn keys(&self) -> Option<PoolKeys> {
        *self.stamped()
    }

    fn stamped(&self) -> MutexGuard<'_, Option<PoolKeys>> {
        self.inner().keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn already_stamped(&self, old: PoolKeys) -> MempoolError {
        MempoolError::AlreadyStamped { pool: self.name().to_owned(), lkey: old.lkey }
    }

    /// Free buffers that a cache of a core keeps at most: [`PoolConfig::cache_size`].
    #[must_use]
    pub fn cache_size(&self) -> usize {
        self.inner().cache_size
    }

    /// Counts of the pool. Takes a lock against the making of caches; not for the data path.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.inner().core.stats()
    }

    /// Takes all buffers, writes address and key into them, and puts them back.
    fn write_keys(&self, iova: u64, lkey: u32) -> Result<(), MempoolError> {
        let count = self.count();
        let mut headers = Vec::with_capacity(count);
        if !self.inner().core.get_shared(&mut headers.spare_capacity_mut()[..count]) {
            let away = count - self.inner().core.shared_len() as usize;
            let pool = self.name().to_owned();
            return Err(MempoolError::BuffersAway { pool, away: away.max(1), count });
        }
        // SAFETY: a get that succeeds fills all that it was given.
        unsafe { headers.set_len(count) };
        self.inner().iova.store(iova, Relaxed);
        self.inner().lkey_be.store(lkey.to_be(), Relaxed);
        for header in &headers {
            // SAFETY: taken from the list just above, so ours alone.
            unsafe { self.inner().restore_room(*header) };
        }
        // SAFETY: as above; they are not used again. This handle keeps the pool alive.
        unsafe { Core::put_shared(&raw const self.inner().core, &headers) };
        Ok(())
    }
}

/// Takes the bytes of the region that the pool needs.
fn claim(
    config: &PoolConfig,
    region: &Region,
    offset: usize,
) -> Result<Range<usize>, MempoolError> {
    let end = offset.saturating_add(config.region_bytes());
    let why = if end > region.len_bytes() {
        "too small"
    } else if !offset.is_multiple_of(ROOM_ALIGN) {
        "the offset is not a multiple of 64"
    } else if !region.claim(offset..end) {
        "already used by another pool, in raw use, or copied to or from before"
    } else {
        return Ok(offset..end);
    };
    let pool = config.name.clone();
    Err(MempoolError::RegionRange {
        pool,
        start: offset,
        end,
        region_bytes: region.len_bytes(),
        why,
    })
}

impl Pool {
    pub(crate) fn inner(&self) -> &PoolInner {
        // SAFETY: a handle keeps the pool alive, and nobody has `&mut` to it.
        unsafe { self.0.as_ref() }
    }

    /// For comparison with the `pool` of a header.
    #[inline]
    pub(crate) fn inner_ptr(&self) -> NonNull<PoolInner> {
        self.0
    }
}

impl Clone for Pool {
    fn clone(&self) -> Self {
        self.inner().core.add_handle();
        Self(self.0)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: live until this handle goes; told to end it, this is the only thread that may.
        unsafe {
            if Core::drop_handle(&raw const (*self.0.as_ptr()).core) {
                end(self.0);
            }
        }
    }
}

impl PartialEq for Pool {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Pool {}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.name())
            .field("data_room_bytes", &self.data_room_bytes())
            .field("keys", &self.keys())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
