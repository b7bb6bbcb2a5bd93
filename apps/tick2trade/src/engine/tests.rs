//! Whole days in one process: an exchange with its crowd, two lines that lose, an engine.

mod collar;
mod refused;
mod stale;
mod told;

use std::collections::{HashMap, VecDeque};

use super::*;
use crate::book::Health;
use crate::exchange::{Account, Crowd, CrowdConfig, Exchange, ListedSecurity, Output, Publisher};
use crate::orders::OrderEvent;
use crate::proto::ouch::Answer;
use crate::proto::soup::{Client, ClientConfig, ClientEvent, Ended, Splitter};
use crate::proto::{Side, Text};
use crate::risk::Limits;
use crate::strategy::{Quoter, Stands, Taker};
use zerocopy::IntoBytes;

const US: u64 = 1_000;
/// How long a feed may say nothing.
const SILENCE_NS: u64 = 2_500_000_000;

/// What an engine sent, packet by packet.
#[derive(Default)]
struct Wire {
    sent: Vec<Vec<u8>>,
    refuses: bool,
}

impl Outbox for Wire {
    fn send(&mut self, packet: &[u8]) -> bool {
        if !self.refuses {
            self.sent.push(packet.to_vec());
        }
        !self.refuses
    }
}

/// Which packets a line loses.
type Loss = fn(line: usize, packet: usize) -> bool;

/// An exchange, its member, and the wires between them.
struct Day<S> {
    now: u64,
    exchange: Exchange,
    crowd: Crowd,
    publisher: Publisher,
    account: Account,
    engine: Engine<S>,
    client: Client,
    splitter: Splitter,
    wire: Wire,
    /// Every packet of orders that left, over all connections.
    orders: Vec<Vec<u8>>,
    to_member: Vec<u8>,
    packets: usize,
    loss: Loss,
    /// Packets of line B are this many behind those of line A.
    late: VecDeque<Option<Vec<u8>>>,
}

fn config() -> EngineConfig {
    let symbols = ["AAPL", "MSFT"].map(|symbol| Text::new(symbol).unwrap()).to_vec();
    let limits = Limits {
        rate: 65_536,
        position_shares: 1_000_000,
        credit: u64::MAX / 4,
        ..Limits::default()
    };
    let orders = OrdersConfig { symbols, limits, ..OrdersConfig::default() };
    EngineConfig { orders, ..EngineConfig::default() }
}

impl<S: Strategy> Day<S> {
    fn new(seed: u64, loss: Loss, strategy: S) -> Self {
        let names = ["AAPL", "MSFT"].map(|name| Text::new(name).unwrap());
        let mut exchange = Exchange::new(names.map(|stock| ListedSecurity { stock }).to_vec());
        let session = Text::new("20261122").unwrap();
        let user = Text::new("ferro").unwrap();
        let mut out = Output::default();
        exchange.open(1, 0, &mut out);
        let (client, splitter) = (ClientConfig { user, ..ClientConfig::default() }, Vec::new());
        let mut login = splitter;
        let mut day = Self {
            now: 0,
            exchange,
            crowd: Crowd::new(CrowdConfig { seed, ..CrowdConfig::default() }, 2),
            publisher: Publisher::new(session, 1400, 0),
            account: Account::new(user, Text::BLANK, session, 0),
            engine: Engine::new(config(), strategy).unwrap(),
            client: Client::new(client, 0, &mut login),
            splitter: Splitter::new(1000),
            wire: Wire::default(),
            orders: Vec::new(),
            to_member: Vec::new(),
            packets: 0,
            loss,
            late: VecDeque::new(),
        };
        day.connect(login);
        day.publish(out);
        day
    }

    fn connect(&mut self, login: Vec<u8>) {
        self.account.connected(self.now);
        assert!(self.account.receive(&login, self.now, &mut self.to_member, |_| ()));
    }

    /// What the exchange said goes its ways.
    fn publish(&mut self, out: Output) {
        out.feed.iter().for_each(|message| self.publisher.push(message));
        out.answers.iter().for_each(|(_, answer)| self.account.push(answer));
    }

    /// Orders that left reach the exchange, and its answers the engine, until all is quiet.
    fn settle(&mut self) {
        loop {
            for packet in std::mem::take(&mut self.wire.sent) {
                self.client.sent(self.now);
                let (exchange, now) = (&mut self.exchange, self.now);
                let mut out = Output::default();
                assert!(self.account.receive(&packet, now, &mut self.to_member, |request| {
                    exchange.request(0, request, now, &mut out);
                }));
                self.orders.push(packet);
                self.publish(out);
            }
            assert!(self.account.poll(self.now, &mut self.to_member));
            let bytes = std::mem::take(&mut self.to_member);
            if bytes.is_empty() {
                return;
            }
            let mut input = &bytes[..];
            while let Some(packet) = self.splitter.next(&mut input).unwrap() {
                if let ClientEvent::Sequenced { payload, .. } =
                    self.client.receive(packet, self.now)
                {
                    self.engine.answer(payload, self.now, &mut self.wire);
                }
            }
            let mut heartbeat = Vec::new();
            assert_eq!(self.client.poll(self.now, &mut heartbeat), None);
            assert!(self.account.receive(&heartbeat, self.now, &mut Vec::new(), |_| ()));
        }
    }

    /// Packets that are due go out by both lines, each with its own loss.
    fn broadcast(&mut self) {
        while let Some(packet) = self.publisher.next_packet(3) {
            let [a, b] = [0, 1].map(|line| !(self.loss)(line, self.packets));
            self.packets += 1;
            if a {
                self.engine.feed(Source::A, &packet, self.now, &mut self.wire);
            }
            self.late.push_back(b.then_some(packet));
            if self.late.len() > 2
                && let Some(Some(packet)) = self.late.pop_front()
            {
                self.engine.feed(Source::B, &packet, self.now, &mut self.wire);
            }
            self.settle();
        }
    }

    fn recover(&mut self) {
        if let Some(request) = self.engine.poll(self.now, &mut self.wire)
            && let Some(answer) = self.publisher.answer(&request.packet)
        {
            self.engine.feed(Source::Retransmission, &answer, self.now, &mut self.wire);
        }
        self.settle();
    }

    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            self.now += 10 * US;
            let mut out = Output::default();
            self.crowd.step(&mut self.exchange, self.now, &mut out);
            self.publish(out);
            self.broadcast();
            self.recover();
        }
    }

    /// Nothing more happens but that what was lost is found.
    fn finish(&mut self) {
        for _ in 0..100_000 {
            self.now += 10 * US;
            self.broadcast();
            let heartbeat = self.publisher.heartbeat();
            self.engine.feed(Source::A, &heartbeat, self.now, &mut self.wire);
            self.recover();
            if !self.engine.arbiter().has_gap() {
                return;
            }
        }
        panic!("gaps are not closed: {:?}", self.engine.arbiter().next());
    }

    /// Books are the exchange's, and positions the sum of what was executed.
    fn check(&self) {
        let books = self.engine.books();
        books.check().unwrap();
        assert_eq!(self.engine.arbiter().next(), self.publisher.sent() as u64 + 1);
        for locate in 1..=2 {
            let book = books.get(locate).unwrap();
            assert_eq!(book.health(), Health::Sound);
            for side in [Side::Buy, Side::Sell] {
                let best = book.best(side).map(|level| level.price);
                assert_eq!(best, self.exchange.best(locate, side));
            }
        }
        let position = |security| self.engine.orders().risk().exposure(security).unwrap().position;
        assert_eq!([0, 1].map(position), self.positions());
        assert_eq!(self.engine.orders().mismatches(), 0);
    }

    /// Shares of each security that the exchange's answers of the day come to.
    fn positions(&self) -> [i64; 2] {
        let (mut orders, mut positions) = (HashMap::new(), [0; 2]);
        for answer in self.account.answers() {
            let (urn, symbol, side) = match Answer::parse(answer).unwrap().0 {
                Answer::Accepted(order) => (order.urn, order.symbol, order.side),
                Answer::Replaced(order) => (order.urn, order.symbol, order.side),
                Answer::Executed(trade) => {
                    let (security, buys): (usize, bool) = orders[&trade.urn.get()];
                    let shares = i64::from(trade.quantity.get());
                    positions[security] += if buys { shares } else { -shares };
                    continue;
                }
                _ => continue,
            };
            let symbols = self.engine.orders().symbols();
            let security = symbols.iter().position(|&name| name == symbol).unwrap();
            orders.insert(urn.get(), (security, side == b'B'));
        }
        positions
    }
}

const LOSSLESS: Loss = |_, _| false;

fn taker() -> Taker {
    Taker::new(0, 1_500_000, 100)
}

#[test]
fn a_taker_buys_what_is_offered_at_its_price() {
    let mut day = Day::new(1, LOSSLESS, taker());
    day.run(20_000);
    day.finish();
    day.check();
    let position = day.engine.orders().risk().exposure(0).unwrap().position;
    assert!(position > 100, "{position} shares");
    assert_eq!(day.engine.stats(), EngineStats::default());
    let bought =
        day.account.answers().filter_map(|answer| match Answer::parse(answer).unwrap().0 {
            Answer::Executed(trade) => Some(trade.price.get()),
            _ => None,
        });
    assert!(bought.clone().count() > 0 && bought.clone().all(|price| price <= 1_500_000));
}

#[test]
fn a_quoter_stands_on_both_sides_and_trades() {
    let mut day = Day::new(2, LOSSLESS, Quoter::new(1, 100, 300));
    day.run(20_000);
    day.finish();
    day.check();
    let executed = day.account.answers().filter(|answer| answer[0] == b'E').count();
    assert!(executed > 10, "{executed} trades");
}

/// Bids at the best price, and follows it by replacing its order.
#[derive(Default)]
struct Follower {
    standing: Option<(u32, u32)>,
    moved: u32,
}

impl Strategy for Follower {
    fn on_market(&mut self, _: MarketEvent, desk: &mut Desk<'_>) {
        let Some(best) = desk.book(0).and_then(|book| book.best(Side::Buy)) else { return };
        self.standing = match self.standing.filter(|&(urn, _)| desk.left(urn).is_some()) {
            None => {
                let entered = desk.enter(0, Side::Buy, 100, best.price, Stands::AllDay);
                entered.ok().flatten().map(|urn| (urn, best.price))
            }
            Some((urn, price)) if price != best.price => {
                let new = desk.replace(urn, 100, best.price).ok().flatten();
                Some(new.map_or((urn, price), |new| (new, best.price)))
            }
            standing => standing,
        };
    }

    fn on_order(&mut self, event: OrderEvent, _: &mut Desk<'_>) {
        self.moved += u32::from(matches!(event, OrderEvent::Replaced { .. }));
    }
}

#[test]
fn an_order_that_is_replaced_again_and_again_is_one_order() {
    let mut day = Day::new(10, LOSSLESS, Follower::default());
    day.run(20_000);
    day.finish();
    day.check();
    assert!(day.engine.strategy().moved > 50, "{} moves", day.engine.strategy().moved);
    assert!(day.engine.orders().count() <= 1, "{} orders", day.engine.orders().count());
}

/// Replaces its order, and wants out before the exchange has answered that.
#[derive(Default)]
struct Fickle {
    sent: [u32; 2],
}

impl Strategy for Fickle {
    fn on_market(&mut self, _: MarketEvent, desk: &mut Desk<'_>) {
        let Some(best) = desk.book(0).and_then(|book| book.best(Side::Buy)) else { return };
        let price = best.price - 10_000;
        if self.sent == [0; 2]
            && let Ok(Some(urn)) = desk.enter(0, Side::Buy, 100, price, Stands::AllDay)
        {
            let new = desk.replace(urn, 100, price - 10_000).unwrap().unwrap();
            let next = desk.replace(new, 100, price - 20_000).unwrap().unwrap();
            self.sent = [urn, next];
            assert_eq!(desk.cancel(urn), Ok(true));
        }
    }

    fn on_order(&mut self, _: OrderEvent, _: &mut Desk<'_>) {}
}

/// The exchange has replaced it before it hears of the cancel, and says nothing of that one.
#[test]
fn who_cancels_an_order_that_is_being_replaced_is_left_with_none() {
    let mut day = Day::new(36, LOSSLESS, Fickle::default());
    day.run(100);
    let [first, last] = day.engine.strategy().sent;
    assert!(first != 0 && last == first + 2, "{first} {last}");
    assert_eq!((day.engine.orders().count(), day.engine.orders().mismatches()), (0, 0));
    let cancels = day.orders.iter().filter(|packet| packet[3] == b'X').count();
    assert_eq!(cancels, 3, "whichever the exchange has");
}

#[test]
fn three_runs_of_a_day_send_the_same_orders_to_the_byte() {
    let run = || {
        let loss: Loss = |line, packet| (packet * 7 + line * 31).is_multiple_of(97);
        let mut day = Day::new(3, loss, Quoter::new(0, 100, 300));
        day.run(5_000);
        day.orders
    };
    let first = run();
    assert!(first.len() > 100, "{} orders", first.len());
    assert_eq!(first, run());
    assert_eq!(first, run());
}

/// The figures: 1 % of each line, and a burst of 10,000 messages of both.
#[test]
fn after_loss_on_both_lines_no_message_is_missing() {
    let loss: Loss = |line, packet| {
        let mut hash = (packet as u64 * 2 + line as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 29;
        hash.is_multiple_of(100) || (5_000..15_000).contains(&packet)
    };
    let mut day = Day::new(4, loss, taker());
    day.run(40_000);
    day.finish();
    day.check();
    let stats = day.engine.arbiter().stats();
    assert!(stats.gaps > 100 && stats.requests > 300, "{} {}", stats.gaps, stats.requests);
    assert_eq!((stats.lost, stats.lines[2].won > 9_000), (0, true));
    assert!(stats.recovery_ns.max() > 0);
}

#[test]
fn messages_lost_for_good_are_said_and_no_order_trusts_the_book() {
    // Both lines lose one packet, and nobody answers requests.
    let loss: Loss = |_, packet| packet == 500;
    let mut day = Day::new(5, loss, taker());
    for _ in 0..3_000 {
        day.now += 10 * US;
        let mut out = Output::default();
        day.crowd.step(&mut day.exchange, day.now, &mut out);
        day.publish(out);
        day.broadcast();
        day.engine.poll(day.now, &mut day.wire);
    }
    assert!(day.engine.arbiter().stats().lost > 0);
    assert!(day.engine.books().iter().all(|book| book.health() == Health::Suspect));
    let orders = day.orders.len();
    day.run(5_000);
    assert_eq!(day.orders.len(), orders, "no order on a book that may be wrong");
}

#[test]
fn a_restart_takes_up_where_it_was_with_no_order_doubled_and_none_lost() {
    let mut day = Day::new(6, LOSSLESS, Quoter::new(0, 100, 300));
    day.run(8_000);
    // Killed: nothing is left but what the exchange has. The feed starts anew, from its history.
    let before = day.engine.orders().risk().exposure(0);
    let (standing, next) = (day.engine.orders().count(), day.engine.orders().next_urn());
    let user = Text::new("ferro").unwrap();
    let mut login = Vec::new();
    day.engine = Engine::new(config(), Quoter::new(0, 100, 300)).unwrap();
    day.client = Client::new(ClientConfig { user, ..ClientConfig::default() }, 0, &mut login);
    day.splitter = Splitter::new(1000);
    // The day's answers first, with nothing to trade on: books come after.
    day.connect(login);
    day.settle();
    assert_eq!(day.engine.orders().risk().exposure(0), before);
    assert_eq!((day.engine.orders().count(), day.engine.orders().next_urn()), (standing, next));
    day.finish();
    day.run(8_000);
    day.finish();
    day.check();
    let mut urns: Vec<u32> = day
        .orders
        .iter()
        .filter(|packet| packet[3] == b'O')
        .map(|packet| u32::from_be_bytes([packet[4], packet[5], packet[6], packet[7]]))
        .collect();
    let sent = urns.len();
    urns.dedup();
    assert_eq!(urns.len(), sent, "no number was used twice");
    assert!(urns.is_sorted());
}

#[test]
fn no_order_leaves_after_the_kill_switch() {
    let mut day = Day::new(7, LOSSLESS, Quoter::new(0, 100, 300));
    while day.engine.orders().count() == 0 {
        day.run(100);
    }
    assert!(day.engine.kill(0, &mut day.wire));
    day.settle();
    assert_eq!(day.engine.orders().count(), 0, "the exchange cancelled everything");
    let sent = day.orders.len();
    day.run(5_000);
    assert!(day.orders[sent..].iter().all(|packet| packet[3] == b'X'), "cancels at most");
    assert!(refused(&day.engine, "killed") > 0, "each that did not leave is counted");
}

/// How often a check refused something for a reason.
fn refused<S: Strategy>(engine: &Engine<S>, reason: &str) -> u64 {
    engine.refused().find(|&(name, _)| name == reason).unwrap().1
}

/// Wants more shares than an order may have, then cancels and replaces what never was.
struct Clumsy;

impl Strategy for Clumsy {
    fn on_market(&mut self, event: MarketEvent, desk: &mut Desk<'_>) {
        if matches!(event, MarketEvent::Time) {
            assert!(desk.enter(0, Side::Buy, 1_000_000, 1, Stands::AllDay).is_err());
            assert!(desk.cancel(77).is_err() && desk.replace(78, 1, 1).is_err());
        } else {
            desk.wake_at(desk.now_ns());
        }
    }

    fn on_order(&mut self, _: OrderEvent, _: &mut Desk<'_>) {}
}

#[test]
fn what_a_check_refuses_is_counted_by_its_reason_and_nothing_leaves() {
    let mut day = Day::new(1, LOSSLESS, Clumsy);
    day.run(100);
    let [shares, unknown] = ["shares", "no_such_order"].map(|reason| refused(&day.engine, reason));
    assert!(shares > 0 && unknown == 2 * shares, "{shares} {unknown}");
    assert_eq!(day.engine.refused().map(|(_, count)| count).sum::<u64>(), 3 * shares);
    assert_eq!(day.orders.len(), 0);
}

#[test]
fn what_the_connection_does_not_take_was_never_sent() {
    let mut day = Day::new(8, LOSSLESS, taker());
    day.wire.refuses = true;
    day.run(20_000);
    assert!(day.engine.stats().unsent > 0);
    assert_eq!((day.orders.len(), day.engine.orders().count()), (0, 0));
    assert_eq!(day.engine.orders().risk().owed(), 0);
}

#[test]
fn malformed_input_is_counted_and_makes_books_suspect() {
    let mut day = Day::new(9, LOSSLESS, taker());
    day.run(100);
    day.engine.feed(Source::A, b"short", 0, &mut day.wire);
    day.engine.answer(b"?", 0, &mut day.wire);
    assert_eq!(day.engine.stats().malformed_packets, 1);
    assert_eq!(day.engine.stats().malformed_answers, 1);
    assert_eq!(day.engine.books().get(1).unwrap().health(), Health::Sound);
    // A kind that came later, a message of no bytes, and one that says nothing of books.
    day.publisher.push(b"z of a kind that came later");
    day.publisher.push(b"");
    day.publisher.push(b"I\0\x01 is cut");
    let health =
        |day: &Day<_>| [1, 2].map(|locate| day.engine.books().get(locate).unwrap().health());
    day.broadcast();
    let stats = day.engine.stats();
    assert_eq!((stats.malformed_messages, stats.unknown_messages), (2, 1));
    assert_eq!(health(&day), [Health::Sound; 2]);
    assert!(!day.engine.wants_snapshot());
    // Of one that does, the book that it is about; and all of them if that cannot be read, either.
    day.publisher.push(b"A\0\x01 is cut");
    day.broadcast();
    assert_eq!(health(&day), [Health::Suspect, Health::Sound]);
    assert!(day.engine.wants_snapshot());
    day.publisher.push(b"A\0");
    day.broadcast();
    assert_eq!(health(&day), [Health::Suspect; 2]);
    assert_eq!(day.engine.stats().malformed_messages, 4);
}

/// An answer with more behind it than its lengths say is taken by its fixed part; one that is cut,
/// and moved shares, stops order entry.
#[test]
fn a_fill_that_cannot_be_read_is_not_passed_over() {
    let executed = |day: &mut Day<Quoter>, cut: usize| {
        let order = day.engine.orders().standing().next().unwrap();
        let executed = ouch::answers::Executed {
            kind: ouch::answers::Executed::KIND,
            timestamp_ns: 0.into(),
            urn: order.urn.into(),
            quantity: 1.into(),
            price: u64::from(order.price).into(),
            liquidity: b'A',
            match_number: 1.into(),
        };
        let mut bytes = executed.as_bytes().to_vec();
        bytes.extend([0, 0, 0, 0]);
        day.engine.answer(&bytes[..bytes.len() - cut], day.now, &mut day.wire);
        order
    };
    let mut day = Day::new(35, LOSSLESS, Quoter::new(0, 100, 300));
    while day.engine.orders().count() == 0 {
        day.run(100);
    }
    let order = executed(&mut day, 0);
    let orders = day.engine.orders();
    assert_eq!((orders.left(order.urn), orders.mismatches()), (Some(order.left - 1), 0));
    day.engine.answer(b"? of a kind that came later", day.now, &mut day.wire);
    assert_eq!(day.engine.orders().mismatches(), 0, "what it says is for nobody here");
    executed(&mut day, 5);
    let orders = day.engine.orders();
    assert_eq!((orders.mismatches(), day.engine.stats().malformed_answers), (1, 3));
    assert!(orders.risk().is_stopped_by(Stop::Doubtful) && orders.is_asking());
}

impl<S: Strategy> Day<S> {
    /// The member connects again, and hears every answer from this one on.
    fn reconnect(&mut self, next: u64) {
        let (mut login, user) = (Vec::new(), Text::new("ferro").unwrap());
        let config = ClientConfig { user, next, ..ClientConfig::default() };
        self.client = Client::new(config, self.now, &mut login);
        self.splitter = Splitter::new(1000);
        self.connect(login);
        self.settle();
    }
}

/// The end of a snapshot behind which the feed goes on from this message.
fn snapshot_end(next: u64) -> Vec<u8> {
    let mut end = b"G".to_vec();
    end.extend(Text::<20>::number(next).unwrap().0);
    end
}

#[test]
fn who_joins_late_has_the_books_as_they_stand_and_what_happened_since() {
    let mut day = Day::new(11, LOSSLESS, Quoter::new(0, 100, 300));
    day.run(5_000);
    day.finish();
    let mut late = config();
    late.feed.start = feed::Start::Held;
    day.engine = Engine::new(late, Quoter::new(0, 100, 300)).unwrap();
    day.reconnect(1);
    let (snapshot, next) = (day.exchange.snapshot(day.now), day.publisher.sent() as u64 + 1);
    // The feed goes on, and all of it is held: nobody trades on books that are not there.
    let orders = day.orders.len();
    day.run(500);
    assert_eq!((day.orders.len(), day.engine.arbiter().next()), (orders, 0));
    let take = |day: &mut Day<_>, number, message: &[u8]| {
        day.engine.snapshot(number, message, day.now, &mut day.wire)
    };
    // One that breaks off is followed by another, from its first message.
    for messages in [&snapshot[..snapshot.len() / 2], &snapshot] {
        for (number, message) in (1..).zip(messages) {
            assert_eq!(take(&mut day, number, message), Snapshot::GoesOn);
        }
    }
    assert_eq!(day.orders.len(), orders);
    // An end that the feed is not near is a lie, and changes nothing.
    for lie in [0, next + (1 << 20), u64::MAX] {
        assert_eq!(take(&mut day, 0, &snapshot_end(lie)), Snapshot::Broken, "{lie}");
    }
    assert_eq!((day.engine.stats().broken_snapshots, day.engine.arbiter().next()), (3, 0));
    assert_eq!(take(&mut day, 0, &snapshot_end(next)), Snapshot::Whole);
    assert_eq!(day.engine.arbiter().stats().joined_at, next);
    day.settle();
    day.finish();
    day.check();
    assert_eq!(day.engine.books().errors(), 0);
    assert_eq!(day.engine.arbiter().stats().requests, 0, "nothing of before was asked for");
    day.run(5_000);
    day.finish();
    day.check();
    assert!(day.orders.len() > orders, "it trades");
    assert_eq!(take(&mut day, 1, &snapshot[0]), Snapshot::Whole, "what runs takes no snapshot");
    day.check();
}

#[test]
fn a_snapshot_that_cannot_be_read_makes_the_books_suspect() {
    let mut held = config();
    held.feed.start = feed::Start::Held;
    let (mut engine, mut wire) = (Engine::new(held, taker()).unwrap(), Wire::default());
    let Day { mut exchange, publisher, .. } = Day::new(13, LOSSLESS, taker());
    let mut out = Output::default();
    exchange.crowd_order(1, Side::Sell, 100, 1_400_000, 0, &mut out).unwrap();
    for (number, message) in (1..).zip(exchange.snapshot(0)) {
        assert_eq!(engine.snapshot(number, &message, 0, &mut wire), Snapshot::GoesOn);
    }
    assert_eq!(engine.snapshot(90, b"A", 0, &mut wire), Snapshot::GoesOn);
    for end in [&b"G cut"[..], b"", &snapshot_end(1)] {
        assert_eq!(engine.snapshot(91, end, 0, &mut wire), Snapshot::Broken, "no feed was heard");
    }
    let stats = engine.stats();
    assert_eq!((stats.malformed_messages, stats.broken_snapshots), (1, 3));
    engine.feed(Source::A, &publisher.heartbeat(), 0, &mut wire);
    assert_eq!(engine.snapshot(92, &snapshot_end(1), 0, &mut wire), Snapshot::Whole);
    assert!(engine.books().iter().all(|book| book.health() == Health::Suspect));
}

#[test]
fn what_stood_of_a_member_that_was_cut_off_is_gone_and_it_hears_so_when_it_is_back() {
    let mut day = Day::new(12, LOSSLESS, Quoter::new(0, 100, 300));
    while day.engine.orders().count() == 0 {
        day.run(100);
    }
    let (heard, stood) = (day.account.answered(), day.engine.orders().count());
    let mut out = Output::default();
    day.account.disconnected();
    day.exchange.disconnected(0, day.now, &mut out);
    let reasons = out.answers.iter().map(|(_, answer)| match Answer::parse(answer).unwrap().0 {
        Answer::Cancelled(off) => off.reason,
        other => panic!("{other:?}"),
    });
    assert_eq!(reasons.collect::<Vec<_>>(), vec![b'Z'; stood]);
    day.publish(out);
    assert_eq!(day.engine.orders().count(), stood, "nothing is believed but an answer");
    // What it would enter instead does not leave.
    day.wire.refuses = true;
    day.reconnect(heard as u64 + 1);
    assert_eq!((day.engine.orders().count(), day.engine.orders().risk().owed()), (0, 0));
    day.finish();
    day.check();
}

/// Forward by an hour, as a machine that stood still: the session is dead, gaps are asked for at
/// once. Back by a moment, which the clock of this program never does: nothing is worse than late.
#[test]
fn a_clock_that_jumps_costs_a_session_and_no_message_and_no_order() {
    let loss: Loss = |line, packet| (packet * 7 + line * 31).is_multiple_of(37);
    let mut day = Day::new(14, loss, Quoter::new(0, 100, 300));
    day.run(3_000);
    let mut heartbeat = Vec::new();
    for _ in 0..2 {
        day.now += 3_600_000_000 * US;
        assert_eq!(day.client.poll(day.now, &mut heartbeat), Some(Ended::Silent));
        day.reconnect(day.account.answered() as u64 + 1);
        day.run(1_000);
        day.now -= 100_000 * US;
        day.run(1_000);
    }
    day.finish();
    day.check();
    assert_eq!(day.engine.arbiter().stats().lost, 0);
    let urns = |kind| {
        day.orders.iter().filter(move |packet| packet[3] == kind).map(|packet| &packet[4..8])
    };
    assert!(urns(b'O').is_sorted_by(|a, b| a < b), "no number twice");
}
