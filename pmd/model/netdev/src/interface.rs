//! Interfaces by name.
#![expect(unsafe_code, reason = "ioctl takes raw structures")]
#![expect(clippy::cast_possible_truncation, reason = "constants and sizes of the C interface")]

use std::io;
use std::mem::zeroed;
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// The system refused something about an interface.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}{}", way_out(.source))]
pub struct NetdevError {
    /// What was being done, with the name of the interface.
    pub what: String,
    /// The system's reason.
    pub source: io::Error,
}

impl NetdevError {
    pub(crate) fn new(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self { what: what.into(), source: source.into() }
    }
}

/// What helps against the system's reason.
fn way_out(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "; a TAP device needs CAP_NET_ADMIN, an interface's frames CAP_NET_RAW: run as root, \
             or give the program that"
        }
        Some(libc::EBUSY) => "; another program has it: end that one, or give another name",
        Some(libc::EINVAL) => "; an interface of another kind may have the name: give another one",
        Some(libc::ENOENT | libc::ENXIO) => "; load the kernel's module tun",
        Some(libc::ENODEV) => "; give one that `ip link` shows",
        _ => "",
    }
}

/// Longest name of an interface, without the terminating zero.
pub const MAX_NAME_BYTES: usize = libc::IFNAMSIZ - 1;

/// An `ifreq` that names an interface.
pub(crate) fn ifreq(name: &str) -> Result<libc::ifreq, NetdevError> {
    let is_ok = !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && !name.bytes().any(|byte| byte == 0 || byte == b'/' || byte.is_ascii_whitespace());
    if !is_ok {
        return Err(NetdevError::new(
            format!("interface name {name:?} (1 to {MAX_NAME_BYTES} bytes, no / or space)"),
            io::Error::from(io::ErrorKind::InvalidInput),
        ));
    }
    // SAFETY: `ifreq` consists of integers, arrays and pointers, for which all zeros is a value.
    let mut request: libc::ifreq = unsafe { zeroed() };
    for (into, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *into = byte.cast_signed();
    }
    Ok(request)
}

/// Sets an interface up or down, as `ip link set NAME up` does.
///
/// # Errors
///
/// [`NetdevError`]: no such interface, or no privilege (`CAP_NET_ADMIN`).
pub fn set_up(name: &str, is_up: bool) -> Result<(), NetdevError> {
    let fail = |error| NetdevError::new(format!("setting interface {name} up or down"), error);
    let mut request = ifreq(name)?;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(|errno| fail(errno.into()))?;
    // SAFETY: both ioctls take an `ifreq`, which lives across the calls; after SIOCGIFFLAGS the
    // kernel has filled in the `ifru_flags` member of the union, which is what is read.
    let result = unsafe {
        if libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) < 0 {
            return Err(fail(io::Error::last_os_error()));
        }
        let up = libc::IFF_UP as libc::c_short;
        let flags = request.ifr_ifru.ifru_flags;
        request.ifr_ifru.ifru_flags = if is_up { flags | up } else { flags & !up };
        libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request)
    };
    if result < 0 { Err(fail(io::Error::last_os_error())) } else { Ok(()) }
}
