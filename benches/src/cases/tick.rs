//! Tick to trade: from a frame of market data in the receive ring to the doorbell of the order that
//! it led to.

use ferrocx_model::played::{PlayedRx, PlayedTx};
use ferrocx_net::ether::{Mac, group_mac};
use ferrocx_net::packet::{Headers, Packet, Transport, tcp as flags};
use ferrocx_pmd::{RxQueue, RxQueueConfig, TxQueueConfig};
use ferrocx_tick2trade::engine::{Engine, EngineConfig};
use ferrocx_tick2trade::feed::Source;
use ferrocx_tick2trade::latency::now_ns;
use ferrocx_tick2trade::order_line::OrderLine;
use ferrocx_tick2trade::orders::{OrderEvent, OrdersConfig};
use ferrocx_tick2trade::proto::ouch::answers::Cancelled;
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
/// Bytes of a frame with one order that is added: Ethernet, IPv4, UDP, MoldUDP64, its length.
const TICK_BYTES: usize = 14 + 20 + 8 + 20 + 2 + itch::AddOrder::LEN;
const LOCATE: u16 = 7;
const PRICE: u32 = 1_500_000;

/// Every case.
pub(super) const CASES: [Case; 1] = [Case {
    // One ITCH message: the frame is read and its addresses compared, the line arbitrated, the book
    // changed; the strategy takes the offer, every limit is asked, and OUCH in SoupBinTCP in a TCP
    // segment, with its checksum, goes out in its request with one doorbell. The frame is put into
    // its buffer here, as the device would: 100 bytes copied, which counts. So does one reading of
    // the clock.
    name: "tick_to_doorbell",
    elements: RUN,
    make: || Box::new(Tick::new()),
}];

/// Takes every offer, and waits for nothing.
#[derive(Debug)]
struct Eager;

impl Strategy for Eager {
    #[inline]
    fn on_market(&mut self, event: MarketEvent, desk: &mut Desk<'_>) {
        let MarketEvent::Book(Change { side: Side::Sell, best_changed: true, .. }) = event else {
            return;
        };
        let Some(offer) = desk.book(0).and_then(|book| book.best(Side::Sell)) else { return };
        // What is refused is not counted among the orders, and so found by `verify`.
        let _ = desk.enter(0, Side::Buy, 100, offer.price, Stands::Immediately);
    }

    fn on_order(&mut self, _: OrderEvent, _: &mut Desk<'_>) {}
}

struct Tick {
    rx: (RxQueue, PlayedRx),
    played: PlayedTx,
    engine: Engine<Eager>,
    line: OrderLine,
    tcp: tcp::Config,
    feed: Headers,
    frames: Vec<[u8; TICK_BYTES]>,
    /// Number of the next message, and of the next order of the crowd.
    next: u64,
    reference: u64,
    runs: u64,
}

impl Tick {
    fn new() -> Self {
        let bench = Bench::new();
        let rx = bench.rx(&RxQueueConfig::default());
        let (tx, played) =
            bench.tx(&TxQueueConfig { descriptors: 2048, ..TxQueueConfig::default() });
        let address = |text: &str| text.parse().expect("an address");
        let tcp = tcp::Config::new(
            (Mac([2, 0, 0, 0, 0, 1]), address("198.18.0.2:40000")),
            (Mac([2, 0, 0, 0, 0, 2]), address("198.18.0.1:9000")),
        );
        let symbols = vec![Text::new("AAPL").expect("a name")];
        let limits = Limits { position_shares: u32::MAX, credit: u64::MAX, ..Limits::default() };
        let limits = Limits { rate: 65_536, rate_window_ns: 1, ..limits };
        let orders = OrdersConfig { symbols, limits, ..OrdersConfig::default() };
        let config = EngineConfig { orders, ..EngineConfig::default() };
        let initial = tcp::Seq(u32::MAX - 100);
        let line = OrderLine::connect(tcp.clone(), initial, tx, 0).expect("a connection");
        let feed = Headers {
            destination_mac: group_mac([239, 1, 1, 1].into()),
            source_mac: tcp.remote_mac,
            vlan_tci: None,
            source: address("198.18.0.1:9001"),
            destination: address("239.1.1.1:26400"),
            hop_limit: 16,
            traffic_class: 0,
            transport: Transport::Udp,
        };
        let engine = Engine::new(config, Eager).expect("an engine");
        let (frames, next, reference, runs) = (Vec::new(), 1, 1, 0);
        let mut tick = Self { rx, played, engine, line, tcp, feed, frames, next, reference, runs };
        tick.answer(flags::SYN | flags::ACK, 7, initial.add(1));
        assert_eq!(tick.line.state(), tcp::State::Established);
        tick.line.open(true);
        tick.list();
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

    /// The next packet of the feed, of one message.
    fn packet(&mut self, message: &[u8]) -> Vec<u8> {
        let mut bytes = [0; 128];
        let session = Text::new("TODAY").expect("a name");
        let builder = mold::Builder::new(&mut bytes, session, self.next);
        let mut builder = builder.expect("room for a header");
        assert!(builder.push(message));
        self.next += 1;
        builder.finish().to_vec()
    }

    /// The security is listed: the engine learns its locate.
    fn list(&mut self) {
        let directory = itch::StockDirectory::common(LOCATE, Text::new("AAPL").expect("a name"), 0);
        let packet = self.packet(directory.as_bytes());
        self.engine.feed(Source::A, &packet, 0, &mut self.line);
    }

    /// Behind a run: the exchange cancels every order, and its own offers are gone.
    fn settle(&mut self) {
        let next = self.engine.orders().next_urn();
        for urn in next.saturating_sub(RUN as u32).max(1)..next {
            let off = Cancelled {
                kind: Cancelled::KIND,
                timestamp_ns: 0.into(),
                urn: urn.into(),
                quantity: 100.into(),
                reason: b'I',
            };
            self.engine.answer(off.as_bytes(), 0, &mut self.line);
        }
        for reference in self.reference.saturating_sub(RUN).max(1)..self.reference {
            let header = itch::Header::new(itch::Deleted::KIND, LOCATE, 0);
            let deleted = itch::Deleted { header, reference: reference.into() };
            let packet = self.packet(deleted.as_bytes());
            self.line.open(false);
            self.engine.feed(Source::A, &packet, 0, &mut self.line);
            self.line.open(true);
        }
        let sent = (self.line.orders() as u32).wrapping_mul(50);
        self.answer(flags::ACK, 8, tcp::Seq((u32::MAX - 99).wrapping_add(sent)));
    }
}

/// A call of its own, as in an application: what surrounds it then does not change its code.
#[inline(never)]
fn take(rx: &mut RxQueue, frame: &[u8; TICK_BYTES], tick: &mut Parts<'_>) {
    let Some(mut mbuf) = rx_one(rx) else { return };
    if let Some(place) = mbuf.data_mut().and_then(|data| data.first_chunk_mut()) {
        *place = *frame;
    }
    feed_frame(tick.engine, tick.line, Source::A, tick.feed.destination, &mbuf, now_ns());
    rx.cache().put(mbuf);
}

struct Parts<'a> {
    engine: &'a mut Engine<Eager>,
    line: &'a mut OrderLine,
    feed: &'a Headers,
}

impl Work for Tick {
    fn prepare(&mut self) {
        self.settle();
        self.played.complete();
        self.rx.1.complete(RUN as u32, TICK_BYTES as u32);
        self.frames.clear();
        for tick in 0..RUN {
            let add = itch::AddOrder {
                header: itch::Header::new(itch::AddOrder::KIND, LOCATE, 0),
                reference: self.reference.into(),
                side: b'S',
                shares: 100.into(),
                stock: Text::new("AAPL").expect("a name"),
                // Each is better than the one before.
                price: (PRICE - tick as u32).into(),
            };
            self.reference += 1;
            let packet = self.packet(add.as_bytes());
            let mut frame = [0; TICK_BYTES];
            frame[self.feed.len_bytes()..].copy_from_slice(&packet);
            self.feed.write(&mut frame).expect("headers");
            self.frames.push(frame);
        }
        self.runs += 1;
    }

    fn run(&mut self) {
        let Self { rx, engine, line, feed, frames, .. } = self;
        let mut parts = Parts { engine, line, feed };
        for frame in frames.iter() {
            take(&mut rx.0, frame, &mut parts);
        }
    }

    fn verify(&mut self) {
        let (sent, next) = (self.line.orders(), self.engine.orders().next_urn());
        assert_eq!((sent, u64::from(next)), (self.runs * RUN, self.runs * RUN + 1));
        let stats = self.line.tx().stats();
        assert_eq!((stats.full, stats.dropped, stats.fault), (0, 0, None));
        assert!(stats.doorbells >= sent, "a doorbell for each");
        assert_eq!(self.engine.stats(), Default::default());
        assert_eq!(self.engine.orders().mismatches(), 0);
    }
}
