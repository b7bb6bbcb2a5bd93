//! What a strategy is told beside changes of books: trades, halts, the day's course, the time.

use zerocopy::{Immutable, IntoBytes};

use super::*;
use crate::orders::OwnOrder;
use crate::proto::itch::{self, Header};
use crate::timed::Timed;

/// Notes what it is told.
#[derive(Default)]
pub(super) struct Listener(pub(super) Vec<MarketEvent>);

impl Strategy for Listener {
    fn on_market(&mut self, event: MarketEvent, _: &mut Desk<'_>) {
        self.0.push(event);
    }

    fn on_order(&mut self, _: OrderEvent, _: &mut Desk<'_>) {}
}

/// An engine, and the number of the feed's next message.
pub(super) struct Told<S>(pub(super) Engine<S>, pub(super) u64);

impl<S: Strategy> Told<S> {
    pub(super) fn new(strategy: S) -> Self {
        let mut told = Self(Engine::new(config(), strategy).unwrap(), 1);
        told.hear(&itch::StockDirectory::common(7, Text::new("AAPL").unwrap(), 0));
        told.hear(&trading(b'T'));
        told
    }

    pub(super) fn hear(&mut self, message: &(impl IntoBytes + Immutable)) {
        self.hear_at(message.as_bytes(), 0);
    }

    pub(super) fn hear_at(&mut self, message: &[u8], now_ns: u64) {
        let mut bytes = [0; 128];
        let mut packet = mold::Builder::new(&mut bytes, Text::BLANK, self.1).unwrap();
        assert!(packet.push(message));
        self.1 += 1;
        self.0.feed(Source::A, packet.finish(), now_ns, &mut Wire::default());
    }
}

pub(super) fn header(kind: u8, locate: u16) -> Header {
    Header::new(kind, locate, 0)
}

/// What the feed says of the trading of the security.
fn trading(state: u8) -> itch::TradingAction {
    itch::TradingAction {
        header: header(b'H', 7),
        stock: Text::new("AAPL").unwrap(),
        state,
        reserved: b' ',
        reason: Text::BLANK,
    }
}

pub(super) fn offer(reference: u64, shares: u32, price: u32) -> itch::AddOrder {
    itch::AddOrder {
        header: header(itch::AddOrder::KIND, 7),
        reference: reference.into(),
        side: b'S',
        shares: shares.into(),
        stock: Text::new("AAPL").unwrap(),
        price: price.into(),
    }
}

#[test]
fn trades_halts_and_the_days_course_are_told_and_those_of_other_securities_are_not() {
    let mut told = Told::new(Listener::default());
    let stock = Text::new("AAPL").unwrap();
    for locate in [7, 8] {
        told.hear(&itch::SystemEvent { header: header(b'S', 0), event: b'Q' });
        told.hear(&itch::AddOrder { header: header(b'A', locate), ..offer(1, 100, 1_000) });
        let (reference, match_number) = (1.into(), 11.into());
        told.hear(&itch::Executed {
            header: header(b'E', locate),
            reference,
            shares: 30.into(),
            match_number,
        });
        told.hear(&itch::ExecutedAtPrice {
            header: header(b'C', locate),
            reference,
            shares: 70.into(),
            match_number: 12.into(),
            printable: b'N',
            price: 990.into(),
        });
        told.hear(&itch::Trade {
            header: header(b'P', locate),
            reference,
            side: b'B',
            shares: 5.into(),
            stock,
            price: 995.into(),
            match_number: 13.into(),
        });
        for shares in [0, 1 << 33] {
            told.hear(&itch::CrossTrade {
                header: header(b'Q', locate),
                shares: shares.into(),
                stock,
                price: 997.into(),
                match_number: 14.into(),
                cross: b'O',
            });
        }
        told.hear(&itch::BrokenTrade { header: header(b'B', locate), match_number });
        told.hear(&itch::TradingAction {
            header: header(b'H', locate),
            stock,
            state: b'P',
            reserved: 0,
            reason: Text::BLANK,
        });
        told.hear(&itch::OperationalHalt {
            header: header(b'h', locate),
            stock,
            market: b'Q',
            action: b'H',
        });
        told.hear(&itch::BreakerStatus { header: header(b'W', 0), level: b'2' });
    }
    let end = mold::end_of_session(Text::BLANK, told.1);
    told.0.feed(Source::A, end.as_bytes(), 0, &mut Wire::default());
    let trade = |price, shares, standing, is_counted, match_number| {
        let locate = 7;
        MarketEvent::Trade(Trade { locate, price, shares, standing, is_counted, match_number })
    };
    let book = |best_changed| {
        MarketEvent::Book(Change { locate: 7, side: Side::Sell, price: 1_000, best_changed })
    };
    let expected = [
        MarketEvent::Live,
        MarketEvent::Status { locate: 7, state: b'T' },
        MarketEvent::System(b'Q'),
        book(true),
        book(true),
        trade(1_000, 30, Some(Side::Sell), true, 11),
        book(true),
        trade(990, 70, Some(Side::Sell), false, 12),
        trade(995, 5, None, true, 13),
        trade(997, 1 << 33, None, true, 14),
        MarketEvent::TradeBroken { locate: 7, match_number: 11 },
        MarketEvent::Status { locate: 7, state: b'P' },
        MarketEvent::OperationalHalt { locate: 7, market: b'Q', action: b'H' },
        MarketEvent::Breaker(b'2'),
        MarketEvent::System(b'Q'),
        MarketEvent::Breaker(b'2'),
        MarketEvent::SessionEnded,
        MarketEvent::Stale,
    ];
    assert_eq!(told.0.strategy().0, expected);
}

/// Each message, one byte short: told of, and doubted, are the books that it may have changed.
#[test]
fn a_message_of_a_wrong_length_is_told_of_if_it_may_have_changed_a_book() {
    for &(kind, len) in itch::MESSAGES {
        for locate in [7, 8] {
            let mut told = Told::new(Listener::default());
            let before = told.0.strategy().0.len();
            let mut message = header(kind, locate).as_bytes().to_vec();
            message.resize(len - 1, 0);
            told.hear_at(&message, 0);
            let is_told = locate == 7 && b"AFECXDURHh".contains(&kind);
            let expected: &[_] = if is_told { &[MarketEvent::Suspect(7)] } else { &[] };
            assert_eq!(told.0.strategy().0[before..], *expected, "{}", char::from(kind));
            let is_sound = told.0.books().get(7).unwrap().health() == Health::Sound;
            assert_eq!((is_sound, told.0.wants_snapshot()), (!is_told, is_told));
            assert_eq!(told.0.stats().malformed_messages, 1);
        }
    }
}

/// Buys once when it is told to, and looks at what it has; wakes up three times.
#[derive(Default)]
struct Sleeper {
    woke_ns: Vec<u64>,
    seen: Vec<(i64, Vec<OwnOrder>)>,
}

impl Strategy for Sleeper {
    fn on_market(&mut self, event: MarketEvent, desk: &mut Desk<'_>) {
        match event {
            MarketEvent::Book(_) => {
                desk.enter(0, Side::Buy, 100, 1_000, Stands::AllDay).unwrap().unwrap();
                // Not in the past, and the last word counts.
                desk.wake_at(u64::MAX);
                desk.wake_at(3);
            }
            MarketEvent::Time => {
                self.woke_ns.push(desk.now_ns());
                if self.woke_ns.len() < 3 {
                    desk.wake_at(desk.now_ns() + 100);
                }
            }
            _ => {}
        }
    }

    fn on_order(&mut self, _: OrderEvent, desk: &mut Desk<'_>) {
        assert_eq!(desk.exposure(2), None);
        self.seen.push((desk.position(0), desk.orders().collect()));
    }
}

#[test]
fn a_strategy_wakes_when_it_asked_to_and_sees_its_orders_and_its_position() {
    let mut told = Told::new(Sleeper::default());
    assert_eq!(told.0.poll_at(), Some(SILENCE_NS));
    told.hear_at(offer(1, 100, 1_000).as_bytes(), 1_000);
    let wire = &mut Wire::default();
    assert_eq!(told.0.poll_at(), Some(1_001), "never before the moment is over");
    assert!(told.0.poll(1_000, wire).is_none() && told.0.strategy().woke_ns.is_empty());
    while let Some(at) = told.0.poll_at() {
        told.0.poll(at, wire);
    }
    assert_eq!(told.0.strategy().woke_ns, [1_001, 1_101, 1_201]);
    // What is missing is asked for beside, and at its own time.
    told.1 += 1;
    told.hear_at(offer(2, 100, 1_000).as_bytes(), 5_000);
    let asked = told.0.poll_at().unwrap();
    assert!(told.0.poll(asked, wire).is_some());

    let answer = |bytes: &[u8], told: &mut Told<Sleeper>| {
        told.0.answer(bytes, 0, &mut Wire::default());
    };
    let executed = ouch::answers::Executed {
        kind: ouch::answers::Executed::KIND,
        timestamp_ns: 0.into(),
        urn: 1.into(),
        quantity: 40.into(),
        price: 1_000.into(),
        liquidity: b'R',
        match_number: 1.into(),
    };
    let mut bytes = [0; 64];
    let len = ouch::write(&executed, &[], &mut bytes).unwrap();
    answer(&bytes[..len], &mut told);
    let order = OwnOrder { urn: 1, security: 0, side: Side::Buy, price: 1_000, left: 60 };
    assert_eq!(told.0.strategy().seen, [(40, vec![order])]);
}

/// Offers at everything that it is told, and notes what lets it.
#[derive(Default)]
struct Tester(Vec<(MarketEvent, bool)>);

impl Strategy for Tester {
    fn on_market(&mut self, event: MarketEvent, desk: &mut Desk<'_>) {
        let entered = desk.enter(0, Side::Buy, 1, 1_000, Stands::Immediately);
        self.0.push((event, entered.is_ok()));
    }

    fn on_order(&mut self, _: OrderEvent, _: &mut Desk<'_>) {}
}

/// No order enters a book of which nobody has said that it trades, nor one that our market halts.
#[test]
fn a_book_trades_when_the_feed_says_so_and_our_market_does_not_halt_it() {
    let mut told = Told(Engine::new(config(), Tester::default()).unwrap(), 1);
    told.hear(&itch::StockDirectory::common(7, Text::new("AAPL").unwrap(), 0));
    let mut expected = vec![(MarketEvent::Live, false)];
    let mut hear = |told: &mut Told<Tester>, event, is_open| {
        expected.push((event, is_open));
        assert_eq!(told.0.strategy().0, expected);
    };
    let status = |state| MarketEvent::Status { locate: 7, state };
    let halt = |market, action| {
        let stock = Text::new("AAPL").unwrap();
        let message = itch::OperationalHalt { header: header(b'h', 7), stock, market, action };
        (message, MarketEvent::OperationalHalt { locate: 7, market, action })
    };
    told.hear(&offer(1, 100, 1_000));
    let (locate, side, price, best_changed) = (7, Side::Sell, 1_000, true);
    hear(&mut told, MarketEvent::Book(Change { locate, side, price, best_changed }), false);
    told.hear(&trading(b'T'));
    hear(&mut told, status(b'T'), true);
    for (market, action, is_open) in
        [(b'B', b'H', true), (b'Q', b'H', false), (b'B', b'T', false), (b'Q', b'T', true)]
    {
        let (message, event) = halt(market, action);
        told.hear(&message);
        hear(&mut told, event, is_open);
    }
    // Halted by all, and by ours beside: both have to end.
    told.hear(&halt(b'Q', b'H').0);
    hear(&mut told, halt(b'Q', b'H').1, false);
    told.hear(&trading(b'H'));
    hear(&mut told, status(b'H'), false);
    told.hear(&halt(b'Q', b'T').0);
    hear(&mut told, halt(b'Q', b'T').1, false);
    told.hear(&trading(b'T'));
    hear(&mut told, status(b'T'), true);
}

#[test]
fn a_quoter_leaves_a_market_that_is_halted_closed_or_over_and_comes_back_when_it_trades() {
    let mut day = Day::new(15, LOSSLESS, Quoter::new(0, 100, 300));
    let stands = |day: &mut Day<Quoter>, message: &[u8]| {
        day.publisher.push(message);
        day.broadcast();
        day.finish();
        day.engine.orders().count()
    };
    while day.engine.orders().count() == 0 {
        day.run(100);
    }
    let state = |state| itch::TradingAction {
        header: header(b'H', 1),
        stock: Text::new("AAPL").unwrap(),
        state,
        reserved: 0,
        reason: Text::BLANK,
    };
    let system = |event| itch::SystemEvent { header: header(b'S', 0), event };
    assert_eq!(stands(&mut day, state(b'H').as_bytes()), 0);
    assert!(stands(&mut day, state(b'T').as_bytes()) > 0);
    assert_eq!(stands(&mut day, system(b'M').as_bytes()), 0);
    day.run(500);
    assert_eq!(day.engine.orders().count(), 0, "closed");
    assert!(stands(&mut day, system(b'Q').as_bytes()) > 0);
    let end = day.publisher.end_of_session();
    day.engine.feed(Source::A, &end, day.now, &mut day.wire);
    day.settle();
    assert_eq!(day.engine.orders().count(), 0);
}

/// Keeps when the strategy was told.
#[derive(Default)]
struct Clock(Vec<u64>);

impl Outbox for Clock {
    fn send(&mut self, _: &[u8]) -> bool {
        true
    }

    fn told(&mut self, at_ns: u64) {
        self.0.push(at_ns);
    }
}

/// Who measures nothing reads no clock for each message.
#[test]
fn a_clock_is_read_for_the_strategy_only_where_times_are_wanted() {
    for is_timed in [false, true] {
        let mut told = Told::new(Timed::new(Listener::default(), is_timed));
        let (mut bytes, before) = ([0; 128], told.0.strategy().inner().0.len());
        let mut packet = mold::Builder::new(&mut bytes, Text::BLANK, told.1).unwrap();
        assert!(packet.push(offer(1, 100, 1_500_000).as_bytes()));
        assert!(packet.push(offer(2, 100, 1_499_900).as_bytes()));
        let mut clock = Clock::default();
        told.0.feed(Source::A, packet.finish(), 0, &mut clock);
        let heard = told.0.strategy().inner().0.len() - before;
        assert!(heard >= 2, "it is told either way");
        assert_eq!(clock.0.len(), if is_timed { heard } else { 0 });
        assert!(clock.0.is_sorted() && !clock.0.contains(&0));
    }
}
