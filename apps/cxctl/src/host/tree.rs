//! The files of the kernel below one folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ferrocx_bus::sysfs::Sysfs;

/// `/sys`, `/proc`, `/dev` and `/run`, or a folder that holds recordings of them.
#[derive(Debug, Clone)]
pub struct Tree {
    root: PathBuf,
}

impl Default for Tree {
    fn default() -> Self {
        Self::new("/")
    }
}

impl Tree {
    /// The files below `root`, which is `/` on a live machine.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where a file lies; `path` is relative, as in `sys/bus/pci`.
    #[must_use]
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    /// PCI devices.
    #[must_use]
    pub fn sysfs(&self) -> Sysfs {
        Sysfs::new(self.path("sys"))
    }

    /// The folder of a PCI device, relative.
    #[must_use]
    pub fn device(address: &str) -> PathBuf {
        Path::new("sys/bus/pci/devices").join(address)
    }

    /// A file's text without blanks around it; `None` if it cannot be read.
    #[must_use]
    pub fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        Some(fs::read_to_string(self.path(path)).ok()?.trim().to_owned())
    }

    /// A file that holds one decimal number.
    #[must_use]
    pub fn number<T: FromStr>(&self, path: impl AsRef<Path>) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// A file's bytes.
    #[must_use]
    pub fn bytes(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        fs::read(self.path(path)).ok()
    }

    /// Whether something is there.
    #[must_use]
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// The last component of a link's target.
    #[must_use]
    pub fn link(&self, path: impl AsRef<Path>) -> Option<String> {
        Some(fs::read_link(self.path(path)).ok()?.file_name()?.to_str()?.to_owned())
    }

    /// Names in a folder, ascending; none if there is no such folder.
    #[must_use]
    pub fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(path)) else { return Vec::new() };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }
}
