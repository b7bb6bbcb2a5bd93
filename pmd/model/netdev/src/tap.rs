//! TAP devices. Source: Linux `Documentation/networking/tuntap.rst`.
#![expect(unsafe_code, reason = "ioctl takes raw structures")]
#![expect(clippy::cast_possible_truncation, reason = "constants and sizes of the C interface")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::interface::{NetdevError, ifreq};

/// A TAP device: the other end of a network interface of this host.
///
/// The interface vanishes when this is dropped, unless it was made persistent from outside.
/// Without offloads, the kernel hands out frames with right checksums and within the MTU.
#[derive(Debug)]
pub struct TapDevice {
    fd: OwnedFd,
    name: String,
}

impl TapDevice {
    /// Opens, and creates if need be, the TAP interface `name`.
    ///
    /// # Errors
    ///
    /// [`NetdevError`]: no `/dev/net/tun`, no privilege (`CAP_NET_ADMIN`), a bad name, or a name
    /// that is taken by an interface of another kind.
    pub fn open(name: &str) -> Result<Self, NetdevError> {
        use rustix::fs::{Mode, OFlags};
        let mut request = ifreq(name)?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty())
            .map_err(|error| NetdevError::new("opening /dev/net/tun", error))?;
        let kind = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        request.ifr_ifru.ifru_flags = kind;
        // SAFETY: TUNSETIFF takes an `ifreq`, which lives across the call.
        if unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } < 0 {
            let error = io::Error::last_os_error();
            return Err(NetdevError::new(format!("creating TAP interface {name}"), error));
        }
        Ok(Self { fd, name: name.to_owned() })
    }

    /// Name of the interface.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The host's own address on the interface.
    ///
    /// # Errors
    ///
    /// What ioctl(2) says.
    pub fn host_mac(&self) -> io::Result<[u8; 6]> {
        let mut request = ifreq(&self.name).map_err(io::Error::other)?;
        // SAFETY: SIOCGIFHWADDR takes an `ifreq`, which lives across the call.
        if unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::SIOCGIFHWADDR, &raw mut request) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel filled in the address, and any bytes are one.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
        Ok(std::array::from_fn(|at| address[at] as u8))
    }

    /// Takes a frame that the host sent; `None` when there is none.
    ///
    /// # Errors
    ///
    /// What read(2) says.
    pub fn read(&self, frame: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::io::read(&self.fd, frame) {
            Ok(len) => Ok(Some(len)),
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives the host a frame; `false` when it cannot take it now.
    ///
    /// # Errors
    ///
    /// What write(2) says; `EIO` while the interface is down.
    pub fn write(&self, frame: &[u8]) -> io::Result<bool> {
        match rustix::io::write(&self.fd, frame) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::AGAIN) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for TapDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
