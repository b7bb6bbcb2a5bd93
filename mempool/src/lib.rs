//! Hugepage regions, and pools of packet buffers with per-core caches.
//!
//! Applications have its items at the root of the crate `ferrocx`.
//!
//! This is where the memory of a polled-mode driver comes from: mapped once, given to the device
//! once, and handed round without allocation, lock or system call ever after. The same buffer is a
//! frame of Ethernet, a message of RDMA and a list of pages for NVMe.
//!
//! # Architecture
//!
//! - A [`Region`] is one mapping of 1 GiB, 2 MiB or 4 KiB pages: from crate `hugepage-rs`, from
//!   a memfd mapped with crate `memmap2`, or from the heap in tests; memory of files and of other
//!   devices becomes one too ([`Region::map_file`]). The device may write to it at any time, so it
//!   is reached by range-checked atomic copies, never as a slice.
//! - A [`Pool`] lays data rooms over a region and keeps their headers, of one cache line each, in
//!   memory that the device cannot reach. It is stamped once with the region's address on the
//!   device's side, its local key and the domain in which that key is good ([`PoolKeys`]), which
//!   every buffer then carries.
//! - A [`PoolCache`] is one core's stack of free buffers. A bulk get from it is a copy of
//!   pointers. Behind it is one shared list for all cores: a ring of indices in which a put is one
//!   `fetch_add` and a get of any number one compare-and-swap, and in which no thread waits for
//!   another.
//! - An [`Mbuf`] is a packet that the CPU owns, one word: chains, clones that share data by
//!   reference count, external buffers with a free callback. [`Mbuf::into_raw`] hands it to
//!   a ring or a device as a [`RawMbuf`], through which nothing can be read.
//! - A [`Piece`] is what a DMA engine needs to know of each contiguous run of a packet
//!   ([`Mbuf::pieces`]); [`Pages`] is the list of pages that an NVMe device takes.
//!
//! Buffers may outlive every handle of their pool; the thread that frees the last one then ends the
//! pool and unmaps its region.
//!
//! # Who owns a buffer
//!
//! | from | to | by | who may touch the data |
//! |---|---|---|---|
//! | pool | CPU, new | [`PoolCache::get`], [`PoolCache::get_bulk`] | the holder of the [`Mbuf`] |
//! | pool | posted | [`PoolCache::get_raw_bulk`], [`MbufFifo::fill`] | the device |
//! | CPU | shared | [`Mbuf::clone_ref`] | all holders may read |
//! | shared | CPU | dropping all but one | the one that is left |
//! | CPU | posted | [`Mbuf::into_raw`] | the device |
//! | posted | CPU | `unsafe` [`Mbuf::from_raw`], after its completion | the holder |
//! | CPU | pool | [`PoolCache::put`], or dropping it, on any thread | nobody |
//! | posted | pool | `unsafe` [`PoolCache::put_simple_bulk`] | nobody |
//!
//! Buffers of a pool over foreign memory go the same ways, but their data is never borrowed by
//! anybody, because its owner may write there too: see [`Mbuf::is_foreign`].
//!
//! Forbidden: posting by its own address and key an `Mbuf` whose [`Piece::domain`] is not the
//! poster's. A buffer of a pool that was never stamped carries the invalid key 0x100 and domain 0;
//! one of another device's pool carries an address that means something else here. A device that
//! shares a pool looks the address up in its own registration of the region ([`Piece::at`]).
//!
//! Refused: copying through [`Region`] what a holder of an `Mbuf` may borrow, see
//! [`AccessError::Pooled`].
//!
//! # What it does not do
//!
//! - It maps nothing for a device: whoever drives the bus gives it [`Pool::region`] and stamps
//!   the pool with the address that came of it.
//! - It reserves no hugepages; an error says how to.
//! - A pool does not grow, and a region does not move.
//! - Copies that race through one [`Region`] give each byte old or new, in no order. A protocol
//!   that reads a message after its owner bit has none of that.
//! - The shared list is not fair, and a get may answer "too few" while another thread is between
//!   the two halves of a put.
//!
//! # Limits
//!
//! | what | limit | where |
//! |---|---|---|
//! | region | 1 byte to 1 TiB | [`RegionConfig::len_bytes`] |
//! | buffers of a pool | 1 to 2^30 | [`MAX_COUNT`] |
//! | data room, external buffer | 64 (external: 1) to 65535 bytes | [`MAX_DATA_ROOM_BYTES`] |
//! | cache of a core | 0 to 4096 buffers | [`MAX_CACHE_SIZE`] |
//! | segments of a packet | 255 | [`MAX_SEGMENTS`] |
//! | holders of a segment's data | 16383 | [`Mbuf::clone_ref`] |
//!
//! # Checking it
//!
//! `cargo test -p ferrocx-mempool` needs no hugepages; tests that do say when they are skipped. The
//! lock-free parts run under loom, and all but the mapping of pages under Miri:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p ferrocx-mempool --release loom_
//! export MIRIFLAGS=-Zmiri-disable-isolation
//! cargo +nightly miri test -p ferrocx-mempool --lib -- --skip region_tests
//! MIRIFLAGS+=" -Zmiri-disable-weak-memory-emulation"
//! cargo +nightly miri test -p ferrocx-mempool --lib region_tests
//! ```
//!
//! The last two differ because Miri's emulation of weak memory cannot follow accesses of two
//! widths to the same bytes, which is what a region is for.
//!
//! # Example
//!
//! ```
//! use ferrocx_mempool::{Pool, PoolConfig, PoolKeys, RegionConfig};
//!
//! let config = PoolConfig {
//!     name: "rx".to_owned(),
//!     count: 1023,
//!     region: RegionConfig::heap(0), // hugepages: RegionConfig::default()
//!     ..PoolConfig::default()
//! };
//! let pool = Pool::new(&config)?;
//! // SAFETY: no device takes these words from the buffers.
//! unsafe { pool.stamp(PoolKeys { region_iova: 0x10_0000_0000, lkey: 0x700, domain: 1 })? };
//!
//! let mut cache = pool.cache();
//! let mut mbuf = cache.get().expect("1023 are free");
//! assert!(mbuf.extend_from_slice(b"payload"));
//! mbuf.prepend(4).expect("128 bytes of headroom").copy_from_slice(b"hdr ");
//! assert_eq!(mbuf.data(), b"hdr payload");
//! assert_eq!((mbuf.lkey(), pool.stats().in_use), (0x700, 1));
//! cache.put(mbuf);
//! # Ok::<(), ferrocx_mempool::MempoolError>(())
//! ```
#![deny(unsafe_code)]

mod access;
mod all_same;
mod attach;
#[cfg(test)]
mod attach_tests;
mod cache;
mod chain;
mod error;
mod fifo;
mod file_mapping;
mod flags;
mod foreign;
mod freelist;
mod header;
mod holders;
mod home;
mod hugepage;
mod keys;
mod mapping;
mod mbuf;
#[cfg(doctest)]
mod must_not_compile;
mod numa;
mod objects;
#[cfg(test)]
mod oracle;
#[cfg(test)]
mod oracle_tests;
mod pieces;
#[cfg(test)]
mod pieces_tests;
mod pool;
#[cfg(test)]
mod pool_tests;
mod refcount;
mod region;
mod region_config;
#[cfg(test)]
mod region_tests;
mod sliced;
#[cfg(test)]
mod sliced_tests;
mod stats;
mod sync;

pub use attach::ExternalBuffer;
pub use cache::PoolCache;
pub use chain::{MAX_SEGMENTS, Segment, Segments};
pub use error::{AccessError, MempoolError};
pub use fifo::{Arrivals, HandOver, MbufFifo, Packet, Parts};
pub use file_mapping::FileMapping;
pub use flags::{Marks, OlFlags, PacketType, RxMeta, TxLengths};
pub use keys::{PoolKeys, unique_domain};
pub use mbuf::{Mbuf, RawMbuf};
pub use pieces::{Pages, PagesError, Piece, Pieces};
pub use pool::{
    DEFAULT_CACHE_SIZE, DEFAULT_DATA_ROOM_BYTES, DEFAULT_HEADROOM_BYTES, MAX_CACHE_SIZE, MAX_COUNT,
    MAX_DATA_ROOM_BYTES, Pool, PoolConfig,
};
pub use region::{RawUse, Region};
pub use region_config::{Backing, PageSize, RegionConfig, RegionWarning};
pub use sliced::{Copier, Part, Sliced};
pub use stats::PoolStats;
