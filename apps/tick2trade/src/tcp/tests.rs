//! The client against smoltcp's server, over a network that loses, repeats and reorders; and
//! against segments that no honest peer sends.

use std::collections::BTreeMap;

use ferrocx_net::ether::MacAddr;
use ferrocx_net::packet::{Headers, Packet, Transport};
use proptest::prelude::*;
use smoltcp::iface::{Interface, SocketHandle, SocketSet};
use smoltcp::phy::Medium;
use smoltcp::socket::tcp as stranger;
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};

use super::*;
use crate::exchange::card::Card;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;
/// Time on the wire, one way.
const WIRE: u64 = 50 * US;

fn ends() -> (SocketAddr, SocketAddr) {
    ("192.0.2.1:40000".parse().unwrap(), "192.0.2.2:9000".parse().unwrap())
}

const MACS: (MacAddr, MacAddr) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
/// Bytes in front of an IP packet.
const ETHERNET: usize = 14;

fn config() -> Config {
    Config::new((MACS.0, ends().0), (MACS.1, ends().1))
}

/// What a network does to the nth segment of a direction.
#[derive(Debug, Clone, Copy, Default)]
struct Fate {
    lost: bool,
    twice: bool,
    later_ns: u64,
}

/// Packets on their way, by the time at which they arrive.
#[derive(Default)]
struct Pipe {
    packets: BTreeMap<(u64, usize), Vec<u8>>,
    fates: Vec<Fate>,
    sent: usize,
}

impl Pipe {
    fn send(&mut self, now: u64, packet: Vec<u8>) {
        let fate = self.fates.get(self.sent).copied().unwrap_or_default();
        self.sent += 1;
        if !fate.lost {
            self.packets.insert((now + WIRE + fate.later_ns, self.sent), packet.clone());
        }
        if fate.twice {
            self.packets.insert((now + 3 * WIRE, self.sent), packet);
        }
    }

    fn next_at(&self) -> Option<u64> {
        self.packets.first_key_value().map(|(&(at, _), _)| at)
    }

    fn receive(&mut self, now: u64) -> Option<Vec<u8>> {
        (self.next_at()? <= now).then(|| self.packets.pop_first().unwrap().1)
    }
}

/// A client of ours, a server of smoltcp's, and what each has received.
struct World {
    now: u64,
    client: Client,
    there: Pipe,
    back: Pipe,
    device: Card,
    interface: Interface,
    sockets: SocketSet<'static>,
    server: SocketHandle,
    client_heard: Vec<u8>,
    server_heard: Vec<u8>,
    /// The server reads what came.
    reads: bool,
}

impl World {
    fn new(config: Config, there: Vec<Fate>, back: Vec<Fate>, server_window: usize) -> Self {
        let mut device = Card::new(Medium::Ip);
        let setup = smoltcp::iface::Config::new(HardwareAddress::Ip);
        let mut interface = Interface::new(setup, &mut device, Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(IpAddress::v4(192, 0, 2, 2), 24)).unwrap();
        });
        let buffer = |size| stranger::SocketBuffer::new(vec![0; size]);
        let mut socket = stranger::Socket::new(buffer(server_window), buffer(65_536));
        socket.listen(9000).unwrap();
        // Linux acknowledges at once in the beginning, too.
        socket.set_ack_delay(None);
        let mut sockets = SocketSet::new(Vec::new());
        let server = sockets.add(socket);
        let mut there = Pipe { fates: there, ..Pipe::default() };
        let client =
            Client::connect(config, Seq(u32::MAX - 500), 0, |frame| there.send(0, frame.to_vec()))
                .unwrap();
        Self {
            now: 0,
            client,
            there,
            back: Pipe { fates: back, ..Pipe::default() },
            device,
            interface,
            sockets,
            server,
            client_heard: Vec::new(),
            server_heard: Vec::new(),
            reads: true,
        }
    }

    fn socket(&mut self) -> &mut stranger::Socket<'static> {
        self.sockets.get_mut(self.server)
    }

    /// Everything that is due now.
    fn step(&mut self) {
        let now = self.now;
        let instant = Instant::from_micros((now / US) as i64);
        loop {
            self.device.arrived = self.there.receive(now).map(|mut f| f.split_off(ETHERNET));
            let arrived = self.device.arrived.is_some();
            self.interface.poll(instant, &mut self.device, &mut self.sockets);
            for packet in self.device.sent.drain(..) {
                let header = [&MACS.0.0[..], &MACS.1.0, &[0x08, 0x00]].concat();
                self.back.send(now, [header, packet].concat());
            }
            if !arrived {
                break;
            }
        }
        let reads = self.reads;
        let heard = &mut self.server_heard;
        let socket = self.sockets.get_mut::<stranger::Socket<'_>>(self.server);
        while reads && socket.can_recv() {
            socket.recv(|bytes| (bytes.len(), heard.extend_from_slice(bytes))).unwrap();
        }
        while let Some(frame) = self.back.receive(now) {
            let there = &mut self.there;
            let heard = &mut self.client_heard;
            let packet = Packet::parse(&frame).unwrap();
            assert!(packet.is_intact());
            self.client.receive(
                &packet,
                now,
                |bytes| heard.extend_from_slice(bytes),
                |frame| there.send(now, frame.to_vec()),
            );
        }
        let there = &mut self.there;
        self.client.poll(now, |frame| there.send(now, frame.to_vec()));
    }

    /// Goes on to the next time at which anything happens; at most a millisecond on.
    fn advance(&mut self) {
        let instant = Instant::from_micros((self.now / US) as i64);
        let server = self.interface.poll_at(instant, &self.sockets);
        let server = server.map(|at| at.total_micros() as u64 * US);
        let times = [self.there.next_at(), self.back.next_at(), self.client.poll_at(), server];
        let next = times.into_iter().flatten().min().unwrap_or(u64::MAX);
        self.now = next.clamp(self.now + US, self.now + MS);
        self.step();
    }

    /// Runs until `done`, at most a minute of the network's time, and steps enough for that: an end
    /// whose time is always now makes them a microsecond long.
    fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let (end, mut steps) = (self.now + 60 * S, 0);
        self.step();
        while !done(self) {
            let (state, stats) = (self.client.state(), self.client.stats());
            let peer = self.socket().state();
            let is_in_time = self.now < end && steps < 200_000;
            assert!(is_in_time, "not done: {state:?} {stats:?}, the peer: {peer:?}");
            self.advance();
            steps += 1;
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        let (now, there) = (self.now, &mut self.there);
        self.client.send(bytes, now, |frame| there.send(now, frame.to_vec()))
    }

    fn close(&mut self) {
        let (now, there) = (self.now, &mut self.there);
        self.client.close(now, |frame| there.send(now, frame.to_vec()));
    }

    fn open(&mut self) {
        self.until(|w| w.client.state() == State::Established && w.socket().may_recv());
    }
}

fn lost() -> Fate {
    Fate { lost: true, ..Fate::default() }
}

#[test]
fn bytes_go_both_ways_and_both_ends_close() {
    let mut world = World::new(config(), vec![], vec![], 65_536);
    world.open();
    world.send(b"order").unwrap();
    world.until(|w| w.server_heard == b"order");
    world.socket().send_slice(b"accepted").unwrap();
    world.until(|w| w.client_heard == b"accepted" && w.client.unacknowledged() == 0);
    world.close();
    world.until(|w| w.client.state() == State::FinWait && !w.socket().may_recv());
    world.socket().send_slice(b" last").unwrap();
    world.socket().close();
    world.until(|w| w.client.state() == State::TimeWait);
    assert_eq!(world.client_heard, b"accepted last");
    world.until(|w| w.client.state() == State::Closed(Closed::Done));
    assert!(!world.socket().is_open());
    assert_eq!(world.client.stats().refused, 0);
}

#[test]
fn a_peer_that_closes_first_is_heard_out() {
    let mut world = World::new(config(), vec![], vec![], 65_536);
    world.open();
    world.socket().close();
    world.until(|w| w.client.state() == State::CloseWait);
    world.send(b"still there").unwrap();
    world.until(|w| w.server_heard == b"still there");
    world.close();
    world.until(|w| w.client.state() == State::Closed(Closed::Done));
}

/// The figure: 5 ms at a round trip of 100 us.
#[test]
fn a_lone_lost_order_is_sent_again_within_5_ms() {
    // SYN, ACK, four orders; the fifth is lost.
    let fates = [vec![Fate::default(); 6], vec![lost()]].concat();
    let mut world = World::new(config(), fates, vec![], 65_536);
    world.open();
    for order in 0..4_u8 {
        world.send(&[order]).unwrap();
        world.until(|w| w.client.unacknowledged() == 0);
    }
    let sent_at = world.now;
    world.send(b"x").unwrap();
    world.until(|w| w.server_heard == [0, 1, 2, 3, b'x']);
    let took = world.now - sent_at;
    assert!(took <= 5 * MS, "{took} ns");
    assert_eq!(world.client.stats().probes, 1);
}

#[test]
fn a_lost_probe_is_followed_by_a_timeout() {
    let fates = [vec![Fate::default(); 3], vec![lost(); 2]].concat();
    let mut world = World::new(config(), fates, vec![], 65_536);
    world.open();
    world.send(b"a").unwrap();
    world.until(|w| w.client.unacknowledged() == 0);
    world.send(b"b").unwrap();
    world.until(|w| w.server_heard == b"ab");
    assert_eq!((world.client.stats().probes, world.client.stats().timeouts), (1, 1));
}

#[test]
fn one_lost_of_many_is_found_by_duplicate_acknowledgments() {
    let fates = [vec![Fate::default(); 2], vec![lost()]].concat();
    let mut world = World::new(Config { min_probe_ns: S, ..config() }, fates, vec![], 65_536);
    world.open();
    for order in 0..6 {
        world.send(&[order]).unwrap();
    }
    world.until(|w| w.server_heard == [0, 1, 2, 3, 4, 5]);
    let stats = world.client.stats();
    assert_eq!((stats.fast, stats.timeouts, stats.probes), (1, 0, 0));
}

/// What comes behind a lost order waits at the peer until that comes again: its acknowledgment says
/// how long the repair took, and the next lost order is not to wait for that.
#[test]
fn a_repair_is_no_round_trip() {
    let fates = [vec![Fate::default(); 3], vec![lost()]].concat();
    let mut world = World::new(Config { min_probe_ns: S, ..config() }, fates, vec![], 65_536);
    world.open();
    for order in 0..3 {
        world.send(&[order]).unwrap();
        if order == 0 {
            world.until(|w| w.client.unacknowledged() == 0);
        }
    }
    world.until(|w| w.client.unacknowledged() == 0);
    assert_eq!((world.server_heard.as_slice(), world.client.stats().timeouts), (&[0, 1, 2][..], 1));
    // One back-off, which the next round trip takes back.
    assert_eq!(world.client.rtt.smoothed_ns(), Some(2 * WIRE));
    world.send(&[3]).unwrap();
    world.until(|w| w.client.unacknowledged() == 0);
    assert_eq!(world.client.rtt.timeout_ns(), world.client.config().min_timeout_ns);
}

#[test]
fn a_full_window_refuses_and_its_update_is_asked_for() {
    let mut world = World::new(config(), vec![], vec![], 1000);
    world.open();
    world.reads = false;
    world.send(&[1; 1000]).unwrap();
    assert_eq!(world.send(b"x"), Err(Refused::Window));
    assert_eq!(world.client.template().room, 0);
    world.until(|w| w.client.unacknowledged() == 0);
    assert_eq!(world.send(b"x"), Err(Refused::Window));
    // The server reads, and what it says of it is lost: three times.
    let sent = world.back.sent;
    world.back.fates = [vec![Fate::default(); sent], vec![lost(); 3]].concat();
    world.reads = true;
    world.until(|w| w.send(b"x").is_ok());
    world.until(|w| w.server_heard.len() == 1001);
}

#[test]
fn what_was_sent_beside_the_client_is_sent_again_by_it() {
    let mut world = World::new(config(), vec![], vec![], 65_536);
    world.open();
    let template = world.client.template();
    assert_eq!((template.sequence, template.room), (world.client.next.0, 1460));
    // The hot path built it from the template, and the network lost it.
    let now = world.now;
    world.client.sent_beside(b"order", now).unwrap();
    world.until(|w| w.server_heard == b"order");
    assert_eq!(world.client.stats().probes, 1);
}

#[test]
fn a_peer_that_never_closes_is_given_up() {
    let mut world = World::new(config(), vec![], vec![], 65_536);
    world.open();
    world.close();
    world.until(|w| w.client.state() == State::FinWait && w.client.unacknowledged() == 0);
    let closed_at = world.now;
    world.until(|w| w.client.state() == State::Closed(Closed::Silent));
    assert!((15 * S..16 * S).contains(&(world.now - closed_at)));
}

#[test]
fn a_port_that_nobody_listens_on_refuses() {
    let remote = "192.0.2.2:9001".parse().unwrap();
    let mut world = World::new(Config { remote, ..config() }, vec![], vec![], 1000);
    world.until(|w| matches!(w.client.state(), State::Closed(_)));
    assert_eq!(world.client.state(), State::Closed(Closed::Refused));
}

#[test]
fn a_peer_that_says_nothing_is_given_up() {
    let mut world = World::new(config(), vec![lost(); 100], vec![], 1000);
    world.until(|w| matches!(w.client.state(), State::Closed(_)));
    assert_eq!(world.client.state(), State::Closed(Closed::Silent));
    assert!((15 * S..16 * S).contains(&world.now));
}

/// A segment of the server's, with its number and acknowledgment relative to what is expected.
fn forge(client: &Client, flags: u8, sequence: i32, acknowledgment: i32, bytes: &[u8]) -> Vec<u8> {
    let acknowledgment = client.next.0.wrapping_add_signed(acknowledgment);
    let headers = Headers {
        source: ends().1,
        destination: ends().0,
        transport: Transport::Tcp {
            sequence: client.expected.0.wrapping_add_signed(sequence),
            acknowledgment: if flags & ACK == 0 { 0 } else { acknowledgment },
            flags,
            window: 1000,
            max_segment: None,
        },
        ..config().headers()
    };
    let mut frame = vec![0; headers.len_bytes()];
    frame.extend(bytes);
    headers.write(&mut frame).unwrap();
    frame
}

/// The flags of a frame.
fn flags_of(frame: &[u8]) -> u8 {
    frame[Packet::parse(frame).unwrap().transport_at() + 13]
}

/// What an open client says to a forged segment: flags of its answers, and its state.
fn answers(flags: u8, sequence: i32, acknowledgment: i32, bytes: &[u8]) -> (Vec<u8>, State) {
    let mut world = World::new(config(), vec![], vec![], 1000);
    world.open();
    let segment = forge(&world.client, flags, sequence, acknowledgment, bytes);
    let mut said = Vec::new();
    world.client.receive(
        &Packet::parse(&segment).unwrap(),
        world.now,
        |bytes| panic!("{bytes:?} delivered"),
        |frame| said.push(flags_of(frame)),
    );
    (said, world.client.state())
}

#[test]
fn a_reset_counts_only_at_the_very_next_place() {
    assert_eq!(answers(RST, 0, 0, b""), (vec![], State::Closed(Closed::Reset)));
    assert_eq!(answers(RST, 1, 0, b""), (vec![ACK], State::Established));
    assert_eq!(answers(RST, 70_000, 0, b""), (vec![], State::Established));
}

#[test]
fn what_a_stranger_could_send_is_challenged() {
    assert_eq!(answers(SYN, 0, 0, b""), (vec![ACK], State::Established));
    assert_eq!(answers(ACK, 0, 1, b"x"), (vec![ACK], State::Established));
    assert_eq!(answers(ACK, 0, -70_000, b"x"), (vec![ACK], State::Established));
    assert_eq!(answers(0, 0, 0, b"x"), (vec![], State::Established));
    assert_eq!(answers(ACK, -5, 0, b"old"), (vec![ACK], State::Established));
    assert_eq!(answers(ACK, 70_000, 0, b"far"), (vec![ACK], State::Established));
}

/// The end of a peer of which the last bytes were lost: it repeats them the sooner.
#[test]
fn an_end_behind_a_hole_is_acknowledged_at_once() {
    assert_eq!(answers(ACK | FIN, 5, 0, b""), (vec![ACK], State::Established));
    assert_eq!(answers(ACK | FIN, 5, 0, b"last"), (vec![ACK], State::Established));
    assert_eq!(answers(ACK | FIN, 0, 0, b""), (vec![ACK], State::CloseWait));
}

#[test]
fn who_closes_before_it_is_open_waits_for_nothing() {
    let mut client = Client::connect(config(), Seq(0), 0, |_| ()).unwrap();
    client.close(0, |_| panic!("nobody is there to hear of it"));
    assert_eq!((client.state(), client.poll_at()), (State::Closed(Closed::Aborted), None));
    client.poll(60 * S, |_| panic!("it is over"));
}

#[test]
fn challenges_are_ten_a_second() {
    let mut world = World::new(config(), vec![], vec![], 1000);
    world.open();
    let mut said = 0;
    let segment = forge(&world.client, SYN, 0, 0, b"");
    for now in [world.now, world.now, world.now + S] {
        for _ in 0..20 {
            let segment = Packet::parse(&segment).unwrap();
            world.client.receive(&segment, now, |_| (), |_| said += 1);
        }
    }
    assert_eq!(said, 20);
}

/// What of an old connection comes from the peer ends it there; what comes from others does not.
#[test]
fn a_connection_that_is_no_more_is_reset_where_the_peer_stands() {
    let mut world = World::new(config(), vec![], vec![], 1000);
    world.open();
    let with = |flags: u8, ends: (SocketAddr, SocketAddr), bytes: &[u8]| {
        let transport = Transport::Tcp {
            sequence: 700,
            acknowledgment: if flags & ACK == 0 { 0 } else { 900 },
            flags,
            window: 1000,
            max_segment: None,
        };
        let (source, destination) = ends;
        let headers = Headers { source, destination, transport, ..config().headers() };
        let mut frame = vec![0; headers.len_bytes()];
        frame.extend(bytes);
        headers.write(&mut frame).unwrap();
        frame
    };
    let said = |client: &mut Client, now, frame: &[u8]| {
        let mut said = Vec::new();
        let packet = Packet::parse(frame).unwrap();
        client.receive(&packet, now, |_| panic!("delivered"), |frame| said.push(frame.to_vec()));
        said.into_iter()
            .map(|frame| {
                let packet = Packet::parse(&frame).unwrap();
                assert_eq!(packet.destination(), ends().1);
                let segment = packet.tcp().unwrap();
                let flags = flags_of(&frame);
                (packet.source().port(), flags, segment.sequence(), segment.acknowledgment())
            })
            .collect::<Vec<_>>()
    };
    let (old, peer) = (SocketAddr::new(ends().0.ip(), 39_999), ends().1);
    let client = &mut world.client;
    assert_eq!(said(client, S, &with(ACK, (peer, old), b"beat")), [(39_999, RST, 900, None)]);
    let end = Some(700 + 1 + 4);
    assert_eq!(said(client, S, &with(FIN, (peer, old), b"beat")), [(39_999, ACK | RST, 0, end)]);
    assert_eq!(said(client, S, &with(RST, (peer, old), b"")), []);
    let other = SocketAddr::new(peer.ip(), 9_001);
    assert_eq!(said(client, S, &with(ACK, (other, old), b"")), []);
    let elsewhere = SocketAddr::new("192.0.2.9".parse().unwrap(), 40_000);
    assert_eq!(said(client, S, &with(ACK, (peer, elsewhere), b"")), []);
    assert_eq!(client.state(), State::Established);
    let beats = (0..20).map(|_| said(client, 2 * S, &with(ACK, (peer, old), b"beat")).len());
    assert_eq!(beats.sum::<usize>(), 10, "ten a second");
    // Its own, once it is over.
    client.abort(|_| ());
    let own = said(client, 3 * S, &with(ACK, (peer, ends().0), b"beat"));
    assert_eq!(own, [(40_000, RST, 900, None)]);
}

/// Old segments, of a peer that missed what they were acknowledged by: it hears at once, and of
/// many once more.
#[test]
fn what_comes_again_is_acknowledged_ten_times_a_second_and_once_behind_that() {
    let mut world = World::new(config(), vec![], vec![], 1000);
    world.open();
    let old = forge(&world.client, ACK, -5, 0, b"old");
    let now = world.now + S;
    let mut said = 0;
    for _ in 0..50 {
        world.client.receive(&Packet::parse(&old).unwrap(), now, |_| (), |_| said += 1);
    }
    assert_eq!(said, 10);
    assert!(world.client.poll_at().is_some_and(|at| at <= now + 100 * MS));
    world.client.poll(now + 100 * MS, |frame| {
        assert_eq!(flags_of(frame), ACK);
        said += 1;
    });
    assert_eq!(said, 11);
    assert!(world.client.poll_at().is_none_or(|at| at > now + S));
}

/// A peer that takes nothing for a long time is asked, and ever more seldom.
#[test]
fn a_window_that_stays_closed_is_asked_for_ever_more_seldom() {
    let mut world = World::new(config(), vec![], vec![], 1000);
    world.open();
    let closed = Headers {
        source: ends().1,
        destination: ends().0,
        transport: Transport::Tcp {
            sequence: world.client.expected.0,
            acknowledgment: world.client.next.0,
            flags: ACK,
            window: 0,
            max_segment: None,
        },
        ..config().headers()
    };
    let mut frame = vec![0; closed.len_bytes()];
    closed.write(&mut frame).unwrap();
    world.client.receive(&Packet::parse(&frame).unwrap(), world.now, |_| (), |_| ());
    assert_eq!(world.client.send(b"order", world.now, |_| ()), Err(Refused::Window));
    let (mut now, mut asked) = (world.now, vec![world.now]);
    while now < 100 * S {
        now = world.client.poll_at().unwrap();
        world.client.poll(now, |_| asked.push(now));
    }
    let waits: Vec<_> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits[0] < 10 * MS && waits.len() < 25, "{waits:?}");
    assert!(waits.windows(2).all(|pair| pair[1] == (2 * pair[0]).min(10 * S)), "{waits:?}");
}

#[test]
fn bad_configurations_say_what_is_possible() {
    let why = |config| Client::connect(config, Seq(0), 0, |_| panic!()).unwrap_err().to_string();
    let remote = "[2001:db8::1]:9000".parse().unwrap();
    assert_eq!(
        why(Config { remote, ..config() }),
        "192.0.2.1 and 2001:db8::1 are addresses of two families"
    );
    assert_eq!(
        why(Config { max_segment: 63, ..config() }),
        "segments of 63 bytes; 64 to 65495 are possible"
    );
    assert_eq!(why(Config { window: 0, ..config() }), "window is 0; at least 1 is needed");
    assert_eq!(
        why(Config { min_timeout_ns: 2, max_timeout_ns: 1, ..config() }),
        "timeouts from 2 to 1 ns; the first has to be the smaller, and not 0"
    );
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let fate = (0_u8..10, 0_u8..10, 0_u64..6).prop_map(|(lost, twice, later)| Fate {
        lost: lost == 0,
        twice: twice == 0,
        later_ns: later.saturating_sub(3) * 40 * US,
    });
    prop::collection::vec(fate, 0..300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// Through loss, repetition and reordering in both directions every byte arrives, once and in
    /// order, and both ends close.
    #[test]
    fn every_byte_arrives_once_and_in_order(
        there in fates(), back in fates(), window in 300_usize..8000,
        pieces in prop::collection::vec(1_usize..700, 1..60),
    ) {
        // No plan of losses is longer than its patience: smoltcp says only once a second what it
        // has had twice, and each of the timeouts in between is twice as long.
        let patient = Config { max_timeout_ns: 100 * MS, give_up_ns: 50 * S, ..config() };
        let mut world = World::new(patient, there, back, window);
        world.open();
        let mut expected: Vec<u8> = Vec::new();
        for (byte, len) in (0_u8..).zip(pieces) {
            let len = len.min(window);
            let bytes: Vec<u8> = (0..len).map(|at| byte.wrapping_add(at as u8)).collect();
            world.until(|w| w.send(&bytes).is_ok());
            expected.extend(&bytes);
            let room = world.socket().send_capacity() - world.socket().send_queue();
            prop_assert!(room >= bytes.len());
            world.socket().send_slice(&bytes).unwrap();
        }
        world.until(|w| w.server_heard.len() == expected.len());
        world.until(|w| w.client_heard.len() == expected.len());
        prop_assert!(world.server_heard == expected);
        prop_assert!(world.client_heard == expected);
        // smoltcp 0.12 does not always repeat a FIN that is lost: then it is given up.
        world.close();
        world.until(|w| !w.socket().may_recv());
        world.socket().close();
        world.until(|w| matches!(w.client.state(), State::Closed(Closed::Done | Closed::Silent)));
        prop_assert_eq!(world.client.unacknowledged(), 0);
    }

    /// No segment makes it panic.
    #[test]
    fn any_bytes_are_taken_or_refused(segments: Vec<Vec<u8>>, flags: Vec<(u8, i32, i32)>) {
        let mut world = World::new(config(), vec![], vec![], 1000);
        world.open();
        for bytes in &segments {
            // Headers of ours, and behind them anything.
            let mut frame = forge(&world.client, ACK, 0, 0, b"");
            frame.splice(ETHERNET + 20 + 12.., bytes.iter().copied());
            let len = frame.len() as u16 - ETHERNET as u16;
            frame[ETHERNET + 2..][..2].copy_from_slice(&len.to_be_bytes());
            if let Ok(packet) = Packet::parse(&frame) {
                world.client.receive(&packet, world.now, |_| (), |_| ());
            }
        }
        for (flags, sequence, acknowledgment) in flags {
            let (sequence, acknowledgment) = (sequence % 100_000, acknowledgment % 1000);
            let segment = forge(&world.client, flags, sequence, acknowledgment, b"bytes");
            let segment = Packet::parse(&segment).unwrap();
            world.client.receive(&segment, world.now, |_| (), |_| ());
        }
    }
}
