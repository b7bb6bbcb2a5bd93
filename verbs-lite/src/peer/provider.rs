//! What a provider of peer memory implements, and what can go wrong with it.

use std::error::Error;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};

use ferrocx_mempool::Region;
use thiserror::Error;

use crate::context::RdmaContext;
use crate::error::VerbsError;
use crate::types::Access;

/// Addresses `addr` to `addr + len_bytes`, in the address space of this process, or in one of the
/// provider's own that overlaps no other's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerRange {
    /// First address.
    pub addr: u64,
    /// Bytes, at least 1.
    pub len_bytes: u64,
}

impl fmt::Display for PeerRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x}", self.len_bytes, self.addr)
    }
}

/// Why a provider could not do what it was asked for.
pub type PeerFault = Box<dyn Error + Send + Sync>;

/// Why a region ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    Dereg,
    Invalidation,
}

/// A region, as those see it who may end it.
pub(super) trait EndRegion: Send + Sync + fmt::Debug {
    /// Ends the region, or waits for whoever does.
    fn end(&self, cause: Cause) -> Result<(), PeerError>;
}

/// By this a provider takes back what it let be registered. It may do so from any thread, but not
/// while it holds a lock that its callbacks take.
#[derive(Debug, Clone)]
pub struct PeerTicket(pub(super) Weak<dyn EndRegion>);

impl PeerTicket {
    /// Takes the memory back. When this returns `Ok`, no device reaches it any more: its keys are
    /// gone, work in flight fails with a protection error, or at the peer with a remote access
    /// error, and the memory is unmapped. Callbacks that follow from it may still be running on
    /// another thread if that was first.
    ///
    /// Whoever is late to a region that has ended is told `Ok` as well.
    ///
    /// # Errors
    ///
    /// [`PeerError::Late`], if another thread is ending it for longer than the deadline;
    /// [`PeerError::StillReachable`] when the system would not unmap it.
    pub fn invalidate(&self) -> Result<(), PeerError> {
        self.0.upgrade().map_or(Ok(()), |grant| grant.end(Cause::Invalidation))
    }
}

/// A piece of a provider's memory, mapped into this process.
#[derive(Debug, Clone)]
pub struct PeerPiece {
    /// The mapping. It may be a BAR's ([`Region::map_file`]), and should hold no more than is
    /// registered: all of it becomes reachable.
    pub region: Arc<Region>,
    /// Bytes of it.
    pub range: Range<usize>,
}

/// A provider of peer memory: a GPU's driver, a device with a BAR, an allocator.
///
/// The callbacks are those of the peer memory clients that kernels have: `acquire` here, the others
/// in [`PeerMemory`]. They may be slow, fail or panic; only their own registration suffers.
pub trait PeerProvider: Send + Sync + fmt::Debug {
    /// Its name, 1 to 63 bytes, which no other provider of the registry has.
    fn name(&self) -> &str;

    /// Its version, for people to read.
    fn version(&self) -> &str;

    /// Whether it may take memory back while that is registered. If so, only callers that allow for
    /// it can register its memory.
    fn may_invalidate(&self) -> bool;

    /// Whether the range is memory of this provider: all of it, or `None`.
    fn acquire(&self, range: PeerRange) -> Option<Box<dyn PeerMemory>>;
}

/// One registration's view of a provider's memory. Calls come in the order of the methods, each at
/// most once, none of them on two threads at a time.
pub trait PeerMemory: Send + fmt::Debug {
    /// Bytes of a page of it: a power of two, 4096 or more.
    fn page_size(&self) -> u64;

    /// Pins the pages and says where they are: those of the acquired range, first and last page
    /// whole. `access` is what they will be used for. With `ticket` the memory is taken back.
    ///
    /// # Errors
    ///
    /// Its own reason. Only `release` is called then.
    fn get_pages(
        &mut self,
        access: Access,
        ticket: &PeerTicket,
    ) -> Result<Vec<PeerPiece>, PeerFault>;

    /// The pages are about to be mapped for a device.
    ///
    /// # Errors
    ///
    /// Its own reason. `put_pages` and `release` are called then.
    fn dma_map(&mut self, context: &RdmaContext) -> Result<(), PeerFault> {
        let _ = context;
        Ok(())
    }

    /// No device reaches the pages any more.
    fn dma_unmap(&mut self) {}

    /// The pages need not stay where they are.
    fn put_pages(&mut self, pages: Vec<PeerPiece>);

    /// Nothing is called after this: frees what the registration held.
    fn release(self: Box<Self>) {}
}

/// An error of peer memory. Providers are named.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PeerError {
    /// A provider's name is empty, too long, or taken.
    #[error("provider name {name:?} is {why}; choose another of 1 to 63 bytes")]
    Name {
        /// The name.
        name: String,
        /// "empty", "too long" or "taken".
        why: &'static str,
    },
    /// No provider knows the addresses.
    #[error(
        "no registered provider owns {0}; register its provider first, or map host memory with \
         RdmaContext::map_memory"
    )]
    NotPeer(PeerRange),
    /// The range is empty or reaches past the address space.
    #[error("{0} is no range; ask for 1 byte or more, below 2^64")]
    Range(PeerRange),
    /// The caller cannot lose the memory, the provider may take it.
    #[error(
        "provider {0} may take its memory back at any time; register with \
         PeerConfig::invalidation, and expect work requests to fail then"
    )]
    NeedsInvalidation(String),
    /// A callback failed, or panicked: what it had pinned may stay so then.
    #[error("provider {provider}: {call} failed: {cause}")]
    Callback {
        /// Name of the provider.
        provider: String,
        /// Which callback.
        call: &'static str,
        /// Its own reason.
        #[source]
        cause: PeerFault,
    },
    /// The pages that a provider handed out are not those of the range.
    #[error("provider {provider} handed out {what}; this is a fault of the provider")]
    Pages {
        /// Name of the provider.
        provider: String,
        /// Fault of the pages, with figures.
        what: String,
    },
    /// The memory was taken back, or the provider taken out, while it was being registered.
    #[error("provider {0} took the memory back during its registration; acquire it again")]
    Invalidated(String),
    /// Somebody else's call took too long.
    #[error(
        "provider {provider}: {what} takes longer than {deadline_ms} ms; try again, and look for \
         a device or a callback that hangs"
    )]
    Late {
        /// Name of the provider.
        provider: String,
        /// Event that was waited for.
        what: &'static str,
        /// How long it was waited for.
        deadline_ms: u128,
    },
    /// The device could not be kept from the memory: reset it before the memory is used for
    /// anything else. The pages stay pinned.
    #[error(
        "provider {provider}: {range} may still be reached by the device; reset the device before \
         the memory is used for anything else"
    )]
    StillReachable {
        /// Name of the provider.
        provider: String,
        /// Range that was registered.
        range: PeerRange,
    },
    /// The device or the bus refused.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}
