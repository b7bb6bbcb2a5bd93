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

/// What a pool has done.
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

/// What a flush did.
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

/// An FMR and who has it.
#[derive(Debug)]
struct Entry {
    fmr: Fmr,
    /// Users; 0 and mapped is dirty, 0 and unmapped is free.
    users: u32,
    /// What it is mapped to, for the cache.
    memory: Option<Arc<Memory>>,
    pages: Vec<usize>,
    iova: u64,
    hash: u64,
    /// Which of its places in the queue of dirty ones is right.
    stamp: u64,
}

impl Entry {
    fn is_dirty(&self) -> bool {
        self.users == 0 && self.fmr.key().is_some()
    }

    fn is_like(&self, memory: &Arc<Memory>, pages: &[usize], iova: u64) -> bool {
        let same = |own: &Arc<Memory>| Arc::ptr_eq(own, memory);
        self.iova == iova && self.pages == pages && self.memory.as_ref().is_some_and(same)
    }
}

/// A pool of FMRs. Belongs to one core at a time.
pub struct FmrPool {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Dirty FMRs, oldest first; those whose stamp has changed are no longer.
    dirty: VecDeque<(u32, u64)>,
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
    pub fn new(device: &RdmaContext, pd: &Pd, config: &FmrPoolConfig) -> Result<Self, VerbsError> {
        let size = config.pool_size;
        VerbsError::range("pool_size", size.into(), 1, 1 << 16)?;
        let watermark = config.dirty_watermark.into();
        VerbsError::range("dirty_watermark", watermark, 1, size.into())?;
        let queue = FmrQueue::new(device, pd, DEPTH)?;
        let entry = |_| {
            let fmr = queue.alloc(&config.fmr)?;
            let pages = Vec::with_capacity(config.fmr.max_pages as usize);
            Ok(Entry { fmr, users: 0, memory: None, pages, iova: 0, hash: 0, stamp: 0 })
        };
        let entries = (0..size).map(entry).collect::<Result<Vec<_>, VerbsError>>()?;
        Ok(Self {
            entries,
            free: (0..size).rev().collect(),
            dirty: VecDeque::with_capacity(2 * size as usize + 1),
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

    /// What it has done.
    #[must_use]
    pub fn stats(&self) -> FmrPoolStats {
        self.stats
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
            return Err(FmrError::PoolEmpty { size: self.config.pool_size });
        };
        let entry = &mut self.entries[at as usize];
        let key = match self.queue.map_phys(&mut entry.fmr, memory, pages, iova) {
            Ok(key) => key,
            Err(error) => {
                self.free.push(at);
                return Err(error);
            }
        };
        entry.pages.clear();
        entry.pages.extend_from_slice(pages);
        (entry.memory, entry.iova, entry.hash) = (Some(Arc::clone(memory)), iova, hash);
        entry.users = 1;
        self.stats.misses += 1;
        self.stats.used += 1;
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
        let key = entry.fmr.key()?;
        if !entry.is_like(memory, pages, iova) {
            return None;
        }
        if entry.users == 0 {
            entry.stamp += 1;
            self.stats.dirty -= 1;
            self.stats.used += 1;
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
        entry.stamp += 1;
        self.stats.used -= 1;
        self.stats.dirty += 1;
        if self.dirty.len() == self.dirty.capacity() {
            let entries = &self.entries;
            self.dirty.retain(|(at, stamp)| entries[*at as usize].stamp == *stamp);
        }
        self.dirty.push_back((fmr.at, entry_stamp(&self.entries, fmr.at)));
        match self.config.mode {
            FmrMode::Strict => self.end_dirty(usize::MAX).map(drop),
            FmrMode::Lazy if self.stats.dirty >= self.config.dirty_watermark => {
                self.flush().map(drop)
            }
            FmrMode::Lazy => Ok(()),
        }
    }

    /// Ends access through every FMR that nobody uses. When it returns, none of their keys works.
    ///
    /// # Errors
    ///
    /// As [`FmrQueue::unmap`].
    pub fn flush(&mut self) -> Result<FlushReport, FmrError> {
        let ended = self.end_dirty(usize::MAX)?;
        self.stats.flushes += 1;
        let report = FlushReport { ended };
        if let Some(on_flush) = &mut self.on_flush {
            on_flush(report);
        }
        Ok(report)
    }

    /// Ends up to `most` of the dirty FMRs, oldest first; how many.
    fn end_dirty(&mut self, most: usize) -> Result<u32, FmrError> {
        self.batch.clear();
        while self.batch.len() < most
            && let Some((at, stamp)) = self.dirty.pop_front()
        {
            let entry = &self.entries[at as usize];
            if entry.stamp == stamp && entry.is_dirty() {
                self.batch.push(at);
            }
        }
        let mut first = Ok(());
        for chunk in self.batch.chunks(DEPTH as usize) {
            let fmrs = chosen(&mut self.entries, chunk);
            first = first.and(fmrs_end(&mut self.queue, fmrs));
        }
        let mut ended = 0;
        for at in self.batch.drain(..) {
            let entry = &mut self.entries[at as usize];
            if entry.is_dirty() {
                // The device did not let go of it: it waits for another try.
                self.dirty.push_back((at, entry.stamp));
                continue;
            }
            if self.by_hash.get(&entry.hash) == Some(&at) {
                self.by_hash.remove(&entry.hash);
            }
            entry.memory = None;
            self.free.push(at);
            self.stats.dirty -= 1;
            ended += 1;
        }
        first.map(|()| ended)
    }
}

fn entry_stamp(entries: &[Entry], at: u32) -> u64 {
    entries[at as usize].stamp
}

fn fmrs_end(queue: &mut FmrQueue, mut fmrs: Vec<&mut Fmr>) -> Result<(), FmrError> {
    queue.unmap(&mut fmrs)
}

/// The FMRs at some places, which differ.
fn chosen<'e>(entries: &'e mut [Entry], at: &[u32]) -> Vec<&'e mut Fmr> {
    let mut places = at.to_vec();
    places.sort_unstable();
    let mut places = places.into_iter().peekable();
    let taken = |(index, entry): (usize, &'e mut Entry)| {
        places.next_if(|at| *at as usize == index).map(|_| &mut entry.fmr)
    };
    entries.iter_mut().enumerate().filter_map(taken).collect()
}

fn hash_of(memory: &Arc<Memory>, pages: &[usize], iova: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (Arc::as_ptr(memory).addr(), iova, pages).hash(&mut hasher);
    hasher.finish()
}
