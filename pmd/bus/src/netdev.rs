//! Ends of the Linux network stack as raw frames: a TAP device, a packet socket on an interface.
//!
//! The model's wires lead here. Both ends are non-blocking and carry one frame per call.
//!
//! # Sources
//! Linux `Documentation/networking/tuntap.rst`, packet(7), netdevice(7), virtio 1.2 section 5.1.6
//! (`virtio_net_hdr`, which packet sockets use under `PACKET_VNET_HDR`).
#![expect(unsafe_code, reason = "ioctl, setsockopt, recvmsg and sendmsg take raw structures")]
#![expect(clippy::cast_possible_truncation, reason = "constants and sizes of the C interface")]

use std::ffi::CString;
use std::io::{self, IoSlice};
use std::mem::{MaybeUninit, size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::BusError;

/// Longest name of an interface, without the terminating zero.
pub const MAX_NAME_BYTES: usize = libc::IFNAMSIZ - 1;

/// An `ifreq` that names an interface.
fn ifreq(name: &str) -> Result<libc::ifreq, BusError> {
    let is_ok = !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && !name.bytes().any(|byte| byte == 0 || byte == b'/' || byte.is_ascii_whitespace());
    if !is_ok {
        return Err(BusError::os(
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

/// Result of a call that returns -1 and `errno`; "would block" is `None`.
fn transferred(result: isize) -> io::Result<Option<usize>> {
    match usize::try_from(result) {
        Ok(len) => Ok(Some(len)),
        Err(_) => {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) }
        }
    }
}

/// Sets an interface up or down, as `ip link set NAME up` does.
///
/// # Errors
///
/// [`BusError::Os`]: no such interface, or no privilege (`CAP_NET_ADMIN`).
pub fn set_up(name: &str, is_up: bool) -> Result<(), BusError> {
    let fail = |error| BusError::os(format!("setting interface {name} up or down"), error);
    let mut request = ifreq(name)?;
    // SAFETY: no pointers; the result is checked before it is owned.
    let raw = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if raw < 0 {
        return Err(fail(io::Error::last_os_error()));
    }
    // SAFETY: a descriptor that was just opened and that nobody else has.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
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
    /// [`BusError::Os`]: no `/dev/net/tun`, no privilege (`CAP_NET_ADMIN`), a bad name, or a name
    /// that is taken by an interface of another kind.
    pub fn open(name: &str) -> Result<Self, BusError> {
        use rustix::fs::{Mode, OFlags};
        let mut request = ifreq(name)?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty())
            .map_err(|error| BusError::os("opening /dev/net/tun", error))?;
        let kind = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        request.ifr_ifru.ifru_flags = kind;
        // SAFETY: TUNSETIFF takes an `ifreq`, which lives across the call.
        if unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } < 0 {
            let error = io::Error::last_os_error();
            return Err(BusError::os(format!("creating TAP interface {name}"), error));
        }
        Ok(Self { fd, name: name.to_owned() })
    }

    /// Name of the interface.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
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

/// What the kernel left to be done to a frame, and what it took off it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FrameHint {
    /// Where a checksum starts and, from there, where it belongs: not filled in yet.
    pub partial_checksum: Option<(u16, u16)>,
    /// Bytes of payload per segment: the frame is to be cut. 0 for an ordinary frame.
    pub segment_bytes: u16,
    /// EtherType and tag of a VLAN header that was taken off.
    pub vlan: Option<(u16, u16)>,
}

/// Bytes of a `virtio_net_hdr`.
const VNET_HEADER_BYTES: usize = 10;

/// A packet socket bound to one interface, which it puts into promiscuous mode.
///
/// It sees frames that arrive at the interface, not those that leave it.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    name: String,
}

impl PacketSocket {
    /// Binds to the interface `name`.
    ///
    /// # Errors
    ///
    /// [`BusError::Os`]: no such interface, or no privilege (`CAP_NET_RAW`).
    pub fn open(name: &str) -> Result<Self, BusError> {
        let fail = |what: &str| {
            BusError::os(format!("{what} on interface {name}"), io::Error::last_os_error())
        };
        ifreq(name)?;
        let text = CString::new(name).map_err(|error| BusError::os("interface name", error))?;
        // SAFETY: a string with a terminating zero that lives across the call.
        let index = unsafe { libc::if_nametoindex(text.as_ptr()) };
        if index == 0 {
            return Err(fail("looking up the index"));
        }
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // Protocol 0: nothing is received before the options are set and the socket is bound.
        // SAFETY: no pointers; the result is checked before it is owned.
        let raw = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if raw < 0 {
            return Err(fail("opening a packet socket"));
        }
        // SAFETY: a descriptor that was just opened and that nobody else has.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let one: libc::c_int = 1;
        for option in [libc::PACKET_VNET_HDR, libc::PACKET_AUXDATA, PACKET_IGNORE_OUTGOING] {
            set_option(&fd, libc::SOL_PACKET, option, &one)
                .map_err(|()| fail("setting up the packet socket"))?;
        }
        let receive_bytes: libc::c_int = 8 << 20;
        // Without privilege the limit of the system applies, and a full buffer drops frames.
        if set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &receive_bytes).is_err() {
            let _ = set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &receive_bytes);
        }
        let index = index.cast_signed();
        // SAFETY: both structures are integers and arrays, for which all zeros is a value.
        let (mut address, mut member): (libc::sockaddr_ll, libc::packet_mreq) =
            unsafe { (zeroed(), zeroed()) };
        member.mr_ifindex = index;
        member.mr_type = libc::PACKET_MR_PROMISC as u16;
        set_option(&fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &member)
            .map_err(|()| fail("setting promiscuous mode"))?;
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = index;
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address lives across the call and has the length that is given.
        if unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) } < 0 {
            return Err(fail("binding a packet socket"));
        }
        Ok(Self { fd, name: name.to_owned() })
    }

    /// Name of the interface.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes a frame that arrived, with what is left to be done to it; `None` when there is none.
    ///
    /// A frame longer than `frame` is cut off: give it room for 64 KiB and headers.
    ///
    /// # Errors
    ///
    /// What recvmsg(2) says; `ENETDOWN` once after the interface went down.
    pub fn read(&self, frame: &mut [u8]) -> io::Result<Option<(usize, FrameHint)>> {
        let mut header = [0_u8; VNET_HEADER_BYTES];
        let mut control = ControlBuffer([MaybeUninit::uninit(); CONTROL_BYTES]);
        let mut parts = [
            libc::iovec { iov_base: header.as_mut_ptr().cast(), iov_len: header.len() },
            libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() },
        ];
        // SAFETY: pointers and integers, for which all zeros is a value.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len();
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = CONTROL_BYTES;
        // SAFETY: the message points to two buffers and a control buffer, each with its length,
        // all of which live across the call and are borrowed mutably here.
        let got = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut message, 0) };
        let Some(got) = transferred(got)? else { return Ok(None) };
        let hint = FrameHint { vlan: vlan(&message), ..hint(&header) };
        Ok(Some((got.saturating_sub(VNET_HEADER_BYTES).min(frame.len()), hint)))
    }

    /// Sends a frame that needs nothing more done to it; `false` when it cannot be taken now.
    ///
    /// # Errors
    ///
    /// What sendmsg(2) says.
    pub fn write(&self, frame: &[u8]) -> io::Result<bool> {
        let header = [0_u8; VNET_HEADER_BYTES];
        let parts = [IoSlice::new(&header), IoSlice::new(frame)];
        match rustix::io::writev(&self.fd, &parts) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::NOBUFS) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Since Linux 4.20. Source: `include/uapi/linux/if_packet.h`.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// Room for the one control message that is asked for.
const CONTROL_BYTES: usize = 128;

/// Aligned as control message headers must be.
#[repr(align(8))]
struct ControlBuffer([MaybeUninit<u8>; CONTROL_BYTES]);

fn set_option<T>(
    fd: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> Result<(), ()> {
    let len = size_of::<T>() as libc::socklen_t;
    let pointer = (&raw const *value).cast();
    // SAFETY: `value` lives across the call and `len` is its size.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, pointer, len) };
    if result < 0 { Err(()) } else { Ok(()) }
}

/// Reads a `virtio_net_hdr`; a packet socket gives it in host byte order.
fn hint(header: &[u8; VNET_HEADER_BYTES]) -> FrameHint {
    const NEEDS_CSUM: u8 = 1;
    const GSO_NONE: u8 = 0;
    let word = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    FrameHint {
        partial_checksum: (header[0] & NEEDS_CSUM != 0).then(|| (word(6), word(8))),
        segment_bytes: if header[1] == GSO_NONE { 0 } else { word(4) },
        vlan: None,
    }
}

/// The VLAN tag that the kernel took off, from the auxiliary data of a received message.
fn vlan(message: &libc::msghdr) -> Option<(u16, u16)> {
    // SAFETY: recvmsg has filled in the control buffer, which still lives, and its length; the
    // CMSG functions stay inside it. `tpacket_auxdata` is read unaligned, after its length was
    // checked to be there.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(message);
        while let Some(entry) = at.as_ref() {
            let is_auxdata = entry.cmsg_level == libc::SOL_PACKET
                && entry.cmsg_type == libc::PACKET_AUXDATA
                && entry.cmsg_len
                    >= libc::CMSG_LEN(size_of::<libc::tpacket_auxdata>() as libc::c_uint) as usize;
            if is_auxdata {
                let data: *const libc::tpacket_auxdata = libc::CMSG_DATA(at).cast();
                let data = data.read_unaligned();
                if data.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
                    return None;
                }
                let has_tpid = data.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
                let tpid = if has_tpid { data.tp_vlan_tpid } else { 0x8100 };
                return Some((tpid, data.tp_vlan_tci));
            }
            at = libc::CMSG_NXTHDR(message, at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_names_are_refused_before_the_kernel_sees_them() {
        for name in ["", "sixteen-bytes-xx", "a/b", "a b", "a\0b"] {
            let error = TapDevice::open(name).expect_err("a bad name").to_string();
            assert!(error.contains("interface name"), "{error}");
            assert!(PacketSocket::open(name).is_err());
            assert!(set_up(name, true).is_err());
        }
    }

    #[test]
    fn hints_are_read_from_literal_headers() {
        assert_eq!(hint(&[0; 10]), FrameHint::default());
        let [a, b] = 1448_u16.to_ne_bytes();
        let [c, d] = 34_u16.to_ne_bytes();
        let [e, f] = 16_u16.to_ne_bytes();
        // NEEDS_CSUM, GSO_TCPV4, hdr_len 0, gso_size 1448, csum_start 34, csum_offset 16.
        let parsed = hint(&[1, 1, 0, 0, a, b, c, d, e, f]);
        assert_eq!(parsed.partial_checksum, Some((34, 16)));
        assert_eq!(parsed.segment_bytes, 1448);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no if_nametoindex")]
    fn an_interface_that_does_not_exist_is_named() {
        let error = PacketSocket::open("fcx-none0").expect_err("no interface").to_string();
        assert!(error.contains("fcx-none0"), "{error}");
    }
}
