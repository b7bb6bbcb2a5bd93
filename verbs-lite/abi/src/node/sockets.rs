//! [`Sockets`] that a port is bound to, and what sleepers know of its rings.

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::address::Address;
use super::groups::Groups;
use super::local::LocalSocket;
use super::ring::Ring;
use super::{lock, udp};

/// Datagrams of no use that are read in a row: whoever sends them does not keep the port from its
/// other work.
pub(super) const IN_VAIN: usize = 64;

/// What an address is bound to.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) address: Address,
    pub(super) local: LocalSocket,
    /// `None` where another program has the port, rdma_rxe for one: then this machine is all.
    pub(super) remote: Option<udp::Socket>,
    pub(super) groups: Groups,
    /// The rings of the wire, for whoever sleeps until something comes.
    pub(super) rings: Mutex<Rings>,
    /// Something has come to a socket.
    pub(super) has_come: AtomicBool,
    /// A peer may have to be called that looked just now.
    pub(super) has_put_off: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct Rings {
    pub(super) inbound: Vec<Arc<Ring>>,
    pub(super) outbound: Vec<Arc<Ring>>,
}

impl Sockets {
    /// Takes an address.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AddrInUse`] when another process has it, or the system's reason.
    pub(crate) fn bind(address: Address) -> io::Result<Self> {
        let local = LocalSocket::bind(address.ip)?;
        let remote = match udp::bind(&address) {
            Ok(socket) => Some(udp::Socket::new(socket)),
            Err(error) if address.ip.is_loopback() && error.kind() == ErrorKind::AddrInUse => None,
            Err(error) => return Err(error),
        };
        let (rings, has_come) = (Mutex::default(), AtomicBool::new(false));
        let (has_put_off, groups) = (AtomicBool::new(false), Groups::default());
        Ok(Self { address, local, remote, groups, rings, has_come, has_put_off })
    }

    /// The descriptor that is readable when a process of this machine calls, and those that are
    /// when a packet has come from another machine.
    pub(crate) fn fds(&self) -> (BorrowedFd<'_>, [Option<BorrowedFd<'_>>; 2]) {
        (self.local.as_fd(), [self.remote.as_ref().map(|remote| remote.as_fd()), self.groups.fd()])
    }

    /// The next packet from another machine, as a frame; its bytes. Groups come first when they
    /// are told to. `Some(None)` says that there were datagrams of no use, and may be more.
    pub(super) fn receive(&self, groups_first: bool, frame: &mut [u8]) -> Option<Option<usize>> {
        let remote = self.remote.as_ref()?;
        for _ in 0..IN_VAIN {
            let first = if groups_first { self.groups.receive(frame) } else { None };
            let came = first
                .or_else(|| udp::receive(remote, self.address.ip, frame))
                .or_else(|| if groups_first { None } else { self.groups.receive(frame) })?;
            if came.is_some() {
                return Some(came);
            }
        }
        Some(None)
    }

    /// Whether a process of this machine has an address.
    pub(crate) fn knows(&self, ip: IpAddr) -> bool {
        self.local.knows(ip)
    }

    /// Has peers call when there is something to do, from a time on; what there is already.
    /// `is_last` says that nobody else of this process is known to look.
    pub(crate) fn sleep(&self, from_ns: u64, is_last: bool) -> There {
        let rings = lock(&self.rings);
        if is_last {
            rings.inbound.iter().for_each(|ring| ring.leave());
        }
        let has_records = rings.inbound.iter().filter(|ring| ring.sleeps(from_ns)).count() > 0;
        let has_room = rings.outbound.iter().filter(|ring| ring.wants_room()).count() > 0;
        if has_records || has_room {
            There::Records
        } else if self.has_put_off.load(Ordering::Relaxed) {
            There::PutOff
        } else {
            There::Nothing
        }
    }

    /// Whether a peer has sent something that nobody has taken.
    pub(crate) fn has_records(&self) -> bool {
        lock(&self.rings).inbound.iter().any(|ring| ring.has_records())
    }

    /// Has the wire look into the sockets.
    pub(crate) fn look(&self) {
        self.has_come.store(true, Ordering::Release);
    }
}

/// What there is for who is about to sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum There {
    Nothing,
    /// A peer that looked just now may have to be called soon.
    PutOff,
    /// Something to take, or room for what waits.
    Records,
}
