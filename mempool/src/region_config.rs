//! The memory that a region is to be made of, and warnings about what was not to be had.

use std::fmt;

/// Which pages a region is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PageSize {
    /// 2 MiB pages where enough are free, else 4 KiB pages with a [`RegionWarning`].
    ///
    /// A length that is a multiple of 1 GiB tries 1 GiB pages first.
    #[default]
    Auto,
    /// 4 KiB pages, wanted: no warning.
    Base4K,
    /// 2 MiB pages, or an error.
    Huge2M,
    /// 1 GiB pages, or an error.
    Huge1G,
}

/// How the memory of a region is obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backing {
    /// [`Backing::HugepageRs`] for private 2 MiB pages on any node, else [`Backing::Memfd`]. Only
    /// asked for; [`crate::Region::backing`] never answers it.
    #[default]
    Auto,
    /// Crate `hugepage-rs`: private anonymous pages of the default hugepage size, node
    /// unspecified, not shareable.
    HugepageRs,
    /// A memfd mapped with crate `memmap2`: every page size, NUMA binding, and a descriptor that
    /// another process can map.
    Memfd,
    /// The process's heap, aligned to 4 KiB. For tests and Miri: a device cannot be given it, as
    /// its pages are neither locked nor contiguous.
    Heap,
    /// Memory that was there before: a file's, a device's BAR, or an adopted mapping. Only
    /// answered by [`crate::Region::backing`]; made with [`crate::Region::map_file`] and
    /// [`crate::Region::adopt`].
    Foreign,
}

/// The shape of a region to make. `RegionConfig::default()` with `len_bytes` set is the common
/// case.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RegionConfig {
    /// Bytes wanted, at least 1; rounded up to whole pages.
    pub len_bytes: usize,
    /// Page size.
    pub page: PageSize,
    /// NUMA node whose memory is to be used, and no other; `None` for the kernel's choice.
    pub numa_node: Option<u32>,
    /// Whether another process is to map it (vfio-user does): [`crate::Region::fd`] is then
    /// present.
    pub shared: bool,
    /// Whether to `mlock` it, or fail. Hugepages are never swapped, and VFIO pins what it maps
    /// for DMA, so this matters for 4 KiB pages on the software device only.
    pub lock: bool,
    /// Where the memory comes from.
    pub backing: Backing,
}

impl RegionConfig {
    /// `len_bytes` of heap memory, for tests and Miri.
    #[must_use]
    pub fn heap(len_bytes: usize) -> Self {
        Self { len_bytes, page: PageSize::Base4K, backing: Backing::Heap, ..Self::default() }
    }
}

/// Something that a region does not have although it was wanted.
///
/// Also logged at level `warn` when the region is made.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegionWarning {
    /// [`PageSize::Auto`] found too few hugepages, so the region is made of 4 KiB pages: more TLB
    /// misses, and more entries in an IOMMU.
    SmallPages {
        /// Why no hugepages, and how to reserve them.
        reason: String,
    },
    /// [`Region::alloc_near`](crate::Region::alloc_near) found no such memory on the node: what
    /// works there reaches over to another one.
    Far {
        /// The node.
        node: u32,
        /// Why not there.
        reason: String,
    },
}

impl fmt::Display for RegionWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SmallPages { reason } => write!(f, "using 4 KiB pages: {reason}"),
            Self::Far { node, reason } => write!(f, "not of memory node {node}: {reason}"),
        }
    }
}
