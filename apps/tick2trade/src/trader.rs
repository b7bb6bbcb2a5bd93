//! The engine on queues: both lines of a feed, lost messages, order entry, on one core.
//!
//! | queue | what its rule takes |
//! |---|---|
//! | line A, line B | UDP to the line's group and port |
//! | answers | UDP to our port for lost messages, from the server of them |
//! | orders | TCP from the exchange's order entry |
//! | snapshot | TCP from the exchange's server of snapshots, for who came late or lost messages |
//!
//! Nothing else reaches them. [`Trader::poll`] looks at each in turn; what a frame leads to is done
//! before the next is looked at. ARP and the reports that keep the groups coming are
//! [`Network`]'s, whose turn comes when there is time.

mod frames;
mod measured;
mod operation;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use ferrocx::MacAddr;
use ferrocx::net::packet::{Headers, HeadersError, Transport};
use ferrocx::verbs::net::{NetConfig, NetError, Network};
use ferrocx::verbs::{GidConfig, RdmaContext, VerbsError};
use ferrocx::{
    Clock, DeviceError, FlowMatch, Mbuf, Port, RxQueue, RxQueueConfig, TimeBase, TxQueue,
    TxQueueConfig,
};
use thiserror::Error;
use zerocopy::IntoBytes;

pub use self::frames::{BadFrame, Dropped, feed_frame};
use self::frames::{answer_frame, read, tcp_from, udp_to};
use self::measured::note_came;
pub use self::operation::Closing;
use crate::engine::{self, Engine, EngineConfig};
use crate::feed::{Request, Source, Start};
use crate::gateway::{Gateway, GatewayConfig, GatewayState};
use crate::latency::now_ns;
use crate::orders::LOOKS;
use crate::proto::Text;
use crate::strategy::Strategy;
use crate::tcp;
use crate::timed::{Flights, Stages, Timed};

/// Time between two rehearsals of an order while nothing comes, ns: each takes some 100 ns, for
/// which a frame that comes has to wait.
const WARM_UP_NS: u64 = 10_000;
/// Time between two looks of the network and the clock, ns.
const HOUSE_NS: u64 = 1_000_000;
/// How much longer it may be while something comes all the time, ns.
const HOUSE_LATE_NS: u64 = 50_000_000;
const CLOCK_NS: u64 = 1_000_000_000;
/// Time from the end of a connection for orders to the next, ns.
const RETRY_NS: u64 = 100_000_000;
/// Time from one snapshot to the next, at least, and from one that broke off, ns: books that break
/// again and again are not to keep the server from others.
const SNAPSHOT_NS: u64 = 1_000_000_000;

/// Stamps of orders that left, kept until they are taken, which is when nothing comes.
const STAMPS: u32 = 64;

/// How long a server's station is believed; it is asked again before that.
const STATION_LIFETIME: Duration = Duration::from_secs(10);

/// Who trades where.
#[derive(Debug, Clone)]
pub struct TraderConfig {
    /// Our address.
    pub address: Ipv4Addr,
    /// Bits of it that name the subnet.
    pub prefix_len: u8,
    /// Where packets go that leave the subnet.
    pub gateway: Option<Ipv4Addr>,
    /// Groups and ports of line A and line B.
    pub lines: [SocketAddrV4; 2],
    /// The exchange's order entry.
    pub orders: SocketAddrV4,
    /// The exchange's server of snapshots: books that lost messages, or that one did not fit, are
    /// had from there anew. `None` leaves them suspect for the day.
    pub snapshots: Option<SocketAddrV4>,
    /// The first books, too, are had from there, and nothing of the day before is asked for.
    /// Otherwise the day is taken from its first message.
    pub joins_late: bool,
    /// The exchange's server of lost messages.
    pub requests: SocketAddrV4,
    /// Our UDP port, that its answers come to.
    pub answers_port: u16,
    /// The member.
    pub user: Text<6>,
    /// Its password.
    pub password: Text<10>,
    /// Silence of the exchange after which a connection counts as dead, ms. Usual is 15,000.
    pub timeout_ms: u64,
    /// Time that the exchange has to answer an order, a replacement or a cancel, ms. An answer that
    /// is overdue by up to a quarter of it ends in a mass cancel, and one to that in another
    /// connection. Usual is 2,000.
    pub answer_timeout_ms: u64,
    /// What stands of an earlier run when order entry opens for the first time is cancelled. Its
    /// strategy knows of it; the next one does not.
    pub cancels_at_start: bool,
    /// Absence of the core, ms, behind which what waits in the queues is old: nothing enters before
    /// they were empty. Usual is 10, and far below what the feed may be silent for.
    pub away_ms: u64,
    /// Feed, books, orders.
    pub engine: EngineConfig,
    /// Measure where the time goes; costs some reads of the clock for each order.
    pub measure: bool,
    /// Measure from wire to wire, too, by the device's stamps of the feed's frame and the order's:
    /// costs a completion for each order. Means [`TraderConfig::measure`].
    pub stamp_orders: bool,
}

/// Why a trader was not made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TraderError {
    /// The engine's part.
    #[error(transparent)]
    Engine(#[from] engine::ConfigError),
    /// What the device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The port has no RDMA context, which ARP and groups go by, or does not take the address.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The exchange's station was not found, or a group cannot be joined.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The connection's part.
    #[error(transparent)]
    Tcp(#[from] tcp::ConfigError),
    /// Addresses that are no pair.
    #[error(transparent)]
    Headers(#[from] HeadersError),
    /// Nobody to ask for the first books.
    #[error("a late join needs the address of a server of snapshots; give one, or join early")]
    NoSnapshots,
}

// ANCHOR: fed
/// A receive queue, and the rule that leads to it.
#[derive(Debug)]
struct Fed {
    rx: RxQueue,
    address: SocketAddr,
}

impl Fed {
    fn new(
        port: &Port,
        matches: FlowMatch,
        address: SocketAddr,
        config: &RxQueueConfig,
    ) -> Result<Self, DeviceError> {
        let rx = RxQueue::matching(port.device(), port.pool(), matches, config)?;
        Ok(Self { rx, address })
    }
}
// ANCHOR_END: fed

/// A feed, an engine and an order entry on one port. Belongs to one core; nothing is allocated by
/// [`Trader::poll`], but by the network's part of it, for an ARP request or a query.
#[derive(Debug)]
pub struct Trader<S> {
    engine: Engine<Timed<S>>,
    gateway: Gateway,
    /// By [`Source`]: both lines, and answers to requests.
    feeds: [Fed; 3],
    orders: Fed,
    snapshot: Option<(Fed, Gateway)>,
    network: Network,
    request: Headers,
    clock: Option<Clock>,
    time_base: Option<TimeBase>,
    stages: Option<Stages>,
    flights: Option<Flights>,
    warm_up_ns: u64,
    house_ns: u64,
    clock_ns: u64,
    /// When something was dealt with last, and how much later is too late for what waits.
    looked_ns: u64,
    away_ns: u64,
    dropped: Dropped,
    /// Order entry was open once.
    is_recovered: bool,
    cancels_at_start: bool,
    /// When another snapshot may be asked for.
    snapshot_ns: u64,
    /// When answers are looked for that do not come, and how often.
    watch_ns: u64,
    watch_every_ns: u64,
    /// Where order entry, lost messages and snapshots are had, whose stations may change, and when
    /// they are looked for again.
    servers: [Option<Ipv4Addr>; 3],
    found_ns: u64,
}

impl<S: Strategy> Trader<S> {
    /// Finds the exchange, joins both groups, leads them to queues, and starts to connect.
    ///
    /// # Errors
    /// A [`TraderError`]: one sentence about what is wrong. Rules and groups are gone again then.
    pub fn new(port: &Port, config: &TraderConfig, strategy: S) -> Result<Self, TraderError> {
        let mut engine = config.engine.clone();
        if config.joins_late {
            if config.snapshots.is_none() {
                return Err(TraderError::NoSnapshots);
            }
            engine.feed.start = Start::Held;
        }
        let measure = config.measure || config.stamp_orders;
        let engine = Engine::new(engine, Timed::new(strategy, measure))?;
        let device = port.device();
        let context = RdmaContext::open(device)?;
        context.add_gid(GidConfig {
            address: config.address.into(),
            prefix_len: config.prefix_len,
            gateway: config.gateway.map(IpAddr::from),
            vlan: None,
        })?;
        let mut net = NetConfig::default();
        net.neighbours.lifetime = STATION_LIFETIME;
        let mut network = Network::open(&context, &net)?;
        let orders_mac = network.resolve_and_wait((*config.orders.ip()).into())?.dmac;
        let requests_mac = network.resolve_and_wait((*config.requests.ip()).into())?.dmac;
        let rx = RxQueueConfig { timestamps: measure, ..RxQueueConfig::default() };
        let udp = |at: SocketAddrV4, from| Fed::new(port, udp_to(at, from), at.into(), &rx);
        let own = SocketAddrV4::new(config.address, config.answers_port);
        let [a, b] = config.lines;
        let feeds = [udp(a, None)?, udp(b, None)?, udp(own, Some(*config.requests.ip()))?];
        for line in config.lines {
            network.join(IpAddr::from(*line.ip()))?;
        }
        let local_mac = device.mac();
        let session =
            |mac: MacAddr, at: SocketAddrV4, is_snapshot: bool| -> Result<_, TraderError> {
                let gateway = GatewayConfig {
                    local: (local_mac, SocketAddrV4::new(config.address, 0).into()),
                    remote: (mac, at.into()),
                    user: config.user,
                    password: config.password,
                    retry_ns: if is_snapshot { SNAPSHOT_NS } else { RETRY_NS },
                    timeout_ms: config.timeout_ms,
                    is_snapshot,
                };
                let fed = Fed::new(port, tcp_from(at, config.address), at.into(), &rx)?;
                let timestamps = if config.stamp_orders && !is_snapshot { STAMPS } else { 0 };
                let tx = TxQueueConfig { timestamps, ..TxQueueConfig::default() };
                let tx = TxQueue::new(device, port.pool(), &tx)?;
                Ok((fed, Gateway::idle(gateway, tx, now_ns())?))
            };
        let (orders, mut gateway) = session(orders_mac, config.orders, false)?;
        let snapshot = match config.snapshots {
            Some(at) => {
                let station = network.resolve_and_wait((*at.ip()).into())?.dmac;
                let (fed, mut session) = session(station, at, true)?;
                if config.joins_late {
                    session.begin(now_ns());
                }
                Some((fed, session))
            }
            None => None,
        };
        gateway.begin(now_ns());
        gateway.line().set_timed(measure);
        gateway.line().set_stamped(config.stamp_orders);
        let rounds = engine.orders().looks_per_round() as u64 * u64::from(LOOKS);
        let watch_every_ns = config.answer_timeout_ms.saturating_mul(1_000_000) / rounds;
        let clock = measure.then(|| device.clock_by(now_ns)).transpose()?;
        Ok(Self {
            engine,
            gateway,
            feeds,
            orders,
            snapshot,
            network,
            request: Headers {
                destination_mac: requests_mac,
                source_mac: local_mac,
                vlan_tci: None,
                source: own.into(),
                destination: config.requests.into(),
                hop_limit: 64,
                traffic_class: 0,
                transport: Transport::Udp,
            },
            time_base: clock.as_ref().map(Clock::time_base),
            clock,
            stages: measure.then(Stages::default),
            flights: config.stamp_orders.then(Flights::default),
            warm_up_ns: 0,
            house_ns: 0,
            // An update makes its error good in the time since the last one: not a moment later.
            clock_ns: now_ns().saturating_add(CLOCK_NS),
            looked_ns: 0,
            away_ns: config.away_ms.saturating_mul(1_000_000),
            dropped: Dropped::default(),
            is_recovered: false,
            cancels_at_start: config.cancels_at_start,
            snapshot_ns: 0,
            watch_ns: 0,
            watch_every_ns,
            servers: [Some(config.orders), Some(config.requests), config.snapshots]
                .map(|at| at.map(|at| *at.ip())),
            found_ns: 0,
        })
    }

    // ANCHOR: poll
    /// Looks at every queue once, and does what came or is due; returns whether anything was.
    pub fn poll(&mut self) -> bool {
        let mut is_busy = false;
        if let Some(mbuf) = self.orders.rx.rx_one() {
            is_busy = true;
            self.order_frame(mbuf);
        }
        // Before the day's answers are known for the first time no order may leave: the feed waits
        // in its rings, and what does not fit them is asked for again: a backlog, until the rings
        // are empty. Later the books follow the feed whatever becomes of order entry, which takes
        // no order while it is not open.
        if !self.is_recovered && self.gateway.state() == GatewayState::Open {
            self.recover();
        }
        if self.is_recovered {
            let mut is_fed = false;
            for source in [Source::A, Source::B, Source::Retransmission] {
                if let Some(mbuf) = self.feeds[source as usize].rx.rx_one() {
                    is_fed = true;
                    self.feed_frame(source, mbuf);
                }
            }
            if !is_fed && self.engine.has_backlog() {
                self.caught_up();
            }
            is_busy |= is_fed | self.snapshot_frame();
        }
        let now = now_ns();
        self.look(now);
        if self.engine.poll_at().is_some_and(|at| at <= now) {
            is_busy = true;
            self.ask(now);
        }
        if self.engine.wants_snapshot() {
            is_busy |= self.ask_for_books(now);
        }
        if now >= self.watch_ns {
            is_busy = true;
            self.watch(now);
        }
        is_busy |= self.gateway.poll(now);
        if let Some((_, session)) = &mut self.snapshot {
            is_busy |= session.poll(now);
        }
        // What is not urgent has its turn when nothing came, or came for too long.
        let is_late = now >= self.house_ns.saturating_add(HOUSE_LATE_NS);
        if (!is_busy || is_late) && self.flights.is_some() {
            is_busy |= self.take_stamps();
        }
        if now >= self.house_ns && (!is_busy || is_late) {
            is_busy = true;
            self.keep_house(now);
        }
        if !is_busy && now >= self.warm_up_ns {
            self.warm_up_ns = now.saturating_add(WARM_UP_NS);
            self.gateway.line().warm_up();
        }
        is_busy
    }
    // ANCHOR_END: poll

    /// Notes that something is dealt with now: behind an absence of the core, what waits is old.
    #[inline]
    fn look(&mut self, now: u64) {
        let before = std::mem::replace(&mut self.looked_ns, now);
        if now.saturating_sub(before) >= self.away_ns {
            self.fall_behind(now);
        }
    }

    /// A frame of a line, or with messages that were asked for.
    #[inline]
    fn feed_frame(&mut self, source: Source, mbuf: Mbuf) {
        let now = now_ns();
        self.look(now);
        let fed = &mut self.feeds[source as usize];
        let line = self.gateway.line();
        note_came(line, &mbuf, now, self.time_base);
        line.begin_frame();
        let (engine, to) = (&mut self.engine, fed.address);
        let taken = match source {
            Source::A | Source::B => feed_frame(engine, line, source, to, &mbuf, now),
            Source::Retransmission => {
                answer_frame(engine, line, (self.request.destination, to), &mbuf, now)
            }
        };
        if let Err(why) = taken {
            self.dropped.count(why);
        }
        if let Some(stages) = &mut self.stages
            && let Some(times) = self.gateway.line().take_times()
        {
            let stamp = mbuf.rx_timestamp().zip(self.time_base);
            let wire_ns = stamp.map_or(now, |(ticks, base)| base.to_ns(ticks));
            if let (Some(flights), Some((ticks, _)), Some(frame)) =
                (&mut self.flights, stamp, times.frame)
            {
                flights.note(frame, ticks);
            }
            stages.record(wire_ns, times);
        }
        fed.rx.cache().put(mbuf);
    }

    /// A frame of the order entry.
    fn order_frame(&mut self, mbuf: Mbuf) {
        let now = now_ns();
        self.look(now);
        note_came(self.gateway.line(), &mbuf, now, self.time_base);
        match read(&mbuf, self.orders.address) {
            Ok(packet) => self.gateway.receive(&packet, now, &mut self.engine),
            Err(why) => self.dropped.count(why),
        }
        self.orders.rx.cache().put(mbuf);
    }

    /// A frame of the server of snapshots, if there is one.
    fn snapshot_frame(&mut self) -> bool {
        let Some((fed, session)) = &mut self.snapshot else { return false };
        let Some(mbuf) = fed.rx.rx_one() else { return false };
        let now = now_ns();
        note_came(self.gateway.line(), &mbuf, now, self.time_base);
        match read(&mbuf, fed.address) {
            Ok(packet) => {
                let (engine, line) = (&mut self.engine, self.gateway.line());
                session.receive_snapshot(&packet, now, engine, line);
            }
            Err(why) => self.dropped.count(why),
        }
        fed.rx.cache().put(mbuf);
        true
    }

    /// The engine does what is due, and messages that are lost are asked for.
    fn ask(&mut self, now: u64) {
        let line = self.gateway.line();
        line.set_now(now);
        let request = self.engine.poll(now, line);
        let Some(Request { packet, .. }) = request else { return };
        let mut frame = [0; 14 + 20 + 8 + crate::proto::mold::HEADER_LEN];
        let at = self.request.len_bytes();
        frame[at..].copy_from_slice(packet.as_bytes());
        // The addresses are of one family, and the frame has room: it is that long.
        if self.request.write(&mut frame).is_ok() {
            self.gateway.line().send_frame(&frame);
        }
    }

    /// Asks for books that may be wrong as they stand: they are given up when the first message of
    /// that comes. `false` if nobody can be asked now.
    #[cold]
    fn ask_for_books(&mut self, now: u64) -> bool {
        let Some((_, session)) = &mut self.snapshot else { return false };
        let can_be = session.is_resting() && now >= self.snapshot_ns;
        if can_be {
            self.snapshot_ns = now.saturating_add(SNAPSHOT_NS);
            session.begin(now);
        }
        can_be
    }

    fn keep_house(&mut self, now: u64) {
        self.house_ns = now.saturating_add(HOUSE_NS);
        self.network.poll();
        if now >= self.found_ns {
            self.find_servers(now);
        }
        if let Some(clock) = &mut self.clock
            && now >= self.clock_ns
        {
            self.clock_ns = now.saturating_add(CLOCK_NS);
            // A device that is gone says so elsewhere; its time stamps stay as they were.
            let _ = clock.update();
            self.time_base = Some(clock.time_base());
        }
    }

    /// Feed, books, orders.
    pub const fn engine(&self) -> &Engine<Timed<S>> {
        &self.engine
    }

    /// Order entry.
    pub const fn gateway(&mut self) -> &mut Gateway {
        &mut self.gateway
    }

    /// Where the session for snapshots stands: idle before one is needed, done when the books are
    /// there; one that ends before that is tried again. `None` without a server of them.
    pub fn joining(&self) -> Option<GatewayState> {
        self.snapshot.as_ref().map(|(_, session)| session.state())
    }

    /// Frames that a rule led here and that are not what they should be.
    pub const fn dropped(&self) -> Dropped {
        self.dropped
    }
}
