//! Limits of this machine that decide whether a run can work.

use std::{fs, path::Path};

/// What the machine offers to a user-space driver.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Host {
    /// 2 MiB hugepages that exist.
    pub hugepages_2m: u64,
    /// 2 MiB hugepages that are free and not promised to a mapping.
    pub hugepages_2m_free: u64,
    /// Bytes that the process may lock, or `None` for no limit.
    pub memlock_bytes: Option<u64>,
    /// Whether the kernel has IOMMU groups.
    pub iommu: bool,
    /// Whether the effective user is root.
    pub root: bool,
}

impl Host {
    /// Reads the limits of this process and machine. What cannot be read counts as absent.
    #[must_use]
    pub fn read() -> Self {
        let mut host = Self::read_below(Path::new("/sys"));
        let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
        host.memlock_bytes = limit.current;
        host.root = rustix::process::geteuid().is_root();
        host
    }

    fn read_below(sysfs: &Path) -> Self {
        let pages = sysfs.join("kernel/mm/hugepages/hugepages-2048kB");
        let number = |name: &str| -> u64 {
            fs::read_to_string(pages.join(name))
                .ok()
                .and_then(|text| text.trim().parse().ok())
                .unwrap_or(0)
        };
        let groups = fs::read_dir(sysfs.join("kernel/iommu_groups"));
        Self {
            hugepages_2m: number("nr_hugepages"),
            hugepages_2m_free: number("free_hugepages").saturating_sub(number("resv_hugepages")),
            memlock_bytes: None,
            iommu: groups.is_ok_and(|mut entries| entries.next().is_some()),
            root: false,
        }
    }

    /// What to change so that `need_bytes` of buffers stand in hugepages; `None` if they fit.
    #[must_use]
    pub fn hugepage_hint(&self, need_bytes: u64) -> Option<String> {
        let need = need_bytes.div_ceil(2 << 20);
        if self.hugepages_2m_free >= need {
            return None;
        }
        let reserve = self.hugepages_2m + need - self.hugepages_2m_free;
        let sudo = if self.root { "" } else { ", as root" };
        Some(format!(
            "{need} free hugepages of 2 MiB are wanted, {} are free; reserve them with `sysctl -w \
             vm.nr_hugepages={reserve}`{sudo}",
            self.hugepages_2m_free
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let pages = root.path().join("kernel/mm/hugepages/hugepages-2048kB");
        fs::create_dir_all(&pages).unwrap();
        fs::write(pages.join("nr_hugepages"), "64\n").unwrap();
        fs::write(pages.join("free_hugepages"), "10\n").unwrap();
        fs::write(pages.join("resv_hugepages"), "3\n").unwrap();
        root
    }

    #[test]
    fn reserved_pages_are_not_free() {
        let root = tree();
        let host = Host::read_below(root.path());
        assert_eq!((host.hugepages_2m, host.hugepages_2m_free, host.iommu), (64, 7, false));
        fs::create_dir_all(root.path().join("kernel/iommu_groups/0")).unwrap();
        assert!(Host::read_below(root.path()).iommu);
    }

    #[test]
    fn a_machine_without_hugepages_has_none() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Host::read_below(root.path()).hugepages_2m_free, 0);
    }

    #[test]
    fn the_hint_counts_pages_in_use_too() {
        let host = Host::read_below(tree().path());
        assert_eq!(host.hugepage_hint(7 << 21), None);
        let hint = host.hugepage_hint((7 << 21) + 1).unwrap();
        assert!(hint.contains("8 free") && hint.contains("nr_hugepages=65`, as root"), "{hint}");
    }

    #[test]
    fn this_machine_can_be_read() {
        let host = Host::read();
        assert!(host.hugepages_2m >= host.hugepages_2m_free);
    }
}
