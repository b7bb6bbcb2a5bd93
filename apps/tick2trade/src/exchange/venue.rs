//! An exchange at the end of a wire: its feed on two groups, a server of lost messages, and order
//! entry over TCP.
//!
//! Its own protocols, ARP and TCP included, are smoltcp's: a stranger's, so that what trades with
//! it has met code that was written by others.

use std::collections::HashMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use ferrocx::model::wire::{Fcs, SplitMix64, Wire};
use ferrocx_net::ether::MacAddr;
use ferrocx_net::packet::{Headers, Packet, Transport};
use hdrhistogram::Histogram;
use smoltcp::iface::{self, Interface, SocketSet};
use smoltcp::phy::Medium;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};
use zerocopy::{FromBytes, IntoBytes};

use super::card::Card;
use super::seat::{Change, Seat};
use super::{Account, Crowd, CrowdConfig, Exchange, ListedSecurity, MemberId, Output, Publisher};
use crate::latency;
use crate::proto::glimpse::SnapshotEnd;
use crate::proto::itch::{self, Message};
use crate::proto::{Side, Text, mold};

/// The longest packet of the feed: what fits an Ethernet frame behind IP and UDP.
const MAX_PACKET: usize = 1472;
/// Silence of the feed after which a heartbeat goes out, ns.
const HEARTBEAT_NS: u64 = 1_000_000_000;
/// Time between two looks at the connections while nothing comes, ns.
const LOOK_NS: u64 = 10_000;
/// The only member.
const MEMBER: MemberId = 0;

/// Where an exchange is found, and what it does.
#[derive(Debug, Clone)]
pub struct VenueConfig {
    /// Its station on the Ethernet.
    pub mac: MacAddr,
    /// Its address, on a subnet of 24 bits.
    pub address: Ipv4Addr,
    /// TCP port of order entry.
    pub orders_port: u16,
    /// TCP port of the server of snapshots.
    pub snapshots_port: u16,
    /// UDP port that lost messages are asked for at.
    pub requests_port: u16,
    /// Groups and ports of line A and line B.
    pub lines: [SocketAddrV4; 2],
    /// Name of the session.
    pub session: mold::Session,
    /// The member.
    pub user: Text<6>,
    /// Its password.
    pub password: Text<10>,
    /// Securities that are listed. The crowd trades in all but the last, in which
    /// [`Venue::offer`] offers.
    pub symbols: Vec<itch::Stock>,
    /// What the crowd does.
    pub crowd: CrowdConfig,
    /// Packets of each line that are lost on purpose, in a million.
    pub loss_ppm: [u32; 2],
    /// Packets of each line that come behind the next one, in a million.
    pub reorder_ppm: [u32; 2],
    /// What stands of the member is cancelled when its connection is lost.
    pub cancels_on_disconnect: bool,
    /// Bytes for a member that leave at a time, each time in a segment of their own.
    pub answer_bytes: usize,
    /// Snapshots, the first ones, whose session ends in their middle.
    pub halved_snapshots: u32,
    /// Orders of the member for which room is made at the start, and for four messages of the feed
    /// beside each: a table that grows, or memory that is touched for the first time, takes up to
    /// milliseconds, which would count as the trader's.
    pub room: usize,
}

impl Default for VenueConfig {
    /// 198.18.0.1, orders at 9000, requests at 9001, snapshots at 9002, lines at 239.1.1.1:26400
    /// and 239.1.1.2:26401, member `ferro`, nothing lost and all in order.
    fn default() -> Self {
        Self {
            mac: MacAddr([0x02, 0xe0, 0, 0, 0, 1]),
            address: Ipv4Addr::new(198, 18, 0, 1),
            orders_port: 9000,
            requests_port: 9001,
            snapshots_port: 9002,
            lines: [
                SocketAddrV4::new(Ipv4Addr::new(239, 1, 1, 1), 26_400),
                SocketAddrV4::new(Ipv4Addr::new(239, 1, 1, 2), 26_401),
            ],
            session: Text(*b"20261122  "),
            user: Text(*b"ferro "),
            password: Text::BLANK,
            symbols: [*b"AAPL    ", *b"MSFT    ", *b"NVDA    "].map(Text).to_vec(),
            crowd: CrowdConfig::default(),
            loss_ppm: [0; 2],
            reorder_ppm: [0; 2],
            cancels_on_disconnect: false,
            answer_bytes: usize::MAX,
            halved_snapshots: 0,
            room: 0,
        }
    }
}

/// What an exchange counted.
#[derive(Debug, Clone)]
pub struct VenueStats {
    /// Messages of the feed.
    pub messages: u64,
    /// Packets of the feed that were lost on purpose.
    pub dropped: u64,
    /// Packets of the feed that came behind the next one on purpose.
    pub reordered: u64,
    /// Requests for lost messages that were answered.
    pub requests: u64,
    /// Orders and other requests of the member.
    pub orders: u64,
    /// Offers that were taken, wholly or in part.
    pub taken: u64,
    /// From an offer's packet on the wire to the frame with the order that takes it, ns.
    pub wire_to_wire: Histogram<u64>,
    /// When each of these began and how long it took, ns.
    pub times: Vec<(u64, u64)>,
}

/// An exchange at the end of a wire. It has no thread and no clock: [`Venue::poll`] does what is
/// due.
pub struct Venue<W> {
    config: VenueConfig,
    wire: W,
    exchange: Exchange,
    crowd: Crowd,
    publisher: Publisher,
    interface: Interface,
    sockets: SocketSet<'static>,
    orders: Seat,
    snapshots: Seat,
    /// Snapshots that were begun.
    begun: u32,
    card: Card,
    received: Vec<u8>,
    rng: [SplitMix64; 2],
    /// A packet of each line that goes behind the next one.
    held: [Option<Vec<u8>>; 2],
    /// Both lines lose everything.
    is_cut: bool,
    /// When each offer's packet went out.
    offers: HashMap<u64, u64>,
    spoke_ns: u64,
    /// When the connections are looked at again although nothing came.
    look_ns: u64,
    stats: VenueStats,
}

impl<W: fmt::Debug> fmt::Debug for Venue<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wire, exchange, stats, .. } = self;
        f.debug_struct("Venue")
            .field("wire", wire)
            .field("exchange", exchange)
            .field("stats", stats)
            .finish_non_exhaustive()
    }
}

impl<W: Wire> Venue<W> {
    /// An exchange whose day starts now.
    pub fn new(config: VenueConfig, wire: W, now_ns: u64) -> Self {
        let mut card = Card::new(Medium::Ethernet);
        let station = HardwareAddress::Ethernet(EthernetAddress(config.mac.0));
        let mut interface = Interface::new(iface::Config::new(station), &mut card, at(now_ns));
        interface.update_ip_addrs(|addresses| {
            let address = IpCidr::new(IpAddress::Ipv4(config.address), 24);
            // There is room for one.
            let _ = addresses.push(address);
        });
        let mut sockets = SocketSet::new(Vec::new());
        let mut seat =
            |port, room| Seat::new(account(&config, room), port, config.answer_bytes, &mut sockets);
        // An order has two answers: it is taken, and it trades.
        let orders = seat(config.orders_port, 2 * config.room);
        let snapshots = seat(config.snapshots_port, 0);
        let listed = config.symbols.iter().map(|&stock| ListedSecurity { stock }).collect();
        let crowded = config.symbols.len().saturating_sub(1).max(1);
        let seed = config.crowd.seed;
        let mut venue = Self {
            exchange: Exchange::with_room(listed, config.room),
            crowd: Crowd::new(config.crowd.clone(), crowded),
            publisher: Publisher::new(config.session, MAX_PACKET, 4 * config.room),
            interface,
            sockets,
            orders,
            snapshots,
            begun: 0,
            card,
            received: Vec::new(),
            rng: [1, 2].map(|line| SplitMix64::new(seed.wrapping_add(line))),
            held: [None, None],
            is_cut: false,
            offers: HashMap::new(),
            spoke_ns: now_ns,
            look_ns: now_ns,
            stats: VenueStats {
                messages: 0,
                dropped: 0,
                reordered: 0,
                requests: 0,
                orders: 0,
                taken: 0,
                wire_to_wire: latency::histogram(),
                times: Vec::with_capacity(config.room),
            },
            config,
            wire,
        };
        let mut out = Output::default();
        venue.exchange.open(1, now_ns, &mut out);
        venue.publish(out, now_ns);
        venue
    }

    /// The crowd does one thing.
    pub fn step(&mut self, now_ns: u64) {
        let mut out = Output::default();
        self.crowd.step(&mut self.exchange, now_ns, &mut out);
        self.publish(out, now_ns);
    }

    /// Somebody offers shares in the last security; when they are taken, it is known how long that
    /// took.
    pub fn offer(&mut self, shares: u32, price: u32, clock: impl Fn() -> u64) {
        let (locate, now_ns) = (self.config.symbols.len() as u16, clock());
        let mut out = Output::default();
        let reference =
            self.exchange.crowd_order(locate, Side::Sell, shares, price, now_ns, &mut out);
        // Read again: what the exchange does is not on the way.
        let now_ns = clock();
        self.offers.extend(reference.map(|reference| (reference, now_ns)));
        self.publish(out, now_ns);
    }

    /// The crowd does so much at once that `messages` messages come of it at least, and both lines
    /// lose every one.
    pub fn burst_loss(&mut self, messages: u64, now_ns: u64) {
        let mut out = Output::default();
        while (out.feed.len() as u64) < messages {
            self.crowd.step(&mut self.exchange, now_ns, &mut out);
        }
        self.is_cut = true;
        self.publish(out, now_ns);
        self.is_cut = false;
    }

    /// Says what the next message's number will be, as it does when nothing happens.
    pub fn heartbeat(&mut self, now_ns: u64) {
        let heartbeat = self.publisher.heartbeat();
        self.send_on_lines(&heartbeat, now_ns);
    }

    /// Takes what arrived and does what is due; returns whether anything arrived or was due. The
    /// time of a frame is that at which it is taken off the wire: what the exchange does with the
    /// one before is on its way.
    pub fn poll(&mut self, clock: impl Fn() -> u64) -> bool {
        let (mut is_busy, mut now_ns) = (false, clock());
        while let Some(frame) = self.wire.receive(now_ns) {
            (is_busy, now_ns) = (true, clock());
            self.received.clear();
            if frame.fcs == Fcs::Bad {
                continue;
            }
            self.received.extend_from_slice(frame.bytes);
            if !self.take_request(now_ns) {
                self.make_room(now_ns);
                self.card.arrived = Some(std::mem::take(&mut self.received));
                self.exchange_bytes(now_ns);
            }
        }
        // Nearly always nothing came: then a look at the wire is all, and the next is soon.
        if is_busy || now_ns >= self.look_ns {
            is_busy = true;
            self.look_ns = now_ns.saturating_add(LOOK_NS);
            self.exchange_bytes(now_ns);
        }
        if now_ns.saturating_sub(self.spoke_ns) >= HEARTBEAT_NS {
            is_busy = true;
            self.heartbeat(now_ns);
        }
        is_busy
    }

    /// Says that the day is over.
    pub fn end(&mut self, now_ns: u64) {
        let end = self.publisher.end_of_session();
        self.send_on_lines(&end, now_ns);
    }

    /// Tells the member that the session is over; its connection is closed behind that.
    pub fn dismiss(&mut self) {
        self.orders.dismiss();
    }

    /// Resets the member's connection.
    pub fn reset_member(&mut self, now_ns: u64) {
        self.orders.reset(&mut self.sockets);
        self.exchange_bytes(now_ns);
    }

    /// Bytes for a member that leave at a time, from now on; with 0 nothing does, as of an exchange
    /// that lives and does not answer.
    pub const fn set_answer_bytes(&mut self, bytes: usize) {
        self.orders.set_answer_bytes(bytes);
    }

    /// Has another station from now on, as the spare of a server that broke down.
    pub fn move_to(&mut self, mac: MacAddr) {
        self.config.mac = mac;
        self.interface.set_hardware_addr(HardwareAddress::Ethernet(EthernetAddress(mac.0)));
    }

    /// Forgets the last answers, as an exchange that went back to an older state of its own.
    pub fn forget_answers(&mut self, count: usize) {
        self.orders.account.forget(count);
    }

    /// Refuses so many logins of the member, as if his last session were not over yet.
    pub const fn refuse_logins(&mut self, count: u32) {
        self.orders.account.refuse_logins(count);
    }

    /// The wire that it is at the end of.
    pub const fn wire(&self) -> &W {
        &self.wire
    }

    /// Where it is, and what it does.
    pub const fn config(&self) -> &VenueConfig {
        &self.config
    }

    /// Whether the member is connected.
    pub const fn is_connected(&self) -> bool {
        self.orders.is_taken()
    }

    /// The market behind it.
    pub const fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    /// Every answer of the day.
    pub fn answers(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.orders.account.answers()
    }

    /// How many there are.
    pub const fn answered(&self) -> usize {
        self.orders.account.answered()
    }

    /// Messages that were sent.
    pub const fn sent(&self) -> usize {
        self.publisher.sent()
    }

    /// Forgets the times so far.
    pub fn forget_times(&mut self) {
        self.stats.wire_to_wire.reset();
        self.stats.times.clear();
    }

    /// What happened so far.
    pub const fn stats(&self) -> &VenueStats {
        &self.stats
    }

    /// Answers a request for lost messages, if the frame is one.
    fn take_request(&mut self, now_ns: u64) -> bool {
        let Ok(packet) = Packet::parse(&self.received) else { return false };
        let ours = SocketAddr::from((self.config.address, self.config.requests_port));
        if !packet.is_udp() || packet.destination() != ours {
            return false;
        }
        let header = mold::Header::read_from_bytes(packet.payload()).ok();
        let answer = header.and_then(|request| self.publisher.answer(&request));
        let mut mac = [0; 6];
        mac.copy_from_slice(&self.received[6..12]);
        if let Some(answer) = answer {
            let (from, to) = (packet.destination(), packet.source());
            self.stats.requests += 1;
            self.send_datagram(MacAddr(mac), from, to, &answer, now_ns);
        }
        true
    }

    /// Gives a seat to who connects anew and has its old one still.
    fn make_room(&mut self, now_ns: u64) {
        let Ok(packet) = Packet::parse(&self.received) else { return };
        self.snapshots.make_room(&mut self.sockets, &packet);
        if self.orders.make_room(&mut self.sockets, &packet) == Change::Left {
            self.member_left(now_ns);
        }
    }

    /// Looks who came and who went.
    fn listen(&mut self, now_ns: u64) {
        match self.orders.listen(&mut self.sockets) {
            Change::Taken => self.orders.account.connected(now_ns),
            Change::Left => self.member_left(now_ns),
            Change::None => {}
        }
        if self.snapshots.listen(&mut self.sockets) == Change::Taken {
            // Each snapshot is a session of its own: its first message is number 1.
            let (mut account, mut messages) = (account(&self.config, 0), self.snapshot(now_ns));
            self.begun += 1;
            if self.begun <= self.config.halved_snapshots {
                messages.truncate(messages.len() / 2);
            }
            messages.iter().for_each(|message| account.push(message));
            self.snapshots.open_again();
            account.connected(now_ns);
            self.snapshots.account = account;
        }
    }

    /// The books as they stand, and the number of the feed's message that comes next.
    fn snapshot(&self, now_ns: u64) -> Vec<Vec<u8>> {
        let mut messages = self.exchange.snapshot(now_ns);
        // 64 bits have 20 digits at most.
        let next = Text::number(self.publisher.sent() as u64 + 1).unwrap_or_default();
        messages.push(SnapshotEnd { kind: SnapshotEnd::KIND, next }.as_bytes().to_vec());
        messages
    }

    /// The member's connection is lost.
    fn member_left(&mut self, now_ns: u64) {
        if self.config.cancels_on_disconnect {
            let mut out = Output::default();
            self.exchange.disconnected(MEMBER, now_ns, &mut out);
            self.publish(out, now_ns);
        }
    }

    /// Lets smoltcp take its frame, and the exchange what came in it.
    fn exchange_bytes(&mut self, now_ns: u64) {
        self.interface.poll(at(now_ns), &mut self.card, &mut self.sockets);
        self.listen(now_ns);
        let mut out = Output::default();
        let Self { orders, snapshots, sockets, exchange, stats, offers, .. } = self;
        orders.receive(sockets, now_ns, |request| {
            let before = out.feed.len();
            exchange.request(MEMBER, request, now_ns, &mut out);
            stats.orders += 1;
            for message in &out.feed[before..] {
                if let Ok(Message::Executed(trade)) = Message::parse(message)
                    && let Some(since) = offers.remove(&trade.reference.get())
                {
                    let took = now_ns.saturating_sub(since);
                    stats.taken += 1;
                    stats.wire_to_wire.saturating_record(took);
                    stats.times.push((since, took));
                }
            }
        });
        snapshots.receive(sockets, now_ns, |_| ());
        if (1..=self.config.halved_snapshots).contains(&self.begun)
            && snapshots.account.has_sent_all()
        {
            snapshots.dismiss();
        }
        self.publish(out, now_ns);
        for seat in [&mut self.orders, &mut self.snapshots] {
            seat.send(&mut self.sockets, now_ns);
        }
        self.interface.poll(at(now_ns), &mut self.card, &mut self.sockets);
        for frame in std::mem::take(&mut self.card.sent) {
            self.send_frame(&frame, now_ns);
        }
        self.wire.flush(now_ns);
    }

    /// What the exchange said goes its ways.
    fn publish(&mut self, out: Output, now_ns: u64) {
        self.stats.messages += out.feed.len() as u64;
        out.feed.iter().for_each(|message| self.publisher.push(message));
        out.answers.iter().for_each(|(_, answer)| self.orders.account.push(answer));
        while let Some(packet) = self.publisher.next_packet(usize::MAX) {
            self.send_on_lines(&packet, now_ns);
        }
    }

    fn send_on_lines(&mut self, packet: &[u8], now_ns: u64) {
        self.spoke_ns = now_ns;
        for line in 0..2 {
            let is_lost = self.rng[line].chance(self.config.loss_ppm[line]);
            let is_late = self.rng[line].chance(self.config.reorder_ppm[line]);
            if is_lost || self.is_cut {
                self.stats.dropped += 1;
            } else if is_late && self.held[line].is_none() {
                self.stats.reordered += 1;
                self.held[line] = Some(packet.to_vec());
            } else {
                self.send_on_line(line, packet, now_ns);
                if let Some(late) = self.held[line].take() {
                    self.send_on_line(line, &late, now_ns);
                }
            }
        }
        self.wire.flush(now_ns);
    }

    fn send_on_line(&mut self, line: usize, packet: &[u8], now_ns: u64) {
        let from = SocketAddr::from((self.config.address, self.config.requests_port));
        let to = self.config.lines[line];
        self.send_datagram(MacAddr::of_ipv4_group(*to.ip()), from, to.into(), packet, now_ns);
    }

    fn send_datagram(
        &mut self,
        mac: MacAddr,
        from: SocketAddr,
        to: SocketAddr,
        payload: &[u8],
        now_ns: u64,
    ) {
        let headers = Headers {
            destination_mac: mac,
            source_mac: self.config.mac,
            vlan_tci: None,
            source: from,
            destination: to,
            hop_limit: 16,
            traffic_class: 0,
            transport: Transport::Udp,
        };
        let mut frame = vec![0; headers.len_bytes()];
        frame.extend(payload);
        if headers.write(&mut frame).is_ok() {
            self.send_frame(&frame, now_ns);
            self.wire.flush(now_ns);
        }
    }

    /// Sends a frame, padded to what an Ethernet carries; a wire that is full loses it.
    fn send_frame(&mut self, frame: &[u8], now_ns: u64) {
        let len = frame.len().max(60);
        if let Some(room) = self.wire.reserve(len) {
            room[..frame.len()].copy_from_slice(frame);
            room[frame.len()..len].fill(0);
            self.wire.commit(now_ns, Fcs::Good);
        }
    }
}

/// The member's account, without answers.
fn account(config: &VenueConfig, room: usize) -> Account {
    Account::new(config.user, config.password, config.session, room)
}

fn at(now_ns: u64) -> Instant {
    Instant::from_micros((now_ns / 1_000) as i64)
}
