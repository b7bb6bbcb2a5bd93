//! Packet sockets. Source: packet(7); virtio 1.2 section 5.1.6 for the header of each frame.
#![expect(unsafe_code, reason = "setsockopt, bind and recvmsg take raw structures")]
#![expect(clippy::cast_possible_truncation, reason = "constants and sizes of the C interface")]

use std::io::{self, IoSlice};
use std::mem::{MaybeUninit, size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with, sockopt};

use crate::interface::{NetdevError, ifreq};

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
    /// [`NetdevError`]: no such interface, or no privilege (`CAP_NET_RAW`).
    pub fn open(name: &str) -> Result<Self, NetdevError> {
        let fail = |what: &str, source: io::Error| {
            NetdevError::new(format!("{what} on interface {name}"), source)
        };
        ifreq(name)?;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        // Protocol 0: nothing is received before the options are set and the socket is bound.
        let fd = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
            .map_err(|errno| fail("opening a packet socket", errno.into()))?;
        let index = netdevice::name_to_index(&fd, name)
            .map_err(|errno| fail("looking up the index", errno.into()))?;
        let one: libc::c_int = 1;
        for option in [libc::PACKET_VNET_HDR, libc::PACKET_AUXDATA, PACKET_IGNORE_OUTGOING] {
            set_packet_option(&fd, option, &one)
                .map_err(|error| fail("setting up the packet socket", error))?;
        }
        // Without privilege the limit of the system applies, and a full buffer drops frames.
        if sockopt::set_socket_recv_buffer_size_force(&fd, RECEIVE_BYTES).is_err() {
            let _ = sockopt::set_socket_recv_buffer_size(&fd, RECEIVE_BYTES);
        }
        let index = index.cast_signed();
        // SAFETY: both structures are integers and arrays, for which all zeros is a value.
        let (mut address, mut member): (libc::sockaddr_ll, libc::packet_mreq) =
            unsafe { (zeroed(), zeroed()) };
        member.mr_ifindex = index;
        member.mr_type = libc::PACKET_MR_PROMISC as u16;
        set_packet_option(&fd, libc::PACKET_ADD_MEMBERSHIP, &member)
            .map_err(|error| fail("setting promiscuous mode", error))?;
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index;
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address lives across the call and has the length that is given.
        if unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) } < 0 {
            return Err(fail("binding a packet socket", io::Error::last_os_error()));
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

/// Bytes of frames that may wait in the socket.
const RECEIVE_BYTES: usize = 8 << 20;

fn set_packet_option<T>(fd: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    let pointer = (&raw const *value).cast();
    // SAFETY: `value` lives across the call and `len` is its size.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_PACKET, option, pointer, len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
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
    fn an_interface_that_does_not_exist_is_named() {
        // Without the right to open packet sockets, that is what the error says, with the name too.
        let error = PacketSocket::open("fcx-none0").expect_err("no interface").to_string();
        assert!(error.contains("fcx-none0"), "{error}");
    }
}
