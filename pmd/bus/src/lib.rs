//! BAR, DMA and doorbell access to a ConnectX device: VFIO or the software model.
//!
//! Applications have this crate as `ferrocx::bus`.
//!
//! This crate is the one seam between the driver and whatever stands behind it. A driver holds an
//! `Arc<dyn` [`Transport`]`>` and never learns which one; a model holds a [`local::DeviceSide`] and
//! never learns who drives it.
//!
//! # Architecture
//!
//! - [`Transport`] hands out a [`Bar`] (registers), a [`DmaSpace`] (memory the device may reach),
//!   [`Interrupts`] (eventfds), a [`PciIdentity`], and the function-level reset.
//! - [`DmaSpace::map`] turns a `mempool` region into a [`DmaMapping`], whose IOVA is never a
//!   virtual address. [`DmaHeap`] cuts mappings into aligned [`DmaBuf`]s for queues and contexts.
//! - [`Ring`] and [`DmaWord`] are the views of a [`DmaBuf`] that hot paths use: the index is masked
//!   inside, offsets are checked at compile time, and each access is one load or store.
//! - [`Doorbell`] is one ordered 8-byte store to a mapped UAR page, the same on every transport;
//!   [`BlueFlame`] copies a whole request there, where that reaches the device in one piece.
//! - [`barrier`] names each ordering by the pair it orders.
//! - [`shared`] copies to and from memory that another process has mapped.
//! - [`local`] is the in-process transport to the software model.
//! - [`vfio`] is the transport to a real device; [`sysfs`] says beforehand what stands in its way.
//!
//! # What it does not do
//!
//! It knows no structure of the device beyond the layout of a UAR page; the bits live in
//! `ferrocx-prm`. It starts no thread and logs only on the control path.
//!
//! # Limits
//!
//! 64-bit Linux. Memory that a device may write is reached through word-sized atomics only, so a
//! polled word must be accessed with the same width on both sides (32 bits for ownership words and
//! doorbell records, 64 bits for doorbells). Miri checks this; it needs
//! `-Zmiri-disable-weak-memory-emulation`, whose store buffers do not know words of mixed width.
//!
//! # Example
//!
//! ```
//! use ferrocx_bus::{BarClaim, DmaAccess, DmaHeap, Ring, Transport, local};
//! use ferrocx_mempool::{Region, RegionConfig};
//! use std::sync::Arc;
//!
//! let (driver, device) = local::pair(local::LocalConfig::default())?;
//! let region = Region::alloc(&RegionConfig::heap(64 << 10))?;
//! let heap = DmaHeap::new(driver.dma().map(region, DmaAccess::ReadWrite)?);
//! let ring = Ring::<64>::new(Arc::new(heap.alloc(4096, 4096)?), 0, 6)?;
//!
//! // The driver writes a descriptor and rings; the device sees the doorbell and fetches it.
//! ring.at(65).store_be32::<0x0c>(7);
//! // SAFETY: nobody else drives this device, and it is led to the ring alone.
//! let bar = driver.bar(unsafe { BarClaim::new() });
//! bar.doorbell(0x3800)?.ring(0x0a);
//! assert_eq!(device.uar_take(3, 0x800), Some(0x0a));
//! assert_eq!(device.memory().read_be32(ring.iova() + 64 + 0x0c), Ok(7));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]
#![warn(clippy::cast_possible_truncation)]

mod bar_memory;
pub mod barrier;
mod blueflame;
mod bytes;
mod dma;
mod error;
mod heap;
mod inherited;
mod iova;
mod line;
pub mod local;
mod mmio;
mod ring;
pub mod shared;
pub mod sysfs;
mod transport;
pub mod vfio;
mod wide;
mod word;

pub use bar_memory::BarMemory;
pub use blueflame::{BlueFlame, DoorbellKind};
pub use dma::{DmaAccess, DmaLimits, DmaMapping, DmaSpace, DmaUnmap};
pub use error::BusError;
pub use heap::{DmaBuf, DmaHeap, MAX_ALIGN_BYTES};
pub use inherited::inherited_file;
pub use iova::{IovaAllocator, IovaPlace};
pub use line::Line;
pub use mmio::{Bar, Doorbell, UAR_PAGE_BYTES};
pub use ring::{EntryCell, Ring, RingView, Slot, Span};
pub use transport::{
    BarClaim, Interrupts, KNOWN_DEVICES, KnownDevice, Notice, PciIdentity, Transport,
};
pub use wide::WideStores;
pub use word::DmaWord;

const _: () = assert!(usize::BITS == 64, "the device has 64-bit addresses; so must the host");

/// Converts a length or offset of this process; lossless because the crate refuses 32-bit targets.
#[expect(clippy::cast_possible_truncation, reason = "usize is 64 bits, asserted above")]
pub(crate) const fn to_usize(value: u64) -> usize {
    value as usize
}
