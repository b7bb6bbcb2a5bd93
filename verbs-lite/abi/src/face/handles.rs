//! [`Handles`]: what is behind the command file of an open device.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, Weak};

use ferrocx_verbs_lite::{Dm, Mr, Pd};
use rustix::fs::{MemfdFlags, fstat, memfd_create};

use super::life::{Process, User, Users};
use super::unmapped::Watched;
use crate::node::lock;

/// What stands behind a command file: domains, regions and device memory by their numbers, and who
/// has it open.
#[derive(Debug, Default)]
pub(super) struct Handles {
    /// The number of the device.
    pub(super) device: usize,
    opened: Mutex<Opened>,
    pub(super) domains: Mutex<HashMap<u32, KnownDomain>>,
    pub(super) regions: Mutex<HashMap<u32, KnownRegion>>,
    pub(super) memories: Mutex<HashMap<u32, Piece>>,
    /// Number of the next device memory.
    pub(super) next_memory: AtomicU32,
}

/// What a domain is to those who have its number alone.
#[derive(Debug)]
pub(super) struct KnownDomain {
    pub(super) pd: Pd,
    /// A handle of it.
    pub(super) users: Users,
}

/// A registration, which all have who have a handle of it.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) mr: Mr,
    /// Rights in the interface's words.
    pub(super) access: u32,
    pub(super) domain: User,
    /// `None` of memory of the device.
    pub(super) watched: Option<Watched>,
}

/// The place of a registration; nothing is there any more when one of them has ended it.
pub(super) type RegionPlace = Arc<Mutex<Option<Region>>>;

/// What a region is to those who have its number alone.
#[derive(Debug, Clone)]
pub(super) struct KnownRegion {
    /// First address in the space of its key, and bytes.
    pub(super) start: u64,
    pub(super) length: usize,
    pub(super) key: u32,
    /// Rights in the interface's words.
    pub(super) access: u32,
    pub(super) place: RegionPlace,
}

/// A piece of memory of the device, and the bytes that were asked for; what there is is rounded
/// up.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub(super) dm: Dm,
    pub(super) length: usize,
}

/// The contexts of a file: how many are open, and what ends those that were closed.
#[derive(Default)]
struct Opened {
    count: usize,
    ends: Vec<Box<dyn FnOnce() + Send>>,
}

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Opened({})", self.count)
    }
}

impl Handles {
    /// Notes that one more context is open.
    pub(super) fn open(&self) {
        lock(&self.opened).count += 1;
    }

    /// Notes that a context is closed. With the last one, what they all have left is ended.
    pub(super) fn close(&self, end: impl FnOnce() + Send + 'static) {
        let mut opened = lock(&self.opened);
        opened.count -= 1;
        opened.ends.push(Box::new(end));
        if opened.count == 0 {
            let ends = std::mem::take(&mut opened.ends);
            drop(opened);
            ends.into_iter().for_each(|end| end());
        }
    }
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

/// The command file of a device that is being opened, by its number, and what it stands for.
pub(super) fn new_file(device: usize) -> std::io::Result<(OwnedFd, Arc<Handles>)> {
    let file = memfd_create("ferrocx-uverbs", MemfdFlags::CLOEXEC)?;
    let handles = Arc::new(Handles { device, ..Handles::default() });
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
