//! [`FmrPool`]: FMRs made once, handed out mapped, and found again by their pages.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Fmr, FmrAttr, FmrError, FmrKey, FmrQueue};
use crate::context::RdmaContext;
use crate::error::VerbsError;
use crate::mr::Memory;
use crate::pd::Pd;
use crate::types::Qpn;

/// FMRs that are ended together when one is needed and none is free.
const REUSE_BATCH: usize = 16;
/// Requests in flight of a flush.
const DEPTH: u32 = 64;
/// Numbers of pools.
static NEXT_ID: AtomicU32 = AtomicU32::new(1);

/// When [`FmrPool::unmap`] ends access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FmrMode {
    /// When the call of the last user returns. Each costs a request and its completion.
    #[default]
    Strict,
    /// **Later than the call.** Peers that know the key still reach the memory until the next
    /// flush: when [`FmrPoolConfig::dirty_watermark`] FMRs wait for it, by [`FmrPool::flush`], when
    /// none is free for a mapping, or when the pool is dropped. Only for peers that are trusted
    /// with memory they were given once.
    Lazy,
}

/// How large a pool is, and how it behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FmrPoolConfig {
    /// Every FMR of the pool.
    pub fmr: FmrAttr,
    /// FMRs: 1 to 65536.
    pub pool_size: u32,
    /// Unmapped FMRs that wait for a flush before one is made: 1 to `pool_size`. Lazy mode only.
    pub dirty_watermark: u32,
    /// Mappings of the same pages of the same memory at the same address share an FMR, and in lazy
    /// mode find one that waits for its flush.
    pub cache: bool,
    /// When unmapping ends access.
    pub mode: FmrMode,
}

impl Default for FmrPoolConfig {
    fn default() -> Self {
        Self {
            fmr: FmrAttr::default(),
            pool_size: 64,
            dirty_watermark: 16,
            cache: true,
            mode: FmrMode::Strict,
        }
    }
}

/// Counters of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FmrPoolStats {
    /// Mappings that found their pages mapped.
    pub hits: u64,
    /// Mappings that registered.
    pub misses: u64,
    /// Flushes.
    pub flushes: u64,
    /// FMRs in use.
    pub used: u32,
    /// FMRs that nobody uses and peers can still reach.
    pub dirty: u32,
}

/// Result of a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlushReport {
    /// FMRs whose access has ended.
    pub ended: u32,
}

/// Told of each flush when it has ended.
type OnFlush = Box<dyn FnMut(FlushReport) + Send>;

/// A mapped FMR of a pool, until [`FmrPool::unmap`] takes it back. One that is dropped instead
/// stays mapped as long as its pool.
#[derive(Debug)]
#[must_use = "it stays mapped until FmrPool::unmap takes it back"]
pub struct PoolFmr {
    pool: u32,
    at: u32,
    key: FmrKey,
}

impl PoolFmr {
    /// How it is reached.
    #[must_use]
    pub fn key(&self) -> FmrKey {
        self.key
    }
}

/// Who has an FMR, and for what. The FMR itself lies at the same place of [`FmrPool::fmrs`].
#[derive(Debug)]
struct Entry {
    /// Users; 0 and mapped is dirty, 0 and unmapped is free.
    users: u32,
    /// What it is mapped to, for the cache.
    memory: Option<Arc<Memory>>,
    pages: Vec<usize>,
    iova: u64,
    hash: u64,
    /// Its number among the dirty ones; 0 while it is none.
    since: u64,
}

impl Entry {
    fn is_like(&self, memory: &Arc<Memory>, pages: &[usize], iova: u64) -> bool {
        let same = |own: &Arc<Memory>| Arc::ptr_eq(own, memory);
        self.iova == iova && self.pages == pages && self.memory.as_ref().is_some_and(same)
    }
}

/// A pool of FMRs. Belongs to one core at a time.
pub struct FmrPool {
    fmrs: Vec<Fmr>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// FMRs that became dirty, oldest first, by their numbers then: those that were used again have
    /// another number, or none. Twice as many as there are FMRs.
    became_dirty: VecDeque<(u64, u32)>,
    dirty: u32,
    last_dirty: u64,
    by_hash: HashMap<u64, u32>,
    config: FmrPoolConfig,
    stats: FmrPoolStats,
    on_flush: Option<OnFlush>,
    queue: FmrQueue,
    id: u32,
    batch: Vec<u32>,
}

impl fmt::Debug for FmrPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FmrPool")
            .field("config", &self.config)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

impl FmrPool {
    /// Makes a pool, and its FMRs.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`], or what the device refused.
    pub fn new(context: &RdmaContext, pd: &Pd, config: &FmrPoolConfig) -> Result<Self, VerbsError> {
        let size = config.pool_size;
        VerbsError::range("pool_size", size.into(), 1, 1 << 16)?;
        let watermark = config.dirty_watermark.into();
        VerbsError::range("dirty_watermark", watermark, 1, size.into())?;
        let queue = FmrQueue::new(context, pd, DEPTH)?;
        let fmrs = (0..size).map(|_| queue.alloc(&config.fmr)).collect::<Result<_, _>>()?;
        let entry = |_| {
            let pages = Vec::with_capacity(config.fmr.max_pages as usize);
            Entry { users: 0, memory: None, pages, iova: 0, hash: 0, since: 0 }
        };
        Ok(Self {
            fmrs,
            entries: (0..size).map(entry).collect(),
            free: (0..size).rev().collect(),
            became_dirty: VecDeque::with_capacity(2 * size as usize),
            dirty: 0,
            last_dirty: 0,
            by_hash: HashMap::with_capacity(2 * size as usize),
            config: *config,
            stats: FmrPoolStats::default(),
            on_flush: None,
            queue,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            batch: Vec::with_capacity(size as usize),
        })
    }

    /// Calls `on_flush` at the end of each flush, in the call that made it.
    pub fn on_flush(&mut self, on_flush: impl FnMut(FlushReport) + Send + 'static) {
        self.on_flush = Some(Box::new(on_flush));
    }

    /// Counters of mappings, hits and flushes so far.
    #[must_use]
    pub fn stats(&self) -> FmrPoolStats {
        let used = self.config.pool_size - self.free.len() as u32 - self.dirty;
        FmrPoolStats { used, dirty: self.dirty, ..self.stats }
    }

    /// Number of its queue pair, as events and the device's log name it.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        self.queue.qpn()
    }

    /// Maps pages of a memory, given by their offsets, as one region whose first byte has the
    /// address `iova`. When it returns, the key works.
    ///
    /// # Errors
    ///
    /// [`FmrError::PoolEmpty`]; as [`FmrQueue::map_phys`].
    pub fn map_phys(
        &mut self,
        memory: &Arc<Memory>,
        pages: &[usize],
        iova: u64,
    ) -> Result<PoolFmr, FmrError> {
        let hash = hash_of(memory, pages, iova);
        if self.config.cache
            && let Some(hit) = self.find(hash, memory, pages, iova)
        {
            return Ok(hit);
        }
        if self.free.is_empty() {
            self.end_dirty(REUSE_BATCH)?;
        }
        let Some(at) = self.free.pop() else {
            return Err(FmrError::PoolEmpty(self.config.pool_size));
        };
        let fmr = &mut self.fmrs[at as usize];
        let mapped = self.queue.map_phys(fmr, memory, pages, iova);
        let key = mapped.inspect_err(|_| self.free.push(at))?;
        let entry = &mut self.entries[at as usize];
        entry.pages.clear();
        entry.pages.extend_from_slice(pages);
        (entry.memory, entry.iova, entry.hash) = (Some(Arc::clone(memory)), iova, hash);
        entry.users = 1;
        self.stats.misses += 1;
        if self.config.cache {
            self.by_hash.insert(hash, at);
        }
        Ok(PoolFmr { pool: self.id, at, key })
    }

    /// An FMR that is mapped so already.
    fn find(
        &mut self,
        hash: u64,
        memory: &Arc<Memory>,
        pages: &[usize],
        iova: u64,
    ) -> Option<PoolFmr> {
        let at = *self.by_hash.get(&hash)?;
        let entry = self.entries.get_mut(at as usize)?;
        let key = self.fmrs.get(at as usize)?.key()?;
        if !entry.is_like(memory, pages, iova) {
            return None;
        }
        if entry.users == 0 {
            entry.since = 0;
            self.dirty -= 1;
        }
        entry.users += 1;
        self.stats.hits += 1;
        Some(PoolFmr { pool: self.id, at, key })
    }

    /// Takes a mapping back. When access ends says [`FmrPoolConfig::mode`].
    ///
    /// # Errors
    ///
    /// [`FmrError::OtherPool`], and then nothing has changed; as [`FmrQueue::unmap`].
    pub fn unmap(&mut self, fmr: PoolFmr) -> Result<(), FmrError> {
        if fmr.pool != self.id {
            return Err(FmrError::OtherPool);
        }
        let entry = &mut self.entries[fmr.at as usize];
        entry.users -= 1;
        if entry.users > 0 {
            return Ok(());
        }
        self.put_dirty(fmr.at);
        match self.config.mode {
            FmrMode::Strict => self.end_dirty(usize::MAX).map(drop),
            FmrMode::Lazy if self.dirty >= self.config.dirty_watermark => self.flush().map(drop),
            FmrMode::Lazy => Ok(()),
        }
    }

    /// Ends access through every FMR that nobody uses. When it returns, none of their keys works.
    ///
    /// # Errors
    ///
    /// Those of [`FmrQueue::unmap`].
    pub fn flush(&mut self) -> Result<FlushReport, FmrError> {
        let ended = self.end_dirty(usize::MAX)?;
        self.stats.flushes += 1;
        let report = FlushReport { ended };
        if let Some(on_flush) = &mut self.on_flush {
            on_flush(report);
        }
        Ok(report)
    }

    fn put_dirty(&mut self, at: u32) {
        let Self { became_dirty, entries, .. } = self;
        if became_dirty.len() == became_dirty.capacity() {
            became_dirty.retain(|(since, at)| entries[*at as usize].since == *since);
        }
        self.last_dirty += 1;
        entries[at as usize].since = self.last_dirty;
        became_dirty.push_back((self.last_dirty, at));
        self.dirty += 1;
    }

    /// Ends up to `most` of the dirty FMRs, oldest first; how many.
    fn end_dirty(&mut self, most: usize) -> Result<u32, FmrError> {
        self.batch.clear();
        while self.batch.len() < most
            && let Some((since, at)) = self.became_dirty.pop_front()
        {
            let entry = &mut self.entries[at as usize];
            if entry.since == since {
                entry.since = 0;
                self.dirty -= 1;
                self.batch.push(at);
            }
        }
        let result = self.queue.end(&mut self.fmrs, &self.batch);
        let mut ended = 0;
        while let Some(at) = self.batch.pop() {
            let entry = &mut self.entries[at as usize];
            if self.fmrs[at as usize].key().is_some() {
                // The device did not let go of it: it waits for another try.
                self.put_dirty(at);
                continue;
            }
            if self.by_hash.get(&entry.hash) == Some(&at) {
                self.by_hash.remove(&entry.hash);
            }
            entry.memory = None;
            self.free.push(at);
            ended += 1;
        }
        result.map(|()| ended)
    }
}

fn hash_of(memory: &Arc<Memory>, pages: &[usize], iova: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (Arc::as_ptr(memory).addr(), iova, pages).hash(&mut hasher);
    hasher.finish()
}
