//! [`HostWire`]: frames between processes, by datagrams that need no privilege, daemon or file.
//!
//! A port is reached by its IPv4 address, of which its MAC address is made (`02:00`, then the
//! address): neither ARP nor a registry is needed. To hold an address is to be bound to it:
//!
//! - On one machine, by a Unix datagram socket with an abstract name, which belongs to the network
//!   namespace and ends with the process. It carries whole frames, many at a time, and pushes back
//!   when the receiver is slow: nothing is lost, unless it stands still for a second.
//! - Beyond it, by UDP port 4791, where what follows the UDP header is RoCEv2 as any adapter or
//!   rdma_rxe speaks it. A full receive buffer loses packets, as networks do.
//!
//! Source: reference 9.7.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, UdpSocket};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;

use ferrocx_model::wire::{Fcs, MAX_FRAME_BYTES, Received, Wire};

use super::udp::{self, Sent, mac_of};

/// How long frames wait for a receiver before they are lost, in nanoseconds: one that stands still
/// must not hold up everybody else's for ever.
const PATIENCE_NS: u64 = 1_000_000_000;
/// Bytes that wait for a receiver before the port has to wait, and the longest datagram: one more
/// frame may have been added, and one for a group.
const FULL_BYTES: usize = 48 << 10;
const INBOX_BYTES: usize = FULL_BYTES + 3 * (MAX_FRAME_BYTES + 2);
/// How long the way to a peer is believed in, in nanoseconds.
const BELIEF_NS: u64 = 500_000_000;

/// The abstract name of a port.
fn name_of(ip: Ipv4Addr) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("ferrocx-roce/{ip}"))
}

/// What an address is bound to.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) address: Ipv4Addr,
    local: UnixDatagram,
    /// `None` where another program has the port, rdma_rxe for one: then this machine is all.
    remote: Option<UdpSocket>,
}

impl Sockets {
    /// Takes an address.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AddrInUse`] when another process has it, or the system's reason.
    pub(crate) fn bind(address: Ipv4Addr) -> io::Result<Self> {
        let local = UnixDatagram::bind_addr(&name_of(address)?)?;
        local.set_nonblocking(true)?;
        let remote = match udp::bind(address) {
            Ok(socket) => Some(socket),
            Err(error) if address.is_loopback() && error.kind() == ErrorKind::AddrInUse => None,
            Err(error) => return Err(error),
        };
        Ok(Self { address, local, remote })
    }

    /// Descriptors that are readable when a frame has come.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.local.as_fd()).chain(self.remote.iter().map(AsFd::as_fd))
    }
}

/// The way to a peer, and what waits to go there.
#[derive(Debug)]
struct Peer {
    /// `None` for one that is not on this machine.
    local: Option<SocketAddr>,
    /// When to look again.
    until_ns: u64,
    /// Frames, each behind its length in two bytes: one datagram takes as many as there are,
    /// because the system lets a receiver have few datagrams, but long ones.
    batch: Vec<u8>,
    /// When its oldest frame was sent.
    since_ns: u64,
}

/// One port's end of all wires.
#[derive(Debug)]
pub(crate) struct HostWire {
    sockets: Arc<Sockets>,
    peers: HashMap<[u8; 6], Peer>,
    /// The frame that is being built.
    out: Vec<u8>,
    len: usize,
    /// A peer's batch is as long as it may get.
    is_full: bool,
    /// A batch is not sent yet.
    has_batches: bool,
    now_ns: u64,
    /// A datagram that came, and the part of it that was not given out.
    inbox: Vec<u8>,
    rest: Range<usize>,
    lost: u64,
}

impl Peer {
    fn new(mac: [u8; 6], now_ns: u64) -> Self {
        let mut peer = Self { local: None, until_ns: 0, batch: Vec::new(), since_ns: 0 };
        peer.look(mac, now_ns);
        peer
    }

    /// Believes again that the peer is on this machine.
    fn look(&mut self, [_, _, a, b, c, d]: [u8; 6], now_ns: u64) {
        self.local = name_of(Ipv4Addr::new(a, b, c, d)).ok();
        self.until_ns = now_ns + BELIEF_NS;
    }

    /// Sends what waits.
    fn send(&mut self, sockets: &Sockets) -> Sent {
        if let Some(local) = &self.local {
            match sockets.local.send_to_addr(&self.batch, local) {
                Ok(_) => {
                    self.batch.clear();
                    return Sent::Done;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Sent::Full,
                // The system is short of memory for a moment.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return Sent::Full,
                // Nobody is there, or not on this machine.
                Err(_) => self.local = None,
            }
        }
        if let Some(remote) = &sockets.remote {
            let mut sent = 0;
            while let Some(frame) = frame_at(&self.batch, sent..self.batch.len()) {
                if let Sent::Full = udp::send(remote, &self.batch[frame.clone()]) {
                    self.batch.drain(..sent);
                    return Sent::Full;
                }
                sent = frame.end;
            }
        }
        self.batch.clear();
        Sent::Done
    }
}

/// Where the next frame of a batch stands, behind its length. What another process wrote may be
/// anything.
fn frame_at(batch: &[u8], rest: Range<usize>) -> Option<Range<usize>> {
    let length = batch.get(rest.clone())?.first_chunk::<2>()?;
    let start = rest.start + 2;
    let end = start + usize::from(u16::from_ne_bytes(*length));
    (end <= rest.end).then_some(start..end)
}

impl HostWire {
    pub(crate) fn new(sockets: Arc<Sockets>) -> Self {
        Self {
            sockets,
            peers: HashMap::new(),
            out: vec![0; MAX_FRAME_BYTES],
            len: 0,
            is_full: false,
            has_batches: false,
            now_ns: 0,
            inbox: vec![0; INBOX_BYTES],
            rest: 0..0,
            lost: 0,
        }
    }

    /// Sends a frame for a group to every port of this machine, and by UDP to none.
    fn send_to_all(&mut self) {
        let Ok(table) = std::fs::read_to_string("/proc/net/unix") else { return };
        let own = self.sockets.address;
        let ports = table.lines().filter_map(|line| line.split("@ferrocx-roce/").nth(1));
        for ip in ports.filter_map(|name| name.parse().ok()).filter(|ip| *ip != own) {
            self.add_to(mac_of(ip));
        }
    }

    /// Lets the frame that was built wait for a peer.
    fn add_to(&mut self, mac: [u8; 6]) {
        let now_ns = self.now_ns;
        let peer = self.peers.entry(mac).or_insert_with(|| Peer::new(mac, now_ns));
        if peer.until_ns <= now_ns {
            peer.look(mac, now_ns);
        }
        if peer.batch.is_empty() {
            peer.since_ns = now_ns;
        }
        peer.batch.extend_from_slice(&(self.len as u16).to_ne_bytes());
        peer.batch.extend_from_slice(&self.out[..self.len]);
        self.has_batches = true;
        self.is_full |= peer.batch.len() >= FULL_BYTES;
    }

    /// Sends every batch that its receiver has room for. Whether one went out.
    fn send_batches(&mut self) -> bool {
        if !self.has_batches {
            return false;
        }
        (self.is_full, self.has_batches) = (false, false);
        let mut sent = false;
        for peer in self.peers.values_mut().filter(|peer| !peer.batch.is_empty()) {
            if let Sent::Done = peer.send(&self.sockets) {
                sent = true;
                continue;
            }
            if self.now_ns.saturating_sub(peer.since_ns) > PATIENCE_NS {
                peer.batch.clear();
                self.lost += 1;
                continue;
            }
            self.has_batches = true;
            self.is_full |= peer.batch.len() >= FULL_BYTES;
        }
        sent
    }
}

impl Wire for HostWire {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.is_full {
            self.send_batches();
        }
        if self.is_full {
            return None;
        }
        self.len = len;
        self.out.get_mut(..len)
    }

    fn commit(&mut self, now_ns: u64, fcs: Fcs) {
        self.now_ns = now_ns;
        let to = self.out[..self.len].first_chunk::<6>().copied();
        match to.filter(|_| fcs == Fcs::Good) {
            Some(group) if group[0] & 1 != 0 => self.send_to_all(),
            Some(to) => self.add_to(to),
            None => {}
        }
    }

    fn flush(&mut self, now_ns: u64) -> bool {
        self.now_ns = now_ns;
        self.send_batches()
    }

    fn receive(&mut self, now_ns: u64) -> Option<Received<'_>> {
        self.now_ns = now_ns;
        // What waits for a slow receiver goes out as soon as there is room, burst or not.
        self.send_batches();
        let mut next = frame_at(&self.inbox, self.rest.clone());
        if next.is_none()
            && let Ok(len) = self.sockets.local.recv(&mut self.inbox)
        {
            self.rest = 0..len;
            next = frame_at(&self.inbox, self.rest.clone());
        }
        let frame = match (next, &self.sockets.remote) {
            (Some(frame), _) => {
                self.rest.start = frame.end;
                frame
            }
            (None, Some(remote)) => {
                self.rest = 0..0;
                0..udp::receive(remote, self.sockets.address, &mut self.inbox)?
            }
            (None, None) => return None,
        };
        Some(Received { bytes: &self.inbox[frame], fcs: Fcs::Good })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ipv4Addr = Ipv4Addr::new(127, 89, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(127, 89, 0, 2);

    fn port(ip: Ipv4Addr) -> HostWire {
        HostWire::new(Arc::new(Sockets::bind(ip).unwrap()))
    }

    fn frame(number: u16) -> Vec<u8> {
        let mut frame = vec![0x5a; 4096];
        frame[..6].copy_from_slice(&mac_of(B));
        frame[6..8].copy_from_slice(&number.to_be_bytes());
        frame
    }

    #[test]
    fn a_slow_receiver_is_waited_for_and_loses_nothing() {
        let (mut a, mut b) = (port(A), port(B));
        assert!(Sockets::bind(A).is_err(), "an address is one process's");
        let (mut sent, mut got) = (0_u16, 0);
        while got < 2000 {
            while sent < 2000
                && let Some(room) = a.reserve(4096)
            {
                room.copy_from_slice(&frame(sent));
                a.commit(0, Fcs::Good);
                sent += 1;
            }
            a.flush(0);
            assert!(sent == 2000 || sent > got, "the sender goes on when there is room");
            for _ in 0..7 {
                let Some(received) = b.receive(0) else { break };
                assert_eq!(received.bytes, frame(got));
                got += 1;
            }
        }
        assert_eq!((a.lost, b.receive(0).is_none()), (0, true));
    }

    #[test]
    fn lengths_of_others_are_not_believed() {
        assert_eq!(frame_at(&[2, 0, 7, 7], 0..4), Some(2..4));
        assert_eq!(frame_at(&[3, 0, 7, 7], 0..4), None);
        assert_eq!(frame_at(&[2], 0..1), None);
        assert_eq!(frame_at(&[2, 0, 7, 7], 4..4), None);
    }
}
