//! Hugepages as the kernel reports them: sizes, free pages, per node and in total.
//!
//! Sources: Linux `Documentation/admin-guide/mm/hugetlbpage.rst` for `/proc/meminfo` and for
//! `/sys/kernel/mm/hugepages/hugepages-<KiB>kB/`. A free page that is *reserved* is promised to
//! a mapping that has not touched it yet, so it does not count as free for anybody else.

use std::{fs, path::PathBuf};

use crate::error::MempoolError;

/// 4 KiB.
pub(crate) const BASE_4K: usize = 4 << 10;
/// 2 MiB.
pub(crate) const HUGE_2M: usize = 2 << 20;
/// 1 GiB.
pub(crate) const HUGE_1G: usize = 1 << 30;

/// The default hugepage size in bytes and the pages of it that can still be had, from the text of
/// `/proc/meminfo`. `None` where the kernel has no hugepages.
pub(crate) fn parse_meminfo(text: &str) -> Option<(usize, u64)> {
    let size_kib = usize::try_from(field(text, "Hugepagesize:")?).ok()?;
    let free = field(text, "HugePages_Free:")?;
    let reserved = field(text, "HugePages_Rsvd:").unwrap_or(0);
    Some((size_kib.checked_mul(1024)?, free.saturating_sub(reserved)))
}

/// The number in the line of `/proc/meminfo` that begins so.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Checks that the machine has `len_bytes` of memory to spare for small pages: touching what it has
/// not calls the kernel's out-of-memory killer. Where the kernel does not say, they are taken to be
/// there.
///
/// # Errors
/// [`MempoolError::NoMemory`].
pub(crate) fn require_small(len_bytes: usize) -> Result<(), MempoolError> {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    match available(&text) {
        Some(available_bytes) if available_bytes < len_bytes as u64 => {
            Err(MempoolError::NoMemory { len_bytes, available_bytes })
        }
        _ => Ok(()),
    }
}

/// What `/proc/meminfo` says that could be had without swapping, in bytes.
fn available(text: &str) -> Option<u64> {
    field(text, "MemAvailable:")?.checked_mul(1024)
}

/// [`parse_meminfo`] of this machine.
pub(crate) fn default_size_and_free() -> Option<(usize, u64)> {
    parse_meminfo(&fs::read_to_string("/proc/meminfo").ok()?)
}

/// Pages of `page_bytes` that a new mapping could get, on one node or on all.
///
/// Returns `None` where the kernel has no pool of that size. Pages that the kernel may add beyond
/// its pool (`nr_overcommit_hugepages`) count in the total, but not for one node.
fn free_pages(page_bytes: usize, node: Option<u32>) -> Option<u64> {
    let dir = pool_dir(page_bytes, node);
    let read = |file: &str| -> Option<u64> {
        fs::read_to_string(dir.join(file)).ok()?.trim().parse().ok()
    };
    let free = read("free_hugepages")?;
    if node.is_some() {
        return Some(free);
    }
    let reserved = read("resv_hugepages").unwrap_or(0);
    let beyond = read("nr_overcommit_hugepages")
        .unwrap_or(0)
        .saturating_sub(read("surplus_hugepages").unwrap_or(0));
    Some(free.saturating_sub(reserved) + beyond)
}

/// Checks that `need` pages of `page_bytes` are free, before anything is mapped: a failing `mmap`
/// says only "out of memory", and a page that is missing at first touch is a SIGBUS.
///
/// # Errors
/// [`MempoolError::PageSizeUnsupported`] or [`MempoolError::NoHugepages`].
pub(crate) fn require(page_bytes: usize, need: u64, node: Option<u32>) -> Result<(), MempoolError> {
    let page_kib = (page_bytes / 1024) as u64;
    for scope in [None, node] {
        let Some(free) = free_pages(page_bytes, scope) else {
            return Err(MempoolError::PageSizeUnsupported { page_kib, offered: offered() });
        };
        if free < need {
            let sysfs = pool_dir(page_bytes, scope).join("nr_hugepages").display().to_string();
            let on_node = scope.map(|n| format!(" on NUMA node {n}")).unwrap_or_default();
            return Err(MempoolError::NoHugepages { need, free, page_kib, on_node, sysfs });
        }
    }
    Ok(())
}

/// Where the kernel says how many pages of a size there are.
pub(crate) fn pool_dir(page_bytes: usize, node: Option<u32>) -> PathBuf {
    let base = match node {
        None => "/sys/kernel/mm/hugepages".to_owned(),
        Some(node) => format!("/sys/devices/system/node/node{node}/hugepages"),
    };
    PathBuf::from(base).join(format!("hugepages-{}kB", page_bytes / 1024))
}

/// The hugepage sizes of this kernel as text, such as `2048 KiB`.
fn offered() -> String {
    let mut sizes: Vec<u64> = fs::read_dir("/sys/kernel/mm/hugepages")
        .map(|dir| {
            dir.flatten()
                .filter_map(|entry| {
                    let name = entry.file_name().into_string().ok()?;
                    name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()
                })
                .collect()
        })
        .unwrap_or_default();
    if sizes.is_empty() {
        return "none".to_owned();
    }
    sizes.sort_unstable();
    sizes.iter().map(|kib| format!("{kib} KiB")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       24000000 kB\nHugePages_Total:      64\n\
        HugePages_Free:       60\nHugePages_Rsvd:        3\nHugePages_Surp:        0\n\
        Hugepagesize:       2048 kB\nHugetlb:          131072 kB\n";

    #[test]
    fn meminfo_gives_size_and_pages_not_promised() {
        assert_eq!(parse_meminfo(MEMINFO), Some((2 << 20, 57)));
    }

    #[test]
    fn more_than_the_machine_has_is_refused() {
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"), Some(2 << 20));
        assert_eq!(available("MemTotal: 9 kB\n"), None);
        let refused = require_small(usize::MAX).unwrap_err();
        assert!(matches!(refused, MempoolError::NoMemory { .. }), "{refused}");
        require_small(4096).unwrap();
    }

    #[test]
    fn meminfo_without_hugepages_is_none() {
        assert_eq!(parse_meminfo("MemTotal:  24000000 kB\n"), None);
        assert_eq!(parse_meminfo(""), None);
        assert_eq!(parse_meminfo("Hugepagesize: x kB\nHugePages_Free: 1\n"), None);
    }

    #[test]
    fn a_size_that_no_kernel_has_is_named_with_those_it_has() {
        let err = require(3 << 20, 1, None).unwrap_err();
        let text = err.to_string();
        assert!(text.contains("3072 KiB"), "{text}");
        assert!(matches!(err, MempoolError::PageSizeUnsupported { .. }));
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads /sys")]
    fn more_pages_than_any_machine_has_are_refused_with_the_way_out() {
        match require(HUGE_2M, u64::MAX, None) {
            Err(MempoolError::NoHugepages { need, page_kib, sysfs, .. }) => {
                assert_eq!((need, page_kib), (u64::MAX, 2048));
                assert_eq!(sysfs, "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
            }
            Err(MempoolError::PageSizeUnsupported { .. }) => {
                println!("skipped: this kernel has no 2 MiB hugepages");
            }
            other => panic!("{other:?}"),
        }
    }
}
