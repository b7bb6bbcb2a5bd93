//! [`HostWire`]: frames between processes, without privilege, daemon or file.
//!
//! A port is reached by its IP address, from which its MAC address follows ([`super::address`]):
//! neither ARP nor a registry is needed. To hold an address is to be bound to it ([`Sockets`]):
//!
//! - On one machine, by a Unix socket ([`local`]), over which a port hands each peer that it sends
//!   to a [`ring`] in shared memory. It pushes back when the receiver is slow: nothing is lost,
//!   unless the receiver stands still for a second. Where the receiver has another user, each
//!   frame is a datagram of that socket.
//! - Beyond it, by UDP port 4791, where what follows the UDP header is RoCEv2 as any adapter or
//!   rdma_rxe speaks it. A full receive buffer loses packets, as networks do.
//!
//! What is for a group goes to all ports of this machine, and beyond it to the group
//! ([`super::groups`]).
//!
//! Source: reference 9.7.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferrocx_model::roce::bth::Op;
use ferrocx_model::wire::{Fcs, MAX_FRAME_BYTES, Received, Wire};

use super::address::mac_of;
use super::local::{self, Came};
use super::lock;
use super::peers::{Peers, Way};
use super::ring::{QUIET_NS, Receiver, Ring};
use super::sockets::{IN_VAIN, Sockets};
use super::udp;

/// How often the sockets are looked into, in nanoseconds, while there are rings to look into.
const LOOK_NS: u64 = 20_000;

/// The operation of a RoCEv2 packet that answers a request.
fn answer(frame: &[u8]) -> Option<Op> {
    Op::from_opcode(udp::opcode(frame)?).filter(|op| op.is_response())
}

/// A ring that a peer sends by.
#[derive(Debug)]
struct Inbound {
    from: IpAddr,
    receiver: Receiver,
}

/// One port's end of all wires.
#[derive(Debug)]
pub(crate) struct HostWire {
    sockets: Arc<Sockets>,
    peers: Peers,
    /// The frame that is being built.
    out: Vec<u8>,
    len: usize,
    now_ns: u64,
    inbound: Vec<Inbound>,
    /// Whose turn it is.
    turn: usize,
    /// What arrives goes nowhere but into a device.
    is_device: bool,
    /// A peer has called since the rings were looked into.
    is_called: bool,
    /// In this burst an answer came: somebody here is about to be told, and may well ask for more.
    has_answer: bool,
    /// When to look into the sockets, and whose turn it is among those of other machines.
    look_ns: u64,
    groups_first: bool,
    /// What came last.
    inbox: Vec<u8>,
}

impl HostWire {
    pub(crate) fn new(sockets: Arc<Sockets>) -> Self {
        Self {
            sockets,
            peers: Peers::default(),
            out: vec![0; MAX_FRAME_BYTES],
            len: 0,
            now_ns: 0,
            inbound: Vec::new(),
            turn: 0,
            is_device: false,
            is_called: false,
            has_answer: false,
            look_ns: 0,
            groups_first: false,
            inbox: vec![0; local::DATAGRAM_BYTES],
        }
    }

    /// Sends a frame for a group to every port of this machine, and beyond it.
    fn send_to_all(&mut self) {
        let own = self.sockets.address;
        for ip in local::ports().into_iter().filter(|ip| *ip != own.ip) {
            self.send_to(mac_of(ip), Some(ip), Fcs::Good);
        }
        let frame = &self.out[..self.len];
        let is_for_group = || udp::destination(frame).is_some_and(|ip| ip.is_multicast());
        if let Some(remote) = &self.sockets.remote
            && !own.ip.is_loopback()
            && is_for_group()
        {
            // Without room it is lost, as any datagram may be.
            let _ = udp::send(remote, &own, frame);
        }
    }

    /// Sends the frame that was built to a peer, or lets it wait.
    fn send_to(&mut self, mac: [u8; 6], ip: Option<IpAddr>, fcs: Fcs) {
        let frame = &self.out[..self.len];
        // What is asked for next goes out right behind it, and a peer that polls until it is
        // acknowledged takes both: nobody there has to be called for the second.
        let may_wait = self.has_answer && answer(frame) == Some(Op::Acknowledge);
        self.peers.send(&self.sockets, (mac, ip), (frame, fcs), may_wait, self.now_ns);
    }

    /// The next frame of a ring, in the inbox; each ring has its turn.
    fn take_from_rings(&mut self) -> Option<(usize, Fcs)> {
        let mut broken = None;
        for _ in 0..self.inbound.len() {
            self.turn = if self.turn + 1 < self.inbound.len() { self.turn + 1 } else { 0 };
            let Inbound { from, receiver } = self.inbound.get_mut(self.turn)?;
            receiver.see(self.now_ns);
            let popped = receiver.pop(&mut self.inbox);
            if receiver.show() {
                let _ = self.sockets.local.call_for_room(*from);
            }
            match popped {
                Ok(Some(found)) => {
                    self.has_answer |= answer(&self.inbox[..found.0]).is_some();
                    return Some(found);
                }
                Ok(None) => {}
                Err(_) => broken = Some(*from),
            }
        }
        if let Some(from) = broken {
            tracing::info!(%from, "its ring has what no sender writes: it is not read on");
            self.drop_inbound(from);
        }
        None
    }

    /// Reads no more of a peer's ring.
    fn drop_inbound(&mut self, peer: IpAddr) {
        self.inbound.retain(|inbound| inbound.from != peer);
        let rings = self.inbound.iter().map(|inbound| Arc::clone(&inbound.receiver.ring));
        lock(&self.sockets.rings).inbound = rings.collect();
    }

    /// Takes the ring that a peer offers, in place of one that it offered before.
    fn take_ring(&mut self, from: IpAddr, ring: Arc<Ring>) {
        // Those that ended are not heard of any more, once what they sent is taken.
        let is_dead = |old: &&Inbound| {
            !old.receiver.ring.has_records() && !self.sockets.local.knows(old.from)
        };
        let dead: Vec<_> = self.inbound.iter().filter(is_dead).map(|old| old.from).collect();
        dead.into_iter().chain([from]).for_each(|ip| self.drop_inbound(ip));
        lock(&self.sockets.rings).inbound.push(Arc::clone(&ring));
        let receiver = Receiver::new(ring, self.is_device);
        self.inbound.push(Inbound { from, receiver });
    }

    /// The next frame that came to the Unix socket, in the inbox, behind its kind.
    fn take_from_datagrams(&mut self) -> Option<usize> {
        let sockets = Arc::clone(&self.sockets);
        for _ in 0..IN_VAIN {
            match sockets.local.receive(&mut self.inbox)? {
                Came::Frame(len) => return Some(len),
                Came::Offer(from, file) => match Ring::open(file) {
                    Ok(ring) => self.take_ring(from, ring),
                    Err(_) => drop(sockets.local.refuse(from)),
                },
                Came::Refused(from) => self.peers.lose_way_to(&sockets, from, Way::Datagrams),
                Came::Forgotten(from) => self.peers.lose_way_to(&sockets, from, Way::Unknown),
                Came::Call(from) => match self.inbound.iter().find(|known| known.from == from) {
                    // Whoever sleeps may have been called, and sleeps on: this one took the call.
                    Some(known) => {
                        known.receiver.ring.sleeps(self.now_ns + QUIET_NS);
                        self.is_called = true;
                    }
                    None => drop(sockets.local.forget(from)),
                },
                Came::Nothing => {}
            }
        }
        // There may be more.
        self.look_ns = 0;
        None
    }

    /// Whether the sockets are to be looked into.
    fn is_time_to_look(&mut self) -> bool {
        let has_come = self.sockets.has_come.load(Ordering::Relaxed)
            && self.sockets.has_come.swap(false, Ordering::Acquire);
        if !has_come && !self.inbound.is_empty() && self.now_ns < self.look_ns {
            return false;
        }
        self.look_ns = self.now_ns + LOOK_NS;
        true
    }
}

impl Wire for HostWire {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.peers.are_full() {
            self.peers.send_all(&self.sockets, self.now_ns);
        }
        if self.peers.are_full() {
            return None;
        }
        self.len = len;
        self.out.get_mut(..len)
    }

    fn commit(&mut self, now_ns: u64, fcs: Fcs) {
        self.now_ns = now_ns;
        let to = self.out[..self.len].first_chunk::<6>().copied();
        match to.filter(|_| fcs != Fcs::Bad) {
            Some(group) if group[0] & 1 != 0 => self.send_to_all(),
            Some(to) => self.send_to(to, None, fcs),
            None => {}
        }
    }

    fn flush(&mut self, now_ns: u64) -> bool {
        self.now_ns = now_ns;
        self.has_answer = false;
        self.peers.send_all(&self.sockets, now_ns)
    }

    fn receive(&mut self, now_ns: u64) -> Option<Received<'_>> {
        self.now_ns = now_ns;
        if let Some((len, fcs)) = self.take_from_rings() {
            return Some(Received { bytes: &self.inbox[..len], fcs });
        }
        // What waits for a slow receiver goes out as soon as there is room, burst or not.
        self.peers.send_all(&self.sockets, now_ns);
        if !self.is_time_to_look() {
            return None;
        }
        let datagram = self.take_from_datagrams();
        if datagram.is_none()
            && std::mem::take(&mut self.is_called)
            && let Some((len, fcs)) = self.take_from_rings()
        {
            return Some(Received { bytes: &self.inbox[..len], fcs });
        }
        let frame = match datagram {
            Some(len) => 1..1 + len,
            None => {
                self.groups_first = !self.groups_first;
                let came = self.sockets.receive(self.groups_first, &mut self.inbox)?;
                self.look_ns = 0;
                0..came?
            }
        };
        // There may be more.
        self.look_ns = 0;
        Some(Received { bytes: &self.inbox[frame], fcs: Fcs::Good })
    }

    fn adopt(&mut self) {
        self.is_device = true;
    }

    fn is_private(&self, to: &[u8; 6]) -> bool {
        self.peers.is_private(to)
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
