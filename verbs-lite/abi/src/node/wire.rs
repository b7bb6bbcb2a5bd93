//! [`HostWire`]: frames between processes, without privilege, daemon or file.
//!
//! A port is reached by its IP address, from which its MAC address follows ([`super::address`]):
//! neither ARP nor a registry is needed. To hold an address is to be bound to it:
//!
//! - On one machine, by a Unix socket ([`local`]), over which a port hands each peer that it sends
//!   to a [`ring`] in shared memory. It pushes back when the receiver is slow: nothing is lost,
//!   unless the receiver stands still for a second. Where the receiver has another user, each
//!   frame is a datagram of that socket.
//! - Beyond it, by UDP port 4791, where what follows the UDP header is RoCEv2 as any adapter or
//!   rdma_rxe speaks it. A full receive buffer loses packets, as networks do.
//!
//! What is for a group goes to all ports of this machine, and beyond it to the group ([`Groups`]).
//!
//! Source: reference 9.7.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use ferrocx_model::roce::bth::Op;
use ferrocx_model::wire::{Fcs, MAX_FRAME_BYTES, Received, Wire};

use super::address::{Address, ip_of, mac_of, port_behind};
use super::groups::Groups;
use super::local::{self, Came, LocalSocket, Told};
use super::lock;
use super::ring::{QUIET_NS, Receiver, Ring, Sender};
use super::udp::{self, Sent};

/// How long frames wait for a receiver before they are lost, in nanoseconds: one that stands still
/// must not hold up everybody else's for ever.
const PATIENCE_NS: u64 = 1_000_000_000;
/// Frames that wait for one receiver before the port has to wait.
const FULL_FRAMES: usize = 16;
/// How long the way to a peer is believed in, in nanoseconds, when nothing shows that it is right.
const BELIEF_NS: u64 = 500_000_000;
/// When a peer is asked again that had too many datagrams to read, in nanoseconds.
const ASK_AGAIN_NS: u64 = 100_000;
/// How often the sockets are looked into, in nanoseconds, while there are rings to look into.
const LOOK_NS: u64 = 20_000;

/// The operation of a RoCEv2 packet that answers a request.
fn answer(frame: &[u8]) -> Option<Op> {
    Op::from_opcode(udp::opcode(frame)?).filter(|op| op.is_response())
}

/// What an address is bound to.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) address: Address,
    local: LocalSocket,
    /// `None` where another program has the port, rdma_rxe for one: then this machine is all.
    remote: Option<udp::Socket>,
    pub(super) groups: Groups,
    /// The rings of the wire, for whoever sleeps until something comes.
    rings: Mutex<Rings>,
    /// Something has come to a socket.
    has_come: AtomicBool,
    /// A peer may have to be called that looked just now.
    has_put_off: AtomicBool,
}

#[derive(Debug, Default)]
struct Rings {
    inbound: Vec<Arc<Ring>>,
    outbound: Vec<Arc<Ring>>,
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
    /// are told to.
    fn receive(&self, groups_first: bool, frame: &mut [u8]) -> Option<usize> {
        let remote = self.remote.as_ref()?;
        if groups_first && let Some(bytes) = self.groups.receive(frame) {
            return Some(bytes);
        }
        let own = udp::receive(remote, self.address.ip, frame);
        own.or_else(|| if groups_first { None } else { self.groups.receive(frame) })
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

/// The way to a peer.
#[derive(Debug)]
enum Way {
    /// Not looked for yet.
    Unknown,
    /// A ring that the peer was offered.
    Ring(Sender),
    /// Datagrams of this machine.
    Datagrams,
    /// Not on this machine.
    Remote,
}

/// A peer, and what waits to go there.
#[derive(Debug)]
struct Peer {
    ip: IpAddr,
    way: Way,
    /// When to look whether the way is right.
    until_ns: u64,
    waiting: VecDeque<(Vec<u8>, Fcs)>,
    /// Buffers to use again.
    spare: Vec<Vec<u8>>,
    /// Since when the oldest frame waits.
    since_ns: u64,
}

impl Peer {
    fn new(ip: IpAddr) -> Self {
        Self {
            ip,
            way: Way::Unknown,
            until_ns: 0,
            waiting: VecDeque::new(),
            spare: Vec::new(),
            since_ns: 0,
        }
    }

    /// Whether a frame needs no checksum on the way there.
    fn is_private(&self) -> bool {
        matches!(&self.way, Way::Ring(ring) if ring.is_private())
    }

    /// Forgets the way, and what was only fit for it.
    fn lose_way(&mut self, sockets: &Sockets, way: Way) {
        if let Way::Ring(sender) = &self.way {
            lock(&sockets.rings).outbound.retain(|ring| !Arc::ptr_eq(ring, &sender.ring));
            self.waiting.retain(|(_, fcs)| *fcs == Fcs::Good);
        }
        self.way = way;
        self.until_ns = 0;
    }

    /// Finds a way, and sees from time to time whether it still leads to somebody.
    fn find_way(&mut self, sockets: &Sockets, now_ns: u64) {
        if now_ns < self.until_ns {
            return;
        }
        if let Way::Unknown | Way::Remote = self.way
            && let Some(port) = port_behind(self.ip, local::ports)
        {
            self.ip = port;
        }
        let is_there = match &self.way {
            // What is read shows that somebody reads.
            Way::Ring(ring) if ring.is_taken() && ring.is_drained() => true,
            Way::Ring(_) => sockets.local.call(self.ip) != Told::Nobody,
            Way::Unknown | Way::Datagrams | Way::Remote => sockets.local.knows(self.ip),
        };
        match &self.way {
            _ if !is_there => self.lose_way(sockets, Way::Remote),
            Way::Unknown | Way::Remote => self.offer_ring(sockets),
            Way::Ring(_) | Way::Datagrams => {}
        }
        let is_found = !matches!(self.way, Way::Unknown);
        self.until_ns = now_ns + if is_found { BELIEF_NS } else { ASK_AGAIN_NS };
    }

    fn offer_ring(&mut self, sockets: &Sockets) {
        let Ok((ring, file)) = Ring::new() else {
            self.way = Way::Datagrams;
            return;
        };
        // Frames are in it before the peer has read the offer, and stay there if this process ends.
        self.way = match sockets.local.offer(self.ip, &file) {
            Told::Done => {
                lock(&sockets.rings).outbound.push(Arc::clone(&ring));
                Way::Ring(Sender::new(ring))
            }
            Told::Full => Way::Unknown,
            Told::Nobody => Way::Remote,
        };
    }

    /// Sends a frame, or says that it has to wait.
    fn send(&mut self, sockets: &Sockets, frame: &[u8], fcs: Fcs, may_wait: bool) -> Sent {
        let told = match &mut self.way {
            Way::Unknown => Told::Full,
            Way::Ring(ring) => match ring.push(frame, fcs, may_wait) {
                Ok(true) => Told::Done,
                Ok(false) => Told::Full,
                Err(_) => Told::Nobody,
            },
            // It was made for a ring that is no more.
            Way::Datagrams | Way::Remote if fcs != Fcs::Good => Told::Done,
            Way::Datagrams => sockets.local.send(self.ip, frame),
            Way::Remote => match &sockets.remote {
                // What is for a group has gone there once.
                Some(remote) if frame[0] & 1 == 0 => {
                    return udp::send(remote, &sockets.address, frame);
                }
                Some(_) | None => Told::Done,
            },
        };
        match told {
            Told::Done => Sent::Done,
            Told::Full => Sent::Full,
            Told::Nobody => {
                self.lose_way(sockets, Way::Unknown);
                Sent::Done
            }
        }
    }

    /// Sends what waits, as far as there is room; how many frames were lost.
    fn send_waiting(&mut self, sockets: &Sockets, now_ns: u64) -> u64 {
        if self.waiting.is_empty() {
            return 0;
        }
        self.find_way(sockets, now_ns);
        while let Some((frame, fcs)) = self.waiting.pop_front() {
            if let Sent::Full = self.send(sockets, &frame, fcs, false) {
                self.waiting.push_front((frame, fcs));
                break;
            }
            self.since_ns = now_ns;
            self.spare.push(frame);
        }
        if self.waiting.is_empty() || now_ns.saturating_sub(self.since_ns) <= PATIENCE_NS {
            return 0;
        }
        let lost = self.waiting.len() as u64;
        self.waiting.clear();
        lost
    }

    /// Whether it may have to be called once it has not looked for a while.
    fn is_put_off(&self) -> bool {
        matches!(&self.way, Way::Ring(ring) if ring.is_put_off())
    }

    /// Ends a burst; whether there was anything in it.
    fn flush(&mut self, sockets: &Sockets, now_ns: u64) -> bool {
        let Way::Ring(ring) = &mut self.way else { return false };
        let is_new = ring.show();
        if ring.must_call(now_ns) && sockets.local.call(self.ip) == Told::Nobody {
            self.lose_way(sockets, Way::Unknown);
        }
        is_new
    }
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
    peers: HashMap<[u8; 6], Peer>,
    /// The frame that is being built.
    out: Vec<u8>,
    len: usize,
    /// Frames wait, and of some peer as many as may.
    has_waiting: bool,
    is_full: bool,
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
    lost: u64,
}

impl HostWire {
    pub(crate) fn new(sockets: Arc<Sockets>) -> Self {
        Self {
            sockets,
            peers: HashMap::new(),
            out: vec![0; MAX_FRAME_BYTES],
            len: 0,
            has_waiting: false,
            is_full: false,
            now_ns: 0,
            inbound: Vec::new(),
            turn: 0,
            is_device: false,
            is_called: false,
            has_answer: false,
            look_ns: 0,
            groups_first: false,
            inbox: vec![0; local::DATAGRAM_BYTES],
            lost: 0,
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
        let (sockets, now_ns) = (&*self.sockets, self.now_ns);
        let frame = &self.out[..self.len];
        let peer = match self.peers.entry(mac) {
            Entry::Occupied(peer) => peer.into_mut(),
            Entry::Vacant(place) => {
                // Frames that programs made may be for anybody.
                let named = || ip_of(mac, udp::destination(frame), local::ports);
                let Some(ip) = ip.or_else(named) else { return };
                place.insert(Peer::new(ip))
            }
        };
        peer.find_way(sockets, now_ns);
        // What is asked for next goes out right behind it, and a peer that polls until it is
        // acknowledged takes both: nobody there has to be called for the second.
        let may_wait = self.has_answer && answer(frame) == Some(Op::Acknowledge);
        let sent = |peer: &mut Peer| peer.send(sockets, frame, fcs, may_wait);
        if peer.waiting.is_empty() && matches!(sent(peer), Sent::Done) {
            return;
        }
        if peer.waiting.is_empty() {
            peer.since_ns = now_ns;
        }
        let mut kept = peer.spare.pop().unwrap_or_default();
        kept.clear();
        kept.extend_from_slice(frame);
        peer.waiting.push_back((kept, fcs));
        self.has_waiting = true;
        self.is_full |= peer.waiting.len() >= FULL_FRAMES;
    }

    /// Sends what waits and has room, and ends the burst. Whether anything went out.
    fn send_all(&mut self) -> bool {
        let (mut sent, mut waits, mut is_full, mut put_off) = (false, false, false, false);
        for peer in self.peers.values_mut() {
            if self.has_waiting {
                self.lost += peer.send_waiting(&self.sockets, self.now_ns);
                waits |= !peer.waiting.is_empty();
                is_full |= peer.waiting.len() >= FULL_FRAMES;
            }
            sent |= peer.flush(&self.sockets, self.now_ns);
            put_off |= peer.is_put_off();
        }
        let has_put_off = &self.sockets.has_put_off;
        if has_put_off.load(Ordering::Relaxed) != put_off {
            has_put_off.store(put_off, Ordering::Relaxed);
        }
        (self.has_waiting, self.is_full) = (waits, is_full);
        sent
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
        loop {
            match sockets.local.receive(&mut self.inbox)? {
                Came::Frame(len) => return Some(len),
                Came::Offer(from, file) => match Ring::open(file) {
                    Ok(ring) => self.take_ring(from, ring),
                    Err(_) => drop(sockets.local.refuse(from)),
                },
                Came::Refused(from) => self.lose_way_to(from, Way::Datagrams),
                Came::Forgotten(from) => self.lose_way_to(from, Way::Unknown),
                Came::Call(from) => match self.inbound.iter().find(|known| known.from == from) {
                    // Whoever sleeps may have been called, and sleeps on: this one took the call.
                    Some(known) => {
                        known.receiver.ring.sleeps(self.now_ns + QUIET_NS);
                        self.is_called = true;
                    }
                    None => drop(sockets.local.forget(from)),
                },
            }
        }
    }

    fn lose_way_to(&mut self, peer: IpAddr, way: Way) {
        if let Some(peer) = self.peers.get_mut(&mac_of(peer)) {
            peer.lose_way(&self.sockets, way);
        }
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
        if self.is_full {
            self.send_all();
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
        match to.filter(|_| fcs != Fcs::Bad) {
            Some(group) if group[0] & 1 != 0 => self.send_to_all(),
            Some(to) => self.send_to(to, None, fcs),
            None => {}
        }
    }

    fn flush(&mut self, now_ns: u64) -> bool {
        self.now_ns = now_ns;
        self.has_answer = false;
        self.send_all()
    }

    fn receive(&mut self, now_ns: u64) -> Option<Received<'_>> {
        self.now_ns = now_ns;
        if let Some((len, fcs)) = self.take_from_rings() {
            return Some(Received { bytes: &self.inbox[..len], fcs });
        }
        // What waits for a slow receiver goes out as soon as there is room, burst or not.
        self.send_all();
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
                0..self.sockets.receive(self.groups_first, &mut self.inbox)?
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
        self.peers.get(to).is_some_and(Peer::is_private)
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
