//! How long objects live: as long as others need them, and in the process that made them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Once};

use super::Errno;

/// Those who need an object, which is destroyed only when there are none: what is made in a domain,
/// the queue pairs of a queue.
#[derive(Debug, Clone, Default)]
pub(super) struct Users(Arc<()>);

impl Users {
    /// Fails as long as somebody holds a clone.
    pub(super) fn none(&self) -> Result<(), Errno> {
        if Arc::strong_count(&self.0) > 1 { Err(Errno(libc::EBUSY)) } else { Ok(()) }
    }
}

/// Forks that led to this process, since the library was first asked for a device.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process in which something was made. A child of a fork has its parent's objects in its
/// memory, but neither the threads that serve them nor, perhaps, the locks: it is told that the
/// device is gone, before anything of them is touched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process(u32);

impl Process {
    /// This one.
    pub(crate) fn this() -> Self {
        static ONCE: Once = Once::new();
        // SAFETY: the handler only counts.
        ONCE.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Fails in a child of it.
    #[inline]
    pub(crate) fn here(self) -> Result<(), Errno> {
        if self.0 == FORKS.load(Ordering::Relaxed) { Ok(()) } else { Err(Errno(libc::ENODEV)) }
    }
}
