//! What goes wrong on a day, on the model: connections that are cut, silent, slow or refused, an
//! exchange that lies, frames that nobody should have sent, and a feed that is faster than we are.
//!
//! Trader, device and exchange take turns in one thread: whatever the machine does beside, each
//! test waits for a state, and counts.

mod day;

use std::net::{Ipv4Addr, SocketAddrV4};

use day::{Day, lock};
use ferrocx_net::ether::MacAddr;
use ferrocx_net::packet::{Headers, Transport};
use ferrocx_tick2trade::book::{Health, Level};
use ferrocx_tick2trade::engine::{Engine, EngineConfig};
use ferrocx_tick2trade::exchange::VenueConfig;
use ferrocx_tick2trade::gateway::{GatewayState, GatewayStats};
use ferrocx_tick2trade::latency::now_ns;
use ferrocx_tick2trade::proto::ouch::Answer;
use ferrocx_tick2trade::proto::soup::{Ended, Reject};
use ferrocx_tick2trade::proto::{Side, Text, mold};
use ferrocx_tick2trade::risk::Stop;
use ferrocx_tick2trade::strategy::{Outbox, Quoter};
use ferrocx_tick2trade::trader::Dropped;

impl Day {
    fn stats(&mut self) -> GatewayStats {
        self.trader.gateway().stats()
    }

    /// The crowd does so many things, the trader what follows, and all is heard.
    fn pass(&mut self, steps: usize) {
        self.run(steps);
        self.settle();
    }

    /// The member's connection works again, and the day goes on.
    fn resume(&mut self) {
        self.until("to open again", |day| day.trader.gateway().state() == GatewayState::Open);
        self.trade();
    }

    /// Books are the exchange's, and orders what its answers say to one who hears all of them anew.
    fn check(&mut self) {
        self.settle();
        let engine = self.trader.engine();
        engine.books().check().unwrap();
        let mut levels = 0;
        for book in engine.books().iter() {
            assert_eq!(book.health(), Health::Sound);
            for side in [Side::Buy, Side::Sell] {
                let level = |level: Level| (level.price, level.shares, level.orders);
                let ours: Vec<_> = book.levels(side).map(level).collect();
                let theirs = self.venue(|venue| venue.exchange().levels(book.locate(), side));
                assert_eq!(ours, theirs);
                levels += ours.len();
            }
        }
        assert!(levels > 10, "{levels}");
        let fresh = self.heard_anew();
        let state = |orders: &ferrocx_tick2trade::orders::OrderEntry| {
            (orders.count(), orders.risk().exposure(0), orders.mismatches())
        };
        assert_eq!(state(engine.orders()), state(fresh.orders()));
        // No number twice: the exchange would have passed the second over.
        let urn = |answer: &[u8]| match Answer::parse(answer).unwrap().0 {
            Answer::Accepted(order) => Some(order.urn.get()),
            _ => None,
        };
        assert!(self.venue(|venue| venue.answers().filter_map(urn).is_sorted_by(|a, b| a < b)));
    }

    /// What one knows who hears every answer of the day from the first on.
    fn heard_anew(&self) -> Engine<Quoter> {
        let orders = self.config.engine.orders.clone();
        let config = EngineConfig { orders, ..EngineConfig::default() };
        let mut fresh = Engine::new(config, Quoter::new(0, 0, 0)).unwrap();
        self.venue(|venue| {
            venue.answers().for_each(|answer| fresh.answer(answer, 0, &mut Nowhere));
        });
        fresh
    }

    /// Cancels of the exchange because the member was gone.
    fn cut_off(&self) -> usize {
        let is_one = |answer: &&[u8]| match Answer::parse(answer).unwrap().0 {
            Answer::Cancelled(off) => off.reason == b'Z',
            _ => false,
        };
        self.venue(|venue| venue.answers().filter(is_one).count())
    }
}

/// Takes every packet, and nobody hears of it.
struct Nowhere;

impl Outbox for Nowhere {
    fn send(&mut self, _: &[u8]) -> bool {
        true
    }
}

fn cancelling() -> VenueConfig {
    VenueConfig { cancels_on_disconnect: true, ..VenueConfig::default() }
}

#[test]
fn a_reset_in_the_middle_of_trading_costs_the_orders_that_stood_and_nothing_else() {
    let mut day = Day::trading(cancelling(), |_| ());
    for round in 1..=3 {
        let stood = day.trader.engine().orders().count();
        let before = day.cut_off();
        day.venue(|venue| venue.reset_member(now_ns()));
        assert_eq!(day.cut_off() - before, stood, "the exchange has cancelled what stood");
        day.until("to hear of the reset", |day| day.stats().reset == round);
        assert_eq!(day.trader.engine().orders().count(), stood, "until the exchange says so");
        // The market goes on meanwhile.
        (0..50).for_each(|_| day.venue(|venue| venue.step(now_ns())));
        day.resume();
        day.check();
    }
    let stats = day.stats();
    assert_eq!((stats.reset, stats.silent, stats.broken, stats.rejected), (3, 0, 0, 0));
}

/// Orders stand at the exchange, and what is sent in the silence never arrives.
#[test]
fn silence_in_the_middle_of_trading_is_noticed_and_what_was_lost_is_taken_off() {
    for cancels_on_disconnect in [false, true] {
        let venue = VenueConfig { cancels_on_disconnect, ..VenueConfig::default() };
        let mut day = Day::trading(venue, |config| config.timeout_ms = 4_000);
        let heard = day.venue(|venue| venue.stats().orders);
        lock(&day.meddler).cuts_tcp = true;
        // The feed still comes: the strategy moves its quotes, on a line that is cut.
        day.until("to send in vain", |day| {
            day.venue(|venue| venue.step(now_ns()));
            day.trader.gateway().line().orders() > heard
        });
        day.until("to notice", |day| day.stats().silent > 0);
        assert_eq!(day.venue(|venue| venue.stats().orders), heard, "nothing arrived");
        let stand = day.heard_anew().orders().count();
        lock(&day.meddler).cuts_tcp = false;
        day.resume();
        day.check();
        assert_eq!(day.cut_off(), if cancels_on_disconnect { stand } else { 0 });
        assert_eq!(day.trader.engine().orders().mismatches(), 0);
    }
}

/// A program that was killed hears the day anew, with what earlier sessions were told in it: none
/// of that is taken for the end of the replay.
#[test]
fn no_order_leaves_before_the_whole_day_was_heard_again() {
    let mut day = Day::trading(VenueConfig { answer_bytes: 7, ..VenueConfig::default() }, |_| ());
    day.pass(500);
    let (next_urn, answers) =
        (day.trader.engine().orders().next_urn(), day.venue(|venue| venue.answered()));
    let requests = day.venue(|venue| venue.stats().orders);
    assert!(next_urn > 5, "{next_urn}");
    let mut day = day.restart();
    let mut least = u64::MAX;
    day.until("to open again", |day| {
        let is_open = day.trader.gateway().state() == GatewayState::Open;
        if is_open {
            least = day.trader.gateway().next_answer();
        }
        is_open
    });
    assert!(least > answers as u64, "open at answer {least} of {answers}");
    assert!(day.trader.engine().orders().next_urn() >= next_urn);
    // The query itself, and nothing before it.
    assert!(day.venue(|venue| venue.stats().orders) > requests);
    day.resume();
    day.check();
}

#[test]
fn a_server_that_answers_byte_by_byte_is_heard_in_full() {
    let mut day = Day::trading(VenueConfig { answer_bytes: 1, ..VenueConfig::default() }, |_| ());
    day.pass(300);
    day.check();
    let received = day.trader.gateway().line().stats().received;
    let bytes: usize = day.venue(|venue| venue.answers().map(<[u8]>::len).sum());
    assert!(received > bytes as u64, "{received} segments of {bytes} bytes");
}

#[test]
fn a_refused_login_ends_the_day_and_no_order_leaves() {
    let mut day = Day::new(VenueConfig::default(), |config| {
        config.password = Text::new("wrong").unwrap();
        config.timeout_ms = 500;
    });
    day.until("to be refused", |day| matches!(day.trader.gateway().state(), GatewayState::Done(_)));
    let refused = GatewayState::Done(Ended::Rejected(Reject::NotAuthorised));
    assert_eq!(day.trader.gateway().state(), refused);
    let stats = day.stats();
    assert_eq!(stats.rejected, stats.connections);
    assert!((2..=6).contains(&stats.rejected), "tried for half a second: {}", stats.rejected);
    (0..500).for_each(|_| day.round());
    assert_eq!(day.venue(|venue| venue.stats().orders), 0);
}

/// An exchange that has not noticed yet that the last session is over.
#[test]
fn a_login_that_is_refused_to_who_was_logged_in_is_tried_again() {
    let mut day = Day::trading(VenueConfig::default(), |_| ());
    day.venue(|venue| {
        venue.refuse_logins(2);
        venue.reset_member(now_ns());
    });
    day.until("to be refused", |day| day.stats().rejected == 1);
    let waits = |day: &mut Day| matches!(day.trader.gateway().state(), GatewayState::Waiting(_));
    assert!(waits(&mut day));
    day.until("to be refused again", |day| day.stats().rejected == 2);
    day.resume();
    day.check();
}

/// A program that was killed comes back sooner than the exchange has seen its end.
#[test]
fn a_first_login_that_is_refused_is_tried_again() {
    let day = Day::trading(VenueConfig::default(), |config| config.timeout_ms = 5_000);
    day.venue(|venue| venue.refuse_logins(2));
    let mut day = day.restart();
    day.until("to be refused", |day| day.stats().rejected == 2);
    day.resume();
    day.check();
}

/// An exchange that starts again with an older state of its own: its numbers are lies now.
#[test]
fn an_exchange_that_forgot_what_it_told_is_not_traded_with() {
    let mut day = Day::trading(VenueConfig::default(), |_| ());
    let orders = day.venue(|venue| venue.stats().orders);
    day.venue(|venue| {
        venue.forget_answers(3);
        venue.reset_member(now_ns());
    });
    day.until("to see three lies", |day| day.stats().broken == 3);
    assert_ne!(day.trader.gateway().state(), GatewayState::Open);
    assert_eq!(day.venue(|venue| venue.stats().orders), orders, "no order left");
}

#[test]
fn no_order_leaves_after_the_kill_switch_whatever_becomes_of_the_connection() {
    let mut day = Day::trading(VenueConfig::default(), |_| ());
    assert!(day.trader.kill());
    day.settle();
    assert_eq!(day.trader.engine().orders().count(), 0);
    let accepted =
        |day: &Day| day.venue(|venue| venue.answers().filter(|answer| answer[0] == b'A').count());
    let before = accepted(&day);
    day.pass(300);
    day.venue(|venue| venue.reset_member(now_ns()));
    day.until("to hear of the reset", |day| day.stats().reset == 1);
    day.until("to open again", |day| day.trader.gateway().state() == GatewayState::Open);
    day.pass(300);
    day.check();
    assert_eq!((accepted(&day), day.trader.engine().orders().count()), (before, 0));
    let counters = day.trader.counters();
    assert!(counters.get("orders that a check refused", "killed").unwrap() > 0);
    let live = counters.get("answers of the exchange", "live").unwrap();
    assert!(live > 0 && live <= before as i64, "{live} of {before}");
}

/// A datagram from the exchange to one of the trader's ends.
fn datagram(day: &Day, to: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    let venue = VenueConfig::default();
    datagram_of(day, SocketAddrV4::new(venue.address, venue.requests_port), to, payload)
}

/// A datagram of anybody to one of the trader's ends.
fn datagram_of(day: &Day, from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    let venue = VenueConfig::default();
    let mac = match to.ip().is_multicast() {
        true => MacAddr::of_ipv4_group(*to.ip()),
        false => day.port.device().mac(),
    };
    let headers = Headers {
        destination_mac: mac,
        source_mac: venue.mac,
        vlan_tci: None,
        source: from.into(),
        destination: to.into(),
        hop_limit: 16,
        traffic_class: 0,
        transport: Transport::Udp,
    };
    let mut frame = vec![0; headers.len_bytes()];
    frame.extend(payload);
    headers.write(&mut frame).unwrap();
    frame
}

#[test]
fn what_nobody_should_have_sent_is_counted_by_its_reason_on_every_line() {
    let venue = VenueConfig::default();
    let snapshots = SocketAddrV4::new(venue.address, venue.snapshots_port);
    let mut day = Day::trading(VenueConfig::default(), |config| config.snapshots = Some(snapshots));
    let own = SocketAddrV4::new(day.config.address, day.config.answers_port);
    let ends = [venue.lines[0], venue.lines[1], own];
    let packet = |session: mold::Session, first: u64, message: &[u8]| {
        let mut bytes = [0; 128];
        let mut packet = mold::Builder::new(&mut bytes, session, first).unwrap();
        assert!(packet.push(message));
        packet.finish().to_vec()
    };
    let (session, other) = (venue.session, Text::new("YESTERDAY").unwrap());
    let before = day.trader.engine().arbiter().stats().clone();
    let known = day.trader.engine().arbiter().next();
    for end in ends {
        // Cut inside the header, and inside a message; repeated; stale; lies about numbers.
        let whole = packet(session, known - 1, b"again");
        let frames = [
            datagram(&day, end, &whole[..11]),
            datagram(&day, end, &whole[..whole.len() - 2]),
            datagram(&day, end, &whole),
            datagram(&day, end, &packet(other, 77, b"stale")),
            datagram(&day, end, &packet(session, known + 200_000_000, b"lie")),
            datagram(&day, end, &packet(session, u64::MAX, b"lie")),
            // A byte turned over on the way, behind the Ethernet's own check.
            {
                let mut frame = datagram(&day, end, &whole);
                *frame.last_mut().unwrap() ^= 1;
                frame
            },
        ];
        day.inject(frames);
    }
    // To the ends of both sessions: another port of ours, and a segment that is none.
    let refused = |day: &mut Day| {
        let counters = day.trader.counters();
        ["order entry, last connection", "snapshots, last connection"]
            .map(|session| counters.get(session, "refused").unwrap())
    };
    let refused_before = refused(&mut day);
    let segment = |port| Headers {
        source: (venue.address, port).into(),
        destination: (day.config.address, 9).into(),
        destination_mac: day.port.device().mac(),
        source_mac: venue.mac,
        vlan_tci: None,
        hop_limit: 64,
        traffic_class: 0,
        transport: Transport::Tcp {
            sequence: 1,
            acknowledgment: 1,
            flags: 0x10,
            window: 9,
            max_segment: None,
        },
    };
    for segment in [venue.orders_port, venue.snapshots_port].map(segment) {
        let mut foreign = vec![0; segment.len_bytes()];
        segment.write(&mut foreign).unwrap();
        let mut damaged = foreign.clone();
        *damaged.last_mut().unwrap() ^= 1;
        day.inject([foreign, damaged]);
    }
    day.until("to take all of it", |day| {
        day.trader.dropped().damaged == 5
            && day.trader.engine().arbiter().stats().malformed == before.malformed + 3
    });
    day.trade();
    day.check();
    let (stats, arbiter) = (day.trader.engine().stats(), day.trader.engine().arbiter().stats());
    assert_eq!((stats.malformed_packets, stats.malformed_messages), (6, 0));
    assert_eq!(arbiter.foreign - before.foreign, 3);
    // Of an answer it is nothing that was asked for, however far ahead.
    assert_eq!(arbiter.implausible - before.implausible, 2);
    assert_eq!(arbiter.unasked - before.unasked, 1);
    assert_eq!(day.trader.dropped(), Dropped { unreadable: 0, foreign: 0, damaged: 5 });
    assert_eq!(refused(&mut day), refused_before.map(|count| count + 1));
}

/// A host that makes the next message up, and sends it to where lost ones are answered: not as
/// another, nor from another port, nor as the server while nothing is missing.
#[test]
fn nobody_feeds_the_books_by_the_way_of_answers() {
    let mut day = Day::trading(VenueConfig::default(), |_| ());
    let venue = VenueConfig::default();
    let own = SocketAddrV4::new(day.config.address, day.config.answers_port);
    let (address, port) = (venue.address, venue.requests_port);
    let count = |day: &mut Day| {
        let counters = day.trader.counters();
        [("queue of answers", "packets"), ("frames not taken", "foreign"), ("feed", "unasked")]
            .map(|(part, name)| counters.get(part, name).unwrap())
    };
    for (address, port, counts) in [
        (Ipv4Addr::new(10, 9, 9, 9), port, [0, 0, 0]),
        (address, port + 1, [1, 1, 0]),
        (address, port, [1, 0, 1]),
    ] {
        day.settle();
        let before = count(&mut day);
        let known = day.trader.engine().arbiter().next();
        let mut bytes = [0; 128];
        let mut packet = mold::Builder::new(&mut bytes, venue.session, known).unwrap();
        assert!(packet.push(b"Sxxyyzzzzzzz"));
        let frame = datagram_of(&day, SocketAddrV4::new(address, port), own, packet.finish());
        day.inject([frame]);
        (0..500).for_each(|_| day.round());
        assert_eq!(day.trader.engine().arbiter().next(), known, "{address}:{port}");
        let after = count(&mut day);
        let more = std::array::from_fn(|at| after[at] - before[at]);
        assert_eq!(more, counts, "led here, foreign, not asked for");
        day.trade();
        day.check();
    }
}

/// The trader looks away while more comes than its rings hold.
#[test]
fn a_feed_that_is_faster_than_we_are_is_caught_up_with() {
    let mut day = Day::trading(VenueConfig::default(), |_| ());
    let before = day.trader.engine().arbiter().stats().clone();
    for _ in 0..3_000 {
        let mut world = lock(&day.world);
        world.venue.step(now_ns());
        world.step();
    }
    let lost = |day: &Day| lock(&day.world).nic.state().port.counters.rx_out_of_buffer;
    assert!(lost(&day) > 0, "the rings held all of it");
    // The device is asked, and the venue's heartbeat may come meanwhile, and be lost.
    let (lost, counters) = loop {
        let (before, counters) = (lost(&day), day.trader.counters());
        if lost(&day) == before {
            break (before, counters);
        }
    };
    let missed = ["A", "B"].map(|line| counters.get(&format!("queue of line {line}"), "missed"));
    assert_eq!(missed.map(Option::unwrap).iter().sum::<i64>(), lost as i64, "each has its own");
    day.trade();
    day.check();
    let stats = day.trader.engine().arbiter().stats();
    assert!(stats.gaps > before.gaps && stats.requests > before.requests);
    assert_eq!(stats.lost, 0);
}

/// The core is away for a moment while the market goes on: what waits is old, and nothing enters
/// before all of it is in the books.
#[test]
fn what_came_while_the_core_was_away_is_not_traded_on() {
    let mut day = Day::trading(VenueConfig::default(), |config| config.away_ms = 100);
    day.settle();
    for _ in 0..3 {
        let until = now_ns() + 100_000_000;
        for _ in 0..50 {
            let mut world = lock(&day.world);
            world.venue.step(now_ns());
            world.step();
        }
        std::thread::sleep(std::time::Duration::from_nanos(until.saturating_sub(now_ns())));
        let (next, sent) = (day.trader.engine().arbiter().next(), day.venue(|venue| venue.sent()));
        let urn = day.trader.engine().orders().next_urn();
        assert!(next < sent as u64, "nothing waits");
        day.trader.poll();
        let mut rounds = 1;
        while day.trader.engine().has_backlog() {
            let orders = day.trader.engine().orders();
            assert!(orders.risk().is_stopped_by(Stop::Stale));
            assert_eq!(orders.next_urn(), urn, "an order of old news");
            day.trader.poll();
            rounds += 1;
        }
        assert!(rounds > 25, "{rounds}: two queues have 50 frames each");
        assert!(day.trader.engine().arbiter().next() > sent as u64);
        day.trade();
        day.check();
    }
    assert!(day.trader.counters().get("engine", "backlogs").unwrap() >= 3);
}

/// The connection is cut for longer than the rings could hold: the books follow the feed all the
/// same, and nothing is lost.
#[test]
fn books_follow_the_feed_while_order_entry_is_cut() {
    let mut day = Day::trading(VenueConfig::default(), |config| config.timeout_ms = 4_000);
    lock(&day.meddler).cuts_tcp = true;
    day.until("to notice", |day| day.stats().silent > 0);
    let requests = day.trader.engine().arbiter().stats().requests;
    for _ in 0..200 {
        day.venue(|venue| venue.step(now_ns()));
        day.until("to hear the feed", |day| {
            assert_ne!(day.trader.gateway().state(), GatewayState::Open);
            day.trader.engine().arbiter().next() == day.venue(|venue| venue.sent()) as u64 + 1
        });
    }
    let stats = day.trader.engine().arbiter().stats();
    assert_eq!((stats.requests, stats.lost), (requests, 0), "the rings overflowed");
    lock(&day.meddler).cuts_tcp = false;
    day.resume();
    day.check();
}

/// A server of snapshots that says that its session is over before the snapshot is whole.
#[test]
fn a_snapshot_that_ends_too_soon_is_asked_for_again() {
    let venue = VenueConfig { halved_snapshots: 2, ..VenueConfig::default() };
    let snapshots = SocketAddrV4::new(venue.address, venue.snapshots_port);
    let mut day = Day::new(venue, |config| {
        (config.snapshots, config.joins_late) = (Some(snapshots), true);
    });
    (0..300).for_each(|_| day.venue(|venue| venue.step(now_ns())));
    day.until("to join", |day| day.trader.engine().arbiter().next() != 0);
    day.until("to open", |day| day.trader.gateway().state() == GatewayState::Open);
    day.trade();
    day.check();
}

/// One datagram that is older than the day, or ahead of it, changes nothing.
#[test]
fn one_datagram_of_another_day_or_of_a_wrong_number_ends_no_day() {
    let mut day = Day::trading(VenueConfig::default(), |config| config.engine.feed.attempts = 5);
    let venue = VenueConfig::default();
    let other: mold::Session = Text::new("YESTERDAY").unwrap();
    let before = day.trader.engine().arbiter().stats().clone();
    for (session, first) in [
        (Some(other), 0),
        (Some(other), 1),
        (Some(other), 1_000_000),
        (None, 1_000),
        (None, 60_000),
        (None, 900_000),
        (None, 90_000_000),
    ] {
        let known = day.trader.engine().arbiter().next();
        let first = if session.is_some() { first } else { known + first };
        let mut bytes = [0; 128];
        let session = session.unwrap_or(venue.session);
        let mut packet = mold::Builder::new(&mut bytes, session, first).unwrap();
        assert!(packet.push(b"Sxxyyzzzzzzz"));
        let frame = datagram(&day, venue.lines[0], packet.finish());
        day.inject([frame]);
        // As long as it takes to ask for what is missing and to give it up.
        let until = now_ns() + 30_000_000;
        day.until("to give up", |_| now_ns() > until);
        day.trade();
        day.pass(50);
        day.check();
    }
    let stats = day.trader.engine().arbiter().stats();
    assert_eq!((stats.lost, stats.foreign - before.foreign), (0, 3));
    assert_eq!(day.trader.engine().stats().malformed_messages, 0);
}

/// Books that are wrong are had anew: after messages that nobody brings, and after one that does
/// not fit, by which a true one is lost.
#[test]
fn books_that_may_be_wrong_are_had_anew_from_a_snapshot() {
    let venue = VenueConfig::default();
    let snapshots = SocketAddrV4::new(venue.address, venue.snapshots_port);
    let mut day = Day::trading(VenueConfig::default(), |config| {
        config.snapshots = Some(snapshots);
        config.engine.feed.attempts = 3;
    });
    assert_eq!(day.trader.joining(), Some(GatewayState::Idle), "nobody is asked in vain");
    let connections = day.stats().connections;
    for round in 1..=2 {
        lock(&day.meddler).is_deaf = true;
        day.venue(|venue| venue.burst_loss(200, now_ns()));
        day.until("to lose them", |day| {
            day.venue(|venue| venue.step(now_ns()));
            day.trader.engine().arbiter().stats().lost >= 200 * round
        });
        lock(&day.meddler).is_deaf = false;
        day.until("to have the books", |day| {
            day.trader.joining() == Some(GatewayState::Done(Ended::EndOfSession))
                && day.trader.engine().stats().held == round
        });
        day.trade();
        day.check();
    }
    // An order that never was is executed: the book says so, and what the number belonged to is
    // missing.
    let trade = ferrocx_tick2trade::proto::itch::Executed {
        header: ferrocx_tick2trade::proto::itch::Header::new(b'E', 1, 0),
        reference: u64::MAX.into(),
        shares: 1.into(),
        match_number: 1.into(),
    };
    let known = day.trader.engine().arbiter().next();
    let mut bytes = [0; 128];
    let mut packet = mold::Builder::new(&mut bytes, venue.session, known).unwrap();
    assert!(packet.push(zerocopy::IntoBytes::as_bytes(&trade)));
    let frame = datagram(&day, venue.lines[0], packet.finish());
    day.inject([frame]);
    // Before the true one of that number, which would win otherwise.
    day.until("to take it", |day| day.trader.engine().arbiter().next() == known + 1);
    day.until("to have the books again", |day| {
        day.venue(|venue| venue.step(now_ns()));
        day.trader.engine().stats().held == 3
            && day.trader.joining() == Some(GatewayState::Done(Ended::EndOfSession))
    });
    day.trade();
    day.check();
    assert_eq!(day.stats().connections, connections, "order entry is as it was");
    let counters = day.trader.counters();
    let misfits = ["unknown_order", "duplicate_order", "too_many_shares", "bad_order", "no_level"]
        .map(|reason| counters.get("messages that no book took", reason).unwrap());
    // The books were had anew before anything else could miss it.
    assert!(misfits[0] >= 1 && misfits[1..] == [0; 4], "{misfits:?}");
    assert_eq!(counters.get("books", "suspect"), Some(0), "they are right again");
}
