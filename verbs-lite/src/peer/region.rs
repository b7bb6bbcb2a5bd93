//! [`PeerMr`]: registered memory of a provider, and how it ends.

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ferrocx_bus::DmaAccess;

use super::entry::Provider;
use super::life::{Life, Turn};
use super::provider::{
    Cause, EndRegion, PeerError, PeerFault, PeerMemory, PeerPiece, PeerRange, PeerTicket,
};
use super::stats::add;
use crate::context::RdmaContext;
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

/// The part of a provider that a region holds.
#[derive(Debug, Default)]
struct Held {
    memory: Option<Box<dyn PeerMemory>>,
    /// Present from `get_pages` to `put_pages`.
    pages: Option<Vec<PeerPiece>>,
    /// Whether `dma_map` went well.
    is_prepared: bool,
    mapped: Vec<Arc<Memory>>,
}

/// A region, as provider and holder see it.
#[derive(Debug)]
pub(super) struct Grant {
    provider: Arc<Provider>,
    /// A number that no other region ever has, and not 0.
    id: u64,
    range: PeerRange,
    deadline: Duration,
    life: Life,
    held: Mutex<Held>,
    /// Pages and bytes of them that were pinned.
    pinned: (u64, u64),
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
        self.grant.provider.name()
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

/// Calls a provider, whose panic is its own.
pub(super) fn guarded<T>(
    provider: &Provider,
    call: &'static str,
    callback: impl FnOnce() -> T,
) -> Result<T, PeerError> {
    catch_unwind(AssertUnwindSafe(callback))
        .map_err(|_| PeerError::Panicked { provider: provider.name().to_owned(), call })
}

/// Calls a callback that may fail, like [`guarded`].
fn fallible<T>(
    provider: &Provider,
    call: &'static str,
    callback: impl FnOnce() -> Result<T, PeerFault>,
) -> Result<T, PeerError> {
    guarded(provider, call, callback)?.map_err(|cause| PeerError::Callback {
        provider: provider.name().to_owned(),
        call,
        cause,
    })
}

/// Registers `range`, which `memory` is the provider's view of.
pub(super) fn register(
    provider: &Arc<Provider>,
    pd: &Pd,
    range: PeerRange,
    memory: Box<dyn PeerMemory>,
    config: &PeerConfig,
) -> Result<PeerMr, PeerError> {
    let page = guarded(provider, "get_page_size", || memory.page_size());
    let page = page.and_then(|page| checked_page(provider, page));
    // The range lies in whole pages from here on.
    let whole = page.and_then(|page| whole_pages(provider, range, page).map(|whole| (whole, page)));
    let (whole, page) = match whole {
        Ok(whole) => whole,
        Err(error) => {
            let _ = guarded(provider, "release", || memory.release());
            return Err(error);
        }
    };
    let held = Held { memory: Some(memory), ..Held::default() };
    let grant = Arc::new(Grant {
        provider: Arc::clone(provider),
        id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        range,
        deadline: config.deadline,
        life: Life::new(),
        held: Mutex::new(held),
        pinned: (whole.len_bytes / page, whole.len_bytes),
    });
    provider.note(Arc::<Grant>::clone(&grant));
    let result = grant.pin(config, whole, page, pd).and_then(|()| grant.map(pd, whole, config));
    match result {
        Ok(mr) => {
            let counters = provider.counters();
            add(&counters.num_alloc_mrs, 1);
            add(&counters.num_reg_pages, grant.pinned.0);
            add(&counters.num_reg_bytes, grant.pinned.1);
            let memories = grant.held().mapped.clone().into();
            grant.life.live();
            Ok(PeerMr { grant, mr, memories })
        }
        Err(error) => {
            let reachable = !grant.unmap();
            grant.life.ended(reachable);
            grant.give_back(reachable);
            Err(error)
        }
    }
}

/// A page size that pages can have.
fn checked_page(provider: &Provider, page: u64) -> Result<u64, PeerError> {
    if page.is_power_of_two() && page >= 4096 {
        return Ok(page);
    }
    let what = format!("pages of {page} bytes, which is no power of two from 4096 on");
    Err(PeerError::Pages { provider: provider.name().to_owned(), what })
}

/// The range, first and last page whole.
fn whole_pages(provider: &Provider, range: PeerRange, page: u64) -> Result<PeerRange, PeerError> {
    let addr = range.addr & !(page - 1);
    let end = (range.addr + range.len_bytes).checked_next_multiple_of(page);
    let Some(end) = end else {
        let what = format!("pages of {page} bytes, which reach past the address space");
        return Err(PeerError::Pages { provider: provider.name().to_owned(), what });
    };
    Ok(PeerRange { addr, len_bytes: end - addr })
}

impl Grant {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The callbacks before anything is mapped. They may call back.
    fn pin(
        self: &Arc<Self>,
        config: &PeerConfig,
        whole: PeerRange,
        page: u64,
        pd: &Pd,
    ) -> Result<(), PeerError> {
        let provider = &self.provider;
        let region: Weak<Self> = Arc::downgrade(self);
        let ticket = PeerTicket(region);
        let mut held = self.held();
        let Some(mut memory) = held.memory.take() else { unreachable!("only just put there") };
        let pages = fallible(provider, "get_pages", || memory.get_pages(config.access, &ticket));
        let checked = pages.and_then(|pages| {
            let checked = check(&pages, whole, page)
                .map_err(|what| PeerError::Pages { provider: provider.name().to_owned(), what });
            held.pages = Some(pages);
            checked
        });
        let context = RdmaContext::of(&pd.inner.core);
        let result =
            checked.and_then(|()| fallible(provider, "dma_map", || memory.dma_map(&context)));
        held.memory = Some(memory);
        held.is_prepared = result.is_ok();
        result
    }

    /// Maps the pages and makes the key.
    fn map(&self, pd: &Pd, whole: PeerRange, config: &PeerConfig) -> Result<Mr, PeerError> {
        if !self.life.mapping() {
            return Err(PeerError::Invalidated { provider: self.provider.name().to_owned() });
        }
        let mut held = self.held();
        let writes = config.access.contains(Access::LOCAL_WRITE);
        let access = if writes { DmaAccess::ReadWrite } else { DmaAccess::Read };
        let context = RdmaContext::of(&pd.inner.core);
        let Held { pages, mapped, .. } = &mut *held;
        let pages = pages.as_deref().unwrap_or_default();
        for PeerPiece { region, .. } in pages {
            let region = Arc::clone(region);
            mapped.push(Memory::of_peer(&context, region, access, self.id)?);
        }
        let pieces = trimmed(pages, mapped, whole, self.range);
        Ok(pd.reg_phys_mr(&pieces, self.range.addr, config.access)?)
    }

    /// Ends the device's access; whether that worked.
    fn unmap(&self) -> bool {
        let mut held = self.held();
        let mut is_unmapped = true;
        for memory in held.mapped.drain(..) {
            if let Err(error) = memory.revoke() {
                tracing::error!(range = %self.range, %error, "peer memory not unmapped");
                memory.leak();
                is_unmapped = false;
            }
        }
        is_unmapped
    }

    /// The callbacks after the device's access has ended. They may call back.
    fn give_back(&self, reachable: bool) {
        let provider = &self.provider;
        let Held { memory, pages, is_prepared, .. } = std::mem::take(&mut *self.held());
        let Some(mut memory) = memory else { return };
        if reachable {
            add(&provider.counters().num_failures, 1);
            // The provider must not use the pages for anything else: it keeps them pinned.
            std::mem::forget((memory, pages));
            return;
        }
        let mut done = Ok(());
        if is_prepared {
            done = guarded(provider, "dma_unmap", || memory.dma_unmap());
        }
        if let Some(pages) = pages {
            done = done.and(guarded(provider, "put_pages", || memory.put_pages(pages)));
        }
        done = done.and(guarded(provider, "release", || memory.release()));
        if let Err(error) = done {
            tracing::error!(%error, "peer memory");
            add(&provider.counters().num_failures, 1);
        }
    }
}

impl EndRegion for Grant {
    fn end(&self, cause: Cause) -> Result<(), PeerError> {
        let provider = &self.provider;
        let _call = provider.call();
        let start = Instant::now();
        let turn = self.life.begin_end(self.deadline);
        let reachable = match turn {
            Turn::Mine => {
                let reachable = !self.unmap();
                self.life.ended(reachable);
                reachable
            }
            Turn::Over { reachable } => reachable,
            Turn::Late => {
                add(&provider.counters().num_late_invalidations, 1);
                return Err(PeerError::Late {
                    provider: provider.name().to_owned(),
                    what: "ending a region on another thread",
                    deadline_ms: self.deadline.as_millis(),
                });
            }
        };
        if turn == Turn::Mine {
            let counters = provider.counters();
            if cause == Cause::Invalidation {
                add(&counters.num_invalidations, 1);
                let is_late = start.elapsed() > self.deadline;
                add(&counters.num_late_invalidations, is_late.into());
            }
            add(&counters.num_dealloc_mrs, 1);
            add(&counters.num_dereg_pages, self.pinned.0);
            add(&counters.num_dereg_bytes, self.pinned.1);
            self.give_back(reachable);
        }
        if reachable {
            let (provider, range) = (provider.name().to_owned(), self.range);
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
        if start >= end || end > region.len_bytes() {
            return Err(format!(
                "a piece from {start:#x} to {end:#x} of {:#x} bytes",
                region.len_bytes()
            ));
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
