//! How long objects live: as long as others need them, and in the process that made them.

use std::cell::RefCell;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Once};

use super::Errno;
use super::wait::{MOMENT, nap};

/// Those who need an object, which is destroyed only when there are none: what is made in a domain,
/// the queue pairs of a queue. Each of them holds a [`User`], each handle of the object a clone of
/// this, of which there may be several.
#[derive(Debug, Clone, Default)]
pub(super) struct Users(Arc<User>);

/// One who needs an object, as long as this lives.
#[derive(Debug, Clone, Default)]
pub(super) struct User(Arc<()>);

impl Users {
    /// Fails as long as somebody needs the object.
    pub(super) fn none(&self) -> Result<(), Errno> {
        let User(all) = &*self.0;
        // All handles hold this one.
        if Arc::strong_count(all) > 1 { Err(Errno(libc::EBUSY)) } else { Ok(()) }
    }

    /// One more who needs the object.
    pub(super) fn one(&self) -> User {
        User::clone(&self.0)
    }
}

/// Threads that wait for something of an object, which may end meanwhile: where a thread that waits
/// in the kernel stays there, and never looks at the object again, these are told.
#[derive(Debug, Default)]
pub(super) struct Waiters(Arc<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    count: AtomicUsize,
    have_ended: AtomicBool,
}

/// A thread that waits, until this is dropped: as long as it lives, the object does.
#[derive(Debug)]
struct Waiter(Arc<Waiting>);

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::SeqCst);
    }
}

thread_local! {
    /// What this thread waits for. One that is cancelled meanwhile leaves it when it ends.
    static WAITS: RefCell<Vec<Waiter>> = const { RefCell::new(Vec::new()) };
}

impl Waiters {
    /// Notes that this thread waits, until [`Waiters::leave`]; fails when there is nothing to wait
    /// for any more, and in handlers of `exit`, where what the thread has noted is gone.
    pub(super) fn enter(&self) -> Result<(), Errno> {
        let noted = WAITS.try_with(|waits| {
            let mut waits = waits.borrow_mut();
            if !waits.iter().any(|waiter| Arc::ptr_eq(&waiter.0, &self.0)) {
                self.0.count.fetch_add(1, Ordering::SeqCst);
                waits.push(Waiter(Arc::clone(&self.0)));
            }
        });
        let have_ended = self.0.have_ended.load(Ordering::SeqCst);
        if noted.is_err() || have_ended { Err(Errno(libc::EBADF)) } else { Ok(()) }
    }

    /// Ends that. The object may end at once.
    pub(super) fn leave(&self) {
        let this = Arc::as_ptr(&self.0);
        // One that is in handlers of `exit` has left everything.
        let _ = WAITS.try_with(|waits| {
            waits.borrow_mut().retain(|waiter| Arc::as_ptr(&waiter.0) != this);
        });
    }

    /// Ends the waiting before the object ends; `wake` makes them look.
    pub(super) fn end(&self, wake: impl Fn()) {
        self.0.have_ended.store(true, Ordering::SeqCst);
        // What a thread does that is about to end, cancelled, is no wait any more.
        self.leave();
        while self.0.count.load(Ordering::SeqCst) > 0 {
            wake();
            nap(MOMENT);
        }
    }
}

/// Forks that led to this process, since the library was first asked for a device.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Whether this process has forked since.
static HAS_CHILDREN: AtomicBool = AtomicBool::new(false);
/// Files that no child is to have; places without one have [`NO_FILE`]. Children have more than
/// they are to have only of a process with more devices than there is room for.
static KEPT: [AtomicI32; FILES] = [const { AtomicI32::new(NO_FILE) }; FILES];
const FILES: usize = 64;
const NO_FILE: RawFd = -1;

/// Notes that there is a child, or about to be one.
pub(crate) extern "C" fn note_child() {
    HAS_CHILDREN.store(true, Ordering::Relaxed);
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    HAS_CHILDREN.store(false, Ordering::Relaxed);
    for place in &KEPT {
        let kept = place.swap(NO_FILE, Ordering::Relaxed);
        if kept != NO_FILE {
            // SAFETY: the child's copy of its parent's file, which nobody uses there.
            unsafe { libc::close(kept) };
        }
    }
}

/// Whether this process may have children.
pub(crate) fn has_children() -> bool {
    HAS_CHILDREN.load(Ordering::Relaxed)
}

/// Puts one file into the place of another one, if there is such a place.
fn replace_kept(file: RawFd, by: RawFd) {
    let order = Ordering::Relaxed;
    let is_replaced = |place: &AtomicI32| place.compare_exchange(file, by, order, order).is_ok();
    if !KEPT.iter().any(is_replaced) {
        tracing::debug!(file, by, "no room for one more file that children are not to have");
    }
}

/// A file that children close as soon as they are forked.
#[derive(Debug)]
pub(crate) struct Kept<T: AsFd>(T);

impl<T: AsFd> Kept<T> {
    pub(crate) fn new(file: T) -> Self {
        replace_kept(NO_FILE, file.as_fd().as_raw_fd());
        Self(file)
    }
}

impl<T: AsFd> Drop for Kept<T> {
    fn drop(&mut self) {
        // Before it is closed, and its number is another one's.
        replace_kept(self.0.as_fd().as_raw_fd(), NO_FILE);
    }
}

impl<T: AsFd> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
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
        // SAFETY: the handlers only count, and close a file.
        ONCE.call_once(|| unsafe {
            libc::pthread_atfork(Some(note_child), None, Some(in_child));
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Fails in a child of it.
    #[inline]
    pub(crate) fn here(self) -> Result<(), Errno> {
        if self.0 == FORKS.load(Ordering::Relaxed) { Ok(()) } else { Err(Errno::GONE) }
    }
}
