//! Open files that come as numbers.
#![expect(unsafe_code, reason = "descriptors that come as numbers")]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use crate::BusError;

/// A copy of an open file that this process inherited, by its number. The number itself stays open,
/// and so does what the copy stands for: the same VFIO group, dma-buf or socket.
///
/// A file that this process opened itself is not handed out: it may be the memory that packets lie
/// in. Those are closed on exec, as Rust opens all files, and what came over an exec is not.
///
/// # Errors
///
/// [`BusError::Os`] for a number that is no open file, or one that is closed on exec.
pub fn inherited_file(number: RawFd) -> Result<OwnedFd, BusError> {
    let refuse = |error| BusError::os(format!("inherited file {number}"), error);
    // SAFETY: F_GETFD takes any number, and fails for one that is no open file.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if flags >= 0 && flags & libc::FD_CLOEXEC != 0 {
        let what =
            "this process opened it: it is closed on exec; name one that its parent left open";
        return Err(refuse(io::Error::new(io::ErrorKind::PermissionDenied, what)));
    }
    // SAFETY: F_DUPFD_CLOEXEC takes any number, and fails for one that is no open file.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(refuse(io::Error::last_os_error()));
    }
    // SAFETY: the call made this descriptor, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}
