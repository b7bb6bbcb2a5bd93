//! The Unix socket of a port: how processes of one machine find each other, and hand over rings.
//!
//! Its abstract name is the address. It belongs to the network namespace and ends with the
//! process, so nothing stays behind, and no file has an owner who might be another user. A datagram
//! is a kind and what belongs to it:
//!
//! | kind | says |
//! |---|---|
//! | none, an empty datagram | nothing: whether it can be sent shows whether somebody is there |
//! | [`FRAME`] | a frame, for a peer that has no ring with this one |
//! | [`OFFER`] | a ring for what the sender sends, with its file |
//! | [`REFUSED`] | the ring that was offered is not taken |
//! | [`CALL`] | there is something in the sender's ring |
//! | [`FORGOTTEN`] | there is no ring of the caller's: it belonged to a process that had the address before |
//! | [`ROOM`] | there is room in the receiver's ring |
//!
//! A ring is taken only from a process of the same user: another one's could fill it with whatever
//! frames it likes, as fast as it likes.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use ferrocx_model::wire::MAX_FRAME_BYTES;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, recvmsg, sendmsg_addr, sockopt,
};

use crate::face::life::Kept;

const FRAME: u8 = 0;
const OFFER: u8 = 1;
const REFUSED: u8 = 2;
const CALL: u8 = 3;
const FORGOTTEN: u8 = 4;
const ROOM: u8 = 5;

/// Bytes that any datagram fits.
pub(super) const DATAGRAM_BYTES: usize = 1 + MAX_FRAME_BYTES;

/// The names of ports, without their addresses.
const NAMES: &str = "ferrocx-roce/";

/// The socket of a port.
#[derive(Debug)]
pub(super) struct LocalSocket(Kept<UnixDatagram>);

/// What came.
#[derive(Debug)]
pub(super) enum Came {
    /// A frame; its length, from the second byte of the buffer on.
    Frame(usize),
    /// A ring of the peer's at an address.
    Offer(IpAddr, OwnedFd),
    /// The peer at an address does not take our ring.
    Refused(IpAddr),
    /// There is something in the ring of the peer at an address.
    Call(IpAddr),
    /// The peer at an address has no ring of ours.
    Forgotten(IpAddr),
    /// That it came is all that it says.
    Nothing,
}

/// How a datagram fared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    Done,
    /// The peer has not read those before.
    Full,
    /// Nobody has the address, on this machine.
    Nobody,
}

impl From<io::Result<usize>> for Told {
    fn from(sent: io::Result<usize>) -> Self {
        match sent {
            Ok(_) => Self::Done,
            Err(error) if error.kind() == ErrorKind::WouldBlock => Self::Full,
            // The system is short of memory for a moment.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Self::Full,
            Err(_) => Self::Nobody,
        }
    }
}

fn name_of(ip: IpAddr) -> String {
    format!("{NAMES}{ip}")
}

impl LocalSocket {
    /// Takes the name of an address.
    pub(super) fn bind(address: IpAddr) -> io::Result<Self> {
        let name = SocketAddr::from_abstract_name(name_of(address))?;
        let socket = UnixDatagram::bind_addr(&name)?;
        socket.set_nonblocking(true)?;
        sockopt::set_socket_passcred(&socket, true)?;
        Ok(Self(Kept::new(socket)))
    }

    fn tell(&self, to: IpAddr, parts: &[&[u8]], file: Option<BorrowedFd<'_>>) -> Told {
        let Ok(name) = SocketAddrUnix::new_abstract_name(name_of(to).as_bytes()) else {
            return Told::Nobody;
        };
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        let files: Vec<_> = file.into_iter().collect();
        if !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&files));
        }
        let parts: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = sendmsg_addr(&*self.0, &name, &parts, &mut control, flags);
        sent.map_err(io::Error::from).into()
    }

    /// Whether somebody has an address.
    pub(super) fn knows(&self, to: IpAddr) -> bool {
        self.tell(to, &[], None) != Told::Nobody
    }

    pub(super) fn send(&self, to: IpAddr, frame: &[u8]) -> Told {
        self.tell(to, &[&[FRAME], frame], None)
    }

    pub(super) fn offer(&self, to: IpAddr, ring: &OwnedFd) -> Told {
        self.tell(to, &[&[OFFER]], Some(ring.as_fd()))
    }

    pub(super) fn call(&self, to: IpAddr) -> Told {
        self.tell(to, &[&[CALL]], None)
    }

    pub(super) fn call_for_room(&self, to: IpAddr) -> Told {
        self.tell(to, &[&[ROOM]], None)
    }

    pub(super) fn forget(&self, to: IpAddr) -> Told {
        self.tell(to, &[&[FORGOTTEN]], None)
    }

    pub(super) fn refuse(&self, to: IpAddr) -> Told {
        self.tell(to, &[&[REFUSED]], None)
    }

    /// The next datagram.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> Option<Came> {
        const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(1), ScmCredentials(1));
        let mut room = [MaybeUninit::uninit(); CONTROL_BYTES];
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let parts = &mut [IoSliceMut::new(buffer)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let message = recvmsg(&*self.0, parts, &mut control, flags).ok()?;
        let (mut file, mut is_ours) = (None, false);
        for part in control.drain() {
            match part {
                RecvAncillaryMessage::ScmRights(files) => file = files.last(),
                RecvAncillaryMessage::ScmCredentials(sender) => {
                    is_ours = sender.uid == rustix::process::getuid();
                }
                _ => {}
            }
        }
        let from = message.address.and_then(|from| SocketAddrUnix::try_from(from).ok());
        let from = from.and_then(|from| ip_of(from.abstract_name()?));
        let kind = buffer.first().copied().filter(|_| message.bytes > 0);
        Some(match (kind, from, file) {
            (Some(FRAME), ..) if message.bytes > 1 => Came::Frame(message.bytes - 1),
            (Some(OFFER), Some(from), Some(file)) if is_ours => Came::Offer(from, file),
            (Some(OFFER), Some(from), _) => {
                let _ = self.refuse(from);
                Came::Nothing
            }
            (Some(REFUSED), Some(from), _) => Came::Refused(from),
            (Some(CALL), Some(from), _) => Came::Call(from),
            (Some(FORGOTTEN), Some(from), _) => Came::Forgotten(from),
            _ => Came::Nothing,
        })
    }
}

impl AsFd for LocalSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The address in a port's name.
fn ip_of(name: &[u8]) -> Option<IpAddr> {
    std::str::from_utf8(name).ok()?.strip_prefix(NAMES)?.parse().ok()
}

/// The addresses of this machine's ports.
pub(super) fn ports() -> Vec<IpAddr> {
    let Ok(table) = std::fs::read_to_string("/proc/net/unix") else { return Vec::new() };
    let names = table.lines().filter_map(|line| line.rsplit_once('@'));
    names.filter_map(|(_, name)| ip_of(name.as_bytes())).collect()
}
