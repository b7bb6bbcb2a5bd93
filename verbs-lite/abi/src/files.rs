//! Event files: readable as long as something waits, in whatever mode the program has set.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl};

/// A file that nothing waits behind yet. It blocks until the program says otherwise.
pub(crate) fn new() -> std::io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC)?)
}

/// A file that is readable as long as another one is, and that is somebody's alone: its mode, and
/// what others have noted about it (`epoll_ctl`), end with it, and the other file stays. It blocks
/// until the program says otherwise.
pub(crate) fn beside(other: impl AsFd) -> std::io::Result<OwnedFd> {
    let file = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&file, other, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    Ok(file)
}

/// Whether the program wants to wait.
pub(crate) fn is_blocking(fd: impl AsFd) -> bool {
    fcntl_getfl(fd).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK))
}

/// Makes a file readable.
pub(crate) fn signal(fd: impl AsFd) {
    // It fails when the counter is at its maximum: the file is readable then, too.
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

fn is_readable_within(fd: BorrowedFd<'_>, timeout: Option<&Timespec>) -> rustix::io::Result<bool> {
    Ok(poll(&mut [PollFd::new(&fd, PollFlags::IN)], timeout)? > 0)
}

/// Whether a file is readable now.
pub(crate) fn is_readable(fd: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    is_readable_within(fd, Some(&Timespec::default()))
}

/// Makes a file unreadable. The caller holds the lock of what waits behind it, so nobody else
/// reads, and this does not block.
pub(crate) fn clear(fd: impl AsFd) {
    if is_readable(fd.as_fd()) == Ok(true) {
        let _ = rustix::io::read(fd, &mut [0; 8]);
    }
}

/// Waits until a file is readable, or for `longest`; `false` if a signal came.
pub(crate) fn wait(fd: BorrowedFd<'_>, longest: Option<Duration>) -> bool {
    let timeout = longest.and_then(|longest| Timespec::try_from(longest).ok());
    is_readable_within(fd, timeout.as_ref()).is_ok()
}
