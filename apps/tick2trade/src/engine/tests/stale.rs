//! Books that are behind the market: nothing enters, and the strategy hears when that begins and
//! when it ends.

use zerocopy::IntoBytes;

use super::told::{Listener, Told, header, offer};
use super::*;
use crate::proto::itch;

/// Sends an order at everything that it is told, and notes of what followed which event.
#[derive(Default)]
struct Eager {
    told: Vec<MarketEvent>,
    /// Events at which an order left.
    entered: Vec<MarketEvent>,
}

impl Strategy for Eager {
    fn on_market(&mut self, event: MarketEvent, desk: &mut Desk<'_>) {
        self.told.push(event);
        assert_eq!(desk.is_live(), desk.enter(0, Side::Buy, 0, 0, Stands::AllDay) != STALE);
        if let Some(best) = desk.book(0).and_then(|book| book.best(Side::Sell))
            && desk.enter(0, Side::Buy, 1, best.price, Stands::Immediately).is_ok()
        {
            self.entered.push(event);
        }
    }

    fn on_order(&mut self, _: OrderEvent, desk: &mut Desk<'_>) {
        if !desk.is_live() {
            assert_eq!(desk.enter(0, Side::Buy, 1, 1_000, Stands::Immediately), STALE);
        }
    }
}

const STALE: Result<Option<u32>, Refused> = Err(Refused::Risk(crate::risk::Refused::Stale));

/// How often it was told that books are behind, and that they are not.
fn turns(told: &[MarketEvent]) -> (usize, usize) {
    let count = |one| told.iter().filter(|&&event| event == one).count();
    (count(MarketEvent::Stale), count(MarketEvent::Live))
}

/// A day of which all but the present is history: no order leaves on it.
#[test]
fn a_restart_sends_no_order_on_messages_of_before_it() {
    let mut day = Day::new(31, LOSSLESS, Eager::default());
    day.run(3_000);
    day.finish();
    assert!(!day.orders.is_empty());
    day.engine = Engine::new(config(), Eager::default()).unwrap();
    day.reconnect(1);
    let orders = day.orders.len();
    // The first that is heard is a sign of life, behind everything.
    let heartbeat = day.publisher.heartbeat();
    for line in [Source::A, Source::B] {
        day.engine.feed(line, &heartbeat, day.now, &mut day.wire);
    }
    while day.engine.arbiter().next() < day.publisher.sent() as u64 + 1 {
        assert_eq!((day.wire.sent.len(), day.orders.len()), (0, orders), "orders on history");
        day.now += 3_000 * US;
        day.engine.feed(Source::A, &heartbeat, day.now, &mut day.wire);
        day.recover();
    }
    day.settle();
    let Eager { told, entered } = day.engine.strategy();
    assert_eq!((turns(told), told.last()), ((0, 1), Some(&MarketEvent::Live)));
    assert_eq!(entered, &[MarketEvent::Live], "and then it trades");
    assert!(refused(&day.engine, "stale") > 1_000);
    day.run(100);
    day.finish();
    day.check();
}

/// One message is late: what came before it is known is not traded on, nor what lies behind.
#[test]
fn no_order_leaves_inside_a_gap_and_the_strategy_hears_of_both_its_ends() {
    let mut told = Told::new(Eager::default());
    told.hear_at(offer(1, 100, 1_000).as_bytes(), 0);
    assert_eq!(told.0.strategy().entered.len(), 1);
    told.1 += 1;
    told.hear_at(offer(3, 100, 900).as_bytes(), 0);
    let orders = told.0.orders().next_urn();
    assert_eq!(told.0.strategy().told.last(), Some(&MarketEvent::Stale));
    // An answer and the time are no reason either.
    told.0.answer(b"S\0\0\0\0\0\0\0\0S", 0, &mut Wire::default());
    assert!(told.0.poll(200_000, &mut Wire::default()).is_some());
    assert_eq!(told.0.orders().next_urn(), orders);
    told.1 -= 2;
    told.hear_at(offer(2, 100, 950).as_bytes(), 300_000);
    let Eager { told: events, entered } = told.0.strategy();
    let book = |price| {
        MarketEvent::Book(Change { locate: 7, side: Side::Sell, price, best_changed: true })
    };
    let end = [MarketEvent::Stale, book(950), book(900), MarketEvent::Live];
    assert!(events.ends_with(&end), "{events:?}");
    assert_eq!(entered, &[book(1_000), MarketEvent::Live]);
    assert_eq!(told.0.stats().stale, 1);
}

/// Who joins late trades when everything that was held is in the books.
#[test]
fn a_snapshot_is_traded_on_when_what_happened_since_is_in_it() {
    let mut late = config();
    late.feed.start = feed::Start::Held;
    let mut day = Day::new(32, LOSSLESS, Listener::default());
    day.run(500);
    day.finish();
    let (snapshot, next) = (day.exchange.snapshot(day.now), day.publisher.sent() as u64 + 1);
    let mut engine = Engine::new(late, Eager::default()).unwrap();
    let mut wire = Wire::default();
    engine.feed(Source::A, &day.publisher.heartbeat(), day.now, &mut wire);
    // What happens meanwhile is held: a better offer comes and goes.
    let mut bytes = [0; 256];
    let mut packet = mold::Builder::new(&mut bytes, Text::new("20261122").unwrap(), next).unwrap();
    let better = itch::AddOrder { header: header(b'A', 1), ..offer(1 << 50, 100, 1_000_000) };
    let gone = itch::Deleted { header: header(b'D', 1), reference: (1 << 50).into() };
    assert!(packet.push(better.as_bytes()) && packet.push(gone.as_bytes()));
    engine.feed(Source::A, packet.finish(), day.now, &mut wire);
    assert!(engine.strategy().told.is_empty());
    for (number, message) in (1..).zip(snapshot) {
        engine.snapshot(number, &message, day.now, &mut wire);
    }
    assert_eq!(engine.snapshot(0, &snapshot_end(next), day.now, &mut wire), Snapshot::Whole);
    let Eager { told, entered } = engine.strategy();
    assert_eq!((told.len(), told[0], told[3]), (4, MarketEvent::Joined, MarketEvent::Live));
    assert_eq!(entered, &[MarketEvent::Live]);
}

/// Who joins behind the close hears of it: no message of the feed says so again.
#[test]
fn a_snapshot_tells_how_far_the_day_is() {
    let mut late = config();
    late.feed.start = feed::Start::Held;
    let mut day = Day::new(38, LOSSLESS, Listener::default());
    day.finish();
    day.engine = Engine::new(late, Listener::default()).unwrap();
    day.engine.feed(Source::A, &day.publisher.heartbeat(), 0, &mut day.wire);
    let system = |event| itch::SystemEvent { header: header(b'S', 0), event };
    let (listing, next) = (day.exchange.snapshot(0), day.publisher.sent() as u64 + 1);
    let mut take = |number, message: &[u8]| day.engine.snapshot(number, message, 0, &mut day.wire);
    // Of one that broke off nothing is told.
    take(1, system(b'E').as_bytes());
    take(1, &listing[0]);
    take(2, system(b'Q').as_bytes());
    take(3, system(b'M').as_bytes());
    take(4, &listing[1]);
    assert_eq!(take(5, &snapshot_end(next)), Snapshot::Whole);
    let told = [MarketEvent::Joined, MarketEvent::System(b'M'), MarketEvent::Live];
    assert_eq!(day.engine.strategy().0, told);
    day.engine.market.suspect_all();
    let mut take = |number, message: &[u8]| day.engine.snapshot(number, message, 0, &mut day.wire);
    take(1, system(b'E').as_bytes());
    take(1, &listing[0]);
    day.engine.feed(Source::A, &day.publisher.heartbeat(), 0, &mut day.wire);
    day.engine.snapshot(2, &snapshot_end(next), 0, &mut day.wire);
    let told = [MarketEvent::Stale, MarketEvent::Joined, MarketEvent::Live];
    assert_eq!(day.engine.strategy().0[3..], told);
}

/// A message that does not fit one book makes that one suspect. The others go on until a snapshot
/// comes, whoever is asked for it and whenever he answers.
#[test]
fn books_that_are_right_go_on_until_a_snapshot_begins() {
    let mut day = Day::new(33, LOSSLESS, Listener::default());
    day.run(500);
    day.finish();
    let unknown =
        itch::Deleted { header: header(itch::Deleted::KIND, 2), reference: u64::MAX.into() };
    day.publisher.push(unknown.as_bytes());
    day.run(500);
    day.finish();
    assert!(day.engine.wants_snapshot());
    let health = [1, 2].map(|locate| day.engine.books().get(locate).unwrap().health());
    assert_eq!(health, [Health::Sound, Health::Suspect]);
    let told = &day.engine.strategy().0;
    let at = told.iter().position(|&event| event == MarketEvent::Suspect(2)).unwrap();
    let goes_on =
        |event: &&MarketEvent| matches!(event, MarketEvent::Book(Change { locate: 1, .. }));
    assert!(told[at..].iter().filter(goes_on).count() > 100);
    assert_eq!((turns(told), day.engine.stats().held), ((0, 1), 0));
    let before = told.len();
    // One that nobody asked for does nothing; the one that is wanted is told of, and holds the
    // feed.
    let (snapshot, next) = (day.exchange.snapshot(day.now), day.publisher.sent() as u64 + 1);
    let take = |day: &mut Day<Listener>, number, message: &[u8]| {
        day.engine.snapshot(number, message, day.now, &mut day.wire)
    };
    assert_eq!(take(&mut day, 2, &snapshot[1]), Snapshot::Whole, "not its first message");
    for (number, message) in (1..).zip(&snapshot) {
        assert_eq!(take(&mut day, number, message), Snapshot::GoesOn);
        assert_eq!(day.engine.strategy().0[before..], [MarketEvent::Stale]);
    }
    assert_eq!((day.engine.arbiter().next(), day.engine.stats().held), (0, 1));
    let heartbeat = day.publisher.heartbeat();
    day.engine.feed(Source::A, &heartbeat, day.now, &mut day.wire);
    assert_eq!(take(&mut day, 0, &snapshot_end(next)), Snapshot::Whole);
    let after = [MarketEvent::Stale, MarketEvent::Joined, MarketEvent::Live];
    assert_eq!(day.engine.strategy().0[before..], after);
    assert!(!day.engine.wants_snapshot());
    day.run(100);
    day.finish();
    day.check();
}

/// A book that is too small for its market is wrong for the day: of what found no room nobody asks
/// for a snapshot, neither then nor when it leaves, and the other books go on.
#[test]
fn a_book_that_is_too_small_is_suspect_and_is_not_asked_for_again_and_again() {
    for (orders, levels) in [(2, 16), (16, 2)] {
        let mut config = config();
        (config.books.orders, config.books.levels) = (orders, levels);
        let mut told = Told(Engine::new(config, Listener::default()).unwrap(), 1);
        for (locate, name) in [(7, "AAPL"), (8, "MSFT")] {
            told.hear(&itch::StockDirectory::common(locate, Text::new(name).unwrap(), 0));
        }
        for reference in 1..=3 {
            told.hear(&offer(reference, 100, 1_000 + reference as u32));
        }
        let health = |told: &Told<_>, locate| told.0.books().get(locate).unwrap().health();
        assert_eq!((health(&told, 7), health(&told, 8)), (Health::Suspect, Health::Sound));
        told.hear(&itch::Deleted { header: header(b'D', 7), reference: 3.into() });
        assert_eq!(told.0.books().errors(), 2);
        assert!(!told.0.wants_snapshot());
        // What does not fit another book is another matter.
        told.hear(&itch::Deleted { header: header(b'D', 8), reference: 9.into() });
        assert!(told.0.wants_snapshot());
    }
}

/// Both lines die, and order entry lives: quotes leave the market, and come back with the feed.
#[test]
fn a_quoter_leaves_when_the_feed_is_silent() {
    let mut day = Day::new(34, LOSSLESS, Quoter::new(0, 100, 300));
    while day.engine.orders().count() < 2 {
        day.run(10);
    }
    day.finish();
    let at = day.engine.poll_at().unwrap();
    assert_eq!(at, day.now + SILENCE_NS);
    day.now = at - 1;
    day.recover();
    assert!(day.engine.orders().count() > 0);
    day.now = at;
    day.recover();
    assert_eq!((day.engine.orders().count(), day.engine.stats().stale), (0, 1));
    day.now += SILENCE_NS;
    day.recover();
    let heartbeat = day.publisher.heartbeat();
    day.engine.feed(Source::B, &heartbeat, day.now, &mut day.wire);
    day.settle();
    assert!(day.engine.orders().count() > 0);
    assert_eq!(day.engine.stats().stale, 1);
}

/// Wants to be told of the moment at which the feed counts as silent.
#[derive(Default)]
struct Waker(Vec<(MarketEvent, bool)>);

impl Strategy for Waker {
    fn on_market(&mut self, event: MarketEvent, desk: &mut Desk<'_>) {
        if event == MarketEvent::Live {
            desk.wake_at(SILENCE_NS);
        }
        self.0.push((event, desk.is_live()));
    }

    fn on_order(&mut self, _: OrderEvent, _: &mut Desk<'_>) {}
}

#[test]
fn who_wakes_when_the_feed_is_silent_knows_that_it_is() {
    let mut told = Told::new(Waker::default());
    told.0.poll(SILENCE_NS, &mut Wire::default());
    let end = [(MarketEvent::Stale, false), (MarketEvent::Time, false)];
    assert!(told.0.strategy().0.ends_with(&end), "{:?}", told.0.strategy().0);
}

/// An end that was none, as a packet alone can say: the quoter stands again when the feed goes on.
#[test]
fn a_session_that_goes_on_behind_its_end_is_traded() {
    let mut day = Day::new(37, LOSSLESS, Quoter::new(0, 100, 300));
    while day.engine.orders().count() < 2 {
        day.run(10);
    }
    day.finish();
    let end = day.publisher.end_of_session();
    day.engine.feed(Source::A, &end, day.now, &mut day.wire);
    day.settle();
    assert_eq!((day.engine.orders().count(), day.engine.arbiter().is_live()), (0, false));
    day.run(100);
    day.finish();
    assert!(day.engine.orders().count() > 0 && day.engine.arbiter().is_live());
    day.check();
}

/// What waited in a queue is behind, although no number is missing.
#[test]
fn what_waited_in_a_queue_is_not_traded_on() {
    let mut told = Told::new(Eager::default());
    let wire = &mut Wire::default();
    told.0.set_backlog(true, 0, wire);
    told.hear(&offer(1, 100, 1_000));
    assert!(told.0.has_backlog() && told.0.arbiter().is_live());
    assert!(told.0.strategy().entered.is_empty());
    told.0.set_backlog(false, 0, wire);
    assert_eq!(told.0.strategy().entered, [MarketEvent::Live]);
    assert_eq!((turns(&told.0.strategy().told), told.0.stats().backlogs), ((1, 2), 1));
}
