//! Tick to trade: from a frame of market data in the receive ring to the doorbell of the order that
//! it led to.

use std::cell::Cell;

use ferrocx_model::played::{PlayedRx, PlayedTx};
use ferrocx_net::ether::MacAddr;
use ferrocx_net::packet::{Headers, Packet, Transport, tcp as flags};
use ferrocx_pmd::{RxQueue, RxQueueConfig, TxQueueConfig};
use ferrocx_tick2trade::engine::{Engine, EngineConfig};
use ferrocx_tick2trade::feed::Source;
use ferrocx_tick2trade::latency::now_ns;
use ferrocx_tick2trade::order_line::OrderLine;
use ferrocx_tick2trade::orders::{OrderEvent, OrdersConfig};
use ferrocx_tick2trade::proto::ouch::answers::{Accepted, Cancelled};
use ferrocx_tick2trade::proto::{Side, Text, itch, mold};
use ferrocx_tick2trade::risk::Limits;
use ferrocx_tick2trade::strategy::{Desk, MarketEvent, Stands, Strategy};
use ferrocx_tick2trade::trader::feed_frame;
use ferrocx_tick2trade::{book::Change, tcp};
use zerocopy::IntoBytes;

use super::queues::{Bench, rx_one};
use super::{Case, Work};

/// Ticks of one run: no more than the connection may have unacknowledged.
const RUN: u64 = 128;
const LOCATE: u16 = 7;
const PRICE: u32 = 1_500_000;
/// Offer that no tick takes away: there is always one to take.
const LAST: u64 = 1 << 40;
/// An order that comes and goes, and offers none of which is better than [`LAST`].
const OTHER: u64 = 2 << 40;
const DEEP: u64 = 3 << 40;
/// Levels in front of the one that comes and goes far from the best.
const LEVELS: u32 = 1_000;
/// Places of the table that is nearly full: of so many one is free.
const PLACES: usize = 65_536;
const TAKEN: u32 = 256;
/// Price of the orders that have the others.
const STANDING: u32 = PRICE - 2_000;
/// Bytes of a frame of one message, and of one of up to eight. What is behind its packet is
/// padding.
const SHORT: usize = 128;
const LONG: usize = 384;

/// A case: which message comes, and what the strategy does.
macro_rules! tick {
    ($name:literal, $message:ident, $act:ident) => {
        tick!($name, Feed::$message, $act, SHORT, OrdersConfig::default().capacity)
    };
    ($name:literal, $message:expr, $act:ident, $frame:ident, $places:expr) => {
        Case {
            name: $name,
            elements: RUN,
            make: || Box::new(Tick::<{ Act::$act as u8 }, $frame>::new($message, $places)),
        }
    };
}

/// Every case: one ITCH message, whose frame is read and its addresses compared, the line
/// arbitrated, the book changed; then the strategy sees the best offer change, every limit is
/// asked, and OUCH in SoupBinTCP in a TCP segment, with its checksum, goes out in its request with
/// one doorbell. The frame is put into its buffer here, as the device would: 128 bytes copied,
/// which count. So does one reading of the clock.
pub(super) const CASES: [Case; 15] = [
    tick!("tick_to_doorbell", Add, Enter),
    tick!("tick_attributed", Attributed, Enter),
    tick!("tick_executed", Executed, Enter),
    tick!("tick_executed_at_price", ExecutedAtPrice, Enter),
    tick!("tick_cancelled", Cancelled, Enter),
    tick!("tick_deleted", Deleted, Enter),
    tick!("tick_replaced", Replaced, Enter),
    // An order of ours is cancelled, or replaced by another.
    tick!("tick_to_cancel", Add, Cancel),
    tick!("tick_to_replace", Add, Replace),
    // Messages of every kind that touches no book, in turn; and what came by the other line.
    tick!("tick_beside_books", Beside, Nothing),
    tick!("tick_other_line", OtherLine, Nothing),
    // An order of ours where 65,280 stand, 255 of them in a row in its way.
    tick!("tick_full_table", Feed::Add, Enter, SHORT, PLACES),
    // Packets of two messages and of eight, of which the last leads to an order and the others each
    // change a book: of 384 bytes, all of which are copied here.
    tick!("tick_packet_2", Feed::AddBehind(1), Enter, LONG, 1024),
    tick!("tick_packet_8", Feed::AddBehind(7), Enter, LONG, 1024),
    // An offer that comes, and in the next packet goes, where 1,001 levels are better.
    tick!("tick_level_1000", Deep, Nothing),
];

/// What comes by the feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Feed {
    /// Each offer is better than the one before.
    Add,
    Attributed,
    /// The best offer goes.
    Executed,
    ExecutedAtPrice,
    Deleted,
    /// Shares of the best offer go.
    Cancelled,
    /// The best offer becomes a better one.
    Replaced,
    /// No book changes.
    Beside,
    /// All of it was there.
    OtherLine,
    /// Each offer is better than the one before, and comes behind so many messages of a bid that
    /// comes and goes.
    AddBehind(u64),
    /// An offer far from the best comes and goes.
    Deep,
}

/// What a change of the best offer leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Act {
    Nothing,
    Enter,
    Cancel,
    Replace,
}

/// Does the same at every change of the best offer, and waits for nothing.
#[derive(Debug, Default)]
struct Eager<const ACT: u8> {
    is_awake: Cell<bool>,
    /// The order that is cancelled or replaced next.
    next: Cell<u32>,
}

impl<const ACT: u8> Strategy for Eager<ACT> {
    const HEARS_TRADES: bool = false;

    #[inline]
    fn on_market(&mut self, event: MarketEvent, desk: &mut Desk<'_>) {
        const { assert!(ACT <= Act::Replace as u8, "something that is done") };
        let MarketEvent::Book(Change { side: Side::Sell, best_changed: true, .. }) = event else {
            return;
        };
        let Some(offer) = desk.book(0).and_then(|book| book.best(Side::Sell)) else { return };
        if !self.is_awake.get() || ACT == Act::Nothing as u8 {
            return;
        }
        // What is refused is not counted among what was sent, and so found by `verify`.
        if ACT == Act::Enter as u8 {
            let _ = desk.enter(0, Side::Buy, 100, offer.price, Stands::Immediately);
            return;
        }
        let urn = self.next.replace(self.next.get() + 1);
        let _ = match ACT == Act::Cancel as u8 {
            true => desk.cancel(urn).map(|_| None),
            false => desk.replace(urn, 100, offer.price),
        };
    }

    fn on_order(&mut self, _: OrderEvent, _: &mut Desk<'_>) {}
}

struct Tick<const ACT: u8, const FRAME: usize> {
    rx: (RxQueue, PlayedRx),
    played: PlayedTx,
    engine: Engine<Eager<ACT>>,
    line: OrderLine,
    tcp: tcp::Config,
    feed: Headers,
    message: Feed,
    frames: Vec<[u8; FRAME]>,
    /// Number of the next message, and of the next order of the crowd.
    next: u64,
    reference: u64,
    /// [`OTHER`] stands.
    has_other: bool,
    /// Messages that were sent before the measured part of the last run, and in all such parts.
    before: u64,
    sent: u64,
    runs: u64,
}

impl<const ACT: u8, const FRAME: usize> Tick<ACT, FRAME> {
    fn new(message: Feed, places: usize) -> Self {
        let bench = Bench::new();
        let rx = bench.rx(&RxQueueConfig::default());
        let (tx, played) =
            bench.tx(&TxQueueConfig { descriptors: 2048, ..TxQueueConfig::default() });
        let address = |text: &str| text.parse().expect("an address");
        let tcp = tcp::Config::new(
            (MacAddr([2, 0, 0, 0, 0, 1]), address("198.18.0.2:40000")),
            (MacAddr([2, 0, 0, 0, 0, 2]), address("198.18.0.1:9000")),
        );
        let symbols = vec![Text::new("AAPL").expect("a name")];
        let limits = Limits { position_shares: u32::MAX, credit: u64::MAX, ..Limits::default() };
        let limits = Limits { rate: 65_536, rate_window_ns: 1, ..limits };
        let orders = OrdersConfig { symbols, limits, capacity: places, ..OrdersConfig::default() };
        let config = EngineConfig { orders, ..EngineConfig::default() };
        let initial = tcp::Seq(u32::MAX - 100);
        let line = OrderLine::connect(tcp.clone(), initial, tx, 0).expect("a connection");
        let feed = Headers {
            destination_mac: MacAddr::of_ipv4_group([239, 1, 1, 1].into()),
            source_mac: tcp.remote_mac,
            vlan_tci: None,
            source: address("198.18.0.1:9001"),
            destination: address("239.1.1.1:26400"),
            hop_limit: 16,
            traffic_class: 0,
            transport: Transport::Udp,
        };
        let engine = Engine::new(config, Eager::default()).expect("an engine");
        let mut tick = Self {
            rx,
            played,
            engine,
            line,
            tcp,
            feed,
            message,
            frames: Vec::new(),
            next: 1,
            reference: 1,
            has_other: false,
            before: 0,
            sent: 0,
            runs: 0,
        };
        tick.answer(flags::SYN | flags::ACK, 7, initial.add(1));
        assert_eq!(tick.line.state(), tcp::State::Established);
        tick.line.open(true);
        let directory = itch::StockDirectory::common(LOCATE, Text::new("AAPL").expect("a name"), 0);
        tick.hear(directory.as_bytes());
        let trading = itch::TradingAction {
            header: itch::Header::new(itch::TradingAction::KIND, LOCATE, 0),
            stock: directory.stock,
            state: b'T',
            reserved: b' ',
            reason: Text::BLANK,
        };
        tick.hear(trading.as_bytes());
        tick.hear(add(LAST, PRICE + 10_000).as_bytes());
        if message == Feed::Deep {
            for level in 1..=LEVELS {
                tick.hear(add(DEEP + u64::from(level), PRICE + 10_000 + level).as_bytes());
            }
        }
        if places == PLACES {
            (1..PLACES as u32)
                .filter(|urn| urn % TAKEN != 0)
                .for_each(|urn| tick.stand(urn, STANDING));
            for _ in 0..tick.engine.orders().looks_per_round() {
                assert!(tick.engine.watch(0, &mut tick.line), "nothing is overdue");
            }
        }
        tick
    }

    /// The peer acknowledges everything before a number.
    fn answer(&mut self, flags: u8, sequence: u32, everything: tcp::Seq) {
        let headers = Headers {
            destination_mac: self.tcp.local_mac,
            source_mac: self.tcp.remote_mac,
            source: self.tcp.remote,
            destination: self.tcp.local,
            transport: Transport::Tcp {
                sequence,
                acknowledgment: everything.0,
                flags,
                window: u16::MAX,
                max_segment: Some(1460).filter(|_| flags & flags::SYN != 0),
            },
            ..self.tcp.headers()
        };
        let mut frame = vec![0; headers.len_bytes()];
        headers.write(&mut frame).expect("headers");
        self.line.receive(&Packet::parse(&frame).expect("a segment"), |_| ());
    }

    /// The next packet of the feed.
    fn packet(&mut self, messages: &[&[u8]]) -> Vec<u8> {
        let mut bytes = [0; FRAME];
        let session = Text::new("TODAY").expect("a name");
        let builder = mold::Builder::new(&mut bytes, session, self.next);
        let mut builder = builder.expect("room for a header");
        assert!(messages.iter().all(|message| builder.push(message)));
        self.next += messages.len() as u64;
        builder.finish().to_vec()
    }

    /// The engine takes a message, and nobody measures it.
    fn hear(&mut self, message: &[u8]) {
        let packet = self.packet(&[message]);
        self.engine.feed(Source::A, &packet, 0, &mut self.line);
    }

    /// Behind a run: the exchange cancels every order but those that have their places for good,
    /// and its own offers are gone; it has everything that was sent.
    fn settle(&mut self) {
        self.engine.strategy().is_awake.set(false);
        let orders = self.engine.orders().standing().filter(|order| order.price != STANDING);
        for urn in orders.map(|order| order.urn).collect::<Vec<_>>() {
            // A replacement goes with what it should have replaced.
            let Some(left) = self.engine.orders().left(urn) else { continue };
            let off = Cancelled {
                kind: Cancelled::KIND,
                timestamp_ns: 0.into(),
                urn: urn.into(),
                quantity: left.into(),
                reason: b'I',
            };
            self.engine.answer(off.as_bytes(), 0, &mut self.line);
        }
        let best = |tick: &Self| {
            let offers = tick.engine.books().get(LOCATE).map(|book| book.best(Side::Sell));
            let price = offers.flatten().map(|offer| offer.price)?;
            let mut orders = tick.engine.books().orders_at(LOCATE, Side::Sell, price);
            orders.next().filter(|order| order.reference != LAST)
        };
        while let Some(order) = best(self) {
            self.hear(deleted(order.reference).as_bytes());
        }
        let acknowledged = self.line.next_sequence();
        self.answer(flags::ACK, 8, acknowledged);
        self.played.complete();
    }

    /// Another offer, better than those before: the run's `tick`th.
    fn better(&mut self, tick: u64) -> itch::AddOrder {
        self.reference += 1;
        add(self.reference, PRICE - tick as u32)
    }

    /// An order of ours stands: a day that is replayed says so.
    fn stand(&mut self, urn: u32, price: u32) {
        let accepted = Accepted {
            kind: Accepted::KIND,
            timestamp_ns: 0.into(),
            urn: urn.into(),
            side: b'B',
            quantity: 100.into(),
            symbol: Text::new("AAPL").expect("a name"),
            price: u64::from(price).into(),
            time_in_force: b'0',
            display: b'Y',
            reference: u64::from(urn).into(),
            capacity: b'P',
            intermarket_sweep: b'N',
            cross: b'N',
            state: b'L',
            client_order_id: Text::BLANK,
        };
        self.engine.answer(accepted.as_bytes(), 0, &mut self.line);
    }

    /// Those that a run cancels or replaces one after the other.
    fn stand_all(&mut self) {
        let first = self.engine.orders().next_urn();
        (first..first + RUN as u32).for_each(|urn| self.stand(urn, PRICE - 1_000));
        self.engine.strategy().next.set(first);
    }

    /// An order comes, or goes if it stands.
    fn other(&mut self, order: itch::AddOrder) -> Vec<u8> {
        self.has_other = !self.has_other;
        match self.has_other {
            true => order.as_bytes().to_vec(),
            false => deleted(OTHER).as_bytes().to_vec(),
        }
    }

    /// So many offers stand, each better than the one before.
    fn offer(&mut self, count: u64) {
        for tick in 0..count {
            let offer = self.better(tick);
            self.hear(offer.as_bytes());
        }
    }

    /// The message of a run's `tick`th frame.
    fn message(&mut self, tick: u64) -> Vec<u8> {
        // The best offer is the last that was made, and once it is gone the one before.
        let best = || self.reference - tick;
        let header = |kind| itch::Header::new(kind, LOCATE, 0);
        let (shares, match_number) = (100.into(), 1.into());
        match self.message {
            Feed::Deep => self.other(add(OTHER, PRICE + 20_000)),
            Feed::Add | Feed::AddBehind(_) | Feed::OtherLine => {
                self.better(tick).as_bytes().to_vec()
            }
            Feed::Attributed => {
                let mut order = self.better(tick);
                order.header.kind = itch::AddAttributed::KIND;
                let attribution = Text(*b"FXCX");
                itch::AddAttributed { order, attribution }.as_bytes().to_vec()
            }
            Feed::Executed => {
                let (header, reference) = (header(itch::Executed::KIND), best().into());
                let executed = itch::Executed { header, reference, shares, match_number };
                executed.as_bytes().to_vec()
            }
            Feed::ExecutedAtPrice => itch::ExecutedAtPrice {
                header: header(itch::ExecutedAtPrice::KIND),
                reference: best().into(),
                shares,
                match_number,
                printable: b'Y',
                price: PRICE.into(),
            }
            .as_bytes()
            .to_vec(),
            Feed::Deleted => deleted(best()).as_bytes().to_vec(),
            Feed::Cancelled => {
                let reference = self.reference.into();
                let header = header(itch::Cancelled::KIND);
                itch::Cancelled { header, reference, shares: 1.into() }.as_bytes().to_vec()
            }
            Feed::Replaced => {
                let reference = self.reference.into();
                self.reference += 1;
                itch::Replaced {
                    header: header(itch::Replaced::KIND),
                    reference,
                    new_reference: self.reference.into(),
                    shares,
                    price: (PRICE - 1 - tick as u32).into(),
                }
                .as_bytes()
                .to_vec()
            }
            Feed::Beside => {
                const KINDS: &[u8] = b"SHYLVWKJhPQBINO";
                let kind = KINDS[tick as usize % KINDS.len()];
                let known = itch::MESSAGES.iter().find(|message| message.0 == kind);
                let mut message = vec![b'T'; known.expect("a kind of ITCH").1];
                message[..itch::HEADER_LEN].copy_from_slice(header(kind).as_bytes());
                message
            }
        }
    }
}

fn add(reference: u64, price: u32) -> itch::AddOrder {
    itch::AddOrder {
        header: itch::Header::new(itch::AddOrder::KIND, LOCATE, 0),
        reference: reference.into(),
        side: b'S',
        shares: 100.into(),
        stock: Text::new("AAPL").expect("a name"),
        price: price.into(),
    }
}

fn deleted(reference: u64) -> itch::Deleted {
    let header = itch::Header::new(itch::Deleted::KIND, LOCATE, 0);
    itch::Deleted { header, reference: reference.into() }
}

/// A call of its own, as in an application: what surrounds it then does not change its code.
#[inline(never)]
fn take<const ACT: u8, const FRAME: usize>(
    rx: &mut RxQueue,
    frame: &[u8; FRAME],
    tick: &mut Parts<'_, ACT>,
) {
    let Some(mut mbuf) = rx_one(rx) else { return };
    if let Some(place) = mbuf.data_mut().and_then(|data| data.first_chunk_mut()) {
        *place = *frame;
    }
    // What was not taken would leave no order, and that is looked at afterwards.
    let _ = feed_frame(tick.engine, tick.line, Source::A, tick.feed.destination, &mbuf, now_ns());
    rx.cache().put(mbuf);
}

struct Parts<'a, const ACT: u8> {
    engine: &'a mut Engine<Eager<ACT>>,
    line: &'a mut OrderLine,
    feed: &'a Headers,
}

impl<const ACT: u8, const FRAME: usize> Work for Tick<ACT, FRAME> {
    fn prepare(&mut self) {
        self.settle();
        match self.message {
            Feed::Executed | Feed::ExecutedAtPrice | Feed::Deleted => self.offer(RUN),
            Feed::Cancelled | Feed::Replaced => {
                let offer = itch::AddOrder { shares: 1000.into(), ..self.better(0) };
                self.hear(offer.as_bytes());
            }
            _ => {}
        }
        if ACT == Act::Cancel as u8 || ACT == Act::Replace as u8 {
            self.stand_all();
        }
        self.engine.strategy().is_awake.set(true);
        self.frames.clear();
        for tick in 0..RUN {
            let others = if let Feed::AddBehind(others) = self.message { others } else { 0 };
            let bid = itch::AddOrder { side: b'B', ..add(OTHER, PRICE - 20_000) };
            let mut messages: Vec<_> = (0..others).map(|_| self.other(bid)).collect();
            messages.push(self.message(tick));
            let packet = self.packet(&messages.iter().map(Vec::as_slice).collect::<Vec<_>>());
            if self.message == Feed::OtherLine {
                self.engine.feed(Source::B, &packet, 0, &mut self.line);
            }
            let (mut frame, at) = ([0; FRAME], self.feed.len_bytes());
            frame[at..at + packet.len()].copy_from_slice(&packet);
            self.feed.write(&mut frame[..at + packet.len()]).expect("headers");
            self.frames.push(frame);
        }
        self.rx.1.complete(RUN as u32, FRAME as u32);
        self.before = self.line.orders();
        self.runs += 1;
    }

    fn run(&mut self) {
        let Self { rx, engine, line, feed, frames, .. } = self;
        let mut parts = Parts { engine, line, feed };
        for frame in frames.iter() {
            take(&mut rx.0, frame, &mut parts);
        }
        self.sent += self.line.orders() - self.before;
    }

    fn verify(&mut self) {
        let expected = if ACT == Act::Nothing as u8 { 0 } else { self.runs * RUN };
        assert_eq!(self.sent, expected, "one for each tick");
        let stats = self.line.tx().stats();
        assert_eq!((stats.full, stats.dropped, stats.fault), (0, 0, None));
        assert!(stats.doorbells >= self.sent, "a doorbell for each");
        assert_eq!(self.engine.stats(), Default::default());
        assert_eq!((self.engine.books().errors(), self.engine.orders().mismatches()), (0, 0));
    }
}
