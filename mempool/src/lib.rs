//! Hugepage regions, fixed-size object pools with per-core caches, and packet buffers.
#![deny(unsafe_code)]

mod access;
mod attach;
#[cfg(test)]
mod attach_tests;
mod cache;
mod error;
mod flags;
mod freelist;
mod header;
mod hugepage;
mod mapping;
mod mbuf;
mod numa;
mod object_pool;
mod objects;
#[cfg(test)]
mod oracle_tests;
mod pool;
#[cfg(test)]
mod pool_tests;
mod refcount;
mod region;
#[cfg(test)]
mod region_tests;
mod stats;
mod sync;

pub use attach::ExternalBuffer;
pub use cache::PoolCache;
pub use error::{AccessError, MempoolError};
pub use flags::{OlFlags, PacketType, RxMeta, TxLengths};
pub use mbuf::{MAX_SEGMENTS, Mbuf, RawMbuf, Segment, Segments};
pub use object_pool::{ObjectCache, ObjectPool, Pooled};
pub use pool::{
    DEFAULT_CACHE_SIZE, DEFAULT_DATA_ROOM_BYTES, DEFAULT_HEADROOM_BYTES, MAX_CACHE_SIZE, MAX_COUNT,
    MAX_DATA_ROOM_BYTES, Pool, PoolConfig, PoolKeys,
};
pub use region::{Backing, PageSize, Region, RegionConfig, RegionWarning};
pub use stats::PoolStats;
