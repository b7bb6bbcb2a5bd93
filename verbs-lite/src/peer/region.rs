//! [`PeerMr`]: registered memory of a provider, and how it ends.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ferrocx_bus::DmaAccess;

use super::entry::Provider;
use super::life::{Life, Turn};
use super::provider::{Cause, EndRegion, PeerError, PeerMemory, PeerPiece, PeerRange, PeerTicket};
use super::stats::add;
use crate::context::RdmaContext;
use crate::error::lock;
use crate::mr::{Memory, Mr, PhysBuf};
use crate::pd::Pd;
use crate::types::Access;

/// Numbers of regions.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// How memory is registered.
#[derive(Debug, Clone)]
pub struct PeerConfig {
    /// Rights that the key grants.
    pub access: Access,
    /// Whether the caller copes with the memory being taken back at any moment. Providers that may
    /// do so refuse others.
    pub invalidation: bool,
    /// How long taking it back may last before that counts as late, and how long whoever comes
    /// second waits for whoever came first.
    pub deadline: Duration,
}

impl PeerConfig {
    /// With these rights, ready for invalidation, and a deadline of a second.
    #[must_use]
    pub fn new(access: Access) -> Self {
        Self { access, invalidation: true, deadline: Duration::from_secs(1) }
    }
}

/// What a region holds of its provider.
#[derive(Debug)]
struct Held {
    memory: Box<dyn PeerMemory>,
    /// Present from `get_pages` to `put_pages`.
    pages: Option<Vec<PeerPiece>>,
    /// Whether `dma_map` went well.
    is_prepared: bool,
    mapped: Vec<Arc<Memory>>,
}

/// A region, as provider and holder see it.
#[derive(Debug)]
struct Grant {
    provider: Arc<Provider>,
    range: PeerRange,
    /// The range with its first and last page whole, and its pages.
    whole: PeerRange,
    pages: u64,
    deadline: Duration,
    life: Life,
    /// While it is live.
    held: Mutex<Option<Held>>,
}

/// Registered memory of a provider. It ends when this is dropped, when the provider takes it back,
/// or when the provider is unregistered; what was made from [`PeerMr::mr`] stays, and its key is
/// refused by the device from then on.
#[derive(Debug)]
pub struct PeerMr {
    grant: Arc<Grant>,
    mr: Mr,
    /// At least one.
    memories: Box<[Arc<Memory>]>,
}

impl PeerMr {
    /// The region: keys, addresses as the provider counts them, buffers.
    #[must_use]
    pub fn mr(&self) -> &Mr {
        &self.mr
    }

    /// Its memory in pieces, in the order of its addresses, for the page lists of fast-register
    /// keys that are attached to it ([`FastRegMr::attach`](crate::FastRegMr::attach)). Each piece
    /// is whole pages, and may begin before the region and end behind it.
    #[must_use]
    pub fn memories(&self) -> &[Arc<Memory>] {
        &self.memories
    }

    /// Whether it has not ended. Another thread may end it at any time.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.grant.life.is_live()
    }

    /// Name of the provider.
    #[must_use]
    pub fn provider(&self) -> &str {
        &self.grant.provider.name
    }

    /// Ends it and gives the pages back.
    ///
    /// # Errors
    ///
    /// Those of [`PeerTicket::invalidate`].
    pub fn dereg(self) -> Result<(), PeerError> {
        self.grant.end(Cause::Dereg)
    }
}

impl Drop for PeerMr {
    fn drop(&mut self) {
        if let Err(error) = self.grant.end(Cause::Dereg) {
            tracing::error!(%error, "peer memory not given back");
        }
    }
}

/// Registers `range`, which `memory` is the provider's view of.
pub(super) fn register(
    provider: &Arc<Provider>,
    pd: &Pd,
    range: PeerRange,
    memory: Box<dyn PeerMemory>,
    config: &PeerConfig,
) -> Result<PeerMr, PeerError> {
    let page = provider.call("get_page_size", || Ok(memory.page_size()));
    let whole = page.and_then(|page| Ok((whole_pages(provider, range, page)?, page)));
    let (whole, page) = match whole {
        Ok(whole) => whole,
        Err(error) => {
            let _ = provider.release(memory);
            return Err(error);
        }
    };
    let grant = Arc::new(Grant {
        provider: Arc::clone(provider),
        range,
        whole,
        pages: whole.len_bytes / page,
        deadline: config.deadline,
        life: Life::new(),
        held: Mutex::new(None),
    });
    let noted: Arc<dyn EndRegion> = Arc::<Grant>::clone(&grant);
    if !provider.note(&noted) {
        let left = PeerError::Invalidated(provider.name.clone());
        return provider.release(memory).and(Err(left));
    }
    let mut held = Held { memory, pages: None, is_prepared: false, mapped: Vec::new() };
    let ticket = PeerTicket(Arc::downgrade(&noted));
    let pinned = grant.pin(&mut held, config, page, pd, &ticket);
    match pinned.and_then(|()| grant.map(&mut held, pd, config)) {
        Ok(mr) => {
            let counters = &provider.counters;
            add(&counters.num_alloc_mrs, 1);
            add(&counters.num_reg_pages, grant.pages);
            add(&counters.num_reg_bytes, whole.len_bytes);
            let memories = held.mapped.clone().into();
            *lock(&grant.held) = Some(held);
            grant.life.live();
            Ok(PeerMr { grant, mr, memories })
        }
        Err(error) => {
            let reachable = grant.unmap(&held);
            grant.give_back(held, reachable);
            Err(error)
        }
    }
}

/// The range, first and last page whole.
fn whole_pages(provider: &Provider, range: PeerRange, page: u64) -> Result<PeerRange, PeerError> {
    let fault = if !page.is_power_of_two() || page < 4096 {
        "which is no power of two from 4096 on"
    } else if let Some(end) = (range.addr + range.len_bytes).checked_next_multiple_of(page) {
        let addr = range.addr & !(page - 1);
        return Ok(PeerRange { addr, len_bytes: end - addr });
    } else {
        "which reach past the address space"
    };
    let what = format!("pages of {page} bytes, {fault}");
    Err(PeerError::Pages { provider: provider.name.clone(), what })
}

impl Grant {
    /// The callbacks before anything is mapped. They may call back.
    fn pin(
        &self,
        held: &mut Held,
        config: &PeerConfig,
        page: u64,
        pd: &Pd,
        ticket: &PeerTicket,
    ) -> Result<(), PeerError> {
        let (provider, memory) = (&self.provider, &mut held.memory);
        let pages = provider.call("get_pages", || memory.get_pages(config.access, ticket))?;
        let checked = check(held.pages.insert(pages), self.whole, page);
        checked.map_err(|what| PeerError::Pages { provider: provider.name.clone(), what })?;
        let context = RdmaContext::of(&pd.inner.core);
        provider.call("dma_map", || memory.dma_map(&context))?;
        held.is_prepared = true;
        Ok(())
    }

    /// Maps the pages and makes the key.
    fn map(&self, held: &mut Held, pd: &Pd, config: &PeerConfig) -> Result<Mr, PeerError> {
        if !self.life.mapping() {
            return Err(PeerError::Invalidated(self.provider.name.clone()));
        }
        let writes = config.access.contains(Access::LOCAL_WRITE);
        let access = if writes { DmaAccess::ReadWrite } else { DmaAccess::Read };
        let context = RdmaContext::of(&pd.inner.core);
        let pages = held.pages.as_deref().unwrap_or_default();
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        for PeerPiece { region, .. } in pages {
            held.mapped.push(Memory::of_peer(&context, Arc::clone(region), access, id)?);
        }
        let pieces = trimmed(pages, &held.mapped, self.whole, self.range);
        Ok(pd.reg_phys_mr(&pieces, self.range.addr, config.access)?)
    }

    /// Ends the device's access; whether it could not be stopped.
    fn unmap(&self, held: &Held) -> bool {
        let mut reachable = false;
        for memory in &held.mapped {
            if let Err(error) = memory.revoke() {
                tracing::error!(range = %self.range, %error, "peer memory not unmapped");
                memory.leak();
                reachable = true;
            }
        }
        self.life.ended(reachable);
        reachable
    }

    /// The callbacks after the device's access has ended. They may call back.
    fn give_back(&self, held: Held, reachable: bool) {
        let provider = &self.provider;
        if reachable {
            add(&provider.counters.num_failures, 1);
            // The provider must not use the pages for anything else: it keeps them pinned.
            return std::mem::forget(held);
        }
        let Held { mut memory, pages, is_prepared, .. } = held;
        let unprepared = provider.call("dma_unmap", || {
            if is_prepared {
                memory.dma_unmap();
            }
            Ok(())
        });
        let unpinned = provider.call("put_pages", || {
            if let Some(pages) = pages {
                memory.put_pages(pages);
            }
            Ok(())
        });
        if let Err(error) = unprepared.and(unpinned).and(provider.release(memory)) {
            tracing::error!(%error, "peer memory");
            add(&provider.counters.num_failures, 1);
        }
    }
}

impl EndRegion for Grant {
    fn end(&self, cause: Cause) -> Result<(), PeerError> {
        let provider = &self.provider;
        let _call = provider.enter();
        let counters = &provider.counters;
        let start = Instant::now();
        let reachable = match self.life.begin_end(self.deadline) {
            Turn::Over { reachable } => reachable,
            Turn::Mine => {
                let held = lock(&self.held).take();
                let reachable = held.as_ref().is_some_and(|held| self.unmap(held));
                if cause == Cause::Invalidation {
                    add(&counters.num_invalidations, 1);
                    let is_late = start.elapsed() > self.deadline;
                    add(&counters.num_late_invalidations, is_late.into());
                }
                add(&counters.num_dealloc_mrs, 1);
                add(&counters.num_dereg_pages, self.pages);
                add(&counters.num_dereg_bytes, self.whole.len_bytes);
                if let Some(held) = held {
                    self.give_back(held, reachable);
                }
                reachable
            }
            Turn::Late => {
                add(&counters.num_late_invalidations, 1);
                return Err(PeerError::Late {
                    provider: provider.name.clone(),
                    what: "ending a region on another thread",
                    deadline_ms: self.deadline.as_millis(),
                });
            }
        };
        if reachable {
            let (provider, range) = (provider.name.clone(), self.range);
            return Err(PeerError::StillReachable { provider, range });
        }
        Ok(())
    }
}

/// Whether pages are those of `whole`, in figures.
fn check(pages: &[PeerPiece], whole: PeerRange, page: u64) -> Result<(), String> {
    let mut total = 0u64;
    for PeerPiece { region, range } in pages {
        let Range { start, end } = *range;
        let len = region.len_bytes();
        if start >= end || end > len {
            return Err(format!("a piece from {start:#x} to {end:#x} of {len:#x} bytes"));
        }
        if !(end - start).is_multiple_of(page as usize) {
            return Err(format!("a piece of {} bytes, with pages of {page}", end - start));
        }
        if !start.is_multiple_of(4096) {
            return Err(format!("a piece that starts at {start:#x}, inside a page"));
        }
        total += (end - start) as u64;
    }
    if total != whole.len_bytes {
        return Err(format!("{total} bytes, for {whole}"));
    }
    Ok(())
}

/// The pieces of `range`, cut out of whole pages. The caller has checked the pages.
fn trimmed(
    pages: &[PeerPiece],
    mapped: &[Arc<Memory>],
    whole: PeerRange,
    range: PeerRange,
) -> Vec<PhysBuf> {
    let mut at = whole.addr;
    let end = range.addr + range.len_bytes;
    let mut pieces = Vec::new();
    for (page, memory) in pages.iter().zip(mapped) {
        let len = (page.range.end - page.range.start) as u64;
        let from = range.addr.max(at) - at;
        let to = end.min(at + len).saturating_sub(at);
        if from < to {
            let start = page.range.start;
            let range = start + from as usize..start + to as usize;
            pieces.push(PhysBuf { memory: Arc::clone(memory), range });
        }
        at += len;
    }
    pieces
}

impl fmt::Display for PeerMr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of provider {}", self.grant.range, self.provider())
    }
}
