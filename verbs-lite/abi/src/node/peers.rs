//! [`Peers`] of a port: the way to each, and what waits to go there.
//!
//! Those of this machine have a ring, or datagrams, and each burst looks at them. Of all others
//! nothing has to be known: their packets name them. Which addresses these are is remembered only
//! so that it is not asked for each frame, and of so many at most: whoever sends from addresses
//! without end gets answers, and nothing else.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferrocx_model::wire::Fcs;

use super::address::{ip_of, mac_of, port_behind};
use super::local::{self, Told};
use super::lock;
use super::ring::{Ring, Sender};
use super::sockets::Sockets;
use super::udp::{self, Sent};

/// How long frames wait for a receiver before they are lost, in nanoseconds: one that stands still
/// must not hold up everybody else's for ever.
const PATIENCE_NS: u64 = 1_000_000_000;
/// Frames that wait for one receiver before the port has to wait.
const FULL_FRAMES: usize = 16;
/// How long the way to a peer is believed in, in nanoseconds, when nothing shows that it is right.
pub(super) const BELIEF_NS: u64 = 500_000_000;
/// When a peer is asked again that had too many datagrams to read, in nanoseconds.
const ASK_AGAIN_NS: u64 = 100_000;
/// Peers that are remembered not to be of this machine.
const FAR_PEERS: usize = 1024;

/// The way to a peer.
#[derive(Debug)]
pub(super) enum Way {
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

    /// Whether each burst is to look at it.
    fn is_near(&self) -> bool {
        !self.waiting.is_empty() || matches!(self.way, Way::Ring(_) | Way::Datagrams)
    }

    /// Frames that wait for the socket that all peers beyond this machine share.
    fn waits_beyond(&self) -> usize {
        if matches!(self.way, Way::Remote) { self.waiting.len() } else { 0 }
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

    /// Sends a frame behind those that wait, or lets it wait, too.
    fn send_or_keep(
        &mut self,
        sockets: &Sockets,
        (frame, fcs): (&[u8], Fcs),
        may_wait: bool,
        now_ns: u64,
    ) -> Sent {
        self.find_way(sockets, now_ns);
        if self.waiting.is_empty() {
            if let Sent::Done = self.send(sockets, frame, fcs, may_wait) {
                return Sent::Done;
            }
            self.since_ns = now_ns;
        }
        let mut kept = self.spare.pop().unwrap_or_default();
        kept.clear();
        kept.extend_from_slice(frame);
        self.waiting.push_back((kept, fcs));
        Sent::Full
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

/// All peers of a port.
#[derive(Debug, Default)]
pub(super) struct Peers {
    /// Those of this machine, and those that frames wait for.
    near: HashMap<[u8; 6], Peer>,
    /// Others, as far as they are remembered.
    far: HashMap<[u8; 6], Peer>,
    /// Frames wait; those for the socket that all peers beyond this machine share; of some receiver
    /// as many as may.
    has_waiting: bool,
    waits_beyond: usize,
    is_full: bool,
    /// Frames that waited for too long.
    pub(super) lost: u64,
}

impl Peers {
    /// Sends a frame to a peer, or lets it wait. The answer to a peer that asks for more
    /// `may_wait` for what goes out behind it.
    pub(super) fn send(
        &mut self,
        sockets: &Sockets,
        (mac, ip): ([u8; 6], Option<IpAddr>),
        (frame, fcs): (&[u8], Fcs),
        may_wait: bool,
        now_ns: u64,
    ) {
        if let Some(peer) = self.near.get_mut(&mac) {
            if let Sent::Full = peer.send_or_keep(sockets, (frame, fcs), may_wait, now_ns) {
                self.has_waiting = true;
                self.waits_beyond += usize::from(matches!(peer.way, Way::Remote));
                self.is_full |= peer.waiting.len().max(self.waits_beyond) >= FULL_FRAMES;
            }
            return;
        }
        if self.far.len() >= FAR_PEERS {
            // To be forgotten costs a peer one look, at its next frame.
            self.far.clear();
        }
        let peer = match self.far.entry(mac) {
            Entry::Occupied(peer) => peer.into_mut(),
            Entry::Vacant(place) => {
                // Frames that programs made may be for anybody.
                let named = || ip_of(mac, udp::destination(frame), local::ports);
                let Some(ip) = ip.or_else(named) else { return };
                place.insert(Peer::new(ip))
            }
        };
        let sent = peer.send_or_keep(sockets, (frame, fcs), may_wait, now_ns);
        if !peer.is_near() {
            return;
        }
        if let Sent::Full = sent {
            self.has_waiting = true;
            self.waits_beyond += peer.waits_beyond();
            self.is_full |= self.waits_beyond >= FULL_FRAMES;
        }
        if let Some(peer) = self.far.remove(&mac) {
            self.add(sockets, mac, peer);
        }
    }

    /// Takes in a peer that is looked at from now on.
    fn add(&mut self, sockets: &Sockets, mac: [u8; 6], new: Peer) {
        if new.waiting.is_empty() {
            // Those of this machine that ended are not sent to any more.
            let has_ended = |peer: &Peer| peer.waiting.is_empty() && !sockets.knows(peer.ip);
            let ended = self.near.extract_if(|_, peer| has_ended(peer));
            ended.for_each(|(_, mut peer)| peer.lose_way(sockets, Way::Unknown));
        }
        self.near.insert(mac, new);
    }

    /// Sends what waits and has room, and ends the burst. Whether anything went out.
    pub(super) fn send_all(&mut self, sockets: &Sockets, now_ns: u64) -> bool {
        let (mut sent, mut waits, mut is_full, mut put_off) = (false, false, false, false);
        let (has_waiting, mut waits_beyond) = (self.has_waiting, 0);
        let (near, lost) = (&mut self.near, &mut self.lost);
        let done = near.extract_if(|_, peer| {
            if has_waiting {
                *lost += peer.send_waiting(sockets, now_ns);
                waits |= !peer.waiting.is_empty();
                waits_beyond += peer.waits_beyond();
                is_full |= peer.waiting.len().max(waits_beyond) >= FULL_FRAMES;
            }
            sent |= peer.flush(sockets, now_ns);
            put_off |= peer.is_put_off();
            !peer.is_near()
        });
        for (mac, peer) in done {
            self.far.insert(mac, Peer { spare: Vec::new(), ..peer });
        }
        let has_put_off = &sockets.has_put_off;
        if has_put_off.load(Ordering::Relaxed) != put_off {
            has_put_off.store(put_off, Ordering::Relaxed);
        }
        (self.has_waiting, self.waits_beyond, self.is_full) = (waits, waits_beyond, is_full);
        sent
    }

    /// Whether the port has to wait, for frames wait for a receiver, as many as may.
    pub(super) fn are_full(&self) -> bool {
        self.is_full
    }

    /// Forgets the way to a peer.
    pub(super) fn lose_way_to(&mut self, sockets: &Sockets, ip: IpAddr, way: Way) {
        if let Some(peer) = self.near.get_mut(&mac_of(ip)) {
            peer.lose_way(sockets, way);
        }
    }

    /// Whether a frame to a peer needs no checksum.
    pub(super) fn is_private(&self, to: &[u8; 6]) -> bool {
        self.near.get(to).is_some_and(Peer::is_private)
    }

    /// Those that each burst looks at, and those that are remembered.
    #[cfg(test)]
    pub(super) fn count(&self) -> (usize, usize) {
        (self.near.len(), self.far.len())
    }
}
