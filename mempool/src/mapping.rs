//! The backends of a region: obtain, bind, touch, lock, and give back pages.
//!
//! *hugepage-rs* maps private anonymous pages of the **default hugepage size, on an unspecified
//! node**, and answers null without a reason. So the free pages are counted first, the reason is
//! taken from `errno` at once, only whole regions are asked for, and its `Box` is not used.
//! *memmap2* serves everything else through a memfd and `MmapRaw`, which never becomes a slice;
//! files of others are a [`FileMapping`], since theirs may be pages of another size.
#![expect(unsafe_code, reason = "mmap, madvise, mlock and the allocator")]

use std::{
    alloc::{self, Layout},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
};

use memmap2::{MmapOptions, MmapRaw};
use rustix::{
    fs::{MemfdFlags, SealFlags},
    mm::{self, Advice},
    process::{self, Resource},
};

use crate::{
    error::MempoolError,
    file_mapping::FileMapping,
    hugepage::{self, BASE_4K, HUGE_1G, HUGE_2M},
    numa,
    region_config::{Backing, PageSize, RegionConfig, RegionWarning},
};

/// The largest length of a region: 1 TiB, far from where rounding up could overflow, and more
/// than the machines have that this library is for.
pub(crate) const MAX_LEN: usize = 1 << 40;

/// Pages and the way to give them back.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    page_size: usize,
    owner: Owner,
}

enum Owner {
    HugepageRs(Layout),
    /// The mapping is dropped before its descriptor; the order does not matter to the kernel.
    Memfd(#[expect(dead_code, reason = "kept for its Drop")] MmapRaw, OwnedFd),
    Heap(NonNull<u8>, Layout),
    /// Memory of a file that exists already.
    File(#[expect(dead_code, reason = "kept for its Drop")] FileMapping),
    /// Somebody else's mapping, and what keeps it.
    Adopted(#[expect(dead_code, reason = "kept for its Drop")] Box<dyn Send + Sync>),
}

// SAFETY: the pages belong to no thread, and `Mapping` itself gives access to none of their bytes
// but through the base address. `MmapRaw` is Send and Sync for the same reason.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` only reads its fields.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn page_size(&self) -> usize {
        self.page_size
    }

    pub(crate) fn backing(&self) -> Backing {
        match self.owner {
            Owner::HugepageRs(_) => Backing::HugepageRs,
            Owner::Memfd(..) => Backing::Memfd,
            Owner::Heap(..) => Backing::Heap,
            Owner::File(_) | Owner::Adopted(_) => Backing::Foreign,
        }
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.owner {
            Owner::Memfd(_, fd) => Some(fd.as_fd()),
            Owner::HugepageRs(_) | Owner::Heap(..) | Owner::File(_) | Owner::Adopted(_) => None,
        }
    }

    /// Memory of a file, from `offset` on. The caller has checked the range.
    pub(crate) fn of_file(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
        let map = FileMapping::new(fd, offset, len)?;
        Ok(Self { base: map.base(), len, page_size: BASE_4K, owner: Owner::File(map) })
    }

    /// Whether somebody else keeps it mapped.
    pub(crate) fn is_adopted(&self) -> bool {
        matches!(self.owner, Owner::Adopted(_))
    }

    /// Memory that `owner` keeps mapped.
    ///
    /// # Safety
    ///
    /// The caller promises what [`crate::Region::adopt`] asks for.
    pub(crate) unsafe fn of_owner(
        base: NonNull<u8>,
        len: usize,
        owner: Box<dyn Send + Sync>,
    ) -> Self {
        Self { base, len, page_size: BASE_4K, owner: Owner::Adopted(owner) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        match &self.owner {
            // SAFETY: allocated by this function's counterpart with this very layout.
            Owner::HugepageRs(layout) => unsafe {
                hugepage_rs::dealloc(self.base.as_ptr(), *layout);
            },
            Owner::Memfd(..) | Owner::File(_) | Owner::Adopted(_) => {}
            // SAFETY: as above.
            Owner::Heap(ptr, layout) => unsafe { alloc::dealloc(ptr.as_ptr(), *layout) },
        }
    }
}

/// Makes the mapping that `config` asks for, and says what it lacks.
pub(crate) fn create(config: &RegionConfig) -> Result<(Mapping, Vec<RegionWarning>), MempoolError> {
    let len = config.len_bytes;
    if len == 0 || len > MAX_LEN {
        return Err(MempoolError::RegionLength { len_bytes: len, max_bytes: MAX_LEN });
    }
    refuse_contradictions(config)?;
    if let Some(node) = config.numa_node {
        numa::require(node)?;
    }
    if config.backing == Backing::Heap {
        return Ok((heap(len)?, Vec::new()));
    }
    let (page_size, mut warnings) = choose_pages(config)?;
    let is_choice = config.page == PageSize::Auto && config.backing != Backing::HugepageRs;
    let mapping = match map_pages(config, page_size) {
        // Somebody else took the hugepages after they were counted.
        Err(error) if is_choice && page_size != BASE_4K => {
            warnings.push(RegionWarning::SmallPages { reason: error.to_string() });
            map_pages(config, BASE_4K)?
        }
        made => made?,
    };
    Ok((mapping, warnings))
}

/// Maps pages of this size, at the node and locked as `config` says.
fn map_pages(config: &RegionConfig, page_size: usize) -> Result<Mapping, MempoolError> {
    let len = config.len_bytes.next_multiple_of(page_size);
    let mapping = if use_hugepage_rs(config, page_size)? {
        hugepage_rs_region(len, page_size)?
    } else {
        if page_size == BASE_4K {
            hugepage::require_small(len)?;
        }
        memfd(len, page_size)?
    };
    if let Some(node) = config.numa_node {
        // SAFETY: `mapping` is live, page-aligned and untouched.
        unsafe { numa::bind(mapping.base.as_ptr(), len, node) }
            .map_err(|source| MempoolError::Os { call: "mbind", len_bytes: len, source })?;
    }
    touch(&mapping)?;
    if config.lock {
        lock(&mapping)?;
    }
    Ok(mapping)
}

/// Combinations that no backend can serve, said in words instead of served half.
fn refuse_contradictions(config: &RegionConfig) -> Result<(), MempoolError> {
    let what = match config.backing {
        Backing::Foreign => {
            "foreign memory is not allocated; use Region::map_file or Region::adopt"
        }
        Backing::Heap if config.shared || config.numa_node.is_some() || config.lock => {
            "heap memory can be neither shared, nor bound to a NUMA node, nor locked; use \
             Backing::Memfd"
        }
        Backing::Heap if !matches!(config.page, PageSize::Base4K | PageSize::Auto) => {
            "heap memory has no hugepages; use Backing::Auto"
        }
        Backing::HugepageRs if config.shared || config.numa_node.is_some() => {
            "hugepage-rs maps private pages on an unspecified node; use Backing::Memfd to share a \
             region or to choose its node"
        }
        Backing::HugepageRs if config.page == PageSize::Base4K => {
            "hugepage-rs maps hugepages only; use Backing::Memfd for 4 KiB pages"
        }
        _ => return Ok(()),
    };
    Err(MempoolError::Unsupported { what })
}

/// The page size, after checking that enough such pages are free.
fn choose_pages(config: &RegionConfig) -> Result<(usize, Vec<RegionWarning>), MempoolError> {
    let len = config.len_bytes;
    let check = |page: usize| {
        hugepage::require(page, len.div_ceil(page) as u64, config.numa_node).map(|()| page)
    };
    match config.page {
        PageSize::Base4K => Ok((BASE_4K, Vec::new())),
        PageSize::Huge2M => Ok((check(HUGE_2M)?, Vec::new())),
        PageSize::Huge1G => Ok((check(HUGE_1G)?, Vec::new())),
        PageSize::Auto => {
            if config.backing != Backing::HugepageRs
                && len.is_multiple_of(HUGE_1G)
                && check(HUGE_1G).is_ok()
            {
                return Ok((HUGE_1G, Vec::new()));
            }
            match check(HUGE_2M) {
                Ok(page) => Ok((page, Vec::new())),
                Err(err) if config.backing == Backing::HugepageRs => Err(err),
                // Where a machine has pages of 1 GiB alone, one that is half used is well used.
                Err(_) if len >= HUGE_1G / 2 && check(HUGE_1G).is_ok() => Ok((HUGE_1G, Vec::new())),
                Err(err) => {
                    let reason = err.to_string();
                    Ok((BASE_4K, vec![RegionWarning::SmallPages { reason }]))
                }
            }
        }
    }
}

/// Whether the region is one that hugepage-rs can make: the default hugepage size, private, on
/// any node.
fn use_hugepage_rs(config: &RegionConfig, page_size: usize) -> Result<bool, MempoolError> {
    // `/proc/meminfo` is read before the first call, since the crate panics where it lacks the
    // line for the hugepage size.
    let default_size = || hugepage::default_size_and_free().map(|(size, _)| size);
    match config.backing {
        Backing::Memfd | Backing::Heap | Backing::Foreign => Ok(false),
        Backing::Auto => Ok(!config.shared
            && config.numa_node.is_none()
            && page_size != BASE_4K
            && default_size() == Some(page_size)),
        Backing::HugepageRs if default_size() == Some(page_size) => Ok(true),
        Backing::HugepageRs => Err(MempoolError::Unsupported {
            what: "hugepage-rs maps pages of the default hugepage size only, which is another \
                   here (Hugepagesize in /proc/meminfo); use Backing::Memfd",
        }),
    }
}

fn hugepage_rs_region(len: usize, page_size: usize) -> Result<Mapping, MempoolError> {
    let max_bytes = MAX_LEN;
    let layout = Layout::from_size_align(len, page_size)
        .map_err(|_| MempoolError::RegionLength { len_bytes: len, max_bytes })?;
    // SAFETY: `len` is not zero.
    let ptr = unsafe { hugepage_rs::alloc(layout) };
    let Some(base) = NonNull::new(ptr) else {
        let source = io::Error::last_os_error();
        return Err(MempoolError::Os { call: "mmap(MAP_HUGETLB)", len_bytes: len, source });
    };
    let mapping = Mapping { base, len, page_size, owner: Owner::HugepageRs(layout) };
    // The mapping is private: after a fork, the first write of either process would give that
    // process a new page, and the device would go on writing to the old one.
    // SAFETY: the mapping is live and spans `len` bytes.
    unsafe { mm::madvise(base.as_ptr().cast(), len, Advice::LinuxDontFork) }.map_err(|errno| {
        MempoolError::Os { call: "madvise(MADV_DONTFORK)", len_bytes: len, source: errno.into() }
    })?;
    Ok(mapping)
}

fn memfd(len: usize, page_size: usize) -> Result<Mapping, MempoolError> {
    let os =
        |call: &'static str, source: io::Error| MempoolError::Os { call, len_bytes: len, source };
    let huge = match page_size {
        HUGE_2M => MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
        HUGE_1G => MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB,
        _ => MemfdFlags::empty(),
    };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | huge;
    let fd = rustix::fs::memfd_create("ferrocx-region", flags)
        .map_err(|errno| os("memfd_create", errno.into()))?;
    rustix::fs::ftruncate(&fd, len as u64).map_err(|errno| os("ftruncate", errno.into()))?;
    // Whoever is given the descriptor must not be able to shrink the file under our mapping: an
    // access past its end is a SIGBUS.
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(|errno| os("fcntl(F_ADD_SEALS)", errno.into()))?;
    let map = MmapOptions::new().len(len).map_raw(&fd).map_err(|source| os("mmap", source))?;
    let Some(base) = NonNull::new(map.as_mut_ptr()) else {
        return Err(os("mmap", io::ErrorKind::Other.into()));
    };
    Ok(Mapping { base, len, page_size, owner: Owner::Memfd(map, fd) })
}

/// Bytes from which on memory of the heap is not asked for on a page boundary: Rust's allocator
/// writes zeros to all of what is, and has what is not from calloc(3), which knows fresh pages.
const LARGE: usize = 1 << 20;

fn heap(len: usize) -> Result<Mapping, MempoolError> {
    let len = len.next_multiple_of(BASE_4K);
    let (bytes, align) = if len < LARGE { (len, BASE_4K) } else { (len + BASE_4K, 1) };
    let layout = Layout::from_size_align(bytes, align)
        .map_err(|_| MempoolError::RegionLength { len_bytes: len, max_bytes: MAX_LEN })?;
    // SAFETY: `bytes` is not zero.
    let ptr = unsafe { alloc::alloc_zeroed(layout) };
    let Some(ptr) = NonNull::new(ptr) else {
        let source = io::ErrorKind::OutOfMemory.into();
        return Err(MempoolError::Os { call: "allocation", len_bytes: len, source });
    };
    // SAFETY: the boundary is at most a page away, and so much more than `len` was allocated where
    // `ptr` need not be on one.
    let base = unsafe { ptr.add(ptr.addr().get().wrapping_neg() % BASE_4K) };
    Ok(Mapping { base, len, page_size: BASE_4K, owner: Owner::Heap(ptr, layout) })
}

/// Makes every page present, so that the data path takes no page fault, and so that a page that
/// cannot be had is an error here instead of a SIGBUS later.
fn touch(mapping: &Mapping) -> Result<(), MempoolError> {
    let (base, len) = (mapping.base.as_ptr(), mapping.len);
    // SAFETY: the mapping is live, and populating writes no byte of it.
    match unsafe { mm::madvise(base.cast(), len, Advice::LinuxPopulateWrite) } {
        Ok(()) => Ok(()),
        // Linux before 5.14 does not know this advice.
        Err(rustix::io::Errno::INVAL) => touch_each(mapping).map_err(|source| MempoolError::Os {
            call: "read(/dev/zero)",
            len_bytes: len,
            source,
        }),
        Err(errno) => Err(MempoolError::Os {
            call: "madvise(MADV_POPULATE_WRITE)",
            len_bytes: len,
            source: errno.into(),
        }),
    }
}

/// Makes every page present by having the kernel write to it: a page that a limit of a cgroup
/// refuses is EFAULT then, where a store of ours would be SIGBUS.
fn touch_each(mapping: &Mapping) -> io::Result<()> {
    let zeros = std::fs::File::open("/dev/zero")?;
    for offset in (0..mapping.len).step_by(mapping.page_size) {
        // SAFETY: a byte of the mapping, which nobody else knows yet and which reads as zero.
        let byte = unsafe { std::slice::from_raw_parts_mut(mapping.base.as_ptr().add(offset), 1) };
        rustix::io::read(&zeros, byte)?;
    }
    Ok(())
}

fn lock(mapping: &Mapping) -> Result<(), MempoolError> {
    // SAFETY: the mapping is live and spans `len` bytes. `munmap` unlocks.
    unsafe { mm::mlock(mapping.base.as_ptr().cast(), mapping.len) }.map_err(|errno| {
        let limit = process::getrlimit(Resource::Memlock).current;
        MempoolError::Lock {
            len_bytes: mapping.len,
            limit: limit.map_or("unlimited".to_owned(), |bytes| format!("{bytes} bytes")),
            source: errno.into(),
        }
    })
}

#[cfg(all(test, not(miri), not(loom)))]
mod tests {
    use super::*;

    /// The way of kernels before 5.14.
    #[test]
    fn pages_are_there_without_the_kernels_advice() {
        let mapping = memfd(4 * BASE_4K, BASE_4K).unwrap();
        let Owner::Memfd(_, file) = &mapping.owner else { unreachable!() };
        let blocks = || rustix::fs::fstat(file).unwrap().st_blocks;
        assert_eq!(blocks(), 0);
        touch_each(&mapping).unwrap();
        assert_eq!(blocks(), 4 * 8, "of 512 bytes");
    }
}
