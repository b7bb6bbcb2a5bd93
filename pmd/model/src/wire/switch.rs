//! A switch in memory: any number of ports, addresses learned from what they send.
//!
//! It forwards a frame to the port where its destination was last heard, and to all others when it
//! knows none, or when the frame is for a group. It looks at no VLAN tag. As switches do, it drops
//! a frame whose check sequence is wrong, one for a bridge itself, and one that a port with a full
//! queue should send.
//!
//! An address that a port owns is that port's alone, as behind an embedded switch that checks for
//! spoofing: a frame that claims it elsewhere is dropped, so that nobody takes over its traffic.
//!
//! A port is given a frame of each sender in turn, and when its queue is full, the sender that has
//! most in it loses: a flood of one port's neither holds up nor displaces what others send.
//!
//! All ports share one lock, under which no byte of a frame is copied: the sender's buffer itself
//! waits at the ports that the frame is for, a group's at all of them.
//!
//! # Source
//! IEEE 802.1D-2004, §7.7 to §7.9 (forwarding, learning), §7.12.6 (reserved addresses).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Fcs, MAX_FRAME_BYTES, Received, Wire};

/// Addresses that are learned at one port, the last that it sent from; frames for others go to all
/// ports. Each port has its own share, so that none keeps the others' from being learned.
const MAX_ADDRESSES: usize = 1024;

/// A frame on its way. Who holds it alone may use the buffer again.
type Frame = Arc<Vec<u8>>;

/// Emptied buffers that are kept for later frames.
const MAX_SPARE: usize = 256;

/// How much larger than its frame a buffer may be, which waits where only the frame is counted;
/// short frames count as [`SHORT_BYTES`].
const MAX_SLACK: usize = 4;
const SHORT_BYTES: usize = 64;

/// Offset behind an Ethernet frame's source address.
const ADDRESSES_BYTES: usize = 12;

/// Frames that passed one port of a switch, and that did not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SwitchStats {
    /// Frames that came in from the device.
    pub received: u64,
    /// Frames that were queued for the device.
    pub forwarded: u64,
    /// Frames for the device that its full queue had no room for, those among them that were queued
    /// and made room for another sender's.
    pub dropped: u64,
    /// Frames from the device that no port may have: wrong check sequence, too short, reserved.
    pub filtered: u64,
    /// Frames from the device whose source is the address of another port.
    pub spoofed: u64,
}

/// What waits at a port of one sender's, the oldest first.
#[derive(Debug, Default)]
struct Lane {
    queue: VecDeque<Frame>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Egress {
    /// By the index of the sender's port.
    lanes: Vec<Lane>,
    /// Senders of whom something waits, in the order of their turns.
    turns: VecDeque<usize>,
    queued_bytes: usize,
    /// Addresses that were learned here, the oldest first; some of them moved on since.
    learned: VecDeque<[u8; 6]>,
    /// The device's transmitter is off, so the switch's port is down.
    is_dark: bool,
    stats: SwitchStats,
}

#[derive(Debug)]
struct Fabric {
    ports: Vec<Egress>,
    addresses: HashMap<[u8; 6], usize>,
    /// Addresses that are not learned: each is its port's for as long as that exists.
    owned: HashMap<[u8; 6], usize>,
    capacity_bytes: usize,
    /// Each is held by nobody else.
    spare: Vec<Frame>,
}

/// One port of a switch, as a device sees it. The carrier is always there.
pub struct SwitchPort {
    index: usize,
    fabric: Arc<Mutex<Fabric>>,
    outgoing: Frame,
    incoming: Option<Frame>,
}

impl fmt::Debug for SwitchPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (index, stats) = (self.index, self.stats());
        f.debug_struct("SwitchPort").field("index", &index).field("stats", &stats).finish()
    }
}

/// A switch that ports are added to as they are needed.
#[derive(Debug, Clone)]
pub struct Switch {
    fabric: Arc<Mutex<Fabric>>,
}

impl Switch {
    /// Makes a switch without ports, each of which can hold `capacity_bytes` for its device.
    ///
    /// The capacity is raised to what one of the longest frames needs.
    #[must_use]
    pub fn new(capacity_bytes: usize) -> Self {
        let fabric = Fabric {
            ports: Vec::new(),
            addresses: HashMap::new(),
            owned: HashMap::new(),
            capacity_bytes: capacity_bytes.max(MAX_FRAME_BYTES),
            spare: Vec::new(),
        };
        Self { fabric: Arc::new(Mutex::new(fabric)) }
    }

    /// Adds a port. It leads nowhere any more once it is dropped.
    #[must_use]
    pub fn port(&self) -> SwitchPort {
        let mut fabric = self.fabric.lock().unwrap_or_else(PoisonError::into_inner);
        let index = fabric.ports.len();
        fabric.ports.push(Egress::default());
        let fabric = Arc::clone(&self.fabric);
        SwitchPort { index, fabric, outgoing: Frame::default(), incoming: None }
    }

    /// Adds a port that owns an address: frames from other ports that claim it are dropped.
    ///
    /// It may send from other addresses too. An address that a port owns already stays that one's.
    #[must_use]
    pub fn port_of(&self, mac: [u8; 6]) -> SwitchPort {
        let port = self.port();
        let mut fabric = port.lock();
        fabric.addresses.remove(&mac);
        fabric.owned.entry(mac).or_insert(port.index);
        drop(fabric);
        port
    }
}

/// Makes a switch with `count` ports: see [`Switch::new`].
#[must_use]
pub fn switch(count: usize, capacity_bytes: usize) -> Vec<SwitchPort> {
    let switch = Switch::new(capacity_bytes);
    (0..count).map(|_| switch.port()).collect()
}

impl Drop for SwitchPort {
    fn drop(&mut self) {
        let index = self.index;
        let mut fabric = self.lock();
        fabric.addresses.retain(|_, port| *port != index);
        fabric.owned.retain(|_, port| *port != index);
        fabric.ports[index] = Egress { is_dark: true, ..Egress::default() };
    }
}

impl Egress {
    /// Whether a frame of a sender's may wait here. The last of those of the sender that has most
    /// waiting make room for it, unless that is this one.
    fn make_room(&mut self, from: usize, len: usize, capacity_bytes: usize) -> bool {
        if self.lanes.len() <= from {
            self.lanes.resize_with(from + 1, Lane::default);
        }
        while self.queued_bytes + len > capacity_bytes {
            let bytes = |index: &usize| self.lanes[*index].bytes;
            let Some(most) = (0..self.lanes.len()).max_by_key(bytes) else { return false };
            if bytes(&most) <= bytes(&from) + len {
                return false;
            }
            self.take(most, VecDeque::pop_back);
            self.stats.dropped += 1;
        }
        true
    }

    /// The frame whose turn it is.
    fn next(&mut self) -> Option<Frame> {
        let from = *self.turns.front()?;
        let frame = self.take(from, VecDeque::pop_front);
        if self.turns.front() == Some(&from) {
            self.turns.rotate_left(1);
        }
        frame
    }

    /// Takes one of a sender's frames; the sender has no turn once none is left.
    fn take(
        &mut self,
        from: usize,
        end: impl FnOnce(&mut VecDeque<Frame>) -> Option<Frame>,
    ) -> Option<Frame> {
        let lane = &mut self.lanes[from];
        let frame = end(&mut lane.queue)?;
        lane.bytes -= frame.len();
        self.queued_bytes -= frame.len();
        if lane.queue.is_empty() {
            // What a flood needed is not kept.
            lane.queue.shrink_to(MAX_SPARE);
            self.turns.retain(|turn| *turn != from);
        }
        Some(frame)
    }
}

impl Fabric {
    fn forward(&mut self, from: usize, frame: &Frame, fcs: Fcs) {
        let stats = &mut self.ports[from].stats;
        stats.received += 1;
        let destination = frame.first_chunk::<6>().copied().unwrap_or_default();
        if fcs == Fcs::Bad || frame.len() < ADDRESSES_BYTES || is_reserved(destination) {
            stats.filtered += 1;
            return;
        }
        let source: [u8; 6] = frame[6..ADDRESSES_BYTES].try_into().unwrap_or_default();
        let owner = self.owned.get(&source);
        if owner.is_some_and(|owner| *owner != from) {
            stats.spoofed += 1;
            return;
        }
        if owner.is_none() && !is_group(source) {
            self.learn(source, from);
        }
        let known = self.owned.get(&destination).or_else(|| self.addresses.get(&destination));
        match known.filter(|_| !is_group(destination)).copied() {
            // Where it was heard is where it comes from: nothing to do.
            Some(to) if to == from => {}
            Some(to) => self.enqueue(from, to, frame),
            None => {
                for to in (0..self.ports.len()).filter(|to| *to != from) {
                    self.enqueue(from, to, frame);
                }
            }
        }
    }

    fn learn(&mut self, source: [u8; 6], from: usize) {
        if self.addresses.insert(source, from) == Some(from) {
            return;
        }
        let learned = &mut self.ports[from].learned;
        learned.push_back(source);
        if learned.len() > MAX_ADDRESSES {
            self.forget_oldest(from);
        }
    }

    fn forget_oldest(&mut self, from: usize) {
        if let Some(oldest) = self.ports[from].learned.pop_front()
            && self.addresses.get(&oldest) == Some(&from)
        {
            self.addresses.remove(&oldest);
        }
    }

    fn enqueue(&mut self, from: usize, to: usize, frame: &Frame) {
        let port = &mut self.ports[to];
        if port.is_dark || !port.make_room(from, frame.len(), self.capacity_bytes) {
            port.stats.dropped += 1;
            return;
        }
        port.queued_bytes += frame.len();
        port.stats.forwarded += 1;
        let lane = &mut port.lanes[from];
        lane.bytes += frame.len();
        lane.queue.push_back(Arc::clone(frame));
        if lane.queue.len() == 1 {
            port.turns.push_back(from);
        }
    }

    /// An empty buffer that nobody else holds.
    fn buffer(&mut self) -> Frame {
        let mut spare = self.spare.pop().unwrap_or_default();
        // What other ports have sent is none of the next one's business.
        Arc::make_mut(&mut spare).clear();
        spare
    }
}

/// Addresses that no bridge forwards: pause frames, LACP, LLDP, spanning tree.
fn is_reserved(destination: [u8; 6]) -> bool {
    destination[..5] == [0x01, 0x80, 0xc2, 0, 0] && destination[5] < 0x10
}

fn is_group(address: [u8; 6]) -> bool {
    address[0] & 1 != 0
}

impl SwitchPort {
    /// Frames that passed this port so far, and that did not.
    #[must_use]
    pub fn stats(&self) -> SwitchStats {
        self.lock().ports[self.index].stats
    }

    fn lock(&self) -> MutexGuard<'_, Fabric> {
        self.fabric.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wire for SwitchPort {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        let outgoing = Arc::make_mut(&mut self.outgoing);
        outgoing.resize(len, 0);
        Some(outgoing)
    }

    fn commit(&mut self, _now_ns: u64, fcs: Fcs) {
        // In the port's queue only the frame counts, so the buffer must not be much larger.
        let most = MAX_SLACK * self.outgoing.len().max(SHORT_BYTES);
        if self.outgoing.capacity() > most {
            self.outgoing = Arc::new(self.outgoing.to_vec());
        }
        let frame = Arc::clone(&self.outgoing);
        let mut fabric = self.fabric.lock().unwrap_or_else(PoisonError::into_inner);
        fabric.forward(self.index, &frame, fcs);
        drop(frame);
        if Arc::get_mut(&mut self.outgoing).is_none() {
            self.outgoing = fabric.buffer();
        }
    }

    fn receive(&mut self, _now_ns: u64) -> Option<Received<'_>> {
        let last = self.incoming.take();
        let mut fabric = self.fabric.lock().unwrap_or_else(PoisonError::into_inner);
        // The last of those who had it keeps it.
        if let Some(mut last) = last
            && fabric.spare.len() < MAX_SPARE
            && Arc::get_mut(&mut last).is_some()
        {
            fabric.spare.push(last);
        }
        let frame = fabric.ports[self.index].next()?;
        drop(fabric);
        let bytes = self.incoming.insert(frame).as_slice();
        Some(Received { bytes, fcs: Fcs::Good })
    }

    fn set_transmitter(&mut self, is_on: bool) {
        let mut fabric = self.lock();
        fabric.ports[self.index].is_dark = !is_on;
        // What was behind a link that went down may come back elsewhere.
        while !is_on && !fabric.ports[self.index].learned.is_empty() {
            fabric.forget_oldest(self.index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame from one locally administered address to another.
    fn frame(to: u8, from: u8) -> Vec<u8> {
        let mut frame = vec![0x5a; 60];
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, to]);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, from]);
        frame
    }

    fn send(port: &mut SwitchPort, frame: &[u8], fcs: Fcs) {
        port.reserve(frame.len()).expect("room").copy_from_slice(frame);
        port.commit(0, fcs);
    }

    /// Which ports have a frame; each takes at most one.
    fn arrivals(ports: &mut [SwitchPort]) -> Vec<usize> {
        (0..ports.len()).filter(|index| ports[*index].receive(0).is_some()).collect()
    }

    #[test]
    fn unknown_addresses_go_everywhere_and_known_ones_to_their_port() {
        let mut ports = switch(4, 1 << 16);
        send(&mut ports[2], &frame(9, 3), Fcs::Good);
        assert_eq!(arrivals(&mut ports), [0, 1, 3]);
        send(&mut ports[0], &frame(3, 1), Fcs::Good);
        assert_eq!(arrivals(&mut ports), [2]);
        // The address moves.
        send(&mut ports[1], &frame(9, 3), Fcs::Good);
        assert_eq!(arrivals(&mut ports), [0, 2, 3]);
        send(&mut ports[0], &frame(3, 1), Fcs::Good);
        assert_eq!(arrivals(&mut ports), [1]);
        send(&mut ports[1], &frame(3, 7), Fcs::Good);
        assert_eq!(arrivals(&mut ports), [0; 0]);
    }

    #[test]
    fn groups_go_everywhere_and_what_a_switch_filters_nowhere() {
        let mut ports = switch(3, 1 << 16);
        let mut group = frame(1, 2);
        group[..6].copy_from_slice(&[0x01, 0x00, 0x5e, 1, 2, 3]);
        send(&mut ports[1], &group, Fcs::Good);
        assert_eq!(arrivals(&mut ports), [0, 2]);
        send(&mut ports[1], &group, Fcs::Bad);
        group[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, 0x0e]);
        send(&mut ports[1], &group, Fcs::Good);
        send(&mut ports[1], &[1; 8], Fcs::Good);
        assert_eq!(arrivals(&mut ports), [0; 0]);
        assert_eq!(ports[1].stats().filtered, 3);
        // A group is no source: nothing is learned from it.
        let mut forged = frame(1, 2);
        forged[6] = 3;
        send(&mut ports[0], &forged, Fcs::Good);
        assert_eq!(arrivals(&mut ports), [1, 2]);
        let mut answer = frame(0, 9);
        answer[..6].copy_from_slice(&forged[6..12]);
        send(&mut ports[2], &answer, Fcs::Good);
        assert_eq!(arrivals(&mut ports), [0, 1]);
    }

    #[test]
    fn an_address_that_a_port_owns_cannot_be_claimed_by_another() {
        let switch = Switch::new(1 << 16);
        let mut ports = vec![switch.port(), switch.port_of([2, 0, 0, 0, 0, 5]), switch.port()];
        // It is known before it was heard, whoever claimed it before.
        send(&mut ports[0], &frame(5, 1), Fcs::Good);
        assert_eq!(arrivals(&mut ports), [1]);
        send(&mut ports[2], &frame(1, 5), Fcs::Good);
        assert_eq!(arrivals(&mut ports), [0; 0]);
        assert_eq!((ports[2].stats().spoofed, ports[2].stats().filtered), (1, 0));
        send(&mut ports[0], &frame(5, 1), Fcs::Good);
        assert_eq!(arrivals(&mut ports), [1]);
        // Its owner sends from it, and from others. A second owner is none.
        send(&mut ports[1], &frame(1, 5), Fcs::Good);
        send(&mut ports[1], &frame(1, 6), Fcs::Good);
        assert_eq!((arrivals(&mut ports), arrivals(&mut ports)), (vec![0], vec![0]));
        ports.push(switch.port_of([2, 0, 0, 0, 0, 5]));
        send(&mut ports[3], &frame(1, 5), Fcs::Good);
        assert_eq!(ports[3].stats().spoofed, 1);
        // With its port it is free.
        drop(ports.remove(1));
        send(&mut ports[1], &frame(1, 5), Fcs::Good);
        send(&mut ports[0], &frame(5, 1), Fcs::Good);
        assert_eq!(arrivals(&mut ports), [0, 1]);
    }

    #[test]
    fn a_full_queue_and_a_dark_port_drop() {
        let mut ports = switch(2, 0);
        for _ in 0..MAX_FRAME_BYTES / 60 + 5 {
            send(&mut ports[0], &frame(9, 1), Fcs::Good);
        }
        assert_eq!(ports[1].stats().dropped, 5);
        let mut taken = 0;
        while ports[1].receive(0).is_some() {
            taken += 1;
        }
        assert_eq!(taken, MAX_FRAME_BYTES / 60);
        ports[1].set_transmitter(false);
        send(&mut ports[0], &frame(9, 1), Fcs::Good);
        assert!(ports[1].receive(0).is_none());
        ports[1].set_transmitter(true);
        send(&mut ports[0], &frame(9, 1), Fcs::Good);
        assert_eq!(ports[1].receive(0).map(|frame| frame.bytes.len()), Some(60));
    }

    #[test]
    fn a_flood_neither_holds_up_nor_displaces_what_others_send() {
        let mut ports = switch(4, 0);
        let from = |received: Option<Received<'_>>| received.map(|frame| frame.bytes[11]);
        for _ in 0..2 * MAX_FRAME_BYTES / 60 {
            send(&mut ports[0], &frame(9, 1), Fcs::Good);
        }
        // Those of one sender stay in their order.
        for to in [4, 5] {
            send(&mut ports[1], &frame(to, 2), Fcs::Good);
        }
        send(&mut ports[2], &frame(9, 3), Fcs::Good);
        let room = MAX_FRAME_BYTES / 60;
        let flooded = ports[3].stats();
        assert_eq!((flooded.forwarded, flooded.dropped), (room as u64 + 3, room as u64 + 3));
        let first: Vec<_> = (0..5).map(|_| from(ports[3].receive(0)).unwrap()).collect();
        assert_eq!(first, [1, 2, 3, 1, 2]);
        let rest = (5..room).filter(|_| from(ports[3].receive(0)) == Some(1)).count();
        assert_eq!(rest, room - 5);
        assert!(ports[3].receive(0).is_none());
        // A queue that was full once takes again what fits, one frame of the longest at a time.
        send(&mut ports[0], &vec![2; MAX_FRAME_BYTES], Fcs::Good);
        send(&mut ports[1], &frame(9, 2), Fcs::Good);
        assert_eq!(from(ports[3].receive(0)), Some(2));
        assert!(ports[3].receive(0).is_none());
        send(&mut ports[0], &frame(9, 1), Fcs::Good);
        assert_eq!(from(ports[3].receive(0)), Some(1));
    }

    /// Sends from many addresses, of which the first is `first`.
    fn invent(port: &mut SwitchPort, first: u64, count: usize) {
        for number in 0..count as u64 {
            let mut bytes = frame(0, 0);
            bytes[6..12].copy_from_slice(&(first + number).to_be_bytes()[2..]);
            send(port, &bytes, Fcs::Good);
        }
    }

    fn frame_to(address: u64) -> Vec<u8> {
        let mut frame = frame(0, 1);
        frame[..6].copy_from_slice(&address.to_be_bytes()[2..]);
        frame
    }

    #[test]
    fn a_port_is_known_by_the_last_addresses_that_it_sent_from_and_takes_no_place_of_others() {
        const FIRST: u64 = 0x0200_0000_0100;
        let mut ports = switch(3, 1 << 16);
        invent(&mut ports[0], FIRST, 3 * MAX_ADDRESSES);
        invent(&mut ports[2], FIRST - 1, 1);
        while !arrivals(&mut ports).is_empty() {}
        let last = FIRST + 3 * MAX_ADDRESSES as u64 - 1;
        let oldest = last + 1 - MAX_ADDRESSES as u64;
        let known = [(FIRST - 1, vec![2]), (last, vec![0]), (oldest, vec![0])];
        for (address, expected) in known.into_iter().chain([(oldest - 1, vec![0, 2])]) {
            send(&mut ports[1], &frame_to(address), Fcs::Good);
            assert_eq!(arrivals(&mut ports), expected, "{address:#x}");
        }
        assert!(ports[0].lock().addresses.len() <= MAX_ADDRESSES + 2);
        // One that moved is not forgotten with what its first port forgets.
        invent(&mut ports[2], last, 1);
        invent(&mut ports[0], FIRST, MAX_ADDRESSES);
        while !arrivals(&mut ports).is_empty() {}
        send(&mut ports[1], &frame_to(last), Fcs::Good);
        assert_eq!(arrivals(&mut ports), [2]);
        // A link that goes down takes them along.
        ports[2].set_transmitter(false);
        ports[2].set_transmitter(true);
        send(&mut ports[1], &frame_to(last), Fcs::Good);
        assert_eq!(arrivals(&mut ports), [0, 2]);
    }

    #[test]
    fn short_frames_do_not_wait_in_the_buffers_of_long_ones() {
        let mut ports = switch(3, 1 << 20);
        let long = [frame(1, 0), vec![0; 9000]].concat();
        send(&mut ports[1], &frame(0, 1), Fcs::Good);
        send(&mut ports[2], &frame(0, 2), Fcs::Good);
        while !arrivals(&mut ports).is_empty() {}
        for _ in 0..200 {
            send(&mut ports[0], &long, Fcs::Good);
            while ports[1].receive(0).is_some() {}
            send(&mut ports[0], &frame(2, 0), Fcs::Good);
        }
        let fabric = ports[0].lock();
        let held: usize = fabric.ports[2].lanes[0].queue.iter().map(|frame| frame.capacity()).sum();
        let bytes = fabric.ports[2].queued_bytes;
        assert_eq!(bytes, 200 * 60);
        assert!(held <= MAX_SLACK * 200 * SHORT_BYTES, "{held} bytes hold {bytes}");
    }

    #[test]
    fn a_frame_for_all_is_one_buffer_which_no_later_sender_can_read() {
        let mut ports = switch(5, 1 << 16);
        let mut group = vec![0xa7; 9000];
        group[..12].copy_from_slice(&[0x01, 0x00, 0x5e, 1, 2, 3, 2, 0, 0, 0, 0, 1]);
        send(&mut ports[0], &group, Fcs::Good);
        {
            let fabric = ports[0].lock();
            let first = |port: usize| &fabric.ports[port].lanes[0].queue[0];
            assert!((2..5).all(|port| Arc::ptr_eq(first(1), first(port))));
        }
        while !arrivals(&mut ports).is_empty() {}
        assert_eq!(ports[0].lock().spare.len(), 1, "the last who read it gives it back");
        for _ in 0..3 {
            send(&mut ports[1], &frame(9, 2), Fcs::Good);
            assert!(
                ports[1].reserve(4000).is_some_and(|bytes| bytes.iter().all(|byte| *byte != 0xa7))
            );
            ports[1].reserve(0);
        }
    }
}
