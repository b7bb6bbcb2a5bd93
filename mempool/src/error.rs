//! Errors of set-up, and the one-word error of a refused access.

use std::io;

use thiserror::Error;

/// Why a region or a pool could not be made, or a pool not stamped.
///
/// All of these belong to set-up. The data path reports by count and `Option`.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MempoolError {
    /// A length of 0, or one that overflows when rounded up to whole pages.
    #[error(
        "region length {len_bytes} bytes is out of range: 1 to {max_bytes} bytes are possible; \
         ask for less"
    )]
    RegionLength {
        /// The length asked for.
        len_bytes: usize,
        /// The largest length that can be asked for.
        max_bytes: usize,
    },
    /// Fewer free hugepages than the region needs.
    #[error(
        "{need} free hugepages of {page_kib} KiB are needed{on_node}, {free} are free; reserve \
         them with `echo N > {sysfs}` (N counts the pages in use too), or at boot with \
         `hugepagesz={page_kib}K hugepages=N`"
    )]
    NoHugepages {
        /// Pages the region needs.
        need: u64,
        /// Pages free and not promised to another mapping.
        free: u64,
        /// Page size in KiB.
        page_kib: u64,
        /// Empty, or " on NUMA node n".
        on_node: String,
        /// The file to which the number of pages is written.
        sysfs: String,
    },
    /// More small pages than the machine has memory for: taking them would have the kernel end a
    /// process, this one or another.
    #[error(
        "a region of {len_bytes} bytes is more than the {available_bytes} that the machine has to \
         spare; ask for less, or free memory"
    )]
    NoMemory {
        /// The length asked for.
        len_bytes: usize,
        /// Bytes that could be had without swapping, as the kernel says.
        available_bytes: u64,
    },
    /// The kernel or the processor has no hugepages of this size at all.
    #[error(
        "this kernel offers no hugepages of {page_kib} KiB (it offers: {offered}); choose one of \
         those sizes, or boot with `hugepagesz={page_kib}K`"
    )]
    PageSizeUnsupported {
        /// The page size asked for, in KiB.
        page_kib: u64,
        /// The sizes that exist, as a list.
        offered: String,
    },
    /// The node asked for is not there.
    #[error("NUMA node {node} does not exist (online: {online}); choose one that is online")]
    NumaNode {
        /// The node asked for.
        node: u32,
        /// The kernel's list of nodes, such as `0-1`.
        online: String,
    },
    /// A pool lies over the region, which shall be used in the raw.
    #[error(
        "a pool lies over this region; its packets would change under their readers: use a region \
         of its own"
    )]
    RegionInUse,
    /// Foreign memory that is not made of whole pages, or not there.
    #[error(
        "{len_bytes} bytes at offset {offset:#x} cannot be a region: both must be multiples of \
         4096, and the end not past that of the file ({file_bytes} bytes)"
    )]
    ForeignRange {
        /// Offset in the file, or the address.
        offset: u64,
        /// Bytes asked for.
        len_bytes: usize,
        /// Bytes of the file; all ones where that is not known.
        file_bytes: u64,
    },
    /// A combination of options that no backend can serve.
    #[error("{what}")]
    Unsupported {
        /// The combination, and the way out.
        what: &'static str,
    },
    /// `mlock` was refused.
    #[error(
        "{len_bytes} bytes cannot be locked: the limit for locked memory is {limit}; raise it \
         (`ulimit -l`, LimitMEMLOCK=, /etc/security/limits.conf), or set `lock: false`"
    )]
    Lock {
        /// Bytes that were to be locked.
        len_bytes: usize,
        /// RLIMIT_MEMLOCK in bytes, or "unlimited".
        limit: String,
        /// The error that the kernel answered.
        #[source]
        source: io::Error,
    },
    /// A system call failed for a reason that has no variant of its own.
    #[error("{call} for a region of {len_bytes} bytes failed: {source}")]
    Os {
        /// The call that failed.
        call: &'static str,
        /// Bytes of the region.
        len_bytes: usize,
        /// The error that the kernel answered.
        #[source]
        source: io::Error,
    },
    /// A field of [`crate::PoolConfig`] is out of range.
    #[error("pool {pool}: {field} is {value}; it must be {range}")]
    PoolConfig {
        /// Name of the pool.
        pool: String,
        /// The field.
        field: &'static str,
        /// Its value.
        value: usize,
        /// The range it must be in.
        range: String,
    },
    /// The region handed to a pool is too small, another pool has those bytes, or they were copied
    /// to or from, which ends with the region only.
    #[error(
        "pool {pool} needs bytes {start}..{end} of a region of {region_bytes} bytes: {why}; make \
         the region larger, or choose another offset"
    )]
    RegionRange {
        /// Name of the pool.
        pool: String,
        /// First byte needed.
        start: usize,
        /// One past the last byte needed.
        end: usize,
        /// Bytes the region has.
        region_bytes: usize,
        /// Which of these reasons it is.
        why: &'static str,
    },
    /// The pool was stamped before, with other keys.
    #[error(
        "pool {pool} is stamped with lkey {lkey:#010x} and serves another device; unstamp it \
         first, when that device is closed"
    )]
    AlreadyStamped {
        /// Name of the pool.
        pool: String,
        /// The key it carries, in host order.
        lkey: u32,
    },
    /// Stamping needs every buffer in the shared list.
    #[error(
        "pool {pool}: {away} of {count} buffers are in use or in a core cache; stamp a pool before \
         its first use"
    )]
    BuffersAway {
        /// Name of the pool.
        pool: String,
        /// Buffers that are not in the shared list.
        away: usize,
        /// Buffers of the pool.
        count: usize,
    },
}

/// An access to a [`crate::Region`] that was refused. Nothing was read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AccessError {
    /// The range does not lie inside the region.
    #[error("range outside the region")]
    OutOfRange,
    /// The offset is not a multiple of what the access needs.
    #[error("offset not aligned as the access needs")]
    Misaligned,
    /// A pool lies over the region: its packets may be borrowed, and would change under their
    /// readers.
    #[error("a pool lies over the region")]
    Pooled,
}
