//! [`Handles`]: what is behind the command file of an open device.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

use ferrocx_verbs_lite::Pd;
use rustix::fs::{MemfdFlags, fstat, memfd_create};

use super::life::Process;
use crate::node::lock;

/// What stands behind a command file: domains and regions by their numbers.
#[derive(Debug, Default)]
pub(super) struct Handles {
    pub(super) domains: Mutex<HashMap<u32, Pd>>,
    pub(super) regions: Mutex<HashMap<u32, KnownRegion>>,
}

/// What a region is to those who have its number alone.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownRegion {
    /// First address in the space of its key, and bytes.
    pub(super) start: u64,
    pub(super) length: usize,
    pub(super) key: u32,
    /// Rights in the interface's words.
    pub(super) access: u32,
}

/// A file as the system tells it apart.
pub(super) type FileId = (u64, u64);

/// An open device: its file, who opened it, and what is behind the file.
#[derive(Debug)]
struct Known(FileId, Process, Weak<Handles>);

static OPEN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

pub(super) fn id_of(file: impl AsFd) -> std::io::Result<FileId> {
    let stat = fstat(file)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// The command file of a device that is being opened, and what it stands for.
pub(super) fn new_file() -> std::io::Result<(OwnedFd, Arc<Handles>)> {
    let file = memfd_create("ferrocx-uverbs", MemfdFlags::CLOEXEC)?;
    let handles = Arc::new(Handles::default());
    let mut open = lock(&OPEN);
    open.retain(|known| known.2.strong_count() > 0);
    open.push(Known(id_of(&file)?, Process::this(), Arc::downgrade(&handles)));
    Ok((file, handles))
}

/// What stands behind a file, if it is a command file of this process.
pub(super) fn of(file: impl AsFd) -> Option<Arc<Handles>> {
    let id = id_of(file).ok()?;
    let open = lock(&OPEN);
    let known = open.iter().find(|known| known.0 == id && known.1.here().is_ok())?;
    known.2.upgrade()
}
