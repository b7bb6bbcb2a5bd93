//! What all ports are plugged into: a switch with weather, and a place for frames of nobody.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex};

use ferrocx_model::roce::icrc::icrc;
use ferrocx_model::wire::{Fcs, Received, SplitMix64, Wire};

use crate::planted::{Bug, Planted};
use crate::sync::lock;

/// Time that a frame is on the way in good weather.
const FLIGHT_NS: u64 = 500;
/// Frames that wait for one port; more are lost, as in a full switch.
const MAX_WAITING: usize = 4096;
/// Emptied buffers that are kept for later frames.
const MAX_SPARE: usize = 1024;
/// A type of frames that nobody else sends. Source: IEEE 802, local experimental.
pub(crate) const EXPERIMENTAL: u16 = 0x88b5;
/// Offset of the EtherType, and of the first byte behind an Ethernet header.
const ETHERTYPE: usize = 12;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
/// Offset of UDP's destination port behind an IPv4 header without options. Source: RFC 768.
const UDP_DESTINATION: usize = 36;
/// Port of RoCEv2. Source: reference 7.1.
const ROCE_PORT: [u8; 2] = 4791_u16.to_be_bytes();
/// Offset of the base transport header of RoCEv2 over IPv4: what its ICRC protects whole.
const BTH: usize = 42;
/// Offset of the IPv4 header, and bytes of the ICRC at the end.
const IP: usize = 14;
const ICRC_BYTES: usize = 4;
/// Opcodes of a SEND in one packet, and of an atomic addition. Source: IBTA vol. 1, table 38.
const SEND_ONLY: u8 = 0x04;
const FETCH_ADD: u8 = 0x14;

/// What happens to the frames that a port sends, in parts of a million.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Weather {
    pub(crate) loss_ppm: u32,
    pub(crate) duplicate_ppm: u32,
    /// One bit changes, and the frame check sequence shows it.
    pub(crate) corrupt_ppm: u32,
    /// One bit changes behind the UDP header of a RoCE packet, and only the ICRC can show it.
    pub(crate) silent_ppm: u32,
    /// The frame is late, so that others overtake it.
    pub(crate) reorder_ppm: u32,
    /// All frames take this much longer.
    pub(crate) delay_ns: u64,
}

/// Frames that passed, and that met weather.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct EtherStats {
    pub(crate) sent: u64,
    pub(crate) lost: u64,
    pub(crate) duplicated: u64,
    pub(crate) corrupted: u64,
    pub(crate) reordered: u64,
    pub(crate) injected: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct Flight {
    due_ns: u64,
    /// Frames that are due together arrive as they were sent.
    order: u64,
    bytes: Vec<u8>,
    fcs: Fcs,
}

impl Ord for Flight {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.due_ns, self.order).cmp(&(other.due_ns, other.order))
    }
}

impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Default for Flight {
    fn default() -> Self {
        Self { due_ns: 0, order: 0, bytes: Vec::new(), fcs: Fcs::Good }
    }
}

#[derive(Debug, Default)]
struct Port {
    mac: [u8; 6],
    weather: Weather,
    arriving: BinaryHeap<Reverse<Flight>>,
    is_dark: bool,
    /// Its cable is out.
    is_out: bool,
}

#[derive(Debug)]
struct State {
    ports: Vec<Port>,
    random: SplitMix64,
    order: u64,
    spare: Vec<Vec<u8>>,
    stats: EtherStats,
    planted: Planted,
}

impl State {
    /// Puts a frame on its way to every port but `from` that should have it.
    fn deliver(&mut self, from: Option<usize>, due_ns: u64, bytes: &[u8], fcs: Fcs) {
        let group = bytes.first().is_some_and(|byte| byte & 1 != 0);
        for to in 0..self.ports.len() {
            let port = &mut self.ports[to];
            let is_meant = group || bytes.get(..6) == Some(&port.mac[..]);
            if from == Some(to) || !is_meant || port.is_dark || port.is_out {
                continue;
            }
            if port.arriving.len() >= MAX_WAITING {
                self.stats.lost += 1;
                continue;
            }
            let mut copy = self.spare.pop().unwrap_or_default();
            copy.clear();
            copy.extend_from_slice(bytes);
            self.order += 1;
            let order = self.order;
            self.ports[to].arriving.push(Reverse(Flight { due_ns, order, bytes: copy, fcs }));
        }
    }

    fn send(&mut self, from: usize, now_ns: u64, frame: &mut [u8], mut fcs: Fcs) {
        self.stats.sent += 1;
        let weather = self.ports[from].weather;
        if self.ports[from].is_out {
            return;
        }
        let mut due_ns = now_ns + FLIGHT_NS;
        let is_planted = self.planted != Planted::default();
        if weather == Weather::default() && !is_planted {
            return self.deliver(Some(from), due_ns, frame, fcs);
        }
        due_ns += weather.delay_ns;
        if self.random.chance(weather.loss_ppm) {
            self.stats.lost += 1;
            return;
        }
        if self.random.chance(weather.corrupt_ppm) {
            self.stats.corrupted += 1;
            self.flip(frame, 0);
            fcs = Fcs::Bad;
        }
        let is_wrong = self.planted.is(Bug::WrongFrame)
            && frame[ETHERTYPE..].starts_with(&EXPERIMENTAL.to_be_bytes());
        if is_wrong && self.random.chance(1_000) {
            self.flip(frame, ETHERTYPE + 2);
        }
        if is_roce(frame) && self.random.chance(weather.silent_ppm) {
            self.stats.corrupted += 1;
            self.flip(frame, BTH);
            if self.planted.is(Bug::UncheckedIcrc) {
                sign(frame);
            }
        }
        if self.random.chance(weather.reorder_ppm) {
            self.stats.reordered += 1;
            due_ns += self.random.below(20_000);
        }
        self.deliver(Some(from), due_ns, frame, fcs);
        if self.repeats(frame) {
            // The next packet number makes a repetition a request of its own.
            let psn = u32::from_be_bytes([0, frame[BTH + 9], frame[BTH + 10], frame[BTH + 11]]);
            frame[BTH + 9..BTH + 12].copy_from_slice(&(psn + 1).to_be_bytes()[1..]);
            sign(frame);
            self.deliver(Some(from), due_ns, frame, fcs);
        }
        if self.random.chance(weather.duplicate_ppm) {
            self.stats.duplicated += 1;
            let later = self.random.below(50_000);
            self.deliver(Some(from), due_ns + later, frame, fcs);
        }
    }

    /// Whether a card with a planted bug shall take this request twice.
    fn repeats(&mut self, frame: &[u8]) -> bool {
        let opcode = match self.planted {
            planted if planted.is(Bug::RepeatedSend) => SEND_ONLY,
            planted if planted.is(Bug::RepeatedAtomic) => FETCH_ADD,
            _ => return false,
        };
        is_roce(frame) && frame[BTH] == opcode && self.random.chance(10_000)
    }

    fn flip(&mut self, frame: &mut [u8], from: usize) {
        let bit = self.random.below((frame.len() - from) as u64 * 8) as usize;
        frame[from + bit / 8] ^= 1 << (bit % 8);
    }
}

/// Whether a frame is RoCEv2 over IPv4, with something behind its UDP header.
fn is_roce(frame: &[u8]) -> bool {
    frame.len() > BTH
        && frame[ETHERTYPE..ETHERTYPE + 2] == ETHERTYPE_IPV4
        && frame[UDP_DESTINATION..UDP_DESTINATION + 2] == ROCE_PORT
}

/// Gives a RoCE packet the ICRC that its bytes have now.
fn sign(frame: &mut [u8]) {
    let end = frame.len() - ICRC_BYTES;
    let crc = icrc(&frame[IP..end]).to_le_bytes();
    frame[end..].copy_from_slice(&crc);
}

/// The switch.
#[derive(Debug, Clone)]
pub(crate) struct Ether {
    state: Arc<Mutex<State>>,
}

impl Ether {
    /// One without ports, whose weather comes from `seed`.
    pub(crate) fn new(seed: u64, planted: Planted) -> Self {
        let state = State {
            ports: Vec::new(),
            random: SplitMix64::new(seed),
            order: 0,
            spare: Vec::new(),
            stats: EtherStats::default(),
            planted,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Adds the port of a device with this address.
    pub(crate) fn port(&self, mac: [u8; 6]) -> EtherPort {
        let mut state = lock(&self.state);
        state.ports.push(Port { mac, ..Port::default() });
        let index = state.ports.len() - 1;
        let (scratch, arrived) = (Vec::new(), Flight::default());
        EtherPort { index, state: Arc::clone(&self.state), scratch, reserved: 0, arrived }
    }

    /// Changes the weather of what a port sends.
    pub(crate) fn set_weather(&self, port: usize, change: impl FnOnce(&mut Weather)) {
        change(&mut lock(&self.state).ports[port].weather);
    }

    /// Takes the cable of a port out, and with it all that is on its way there; or puts it back.
    pub(crate) fn set_cable(&self, port: usize, is_in: bool) {
        let port = &mut lock(&self.state).ports[port];
        port.is_out = !is_in;
        if port.is_out {
            port.arriving.clear();
        }
    }

    /// Sends a frame that no port has sent.
    pub(crate) fn inject(&self, now_ns: u64, frame: &[u8]) {
        let mut state = lock(&self.state);
        state.stats.injected += 1;
        state.deliver(None, now_ns + FLIGHT_NS, frame, Fcs::Good);
    }

    pub(crate) fn stats(&self) -> EtherStats {
        lock(&self.state).stats
    }
}

/// One port of the switch, as a model sees it.
#[derive(Debug)]
pub(crate) struct EtherPort {
    index: usize,
    state: Arc<Mutex<State>>,
    scratch: Vec<u8>,
    reserved: usize,
    /// The frame that was taken last.
    arrived: Flight,
}

impl Wire for EtherPort {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.scratch.len() < len {
            self.scratch.resize(len, 0);
        }
        self.reserved = len;
        Some(&mut self.scratch[..len])
    }

    fn commit(&mut self, now_ns: u64, fcs: Fcs) {
        let frame = &mut self.scratch[..self.reserved];
        lock(&self.state).send(self.index, now_ns, frame, fcs);
    }

    fn receive(&mut self, now_ns: u64) -> Option<Received<'_>> {
        let mut state = lock(&self.state);
        let port = &mut state.ports[self.index];
        if port.arriving.peek().is_none_or(|flight| flight.0.due_ns > now_ns) {
            return None;
        }
        let flight = port.arriving.pop()?.0;
        let before = std::mem::replace(&mut self.arrived, flight);
        if state.spare.len() < MAX_SPARE {
            state.spare.push(before.bytes);
        }
        Some(Received { bytes: &self.arrived.bytes, fcs: self.arrived.fcs })
    }

    fn carrier(&self) -> bool {
        !lock(&self.state).ports[self.index].is_out
    }

    fn set_transmitter(&mut self, is_on: bool) {
        let mut state = lock(&self.state);
        let port = &mut state.ports[self.index];
        port.is_dark = !is_on;
        if port.is_dark {
            port.arriving.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACS: [[u8; 6]; 3] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 3]];

    fn send(port: &mut EtherPort, to: [u8; 6], tag: u8, now_ns: u64) {
        let frame = port.reserve(60).expect("room");
        frame.fill(tag);
        frame[..6].copy_from_slice(&to);
        port.commit(now_ns, Fcs::Good);
    }

    fn tags(port: &mut EtherPort, now_ns: u64) -> Vec<u8> {
        std::iter::from_fn(|| port.receive(now_ns).map(|frame| frame.bytes[59])).collect()
    }

    #[test]
    fn frames_go_where_they_should_in_order_and_not_before_their_time() {
        let ether = Ether::new(1, Planted::default());
        let [mut a, mut b, mut c] = MACS.map(|mac| ether.port(mac));
        send(&mut a, MACS[1], 1, 0);
        send(&mut a, [0xff; 6], 2, 0);
        send(&mut c, MACS[1], 3, 10);
        assert_eq!(tags(&mut b, FLIGHT_NS - 1), Vec::<u8>::new());
        assert_eq!(tags(&mut b, FLIGHT_NS + 10), [1, 2, 3]);
        assert_eq!((tags(&mut c, 1 << 20), tags(&mut a, 1 << 20)), (vec![2], vec![]));
    }

    #[test]
    fn a_port_without_its_cable_hears_nothing_and_is_not_heard() {
        let ether = Ether::new(1, Planted::default());
        let [mut a, mut b, _] = MACS.map(|mac| ether.port(mac));
        send(&mut a, MACS[1], 1, 0);
        ether.set_cable(1, false);
        assert!(a.carrier() && !b.carrier());
        send(&mut a, MACS[1], 2, 0);
        send(&mut b, MACS[0], 3, 0);
        ether.set_cable(1, true);
        send(&mut a, MACS[1], 4, 0);
        assert_eq!((tags(&mut b, 1 << 20), tags(&mut a, 1 << 20)), (vec![4], vec![]));
    }

    #[test]
    fn weather_is_a_port_s_own_and_comes_from_the_seed() {
        let seen = |seed| {
            let ether = Ether::new(seed, Planted::default());
            let [mut a, mut b, _] = MACS.map(|mac| ether.port(mac));
            ether.set_weather(0, |weather| {
                *weather = Weather { loss_ppm: 500_000, duplicate_ppm: 100_000, ..*weather };
            });
            (0..100).for_each(|tag| send(&mut a, MACS[1], tag, 0));
            send(&mut b, MACS[0], 7, 0);
            assert_eq!(tags(&mut a, 1 << 20), [7]);
            tags(&mut b, 1 << 20)
        };
        assert_eq!(seen(5), seen(5));
        assert_ne!(seen(5), seen(6));
        assert!((20..90).contains(&seen(5).len()));
    }
}
