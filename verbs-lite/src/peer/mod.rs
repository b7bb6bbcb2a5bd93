//! Peer memory: registering memory that belongs to another device, which may take it back.
//!
//! A [`PeerRegistry`] knows the providers. [`PeerRegistry::reg_mr`] asks them whether a range is
//! theirs, maps the pages that the owner hands out, and makes a key over them. The [`PeerMr`] is
//! used like any other region: NICs read and write the memory where it is, with no copy.
//!
//! | provider | memory | made by |
//! |---|---|---|
//! | [`MappedProvider`] | host memory, in pages of any size | [`MappedProvider::host`] |
//! | | a PCI device's BAR, through sysfs | [`MappedProvider::pci_bar`] |
//! | | a dma-buf that can be mapped | [`MappedProvider::dma_buf`] |
//! | | a BAR that VFIO lends ([`VfioBar`](ferrocx_bus::vfio::VfioBar)), shared memory | [`MappedProvider::file`] |
//! | [`cuda::CudaProvider`] | memory of NVIDIA GPUs | [`cuda`] |
//! | your own | | [`PeerProvider`] |
//!
//! # Invalidation
//!
//! An owner may take its memory back at any time, from any thread ([`PeerTicket::invalidate`]).
//! When that returns, the device reaches none of it:
//!
//! 1. The key is destroyed. What is in flight through it fails: here with a protection error, at
//!    the peer with a remote access error, and both queue pairs are in error then, as after any
//!    such failure. Everything else goes on.
//! 2. The memory is unmapped. Its bus addresses lead nowhere until everything made from the region
//!    is dropped, so nothing stale ever reaches another mapping.
//! 3. The owner's `dma_unmap`, `put_pages` and `release` are called.
//!
//! | race | outcome |
//! |---|---|
//! | invalidation and [`PeerMr::dereg`], or a second invalidation | one ends the region, the other waits until the device's access has ended |
//! | invalidation inside `get_pages` or `dma_map` | nothing is ever mapped, the registration fails |
//! | invalidation while the key is being made | it waits for that, then ends the region |
//! | unregistering and a registration under way | it ends, or never begins; no callback afterwards |
//!
//! A [`DmaMr`](crate::DmaMr) cannot be laid over peer memory, because its key cannot be ended.
//!
//! # Ordering
//!
//! A NIC's writes to a BAR are posted: the completion may be seen before the owner of the BAR sees
//! the last byte. The owner must look through the same path (read the BAR back, or use its own
//! synchronisation) before it acts on the data.
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use ferrocx_verbs_lite::*;
//! use ferrocx_verbs_lite::peer::*;
//!
//! /// Lets peers write into BAR 2 of a device, without its bytes ever being in host memory.
//! fn expose(pd: &Pd, registry: &PeerRegistry) -> Result<(), Box<dyn std::error::Error>> {
//!     let provider = MappedProvider::new("accelerator");
//!     let _client = registry.register(Arc::new(provider.clone()))?;
//!     let bar = provider.pci_bar("0000:41:00.0", 2, BarCaching::WriteCombining)?;
//!     let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
//!     let mr = registry.reg_mr(pd, bar.range(0, 1 << 20), &PeerConfig::new(access))?;
//!     println!("{mr}: {:?}", mr.mr().rkey());
//!     bar.invalidate()?; // its owner needs it back
//!     assert!(!mr.is_live());
//!     Ok(())
//! }
//! ```

pub mod cuda;
mod entry;
mod life;
mod mapped;
mod provider;
mod region;
mod registry;
mod stats;

pub use mapped::{BarCaching, BlockError, MappedProvider, PeerBlock};
pub use provider::{
    PeerError, PeerFault, PeerMemory, PeerPiece, PeerProvider, PeerRange, PeerTicket,
};
pub use region::{PeerConfig, PeerMr};
pub use registry::{PeerClient, PeerRegistry};
pub use stats::{PeerStats, prometheus};
