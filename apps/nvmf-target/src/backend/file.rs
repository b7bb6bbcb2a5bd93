//! [`OpenFile`]: a file or a block device behind a namespace, and whether it has lost what was
//! written.
//!
//! Without `O_DIRECT` the kernel writes behind the answers. What it could not write it drops, says
//! so to the first who asks (fsync, or a write with `RWF_DSYNC`) by an open file, which all cores
//! share, and to nobody after that. So a file that has said it once is never believed again: every
//! Flush and every FUA write fails, until it is opened anew.
//!
//! Source: fsync(2), "NOTES"; Linux `Documentation/core-api/errseq.rst`.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{OFlags, fcntl_getfl};

/// A file for the io_uring of one core, open for what hosts may do.
#[derive(Debug)]
pub struct OpenFile {
    pub(crate) file: File,
    /// Of one whose data the kernel keeps for a while.
    pub(crate) losses: Option<Losses>,
}

/// Whether a file has said that it could not write something: of all cores that have it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Losses(Arc<AtomicBool>);

impl OpenFile {
    /// A file that was just opened.
    #[must_use]
    pub fn new(file: File) -> Self {
        // What cannot be asked is taken for one that loses what it has not written.
        let is_direct = fcntl_getfl(&file).is_ok_and(|flags| flags.contains(OFlags::DIRECT));
        Self { file, losses: (!is_direct).then(Losses::default) }
    }

    /// A clone of the same open file, for another core: what one is told holds for both.
    #[must_use]
    pub fn beside(&self, clone: File) -> Self {
        Self { file: clone, losses: self.losses.clone() }
    }
}

impl Losses {
    /// Whether there are any.
    pub(crate) fn is_any(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Notes that there are; whether they are the first.
    pub(crate) fn note(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}
